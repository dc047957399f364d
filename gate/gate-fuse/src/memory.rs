//! What the gate was told under leases and may tell the kernel again: attributes, names, names that do not exist.
//!
//! The kernel forgets a name after a second and asks again; under a lease of its directory and of its inode the answer
//! is known here. Changes by others take the lease away first ([`Memory::forget`]). Changes of our own need none, so
//! they are counted: nothing is learnt of an inode from an answer that a change of ours was under way beside, because
//! nobody knows which of the two the server did first.
//!
//! Contents of small files are remembered from when they were fetched beside others ([`crate::gate`]) until they are
//! read: then the kernel has them.
//!
//! Pure. Whether a lease stands is the caller's to ask ([`crate::cache`]).

use std::collections::HashMap;

use vos_api::fs::Attr;

/// Inodes whose attributes are remembered; beyond, all are forgotten, which costs a request each.
const ATTRS_MAX: usize = 1 << 17;
/// The same of names, of all directories together.
const NAMES_MAX: usize = 1 << 17;
/// Bytes of contents.
const CONTENTS_MAX: usize = 8 << 20;
/// Inodes of which it is remembered when they were changed last.
const CHANGED_MAX: usize = 1 << 13;

/// A moment, by the changes that had ended.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Debug)]
pub struct Moment(u64);

/// What a change of our own touches.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub struct Touched {
    pub inos: Vec<u64>,
    pub names: Vec<(u64, Vec<u8>)>,
    /// And an inode that only the answer tells.
    pub has_unknown: bool,
}

#[derive(Default)]
pub struct Memory {
    attrs: HashMap<u64, Attr>,
    /// By directory; `None`: there is no such name.
    names: HashMap<u64, HashMap<Vec<u8>, Option<u64>>>,
    names_count: usize,
    contents: HashMap<u64, Vec<u8>>,
    contents_bytes: usize,
    /// Inodes with changes of ours under way.
    changing: HashMap<u64, usize>,
    changing_unknown: usize,
    now: Moment,
    changed: HashMap<u64, Moment>,
    /// Before this moment anything may have been changed.
    floor: Moment,
}

impl Memory {
    pub fn now(&self) -> Moment {
        self.now
    }

    /// A change of ours is on its way.
    pub fn begins(&mut self, touched: &Touched) {
        for ino in &touched.inos {
            *self.changing.entry(*ino).or_default() += 1;
            self.forget_inode(*ino);
        }
        self.changing_unknown += usize::from(touched.has_unknown);
        self.forget_names(&touched.names);
    }

    /// It is through; `also`: what its answer says that it touched. Answers since when what the same answer says can be
    /// learnt: it was asked for at `asked`, and counts when no other change was under way beside it.
    pub fn ends(&mut self, touched: &Touched, also: &[u64], asked: Moment) -> Moment {
        self.changing_unknown -= usize::from(touched.has_unknown).min(self.changing_unknown);
        for ino in &touched.inos {
            if let Some(count) = self.changing.get_mut(ino) {
                *count -= 1;
                if *count == 0 {
                    self.changing.remove(ino);
                }
            }
        }
        let is_alone = touched.inos.iter().chain(also).all(|ino| self.is_quiet_since(*ino, asked));
        self.now.0 += 1;
        if self.changed.len() + touched.inos.len() + also.len() > CHANGED_MAX {
            self.changed.clear();
            self.floor = self.now;
        }
        for ino in touched.inos.iter().chain(also) {
            self.changed.insert(*ino, self.now);
            self.forget_inode(*ino);
        }
        self.forget_names(&touched.names);
        if is_alone { self.now } else { asked }
    }

    /// Attributes that came under a lease, with an answer to what was asked at `asked`.
    pub fn learn(&mut self, ino: u64, attr: &Attr, asked: Moment) {
        if self.changing_unknown > 0 || !self.is_quiet_since(ino, asked) {
            return;
        }
        if self.attrs.len() >= ATTRS_MAX {
            self.attrs.clear();
        }
        self.attrs.insert(ino, *attr);
    }

    /// The same of a name: where it leads, if anywhere.
    pub fn learn_name(&mut self, parent: u64, name: &[u8], ino: Option<u64>, asked: Moment) {
        if !self.is_quiet_since(parent, asked) {
            return;
        }
        if self.names_count >= NAMES_MAX {
            self.names.clear();
            self.names_count = 0;
        }
        let names = self.names.entry(parent).or_default();
        match names.get_mut(name) {
            Some(known) => *known = ino,
            None => {
                names.insert(name.to_vec(), ino);
                self.names_count += 1;
            }
        }
    }

    /// The same of all bytes of a file.
    pub fn learn_content(&mut self, ino: u64, content: &[u8], asked: Moment) {
        if self.changing_unknown > 0 || !self.is_quiet_since(ino, asked) {
            return;
        }
        if self.contents_bytes + content.len() > CONTENTS_MAX {
            self.contents.clear();
            self.contents_bytes = 0;
        }
        self.contents_bytes += content.len();
        if let Some(old) = self.contents.insert(ino, content.to_vec()) {
            self.contents_bytes -= old.len();
        }
    }

    pub fn content(&self, ino: u64) -> Option<&[u8]> {
        self.contents.get(&ino).map(Vec::as_slice)
    }

    pub fn forget_content(&mut self, ino: u64) {
        self.contents_bytes -= self.contents.remove(&ino).map_or(0, |content| content.len());
    }

    pub fn attr(&self, ino: u64) -> Option<&Attr> {
        self.attrs.get(&ino)
    }

    /// Where a name leads, as far as that is known.
    pub fn name(&self, parent: u64, name: &[u8]) -> Option<Option<u64>> {
        self.names.get(&parent)?.get(name).copied()
    }

