//! The other end of an import: a tar stream on standard input becomes files, inside the container.
//!
//! A file of the tree costs several round trips to the file server, one after the other, some of them with its
//! directory locked: so many files are made at the same time, and short ones in one step ([`placing`]). The reader
//! takes the archive apart in its order, makes directories and links itself and hands files to threads; a file too long
//! for one piece goes to its thread piece by piece. What names something that is still being made (a hard link, the
//! same name a second time) waits for everything. Owners, modes, times and quotas of directories come last, because
//! every new entry changes them, or is counted; their attributes, which may be long, at once.
//!
//! Nothing leads out of the destination, and nothing is written through a symbolic link ([`beneath`]). What an archive
//! may not do costs that entry and is told; devices, which a container cannot make, are left out. The process can do no
//! more than any other of the container in any case.

mod beneath;
mod compression;
mod contents;
mod placing;

use std::cell::Cell;
use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::fs::{File, Permissions};
use std::io::{self, BufReader, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, fchown};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;

use clap::Args;
use mgmt_api::content::runs;
use parking_lot::{Condvar, Mutex};
use rustix::fs::{AtFlags, FileType, Mode, OFlags, Timespec, Timestamps, futimens, utimensat};
use rustix::io::Errno;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tar::{Archive, Entry, EntryType};

use super::super::fs::quota;
use super::extended::{self, Extended};
use super::pack;
use beneath::{Beneath, parts};
use compression::{DecompressError, plain};
use contents::{Contents, Piece, Sparse};
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
/// Headers, long names and PAX records of one entry, which are in memory: a path has 4,096 bytes, extended attributes
/// 64 KiB each, and a file of the tree 256 of them.
const HEADERS_BYTES_MAX: u64 = 24 << 20;
/// Extended attributes of files that are under way: those of one file in any case, and no more than these of several.
const ATTRIBUTES_BYTES_MAX: usize = 8 << 20;
/// Limits of a directory: two numbers with their names.
const QUOTA_BYTES_MAX: usize = 256;
/// Names of one directory: a million of the longest.
const NAMES_BYTES_MAX: u64 = 256 << 20;
/// Users that a container has; the others become nobody.
const UIDS: u64 = 65_536;
const NOBODY: u32 = 65_534;
/// Of a mode: set-user-id and set-group-id.
const SET_IDS: u32 = 0o6000;

/// What tar says when some of it could not be extracted.
const INCOMPLETE: u8 = 2;

#[derive(Args, Debug)]
pub struct Options {
    /// Directory as programs see it, in the container's tree; made when it is not there.
    destination: PathBuf,
    /// The archive has one file or directory, of this name: it goes into the destination, where that is a directory, or
    /// becomes it.
    #[arg(long, allow_hyphen_values = true)]
    top: Option<OsString>,
    /// Everything belongs to who unpacks.
    #[arg(long)]
    mine: bool,
    /// The archive has what changed: what its directories do not have any more goes.
    #[arg(long, conflicts_with = "top")]
    changes: bool,
    /// The archive is of a backup: extended attributes and quotas of directories are as they were, too.
    #[arg(long, conflicts_with_all = ["top", "mine"])]
    faithful: bool,
}

/// Where an archive goes.
#[derive(Clone, Debug)]
pub struct Target {
    /// A directory.
    pub base: PathBuf,
    /// Below it; made when it is not there.
    pub inside: PathBuf,
    /// What the first part of every name becomes.
    pub top: Option<OsString>,
    pub owners: Owners,
    /// Directories that say what is in them lose what they do not say.
    pub changes: bool,
    pub attributes: Attributes,
}

/// What of the extended attributes is set.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Attributes {
    /// What the file system takes.
    AsFarAsPossible,
    /// All, and quotas of directories.
    Faithful,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Owners {
    AsPacked,
    /// Who unpacks.
    Mine,
}

impl Target {
    /// Of an archive with one file or directory at its top, as `cp` does it.
    fn of_one(mut self, name: &OsStr) -> Target {
        let whole = self.base.join(&self.inside);
        match self.inside.file_name().map(OsStr::to_owned) {
            Some(last) if !whole.is_dir() => {
                self.inside.pop();
                self.top = Some(last);
            }
            _ => self.top = Some(name.to_owned()),
        }
        self
    }

    fn named(&self, path: PathBuf) -> PathBuf {
        let Some(top) = &self.top else { return path };
        let mut parts = path.components();
        match parts.next() {
            Some(_) => Path::new(top).join(parts.as_path()),
            None => path,
        }
    }
}

#[derive(Debug, thiserror::Error)]
pub enum UnpackError {
    #[error("the archive cannot be read")]
    Archive(#[source] io::Error),
    /// Without the cause: it quotes what is there in place of a header.
    #[error("the archive is damaged after {entries} entries")]
    Damaged { entries: u64 },
    #[error(transparent)]
    Decompress(#[from] DecompressError),
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
    // A tree that is removed is open at each of its levels.
    let most = getrlimit(Resource::Nofile).maximum;
    let _ = setrlimit(Resource::Nofile, Rlimit { current: most, maximum: most });
    let inside = options.destination.strip_prefix(super::TREE).unwrap_or(&options.destination);
    let owners = if options.mine { Owners::Mine } else { Owners::AsPacked };
    let changes = options.changes;
    let attributes = if options.faithful { Attributes::Faithful } else { Attributes::AsFarAsPossible };
    let target = Target { base: super::TREE.into(), inside: inside.to_owned(), top: None, owners, changes, attributes };
    let target = match &options.top {
        Some(name) => target.of_one(name),
        None => target,
    };
    match unpack(stdin, &target) {
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
pub fn unpack(stream: impl Read + Send + 'static, target: &Target) -> Result<u64, UnpackError> {
    let Target { base, inside, .. } = target;
    let make = |source| UnpackError::Make { path: base.join(inside), source };
    let tree = Arc::new(Beneath::open(base, inside).map_err(make)?);
    if target.changes && target.attributes == Attributes::Faithful && base == Path::new(super::TREE) {
        // What comes may be more than they allow as long as not all is gone that goes; they are told again.
        quota::end_all().map_err(make)?;
    }
    let (stream, decompressor) = plain(stream)?;
    let mut unpacker =
        Unpacker { makers: Makers::start(tree.clone())?, tree, directories: Vec::new(), target: target.clone() };
    let allowance = Allowance::default();
    let mut archive =
        Archive::new(Allowed { source: BufReader::with_capacity(PIECE_BYTES, stream), left: allowance.clone() });
    let mut entries = archive.entries().map_err(UnpackError::Archive)?;
    let (mut count, mut unread) = (0, 0_u64);
    loop {
        allowance.set(unread.saturating_add(HEADERS_BYTES_MAX));
        let Some(entry) = entries.next() else { break };
        let mut entry = entry.map_err(|error| match error.kind() {
            io::ErrorKind::Other | io::ErrorKind::InvalidData | io::ErrorKind::InvalidInput => {
                UnpackError::Damaged { entries: count }
            }
            _ => UnpackError::Archive(error),
        })?;
        // Of a sparse file fewer bytes are stored than it has.
        let stored = match entry.header().entry_type().is_gnu_sparse() {
            true => entry.header().entry_size().unwrap_or_default(),
            false => entry.size(),
        };
        allowance.set(u64::MAX);
        unpacker.entry(&mut entry)?;
        unread = stored.saturating_sub(u64::MAX - allowance.get());
        count += 1;
    }
    allowance.set(u64::MAX);
    // Who pads an archive shall not meet a closed pipe.
    let padding = io::copy(&mut archive.into_inner(), &mut io::sink()).map_err(UnpackError::Archive)?;
    if let Some(decompressor) = decompressor {
        decompressor.end()?;
    }
    if padding == 0 && count > 0 {
        eprintln!("the archive has no end mark: it may have been cut off");
    }
    unpacker.makers.settle();
    unpacker.finish_directories();
    Ok(unpacker.makers.end())
}

/// Bytes that may be read before somebody looks again.
type Allowance = Rc<Cell<u64>>;

/// A stream of which no more is read than is allowed.
struct Allowed<R> {
    source: R,
    left: Allowance,
}

impl<R: Read> Read for Allowed<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let room = self.left.get().min(buffer.len() as u64) as usize;
        if room == 0 && !buffer.is_empty() {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "an entry whose headers have no end"));
        }
        let count = self.source.read(&mut buffer[..room])?;
        self.left.set(self.left.get() - count as u64);
        Ok(count)
    }
}

