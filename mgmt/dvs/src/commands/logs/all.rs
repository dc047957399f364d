//! What all programs of a container wrote, on all its nodes.
//!
//! Each line is told with its program. Without `--follow` they come in the order of time, by the clocks of their nodes;
//! with it, as they are heard, also of programs that begin meanwhile.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use client::{Client, LogQuery};
use mgmt_api::{DcPhase, ErrorKind, LogPiece, LogStream, ProcessState};
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use super::super::follow::Entries;
use super::super::{Outcome, block_on, daemon, say};
use super::{Begun, Line, Lines, Look, Streams, text_of, write};
use crate::cli::Global;
use crate::errors::Failure;
use crate::output::{Format, printable};

/// What is in memory before it is in order.
const BYTES_MAX: usize = 64 << 20;
/// Streams of programs that run, at a time.
const FOLLOWED_MAX: usize = 256;
/// Between looks for programs that began.
const LOOK_AGAIN: Duration = Duration::from_secs(1);
/// Lines that wait for whoever reads.
const QUEUE: usize = 256;

/// Whose line it is.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Program {
    pid: u32,
    /// `web/0`, when it is of a service.
    service: Option<String>,
}

impl Program {
    fn label(&self) -> String {
        self.service.clone().unwrap_or_else(|| self.pid.to_string())
    }
}

struct Told {
    program: Program,
    stream: LogStream,
    line: Begun,
}

pub fn show(global: &Global, dc: &str, look: &Look) -> Outcome {
    let daemon = daemon(global)?;
    let manner = Manner { is_json: global.output == Format::Json, timestamps: look.timestamps };
    block_on(async {
        match look.follow {
            true => follow(&daemon, dc, look, manner).await,
            false => gather(&daemon, dc, look, manner).await,
        }
        .map(|()| 0.into())
    })?
}

/// Programs whose log there may be: what `run` and services started, not what these have started.
async fn programs(
    daemon: &Client,
    dc: &str,
    told: &mut BTreeSet<String>,
) -> Result<Vec<(Program, ProcessState)>, Failure> {
    let (listed, services) = (daemon.processes(dc).await?, daemon.services(dc).await?);
    for reason in listed.missing.into_iter().filter(|reason| told.insert(reason.clone())) {
        say(&format!("dvs: what programs wrote is missing from node {}", printable(&reason)));
    }
    let instances = services.into_iter().flat_map(|service| service.instances);
    let named: BTreeMap<u32, String> = instances.filter_map(|one| Some((one.pid?, one.name))).collect();
    let found = listed.processes.into_iter().map(|process| {
        let program = Program { pid: process.pid, service: named.get(&process.pid).cloned() };
        (program, process.state)
    });
    Ok(found.collect())
}

async fn gather(daemon: &Client, dc: &str, look: &Look, manner: Manner) -> Result<(), Failure> {
    let (mut all, mut bytes) = (Vec::new(), 0);
    for (program, _) in programs(daemon, dc, &mut BTreeSet::new()).await? {
        let query = LogQuery { follow: false, tail: look.tail_there() };
        let Some(mut log) = Log::open(daemon, dc, program, query, look).await? else { continue };
        while let Some(lines) = log.next().await? {
            bytes += lines.iter().map(|one| one.line.bytes.len() + size_of::<Told>()).sum::<usize>();
            all.extend(lines);
            if bytes > BYTES_MAX {
                let what = format!("the programs of container '{dc}' wrote more than is put in order");
                return Err(Failure::new(what).hint("fewer: --tail or --since; or of one program: dvs logs DC PID"));
            }
        }
    }
    all.sort_by_key(|one: &Told| one.line.time_ms);
    let skipped = look.tail.map_or(0, |tail| all.len().saturating_sub(tail as usize));
    all.into_iter().skip(skipped).try_for_each(|one| manner.tell(one))
}

