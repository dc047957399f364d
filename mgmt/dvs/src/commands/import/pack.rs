//! A directory as a tar stream, on a thread of its own.
//!
//! Kept: owners by number, modes, times to the nanosecond, holes of files and extended attributes of files and
//! directories (PAX records), symbolic links, hard links, FIFOs; quotas of directories of a container's tree. Left out:
//! sockets, which mean nothing elsewhere, and devices, which a container cannot make. The walk has an explicit stack
//! and sorted directories, so that depth costs no call stack and the same directory gives the same stream.

use std::collections::{HashMap, HashSet};
use std::ffi::OsString;
use std::fs::{self, File, FileType, Metadata};
use std::io::{self, Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirEntryExt, FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;

use clap::Args;
use tar::{Builder, EntryType, Header};
use tokio::sync::mpsc;

use super::super::fs::changed::Since;
use super::super::fs::inside;
use super::super::fs::quota;
use super::super::tree::Progress;
use super::extended::{self, Extended, Kept};
use super::holes;

/// One frame of the stream.
const CHUNK_BYTES: usize = mgmt_api::stream::PAYLOAD_BYTES_MAX;
const CHUNKS_MAX: usize = 16;
/// Users a container has.
const UIDS: u32 = 65_536;
const NOBODY: u32 = 65_534;
/// Names that are told to the user; the others are counted.
const NOTED_MAX: usize = 5;

#[derive(Debug, thiserror::Error)]
pub enum PackError {
    #[error("cannot read {}", path.display())]
    Read {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    /// The other side went away; its own error says why.
    #[error("the stream was closed")]
    Closed(#[source] io::Error),
}

/// What was not taken over as it was.
#[derive(Default, Debug, PartialEq, Eq)]
pub struct Notes {
    left_out: Vec<PathBuf>,
    left_out_count: u64,
    strangers: u64,
}

impl Notes {
    pub fn lines(&self) -> Vec<String> {
        let mut lines: Vec<String> =
            self.left_out.iter().map(|path| format!("left out (socket or device): {}", path.display())).collect();
        let more = self.left_out_count.saturating_sub(self.left_out.len() as u64);
        lines.extend((more > 0).then(|| format!("left out: {more} more")));
        lines.extend(
            (self.strangers > 0).then(|| format!("{} owners above 65535 became nobody (65534)", self.strangers)),
        );
        lines
    }

    fn leave_out(&mut self, path: &Path) {
        self.left_out_count += 1;
        if self.left_out.len() < NOTED_MAX {
            self.left_out.push(path.to_owned());
        }
    }
}

/// What is in a directory.
pub fn directory(root: PathBuf, progress: Arc<Progress>) -> Packing {
    one(root, PathBuf::new(), progress)
}

/// The archive as it grows, and the thread that makes it.
pub type Packing = (mpsc::Receiver<Vec<u8>>, JoinHandle<Result<Notes, PackError>>);

/// A file or directory, which is called `top` in the archive.
pub fn one(root: PathBuf, top: PathBuf, progress: Arc<Progress>) -> Packing {
    packing(root, top, None, None, progress)
}

/// Limits of directories, as the file server takes them, by where the directories are in what is packed.
type Quotas = HashMap<PathBuf, String>;

/// What is not as it was in an earlier snapshot. `quotas`: of a container's tree.
fn packing(
    root: PathBuf,
    top: PathBuf,
    since: Option<Since>,
    quotas: Option<Quotas>,
    progress: Arc<Progress>,
) -> Packing {
    let (queue, chunks) = mpsc::channel(CHUNKS_MAX);
    let out = Chunks { queue, buffer: Vec::with_capacity(CHUNK_BYTES) };
    let packing = std::thread::spawn(move || {
        let mut packer = Packer {
            out: Builder::new(out),
            seen: HashMap::new(),
            notes: Notes::default(),
            progress,
            kept: if quotas.is_some() { Kept::OfTheTree } else { Kept::OfAnother },
            quotas: quotas.unwrap_or_default(),
        };
        match since {
            Some(since) => {
                let elsewhere = packer.walk_changes(&root, &since, Wanted::Changed)?;
                if !elsewhere.is_empty() {
                    packer.walk_changes(&root, &since, Wanted::OtherNames(&elsewhere))?;
                }
            }
            None => packer.walk(&root, &top)?,
        }
        packer.out.into_inner().and_then(|mut chunks| chunks.flush()).map_err(PackError::Closed)?;
        Ok(packer.notes)
    });
    (chunks, packing)
}

/// Packs a file or directory of a container's tree, inside the container (`dvs cp`).
#[derive(Args, Debug)]
pub struct Options {
    /// As programs see it.
    source: PathBuf,
    /// What it is called in the archive.
    #[arg(allow_hyphen_values = true)]
    top: PathBuf,
    /// The source is a snapshot: only what is not as it was in this earlier one.
    #[arg(long, value_name = "NAME")]
    since: Option<String>,
}

pub fn execute(options: &Options) -> ExitCode {
    let since = match options.since.as_deref().map(|name| Since::read(&options.source, name)).transpose() {
        Ok(since) => since,
        Err(error) => {
            eprintln!("what changed since then cannot be told: {error}");
            return ExitCode::FAILURE;
        }
    };
    let quotas = match quotas_below(&options.source) {
        Ok(quotas) => quotas,
        Err(error) => {
            eprintln!("quotas of directories cannot be read: {error}");
            return ExitCode::FAILURE;
        }
    };
    let (mut chunks, packing) =
        packing(options.source.clone(), options.top.clone(), since, Some(quotas), Arc::default());
    let mut out = io::stdout().lock();
    while let Some(chunk) = chunks.blocking_recv() {
        // Whoever reads is gone, and will not read why.
        if out.write_all(&chunk).is_err() {
            return ExitCode::FAILURE;
        }
    }
    let failed = match packing.join() {
        Ok(Ok(notes)) => {
            notes.lines().iter().for_each(|line| eprintln!("{line}"));
            return if out.flush().is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE };
        }
        Ok(Err(error)) => error,
        Err(_) => return ExitCode::FAILURE,
    };
    let cause = std::error::Error::source(&failed).map(|cause| format!(": {cause}")).unwrap_or_default();
    eprintln!("{failed}{cause}");
    ExitCode::FAILURE
}

/// Those of directories that are in a tree or a snapshot of it, as they are now: a snapshot is asked for none.
fn quotas_below(source: &Path) -> io::Result<Quotas> {
    let tree = Path::new(mgmt_api::TREE);
    let Ok(inside) = source.strip_prefix(tree) else { return Ok(Quotas::new()) };
    let inside = match inside.strip_prefix(inside::SNAPSHOTS) {
        // Its name.
        Ok(below) => below.components().skip(1).collect(),
        Err(_) => inside.to_owned(),
    };
    let limits = quota::limits()?.into_iter();
    Ok(limits.filter_map(|(path, limits)| Some((path.strip_prefix(&inside).ok()?.to_owned(), limits))).collect())
}

/// Writes into the queue, a frame at a time.
struct Chunks {
    queue: mpsc::Sender<Vec<u8>>,
    buffer: Vec<u8>,
}

impl Write for Chunks {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let room = CHUNK_BYTES - self.buffer.len();
        let taken = bytes.get(..room.min(bytes.len())).unwrap_or_default();
        self.buffer.extend_from_slice(taken);
        if self.buffer.len() == CHUNK_BYTES {
            self.flush()?;
        }
        Ok(taken.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        if self.buffer.is_empty() {
            return Ok(());
        }
        let chunk = std::mem::replace(&mut self.buffer, Vec::with_capacity(CHUNK_BYTES));
        self.queue.blocking_send(chunk).map_err(|_| io::ErrorKind::BrokenPipe.into())
    }
}

/// What is read of files: people know their files' sizes and not that of the archive.
struct Counted<'a, R> {
    source: R,
    progress: &'a Progress,
}

impl<R: Read> Read for Counted<'_, R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.source.read(buffer)?;
        self.progress.bytes.fetch_add(count as u64, Ordering::Relaxed);
        Ok(count)
    }
}

