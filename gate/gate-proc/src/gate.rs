//! The kernel's requests, and what they are answered with.
//!
//! One thread reads them and answers what this node knows. What other nodes must be asked for is left to
//! [`WORKERS`], so that a node that does not answer delays nobody else. Everything is read-only.
//!
//! A gate that is killed leaves requests that it had read; its successor asks the kernel for them again (Linux 6.9).

use std::borrow::Cow;
use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::{Duration, Instant};

use gate_fuse::kernel::{
    self, Attr, AttrOut, EntryOut, InHeader, InitIn, InitOut, OpenOut, OutHeader, ReadIn, StatfsOut, fopen, init,
};
use gate_fuse::request::{Body, Plus, Request, RequestError, parse};
use parking_lot::Mutex;
use proc_core::limits::CALLS_MAX;
use proc_core::range::Seats;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use sys::procfs::{ProcessLink, Walk};
use zerocopy::IntoBytes;

use crate::ask::{Ask, ListedProcess, ProcAnswer, ProcFacts, ProcQuestion};
use crate::directory::{BEYOND, Page, Room};
use crate::glance::{GlanceDepth, Glances};
use crate::lately::Lately;
use crate::native::{NativeProc, began_ns};
use crate::nodes::{Heard, Nodes, Others, Standing};
use crate::number::{Entry, ProcInode, decimal, name_number};
use crate::render::stat_from;
use crate::visible::Asker;

/// Threads that ask other nodes.
const WORKERS: usize = 8;
/// Requests that wait for one: a container has as many threads by default, each with one request at a time.
const WAITING_MAX: usize = CALLS_MAX;
/// What the kernel wants at least.
const REQUEST_BYTES_MAX: usize = 64 << 10;
/// Of a write, which is refused anyway.
const WRITE_BYTES: u32 = 4096;
/// How long the kernel keeps names and attributes without asking.
const KEPT_S: u64 = 1;
const KEPT: Duration = Duration::from_secs(KEPT_S);
/// As many processes as two nodes can have.
const OWNERS_MAX: usize = 1 << 17;
/// Between attempts to hear a silent node.
const PAUSE: Duration = Duration::from_millis(250);
const TICKS_PER_S: i128 = 100;

const _: () = assert!(WAITING_MAX * REQUEST_BYTES_MAX <= 1 << 30);

/// What does not change while a gate runs.
#[derive(Clone, Debug)]
pub struct ProcSetting {
    /// The native procfs, as a path from the directory where this one is mounted.
    pub behind: String,
    /// Nodes of the container but the own one.
    pub others: Seats,
}

/// Why a gate ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WhyEnded {
    Unmounted,
    Stopped,
}

/// Serves a mounted connection.
pub struct ProcGate<O> {
    fuse: OwnedFd,
    native: NativeProc,
    nodes: Nodes<O>,
    setting: ProcSetting,
    /// The next inode or handle that nobody had.
    salt: AtomicU64,
    lately: Lately,
    owners: Owners,
    glances: Glances,
}

/// What a request comes to.
type Outcome = Result<Vec<u8>, i32>;

enum Turn {
    Answer(Outcome),
    /// The kernel waits for no answer.
    Nothing,
    /// Other nodes must be asked.
    Elsewhere,
}

impl<O: Others> ProcGate<O> {
    /// # Errors
    /// There are no random numbers.
    pub fn new(fuse: OwnedFd, native: NativeProc, others: O, setting: ProcSetting) -> rustix::io::Result<ProcGate<O>> {
        let mut salt = [0; 8];
        rustix::rand::getrandom(&mut salt, rustix::rand::GetRandomFlags::empty())?;
        // Another gate's numbers are not used again: the kernel may still have their targets.
        let salt = AtomicU64::new(u64::from_le_bytes(salt) >> 9);
        let nodes = Nodes::new(others, setting.others);
        Ok(ProcGate {
            fuse,
            native,
            nodes,
            setting,
            salt,
            lately: Lately::default(),
            owners: Owners::default(),
            glances: Glances::default(),
        })
    }

