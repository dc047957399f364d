//! The operations of `vos_api::fs`: which one is which, what each touches, and where it lives.

mod attr;
mod behind;
mod data;
mod dir;
pub(crate) mod handles;
mod names;
mod place;
pub(crate) mod quotas;
mod snapshots;
mod space;
mod xattr;

use std::sync::Arc;

use vos_api::fs::{
    self as api, Fallocate, Getlk, Removexattr, Request, Rmdir, Setattr, Setxattr, Unlink, UnlockOwner, Write,
};

use crate::calls::{Call, Job, Reply};
use crate::core::{Fs, Growth};
use crate::error::Errno;
use crate::leases::{Look, Touch};
use crate::locks::{self, Held, LockTable, UNLOCK};
use crate::model::{DIRECTORY, Entry, Inode, KIND_MASK, key_name, key1, tag};
use crate::ops::names::{Kind, Making};
use crate::snapshots::is_shown;
use crate::txn::checked;

const O_ACCMODE: u64 = 0o3;
const O_TRUNC: u64 = 0o1000;

/// A request that changes nothing.
pub(crate) fn read(fs: &Arc<Fs>, call: &Call) -> Result<Reply, Errno> {
    let reply = look(fs, call);
    // Of one that was removed meanwhile it found nothing, or not all.
    if let Some(ino) = looked_through(call).filter(|ino| is_shown(*ino)) {
        fs.read_inode(ino)?;
    }
    reply
}

fn looked_through(call: &Call) -> Option<u64> {
    Some(match call.request().ok()? {
        Request::Lookup(it) => it.parent,
        Request::Readlink(it) => it.ino,
        Request::Read(it) => it.ino,
        Request::Readdir(it) => it.ino,
        Request::Getxattr(it) => it.ino,
        Request::Listxattr(it) => it.ino,
        Request::Lseek(it) => it.ino,
        _ => return None,
    })
}

fn look(fs: &Arc<Fs>, call: &Call) -> Result<Reply, Errno> {
    match call.request()? {
        Request::Lookup(it) => names::lookup(fs, call, it),
        Request::Getattr(it) => attr::getattr(fs, call, it),
        Request::Readlink(it) => names::readlink(fs, call, it),
        Request::Read(it) => data::read(fs, call, it),
        Request::Readdir(it) => dir::readdir(fs, call, it),
        Request::Statfs(it) => attr::statfs(fs, it.ino),
        Request::Getxattr(it) if quotas::is_own(it.name) => quotas::get(fs, call, it),
        Request::Getxattr(it) => xattr::get(fs, call, it),
        Request::Listxattr(it) => xattr::list(fs, call, it),
        Request::Lseek(it) => space::seek(fs, call, it),
        Request::Getlk(it) => getlk(fs, call, it),
        _ => Err(Errno::NotSupported),
    }
}

/// A request that changes something. `touch` is what others cannot have in their caches now; a change that turns out to
/// touch more answers [`Errno::TryAgain`].
pub(crate) fn change(job: &Arc<Job>, touch: &Touch) -> Result<(), Errno> {
    if let Some(making) = Making::of(job.call.request()?)? {
        if making.parent == api::SNAPSHOTS && making.mode & KIND_MASK == DIRECTORY {
            return snapshots::take(job, &making);
        }
        return names::create(job, touch, &making);
    }
    match job.call.request()? {
        Request::Setattr(it) => attr::setattr(job, it),
        Request::Unlink(Unlink { marks, parent, time_ns, name }) => {
            names::remove(job, touch, Kind::Other, (parent, name), (marks, time_ns.0))
        }
        Request::Rmdir(it) if it.parent == api::SNAPSHOTS => snapshots::remove(job, it.name),
        Request::Rmdir(Rmdir { parent, time_ns, name }) => {
            names::remove(job, touch, Kind::Directory, (parent, name), (0, time_ns.0))
        }
        Request::Rename(it) => names::rename(job, touch, it),
        Request::Link(it) => names::link(job, it),
        Request::Open(it) => handles::open(job, it),
        Request::Release(it) => handles::release(job, it),
        Request::Write(it) => data::write(job, it),
        Request::Setxattr(it) if quotas::is_own(it.name.0) => quotas::set(job, it),
        Request::Removexattr(it) if quotas::is_own(it.name) => quotas::remove(job, it),
        Request::Setxattr(it) => xattr::set(job, it),
        Request::Removexattr(it) => xattr::remove(job, it),
        Request::Fallocate(it) => space::fallocate(job, it),
        Request::UnlockOwner(it) => unlock_owner(job, it),
        Request::CopyRange(it) => data::copy(job, it),
        Request::PlaceFile(it) => place::place(job, it),
        Request::Names(it) => behind::names(job, touch, it),
        _ => Err(Errno::NotSupported),
    }
}

