//! `dvs dc restore`: a container anew, from its backup.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, BufReader, IsTerminal, Read};
use std::path::{Path, PathBuf};

use clap::Args;
use client::{AfterCreate, BeforeDelete, Client, Data};
use mgmt_api::{DcSpec, content};
use std::sync::atomic::Ordering;
use tokio::sync::mpsc;

use super::super::apply;
use super::super::ds::whole;
use super::super::tree::{Progress, judge, transfer_changes, transfer_disk, transfer_whole};
use super::super::{Outcome, block_on, daemon, done, interruption, names, print, say};
use super::backup::form::{AllSums, End, FormError, Head, Reader};
use super::backup::{Contents, DiskPart};
use super::create::place_disk;
use super::view;
use crate::cli::Global;
use crate::errors::Failure;
use crate::output;
use crate::units::parse_bytes;

const BUFFER_BYTES: usize = 1 << 20;
/// Pieces on their way.
const PIECES_MAX: usize = 8;

/// Make a container anew from its backup
#[derive(Args, Debug)]
#[command(after_help = "\
It gets its files and keys first, then its services begin. A file is read twice: what is not whole makes nothing. What fails \
later, or is interrupted, is taken back: there is no container then. Backups that were made with --since come after the one \
that they were made since, and so on, back to one with all files; description and keys are those of the last.

Examples:
  dvs dc restore shop.backup
  dvs dc restore shop.backup --name shop2 --no-ports      beside the one that it was made of
  dvs dc restore shop.backup --nodes m1,m2                on nodes with other names, of another cluster
  zstd -dc shop.backup.zst | dvs dc restore -
  dvs dc restore sunday.backup monday.backup              as it was on monday
  dvs dc restore --check shop.backup                      only whether it is whole, and of what")]
pub struct Options {
    /// Backup, and those made --since it, in order; - is standard input.
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
    /// Name of the container [default: the one that it had].
    #[arg(long)]
    name: Option<String>,
    /// Nodes that it spans [default: those that it spanned]. Servers and disks of other nodes are placed anew; a disk
    /// has as many copies as it had, or one on each node if these are fewer.
    #[arg(long, value_delimiter = ',', value_name = "NODES", add = names::nodes())]
    nodes: Vec<String>,
    /// Size of the disk for its file tree [default: the one that it had].
    #[arg(long, value_name = "SIZE", value_parser = parse_bytes)]
    disk: Option<u64>,
    /// Copies of each disk, on as many nodes [default: as many as it had].
    #[arg(long, value_name = "N")]
    replicas: Option<u8>,
    /// Publish none of its ports.
    #[arg(long)]
    no_ports: bool,
    /// Read it, and make nothing.
    #[arg(long, conflicts_with_all = ["name", "nodes", "disk", "replicas", "no_ports"])]
    check: bool,
}

type Source = Box<dyn Read + Send>;

pub fn execute(global: &Global, options: &Options) -> Outcome {
    let is_stream = options.files.iter().any(|file| is_stdin(file));
    if is_stream && options.files.len() > 1 {
        let failure = Failure::usage("standard input is one backup, not several");
        return Err(failure.hint("dvs dc restore FILE FILE"));
    }
    if options.check {
        let all = check(options)?;
        for contents in &all {
            let of = mgmt_api::utc(contents.made_s);
            say(&format!("it is whole: container '{}' of {of}, {}", contents.dc, contents.amount()));
            contents.blurred().iter().for_each(|line| say(line));
        }
        return match all.as_slice() {
            [only] => done(global.output, only),
            all => print(|out| output::list(out, global.output, all)),
        };
    }
    let daemon = daemon(global)?;
    // Who is asked comes before what is read: it may be long.
    let known: Vec<String> = block_on(daemon.dcs())??.into_iter().map(|dc| dc.spec.name).collect();
    if !is_stream {
        let readers = begin_all(options, Keys::None)?;
        readers.last().map_or(Ok(()), |(_, last)| demand_other(&known, &wanted(&last.head.dc, options)))?;
        drop(readers);
        check(options)?;
    }
    let readers = begin_all(options, Keys::OfTheLast)?;
    let Some((file, last)) = readers.last() else { return Ok(0.into()) };
    let (file, spec, made_s) = (file.clone(), wanted(&last.head.dc, options), last.head.made_s);
    demand_other(&known, &spec)?;
    let dc = spec.name.clone();
    let is_made = Cell::new(false);
    let (end, blurred_disks) = block_on(async {
        let made = tokio::select! {
            made = make(&daemon, &spec, readers, &is_made) => made,
            interrupted = interruption("the same again; nothing of it is left") => Err(interrupted),
        };
        if let (Err(failure), true) = (&made, is_made.get()) {
            daemon.delete_dc(&dc, BeforeDelete::Stop, Data::Remove).await.map_err(|left| {
                let failure = failure.clone().because_text(format!("it is not taken back: {left}"));
                failure.hint(format!("dvs dc delete --force {dc}, and again"))
            })?;
        }
        made
    })??;
    let contents = Contents { file, dc, made_s, end, blurred_disks };
    let of = mgmt_api::utc(made_s);
    say(&format!("container '{}' is as it was at {of}: {}", contents.dc, contents.amount()));
    contents.blurred().iter().for_each(|line| say(line));
    done(global.output, &contents)
}

