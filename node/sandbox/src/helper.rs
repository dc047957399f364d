//! Work in a child process: entering namespaces changes the process for good, so a copy of it does the work and sends
//! back what it made.
//!
//! The child has this process's memory and host privileges until it enters a namespace. It answers with one packet: a
//! status byte, a text when it failed, descriptors when it did not.

use std::error::Error;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use parking_lot::Mutex;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{WaitId, WaitIdOptions, waitid};
use sys::child::{ForkError, Forked, Parentage, exit_now, fork};
use sys::ns::Kinds;

/// Longest account of a failure.
const TEXT_BYTES_MAX: usize = 4096;
/// Mounts and namespaces are made in milliseconds; who takes this long hangs on something foreign.
const LIMIT: Duration = Duration::from_secs(10);
const OK: u8 = 0;
const FAILED: u8 = 1;

#[derive(Debug, thiserror::Error)]
pub enum HelperError {
    #[error("could not make a helper process")]
    Fork(#[from] ForkError),
    #[error("the talk with a helper process failed")]
    Talk(#[source] io::Error),
    /// What the helper said, outermost first.
    #[error("{0}")]
    Failed(String),
    #[error("a helper process ended without a word")]
    Died,
    #[error("a helper process did not finish within {0:?}")]
    Stuck(Duration),
}

/// What the work inside gives: descriptors and notes, or any error.
pub type Outcome = Result<(Vec<OwnedFd>, String), Box<dyn Error>>;

/// Which namespaces the child enters before it works; with the pid namespace the work is done by a grandchild, because
/// only children are in it.
pub struct Place<'a> {
    pub process: BorrowedFd<'a>,
    pub kinds: Kinds,
    pub pid: InPid,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum InPid {
    Yes,
    No,
}

/// How long a child may take, and what is done when that passed, before it is killed: what lets it go.
pub struct TimeLimit<F> {
    pub limit: Duration,
    pub free: F,
}

/// Runs `work` in a child, inside `place` when given, and waits for it.
pub fn in_child(
    place: Option<Place<'_>>,
    work: impl FnOnce() -> Outcome,
) -> Result<(Vec<OwnedFd>, String), HelperError> {
    in_child_with(place, TimeLimit { limit: LIMIT, free: || () }, work)
}

/// Like [`in_child`], for work that can hang on something that this process can end.
pub fn in_child_with(
    place: Option<Place<'_>>,
    patience: TimeLimit<impl FnOnce()>,
    work: impl FnOnce() -> Outcome,
) -> Result<(Vec<OwnedFd>, String), HelperError> {
    let (ours, theirs) = sys::seqpacket::pair().map_err(HelperError::Talk)?;
    match fork(Parentage::Mine)? {
        Forked::Child => {
            drop(ours);
            child(place, theirs, work)
        }
        Forked::Parent { pidfd, .. } => {
            drop(theirs);
            let mut answer = await_answer(&ours, patience.limit);
            if matches!(answer, Err(HelperError::Stuck(_))) {
                (patience.free)();
                answer = await_answer(&ours, patience.limit);
            }
            if matches!(answer, Err(HelperError::Stuck(_))) {
                let _ = sys::child::send_signal(&pidfd, libc::SIGKILL);
            }
            bury(pidfd, patience.limit);
            answer
        }
    }
}

/// Children that were killed and did not end, because the kernel does not let them: they wait for something foreign.
static UNBURIED: Mutex<Vec<OwnedFd>> = Mutex::new(Vec::new());

/// Waits for the end of a child that has answered or was killed, but not for longer than `limit`, and for those before
/// it that have ended meanwhile.
fn bury(child: OwnedFd, limit: Duration) {
    let timeout = Timespec::try_from(limit).ok();
    while poll(&mut [PollFd::new(&child, PollFlags::IN)], timeout.as_ref()) == Err(rustix::io::Errno::INTR) {}
    let mut unburied = UNBURIED.lock();
    unburied.push(child);
    unburied.retain(|child| {
        match waitid(WaitId::PidFd(child.as_fd()), WaitIdOptions::EXITED | WaitIdOptions::NOHANG) {
            Ok(None) | Err(rustix::io::Errno::AGAIN) => true,
            Ok(Some(_)) | Err(_) => false,
        }
    });
}

fn child(place: Option<Place<'_>>, socket: OwnedFd, work: impl FnOnce() -> Outcome) -> ! {
    let entered = match &place {
        None => Ok(()),
        Some(place) => sys::ns::join(place.process, place.kinds),
    };
    if let Err(cause) = entered {
        answer(&socket, Err(format!("could not enter the namespaces: {cause}").into()));
    }
    if place.is_some_and(|place| place.pid == InPid::Yes) {
        match fork(Parentage::Mine) {
            Ok(Forked::Child) => answer(&socket, work()),
            Ok(Forked::Parent { pidfd, .. }) => {
                drop(socket);
                let _ = waitid(WaitId::PidFd(pidfd.as_fd()), WaitIdOptions::EXITED);
                exit_now(0)
            }
            Err(error) => answer(&socket, Err(error.into())),
        }
    }
    answer(&socket, work())
}

fn answer(socket: &OwnedFd, outcome: Outcome) -> ! {
    let (status, text, fds) = match outcome {
        Ok((fds, notes)) => (OK, notes, fds),
        Err(error) => (FAILED, chain(error.as_ref()), Vec::new()),
    };
    let mut packet = vec![status];
    packet.extend(text.bytes().take(TEXT_BYTES_MAX));
    let sent = sys::seqpacket::send(socket, &packet, &fds);
    exit_now(i32::from(sent.is_err()))
}

fn await_answer(socket: &OwnedFd, limit: Duration) -> Result<(Vec<OwnedFd>, String), HelperError> {
    let timeout = Timespec::try_from(limit).ok();
    loop {
        match poll(&mut [PollFd::new(socket, PollFlags::IN)], timeout.as_ref()) {
            Ok(0) => return Err(HelperError::Stuck(limit)),
            Ok(_) => break,
            Err(rustix::io::Errno::INTR) => (),
            Err(cause) => return Err(HelperError::Talk(cause.into())),
        }
    }
    let mut buffer = vec![0; TEXT_BYTES_MAX + 1];
    let received = sys::seqpacket::receive(socket, &mut buffer).map_err(HelperError::Talk)?;
    match buffer.get(..received.bytes).and_then(|packet| packet.split_first()) {
        None => Err(HelperError::Died),
        Some((&OK, notes)) => Ok((received.descriptors, String::from_utf8_lossy(notes).into_owned())),
        Some((_, text)) => Err(HelperError::Failed(String::from_utf8_lossy(text).into_owned())),
    }
}

/// An error and its causes in one line.
pub fn chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        text = format!("{text}: {cause}");
        next = cause.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn child_that_does_not_end_holds_nobody_up_and_is_buried_later() {
        let sleeper = || std::process::Command::new("sleep").arg("1000").spawn().unwrap();
        let held = |child: &std::process::Child| sys::pidfd::open(child.id() as i32).unwrap();
        let (stuck, quick) = (sleeper(), sleeper());
        bury(held(&stuck), Duration::from_millis(10));
        let (stuck, quick) = (held(&stuck), held(&quick));
        for child in [&stuck, &quick] {
            sys::child::send_signal(child, libc::SIGKILL).unwrap();
            poll(&mut [PollFd::new(child, PollFlags::IN)], None).unwrap();
        }
        bury(quick.try_clone().unwrap(), LIMIT);
        for child in [&stuck, &quick] {
            let status = waitid(WaitId::PidFd(child.as_fd()), WaitIdOptions::EXITED | WaitIdOptions::NOHANG);
            assert_eq!(status.err(), Some(rustix::io::Errno::CHILD));
        }
    }
}
