//! `dvs fs`: the file tree of a container as a whole: its space, quotas of directories, and snapshots of it.
//!
//! A snapshot is a directory that is made in `/dc/.snapshots`, so it is a process of the container that makes it, as
//! any of its programs may (`inside.rs`). Outside, this command starts that process, which is our own binary, and
//! passes on what it says; inside the container it does the work itself.

pub mod changed;
pub mod diff;
pub mod inside;
pub mod quota;
pub mod scrub;

use std::io;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use clap::{Args, Subcommand};
use client::Client;
use mgmt_api::{DcPhase, RunRequest};
use parking_lot::Mutex;

use self::inside::Request;
use self::quota::Limits;
use super::dc::view;
use super::ds::{is_inside, ourselves};
use super::session::{Manner, converse, new_session};
use super::tree::listen;
use super::{Outcome, block_on, daemon, names, print, say};
use crate::cli::Global;
use crate::errors::{self, Failure};
use crate::output::Format;
use crate::pump::Ended;
use crate::units::parse_bytes;

/// The file tree of a container: its space, quotas, and snapshots of it
#[derive(Subcommand, Debug)]
#[command(after_help = "\
Examples:
  dvs fs df shop
  dvs fs quota set shop srv/uploads --bytes 10G
  dvs fs snapshot create shop before-update
  dvs fs snapshot ls shop
  dvs fs diff shop before-update               what is another one since then
  dvs fs scrub shop                            whether all can be read")]
pub enum Command {
    /// Show how much room the tree has.
    Df {
        /// Container; it must run.
        #[arg(add = names::containers())]
        dc: String,
    },
    #[command(subcommand, visible_alias = "quotas")]
    Quota(QuotaCommand),
    #[command(subcommand, visible_alias = "snapshots")]
    Snapshot(SnapshotCommand),
    Diff(DiffOptions),
    Scrub(ScrubOptions),
}

/// Show what came, went and became other in a tree since a snapshot
#[derive(Args, Debug)]
#[command(after_help = "\
A line for each: A was added, C is another one, in content, owner, mode or attributes, or its names if it is a directory, D is \
gone. Of what is gone with all that was in it, the directory alone is told; what was moved is gone there, and added here. The container runs \
meanwhile: it is one moment that is compared, as a snapshot that is removed again. With two snapshots, the later one second.

Examples:
  dvs fs snapshot create shop before; dvs run shop -- /dc/bin/update
  dvs diff shop                                since the last snapshot
  dvs fs diff shop before                      since this one
  dvs fs diff shop before after                from one to another
  dvs fs diff shop before -o json | jq -r '.[] | select(.change == \"removed\").path'")]
pub struct DiffOptions {
    /// Container; it must run.
    #[arg(add = names::containers())]
    dc: String,
    /// Snapshot to compare with [default: the last one].
    earlier: Option<String>,
    /// Snapshot that is compared [default: the tree as it is now].
    later: Option<String>,
}

/// The same, of the top level.
pub fn execute_diff(global: &Global, options: DiffOptions) -> Outcome {
    execute(global, Command::Diff(options))
}

/// Read all files of a tree and say which are damaged
#[derive(Args, Debug)]
#[command(after_help = "\
The container runs meanwhile: it is the files of one moment that are read, of a snapshot that is removed again. Each block is \
compared with its checksum. What is spoiled on one copy of the disk is mended from another one, and is no damage; the log of the \
file server tells of it. Whether copies have the same, also where there are no files: dvs disk verify. A tree that nobody \
uses: dvs alone check.

Exit status: 0 all could be read, 1 some could not, or nothing was read.

Examples:
  dvs fs scrub shop
  dvs fs scrub shop -o json                    with the paths of what is damaged
  dvs fs scrub shop --node n3                  read from that node")]
pub struct ScrubOptions {
    /// Container; it must run.
    #[arg(add = names::containers())]
    dc: String,
    /// Node of the container that reads [default: its first one].
    #[arg(short, long, add = names::nodes())]
    node: Option<String>,
}

/// Quotas: how much a directory may have
#[derive(Subcommand, Debug)]
#[command(after_help = "\
A quota counts all files and directories in its directory and below, itself included, and the blocks of 4 KiB that they have. What \
it does not allow fails with EDQUOT (Disk quota exceeded), for every program on every node, root's too; df there shows it. \
Directories with quotas lie beside one another: none is inside another one. A file counts where it was made, or moved to; a \
directory that is not empty does not move across (EXDEV, so mv copies).

Examples:
  dvs fs quota set shop srv/uploads --bytes 10G
  dvs fs quota set shop /dc/srv/mail --bytes 2G --inodes 100000
  dvs fs quota set shop srv/uploads --bytes none        counted, without a limit
  dvs fs quota ls shop
  dvs fs quota rm shop srv/uploads

