//! Requests of the kernel become operations of the fs server.
//!
//! Pure: no I/O, the time is passed in. A request is answered at once ([`Step::Answer`]), needs no answer ([`Step::Silent`]), or
//! becomes a [`Plan`]: the operation, whether it changes something, and what to make of its completion ([`Then`]).
//!
//! Requests of two operations have steps; [`plan`] is asked for one step at a time, so that a new gate can go on with the
//! second. They are: the release of an flock (0 unlock, 1 release).

use abi::limits::TRANSFER_BYTES_MAX;
use vos_api::fs;
use zerocopy::{FromBytes, IntoBytes};

use crate::kernel::{self, InHeader, fattr};
use crate::request::{Blocking, Body, Plus, Request};
use crate::state::State;

/// Marks an owner of flocks, see `vos_api::fs::Lock`.
pub const FLOCK_OWNER: u64 = 1 << 63;

#[derive(Debug, PartialEq)]
pub enum Step<'a> {
    /// 0 or an errno, without data.
    Answer(i32),
    Silent,
    /// Handled by the gate itself: negotiation, interrupts, directory handles.
    Own(Own),
    Submit(Plan<'a>),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Own {
    Init,
    Interrupt { unique: u64 },
    Opendir,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// May be repeated.
    Reads,
    /// Is part of the session.
    Changes,
}

/// Bytes that go with an operation.
#[derive(Debug, PartialEq)]
pub enum Out<'a> {
    None,
    Borrowed(&'a [u8]),
    Built(Vec<u8>),
}

impl Out<'_> {
    pub fn bytes(&self) -> &[u8] {
        match self {
            Out::None => &[],
            Out::Borrowed(bytes) => bytes,
            Out::Built(bytes) => bytes,
        }
    }
}

#[derive(Debug, PartialEq)]
pub struct Plan<'a> {
    pub op: u16,
    pub flags: u16,
    pub args: [u64; 3],
    pub out: Out<'a>,
    pub in_capacity: u32,
    pub effect: Effect,
    pub then: Then,
}

/// What to make of a completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Then {
    Empty,
    /// Changed attributes or extended attributes.
    Changed,
    /// All locks of the owner are gone.
    Unlocked {
        owner: u64,
    },
    /// A name that may not exist: the answer may be kept too.
    Lookup,
    Entry,
    Attr,
    Bytes,
    Open {
        ino: u64,
        flags: u32,
    },
    Create {
        flags: u32,
    },
    Read {
        bytes: u32,
        /// No other node keeps any of it afterwards.
        alone: bool,
    },
    /// `end`: where an append was expected to begin.
    Write {
        bytes: u32,
        append: bool,
        offset: u64,
    },
    Copy,
    /// A whole file was made behind the kernel's back.
    Placed,
    Statfs,
    /// `room`: 0 when only the size is asked for.
    Xattr {
        room: u32,
        probe: Probe,
    },
    Readdir {
        room: u32,
        plus: Plus,
        cookie: u64,
    },
    Getlk,
    /// `fh`: through which open file it is asked for.
    Lock {
        owner: u64,
        kind: u32,
        fh: u64,
    },
    Lseek,
    /// Go on with the next step of the request.
    Next,
    Release {
        fh: u64,
    },
}

/// Whether an extended attribute is the one that every write asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Probe {
    Capability,
    Other,
}

/// What translation needs to know besides the request.
pub struct Context<'a> {
    pub state: &'a State,
    pub now_ns: u64,
    /// Whether the file may have locks of this owner (`false` only when that is certain).
    pub has_locks: bool,
}

