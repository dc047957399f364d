//! Extended attributes.

use std::sync::Arc;

use vos_api::Measured;
use vos_api::fs::{self as api, Bytes, Getxattr, Listxattr, Removexattr, Setxattr};

use crate::calls::{Call, Job, Reply};
use crate::core::{Fs, Growth};
use crate::error::Errno;
use crate::leases::Seen;
use crate::model::{key_name, key1, tag};
use crate::store::From;
use crate::txn::Txn;

pub(super) const CREATE: u16 = 1;
pub(super) const REPLACE: u16 = 2;
/// Attributes of one inode: their names must fit into one listing.
const XATTRS_MAX: usize = 256;

fn check_name(name: &[u8]) -> Result<(), Errno> {
    match name.len() {
        0 => Err(Errno::OutOfRange),
        1..=api::NAME_BYTES_MAX if !name.contains(&0) => Ok(()),
        _ => Err(Errno::OutOfRange),
    }
}

pub(super) fn get(fs: &Fs, call: &Call, Getxattr { ino, name }: Getxattr<'_>) -> Result<Reply, Errno> {
    check_name(name)?;
    let seen = fs.leases.register(call.session, ino);
    fs.read_inode(ino)?;
    let Some(value) = fs.store.get(&key_name(tag::XATTR, ino, name))? else {
        return Ok(Reply::failed(Errno::NoData).seen([seen]));
    };
    sized(value, call.capacity, seen)
}

pub(super) fn list(fs: &Fs, call: &Call, Listxattr { ino }: Listxattr) -> Result<Reply, Errno> {
    let seen = fs.leases.register(call.session, ino);
    fs.read_inode(ino)?;
    let prefix = key1(tag::XATTR, ino);
    let end = key1(tag::XATTR, ino.saturating_add(1));
    let mut names = Vec::new();
    for (key, _) in fs.store.scan(&prefix, &end, XATTRS_MAX, From::Start)? {
        names.extend_from_slice(key.get(prefix.len()..).ok_or(Errno::Io)?);
        names.push(0);
    }
    sized(names, call.capacity, seen)
}

impl Fs {
    /// [`api::BARE`] or nothing.
    pub(super) fn marks(&self, ino: u64) -> Result<u32, Errno> {
        let (from, to) = (key1(tag::XATTR, ino), key1(tag::XATTR, ino.saturating_add(1)));
        Ok(if self.store.scan(&from, &to, 1, From::Start)?.is_empty() { api::BARE } else { 0 })
    }
}

/// As getxattr(2): without room only the size is told.
pub(super) fn sized(value: Vec<u8>, capacity: usize, seen: Seen) -> Result<Reply, Errno> {
    let bytes = value.len() as u64;
    if capacity == 0 {
        return Ok(Reply::done(Bytes { bytes }).seen([seen]));
    }
    if value.len() > capacity {
        return Err(Errno::OutOfRange);
    }
    Ok(Reply::with_data(Bytes { bytes }, value).seen([seen]))
}

pub(super) fn set(job: &Arc<Job>, it: Setxattr<'_>) -> Result<(), Errno> {
    let Setxattr { how, ino, name: Measured(name), time_ns, value } = it;
    check_name(name)?;
    if value.len() > api::XATTR_VALUE_BYTES_MAX {
        return Err(Errno::ArgumentTooLong);
    }
    if how & !(CREATE | REPLACE) != 0 || how == CREATE | REPLACE {
        return Err(Errno::Invalid);
    }
    job.transact(Growth::Grows, |txn| {
        touch_inode(txn, ino, time_ns)?;
        let key = key_name(tag::XATTR, ino, name);
        match (txn.get(&key)?.is_some(), how) {
            (true, CREATE) => return Err(Errno::Exists),
            (false, REPLACE) => return Err(Errno::NoData),
            (false, _) => {
                let all =
                    txn.scan_stored(&key1(tag::XATTR, ino), &key1(tag::XATTR, ino.saturating_add(1)), XATTRS_MAX)?;
                if all.len() >= XATTRS_MAX {
                    return Err(Errno::NoSpace);
                }
            }
            _ => (),
        }
        txn.put(key, value.to_vec());
        Ok(Reply::default())
    })
}

fn touch_inode(txn: &mut Txn<'_>, ino: u64, time_ns: u64) -> Result<(), Errno> {
    let mut inode = txn.inode(ino)?;
    inode.ctime_ns = time_ns;
    txn.put_inode(ino, &inode);
    Ok(())
}

pub(super) fn remove(job: &Arc<Job>, Removexattr { ino, time_ns, name }: Removexattr<'_>) -> Result<(), Errno> {
    check_name(name)?;
    job.transact(Growth::Shrinks, |txn| {
        touch_inode(txn, ino, time_ns)?;
        let key = key_name(tag::XATTR, ino, name);
        txn.get(&key)?.ok_or(Errno::NoData)?;
        txn.delete(key);
        Ok(Reply::default())
    })
}
