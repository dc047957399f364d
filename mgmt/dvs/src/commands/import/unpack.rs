//! The other end of an import: a tar stream on standard input becomes files, inside the container.
//!
//! A file of the tree costs several round trips to the file server, one after the other, some of them with its directory locked:
//! so many files are made at the same time, and short ones in one step ([`placing`]). The reader takes the archive apart in its order, makes directories and links itself and hands files to threads; a file too
//! long for one piece goes to its thread piece by piece. What names something that is still being made (a hard link, the same name a
//! second time) waits for everything. Owners, modes and times of directories come last, because every new entry changes them.
//!
//! Nothing leads out: names are taken apart and `..` is refused; links that existed before are replaced, not followed. The process can
//! do no more than any other of the container in any case.

mod placing;

use std::collections::HashSet;
use std::ffi::OsStr;
use std::fs::{self, File, Permissions};
use std::io::{self, BufReader, Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt, fchown, lchown, symlink};
use std::path::{Component, Path, PathBuf};
use std::process::ExitCode;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use clap::Args;
use rustix::fs::{AtFlags, CWD, Mode, Timespec, Timestamps, futimens, utimensat};
use tar::{Archive, Entry, EntryType};

use placing::{Placed, Placer};

/// Files that are made at a time: what hides the round trips of one behind the others.
const FILES_MAX: usize = 16;
/// Data goes in pieces of this length: what one request to the file server carries.
const PIECE_BYTES: usize = 1 << 20;
/// Pieces that may wait for one file.
const PIECES_MAX: usize = 4;
/// Files that may wait for a thread.
const WAITING_MAX: usize = 32;
/// Failures that are told one by one.
const TOLD_MAX: u64 = 8;

/// What tar says when some of it could not be extracted.
const INCOMPLETE: u8 = 2;

#[derive(Args, Debug)]
pub struct Options {
    /// Directory; made when it is not there.
    destination: PathBuf,
}

