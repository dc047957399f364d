//! Open files, and the end of files: an inode that has neither name nor handle is an orphan, lingers for a while
//! ([`crate::linger`]) and goes.
//!
//! What is left of a large file is removed in steps, each a record of its own; opening the volume finishes what was
//! begun.

use std::sync::Arc;

use vos_api::fs::{Open, Opened, Release};

use crate::calls::{Job, Reply};
use crate::core::{Fs, Growth};
use crate::error::Errno;
use crate::extents::Window;
use crate::linger::Orphan;
use crate::locks;
use crate::log::RECORD_BYTES_MAX;
use crate::model::{Inode, key, key1, key2, number_of, tag};
use crate::ops::attr::kill_set_id_if_asked;
use crate::ops::{O_ACCMODE, O_TRUNC, quotas};
use crate::sessions::is_unused;
use crate::snapshots::is_shown;
use crate::store::{From, Key};
use crate::txn::Txn;

/// Extent records and attributes removed in one record: 64 windows of single blocks are 256 KiB of freed runs.
const STEP_KEYS: usize = 64;
const ORPHANS_PER_SCAN: usize = 1024;
/// A record that removes inodes takes no further one above this: one step more still fits.
const REAP_BYTES_MAX: usize = RECORD_BYTES_MAX / 4;
/// Nor after this many: other operations wait meanwhile.
const REAP_INODES_MAX: usize = 64;

pub(super) fn open(job: &Arc<Job>, Open { marks, ino, flags, time_ns }: Open) -> Result<(), Errno> {
    let session = job.call.session;
    let fs = &job.fs;
    fs.leases.register(session, ino);
    if is_shown(ino) && flags & O_ACCMODE != 0 {
        return Err(Errno::ReadOnly);
    }
    let _file;
    let mut cut = super::space::Cut::default();
    if flags & O_TRUNC != 0 && fs.read_inode(ino)?.is_file() {
        _file = fs.lock_file(ino);
        cut = fs.cut_in_steps(ino, 0)?;
    }
    // A handle is small: files can be opened, and emptied, on a full volume.
    fs.leases.opened(session, ino);
    let growth = if flags & O_TRUNC != 0 { Growth::Shrinks } else { Growth::Owed };
    let result = job.transact(growth, |txn| {
        if flags & O_TRUNC != 0 && txn.inode(ino)?.is_file() {
            cut.finish(txn, ino, (time_ns != 0).then_some(time_ns))?;
            kill_set_id_if_asked(txn, ino, marks)?;
        }
        if flags & O_TRUNC != 0 {
            fs.leases.grant_own(session, ino);
        }
        let handle = add(txn, session, ino)?;
        Ok(Reply::done(Opened { handle }).lease_on([ino]))
    });
    match result {
        Ok(_) => fs.claim(ino),
        Err(_) => fs.leases.closed(session, ino),
    }
    result
}

pub(crate) fn add(txn: &mut Txn<'_>, session: u64, ino: u64) -> Result<u64, Errno> {
    let mut inode = txn.inode(ino)?;
    let handle = txn.counters.next_handle;
    txn.counters.next_handle += 1;
    // What a snapshot shows does not count who has it open: it stays as long as the snapshot does.
    if !is_shown(ino) {
        inode.opens = inode.opens.checked_add(1).ok_or(Errno::NoSpace)?;
        txn.put_inode(ino, &inode);
    }
    txn.put(key2(tag::HANDLE, session, handle), ino.to_le_bytes().to_vec());
    Ok(handle)
}

