//! What concerns one node only: privileges, epochs, descriptors, the broker's end. In one process with threads.

use std::os::fd::{AsFd, OwnedFd};
use std::thread;
use std::time::{Duration, Instant};

use crate::common::{DC, OneNode, wait_readable};
use abi::limits::COPIERS_PER_ENDPOINT;
use broker::{BrokerError, DcOptions, ServerIdentity};
use broker_api::{FromPort, IfAbsent, Inquiry, MESSAGE_BYTES_MAX, Message as _, PACKET_BYTES, ToPort};
use ipc::conformance::World;
use ipc::info::{Cursor, EndpointInfo, Question, Record};
use ipc::{
    Arena, DcId, Direction, Endpoint, Epoch, Event, IpcError, Message, Place, Port, RingSpec, Source, Submission, Wait,
};
use ipc_shm::ControlWriter;

const SOON: Wait = Wait::For(Duration::from_secs(10));
const NEVER_MIND: Wait = Wait::For(Duration::from_millis(30));
const SPEC: RingSpec = RingSpec { entries: 8, arena_bytes: 64 << 10 };

#[test]
fn submission_outside_the_arena_closes_the_ring() {
    let world = OneNode::new();
    let mut server = world.server(Endpoint::DS, 1);
    let mut client = world.program();
    let ring = client.open_ring(Endpoint::DS, SPEC, SOON).unwrap();
    ring.submit(&Submission { arena_offset: SPEC.arena_bytes, out_bytes: 1, ..Submission::default() }).unwrap();
    ring.publish();
    let Event::RingOpened(opened) = server.wait_event(SOON).unwrap() else { panic!("no ring") };
    assert!(matches!(server.wait_event(SOON).unwrap(), Event::RingReady(_)));
    assert_eq!(opened.next(), Err(IpcError::Corrupt));
    assert!(matches!(server.wait_event(SOON).unwrap(), Event::RingClosed(_, IpcError::Corrupt)));
    assert_eq!(ring.wait(SOON), Ok(()));
    assert_eq!(ring.poll(), Err(IpcError::Corrupt));
}

#[test]
fn waker_ends_the_wait_of_another_thread_once() {
    let world = OneNode::new();
    let mut server = world.server(Endpoint::DS, 1);
    let waker = server.waker();
    thread::scope(|scope| {
        let waiter = scope.spawn(move || {
            assert!(matches!(server.wait_event(SOON).unwrap(), Event::Woken));
            server.wait_event(NEVER_MIND).unwrap_err()
        });
        waker.wake();
        assert_eq!(waiter.join().unwrap(), IpcError::TimedOut);
    });
}

#[test]
fn descriptor_of_an_idle_port_becomes_readable_for_messages_rings_and_wakes() {
    let world = OneNode::new();
    let mut server = world.server(Endpoint::DS, 1);
    let mut client = world.program();
    let idle = |server: &mut Port| assert_eq!(server.wait_event(Wait::NoWait).unwrap_err(), IpcError::TimedOut);
    idle(&mut server);
    client.notify(Endpoint::DS, 1).unwrap();
    wait_readable(server.fd());
    assert!(matches!(server.wait_event(Wait::NoWait).unwrap(), Event::Notified { .. }));
    idle(&mut server);
    client.notify(Endpoint::DS, 1).unwrap();
    wait_readable(server.fd());
    assert!(matches!(server.wait_event(Wait::NoWait).unwrap(), Event::Notified { .. }));
    idle(&mut server);
    server.waker().wake();
    wait_readable(server.fd());
    assert!(matches!(server.wait_event(Wait::NoWait).unwrap(), Event::Woken));
    idle(&mut server);
    let _ring = client.open_ring(Endpoint::DS, SPEC, SOON).unwrap();
    wait_readable(server.fd());
    assert!(matches!(server.wait_event(Wait::NoWait).unwrap(), Event::RingOpened(_)));
}

#[test]
fn ring_that_was_opened_while_its_server_waited_for_the_broker_is_reported() {
    let world = OneNode::new();
    let mut server = world.server(Endpoint::FS, 1);
    let mut client = world.program();
    assert!(matches!(server.wait_event(Wait::NoWait), Err(IpcError::TimedOut)));
    let ring = client.open_ring(Endpoint::FS, SPEC, SOON).unwrap();
    // The notice of the ring is ahead of this answer: the server reads it first, and its socket is empty afterwards.
    server.wait4bind(Endpoint::FS, SOON).unwrap();
    let Ok(Event::RingOpened(opened)) = server.wait_event(NEVER_MIND) else { panic!("no ring") };
    assert_eq!(opened.client(), client.endpoint());
    drop(ring);
}

