//! Names of directories that were changed before the server was told.
//!
//! The names of a directory are told in their order, many in one operation ([`vos_api::fs::Names`]). With a file that
//! was made goes what was promised of it since, as far as it is short: so `tar` and `cp` cost a fraction of an
//! operation for a file. What was made and removed again is not told at all.

use std::collections::{BTreeMap, HashMap, HashSet};

use vos_api::fs::{
    Attr, BARE, BEHIND_COUNT_MAX, CONTENT_BYTES_MAX, LINKS, MAKES, MOVES, MOVES_TO, NAMES_BYTES_MAX, NameChange, OF,
    REMOVES, SetAttr, valid,
};
use zerocopy::{FromZeros, IntoBytes};

use super::{Behind, Chain, Change, Promise};

/// Names that are told in one operation.
const NAMES_MAX: usize = 64;
const _: () = assert!(NAMES_MAX <= BEHIND_COUNT_MAX && CONTENT_BYTES_MAX < NAMES_BYTES_MAX as u64);
const DIRECTORY_BYTES: u64 = 4096;

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Naming {
    pub name: Vec<u8>,
    /// What is made, removed, moved, or gets one name more.
    pub ino: u64,
    pub what: What,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub enum What {
    Made(Made),
    /// Its last name.
    Removed,
    /// One of several names.
    Unlinked,
    /// One name more; what it is then.
    Linked(Attr),
    Moved {
        to: Vec<u8>,
        replaced: Option<u64>,
        /// It is not the same directory.
        goal: Option<Goal>,
    },
}

/// The other directory of a move.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Goal {
    pub directory: u64,
    /// Its change time before, as [`Promise::before_ns`] is that of the first one.
    pub before_ns: u64,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Made {
    pub mode: u32,
    pub uid: u32,
    pub gid: u32,
    pub rdev: u32,
    /// Of a symbolic link.
    pub target: Vec<u8>,
}

impl Naming {
    /// Bytes that it brings.
    pub fn len(&self) -> usize {
        self.name.len() + self.kept().len()
    }

    /// Bytes of it that are told, as the server counts them.
    fn told_len(&self) -> usize {
        let goal = self.goal().map_or(0, |goal| size_of_val(&goal.directory));
        self.name.len() + goal + self.more().len()
    }

    /// What is kept behind the name.
    pub fn kept(&self) -> &[u8] {
        match &self.what {
            What::Linked(attr) => attr.as_bytes(),
            _ => self.more(),
        }
    }

    /// What follows the name.
    pub fn more(&self) -> &[u8] {
        match &self.what {
            What::Made(made) => &made.target,
            What::Removed | What::Unlinked | What::Linked(_) => &[],
            What::Moved { to, .. } => to,
        }
    }

    /// Names that it is about, with their directories; `directory`: that of the first.
    pub fn names(&self, directory: u64) -> impl Iterator<Item = (u64, &[u8])> {
        let goal = self.goal().map_or(directory, |goal| goal.directory);
        let new = matches!(self.what, What::Moved { .. }).then(|| (goal, self.more()));
        [(directory, self.name.as_slice())].into_iter().chain(new)
    }

    /// The other directory, if there are two.
    pub fn goal(&self) -> Option<Goal> {
        match self.what {
            What::Moved { goal, .. } => goal,
            _ => None,
        }
    }

    /// Inodes that it is about, besides directories whose names it changes.
    pub fn subjects(&self) -> [Option<u64>; 2] {
        let replaced = match self.what {
            What::Moved { replaced, .. } => replaced,
            _ => None,
        };
        [Some(self.ino), replaced]
    }

    /// Whether it changes names of an inode that is there before and after.
    pub fn renames(&self, ino: u64) -> bool {
        self.ino == ino && matches!(self.what, What::Moved { .. } | What::Linked(_) | What::Unlinked)
    }

    pub fn makes(&self, ino: u64) -> bool {
        self.ino == ino && matches!(self.what, What::Made(_))
    }

    /// What its program is told the new name leads to.
    pub fn entry(&self, time_ns: u64) -> Option<Attr> {
        match &self.what {
            What::Linked(attr) => Some(*attr),
            _ => self.made(time_ns),
        }
    }

    /// What was made, as it is at first.
    pub fn made(&self, time_ns: u64) -> Option<Attr> {
        let What::Made(made) = &self.what else { return None };
        let is_directory = made.mode & libc::S_IFMT == libc::S_IFDIR;
        let time = time_ns.into();
        Some(Attr {
            ino: self.ino.into(),
            bytes: if is_directory { DIRECTORY_BYTES } else { made.target.len() as u64 }.into(),
            blocks: 0.into(),
            atime_ns: time,
            mtime_ns: time,
            ctime_ns: time,
            mode: made.mode.into(),
            links: if is_directory { 2 } else { 1 }.into(),
            uid: made.uid.into(),
            gid: made.gid.into(),
            rdev: made.rdev.into(),
            marks: BARE.into(),
        })
    }
}

/// Names that are told together.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Batch {
    /// The directory that the first of them is of, and when its names were changed for the last time.
    pub parent: u64,
    pub time_ns: u64,
    pub changes: Vec<u8>,
    /// Promises of files that go with them.
    pub folds: Vec<(u64, usize)>,
}

