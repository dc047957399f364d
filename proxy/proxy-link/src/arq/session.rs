//! One session: both directions, and how it begins and ends.

use std::io;
use std::time::Duration;

use super::limits::{FAILED_AFTER, LINGER, RANGES_MAX, RTO_FIRST, RTO_MAX, WINDOW_BYTES};
use super::packet::{HEAD_BYTES, Kind, Packet, RANGE_BYTES, Ranges};
use super::receiver::Receiver;
use super::sender::Sender;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum State {
    /// SYN is sent, and again, until it is answered.
    Dialling,
    Open,
    /// The owner closed it; what was written is still delivered.
    Closing,
    /// It may be forgotten.
    Closed,
    /// The peer knows nothing of it, broke the rules, or is not heard.
    Failed(io::ErrorKind),
}

pub struct Session {
    state: State,
    me: u32,
    /// The peer's number of the session; 0 while it is not known.
    peer: u32,
    sender: Sender,
    receiver: Receiver,
    /// SYN or SYN_ACK is to be sent.
    greeting_due: Option<Duration>,
    greeted: u32,
    begun: Duration,
    closed: Duration,
    /// An acknowledgement is due; the stamp it answers.
    ack: Option<u32>,
    /// What the peer was told of our window, as a limit.
    told_limit: u64,
    ranges: Vec<(u32, u32)>,
}

impl Session {
    /// Packets have at most `packet_bytes`.
    pub fn dial(me: u32, packet_bytes: usize, now: Duration) -> Session {
        let mut session = Session::new(me, 0, State::Dialling, packet_bytes, now);
        session.greeting_due = Some(now);
        session
    }

    /// The answer to a SYN from the peer's session `peer`.
    pub fn accept(me: u32, peer: u32, packet_bytes: usize, now: Duration) -> Session {
        let mut session = Session::new(me, peer, State::Open, packet_bytes, now);
        session.greeting_due = Some(now);
        session
    }

    fn new(me: u32, peer: u32, state: State, packet_bytes: usize, now: Duration) -> Session {
        let segment_bytes = Session::segment_bytes(packet_bytes);
        Session {
            state,
            me,
            peer,
            sender: Sender::new(segment_bytes, now),
            receiver: Receiver::default(),
            greeting_due: None,
            greeted: 0,
            begun: now,
            closed: now,
            ack: None,
            told_limit: WINDOW_BYTES as u64,
            ranges: Vec::new(),
        }
    }

    /// Data of one packet. Ranges travel in packets without data.
    fn segment_bytes(packet_bytes: usize) -> usize {
        packet_bytes.saturating_sub(HEAD_BYTES).clamp(PACKET_BYTES_MIN - HEAD_BYTES, usize::from(u16::MAX))
    }

    pub fn state(&self) -> State {
        self.state
    }

    pub fn round_trip(&self) -> Option<Duration> {
        self.sender.round_trip()
    }

    /// Takes what there is room for.
    ///
    /// # Errors
    /// `WouldBlock`, or why the session failed.
    pub fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        match self.state {
            State::Failed(kind) => return Err(kind.into()),
            State::Closing | State::Closed => return Err(io::ErrorKind::BrokenPipe.into()),
            State::Dialling | State::Open => {}
        }
        if !data.is_empty() && !self.sender.has_room() {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        Ok(self.sender.write(data))
    }