/// Key and value.
type Record = (String, Vec<u8>);

struct Packer {
    out: Builder<Chunks>,
    /// Files with several names, by device and inode: the first name carries the data.
    seen: HashMap<(u64, u64), PathBuf>,
    notes: Notes,
    progress: Arc<Progress>,
    kept: Kept,
    quotas: Quotas,
}

impl Packer {
    fn walk(&mut self, root: &Path, top: &Path) -> Result<(), PackError> {
        let mut waiting = vec![PathBuf::new()];
        while let Some(inside) = waiting.pop() {
            let path = if inside.as_os_str().is_empty() { root.to_owned() } else { root.join(&inside) };
            let failed = |source| PackError::Read { path: path.clone(), source };
            // The root may be a link to the directory that is meant; below it, links are links.
            let meta = if path == root { fs::metadata(&path) } else { fs::symlink_metadata(&path) }.map_err(failed)?;
            // A name that ends with a slash would be a directory.
            let name = if inside.as_os_str().is_empty() { top.to_owned() } else { top.join(&inside) };
            self.entry(&path, (&name, &inside), &meta)?;
            if meta.is_dir() {
                let names: io::Result<Vec<_>> =
                    fs::read_dir(&path).map_err(failed)?.map(|entry| Ok(entry?.file_name())).collect();
                let mut names = names.map_err(failed)?;
                names.sort_by(|left, right| right.cmp(left));
                waiting.extend(names.into_iter().map(|name| inside.join(name)));
            }
        }
        Ok(())
    }