/// The directory whose names a request looks at.
pub(crate) fn looked_into(call: &Call) -> Option<u64> {
    match call.request().ok()? {
        Request::Lookup(it) => Some(it.parent),
        Request::Readdir(it) => Some(it.ino),
        _ => None,
    }
}

/// Directories whose names a change goes by.
pub(crate) fn directories_of(call: &Call) -> [Option<u64>; 2] {
    match call.request() {
        Ok(Request::CreateFile(it)) => [Some(it.parent), None],
        Ok(Request::Unlink(it)) => [Some(it.parent), None],
        Ok(Request::Rmdir(it)) => [Some(it.parent), None],
        Ok(Request::Rename(it)) => [Some(it.from), Some(it.to)],
        _ => [None; 2],
    }
}

/// Whose attributes a request asks for, and how long it may wait until they can be told. Those of directories for what
/// others have exclusively and nothing else: their locks are held by kernels that ask, and others wait for these locks.
pub(crate) fn looked_at(fs: &Fs, call: &Call) -> Option<(u64, Look)> {
    let (ino, look) = match call.request().ok()? {
        Request::Getattr(it) if it.marks & api::BEHIND != 0 => {
            // Who has it to itself waits for nobody: others may wait for it.
            if fs.leases.is_own(call.session, it.ino) {
                return None;
            }
            (it.ino, Look::Told)
        }
        Request::Getattr(it) => (it.ino, Look::Patient),
        Request::Lseek(api::Lseek { ino, .. }) | Request::Getlk(Getlk { ino, .. }) => (ino, Look::Told),
        Request::Lookup(it) => (looked_up(fs, it.parent, it.name)?, Look::Hasty),
        _ => return None,
    };
    // Most are looked at by nobody else; then there is nothing to find out.
    if !fs.leases.may_wait(call.session, ino) {
        return None;
    }
    Some((ino, if fs.read_inode(ino).ok()?.is_dir() { Look::Told } else { look }))
}

fn looked_up(fs: &Fs, directory: u64, name: &[u8]) -> Option<u64> {
    match name {
        b"." => Some(directory),
        b".." => Some(fs.read_inode(directory).ok()?.parent),
        name => Some(fs.read_entry(directory, name).ok()??.ino),
    }
}

/// An inode that a change does not touch and whose bytes, size or locks it goes by, or that it opens.
pub(crate) fn read_by_change(fs: &Fs, call: &Call) -> Option<u64> {
    match call.request().ok()? {
        // Who had it exclusively says so, and waits for nobody.
        Request::Open(it) => (it.marks & api::BEHIND == 0).then_some(it.ino),
        // It may keep locks, and have begun to when this session had not opened the file yet.
        Request::Setlk(it) => (it.waits != api::Waits::Kept).then_some(it.ino),
        Request::CopyRange(it) => Some(it.source),
        Request::CreateFile(it) => Some(fs.read_entry(it.parent, it.name.0).ok()??.ino),
        _ => None,
    }
}

