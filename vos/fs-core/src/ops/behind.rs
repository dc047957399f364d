//! Names that were changed before this server was told ([`vos_api::fs::Names`]).
//!
//! Its session had the directory exclusively, so they can be as it says; if not, because it was fenced meanwhile, none
//! of them is changed. One record for all, and the bytes of small files travel with it.

use std::collections::BTreeSet;
use std::sync::Arc;

use vos_api::fs::{
    self as api, BEHIND_COUNT_MAX, CONTENT_BYTES_MAX, Create, LINKS, MAKES, MOVES, NameChange, Names, REMOVES,
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
/// Bytes of names and what follows them in one request: what they become is below what a record may have.
const BYTES_MAX: usize = 256 << 10;

struct Changed<'a> {
    head: NameChange,
    name: &'a [u8],
    more: &'a [u8],
}

fn parse(mut bytes: &[u8]) -> Result<Vec<Changed<'_>>, Errno> {
    let mut changes = Vec::new();
    while !bytes.is_empty() {
        let (head, [name, more, rest]) = NameChange::split(bytes).ok_or(Errno::Invalid)?;
        changes.push(Changed { head, name: checked(name)?, more });
        bytes = rest;
    }
    let short: usize = changes.iter().filter(|change| !change.is_file()).map(|it| it.name.len() + it.more.len()).sum();
    let is_bounded = changes.len() <= BEHIND_COUNT_MAX && short <= BYTES_MAX;
    if is_bounded { Ok(changes) } else { Err(Errno::Invalid) }
}

impl Changed<'_> {
    fn kind(&self) -> u32 {
        self.head.mode.get() & KIND_MASK
    }

    fn is_file(&self) -> bool {
        self.head.kind.get() == MAKES && self.kind() == REGULAR
    }
}

pub(super) fn touch(fs: &Fs, it: Names<'_>) -> Result<Touch, Errno> {
    let mut touch = Touch::inode(it.parent);
    for change in parse(it.changes)? {
        let names = match change.head.kind.get() {
            MOVES => vec![change.name, checked(change.more)?],
            _ => vec![change.name],
        };
        for name in names {
            touch = fs.touch_child(touch.join(Touch::name(it.parent, name)), it.parent, name)?;
        }
        if change.head.kind.get() == LINKS {
            touch = touch.and(change.head.ino.get());
        }
    }
    Ok(touch)
}

pub(super) fn names(job: &Arc<Job>, touch: &Touch, it: Names<'_>) -> Result<(), Errno> {
    let (fs, session) = (&job.fs, job.call.session);
    let changes = parse(it.changes)?;
    // What was promised has its room.
    let (claim, growth) = match it.marks & (api::BEHIND | api::PROMISED) {
        0 => (Claim::Normal, Growth::Grows),
        _ => (Claim::Behind, Growth::Owed),
    };
    let mut batch = Batch { parent: it.parent, touch, made: BTreeSet::new(), orphans: Vec::new() };
    let mut contents: Vec<Prepared> = Vec::new();
    let is_exclusive = it.marks & api::BEHIND != 0;
    fs.ask_for_metadata();
    let result = prepare(fs, &changes, claim, &mut contents).and_then(|()| {
        job.transact(growth, |txn| {
            let mut contents = contents.iter();
            for change in &changes {
                batch.apply(txn, change, || contents.next())?;
            }
            let mut directory = txn.directory(it.parent)?;
            (directory.mtime_ns, directory.ctime_ns) = (it.time_ns, directory.ctime_ns.max(it.time_ns));
            txn.put_inode(it.parent, &directory);
            // Before anybody can see it.
            for ino in &batch.made {
                match is_exclusive {
                    true => fs.leases.made_behind(session, *ino),
                    false => fs.leases.grant_own(session, *ino),
                }
            }
            Ok(Reply::default().lease_on(batch.made.iter().copied()).lease_on([it.parent]).names_of(it.parent))
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
    parent: u64,
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
                let entry = txn.entry(self.parent, change.name)?.ok_or(Errno::NoEntry)?;
                self.covered(entry.ino)?;
                if entry.ino != ino {
                    return Err(Errno::Gone);
                }
                let before = txn.inode(ino)?;
                self.orphans.extend(unlink(txn, self.parent, change.name, entry, time_ns)?);
                if before.is_dir() || before.links == 1 {
                    self.made.remove(&ino);
                    return Ok(());
                }
                keep_later(txn, ino, before.ctime_ns)
            }
            LINKS => {
                self.covered(ino)?;
                let before_ns = txn.inode(ino)?.ctime_ns;
                names::add_link(txn, ino, self.parent, change.name, time_ns)?;
                keep_later(txn, ino, before_ns)
            }
            MOVES => {
                if change.name == change.more {
                    return Err(Errno::Invalid);
                }
                let source = txn.entry(self.parent, change.name)?.ok_or(Errno::NoEntry)?;
                let target = txn.entry(self.parent, change.more)?;
                self.covered(source.ino)?;
                if source.ino != ino {
                    return Err(Errno::Gone);
                }
                if let Some(target) = target {
                    self.covered(target.ino)?;
                    self.made.remove(&target.ino);
                }
                let before_ns = txn.inode(ino)?.ctime_ns;
                let ends = Ends { parents: [self.parent; 2], names: [change.name, change.more], time_ns };
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
        if txn.entry(self.parent, change.name)?.is_some() {
            return Err(Errno::Exists);
        }
        let kind = match change.kind() {
            kind @ (DIRECTORY | SYMLINK) => kind,
            _ => special(head.mode.get())?,
        };
        let target = if kind == SYMLINK { change.more } else { &[] };
        let create = Create { mode: head.mode, uid: head.uid, gid: head.gid, rdev: head.rdev, time_ns: head.time_ns };
        let mode = head.mode.get() & 0o7777 | kind;
        let making = Making::behind(self.parent, (create, mode), (change.name, target), ino);
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
