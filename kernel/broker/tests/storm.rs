//! Clients and servers are killed at random while everybody talks to everybody. Who survives gets an answer or a typed
//! error in time, and in the end broker and survivors hold what they held in the beginning: no descriptor, mapping,
//! channel or waiter more.
//!
//! The short run kills 200 times, the long one (`DVS_TEST_LONG`) 10,000 times. The seed is printed; `DVS_SEED` sets it.

mod common;

use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use common::OneNode;
use ipc::conformance::World;
use ipc::{Arena, Completion, Direction, Endpoint, Event, IpcError, Message, Place, Port, RingSpec, Submission, Wait};

/// The one server that survives.
const ROCK: Endpoint = Endpoint::DS;
/// Numbers of the servers that are killed.
const MORTALS: [u32; 2] = [300, 301];
const CLIENTS: usize = 4;
const SPEC: RingSpec = RingSpec { entries: 8, arena_bytes: 16 << 10 };
/// From a kill to the error at a survivor, on a machine whose processors are all busy with starting processes.
const TOLD_MAX: Duration = Duration::from_secs(2);
const SOON: Wait = Wait::For(Duration::from_secs(10));

fn mortal(index: usize) -> Endpoint {
    Endpoint::new(MORTALS[index % MORTALS.len()]).unwrap()
}

/// splitmix64
struct Chance(u64);

impl Chance {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }
}

/// Not a test: what a process does that will be killed. Started without its variables it does nothing.
#[test]
fn child_process() {
    let (Ok(role), Ok(path)) = (std::env::var("M3IPC_MORTAL"), std::env::var("M3IPC_SOCKET")) else { return };
    let seed = std::env::var("M3IPC_SEED").unwrap().parse().unwrap();
    match role.parse::<usize>().unwrap() {
        // The number may still be that of the one before, whose death the broker has not heard of yet.
        index if index < MORTALS.len() => loop {
            match Port::connect(path.as_ref(), Some(mortal(index))) {
                Ok(port) => serve_for_ever(port, Chance(seed)),
                Err(IpcError::EndpointInUse) => std::thread::sleep(Duration::from_micros(200)),
                Err(error) => panic!("{error}"),
            }
        },
        _ => call_for_ever(Port::connect(path.as_ref(), None).unwrap(), Chance(seed)),
    }
}

fn serve_for_ever(mut port: Port, mut chance: Chance) -> ! {
    let mut rings = Vec::new();
    loop {
        answer_one(&mut port, &mut rings, Wait::Forever, chance.below(1500));
    }
}

/// Serves whatever comes next; `false` when nothing came.
fn answer_one(port: &mut Port, rings: &mut Vec<ipc::RingServer>, wait: Wait, thinking_micros: u64) -> bool {
    match port.wait_event(wait) {
        Ok(Event::Message(message)) => {
            if thinking_micros > 0 {
                std::thread::sleep(Duration::from_micros(thinking_micros));
            }
            let source = message.source.unwrap();
            let _ = port.reply(source, &Message { kind: message.kind.wrapping_add(1), ..message });
        }
        Ok(Event::RingOpened(ring)) => rings.push(ring),
        Ok(Event::RingReady(id)) => {
            let Some(ring) = rings.iter().find(|ring| ring.id() == id) else { return true };
            while let Ok(Some(request)) = ring.next() {
                let answer = Completion { tag: request.tag, sequence: request.sequence, ..Completion::default() };
                let _ = ring.complete(&answer);
            }
            ring.publish();
        }
        Ok(Event::RingClosed(id, _)) => rings.retain(|ring| ring.id() != id),
        Ok(Event::Notified { .. } | Event::Woken) => {}
        Err(IpcError::TimedOut) => return false,
        Err(error) => panic!("{error}"),
    }
    true
}

fn call_for_ever(mut port: Port, mut chance: Chance) -> ! {
    let mut ring = None;
    let memory = Arena::private(4096).unwrap();
    loop {
        let to = if chance.below(3) == 0 { ROCK } else { mortal(chance.below(2) as usize) };
        // Whatever it answers: most of them die soon.
        let _ = match chance.below(8) {
            0 => port.notify(to, 1),
            1 => port.send(to, &Message::new(1), Wait::For(Duration::from_micros(chance.below(500)))),
            2 => port.open_ring(to, SPEC, Wait::For(Duration::from_millis(5))).map(|opened| ring = Some(opened)),
            3 => ask(ring.as_ref(), chance.next()),
            4 => lend(&mut port, to, &memory),
            5 => port.wait4bind(to, Wait::For(Duration::from_millis(2))),
            _ => port.sendrec(to, &Message::new(1), Wait::Forever).map(drop),
        };
    }
}

