//! How a session gets a ring, again and again.
//!
//! Opening a ring waits until the server is bound, which may take as long as a server takes to restart. It therefore
//! happens on a helper thread, which exists only while there is no ring, hands the ring over and writes to an
//! eventfd that event loops poll.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use abi::IpcError;
use ipc::RingClient;
use rustix::event::{EventfdFlags, eventfd};

/// How long one attempt may block; bounds how long dropping a session takes.
pub const ATTEMPT: Duration = Duration::from_millis(100);
/// Pause after an attempt that failed at once, doubled each time up to [`PAUSE_MAX`].
const PAUSE_MIN: Duration = Duration::from_millis(1);
const PAUSE_MAX: Duration = Duration::from_millis(10);

/// Opens rings to one server. Every call is one attempt that waits for the server at most about [`ATTEMPT`].
pub trait Connect: Send {
    fn connect(&mut self) -> Result<RingClient, IpcError>;
}

impl<F: FnMut() -> Result<RingClient, IpcError> + Send> Connect for F {
    fn connect(&mut self) -> Result<RingClient, IpcError> {
        self()
    }
}

/// Written when a ring was opened in the background.
#[derive(Clone)]
pub(crate) struct Poke(Arc<OwnedFd>);

impl Poke {
    pub(crate) fn new() -> io::Result<Poke> {
        Ok(Poke(Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?)))
    }

    pub(crate) fn set(&self) {
        // Full means set already.
        let _ = rustix::io::write(&*self.0, &1_u64.to_ne_bytes());
    }

    pub(crate) fn clear(&self) {
        let _ = rustix::io::read(&*self.0, &mut [0_u8; 8]);
    }
}

impl AsFd for Poke {
    fn as_fd(&self) -> std::os::fd::BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// A ring that is being opened.
pub(crate) struct Connecting {
    stop: Arc<AtomicBool>,
    result: Receiver<Opened>,
    thread: Option<JoinHandle<()>>,
}

type Opened = (RingClient, Box<dyn Connect>);

impl Connecting {
    /// `pause`: before the first attempt, and no longer than one.
    pub(crate) fn start(connect: Box<dyn Connect>, poke: Poke, pause: Duration) -> io::Result<Connecting> {
        let stop = Arc::new(AtomicBool::new(false));
        let (send, result) = sync_channel(1);
        let stopped = Arc::clone(&stop);
        let run = move || {
            std::thread::sleep(pause.min(ATTEMPT));
            if let Some(opened) = open(connect, &stopped) {
                let _ = send.send(opened);
                poke.set();
            }
        };
        let thread = std::thread::Builder::new().name("connect".to_owned()).spawn(run)?;
        Ok(Connecting { stop, result, thread: Some(thread) })
    }

    /// The ring, once it is there.
    pub(crate) fn poll(&mut self) -> Option<Opened> {
        self.result.try_recv().ok()
    }
}

impl Drop for Connecting {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn open(mut connect: Box<dyn Connect>, stop: &AtomicBool) -> Option<Opened> {
    let mut pause = PAUSE_MIN;
    while !stop.load(Ordering::Relaxed) {
        let begun = Instant::now();
        match connect.connect() {
            Ok(ring) => return Some((ring, connect)),
            Err(error) => tracing::debug!(%error, "no ring yet"),
        }
        // An attempt that waited for the server needs no pause.
        if begun.elapsed() < PAUSE_MAX {
            std::thread::park_timeout(pause);
            pause = (pause * 2).min(PAUSE_MAX);
        }
    }
    None
}
