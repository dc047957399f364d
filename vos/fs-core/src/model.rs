//! Keys and values of the metadata store. `docs/design/fs-format.md` lists them byte by byte.
//!
//! Numbers in keys are big-endian, so that they sort; numbers in values are little-endian.

use vos_api::fs::{Attr, FILE_BYTES_MAX};
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::device::BLOCK64;
use crate::error::StoreError;
use crate::extents::WINDOW_BLOCKS;
use crate::store::Key;

/// First byte of every key.
pub mod tag {
    pub const BITMAP: u8 = b'B';
    pub const COOKIE: u8 = b'C';
    pub const ENTRY: u8 = b'D';
    pub const EXTENTS: u8 = b'E';
    pub const HANDLE: u8 = b'H';
    pub const INODE: u8 = b'I';
    pub const LOCKS: u8 = b'K';
    /// With a number, a quota; alone, the number of the next one.
    pub const QUOTA: u8 = b'Q';
    pub const STATE: u8 = b'M';
    /// With a number, a snapshot; alone, the number of the next one.
    pub const SNAPSHOT: u8 = b'N';
    pub const REPLY: u8 = b'R';
    pub const SESSION: u8 = b'S';
    /// The last wish to go back that was heeded.
    pub const WISH: u8 = b'W';
    pub const TARGET: u8 = b'T';
    pub const XATTR: u8 = b'X';
    pub const ORPHAN: u8 = b'Z';
}

pub fn key(tag: u8) -> Key {
    vec![tag]
}

pub fn key1(tag: u8, number: u64) -> Key {
    let mut key = Vec::with_capacity(9);
    key.push(tag);
    key.extend_from_slice(&number.to_be_bytes());
    key
}

pub fn key2(tag: u8, first: u64, second: u64) -> Key {
    let mut key = key1(tag, first);
    key.extend_from_slice(&second.to_be_bytes());
    key
}

pub fn key_name(tag: u8, number: u64, name: &[u8]) -> Key {
    let mut key = key1(tag, number);
    key.extend_from_slice(name);
    key
}

/// The window that a key of `EXTENTS` names; `None` for one that no file reaches.
pub fn window_of(key: &[u8]) -> Option<u64> {
    number_of(key, 1).filter(|number| *number <= FILE_BYTES_MAX / BLOCK64 / WINDOW_BLOCKS)
}

/// The `at`-th number of a key.
pub fn number_of(key: &[u8], at: usize) -> Option<u64> {
    let start = 1 + at * 8;
    Some(u64::from_be_bytes(key.get(start..start + 8)?.try_into().ok()?))
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct InodeBytes {
    mode: U32,
    links: U32,
    uid: U32,
    gid: U32,
    rdev: U32,
    opens: U32,
    bytes: U64,
    blocks: U64,
    atime_ns: U64,
    mtime_ns: U64,
    ctime_ns: U64,
    parent: U64,
    next_cookie: U64,
    entries: U64,
}

#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Inode {
    pub mode: u32,
    pub links: u32,
    pub uid: u32,
    pub gid: u32,
    pub rdev: u32,
    /// Handles that are open.
    pub opens: u32,
    pub bytes: u64,
    /// Blocks of data that are allocated.
    pub blocks: u64,
    pub atime_ns: u64,
    pub mtime_ns: u64,
    pub ctime_ns: u64,
    /// Of a directory: where it lies.
    pub parent: u64,
    pub next_cookie: u64,
    pub entries: u64,
    /// The quota that it counts with: 0, or one that is gone: none.
    pub quota: u32,
}

pub const KIND_MASK: u32 = 0o170_000;
pub const DIRECTORY: u32 = 0o040_000;
pub const REGULAR: u32 = 0o100_000;
pub const SYMLINK: u32 = 0o120_000;
pub const FIFO: u32 = 0o010_000;
pub const SOCKET: u32 = 0o140_000;
pub const CHARACTER: u32 = 0o020_000;
pub const BLOCK_DEVICE: u32 = 0o060_000;
pub const SET_UID: u32 = 0o4000;
pub const SET_GID: u32 = 0o2000;
pub const GROUP_EXECUTE: u32 = 0o010;

impl Inode {
    pub fn kind(&self) -> u32 {
        self.mode & KIND_MASK
    }

    pub fn is_dir(&self) -> bool {
        self.kind() == DIRECTORY
    }

    pub fn is_file(&self) -> bool {
        self.kind() == REGULAR
    }

    pub fn encode(&self) -> Vec<u8> {
        let bytes = InodeBytes {
            mode: self.mode.into(),
            links: self.links.into(),
            uid: self.uid.into(),
            gid: self.gid.into(),
            rdev: self.rdev.into(),
            opens: self.opens.into(),
            bytes: self.bytes.into(),
            blocks: self.blocks.into(),
            atime_ns: self.atime_ns.into(),
            mtime_ns: self.mtime_ns.into(),
            ctime_ns: self.ctime_ns.into(),
            parent: self.parent.into(),
            next_cookie: self.next_cookie.into(),
            entries: self.entries.into(),
        };
        let mut bytes = bytes.as_bytes().to_vec();
        if self.quota != 0 {
            bytes.extend_from_slice(&self.quota.to_le_bytes());
        }
        bytes
    }

