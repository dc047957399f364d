//! A service that hands itself from a process on one node to a process on another, and back, while clients of three
//! nodes call it.

#[path = "../handover/service.rs"]
mod service;

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::thread;
use std::time::Duration;

use crate::common::{self, Nodes};
use abi::{Endpoint, Epoch, IpcError, Message, NodeId, Source};
use ipc::{Port, Wait};
use proxy_host::transport::Encryption;
use service::{CLIENTS, EPOCH, IS_SENT, Move, Running, SERVICE, SOON, now};

/// Of so many messages one is a plain `send`; the others ask for an answer.
const SENDS_ONE_OF: i32 = 4;

/// Not a test: a process of the service.
#[test]
fn service_process() {
    service::main();
}

/// When the first answer of each owner came to a client.
type FirstAnswers = Mutex<BTreeMap<u64, Duration>>;

/// Sends and calls until the last owner has answered, and says how often.
fn use_service(mut client: Port, last: u64, first_answers: &FirstAnswers) -> i32 {
    let (mut number, mut epoch) = (0, 0);
    while epoch < last {
        number += 1;
        if number % SENDS_ONE_OF == 0 {
            let message = Message::new(number).with_word(IS_SENT, 1);
            client.send(SERVICE, &message, Wait::Forever).expect("no error");
            continue;
        }
        let by = call(&mut client, number);
        assert!(by >= epoch, "an owner before the last one answered");
        if by > epoch {
            epoch = by;
            first_answers.lock().expect("first answers").entry(epoch).or_insert_with(now);
        }
    }
    call(&mut client, -number);
    number
}

/// The epoch of the owner that answered.
fn call(client: &mut Port, number: i32) -> u64 {
    let answer = client.sendrec(SERVICE, &Message::new(number), Wait::Forever).expect("no error");
    assert_eq!((answer.source, answer.kind), (Some(SERVICE), number), "of nobody else, and to this call");
    answer.word(EPOCH)
}

fn service_hands_itself_over(moves: u64, encryption: Encryption) {
    let cluster = Nodes::linked(3, encryption);
    let mut manager = cluster.server(0, Endpoint::RS, Epoch(1));
    let start = |index: usize| {
        let node = &cluster.nodes[index];
        Running::start(node.id, &node.socket, moves, "handover::service_process")
    };
    let (mut one, mut two) = (start(0), start(1));
    one.tell_of(&two);
    two.tell_of(&one);
    promote(&mut manager, one.node, one.pid, Epoch(1));

    let first_answers = FirstAnswers::default();
    let calls: Vec<i32> = thread::scope(|scope| {
        let first_answers = &first_answers;
        let clients: Vec<_> = (0..CLIENTS)
            .map(|index| {
                let mut port = Port::connect(&cluster.nodes[index % 3].socket, None).expect("bound");
                port.wait4bind(SERVICE, SOON).expect("there");
                scope.spawn(move || use_service(port, moves + 1, first_answers))
            })
            .collect();
        clients.into_iter().map(|client| client.join().expect("no error")).collect()
    });
    assert!(calls.iter().all(|calls| *calls > 0), "every client was served: {calls:?}");
    let handed: BTreeMap<u64, Move> = one.moves().into_iter().chain(two.moves()).collect();
    assert!(handed.keys().copied().eq(2..=moves + 1), "each hand-over once");
    let first_answers = first_answers.into_inner().expect("first answers");
    let since = |when: fn(&Move) -> Duration| -> Vec<Duration> {
        let seen =
            handed.iter().filter_map(|(epoch, begun)| Some(first_answers.get(epoch)?.saturating_sub(when(begun))));
        seen.collect()
    };
    let committed = since(|begun| begun.committed);
    assert!(committed.len() as u64 >= moves * 9 / 10, "almost every owner was seen by clients: {}", committed.len());
    eprintln!(
        "{moves} hand-overs between two processes, {encryption:?}, {} messages of {CLIENTS} clients on 3 nodes; to the first \
         answer, from commit: {}; from the beginning of the hold: {}",
        calls.iter().sum::<i32>(),
        spread(committed),
        spread(since(|begun| begun.held)),
    );
}

fn spread(mut times: Vec<Duration>) -> String {
    times.sort();
    let at = |part: usize| times[(times.len() - 1) * part / 100];
    format!("p50 {:?}, p90 {:?}, p99 {:?}, most {:?}", at(50), at(90), at(99), at(100))
}

/// Asks until it stands by.
fn promote(manager: &mut Port, node: NodeId, pid: i32, epoch: Epoch) {
    loop {
        match manager.promote(SERVICE, node, pid, epoch) {
            Err(IpcError::NoSuchEndpoint) => thread::yield_now(),
            result => return result.expect("promoted"),
        }
    }
}

#[test]
fn service_hands_itself_from_node_to_node_and_its_clients_see_nothing() {
    service_hands_itself_over(60, Encryption::Tls);
}

#[test]
fn primary_that_was_cut_off_and_comes_back_is_refused_by_every_peer() {
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
    promote(&mut manager, NodeId(2), pid, Epoch(2));
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
#[ignore = "takes a quarter of a minute on an idle machine: test-long"]
fn service_hands_itself_over_a_thousand_times() {
    service_hands_itself_over(1000, Encryption::Tls);
    service_hands_itself_over(1000, Encryption::Plain);
}
