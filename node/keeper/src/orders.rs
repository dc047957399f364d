//! How init carries out what other nodes ask of this node's processes (`proc_core::executor`).
//!
//! Processes are held by pidfd, so that a number cannot change hands between a look and a signal. The list of processes
//! is read through a descriptor of `/proc` from before any program ran: nobody inside can put something else there.
//!
//! Everything is done between two looks at the PID range ([`super::init`]); an order to everybody looks in between.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use proc_core::errand::{FOR_INIT_BYTES_MAX, ForInit, FromInit};
use proc_core::executor::{CallResult, Executor, ProcessTable, Signal};
use proc_core::order::{Rlimit, StateQuestion, Whose};
use proc_core::permission::{Receiver, SignalError};
use proc_core::range::Seat;
use rustix::event::PollFlags;
use rustix::fs::{Mode, OFlags, ResolveFlags, openat2};
use rustix::process::Pid;
use sys::by_number::IoPriorityOf;
use sys::pidfd::{Identified, Queued};

use crate::list;

/// Orders between two looks at the PID range.
const TURN_MAX: usize = 64;

pub struct Orders {
    own: Seat,
    executor: Option<Executor>,
    socket: OwnedFd,
    /// What the socket had no room for. Nothing more is taken from it until this is said.
    unsaid: Option<FromInit>,
    proc_dir: OwnedFd,
}

impl Orders {
    pub fn new(own: Seat, socket: OwnedFd, proc_dir: OwnedFd) -> Orders {
        Orders { own, executor: None, socket, unsaid: None, proc_dir }
    }

    pub fn socket(&self) -> &OwnedFd {
        &self.socket
    }

    /// What [`Orders::work`] waits for.
    pub fn waits_for(&self) -> PollFlags {
        if self.unsaid.is_some() { PollFlags::OUT } else { PollFlags::IN }
    }

    /// Takes what came. `between` is called at least every millisecond of work.
    pub fn work(&mut self, between: &mut dyn FnMut()) {
        let mut packet = [0; FOR_INIT_BYTES_MAX];
        for _ in 0..TURN_MAX {
            if let Some(said) = self.unsaid.take() {
                self.say(said);
            }
            if self.unsaid.is_some() {
                return;
            }
            let Ok(received) = sys::seqpacket::receive(&self.socket, &mut packet) else { return };
            let order = ForInit::decode(packet.get(..received.bytes).unwrap_or_default());
            let said = match (order, &mut self.executor) {
                (Ok(ForInit::Begin { life, peers }), executor) => {
                    let executor = executor.get_or_insert_with(|| Executor::new(self.own, life, peers));
                    executor.set_peers(peers);
                    FromInit::Begun { life: executor.life() }
                }
                (Ok(ForInit::Carry(order)), Some(executor)) => {
                    let mut here = Here { proc_dir: &self.proc_dir, between };
                    FromInit::Done(executor.carry_out(&order, &mut here))
                }
                // Nobody says these.
                (Ok(ForInit::Carry(_)), None) | (Err(_), _) => continue,
            };
            self.say(said);
            between();
        }
    }

    fn say(&mut self, said: FromInit) {
        let sent = sys::seqpacket::send(&self.socket, &said.encode(), &[] as &[std::os::fd::BorrowedFd<'_>]);
        if sent.is_err_and(|cause| cause.kind() == io::ErrorKind::WouldBlock) {
            self.unsaid = Some(said);
        }
    }
}

/// The container's processes on this node.
struct Here<'a> {
    proc_dir: &'a OwnedFd,
    between: &'a mut dyn FnMut(),
}

/// A process, or a thread, whatever becomes of its number.
struct Held {
    pidfd: OwnedFd,
    number: u32,
}

impl ProcessTable for Here<'_> {
    type Held = Held;

    fn hold_process(&mut self, process: u32) -> Option<Held> {
        (self.between)();
        let number = i32::try_from(process).ok().filter(|number| *number > 1)?;
        if let Ok(pidfd) = sys::pidfd::open(number) {
            return Some(Held { pidfd, number: process });
        }
        // The number of a thread means its process, too, as in `kill(2)`.
        let thread = sys::pidfd::open_tid(number).ok()?;
        let process = sys::pidfd::identify(&thread).ok()?.process;
        let pidfd = sys::pidfd::open(i32::try_from(process).ok()?).ok()?;
        // As long as its thread is there, the process has its number.
        let is_the_same = sys::pidfd::identify(&thread).is_ok_and(|again| again.process == process);
        (process > 1 && is_the_same).then_some(Held { pidfd, number: process })
    }

