//! The way to the call gates of other nodes: a ring to each, and a thread that has it.
//!
//! A ring that ends takes with it what it carried: the state of every call asks again over the next one, if anybody
//! still waits (`proc_core::origin`). So nothing is kept here, and nothing is said late.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::Sender;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use abi::ring::{Completion, Submission};
use abi::{Endpoint, IpcError};
use ipc::{Arming, RingClient};
use libvos::{Connect, PortConnect, SharedPort, Size};
use parking_lot::Mutex;
use proc_core::order::{LifeNumber, ORDER_BYTES, OUTCOME_BYTES, Order, Outcome, RESULT_BYTES_MAX};
use proc_core::range::{Seat, Seats};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use vos_api::Operation;
use vos_api::calls::CarryOut;
use vos_api::session::{Epochs, Greeting, Hello, Progress};

use crate::calls::{News, NodeLinks};
use crate::receiver::Wake;

const ENTRIES: u32 = 64;
/// Of the arena: for each entry an order, and in its place what the outcome has for the caller's memory.
const PLACE_BYTES: u32 = 128;
const SIZE: Size = Size { entries: ENTRIES, arena_bytes: 64 << 10 };
const HELLO_TAG: u32 = u32::MAX;
/// Between attempts to get a ring.
const PAUSE: Duration = Duration::from_millis(20);
/// Where there is no link: nobody waits for a ring.
const PAUSE_WITHOUT_LINK: Duration = Duration::from_millis(250);
/// A server that does not answer a greeting is given another ring.
const GREETING_LIMIT: Duration = Duration::from_secs(2);

const _: () = assert!(ENTRIES * PLACE_BYTES <= SIZE.arena_bytes);
const _: () = assert!(ORDER_BYTES <= PLACE_BYTES as usize);
const _: () = assert!(RESULT_BYTES_MAX <= PLACE_BYTES as usize);

/// What is shared with a link's thread.
#[derive(Debug)]
struct Shared {
    /// `None`: there is no connection that greeted.
    waiting: Mutex<Option<VecDeque<Order>>>,
    event: OwnedFd,
    stop: AtomicBool,
}

/// The rings to all other nodes.
pub struct Rings {
    links: BTreeMap<Seat, (Arc<Shared>, Option<JoinHandle<()>>)>,
}

impl Rings {
    /// # Errors
    /// No thread or descriptor can be made.
    pub fn open(others: Seats, port: &SharedPort, news: &Sender<News>, wake: &Wake) -> io::Result<Rings> {
        let mut links = BTreeMap::new();
        for node in Seat::all().filter(|seat| others.contains(*seat)) {
            let event = sys::eventfd::create()?;
            let shared = Arc::new(Shared { waiting: Mutex::new(None), event, stop: AtomicBool::new(false) });
            let server = Endpoint::new(Endpoint::CALLS.number() + node.index() as u32);
            let server = server.ok_or(io::ErrorKind::InvalidInput)?;
            let link = Link {
                node,
                shared: Arc::clone(&shared),
                connect: PortConnect::new(port.clone(), server, SIZE),
                news: news.clone(),
                wake: wake.clone(),
                is_given_up: false,
            };
            let name = format!("link-{}", node.index());
            let thread = std::thread::Builder::new().name(name).spawn(move || link.run())?;
            links.insert(node, (shared, Some(thread)));
        }
        Ok(Rings { links })
    }
}

impl NodeLinks for Rings {
    fn send(&mut self, to: Seat, order: &Order) {
        let Some((shared, _)) = self.links.get(&to) else { return };
        if let Some(waiting) = &mut *shared.waiting.lock() {
            waiting.push_back(*order);
        }
        sys::eventfd::signal(&shared.event);
    }
}

impl Drop for Rings {
    fn drop(&mut self) {
        for (shared, _) in self.links.values() {
            shared.stop.store(true, Ordering::Relaxed);
            sys::eventfd::signal(&shared.event);
        }
        for (_, thread) in self.links.values_mut() {
            let _ = thread.take().map(JoinHandle::join);
        }
    }
}

struct Link {
    node: Seat,
    shared: Arc<Shared>,
    connect: PortConnect,
    news: Sender<News>,
    wake: Wake,
    /// Was said, and nothing else since.
    is_given_up: bool,
}

/// Why a ring is not used any more.
enum End {
    Lost(IpcError),
    /// The other side said what no call gate says, or did not take the greeting.
    Unwelcome(&'static str),
    Stopped,
}

impl From<IpcError> for End {
    fn from(error: IpcError) -> End {
        End::Lost(error)
    }
}

impl Link {
    fn run(mut self) {
        while !self.shared.stop.load(Ordering::Relaxed) {
            let end = match self.connect.connect() {
                Ok(ring) => self.use_ring(&ring),
                Err(error) => End::Lost(error),
            };
            let was_open = self.shared.waiting.lock().take().is_some();
            match end {
                End::Stopped => return,
                End::Lost(IpcError::NoLink) if !self.is_given_up => {
                    self.is_given_up = true;
                    self.tell(News::GivenUp(self.node));
                }
                End::Lost(_) | End::Unwelcome(_) if was_open => self.tell(News::Parted(self.node)),
                End::Lost(_) => (),
                End::Unwelcome(why) => tracing::debug!(node = self.node.index(), why, "no ring yet"),
            }
            let pause = if self.is_given_up { PAUSE_WITHOUT_LINK } else { PAUSE };
            let pause = Timespec::try_from(pause).ok();
            let _ = poll(&mut [PollFd::new(&self.shared.event, PollFlags::IN)], pause.as_ref());
            sys::eventfd::drain(&self.shared.event);
        }
    }

