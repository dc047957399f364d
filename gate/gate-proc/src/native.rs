//! The procfs behind: what it has, and answers to other nodes about its processes.
//!
//! A process is looked at over a descriptor of its directory, which stays with the process: a number that is given anew
//! meanwhile is another one's, and reads fail.
//!
//! Some files wait for a lock of the process's memory, which may itself wait for a gate. They are read in a thread of
//! their own that is given up after [`PATIENCE`].

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::sync_channel;
use std::time::{Duration, Instant};

use proc_core::caller::Uids;
use proc_core::limits::STATUS_BYTES_MAX;
use proc_core::range::Seat;
use rustix::fs::{AtFlags, statat};
use rustix::io::Errno;
use rustix::time::{ClockId, clock_gettime};
use sys::procfs::{self, Inside, ProcessLink, Walk};

use crate::ask::{
    Ask, BODY_BYTES_MAX, DESCRIPTORS_MAX, LINK_BYTES_MAX, ListedProcess, ProcAnswer, ProcFacts, ProcQuestion, told,
};
use crate::glance::{GLANCE_BYTES_MAX, GLANCES_MAX, Glance, GlanceDepth};
use crate::number::{Entry, decimal, name_number};
use crate::render::{NOBODY, status_inside};
use crate::visible::{Asker, Looked};

/// For a file that may wait for its process.
const PATIENCE: Duration = Duration::from_secs(1);
/// For all files that may wait, of one question for glances.
const GLANCE_PATIENCE: Duration = Duration::from_millis(200);
/// Threads that wait for processes; who asks beyond them is to come again.
const READERS_MAX: usize = 16;

/// A container's procfs, seen from outside the container.
pub struct NativeProc {
    root: OwnedFd,
    /// The node's own, whose processes others are told about.
    own: Seat,
    ids: Uids,
    readers: Arc<AtomicUsize>,
    looker: Arc<dyn Look>,
}

