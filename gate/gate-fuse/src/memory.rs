//! What the gate was told under leases and may tell the kernel again: attributes, names, names that do not exist.
//!
//! The kernel forgets a name after a second and asks again; under a lease of its directory and of its inode the answer
//! is known here. Changes by others take the lease away first ([`Memory::forget`]). Changes of our own need none, so
//! they are counted: nothing is learnt of an inode from an answer that a change of ours was under way beside, because
//! nobody knows which of the two the server did first.
//!
//! Of a directory that was made here, or read from its beginning to its end, every name is known, and with it that
//! there are no others ([`Directory::is_whole`]).
//!
//! Contents of small files are remembered from when they were fetched beside others ([`crate::gate`]), or written, as
//! long as there is room. So is where files have data, and where holes ([`crate::extents`]).
//!
//! Pure. Whether a lease stands is the caller's to ask ([`crate::cache`]).

use std::collections::HashMap;

use vos_api::fs::{self, Attr};

use crate::behind::Change;
use crate::extents::{Extents, Sought, Unknown};

/// Inodes whose attributes are remembered; beyond, all are forgotten, which costs a request each.
const ATTRS_MAX: usize = 1 << 17;
/// The same of names, of all directories together.
const NAMES_MAX: usize = 1 << 17;
/// Bytes of contents.
const CONTENTS_MAX: usize = 8 << 20;
/// Longer files are not remembered.
const CONTENT_BYTES_MAX: usize = vos_api::fs::CONTENT_BYTES_MAX as usize;
const CONTENTS_COUNT_MAX: usize = 1 << 14;
/// Stretches of data, and of holes, of all files together; beyond, all are forgotten.
const EXTENTS_MAX: usize = 1 << 16;
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
    directories: HashMap<u64, Directory>,
    names_count: usize,
    contents: HashMap<u64, Vec<u8>>,
    contents_bytes: usize,
    extents: HashMap<u64, Extents>,
    extents_count: usize,
    /// Inodes with changes of ours under way.
    changing: HashMap<u64, usize>,
    changing_unknown: usize,
    now: Moment,
    changed: HashMap<u64, Moment>,
    /// Before this moment anything may have been changed.
    floor: Moment,
    /// What inodes are after changes that the server was not told of ([`crate::behind`]). Bounded by these.
    promised: HashMap<u64, Attr>,
    /// When it had been told of everything; before `told_floor` nobody knows.
    told: HashMap<u64, Moment>,
    told_floor: Moment,
    /// Names that were changed so, and how often.
    promised_names: HashMap<(u64, Vec<u8>), usize>,
    told_names: HashMap<(u64, Vec<u8>), Moment>,
    told_names_floor: Moment,
}