    fn hold_thread(&mut self, process: Option<u32>, thread: u32) -> Option<Held> {
        let number = i32::try_from(thread).ok().filter(|number| *number > 1)?;
        let pidfd = match sys::pidfd::open_tid(number) {
            Ok(pidfd) => pidfd,
            // Linux 6.9 has descriptors of threads; before it the first thread of a process stands for all.
            Err(cause) if cause.raw_os_error() == Some(libc::EINVAL) => sys::pidfd::open(number).ok()?,
            Err(_) => return None,
        };
        let owner = match sys::pidfd::identify(&pidfd) {
            Ok(identified) => identified.process,
            Err(_) => thread,
        };
        (owner > 1 && process.is_none_or(|process| process == owner)).then_some(Held { pidfd, number: thread })
    }

    fn receiver(&mut self, held: &Held) -> Option<Receiver> {
        match sys::pidfd::identify(&held.pidfd) {
            Ok(Identified { uid, suid, euid, gids, .. }) => Some(Receiver { uid, suid, euid, gids }),
            Err(cause) if cause.raw_os_error() == Some(libc::ESRCH) => None,
            // Linux 6.13 tells by descriptor.
            Err(_) => self.receiver_by_status(held),
        }
    }

    fn members(&mut self, group: u32) -> Vec<u32> {
        let is_member = |process: &u32| {
            i32::try_from(*process).is_ok_and(|process| sys::by_number::group_of(process).is_ok_and(|of| of == group))
        };
        self.everybody().into_iter().filter(is_member).collect()
    }

    fn everybody(&mut self) -> Vec<u32> {
        list::pids(self.proc_dir.as_fd())
    }

    fn send(&mut self, held: &Held, signal: &Signal) -> Result<(), SignalError> {
        let queued = Queued {
            signal: signal.number,
            code: signal.payload.code,
            pid: signal.pid,
            uid: signal.uid,
            value: signal.payload.value,
        };
        sys::pidfd::queue(&held.pidfd, &queued).map_err(said)
    }

    fn ask(&mut self, question: &StateQuestion) -> Result<CallResult, SignalError> {
        (self.between)();
        // The kernel says it as 1 to 40, of which the library makes 19 to -20.
        let priority = |niceness: i32| (20 - niceness) as u32;
        let number = match *question {
            StateQuestion::Getpgid(of) => sys::by_number::group_of(raw(of)?).map_err(said),
            StateQuestion::Getsid(of) => sys::by_number::session_of(raw(of)?).map_err(said),
            StateQuestion::SchedGetscheduler(of) => sys::by_number::scheduler_of(raw(of)?).map_err(said),
            StateQuestion::Getpriority(Whose::Task(of)) => {
                rustix::process::getpriority_process(Some(pid(of)?)).map(priority).map_err(library_said)
            }
            StateQuestion::Getpriority(Whose::Group(of)) => {
                rustix::process::getpriority_pgrp(Some(pid(of)?)).map(priority).map_err(library_said)
            }
            StateQuestion::IoprioGet(Whose::Task(of)) => {
                sys::by_number::io_priority_of(IoPriorityOf::Thread(raw(of)?)).map_err(said)
            }
            StateQuestion::IoprioGet(Whose::Group(of)) => {
                sys::by_number::io_priority_of(IoPriorityOf::Group(raw(of)?)).map_err(said)
            }
            StateQuestion::PidfdOpen(of) => sys::pidfd::open(raw(of)?).map(|_| 0).map_err(said),
            StateQuestion::SchedGetparam(of) => {
                return sys::by_number::parameters_of(raw(of)?).map_err(said).and_then(|said| CallResult::bytes(&said));
            }
            StateQuestion::SchedRrGetInterval(of) => {
                return sys::by_number::interval_of(raw(of)?).map_err(said).and_then(|said| CallResult::bytes(&said));
            }
            StateQuestion::SchedGetattr(of) => {
                return sys::by_number::attributes_of(raw(of)?).map_err(said).and_then(|said| CallResult::bytes(&said));
            }
            StateQuestion::SchedGetaffinity { of, room } => {
                let cpus = sys::by_number::affinity_of(raw(of)?, room as usize).map_err(said)?;
                return Ok(CallResult { value: cpus.len() as u32, ..CallResult::bytes(&cpus)? });
            }
            StateQuestion::Setpriority { .. } | StateQuestion::Prlimit { .. } => Err(SignalError::Invalid),
        };
        number.map(CallResult::number)
    }