    /// Until `stop` is readable or the file system was unmounted.
    ///
    /// # Errors
    /// The descriptor cannot be read, or no thread can be made.
    pub fn run(&self, stop: &OwnedFd) -> std::io::Result<WhyEnded> {
        let again = OutHeader { len: size_of::<OutHeader>() as u32, error: kernel::notify::RESEND, unique: 0 };
        // Before Linux 6.9 there is no such notification.
        let _ = rustix::io::write(&self.fuse, again.as_bytes());
        let (send, receive) = sync_channel(WAITING_MAX);
        let (receive, over) = (Mutex::new(receive), AtomicBool::new(false));
        std::thread::scope(|scope| {
            for number in 0..WORKERS {
                let work = || self.work(&receive);
                std::thread::Builder::new().name(format!("ask-{number}")).spawn_scoped(scope, work)?;
            }
            let trying = std::thread::Builder::new().name("silent".to_owned()).spawn_scoped(scope, || {
                self.nodes.tell_of_silence(std::thread::current());
                while !over.load(Ordering::Relaxed) {
                    match self.nodes.try_silent() {
                        Heard::All => std::thread::park(),
                        Heard::NotAll => std::thread::park_timeout(PAUSE),
                    }
                }
            });
            let ended = trying.and_then(|trying| {
                let ended = self.serve(stop, &send);
                over.store(true, Ordering::Relaxed);
                trying.thread().unpark();
                ended
            });
            drop(send);
            ended
        })
    }

    fn serve(&self, stop: &OwnedFd, workers: &SyncSender<Vec<u8>>) -> std::io::Result<WhyEnded> {
        let mut buffer = vec![0; REQUEST_BYTES_MAX];
        loop {
            match rustix::io::read(&self.fuse, buffer.as_mut_slice()) {
                Ok(got) => {
                    let bytes = buffer.get(..got).unwrap_or_default();
                    self.take(bytes, workers);
                }
                Err(Errno::AGAIN) => {
                    let mut ready = [PollFd::new(&self.fuse, PollFlags::IN), PollFd::new(stop, PollFlags::IN)];
                    let _ = poll(&mut ready, None::<&Timespec>);
                    let [_, stop] = ready;
                    if !stop.revents().is_empty() {
                        return Ok(WhyEnded::Stopped);
                    }
                }
                // ENOENT: the one that asked was killed before its request was read.
                Err(Errno::INTR | Errno::NOENT) => (),
                Err(Errno::NODEV | Errno::CONNABORTED) => return Ok(WhyEnded::Unmounted),
                Err(error) => return Err(error.into()),
            }
        }
    }

    fn take(&self, bytes: &[u8], workers: &SyncSender<Vec<u8>>) {
        let request = match parse(bytes) {
            Ok(request) => request,
            Err(RequestError::Short { unique, .. } | RequestError::Name { unique, .. }) => {
                return self.reply(unique, Err(libc::EINVAL));
            }
            Err(RequestError::Length { .. }) => return,
        };
        let unique = request.header.unique;
        match self.turn(&request) {
            Turn::Answer(outcome) => self.reply(unique, outcome),
            Turn::Nothing => (),
            Turn::Elsewhere => {
                if let Some(outcome) = self.remembered(&request) {
                    self.reply(unique, outcome);
                } else if workers.try_send(bytes.to_vec()).is_err() {
                    self.reply(unique, Err(libc::EAGAIN));
                }
            }
        }
    }

    fn work(&self, requests: &Mutex<Receiver<Vec<u8>>>) {
        loop {
            let next = requests.lock().recv();
            let Ok(bytes) = next else { return };
            let Ok(request) = parse(&bytes) else { continue };
            self.reply(request.header.unique, self.elsewhere(&request));
        }
    }

