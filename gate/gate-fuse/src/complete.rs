//! Completions of the fs server become answers to the kernel.
//!
//! What comes from the server is copied, then checked: attributes that are too short or entries that make no sense are `EIO`, never a
//! panic. Leases noted here decide how long the kernel may keep what it is told.

use std::time::Duration;

use vos_api::fs;
use zerocopy::{FromBytes, IntoBytes};

use crate::backend::{Done, ReplyData};
use crate::cache::{ATTR_TIMEOUT, Cache, Keep};
use crate::kernel::{self, fopen};
use crate::request::Plus;
use crate::state::{Handle, State};
use crate::translate::{Probe, Then};

/// Largest errno of Linux; anything above is nonsense.
const ERRNO_MAX: u32 = 4095;

#[derive(Debug, PartialEq, Eq)]
pub enum Answer {
    Errno(i32),
    Bytes(Vec<u8>),
    /// The first bytes of the completion's data, as they are.
    Data {
        bytes: usize,
    },
}

/// What else is to be done once the answer was given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum After {
    Nothing,
    /// The request has a next step; there is no answer yet.
    Next,
    /// What the kernel has of this file is wrong (it guessed where an append would go).
    DropPages {
        ino: u64,
    },
}

pub struct Completer<'a> {
    pub cache: &'a mut Cache,
    pub state: &'a mut State,
    pub name_timeout: Duration,
}

