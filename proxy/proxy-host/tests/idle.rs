//! Who waits for an answer of another node costs nothing: a hundred pairs, and a link that has its heartbeats and no
//! more.
//!
//! What counts is time on a CPU and how often the proxies slept anew, never how long something took, so that it does
//! not matter who else uses the machine.

mod common;

use std::sync::mpsc::{Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use abi::{Endpoint, Message, Source};
use common::{PATIENCE, Pair, RunningProxy, Way, Which};
use ipc::{Port, Wait};
use rustix::time::{ClockId, clock_gettime};

const PAIRS: u32 = 100;
/// Of one CPU, by all pairs and both brokers together.
const SHARE_MAX: f64 = 0.001;
/// Of one CPU, by both proxies: their heartbeats, as many as without any pair. Half a percent, up to one where others
/// compute.
const LINK_SHARE_MAX: f64 = 0.02;
/// Sleeps that a proxy begins in a second: it sends ten heartbeats and hears ten, some of which are answered.
const SLEEPS_MAX: f64 = 40.0;
/// As long as sleepers sleep before they look again: then each does so about once.
const WINDOW: Duration = Duration::from_secs(10);
/// Whose caches others empty pays for it; and in the first window the proxies may still come to rest.
const WINDOWS: usize = 4;
const DOWN_MS: u64 = 10_000;

#[derive(Clone, Copy)]
struct Used {
    time: Duration,
    sleeps: u64,
}

/// Time on a CPU, and how often a thread gave it up to sleep.
fn used(proxy: &RunningProxy) -> Used {
    let RunningProxy::Process(process) = proxy else { panic!("a process") };
    let tasks = std::fs::read_dir(format!("/proc/{}/task", process.id())).expect("the process is there");
    let first_number =
        |text: &str| -> u64 { text.split_whitespace().next().and_then(|word| word.parse().ok()).expect("a number") };
    tasks.fold(Used { time: Duration::ZERO, sleeps: 0 }, |sum, task| {
        let read =
            |name| std::fs::read_to_string(task.as_ref().expect("a thread").path().join(name)).expect("its file");
        let status = read("status");
        let (_, sleeps) = status.split_once("\nvoluntary_ctxt_switches:").expect("counted");
        Used {
            time: sum.time + Duration::from_nanos(first_number(&read("schedstat"))),
            sleeps: sum.sleeps + first_number(sleeps),
        }
    })
}

/// Time this process ran, in which the brokers and the pairs live.
fn own_time() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// Whether all that waits cost what it may over one window.
fn is_idle(proxies: [&RunningProxy; 2]) -> bool {
    let (before, own, begun) = (proxies.map(used), own_time(), Instant::now());
    // Not for synchronisation: the time over which it is measured.
    thread::sleep(WINDOW);
    let (own, took) = (own_time() - own, begun.elapsed());
    let after = proxies.map(used);
    let time = after[0].time + after[1].time - before[0].time - before[1].time;
    let sleeps = [0, 1].map(|index| after[index].sleeps - before[index].sleeps);
    eprintln!("proxies ran for {time:?}, slept {sleeps:?} times; pairs and brokers ran for {own:?}; in {took:?}");
    let share = |time: Duration| time.as_secs_f64() / took.as_secs_f64();
    let sleeps_max = SLEEPS_MAX * took.as_secs_f64();
    share(own) < SHARE_MAX && share(time) < LINK_SHARE_MAX && sleeps.iter().all(|sleeps| (*sleeps as f64) < sleeps_max)
}

/// Takes one request and answers it when it gets a message.
fn hold_back(mut server: Port, taken: &Sender<()>) {
    let request = server.rcvrqst(Wait::For(PATIENCE)).expect("a request");
    taken.send(()).expect("counted");
    server.receive(Source::Any, Wait::For(WINDOWS as u32 * WINDOW + PATIENCE)).expect("the end");
    server.reply(request.source.expect("a source"), &request).expect("replied");
}

#[test]
fn a_hundred_idle_pairs_of_two_nodes_cost_nothing_and_their_proxies_heartbeats_only() {
    let mut pair = Pair::over(Way::Tcp);
    let (peer_a, peer_b) = (pair.a.as_peer(), pair.b.as_peer());
    let (proxy_a, control_a) = pair.a.spawn_proxy(&peer_b, DOWN_MS);
    let (proxy_b, _control_b) = pair.b.spawn_proxy(&peer_a, DOWN_MS);
    control_a.wait_until_up();
    let number = |number: u32| Endpoint::new(number).expect("a number");
    let mut ender = pair.bind(Which::B, Endpoint::RS);
    let (took, taken) = channel();
    thread::scope(|scope| {
        for index in 0..PAIRS {
            let server = pair.bind(Which::B, number(3000 + index));
            let mut client = pair.bind(Which::A, number(4000 + index));
            let took = took.clone();
            scope.spawn(move || hold_back(server, &took));
            scope.spawn(move || {
                client.sendrec(number(3000 + index), &Message::new(1), Wait::Forever).expect("answered")
            });
        }
        for _ in 0..PAIRS {
            taken.recv_timeout(PATIENCE).expect("all requests are taken");
        }
        let is_idle = (0..WINDOWS).any(|_| is_idle([&proxy_a, &proxy_b]));
        for index in 0..PAIRS {
            ender.send(number(3000 + index), &Message::new(0), Wait::For(PATIENCE)).expect("taken");
        }
        assert!(is_idle, "never below what idle pairs and a link may cost");
    });
}
