//! The workers of one tree, and what of their answers is compared. What is not, and why: the table in
//! `docs/design/difftest.md`.

use std::collections::HashMap;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};

use crate::lane::Lane;
use crate::program::{Call, Op, Program};

/// So long a lock of a description that was closed elsewhere may be seen.
const RELEASE: Duration = Duration::from_millis(500);
/// Times before this were set by `utimensat`, those after 2030 are none.
const SET_BEFORE: i64 = 1_100_000_000_000_000_000;

/// Of these a tmpfs gives the directory the file's new time, which may be that of the last clock tick.
const TIMED_BY_THE_FILE: &[Call] = &[Call::Unlink, Call::Rmdir, Call::Link, Call::LinkFile, Call::Rename];

/// How many nodes a program has, and how many processes on each.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Shape {
    pub nodes: usize,
    pub processes: usize,
}

/// What of times is compared.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Times {
    Compared,
    /// A later one of a directory in the tree is right where the oracle's is the same.
    OfDirectoriesMayBeLater,
    /// A later one in the tree is right where the oracle's is the same.
    MayBeLater,
    Ignored,
}

impl Times {
    /// What a program allows, of what is wanted.
    fn of(program: &Program, wanted: Times) -> Times {
        let has = |call: Call| program.0.iter().any(|op| op.call == call);
        match wanted {
            Times::Compared if has(Call::Store) => Times::Ignored,
            Times::Compared if has(Call::Truncate) || has(Call::Ftruncate) => Times::MayBeLater,
            Times::Compared if TIMED_BY_THE_FILE.iter().any(|call| has(*call)) => Times::OfDirectoriesMayBeLater,
            wanted => wanted,
        }
    }
}

/// The workers of one tree: one row for a node. The oracle has the same rows, all on one kernel.
pub struct World {
    lanes: Vec<Vec<Lane>>,
    seen: Seen,
}

/// What the program saw of inodes in one world.
#[derive(Default)]
struct Seen {
    inodes: HashMap<String, usize>,
    times: HashMap<(usize, &'static str), i64>,
}

/// The first answer that is not the oracle's.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Difference {
    /// Index of the call; after the last it is what was left at the end.
    pub at: usize,
    pub what: String,
    pub oracle: String,
    pub tree: String,
    /// The worker does not answer any more: nothing can be tried again.
    pub is_fatal: bool,
}

impl World {
    pub fn new(lanes: Vec<Vec<Lane>>) -> World {
        World { lanes, seen: Seen::default() }
    }

    /// All on a tmpfs of this machine, which goes with the last worker. Needs root. `arguments` are those of
    /// [`crate::be_worker`].
    pub fn oracle(shape: Shape, arguments: &[&str]) -> World {
        let directory =
            std::env::temp_dir().join(format!("dvs-oracle-{}-{:?}", std::process::id(), std::thread::current().id()));
        std::fs::create_dir(&directory).expect("a mount point");
        mount(c"oracle", directory.as_path(), c"tmpfs", MountFlags::NOATIME, None).expect("a tmpfs");
        let lanes = World::here(shape, arguments, |_| directory.clone());
        unmount(directory.as_path(), UnmountFlags::DETACH).expect("unmounted");
        std::fs::remove_dir(&directory).expect("nothing is mounted there any more");
        lanes
    }

    /// On directories of this machine, one for each node.
    pub fn here(shape: Shape, arguments: &[&str], directory: impl Fn(usize) -> PathBuf) -> World {
        let row = |node| (0..shape.processes).map(|_| Lane::here(arguments, &directory(node))).collect();
        World::new((0..shape.nodes).map(row).collect())
    }

    pub fn shape(&self) -> Shape {
        Shape { nodes: self.lanes.len(), processes: self.lanes.first().map_or(0, Vec::len) }
    }

    pub fn lane(&mut self, node: usize, process: usize) -> &mut Lane {
        &mut self.lanes[node][process]
    }

    pub fn lanes(&mut self) -> impl Iterator<Item = &mut Lane> {
        self.lanes.iter_mut().flatten()
    }

    pub(crate) fn begin(&mut self, directory: &str) -> Result<(), String> {
        self.seen = Seen::default();
        let made = self.lanes[0][0].ask(&format!("make {directory}"))?;
        expect_zero("make", &made)?;
        let command = format!("begin {directory}");
        self.lanes().for_each(|lane| lane.tell(&command));
        // All answers are taken before one of them is looked at.
        let answers: Vec<_> = self.lanes().map(Lane::hear).collect();
        answers.into_iter().try_for_each(|answer| expect_zero("begin", &answer?))
    }

    pub(crate) fn clear(&mut self, directory: &str) -> Result<(), String> {
        // Nobody has anything open there any more.
        self.lanes().for_each(|lane| lane.tell("begin ."));
        let answers: Vec<_> = self.lanes().map(Lane::hear).collect();
        answers.into_iter().try_for_each(|answer| expect_zero("begin .", &answer?))?;
        let cleared = self.lanes[0][0].ask(&format!("clear {directory}"))?;
        expect_zero("clear", &cleared)
    }
}

