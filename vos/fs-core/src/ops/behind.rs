//! Names that were changed before this server was told ([`vos_api::fs::Names`]).
//!
//! Its session had the directory exclusively, so they can be as it says; if not, because it was fenced meanwhile, none
//! of them is changed. One record for all, and the bytes of small files travel with it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use vos_api::fs::{
    self as api, BEHIND_COUNT_MAX, CONTENT_BYTES_MAX, Create, LINKS, MAKES, MOVES, MOVES_TO, NAMES_BYTES_MAX,
    NameChange, Names, OF, REMOVES,
};

use crate::alloc::Claim;
use crate::calls::{Job, Reply};
use crate::core::{Fs, Growth};
use crate::error::Errno;
use crate::leases::Touch;
use crate::linger::Orphan;
use crate::model::{DIRECTORY, KIND_MASK, REGULAR, SYMLINK, key1, tag};
use crate::ops::data::{Prepared, Writing};
use crate::ops::names::{self, Ends, Making, covered, special, unlink};
use crate::txn::{Txn, checked};

/// Numbers that a session is given at a time.
const NUMBERS: u64 = 1024;
/// One record has room for them, with what becomes of them.
const _: () = assert!(2 * NAMES_BYTES_MAX <= crate::log::RECORD_BYTES_MAX);

struct Changed<'a> {
    head: NameChange,
    parent: u64,
    name: &'a [u8],
    more: &'a [u8],
    /// Where a name moves to, and its new one.
    goal: Option<(u64, &'a [u8])>,
}

/// What one request tells.
struct Told<'a> {
    changes: Vec<Changed<'a>>,
    /// When the names of each directory were changed for the last time.
    times: BTreeMap<u64, u64>,
}

fn parse<'a>(it: &Names<'a>) -> Result<Told<'a>, Errno> {
    let (mut bytes, mut parent) = (it.changes, it.parent);
    let (mut changes, mut times) = (Vec::new(), BTreeMap::from([(parent, it.time_ns)]));
    while !bytes.is_empty() {
        let (head, [name, more, rest]) = NameChange::split(bytes).ok_or(Errno::Invalid)?;
        bytes = rest;
        if head.kind.get() == OF {
            parent = head.ino.get();
            times.insert(parent, head.time_ns.get());
            continue;
        }
        let goal = match head.kind.get() {
            MOVES => Some((parent, checked(more)?)),
            MOVES_TO => {
                let (directory, new) = more.split_first_chunk().ok_or(Errno::Invalid)?;
                Some((u64::from_le_bytes(*directory), checked(new)?))
            }
            _ => None,
        };
        changes.push(Changed { head, parent, name: checked(name)?, more, goal });
    }
    let short: usize = changes.iter().filter(|change| !change.is_file()).map(|it| it.name.len() + it.more.len()).sum();
    let are_few = changes.len() <= BEHIND_COUNT_MAX && times.len() <= BEHIND_COUNT_MAX;
    if are_few && short <= NAMES_BYTES_MAX { Ok(Told { changes, times }) } else { Err(Errno::Invalid) }
}

impl Changed<'_> {
    fn kind(&self) -> u32 {
        self.head.mode.get() & KIND_MASK
    }

    fn is_file(&self) -> bool {
        self.head.kind.get() == MAKES && self.kind() == REGULAR
    }

    /// Names that it is about, with their directories.
    fn names(&self) -> impl Iterator<Item = (u64, &[u8])> {
        [(self.parent, self.name)].into_iter().chain(self.goal)
    }
}

pub(super) fn touch(fs: &Fs, it: Names<'_>) -> Result<Touch, Errno> {
    let told = parse(&it)?;
    let mut touch = Touch { inos: told.times.keys().copied().collect(), ..Touch::default() };
    for change in &told.changes {
        for (parent, name) in change.names() {
            touch = fs.touch_child(touch.join(Touch::name(parent, name)), parent, name)?;
        }
        if change.head.kind.get() == LINKS {
            touch = touch.and(change.head.ino.get());
        }
    }
    Ok(touch)
}

