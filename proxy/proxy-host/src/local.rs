//! A proxied channel of the broker, as a link sees it.

use std::sync::Arc;

use abi::IpcError;
use abi::ring::{Completion, Submission};
use ipc::stand_in::{self, LocalRole, ProxiedChannel, ProxiedInfo};
use proxy_link::{Carried, Cursor, Ends, LocalChannel, RingSpec, Role, Settled};

use crate::inspect::{Inspector, Passing};

/// See the module.
pub(crate) struct Local {
    pub(crate) channel: ProxiedChannel,
    inspector: Option<Arc<dyn Inspector>>,
}

impl Local {
    pub(crate) fn new(channel: ProxiedChannel, inspector: Option<Arc<dyn Inspector>>) -> Local {
        Local { channel, inspector }
    }

    fn get_to_remote(&self, what: Passing<'_>) -> Result<(), IpcError> {
        match &self.inspector {
            None => Ok(()),
            Some(inspector) => inspector.get_to_remote(&ends(self.channel.info()), what),
        }
    }

    fn put_to_local(&self, what: Passing<'_>) -> Result<(), IpcError> {
        match &self.inspector {
            None => Ok(()),
            Some(inspector) => inspector.put_to_local(&ends(self.channel.info()), what),
        }
    }
}

/// Who opened the channel to whom, in the words of the wire.
pub(crate) fn ends(info: &ProxiedInfo) -> Ends {
    let (from, to) = match info.role {
        LocalRole::Client => (info.local, info.remote),
        LocalRole::Server => (info.remote, info.local),
    };
    let ring = info.ring.map(|ring| RingSpec { entries: ring.entries, arena_bytes: ring.arena_bytes });
    Ends { dc: info.dc, from, to, lane: info.lane, ring, incarnation: info.incarnation }
}

fn cursor(cursor: stand_in::Cursor) -> Cursor {
    Cursor { head: cursor.head, tail: cursor.tail }
}

impl LocalChannel for Local {
    fn role(&self) -> Role {
        match self.channel.info().role {
            LocalRole::Client => Role::Client,
            LocalRole::Server => Role::Server,
        }
    }

    fn mark_open(&self) {
        self.channel.mark_open();
    }

    fn was_open(&self) -> bool {
        self.channel.was_open()
    }

    fn outbound(&self, forwarded: u32) -> Result<Option<Carried>, IpcError> {
        let carried =
            |m: stand_in::Carried| Carried { word: m.word, kind: m.kind, payload: m.payload, inline: m.inline };
        let outbound = self.channel.outbound(forwarded)?.map(carried);
        if let Some(message) = &outbound {
            self.get_to_remote(Passing::Message(message))?;
        }
        Ok(outbound)
    }

    fn mark_taken(&self, word: u32) {
        self.channel.mark_taken(word);
    }

    fn cancel_requested(&self) -> Option<u32> {
        self.channel.cancel_requested()
    }

    fn settle_withdrawn(&self, word: u32) {
        self.channel.settle_withdrawn(word);
    }

    fn publish(&self, message: Carried) -> Result<(), IpcError> {
        self.put_to_local(Passing::Message(&message))?;
        let Carried { word, kind, payload, inline } = message;
        self.channel.publish(&stand_in::Carried { word, kind, payload, inline })
    }

    fn published(&self) -> u32 {
        self.channel.published()
    }

    fn taken(&self) -> u32 {
        self.channel.taken()
    }

    fn withdraw(&self, word: u32) -> Option<Settled> {
        self.channel.withdraw(word).map(|settled| match settled {
            stand_in::Settled::Taken => Settled::Taken,
            stand_in::Settled::Withdrawn => Settled::Withdrawn,
        })
    }

    fn pending_notification(&self) -> Option<(u64, u64)> {
        self.channel.pending_notification()
    }

    fn confirm_notification(&self, number: u64) {
        self.channel.confirm_notification(number);
    }

    fn notify(&self, number: u64, mask: u64) {
        self.channel.notify(number, mask);
    }

    fn notified(&self) -> u64 {
        self.channel.notified()
    }

    fn entries(&self) -> Result<Cursor, IpcError> {
        match self.role() {
            Role::Client => self.channel.submissions().map(cursor),
            Role::Server => self.channel.completions().map(cursor),
        }
    }

    fn confirm(&self, head: u32) {
        match self.role() {
            Role::Client => self.channel.confirm_submissions(head),
            Role::Server => self.channel.confirm_completions(head),
        }
    }

    fn put_count(&self) -> u32 {
        match self.role() {
            Role::Client => self.channel.completions_put(),
            Role::Server => self.channel.submissions_put(),
        }
    }

    fn submission(&self, index: u32) -> Result<Submission, IpcError> {
        let submission = self.channel.submission(index)?;
        self.get_to_remote(Passing::Submission(&submission))?;
        Ok(submission)
    }

    fn completion(&self, index: u32) -> Result<Completion, IpcError> {
        let completion = self.channel.completion(index)?;
        self.get_to_remote(Passing::Completion(&completion))?;
        Ok(completion)
    }

    fn put_submission(&self, submission: &Submission) -> Result<(), IpcError> {
        self.put_to_local(Passing::Submission(submission))?;
        self.channel.put_submission(submission)
    }

    fn put_completion(&self, completion: &Completion) -> Result<(), IpcError> {
        self.put_to_local(Passing::Completion(completion))?;
        self.channel.put_completion(completion)
    }

    fn kick(&self) {
        self.channel.kick();
    }

    fn arena_bytes(&self) -> u32 {
        u32::try_from(self.channel.arena().len()).unwrap_or(u32::MAX)
    }

    fn copy_out(&self, offset: u32, data: &mut [u8]) -> Result<(), IpcError> {
        Ok(self.channel.arena().copy_out(offset as usize, data)?)
    }

    fn copy_in(&self, offset: u32, data: &[u8]) -> Result<(), IpcError> {
        Ok(self.channel.arena().copy_in(offset as usize, data)?)
    }
}
