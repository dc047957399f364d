//! Which names the kernel trusts, by directory.
//!
//! A lease on a directory covers the names in it, those that do not exist as well: who gives the lease back must make the kernel
//! distrust every one of them, because the server will not name them when they change later. The kernel cannot be asked for its list,
//! so it is kept here, written before the kernel is told.
//!
//! A gate that adopted a connection does not know what its predecessor told; it waits until all that has lost its validity.

use std::collections::{HashMap, HashSet};

/// Names remembered; beyond, all that are known are given up at once.
pub const NAMES_MAX: usize = 1 << 18;

#[derive(Default)]
pub struct Names {
    by_parent: HashMap<u64, HashSet<Vec<u8>>>,
    count: usize,
}

impl Names {
    /// The kernel is about to be told that it may trust `name` in `parent`.
    pub fn told(&mut self, parent: u64, name: &[u8]) {
        let names = self.by_parent.entry(parent).or_default();
        if !names.contains(name) {
            names.insert(name.to_vec());
            self.count += 1;
        }
    }

    /// Whether the kernel trusts what it knows of this name.
    pub fn is_told(&self, parent: u64, name: &[u8]) -> bool {
        self.by_parent.get(&parent).is_some_and(|names| names.contains(name))
    }

    /// Names in `parent` that have to be distrusted now; they are forgotten.
    pub fn take(&mut self, parent: u64) -> Vec<Vec<u8>> {
        let names = self.by_parent.remove(&parent).unwrap_or_default();
        self.count -= names.len();
        names.into_iter().collect()
    }

    /// Whether the kernel trusts a name in `parent`.
    pub fn has(&self, parent: u64) -> bool {
        self.by_parent.contains_key(&parent)
    }

    pub fn is_full(&self) -> bool {
        self.count >= NAMES_MAX
    }

    /// Everything, when the kernel is about to be made to distrust all names.
    pub fn take_all(&mut self) -> Vec<(u64, Vec<Vec<u8>>)> {
        self.count = 0;
        self.by_parent.drain().map(|(parent, names)| (parent, names.into_iter().collect())).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_a_directory_are_given_up_together_and_once() {
        let mut names = Names::default();
        names.told(1, b"a");
        names.told(1, b"b");
        names.told(1, b"a");
        names.told(2, b"c");
        let mut taken = names.take(1);
        taken.sort();
        assert_eq!(taken, [b"a".to_vec(), b"b".to_vec()]);
        assert!(names.take(1).is_empty());
        assert_eq!(names.take_all(), [(2, vec![b"c".to_vec()])]);
        assert!(names.take(2).is_empty() && !names.is_full());
    }
}
