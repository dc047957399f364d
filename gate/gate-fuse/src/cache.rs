//! What the kernel is allowed to keep, and which files have locks of this node.
//!
//! A lease comes with an answer and goes with a recall, both in the order of the ring. Under a lease the kernel keeps
//! attributes and names by time-out; its pages are another matter: those read before the lease began are worth nothing.
//! So a lease is `Fresh` until an open without `KEEP_CACHE` made the kernel drop its pages, and `Clean` from then on;
//! `Alone` when, besides, all pages were read so that no other node has any ([`vos_api::fs::WRITABLE`]): a program may
//! then map them for writing.
//!
//! What was recalled lately is contested: other nodes change it, too. Names in a contested directory are not trusted,
//! so that none has to be taken back when the next node wants the directory.
//!
//! The tables are only about being faster or saving a message: a gate that has just adopted a connection begins with
//! nothing and assumes the worst.

use std::collections::{HashMap, VecDeque};
use std::time::{Duration, Instant};

use crate::ahead::Ahead;
use crate::memory::Memory;

/// How long attributes are trusted under a lease. Recalls end it; this bounds what a mistake could cost.
pub const ATTR_TIMEOUT: Duration = Duration::from_secs(3600);
/// After so long the kernel trusts a name no more. One that it cannot be made to distrust in time is waited for, so it
/// is short.
pub const NAME_TIMEOUT: Duration = Duration::from_secs(1);
/// So long it is told to trust it. It counts whole ticks, rounds up, and begins when the program that asked runs again.
pub const NAME_VALID: Duration = Duration::from_millis(900);

/// For how long after a recall an inode counts as contested.
pub const CONTESTED: Duration = Duration::from_secs(10);

/// Recalls remembered; beyond, the older ones are forgotten.
const RECALLED_MAX: usize = 8192;
/// Leases remembered; beyond, all are forgotten at once, which costs a re-read of files opened again.
const LEASES_MAX: usize = 1 << 20;
/// Inodes whose directory is remembered for a while after they were told to the kernel.
const FOUND_MAX: usize = 8192;
/// Owners of locks remembered; beyond, every file counts as locked.
const LOCKS_MAX: usize = 1 << 16;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Pages {
    Fresh,
    Clean,
    Alone,
}

/// What an open file may be used for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Use {
    Reading,
    /// Its pages may be changed without a word.
    Mapping,
}

#[derive(Clone, Copy, Debug)]
struct Lease {
    pages: Pages,
    /// `security.capability` is known to be absent.
    no_capability: bool,
    /// So are all extended attributes.
    is_bare: bool,
    /// Programs may open it without the server's knowledge.
    delegates: bool,
    /// They may change it before the server is told.
    is_exclusive: bool,
    /// And nobody has a lock of it that this gate does not keep.
    is_unlocked: bool,
}

pub struct Cache {
    leases: HashMap<u64, Lease>,
    /// What answers under leases said.
    pub memory: Memory,
    /// Directories whose files are fetched ahead.
    pub ahead: Ahead,
    /// In which directory an inode was found lately, the oldest in front.
    found: HashMap<u64, u64>,
    found_order: VecDeque<u64>,
    recalled: HashMap<u64, Instant>,
    /// Inode and owner, and the open file through which the owner locked last.
    locks: HashMap<(u64, u64), u64>,
    /// The same by open file. Owners of record locks say when they unlock; of others only the end of the file tells.
    lockers: HashMap<u64, Vec<(u64, u64)>>,
    /// `None` while every file must be taken for locked.
    locks_known: bool,
}

/// What an open may do with the pages the kernel has.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Keep {
    Drop,
    Keep,
}

impl Cache {
    /// `locks_known`: whether no lock can exist yet, as on a connection that has just been mounted.
    pub fn new(locks_known: bool) -> Cache {
        let (leases, found) = (HashMap::new(), HashMap::new());
        let (locks, lockers) = (HashMap::new(), HashMap::new());
        let (found_order, recalled) = (VecDeque::new(), HashMap::new());
        Cache {
            leases,
            memory: Memory::default(),
            ahead: Ahead::default(),
            found,
            found_order,
            recalled,
            locks,
            lockers,
            locks_known,
        }
    }

    pub fn granted(&mut self, ino: u64) {
        if self.leases.len() >= LEASES_MAX && !self.leases.contains_key(&ino) {
            self.lost();
        }
        let (pages, no_capability, is_bare, delegates) = (Pages::Fresh, false, false, false);
        let (is_exclusive, is_unlocked) = (false, false);
        let new = Lease { pages, no_capability, is_bare, delegates, is_exclusive, is_unlocked };
        self.leases.entry(ino).or_insert(new);
    }

    /// There is none.
    pub fn unleased(&mut self, ino: u64) {
        self.leases.remove(&ino);
        self.memory.forget(ino);
    }

