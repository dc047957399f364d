//! Nobody makes the broker hold more descriptors than its part, and a broker that has none left goes on.
//!
//! The limit of this process is lowered, for the broker in it. A test that takes all of it runs alone: there is one
//! test.

mod common;
#[allow(dead_code)] // The attackers use the rest.
#[path = "hostile/honest.rs"]
mod honest;

use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use broker::limits::{
    CONNECTION_DESCRIPTORS, DESCRIPTOR_PARTS, DESCRIPTORS_OF_PROCESS, DESCRIPTORS_OF_USER, LINES_DESCRIPTORS,
};
use common::OneNode;
use honest::{Honest, SERVER};
use ipc::conformance::World;
use ipc::{Arena, Direction, Endpoint, Event, GrantId, IpcError, Message, Place, Port, RingClient, RingSpec, Wait};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

const SOON: Wait = Wait::For(Duration::from_secs(10));
/// For the broker and all else of this process.
const LIMIT: usize = 2048;
const PART: usize = LIMIT / DESCRIPTOR_PARTS;
/// Of one endpoint to another.
const RINGS_EACH: usize = 8;
const SPEC: RingSpec = RingSpec { entries: 1, arena_bytes: 0 };
const NO_ROOM: IpcError = IpcError::Os(libc::EMFILE);

fn set_limit(limit: u64) {
    let maximum = getrlimit(Resource::Nofile).maximum;
    setrlimit(Resource::Nofile, Rlimit { current: Some(maximum.map_or(limit, |most| limit.min(most))), maximum })
        .unwrap();
}

/// Not a test: a member that takes whatever it gets, says how much and why not more, and stays.
#[test]
fn child_process() {
    let (Ok(wish), Ok(path)) = (std::env::var("M3IPC_WISH"), std::env::var("M3IPC_SOCKET")) else { return };
    set_limit(u64::MAX);
    let connect = || Port::connect(path.as_ref(), None);
    if wish == "to be called" {
        return be_called(connect().unwrap());
    }
    if wish == "to have few" {
        return have_few(connect().unwrap());
    }
    if wish == "to copy with few" {
        return copy_with_few(connect().unwrap());
    }
    let called = wish.strip_prefix("rings to ").map(|number| Endpoint::new(number.parse().unwrap()).unwrap());
    let (mut ports, mut rings) = (Vec::new(), Vec::new());
    let refused = take_all(connect, called, &mut ports, &mut rings).unwrap_err();
    say(&format!("{} {} {refused:?}", ports.len(), rings.len()));
    let _ = std::io::stdin().read_line(&mut String::new());
}

fn take_all(
    connect: impl Fn() -> Result<Port, IpcError>,
    called: Option<Endpoint>,
    ports: &mut Vec<Port>,
    rings: &mut Vec<RingClient>,
) -> Result<(), IpcError> {
    loop {
        let mut port = connect()?;
        for called in called.iter().flat_map(|called| [*called; RINGS_EACH]) {
            rings.push(port.open_ring(called, SPEC, SOON)?);
        }
        ports.push(port);
    }
}

/// Takes every ring until the test ends it.
fn be_called(mut port: Port) {
    say(&port.endpoint().to_string());
    let mut rings = Vec::new();
    loop {
        if let Ok(Event::RingOpened(ring)) = port.wait_event(Wait::Forever) {
            rings.push(ring);
        }
    }
}

/// From now on there is no room for a channel.
fn leave_few() {
    let next = File::open("/dev/null").unwrap();
    set_limit(next.as_raw_fd() as u64 + 3);
}

/// Has no room for what is opened to it until it is told to have.
fn have_few(mut port: Port) {
    leave_few();
    say(&port.endpoint().to_string());
    let told = std::thread::spawn(|| std::io::stdin().read_line(&mut String::new()).unwrap());
    while !told.is_finished() {
        assert_eq!(port.rcvrqst(Wait::For(Duration::from_millis(20))).unwrap_err(), IpcError::TimedOut);
    }
    set_limit(u64::MAX);
    say("room");
    let request = port.rcvrqst(SOON).unwrap();
    port.reply(request.source.unwrap(), &request).unwrap();
    // The broker is still there.
    assert_eq!(port.wait4bind(SERVER, SOON), Ok(()));
    say("an answer");
}

