//! What a proxy sees of its channels.

use std::num::NonZeroU64;
use std::os::fd::OwnedFd;
use std::thread;
use std::time::{Duration, Instant};

use crate::common::{DC, TwoNodes, wait_readable};
use abi::copy::{Chunk, Request};
use abi::limits::{COPY_CHUNK_BYTES, COPY_ENTRIES};
use abi::{Epoch, Lane, NodeId};
use broker_api::{Answer, BetweenBrokers, Errand, FromProxy, MESSAGE_BYTES_MAX, Message as _, Pid, ToProxy};
use ipc::conformance::World;
use ipc::stand_in::{Carried, Indices, LinkState, OpenIn, ProxiedChannel, Settled, StandInEvent, StandInPort};
use ipc::{Arena, Direction, Endpoint, Event, IpcError, Message, Port, RingSpec, Source, Submission, Wait};
use ipc_core::{ChannelId, Data, Kind, Timing, Word};

const SOON: Wait = Wait::For(Duration::from_secs(20));

/// A client has opened a channel to a server of the other node; the test is the proxy of its own.
struct Opened {
    client: Port,
    proxy: StandInPort,
    channel: ProxiedChannel,
    _server: Port,
    _world: TwoNodes,
}

impl Opened {
    fn by_a_notification() -> Opened {
        let mut world = TwoNodes::new();
        let server = world.server(Endpoint::DS, 1);
        let mut client = world.program();
        world.stop_relay();
        let mut proxy = StandInPort::from_socket(world.brokers[0].proxy_socket().unwrap()).unwrap();
        client.notify(Endpoint::DS, 1).unwrap();
        let channel = loop {
            if let StandInEvent::OpenOut(channel) = proxy.wait_event(SOON).unwrap() {
                break channel;
            }
        };
        Opened { client, proxy, channel, _server: server, _world: world }
    }
}

#[test]
fn what_rang_the_descriptor_of_a_proxy_that_slept_is_seen_with_its_next_look() {
    let Opened { mut client, mut proxy, channel, _server, _world } = Opened::by_a_notification();
    for bit in 1..20 {
        // About to sleep: all that was new has been seen.
        while let Ok(event) = proxy.wait_event(Wait::NoWait) {
            assert!(matches!(event, StandInEvent::Active(_)));
        }
        assert_eq!(proxy.wait_event(Wait::NoWait).unwrap_err(), IpcError::TimedOut);
        client.notify(Endpoint::DS, 1 << bit).unwrap();
        wait_readable(proxy.fd());
        proxy.look_at_descriptors_next();
        let Some(StandInEvent::Active(active)) = proxy.look().unwrap() else { panic!("not seen") };
        assert_eq!(active, channel.info().channel);
    }
}

#[test]
fn proxy_ends_no_channel_of_others() {
    let mut world = TwoNodes::new();
    world.stop_relay();
    let (mut near, mut client) = (world.near_server(Endpoint::FS, 1), world.program());
    let ring = client.open_ring(Endpoint::FS, RingSpec { entries: 8, arena_bytes: 0 }, SOON).unwrap();
    let Event::RingOpened(opened) = near.wait_event(SOON).unwrap() else { panic!("no ring") };
    let channel = world.brokers[0].snapshot().unwrap().dcs[0].channels[0].channel;
    let mut proxy = StandInPort::from_socket(world.brokers[0].proxy_socket().unwrap()).unwrap();
    for reason in [IpcError::TableFull, IpcError::NoLink] {
        proxy.close(channel, reason).unwrap();
    }
    // An answer in order after what the proxy said.
    let (caller, node, target, lane) = (Endpoint::DS, NodeId(2), Endpoint::PM, Lane::MESSAGES);
    let nobody = OpenIn { dc: DC, caller, node, target, lane, ring: None, peer_channel: 1, incarnation: None };
    proxy.open_in(&nobody).unwrap();
    while !matches!(proxy.wait_event(SOON).unwrap(), StandInEvent::OpenedIn { .. }) {}
    ring.submit(&Submission::default()).unwrap();
    ring.publish();
    assert!(matches!(near.wait_event(SOON).unwrap(), Event::RingReady(_)));
    assert!(opened.next().unwrap().is_some());
    assert_eq!((ring.is_closed(), opened.is_closed()), (None, None));
}

