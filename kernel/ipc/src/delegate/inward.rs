//! The target's end of a delegate lane.

use std::collections::VecDeque;

use abi::delegation::{Limit, Relayed, Request, SLOT_BYTES, head_of, message_of};
use abi::limits::DELEGATE_ENTRIES;
use abi::ring::{Completion, Submission};
use abi::{Endpoint, IpcError, Message};
use ipc_core::{ChannelId, Timing};
use ipc_shm::Arena;

use super::{Bits, Outcome, Passed};
use crate::ring::RingServer;
use crate::talk::Inbox;

/// A request that lies in its slot.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Came {
    pub client: Endpoint,
    pub passed: Passed,
    data_bytes: u32,
}

#[derive(Debug)]
pub(crate) struct Inward {
    server: RingServer,
    arena: Arena,
    /// At most as many as the ring has entries, and one of each client.
    pub came: VecDeque<Came>,
}

impl Inward {
    pub fn new(server: RingServer) -> Inward {
        Inward { arena: server.arena(), server, came: VecDeque::new() }
    }

    pub fn lane(&self) -> ChannelId {
        ChannelId(self.server.id().0)
    }

    pub fn has_submissions(&self) -> bool {
        self.server.has_submissions()
    }

    pub fn end(&self) -> Option<IpcError> {
        self.server.is_closed()
    }

    /// Why this end broke the lane off.
    pub fn broken(&self) -> Option<IpcError> {
        self.server.is_closed_here()
    }

    /// Takes what was submitted off the ring; whether there was anything. `own` is this endpoint.
    pub fn take_in(&mut self, own: Endpoint, notified: &mut Bits) -> bool {
        let mut any = false;
        // A notification frees its entry at once, so there may be more of them than entries.
        for _ in 0..2 * DELEGATE_ENTRIES {
            let Ok(Some(submission)) = self.server.next() else { break };
            any = true;
            match Request::from_submission(&submission) {
                Some(Request::Relay(relayed)) if relayed.client != own => self.keep(&submission, relayed),
                Some(Request::Notify { source, mask }) if source != own => {
                    notified.add(source, mask);
                    self.complete_entry(submission.tag, 0, 0);
                }
                Some(_) | None => self.complete_entry(submission.tag, IpcError::BadArgument.code(), 0),
            }
        }
        self.server.publish();
        any
    }

    /// Copies what came into the inbox. `false` when the slot holds no message: then it was completed.
    pub fn take(&self, came: &Came, inbox: &mut Inbox) -> bool {
        let mut head = [0; Message::BYTES];
        let (at, bytes) = (came.passed.arena_offset as usize, came.data_bytes as usize);
        inbox.data.resize(bytes, 0);
        let result = self.arena.copy_out(at, &mut head);
        if result.and_then(|()| self.arena.copy_out(at + Message::BYTES, &mut inbox.data)).is_err() {
            inbox.data.clear();
            self.pass_over(&came.passed);
            return false;
        }
        inbox.message = Message { source: Some(came.client), ..message_of(&head) };
        true
    }

    /// Completes a request that was taken. After the lane ended nobody waits any more.
    pub fn answer(&self, passed: &Passed, message: &Message, data: &[u8]) -> Result<(), IpcError> {
        if self.end().is_some() {
            return Err(IpcError::NotWaiting);
        }
        let at = passed.arena_offset as usize;
        self.arena.copy_in(at, &head_of(message))?;
        self.arena.copy_in(at + Message::BYTES, data)?;
        self.complete_entry(passed.tag, 0, (Message::BYTES + data.len()) as u32);
        self.server.publish();
        Ok(())
    }

    /// Completes a request that was relayed on.
    pub fn hand_back(&self, passed: &Passed, outcome: &Outcome) {
        let error = match outcome {
            Ok((message, data)) => match self.answer(passed, message, data) {
                Ok(()) | Err(IpcError::NotWaiting) => return,
                Err(error) => error,
            },
            Err(error) => *error,
        };
        self.complete_entry(passed.tag, error.code(), 0);
        self.server.publish();
    }

    /// Completes a request whose client waits for something else.
    pub fn pass_over(&self, passed: &Passed) {
        self.complete_entry(passed.tag, IpcError::NotWaiting.code(), 0);
        self.server.publish();
    }

    fn keep(&mut self, submission: &Submission, relayed: Relayed) {
        let timing = match relayed.limit {
            Limit::Timed => Timing::Timed,
            Limit::Untimed => Timing::Untimed,
        };
        let passed = Passed { lane: self.lane(), tag: submission.tag, arena_offset: submission.arena_offset, timing };
        // In one lane the later request of a client is the newer.
        if let Some(at) = self.came.iter().position(|came| came.client == relayed.client)
            && let Some(older) = self.came.remove(at)
        {
            self.pass_over(&older.passed);
        }
        self.came.push_back(Came { client: relayed.client, passed, data_bytes: relayed.data_bytes });
    }

    /// The delegator may be gone; then nobody reads it.
    fn complete_entry(&self, tag: u32, status: u32, in_bytes: u32) {
        let _ = self.server.complete(&Completion { tag, status, in_bytes, ..Completion::default() });
    }
}

const _: () = assert!(SLOT_BYTES as usize >= Message::BYTES);
