//! Requests of the kernel become operations of the fs server.
//!
//! Pure: no I/O, the time is passed in. A request is answered at once ([`Step::Answer`]), needs no answer
//! ([`Step::Silent`]), or becomes a [`Plan`]: the operation, whether it changes something, and what to make of its
//! completion ([`Then`]).
//!
//! A request that takes two operations has steps; [`plan`] is asked for one step at a time, so that a new gate can go
//! on with the second: a lock through a file that the server does not know to be open (it is told first), and a file
//! that is made (opened in a second step if it was there, or came without a lease).

use abi::limits::TRANSFER_BYTES_MAX;
use file_locks::{FLOCK, UNLOCK};
use vos_api::fs::{
    self, CopyRange, CreateFile, Entries, Existing, Fallocate, Fsync, Getattr, Getlk, Getxattr, Link, Listxattr,
    Lookup, Lseek, Mkdir, Mknod, Open, PlaceFile, Read, Readdir, Readlink, Release, Removexattr, Rename, Rmdir,
    Setattr, Setlk, Setxattr, Statfs, Symlink, Unlink, UnlockOwner, Waits, Write,
};
use vos_api::operation::{AfterNul, Prefixed, Third};
use vos_api::{Class, Encoded, Measured, Operation, Reply};
use zerocopy::FromBytes;

use crate::behind::names::Made;
use crate::kernel::{self, InHeader, LseekIn, fattr};
use crate::request::{Blocking, Body, Plus, Request};
use crate::state::State;

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
    Interrupt {
        unique: u64,
    },
    Opendir,
    /// Of a file that the server does not know to be open.
    Release {
        fh: u64,
    },
}

#[derive(Debug, PartialEq)]
pub struct Plan<'a> {
    pub asked: Encoded<'a>,
    pub class: Class,
    /// Room for reply data.
    pub in_capacity: u32,
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
    /// Attributes follow that the kernel puts into effect whatever it was told since it asked: a program that is slow
    /// to wake up does it after the next recall. So they are trusted for no time at all.
    Set,
    /// Likewise, of an inode that has one more name.
    Linked,
    Attr,
    Bytes,
    Open {
        ino: u64,
        flags: u32,
    },
    Create {
        flags: u32,
    },
    /// A new file, which the program that made it has open without the server's knowledge: `key` is its request's.
    Made {
        flags: u32,
        key: u64,
    },
    Read {
        bytes: u32,
        /// No other node keeps any of it afterwards.
        alone: bool,
    },
    /// `offset`: where the kernel expects the bytes; of an append only a guess.
    Write {
        bytes: u32,
        append: bool,
        offset: u64,
    },
    Copy,
    /// A name is gone. `says_delegated`: the server heard that we have files open of which it was not told.
    Removed {
        says_delegated: bool,
    },
    /// Likewise, of the name that was replaced; or both names lead elsewhere.
    Renamed {
        says_delegated: bool,
        exchanges: bool,
    },
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
        waits: Waits,
    },
    Lseek {
        offset: u64,
        whence: u32,
    },
    /// Go on with the next step of the request, with a file that the server knows from now on.
    Told {
        fh: u64,
    },
    /// The server has the inode open for all of ours that it was not told of.
    Stands,
    /// What programs were answered before is told.
    Behind,
    /// The server has a file open from now on through which a lock was set that it is told of next.
    Opens {
        fh: u64,
    },
    /// Whether others changed an inode of which something is promised.
    Looks,
    /// A request waits until promises are told.
    Waits,
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
    /// Whether what loses a name may be open without the server's knowledge.
    pub may_be_untold: bool,
    /// Whether a file that is made here is expected to come with a lease, under which it can be open so.
    pub delegates: bool,
}

