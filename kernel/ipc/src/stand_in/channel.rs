//! A channel whose remote party this process plays.
//!
//! Every method reads or writes the channel's memory only; there is no other state, so two lives of a proxy see the
//! same. "Local" is the party on this node, "we" are the remote party. Methods that change anything wake the local
//! party, except those of the ring, which need a `kick` after a batch.

use std::sync::Arc;

use abi::layout::state;
use abi::ring::{Completion, Submission};
use abi::{Calls, Carried, Indices, IpcError, Settled};
use ipc_core::exchange::{self, Proxied, right_for, settle};
use ipc_core::{Data, Direction, Kind, Timing, Word, Words, slot};
use ipc_shm::{Arena, ChannelHalf};

use super::ProxiedInfo;
use crate::waiting::gone;

/// See the module.
#[derive(Debug)]
pub struct ProxiedChannel {
    info: ProxiedInfo,
    half: Arc<ChannelHalf>,
    arena: Arena,
}

impl ProxiedChannel {
    pub(super) fn new(info: ProxiedInfo, half: Arc<ChannelHalf>) -> ProxiedChannel {
        ProxiedChannel { info, arena: half.arena(), half }
    }

    pub fn info(&self) -> &ProxiedInfo {
        &self.info
    }

    // Messages, local to remote.

    /// The local party's message that was neither taken nor withdrawn, unless it is the one `forwarded` already. Stays
    /// until `mark_taken` or `settle_withdrawn`.
    pub fn outbound(&self, forwarded: u32) -> Result<Option<Carried>, IpcError> {
        let half = &self.half;
        let raw = half.peer_word();
        if raw == 0 || raw == forwarded || raw == half.own_taken() {
            return Ok(None);
        }
        let word = Word::of(raw).ok_or(IpcError::Corrupt)?;
        if !self.info.calls.contains(right_for(word.kind)) {
            return Err(IpcError::Corrupt);
        }
        if word.state_of(half.state(Direction::Peer)) == state::WITHDRAWN {
            return Ok(None);
        }
        let mut payload = [0; abi::Message::PAYLOAD_BYTES];
        let mut inline = Vec::new();
        match slot::copy_whole(&**half, raw, || half.copy_line(word, &mut payload, &mut inline)) {
            Some(kind) => Ok(Some(Carried { word: raw, kind, payload, inline })),
            // It was taken back meanwhile, and the next one is there.
            None if half.peer_word() != raw => Ok(None),
            None => Err(IpcError::Corrupt),
        }
    }

    /// The far party took the message with this word. Nothing happens when it is not outstanding any more.
    pub fn mark_taken(&self, word: u32) {
        let half = &self.half;
        let Some(outstanding) = Word::of(word) else { return };
        if half.peer_word() != word || half.own_taken() == word {
            return;
        }
        // The local party may ask to withdraw at any moment; its wish comes too late now.
        for wish in [state::OFFERED, state::CANCEL] {
            let (from, to) = (outstanding.in_state(wish), outstanding.in_state(state::TAKEN));
            if half.exchange_state(Direction::Peer, from, to).is_ok() {
                break;
            }
        }
        half.set_own_taken(word);
        half.kick();
    }

    /// The word of a message that the local party wants to withdraw, or of a request that was taken and whose answer it
    /// does not wait for any more. Stays: who told the far side need not do so again.
    pub fn cancel_requested(&self) -> Option<u32> {
        let raw = self.half.peer_word();
        let word = Word::of(raw)?;
        (word.state_of(self.half.state(Direction::Peer)) == state::CANCEL).then_some(raw)
    }

    /// The far side withdrew the message with this word (or never got it), or dropped it: a reply whose caller gave up.
    pub fn settle_withdrawn(&self, word: u32) {
        let Some(outstanding) = Word::of(word) else { return };
        if outstanding.kind == Kind::Reply {
            let is_there = self.half.peer_word() == word && self.half.own_taken() != word;
            if is_there && settle(&*self.half, Direction::Peer, outstanding, state::WITHDRAWN) {
                self.half.kick();
            }
            return;
        }
        if self.half.own_taken() == word {
            return;
        }
        let (from, to) = (outstanding.in_state(state::CANCEL), outstanding.in_state(state::WITHDRAWN));
        if self.half.exchange_state(Direction::Peer, from, to).is_ok() {
            self.half.kick();
        }
    }