/// Copies from who asks it to, first without room for the lane.
fn copy_with_few(mut port: Port) {
    say(&port.endpoint().to_string());
    let request = port.rcvrqst(SOON).unwrap();
    let owner = request.source.unwrap();
    let place = Place { owner, grant: GrantId::from_number(request.word(0)), offset: 0 };
    leave_few();
    assert_eq!(port.copy_from(place, &mut [0; 8], SOON), Err(NO_ROOM));
    set_limit(u64::MAX);
    assert_eq!(port.copy_from(place, &mut [0; 8], SOON), Ok(()));
    port.reply(owner, &request).unwrap();
}

fn say(what: &str) {
    println!("took {what}");
    std::io::stdout().flush().unwrap();
}

struct Member(Child, BufReader<std::process::ChildStdout>);

impl Member {
    fn wishing(world: &OneNode, wish: &str) -> Member {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["child_process", "--exact", "--nocapture", "--test-threads=1"])
            .env("M3IPC_WISH", wish)
            .env("M3IPC_SOCKET", world.socket())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap());
        Member(child, lines)
    }

    fn said(&mut self) -> String {
        let mut lines = self.1.by_ref().lines().map(Result::unwrap);
        lines.find_map(|line| line.split_once("took ").map(|(_, rest)| rest.to_owned())).expect("it says what it took")
    }

    fn tell(&mut self, what: &str) {
        writeln!(self.0.stdin.as_mut().unwrap(), "{what}").unwrap();
    }

    /// What it made the broker hold; more was refused as it should be.
    fn took(&mut self) -> usize {
        let said = self.said();
        let words: Vec<&str> = said.split(' ').collect();
        assert_eq!(words[2], "TableFull");
        let [connections, rings] = [0, 1].map(|index| words[index].parse::<usize>().unwrap());
        connections * CONNECTION_DESCRIPTORS + rings * LINES_DESCRIPTORS
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn member_that_wants_all_descriptors_gets_its_part_and_the_broker_goes_on_without_any() {
    set_limit(LIMIT as u64);
    let world = OneNode::new();
    let honest = Honest::start(&world);
    process_and_user_are_bounded(&world, &honest, "connections", 0);
    let mut called = Member::wishing(&world, "to be called");
    let wish = format!("rings to {}", called.said());
    process_and_user_are_bounded(&world, &honest, &wish, CONNECTION_DESCRIPTORS);
    drop(called);
    opener_hears_that_a_process_has_no_room(&world);
    lane_that_its_opener_had_no_room_for_is_given_back(&world);
    broker_without_descriptors_waits_for_some(&world, &honest);
    honest.stop();
}

fn process_and_user_are_bounded(world: &OneNode, honest: &Honest, wish: &str, others: usize) {
    let (of_process, of_user) = (DESCRIPTORS_OF_PROCESS * PART, DESCRIPTORS_OF_USER * PART);
    // The honest client's connection and its two channels: it is the same user.
    let ours = CONNECTION_DESCRIPTORS + 2 * LINES_DESCRIPTORS + others;
    // As much as a connection with its rings is refused at once.
    let step = CONNECTION_DESCRIPTORS + RINGS_EACH * LINES_DESCRIPTORS;
    let mut first = Member::wishing(world, wish);
    let held = first.took();
    assert!((of_process - step..=of_process).contains(&held), "{held}");
    honest.go_on();
    let mut second = Member::wishing(world, wish);
    let all = held + ours + second.took();
    assert!((of_user - step..=of_user).contains(&all), "{all}");
    honest.go_on();
    // A server is not a member.
    drop(world.server(Endpoint::DS, 1));
    drop((first, second));
    let until = Instant::now() + Duration::from_secs(10);
    let mut newcomer = loop {
        match Port::connect(&world.socket(), None) {
            Ok(port) => break port,
            Err(error) => assert!(error == IpcError::TableFull && Instant::now() < until, "{error}"),
        }
    };
    assert_eq!(newcomer.sendrec(SERVER, &Message::new(1), SOON).unwrap().kind, 2);
    drop(newcomer);
    only_endpoints_are_left(world, 2 + others / CONNECTION_DESCRIPTORS);
}

/// With the two channels of the honest.
fn only_endpoints_are_left(world: &OneNode, count: usize) {
    let until = Instant::now() + Duration::from_secs(10);
    loop {
        let dc = world.broker.snapshot().unwrap().dcs.remove(0);
        if (dc.endpoints.len(), dc.channels.len()) == (count, 2) {
            return;
        }
        assert!(Instant::now() < until, "somebody left {dc:?}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

fn opener_hears_that_a_process_has_no_room(world: &OneNode) {
    let mut few = Member::wishing(world, "to have few");
    let called = Endpoint::new(few.said().parse().unwrap()).unwrap();
    let mut client = Port::connect(&world.socket(), None).unwrap();
    assert_eq!(client.sendrec(called, &Message::new(1), SOON).unwrap_err(), NO_ROOM);
    let ring = client.open_ring(called, SPEC, SOON).unwrap();
    assert_eq!((ring.wait(SOON), ring.poll()), (Ok(()), Err(NO_ROOM)));
    few.tell("to have room");
    assert_eq!(few.said(), "room");
    assert_eq!(client.sendrec(called, &Message::new(3), SOON).unwrap().kind, 3);
    assert_eq!(few.said(), "an answer");
}

fn lane_that_its_opener_had_no_room_for_is_given_back(world: &OneNode) {
    let mut few = Member::wishing(world, "to copy with few");
    let copier = Endpoint::new(few.said().parse().unwrap()).unwrap();
    let mut owner = Port::connect(&world.socket(), None).unwrap();
    let memory = Arena::private(8).unwrap();
    let grant = owner.grant(copier, &memory, Direction::Read).unwrap();
    owner.sendrec(copier, &Message::new(1).with_word(0, grant.number()), SOON).unwrap();
}

fn broker_without_descriptors_waits_for_some(world: &OneNode, honest: &Honest) {
    let clock = broker_clock();
    let mut all = Vec::new();
    while let Ok(file) = File::open("/dev/null") {
        all.push(file);
    }
    // For the socket of who connects; the broker finds none for its end.
    all.pop();
    let (path, begun) = (world.socket(), spent(&clock));
    let newcomer = std::thread::spawn(move || {
        let socket = sys::seqpacket::connect(&path).unwrap();
        Port::from_socket(socket, None).map(|port| port.endpoint())
    });
    let from = Instant::now();
    while from.elapsed() < Duration::from_millis(500) {
        honest.go_on();
    }
    let used = spent(&clock) - begun;
    assert!(used < Duration::from_millis(100), "the broker spins: {used:?} of {:?}", from.elapsed());
    drop(all);
    match newcomer.join().unwrap() {
        // It lives in the same process, and the broker may have taken the first that were given back.
        Err(IpcError::Os(libc::EMFILE)) => drop(Port::connect(&world.socket(), None).unwrap()),
        bound => drop(bound.unwrap()),
    }
}

/// Tells the processor time of the broker's thread, without a descriptor more.
fn broker_clock() -> File {
    let mut tasks = std::fs::read_dir("/proc/self/task").unwrap().map(|task| task.unwrap().path());
    let is_broker = |task: &std::path::PathBuf| {
        std::fs::read_to_string(task.join("comm")).is_ok_and(|name| name.trim() == "broker")
    };
    File::open(tasks.find(is_broker).expect("the broker has a thread").join("schedstat")).unwrap()
}

fn spent(clock: &File) -> Duration {
    let mut text = [0; 64];
    let bytes = clock.read_at(&mut text, 0).unwrap();
    let first = std::str::from_utf8(&text[..bytes]).unwrap().split(' ').next().unwrap().parse();
    Duration::from_nanos(first.unwrap())
}