pub fn plan<'a>(request: &Request<'a>, step: u32, context: &Context<'_>) -> Step<'a> {
    let ino = request.header.nodeid;
    let now = context.now_ns;
    match request.body {
        Body::Init { .. } => Step::Own(Own::Init),
        Body::Interrupt { unique } => Step::Own(Own::Interrupt { unique }),
        Body::Opendir => Step::Own(Own::Opendir),
        Body::Destroy | Body::Releasedir => Step::Answer(0),
        Body::Forget => Step::Silent,
        Body::Ioctl { head, data } => place(&request.header, &head, data, now),
        Body::Tmpfile => Step::Answer(libc::EOPNOTSUPP),
        Body::Unknown => Step::Answer(libc::ENOSYS),
        Body::Lookup { name } => read(fs::LOOKUP, [ino, 0, 0], Then::Lookup).out(name).room_attr().submit(),
        Body::Getattr => read(fs::GETATTR, [ino, 0, 0], Then::Attr).room_attr().submit(),
        Body::Setattr(head) => {
            let set = setattr(&head, now);
            change(fs::SETATTR, [ino, now, 0], Then::Attr).built(set.as_bytes().to_vec()).room_attr().submit()
        }
        Body::Readlink => read(fs::READLINK, [ino, 0, 0], Then::Bytes).room(4096).submit(),
        Body::Symlink { name, target } => {
            let mut out = create_head(&request.header, libc::S_IFLNK | 0o777, 0, now);
            out.extend_from_slice(name);
            out.push(0);
            out.extend_from_slice(target);
            change(fs::SYMLINK, [ino, name.len() as u64, 0], Then::Entry).built(out).room_attr().submit()
        }
        Body::Mknod { head, name } => make(request, fs::MKNOD, (head.mode, head.rdev), name, 1, now, Then::Entry),
        Body::Mkdir { head, name } => {
            make(request, fs::MKDIR, (head.mode | libc::S_IFDIR, 0), name, 1, now, Then::Entry)
        }
        Body::Create { head, name } => {
            let exclusive = u64::from(head.flags & libc::O_EXCL as u32 != 0);
            let mode = head.mode & !libc::S_IFMT | libc::S_IFREG;
            make(request, fs::CREATE, (mode, 0), name, exclusive, now, Then::Create { flags: head.flags })
        }
        Body::Unlink { name } => change(fs::UNLINK, [ino, 0, now], Then::Empty).out(name).submit(),
        Body::Rmdir { name } => change(fs::RMDIR, [ino, 0, now], Then::Empty).out(name).submit(),
        Body::Rename { to, flags, old, new } => rename((ino, old), (to, new), flags, now),
        Body::Link { ino: target, name } => {
            change(fs::LINK, [target, ino, now], Then::Entry).out(name).room_attr().submit()
        }
        _ => plan_data(request, step, context),
    }
}

fn plan_data<'a>(request: &Request<'a>, step: u32, context: &Context<'_>) -> Step<'a> {
    let ino = request.header.nodeid;
    let now = context.now_ns;
    match request.body {
        Body::Open(head) => {
            let then = Then::Open { ino, flags: head.flags };
            let kill = head.open_flags & kernel::OPEN_KILL_SUIDGID != 0;
            change(fs::OPEN, [ino, u64::from(head.flags), now], then).kill_suid(kill).room_attr().submit()
        }
        Body::Read(head) => {
            let bytes = head.size.min(TRANSFER_BYTES_MAX);
            // The kernel does not say when a program maps a file and changes a page: then nobody else may have it.
            let alone = context.state.is_writable(ino);
            let read = read(fs::READ, [ino, head.offset, u64::from(bytes)], Then::Read { bytes, alone }).room(bytes);
            if alone { read.flag(fs::WRITABLE).submit() } else { read.submit() }
        }
        Body::Write { head, data } => {
            let append = head.flags & libc::O_APPEND as u32 != 0;
            let then = Then::Write { bytes: head.size, append, offset: head.offset };
            let write = change(fs::WRITE, [ino, head.offset, now], then).out(data);
            let write = if append { write.flag(fs::APPEND) } else { write };
            let late = head.write_flags & kernel::WRITE_CACHE != 0;
            let write = if late { write.flag(fs::LATE) } else { write };
            write.kill_suid(head.write_flags & kernel::WRITE_KILL_SUIDGID != 0).submit()
        }
        Body::Statfs => read(fs::STATFS, [0; 3], Then::Statfs).submit(),
        Body::Release(head) => release(ino, &head, step, context),
        Body::Fsync(_) | Body::Fsyncdir => read(fs::FSYNC, [ino, 0, 0], Then::Empty).submit(),
        Body::Syncfs => read(fs::FSYNC, [0; 3], Then::Empty).submit(),
        Body::Flush(head) if context.has_locks => {
            let owner = posix_owner(head.lock_owner);
            change(fs::UNLOCK_OWNER, [ino, owner, 0], Then::Unlocked { owner }).submit()
        }
        Body::Flush(_) => Step::Answer(0),
        Body::Readdir { head, plus } => readdir(ino, head.offset, head.size, plus),
        Body::Getlk(head) => {
            read(fs::GETLK, [ino, 0, 0], Then::Getlk).built(lock(&head)).room(size_of::<fs::Lock>() as u32).submit()
        }
        Body::Setlk { head, blocking } => {
            let then = Then::Lock { owner: lock_owner(&head), kind: head.lk.kind, fh: head.fh };
            let waits = u64::from(blocking == Blocking::Yes);
            let handle = context.state.handle(head.fh).map_or(0, |handle| handle.fs_handle);
            change(fs::SETLK, [ino, waits, handle], then).built(lock(&head)).submit()
        }
        Body::Fallocate(head) => fallocate(ino, &head, now),
        Body::Lseek(head) => read(fs::LSEEK, [ino, head.offset, u64::from(head.whence)], Then::Lseek).submit(),
        Body::CopyFileRange(head) => copy_range(ino, &head, now),
        _ => plan_xattr(request, now),
    }
}

