//! Small files are fetched ahead, directory by directory: whoever looks up or reads some of one will want the others.
//!
//! A directory is read from its beginning in pages, entries with attributes and small contents. The first page is asked
//! for when several of its names were looked up or several of its files read, each further one when half of the files
//! of the last were read.
//!
//! Pure: what a page says goes into [`crate::memory`].

use std::collections::{HashMap, VecDeque};

/// Directories that are followed; the one that was begun first leaves.
const DIRECTORIES_MAX: usize = 64;
/// Look-ups and reads that the server answered before a directory is worth a page.
const ASKED_BEFORE: u32 = 3;

#[derive(Default)]
pub struct Ahead {
    directories: HashMap<u64, Directory>,
    order: VecDeque<u64>,
}

#[derive(Default)]
struct Directory {
    asked: u32,
    /// After which entry the next page begins.
    cookie: u64,
    is_under_way: bool,
    /// There is no further one, or it is not worth it.
    is_done: bool,
    /// Contents that came with the last page, and how many of them were read.
    brought: u32,
    used: u32,
}

impl Directory {
    fn wants(&mut self) -> Option<u64> {
        let is_due = if self.cookie == 0 { self.asked >= ASKED_BEFORE } else { 2 * self.used >= self.brought };
        if !is_due || self.is_under_way || self.is_done {
            return None;
        }
        self.is_under_way = true;
        Some(self.cookie)
    }
}

impl Ahead {
    /// Something of `directory` was asked of the server. Answers after which entry a page is to be asked for, if one
    /// is.
    pub fn asked(&mut self, directory: u64) -> Option<u64> {
        if !self.directories.contains_key(&directory) {
            if self.order.len() >= DIRECTORIES_MAX
                && let Some(oldest) = self.order.pop_front()
            {
                self.directories.remove(&oldest);
            }
            self.order.push_back(directory);
        }
        let known = self.directories.entry(directory).or_default();
        known.asked += 1;
        known.wants()
    }

    /// Something that was fetched ahead was used.
    pub fn used(&mut self, directory: u64) -> Option<u64> {
        let known = self.directories.get_mut(&directory)?;
        known.used += 1;
        known.wants()
    }

    /// A page came: where it ends (`None`: there is no further one, or none was had), and how many contents it has.
    pub fn came(&mut self, directory: u64, next: Option<u64>, brought: u32) {
        let Some(known) = self.directories.get_mut(&directory) else { return };
        known.is_under_way = false;
        (known.brought, known.used) = (brought, 0);
        match next {
            // A page without a file says that the next one is not worth it.
            Some(cookie) if brought > 0 && cookie > known.cookie => known.cookie = cookie,
            _ => known.is_done = true,
        }
    }

    /// The page is not asked for after all.
    pub fn put_off(&mut self, directory: u64) {
        if let Some(known) = self.directories.get_mut(&directory) {
            known.is_under_way = false;
        }
    }

    /// The lease of the directory is gone: it may be worth another look later.
    pub fn forget(&mut self, directory: u64) {
        if self.directories.remove(&directory).is_some() {
            self.order.retain(|known| *known != directory);
        }
    }

    pub fn forget_all(&mut self) {
        *self = Ahead::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_follow_whoever_reads_and_end_with_the_directory() {
        let mut ahead = Ahead::default();
        assert_eq!((ahead.asked(1), ahead.asked(1), ahead.asked(2)), (None, None, None));
        assert_eq!(ahead.asked(1), Some(0));
        assert_eq!(ahead.asked(1), None, "one at a time");
        ahead.came(1, Some(50), 4);
        assert_eq!((ahead.used(1), ahead.used(1), ahead.used(1)), (None, Some(50), None));
        ahead.came(1, Some(90), 2);
        assert_eq!(ahead.used(1), Some(90));
        ahead.came(1, None, 0);
        assert_eq!((ahead.used(1), ahead.asked(1)), (None, None));
    }

    #[test]
    fn what_brings_nothing_is_not_gone_on_with_and_what_goes_back_begins_anew() {
        let mut ahead = Ahead::default();
        (0..ASKED_BEFORE).for_each(|_| _ = ahead.asked(1));
        ahead.came(1, Some(50), 0);
        assert_eq!((ahead.asked(1), ahead.used(1)), (None, None));
        ahead.forget(1);
        assert_eq!((ahead.used(1), ahead.asked(1), ahead.asked(1), ahead.asked(1)), (None, None, None, Some(0)));
        (2..200).for_each(|directory| _ = ahead.asked(directory));
        assert!(ahead.directories.len() <= DIRECTORIES_MAX && ahead.order.len() == ahead.directories.len());
    }
}
