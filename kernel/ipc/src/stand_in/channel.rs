//! A channel whose remote party this process plays.
//!
//! Every method reads or writes the channel's memory only; there is no other state, so two lives of a proxy see the same.
//! "Local" is the party on this node, "we" are the remote party. Methods that change anything wake the local party,
//! except those of the ring, which need a `kick` after a batch.

use abi::IpcError;
use abi::limits::INLINE_BYTES_MAX;
use abi::ring::{Completion, Submission};
use ipc_shm::Arena;

use super::ProxiedInfo;

/// A message as it travels. `word` says what it is: see [`abi::layout::word`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Carried {
    pub word: u32,
    pub kind: i32,
    pub payload: [u8; abi::Message::PAYLOAD_BYTES],
    pub inline: [u8; INLINE_BYTES_MAX],
    pub inline_bytes: usize,
}

impl Carried {
    pub fn inline(&self) -> &[u8] {
        self.inline.get(..self.inline_bytes).unwrap_or(&[])
    }
}

/// How a message that was to be withdrawn ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Settled {
    Taken,
    Withdrawn,
}

/// Entries produced and consumed so far, modulo 2^32: `head..tail` wait to be consumed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Cursor {
    pub head: u32,
    pub tail: u32,
}

/// See the module.
#[derive(Debug)]
pub struct ProxiedChannel {
    info: ProxiedInfo,
}

impl ProxiedChannel {
    pub fn info(&self) -> &ProxiedInfo {
        &self.info
    }

    // Messages, local to remote.

    /// The local party's message that was neither taken nor withdrawn. Stays until `mark_taken` or `settle_withdrawn`:
    /// the proxy remembers the word it forwarded last.
    pub fn outbound(&self) -> Result<Option<Carried>, IpcError> {
        unimplemented!()
    }

    /// The far party took the message with this word. Nothing happens when it is not outstanding any more.
    pub fn mark_taken(&self, word: u32) {
        let _ = word;
        unimplemented!()
    }

    /// The word of a message that the local party wants to withdraw and that is not settled yet.
    pub fn cancel_requested(&self) -> Option<u32> {
        unimplemented!()
    }

    /// The far side withdrew the message with this word (or never got it).
    pub fn settle_withdrawn(&self, word: u32) {
        let _ = word;
        unimplemented!()
    }

    /// The last word of the local party that was marked as taken; 0 for none.
    pub fn acknowledged(&self) -> u32 {
        unimplemented!()
    }

    // Messages, remote to local.

    /// Publishes the far party's message with its own word. A message that was published already (same word) is
    /// ignored. `NotWaiting`: a reply whose caller gave up; treat it as taken. `TimedOut`: the message before is neither
    /// taken nor withdrawn, which a correct far side never causes.
    pub fn publish(&self, message: &Carried) -> Result<(), IpcError> {
        let _ = message;
        unimplemented!()
    }

    /// The word published last by us; 0 for none.
    pub fn published(&self) -> u32 {
        unimplemented!()
    }

    /// The last word of ours that the local party took; 0 for none.
    pub fn taken(&self) -> u32 {
        unimplemented!()
    }

    /// The far party wants its message with this word back.
    pub fn withdraw(&self, word: u32) -> Settled {
        let _ = word;
        unimplemented!()
    }

    // Notifications.

    /// Bits the local party posted; taking them is final, so forward them reliably.
    pub fn take_notifications(&self) -> u64 {
        unimplemented!()
    }

    pub fn notify(&self, mask: u64) {
        let _ = mask;
        unimplemented!()
    }

    // Ring, when the local party is the client.

    /// What the local client submitted and the far server's proxy has not confirmed. `Corrupt` when impossible.
    pub fn submissions(&self) -> Result<Cursor, IpcError> {
        unimplemented!()
    }

    /// The submission at `index` (inside the cursor), its range checked.
    pub fn submission(&self, index: u32) -> Result<Submission, IpcError> {
        let _ = index;
        unimplemented!()
    }

    /// The far proxy has everything below `head`; the local client may overwrite those entries.
    pub fn confirm_submissions(&self, head: u32) {
        let _ = head;
        unimplemented!()
    }

    /// Puts a completion (its data was copied into the arena before). `Corrupt` when the ring has no room, which a
    /// correct far side never causes. Needs `kick`.
    pub fn put_completion(&self, completion: &Completion) -> Result<(), IpcError> {
        let _ = completion;
        unimplemented!()
    }

    /// Completions put so far: the index the next one gets.
    pub fn completions_put(&self) -> u32 {
        unimplemented!()
    }

    // Ring, when the local party is the server.

    /// Puts a submission (its data was copied into the arena before). Needs `kick`.
    pub fn put_submission(&self, submission: &Submission) -> Result<(), IpcError> {
        let _ = submission;
        unimplemented!()
    }

    /// Submissions put so far: the index the next one gets.
    pub fn submissions_put(&self) -> u32 {
        unimplemented!()
    }

    /// What the local server completed and the far client's proxy has not confirmed.
    pub fn completions(&self) -> Result<Cursor, IpcError> {
        unimplemented!()
    }

    pub fn completion(&self, index: u32) -> Result<Completion, IpcError> {
        let _ = index;
        unimplemented!()
    }

    pub fn confirm_completions(&self, head: u32) {
        let _ = head;
        unimplemented!()
    }

    // Both.

    /// Wakes the local party when it sleeps. Once after a batch.
    pub fn kick(&self) {
        unimplemented!()
    }

    pub fn arena(&self) -> &Arena {
        unimplemented!()
    }

    /// Why the channel ended on the local side, when it has.
    pub fn is_closed(&self) -> Option<IpcError> {
        unimplemented!()
    }
}