    fn entry(&mut self, path: &Path, (inside, below): (&Path, &Path), meta: &Metadata) -> Result<(), PackError> {
        let kind = meta.file_type();
        let name = if inside.as_os_str().is_empty() { Path::new("./") } else { inside };
        if is_left_out(kind) {
            self.notes.leave_out(inside);
            return Ok(());
        }
        let mut header = self.header(meta);
        let first = match meta.nlink() > 1 && !meta.is_dir() {
            true => self.seen.get(&(meta.dev(), meta.ino())).cloned(),
            false => None,
        };
        if let Some(first) = first {
            header.set_entry_type(EntryType::Link);
            header.set_size(0);
            self.out.append_link(&mut header, name, &first).map_err(PackError::Closed)?;
        } else {
            if meta.nlink() > 1 && !meta.is_dir() {
                self.seen.insert((meta.dev(), meta.ino()), inside.to_owned());
            }
            self.fresh(path, (name, below), meta, header)?;
        }
        self.progress.entries.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    fn fresh(
        &mut self,
        path: &Path,
        (name, below): (&Path, &Path),
        meta: &Metadata,
        mut header: Header,
    ) -> Result<(), PackError> {
        let failed = |source| PackError::Read { path: path.to_owned(), source };
        let kind = meta.file_type();
        if meta.is_file() {
            let file = File::open(path).map_err(failed)?;
            let parts = holes::parts(&file, meta).filter(|_| holes::can_be_named(name));
            if let Some(parts) = parts {
                return self.sparse(path, (name, below), meta, header, (&file, &parts));
            }
            self.records(path, below, meta, Vec::new())?;
            header.set_entry_type(EntryType::Regular);
            header.set_size(meta.len());
            // A file that changes while it is read keeps the length that was announced.
            let data = Counted { source: file.chain(io::repeat(0)).take(meta.len()), progress: &self.progress };
            return self.out.append_data(&mut header, name, data).map_err(|cause| match cause.kind() {
                io::ErrorKind::BrokenPipe => PackError::Closed(cause),
                _ => failed(cause),
            });
        }
        if kind.is_symlink() {
            let target = fs::read_link(path).map_err(failed)?;
            self.records(path, below, meta, Vec::new())?;
            header.set_entry_type(EntryType::Symlink);
            return self.out.append_link(&mut header, name, &target).map_err(PackError::Closed);
        }
        self.records(path, below, meta, Vec::new())?;
        header.set_entry_type(if meta.is_dir() { EntryType::Directory } else { EntryType::Fifo });
        self.out.append_data(&mut header, name, io::empty()).map_err(PackError::Closed)
    }

    /// What a plain header cannot say: the part of a second, attributes, limits.
    fn records(&mut self, path: &Path, below: &Path, meta: &Metadata, mut all: Vec<Record>) -> Result<(), PackError> {
        if meta.mtime_nsec() != 0 && meta.mtime() >= 0 {
            let time = format!("{}.{:09}", meta.mtime(), meta.mtime_nsec());
            all.push(("mtime".to_owned(), time.into_bytes()));
        }
        if meta.is_file() || meta.is_dir() {
            let failed = |source| PackError::Read { path: path.to_owned(), source };
            let attributes = extended::read(path, self.kept).map_err(failed)?;
            all.extend(attributes.iter().map(extended::record));
        }
        if let Some(limits) = self.quotas.get(below).filter(|_| meta.is_dir()) {
            let (name, value) = (extended::QUOTA_NAME.into(), limits.clone().into_bytes());
            all.push(extended::record(&Extended { name, value }));
        }
        if all.is_empty() {
            return Ok(());
        }
        let records = all.iter().map(|(key, value)| (key.as_str(), value.as_slice()));
        self.out.append_pax_extensions(records).map_err(PackError::Closed)
    }

    /// A file with holes, as GNU tar has it today (PAX records, version 1.0).
    fn sparse(
        &mut self,
        path: &Path,
        (name, below): (&Path, &Path),
        meta: &Metadata,
        of_gnu: Header,
        (file, parts): (&File, &[(u64, u64)]),
    ) -> Result<(), PackError> {
        let record = |key: &str, value: &[u8]| (format!("GNU.sparse.{key}"), value.to_owned());
        let size = meta.len().to_string();
        let records = vec![
            record("major", b"1"),
            record("minor", b"0"),
            record("name", name.as_os_str().as_bytes()),
            record("realsize", size.as_bytes()),
        ];
        self.records(path, below, meta, records)?;
        let map = holes::map(parts);
        // In a header of GNU's own form GNU tar looks for the list elsewhere; and the name is in the record.
        let mut header = Header::new_ustar();
        let (uid, gid, mtime) = (of_gnu.uid(), of_gnu.gid(), of_gnu.mtime());
        header.set_mode(meta.mode() & 0o7777);
        header.set_uid(uid.unwrap_or_default());
        header.set_gid(gid.unwrap_or_default());
        header.set_mtime(mtime.unwrap_or_default());
        header.set_entry_type(EntryType::Regular);
        header.set_size(map.len() as u64 + parts.iter().map(|(_, bytes)| bytes).sum::<u64>());
        let data = io::Cursor::new(map).chain(holes::Stored::of(file, parts));
        let data = Counted { source: data, progress: &self.progress };
        let number = self.progress.entries.load(Ordering::Relaxed);
        let placeholder = format!("GNUSparseFile.0/{number}");
        self.out.append_data(&mut header, placeholder, data).map_err(|cause| match cause.kind() {
            io::ErrorKind::BrokenPipe => PackError::Closed(cause),
            _ => PackError::Read { path: path.to_owned(), source: cause },
        })
    }

    fn header(&mut self, meta: &Metadata) -> Header {
        let mut header = Header::new_gnu();
        header.set_size(0);
        header.set_mode(meta.mode() & 0o7777);
        header.set_mtime(u64::try_from(meta.mtime()).unwrap_or_default());
        let (uid, gid) = (self.owner(meta.uid()), self.owner(meta.gid()));
        header.set_uid(u64::from(uid));
        header.set_gid(u64::from(gid));
        header
    }

    fn owner(&mut self, id: u32) -> u32 {
        if id < UIDS {
            return id;
        }
        self.notes.strangers += 1;
        NOBODY
    }
}

impl Packer {
    /// Every directory is looked through, and few of its files are looked at: whoever changed says so by its number.
    /// Of a directory that changed goes what is in it now, as GNU tar's incremental archives have it. A directory that
    /// is where it was not goes as a whole: nothing in it says that it moved. Answers what went so and has, or may
    /// have, other names, which are wanted then, too: as links.
    fn walk_changes(&mut self, root: &Path, since: &Since, wanted: Wanted<'_>) -> Result<HashSet<u64>, PackError> {
        let mut waiting = vec![(PathBuf::new(), Place::AsBefore)];
        let mut elsewhere = HashSet::new();
        while let Some((inside, place)) = waiting.pop() {
            let path = if inside.as_os_str().is_empty() { root.to_owned() } else { root.join(&inside) };
            let failed = |source| PackError::Read { path: path.clone(), source };
            let meta = fs::symlink_metadata(&path).map_err(failed)?;
            let has_changed = since.has_changed(meta.ino());
            // Limits are told each time.
            let is_told = place == Place::New || has_changed || self.quotas.contains_key(&inside);
            if !meta.is_dir() {
                if is_told == (wanted == Wanted::Changed) {
                    self.entry(&path, (&inside, &inside), &meta)?;
                }
                if !has_changed && meta.nlink() > 1 {
                    elsewhere.insert(inside::own_number(meta.ino()));
                }
                continue;
            }
            let (mut names, mut below) = (Vec::new(), Vec::new());
            for entry in fs::read_dir(&path).map_err(failed)? {
                let entry = entry.map_err(failed)?;
                let (name, kind) = (entry.file_name(), entry.file_type().map_err(failed)?);
                let inner = inside.join(&name);
                // Where nothing came or went everything is where it was.
                let place = match place {
                    Place::AsBefore if is_told && !since.was_there(&inner, entry.ino()) => Place::New,
                    place => place,
                };
                let goes = place == Place::New || since.has_changed(entry.ino());
                let is_wanted = match wanted {
                    Wanted::Changed => goes,
                    Wanted::OtherNames(of) => !goes && of.contains(&inside::own_number(entry.ino())),
                };
                if is_wanted || kind.is_dir() {
                    below.push((inner, place, is_wanted && !kind.is_dir()));
                }
                // What cannot be in an archive is not there, nor what it was before.
                if !is_left_out(kind) {
                    names.push(match (kind.is_dir(), goes) {
                        (true, _) => (DIRECTORY, name),
                        (false, true) => (INSIDE, name),
                        (false, false) => (NOT_INSIDE, name),
                    });
                }
            }
            // Also where only the content of a file changed, so that the directory keeps its time.
            let is_listed = is_told || names.iter().any(|(kind, _)| *kind == INSIDE);
            let has_wanted = below.iter().any(|(_, _, is_wanted)| *is_wanted);
            if is_listed == (wanted == Wanted::Changed) && (is_listed || has_wanted) {
                names.sort_by(|(_, left), (_, right)| left.cmp(right));
                self.names(&path, &inside, &meta, &names)?;
            }
            below.sort_by(|(left, ..), (right, ..)| right.cmp(left));
            waiting.extend(below.into_iter().map(|(inner, place, _)| (inner, place)));
        }
        Ok(elsewhere)
    }