/// A file that is made, with what goes with it.
struct File {
    head: NameChange,
    content: Vec<u8>,
}

impl File {
    /// Adds what was promised of it. `false`: that is told by itself.
    fn fold(&mut self, promise: &Promise) -> bool {
        match &promise.change {
            Change::Write { offset, bytes } => {
                let end = self.content.len() + bytes.len();
                if *offset != self.content.len() as u64 || end as u64 > CONTENT_BYTES_MAX {
                    return false;
                }
                self.content.extend_from_slice(bytes);
                self.head.mtime_ns = promise.time_ns.into();
            }
            Change::Set(wanted) => self.set(wanted),
            Change::Lock(_) | Change::Name(_) => return false,
        }
        self.head.ctime_ns = promise.time_ns.into();
        true
    }

    fn set(&mut self, wanted: &SetAttr) {
        let has = |bit| wanted.valid.get() & bit != 0;
        let head = &mut self.head;
        let mode = head.mode.get() & libc::S_IFMT | wanted.mode.get() & 0o7777;
        head.mode = if has(valid::MODE) { mode.into() } else { head.mode };
        head.uid = if has(valid::UID) { wanted.uid } else { head.uid };
        head.gid = if has(valid::GID) { wanted.gid } else { head.gid };
        head.atime_ns = if has(valid::ATIME) { wanted.atime_ns } else { head.atime_ns };
        head.mtime_ns = if has(valid::MTIME) { wanted.mtime_ns } else { head.mtime_ns };
    }
}

impl Behind {
    /// The next names of a chain that are told together: how many promises, and what is said. `again`: so many, as a
    /// gate before this one may have told them.
    pub(super) fn batch(&self, chain: &Chain, again: Option<usize>) -> (usize, Batch) {
        let mut taken: Vec<(&Promise, &Naming)> = Vec::new();
        for promise in chain.promises.iter().take(again.unwrap_or(NAMES_MAX)) {
            let Change::Name(naming) = &promise.change else { break };
            taken.push((promise, naming));
        }
        if again.is_none() {
            taken.truncate(self.count_with_files(&taken));
        }
        let passing = passing(&taken);
        let mut times: BTreeMap<u64, u64> = BTreeMap::new();
        for (promise, _) in &taken {
            times.extend(promise.directories().map(|directory| (directory, promise.time_ns)));
        }
        let parent = taken.first().map_or(0, |(promise, _)| promise.ino);
        let mut batch = Batch { parent, time_ns: times.remove(&parent).unwrap_or(0), ..Batch::default() };
        let (mut said, mut at) = (BTreeMap::from([(parent, batch.time_ns)]), parent);
        for (promise, naming) in taken.iter().filter(|(_, naming)| !passing.contains(&naming.ino)) {
            if promise.ino != at {
                at = promise.ino;
                said.extend(times.remove_entry(&at));
                of(at, said.get(&at).copied().unwrap_or(0), &mut batch.changes);
            }
            let mut file = File { head: head(promise, naming), content: Vec::new() };
            if matches!(naming.what, What::Made(_)) {
                // Again only what has to come before a further name, as it did then.
                let until = if again.is_some() { moved_at(chain, naming.ino) } else { u64::MAX };
                let count = self.fold(naming.ino, &mut file, until);
                if count > 0 {
                    batch.folds.push((naming.ino, count));
                }
            }
            let goal = naming.goal().map(|goal| [&goal.directory.to_le_bytes(), naming.more()].concat());
            let more = if file.content.is_empty() { naming.more() } else { &file.content };
            file.head.push(&naming.name, goal.as_deref().unwrap_or(more), &mut batch.changes);
        }
        // Where something came to, or of whose names none is left.
        times.into_iter().for_each(|(directory, time_ns)| of(directory, time_ns, &mut batch.changes));
        (taken.len(), batch)
    }

    /// How many of them go together with their files, of whose bytes there are no more than of names. At least one.
    fn count_with_files(&self, taken: &[(&Promise, &Naming)]) -> usize {
        let mut room = NAMES_BYTES_MAX;
        for (at, (promise, naming)) in taken.iter().enumerate() {
            let mut file = File { head: head(promise, naming), content: Vec::new() };
            if matches!(naming.what, What::Made(_)) {
                self.fold(naming.ino, &mut file, u64::MAX);
            }
            match room.checked_sub(file.content.len() + naming.told_len()) {
                Some(left) => room = left,
                None => return at,
            }
        }
        taken.len()
    }

