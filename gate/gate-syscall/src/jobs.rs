//! Jobs on other nodes (`docs/design/jobs.md`): programs ask here, and the far ends that other nodes ask for are handed
//! to the keeper.
//!
//! ```text
//! on ──▶ JobDoor ── StartOrder ──▶ Orders of the other node ──▶ Starter ──▶ keeper there
//! ```
//!
//! A thread for each program that asks, [`ASKERS_MAX`] at most. Nothing is kept: whoever is killed with its call gate
//! asks again, and a deputy takes one far end.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use libvos::{SharedPort, Size};
use parking_lot::Mutex;
use proc_core::caller::Uids;
use proc_core::limits::STATUS_BYTES_MAX;
use proc_core::order::BadRecord;
use proc_core::range::{Seat, Seats};
use proc_core::start::{JobOwner, JobRoot, MOUNTS_BYTES_MAX, START_BYTES_MAX, StartOrder, TAKES_ROOTS, Unfit};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use vos_api::calls::{Load, Loaded, Start};
use vos_api::job_door::{DoorAnswer, DoorRefusal, DoorRequest, JobPlace, REQUEST_BYTES};
use vos_rt::Request;

use crate::peers::{NoAnswer, PeerSessions};

/// Programs that are asking.
const ASKERS_MAX: usize = 64;
/// Who connects says what he wants.
const ASK_LIMIT: Duration = Duration::from_secs(2);
/// For a ring to another node's call gate.
const REACH_LIMIT: Duration = Duration::from_secs(2);
/// From an order to the far end: the keeper's own limit, and a little.
const START_LIMIT: Duration = Duration::from_secs(22);
/// How much another node has to do is not worth a longer wait.
const LOAD_LIMIT: Duration = Duration::from_millis(300);
/// What was started is not seen running at once.
/// Jobs that are counted; further ones run as well.
const COUNTED_MAX: usize = 2048;
const RECENTLY: Duration = Duration::from_millis(500);
/// Far ends that the keeper was asked for and has not answered.
const STARTING_MAX: usize = 512;
const SIZE: Size = Size { entries: 4, arena_bytes: 4096 };
const _: () = assert!(START_BYTES_MAX <= SIZE.arena_bytes as usize);

/// Which errno says what of a node that was asked.
const NOT_THERE: [Errno; 3] = [Errno::OPNOTSUPP, Errno::NOSYS, Errno::INVAL];

/// Where programs ask for jobs.
pub struct JobDoor {
    listener: OwnedFd,
    uids: Uids,
    nodes: JobNodes,
    asking: AtomicUsize,
}

/// The other nodes, as far as jobs are concerned.
pub struct JobNodes {
    own: Seat,
    others: Seats,
    lost: Seats,
    peers: PeerSessions,
    started: Mutex<StartedJobs>,
}

/// A job that began here and runs on another node, as long as its deputy lives.
#[derive(Debug)]
struct StartedJob {
    number: u64,
    on: Seat,
    at: Instant,
    deputy: OwnedFd,
}

impl From<NoAnswer> for DoorRefusal {
    fn from(why: NoAnswer) -> DoorRefusal {
        match why {
            NoAnswer::Unreachable => DoorRefusal::Unreachable,
            NoAnswer::Failed(errno) if NOT_THERE.contains(&errno) => DoorRefusal::Older,
            NoAnswer::Failed(Errno::AGAIN) => DoorRefusal::Busy,
            // An order with what it does not know.
            NoAnswer::Failed(Errno::PROTO) => DoorRefusal::Older,
            NoAnswer::Failed(errno) => DoorRefusal::Failed(errno.raw_os_error() as u16),
        }
    }
}

impl JobDoor {
    pub fn new(listener: OwnedFd, uids: Uids, nodes: JobNodes) -> JobDoor {
        JobDoor { listener, uids, nodes, asking: AtomicUsize::new(0) }
    }