    fn reply(&self, unique: u64, outcome: Outcome) {
        let (error, body) = outcome.map_or_else(|errno| (-errno, Vec::new()), |body| (0, body));
        let len = (size_of::<OutHeader>() + body.len()) as u32;
        let bytes = [OutHeader { len, error, unique }.as_bytes(), &body].concat();
        match rustix::io::retry_on_intr(|| rustix::io::write(&self.fuse, &bytes)) {
            // The one that asked is gone, or the mount.
            Ok(_) | Err(Errno::NOENT | Errno::NODEV) => (),
            Err(error) => tracing::error!(%error, "the kernel did not take an answer"),
        }
    }

    // ---- what this node knows

    fn turn(&self, request: &Request<'_>) -> Turn {
        let header = &request.header;
        match &request.body {
            Body::Init { head, .. } => return Turn::Answer(agree(head)),
            Body::Forget | Body::Interrupt { .. } => return Turn::Nothing,
            Body::Destroy => return Turn::Answer(Ok(Vec::new())),
            Body::Statfs => {
                let statfs = StatfsOut { bsize: 4096, frsize: 4096, namelen: 255, ..StatfsOut::default() };
                return Turn::Answer(Ok(statfs.as_bytes().to_vec()));
            }
            Body::Release(head) => {
                self.lately.forget(head.fh);
                return Turn::Answer(Ok(Vec::new()));
            }
            // The handle is not said: what it had goes when there is no room.
            Body::Releasedir | Body::Fsyncdir => return Turn::Answer(Ok(Vec::new())),
            _ => (),
        }
        let Some(node) = ProcInode::from_number(header.nodeid) else { return Turn::Answer(Err(libc::ESTALE)) };
        match (node, &request.body) {
            (ProcInode::Root, Body::Lookup { name }) => self.look_up(name),
            (ProcInode::Dvs, Body::Lookup { name: b"nodes" }) => {
                Turn::Answer(Ok(entry(ProcInode::DvsNodes, ROOT, KEPT_S)))
            }
            (ProcInode::Remote(_) | ProcInode::Descriptors(_), Body::Lookup { .. }) => Turn::Elsewhere,
            (_, Body::Lookup { .. }) => Turn::Answer(Err(libc::ENOENT)),

            (
                ProcInode::Remote(_) | ProcInode::RemoteFile(..) | ProcInode::Descriptors(_) | ProcInode::Link(..),
                Body::Getattr,
            ) => Turn::Elsewhere,
            (_, Body::Getattr) => Turn::Answer(Ok(attributes(node, ROOT))),

            (ProcInode::Link(..), Body::Readlink) => Turn::Elsewhere,
            (_, Body::Readlink) => Turn::Answer(self.target(node, header)),

            (ProcInode::RemoteFile(..) | ProcInode::DvsNodes, Body::Open(head)) if is_writing(head.flags) => {
                Turn::Answer(Err(libc::EACCES))
            }
            (ProcInode::RemoteFile(..), Body::Open(_) | Body::Read(_)) => Turn::Elsewhere,
            (ProcInode::DvsNodes, Body::Open(_)) => Turn::Answer(Ok(self.opened(0))),
            (ProcInode::DvsNodes, Body::Read(head)) => Turn::Answer(Ok(piece(self.nodes_text().as_bytes(), head))),

            (ProcInode::Descriptors(_), Body::Opendir) => Turn::Elsewhere,
            (_, Body::Opendir) => Turn::Answer(Ok(self.opened(self.next_salt()))),
            (_, Body::Readdir { plus: Plus::WithAttributes, .. }) => Turn::Answer(Err(libc::ENOSYS)),
            (ProcInode::Root, Body::Readdir { head, .. }) if head.offset < BEYOND => match self.native_names(head) {
                Ok(page) if page.is_empty() => Turn::Elsewhere,
                outcome => Turn::Answer(outcome.map(Page::into_bytes)),
            },
            (ProcInode::Root | ProcInode::Descriptors(_), Body::Readdir { .. }) => Turn::Elsewhere,
            (ProcInode::Dvs | ProcInode::Remote(_), Body::Readdir { head, .. }) => {
                Turn::Answer(Ok(fixed_names(node, head)))
            }

            (_, body) if body.changes_the_tree() => Turn::Answer(Err(libc::EPERM)),
            _ => Turn::Answer(Err(libc::ENOSYS)),
        }
    }

