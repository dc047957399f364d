//! What a link needs of a channel on its own node.

use std::num::NonZeroU64;

use abi::ring::{Completion, RingSpec, Submission};
use abi::{Carried, DcId, Endpoint, Indices, IpcError, Lane, LocalRole, Settled};

/// Who talks to whom over a channel.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ends {
    pub dc: DcId,
    /// The party that opened it.
    pub from: Endpoint,
    pub to: Endpoint,
    pub lane: Lane,
    /// `None` on lane 0, which carries messages.
    pub ring: Option<RingSpec>,
    /// Of the party that opened it: the serial number of its control page on its own node, where that is known.
    pub incarnation: Option<NonZeroU64>,
}

/// The two parties of a channel, whoever opened it, and its lane: what a container has only one channel of at a time.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Pair {
    dc: DcId,
    low: Endpoint,
    high: Endpoint,
    lane: Lane,
}

impl Ends {
    pub(crate) fn pair(&self) -> Pair {
        let Ends { dc, from, to, lane, .. } = *self;
        Pair { dc, low: from.min(to), high: from.max(to), lane }
    }
}

/// The memory of a channel, seen from the place of its far party ("we"). Every method reads or writes that memory and
/// keeps nothing else, so a second life of a proxy sees what the first one saw. An `Err` ends the channel.
pub trait LocalChannel {
    fn role(&self) -> LocalRole;

    /// The far side has the channel.
    fn mark_open(&self);
    /// Whether that was ever heard here, perhaps by a proxy before this one.
    fn was_open(&self) -> bool;

    /// The local party's message that was neither taken nor withdrawn, unless it is the one with the word `forwarded`.
    fn outbound(&self, forwarded: u32) -> Result<Option<Carried>, IpcError>;
    /// The far party took the message. Nothing happens when it is not outstanding.
    fn mark_taken(&self, word: u32);
    /// The word of a message the local party wants back, or of a request that was taken and whose answer it waits for
    /// no more. May stay.
    fn cancel_requested(&self) -> Option<u32>;
    /// The far side gave the message back, or never got it, or dropped it: a reply that nobody waited for.
    fn settle_withdrawn(&self, word: u32);

    /// Publishes the far party's message. `NotWaiting`: a reply whose caller gave up.
    fn publish(&self, message: Carried) -> Result<(), IpcError>;
    /// The word published last by us; 0 for none.
    fn published(&self) -> u32;
    /// The last word of ours that the local party took; 0 for none.
    fn taken(&self) -> u32;
    /// The far party wants its message back, or waits for the answer to that request no more. `None`: the local party
    /// is taking it at this moment; ask again when that was done. Until then nothing that follows the message may be
    /// published.
    fn withdraw(&self, word: u32) -> Option<Settled>;

    /// Number (from 1) and bits of what the local party posted and the far side has not confirmed: the same until it
    /// has.
    fn pending_notification(&self) -> Option<(u64, u64)>;
    /// The far side has posted everything up to this number.
    fn confirm_notification(&self, number: u64);
    /// Posts the far party's bits. A number that was posted before is ignored.
    fn notify(&self, number: u64, mask: u64);
    /// The number posted last; 0 for none.
    fn notified(&self) -> u64;

    /// Entries of the local party that the far side has not confirmed: submissions of a client, completions of a
    /// server.
    fn entries(&self) -> Result<Indices, IpcError>;
    /// The far side has everything below `head`.
    fn confirm(&self, head: u32);
    /// Entries we have put so far: the index that the next one gets.
    fn put_count(&self) -> u32;

    fn submission(&self, index: u32) -> Result<Submission, IpcError>;
    fn completion(&self, index: u32) -> Result<Completion, IpcError>;
    fn put_submission(&self, submission: &Submission) -> Result<(), IpcError>;
    fn put_completion(&self, completion: &Completion) -> Result<(), IpcError>;
    /// Wakes the local party after a batch of entries.
    fn kick(&self);

    fn arena_bytes(&self) -> u32;
    fn copy_out(&self, offset: u32, data: &mut [u8]) -> Result<(), IpcError>;
    fn copy_in(&self, offset: u32, data: &[u8]) -> Result<(), IpcError>;
}