/// Until the container stands, or somebody ends it.
async fn follow(daemon: &Client, dc: &str, look: &Look, manner: Manner) -> Result<(), Failure> {
    let (queue, mut lines) = mpsc::channel::<Told>(QUEUE);
    let (mut known, mut missing) = (BTreeSet::new(), BTreeSet::new());
    let mut following: JoinSet<Result<(), Failure>> = JoinSet::new();
    // What was there when somebody began to look: of it the last lines are enough.
    let mut early: Option<BTreeSet<u32>> = None;
    let mut are_too_many = false;
    let mut looks = tokio::time::interval(LOOK_AGAIN);
    loop {
        tokio::select! {
            Some(told) = lines.recv() => manner.tell(told)?,
            _ = looks.tick() => {
                let is_over = daemon.dc(dc).await?.phase == DcPhase::Stopped;
                let there = programs(daemon, dc, &mut missing).await?;
                let early = early.get_or_insert_with(|| there.iter().map(|(program, _)| program.pid).collect());
                for (program, state) in there {
                    let pid = program.pid;
                    if known.contains(&pid) {
                        continue;
                    }
                    if following.len() >= FOLLOWED_MAX {
                        if !std::mem::replace(&mut are_too_many, true) {
                            say(&format!("dvs: {FOLLOWED_MAX} programs are followed at a time; others come when some have ended"));
                        }
                        break;
                    }
                    let tail = look.tail_there().filter(|_| early.contains(&pid));
                    let query = LogQuery { follow: state != ProcessState::Exited, tail };
                    let mut log = match Log::open(daemon, dc, program, query, look).await {
                        Ok(log) => {
                            known.insert(pid);
                            let Some(log) = log else { continue };
                            log
                        }
                        // Perhaps the next time.
                        Err(failure) => {
                            if missing.insert(pid.to_string()) {
                                say(&format!("dvs: what {pid} wrote is missing: {}", printable(&failure.what)));
                            }
                            continue;
                        }
                    };
                    let queue = queue.clone();
                    following.spawn(async move {
                        while let Some(lines) = log.next().await? {
                            for told in lines {
                                if queue.send(told).await.is_err() {
                                    return Ok(());
                                }
                            }
                        }
                        Ok(())
                    });
                }
                while let Some(ended) = following.try_join_next() {
                    // A node that is lost takes the streams of its programs along; the others go on.
                    if let Ok(Err(failure)) = ended {
                        say(&format!("dvs: {}", printable(&failure.what)));
                    }
                }
                if is_over && following.is_empty() && lines.is_empty() {
                    return Ok(());
                }
            }
        }
    }
}

/// The log of one of them.
struct Log {
    program: Program,
    pieces: Entries<LogPiece>,
    begun: Streams<Lines>,
    until_ms: u64,
    is_over: bool,
}

impl Log {
    /// Nothing, where there is no log: a process that a program has started, or one whose log is gone.
    async fn open(
        daemon: &Client,
        dc: &str,
        program: Program,
        query: LogQuery,
        look: &Look,
    ) -> Result<Option<Log>, Failure> {
        match daemon.logs(dc, program.pid, query, look.since).await {
            Ok(log) if log.media() == client::Media::Text => Ok(None),
            Ok(log) => {
                let (begun, until_ms) = (Streams::default(), look.until_ms());
                Ok(Some(Log { program, pieces: Entries::of(log), begun, until_ms, is_over: false }))
            }
            Err(client::Error::Refused(body)) if body.kind == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// The next lines that are whole; at the end those that are not.
    async fn next(&mut self) -> Result<Option<Vec<Told>>, Failure> {
        let mut told = Vec::new();
        while !self.is_over {
            let piece = self.pieces.next().await?.filter(|piece| piece.time_ms.unwrap_or(0) <= self.until_ms);
            match piece {
                Some(piece) => {
                    let lines = self.begun.of(piece.stream).push(&text_of(&piece)?, piece.time_ms);
                    told.extend(lines.into_iter().map(|line| self.told(piece.stream, line)));
                }
                None => {
                    self.is_over = true;
                    for stream in [LogStream::Stdout, LogStream::Stderr] {
                        let rest = std::mem::take(self.begun.of(stream)).rest();
                        told.extend(rest.map(|line| self.told(stream, line)));
                    }
                }
            }
            if !told.is_empty() {
                return Ok(Some(told));
            }
        }
        Ok(None)
    }

    fn told(&self, stream: LogStream, line: Begun) -> Told {
        Told { program: self.program.clone(), stream, line }
    }
}

#[derive(Clone, Copy)]
struct Manner {
    is_json: bool,
    timestamps: bool,
}

impl Manner {
    fn tell(self, Told { program, stream, line: Begun { time_ms, bytes } }: Told) -> Result<(), Failure> {
        if self.is_json {
            let line = Line { time_ms, pid: Some(program.pid), service: program.service, stream, line: bytes.into() };
            let mut text = serde_json::to_vec(&line).map_err(std::io::Error::from)?;
            text.push(b'\n');
            return Ok(write(LogStream::Stdout, &text)?);
        }
        let mut said = format!("{} | ", program.label()).into_bytes();
        if self.timestamps {
            said.extend(time_ms.map_or_else(|| "-".to_owned(), mgmt_api::utc_ms).into_bytes());
            said.push(b' ');
        }
        said.extend(bytes);
        said.push(b'\n');
        Ok(write(stream, &said)?)
    }
}