    fn look_up(&self, name: &[u8]) -> Turn {
        let kept = |node| Turn::Answer(Ok(entry(node, ROOT, KEPT_S)));
        match (name, decimal(name)) {
            (b"self", _) => Turn::Answer(Ok(entry(ProcInode::Own(self.next_salt()), ROOT, 0))),
            (b"thread-self", _) => Turn::Answer(Ok(entry(ProcInode::OwnThread(self.next_salt()), ROOT, 0))),
            (b"dvs", _) => kept(ProcInode::Dvs),
            (_, Some(pid)) if self.nodes.seat_of(pid).is_some() => Turn::Elsewhere,
            _ if !self.native.has(name) => Turn::Answer(Err(libc::ENOENT)),
            (_, Some(pid)) => kept(ProcInode::Local(pid)),
            (_, None) => kept(ProcInode::Native(name_number(name))),
        }
    }

    fn target(&self, node: ProcInode, header: &InHeader) -> Outcome {
        let behind = &self.setting.behind;
        let process = || self.native.process_of(header.pid).ok_or(libc::ENOENT);
        match node {
            ProcInode::Own(_) => Ok(process()?.to_string().into_bytes()),
            ProcInode::OwnThread(_) => Ok(format!("{}/task/{}", process()?, header.pid).into_bytes()),
            ProcInode::Local(pid) => Ok(format!("{behind}/{pid}").into_bytes()),
            ProcInode::Native(number) => {
                let name = self.native.name_of(number).ok_or(libc::ENOENT)?;
                Ok([behind.as_bytes(), b"/", &name].concat())
            }
            _ => Err(libc::EINVAL),
        }
    }

    /// Names of procfs; none: there are no more.
    fn native_names(&self, head: &ReadIn) -> Result<Page, i32> {
        let mut page = Page::new(head.size as usize);
        let walked = self.native.walk(head.offset, |name, place| {
            let node = match (name, decimal(name)) {
                (b"self", _) => ProcInode::Own(1),
                (b"thread-self", _) => ProcInode::OwnThread(1),
                // A number of another node's range is that node's, whoever has it here.
                (_, Some(pid)) if self.nodes.seat_of(pid).is_some() => return Walk::On,
                (_, Some(pid)) => ProcInode::Local(pid),
                (_, None) => ProcInode::Native(name_number(name)),
            };
            if page.push(node, name, place) == Room::Left { Walk::On } else { Walk::Enough }
        });
        walked.map_err(Errno::raw_os_error)?;
        Ok(page)
    }

    fn nodes_text(&self) -> String {
        let own = self.native.own();
        let mut lines: Vec<(usize, String)> = vec![(own.index(), "own".to_owned())];
        lines.extend(self.nodes.standings().into_iter().map(|(seat, standing)| {
            let standing = match standing {
                Standing::Answers => "answers",
                Standing::Silent => "silent",
            };
            (seat.index(), standing.to_owned())
        }));
        lines.sort();
        lines.iter().map(|(index, standing)| format!("{index} {} {standing}\n", (index + 1) << 16)).collect()
    }

    fn opened(&self, fh: u64) -> Vec<u8> {
        OpenOut { fh, open_flags: fopen::DIRECT_IO, backing_id: 0 }.as_bytes().to_vec()
    }

