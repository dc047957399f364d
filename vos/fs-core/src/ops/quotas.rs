//! Quotas of directories: setting and ending them, counting what was there, and what moves between them.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use vos_api::fs::{self as api, Getxattr, QUOTA_NAME, QUOTAS_NAME, Removexattr, SINCE_NAME, Setxattr};

use crate::calls::{Call, Job, Reply};
use crate::core::{Fs, Growth};
use crate::device::BLOCK64;
use crate::error::Errno;
use crate::layout::VERSION_QUOTAS;
use crate::leases::exclusive::Still;
use crate::model::{CookieEntry, Inode, NUMBER_MAX, Reader, key, key2, number_of, tag};
use crate::ops::names::is_inside;
use crate::ops::snapshots;
use crate::ops::xattr::{CREATE, REPLACE, sized};
use crate::quotas::{Amount, COUNT_MAX, Quota, quota_key, quotas_from};
use crate::snapshots::is_shown;
use crate::store::From;
use crate::txn::Txn;

/// Entries of a directory that are counted in one record.
const STEP_ENTRIES: usize = 64;
/// Entries that are looked through at a time for the name of a directory.
const SCAN_ENTRIES: usize = 1024;
/// Bytes of a listing.
pub(super) const LISTING_BYTES_MAX: usize = 32 << 10;
const VALUE_BYTES_MAX: usize = 128;
/// A job goes on counting for so long.
const COUNTING_MOMENT: Duration = Duration::from_millis(20);

/// Whether the server answers for such an attribute itself.
pub(super) fn is_own(name: &[u8]) -> bool {
    name.starts_with(api::OWN_NAMES)
}

/// The number of the quota that a new inode counts with, if it allows one more.
pub(super) fn demand_one(txn: &Txn<'_>, directory: &Inode) -> Result<u32, Errno> {
    match txn.quota_of(directory)? {
        Some((_, quota)) if quota.left().1 == Some(0) => Err(Errno::QuotaExceeded),
        found => Ok(found.map_or(0, |(number, _)| number)),
    }
}

/// Whether the file may have so many blocks more.
pub(super) fn demand_blocks(txn: &Txn<'_>, inode: &Inode, blocks: u64) -> Result<(), Errno> {
    match txn.quota_of(inode)? {
        Some((_, quota)) if quota.left().0.is_some_and(|left| left < blocks) => Err(Errno::QuotaExceeded),
        _ => Ok(()),
    }
}

/// What moves into a directory counts there from now on. What is below a directory says itself where it counts, so one
/// that is not empty cannot move to where another quota counts; nor one that has a quota to where there is one.
pub(super) fn adopt(txn: &Txn<'_>, ino: u64, inode: &mut Inode, into: u64) -> Result<(), Errno> {
    let to = txn.quota_in(&txn.directory(into)?)?;
    let (from, is_its_own) = match txn.quota_of(inode)? {
        Some((number, quota)) => (number, quota.directory == ino),
        None => (0, false),
    };
    if from == to || is_its_own && to == 0 {
        return Ok(());
    }
    if is_its_own || inode.is_dir() && inode.entries > 0 {
        return Err(Errno::CrossDevice);
    }
    inode.quota = to;
    Ok(())
}

/// A directory is removed, and with it the quota that it has.
pub(super) fn end_with(txn: &mut Txn<'_>, ino: u64, inode: &Inode) -> Result<(), Errno> {
    if let Some((number, quota)) = txn.quota_of(inode)?
        && quota.directory == ino
    {
        txn.delete(quota_key(number));
    }
    Ok(())
}