    /// What of a file's chain goes with its name, of promises before `until`: so many. Nobody else can have changed
    /// what is not made yet.
    fn fold(&self, ino: u64, file: &mut File, until: u64) -> usize {
        let Some(chain) = self.chains.get(&ino).filter(|chain| chain.telling == 0) else { return 0 };
        chain.promises.iter().take_while(|promise| promise.id < until && file.fold(promise)).count()
    }

    /// Whether all that is promised of an inode is told before, or together with, what is promised of its name next.
    pub fn goes_with_name(&self, ino: u64) -> bool {
        let Some(chain) = self.chains.get(&self.chain(ino)) else { return true };
        let home = self.homes.get(&ino).filter(|home| home.is_unborn).and_then(|it| self.chains.get(&it.chain));
        // With names of several directories.
        if self.is_led(ino) {
            return false;
        }
        let made = home.into_iter().flat_map(|home| &home.promises).enumerate().find_map(|(at, promise)| {
            let Change::Name(naming) = &promise.change else { return None };
            naming.makes(ino).then_some((at, promise, naming))
        });
        let (Some(home), Some((at, promise, naming))) = (home, made) else { return false };
        if at < home.telling {
            return chain.telling == chain.promises.len();
        }
        let mut file = File { head: head(promise, naming), content: Vec::new() };
        self.fold(ino, &mut file, u64::MAX) == chain.promises.len()
    }

    /// What went with names that are told: whatever was promised of a file before its names were changed.
    pub(super) fn gone_with(&mut self, told: &[Promise]) -> Vec<Promise> {
        let mut gone = Vec::new();
        for promise in told {
            let Change::Name(naming) = &promise.change else { continue };
            let ino = naming.ino;
            if !naming.renames(ino) {
                continue;
            }
            let Some(chain) = self.chains.get(&ino).filter(|chain| chain.telling == 0) else { continue };
            let count = chain.promises.iter().take_while(|before| before.id < promise.id).count();
            gone.extend(self.take(ino, count));
        }
        gone
    }
}

/// Number of the promise that changes names of an inode for the last time, told together with its name or later; 0:
/// none does.
fn moved_at(chain: &Chain, ino: u64) -> u64 {
    let renames = |change: &Change| match change {
        Change::Name(naming) => naming.renames(ino),
        _ => false,
    };
    chain.promises.iter().rev().find(|promise| renames(&promise.change)).map_or(0, |promise| promise.id)
}

fn head(promise: &Promise, naming: &Naming) -> NameChange {
    let time = promise.time_ns.into();
    let new = NameChange { ino: naming.ino.into(), time_ns: time, ..NameChange::new_zeroed() };
    match &naming.what {
        What::Made(made) => NameChange {
            kind: MAKES.into(),
            mode: made.mode.into(),
            uid: made.uid.into(),
            gid: made.gid.into(),
            rdev: made.rdev.into(),
            atime_ns: time,
            mtime_ns: time,
            ctime_ns: time,
            ..new
        },
        What::Removed | What::Unlinked => NameChange { kind: REMOVES.into(), ..new },
        What::Linked(_) => NameChange { kind: LINKS.into(), ..new },
        What::Moved { goal: None, .. } => NameChange { kind: MOVES.into(), ..new },
        What::Moved { goal: Some(_), .. } => NameChange { kind: MOVES_TO.into(), ..new },
    }
}

/// What follows is of another directory, which was changed last at that time.
fn of(directory: u64, time_ns: u64, changes: &mut Vec<u8>) {
    let head =
        NameChange { ino: directory.into(), kind: OF.into(), time_ns: time_ns.into(), ..NameChange::new_zeroed() };
    head.push(&[], &[], changes);
}

/// Inodes that are made and removed again, and that nothing else is about.
fn passing(taken: &[(&Promise, &Naming)]) -> HashSet<u64> {
    let mut made = HashMap::new();
    for (_, naming) in taken {
        match naming.what {
            // Programs may work in a directory that is removed, or have it open.
            What::Made(Made { mode, .. }) if mode & libc::S_IFMT == libc::S_IFDIR => {}
            What::Made(_) => _ = made.insert(naming.ino, false),
            What::Removed => _ = made.get_mut(&naming.ino).map(|is_removed| *is_removed = true),
            What::Linked(_) | What::Unlinked => _ = made.remove(&naming.ino),
            What::Moved { replaced, .. } => {
                made.remove(&naming.ino);
                replaced.map(|ino| made.remove(&ino));
            }
        }
    }
    made.into_iter().filter(|(_, is_removed)| *is_removed).map(|(ino, _)| ino).collect()
}

