//! Whether who waits for an answer is about to die: asked by a file gate, which sees no processes, of its container's
//! keeper, which does (`docs/design/gate-fuse.md`, Signals).
//!
//! ```text
//! gate ── number of a request (8 bytes), thread that waits for it (4 bytes) ─▶ keeper
//!      ◀─ the same, and 1 when that thread is about to die (4 bytes) ──
//! ```
//!
//! Little-endian, one message each. What does not fit into the socket is not said: who asks does so again.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use crate::{procfs, seqpacket};

const ASK_BYTES: usize = 12;
const ANSWER_BYTES: usize = 16;

/// Asks whether `thread` is about to die, in the numbers of whoever mounted the tree.
///
/// # Errors
/// `WouldBlock`: not now. Others: nobody answers any more.
pub fn ask(socket: impl AsFd, request: u64, thread: u32) -> io::Result<()> {
    let mut message = [0; ASK_BYTES];
    message[..8].copy_from_slice(&request.to_le_bytes());
    message[8..].copy_from_slice(&thread.to_le_bytes());
    seqpacket::send(socket, &message, &[] as &[OwnedFd])
}

/// The next answer: number of a request, and whether its thread is about to die. `None`: there is none yet.
///
/// # Errors
/// There will be none any more.
pub fn hear(socket: impl AsFd) -> io::Result<Option<(u64, bool)>> {
    let mut message = [0; ANSWER_BYTES];
    if !receive(socket, &mut message)? {
        return Ok(None);
    }
    let (request, rest) = message.split_at(8);
    let request = request.try_into().map_or(0, u64::from_le_bytes);
    Ok(Some((request, rest.ends_with(&1_u32.to_le_bytes()))))
}

/// Answers what was asked last. False: nothing was.
///
/// # Errors
/// Nobody asks any more, or not like this.
pub fn answer(socket: impl AsFd) -> io::Result<bool> {
    let mut message = [0; ANSWER_BYTES];
    if !receive(&socket, &mut message[..ASK_BYTES])? {
        return Ok(false);
    }
    let thread = message[8..ASK_BYTES].try_into().map_or(0, u32::from_le_bytes);
    message[ASK_BYTES..].copy_from_slice(&u32::from(is_dying(thread)).to_le_bytes());
    match seqpacket::send(socket, &message, &[] as &[OwnedFd]) {
        Err(cause) if cause.kind() != io::ErrorKind::WouldBlock => Err(cause),
        _ => Ok(true),
    }
}

/// The next message, which has as many bytes as there is room. False: there is none yet.
fn receive(socket: impl AsFd, message: &mut [u8]) -> io::Result<bool> {
    match seqpacket::receive(socket, message) {
        Ok(received) if received.bytes == message.len() => Ok(true),
        Ok(received) if received.bytes == 0 => Err(io::ErrorKind::UnexpectedEof.into()),
        Ok(_) => Err(io::ErrorKind::InvalidData.into()),
        Err(cause) if cause.kind() == io::ErrorKind::WouldBlock => Ok(false),
        Err(cause) => Err(cause),
    }
}

/// A thread with SIGKILL pending never runs a program's code again, and the kernel makes it pending for all threads of
/// a process that another signal ends. One that is gone has died.
fn is_dying(thread: u32) -> bool {
    match std::fs::read_to_string(format!("/proc/{thread}/status")) {
        Ok(status) => procfs::is_killed(&status),
        Err(cause) => cause.kind() == io::ErrorKind::NotFound || cause.raw_os_error() == Some(libc::ESRCH),
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn answers_name_the_request_and_only_the_killed_are_dying() {
        let (gate, keeper) = seqpacket::pair().expect("a pair");
        let own = std::process::id();
        let mut waits = Command::new("sleep").arg("100").spawn().expect("a process");
        ask(&gate, 7, own).expect("asked");
        ask(&gate, u64::MAX, waits.id()).expect("asked");
        assert_eq!(hear(&gate).expect("nothing yet"), None);
        for _ in 0..2 {
            assert!(answer(&keeper).expect("answered"));
        }
        assert!(!answer(&keeper).expect("nothing is asked"));
        assert_eq!(hear(&gate).expect("an answer"), Some((7, false)));
        assert_eq!(hear(&gate).expect("an answer"), Some((u64::MAX, false)));
        waits.kill().expect("killed");
        waits.wait().expect("gone");
        ask(&gate, 8, waits.id()).expect("asked");
        assert!(answer(&keeper).expect("answered"));
        assert_eq!(hear(&gate).expect("an answer"), Some((8, true)));
    }

    #[test]
    fn end_and_nonsense_are_told_from_silence() {
        let (gate, keeper) = seqpacket::pair().expect("a pair");
        seqpacket::send(&gate, &[1, 2, 3], &[] as &[OwnedFd]).expect("sent");
        assert!(answer(&keeper).is_err());
        seqpacket::send(&keeper, &[1, 2, 3], &[] as &[OwnedFd]).expect("sent");
        assert!(hear(&gate).is_err());
        drop(keeper);
        // A process that another test starts has a copy until it is executed.
        let begun = std::time::Instant::now();
        while hear(&gate).is_ok() {
            assert!(begun.elapsed().as_secs() < 5, "the end is not heard");
            std::thread::yield_now();
        }
        assert!(ask(&gate, 1, 1).is_err());
    }

    #[test]
    fn who_asks_more_than_fits_is_told_to_come_again() {
        let (gate, keeper) = seqpacket::pair().expect("a pair");
        let full = (0..100_000).find_map(|request| ask(&gate, request, 1).err());
        assert_eq!(full.map(|cause| cause.kind()), Some(io::ErrorKind::WouldBlock));
        // One that is not read loses answers, and keeps nobody.
        while answer(&keeper).expect("answered") {}
        assert!(hear(&gate).expect("an answer").is_some());
    }
}
