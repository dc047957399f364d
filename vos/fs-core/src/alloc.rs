//! Which data blocks are free.
//!
//! Two bitmaps. `owned` follows the log: a block is owned from the record that allocated it to the record that freed
//! it; this one is stored by checkpoints. `busy` is what must not be handed out: owned blocks, blocks that a running
//! operation took, and blocks that were freed but whose freeing is not durable yet, or that a reader may still be
//! reading.
//!
//! What a snapshot has is `held`: busy, whoever owns it or not, until no snapshot has it any more.
//!
//! A freed block passes through `freed` (since the last freeze), `waiting` (its checkpoint is under way or durable, but
//! readers that began before are not done) and becomes free.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use vos_api::fs::{BEHIND_BYTES_MAX, BEHIND_COUNT_MAX};

use crate::device::BLOCK64;
use crate::extents::{Run, push_block};

/// Blocks that one stored record of the bitmap covers.
pub const CHUNK_BLOCKS: u64 = 8192;
const CHUNK_WORDS: usize = (CHUNK_BLOCKS / 64) as usize;
/// Kept back so that truncation, which may have to write one partial block, works on a full volume.
pub const RESERVE_BLOCKS: u64 = 64;
/// Kept back for each session that writes behind: twice what it may have changed without having told, since it may have
/// changed as much again when it hears that there is no room; a change of few bytes takes two blocks.
pub const BEHIND_BLOCKS: u64 = 2 * (BEHIND_BYTES_MAX as u64 / BLOCK64 + 2 * BEHIND_COUNT_MAX as u64);
/// Where that is more than this part of a volume, nobody writes behind.
const BEHIND_DIVISOR: u64 = 16;

/// Held by whoever reads blocks: those freed meanwhile are not handed out before it is dropped.
pub type Generation = Arc<()>;

/// Who may use the last blocks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Claim {
    Normal,
    /// A change whose program was answered before: its space was kept back.
    Behind,
    /// An operation that frees space in the end.
    Emergency,
}

pub struct Allocator {
    blocks: u64,
    owned: Bitmap,
    busy: Bitmap,
    held: Option<Held>,
    /// Of these, blocks that nobody owns.
    held_alone: u64,
    /// Numbers that no block has.
    hidden: u64,
    free: u64,
    /// Of these, for sessions that write behind.
    kept_back: u64,
    /// Where the next search begins: after the last allocation.
    cursor: u64,
    generation: Generation,
    freed: Vec<Run>,
    waiting: VecDeque<Waiting>,
    dirty: std::collections::BTreeSet<u64>,
}

struct Waiting {
    generation: Generation,
    runs: Vec<Run>,
    is_durable: bool,
}

impl Allocator {
    pub fn new(blocks: u64) -> Allocator {
        Allocator {
            blocks,
            owned: Bitmap::new(blocks),
            busy: Bitmap::new(blocks),
            held: None,
            held_alone: 0,
            hidden: 0,
            free: blocks,
            kept_back: 0,
            cursor: 0,
            generation: Arc::new(()),
            freed: Vec::new(),
            waiting: VecDeque::new(),
            dirty: Default::default(),
        }
    }

    /// There is no block of this number.
    pub fn hide(&mut self, block: u64) {
        if self.busy.set(block) {
            self.free -= 1;
            self.hidden += 1;
        }
    }

    /// Loads one stored record. `None` when it does not fit the volume.
    pub fn load(&mut self, chunk: u64, bytes: &[u8]) -> Option<()> {
        if chunk.checked_mul(CHUNK_BLOCKS)? >= self.blocks || bytes.len() != CHUNK_WORDS * 8 {
            return None;
        }
        for (index, word) in bytes.chunks_exact(8).enumerate() {
            let word = u64::from_le_bytes(word.try_into().ok()?);
            for block in bits(chunk as usize * CHUNK_WORDS + index, word) {
                if block >= self.blocks {
                    return None;
                }
                self.owned.set(block);
                if self.busy.set(block) {
                    self.free -= 1;
                }
            }
        }
        Some(())
    }

    pub fn blocks(&self) -> u64 {
        self.blocks - self.hidden
    }

    /// All numbers of blocks are below it.
    pub(crate) fn numbers(&self) -> u64 {
        self.blocks
    }

    /// Free for normal use, now or after a checkpoint.
    pub fn available(&self) -> u64 {
        (self.free + self.pending()).saturating_sub(RESERVE_BLOCKS + self.kept_back)
    }