fn ask(ring: Option<&ipc::RingClient>, number: u64) -> Result<(), IpcError> {
    let Some(ring) = ring else { return Ok(()) };
    let _ = ring.submit(&Submission { tag: number as u32, sequence: number, ..Submission::default() });
    ring.publish();
    ring.wait(Wait::For(Duration::from_millis(5)))?;
    while ring.poll()?.is_some() {}
    Ok(())
}

/// Grants memory and tries to copy through a grant that nobody gave: the lane is opened all the same.
fn lend(port: &mut Port, to: Endpoint, memory: &Arena) -> Result<(), IpcError> {
    let grant = port.grant(to, memory, Direction::ReadWrite)?;
    let place = Place { owner: to, grant, offset: 0 };
    let _ = port.copy_from(place, &mut [0; 64], Wait::For(Duration::from_millis(1)));
    port.revoke(grant)
}

/// When each server was killed last.
struct Killed {
    epoch: Instant,
    /// Nanoseconds since `epoch`.
    at: [AtomicU64; MORTALS.len()],
}

fn spawn(world: &OneNode, place: usize, seed: u64) -> Child {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .args(["child_process", "--exact", "--nocapture", "--test-threads=1"])
        .env("M3IPC_MORTAL", place.to_string())
        .env("M3IPC_SOCKET", world.socket())
        .env("M3IPC_SEED", seed.to_string())
        .stdin(Stdio::null())
        .stdout(Stdio::null());
    // SAFETY: one system call with numbers, between fork and exec.
    unsafe {
        command.pre_exec(|| {
            libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
            Ok(())
        })
    };
    command.spawn().unwrap()
}

/// What the surviving client saw.
#[derive(Default)]
struct Told {
    answers: u64,
    errors: u64,
    /// From the kill to the error, where the client waited for the one that was killed.
    delays: Vec<Duration>,
    slowest_call: Duration,
}

/// Calls the servers that are killed, waiting for ever, until it is stopped; then until it has forgotten them.
fn survive_as_client(mut port: Port, killed: &Killed, stop: &AtomicBool) -> (Port, Told) {
    let epoch = killed.epoch;
    let mut told = Told::default();
    let mut turn = 0;
    while !stop.load(Ordering::SeqCst) {
        turn += 1;
        let begun = epoch.elapsed();
        let result = port.sendrec(mortal(turn), &Message::new(7), Wait::Forever);
        let ended = epoch.elapsed();
        match result {
            Ok(answer) => {
                assert_eq!(answer.kind, 8);
                told.answers += 1;
            }
            Err(IpcError::SourceDied | IpcError::DestinationDied) => {
                told.errors += 1;
                let at = Duration::from_nanos(killed.at[turn % MORTALS.len()].load(Ordering::SeqCst));
                if at > begun && at < ended {
                    told.delays.push(ended - at);
                }
            }
            Err(IpcError::NoSuchEndpoint) => std::thread::sleep(Duration::from_micros(100)),
            Err(error) => panic!("not an error of a death: {error}"),
        }
        told.slowest_call = told.slowest_call.max(ended - begun);
        assert_eq!(port.sendrec(ROCK, &Message::new(1), SOON).unwrap().kind, 2);
    }
    (port, told)
}

/// What a process holds that a channel costs.
#[derive(PartialEq, Eq, Debug)]
struct Held {
    descriptors: usize,
    mappings: usize,
    endpoints: usize,
    channels: usize,
    waiters: usize,
}

fn held(world: &OneNode) -> Held {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let dc = world.broker.snapshot().unwrap().dcs.remove(0);
    Held {
        descriptors: std::fs::read_dir("/proc/self/fd").unwrap().count(),
        mappings: maps.lines().filter(|line| line.contains("/memfd:dvs-")).count(),
        endpoints: dc.endpoints.len(),
        channels: dc.channels.len(),
        waiters: dc.waiters,
    }
}

