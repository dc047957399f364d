//! A broker that is killed and started again while its clients go on.
//!
//! The broker and the shelf are processes of their own, so that SIGKILL is what it is; so are programs that die.

mod common;

use std::io::{BufRead, BufReader, Write};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use abi::PairId;
use broker::{Broker, BrokerConfig, DcOptions, Directory, Location, Privileges, ServerIdentity, Shelf, pair_of};
use common::{DC, wait_readable};
use ipc::info::{ChannelInfo, Cursor};
use ipc::stand_in::{LinkState, OpenIn, StandInEvent, StandInPort};
use ipc::{
    Completion, DcId, Endpoint, Epoch, Event, IpcError, Lane, Message, NodeId, Port, RingSpec, Submission, Wait,
    WaitMode,
};

const SOON: Wait = Wait::For(Duration::from_secs(20));
const SPEC: RingSpec = RingSpec { entries: 8, arena_bytes: 0 };
const RING_SERVER: Endpoint = match Endpoint::new(5000) {
    Some(endpoint) => endpoint,
    None => panic!("outside the table"),
};

/// Not a test: what a child of the tests below does. Started without its variables it does nothing.
#[test]
fn child_process() {
    let (Ok(role), Ok(directory)) = (std::env::var("M3IPC_CHILD"), std::env::var("M3IPC_DIRECTORY")) else { return };
    let directory = PathBuf::from(directory);
    match role.as_str() {
        "shelf" => {
            let listener = sys::seqpacket::listen(&shelf_of(&directory), 8).unwrap();
            say("ready");
            broker::shelf::serve(listener).unwrap();
        }
        "broker" => {
            let shelf = Some(Shelf::connect(&shelf_of(&directory)).unwrap());
            let broker = Broker::start(BrokerConfig { shelf, ..BrokerConfig::local() }).unwrap();
            broker.add_dc(DC, options(&directory)).unwrap();
            say("ready");
            until_killed();
        }
        "server" => {
            let port = Port::connect(&socket_of(&directory), None).unwrap();
            say(&format!("endpoint {}", port.endpoint()));
            serve(port);
        }
        "bound" => {
            let port = Port::connect(&socket_of(&directory), None).unwrap();
            say(&format!("endpoint {}", port.endpoint()));
            until_killed();
        }
        "ring client" => {
            let mut port = Port::connect(&socket_of(&directory), None).unwrap();
            let _ring = port.open_ring(RING_SERVER, SPEC, SOON).unwrap();
            say("ready");
            until_killed();
        }
        other => panic!("no such role: {other}"),
    }
}

/// Answers requests and completes submissions, for ever. Kind 1 is taken and never answered.
fn serve(mut port: Port) {
    let mut rings = Vec::new();
    loop {
        match port.wait_event(Wait::Forever) {
            Ok(Event::Message(message)) if message.kind == 1 => say("taken"),
            Ok(Event::Message(message)) => {
                let _ = port.reply(message.source.unwrap(), &message);
            }
            Ok(Event::RingOpened(ring)) => rings.push(ring),
            Ok(Event::RingReady(id)) => {
                let ring = rings.iter().find(|ring| ring.id() == id).unwrap();
                while let Ok(Some(submission)) = ring.next() {
                    let _ = ring.complete(&Completion { tag: submission.tag, ..Completion::default() });
                }
                ring.publish();
            }
            Ok(Event::RingClosed(id, _)) => rings.retain(|ring| ring.id() != id),
            Ok(_) => {}
            Err(error) => panic!("the server failed: {error}"),
        }
    }
}

fn say(line: &str) {
    println!("\n{line}");
    std::io::stdout().flush().unwrap();
}

fn until_killed() {
    let _ = std::io::stdin().read_line(&mut String::new());
}

fn shelf_of(directory: &Path) -> PathBuf {
    directory.join("shelf")
}

fn socket_of(directory: &Path) -> PathBuf {
    directory.join("m3ipc")
}

fn options(directory: &Path) -> DcOptions {
    let program_privileges = Privileges::server();
    DcOptions { listen: Some(socket_of(directory)), program_privileges, ..DcOptions::default() }
}

