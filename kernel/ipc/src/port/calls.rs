//! Calls with messages.

use abi::limits::INLINE_BYTES_MAX;
use abi::{Calls, Endpoint, IpcError, Message, Source};
use ipc_core::{Kind, Word, Words, posting};

use super::attached::{Attached, AttachedKey, Use};
use super::events::{Found, Wanted};
use super::opening::OPENS_MAX;
use super::{Event, Port};
use crate::errors;
use crate::lanes::{Attend, Expected};
use crate::talk::{Inbox, Parties, Talk};
use crate::wait::{Deadline, Wait};
use crate::waiting::{Failure, Gone, Replaced, Stop, Terms, WakeUps, gone, wait_for};

impl Port {
    /// Sends and waits until the peer has taken the message. To a peer that waits for our reply it is the reply.
    /// Errors: [`errors::SEND`].
    pub fn send(&mut self, to: Endpoint, message: &Message, wait: Wait) -> Result<(), IpcError> {
        self.send_inline(to, message, &[], wait)
    }

    /// `send` with up to [`INLINE_BYTES_MAX`] bytes of data.
    pub fn send_inline(&mut self, to: Endpoint, message: &Message, data: &[u8], wait: Wait) -> Result<(), IpcError> {
        errors::SEND.only(self.beside_watch(|port| {
            if port.lanes.delegating.is_involved() && port.owes_passed(to) {
                port.check_call(data)?;
                return port.answer_passed(to, message, data);
            }
            port.with_talk(to, data, wait, |talk, parties, _, deadline| talk.send(parties, message, data, deadline))
        }))
    }

    /// Sends a request and waits for its reply. Errors: [`errors::SENDREC`].
    pub fn sendrec(&mut self, to: Endpoint, message: &Message, wait: Wait) -> Result<Message, IpcError> {
        self.sendrec_inline(to, message, &[], wait)
    }

    /// `sendrec` with up to [`INLINE_BYTES_MAX`] bytes of data; the reply's are in [`Port::inline`].
    pub fn sendrec_inline(
        &mut self,
        to: Endpoint,
        message: &Message,
        data: &[u8],
        wait: Wait,
    ) -> Result<Message, IpcError> {
        errors::SENDREC.only(self.beside_watch(|port| {
            if port.lanes.delegating.is_involved() && port.owes_passed(to) {
                return Err(IpcError::Deadlock);
            }
            port.with_talk(to, data, wait, |talk, parties, inbox, deadline| {
                talk.sendrec(parties, message, data, deadline, inbox)
            })
        }))?;
        Ok(self.inbox.message)
    }

    /// Answers the request that was taken from `to` last. Never blocks. Errors:
    /// [`errors::REPLY`].
    pub fn reply(&mut self, to: Endpoint, message: &Message) -> Result<(), IpcError> {
        self.reply_inline(to, message, &[])
    }

    pub fn reply_inline(&mut self, to: Endpoint, message: &Message, data: &[u8]) -> Result<(), IpcError> {
        errors::REPLY.only(self.reply_checked(to, message, data))
    }

    fn reply_checked(&mut self, to: Endpoint, message: &Message, data: &[u8]) -> Result<(), IpcError> {
        self.check_call(data)?;
        self.beside_watch(|port| {
            let result = match port.attached.talk_with(to) {
                Some(key) => match port.talk_over(key, &|talk, parties, _| talk.reply(parties, message, data)) {
                    // By the broker's word, which knows nothing of the call.
                    Err(Failure::Error(IpcError::SourceDied)) => Err(IpcError::DestinationDied),
                    Err(Failure::Error(error)) => Err(error),
                    // The request came over a channel that is no more, so its caller waits for nothing there.
                    Err(Failure::Again(_)) => Err(IpcError::NotWaiting),
                    Ok(()) => Ok(()),
                },
                // A peer without a channel has asked nothing.
                None => Err(IpcError::NotWaiting),
            };
            match result {
                Err(IpcError::NotWaiting) => port.answer_passed(to, message, data),
                result => result,
            }
        })
    }

    /// Sets bits at `to`. Never waits for `to`; only the broker is asked, the first time. Errors:
    /// [`errors::NOTIFY`].
    pub fn notify(&mut self, to: Endpoint, mask: u64) -> Result<(), IpcError> {
        self.check_bound()?;
        errors::NOTIFY.only(self.beside_watch(|port| port.post(to, mask)))
    }