pub(super) fn names(job: &Arc<Job>, touch: &Touch, it: Names<'_>) -> Result<(), Errno> {
    let (fs, session) = (&job.fs, job.call.session);
    let told = parse(&it)?;
    // What was promised has its room.
    let (claim, growth) = match it.marks & (api::BEHIND | api::PROMISED) {
        0 => (Claim::Normal, Growth::Grows),
        _ => (Claim::Behind, Growth::Owed),
    };
    let mut batch = Batch { touch, made: BTreeSet::new(), orphans: Vec::new() };
    let mut contents: Vec<Prepared> = Vec::new();
    let is_exclusive = it.marks & api::BEHIND != 0;
    fs.ask_for_metadata();
    let result = prepare(fs, &told.changes, claim, &mut contents).and_then(|()| {
        job.transact(growth, |txn| {
            let mut contents = contents.iter();
            for change in &told.changes {
                batch.apply(txn, change, || contents.next())?;
            }
            for (ino, time_ns) in &told.times {
                let mut directory = txn.directory(*ino)?;
                (directory.mtime_ns, directory.ctime_ns) = (*time_ns, directory.ctime_ns.max(*time_ns));
                txn.put_inode(*ino, &directory);
            }
            // Before anybody can see it.
            for ino in &batch.made {
                match is_exclusive {
                    true => fs.leases.made_behind(session, *ino),
                    false => fs.leases.grant_own(session, *ino),
                }
            }
            let directories = || told.times.keys().copied();
            Ok(Reply::default().lease_on(batch.made.iter().copied()).lease_on(directories()).names_of(directories()))
        })
    });
    match result {
        Ok(()) => batch.orphans.into_iter().for_each(|orphan| fs.linger(Some(orphan))),
        Err(_) => {
            contents.iter().for_each(|content| fs.give_back(&content.runs));
            fs.leases.removed(&batch.made.into_iter().collect::<Vec<_>>());
        }
    }
    result
}

/// Gives the bytes of files that are made their places.
fn prepare(fs: &Fs, changes: &[Changed<'_>], claim: Claim, contents: &mut Vec<Prepared>) -> Result<(), Errno> {
    for change in changes.iter().filter(|change| change.is_file() && !change.more.is_empty()) {
        if change.more.len() as u64 > CONTENT_BYTES_MAX {
            return Err(Errno::Invalid);
        }
        contents.push(fs.prepare_new(change.more, claim, Writing::Together)?);
    }
    Ok(())
}

struct Batch<'a> {
    touch: &'a Touch,
    /// Inodes that are new with it.
    made: BTreeSet<u64>,
    orphans: Vec<Orphan>,
}

