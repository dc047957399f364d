//! The procfs behind: what it has, and answers to other nodes about its processes.
//!
//! A process is looked at over a descriptor of its directory, which stays with the process: a number that is given anew
//! meanwhile is another one's, and reads fail.
//!
//! Some files wait for a lock of the process's memory, which may itself wait for a gate. They are read in a thread of
//! their own that is given up after [`PATIENCE`].

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::sync_channel;
use std::time::Duration;

use proc_core::caller::Uids;
use proc_core::limits::STATUS_BYTES_MAX;
use proc_core::range::Seat;
use rustix::fs::{AtFlags, FileType, Mode, OFlags, RawDir, SeekFrom, openat, readlinkat, seek, statat};
use rustix::io::Errno;
use rustix::time::{ClockId, clock_gettime};

use crate::ask::{
    Ask, BODY_BYTES_MAX, DESCRIPTORS_MAX, LINK_BYTES_MAX, ListedProcess, ProcAnswer, ProcFacts, ProcQuestion, told,
};
use crate::number::{Entry, SeenBy, decimal, name_number};
use crate::render::{NOBODY, status_inside};
use crate::visible::{Asker, Looked};

/// For a file that may wait for its process.
const PATIENCE: Duration = Duration::from_secs(1);
/// Threads that wait for processes; who asks beyond them is to come again.
const READERS_MAX: usize = 16;
/// Of one call for names.
const NAMES_BYTES: usize = 8 << 10;

/// A container's procfs, seen from outside the container.
#[derive(Debug)]
pub struct NativeProc {
    root: OwnedFd,
    /// The node's own, whose processes others are told about.
    own: Seat,
    ids: Uids,
    readers: Arc<AtomicUsize>,
}

/// Whether a walk over names goes on.
pub enum Walk {
    On,
    Enough,
}

impl NativeProc {
    /// `root` is the directory of a procfs.
    pub fn new(root: OwnedFd, own: Seat, ids: Uids) -> NativeProc {
        NativeProc { root, own, ids, readers: Arc::default() }
    }

    pub fn own(&self) -> Seat {
        self.own
    }

    pub fn has(&self, name: &[u8]) -> bool {
        statat(&self.root, name, AtFlags::SYMLINK_NOFOLLOW).is_ok()
    }

    /// Goes over names from a place that an earlier walk said, with the place behind each.
    pub fn walk(&self, from: u64, each: impl FnMut(&[u8], u64) -> Walk) -> rustix::io::Result<()> {
        // A descriptor of its own: the place is the descriptor's.
        walk(&openat(&self.root, ".", DIRECTORY, Mode::empty())?, from, each)
    }

    /// The name that has this number ([`name_number`]).
    pub fn name_of(&self, number: u64) -> Option<Vec<u8>> {
        let mut found = None;
        let walked = self.walk(0, |name, _| {
            let is_it = decimal(name).is_none() && name_number(name) == number;
            found = is_it.then(|| name.to_vec());
            if is_it { Walk::Enough } else { Walk::On }
        });
        walked.ok().and(found)
    }

    /// Who asks: a thread of the container, and the ids in its request. One that is not in the container has no
    /// capabilities in it.
    pub fn asker(&self, thread: u32, uid: u32, gid: u32) -> Asker {
        let effective = self.status_line(thread, "CapEff:").and_then(|hex| u64::from_str_radix(&hex, 16).ok());
        Asker { uid, gid, effective: effective.unwrap_or(0) }
    }

    /// Of a thread.
    pub fn process_of(&self, thread: u32) -> Option<u32> {
        self.status_line(thread, "Tgid:")?.parse().ok()
    }

    fn status_line(&self, thread: u32, name: &str) -> Option<String> {
        if thread == 0 {
            return None;
        }
        let status = read_at(&self.root, &format!("{thread}/status"), STATUS_BYTES_MAX).ok()?;
        let line = status.split(|byte| *byte == b'\n').find_map(|line| line.strip_prefix(name.as_bytes()))?;
        Some(std::str::from_utf8(line).ok()?.trim().to_owned())
    }

    /// What another node is told.
    pub fn answer(&self, ask: &Ask) -> ProcAnswer {
        let said = match ask.question {
            ProcQuestion::Processes => self.processes().map(ProcFacts::Processes),
            ProcQuestion::Owner(pid) => self
                .process(pid)
                .and_then(|process| Ok(ProcFacts::Processes(vec![self.listed(pid, process.as_fd(), "")?]))),
            ProcQuestion::File(pid, entry) => self.file(pid, entry, &ask.asker).map(ProcFacts::Bytes),
            ProcQuestion::Descriptors(pid) => self.descriptors(pid, &ask.asker).map(ProcFacts::Descriptors),
            ProcQuestion::Descriptor(pid, fd) => self.descriptor(pid, fd, &ask.asker).map(ProcFacts::Bytes),
        };
        ProcAnswer { began_ns: began_ns(), said: said.map_err(|errno| told(errno.raw_os_error())) }
    }

    fn processes(&self) -> rustix::io::Result<Vec<ListedProcess>> {
        let mut listed = Vec::new();
        self.walk(0, |name, _| {
            let pid = decimal(name).filter(|pid| Seat::of_pid(*pid) == Some(self.own));
            // One that ended meanwhile is left out.
            listed.extend(pid.and_then(|pid| self.listed(pid, self.root.as_fd(), &pid.to_string()).ok()));
            Walk::On
        })?;
        listed.sort_unstable_by_key(|one| one.pid);
        listed.dedup_by_key(|one| one.pid);
        Ok(listed)
    }