fn plan_xattr<'a>(request: &Request<'a>, now: u64) -> Step<'a> {
    let ino = request.header.nodeid;
    match request.body {
        Body::Setxattr { name, .. } | Body::Getxattr { name, .. } | Body::Removexattr { name } if is_acl(name) => {
            Step::Answer(libc::EOPNOTSUPP)
        }
        Body::Setxattr { value, .. } if value.len() > fs::XATTR_VALUE_BYTES_MAX => Step::Answer(libc::E2BIG),
        Body::Setxattr { flags, name, value } => {
            let out = [name, value].concat();
            // Of more bits than these the server knows none.
            let flags = u16::try_from(flags).unwrap_or(u16::MAX);
            change(fs::SETXATTR, [ino, name.len() as u64, now], Then::Changed).built(out).flag(flags).submit()
        }
        Body::Getxattr { size, name } => {
            let probe = if name == b"security.capability" { Probe::Capability } else { Probe::Other };
            let then = Then::Xattr { room: size, probe };
            read(fs::GETXATTR, [ino, 0, 0], then).out(name).room(fs::XATTR_VALUE_BYTES_MAX as u32).submit()
        }
        Body::Listxattr { size } => {
            let then = Then::Xattr { room: size, probe: Probe::Other };
            read(fs::LISTXATTR, [ino, 0, 0], then).room(fs::XATTR_VALUE_BYTES_MAX as u32).submit()
        }
        Body::Removexattr { name } => change(fs::REMOVEXATTR, [ino, now, 0], Then::Changed).out(name).submit(),
        _ => Step::Answer(libc::ENOSYS),
    }
}

/// POSIX ACLs are not kept: without a word from us the kernel would let them be stored but not obeyed.
fn is_acl(name: &[u8]) -> bool {
    name.starts_with(b"system.posix_acl_")
}

/// An operation of the session that carries no request of the kernel: opens a file again after the session was lost.
pub fn reopen(ino: u64, flags: u32) -> Plan<'static> {
    const ONCE: u32 = (libc::O_TRUNC | libc::O_CREAT | libc::O_EXCL) as u32;
    change(fs::OPEN, [ino, u64::from(flags & !ONCE), 0], Then::Empty).room_attr().0
}

fn release<'a>(ino: u64, head: &kernel::ReleaseIn, step: u32, context: &Context<'_>) -> Step<'a> {
    // A number that is not in the table: the predecessor of this gate had closed it and died before the answer.
    let Some(handle) = context.state.handle(head.fh) else { return Step::Answer(0) };
    if step == 0 && head.release_flags & kernel::RELEASE_FLOCK_UNLOCK != 0 {
        return change(fs::UNLOCK_OWNER, [ino, head.lock_owner | FLOCK_OWNER, 0], Then::Next).submit();
    }
    change(fs::RELEASE, [ino, handle.fs_handle, 0], Then::Release { fh: head.fh }).submit()
}

