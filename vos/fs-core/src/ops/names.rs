//! Names: looking up, making, removing, renaming, linking.

use std::collections::BTreeSet;
use std::sync::Arc;

use vos_api::fs::{self as api, Create, Existing, Link, Lookup, Readlink, Rename, Request};
use zerocopy::IntoBytes;

use crate::calls::{Call, Job, Reply};
use crate::core::{Fs, Growth};
use crate::error::Errno;
use crate::leases::Touch;
use crate::linger::Orphan;
use crate::model::{
    BLOCK_DEVICE, CHARACTER, CookieEntry, DIRECTORY, Entry, FIFO, Inode, KIND_MASK, REGULAR, SET_GID, SOCKET, SYMLINK,
    key_name, key1, key2, tag,
};
use crate::open::FIRST_COOKIE;
use crate::ops::{handles, quotas};
use crate::txn::{Txn, check_name, checked};

const NOREPLACE: u16 = 1;
const EXCHANGE: u16 = 2;
/// Directories on the way to the root. A path is at most 4096 bytes long, but directories can be nested deeper.
const DEPTH_MAX: u32 = 65_536;
/// Times a lookup looks again when the inode went away between its two reads.
const LOOKUPS_MAX: u32 = 16;

/// An inode that is to be made, whatever it is.
pub(super) struct Making<'a> {
    pub parent: u64,
    pub create: Create,
    /// Its kind and permissions.
    pub mode: u32,
    pub name: &'a [u8],
    /// Of a symbolic link.
    pub target: &'a [u8],
    /// What becomes of a file that exists when it is opened.
    opens: Option<Existing>,
    /// A number that its session was given before; `None`: the next one.
    pub ino: Option<u64>,
}