    /// Hears programs as long as the process lives.
    ///
    /// # Errors
    /// The socket is none any more.
    pub fn run(self: Arc<JobDoor>) -> io::Result<()> {
        loop {
            if let Err(cause) = poll(&mut [PollFd::new(&self.listener, PollFlags::IN)], None)
                && cause != Errno::INTR
            {
                return Err(cause.into());
            }
            let socket = match sys::seqpacket::accept(&self.listener) {
                Ok(socket) => socket,
                // Another call gate may have taken it, or who asked is gone.
                Err(_) => continue,
            };
            if self.asking.fetch_add(1, Ordering::Relaxed) >= ASKERS_MAX {
                self.asking.fetch_sub(1, Ordering::Relaxed);
                say(&socket, DoorAnswer::Refused(DoorRefusal::Busy));
                continue;
            }
            let door = Arc::clone(&self);
            let heard = std::thread::Builder::new().name("job".to_owned()).spawn(move || {
                door.hear(&socket);
                door.asking.fetch_sub(1, Ordering::Relaxed);
            });
            if heard.is_err() {
                self.asking.fetch_sub(1, Ordering::Relaxed);
            }
        }
    }

    fn hear(&self, socket: &OwnedFd) {
        let Some((packet, process, pid)) = receive(socket) else { return };
        let answer = match DoorRequest::decode(&packet) {
            Err(_) => Err(DoorRefusal::NotUnderstood),
            Ok(request) => self.whose(process.as_ref(), pid).and_then(|(owner, root)| {
                let DoorRequest { place, deputy, token, with_terminal } = request;
                let (deputy, origin) = (deputy.number(), self.nodes.own);
                let order = StartOrder { owner, root, deputy, token, with_terminal, origin };
                self.nodes.start(place, &order, process.as_ref())
            }),
        };
        say(socket, answer.unwrap_or_else(DoorAnswer::Refused));
    }

    /// What the kernel shows of the process that sent the packet. Its number may be another one's since; so what was
    /// seen counts only if that very process is still there afterwards.
    fn whose(&self, process: Option<&OwnedFd>, pid: i32) -> Result<(JobOwner, JobRoot), DoorRefusal> {
        let process = process.ok_or(DoorRefusal::OlderKernel)?;
        let read = |name: &str, most: usize| -> io::Result<Vec<u8>> {
            let mut text = Vec::new();
            File::open(format!("/proc/{pid}/{name}"))?.take(most as u64).read_to_end(&mut text)?;
            Ok(text)
        };
        let (status, mounts) = (read("status", STATUS_BYTES_MAX), read("mountinfo", MOUNTS_BYTES_MAX));
        let (Ok(status), Ok(mounts), false) = (status, mounts, has_ended(process)) else {
            return Err(DoorRefusal::Nobody);
        };
        let whose = JobOwner::of_status(&status, self.uids).and_then(|owner| Ok((owner, JobRoot::of_mounts(&mounts)?)));
        whose.map_err(|unfit| match unfit {
            Unfit::Nobody => DoorRefusal::Nobody,
            Unfit::SeveralUsers => DoorRefusal::SeveralUsers,
            Unfit::SeveralGroups => DoorRefusal::SeveralGroups,
            Unfit::TooManyGroups => DoorRefusal::TooManyGroups,
            Unfit::HasFilters => DoorRefusal::HasFilters,
            Unfit::StrangeRoot => DoorRefusal::StrangeRoot,
        })
    }
}

fn say(socket: &OwnedFd, answer: DoorAnswer) {
    // Whoever asked may be gone.
    let _ = sys::seqpacket::send(socket, &answer.encode(), &[] as &[OwnedFd]);
}

/// The packet, and who sent it.
fn receive(socket: &OwnedFd) -> Option<(Vec<u8>, Option<OwnedFd>, i32)> {
    let mut packet = [0; REQUEST_BYTES + 1];
    let until = Instant::now() + ASK_LIMIT;
    loop {
        match sys::seqpacket::receive_even_without_descriptors(socket, &mut packet) {
            Ok(received) if received.bytes == 0 => return None,
            Ok(received) => {
                let bytes = packet.get(..received.bytes)?.to_vec();
                return Some((bytes, received.sender_pidfd, received.sender?.pid));
            }
            Err(cause) if cause.kind() == io::ErrorKind::WouldBlock => {
                let left = until.saturating_duration_since(Instant::now());
                let left = Timespec::try_from(left).ok()?;
                if let Ok(0) = poll(&mut [PollFd::new(socket, PollFlags::IN)], Some(&left)) {
                    return None;
                }
            }
            Err(_) => return None,
        }
    }
}

/// A descriptor of a process is readable when it has ended.
fn has_ended(process: &OwnedFd) -> bool {
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut [PollFd::new(process, PollFlags::IN)], Some(&now)) != Ok(0)
}

#[derive(Default)]
struct StartedJobs {
    last: u64,
    jobs: Vec<StartedJob>,
}

