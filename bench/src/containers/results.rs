//! What was measured, what is to be reached, and how it is shown.

use std::collections::BTreeMap;
use std::fmt::Write;

use serde::Serialize;

use crate::bars::{Goal, Reached};
use crate::figures::{Machine, Spread};

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Subject {
    Fork,
    Exec,
    Pipe,
    Open,
    Kill,
    /// With 500 processes of the own node.
    PsOwn,
    /// With 500 more on the two others.
    PsAll,
    /// From the call until it is heard.
    FarKill,
    FarSendrec,
    /// `true`.
    Job,
    /// 64 KiB after 64 KiB to another node, links not encrypted.
    BytesPlain,
    BytesTls,
    LostNode,
    Idle,
    /// 4 KiB and `fdatasync`, one after the other.
    DurableWrite,
    /// 4 KiB of a disk with FUA, over NBD, one after the other.
    FuaWrite,
    LongFile,
    SmallFiles,
    /// The longest write over the end of the server of a disk.
    LostDisk,
    /// The same over the loss of the node of disk and file server, by which etcd was not led.
    LostStorage,
    LostStorageAndLeader,
    /// What a copy is sent that missed writes to one extent in a hundred, in times of those extents.
    Resync,
    /// A disk over NBD: 4 KiB anywhere, one at a time and 32; 1 MiB after 1 MiB, four at a time.
    NbdRead,
    NbdWrite,
    NbdReadDeep,
    NbdWriteDeep,
    NbdReadLong,
    NbdWriteLong,
    /// Requests of 12 bytes over 32 connections, or one, to a published port: at the server's node, at another one.
    Requests,
    RequestsElsewhere,
    OneByOne,
    /// A long file through a published port, and through the way out.
    BulkIn,
    BulkOut,
    /// `dvs run DC -- true` on the own node and on another one; so many at once; `dvs ps` of 1,000 processes.
    RunHere,
    RunThere,
    RunsAtOnce,
    Listing,
    /// Small files that another node wrote: opened, read, closed; for the first time, and again.
    FirstRead,
    HeldRead,
    /// Of an open file.
    Stat,
    /// What the kernel has.
    WarmRead,
    /// `ls -lR`, `grep -r`, `git status`, again.
    List,
    Grep,
    Status,
    /// A file made, written, closed, removed.
    Churn,
    /// `tar x`, `cp -r`, `rm -rf` of small files.
    Untar,
    /// `git add` of many small files.
    AddTree,
    CopyTree,
    RemoveTree,
    Flock,
    RecordLock,
    /// 4 KiB after 4 KiB into a new file.
    Blocks,
    /// Files that three nodes make in one directory.
    Crowd,
    /// A long file that another node wrote, for the first time; links not encrypted, and encrypted.
    ColdReadPlain,
    ColdReadTls,
    /// One that is written until it is durable.
    FarWritePlain,
    FarWriteTls,
    /// A site of many files, into the tree, and fetched from a web server of another node.
    Import,
    Fetch,
    /// Of pgbench, one client.
    Transactions,
    /// Operations of stress-ng.
    StressFcntl,
    StressFlock,
    StressUtime,
    StressChmod,
    StressDentry,
    StressLease,
    StressSeek,
    /// Very many files: made, listed on another node, again, the memory of its gate; the file server killed.
    MakeMany,
    ListMany,
    Memory,
    ListManyAgain,
    MemoryAgain,
    OpenMany,
}