/// `bytes=N inodes=N`.
fn parse(value: &[u8]) -> Result<Amount, Errno> {
    let text = value.get(..value.len().min(VALUE_BYTES_MAX + 1)).and_then(|value| std::str::from_utf8(value).ok());
    let text = text.filter(|text| text.len() <= VALUE_BYTES_MAX).ok_or(Errno::Invalid)?;
    let (mut blocks, mut inodes) = (None, None);
    for word in text.trim_end_matches('\0').split_ascii_whitespace() {
        let (name, number) = word.split_once('=').ok_or(Errno::Invalid)?;
        let number: u64 = number.parse().ok().filter(|number| *number <= NUMBER_MAX).ok_or(Errno::Invalid)?;
        let (place, number) = match name {
            "bytes" => (&mut blocks, number.div_ceil(BLOCK64)),
            "inodes" => (&mut inodes, number),
            _ => return Err(Errno::Invalid),
        };
        if place.replace(number).is_some() {
            return Err(Errno::Invalid);
        }
    }
    Ok(Amount { blocks: blocks.unwrap_or(0), inodes: inodes.unwrap_or(0) })
}

fn format(quota: &Quota) -> String {
    let Quota { is_counted, limits, used, .. } = quota;
    let (bytes, used_bytes) = (limits.blocks * BLOCK64, used.blocks * BLOCK64);
    let (inodes, used_inodes, counted) = (limits.inodes, used.inodes, u8::from(*is_counted));
    format!("bytes={bytes} inodes={inodes} used_bytes={used_bytes} used_inodes={used_inodes} counted={counted}")
}

pub(super) fn set(job: &Arc<Job>, it: Setxattr<'_>) -> Result<(), Errno> {
    let fs = &job.fs;
    if it.name.0 != QUOTA_NAME {
        return Err(Errno::NotSupported);
    }
    if it.how & !(CREATE | REPLACE) != 0 || it.how == CREATE | REPLACE {
        return Err(Errno::Invalid);
    }
    let limits = parse(it.value)?;
    if is_shown(it.ino) {
        return Err(Errno::ReadOnly);
    }
    // A server of such a release, which may be there next, would refuse the volume.
    if fs.leases.has_of_before() {
        return Err(Errno::NotSupported);
    }
    if !fs.read_inode(it.ino)?.is_dir() {
        return Err(Errno::NotDirectory);
    }
    fs.come_to_need(VERSION_QUOTAS)?;
    let mut uncounted = None;
    job.transact(Growth::Grows, |txn| {
        fs.quotas.begin();
        let mut inode = txn.directory(it.ino)?;
        if inode.links == 0 {
            return Err(Errno::Gone);
        }
        let own = txn.quota_of(&inode)?.filter(|(_, quota)| quota.directory == it.ino);
        match (&own, it.how) {
            (Some(_), CREATE) => return Err(Errno::Exists),
            (None, REPLACE) => return Err(Errno::NoData),
            _ => {}
        }
        let (number, quota) = match own {
            Some((number, quota)) => (number, Quota { limits, ..quota }),
            None => {
                let number = next(txn, it.ino)?;
                let is_counted = inode.entries == 0;
                uncounted = (!is_counted).then_some(number);
                (number, Quota { is_counted, directory: it.ino, limits, used: Amount::default() })
            }
        };
        txn.put(quota_key(number), quota.encode());
        inode.quota = number;
        inode.ctime_ns = it.time_ns;
        txn.put_inode(it.ino, &inode);
        Ok(Reply::default())
    })?;
    if let Some(number) = uncounted {
        fs.count(number, it.ino);
    }
    Ok(())
}

/// The number of a new quota, which a directory may have if none above and none below has one.
fn next(txn: &mut Txn<'_>, directory: u64) -> Result<u32, Errno> {
    let all = txn.quotas()?;
    for quota in &all {
        // What is still to be counted does not say itself that there is one above.
        if is_inside(txn, quota.directory, directory)? || is_inside(txn, directory, quota.directory)? {
            return Err(Errno::Exists);
        }
    }
    let next = txn.get(&key(tag::QUOTA))?.map_or(Some(1), |bytes| Reader(&bytes).u64()).ok_or(Errno::Io)?;
    let number = u32::try_from(next).ok().filter(|_| all.len() < COUNT_MAX).ok_or(Errno::NoSpace)?;
    txn.put(key(tag::QUOTA), (next + 1).to_le_bytes().to_vec());
    Ok(number)
}

