//! Completions of the fs server become answers to the kernel.
//!
//! What comes from the server is copied, then checked: attributes that are too short or entries that make no sense are
//! `EIO`, never a panic. Leases noted here decide how long the kernel may keep what it is told.

use std::time::{Duration, Instant};

use vos_api::fs;
use zerocopy::{FromBytes, IntoBytes};

use crate::backend::{Done, ReplyData};
use crate::cache::{ATTR_TIMEOUT, Cache, Keep, NAME_VALID, Use};
use crate::extents::Sought;
use crate::kernel::{self, fopen};
use crate::memory::Moment;
use crate::names::Names;
use crate::request::Plus;
use crate::state::{Handle, State};
use crate::translate::{Probe, Then};

/// Largest errno of Linux; anything above is nonsense.
const ERRNO_MAX: u32 = 4095;
const EEXIST: u32 = libc::EEXIST as u32;
/// There is no such inode.
const GONE: u32 = libc::EIDRM as u32;

#[derive(Debug, PartialEq, Eq)]
pub enum FuseReply {
    Errno(i32),
    Bytes(Vec<u8>),
    /// The first bytes of the completion's data, as they are.
    Data {
        bytes: usize,
    },
}

/// What else is to be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum After {
    Nothing,
    /// The request has a next step; there is no answer yet.
    Next,
    /// The answer is of before what programs were answered meanwhile: ask once more.
    Again,
    /// The server has this inode open for those of ours that it was not told of.
    Stands {
        ino: u64,
        handle: u64,
    },
    /// What the kernel has of this file is wrong (it guessed where an append would go): it must be dropped first.
    DropPages {
        ino: u64,
    },
    /// The bytes that were read or written are not covered by a lease. The answer must be given first: their pages may
    /// be locked until then.
    DropBytes,
}

pub struct Completer<'a> {
    pub cache: &'a mut Cache,
    pub state: &'a mut State,
    pub names: &'a mut Names,
    /// What the request calls the inode that is told of.
    pub name: Option<&'a [u8]>,
    /// No extended attribute was changed here since the operation was submitted: what it says of their absence counts.
    pub is_current: bool,
    /// Since when what the answer says can be learnt.
    pub asked: Asked<'a>,
    pub now: Instant,
}

/// When something was asked. What a change itself touched can be learnt since it ended, if no other was under way.
#[derive(Clone, Copy)]
pub struct Asked<'a> {
    pub at: Moment,
    pub ended: Moment,
    pub touched: &'a [u64],
}

impl Asked<'_> {
    pub fn at(at: Moment) -> Asked<'static> {
        Asked { at, ended: at, touched: &[] }
    }

    fn of(&self, ino: u64) -> Moment {
        if self.touched.contains(&ino) { self.ended } else { self.at }
    }
}

/// What a change touched besides what its request named. 0: the server did not say.
pub fn touched_by(then: Then, results: [u64; 4]) -> Vec<u64> {
    match then {
        Then::Removed { .. } => vec![fs::Removed::from(results).ino],
        Then::Renamed { .. } => {
            let fs::Renamed { ino, replaced, .. } = results.into();
            if replaced == 0 { vec![ino] } else { vec![ino, replaced] }
        }
        _ => Vec::new(),
    }
}