    /// The lease goes.
    pub fn forget(&mut self, ino: u64) {
        self.forget_inode(ino);
        self.names_count -= self.names.remove(&ino).map_or(0, |names| names.len());
    }

    /// All leases go.
    pub fn forget_all(&mut self) {
        self.attrs.clear();
        self.names.clear();
        self.names_count = 0;
        self.contents.clear();
        self.contents_bytes = 0;
    }

    /// The same, and nothing is under way any more.
    pub fn reset(&mut self) {
        self.forget_all();
        self.changing.clear();
        self.changing_unknown = 0;
        self.now.0 += 1;
        self.floor = self.now;
    }

    fn is_quiet_since(&self, ino: u64, asked: Moment) -> bool {
        !self.changing.contains_key(&ino)
            && asked >= self.floor
            && self.changed.get(&ino).is_none_or(|changed| *changed <= asked)
    }

    fn forget_inode(&mut self, ino: u64) {
        self.attrs.remove(&ino);
        self.forget_content(ino);
    }

    fn forget_names(&mut self, names: &[(u64, Vec<u8>)]) {
        for (parent, name) in names {
            let Some(directory) = self.names.get_mut(parent) else { continue };
            self.names_count -= usize::from(directory.remove(name).is_some());
        }
    }
}

#[cfg(test)]
mod tests {
    use zerocopy::FromZeros;

    use super::*;

    fn attr(links: u32) -> Attr {
        Attr { links: links.into(), ..Attr::new_zeroed() }
    }

    fn links(memory: &Memory, ino: u64) -> Option<u32> {
        memory.attr(ino).map(|attr| attr.links.get())
    }

    fn change(ino: u64) -> Touched {
        Touched { inos: vec![ino], ..Touched::default() }
    }

    #[test]
    fn what_was_told_is_told_again_until_the_lease_goes() {
        let mut memory = Memory::default();
        let asked = memory.now();
        memory.learn(5, &attr(1), asked);
        memory.learn_name(1, b"a", Some(5), asked);
        memory.learn_name(1, b"b", None, asked);
        assert_eq!(links(&memory, 5), Some(1));
        assert_eq!((memory.name(1, b"a"), memory.name(1, b"b"), memory.name(1, b"c")), (Some(Some(5)), Some(None), None));
        memory.forget(5);
        assert_eq!((links(&memory, 5), memory.name(1, b"a")), (None, Some(Some(5))));
        memory.forget(1);
        assert_eq!((memory.name(1, b"a"), memory.names_count), (None, 0));
    }

    #[test]
    fn nothing_is_learnt_beside_a_change_whichever_ends_first() {
        let mut memory = Memory::default();
        let asked = memory.now();
        memory.begins(&change(5));
        memory.learn(5, &attr(1), asked);
        assert_eq!(links(&memory, 5), None, "the change is under way");
        let at = memory.ends(&change(5), &[], asked);
        memory.learn(5, &attr(1), asked);
        assert_eq!(links(&memory, 5), None, "it was asked for before the change was through");
        memory.learn(5, &attr(2), at);
        assert_eq!(links(&memory, 5), Some(2), "the change's own answer counts");
        memory.learn(6, &attr(1), asked);
        assert_eq!(links(&memory, 6), Some(1), "others are none of its business");
    }

    #[test]
    fn of_two_changes_at_a_time_no_answer_counts() {
        let mut memory = Memory::default();
        let asked = memory.now();
        memory.begins(&change(5));
        memory.begins(&change(5));
        let first = memory.ends(&change(5), &[], asked);
        memory.learn(5, &attr(1), first);
        let second = memory.ends(&change(5), &[], asked);
        memory.learn(5, &attr(2), second);
        assert_eq!(links(&memory, 5), None);
    }

    #[test]
    fn names_that_change_are_forgotten_and_what_they_led_to() {
        let mut memory = Memory::default();
        let asked = memory.now();
        memory.learn(5, &attr(2), asked);
        memory.learn_name(1, b"a", Some(5), asked);
        let touched = Touched { inos: vec![1], names: vec![(1, b"a".to_vec())], has_unknown: true };
        memory.begins(&touched);
        assert_eq!(memory.name(1, b"a"), None);
        memory.learn(7, &attr(1), asked);
        assert_eq!(links(&memory, 7), None, "it may be the one");
        memory.ends(&touched, &[5], asked);
        assert_eq!(links(&memory, 5), None);
        memory.learn(7, &attr(1), memory.now());
        assert_eq!(links(&memory, 7), Some(1));
    }

    #[test]
    fn what_it_remembers_is_bounded_and_forgetting_is_safe() {
        let mut memory = Memory::default();
        let before = memory.now();
        for ino in 0..2 * CHANGED_MAX as u64 {
            memory.begins(&change(ino));
            memory.ends(&change(ino), &[], memory.now());
        }
        assert!(memory.changed.len() <= CHANGED_MAX);
        memory.learn(u64::MAX, &attr(1), before);
        assert_eq!(links(&memory, u64::MAX), None, "nobody knows any more what was changed since");
        for number in 0..3 * NAMES_MAX as u64 {
            memory.learn(number, &attr(1), memory.now());
            memory.learn_name(number % 3, &number.to_le_bytes(), None, memory.now());
            memory.learn_content(number % 5000, &[7; 4096], memory.now());
        }
        assert!(memory.attrs.len() <= ATTRS_MAX && memory.names_count <= NAMES_MAX);
        assert!(memory.contents_bytes <= CONTENTS_MAX && memory.contents_bytes == 4096 * memory.contents.len());
        memory.begins(&change(4999));
        assert_eq!(memory.content(4999), None);
    }
}