#[derive(Default)]
struct Directory {
    /// `None`: there is no such name.
    names: HashMap<Vec<u8>, Option<u64>>,
    /// There are no others.
    is_whole: bool,
    /// It is being read: after which entry the next page begins, and when the first was asked for.
    reading: Option<(u64, Moment)>,
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
        let is_alone = touched.inos.iter().chain(also).all(|ino| self.is_alone_since(*ino, asked));
        let inos = || touched.inos.iter().chain(also).copied();
        self.pass(inos());
        inos().for_each(|ino| self.forget_inode(ino));
        self.forget_names(&touched.names);
        if is_alone {
            return self.now;
        }
        for (parent, _) in &touched.names {
            if let Some(directory) = self.directories.get_mut(parent) {
                directory.is_whole = false;
            }
        }
        asked
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
        let key = (parent, name.to_vec());
        let is_quiet = !self.promised_names.contains_key(&key)
            && asked >= self.told_names_floor
            && self.told_names.get(&key).is_none_or(|told| *told <= asked);
        if is_quiet && self.is_alone_since(parent, asked) {
            self.set_name(parent, name, ino);
        }
    }

    fn set_name(&mut self, parent: u64, name: &[u8], ino: Option<u64>) {
        if self.names_count >= NAMES_MAX {
            self.directories.clear();
            self.names_count = 0;
            // What is being read is whole no more, whatever of it is still to come.
            self.now.0 += 1;
            self.floor = self.now;
            return;
        }
        let names = &mut self.directories.entry(parent).or_default().names;
        match names.get_mut(name) {
            Some(known) => *known = ino,
            None => {
                names.insert(name.to_vec(), ino);
                self.names_count += 1;
            }
        }
    }

    /// A directory of which every name is known: one that was made, and is empty.
    pub fn learn_empty(&mut self, ino: u64, asked: Moment) {
        if self.is_quiet_since(ino, asked) {
            self.directories.entry(ino).or_default().is_whole = true;
        }
    }

    /// The names of a page of a directory were learnt: those after entry `from` up to `last`.
    pub fn read_page(&mut self, ino: u64, (from, last): (u64, u64), is_end: bool, asked: Moment) {
        let directory = self.directories.entry(ino).or_default();
        let first = match directory.reading.take() {
            _ if from == 0 => asked,
            Some((next, first)) if next == from => first,
            _ => return,
        };
        if !is_end {
            directory.reading = Some((last, first));
        } else if self.is_quiet_since(ino, first)
            && let Some(directory) = self.directories.get_mut(&ino)
        {
            directory.is_whole = true;
        }
    }

    /// A change of a name is through. What it left may not be known.
    pub fn check_names(&mut self, names: &[(u64, Vec<u8>)], is_gone: bool) {
        for (parent, name) in names {
            if let Some(directory) = self.directories.get_mut(parent) {
                directory.is_whole &= is_gone || directory.names.contains_key(name);
            }
        }
    }

    /// The same of all bytes of a file.
    pub fn learn_content(&mut self, ino: u64, content: &[u8], asked: Moment) {
        if self.changing_unknown > 0 || !self.is_quiet_since(ino, asked) {
            return;
        }
        self.keep_content(ino, content.to_vec());
    }

    fn keep_content(&mut self, ino: u64, content: Vec<u8>) {
        if self.contents_bytes + content.len() > CONTENTS_MAX || self.contents.len() >= CONTENTS_COUNT_MAX {
            self.contents.clear();
            self.contents_bytes = 0;
        }
        self.contents_bytes += content.len();
        if let Some(old) = self.contents.insert(ino, content) {
            self.contents_bytes -= old.len();
        }
    }

    pub fn content(&self, ino: u64) -> Option<&[u8]> {
        self.contents.get(&ino).map(Vec::as_slice)
    }

    pub fn forget_content(&mut self, ino: u64) {
        self.contents_bytes -= self.contents.remove(&ino).map_or(0, |content| content.len());
    }

    /// The same of where its data is, or a hole.
    pub fn learn_extent(&mut self, ino: u64, (offset, sought, found): (u64, Sought, u64), asked: Moment) {
        if self.changing_unknown == 0 && self.is_quiet_since(ino, asked) {
            self.with_extents(ino, |extents| extents.learn(offset, sought, found));
        }
    }

    fn with_extents(&mut self, ino: u64, change: impl FnOnce(&mut Extents)) {
        if self.extents_count >= EXTENTS_MAX {
            self.extents.clear();
            self.extents_count = 0;
        }
        let extents = self.extents.entry(ino).or_default();
        self.extents_count -= extents.count();
        change(extents);
        self.extents_count += extents.count();
    }

    /// Where a file has data, or a hole, from `offset` on; `Ok(None)`: nowhere.
    pub fn extent(&self, ino: u64, offset: u64, sought: Sought) -> Result<Option<u64>, Unknown> {
        let size = self.certain(ino).ok_or(Unknown)?.bytes.get();
        if offset >= size {
            return Ok(None);
        }
        self.extents.get(&ino).ok_or(Unknown)?.find(offset, sought, size)
    }

    pub fn attr(&self, ino: u64) -> Option<&Attr> {
        self.promised.get(&ino).or_else(|| self.attrs.get(&ino))
    }

    /// What a file is for certain, before a further change of it is promised.
    pub fn certain(&self, ino: u64) -> Option<&Attr> {
        if self.changing_unknown > 0 || self.changing.contains_key(&ino) { None } else { self.attr(ino) }
    }

    /// How many inodes there are of which the server has not been told everything.
    pub fn promised_count(&self) -> usize {
        self.promised.len()
    }

    /// What an inode is of which the server has not been told everything.
    pub fn promised(&self, ino: u64) -> Option<&Attr> {
        self.promised.get(&ino)
    }

    /// Attributes that the kernel may be told: what the server said to who asked at `asked` may be of before a promise.
    /// `None`: it is, and what is so now nobody knows.
    pub fn newest(&self, attr: &Attr, asked: Moment) -> Option<Attr> {
        let ino = attr.ino.get();
        let is_overtaken = asked < self.told_floor || self.told.get(&ino).is_some_and(|told| asked < *told);
        let known = if is_overtaken { self.attr(ino) } else { Some(self.promised.get(&ino).unwrap_or(attr)) };
        known.copied()
    }

    /// A change was promised, after which the inode is `attr`; what the server says of it is of before, until it was
    /// told. The bytes of a small file stay known, also of one that begins to have some.
    pub fn promise(&mut self, ino: u64, attr: &Attr, change: &Change) {
        let was_empty = self.attr(ino).is_some_and(|attr| attr.bytes.get() == 0);
        self.attrs.remove(&ino);
        self.promised.insert(ino, *attr);
        let Change::Write { offset, bytes } = change else { return };
        self.with_extents(ino, |extents| extents.written(*offset, bytes.len() as u64));
        let known = if was_empty { Some(Vec::new()) } else { self.content(ino).map(<[u8]>::to_vec) };
        self.forget_content(ino);
        let (from, to) = (*offset as usize, *offset as usize + bytes.len());
        if let Some(mut content) = known.filter(|content| from <= content.len() && to <= CONTENT_BYTES_MAX) {
            content.resize(content.len().max(to), 0);
            if let Some(part) = content.get_mut(from..to) {
                part.copy_from_slice(bytes);
            }
            self.keep_content(ino, content);
        }
    }

    /// The same of an inode whose bytes stay as they are: it was made, or gained or lost a name, or its names changed.
    pub fn promise_attr(&mut self, ino: u64, attr: &Attr) {
        self.attrs.remove(&ino);
        self.promised.insert(ino, *attr);
    }

    /// A name was promised, or that there is none.
    pub fn promise_name(&mut self, parent: u64, name: &[u8], ino: Option<u64>) {
        *self.promised_names.entry((parent, name.to_vec())).or_default() += 1;
        self.set_name(parent, name, ino);
    }

    /// Whether the server does not know yet what a name leads to.
    pub fn is_promised_name(&self, parent: u64, name: &[u8]) -> bool {
        !self.promised_names.is_empty() && self.promised_names.contains_key(&(parent, name.to_vec()))
    }

    /// The server knows of a change of a name.
    pub fn told_name(&mut self, parent: u64, name: &[u8]) {
        let key = (parent, name.to_vec());
        if let Some(count) = self.promised_names.get_mut(&key) {
            *count -= 1;
            if *count == 0 {
                self.promised_names.remove(&key);
            }
        }
        self.now.0 += 1;
        if self.told_names.len() >= CHANGED_MAX {
            self.told_names.clear();
            self.told_names_floor = self.now;
        }
        self.told_names.insert(key, self.now);
    }

    /// A directory was promised: it is empty.
    pub fn promise_directory(&mut self, ino: u64) {
        self.directories.entry(ino).or_default().is_whole = true;
    }

    /// Whether it is certain that the directory has no names.
    pub fn is_empty(&self, ino: u64) -> bool {
        let is_empty = |it: &Directory| it.is_whole && it.names.values().all(Option::is_none);
        !self.changing.contains_key(&ino) && self.directories.get(&ino).is_some_and(is_empty)
    }

    /// The server knows everything; `attr`: what it said last, if a lease covers it.
    pub fn told(&mut self, ino: u64, attr: Option<&Attr>) {
        self.promised.remove(&ino);
        self.now.0 += 1;
        if self.told.len() >= CHANGED_MAX {
            self.told.clear();
            self.told_floor = self.now;
        }
        self.told.insert(ino, self.now);
        if let Some(attr) = attr {
            self.learn(ino, attr, self.now);
        }
    }

    /// Where a name leads, as far as that is known.
    pub fn name(&self, parent: u64, name: &[u8]) -> Option<Option<u64>> {
        let directory = self.directories.get(&parent)?;
        let known = directory.names.get(name).copied();
        // While a name changes nobody knows whether it is there.
        // The root does not list all that it has.
        let is_listed = parent != fs::ROOT || name != fs::SNAPSHOTS_NAME;
        let is_none = || (is_listed && directory.is_whole && !self.changing.contains_key(&parent)).then_some(None);
        known.or_else(is_none)
    }

    /// The lease goes. What was asked before says nothing any more, whatever its answer says of a lease: that may be
    /// the next one, and the answer of before a change of others.
    pub fn forget(&mut self, ino: u64) {
        self.pass([ino]);
        self.forget_inode(ino);
        self.names_count -= self.directories.remove(&ino).map_or(0, |directory| directory.names.len());
    }

    /// All leases go.
    pub fn forget_all(&mut self) {
        self.now.0 += 1;
        self.floor = self.now;
        self.attrs.clear();
        self.directories.clear();
        self.names_count = 0;
        self.contents.clear();
        self.contents_bytes = 0;
        self.extents.clear();
        self.extents_count = 0;
    }

    /// The same, and nothing is under way any more.
    pub fn reset(&mut self) {
        self.forget_all();
        self.changing.clear();
        self.changing_unknown = 0;
    }

    /// Time passes, with a change of these.
    fn pass(&mut self, inos: impl IntoIterator<Item = u64>) {
        self.now.0 += 1;
        for ino in inos {
            if self.changed.len() >= CHANGED_MAX {
                self.changed.clear();
                self.floor = self.now;
            }
            self.changed.insert(ino, self.now);
        }
    }

    fn is_quiet_since(&self, ino: u64, asked: Moment) -> bool {
        !self.promised.contains_key(&ino)
            && asked >= self.told_floor
            && self.told.get(&ino).is_none_or(|told| *told <= asked)
            && self.is_alone_since(ino, asked)
    }

    /// Whether no change but what was promised was under way since.
    fn is_alone_since(&self, ino: u64, asked: Moment) -> bool {
        !self.changing.contains_key(&ino)
            && asked >= self.floor
            && self.changed.get(&ino).is_none_or(|changed| *changed <= asked)
    }

    fn forget_inode(&mut self, ino: u64) {
        self.attrs.remove(&ino);
        self.forget_content(ino);
        self.extents_count -= self.extents.remove(&ino).map_or(0, |extents| extents.count());
    }

    fn forget_names(&mut self, names: &[(u64, Vec<u8>)]) {
        for (parent, name) in names {
            let Some(directory) = self.directories.get_mut(parent) else { continue };
            self.names_count -= usize::from(directory.names.remove(name).is_some());
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
        assert_eq!(
            (memory.name(1, b"a"), memory.name(1, b"b"), memory.name(1, b"c")),
            (Some(Some(5)), Some(None), None)
        );
        memory.forget(5);
        assert_eq!((links(&memory, 5), memory.name(1, b"a")), (None, Some(Some(5))));
        memory.learn(5, &attr(1), asked);
        assert_eq!(links(&memory, 5), None, "an answer of before");
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
    fn of_a_whole_directory_it_is_known_what_is_not_there() {
        let mut memory = Memory::default();
        let asked = memory.now();
        memory.learn_empty(1, asked);
        assert_eq!(memory.name(1, b"a"), Some(None));
        let touched = Touched { inos: vec![1], names: vec![(1, b"a".to_vec())], has_unknown: false };
        memory.begins(&touched);
        assert_eq!((memory.name(1, b"a"), memory.name(1, b"b")), (None, None), "it may be on its way");
        let at = memory.ends(&touched, &[], asked);
        memory.learn_name(1, b"a", Some(5), at);
        memory.check_names(&touched.names, false);
        assert_eq!((memory.name(1, b"a"), memory.name(1, b"b")), (Some(Some(5)), Some(None)));
        assert_eq!(memory.name(fs::ROOT, fs::SNAPSHOTS_NAME), None, "is not listed");
        memory.begins(&touched);
        memory.ends(&touched, &[5], memory.now());
        memory.check_names(&touched.names, true);
        assert_eq!(memory.name(1, b"a"), Some(None), "removed");
        memory.begins(&touched);
        memory.ends(&touched, &[], memory.now());
        memory.check_names(&touched.names, false);
        assert_eq!(memory.name(1, b"b"), None, "whatever the change left, it is not known");
    }

    #[test]
    fn directory_is_whole_once_it_was_read_to_the_end_and_nothing_came_between() {
        for disturbance in [false, true] {
            let mut memory = Memory::default();
            let asked = memory.now();
            memory.learn_name(1, b"a", Some(5), asked);
            memory.read_page(1, (0, 7), false, asked);
            assert_eq!(memory.name(1, b"b"), None);
            if disturbance {
                memory.begins(&change(1));
                memory.ends(&change(1), &[], asked);
            }
            memory.read_page(1, (7, 9), true, memory.now());
            assert_eq!(memory.name(1, b"b"), (!disturbance).then_some(None));
            memory.read_page(2, (7, 9), true, memory.now());
            assert_eq!(memory.name(2, b"b"), None, "its beginning is not known");
            memory.forget(1);
            assert_eq!(memory.name(1, b"b"), None);
        }
    }

    #[test]
    fn name_of_what_is_being_told_goes_and_its_directory_stays_known() {
        for is_told_meanwhile in [false, true] {
            let mut memory = Memory::default();
            let asked = memory.now();
            memory.learn_empty(1, asked);
            memory.learn(5, &attr(1), asked);
            memory.promise(5, &attr(1), &Change::Write { offset: 0, bytes: b"some".to_vec() });
            let touched = Touched { inos: vec![1, 5], names: vec![(1, b"a".to_vec())], has_unknown: false };
            let asked = memory.now();
            memory.begins(&touched);
            if is_told_meanwhile {
                memory.told(5, None);
            }
            let at = memory.ends(&touched, &[5], asked);
            memory.check_names(&touched.names, true);
            memory.learn(1, &attr(2), at);
            assert_eq!((memory.name(1, b"a"), links(&memory, 1)), (Some(None), Some(2)));
        }
    }

    #[test]
    fn where_data_is_is_known_until_something_else_changes_the_file() {
        let mut memory = Memory::default();
        let of = |bytes: u64| Attr { bytes: bytes.into(), ..attr(1) };
        let asked = memory.now();
        memory.learn(5, &of(100 * 4096), asked);
        memory.learn_extent(5, (0, Sought::Data, 8 * 4096), asked);
        assert_eq!(memory.extent(5, 1, Sought::Data), Ok(Some(8 * 4096)));
        assert_eq!(memory.extent(5, 100 * 4096, Sought::Hole), Ok(None), "behind the end");
        memory.promise(5, &of(100 * 4096), &Change::Write { offset: 2 * 4096, bytes: b"some".to_vec() });
        assert_eq!(memory.extent(5, 1, Sought::Data), Ok(Some(2 * 4096)));
        memory.learn_extent(5, (0, Sought::Data, 8 * 4096), asked);
        assert_eq!(memory.extent(5, 1, Sought::Data), Ok(Some(2 * 4096)), "the server does not know yet");
        memory.told(5, Some(&of(100 * 4096)));
        assert_eq!(memory.extent(5, 1, Sought::Data), Ok(Some(2 * 4096)));
        memory.begins(&change(5));
        memory.ends(&change(5), &[], memory.now());
        memory.learn(5, &of(100 * 4096), memory.now());
        assert_eq!(memory.extent(5, 1, Sought::Data), Err(Unknown), "it may have been cut");
        memory.learn_extent(5, (0, Sought::Data, 8 * 4096), memory.now());
        memory.forget(5);
        assert_eq!((memory.extent(5, 1, Sought::Data), memory.extents_count), (Err(Unknown), 0));
    }

    #[test]
    fn what_was_asked_before_the_server_knew_everything_is_not_told() {
        let mut memory = Memory::default();
        let of = |ino: u64, links| Attr { ino: ino.into(), ..attr(links) };
        let asked = memory.now();
        assert_eq!(memory.newest(&of(5, 1), asked), Some(of(5, 1)));
        memory.learn(5, &of(5, 1), asked);
        let after = Attr { bytes: 4.into(), ..of(5, 2) };
        memory.promise(5, &after, &Change::Write { offset: 0, bytes: b"some".to_vec() });
        assert_eq!(memory.content(5), Some(&b"some"[..]), "it had none before");
        memory.promise(5, &after, &Change::Write { offset: 2, bytes: b"re".to_vec() });
        assert_eq!(memory.content(5), Some(&b"sore"[..]));
        assert_eq!((links(&memory, 5), memory.newest(&of(5, 1), asked)), (Some(2), Some(after)));
        memory.learn(5, &of(5, 1), asked);
        memory.learn_content(5, b"old", asked);
        assert_eq!(
            (links(&memory, 5), memory.content(5)),
            (Some(2), Some(&b"sore"[..])),
            "the server does not know yet"
        );
        memory.told(5, None);
        assert_eq!((links(&memory, 5), memory.newest(&of(5, 1), asked)), (None, None));
        assert_eq!(memory.newest(&of(5, 3), memory.now()), Some(of(5, 3)));
        assert_eq!(memory.newest(&of(6, 1), asked), Some(of(6, 1)));
        memory.told(5, Some(&of(5, 3)));
        assert_eq!(memory.newest(&of(5, 1), asked), Some(of(5, 3)), "what was said last");
        memory.begins(&change(5));
        assert_eq!(memory.certain(5), None);
        for ino in 10..10 + 2 * CHANGED_MAX as u64 {
            memory.told(ino, None);
        }
        assert!(memory.told.len() <= CHANGED_MAX);
        assert_eq!(memory.newest(&of(9, 1), asked), None, "nobody knows any more");
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
        for number in 0..2 * EXTENTS_MAX as u64 {
            memory.learn_extent(number, (0, Sought::Data, 4096), memory.now());
        }
        assert!(memory.extents_count <= EXTENTS_MAX + 2 && memory.extents_count == 2 * memory.extents.len());
        memory.begins(&change(4999));
        assert_eq!(memory.content(4999), None);
    }
}
