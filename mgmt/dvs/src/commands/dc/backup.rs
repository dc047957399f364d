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
use super::super::tree::{ended_without_a_word, judge, receive};
use super::super::{Outcome, block_on, daemon, done, kept, names, now_ms, say};
use crate::cli::Global;
use crate::errors::Failure;
use crate::installed::not_written;
use crate::output::{self, Row};

/// Between the pieces of a stream and a file.
const BUFFER_BYTES: usize = 1 << 20;

/// Keep a copy of a container: description, keys, files
#[derive(Args, Debug)]
#[command(after_help = "\
The container runs meanwhile. Each file is as it was when it was read, so what a program writes all the time, a database \
above all, is of one moment only when its service is stopped (dvs service stop), or when its own dump is what counts. Not in \
it: sockets, devices, extended attributes, what programs hold in memory, /tmp and /run of the nodes. It is a tar archive: tar tf shows it. Values \
of variables and keys are in it, so keep it as a secret.

Examples:
  dvs dc backup shop shop.backup
  dvs dc backup shop - | zstd > shop.backup.zst
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
    let (reader, writer) = io::pipe().map_err(|cause| failed(options).because(&cause).hint("again"))?;
    // Each side on a thread of its own: one that waits for its output must not hold up the other.
    let (received, made) = std::thread::scope(|scope| {
        let sending = scope.spawn(|| block_on(receive(daemon, (dc, TREE, "."), options.node.as_deref(), writer)));
        let made = maker.tree(reader);
        (sending.join(), made)
    });
    let received = received.map_err(|_| failed(options).because_text("the sending side failed"))?;
    let (ended, complaints) = received??;
    if made.is_ok() || !ended_without_a_word(&ended, &complaints) {
        judge(|| failed(options), dc, ended, &complaints)?;
    }
    made.map_err(unwritten)?;
    let end = maker.finish().map_err(unwritten)?;
    Ok(Contents { file: file.clone(), dc: dc.clone(), made_s: head.made_s, end })
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