    /// The lease of `ino` lets programs open it without the server's knowledge.
    pub fn delegated(&mut self, ino: u64) {
        if let Some(lease) = self.leases.get_mut(&ino) {
            lease.delegates = true;
        }
    }

    /// Whether this session has the inode for itself.
    pub fn set_exclusive(&mut self, ino: u64, is_exclusive: bool) {
        if let Some(lease) = self.leases.get_mut(&ino) {
            lease.is_exclusive = is_exclusive;
            lease.is_unlocked &= is_exclusive;
        }
    }

    /// Whether all its locks are those that this gate keeps.
    pub fn set_unlocked(&mut self, ino: u64, is_unlocked: bool) {
        if let Some(lease) = self.leases.get_mut(&ino) {
            lease.is_unlocked = is_unlocked;
        }
    }

    pub fn is_unlocked(&self, ino: u64) -> bool {
        self.leases.get(&ino).is_some_and(|lease| lease.is_unlocked)
    }

    pub fn is_exclusive(&self, ino: u64) -> bool {
        self.leases.get(&ino).is_some_and(|lease| lease.is_exclusive)
    }

    pub fn delegates(&self, ino: u64) -> bool {
        self.leases.get(&ino).is_some_and(|lease| lease.delegates)
    }

    /// The lease is gone. Answers the directory in which the inode was found lately. `contested`: another node changes
    /// it, as of now.
    pub fn recalled(&mut self, ino: u64, contested: Option<Instant>) -> Option<u64> {
        self.leases.remove(&ino);
        self.memory.forget(ino);
        self.ahead.forget(ino);
        let Some(now) = contested else { return self.directory_of(ino) };
        if self.recalled.len() >= RECALLED_MAX {
            self.recalled.retain(|_, at| now < *at + CONTESTED);
        }
        if self.recalled.len() >= RECALLED_MAX {
            self.recalled.clear();
        }
        self.recalled.insert(ino, now);
        self.found.get(&ino).copied()
    }

    /// Whether other nodes changed the inode lately.
    pub fn is_contested(&self, ino: u64, now: Instant) -> bool {
        self.recalled.get(&ino).is_some_and(|at| now < *at + CONTESTED)
    }

    /// Bytes were read that other nodes may keep, too.
    pub fn read_with_others(&mut self, ino: u64) {
        if let Some(lease @ Lease { pages: Pages::Alone, .. }) = self.leases.get_mut(&ino) {
            lease.pages = Pages::Clean;
        }
    }

    /// The kernel is told of `ino` as an entry of `parent`.
    pub fn found(&mut self, ino: u64, parent: u64) {
        if self.found.insert(ino, parent).is_none() {
            self.found_order.push_back(ino);
        }
        if self.found_order.len() > FOUND_MAX
            && let Some(oldest) = self.found_order.pop_front()
        {
            self.found.remove(&oldest);
        }
    }

    /// In which directory an inode was found lately.
    pub fn directory_of(&self, ino: u64) -> Option<u64> {
        self.found.get(&ino).copied()
    }

    pub fn is_leased(&self, ino: u64) -> bool {
        self.leases.contains_key(&ino)
    }

    /// An open of `ino` is answered; `leased`: with this answer came a lease. `used` says how it and others of this
    /// node use the file.
    pub fn opened(&mut self, ino: u64, leased: bool, used: Use) -> Keep {
        if !leased {
            self.unleased(ino);
            return Keep::Drop;
        }
        self.granted(ino);
        let Some(lease) = self.leases.get_mut(&ino) else { return Keep::Drop };
        let pages = match (lease.pages, used) {
            (Pages::Alone, _) | (Pages::Clean, Use::Reading) => return Keep::Keep,
            (_, Use::Mapping) => Pages::Alone,
            (Pages::Fresh, Use::Reading) => Pages::Clean,
        };
        lease.pages = pages;
        Keep::Drop
    }

    /// A name came to a directory without the kernel's doing: the next open drops the listing it keeps.
    pub fn listing_changed(&mut self, ino: u64) {
        if let Some(lease) = self.leases.get_mut(&ino) {
            lease.pages = Pages::Fresh;
        }
    }

    pub fn capability_absent(&mut self, ino: u64) {
        if let Some(lease) = self.leases.get_mut(&ino) {
            lease.no_capability = true;
        }
    }

    pub fn is_capability_absent(&self, ino: u64) -> bool {
        self.leases.get(&ino).is_some_and(|lease| lease.no_capability)
    }

    /// It has no extended attributes, as an answer says that came with a lease.
    pub fn told_bare(&mut self, ino: u64) {
        if let Some(lease) = self.leases.get_mut(&ino) {
            lease.is_bare = true;
        }
    }

    pub fn is_bare(&self, ino: u64) -> bool {
        self.leases.get(&ino).is_some_and(|lease| lease.is_bare)
    }

