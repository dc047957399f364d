//! What only who may trace a process sees of it: the call gate, which may not, decides who is shown it and has a
//! *looker* look, a child in the container's user namespace with two capabilities, CAP_SYS_PTRACE and
//! CAP_DAC_READ_SEARCH.
//!
//! ```text
//! call gate ── one byte ─▶ keeper        ◀─ one byte, with a socket to a new looker; without: there are enough
//! call gate ── what (8 bytes, `sys::procfs::Inside`), with the process's directory and a pipe ─▶ looker
//!           ◀─ the pipe ── errno, 0 when it saw something (4 bytes), and what it saw
//! ```
//!
//! A looker serves one question after the other until its socket ends or nobody asks. It may wait for a page that the
//! file gate has to bring, so each question has a limit, behind which it dies: the pipe then ends before the errno.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{WaitId, WaitIdOptions, waitid};
use rustix::thread::CapabilitySet;
use sys::child::{Forked, Parentage, exit_now, fork};
use sys::procfs::Inside;

use crate::keeper::Keeper;
use crate::memory::confine;
use crate::poll::{Interest, Poll, Source, Watched};

/// As many as questions are answered at a time, and those that died and are not buried.
const LOOKERS_MAX: usize = 16;
const TURN_MAX: usize = 16;
const LOOK_LIMIT: Duration = Duration::from_secs(1);
const IDLE: Timespec = Timespec { tv_sec: 10, tv_nsec: 0 };
const BYTES_MAX: usize = 1 << 20;

#[derive(Default)]
pub struct LookDoor {
    /// To the call gate of today.
    socket: Option<Watched>,
    lookers: BTreeMap<u32, Watched>,
}

impl LookDoor {
    /// For a call gate that begins.
    pub fn begin(&mut self, poll: &Poll) -> io::Result<OwnedFd> {
        poll.open_door(&mut self.socket, Source::Looks)
    }
}

impl Keeper {
    pub fn hear_looks(&mut self) {
        for _ in 0..TURN_MAX {
            let Some(socket) = &self.looks.socket else { return };
            let mut packet = [0; 2];
            let heard = sys::seqpacket::receive(socket.as_fd(), &mut packet);
            match heard {
                Ok(received) if received.bytes == 1 => (),
                Err(cause) if cause.kind() == io::ErrorKind::WouldBlock => return,
                // Its end, or what no call gate says.
                _ => return self.looks.socket = None,
            }
            let looker = self.begin_looker().inspect_err(|cause| tracing::warn!(%cause, "nobody looks into processes"));
            let Some(socket) = &self.looks.socket else { return };
            let given: Vec<OwnedFd> = looker.ok().flatten().into_iter().collect();
            // One that does not read is none.
            if sys::seqpacket::send(socket, &[0], &given).is_err() {
                self.looks.socket = None;
            }
        }
    }

    fn begin_looker(&mut self) -> io::Result<Option<OwnedFd>> {
        if self.looks.lookers.len() >= LOOKERS_MAX {
            return Ok(None);
        }
        let (ours, theirs) = sys::seqpacket::pair()?;
        match fork(Parentage::Mine).map_err(io::Error::other)? {
            Forked::Child => {
                let kept = [ours.as_fd(), self.init.pidfd.as_fd()];
                let may = CapabilitySet::SYS_PTRACE | CapabilitySet::DAC_READ_SEARCH;
                let begun = sys::child::close_all_but(&kept).and_then(|()| confine(&self.init.pidfd, may));
                let done = begun.and_then(|()| {
                    // Of a limit it dies, and of a pipe that nobody reads.
                    sys::child::default_signals();
                    serve(&ours)
                });
                exit_now(i32::from(done.is_err()))
            }
            Forked::Parent { pidfd, .. } => {
                let id = self.next_id();
                self.looks.lookers.insert(id, self.poll.watch(pidfd, Source::Looker(id), Interest::Read)?);
                Ok(Some(theirs))
            }
        }
    }

    pub fn bury_looker(&mut self, id: u32) {
        if let Some(pidfd) = self.looks.lookers.remove(&id) {
            let _ = waitid(WaitId::PidFd(pidfd.as_fd()), WaitIdOptions::EXITED);
        }
    }
}

fn serve(socket: &OwnedFd) -> io::Result<()> {
    while poll(&mut [PollFd::new(socket, PollFlags::IN)], Some(&IDLE))? > 0 {
        let mut what = [0; Inside::BYTES];
        // Descriptors that are not what they should be may wait when they are closed, too.
        sys::child::end_after(LOOK_LIMIT);
        let received = sys::seqpacket::receive(socket, &mut what)?;
        if received.bytes == 0 {
            return Ok(());
        }
        let descriptors: [OwnedFd; 2] =
            received.descriptors.try_into().map_err(|_| io::Error::from(io::ErrorKind::InvalidData))?;
        let what = Inside::decode(what).ok_or(io::ErrorKind::InvalidData)?;
        let [process, pipe] = descriptors;
        let seen = what.look(&process, BYTES_MAX);
        let errno = seen.as_ref().map_or_else(|errno| errno.raw_os_error(), |_| 0);
        std::fs::File::from(pipe).write_all(&[&errno.to_le_bytes()[..], &seen.unwrap_or_default()].concat())?;
        drop(process);
        sys::child::end_after(Duration::ZERO);
    }
    Ok(())
}