/// A child that is killed and waited for in any case.
struct Program {
    child: Child,
    lines: std::io::Lines<BufReader<std::process::ChildStdout>>,
    _stdin: ChildStdin,
}

impl Program {
    fn start(directory: &Path, role: &str) -> Program {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["child_process", "--exact", "--nocapture", "--test-threads=1"])
            .env("M3IPC_CHILD", role)
            .env("M3IPC_DIRECTORY", directory)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let stdin = child.stdin.take().unwrap();
        Program { child, lines, _stdin: stdin }
    }

    fn ready(directory: &Path, role: &str) -> Program {
        let mut program = Program::start(directory, role);
        program.line_with("ready");
        program
    }

    fn bound(directory: &Path, role: &str) -> (Program, Endpoint) {
        let mut program = Program::start(directory, role);
        let number = program.line_with("endpoint ").parse().unwrap();
        (program, Endpoint::new(number).unwrap())
    }

    fn line_with(&mut self, prefix: &str) -> String {
        let found = self.lines.find_map(|line| line.unwrap().strip_prefix(prefix).map(str::to_owned));
        found.unwrap_or_else(|| panic!("the child ended without saying {prefix:?}"))
    }

    /// SIGKILL; returns when the kernel has taken everything it had.
    fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

struct Node {
    directory: tempfile::TempDir,
    broker: Program,
    _shelf: Program,
}

impl Node {
    fn new() -> Node {
        let directory = tempfile::tempdir().unwrap();
        let shelf = Program::ready(directory.path(), "shelf");
        let broker = Program::ready(directory.path(), "broker");
        Node { broker, _shelf: shelf, directory }
    }

    fn path(&self) -> &Path {
        self.directory.path()
    }

    fn port(&self) -> Port {
        Port::connect(&socket_of(self.path()), None).unwrap()
    }

    fn kill_broker(&mut self) {
        self.broker.kill();
    }

    fn start_broker(&mut self) {
        self.broker = Program::ready(self.directory.path(), "broker");
    }

    fn restart_broker(&mut self) {
        self.kill_broker();
        self.start_broker();
    }
}

/// Waits until a counter has moved on: work goes on.
fn await_progress(counter: &AtomicU64) {
    let goal = counter.load(Ordering::SeqCst) + 50;
    while counter.load(Ordering::SeqCst) < goal {
        thread::yield_now();
    }
}

#[test]
fn calls_and_rings_go_on_while_the_broker_is_killed_and_restarted() {
    let mut node = Node::new();
    let (_server, endpoint) = Program::bound(node.path(), "server");
    let (calls, requests, stop) = (AtomicU64::new(0), AtomicU64::new(0), AtomicBool::new(false));
    let (mut caller, mut client) = (node.port(), node.port());
    thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::SeqCst) {
                caller.sendrec(endpoint, &Message::new(0), SOON).unwrap();
                calls.fetch_add(1, Ordering::SeqCst);
            }
        });
        scope.spawn(|| {
            let ring = client.open_ring(endpoint, SPEC, SOON).unwrap();
            while !stop.load(Ordering::SeqCst) {
                ring.submit(&Submission::default()).unwrap();
                ring.publish();
                ring.wait(SOON).unwrap();
                assert!(ring.poll().unwrap().is_some());
                requests.fetch_add(1, Ordering::SeqCst);
            }
        });
        for _ in 0..3 {
            await_progress(&calls);
            await_progress(&requests);
            node.kill_broker();
            await_progress(&calls);
            await_progress(&requests);
            node.start_broker();
        }
        await_progress(&calls);
        await_progress(&requests);
        stop.store(true, Ordering::SeqCst);
    });
}

#[test]
fn death_after_the_restart_is_told_to_who_waits_in_a_call_and_in_a_ring() {
    let mut node = Node::new();
    let (mut server, endpoint) = Program::bound(node.path(), "server");
    let (mut caller, mut client) = (node.port(), node.port());
    let ring = client.open_ring(endpoint, SPEC, SOON).unwrap();
    thread::scope(|scope| {
        let calling = scope.spawn(|| caller.sendrec(endpoint, &Message::new(1), Wait::Forever));
        server.line_with("taken");
        node.restart_broker();
        server.kill();
        assert_eq!(calling.join().unwrap(), Err(IpcError::SourceDied));
    });
    assert_eq!(ring.wait(SOON), Ok(()));
    assert_eq!(ring.poll(), Err(IpcError::SourceDied));
}

