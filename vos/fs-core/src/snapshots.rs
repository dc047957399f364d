//! Numbers and records of snapshots: how what was is named, and what the metadata says of each.
//!
//! A snapshot is shown as a directory below [`NAME`] of the root. Its inodes have numbers of their own, which say which
//! snapshot they are of and which number they had: no change ever makes such a number, so whatever would change one is
//! refused ([`is_of_snapshot`]). `base.rs` has where the old values lie, `docs/design/snapshots.md` the argument.

use std::collections::BTreeMap;

use vos_api::fs::{
    ROOT, SNAPSHOT_INO_BITS as INO_BITS, SNAPSHOTS, SNAPSHOTS_NAME, SYMLINK_BYTES_MAX, XATTR_VALUE_BYTES_MAX,
};

use crate::error::StoreError;
use crate::extents::Window;
use crate::model::{CookieEntry, DIRECTORY, Entry, Inode, Reader, key_name, key1, number_of, tag};
use crate::open::FIRST_COOKIE;
use crate::store::{Change, Key};

/// Inodes above are not shown: a volume that has them takes no more snapshots.
pub const INO_MAX: u64 = (1 << INO_BITS) - 2;
/// Numbers of snapshots are given once.
pub const ID_MAX: u64 = (1 << 18) - 1;
/// Snapshots that a volume may have at a time: a look into the oldest one looks into all that came later, too.
pub const COUNT_MAX: usize = 64;

/// Keys of the tree, whose values of before are kept for snapshots. The others are of the present only.
const TREE: [u8; 8] =
    [tag::INODE, tag::ENTRY, tag::COOKIE, tag::EXTENTS, tag::TARGET, tag::XATTR, tag::BITMAP, tag::QUOTA];

/// One snapshot, as its record says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Snapshot {
    pub id: u64,
    pub made_ns: u64,
    /// It was removed, and its old values are going.
    pub is_leaving: bool,
    pub name: Vec<u8>,
}

impl Snapshot {
    pub fn key(&self) -> Key {
        key1(tag::SNAPSHOT, self.id)
    }

    pub fn encode(&self) -> Vec<u8> {
        let state = u8::from(self.is_leaving);
        [&self.made_ns.to_le_bytes(), &[state][..], &self.name].concat()
    }

    pub fn decode(id: u64, bytes: &[u8]) -> Result<Snapshot, StoreError> {
        let mut reader = Reader(bytes);
        let mut head = || Some((reader.u64()?, reader.u8()?));
        let head = head().filter(|(_, state)| *state <= 1 && (1..=ID_MAX).contains(&id));
        let (made_ns, state) = head.ok_or(StoreError::Damaged("snapshot"))?;
        Ok(Snapshot { id, made_ns, is_leaving: state == 1, name: reader.0.to_vec() })
    }

    /// Number that its root has.
    pub fn root(&self) -> u64 {
        outer(self.id, ROOT)
    }

    /// Place among the snapshots that a listing gives.
    pub fn cookie(&self) -> u64 {
        FIRST_COOKIE - 1 + self.id
    }
}

/// Whether values of before are kept.
pub fn is_of_tree(key: &[u8]) -> bool {
    key.first().is_some_and(|tag| TREE.contains(tag))
}

/// Whether a checkpoint takes or removes one.
pub fn are_changed(changes: &BTreeMap<Key, Change>) -> bool {
    changes.range(key1(tag::SNAPSHOT, 0)..key1(tag::SNAPSHOT, u64::MAX)).next().is_some()
}

/// Whether one is removed.
pub fn are_leaving(changes: &BTreeMap<Key, Change>) -> bool {
    let records = changes.range(key1(tag::SNAPSHOT, 0)..key1(tag::SNAPSHOT, u64::MAX));
    let decode = |(key, change): (&Key, &Change)| Snapshot::decode(number_of(key, 0)?, change.as_ref()?).ok();
    records.filter_map(decode).any(|snapshot| snapshot.is_leaving)
}

/// Bytes that a checkpoint may have to keep of what this key had, at most.
pub fn kept_bytes_max(key: &[u8]) -> usize {
    const OTHERS: usize = 512;
    let value = match key.first() {
        Some(&tag::EXTENTS) => Window::BYTES_MAX,
        Some(&tag::TARGET) => SYMLINK_BYTES_MAX,
        Some(&tag::XATTR) => XATTR_VALUE_BYTES_MAX,
        _ => OTHERS,
    };
    if is_of_tree(key) { key.len() + value } else { 0 }
}

/// Whether a key is of an inode that only a snapshot has, or of [`SNAPSHOTS`].
pub fn is_of_snapshot(key: &[u8]) -> bool {
    // The upper half of the number of an inode.
    let is_marked = key.get(1).is_some_and(|byte| byte & (SNAPSHOTS >> 56) as u8 != 0);
    is_marked && key.len() >= 9 && is_of_tree(key) && !matches!(key.first(), Some(&(tag::BITMAP | tag::QUOTA)))
}

/// Whether only a snapshot has the inode, or it is [`SNAPSHOTS`].
pub fn is_shown(ino: u64) -> bool {
    ino & SNAPSHOTS != 0
}

/// Whether a key asks what [`SNAPSHOTS_NAME`] of the root leads to.
pub fn is_way_in(key: &[u8]) -> bool {
    key.first() == Some(&tag::ENTRY) && key == key_name(tag::ENTRY, ROOT, SNAPSHOTS_NAME)
}

/// What it leads to.
pub fn way_in() -> Entry {
    Entry { ino: SNAPSHOTS, cookie: 0, kind: DIRECTORY }
}

/// The number that an inode has in a snapshot.
pub fn outer(id: u64, ino: u64) -> u64 {
    SNAPSHOTS | id << INO_BITS | ino
}

/// Which snapshot a number is of, and the number of the inode itself.
pub fn split(ino: u64) -> (u64, u64) {
    ((ino & !SNAPSHOTS) >> INO_BITS, ino & ((1 << INO_BITS) - 1))
}

/// A value as whoever looks into a snapshot sees it: the numbers of inodes in it are of the snapshot, too. The root
/// tells by its ctime when the snapshot was taken.
pub fn translate(snapshot: &Snapshot, key: &[u8], value: Vec<u8>) -> Result<Vec<u8>, StoreError> {
    let id = snapshot.id;
    Ok(match key.first() {
        Some(&tag::INODE) => {
            let inode = Inode::decode(&value)?;
            let shown = match key == key1(tag::INODE, ROOT) {
                true => Inode { parent: SNAPSHOTS, ctime_ns: snapshot.made_ns, ..inode },
                false => Inode { parent: outer(id, inode.parent), ..inode },
            };
            shown.encode()
        }
        Some(&tag::ENTRY) => {
            let entry = Entry::decode(&value)?;
            Entry { ino: outer(id, entry.ino), ..entry }.encode()
        }
        Some(&tag::COOKIE) => {
            let entry = CookieEntry::decode(&value)?;
            CookieEntry::encode(outer(id, entry.ino), entry.kind, &entry.name)
        }
        _ => value,
    })
}
