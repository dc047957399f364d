//! A file tree in memory that answers `vos_api::fs` as the fs server would: the reference the gate is tested against.
//!
//! It keeps sessions with their replies (each operation of a session happens once), leases and recalls, record locks
//! with waiters. It keeps every reply of a session, so a repetition can be told from a second execution at any
//! distance.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use abi::ring::Submission;
use vos_api::fs::{self, Attr, Create, DirEntry, Event, Lock, SetAttr};
use vos_api::session::Progress;
use zerocopy::{FromBytes, IntoBytes};

pub type Errno = i32;
pub type Session = u64;

#[derive(Clone, Debug, Default)]
pub struct Reply {
    pub status: u32,
    pub results: [u64; 4],
    pub data: Vec<u8>,
}

type Answer = Result<Reply, Errno>;

#[derive(Clone, Debug)]
enum Kind {
    File(Vec<u8>),
    Directory { entries: BTreeMap<Vec<u8>, (u64, u64)>, parent: u64, next_cookie: u64 },
    Link(Vec<u8>),
    Special,
}

#[derive(Clone, Debug)]
struct Node {
    mode: u32,
    uid: u32,
    gid: u32,
    links: u32,
    rdev: u32,
    times: [u64; 3],
    kind: Kind,
    xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
    opens: u32,
    holders: BTreeSet<Session>,
}

#[derive(Default)]
struct Client {
    replies: HashMap<u64, Reply>,
    handles: HashMap<u64, u64>,
    next_recall: u64,
    unreleased: BTreeMap<u64, Vec<u8>>,
    /// Up to which recall the events were delivered over the present connection.
    delivered: u64,
    is_fenced: bool,
}

/// Something the caller must wait for before it completes an operation.
#[derive(Debug)]
pub enum Outcome {
    Done(Reply),
    /// Until these recalls are released.
    Recalling(Reply, Vec<(Session, u64)>),
    /// A lock that is not free.
    Waiting,
}

pub struct Model {
    nodes: HashMap<u64, Node>,
    next_ino: u64,
    next_handle: u64,
    clients: HashMap<Session, Client>,
    /// Inode, session, the handle they were set through.
    locks: Vec<(u64, Session, u64, Lock)>,
    /// Operations executed, to compare with operations asked for.
    pub executed: u64,
    pub repeated: u64,
    touched: Vec<(u64, Option<Vec<u8>>)>,
}

impl Default for Model {
    fn default() -> Model {
        let mut model = Model {
            nodes: HashMap::new(),
            next_ino: 2,
            next_handle: 100,
            clients: HashMap::new(),
            locks: Vec::new(),
            executed: 0,
            repeated: 0,
            touched: Vec::new(),
        };
        let entries = BTreeMap::new();
        let root = Kind::Directory { entries, parent: 1, next_cookie: 3 };
        model.nodes.insert(1, Node::new(libc::S_IFDIR | 0o755, 0, 0, 0, 1, root));
        model
    }
}

impl Node {
    fn new(mode: u32, uid: u32, gid: u32, rdev: u32, time: u64, kind: Kind) -> Node {
        let links = if matches!(kind, Kind::Directory { .. }) { 2 } else { 1 };
        let (xattrs, holders) = (BTreeMap::new(), BTreeSet::new());
        Node { mode, uid, gid, links, rdev, times: [time; 3], kind, xattrs, opens: 0, holders }
    }

    fn bytes(&self) -> u64 {
        match &self.kind {
            Kind::File(data) => data.len() as u64,
            Kind::Link(target) => target.len() as u64,
            Kind::Directory { .. } => 4096,
            Kind::Special => 0,
        }
    }

    fn attr(&self, ino: u64) -> Attr {
        Attr {
            ino: ino.into(),
            bytes: self.bytes().into(),
            blocks: self.bytes().div_ceil(512).into(),
            atime_ns: self.times[0].into(),
            mtime_ns: self.times[1].into(),
            ctime_ns: self.times[2].into(),
            mode: self.mode.into(),
            links: self.links.into(),
            uid: self.uid.into(),
            gid: self.gid.into(),
            rdev: self.rdev.into(),
            marks: if self.xattrs.is_empty() { fs::BARE } else { 0 }.into(),
        }
    }

    fn changed(&mut self, time: u64) {
        self.times[1] = time;
        self.times[2] = time;
    }