#[cfg(test)]
mod tests {
    use super::super::{Next, Telling, Told};
    use super::*;

    const DIRECTORY: u64 = 5;

    fn name(id: u64, name: &str, ino: u64, what: What) -> Promise {
        let change = Change::Name(Naming { name: name.into(), ino, what });
        Promise { id, key: 2 * id, ino: DIRECTORY, chain: DIRECTORY, time_ns: 100 + id, before_ns: 99 + id, change }
    }

    fn file() -> What {
        What::Made(Made { mode: libc::S_IFREG | 0o600, uid: 1, gid: 2, rdev: 0, target: Vec::new() })
    }

    fn of_file(id: u64, ino: u64, change: Change) -> Promise {
        Promise { id, key: 2 * id, ino, chain: ino, time_ns: 100 + id, before_ns: 99 + id, change }
    }

    impl Behind {
        fn looks_again(&self, chain: u64) -> bool {
            self.chains.get(&chain).is_some_and(|chain| chain.looks_again)
        }

        fn count_of(&self, chain: u64) -> usize {
            self.chains.get(&chain).map_or(0, |chain| chain.promises.len())
        }

        fn told_all(&mut self, chain: u64) {
            told(self, chain);
            self.told(chain);
        }
    }

    fn write(offset: u64, bytes: &[u8]) -> Change {
        Change::Write { offset, bytes: bytes.to_vec() }
    }

    fn set_mode(mode: u32) -> Change {
        Change::Set(SetAttr { valid: valid::MODE.into(), mode: mode.into(), ..SetAttr::new_zeroed() })
    }

    fn told(behind: &mut Behind, ino: u64) -> (Telling, Batch) {
        let Some(Next::Tell(telling)) = behind.next(ino, None) else { panic!("something is told of {ino}") };
        let Told::Names(batch) = telling.change.clone() else { panic!("names are told of {ino}") };
        behind.began(ino, telling.count, batch.folds.clone());
        (telling, batch)
    }

    /// Kind, inode, name, what follows it, mode, and mtime.
    type Said = (u16, u64, String, Vec<u8>, u32, u64);

    fn said(batch: &Batch) -> Vec<Said> {
        let (mut rest, mut said) = (batch.changes.as_slice(), Vec::new());
        while let Some((head, [name, more, left])) = NameChange::split(rest) {
            let name = String::from_utf8_lossy(name).into_owned();
            said.push((head.kind.get(), head.ino.get(), name, more.to_vec(), head.mode.get(), head.mtime_ns.get()));
            rest = left;
        }
        assert!(rest.is_empty());
        said
    }

    #[test]
    fn short_file_is_told_with_its_name_and_what_does_not_go_with_it_comes_later() {
        let mut behind = Behind::default();
        behind.add(name(1, "a", 10, file()));
        behind.add(of_file(2, 10, write(0, b"one")));
        behind.add(of_file(3, 10, write(3, b"two")));
        behind.add(of_file(4, 10, set_mode(0o640)));
        behind.add(of_file(5, 10, write(9000, b"far")));
        behind.add(name(6, "b", 11, file()));
        assert_eq!(behind.ready(), Some(DIRECTORY));
        assert_eq!(behind.ready(), None, "what is not made yet waits for its name");
        assert!(behind.is_unborn(10) && behind.waits_on(11) == Some(DIRECTORY));
        let (telling, batch) = told(&mut behind, DIRECTORY);
        assert_eq!((telling.count, batch.time_ns, batch.folds.as_slice()), (2, 106, &[(10, 3)][..]));
        let expected = [
            (MAKES, 10, "a".to_owned(), b"onetwo".to_vec(), 0o100_640, 103),
            (MAKES, 11, "b".to_owned(), Vec::new(), 0o100_600, 106),
        ];
        assert_eq!(said(&batch), expected);
        assert_eq!(behind.told(DIRECTORY).iter().map(|promise| promise.id).collect::<Vec<_>>(), [1, 6, 2, 3, 4]);
        assert!(!behind.is_unborn(10) && behind.is_marked(10) && !behind.is_marked(DIRECTORY));
        assert_eq!(behind.ready(), Some(10));
        assert!(matches!(behind.next(10, None), Some(Next::Tell(telling)) if telling.id == 5));
    }