#[test]
fn opener_hears_that_its_proxy_has_no_room_for_the_channel() {
    let mut world = TwoNodes::new();
    let _server = world.server(Endpoint::DS, 1);
    let mut client = world.program();
    world.stop_relay();
    let proxy = world.brokers[0].proxy_socket().unwrap();
    let say = |message: FromProxy| sys::seqpacket::send(&proxy, &message.to_bytes(0), &[] as &[OwnedFd]).unwrap();
    say(FromProxy::Link { node: NodeId(2), state: LinkState::Up });
    let no_room = IpcError::Os(rustix::io::Errno::MFILE.raw_os_error());
    let refuse_next = || {
        loop {
            wait_readable(&proxy);
            let mut buffer = [0; MESSAGE_BYTES_MAX];
            let received = sys::seqpacket::receive(&proxy, &mut buffer).unwrap();
            if let (_, ToProxy::Accepted(offer)) = ToProxy::from_bytes(&buffer[..received.bytes]).unwrap() {
                return say(FromProxy::Close { channel: offer.channel, reason: no_room });
            }
        }
    };
    thread::scope(|scope| {
        let calling = scope.spawn(|| client.sendrec(Endpoint::DS, &Message::new(1), SOON));
        refuse_next();
        assert_eq!(calling.join().unwrap().unwrap_err(), no_room);
    });
    let ring = client.open_ring(Endpoint::DS, RingSpec { entries: 8, arena_bytes: 0 }, SOON).unwrap();
    refuse_next();
    assert_eq!((ring.wait(SOON), ring.poll()), (Ok(()), Err(no_room)));
}

fn carried(word: Word) -> Carried {
    Carried { word: word.raw(), kind: 1, payload: [0; 56], inline: Vec::new() }
}

#[test]
fn message_behind_one_that_nobody_took_is_of_a_far_side_that_keeps_no_rule() {
    let Opened { channel, client: _client, proxy: _proxy, _server, _world } = Opened::by_a_notification();
    let first = Word::after(0, Kind::Send, Timing::Untimed, Data::None);
    let second = Word::after(first.raw(), Kind::Send, Timing::Untimed, Data::None);
    assert_eq!(channel.publish(&carried(first)), Ok(()));
    assert_eq!(channel.publish(&carried(second)), Err(IpcError::Corrupt));
    assert_eq!(channel.withdraw(first.raw()), Some(Settled::Withdrawn));
    assert_eq!(channel.publish(&carried(second)), Ok(()));
}

/// Its receiver may be copying it.
#[test]
fn slot_of_a_request_that_was_taken_back_is_cleared_before_it_is_written_anew() {
    let Opened { channel, client: _client, proxy: _proxy, _server, _world } = Opened::by_a_notification();
    let first = Word::after(0, Kind::Request, Timing::Untimed, Data::None);
    assert_eq!(channel.publish(&carried(first)), Ok(()));
    assert_eq!(channel.withdraw(first.raw()), Some(Settled::Withdrawn));
    assert_eq!(channel.published(), first.raw());
    // As far as a reply comes that nobody awaits.
    assert_eq!(channel.publish(&carried(Word::reply_to(first, Data::None))), Err(IpcError::NotWaiting));
    assert_eq!(channel.published(), 0);
    assert_eq!(channel.withdraw(first.raw()), Some(Settled::Withdrawn), "as for what never came");
    let next = Word::after(first.raw(), Kind::Request, Timing::Untimed, Data::None);
    assert_eq!(channel.publish(&carried(next)), Ok(()));
    assert_eq!(channel.published(), next.raw());
}

/// Both nodes opened the same channel at once, and the lower endpoint's stays.
#[test]
fn notifications_in_a_channel_that_gives_way_come_over_the_one_that_stays() {
    let Opened { mut client, mut proxy, channel: loser, _server, _world } = Opened::by_a_notification();
    let from_there = OpenIn {
        dc: DC,
        caller: Endpoint::DS,
        node: loser.info().node,
        target: client.endpoint(),
        lane: Lane::MESSAGES,
        ring: None,
        peer_channel: 1,
        incarnation: None,
    };
    proxy.open_in(&from_there).unwrap();
    let winner = loop {
        if let StandInEvent::OpenedIn { result, .. } = proxy.wait_event(SOON).unwrap() {
            break result.unwrap();
        }
    };
    assert_eq!(loser.pending_notification(), None);
    assert_eq!(winner.pending_notification(), Some((1, 1)));
    winner.confirm_notification(1);
    // The client has not heard of it yet.
    client.notify(Endpoint::DS, 2).unwrap();
    assert_eq!(loser.pending_notification(), None);
    assert_eq!(winner.pending_notification(), Some((2, 2)));
}

