//! The socket to the broker, as a port or a proxy holds it.
//!
//! One thread reads. What comes unasked while an answer is awaited is kept for later, at most [`UNASKED_MAX`] notices:
//! that is more than what a wait for a peer reads ahead and all that the broker keeps for one connection, so who sends
//! more is not our broker.
//!
//! The connection survives the broker: while there is none, it is open all the same and requests wait in it
//! (`docs/design/process-model.md`). It is lost when nobody holds the other end any more.

use std::collections::VecDeque;
use std::marker::PhantomData;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use abi::{ChannelId, Endpoint, IpcError};
use broker_api::{FromPort, MESSAGE_BYTES_MAX, Message, Offer, ToPort, ToProxy, WaitId};
use rustix::event::{PollFd, PollFlags, Timespec};

use crate::wait::{Deadline, Wait};

/// Notices read and kept during a wait for a peer. The broker keeps those after them.
const READ_AHEAD_MAX: usize = 4 * abi::limits::CHANNELS_PER_PROCESS;
/// Notices kept while an answer is awaited, which comes after all that the broker has kept.
const UNASKED_MAX: usize = 3 * READ_AHEAD_MAX;
/// Calls without an answer that are remembered: each took twice [`ANSWER_LIMIT`].
const GIVEN_UP_MAX: usize = 64;
/// How long an unbind waits for the broker: one that is busy answers in milliseconds, and one that is stopped or being
/// replaced need not be waited for.
const GOODBYE_LIMIT: Duration = Duration::from_secs(2);
/// Messages read for the sake of a refusal after the connection ended. A connection that is refused gets no other.
const LAST_WORDS_MAX: usize = 4;
/// How long the broker may take for what it does at once. It never blocks, so this is long.
const ANSWER_LIMIT: Duration = Duration::from_secs(10);

/// Something the broker said.
#[derive(Debug)]
pub(crate) struct Notice<M> {
    /// Of the request that it answers; else 0.
    pub request: u32,
    pub message: M,
    /// Those that the message declares, or none when there was no room for them.
    pub descriptors: Vec<OwnedFd>,
}

/// A channel that the broker gave.
#[derive(Debug)]
pub(crate) struct Given {
    pub offer: Offer,
    pub descriptors: Vec<OwnedFd>,
}

/// What a broker says on one of its connections.
pub(crate) trait FromBroker: Message {
    /// The error of an answer that is one.
    fn failure(&self) -> Option<IpcError>;
}

impl FromBroker for ToPort {
    fn failure(&self) -> Option<IpcError> {
        if let ToPort::Failed { error } = self { Some(*error) } else { None }
    }
}

impl FromBroker for ToProxy {
    fn failure(&self) -> Option<IpcError> {
        if let ToProxy::Failed { error } = self { Some(*error) } else { None }
    }
}

/// The bare socket: whole messages, and whether it is lost.
#[derive(Debug)]
pub(crate) struct Line<M> {
    socket: Arc<OwnedFd>,
    next_request: u32,
    lost: bool,
    /// Why the broker wants nothing of us, when it said so.
    refusal: Option<IpcError>,
    hears: PhantomData<M>,
}

/// A port's line, with calls and what came between.
#[derive(Debug)]
pub(crate) struct Connection {
    line: Line<ToPort>,
    unasked: VecDeque<Notice<ToPort>>,
    /// Calls that ended without an answer, the newest first.
    given_up: VecDeque<u32>,
    /// The wait that the broker was told of and that is not over.
    told_wait: Option<(WaitId, Endpoint)>,
    last_wait: u32,
    /// Whether the broker was replaced: it may say of a channel again what its predecessor said.
    is_successor: bool,
}

impl<M: FromBroker> Line<M> {
    pub fn new(socket: OwnedFd) -> Line<M> {
        let _ = rustix::io::ioctl_fionbio(&socket, true);
        Line { socket: Arc::new(socket), next_request: 1, lost: false, refusal: None, hears: PhantomData }
    }