impl<'a> Making<'a> {
    /// `None` for what makes no inode, and for whole files.
    pub fn of(request: Request<'a>) -> Result<Option<Making<'a>>, Errno> {
        const NOTHING: &[u8] = &[];
        let (kind, parent, create, name, target, opens) = match request {
            Request::CreateFile(it) => (REGULAR, it.parent, it.create, it.name, NOTHING, Some(it.existing)),
            Request::Mknod(it) => (special(it.create.mode.get())?, it.parent, it.create, it.name, NOTHING, None),
            Request::Mkdir(it) => (DIRECTORY, it.parent, it.create, it.name, NOTHING, None),
            Request::Symlink(it) => (SYMLINK, it.parent, it.create, it.name, it.target.0, None),
            _ => return Ok(None),
        };
        let mode = create.mode.get() & 0o7777 | kind;
        Ok(Some(Making { parent, create, mode, name: checked(name.0)?, target, opens, ino: None }))
    }

    /// One that its session made before it told.
    pub fn behind(parent: u64, (create, mode): (Create, u32), (name, target): (&'a [u8], &'a [u8]), ino: u64) -> Self {
        Making { parent, create, mode, name, target, opens: None, ino: Some(ino) }
    }

    pub fn file(parent: u64, create: Create, name: &'a [u8]) -> Result<Making<'a>, Errno> {
        let mode = create.mode.get() & 0o7777 | REGULAR;
        Ok(Making { parent, create, mode, name: checked(name)?, target: &[], opens: None, ino: None })
    }
}

pub(super) fn special(mode: u32) -> Result<u32, Errno> {
    match mode & KIND_MASK {
        0 => Ok(REGULAR),
        kind @ (REGULAR | FIFO | SOCKET | CHARACTER | BLOCK_DEVICE) => Ok(kind),
        _ => Err(Errno::Invalid),
    }
}

/// What a name must lead to so that it is removed.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Directory,
    Other,
}

pub(super) fn lookup(fs: &Fs, call: &Call, Lookup { parent, name }: Lookup<'_>) -> Result<Reply, Errno> {
    for _ in 0..LOOKUPS_MAX {
        let directory_seen = fs.leases.register(call.session, parent);
        let directory = fs.read_inode(parent)?;
        if !directory.is_dir() {
            return Err(Errno::NotDirectory);
        }
        let ino = match name {
            b"." => Some(parent),
            b".." => Some(directory.parent),
            name if name.len() > api::NAME_BYTES_MAX => return Err(Errno::NameTooLong),
            name => fs.read_entry(parent, name)?.map(|entry| entry.ino),
        };
        let Some(ino) = ino else { return Ok(Reply::failed(Errno::NoEntry).seen([directory_seen])) };
        let seen = fs.leases.register(call.session, ino);
        match fs.read_inode(ino) {
            Ok(inode) => return Ok(attr_reply(ino, &inode, fs.marks(ino)?).seen([directory_seen, seen])),
            Err(Errno::Gone) => continue,
            Err(errno) => return Err(errno),
        }
    }
    Err(Errno::NoEntry)
}

/// `marks` of a change's reply: what it left, as the reply may be kept and given later.
pub(super) fn attr_reply(ino: u64, inode: &Inode, marks: u32) -> Reply {
    Reply::with_data([0; 4], inode.attr(ino, marks).as_bytes().to_vec())
}

pub(super) fn readlink(fs: &Fs, call: &Call, Readlink { ino }: Readlink) -> Result<Reply, Errno> {
    let seen = fs.leases.register(call.session, ino);
    if fs.read_inode(ino)?.kind() != SYMLINK {
        return Err(Errno::Invalid);
    }
    let target = fs.store.get(&key1(tag::TARGET, ino))?.ok_or(Errno::Io)?;
    Ok(Reply::with_data(api::Bytes { bytes: target.len() as u64 }, target).seen([seen]))
}

pub(super) fn create(job: &Arc<Job>, touch: &Touch, making: &Making<'_>) -> Result<(), Errno> {
    let (session, parent) = (job.call.session, making.parent);
    let mut opened = None;
    let result = job.transact(Growth::Grows, |txn| {
        let existing = txn.entry(parent, making.name)?;
        let (ino, inode) = match existing {
            Some(entry) if making.opens == Some(Existing::Opens) => open_existing(txn, entry)?,
            Some(_) => return Err(Errno::Exists),
            None => make(txn, making)?,
        };
        // Of one that was there before it is not known here whether it has extended attributes.
        let marks = if existing.is_none() { api::BARE } else { 0 };
        let mut reply = attr_reply(ino, &inode, marks).lease_on([parent, ino]).changes(ino, &inode).names_of([parent]);
        if making.opens.is_some() {
            reply.results = api::Created { handle: handles::add(txn, session, ino)? }.into();
            job.fs.leases.opened(session, ino);
            opened = Some(ino);
        }
        // Before anybody can see it: who made it knows what is in it.
        if existing.is_none() {
            job.fs.leases.grant_own(session, ino);
        }
        Ok(reply)
    });
    if let (Err(_), Some(ino)) = (&result, opened) {
        job.fs.leases.closed(session, ino);
    }
    debug_assert!(touch.inos.contains(&parent));
    result
}

fn open_existing(txn: &Txn<'_>, entry: Entry) -> Result<(u64, Inode), Errno> {
    let inode = txn.inode(entry.ino)?;
    match inode.kind() {
        REGULAR => Ok((entry.ino, inode)),
        DIRECTORY => Err(Errno::IsDirectory),
        _ => Err(Errno::Exists),
    }
}

pub(super) fn make(txn: &mut Txn<'_>, making: &Making<'_>) -> Result<(u64, Inode), Errno> {
    let Making { parent, create, target, .. } = *making;
    let time_ns = create.time_ns.get();
    let ino = making.ino.unwrap_or(txn.counters.next_ino);
    let mut inode = Inode {
        mode: making.mode,
        links: 1,
        uid: create.uid.get(),
        gid: create.gid.get(),
        atime_ns: time_ns,
        mtime_ns: time_ns,
        ctime_ns: time_ns,
        ..Inode::default()
    };
    let directory = txn.directory(parent)?;
    inode.quota = match making.ino {
        None => quotas::demand_one(txn, &directory)?,
        // Whether there may be more of them all their changes together tell.
        Some(_) => txn.quota_in(&directory)?,
    };
    if directory.mode & SET_GID != 0 {
        inode.gid = directory.gid;
        inode.mode |= if inode.is_dir() { SET_GID } else { 0 };
    }
    match inode.kind() {
        DIRECTORY => {
            inode.links = 2;
            inode.parent = parent;
            inode.next_cookie = FIRST_COOKIE;
        }
        CHARACTER | BLOCK_DEVICE => inode.rdev = create.rdev.get(),
        SYMLINK => {
            if target.is_empty() || target.len() > api::SYMLINK_BYTES_MAX {
                return Err(Errno::NameTooLong);
            }
            inode.bytes = target.len() as u64;
            txn.put(key1(tag::TARGET, ino), target.to_vec());
        }
        _ => (),
    }
    txn.counters.next_ino += u64::from(making.ino.is_none());
    txn.counters.inodes += 1;
    txn.put_inode(ino, &inode);
    add_entry(txn, parent, making.name, ino, &inode, time_ns)?;
    Ok((ino, inode))
}

/// Puts a name into a directory. A child directory counts as a link of its parent.
fn add_entry(txn: &mut Txn<'_>, parent: u64, name: &[u8], ino: u64, child: &Inode, time_ns: u64) -> Result<(), Errno> {
    let mut directory = txn.directory(parent)?;
    // A directory that was removed while somebody works in it.
    if directory.links == 0 {
        return Err(Errno::NoEntry);
    }
    if child.is_dir() {
        if directory.links >= api::LINKS_MAX {
            return Err(Errno::TooManyLinks);
        }
        directory.links += 1;
    }
    let cookie = directory.next_cookie;
    directory.next_cookie += 1;
    directory.entries += 1;
    directory.mtime_ns = time_ns;
    directory.ctime_ns = time_ns;
    txn.put_inode(parent, &directory);
    put_entry(txn, parent, name, Entry { ino, cookie, kind: child.kind() });
    Ok(())
}

fn put_entry(txn: &mut Txn<'_>, parent: u64, name: &[u8], entry: Entry) {
    txn.put(key_name(tag::ENTRY, parent, name), entry.encode());
    txn.put(key2(tag::COOKIE, parent, entry.cookie), CookieEntry::encode(entry.ino, entry.kind, name));
}

fn drop_entry(txn: &mut Txn<'_>, parent: u64, name: &[u8], entry: Entry, time_ns: u64) -> Result<(), Errno> {
    let mut directory = txn.directory(parent)?;
    if entry.kind == DIRECTORY {
        directory.links = directory.links.saturating_sub(1);
    }
    directory.entries = directory.entries.saturating_sub(1);
    directory.mtime_ns = time_ns;
    directory.ctime_ns = time_ns;
    txn.put_inode(parent, &directory);
    txn.delete(key_name(tag::ENTRY, parent, name));
    txn.delete(key2(tag::COOKIE, parent, entry.cookie));
    Ok(())
}

pub(super) fn remove(
    job: &Arc<Job>,
    touch: &Touch,
    wanted: Kind,
    (parent, name): (u64, &[u8]),
    (marks, time_ns): (u16, u64),
) -> Result<(), Errno> {
    check_removable(name)?;
    let mut left = Left::default();
    let result = job.transact(Growth::Shrinks, |txn| {
        txn.directory(parent)?;
        let entry = txn.entry(parent, name)?.ok_or(Errno::NoEntry)?;
        covered(touch, entry.ino)?;
        match (wanted, entry.kind == DIRECTORY) {
            (Kind::Directory, false) => return Err(Errno::NotDirectory),
            (Kind::Other, true) => return Err(Errno::IsDirectory),
            _ => (),
        }
        left.orphan = unlink(txn, parent, name, entry, time_ns)?;
        let handle = left.keep(job, txn, entry, marks)?;
        Ok(Reply::done(api::Removed { ino: entry.ino, handle }).names_of([parent]))
    });
    left.settle(job, result)
}

/// What becomes of an inode that lost a name.
#[derive(Default)]
struct Left {
    /// Nothing claims it any more.
    orphan: Option<Orphan>,
    /// It stays, for its session has it open from now on.
    kept: Option<u64>,
}

impl Left {
    /// The session that removed the last name may have it open without having said so: then it stays, through a handle
    /// of the session. Answers that, or 0.
    fn keep(&mut self, job: &Job, txn: &mut Txn<'_>, entry: Entry, marks: u16) -> Result<u64, Errno> {
        let (leases, session) = (&job.fs.leases, job.call.session);
        let may_be_open =
            marks & api::DELEGATED != 0 && entry.kind == REGULAR && leases.is_delegated(session, entry.ino);
        if !may_be_open || txn.inode(entry.ino)?.links > 0 {
            return Ok(0);
        }
        let handle = handles::add(txn, session, entry.ino)?;
        leases.opened(session, entry.ino);
        *self = Left { orphan: None, kept: Some(entry.ino) };
        Ok(handle)
    }