/// What is measured together.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Part {
    Processes,
    Disks,
    Trees,
    Reach,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Manner {
    Container,
    /// The same without a container; for `ps`, in one with `proc = "node"`.
    Native,
    NativeUnderAFilter,
    /// On the own node.
    Here,
    Ssh,
    Tcp,
    Rustls,
    /// What the bar allows, made of something else that was measured.
    Allowed,
    /// All daemons and their servers, before there was a container.
    ClusterAlone,
    /// In a container whose disk has one copy, where `Container` is one whose disk has two.
    OneCopy,
    /// The server of an image by itself, where `Container` is a gate to a disk of a container.
    Alone,
    Nbdkit,
    QemuNbd,
    /// libfuse's example, on the machine's own file system.
    PassThrough,
    /// The kernel routes and translates addresses.
    Forwarded,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Unit {
    PerSecond,
    MbPerSecond,
    Ms,
    Us,
    Percent,
    Mib,
    Times,
}

impl Subject {
    fn unit(self) -> Unit {
        match self {
            Subject::Fork | Subject::Exec | Subject::Pipe | Subject::Open | Subject::Kill => Unit::PerSecond,
            Subject::SmallFiles | Subject::Requests | Subject::RequestsElsewhere => Unit::PerSecond,
            Subject::OneByOne => Unit::PerSecond,
            Subject::BulkIn | Subject::BulkOut => Unit::MbPerSecond,
            Subject::RunHere | Subject::RunThere | Subject::RunsAtOnce | Subject::Listing => Unit::Ms,
            Subject::NbdRead | Subject::NbdWrite | Subject::NbdReadDeep | Subject::NbdWriteDeep => Unit::PerSecond,
            Subject::NbdReadLong | Subject::NbdWriteLong => Unit::MbPerSecond,
            Subject::FirstRead | Subject::HeldRead | Subject::Stat | Subject::Churn => Unit::PerSecond,
            Subject::Flock | Subject::RecordLock => Unit::PerSecond,
            Subject::WarmRead | Subject::Blocks => Unit::MbPerSecond,
            Subject::List | Subject::Grep | Subject::Status | Subject::Crowd => Unit::Ms,
            Subject::Untar | Subject::CopyTree | Subject::AddTree | Subject::RemoveTree => Unit::Ms,
            Subject::BytesPlain | Subject::BytesTls | Subject::LongFile => Unit::MbPerSecond,
            Subject::PsOwn | Subject::PsAll | Subject::Job | Subject::LostNode => Unit::Ms,
            Subject::LostDisk | Subject::LostStorage | Subject::LostStorageAndLeader => Unit::Ms,
            Subject::FarKill | Subject::FarSendrec | Subject::DurableWrite | Subject::FuaWrite => Unit::Us,
            Subject::ColdReadPlain | Subject::ColdReadTls => Unit::MbPerSecond,
            Subject::FarWritePlain | Subject::FarWriteTls => Unit::MbPerSecond,
            Subject::Import | Subject::Fetch => Unit::Ms,
            Subject::Transactions | Subject::StressFcntl | Subject::StressFlock | Subject::StressUtime => {
                Unit::PerSecond
            }
            Subject::StressChmod | Subject::StressDentry => Unit::PerSecond,
            Subject::StressLease | Subject::StressSeek => Unit::PerSecond,
            Subject::MakeMany => Unit::PerSecond,
            Subject::ListMany | Subject::ListManyAgain | Subject::OpenMany => Unit::Ms,
            Subject::Memory | Subject::MemoryAgain => Unit::Mib,
            Subject::Resync => Unit::Times,
            Subject::Idle => Unit::Percent,
        }
    }

    fn part(self) -> Part {
        match self {
            Subject::DurableWrite | Subject::FuaWrite | Subject::LongFile | Subject::SmallFiles => Part::Disks,
            Subject::LostDisk | Subject::LostStorage | Subject::LostStorageAndLeader => Part::Disks,
            Subject::Resync => Part::Disks,
            _ if self >= Subject::FirstRead => Part::Trees,
            _ if self >= Subject::Requests => Part::Reach,
            _ if NBD.iter().any(|bars| bars.subject == self) => Part::Disks,
            _ => Part::Processes,
        }
    }

    fn title(self) -> &'static str {
        match self {
            Subject::Fork => "fork, exit, wait",
            Subject::Exec => "fork, exec, wait",
            Subject::Pipe => "a byte there and back",
            Subject::Open => "open and close outside the tree",
            Subject::Kill => "kill, own node",
            Subject::PsOwn => "ps -ef, 500 of the own node",
            Subject::PsAll => "ps -ef, 500 and 500 on two other nodes",
            Subject::FarKill => "kill to another node, until it is heard",
            Subject::FarSendrec => "sendrec with another node",
            Subject::Job => "true",
            Subject::BytesPlain => "bytes to another node, TLS off",
            Subject::BytesTls => "bytes to another node, TLS on",
            Subject::LostNode => "service's node lost, until it is healthy",
            Subject::Idle => "idle, of a CPU, three nodes",
            Subject::DurableWrite => "4 KiB and fdatasync, p50",
            Subject::FuaWrite => "4 KiB of a disk with FUA, p50",
            Subject::LongFile => "a file of 128 MiB, until it is durable",
            Subject::SmallFiles => "files of 4 KiB",
            Subject::LostDisk => "disk server killed, longest write",
            Subject::LostStorage => "node of disk and file server lost, longest write",
            Subject::LostStorageAndLeader => "the same, and it led etcd",
            Subject::Resync => "sent to a copy that missed writes to 1 % of the extents, of those",
            Subject::NbdRead => "NBD, read of 4 KiB anywhere, one at a time",
            Subject::NbdWrite => "NBD, write of 4 KiB anywhere, one at a time",
            Subject::NbdReadDeep => "NBD, read of 4 KiB anywhere, 32 at a time",
            Subject::NbdWriteDeep => "NBD, write of 4 KiB anywhere, 32 at a time",
            Subject::NbdReadLong => "NBD, read, 1 MiB after 1 MiB, four at a time",
            Subject::NbdWriteLong => "NBD, write, 1 MiB after 1 MiB, four at a time",
            Subject::Requests => "requests to a published port, 32 connections",
            Subject::RequestsElsewhere => "the same, published at another node",
            Subject::OneByOne => "the same, one connection",
            Subject::BulkIn => "256 MiB through a published port",
            Subject::BulkOut => "256 MiB through the way out",
            Subject::RunHere => "dvs run -- true, own node, p50",
            Subject::RunThere => "dvs run -- true, another node, p50",
            Subject::RunsAtOnce => "150 dvs run -- true at once",
            Subject::Listing => "dvs ps, 1,000 processes on three nodes",
            Subject::FirstRead => "files of 4 KiB of another node: open, read, close, for the first time",
            Subject::HeldRead => "the same again",
            Subject::Stat => "stat",
            Subject::WarmRead => "read of 64 MiB that the kernel has",
            Subject::List => "ls -lR, again",
            Subject::Grep => "grep -r, again",
            Subject::Status => "git status, again",
            Subject::Churn => "files of 4 KiB: create, write, close, unlink",
            Subject::Untar => "tar x",
            Subject::AddTree => "git add",
            Subject::CopyTree => "cp -r",
            Subject::RemoveTree => "rm -rf",
            Subject::Flock => "flock and unlock",
            Subject::RecordLock => "fcntl lock and unlock",
            Subject::Blocks => "writes of 4 KiB",
            Subject::Crowd => "60 files in one directory by three nodes",
            Subject::ColdReadPlain => "256 MiB of another node, read for the first time, TLS off",
            Subject::ColdReadTls => "256 MiB of another node, read for the first time, TLS on",
            Subject::FarWritePlain => "256 MiB until they are durable, TLS off",
            Subject::FarWriteTls => "256 MiB until they are durable, TLS on",
            Subject::Import => "import of 19,600 files, 400 MB",
            Subject::Fetch => "19,600 files fetched from a web server of another node",
            Subject::Transactions => "pgbench, one client",
            Subject::StressFcntl => "stress-ng fcntl",
            Subject::StressFlock => "stress-ng flock",
            Subject::StressUtime => "stress-ng utime",
            Subject::StressChmod => "stress-ng chmod",
            Subject::StressDentry => "stress-ng dentry",
            Subject::StressLease => "stress-ng lease",
            Subject::StressSeek => "stress-ng seek",
            Subject::MakeMany => "a million files, made",
            Subject::ListMany => "ls -lR of a million files on another node",
            Subject::ListManyAgain => "the same again",
            Subject::Memory => "its gate's memory afterwards",
            Subject::MemoryAgain => "its gate's memory after the second time",
            Subject::OpenMany => "file server of a million files killed, until it answers",
        }
    }
}

