//! What a program inherits, read from the process that is asked to start it.

use std::ffi::OsString;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};

use rustix::fs::{FileType, OFlags, fcntl_getfl, fstat, major, minor};
use vos_api::jobs::{Description, JobStream, StreamKind};

/// Device numbers of `/dev/null`.
const NULL: (u32, u32) = (1, 3);
/// Resources of `prlimit`, all there are.
const RESOURCES: u32 = 16;

/// A program in Rust ignores SIGPIPE from its first moment on; whether it was ignored before is not known any more.
const OWN: u64 = 1 << (libc::SIGPIPE - 1);

/// What is sent, and the descriptors that its streams mean.
#[derive(Debug)]
pub struct Inherited {
    pub description: Description,
    /// In the order of the description's streams; none for a stream that nobody carries.
    pub files: Vec<Option<OwnedFd>>,
}

/// A descriptor that cannot go along.
#[derive(Debug, thiserror::Error)]
#[error("descriptor {descriptor} is {what}, which stays on its node")]
pub struct Strange {
    pub descriptor: u32,
    pub what: &'static str,
}

#[derive(Debug, thiserror::Error)]
pub enum InheritError {
    #[error(transparent)]
    Strange(#[from] Strange),
    #[error("what this process has cannot be read")]
    Unreadable(#[source] io::Error),
}

impl Inherited {
    /// Of this process: its standard streams, directory, mask, limits, signals. Call it before signals are touched and
    /// threads made.
    ///
    /// # Errors
    /// A standard stream that cannot be carried.
    pub fn of_this_process(arguments: Vec<OsString>) -> Result<Inherited, InheritError> {
        let text = |path: OsString| path.into_vec();
        let pair = |(key, value): (OsString, OsString)| [key.as_bytes(), b"=", value.as_bytes()].concat();
        let status = std::fs::read_to_string("/proc/self/status").map_err(InheritError::Unreadable)?;
        let umask = rustix::process::umask(rustix::fs::Mode::empty());
        rustix::process::umask(umask);
        let mut inherited = Inherited {
            description: Description {
                arguments: arguments.into_iter().map(text).collect(),
                environment: std::env::vars_os().map(pair).collect(),
                directory: std::env::current_dir().map_err(InheritError::Unreadable)?.into_os_string().into_vec(),
                umask: umask.bits(),
                ignored: signals(&status, "SigIgn:") & !OWN,
                blocked: signals(&status, "SigBlk:"),
                limits: limits(),
                streams: Vec::new(),
            },
            files: Vec::new(),
        };
        inherited.take(0, rustix::stdio::stdin())?;
        inherited.take(1, rustix::stdio::stdout())?;
        inherited.take(2, rustix::stdio::stderr())?;
        Ok(inherited)
    }

    /// A descriptor that is closed is `/dev/null` there.
    fn take(&mut self, descriptor: u32, file: BorrowedFd<'_>) -> Result<(), InheritError> {
        let Ok(flags) = fcntl_getfl(file) else { return Ok(()) };
        let unreadable = |cause: rustix::io::Errno| InheritError::Unreadable(cause.into());
        let about = fstat(file).map_err(unreadable)?;
        let is_written = flags.intersects(OFlags::WRONLY | OFlags::RDWR);
        let kind = match FileType::from_raw_mode(about.st_mode) {
            FileType::CharacterDevice if (major(about.st_rdev), minor(about.st_rdev)) == NULL => StreamKind::Null,
            FileType::Socket => StreamKind::Both,
            FileType::Fifo | FileType::RegularFile if is_written => StreamKind::Output,
            FileType::Fifo | FileType::RegularFile => StreamKind::Input,
            other => return Err(Strange { descriptor, what: name(other) }.into()),
        };
        let kept = if kind == StreamKind::Null {
            None
        } else {
            Some(rustix::io::fcntl_dupfd_cloexec(file.as_fd(), 3).map_err(unreadable)?)
        };
        self.description.streams.push(JobStream { descriptor, kind });
        self.files.push(kept);
        Ok(())
    }
}

fn name(kind: FileType) -> &'static str {
    match kind {
        FileType::CharacterDevice => "a terminal or another device",
        FileType::BlockDevice => "a block device",
        FileType::Directory => "a directory",
        _ => "no file, pipe or socket",
    }
}

/// A line of `/proc/PID/status`: hexadecimal, bit *n - 1* for signal *n*.
fn signals(status: &str, key: &str) -> u64 {
    let line = status.lines().find_map(|line| line.strip_prefix(key));
    line.and_then(|bits| u64::from_str_radix(bits.trim(), 16).ok()).unwrap_or(0)
}

fn limits() -> Vec<(u32, u64, u64)> {
    (0..RESOURCES)
        .filter_map(|number| sys::child::limit(number).ok().map(|(soft, hard)| (number, soft, hard)))
        .collect()
}