pub(super) fn remove(job: &Arc<Job>, it: Removexattr<'_>) -> Result<(), Errno> {
    if it.name != QUOTA_NAME {
        return Err(Errno::NoData);
    }
    job.transact(Growth::Owed, |txn| {
        let mut inode = txn.inode(it.ino)?;
        let own = txn.quota_of(&inode)?.filter(|(_, quota)| quota.directory == it.ino);
        let (number, _) = own.ok_or(Errno::NoData)?;
        txn.delete(quota_key(number));
        inode.quota = 0;
        inode.ctime_ns = it.time_ns;
        txn.put_inode(it.ino, &inode);
        Ok(Reply::default())
    })
}

pub(super) fn get(fs: &Fs, call: &Call, it: Getxattr<'_>) -> Result<Reply, Errno> {
    let seen = fs.leases.register(call.session, it.ino);
    let inode = fs.read_inode(it.ino)?;
    if it.name == QUOTA_NAME {
        let own = fs.quota_of(&inode)?.filter(|quota| quota.directory == it.ino && !is_shown(it.ino));
        let Some(quota) = own else { return Ok(Reply::failed(Errno::NoData).seen([seen])) };
        return sized(format(&quota).into_bytes(), call.capacity, seen);
    }
    if let Some(numbers) = it.name.strip_prefix(SINCE_NAME) {
        return sized(snapshots::since(fs, it.ino, numbers)?, call.capacity, seen);
    }
    let from = it.name.strip_prefix(QUOTAS_NAME).filter(|_| it.ino == api::ROOT);
    let from = from.and_then(|digits| std::str::from_utf8(digits).ok()?.parse().ok()).ok_or(Errno::NoData)?;
    sized(fs.list_quotas(from)?, call.capacity, seen)
}

/// Quotas whose directories are still to be counted.
#[derive(Default)]
pub(crate) struct Counting {
    waiting: VecDeque<Count>,
    is_running: bool,
}

struct Count {
    number: u32,
    /// Directories to be looked at, each from a cookie on; the last one first.
    left: Vec<(u64, u64)>,
}

/// One job at a time counts, for a moment: whoever carries out operations is not kept.
fn go_on(still: Still) {
    let fs = still.fs().clone();
    let spawn = fs.spawn.clone();
    spawn(Box::new(move || {
        let began = Instant::now();
        while began.elapsed() < COUNTING_MOMENT {
            let mut counting = fs.counting.lock();
            let Some(mut count) = counting.waiting.pop_front() else {
                counting.is_running = false;
                return drop(still);
            };
            drop(counting);
            match fs.count_step(count.number, &mut count.left) {
                Ok(()) if count.left.is_empty() => {}
                Ok(()) => fs.counting.lock().waiting.push_front(count),
                // The next server goes on.
                Err(errno) => tracing::warn!(number = count.number, "a quota is not counted: {errno}"),
            }
        }
        go_on(still);
    }));
}

impl Fs {
    /// The quota that an inode counts with.
    pub(crate) fn quota_of(&self, inode: &Inode) -> Result<Option<Quota>, Errno> {
        if inode.quota == 0 {
            return Ok(None);
        }
        Ok(self.store.get(&quota_key(inode.quota))?.map(|bytes| Quota::decode(&bytes)).transpose()?)
    }

    /// Whether an inode counts with one, as far as can be told.
    pub(crate) fn is_counted(&self, ino: u64) -> bool {
        let quota = self.read_inode(ino).and_then(|inode| self.quota_of(&inode));
        quota.is_ok_and(|quota| quota.is_some())
    }

    fn list_quotas(&self, from: u32) -> Result<Vec<u8>, Errno> {
        let mut out = Vec::new();
        for (number, quota) in quotas_from(&self.store, from, COUNT_MAX)? {
            let Some(path) = self.path_of(quota.directory)? else { continue };
            if !out.is_empty() && out.len() + path.len() + 2 * VALUE_BYTES_MAX > LISTING_BYTES_MAX {
                break;
            }
            out.extend_from_slice(format!("{number} {} ", format(&quota)).as_bytes());
            out.extend_from_slice(&path);
            out.push(0);
        }
        Ok(out)
    }