impl StartedJobs {
    fn forget_ended(&mut self) {
        self.jobs.retain(|job| !has_ended(&job.deputy));
    }

    /// The number under which it is counted. `None`: there are as many as there may be.
    fn count(&mut self, on: Seat, deputy: Option<&OwnedFd>, most: usize) -> Option<u64> {
        self.forget_ended();
        if most > 0 && self.jobs.iter().filter(|job| job.on == on).count() >= most {
            return None;
        }
        self.last += 1;
        if let Some(deputy) = deputy.filter(|_| self.jobs.len() < COUNTED_MAX).and_then(|one| one.try_clone().ok()) {
            self.jobs.push(StartedJob { number: self.last, on, at: Instant::now(), deputy });
        }
        Some(self.last)
    }
}

impl JobNodes {
    pub fn new(own: Seat, others: Seats, lost: Seats, port: SharedPort) -> JobNodes {
        let peers = PeerSessions::new(port, SIZE, REACH_LIMIT);
        JobNodes { own, others, lost, peers, started: Mutex::default() }
    }

    fn start(&self, place: JobPlace, order: &StartOrder, deputy: Option<&OwnedFd>) -> Result<DoorAnswer, DoorRefusal> {
        match place {
            JobPlace::Node(node) => {
                let seat = Seat::new(node as usize).ok_or(DoorRefusal::NoSuchNode)?;
                self.start_counted(seat, order, (deputy, 0))
            }
            JobPlace::Any => self.first_of(self.in_any_order(), order, (deputy, 0)),
            JobPlace::Least { most } => self.first_of(self.by_load(), order, (deputy, most as usize)),
        }
    }

    fn start_on(&self, seat: Seat, order: &StartOrder) -> Result<DoorAnswer, DoorRefusal> {
        let index = seat.index() as u32;
        if seat == self.own {
            return Ok(DoorAnswer::Here(index));
        }
        if !self.others.contains(seat) {
            return Err(DoorRefusal::NoSuchNode);
        }
        if self.lost.contains(seat) {
            return Err(DoorRefusal::LostNode);
        }
        self.peers.ask(seat, Start { order: &order.encode() }, 0, START_LIMIT)?;
        Ok(DoorAnswer::Started(index))
    }

    /// Counts first, so that those who ask at the same time are not more than there may be. `most` 0: any number.
    fn start_counted(
        &self,
        seat: Seat,
        order: &StartOrder,
        (deputy, most): (Option<&OwnedFd>, usize),
    ) -> Result<DoorAnswer, DoorRefusal> {
        if seat == self.own {
            return self.start_on(seat, order);
        }
        let counted = self.started.lock().count(seat, deputy, most).ok_or(DoorRefusal::Busy)?;
        self.start_on(seat, order).inspect_err(|_| self.started.lock().jobs.retain(|job| job.number != counted))
    }

    /// One that cannot be reached is passed over.
    fn first_of(
        &self,
        seats: Vec<Seat>,
        order: &StartOrder,
        limit: (Option<&OwnedFd>, usize),
    ) -> Result<DoorAnswer, DoorRefusal> {
        let mut refusal = DoorRefusal::Unreachable;
        for seat in seats {
            match self.start_counted(seat, order, limit) {
                Ok(answer) => return Ok(answer),
                Err(why) => refusal = why,
            }
        }
        Err(refusal)
    }

    fn all(&self) -> Vec<Seat> {
        Seat::all()
            .filter(|seat| *seat == self.own || (self.others.contains(*seat) && !self.lost.contains(*seat)))
            .collect()
    }

    fn in_any_order(&self) -> Vec<Seat> {
        let mut seats = self.all();
        let mut random = [0; 8];
        // Without chance it is the first.
        let _ = rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty());
        let by = u64::from_ne_bytes(random) as usize % seats.len().max(1);
        seats.rotate_left(by);
        seats
    }

    /// The one with the least to do first. Who does not say is left out, but for the own node.
    fn by_load(&self) -> Vec<Seat> {
        let loads = std::thread::scope(|scope| {
            let asked = |seat: Seat| scope.spawn(move || Some((self.load(seat)?, seat)));
            let asking: Vec<_> = self.all().into_iter().map(asked).collect();
            asking.into_iter().filter_map(|thread| thread.join().ok().flatten()).collect::<Vec<_>>()
        });
        let mut started = self.started.lock();
        started.forget_ended();
        let mut loads: Vec<(u64, bool, Seat)> = loads
            .into_iter()
            .map(|(Loaded { runnable, cpus }, seat)| {
                let recently =
                    started.jobs.iter().filter(|job| job.on == seat && job.at.elapsed() < RECENTLY).count() as u64;
                // In thousandths of a CPU's worth; of equals the own node, where it costs nothing.
                ((runnable + recently).saturating_mul(1000) / cpus.max(1), seat != self.own, seat)
            })
            .collect();
        loads.sort_by_key(|(load, is_far, seat)| (*load, *is_far, seat.index()));
        loads.into_iter().map(|(.., seat)| seat).collect()
    }

    fn load(&self, seat: Seat) -> Option<Loaded> {
        if seat == self.own {
            return Some(load_here());
        }
        self.peers.ask(seat, Load {}, 0, LOAD_LIMIT).ok().map(|(loaded, _)| loaded)
    }
}

