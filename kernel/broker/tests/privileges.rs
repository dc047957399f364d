//! Who may call whom, on one node: what the broker refuses, what a change ends, and what a party's library refuses.

mod common;

use std::thread;
use std::time::{Duration, Instant};

use broker::{Calls, Peers, Privileges};
use common::OneNode;
use ipc::conformance::World;
use ipc::{Arena, Direction, Endpoint, Event, IpcError, Message, Place, Port, RingSpec, Source, Wait};

const SOON: Wait = Wait::For(Duration::from_secs(10));
const NEVER_MIND: Wait = Wait::For(Duration::from_millis(30));
const SPEC: RingSpec = RingSpec { entries: 8, arena_bytes: 64 << 10 };

fn program_with(calls: Calls) -> Privileges {
    Privileges { calls, ..Privileges::program() }
}

/// Answers `count` requests.
fn answer(server: &mut Port, count: usize) {
    for _ in 0..count {
        let request = server.receive(Source::Any, SOON).unwrap();
        server.reply(request.source.unwrap(), &request).unwrap();
    }
}

#[test]
fn program_talks_to_programs_but_opens_no_ring_to_the_file_server_and_manages_nobody() {
    let world = OneNode::with(Privileges::program());
    let _fs = world.server(Endpoint::FS, 1);
    let mut other = world.program();
    let mut program = world.program();
    let to = other.endpoint();
    thread::scope(|scope| {
        scope.spawn(|| answer(&mut other, 1));
        assert_eq!(program.sendrec(to, &Message::new(7), SOON).unwrap().kind, 7);
    });
    assert_eq!(program.open_ring(Endpoint::FS, SPEC, SOON).unwrap_err(), IpcError::Denied);
    assert_eq!(program.set_privileges(to, &Privileges::server()), Err(IpcError::Denied));
    assert_eq!(program.wakeup(to), Err(IpcError::Denied));
    assert_eq!(program.privileges(to), Ok(Privileges::program()));
}

#[test]
fn privileges_that_were_set_are_those_that_are_told() {
    let world = OneNode::new();
    let mut manager = world.server(Endpoint::RS, 1);
    let program = world.program();
    let privileges = Privileges {
        calls: Calls::SENDREC,
        to: Peers::servers(),
        from: Peers::only([Endpoint::RS]).unwrap(),
        rings: Peers::none(),
    };
    manager.set_privileges(program.endpoint(), &privileges).unwrap();
    assert_eq!(manager.privileges(program.endpoint()), Ok(privileges));
    let nobody = Endpoint::new(5000).unwrap();
    assert_eq!(manager.privileges(nobody), Err(IpcError::NoSuchEndpoint));
    assert_eq!(manager.set_privileges(nobody, &Privileges::server()), Err(IpcError::NoSuchEndpoint));
}

#[test]
fn call_that_the_privileges_leave_out_is_refused_and_the_others_go_on() {
    let world = OneNode::with(program_with(Calls::SENDREC));
    let mut server = world.server(Endpoint::DS, 1);
    let mut client = world.program();
    thread::scope(|scope| {
        scope.spawn(|| answer(&mut server, 2));
        client.sendrec(Endpoint::DS, &Message::new(1), SOON).unwrap();
        assert_eq!(client.send(Endpoint::DS, &Message::new(1), SOON), Err(IpcError::Denied));
        assert_eq!(client.notify(Endpoint::DS, 1), Err(IpcError::Denied));
        assert_eq!(client.open_ring(Endpoint::DS, SPEC, SOON).unwrap_err(), IpcError::Denied);
        client.sendrec(Endpoint::DS, &Message::new(1), SOON).unwrap();
    });
}

#[test]
fn answering_needs_no_privilege() {
    let world = OneNode::new();
    let mut manager = world.server(Endpoint::RS, 1);
    let mut server = world.server(Endpoint::DS, 1);
    let mute = Privileges { calls: Calls::NONE, to: Peers::none(), ..Privileges::server() };
    manager.set_privileges(Endpoint::DS, &mute).unwrap();
    let mut client = world.program();
    let caller = client.endpoint();
    thread::scope(|scope| {
        let called = scope.spawn(move || client.sendrec(Endpoint::DS, &Message::new(3), SOON).map(|_| client));
        let request = server.receive(Source::Any, SOON).unwrap();
        assert_eq!(server.notify(caller, 1), Err(IpcError::Denied));
        assert_eq!(server.sendrec(caller, &request, SOON), Err(IpcError::Deadlock));
        server.send(caller, &request, SOON).unwrap();
        let _client = called.join().unwrap().unwrap();
        // It waits no more, so this would be a message of its own.
        assert_eq!(server.send(caller, &request, SOON), Err(IpcError::Denied));
    });
}

