//! What a program inherits, read from the process that is asked to start it.

use std::ffi::OsString;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::sync::Arc;

use rustix::fs::{FileType, OFlags, SeekFrom, Stat, fcntl_getfl, fstat, fstatfs, major, minor, readlink, seek, stat};
use vos_api::jobs::{Description, JobFile, JobStream, StreamKind};

use crate::terminal::{OwnTerminal, Use};

/// Device numbers of `/dev/null`.
const NULL: (u32, u32) = (1, 3);
/// `FUSE_SUPER_MAGIC`
const FUSE: rustix::fs::FsWord = 0x6573_5546;
/// Below it a path means the same on every node.
/// Its device is that of a root that is a directory of it, too.
const TREE: &str = "/dc";
/// What an open file is like that the kernel gives back; the others are of the moment in which it was opened.
const KEPT_FLAGS: OFlags = OFlags::ACCMODE.union(OFlags::APPEND).union(OFlags::SYNC).union(OFlags::DSYNC);
/// Resources of `prlimit`, all there are.
const RESOURCES: u32 = 16;

/// A program in Rust ignores SIGPIPE from its first moment on; whether it was ignored before is not known any more.
const OWN: u64 = 1 << (libc::SIGPIPE - 1);

/// What is sent, and the descriptors that its streams mean.
#[derive(Debug)]
pub struct Inherited {
    pub description: Description,
    /// In the order of the description's streams; none for a stream that nobody carries.
    pub files: Vec<Carried>,
    pub terminal: Option<Arc<OwnTerminal>>,
}

