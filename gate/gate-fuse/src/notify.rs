//! The threads that tell the kernel to drop what it keeps.
//!
//! Dropping may wait in the kernel for a page or directory that is locked by a request which the serving thread must
//! answer first; so it is never done by that thread. There are several, because one that waits must not keep others
//! waiting whose release it may wait for. They serve nothing, own nothing and have one queue in and one out, both
//! bounded by [`JOBS_MAX`] (the gate asks for events only while there is room).
//!
//! Not here: when a recall counts as carried out although a thread hangs ([`crate::recall`]).

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, SyncSender, TrySendError, channel, sync_channel};

use parking_lot::Mutex;
use rustix::event::{EventfdFlags, eventfd};
use rustix::io::Errno;
use sys::without::{Feature, without};
use zerocopy::IntoBytes;

use crate::kernel::{self, NotifyInvalEntry, NotifyInvalInode, NotifyStore, OutHeader};
use crate::recall::Stage;

pub const JOBS_MAX: usize = 4096;
/// Jobs that may hang at a time.
const THREADS: usize = 8;

#[derive(Debug, PartialEq, Eq)]
pub enum Job {
    Inode {
        recall: u64,
        ino: u64,
        /// Byte ranges that our own reads and writes in flight may have locked: they come last.
        busy: Vec<(u64, u64)>,
        /// The directory in which the inode was found lately. If the kernel does not know the inode yet, a look-up
        /// there may be about to make it known with what we told before the recall; it holds the directory's lock.
        found_in: Option<u64>,
        /// How long the file is about to be, at least.
        bytes: Option<u64>,
        /// Names in this directory that are covered by the lease no more.
        names: Vec<Vec<u8>>,
    },
    Name {
        recall: u64,
        parent: u64,
        name: Vec<u8>,
    },
    /// Names of a directory, without a recall.
    Names {
        parent: u64,
        names: Vec<Vec<u8>>,
    },
    /// Pages and attributes, without a recall: all, or those with these bytes.
    Drop {
        ino: u64,
        bytes: Option<(u64, u64)>,
        /// Without these.
        but: Option<(u64, u64)>,
        /// The request that is answered after it.
        key: Option<u64>,
    },
    /// All of these, and the names by directory.
    Everything {
        recall: Option<u64>,
        inos: Vec<u64>,
        /// Those of which our own reads and writes in flight may have pages locked: they come last.
        busy: Vec<u64>,
        names: Vec<(u64, Vec<Vec<u8>>)>,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum News {
    Reached {
        recall: u64,
        stage: Stage,
    },
    /// [`Job::Drop`] was done.
    Dropped {
        ino: u64,
        key: Option<u64>,
    },
}

pub struct Notifier {
    jobs: SyncSender<Job>,
    news: Receiver<News>,
    bell: Arc<OwnedFd>,
}

/// What a thread has.
struct Worker {
    fuse: Arc<OwnedFd>,
    todo: Arc<Mutex<Receiver<Job>>>,
    news: Sender<News>,
    bell: Arc<OwnedFd>,
}

impl Notifier {
    /// `fuse` is written to; the threads end with the `Notifier`, once no notification hangs.
    pub fn start(fuse: OwnedFd) -> io::Result<Notifier> {
        let (jobs, todo) = sync_channel(JOBS_MAX);
        let (sender, news) = channel();
        let bell = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        let (fuse, todo) = (Arc::new(fuse), Arc::new(Mutex::new(todo)));
        for _ in 0..THREADS {
            let (fuse, todo, news, bell) = (Arc::clone(&fuse), Arc::clone(&todo), sender.clone(), Arc::clone(&bell));
            let worker = Worker { fuse, todo, news, bell };
            std::thread::Builder::new().name("notifier".to_owned()).spawn(move || worker.run())?;
        }
        Ok(Notifier { jobs, news, bell })
    }

    /// `false` when the queue is full.
    pub fn give(&self, job: Job) -> bool {
        match self.jobs.try_send(job) {
            Ok(()) => true,
            Err(TrySendError::Full(_) | TrySendError::Disconnected(_)) => false,
        }
    }

    /// What was done since.
    pub fn news(&self) -> Option<News> {
        self.news.try_recv().ok()
    }

    /// Readable when [`Notifier::news`] has something.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }

    pub fn quiet(&self) {
        let _ = rustix::io::read(&*self.bell, &mut [0; 8]);
    }
}

impl Worker {
    fn run(&self) {
        loop {
            // One thread at a time waits for a job, the others for their turn.
            let job = self.todo.lock().recv();
            let Ok(job) = job else { return };
            self.carry_out(job);
        }
    }

    fn carry_out(&self, job: Job) {
        let fuse = &*self.fuse;
        match job {
            Job::Inode { recall, ino, busy, found_in, bytes, names } => {
                let tell = |stage| self.tell(News::Reached { recall, stage });
                drop_inode(fuse, ino, &busy, found_in, bytes, tell);
                tell(Stage::Pages);
                expire_names(fuse, ino, &names);
                tell(Stage::Done);
            }
            Job::Name { recall, parent, name } => {
                expire_names(fuse, parent, &[name]);
                self.tell(News::Reached { recall, stage: Stage::Done });
            }
            Job::Everything { recall, inos, busy, names } => {
                for ino in &busy {
                    let _ = drop_range(fuse, *ino, -1, 0);
                }
                for ino in inos.into_iter().chain(busy) {
                    drop_inode(fuse, ino, &[], None, None, |_| ());
                }
                if let Some(recall) = recall {
                    self.tell(News::Reached { recall, stage: Stage::Pages });
                }
                for (parent, names) in names {
                    expire_names(fuse, parent, &names);
                }
                if let Some(recall) = recall {
                    self.tell(News::Reached { recall, stage: Stage::Done });
                }
            }
            Job::Names { parent, names } => expire_names(fuse, parent, &names),
            Job::Drop { ino, bytes, but, key } => {
                match bytes {
                    None if drop_attributes(fuse, ino) => drop_all_but(fuse, ino, but.as_slice()),
                    None => {}
                    Some((first, end)) => _ = drop_range(fuse, ino, first as i64, end.saturating_sub(first) as i64),
                }
                self.tell(News::Dropped { ino, key });
            }
        }
    }

    fn tell(&self, news: News) {
        if self.news.send(news).is_ok() {
            // Full means that it rings already.
            let _ = rustix::io::write(&*self.bell, &1_u64.to_ne_bytes());
        }
    }
}

/// Attributes alone: takes no lock. `false`: the kernel does not know the inode.
pub fn drop_attributes(fuse: impl AsFd, ino: u64) -> bool {
    drop_range(fuse, ino, -1, 0) != Err(Errno::NOENT)
}

fn drop_inode(
    fuse: &OwnedFd,
    ino: u64,
    busy: &[(u64, u64)],
    found_in: Option<u64>,
    grows_to: Option<u64>,
    tell: impl Fn(Stage),
) {
    if !drop_attributes(fuse, ino) {
        let Some(parent) = found_in else { return };
        tell(Stage::Settling);
        // Any name does: what counts is that the directory's lock was ours for a moment.
        drop_name(fuse, parent, b"\x01");
        if drop_range(fuse, ino, -1, 0).is_err() {
            return;
        }
    }
    drop_all_but(fuse, ino, busy);
    if !busy.is_empty() {
        tell(Stage::Most);
    }
    if let Some(bytes) = grows_to {
        raise_size(fuse, ino, bytes);
    }
    if !busy.is_empty() {
        let _ = drop_range(fuse, ino, 0, 0);
    }
}

/// All pages but those with these bytes.
fn drop_all_but(fuse: &OwnedFd, ino: u64, busy: &[(u64, u64)]) {
    for (first, end) in gaps(busy) {
        let bytes = end.map_or(0, |end| end.saturating_sub(first) as i64);
        if drop_range(fuse, ino, first as i64, bytes).is_err() {
            return;
        }
    }
}

/// Makes the kernel take the file for at least so long, without asking: some system calls go by what it knows. The
/// kernel does that when a byte is stored after the end, before it waits for the page. The byte means nothing and goes
/// with its page.
fn raise_size(fuse: &OwnedFd, ino: u64, bytes: u64) {
    let Some(last) = bytes.checked_sub(1) else { return };
    let head = NotifyStore { ino, offset: last, size: 1, padding: 0 };
    if send(fuse, kernel::notify::STORE, head.as_bytes(), &[0]).is_ok() {
        let _ = drop_range(fuse, ino, last as i64, 1);
    }
}

/// What lies between the busy ranges, whole pages; the last one has no end.
fn gaps(busy: &[(u64, u64)]) -> Vec<(u64, Option<u64>)> {
    const PAGE: u64 = 4096;
    let mut sorted: Vec<_> = busy.to_vec();
    sorted.sort_unstable();
    let mut gaps = Vec::with_capacity(sorted.len() + 1);
    let mut at = 0;
    for (first, end) in sorted {
        let first = first / PAGE * PAGE;
        if first > at {
            gaps.push((at, Some(first)));
        }
        at = at.max(end.checked_next_multiple_of(PAGE).unwrap_or(u64::MAX));
    }
    if at < i64::MAX as u64 {
        gaps.push((at, None));
    }
    gaps
}

fn drop_range(fuse: impl AsFd, ino: u64, off: i64, len: i64) -> Result<(), Errno> {
    send(fuse, kernel::notify::INVAL_INODE, NotifyInvalInode { ino, off, len }.as_bytes(), &[])
}

/// Asks for every request that has no answer. A kernel that cannot, or has nothing to send, says so or does nothing.
pub fn resend(fuse: impl AsFd) {
    if !without(Feature::FuseResend) {
        let _ = send(fuse, kernel::notify::RESEND, &[], &[]);
    }
}

/// The kernel asks again for these names before it uses them; what is mounted or open there stays (before Linux 6.2: it
/// drops them).
fn expire_names(fuse: &OwnedFd, parent: u64, names: &[Vec<u8>]) {
    let flags = if without(Feature::FuseExpire) { 0 } else { kernel::notify::EXPIRE_ONLY };
    for name in names {
        tell_name(fuse, parent, name, flags);
    }
}

fn drop_name(fuse: &OwnedFd, parent: u64, name: &[u8]) {
    tell_name(fuse, parent, name, 0);
}

fn tell_name(fuse: &OwnedFd, parent: u64, name: &[u8], flags: u32) {
    let head = NotifyInvalEntry { parent, namelen: name.len() as u32, flags };
    let _ = send(fuse, kernel::notify::INVAL_ENTRY, head.as_bytes(), &[name, b"\0"].concat());
}

/// Writes one notification. `ENOENT` says that the kernel keeps nothing of the kind.
pub fn send(fuse: impl AsFd, code: i32, head: &[u8], tail: &[u8]) -> Result<(), Errno> {
    let bytes = size_of::<OutHeader>() + head.len() + tail.len();
    let header = OutHeader { len: bytes as u32, error: code, unique: 0 };
    let message = [header.as_bytes(), head, tail].concat();
    loop {
        match rustix::io::write(&fuse, &message) {
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno),
            Ok(_) => return Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gaps_leave_out_the_pages_of_writes_in_flight() {
        assert_eq!(gaps(&[]), [(0, None)]);
        assert_eq!(gaps(&[(0, 10)]), [(4096, None)]);
        assert_eq!(gaps(&[(20_000, 20_001), (5000, 9000)]), [(0, Some(4096)), (12_288, Some(16_384)), (20_480, None)]);
        assert_eq!(gaps(&[(4096, u64::MAX)]), [(0, Some(4096))]);
    }
}
