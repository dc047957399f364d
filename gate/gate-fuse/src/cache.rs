//! What the kernel is allowed to keep, and which files have locks of this node.
//!
//! A lease comes with an answer and goes with a recall, both in the order of the ring. Under a lease the kernel keeps attributes and
//! names by time-out; its pages are another matter: those read before the lease began are worth nothing. So a lease is `Fresh` until
//! an open without `KEEP_CACHE` made the kernel drop its pages, and `Clean` from then on.
//!
//! The tables are only about being faster or saving a message: a gate that has just adopted a connection begins with nothing and
//! assumes the worst.

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

/// How long attributes are trusted under a lease. Recalls end it; this bounds what a mistake could cost.
pub const ATTR_TIMEOUT: Duration = Duration::from_secs(3600);
/// The same for names. A name that the kernel cannot be made to distrust in time is waited for, so it is short.
pub const NAME_TIMEOUT: Duration = Duration::from_secs(1);

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
}

#[derive(Clone, Copy, Debug)]
struct Lease {
    pages: Pages,
    /// `security.capability` is known to be absent.
    no_capability: bool,
}

pub struct Cache {
    leases: HashMap<u64, Lease>,
    /// In which directory an inode was found lately, the oldest in front.
    found: HashMap<u64, u64>,
    found_order: VecDeque<u64>,
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
        Cache { leases, found, found_order: VecDeque::new(), locks, lockers, locks_known }
    }

    pub fn granted(&mut self, ino: u64) {
        if self.leases.len() >= LEASES_MAX && !self.leases.contains_key(&ino) {
            self.leases.clear();
        }
        self.leases.entry(ino).or_insert(Lease { pages: Pages::Fresh, no_capability: false });
    }

    /// The lease is gone. Answers the directory in which the inode was found lately.
    pub fn recalled(&mut self, ino: u64) -> Option<u64> {
        self.leases.remove(&ino);
        self.found.get(&ino).copied()
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

    pub fn is_leased(&self, ino: u64) -> bool {
        self.leases.contains_key(&ino)
    }

    /// An open of `ino` is answered; `leased`: with this answer came a lease.
    pub fn opened(&mut self, ino: u64, leased: bool) -> Keep {
        if !leased {
            self.leases.remove(&ino);
            return Keep::Drop;
        }
        self.granted(ino);
        match self.leases.get_mut(&ino) {
            Some(Lease { pages: Pages::Clean, .. }) => Keep::Keep,
            Some(lease) => {
                lease.pages = Pages::Clean;
                Keep::Drop
            }
            None => Keep::Drop,
        }
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

    pub fn attributes_changed(&mut self, ino: u64) {
        if let Some(lease) = self.leases.get_mut(&ino) {
            lease.no_capability = false;
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
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_are_kept_only_after_an_open_under_the_lease_dropped_them() {
        let mut cache = Cache::new(true);
        cache.granted(5);
        assert_eq!(cache.opened(5, true), Keep::Drop);
        assert_eq!(cache.opened(5, true), Keep::Keep);
        cache.recalled(5);
        assert_eq!(cache.opened(5, true), Keep::Drop);
        assert_eq!(cache.opened(5, false), Keep::Drop);
        assert_eq!(cache.opened(5, true), Keep::Drop);
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