/// What an entry has besides its data.
#[derive(Clone, Debug)]
struct Meta {
    mode: u32,
    uid: u32,
    gid: u32,
    mtime: Timespec,
    extended: Vec<Extended>,
    attributes: Attributes,
    /// Limits of a directory; none: it has none, as far as that was told.
    quota: Option<Vec<u8>>,
    /// What is there has attributes and limits that the archive does not have.
    replaces: bool,
}

impl Meta {
    fn extended_bytes(&self) -> usize {
        self.extended.iter().map(|it| it.name.len() + it.value.len()).sum()
    }
}

/// What a directory gets when all is in it.
struct Last {
    mode: u32,
    uid: u32,
    gid: u32,
    mtime: Timespec,
    quota: Option<Vec<u8>>,
}

struct Unpacker {
    tree: Arc<Beneath>,
    makers: Makers,
    directories: Vec<(PathBuf, Last)>,
    target: Target,
}

impl Unpacker {
    /// Fails only where the rest of the archive cannot be read.
    fn entry(&mut self, entry: &mut Entry<'_, impl Read>) -> Result<(), UnpackError> {
        let kind = kind_of(entry);
        if matches!(kind, EntryType::XGlobalHeader) {
            return Ok(());
        }
        let mut name = PathBuf::from(OsStr::from_bytes(&entry.path_bytes()));
        let result = match extras(entry) {
            Ok((mut meta, sparse)) => {
                if self.target.owners == Owners::Mine {
                    meta.uid = rustix::process::geteuid().as_raw();
                    meta.gid = rustix::process::getegid().as_raw();
                    // What somebody packed must not run with the rights of who unpacks.
                    meta.mode &= !SET_IDS;
                    meta.extended.retain(|it| it.name.starts_with(b"user."));
                }
                meta.attributes = self.target.attributes;
                meta.replaces = self.target.changes && self.target.attributes == Attributes::Faithful;
                name = sparse.as_ref().and_then(|sparse| sparse.name.clone()).unwrap_or(name);
                match parts(&name).map(|path| self.target.named(path)) {
                    Ok(path) if kind.is_file() || kind.is_contiguous() || kind.is_gnu_sparse() => {
                        return self.file(path, meta, sparse, entry);
                    }
                    Ok(path) => self.other(&path, &meta, kind, entry),
                    Err(error) => Err(error),
                }
            }
            Err(error) => Err(error),
        };
        if let Err(error) = result {
            self.makers.failed(&name, &error);
        }
        Ok(())
    }

    fn other(&mut self, path: &Path, meta: &Meta, kind: EntryType, entry: &mut Entry<'_, impl Read>) -> io::Result<()> {
        let mode = Mode::from_raw_mode(meta.mode & 0o7777);
        let lists = self.target.changes && kind.as_byte() == pack::NAMES;
        if lists {
            // Before anything in it is made, and after all that was told before.
            self.makers.settle();
            self.keep_only(path, entry)?;
        }
        if kind == EntryType::Directory || lists {
            if !path.as_os_str().is_empty() {
                self.makers.settle_name(path);
                let (parent, name) = self.tree.place(path)?;
                make_directory(&self.tree, &parent, name, mode)?;
            }
            let Meta { mode, uid, gid, mtime, attributes, ref quota, .. } = *meta;
            let last =
                Last { mode, uid, gid, mtime, quota: quota.clone().filter(|_| attributes == Attributes::Faithful) };
            self.directories.push((path.to_owned(), last));
            if meta.replaces || !meta.extended.is_empty() {
                let directory = self.tree.existing(path)?;
                if meta.replaces {
                    extended::keep_only(&directory, &meta.extended)?;
                }
                attribute(&directory, meta)?;
            }
            return Ok(());
        }
        if matches!(kind, EntryType::Char | EntryType::Block) {
            eprintln!("left out (device): {}", crate::output::printable(&path.to_string_lossy()));
            return Ok(());
        }
        let (parent, name) = self.tree.place(path)?;
        let target = || entry.link_name_bytes().ok_or_else(|| io::Error::from(io::ErrorKind::InvalidData));
        match kind {
            EntryType::Link => {
                let target = self.target.named(parts(Path::new(OsStr::from_bytes(&target()?)))?);
                // The target, or an older file of this name, may still be under way.
                self.makers.settle();
                let (other, old) = self.tree.place_there(&target)?;
                let link = || rustix::fs::linkat(&other, old, &parent, name, AtFlags::empty());
                replacing(&self.tree, &parent, name, link)
            }
            EntryType::Symlink => {
                let target = target()?;
                self.makers.settle_name(path);
                let link = || rustix::fs::symlinkat(OsStr::from_bytes(&target), &parent, name);
                replacing(&self.tree, &parent, name, link)?;
                dress(&parent, name, FileType::Symlink, meta)
            }
            EntryType::Fifo => {
                self.makers.settle_name(path);
                replacing(&self.tree, &parent, name, || rustix::fs::mkfifoat(&parent, name, mode))?;
                dress(&parent, name, FileType::Fifo, meta)
            }
            _ => Err(io::Error::new(io::ErrorKind::Unsupported, "neither file, directory, link nor FIFO")),
        }
    }

