//! A service that hands itself from node to node while clients of three nodes call it.

mod common;

use std::collections::HashMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use abi::{Endpoint, Epoch, IpcError, Message, NodeId, Source};
use common::Nodes;
use ipc::{Port, Wait};
use proxy_host::transport::Encryption;

const SERVICE: Endpoint = Endpoint::DS;
const CLIENTS: usize = 16;
const SOON: Wait = Wait::For(Duration::from_secs(20));

/// What the service is, besides its endpoint: the last number of each client.
#[derive(Default)]
struct State {
    last: HashMap<Endpoint, i32>,
}

struct World<'a> {
    cluster: &'a Nodes,
    state: Mutex<State>,
    stop: AtomicBool,
    /// When the last commit began, in nanoseconds since the start; 0 once its first answer came to a client.
    committed: AtomicU64,
    start: Instant,
    gaps: Mutex<Vec<Duration>>,
}

impl World<'_> {
    fn now(&self) -> u64 {
        self.start.elapsed().as_nanos() as u64
    }

    /// Answers every request with its number and the owner's epoch, until `moves` begins; then hands itself over.
    fn own(&self, mut port: Port, calls: u32, to: Option<NodeId>) {
        let mut left = calls;
        loop {
            if left == 0
                && let Some(node) = to
            {
                match port.migration_start(SERVICE, SOON) {
                    Ok(()) => return self.hand_over(&mut port, node),
                    Err(error) => panic!("cannot be held: {error}"),
                }
            }
            match port.receive(Source::Any, SOON) {
                Ok(message) => self.answer(&mut port, &message),
                Err(error) => panic!("epoch {:?} got {error}", port.epoch()),
            }
            left = left.saturating_sub(1);
            if to.is_none() && self.stop.load(Ordering::Relaxed) && self.all_done() {
                return;
            }
        }
    }

    fn all_done(&self) -> bool {
        self.state.lock().expect("state").last.values().filter(|last| **last < 0).count() == CLIENTS
    }

    fn answer(&self, port: &mut Port, message: &Message) {
        let client = message.source.expect("a source");
        let mut state = self.state.lock().expect("state");
        let last = state.last.entry(client).or_default();
        if message.kind < 0 {
            assert_eq!(-message.kind, *last, "the end of {client}");
            *last = message.kind;
        } else {
            assert_eq!(message.kind, *last + 1, "of {client}: a message is lost, doubled or out of order");
            *last = message.kind;
        }
        drop(state);
        let mut answer = Message::new(message.kind);
        answer.payload[..8].copy_from_slice(&port.epoch().0.to_le_bytes());
        port.reply(client, &answer).expect("answered");
    }

    fn hand_over(&self, port: &mut Port, node: NodeId) {
        let pid = std::process::id() as i32;
        self.committed.store(self.now(), Ordering::Relaxed);
        loop {
            match port.migration_commit(SERVICE, node, pid, SOON) {
                Ok(()) => break,
                // The next owner has not said yet that it stands by.
                Err(IpcError::NoSuchEndpoint) => {
                    thread::yield_now();
                    self.committed.store(self.now(), Ordering::Relaxed);
                }
                Err(error) => panic!("cannot be handed over: {error}"),
            }
        }
        assert_eq!(port.receive(Source::Any, Wait::NoWait), Err(IpcError::Moved));
    }

    fn call(&self, mut client: Port) -> i32 {
        let (mut number, mut epoch) = (0, 0);
        while !self.stop.load(Ordering::Relaxed) {
            number += 1;
            let answer = client.sendrec(SERVICE, &Message::new(number), Wait::Forever).expect("no error");
            assert_eq!(answer.kind, number);
            let by = u64::from_le_bytes(answer.payload[..8].try_into().expect("8 bytes"));
            assert!(by >= epoch, "an owner before the last one answered");
            if by > epoch {
                epoch = by;
                self.first_answer(by);
            }
        }
        client.sendrec(SERVICE, &Message::new(-number), Wait::Forever).expect("no error");
        number
    }

    fn first_answer(&self, epoch: u64) {
        let mut gaps = self.gaps.lock().expect("gaps");
        // The first owner was not handed anything.
        if gaps.len() as u64 + 2 == epoch {
            let began = self.committed.load(Ordering::Relaxed);
            gaps.push(Duration::from_nanos(self.now().saturating_sub(began)));
        }
    }

    fn next(&self, index: usize) -> Port {
        Port::stand_by(&self.cluster.nodes[index].socket, SERVICE, Wait::Forever).expect("the next owner")
    }
}