    /// From the root to a directory; `None` when it is removed meanwhile.
    fn path_of(&self, directory: u64) -> Result<Option<Vec<u8>>, Errno> {
        let (mut at, mut names) = (directory, Vec::new());
        while at != api::ROOT {
            let parent = match self.read_inode(at) {
                Ok(inode) => inode.parent,
                Err(Errno::Gone) => return Ok(None),
                Err(errno) => return Err(errno),
            };
            let Some(name) = self.name_in(parent, at)? else { return Ok(None) };
            names.push(name);
            at = parent;
        }
        names.reverse();
        Ok(Some([&b"/"[..], &names.join(&b'/')].concat()))
    }

    fn name_in(&self, parent: u64, ino: u64) -> Result<Option<Vec<u8>>, Errno> {
        let mut cookie = 0;
        loop {
            let (from, to) = (key2(tag::COOKIE, parent, cookie), key2(tag::COOKIE, parent, u64::MAX));
            let found = self.store.scan(&from, &to, SCAN_ENTRIES, From::Start)?;
            for (key, value) in &found {
                let entry = CookieEntry::decode(value)?;
                if entry.ino == ino {
                    return Ok(Some(entry.name));
                }
                cookie = number_of(key, 1).ok_or(Errno::Io)? + 1;
            }
            if found.len() < SCAN_ENTRIES {
                return Ok(None);
            }
        }
    }

    /// What was not counted when the server before this one ended.
    pub(crate) fn go_on_counting(self: &Arc<Fs>) -> Result<(), Errno> {
        for (number, quota) in quotas_from(&self.store, 0, COUNT_MAX)? {
            if !quota.is_counted {
                self.count(number, quota.directory);
            }
        }
        Ok(())
    }

    /// Counts what a directory had when it got its quota, beside whatever goes on, and after those that were to be
    /// counted before.
    ///
    /// Whatever is made in, or moved into, a directory that says its quota counts with it, and one that is not empty
    /// leaves it for nowhere else: so when all that was in such directories was looked at, all says its quota.
    fn count(self: &Arc<Fs>, number: u32, directory: u64) {
        let mut counting = self.counting.lock();
        counting.waiting.push_back(Count { number, left: vec![(directory, 0)] });
        if !std::mem::replace(&mut counting.is_running, true) {
            drop(counting);
            // Nobody promises what a quota may not allow.
            go_on(Still::new(self));
        }
    }

    /// Goes on with the last of the directories that are left, from a cookie on.
    fn count_step(&self, number: u32, left: &mut Vec<(u64, u64)>) -> Result<(), Errno> {
        let Some((directory, cookie)) = left.pop() else { return Ok(()) };
        let was_last = left.is_empty();
        self.transact_quietly(|txn| {
            let Some(quota) = txn.quota(number)? else {
                left.clear();
                return Ok(());
            };
            // Otherwise it was removed, or moved elsewhere while it was empty.
            let is_below = txn.inode(directory).is_ok_and(|inode| inode.quota == number);
            let (from, to) = (key2(tag::COOKIE, directory, cookie), key2(tag::COOKIE, directory, u64::MAX));
            let found = if is_below { txn.scan_stored(&from, &to, STEP_ENTRIES)? } else { Vec::new() };
            if found.len() == STEP_ENTRIES
                && let Some(last) = found.last().and_then(|(key, _)| number_of(key, 1))
            {
                left.push((directory, last + 1));
            }
            for (_, value) in &found {
                let ino = CookieEntry::decode(value)?.ino;
                let mut inode = txn.inode(ino)?;
                if inode.is_dir() {
                    left.push((ino, 0));
                }
                // A file may have another name, where another quota counts it.
                if txn.quota_of(&inode)?.is_none() {
                    inode.quota = number;
                    txn.put_inode(ino, &inode);
                }
            }
            if was_last && left.is_empty() {
                txn.put(quota_key(number), Quota { is_counted: true, ..quota }.encode());
            }
            Ok(())
        })?;
        self.log.drive();
        Ok(())
    }
}