#[test]
fn death_while_there_is_no_broker_is_told_by_the_next_one() {
    let mut node = Node::new();
    let (mut server, endpoint) = Program::bound(node.path(), "server");
    let mut caller = node.port();
    thread::scope(|scope| {
        let calling = scope.spawn(|| caller.sendrec(endpoint, &Message::new(1), Wait::Forever));
        server.line_with("taken");
        node.kill_broker();
        server.kill();
        node.start_broker();
        assert_eq!(calling.join().unwrap(), Err(IpcError::SourceDied));
    });
}

#[test]
fn client_of_a_ring_that_dies_while_there_is_no_broker_is_reported_to_its_server() {
    let mut node = Node::new();
    let mut server = Port::connect(&socket_of(node.path()), Some(RING_SERVER)).unwrap();
    let mut client = Program::ready(node.path(), "ring client");
    let Event::RingOpened(ring) = server.wait_event(SOON).unwrap() else { panic!("no ring") };
    node.kill_broker();
    client.kill();
    node.start_broker();
    match server.wait_event(SOON).unwrap() {
        Event::RingClosed(id, error) => assert_eq!((id, error), (ring.id(), IpcError::SourceDied)),
        other => panic!("{other:?}"),
    }
}

#[test]
fn wait_for_an_endpoint_goes_on_over_the_restart() {
    let mut node = Node::new();
    let (mut gone, endpoint) = Program::bound(node.path(), "bound");
    let mut waiter = node.port();
    thread::scope(|scope| {
        let unbound = scope.spawn(move || {
            let result = waiter.wait4unbind(endpoint, Wait::Forever);
            (result, waiter)
        });
        node.restart_broker();
        gone.kill();
        let (result, mut waiter) = unbound.join().unwrap();
        assert_eq!(result, Ok(()));
        let future = Endpoint::new(5000).unwrap();
        let bound = scope.spawn(move || waiter.wait4bind(future, Wait::Forever));
        node.restart_broker();
        let mut late = Port::connect(&socket_of(node.path()), Some(future)).unwrap();
        assert_eq!(bound.join().unwrap(), Ok(()));
        let mut waiter = node.port();
        let found = scope.spawn(move || waiter.find("late", Wait::Forever));
        node.restart_broker();
        late.set_name("late").unwrap();
        assert_eq!(found.join().unwrap(), Ok(future));
    });
}

#[test]
fn call_made_while_there_is_no_broker_is_answered_by_the_next_one() {
    let mut node = Node::new();
    let (_server, endpoint) = Program::bound(node.path(), "server");
    let (mut caller, mut claimer, mut seeker) = (node.port(), node.port(), node.port());
    let claimed = claimer.endpoint();
    node.kill_broker();
    thread::scope(|scope| {
        let path = socket_of(node.path());
        // Both a first contact and a new program: the broker's sockets are open although it is not there.
        let calling = scope.spawn(move || caller.sendrec(endpoint, &Message::new(0), SOON).map(|reply| reply.kind));
        let joining = scope.spawn(move || Port::connect(&path, None).map(|port| port.endpoint()));
        // Both stay until they have met.
        let claiming = scope.spawn(|| claimer.set_name("claimed"));
        let seeking = scope.spawn(|| seeker.find("claimed", SOON));
        node.start_broker();
        assert_eq!(calling.join().unwrap(), Ok(0));
        assert_eq!((claiming.join().unwrap(), seeking.join().unwrap()), (Ok(()), Ok(claimed)));
        assert!(joining.join().unwrap().is_ok());
    });
}

