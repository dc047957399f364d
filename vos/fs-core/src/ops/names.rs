//! Names: looking up, making, removing, renaming, linking.

use std::sync::Arc;

use vos_api::fs as api;
use zerocopy::{FromBytes, IntoBytes};

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
use crate::ops::handles;
use crate::txn::{Txn, check_name};

const NOREPLACE: u16 = 1;
const EXCHANGE: u16 = 2;
/// Directories on the way to the root. A path is at most 4096 bytes long, but directories can be nested deeper.
const DEPTH_MAX: u32 = 65_536;
/// Times a lookup looks again when the inode went away between its two reads.
const LOOKUPS_MAX: u32 = 16;

pub(super) struct CreateArgs<'a> {
    pub create: api::Create,
    pub name: &'a [u8],
    /// Target of a symbolic link, content of a whole file.
    pub rest: &'a [u8],
}

pub(super) fn lookup(fs: &Fs, call: &Call) -> Result<Reply, Errno> {
    let parent = call.args[0];
    for _ in 0..LOOKUPS_MAX {
        fs.leases.register(call.session, parent);
        let directory = fs.read_inode(parent)?;
        if !directory.is_dir() {
            return Err(Errno::NotDirectory);
        }
        let ino = match call.data.as_slice() {
            b"." => Some(parent),
            b".." => Some(directory.parent),
            name if name.len() > api::NAME_BYTES_MAX => return Err(Errno::NameTooLong),
            name => fs.read_entry(parent, name)?.map(|entry| entry.ino),
        };
        let Some(ino) = ino else { return Ok(Reply::failed(Errno::NoEntry).lease_on([parent])) };
        fs.leases.register(call.session, ino);
        match fs.read_inode(ino) {
            Ok(inode) => return Ok(attr_reply(ino, &inode).lease_on([parent, ino])),
            Err(Errno::Gone) => continue,
            Err(errno) => return Err(errno),
        }
    }
    Err(Errno::NoEntry)
}

pub(super) fn attr_reply(ino: u64, inode: &Inode) -> Reply {
    Reply::with_data([0; 4], inode.attr(ino).as_bytes().to_vec())
}

pub(super) fn readlink(fs: &Fs, call: &Call) -> Result<Reply, Errno> {
    let ino = call.args[0];
    fs.leases.register(call.session, ino);
    if fs.read_inode(ino)?.kind() != SYMLINK {
        return Err(Errno::Invalid);
    }
    let target = fs.store.get(&key1(tag::TARGET, ino))?.ok_or(Errno::Io)?;
    Ok(Reply::with_data([target.len() as u64, 0, 0, 0], target).lease_on([ino]))
}

pub(super) fn parse_create(call: &Call) -> Result<CreateArgs<'_>, Errno> {
    let (create, rest) = api::Create::read_from_prefix(&call.data).map_err(|_| Errno::Invalid)?;
    let name_bytes = usize::try_from(call.args[1]).map_err(|_| Errno::Invalid)?;
    let (name, rest) = rest.split_at_checked(name_bytes).ok_or(Errno::Invalid)?;
    check_name(name)?;
    let rest = match (call.op, rest) {
        (api::SYMLINK, [0, target @ ..]) => target,
        (api::SYMLINK, _) => return Err(Errno::Invalid),
        (api::PLACE, content) => content,
        _ => &[],
    };
    Ok(CreateArgs { create, name, rest })
}

pub(super) fn create(job: &Arc<Job>, touch: &Touch) -> Result<(), Errno> {
    let call = &job.call;
    let args = parse_create(call)?;
    let parent = call.args[0];
    let session = call.session;
    let (mut granted, mut opened) = (None, None);
    let result = job.transact(Growth::Grows, |txn| {
        let existing = txn.entry(parent, args.name)?;
        let (ino, inode) = match existing {
            Some(entry) if call.op == api::CREATE && call.args[2] == 0 => open_existing(txn, entry)?,
            Some(_) => return Err(Errno::Exists),
            None => make(txn, call.op, parent, &args)?,
        };
        let mut reply = attr_reply(ino, &inode).lease_on([parent, ino]);
        if call.op == api::CREATE {
            reply.results[0] = handles::add(txn, session, ino)?;
            job.fs.leases.opened(session, ino);
            opened = Some(ino);
        }
        granted = existing.is_none().then_some(ino);
        Ok(reply)
    });
    if let (Err(_), Some(ino)) = (&result, opened) {
        job.fs.leases.closed(session, ino);
    }
    result?;
    debug_assert!(touch.inos.contains(&parent));
    if let Some(ino) = granted {
        job.fs.leases.grant_own(session, ino);
    }
    Ok(())
}

fn open_existing(txn: &Txn<'_>, entry: Entry) -> Result<(u64, Inode), Errno> {
    let inode = txn.inode(entry.ino)?;
    match inode.kind() {
        REGULAR => Ok((entry.ino, inode)),
        DIRECTORY => Err(Errno::IsDirectory),
        _ => Err(Errno::Exists),
    }
}

pub(super) fn make(txn: &mut Txn<'_>, op: u16, parent: u64, args: &CreateArgs<'_>) -> Result<(u64, Inode), Errno> {
    let time_ns = args.create.time_ns.get();
    let ino = txn.counters.next_ino;
    let mut inode = Inode {
        mode: mode_of(op, args.create.mode.get())?,
        links: 1,
        uid: args.create.uid.get(),
        gid: args.create.gid.get(),
        atime_ns: time_ns,
        mtime_ns: time_ns,
        ctime_ns: time_ns,
        ..Inode::default()
    };
    let directory = txn.directory(parent)?;
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
        CHARACTER | BLOCK_DEVICE => inode.rdev = args.create.rdev.get(),
        SYMLINK => {
            if args.rest.is_empty() || args.rest.len() > api::SYMLINK_BYTES_MAX {
                return Err(Errno::NameTooLong);
            }
            inode.bytes = args.rest.len() as u64;
            txn.put(key1(tag::TARGET, ino), args.rest.to_vec());
        }
        _ => (),
    }
    txn.counters.next_ino += 1;
    txn.counters.inodes += 1;
    txn.put_inode(ino, &inode);
    add_entry(txn, parent, args.name, ino, &inode, time_ns)?;
    Ok((ino, inode))
}