fn expect_zero(what: &str, answer: &str) -> Result<(), String> {
    if answer == "0" { Ok(()) } else { Err(format!("{what} answered {answer}")) }
}

/// Runs a program on both, in a directory of its own.
pub fn run(
    program: &Program,
    oracle: &mut World,
    tree: &mut World,
    directory: &str,
    times: Times,
) -> Option<Difference> {
    let fatal = |what: &str, answers: (Result<(), String>, Result<(), String>)| {
        let (oracle, tree) = (answers.0.err().unwrap_or_default(), answers.1.err().unwrap_or_default());
        (!oracle.is_empty() || !tree.is_empty()).then(|| {
            let at = program.0.len();
            Difference { at, what: what.to_owned(), oracle, tree, is_fatal: true }
        })
    };
    if let Some(difference) = fatal("begin", (oracle.begin(directory), tree.begin(directory))) {
        return Some(difference);
    }
    let times = Times::of(program, times);
    let found = run_calls(program, oracle, tree, directory, times).or_else(|| run_end(program, oracle, tree, times));
    if found.as_ref().is_some_and(|found| found.is_fatal) {
        return found;
    }
    let cleared = fatal("removal of everything", (oracle.clear(directory), tree.clear(directory)));
    // What a program left behind cannot hurt the next one, which has its own directory.
    let cleared =
        cleared.map(|difference| Difference { is_fatal: difference.tree.starts_with("no answer"), ..difference });
    found.or(cleared)
}

fn run_calls(
    program: &Program,
    oracle: &mut World,
    tree: &mut World,
    directory: &str,
    times: Times,
) -> Option<Difference> {
    let has_allocated = program.0.iter().any(|op| op.call == Call::Allocate);
    program.0.iter().enumerate().find_map(|(at, op)| {
        let mut op = op.clone();
        if has_allocated && is_seek_of_data(&op) {
            return None;
        }
        if op.call == Call::Store && !fits(&mut op, oracle) {
            return None;
        }
        let command = op.command();
        if believes_sizes(op.call) && is_cut_elsewhere(&program.0[..at], op.node) {
            let looked = tree.lane(op.node, op.process).ask(&format!("look {command}"));
            if looked.is_err() {
                return difference(at, op.to_string(), (Ok("0".to_owned()), looked));
            }
        }
        let mut answers = both(oracle, tree, op.node, op.process, &command, times);
        if is_lock(op.call) && is_refused(&answers.1) && !is_refused(&answers.0) {
            answers.1 = again(tree, &op, &command);
        }
        if op.call == Call::Rename && is_stale(&answers.1) {
            // A directory that another node moved: this one has to look first.
            let lane = tree.lane(op.node, op.process);
            answers.1 = lane.ask("tree").and_then(|_| lane.ask(&command));
        }
        let found = difference(at, op.to_string(), answers);
        if op.call == Call::Exit && found.is_none() {
            // The next process begins where the first did.
            let answers = both(oracle, tree, op.node, op.process, &format!("begin {directory}"), times);
            return difference(at, "the process after it".to_owned(), answers);
        }
        found
    })
}

/// They send no request, or go by what the kernel knew before it.
fn believes_sizes(call: Call) -> bool {
    matches!(call, Call::Write | Call::Copy | Call::Load)
}

/// Whether one of these calls, on another node, may have made a file smaller: a kernel cannot be told that.
fn is_cut_elsewhere(before: &[Op], node: usize) -> bool {
    before.iter().any(|op| op.node != node && may_cut(op))
}

fn may_cut(op: &Op) -> bool {
    let truncates = |flags: i64| flags & i64::from(libc::O_TRUNC) != 0;
    match op.call {
        Call::Truncate | Call::Ftruncate => true,
        Call::Open | Call::Reopen => truncates(op.args[2]),
        Call::OpenAt => truncates(op.args[3]),
        _ => false,
    }
}

/// Only what the file has can be stored.
fn fits(op: &mut Op, oracle: &mut World) -> bool {
    let room = oracle.lane(op.node, op.process).ask(&format!("room {}", op.args[0]));
    let room: i64 = room.ok().and_then(|room| room.parse().ok()).unwrap_or(0);
    op.args[2] = op.args[2].min(room - op.args[1]);
    op.args[2] > 0
}

fn is_seek_of_data(op: &Op) -> bool {
    op.call == Call::Seek && [libc::SEEK_DATA, libc::SEEK_HOLE].contains(&(op.args[2] as libc::c_int))
}

fn is_lock(call: Call) -> bool {
    matches!(call, Call::SetLock | Call::GetLock | Call::Flock)
}

fn is_refused(answer: &Result<String, String>) -> bool {
    matches!(answer.as_deref(), Ok("-11" | "0 held"))
}

fn is_stale(answer: &Result<String, String>) -> bool {
    matches!(answer.as_deref(), Ok("-116"))
}