impl Completer<'_> {
    /// `ino` is the inode the request named.
    pub fn finish<D: ReplyData>(&mut self, ino: u64, then: Then, done: &Done<D>) -> (Answer, After) {
        if done.status != 0 {
            return (self.failed(ino, then, done), After::Nothing);
        }
        match then {
            Then::Next => return (Answer::Errno(0), After::Next),
            Then::Write { bytes, append, offset } => return self.write(ino, (bytes, append, offset), done),
            _ => {}
        }
        let answer = self.succeeded(ino, then, done).unwrap_or(Answer::Errno(libc::EIO));
        (answer, After::Nothing)
    }

    fn failed<D>(&mut self, ino: u64, then: Then, done: &Done<D>) -> Answer {
        let errno = if done.status <= ERRNO_MAX { done.status as i32 } else { libc::EIO };
        match then {
            Then::Lookup if errno == libc::ENOENT && is_leased(done.results) => {
                self.cache.granted(ino);
                let mut entry = kernel::EntryOut::default();
                (entry.entry_valid, entry.entry_valid_nsec) = split(self.name_timeout);
                Answer::Bytes(entry.as_bytes().to_vec())
            }
            Then::Xattr { probe: Probe::Capability, .. } if errno == libc::ENODATA => {
                self.cache.capability_absent(ino);
                Answer::Errno(errno)
            }
            // The file is closed for the kernel, whatever the server thinks of it.
            Then::Release { fh } => match self.state.leave(fh) {
                Ok(()) => Answer::Errno(0),
                Err(_) => Answer::Errno(libc::EIO),
            },
            _ => Answer::Errno(errno),
        }
    }

    fn succeeded<D: ReplyData>(&mut self, ino: u64, then: Then, done: &Done<D>) -> Option<Answer> {
        let results = done.results;
        Some(match then {
            Then::Empty | Then::Next | Then::Lock { .. } => Answer::Errno(0),
            Then::Changed => {
                self.cache.attributes_changed(ino);
                Answer::Errno(0)
            }
            Then::Unlocked { owner } => {
                self.cache.unlocked(ino, owner);
                Answer::Errno(0)
            }
            Then::Lookup | Then::Entry => {
                let attr = attr_of(&done.data)?;
                bytes(&self.entry(ino, &attr, is_leased(results)))
            }
            Then::Attr => bytes(&self.attributes(ino, &attr_of(&done.data)?, is_leased(results))),
            Then::Bytes => Answer::Data { bytes: done.data.len() },
            Then::Open { ino, flags } => bytes(&self.open(ino, flags, results)?),
            Then::Create { flags } => {
                let attr = attr_of(&done.data)?;
                let entry = self.entry(ino, &attr, is_leased(results));
                let open = self.open(attr.ino.get(), flags, results)?;
                Answer::Bytes([entry.as_bytes(), open.as_bytes()].concat())
            }
            Then::Read { bytes } => Answer::Data { bytes: done.data.len().min(bytes as usize) },
            Then::Write { .. } => return None,
            Then::Copy => bytes(&kernel::WriteOut { size: u32::try_from(results[0]).ok()?, padding: 0 }),
            Then::Statfs => bytes(&statfs(results)),
            Then::Xattr { room, .. } => xattr(room, done)?,
            Then::Readdir { room, plus } => Answer::Bytes(self.directory(ino, done, room as usize, plus)?),
            Then::Getlk => bytes(&conflicting(&done.data)?),
            Then::Lseek => bytes(&kernel::LseekOut { offset: results[0] }),
            Then::Release { fh } => {
                self.state.leave(fh).ok()?;
                Answer::Errno(0)
            }
        })
    }

    fn write<D>(&mut self, ino: u64, (bytes, append, offset): (u32, bool, u64), done: &Done<D>) -> (Answer, After) {
        let [written, size, ..] = done.results;
        let Some(size_written) = u32::try_from(written).ok().filter(|&written| written <= bytes) else {
            return (Answer::Errno(libc::EIO), After::Nothing);
        };
        self.cache.attributes_changed(ino);
        let out = kernel::WriteOut { size: size_written, padding: 0 };
        let elsewhere = append && size.checked_sub(written) != Some(offset);
        let after = if elsewhere { After::DropPages { ino } } else { After::Nothing };
        (Answer::Bytes(out.as_bytes().to_vec()), after)
    }

    fn open(&mut self, ino: u64, flags: u32, results: [u64; 4]) -> Option<kernel::OpenOut> {
        let fh = self.state.enter(Handle { ino, fs_handle: results[0], flags }).ok()?;
        let keep = self.cache.opened(ino, is_leased(results));
        let appends = flags & libc::O_APPEND as u32 != 0;
        let writes_only = flags & libc::O_ACCMODE as u32 == libc::O_WRONLY as u32;
        // Where an append goes only the server knows, so the kernel must not keep pages of it. Such a file cannot be mapped anyway.
        let open_flags = match keep {
            _ if appends && writes_only => fopen::DIRECT_IO,
            Keep::Keep => fopen::KEEP_CACHE,
            Keep::Drop => 0,
        };
        Some(kernel::OpenOut { fh, open_flags, backing_id: 0 })
    }

    fn entry(&mut self, parent: u64, attr: &fs::Attr, leased: bool) -> kernel::EntryOut {
        if leased {
            self.cache.found(attr.ino.get(), parent);
        }
        let attributes = self.attributes(attr.ino.get(), attr, leased);
        let (entry_valid, entry_valid_nsec) = if leased { split(self.name_timeout) } else { (0, 0) };
        kernel::EntryOut {
            nodeid: attr.ino.get(),
            generation: 0,
            entry_valid,
            attr_valid: attributes.attr_valid,
            entry_valid_nsec,
            attr_valid_nsec: attributes.attr_valid_nsec,
            attr: attributes.attr,
        }
    }

    fn attributes(&mut self, ino: u64, attr: &fs::Attr, leased: bool) -> kernel::AttrOut {
        let (attr_valid, attr_valid_nsec) = if leased { split(ATTR_TIMEOUT) } else { (0, 0) };
        if leased {
            self.cache.granted(ino);
        }
        kernel::AttrOut { attr_valid, attr_valid_nsec, dummy: 0, attr: kernel_attr(attr) }
    }

    /// The kernel's form of a listing: as many whole entries as fit.
    fn directory<D: ReplyData>(&mut self, ino: u64, done: &Done<D>, room: usize, plus: Plus) -> Option<Vec<u8>> {
        let listing = done.data.to_vec();
        let leased = is_leased(done.results);
        let mut rest = listing.as_slice();
        let mut out = Vec::with_capacity(room.min(2 * listing.len() + 64));
        while !rest.is_empty() {
            let (entry, name, attr, after) = next_entry(rest, plus)?;
            let head = kernel::Dirent {
                ino: entry.ino.get(),
                off: entry.cookie.get(),
                namelen: name.len() as u32,
                kind: entry.kind.get(),
            };
            let plus_bytes = if attr.is_some() { size_of::<kernel::EntryOut>() } else { 0 };
            let bytes = plus_bytes + size_of::<kernel::Dirent>() + name.len().next_multiple_of(8);
            if out.len() + bytes > room {
                break;
            }
            if let Some(attr) = attr {
                let is_dots = name == b"." || name == b"..";
                let entry = if is_dots { kernel::EntryOut::default() } else { self.entry(ino, &attr, leased) };
                out.extend_from_slice(entry.as_bytes());
            }
            out.extend_from_slice(head.as_bytes());
            out.extend_from_slice(name);
            out.resize(out.len().next_multiple_of(8), 0);
            rest = after;
        }
        Some(out)
    }
}

