//! `dvs import`: files of this machine into a container's tree.
//!
//! A tar stream goes to a process inside the container, which unpacks it: whatever an archive contains, it can only
//! do what a process of that container can do. A directory is packed here (`pack.rs`); an archive goes as it is. The
//! process is our own binary (`unpack.rs`), which makes many files at a time; the node's gzip, bzip2, xz or zstd makes
//! compressed archives plain for it.

mod extended;
mod holes;
pub mod pack;
pub mod unpack;

use std::fs::File;
use std::io::{self, IsTerminal, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use clap::Args;
use client::Unpacked;
use mgmt_api::{TREE, in_tree};
use serde::Serialize;
use tokio::sync::mpsc;

use super::tree::{COMPLAINTS_SHOWN, Progress, transfer};
use super::{Outcome, block_on, daemon, done, names, say};
use crate::cli::Global;
use crate::errors::{self, Failure};
use crate::output::{self, Row};
use crate::pump::{self, Ended};
use crate::units::parse_path_in_tree;

/// Unit of a tar archive; the first one is a header.
const TAR_BLOCK_BYTES: usize = 512;

/// Copy a directory or a tar archive into a container's file tree
#[derive(Args, Debug)]
#[command(after_help = "\
Owners (by number), modes, times, symbolic and hard links stay as they are. Owners above 65535 \
become nobody (65534); sockets and devices are left out. Archives may be compressed with gzip, \
bzip2, xz or zstd. Nothing goes through symbolic links below the destination: an entry whose path \
leads through one is refused.

Examples:
  dvs import shop ./site /www                           a directory
  dvs import shop debian.tar.xz /debian                 an archive, then: dvs run -it shop --root /debian -- sh
  docker export ID | dvs import shop - /app             whatever writes tar")]
pub struct Options {
    /// Node of the container through which the data goes [default: its first one].
    #[arg(short, long, add = names::nodes())]
    node: Option<String>,
    /// Container; it must run.
    #[arg(add = names::containers())]
    dc: String,
    /// Directory, tar archive, or - for an archive on standard input.
    source: PathBuf,
    /// Directory in the container's tree; made when it is not there. /www and /dc/www are the same.
    #[arg(value_name = "DEST-IN-TREE", value_parser = parse_path_in_tree())]
    destination: String,
}

/// A tar stream, and what the unpacking side must know.
struct Archive {
    chunks: mpsc::Receiver<Vec<u8>>,
    packing: Option<std::thread::JoinHandle<Result<pack::Notes, pack::PackError>>>,
}

pub fn execute(global: &Global, options: &Options) -> Outcome {
    let daemon = daemon(global)?;
    let destination = in_tree(&options.destination).ok_or_else(|| {
        Failure::usage(format!("'{}' leaves the tree", options.destination)).hint("a path such as /www")
    })?;
    let progress = Arc::new(Progress::default());
    let started = Instant::now();
    let archive = open(&options.source, &progress)?;
    let packing = archive.packing;
    let chunks = counted(archive.chunks, &progress, packing.is_none());
    let how = Unpacked { node: options.node.as_deref(), ..Unpacked::default() };
    let (ended, complaints) = block_on(transfer(&daemon, &options.dc, &destination, &how, chunks, &progress))??;
    let packed = packing.map(|thread| thread.join());
    finish(options, ended, &complaints)?;
    // What was left out.
    complaints.lines().take(COMPLAINTS_SHOWN).for_each(|line| say(&output::printable(line)));
    let notes = match packed {
        None => pack::Notes::default(),
        Some(Ok(Ok(notes))) => notes,
        Some(Ok(Err(cause))) => return Err(not_imported(options).because(&cause)),
        Some(Err(_)) => return Err(not_imported(options).because_text("the packing thread failed")),
    };
    notes.lines().iter().for_each(|line| say(line));
    let imported = Imported::new(options, &progress, started.elapsed(), destination);
    say(&imported.summary());
    done(global.output, &imported)
}

fn open(source: &Path, progress: &Arc<Progress>) -> Result<Archive, Failure> {
    let failed = |cause: io::Error| {
        Failure::new(format!("cannot read {}", source.display()))
            .because(&cause)
            .hint("a directory, a tar archive, or - for an archive on standard input")
    };
    if source == Path::new("-") {
        if io::stdin().is_terminal() {
            return Err(
                Failure::usage("standard input is a terminal, not an archive").hint("tar c . | dvs import DC - /dest")
            );
        }
        return stream(io::stdin()).map_err(failed);
    }
    if std::fs::metadata(source).map_err(failed)?.is_dir() {
        let (chunks, packing) = pack::directory(source.to_owned(), progress.clone());
        return Ok(Archive { chunks, packing: Some(packing) });
    }
    stream(File::open(source).map_err(failed)?).map_err(failed)
}

/// An archive as it is.
fn stream(mut source: impl Read + Send + 'static) -> io::Result<Archive> {
    let mut first = Vec::new();
    source.by_ref().take(TAR_BLOCK_BYTES as u64).read_to_end(&mut first)?;
    if compression(&first).is_none() && !begins_tar(&first) {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "it is no tar archive"));
    }
    let chunks = pump::input_from(io::Cursor::new(first).chain(source));
    Ok(Archive { chunks, packing: None })
}

