//! `dvs dc backup`: a container's description, keys, files and further disks, in one archive.

mod disks;
pub mod form;

use std::fs::File;
use std::io::{self, BufReader, BufWriter, IsTerminal, Write};
use std::path::{Path, PathBuf};

use clap::Args;
use client::Client;
use mgmt_api::{DiskSpec, TREE};
use serde::Serialize;

pub use self::disks::DiskPart;
use self::form::{AllSums, End, FormError, Head, Maker, Moment, Reader};
use super::super::ds::whole;
use super::super::fs::inside::{Request, SNAPSHOTS, SnapshotView};
use super::super::fs::{carry_out, inquire};
use super::super::tree::{ended_without_a_word, judge, receive, receive_changes, receive_disk};
use super::super::{Outcome, block_on, daemon, done, interruption, kept, names, now_ms, say};
use crate::cli::Global;
use crate::errors::Failure;
use crate::installed::not_written;
use crate::output::{self, Row};
use crate::pump::Ended;

/// Between the pieces of a stream and a file.
const BUFFER_BYTES: usize = 1 << 20;

/// Keep a copy of a container: description, keys, files, disks
#[derive(Args, Debug)]
#[command(after_help = "\
The container runs meanwhile. All files are of one moment, of a snapshot that is taken for it and removed again: a database \
is as after a loss of power, which it is made for. The keys are of a moment before. With --live each file is as it was when it was read. \
With --since it has the files that changed since an earlier backup, whose snapshot is still there: --keep leaves it, and takes away the \
one that an earlier --keep left. Further disks (dvs disk create) are in it, each of a moment of its own: whoever \
writes waits for a few milliseconds now and then. Not in it: sockets, devices, what programs hold in memory, /tmp \
and /run of the nodes, snapshots. It is a tar archive: tar tf shows it. Values \
of variables and keys are in it, so keep it as a secret.

Examples:
  dvs dc backup shop shop.backup
  dvs dc backup shop - | zstd > shop.backup.zst
  dvs dc backup --snapshot monday shop shop.backup      the files as they were on monday
  dvs dc backup --no-disks shop shop.backup
  dvs dc backup shop sunday.backup --keep
  dvs dc backup shop monday.backup --since sunday.backup --keep
  dvs dc restore sunday.backup monday.backup   as it was on monday
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
    /// Only what changed since this backup was made; it needs that one, too.
    #[arg(long, value_name = "BACKUP", conflicts_with = "live")]
    since: Option<PathBuf>,
    /// Leave its snapshot, for a later --since; the one that the earlier backup left goes.
    #[arg(long, conflicts_with_all = ["live", "snapshot"])]
    keep: bool,
    /// Leave out what is on its further disks; they are made again, empty.
    #[arg(long)]
    no_disks: bool,
}

/// What is in a backup.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[cfg_attr(test, schemars(rename = "BackupContents"))]
pub struct Contents {
    pub file: PathBuf,
    pub dc: String,
    pub made_s: u64,
    #[serde(flatten)]
    pub end: End,
    /// Disks of which what was written meanwhile may be there in part.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub blurred_disks: Vec<String>,
}

impl Contents {
    /// What is less than it seems, a line each.
    pub fn blurred(&self) -> Vec<String> {
        let line = |disk: &String| {
            format!("disk '{disk}' is of no one moment: what was written while it was read may be there in part")
        };
        self.blurred_disks.iter().map(line).collect()
    }

    /// For a person.
    pub fn amount(&self) -> String {
        let End { entries, keys, disks, bytes, .. } = &self.end;
        let disks = match disks {
            0 => String::new(),
            1 => "1 further disk, ".to_owned(),
            disks => format!("{disks} further disks, "),
        };
        format!("{entries} files and directories, {keys} keys, {disks}{}", output::bytes(*bytes))
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
        let contents = copy(&daemon, options, io::stdout().lock())?.settle();
        say(&format!("container '{}': {}", options.dc, contents.amount()));
        contents.blurred().iter().for_each(|line| say(line));
        return Ok(0.into());
    }
    // What the earlier backup left goes when this one has its name.
    let contents = kept::whole(&options.file, options.force, |file| copy(&daemon, options, file))?.settle();
    say(&format!("container '{}' is in {}: {}", options.dc, options.file.display(), contents.amount()));
    contents.blurred().iter().for_each(|line| say(line));
    done(global.output, &contents)
}

/// A backup that was written, with what it was made of.
struct Copied<'a> {
    contents: Contents,
    point: Point<'a>,
    since: Option<Moment>,
}

impl Copied<'_> {
    fn settle(mut self) -> Contents {
        if self.point.options.keep {
            self.point.stays(self.since.as_ref());
        }
        self.contents
    }
}