#[test]
fn opening_and_closing_never_fails_however_often_the_broker_is_killed() {
    let mut node = Node::new();
    let (_server, endpoint) = Program::bound(node.path(), "server");
    let (opened, stop) = (AtomicU64::new(0), AtomicBool::new(false));
    let path = socket_of(node.path());
    thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                while !stop.load(Ordering::SeqCst) {
                    let mut port = Port::connect(&path, None).unwrap();
                    port.sendrec(endpoint, &Message::new(0), SOON).unwrap();
                    let ring = port.open_ring(endpoint, SPEC, SOON).unwrap();
                    ring.submit(&Submission::default()).unwrap();
                    ring.publish();
                    ring.wait(SOON).unwrap();
                    assert!(ring.poll().unwrap().is_some());
                    opened.fetch_add(1, Ordering::SeqCst);
                }
            });
        }
        for _ in 0..12 {
            await_progress(&opened);
            node.restart_broker();
        }
        await_progress(&opened);
        stop.store(true, Ordering::SeqCst);
    });
}

/// Endpoint 2 lives on node 9, and `late` on node 8.
#[derive(Default)]
struct Elsewhere {
    late: Arc<Mutex<Option<Endpoint>>>,
    /// Of every node.
    pairs: u8,
    /// Who was bound here, with the pid that the container knows.
    bound: Arc<Mutex<Vec<(Endpoint, i32)>>>,
}

impl Directory for Elsewhere {
    fn locate(&mut self, _: DcId, endpoint: Endpoint) -> Location {
        match endpoint {
            Endpoint::DS => Location::Remote { node: NodeId(9), epoch: Epoch(4) },
            _ if Some(endpoint) == *self.late.lock().unwrap() => Location::Remote { node: NodeId(8), epoch: Epoch(1) },
            _ => Location::Unknown,
        }
    }

    fn bound(&mut self, _: DcId, endpoint: Endpoint, pid: i32, _: Epoch) {
        self.bound.lock().unwrap().push((endpoint, pid));
    }

    fn find(&mut self, _: DcId, _: i32) -> Option<Endpoint> {
        None
    }

    fn unbound(&mut self, _: DcId, _: Endpoint, _: Epoch) {}

    fn pairs(&self, _: NodeId) -> u8 {
        self.pairs
    }
}

fn broker_of_two_nodes(directory: &Path) -> Broker {
    broker_with_pairs(directory, 1)
}

fn broker_with_pairs(directory: &Path, pairs: u8) -> Broker {
    broker_with(directory, Elsewhere { pairs, ..Elsewhere::default() })
}

fn broker_with(path: &Path, directory: Elsewhere) -> Broker {
    let shelf = Some(Shelf::connect(&shelf_of(path)).unwrap());
    let config = BrokerConfig { directory: Box::new(directory), shelf, ..BrokerConfig::local() };
    let broker = Broker::start(config).unwrap();
    broker.add_dc(DC, options(path)).unwrap();
    broker
}

#[test]
fn proxied_channels_of_the_last_broker_are_handed_to_a_new_proxy() {
    let directory = tempfile::tempdir().unwrap();
    let _shelf = Program::ready(directory.path(), "shelf");
    let broker = broker_of_two_nodes(directory.path());
    let mut caller = Port::connect(&socket_of(directory.path()), None).unwrap();
    caller.notify(Endpoint::DS, 5).unwrap();
    // Ends like a kill: nothing is taken from the shelf.
    broker.shutdown();
    let broker = broker_of_two_nodes(directory.path());
    assert_eq!(broker.snapshot().unwrap().dcs[0].channels[0].proxied, Some(NodeId(9)));
    let mut proxy = StandInPort::from_socket(broker.proxy_socket().unwrap()).unwrap();
    let StandInEvent::Resumed(channel) = proxy.wait_event(SOON).unwrap() else { panic!("not handed over") };
    assert_eq!(channel.pending_notification(), Some((1, 5)));
    proxy.remote_gone(DC, Endpoint::DS, NodeId(9), IpcError::NoLink).unwrap();
    loop {
        if let StandInEvent::Closed { reason, .. } = proxy.wait_event(SOON).unwrap() {
            break assert_eq!(reason, IpcError::NoLink);
        }
    }
}