    #[test]
    fn what_was_made_and_removed_is_not_told_unless_something_else_is_about_it() {
        let mut behind = Behind::default();
        let moved = |to: &str, replaced| What::Moved { to: to.into(), replaced, goal: None };
        behind.add(name(1, "a", 10, file()));
        behind.add(name(2, "b", 11, file()));
        behind.add(name(3, "a", 10, What::Removed));
        behind.add(name(4, "a", 12, file()));
        behind.add(name(5, "b", 11, moved("a", Some(12))));
        behind.add(name(6, "a", 11, What::Removed));
        behind.add(name(7, "old", 13, What::Removed));
        behind.ready();
        let (telling, batch) = told(&mut behind, DIRECTORY);
        assert_eq!(telling.count, 7);
        let kinds: Vec<(u16, u64)> = said(&batch).iter().map(|said| (said.0, said.1)).collect();
        assert_eq!(kinds, [(MAKES, 11), (MAKES, 12), (MOVES, 11), (REMOVES, 11), (REMOVES, 13)]);
        behind.told(DIRECTORY);
        assert!(behind.is_empty() && behind.changed_count() == 0);
    }

    #[test]
    fn file_that_loses_its_name_leaves_only_what_is_being_told() {
        let mut behind = Behind::default();
        behind.add(of_file(1, 10, write(0, b"one")));
        behind.ready();
        behind.began(10, 1, Vec::new());
        behind.add(of_file(2, 10, write(100_000, b"two")));
        behind.add(name(3, "a", 10, What::Removed));
        assert_eq!(behind.drop_untold(10).iter().map(|promise| promise.id).collect::<Vec<_>>(), [2]);
        behind.told(10);
        assert_eq!(behind.waits_on(10), Some(DIRECTORY));
        assert_eq!(behind.home(10), Some(DIRECTORY));
    }

    #[test]
    fn file_is_moved_once_all_that_is_promised_of_it_goes_with_its_name() {
        let mut behind = Behind::default();
        behind.add(name(1, "a", 10, file()));
        behind.add(of_file(2, 10, write(0, b"one")));
        assert!(behind.goes_with_name(10) && behind.goes_with_name(11));
        behind.add(name(3, "a", 10, What::Moved { to: b"b".to_vec(), replaced: None, goal: None }));
        behind.add(of_file(4, 10, write(9000, b"two")));
        assert!(!behind.goes_with_name(10), "the second is told by itself");
        // A gate that died may have told it.
        behind.interrupted();
        assert_eq!(behind.looked(DIRECTORY, Some(100), true), (Vec::new(), true));
        let Some(Next::Tell(Telling { change: Told::Names(batch), .. })) = behind.next(DIRECTORY, Some(2)) else {
            panic!("names are told")
        };
        assert_eq!(batch.folds, [(10, 1)]);
        behind.interrupted();
        let (over, _) = behind.looked(DIRECTORY, Some(103), true);
        assert_eq!(over.iter().map(|promise| promise.id).collect::<Vec<_>>(), [1, 3, 2]);
        // After an interruption in any order.
        assert!(std::iter::from_fn(|| behind.ready()).any(|ino| ino == 10));
        assert_eq!(behind.first(10), Some(4));
    }

    #[test]
    fn what_went_with_a_name_that_is_told_again_goes_with_it_although_its_move_comes_later() {
        let mut behind = Behind::default();
        behind.add(name(1, "a", 10, file()));
        behind.add(of_file(2, 10, write(0, b"one")));
        told(&mut behind, DIRECTORY);
        behind.add(name(3, "a", 10, What::Moved { to: b"b".to_vec(), replaced: None, goal: None }));
        behind.interrupted();
        assert_eq!(behind.looked(DIRECTORY, Some(100), true), (Vec::new(), true), "the server had not carried it out");
        let Some(Next::Tell(Telling { change: Told::Names(batch), .. })) = behind.next(DIRECTORY, Some(1)) else {
            panic!("names are told")
        };
        assert_eq!(batch.folds, [(10, 1)]);
        behind.began(DIRECTORY, 1, batch.folds);
        assert_eq!(behind.told(DIRECTORY).len(), 2);
        let (telling, _) = told(&mut behind, DIRECTORY);
        assert_eq!((telling.id, behind.told(DIRECTORY).len(), behind.is_empty()), (3, 1, true));
    }

    #[test]
    fn what_is_being_looked_at_is_not_looked_at_twice() {
        let mut behind = Behind::default();
        behind.add(name(1, "a", 10, file()));
        behind.interrupted();
        assert!(matches!(behind.next(DIRECTORY, None), Some(Next::Look(DIRECTORY))));
        behind.looks(DIRECTORY);
        assert!(behind.next(DIRECTORY, None).is_none());
        behind.looked(DIRECTORY, Some(100), true);
        told(&mut behind, DIRECTORY);
        assert_eq!(behind.looked(DIRECTORY, Some(777), true), (Vec::new(), true), "an answer of before");
        assert_eq!(behind.told(DIRECTORY).len(), 1);
    }