fn copy<'a>(daemon: &'a Client, options: &'a Options, out: impl Write) -> Result<Copied<'a>, Failure> {
    let Options { dc, file, .. } = options;
    let unwritten = |error| match error {
        FormError::Write(cause) if file == Path::new("-") => cause.into(),
        FormError::Write(cause) => not_written(file, &cause),
        other => failed(options).because(&other).hint("again"),
    };
    let earlier = options.since.as_deref().map(|file| Earlier::of(daemon, options, file)).transpose()?;
    let (found, keys, id) = block_on(async {
        let found = daemon.dc(dc).await?;
        Ok::<_, Failure>((found, whole::read(daemon, dc).await?, random()?))
    })??;
    let point = Point::of(daemon, options, id)?;
    let (since, sums) = match earlier {
        Some(earlier) => {
            let (moment, sums) = earlier.before(&point, options)?;
            (Some(moment), sums)
        }
        None => (None, AllSums::new()),
    };
    let skipped = if options.no_disks { usize::MAX } else { 1 };
    let further: Vec<DiskSpec> = found.spec.disks.iter().skip(skipped).cloned().collect();
    let mut head = Head {
        format: 0,
        release: versions::Release::NAME.to_owned(),
        made_s: now_ms() / 1000,
        dc: found.spec,
        point: point.moment.clone(),
        since: since.clone(),
        disks: further.iter().map(|disk| disk.name.clone()).collect(),
    };
    head.format = head.demanded_format();
    let mut maker = Maker::begin(BufWriter::with_capacity(BUFFER_BYTES, out), id, &head, &keys).map_err(unwritten)?;
    drop(keys);
    for DiskSpec { name, bytes, .. } in &further {
        let earlier = sums.get(name).cloned().unwrap_or_default();
        let failed = || failed(options).hint(format!("dvs disk inspect {dc} {name}; without disks: --no-disks"));
        let send = |writer| block_on(until_interrupted(receive_disk(daemon, (dc, name), writer)));
        passed(dc, failed, send, |reader| maker.disk(name, *bytes, reader, &earlier).map(drop), &unwritten)?;
    }
    let send =
        |writer| block_on(until_interrupted(receive_tree(daemon, options, (&point.path, since.as_ref()), writer)));
    passed(dc, || failed(options), send, |reader| maker.tree(reader), &unwritten)?;
    let blurred_disks = std::mem::take(&mut maker.blurred_disks);
    let end = maker.finish().map_err(unwritten)?;
    let contents = Contents { file: file.clone(), dc: dc.clone(), made_s: head.made_s, end, blurred_disks };
    Ok(Copied { contents, point, since })
}

/// What a process of the container says goes into the archive. Each side on a thread of its own: one that waits for its
/// output must not hold up the other.
fn passed(
    dc: &str,
    failed: impl Fn() -> Failure,
    send: impl FnOnce(io::PipeWriter) -> Result<Result<(Ended, String), Failure>, Failure> + Send,
    take: impl FnOnce(io::PipeReader) -> Result<(), FormError>,
    unwritten: &impl Fn(FormError) -> Failure,
) -> Result<(), Failure> {
    let (reader, writer) = io::pipe().map_err(|cause| failed().because(&cause).hint("again"))?;
    let (received, made) = std::thread::scope(|scope| {
        let sending = scope.spawn(|| send(writer));
        let made = take(reader);
        (sending.join(), made)
    });
    let received = received.map_err(|_| failed().because_text("the sending side failed"))?;
    let (ended, complaints) = received??;
    if made.is_ok() || !ended_without_a_word(&ended, &complaints) {
        judge(failed, dc, ended, &complaints)?;
    }
    made.map_err(unwritten)
}

async fn receive_tree(
    daemon: &Client,
    options: &Options,
    (path, since): (&str, Option<&Moment>),
    writer: io::PipeWriter,
) -> Result<(Ended, String), Failure> {
    let Options { dc, node, .. } = options;
    match since {
        Some(since) => receive_changes(daemon, (dc, path, &since.snapshot), node.as_deref(), writer).await,
        None => receive(daemon, (dc, path, "."), node.as_deref(), writer).await,
    }
}

async fn until_interrupted<T>(receiving: impl Future<Output = Result<T, Failure>>) -> Result<T, Failure> {
    tokio::select! {
        received = receiving => received,
        interrupted = interruption("the same again; nothing of it is left") => Err(interrupted),
    }
}

/// An earlier backup, whose snapshot is still there.
struct Earlier {
    moment: Moment,
    /// Of what was on its disks.
    sums: AllSums,
}

impl Earlier {
    fn of(daemon: &Client, options: &Options, file: &Path) -> Result<Earlier, Failure> {
        let dc = &options.dc;
        let whole = format!("all of it: dvs dc backup --keep {dc} FILE");
        let unusable = |cause: &dyn std::error::Error| {
            let failure = failed(options).because_text(format!("{} is of no use", file.display()));
            failure.because(cause).hint(&whole)
        };
        let opened = File::open(file).map_err(|cause| unusable(&cause))?;
        let opened = BufReader::with_capacity(BUFFER_BYTES, opened);
        let mut reader = Reader::begin(opened).map_err(|cause| unusable(&cause))?;
        let moment = reader.head.point.clone().ok_or_else(|| {
            let text = format!("{} was made with --live, or by an earlier release: it is of no moment", file.display());
            failed(options).because_text(text).hint(&whole)
        })?;
        let gone = || {
            let text =
                format!("the tree has no snapshot '{}' any more, of which {} is", moment.snapshot, file.display());
            failed(options).because_text(text).hint(&whole)
        };
        Request::Find { name: moment.snapshot.clone() }.check()?;
        let there = block_on(find(daemon, options, &moment.snapshot))?.map_err(|_| gone())?;
        if there != moment {
            return Err(gone());
        }
        let sums = match options.no_disks {
            true => AllSums::new(),
            false => reader.disks(None, |_| Ok(())).map_err(|cause| unusable(&cause))?,
        };
        Ok(Earlier { moment, sums })
    }

