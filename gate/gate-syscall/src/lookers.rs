//! Who looks into processes, which this gate may not: children of the keeper (`keeper/src/looks.rs` is the other side).

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use gate_proc::Look;
use parking_lot::Mutex;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::pipe::{PipeFlags, pipe_with};
use sys::procfs::Inside;

/// The keeper answers at once, and a looker dies of its own limit of a second before.
const PATIENCE: Duration = Duration::from_secs(2);
/// Lookers that wait for the next question. Each is there for one thread at a time.
const WAITING_MAX: usize = 4;

/// One that was not asked for a while is gone: then another is asked for.
pub struct Lookers {
    keeper: Mutex<OwnedFd>,
    waiting: Mutex<Vec<OwnedFd>>,
}

impl Lookers {
    /// Over a socket to the keeper.
    pub fn new(keeper: OwnedFd) -> Lookers {
        Lookers { keeper: Mutex::new(keeper), waiting: Mutex::default() }
    }

    fn new_one(&self) -> rustix::io::Result<OwnedFd> {
        let keeper = self.keeper.lock();
        let failed = |cause: io::Error| Errno::from_io_error(&cause).unwrap_or(Errno::IO);
        sys::seqpacket::send(&*keeper, &[0], &[] as &[OwnedFd]).map_err(failed)?;
        await_readable(keeper.as_fd(), Instant::now() + PATIENCE)?;
        let mut packet = [0; 2];
        let received = sys::seqpacket::receive(&*keeper, &mut packet).map_err(failed)?;
        received.descriptors.into_iter().next().ok_or(Errno::AGAIN)
    }

    /// `None`: it is gone, before it saw anything.
    fn ask(
        looker: &OwnedFd,
        process: BorrowedFd<'_>,
        what: Inside,
        bytes_max: usize,
    ) -> rustix::io::Result<Option<Vec<u8>>> {
        let (from, to) = pipe_with(PipeFlags::CLOEXEC)?;
        if sys::seqpacket::send(looker, &what.encode(), &[process, to.as_fd()]).is_err() {
            return Ok(None);
        }
        drop(to);
        let until = Instant::now() + PATIENCE;
        let (mut from, mut said, mut piece) = (File::from(from), Vec::new(), [0; 64 << 10]);
        loop {
            await_readable(from.as_fd(), until)?;
            match from.read(&mut piece) {
                Ok(0) => break,
                Ok(count) => said.extend(piece.get(..count).unwrap_or_default()),
                Err(cause) if cause.kind() == io::ErrorKind::Interrupted => (),
                Err(_) => return Err(Errno::IO),
            }
            if said.len() > bytes_max.saturating_add(4) {
                break;
            }
        }
        let Some((errno, seen)) = said.split_first_chunk::<4>() else { return Ok(None) };
        match i32::from_le_bytes(*errno) {
            0 => Ok(Some(seen.get(..bytes_max).unwrap_or(seen).to_vec())),
            errno => Err(Errno::from_raw_os_error(errno)),
        }
    }
}

impl Look for Lookers {
    fn look(&self, process: BorrowedFd<'_>, what: Inside, bytes_max: usize) -> rustix::io::Result<Vec<u8>> {
        // The first may have gone in this moment; a new one is gone only if the process let it wait too long.
        for _ in 0..2 {
            let waiting = self.waiting.lock().pop();
            let looker = waiting.map_or_else(|| self.new_one(), Ok)?;
            let seen = Lookers::ask(&looker, process, what, bytes_max);
            if let Ok(None) = seen {
                continue;
            }
            let mut waiting = self.waiting.lock();
            if waiting.len() < WAITING_MAX {
                waiting.push(looker);
            }
            return seen.map(Option::unwrap_or_default);
        }
        Err(Errno::IO)
    }
}

fn await_readable(from: BorrowedFd<'_>, until: Instant) -> rustix::io::Result<()> {
    loop {
        let left = until.saturating_duration_since(Instant::now());
        let left = Timespec::try_from(left).map_err(|_| Errno::IO)?;
        match poll(&mut [PollFd::new(&from, PollFlags::IN)], Some(&left)) {
            Ok(0) => return Err(Errno::IO),
            Ok(_) => return Ok(()),
            Err(Errno::INTR) => (),
            Err(cause) => return Err(cause),
        }
    }
}
