//! Futexes by address, for words in memory shared with other processes.
//!
//! The calls take raw pointers as mere addresses: the kernel reads the word itself and answers `EFAULT` when nothing is
//! mapped there, so nothing here can touch memory that is not ours.

use std::io;
use std::time::Duration;

/// A word and the value it must still have for the wait to begin.
#[derive(Clone, Copy)]
pub struct Expected {
    pub word: *const u32,
    pub value: u32,
}

/// Why a wait ended. What happened must be read from memory in every case.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Woken {
    /// Woken, interrupted, or a word had changed already.
    Look,
    TimedOut,
}

/// Words one wait may name: the kernel's limit.
pub const WORDS_MAX: usize = 128;
/// Words of nearly every wait. Of more, the room has to be cleared first.
const WORDS_MOSTLY: usize = 4;

/// Sleeps until one of `words` is woken, unless one has changed already. `limit` is relative; `None` waits for ever.
pub fn wait(words: &[Expected], limit: Option<Duration>) -> io::Result<Woken> {
    match words.len() {
        0 => Err(io::Error::from(io::ErrorKind::InvalidInput)),
        count if count <= WORDS_MOSTLY => wait_among(words, &mut [EMPTY; WORDS_MOSTLY], limit),
        count if count <= WORDS_MAX => wait_among(words, &mut [EMPTY; WORDS_MAX], limit),
        _ => Err(io::Error::from(io::ErrorKind::InvalidInput)),
    }
}

/// Sleeps until `expected` is woken, unless the word has changed already: cheaper than [`wait`], and reads no clock.
pub fn wait_for_one(expected: Expected, limit: Duration) -> io::Result<Woken> {
    let limit = libc::timespec {
        tv_sec: i64::try_from(limit.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: i64::from(limit.subsec_nanos()),
    };
    // SAFETY: 1. `limit` lives until the call returns. 2. The kernel only reads the word, and checks that it is mapped.
    let result = unsafe {
        libc::syscall(libc::SYS_futex, expected.word, libc::FUTEX_WAIT, expected.value, &raw const limit, 0usize, 0u32)
    };
    woken(result)
}

const FUTEX_32: u32 = 2;
const EMPTY: Waiter = Waiter { value: 0, address: 0, flags: FUTEX_32, reserved: 0 };

/// `waiters` has room for all words.
fn wait_among(words: &[Expected], waiters: &mut [Waiter], limit: Option<Duration>) -> io::Result<Woken> {
    for (waiter, expected) in waiters.iter_mut().zip(words) {
        waiter.value = u64::from(expected.value);
        waiter.address = expected.word as u64;
    }
    let count = words.len().min(waiters.len()) as u32;
    let deadline = limit.map(deadline_after);
    let timeout = deadline.as_ref().map_or(std::ptr::null(), |time| time as *const libc::timespec);
    // SAFETY: 1. `waiters` and `deadline` live until the call returns. 2. The kernel only reads the words, and checks
    // that they are mapped.
    let result =
        unsafe { libc::syscall(libc::SYS_futex_waitv, waiters.as_ptr(), count, 0u32, timeout, libc::CLOCK_MONOTONIC) };
    woken(result)
}

fn woken(result: libc::c_long) -> io::Result<Woken> {
    if result >= 0 {
        return Ok(Woken::Look);
    }
    let error = io::Error::last_os_error();
    match error.raw_os_error() {
        Some(libc::EAGAIN | libc::EINTR) => Ok(Woken::Look),
        Some(libc::ETIMEDOUT) => Ok(Woken::TimedOut),
        _ => Err(error),
    }
}

/// Wakes everybody who sleeps on `word`.
pub fn wake_all(word: *const u32) {
    let key = word.addr();
    // SAFETY: the kernel uses the address as a key only. It fails only for an address that is not mapped, where
    // nobody can sleep.
    unsafe { libc::syscall(libc::SYS_futex, key, libc::FUTEX_WAKE, i32::MAX, 0usize, 0usize, 0u32) };
}

#[repr(C)]
#[derive(Clone, Copy)]
struct Waiter {
    value: u64,
    address: u64,
    flags: u32,
    reserved: u32,
}

fn deadline_after(limit: Duration) -> libc::timespec {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    let nanos = now.tv_nsec + i64::from(limit.subsec_nanos());
    let seconds = i64::try_from(limit.as_secs()).unwrap_or(i64::MAX / 4).min(i64::MAX / 4);
    libc::timespec {
        tv_sec: now.tv_sec.saturating_add(seconds) + nanos / 1_000_000_000,
        tv_nsec: nanos % 1_000_000_000,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU32, Ordering};

    #[test]
    fn wait_returns_at_once_when_a_word_has_changed() {
        let (quiet, changed) = (AtomicU32::new(1), AtomicU32::new(2));
        let words = [Expected { word: quiet.as_ptr(), value: 1 }, Expected { word: changed.as_ptr(), value: 1 }];
        assert_eq!(wait(&words, None).unwrap(), Woken::Look);
    }

    #[test]
    fn wait_ends_at_its_limit() {
        let word = AtomicU32::new(0);
        let words = [Expected { word: word.as_ptr(), value: 0 }];
        assert_eq!(wait(&words, Some(Duration::from_millis(1))).unwrap(), Woken::TimedOut);
    }

    #[test]
    fn wait_for_one_word_ends_at_once_when_it_has_changed_and_else_at_its_limit() {
        let word = AtomicU32::new(2);
        let wait = |value, limit| wait_for_one(Expected { word: word.as_ptr(), value }, limit).unwrap();
        assert_eq!(wait(1, Duration::MAX), Woken::Look);
        assert_eq!(wait(2, Duration::from_millis(1)), Woken::TimedOut);
    }

    #[test]
    fn waker_ends_the_waits_of_other_threads() {
        let word = AtomicU32::new(0);
        let expected = || Expected { word: word.as_ptr(), value: 0 };
        let until_changed = |sleep: &dyn Fn() -> io::Result<Woken>| {
            while word.load(Ordering::Acquire) == 0 {
                assert_eq!(sleep().unwrap(), Woken::Look);
            }
        };
        std::thread::scope(|scope| {
            scope.spawn(|| until_changed(&|| wait(&[expected()], None)));
            scope.spawn(|| until_changed(&|| wait_for_one(expected(), Duration::from_secs(60))));
            word.store(1, Ordering::Release);
            wake_all(word.as_ptr());
        });
    }
}
