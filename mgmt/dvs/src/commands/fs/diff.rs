//! What came, went and became other between two moments of a tree.
//!
//! All directories of the later one are looked through, as a backup of what changed does it, and of the files those
//! whose inodes the file server names. A file that another one took the place of, as editors do it, has changed; one
//! that was moved went there and came here.

use std::collections::HashMap;
use std::ffi::OsString;
use std::fs::{self, FileType, Metadata};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::{DirEntryExt, MetadataExt};
use std::path::{Path, PathBuf};

use mgmt_api::{Bytes, TREE};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde::Serialize;

use super::changed::Since;
use super::inside::own_number;
use crate::output::Row;

/// Of one answer; it is in memory before it is printed.
pub const DIFFERENCES_MAX: usize = 1 << 20;

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[cfg_attr(test, schemars(rename = "DifferenceChange"))]
#[serde(rename_all = "lowercase")]
pub enum Change {
    Added,
    Changed,
    Removed,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[cfg_attr(test, schemars(rename = "DifferenceKind"))]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    Directory,
    File,
    Link,
    Other,
}

impl From<FileType> for Kind {
    fn from(kind: FileType) -> Kind {
        match kind {
            _ if kind.is_dir() => Kind::Directory,
            _ if kind.is_file() => Kind::File,
            _ if kind.is_symlink() => Kind::Link,
            _ => Kind::Other,
        }
    }
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Difference {
    pub change: Change,
    /// What is there; of what went, what was.
    pub kind: Kind,
    /// As programs see it.
    #[cfg_attr(test, schemars(schema_with = "crate::shapes::bytes"))]
    pub path: Bytes,
}

impl Difference {
    /// As `docker diff` has it.
    pub fn letter(&self) -> char {
        match self.change {
            Change::Added => 'A',
            Change::Changed => 'C',
            Change::Removed => 'D',
        }
    }
}

impl Row for Difference {
    const HEADINGS: &'static [&'static str] = &["CHANGE", "PATH"];

    fn cells(&self) -> Vec<String> {
        vec![self.letter().to_string(), self.path.lossy()]
    }

    fn name(&self) -> String {
        self.path.lossy()
    }
}

/// Compares a snapshot with an earlier one. `stop`: becomes readable when somebody wants it to end, which is
/// `Interrupted`.
pub fn compare(later: &Path, since: &Since, stop: impl AsFd) -> io::Result<Vec<Difference>> {
    let mut walk = Walk { later, since, stop, found: Vec::new() };
    let root = fs::symlink_metadata(later)?;
    let mut open = vec![Directory { inside: PathBuf::new(), place: walk.place(&root, &fs::metadata(&since.root)?) }];
    while let Some(directory) = open.pop() {
        walk.directory(&directory, &mut open)?;
    }
    let mut found = walk.found;
    found.sort_by(|(left, _), (right, _)| left.cmp(right));
    let differences = found.into_iter().map(|(inside, (change, kind))| Difference {
        change,
        kind,
        path: Bytes::from(Path::new(TREE).join(inside).into_os_string()),
    });
    Ok(differences.collect())
}

struct Walk<'a, S> {
    later: &'a Path,
    since: &'a Since,
    stop: S,
    found: Vec<(PathBuf, (Change, Kind))>,
}

struct Directory {
    inside: PathBuf,
    place: Place,
}

/// Where a directory was in the earlier snapshot.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Place {
    /// There, with the same names in it.
    SameNames,
    /// There, and names came or went.
    OtherNames,
    /// Nowhere, or elsewhere.
    New,
}