    /// So many sessions write behind.
    pub fn keep_back(&mut self, sessions: u64) {
        self.kept_back = sessions.min(self.behind_max()) * BEHIND_BLOCKS;
    }

    /// For how many sessions that write behind there is room.
    pub fn behind_max(&self) -> u64 {
        self.blocks / BEHIND_DIVISOR / BEHIND_BLOCKS
    }

    /// Whether there is all that is kept back for them.
    pub fn has_kept_back(&self) -> bool {
        // Not what a checkpoint would free: readers may hold it.
        self.kept_back > 0 && self.free >= self.kept_back + RESERVE_BLOCKS
    }

    fn reserve(&self, claim: Claim) -> u64 {
        match claim {
            Claim::Normal => RESERVE_BLOCKS + self.kept_back,
            Claim::Behind => RESERVE_BLOCKS,
            // A snapshot has what would be freed.
            Claim::Emergency if self.held.is_some() => self.kept_back,
            Claim::Emergency => 0,
        }
    }

    /// Blocks that a checkpoint would make free.
    pub fn pending(&self) -> u64 {
        let waiting: u64 = self.waiting.iter().flat_map(|waiting| &waiting.runs).map(|run| run.count).sum();
        waiting + self.freed.iter().map(|run| run.count).sum::<u64>()
    }

    pub fn generation(&self) -> Generation {
        self.generation.clone()
    }

    /// Takes `count` blocks, in as few runs as can be had near the cursor. All or nothing.
    pub fn take(&mut self, count: u64, claim: Claim) -> Option<Vec<Run>> {
        self.reap();
        if self.free < count + self.reserve(claim) {
            return None;
        }
        let mut runs = Vec::new();
        let mut left = count;
        if let Some(run) = self.find_long(count) {
            left -= run.count;
            runs.push(self.claim(run));
        }
        while left > 0 {
            // Free blocks are left, or the check above would have failed.
            let run = self.busy.next_free(self.cursor, left).or_else(|| self.busy.next_free(0, left))?;
            left -= run.count;
            runs.push(self.claim(run));
        }
        Some(runs)
    }

    /// The next search begins at the start of the volume, where blocks were written before.
    pub fn rewind(&mut self) {
        self.cursor = 0;
    }

    /// As [`Allocator::take`], from the parts of `part_blocks` that `may_use` names. Slower: for when few of them are
    /// left.
    pub fn take_in(
        &mut self,
        count: u64,
        claim: Claim,
        part_blocks: u64,
        may_use: impl Fn(u64) -> bool,
    ) -> Option<Vec<Run>> {
        if self.free < count + self.reserve(claim) {
            return None;
        }
        let (mut runs, mut left, mut at) = (Vec::new(), count, 0);
        while left > 0 {
            let Some(found) = self.busy.next_free(at, left) else {
                self.give_back(&runs);
                return None;
            };
            let part = found.start / part_blocks;
            let end = (part + 1) * part_blocks;
            at = end;
            if may_use(part) {
                let run = self.claim(Run { start: found.start, count: found.count.min(end - found.start) });
                at = run.start + run.count;
                left -= run.count;
                runs.push(run);
            }
        }
        Some(runs)
    }

    /// One run for everything, looked for in a bounded stretch after the cursor and then at the start.
    fn find_long(&self, count: u64) -> Option<Run> {
        const TRIES: usize = 256;
        for start in [self.cursor, 0] {
            let mut at = start;
            for _ in 0..TRIES {
                let Some(run) = self.busy.next_free(at, count) else { break };
                if run.count == count {
                    return Some(run);
                }
                at = run.start + run.count;
            }
        }
        None
    }

    fn claim(&mut self, run: Run) -> Run {
        for block in run.start..run.start + run.count {
            self.busy.set(block);
        }
        self.free -= run.count;
        self.cursor = run.start + run.count;
        run
    }

    /// Gives back what an operation took and did not use.
    pub fn give_back(&mut self, runs: &[Run]) {
        for block in runs.iter().flat_map(|run| run.start..run.start + run.count) {
            if !self.owned.get(block) && self.busy.clear(block) {
                self.free += 1;
            }
        }
    }

    /// A record was made that owns these blocks.
    pub fn own(&mut self, runs: &[Run]) {
        for block in runs.iter().flat_map(|run| run.start..run.start + run.count) {
            if self.owned.set(block) && self.is_held(block) {
                self.held_alone = self.held_alone.saturating_sub(1);
            }
            if self.busy.set(block) {
                self.free -= 1;
            }
            self.dirty.insert(block / CHUNK_BLOCKS);
        }
    }

