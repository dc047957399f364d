//! A broker with several pairs of proxies: what goes by which, and what ends with one of them. The other node is played
//! by the tests.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::thread;
use std::time::Duration;

use crate::common::DC;
use abi::PairId;
use broker::{Broker, BrokerConfig, DcOptions, Directory, Location, Privileges, ServerIdentity, Shelf, pair_of};
use broker_api::{Answer, BetweenBrokers, Errand, Message as _};
use ipc::stand_in::{LinkState, OpenIn, ProxiedChannel, StandInEvent, StandInPort};
use ipc::{Calls, DcId, Endpoint, Epoch, IpcError, Lane, Message, NodeId, Port, RingSpec, Wait};

const SOON: Wait = Wait::For(Duration::from_secs(20));
const HERE: NodeId = NodeId(1);
const THERE: NodeId = NodeId(9);
const SPEC: RingSpec = RingSpec { entries: 8, arena_bytes: 64 << 10 };
const CLIENT: Endpoint = Endpoint::RS;

/// Everybody but `CLIENT` is on the other node.
struct Far {
    ours: u8,
    theirs: Arc<AtomicU8>,
}

impl Directory for Far {
    fn locate(&mut self, _: DcId, endpoint: Endpoint) -> Location {
        if endpoint == CLIENT { Location::Unknown } else { Location::Remote { node: THERE, epoch: Epoch(1) } }
    }

    fn bound(&mut self, _: DcId, _: Endpoint, _: i32, _: Epoch) {}

    fn find(&mut self, _: DcId, _: i32) -> Option<Endpoint> {
        None
    }

    fn unbound(&mut self, _: DcId, _: Endpoint, _: Epoch) {}

    fn pairs(&self, node: NodeId) -> u8 {
        if node == HERE { self.ours } else { self.theirs.load(Ordering::SeqCst) }
    }
}

struct World {
    broker: Broker,
    theirs: Arc<AtomicU8>,
    proxies: Vec<StandInPort>,
}

impl World {
    /// With two pairs on either node, both links up.
    fn new() -> World {
        let mut world = World::with(2, None);
        world.proxies = PairId::all(2).map(|pair| world.proxy(pair)).collect();
        for proxy in &mut world.proxies {
            proxy.link(THERE, LinkState::Up).unwrap();
        }
        world
    }

    fn with(ours: u8, shelf: Option<Shelf>) -> World {
        let theirs = Arc::new(AtomicU8::new(ours));
        let directory = Box::new(Far { ours, theirs: theirs.clone() });
        let broker = Broker::start(BrokerConfig { node: HERE, directory, shelf, ..BrokerConfig::local() }).unwrap();
        broker.add_dc(DC, DcOptions::default()).unwrap();
        World { broker, theirs, proxies: Vec::new() }
    }

    fn proxy(&self, pair: PairId) -> StandInPort {
        StandInPort::from_socket(self.broker.proxy_socket_of(pair).unwrap()).unwrap()
    }

    fn client(&self) -> Port {
        let identity = ServerIdentity {
            privileges: Privileges { calls: Calls::ALL, ..Privileges::server() },
            ..ServerIdentity::new(CLIENT, Epoch(1))
        };
        Port::from_socket(self.broker.server_socket(DC, identity).unwrap(), None).unwrap()
    }

    /// Returns when the broker has read what `pair` said before.
    fn settle(&mut self, pair: usize) {
        // An answer in order after everything else.
        let nobody = OpenIn {
            dc: DC,
            caller: of_pair(pair as u8, 0),
            node: THERE,
            target: Endpoint::new(8000).unwrap(),
            lane: Lane::MESSAGES,
            ring: None,
            peer_channel: 1,
            incarnation: None,
        };
        self.proxies[pair].open_in(&nobody).unwrap();
        while !matches!(next(&mut self.proxies[pair]), StandInEvent::OpenedIn { .. }) {}
    }
}

fn pair(number: u8) -> PairId {
    PairId::new(number).unwrap()
}

/// The so-many-th endpoint of the other node with which `CLIENT` talks by that pair.
fn of_pair(number: u8, index: usize) -> Endpoint {
    let all = (300..1000).filter_map(Endpoint::new);
    all.filter(|it| pair_of(DC, CLIENT, *it, 2) == pair(number)).nth(index).unwrap()
}

fn next(proxy: &mut StandInPort) -> StandInEvent {
    proxy.wait_event(SOON).unwrap()
}