impl<S: AsFd> Walk<'_, S> {
    fn directory(&mut self, directory: &Directory, open: &mut Vec<Directory>) -> io::Result<()> {
        let Directory { inside, place } = directory;
        self.look_up()?;
        let mut before = match place {
            Place::OtherNames => names(&self.since.root.join(inside))?,
            Place::SameNames | Place::New => HashMap::new(),
        };
        for entry in fs::read_dir(self.later.join(inside))? {
            let entry = entry?;
            let (name, kind) = (entry.file_name(), entry.file_type()?);
            let inner = inside.join(&name);
            let was_named = *place == Place::SameNames || before.remove(&name).is_some();
            if !was_named {
                self.note(&inner, Change::Added, kind)?;
                open.extend(kind.is_dir().then_some(Directory { inside: inner, place: Place::New }));
                continue;
            }
            // Most of a tree is as it was, and needs no further look.
            if *place == Place::SameNames && !self.since.has_changed(entry.ino()) {
                open.extend(kind.is_dir().then_some(Directory { inside: inner, place: Place::SameNames }));
                continue;
            }
            let now = fs::symlink_metadata(self.later.join(&inner))?;
            let then = fs::symlink_metadata(self.since.root.join(&inner))?;
            if differs(&then, &now) {
                self.note(&inner, Change::Changed, kind)?;
            }
            if kind.is_dir() {
                let place = if then.is_dir() { self.place(&now, &then) } else { Place::New };
                open.push(Directory { inside: inner, place });
            }
        }
        for (name, kind) in before {
            self.note(&inside.join(name), Change::Removed, kind)?;
        }
        Ok(())
    }

    fn place(&self, now: &Metadata, then: &Metadata) -> Place {
        let is_as_it_was = own_number(now.ino()) == own_number(then.ino()) && !self.since.has_changed(now.ino());
        if is_as_it_was { Place::SameNames } else { Place::OtherNames }
    }

    fn note(&mut self, inside: &Path, change: Change, kind: FileType) -> io::Result<()> {
        if self.found.len() == DIFFERENCES_MAX {
            return Err(io::Error::new(
                io::ErrorKind::FileTooLarge,
                format!("there are more than {DIFFERENCES_MAX} differences"),
            ));
        }
        self.found.push((inside.to_owned(), (change, kind.into())));
        Ok(())
    }

    fn look_up(&self) -> io::Result<()> {
        let mut stop = [PollFd::new(&self.stop, PollFlags::IN)];
        let none = Timespec { tv_sec: 0, tv_nsec: 0 };
        match rustix::io::retry_on_intr(|| poll(&mut stop, Some(&none)))? {
            0 => Ok(()),
            _ => Err(io::ErrorKind::Interrupted.into()),
        }
    }
}

fn names(directory: &Path) -> io::Result<HashMap<OsString, FileType>> {
    let named = |entry: io::Result<fs::DirEntry>| {
        let entry = entry?;
        Ok((entry.file_name(), entry.file_type()?))
    };
    fs::read_dir(directory)?.map(named).collect()
}

/// What a program can have changed of it. The file server may name an inode that is as it was again.
fn differs(then: &Metadata, now: &Metadata) -> bool {
    let of = |meta: &Metadata| {
        let times = (meta.mtime(), meta.mtime_nsec(), meta.ctime(), meta.ctime_nsec());
        (own_number(meta.ino()), meta.mode(), meta.uid(), meta.gid(), meta.size(), times)
    };
    of(then) != of(now)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    #[test]
    fn what_came_went_and_became_other_is_found() {
        let place = tempfile::tempdir().unwrap();
        let (then, now) = (place.path().join("then"), place.path().join("now"));
        fs::create_dir_all(then.join("kept/deep")).unwrap();
        fs::create_dir_all(then.join("gone/below")).unwrap();
        for name in ["same", "other", "kept/deep/page", "moved", "kind"] {
            fs::write(then.join(name), name).unwrap();
        }
        // One inode under both roots is a file that stayed.
        fs::create_dir_all(now.join("kept/deep")).unwrap();
        fs::create_dir_all(now.join("new/below")).unwrap();
        fs::create_dir(now.join("kind")).unwrap();
        for (from, to) in [("same", "same"), ("kept/deep/page", "kept/deep/page"), ("moved", "kept/moved")] {
            fs::hard_link(then.join(from), now.join(to)).unwrap();
        }
        fs::write(now.join("other"), "another").unwrap();
        fs::write(now.join("new/below/file"), "").unwrap();
        symlink("other", now.join("new/link")).unwrap();
        let (quiet, _kept) = io::pipe().unwrap();
        let found = compare(&now, &Since::of(&then, []), &quiet).unwrap();
        let lines: Vec<String> = found.iter().map(|one| format!("{} {}", one.letter(), one.path.lossy())).collect();
        let expected = [
            "D /dc/gone",
            "C /dc/kept",
            "C /dc/kept/deep",
            "A /dc/kept/moved",
            "C /dc/kind",
            "D /dc/moved",
            "A /dc/new",
            "A /dc/new/below",
            "A /dc/new/below/file",
            "A /dc/new/link",
            "C /dc/other",
        ];
        // Directories were made anew here.
        assert_eq!(lines, expected);
        let (stop, mut asks) = io::pipe().unwrap();
        io::Write::write_all(&mut asks, b"x").unwrap();
        let ended = compare(&now, &Since::of(&then, []), &stop).err().unwrap();
        assert_eq!(ended.kind(), io::ErrorKind::Interrupted);
    }
}
