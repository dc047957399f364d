//! Reads and writes memory of programs for the call gate, which may not: a child for each, in the container's user
//! namespace, with one capability, CAP_SYS_PTRACE. It may wait for a page that the file gate has to bring, so it has a
//! limit.
//!
//! ```text
//! asked     0 ticket (two words, said again: the second is the id of the call)  16 kind  24 thread, by its number here
//!          32 listener of the call  40 address, or number of a descriptor  48 how many bytes  56 bytes to be written
//!          56 to 184 bytes
//! answered  0 ticket  16 errno, 0 when it was done  24 what was read, or where the descriptor leads (`calls::Led`)
//!          72 bytes
//! ```
//!
//! Over the same socket the call gate asks for placeholders ([`crate::placeholders`]).
//!
//! Each question is answered once, by the child, or by the keeper when that did not. What was read counts only if the
//! call for which it was is still under way: the call gate asks the kernel. What is written does harm where the call is
//! over, so the child asks the kernel just before. Where a descriptor leads is seen with one capability more,
//! CAP_DAC_READ_SEARCH.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use proc_core::calls::{Led, POINTED_BYTES_MAX, process_of};
use proc_core::order::RESULT_BYTES_MAX;
use rustix::process::{WaitId, WaitIdOptions, waitid};
use rustix::thread::{CapabilitySet, CapabilitySets, set_capabilities};
use sys::child::{Forked, Parentage, exit_now, fork};
use sys::ns::Kinds;

use crate::keeper::Keeper;
use crate::launch::become_user;
use crate::placeholders::{Place, PlaceholderQuestion, Placeholders};
use crate::poll::{Interest, Poll, Source, Watched};

const HEAD_BYTES: usize = 56;
const ASKED_BYTES_MAX: usize = HEAD_BYTES + RESULT_BYTES_MAX;
pub const TICKET_BYTES: usize = 16;
/// What the link of such a descriptor says.
const PIDFD: &[u8] = b"anon_inode:[pidfd]";
/// Children at a time; who asks beyond them hears EAGAIN.
const READERS_MAX: usize = 64;
/// Memory that is there is read in microseconds.
const READ_LIMIT: Duration = Duration::from_secs(1);
const TURN_MAX: usize = 16;

/// What is asked of a thread.
enum Question {
    Read { address: u64, bytes: usize },
    Descriptor(u64),
    Write { address: u64, bytes: Vec<u8> },
    Placeholder(PlaceholderQuestion),
}

struct Asked {
    ticket: [u8; TICKET_BYTES],
    thread: i32,
    /// Of the call, in the keeper's numbers.
    listener: u32,
    /// Of the call.
    id: u64,
    question: Question,
}

impl Asked {
    /// `None`: no call gate says it.
    fn decode(packet: &[u8]) -> Option<Asked> {
        let word = |at: usize| Some(u64::from_le_bytes(*packet.get(at * 8..)?.first_chunk()?));
        let (what, count, rest) = (word(5)?, usize::try_from(word(6)?).ok()?, packet.get(HEAD_BYTES..)?);
        let question = match word(2)? {
            0 if count <= POINTED_BYTES_MAX && rest.is_empty() => Question::Read { address: what, bytes: count },
            1 if rest.is_empty() => Question::Descriptor(what),
            2 if rest.len() == count => Question::Write { address: what, bytes: rest.to_vec() },
            kind => Question::Placeholder(PlaceholderQuestion::decode(kind, what, rest)?),
        };
        Some(Asked {
            ticket: *packet.first_chunk()?,
            // Of a thread that cannot be there the kernel says so.
            thread: i32::try_from(word(3)?).unwrap_or(i32::MAX),
            listener: u32::try_from(word(4)?).ok()?,
            id: word(1)?,
            question,
        })
    }

    fn takes(&self) -> CapabilitySet {
        match self.question {
            Question::Read { .. } | Question::Write { .. } => CapabilitySet::SYS_PTRACE,
            Question::Descriptor(_) => CapabilitySet::SYS_PTRACE | CapabilitySet::DAC_READ_SEARCH,
            Question::Placeholder(_) => CapabilitySet::empty(),
        }
    }