/// What a change will touch, as far as it can be seen before.
pub(crate) fn touch(fs: &Fs, call: &Call) -> Result<Touch, Errno> {
    let request = call.request()?;
    if let Some(making) = Making::of(request)? {
        return Ok(Touch::name(making.parent, making.name));
    }
    Ok(match request {
        Request::Setattr(Setattr { ino, .. })
        | Request::Write(Write { ino, .. })
        | Request::Fallocate(Fallocate { ino, .. }) => fs.touch_bytes(ino, data::end_of(fs, request)),
        Request::CopyRange(it) => fs.touch_bytes(it.target, data::end_of(fs, request)),
        Request::Setxattr(Setxattr { ino, .. }) | Request::Removexattr(Removexattr { ino, .. }) => Touch::inode(ino),
        Request::Open(it) if it.flags & O_TRUNC != 0 => Touch::inode(it.ino),
        Request::Link(it) => Touch::name(it.parent, it.name).and(it.ino),
        Request::PlaceFile(it) => Touch::name(it.parent, checked(it.name.0)?),
        Request::Names(it) => behind::touch(fs, it)?,
        Request::Unlink(Unlink { parent, name, .. }) | Request::Rmdir(Rmdir { parent, name, .. }) => {
            fs.touch_child(Touch::name(parent, name), parent, name)?
        }
        Request::Rename(it) => {
            let (old, new) = (checked(it.old.0)?, checked(it.new)?);
            let touch = fs.touch_child(Touch::name(it.from, old), it.from, old)?;
            fs.touch_child(touch.join(Touch::name(it.to, new)), it.to, new)?
        }
        _ => Touch::default(),
    })
}

impl Fs {
    /// What a change of bytes up to `end` touches.
    fn touch_bytes(&self, ino: u64, end: Option<data::End>) -> Touch {
        let Some(end) = end else { return Touch::inode(ino) };
        // Whether there is such an inode the change itself finds out.
        let bytes = self.read_inode(ino).map_or(u64::MAX, |inode| inode.bytes);
        let end = match end {
            data::End::At(end) => end,
            data::End::Appended(count) => bytes.saturating_add(count),
        };
        let grows = (end > bytes && end <= api::FILE_BYTES_MAX).then_some((ino, end));
        Touch { grows, ..Touch::inode(ino) }
    }

    fn touch_child(&self, touch: Touch, parent: u64, name: &[u8]) -> Result<Touch, Errno> {
        Ok(match self.read_entry(parent, name)? {
            Some(entry) => touch.and(entry.ino),
            None => touch,
        })
    }

    pub(crate) fn read_inode(&self, ino: u64) -> Result<Inode, Errno> {
        let bytes = self.store.get(&key1(tag::INODE, ino))?.ok_or(Errno::Gone)?;
        let inode = Inode::decode(&bytes)?;
        if ino == api::SNAPSHOTS {
            return Ok(Inode { blocks: self.blocks.lock().held_alone(), ..inode });
        }
        Ok(inode)
    }

    pub(crate) fn read_entry(&self, parent: u64, name: &[u8]) -> Result<Option<Entry>, Errno> {
        match self.store.get(&key_name(tag::ENTRY, parent, name))? {
            Some(bytes) => Ok(Some(Entry::decode(&bytes)?)),
            None => Ok(None),
        }
    }
}

fn getlk(fs: &Fs, call: &Call, it: Getlk) -> Result<Reply, Errno> {
    use zerocopy::IntoBytes;
    let wanted = Held::new(call.session, 0, &it.lock)?;
    fs.read_inode(it.ino)?;
    let stored = fs.store.get(&key1(tag::LOCKS, it.ino))?;
    let table = stored.map_or(Some(LockTable::default()), |bytes| locks::decode(&bytes)).ok_or(Errno::Io)?;
    let answer = match table.conflict(&wanted) {
        Some(held) => held.to_lock(),
        None => api::Lock { kind: UNLOCK.into(), ..wanted.to_lock() },
    };
    Ok(Reply::with_data([0; 4], answer.as_bytes().to_vec()))
}

fn unlock_owner(job: &Arc<Job>, UnlockOwner { ino, owner }: UnlockOwner) -> Result<(), Errno> {
    let session = job.call.session;
    let mut has_changed = false;
    job.transact(Growth::Owed, |txn| {
        let mut table = locks::load(txn, ino)?;
        has_changed = table.drop_owner(session, owner);
        if has_changed {
            locks::store(&table, txn, ino);
        }
        // Of one that is no more nobody has anything.
        Ok(txn.inode(ino).map_or_else(|_| Reply::default(), |inode| Reply::default().of_locks(ino, &inode, &table)))
    })?;
    if has_changed {
        job.fs.log.drive();
        job.fs.wake_lockers(ino);
    }
    Ok(())
}