impl Context<'_> {
    fn delegated(&self) -> u16 {
        if self.may_be_untold { fs::DELEGATED } else { 0 }
    }
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
        Body::Lookup { name } => ask(Lookup { parent: ino, name }, Then::Lookup),
        Body::Getattr => ask(Getattr { marks: 0, ino }, Then::Attr),
        Body::Setattr(head) => ask(Setattr { ino, time_ns: now, wanted: setattr(&head, now) }, Then::Set),
        Body::Readlink => ask_for(Readlink { ino }, 4096, Then::Bytes),
        Body::Symlink { name, target } => {
            let create = create(&request.header, libc::S_IFLNK | 0o777, 0, now);
            ask(Symlink { parent: ino, create, name: Measured(name), target: AfterNul(target) }, Then::Entry)
        }
        Body::Mknod { head, name } => {
            let create = create(&request.header, head.mode, head.rdev, now);
            ask(Mknod { parent: ino, create, name: Measured(name) }, Then::Entry)
        }
        Body::Mkdir { head, name } => {
            let create = create(&request.header, head.mode | libc::S_IFDIR, 0, now);
            ask(Mkdir { parent: ino, create, name: Measured(name) }, Then::Entry)
        }
        Body::Create { head, name } if step == 0 && context.delegates => {
            let create = create(&request.header, head.mode & !libc::S_IFMT | libc::S_IFREG, 0, now);
            let then = Then::Made { flags: head.flags, key: request.key() };
            ask(Mknod { parent: ino, create, name: Measured(name) }, then)
        }
        Body::Create { head, name } => {
            // In the second step it was made by the first, or may be there.
            let refuses = head.flags & libc::O_EXCL as u32 != 0 && step == 0;
            let existing = if refuses { Existing::Refuses } else { Existing::Opens };
            let create = create(&request.header, head.mode & !libc::S_IFMT | libc::S_IFREG, 0, now);
            ask(CreateFile { parent: ino, create, name: Measured(name), existing }, Then::Create { flags: head.flags })
        }
        Body::Unlink { name } => {
            let marks = context.delegated();
            let then = Then::Removed { says_delegated: marks != 0 };
            ask(Unlink { marks, parent: ino, time_ns: Third(now), name }, then)
        }
        // Programs have no directory open that the server would know of.
        Body::Rmdir { name } => {
            ask(Rmdir { parent: ino, time_ns: Third(now), name }, Then::Removed { says_delegated: true })
        }
        Body::Rename { to, flags, old, new } => rename((ino, old), (to, new), (flags, context.delegated()), now),
        Body::Link { ino: target, name } => ask(Link { ino: target, parent: ino, time_ns: now, name }, Then::Linked),
        _ => plan_data(request, step, context),
    }
}

