//! The tree as a program of its container sees it.

use std::cmp::Ordering;
use std::fs;
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Subcommand;
use mgmt_api::{TREE, utc};
use serde::{Deserialize, Serialize};

use super::changed::Since;
use super::diff::{Difference, compare};
use super::quota;
use super::scrub::scrub;
use crate::commands::{Gone, Outcome, done, now_ms, print, say};
use crate::errors::{Failure, GENERAL};
use crate::output::{self, Format, Row};

/// In the tree, where snapshots are.
pub const SNAPSHOTS: &str = ".snapshots";
/// Its inode, as the file server has it (`vos_api::fs::SNAPSHOTS`), which a binary without the machinery does not know.
const SNAPSHOTS_INO: u64 = 1 << 62;
#[cfg(feature = "machinery")]
const _: () = assert!(SNAPSHOTS_INO == vos_api::fs::SNAPSHOTS);
/// As `vos_api::fs::SNAPSHOT_INO_BITS`.
const SNAPSHOT_INO_BITS: u32 = 44;
#[cfg(feature = "machinery")]
const _: () = assert!(SNAPSHOT_INO_BITS == vos_api::fs::SNAPSHOT_INO_BITS);
const NAME_BYTES_MAX: usize = 255;
/// stat(2)'s unit.
const STAT_BLOCK: u64 = 512;

/// What is asked of the tree.
#[derive(Subcommand, Clone, PartialEq, Eq, Debug)]
pub enum Request {
    Df,
    List,
    /// Read everything.
    Scrub,
    #[command(subcommand)]
    Quota(quota::Request),
    Take {
        name: String,
    },
    Remove {
        name: String,
    },
    /// The same, if there is one.
    Forget {
        name: String,
    },
    /// What differs: between two, one and now, or the last one and now.
    Diff {
        earlier: Option<String>,
        later: Option<String>,
    },
    /// Whether there is one.
    Find {
        name: String,
    },
}

impl Request {
    /// The same, as arguments.
    pub fn words(&self) -> Vec<String> {
        let named = |what: &str, name: &str| [what, "--", name].map(str::to_owned).to_vec();
        match self {
            Request::Df => vec!["df".to_owned()],
            Request::List => vec!["list".to_owned()],
            Request::Scrub => vec!["scrub".to_owned()],
            Request::Quota(it) => ["quota".to_owned()].into_iter().chain(it.words()).collect(),
            Request::Take { name } => named("take", name),
            Request::Remove { name } => named("remove", name),
            Request::Forget { name } => named("forget", name),
            Request::Find { name } => named("find", name),
            Request::Diff { earlier, later } => {
                let names = earlier.iter().chain(later).cloned();
                ["diff", "--"].map(str::to_owned).into_iter().chain(names).collect()
            }
        }
    }

    /// Snapshots that it names.
    fn names(&self) -> Vec<&String> {
        match self {
            Request::Take { name } | Request::Remove { name } | Request::Forget { name } | Request::Find { name } => {
                vec![name]
            }
            Request::Diff { earlier, later } => earlier.iter().chain(later).collect(),
            Request::Df | Request::List | Request::Scrub | Request::Quota(_) => Vec::new(),
        }
    }

    /// Whether the name, or path, can be one.
    pub fn check(&self) -> Result<(), Failure> {
        if let Request::Quota(it) = self {
            return it.check();
        }
        let is_name = |name: &str| {
            let is_usual = !name.is_empty() && name.len() <= NAME_BYTES_MAX && !name.contains(['/', '\0']);
            is_usual && name != "." && name != ".."
        };
        let Some(odd) = self.names().into_iter().find(|name| !is_name(name)) else { return Ok(()) };
        let failure = Failure::usage(format!("{odd:?} is no name for a snapshot"));
        Err(failure.hint("a name as of a file, without a slash, of 255 bytes at most: before-update"))
    }
}

/// Which snapshot an inode is of; 0: none.
pub fn snapshot_number(ino: u64) -> u64 {
    (ino & !SNAPSHOTS_INO) >> SNAPSHOT_INO_BITS
}