impl Completer<'_> {
    /// `ino` is the inode the request named.
    pub fn finish<D: ReplyData>(&mut self, ino: u64, then: Then, done: &Done<D>) -> (FuseReply, After) {
        match then {
            // Then it is opened.
            Then::Made { flags, .. } if done.status == EEXIST && flags & libc::O_EXCL as u32 == 0 => {
                return (FuseReply::Errno(0), After::Next);
            }
            _ if done.status != 0 => return (self.failed(ino, then, done), After::Nothing),
            // The kernel asked after those answers, and would believe what it is told.
            Then::Lookup | Then::Attr if self.is_overtaken(done) => return (FuseReply::Errno(0), After::Again),
            _ => {}
        }
        match then {
            Then::Made { flags, key } => return self.made(ino, (flags, key), done),
            Then::Told { fh } => return self.told(ino, fh, fs::Opened::from(done.results).handle),
            Then::Write { bytes, append, offset } => return self.write(ino, (bytes, append, offset), done),
            _ => {}
        }
        let answer = self.succeeded(ino, then, done).unwrap_or(FuseReply::Errno(libc::EIO));
        let after = match then {
            Then::Read { alone, .. } => self.read(ino, alone, done.results),
            Then::Removed { .. } | Then::Renamed { .. } => kept(then, done.results),
            _ => After::Nothing,
        };
        (answer, after)
    }

    fn failed<D>(&mut self, ino: u64, then: Then, done: &Done<D>) -> FuseReply {
        let errno = match done.status {
            // The kernel holds an old name: told so, it looks the name up and tries again.
            GONE => libc::ESTALE,
            errno @ ..=ERRNO_MAX => errno as i32,
            _ => libc::EIO,
        };
        match then {
            Then::Lookup if errno == libc::ENOENT && self.lease(ino, done.results) => {
                if let Some(name) = self.name {
                    self.cache.memory.learn_name(ino, name, None, self.asked.of(ino));
                }
                self.absent(ino)
            }
            Then::Xattr { probe: Probe::Capability, .. } if errno == libc::ENODATA && self.is_current => {
                self.cache.capability_absent(ino);
                FuseReply::Errno(errno)
            }
            // The file is closed for the kernel, whatever the server thinks of it.
            Then::Release { fh } => self.closed(fh).unwrap_or(FuseReply::Errno(libc::EIO)),
            _ => FuseReply::Errno(errno),
        }
    }

    /// There is no such name in this directory, of which we have a lease.
    pub fn absent(&mut self, parent: u64) -> FuseReply {
        if !self.trusts(parent, self.name) {
            return FuseReply::Errno(libc::ENOENT);
        }
        let mut entry = kernel::EntryOut::default();
        (entry.entry_valid, entry.entry_valid_nsec) = split(NAME_VALID);
        bytes(&entry)
    }

    fn succeeded<D: ReplyData>(&mut self, ino: u64, then: Then, done: &Done<D>) -> Option<FuseReply> {
        let results = done.results;
        Some(match then {
            Then::Empty
            | Then::Told { .. }
            | Then::Stands
            | Then::Behind
            | Then::Looks
            | Then::Opens { .. }
            | Then::Waits
            | Then::Made { .. }
            | Then::Removed { .. }
            | Then::Renamed { .. }
            | Then::Lock { .. } => FuseReply::Errno(0),
            Then::Changed => {
                self.cache.attributes_changed(ino);
                FuseReply::Errno(0)
            }
            Then::Unlocked { owner } => {
                self.cache.unlocked(ino, owner);
                FuseReply::Errno(0)
            }
            Then::Lookup | Then::Entry => {
                let attr = attr_of(&done.data)?;
                let entry = self.entry(ino, self.name, &attr, results);
                let made = attr.ino.get();
                if then == Then::Entry && self.cache.is_leased(made) && kind_of(&attr) == libc::S_IFDIR {
                    self.cache.memory.learn_empty(made, self.asked.of(made));
                }
                bytes(&entry)
            }
            Then::Attr => {
                let attr = attr_of(&done.data)?;
                let leased = self.lease_of(ino, &attr, results);
                let is_kept = leased && self.cache.memory.promised(ino).is_none();
                let attr = self.cache.memory.newest(&attr, self.asked.at).unwrap_or(attr);
                bytes(&attributes(&attr, is_kept))
            }
            Then::Set => {
                let attr = attr_of(&done.data)?;
                self.lease_of(ino, &attr, results);
                bytes(&attributes(&attr, false))
            }
            Then::Linked => {
                let entry = self.entry(ino, self.name, &attr_of(&done.data)?, results);
                bytes(&kernel::EntryOut { attr_valid: 0, attr_valid_nsec: 0, ..entry })
            }
            Then::Bytes => FuseReply::Data { bytes: done.data.len() },
            Then::Open { ino, flags } => {
                let leased = self.lease(ino, results);
                let handle = Handle { ino, fs_handle: fs::Opened::from(results).handle, flags };
                bytes(&self.open(handle, leased)?)
            }
            Then::Create { flags } => {
                let attr = attr_of(&done.data)?;
                let entry = self.entry(ino, self.name, &attr, results);
                let ino = attr.ino.get();
                let leased = self.lease(ino, results);
                let open = self.open(Handle { ino, fs_handle: fs::Opened::from(results).handle, flags }, leased)?;
                FuseReply::Bytes([entry.as_bytes(), open.as_bytes()].concat())
            }
            Then::Read { bytes, .. } => FuseReply::Data { bytes: done.data.len().min(bytes as usize) },
            Then::Write { .. } => return None,
            Then::Copy => {
                bytes(&kernel::WriteOut { size: u32::try_from(fs::Copied::from(results).bytes).ok()?, padding: 0 })
            }
            Then::Placed => {
                self.cache.listing_changed(ino);
                bytes(&kernel::IoctlOut::default())
            }
            Then::Statfs => bytes(&statfs(results.into())),
            Then::Xattr { room, .. } => xattr(room, done)?,
            Then::Readdir { room, plus, cookie } => {
                FuseReply::Bytes(self.directory(ino, done, Page { room: room as usize, plus, cookie })?)
            }

            Then::Getlk => bytes(&conflicting(&done.data)?),
            Then::Lseek { offset, whence } => {
                let found = fs::Offset::from(results).offset;
                if let Some(sought) = Sought::of(whence).filter(|_| self.lease(ino, results)) {
                    self.cache.memory.learn_extent(ino, (offset, sought, found), self.asked.of(ino));
                }
                bytes(&kernel::LseekOut { offset: found })
            }
            Then::Release { fh } => self.closed(fh)?,
        })
    }

    fn is_overtaken<D: ReplyData>(&self, done: &Done<D>) -> bool {
        attr_of(&done.data).is_some_and(|attr| self.cache.memory.newest(&attr, self.asked.at).is_none())
    }

    /// A file that nobody else knows yet. Without a lease the server opens it, in a further step.
    fn made<D: ReplyData>(&mut self, parent: u64, (flags, key): (u32, u64), done: &Done<D>) -> (FuseReply, After) {
        let Some(attr) = attr_of(&done.data) else { return (FuseReply::Errno(libc::EIO), After::Nothing) };
        let (ino, entry) = (attr.ino.get(), self.entry(parent, self.name, &attr, done.results));
        let leased = self.lease(ino, done.results) && self.cache.delegates(ino);
        // A gate that died between the table and the answer had opened it.
        if !leased && self.state.delegated(ino, key).is_none() {
            return (FuseReply::Errno(0), After::Next);
        }
        let answer = match self.open(Handle::delegated(ino, key, flags), leased) {
            Some(open) => FuseReply::Bytes([entry.as_bytes(), open.as_bytes()].concat()),
            None => FuseReply::Errno(libc::EIO),
        };
        (answer, After::Nothing)
    }

    fn told(&mut self, ino: u64, fh: u64, handle: u64) -> (FuseReply, After) {
        if self.state.handle(fh).is_none() {
            // Closed meanwhile, so whoever wanted the lock is gone.
            return (FuseReply::Errno(libc::EBADF), After::Stands { ino, handle });
        }
        match self.state.replace(fh, handle) {
            Ok(()) => (FuseReply::Errno(0), After::Next),
            Err(_) => (FuseReply::Errno(libc::EIO), After::Nothing),
        }
    }

    fn closed(&mut self, fh: u64) -> Option<FuseReply> {
        self.cache.closed(fh);
        self.state.leave(fh).ok()?;
        Some(FuseReply::Errno(0))
    }

    fn write<D: ReplyData>(
        &mut self,
        ino: u64,
        (bytes, append, offset): (u32, bool, u64),
        done: &Done<D>,
    ) -> (FuseReply, After) {
        let fs::Written { bytes: written, size } = done.results.into();
        let Some(size_written) = u32::try_from(written).ok().filter(|&written| written <= bytes) else {
            return (FuseReply::Errno(libc::EIO), After::Nothing);
        };
        self.cache.written(ino);
        let out = kernel::WriteOut { size: size_written, padding: 0 };
        let elsewhere = append && size.checked_sub(written) != Some(offset);
        let is_leased = self.lease(ino, done.results);
        if let Some(attr) = attr_of(&done.data).filter(|_| is_leased) {
            self.cache.memory.learn(ino, &attr, self.asked.of(ino));
        }
        let after = match is_leased {
            _ if elsewhere => After::DropPages { ino },
            true => After::Nothing,
            false => After::DropBytes,
        };
        (FuseReply::Bytes(out.as_bytes().to_vec()), after)
    }

    fn read(&mut self, ino: u64, alone: bool, results: [u64; 4]) -> After {
        if !self.lease(ino, results) {
            return After::DropBytes;
        }
        if !alone {
            self.cache.read_with_others(ino);
        }
        After::Nothing
    }

    /// Whether the kernel may trust the name for a while; noted before the kernel is told. Not in a directory for which
    /// nodes take turns: taking a name back needs the directory's lock, which one of our own changes may hold while it
    /// waits for another node that waits for us.
    fn trusts(&mut self, parent: u64, name: Option<&[u8]>) -> bool {
        let Some(name) = name.filter(|_| !self.cache.is_contested(parent, self.now)) else { return false };
        self.names.told(parent, name, self.now);
        true
    }

    /// `leased`: the kernel may keep what it has of the file and what it will be told.
    pub fn open(&mut self, handle: Handle, leased: bool) -> Option<kernel::OpenOut> {
        let Handle { ino, flags, .. } = handle;
        let fh = self.state.enter(handle).ok()?;
        let used = if self.state.is_writable(ino) { Use::Mapping } else { Use::Reading };
        let keep = self.cache.opened(ino, leased, used);
        let appends = flags & libc::O_APPEND as u32 != 0;
        let writes_only = flags & libc::O_ACCMODE as u32 == libc::O_WRONLY as u32;
        // Where an append goes only the server knows, so the kernel must not keep pages of it. Such a file cannot be
        // mapped anyway.
        let open_flags = match keep {
            _ if appends && writes_only => fopen::DIRECT_IO,
            Keep::Keep => fopen::KEEP_CACHE,
            Keep::Drop => 0,
        };
        Some(kernel::OpenOut { fh, open_flags, backing_id: 0 })
    }

    pub fn entry(&mut self, parent: u64, name: Option<&[u8]>, attr: &fs::Attr, results: [u64; 4]) -> kernel::EntryOut {
        let ino = attr.ino.get();
        let leased = self.lease_of(ino, attr, results);
        let attr = self.cache.memory.newest(attr, self.asked.at).unwrap_or(*attr);
        if leased {
            self.cache.found(ino, parent);
        }
        if let Some(name) = name.filter(|_| leased && self.lease(parent, results)) {
            self.cache.memory.learn_name(parent, name, Some(ino), self.asked.of(parent));
        }
        let is_certain = self.cache.memory.promised(ino).is_none() || kind_of(&attr) == libc::S_IFDIR;
        let attributes = attributes(&attr, leased && is_certain);
        let is_trusted = leased && self.trusts(parent, name);
        let (entry_valid, entry_valid_nsec) = if is_trusted { split(NAME_VALID) } else { (0, 0) };
        kernel::EntryOut {
            nodeid: ino,
            generation: 0,
            entry_valid,
            attr_valid: attributes.attr_valid,
            entry_valid_nsec,
            attr_valid_nsec: attributes.attr_valid_nsec,
            attr: attributes.attr,
        }
    }

    /// Whether the kernel may keep what it is told of `ino`; noted before it is told.
    fn lease(&mut self, ino: u64, results: [u64; 4]) -> bool {
        let leased = results[3] & fs::LEASE != 0 && self.state.remember_cached(ino).unwrap_or(false);
        if leased {
            self.cache.granted(ino);
            if results[3] & fs::DELEGATES != 0 {
                self.cache.delegated(ino);
            }
        }
        leased
    }

    fn lease_of(&mut self, ino: u64, attr: &fs::Attr, results: [u64; 4]) -> bool {
        let leased = self.lease(ino, results);
        if leased {
            self.cache.memory.learn(ino, attr, self.asked.of(ino));
        }
        if leased && self.is_current && attr.marks.get() & fs::BARE != 0 {
            self.cache.told_bare(ino);
        }
        leased
    }

    /// A page of a directory that the kernel did not ask for. Answers where it ends, and how many contents it has;
    /// `None` when nothing can be learnt of it.
    pub fn learn_page<D: ReplyData>(&mut self, directory: u64, from: u64, done: &Done<D>) -> Option<(u64, u32)> {
        if done.status != 0 || !self.lease(directory, done.results) {
            return None;
        }
        let listing = done.data.to_vec();
        let (mut rest, mut last, mut contents) = (listing.as_slice(), from, 0);
        while !rest.is_empty() {
            let listed = next_entry(rest, Plus::WithAttributes)?;
            let attr = listed.attr.filter(is_sensible)?;
            let ino = attr.ino.get();
            // Also of what cannot be kept: that the directory is whole says of every name.
            self.cache.memory.learn_name(directory, listed.name, Some(ino), self.asked.of(directory));
            if self.lease_of(ino, &attr, done.results)
                && let Some(content) = listed.content
            {
                self.cache.memory.learn_content(ino, content, self.asked.of(ino));
                self.cache.found(ino, directory);
                contents += 1;
            }
            (rest, last) = (listed.rest, listed.entry.cookie.get());
        }
        let is_end = fs::Page::from(done.results).is_end == 1;
        self.cache.memory.read_page(directory, (from, last), is_end, self.asked.of(directory));
        Some((last, contents))
    }

    /// The kernel's form of a listing: as many whole entries as fit.
    fn directory<D: ReplyData>(&mut self, ino: u64, done: &Done<D>, page: Page) -> Option<Vec<u8>> {
        let listing = done.data.to_vec();
        let mut rest = listing.as_slice();
        let mut out = Vec::with_capacity(page.room.min(2 * listing.len() + 256));
        // fs leaves the first two cookies to us.
        for (cookie, name, entry_ino) in [(1, &b"."[..], ino), (2, b"..", UNKNOWN_INO)] {
            if page.cookie < cookie {
                let head = kernel::Dirent { ino: entry_ino, off: cookie, namelen: name.len() as u32, kind: DIRECTORY };
                let plus = page.plus == Plus::WithAttributes;
                push_entry(&mut out, plus.then(kernel::EntryOut::default).as_ref(), &head, name);
            }
        }
        while !rest.is_empty() {
            let Listed { entry, name, attr, rest: after, .. } = next_entry(rest, page.plus)?;
            let head = kernel::Dirent {
                ino: entry.ino.get(),
                off: entry.cookie.get(),
                namelen: name.len() as u32,
                kind: entry.kind.get(),
            };
            let plus_bytes = if attr.is_some() { size_of::<kernel::EntryOut>() } else { 0 };
            if out.len() + plus_bytes + size_of::<kernel::Dirent>() + name.len().next_multiple_of(8) > page.room {
                break;
            }
            // Without a lease they may be older than a change for which the kernel has dropped what it kept. With zeros
            // it is told none, and looks the name up when it needs them, which it would have to do anyway.
            let plus = attr.map(|attr| match done.results[3] & fs::LEASE {
                0 => kernel::EntryOut::default(),
                _ if self.cache.memory.newest(&attr, self.asked.at).is_none() => kernel::EntryOut::default(),
                _ => self.entry(ino, Some(name), &attr, done.results),
            });
            push_entry(&mut out, plus.as_ref(), &head, name);
            rest = after;
        }
        Some(out)
    }
}

