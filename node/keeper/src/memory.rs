//! Reads memory of programs for the call gate, which may not: a child for each, in the container's user namespace, with
//! one capability, CAP_SYS_PTRACE. It may wait for a page that the file gate has to bring, so it has a limit.
//!
//! ```text
//! asked     0 ticket (two words, said again)  16 thread, by its number here  24 address         32 bytes
//! answered  0 ticket  16 errno, 0 when it was read  24 what was read                             72 bytes
//! asked     0 ticket  16 thread  24 number of a descriptor  32 0                                 40 bytes
//! answered  0 ticket  16 errno  24 the process whose directory of /proc it is, 0 if it is none   72 bytes
//! ```
//!
//! Each question is answered once, by the child, or by the keeper when that did not. What was read counts only if the
//! call for which it was is still under way: the call gate asks the kernel. Where a descriptor leads is seen with one
//! capability more, CAP_DAC_READ_SEARCH.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use proc_core::calls::{SIGINFO_BYTES, process_of};
use rustix::process::{WaitId, WaitIdOptions, waitid};
use rustix::thread::{CapabilitySet, CapabilitySets, set_capabilities};
use sys::child::{Forked, Parentage, exit_now, fork};
use sys::ns::Kinds;

use crate::keeper::Keeper;
use crate::launch::become_user;
use crate::poll::{Interest, Poll, Source, Watched};

const ASKED_BYTES: usize = 32;
const LOOK_BYTES: usize = 40;
const TICKET_BYTES: usize = 16;
/// Children at a time; who asks beyond them hears EAGAIN.
const READERS_MAX: usize = 64;
/// Memory that is there is read in microseconds.
const READ_LIMIT: Duration = Duration::from_secs(1);
const TURN_MAX: usize = 16;

/// What is asked of a thread.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Question {
    Memory,
    Descriptor,
}

impl Question {
    fn takes(self) -> CapabilitySet {
        match self {
            Question::Memory => CapabilitySet::SYS_PTRACE,
            Question::Descriptor => CapabilitySet::SYS_PTRACE | CapabilitySet::DAC_READ_SEARCH,
        }
    }

    fn answer(self, thread: i32, what: u64, read: &mut [u8; SIGINFO_BYTES]) -> io::Result<()> {
        match self {
            Question::Memory => sys::memory::read_of(thread, what, read),
            Question::Descriptor => {
                let path = std::fs::read_link(format!("/proc/{thread}/fd/{what}"))?;
                let process = process_of(path.as_os_str().as_encoded_bytes()).unwrap_or(0);
                let (first, _) = read.split_at_mut(8);
                first.copy_from_slice(&u64::from(process).to_le_bytes());
                Ok(())
            }
        }
    }
}

#[derive(Default)]
pub struct MemoryDoor {
    /// To the call gate of today.
    socket: Option<Watched>,
    readers: BTreeMap<u32, Reader>,
}

struct Reader {
    pidfd: Watched,
    ticket: [u8; TICKET_BYTES],
    until: Instant,
    is_late: bool,
}

impl MemoryDoor {
    /// For a call gate that begins.
    pub fn begin(&mut self, poll: &Poll) -> io::Result<OwnedFd> {
        poll.open_door(&mut self.socket, Source::Memory)
    }

    pub fn due(&self) -> Option<Instant> {
        self.readers.values().filter(|reader| !reader.is_late).map(|reader| reader.until).min()
    }

    fn answer(&mut self, ticket: &[u8; TICKET_BYTES], errno: i32) {
        let Some(socket) = &self.socket else { return };
        // One that does not read is none.
        if say(socket, ticket, errno, &[0; SIGINFO_BYTES]).is_err() {
            self.socket = None;
        }
    }
}

fn say(socket: impl AsFd, ticket: &[u8; TICKET_BYTES], errno: i32, read: &[u8; SIGINFO_BYTES]) -> io::Result<()> {
    let packet = [&ticket[..], &u64::from(errno.unsigned_abs()).to_le_bytes(), read].concat();
    sys::seqpacket::send(socket, &packet, &[] as &[OwnedFd])
}

