//! Frames to servers of other nodes: a session with each, whose requests carry many frames and arrive in order, once.
//!
//! The loop puts frames in and starts requests as long as few are in flight; a thread for each link waits for their
//! answers and pokes the loop when more may go. A link belongs to one life of the other server: `ESTALE` says that it
//! has another one now, and what was under way is lost with the life before.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::sync::Arc;

use abi::Endpoint;
use cs_core::Host;
use libvos::{BlockingSession, Identity, Op, PortConnect, SharedPort, Size, Started};
use parking_lot::{Condvar, Mutex};
use vos_api::cs::Link as LinkRequest;
use vos_api::{Class, Operation};
use vos_rt::Handle;

/// Requests of a link that are not answered.
const IN_FLIGHT_MAX: usize = 8;
/// Bytes of frames in one request, beyond the first frame.
const REQUEST_BYTES: usize = 256 << 10;
/// Bytes of frames that wait. What servers send is bounded by what they have been told is there, and by logs; a link
/// with more than this is of no use any more, and the others go on without that host.
const WAITING_BYTES_MAX: usize = 64 << 20;
const SIZE: Size = Size { entries: 16, arena_bytes: 16 << 20 };

pub struct Links {
    port: SharedPort,
    handle: Handle,
    links: BTreeMap<Host, Link>,
}

struct Link {
    session: BlockingSession,
    flight: Arc<Flight>,
    waiting: VecDeque<Vec<u8>>,
    waiting_bytes: usize,
    count: u64,
}

#[derive(Default)]
struct Flight {
    state: Mutex<InFlight>,
    changed: Condvar,
}

#[derive(Default)]
struct InFlight {
    started: VecDeque<Started>,
    /// Of which the thread waits for one.
    count: usize,
    /// The other server has another life, or the link is not wanted any more.
    is_over: bool,
}

impl Links {
    pub fn new(port: SharedPort, handle: Handle) -> Links {
        Links { port, handle, links: BTreeMap::new() }
    }

    pub fn send(&mut self, to: Host, frame: Vec<u8>) {
        if !self.links.contains_key(&to) {
            match Link::open(to, &self.port, &self.handle) {
                Ok(link) => drop(self.links.insert(to, link)),
                Err(error) => return tracing::error!(?to, %error, "no link to the server of another node"),
            }
        }
        let Some(link) = self.links.get_mut(&to) else { return };
        if link.waiting_bytes > WAITING_BYTES_MAX {
            link.flight.end();
        }
        link.waiting_bytes += frame.len();
        link.waiting.push_back(frame);
    }

    /// Starts what may be started.
    pub fn flush(&mut self, own: u64) {
        for (host, link) in &mut self.links {
            link.flush(own, host.incarnation);
        }
    }

    /// Keeps links to these alone.
    pub fn retain(&mut self, hosts: &[Host]) {
        self.links.retain(|host, link| {
            let stays = hosts.contains(host);
            if !stays {
                link.flight.end();
            }
            stays
        });
    }
}

impl Link {
    fn open(to: Host, port: &SharedPort, handle: &Handle) -> io::Result<Link> {
        let number = Endpoint::CS.number() + u32::from(to.node);
        let server = Endpoint::new(number).ok_or(io::ErrorKind::InvalidInput)?;
        let connect = PortConnect::new(port.clone(), server, SIZE);
        let session = BlockingSession::open(Box::new(connect), SIZE, Identity::default())?;
        let flight = Arc::new(Flight::default());
        let (also, handle) = (Arc::clone(&flight), handle.clone());
        let name = format!("link-{}", to.node);
        std::thread::Builder::new().name(name).spawn(move || also.collect(&handle))?;
        Ok(Link { session, flight, waiting: VecDeque::new(), waiting_bytes: 0, count: 0 })
    }

    fn flush(&mut self, sender: u64, receiver: u64) {
        while !self.waiting.is_empty() {
            let mut flight = self.flight.state.lock();
            if flight.is_over {
                self.waiting.clear();
                self.waiting_bytes = 0;
                return;
            }
            if flight.count >= IN_FLIGHT_MAX {
                return;
            }
            let (frames, taken) = pack(&self.waiting);
            let request = LinkRequest { sender, receiver, count: self.count + 1, frames: &frames };
            let Ok(Some(started)) = self.session.try_start(Op::of(&request.encode(), Class::Repeatable, 0)) else {
                return;
            };
            self.count += 1;
            self.waiting_bytes -= self.waiting.drain(..taken).map(|frame| frame.len()).sum::<usize>();
            flight.started.push_back(started);
            flight.count += 1;
            drop(flight);
            self.flight.changed.notify_one();
        }
    }
}

/// Frames for one request, each after its length, and how many.
fn pack(waiting: &VecDeque<Vec<u8>>) -> (Vec<u8>, usize) {
    let (mut frames, mut taken) = (Vec::new(), 0);
    for frame in waiting {
        if taken > 0 && frames.len() + frame.len() > REQUEST_BYTES {
            break;
        }
        frames.extend_from_slice(&(frame.len() as u32).to_le_bytes());
        frames.extend_from_slice(frame);
        taken += 1;
    }
    (frames, taken)
}

/// The frames of a request. `None`: it ends within one.
pub fn unpack(frames: &[u8]) -> Option<Vec<&[u8]>> {
    let (mut rest, mut unpacked) = (frames, Vec::new());
    while !rest.is_empty() {
        let (length, after) = rest.split_first_chunk::<4>()?;
        let (frame, next) = after.split_at_checked(usize::try_from(u32::from_le_bytes(*length)).ok()?)?;
        unpacked.push(frame);
        rest = next;
    }
    Some(unpacked)
}

impl Flight {
    fn end(&self) {
        self.state.lock().is_over = true;
        self.changed.notify_one();
    }

    /// Waits for one answer after the other.
    fn collect(&self, handle: &Handle) {
        loop {
            let started = {
                let mut state = self.state.lock();
                loop {
                    if state.is_over {
                        return;
                    }
                    if let Some(started) = state.started.pop_front() {
                        break started;
                    }
                    self.changed.wait(&mut state);
                }
            };
            let answer = started.wait();
            let mut state = self.state.lock();
            state.count -= 1;
            if let Err(errno) = answer {
                tracing::debug!(%errno, "a link is over");
                state.is_over = true;
                state.started.clear();
                return;
            }
            let was_full = state.count + 1 == IN_FLIGHT_MAX;
            drop(state);
            if was_full {
                handle.poke();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_are_unpacked_as_they_were_packed_and_a_cut_request_is_refused() {
        let waiting: VecDeque<Vec<u8>> = [vec![1], vec![], vec![2; 300]].into();
        let (frames, taken) = pack(&waiting);
        assert_eq!((taken, unpack(&frames)), (3, Some(vec![&[1][..], &[], &[2; 300]])));
        assert_eq!(unpack(&frames[..frames.len() - 1]), None);
        let large: VecDeque<Vec<u8>> = (0..3).map(|_| vec![0; REQUEST_BYTES / 2 + 1]).collect();
        assert_eq!(pack(&large).1, 1);
    }
}