/// What the server keeps open because a last name of it is gone.
pub fn kept(then: Then, results: [u64; 4]) -> After {
    let (ino, handle) = match then {
        Then::Removed { .. } => {
            let fs::Removed { ino, handle } = results.into();
            (ino, handle)
        }
        Then::Renamed { .. } => {
            let fs::Renamed { replaced, handle, .. } = results.into();
            (replaced, handle)
        }
        _ => return After::Nothing,
    };
    if handle == 0 { After::Nothing } else { After::Stands { ino, handle } }
}

/// What a listing was asked for.
#[derive(Clone, Copy)]
struct Page {
    room: usize,
    plus: Plus,
    cookie: u64,
}

/// The kernel knows the parent better.
const UNKNOWN_INO: u64 = u32::MAX as u64;
/// Type of an entry: `S_IFDIR >> 12`.
const DIRECTORY: u32 = 4;

fn push_entry(out: &mut Vec<u8>, plus: Option<&kernel::EntryOut>, head: &kernel::Dirent, name: &[u8]) {
    out.extend_from_slice(plus.map(IntoBytes::as_bytes).unwrap_or_default());
    out.extend_from_slice(head.as_bytes());
    out.extend_from_slice(name);
    out.resize(out.len().next_multiple_of(8), 0);
}