/// Nobody answers for the other node, so the endpoint has left its owner and cannot arrive.
#[test]
fn owner_that_has_been_let_go_may_give_up_its_commit_which_goes_on() {
    let mut world = TwoNodes::new();
    world.stop_relay();
    let (node, place) = world.near();
    let mut owner = world.near_server(Endpoint::DS, 1);
    let mut proxy = StandInPort::from_socket(world.brokers[0].proxy_socket().unwrap()).unwrap();
    proxy.link(NodeId(2), LinkState::Up).unwrap();
    let standing = thread::spawn(move || Port::stand_by(&place, Endpoint::DS, SOON).map(|port| port.epoch()));
    owner.migration_start(Endpoint::DS, SOON).unwrap();
    let pid = std::process::id() as i32;
    let begun = Instant::now();
    let given_up = loop {
        match owner.migration_commit(Endpoint::DS, node, pid, Wait::For(Duration::from_millis(200))) {
            Err(IpcError::NoSuchEndpoint) => thread::yield_now(),
            result => break result,
        }
    };
    assert_eq!(given_up, Err(IpcError::TimedOut));
    assert!(begun.elapsed() < Duration::from_secs(8), "{:?}", begun.elapsed());
    proxy.link(NodeId(2), LinkState::Down).unwrap();
    assert_eq!(standing.join().unwrap(), Ok(Epoch(2)));
}

/// What our broker says next to the one that the test plays, after that which it says to everybody it meets.
fn said(proxy: &mut StandInPort) -> (u32, BetweenBrokers) {
    loop {
        if let StandInEvent::Parcel { bytes, .. } = proxy.wait_event(SOON).unwrap() {
            let said = BetweenBrokers::from_bytes(&bytes).unwrap();
            if said.1 != BetweenBrokers::DisownHolds {
                return said;
            }
        }
    }
}

fn errand(errand: Errand) -> BetweenBrokers {
    BetweenBrokers::Errand { dc: DC, endpoint: Endpoint::DS, errand }
}

fn commit(pid: i32) -> Errand {
    Errand::MigrationCommit { node: THERE, pid: Pid::new(pid).unwrap() }
}

const DONE: BetweenBrokers = BetweenBrokers::Answer(Answer::Done);

/// The errands that a commit makes of another broker.
const PREPARE: fn(&BetweenBrokers) -> bool =
    |it| matches!(it, BetweenBrokers::Errand { errand: Errand::Prepare { .. }, .. });
const LEAVE: fn(&BetweenBrokers) -> bool =
    |it| matches!(it, BetweenBrokers::Errand { errand: Errand::Leave { .. }, .. });
const TAKE_OVER: fn(&BetweenBrokers) -> bool =
    |it| matches!(it, BetweenBrokers::Errand { errand: Errand::TakeOver { .. }, .. });
const NOWHERE: fn(&BetweenBrokers) -> bool = |it| matches!(it, BetweenBrokers::MovedTo { to: None, .. });

/// A broker whose endpoint DS another one hands over, which the test plays together with that one's proxy.
struct Asking {
    world: TwoNodes,
    proxy: StandInPort,
}

const THERE: NodeId = NodeId(2);

impl Asking {
    fn new() -> Asking {
        let mut world = TwoNodes::new();
        world.stop_relay();
        let mut proxy = StandInPort::from_socket(world.brokers[0].proxy_socket().unwrap()).unwrap();
        proxy.link(THERE, LinkState::Up).unwrap();
        Asking { world, proxy }
    }

    /// An owner that waits for messages until it ends.
    fn owner(&mut self, epoch: u64) -> thread::JoinHandle<Result<i32, IpcError>> {
        let mut owner = self.world.near_server(Endpoint::DS, epoch);
        thread::spawn(move || owner.receive(Source::Any, SOON).map(|message| message.kind))
    }

    fn say(&mut self, node: NodeId, request: u32, message: &BetweenBrokers) {
        self.proxy.parcel(node, &message.to_bytes(request)).unwrap();
    }

    fn tell(&mut self, request: u32, of: Errand) {
        self.say(THERE, request, &errand(of));
    }

    fn start(&mut self, request: u32, holder: u32) {
        self.tell(request, Errand::MigrationStart { holder });
    }