/// Kills `kills` processes at random and starts each again, then kills them all.
fn storm(world: &OneNode, killed: &Killed, chance: &mut Chance, kills: usize) {
    let mut children: Vec<Child> =
        (0..MORTALS.len() + CLIENTS).map(|place| spawn(world, place, chance.next())).collect();
    for _ in 0..kills {
        std::thread::sleep(Duration::from_micros(chance.below(4000)));
        let place = chance.below(children.len() as u64) as usize;
        kill(&mut children[place], killed, place);
        children[place] = spawn(world, place, chance.next());
    }
    for (place, child) in children.iter_mut().enumerate() {
        kill(child, killed, place);
    }
}

fn kill(child: &mut Child, killed: &Killed, place: usize) {
    if let Some(at) = killed.at.get(place) {
        at.store(killed.epoch.elapsed().as_nanos() as u64, Ordering::SeqCst);
    }
    child.kill().unwrap();
    child.wait().unwrap();
}

/// Waits until the broker knows the survivors only, and answers what is held then.
fn held_when_quiet(world: &OneNode, survivors: usize) -> Held {
    let until = Instant::now() + Duration::from_secs(20);
    loop {
        let now = held(world);
        if (now.endpoints, now.channels, now.waiters) == (survivors, 0, 0) {
            return now;
        }
        assert!(Instant::now() < until, "left behind: {now:?}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// A storm with a server and a client that survive it.
fn survive(world: &OneNode, rock: &mut Port, chance: &mut Chance, kills: usize) -> Told {
    let (client_stops, rock_stops) = (AtomicBool::new(false), AtomicBool::new(false));
    let killed = Killed { epoch: Instant::now(), at: Default::default() };
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut rings = Vec::new();
            while !rock_stops.load(Ordering::SeqCst) {
                answer_one(rock, &mut rings, Wait::For(Duration::from_millis(50)), 0);
            }
            // What the dead and the broker still had to say.
            let until = Instant::now() + Duration::from_secs(20);
            while answer_one(rock, &mut rings, Wait::For(Duration::from_millis(100)), 0) || !rings.is_empty() {
                assert!(Instant::now() < until, "{} rings did not end", rings.len());
            }
        });
        let client = world.program();
        let calling = scope.spawn(|| survive_as_client(client, &killed, &client_stops));
        storm(world, &killed, chance, kills);
        client_stops.store(true, Ordering::SeqCst);
        let (port, told) = calling.join().unwrap();
        port.unbind().unwrap();
        rock_stops.store(true, Ordering::SeqCst);
        told
    })
}

#[test]
fn killed_at_random_clients_and_servers_leave_nothing_and_survivors_are_told() {
    let is_long = std::env::var_os("DVS_TEST_LONG").is_some();
    let kills = if is_long { 10_000 } else { 200 };
    let seed = std::env::var("DVS_SEED").map_or(u64::from(std::process::id()), |seed| seed.parse().unwrap());
    eprintln!("seed {seed} (DVS_SEED), {kills} kills");
    let mut chance = Chance(seed);
    let world = OneNode::new();
    let mut rock = world.server(ROCK, 1);
    // What grows once and stays: tables, the forked child's page, the harness's own.
    survive(&world, &mut rock, &mut chance, 20);
    let before = held_when_quiet(&world, 1);
    let begun = Instant::now();
    let mut told = survive(&world, &mut rock, &mut chance, kills);
    let after = held_when_quiet(&world, 1);
    let deaths = world.broker.snapshot().unwrap().deaths;
    told.delays.sort();
    let percentile = |percent: usize| told.delays.get(told.delays.len() * percent / 100).or(told.delays.last());
    eprintln!(
        "{kills} kills in {:?}, {deaths} of bound processes; {} answers, {} errors; told after: p50 {:?}, p99 {:?}, most {:?} of {}; {after:?}",
        begun.elapsed(),
        told.answers,
        told.errors,
        percentile(50),
        percentile(99),
        told.delays.last(),
        told.delays.len()
    );
    assert_eq!(before, after, "something is left");
    assert!(told.answers > 0 && told.errors > 0 && !told.delays.is_empty(), "the storm touched nobody");
    assert!(told.delays.last() < Some(&TOLD_MAX), "told too late");
    assert!(told.slowest_call < Duration::from_secs(10), "a call hung for {:?}", told.slowest_call);
}
