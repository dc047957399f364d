//! The operations of `vos_api::fs`: which one is which, what each touches, and where it lives.

mod attr;
mod data;
mod dir;
pub(crate) mod handles;
mod names;
mod place;
mod space;
mod xattr;

use std::sync::Arc;

use vos_api::fs as api;
use zerocopy::FromBytes;

use crate::calls::{Call, Job, Reply};
use crate::core::{Fs, Growth};
use crate::error::Errno;
use crate::leases::Touch;
use crate::locks::{Held, Table};
use crate::model::{Entry, Inode, key_name, key1, tag};

const O_TRUNC: u64 = 0o1000;

pub(crate) fn is_change(op: u16) -> bool {
    matches!(
        op,
        api::SETATTR
            | api::CREATE
            | api::MKNOD
            | api::MKDIR
            | api::SYMLINK
            | api::UNLINK
            | api::RMDIR
            | api::RENAME
            | api::LINK
            | api::OPEN
            | api::RELEASE
            | api::WRITE
            | api::SETXATTR
            | api::REMOVEXATTR
            | api::FALLOCATE
            | api::UNLOCK_OWNER
            | api::COPY_RANGE
            | api::PLACE
    )
}

/// A request that changes nothing.
pub(crate) fn read(fs: &Arc<Fs>, call: &Call) -> Result<Reply, Errno> {
    match call.op {
        api::LOOKUP => names::lookup(fs, call),
        api::GETATTR => attr::getattr(fs, call),
        api::READLINK => names::readlink(fs, call),
        api::READ => data::read(fs, call),
        api::READDIR => dir::readdir(fs, call),
        api::STATFS => attr::statfs(fs),
        api::GETXATTR => xattr::get(fs, call),
        api::LISTXATTR => xattr::list(fs, call),
        api::LSEEK => space::seek(fs, call),
        api::GETLK => getlk(fs, call),
        _ => Err(Errno::NotSupported),
    }
}

/// A request that changes something. `touch` is what others cannot have in their caches now; a change that turns out to
/// touch more answers [`Errno::TryAgain`].
pub(crate) fn change(job: &Arc<Job>, touch: &Touch) -> Result<(), Errno> {
    match job.call.op {
        api::SETATTR => attr::setattr(job),
        api::CREATE | api::MKNOD | api::MKDIR | api::SYMLINK => names::create(job, touch),
        api::UNLINK | api::RMDIR => names::remove(job, touch),
        api::RENAME => names::rename(job, touch),
        api::LINK => names::link(job),
        api::OPEN => handles::open(job),
        api::RELEASE => handles::release(job),
        api::WRITE => data::write(job),
        api::SETXATTR => xattr::set(job),
        api::REMOVEXATTR => xattr::remove(job),
        api::FALLOCATE => space::fallocate(job),
        api::UNLOCK_OWNER => unlock_owner(job),
        api::COPY_RANGE => data::copy(job),
        api::PLACE => place::place(job),
        _ => Err(Errno::NotSupported),
    }
}

/// What a change will touch, as far as it can be seen before.
pub(crate) fn touch(fs: &Fs, call: &Call) -> Result<Touch, Errno> {
    let [first, second, _] = call.args;
    Ok(match call.op {
        api::SETATTR | api::WRITE | api::FALLOCATE => fs.touch_bytes(first, data::end_of(fs, call)),
        api::SETXATTR | api::REMOVEXATTR => Touch::inode(first),
        api::OPEN if second & O_TRUNC != 0 => Touch::inode(first),
        api::COPY_RANGE => fs.touch_bytes(second, data::end_of(fs, call)),
        api::LINK => Touch::name(second, &call.data).and(first),
        api::CREATE | api::MKNOD | api::MKDIR | api::SYMLINK | api::PLACE => {
            Touch::name(first, names::parse_create(call)?.name)
        }
        api::UNLINK | api::RMDIR => fs.touch_child(Touch::name(first, &call.data), first, &call.data)?,
        api::RENAME => {
            let (old, new) = names::parse_rename(call)?;
            let touch = fs.touch_child(Touch::name(first, old), first, old)?;
            fs.touch_child(touch.join(Touch::name(second, new)), second, new)?
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
        Ok(Inode::decode(&bytes)?)
    }

    pub(crate) fn read_entry(&self, parent: u64, name: &[u8]) -> Result<Option<Entry>, Errno> {
        match self.store.get(&key_name(tag::ENTRY, parent, name))? {
            Some(bytes) => Ok(Some(Entry::decode(&bytes)?)),
            None => Ok(None),
        }
    }
}

pub(crate) fn parse_lock(call: &Call) -> Result<Held, Errno> {
    let lock = api::Lock::read_from_bytes(&call.data).map_err(|_| Errno::Invalid)?;
    Held::new(call.session, call.args[2], &lock)
}

fn getlk(fs: &Fs, call: &Call) -> Result<Reply, Errno> {
    use zerocopy::IntoBytes;
    let wanted = parse_lock(call)?;
    fs.read_inode(call.args[0])?;
    let stored = fs.store.get(&key1(tag::LOCKS, call.args[0]))?;
    let table = stored.map_or(Some(Table::default()), |bytes| Table::decode(&bytes)).ok_or(Errno::Io)?;
    let answer = match table.conflict(&wanted) {
        Some(held) => held.to_lock(),
        None => api::Lock { kind: crate::locks::UNLOCK.into(), ..wanted.to_lock() },
    };
    Ok(Reply::with_data([0; 4], answer.as_bytes().to_vec()))
}

fn unlock_owner(job: &Arc<Job>) -> Result<(), Errno> {
    let [ino, owner, _] = job.call.args;
    let session = job.call.session;
    let mut has_changed = false;
    job.transact(Growth::Shrinks, |txn| {
        let mut table = Table::load(txn, ino)?;
        has_changed = table.drop_owner(session, owner);
        if has_changed {
            table.store(txn, ino);
        }
        Ok(Reply::default())
    })?;
    if has_changed {
        job.fs.log.drive();
        job.fs.wake_lockers(ino);
    }
    Ok(())
}