/// Looks into processes where the gate itself may not.
pub trait Look: Send + Sync {
    /// No more than `bytes_max`.
    ///
    /// # Errors
    /// As procfs has them; `AGAIN`: too many look.
    fn look(&self, process: BorrowedFd<'_>, what: Inside, bytes_max: usize) -> rustix::io::Result<Vec<u8>>;
}

/// Of who may do so itself.
#[derive(Clone, Copy, Debug)]
pub struct Directly;

impl Look for Directly {
    fn look(&self, process: BorrowedFd<'_>, what: Inside, bytes_max: usize) -> rustix::io::Result<Vec<u8>> {
        what.look(process, bytes_max)
    }
}

impl NativeProc {
    /// `root` is the directory of a procfs.
    pub fn new(root: OwnedFd, own: Seat, ids: Uids, looker: Arc<dyn Look>) -> NativeProc {
        NativeProc { root, own, ids, readers: Arc::default(), looker }
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
        procfs::walk(&procfs::directory(&self.root, ".")?, from, each)
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
        let status = procfs::read(&self.root, &format!("{thread}/status"), STATUS_BYTES_MAX).ok()?;
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
            ProcQuestion::Link(pid, link) => self.link(pid, link, &ask.asker).map(ProcFacts::Bytes),
            ProcQuestion::Glances(from, depth) => self.glances(from, depth, &ask.asker).map(ProcFacts::Glances),
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

    /// Of the next ones from a number on. What everybody may see, and inside what the asker may.
    fn glances(&self, from: u32, depth: GlanceDepth, asker: &Asker) -> rustix::io::Result<Vec<Glance>> {
        let mut pids = Vec::new();
        self.walk(0, |name, _| {
            pids.extend(decimal(name).filter(|pid| *pid >= from && Seat::of_pid(*pid) == Some(self.own)));
            Walk::On
        })?;
        pids.sort_unstable();
        pids.truncate(GLANCES_MAX);
        let until = Instant::now() + GLANCE_PATIENCE;
        // One that ended meanwhile is left out.
        let mut glances: Vec<Glance> = pids.into_iter().filter_map(|pid| self.glance(pid, until)).collect();
        if depth == GlanceDepth::Inside {
            for glance in glances.iter_mut().take_while(|_| Instant::now() < until) {
                let process = self.process(glance.pid);
                let said = process.and_then(|it| self.look_into(&it, asker, Inside::Environ, GLANCE_BYTES_MAX + 1));
                glance.environ = said.ok().filter(|said| said.len() <= GLANCE_BYTES_MAX);
            }
        }
        Ok(glances)
    }

    fn glance(&self, pid: u32, until: Instant) -> Option<Glance> {
        let process = self.process(pid).ok()?;
        let read = |name| {
            procfs::read(&process, name, GLANCE_BYTES_MAX + 1).ok().filter(|said| said.len() <= GLANCE_BYTES_MAX)
        };
        let (stat, status) = (read("stat")?, status_inside(&read("status")?, self.ids));
        // It may wait for the process: then it is left to who asks for it alone.
        let left = until.saturating_duration_since(Instant::now());
        let cmdline = self.read_within(&process, "cmdline", left).ok().filter(|said| said.len() <= GLANCE_BYTES_MAX);
        (status.len() <= GLANCE_BYTES_MAX).then_some(Glance { pid, stat, status, cmdline, environ: None })
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
        procfs::directory(&self.root, &pid.to_string())
    }

    fn file(&self, pid: u32, entry: Entry, asker: &Asker) -> rustix::io::Result<Vec<u8>> {
        let process = self.process(pid)?;
        let said = match entry {
            Entry::Environ => self.look_into(&process, asker, Inside::Environ, BODY_BYTES_MAX)?,
            Entry::Io => self.look_into(&process, asker, Inside::Io, BODY_BYTES_MAX)?,
            Entry::Cmdline => self.read_patiently(&process, entry.name())?,
            _ => procfs::read(&process, entry.name(), BODY_BYTES_MAX)?,
        };
        Ok(if entry == Entry::Status { status_inside(&said, self.ids) } else { said })
    }

    fn descriptors(&self, pid: u32, asker: &Asker) -> rustix::io::Result<Vec<u32>> {
        let seen = self.look_into(&self.process(pid)?, asker, Inside::Descriptors, 4 * DESCRIPTORS_MAX)?;
        Ok(seen.chunks_exact(4).filter_map(|four| four.try_into().ok()).map(u32::from_le_bytes).collect())
    }

    fn link(&self, pid: u32, link: ProcessLink, asker: &Asker) -> rustix::io::Result<Vec<u8>> {
        self.look_into(&self.process(pid)?, asker, Inside::Link(link), LINK_BYTES_MAX)
    }

    /// What only who may trace the process sees: it is asked before and after whether he may, because the process may
    /// have become another user's meanwhile.
    fn look_into(
        &self,
        process: &OwnedFd,
        asker: &Asker,
        what: Inside,
        bytes_max: usize,
    ) -> rustix::io::Result<Vec<u8>> {
        self.check_access(process, asker)?;
        let seen = self.looker.look(process.as_fd(), what, bytes_max)?;
        self.check_access(process, asker)?;
        Ok(seen)
    }

    fn check_access(&self, process: &OwnedFd, asker: &Asker) -> rustix::io::Result<()> {
        let status = procfs::read(process, "status", STATUS_BYTES_MAX)?;
        let owner = statat(process, "status", AtFlags::empty())?.st_uid;
        let looked = Looked::of_status(&status, self.ids.inside(owner).unwrap_or(NOBODY), self.ids);
        if looked.is_some_and(|looked| looked.may_be_looked_into_by(asker)) { Ok(()) } else { Err(Errno::ACCESS) }
    }

    fn read_patiently(&self, process: &OwnedFd, name: &'static str) -> rustix::io::Result<Vec<u8>> {
        self.read_within(process, name, PATIENCE)
    }

    fn read_within(&self, process: &OwnedFd, name: &'static str, limit: Duration) -> rustix::io::Result<Vec<u8>> {
        let place = Place::take(&self.readers).ok_or(Errno::AGAIN)?;
        let process = process.try_clone().map_err(|_| Errno::AGAIN)?;
        let (send, receive) = sync_channel(1);
        let read = move || {
            let _ = send.send(procfs::read(&process, name, BODY_BYTES_MAX));
            drop(place);
        };
        std::thread::Builder::new().name("reader".to_owned()).spawn(read).map_err(|_| Errno::AGAIN)?;
        receive.recv_timeout(limit).unwrap_or(Err(Errno::IO))
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

/// When this machine began, in nanoseconds since 1970.
pub fn began_ns() -> u64 {
    let ns = |clock| {
        let time = clock_gettime(clock);
        i128::from(time.tv_sec) * 1_000_000_000 + i128::from(time.tv_nsec)
    };
    u64::try_from(ns(ClockId::Realtime) - ns(ClockId::Boottime)).unwrap_or(0)
}