    fn answer(
        &self,
        listener: Option<BorrowedFd<'_>>,
        placeholders: &Placeholders,
        read: &mut [u8; POINTED_BYTES_MAX],
    ) -> io::Result<()> {
        match &self.question {
            Question::Read { address, bytes } => {
                let read = read.get_mut(..*bytes).ok_or(io::ErrorKind::InvalidInput)?;
                sys::memory::read_of(self.thread, *address, read)
            }
            Question::Descriptor(descriptor) => {
                let led = self.led(*descriptor, placeholders)?;
                let (first, _) = read.split_at_mut(8);
                first.copy_from_slice(&u64::from(led.number()).to_le_bytes());
                Ok(())
            }
            Question::Write { address, bytes } => match listener {
                Some(listener) if sys::notify::is_valid(listener, self.id) => {
                    sys::memory::write_of(self.thread, *address, bytes)
                }
                _ => Err(io::Error::from_raw_os_error(libc::ESRCH)),
            },
            Question::Placeholder(_) => Err(io::ErrorKind::InvalidInput.into()),
        }
    }

    fn led(&self, descriptor: u64, placeholders: &Placeholders) -> io::Result<Led> {
        let path = std::fs::read_link(format!("/proc/{}/fd/{descriptor}", self.thread))?;
        let path = path.as_os_str().as_encoded_bytes();
        if let Some(process) = process_of(path) {
            return Ok(Led::To(process));
        }
        if path != PIDFD {
            return Ok(Led::Elsewhere);
        }
        let said = std::fs::read_to_string(format!("/proc/{}/fdinfo/{descriptor}", self.thread))?;
        let number = said.lines().find_map(|line| line.strip_prefix("Pid:")?.trim().parse::<i64>().ok());
        Ok(match number {
            // It was waited for, whosever it was.
            Some(-1) => Led::Ended,
            Some(number) => u32::try_from(number).map_or(Led::Elsewhere, |number| placeholders.led(number)),
            None => Led::Elsewhere,
        })
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

    pub fn answer(&mut self, ticket: &[u8; TICKET_BYTES], errno: i32) {
        self.tell(ticket, errno, &[0; POINTED_BYTES_MAX]);
    }

    pub fn tell(&mut self, ticket: &[u8; TICKET_BYTES], errno: i32, said: &[u8; POINTED_BYTES_MAX]) {
        let Some(socket) = &self.socket else { return };
        // One that does not read is none.
        if say(socket, ticket, errno, said).is_err() {
            self.socket = None;
        }
    }
}

fn say(socket: impl AsFd, ticket: &[u8; TICKET_BYTES], errno: i32, read: &[u8; POINTED_BYTES_MAX]) -> io::Result<()> {
    let packet = [&ticket[..], &u64::from(errno.unsigned_abs()).to_le_bytes(), read].concat();
    sys::seqpacket::send(socket, &packet, &[] as &[OwnedFd])
}

impl Keeper {
    pub fn hear_memory(&mut self) {
        for _ in 0..TURN_MAX {
            let Some(socket) = &self.memory.socket else { return };
            let mut packet = [0; ASKED_BYTES_MAX];
            let asked = match sys::seqpacket::receive(socket.as_fd(), &mut packet) {
                Ok(received) => packet.get(..received.bytes).and_then(Asked::decode),
                Err(cause) if cause.kind() == io::ErrorKind::WouldBlock => return,
                Err(_) => None,
            };
            match asked {
                Some(Asked { question: Question::Placeholder(question), ticket, listener, id, .. }) => {
                    self.stand(question, &Place { ticket, listener, id });
                }
                Some(asked) => self.read_for(&asked),
                // Its end, or what no call gate says.
                None => return self.memory.socket = None,
            }
        }
    }

    fn read_for(&mut self, asked: &Asked) {
        let ticket = &asked.ticket;
        if self.memory.readers.len() >= READERS_MAX {
            return self.memory.answer(ticket, libc::EAGAIN);
        }
        let Some(socket) = &self.memory.socket else { return };
        match fork(Parentage::Mine) {
            Ok(Forked::Child) => {
                let mut read = [0; POINTED_BYTES_MAX];
                let listener = self.listener(asked.listener);
                let kept: Vec<BorrowedFd<'_>> =
                    [socket.as_fd(), self.init.pidfd.as_fd()].into_iter().chain(listener).collect();
                let done = sys::child::close_all_but(&kept)
                    .and_then(|()| confine(&self.init.pidfd, asked.takes()))
                    .and_then(|()| asked.answer(listener, &self.placeholders, &mut read));
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
    become_user(0, &[0])?;
    let sets = CapabilitySets { effective: may, permitted: may, inheritable: CapabilitySet::empty() };
    set_capabilities(None, sets)?;
    Ok(rustix::thread::set_no_new_privs(true)?)
}
