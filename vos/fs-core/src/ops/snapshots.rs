//! Snapshots are taken and removed as directories are. Both are answered after a checkpoint: the one that takes a
//! snapshot commits the tree that it is of.

use std::sync::Arc;

use vos_api::fs::{self as api, SNAPSHOTS, SNAPSHOTS_NAME};

use crate::calls::{Job, Reply};
use crate::core::Growth;
use crate::error::{Errno, StoreError};
use crate::model::{Reader, key, key1, number_of, tag};
use crate::ops::names::{Making, attr_reply};
use crate::snapshots::{COUNT_MAX, ID_MAX, INO_MAX, Snapshot, is_of_snapshot, outer};
use crate::txn::{Txn, checked};

pub(super) fn take(job: &Arc<Job>, making: &Making<'_>) -> Result<(), Errno> {
    let fs = &job.fs;
    fs.become_one_with_snapshots()?;
    job.transact_and_commit(Growth::Grows, |txn| {
        let all = snapshots(txn)?;
        if all.iter().any(|snapshot| !snapshot.is_leaving && snapshot.name == making.name) {
            return Err(Errno::Exists);
        }
        // What was there before there were snapshots, and would hide them.
        let shown = txn.entry(api::ROOT, SNAPSHOTS_NAME)?;
        if shown.is_some_and(|entry| entry.ino != SNAPSHOTS) {
            return Err(Errno::NotDirectory);
        }
        let next = key(tag::SNAPSHOT);
        let id = txn.get(&next)?.map_or(Some(1), |bytes| Reader(&bytes).u64()).ok_or(Errno::Io)?;
        if all.len() >= COUNT_MAX || id > ID_MAX || txn.counters.next_ino > INO_MAX {
            return Err(Errno::TooManyLinks);
        }
        let made_ns = making.create.time_ns.get();
        let name = making.name.to_vec();
        let snapshot = Snapshot { id, made_ns, is_leaving: false, name };
        txn.put(next, (id + 1).to_le_bytes().to_vec());
        txn.put(snapshot.key(), snapshot.encode());
        let root = txn.inode(api::ROOT)?;
        // Without a lease: it is of the checkpoint that follows, and others may change the tree before that.
        Ok(attr_reply(snapshot.root(), &root, 0))
    })
}

pub(super) fn remove(job: &Arc<Job>, name: &[u8]) -> Result<(), Errno> {
    let name = checked(name)?;
    job.transact_and_commit(Growth::Owed, |txn| {
        let found = snapshots(txn)?.into_iter().find(|snapshot| !snapshot.is_leaving && snapshot.name == name);
        let snapshot = Snapshot { is_leaving: true, ..found.ok_or(Errno::NoEntry)? };
        txn.put(snapshot.key(), snapshot.encode());
        Ok(Reply::done(api::Removed { ino: outer(snapshot.id, api::ROOT), handle: 0 }))
    })
}

/// All that have a record, in the order in which they were taken.
fn snapshots(txn: &Txn<'_>) -> Result<Vec<Snapshot>, Errno> {
    let found = txn.scan_stored(&key1(tag::SNAPSHOT, 0), &key(tag::SNAPSHOT + 1), COUNT_MAX + 1)?;
    let decode = |(key, value): (Vec<u8>, Vec<u8>)| {
        let id = number_of(&key, 0).ok_or(StoreError::Damaged("snapshot key"))?;
        Snapshot::decode(id, &value)
    };
    Ok(found.into_iter().map(decode).collect::<Result<_, _>>()?)
}

/// Whether only a snapshot has the inode.
pub(crate) fn is_shown(ino: u64) -> bool {
    is_of_snapshot(&key1(tag::INODE, ino))
}