struct Listed<'a> {
    entry: fs::DirEntry,
    name: &'a [u8],
    attr: Option<fs::Attr>,
    content: Option<&'a [u8]>,
    rest: &'a [u8],
}

fn next_entry(bytes: &[u8], plus: Plus) -> Option<Listed<'_>> {
    let (entry, rest) = fs::DirEntry::read_from_prefix(bytes).ok()?;
    let name_bytes = entry.name_bytes.get() as usize;
    if name_bytes == 0 || name_bytes > fs::NAME_BYTES_MAX {
        return None;
    }
    let name = rest.get(..name_bytes)?;
    let rest = rest.get(name_bytes.next_multiple_of(8)..)?;
    match plus {
        Plus::Names => Some(Listed { entry, name, attr: None, content: None, rest }),
        Plus::WithAttributes => {
            let (mut attr, mut rest) = fs::Attr::read_from_prefix(rest).ok()?;
            let mut content = None;
            if attr.marks.get() & fs::CONTENT != 0 {
                let bytes = usize::try_from(attr.bytes.get()).ok().filter(|bytes| *bytes <= CONTENT_BYTES_MAX)?;
                content = Some(rest.get(..bytes)?);
                rest = rest.get(bytes.next_multiple_of(8)..)?;
                attr.marks = (attr.marks.get() & !fs::CONTENT).into();
            }
            Some(Listed { entry, name, attr: Some(attr), content, rest })
        }
    }
}