    /// The last word of the local party that was marked as taken; 0 for none.
    pub fn acknowledged(&self) -> u32 {
        self.half.own_taken()
    }

    /// The far side has the channel.
    pub fn mark_open(&self) {
        self.half.set_open();
    }

    /// Whether it ever had it, as far as was heard here.
    pub fn was_open(&self) -> bool {
        self.half.was_open()
    }

    // Messages, remote to local.

    /// Publishes the far party's message with its own word. A message that was published already (same word) is
    /// ignored. `NotWaiting`: a reply whose caller gave up; `settle_withdrawn` at the far side. `Corrupt`: no message,
    /// or the one before is neither taken nor withdrawn, which a correct far side never causes: forward `taken` before
    /// the message that follows it.
    pub fn publish(&self, message: &Carried) -> Result<(), IpcError> {
        let half = &self.half;
        let word = Word::of(message.word).ok_or(IpcError::Corrupt)?;
        if word.data != Data::of(&message.inline) {
            return Err(IpcError::Corrupt);
        }
        if half.own_word() == message.word {
            return Ok(());
        }
        match Word::of(half.own_word()).map(|last| exchange::left_slot(&**half, last)) {
            Some(None) => return Err(IpcError::Corrupt),
            // First, so that the slot is free also for the next proxy when this one is killed here: the local party may
            // be copying what was taken back.
            Some(Some(Settled::Withdrawn)) => slot::begin_anew(&**half),
            Some(Some(Settled::Taken)) | None => {}
        }
        if word.kind == Kind::Reply {
            self.win_reply(word)?;
        }
        // A party that sends does not wait for an answer any more.
        if word.kind == Kind::Send {
            half.set_own_awaits(0);
        }
        exchange::publish(&**half, word, || {
            half.write_line(word, message.kind, &message.payload, &message.inline);
        });
        Ok(())
    }

    /// The word published last by us; 0 for none.
    pub fn published(&self) -> u32 {
        self.half.own_word()
    }

    /// The last word of ours that the local party took; 0 for none.
    pub fn taken(&self) -> u32 {
        self.half.peer_taken()
    }

    /// The far party wants its message with this word back, or waits for the answer to that request no more. `None`:
    /// the local party is taking it, which `taken` will say in a moment; ask again then. Before that nothing may follow
    /// it.
    pub fn withdraw(&self, word: u32) -> Option<Settled> {
        let half = &self.half;
        let Some(ours) = Word::of(word) else { return Some(Settled::Withdrawn) };
        if half.own_word() != word {
            // A later one was published, so it was taken; or it never came here.
            return Some(if half.own_word() == 0 { Settled::Withdrawn } else { Settled::Taken });
        }
        if half.peer_taken() == word {
            // A caller with a limit goes on; one without has only given way.
            if ours.kind == Kind::Request && ours.timing == Timing::Timed {
                half.set_own_awaits(0);
            }
            return Some(Settled::Taken);
        }
        if exchange::take_back(&**half, ours, Proxied::No) == Some(Settled::Taken) {
            return None;
        }
        if ours.kind == Kind::Request {
            half.set_own_awaits(0);
        }
        half.kick();
        Some(Settled::Withdrawn)
    }

    // Notifications.

    /// Number and bits of what the local party posted and the far side has not confirmed. The same until it has, also
    /// for the next proxy; meanwhile further bits coalesce where the local party posts them.
    pub fn pending_notification(&self) -> Option<(u64, u64)> {
        if !self.info.calls.contains(Calls::NOTIFY) {
            return None;
        }
        self.half.carried_notification().or_else(|| self.half.carry_notification())
    }

    /// The far side has posted everything up to this number.
    pub fn confirm_notification(&self, number: u64) {
        if self.half.carried_notification().is_some_and(|(carried, _)| carried <= number) {
            self.half.end_carrying();
        }
    }

    /// Posts bits of the far party. A number that was posted before is ignored.
    pub fn notify(&self, number: u64, mask: u64) {
        if number <= self.half.posted_number() {
            return;
        }
        self.half.post_notification(mask);
        self.half.set_posted_number(number);
        self.half.kick();
    }

    /// The number posted last; 0 for none.
    pub fn notified(&self) -> u64 {
        self.half.posted_number()
    }

    // Ring, when the local party is the client.