#[test]
fn server_is_called_only_by_those_it_is_open_to() {
    let world = OneNode::new();
    let mut manager = world.server(Endpoint::RS, 1);
    let mut server = world.server(Endpoint::DS, 1);
    let (mut friend, mut stranger) = (world.program(), world.program());
    let from = Peers::only([friend.endpoint()]).unwrap();
    manager.set_privileges(Endpoint::DS, &Privileges { from, ..Privileges::server() }).unwrap();
    assert_eq!(stranger.notify(Endpoint::DS, 1), Err(IpcError::Denied));
    assert_eq!(stranger.open_ring(Endpoint::DS, SPEC, SOON).unwrap_err(), IpcError::Denied);
    thread::scope(|scope| {
        scope.spawn(|| answer(&mut server, 1));
        friend.sendrec(Endpoint::DS, &Message::new(1), SOON).unwrap();
    });
}

#[test]
fn revocation_ends_a_call_that_waits_and_later_ones_until_it_is_taken_back() {
    let world = OneNode::new();
    let mut manager = world.server(Endpoint::RS, 1);
    let mut server = world.server(Endpoint::DS, 1);
    let mut client = world.program();
    let caller = client.endpoint();
    thread::scope(|scope| {
        let called = scope.spawn(move || {
            let ended = client.sendrec(Endpoint::DS, &Message::new(1), SOON);
            (client, ended, Instant::now())
        });
        let request = server.receive(Source::Any, SOON).unwrap();
        let revoked = Instant::now();
        manager.set_privileges(caller, &Privileges { to: Peers::none(), ..Privileges::program() }).unwrap();
        let (mut client, ended, at) = called.join().unwrap();
        assert_eq!(ended, Err(IpcError::Denied));
        assert!(at.saturating_duration_since(revoked) < Duration::from_secs(5), "it was told, it did not time out");
        assert_eq!(server.reply(caller, &request), Err(IpcError::NotWaiting));
        assert_eq!(client.sendrec(Endpoint::DS, &Message::new(1), SOON), Err(IpcError::Denied));
        manager.set_privileges(caller, &Privileges::program()).unwrap();
        scope.spawn(|| answer(&mut server, 1));
        client.sendrec(Endpoint::DS, &Message::new(1), SOON).unwrap();
    });
}

#[test]
fn revocation_ends_the_wait_of_a_spinning_caller_and_of_a_receiver() {
    let world = OneNode::new();
    let mut manager = world.server(Endpoint::RS, 1);
    let mut server = world.server(Endpoint::DS, 1);
    let mut client = world.program();
    client.set_wait_mode(ipc::WaitMode::Spin);
    let caller = client.endpoint();
    thread::scope(|scope| {
        let called = scope.spawn(move || (client.sendrec(Endpoint::DS, &Message::new(1), Wait::Forever), client));
        server.receive(Source::Any, SOON).unwrap();
        let waiting = scope.spawn(move || (server.receive(Source::From(caller), SOON), server));
        let alone = Privileges { to: Peers::none(), from: Peers::none(), ..Privileges::program() };
        manager.set_privileges(caller, &alone).unwrap();
        let (ended, _client) = called.join().unwrap();
        assert_eq!(ended, Err(IpcError::Denied));
        let (received, mut server) = waiting.join().unwrap();
        assert_eq!(received, Err(IpcError::Denied));
        assert_eq!(server.receive(Source::Any, NEVER_MIND), Err(IpcError::TimedOut));
    });
}

#[test]
fn revocation_ends_rings_and_copies() {
    let world = OneNode::new();
    let mut manager = world.server(Endpoint::RS, 1);
    let mut server = world.server(Endpoint::DS, 1);
    let mut client = world.program();
    let caller = client.endpoint();
    let ring = client.open_ring(Endpoint::DS, SPEC, SOON).unwrap();
    let Event::RingOpened(served) = server.wait_event(SOON).unwrap() else { panic!("no ring") };
    let grant = server.grant(caller, &Arena::private(4096).unwrap(), Direction::Read).unwrap();
    let place = Place { owner: Endpoint::DS, grant, offset: 0 };
    let mut data = [0; 4096];
    let is_done = std::sync::atomic::AtomicBool::new(false);
    thread::scope(|scope| {
        let copied = scope.spawn(|| {
            let copied = client.copy_from(place, &mut data, SOON);
            is_done.store(true, std::sync::atomic::Ordering::SeqCst);
            copied
        });
        while !is_done.load(std::sync::atomic::Ordering::SeqCst) {
            assert_eq!(server.receive(Source::Any, NEVER_MIND), Err(IpcError::TimedOut));
        }
        copied.join().unwrap().unwrap();
    });
    let without = Privileges { calls: Calls::SENDREC, rings: Peers::none(), ..Privileges::program() };
    manager.set_privileges(caller, &without).unwrap();
    assert!(matches!(server.wait_event(SOON), Ok(Event::RingClosed(id, IpcError::Denied)) if id == served.id()));
    assert_eq!(ring.wait(SOON), Ok(()));
    assert_eq!(ring.poll(), Err(IpcError::Denied));
    assert_eq!(client.copy_from(place, &mut [0; 4096], SOON), Err(IpcError::Denied));
}