pub(super) fn release(job: &Arc<Job>, Release { ino, handle }: Release) -> Result<(), Errno> {
    let session = job.call.session;
    let mut orphan = None;
    let mut has_unlocked = false;
    job.transact(Growth::Owed, |txn| {
        let stored = txn.get(&key2(tag::HANDLE, session, handle))?.ok_or(Errno::BadHandle)?;
        if stored != ino.to_le_bytes() {
            return Err(Errno::BadHandle);
        }
        // The kernel tells nobody that a lock of an open file description ends with it, and has told of all others
        // before.
        let mut table = locks::load(txn, ino)?;
        has_unlocked = table.drop_handle(session, handle);
        if has_unlocked {
            locks::store(&table, txn, ino);
        }
        orphan = close(txn, session, handle)?;
        Ok(Reply::default())
    })?;
    job.fs.leases.closed(session, ino);
    if has_unlocked {
        job.fs.log.drive();
        job.fs.wake_lockers(ino);
    }
    job.fs.linger(orphan);
    Ok(())
}

/// Closes a handle. Answers the inode if that was its last claim.
pub(crate) fn close(txn: &mut Txn<'_>, session: u64, handle: u64) -> Result<Option<Orphan>, Errno> {
    let key = key2(tag::HANDLE, session, handle);
    let Some(stored) = txn.get(&key)? else { return Ok(None) };
    txn.delete(key);
    let ino = u64::from_le_bytes(stored.try_into().map_err(|_| Errno::Io)?);
    let mut inode = match txn.inode(ino) {
        Ok(inode) => inode,
        Err(Errno::Gone) => return Ok(None),
        Err(errno) => return Err(errno),
    };
    if is_shown(ino) {
        return Ok(None);
    }
    inode.opens = inode.opens.saturating_sub(1);
    settle(txn, ino, &inode)
}

/// Stores an inode whose claims changed. Answers it when it has none any more.
pub(crate) fn settle(txn: &mut Txn<'_>, ino: u64, inode: &Inode) -> Result<Option<Orphan>, Errno> {
    txn.put_inode(ino, inode);
    if inode.links == 0 {
        txn.put(key1(tag::ORPHAN, ino), Vec::new());
    }
    if inode.is_dir() && inode.links == 0 {
        quotas::end_with(txn, ino, inode)?;
    }
    Ok(is_unused(inode).then(|| Orphan::new(ino, inode)))
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

/// The first key after all that begin with `key`.
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
    /// Removes inodes that nothing claims any more, as many in one record as fit, a large one in steps.
    pub(crate) fn reap(&self, inos: &[u64]) -> Result<(), Errno> {
        let mut left = inos;
        while !left.is_empty() {
            if !self.may_reap() {
                self.put_back(left);
                return Err(Errno::NoSpace);
            }
            let (mut done, mut removed) = (0, Vec::new());
            self.transact_quietly(|txn| {
                for ino in left.iter().take(REAP_INODES_MAX) {
                    match txn.inode(*ino) {
                        Ok(inode) if is_unused(&inode) => {
                            if !wipe_step(txn, *ino)? {
                                break;
                            }
                            removed.push(*ino);
                            done += 1;
                        }
                        Ok(_) | Err(Errno::Gone) => done += 1,
                        Err(errno) => return Err(errno),
                    }
                    if txn.weight() > REAP_BYTES_MAX {
                        break;
                    }
                }
                Ok(())
            })?;
            self.leases.removed(&removed);
            left = left.get(done..).unwrap_or_default();
        }
        Ok(())
    }

    /// Finishes what the server before this one had begun to remove. Directories linger on, and what snapshots leave no
    /// room to remove.
    pub(crate) fn reap_orphans(&self) -> Result<(), Errno> {
        let mut from = key(tag::ORPHAN);
        loop {
            let found = self.store.scan(&from, &key(tag::ORPHAN + 1), ORPHANS_PER_SCAN, From::Start)?;
            for (stored, _) in &found {
                let ino = number_of(stored, 0).ok_or(Errno::Io)?;
                let inode = self.read_inode(ino)?;
                match is_unused(&inode) && inode.is_dir() {
                    true => self.linger(Some(Orphan::new(ino, &inode))),
                    false => match self.reap(&[ino]) {
                        Ok(()) | Err(Errno::NoSpace) => {}
                        Err(errno) => return Err(errno),
                    },
                }
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
