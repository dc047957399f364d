//! Quotas of directories: what may be made in one and below.
//!
//! An inode says which quota it counts with ([`Inode::quota`]): that of the directory in which it was made, or into
//! which it was moved. The record of a quota says how much there is, and changes in the same record of the log as what
//! it counts ([`Quotas::charge`]). A quota that has ended leaves its number in inodes, where it says nothing any more.
//! Whatever nobody names and nobody has open does not count, though it may stay for a while (`linger.rs`).
//!
//! What a directory has when it gets its quota is counted afterwards, in steps (`ops/quotas.rs`).
//! `docs/design/quotas.md` has the argument.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::core::Growth;
use crate::error::{Errno, StoreError};
use crate::model::{Inode, Reader, key, key1, number_of, tag};
use crate::sessions::is_unused;
use crate::store::{Change, From, Key, Store};
use crate::txn::Txn;

/// Quotas that a volume may have at a time.
pub const COUNT_MAX: usize = 1024;

/// The record of a quota.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Quota {
    /// What was there when it was made is counted.
    pub is_counted: bool,
    pub directory: u64,
    /// 0: no limit.
    pub limits: Amount,
    pub used: Amount,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Amount {
    pub blocks: u64,
    pub inodes: u64,
}

impl Quota {
    pub fn encode(&self) -> Vec<u8> {
        let Quota { is_counted, directory, limits, used } = self;
        let mut bytes = vec![u8::from(*is_counted)];
        for number in [*directory, limits.blocks, limits.inodes, used.blocks, used.inodes] {
            bytes.extend_from_slice(&number.to_le_bytes());
        }
        bytes
    }

    pub fn decode(bytes: &[u8]) -> Result<Quota, StoreError> {
        let mut reader = Reader(bytes);
        let mut read = || {
            let is_counted = reader.u8().filter(|state| *state <= 1)? == 1;
            let directory = reader.count()?;
            let limits = Amount { blocks: reader.count()?, inodes: reader.count()? };
            let used = Amount { blocks: reader.count()?, inodes: reader.count()? };
            Some(Quota { is_counted, directory, limits, used }).filter(|_| reader.0.is_empty())
        };
        read().ok_or(StoreError::Damaged("quota"))
    }

    /// How much more there may be; `None`: any amount.
    pub fn left(&self) -> (Option<u64>, Option<u64>) {
        let left = |limit: u64, used: u64| (limit != 0).then(|| limit.saturating_sub(used));
        (left(self.limits.blocks, self.used.blocks), left(self.limits.inodes, self.used.inodes))
    }
}

pub fn quota_key(number: u32) -> Key {
    key1(tag::QUOTA, number.into())
}

/// The number of the quota that a key is of.
pub fn number_in(key: &[u8]) -> Result<u32, StoreError> {
    let number = number_of(key, 0).and_then(|number| u32::try_from(number).ok());
    number.ok_or(StoreError::Damaged("quota key"))
}

/// All quotas from a number on, at most `limit`.
pub fn quotas_from(store: &Store, from: u32, limit: usize) -> Result<Vec<(u32, Quota)>, StoreError> {
    let read = |(key, value): (Key, Vec<u8>)| Ok((number_in(&key)?, Quota::decode(&value)?));
    store.scan(&quota_key(from), &key(tag::QUOTA + 1), limit, From::Start)?.into_iter().map(read).collect()
}

/// What an inode counts for.
fn weight(inode: &Inode) -> Amount {
    if is_unused(inode) { Amount::default() } else { Amount { blocks: inode.blocks, inodes: 1 } }
}

/// More or less than before.
#[derive(Clone, Copy, Default)]
struct Difference {
    blocks: i64,
    inodes: i64,
    /// Of these, what somebody opened again before it was removed: it was there.
    back: (i64, i64),
}

impl Difference {
    fn add(&mut self, amount: Amount, sign: i64) {
        self.blocks += sign * amount.blocks as i64;
        self.inodes += sign * amount.inodes as i64;
    }
}

/// What all operations know of quotas.
#[derive(Default)]
pub struct Quotas {
    /// There was one since the volume was opened.
    are_any: AtomicBool,
}

impl Quotas {
    pub fn load(store: &Store) -> Result<Quotas, StoreError> {
        let quotas = Quotas::default();
        quotas.are_any.store(!quotas_from(store, 0, 1)?.is_empty(), Ordering::Relaxed);
        Ok(quotas)
    }

    pub fn are_any(&self) -> bool {
        self.are_any.load(Ordering::Relaxed)
    }

    /// Before the first one is made, under the lock of `progress`.
    pub fn begin(&self) {
        self.are_any.store(true, Ordering::Relaxed);
    }