    /// If the files that are kept now are of a later moment.
    fn before(self, point: &Point<'_>, options: &Options) -> Result<(Moment, AllSums), Failure> {
        match &point.moment {
            Some(now) if now.number > self.moment.number => Ok((self.moment, self.sums)),
            _ => {
                let text = format!("the snapshot is not later than '{}'", self.moment.snapshot);
                Err(failed(options).because_text(text).hint("without --snapshot"))
            }
        }
    }
}

/// A snapshot, by its name.
async fn find(daemon: &Client, options: &Options, name: &str) -> Result<Moment, Failure> {
    let request = Request::Find { name: name.to_owned() };
    let answer = inquire(daemon, &options.dc, options.node.as_deref(), &request).await?;
    let found: SnapshotView = serde_json::from_slice(&answer)
        .map_err(|cause| failed(options).because(&cause).hint(format!("dvs restart {}", options.dc)))?;
    Ok(Moment { snapshot: found.name, number: found.number, taken_s: found.taken_s })
}

/// Names of snapshots that backups take.
const TAKEN: &str = "backup-";

/// Where the files are that are kept.
struct Point<'a> {
    path: String,
    /// None: they are read as they are.
    moment: Option<Moment>,
    /// A snapshot that goes with it.
    taken: Option<String>,
    daemon: &'a Client,
    options: &'a Options,
}

impl<'a> Point<'a> {
    fn of(daemon: &'a Client, options: &'a Options, id: u64) -> Result<Point<'a>, Failure> {
        let point = |name: Option<&str>, taken| {
            let path = name.map_or(TREE.to_owned(), |name| format!("{TREE}/{SNAPSHOTS}/{name}"));
            Point { path, moment: None, taken, daemon, options }
        };
        if options.live {
            return Ok(point(None, None));
        }
        if let Some(name) = &options.snapshot {
            Request::Find { name: name.clone() }.check()?;
            let moment = block_on(find(daemon, options, name))?.map_err(|failure| because(options, failure))?;
            let mut point = point(Some(name), None);
            point.moment = Some(moment);
            return Ok(point);
        }
        let name = format!("{TAKEN}{id:016x}");
        let request = Request::Take { name: name.clone() };
        // From here on it is removed, whether it was taken or not.
        let mut point = point(Some(&name), Some(name.clone()));
        let taken = block_on(async {
            tokio::select! {
                taken = carry_out(daemon, &options.dc, options.node.as_deref(), &request) => taken,
                interrupted = interruption("the same again") => return Err(interrupted),
            }?;
            find(daemon, options, &name).await
        })?;
        point.moment = Some(taken.map_err(|failure| {
            let hint = format!("without a snapshot: dvs dc backup --live {} FILE", options.dc);
            because(options, failure).hint(hint)
        })?);
        Ok(point)
    }

    /// For a later backup; that of the one before has served.
    fn stays(&mut self, since: Option<&Moment>) {
        let Some(name) = self.taken.take() else { return };
        say(&format!("snapshot '{name}' stays, for dvs dc backup --since"));
        if let Some(earlier) = since.filter(|earlier| earlier.snapshot.starts_with(TAKEN)) {
            self.forget(&earlier.snapshot);
        }
    }

    fn forget(&self, name: &str) {
        let Options { dc, node, .. } = self.options;
        let request = Request::Forget { name: name.to_owned() };
        if !matches!(block_on(carry_out(self.daemon, dc, node.as_deref(), &request)), Ok(Ok(()))) {
            say(&format!("dvs: snapshot '{name}' is left: dvs fs snapshot rm {dc} {name}"));
        }
    }
}

impl Drop for Point<'_> {
    fn drop(&mut self) {
        if let Some(name) = self.taken.take() {
            self.forget(&name);
        }
    }
}

fn because(options: &Options, failure: Failure) -> Failure {
    let hint = failure.hint.clone();
    let because = std::iter::once(failure.what).chain(failure.because);
    let failure = because.fold(failed(options), Failure::because_text);
    match hint {
        Some(hint) => failure.hint(hint),
        None => failure,
    }
}

fn failed(options: &Options) -> Failure {
    Failure::new(format!("container '{}' was not backed up", options.dc))
}

fn random() -> Result<u64, Failure> {
    let mut bytes = [0; 8];
    let read = File::open("/dev/urandom").and_then(|mut source| io::Read::read_exact(&mut source, &mut bytes));
    read.map_err(|cause| Failure::new("cannot read random numbers").because(&cause).hint("dvs doctor"))?;
    Ok(u64::from_le_bytes(bytes))
}
