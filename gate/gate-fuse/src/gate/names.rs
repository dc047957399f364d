//! Names are made and removed before the server is told ([`crate::behind::names`]).
//!
//! Of a directory that the session has exclusively the gate knows whether a name is there, so it can promise that one
//! is made, removed or moved: the inode gets a number that the server has set aside for this session. Who made an inode
//! so has it exclusively from the beginning, with its locks; what is removed so nobody else may have anything of, and
//! nobody here may have it open.
//!
//! Nothing is promised in a directory that other nodes work in as well.

use std::collections::BTreeSet;
use std::ops::Range;
use std::time::Instant;

use vos_api::Operation;
use vos_api::fs::{self, Attr, LINKS_MAX, Numbers};
use zerocopy::IntoBytes;

use super::{Backend, Gate, GateError, now_ns};
use crate::backend::{Done, Op, Token};
use crate::behind::names::{Goal, Made, Naming, What};
use crate::behind::{Change, Promise};
use crate::complete::{Asked, Completer, kernel_attr};
use crate::flight::Flight;
use crate::kernel;
use crate::request::{Body, Request};
use crate::state::Handle;
use crate::translate::{self, Then};

/// More are asked for when fewer are left.
const NUMBERS_MIN: u64 = 256;
/// As answers have it that come with a lease under which files are opened without a word.
const OWN: [u64; 4] = [0, 0, 0, fs::LEASE | fs::DELEGATES];

/// Numbers for inodes that are made here.
#[derive(Default)]
pub(super) struct OwnNumbers {
    left: Range<u64>,
    /// Those that come when these are used up.
    next: Range<u64>,
    asked: Option<Token>,
    /// The server gives none.
    are_refused: bool,
    /// There was use for one.
    are_wanted: bool,
}

impl OwnNumbers {
    fn first(&mut self) -> Option<u64> {
        self.are_wanted = true;
        if self.left.is_empty() {
            self.left = std::mem::take(&mut self.next);
        }
        Some(self.left.start).filter(|_| !self.left.is_empty())
    }

    /// Whoever was asked does not answer any more; what was given stays.
    pub fn interrupted(&mut self) {
        (self.asked, self.are_refused) = (None, false);
    }
}

impl<B: Backend> Gate<B> {
    pub(super) fn ask_for_numbers(&mut self) {
        let numbers = &mut self.numbers;
        let are_few = numbers.left.end - numbers.left.start < NUMBERS_MIN && numbers.next.is_empty();
        if numbers.are_wanted
            && are_few
            && numbers.asked.is_none()
            && !numbers.are_refused
            && let Ok(token) = self.backend.submit(&Op::of(&Numbers {}.encode(), 0, None))
        {
            numbers.asked = Some(token);
        }
    }

    /// `true`: it was the answer to that.
    pub(super) fn numbers_came(&mut self, done: &Done<B::Data>) -> bool {
        let numbers = &mut self.numbers;
        if numbers.asked != Some(done.token) {
            return false;
        }
        numbers.asked = None;
        let fs::Numbered { first, count } = done.results.into();
        match first.checked_add(count) {
            Some(end) if done.status == 0 && first > fs::ROOT => numbers.next = first..end,
            // A server of an earlier release does not know the question.
            _ => numbers.are_refused = true,
        }
        true
    }

    /// What an answer to a change of names says of further ones in its directory.
    pub(super) fn note_names(&mut self, flight: &Flight, done: &Done<B::Data>) {
        let changes_names = matches!(
            flight.then,
            Then::Entry
                | Then::Linked
                | Then::Made { .. }
                | Then::Create { .. }
                | Then::Removed { .. }
                | Then::Renamed { .. }
                | Then::Placed
        );
        let directories: BTreeSet<u64> = flight.names.iter().map(|(parent, _)| *parent).chain([flight.ino]).collect();
        // Of several it is said that all of them are, or nothing.
        let is_said = directories.len() == 1 || done.results[3] & fs::EXCLUSIVE_NAMES != 0;
        if changes_names && is_said && done.status == 0 {
            self.note_names_told(directories, done.results);
            // There will be.
            self.numbers.are_wanted |= self.cache.is_exclusive(flight.ino);
        }
    }