impl Manner {
    fn name(self) -> &'static str {
        match self {
            Manner::Container => "container",
            Manner::Native => "native",
            Manner::NativeUnderAFilter => "native, filter",
            Manner::Here => "here",
            Manner::Ssh => "ssh, kept",
            Manner::Tcp => "tcp-bulk",
            Manner::Rustls => "rustls-bulk",
            Manner::Allowed => "what is allowed",
            Manner::ClusterAlone => "cluster alone",
            Manner::OneCopy => "one copy",
            Manner::Alone => "dvs alone disk",
            Manner::Nbdkit => "nbdkit file",
            Manner::QemuNbd => "qemu-nbd",
            Manner::PassThrough => "pass-through",
            Manner::Forwarded => "kernel forwards",
        }
    }
}

impl Unit {
    fn name(self) -> &'static str {
        match self {
            Unit::PerSecond => "/s",
            Unit::MbPerSecond => "MB/s",
            Unit::Ms => "ms",
            Unit::Us => "us",
            Unit::Percent => "%",
            Unit::Mib => "MiB",
            Unit::Times => "x",
        }
    }

    fn is_a_rate(self) -> bool {
        matches!(self, Unit::PerSecond | Unit::MbPerSecond)
    }
}

type Key = (Subject, Manner);

#[derive(Clone, Copy, Debug, Serialize)]
struct Sample {
    subject: Subject,
    manner: Manner,
    round: u32,
    /// In the subject's unit.
    value: f64,
    unit: &'static str,
}