/// What the deputy reads and writes of a stream.
#[derive(Debug, Default)]
pub struct Carried {
    pub reading: Option<OwnedFd>,
    pub writing: Option<OwnedFd>,
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
                terminal: None,
            },
            files: Vec::new(),
            terminal: None,
        };
        inherited.find_terminal()?;
        inherited.take(0, rustix::stdio::stdin())?;
        inherited.take(1, rustix::stdio::stdout())?;
        inherited.take(2, rustix::stdio::stderr())?;
        let named: Vec<u32> =
            inherited.description.arguments.iter().filter_map(|word| named_descriptor(word)).collect();
        for descriptor in named {
            let is_taken = inherited.description.streams.iter().any(|stream| stream.descriptor == descriptor);
            if let (false, Some(file)) = (is_taken, sys::child::inherited(descriptor)) {
                inherited.take(descriptor, file.as_fd())?;
            }
        }
        Ok(inherited)
    }

    /// The one on which the job was started, if it was.
    fn find_terminal(&mut self) -> Result<(), InheritError> {
        let is_terminal = |file: BorrowedFd<'_>| rustix::termios::isatty(file);
        let (input, output, error) = (rustix::stdio::stdin(), rustix::stdio::stdout(), rustix::stdio::stderr());
        let (how, file) = match (is_terminal(input), is_terminal(output), is_terminal(error)) {
            (true, true, _) => (Use::Whole, output),
            (_, true, _) => (Use::Lines, output),
            (_, false, true) => (Use::Lines, error),
            (true, false, false) => (Use::Lines, input),
            (false, false, false) => return Ok(()),
        };
        let unreadable = |cause: rustix::io::Errno| InheritError::Unreadable(cause.into());
        let file = rustix::io::fcntl_dupfd_cloexec(file, 3).map_err(unreadable)?;
        self.terminal = Some(Arc::new(OwnTerminal::new(file, how)));
        Ok(())
    }

    /// What is one open file here, as after `2>&1`, is one there.
    fn file_of(&self, kind: StreamKind, file: BorrowedFd<'_>, about: &Stat, flags: OFlags) -> JobFile {
        let mut is_sure = true;
        for (number, (stream, carried)) in (0..).zip(self.description.streams.iter().zip(&self.files)) {
            let Some(of) = carried.reading.as_ref().or(carried.writing.as_ref()) else { continue };
            match sys::child::is_one_open_file(of, file) {
                Some(true) if stream.kind == kind => return JobFile::Same(number),
                Some(false) => {}
                // Two offsets would become one, or one two.
                _ => is_sure = false,
            }
        }
        if is_sure { self.file_of_tree(file, about, flags) } else { JobFile::None }
    }

    /// Whoever has it open elsewhere has the same file, at an offset of its own. So what is only written, and not at
    /// its end, is carried: others may write it here at the offset that they share, a shell that does not wait for one.
    fn file_of_tree(&self, file: BorrowedFd<'_>, about: &Stat, flags: OFlags) -> JobFile {
        let has_offset = flags & OFlags::ACCMODE == OFlags::WRONLY && !flags.contains(OFlags::APPEND);
        if FileType::from_raw_mode(about.st_mode) != FileType::RegularFile || has_offset {
            return JobFile::None;
        }
        self.named(file, about, flags).unwrap_or_default()
    }

    fn named(&self, file: BorrowedFd<'_>, about: &Stat, flags: OFlags) -> Option<JobFile> {
        if fstatfs(file).ok()?.f_type != FUSE || stat(TREE).ok()?.st_dev != about.st_dev {
            return None;
        }
        let path = readlink(format!("/proc/self/fd/{}", file.as_raw_fd()), Vec::new()).ok()?;
        let there = stat(&path).ok()?;
        let is_it = (there.st_dev, there.st_ino) == (about.st_dev, about.st_ino);
        let offset = seek(file, SeekFrom::Current(0)).ok()?;
        let flags = (flags & KEPT_FLAGS).bits();
        is_it.then(|| JobFile::Named { path: path.into_bytes(), inode: about.st_ino, flags, offset })
    }

    /// A descriptor that is closed is `/dev/null` there.
    fn take(&mut self, descriptor: u32, file: BorrowedFd<'_>) -> Result<(), InheritError> {
        let Ok(flags) = fcntl_getfl(file) else { return Ok(()) };
        let unreadable = |cause: rustix::io::Errno| InheritError::Unreadable(cause.into());
        let about = fstat(file).map_err(unreadable)?;
        let is_written = flags.intersects(OFlags::WRONLY | OFlags::RDWR);
        let is_terminal = rustix::termios::isatty(file);
        let is_whole = self.terminal.as_ref().is_some_and(|terminal| terminal.how() == Use::Whole);
        let kind = match FileType::from_raw_mode(about.st_mode) {
            _ if is_terminal && is_whole => StreamKind::Terminal,
            // Its lines alone go along.
            _ if is_terminal && descriptor == 0 => StreamKind::Input,
            _ if is_terminal => StreamKind::Screen,
            FileType::CharacterDevice if (major(about.st_rdev), minor(about.st_rdev)) == NULL => StreamKind::Null,
            FileType::Socket => StreamKind::Both,
            FileType::Fifo | FileType::RegularFile if is_written => StreamKind::Output,
            FileType::Fifo | FileType::RegularFile => StreamKind::Input,
            other => return Err(Strange { descriptor, what: name(other) }.into()),
        };
        let copy = || rustix::io::fcntl_dupfd_cloexec(file.as_fd(), 3).map(Some).map_err(unreadable);
        let mut carried = Carried::default();
        if kind.is_terminal() {
            self.take_terminal(kind, &mut carried)?;
        } else {
            carried.reading = if kind.is_read() { copy()? } else { None };
            carried.writing = if kind.is_written() { copy()? } else { None };
        }
        let file = match kind {
            StreamKind::Input | StreamKind::Output | StreamKind::Both => self.file_of(kind, file, &about, flags),
            StreamKind::Null | StreamKind::Terminal | StreamKind::Screen => JobFile::None,
        };
        self.description.streams.push(JobStream { descriptor, kind, file });
        self.files.push(carried);
        Ok(())
    }
}

impl Inherited {
    /// The first stream that is the terminal carries its bytes.
    fn take_terminal(&mut self, kind: StreamKind, carried: &mut Carried) -> Result<(), InheritError> {
        let (Some(terminal), None) = (&self.terminal, &self.description.terminal) else { return Ok(()) };
        self.description.terminal = Some(terminal.describe().map_err(InheritError::Unreadable)?);
        let unreadable = |cause: rustix::io::Errno| InheritError::Unreadable(cause.into());
        let copy = |file: BorrowedFd<'_>| rustix::io::fcntl_dupfd_cloexec(file, 3).map_err(unreadable);
        carried.writing = Some(copy(terminal.file())?);
        if kind == StreamKind::Terminal {
            carried.reading = Some(copy(rustix::stdio::stdin())?);
        }
        Ok(())
    }
}

/// Of a word such as a shell makes of `<(…)`: the descriptor that it names.
fn named_descriptor(word: &[u8]) -> Option<u32> {
    let number = word.strip_prefix(b"/dev/fd/").or_else(|| word.strip_prefix(b"/proc/self/fd/"))?;
    std::str::from_utf8(number).ok()?.parse().ok()
}

fn name(kind: FileType) -> &'static str {
    match kind {
        FileType::CharacterDevice => "a device",
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