    pub(super) fn note_names_told(&mut self, directories: impl IntoIterator<Item = u64>, results: [u64; 4]) {
        self.has_room = results[3] & fs::ROOM != 0;
        let is_exclusive = results[3] & fs::EXCLUSIVE_NAMES != 0 && self.may_write_behind();
        if is_exclusive {
            self.moves_between = results[3] & fs::MOVES_BETWEEN != 0;
        }
        directories.into_iter().for_each(|directory| self.cache.set_exclusive(directory, is_exclusive));
    }

    /// Answers a change of names that can be told later. `false`: it cannot.
    pub(super) fn promise_name(&mut self, request: &Request<'_>) -> Result<bool, GateError> {
        let (directory, key) = (request.header.nodeid, request.key());
        let (is_asked, goal) = match request.body {
            // What is not to be replaced, and is not there, is not replaced.
            Body::Rename { to, flags: 0 | libc::RENAME_NOREPLACE, .. } => {
                (true, Some(to).filter(|to| *to != directory))
            }
            Body::Create { .. } | Body::Mknod { .. } | Body::Mkdir { .. } | Body::Symlink { .. } => (true, None),
            Body::Unlink { .. } | Body::Rmdir { .. } | Body::Link { .. } => (true, None),
            _ => (false, None),
        };
        if !is_asked || self.state.noted(key).is_some() {
            return Ok(false);
        }
        let Some(before) = self.names_before(directory) else { return Ok(false) };
        let before_goal = match goal.map(|goal| self.names_before(goal)) {
            Some(None) => return Ok(false),
            before => before.flatten(),
        };
        let Some(mut naming) = self.naming(request, before_goal.as_ref()) else { return Ok(false) };
        let Some(chain) = self.chain_for(directory, &naming) else { return Ok(false) };
        // Later than whatever it is about: each has a time of its own.
        let times = naming.subjects().into_iter().flatten().filter_map(|ino| self.cache.memory.attr(ino));
        let latest = times.chain([&before]).chain(&before_goal).map(|attr| attr.ctime_ns.get()).max().unwrap_or(0);
        let time_ns = now_ns().max(latest.saturating_add(1));
        if let What::Linked(attr) = &mut naming.what {
            attr.ctime_ns = time_ns.into();
        }
        let Some(after) = after(&before, before_goal.as_ref(), &naming, time_ns, |ino| self.is_directory(ino)) else {
            return Ok(false);
        };
        let change = Change::Name(naming.clone());
        if !self.behind.fits(&change) {
            return Ok(false);
        }
        let (id, ino, before_ns) = (self.behind.next_id(), directory, before.ctime_ns.get());
        let promise = Promise { id, key, ino, chain, time_ns, before_ns, change };
        if !self.state.promise(&promise)? {
            return Ok(false);
        }
        self.counters.promises += 1;
        self.behind.add(promise);
        for attr in after.iter().flatten() {
            self.cache.memory.promise_attr(attr.ino.get(), attr);
        }
        self.put_into_effect(directory, &naming, time_ns)?;
        self.answer_naming(request, &naming, time_ns)?;
        Ok(true)
    }

    /// What a directory is in which names may be changed before the server is told.
    fn names_before(&self, directory: u64) -> Option<Attr> {
        let is_own = self.has_for_itself(directory) && !self.recalls.awaits(directory);
        if !is_own || self.cache.is_contested(directory, Instant::now()) {
            return None;
        }
        // What it would hand down the server does.
        let is_plain = |attr: &Attr| attr.mode.get() & libc::S_ISGID == 0 && attr.links.get() > 0;
        self.cache.memory.certain(directory).copied().filter(|attr| is_plain(attr) && self.cache.is_bare(directory))
    }

    /// The chain that a change of names is told in, unless somebody waits for that, or something else comes first.
    fn chain_for(&self, directory: u64, naming: &Naming) -> Option<u64> {
        let chain = self.behind.chain_for(directory, naming)?;
        let is_plain = naming.goal().is_none() && chain == directory;
        let is_wanted = self.is_waited_for(chain) || self.recalls.awaits(chain);
        (!is_wanted && (is_plain || self.moves_between)).then_some(chain)
    }