    #[test]
    fn names_that_are_told_together_are_as_many_as_have_room_with_their_files() {
        let mut behind = Behind::default();
        for number in 0..30 {
            behind.add(name(1 + 2 * number, &number.to_string(), 10 + number, file()));
            behind.add(of_file(2 + 2 * number, 10 + number, write(0, &[7; CONTENT_BYTES_MAX as usize])));
        }
        let (telling, batch) = told(&mut behind, DIRECTORY);
        assert_eq!((telling.count, batch.folds.len()), (15, 15));
        assert!(behind.goes_with_name(10) && behind.goes_with_name(39), "what is being told, and what will be");
        behind.add(of_file(100, 10, set_mode(0o640)));
        assert!(!behind.goes_with_name(10));
    }

    /// Bytes of names as a server counts them that takes no more than [`NAMES_BYTES_MAX`].
    fn counted(batch: &Batch) -> usize {
        said(batch).iter().map(|said| said.2.len() + said.3.len()).sum()
    }

    #[test]
    fn names_that_are_told_together_are_no_more_bytes_than_the_server_takes() {
        let link = |bytes: usize| {
            What::Made(Made { mode: libc::S_IFLNK | 0o777, uid: 1, gid: 2, rdev: 0, target: vec![b't'; bytes] })
        };
        // So many bytes for so many links, and some for moves to another directory.
        let fill = |bytes: usize| {
            let mut behind = Behind::default();
            for number in 0..4 {
                let moved = Naming { name: vec![b'0' + number; 10], ..to_other("0123456789", 200 + u64::from(number)) };
                in_chain(&mut behind, 1 + u64::from(number), DIRECTORY, 99, moved);
            }
            let mut rest = bytes - 4 * (10 + 8 + 10);
            for number in 0..60 {
                let share = rest / (60 - number as usize);
                rest -= share;
                let made = naming(&format!("link {number:05}"), 300 + number, link(share - 10));
                in_chain(&mut behind, 10 + number, DIRECTORY, 99, made);
            }
            let (telling, batch) = told(&mut behind, DIRECTORY);
            (telling.count, counted(&batch))
        };
        assert_eq!(fill(NAMES_BYTES_MAX), (64, NAMES_BYTES_MAX));
        let (count, bytes) = fill(NAMES_BYTES_MAX + 1);
        assert!(count == 63 && bytes < NAMES_BYTES_MAX, "{count}, {bytes}");
    }

    #[test]
    fn what_went_before_the_last_change_of_a_files_names_goes_again_with_them() {
        let mut behind = Behind::default();
        let linked = || What::Linked(Attr { links: 2.into(), ..Attr::new_zeroed() });
        behind.add(name(1, "tmp", 10, file()));
        behind.add(of_file(2, 10, write(0, b"one")));
        behind.add(name(3, "object", 10, linked()));
        behind.add(of_file(4, 10, write(3, b"two")));
        behind.add(name(5, "tmp", 10, What::Unlinked));
        behind.add(of_file(6, 10, write(6, b"later")));
        behind.ready();
        // As a gate tells that takes over, of which nobody knows whether it was told.
        let chain = &behind.chains[&DIRECTORY];
        let (count, batch) = behind.batch(chain, Some(3));
        assert_eq!((count, batch.folds.as_slice()), (3, &[(10, 2)][..]));
        let kinds: Vec<(u16, Vec<u8>)> = said(&batch).into_iter().map(|said| (said.0, said.3)).collect();
        assert_eq!(kinds, [(MAKES, b"onetwo".to_vec()), (LINKS, Vec::new()), (REMOVES, Vec::new())]);
        behind.began(DIRECTORY, count, batch.folds);
        assert_eq!(behind.told(DIRECTORY).len(), 5, "and what came later stays");
        assert!(behind.is_marked(10));
    }

    const OTHER: u64 = 6;

    fn to_other(to: &str, ino: u64) -> Naming {
        let goal = Some(Goal { directory: OTHER, before_ns: 50 });
        Naming { name: to.into(), ino, what: What::Moved { to: to.into(), replaced: None, goal } }
    }

    /// A promise in the chain that is its own.
    fn in_chain(behind: &mut Behind, id: u64, ino: u64, before_ns: u64, naming: Naming) {
        let chain = behind.chain_for(ino, &naming).expect("it has a chain");
        let change = Change::Name(naming);
        behind.add(Promise { id, key: 2 * id, ino, chain, time_ns: 100 + id, before_ns, change });
    }

    fn naming(name: &str, ino: u64, what: What) -> Naming {
        Naming { name: name.into(), ino, what }
    }

    /// A file that moves from one directory to the other, and what happens in both before and after.
    fn moved_between() -> Behind {
        let mut behind = Behind::default();
        in_chain(&mut behind, 1, DIRECTORY, 99, naming("a", 10, file()));
        in_chain(&mut behind, 2, DIRECTORY, 101, Naming { name: b"x".to_vec(), ..to_other("b", 11) });
        in_chain(
            &mut behind,
            3,
            OTHER,
            102,
            naming("b", 11, What::Moved { to: b"c".to_vec(), replaced: None, goal: None }),
        );
        in_chain(&mut behind, 4, DIRECTORY, 102, naming("x", 12, file()));
        behind
    }