/// Reads all of them, to their ends.
fn check(options: &Options) -> Result<Vec<Contents>, Failure> {
    let readers = begin_all(options, Keys::None)?;
    let mut sums = AllSums::new();
    let read = |(file, mut reader): Part| {
        let (dc, made_s) = (reader.head.dc.name.clone(), reader.head.made_s);
        sums = reader.disks(Some(&sums), |_| Ok(())).map_err(|error| unusable(&file, &error))?;
        let blurred_disks = std::mem::take(&mut reader.blurred_disks);
        let end = reader.tree(|_| Ok(())).map_err(|error| unusable(&file, &error))?;
        Ok(Contents { file, dc, made_s, end, blurred_disks })
    };
    readers.into_iter().map(read).collect()
}

/// Whose keys stay in memory: there may be many.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Keys {
    None,
    OfTheLast,
}

/// All of them, in their order.
fn begin_all(options: &Options, keys: Keys) -> Result<Vec<Part>, Failure> {
    let mut parts: Vec<Part> = Vec::new();
    for file in &options.files {
        if let Some((_, before)) = parts.last_mut() {
            before.keys = Vec::new();
        }
        parts.push((file.clone(), begin(file)?));
    }
    if let Some((_, last)) = parts.last_mut().filter(|_| keys == Keys::None) {
        last.keys = Vec::new();
    }
    demand_chain(parts.iter().map(|(file, reader)| (file.as_path(), &reader.head)))?;
    Ok(parts)
}

/// Each begins where the one before it ended, and the first one with nothing.
fn demand_chain<'a>(heads: impl Iterator<Item = (&'a Path, &'a Head)>) -> Result<(), Failure> {
    let mut before: Option<(&Path, &Head)> = None;
    for (file, head) in heads {
        let refused = |text: String| Failure::new(format!("{} is of no use", file.display())).because_text(text);
        let earlier = before.and_then(|(_, head)| head.point.as_ref());
        match (&head.since, before) {
            (None, None) => {}
            (Some(since), Some(_)) if Some(since) == earlier => {}
            (None, Some(_)) => {
                let text = "it has all files, and needs none before it".to_owned();
                return Err(refused(text).hint(format!("dvs dc restore {}", file.display())));
            }
            (Some(since), _) => {
                let text = format!("it has what changed since {}, and nothing else", mgmt_api::utc(since.taken_s));
                let order = "the backup of then before it, and so on, the one with all files first";
                return Err(refused(text).hint(order));
            }
        }
        before = Some((file, head));
    }
    Ok(())
}

fn is_stdin(file: &Path) -> bool {
    file == Path::new("-")
}

fn begin(file: &Path) -> Result<Reader<BufReader<Source>>, Failure> {
    let source: Source = if is_stdin(file) {
        if io::stdin().is_terminal() {
            return Err(Failure::usage("standard input is a terminal, not a backup").hint("dvs dc restore FILE"));
        }
        Box::new(io::stdin())
    } else {
        Box::new(File::open(file).map_err(|cause| unusable(file, &FormError::Read(cause)))?)
    };
    Reader::begin(BufReader::with_capacity(BUFFER_BYTES, source)).map_err(|error| unusable(file, &error))
}