    /// Takes away what a directory has no more, and what has another kind now.
    fn keep_only(&self, path: &Path, entry: &mut Entry<'_, impl Read>) -> io::Result<()> {
        let mut data = Vec::new();
        entry.take(NAMES_BYTES_MAX + 1).read_to_end(&mut data)?;
        let refused = |text| io::Error::new(io::ErrorKind::InvalidData, text);
        if data.len() as u64 > NAMES_BYTES_MAX || data.pop() != Some(0) {
            return Err(refused("what is in the directory cannot be understood"));
        }
        let mut kept = HashMap::new();
        for line in data.split(|byte| *byte == 0).filter(|line| !line.is_empty()) {
            let (kind, name) = line.split_first().ok_or_else(|| refused("a name is missing"))?;
            kept.insert(OsStr::from_bytes(name), *kind);
        }
        let directory = match self.tree.existing(path) {
            // It is about to be made.
            Err(Errno::NOENT | Errno::NOTDIR) => return Ok(()),
            found => found?,
        };
        let mut names = Vec::new();
        for entry in rustix::fs::Dir::read_from(&directory)? {
            let entry = entry?;
            let name = OsStr::from_bytes(entry.file_name().to_bytes()).to_owned();
            let is_dir = entry.file_type() == FileType::Directory;
            let stays = match kept.get(name.as_os_str()) {
                Some(&pack::DIRECTORY) => is_dir,
                Some(_) => !is_dir,
                None => name == "." || name == "..",
            };
            if !stays {
                names.push(name);
            }
        }
        names.iter().try_for_each(|name| self.tree.remove(&directory, name))
    }

    fn file(
        &mut self,
        path: PathBuf,
        meta: Meta,
        sparse: Option<Sparse>,
        entry: &mut Entry<'_, impl Read>,
    ) -> Result<(), UnpackError> {
        let (stored, is_filled) = (entry.size(), entry.header().entry_type().is_gnu_sparse());
        let contents = match &sparse {
            Some(sparse) => Contents::sparse(entry, stored, sparse),
            None if is_filled => Ok(Contents::filled(entry, stored)),
            None => Ok(Contents::plain(entry, stored)),
        };
        let mut contents = match contents {
            Ok(contents) => contents,
            Err(error) => {
                self.makers.failed(&path, &error);
                return Ok(());
            }
        };
        self.makers.settle_name(&path);
        let (pieces, data) = sync_channel(PIECES_MAX);
        let mut work = Some(Work { path, meta, bytes: contents.bytes, has_holes: contents.has_holes(), data });
        loop {
            let piece = contents.next(PIECE_BYTES).map_err(UnpackError::Archive)?;
            let is_last = piece.is_none();
            // Who cannot make the file takes no more pieces; what is left of it is passed over.
            let is_taken = piece.is_none_or(|piece| pieces.send(piece).is_ok());
            // The first piece is there before the thread looks, so that it need not wait for short files.
            if let Some(work) = work.take() {
                self.makers.give(work);
            }
            if is_last || !is_taken {
                return Ok(());
            }
        }
    }

    fn finish_directories(&mut self) {
        // Children first: a parent's time changes no more after its own turn.
        for (path, last) in std::mem::take(&mut self.directories).iter().rev() {
            let result = match self.tree.existing(path) {
                // A later entry took its place.
                Err(Errno::NOTDIR | Errno::LOOP | Errno::NOENT) => Ok(()),
                Err(error) => Err(error.into()),
                Ok(directory) => last.carry_out(&directory),
            };
            if let Err(error) = result {
                self.makers.failed(path, &error);
            }
        }
    }
}

/// Archives older than POSIX have a slash after the names of directories.
fn kind_of(entry: &Entry<'_, impl Read>) -> EntryType {
    match entry.header().entry_type() {
        EntryType::Regular if entry.path_bytes().ends_with(b"/") => EntryType::Directory,
        kind => kind,
    }
}

/// What the header and PAX records say.
fn extras(entry: &mut Entry<'_, impl Read>) -> io::Result<(Meta, Option<Sparse>)> {
    let (mut exact, mut sparse, mut extended) = (None, None, Vec::new());
    if let Some(extensions) = entry.pax_extensions()? {
        for extension in extensions.flatten() {
            match extension.key() {
                Ok("mtime") => exact = extension.value().ok().and_then(parse_time),
                Ok(key) => {
                    if let Some(key) = key.strip_prefix("GNU.sparse.") {
                        sparse.get_or_insert_with(Sparse::default).learn(key, extension.value_bytes());
                    }
                    extended.extend(extended::of_record(key, extension.value_bytes()));
                }
                Err(_) => (),
            }
        }
    }
    let quota = |it: &Extended| it.name == extended::QUOTA_NAME.as_bytes();
    let limits = extended.iter().find(|it| quota(it)).map(|it| it.value.clone());
    if limits.as_ref().is_some_and(|limits| limits.len() > QUOTA_BYTES_MAX) {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "its limits make no sense"));
    }
    extended.retain(|it: &Extended| !it.name.starts_with(b"dvs."));
    let header = entry.header();
    let seconds = i64::try_from(header.mtime()?).unwrap_or(i64::MAX);
    let owner = |id: u64| if id < UIDS { id as u32 } else { NOBODY };
    let meta = Meta {
        mode: header.mode()?,
        uid: owner(header.uid()?),
        gid: owner(header.gid()?),
        mtime: exact.unwrap_or(Timespec { tv_sec: seconds, tv_nsec: 0 }),
        extended,
        attributes: Attributes::AsFarAsPossible,
        quota: limits,
        replaces: false,
    };
    Ok((meta, sparse))
}

/// `seconds.fraction` as PAX writes it; times before 1970 are left to the header.
fn parse_time(text: &str) -> Option<Timespec> {
    let (seconds, fraction) = text.split_once('.').unwrap_or((text, ""));
    let digits: String = fraction.chars().chain("000000000".chars()).take(9).collect();
    let seconds: u64 = seconds.parse().ok()?;
    Some(Timespec { tv_sec: i64::try_from(seconds).ok()?, tv_nsec: digits.parse::<u32>().ok()?.into() })
}

fn times(mtime: Timespec) -> Timestamps {
    Timestamps { last_access: mtime, last_modification: mtime }
}

/// As tar does: what is there makes way, except that a directory stays a directory.
fn make_directory(tree: &Beneath, parent: &File, name: &OsStr, mode: Mode) -> io::Result<()> {
    match rustix::fs::mkdirat(parent, name, mode) {
        Err(Errno::EXIST) => (),
        other => return Ok(other?),
    }
    let there = rustix::fs::statat(parent, name, AtFlags::SYMLINK_NOFOLLOW)?;
    if FileType::from_raw_mode(there.st_mode).is_dir() {
        return Ok(());
    }
    tree.clear(parent, name)?;
    Ok(rustix::fs::mkdirat(parent, name, mode)?)
}