type NextEntry<'a> = (fs::DirEntry, &'a [u8], Option<fs::Attr>, &'a [u8]);

fn next_entry(bytes: &[u8], plus: Plus) -> Option<NextEntry<'_>> {
    let (entry, rest) = fs::DirEntry::read_from_prefix(bytes).ok()?;
    let name_bytes = entry.name_bytes.get() as usize;
    if name_bytes == 0 || name_bytes > fs::NAME_BYTES_MAX {
        return None;
    }
    let name = rest.get(..name_bytes)?;
    let rest = rest.get(name_bytes.next_multiple_of(8)..)?;
    match plus {
        Plus::Names => Some((entry, name, None, rest)),
        Plus::WithAttributes => {
            let (attr, rest) = fs::Attr::read_from_prefix(rest).ok()?;
            Some((entry, name, Some(attr), rest))
        }
    }
}

pub fn is_leased(results: [u64; 4]) -> bool {
    results[3] & fs::LEASE != 0
}

fn bytes(value: &(impl IntoBytes + zerocopy::Immutable)) -> Answer {
    Answer::Bytes(value.as_bytes().to_vec())
}

fn split(timeout: Duration) -> (u64, u32) {
    (timeout.as_secs(), timeout.subsec_nanos())
}

fn attr_of(data: &impl ReplyData) -> Option<fs::Attr> {
    let mut bytes = [0; size_of::<fs::Attr>()];
    if !data.copy_to(&mut bytes) {
        return None;
    }
    let attr = fs::Attr::read_from_bytes(&bytes).ok()?;
    // Without a number or a type the kernel would mark the inode bad for good.
    let is_file = matches!(
        attr.mode.get() & libc::S_IFMT,
        libc::S_IFREG | libc::S_IFDIR | libc::S_IFLNK | libc::S_IFIFO | libc::S_IFSOCK | libc::S_IFCHR | libc::S_IFBLK
    );
    (attr.ino.get() != 0 && is_file).then_some(attr)
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

fn statfs([blocks, free, inodes, inodes_free]: [u64; 4]) -> kernel::StatfsOut {
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

fn xattr<D: ReplyData>(room: u32, done: &Done<D>) -> Option<Answer> {
    let size = u32::try_from(done.results[0]).ok()?;
    if room == 0 {
        return Some(bytes(&kernel::GetxattrOut { size, padding: 0 }));
    }
    if size > room {
        return Some(Answer::Errno(libc::ERANGE));
    }
    (size as usize <= done.data.len()).then_some(Answer::Data { bytes: size as usize })
}

fn conflicting(data: &impl ReplyData) -> Option<kernel::LkOut> {
    let mut bytes = [0; size_of::<fs::Lock>()];
    if !data.copy_to(&mut bytes) {
        return None;
    }
    let lock = fs::Lock::read_from_bytes(&bytes).ok()?;
    let end = lock.end.get().min(i64::MAX as u64);
    let lk = kernel::FileLock { start: lock.start.get(), end, kind: lock.kind.get(), pid: lock.pid.get() };
    Some(kernel::LkOut { lk })
}