    /// A directory, and all that is in it.
    fn names(
        &mut self,
        path: &Path,
        inside: &Path,
        meta: &Metadata,
        names: &[(u8, OsString)],
    ) -> Result<(), PackError> {
        let mut data = Vec::new();
        for (kind, name) in names {
            data.push(*kind);
            data.extend_from_slice(name.as_bytes());
            data.push(0);
        }
        data.push(0);
        let mut header = self.header(meta);
        self.records(path, inside, meta, Vec::new())?;
        header.set_entry_type(EntryType::new(NAMES));
        header.set_size(data.len() as u64);
        let name = if inside.as_os_str().is_empty() { Path::new("./") } else { inside };
        self.out.append_data(&mut header, name, data.as_slice()).map_err(PackError::Closed)?;
        self.progress.entries.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }
}

/// Sockets mean nothing elsewhere, and a container cannot make devices.
fn is_left_out(kind: FileType) -> bool {
    kind.is_socket() || kind.is_block_device() || kind.is_char_device()
}

/// Of an entry, and before names in it, as GNU tar's incremental archives have them ("dumpdir").
pub const NAMES: u8 = b'D';
pub const DIRECTORY: u8 = b'D';
pub const INSIDE: u8 = b'Y';
pub const NOT_INSIDE: u8 = b'N';

/// What is looked for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Wanted<'a> {
    Changed,
    /// Of files that are in the archive and did not change: names that are where they were.
    OtherNames(&'a HashSet<u64>),
}

/// Whether something is where the earlier snapshot has it.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    AsBefore,
    New,
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{PermissionsExt, symlink};
    use std::os::unix::net::UnixListener;