    pub fn decode(bytes: &[u8]) -> Result<Inode, StoreError> {
        let (stored, rest) = InodeBytes::read_from_prefix(bytes).map_err(|_| StoreError::Damaged("inode"))?;
        let quota = match <[u8; 4]>::try_from(rest) {
            Ok(quota) => u32::from_le_bytes(quota),
            Err(_) if rest.is_empty() => 0,
            Err(_) => return Err(StoreError::Damaged("inode")),
        };
        let inode = Inode {
            mode: stored.mode.get(),
            links: stored.links.get(),
            uid: stored.uid.get(),
            gid: stored.gid.get(),
            rdev: stored.rdev.get(),
            opens: stored.opens.get(),
            bytes: stored.bytes.get(),
            blocks: stored.blocks.get(),
            atime_ns: stored.atime_ns.get(),
            mtime_ns: stored.mtime_ns.get(),
            ctime_ns: stored.ctime_ns.get(),
            parent: stored.parent.get(),
            next_cookie: stored.next_cookie.get(),
            entries: stored.entries.get(),
            quota,
        };
        if inode.is_countable() { Ok(inode) } else { Err(StoreError::Damaged("inode")) }
    }

    /// Nobody counts as far as what would overflow soon.
    fn is_countable(&self) -> bool {
        let are_sizes = self.bytes <= FILE_BYTES_MAX && self.blocks <= FILE_BYTES_MAX / BLOCK64;
        let are_claims = self.links.max(self.opens) <= u32::MAX / 2;
        are_sizes && are_claims && self.entries.max(self.next_cookie) <= NUMBER_MAX
    }

    /// `marks`: [`vos_api::fs::BARE`], if that is known.
    pub fn attr(&self, ino: u64, marks: u32) -> Attr {
        Attr {
            ino: ino.into(),
            bytes: if self.is_dir() { DIRECTORY_BYTES } else { self.bytes }.into(),
            blocks: (self.blocks * (BLOCK64 / 512)).into(),
            atime_ns: self.atime_ns.into(),
            mtime_ns: self.mtime_ns.into(),
            ctime_ns: self.ctime_ns.into(),
            mode: self.mode.into(),
            links: self.links.into(),
            uid: self.uid.into(),
            gid: self.gid.into(),
            rdev: self.rdev.into(),
            marks: marks.into(),
        }
    }
}

/// What `stat` shows for a directory: entries lie in the metadata store and have no length of their own.
const DIRECTORY_BYTES: u64 = BLOCK64;

/// What a name leads to: `ENTRY` parent name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    pub ino: u64,
    pub cookie: u64,
    /// File type bits.
    pub kind: u32,
}

impl Entry {
    pub fn encode(&self) -> Vec<u8> {
        let mut out = self.ino.to_le_bytes().to_vec();
        out.extend_from_slice(&self.cookie.to_le_bytes());
        out.extend_from_slice(&self.kind.to_le_bytes());
        out
    }

    pub fn decode(bytes: &[u8]) -> Result<Entry, StoreError> {
        let mut reader = Reader(bytes);
        let mut entry = || Some(Entry { ino: reader.u64()?, cookie: reader.u64()?, kind: reader.u32()? });
        entry().ok_or(StoreError::Damaged("directory entry"))
    }
}

/// The same, in the order of the cookies: `COOKIE` parent cookie.
pub struct CookieEntry {
    pub ino: u64,
    pub kind: u32,
    pub name: Vec<u8>,
}

impl CookieEntry {
    pub fn encode(ino: u64, kind: u32, name: &[u8]) -> Vec<u8> {
        let mut out = ino.to_le_bytes().to_vec();
        out.extend_from_slice(&kind.to_le_bytes());
        out.extend_from_slice(name);
        out
    }

    pub fn decode(bytes: &[u8]) -> Result<CookieEntry, StoreError> {
        let mut reader = Reader(bytes);
        let mut head = || Some((reader.u64()?, reader.u32()?, reader.0.to_vec()));
        let (ino, kind, name) = head().ok_or(StoreError::Damaged("directory cookie"))?;
        Ok(CookieEntry { ino, kind, name })
    }
}

/// What is counted up stays below, or it was damaged: one more must not overflow.
pub const NUMBER_MAX: u64 = u64::MAX / 2;

/// Takes numbers from the front of bytes.
pub struct Reader<'a>(pub &'a [u8]);

impl<'a> Reader<'a> {
    pub fn take(&mut self, bytes: usize) -> Option<&'a [u8]> {
        let (head, rest) = self.0.split_at_checked(bytes)?;
        self.0 = rest;
        Some(head)
    }

    pub fn u8(&mut self) -> Option<u8> {
        self.take(1)?.first().copied()
    }

    pub fn u16(&mut self) -> Option<u16> {
        Some(u16::from_le_bytes(self.take(2)?.try_into().ok()?))
    }

    pub fn u32(&mut self) -> Option<u32> {
        Some(u32::from_le_bytes(self.take(4)?.try_into().ok()?))
    }

    pub fn u64(&mut self) -> Option<u64> {
        Some(u64::from_le_bytes(self.take(8)?.try_into().ok()?))
    }

    /// Something that is counted up.
    pub fn count(&mut self) -> Option<u64> {
        self.u64().filter(|number| *number <= NUMBER_MAX)
    }
}