/// Bumped when a field changes its meaning or goes.
const SCHEMA: u32 = 1;

#[derive(Debug, Serialize)]
pub struct Results {
    schema: u32,
    #[serde(flatten)]
    machine: Machine,
    samples: Vec<Sample>,
}

/// A ratio of speeds.
const RATIOS: [(&str, Subject, Manner, f64); 13] = [
    ("fork + exit", Subject::Fork, Manner::Native, 0.95),
    ("fork + exec + wait", Subject::Exec, Manner::Native, 0.95),
    ("pipe", Subject::Pipe, Manner::Native, 0.95),
    ("open + close outside the tree", Subject::Open, Manner::Native, 0.95),
    ("kill, own node", Subject::Kill, Manner::Native, 0.8),
    ("kill, own node", Subject::Kill, Manner::NativeUnderAFilter, 0.95),
    ("ps -ef, 500 processes", Subject::PsOwn, Manner::Native, 0.2),
    ("kill to another node, p50", Subject::FarKill, Manner::Allowed, 1.0),
    ("on n2 -- true, p50", Subject::Job, Manner::Ssh, 3.0),
    ("64 KiB writes through on, TLS off", Subject::BytesPlain, Manner::Tcp, 0.35),
    ("64 KiB writes through on, TLS on", Subject::BytesTls, Manner::Rustls, 0.5),
    ("two copies: 4 KiB with FUA, against 2 x (sendrec + native)", Subject::FuaWrite, Manner::Allowed, 1.0),
    ("two copies: a long file, against one copy", Subject::LongFile, Manner::OneCopy, 0.5),
];

/// The same of ways in and out.
const OF_REACH: [(&str, Subject, Manner, f64); 4] = [
    ("requests, published at the server's node", Subject::Requests, Manner::Native, 0.8),
    ("requests, published at another node", Subject::RequestsElsewhere, Manner::Native, 0.5),
    ("a long file through a published port", Subject::BulkIn, Manner::Forwarded, 0.7),
    ("a long file through the way out", Subject::BulkOut, Manner::Forwarded, 0.7),
];

/// The same of files whose servers are on another node.
const OF_TREES: [(&str, Subject, Manner, f64); 27] = [
    ("warm read", Subject::WarmRead, Manner::Native, 0.65),
    ("cached stat", Subject::Stat, Manner::Native, 0.75),
    ("open + read + close, held", Subject::HeldRead, Manner::PassThrough, 0.5),
    ("open + read + close, first, against 1.5 trips", Subject::FirstRead, Manner::Allowed, 1.0),
    ("create + write + close + unlink", Subject::Churn, Manner::PassThrough, 0.3),
    ("tar x", Subject::Untar, Manner::PassThrough, 0.4),
    ("git add", Subject::AddTree, Manner::PassThrough, 0.3),
    ("cp -r", Subject::CopyTree, Manner::PassThrough, 0.4),
    ("rm -rf", Subject::RemoveTree, Manner::PassThrough, 0.4),
    ("ls -lR, again", Subject::List, Manner::PassThrough, 0.6),
    ("grep -r, again", Subject::Grep, Manner::PassThrough, 0.6),
    ("git status, again", Subject::Status, Manner::PassThrough, 0.6),
    ("flock + unlock", Subject::Flock, Manner::PassThrough, 0.5),
    ("fcntl lock + unlock", Subject::RecordLock, Manner::PassThrough, 0.5),
    ("writes of 4 KiB", Subject::Blocks, Manner::PassThrough, 0.5),
    ("a long file for the first time, TLS off", Subject::ColdReadPlain, Manner::Tcp, 0.35),
    ("a long file for the first time, TLS on", Subject::ColdReadTls, Manner::Rustls, 0.6),
    ("a long file until durable, TLS off, against 0.4 x disk or TCP", Subject::FarWritePlain, Manner::Allowed, 1.0),
    ("a long file until durable, TLS on, against 0.4 x disk or rustls", Subject::FarWriteTls, Manner::Allowed, 1.0),
    ("pgbench, one client", Subject::Transactions, Manner::PassThrough, 0.3),
    ("stress-ng fcntl", Subject::StressFcntl, Manner::PassThrough, 0.1),
    ("stress-ng flock", Subject::StressFlock, Manner::PassThrough, 0.1),
    ("stress-ng utime", Subject::StressUtime, Manner::PassThrough, 0.1),
    ("stress-ng chmod", Subject::StressChmod, Manner::PassThrough, 0.1),
    ("stress-ng dentry", Subject::StressDentry, Manner::PassThrough, 0.1),
    ("stress-ng lease", Subject::StressLease, Manner::PassThrough, 0.1),
    ("stress-ng seek", Subject::StressSeek, Manner::PassThrough, 0.1),
];