#[test]
fn channel_stays_with_its_pair_over_the_restart_and_goes_to_the_first_when_there_are_fewer() {
    let directory = tempfile::tempdir().unwrap();
    let _shelf = Program::ready(directory.path(), "shelf");
    let second = PairId::new(1).unwrap();
    let broker = broker_with_pairs(directory.path(), 2);
    let _proxy = StandInPort::from_socket(broker.proxy_socket_of(second).unwrap()).unwrap();
    let is_of_second = |port: &Port| pair_of(DC, port.endpoint(), Endpoint::DS, 2) == second;
    let connect = || Port::connect(&socket_of(directory.path()), None).unwrap();
    let (mut others, mut caller) = (Vec::new(), connect());
    while !is_of_second(&caller) {
        others.push(std::mem::replace(&mut caller, connect()));
    }
    caller.notify(Endpoint::DS, 5).unwrap();
    let pair_kept = |broker: &Broker| broker.snapshot().unwrap().dcs[0].channels[0].pair;
    let first_event = |broker: &Broker, pair| {
        StandInPort::from_socket(broker.proxy_socket_of(pair).unwrap()).unwrap().wait_event(SOON).unwrap()
    };
    broker.shutdown();
    let broker = broker_with_pairs(directory.path(), 2);
    assert_eq!(pair_kept(&broker), second);
    assert!(matches!(first_event(&broker, PairId::FIRST), StandInEvent::AllResumed));
    assert!(matches!(first_event(&broker, second), StandInEvent::Resumed(_)));
    broker.shutdown();
    let broker = broker_with_pairs(directory.path(), 1);
    assert_eq!(pair_kept(&broker), PairId::FIRST);
    assert!(matches!(first_event(&broker, PairId::FIRST), StandInEvent::Resumed(_)));
}

#[test]
fn link_that_is_down_is_down_for_the_next_broker_and_the_others_are_not() {
    let directory = tempfile::tempdir().unwrap();
    let _shelf = Program::ready(directory.path(), "shelf");
    let second = PairId::new(1).unwrap();
    let broker = broker_with_pairs(directory.path(), 2);
    let mut proxy = StandInPort::from_socket(broker.proxy_socket_of(second).unwrap()).unwrap();
    proxy.link(NodeId(9), LinkState::Down).unwrap();
    let callers: Vec<_> = (0..20).map(|_| Port::connect(&socket_of(directory.path()), None).unwrap()).collect();
    let try_all = |mut callers: Vec<Port>| {
        callers.iter_mut().for_each(|caller| {
            let is_down = pair_of(DC, caller.endpoint(), Endpoint::DS, 2) == second;
            let expected = if is_down { Err(IpcError::NoLink) } else { Ok(()) };
            assert_eq!(caller.notify(Endpoint::DS, 1), expected, "endpoint {}", caller.endpoint());
        });
    };
    // An answer in order after what the proxy said.
    let target = callers[0].endpoint();
    let (caller, node, lane) = (Endpoint::DS, NodeId(9), Lane(99));
    let nobody = OpenIn { dc: DC, caller, node, target, lane, ring: None, peer_channel: 1, incarnation: None };
    proxy.open_in(&nobody).unwrap();
    while !matches!(proxy.wait_event(SOON).unwrap(), StandInEvent::OpenedIn { .. }) {}
    broker.shutdown();
    let _broker = broker_with_pairs(directory.path(), 2);
    try_all(callers);
}

/// What a proxy published and was killed before it woke anybody for.
#[test]
fn completion_put_by_a_killed_proxy_reaches_a_client_that_sleeps() {
    let directory = tempfile::tempdir().unwrap();
    let _shelf = Program::ready(directory.path(), "shelf");
    let broker = broker_of_two_nodes(directory.path());
    let mut proxy = StandInPort::from_socket(broker.proxy_socket().unwrap()).unwrap();
    assert!(matches!(proxy.wait_event(SOON).unwrap(), StandInEvent::AllResumed));
    let mut client = Port::connect(&socket_of(directory.path()), None).unwrap();
    client.set_wait_mode(WaitMode::Park);
    let ring = client.open_ring(Endpoint::DS, SPEC, SOON).unwrap();
    let StandInEvent::OpenOut(channel) = proxy.wait_event(SOON).unwrap() else { panic!("not told of the ring") };
    ring.submit(&Submission { tag: 7, ..Submission::default() }).unwrap();
    ring.publish();
    let (said, thread_id) = std::sync::mpsc::channel();
    thread::scope(|scope| {
        let waiting = scope.spawn(|| {
            said.send(rustix::thread::gettid()).unwrap();
            let began = Instant::now();
            ring.wait(SOON).unwrap();
            (ring.poll().unwrap().map(|completion| completion.tag), began.elapsed())
        });
        await_sleep(thread_id.recv().unwrap());
        // Without a `kick`: here it is killed.
        channel.put_completion(&Completion { tag: 7, ..Completion::default() }).unwrap();
        drop((channel, proxy));
        let mut next = StandInPort::from_socket(broker.proxy_socket().unwrap()).unwrap();
        let StandInEvent::Resumed(_channel) = next.wait_event(SOON).unwrap() else { panic!("not handed over") };
        let (tag, elapsed) = waiting.join().unwrap();
        assert_eq!(tag, Some(7));
        assert!(elapsed < Duration::from_secs(10), "found by the time-out alone, after {elapsed:?}");
    });
}

