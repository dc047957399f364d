//! The requests of one ring that are under way, by tag: where in the arena a completion's data lies.

use std::collections::{HashMap, VecDeque};

use abi::IpcError;
use abi::ring::{Completion, Submission};
use wire::OpenTag;

/// A request under way.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Open {
    arena_offset: u32,
    in_capacity: u32,
}

/// Bounded by the ring: the client cannot have more requests under way than entries, and a client that breaks that
/// loses the channel ([`Tags::insert`] refuses).
#[derive(Default, Debug)]
pub(crate) struct Tags {
    open: HashMap<u32, Open>,
    /// Server's side: tags whose completion was sent and not confirmed, in order of their entries.
    sent: VecDeque<u32>,
    entries_max: usize,
}

impl Tags {
    pub(crate) fn new(entries: u32) -> Tags {
        // A list told by the peer may name requests that were completed meanwhile.
        Tags { open: HashMap::new(), sent: VecDeque::new(), entries_max: 4 * entries as usize }
    }

    /// `false` when more are under way than the ring has entries.
    #[must_use]
    pub(crate) fn insert(&mut self, submission: &Submission) -> bool {
        let open = Open { arena_offset: submission.arena_offset, in_capacity: submission.in_capacity };
        self.open.insert(submission.tag, open);
        self.open.len() <= self.entries_max
    }

    /// Where the completion's data lies.
    ///
    /// # Errors
    /// `unknown` when its request is not under way, `Corrupt` when it brings more than the request takes.
    pub(crate) fn range_of(&self, completion: &Completion, unknown: IpcError) -> Result<u32, IpcError> {
        let open = self.open.get(&completion.tag).ok_or(unknown)?;
        if completion.in_bytes > open.in_capacity {
            return Err(IpcError::Corrupt);
        }
        Ok(open.arena_offset)
    }

    pub(crate) fn remove(&mut self, tag: u32) {
        self.open.remove(&tag);
    }

    /// Server's side: the completion went out; its range is needed until it is confirmed.
    pub(crate) fn completion_sent(&mut self, tag: u32) {
        self.sent.push_back(tag);
    }

    /// Server's side: the oldest `count` sent completions are in the client's ring.
    pub(crate) fn confirm(&mut self, count: u32) {
        for _ in 0..count {
            if let Some(tag) = self.sent.pop_front() {
                self.open.remove(&tag);
            }
        }
    }

    /// Server's side, after a cut: sent completions will be sent again.
    pub(crate) fn forget_sent(&mut self) {
        self.sent.clear();
    }

    /// Adds what the peer knows and we do not.
    pub(crate) fn merge(&mut self, told: impl Iterator<Item = OpenTag>, arena_bytes: u32) {
        for tag in told.take(self.entries_max) {
            let inside = tag.arena_offset.checked_add(tag.in_capacity).is_some_and(|end| end <= arena_bytes);
            if inside && self.open.len() < self.entries_max {
                self.open
                    .entry(tag.tag)
                    .or_insert(Open { arena_offset: tag.arena_offset, in_capacity: tag.in_capacity });
            }
        }
    }

    pub(crate) fn list(&self) -> Vec<OpenTag> {
        let entry = |(tag, open): (&u32, &Open)| OpenTag {
            tag: *tag,
            arena_offset: open.arena_offset,
            in_capacity: open.in_capacity,
        };
        self.open.iter().map(entry).take(wire::limits::OPEN_TAGS_MAX).collect()
    }
}