    fn post(&mut self, to: Endpoint, mask: u64) -> Result<(), IpcError> {
        if self.lanes.delegating.is_involved() {
            self.begin_call();
        }
        let mut left = mask;
        for _ in 0..OPENS_MAX {
            let key = self.talk_with(to, Deadline::Never)?;
            let attached = self.attached.get_mut(key).ok_or(IpcError::NotBound)?;
            if let Use::Messages(talk) = &attached.usage {
                talk.rights.check_own(Calls::NOTIFY)?;
            }
            // Another channel with the same peer takes its place.
            let is_replaced = || matches!(gone(&attached.half), Some(Gone::Replaced(_)));
            left = posting::post(&*attached.half, left, is_replaced);
            if left == 0 {
                return Ok(());
            }
        }
        Err(IpcError::DestinationDied)
    }

    /// Takes a message. Notifications stay for `wait_event`. Errors: [`errors::RECEIVE_ANY`] from anybody,
    /// [`errors::RECEIVE_FROM`] from one peer.
    pub fn receive(&mut self, source: Source, wait: Wait) -> Result<Message, IpcError> {
        self.check_bound()?;
        match source {
            Source::Any => self.receive_any(Wanted::Messages, wait),
            Source::From(peer) => match self.receive_from(peer, Wanted::Messages, wait)? {
                Offer::Message | Offer::Notified(_) => Ok(self.inbox.message),
            },
        }
    }

    /// [`Port::wait_event`] for the messages and notifications of one peer; all else stays. Errors:
    /// [`errors::RECEIVE_FROM`].
    pub fn wait_event_from(&mut self, peer: Endpoint, wait: Wait) -> Result<Event, IpcError> {
        self.check_bound()?;
        match self.receive_from(peer, Wanted::Everything, wait)? {
            Offer::Message => Ok(Event::Message(self.inbox.message)),
            Offer::Notified(mask) => Ok(Event::Notified { from: peer, mask }),
        }
    }

    /// Takes the next request of anybody; plain messages stay. Errors: [`errors::RECEIVE_ANY`].
    pub fn rcvrqst(&mut self, wait: Wait) -> Result<Message, IpcError> {
        self.check_bound()?;
        self.receive_any(Wanted::Requests, wait)
    }

    fn receive_any(&mut self, wanted: Wanted, wait: Wait) -> Result<Message, IpcError> {
        let deadline = Deadline::after(wait);
        loop {
            if errors::RECEIVE_ANY.only(self.wait_for_any(wanted, deadline))? == Found::Message {
                return Ok(self.inbox.message);
            }
        }
    }

    /// A message is then in the inbox.
    fn receive_from(&mut self, peer: Endpoint, wanted: Wanted, wait: Wait) -> Result<Offer, IpcError> {
        errors::RECEIVE_FROM.only(self.beside_watch(|port| port.take_from(peer, wanted, wait)))
    }

