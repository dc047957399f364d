//! Reads of a file that wait for its medium, into the memory of clients, without the loop waiting and, where the kernel
//! lets this process have an `io_uring`, without a thread for each.
//!
//! With the ring the loop begins what its turn took in one call ([`FileReader::submit`]), and one thread answers what
//! has ended; without it, and beyond what may be under way at a time, each read waits in a thread of the pool. A read
//! of the ring that brought less than all, for whatever reason, is done once more by the pool, whose way tells why: so
//! there is one way in which a read fails.

use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use ipc::{NotBegun, ReadRing};

use crate::pool::{AbortOnPanic, PoolError, WorkerPool};
use crate::request::Room;
use crate::service::Handle;

/// Reads that a ring has under way, at most.
const UNDER_WAY_MAX: usize = 256;
/// How often the kernel is asked to begin reads for which it has no memory, and what lies between.
const TRIES: u32 = 1000;
const BETWEEN_TRIES: Duration = Duration::from_millis(1);

/// What follows a read: told that all was read, or else it reads itself and may wait.
type Then = Box<dyn FnOnce(bool) + Send>;

/// How reads wait.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ReadBy {
    /// In an `io_uring`, where the kernel allows one.
    Ring,
    /// In a thread each.
    Threads,
}

/// Reads of one file.
pub struct FileReader {
    ring: Option<Ring>,
    pool: Arc<WorkerPool>,
    handle: Handle,
}

struct Ring {
    reads: Arc<ReadRing<Then>>,
    ending: Arc<AtomicBool>,
    answering: JoinHandle<()>,
    /// Reads were taken that are not begun.
    is_behind: AtomicBool,
}

impl FileReader {
    /// Of `file`, if there is one and the kernel allows a ring; else by `pool` alone.
    pub fn new(file: Option<BorrowedFd<'_>>, read_by: ReadBy, pool: &Arc<WorkerPool>, handle: &Handle) -> FileReader {
        let ring = file.filter(|_| read_by == ReadBy::Ring).and_then(|file| match Ring::new(file, pool, handle) {
            Ok(ring) => Some(ring),
            Err(error) => {
                tracing::info!(%error, "no io_uring: reads wait in threads");
                None
            }
        });
        FileReader { ring, pool: Arc::clone(pool), handle: handle.clone() }
    }

    /// Reads what lies at `offset` of the file to `room`, with the next [`FileReader::submit`] at the latest. `then` is
    /// told that all of it was read; if not, it reads itself, in a thread that may wait.
    pub fn read(
        &self,
        room: Option<Room>,
        offset: u64,
        then: impl FnOnce(bool) + Send + 'static,
    ) -> Result<(), PoolError> {
        let then: Then = Box::new(then);
        let then = match (&self.ring, room) {
            (Some(ring), Some(Room { arena, at, bytes })) => {
                match ring.reads.begin(&arena, at, bytes as usize, offset, then) {
                    Ok(()) => {
                        ring.is_behind.store(true, Ordering::Relaxed);
                        return Ok(());
                    }
                    Err(NotBegun::Full(then) | NotBegun::OutOfArena(then)) => then,
                }
            }
            _ => then,
        };
        self.pool.run(move || then(false))
    }

    /// Begins what was taken. A kernel that cannot begin reads for a second ends the server: its successor is asked
    /// again.
    pub fn submit(&self) {
        let Some(ring) = self.ring.as_ref().filter(|ring| ring.is_behind.swap(false, Ordering::Relaxed)) else {
            return;
        };
        for _ in 0..TRIES {
            match ring.reads.submit() {
                // What has ended meanwhile needs no thread to wake.
                Ok(()) => return answer_ended(&ring.reads, &self.pool),
                Err(error) if may_pass(&error) => std::thread::sleep(BETWEEN_TRIES),
                Err(error) => return self.give_up(&error),
            }
        }
        self.give_up(&io::ErrorKind::OutOfMemory.into());
    }

    fn give_up(&self, error: &io::Error) {
        tracing::error!(%error, "reads cannot be begun any more; the server ends");
        self.handle.stop();
    }

    /// Returns when all that was taken has ended, or is the pool's.
    pub fn end(&mut self) {
        let Some(ring) = self.ring.take() else { return };
        ring.ending.store(true, Ordering::Release);
        if ring.reads.wake().is_ok() {
            let _ = ring.answering.join();
        }
    }
}

impl Drop for FileReader {
    fn drop(&mut self) {
        self.end();
    }
}

impl Ring {
    fn new(file: BorrowedFd<'_>, pool: &Arc<WorkerPool>, handle: &Handle) -> io::Result<Ring> {
        let reads = Arc::new(ReadRing::new(file, UNDER_WAY_MAX)?);
        let ending = Arc::new(AtomicBool::new(false));
        let answer = {
            let (reads, ending, pool, handle) = (reads.clone(), ending.clone(), pool.clone(), handle.clone());
            move || answer(&reads, &ending, &pool, &handle)
        };
        let answering = std::thread::Builder::new().name("reads".to_owned()).spawn(answer)?;
        Ok(Ring { reads, ending, answering, is_behind: AtomicBool::new(false) })
    }
}

fn answer(reads: &ReadRing<Then>, ending: &AtomicBool, pool: &WorkerPool, handle: &Handle) {
    let _abort = AbortOnPanic;
    while !(ending.load(Ordering::Acquire) && reads.is_empty()) {
        if let Err(error) = reads.wait() {
            if may_pass(&error) {
                std::thread::sleep(BETWEEN_TRIES);
                continue;
            }
            tracing::error!(%error, "nobody hears of reads that have ended; the server ends");
            return handle.stop();
        }
        answer_ended(reads, pool);
    }
}

fn answer_ended(reads: &ReadRing<Then>, pool: &WorkerPool) {
    let mut ended = Vec::new();
    reads.take(&mut ended);
    for (then, is_read) in ended {
        if is_read {
            then(true);
        } else if let Err(error) = pool.run(move || then(false)) {
            tracing::error!(%error, "a read was refused");
        }
    }
}

/// The kernel has no memory at the moment.
fn may_pass(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EAGAIN | libc::EBUSY | libc::ENOMEM))
}