fn opened(proxy: &mut StandInPort) -> ProxiedChannel {
    loop {
        if let StandInEvent::OpenOut(channel) = next(proxy) {
            return channel;
        }
    }
}

fn resumed(proxy: &mut StandInPort) -> Vec<Endpoint> {
    let mut remotes = Vec::new();
    loop {
        match next(proxy) {
            StandInEvent::Resumed(channel) => remotes.push(channel.info().remote),
            StandInEvent::AllResumed => return remotes,
            _ => {}
        }
    }
}

/// The next errand for the other node's broker, and its number; after that which every broker gets that is met.
fn errand(proxy: &mut StandInPort) -> (u32, BetweenBrokers) {
    loop {
        if let StandInEvent::Parcel { bytes, .. } = next(proxy) {
            let said = BetweenBrokers::from_bytes(&bytes).unwrap();
            if said.1 != BetweenBrokers::DisownHolds {
                return said;
            }
        }
    }
}

#[test]
fn channels_of_two_endpoints_all_go_to_the_proxy_of_their_pair() {
    let mut world = World::new();
    let mut client = world.client();
    for number in [0, 1] {
        let to = of_pair(number, 0);
        client.notify(to, 1).unwrap();
        let _ring = client.open_ring(to, SPEC, SOON).unwrap();
        let proxy = &mut world.proxies[usize::from(number)];
        let channels = [opened(proxy), opened(proxy)];
        assert!(channels.iter().all(|channel| channel.info().remote == to));
    }
    let info = world.broker.snapshot().unwrap().dcs.remove(0);
    assert!(info.channels.iter().all(|it| it.pair == pair_of(DC, it.initiator, it.acceptor, 2)));
}

#[test]
fn pair_that_is_down_ends_its_channels_only_and_the_node_goes_with_the_last() {
    let mut world = World::new();
    let mut client = world.client();
    let (dead, alive) = (of_pair(1, 0), of_pair(0, 0));
    client.notify(dead, 1).unwrap();
    let ring = client.open_ring(dead, SPEC, SOON).unwrap();
    client.notify(alive, 1).unwrap();
    let of_alive = opened(&mut world.proxies[0]);
    thread::scope(|scope| {
        let called = scope.spawn(|| client.sendrec(dead, &Message::new(1), SOON));
        let proxy = &mut world.proxies[1];
        let _channels = [opened(proxy), opened(proxy)];
        proxy.link(THERE, LinkState::Down).unwrap();
        let closed = |event| matches!(event, StandInEvent::Closed { reason: IpcError::NoLink, .. });
        let mut left = 2;
        while left > 0 {
            left -= usize::from(closed(next(proxy)));
        }
        assert_eq!(called.join().unwrap(), Err(IpcError::NoLink));
    });
    ring.wait(SOON).unwrap();
    assert_eq!(ring.poll(), Err(IpcError::NoLink));

    // Opening is refused for that pair only, and its endpoints are bound still.
    assert_eq!(client.notify(dead, 1), Err(IpcError::NoLink));
    assert_eq!(client.notify(of_pair(1, 1), 1), Err(IpcError::NoLink));
    client.notify(of_pair(0, 1), 1).unwrap();
    let info = world.broker.snapshot().unwrap().dcs.remove(0);
    assert!(info.endpoints.iter().any(|it| it.endpoint == dead));
    assert!(info.channels.iter().any(|it| it.channel == of_alive.info().channel));

    world.proxies[0].link(THERE, LinkState::Down).unwrap();
    while !matches!(next(&mut world.proxies[0]), StandInEvent::Closed { .. }) {}
    world.settle(0);
    let info = world.broker.snapshot().unwrap().dcs.remove(0);
    assert_eq!((info.endpoints.len(), info.channels.len()), (1, 0), "{info:?}");
    assert_eq!(client.notify(alive, 1), Err(IpcError::NoLink));
}

