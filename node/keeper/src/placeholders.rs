//! Placeholders: a process of this node for each process of another node that somebody opened (`pidfd_open(2)`), which
//! ends when that has ended, so that its descriptor says so.
//!
//! A placeholder sleeps in the node's own namespaces, where nobody of the container may signal, trace or wait for it.
//! Which process it stands for is known here, and outlives call gates; the call gate says when that has ended.
//!
//! ```text
//! asked   kind 3  what: the process  more: life of its node (8 bytes), flags of the call (4)
//!                 the caller gets one
//!         kind 4  what: the process  more: life (8 bytes)
//!                 it has ended; there is no answer
//!         kind 5  which there are: an answer for each, 24 process  32 life
//! ```

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};

use proc_core::calls::{Led, POINTED_BYTES_MAX};
use rustix::process::{WaitId, WaitIdOptions, waitid};
use sys::child::{Forked, Parentage, exit_now, fork};

use crate::keeper::Keeper;
use crate::memory::TICKET_BYTES;
use crate::poll::{Interest, Source, Watched};

/// Processes of other nodes that are open at a time, or were and have not ended. Each is a process of the container's
/// servers, of which there may be four times as many (`sandbox::cgroup`).
const PLACEHOLDERS_MAX: usize = 256;

#[derive(Default)]
pub struct Placeholders {
    /// By the process that it stands for.
    by_process: BTreeMap<u32, Placeholder>,
}

struct Placeholder {
    /// Of the node of the process.
    life: u64,
    /// Here.
    number: u32,
    pidfd: Watched,
    has_ended: bool,
}

/// What a call gate says of them.
pub enum PlaceholderQuestion {
    Give { process: u32, life: u64, flags: u32 },
    Ended { process: u32, life: u64 },
    All,
}

/// Where it is asked for: the call that waits.
pub struct Place {
    pub ticket: [u8; TICKET_BYTES],
    pub listener: u32,
    pub id: u64,
}

impl PlaceholderQuestion {
    /// `None`: no call gate says it.
    pub fn decode(kind: u64, what: u64, more: &[u8]) -> Option<PlaceholderQuestion> {
        let process = u32::try_from(what).ok()?;
        let life = || more.first_chunk().map(|life| u64::from_le_bytes(*life));
        Some(match (kind, more.len()) {
            (3, 12) => {
                let flags = u32::from_le_bytes(*more.last_chunk()?);
                PlaceholderQuestion::Give { process, life: life()?, flags }
            }
            (4, 8) => PlaceholderQuestion::Ended { process, life: life()? },
            (5, 0) => PlaceholderQuestion::All,
            _ => return None,
        })
    }
}

impl Placeholders {
    /// Where the descriptor of a process of this number leads.
    pub fn led(&self, number: u32) -> Led {
        match self.by_process.iter().find(|(_, one)| one.number == number) {
            Some((_, one)) if one.has_ended => Led::Ended,
            Some((process, _)) => Led::To(*process),
            None => Led::Elsewhere,
        }
    }
}

impl Keeper {
    pub fn stand(&mut self, question: PlaceholderQuestion, place: &Place) {
        match question {
            PlaceholderQuestion::Give { process, life, flags } => {
                let done = self.give_placeholder(process, life, flags, place);
                let errno = done.err().map_or(0, |cause| cause.raw_os_error().unwrap_or(libc::EIO));
                self.memory.answer(&place.ticket, errno);
            }
            PlaceholderQuestion::Ended { process, life } => {
                if let Some(one) = self.placeholders.by_process.get_mut(&process).filter(|one| one.life == life) {
                    one.has_ended = true;
                    let _ = sys::child::send_signal(&one.pidfd, libc::SIGKILL);
                }
            }
            PlaceholderQuestion::All => {
                let all: Vec<(u32, u64)> =
                    self.placeholders.by_process.iter().map(|(process, one)| (*process, one.life)).collect();
                for (process, life) in all {
                    let mut said = [0; POINTED_BYTES_MAX];
                    let words = u64::from(process).to_le_bytes().into_iter().chain(life.to_le_bytes());
                    said.iter_mut().zip(words).for_each(|(to, from)| *to = from);
                    self.memory.tell(&place.ticket, 0, &said);
                }
            }
        }
    }

    fn give_placeholder(&mut self, process: u32, life: u64, flags: u32, place: &Place) -> io::Result<()> {
        let number = match self.placeholders.by_process.get(&process) {
            Some(one) if one.life == life && !one.has_ended => one.number,
            // Of an earlier life, or on its way out: the number is another one's by now.
            Some(_) => return Err(io::Error::from_raw_os_error(libc::EAGAIN)),
            None => self.begin_placeholder(process, life)?,
        };
        let number = i32::try_from(number).map_err(|_| io::ErrorKind::InvalidInput)?;
        // An open file of its own: whether it blocks is the caller's affair.
        let pidfd = sys::pidfd::open_with(number, flags)?;
        let listener = self.listener(place.listener).ok_or(io::Error::from_raw_os_error(libc::ESRCH))?;
        match sys::notify::answer_with(listener, place.id, pidfd) {
            // Somebody before has answered it, or its caller is gone.
            Err(cause) if cause.raw_os_error() == Some(libc::ENOENT) => Ok(()),
            done => done,
        }
    }

    fn begin_placeholder(&mut self, process: u32, life: u64) -> io::Result<u32> {
        if self.placeholders.by_process.len() >= PLACEHOLDERS_MAX {
            return Err(io::Error::from_raw_os_error(libc::EMFILE));
        }
        match fork(Parentage::Mine).map_err(|_| io::Error::from_raw_os_error(libc::EAGAIN))? {
            Forked::Child => {
                let none: [OwnedFd; 0] = [];
                let is_alone = sys::child::close_all_but(&none.each_ref().map(AsFd::as_fd)).is_ok()
                    && rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL)).is_ok();
                if !is_alone {
                    exit_now(1)
                }
                loop {
                    std::thread::park();
                }
            }
            Forked::Parent { pid, pidfd } => {
                let pidfd = self.poll.watch(pidfd, Source::Placeholder(process), Interest::Read)?;
                self.placeholders
                    .by_process
                    .insert(process, Placeholder { life, number: pid, pidfd, has_ended: false });
                Ok(pid)
            }
        }
    }

    pub fn bury_placeholder(&mut self, process: u32) {
        if let Some(one) = self.placeholders.by_process.remove(&process) {
            let _ = waitid(WaitId::PidFd(one.pidfd.as_fd()), WaitIdOptions::EXITED);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn questions_are_those_of_a_call_gate_and_nonsense_is_none() {
        let more = [9_u64.to_le_bytes().as_slice(), &4_u32.to_le_bytes()].concat();
        let give = PlaceholderQuestion::decode(3, 131_072, &more);
        assert!(matches!(give, Some(PlaceholderQuestion::Give { process: 131_072, life: 9, flags: 4 })));
        let ended = PlaceholderQuestion::decode(4, 131_072, &more[..8]);
        assert!(matches!(ended, Some(PlaceholderQuestion::Ended { process: 131_072, life: 9 })));
        assert!(matches!(PlaceholderQuestion::decode(5, 0, &[]), Some(PlaceholderQuestion::All)));
        for (kind, what, length) in [(3, 1, 11), (4, 1, 9), (5, 0, 1), (6, 0, 0), (3, u64::MAX, 12)] {
            assert!(PlaceholderQuestion::decode(kind, what, &more[..length]).is_none(), "{kind} {what} {length}");
        }
    }
}