    /// A link that may lead elsewhere next time: the kernel keeps a target as long as it has the inode, and that until
    /// another generation of it is found.
    fn fresh(&self, node: ProcInode, owner: Owner) -> Vec<u8> {
        let attr = attr(node, owner);
        let out = EntryOut { nodeid: attr.ino, generation: self.next_salt(), attr, ..EntryOut::default() };
        out.as_bytes().to_vec()
    }

    fn next_salt(&self) -> u64 {
        self.salt.fetch_add(1, Ordering::Relaxed)
    }

    /// What other nodes would be asked for, had they not said it a moment ago. Another thread would take longer to wake
    /// than this takes.
    fn remembered(&self, request: &Request<'_>) -> Option<Outcome> {
        let node = ProcInode::from_number(request.header.nodeid)?;
        match (node, &request.body) {
            (ProcInode::Root, Body::Lookup { name }) => {
                let pid = decimal(name)?;
                Some(Ok(entry(ProcInode::Remote(pid), self.owners.find(pid)?, KEPT_S)))
            }
            (ProcInode::Remote(pid), Body::Lookup { name }) => {
                let owner = self.owners.find(pid)?;
                Some(match inside(pid, name) {
                    Some(node @ ProcInode::Link(..)) => Ok(self.fresh(node, owner)),
                    node => node.map(|node| entry(node, owner, KEPT_S)).ok_or(libc::ENOENT),
                })
            }
            (ProcInode::Remote(pid) | ProcInode::RemoteFile(pid, _) | ProcInode::Descriptors(pid), Body::Getattr) => {
                Some(Ok(attributes(node, self.owners.find(pid)?)))
            }
            (ProcInode::RemoteFile(pid, file), Body::Open(_)) => {
                let header = &request.header;
                if file == Entry::Environ && !self.native.asker(header.pid, header.uid, header.gid).may_trace_all() {
                    return None;
                }
                let (said, handle) = (self.glances.take(pid, file)?, self.next_salt());
                self.lately.keep(handle, said);
                Some(Ok(self.opened(handle)))
            }
            (ProcInode::RemoteFile(..), Body::Read(head)) => Some(Ok(piece(&self.lately.find(head.fh)?, head))),
            _ => None,
        }
    }

    // ---- what other nodes know

    fn elsewhere(&self, request: &Request<'_>) -> Outcome {
        let header = &request.header;
        let node = ProcInode::from_number(header.nodeid).ok_or(libc::ESTALE)?;
        let asker = self.native.asker(header.pid, header.uid, header.gid);
        match (node, &request.body) {
            (ProcInode::Root, Body::Lookup { name }) => {
                let pid = decimal(name).ok_or(libc::ENOENT)?;
                Ok(entry(ProcInode::Remote(pid), self.owner(pid, asker)?, KEPT_S))
            }
            (ProcInode::Remote(pid), Body::Lookup { name }) => {
                let node = inside(pid, name).ok_or(libc::ENOENT)?;
                let owner = self.owner(pid, asker)?;
                Ok(if matches!(node, ProcInode::Link(..)) {
                    self.fresh(node, owner)
                } else {
                    entry(node, owner, KEPT_S)
                })
            }
            (ProcInode::Descriptors(pid), Body::Lookup { name }) => {
                let fd = decimal(name).ok_or(libc::ENOENT)?;
                let link = ProcessLink::Descriptor(fd);
                self.link(pid, link, asker)?;
                Ok(self.fresh(ProcInode::Link(pid, link), self.owner(pid, asker)?))
            }
            (
                ProcInode::Remote(pid)
                | ProcInode::RemoteFile(pid, _)
                | ProcInode::Descriptors(pid)
                | ProcInode::Link(pid, _),
                Body::Getattr,
            ) => Ok(attributes(node, self.owner(pid, asker)?)),
            (ProcInode::Link(pid, link), Body::Readlink) => self.link(pid, link, asker),
            (ProcInode::RemoteFile(pid, file), Body::Open(_)) => {
                let (handle, said) = (self.next_salt(), self.file(pid, file, asker)?);
                self.lately.keep(handle, Arc::new(said));
                Ok(self.opened(handle))
            }
            (ProcInode::RemoteFile(pid, file), Body::Read(head)) => {
                let said = match self.lately.find(head.fh) {
                    Some(said) => said,
                    None => Arc::new(self.file(pid, file, asker)?),
                };
                Ok(piece(&said, head))
            }
            (ProcInode::Descriptors(pid), Body::Opendir) => {
                self.descriptors(pid, asker)?;
                Ok(self.opened(self.next_salt()))
            }
            (ProcInode::Descriptors(pid), Body::Readdir { head, .. }) => {
                let mut page = Page::new(head.size as usize);
                for fd in self.descriptors(pid, asker)?.into_iter().filter(|fd| u64::from(*fd) >= head.offset) {
                    let name = fd.to_string();
                    if page.push(ProcInode::Link(pid, ProcessLink::Descriptor(fd)), name.as_bytes(), u64::from(fd) + 1)
                        == Room::None
                    {
                        break;
                    }
                }
                Ok(page.into_bytes())
            }
            (ProcInode::Root, Body::Readdir { head, .. }) => Ok(self.remote_names(head, asker)),
            _ => Err(libc::ENOSYS),
        }
    }

