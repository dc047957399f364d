//! Open files, and the end of files: an inode goes when it has neither name nor handle.
//!
//! What is left of a large file is removed in steps, each a record of its own; until the last one the inode is an
//! orphan, and opening the volume finishes what was begun.

use std::sync::Arc;

use crate::calls::{Job, Reply};
use crate::core::{Fs, Growth};
use crate::error::Errno;
use crate::extents::Window;
use crate::model::{Inode, key, key1, key2, number_of, tag};
use crate::ops::O_TRUNC;
use crate::ops::attr::kill_set_id_if_asked;
use crate::sessions::is_unused;
use crate::store::{From, Key};
use crate::txn::Txn;

/// Extent records and attributes removed in one record: 64 windows of single blocks are 256 KiB of freed runs.
const STEP_KEYS: usize = 64;
const ORPHANS_PER_SCAN: usize = 1024;

pub(super) fn open(job: &Arc<Job>) -> Result<(), Errno> {
    let [ino, flags, time_ns] = job.call.args;
    let session = job.call.session;
    let fs = &job.fs;
    fs.leases.register(session, ino);
    let _file;
    let mut cut = super::space::Cut::default();
    if flags & O_TRUNC != 0 && fs.read_inode(ino)?.is_file() {
        _file = fs.lock_file(ino);
        cut = fs.cut_in_steps(ino, 0)?;
    }
    // A handle is small: files can be opened, and emptied, on a full volume.
    job.transact(Growth::Shrinks, |txn| {
        if flags & O_TRUNC != 0 && txn.inode(ino)?.is_file() {
            cut.finish(txn, ino, (time_ns != 0).then_some(time_ns))?;
            kill_set_id_if_asked(txn, ino, job.call.flags)?;
        }
        let handle = add(txn, session, ino)?;
        Ok(Reply::done([handle, 0, 0, 0]).lease_on([ino]))
    })
}

pub(crate) fn add(txn: &mut Txn<'_>, session: u64, ino: u64) -> Result<u64, Errno> {
    let mut inode = txn.inode(ino)?;
    let handle = txn.counters.next_handle;
    txn.counters.next_handle += 1;
    inode.opens = inode.opens.checked_add(1).ok_or(Errno::NoSpace)?;
    txn.put_inode(ino, &inode);
    txn.put(key2(tag::HANDLE, session, handle), ino.to_le_bytes().to_vec());
    Ok(handle)
}

pub(super) fn release(job: &Arc<Job>) -> Result<(), Errno> {
    let [ino, handle, _] = job.call.args;
    let session = job.call.session;
    let mut orphan = None;
    job.transact(Growth::Shrinks, |txn| {
        let stored = txn.get(&key2(tag::HANDLE, session, handle))?.ok_or(Errno::BadHandle)?;
        if stored != ino.to_le_bytes() {
            return Err(Errno::BadHandle);
        }
        orphan = close(txn, session, handle)?;
        Ok(Reply::default())
    })?;
    if let Some(ino) = orphan
        && let Err(errno) = job.fs.reap(ino)
    {
        tracing::warn!(ino, "removing it is left to the next start: {errno}");
    }
    Ok(())
}

/// Closes a handle. Answers an inode that must be reaped.
pub(crate) fn close(txn: &mut Txn<'_>, session: u64, handle: u64) -> Result<Option<u64>, Errno> {
    let key = key2(tag::HANDLE, session, handle);
    let Some(stored) = txn.get(&key)? else { return Ok(None) };
    txn.delete(key);
    let ino = u64::from_le_bytes(stored.try_into().map_err(|_| Errno::Io)?);
    let mut inode = match txn.inode(ino) {
        Ok(inode) => inode,
        Err(Errno::NoEntry) => return Ok(None),
        Err(errno) => return Err(errno),
    };
    inode.opens = inode.opens.saturating_sub(1);
    if is_unused(&inode) {
        return settle(txn, ino, &inode);
    }
    txn.put_inode(ino, &inode);
    Ok(None)
}

/// Stores an inode whose claims changed, or removes it. Answers the inode when that takes more steps.
pub(crate) fn settle(txn: &mut Txn<'_>, ino: u64, inode: &Inode) -> Result<Option<u64>, Errno> {
    if inode.links > 0 {
        txn.put_inode(ino, inode);
        return Ok(None);
    }
    if inode.opens == 0 && wipe_step(txn, ino)? {
        return Ok(None);
    }
    txn.put_inode(ino, inode);
    txn.put(key1(tag::ORPHAN, ino), Vec::new());
    Ok((inode.opens == 0).then_some(ino))
}

/// Removes up to [`STEP_KEYS`] of what belongs to an inode, and the inode when that was all.
fn wipe_step(txn: &mut Txn<'_>, ino: u64) -> Result<bool, Errno> {
    for owned in [tag::EXTENTS, tag::XATTR] {
        let found = txn.scan_stored(&key1(owned, ino), &next(key1(owned, ino)), STEP_KEYS)?;
        let is_last = found.len() < STEP_KEYS;
        for (key, value) in found {
            if owned == tag::EXTENTS {
                Window::decode(&value)?.places.iter().flatten().for_each(|place| txn.free_block(place.block));
            }
            txn.delete(key);
        }
        if !is_last {
            return Ok(false);
        }
    }
    for owned in [tag::TARGET, tag::LOCKS, tag::ORPHAN, tag::INODE] {
        if txn.get(&key1(owned, ino))?.is_some() {
            txn.delete(key1(owned, ino));
        }
    }
    txn.counters.inodes = txn.counters.inodes.saturating_sub(1);
    Ok(true)
}

/// The first key behind all that begin with `key`.
fn next(mut key: Key) -> Key {
    while let Some(last) = key.pop() {
        if last < u8::MAX {
            key.push(last + 1);
            break;
        }
    }
    key
}

impl Fs {
    /// Removes an inode that nothing claims any more, step by step.
    pub(crate) fn reap(&self, ino: u64) -> Result<(), Errno> {
        loop {
            let mut is_done = true;
            self.transact_quietly(|txn| {
                match txn.inode(ino) {
                    Ok(inode) if is_unused(&inode) => is_done = wipe_step(txn, ino)?,
                    Ok(_) | Err(Errno::NoEntry) => (),
                    Err(errno) => return Err(errno),
                }
                Ok(())
            })?;
            if is_done {
                return Ok(());
            }
        }
    }

    /// Finishes what the server before this one had begun to remove.
    pub(crate) fn reap_orphans(&self) -> Result<(), Errno> {
        let mut from = key(tag::ORPHAN);
        loop {
            let found = self.store.scan(&from, &key(tag::ORPHAN + 1), ORPHANS_PER_SCAN, From::Start)?;
            for (stored, _) in &found {
                self.reap(number_of(stored, 0).ok_or(Errno::Io)?)?;
            }
            match found.last() {
                Some((last, _)) if found.len() == ORPHANS_PER_SCAN => {
                    from = last.clone();
                    from.push(0);
                }
                _ => return self.log.settle(),
            }
        }
    }
}