impl<'a> Batch<'a> {
    fn apply<'b>(
        &mut self,
        txn: &mut Txn<'_>,
        change: &Changed<'_>,
        content: impl FnOnce() -> Option<&'b Prepared>,
    ) -> Result<(), Errno> {
        let (ino, time_ns) = (change.head.ino.get(), change.head.time_ns.get());
        match change.head.kind.get() {
            MAKES => self.make(txn, change, content),
            REMOVES => {
                let entry = txn.entry(change.parent, change.name)?.ok_or(Errno::NoEntry)?;
                self.covered(entry.ino)?;
                if entry.ino != ino {
                    return Err(Errno::Gone);
                }
                let before = txn.inode(ino)?;
                self.orphans.extend(unlink(txn, change.parent, change.name, entry, time_ns)?);
                if before.is_dir() || before.links == 1 {
                    self.made.remove(&ino);
                    return Ok(());
                }
                keep_later(txn, ino, before.ctime_ns)
            }
            LINKS => {
                self.covered(ino)?;
                let before_ns = txn.inode(ino)?.ctime_ns;
                names::add_link(txn, ino, change.parent, change.name, time_ns)?;
                keep_later(txn, ino, before_ns)
            }
            MOVES | MOVES_TO => {
                let (old, new) = ((change.parent, change.name), change.goal.ok_or(Errno::Invalid)?);
                if old == new {
                    return Err(Errno::Invalid);
                }
                txn.directory(new.0)?;
                let source = txn.entry(old.0, old.1)?.ok_or(Errno::NoEntry)?;
                let target = txn.entry(new.0, new.1)?;
                self.covered(source.ino)?;
                if source.ino != ino {
                    return Err(Errno::Gone);
                }
                if let Some(target) = target {
                    self.covered(target.ino)?;
                    self.made.remove(&target.ino);
                }
                let before_ns = txn.inode(ino)?.ctime_ns;
                let ends = Ends { parents: [old.0, new.0], names: [old.1, new.1], time_ns };
                self.orphans.extend(names::replace(txn, &ends, source, target)?);
                keep_later(txn, ino, before_ns)
            }
            _ => Err(Errno::Invalid),
        }
    }

    fn make<'b>(
        &mut self,
        txn: &mut Txn<'_>,
        change: &Changed<'_>,
        content: impl FnOnce() -> Option<&'b Prepared>,
    ) -> Result<(), Errno> {
        let head = &change.head;
        let ino = head.ino.get();
        // A number that this server never gave to anybody, or that is taken, is a mistake of its client.
        if ino <= api::ROOT || ino >= txn.counters.next_ino || txn.get(&key1(tag::INODE, ino))?.is_some() {
            return Err(Errno::Exists);
        }
        if txn.entry(change.parent, change.name)?.is_some() {
            return Err(Errno::Exists);
        }
        let kind = match change.kind() {
            kind @ (DIRECTORY | SYMLINK) => kind,
            _ => special(head.mode.get())?,
        };
        let target = if kind == SYMLINK { change.more } else { &[] };
        let create = Create { mode: head.mode, uid: head.uid, gid: head.gid, rdev: head.rdev, time_ns: head.time_ns };
        let mode = head.mode.get() & 0o7777 | kind;
        let making = Making::behind(change.parent, (create, mode), (change.name, target), ino);
        names::make(txn, &making)?;
        if change.is_file() && !change.more.is_empty() {
            content().ok_or(Errno::Io)?.finish(txn, ino, None)?;
        }
        let mut inode = txn.inode(ino)?;
        (inode.mode, inode.uid, inode.gid) = (mode, head.uid.get(), head.gid.get());
        (inode.atime_ns, inode.mtime_ns) = (head.atime_ns.get(), head.mtime_ns.get());
        inode.ctime_ns = head.ctime_ns.get();
        txn.put_inode(ino, &inode);
        self.made.insert(ino);
        Ok(())
    }

    fn covered(&self, ino: u64) -> Result<(), Errno> {
        if self.made.contains(&ino) { Ok(()) } else { covered(self.touch, ino) }
    }
}

/// What was promised of it later may have been told before.
fn keep_later(txn: &mut Txn<'_>, ino: u64, before_ns: u64) -> Result<(), Errno> {
    let mut inode = txn.inode(ino)?;
    inode.ctime_ns = inode.ctime_ns.max(before_ns);
    txn.put_inode(ino, &inode);
    Ok(())
}

impl Fs {
    /// Numbers of inodes that the session may make before it tells. They are never used for anything else, also after
    /// the loss of what was not synced.
    pub(crate) fn grant_numbers(&self, session: u64) -> Result<Reply, Errno> {
        let mut first = 0;
        self.transact_quietly(|txn| {
            self.check_session(session)?;
            first = txn.counters.next_ino;
            txn.counters.next_ino += NUMBERS;
            // A record without a change is none.
            let key = key1(tag::SESSION, session);
            let kept = txn.get(&key)?.ok_or(Errno::Stale)?;
            txn.put(key, kept);
            Ok(())
        })?;
        self.log.settle()?;
        self.sync()?;
        Ok(Reply::done(api::Numbered { first, count: NUMBERS }))
    }
}
