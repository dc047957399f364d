//! Who waits costs nothing: a hundred pairs of processes, of which each client waits for an answer and each server for
//! a message.
//!
//! What counts is time on a CPU and how often the waiting threads slept anew, never how long something took, so that it
//! does not matter who else uses the machine.

mod common;

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use common::OneNode;
use ipc::{Endpoint, Message, Port, Source, Wait};
use rustix::time::{ClockId, clock_gettime};

const PAIRS: usize = 100;
/// Of one CPU, by all pairs and the broker together. Nearly all of it is a look of each client every ten seconds, and
/// what a look costs, 30 to 50 microseconds, depends on what others left in the caches.
const SHARE_MAX: f64 = 0.001;
/// Where the machine is so busy that this is passed: times what as many processes use at the same time that only sleep
/// for ten seconds, again and again. That is the least a look can cost there.
const OF_SLEEPERS_MAX: f64 = 4.0;
/// As long as sleepers sleep before they look again: then each does so about once.
const WINDOW: Duration = Duration::from_secs(10);
/// Sleeps that a pair begins in a window: that look of the client, and one more where the window cuts it badly. Servers
/// sleep on.
const SLEEPS_MAX: u64 = 2;
/// Whose caches others empty pays for it; and in the first window the processes may still come to rest.
const WINDOWS: usize = 4;

/// Not a test: a server that never answers, a client of one, or who only sleeps. Started without its variables it does
/// nothing.
#[test]
fn child_process() {
    while std::env::var_os("SLEEPER").is_some() {
        std::thread::park_timeout(WINDOW);
    }
    let Ok(path) = std::env::var("M3IPC_SOCKET") else { return };
    let mut port = Port::connect(path.as_ref(), None).unwrap();
    let say = |what: &str| {
        println!("{what}");
        std::io::stdout().flush().unwrap();
    };
    // Each wait ends only when the test does: it is killed, or its peer is.
    match std::env::var("M3IPC_SERVER") {
        Ok(server) => {
            let server = Endpoint::new(server.parse().unwrap()).unwrap();
            let _ = port.sendrec(server, &Message::new(1), Wait::Forever);
        }
        Err(_) => {
            say(&format!("endpoint {}", port.endpoint()));
            port.receive(Source::Any, Wait::Forever).unwrap();
            say("taken");
            let _ = port.receive(Source::Any, Wait::Forever);
        }
    }
}

/// A child that is killed and waited for in any case.
struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Process {
    fn start(variables: &[(&str, &str)]) -> Process {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["child_process", "--exact", "--nocapture", "--test-threads=1"]);
        command.envs(variables.iter().copied()).stdin(Stdio::null()).stdout(Stdio::piped());
        Process(command.spawn().unwrap())
    }

    /// What the files of that name say of its threads.
    fn of_threads(&self, name: &str) -> Vec<String> {
        let tasks = std::fs::read_dir(format!("/proc/{}/task", self.0.id())).unwrap();
        tasks.map(|task| std::fs::read_to_string(task.unwrap().path().join(name)).unwrap()).collect()
    }

    /// Time on a CPU, and how often a thread gave it up to sleep.
    fn used(&self) -> Used {
        let first_number = |text: &str| -> u64 { text.split_whitespace().next().unwrap().parse().unwrap() };
        let sleeps = |status: &String| first_number(status.split_once("\nvoluntary_ctxt_switches:").unwrap().1);
        Used {
            time: Duration::from_nanos(self.of_threads("schedstat").iter().map(|text| first_number(text)).sum()),
            sleeps: self.of_threads("status").iter().map(sleeps).sum(),
        }
    }
}

#[derive(Default)]
struct Used {
    time: Duration,
    sleeps: u64,
}

impl Used {
    fn by(processes: &[Process]) -> Used {
        processes
            .iter()
            .map(Process::used)
            .fold(Used::default(), |all, one| Used { time: all.time + one.time, sleeps: all.sleeps + one.sleeps })
    }
}

/// A server that took the request of a client, and the client.
fn pair(world: &OneNode) -> [Process; 2] {
    let path = world.socket();
    let socket = ("M3IPC_SOCKET", path.to_str().unwrap());
    let mut server = Process::start(&[socket]);
    let mut lines = BufReader::new(server.0.stdout.take().unwrap()).lines().map(Result::unwrap);
    let endpoint = lines.find_map(|line| line.split_once("endpoint ").map(|(_, number)| number.to_string()));
    let client = Process::start(&[socket, ("M3IPC_SERVER", &endpoint.expect("the server says its endpoint"))]);
    assert!(lines.any(|line| line.contains("taken")), "the server ended");
    [server, client]
}

/// Time this process ran, in which the broker lives.
fn own_time() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

#[test]
fn a_hundred_idle_pairs_look_once_in_ten_seconds_and_use_a_thousandth_of_a_cpu() {
    let world = OneNode::new();
    let mut processes: Vec<Process> = (0..PAIRS).flat_map(|_| pair(&world)).collect();
    let sleepers: Vec<Process> = (0..PAIRS).map(|_| Process::start(&[("SLEEPER", "1")])).collect();
    let is_idle = |_| {
        let slept = Used::by(&sleepers).time;
        let (before, own, begun) = (Used::by(&processes), own_time(), Instant::now());
        // Not for synchronisation: the time over which it is measured.
        std::thread::sleep(WINDOW);
        // The broker's first: reading what the others used costs time of this process.
        let (own, took) = (own_time() - own, begun.elapsed());
        let (after, slept) = (Used::by(&processes), Used::by(&sleepers).time - slept);
        let (time, sleeps) = (after.time - before.time, after.sleeps - before.sleeps);
        eprintln!(
            "{PAIRS} pairs ran for {time:?} and slept {sleeps} times, the broker ran for {own:?}, as many sleepers for {slept:?}, in {took:?}"
        );
        let share = (time + own).as_secs_f64() / took.as_secs_f64();
        let of_sleepers = (time + own).as_secs_f64() / slept.as_secs_f64();
        let windows = took.as_secs_f64() / WINDOW.as_secs_f64();
        (share < SHARE_MAX || of_sleepers < OF_SLEEPERS_MAX)
            && (sleeps as f64) <= windows * (SLEEPS_MAX * PAIRS as u64) as f64
    };
    assert!(
        (0..WINDOWS).any(is_idle),
        "never below {SHARE_MAX} of a CPU or {OF_SLEEPERS_MAX} times what sleepers use, and {SLEEPS_MAX} sleeps of each pair"
    );
    // The control: who ended waits no more.
    let ended = processes.iter_mut().filter_map(|process| process.0.try_wait().unwrap()).count();
    assert_eq!(ended, 0, "processes that wait no more");
}