/// A disk over NBD, beside each of its peers: of an image by itself, and of a container.
struct NbdBars {
    subject: Subject,
    alone: &'static str,
    exported: &'static str,
}

const fn nbd(subject: Subject, alone: &'static str, exported: &'static str) -> NbdBars {
    NbdBars { subject, alone, exported }
}

const NBD: [NbdBars; 6] = [
    nbd(Subject::NbdRead, "alone: read, 4 KiB, one", "export: read, 4 KiB, one"),
    nbd(Subject::NbdWrite, "alone: write, 4 KiB, one", "export: write, 4 KiB, one"),
    nbd(Subject::NbdReadDeep, "alone: read, 4 KiB, 32", "export: read, 4 KiB, 32"),
    nbd(Subject::NbdWriteDeep, "alone: write, 4 KiB, 32", "export: write, 4 KiB, 32"),
    nbd(Subject::NbdReadLong, "alone: read, 1 MiB", "export: read, 1 MiB"),
    nbd(Subject::NbdWriteLong, "alone: write, 1 MiB", "export: write, 1 MiB"),
];
const NBD_TIMES: f64 = 0.8;

/// Which of the values counts.
#[derive(Clone, Copy)]
enum Of {
    Median,
    Most,
}

const LIMITS: [(&str, Subject, Of, f64); 17] = [
    ("ps -ef, 500 here, 500 on two other nodes", Subject::PsAll, Of::Median, 300.0),
    ("on n2 -- true, p50", Subject::Job, Of::Median, 8.0),
    ("service's node lost, most", Subject::LostNode, Of::Most, 3000.0),
    ("idle container, three nodes", Subject::Idle, Of::Median, 0.2),
    ("disk server killed, longest write, most", Subject::LostDisk, Of::Most, 1000.0),
    ("node of disk and fs lost, longest write, most", Subject::LostStorage, Of::Most, 3000.0),
    ("dvs run -- true, own node", Subject::RunHere, Of::Median, 12.0),
    ("dvs run -- true, another node", Subject::RunThere, Of::Median, 18.0),
    ("150 dvs run -- true at once", Subject::RunsAtOnce, Of::Median, 3000.0),
    ("dvs ps, 1,000 processes on three nodes", Subject::Listing, Of::Median, 150.0),
    ("60 files in one directory by three nodes", Subject::Crowd, Of::Median, 1000.0),
    // 80 MB/s.
    ("import of 19,600 files, 400 MB", Subject::Import, Of::Median, 5000.0),
    ("19,600 files fetched from another node", Subject::Fetch, Of::Median, 15_000.0),
    ("node of disk and fs and etcd's leader lost, most", Subject::LostStorageAndLeader, Of::Most, 5000.0),
    ("copy that missed writes to 1 % of the extents", Subject::Resync, Of::Most, 2.0),
    ("file server of a million files killed", Subject::OpenMany, Of::Most, 2000.0),
    // It keeps so much, however many files there are.
    ("a million files listed twice: the gate's memory", Subject::MemoryAgain, Of::Most, 512.0),
];

impl Results {
    pub fn new() -> Results {
        Results { schema: SCHEMA, machine: Machine::this(), samples: Vec::new() }
    }

    pub fn add(&mut self, subject: Subject, manner: Manner, round: u32, value: f64) {
        self.samples.push(Sample { subject, manner, round, value, unit: subject.unit().name() });
    }

    /// Of the first round; 0 when it was not measured.
    pub fn value(&self, subject: Subject, manner: Manner) -> f64 {
        self.of((subject, manner)).into_values().next().unwrap_or(0.0)
    }

    fn of(&self, (subject, manner): Key) -> BTreeMap<u32, f64> {
        let samples = self.samples.iter().filter(|sample| (sample.subject, sample.manner) == (subject, manner));
        samples.map(|sample| (sample.round, sample.value)).collect()
    }

