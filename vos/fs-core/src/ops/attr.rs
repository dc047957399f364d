//! Attributes of inodes and of the whole tree.

use std::sync::Arc;

use vos_api::fs::{self as api, Getattr, Setattr, valid};

use crate::calls::{Call, Job, Reply};
use crate::core::{Fs, Growth};
use crate::error::Errno;
use crate::model::{GROUP_EXECUTE, Inode, KIND_MASK, SET_GID, SET_UID};
use crate::ops::names::attr_reply;
use crate::txn::Txn;

pub(super) fn getattr(fs: &Fs, call: &Call, Getattr { marks, ino }: Getattr) -> Result<Reply, Errno> {
    let seen = fs.leases.register(call.session, ino);
    let mut reply = attr_reply(ino, &fs.read_inode(ino)?, fs.marks(ino)?).seen([seen]);
    if marks & api::BEHIND != 0 && fs.leases.is_own(call.session, ino) {
        reply.results[3] |= api::EXCLUSIVE;
    }
    Ok(reply)
}

pub(super) fn setattr(job: &Arc<Job>, Setattr { ino, time_ns, wanted }: Setattr) -> Result<(), Errno> {
    let fs = &job.fs;
    let resizes = wanted.valid.get() & valid::BYTES != 0;
    let bytes = wanted.bytes.get();
    if resizes && bytes > api::FILE_BYTES_MAX {
        return Err(Errno::FileTooBig);
    }
    let _file;
    let mut cut = super::space::Cut::default();
    let mut growth = Growth::Owed;
    if resizes {
        let inode = fs.read_inode(ino)?;
        match inode.is_file() {
            false if inode.is_dir() => return Err(Errno::IsDirectory),
            false => return Err(Errno::Invalid),
            true => (),
        }
        _file = fs.lock_file(ino);
        cut = fs.cut_in_steps(ino, bytes)?;
        growth = if bytes == 0 { Growth::Shrinks } else { Growth::Grows };
    }
    let blocks = cut.taken.clone();
    let result = job.transact(growth, |txn| {
        if resizes {
            cut.finish(txn, ino, Some(time_ns))?;
        }
        let mut inode = txn.inode(ino)?;
        apply(&mut inode, &wanted, time_ns);
        txn.put_inode(ino, &inode);
        Ok(attr_reply(ino, &inode, 0).lease_on([ino]).changes(ino, &inode))
    });
    if result.is_err() {
        fs.give_back(&blocks);
    }
    fs.leases.grant_own(job.call.session, ino);
    result
}

fn apply(inode: &mut Inode, wanted: &api::SetAttr, time_ns: u64) {
    let has = |bit| wanted.valid.get() & bit != 0;
    if has(valid::UID) || has(valid::GID) || has(valid::KILL_SUID) {
        kill_set_id(inode);
    }
    if has(valid::MODE) {
        inode.mode = inode.mode & KIND_MASK | wanted.mode.get() & 0o7777;
    }
    if has(valid::UID) {
        inode.uid = wanted.uid.get();
    }
    if has(valid::GID) {
        inode.gid = wanted.gid.get();
    }
    if has(valid::ATIME) {
        inode.atime_ns = wanted.atime_ns.get();
    }
    if has(valid::MTIME) {
        inode.mtime_ns = wanted.mtime_ns.get();
    }
    inode.ctime_ns = if has(valid::CTIME) { wanted.ctime_ns.get() } else { time_ns };
}

/// What [`api::KILL_SUID`] asks for, in the operation's own record.
pub(super) fn kill_set_id_if_asked(txn: &mut Txn<'_>, ino: u64, marks: u16) -> Result<(), Errno> {
    if marks & api::KILL_SUID == 0 {
        return Ok(());
    }
    let mut inode = txn.inode(ino)?;
    kill_set_id(&mut inode);
    txn.put_inode(ino, &inode);
    Ok(())
}

/// Of everything but directories, where set-group-id is about the files in it. Set-group-id without group execute means
/// mandatory locking and stays.
fn kill_set_id(inode: &mut Inode) {
    if inode.is_dir() {
        return;
    }
    inode.mode &= !SET_UID;
    if inode.mode & GROUP_EXECUTE != 0 {
        inode.mode &= !SET_GID;
    }
}

pub(super) fn statfs(fs: &Fs, ino: u64) -> Result<Reply, Errno> {
    let (lingering, lingering_blocks) = fs.lingering.lock().sizes();
    let (blocks, free) = {
        let blocks = fs.blocks.lock();
        // What lingers makes room as soon as that is needed, unless a snapshot may have it.
        let soon = if blocks.holds() { 0 } else { lingering_blocks };
        (blocks.blocks(), blocks.available().saturating_add(soon).min(blocks.blocks()))
    };
    // Files that linger are not there for anybody who counts.
    let (files, files_free) = (fs.counters().inodes.saturating_sub(lingering), fs.files_free());
    let mut space = api::Space { blocks, blocks_free: free, inodes: files + files_free, inodes_free: files_free };
    let quota = match ino {
        0 => None,
        // One that is gone counts nowhere.
        _ => fs.read_inode(ino).ok().map(|inode| fs.quota_of(&inode)).transpose()?.flatten(),
    };
    if let Some(quota) = quota {
        let (blocks_left, inodes_left) = quota.left();
        if let Some(left) = blocks_left {
            (space.blocks, space.blocks_free) = (blocks.min(quota.limits.blocks), free.min(left));
        }
        if let Some(left) = inodes_left {
            (space.inodes, space.inodes_free) = (space.inodes.min(quota.limits.inodes), files_free.min(left));
        }
    }
    Ok(Reply::done(space))
}