    fn packed(root: &Path) -> (Vec<u8>, Notes, Progress) {
        let progress = Arc::new(Progress::default());
        let (mut chunks, packing) = directory(root.to_owned(), progress.clone());
        let mut bytes = Vec::new();
        while let Some(chunk) = chunks.blocking_recv() {
            bytes.extend_from_slice(&chunk);
        }
        let notes = packing.join().unwrap().unwrap();
        (bytes, notes, Arc::into_inner(progress).expect("the thread has ended"))
    }

    #[test]
    fn unpacked_directory_has_the_same_links_modes_and_times() {
        let source = tempfile::tempdir().unwrap();
        let deep = source.path().join("d".repeat(120)).join("e".repeat(120));
        fs::create_dir_all(&deep).unwrap();
        fs::write(deep.join("file"), vec![7; 100_000]).unwrap();
        fs::set_permissions(deep.join("file"), fs::Permissions::from_mode(0o4751)).unwrap();
        fs::hard_link(deep.join("file"), source.path().join("z-same")).unwrap();
        symlink("/nowhere/at/all", source.path().join("link")).unwrap();
        let time = std::time::UNIX_EPOCH + std::time::Duration::new(1_000_000_000, 123_456_789);
        File::options().write(true).open(deep.join("file")).unwrap().set_modified(time).unwrap();
        let _socket = UnixListener::bind(source.path().join("sock")).unwrap();

        let (bytes, notes, progress) = packed(source.path());
        assert_eq!(notes.lines(), ["left out (socket or device): sock"]);
        // Two names of one file, whose bytes count once.
        assert_eq!((progress.entries.into_inner(), progress.bytes.into_inner()), (6, 100_000));

        let target = tempfile::tempdir().unwrap();
        let mut tar = std::process::Command::new("tar")
            .args(["--extract", "--same-permissions", "--file", "-", "--directory"])
            .arg(target.path())
            .stdin(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        tar.stdin.take().unwrap().write_all(&bytes).unwrap();
        assert!(tar.wait().unwrap().success());

        let inside = target.path().join("d".repeat(120)).join("e".repeat(120)).join("file");
        let meta = fs::metadata(&inside).unwrap();
        assert_eq!(fs::read(&inside).unwrap(), vec![7; 100_000]);
        assert_eq!(meta.mode() & 0o7777, 0o4751);
        assert_eq!(meta.modified().unwrap(), time);
        assert_eq!(meta.ino(), fs::metadata(target.path().join("z-same")).unwrap().ino());
        assert_eq!(fs::read_link(target.path().join("link")).unwrap(), Path::new("/nowhere/at/all"));
    }

    #[test]
    fn vanished_source_is_an_error_that_names_it() {
        let progress = Arc::new(Progress::default());
        let (mut chunks, packing) = directory("/no/such/place".into(), progress);
        while chunks.blocking_recv().is_some() {}
        assert_eq!(packing.join().unwrap().unwrap_err().to_string(), "cannot read /no/such/place");
    }
}