/// Commands that a program gives to a directory: there is one, see [`fs::PlaceHead`].
fn place<'a>(header: &InHeader, head: &kernel::IoctlIn, data: &[u8], now: u64) -> Step<'a> {
    let Ok(bytes) = u32::try_from(data.len()) else { return Step::Answer(libc::ENOTTY) };
    if head.cmd != kernel::iow(fs::PLACE_GROUP, fs::PLACE_NUMBER, bytes) {
        return Step::Answer(libc::ENOTTY);
    }
    // It gives files away and asks no permission of the directory: what the container's root may.
    if header.uid != 0 {
        return Step::Answer(libc::EPERM);
    }
    let Some((wanted, name, content)) = place_parts(data) else { return Step::Answer(libc::EINVAL) };
    let create = fs::Create {
        mode: (wanted.mode.get() & 0o7777).into(),
        uid: wanted.uid,
        gid: wanted.gid,
        rdev: 0.into(),
        time_ns: now.into(),
    };
    let out = [create.as_bytes(), name, content].concat();
    let args = [header.nodeid, name.len() as u64, wanted.mtime_ns.get()];
    change(fs::PLACE, args, Then::Placed).built(out).room_attr().submit()
}

/// Head, name and content of a whole file.
pub fn place_parts(data: &[u8]) -> Option<(fs::PlaceHead, &[u8], &[u8])> {
    let (head, rest) = fs::PlaceHead::read_from_prefix(data).ok()?;
    let (name, content) = rest.split_at_checked(head.name_bytes.get() as usize)?;
    Some((head, name, content))
}

fn rename<'a>(from: (u64, &[u8]), to: (u64, &[u8]), flags: u32, now: u64) -> Step<'a> {
    const KNOWN: u32 = libc::RENAME_NOREPLACE | libc::RENAME_EXCHANGE;
    if flags & !KNOWN != 0 || flags == KNOWN {
        return Step::Answer(libc::EINVAL);
    }
    let mut out = (from.1.len() as u16).to_le_bytes().to_vec();
    out.extend_from_slice(from.1);
    out.extend_from_slice(to.1);
    change(fs::RENAME, [from.0, to.0, now], Then::Empty).built(out).flag(flags as u16).submit()
}

fn make<'a>(
    request: &Request<'a>,
    op: u16,
    (mode, rdev): (u32, u32),
    name: &[u8],
    exclusive: u64,
    now: u64,
    then: Then,
) -> Step<'a> {
    let mut out = create_head(&request.header, mode, rdev, now);
    out.extend_from_slice(name);
    change(op, [request.header.nodeid, name.len() as u64, exclusive], then).built(out).room_attr().submit()
}

fn create_head(header: &InHeader, mode: u32, rdev: u32, now: u64) -> Vec<u8> {
    let head = fs::Create {
        mode: mode.into(),
        uid: header.uid.into(),
        gid: header.gid.into(),
        rdev: rdev.into(),
        time_ns: now.into(),
    };
    head.as_bytes().to_vec()
}

fn setattr(head: &kernel::SetattrIn, now: u64) -> fs::SetAttr {
    const PAIRS: [(u32, u32); 10] = [
        (fattr::MODE, fs::valid::MODE),
        (fattr::UID, fs::valid::UID),
        (fattr::GID, fs::valid::GID),
        (fattr::SIZE, fs::valid::BYTES),
        (fattr::ATIME, fs::valid::ATIME),
        (fattr::ATIME_NOW, fs::valid::ATIME),
        (fattr::MTIME, fs::valid::MTIME),
        (fattr::MTIME_NOW, fs::valid::MTIME),
        (fattr::CTIME, fs::valid::CTIME),
        (fattr::KILL_SUIDGID, fs::valid::KILL_SUID),
    ];
    let has = |bit| head.valid & bit != 0;
    let mut valid = PAIRS.iter().filter(|(theirs, _)| has(*theirs)).fold(0, |valid, (_, ours)| valid | ours);
    // A change of owner takes the set-id bits with it, whoever makes it: the kernel leaves that to us. One that names neither owner nor
    // group (-1, -1) does so, too, and is the only request that asks for nothing else.
    if (has(fattr::UID) || has(fattr::GID) || valid == 0) && !has(fattr::MODE) {
        valid |= fs::valid::KILL_SUID;
    }
    let atime = if has(fattr::ATIME_NOW) { now } else { nanoseconds(head.atime, head.atimensec) };
    let mtime = if has(fattr::MTIME_NOW) { now } else { nanoseconds(head.mtime, head.mtimensec) };
    fs::SetAttr {
        valid: valid.into(),
        mode: (head.mode & 0o7777).into(),
        uid: head.uid.into(),
        gid: head.gid.into(),
        bytes: head.size.into(),
        atime_ns: atime.into(),
        mtime_ns: mtime.into(),
        ctime_ns: nanoseconds(head.ctime, head.ctimensec).into(),
    }
}