const CONTENT_BYTES_MAX: usize = fs::CONTENT_BYTES_MAX as usize;

pub fn attributes(attr: &fs::Attr, leased: bool) -> kernel::AttrOut {
    let (attr_valid, attr_valid_nsec) = if leased { split(ATTR_TIMEOUT) } else { (0, 0) };
    kernel::AttrOut { attr_valid, attr_valid_nsec, dummy: 0, attr: kernel_attr(attr) }
}

fn bytes(value: &(impl IntoBytes + zerocopy::Immutable)) -> FuseReply {
    FuseReply::Bytes(value.as_bytes().to_vec())
}

fn split(timeout: Duration) -> (u64, u32) {
    (timeout.as_secs(), timeout.subsec_nanos())
}

pub fn attr_of(data: &impl ReplyData) -> Option<fs::Attr> {
    let mut bytes = [0; size_of::<fs::Attr>()];
    if !data.copy_to(&mut bytes) {
        return None;
    }
    fs::Attr::read_from_bytes(&bytes).ok().filter(is_sensible)
}

fn kind_of(attr: &fs::Attr) -> u32 {
    attr.mode.get() & libc::S_IFMT
}

/// Without a number or a type the kernel would mark the inode bad for good.
fn is_sensible(attr: &fs::Attr) -> bool {
    let is_file = matches!(
        kind_of(attr),
        libc::S_IFREG | libc::S_IFDIR | libc::S_IFLNK | libc::S_IFIFO | libc::S_IFSOCK | libc::S_IFCHR | libc::S_IFBLK
    );
    attr.ino.get() != 0 && is_file
}