    /// A record was made that frees these blocks.
    pub fn disown(&mut self, runs: &[Run]) {
        for run in runs {
            for block in run.start..run.start + run.count {
                let was_owned = self.owned.clear(block);
                self.dirty.insert(block / CHUNK_BLOCKS);
                match self.is_held(block) {
                    true => self.held_alone += u64::from(was_owned),
                    false => push_block(&mut self.freed, block),
                }
            }
        }
    }

    /// Whether a snapshot has it.
    pub fn is_held(&self, block: u64) -> bool {
        self.held.as_ref().is_some_and(|held| held.0.get(block))
    }

    /// Whether there are snapshots.
    pub fn holds(&self) -> bool {
        self.held.is_some()
    }

    /// Blocks that snapshots have and nobody else.
    pub fn held_alone(&self) -> u64 {
        self.held_alone
    }

    /// A snapshot has what is owned now.
    pub fn hold_owned(&mut self) {
        let held = self.held.get_or_insert_with(|| Held::new(self.blocks));
        for (held, owned) in held.0.words.iter_mut().zip(&self.owned.words) {
            *held |= owned;
        }
    }

    /// What all snapshots have together, when some are gone, or at first.
    pub fn hold(&mut self, held: Option<Held>) {
        let before = std::mem::replace(&mut self.held, held);
        let words = |held: &Option<Held>, at: usize| {
            held.as_ref().and_then(|held| held.0.words.get(at)).map_or(0, |word| *word)
        };
        self.held_alone = 0;
        for at in 0..self.owned.words.len() {
            let (before, now) = (words(&before, at), words(&self.held, at));
            let owned = self.owned.words.get(at).map_or(0, |word| *word);
            self.held_alone += u64::from((now & !owned).count_ones());
            for block in bits(at, before & !now & !owned) {
                push_block(&mut self.freed, block);
            }
            for block in bits(at, now & !before) {
                if self.busy.set(block) {
                    self.free -= 1;
                }
            }
        }
    }

    /// Begins a checkpoint: the stored records that changed.
    pub fn freeze(&mut self) -> BTreeMap<u64, Vec<u8>> {
        let old = std::mem::replace(&mut self.generation, Arc::new(()));
        let runs = std::mem::take(&mut self.freed);
        self.waiting.push_back(Waiting { generation: old, runs, is_durable: false });
        std::mem::take(&mut self.dirty).into_iter().map(|chunk| (chunk, self.owned.chunk(chunk))).collect()
    }

    /// The checkpoint of the last freeze is durable.
    pub fn thaw(&mut self) {
        for waiting in &mut self.waiting {
            waiting.is_durable = true;
        }
        self.reap();
    }

    /// Frees what no reader can still see. A reader holds the generation it began in, so those that began earlier hold
    /// earlier ones: generations end in order.
    fn reap(&mut self) {
        while let Some(first) = self.waiting.front() {
            if !first.is_durable || Arc::strong_count(&first.generation) > 1 {
                break;
            }
            let Some(done) = self.waiting.pop_front() else { break };
            for block in done.runs.iter().flat_map(|run| run.start..run.start + run.count) {
                if self.busy.clear(block) {
                    self.free += 1;
                }
            }
        }
    }

    /// Whether a block belongs to a file, for the check.
    pub fn is_owned(&self, block: u64) -> bool {
        block < self.blocks && self.owned.get(block)
    }

    pub fn owned_blocks(&self) -> u64 {
        self.owned.count()
    }
}

/// What snapshots have.
pub struct Held(Bitmap);

impl Held {
    pub fn new(blocks: u64) -> Held {
        Held(Bitmap::new(blocks))
    }

    /// Adds a stored record of one of them. `None` when it does not fit the volume.
    pub fn add(&mut self, chunk: u64, bytes: &[u8]) -> Option<()> {
        let from = usize::try_from(chunk).ok()?.checked_mul(CHUNK_WORDS)?;
        let words = self.0.words.get_mut(from..from.checked_add(CHUNK_WORDS)?)?;
        for (at, (word, bytes)) in words.iter_mut().zip(bytes.chunks_exact(8)).enumerate() {
            let more = u64::from_le_bytes(bytes.try_into().ok()?);
            *word |= more;
            if bits(from + at, more).last().is_some_and(|block| block >= self.0.blocks) {
                return None;
            }
        }
        (bytes.len() == CHUNK_WORDS * 8).then_some(())
    }
}

