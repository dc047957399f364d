//! A procfs over descriptors of its directories: what lies there, read without paths that somebody could exchange.

use std::borrow::Cow;
use std::io::Read;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{FileType, Mode, OFlags, PROC_SUPER_MAGIC, RawDir, SeekFrom, fstatfs, openat, readlinkat, seek};
use rustix::io::Errno;

/// Of one call for names.
const NAMES_BYTES: usize = 8 << 10;
const DIRECTORY: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);

/// What only who may trace a process sees of it (`proc_pid_environ(5)` and others).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Inside {
    Environ,
    Io,
    /// Numbers of all, 4 bytes each, ascending.
    Descriptors,
    /// Where one of its links leads.
    Link(ProcessLink),
}

/// A link in a process's directory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ProcessLink {
    Descriptor(u32),
    Exe,
    Cwd,
    Root,
}

impl ProcessLink {
    /// But for descriptors.
    pub const NAMED: [ProcessLink; 3] = [ProcessLink::Exe, ProcessLink::Cwd, ProcessLink::Root];

    /// From its directory.
    pub fn path(self) -> Cow<'static, str> {
        match self {
            ProcessLink::Descriptor(number) => format!("fd/{number}").into(),
            ProcessLink::Exe => "exe".into(),
            ProcessLink::Cwd => "cwd".into(),
            ProcessLink::Root => "root".into(),
        }
    }

    /// Kind and number, for who sends it.
    pub fn words(self) -> [u32; 2] {
        match self {
            ProcessLink::Descriptor(number) => [0, number],
            ProcessLink::Exe => [1, 0],
            ProcessLink::Cwd => [2, 0],
            ProcessLink::Root => [3, 0],
        }
    }

    /// `None`: it has not been said by [`ProcessLink::words`].
    pub fn of_words(words: [u32; 2]) -> Option<ProcessLink> {
        let [_, number] = words;
        let mut all = ProcessLink::NAMED.into_iter().chain([ProcessLink::Descriptor(number)]);
        all.find(|link| link.words() == words)
    }
}

/// Whether SIGKILL is pending for a thread, of whose `status` this is the text: whatever ended its process, it is
/// killed by this.
pub fn is_killed(status: &str) -> bool {
    status.lines().any(|line| {
        let pending = line.strip_prefix("ShdPnd:").or(line.strip_prefix("SigPnd:"));
        let pending = pending.and_then(|hex| u64::from_str_radix(hex.trim(), 16).ok());
        pending.is_some_and(|signals| signals & 1 << (libc::SIGKILL - 1) != 0)
    })
}

impl Inside {
    pub const BYTES: usize = 8;

    pub fn encode(self) -> [u8; Inside::BYTES] {
        let (kind, number) = match self {
            Inside::Environ => (1, 0),
            Inside::Io => (2, 0),
            Inside::Descriptors => (3, 0),
            Inside::Link(link) => {
                let [kind, number] = link.words();
                (4 + u64::from(kind), number)
            }
        };
        (u64::from(number) << 32 | kind).to_le_bytes()
    }

    /// `None`: it says nothing of that.
    pub fn decode(bytes: [u8; Inside::BYTES]) -> Option<Inside> {
        let word = u64::from_le_bytes(bytes);
        let it = match word as u32 {
            1 => Inside::Environ,
            2 => Inside::Io,
            3 => Inside::Descriptors,
            kind => Inside::Link(ProcessLink::of_words([kind.checked_sub(4)?, (word >> 32) as u32])?),
        };
        (it.encode() == bytes).then_some(it)
    }

    /// Looks, over a descriptor of the process's directory. No more than `bytes_max`, the rest is cut off.
    ///
    /// # Errors
    /// As procfs has them; `NOTDIR`: it is a directory of no procfs.
    pub fn look(self, process: impl AsFd, bytes_max: usize) -> rustix::io::Result<Vec<u8>> {
        if fstatfs(&process)?.f_type != PROC_SUPER_MAGIC {
            return Err(Errno::NOTDIR);
        }
        match self {
            Inside::Environ => read(process, "environ", bytes_max),
            Inside::Io => read(process, "io", bytes_max),
            Inside::Descriptors => {
                let mut numbers: Vec<u32> = Vec::new();
                walk(&openat(process, "fd", DIRECTORY, Mode::empty())?, 0, |name, _| {
                    numbers.extend(std::str::from_utf8(name).ok().and_then(|name| name.parse::<u32>().ok()));
                    if numbers.len() < bytes_max / 4 { Walk::On } else { Walk::Enough }
                })?;
                numbers.sort_unstable();
                numbers.dedup();
                Ok(numbers.into_iter().flat_map(u32::to_le_bytes).collect())
            }
            Inside::Link(link) => {
                let target = readlinkat(process, &*link.path(), Vec::new())?.into_bytes();
                if target.is_empty() || target.len() > bytes_max { Err(Errno::NAMETOOLONG) } else { Ok(target) }
            }
        }
    }
}