    fn remote_names(&self, head: &ReadIn, asker: Asker) -> Vec<u8> {
        let mut page = Page::new(head.size as usize);
        // By the place behind it: `dvs` ends there, and each process at its number and one.
        if head.offset <= BEYOND && page.push(ProcInode::Dvs, b"dvs", BEYOND + 1) == Room::None {
            return page.into_bytes();
        }
        let from = head.offset.saturating_sub(BEYOND);
        for pid in self.listed(head.fh, asker).into_iter().filter(|pid| u64::from(*pid) >= from) {
            let place = BEYOND + u64::from(pid) + 1;
            if page.push(ProcInode::Remote(pid), pid.to_string().as_bytes(), place) == Room::None {
                break;
            }
        }
        page.into_bytes()
    }

    /// Numbers of all other nodes' processes, asked for once by whoever reads a directory.
    fn listed(&self, handle: u64, asker: Asker) -> Vec<u32> {
        if let Some(said) = self.lately.find(handle) {
            let words = said.chunks_exact(4).filter_map(|word| word.try_into().ok());
            return words.map(u32::from_le_bytes).collect();
        }
        let listed = self.nodes.processes(asker);
        self.owners.keep(&listed);
        let pids: Vec<u32> = listed.iter().map(|one| one.pid).collect();
        let bytes = pids.iter().flat_map(|pid| pid.to_le_bytes()).collect();
        self.lately.keep(handle, Arc::new(bytes));
        pids
    }

    /// A node that does not answer has no processes.
    fn ask(&self, pid: u32, question: ProcQuestion, asker: Asker) -> Result<(u64, ProcFacts), i32> {
        let seat = self.nodes.seat_of(pid).ok_or(libc::ENOENT)?;
        let ProcAnswer { began_ns, said } = self.nodes.ask(seat, &Ask { question, asker }).map_err(|_| libc::ENOENT)?;
        said.map(|said| (began_ns, said))
    }

    /// As old as what the kernel keeps, at most.
    fn owner(&self, pid: u32, asker: Asker) -> Result<Owner, i32> {
        if let Some(owner) = self.owners.find(pid) {
            return Ok(owner);
        }
        match self.ask(pid, ProcQuestion::Owner(pid), asker)?.1 {
            ProcFacts::Processes(listed) => {
                self.owners.keep(&listed);
                listed.first().map(|one| Owner { uid: one.uid, gid: one.gid }).ok_or(libc::ENOENT)
            }
            _ => Err(libc::EIO),
        }
    }

