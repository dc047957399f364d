//! Raw Ethernet: packets of [`proxy_link::arq`] in frames of an EtherType of their own, over one network interface.
//! Addresses are hardware addresses, `02:00:00:00:00:01`.
//!
//! No IP, no routing: both nodes are on one segment. One packet socket carries all sessions of the node.
//!
//! Who shares the segment can read, forge and drop frames; TLS sees to it that this ends a link at most.

use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use proxy_link::arq::{Packet, Received, Session, Sessions, State, refusal};
use sys::packet::{self, HEAD_BYTES, Mac};

use super::{Stream, Target, Transport, receive_some};

/// Reserved for experiments and private use by IEEE 802.
pub const ETHER_TYPE: u16 = 0x88b5;
/// Frames taken in one turn, so that other things get theirs, and acknowledgements go well before a window is full.
const FRAMES_PER_TURN: usize = 256;
/// Longest payload that is used, whatever the interface takes.
const PAYLOAD_BYTES_MAX: usize = 9000;
/// Shortest that makes sense.
const PAYLOAD_BYTES_MIN: usize = 576;

pub struct Eth {
    shared: Arc<Mutex<Core>>,
    /// The core's socket, to be watched.
    socket: OwnedFd,
    own: Mac,
}

struct Core {
    socket: OwnedFd,
    own: Mac,
    sessions: Sessions<Mac>,
    origin: Instant,
    frame: Vec<u8>,
    buffer: Vec<u8>,
}

impl Eth {
    /// `socket` comes from [`sys::packet::open`], `own` and `mtu` from [`sys::packet::interface`] of the same
    /// interface.
    pub fn new(socket: OwnedFd, own: Mac, mtu: usize) -> io::Result<Eth> {
        if mtu < PAYLOAD_BYTES_MIN {
            return Err(io::Error::other(format!("an interface with frames of {mtu} bytes carries no links")));
        }
        let payload_bytes = mtu.min(PAYLOAD_BYTES_MAX);
        let core = Core {
            socket: socket.try_clone()?,
            own,
            sessions: Sessions::new(payload_bytes, Box::new(random)),
            origin: Instant::now(),
            frame: Vec::with_capacity(HEAD_BYTES + payload_bytes),
            buffer: vec![0; HEAD_BYTES + PAYLOAD_BYTES_MAX],
        };
        Ok(Eth { shared: Arc::new(Mutex::new(core)), socket, own })
    }

    fn stream(&self, id: u32) -> Box<dyn Stream> {
        Box::new(EthStream { shared: Arc::clone(&self.shared), id })
    }
}

/// One thread uses it, so nobody ever waits here.
/// Six bytes in hexadecimal with colons between.
pub fn parse_mac(text: &str) -> Option<Mac> {
    let mut mac = [0; 6];
    let mut words = text.split(':');
    for byte in &mut mac {
        *byte = words.next().filter(|word| word.len() == 2).and_then(|word| u8::from_str_radix(word, 16).ok())?;
    }
    words.next().is_none().then_some(mac)
}

pub fn show_mac(mac: Mac) -> String {
    mac.map(|byte| format!("{byte:02x}")).join(":")
}

impl Transport for Eth {
    fn name(&self) -> &'static str {
        "eth"
    }

    fn check(&self, address: &str) -> Result<(), String> {
        match parse_mac(address) {
            Some(mac) if mac[0] & 1 == 0 => Ok(()),
            _ => Err(format!("'{address}' is no hardware address of one interface")),
        }
    }

    fn local_address(&self) -> String {
        show_mac(self.own)
    }

    fn dial(&mut self, target: Target<'_>) -> io::Result<Box<dyn Stream>> {
        let peer = parse_mac(target.address).ok_or(io::ErrorKind::InvalidInput)?;
        let mut core = self.shared.lock();
        let now = core.now();
        let id = core.sessions.dial(peer, now)?;
        core.flush(id);
        drop(core);
        Ok(self.stream(id))
    }

    fn accept(&mut self) -> io::Result<Box<dyn Stream>> {
        let id = self.shared.lock().sessions.accept().ok_or(io::ErrorKind::WouldBlock)?;
        Ok(self.stream(id))
    }

    fn descriptor(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    fn turn(&mut self) -> io::Result<()> {
        let mut core = self.shared.lock();
        let touched = core.take_frames()?;
        let now = core.now();
        let due = core.sessions.tick(now);
        for id in touched.into_iter().chain(due) {
            core.flush(id);
        }
        Ok(())
    }

    fn due(&self) -> Option<Instant> {
        let core = self.shared.lock();
        core.sessions.due().map(|due| core.origin + due)
    }

    /// Frames are sent and received by calls that every process may make.
    fn system_calls(&self) -> &'static [i64] {
        &[]
    }
}