/// Numbers of the bits that are set in a word.
fn bits(at: usize, mut word: u64) -> impl Iterator<Item = u64> {
    std::iter::from_fn(move || {
        let bit = word.trailing_zeros();
        word &= word.wrapping_sub(1);
        (bit < u64::BITS).then_some(at as u64 * u64::from(u64::BITS) + u64::from(bit))
    })
}

/// A bit for each block.
pub(crate) struct Bitmap {
    words: Vec<u64>,
    blocks: u64,
}

#[allow(
    clippy::indexing_slicing,
    reason = "there are words for whole chunks, and a block and a chunk lie below the last"
)]
impl Bitmap {
    pub(crate) fn new(blocks: u64) -> Bitmap {
        let words = blocks.div_ceil(CHUNK_BLOCKS) as usize * CHUNK_WORDS;
        Bitmap { words: vec![0; words], blocks }
    }

    fn get(&self, block: u64) -> bool {
        self.words.get((block / 64) as usize).is_some_and(|word| word & (1 << (block % 64)) != 0)
    }

    /// Whether it was clear before; a block that is not there never was.
    pub(crate) fn set(&mut self, block: u64) -> bool {
        let Some(word) = self.words.get_mut((block / 64) as usize) else { return false };
        let before = *word;
        *word |= 1 << (block % 64);
        before != *word
    }

    /// Whether it was set before.
    fn clear(&mut self, block: u64) -> bool {
        let Some(word) = self.words.get_mut((block / 64) as usize) else { return false };
        let before = *word;
        *word &= !(1 << (block % 64));
        before != *word
    }

    pub(crate) fn count(&self) -> u64 {
        self.words.iter().map(|word| u64::from(word.count_ones())).sum()
    }

    fn chunk(&self, chunk: u64) -> Vec<u8> {
        let from = chunk as usize * CHUNK_WORDS;
        self.words[from..from + CHUNK_WORDS].iter().flat_map(|word| word.to_le_bytes()).collect()
    }

    /// The first clear run at or after `from`, cut to `most`.
    fn next_free(&self, from: u64, most: u64) -> Option<Run> {
        let mut block = from;
        while block < self.blocks {
            let word = self.words[(block / 64) as usize] >> (block % 64);
            let ones = u64::from(word.trailing_ones()).min(64 - block % 64);
            if ones == 0 {
                break;
            }
            block += ones;
        }
        if block >= self.blocks {
            return None;
        }
        let start = block;
        while block < self.blocks && block - start < most {
            let word = self.words[(block / 64) as usize] >> (block % 64);
            let zeros = u64::from(word.trailing_zeros()).min(64 - block % 64);
            block += zeros;
            if zeros == 0 || !block.is_multiple_of(64) {
                break;
            }
        }
        Some(Run { start, count: (block.min(self.blocks) - start).min(most) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::extents::blocks_in;

    #[test]
    fn freed_block_is_not_handed_out_before_the_checkpoint_and_the_last_reader() {
        let mut alloc = Allocator::new(RESERVE_BLOCKS + 8);
        let runs = alloc.take(8, Claim::Normal).unwrap();
        alloc.own(&runs);
        let reader = alloc.generation();
        alloc.disown(&runs);
        assert!(alloc.take(1, Claim::Normal).is_none());
        alloc.freeze();
        assert!(alloc.take(1, Claim::Normal).is_none());
        alloc.thaw();
        assert!(alloc.take(1, Claim::Normal).is_none());
        drop(reader);
        assert_eq!(blocks_in(&alloc.take(8, Claim::Normal).unwrap()), 8);
    }

    #[test]
    fn blocks_come_in_one_run_when_there_is_one() {
        let mut alloc = Allocator::new(1000);
        let first = alloc.take(10, Claim::Normal).unwrap();
        assert_eq!(first, [Run { start: 0, count: 10 }]);
        alloc.give_back(&[Run { start: 3, count: 2 }]);
        assert_eq!(alloc.take(300, Claim::Normal).unwrap(), [Run { start: 10, count: 300 }]);
    }

    #[test]
    fn every_block_can_be_had_when_free_space_is_in_pieces() {
        let mut alloc = Allocator::new(400);
        alloc.take(400, Claim::Emergency).unwrap();
        for block in (0..400).step_by(2) {
            alloc.give_back(&[Run { start: block, count: 1 }]);
        }
        assert_eq!(alloc.take(200, Claim::Emergency).map(|runs| runs.len()), Some(200));
        assert!(alloc.take(1, Claim::Emergency).is_none());
    }
}
