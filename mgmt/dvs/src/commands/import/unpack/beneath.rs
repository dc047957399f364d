//! The destination of an import, which nothing leads out of.
//!
//! Every path is taken from a descriptor of the destination, and the kernel refuses `..` and every symbolic link on the
//! way (`openat2`, Linux 5.6): also one that somebody puts there while the archive is unpacked. What an entry makes is
//! made in the directory that was found so, by a name of one part, and never by a call that follows a link.

use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use parking_lot::Mutex;
use rustix::fs::{AtFlags, CWD, Mode, OFlags, ResolveFlags, mkdirat, openat2, unlinkat};
use rustix::io::Errno;

/// Directories that are kept open.
const DIRECTORIES_MAX: usize = 256;
/// The kernel gives up when somebody renames while it looks; so often it is asked again.
const LOOKS_MAX: usize = 16;

pub(super) struct Beneath {
    root: Arc<File>,
    directories: Mutex<HashMap<PathBuf, Arc<File>>>,
}

/// Links that lead a person's own path elsewhere in the tree are that person's; those of an archive are nobody's.
#[derive(Clone, Copy)]
enum Links {
    FollowedWithin,
    Refused,
}

impl Beneath {
    /// The directory `inside` of `base`; made when it is not there.
    pub(super) fn open(base: &Path, inside: &Path) -> io::Result<Beneath> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let base = File::from(rustix::fs::openat(CWD, base, flags, Mode::empty())?);
        let root = Arc::new(make_way(&base, &parts(inside)?, Links::FollowedWithin)?);
        Ok(Beneath { root, directories: Mutex::default() })
    }

    /// A directory, by a path that [`parts`] made. Archives may leave out directories, so what is missing is made.
    pub(super) fn directory(&self, path: &Path) -> io::Result<Arc<File>> {
        if path.as_os_str().is_empty() {
            return Ok(self.root.clone());
        }
        if let Some(directory) = self.directories.lock().get(path) {
            return Ok(directory.clone());
        }
        let directory = Arc::new(make_way(&self.root, path, Links::Refused)?);
        let mut directories = self.directories.lock();
        if directories.len() >= DIRECTORIES_MAX {
            directories.clear();
        }
        directories.insert(path.to_owned(), directory.clone());
        Ok(directory)
    }

    /// Where an entry is made, and its name there.
    pub(super) fn place<'a>(&self, path: &'a Path) -> io::Result<(Arc<File>, &'a OsStr)> {
        let (parent, name) = halves(path)?;
        Ok((self.directory(parent)?, name))
    }

    /// The same of an entry that must be there.
    pub(super) fn place_there<'a>(&self, path: &'a Path) -> io::Result<(File, &'a OsStr)> {
        let (parent, name) = halves(path)?;
        Ok((explained(self.existing(parent))?, name))
    }

    /// A directory that must be there, looked up anew.
    pub(super) fn existing(&self, path: &Path) -> Result<File, Errno> {
        look(&*self.root, path, Links::Refused)
    }

    /// Takes away what has an entry's name. A directory goes only when it is empty, as with tar.
    pub(super) fn clear(&self, parent: &File, name: &OsStr) -> io::Result<()> {
        match unlinkat(parent, name, AtFlags::empty()) {
            Err(Errno::ISDIR | Errno::PERM) => {
                unlinkat(parent, name, AtFlags::REMOVEDIR)?;
                // It may be open here, and nothing can be made in it any more.
                self.directories.lock().clear();
                Ok(())
            }
            other => Ok(other?),
        }
    }
    /// Takes away what has a name, with all that is in it. Nothing is followed on the way, whoever changes it
    /// meanwhile.
    pub(super) fn remove(&self, parent: &File, name: &OsStr) -> io::Result<()> {
        // Its directories may be open here.
        self.directories.lock().clear();
        // From the top down: each directory's own descriptor, its name, and what is left in it.
        let mut way: Vec<(File, OsString, Vec<OsString>)> = Vec::new();
        let mut next = Some(name.to_owned());
        loop {
            let at = way.last().map_or(parent, |(directory, ..)| directory);
            if let Some(name) = next.take() {
                match unlinkat(at, &name, AtFlags::empty()) {
                    Ok(()) | Err(Errno::NOENT) => {}
                    Err(Errno::ISDIR | Errno::PERM) => {
                        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
                        let directory = File::from(rustix::fs::openat(at, &name, flags, Mode::empty())?);
                        let names = names(&directory)?;
                        way.push((directory, name, names));
                    }
                    Err(error) => return Err(error.into()),
                }
            } else if way.is_empty() {
                return Ok(());
            }
            match way.last_mut() {
                None => return Ok(()),
                Some((.., names)) => next = names.pop(),
            }
            if next.is_none()
                && let Some((_, name, _)) = way.pop()
            {
                let at = way.last().map_or(parent, |(directory, ..)| directory);
                unlinkat(at, &name, AtFlags::REMOVEDIR)?;
            }
        }
    }
}