fn unusable(file: &Path, error: &FormError) -> Failure {
    let hint = match error {
        FormError::NoBackup => "a file that dvs dc backup made; a compressed one: zstd -dc FILE | dvs dc restore -",
        FormError::Later(_) => "the same with that release",
        FormError::Read(_) => "a file that may be read",
        _ => "another backup",
    };
    Failure::new(format!("{} is of no use", file.display())).because(error).hint(hint)
}

/// As it is described, for these nodes.
fn wanted(dc: &DcSpec, options: &Options) -> DcSpec {
    let mut spec = dc.clone();
    spec.name = options.name.clone().unwrap_or(spec.name);
    place_disk(&mut spec.disks, options.disk, None, None, None);
    if spec.nodes.len() > 1 {
        // What is usual now is not what it had.
        let of_the_tree = spec.disks.first().and_then(|disk| disk.replicas);
        place_disk(&mut spec.disks, None, None, None, of_the_tree.or(Some(1)));
        spec.disks.iter_mut().for_each(|disk| disk.replicas = disk.replicas.or(Some(1)));
    }
    if options.no_ports {
        spec.ports.clear();
        spec.nbd = None;
    }
    if !options.nodes.is_empty() {
        spec.nodes.clone_from(&options.nodes);
        let is_spanned = |node: &String| options.nodes.contains(node);
        spec.servers.iter_mut().for_each(|server| server.node = server.node.take().filter(is_spanned));
        spec.disks.iter_mut().for_each(|disk| disk.node = disk.node.take().filter(is_spanned));
        spec.nbd.iter_mut().for_each(|nbd| nbd.node = nbd.node.take().filter(is_spanned));
        // As many copies as there were, or as there are nodes for.
        let most = u8::try_from(spec.nodes.len()).unwrap_or(u8::MAX);
        spec.disks.iter_mut().for_each(|disk| disk.replicas = disk.replicas.map(|copies| copies.min(most)));
    }
    if options.replicas.is_some() {
        place_disk(&mut spec.disks, None, None, None, options.replicas);
        spec.disks.iter_mut().for_each(|disk| disk.replicas = options.replicas);
    }
    spec
}

type Part = (PathBuf, Reader<BufReader<Source>>);

async fn make(
    daemon: &Client,
    spec: &DcSpec,
    parts: Vec<Part>,
    is_made: &Cell<bool>,
) -> Result<(End, Vec<String>), Failure> {
    let dc = &spec.name;
    apply::demand_possible(daemon, spec).await?;
    // Nobody else writes to its disks until they are as they were.
    let bare = DcSpec { services: Vec::new(), nbd: None, ..spec.clone() };
    let made = daemon.create_dc(&bare, AfterCreate::Leave).await?;
    is_made.set(true);
    view::usual_copies(&bare.disks, &made).iter().for_each(|line| say(line));
    daemon.start_dc(dc).await?;
    let mut keys = Vec::new();
    let (mut all, mut blurred): (Option<End>, Vec<String>) = (None, Vec::new());
    let (disks, mut sums) = (wanted_disks(spec, &parts), AllSums::new());
    for (index, (file, mut reader)) in parts.into_iter().enumerate() {
        keys = std::mem::take(&mut reader.keys);
        let wanted = disks.iter().filter(|(_, (from, _))| *from <= index);
        let wanted =
            wanted.map(|(name, (from, bytes))| (name.clone(), DiskWanted { bytes: *bytes, is_empty: *from == index }));
        let end;
        (end, sums, blurred) = fill(daemon, dc, (reader, sums), &file, wanted.collect()).await?;
        let before = all.map_or((0, 0), |before| (before.entries, before.bytes));
        all = Some(End { entries: before.0 + end.entries, bytes: before.1 + end.bytes, ..end });
    }
    whole::write(daemon, dc, keys).await?;
    apply::bring_about(daemon, spec).await?;
    let end = all.ok_or_else(|| Failure::usage("no backup was named").hint("dvs dc restore FILE"))?;
    Ok((end, blurred))
}