pub fn kernel_attr(attr: &fs::Attr) -> kernel::Attr {
    const SECOND: u64 = 1_000_000_000;
    let (atime, mtime, ctime) = (attr.atime_ns.get(), attr.mtime_ns.get(), attr.ctime_ns.get());
    kernel::Attr {
        ino: attr.ino.get(),
        size: attr.bytes.get(),
        blocks: attr.blocks.get(),
        atime: atime / SECOND,
        mtime: mtime / SECOND,
        ctime: ctime / SECOND,
        atimensec: (atime % SECOND) as u32,
        mtimensec: (mtime % SECOND) as u32,
        ctimensec: (ctime % SECOND) as u32,
        mode: attr.mode.get(),
        nlink: attr.links.get(),
        uid: attr.uid.get(),
        gid: attr.gid.get(),
        rdev: attr.rdev.get(),
        blksize: 4096,
        flags: 0,
    }
}

fn statfs(fs::Space { blocks, blocks_free: free, inodes, inodes_free }: fs::Space) -> kernel::StatfsOut {
    kernel::StatfsOut {
        blocks,
        bfree: free,
        bavail: free,
        files: inodes,
        ffree: inodes_free,
        bsize: 4096,
        namelen: fs::NAME_BYTES_MAX as u32,
        frsize: 4096,
        padding: 0,
        spare: [0; 6],
    }
}

fn xattr<D: ReplyData>(room: u32, done: &Done<D>) -> Option<FuseReply> {
    let size = u32::try_from(fs::Bytes::from(done.results).bytes).ok()?;
    if room == 0 {
        return Some(bytes(&kernel::GetxattrOut { size, padding: 0 }));
    }
    if size > room {
        return Some(FuseReply::Errno(libc::ERANGE));
    }
    (size as usize <= done.data.len()).then_some(FuseReply::Data { bytes: size as usize })
}

fn conflicting(data: &impl ReplyData) -> Option<kernel::LkOut> {
    let mut bytes = [0; size_of::<fs::Lock>()];
    if !data.copy_to(&mut bytes) {
        return None;
    }
    fs::Lock::read_from_bytes(&bytes).ok().map(|lock| lk_out(&lock))
}

pub fn lk_out(lock: &fs::Lock) -> kernel::LkOut {
    let end = lock.end.get().min(i64::MAX as u64);
    let lk = kernel::FileLock { start: lock.start.get(), end, kind: lock.kind.get(), pid: lock.pid.get() };
    kernel::LkOut { lk }
}