    fn take_from(&mut self, peer: Endpoint, wanted: Wanted, wait: Wait) -> Result<Offer, IpcError> {
        let deadline = Deadline::after(wait);
        if self.lanes.delegating.is_involved() {
            self.begin_call();
        }
        self.await_release(deadline)?;
        let mut key = match self.talk_with(peer, deadline) {
            Ok(key) => key,
            Err(error) => return self.last_bits_of(peer, wanted).ok_or(error),
        };
        self.attached.heat(key);
        let mut glares = 0;
        loop {
            if self.lanes.has_requests() && self.take_passed_of(peer) {
                return Ok(Offer::Message);
            }
            if let Some(bits) = self.last_bits_of(peer, wanted) {
                return Ok(bits);
            }
            let wake_ups = WakeUps::Since(self.seen_wakeups);
            let terms = Terms { wake_ups, ..Terms::until(deadline).calling(peer) };
            let attached = self.attached.get_mut(key).ok_or(IpcError::SourceDied)?;
            let (half, Use::Messages(talk)) = (attached.half.clone(), &mut attached.usage) else {
                return Err(IpcError::BadEndpoint);
            };
            let expected = Expected::of(peer);
            let look = || {
                if wanted == Wanted::Everything
                    && let mask @ 1.. = talk.take_notifications(&half)
                {
                    return Some(Ok(Seen::Notified(mask)));
                }
                match talk.offered(&half) {
                    Ok(Some(word)) => Some(Ok(Seen::Offered(word))),
                    Ok(None) if expected.came.get() => Some(Ok(Seen::Relayed)),
                    Ok(None) => (half.own_closed() != 0).then_some(Ok(Seen::Ended)),
                    Err(error) => Some(Err(error)),
                }
            };
            let (expected, channel) = (Some(&expected), attached.channel);
            let mut attend = Attend { lanes: &mut self.lanes, connection: &mut self.connection, channel, expected };
            let found = wait_for(&half, &self.control, &mut self.budget, terms, &mut attend, look);
            match found {
                Ok(Ok(Seen::Notified(mask))) => return Ok(Offer::Notified(mask)),
                Ok(Ok(Seen::Offered(word))) => {
                    if self.take_offered(key, word)? {
                        return Ok(Offer::Message);
                    }
                }
                Ok(Ok(Seen::Relayed)) => {}
                Ok(Ok(Seen::Ended)) => {
                    self.settle_ended();
                    key = self.talk_with(peer, deadline)?;
                    self.attached.heat(key);
                }
                Ok(Err(error)) => {
                    self.close_slot(key, error);
                    return Err(error);
                }
                Err(Stop::TimedOut) => return Err(IpcError::TimedOut),
                Err(Stop::Deadlock) => return Err(IpcError::Deadlock),
                Err(Stop::PeerGone(gone)) => {
                    self.end_slot(key, gone.reason(IpcError::SourceDied));
                    glares += 1;
                    match gone.or_died(IpcError::SourceDied) {
                        Failure::Error(error) => return Err(error),
                        Failure::Again(_) if glares > AGAIN_MAX => return Err(IpcError::SourceDied),
                        Failure::Again(_) => {}
                    }
                    // It gave way to the peer's own, which brings the message, or the peer has another owner.
                    key = self.talk_with(peer, deadline)?;
                    self.attached.heat(key);
                }
                Err(Stop::Own(IpcError::WokenUp)) => {
                    self.seen_wakeups = self.control.wakeups();
                    // The same wake-up was also said over the socket.
                    self.take_notices();
                    self.woken_up = false;
                    return Err(IpcError::WokenUp);
                }
                Err(Stop::Own(error)) => return Err(error),
            }
        }
    }

    /// What was posted in the name of `peer`, or by itself before it ended.
    fn last_bits_of(&mut self, peer: Endpoint, wanted: Wanted) -> Option<Offer> {
        let of_peer = (wanted == Wanted::Everything).then(|| self.lanes.delegating.notified.take_of(peer));
        of_peer.flatten().map(Offer::Notified)
    }

    /// Takes the message that is offered on a channel into the inbox, when it is one that is wanted.
    pub(super) fn take_message(&mut self, key: AttachedKey, wanted: Wanted) -> Result<bool, IpcError> {
        let Some(attached) = self.attached.get_mut(key) else { return Ok(false) };
        let Use::Messages(talk) = &mut attached.usage else { return Ok(false) };
        let Some(word) = talk.offered(&attached.half)? else { return Ok(false) };
        if wanted == Wanted::Requests && word.kind != Kind::Request {
            return Ok(false);
        }
        self.take_offered(key, word)
    }

    fn take_offered(&mut self, key: AttachedKey, word: Word) -> Result<bool, IpcError> {
        let Some(attached) = self.attached.get_mut(key) else { return Ok(false) };
        let peer = attached.peer;
        let attend = Attend::of(&mut self.lanes, &mut self.connection, attached.channel);
        let (parties, talk) = parties(attached, &self.control, self.endpoint, &mut self.budget, attend)?;
        let is_taken = talk.take(&parties, word, &mut self.inbox)?;
        if is_taken && word.kind == Kind::Request && self.lanes.delegating.is_involved() {
            self.forget_passed(peer);
        }
        Ok(is_taken)
    }

    /// Closes a channel whose peer broke the protocol.
    pub(super) fn close_slot(&mut self, key: AttachedKey, reason: IpcError) {
        if let Some(attached) = self.attached.get_mut(key) {
            attached.half.close(reason.code());
            self.connection.close_channel(attached.channel, reason);
        }
        self.end_slot(key, reason);
    }

