//! The engine's one thread: wakes watchers when the file changed, and ends leases that are overdue.

use std::fs::{File, OpenOptions};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::fs::inotify;

use super::{Shared, file_error};
use crate::boot_clock;
use crate::engine::EngineError;

/// How late a change is noticed when its writer died between the commit and the write to `changed`.
pub const BACKSTOP: Duration = Duration::from_secs(1);
/// Between attempts to end a lease while the file is busy or broken.
const RETRY: Duration = Duration::from_millis(200);

/// Counts changes; watchers wait for the count to move.
pub struct Hub {
    path: PathBuf,
    changed: File,
    count: Mutex<u64>,
    moved: Condvar,
}

impl Hub {
    pub fn open(volatile_dir: &Path) -> Result<Hub, EngineError> {
        let path = volatile_dir.join("changed");
        let changed = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(&path)
            .map_err(|error| file_error("cannot make", &path, error))?;
        Ok(Hub { path, changed, count: Mutex::new(0), moved: Condvar::new() })
    }

    /// Tells everybody, here and in other processes.
    pub fn changed(&self) {
        // Only the event matters; without it others notice by the backstop.
        if let Err(error) = self.changed.write_all_at(b"c", 0) {
            tracing::warn!(path = %self.path.display(), %error, "cannot announce a change");
        }
        self.wake();
    }

    pub fn wake(&self) {
        *self.count.lock() += 1;
        self.moved.notify_all();
    }

    pub fn count(&self) -> u64 {
        *self.count.lock()
    }

    /// Returns when the count is no longer `seen`, or at `until`.
    pub fn wait(&self, seen: u64, until: Instant) {
        let mut count = self.count.lock();
        while *count == seen {
            let Some(left) = until.checked_duration_since(Instant::now()) else { return };
            self.moved.wait_for(&mut count, left);
        }
    }
}

pub struct Pump {
    stopping: Arc<AtomicBool>,
    bell: Arc<OwnedFd>,
    thread: Option<JoinHandle<()>>,
}

impl Pump {
    pub fn start(shared: Arc<Shared>) -> Result<Pump, EngineError> {
        let path = shared.hub.path.clone();
        let events = inotify::init(inotify::CreateFlags::NONBLOCK | inotify::CreateFlags::CLOEXEC)
            .map_err(|error| file_error("cannot watch", &path, error))?;
        inotify::add_watch(&events, &path, inotify::WatchFlags::MODIFY)
            .map_err(|error| file_error("cannot watch", &path, error))?;
        let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(|error| file_error("cannot watch", &path, error))?;
        let (stopping, bell) = (Arc::new(AtomicBool::new(false)), Arc::new(bell));
        let (also_stopping, also_bell) = (Arc::clone(&stopping), Arc::clone(&bell));
        let thread = std::thread::Builder::new()
            .name("engine".to_owned())
            .spawn(move || run(&shared, &events, &also_bell, &also_stopping))
            .map_err(|error| file_error("cannot start a thread for", &path, error))?;
        Ok(Pump { stopping, bell, thread: Some(thread) })
    }

    pub fn stop(&mut self) {
        self.stopping.store(true, Ordering::Release);
        // A full counter is a bell that rings already.
        let _ = rustix::io::write(&*self.bell, &1_u64.to_ne_bytes());
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the engine's thread had panicked");
        }
    }
}

fn run(shared: &Shared, events: &OwnedFd, bell: &OwnedFd, stopping: &AtomicBool) {
    while !stopping.load(Ordering::Acquire) {
        let wait = match shared.reap() {
            Ok(next) => next.map_or(BACKSTOP, |deadline| deadline.saturating_sub(boot_clock()).min(BACKSTOP)),
            Err(error) => {
                tracing::warn!(%error, "leases cannot be looked after");
                RETRY
            }
        };
        // Rounded up: waking a moment early would spin until the deadline.
        let wait = wait + Duration::from_millis(1);
        let timeout = Timespec { tv_sec: wait.as_secs().try_into().unwrap_or(1), tv_nsec: wait.subsec_nanos().into() };
        let mut fds = [PollFd::new(events, PollFlags::IN), PollFd::new(bell, PollFlags::IN)];
        // A signal ends it early, which costs one more look.
        let _ = poll(&mut fds, Some(&timeout));
        drain(events);
        shared.hub.wake();
    }
}

fn drain(events: &OwnedFd) {
    let mut buffer = [0_u8; 4096];
    while rustix::io::read(events, &mut buffer).is_ok_and(|count| count > 0) {}
}