#[test]
fn manager_wakes_up_a_receiver() {
    let world = OneNode::new();
    let mut manager = world.server(Endpoint::RS, 1);
    let mut server = world.server(Endpoint::FS, 1);
    let mut program = world.program();
    assert_eq!(program.wakeup(Endpoint::FS), Err(IpcError::Denied));
    thread::scope(|scope| {
        let waiter = scope.spawn(|| server.receive(Source::Any, SOON));
        manager.wakeup(Endpoint::FS).unwrap();
        assert_eq!(waiter.join().unwrap(), Err(IpcError::WokenUp));
    });
}

#[test]
fn number_of_a_server_belongs_to_one_and_an_old_epoch_is_fenced() {
    let world = OneNode::new();
    let server = world.server(Endpoint::FS, 5);
    assert_eq!(world.try_server(Endpoint::FS, 6).unwrap_err(), IpcError::EndpointInUse);
    server.unbind().unwrap();
    assert_eq!(world.try_server(Endpoint::FS, 4).unwrap_err(), IpcError::Fenced);
    assert!(world.try_server(Endpoint::FS, 6).is_ok());
    let refused = Port::connect(&world.socket(), Some(Endpoint::DS));
    assert_eq!(refused.unwrap_err(), IpcError::Denied);
}

#[test]
fn container_names_its_own_endpoints_only() {
    let world = OneNode::new();
    world.broker.add_dc(DcId(8), DcOptions::default()).unwrap();
    let _theirs = world.server(Endpoint::FS, 1);
    let identity = ServerIdentity::new(Endpoint::DS, Epoch(1));
    let socket = world.broker.server_socket(DcId(8), identity).unwrap();
    let mut ours = Port::from_socket(socket, None).unwrap();
    assert_eq!(ours.send(Endpoint::FS, &Message::new(1), SOON), Err(IpcError::NoSuchEndpoint));
}

#[test]
fn container_tells_its_members_of_itself_only() {
    let world = OneNode::new();
    world.broker.add_dc(DcId(8), DcOptions::default()).unwrap();
    let _theirs = world.server(Endpoint::FS, 1);
    world.program().notify(Endpoint::FS, 1).unwrap();
    let identity = ServerIdentity::new(Endpoint::DS, Epoch(1));
    let mut ours = Port::from_socket(world.broker.server_socket(DcId(8), identity).unwrap(), None).unwrap();
    assert_eq!(ours.endpoint_info(Endpoint::FS), Err(IpcError::NoSuchEndpoint));
    let known = ours.endpoints_info(Cursor::START, 9).unwrap().records;
    assert_eq!(known.iter().map(|it| it.endpoint).collect::<Vec<_>>(), [Endpoint::DS]);
    assert_eq!(ours.channels_info(None, Cursor::START, 9).unwrap().records, []);
    assert_eq!(ours.dc_info().unwrap().dc, DcId(8));
}

#[test]
fn question_that_makes_no_sense_is_refused_and_not_heard_before_the_asker_is_bound() {
    let world = OneNode::new();
    let socket = sys::seqpacket::connect(&world.socket()).unwrap();
    let mut ask = {
        let mut request = 0;
        move |message: FromPort, spoil: fn(&mut [u8])| {
            request += 1;
            let mut packet = message.to_bytes(request);
            spoil(&mut packet);
            sys::seqpacket::send(&socket, &packet, &[] as &[OwnedFd]).unwrap();
            wait_readable(socket.as_fd());
            let mut buffer = [0; MESSAGE_BYTES_MAX];
            let read = sys::seqpacket::receive(&socket, &mut buffer).unwrap().bytes;
            ToPort::from_bytes(&buffer[..read]).unwrap().1
        }
    };
    let endpoints = Question::Endpoints { from: Cursor::START };
    let question = |at_most| FromPort::Inform(Inquiry { question: endpoints, at_most });
    let failed = |error| ToPort::Failed { error };
    assert_eq!(ask(question(1), |_| {}), failed(IpcError::NotBound));
    // A library of a release that does not talk with this one; then one that speaks this version beside its own.
    let newest = versions::PORT.speaks.newest;
    let bind = |oldest| FromPort::Bind {
        endpoint: None,
        if_absent: IfAbsent::Fail,
        speaks: versions::Versions::from_to(oldest, newest + 1),
    };
    assert_eq!(ask(bind(newest + 1), |_| {}), failed(IpcError::Os(93)), "EPROTONOSUPPORT");
    let bound = ask(bind(newest), |_| {});
    assert!(matches!(bound, ToPort::Bound { .. }), "{bound:?}");
    let bound =
        ask(FromPort::Bind { endpoint: None, if_absent: IfAbsent::Fail, speaks: versions::PORT.speaks }, |_| {});
    assert!(matches!(bound, ToPort::Bound { .. }), "{bound:?}");
    // About what nobody knows, about an endpoint without saying which, and for no record.
    assert_eq!(ask(question(1), |packet| packet[48] = 99), failed(IpcError::BadArgument));
    assert_eq!(ask(question(1), |packet| packet[48] = 1), failed(IpcError::BadArgument));
    assert_eq!(ask(question(0), |_| {}), failed(IpcError::BadArgument));
    let ToPort::Information { records, .. } = ask(question(u32::MAX), |_| {}) else { panic!("no information") };
    assert_eq!(records.len(), EndpointInfo::BYTES);
}