    /// 0: the peer closed it.
    ///
    /// # Errors
    /// `WouldBlock`, or why the session failed.
    pub fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let count = self.receiver.read(out);
        let limit = self.receiver.ack() + self.receiver.window() as u64;
        if count > 0 && limit >= self.told_limit + (WINDOW_BYTES / 2) as u64 {
            // The peer may wait for room.
            self.ack.get_or_insert(0);
        }
        match self.state {
            _ if count > 0 || out.is_empty() || self.receiver.is_at_end() => Ok(count),
            State::Failed(kind) => Err(kind.into()),
            _ => Err(io::ErrorKind::WouldBlock.into()),
        }
    }

    /// Nothing will be read or written any more; what was written is delivered for a while.
    pub fn close(&mut self, now: Duration) {
        match self.state {
            State::Open => {
                self.sender.finish();
                (self.state, self.closed) = (State::Closing, now);
            }
            State::Dialling => self.state = State::Closed,
            State::Closing | State::Closed | State::Failed(_) => {}
        }
    }

    /// A packet for this session.
    pub fn receive(&mut self, packet: &Packet<'_>, now: Duration) {
        match (packet.kind, self.state) {
            (_, State::Closed | State::Failed(_)) => {}
            (Kind::Syn, _) => {
                // Our answer was lost.
                self.greeting_due = Some(now);
            }
            (Kind::SynAck, State::Dialling) => {
                (self.peer, self.state, self.greeting_due) = (packet.from, State::Open, None);
                self.ack = Some(packet.stamp);
            }
            // Our acknowledgement of it was lost.
            (Kind::SynAck, _) => self.ack = self.ack.or(Some(packet.stamp)),
            (Kind::Rst, State::Dialling) => self.state = State::Failed(io::ErrorKind::ConnectionRefused),
            (Kind::Rst, _) => self.state = State::Failed(io::ErrorKind::ConnectionReset),
            (Kind::Data, State::Dialling) => {}
            (Kind::Data, _) => self.receive_data(packet, now),
        }
    }

    fn receive_data(&mut self, packet: &Packet<'_>, now: Duration) {
        let round_trip = (packet.echo != 0).then(|| stamp(now).wrapping_sub(packet.echo));
        // A clock that jumped is no round trip.
        let round_trip = round_trip.map(|micros| Duration::from_micros(micros.into()));
        let round_trip = round_trip.filter(|round_trip| *round_trip < FAILED_AFTER);
        let told = self.sender.acknowledged(now, packet.ack, packet.window, packet.ranges.iter(), round_trip);
        if told.is_err() {
            self.state = State::Failed(io::ErrorKind::InvalidData);
            return;
        }
        if !packet.data.is_empty() || packet.fin {
            self.receiver.take(packet.offset, packet.data, packet.fin);
            self.ack = self.ack.or(Some(packet.stamp));
        }
        if self.state == State::Closing && self.sender.is_empty() {
            self.state = State::Closed;
        }
    }

    /// Appends the next packet to send, if there is one. Call it until there is none.
    pub fn transmit(&mut self, now: Duration, out: &mut Vec<u8>) -> bool {
        if let Some(due) = self.greeting_due
            && due <= now
        {
            self.greet(now, out);
            return true;
        }
        match self.state {
            State::Open | State::Closing => {}
            State::Dialling | State::Closed | State::Failed(_) => return false,
        }
        // Beside a hole there is more to tell than fits beside data.
        if self.receiver.has_holes() && self.ack.is_some() {
            self.put(Kind::Data, now, RANGES_MAX, out);
            return true;
        }
        let (ack, window) = (self.receiver.ack(), self.receiver.window());
        if let Some(segment) = self.sender.next(now) {
            let packet = Packet {
                kind: Kind::Data,
                to: self.peer,
                from: self.me,
                offset: segment.offset,
                ack,
                window: window as u32,
                stamp: stamp(now),
                echo: self.ack.take().unwrap_or(0),
                fin: segment.is_last,
                ranges: Ranges::NONE,
                data: segment.data,
            };
            packet.encode(out);
            self.told_limit = ack + window as u64;
            return true;
        }
        if self.ack.is_some() {
            self.put(Kind::Data, now, RANGES_MAX, out);
            return true;
        }
        false
    }

    fn greet(&mut self, now: Duration, out: &mut Vec<u8>) {
        let kind = if self.state == State::Dialling { Kind::Syn } else { Kind::SynAck };
        self.put(kind, now, 0, out);
        self.greeted += 1;
        // The side that dials repeats; the other answers as often as it is asked.
        let pause = (RTO_FIRST * (1 << self.greeted.min(4))).min(RTO_MAX);
        self.greeting_due = (kind == Kind::Syn).then_some(now + pause);
    }

    fn put(&mut self, kind: Kind, now: Duration, ranges: usize, out: &mut Vec<u8>) {
        self.receiver.ranges(&mut self.ranges);
        self.ranges.truncate(ranges);
        let (ack, window) = (self.receiver.ack(), self.receiver.window());
        let packet = Packet {
            kind,
            to: self.peer,
            from: self.me,
            offset: self.sender.offset(),
            ack,
            window: window as u32,
            stamp: stamp(now),
            echo: self.ack.take().unwrap_or(0),
            fin: false,
            ranges: Ranges::Listed(&self.ranges),
            data: &[],
        };
        packet.encode(out);
        self.told_limit = ack + window as u64;
    }

    /// When [`Session::tick`] has something to do.
    pub fn due(&self) -> Option<Duration> {
        let data = match self.state {
            State::Open | State::Closing => self.sender.due(),
            State::Dialling | State::Closed | State::Failed(_) => None,
        };
        let linger = (self.state == State::Closing).then_some(self.closed + LINGER);
        data.into_iter().chain(linger).chain(self.greeting_due).min()
    }

    /// Time passed: repeat, or give up. Then [`Session::transmit`].
    pub fn tick(&mut self, now: Duration) {
        match self.state {
            State::Dialling if now.saturating_sub(self.begun) >= FAILED_AFTER => {
                self.state = State::Failed(io::ErrorKind::TimedOut);
            }
            State::Closing if now.saturating_sub(self.closed) >= LINGER => self.state = State::Closed,
            State::Open | State::Closing => {
                if self.sender.tick(now).is_err() {
                    self.state = State::Failed(io::ErrorKind::TimedOut);
                }
            }
            State::Dialling | State::Closed | State::Failed(_) => {}
        }
        if matches!(self.state, State::Closed | State::Failed(_)) {
            self.greeting_due = None;
        }
    }
}

/// A packet with all its ranges; every link takes more.
const PACKET_BYTES_MIN: usize = HEAD_BYTES + RANGES_MAX * RANGE_BYTES;

/// Never 0, which means none.
fn stamp(now: Duration) -> u32 {
    (now.as_micros() as u32).max(1)
}