#[derive(Debug, thiserror::Error)]
enum UnpackError {
    #[error("the archive cannot be read")]
    Archive(#[source] io::Error),
    /// Without the cause: it quotes what is there in place of a header.
    #[error("the archive is damaged after {entries} entries")]
    Damaged { entries: u64 },
    #[error("cannot make {}", path.display())]
    Make {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("a thread cannot be started")]
    Thread(#[source] io::Error),
}

pub fn execute(options: &Options) -> ExitCode {
    let stdin = io::stdin();
    // A large pipe saves the sender wake-ups; without it things go on more slowly.
    let _ = rustix::pipe::fcntl_setpipe_size(&stdin, PIECE_BYTES);
    let _ = rustix::process::umask(Mode::empty());
    match unpack(stdin.lock(), &options.destination) {
        Ok(0) => ExitCode::SUCCESS,
        Ok(_) => ExitCode::from(INCOMPLETE),
        Err(error) => {
            let cause = std::error::Error::source(&error).map(|cause| format!(": {cause}")).unwrap_or_default();
            eprintln!("{error}{cause}");
            ExitCode::FAILURE
        }
    }
}

/// Answers how many entries failed; each was told on standard error.
fn unpack(stream: impl Read, destination: &Path) -> Result<u64, UnpackError> {
    let make = |source| UnpackError::Make { path: destination.to_owned(), source };
    fs::create_dir_all(destination).map_err(make)?;
    let mut unpacker = Unpacker { root: destination.to_owned(), makers: Makers::start()?, directories: Vec::new() };
    let mut archive = Archive::new(BufReader::with_capacity(PIECE_BYTES, stream));
    for (entries, entry) in (0..).zip(archive.entries().map_err(UnpackError::Archive)?) {
        let mut entry = entry.map_err(|error| match error.kind() {
            io::ErrorKind::Other | io::ErrorKind::InvalidData | io::ErrorKind::InvalidInput => {
                UnpackError::Damaged { entries }
            }
            _ => UnpackError::Archive(error),
        })?;
        unpacker.entry(&mut entry)?;
    }
    unpacker.makers.settle();
    unpacker.finish_directories();
    Ok(unpacker.makers.end())
}

/// What an entry has besides its data.
#[derive(Clone, Copy, Debug)]
struct Meta {
    mode: u32,
    uid: u32,
    gid: u32,
    mtime: Timespec,
}

struct Unpacker {
    root: PathBuf,
    makers: Makers,
    directories: Vec<(PathBuf, Meta)>,
}

impl Unpacker {
    /// Fails only where the rest of the archive cannot be read.
    fn entry(&mut self, entry: &mut Entry<'_, impl Read>) -> Result<(), UnpackError> {
        let kind = entry.header().entry_type();
        if matches!(kind, EntryType::XGlobalHeader) {
            return Ok(());
        }
        let name = PathBuf::from(OsStr::from_bytes(&entry.path_bytes()));
        let result = match inside(&self.root, &name) {
            Ok(path) if kind.is_file() || kind.is_contiguous() || kind.is_gnu_sparse() => {
                return self.file(path, entry).map_err(UnpackError::Archive);
            }
            Ok(path) => self.other(&path, kind, entry),
            Err(error) => Err(error),
        };
        if let Err(error) = result {
            self.makers.failed(&name, &error);
        }
        Ok(())
    }

    fn other(&mut self, path: &Path, kind: EntryType, entry: &mut Entry<'_, impl Read>) -> io::Result<()> {
        let meta = meta_of(entry)?;
        match kind {
            EntryType::Directory => {
                make_directory(path, meta.mode)?;
                self.directories.push((path.to_owned(), meta));
                return Ok(());
            }
            EntryType::Link => {
                let target = entry.link_name_bytes().ok_or(io::ErrorKind::InvalidData)?;
                let target = inside(&self.root, Path::new(OsStr::from_bytes(&target)))?;
                // The target, or an older file of this name, may still be under way.
                self.makers.settle();
                return replacing(path, || fs::hard_link(&target, path));
            }
            EntryType::Symlink => {
                let target = entry.link_name_bytes().ok_or(io::ErrorKind::InvalidData)?;
                self.makers.settle_name(path);
                replacing(path, || symlink(OsStr::from_bytes(&target), path))?;
            }
            EntryType::Fifo => {
                self.makers.settle_name(path);
                replacing(path, || Ok(rustix::fs::mkfifoat(CWD, path, Mode::from_raw_mode(meta.mode & 0o7777))?))?;
            }
            _ => return Err(io::Error::new(io::ErrorKind::Unsupported, "neither file, directory, link nor FIFO")),
        }
        let now = fs::symlink_metadata(path)?;
        if (now.uid(), now.gid()) != (meta.uid, meta.gid) {
            lchown(path, Some(meta.uid), Some(meta.gid))?;
        }
        Ok(utimensat(CWD, path, &times(&meta), AtFlags::SYMLINK_NOFOLLOW)?)
    }

    fn file(&mut self, path: PathBuf, entry: &mut Entry<'_, impl Read>) -> io::Result<()> {
        let meta = match meta_of(entry) {
            Ok(meta) => meta,
            Err(error) => {
                self.makers.failed(&path, &error);
                return Ok(());
            }
        };
        self.makers.settle_name(&path);
        let mut left = entry.size();
        let (pieces, data) = sync_channel(PIECES_MAX);
        let bytes = left;
        // The first piece is there before the thread looks, so that it need not wait for short files.
        let mut piece = read_piece(entry, &mut left)?;
        let mut work = Some(Work { path, meta, bytes, data });
        loop {
            let is_last = left == 0;
            // Who cannot make the file takes no more pieces; the rest is read past.
            let _ = pieces.send(piece);
            if let Some(work) = work.take() {
                self.makers.give(work);
            }
            if is_last {
                return Ok(());
            }
            piece = read_piece(entry, &mut left)?;
        }
    }

    fn finish_directories(&mut self) {
        // Children first: a parent's time changes no more after its own turn.
        for (path, meta) in std::mem::take(&mut self.directories).iter().rev() {
            let result = fs::symlink_metadata(path).and_then(|now| {
                if (now.uid(), now.gid()) != (meta.uid, meta.gid) {
                    lchown(path, Some(meta.uid), Some(meta.gid))?;
                }
                if now.mode() & 0o7777 != meta.mode & 0o7777 {
                    fs::set_permissions(path, Permissions::from_mode(meta.mode & 0o7777))?;
                }
                Ok(utimensat(CWD, path, &times(meta), AtFlags::empty())?)
            });
            if let Err(error) = result {
                self.makers.failed(path, &error);
            }
        }
    }
}

/// `name` below `root`, whatever it begins with.
fn inside(root: &Path, name: &Path) -> io::Result<PathBuf> {
    let mut path = root.to_owned();
    for part in name.components() {
        match part {
            Component::Normal(part) => path.push(part),
            Component::CurDir | Component::RootDir => (),
            Component::ParentDir | Component::Prefix(_) => {
                return Err(io::Error::new(io::ErrorKind::InvalidInput, "the name leads out of the destination"));
            }
        }
    }
    Ok(path)
}

fn read_piece(entry: &mut impl Read, left: &mut u64) -> io::Result<Vec<u8>> {
    let mut piece = vec![0; (*left).min(PIECE_BYTES as u64) as usize];
    entry.read_exact(&mut piece)?;
    *left -= piece.len() as u64;
    Ok(piece)
}

fn meta_of(entry: &mut Entry<'_, impl Read>) -> io::Result<Meta> {
    let mut exact = None;
    if let Some(extensions) = entry.pax_extensions()? {
        for extension in extensions.flatten().filter(|extension| extension.key_bytes() == b"mtime") {
            exact = extension.value().ok().and_then(parse_time);
        }
    }
    let header = entry.header();
    let seconds = i64::try_from(header.mtime()?).unwrap_or(i64::MAX);
    let number = |id: u64| u32::try_from(id).map_err(|_| io::Error::from(io::ErrorKind::InvalidData));
    Ok(Meta {
        mode: header.mode()?,
        uid: number(header.uid()?)?,
        gid: number(header.gid()?)?,
        mtime: exact.unwrap_or(Timespec { tv_sec: seconds, tv_nsec: 0 }),
    })
}

/// `seconds.fraction` as PAX writes it; times before 1970 are left to the header.
fn parse_time(text: &str) -> Option<Timespec> {
    let (seconds, fraction) = text.split_once('.').unwrap_or((text, ""));
    let digits: String = fraction.chars().chain("000000000".chars()).take(9).collect();
    let seconds: u64 = seconds.parse().ok()?;
    Some(Timespec { tv_sec: i64::try_from(seconds).ok()?, tv_nsec: digits.parse::<u32>().ok()?.into() })
}

fn times(meta: &Meta) -> Timestamps {
    Timestamps { last_access: meta.mtime, last_modification: meta.mtime }
}

/// As tar does: what is there makes way, except that a directory stays a directory.
fn make_directory(path: &Path, mode: u32) -> io::Result<()> {
    let made = make_missing_parent(path, || Ok(rustix::fs::mkdir(path, Mode::from_raw_mode(mode & 0o7777))?));
    match made {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => match fs::metadata(path)?.is_dir() {
            true => Ok(()),
            false => Err(error),
        },
        other => other,
    }
}

fn replacing(path: &Path, mut make: impl FnMut() -> io::Result<()>) -> io::Result<()> {
    match make_missing_parent(path, &mut make) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            fs::remove_file(path)?;
            make()
        }
        other => other,
    }
}