    /// What the local client submitted and the far server's proxy has not confirmed. `Corrupt` when impossible.
    pub fn submissions(&self) -> Result<Indices, IpcError> {
        self.waiting_entries()
    }

    /// The submission at `index` (inside the cursor), its range checked.
    pub fn submission(&self, index: u32) -> Result<Submission, IpcError> {
        let submission = Submission::from_bytes(&self.half.read_entry(index));
        if submission.reserved != 0 || !submission.fits(self.half.size().arena_bytes) {
            return Err(IpcError::Corrupt);
        }
        Ok(submission)
    }

    /// The far proxy has everything below `head`; the local client may overwrite those entries.
    pub fn confirm_submissions(&self, head: u32) {
        self.confirm(head);
    }

    /// Puts a completion (its data was copied into the arena before). `Corrupt` when the ring has no room, which a
    /// correct far side never causes. Needs `kick`.
    pub fn put_completion(&self, completion: &Completion) -> Result<(), IpcError> {
        self.put(&completion.to_bytes())
    }

    /// Completions put so far: the index the next one gets.
    pub fn completions_put(&self) -> u32 {
        self.half.own_tail()
    }

    // Ring, when the local party is the server.

    /// Puts a submission (its data was copied into the arena before). Needs `kick`.
    pub fn put_submission(&self, submission: &Submission) -> Result<(), IpcError> {
        if submission.reserved != 0 || !submission.fits(self.half.size().arena_bytes) {
            return Err(IpcError::Corrupt);
        }
        self.put(&submission.to_bytes())
    }

    /// Submissions put so far: the index the next one gets.
    pub fn submissions_put(&self) -> u32 {
        self.half.own_tail()
    }

    /// What the local server completed and the far client's proxy has not confirmed.
    pub fn completions(&self) -> Result<Indices, IpcError> {
        self.waiting_entries()
    }

    pub fn completion(&self, index: u32) -> Result<Completion, IpcError> {
        let completion = Completion::from_bytes(&self.half.read_entry(index));
        if completion.reserved != 0 || completion.in_bytes > self.half.size().arena_bytes {
            return Err(IpcError::Corrupt);
        }
        Ok(completion)
    }

    pub fn confirm_completions(&self, head: u32) {
        self.confirm(head);
    }

    // Both.

    /// Wakes the local party when it sleeps. Once after a batch.
    pub fn kick(&self) {
        self.half.kick();
    }

    pub fn arena(&self) -> &Arena {
        &self.arena
    }

    /// Why the channel ended on the local side, when it has.
    pub fn is_closed(&self) -> Option<IpcError> {
        gone(&self.half).map(|gone| gone.reason(IpcError::SourceDied))
    }

    /// A reply goes to a caller that still waits for it, and to no other.
    fn win_reply(&self, reply: Word) -> Result<(), IpcError> {
        let request = Word::of(self.half.peer_awaits()).ok_or(IpcError::NotWaiting)?;
        if !reply.answers(request) {
            return Err(IpcError::NotWaiting);
        }
        match exchange::win_reply(&*self.half, request) {
            Ok(()) => Ok(()),
            // Won by a proxy that was killed before it published the reply: the caller waits for it.
            Err(found) if found == request.in_state(state::TAKEN) => Ok(()),
            Err(_) => Err(IpcError::NotWaiting),
        }
    }

    fn waiting_entries(&self) -> Result<Indices, IpcError> {
        let cursor = Indices { head: self.half.own_head(), tail: self.half.peer_tail() };
        if cursor.waiting() > self.half.size().entries { Err(IpcError::Corrupt) } else { Ok(cursor) }
    }

    /// Never backwards and never past what was produced.
    fn confirm(&self, head: u32) {
        if let Ok(cursor) = self.waiting_entries()
            && head.wrapping_sub(cursor.head) <= cursor.waiting()
        {
            self.half.set_own_head(head);
        }
    }

    fn put(&self, entry: &[u8; abi::ring::ENTRY_BYTES]) -> Result<(), IpcError> {
        let tail = self.half.own_tail();
        if tail.wrapping_sub(self.half.peer_head()) >= self.half.size().entries {
            return Err(IpcError::Corrupt);
        }
        self.half.write_entry(tail, entry);
        self.half.set_own_tail(tail.wrapping_add(1));
        Ok(())
    }
}