    pub fn socket(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// The number of the next request.
    pub fn new_request(&mut self) -> u32 {
        let request = self.next_request;
        self.next_request = self.next_request.checked_add(1).unwrap_or(1);
        request
    }

    /// Sends without waiting: `false` when the broker does not read.
    pub fn try_send(&mut self, message: &[u8]) -> Result<bool, IpcError> {
        if self.lost {
            return Err(self.why_lost());
        }
        match sys::seqpacket::send(&*self.socket, message, &[] as &[OwnedFd]) {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => Ok(false),
            Err(_) => Err(self.lose()),
        }
    }

    /// What is there, without waiting. `Err` once the broker is lost and all was read.
    pub fn read(&mut self) -> Result<Option<Notice<M>>, IpcError> {
        if self.lost {
            return Err(self.why_lost());
        }
        let mut buffer = [0; MESSAGE_BYTES_MAX];
        // A channel that comes without its descriptors is refused; the connection stays.
        match sys::seqpacket::receive_even_without_descriptors(&*self.socket, &mut buffer) {
            Ok(received) => match M::from_bytes(buffer.get(..received.bytes).unwrap_or(&[])) {
                Ok((request, message)) => {
                    let mut descriptors = received.descriptors;
                    if descriptors.len() != message.descriptors().len() {
                        descriptors.clear();
                    }
                    Ok(Some(Notice { request, message, descriptors }))
                }
                Err(_) => {
                    self.lost = true;
                    Err(IpcError::NoBroker)
                }
            },
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => Ok(None),
            Err(_) => Err(self.lose()),
        }
    }

    fn why_lost(&self) -> IpcError {
        self.refusal.unwrap_or(IpcError::NoBroker)
    }

    /// The other end is closed. What was said last is still there.
    #[cold]
    fn lose(&mut self) -> IpcError {
        self.lost = true;
        let mut buffer = [0; MESSAGE_BYTES_MAX];
        for _ in 0..LAST_WORDS_MAX {
            let Ok(received) = sys::seqpacket::receive(&*self.socket, &mut buffer) else { continue };
            match M::from_bytes(buffer.get(..received.bytes).unwrap_or(&[])) {
                Ok((request, message)) => self.refusal = refusal(request, &message).or(self.refusal),
                Err(_) => break,
            }
        }
        self.why_lost()
    }

    fn poll(&self, flags: PollFlags, deadline: Deadline) {
        let limit = deadline.left().map(|left| Timespec {
            tv_sec: left.as_secs().min(86_400) as i64,
            tv_nsec: i64::from(left.subsec_nanos()),
        });
        // An error shows at the next read or write.
        let _ = rustix::event::poll(&mut [PollFd::new(&*self.socket, flags)], limit.as_ref());
    }
}

impl Connection {
    pub fn new(socket: OwnedFd) -> Connection {
        Connection {
            line: Line::new(socket),
            unasked: VecDeque::new(),
            given_up: VecDeque::new(),
            told_wait: None,
            last_wait: 0,
            is_successor: false,
        }
    }

    pub fn socket(&self) -> BorrowedFd<'_> {
        self.line.socket()
    }

    /// For rings, which say goodbye from other threads.
    pub fn shared_socket(&self) -> Arc<OwnedFd> {
        self.line.socket.clone()
    }

    pub fn is_lost(&self) -> bool {
        self.line.lost
    }

    /// Sends a request and waits for its answer, which the broker gives at once.
    pub fn call(&mut self, message: &FromPort) -> Result<Notice<ToPort>, IpcError> {
        self.call_waiting(message, Wait::For(ANSWER_LIMIT))
    }

    /// Sends a request whose answer may take time; a wait that ends first is cancelled. The broker's answer counts, so
    /// that nothing it did is lost.
    pub fn call_waiting(&mut self, message: &FromPort, wait: Wait) -> Result<Notice<ToPort>, IpcError> {
        self.call_before(message, Deadline::after(wait))
    }

    /// `call` whose answer may also take until the deadline. `TimedOut` may come earlier.
    pub fn call_until(&mut self, message: &FromPort, deadline: Deadline) -> Result<Notice<ToPort>, IpcError> {
        self.call_before(message, deadline.or_after(ANSWER_LIMIT))
    }