fn plan_data<'a>(request: &Request<'a>, step: u32, context: &Context<'_>) -> Step<'a> {
    let ino = request.header.nodeid;
    let now = context.now_ns;
    match request.body {
        Body::Open(head) => {
            let marks = marked(head.open_flags & kernel::OPEN_KILL_SUIDGID, fs::KILL_SUID);
            let open = Open { marks, ino, flags: u64::from(head.flags), time_ns: now };
            ask(open, Then::Open { ino, flags: head.flags })
        }
        Body::Read(head) => {
            let bytes = head.size.min(TRANSFER_BYTES_MAX);
            // The kernel does not say when a program maps a file and changes a page: then nobody else may have it.
            let alone = context.state.is_writable(ino);
            let marks = if alone { fs::WRITABLE } else { 0 };
            let read = Read { marks, ino, offset: head.offset, bytes: u64::from(bytes) };
            ask_for(read, bytes, Then::Read { bytes, alone })
        }
        Body::Write { head, data } => {
            let append = head.flags & libc::O_APPEND as u32 != 0;
            let then = Then::Write { bytes: head.size, append, offset: head.offset };
            let marks = write_marks(&head);
            let write = Write { marks, ino, offset: head.offset, time_ns: now, bytes: data };
            ask_for(write, size_of::<fs::Attr>() as u32, then)
        }
        Body::Statfs => ask(Statfs { ino }, Then::Statfs),
        Body::Release(head) => release(ino, &head, context),
        Body::Fsync(_) | Body::Fsyncdir => ask(Fsync { ino }, Then::Empty),
        Body::Syncfs => ask(Fsync { ino: 0 }, Then::Empty),
        Body::Flush(head) if context.has_locks => {
            let owner = posix_owner(head.lock_owner);
            ask(UnlockOwner { ino, owner }, Then::Unlocked { owner })
        }
        Body::Flush(_) => Step::Answer(0),
        Body::Readdir { head, plus } => readdir(ino, head.offset, head.size, plus),
        Body::Getlk(head) => ask(Getlk { ino, lock: lock(&head) }, Then::Getlk),
        Body::Setlk { head, .. } if step == 0 && head.lk.kind != UNLOCK && is_delegated(context.state, head.fh) => {
            // A lock goes with its file, so the server has to know that.
            let flags = context.state.handle(head.fh).map_or(0, |handle| handle.flags);
            ask(Open { marks: 0, ino, flags: flags_again(flags), time_ns: 0 }, Then::Told { fh: head.fh })
        }
        Body::Setlk { head, blocking } => {
            let waits = if blocking == Blocking::Yes { Waits::Yes } else { Waits::No };
            let then = Then::Lock { owner: lock_owner(&head), kind: head.lk.kind, fh: head.fh, waits };
            let handle = context.state.handle(head.fh).map_or(0, |handle| handle.known_as());
            ask(Setlk { ino, waits, handle, lock: lock(&head) }, then)
        }
        Body::Fallocate(head) => fallocate(ino, &head, now),
        Body::Lseek(LseekIn { offset, whence, .. }) => {
            ask(Lseek { ino, offset, whence: u64::from(whence) }, Then::Lseek { offset, whence })
        }
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
        // What the server answers itself decides for others, too.
        Body::Setxattr { name, .. } | Body::Removexattr { name } if is_own(name) && request.header.uid != 0 => {
            Step::Answer(libc::EPERM)
        }
        // These tell of directories that others may not look into.
        Body::Getxattr { name, .. } if is_own(name) && name != fs::QUOTA_NAME && request.header.uid != 0 => {
            Step::Answer(libc::EPERM)
        }
        Body::Setxattr { value, .. } if value.len() > fs::XATTR_VALUE_BYTES_MAX => Step::Answer(libc::E2BIG),
        Body::Setxattr { flags, name, value } => {
            // Of more bits than these the server knows none.
            let how = u16::try_from(flags).unwrap_or(u16::MAX);
            ask(Setxattr { how, ino, name: Measured(name), time_ns: now, value }, Then::Changed)
        }
        Body::Getxattr { size, name } => {
            let probe = if name == b"security.capability" { Probe::Capability } else { Probe::Other };
            let then = Then::Xattr { room: size, probe };
            ask_for(Getxattr { ino, name }, fs::XATTR_VALUE_BYTES_MAX as u32, then)
        }
        Body::Listxattr { size } => {
            let then = Then::Xattr { room: size, probe: Probe::Other };
            ask_for(Listxattr { ino }, fs::XATTR_VALUE_BYTES_MAX as u32, then)
        }
        Body::Removexattr { name } => ask(Removexattr { ino, time_ns: now, name }, Then::Changed),
        _ => Step::Answer(libc::ENOSYS),
    }
}

/// POSIX ACLs are not kept: without a word from us the kernel would let them be stored but not obeyed.
pub fn is_acl(name: &[u8]) -> bool {
    name.starts_with(b"system.posix_acl_")
}

/// Whether the server answers itself, whatever attributes there are.
pub fn is_own(name: &[u8]) -> bool {
    name.starts_with(fs::OWN_NAMES)
}

/// An operation of the session that carries no request of the kernel: opens a file again after the session was lost.
pub fn reopen(ino: u64, flags: u32) -> Plan<'static> {
    plan_of(Open { marks: 0, ino, flags: flags_again(flags), time_ns: 0 }, 0, Then::Empty)
}

/// The answer to a change of attributes that was carried out.
pub fn look_after_set(ino: u64) -> Plan<'static> {
    plan_of(Getattr { marks: 0, ino }, 0, Then::Set)
}

/// Likewise: opens a file before the server is told of a lock that goes with it.
pub fn open_for_lock(ino: u64, flags: u32) -> Plan<'static> {
    plan_of(Open { marks: fs::BEHIND, ino, flags: flags_again(flags), time_ns: 0 }, 0, Then::Empty)
}