    /// Whether the session has an inode exclusively, and may promise more of it.
    fn has_for_itself(&self, ino: u64) -> bool {
        self.cache.is_exclusive(ino) && self.may_promise() && !self.is_waited_for(ino)
    }

    pub(super) fn is_file(&self, ino: u64) -> bool {
        self.cache.memory.attr(ino).is_none_or(|attr| attr.mode.get() & libc::S_IFMT == libc::S_IFREG)
    }

    pub(super) fn is_directory(&self, ino: u64) -> bool {
        self.cache.memory.attr(ino).is_some_and(|attr| attr.mode.get() & libc::S_IFMT == libc::S_IFDIR)
    }

    /// What a request asks for, if all that it goes by is known.
    /// `goal`: the directory that a name moves to, if it is another one.
    fn naming(&mut self, request: &Request<'_>, goal: Option<&Attr>) -> Option<Naming> {
        let directory = request.header.nodeid;
        let name = |name: &[u8]| self.cache.memory.name(directory, name);
        let naming = |name: &[u8], ino, what| Some(Naming { name: name.to_vec(), ino, what });
        match request.body {
            Body::Unlink { name: gone } | Body::Rmdir { name: gone } => {
                let ino = name(gone)??;
                if matches!(request.body, Body::Unlink { .. }) && self.may_change_names(ino, 2) {
                    return naming(gone, ino, What::Unlinked);
                }
                let is_meant = self.is_directory(ino) == matches!(request.body, Body::Rmdir { .. });
                (is_meant && self.may_go(ino)).then(|| naming(gone, ino, What::Removed))?
            }
            Body::Link { ino, name: new } => {
                if name(new)?.is_some() || !self.may_change_names(ino, 1) || self.is_directory(ino) {
                    return None;
                }
                let attr = self.cache.memory.certain(ino)?;
                let links = attr.links.get() + 1;
                (links <= LINKS_MAX).then_some(())?;
                naming(new, ino, What::Linked(Attr { links: links.into(), ..*attr }))
            }
            Body::Rename { to, flags, old, new } => {
                let (ino, replaced) = (name(old)??, self.cache.memory.name(to, new)?);
                let goal = goal.map(|attr| Goal { directory: to, before_ns: attr.ctime_ns.get() });
                let may_move = self.may_change_names(ino, 1) && (goal.is_none() || self.may_go_elsewhere(ino, to));
                let may_replace = replaced.is_none_or(|replaced| {
                    flags == 0
                        && replaced != ino
                        && !self.is_directory(ino)
                        && !self.is_directory(replaced)
                        && self.may_go(replaced)
                });
                (may_move && may_replace).then(|| naming(old, ino, What::Moved { to: new.to_vec(), replaced, goal }))?
            }
            _ => {
                let (new, made) = translate::made(request)?;
                if name(new)?.is_some() {
                    return None;
                }
                self.may_make(request, &made).then_some(())?;
                let ino = self.numbers.first()?;
                // The kernel will keep something of it.
                self.state.remember_cached(ino).ok()?.then_some(())?;
                Some(Naming { name: new.to_vec(), ino, what: What::Made(made) })
            }
        }
    }

    fn may_make(&self, request: &Request<'_>, made: &Made) -> bool {
        let is_opened = matches!(request.body, Body::Create { .. });
        let is_possible = made.target.len() <= fs::SYMLINK_BYTES_MAX;
        is_possible && (!is_opened || self.cache.delegates(request.header.nodeid) && !self.is_full())
    }

    /// Whether an inode of so many names, or more, may have others without the server: what is promised of it comes
    /// first.
    fn may_change_names(&self, ino: u64, links: u32) -> bool {
        let Some(attr) = self.cache.memory.certain(ino) else { return false };
        let has_names = attr.links.get() >= links && (links < 2 || attr.mode.get() & libc::S_IFMT != libc::S_IFDIR);
        has_names && self.has_for_itself(ino) && self.behind.goes_with_name(ino)
    }

    /// Whether the server will not refuse to move it there, wherever other nodes move what is not had here: what is
    /// below a directory may be a way to the goal by then, but not where no directory is.
    fn may_go_elsewhere(&self, ino: u64, goal: u64) -> bool {
        let has_none = |attr: &Attr| attr.mode.get() & libc::S_IFMT != libc::S_IFDIR || attr.links.get() == 2;
        ino != goal && self.cache.memory.certain(ino).is_some_and(has_none)
    }

