//! A proxied channel of the broker, as a link sees it.

use abi::IpcError;
use abi::ring::{Completion, Submission};
use ipc::stand_in::{self, LocalRole, ProxiedChannel, ProxiedInfo};
use proxy_link::{Carried, Cursor, Ends, LocalChannel, RingSpec, Role, Settled};

/// See the module.
#[derive(Debug)]
pub struct Local(pub ProxiedChannel);

/// Who opened the channel to whom, in the words of the wire.
pub fn ends(info: &ProxiedInfo) -> Ends {
    let (from, to) = match info.role {
        LocalRole::Client => (info.local, info.remote),
        LocalRole::Server => (info.remote, info.local),
    };
    let ring = info.ring.map(|ring| RingSpec { entries: ring.entries, arena_bytes: ring.arena_bytes });
    Ends { dc: info.dc, from, to, lane: info.lane, ring }
}

fn cursor(cursor: stand_in::Cursor) -> Cursor {
    Cursor { head: cursor.head, tail: cursor.tail }
}

impl LocalChannel for Local {
    fn role(&self) -> Role {
        match self.0.info().role {
            LocalRole::Client => Role::Client,
            LocalRole::Server => Role::Server,
        }
    }

    fn outbound(&self) -> Result<Option<Carried>, IpcError> {
        let carried = |m: stand_in::Carried| Carried {
            word: m.word,
            kind: m.kind,
            payload: m.payload,
            inline: m.inline,
            inline_bytes: m.inline_bytes,
        };
        Ok(self.0.outbound()?.map(carried))
    }

    fn mark_taken(&self, word: u32) {
        self.0.mark_taken(word);
    }

    fn cancel_requested(&self) -> Option<u32> {
        self.0.cancel_requested()
    }

    fn settle_withdrawn(&self, word: u32) {
        self.0.settle_withdrawn(word);
    }

    fn publish(&self, m: &Carried) -> Result<(), IpcError> {
        self.0.publish(&stand_in::Carried {
            word: m.word,
            kind: m.kind,
            payload: m.payload,
            inline: m.inline,
            inline_bytes: m.inline_bytes,
        })
    }

    fn published(&self) -> u32 {
        self.0.published()
    }

    fn taken(&self) -> u32 {
        self.0.taken()
    }

    fn withdraw(&self, word: u32) -> Settled {
        match self.0.withdraw(word) {
            stand_in::Settled::Taken => Settled::Taken,
            stand_in::Settled::Withdrawn => Settled::Withdrawn,
        }
    }

    fn pending_notification(&self) -> Option<(u64, u64)> {
        self.0.pending_notification()
    }

    fn confirm_notification(&self, number: u64) {
        self.0.confirm_notification(number);
    }

    fn notify(&self, number: u64, mask: u64) {
        self.0.notify(number, mask);
    }

    fn notified(&self) -> u64 {
        self.0.notified()
    }

    fn entries(&self) -> Result<Cursor, IpcError> {
        match self.role() {
            Role::Client => self.0.submissions().map(cursor),
            Role::Server => self.0.completions().map(cursor),
        }
    }

    fn confirm(&self, head: u32) {
        match self.role() {
            Role::Client => self.0.confirm_submissions(head),
            Role::Server => self.0.confirm_completions(head),
        }
    }

    fn put_count(&self) -> u32 {
        match self.role() {
            Role::Client => self.0.completions_put(),
            Role::Server => self.0.submissions_put(),
        }
    }

    fn submission(&self, index: u32) -> Result<Submission, IpcError> {
        self.0.submission(index)
    }

    fn completion(&self, index: u32) -> Result<Completion, IpcError> {
        self.0.completion(index)
    }

    fn put_submission(&self, submission: &Submission) -> Result<(), IpcError> {
        self.0.put_submission(submission)
    }

    fn put_completion(&self, completion: &Completion) -> Result<(), IpcError> {
        self.0.put_completion(completion)
    }

    fn kick(&self) {
        self.0.kick();
    }

    fn arena_bytes(&self) -> u32 {
        u32::try_from(self.0.arena().len()).unwrap_or(u32::MAX)
    }

    fn copy_out(&self, offset: u32, data: &mut [u8]) -> Result<(), IpcError> {
        Ok(self.0.arena().copy_out(offset as usize, data)?)
    }

    fn copy_in(&self, offset: u32, data: &[u8]) -> Result<(), IpcError> {
        Ok(self.0.arena().copy_in(offset as usize, data)?)
    }
}
