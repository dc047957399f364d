//! What is kept of programs: a record beside each log, for this keeper, the next one, and the daemon while there is
//! none.
//!
//! A record is made when the program begins, written anew when it has ended, and says then how. A record of a program
//! that is said to run, although no keeper of it does, is of one that was lost with its keeper.
//!
//! Bounds: [`ENDED_MAX`] ended programs, [`LOGS_BYTES_MAX`] bytes of logs; the oldest go first.

use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use mgmt_api::{LogForm, Process, ProcessState};
use serde::{Deserialize, Serialize};

use crate::keeper::{ENDED_MAX, Keeper};
use crate::log::{self, LOGS_BYTES_MAX, Log};
use crate::program::{Life, Program};

/// Of a record; a command may be long.
const RECORD_BYTES_MAX: u64 = 8 << 20;
/// What is said of a program whose end nobody saw.
const LOST: &str = "lost with its keeper";

#[derive(Serialize, Deserialize)]
struct Record {
    process: Process,
    /// Bytes of its log.
    gone: u64,
}

impl Keeper {
    /// Writes what is known of a program. Without room for it nothing of it outlives this keeper.
    pub(crate) fn keep_record(&self, id: u32) {
        let Some(program) = self.programs.get(&id).filter(|program| program.pid != 0 && program.is_recorded()) else {
            return;
        };
        let record =
            Record { process: program.process(&self.options.node), gone: program.log.as_ref().map_or(0, Log::gone) };
        let path = path_of(&self.options.log_dir, program.pid);
        if let Err(cause) = write(&path, &record) {
            tracing::warn!(%cause, path = %path.display(), "a program will not be remembered");
            let _ = std::fs::remove_file(&path);
        }
    }

    /// Forgets a program with all that is kept of it.
    pub(crate) fn forget(&mut self, id: u32) {
        let Some(program) = self.programs.remove(&id) else { return };
        // One that was never executed has neither.
        if let Some(log) = program.log {
            let _ = std::fs::remove_file(path_of(&self.options.log_dir, program.pid));
            log.remove();
        }
    }

    /// Takes over what an earlier keeper left.
    pub(crate) fn remember_earlier(&mut self) {
        let mut records = read_all(&self.options.log_dir);
        records.sort_by_key(|record| record.process.start_ms);
        for Record { process, gone } in records {
            let (id, pid) = (self.next_id(), process.pid);
            let log = Log::left(&self.options.log_dir, pid, gone, &self.log_bytes);
            self.programs.insert(id, Program::earlier(id, process, log));
        }
        self.forget_oldest();
    }

    /// Keeps the logs within their budget: first those of ended programs go, the oldest first; then the longest are
    /// cut.
    pub(crate) fn keep_logs_short(&mut self) {
        while self.log_bytes.get() > LOGS_BYTES_MAX {
            let logs =
                || self.programs.values().filter(|program| program.log.as_ref().is_some_and(|log| log.bytes() > 0));
            let ended = logs().find(|program| program.settled).map(|program| program.id);
            let longest =
                || logs().max_by_key(|program| program.log.as_ref().map(Log::bytes)).map(|program| program.id);
            let Some(id) = ended.or_else(longest) else { return };
            if let Some(log) = self.programs.get_mut(&id).and_then(|program| program.log.as_mut()) {
                log.cut();
            }
        }
    }

    pub(crate) fn forget_oldest(&mut self) {
        let ended: Vec<u32> =
            self.programs.values().filter(|program| program.settled).map(|program| program.id).collect();
        let surplus = ended.len().saturating_sub(ENDED_MAX);
        ended.into_iter().take(surplus).for_each(|id| self.forget(id));
    }
}

impl Program {
    /// As it is listed when it has ended, and recorded.
    pub(crate) fn process(&self, node: &str) -> Process {
        Process {
            pid: self.pid,
            parent: 0,
            node: node.to_owned(),
            uid: self.uid,
            state: ProcessState::Exited,
            cpu_ms: 0,
            memory_bytes: 0,
            start_ms: self.start_ms,
            command: self.command.clone(),
            terminal: self.request.terminal.is_some(),
            waits_for_tree: false,
            exit: match self.life {
                Life::Ended(status) => Some(status),
                _ => None,
            },
            cause: self.cause.clone(),
        }
    }
}

/// Programs that a keeper left in a directory when it ended, or was ended.
pub fn processes(log_dir: &Path) -> Vec<Process> {
    read_all(log_dir).into_iter().map(|record| record.process).collect()
}

/// What is kept of the output of such a program; `None` when there is no such program.
pub fn log(log_dir: &Path, pid: u32, part: log::Part, form: LogForm) -> io::Result<Option<Vec<u8>>> {
    let Some(record) = read(&path_of(log_dir, pid)) else { return Ok(None) };
    log::read_of(log_dir, pid, record.gone, part).map(|pieces| Some(log::encode(pieces, form)))
}

fn read_all(log_dir: &Path) -> Vec<Record> {
    let entries = std::fs::read_dir(log_dir).into_iter().flatten().flatten();
    let records = entries.map(|entry| entry.path()).filter(|path| path.extension().is_some_and(|end| end == "json"));
    records.filter_map(|path| read(&path)).collect()
}

/// `None`: there is none, or it was cut when there was no room.
fn read(path: &Path) -> Option<Record> {
    let is_short = std::fs::metadata(path).ok()?.len() <= RECORD_BYTES_MAX;
    let mut record: Record = serde_json::from_slice(&is_short.then(|| std::fs::read(path).ok())??).ok()?;
    if record.process.exit.is_none() {
        record.process.cause.get_or_insert_with(|| LOST.to_owned());
    }
    Some(record)
}

fn write(path: &Path, record: &Record) -> io::Result<()> {
    use io::Write;
    let mut file = std::fs::OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(path)?;
    file.write_all(&serde_json::to_vec(record)?)
}

fn path_of(log_dir: &Path, pid: u32) -> PathBuf {
    log_dir.join(format!("{pid}.json"))
}