    fn disown(&mut self, request: u32) {
        self.say(THERE, request, &BetweenBrokers::DisownHolds);
        assert_eq!(self.answer(), (request, Ok(())));
    }

    fn done(&mut self, errand: u32) {
        self.say(THERE, errand, &DONE);
    }

    fn failed(&mut self, errand: u32, error: IpcError) {
        self.say(THERE, errand, &BetweenBrokers::Answer(Answer::Failed { error }));
    }

    fn answer(&mut self) -> (u32, Result<(), IpcError>) {
        match said(&mut self.proxy) {
            (request, BetweenBrokers::Answer(Answer::Done)) => (request, Ok(())),
            (request, BetweenBrokers::Answer(Answer::Failed { error })) => (request, Err(error)),
            said => panic!("{said:?} is no answer"),
        }
    }

    fn errand(&mut self, is_it: fn(&BetweenBrokers) -> bool) -> u32 {
        let (request, errand) = said(&mut self.proxy);
        assert!(is_it(&errand), "{errand:?}");
        assert_ne!(request, 0, "it is to be answered");
        request
    }
}

#[test]
fn hold_is_that_of_one_process_and_ends_when_its_broker_knows_of_none() {
    let mut asking = Asking::new();
    let waiting = asking.owner(1);
    asking.start(1, 5);
    assert_eq!(asking.answer(), (1, Ok(())));
    asking.start(3, 6);
    assert_eq!(asking.answer(), (3, Err(IpcError::Busy)), "another process of that node");
    asking.start(4, 5);
    assert_eq!(asking.answer(), (4, Ok(())), "the same once more");
    asking.disown(2);
    asking.start(5, 6);
    assert_eq!(asking.answer(), (5, Err(IpcError::Busy)), "what was said before it was held does not mean it");
    asking.disown(6);
    asking.start(7, 6);
    assert_eq!(asking.answer(), (7, Ok(())));
    asking.disown(8);
    asking.world.program().send(Endpoint::DS, &Message::new(9), SOON).unwrap();
    assert_eq!(waiting.join().unwrap(), Ok(9));
}

#[test]
fn rollback_that_comes_again_takes_back_what_it_meant_and_nothing_later() {
    let mut asking = Asking::new();
    let waiting = asking.owner(1);
    asking.start(1, 5);
    assert_eq!(asking.answer(), (1, Ok(())));
    asking.tell(2, Errand::MigrationRollback);
    assert_eq!(asking.answer(), (2, Ok(())));
    asking.start(3, 6);
    assert_eq!(asking.answer(), (3, Ok(())));
    // Its answer was lost with its link.
    asking.tell(2, Errand::MigrationRollback);
    assert_eq!(asking.answer(), (2, Ok(())), "answered as before");
    asking.start(4, 5);
    assert_eq!(asking.answer(), (4, Err(IpcError::Busy)), "still held");
    asking.tell(5, Errand::MigrationRollback);
    assert_eq!(asking.answer(), (5, Ok(())));
    asking.world.program().send(Endpoint::DS, &Message::new(9), SOON).unwrap();
    assert_eq!(waiting.join().unwrap(), Ok(9));
}

#[test]
fn asker_hears_that_the_owner_was_replaced_that_it_would_hand_over() {
    let mut asking = Asking::new();
    // It waits for nothing, so it does not say that it is drained.
    let owner = asking.world.near_server(Endpoint::DS, 1);
    asking.start(1, 5);
    // Errands are heard in their order: when the second one is answered, the first one is under way.
    asking.start(2, 6);
    assert_eq!(asking.answer(), (2, Err(IpcError::Busy)));
    let broker = &asking.world.brokers[0];
    broker.remote_bound(DC, Endpoint::DS, THERE, Epoch(9)).unwrap();
    assert_eq!(asking.answer(), (1, Err(IpcError::DestinationDied)));
    drop(owner);
}

#[test]
fn caller_whose_open_is_refused_is_not_taken_for_bound() {
    let mut asking = Asking::new();
    let _server = asking.world.near_server(Endpoint::DS, 1);
    let open = OpenIn {
        dc: DC,
        caller: Endpoint::new(2000).unwrap(),
        node: THERE,
        target: Endpoint::DS,
        lane: Lane(abi::limits::LANES_PER_PAIR),
        ring: None,
        peer_channel: 5,
        incarnation: None,
    };
    asking.proxy.open_in(&open).unwrap();
    let refused = loop {
        if let StandInEvent::OpenedIn { result, .. } = asking.proxy.wait_event(SOON).unwrap() {
            break result.map(drop);
        }
    };
    assert_eq!(refused, Err(IpcError::BadArgument));
    let bound: Vec<Endpoint> =
        asking.world.brokers[0].snapshot().unwrap().dcs[0].endpoints.iter().map(|it| it.endpoint).collect();
    assert_eq!(bound, [Endpoint::DS]);
}

