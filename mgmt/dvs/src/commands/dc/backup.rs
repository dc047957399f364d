//! `dvs dc backup`: a container's description, keys and files, in one archive.

pub mod form;

use std::io::{self, BufWriter, IsTerminal, Write};
use std::path::{Path, PathBuf};

use clap::Args;
use client::Client;
use mgmt_api::TREE;
use serde::Serialize;

use self::form::{End, FORMAT, FormError, Head, Maker};
use super::super::ds::whole;
use super::super::fs::carry_out;
use super::super::fs::inside::{Request, SNAPSHOTS};
use super::super::tree::{ended_without_a_word, judge, receive};
use super::super::{Outcome, block_on, daemon, done, interruption, kept, names, now_ms, say};
use crate::cli::Global;
use crate::errors::Failure;
use crate::installed::not_written;
use crate::output::{self, Row};
use crate::pump::Ended;

/// Between the pieces of a stream and a file.
const BUFFER_BYTES: usize = 1 << 20;

/// Keep a copy of a container: description, keys, files
#[derive(Args, Debug)]
#[command(after_help = "\
The container runs meanwhile. All files are of one moment, of a snapshot that is taken for it and removed again: a database \
is as after a loss of power, which it is made for. The keys are of a moment before. With --live each file is as it was when it was read. Not in \
it: sockets, devices, extended attributes, what programs hold in memory, /tmp and /run of the nodes, snapshots. It is a tar archive: tar tf shows it. Values \
of variables and keys are in it, so keep it as a secret.

Examples:
  dvs dc backup shop shop.backup
  dvs dc backup shop - | zstd > shop.backup.zst
  dvs dc backup --snapshot monday shop shop.backup      the files as they were on monday
  dvs dc restore shop.backup --name shop2      a second one like it
  dvs dc restore --check shop.backup           whether it is whole")]
pub struct Options {
    /// Container; it must run.
    #[arg(add = names::containers())]
    dc: String,
    /// Where to write it; - is standard output.
    file: PathBuf,
    /// Replace a file that is there.
    #[arg(long)]
    force: bool,
    /// Node of the container through which the files come [default: its first one].
    #[arg(short, long, add = names::nodes())]
    node: Option<String>,
    /// The files of this snapshot, which stays; dvs fs snapshot ls.
    #[arg(long, value_name = "NAME", conflicts_with = "live")]
    snapshot: Option<String>,
    /// Take no snapshot: read the files while programs change them.
    #[arg(long)]
    live: bool,
}

/// What is in a backup.
#[derive(Serialize)]
pub struct Contents {
    pub file: PathBuf,
    pub dc: String,
    pub made_s: u64,
    #[serde(flatten)]
    pub end: End,
}

impl Contents {
    /// For a person.
    pub fn amount(&self) -> String {
        let End { entries, keys, bytes, .. } = &self.end;
        format!("{entries} files and directories, {keys} keys, {}", output::bytes(*bytes))
    }
}

impl Row for Contents {
    const HEADINGS: &'static [&'static str] = &["DC", "FILE", "ENTRIES", "KEYS", "BYTES"];

    fn cells(&self) -> Vec<String> {
        let End { entries, keys, bytes, .. } = &self.end;
        let file = self.file.display().to_string();
        vec![self.dc.clone(), file, entries.to_string(), keys.to_string(), output::bytes(*bytes)]
    }

    fn name(&self) -> String {
        self.file.display().to_string()
    }
}

pub fn execute(global: &Global, options: &Options) -> Outcome {
    let daemon = daemon(global)?;
    if options.file == Path::new("-") {
        if io::stdout().is_terminal() {
            return Err(Failure::usage("standard output is a terminal").hint("dvs dc backup DC FILE"));
        }
        let contents = copy(&daemon, options, io::stdout().lock())?;
        say(&format!("container '{}': {}", options.dc, contents.amount()));
        return Ok(0.into());
    }
    let contents = kept::whole(&options.file, options.force, |file| copy(&daemon, options, file))?;
    say(&format!("container '{}' is in {}: {}", options.dc, options.file.display(), contents.amount()));
    done(global.output, &contents)
}