    fn call_before(&mut self, message: &FromPort, deadline: Deadline) -> Result<Notice<ToPort>, IpcError> {
        let request = self.line.new_request();
        let asked = message.to_bytes(request);
        self.send_bytes(&asked, Deadline::after(Wait::For(ANSWER_LIMIT)))?;
        if let Some(answer) = self.answer(request, &[&asked], deadline)? {
            return answered(answer);
        }
        let cancel = FromPort::Cancel { cancelled: request };
        self.send(&cancel)?;
        match self.answer(request, &[&asked, &cancel.to_bytes(0)], Deadline::after(Wait::For(ANSWER_LIMIT)))? {
            Some(answer) => answered(answer),
            // The broker is stopped, or away and not yet back. Its answer is read with the notices when it comes.
            None => {
                self.given_up.truncate(GIVEN_UP_MAX - 1);
                self.given_up.push_front(request);
                Err(IpcError::NoBroker)
            }
        }
    }

    /// The last call, whose answer nobody waits for long: it is done with the connection's end in any case.
    pub fn say_goodbye(&mut self) -> Result<(), IpcError> {
        let deadline = Deadline::after(Wait::For(GOODBYE_LIMIT));
        let request = self.line.new_request();
        let unbind = FromPort::Unbind.to_bytes(request);
        let answer = match self.send_bytes(&unbind, deadline) {
            Ok(()) => self.answer(request, &[&unbind], deadline),
            Err(error) => Err(error),
        };
        if let Ok(Some(answer)) = answer {
            return answered(answer).map(drop);
        }
        // Rings may share the socket and live on; what was sent is read all the same.
        let _ = rustix::net::shutdown(&*self.line.socket, rustix::net::Shutdown::Write);
        self.line.lost = true;
        Err(IpcError::NoBroker)
    }

    /// Whether this is a late answer to a call that ended without one. True once.
    pub fn was_given_up(&mut self, answered: u32) -> bool {
        let found = self.given_up.iter().position(|request| *request == answered);
        found.is_some_and(|at| self.given_up.remove(at).is_some())
    }

    /// Sends without asking for an answer.
    pub fn send(&mut self, message: &FromPort) -> Result<(), IpcError> {
        self.send_bytes(&message.to_bytes(0), Deadline::after(Wait::For(ANSWER_LIMIT)))
    }

    fn send_bytes(&mut self, message: &[u8], deadline: Deadline) -> Result<(), IpcError> {
        while !self.line.try_send(message)? {
            if deadline.has_passed() {
                return Err(self.line.lose());
            }
            self.line.poll(PollFlags::OUT, deadline);
        }
        Ok(())
    }

    /// Gives a channel back. One that the broker does not hear of ends with this connection.
    pub fn close_channel(&mut self, channel: ChannelId, reason: IpcError) {
        let _ = self.send(&FromPort::Close { channel, reason });
    }

    /// Whether notices were kept that came before an answer: for them the socket is readable no more.
    pub fn has_kept_notices(&self) -> bool {
        !self.unasked.is_empty()
    }

    /// The next notice that is there, without waiting. `Err` once the broker is lost and all was read.
    pub fn next_notice(&mut self) -> Result<Option<Notice<ToPort>>, IpcError> {
        match self.unasked.pop_front() {
            Some(notice) => Ok(Some(notice)),
            None => self.read(),
        }
    }

    /// Reads what the broker said and keeps it for `next_notice`.
    pub fn read_ahead(&mut self) {
        while self.unasked.len() < READ_AHEAD_MAX {
            match self.read() {
                Ok(Some(notice)) => self.keep(notice),
                Ok(None) | Err(_) => return,
            }
        }
    }

    /// A ring that ended before anybody heard of it is nobody's concern, unless it is one that a new broker tells of
    /// again. In a channel of messages, and in a lane of the library, there may be notifications.
    fn keep(&mut self, notice: Notice<ToPort>) {
        if let ToPort::Ended { channel, .. } = notice.message {
            let is_it = |offer: &Offer| offer.channel == channel && offer.ring.is_some() && !offer.lane.is_reserved();
            let accepted = self.unasked.iter().rposition(|it| accepted(it).is_some_and(is_it));
            if accepted.and_then(|at| self.unasked.remove(at)).is_some() && !self.is_successor {
                return;
            }
        }
        self.unasked.push_back(notice);
    }

    /// Why a channel ended, when that lies among what was kept.
    pub fn ended(&self, of: ChannelId) -> Option<IpcError> {
        self.unasked.iter().find_map(|notice| match notice.message {
            ToPort::Ended { channel, reason, .. } if channel == of => Some(reason),
            _ => None,
        })
    }