fn names(directory: &File) -> io::Result<Vec<OsString>> {
    let mut names = Vec::new();
    for entry in rustix::fs::Dir::read_from(directory)? {
        let name = OsStr::from_bytes(entry?.file_name().to_bytes()).to_owned();
        if name != "." && name != ".." {
            names.push(name);
        }
    }
    Ok(names)
}

fn halves(path: &Path) -> io::Result<(&Path, &OsStr)> {
    let halves = path.parent().zip(path.file_name());
    halves.ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, "the name is empty"))
}

/// A name of an archive as a path below the destination, whatever it begins with.
pub(super) fn parts(name: &Path) -> io::Result<PathBuf> {
    let mut path = PathBuf::new();
    for part in name.components() {
        match part {
            Component::Normal(part) => path.push(part),
            Component::CurDir | Component::RootDir => (),
            Component::ParentDir | Component::Prefix(_) => {
                return Err(io::Error::new(io::ErrorKind::InvalidInput, "the name leads out of the destination"));
            }
        }
    }
    // The kernel would say the same of the whole, after a look at each part of it.
    if path.as_os_str().as_bytes().len() >= libc::PATH_MAX as usize {
        return Err(Errno::NAMETOOLONG.into());
    }
    Ok(path)
}

fn make_way(from: &File, path: &Path, links: Links) -> io::Result<File> {
    match look(from, path, links) {
        Err(Errno::NOENT) => (),
        found => return explained(found),
    }
    let mut way = PathBuf::new();
    let mut directory = from.try_clone()?;
    for part in path {
        way.push(part);
        let next = match look(from, &way, links) {
            Err(Errno::NOENT) => {
                match mkdirat(&directory, part, Mode::from_raw_mode(0o755)) {
                    Ok(()) | Err(Errno::EXIST) => (),
                    Err(error) => return Err(error.into()),
                }
                look(from, &way, links)
            }
            found => found,
        };
        directory = explained(next)?;
    }
    Ok(directory)
}

fn look(from: impl AsFd, path: &Path, links: Links) -> Result<File, Errno> {
    let path = if path.as_os_str().is_empty() { Path::new(".") } else { path };
    let resolve = match links {
        Links::FollowedWithin => ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS,
        Links::Refused => ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS,
    };
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let mut found = Err(Errno::AGAIN);
    for _ in 0..LOOKS_MAX {
        found = openat2(&from, path, flags, Mode::empty(), resolve);
        if !matches!(found, Err(Errno::AGAIN | Errno::INTR)) {
            break;
        }
    }
    found.map(File::from)
}

fn explained(found: Result<File, Errno>) -> io::Result<File> {
    let refused = |text| io::Error::new(io::ErrorKind::InvalidInput, text);
    found.map_err(|error| match error {
        Errno::LOOP => refused("a symbolic link is on its path, which an import does not follow"),
        Errno::XDEV => refused("a symbolic link on its path leads out of the tree or is absolute"),
        other => other.into(),
    })
}