    /// By number, as priorities are set.
    fn limits(&mut self, process: &Held, resource: u32, new: Option<Rlimit>) -> Result<Rlimit, SignalError> {
        let new = new.map(|Rlimit { soft, hard }| [soft, hard]);
        let [soft, hard] = sys::by_number::limit_of(raw(process.number)?, resource, new).map_err(said)?;
        Ok(Rlimit { soft, hard })
    }

    fn threads(&mut self, process: u32) -> Vec<u32> {
        let flags = OFlags::DIRECTORY | OFlags::RDONLY | OFlags::CLOEXEC;
        let resolve = ResolveFlags::NO_XDEV | ResolveFlags::NO_SYMLINKS;
        let tasks = openat2(self.proc_dir, format!("{process}/task"), flags, Mode::empty(), resolve);
        tasks.map(|tasks| list::numbers(tasks.as_fd())).unwrap_or_default()
    }

    /// By number, which the kernel has for it alone: no number comes again before all others of the node were given.
    fn set_priority(&mut self, thread: &Held, niceness: i32) -> Result<(), SignalError> {
        rustix::process::setpriority_process(Some(pid(thread.number)?), niceness).map_err(library_said)
    }
}

/// What the kernel said; in numbers that it says nowhere here, that the call was none.
fn said(cause: io::Error) -> SignalError {
    cause.raw_os_error().and_then(SignalError::from_errno).unwrap_or(SignalError::Invalid)
}

fn library_said(errno: rustix::io::Errno) -> SignalError {
    said(errno.into())
}

/// 0 would be init itself, and PID 1 is each node's own.
fn raw(number: u32) -> Result<i32, SignalError> {
    i32::try_from(number).ok().filter(|number| *number > 1).ok_or(SignalError::NoProcess)
}

fn pid(number: u32) -> Result<Pid, SignalError> {
    Pid::from_raw(raw(number)?).ok_or(SignalError::NoProcess)
}

impl Here<'_> {
    /// The process is still the one that is held when the descriptor says afterwards that it has not ended.
    fn receiver_by_status(&self, held: &Held) -> Option<Receiver> {
        let path = format!("{}/status", held.number);
        let flags = OFlags::RDONLY | OFlags::CLOEXEC;
        // Nothing that was mounted over it.
        let resolve = ResolveFlags::NO_XDEV | ResolveFlags::NO_SYMLINKS;
        let file = openat2(self.proc_dir, path, flags, Mode::empty(), resolve).ok()?;
        let status = io::read_to_string(std::fs::File::from(file)).ok()?;
        let receiver = receiver_of_status(&status)?;
        (!sys::pidfd::has_ended(&held.pidfd)).then_some(receiver)
    }
}

fn receiver_of_status(status: &str) -> Option<Receiver> {
    // Real, effective, saved.
    let three = |name: &str| -> Option<[u32; 3]> {
        let ids = status.lines().find_map(|line| line.strip_prefix(name))?;
        let mut ids = ids.split_ascii_whitespace().map(str::parse);
        Some([ids.next()?.ok()?, ids.next()?.ok()?, ids.next()?.ok()?])
    };
    let ([uid, euid, suid], gids) = (three("Uid:")?, three("Gid:")?);
    Some(Receiver { uid, suid, euid, gids })
}

/// Of the order that init begins with: which node of the container this is.
pub fn seat_of(pid_base: u32) -> Option<Seat> {
    Seat::of_pid(pid_base).filter(|seat| seat.first_pid() == pid_base)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uids_are_read_from_status() {
        let status = "Name:\tsh\nState:\tS (sleeping)\nUid:\t33\t7\t0\t0\nGid:\t1\t2\t3\t4\n";
        assert_eq!(receiver_of_status(status), Some(Receiver { uid: 33, suid: 0, euid: 7, gids: [1, 2, 3] }));
        assert_eq!(receiver_of_status("Name:\tsh\nUid:\t33\n"), None);
        assert_eq!(receiver_of_status("Name:\tsh\nUid:\t33\t7\t0\t0\n"), None);
        assert_eq!(receiver_of_status(""), None);
    }

    #[test]
    fn seat_is_that_of_a_whole_range() {
        assert_eq!(seat_of(131_072), Seat::new(1));
        assert_eq!((seat_of(131_073), seat_of(300)), (None, None));
    }
}