/// The number that an inode of a snapshot has in the tree.
pub fn own_number(ino: u64) -> u64 {
    ino & ((1 << SNAPSHOT_INO_BITS) - 1)
}

/// A snapshot, as people see it.
#[derive(Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[cfg_attr(test, schemars(rename = "Snapshot"))]
pub struct SnapshotView {
    pub name: String,
    /// Of all that its tree ever had, it alone.
    pub number: u64,
    pub taken_s: u64,
    /// Where programs find it.
    pub path: PathBuf,
}

impl Row for SnapshotView {
    const HEADINGS: &'static [&'static str] = &["NAME", "TAKEN", "PATH"];

    fn cells(&self) -> Vec<String> {
        vec![self.name.clone(), utc(self.taken_s), self.path.display().to_string()]
    }

    fn name(&self) -> String {
        self.name.clone()
    }
}

/// Room of a tree.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[cfg_attr(test, schemars(rename = "TreeSpace"))]
pub struct Space {
    pub dc: String,
    pub bytes: u64,
    pub used_bytes: u64,
    /// For programs.
    pub free_bytes: u64,
    pub files: u64,
    /// An estimate: names have any length.
    pub files_free: u64,
    pub snapshots: u64,
    /// Of what is used: what only snapshots have.
    pub snapshot_bytes: u64,
}

impl Row for Space {
    const HEADINGS: &'static [&'static str] = &["DC", "SIZE", "USED", "FREE", "USE", "FILES", "SNAPSHOTS", "OF THEM"];

    fn cells(&self) -> Vec<String> {
        let percent = (self.used_bytes * 100).div_ceil(self.bytes.max(1));
        vec![
            self.dc.clone(),
            output::bytes(self.bytes),
            output::bytes(self.used_bytes),
            output::bytes(self.free_bytes),
            format!("{percent} %"),
            self.files.to_string(),
            self.snapshots.to_string(),
            output::bytes(self.snapshot_bytes),
        ]
    }

    fn name(&self) -> String {
        self.dc.clone()
    }
}

pub fn execute(format: Format, dc: &str, request: &Request) -> Outcome {
    let directory = Path::new(TREE).join(SNAPSHOTS);
    if !matches!(request, Request::Df | Request::Quota(_)) {
        demand_way_in(dc, &directory)?;
    }
    match request {
        Request::Quota(it) => quota::execute(format, dc, it),
        Request::List => {
            let all = all(dc, &directory)?;
            print(|out| output::list(out, format, &all))
        }
        Request::Df => {
            let space = space(dc, &directory)?;
            print(|out| output::list(out, format, &[space]))
        }
        Request::Take { name } => {
            let path = directory.join(name);
            fs::create_dir(&path).map_err(|cause| not_taken(dc, name, &cause))?;
            say(&format!("snapshot '{name}' of '{dc}' is taken: {}", path.display()));
            done(format, &view(name.clone(), path).map_err(|cause| not_read(dc, &cause))?)
        }
        Request::Scrub => scrub_all(format, dc, &directory),
        Request::Diff { earlier, later } => {
            let found = differences(dc, &directory, earlier.as_deref(), later.as_deref())?;
            print(|out| match format.is_for_people() {
                // As people know it, without headings.
                true => found
                    .iter()
                    .try_for_each(|one| writeln!(out, "{} {}", one.letter(), output::printable(&one.path.lossy()))),
                false => output::list(out, format, &found),
            })
        }
        Request::Find { name } => {
            let path = directory.join(name);
            let found = view(name.clone(), path).map_err(|cause| not_found(dc, name, &cause))?;
            done(format, &found)
        }
        Request::Forget { name } => match fs::remove_dir(directory.join(name)) {
            Err(cause) if cause.kind() != io::ErrorKind::NotFound => Err(not_removed(dc, name, &cause)),
            _ => done(format, &Gone::new(name)),
        },
        Request::Remove { name } => {
            fs::remove_dir(directory.join(name)).map_err(|cause| not_removed(dc, name, &cause))?;
            say(&format!("snapshot '{name}' of '{dc}' is removed"));
            done(format, &Gone::new(name))
        }
    }
}