/// Whether a walk over names goes on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Walk {
    On,
    Enough,
}

/// Goes over the names of a directory from a place that an earlier walk said, with the place behind each; `.` and `..`
/// are left out. The place is the descriptor's.
///
/// # Errors
/// As `getdents64(2)`.
pub fn walk(directory: &OwnedFd, from: u64, mut each: impl FnMut(&[u8], u64) -> Walk) -> rustix::io::Result<()> {
    seek(directory, SeekFrom::Start(from))?;
    let mut buffer = [MaybeUninit::uninit(); NAMES_BYTES];
    let mut names = RawDir::new(directory, &mut buffer);
    while let Some(entry) = names.next() {
        let entry = entry?;
        let is_dots = entry.file_type() == FileType::Directory && matches!(entry.file_name().to_bytes(), b"." | b"..");
        if !is_dots && each(entry.file_name().to_bytes(), entry.next_entry_cookie()) == Walk::Enough {
            break;
        }
    }
    Ok(())
}

/// Opens a directory.
///
/// # Errors
/// As `openat(2)`.
pub fn directory(place: impl AsFd, path: &str) -> rustix::io::Result<OwnedFd> {
    openat(place, path, DIRECTORY, Mode::empty())
}

/// What a file says, `bytes_max` at most.
///
/// # Errors
/// As `openat(2)` and `read(2)`.
pub fn read(place: impl AsFd, path: &str, bytes_max: usize) -> rustix::io::Result<Vec<u8>> {
    let file = openat(place, path, OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW, Mode::empty())?;
    let mut said = Vec::new();
    let limited = std::fs::File::from(file).take(bytes_max as u64).read_to_end(&mut said);
    limited.map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))?;
    Ok(said)
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd;

    use super::*;

    #[test]
    fn process_is_looked_into() {
        let own = directory(rustix::fs::CWD, "/proc/self").unwrap();
        let look = |what: Inside| what.look(&own, 1 << 20);
        let environ: Vec<u8> = std::env::vars().next().map(|(name, _)| name.into_bytes()).unwrap();
        assert!(look(Inside::Environ).unwrap().windows(environ.len()).any(|part| part == environ));
        assert!(look(Inside::Io).unwrap().starts_with(b"rchar: "));
        let numbers = look(Inside::Descriptors).unwrap();
        assert!(numbers.chunks(4).any(|number| number == own.as_raw_fd().to_le_bytes()));
        let descriptor = |number| Inside::Link(ProcessLink::Descriptor(number));
        let this = descriptor(own.as_raw_fd() as u32);
        let target = format!("/proc/{}", std::process::id());
        assert_eq!(look(this), Ok(target.clone().into_bytes()));
        assert_eq!(look(descriptor(u32::MAX)), Err(Errno::NOENT));
        let exe = std::env::current_exe().unwrap().into_os_string().into_encoded_bytes();
        assert_eq!(
            (look(Inside::Link(ProcessLink::Exe)), look(Inside::Link(ProcessLink::Root))),
            (Ok(exe), Ok(b"/".to_vec()))
        );
        assert_eq!(this.look(&own, target.len() - 1), Err(Errno::NAMETOOLONG));
        assert_eq!(Inside::Environ.look(&own, 3).unwrap().len(), 3);
        let elsewhere = tempfile::tempdir().unwrap();
        std::fs::write(elsewhere.path().join("environ"), "A=1").unwrap();
        let elsewhere = std::fs::File::open(elsewhere.path()).unwrap();
        assert_eq!(Inside::Environ.look(&elsewhere, 9), Err(Errno::NOTDIR));
    }

    #[test]
    fn questions_arrive_as_they_were_and_others_are_none() {
        let links = [ProcessLink::Descriptor(7), ProcessLink::Descriptor(!0)].into_iter().chain(ProcessLink::NAMED);
        let others = [Inside::Environ, Inside::Io, Inside::Descriptors];
        for it in links.map(Inside::Link).chain(others) {
            assert_eq!(Inside::decode(it.encode()), Some(it));
        }
        for none in [0, 8, 1 << 32 | 1, 1 << 32 | 5, u64::MAX] {
            assert_eq!(Inside::decode(u64::to_le_bytes(none)), None);
        }
    }
}