fn service_hands_itself_over(moves: u64, encryption: Encryption) {
    let cluster = Nodes::linked(3, encryption);
    let world = World {
        cluster: &cluster,
        state: Mutex::default(),
        stop: AtomicBool::new(false),
        committed: AtomicU64::new(0),
        start: Instant::now(),
        gaps: Mutex::default(),
    };
    let first = cluster.server(0, SERVICE, Epoch(1));
    let calls = thread::scope(|scope| {
        let world = &world;
        let clients: Vec<_> = (0..CLIENTS)
            .map(|index| {
                let mut port = Port::connect(&cluster.nodes[index % 3].socket, None).expect("bound");
                port.wait4bind(SERVICE, SOON).expect("there");
                scope.spawn(move || world.call(port))
            })
            .collect();
        // Turn about: n1, n2, n1 and so on, each a while under load.
        let mut owner = scope.spawn(move || world.own(first, 40, Some(NodeId(2))));
        for turn in 1..=moves {
            let (place, to) = if turn % 2 == 1 { (1, NodeId(1)) } else { (0, NodeId(2)) };
            let to = (turn < moves).then_some(to);
            let next = scope.spawn(move || {
                let port = world.next(place);
                assert_eq!(port.epoch(), Epoch(turn + 1));
                world.own(port, 40, to);
            });
            owner.join().expect("it handed itself over");
            owner = next;
        }
        world.stop.store(true, Ordering::Relaxed);
        let calls: Vec<i32> = clients.into_iter().map(|client| client.join().expect("no error")).collect();
        owner.join().expect("the last owner");
        calls
    });
    assert!(calls.iter().all(|calls| *calls > 0), "every client was served: {calls:?}");
    let mut gaps = world.gaps.into_inner().expect("gaps");
    gaps.sort();
    assert!(gaps.len() as u64 >= moves * 9 / 10, "almost every owner was seen by its clients first: {}", gaps.len());
    let at = |part: usize| gaps[(gaps.len() - 1) * part / 100];
    eprintln!(
        "{moves} hand-overs, {encryption:?}, {} calls of {CLIENTS} clients on 3 nodes; commit to first answer: p50 {:?}, p90 {:?}, p99 {:?}, most {:?}",
        calls.iter().sum::<i32>(),
        at(50),
        at(90),
        at(99),
        at(100)
    );
}

#[test]
fn service_hands_itself_from_node_to_node_and_its_clients_see_nothing() {
    service_hands_itself_over(60, Encryption::Tls);
}

#[test]
fn primary_that_was_cut_off_and_comesback_is_refused_by_every_peer() {
    let mut cluster = Nodes::linked(3, Encryption::Tls);
    let mut manager = cluster.server(1, Endpoint::RS, Epoch(1));
    let mut old = cluster.server(0, SERVICE, Epoch(1));
    let mut peers = [1, 2].map(|index| Port::connect(&cluster.nodes[index].socket, None).expect("bound"));
    for peer in &mut peers {
        peer.wait4bind(SERVICE, SOON).expect("there");
        thread::scope(|scope| {
            let calling =
                scope.spawn(|| assert_eq!(peer.sendrec(SERVICE, &Message::new(1), SOON).expect("an answer").kind, 1));
            let request = old.receive(Source::Any, SOON).expect("a request");
            old.reply(request.source.expect("a source"), &request).expect("answered");
            calling.join().expect("answered");
        });
    }
    // Node 1 is cut off: neither its proxy nor its daemon hears anything.
    cluster.deaf.lock().expect("not poisoned").insert(NodeId(1));
    cluster.proxies[0] = None;
    let pid = std::process::id() as i32;
    let socket = cluster.nodes[1].socket.clone();
    let backup = thread::spawn(move || Port::stand_by(&socket, SERVICE, SOON).expect("promoted"));
    loop {
        match manager.promote(SERVICE, NodeId(2), pid, Epoch(2)) {
            Err(IpcError::NoSuchEndpoint) => thread::yield_now(),
            result => break result.expect("promoted"),
        }
    }
    let mut new = backup.join().expect("the new primary");
    assert_eq!(new.epoch(), Epoch(2));
    let back = cluster.start_proxy(0, Encryption::Tls);
    back.wait_until(|status| status.links.iter().filter(|link| link.state == common::UP).count() == 2);
    // It does not know yet that it is nobody.
    for peer in &peers {
        old.wait4bind(peer.endpoint(), SOON).expect("there");
        assert_eq!(old.send(peer.endpoint(), &Message::new(2), SOON), Err(IpcError::Fenced));
        assert_eq!(
            old.notify(peer.endpoint(), 1).and_then(|()| old.send(peer.endpoint(), &Message::new(2), SOON)),
            Err(IpcError::Fenced)
        );
    }
    thread::scope(|scope| {
        let serving = scope.spawn(|| {
            for _ in 0..2 {
                let request = new.receive(Source::Any, SOON).expect("a request");
                new.reply(request.source.expect("a source"), &Message::new(20)).expect("answered");
            }
        });
        for peer in &mut peers {
            assert_eq!(peer.sendrec(SERVICE, &Message::new(3), SOON).expect("of the new one").kind, 20);
            assert_eq!(peer.receive(Source::Any, Wait::NoWait), Err(IpcError::TimedOut));
        }
        serving.join().expect("served");
    });
    // Its daemon hears.
    cluster.nodes[0].broker.remote_bound(common::DC, SERVICE, NodeId(2), Epoch(2)).expect("told");
    assert_eq!(old.receive(Source::Any, SOON), Err(IpcError::Fenced));
}

#[test]
#[ignore = "takes a minute: test-long"]
fn service_hands_itself_over_a_thousand_times() {
    service_hands_itself_over(1000, Encryption::Tls);
    service_hands_itself_over(1000, Encryption::Plain);
}