Programs of a container that are root may, too: setfattr -n dvs.quota -v 'bytes=1000000 inodes=100' DIRECTORY.")]
pub enum QuotaCommand {
    Set(QuotaOptions),
    /// List quotas, and what of them is used.
    #[command(visible_alias = "list")]
    Ls {
        /// Container; it must run.
        #[arg(add = names::containers())]
        dc: String,
    },
    /// End the quota of a directory; its files stay.
    #[command(visible_alias = "delete")]
    Rm {
        /// Container; it must run.
        #[arg(add = names::containers())]
        dc: String,
        /// Directory: /dc/srv/uploads, or srv/uploads.
        path: PathBuf,
    },
}

/// Say how much a directory may have, or change it
#[derive(Args, Debug)]
#[command(after_help = "\
What the directory has is counted while programs go on, and may be more than the limit: then nothing is added. A limit that is not \
given stays as it is.

Examples:
  dvs fs quota set shop srv/uploads --bytes 10G
  dvs fs quota set shop srv/uploads --inodes 5000       its bytes as before")]
pub struct QuotaOptions {
    /// Container; it must run.
    #[arg(add = names::containers())]
    dc: String,
    /// Directory: /dc/srv/uploads, or srv/uploads.
    path: PathBuf,
    /// What its files may have together; none: no limit.
    #[arg(long, value_name = "SIZE", value_parser = parse_limit, required_unless_present = "inodes")]
    bytes: Option<u64>,
    /// How many files and directories there may be, itself included; none: no limit.
    #[arg(long, value_name = "NUMBER", value_parser = parse_count_limit)]
    inodes: Option<u64>,
    /// Answer before what is there is counted.
    #[arg(long)]
    no_wait: bool,
}

const NO_LIMIT: &str = "none";

fn parse_limit(text: &str) -> Result<u64, String> {
    match text {
        NO_LIMIT => Ok(0),
        _ => parse_bytes(text).and_then(positive),
    }
}

fn parse_count_limit(text: &str) -> Result<u64, String> {
    match text {
        NO_LIMIT => Ok(0),
        _ => text.parse().map_err(|_| format!("'{text}' is no number")).and_then(positive),
    }
}

fn positive(number: u64) -> Result<u64, String> {
    match number {
        0 => Err(format!("0 allows nothing; no limit is '{NO_LIMIT}'")),
        _ if number > i64::MAX as u64 => Err("it is more than can be counted".to_owned()),
        _ => Ok(number),
    }
}

/// Snapshots: the tree as it was
#[derive(Subcommand, Debug)]
#[command(after_help = "\
A snapshot is taken in an instant, while programs run. It has all that was answered to programs on any node before, \
also what the file server was not told yet; not what a program keeps to itself. On all nodes it is a directory that \
nothing can change: /dc/.snapshots/NAME. Files come back from there as from any other place. What is changed or \
removed afterwards takes its room until the snapshot is removed. A tree has at most 64.

Examples:
  dvs fs snapshot create shop before-update
  dvs run shop -- cp -a /dc/.snapshots/before-update/www/index.html /dc/www/
  dvs run shop -- diff -r /dc/.snapshots/before-update/etc /dc/etc
  dvs fs snapshot restore shop before-update      the whole tree
  dvs fs snapshot rm shop before-update

Programs of a container take snapshots, too: mkdir /dc/.snapshots/NAME, and rmdir.")]
pub enum SnapshotCommand {
    /// Keep the tree as it is now.
    #[command(visible_alias = "take")]
    Create(SnapshotOptions),
    /// List snapshots, the oldest one first.
    #[command(visible_alias = "list")]
    Ls {
        /// Container; it must run.
        #[arg(add = names::containers())]
        dc: String,
    },
    /// Remove a snapshot; what only it had makes room.
    #[command(visible_alias = "delete")]
    Rm(SnapshotOptions),
    Restore(RestoreOptions),
}

/// Have the whole tree as it was
#[derive(Args, Debug)]
#[command(after_help = "\
The container is stopped, its tree becomes what it was, and it is started again, with its services. What was changed since then is \
lost, unless another snapshot has it: take one first. All snapshots stay, later ones too. It is done before \
anything of the container uses the tree, whole or not at all. Keys of dvs ds and other disks stay as they are.

Examples:
  dvs fs snapshot restore shop before-update
  dvs fs snapshot create shop now && dvs fs snapshot restore shop before-update     with a way back")]
pub struct RestoreOptions {
    /// Seconds between TERM and KILL of its programs [default: 10].
    #[arg(short, long, value_name = "SECONDS")]
    time: Option<u32>,
    #[command(flatten)]
    snapshot: SnapshotOptions,
}

#[derive(Args, Debug)]
pub struct SnapshotOptions {
    /// Container; it must run.
    #[arg(add = names::containers())]
    dc: String,
    /// Name of the snapshot, as of a file.
    name: String,
}

