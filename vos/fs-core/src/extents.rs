//! Where a file's bytes lie. One record describes one window of [`WINDOW_BLOCKS`] blocks of a file, so that
//! whatever is read or changed needs one record per MiB.

use crate::error::StoreError;
use crate::model::Reader;

pub const WINDOW_BLOCKS: u64 = 256;
/// No volume has more: where a block lies in bytes does not overflow.
const BLOCKS_MAX: u64 = 1 << 48;

/// Neighbouring blocks of the data region.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Run {
    pub start: u64,
    pub count: u64,
}

/// One block of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    pub block: u64,
    pub crc: u32,
}

/// The places of one window; `None` is a hole.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Window {
    pub places: Vec<Option<Place>>,
}

/// Blocks of a window that also lie side by side on the volume.
pub struct Piece<'a> {
    /// Position in the window.
    pub at: usize,
    pub run: Run,
    pub places: &'a [Option<Place>],
}

impl Default for Window {
    fn default() -> Window {
        Window { places: vec![None; WINDOW_BLOCKS as usize] }
    }
}

impl Window {
    /// Of one that is encoded: each block by itself.
    pub const BYTES_MAX: usize = 2 + 16 * WINDOW_BLOCKS as usize;

    pub fn is_empty(&self) -> bool {
        self.places.iter().all(Option::is_none)
    }

    pub fn used(&self) -> u64 {
        self.places.iter().flatten().count() as u64
    }

    /// The pieces of `places[from..to]`, holes left out.
    #[allow(clippy::indexing_slicing, reason = "`at` is below the number of places, and no piece begins behind it")]
    pub fn pieces(&self, from: usize, to: usize) -> Vec<Piece<'_>> {
        let mut pieces: Vec<Piece<'_>> = Vec::new();
        for at in from..to.min(self.places.len()) {
            let Some(place) = self.places[at] else { continue };
            if let Some(last) = pieces.last_mut() {
                let follows = last.at + last.places.len() == at && last.run.start + last.run.count == place.block;
                if follows {
                    last.run.count += 1;
                    last.places = &self.places[last.at..=at];
                    continue;
                }
            }
            pieces.push(Piece { at, run: Run { start: place.block, count: 1 }, places: &self.places[at..=at] });
        }
        pieces
    }

    /// Replaces one place; answers the block that was there.
    pub fn set(&mut self, at: usize, place: Option<Place>) -> Option<u64> {
        let slot = self.places.get_mut(at)?;
        std::mem::replace(slot, place).map(|old| old.block)
    }

    /// `pieces u16`, then per piece `at u16, count u16, block u64, crc u32 × count`.
    pub fn encode(&self) -> Vec<u8> {
        let pieces = self.pieces(0, self.places.len());
        let mut out = Vec::with_capacity(2 + pieces.len() * 12 + self.used() as usize * 4);
        out.extend_from_slice(&(pieces.len() as u16).to_le_bytes());
        for piece in &pieces {
            out.extend_from_slice(&(piece.at as u16).to_le_bytes());
            out.extend_from_slice(&(piece.run.count as u16).to_le_bytes());
            out.extend_from_slice(&piece.run.start.to_le_bytes());
            for place in piece.places.iter().flatten() {
                out.extend_from_slice(&place.crc.to_le_bytes());
            }
        }
        out
    }

    pub fn decode(bytes: &[u8]) -> Result<Window, StoreError> {
        Window::parse(bytes).ok_or(StoreError::Damaged("extent record"))
    }

    fn parse(bytes: &[u8]) -> Option<Window> {
        let mut reader = Reader(bytes);
        let mut window = Window::default();
        for _ in 0..reader.u16()? {
            let (at, count, start) = (reader.u16()? as usize, reader.u16()? as usize, reader.u64()?);
            for index in 0..count {
                let block = start.checked_add(index as u64).filter(|block| *block < BLOCKS_MAX)?;
                let place = Place { block, crc: reader.u32()? };
                *window.places.get_mut(at + index)? = Some(place);
            }
        }
        reader.0.is_empty().then_some(window)
    }
}

/// Adds a block to a list of runs, joining neighbours.
pub fn push_block(runs: &mut Vec<Run>, block: u64) {
    match runs.last_mut() {
        Some(last) if last.start + last.count == block => last.count += 1,
        _ => runs.push(Run { start: block, count: 1 }),
    }
}

#[cfg(test)]
pub fn blocks_in(runs: &[Run]) -> u64 {
    runs.iter().map(|run| run.count).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn window_survives_the_round_trip_and_joins_neighbours() {
        let mut window = Window::default();
        for at in [0usize, 1, 2, 9, 255] {
            window.set(at, Some(Place { block: 100 + at as u64, crc: at as u32 }));
        }
        window.set(1, Some(Place { block: 7, crc: 1 }));
        assert_eq!(window.pieces(0, 256).len(), 5);
        assert_eq!(Window::decode(&window.encode()).ok(), Some(window));
    }

    #[test]
    fn damaged_window_is_refused() {
        let mut window = Window::default();
        window.set(255, Some(Place { block: 1, crc: 2 }));
        let mut bytes = window.encode();
        bytes[4] = 9;
        assert!(Window::decode(&bytes).is_err());
        assert!(Window::decode(&bytes[..5]).is_err());
    }
}
