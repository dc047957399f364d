//! The socket to the broker, as a port or a proxy holds it.
//!
//! One thread reads. What comes unasked while an answer is awaited is kept for later, at most [`UNASKED_MAX`] notices: that is more than
//! what a wait for a peer reads ahead and all that the broker keeps for one connection, so who sends more is not our broker.
//!
//! The connection survives the broker: while there is none, it is open all the same and requests wait in it
//! (`docs/design/process-model.md`). It is lost when nobody holds the other end any more.

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use abi::{Endpoint, IpcError};
use ipc_core::ChannelId;
use rustix::event::{PollFd, PollFlags, Timespec};

use crate::protocol::{MESSAGE_BYTES_MAX, Op, Packet};
use crate::wait::{Deadline, Wait};

/// Notices read and kept during a wait for a peer. The broker keeps those behind them.
const READ_AHEAD_MAX: usize = 4 * abi::limits::CHANNELS_PER_PROCESS;
/// Notices kept while an answer is awaited, which comes behind all that the broker has kept.
const UNASKED_MAX: usize = 3 * READ_AHEAD_MAX;
/// Calls without an answer that are remembered: each took twice [`ANSWER_LIMIT`].
const GIVEN_UP_MAX: usize = 64;
/// How long an unbind waits for the broker: one that is busy answers in milliseconds, and one that is stopped or being replaced need
/// not be waited for.
const GOODBYE_LIMIT: Duration = Duration::from_secs(2);
/// Messages read for the sake of a refusal after the connection ended. A connection that is refused gets no other.
const LAST_WORDS_MAX: usize = 4;
/// How long the broker may take for what it does at once. It never blocks, so this is long.
const ANSWER_LIMIT: Duration = Duration::from_secs(10);

/// Something the broker said.
#[derive(Debug)]
pub(crate) struct Notice {
    pub packet: Packet,
    /// Empty but for operations with a body.
    pub body: Vec<u8>,
    pub descriptors: Vec<OwnedFd>,
}

#[derive(Debug)]
pub(crate) struct Connection {
    socket: Arc<OwnedFd>,
    unasked: VecDeque<Notice>,
    next_request: u32,
    /// Calls that ended without an answer, the newest first.
    given_up: VecDeque<u32>,
    /// The wait that the broker was told of and that is not over.
    told_wait: Option<(u32, Endpoint)>,
    last_wait: u32,
    lost: bool,
    /// Whether the broker was replaced: it may say of a channel again what its predecessor said.
    is_successor: bool,
    /// Why the broker wants nothing of us, when it said so.
    refusal: Option<IpcError>,
}

impl Connection {
    pub fn new(socket: OwnedFd) -> Connection {
        let _ = rustix::io::ioctl_fionbio(&socket, true);
        Connection {
            socket: Arc::new(socket),
            unasked: VecDeque::new(),
            next_request: 1,
            given_up: VecDeque::new(),
            told_wait: None,
            last_wait: 0,
            lost: false,
            is_successor: false,
            refusal: None,
        }
    }

