//! Directories, a page at a time, as the kernel reads them.
//!
//! A place in a directory is a number that any gate understands: in the root, that of procfs itself as far as its
//! names go, then [`BEYOND`] for `dvs`, then [`BEYOND`] and the number of the process for other nodes' processes.

use gate_fuse::kernel::Dirent;
use zerocopy::IntoBytes;

use crate::number::ProcInode;

/// Behind every place of procfs, which are process numbers and a few.
pub const BEYOND: u64 = 1 << 30;
/// In an entry.
const LINK: u32 = 10;
const DIRECTORY: u32 = 4;
const FILE: u32 = 8;

/// Names for the kernel, as many as it has room for.
#[derive(Debug)]
pub struct Page {
    bytes: Vec<u8>,
    room: usize,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Room {
    Left,
    /// The name did not fit.
    None,
}

impl Page {
    pub fn new(room: usize) -> Page {
        Page { bytes: Vec::new(), room }
    }

    pub fn push(&mut self, node: ProcInode, name: &[u8], place_behind: u64) -> Room {
        let head = Dirent {
            ino: node.number(),
            off: place_behind,
            namelen: u32::try_from(name.len()).unwrap_or(0),
            kind: kind_of(node),
        };
        let whole = (size_of::<Dirent>() + name.len()).next_multiple_of(8);
        if self.bytes.len() + whole > self.room {
            return Room::None;
        }
        let end = self.bytes.len() + whole;
        self.bytes.extend_from_slice(head.as_bytes());
        self.bytes.extend_from_slice(name);
        self.bytes.resize(end, 0);
        Room::Left
    }

    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    pub fn into_bytes(self) -> Vec<u8> {
        self.bytes
    }
}

fn kind_of(node: ProcInode) -> u32 {
    match node {
        ProcInode::Root | ProcInode::Dvs | ProcInode::Remote(_) | ProcInode::Descriptors(_) => DIRECTORY,
        ProcInode::Own(_)
        | ProcInode::OwnThread(_)
        | ProcInode::Local(_)
        | ProcInode::Native(_)
        | ProcInode::Link(..) => LINK,
        ProcInode::DvsNodes | ProcInode::RemoteFile(..) => FILE,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn page_has_no_more_than_its_room_and_whole_names() {
        let mut page = Page::new(70);
        assert!(page.is_empty());
        assert_eq!(page.push(ProcInode::Local(70_000), b"70000", 1), Room::Left);
        assert_eq!(page.push(ProcInode::Dvs, b"dvs", 2), Room::Left);
        assert_eq!(page.push(ProcInode::Remote(131_072), b"131072", 3), Room::None);
        let bytes = page.into_bytes();
        assert_eq!((bytes.len(), &bytes[24..32], &bytes[56..64]), (64, &b"70000\0\0\0"[..], &b"dvs\0\0\0\0\0"[..]));
    }
}