/// What this node has to do now.
pub fn load_here() -> Loaded {
    let text = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let running = text.split(' ').nth(3).and_then(|tasks| tasks.split('/').next()?.parse::<u64>().ok());
    let cpus = std::thread::available_parallelism().map_or(1, |count| count.get() as u64);
    // Whoever reads runs.
    Loaded { runnable: running.unwrap_or(0).saturating_sub(1), cpus }
}

/// The way to this node's keeper, who starts far ends.
#[derive(Clone)]
pub struct Starter {
    socket: Arc<OwnedFd>,
    asked: Arc<Mutex<StartsAsked>>,
}

#[derive(Default)]
struct StartsAsked {
    last: u64,
    waiting: BTreeMap<u64, Request>,
    /// The keeper has said so: one of an earlier release closes the socket over an order with a root.
    takes_roots: bool,
}

impl Starter {
    /// Takes the keeper's answers on a thread of its own.
    ///
    /// # Errors
    /// No thread can be made.
    pub fn new(socket: OwnedFd) -> io::Result<Starter> {
        let starter = Starter { socket: Arc::new(socket), asked: Arc::default() };
        let heard = starter.clone();
        std::thread::Builder::new().name("starter".to_owned()).spawn(move || heard.hear())?;
        Ok(starter)
    }

    /// Answers when the far end runs, or will not.
    /// A node speaks for its own deputies alone.
    pub fn start(&self, request: Request, from: Option<Seat>, order: &[u8]) {
        let root = match StartOrder::decode(order) {
            Ok(order) if from == Some(order.origin) => order.root,
            Ok(_) => return request.fail(Errno::PERM),
            Err(BadRecord) => return request.fail(Errno::PROTO),
        };
        let mut asked = self.asked.lock();
        if root != JobRoot::Own && !asked.takes_roots {
            return request.fail(Errno::PROTO);
        }
        if asked.waiting.len() >= STARTING_MAX {
            return request.fail(Errno::AGAIN);
        }
        asked.last += 1;
        let number = asked.last;
        let packet = [&number.to_le_bytes(), order].concat();
        match sys::seqpacket::send(&*self.socket, &packet, &[] as &[OwnedFd]) {
            Ok(()) => {
                asked.waiting.insert(number, request);
            }
            Err(cause) if cause.kind() == io::ErrorKind::WouldBlock => request.fail(Errno::AGAIN),
            // The keeper is gone, and soon this process.
            Err(_) => request.fail(Errno::SHUTDOWN),
        }
    }

    fn hear(&self) {
        let mut packet = [0; 16];
        loop {
            match sys::seqpacket::receive(&*self.socket, &mut packet) {
                Ok(received) if received.bytes == packet.len() => self.answer(&packet),
                Ok(_) => return,
                Err(cause) if cause.kind() == io::ErrorKind::WouldBlock => {
                    let _ = poll(&mut [PollFd::new(&self.socket.as_fd(), PollFlags::IN)], None);
                }
                Err(_) => return,
            }
        }
    }

    fn answer(&self, packet: &[u8; 16]) {
        let mut words = packet.chunks_exact(8).filter_map(|word| word.try_into().ok()).map(u64::from_le_bytes);
        let (Some(number), Some(errno)) = (words.next(), words.next()) else { return };
        let mut asked = self.asked.lock();
        asked.takes_roots |= number == TAKES_ROOTS;
        let Some(request) = asked.waiting.remove(&number) else { return };
        drop(asked);
        match i32::try_from(errno).unwrap_or(libc::EIO) {
            0 => request.reply([0; 4], 0),
            errno => request.fail(Errno::from_raw_os_error(errno)),
        }
    }
}