    /// How many times as fast, each within its round.
    fn ratio(&self, subject: Subject, ours: Manner, theirs: Manner) -> Option<Spread> {
        let theirs = self.of((subject, theirs));
        let ratio = |(round, ours): (u32, f64)| {
            let theirs = *theirs.get(&round)?;
            Some(if subject.unit().is_a_rate() { ours / theirs } else { theirs / ours })
        };
        Spread::of(self.of((subject, ours)).into_iter().filter_map(ratio).collect())
    }

    pub fn bars(&self, part: Part) -> Vec<Reached> {
        let ratios = RATIOS.iter().chain(&OF_TREES).chain(&OF_REACH).filter(|bar| bar.1.part() == part).map(
            |(what, subject, theirs, times)| Reached {
                what,
                goal: Goal::AtLeast { times: *times, theirs: theirs.name().to_owned() },
                measured: self.ratio(*subject, Manner::Container, *theirs),
            },
        );
        let limits = LIMITS.iter().filter(|bar| bar.1.part() == part).map(|(what, subject, of, limit)| {
            let measured = Spread::of(self.of((*subject, Manner::Container)).into_values().collect());
            let counts = |spread: Spread| match of {
                Of::Median => spread,
                Of::Most => Spread { median: spread.most, ..spread },
            };
            let goal = Goal::Below { limit: *limit, unit: subject.unit().name() };
            Reached { what, goal, measured: measured.map(counts) }
        });
        let nbd = NBD.iter().filter(|bars| bars.subject.part() == part).flat_map(|bars| {
            let ours = [(bars.alone, Manner::Alone), (bars.exported, Manner::Container)];
            let each = ours.map(|(what, ours)| [Manner::Nbdkit, Manner::QemuNbd].map(|theirs| (what, ours, theirs)));
            each.into_iter().flatten().map(|(what, ours, theirs)| Reached {
                what,
                goal: Goal::AtLeast { times: NBD_TIMES, theirs: theirs.name().to_owned() },
                measured: self.ratio(bars.subject, ours, theirs),
            })
        });
        ratios.chain(limits).chain(nbd).collect()
    }

    pub fn table(&self) -> String {
        let mut out = format!("{} Medians over rounds (least to most).\n", self.machine);
        let mut keys: Vec<Key> = self.samples.iter().map(|sample| (sample.subject, sample.manner)).collect();
        keys.sort_unstable();
        keys.dedup();
        let mut last = None;
        for (subject, manner) in keys {
            if last.replace(subject) != Some(subject) {
                let _ = writeln!(out, "\n{}, {}", subject.title(), subject.unit().name());
            }
            let Some(Spread { median, least, most }) = Spread::of(self.of((subject, manner)).into_values().collect())
            else {
                continue;
            };
            let ratio = self.ratio(subject, Manner::Container, manner).filter(|_| manner != Manner::Container);
            let ratio = ratio.map_or_else(String::new, |ratio| {
                format!("container {:.2} x ({:.2} to {:.2})", ratio.median, ratio.least, ratio.most)
            });
            let spread = format!("({least:.2} to {most:.2})");
            let _ = writeln!(out, "  {:<20}{median:>12.2} {spread:>26}  {ratio}", manner.name());
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_compared_as_speeds() {
        let mut results = Results::new();
        results.add(Subject::Job, Manner::Container, 0, 10.0);
        results.add(Subject::Job, Manner::Ssh, 0, 40.0);
        results.add(Subject::Fork, Manner::Container, 0, 90.0);
        results.add(Subject::Fork, Manner::Native, 0, 100.0);
        let median = |subject, theirs| results.ratio(subject, Manner::Container, theirs).unwrap().median;
        assert_eq!((median(Subject::Job, Manner::Ssh), median(Subject::Fork, Manner::Native)), (4.0, 0.9));
        let reached: Vec<&str> =
            results.bars(Part::Processes).into_iter().filter(Reached::is_reached).map(|bar| bar.what).collect();
        assert_eq!(reached, ["on n2 -- true, p50"]);
    }

    #[test]
    fn what_takes_longest_counts_where_nothing_may_be_late() {
        let mut results = Results::new();
        for (round, value) in [(0, 900.0), (1, 1000.0), (2, 3100.0)] {
            results.add(Subject::LostNode, Manner::Container, round, value);
        }
        let bars = results.bars(Part::Processes);
        let lost = bars.iter().find(|bar| bar.what.starts_with("service")).unwrap();
        assert!(!lost.is_reached());
    }
}