    /// The caller waits for `peer` until it is told to be over. A broker that is lost needs no telling.
    pub fn tell_wait(&mut self, peer: Endpoint) {
        self.last_wait = self.last_wait.wrapping_add(1);
        let wait = WaitId(self.last_wait);
        self.told_wait = Some((wait, peer));
        let _ = self.send(&FromPort::Waits { wait, peer });
    }

    pub fn tell_wait_is_over(&mut self) {
        if let Some((wait, _)) = self.told_wait.take() {
            let _ = self.send(&FromPort::WaitOver { wait });
        }
    }

    /// Answers what the broker asked about the wait that was told, and tells it again to a broker that is new.
    pub fn confirm_wait(&mut self) {
        let Some((told, peer)) = self.told_wait else { return };
        let is_about_it = |notice: &Notice<ToPort>| match notice.message {
            ToPort::AskWait { wait } => wait == told,
            ToPort::Restarted => true,
            _ => false,
        };
        while let Some(at) = self.unasked.iter().position(is_about_it) {
            match self.unasked.remove(at).map(|notice| notice.message) {
                Some(ToPort::Restarted) => self.tell_wait(peer),
                _ => drop(self.send(&FromPort::StillWaiting { wait: told })),
            }
        }
    }

    pub fn is_wait_refused(&self) -> bool {
        let Some((wait, _)) = self.told_wait else { return false };
        self.unasked.iter().any(|notice| notice.message == ToPort::RefuseWait { wait })
    }

    /// Takes the lanes that others opened and the library serves out of what was kept.
    pub fn take_reserved_lanes(&mut self) -> Vec<Given> {
        let is_lane = |notice: &Notice<ToPort>| accepted(notice).is_some_and(|offer| offer.lane.is_reserved());
        if !self.unasked.iter().any(is_lane) {
            return Vec::new();
        }
        let (lanes, rest): (VecDeque<_>, VecDeque<_>) = self.unasked.drain(..).partition(is_lane);
        self.unasked = rest;
        lanes.into_iter().filter_map(|it| Some(Given { offer: *accepted(&it)?, descriptors: it.descriptors })).collect()
    }

    /// `None` when the deadline passed. `asked` is said again to a broker that was restarted.
    fn answer(
        &mut self,
        request: u32,
        asked: &[&[u8]],
        deadline: Deadline,
    ) -> Result<Option<Notice<ToPort>>, IpcError> {
        loop {
            let Some(notice) = self.read()? else {
                if deadline.has_passed() {
                    return Ok(None);
                }
                self.line.poll(PollFlags::IN, deadline);
                continue;
            };
            if let Some(error) = refusal(notice.request, &notice.message) {
                self.line.refusal = Some(error);
                return Err(self.line.lose());
            }
            if notice.request == request {
                return Ok(Some(notice));
            }
            if notice.message == ToPort::Restarted {
                for message in asked {
                    self.send_bytes(message, Deadline::after(Wait::For(ANSWER_LIMIT)))?;
                }
            } else if self.unasked.len() < UNASKED_MAX {
                self.keep(notice);
            } else {
                self.line.lost = true;
                return Err(IpcError::NoBroker);
            }
        }
    }

    fn read(&mut self) -> Result<Option<Notice<ToPort>>, IpcError> {
        let notice = self.line.read()?;
        self.is_successor |= notice.as_ref().is_some_and(|notice| notice.message == ToPort::Restarted);
        Ok(notice)
    }
}

/// An error that answers nothing in particular: the broker does not serve this process at all.
fn refusal(request: u32, message: &impl FromBroker) -> Option<IpcError> {
    message.failure().filter(|_| request == 0)
}

fn answered(notice: Notice<ToPort>) -> Result<Notice<ToPort>, IpcError> {
    notice.message.failure().map_or(Ok(notice), Err)
}

/// The channel that somebody else opened, when the notice tells of one.
fn accepted(notice: &Notice<ToPort>) -> Option<&Offer> {
    if let ToPort::Accepted(offer) = &notice.message { Some(offer) } else { None }
}

impl Notice<ToPort> {
    /// The answer to an open.
    pub fn opened(self) -> Result<Given, IpcError> {
        match self.message {
            ToPort::Opened(offer) => Ok(Given { offer, descriptors: self.descriptors }),
            _ => Err(IpcError::NoBroker),
        }
    }