fn demand_other(known: &[String], spec: &DcSpec) -> Result<(), Failure> {
    let dc = &spec.name;
    match known.contains(dc) {
        false => Ok(()),
        true => Err(Failure::new(format!("there is a container '{dc}'"))
            .hint(format!("another name: --name; or without it: dvs dc delete {dc}"))),
    }
}

/// Of each further disk: the first of the backups that counts for it, and how long it is. One that was made anew in
/// between has nothing of what was on the earlier one.
fn wanted_disks(spec: &DcSpec, parts: &[Part]) -> BTreeMap<String, (usize, u64)> {
    let has = |head: &Head, name: &String| head.disks.contains(name);
    let from =
        |name: &String| parts.iter().rposition(|(_, reader)| !has(&reader.head, name)).map_or(0, |last| last + 1);
    spec.disks.iter().skip(1).map(|disk| (disk.name.clone(), (from(&disk.name), disk.bytes))).collect()
}

/// What the reading side says of disks.
enum OfDisk {
    Begin(String),
    Bytes(Vec<u8>),
    End,
}

/// Disks and files, and whether they were all of them; the sums of the disks, and which are of no moment. `earlier`: of
/// the backup before.
async fn fill(
    daemon: &Client,
    dc: &str,
    (mut reader, earlier): (Reader<BufReader<Source>>, AllSums),
    file: &Path,
    wanted: BTreeMap<String, DiskWanted>,
) -> Result<(End, AllSums, Vec<String>), Failure> {
    let (progress, is_whole) = (Progress::default(), reader.head.since.is_none());
    let (queue, chunks) = mpsc::channel(PIECES_MAX);
    let (of_disks, mut disks) = mpsc::channel(PIECES_MAX);
    let reading = std::thread::spawn(move || {
        let mut filling = Filling { wanted, now: None };
        let sums = reader.disks(Some(&earlier), |part| {
            let gone = |_| io::Error::from(io::ErrorKind::BrokenPipe);
            filling.say(part).into_iter().try_for_each(|it| of_disks.blocking_send(it).map_err(gone))
        })?;
        drop(of_disks);
        let blurred = std::mem::take(&mut reader.blurred_disks);
        let end =
            reader.tree(|bytes| queue.blocking_send(bytes.to_vec()).map_err(|_| io::ErrorKind::BrokenPipe.into()))?;
        Ok((end, sums, blurred))
    });
    let done = async {
        while let Some(OfDisk::Begin(disk)) = disks.recv().await {
            fill_disk(daemon, (dc, &disk), &mut disks, &progress).await?;
        }
        drop(disks);
        let (ended, complaints) = match is_whole {
            true => transfer_whole(daemon, dc, chunks, &progress).await,
            false => transfer_changes(daemon, dc, chunks, &progress).await,
        }?;
        let failed = || Failure::new(format!("the files of '{dc}' were not all written"));
        judge(failed, dc, ended, &complaints)
    }
    .await;
    let read = reading.join().map_err(|_| Failure::new("the reading side failed").hint("again"))?;
    match read {
        // What is wrong with the file says more than that its end was missed.
        Err(error) if !matches!(error, FormError::Write(_)) => Err(unusable(file, &error)),
        read => {
            done?;
            let failed = Failure::new(format!("'{dc}' did not get all that is in the backup"));
            read.map_err(|cause| failed.because(&cause).hint("again"))
        }
    }
}

/// A disk that a backup counts for.
#[derive(Clone, Copy)]
struct DiskWanted {
    bytes: u64,
    /// Nothing was put on it before.
    is_empty: bool,
}

/// Disks as they are filled, one after the other.
struct Filling {
    wanted: BTreeMap<String, DiskWanted>,
    now: Option<DiskWanted>,
}

