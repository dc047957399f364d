//! What becomes of the channels of a proxy that is gone.

use std::thread;
use std::time::{Duration, Instant};

use crate::common::{DC, TwoNodes};
use abi::{Lane, NodeId};
use ipc::conformance::World;
use ipc::stand_in::{LinkState, OpenIn, StandInEvent, StandInPort};
use ipc::{Endpoint, IpcError, Message, Source, Wait};

const SOON: Wait = Wait::For(Duration::from_secs(20));
const THERE: NodeId = NodeId(2);
/// More than a socket and what a connection keeps besides take at once.
const CHANNELS: u16 = 900;

#[test]
fn proxy_is_handed_more_channels_than_fit_its_socket_before_it_reads_the_first() {
    let mut world = TwoNodes::new();
    world.stop_relay();
    let mut server = world.near_server(Endpoint::DS, 1);
    let serving =
        thread::spawn(move || server.receive(Source::Any, Wait::For(Duration::from_secs(60))).map(|it| it.kind));
    let mut proxy = StandInPort::from_socket(world.brokers[0].proxy_socket().unwrap()).unwrap();
    proxy.link(THERE, LinkState::Up).unwrap();
    for number in 0..CHANNELS {
        let open = OpenIn {
            dc: DC,
            caller: Endpoint::new(u32::from(2000 + number)).unwrap(),
            node: THERE,
            target: Endpoint::DS,
            lane: Lane::MESSAGES,
            ring: None,
            peer_channel: u64::from(number) + 1,
            incarnation: None,
        };
        proxy.open_in(&open).unwrap();
        while !matches!(proxy.wait_event(SOON).unwrap(), StandInEvent::OpenedIn { result, .. } if result.is_ok()) {}
    }
    drop(proxy);
    let socket = world.brokers[0].proxy_socket().unwrap();
    // It begins late.
    assert_eq!(world.brokers[0].snapshot().unwrap().dcs[0].channels.len(), usize::from(CHANNELS));
    let mut successor = StandInPort::from_socket(socket).unwrap();
    let mut resumed = 0;
    loop {
        match successor.wait_event(SOON).unwrap() {
            StandInEvent::Resumed(_) => resumed += 1,
            StandInEvent::AllResumed => break,
            StandInEvent::Parcel { .. } | StandInEvent::Active(_) => {}
            event => panic!("{event:?}"),
        }
    }
    assert_eq!(resumed, CHANNELS);
    // All end at once.
    successor.link(THERE, LinkState::Down).unwrap();
    assert_eq!(world.program().send(Endpoint::DS, &Message::new(9), SOON), Ok(()));
    assert_eq!(serving.join().unwrap(), Ok(9));
    let mut closed = 0;
    while closed < CHANNELS {
        if matches!(successor.wait_event(SOON).unwrap(), StandInEvent::Closed { .. }) {
            closed += 1;
        }
    }
}

#[test]
fn nobody_waits_for_ever_for_a_proxy_that_does_not_come() {
    let mut world = TwoNodes::new();
    let mut server = world.server(Endpoint::DS, 1);
    let serving = thread::spawn(move || {
        let request = server.receive(Source::Any, SOON).unwrap();
        server.reply(request.source.unwrap(), &request).unwrap();
        server
    });
    let mut client = world.program();
    client.sendrec(Endpoint::DS, &Message::new(1), SOON).unwrap();
    let _server = serving.join().unwrap();
    world.stop_relay();
    let began = Instant::now();
    // It is on its way, or was on it: only a proxy can say.
    let answer = client.sendrec(Endpoint::DS, &Message::new(1), Wait::For(Duration::from_millis(100)));
    assert_eq!(answer, Err(IpcError::NoLink));
    assert!(began.elapsed() < Duration::from_secs(15), "{:?}", began.elapsed());
    let began = Instant::now();
    let again = client.sendrec(Endpoint::DS, &Message::new(1), Wait::For(Duration::from_millis(100)));
    assert_eq!(again, Err(IpcError::NoLink));
    assert!(began.elapsed() < Duration::from_secs(1), "known by now");
}