    /// Adds what an operation did to what quotas have used; `EDQUOT` where one does not allow it. What was promised it
    /// allows.
    pub fn charge(&self, txn: &mut Txn<'_>, growth: Growth) -> Result<(), Errno> {
        if !self.are_any() {
            return Ok(());
        }
        let mut changed: BTreeMap<u32, Difference> = BTreeMap::new();
        let decode = |bytes: &[u8]| Inode::decode(bytes).map_err(Errno::from);
        for (old, new) in txn.changed_inodes()? {
            let old = old.as_deref().map(decode).transpose()?;
            let new = new.as_deref().map(decode).transpose()?;
            if let Some(back) = old.as_ref().filter(|old| is_unused(old)).and(new.as_ref()).filter(|it| it.quota != 0) {
                let difference = changed.entry(back.quota).or_default();
                let Amount { blocks, inodes } = weight(back);
                difference.back = (difference.back.0 + blocks as i64, difference.back.1 + inodes as i64);
            }
            for (inode, sign) in [(old, -1), (new, 1)] {
                let Some(inode) = inode.filter(|inode| inode.quota != 0) else { continue };
                changed.entry(inode.quota).or_default().add(weight(&inode), sign);
            }
        }
        for (number, Difference { blocks, inodes, back }) in changed {
            let Some(mut quota) = txn.quota(number)?.filter(|_| (blocks, inodes) != (0, 0)) else { continue };
            let (blocks_left, inodes_left) = quota.left();
            let exceeds = |more: i64, left: Option<u64>| more > 0 && left.is_some_and(|left| more as u64 > left);
            let is_too_much = exceeds(blocks - back.0, blocks_left) || exceeds(inodes - back.1, inodes_left);
            if growth != Growth::Owed && is_too_much {
                return Err(Errno::QuotaExceeded);
            }
            quota.used.blocks = quota.used.blocks.saturating_add_signed(blocks);
            quota.used.inodes = quota.used.inodes.saturating_add_signed(inodes);
            txn.put(quota_key(number), quota.encode());
        }
        Ok(())
    }
}

/// What quotas have used of a tree that was walked, by what its inodes say. Nobody has any of them open.
#[derive(Default)]
pub struct Recount {
    used: BTreeMap<u32, Amount>,
}

impl Recount {
    pub fn add(&mut self, inode: &Inode) {
        if inode.quota != 0 {
            let (used, more) = (self.used.entry(inode.quota).or_default(), weight(inode));
            used.blocks += more.blocks;
            used.inodes += more.inodes;
        }
    }

    pub fn used(&self, number: u32) -> Amount {
        self.used.get(&number).copied().unwrap_or_default()
    }

    /// A record of before with what was counted.
    pub fn corrected(&self, number: u32, record: &[u8]) -> Result<Change, StoreError> {
        let used = self.used(number);
        Ok(Some(Quota { used, ..Quota::decode(record)? }.encode()))
    }
}

impl Txn<'_> {
    /// One that has not ended.
    pub fn quota(&self, number: u32) -> Result<Option<Quota>, Errno> {
        if number == 0 {
            return Ok(None);
        }
        Ok(self.get(&quota_key(number))?.map(|bytes| Quota::decode(&bytes)).transpose()?)
    }

    /// All of them as they were before this operation.
    pub fn quotas(&self) -> Result<Vec<Quota>, Errno> {
        Ok(quotas_from(self.store(), 0, COUNT_MAX)?.into_iter().map(|(_, quota)| quota).collect())
    }

    /// The quota that an inode counts with, if any.
    pub fn quota_of(&self, inode: &Inode) -> Result<Option<(u32, Quota)>, Errno> {
        Ok(self.quota(inode.quota)?.map(|quota| (inode.quota, quota)))
    }

    /// The number of the quota that what is made in a directory counts with, or 0.
    pub fn quota_in(&self, directory: &Inode) -> Result<u32, Errno> {
        Ok(self.quota_of(directory)?.map_or(0, |(number, _)| number))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn record_of_a_quota_is_read_as_it_was_written_and_a_damaged_one_is_found() {
        let quota = Quota {
            is_counted: true,
            directory: 7,
            limits: Amount { blocks: 3, inodes: 0 },
            used: Amount { blocks: 4, inodes: 2 },
        };
        let bytes = quota.encode();
        assert_eq!(Quota::decode(&bytes).ok(), Some(quota.clone()));
        assert_eq!(quota.left(), (Some(0), None));
        for damaged in [&bytes[..bytes.len() - 1], &[&bytes[..], &[0]].concat(), &[&[2], &bytes[1..]].concat()] {
            assert!(Quota::decode(damaged).is_err(), "{damaged:?}");
        }
    }
}