    fn kill_suid(&mut self) {
        if self.mode & libc::S_IFMT == libc::S_IFREG {
            let group_runs = self.mode & 0o010 != 0;
            self.mode &= !(libc::S_ISUID | if group_runs { libc::S_ISGID } else { 0 });
        }
    }
}

impl Model {
    pub fn hello(&mut self, session: Session, progress: Progress) -> bool {
        let Progress { acknowledged, revives } = progress;
        match self.clients.get_mut(&session) {
            Some(client) if client.is_fenced && !revives => false,
            Some(client) => {
                (client.is_fenced, client.delivered) = (false, 0);
                true
            }
            None if acknowledged > 0 || revives => false,
            None => self.clients.insert(session, Client::default()).is_none(),
        }
    }

    /// Takes leases and locks from a session, as a server does with a client that answers no recall.
    pub fn fence(&mut self, session: Session) {
        if let Some(client) = self.clients.get_mut(&session) {
            client.is_fenced = true;
            client.unreleased.clear();
        }
        self.drop_held(session);
    }

    pub fn forget(&mut self, session: Session) {
        self.clients.remove(&session);
        self.drop_held(session);
    }

    fn drop_held(&mut self, session: Session) {
        self.locks.retain(|(_, owner, ..)| *owner != session);
        for node in self.nodes.values_mut() {
            node.holders.remove(&session);
        }
    }

    pub fn sessions(&self) -> Vec<Session> {
        self.clients.keys().copied().collect()
    }

    pub fn open_handles(&self) -> usize {
        self.clients.values().map(|client| client.handles.len()).sum()
    }

    pub fn locks(&self) -> usize {
        self.locks.len()
    }

    /// Executes one operation, or answers it from the session's record.
    pub fn execute(&mut self, session: Session, op: &Submission, data: &[u8]) -> Outcome {
        let Some(client) = self.clients.get(&session).filter(|client| !client.is_fenced) else {
            return Outcome::Done(failed(libc::ESTALE));
        };
        if op.sequence > 0
            && let Some(reply) = client.replies.get(&op.sequence)
        {
            self.repeated += 1;
            return Outcome::Done(reply.clone());
        }
        self.touched.clear();
        let reply = match self.operate(session, op, data) {
            Err(libc::EINPROGRESS) => return Outcome::Waiting,
            Err(errno) => failed(errno),
            Ok(reply) => reply,
        };
        if op.sequence > 0 {
            self.executed += 1;
            if let Some(client) = self.clients.get_mut(&session) {
                client.replies.insert(op.sequence, reply.clone());
            }
        }
        let recalls = self.recall(session);
        if recalls.is_empty() { Outcome::Done(reply) } else { Outcome::Recalling(reply, recalls) }
    }

    /// Records the answer of a lock that had to wait.
    pub fn record(&mut self, session: Session, sequence: u64, reply: &Reply) {
        self.executed += 1;
        if let Some(client) = self.clients.get_mut(&session) {
            client.replies.insert(sequence, reply.clone());
        }
    }

    /// Events to be delivered now.
    pub fn events(&mut self, session: Session) -> Option<Reply> {
        let client = self.clients.get_mut(&session)?;
        let news: Vec<_> =
            client.unreleased.range(client.delivered + 1..).map(|(n, event)| (*n, event.clone())).collect();
        let (last, _) = news.last()?;
        client.delivered = *last;
        let count = news.len() as u64;
        Some(Reply {
            status: 0,
            results: [count, 0, 0, 0],
            data: news.into_iter().flat_map(|(_, event)| event).collect(),
        })
    }

    pub fn released(&mut self, session: Session, recall: u64) {
        if let Some(client) = self.clients.get_mut(&session) {
            client.unreleased.retain(|number, _| *number > recall);
        }
    }

    pub fn is_open(&self, (session, recall): (Session, u64)) -> bool {
        self.clients.get(&session).is_some_and(|client| client.unreleased.contains_key(&recall))
    }