    /// The answer to a question for an endpoint.
    pub fn found(self) -> Result<Endpoint, IpcError> {
        if let ToPort::Found { endpoint, .. } = self.message { Ok(endpoint) } else { Err(IpcError::NoBroker) }
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use abi::layout::Role;
    use abi::ring::RingSpec;
    use abi::{Calls, DcId, Lane};
    use broker_api::PartiesCalls;

    use super::*;

    const DC: DcId = DcId(1);
    const PEERS: [Endpoint; 2] = [Endpoint::FS, Endpoint::DS];

    /// A connection, and the broker's end.
    fn connected() -> (Connection, OwnedFd) {
        let (ours, theirs) = sys::seqpacket::pair().unwrap();
        (Connection::new(ours), theirs)
    }

    fn say(broker: &OwnedFd, message: ToPort) {
        answer(broker, 0, message);
    }

    fn answer(broker: &OwnedFd, request: u32, message: ToPort) {
        while let Err(error) = sys::seqpacket::send(broker, &message.to_bytes(request), &[] as &[OwnedFd]) {
            assert_eq!(error.kind(), std::io::ErrorKind::WouldBlock);
            thread::yield_now();
        }
    }

    /// The number of the next request.
    fn heard(broker: &OwnedFd) -> u32 {
        let mut buffer = [0; MESSAGE_BYTES_MAX];
        loop {
            match sys::seqpacket::receive(broker, &mut buffer) {
                Ok(received) => return FromPort::from_bytes(&buffer[..received.bytes]).unwrap().0,
                Err(error) => assert_eq!(error.kind(), std::io::ErrorKind::WouldBlock),
            }
            thread::yield_now();
        }
    }

    fn accepted(channel: u64, lane: Lane) -> ToPort {
        let [own, peer] = PEERS;
        let ring = Some(RingSpec { entries: 8, arena_bytes: 0 });
        let calls = PartiesCalls { own: Calls::NONE, peer: Calls::NONE };
        let (role, channel) = (Role::Right, ChannelId(channel));
        ToPort::Accepted(Offer { dc: DC, channel, own, peer, proxied: None, lane, role, ring, calls })
    }

    fn ended(channel: u64) -> ToPort {
        ToPort::Ended { dc: DC, channel: ChannelId(channel), reason: IpcError::SourceDied }
    }

    fn kept(connection: &mut Connection) -> Vec<ToPort> {
        connection.read_ahead();
        std::iter::from_fn(|| connection.next_notice().unwrap()).map(|notice| notice.message).collect()
    }

    #[test]
    fn ring_that_ended_unheard_is_forgotten_and_a_lane_of_the_library_is_not() {
        let (mut connection, broker) = connected();
        let [one, other] = PEERS;
        say(&broker, accepted(1, Lane(1)));
        say(&broker, accepted(2, Lane::delegation(one, other)));
        say(&broker, ended(1));
        say(&broker, ended(2));
        assert_eq!(kept(&mut connection), [accepted(2, Lane::delegation(one, other)), ended(2)]);
    }

    #[test]
    fn end_of_a_ring_that_a_new_broker_tells_of_again_is_heard() {
        let (mut connection, broker) = connected();
        say(&broker, accepted(1, Lane(1)));
        say(&broker, ToPort::Restarted);
        say(&broker, ended(1));
        assert_eq!(kept(&mut connection), [ToPort::Restarted, ended(1)]);
    }

    /// As when others open and end channels all the time while this process waits for one peer.
    #[test]
    fn answer_behind_all_that_may_wait_unread_is_found() {
        let (mut connection, broker) = connected();
        thread::scope(|scope| {
            let broker = scope.spawn(move || {
                for channel in 0..(UNASKED_MAX - READ_AHEAD_MAX / 2) as u64 {
                    say(&broker, ended(channel));
                }
                answer(&broker, heard(&broker), ToPort::Done);
            });
            while connection.unasked.len() < READ_AHEAD_MAX && !connection.is_lost() {
                connection.read_ahead();
            }
            let asked = FromPort::AwaitBound { peer: PEERS[0] };
            assert_eq!(connection.call(&asked).map(|notice| notice.message), Ok(ToPort::Done));
            broker.join().unwrap();
        });
    }
}