/// Archives may leave out directories.
fn make_missing_parent<T>(path: &Path, mut make: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    match (make(), path.parent()) {
        (Err(error), Some(parent)) if error.kind() == io::ErrorKind::NotFound => {
            use std::os::unix::fs::DirBuilderExt;
            fs::DirBuilder::new().recursive(true).mode(0o755).create(parent)?;
            make()
        }
        (made, _) => made,
    }
}

/// A file to be made, and where its data comes from.
struct Work {
    path: PathBuf,
    meta: Meta,
    bytes: u64,
    data: Receiver<Vec<u8>>,
}

/// The threads that make files.
struct Makers {
    queue: Option<SyncSender<Work>>,
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

#[derive(Default)]
struct Shared {
    placer: Placer,
    state: Mutex<State>,
    idle: Condvar,
}

#[derive(Default)]
struct State {
    under_way: HashSet<PathBuf>,
    failures: u64,
}

impl Makers {
    fn start() -> Result<Makers, UnpackError> {
        let (queue, work) = sync_channel(WAITING_MAX);
        let (shared, work) = (Arc::new(Shared::default()), Arc::new(Mutex::new(work)));
        let mut threads = Vec::with_capacity(FILES_MAX);
        for index in 0..FILES_MAX {
            let (shared, work) = (shared.clone(), work.clone());
            let thread = std::thread::Builder::new().name(format!("unpack-{index}"));
            threads.push(thread.spawn(move || make_all(&shared, &work)).map_err(UnpackError::Thread)?);
        }
        Ok(Makers { queue: Some(queue), shared, threads })
    }