    fn recall(&mut self, by: Session) -> Vec<(Session, u64)> {
        let mut recalls = Vec::new();
        for (ino, name) in std::mem::take(&mut self.touched) {
            let Some(node) = self.nodes.get_mut(&ino) else { continue };
            let others: Vec<_> = node.holders.iter().copied().filter(|holder| *holder != by).collect();
            if name.is_none() {
                node.holders.retain(|holder| *holder == by);
            }
            for other in others {
                let Some(client) = self.clients.get_mut(&other) else { continue };
                client.next_recall += 1;
                let name = name.clone().unwrap_or_default();
                let head = Event {
                    recall: client.next_recall.into(),
                    ino: ino.into(),
                    kind: (if name.is_empty() { fs::INODE } else { fs::ENTRY }).into(),
                    name_bytes: (name.len() as u32).into(),
                };
                let mut event = [head.as_bytes(), &name].concat();
                event.resize(event.len().next_multiple_of(8), 0);
                client.unreleased.insert(client.next_recall, event);
                recalls.push((other, client.next_recall));
            }
        }
        recalls
    }

    fn operate(&mut self, session: Session, op: &Submission, data: &[u8]) -> Answer {
        let [ino, second, third] = op.args;
        match op.op {
            fs::LOOKUP => match self.child(ino, data) {
                Ok(child) => self.attributes(session, child),
                Err(libc::ENOENT) => {
                    self.node(ino)?.holders.insert(session);
                    Ok(Reply { results: [0, 0, 0, fs::LEASE], ..failed(libc::ENOENT) })
                }
                Err(errno) => Err(errno),
            },
            fs::GETATTR => self.attributes(session, ino),
            fs::SETATTR => self.setattr(session, ino, second, data),
            fs::CREATE | fs::MKNOD | fs::MKDIR | fs::SYMLINK => self.create(session, op, data),
            fs::READLINK => match &self.node(ino)?.kind {
                Kind::Link(target) => Ok(reply([0; 4], target.clone())),
                _ => Err(libc::EINVAL),
            },
            fs::UNLINK | fs::RMDIR => self.unlink(ino, data, third, op.op == fs::RMDIR),
            fs::RENAME => self.rename(ino, second, third, op.flags, data),
            fs::LINK => self.link(session, ino, second, third, data),
            fs::OPEN => self.open(session, ino, second as u32),
            fs::RELEASE => self.release(session, ino, second),
            fs::READ => self.read(session, ino, second, third),
            fs::WRITE => self.write(session, ino, [second, third], op.flags, data),
            fs::FSYNC => Ok(Reply::default()),
            fs::READDIR => self.readdir(session, ino, second, third == 1, op.in_capacity as usize),
            fs::STATFS => Ok(reply([1 << 20, 1 << 19, 1 << 20, 1 << 19], Vec::new())),
            _ => self.operate_more(session, op, data),
        }
    }

    fn operate_more(&mut self, session: Session, op: &Submission, data: &[u8]) -> Answer {
        let [ino, second, third] = op.args;
        match op.op {
            fs::SETXATTR => {
                let (name, value) = data.split_at_checked(second as usize).ok_or(libc::EINVAL)?;
                self.touch(ino, None);
                let exists = self.node(ino)?.xattrs.contains_key(name);
                match i32::from(op.flags) {
                    libc::XATTR_CREATE if exists => return Err(libc::EEXIST),
                    libc::XATTR_REPLACE if !exists => return Err(libc::ENODATA),
                    _ => self.node(ino)?.xattrs.insert(name.to_vec(), value.to_vec()),
                };
                Ok(Reply::default())
            }
            fs::GETXATTR => {
                let value = self.node(ino)?.xattrs.get(data).ok_or(libc::ENODATA)?.clone();
                Ok(reply([value.len() as u64, 0, 0, fs::LEASE], value))
            }
            fs::LISTXATTR => {
                let names: Vec<u8> =
                    self.node(ino)?.xattrs.keys().flat_map(|name| [name, &b"\0"[..]].concat()).collect();
                Ok(reply([names.len() as u64, 0, 0, 0], names))
            }
            fs::REMOVEXATTR => {
                self.touch(ino, None);
                self.node(ino)?.xattrs.remove(data).map(|_| Reply::default()).ok_or(libc::ENODATA)
            }
            fs::FALLOCATE => self.fallocate(ino, second, third, op.flags),
            fs::LSEEK => self.seek(ino, second, third as i32),
            fs::COPY_RANGE => self.copy_range(session, [ino, second], data),
            fs::GETLK => {
                let wish = Lock::read_from_bytes(data).map_err(|_| libc::EINVAL)?;
                let mut answer = Lock { kind: 2.into(), ..wish };
                if let Some((.., other)) = self.conflict(session, ino, &wish) {
                    answer = *other;
                }
                Ok(reply([0; 4], answer.as_bytes().to_vec()))
            }
            fs::SETLK => self.setlk(session, ino, (second == 1, third), data),
            fs::UNLOCK_OWNER => {
                self.locks.retain(|(at, who, _, lock)| !(*at == ino && *who == session && lock.owner.get() == second));
                Ok(Reply::default())
            }
            _ => Err(libc::ENOSYS),
        }
    }

