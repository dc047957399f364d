//! The process table of a container on one node, read from the container's own `/proc`: so the numbers are those
//! inside.
//!
//! Reading a command line can wait for a page that the file gate has to bring, so [`read`] runs in a child process that
//! answers by itself; the keeper never waits for it.

use std::collections::BTreeMap;
use std::fs;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::path::{Path, PathBuf};

use mgmt_api::{Process, ProcessState};

/// Bytes shown of one command line.
const COMMAND_BYTES_MAX: usize = 4096;
/// PID 1 is the virtual init, which belongs to no node.
const INIT: u32 = 1;

/// What the keeper knows of a program beside `/proc`.
#[derive(Clone, Debug)]
pub struct Known {
    pub start_ms: u64,
    pub terminal: bool,
}

/// Numbers of all processes but init.
pub fn pids(proc_dir: BorrowedFd<'_>) -> Vec<u32> {
    let mut pids = numbers(proc_dir);
    pids.retain(|pid| *pid != INIT);
    pids.sort_unstable();
    pids
}

/// Entries that are numbers. Not by a path: init, too, asks, in whose tree the container may have mounted something
/// over it.
pub fn numbers(directory: BorrowedFd<'_>) -> Vec<u32> {
    let Ok(entries) = rustix::fs::Dir::read_from(directory) else { return Vec::new() };
    let number = |entry: rustix::fs::DirEntry| entry.file_name().to_str().ok()?.parse().ok();
    entries.filter_map(|entry| number(entry.ok()?)).collect()
}

/// A descriptor of the process, good for sending signals.
pub fn open(proc_dir: BorrowedFd<'_>, pid: u32) -> rustix::io::Result<std::os::fd::OwnedFd> {
    use rustix::fs::{Mode, OFlags, openat};
    openat(proc_dir, pid.to_string(), OFlags::DIRECTORY | OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
}

pub fn read(proc_dir: BorrowedFd<'_>, node: &str, uid_base: u32, known: &BTreeMap<u32, Known>) -> Vec<Process> {
    let dir = path(proc_dir);
    let clock = Clock::read();
    pids(proc_dir).into_iter().filter_map(|pid| read_one(&dir, pid, node, uid_base, &clock, known)).collect()
}

/// Whether every program that was known to run is in the table, which is in the order of its numbers.
pub fn has_all(table: &[Process], known: &BTreeMap<u32, Known>) -> bool {
    known.keys().all(|pid| table.binary_search_by_key(pid, |process| process.pid).is_ok())
}

/// Through the descriptor: the container cannot put another tree in its place.
fn path(proc_dir: BorrowedFd<'_>) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}", proc_dir.as_raw_fd()))
}

struct Clock {
    boot_ms: u64,
    ticks_per_second: u64,
    page_bytes: u64,
}

impl Clock {
    fn read() -> Clock {
        use rustix::time::{ClockId, clock_gettime};
        let ms = |clock| {
            let time = clock_gettime(clock);
            time.tv_sec as u64 * 1000 + time.tv_nsec as u64 / 1_000_000
        };
        Clock {
            boot_ms: ms(ClockId::Realtime).saturating_sub(ms(ClockId::Boottime)),
            ticks_per_second: rustix::param::clock_ticks_per_second().max(1),
            page_bytes: rustix::param::page_size() as u64,
        }
    }
}

fn read_one(
    proc_dir: &Path,
    pid: u32,
    node: &str,
    uid_base: u32,
    clock: &Clock,
    known: &BTreeMap<u32, Known>,
) -> Option<Process> {
    let dir = proc_dir.join(pid.to_string());
    let stat = fs::read_to_string(dir.join("stat")).ok()?;
    // The name may contain anything; what follows its last parenthesis is numbers.
    let (head, rest) = stat.rsplit_once(')')?;
    let name = head.split_once('(')?.1;
    let fields: Vec<&str> = rest.split_whitespace().collect();
    let number = |at: usize| fields.get(at)?.parse::<u64>().ok();
    let uid = fs::read_to_string(dir.join("status")).ok().and_then(|status| {
        let line = status.lines().find_map(|line| line.strip_prefix("Uid:"))?;
        line.split_whitespace().next()?.parse::<u32>().ok()
    })?;
    let known = known.get(&pid);
    let start_ms = clock.boot_ms + number(19)? * 1000 / clock.ticks_per_second;
    Some(Process {
        pid,
        parent: number(1)? as u32,
        node: node.to_owned(),
        uid: uid.saturating_sub(uid_base),
        state: state(fields.first()?),
        cpu_ms: (number(11)? + number(12)?) * 1000 / clock.ticks_per_second,
        memory_bytes: number(21)? * clock.page_bytes,
        start_ms: known.map_or(start_ms, |known| known.start_ms),
        command: command(&dir).unwrap_or_else(|| vec![format!("[{name}]")]),
        terminal: known.is_some_and(|known| known.terminal),
        waits_for_tree: waits_for_tree(&dir),
        exit: None,
        cause: None,
    })
}

/// Whether it waits inside the kernel for the answer of a file gate.
fn waits_for_tree(dir: &Path) -> bool {
    // Kernels name the function, those that hide it say 0.
    fs::read_to_string(dir.join("wchan")).is_ok_and(|place| place.starts_with("request_wait_answer"))
}

fn command(dir: &Path) -> Option<Vec<String>> {
    use std::io::Read;
    let mut bytes = Vec::new();
    fs::File::open(dir.join("cmdline")).ok()?.take(COMMAND_BYTES_MAX as u64).read_to_end(&mut bytes).ok()?;
    let text = bytes.strip_suffix(b"\0").unwrap_or(&bytes);
    let words = text.split(|byte| *byte == 0).map(|word| String::from_utf8_lossy(word).into_owned());
    (!bytes.is_empty()).then(|| words.collect())
}

fn state(letter: &str) -> ProcessState {
    match letter {
        "R" => ProcessState::Running,
        "T" | "t" => ProcessState::Stopped,
        "Z" | "X" => ProcessState::Zombie,
        _ => ProcessState::Sleeping,
    }
}