#[test]
fn removed_container_ends_every_binding_and_leaves_nothing() {
    let world = OneNode::new();
    let mut server = world.server(Endpoint::FS, 1);
    let mut client = world.program();
    client.notify(Endpoint::FS, 1).unwrap();
    world.broker.remove_dc(DC).unwrap();
    assert_eq!(server.wait_event(SOON).unwrap_err(), IpcError::NotBound);
    assert!(!world.socket().exists());
    assert!(world.broker.snapshot().unwrap().dcs.is_empty());
    assert!(matches!(world.broker.remove_dc(DC), Err(BrokerError::NoSuchDc(DC))));
}

#[test]
fn channels_go_on_without_a_broker_and_new_ones_are_refused() {
    let world = OneNode::new();
    let mut server = world.server(Endpoint::FS, 1);
    let mut client = world.program();
    client.notify(Endpoint::FS, 1).unwrap();
    assert!(matches!(server.wait_event(SOON).unwrap(), Event::Notified { .. }));
    world.broker.shutdown();
    thread::scope(|scope| {
        scope.spawn(move || {
            let request = server.rcvrqst(SOON).unwrap();
            server.reply(request.source.unwrap(), &Message::new(4)).unwrap();
        });
        assert_eq!(client.sendrec(Endpoint::FS, &Message::new(3), SOON).unwrap().kind, 4);
    });
    assert_eq!(client.open_ring(Endpoint::FS, SPEC, SOON).unwrap_err(), IpcError::NoBroker);
    assert_eq!(client.wait4bind(Endpoint::DS, SOON).unwrap_err(), IpcError::NoBroker);
}

#[test]
fn unbind_does_not_wait_long_for_a_broker_that_is_stopped() {
    let (broker, socket) = sys::seqpacket::pair().unwrap();
    let page = ControlWriter::create(Epoch(1)).unwrap();
    let own = Endpoint::new(300);
    let bound = ToPort::Bound { dc: DC, endpoint: own.unwrap(), epoch: Epoch(1) };
    sys::seqpacket::send(&broker, &bound.to_bytes(1), &[page.reader().unwrap()]).unwrap();
    let port = Port::from_socket(socket, own).unwrap();
    let begun = Instant::now();
    assert_eq!(port.unbind(), Err(IpcError::NoBroker));
    assert!(begun.elapsed() < Duration::from_secs(4), "{:?}", begun.elapsed());
    // It finds both requests, and the end, when it goes on.
    let bind = FromPort::Bind { endpoint: own, if_absent: IfAbsent::Fail, speaks: versions::PORT.speaks };
    for said in [Some(bind), Some(FromPort::Unbind), None] {
        let mut buffer = [0; MESSAGE_BYTES_MAX];
        let received = sys::seqpacket::receive(&broker, &mut buffer).unwrap();
        assert_eq!(FromPort::from_bytes(&buffer[..received.bytes]).ok().map(|(_, message)| message), said);
    }
}

#[test]
fn client_that_sends_garbage_is_dropped_and_others_go_on() {
    let world = OneNode::new();
    let path = world.socket();
    let unused = [FromPort::Unbind.to_bytes(1), vec![1]].concat();
    for garbage in [&[0u8; 3][..], &[0xff; PACKET_BYTES], &[1; 200], &unused] {
        let socket = sys::seqpacket::connect(&path).unwrap();
        sys::seqpacket::send(&socket, garbage, &[] as &[OwnedFd]).unwrap();
        wait_readable(socket.as_fd());
        assert!(
            matches!(sys::seqpacket::receive(&socket, &mut [0; PACKET_BYTES]), Ok(received) if received.bytes == 0)
        );
    }
    world.program();
}

#[test]
fn notifications_merge_and_come_before_messages() {
    let world = OneNode::new();
    let mut server = world.server(Endpoint::FS, 1);
    let mut client = world.program();
    let own = client.endpoint();
    for bit in 0..3 {
        client.notify(Endpoint::FS, 1 << bit).unwrap();
    }
    thread::scope(|scope| {
        scope.spawn(|| client.send(Endpoint::FS, &Message::new(1), SOON).unwrap());
        match server.wait_event(SOON).unwrap() {
            Event::Notified { from, mask } => assert_eq!((from, mask), (own, 0b111)),
            other => panic!("{other:?} came first"),
        }
        assert!(matches!(server.wait_event(SOON).unwrap(), Event::Message(message) if message.kind == 1));
    });
}