    /// Whether an inode may lose its last name without the server.
    fn may_go(&self, ino: u64) -> bool {
        let Some(attr) = self.cache.memory.certain(ino).copied() else { return false };
        if !self.has_for_itself(ino) {
            return false;
        }
        match attr.mode.get() & libc::S_IFMT {
            // What is promised of its names comes first.
            libc::S_IFDIR => attr.links.get() == 2 && self.cache.memory.is_empty(ino) && !self.behind.has(ino),
            _ => attr.links.get() == 1 && !self.state.is_open(ino),
        }
    }

    /// What is so from now on, for all that ask here.
    fn put_into_effect(&mut self, directory: u64, naming: &Naming, time_ns: u64) -> Result<(), GateError> {
        let Naming { name, ino, what } = naming;
        match what {
            What::Made(_) => {
                self.numbers.left.start = ino + 1;
                let Some(attr) = naming.made(time_ns) else { return Ok(()) };
                self.cache.memory.promise_attr(*ino, &attr);
                self.cache.memory.promise_name(directory, name, Some(*ino));
                if attr.mode.get() & libc::S_IFMT == libc::S_IFDIR {
                    self.cache.memory.promise_directory(*ino);
                }
            }
            What::Removed => {
                self.cache.memory.promise_name(directory, name, None);
                self.loses_name(*ino, time_ns)?;
            }
            What::Unlinked => {
                self.cache.memory.promise_name(directory, name, None);
                if let Some(attr) = self.cache.memory.attr(*ino).copied() {
                    let links = attr.links.get().saturating_sub(1).into();
                    self.cache.memory.promise_attr(*ino, &Attr { links, ctime_ns: time_ns.into(), ..attr });
                }
            }
            What::Linked(attr) => {
                self.cache.memory.promise_name(directory, name, Some(*ino));
                self.cache.memory.promise_attr(*ino, attr);
            }
            What::Moved { to, replaced, goal } => {
                let goal = goal.map_or(directory, |goal| goal.directory);
                self.cache.memory.promise_name(directory, name, None);
                self.cache.memory.promise_name(goal, to, Some(*ino));
                // The kernel moves what it knows of the old name to the new one.
                if self.names.is_told(directory, name) {
                    self.names.told(goal, to, Instant::now());
                }
                self.cache.found(*ino, goal);
                if let Some(attr) = self.cache.memory.attr(*ino).copied() {
                    self.cache.memory.promise_attr(*ino, &Attr { ctime_ns: time_ns.into(), ..attr });
                }
                if let Some(replaced) = replaced {
                    self.loses_name(*replaced, time_ns)?;
                }
            }
        }
        Ok(())
    }

    /// Nobody sees any more what was promised of it before.
    fn loses_name(&mut self, ino: u64, time_ns: u64) -> Result<(), GateError> {
        if let Some(attr) = self.cache.memory.attr(ino).copied() {
            self.cache.memory.promise_attr(ino, &Attr { links: 0.into(), ctime_ns: time_ns.into(), ..attr });
            self.cache.memory.forget_content(ino);
        }
        let of_no_use = self.behind.drop_untold(ino);
        self.forget_promises(&of_no_use)?;
        self.settle(&of_no_use, false, None);
        Ok(())
    }

    fn answer_naming(&mut self, request: &Request<'_>, naming: &Naming, time_ns: u64) -> Result<(), GateError> {
        let (unique, directory) = (request.header.unique, request.header.nodeid);
        let Some(attr) = naming.entry(time_ns) else { return self.answer(unique, 0, &[]) };
        let (cache, state, names) = (&mut self.cache, &mut self.state, &mut self.names);
        let (asked, now) = (Asked::at(cache.memory.now()), Instant::now());
        let name = Some(naming.name.as_slice());
        let mut completer = Completer { cache, state, names, name, is_current: true, asked, now };
        let entry = completer.entry(directory, name, &attr, OWN);
        let opened = match request.body {
            Body::Create { head, .. } => {
                let handle = Handle::delegated(naming.ino, request.key(), head.flags);
                // The table has room: that was looked at before.
                Some(completer.open(handle, true))
            }
            _ => None,
        };
        if naming.makes(naming.ino) {
            let is_file = attr.mode.get() & libc::S_IFMT == libc::S_IFREG;
            self.cache.set_exclusive(naming.ino, true);
            self.cache.set_unlocked(naming.ino, is_file);
        }
        match opened {
            Some(Some(open)) => self.answer(unique, 0, &[entry.as_bytes(), open.as_bytes()].concat()),
            Some(None) => self.answer(unique, -libc::EIO, &[]),
            None => self.answer(unique, 0, entry.as_bytes()),
        }
    }