fn again(tree: &mut World, op: &Op, command: &str) -> Result<String, String> {
    let limit = Instant::now() + RELEASE;
    loop {
        let answer = tree.lane(op.node, op.process).ask(command);
        if !is_refused(&answer) || Instant::now() > limit {
            return answer;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// What is open, and the whole tree as each node sees it.
fn run_end(program: &Program, oracle: &mut World, tree: &mut World, times: Times) -> Option<Difference> {
    let Shape { nodes, processes } = tree.shape();
    let places = (0..nodes).flat_map(|node| (0..processes).map(move |process| (node, process)));
    let states = places.map(|(node, process)| (node, process, "state"));
    let trees = (0..nodes).map(|node| (node, 0, "tree"));
    states.chain(trees).find_map(|(node, process, command)| {
        if command == "state" && is_cut_elsewhere(&program.0, node) {
            // The same for what is mapped. One that is lost does not answer what follows either.
            let _ = tree.lane(node, process).ask("look state");
        }
        let answers = both(oracle, tree, node, process, command, times);
        difference(program.0.len(), format!("n{}.{process} {command} at the end", node + 1), answers)
    })
}

/// The tree's answer as it would be with the oracle's times, where its own are right, too.
fn as_late(oracle: &str, tree: &str, times: Times) -> String {
    let (mut oracle, mut is_directory) = (oracle.split(' '), false);
    let words = tree.split(' ').map(|word| {
        if let Some(mode) = word.strip_prefix("mode=") {
            is_directory = mode.len() == 5 && mode.starts_with('4');
        }
        let may_be = |right, key| match times {
            Times::MayBeLater => is_later(right, word, key) || is_newly_set(right, word, key),
            Times::OfDirectoriesMayBeLater => is_directory && is_later(right, word, key),
            Times::Compared | Times::Ignored => false,
        };
        match oracle.next() {
            Some(right) if may_be(right, "mtime=") || may_be(right, "ctime=") => right,
            _ => word,
        }
    });
    words.collect::<Vec<_>>().join(" ")
}

fn times_of<'a>(oracle: &'a str, tree: &'a str, key: &str) -> Option<(&'a str, &'a str)> {
    Some((oracle.strip_prefix(key)?, tree.strip_prefix(key)?))
}

fn is_later(oracle: &str, tree: &str, key: &str) -> bool {
    times_of(oracle, tree, key) == Some(("same", "later"))
}

/// One that `utimensat` set is a number, until a truncation took it away in the tree alone.
fn is_newly_set(oracle: &str, tree: &str, key: &str) -> bool {
    let is_set = |time: &str| time.starts_with(|first: char| first.is_ascii_digit());
    times_of(oracle, tree, key).is_some_and(|(oracle, tree)| is_set(oracle) && !is_set(tree))
}

type Answer = Result<String, String>;

/// The same for both, at the same time.
fn both(
    oracle: &mut World,
    tree: &mut World,
    node: usize,
    process: usize,
    command: &str,
    times: Times,
) -> (Answer, Answer) {
    let mut worlds = [oracle, tree];
    worlds.iter_mut().for_each(|world| world.lanes[node][process].tell(command));
    let [oracle, tree] = worlds.map(|world| {
        let answer = world.lanes[node][process].hear();
        answer.map(|answer| world.seen.normal(&answer, times))
    });
    match (oracle, tree) {
        (Ok(oracle), Ok(tree)) => {
            let tree = as_late(&oracle, &tree, times);
            (Ok(oracle), Ok(tree))
        }
        answers => answers,
    }
}

fn difference(at: usize, what: String, (oracle, tree): (Answer, Answer)) -> Option<Difference> {
    let is_fatal = oracle.is_err() || tree.is_err();
    let (oracle, tree) = (oracle.unwrap_or_else(|error| error), tree.unwrap_or_else(|error| error));
    (oracle != tree || is_fatal).then_some(Difference { at, what, oracle, tree, is_fatal })
}

impl Seen {
    fn normal(&mut self, answer: &str, times: Times) -> String {
        let mut inode = 0;
        let words = answer.split(' ').map(|word| {
            let Some((key, value)) = word.split_once('=') else { return word.to_owned() };
            match key {
                "ino" => {
                    let next = self.inodes.len();
                    inode = *self.inodes.entry(value.to_owned()).or_insert(next);
                    format!("ino={inode}")
                }
                "atime" => self.time(inode, "atime", value, times),
                "mtime" => self.time(inode, "mtime", value, times),
                "ctime" => self.time(inode, "ctime", value, times),
                _ => word.to_owned(),
            }
        });
        words.collect::<Vec<_>>().join(" ")
    }

    fn time(&mut self, inode: usize, key: &'static str, value: &str, times: Times) -> String {
        let time: i64 = value.parse().unwrap_or(0);
        if times == Times::Ignored {
            return format!("{key}=-");
        }
        let before = self.times.insert((inode, key), time);
        if time < SET_BEFORE {
            return format!("{key}={time}");
        }
        let told = match before.map(|before| time.cmp(&before)) {
            None => "first",
            Some(std::cmp::Ordering::Equal) => "same",
            Some(std::cmp::Ordering::Greater) => "later",
            Some(std::cmp::Ordering::Less) => "earlier",
        };
        format!("{key}={told}")
    }
}
