//! Relays that are open when proxies are killed or the link is cut: nothing is lost while the link comes back in time,
//! and otherwise every survivor learns it (`docs/design/delegation.md`, "Failures").

use std::sync::mpsc::{Receiver, channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use crate::common::{self, PATIENCE, Pair, Way, Which};
use abi::{Endpoint, IpcError, Message};
use ipc::{Port, Source, Wait};
use proxy_host::transport::Encryption;
use proxy_link::LinkTimes;

const WAIT: Wait = Wait::For(PATIENCE);
/// A proxy that is replaced at once is not given up.
const PATIENT_MS: u64 = 10_000;
const DOWN: Duration = Duration::from_millis(1000);
/// What a loaded machine may add.
const SLACK: Duration = Duration::from_millis(1500);

/// Where client, delegator and target are: every way in which a relay crosses the link.
const PLACES: [[Which; 3]; 6] = {
    use Which::{A, B};
    [[A, A, B], [A, B, A], [A, B, B], [B, A, A], [B, A, B], [B, B, A]]
};

/// A client whose call was relayed, and was taken by its target.
struct Relayed {
    places: [Which; 3],
    client: Endpoint,
    calling: JoinHandle<(Result<Message, IpcError>, Instant)>,
    delegator: Endpoint,
    /// It serves its lanes until somebody sends it a message.
    delegating: JoinHandle<Port>,
    target: Port,
}

impl Relayed {
    /// The servers of each way have numbers of their own.
    fn open(pair: &mut Pair, index: usize) -> Relayed {
        let places = PLACES[index];
        let [client, delegator, target] =
            [0, 1, 2].map(|role| Endpoint::new(100 + 10 * index as u32 + role).expect("a number"));
        let mut ports = [client, delegator, target].into_iter().zip(places).map(|(number, at)| pair.bind(at, number));
        let mut next = || ports.next().expect("three");
        let (mut caller, mut server, mut target_port) = (next(), next(), next());
        let calling = thread::spawn(move || {
            let result = caller.sendrec(delegator, &Message::new(1), Wait::Forever);
            (result, Instant::now())
        });
        let delegating = thread::spawn(move || {
            let request = server.rcvrqst(WAIT).expect("a request");
            server.relay(client, target, &request).expect("relayed");
            server.receive(Source::Any, WAIT).expect("told");
            server
        });
        let request = target_port.rcvrqst(WAIT).expect("passed on");
        assert_eq!((request.source, request.kind), (Some(client), 1));
        Relayed { places, client, calling, delegator, delegating, target: target_port }
    }

    fn crosses_to_target(&self) -> bool {
        self.places[1] != self.places[2]
    }
}

fn open_all(pair: &mut Pair) -> Vec<Relayed> {
    (0..PLACES.len()).map(|index| Relayed::open(pair, index)).collect()
}

/// Ends the wait of a delegator from its own node.
fn tell(pair: &mut Pair, at: Which, teller: u32, delegator: Endpoint) {
    let mut teller = pair.bind(at, Endpoint::new(teller).expect("a number"));
    teller.send(delegator, &Message::new(0), WAIT).expect("told");
}

fn relays_go_on_over_killed_proxies(way: Way) {
    let mut pair = Pair::over(way);
    let (peer_a, peer_b) = (pair.a.as_peer(), pair.b.as_peer());
    let (mut proxy_a, control_a) = pair.a.spawn_proxy(&peer_b, PATIENT_MS);
    let (mut proxy_b, _control_b) = pair.b.spawn_proxy(&peer_a, PATIENT_MS);
    control_a.wait_until_up();
    let relays = open_all(&mut pair);
    proxy_b.kill();
    let (_proxy_b, control_b) = pair.b.spawn_proxy(&peer_a, PATIENT_MS);
    control_b.wait_until_up();
    // The answers of some are on the way while the other is killed.
    let mut targets = Vec::new();
    for (index, relay) in relays.into_iter().enumerate() {
        let Relayed { places, client, calling, delegator, delegating, mut target } = relay;
        target.reply(client, &Message::new(2)).expect("the lane lives");
        targets.push(target);
        if index == 2 {
            proxy_a.kill();
            let (again, control_a) = pair.a.spawn_proxy(&peer_b, PATIENT_MS);
            proxy_a = again;
            control_a.wait_until_up();
        }
        let (answer, _) = calling.join().expect("the client is well");
        assert_eq!(answer.map(|answer| (answer.kind, answer.source)), Ok((2, Some(delegator))));
        tell(&mut pair, places[1], 20 + index as u32, delegator);
        drop(delegating.join().expect("the delegator is well"));
    }
}

/// The wire is cut without a word, so that both nodes are alive and neither hears of the other.
#[test]
fn survivors_of_a_cut_link_learn_it_while_relays_are_open() {
    if !common::can_use_namespaces() {
        return;
    }
    let mut pair = Pair::over(Way::Eth);
    let times = LinkTimes { down: DOWN, ..LinkTimes::default() };
    let _proxies = pair.start_proxies(Encryption::Tls, times);
    let relays = open_all(&mut pair);
    pair.cable().pull();
    let cut = Instant::now();
    for (index, relay) in relays.into_iter().enumerate() {
        let crosses = relay.crosses_to_target();
        let Relayed { places, client, calling, delegator, delegating, mut target } = relay;
        let (result, ended) = calling.join().expect("the client is well");
        assert_eq!(result, Err(IpcError::NoLink), "{index}");
        let told = ended - cut;
        assert!(told >= DOWN / 2 && told < DOWN + SLACK, "{index}: {told:?}");
        if crosses {
            hear_of_the_cut(&mut pair, places[2], 40 + index as u32, delegator);
        }
        let answered = settled(move || (target.reply(client, &Message::new(2)), target));
        let (answered, _target) = answered.recv_timeout(PATIENCE).expect("a reply never waits for long");
        let expected = if crosses { Err(IpcError::NotWaiting) } else { Ok(()) };
        assert_eq!(answered, expected, "{index}: a delegator that lives takes the answer and drops it");
        tell(&mut pair, places[1], 20 + index as u32, delegator);
        drop(delegating.join().expect("the delegator is well"));
    }
}

/// The two nodes give each other up each by its own clock. A node that answers a new call so has closed what was open
/// before.
fn hear_of_the_cut(pair: &mut Pair, at: Which, caller: u32, beyond: Endpoint) {
    let mut caller = pair.bind(at, Endpoint::new(caller).expect("a number"));
    assert_eq!(caller.sendrec(beyond, &Message::new(1), WAIT), Err(IpcError::NoLink));
}

/// Runs something beside, that must end.
fn settled<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Receiver<T> {
    let (done, wait) = channel();
    thread::spawn(move || done.send(work()));
    wait
}

crate::over_each_transport!(relays_go_on_over_killed_proxies);