/// Likewise: opens a file for all of ours that the server was not told of.
pub fn stand(ino: u64) -> Plan<'static> {
    plan_of(Open { marks: 0, ino, flags: 0, time_ns: 0 }, 0, Then::Stands)
}

/// Flags of a file that was opened before.
fn flags_again(flags: u32) -> u64 {
    const ONCE: u32 = (libc::O_TRUNC | libc::O_CREAT | libc::O_EXCL) as u32;
    // The highest bit is the handle table's.
    u64::from(flags & !ONCE & i32::MAX as u32)
}

pub fn is_delegated(state: &State, fh: u64) -> bool {
    state.handle(fh).is_some_and(|handle| handle.is_delegated())
}

/// Locks that were set through the file go with it, whatever their owners are: a kernel says of the next file that it
/// has the same owner, perhaps before it says that this one is closed.
fn release<'a>(ino: u64, head: &kernel::ReleaseIn, context: &Context<'_>) -> Step<'a> {
    // A number that is not in the table: the predecessor of this gate had closed it and died before the answer.
    let Some(handle) = context.state.handle(head.fh) else { return Step::Answer(0) };
    if handle.is_delegated() {
        return Step::Own(Own::Release { fh: head.fh });
    }
    ask(Release { ino, handle: handle.fs_handle }, Then::Release { fh: head.fh })
}

/// Commands that a program gives to a directory: there is one, see [`fs::PlaceHead`].
fn place<'a>(header: &InHeader, head: &kernel::IoctlIn, data: &'a [u8], now: u64) -> Step<'a> {
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
    let (parent, mtime_ns) = (header.nodeid, wanted.mtime_ns.get());
    ask(PlaceFile { parent, create, name: Measured(name), mtime_ns, content }, Then::Placed)
}

/// Head, name and content of a whole file.
pub fn place_parts(data: &[u8]) -> Option<(fs::PlaceHead, &[u8], &[u8])> {
    let (head, rest) = fs::PlaceHead::read_from_prefix(data).ok()?;
    let (name, content) = rest.split_at_checked(head.name_bytes.get() as usize)?;
    Some((head, name, content))
}

fn rename<'a>(from: (u64, &'a [u8]), to: (u64, &'a [u8]), (flags, delegated): (u32, u16), now: u64) -> Step<'a> {
    const KNOWN: u32 = libc::RENAME_NOREPLACE | libc::RENAME_EXCHANGE;
    if flags & !KNOWN != 0 || flags == KNOWN {
        return Step::Answer(libc::EINVAL);
    }
    let ((from, old), (to, new)) = (from, to);
    let exchanges = flags & libc::RENAME_EXCHANGE != 0;
    let then = Then::Renamed { says_delegated: delegated != 0, exchanges };
    ask(Rename { how: flags as u16 | delegated, from, to, time_ns: now, old: Prefixed(old), new }, then)
}

fn create(header: &InHeader, mode: u32, rdev: u32, now: u64) -> fs::Create {
    fs::Create {
        mode: mode.into(),
        uid: header.uid.into(),
        gid: header.gid.into(),
        rdev: rdev.into(),
        time_ns: now.into(),
    }
}

/// An inode that a request asks to be made, and its name; a file that is opened at once is one, too.
pub fn made<'a>(request: &Request<'a>) -> Option<(&'a [u8], Made)> {
    const NOTHING: &[u8] = &[];
    let (name, mode, rdev, target) = match request.body {
        Body::Mknod { head, name } => match head.mode & libc::S_IFMT {
            0 => (name, head.mode | libc::S_IFREG, 0, NOTHING),
            libc::S_IFCHR | libc::S_IFBLK => (name, head.mode, head.rdev, NOTHING),
            _ => (name, head.mode, 0, NOTHING),
        },
        Body::Create { head, name } => (name, head.mode & !libc::S_IFMT | libc::S_IFREG, 0, NOTHING),
        Body::Mkdir { head, name } => (name, head.mode & !libc::S_IFMT | libc::S_IFDIR, 0, NOTHING),
        Body::Symlink { name, target } => (name, libc::S_IFLNK | 0o777, 0, target),
        _ => return None,
    };
    let InHeader { uid, gid, .. } = request.header;
    Some((name, Made { mode: mode & (libc::S_IFMT | 0o7777), uid, gid, rdev, target: target.to_vec() }))
}