/// In a directory of the tree's own nobody takes snapshots.
fn demand_way_in(dc: &str, directory: &Path) -> Result<(), Failure> {
    let failure = || Failure::new(format!("the file tree of '{dc}' has no snapshots"));
    match fs::symlink_metadata(directory) {
        Ok(there) if there.ino() == SNAPSHOTS_INO => Ok(()),
        Ok(_) => {
            let failure = failure().because_text(format!("it has something of its own called {SNAPSHOTS}"));
            Err(failure.hint(format!("rename it: dvs run {dc} -- mv {TREE}/{SNAPSHOTS} {TREE}/other")))
        }
        Err(cause) if cause.kind() == io::ErrorKind::NotFound => {
            let failure =
                failure().because_text("its file server, or the file gate of the node, is of an earlier release");
            Err(failure.hint(format!("dvs restart {dc}")))
        }
        Err(cause) => Err(not_read(dc, &cause)),
    }
}

/// Does something with a snapshot that is there meanwhile. It hears when somebody wants it to end, so that no snapshot
/// is left behind.
fn at_this_moment<T>(
    dc: &str,
    directory: &Path,
    purpose: &str,
    work: impl FnOnce(&Path, &OwnedFd) -> io::Result<T>,
) -> Result<T, Failure> {
    let failed = |cause: &dyn std::error::Error| {
        Failure::new(format!("the file tree of '{dc}' was not read to its end")).because(cause).hint("again")
    };
    let stop = sys::signals::open(&[libc::SIGTERM, libc::SIGINT, libc::SIGHUP, libc::SIGPIPE])
        .map_err(|error| failed(&error))?;
    let name = format!("{purpose}{}-{}", now_ms(), std::process::id());
    let path = directory.join(&name);
    fs::create_dir(&path).map_err(|cause| not_taken(dc, &name, &cause))?;
    let done = work(&path, &stop);
    if let Err(cause) = fs::remove_dir(&path) {
        say(&format!("dvs: snapshot '{name}' is left: {cause}"));
    }
    done.map_err(|error| failed(&error))
}

/// The beginning of what these snapshots are called.
const TO_SCRUB: &str = "scrub-";
const TO_COMPARE: &str = "diff-";

fn differences(
    dc: &str,
    directory: &Path,
    earlier: Option<&str>,
    later: Option<&str>,
) -> Result<Vec<Difference>, Failure> {
    let earlier = match earlier {
        Some(name) => name.to_owned(),
        None => last(dc, directory)?,
    };
    let number = |name: &str| match view(name.to_owned(), directory.join(name)) {
        Ok(view) => Ok(view.number),
        Err(cause) => Err(absent(Failure::new(format!("nothing is compared with snapshot '{name}'")), dc, &cause)),
    };
    let first = number(&earlier)?;
    let between = |later: &Path, stop: &OwnedFd| compare(later, &Since::read(later, &earlier)?, stop);
    let Some(later) = later else { return at_this_moment(dc, directory, TO_COMPARE, between) };
    match first.cmp(&number(later)?) {
        Ordering::Less => {
            let (quiet, _kept) = io::pipe().map_err(|cause| not_read(dc, &cause))?;
            between(&directory.join(later), &quiet.into()).map_err(|cause| not_read(dc, &cause))
        }
        Ordering::Equal => Ok(Vec::new()),
        Ordering::Greater => {
            let failure = Failure::new(format!("snapshot '{earlier}' was taken after '{later}'"));
            Err(failure.hint(format!("dvs fs diff {dc} {later} {earlier}")))
        }
    }
}

/// The one that was taken last, and stays.
fn last(dc: &str, directory: &Path) -> Result<String, Failure> {
    let stays = |one: &SnapshotView| ![TO_SCRUB, TO_COMPARE].iter().any(|purpose| one.name.starts_with(purpose));
    let last = all(dc, directory)?.into_iter().filter(stays).max_by_key(|one| one.number);
    last.map(|one| one.name).ok_or_else(|| {
        Failure::new(format!("container '{dc}' has no snapshot to compare with"))
            .because_text("what differs is told of its file tree, since a snapshot")
            .hint(format!("dvs fs snapshot create {dc} NAME; later: dvs diff {dc}"))
    })
}