fn replacing<T>(tree: &Beneath, parent: &File, name: &OsStr, make: impl Fn() -> Result<T, Errno>) -> io::Result<T> {
    match make() {
        Err(Errno::EXIST) => {
            tree.clear(parent, name)?;
            Ok(make()?)
        }
        other => Ok(other?),
    }
}

/// Owner and times of what is no file. Only of what we made: somebody may have put another thing in its place.
fn dress(parent: &File, name: &OsStr, kind: FileType, meta: &Meta) -> io::Result<()> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let made = rustix::fs::openat(parent, name, flags, Mode::empty())?;
    let now = rustix::fs::fstat(&made)?;
    if FileType::from_raw_mode(now.st_mode) != kind || now.st_nlink != 1 {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "somebody else put something in its place"));
    }
    if (now.st_uid, now.st_gid) != (meta.uid, meta.gid) {
        let (uid, gid) = (rustix::fs::Uid::from_raw(meta.uid), rustix::fs::Gid::from_raw(meta.gid));
        rustix::fs::chownat(&made, "", Some(uid), Some(gid), AtFlags::EMPTY_PATH)?;
    }
    Ok(utimensat(&made, "", &times(meta.mtime), AtFlags::EMPTY_PATH)?)
}

/// Owner and mode of a file or directory. A change of owner takes set-user-id away, so the mode comes after it.
fn own(made: &File, (uid, gid): (u32, u32), mode: u32) -> io::Result<()> {
    let now = made.metadata()?;
    let owner_changes = (now.uid(), now.gid()) != (uid, gid);
    if owner_changes {
        fchown(made, Some(uid), Some(gid))?;
    }
    if owner_changes || now.mode() & 0o7777 != mode & 0o7777 {
        made.set_permissions(Permissions::from_mode(mode & 0o7777))?;
    }
    Ok(())
}

/// What a file has besides its data. A change of owner takes capabilities away, so attributes come after it.
fn finish(made: &File, meta: &Meta) -> io::Result<()> {
    own(made, (meta.uid, meta.gid), meta.mode)?;
    attribute(made, meta)?;
    Ok(futimens(made.as_fd(), &times(meta.mtime))?)
}

fn attribute(made: &File, meta: &Meta) -> io::Result<()> {
    for it in &meta.extended {
        match extended::write(made, it) {
            Err(error) if !is_excused(&error, meta) => return Err(error),
            _ => {}
        }
    }
    Ok(())
}

impl Last {
    fn carry_out(&self, directory: &File) -> io::Result<()> {
        if let Some(value) = self.quota.clone() {
            extended::write(directory, &Extended { name: extended::QUOTA_NAME.into(), value })?;
        }
        own(directory, (self.uid, self.gid), self.mode)?;
        Ok(futimens(directory.as_fd(), &times(self.mtime))?)
    }
}

/// Whoever copies files to where such attributes are not kept, or not given to them, wants the files.
fn is_excused(error: &io::Error, meta: &Meta) -> bool {
    let is_refused = matches!(error.kind(), io::ErrorKind::Unsupported | io::ErrorKind::PermissionDenied);
    is_refused && meta.attributes == Attributes::AsFarAsPossible
}

/// A file to be made, and where its data comes from.
struct Work {
    path: PathBuf,
    meta: Meta,
    bytes: u64,
    has_holes: bool,
    data: Receiver<Piece>,
}

/// The threads that make files.
struct Makers {
    queue: Option<SyncSender<Work>>,
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

struct Shared {
    tree: Arc<Beneath>,
    placer: Placer,
    state: Mutex<State>,
    idle: Condvar,
}

#[derive(Default)]
struct State {
    /// With the bytes of their attributes.
    under_way: HashMap<PathBuf, usize>,
    failures: u64,
}

impl Makers {
    fn start(tree: Arc<Beneath>) -> Result<Makers, UnpackError> {
        let (queue, work) = sync_channel(WAITING_MAX);
        let shared = Shared { tree, placer: Placer::default(), state: Mutex::default(), idle: Condvar::new() };
        let (shared, work) = (Arc::new(shared), Arc::new(Mutex::new(work)));
        let mut threads = Vec::with_capacity(FILES_MAX);
        for index in 0..FILES_MAX {
            let (shared, work) = (shared.clone(), work.clone());
            let thread = std::thread::Builder::new().name(format!("unpack-{index}"));
            threads.push(thread.spawn(move || make_all(&shared, &work)).map_err(UnpackError::Thread)?);
        }
        Ok(Makers { queue: Some(queue), shared, threads })
    }

    /// Waits while there are too many attributes in memory.
    fn give(&self, work: Work) {
        let bytes = work.meta.extended_bytes();
        let mut state = self.shared.state.lock();
        while !state.has_room(bytes) {
            self.shared.idle.wait(&mut state);
        }
        state.under_way.insert(work.path.clone(), bytes);
        drop(state);
        // Fails only when no thread is left, and they stay as long as we do.
        if let Some(queue) = &self.queue
            && let Err(refused) = queue.send(work)
        {
            self.shared.done(&refused.0.path, Err(io::ErrorKind::BrokenPipe.into()));
        }
    }

    /// Waits until no file is under way.
    fn settle(&self) {
        let mut state = self.shared.state.lock();
        while !state.under_way.is_empty() {
            self.shared.idle.wait(&mut state);
        }
    }

    /// Waits, if this name is under way, or something below it.
    fn settle_name(&self, path: &Path) {
        let mut state = self.shared.state.lock();
        while state.under_way.keys().any(|busy| busy.starts_with(path)) {
            self.shared.idle.wait(&mut state);
        }
    }

    fn failed(&self, path: &Path, error: &io::Error) {
        self.shared.state.lock().failed(path, error);
    }

    fn end(mut self) -> u64 {
        self.queue = None;
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
        self.shared.state.lock().failures
    }
}

impl Shared {
    fn done(&self, path: &Path, result: io::Result<()>) {
        let mut state = self.state.lock();
        if let Err(error) = result {
            state.failed(path, &error);
        }
        state.under_way.remove(path);
        drop(state);
        self.idle.notify_all();
    }
}

impl State {
    fn has_room(&self, bytes: usize) -> bool {
        let taken: usize = self.under_way.values().sum();
        bytes == 0 || taken == 0 || taken + bytes <= ATTRIBUTES_BYTES_MAX
    }