    fn file(&self, pid: u32, file: Entry, asker: Asker) -> Outcome {
        let is_glanced_at = match file {
            Entry::Stat | Entry::Status | Entry::Cmdline => true,
            Entry::Environ => asker.may_trace_all(),
            _ => false,
        };
        if is_glanced_at {
            if let Some(said) = self.glances.take(pid, file) {
                return Ok(said.to_vec());
            }
            // A cmdline that was not read with the others waits for its process.
            if file != Entry::Cmdline && self.glances.is_walk(pid, file) {
                self.glance_from(pid, asker);
                if let Some(said) = self.glances.take(pid, file) {
                    return Ok(said.to_vec());
                }
            }
        }
        let (began, said) = self.ask(pid, ProcQuestion::File(pid, file), asker)?;
        let ProcFacts::Bytes(said) = said else { return Err(libc::EIO) };
        Ok(if file == Entry::Stat { stat_here(&said, began) } else { said })
    }

    fn glance_from(&self, pid: u32, asker: Asker) {
        let depth =
            if asker.may_trace_all() && self.glances.go_into() { GlanceDepth::Inside } else { GlanceDepth::Outside };
        let Ok((began, ProcFacts::Glances(mut glances))) = self.ask(pid, ProcQuestion::Glances(pid, depth), asker)
        else {
            return;
        };
        glances.iter_mut().for_each(|glance| glance.stat = stat_here(&glance.stat, began));
        self.glances.keep(glances);
    }

    fn descriptors(&self, pid: u32, asker: Asker) -> Result<Vec<u32>, i32> {
        match self.ask(pid, ProcQuestion::Descriptors(pid), asker)?.1 {
            ProcFacts::Descriptors(numbers) => Ok(numbers),
            _ => Err(libc::EIO),
        }
    }

    fn link(&self, pid: u32, link: ProcessLink, asker: Asker) -> Outcome {
        match self.ask(pid, ProcQuestion::Link(pid, link), asker)?.1 {
            ProcFacts::Bytes(target) => Ok(target),
            _ => Err(libc::EIO),
        }
    }
}

/// Times in it count from this machine's start. `began`: the other one's.
fn stat_here(said: &[u8], began: u64) -> Vec<u8> {
    let later = (i128::from(began_ns()) - i128::from(began)) * TICKS_PER_S / 1_000_000_000;
    stat_from(said, i64::try_from(later).unwrap_or(0))
}

/// Whose processes of other nodes were lately: who lists a directory looks at all of them next.
#[derive(Debug, Default)]
struct Owners(Mutex<HashMap<u32, (Owner, Instant)>>);

impl Owners {
    fn keep(&self, listed: &[ListedProcess]) {
        let (now, mut owners) = (Instant::now(), self.0.lock());
        if owners.len() + listed.len() > OWNERS_MAX {
            owners.retain(|_, (_, heard)| now.duration_since(*heard) < KEPT);
        }
        for one in listed.iter().take(OWNERS_MAX.saturating_sub(owners.len())) {
            owners.insert(one.pid, (Owner { uid: one.uid, gid: one.gid }, now));
        }
    }

    fn find(&self, pid: u32) -> Option<Owner> {
        let owners = self.0.lock();
        owners.get(&pid).filter(|(_, heard)| heard.elapsed() < KEPT).map(|(owner, _)| *owner)
    }
}

/// Whose a file is.
#[derive(Clone, Copy, Debug)]
struct Owner {
    uid: u32,
    gid: u32,
}

const ROOT: Owner = Owner { uid: 0, gid: 0 };

/// What has this name in the directory of a process.
fn inside(pid: u32, name: &[u8]) -> Option<ProcInode> {
    match name {
        b"fd" => Some(ProcInode::Descriptors(pid)),
        b"exe" => Some(ProcInode::Link(pid, ProcessLink::Exe)),
        b"cwd" => Some(ProcInode::Link(pid, ProcessLink::Cwd)),
        b"root" => Some(ProcInode::Link(pid, ProcessLink::Root)),
        _ => Some(ProcInode::RemoteFile(pid, Entry::from_name(name)?)),
    }
}