/// Returns when a thread of this process sleeps on a futex.
fn await_sleep(thread: rustix::thread::Pid) {
    let number = libc::SYS_futex_waitv.to_string();
    let limit = Instant::now() + Duration::from_secs(10);
    let path = format!("/proc/self/task/{}/syscall", thread.as_raw_nonzero());
    while std::fs::read_to_string(&path).unwrap_or_default().split(' ').next() != Some(&number) {
        assert!(Instant::now() < limit, "it does not sleep");
        thread::yield_now();
    }
}

#[test]
fn server_keeps_its_identity_and_its_privileges_over_the_restart() {
    let directory = tempfile::tempdir().unwrap();
    let _shelf = Program::ready(directory.path(), "shelf");
    let broker = broker_of_two_nodes(directory.path());
    let identity = ServerIdentity::new(Endpoint::FS, Epoch(7));
    let mut server = Port::from_socket(broker.server_socket(DC, identity.clone()).unwrap(), None).unwrap();
    let unused = broker.server_socket(DC, ServerIdentity::new(Endpoint::RS, Epoch(1))).unwrap();
    broker.shutdown();
    let broker = broker_of_two_nodes(directory.path());
    let info = broker.snapshot().unwrap().dcs.remove(0);
    assert_eq!((info.endpoints[0].endpoint, info.endpoints[0].epoch), (Endpoint::FS, Epoch(7)));
    let again = Port::from_socket(broker.server_socket(DC, identity).unwrap(), None);
    assert_eq!(again.unwrap_err(), IpcError::EndpointInUse);
    // A manager's right, and a socket handed out before and used after.
    let mut manager = Port::from_socket(unused, None).unwrap();
    assert_eq!(server.wakeup(Endpoint::RS), Ok(()));
    assert_eq!(manager.receive(ipc::Source::Any, SOON), Err(IpcError::WokenUp));
    // A program of the last broker whose number is free again keeps its epochs rising.
    broker.remove_dc(DC).unwrap();
    assert!(!socket_of(directory.path()).exists());
    broker.shutdown();
    let broker = Broker::start(BrokerConfig {
        shelf: Some(Shelf::connect(&shelf_of(directory.path())).unwrap()),
        ..BrokerConfig::local()
    })
    .unwrap();
    assert!(broker.snapshot().unwrap().dcs.is_empty(), "what was removed stays removed");
}

/// A server is outside the container, which knows no pid of it; programs are found by theirs.
#[test]
fn directory_is_told_the_same_pids_after_the_restart() {
    let directory = tempfile::tempdir().unwrap();
    let _shelf = Program::ready(directory.path(), "shelf");
    let started = || {
        let bound = Arc::<Mutex<Vec<_>>>::default();
        (broker_with(directory.path(), Elsewhere { pairs: 1, bound: bound.clone(), ..Elsewhere::default() }), bound)
    };
    let (broker, bound) = started();
    let identity = ServerIdentity::new(Endpoint::FS, Epoch(1));
    let _server = Port::from_socket(broker.server_socket(DC, identity).unwrap(), None).unwrap();
    let program = Port::connect(&socket_of(directory.path()), None).unwrap();
    let before = bound.lock().unwrap().clone();
    assert_eq!(before, [(Endpoint::FS, 0), (program.endpoint(), std::process::id() as i32)]);
    broker.shutdown();
    let (_broker, bound) = started();
    let mut after = bound.lock().unwrap().clone();
    after.sort_by_key(|(endpoint, _)| *endpoint);
    assert_eq!(after, before);
}