    fn node(&mut self, ino: u64) -> Result<&mut Node, Errno> {
        self.nodes.get_mut(&ino).ok_or(libc::ENOENT)
    }

    fn touch(&mut self, ino: u64, name: Option<&[u8]>) {
        self.touched.push((ino, name.map(<[u8]>::to_vec)));
    }

    fn entries(&mut self, ino: u64) -> Result<&mut BTreeMap<Vec<u8>, (u64, u64)>, Errno> {
        match &mut self.node(ino)?.kind {
            Kind::Directory { entries, .. } => Ok(entries),
            _ => Err(libc::ENOTDIR),
        }
    }

    fn child(&mut self, ino: u64, name: &[u8]) -> Result<u64, Errno> {
        self.entries(ino)?.get(name).map(|(child, _)| *child).ok_or(libc::ENOENT)
    }

    fn file(&mut self, ino: u64) -> Result<&mut Vec<u8>, Errno> {
        match &mut self.node(ino)?.kind {
            Kind::File(data) => Ok(data),
            Kind::Directory { .. } => Err(libc::EISDIR),
            _ => Err(libc::EINVAL),
        }
    }

    fn attributes(&mut self, session: Session, ino: u64) -> Answer {
        let node = self.node(ino)?;
        node.holders.insert(session);
        Ok(reply([0, 0, 0, fs::LEASE], node.attr(ino).as_bytes().to_vec()))
    }

    fn setattr(&mut self, session: Session, ino: u64, time: u64, data: &[u8]) -> Answer {
        let set = SetAttr::read_from_bytes(data).map_err(|_| libc::EINVAL)?;
        let has = |bit| set.valid.get() & bit != 0;
        self.touch(ino, None);
        if has(fs::valid::BYTES) {
            self.file(ino)?.resize(usize::try_from(set.bytes.get()).map_err(|_| libc::EFBIG)?, 0);
            self.node(ino)?.times[1] = time;
        }
        let node = self.node(ino)?;
        if has(fs::valid::UID) {
            node.uid = set.uid.get();
        }
        if has(fs::valid::GID) {
            node.gid = set.gid.get();
        }
        if has(fs::valid::KILL_SUID) {
            node.kill_suid();
        }
        if has(fs::valid::MODE) {
            node.mode = node.mode & libc::S_IFMT | set.mode.get() & 0o7777;
        }
        if has(fs::valid::ATIME) {
            node.times[0] = set.atime_ns.get();
        }
        if has(fs::valid::MTIME) {
            node.times[1] = set.mtime_ns.get();
        }
        node.times[2] = if has(fs::valid::CTIME) { set.ctime_ns.get() } else { time };
        self.attributes(session, ino)
    }

    fn enter(&mut self, parent: u64, name: &[u8], ino: u64, time: u64) -> Result<(), Errno> {
        let is_directory = self.node(ino)?.mode & libc::S_IFMT == libc::S_IFDIR;
        self.touch(parent, Some(name));
        self.touch(parent, None);
        let node = self.node(parent)?;
        node.changed(time);
        node.links += u32::from(is_directory);
        let Kind::Directory { entries, next_cookie, .. } = &mut node.kind else { return Err(libc::ENOTDIR) };
        entries.insert(name.to_vec(), (ino, *next_cookie));
        *next_cookie += 1;
        Ok(())
    }

    fn leave(&mut self, parent: u64, name: &[u8], time: u64) -> Result<u64, Errno> {
        let (ino, _) = self.entries(parent)?.remove(name).ok_or(libc::ENOENT)?;
        let is_directory = self.node(ino)?.mode & libc::S_IFMT == libc::S_IFDIR;
        self.touch(parent, Some(name));
        self.touch(parent, None);
        let node = self.node(parent)?;
        node.changed(time);
        node.links -= u32::from(is_directory);
        Ok(ino)
    }