    pub fn socket(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// For rings, which say goodbye from other threads.
    pub fn shared_socket(&self) -> Arc<OwnedFd> {
        self.socket.clone()
    }

    pub fn is_lost(&self) -> bool {
        self.lost
    }

    /// Sends a request and waits for its answer, which the broker gives at once.
    pub fn call(&mut self, packet: Packet) -> Result<Notice, IpcError> {
        self.call_waiting(packet, Wait::For(ANSWER_LIMIT))
    }

    /// `call` of a packet with a body.
    pub fn call_with_body(&mut self, packet: Packet, body: &[u8]) -> Result<Notice, IpcError> {
        self.call_for(packet, body, Wait::For(ANSWER_LIMIT))
    }

    /// Sends a request whose answer may take time; a wait that ends first is cancelled. The broker's answer counts, so
    /// that nothing it did is lost.
    pub fn call_waiting(&mut self, packet: Packet, wait: Wait) -> Result<Notice, IpcError> {
        self.call_for(packet, &[], wait)
    }

    /// `call_waiting` of a packet with a body.
    pub fn call_waiting_with_body(&mut self, packet: Packet, body: &[u8], wait: Wait) -> Result<Notice, IpcError> {
        self.call_for(packet, body, wait)
    }

    /// `call` whose answer may also take until the deadline. `TimedOut` may come earlier.
    pub fn call_until(&mut self, packet: Packet, deadline: Deadline) -> Result<Notice, IpcError> {
        self.call_before(packet, &[], deadline.or_after(ANSWER_LIMIT))
    }

    fn call_for(&mut self, packet: Packet, body: &[u8], wait: Wait) -> Result<Notice, IpcError> {
        self.call_before(packet, body, Deadline::after(wait))
    }

    fn call_before(&mut self, packet: Packet, body: &[u8], deadline: Deadline) -> Result<Notice, IpcError> {
        let asked = Packet { request: self.new_request(), ..packet };
        self.send_with_body(&asked, body)?;
        let request = asked.request;
        if let Some(answer) = self.answer(request, &[(asked, body)], deadline)? {
            return answered(answer);
        }
        let cancel = Packet { value: request, ..Packet::new(Op::Cancel) };
        self.send(&cancel)?;
        let asked = [(asked, body), (cancel, &[])];
        match self.answer(request, &asked, Deadline::after(Wait::For(ANSWER_LIMIT)))? {
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
    pub fn say_goodbye(&mut self, packet: Packet) -> Result<Notice, IpcError> {
        let deadline = Deadline::after(Wait::For(GOODBYE_LIMIT));
        let packet = Packet { request: self.new_request(), ..packet };
        let answer = match self.send_until(&packet, &[], deadline) {
            Ok(()) => self.answer(packet.request, &[(packet, &[])], deadline),
            Err(error) => Err(error),
        };
        if let Ok(Some(answer)) = answer {
            return answered(answer);
        }
        // Rings may share the socket and live on; what was sent is read all the same.
        let _ = rustix::net::shutdown(&*self.socket, rustix::net::Shutdown::Write);
        self.lost = true;
        Err(IpcError::NoBroker)
    }

    /// Whether this is a late answer to a call that ended without one. True once.
    pub fn was_given_up(&mut self, answer: &Packet) -> bool {
        let found = self.given_up.iter().position(|request| *request == answer.request);
        found.is_some_and(|at| self.given_up.remove(at).is_some())
    }

    /// The number of the next request.
    pub fn new_request(&mut self) -> u32 {
        let request = self.next_request;
        self.next_request = self.next_request.checked_add(1).unwrap_or(1);
        request
    }

    /// Sends without asking for an answer.
    pub fn send(&mut self, packet: &Packet) -> Result<(), IpcError> {
        self.send_with_body(packet, &[])
    }

    pub fn send_with_body(&mut self, packet: &Packet, body: &[u8]) -> Result<(), IpcError> {
        self.send_until(packet, body, Deadline::after(Wait::For(ANSWER_LIMIT)))
    }

    fn send_until(&mut self, packet: &Packet, body: &[u8], deadline: Deadline) -> Result<(), IpcError> {
        if self.lost {
            return Err(self.why_lost());
        }
        let message = packet.with_body(body);
        loop {
            match sys::seqpacket::send(&*self.socket, &message, &[] as &[OwnedFd]) {
                Ok(()) => return Ok(()),
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock && !deadline.has_passed() => {
                    self.poll(PollFlags::OUT, deadline);
                }
                Err(_) => return Err(self.lose()),
            }
        }
    }

    /// Gives a channel back, for the reason of this code. One that the broker does not hear of ends with this connection.
    pub fn close_channel(&mut self, channel: ChannelId, code: u32) {
        let _ = self.send(&Packet { channel, value: code, ..Packet::new(Op::Close) });
    }

    /// Sends what `Packet::with_body` made, without waiting: `false` when the broker does not read.
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
            match buffer.get(..received.bytes).and_then(Packet::split) {
                Some((packet, _)) if is_refusal(&packet) => self.refusal = Some(packet.error()),
                Some(_) => {}
                None => break,
            }
        }
        self.why_lost()
    }

    /// Whether notices were kept that came before an answer: for them the socket is readable no more.
    pub fn has_kept_notices(&self) -> bool {
        !self.unasked.is_empty()
    }

    /// The next notice that is there, without waiting. `Err` once the broker is lost and all was read.
    pub fn next_notice(&mut self) -> Result<Option<Notice>, IpcError> {
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

    /// A ring that ended before anybody heard of it is nobody's concern, unless it is one that a new broker tells of again. In a channel of
    /// messages, and in a lane of the library, there may be notifications.
    fn keep(&mut self, notice: Notice) {
        if notice.packet.op == Op::Ended {
            let is_it = |it: &Packet| it.channel == notice.packet.channel && it.op == Op::Accepted;
            let is_ring = |it: &Packet| it.ring().is_some() && !it.lane.is_reserved();
            let accepted = self.unasked.iter().rposition(|it| is_it(&it.packet) && is_ring(&it.packet));
            if accepted.and_then(|at| self.unasked.remove(at)).is_some() && !self.is_successor {
                return;
            }
        }
        self.unasked.push_back(notice);
    }

    /// Why a channel ended, when that lies among what was kept.
    pub fn ended(&self, channel: ChannelId) -> Option<IpcError> {
        let notice = |it: &&Notice| it.packet.op == Op::Ended && it.packet.channel == channel;
        self.unasked.iter().find(notice).map(|it| it.packet.error())
    }

    /// The caller waits for `peer` until it is told to be over. A broker that is lost needs no telling.
    pub fn tell_wait(&mut self, peer: Endpoint) {
        self.last_wait = self.last_wait.wrapping_add(1);
        self.told_wait = Some((self.last_wait, peer));
        let _ = self.send(&Packet { peer: Some(peer), value: self.last_wait, ..Packet::new(Op::Waits) });
    }

    pub fn tell_wait_is_over(&mut self) {
        if let Some((serial, _)) = self.told_wait.take() {
            let _ = self.send(&Packet { value: serial, ..Packet::new(Op::WaitOver) });
        }
    }

    /// Answers what the broker asked about the wait that was told, and tells it again to a broker that is new.
    pub fn confirm_wait(&mut self) {
        let Some((serial, peer)) = self.told_wait else { return };
        let is_about_it = |notice: &Notice| match notice.packet.op {
            Op::AskWait => notice.packet.value == serial,
            Op::Restarted => true,
            _ => false,
        };
        while let Some(at) = self.unasked.iter().position(is_about_it) {
            match self.unasked.remove(at).map(|notice| notice.packet.op) {
                Some(Op::Restarted) => self.tell_wait(peer),
                _ => drop(self.send(&Packet { value: serial, ..Packet::new(Op::StillWaiting) })),
            }
        }
    }

    pub fn is_wait_refused(&self) -> bool {
        let refuses = |serial, it: &Notice| it.packet.op == Op::RefuseWait && it.packet.value == serial;
        self.told_wait.is_some_and(|(serial, _)| self.unasked.iter().any(|notice| refuses(serial, notice)))
    }

    /// Takes the lanes that others opened and the library serves out of what was kept.
    pub fn take_reserved_lanes(&mut self) -> Vec<Notice> {
        let is_lane = |notice: &Notice| notice.packet.op == Op::Accepted && notice.packet.lane.is_reserved();
        if !self.unasked.iter().any(is_lane) {
            return Vec::new();
        }
        let (lanes, rest): (VecDeque<Notice>, VecDeque<Notice>) = self.unasked.drain(..).partition(is_lane);
        self.unasked = rest;
        lanes.into()
    }

    /// `None` when the deadline passed. `asked` is said again to a broker that was restarted.
    fn answer(
        &mut self,
        request: u32,
        asked: &[(Packet, &[u8])],
        deadline: Deadline,
    ) -> Result<Option<Notice>, IpcError> {
        loop {
            match self.read()? {
                Some(notice) if is_refusal(&notice.packet) => {
                    self.refusal = Some(notice.packet.error());
                    return Err(self.lose());
                }
                Some(notice) if notice.packet.request == request => return Ok(Some(notice)),
                Some(notice) if notice.packet.op == Op::Restarted => {
                    for (packet, body) in asked {
                        self.send_with_body(packet, body)?;
                    }
                }
                Some(notice) if self.unasked.len() < UNASKED_MAX => self.keep(notice),
                Some(_) => {
                    self.lost = true;
                    return Err(IpcError::NoBroker);
                }
                None if deadline.has_passed() => return Ok(None),
                None => self.poll(PollFlags::IN, deadline),
            }
        }
    }

    fn read(&mut self) -> Result<Option<Notice>, IpcError> {
        if self.lost {
            return Err(self.why_lost());
        }
        let mut buffer = [0; MESSAGE_BYTES_MAX];
        // A channel that comes without its descriptors is refused; the connection stays.
        match sys::seqpacket::receive_even_without_descriptors(&*self.socket, &mut buffer) {
            Ok(received) => {
                let bytes = buffer.get(..received.bytes).unwrap_or(&[]);
                if let Some((packet, body)) = Packet::split(bytes) {
                    self.is_successor |= packet.op == Op::Restarted;
                    let body = body.to_vec();
                    return Ok(Some(Notice { packet, body, descriptors: received.descriptors }));
                }
                self.lost = true;
                Err(IpcError::NoBroker)
            }
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => Ok(None),
            Err(_) => Err(self.lose()),
        }
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

/// An error that answers nothing in particular: the broker does not serve this process at all.
fn is_refusal(packet: &Packet) -> bool {
    packet.op == Op::Failed && packet.request == 0
}

fn answered(notice: Notice) -> Result<Notice, IpcError> {
    if notice.packet.op == Op::Failed { Err(notice.packet.error()) } else { Ok(notice) }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use abi::Lane;
    use ipc_shm::Size;

    use super::*;

    const SIZE: Size = Size { entries: 8, arena_bytes: 0 };
    const PEERS: [Endpoint; 2] = [Endpoint::FS, Endpoint::DS];

    /// A connection, and the broker's end.
    fn connected() -> (Connection, OwnedFd) {
        let (ours, theirs) = sys::seqpacket::pair().unwrap();
        (Connection::new(ours), theirs)
    }

    fn say(broker: &OwnedFd, packet: Packet) {
        while let Err(error) = sys::seqpacket::send(broker, &packet.to_bytes(), &[] as &[OwnedFd]) {
            assert_eq!(error.kind(), std::io::ErrorKind::WouldBlock);
            thread::yield_now();
        }
    }

    fn heard(broker: &OwnedFd) -> Packet {
        let mut buffer = [0; MESSAGE_BYTES_MAX];
        loop {
            match sys::seqpacket::receive(broker, &mut buffer) {
                Ok(received) => return Packet::split(&buffer[..received.bytes]).unwrap().0,
                Err(error) => assert_eq!(error.kind(), std::io::ErrorKind::WouldBlock),
            }
            thread::yield_now();
        }
    }

    fn accepted(channel: u64, lane: Lane) -> Packet {
        Packet { channel: ChannelId(channel), lane, size: SIZE, ..Packet::new(Op::Accepted) }
    }

    fn ended(channel: u64) -> Packet {
        let value = IpcError::SourceDied.code();
        Packet { channel: ChannelId(channel), value, ..Packet::new(Op::Ended) }
    }

    fn kept(connection: &mut Connection) -> Vec<(Op, u64)> {
        connection.read_ahead();
        let notice = |it: &Notice| (it.packet.op, it.packet.channel.0);
        std::iter::from_fn(|| connection.next_notice().unwrap()).map(|it| notice(&it)).collect()
    }

    #[test]
    fn ring_that_ended_unheard_is_forgotten_and_a_lane_of_the_library_is_not() {
        let (mut connection, broker) = connected();
        let [one, other] = PEERS;
        say(&broker, accepted(1, Lane(1)));
        say(&broker, accepted(2, Lane::delegation(one, other)));
        say(&broker, ended(1));
        say(&broker, ended(2));
        assert_eq!(kept(&mut connection), [(Op::Accepted, 2), (Op::Ended, 2)]);
    }

    #[test]
    fn end_of_a_ring_that_a_new_broker_tells_of_again_is_heard() {
        let (mut connection, broker) = connected();
        say(&broker, accepted(1, Lane(1)));
        say(&broker, Packet::new(Op::Restarted));
        say(&broker, ended(1));
        assert_eq!(kept(&mut connection), [(Op::Restarted, 0), (Op::Ended, 1)]);
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
                let request = heard(&broker).request;
                say(&broker, Packet { request, ..Packet::new(Op::Done) });
            });
            while connection.unasked.len() < READ_AHEAD_MAX && !connection.is_lost() {
                connection.read_ahead();
            }
            assert_eq!(connection.call(Packet::new(Op::AwaitBound)).map(|notice| notice.packet.op), Ok(Op::Done));
            broker.join().unwrap();
        });
    }
}