    fn failed(&mut self, path: &Path, error: &io::Error) {
        self.failures += 1;
        if self.failures <= TOLD_MAX {
            eprintln!("{}: {error}", crate::output::printable(&path.to_string_lossy()));
        }
    }
}

fn make_all(shared: &Shared, queue: &Mutex<Receiver<Work>>) {
    loop {
        let next = queue.lock().recv();
        let Ok(work) = next else { return };
        let result = make_file(shared, &work);
        let path = work.path;
        // The attributes are gone when they are counted no more.
        drop(work.meta);
        shared.done(&path, result);
    }
}

fn make_file(shared: &Shared, work: &Work) -> io::Result<()> {
    let (parent, name) = shared.tree.place(&work.path)?;
    let mut first = None;
    if placing::is_short(name, work.bytes) && work.meta.extended.is_empty() && !work.has_holes {
        first = work.data.recv().ok();
        let content = first.as_ref().map_or(&[][..], |piece| &piece.data);
        if shared.placer.place(&parent, name, &work.meta, content)? == Placed::Yes {
            return Ok(());
        }
    }
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let mode = Mode::from_raw_mode(work.meta.mode & 0o777);
    let file = replacing(&shared.tree, &parent, name, || rustix::fs::openat(&*parent, name, flags, mode))?;
    write_file(File::from(file), work, first.into_iter().chain(&work.data))
}

fn write_file(mut file: File, work: &Work, data: impl Iterator<Item = Piece>) -> io::Result<()> {
    if !work.has_holes {
        for Piece { data, .. } in data {
            file.write_all(&data)?;
        }
        return finish(&file, &work.meta);
    }
    // What no piece has is there with it. A length that cannot be is refused before anything is written.
    file.set_len(work.bytes)?;
    for Piece { offset, data } in data {
        for run in runs(&data) {
            file.write_all_at(data.get(run.clone()).unwrap_or_default(), offset + run.start as u64)?;
        }
    }
    finish(&file, &work.meta)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

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

    fn unpacked(archive: Vec<u8>, target: &Path) -> u64 {
        unpacked_to(archive, target, "")
    }

    /// To the directory `inside` of `base`.
    fn unpack(stream: impl Read + Send + 'static, base: &Path, inside: &Path) -> Result<u64, UnpackError> {
        let target = Target {
            base: base.into(),
            inside: inside.into(),
            top: None,
            owners: Owners::AsPacked,
            changes: false,
            attributes: Attributes::AsFarAsPossible,
        };
        super::unpack(stream, &target)
    }

    #[test]
    fn archive_of_one_becomes_the_destination_or_goes_into_it() {
        let place = tempfile::tempdir().unwrap();
        let archive = || {
            let mut archive = Builder::new(Vec::new());
            add(&mut archive, "www/page", b"hello");
            archive.append_link(&mut header(EntryType::Link, 0), "www/same", "www/page").unwrap();
            archive.into_inner().unwrap()
        };
        let to = |inside: &str| {
            let target = Target {
                base: place.path().into(),
                inside: inside.into(),
                top: None,
                owners: Owners::Mine,
                changes: false,
                attributes: Attributes::AsFarAsPossible,
            };
            assert_eq!(super::unpack(io::Cursor::new(archive()), &target.of_one(OsStr::new("www"))).unwrap(), 0);
        };
        let there = |path: &str| std::fs::read(place.path().join(path)).unwrap();
        to("site");
        let mode = std::fs::metadata(place.path().join("site/page")).unwrap().mode();
        assert_eq!(mode & 0o7777, 0o751, "nobody packs a program that runs as who unpacks it");
        to("site");
        assert_eq!([there("site/page"), there("site/same"), there("site/www/same")], [b"hello"; 3]);
        to("");
        assert_eq!(there("www/page"), b"hello");
    }

    fn unpacked_to(archive: Vec<u8>, base: &Path, inside: &str) -> u64 {
        unpack(io::Cursor::new(archive), base, Path::new(inside)).unwrap()
    }

    /// An entry as somebody writes it who does not mean well: the name is not looked at.
    fn add_raw(archive: &mut Builder<Vec<u8>>, name: &str, kind: EntryType, target: &str, data: &[u8]) {
        let mut header = header(kind, data.len() as u64);
        header.set_mode(0o755);
        header.as_old_mut().name[..name.len()].copy_from_slice(name.as_bytes());
        header.as_old_mut().linkname[..target.len()].copy_from_slice(target.as_bytes());
        header.set_cksum();
        archive.append(&header, data).unwrap();
    }

    fn below(root: &Path) -> Vec<String> {
        let (mut names, mut waiting) = (Vec::new(), vec![root.to_owned()]);
        while let Some(directory) = waiting.pop() {
            // One of the tests moves a directory away while others look.
            for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
                names.push(entry.path().strip_prefix(root).unwrap().to_str().unwrap().to_owned());
                waiting.extend(entry.file_type().is_ok_and(|kind| kind.is_dir()).then(|| entry.path()));
            }
        }
        names.sort();
        names
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
        assert_eq!(unpacked(bytes, target.path()), 0);
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

    fn packed(source: &Path) -> Vec<u8> {
        let (mut chunks, packing) = super::super::pack::directory(source.to_owned(), Arc::default());
        let mut bytes = Vec::new();
        while let Some(chunk) = chunks.blocking_recv() {
            bytes.extend_from_slice(&chunk);
        }
        packing.join().unwrap().unwrap();
        bytes
    }

    #[test]
    fn attributes_and_holes_come_out_as_they_were_and_say_nothing_but_themselves() {
        let source = tempfile::tempdir().unwrap();
        let file = File::create(source.path().join("file")).unwrap();
        let extended = |name: &str, value: &[u8]| Extended { name: name.into(), value: value.to_vec() };
        let evil = [extended("user.a", b"x\n20 path=etc/passwd\n"), extended("user.b", b"plain")];
        for it in &evil {
            if let Err(error) = extended::write(&file, it) {
                return eprintln!("SKIPPED: no attributes in the directory of temporary files: {error}");
            }
        }
        extended::write(&File::open(source.path()).unwrap(), &evil[1]).unwrap();
        let holes = File::create(source.path().join("holes")).unwrap();
        for at in [0_u64, 5 << 20, 9 << 20] {
            std::os::unix::fs::FileExt::write_all_at(&holes, &[7; 4096], at).unwrap();
        }
        holes.set_len(12 << 20).unwrap();
        fs::write(source.path().join("z"), b"after").unwrap();
        let bytes = packed(source.path());
        assert!(bytes.len() < 1 << 20, "{}", bytes.len());

        let check = |target: &Path, of_file: &[Extended]| {
            assert_eq!(below(target), ["file", "holes", "z"]);
            let read = |name: &str| extended::read(&target.join(name), extended::Kept::OfAnother).unwrap();
            assert_eq!((read("file").as_slice(), read("")), (of_file, vec![evil[1].clone()]));
            assert_eq!(fs::read(target.join("holes")).unwrap(), fs::read(source.path().join("holes")).unwrap());
            assert!(fs::metadata(target.join("holes")).unwrap().blocks() <= 64, "it has its holes");
            assert_eq!(fs::read(target.join("z")).unwrap(), b"after");
        };
        let target = tempfile::tempdir().unwrap();
        assert_eq!(unpacked(bytes.clone(), target.path()), 0);
        check(target.path(), &evil);

        let target = tempfile::tempdir().unwrap();
        let mut tar = std::process::Command::new("tar")
            .args(["--extract", "--xattrs", "--warning=no-unknown-keyword", "--file", "-", "--directory"])
            .arg(target.path())
            .stdin(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        tar.stdin.take().unwrap().write_all(&bytes).unwrap();
        assert!(tar.wait().unwrap().success());
        // What has several lines GNU's does not know.
        check(target.path(), &evil[1..]);
    }

    #[test]
    fn attributes_that_are_not_taken_are_a_failure_only_of_a_backup() {
        let mut archive = Builder::new(Vec::new());
        let refused = [("SCHILY.xattr.nonsense.a", &b"x"[..])];
        archive.append_pax_extensions(refused).unwrap();
        add(&mut archive, "a", b"content");
        let bytes = archive.into_inner().unwrap();
        for (attributes, failures) in [(Attributes::AsFarAsPossible, 0), (Attributes::Faithful, 1)] {
            let place = tempfile::tempdir().unwrap();
            let (base, inside, owners) = (place.path().into(), PathBuf::new(), Owners::AsPacked);
            let target = Target { base, inside, top: None, owners, changes: false, attributes };
            assert_eq!(super::unpack(io::Cursor::new(bytes.clone()), &target).unwrap(), failures);
            assert_eq!(fs::read(place.path().join("a")).unwrap(), b"content");
        }
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
        assert_eq!(unpacked(archive.into_inner().unwrap(), target.path()), 0);
        assert_eq!(fs::read(target.path().join("a")).unwrap(), [49; 100]);
        assert_eq!(fs::read(target.path().join("other")).unwrap(), b"untouched");
        assert_eq!(fs::metadata(target.path().join("a")).unwrap().mode() & 0o7777, 0o4751);
        assert_eq!(fs::read(target.path().join("not/there/yet")).unwrap(), b"x");
    }

    #[test]
    fn name_that_leads_out_is_refused_and_the_rest_is_unpacked() {
        let mut archive = Builder::new(Vec::new());
        for name in ["../out", "a/../../out", "/abs/./x", "fine"] {
            add_raw(&mut archive, name, EntryType::Regular, "", b"x");
        }
        let place = tempfile::tempdir().unwrap();
        assert_eq!(unpacked_to(archive.into_inner().unwrap(), place.path(), "d"), 2);
        assert_eq!(below(place.path()), ["d", "d/abs", "d/abs/x", "d/fine"]);
    }

    #[test]
    fn file_that_cannot_be_made_costs_only_itself() {
        let target = tempfile::tempdir().unwrap();
        fs::create_dir_all(target.path().join("a/full")).unwrap();
        let mut archive = Builder::new(Vec::new());
        add(&mut archive, "a", &vec![1; 10 * PIECE_BYTES]);
        add(&mut archive, "b", b"x");
        assert_eq!(unpacked(archive.into_inner().unwrap(), target.path()), 1);
        assert_eq!(fs::read(target.path().join("b")).unwrap(), b"x");
    }

    #[test]
    fn archive_that_ends_early_is_an_error() {
        let mut archive = Builder::new(Vec::new());
        add(&mut archive, "a", &[1; 4000]);
        let bytes = archive.into_inner().unwrap();
        let target = tempfile::tempdir().unwrap();
        assert!(unpack(io::Cursor::new(bytes[..2000].to_vec()), target.path(), Path::new("")).is_err());
    }

    #[test]
    fn times_are_read_to_the_nanosecond() {
        let time = parse_time("12.5").unwrap();
        assert_eq!((time.tv_sec, time.tv_nsec), (12, 500_000_000));
        assert_eq!(parse_time("7").unwrap().tv_nsec, 0);
        assert!(parse_time("-1.5").is_none() && parse_time("x").is_none());
    }

    /// A destination, and beside it what an archive has no business with.
    struct World {
        place: tempfile::TempDir,
        archive: Builder<Vec<u8>>,
    }

    impl World {
        fn new() -> World {
            let place = tempfile::tempdir().unwrap();
            fs::create_dir_all(place.path().join("out")).unwrap();
            fs::write(place.path().join("out/secret"), "secret").unwrap();
            fs::create_dir(place.path().join("dest")).unwrap();
            World { place, archive: Builder::new(Vec::new()) }
        }

        fn outside(&self) -> String {
            self.place.path().join("out").to_str().unwrap().to_owned()
        }

        fn add(&mut self, name: &str, kind: EntryType, target: &str) {
            let data: &[u8] = if kind.is_file() { b"evil" } else { b"" };
            add_raw(&mut self.archive, name, kind, target, data);
        }

        /// How many entries failed, and what is at the destination. Nothing outside has changed.
        fn unpack(self) -> (u64, Vec<String>) {
            let failed = unpacked_to(self.archive.into_inner().unwrap(), self.place.path(), "dest");
            let out = self.place.path().join("out");
            assert_eq!(below(&out), ["secret"]);
            let secret = fs::metadata(out.join("secret")).unwrap();
            assert_eq!((fs::read(out.join("secret")).unwrap(), secret.nlink()), (b"secret".to_vec(), 1));
            assert_eq!(
                fs::metadata(&out).unwrap().mode() & 0o7777,
                fs::metadata(self.place.path().join("dest")).unwrap().mode() & 0o7777
            );
            (failed, below(&self.place.path().join("dest")))
        }
    }

    #[test]
    fn nothing_is_written_through_a_link_that_the_archive_made() {
        let mut world = World::new();
        let out = world.outside();
        world.add("a", EntryType::Symlink, &out);
        world.add("a/passwd", EntryType::Regular, "");
        world.add("a/deep/er", EntryType::Regular, "");
        world.add("a/link", EntryType::Symlink, "x");
        world.add("a/fifo", EntryType::Fifo, "");
        world.add("a/directory", EntryType::Directory, "");
        world.add("up", EntryType::Symlink, "..");
        world.add("up/out/more", EntryType::Regular, "");
        world.add("fine", EntryType::Regular, "");
        assert_eq!(world.unpack(), (6, ["a", "fine", "up"].map(str::to_owned).to_vec()));
    }

    #[test]
    fn hard_link_reaches_nothing_outside() {
        let mut world = World::new();
        let out = world.outside();
        world.add("a", EntryType::Symlink, &out);
        world.add("one", EntryType::Link, "a/secret");
        world.add("two", EntryType::Link, "../out/secret");
        world.add("three", EntryType::Link, &format!("{out}/secret"));
        // A name for the link itself, which a file then takes the place of.
        world.add("s", EntryType::Symlink, &format!("{out}/secret"));
        world.add("four", EntryType::Link, "s");
        world.add("four", EntryType::Regular, "");
        assert_eq!(world.unpack(), (3, ["a", "four", "s"].map(str::to_owned).to_vec()));
    }

    #[test]
    fn link_in_place_of_a_directory_changes_nothing_outside() {
        let mut world = World::new();
        let out = world.outside();
        // Its mode and time would be set at the end, through the link.
        world.add("d", EntryType::Directory, "");
        world.add("d", EntryType::Symlink, &out);
        world.add("d/passwd", EntryType::Regular, "");
        // One with something in it stays.
        world.add("e/file", EntryType::Regular, "");
        world.add("e", EntryType::Symlink, &out);
        world.add("e/other", EntryType::Regular, "");
        // And a directory takes the place of a link.
        world.add("f", EntryType::Symlink, &out);
        world.add("f", EntryType::Directory, "");
        world.add("f/file", EntryType::Regular, "");
        let expected = ["d", "e", "e/file", "e/other", "f", "f/file"].map(str::to_owned).to_vec();
        assert_eq!(world.unpack(), (2, expected));
    }

    #[test]
    fn destination_may_be_reached_through_links_that_stay_in_the_tree_and_no_others() {
        let place = tempfile::tempdir().unwrap();
        fs::create_dir_all(place.path().join("tree/releases/5")).unwrap();
        symlink("releases/5", place.path().join("tree/current")).unwrap();
        symlink("..", place.path().join("tree/up")).unwrap();
        let archive = || {
            let mut archive = Builder::new(Vec::new());
            add(&mut archive, "file", b"x");
            archive.into_inner().unwrap()
        };
        assert_eq!(unpacked_to(archive(), &place.path().join("tree"), "current/new"), 0);
        assert!(place.path().join("tree/releases/5/new/file").exists());
        assert!(unpack(io::Cursor::new(archive()), &place.path().join("tree"), Path::new("up/x")).is_err());
        assert_eq!(fs::read_dir(place.path()).unwrap().count(), 1);
    }

    /// Somebody who can write to the destination puts a link in place of a directory, over and over.
    #[test]
    fn link_that_comes_and_goes_meanwhile_is_never_followed() {
        const FILES: u32 = 3000;
        let mut world = World::new();
        for index in 0..FILES {
            world.add(&format!("d/{index}"), EntryType::Regular, "");
        }
        let (dest, out) = (world.place.path().join("dest"), world.outside());
        let is_over = Arc::new(std::sync::atomic::AtomicBool::new(false));
        let swapping = std::thread::spawn({
            let is_over = is_over.clone();
            move || {
                while !is_over.load(std::sync::atomic::Ordering::Relaxed) {
                    let _ = fs::rename(dest.join("d"), dest.join("away"));
                    let _ = symlink(&out, dest.join("d"));
                    let _ = fs::remove_file(dest.join("d"));
                    let _ = fs::rename(dest.join("away"), dest.join("d"));
                }
            }
        });
        world.unpack();
        is_over.store(true, std::sync::atomic::Ordering::Relaxed);
        swapping.join().unwrap();
    }

    #[test]
    fn devices_are_left_out_and_long_names_cost_only_themselves() {
        let mut world = World::new();
        world.add("null", EntryType::Char, "");
        world.add("disk", EntryType::Block, "");
        add(&mut world.archive, &"n".repeat(300), b"x");
        add(&mut world.archive, &"deep/".repeat(2000), b"x");
        let fits = format!("{}file", "deep/".repeat(100));
        add(&mut world.archive, &fits, b"x");
        let (failed, made) = world.unpack();
        assert_eq!((failed, made.len(), made.last()), (2, 101, Some(&fits)));
    }

    #[test]
    fn name_without_an_end_is_refused_before_it_fills_the_memory() {
        let mut archive = Builder::new(Vec::new());
        let long = vec![b'n'; HEADERS_BYTES_MAX as usize + 1];
        let mut header = header(EntryType::GNULongName, long.len() as u64);
        header.set_cksum();
        archive.append(&header, long.as_slice()).unwrap();
        add(&mut archive, "a", b"x");
        let target = tempfile::tempdir().unwrap();
        let result = unpack(io::Cursor::new(archive.into_inner().unwrap()), target.path(), Path::new(""));
        assert!(matches!(result, Err(UnpackError::Damaged { entries: 0 })), "{result:?}");
    }

    #[test]
    fn owner_that_a_container_does_not_have_becomes_nobody() {
        let mut archive = Builder::new(Vec::new());
        let mut header = header(EntryType::Regular, 1);
        header.set_uid(100_000);
        header.set_gid(65_535);
        archive.append_data(&mut header, "a", &b"x"[..]).unwrap();
        let target = tempfile::tempdir().unwrap();
        assert_eq!(unpacked(archive.into_inner().unwrap(), target.path()), 0);
        let made = fs::metadata(target.path().join("a")).unwrap();
        assert_eq!((made.uid(), made.gid()), (65_534, 65_535));
    }

    /// Every form in which tar writes them, and compressed in every way that this machine has.
    #[test]
    fn sparse_and_compressed_archives_of_tar_come_out_as_they_were() {
        use std::os::unix::fs::FileExt;
        let source = tempfile::tempdir().unwrap();
        let sparse = File::create(source.path().join("sparse")).unwrap();
        for at in [3 << 20, 7 << 20] {
            sparse.write_all_at(b"data", at).unwrap();
        }
        sparse.set_len(40 << 20).unwrap();
        fs::write(source.path().join("plain"), "plain").unwrap();
        let whole = fs::read(source.path().join("sparse")).unwrap();
        let forms: [&[&str]; 4] = [
            &["--format=gnu"],
            &["--format=posix", "--sparse-version=1.0"],
            &["--format=posix", "--sparse-version=0.1"],
            &["--format=posix"],
        ];
        for (form, compress) in forms.iter().zip(["cat", "gzip", "bzip2", "xz"]) {
            let made = std::process::Command::new("tar")
                .args(["--create", "--sparse", "--file", "-", "--use-compress-program", compress])
                .args(*form)
                .arg("--directory")
                .arg(source.path())
                .arg(".")
                .output()
                .unwrap();
            assert!(made.status.success(), "{form:?} {compress}: {made:?}");
            let target = tempfile::tempdir().unwrap();
            assert_eq!(unpacked(made.stdout.clone(), target.path()), 0, "{form:?}");
            assert!(fs::read(target.path().join("sparse")).unwrap() == whole, "{form:?}");
            assert!(fs::metadata(target.path().join("sparse")).unwrap().blocks() * 512 < 4 << 20, "holes stay holes");
            assert_eq!(fs::read(target.path().join("plain")).unwrap(), b"plain");
            if compress != "cat" {
                let cut = made.stdout[..made.stdout.len() / 2].to_vec();
                assert!(unpack(io::Cursor::new(cut), target.path(), Path::new("")).is_err(), "{compress}");
            }
        }
    }

    #[test]
    fn sparse_file_whose_parts_make_no_sense_is_refused() {
        let read = |map: &str, bytes: u64, stored: u64| {
            let sparse = Sparse { bytes: Some(bytes), map: Some(map.to_owned()), ..Sparse::default() };
            let mut source = io::repeat(7).take(stored);
            let mut contents = Contents::sparse(&mut source, stored, &sparse)?;
            let mut pieces = Vec::new();
            while let Some(Piece { offset, data }) = contents.next(PIECE_BYTES)? {
                pieces.push((offset, data));
            }
            io::Result::Ok(pieces)
        };
        assert_eq!(read("1,2,4,1,6,0", 6, 3).unwrap(), [(1, vec![7, 7]), (4, vec![7])]);
        for (map, bytes, stored) in [
            ("1,2,2,1", 6, 3),
            ("4,1,1,2", 6, 3),
            ("1,2,4", 6, 3),
            ("1,9", 6, 9),
            ("1,5", 6, 4),
            ("18446744073709551615,2", 6, 2),
            ("x,1", 6, 1),
        ] {
            assert!(read(map, bytes, stored).is_err(), "{map}");
        }
    }
    /// Offset and content of each part, in the form that we write.
    fn add_sparse(archive: &mut Builder<Vec<u8>>, name: &str, bytes: u64, parts: &[(u64, &[u8])]) {
        let bytes = bytes.to_string();
        let records = [("major", "1"), ("minor", "0"), ("name", name), ("realsize", &bytes)];
        let records = records.map(|(key, value)| (format!("GNU.sparse.{key}"), value));
        archive.append_pax_extensions(records.iter().map(|(key, value)| (key.as_str(), value.as_bytes()))).unwrap();
        let list: Vec<(u64, u64)> = parts.iter().map(|(offset, data)| (*offset, data.len() as u64)).collect();
        let mut data = super::super::holes::map(&list);
        parts.iter().for_each(|(_, part)| data.extend_from_slice(part));
        add(archive, "placeholder", &data);
    }

    #[test]
    fn holes_cost_nothing_however_long_they_are() {
        const BYTES: u64 = (16 << 40) - (1 << 20);
        let target = tempfile::tempdir().unwrap();
        let probe = File::create(target.path().join("probe")).unwrap();
        if let Err(error) = probe.set_len(BYTES) {
            return eprintln!("SKIPPED: no file of 16 TiB in the directory of temporary files: {error}");
        }
        let mut archive = Builder::new(Vec::new());
        add_sparse(&mut archive, "large", BYTES, &[(3 << 40, b"far"), (BYTES - 4, b"last")]);
        add_sparse(&mut archive, "empty", BYTES, &[(BYTES, b"")]);
        let begin = std::time::Instant::now();
        assert_eq!(unpacked(archive.into_inner().unwrap(), target.path()), 0);
        assert!(begin.elapsed() < std::time::Duration::from_secs(1), "{:?}", begin.elapsed());
        let large = File::open(target.path().join("large")).unwrap();
        let mut read = [0; 5];
        for (at, expected) in [(3 << 40, b"far\0\0"), (BYTES - 5, b"\0last")] {
            large.read_exact_at(&mut read, at).unwrap();
            assert_eq!(&read, expected);
        }
        let empty = fs::metadata(target.path().join("empty")).unwrap();
        assert_eq!((empty.len(), empty.blocks()), (BYTES, 0));
        assert!(large.metadata().unwrap().blocks() < 64);
    }

    #[test]
    fn file_of_as_many_parts_as_are_told_comes_out_as_it_was() {
        const PARTS: u64 = 1 << 16;
        const APART: u64 = 8192;
        let source = tempfile::tempdir().unwrap();
        let file = File::create(source.path().join("file")).unwrap();
        for part in 0..PARTS {
            file.write_all_at(&part.to_le_bytes(), part * APART).unwrap();
        }
        if file.metadata().unwrap().blocks() * 512 > PARTS * 5000 {
            return eprintln!("SKIPPED: no holes of a block in the directory of temporary files");
        }
        let bytes = packed(source.path());
        assert!((bytes.len() as u64) < PARTS * 5000, "its holes are not in it: {}", bytes.len());
        let target = tempfile::tempdir().unwrap();
        assert_eq!(unpacked(bytes, target.path()), 0);
        let made = File::open(target.path().join("file")).unwrap();
        assert_eq!(made.metadata().unwrap().len(), (PARTS - 1) * APART + 8);
        let mut read = [0; 8];
        for part in 0..PARTS {
            made.read_exact_at(&mut read, part * APART).unwrap();
            assert_eq!(u64::from_le_bytes(read), part);
        }
        assert!(made.metadata().unwrap().blocks() * 512 < PARTS * 5000);
    }
    #[test]
    fn attributes_of_many_directories_and_files_come_out_as_they_were() {
        let source = tempfile::tempdir().unwrap();
        let value = |at: u16| at.to_le_bytes().repeat(1000);
        for at in 0..300_u16 {
            let directory = source.path().join(format!("d{at}"));
            fs::create_dir(&directory).unwrap();
            fs::write(directory.join("file"), "x").unwrap();
            for path in [&directory, &directory.join("file")] {
                let it = Extended { name: b"user.note".to_vec(), value: value(at) };
                if let Err(error) = extended::write(&File::open(path).unwrap(), &it) {
                    return eprintln!("SKIPPED: no attributes in the directory of temporary files: {error}");
                }
            }
            let time = std::time::UNIX_EPOCH + std::time::Duration::from_secs(1_000_000_000 + u64::from(at));
            File::open(&directory).unwrap().set_modified(time).unwrap();
        }
        let target = tempfile::tempdir().unwrap();
        assert_eq!(unpacked(packed(source.path()), target.path()), 0);
        for at in 0..300_u16 {
            let directory = target.path().join(format!("d{at}"));
            let time = fs::metadata(&directory).unwrap().mtime();
            assert_eq!(time, 1_000_000_000 + i64::from(at));
            for path in [&directory, &directory.join("file")] {
                let found = extended::read(path, extended::Kept::OfAnother).unwrap();
                assert_eq!((found.len(), &found[0].value), (1, &value(at)));
            }
        }
    }

    #[test]
    fn attributes_under_way_have_a_bound() {
        let mut state = State::default();
        assert!(state.has_room(3 * ATTRIBUTES_BYTES_MAX), "one file has what it has");
        state.under_way.insert("plain".into(), 0);
        state.under_way.insert("a".into(), ATTRIBUTES_BYTES_MAX - 1);
        assert_eq!([0, 1, 2].map(|bytes| state.has_room(bytes)), [true, true, false]);
        state.under_way.remove(Path::new("a"));
        assert!(state.has_room(3 * ATTRIBUTES_BYTES_MAX));
    }

    #[test]
    fn limits_of_a_directory_that_make_no_sense_are_refused() {
        let mut archive = Builder::new(Vec::new());
        let long = vec![b'9'; QUOTA_BYTES_MAX + 1];
        archive.append_pax_extensions([("SCHILY.xattr.dvs.quota", long.as_slice())]).unwrap();
        archive.append_data(&mut header(EntryType::Directory, 0), "d", io::empty()).unwrap();
        let target = tempfile::tempdir().unwrap();
        assert_eq!(unpacked(archive.into_inner().unwrap(), target.path()), 1);
    }
}