#[test]
fn late_answer_to_a_step_is_none_to_the_same_step_of_the_next_migration() {
    let mut asking = Asking::new();
    let mut owner = asking.world.near_server(Endpoint::DS, 1);
    owner.migration_start(Endpoint::DS, SOON).unwrap();
    asking.tell(3, commit(77));
    let late = asking.errand(PREPARE);
    // It ends with a commit under way.
    drop(owner);
    assert_eq!(asking.answer(), (3, Err(IpcError::DestinationDied)));
    let waiting = asking.owner(2);
    asking.start(4, 0);
    assert_eq!(asking.answer(), (4, Ok(())));
    asking.tell(5, commit(78));
    let prepare = asking.errand(PREPARE);
    asking.failed(late, IpcError::NoSuchEndpoint);
    asking.done(prepare);
    let leave = asking.errand(LEAVE);
    asking.done(leave);
    let take_over = asking.errand(TAKE_OVER);
    // Answers that come twice are none either.
    asking.done(leave);
    asking.failed(prepare, IpcError::NoSuchEndpoint);
    asking.done(take_over);
    assert_eq!(asking.answer(), (5, Ok(())));
    assert_eq!(waiting.join().unwrap(), Err(IpcError::Moved));
}

#[test]
fn node_that_let_go_is_told_that_nobody_took_over_until_it_has_heard_it() {
    let third = NodeId(3);
    let mut asking = Asking::new();
    asking.proxy.link(third, LinkState::Up).unwrap();
    let waiting = asking.owner(1);
    asking.start(1, 0);
    assert_eq!(asking.answer(), (1, Ok(())));
    asking.tell(2, commit(77));
    let prepare = asking.errand(PREPARE);
    asking.done(prepare);
    for node in [THERE, third] {
        let leave = asking.errand(LEAVE);
        asking.say(node, leave, &DONE);
    }
    let take_over = asking.errand(TAKE_OVER);
    asking.failed(take_over, IpcError::NoSuchEndpoint);
    let news = asking.errand(NOWHERE);
    assert_eq!(asking.answer(), (2, Err(IpcError::DestinationDied)));
    assert_eq!(waiting.join().unwrap(), Err(IpcError::Moved));
    // It was lost with its link.
    asking.proxy.link(third, LinkState::Up).unwrap();
    let again = asking.errand(NOWHERE);
    assert_eq!(again, news);
    asking.say(third, news, &DONE);
    asking.proxy.link(third, LinkState::Up).unwrap();
    asking.tell(2, commit(77));
    assert_eq!(asking.answer(), (2, Err(IpcError::DestinationDied)), "and nothing more of it before");
}

#[test]
fn commit_that_is_asked_for_again_after_its_answer_was_lost_is_answered_as_before() {
    let mut world = TwoNodes::new();
    world.stop_relay();
    let mut owner = world.near_server(Endpoint::DS, 1);
    let mut proxy = StandInPort::from_socket(world.brokers[0].proxy_socket().unwrap()).unwrap();
    proxy.link(THERE, LinkState::Up).unwrap();
    let waiting = thread::spawn(move || owner.receive(Source::Any, SOON).map(drop));
    proxy.parcel(THERE, &errand(Errand::MigrationStart { holder: 0 }).to_bytes(1)).unwrap();
    assert_eq!(said(&mut proxy), (1, DONE));
    proxy.parcel(THERE, &errand(commit(77)).to_bytes(2)).unwrap();
    for is_step in [PREPARE, LEAVE, TAKE_OVER] {
        let (request, asked) = said(&mut proxy);
        assert!(is_step(&asked), "{asked:?}");
        proxy.parcel(THERE, &DONE.to_bytes(request)).unwrap();
    }
    assert_eq!(said(&mut proxy), (2, DONE));
    assert_eq!(waiting.join().unwrap(), Err(IpcError::Moved));

    proxy.parcel(THERE, &errand(commit(77)).to_bytes(2)).unwrap();
    assert_eq!(said(&mut proxy), (2, DONE));
    // One that nobody asked for before.
    proxy.parcel(THERE, &errand(commit(78)).to_bytes(3)).unwrap();
    let refused = BetweenBrokers::Answer(Answer::Failed { error: IpcError::BadArgument });
    assert_eq!(said(&mut proxy), (3, refused));
}