pub fn execute(global: &Global, command: Command) -> Outcome {
    let mut node = None;
    let (dc, request) = match command {
        Command::Df { dc } => (dc, Request::Df),
        Command::Scrub(it) => {
            node = it.node;
            (it.dc, Request::Scrub)
        }
        Command::Quota(QuotaCommand::Set(QuotaOptions { dc, path, bytes, inodes, no_wait })) => {
            (dc, Request::Quota(quota::Request::Set { path, limits: Limits { bytes, inodes, no_wait } }))
        }
        Command::Quota(QuotaCommand::Ls { dc }) => (dc, Request::Quota(quota::Request::List)),
        Command::Quota(QuotaCommand::Rm { dc, path }) => (dc, Request::Quota(quota::Request::End { path })),
        Command::Snapshot(SnapshotCommand::Create(it)) => (it.dc, Request::Take { name: it.name }),
        Command::Snapshot(SnapshotCommand::Ls { dc }) => (dc, Request::List),
        Command::Snapshot(SnapshotCommand::Rm(it)) => (it.dc, Request::Remove { name: it.name }),
        Command::Snapshot(SnapshotCommand::Restore(it)) => return restore(global, &it),
        Command::Diff(DiffOptions { dc, earlier, later }) => (dc, Request::Diff { earlier, later }),
    };
    request.check()?;
    if is_inside(&dc) {
        return inside::execute(global.output, &dc, &request);
    }
    let run = RunRequest { node, ..helper(global.output, &dc, &request) };
    let daemon = daemon(global)?;
    let ended = block_on(async {
        let session = new_session()?;
        let stream = daemon.run(&dc, &run, session).await?;
        converse(&daemon, &dc, (stream, session), Manner::Output, None).await
    })?;
    if ended.as_ref().is_ok_and(|status| *status == ExitCode::from(errors::USAGE)) {
        // Our own words, which a keeper of now understands.
        say(&format!("  because: container '{dc}' runs since an earlier release\n  try: dvs restart {dc}"));
    }
    ended.map_err(|failure| failure.status(errors::GENERAL))
}

fn restore(global: &Global, options: &RestoreOptions) -> Outcome {
    let RestoreOptions { time, snapshot: SnapshotOptions { dc, name } } = options;
    let request = Request::Find { name: name.clone() };
    request.check()?;
    if is_inside(dc) {
        let failure = Failure::usage(format!("container '{dc}' cannot stop itself"));
        return Err(failure.hint("from a node, or single files: cp -a"));
    }
    let daemon = daemon(global)?;
    let started = block_on(async {
        let there = daemon.dc(dc).await?;
        if there.phase != DcPhase::Stopped {
            // Before programs are ended for nothing.
            carry_out(&daemon, dc, None, &request).await?;
            daemon.stop_dc(dc, time.map(|seconds| u64::from(seconds) * 1000)).await?;
        }
        Ok::<_, Failure>(daemon.start_dc_as_it_was(dc, name).await?)
    })??;
    say(&format!("container '{dc}' runs on {}, its tree as it was for '{name}'", started.spec.nodes.join(", ")));
    print(|out| view::changed(out, global.output, &started))
}

/// Has it done by a process of the container; what that complained about, if it failed.
pub async fn carry_out(daemon: &Client, dc: &str, node: Option<&str>, request: &Request) -> Result<(), Failure> {
    let run = RunRequest { node: node.map(str::to_owned), ..helper(Format::Name, dc, request) };
    let stream = daemon.run(dc, &run, new_session()?).await?;
    match listen(stream, None, std::io::sink()).await? {
        (Ended::Exit(0), _) => Ok(()),
        (_, complaints) => Err(said(dc, &complaints)),
    }
}

/// The same, and what it answered.
pub async fn inquire(daemon: &Client, dc: &str, node: Option<&str>, request: &Request) -> Result<Vec<u8>, Failure> {
    let run = RunRequest { node: node.map(str::to_owned), ..helper(Format::Json, dc, request) };
    let stream = daemon.run(dc, &run, new_session()?).await?;
    let answer = Answer::default();
    match listen(stream, None, answer.clone()).await? {
        (Ended::Exit(0), _) => Ok(std::mem::take(&mut *answer.0.lock())),
        (_, complaints) => Err(said(dc, &complaints)),
    }
}

/// What a process writes, as far as an answer may go.
#[derive(Clone, Default)]
struct Answer(Arc<Mutex<Vec<u8>>>);

const ANSWER_BYTES_MAX: usize = 1 << 20;

impl io::Write for Answer {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut answer = self.0.lock();
        if answer.len() + bytes.len() > ANSWER_BYTES_MAX {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        answer.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A failure, as the process in the container printed it.
fn said(dc: &str, complaints: &str) -> Failure {
    let mut lines = complaints.lines();
    let what = lines.next().and_then(|line| line.strip_prefix("dvs: "));
    let mut failure = match what {
        Some(what) => Failure::new(what),
        None => Failure::new(format!("the file tree of '{dc}' did not answer")),
    };
    for line in lines {
        match (line.strip_prefix("  because: "), line.strip_prefix("  try: ")) {
            (Some(cause), _) => failure = failure.because_text(cause),
            (_, Some(hint)) => failure = failure.hint(hint),
            _ => failure = failure.because_text(line),
        }
    }
    failure
}

/// The process of the container.
fn helper(format: Format, dc: &str, request: &Request) -> RunRequest {
    let [way, form] = format.words();
    let words = ["internal", "fs", way, form, dc].map(str::to_owned);
    let words: Vec<String> = words.into_iter().chain(request.words()).collect();
    RunRequest { unlogged: true, ..ourselves(words.iter().map(String::as_str)) }
}
