//! Which inodes of a tree are not as they were in an earlier snapshot: backups of what changed, and `dvs fs diff`.

use std::collections::HashSet;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::fs::getxattr;

use super::inside::{own_number, snapshot_number};

/// What one answer may have of what changed.
const SINCE_BYTES_MAX: usize = 65_536;

/// What is not as it was in an earlier snapshot.
pub struct Since {
    /// The earlier one.
    pub root: PathBuf,
    /// Inodes, by the numbers that they have in the tree.
    changed: HashSet<u64>,
}

impl Since {
    /// As `vos_api::fs::SINCE_NAME`. `later`: a snapshot, beside which the earlier one is.
    pub fn read(later: &Path, name: &str) -> io::Result<Since> {
        let root = later.parent().unwrap_or(later).join(name);
        let number = snapshot_number(fs::metadata(&root)?.ino());
        let (mut changed, mut from) = (HashSet::new(), 0_u64);
        let mut value = vec![0; SINCE_BYTES_MAX];
        loop {
            let bytes = getxattr(later, format!("dvs.since.{number}.{from}"), value.as_mut_slice())?;
            let numbers = value.get(..bytes).unwrap_or_default().chunks_exact(size_of::<u64>());
            let numbers = numbers.filter_map(|bytes| Some(u64::from_le_bytes(bytes.try_into().ok()?)));
            let before = changed.len();
            for ino in numbers {
                from = from.max(ino + 1);
                changed.insert(ino);
            }
            if changed.len() == before {
                return Ok(Since { root, changed });
            }
        }
    }

    pub fn has_changed(&self, ino: u64) -> bool {
        self.changed.contains(&own_number(ino))
    }

    /// Whether the same inode had this name.
    pub fn was_there(&self, inside: &Path, ino: u64) -> bool {
        let then = fs::symlink_metadata(self.root.join(inside));
        then.is_ok_and(|then| own_number(then.ino()) == own_number(ino))
    }

    #[cfg(test)]
    pub fn of(root: &Path, changed: impl IntoIterator<Item = u64>) -> Since {
        Since { root: root.to_owned(), changed: changed.into_iter().map(own_number).collect() }
    }
}