/// Times before 1970 become 1970: the tree has none.
fn nanoseconds(seconds: u64, nanoseconds: u32) -> u64 {
    let seconds = if (seconds as i64) < 0 { 0 } else { seconds };
    seconds.saturating_mul(1_000_000_000).saturating_add(u64::from(nanoseconds))
}

fn readdir<'a>(ino: u64, cookie: u64, room: u32, plus: Plus) -> Step<'a> {
    let room = room.min(TRANSFER_BYTES_MAX);
    // Entries with attributes are longer in the kernel's form than in fs's: 152 + name against 96 + name, names padded to 8.
    let capacity = match plus {
        Plus::Names => room,
        Plus::WithAttributes => (u64::from(room) * 104 / 160) as u32,
    };
    let wants = u64::from(plus == Plus::WithAttributes);
    read(fs::READDIR, [ino, cookie, wants], Then::Readdir { room, plus, cookie }).room(capacity).submit()
}

fn fallocate<'a>(ino: u64, head: &kernel::FallocateIn, now: u64) -> Step<'a> {
    const KNOWN: u32 = (libc::FALLOC_FL_KEEP_SIZE | libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_ZERO_RANGE) as u32;
    if head.mode & !KNOWN != 0 {
        return Step::Answer(libc::EOPNOTSUPP);
    }
    let allocate =
        change(fs::FALLOCATE, [ino, head.offset, head.length], Then::Empty).built(now.to_le_bytes().to_vec());
    allocate.flag(head.mode as u16).submit()
}

fn copy_range<'a>(ino: u64, head: &kernel::CopyFileRangeIn, now: u64) -> Step<'a> {
    // The kernel's answer has 32 bits for the length.
    const BYTES_MAX: u64 = 1 << 30;
    let words = [head.off_in, head.off_out, head.len.min(BYTES_MAX), now];
    let out = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    change(fs::COPY_RANGE, [ino, head.nodeid_out, 0], Then::Copy).built(out).submit()
}

fn posix_owner(owner: u64) -> u64 {
    owner & !FLOCK_OWNER
}

fn lock_owner(head: &kernel::LkIn) -> u64 {
    if head.lk_flags & kernel::LK_FLOCK != 0 { head.owner | FLOCK_OWNER } else { posix_owner(head.owner) }
}

/// The largest offset of the kernel means the end of the file.
const KERNEL_END: u64 = i64::MAX as u64;

fn lock(head: &kernel::LkIn) -> Vec<u8> {
    let end = if head.lk.end >= KERNEL_END { u64::MAX } else { head.lk.end };
    let lock = fs::Lock {
        owner: lock_owner(head).into(),
        start: head.lk.start.into(),
        end: end.into(),
        kind: head.lk.kind.into(),
        pid: head.lk.pid.into(),
    };
    lock.as_bytes().to_vec()
}

struct Builder<'a>(Plan<'a>);

fn read<'a>(op: u16, args: [u64; 3], then: Then) -> Builder<'a> {
    Builder(Plan { op, flags: 0, args, out: Out::None, in_capacity: 0, effect: Effect::Reads, then })
}

fn change<'a>(op: u16, args: [u64; 3], then: Then) -> Builder<'a> {
    Builder(Plan { op, flags: 0, args, out: Out::None, in_capacity: 0, effect: Effect::Changes, then })
}

impl<'a> Builder<'a> {
    fn out(mut self, bytes: &'a [u8]) -> Self {
        self.0.out = Out::Borrowed(bytes);
        self
    }

    fn built(mut self, bytes: Vec<u8>) -> Self {
        self.0.out = Out::Built(bytes);
        self
    }

    fn room(mut self, bytes: u32) -> Self {
        self.0.in_capacity = bytes;
        self
    }

    fn room_attr(self) -> Self {
        self.room(size_of::<fs::Attr>() as u32)
    }

    fn flag(mut self, flag: u16) -> Self {
        self.0.flags |= flag;
        self
    }

    fn kill_suid(self, kill: bool) -> Self {
        if kill { self.flag(fs::KILL_SUID) } else { self }
    }

    fn submit(self) -> Step<'a> {
        Step::Submit(self.0)
    }
}