pub fn setattr(head: &kernel::SetattrIn, now: u64) -> fs::SetAttr {
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
    // A change of owner takes the set-id bits with it, whoever makes it: the kernel leaves that to us. One that names
    // neither owner nor group (-1, -1) does so, too, and is the only request that asks for nothing else.
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
    // Entries with attributes are longer in the kernel's form than in fs's: 152 + name against 96 + name, names padded
    // to 8.
    let capacity = match plus {
        Plus::Names => room,
        Plus::WithAttributes => (u64::from(room) * 104 / 160) as u32,
    };
    let entries = if plus == Plus::WithAttributes { Entries::WithAttributes } else { Entries::Names };
    ask_for(Readdir { ino, cookie, entries }, capacity, Then::Readdir { room, plus, cookie })
}

fn fallocate<'a>(ino: u64, head: &kernel::FallocateIn, now: u64) -> Step<'a> {
    const KNOWN: u32 = (libc::FALLOC_FL_KEEP_SIZE | libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_ZERO_RANGE) as u32;
    if head.mode & !KNOWN != 0 {
        return Step::Answer(libc::EOPNOTSUPP);
    }
    let (offset, bytes) = (head.offset, head.length);
    ask(Fallocate { mode: head.mode as u16, ino, offset, bytes, time_ns: now.into() }, Then::Empty)
}

fn copy_range<'a>(ino: u64, head: &kernel::CopyFileRangeIn, now: u64) -> Step<'a> {
    // The kernel's answer has 32 bits for the length.
    const BYTES_MAX: u64 = 1 << 30;
    let copy = CopyRange {
        marks: 0,
        source: ino,
        target: head.nodeid_out,
        from: head.off_in.into(),
        to: head.off_out.into(),
        bytes: head.len.min(BYTES_MAX).into(),
        time_ns: now.into(),
    };
    ask(copy, Then::Copy)
}

pub fn posix_owner(owner: u64) -> u64 {
    owner & !FLOCK
}

fn lock_owner(head: &kernel::LkIn) -> u64 {
    if head.lk_flags & kernel::LK_FLOCK != 0 { head.owner | FLOCK } else { posix_owner(head.owner) }
}

/// The largest offset of the kernel means the end of the file.
const KERNEL_END: u64 = i64::MAX as u64;

pub fn lock(head: &kernel::LkIn) -> fs::Lock {
    let end = if head.lk.end >= KERNEL_END { u64::MAX } else { head.lk.end };
    fs::Lock {
        owner: lock_owner(head).into(),
        start: head.lk.start.into(),
        end: end.into(),
        kind: head.lk.kind.into(),
        pid: head.lk.pid.into(),
    }
}

/// What a write says of itself.
pub fn write_marks(head: &kernel::WriteIn) -> u16 {
    marked(head.flags & libc::O_APPEND as u32, fs::APPEND)
        | marked(head.write_flags & kernel::WRITE_CACHE, fs::LATE)
        | marked(head.write_flags & kernel::WRITE_KILL_SUIDGID, fs::KILL_SUID)
}

fn marked(asked: u32, mark: u16) -> u16 {
    if asked != 0 { mark } else { 0 }
}

/// An operation whose reply has a fixed length.
fn ask<'a, O: Operation<'a>>(operation: O, then: Then) -> Step<'a> {
    ask_for(operation, 0, then)
}

/// As [`ask`], with room for so much reply data.
fn ask_for<'a, O: Operation<'a>>(operation: O, room: u32, then: Then) -> Step<'a> {
    Step::Submit(plan_of(operation, room, then))
}

fn plan_of<'a, O: Operation<'a>>(operation: O, room: u32, then: Then) -> Plan<'a> {
    Plan { asked: operation.encode(), class: O::CLASS, in_capacity: room.max(O::Reply::DATA_BYTES), then }
}