    /// Runs one call on the channel with `peer`. A channel that turned out dead or corrupt is forgotten. The call
    /// begins again where it came to nothing: on a channel that gave way to the peer's own, opened at the same moment
    /// on another node, and on one whose peer has another owner by now that did not take it.
    fn with_talk<T>(
        &mut self,
        peer: Endpoint,
        data: &[u8],
        wait: Wait,
        call: impl Fn(&mut Talk, &mut Parties<'_>, &mut Inbox, Deadline) -> Result<T, Failure>,
    ) -> Result<T, IpcError> {
        self.check_call(data)?;
        let deadline = Deadline::after(wait);
        for _ in 0..AGAIN_MAX {
            let key = self.talk_with(peer, deadline)?;
            match self.talk_over(key, &|talk, parties, inbox| call(talk, parties, inbox, deadline)) {
                Ok(done) => return Ok(done),
                Err(Failure::Error(error)) => return Err(error),
                // The caller itself may have been handed over.
                Err(Failure::Again(_)) => self.check_bound()?,
            }
        }
        Err(IpcError::DestinationDied)
    }

    pub(super) fn check_call(&self, data: &[u8]) -> Result<(), IpcError> {
        self.check_bound()?;
        if data.len() > INLINE_BYTES_MAX { Err(IpcError::BadArgument) } else { Ok(()) }
    }

    /// Runs one call on a channel, and forgets it when it turned out to be over.
    pub(super) fn talk_over<T>(
        &mut self,
        key: AttachedKey,
        call: &impl Fn(&mut Talk, &mut Parties<'_>, &mut Inbox) -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        // The call parks in its own way, so the channel must not ring meanwhile; afterwards it is looked at again.
        let attached = self.attached.heat(key).ok_or(IpcError::NotBound)?;
        let channel = attached.channel;
        let attend = Attend::of(&mut self.lanes, &mut self.connection, channel);
        let (mut parties, talk) = parties(attached, &self.control, self.endpoint, &mut self.budget, attend)?;
        let result = call(talk, &mut parties, &mut self.inbox);
        match &result {
            Err(Failure::Error(IpcError::Corrupt)) => self.close_slot(key, IpcError::Corrupt),
            Err(Failure::Error(
                error @ (IpcError::DestinationDied | IpcError::SourceDied | IpcError::NoLink | IpcError::Fenced),
            )) => self.end_slot(key, *error),
            Err(Failure::Again(Replaced::ByPeersOwn)) => self.end_slot(key, IpcError::EndpointInUse),
            // Revoked, and not merely refused by the library.
            Err(Failure::Error(IpcError::Denied)) if self.connection.ended(channel).is_some() => {
                self.end_slot(key, IpcError::Denied);
            }
            _ => {}
        }
        result
    }
}

/// What one peer had for us.
enum Offer {
    Message,
    Notified(u64),
}

/// What a wait for one peer saw.
enum Seen {
    Offered(Word),
    Notified(u64),
    /// Something of the peer may have come by others.
    Relayed,
    /// The channel was ended from here, to tell the peer that a request it waited for came to nothing.
    Ended,
}

/// Times one call may begin again. When a channel gives way to the peer's own, the peer's is there when ours ends, so
/// each further one is a pair that closes and opens again at the same moment on both nodes; a peer that is handed over
/// is waited for.
const AGAIN_MAX: u32 = 1024;

/// Splits an attached channel into what talks and what it remembers. Moved, it would cost more than it does.
#[inline(always)]
fn parties<'a>(
    attached: &'a mut Attached,
    own_control: &'a ipc_shm::ControlPage,
    own: Endpoint,
    budget: &'a mut ipc_core::Budget,
    attend: Attend<'a>,
) -> Result<(Parties<'a>, &'a mut Talk), IpcError> {
    let (peer, proxied) = (attached.peer, attached.proxied);
    match &mut attached.usage {
        Use::Messages(talk) => {
            Ok((Parties { half: &attached.half, own_control, own, peer, proxied, budget, attend }, talk))
        }
        Use::Ring(_) | Use::Copies(_) | Use::Delegation { .. } => Err(IpcError::BadEndpoint),
    }
}