    fn give(&self, work: Work) {
        self.shared.lock().under_way.insert(work.path.clone());
        // Fails only when no thread is left, and they stay as long as we do.
        if let Some(Err(refused)) = self.queue.as_ref().map(|queue| queue.send(work)) {
            self.shared.done(&refused.0.path, Err(io::ErrorKind::BrokenPipe.into()));
        }
    }

    /// Waits until no file is under way.
    fn settle(&self) {
        let mut state = self.shared.lock();
        while !state.under_way.is_empty() {
            state = self.shared.idle.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Waits, if this name is under way.
    fn settle_name(&self, path: &Path) {
        let mut state = self.shared.lock();
        while state.under_way.contains(path) {
            state = self.shared.idle.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn failed(&self, path: &Path, error: &io::Error) {
        self.shared.lock().failed(path, error);
    }

    fn end(mut self) -> u64 {
        self.queue = None;
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
        self.shared.lock().failures
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn done(&self, path: &Path, result: io::Result<()>) {
        let mut state = self.lock();
        if let Err(error) = result {
            state.failed(path, &error);
        }
        state.under_way.remove(path);
        drop(state);
        self.idle.notify_all();
    }
}

impl State {
    fn failed(&mut self, path: &Path, error: &io::Error) {
        self.failures += 1;
        if self.failures <= TOLD_MAX {
            eprintln!("{}: {error}", path.display());
        }
    }
}

fn make_all(shared: &Shared, queue: &Mutex<Receiver<Work>>) {
    loop {
        let next = queue.lock().unwrap_or_else(PoisonError::into_inner).recv();
        let Ok(work) = next else { return };
        let result = make_file(&shared.placer, &work);
        shared.done(&work.path, result);
    }
}

fn make_file(placer: &Placer, work: &Work) -> io::Result<()> {
    let Work { path, meta, bytes, data } = work;
    let mut first = None;
    if placing::is_short(path, *bytes) {
        let content = data.recv().unwrap_or_default();
        match placer.place(path, meta, &content)? {
            Placed::Yes => return Ok(()),
            Placed::No => first = Some(content),
        }
    }
    write_file(path, meta, first.into_iter().chain(data))
}

fn write_file(path: &Path, meta: &Meta, data: impl Iterator<Item = Vec<u8>>) -> io::Result<()> {
    let mut new = File::options();
    new.write(true).create_new(true).mode(meta.mode & 0o777);
    let mut made = None;
    replacing(path, || {
        made = Some(new.open(path)?);
        Ok(())
    })?;
    let Some(mut file) = made else { return Err(io::ErrorKind::NotFound.into()) };
    for piece in data {
        file.write_all(&piece)?;
    }
    let now = file.metadata()?;
    let owner_changes = (now.uid(), now.gid()) != (meta.uid, meta.gid);
    if owner_changes {
        fchown(&file, Some(meta.uid), Some(meta.gid))?;
    }
    // Last but the times: a change of owner takes set-user-id away.
    if now.mode() & 0o7777 != meta.mode & 0o7777 {
        file.set_permissions(Permissions::from_mode(meta.mode & 0o7777))?;
    }
    Ok(futimens(&file, &times(meta))?)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;

    use tar::{Builder, Header};

    use super::*;

    fn header(kind: EntryType, size: u64) -> Header {
        let mut header = Header::new_gnu();
        header.set_entry_type(kind);
        header.set_mode(0o4751);
        header.set_uid(0);
        header.set_gid(0);
        header.set_mtime(1_000_000_000);
        header.set_size(size);
        header
    }

    fn add(archive: &mut Builder<Vec<u8>>, name: &str, data: &[u8]) {
        archive.append_data(&mut header(EntryType::Regular, data.len() as u64), name, data).unwrap();
    }

    #[test]
    fn packed_directory_comes_out_as_it_was() {
        let source = tempfile::tempdir().unwrap();
        for index in 0..200_u32 {
            let directory = source.path().join(format!("d{}", index % 7));
            fs::create_dir_all(&directory).unwrap();
            fs::write(directory.join(index.to_string()), index.to_le_bytes().repeat(index as usize)).unwrap();
        }
        let long: Vec<u8> = (0..3 * PIECE_BYTES + 5).map(|at| at as u8).collect();
        fs::write(source.path().join("long"), &long).unwrap();
        fs::hard_link(source.path().join("long"), source.path().join("same")).unwrap();
        symlink("d1/1", source.path().join("link")).unwrap();
        let time = std::time::UNIX_EPOCH + std::time::Duration::new(1_000_000_000, 123_456_789);
        File::open(source.path().join("d3")).unwrap().set_modified(time).unwrap();
        let (mut chunks, packing) = super::super::pack::directory(source.path().to_owned(), Arc::default());
        let mut bytes = Vec::new();
        while let Some(chunk) = chunks.blocking_recv() {
            bytes.extend_from_slice(&chunk);
        }
        packing.join().unwrap().unwrap();

        let target = tempfile::tempdir().unwrap();
        assert_eq!(unpack(bytes.as_slice(), target.path()).unwrap(), 0);
        for index in 0..200_u32 {
            let read = fs::read(target.path().join(format!("d{}/{index}", index % 7))).unwrap();
            assert_eq!(read, index.to_le_bytes().repeat(index as usize));
        }
        assert_eq!(fs::read(target.path().join("long")).unwrap(), long);
        let ino = |name| fs::metadata(target.path().join(name)).unwrap().ino();
        assert_eq!(ino("long"), ino("same"));
        assert_eq!(fs::read_link(target.path().join("link")).unwrap(), Path::new("d1/1"));
        assert_eq!(fs::metadata(target.path().join("d3")).unwrap().modified().unwrap(), time);
    }

    #[test]
    fn later_entry_of_a_name_wins_and_what_was_there_is_replaced() {
        let target = tempfile::tempdir().unwrap();
        fs::write(target.path().join("other"), "untouched").unwrap();
        symlink("other", target.path().join("a")).unwrap();
        let mut archive = Builder::new(Vec::new());
        for round in 0..50_u8 {
            add(&mut archive, "a", &[round; 100]);
        }
        add(&mut archive, "not/there/yet", b"x");
        assert_eq!(unpack(archive.into_inner().unwrap().as_slice(), target.path()).unwrap(), 0);
        assert_eq!(fs::read(target.path().join("a")).unwrap(), [49; 100]);
        assert_eq!(fs::read(target.path().join("other")).unwrap(), b"untouched");
        assert_eq!(fs::metadata(target.path().join("a")).unwrap().mode() & 0o7777, 0o4751);
        assert_eq!(fs::read(target.path().join("not/there/yet")).unwrap(), b"x");
    }

    #[test]
    fn name_that_leads_out_is_refused_and_the_rest_is_unpacked() {
        assert!(inside(Path::new("/r"), Path::new("a/../../b")).is_err());
        assert_eq!(inside(Path::new("/r"), Path::new("/etc/./x")).unwrap(), Path::new("/r/etc/x"));
    }

    #[test]
    fn file_that_cannot_be_made_costs_only_itself() {
        let target = tempfile::tempdir().unwrap();
        fs::create_dir_all(target.path().join("a/full")).unwrap();
        let mut archive = Builder::new(Vec::new());
        add(&mut archive, "a", &vec![1; 10 * PIECE_BYTES]);
        add(&mut archive, "b", b"x");
        assert_eq!(unpack(archive.into_inner().unwrap().as_slice(), target.path()).unwrap(), 1);
        assert_eq!(fs::read(target.path().join("b")).unwrap(), b"x");
    }

    #[test]
    fn archive_that_ends_early_is_an_error() {
        let mut archive = Builder::new(Vec::new());
        add(&mut archive, "a", &[1; 4000]);
        let bytes = archive.into_inner().unwrap();
        let target = tempfile::tempdir().unwrap();
        assert!(unpack(&bytes[..2000], target.path()).is_err());
    }

    #[test]
    fn times_are_read_to_the_nanosecond() {
        let time = parse_time("12.5").unwrap();
        assert_eq!((time.tv_sec, time.tv_nsec), (12, 500_000_000));
        assert_eq!(parse_time("7").unwrap().tv_nsec, 0);
        assert!(parse_time("-1.5").is_none() && parse_time("x").is_none());
    }
}
