//! A program whose calls name processes of another node, and a call gate that is killed while it answers them.
//!
//! Three processes of this test binary: the program, the call gate, and the test itself, which plays the other node.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use gate_syscall::{CallStates, JOURNAL_BYTES, KeptMemory, Listeners, News, NodeLinks, Setting};
use proc_core::caller::Uids;
use proc_core::executor::{CallResult, Executor, ProcessTable, Signal};
use proc_core::filter::{self, FilterStep};
use proc_core::order::{LifeNumber, ORDER_BYTES, OUTCOME_BYTES, Order, Outcome, Rlimit, StateQuestion};
use proc_core::permission::{Receiver, SignalError};
use proc_core::range::{Seat, Seats};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{Errno, FdFlags, fcntl_setfd};
use rustix::process::{Pid, kill_process, test_kill_process_group};
use seccompiler::sock_filter;
use serde_json::json;
use sys::spawn::Spawn;

const ROLE: &str = "DVS_GATE_SYSCALL_ROLE";
const THREADS: u32 = 16;
const CALLS_OF_A_THREAD: u32 = 2_000;
const KILLS: u32 = 200;
/// Whoever waits longer waits for ever.
const LIMIT: Duration = Duration::from_secs(60);
const LIFE: LifeNumber = LifeNumber(7);
/// Of the processes that there are, every third belongs to somebody else, and every third number is nobody's.
const KINDS: u32 = 3;

fn seat(index: usize) -> Seat {
    Seat::new(index).expect("a seat")
}

/// The node on which everything runs: its numbers are larger than any of this machine.
fn own() -> Seat {
    seat(62)
}

fn other() -> Seat {
    seat(61)
}

