//! What a process that lives long says on its standard error, which is a file that the daemon keeps short.
//!
//! Nothing here fails, blocks for room or panics: a message that cannot be written is lost and counted, and the next
//! one that can be written says how many were lost. `eprintln!` and the subscriber's own complaint about a failed write
//! would panic instead, and a full disk would end every process that has something to say about it.

use std::fmt;
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::panic::PanicHookInfo;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::FileType;

/// A file that is as long takes nothing more until somebody shortens it. The daemon shortens logs much earlier; this
/// bounds what a process writes between two of its looks, and when there is no daemon.
pub const FILE_BYTES_MAX: u64 = 8 << 20;

/// Exit status of a process that ended because one of its threads panicked; what Rust gives it when the first thread
/// does.
pub const PANICKED: i32 = 101;

/// Messages lost since the last one that was written.
static LOST: AtomicU64 = AtomicU64::new(0);

/// Standard error as a writer that always succeeds. Each call of `write` is one message.
#[derive(Clone, Copy, Debug)]
pub struct Stderr;

/// For `with_writer` of the subscriber.
pub fn stderr() -> Stderr {
    Stderr
}

impl Write for Stderr {
    fn write(&mut self, message: &[u8]) -> io::Result<usize> {
        put(rustix::stdio::stderr(), &LOST, message);
        Ok(message.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// One line, in place of `eprintln!`.
pub fn say(line: fmt::Arguments<'_>) {
    put(rustix::stdio::stderr(), &LOST, format!("{line}\n").as_bytes());
}

/// What a process says before it ends because of an error: the error and its causes, a line each.
pub fn say_causes(what: fmt::Arguments<'_>, error: &(dyn std::error::Error + 'static)) {
    /// Chains are short; a cyclic one must not fill the log.
    const CAUSES_MAX: usize = 16;
    let causes = std::iter::successors(error.source(), |cause| cause.source()).take(CAUSES_MAX);
    let causes: String = causes.map(|cause| format!("\n  because: {cause}")).collect();
    say(format_args!("{what}: {error}{causes}"));
}

/// From now on a thread that panics says so here and then does `after`; with one that does nothing it unwinds as usual.
/// Most processes end ([`end_on_panic`]): what only one thread knew is unknown, and locks that it held may guard
/// halves.
pub fn on_panic(after: impl Fn() + Send + Sync + 'static) {
    std::panic::set_hook(Box::new(move |panic: &PanicHookInfo<'_>| {
        use std::backtrace::{Backtrace, BacktraceStatus};
        let thread = std::thread::current();
        let trace = Backtrace::capture();
        if trace.status() == BacktraceStatus::Captured {
            say(format_args!("{trace}"));
        }
        say(format_args!("thread '{}' {panic}", thread.name().unwrap_or("unnamed")));
        after();
    }));
}

/// From now on a panic of any thread ends the process; who supervises it starts it anew.
pub fn end_on_panic() {
    on_panic(|| crate::child::exit_now(PANICKED));
}

fn put(file: impl AsFd, lost: &AtomicU64, message: &[u8]) {
    let lost_before = lost.swap(0, Ordering::Relaxed);
    let notice = match lost_before {
        0 => String::new(),
        // The line before may have been cut in its middle.
        count => format!("\n{count} messages are missing here: they could not be written\n"),
    };
    if is_full(&file) || write_all(&file, notice.as_bytes()).is_err() {
        lost.fetch_add(lost_before + 1, Ordering::Relaxed);
    } else if write_all(&file, message).is_err() {
        lost.fetch_add(1, Ordering::Relaxed);
    }
}

fn is_full(file: impl AsFd) -> bool {
    let is_file = |mode| FileType::from_raw_mode(mode) == FileType::RegularFile;
    rustix::fs::fstat(file).is_ok_and(|stat| is_file(stat.st_mode) && stat.st_size as u64 >= FILE_BYTES_MAX)
}

fn write_all(file: impl AsFd, mut bytes: &[u8]) -> rustix::io::Result<()> {
    while !bytes.is_empty() {
        match rustix::io::write(&file, bytes) {
            Ok(0) => return Err(rustix::io::Errno::IO),
            Ok(written) => bytes = bytes.get(written..).unwrap_or_default(),
            Err(rustix::io::Errno::INTR) => (),
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::fs::{File, OpenOptions};

    use super::*;

    fn temporary() -> File {
        let flags = rustix::fs::MemfdFlags::CLOEXEC;
        rustix::fs::memfd_create("log", flags).expect("memory file").into()
    }

    fn content(file: &File) -> String {
        use std::os::unix::fs::FileExt;
        let mut bytes = vec![0; 4096];
        let got = file.read_at(&mut bytes, 0).expect("read");
        String::from_utf8_lossy(&bytes[..got]).into_owned()
    }

    #[test]
    fn messages_that_found_no_room_are_counted_and_the_next_one_says_so() {
        let full = OpenOptions::new().write(true).open("/dev/full").expect("/dev/full");
        let lost = AtomicU64::new(0);
        (0..3).for_each(|_| put(&full, &lost, b"gone\n"));
        let file = temporary();
        put(&file, &lost, b"kept\n");
        put(&file, &lost, b"more\n");
        assert_eq!(content(&file), "\n3 messages are missing here: they could not be written\nkept\nmore\n");
    }

    #[test]
    fn file_that_is_too_long_takes_nothing_until_it_is_shortened() {
        let (file, lost) = (temporary(), AtomicU64::new(0));
        file.set_len(FILE_BYTES_MAX).expect("long");
        put(&file, &lost, b"gone\n");
        assert_eq!(file.metadata().expect("file").len(), FILE_BYTES_MAX);
        file.set_len(0).expect("short");
        put(&file, &lost, b"kept\n");
        assert!(content(&file).ends_with("1 messages are missing here: they could not be written\nkept\n"));
    }
}
