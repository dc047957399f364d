//! Runs of services: each begins at most once, is held as long as it is permitted, and ends with all that it started.

mod support;

use std::time::{Duration, Instant};

use keeper::{KeeperError, Permit, PresenceWatch, Refusal, RunStanding};
use mgmt_api::RunRequest;
use service_core::restart::RunEnd;
use service_core::tenure::{PERMIT, Run, RunRefusal};
use support::{Keeper, LIMIT, is_root, request};
use sys::clock::monotonic_ns;
use sys::presence::{self, Presence, PresenceSlot};

const WEB: &str = "web/0";

fn run(epoch: u64, number: u64) -> Run {
    Run { epoch, number }
}

fn after(time: Duration) -> u64 {
    monotonic_ns() + time.as_nanos() as u64
}

fn script(text: &str) -> RunRequest {
    RunRequest { detach: true, ..request(&["sh", "-c", text]) }
}

fn standing(keeper: &Keeper) -> RunStanding {
    of_web(keeper.client.hold_runs(Vec::new(), 0, None).expect("listed"))
}

fn of_web(all: Vec<RunStanding>) -> RunStanding {
    all.into_iter().find(|one| one.instance == WEB).expect("it is known")
}

fn await_end(keeper: &Keeper) -> RunStanding {
    let until = Instant::now() + LIMIT;
    loop {
        let standing = standing(keeper);
        if !standing.is_held {
            return standing;
        }
        assert!(Instant::now() < until, "it does not end: {standing:?}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn refused(answer: Result<Option<u32>, KeeperError>) -> RunRefusal {
    match answer {
        Err(KeeperError::Refused(Refusal::Run(refusal))) => refusal,
        other => panic!("{other:?}"),
    }
}

/// Groups of runs that are there.
fn groups(keeper: &Keeper) -> usize {
    let below = |dir: &str| format!("/sys/fs/cgroup/{dir}dvs/{}/programs", keeper.cgroup.name());
    let dirs = ["", "freezer/", "pids/"].map(below);
    let entries = dirs.iter().filter_map(|dir| std::fs::read_dir(dir).ok()).flatten().flatten();
    entries.filter(|entry| entry.file_name().to_string_lossy().starts_with("run-")).count()
}

#[test]
fn run_begins_once_and_ends_as_its_program_does() {
    if !is_root() {
        return;
    }
    let keeper = Keeper::start();
    let begin = |of: Run, text: &str| keeper.client.begin_run(WEB, of, after(LIMIT), &script(text));
    let pid = begin(run(1, 1), "sleep 0.2; exit 7").expect("begun").expect("its PID");
    assert_eq!(begin(run(1, 1), "sleep 60").expect("begun before"), None);
    assert_eq!(refused(begin(run(1, 2), "true")), RunRefusal::Occupied);
    assert_eq!(refused(begin(run(0, 9), "true")), RunRefusal::Over);
    let there = standing(&keeper);
    assert_eq!((there.last, there.pid, there.is_held, there.end), (run(1, 1), pid, true, None));
    assert_eq!(await_end(&keeper).end, Some(RunEnd::Exit(7)));
    assert_eq!(begin(run(1, 1), "sleep 60").expect("its outcome is repeated"), None);
    assert_eq!(groups(&keeper), 0);
    // The permit that comes along is over.
    let late = keeper.client.begin_run(WEB, run(1, 2), monotonic_ns(), &script("true"));
    assert_eq!(refused(late), RunRefusal::Late);
    assert!(keeper.client.begin_run(WEB, run(1, 2), after(LIMIT), &request(&["no-such-program"])).is_err());
    assert_eq!(await_end(&keeper).end, Some(RunEnd::NotStarted));
    keeper.client.close_run(WEB, 1).expect("closed");
    assert_eq!(refused(begin(run(1, 3), "true")), RunRefusal::Over);
    assert_eq!(standing(&keeper).closed, 1);
    begin(run(2, 1), "exit 0").expect("another epoch");
    assert_eq!(await_end(&keeper).end, Some(RunEnd::Exit(0)));
    assert_eq!(groups(&keeper), 0);
}

#[test]
fn run_is_held_as_long_as_it_is_permitted_and_no_longer() {
    if !is_root() {
        return;
    }
    let keeper = Keeper::start();
    let hold = |epoch: u64| {
        let permit = Permit { instance: WEB.to_owned(), epoch };
        keeper.client.hold_runs(vec![permit], after(PERMIT), None).expect("held");
    };
    keeper.client.begin_run(WEB, run(4, 1), after(PERMIT), &script("exec sleep 1000")).expect("begun");
    let until = Instant::now() + PERMIT * 2;
    while Instant::now() < until {
        hold(4);
        std::thread::sleep(Duration::from_millis(100));
    }
    assert!(standing(&keeper).is_held);
    hold(4);
    let last = Instant::now();
    // That of another epoch is none.
    while standing(&keeper).is_held {
        hold(3);
        assert!(last.elapsed() < LIMIT);
        std::thread::sleep(Duration::from_millis(5));
    }
    let took = last.elapsed();
    assert!(took >= PERMIT - Duration::from_millis(50), "{took:?}");
    assert_eq!(standing(&keeper).end, Some(RunEnd::Lost));
    println!("ended {:?} after its permit was over", took.saturating_sub(PERMIT));
}

/// Daemons of a node follow one another, and one that begins asks before it knows what it permits.
#[test]
fn run_goes_on_while_its_node_is_heard_whichever_daemon_asks_but_not_without_a_permit() {
    if !is_root() {
        return;
    }
    let keeper = Keeper::start();
    let watch = PresenceWatch { path: keeper.dir.path().join("presence"), incarnation: 7 };
    let mut slot = PresenceSlot::new(presence::open_slot(&watch.path).expect("made"), 0);
    let mut heard_for = |time: Duration| {
        let until = Instant::now() + time;
        while Instant::now() < until {
            let there = Presence { incarnation: 7, there_ns: monotonic_ns(), is_alone: false };
            slot.say(there).expect("said");
            std::thread::sleep(Duration::from_millis(20));
        }
    };
    let permits = || vec![Permit { instance: WEB.to_owned(), epoch: 4 }];
    let hold = |permits: Vec<Permit>| keeper.client.hold_runs(permits, 0, Some(watch.clone())).expect("held");
    heard_for(Duration::from_millis(20));
    keeper.client.begin_run(WEB, run(4, 1), after(PERMIT), &script("exec sleep 1000")).expect("begun");
    // At any moment of a permit's time.
    for _ in 0..12 {
        hold(permits());
        heard_for(Duration::from_millis(230));
        hold(Vec::new());
        heard_for(Duration::from_millis(100));
    }
    hold(permits());
    heard_for(PERMIT * 2);
    assert!(of_web(hold(permits())).is_held);
    hold(Vec::new());
    let last = Instant::now();
    heard_for(PERMIT + Duration::from_millis(300));
    assert!(!of_web(hold(Vec::new())).is_held, "a daemon that is there is obeyed ({:?})", last.elapsed());
}

#[test]
fn run_ends_with_all_that_it_started_whatever_that_did_to_stay() {
    if !is_root() {
        return;
    }
    let keeper = Keeper::start();
    // In sessions of their own, deaf, orphans, and some that go on forking.
    let stays = "
import os, signal, time
for _ in range(3):
    if os.fork() == 0:
        os.setsid()
        for number in (1, 2, 15): signal.signal(number, signal.SIG_IGN)
        if os.fork() == 0:
            while True:
                if os.fork() == 0:
                    time.sleep(0.05)
                    os._exit(0)
                os.waitpid(-1, os.WNOHANG)
                time.sleep(0.001)
        time.sleep(1000)
time.sleep(0.3)
os._exit(3)
";
    let request = RunRequest { detach: true, ..support::request(&["python3", "-c", stays]) };
    let begin = |number: u64| keeper.client.begin_run(WEB, run(1, number), after(LIMIT), &request).expect("begun");
    begin(1);
    assert_eq!(await_end(&keeper).end, Some(RunEnd::Exit(3)));
    assert!(keeper.cgroup.members().expect("members").is_empty(), "nobody stays");
    // A signal is for the first process, SIGKILL for all of them; of another run neither is.
    begin(2);
    assert!(keeper.client.signal_run(WEB, run(1, 1), 9).is_err());
    keeper.client.signal_run(WEB, run(1, 2), 15).expect("sent");
    assert_eq!(await_end(&keeper).end, Some(RunEnd::Exit(143)));
    begin(3);
    std::thread::sleep(Duration::from_millis(100));
    keeper.client.signal_run(WEB, run(1, 3), 9).expect("killed");
    assert_eq!(await_end(&keeper).end, Some(RunEnd::Exit(137)));
    assert!(keeper.cgroup.members().expect("members").is_empty() && groups(&keeper) == 0);
}

#[test]
fn keeper_that_is_new_knows_nothing_and_what_its_predecessor_held_is_gone() {
    if !is_root() {
        return;
    }
    let mut keeper = Keeper::start();
    keeper.client.begin_run(WEB, run(6, 1), after(LIMIT), &script("exec sleep 1000")).expect("begun");
    keeper.child.kill().expect("killed");
    keeper.child.wait().expect("gone");
    keeper.start_again();
    assert_eq!(keeper.client.hold_runs(Vec::new(), 0, None).expect("listed"), []);
    assert!(keeper.cgroup.members().expect("members").is_empty() && groups(&keeper) == 0);
    assert!(keeper.client.begin_run(WEB, run(6, 1), after(LIMIT), &script("exit 0")).expect("begun").is_some());
    assert_eq!(await_end(&keeper).end, Some(RunEnd::Exit(0)));
}