/// The program that makes it plain. Its first bytes say so.
fn compression(first: &[u8]) -> Option<&'static str> {
    const KNOWN: [(&[u8], &str); 4] =
        [(b"\x1f\x8b", "gzip"), (b"BZh", "bzip2"), (b"\xfd7zXZ\0", "xz"), (b"\x28\xb5\x2f\xfd", "zstd")];
    KNOWN.iter().find(|(magic, _)| first.starts_with(magic)).map(|(_, program)| *program)
}

/// Whether this may be the first block of an archive: a header has its own sum in it, an empty archive has nothing.
fn begins_tar(first: &[u8]) -> bool {
    if first.iter().all(|byte| *byte == 0) {
        return true;
    }
    if first.len() != TAR_BLOCK_BYTES {
        return false;
    }
    let header = tar::Header::from_byte_slice(first);
    let mut right = header.clone();
    right.set_cksum();
    header.cksum().is_ok_and(|told| right.cksum().is_ok_and(|sum| sum == told))
}

/// Counts what passes. Entries are known only where the archive is made here.
fn counted(mut chunks: mpsc::Receiver<Vec<u8>>, progress: &Arc<Progress>, count: bool) -> mpsc::Receiver<Vec<u8>> {
    if !count {
        return chunks;
    }
    let (queue, out) = mpsc::channel(1);
    let progress = progress.clone();
    std::thread::spawn(move || {
        while let Some(chunk) = chunks.blocking_recv() {
            progress.bytes.fetch_add(chunk.len() as u64, Ordering::Relaxed);
            if queue.blocking_send(chunk).is_err() {
                return;
            }
        }
    });
    out
}

fn not_imported(options: &Options) -> Failure {
    Failure::new(format!("{} was not imported completely", options.source.display()))
}

fn finish(options: &Options, ended: Ended, complaints: &str) -> Result<(), Failure> {
    let mut failure = match ended {
        Ended::Exit(0) => return Ok(()),
        Ended::Exit(status @ (errors::NO_SUCH_PROGRAM | errors::NOT_EXECUTABLE)) => {
            not_imported(options).because_text(format!("the container's node cannot unpack it (status {status})"))
        }
        Ended::Exit(status) => not_imported(options).because_text(format!("unpacking ended with status {status}")),
        Ended::Refused(body) => body.into(),
        Ended::Detached | Ended::GivenUp => not_imported(options),
    };
    failure.because.extend(complaints.lines().take(COMPLAINTS_SHOWN).map(str::to_owned));
    if failure.hint.is_none() {
        failure = failure.hint(what_to_try(options, complaints));
    }
    Err(failure)
}

fn what_to_try(options: &Options, complaints: &str) -> String {
    let dc = &options.dc;
    if complaints.contains("No space left") {
        return format!("make room (dvs run {dc} -- df -h /dc), or a container with a larger --disk");
    }
    if complaints.contains("cannot be started") {
        return format!(
            "install it on the container's node, or decompress the archive here: … | dvs import {dc} - DEST"
        );
    }
    format!("the same again when the cause is gone: what is there already is replaced (dvs dc inspect {dc})")
}

/// What was done.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Imported {
    dc: String,
    /// As programs of the container see it.
    destination: String,
    /// Files and directories; none when an archive was passed on as it was.
    #[serde(skip_serializing_if = "Option::is_none")]
    entries: Option<u64>,
    /// Of the files, or of the archive.
    bytes: u64,
    took_ms: u64,
}

impl Imported {
    fn new(options: &Options, progress: &Progress, took: Duration, destination: String) -> Imported {
        Imported {
            dc: options.dc.clone(),
            destination,
            entries: Some(progress.entries.load(Ordering::Relaxed)).filter(|entries| *entries > 0),
            bytes: progress.bytes.load(Ordering::Relaxed),
            took_ms: took.as_millis() as u64,
        }
    }

    fn summary(&self) -> String {
        let bytes = output::bytes(self.bytes);
        let amount = match self.entries {
            None => format!("an archive of {bytes}"),
            Some(entries) => format!("{entries} files and directories, {bytes}"),
        };
        let rate = output::bytes(self.bytes.saturating_mul(1000) / self.took_ms.max(1));
        format!("imported {amount} to {} in {:.1} s ({rate}/s)", self.destination, self.took_ms as f64 / 1000.0)
    }
}

impl Row for Imported {
    const HEADINGS: &'static [&'static str] = &["DC", "DESTINATION", "BYTES"];

    fn cells(&self) -> Vec<String> {
        vec![self.dc.clone(), self.destination.clone(), output::bytes(self.bytes)]
    }

    fn name(&self) -> String {
        self.destination.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tar_archive_is_known_by_the_sum_in_its_header() {
        let mut archive = tar::Builder::new(Vec::new());
        archive.append_dir("d", ".").unwrap();
        let archive = archive.into_inner().unwrap();
        assert!(begins_tar(&archive[..TAR_BLOCK_BYTES]));
        assert!(begins_tar(&[]) && begins_tar(&[0; TAR_BLOCK_BYTES]), "an empty one");
        let mut other = archive[..TAR_BLOCK_BYTES].to_vec();
        other[0] ^= 1;
        assert!(!begins_tar(&other) && !begins_tar(b"root:x:0:0:") && !begins_tar(&[b'7'; TAR_BLOCK_BYTES]));
    }

    #[test]
    fn compression_is_known_by_its_first_bytes() {
        assert_eq!(compression(b"\x1f\x8b\x08\0\0\0"), Some("gzip"));
        assert_eq!(compression(b"\xfd7zXZ\0"), Some("xz"));
        assert_eq!(compression(b"./a/b\0"), None);
        assert_eq!(compression(b""), None);
    }
}