fn copy(daemon: &Client, options: &Options, out: impl Write) -> Result<Contents, Failure> {
    let Options { dc, file, .. } = options;
    let unwritten = |error| match error {
        FormError::Write(cause) if file == Path::new("-") => cause.into(),
        FormError::Write(cause) => not_written(file, &cause),
        other => failed(options).because(&other).hint("again"),
    };
    let (found, keys, id) = block_on(async {
        let found = daemon.dc(dc).await?;
        Ok::<_, Failure>((found, whole::read(daemon, dc).await?, random()?))
    })??;
    let head =
        Head { format: FORMAT, release: versions::Release::NAME.to_owned(), made_s: now_ms() / 1000, dc: found.spec };
    let mut maker = Maker::begin(BufWriter::with_capacity(BUFFER_BYTES, out), id, &head, &keys).map_err(unwritten)?;
    drop(keys);
    let point = Point::of(daemon, options, id)?;
    let (reader, writer) = io::pipe().map_err(|cause| failed(options).because(&cause).hint("again"))?;
    // Each side on a thread of its own: one that waits for its output must not hold up the other.
    let (received, made) = std::thread::scope(|scope| {
        let sending = scope.spawn(|| block_on(send(daemon, options, &point.path, writer)));
        let made = maker.tree(reader);
        (sending.join(), made)
    });
    drop(point);
    let received = received.map_err(|_| failed(options).because_text("the sending side failed"))?;
    let (ended, complaints) = received??;
    if made.is_ok() || !ended_without_a_word(&ended, &complaints) {
        judge(|| failed(options), dc, ended, &complaints)?;
    }
    made.map_err(unwritten)?;
    let end = maker.finish().map_err(unwritten)?;
    Ok(Contents { file: file.clone(), dc: dc.clone(), made_s: head.made_s, end })
}

/// The files, until somebody wants us to end.
async fn send(
    daemon: &Client,
    options: &Options,
    path: &str,
    writer: io::PipeWriter,
) -> Result<(Ended, String), Failure> {
    tokio::select! {
        received = receive(daemon, (&options.dc, path, "."), options.node.as_deref(), writer) => received,
        interrupted = interruption("the same again; nothing of it is left") => Err(interrupted),
    }
}

/// Where the files are that are kept.
struct Point<'a> {
    path: String,
    /// A snapshot that goes with it.
    taken: Option<String>,
    daemon: &'a Client,
    options: &'a Options,
}

impl<'a> Point<'a> {
    fn of(daemon: &'a Client, options: &'a Options, id: u64) -> Result<Point<'a>, Failure> {
        let point = |name: Option<&str>, taken| {
            let path = name.map_or(TREE.to_owned(), |name| format!("{TREE}/{SNAPSHOTS}/{name}"));
            Point { path, taken, daemon, options }
        };
        if options.live || options.snapshot.is_some() {
            return Ok(point(options.snapshot.as_deref(), None));
        }
        let name = format!("backup-{id:016x}");
        let request = Request::Take { name: name.clone() };
        // From here on it is removed, whether it was taken or not.
        let point = point(Some(&name), Some(name.clone()));
        block_on(async {
            tokio::select! {
                taken = carry_out(daemon, &options.dc, options.node.as_deref(), &request) => taken,
                interrupted = interruption("the same again") => Err(interrupted),
            }
        })?
        .map_err(|failure| {
            let because = std::iter::once(failure.what).chain(failure.because);
            let failure = because.fold(failed(options), Failure::because_text);
            failure.hint(format!("without a snapshot: dvs dc backup --live {} FILE", options.dc))
        })?;
        Ok(point)
    }
}

impl Drop for Point<'_> {
    fn drop(&mut self) {
        let Some(name) = self.taken.take() else { return };
        let Options { dc, node, .. } = self.options;
        let request = Request::Forget { name: name.clone() };
        if !matches!(block_on(carry_out(self.daemon, dc, node.as_deref(), &request)), Ok(Ok(()))) {
            say(&format!("dvs: snapshot '{name}' is left: dvs fs snapshot rm {dc} {name}"));
        }
    }
}

fn failed(options: &Options) -> Failure {
    Failure::new(format!("container '{}' was not backed up", options.dc))
}

fn random() -> Result<u64, Failure> {
    let mut bytes = [0; 8];
    let read = std::fs::File::open("/dev/urandom").and_then(|mut source| io::Read::read_exact(&mut source, &mut bytes));
    read.map_err(|cause| Failure::new("cannot read random numbers").because(&cause).hint("dvs doctor"))?;
    Ok(u64::from_le_bytes(bytes))
}