    fn create(&mut self, session: Session, op: &Submission, data: &[u8]) -> Answer {
        let (head, rest) = Create::read_from_prefix(data).map_err(|_| libc::EINVAL)?;
        let (name, rest) = rest.split_at_checked(op.args[1] as usize).ok_or(libc::EINVAL)?;
        let parent = op.args[0];
        let existing = self.child(parent, name);
        let ino = match existing {
            Ok(_) if op.op != fs::CREATE || op.args[2] == 1 => return Err(libc::EEXIST),
            Ok(existing) => existing,
            Err(libc::ENOENT) => {
                let time = head.time_ns.get();
                let (mode, ino) = (head.mode.get(), self.next_ino);
                let kind = match mode & libc::S_IFMT {
                    libc::S_IFREG => Kind::File(Vec::new()),
                    libc::S_IFDIR => Kind::Directory { entries: BTreeMap::new(), parent, next_cookie: 3 },
                    libc::S_IFLNK => Kind::Link(rest.get(1..).unwrap_or_default().to_vec()),
                    _ => Kind::Special,
                };
                let node = Node::new(mode, head.uid.get(), head.gid.get(), head.rdev.get(), time, kind);
                self.next_ino += 1;
                self.nodes.insert(ino, node);
                self.enter(parent, name, ino, time)?;
                ino
            }
            Err(errno) => return Err(errno),
        };
        let mut answer = self.attributes(session, ino)?;
        if op.op == fs::CREATE {
            answer.results[0] = self.open(session, ino, 0)?.results[0];
        }
        Ok(answer)
    }

    fn unlink(&mut self, parent: u64, name: &[u8], time: u64, directory: bool) -> Answer {
        let ino = self.child(parent, name)?;
        match (&self.node(ino)?.kind, directory) {
            (Kind::Directory { entries, .. }, true) if !entries.is_empty() => return Err(libc::ENOTEMPTY),
            (Kind::Directory { .. }, false) => return Err(libc::EISDIR),
            (Kind::Directory { .. }, true) => self.node(ino)?.links = 1,
            (_, true) => return Err(libc::ENOTDIR),
            _ => {}
        }
        self.leave(parent, name, time)?;
        self.drop_link(ino, time);
        Ok(Reply::default())
    }

    fn drop_link(&mut self, ino: u64, time: u64) {
        self.touch(ino, None);
        if let Some(node) = self.nodes.get_mut(&ino) {
            node.links = node.links.saturating_sub(1);
            node.times[2] = time;
        }
        self.collect(ino);
    }

    fn collect(&mut self, ino: u64) {
        if self.nodes.get(&ino).is_some_and(|node| node.links == 0 && node.opens == 0) {
            self.nodes.remove(&ino);
        }
    }

    fn rename(&mut self, from: u64, to: u64, time: u64, flags: u16, data: &[u8]) -> Answer {
        let (bytes, rest) = data.split_at_checked(2).ok_or(libc::EINVAL)?;
        let (old, new) =
            rest.split_at_checked(usize::from(u16::from_le_bytes([bytes[0], bytes[1]]))).ok_or(libc::EINVAL)?;
        let ino = self.child(from, old)?;
        let target = self.child(to, new).ok();
        if flags == 1 && target.is_some() {
            return Err(libc::EEXIST);
        }
        self.refuse_cycle(ino, to)?;
        if target == Some(ino) {
            return Ok(Reply::default());
        }
        if flags == 2 {
            let target = target.ok_or(libc::ENOENT)?;
            self.leave(from, old, time)?;
            self.leave(to, new, time)?;
            self.enter(from, old, target, time)?;
            self.enter(to, new, ino, time)?;
            self.adopt(target, from);
        } else {
            if let Some(target) = target {
                let directory = self.node(target)?.mode & libc::S_IFMT == libc::S_IFDIR;
                let moved = self.node(ino)?.mode & libc::S_IFMT == libc::S_IFDIR;
                if moved != directory {
                    return Err(if directory { libc::EISDIR } else { libc::ENOTDIR });
                }
                self.unlink(to, new, time, directory)?;
            }
            self.leave(from, old, time)?;
            self.enter(to, new, ino, time)?;
        }
        self.adopt(ino, to);
        self.touch(ino, None);
        self.node(ino)?.times[2] = time;
        Ok(Reply::default())
    }