fn mode_of(op: u16, mode: u32) -> Result<u32, Errno> {
    let kind = match (op, mode & KIND_MASK) {
        (api::MKDIR, _) => DIRECTORY,
        (api::SYMLINK, _) => SYMLINK,
        (api::CREATE | api::PLACE, _) | (api::MKNOD, 0) => REGULAR,
        (api::MKNOD, kind @ (REGULAR | FIFO | SOCKET | CHARACTER | BLOCK_DEVICE)) => kind,
        _ => return Err(Errno::Invalid),
    };
    Ok(mode & 0o7777 | kind)
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

pub(super) fn remove(job: &Arc<Job>, touch: &Touch) -> Result<(), Errno> {
    let call = &job.call;
    let (parent, time_ns, name) = (call.args[0], call.args[2], call.data.as_slice());
    check_removable(name)?;
    let is_rmdir = call.op == api::RMDIR;
    let mut orphan = None;
    job.transact(Growth::Shrinks, |txn| {
        txn.directory(parent)?;
        let entry = txn.entry(parent, name)?.ok_or(Errno::NoEntry)?;
        covered(touch, entry.ino)?;
        match (is_rmdir, entry.kind == DIRECTORY) {
            (true, false) => return Err(Errno::NotDirectory),
            (false, true) => return Err(Errno::IsDirectory),
            _ => (),
        }
        orphan = unlink(txn, parent, name, entry, time_ns)?;
        Ok(Reply::default())
    })?;
    job.fs.linger(orphan);
    Ok(())
}

fn check_removable(name: &[u8]) -> Result<(), Errno> {
    match name {
        b"." => Err(Errno::Invalid),
        b".." => Err(Errno::NotEmpty),
        _ => check_name(name),
    }
}

fn covered(touch: &Touch, ino: u64) -> Result<(), Errno> {
    if touch.inos.contains(&ino) { Ok(()) } else { Err(Errno::TryAgain) }
}

/// Removes a name. Answers what it led to, if that was the last claim.
fn unlink(txn: &mut Txn<'_>, parent: u64, name: &[u8], entry: Entry, time_ns: u64) -> Result<Option<Orphan>, Errno> {
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
    Ok(handles::settle(txn, entry.ino, &child))
}

pub(super) fn parse_rename(call: &Call) -> Result<(&[u8], &[u8]), Errno> {
    let (bytes, names) = call.data.split_first_chunk::<2>().ok_or(Errno::Invalid)?;
    let (old, new) = names.split_at_checked(usize::from(u16::from_le_bytes(*bytes))).ok_or(Errno::Invalid)?;
    check_name(old)?;
    check_name(new)?;
    Ok((old, new))
}

pub(super) fn rename(job: &Arc<Job>, touch: &Touch) -> Result<(), Errno> {
    let call = &job.call;
    let (old, new) = parse_rename(call)?;
    if call.flags & !(NOREPLACE | EXCHANGE) != 0 || call.flags == NOREPLACE | EXCHANGE {
        return Err(Errno::Invalid);
    }
    let mut orphan = None;
    let growth = if call.flags & EXCHANGE != 0 { Growth::Shrinks } else { Growth::Grows };
    job.transact(growth, |txn| {
        let ends = Ends { parents: [call.args[0], call.args[1]], names: [old, new], time_ns: call.args[2] };
        txn.directory(ends.parents[0])?;
        txn.directory(ends.parents[1])?;
        let source = txn.entry(ends.parents[0], old)?.ok_or(Errno::NoEntry)?;
        let target = txn.entry(ends.parents[1], new)?;
        covered(touch, source.ino)?;
        if let Some(target) = target {
            covered(touch, target.ino)?;
        }
        orphan = match (call.flags, target) {
            (NOREPLACE, Some(_)) => return Err(Errno::Exists),
            (EXCHANGE, None) => return Err(Errno::NoEntry),
            (EXCHANGE, Some(target)) => exchange(txn, &ends, source, target)?,
            (_, target) => replace(txn, &ends, source, target)?,
        };
        Ok(Reply::default())
    })?;
    job.fs.linger(orphan);
    Ok(())
}

struct Ends<'a> {
    parents: [u64; 2],
    names: [&'a [u8]; 2],
    time_ns: u64,
}

fn replace(txn: &mut Txn<'_>, ends: &Ends<'_>, source: Entry, target: Option<Entry>) -> Result<Option<Orphan>, Errno> {
    let ([from, to], [old, new]) = (ends.parents, ends.names);
    let is_dir = source.kind == DIRECTORY;
    if is_dir {
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
    let mut at = directory;
    for _ in 0..DEPTH_MAX {
        if at == ino {
            return Err(Errno::Invalid);
        }
        if at == api::ROOT {
            return Ok(());
        }
        at = txn.directory(at)?.parent;
    }
    Err(Errno::Invalid)
}

pub(super) fn link(job: &Arc<Job>) -> Result<(), Errno> {
    let call = &job.call;
    let [ino, parent, time_ns] = call.args;
    let name = call.data.as_slice();
    check_name(name)?;
    job.transact(Growth::Grows, |txn| {
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
        Ok(attr_reply(ino, &inode).lease_on([parent, ino]))
    })
}