impl Keeper {
    pub fn hear_memory(&mut self) {
        for _ in 0..TURN_MAX {
            let Some(socket) = &self.memory.socket else { return };
            let mut packet = [0; LOOK_BYTES];
            match sys::seqpacket::receive(socket.as_fd(), &mut packet) {
                Ok(received) if received.bytes == ASKED_BYTES => self.read_for(&packet, Question::Memory),
                Ok(received) if received.bytes == LOOK_BYTES => self.read_for(&packet, Question::Descriptor),
                Err(cause) if cause.kind() == io::ErrorKind::WouldBlock => return,
                // Its end, or what no call gate says.
                _ => return self.memory.socket = None,
            }
        }
    }

    fn read_for(&mut self, packet: &[u8; LOOK_BYTES], question: Question) {
        let Some((ticket, rest)) = packet.split_first_chunk::<TICKET_BYTES>() else { return };
        let word =
            |at: usize| rest.get(at..at + 8).and_then(|bytes| bytes.try_into().ok()).map_or(0, u64::from_le_bytes);
        let (thread, what) = (word(0), word(8));
        let Ok(thread) = i32::try_from(thread) else { return self.memory.answer(ticket, libc::ESRCH) };
        if self.memory.readers.len() >= READERS_MAX {
            return self.memory.answer(ticket, libc::EAGAIN);
        }
        let Some(socket) = &self.memory.socket else { return };
        match fork(Parentage::Mine) {
            Ok(Forked::Child) => {
                let mut read = [0; SIGINFO_BYTES];
                let kept = [socket.as_fd(), self.init.pidfd.as_fd()];
                let done = sys::child::close_all_but(&kept)
                    .and_then(|()| confine(&self.init.pidfd, question.takes()))
                    .and_then(|()| question.answer(thread, what, &mut read));
                let errno = done.err().map_or(0, |cause| cause.raw_os_error().unwrap_or(libc::EIO));
                exit_now(i32::from(say(socket, ticket, errno, &read).is_err()))
            }
            Ok(Forked::Parent { pidfd, .. }) => {
                let id = self.next_id();
                match self.poll.watch(pidfd, Source::Reader(id), Interest::Read) {
                    Ok(pidfd) => {
                        let until = Instant::now() + READ_LIMIT;
                        self.memory.readers.insert(id, Reader { pidfd, ticket: *ticket, until, is_late: false });
                    }
                    // It answers all the same.
                    Err(cause) => tracing::warn!(%cause, "a child that reads memory is not watched"),
                }
            }
            Err(_) => self.memory.answer(ticket, libc::EAGAIN),
        }
    }

    pub fn bury_reader(&mut self, id: u32) {
        let Some(reader) = self.memory.readers.remove(&id) else { return };
        let status = waitid(WaitId::PidFd(reader.pidfd.as_fd()), WaitIdOptions::EXITED);
        let has_said = matches!(status, Ok(Some(status)) if status.exit_status() == Some(0));
        if !has_said && !reader.is_late {
            self.memory.answer(&reader.ticket, libc::EFAULT);
        }
    }

    /// The kernel may not let them end; who asked hears that nothing could be read.
    pub fn abandon_late_readers(&mut self) {
        let now = Instant::now();
        let mut late = Vec::new();
        for reader in self.memory.readers.values_mut().filter(|reader| !reader.is_late && now >= reader.until) {
            // It has said nothing, and now never will; unless it did so in this moment, which its ticket tells.
            let _ = sys::child::send_signal(&reader.pidfd, libc::SIGKILL);
            reader.is_late = true;
            late.push(reader.ticket);
        }
        late.iter().for_each(|ticket| self.memory.answer(ticket, libc::EFAULT));
    }
}

/// Nobody of the host is to be seen, and of the container what a capability shows.
pub fn confine(init: impl AsFd, may: CapabilitySet) -> io::Result<()> {
    sys::ns::join(init, Kinds::USER)?;
    become_user(0, 0)?;
    let sets = CapabilitySets { effective: may, permitted: may, inheritable: CapabilitySet::empty() };
    set_capabilities(None, sets)?;
    Ok(rustix::thread::set_no_new_privs(true)?)
}