    /// The same to what a dead gate had promised, and perhaps not answered. What it was the kernel may not keep.
    pub(super) fn answer_inherited(&mut self, request: &Request<'_>, attr: &Attr) -> Result<(), GateError> {
        let unique = request.header.unique;
        let entry = kernel::EntryOut { nodeid: attr.ino.get(), attr: kernel_attr(attr), ..kernel::EntryOut::default() };
        let Body::Create { head, .. } = request.body else { return self.answer(unique, 0, entry.as_bytes()) };
        let handle = Handle::delegated(attr.ino.get(), request.key(), head.flags);
        match self.of_what_is_known(None).open(handle, false) {
            Some(open) => self.answer(unique, 0, &[entry.as_bytes(), open.as_bytes()].concat()),
            None => self.answer(unique, -libc::EIO, &[]),
        }
    }

    /// Names that were promised are not there: nor is what they led to.
    pub(super) fn names_not_kept(&mut self, lost: &[Promise], errno: i32) {
        for promise in lost {
            let Change::Name(naming) = &promise.change else { continue };
            let (directory, name) = (promise.ino, String::from_utf8_lossy(&naming.name));
            match &naming.what {
                What::Made(_) | What::Linked(_) => {
                    tracing::error!(directory, ?name, "a name that its program was told to be there is lost");
                }
                What::Removed | What::Unlinked => {
                    tracing::error!(directory, ?name, "a name that its program was told to be gone is not");
                }
                What::Moved { to, goal, .. } => {
                    let (to, goal) = (String::from_utf8_lossy(to), goal.map_or(directory, |goal| goal.directory));
                    tracing::error!(directory, ?name, goal, ?to, "what its program was told to be moved is not");
                }
            }
            if naming.makes(naming.ino) {
                self.not_kept(naming.ino, errno);
            }
        }
    }

    /// What was made is there, and no lease of it came: the kernel may keep nothing.
    pub(super) fn leave_names(&mut self, told: &[Promise]) {
        for promise in told {
            if let Change::Name(Naming { ino, what: What::Made(_), .. }) = &promise.change {
                crate::notify::drop_attributes(&self.fuse, *ino);
                self.drop_pages(*ino, None, None, None);
                self.cache.unleased(*ino);
                // Nobody asks before it loses its last name elsewhere.
                if self.state.is_untold(*ino) {
                    self.owed.push(*ino);
                }
            }
        }
    }
}

/// What the directories of a change of names are after it. `None`: one has too many directories.
fn after(
    before: &Attr,
    goal: Option<&Attr>,
    naming: &Naming,
    time_ns: u64,
    is_directory: impl Fn(u64) -> bool,
) -> Option<[Option<Attr>; 2]> {
    let (more, less) = match &naming.what {
        What::Made(made) if made.mode & libc::S_IFMT == libc::S_IFDIR => (1, 0),
        What::Removed if is_directory(naming.ino) => (0, 1),
        What::Moved { goal: Some(_), .. } if is_directory(naming.ino) => (0, 1),
        _ => (0, 0),
    };
    let time = time_ns.into();
    let changed = |before: &Attr, more: u32, less: u32| {
        let links = (before.links.get() + more).checked_sub(less)?;
        (links <= LINKS_MAX).then(|| Attr { links: links.into(), mtime_ns: time, ctime_ns: time, ..*before })
    };
    let goal = match goal {
        Some(before) => Some(changed(before, less, 0)?),
        None => None,
    };
    Some([Some(changed(before, more, less)?), goal])
}