fn scrub_all(format: Format, dc: &str, directory: &Path) -> Outcome {
    let scrubbed = at_this_moment(dc, directory, TO_SCRUB, |path, stop| scrub(dc, path, stop))?;
    print(|out| output::list(out, format, std::slice::from_ref(&scrubbed)))?;
    Ok(if scrubbed.damaged == 0 { ExitCode::SUCCESS } else { ExitCode::from(GENERAL) })
}

fn all(dc: &str, directory: &Path) -> Result<Vec<SnapshotView>, Failure> {
    let read = || -> io::Result<Vec<SnapshotView>> {
        let mut all = Vec::new();
        for entry in fs::read_dir(directory)? {
            let entry = entry?;
            match view(entry.file_name().to_string_lossy().into_owned(), entry.path()) {
                Ok(view) => all.push(view),
                // It was removed meanwhile.
                Err(cause) if cause.kind() == io::ErrorKind::NotFound => {}
                Err(cause) => return Err(cause),
            }
        }
        Ok(all)
    };
    read().map_err(|cause| not_read(dc, &cause))
}

fn view(name: String, path: PathBuf) -> io::Result<SnapshotView> {
    let there = fs::metadata(&path)?;
    let taken_s = u64::try_from(there.ctime()).unwrap_or(0);
    Ok(SnapshotView { name, number: snapshot_number(there.ino()), taken_s, path })
}

fn space(dc: &str, directory: &Path) -> Result<Space, Failure> {
    let tree = rustix::fs::statvfs(TREE).map_err(|cause| not_read(dc, &cause))?;
    // Of an earlier release, or with something of its own there, it has none.
    let snapshots = fs::symlink_metadata(directory).ok().filter(|there| there.ino() == SNAPSHOTS_INO);
    Ok(Space {
        dc: dc.to_owned(),
        bytes: tree.f_blocks * tree.f_frsize,
        used_bytes: (tree.f_blocks - tree.f_bfree.min(tree.f_blocks)) * tree.f_frsize,
        free_bytes: tree.f_bavail * tree.f_frsize,
        files: tree.f_files - tree.f_ffree.min(tree.f_files),
        files_free: tree.f_favail,
        snapshots: snapshots.as_ref().map_or(0, |all| all.nlink().saturating_sub(2)),
        snapshot_bytes: snapshots.as_ref().map_or(0, |all| all.blocks() * STAT_BLOCK),
    })
}

fn not_read(dc: &str, cause: &dyn std::error::Error) -> Failure {
    let failure = Failure::new(format!("the file tree of '{dc}' cannot be looked at")).because(cause);
    failure.hint(format!("dvs dc inspect {dc}"))
}

fn not_taken(dc: &str, name: &str, cause: &io::Error) -> Failure {
    use rustix::io::Errno;
    let failure = Failure::new(format!("snapshot '{name}' of '{dc}' was not taken"));
    let other = format!("dvs fs snapshot rm {dc} NAME");
    match cause.raw_os_error().map(Errno::from_raw_os_error) {
        Some(Errno::EXIST) => failure.because_text("there is one of this name").hint("another name"),
        Some(Errno::MLINK) => failure.because_text("there are 64, which is as many as there can be").hint(other),
        Some(Errno::NOSPC) => failure.because_text("the tree has no room for it").hint(format!("dvs fs df {dc}")),
        _ => failure.because(cause).hint(format!("dvs dc inspect {dc}")),
    }
}

fn not_found(dc: &str, name: &str, cause: &io::Error) -> Failure {
    absent(Failure::new(format!("the tree of '{dc}' cannot go back to '{name}'")), dc, cause)
}

fn not_removed(dc: &str, name: &str, cause: &io::Error) -> Failure {
    absent(Failure::new(format!("snapshot '{name}' of '{dc}' was not removed")), dc, cause)
}

fn absent(failure: Failure, dc: &str, cause: &io::Error) -> Failure {
    let list = format!("dvs fs snapshot ls {dc}");
    match cause.kind() {
        io::ErrorKind::NotFound => failure.because_text("there is none of this name").hint(list),
        _ => failure.because(cause).hint(list),
    }
}