    pub fn written(&mut self, ino: u64) {
        if let Some(lease) = self.leases.get_mut(&ino) {
            lease.no_capability = false;
        }
    }

    pub fn attributes_changed(&mut self, ino: u64) {
        if let Some(lease) = self.leases.get_mut(&ino) {
            (lease.no_capability, lease.is_bare) = (false, false);
        }
    }

    /// A lock was asked for through `fh`: from now on the owner may have one.
    pub fn locking(&mut self, ino: u64, owner: u64, fh: u64) {
        if self.locks.len() >= LOCKS_MAX {
            self.locks_known = false;
            self.locks.clear();
            self.lockers.clear();
        }
        if self.locks_known && self.locks.get(&(ino, owner)) != Some(&fh) {
            self.unlocked(ino, owner);
            self.locks.insert((ino, owner), fh);
            self.lockers.entry(fh).or_default().push((ino, owner));
        }
    }

    pub fn unlocked(&mut self, ino: u64, owner: u64) {
        let Some(fh) = self.locks.remove(&(ino, owner)) else { return };
        if let Some(lockers) = self.lockers.get_mut(&fh) {
            lockers.retain(|locker| *locker != (ino, owner));
            if lockers.is_empty() {
                self.lockers.remove(&fh);
            }
        }
    }

    /// The file is closed, and with it go the locks that were set through it.
    pub fn closed(&mut self, fh: u64) {
        for locker in self.lockers.remove(&fh).unwrap_or_default() {
            self.locks.remove(&locker);
        }
    }

    /// `false` only when it is certain that the owner has no lock.
    pub fn may_have_locks(&self, ino: u64, owner: u64) -> bool {
        !self.locks_known || self.locks.contains_key(&(ino, owner))
    }

    /// `false` only when it is certain that no lock goes with the open file.
    pub fn may_unlock(&self, fh: u64) -> bool {
        !self.locks_known || self.lockers.contains_key(&fh)
    }

    /// All leases are gone.
    pub fn lost(&mut self) {
        self.leases.clear();
        self.memory.forget_all();
        self.ahead.forget_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_are_kept_only_after_an_open_under_the_lease_dropped_them() {
        let (mut cache, now) = (Cache::new(true), Instant::now());
        cache.granted(5);
        let opened = |cache: &mut Cache, leased| cache.opened(5, leased, Use::Reading);
        assert_eq!(opened(&mut cache, true), Keep::Drop);
        assert_eq!(opened(&mut cache, true), Keep::Keep);
        cache.recalled(5, Some(now));
        assert_eq!(opened(&mut cache, true), Keep::Drop);
        assert_eq!(opened(&mut cache, false), Keep::Drop);
        assert_eq!(opened(&mut cache, true), Keep::Drop);
    }

    #[test]
    fn pages_that_others_may_have_are_dropped_before_they_can_be_mapped_for_writing() {
        let mut cache = Cache::new(true);
        assert_eq!(cache.opened(5, true, Use::Reading), Keep::Drop);
        assert_eq!(cache.opened(5, true, Use::Mapping), Keep::Drop);
        assert_eq!(cache.opened(5, true, Use::Mapping), Keep::Keep);
        assert_eq!(cache.opened(5, true, Use::Reading), Keep::Keep);
        cache.read_with_others(5);
        assert_eq!(cache.opened(5, true, Use::Reading), Keep::Keep);
        assert_eq!(cache.opened(5, true, Use::Mapping), Keep::Drop);
    }

    #[test]
    fn inode_is_contested_for_a_while_after_a_recall() {
        let (mut cache, now) = (Cache::new(true), Instant::now());
        assert!(!cache.is_contested(5, now));
        cache.recalled(5, Some(now));
        assert!(cache.is_contested(5, now) && !cache.is_contested(6, now));
        assert!(!cache.is_contested(5, now + CONTESTED));
    }

    #[test]
    fn adopted_connection_takes_every_file_for_locked() {
        assert!(Cache::new(false).may_have_locks(1, 2));
        let mut cache = Cache::new(true);
        assert!(!cache.may_have_locks(1, 2));
        cache.locking(1, 2, 9);
        assert!(cache.may_have_locks(1, 2));
        cache.unlocked(1, 2);
        assert!(!cache.may_have_locks(1, 2));
    }

    #[test]
    fn locks_go_with_the_file_through_which_their_owner_locked_last() {
        let mut cache = Cache::new(true);
        cache.locking(1, 2, 8);
        cache.locking(1, 2, 9);
        assert!(!cache.may_unlock(8) && cache.may_unlock(9));
        cache.closed(8);
        assert!(cache.may_have_locks(1, 2));
        cache.closed(9);
        assert!(!cache.may_have_locks(1, 2) && !cache.may_unlock(9));
    }
}