    fn adopt(&mut self, ino: u64, by: u64) {
        if let Some(Node { kind: Kind::Directory { parent, .. }, .. }) = self.nodes.get_mut(&ino) {
            *parent = by;
        }
    }

    fn refuse_cycle(&mut self, ino: u64, mut at: u64) -> Result<(), Errno> {
        while at != 1 {
            if at == ino {
                return Err(libc::EINVAL);
            }
            let Kind::Directory { parent, .. } = &self.node(at)?.kind else { return Err(libc::ENOTDIR) };
            at = *parent;
        }
        Ok(())
    }

    fn link(&mut self, session: Session, ino: u64, parent: u64, time: u64, name: &[u8]) -> Answer {
        if self.child(parent, name).is_ok() {
            return Err(libc::EEXIST);
        }
        self.enter(parent, name, ino, time)?;
        self.touch(ino, None);
        let node = self.node(ino)?;
        node.links += 1;
        node.times[2] = time;
        self.attributes(session, ino)
    }

    fn open(&mut self, session: Session, ino: u64, flags: u32) -> Answer {
        if flags & libc::O_TRUNC as u32 != 0 {
            self.touch(ino, None);
            self.file(ino)?.clear();
        }
        let handle = self.next_handle;
        self.next_handle += 1;
        let node = self.node(ino)?;
        node.opens += 1;
        node.holders.insert(session);
        self.clients.get_mut(&session).ok_or(libc::ESTALE)?.handles.insert(handle, ino);
        Ok(reply([handle, 0, 0, fs::LEASE], Vec::new()))
    }

    fn release(&mut self, session: Session, ino: u64, handle: u64) -> Answer {
        let client = self.clients.get_mut(&session).ok_or(libc::ESTALE)?;
        let opened = client.handles.remove(&handle).ok_or(libc::EBADF)?;
        if opened != ino {
            return Err(libc::EBADF);
        }
        self.locks.retain(|(_, who, through, _)| (*who, *through) != (session, handle));
        self.node(ino)?.opens -= 1;
        self.collect(ino);
        Ok(Reply::default())
    }

    fn read(&mut self, session: Session, ino: u64, offset: u64, bytes: u64) -> Answer {
        let file = self.file(ino)?;
        let first = (offset as usize).min(file.len());
        let end = first.saturating_add(bytes as usize).min(file.len());
        let data = file[first..end].to_vec();
        self.node(ino)?.holders.insert(session);
        Ok(reply([0, 0, 0, fs::LEASE], data))
    }

    fn write(&mut self, session: Session, ino: u64, [offset, time]: [u64; 2], flags: u16, data: &[u8]) -> Answer {
        self.touch(ino, None);
        let file = self.file(ino)?;
        let at = if flags & fs::APPEND != 0 { file.len() } else { offset as usize };
        if at + data.len() > file.len() {
            file.resize(at + data.len(), 0);
        }
        file[at..at + data.len()].copy_from_slice(data);
        let size = file.len() as u64;
        let node = self.node(ino)?;
        node.changed(time);
        node.holders.insert(session);
        if flags & fs::KILL_SUID != 0 {
            node.kill_suid();
        }
        Ok(reply([data.len() as u64, size, 0, fs::LEASE], Vec::new()))
    }

    fn readdir(&mut self, session: Session, ino: u64, cookie: u64, plus: bool, room: usize) -> Answer {
        let node = self.node(ino)?;
        node.holders.insert(session);
        let Kind::Directory { entries, .. } = &node.kind else { return Err(libc::ENOTDIR) };
        let mut list: Vec<_> = entries.iter().map(|(name, (child, cookie))| (*cookie, name.clone(), *child)).collect();
        list.sort_unstable();
        let mut out = Vec::new();
        let mut count = 0;
        for (at, name, child) in list.into_iter().filter(|(at, ..)| *at > cookie) {
            let Some(node) = self.nodes.get_mut(&child) else { continue };
            let head = DirEntry {
                ino: child.into(),
                cookie: at.into(),
                kind: (node.mode >> 12).into(),
                name_bytes: (name.len() as u32).into(),
            };
            let mut entry = [head.as_bytes(), &name].concat();
            entry.resize(entry.len().next_multiple_of(8), 0);
            if plus {
                node.holders.insert(session);
                entry.extend_from_slice(node.attr(child).as_bytes());
            }
            if out.len() + entry.len() > room {
                return Ok(reply([count, 0, 0, fs::LEASE], out));
            }
            out.extend(entry);
            count += 1;
        }
        Ok(reply([count, 1, 0, fs::LEASE], out))
    }