impl Core {
    fn now(&self) -> Duration {
        self.origin.elapsed()
    }

    /// Takes what came, up to a bound; the sessions it was for, each once for every run of its packets.
    fn take_frames(&mut self) -> io::Result<Vec<u32>> {
        let mut touched = Vec::new();
        let mut buffer = std::mem::take(&mut self.buffer);
        // When the interface is down, say, it is told once, and silence does the rest.
        let result = receive_some(FRAMES_PER_TURN, || {
            let bytes = packet::receive(&self.socket, &mut buffer)?;
            let id = buffer.get(..bytes).and_then(|frame| self.take_frame(frame));
            if let Some(id) = id.filter(|id| touched.last() != Some(id)) {
                touched.push(id);
            }
            Ok(())
        });
        self.buffer = buffer;
        result.map(|()| touched)
    }

    fn take_frame(&mut self, frame: &[u8]) -> Option<u32> {
        let (head, payload) = frame.split_first_chunk::<HEAD_BYTES>()?;
        let [d0, d1, d2, d3, d4, d5, s0, s1, s2, s3, s4, s5, ..] = *head;
        let (to, peer) = ([d0, d1, d2, d3, d4, d5], [s0, s1, s2, s3, s4, s5]);
        if to != self.own {
            return None;
        }
        let packet = Packet::decode(payload)?;
        match self.sessions.receive(peer, &packet, self.now()) {
            Received::By(id) => Some(id),
            Received::Refused => {
                self.begin_frame(peer);
                refusal(&packet).encode(&mut self.frame);
                self.send_frame();
                None
            }
            Received::Dropped => None,
        }
    }

    fn begin_frame(&mut self, peer: Mac) {
        self.frame.clear();
        self.frame.extend_from_slice(&peer);
        self.frame.extend_from_slice(&self.own);
        self.frame.extend_from_slice(&ETHER_TYPE.to_be_bytes());
    }

    /// A frame that the interface does not take is lost, as it may be on the wire.
    fn send_frame(&self) -> bool {
        packet::send(&self.socket, &self.frame).is_ok()
    }

    /// Sends what the session has to send.
    fn flush(&mut self, id: u32) {
        let now = self.now();
        loop {
            let Some(peer) = self.sessions.peer(id) else { return };
            self.begin_frame(peer);
            let Some(session) = self.sessions.get_mut(id) else { return };
            if !session.transmit(now, &mut self.frame) {
                break;
            }
            if !self.send_frame() {
                // Full: the rest would be lost too. What was is repeated in time.
                break;
            }
        }
        self.sessions.forget_ended(id);
    }
}

fn random() -> io::Result<u32> {
    let mut bytes = [0; 4];
    rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())?;
    Ok(u32::from_le_bytes(bytes))
}

struct EthStream {
    shared: Arc<Mutex<Core>>,
    id: u32,
}

impl EthStream {
    fn with<T>(&self, work: impl FnOnce(&mut Session) -> io::Result<T>) -> io::Result<T> {
        let mut core = self.shared.lock();
        let session = core.sessions.get_mut(self.id).ok_or(io::ErrorKind::NotConnected)?;
        let result = work(session)?;
        core.flush(self.id);
        Ok(result)
    }
}

impl Read for EthStream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.with(|session| session.read(buffer))
    }
}

impl Write for EthStream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.with(|session| session.write(bytes))
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Stream for EthStream {
    fn established(&mut self) -> Option<io::Result<()>> {
        let core = self.shared.lock();
        match core.sessions.get(self.id).map(Session::state) {
            Some(State::Dialling) => None,
            Some(State::Open | State::Closing) => Some(Ok(())),
            Some(State::Failed(kind)) => Some(Err(kind.into())),
            Some(State::Closed) | None => Some(Err(io::ErrorKind::NotConnected.into())),
        }
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    fn round_trip(&self) -> Option<Duration> {
        self.shared.lock().sessions.get(self.id).and_then(Session::round_trip)
    }
}

impl Drop for EthStream {
    fn drop(&mut self) {
        let mut core = self.shared.lock();
        let now = core.now();
        core.sessions.release(self.id, now);
        // What was written is delivered for a while, from `turn`.
        core.flush(self.id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hardware_addresses_are_read_as_they_are_written() {
        let mac = [0x02, 0, 0xab, 0, 0, 0x0f];
        assert_eq!(parse_mac(&show_mac(mac)), Some(mac));
        for wrong in
            ["", "02:00:00:00:00", "02:00:00:00:00:01:02", "2:0:0:0:0:1", "02:00:00:00:00:zz", "02-00-00-00-00-01"]
        {
            assert_eq!(parse_mac(wrong), None, "{wrong}");
        }
    }
}