/// What it is told of them is more than a socket and the outbox of somebody who asks and does not read take.
#[test]
fn process_that_computes_while_clients_come_and_go_stays_bound_and_hears_of_all() {
    const CLIENTS: u32 = 450;
    let world = OneNode::new();
    let mut server = world.server(Endpoint::FS, 1);
    for _ in 0..CLIENTS {
        world.program().notify(Endpoint::FS, 1).unwrap();
    }
    let mut heard = 0;
    while heard < CLIENTS {
        if let Event::Notified { mask, .. } = server.wait_event(SOON).unwrap() {
            assert_eq!(mask, 1);
            heard += 1;
        }
    }
}

#[test]
fn rings_that_ended_before_anybody_heard_of_them_are_not_kept() {
    const RINGS: usize = 300;
    let world = OneNode::new();
    let mut server = world.server(Endpoint::FS, 1);
    let mut client = world.program();
    thread::scope(|scope| {
        let serving = scope.spawn(|| {
            let request = server.rcvrqst(SOON).unwrap();
            server.reply(request.source.unwrap(), &request).unwrap();
            let opened = |event: &Event| matches!(event, Event::RingOpened(_));
            std::iter::from_fn(|| server.wait_event(Wait::NoWait).ok()).filter(opened).count()
        });
        for _ in 0..RINGS {
            drop(client.open_ring(Endpoint::FS, RingSpec { entries: 1, arena_bytes: 0 }, SOON).unwrap());
        }
        client.sendrec(Endpoint::FS, &Message::new(1), SOON).unwrap();
        let heard = serving.join().unwrap();
        assert!(heard < RINGS / 10, "{heard}");
    });
}

/// A program and what it may copy.
struct Copier(Port, Place);

impl Copier {
    fn copy(&mut self) -> Result<(), IpcError> {
        self.0.copy_from(self.1, &mut [0; 8], SOON)
    }

    /// Somebody has made room, of which the owner hears in a moment.
    fn copy_when_there_is_room(&mut self) {
        let until = Instant::now() + Duration::from_secs(10);
        while let Err(error) = self.copy() {
            assert!(error == IpcError::TableFull && Instant::now() < until, "{error}");
        }
    }
}

/// As many as there is room for, and one more.
fn copiers(world: &OneNode, owner: &mut Port) -> Vec<Copier> {
    let memory = Arena::private(8).unwrap();
    let copier = |_| {
        let port = world.program();
        let grant = owner.grant(port.endpoint(), &memory, Direction::Read).unwrap();
        Copier(port, Place { owner: owner.endpoint(), grant, offset: 0 })
    };
    (0..=COPIERS_PER_ENDPOINT).map(copier).collect()
}

/// All copy but the last, for whom there is no room.
fn take_all_room(copiers: &mut Vec<Copier>) -> Copier {
    let mut last = copiers.pop().unwrap();
    copiers.iter_mut().for_each(|copier| copier.copy().unwrap());
    assert_eq!(last.copy(), Err(IpcError::TableFull));
    last
}

#[test]
fn copier_for_whom_there_is_no_room_hears_it_and_copies_when_there_is() {
    let world = OneNode::new();
    let mut owner = world.server(Endpoint::FS, 1);
    let mut copiers = copiers(&world, &mut owner);
    thread::scope(|scope| {
        let serving = scope.spawn(move || owner.receive(Source::Any, Wait::For(Duration::from_secs(30))).map(drop));
        let mut last = take_all_room(&mut copiers);
        let Copier(mut ends_it, _) = copiers.pop().unwrap();
        drop(copiers.pop());
        last.copy_when_there_is_room();
        ends_it.send(Endpoint::FS, &Message::new(1), SOON).unwrap();
        serving.join().unwrap().unwrap();
    });
}

#[test]
fn copier_refused_by_an_owner_that_waits_for_somebody_copies_when_there_is_room() {
    let world = OneNode::new();
    let (mut owner, mut busy) = (world.server(Endpoint::FS, 1), world.server(Endpoint::DS, 1));
    let mut copiers = copiers(&world, &mut owner);
    thread::scope(|scope| {
        let limit = Wait::For(Duration::from_secs(30));
        let calling = scope.spawn(move || owner.sendrec(Endpoint::DS, &Message::new(1), limit).map(drop));
        let request = busy.rcvrqst(SOON).unwrap();
        let mut last = take_all_room(&mut copiers);
        // What the broker said of the lane is read by another call.
        last.0.notify(Endpoint::DS, 1).unwrap();
        drop(copiers.pop());
        last.copy_when_there_is_room();
        busy.reply(Endpoint::FS, &request).unwrap();
        calling.join().unwrap().unwrap();
    });
}
