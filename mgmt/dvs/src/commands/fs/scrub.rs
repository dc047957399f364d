//! Reading all that a tree has, as it was at one moment.
//!
//! It is the files of a snapshot that are read: no page of them is in memory on any node, so all comes from the disk,
//! and is compared with its checksums on the way. What is spoiled on one copy of the disk the file server reads from
//! another one, and mends, as for any reader.

use std::fs::{self, File};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Advice, OFlags, SeekFrom, fadvise, seek};
use rustix::io::{Errno, pread};
use serde::Serialize;

use crate::commands::say;
use crate::output::{self, Row};

const BUFFER_BYTES: usize = 1 << 20;
/// Paths that are told; the others are counted.
const TOLD_MAX: usize = 100;
/// How often somebody is told how far it is.
const PROGRESS_EVERY: Duration = Duration::from_secs(10);

#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Scrubbed {
    pub dc: String,
    pub files: u64,
    pub bytes: u64,
    pub damaged: u64,
    /// The first ones.
    pub paths: Vec<PathBuf>,
}

impl Row for Scrubbed {
    const HEADINGS: &'static [&'static str] = &["DC", "FILES", "BYTES", "DAMAGED"];

    fn cells(&self) -> Vec<String> {
        vec![self.dc.clone(), self.files.to_string(), output::bytes(self.bytes), self.damaged.to_string()]
    }

    fn name(&self) -> String {
        self.dc.clone()
    }
}

/// Reads everything below a directory. `stop`: becomes readable when somebody wants it to end, which is `Interrupted`.
pub fn scrub(dc: &str, root: &Path, stop: impl AsFd) -> io::Result<Scrubbed> {
    let found = Scrubbed { dc: dc.to_owned(), files: 0, bytes: 0, damaged: 0, paths: Vec::new() };
    let mut walk = Walk { root, stop, found, buffer: vec![0; BUFFER_BYTES], told: Instant::now() };
    let mut open = vec![PathBuf::new()];
    while let Some(directory) = open.pop() {
        walk.directory(&directory, &mut open)?;
    }
    Ok(walk.found)
}

struct Walk<'a, S> {
    root: &'a Path,
    stop: S,
    found: Scrubbed,
    buffer: Vec<u8>,
    told: Instant,
}

impl<S: AsFd> Walk<'_, S> {
    fn directory(&mut self, directory: &Path, open: &mut Vec<PathBuf>) -> io::Result<()> {
        let entries = match fs::read_dir(self.root.join(directory)) {
            Ok(entries) => entries,
            Err(error) => return self.judge(directory, error),
        };
        for entry in entries {
            let entry = match entry {
                Ok(entry) => entry,
                Err(error) => return self.judge(directory, error),
            };
            let path = directory.join(entry.file_name());
            let kind = match entry.file_type() {
                Ok(kind) => kind,
                Err(error) => {
                    self.judge(&path, error)?;
                    continue;
                }
            };
            self.found.files += 1;
            if kind.is_dir() {
                open.push(path);
            } else if kind.is_file() {
                self.file(&path)?;
            } else if kind.is_symlink() {
                fs::read_link(self.root.join(&path)).map(drop).or_else(|error| self.judge(&path, error))?;
            } else {
                debug_assert!(kind.is_fifo() || kind.is_socket() || kind.is_char_device() || kind.is_block_device());
            }
        }
        Ok(())
    }

    fn file(&mut self, path: &Path) -> io::Result<()> {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let opened = rustix::fs::open(self.root.join(path), flags, rustix::fs::Mode::empty());
        let read = opened.map_err(io::Error::from).and_then(|file| self.read(&File::from(file)));
        read.or_else(|error| self.judge(path, error))
    }

    /// Not its holes: there is nothing to spoil.
    fn read(&mut self, file: &File) -> io::Result<()> {
        let mut at = 0;
        loop {
            let data = match seek(file, SeekFrom::Data(at)) {
                Ok(data) => data,
                Err(Errno::NXIO) => break,
                Err(errno) => return Err(errno.into()),
            };
            let end = seek(file, SeekFrom::Hole(data))?;
            at = data;
            while at < end {
                self.look_up()?;
                match rustix::io::retry_on_intr(|| pread(file, &mut *self.buffer, at))? {
                    0 => break,
                    got => {
                        at += got as u64;
                        self.found.bytes += got as u64;
                    }
                }
            }
            at = at.max(end);
        }
        // Nobody reads it again.
        fadvise(file, 0, None, Advice::DontNeed)?;
        Ok(())
    }

    /// What cannot be read is damaged, and no reason to end.
    fn judge(&mut self, path: &Path, error: io::Error) -> io::Result<()> {
        match error.kind() {
            io::ErrorKind::Interrupted => return Err(error),
            // The snapshot is gone.
            _ if error.raw_os_error() == Some(Errno::STALE.raw_os_error()) => return Err(error),
            io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        self.found.damaged += 1;
        if self.found.paths.len() < TOLD_MAX {
            self.found.paths.push(path.to_owned());
            say(&format!("dvs: /{}: {error}", output::printable(&path.display().to_string())));
        }
        Ok(())
    }

    /// Between two pieces.
    fn look_up(&mut self) -> io::Result<()> {
        if self.told.elapsed() >= PROGRESS_EVERY {
            self.told = Instant::now();
            say(&format!("{} files, {} …", self.found.files, output::bytes(self.found.bytes)));
        }
        let mut stop = [PollFd::new(&self.stop, PollFlags::IN)];
        let none = Timespec { tv_sec: 0, tv_nsec: 0 };
        if rustix::io::retry_on_intr(|| poll(&mut stop, Some(&none)))? > 0 {
            return Err(io::ErrorKind::Interrupted.into());
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{FileExt, symlink};

    use super::*;

    #[test]
    fn all_that_has_bytes_is_read_and_holes_are_not() {
        let place = tempfile::tempdir().unwrap();
        let root = place.path();
        fs::create_dir_all(root.join("a/b")).unwrap();
        fs::write(root.join("a/b/file"), vec![7; 3_000_000]).unwrap();
        symlink("nowhere", root.join("a/link")).unwrap();
        let sparse = File::create(root.join("sparse")).unwrap();
        sparse.set_len(1 << 40).unwrap();
        sparse.write_at(b"end", (1 << 39) + 5).unwrap();
        let (quiet, _kept) = io::pipe().unwrap();
        let found = scrub("shop", root, &quiet).unwrap();
        assert_eq!((found.files, found.damaged, found.bytes >= 3_000_003), (5, 0, true));
        assert!(found.bytes < 10_000_000, "{}", found.bytes);
    }

    #[test]
    fn it_ends_when_somebody_wants_so() {
        let place = tempfile::tempdir().unwrap();
        fs::write(place.path().join("file"), "something").unwrap();
        let (stop, mut asks) = io::pipe().unwrap();
        io::Write::write_all(&mut asks, b"x").unwrap();
        let ended = scrub("shop", place.path(), &stop).err().unwrap();
        assert_eq!(ended.kind(), io::ErrorKind::Interrupted);
    }
}