    fn fallocate(&mut self, ino: u64, offset: u64, bytes: u64, mode: u16) -> Answer {
        self.touch(ino, None);
        let file = self.file(ino)?;
        let (first, end) = (offset as usize, (offset + bytes) as usize);
        if mode & 1 == 0 && end > file.len() {
            file.resize(end, 0);
        }
        if mode & (2 | 16) != 0 {
            let (first, end) = (first.min(file.len()), end.min(file.len()));
            file[first..end].fill(0);
        }
        Ok(Reply::default())
    }

    fn seek(&mut self, ino: u64, offset: u64, whence: i32) -> Answer {
        let bytes = self.file(ino)?.len() as u64;
        if offset >= bytes {
            return Err(libc::ENXIO);
        }
        Ok(reply([if whence == libc::SEEK_HOLE { bytes } else { offset }, 0, 0, 0], Vec::new()))
    }

    fn copy_range(&mut self, session: Session, [from, to]: [u64; 2], data: &[u8]) -> Answer {
        let words: Vec<u64> =
            data.chunks_exact(8).map(|word| u64::from_le_bytes(word.try_into().unwrap_or_default())).collect();
        let [source, target, bytes, time] = words[..] else { return Err(libc::EINVAL) };
        let file = self.file(from)?;
        let first = (source as usize).min(file.len());
        let end = first.saturating_add(bytes as usize).min(file.len());
        let data = file[first..end].to_vec();
        if data.is_empty() {
            return Ok(Reply::default());
        }
        self.write(session, to, [target, time], 0, &data)
    }

    fn conflict(&self, session: Session, ino: u64, wish: &Lock) -> Option<&(u64, Session, u64, Lock)> {
        self.locks.iter().find(|(at, who, _, lock)| {
            let same_owner = *who == session && lock.owner == wish.owner;
            let same_family = lock.owner.get() >> 63 == wish.owner.get() >> 63;
            let overlaps = lock.start.get() <= wish.end.get() && wish.start.get() <= lock.end.get();
            *at == ino && !same_owner && same_family && overlaps && (lock.kind.get() == 1 || wish.kind.get() == 1)
        })
    }

    fn setlk(&mut self, session: Session, ino: u64, (waits, handle): (bool, u64), data: &[u8]) -> Answer {
        let wish = Lock::read_from_bytes(data).map_err(|_| libc::EINVAL)?;
        if wish.kind.get() != 2 && self.conflict(session, ino, &wish).is_some() {
            // Who wants another kind of flock unlocks first, also when the second step fails (flock(2)).
            if wish.owner.get() >> 63 == 1 {
                self.locks.retain(|(at, who, _, lock)| !(*at == ino && *who == session && lock.owner == wish.owner));
            }
            return Err(if waits { libc::EINPROGRESS } else { libc::EAGAIN });
        }
        let mut kept = Vec::new();
        for (at, who, through, lock) in std::mem::take(&mut self.locks) {
            if at != ino || who != session || lock.owner != wish.owner {
                kept.push((at, who, through, lock));
                continue;
            }
            if lock.start.get() < wish.start.get() {
                let end = lock.end.get().min(wish.start.get() - 1);
                kept.push((at, who, through, Lock { end: end.into(), ..lock }));
            }
            if lock.end.get() > wish.end.get() {
                let start = lock.start.get().max(wish.end.get() + 1);
                kept.push((at, who, through, Lock { start: start.into(), ..lock }));
            }
        }
        if wish.kind.get() != 2 {
            kept.push((ino, session, handle, wish));
        }
        self.locks = kept;
        Ok(Reply::default())
    }
}

pub fn failed(errno: Errno) -> Reply {
    Reply { status: errno as u32, ..Reply::default() }
}

fn reply(results: [u64; 4], data: Vec<u8>) -> Reply {
    Reply { status: 0, results, data }
}
