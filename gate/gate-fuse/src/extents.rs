//! Which blocks of a file have data, and which are holes, as far as the gate has been told.
//!
//! Pure. What the server says covers the blocks that it looked at; what was promised since has data.

use std::collections::BTreeMap;

/// In which the server gives space, and programs see holes.
pub const BLOCK: u64 = vos_api::disk::BLOCK_BYTES as u64;

/// What a program looks for (`lseek(2)`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Sought {
    Data,
    Hole,
}

impl Sought {
    /// `None`: no file system is asked for anything else.
    pub fn of(whence: u32) -> Option<Sought> {
        match i32::try_from(whence).ok()? {
            libc::SEEK_DATA => Some(Sought::Data),
            libc::SEEK_HOLE => Some(Sought::Hole),
            _ => None,
        }
    }
}

/// Blocks from each key up to the first word are of one kind; between them nobody knows. Neighbours differ.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub struct Extents(BTreeMap<u64, (u64, Sought)>);

impl Extents {
    /// How many there are.
    pub fn count(&self) -> usize {
        self.0.len()
    }

    /// The server found what was sought at `found`, looking from `offset` on.
    pub fn learn(&mut self, offset: u64, sought: Sought, found: u64) {
        let (first, there) = (offset / BLOCK, found / BLOCK);
        match sought {
            _ if found < offset => {}
            Sought::Data => {
                self.set(first, there, Sought::Hole);
                self.set(there, there + 1, Sought::Data);
            }
            Sought::Hole => {
                self.set(first, found.div_ceil(BLOCK), Sought::Data);
                // Else it is the end of the file, in the middle of a block.
                if found == offset || found.is_multiple_of(BLOCK) {
                    self.set(there, there + 1, Sought::Hole);
                }
            }
        }
    }

    /// Bytes were written.
    pub fn written(&mut self, offset: u64, bytes: u64) {
        self.set(offset / BLOCK, offset.saturating_add(bytes).div_ceil(BLOCK), Sought::Data);
    }

    /// Where the first data is, or hole, of a file of `size` bytes: `offset` lies in it, and behind its end is a hole.
    /// `Ok(None)`: there is no data any more. `Err`: nobody knows.
    pub fn find(&self, offset: u64, sought: Sought, size: u64) -> Result<Option<u64>, Unknown> {
        let mut at = offset;
        while at < size {
            let block = at / BLOCK;
            let (_, (end, kind)) = self.0.range(..=block).next_back().ok_or(Unknown)?;
            if *end <= block {
                return Err(Unknown);
            }
            if *kind == sought {
                return Ok(Some(at));
            }
            at = end.saturating_mul(BLOCK);
        }
        Ok(Some(size).filter(|_| sought == Sought::Hole))
    }

    fn set(&mut self, from: u64, to: u64, kind: Sought) {
        if from >= to {
            return;
        }
        let (mut from, mut to) = (from, to);
        // What it touches, on either side, too: neighbours of one kind are one.
        let touched: Vec<u64> =
            self.0.range(..=to).rev().take_while(|(_, (end, _))| *end >= from).map(|it| *it.0).collect();
        for start in touched {
            let Some((end, was)) = self.0.remove(&start) else { continue };
            if was == kind {
                (from, to) = (from.min(start), to.max(end));
                continue;
            }
            if start < from {
                self.0.insert(start, (from, was));
            }
            if end > to {
                self.0.insert(to, (end, was));
            }
        }
        self.0.insert(from, (to, kind));
    }
}

/// The server has to be asked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Unknown;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_server_said_is_known_as_far_as_it_looked() {
        let mut extents = Extents::default();
        let size = 10 * BLOCK + 7;
        assert_eq!(extents.find(5, Sought::Data, size), Err(Unknown));
        assert_eq!(extents.find(size, Sought::Data, size), Ok(None), "there is nothing to look at");
        extents.learn(5, Sought::Data, 3 * BLOCK);
        assert_eq!(extents.find(0, Sought::Data, size), Ok(Some(3 * BLOCK)));
        assert_eq!(extents.find(9, Sought::Hole, size), Ok(Some(9)));
        assert_eq!(extents.find(3 * BLOCK, Sought::Hole, size), Err(Unknown), "how far it reaches it did not say");
        extents.learn(3 * BLOCK, Sought::Hole, size);
        assert_eq!(extents.find(3 * BLOCK + 1, Sought::Hole, size), Ok(Some(size)));
        assert_eq!(extents.find(0, Sought::Data, size), Ok(Some(3 * BLOCK)));
        // The rest of the last block has its space: who writes on makes no hole.
        extents.written(11 * BLOCK, 1);
        assert_eq!(extents.find(3 * BLOCK, Sought::Hole, 11 * BLOCK + 1), Ok(Some(11 * BLOCK + 1)));
        assert_eq!(extents.count(), 2);
    }

    #[test]
    fn behind_the_last_data_is_a_hole_to_the_end() {
        let mut extents = Extents::default();
        extents.learn(0, Sought::Hole, BLOCK);
        assert_eq!(extents.find(0, Sought::Hole, 3 * BLOCK), Ok(Some(BLOCK)));
        assert_eq!(extents.find(BLOCK, Sought::Data, 3 * BLOCK), Err(Unknown));
        extents.learn(2 * BLOCK + 1, Sought::Hole, 2 * BLOCK + 1);
        assert_eq!(extents.find(BLOCK, Sought::Data, 3 * BLOCK), Ok(None));
    }

    /// Against a file that is kept block by block.
    #[test]
    fn it_never_says_other_than_the_file_itself() {
        for seed in 1..400_u64 {
            let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
            let mut random = |below: u64| {
                state ^= state << 13;
                state ^= state >> 7;
                state ^= state << 17;
                state % below
            };
            let (mut blocks, mut extents) = ([false; 24], Extents::default());
            blocks.iter_mut().for_each(|block| *block = random(2) == 0);
            let mut size = 1 + random(20 * BLOCK);
            for block in blocks.iter_mut().skip(size.div_ceil(BLOCK) as usize) {
                *block = false;
            }
            for step in 0..200 {
                let (offset, sought) = (random(size), if random(2) == 0 { Sought::Data } else { Sought::Hole });
                let is_sought = |at: u64| blocks[(at / BLOCK) as usize] == (sought == Sought::Data);
                let starts = (1..24).map(|block| block * BLOCK).filter(|at| *at > offset);
                let first = std::iter::once(offset).chain(starts).filter(|at| *at < size).find(|at| is_sought(*at));
                let truth = first.or(Some(size).filter(|_| sought == Sought::Hole));
                match extents.find(offset, sought, size) {
                    Ok(found) => assert_eq!(found, truth, "seed {seed}, step {step}"),
                    Err(Unknown) => truth.into_iter().for_each(|found| extents.learn(offset, sought, found)),
                }
                if random(4) == 0 {
                    let offset = random((size.next_multiple_of(BLOCK) + 1).min(22 * BLOCK));
                    let bytes = 1 + random(2 * BLOCK);
                    let written = offset / BLOCK..(offset + bytes).div_ceil(BLOCK);
                    written.for_each(|block| blocks[block as usize] = true);
                    size = size.max(offset + bytes);
                    extents.written(offset, bytes);
                }
            }
        }
    }
}