#[test]
fn who_waits_for_an_endpoint_behind_a_dead_pair_goes_on_when_that_is_back() {
    let mut world = World::new();
    let mut client = world.client();
    world.proxies[1].link(THERE, LinkState::Down).unwrap();
    world.settle(1);
    let brief = Wait::For(Duration::from_millis(30));
    assert_eq!(client.wait4bind(of_pair(1, 0), brief), Err(IpcError::TimedOut));
    assert_eq!(client.wait4bind(of_pair(0, 0), brief), Ok(()));
    thread::scope(|scope| {
        let waiting =
            scope.spawn(|| client.wait4bind(of_pair(1, 0), SOON).and_then(|()| client.notify(of_pair(1, 0), 1)));
        while world.broker.snapshot().unwrap().dcs[0].waiters == 0 {
            thread::yield_now();
        }
        // News of the endpoint are none of the link.
        world.broker.remote_bound(DC, of_pair(1, 0), THERE, Epoch(1)).unwrap();
        assert_eq!(world.broker.snapshot().unwrap().dcs[0].waiters, 1);
        world.proxies[1].link(THERE, LinkState::Up).unwrap();
        assert_eq!(waiting.join().unwrap(), Ok(()));
    });
    assert_eq!(opened(&mut world.proxies[1]).info().remote, of_pair(1, 0));
}

#[test]
fn open_that_comes_over_another_pair_is_refused_with_no_link() {
    let mut world = World::new();
    let _client = world.client();
    let open = |number: u8| OpenIn {
        dc: DC,
        caller: of_pair(number, 0),
        node: THERE,
        target: CLIENT,
        lane: Lane::MESSAGES,
        ring: None,
        peer_channel: 5,
        incarnation: None,
    };
    let answer = |world: &mut World, over: usize, of: u8| {
        world.proxies[over].open_in(&open(of)).unwrap();
        loop {
            if let StandInEvent::OpenedIn { result, .. } = next(&mut world.proxies[over]) {
                return result.map(|_| ());
            }
        }
    };
    assert_eq!(answer(&mut world, 0, 1), Err(IpcError::NoLink));
    assert_eq!(answer(&mut world, 1, 1), Ok(()));
    assert_eq!(answer(&mut world, 0, 0), Ok(()));
    // The other node has one pair now: what is there stays, also in the way of what replaces it.
    world.theirs.store(1, Ordering::SeqCst);
    assert_eq!(answer(&mut world, 0, 1), Err(IpcError::NoLink));
    assert_eq!(world.broker.snapshot().unwrap().dcs[0].channels.len(), 2);
}

#[test]
fn errand_goes_by_the_lowest_pair_that_is_up_and_again_when_that_changes() {
    let mut world = World::new();
    let mut client = world.client();
    let server = of_pair(0, 0);
    world.settle(0);
    world.settle(1);
    thread::scope(|scope| {
        let waking = scope.spawn(|| client.wakeup(server));
        let first = errand(&mut world.proxies[0]);
        assert_eq!(first.1, BetweenBrokers::Errand { dc: DC, endpoint: server, errand: Errand::WakeUp });
        // Killed: the other pair takes over.
        drop(world.proxies.remove(0));
        assert_eq!(errand(&mut world.proxies[0]), first);
        // Its successor is asked when it has a link.
        let mut successor = world.proxy(pair(0));
        successor.link(THERE, LinkState::Up).unwrap();
        assert_eq!(errand(&mut successor), first);
        successor.link(THERE, LinkState::Down).unwrap();
        while errand(&mut world.proxies[0]) != first {}
        let done = BetweenBrokers::Answer(Answer::Done);
        world.proxies[0].parcel(THERE, &done.to_bytes(first.0)).unwrap();
        assert_eq!(waking.join().unwrap(), Ok(()));
    });
}

#[test]
fn answer_to_another_broker_goes_over_the_pair_by_which_it_asked() {
    let mut world = World::new();
    let _client = world.client();
    let ask = BetweenBrokers::Errand { dc: DC, endpoint: CLIENT, errand: Errand::GetPrivileges };
    world.proxies[1].parcel(THERE, &ask.to_bytes(77)).unwrap();
    let (request, answer) = errand(&mut world.proxies[1]);
    assert_eq!(request, 77);
    assert!(matches!(answer, BetweenBrokers::Answer(Answer::Privileges { endpoint: CLIENT, .. })), "{answer:?}");
}

#[test]
fn successor_of_a_killed_proxy_is_handed_the_channels_of_its_pair() {
    let mut world = World::new();
    let mut client = world.client();
    let (zero, one) = (of_pair(0, 0), of_pair(1, 0));
    client.notify(zero, 1).unwrap();
    client.notify(one, 1).unwrap();
    drop(world.proxies.pop());
    assert_eq!(resumed(&mut world.proxy(pair(1))), [one]);
    assert_eq!(resumed(&mut world.proxy(pair(0))), [zero]);
}
