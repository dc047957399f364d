//! Snapshots are taken and removed as directories are. Both are answered after a checkpoint: the one that takes a
//! snapshot commits the tree that it is of.

use std::sync::Arc;

use vos_api::fs::{self as api, SNAPSHOTS, SNAPSHOTS_NAME};

use crate::calls::{Job, Reply};
use crate::core::{Fs, Growth};
use crate::error::{Errno, StoreError};
use crate::layout::VERSION_SNAPSHOTS;
use crate::model::{Reader, key, key1, number_of, tag};
use crate::ops::names::{Making, attr_reply};
use crate::ops::quotas::LISTING_BYTES_MAX;
use crate::snapshots::{COUNT_MAX, ID_MAX, INO_MAX, Snapshot, is_shown, outer, split};
use crate::txn::{Txn, checked};

pub(super) fn take(job: &Arc<Job>, making: &Making<'_>) -> Result<(), Errno> {
    let fs = &job.fs;
    // A server of such a release, which may be there next, would refuse the volume.
    if fs.leases.has_of_before() {
        return Err(Errno::NotSupported);
    }
    next(&Txn::new(&fs.store, fs.counters()), making.name)?;
    fs.come_to_need(VERSION_SNAPSHOTS)?;
    job.transact_and_commit(Growth::Grows, |txn| {
        let id = next(txn, making.name)?;
        let made_ns = making.create.time_ns.get();
        let name = making.name.to_vec();
        let snapshot = Snapshot { id, made_ns, is_leaving: false, name };
        txn.put(key(tag::SNAPSHOT), (id + 1).to_le_bytes().to_vec());
        txn.put(snapshot.key(), snapshot.encode());
        let root = txn.inode(api::ROOT)?;
        // Without a lease: it is of the checkpoint that follows, and others may change the tree before that.
        Ok(attr_reply(snapshot.root(), &root, 0))
    })
}

/// The number of the next one, if it can be taken.
fn next(txn: &Txn<'_>, name: &[u8]) -> Result<u64, Errno> {
    let all = snapshots(txn)?;
    if all.iter().any(|snapshot| !snapshot.is_leaving && snapshot.name == name) {
        return Err(Errno::Exists);
    }
    // What was there before there were snapshots, and would hide them.
    let shown = txn.entry(api::ROOT, SNAPSHOTS_NAME)?;
    if shown.is_some_and(|entry| entry.ino != SNAPSHOTS) {
        return Err(Errno::NotDirectory);
    }
    let id = txn.get(&key(tag::SNAPSHOT))?.map_or(Some(1), |bytes| Reader(&bytes).u64()).ok_or(Errno::Io)?;
    if all.len() >= COUNT_MAX || id > ID_MAX || txn.counters.next_ino > INO_MAX {
        return Err(Errno::TooManyLinks);
    }
    Ok(id)
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

/// Inodes that differ between an earlier snapshot and the one whose root this is.
pub(super) fn since(fs: &Fs, ino: u64, numbers: &[u8]) -> Result<Vec<u8>, Errno> {
    let (later, own) = split(ino);
    let read = || {
        let (earlier, from) = std::str::from_utf8(numbers).ok()?.split_once('.')?;
        Some((earlier.parse::<u64>().ok()?, from.parse::<u64>().ok()?))
    };
    let (earlier, from) = read().filter(|_| is_shown(ino) && own == api::ROOT).ok_or(Errno::NoData)?;
    let base = fs.store.base();
    if earlier >= later || !base.living().any(|snapshot| snapshot.id == earlier) {
        return Err(Errno::NoData);
    }
    let changed = base.changed(earlier, later, from, LISTING_BYTES_MAX / size_of::<u64>())?;
    Ok(changed.iter().flat_map(|ino| ino.to_le_bytes()).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::calls::Call;
    use crate::core::Options;
    use crate::model::{CookieEntry, DIRECTORY, Entry, Inode, key_name, key2};
    use crate::testing::MemoryDevice;
    use zerocopy::{FromZeros, IntoBytes};

    fn status(fs: &Arc<Fs>, op: u16, args: [u64; 3], data: &[u8]) -> u32 {
        fs.call(Call { op, args, data: data.to_vec(), capacity: 1 << 20, ..Call::default() }).status
    }

    #[test]
    fn directory_of_this_name_that_was_there_before_is_one_like_others() {
        let fs = Fs::open(Arc::new(MemoryDevice::new(64 << 20)), Options::inline(1)).expect("a new volume");
        let root = fs.read_inode(api::ROOT).expect("a root");
        let (ino, cookie) = (9, root.next_cookie);
        let own = Inode { mode: DIRECTORY | 0o755, links: 2, parent: 1, next_cookie: 3, ..Inode::default() };
        let more = Inode { links: root.links + 1, next_cookie: cookie + 1, entries: root.entries + 1, ..root };
        fs.store.apply([
            (key1(tag::INODE, api::ROOT), Some(more.encode())),
            (key1(tag::INODE, ino), Some(own.encode())),
            (key_name(tag::ENTRY, 1, SNAPSHOTS_NAME), Some(Entry { ino, cookie, kind: DIRECTORY }.encode())),
            (key2(tag::COOKIE, 1, cookie), Some(CookieEntry::encode(ino, DIRECTORY, SNAPSHOTS_NAME))),
        ]);
        let create = api::Create { mode: 0o755.into(), ..api::Create::new_zeroed() };
        let make = |parent, name: &str| {
            let data = [create.as_bytes(), name.as_bytes()].concat();
            status(&fs, api::MKDIR, [parent, name.len() as u64, 1], &data)
        };
        assert_eq!(make(ino, "inside"), 0);
        assert_eq!(make(SNAPSHOTS, "one"), Errno::NotDirectory.number(), "nobody could find it");
        let rename = [&10_u16.to_le_bytes()[..], SNAPSHOTS_NAME, b"own"].concat();
        assert_eq!(status(&fs, api::RENAME, [1, 1, 5], &rename), 0);
        assert_eq!(make(SNAPSHOTS, "one"), 0);
        assert_eq!(fs.read_entry(1, SNAPSHOTS_NAME).expect("it is read").map(|entry| entry.ino), Some(SNAPSHOTS));
        assert_eq!(fs.read_entry(1, b"own").expect("it is read").map(|entry| entry.ino), Some(ino));
    }
}