    fn tell(&self, news: News) {
        if self.news.send(news).is_err() {
            self.shared.stop.store(true, Ordering::Relaxed);
        }
    }

    fn use_ring(&mut self, ring: &RingClient) -> End {
        let life = match self.greet(ring) {
            Ok(life) => life,
            Err(end) => return end,
        };
        self.is_given_up = false;
        *self.shared.waiting.lock() = Some(VecDeque::new());
        self.wake.greeted(self.node, life);
        let mut free: Vec<u32> = (0..ENTRIES).collect();
        loop {
            match self.turn(ring, &mut free).and_then(|()| self.wait(ring)) {
                Ok(()) if self.shared.stop.load(Ordering::Relaxed) => return End::Stopped,
                Ok(()) => (),
                Err(end) => return end,
            }
        }
    }

    /// Gives the life of the node's executor.
    fn greet(&self, ring: &RingClient) -> Result<LifeNumber, End> {
        let mut session = [0; 8];
        rustix::rand::getrandom(&mut session, rustix::rand::GetRandomFlags::empty())
            .map_err(|_| End::Unwelcome("no random number"))?;
        let session = u64::from_le_bytes(session).max(1);
        let speaks = versions::SERVERS.speaks;
        let hello = Hello { session, progress: Progress::default(), epochs: Epochs::default(), speaks }.encode();
        let (op, flags, args) = (hello.op, hello.flags, hello.args);
        let hello = Submission { tag: HELLO_TAG, op, flags, args, ..Submission::default() };
        ring.submit(&hello).map_err(|_| End::Unwelcome("a ring without room"))?;
        ring.publish();
        let until = Instant::now() + GREETING_LIMIT;
        loop {
            match ring.poll()? {
                Some(Completion { tag: HELLO_TAG, status: 0, results, .. }) => {
                    let greeting = Greeting::from(results);
                    let is_known = greeting.version().is_some_and(|version| versions::SERVERS.speaks.includes(version));
                    return if is_known && greeting.service != 0 {
                        Ok(LifeNumber(greeting.service))
                    } else {
                        Err(End::Unwelcome("another protocol"))
                    };
                }
                Some(_) => return Err(End::Unwelcome("the greeting was refused")),
                None if Instant::now() >= until => return Err(End::Unwelcome("the greeting was not answered")),
                None if self.shared.stop.load(Ordering::Relaxed) => return Err(End::Stopped),
                None => self.wait(ring)?,
            }
        }
    }

    /// Sends what waits, as long as there is room, and takes what was answered.
    fn turn(&self, ring: &RingClient, free: &mut Vec<u32>) -> Result<(), End> {
        while let Some(completion) = ring.poll()? {
            free.push(self.take(ring, &completion)?);
        }
        let mut is_new = false;
        while let Some(tag) = free.last().copied() {
            let order = self.shared.waiting.lock().as_mut().and_then(VecDeque::pop_front);
            let Some(order) = order else { break };
            free.pop();
            let bytes = order.encode();
            let at = tag * PLACE_BYTES;
            let asked = CarryOut { order: &bytes }.encode();
            if ring.arena().copy_in(at as usize, &bytes).is_err() {
                return Err(End::Unwelcome("a ring without memory"));
            }
            let submission = Submission {
                tag,
                op: asked.op,
                flags: asked.flags,
                args: asked.args,
                arena_offset: at,
                out_bytes: ORDER_BYTES as u32,
                in_capacity: RESULT_BYTES_MAX as u32,
                ..Submission::default()
            };
            ring.submit(&submission).map_err(|_| End::Unwelcome("a ring without room"))?;
            is_new = true;
        }
        if is_new {
            ring.publish();
        }
        Ok(())
    }

    fn take(&self, ring: &RingClient, completion: &Completion) -> Result<u32, End> {
        if completion.status != 0 || completion.tag >= ENTRIES {
            return Err(End::Unwelcome("an order was not taken"));
        }
        let mut data = vec![0; (completion.in_bytes as usize).min(RESULT_BYTES_MAX)];
        if ring.arena().copy_out((completion.tag * PLACE_BYTES) as usize, &mut data).is_err() {
            return Err(End::Unwelcome("a ring without memory"));
        }
        let words = completion.results.iter().flat_map(|word| word.to_le_bytes());
        let bytes: Vec<u8> = words.take(OUTCOME_BYTES).chain(data).collect();
        let outcome = Outcome::decode(&bytes).map_err(|_| End::Unwelcome("an answer that is none"))?;
        self.tell(News::Outcome { node: self.node, outcome });
        Ok(completion.tag)
    }

    /// Until the ring or somebody here has something new.
    fn wait(&self, ring: &RingClient) -> Result<(), End> {
        if let Arming::Ready = ring.arm() {
            ring.disarm();
            return Ok(());
        }
        let limit = Timespec::try_from(GREETING_LIMIT).ok();
        let (ring_fd, event) = (ring.fd(), &self.shared.event);
        let mut ready = [PollFd::new(&ring_fd, PollFlags::IN), PollFd::new(event, PollFlags::IN)];
        let _ = poll(&mut ready, limit.as_ref());
        ring.disarm();
        sys::eventfd::drain(event);
        ring.is_closed().map_or(Ok(()), |error| Err(End::Lost(error)))
    }
}