fn agree(head: &InitIn) -> Outcome {
    if head.major != kernel::VERSION_MAJOR || head.minor < kernel::VERSION_MINOR_MIN {
        return Err(libc::EPROTO);
    }
    const WISHES: u64 = init::BIG_WRITES | init::PARALLEL_DIROPS | init::ABORT_ERROR | init::CACHE_SYMLINKS;
    let flags = head.flags & u32::try_from(WISHES).unwrap_or(0);
    let minor = head.minor.min(kernel::VERSION_MINOR);
    let (major, max_readahead) = (kernel::VERSION_MAJOR, head.max_readahead);
    let out =
        InitOut { major, minor, max_readahead, flags, max_write: WRITE_BYTES, time_gran: 1, ..InitOut::default() };
    Ok(out.as_bytes().to_vec())
}

fn is_writing(flags: u32) -> bool {
    flags & libc::O_ACCMODE as u32 != libc::O_RDONLY as u32
}

fn attr(node: ProcInode, owner: Owner) -> Attr {
    let (mode, nlink) = match node {
        ProcInode::Root | ProcInode::Dvs | ProcInode::Remote(_) => (libc::S_IFDIR | 0o555, 2),
        ProcInode::Descriptors(_) => (libc::S_IFDIR | 0o500, 2),
        ProcInode::Own(_) | ProcInode::OwnThread(_) | ProcInode::Local(_) | ProcInode::Native(_) => {
            (libc::S_IFLNK | 0o777, 1)
        }
        ProcInode::Link(_, ProcessLink::Descriptor(_)) => (libc::S_IFLNK | 0o500, 1),
        ProcInode::Link(..) => (libc::S_IFLNK | 0o777, 1),
        ProcInode::DvsNodes => (libc::S_IFREG | 0o444, 1),
        ProcInode::RemoteFile(_, entry) => (libc::S_IFREG | entry.mode(), 1),
    };
    Attr { ino: node.number(), mode, nlink, uid: owner.uid, gid: owner.gid, blksize: 1024, ..Attr::default() }
}

fn entry(node: ProcInode, owner: Owner, kept_s: u64) -> Vec<u8> {
    let attr = attr(node, owner);
    let out = EntryOut { nodeid: attr.ino, entry_valid: kept_s, attr_valid: kept_s, attr, ..EntryOut::default() };
    out.as_bytes().to_vec()
}

fn attributes(node: ProcInode, owner: Owner) -> Vec<u8> {
    AttrOut { attr_valid: KEPT_S, attr: attr(node, owner), ..AttrOut::default() }.as_bytes().to_vec()
}

fn piece(said: &[u8], head: &ReadIn) -> Vec<u8> {
    let from = usize::try_from(head.offset).unwrap_or(usize::MAX).min(said.len());
    let to = from.saturating_add(head.size as usize).min(said.len());
    said.get(from..to).unwrap_or_default().to_vec()
}

fn fixed_names(directory: ProcInode, head: &ReadIn) -> Vec<u8> {
    let names: Vec<(ProcInode, Cow<'static, str>)> = match directory {
        ProcInode::Dvs => vec![(ProcInode::DvsNodes, "nodes".into())],
        ProcInode::Remote(pid) => {
            let files = Entry::ALL.iter().map(|entry| (ProcInode::RemoteFile(pid, *entry), entry.name().into()));
            let links = ProcessLink::NAMED.map(|link| (ProcInode::Link(pid, link), link.path()));
            files.chain([(ProcInode::Descriptors(pid), "fd".into())]).chain(links).collect()
        }
        _ => Vec::new(),
    };
    let mut page = Page::new(head.size as usize);
    for ((node, name), place) in names.into_iter().zip(1..).filter(|(_, place)| *place > head.offset) {
        if page.push(node, name.as_bytes(), place) == Room::None {
            break;
        }
    }
    page.into_bytes()
}