    #[test]
    fn directories_between_which_a_name_moves_are_told_together_and_in_order() {
        let mut behind = moved_between();
        assert_eq!((behind.waits_on(OTHER), behind.waits_on(11)), (Some(DIRECTORY), Some(DIRECTORY)));
        assert_eq!((behind.ready(), behind.ready()), (Some(DIRECTORY), None));
        let (telling, batch) = told(&mut behind, DIRECTORY);
        assert_eq!((telling.count, batch.parent, batch.time_ns), (4, DIRECTORY, 104));
        let (mut rest, mut heads) = (batch.changes.as_slice(), Vec::new());
        while let Some((head, [name, more, left])) = NameChange::split(rest) {
            heads.push((head.kind.get(), head.ino.get(), head.time_ns.get(), name, more));
            rest = left;
        }
        let goal = [&OTHER.to_le_bytes()[..], b"b"].concat();
        type Shown<'a> = (u16, u64, u64, &'a [u8], &'a [u8]);
        let expected: [Shown<'_>; 6] = [
            (MAKES, 10, 101, b"a", b""),
            (MOVES_TO, 11, 102, b"x", &goal),
            (OF, OTHER, 103, b"", b""),
            (MOVES, 11, 103, b"b", b"c"),
            (OF, DIRECTORY, 104, b"", b""),
            (MAKES, 12, 104, b"x", b""),
        ];
        assert_eq!(heads, expected);
        assert!(behind.has(OTHER));
        assert_eq!(behind.told(DIRECTORY).len(), 4);
        assert!(behind.is_empty() && behind.changed_count() == 0 && behind.take_ended() == [DIRECTORY]);
        assert_eq!(behind.chain(OTHER), OTHER, "they are apart");
    }

    #[test]
    fn directory_to_which_something_came_is_told_when_that_was() {
        let mut behind = Behind::default();
        in_chain(&mut behind, 1, DIRECTORY, 99, to_other("b", 11));
        in_chain(&mut behind, 2, OTHER, 101, naming("passing", 12, file()));
        in_chain(&mut behind, 3, OTHER, 102, naming("passing", 12, What::Removed));
        let (telling, batch) = told(&mut behind, DIRECTORY);
        assert_eq!((telling.count, batch.time_ns), (3, 101));
        let kinds: Vec<(u16, u64)> = said(&batch).iter().map(|said| (said.0, said.1)).collect();
        assert_eq!(kinds, [(MOVES_TO, 11), (OF, OTHER)]);
        let (last, _) = NameChange::split(&batch.changes[batch.changes.len() - 64..]).expect("the last");
        assert_eq!(last.time_ns.get(), 103);
    }

    #[test]
    fn chains_are_not_merged_and_what_was_moved_joins_no_other() {
        let mut behind = Behind::default();
        in_chain(&mut behind, 1, DIRECTORY, 99, naming("a", 10, file()));
        in_chain(&mut behind, 2, OTHER, 50, naming("b", 11, file()));
        assert_eq!(behind.chain_for(DIRECTORY, &to_other("a", 10)), None, "both have one");
        assert_eq!(behind.chain_for(7, &naming("c", 10, What::Unlinked)), Some(DIRECTORY), "with its other names");
        behind.told_all(OTHER);
        assert_eq!(behind.chain_for(DIRECTORY, &to_other("a", 10)), Some(DIRECTORY));
        // A directory that was made there may join, and one that was moved since may not.
        let made = What::Made(Made { mode: libc::S_IFDIR | 0o700, uid: 1, gid: 2, rdev: 0, target: Vec::new() });
        in_chain(&mut behind, 3, DIRECTORY, 101, naming("d", OTHER, made));
        assert_eq!(behind.chain_for(DIRECTORY, &to_other("a", 10)), Some(DIRECTORY));
        assert_eq!(behind.chain_for(7, &to_other("e", 14)), Some(DIRECTORY), "where the goal is made");
        let moved = What::Moved { to: b"dd".to_vec(), replaced: None, goal: None };
        in_chain(&mut behind, 4, DIRECTORY, 103, naming("d", OTHER, moved));
        assert_eq!(behind.chain_for(DIRECTORY, &to_other("a", 10)), None);
    }