    fn listed(&self, pid: u32, place: impl AsFd, path: &str) -> rustix::io::Result<ListedProcess> {
        let stat = statat(place, path, AtFlags::EMPTY_PATH)?;
        let inside = |id| self.ids.inside(id).unwrap_or(NOBODY);
        Ok(ListedProcess { pid, uid: inside(stat.st_uid), gid: inside(stat.st_gid) })
    }

    fn process(&self, pid: u32) -> rustix::io::Result<OwnedFd> {
        if Seat::of_pid(pid) != Some(self.own) {
            return Err(Errno::NOENT);
        }
        openat(&self.root, pid.to_string(), DIRECTORY, Mode::empty())
    }

    fn file(&self, pid: u32, entry: Entry, asker: &Asker) -> rustix::io::Result<Vec<u8>> {
        let process = self.process(pid)?;
        let read = |process: &OwnedFd| match entry {
            Entry::Cmdline | Entry::Environ | Entry::Io => self.read_patiently(process, entry.name()),
            _ => read_at(process, entry.name(), BODY_BYTES_MAX),
        };
        let said = match entry.seen() {
            SeenBy::ByAll => read(&process)?,
            SeenBy::ByWhoMayTrace => self.looking_into(&process, asker, read)?,
        };
        Ok(if entry == Entry::Status { status_inside(&said, self.ids) } else { said })
    }

    fn descriptors(&self, pid: u32, asker: &Asker) -> rustix::io::Result<Vec<u32>> {
        self.looking_into(&self.process(pid)?, asker, |process| {
            let mut numbers = Vec::new();
            walk(&openat(process, "fd", DIRECTORY, Mode::empty())?, 0, |name, _| {
                numbers.extend(decimal(name));
                if numbers.len() < DESCRIPTORS_MAX { Walk::On } else { Walk::Enough }
            })?;
            numbers.sort_unstable();
            numbers.dedup();
            Ok(numbers)
        })
    }

    fn descriptor(&self, pid: u32, fd: u32, asker: &Asker) -> rustix::io::Result<Vec<u8>> {
        self.looking_into(&self.process(pid)?, asker, |process| {
            let target = readlinkat(process, format!("fd/{fd}"), Vec::new())?.into_bytes();
            if target.is_empty() || target.len() > LINK_BYTES_MAX { Err(Errno::NAMETOOLONG) } else { Ok(target) }
        })
    }

    /// What only who may trace the process sees: it is asked before and after whether he may, because the process may
    /// have become another user's meanwhile.
    fn looking_into<T>(
        &self,
        process: &OwnedFd,
        asker: &Asker,
        look: impl Fn(&OwnedFd) -> rustix::io::Result<T>,
    ) -> rustix::io::Result<T> {
        self.check_access(process, asker)?;
        let seen = look(process)?;
        self.check_access(process, asker)?;
        Ok(seen)
    }

    fn check_access(&self, process: &OwnedFd, asker: &Asker) -> rustix::io::Result<()> {
        let status = read_at(process, "status", STATUS_BYTES_MAX)?;
        let owner = statat(process, "status", AtFlags::empty())?.st_uid;
        let looked = Looked::of_status(&status, self.ids.inside(owner).unwrap_or(NOBODY), self.ids);
        if looked.is_some_and(|looked| looked.may_be_looked_into_by(asker)) { Ok(()) } else { Err(Errno::ACCESS) }
    }

    fn read_patiently(&self, process: &OwnedFd, name: &'static str) -> rustix::io::Result<Vec<u8>> {
        let place = Place::take(&self.readers).ok_or(Errno::AGAIN)?;
        let process = process.try_clone().map_err(|_| Errno::AGAIN)?;
        let (send, receive) = sync_channel(1);
        let read = move || {
            let _ = send.send(read_at(&process, name, BODY_BYTES_MAX));
            drop(place);
        };
        std::thread::Builder::new().name("reader".to_owned()).spawn(read).map_err(|_| Errno::AGAIN)?;
        receive.recv_timeout(PATIENCE).unwrap_or(Err(Errno::IO))
    }
}

/// One of [`READERS_MAX`].
struct Place(Arc<AtomicUsize>);

impl Place {
    fn take(taken: &Arc<AtomicUsize>) -> Option<Place> {
        let place = Place(Arc::clone(taken));
        (taken.fetch_add(1, Ordering::Relaxed) < READERS_MAX).then_some(place)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

const DIRECTORY: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);

fn walk(directory: &OwnedFd, from: u64, mut each: impl FnMut(&[u8], u64) -> Walk) -> rustix::io::Result<()> {
    seek(directory, SeekFrom::Start(from))?;
    let mut buffer = [MaybeUninit::uninit(); NAMES_BYTES];
    let mut names = RawDir::new(directory, &mut buffer);
    while let Some(entry) = names.next() {
        let entry = entry?;
        let is_dots = entry.file_type() == FileType::Directory && matches!(entry.file_name().to_bytes(), b"." | b"..");
        if !is_dots && matches!(each(entry.file_name().to_bytes(), entry.next_entry_cookie()), Walk::Enough) {
            break;
        }
    }
    Ok(())
}

fn read_at(place: impl AsFd, path: &str, bytes_max: usize) -> rustix::io::Result<Vec<u8>> {
    use io::Read;
    let file = openat(place, path, OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW, Mode::empty())?;
    let mut read = Vec::new();
    let limited = std::fs::File::from(file).take(bytes_max as u64).read_to_end(&mut read);
    limited.map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))?;
    Ok(read)
}

/// When this machine began, in nanoseconds since 1970.
pub fn began_ns() -> u64 {
    let ns = |clock| {
        let time = clock_gettime(clock);
        i128::from(time.tv_sec) * 1_000_000_000 + i128::from(time.tv_nsec)
    };
    u64::try_from(ns(ClockId::Realtime) - ns(ClockId::Boottime)).unwrap_or(0)
}