#[test]
fn patient_calls_wait_for_a_proxy_that_is_expected_no_more() {
    let path = tempfile::tempdir().unwrap();
    let late = Arc::<Mutex<Option<Endpoint>>>::default();
    let directory = Box::new(Elsewhere { pairs: 1, late: late.clone(), ..Elsewhere::default() });
    let unmanned_max = Duration::from_millis(20);
    let broker = Broker::start(BrokerConfig { directory, unmanned_max, ..BrokerConfig::local() }).unwrap();
    broker.add_dc(DC, options(path.path())).unwrap();
    let mut caller = Port::connect(&socket_of(path.path()), None).unwrap();
    let until = Instant::now() + Duration::from_secs(10);
    // As long as one may come, the endpoint counts as there.
    while caller.wait4bind(Endpoint::DS, Wait::For(Duration::from_millis(50))) != Err(IpcError::TimedOut) {
        assert!(Instant::now() < until, "it counts as there without a proxy");
    }
    assert_eq!(caller.sendrec(Endpoint::DS, &Message::new(1), SOON).unwrap_err(), IpcError::NoLink);
    let mut other = Port::connect(&socket_of(path.path()), None).unwrap();
    thread::scope(|scope| {
        let opening = scope.spawn(|| caller.open_ring(Endpoint::DS, SPEC, SOON).map(drop));
        let opening_late = scope.spawn(|| other.open_ring(Endpoint::PM, SPEC, SOON).map(drop));
        while broker.snapshot().unwrap().dcs[0].waiters < 2 {
            assert!(Instant::now() < until + Duration::from_secs(10), "they do not wait");
            thread::yield_now();
        }
        // Of a node that nobody here has met.
        *late.lock().unwrap() = Some(Endpoint::PM);
        broker.remote_bound(DC, Endpoint::PM, NodeId(8), Epoch(1)).unwrap();
        let mut proxy = StandInPort::from_socket(broker.proxy_socket().unwrap()).unwrap();
        for node in [NodeId(9), NodeId(8)] {
            proxy.link(node, LinkState::Up).unwrap();
        }
        for _ in 0..2 {
            while !matches!(proxy.wait_event(SOON).unwrap(), StandInEvent::OpenOut(_)) {}
        }
        assert_eq!((opening.join().unwrap(), opening_late.join().unwrap()), (Ok(()), Ok(())));
    });
}

#[test]
fn shelf_that_dies_is_replaced_and_the_broker_can_then_be() {
    let directory = tempfile::tempdir().unwrap();
    let mut shelf = Program::ready(directory.path(), "shelf");
    let broker = broker_of_two_nodes(directory.path());
    let mut first = Port::connect(&socket_of(directory.path()), None).unwrap();
    let mut second = Port::connect(&socket_of(directory.path()), None).unwrap();
    first.notify(second.endpoint(), 1).unwrap();
    shelf.kill();
    let _shelf = Program::ready(directory.path(), "shelf");
    broker.change_shelf(Shelf::connect(&shelf_of(directory.path())).unwrap()).unwrap();
    broker.shutdown();
    let broker = broker_of_two_nodes(directory.path());
    let info = broker.snapshot().unwrap().dcs.remove(0);
    assert_eq!((info.endpoints.len(), info.channels.len()), (2, 1));
    assert!(matches!(second.wait_event(SOON).unwrap(), Event::Notified { mask: 1, .. }));
    first.wait4bind(second.endpoint(), SOON).unwrap();
}