    /// Looks at both directories, which were changed last at these times. Answers what is over, and whether it is kept.
    fn look_at_both(behind: &mut Behind, one: u64, other: u64) -> (Vec<u64>, bool) {
        let mut asked = Vec::new();
        while let Some(chain) = behind.ready() {
            let Some(Next::Look(ino)) = behind.next(chain, None) else { continue };
            behind.looks(ino);
            asked.push(ino);
        }
        assert_eq!(asked, [DIRECTORY, OTHER]);
        assert_eq!(behind.looked(DIRECTORY, Some(one), true), (Vec::new(), true), "one of two");
        let (over, is_kept) = behind.looked(OTHER, Some(other), true);
        (over.iter().map(|promise| promise.id).collect(), is_kept)
    }

    #[test]
    fn what_is_carried_out_between_two_looks_is_found_by_the_next_ones() {
        let mut behind = moved_between();
        behind.interrupted();
        assert_eq!(look_at_both(&mut behind, 99, 103), (vec![], true), "they do not agree, and are asked again");
        assert_eq!(look_at_both(&mut behind, 102, 103), (vec![1, 2, 3], true));
        assert_eq!(behind.first(DIRECTORY), Some(4), "and the rest is told");
        // A gate that follows has the same doubt again.
        let mut behind = moved_between();
        for _ in 0..3 {
            behind.interrupted();
            assert_eq!(look_at_both(&mut behind, 99, 103), (vec![], true));
        }
        assert_eq!(look_at_both(&mut behind, 99, 103), (vec![1, 2, 3, 4], false), "others changed one of them");
    }

    #[test]
    fn after_a_fence_both_directories_of_a_move_are_looked_at_and_must_agree() {
        let looked = |one: u64, other: u64| {
            let mut behind = moved_between();
            behind.interrupted();
            let (mut over, mut is_kept) = look_at_both(&mut behind, one, other);
            if over.is_empty() && behind.looks_again(DIRECTORY) {
                (over, is_kept) = look_at_both(&mut behind, one, other);
            }
            (over, is_kept, behind.has(DIRECTORY))
        };
        assert_eq!(looked(99, 50), (vec![], true, true), "nothing was carried out");
        assert_eq!(looked(101, 50), (vec![1], true, true));
        assert_eq!(looked(102, 102), (vec![1, 2], true, true));
        assert_eq!(looked(102, 103), (vec![1, 2, 3], true, true));
        assert_eq!(looked(104, 103), (vec![1, 2, 3, 4], true, false));
        let lost = (vec![1, 2, 3, 4], false, false);
        let by_others = [(102, 50), (101, 102), (104, 102), (777, 50), (99, 777)];
        by_others.into_iter().for_each(|(one, other)| assert_eq!(looked(one, other), lost, "{one}, {other}"));
    }

    #[test]
    fn directory_that_its_own_chain_makes_may_be_missing_until_that_is_told() {
        let looked = |one: u64, other: Option<u64>| {
            let mut behind = Behind::default();
            let made = What::Made(Made { mode: libc::S_IFDIR | 0o700, uid: 1, gid: 2, rdev: 0, target: Vec::new() });
            in_chain(&mut behind, 1, DIRECTORY, 99, naming("d", OTHER, made));
            let mut moved = to_other("x", 11);
            let What::Moved { goal: Some(goal), .. } = &mut moved.what else { unreachable!() };
            goal.before_ns = 101;
            in_chain(&mut behind, 2, DIRECTORY, 101, moved);
            assert!(behind.ready() == Some(DIRECTORY) && behind.may_be_missing(OTHER));
            behind.interrupted();
            behind.looked(DIRECTORY, Some(one), true);
            behind.looked(OTHER, other, true);
            if !behind.looks_again(DIRECTORY) {
                return (2 - behind.count_of(DIRECTORY), true);
            }
            behind.looked(DIRECTORY, Some(one), true);
            let (over, is_kept) = behind.looked(OTHER, other, true);
            (over.len(), is_kept)
        };
        assert_eq!(looked(99, None), (0, true));
        assert_eq!(looked(101, Some(101)), (1, true));
        assert_eq!(looked(102, Some(102)), (2, true));
        assert_eq!(looked(101, None), (2, false), "somebody removed it");
    }

    #[test]
    fn after_a_fence_a_directory_comes_before_what_it_is_about() {
        let mut behind = Behind::default();
        behind.add(name(1, "a", 10, file()));
        behind.add(of_file(2, 10, write(0, b"one")));
        behind.ready();
        told(&mut behind, DIRECTORY);
        behind.interrupted();
        assert_eq!((behind.ready(), behind.ready()), (Some(DIRECTORY), None));
        assert!(matches!(behind.next(DIRECTORY, None), Some(Next::Look(DIRECTORY))));
        assert_eq!(behind.looked(DIRECTORY, Some(101), true).0.len(), 1, "it had been told");
        assert_eq!(behind.ready(), Some(10));
        assert!(matches!(behind.next(10, None), Some(Next::Look(10))), "with the file, or without");
    }
}