fn start(test: &str, role: &str, fds: &[(&str, BorrowedFd<'_>)]) -> Child {
    for (_, fd) in fds {
        fcntl_setfd(fd, FdFlags::empty()).expect("it is open");
    }
    let numbers: BTreeMap<&str, i32> = fds.iter().map(|(name, fd)| (*name, fd.as_raw_fd())).collect();
    let mut command = Command::new(std::env::current_exe().expect("this program"));
    command.args(["--exact", test, "--nocapture", "--test-threads=1"]);
    command.env(ROLE, role).env(sys::spawn::VARIABLE, json!({ "fds": numbers }).to_string());
    let child = command.stdin(Stdio::null()).stdout(Stdio::null()).spawn().expect("another process");
    for (_, fd) in fds {
        fcntl_setfd(fd, FdFlags::CLOEXEC).expect("it is open");
    }
    child
}

fn wait_for(fd: &OwnedFd) -> bool {
    let limit = Timespec { tv_sec: LIMIT.as_secs() as i64, tv_nsec: 0 };
    matches!(poll(&mut [PollFd::new(fd, PollFlags::IN)], Some(&limit)), Ok(1))
}

// ---- the program

/// Installs the filter, hands the listener over, waits until there is a gate.
fn trap(socket: &OwnedFd) {
    let load = FilterStep { code: filter::LOAD_WORD, if_true: 0, if_false: 0, operand: filter::OFFSET_NUMBER };
    let allow = FilterStep { code: filter::RETURN, if_true: 0, if_false: 0, operand: filter::ALLOW };
    let steps = [load].into_iter().chain(filter::steps(own(), filter::served())).chain([allow]);
    let program: Vec<sock_filter> = steps
        .map(|step| sock_filter { code: step.code, jt: step.if_true, jf: step.if_false, k: step.operand })
        .collect();
    let listener = sys::notify::install(&program).expect("a filter");
    sys::seqpacket::send(socket, &[1], &[listener.as_fd()]).expect("it is heard");
    assert!(wait_for(socket));
}

fn expected(number: u32) -> Result<(), Errno> {
    match number % KINDS {
        0 => Ok(()),
        1 => Err(Errno::PERM),
        _ => Err(Errno::SRCH),
    }
}

fn program() {
    let socket = Spawn::from_env().expect("a record").take_fd("socket").expect("a socket");
    trap(&socket);
    let threads: Vec<_> = (0..THREADS)
        .map(|thread| {
            std::thread::spawn(move || {
                for call in 0..CALLS_OF_A_THREAD {
                    let number = thread * CALLS_OF_A_THREAD + call;
                    let pid = Pid::from_raw((other().first_pid() + number) as i32).expect("a number");
                    let said = kill_process(pid, rustix::process::Signal::TERM);
                    assert_eq!(said, expected(number), "{number}");
                }
            })
        })
        .collect();
    threads.into_iter().for_each(|thread| thread.join().expect("right answers"));
}

// ---- the gate

struct Socket(Arc<OwnedFd>);

impl NodeLinks for Socket {
    fn send(&mut self, to: Seat, order: &Order) {
        assert_eq!(to, other());
        // Full: the other side is gone, or reads it soon.
        while sys::seqpacket::send(&*self.0, &order.encode(), &[] as &[BorrowedFd<'_>])
            .is_err_and(|cause| cause.kind() == std::io::ErrorKind::WouldBlock)
        {
            std::thread::yield_now();
        }
    }
}

fn gate() {
    let mut spawn = Spawn::from_env().expect("a record");
    let mut take = |name| spawn.take_fd(name).expect("a descriptor");
    let memory = KeptMemory::map(take("journal")).expect("a journal");
    let listeners = Listeners::default();
    listeners.insert(1, take("listener"));
    let peer = Arc::new(take("peer"));
    let setting = Setting {
        own: own(),
        others: Seats::NONE.with(other()),
        lost: Seats::NONE,
        uids: Uids { base: 0, count: u32::MAX },
        life: LifeNumber(3),
    };
    let (links, heard) = (Arc::clone(&peer), Arc::clone(&peer));
    // Nothing points at anything here; who is asked stays silent.
    let (keeper, _silent) = sys::seqpacket::pair().expect("a socket");
    let (calls, receiver, news) =
        CallStates::new(setting, &memory, listeners, keeper, None, |_, _| Ok(Socket(links))).expect("descriptors");
    calls.wake().greeted(other(), LIFE);
    std::thread::spawn(move || receiver.run());
    std::thread::spawn(move || {
        let mut bytes = [0; OUTCOME_BYTES];
        while wait_for(&heard) {
            let Ok(received) = sys::seqpacket::receive(&*heard, &mut bytes) else { return };
            let outcome = Outcome::decode(&bytes[..received.bytes]).expect("an outcome");
            news.send(News::Outcome { node: other(), outcome }).expect("it is heard");
        }
    });
    calls.run();
}

// ---- the other node

#[derive(Default)]
struct Far {
    heard: BTreeMap<u32, u32>,
}

impl ProcessTable for Far {
    type Held = u32;

    fn hold_process(&mut self, process: u32) -> Option<u32> {
        Some(process - other().first_pid()).filter(|number| number % KINDS != 2)
    }

    fn hold_thread(&mut self, _: Option<u32>, _: u32) -> Option<u32> {
        None
    }

    fn receiver(&mut self, held: &u32) -> Option<Receiver> {
        // Root of the container without its capability is a user as others.
        let uid = if held.is_multiple_of(KINDS) { 0 } else { 1 };
        Some(Receiver { uid, suid: uid, euid: uid, gids: [0; 3] })
    }

    fn members(&mut self, _: u32) -> Vec<u32> {
        Vec::new()
    }

    fn everybody(&mut self) -> Vec<u32> {
        Vec::new()
    }

    fn send(&mut self, held: &u32, signal: &Signal) -> Result<(), SignalError> {
        assert_eq!((signal.number, signal.uid), (15, 0));
        *self.heard.entry(*held).or_default() += 1;
        Ok(())
    }

    fn ask(&mut self, question: &StateQuestion) -> Result<CallResult, SignalError> {
        panic!("nobody asks here: {question:?}")
    }

    fn limits(&mut self, _: &u32, resource: u32, _: Option<Rlimit>) -> Result<Rlimit, SignalError> {
        panic!("nobody asks here: {resource}")
    }

    fn threads(&mut self, _: u32) -> Vec<u32> {
        Vec::new()
    }

    fn set_priority(&mut self, _: &u32, _: i32) -> Result<(), SignalError> {
        Err(SignalError::NoProcess)
    }
}

/// Serves one life of the gate.
fn serve(socket: &OwnedFd, executor: &Mutex<(Executor, Far)>, served: &AtomicU32) {
    let mut bytes = [0; ORDER_BYTES];
    while wait_for(socket) {
        let Ok(received) = sys::seqpacket::receive(socket, &mut bytes) else { return };
        let Ok(mut order) = Order::decode(&bytes[..received.bytes]) else { return };
        // The tests run as root, who has the capability.
        order.sender.power = proc_core::permission::Power::Own;
        let mut both = executor.lock().expect("nobody panicked");
        let (executor, far) = &mut *both;
        let outcome = executor.carry_out(&order, far);
        drop(both);
        served.fetch_add(1, Ordering::Relaxed);
        if sys::seqpacket::send(socket, &outcome.encode(), &[] as &[BorrowedFd<'_>]).is_err() {
            return;
        }
    }
}

/// The same pauses for the same seed.
fn pauses() -> impl Iterator<Item = Duration> {
    let mut state = 0x2545_f491_4f6c_dd1d_u64;
    std::iter::repeat_with(move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        Duration::from_micros(1_000 + (state >> 11) % 9_000)
    })
}

#[test]
fn every_call_is_answered_rightly_and_every_signal_heard_once_over_two_hundred_kills() {
    const TEST: &str = "every_call_is_answered_rightly_and_every_signal_heard_once_over_two_hundred_kills";
    match std::env::var(ROLE).as_deref() {
        Ok("program") => return program(),
        Ok(_) => return gate(),
        Err(_) if !rustix::process::geteuid().is_root() => return eprintln!("SKIPPED: this test needs root"),
        Err(_) => (),
    }
    let (socket, theirs) = sys::seqpacket::pair().expect("sockets");
    let mut program = start(TEST, "program", &[("socket", theirs.as_fd())]);
    drop(theirs);
    assert!(wait_for(&socket), "the program has no filter");
    let listener = sys::seqpacket::receive(&socket, &mut [0; 8]).expect("a packet").descriptors.remove(0);
    let journal = sys::memfd::create_sealed("journal", JOURNAL_BYTES as u64).expect("a journal");
    let executor = Mutex::new((Executor::new(other(), LIFE, Seats::NONE.with(own())), Far::default()));
    let served = AtomicU32::new(0);
    sys::seqpacket::send(&socket, &[1], &[] as &[BorrowedFd<'_>]).expect("it waits");

    let begun = Instant::now();
    let mut kills = 0;
    for pause in pauses() {
        let (peer, theirs) = sys::seqpacket::pair().expect("sockets");
        let fds = [("journal", journal.as_fd()), ("listener", listener.as_fd()), ("peer", theirs.as_fd())];
        let mut gate = start(TEST, "gate", &fds);
        drop(theirs);
        std::thread::scope(|scope| {
            scope.spawn(|| serve(&peer, &executor, &served));
            // It works for a while: a kill at once would only show that processes start.
            let before = served.load(Ordering::Relaxed);
            while served.load(Ordering::Relaxed) == before && program.try_wait().expect("a child").is_none() {
                assert!(begun.elapsed() < LIMIT, "nothing goes on after {kills} kills");
                std::thread::yield_now();
            }
            if kills < KILLS {
                std::thread::sleep(pause);
            } else {
                while program.try_wait().expect("a child").is_none() {
                    assert!(begun.elapsed() < LIMIT, "calls are never answered after {kills} kills");
                    std::thread::sleep(Duration::from_millis(1));
                }
            }
            gate.kill().expect("it runs");
            gate.wait().expect("its end");
            kills += 1;
        });
        if program.try_wait().expect("a child").is_some() {
            break;
        }
    }
    assert!(program.wait().expect("its end").success());
    let both = executor.lock().expect("nobody panicked");
    let heard = &both.1.heard;
    let (served, calls) = (served.load(Ordering::Relaxed), THREADS * CALLS_OF_A_THREAD);
    println!("{kills} kills, {calls} calls, {served} orders with repeats, {:?}", begun.elapsed());
    assert!(kills > 50, "the program ended after {kills} kills");
    assert_eq!(heard.values().find(|times| **times != 1), None, "heard twice");
    assert_eq!(heard.len() as u32, calls.div_ceil(KINDS));
}

#[test]
fn calls_that_concern_nobody_else_go_on_natively_and_those_to_a_lost_node_fail() {
    const TEST: &str = "calls_that_concern_nobody_else_go_on_natively_and_those_to_a_lost_node_fail";
    match std::env::var(ROLE).as_deref() {
        Ok(_) => {
            let socket = Spawn::from_env().expect("a record").take_fd("socket").expect("a socket");
            trap(&socket);
            let pid = |number: u32| Pid::from_raw(number as i32).expect("a number");
            let terminate = |number| kill_process(pid(number), rustix::process::Signal::TERM);
            // A node that is fenced, one of which nothing is heard, and one that is none of the container.
            assert_eq!(terminate(other().first_pid()), Err(Errno::SRCH));
            assert_eq!(terminate(seat(60).first_pid()), Err(Errno::HOSTUNREACH));
            assert_eq!(terminate(seat(5).first_pid()), Err(Errno::SRCH));
            // To everybody, of whom nobody elsewhere can be reached: the own node's part is the kernel's.
            assert_eq!(test_kill_process_group(pid(1)), Ok(()));
            return;
        }
        Err(_) if !rustix::process::geteuid().is_root() => return eprintln!("SKIPPED: this test needs root"),
        Err(_) => (),
    }
    struct Nowhere;
    impl NodeLinks for Nowhere {
        fn send(&mut self, _: Seat, _: &Order) {
            panic!("nobody is there");
        }
    }
    let (socket, theirs) = sys::seqpacket::pair().expect("sockets");
    let mut program = start(TEST, "program", &[("socket", theirs.as_fd())]);
    drop(theirs);
    assert!(wait_for(&socket), "the program has no filter");
    let listener = sys::seqpacket::receive(&socket, &mut [0; 8]).expect("a packet").descriptors.remove(0);
    let journal = sys::memfd::create_sealed("journal", JOURNAL_BYTES as u64).expect("a journal");
    let memory = KeptMemory::map(&journal).expect("a journal");
    let others = [other(), seat(60)].into_iter().collect();
    let lost = Seats::NONE.with(other());
    let setting = Setting { own: own(), others, lost, uids: Uids { base: 0, count: u32::MAX }, life: LifeNumber(3) };
    let listeners = Listeners::default();
    let (silent, _keeper) = sys::seqpacket::pair().expect("a socket");
    let (calls, receiver, news) =
        CallStates::new(setting, &memory, listeners.clone(), silent, None, |_, _| Ok(Nowhere)).expect("descriptors");
    // It comes when the gate runs already, as those of programs do.
    listeners.insert(1, listener);
    calls.wake().look_again();
    // Of one that is lost nobody hears that it is lost for now.
    for node in [other(), seat(60)] {
        news.send(News::GivenUp(node)).expect("it is heard");
    }
    std::thread::scope(|scope| {
        scope.spawn(|| receiver.run().expect("descriptors"));
        scope.spawn(|| calls.run());
        sys::seqpacket::send(&socket, &[1], &[] as &[BorrowedFd<'_>]).expect("it waits");
        let ended = program.wait().expect("its end");
        news.send(News::Stop).expect("it is heard");
        assert!(ended.success());
    });
}