impl Filling {
    /// What is to be said of it.
    fn say(&mut self, part: DiskPart<'_>) -> Vec<OfDisk> {
        if let DiskPart::Begin { name, .. } = part {
            self.now = self.wanted.get(name).copied();
            let head = |disk: DiskWanted| OfDisk::Bytes(content::head(disk.bytes, false).to_vec());
            return self.now.map_or(Vec::new(), |disk| vec![OfDisk::Begin(name.to_owned()), head(disk)]);
        }
        let Some(DiskWanted { bytes: end, is_empty }) = self.now else { return Vec::new() };
        match part {
            // It was longer when it was another one.
            DiskPart::Extent { offset, .. } if offset >= end => Vec::new(),
            DiskPart::Extent { offset, bytes, runs } => {
                let zeros = content::zeros(offset, bytes.min(end - offset)).to_vec();
                let zeros = (!is_empty).then_some(OfDisk::Bytes(zeros));
                let pieces = runs.iter().filter_map(|(at, data)| {
                    let data = data.get(..data.len().min(end.saturating_sub(*at) as usize))?;
                    let piece = [&content::piece(*at, data.len())[..], data].concat();
                    (!data.is_empty()).then_some(OfDisk::Bytes(piece))
                });
                zeros.into_iter().chain(pieces).collect()
            }
            DiskPart::End => vec![OfDisk::Bytes(content::end().to_vec()), OfDisk::End],
            DiskPart::Begin { .. } => Vec::new(),
        }
    }
}

/// One disk, as it is told.
async fn fill_disk(
    daemon: &Client,
    (dc, disk): (&str, &str),
    parts: &mut mpsc::Receiver<OfDisk>,
    progress: &Progress,
) -> Result<(), Failure> {
    let (queue, chunks) = mpsc::channel(PIECES_MAX);
    let passing = async {
        while let Some(OfDisk::Bytes(bytes)) = parts.recv().await {
            progress.bytes.fetch_add(bytes.len() as u64, Ordering::Relaxed);
            // Whoever takes no more says why.
            if queue.send(bytes).await.is_err() {
                break;
            }
        }
        drop(queue);
    };
    let (filled, ()) = tokio::join!(transfer_disk(daemon, (dc, disk), chunks, progress), passing);
    let (ended, complaints) = filled?;
    let failed = || {
        let failed = Failure::new(format!("disk '{disk}' of '{dc}' was not filled"));
        failed.hint(format!("dvs disk inspect {dc} {disk}; again"))
    };
    judge(failed, dc, ended, &complaints)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pins_to_nodes_that_are_no_more_spanned_go() {
        let dc: DcSpec = serde_json::from_value(serde_json::json!({
            "name": "shop", "nodes": ["n1", "n2"], "servers": [{ "kind": "fs", "node": "n1" }],
            "disks": [{ "name": "root", "node": "n2", "bytes": 4096 }], "ports": [{ "published": 80, "port": 80 }],
        }))
        .unwrap();
        let options = |nodes: &[&str]| Options {
            files: vec!["-".into()],
            name: Some("other".to_owned()),
            nodes: nodes.iter().map(|node| (*node).to_owned()).collect(),
            disk: None,
            replicas: None,
            no_ports: true,
            check: false,
        };
        let same = wanted(&dc, &options(&[]));
        let copies = |dc: &DcSpec| dc.disks.iter().map(|disk| disk.replicas).collect::<Vec<_>>();
        assert_eq!((same.name.as_str(), &same.servers), ("other", &dc.servers));
        assert_eq!(copies(&same), [Some(1)], "as many as it had, whatever is usual now");
        assert_eq!(copies(&wanted(&dc, &Options { replicas: Some(2), ..options(&[]) })), [Some(2)]);
        let of_one = DcSpec { nodes: vec!["n1".to_owned()], ..dc.clone() };
        assert_eq!(copies(&wanted(&of_one, &options(&[]))), [None]);
        let undescribed = DcSpec { disks: Vec::new(), ..dc.clone() };
        assert_eq!(copies(&wanted(&undescribed, &options(&[]))), [Some(1)]);
        assert!(same.ports.is_empty());
        let larger = wanted(&dc, &Options { disk: Some(8192), ..options(&[]) });
        assert_eq!((larger.disks[0].bytes, larger.disks[0].node.as_deref()), (8192, Some("n2")));
        let mut copied = dc.clone();
        copied.disks[0].replicas = Some(2);
        assert_eq!(wanted(&copied, &options(&["n2", "m1", "m2"])).disks[0].replicas, Some(2));
        assert_eq!(wanted(&copied, &options(&["m1"])).disks[0].replicas, Some(1), "there is no place for more");
        let moved = wanted(&dc, &options(&["n2", "m1"]));
        assert_eq!((moved.servers[0].node.as_deref(), moved.disks[0].node.as_deref()), (None, Some("n2")));
    }
}
