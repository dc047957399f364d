//! A proxied channel of the broker, as a link sees it.

use std::sync::Arc;

use abi::ring::{Completion, Submission};
use abi::{Carried, Indices, IpcError, LocalRole, Settled};
use ipc::stand_in::{ProxiedChannel, ProxiedInfo};
use proxy_link::{Ends, LocalChannel};

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
    Ends { dc: info.dc, from, to, lane: info.lane, ring: info.ring, incarnation: info.incarnation }
}

impl LocalChannel for Local {
    fn role(&self) -> LocalRole {
        self.channel.info().role
    }

    fn mark_open(&self) {
        self.channel.mark_open();
    }

    fn was_open(&self) -> bool {
        self.channel.was_open()
    }

    fn outbound(&self, forwarded: u32) -> Result<Option<Carried>, IpcError> {
        let outbound = self.channel.outbound(forwarded)?;
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
        self.channel.publish(&message)
    }

    fn published(&self) -> u32 {
        self.channel.published()
    }

    fn taken(&self) -> u32 {
        self.channel.taken()
    }

    fn withdraw(&self, word: u32) -> Option<Settled> {
        self.channel.withdraw(word)
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

    fn entries(&self) -> Result<Indices, IpcError> {
        match self.role() {
            LocalRole::Client => self.channel.submissions(),
            LocalRole::Server => self.channel.completions(),
        }
    }

    fn confirm(&self, head: u32) {
        match self.role() {
            LocalRole::Client => self.channel.confirm_submissions(head),
            LocalRole::Server => self.channel.confirm_completions(head),
        }
    }

    fn put_count(&self) -> u32 {
        match self.role() {
            LocalRole::Client => self.channel.completions_put(),
            LocalRole::Server => self.channel.submissions_put(),
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