    fn settle(self, job: &Job, result: Result<(), Errno>) -> Result<(), Errno> {
        match (result, self.kept) {
            (Ok(()), _) => job.fs.linger(self.orphan),
            (Err(_), Some(ino)) => job.fs.leases.closed(job.call.session, ino),
            (Err(_), None) => (),
        }
        result
    }
}

fn check_removable(name: &[u8]) -> Result<(), Errno> {
    match name {
        b"." => Err(Errno::Invalid),
        b".." => Err(Errno::NotEmpty),
        _ => check_name(name),
    }
}

pub(super) fn covered(touch: &Touch, ino: u64) -> Result<(), Errno> {
    if touch.inos.contains(&ino) { Ok(()) } else { Err(Errno::TryAgain) }
}

/// Removes a name. Answers what it led to, if that was the last claim.
pub(super) fn unlink(
    txn: &mut Txn<'_>,
    parent: u64,
    name: &[u8],
    entry: Entry,
    time_ns: u64,
) -> Result<Option<Orphan>, Errno> {
    let mut child = txn.inode(entry.ino)?;
    if child.is_dir() {
        if child.entries > 0 {
            return Err(Errno::NotEmpty);
        }
        child.links = 0;
    } else {
        child.links = child.links.saturating_sub(1);
    }
    child.ctime_ns = time_ns;
    drop_entry(txn, parent, name, entry, time_ns)?;
    handles::settle(txn, entry.ino, &child)
}

pub(super) fn rename(job: &Arc<Job>, touch: &Touch, it: Rename<'_>) -> Result<(), Errno> {
    let (old, new) = (checked(it.old.0)?, checked(it.new)?);
    let how = it.how & !api::DELEGATED;
    if how & !(NOREPLACE | EXCHANGE) != 0 || how == NOREPLACE | EXCHANGE {
        return Err(Errno::Invalid);
    }
    let mut left = Left::default();
    let growth = if how & EXCHANGE != 0 { Growth::Shrinks } else { Growth::Grows };
    let result = job.transact(growth, |txn| {
        let ends = Ends { parents: [it.from, it.to], names: [old, new], time_ns: it.time_ns };
        txn.directory(ends.parents[0])?;
        txn.directory(ends.parents[1])?;
        let source = txn.entry(ends.parents[0], old)?.ok_or(Errno::NoEntry)?;
        let target = txn.entry(ends.parents[1], new)?;
        covered(touch, source.ino)?;
        if let Some(target) = target {
            covered(touch, target.ino)?;
        }
        left.orphan = match (how, target) {
            (NOREPLACE, Some(_)) => return Err(Errno::Exists),
            (EXCHANGE, None) => return Err(Errno::NoEntry),
            (EXCHANGE, Some(target)) => exchange(txn, &ends, source, target)?,
            (_, target) => replace(txn, &ends, source, target)?,
        };
        let handle = match target {
            Some(target) => left.keep(job, txn, target, it.how)?,
            None => 0,
        };
        let replaced = target.map_or(0, |target| target.ino);
        let directories = BTreeSet::from(ends.parents);
        Ok(Reply::done(api::Renamed { ino: source.ino, replaced, handle }).names_of(directories))
    });
    left.settle(job, result)
}

pub(super) struct Ends<'a> {
    pub parents: [u64; 2],
    pub names: [&'a [u8]; 2],
    pub time_ns: u64,
}

pub(super) fn replace(
    txn: &mut Txn<'_>,
    ends: &Ends<'_>,
    source: Entry,
    target: Option<Entry>,
) -> Result<Option<Orphan>, Errno> {
    let ([from, to], [old, new]) = (ends.parents, ends.names);
    let is_dir = source.kind == DIRECTORY;
    if is_dir && from != to {
        check_not_inside(txn, to, source.ino)?;
    }
    let mut orphan = None;
    if let Some(target) = target {
        // Two names of one file: nothing happens.
        if target.ino == source.ino {
            return Ok(None);
        }
        match (is_dir, target.kind == DIRECTORY) {
            (true, false) => return Err(Errno::NotDirectory),
            (false, true) => return Err(Errno::IsDirectory),
            _ => (),
        }
        orphan = unlink(txn, to, new, target, ends.time_ns)?;
    }
    drop_entry(txn, from, old, source, ends.time_ns)?;
    let mut moved = txn.inode(source.ino)?;
    moved.ctime_ns = ends.time_ns;
    if is_dir {
        moved.parent = to;
    }
    // Within a directory that is still to be counted it may not say yet what the directory says.
    if from != to {
        quotas::adopt(txn, source.ino, &mut moved, to)?;
    }
    txn.put_inode(source.ino, &moved);
    add_entry(txn, to, new, source.ino, &moved, ends.time_ns)?;
    Ok(orphan)
}

fn exchange(txn: &mut Txn<'_>, ends: &Ends<'_>, source: Entry, target: Entry) -> Result<Option<Orphan>, Errno> {
    if source.ino == target.ino {
        return Ok(None);
    }
    let [from, to] = ends.parents;
    for (entry, home) in [(source, to), (target, from)] {
        if entry.kind == DIRECTORY {
            check_not_inside(txn, home, entry.ino)?;
        }
        let mut inode = txn.inode(entry.ino)?;
        inode.ctime_ns = ends.time_ns;
        if inode.is_dir() {
            inode.parent = home;
        }
        quotas::adopt(txn, entry.ino, &mut inode, home)?;
        txn.put_inode(entry.ino, &inode);
    }
    for (parent, gone, come) in [(from, source, target), (to, target, source)] {
        let mut directory = txn.directory(parent)?;
        directory.links -= u32::from(gone.kind == DIRECTORY).min(directory.links);
        directory.links += u32::from(come.kind == DIRECTORY);
        directory.mtime_ns = ends.time_ns;
        directory.ctime_ns = ends.time_ns;
        txn.put_inode(parent, &directory);
    }
    put_entry(txn, from, ends.names[0], Entry { cookie: source.cookie, ..target });
    put_entry(txn, to, ends.names[1], Entry { cookie: target.cookie, ..source });
    Ok(None)
}

/// Fails when `directory` is `ino` or lies below it.
fn check_not_inside(txn: &Txn<'_>, directory: u64, ino: u64) -> Result<(), Errno> {
    if is_inside(txn, directory, ino)? { Err(Errno::Invalid) } else { Ok(()) }
}

/// Whether `directory` is `ino` or lies below it.
pub(super) fn is_inside(txn: &Txn<'_>, directory: u64, ino: u64) -> Result<bool, Errno> {
    let mut at = directory;
    for _ in 0..DEPTH_MAX {
        if at == ino || at == api::ROOT {
            return Ok(at == ino);
        }
        at = txn.directory(at)?.parent;
    }
    Err(Errno::Invalid)
}

pub(super) fn link(job: &Arc<Job>, Link { ino, parent, time_ns, name }: Link<'_>) -> Result<(), Errno> {
    check_name(name)?;
    job.transact(Growth::Grows, |txn| {
        let inode = add_link(txn, ino, parent, name, time_ns)?;
        Ok(attr_reply(ino, &inode, 0).lease_on([parent, ino]).names_of([parent]))
    })
}

/// One name more.
pub(super) fn add_link(txn: &mut Txn<'_>, ino: u64, parent: u64, name: &[u8], time_ns: u64) -> Result<Inode, Errno> {
    let mut inode = txn.inode(ino)?;
    if inode.is_dir() {
        return Err(Errno::NotPermitted);
    }
    if inode.links == 0 {
        return Err(Errno::NoEntry);
    }
    if inode.links >= api::LINKS_MAX {
        return Err(Errno::TooManyLinks);
    }
    txn.directory(parent)?;
    if txn.entry(parent, name)?.is_some() {
        return Err(Errno::Exists);
    }
    inode.links += 1;
    inode.ctime_ns = time_ns;
    txn.put_inode(ino, &inode);
    add_entry(txn, parent, name, ino, &inode, time_ns)?;
    Ok(inode)
}