/// Its page is made anew whenever it opens something, since nobody but its own first message told of it.
#[test]
fn grant_is_for_the_process_that_used_it_and_for_no_later_one_of_its_number() {
    let world = {
        let mut world = TwoNodes::new();
        world.stop_relay();
        world
    };
    let mut proxy = StandInPort::from_socket(world.brokers[0].proxy_socket().unwrap()).unwrap();
    let (mut owner, mut ends_it) = (world.program(), world.program());
    let own = owner.endpoint();
    let stranger = Endpoint::new(1300).unwrap();
    let memory = Arena::private(6).unwrap();
    let grant = owner.grant(stranger, &memory, Direction::Read).unwrap();
    let read = Request::Read(Chunk { grant, offset: 0, bytes: 6, whole_end: 6 }).to_submission(1, 0);
    let mut reads_as = |incarnation: u64| {
        let lane = Lane::copies(stranger, own);
        let ring = Some(RingSpec { entries: COPY_ENTRIES, arena_bytes: COPY_ENTRIES * COPY_CHUNK_BYTES });
        let incarnation = NonZeroU64::new(incarnation);
        let node = NodeId(2);
        let open = OpenIn { dc: DC, caller: stranger, node, target: own, lane, ring, peer_channel: 1, incarnation };
        proxy.open_in(&open).unwrap();
        let channel = loop {
            if let StandInEvent::OpenedIn { result, .. } = proxy.wait_event(SOON).unwrap() {
                break result.unwrap();
            }
        };
        channel.put_submission(&read).unwrap();
        channel.kick();
        while channel.completions().unwrap() == (Indices { head: 0, tail: 0 }) {
            proxy.wait_event(SOON).unwrap();
        }
        let status = channel.completion(0).unwrap().status;
        proxy.close(channel.info().channel, IpcError::SourceDied).unwrap();
        while !matches!(proxy.wait_event(SOON).unwrap(), StandInEvent::Closed { .. }) {}
        status
    };
    thread::scope(|scope| {
        let owner = scope.spawn(move || owner.receive(Source::Any, SOON).unwrap());
        assert_eq!([7, 7, 8, 7].map(&mut reads_as), [0, 0, IpcError::Revoked.code(), 0]);
        ends_it.send(own, &Message::new(1), SOON).unwrap();
        owner.join().unwrap();
    });
}

#[test]
fn proxy_does_not_wait_for_a_broker_that_does_not_read_and_says_all_when_it_does() {
    let (ours, broker) = sys::seqpacket::pair().unwrap();
    let mut proxy = StandInPort::from_socket(ours).unwrap();
    let began = Instant::now();
    let mut said: Vec<FromProxy> = Vec::new();
    for channel in 1..=1000 {
        proxy.parcel(THERE, &[1]).unwrap();
        proxy.close(ChannelId(channel), IpcError::SourceDied).unwrap();
    }
    proxy.link(THERE, LinkState::Up).unwrap();
    assert!(began.elapsed() < Duration::from_secs(2), "{:?}", began.elapsed());
    let mut buffer = [0; MESSAGE_BYTES_MAX];
    while said.len() < 2001 {
        match sys::seqpacket::receive(&broker, &mut buffer) {
            Ok(received) => said.push(FromProxy::from_bytes(&buffer[..received.bytes]).unwrap().1),
            Err(_) => {
                assert_eq!(proxy.wait_event(Wait::For(Duration::from_millis(1))).unwrap_err(), IpcError::TimedOut)
            }
        }
    }
    let closed = said.iter().filter_map(|message| match message {
        FromProxy::Close { channel, .. } => Some(channel.0),
        _ => None,
    });
    assert!(closed.eq(1..=1000), "in order");
    assert_eq!(said.last(), Some(&FromProxy::Link { node: THERE, state: LinkState::Up }));
    // More than it keeps of what may be lost.
    let mut parcels = (0..20_000).map(|_| proxy.parcel(THERE, &[1]));
    assert_eq!(parcels.find(Result::is_err), Some(Err(IpcError::TableFull)));
    proxy.link(THERE, LinkState::Down).unwrap();
}