#[test]
fn shelf_gives_up_a_broker_that_sends_garbage_and_keeps_what_it_had() {
    let directory = tempfile::tempdir().unwrap();
    let _shelf = Program::ready(directory.path(), "shelf");
    let broker = broker_of_two_nodes(directory.path());
    broker.shutdown();
    let socket = sys::seqpacket::connect(&shelf_of(directory.path())).unwrap();
    sys::seqpacket::send(&socket, &[0xff; 9], &[] as &[OwnedFd]).unwrap();
    wait_readable(&socket);
    assert!(matches!(sys::seqpacket::receive(&socket, &mut [0; 8]), Ok(received) if received.bytes == 0));
    let broker = broker_of_two_nodes(directory.path());
    assert_eq!(broker.snapshot().unwrap().dcs.len(), 1);
}

#[test]
fn what_a_manager_said_outlives_the_broker() {
    let directory = tempfile::tempdir().unwrap();
    let _shelf = Program::ready(directory.path(), "shelf");
    let broker = broker_of_two_nodes(directory.path());
    let identity = ServerIdentity::new(Endpoint::PM, Epoch(1));
    let mut manager = Port::from_socket(broker.server_socket(DC, identity).unwrap(), None).unwrap();
    let mut program = Port::connect(&socket_of(directory.path()), None).unwrap();
    let alone = broker::Privileges { to: broker::Peers::none(), ..broker::Privileges::program() };
    manager.set_privileges(program.endpoint(), &alone).unwrap();
    let kept = manager.bind_for(std::process::id() as i32, None).unwrap();
    broker.shutdown();
    let _broker = broker_of_two_nodes(directory.path());
    assert_eq!(manager.privileges(program.endpoint()), Ok(alone));
    assert_eq!(program.notify(Endpoint::PM, 1), Err(IpcError::Denied));
    assert_eq!(Port::connect(&socket_of(directory.path()), None).map(|port| port.endpoint()), Ok(kept));
}

#[test]
fn next_broker_tells_of_every_channel_and_counts_those_whose_memory_it_has() {
    let directory = tempfile::tempdir().unwrap();
    let _shelf = Program::ready(directory.path(), "shelf");
    let broker = broker_of_two_nodes(directory.path());
    let mut caller = Port::connect(&socket_of(directory.path()), None).unwrap();
    let neighbour = Port::connect(&socket_of(directory.path()), None).unwrap();
    let notified = |caller: &mut Port| {
        for peer in [neighbour.endpoint(), Endpoint::DS] {
            caller.notify(peer, 1).unwrap();
        }
        let channels = caller.channels_info(None, Cursor::START, 9).unwrap().records;
        let counts = |it: &ChannelInfo| (it.right, it.counts.map(|[left, _]| left.notifications));
        channels.iter().map(counts).collect::<Vec<_>>()
    };
    assert_eq!(notified(&mut caller), [(neighbour.endpoint(), Some(1)), (Endpoint::DS, Some(1))]);
    broker.shutdown();
    let _broker = broker_of_two_nodes(directory.path());
    assert_eq!(notified(&mut caller), [(neighbour.endpoint(), None), (Endpoint::DS, Some(2))]);
}

/// Two calls that wait for each other over a third: told to a broker that is killed before it can say so.
#[test]
fn deadlock_is_found_by_the_next_broker() {
    let mut node = Node::new();
    let mut ports: Vec<Port> = (0..3).map(|_| node.port()).collect();
    ports.sort_by_key(Port::endpoint);
    let [low, middle, high] = <[Port; 3]>::try_from(ports).unwrap();
    let numbers = [low.endpoint(), middle.endpoint(), high.endpoint()];
    thread::scope(|scope| {
        let mut waiting = Vec::new();
        for (mut port, to) in [(low, numbers[1]), (middle, numbers[2])] {
            waiting.push(scope.spawn(move || port.sendrec(to, &Message::new(1), Wait::Forever)));
        }
        // Both have told of their waits when this one ends at its limit.
        let mut high = high;
        let limit = Wait::For(Duration::from_millis(50));
        assert_eq!(high.sendrec(numbers[0], &Message::new(1), limit), Err(IpcError::TimedOut));
        node.restart_broker();
        assert_eq!(high.sendrec(numbers[0], &Message::new(1), Wait::Forever), Err(IpcError::Deadlock));
        drop(high);
        for call in waiting {
            let ended = call.join().unwrap();
            assert!(matches!(ended, Err(IpcError::SourceDied | IpcError::DestinationDied)), "{ended:?}");
        }
    });
}
