//! Signals from a program of one node to one of another: two keepers, and call gates that hand orders straight to the
//! other one's init.

mod support;

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::time::{Duration, Instant};

use gate_syscall::{CallStates, Doorway, InitSocket, KeptMemory, Listeners, News, NodeLinks, Setting, Wake};
use keeper::{CallGateFds, LogPart};
use mgmt_api::LogForm;
use proc_core::caller::Uids;
use proc_core::errand::FromInit;
use proc_core::order::{LifeNumber, Order};
use proc_core::range::{Seat, Seats};
use support::{Keeper, is_root};

fn seat(index: usize) -> Seat {
    Seat::new(index).expect("a seat")
}

struct Straight(Arc<InitSocket>);

impl NodeLinks for Straight {
    fn send(&mut self, _: Seat, order: &Order) {
        // Over a ring the order would be refused for now, and come again.
        while let Err(cause) = self.0.carry(order) {
            assert_eq!(cause.kind(), std::io::ErrorKind::WouldBlock, "init is there");
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

/// A call gate for the programs of one keeper, whose only other node has this init.
struct Gate {
    news: Sender<News>,
    threads: Vec<std::thread::JoinHandle<()>>,
}

impl Gate {
    fn start(
        keeper: &Keeper,
        fds: CallGateFds,
        own: usize,
        other: usize,
        far: Arc<InitSocket>,
        life: LifeNumber,
    ) -> Gate {
        let memory = KeptMemory::map(&fds.journal).expect("a journal");
        let listeners = Listeners::default();
        let mut doorway = Doorway::new(fds.keeper);
        doorway.fetch_all(&listeners).expect("a keeper");
        let setting = Setting {
            own: seat(own),
            others: Seats::NONE.with(seat(other)),
            lost: Seats::NONE,
            uids: Uids { base: keeper.options.uid_base, count: 65_536 },
            life: LifeNumber(1),
        };
        let links = Straight(Arc::clone(&far));
        let (calls, receiver, news) =
            CallStates::new(setting, &memory, listeners.clone(), fds.memory, None, |_, _| Ok(links))
                .expect("descriptors");
        let wake: Wake = calls.wake().clone();
        wake.greeted(seat(other), life);
        let (tell, arrivals) = (news.clone(), wake.clone());
        let threads = vec![
            std::thread::spawn(move || receiver.run().expect("descriptors")),
            std::thread::spawn(move || calls.run()),
            std::thread::spawn(move || {
                while let Ok(Some(said)) = far.receive(None) {
                    let FromInit::Done(outcome) = said else { continue };
                    if tell.send(News::Outcome { node: seat(other), outcome }).is_err() {
                        return;
                    }
                }
            }),
            std::thread::spawn(move || {
                while doorway.fetch_further(&listeners).is_ok() {
                    arrivals.look_again();
                }
            }),
        ];
        Gate { news, threads }
    }
}

/// Two nodes of one container, each with a call gate. The keepers end first, and the gates with them.
struct Pair {
    near: Keeper,
    far: Keeper,
    gates: Vec<Gate>,
}

impl Drop for Pair {
    fn drop(&mut self) {
        for gate in &self.gates {
            let _ = gate.news.send(News::Stop);
        }
        for keeper in [&mut self.near, &mut self.far] {
            let _ = keeper.child.kill();
            let _ = keeper.child.wait();
        }
        for thread in self.gates.drain(..).flat_map(|gate| gate.threads) {
            let _ = thread.join();
        }
    }
}

fn pair() -> Pair {
    let uid_base = 900_000_000 + (std::process::id() % 10_000) * 65_536;
    let start = |seat_index: usize| {
        Keeper::start_with(|options| {
            options.spans = true;
            options.pid_base = seat(seat_index).first_pid();
            // One container has the same users everywhere.
            options.uid_base = uid_base;
        })
    };
    let (near, far) = (start(1), start(2));
    let begin = |keeper: &Keeper, other: usize| {
        let mut fds = keeper.client.begin_call_gate().expect("an answer").expect("a call gate");
        let init = Arc::new(InitSocket::new(std::mem::replace(&mut fds.init, null())));
        let life = init.begin(LifeNumber(5), Seats::NONE.with(seat(other))).expect("init answers");
        (fds, init, life)
    };
    let ((near_fds, near_init, near_life), (far_fds, far_init, far_life)) = (begin(&near, 2), begin(&far, 1));
    let gates = vec![
        Gate::start(&near, near_fds, 1, 2, far_init, far_life),
        Gate::start(&far, far_fds, 2, 1, near_init, near_life),
    ];
    Pair { near, far, gates }
}

fn null() -> OwnedFd {
    std::fs::File::open("/dev/null").expect("a descriptor").into()
}

/// A program that says what signals it hears, and from whom.
const LISTENER: &str = "
import signal, sys
heard = {signal.SIGUSR1, signal.SIGUSR2, signal.SIGRTMIN}
signal.pthread_sigmask(signal.SIG_BLOCK, heard)
print('ready', flush=True)
while True:
    info = signal.sigwaitinfo(heard)
    print(info.si_signo, info.si_pid, info.si_uid, info.si_code, flush=True)
";

fn detached(keeper: &Keeper, uid: u32) -> u32 {
    let mut request = support::request(&["/usr/bin/python3", "-c", LISTENER]);
    (request.uid, request.gid, request.detach) = (uid, uid, true);
    let pid = keeper.client.run(&request, None).expect("run");
    wait_until(|| output(keeper, pid).starts_with("ready\n"), "it begins");
    pid
}

fn output(keeper: &Keeper, pid: u32) -> String {
    String::from_utf8_lossy(&keeper.client.logs(pid, LogPart::default(), LogForm::Text).expect("a log")).into_owned()
}

fn wait_until(mut is_so: impl FnMut() -> bool, what: &str) {
    let until = Instant::now() + support::LIMIT;
    while !is_so() {
        assert!(Instant::now() < until, "{what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn programs_signal_each_other_over_nodes_as_on_one() {
    if !is_root() {
        return;
    }
    let pair = pair();
    let (own, others) = (detached(&pair.far, 1000), detached(&pair.far, 2000));
    let script = "
import os, signal, sys
own, others = map(int, sys.argv[1:])
os.setresuid(1000, 1000, 1000)
def kill(pid, number):
    try:
        os.kill(pid, number)
        return 'sent'
    except OSError as error:
        return error.strerror
print(os.getpid())
for number in (0, signal.SIGUSR1, signal.SIGUSR2, signal.SIGRTMIN):
    print(kill(own, number))
print(kill(others, signal.SIGUSR1), kill(others, 0), sep='/')
print(kill(own + 1000, 0), kill(own, 65), kill(others, 65), sep='/')
";
    let ended = pair.near.python(script, &[&own.to_string(), &others.to_string()]).text();
    let mut lines = ended.lines();
    let sender = lines.next().expect("its number").to_owned();
    assert_eq!(lines.by_ref().take(4).collect::<Vec<_>>(), ["sent"; 4]);
    assert_eq!(lines.next(), Some("Operation not permitted/Operation not permitted"));
    assert_eq!(lines.next(), Some("No such process/Invalid argument/Invalid argument"));
    wait_until(|| output(&pair.far, own).lines().count() == 4, "all arrive");
    // Of signals that wait the smallest is heard first; they were sent in that order, too.
    let heard: Vec<String> = [10, 12, 34].iter().map(|signal| format!("{signal} {sender} 1000 -1")).collect();
    assert_eq!(output(&pair.far, own).lines().skip(1).collect::<Vec<_>>(), heard);
    assert_eq!(output(&pair.far, others).lines().count(), 1, "the other user's heard nothing");
}

#[test]
fn root_of_the_container_signals_everybody_and_groups_elsewhere_too() {
    if !is_root() {
        return;
    }
    let pair = pair();
    let programs = [detached(&pair.far, 1000), detached(&pair.far, 2000)];
    let group = programs[0].to_string();
    // Each program leads a group of its own.
    assert_eq!(pair.near.shell(&format!("kill -USR1 -{group}; echo $?")).text(), "0");
    wait_until(|| output(&pair.far, programs[0]).lines().count() == 2, "the group hears");
    let script = "
import os, signal
signal.signal(signal.SIGUSR2, signal.SIG_IGN)
os.kill(-1, signal.SIGUSR2)
print('done')
";
    // Somebody else here, so that the own node's part has a receiver.
    let own = detached(&pair.near, 3000);
    assert_eq!(pair.near.python(script, &[]).text(), "done");
    for (keeper, pid, signals) in [(&pair.far, programs[0], 2), (&pair.far, programs[1], 1), (&pair.near, own, 1)] {
        wait_until(|| output(keeper, pid).lines().count() == 1 + signals, "everybody hears, once");
    }
}

#[test]
fn programs_of_a_container_without_other_nodes_have_no_trap() {
    if !is_root() {
        return;
    }
    let keeper = Keeper::start();
    assert!(keeper.client.begin_call_gate().expect("an answer").is_none());
    assert_eq!(keeper.shell("kill -0 200000 2>/dev/null; echo $?").text(), "1");
}

/// Asks the kernel all that can be asked of these processes, sets their priorities, and says what it heard: one line
/// for each question.
const QUESTIONS: &str = "
import ctypes, os, sys
libc = ctypes.CDLL(None, use_errno=True)
uid, numbers = int(sys.argv[1]), [int(number) for number in sys.argv[2:]]
os.setresuid(uid, uid, uid)
def ioprio_get(which, who):
    said = libc.syscall(252 if os.uname().machine == 'x86_64' else 31, which, who)
    if said < 0:
        raise OSError(ctypes.get_errno(), '')
    return said
def say(call, *arguments):
    try:
        print(call.__name__, *arguments, call(*arguments))
    except OSError as error:
        print(call.__name__, *arguments, 'errno', error.errno)
for number in numbers:
    for call in (os.getpgid, os.getsid, os.sched_getscheduler):
        say(call, number)
    for which in (os.PRIO_PROCESS, os.PRIO_PGRP, 7):
        say(os.getpriority, which, number)
        # Not too high, then as it was, then higher: the last one needs more than a user has.
        for niceness in (5, 7, 7, 1000, 3, -21):
            say(os.setpriority, which, number, niceness)
            say(os.getpriority, which, number)
    for which in (1, 2, 8):
        say(ioprio_get, which, number)
";

/// One process that leads a group with another one and has a second thread; says their numbers.
const FAMILY: &str = "
import os, sys, threading, time
threading.Thread(target=time.sleep, args=(1000,), daemon=True).start()
child = os.fork()
if child == 0:
    while True:
        time.sleep(1000)
threads = [int(thread) for thread in os.listdir('/proc/self/task')]
print('ready', os.getpid(), max(threads), child, flush=True)
time.sleep(1000)
";

fn family(keeper: &Keeper, uid: u32) -> Vec<String> {
    let mut request = support::request(&["/usr/bin/python3", "-c", FAMILY]);
    (request.uid, request.gid, request.detach) = (uid, uid, true);
    let pid = keeper.client.run(&request, None).expect("run");
    wait_until(|| output(keeper, pid).ends_with('\n'), "it begins");
    output(keeper, pid).split_whitespace().skip(1).map(str::to_owned).collect()
}

#[test]
fn questions_are_answered_over_nodes_as_on_one() {
    if !is_root() {
        return;
    }
    let pair = pair();
    for uid in ["0", "1000", "2000"] {
        // Priorities change: two families that are alike, of which one is asked from its own node.
        let ask = |keeper: &Keeper| {
            let families = [family(&pair.far, 1000), family(&pair.far, 0)].concat();
            let nobody = (seat(2).end_pid() - 1).to_string();
            let numbers = [families.clone(), vec![nobody]].concat();
            let arguments: Vec<&str> = std::iter::once(uid).chain(numbers.iter().map(String::as_str)).collect();
            let said = keeper.python(QUESTIONS, &arguments).text();
            // Of each family its own numbers.
            numbers.iter().enumerate().fold(said, |said, (at, number)| said.replace(number, &format!("N{at}")))
        };
        let (from_there, from_here) = (ask(&pair.far), ask(&pair.near));
        let differ = from_there.lines().zip(from_here.lines()).find(|(there, here)| there != here);
        assert_eq!(differ, None, "uid {uid}");
        assert_eq!(from_there.lines().count(), from_here.lines().count());
        assert!(from_there.lines().count() > 250, "{from_there}");
    }
}

/// A thousand threads that call at once while a timer interrupts them, and processes that end, execute something or are
/// killed while they call. Says what calls said: only success, and that a signal came before the call was received.
const STORM: &str = "
import collections, ctypes, os, signal, sys, threading
libc = ctypes.CDLL(None, use_errno=True)
far, calls = int(sys.argv[1]), 20
def ask(said):
    for _ in range(calls):
        said[ctypes.get_errno() if libc.kill(far, 0) else 0] += 1
signal.signal(signal.SIGALRM, lambda *_: None)
signal.siginterrupt(signal.SIGALRM, True)
signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)
threading.stack_size(65536)
each = [collections.Counter() for _ in range(1000)]
threads = [threading.Thread(target=ask, args=(said,)) for said in each]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
signal.setitimer(signal.ITIMER_REAL, 0)
said = sum(each, collections.Counter())
assert sum(said.values()) == calls * len(threads), said
for round in range(60):
    child = os.fork()
    if child == 0:
        for _ in range(4):
            threading.Thread(target=ask, args=(collections.Counter(),), daemon=True).start()
        if round % 3 == 0:
            os._exit(0)
        if round % 3 == 1:
            os.execv('/usr/bin/true', ['true'])
        ask(collections.Counter())
        os._exit(0)
    if round % 3 == 2:
        os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
print(sorted(said))
";

#[test]
fn storm_of_one_program_loses_nobodys_call_and_keeps_nobody_waiting() {
    if !is_root() {
        return;
    }
    let pair = pair();
    let far = detached(&pair.far, 1000).to_string();
    let (said, meanwhile) = std::thread::scope(|scope| {
        let storm = scope.spawn(|| pair.near.python(STORM, &[&far]).text());
        let mut waits = Vec::new();
        while !storm.is_finished() {
            let begun = Instant::now();
            assert_eq!(pair.near.shell(&format!("kill -0 {far}; echo $?")).text(), "0");
            waits.push(begun.elapsed());
        }
        (storm.join().expect("its end"), waits)
    });
    assert!(["[0]", "[0, 4]"].contains(&said.as_str()), "{said}");
    assert!(meanwhile.len() > 1 && meanwhile.iter().max() < Some(&Duration::from_secs(5)), "{meanwhile:?}");
    assert_eq!(pair.near.shell(&format!("kill -USR1 {far}; echo $?")).text(), "0");
    wait_until(|| output(&pair.far, far.parse().expect("a number")).lines().count() == 2, "it is heard");
}
