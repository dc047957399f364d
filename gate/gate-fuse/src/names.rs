//! Which names the kernel trusts, by directory.
//!
//! A lease on a directory covers the names in it, those that do not exist as well: who gives the lease back must make
//! the kernel distrust every one of them, because the server will not name them when they change later. The kernel
//! cannot be asked for its list, so it is kept here, written before the kernel is told.
//!
//! A name that was trusted for longer than [`NAME_TIMEOUT`] ago is trusted no more, whether it was told so or not.
//!
//! A gate that adopted a connection does not know what its predecessor told; it waits until all that has lost its
//! validity.

use std::collections::{HashMap, HashSet};
use std::time::Instant;

use crate::cache::NAME_TIMEOUT;

/// Names remembered; beyond, all that are known are given up at once.
pub const NAMES_MAX: usize = 1 << 18;

#[derive(Default)]
pub struct Names {
    by_parent: HashMap<u64, Directory>,
    count: usize,
}

struct Directory {
    names: HashSet<Vec<u8>>,
    /// When the last of them is trusted no more.
    until: Instant,
}

/// Names that have to be distrusted.
#[derive(Debug, PartialEq, Eq)]
pub struct Trusted {
    pub names: Vec<Vec<u8>>,
    pub until: Instant,
}

impl Names {
    /// The kernel is about to be told that it may trust `name` in `parent`.
    pub fn told(&mut self, parent: u64, name: &[u8], now: Instant) {
        let until = now + NAME_TIMEOUT;
        let directory = self.by_parent.entry(parent).or_insert_with(|| Directory { names: HashSet::new(), until });
        if directory.until <= now {
            self.count -= directory.names.len();
            directory.names.clear();
        }
        directory.until = until;
        if !directory.names.contains(name) {
            directory.names.insert(name.to_vec());
            self.count += 1;
        }
    }

    /// Whether the kernel may trust what it knows of this name.
    pub fn is_told(&self, parent: u64, name: &[u8]) -> bool {
        self.by_parent.get(&parent).is_some_and(|directory| directory.names.contains(name))
    }

    /// Names in `parent` that have to be distrusted now; they are forgotten. `None`: the kernel trusts none.
    pub fn take(&mut self, parent: u64, now: Instant) -> Option<Trusted> {
        let Directory { names, until } = self.by_parent.remove(&parent)?;
        self.count -= names.len();
        (until > now).then(|| Trusted { names: names.into_iter().collect(), until })
    }

    pub fn is_full(&self) -> bool {
        self.count >= NAMES_MAX
    }

    /// Everything, when the kernel is about to be made to distrust all names.
    pub fn take_all(&mut self) -> Vec<(u64, Vec<Vec<u8>>)> {
        self.count = 0;
        self.by_parent.drain().map(|(parent, directory)| (parent, directory.names.into_iter().collect())).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_a_directory_are_given_up_together_and_once() {
        let (mut names, now) = (Names::default(), Instant::now());
        names.told(1, b"a", now);
        names.told(1, b"b", now);
        names.told(1, b"a", now);
        names.told(2, b"c", now);
        let mut taken = names.take(1, now).expect("some are trusted").names;
        taken.sort();
        assert_eq!(taken, [b"a".to_vec(), b"b".to_vec()]);
        assert!(names.take(1, now).is_none());
        assert_eq!(names.take_all(), [(2, vec![b"c".to_vec()])]);
        assert!(names.take(2, now).is_none() && !names.is_full());
    }

    #[test]
    fn names_are_trusted_no_longer_than_the_kernel_was_told() {
        let (mut names, now) = (Names::default(), Instant::now());
        names.told(1, b"a", now);
        names.told(2, b"b", now);
        let later = now + NAME_TIMEOUT;
        assert_eq!(names.take(1, later), None);
        names.told(2, b"c", later);
        assert_eq!(names.take(2, later).map(|trusted| trusted.names), Some(vec![b"c".to_vec()]));
        assert_eq!(names.count, 0);
    }
}
