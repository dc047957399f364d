//! Who may call whom. The manager is where the clients are.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use super::{NEVER_MIND, SOON, SPEC, World};
use crate::{
    Arena, Calls, Direction, Endpoint, Event, IpcError, Message, Peers, Place, Port, Privileges, Source, Wait,
};

/// Everything but what is said.
fn without(calls: Calls) -> Privileges {
    Privileges { calls: Calls::ALL.without(calls), ..Privileges::server() }
}

/// Calls nobody.
fn calling_nobody() -> Privileges {
    Privileges { to: Peers::none(), ..Privileges::server() }
}

fn answer(server: &mut Port, count: usize) {
    for _ in 0..count {
        let request = server.receive(Source::Any, SOON).unwrap();
        server.reply(request.source.unwrap(), &request).unwrap();
    }
}

pub(super) fn privileges_that_were_set_are_those_that_are_told(world: &dyn World) {
    let mut manager = world.near_server(Endpoint::RS, 1);
    let server = world.server(Endpoint::DS, 1);
    let program = world.program();
    let privileges = Privileges {
        calls: Calls::SENDREC,
        to: Peers::servers(),
        from: Peers::only([Endpoint::RS]).unwrap(),
        rings: Peers::none(),
    };
    for endpoint in [program.endpoint(), server.endpoint(), manager.endpoint()] {
        manager.set_privileges(endpoint, &Privileges { rings: Peers::programs(), ..without(Calls::COPY) }).unwrap();
    }
    for endpoint in [program.endpoint(), server.endpoint()] {
        manager.set_privileges(endpoint, &privileges).unwrap();
        assert_eq!(manager.privileges(endpoint), Ok(privileges.clone()));
    }
    let nobody = Endpoint::new(5000).unwrap();
    assert_eq!(manager.privileges(nobody), Err(IpcError::NoSuchEndpoint));
    assert_eq!(manager.set_privileges(nobody, &Privileges::server()), Err(IpcError::NoSuchEndpoint));
}

pub(super) fn who_is_no_manager_changes_nothing(world: &dyn World) {
    let mut manager = world.near_server(Endpoint::RS, 1);
    let mut server = world.server(Endpoint::DS, 1);
    let mut program = world.program();
    for endpoint in [program.endpoint(), Endpoint::DS] {
        manager.set_privileges(endpoint, &without(Calls::MANAGE)).unwrap();
    }
    assert_eq!(program.set_privileges(Endpoint::DS, &Privileges::server()), Err(IpcError::Denied));
    assert_eq!(program.wakeup(Endpoint::DS), Err(IpcError::Denied));
    assert_eq!(server.set_privileges(program.endpoint(), &Privileges::server()), Err(IpcError::Denied));
    assert_eq!(program.privileges(Endpoint::DS), Ok(without(Calls::MANAGE)));
}

pub(super) fn manager_ends_the_wait_of_a_receiver_wherever_it_is(world: &dyn World) {
    let mut manager = world.near_server(Endpoint::RS, 1);
    let mut server = world.server(Endpoint::DS, 1);
    thread::scope(|scope| {
        // It stays bound: a manager whose answer is lost with the link asks again.
        let waiting = scope.spawn(|| server.receive(Source::Any, SOON));
        manager.wakeup(Endpoint::DS).unwrap();
        assert_eq!(waiting.join().unwrap(), Err(IpcError::WokenUp));
    });
}

pub(super) fn call_that_the_privileges_leave_out_is_refused_and_the_others_go_on(world: &dyn World) {
    let mut manager = world.near_server(Endpoint::RS, 1);
    let mut server = world.server(Endpoint::DS, 1);
    let mut client = world.program();
    let only_calls = Privileges { calls: Calls::SENDREC, ..Privileges::server() };
    manager.set_privileges(client.endpoint(), &only_calls).unwrap();
    thread::scope(|scope| {
        scope.spawn(|| answer(&mut server, 2));
        client.sendrec(Endpoint::DS, &Message::new(1), SOON).unwrap();
        assert_eq!(client.send(Endpoint::DS, &Message::new(1), SOON), Err(IpcError::Denied));
        assert_eq!(client.notify(Endpoint::DS, 1), Err(IpcError::Denied));
        assert_eq!(client.open_ring(Endpoint::DS, SPEC, SOON).unwrap_err(), IpcError::Denied);
        client.sendrec(Endpoint::DS, &Message::new(1), SOON).unwrap();
    });
}

pub(super) fn answering_needs_no_privilege(world: &dyn World) {
    let mut manager = world.near_server(Endpoint::RS, 1);
    let mut server = world.server(Endpoint::DS, 1);
    manager.set_privileges(Endpoint::DS, &Privileges { calls: Calls::NONE, ..calling_nobody() }).unwrap();
    let mut client = world.program();
    let caller = client.endpoint();
    thread::scope(|scope| {
        let called = scope.spawn(move || client.sendrec(Endpoint::DS, &Message::new(3), SOON).map(|_| client));
        let request = server.receive(Source::Any, SOON).unwrap();
        assert_eq!(server.notify(caller, 1), Err(IpcError::Denied));
        server.send(caller, &request, SOON).unwrap();
        let _client = called.join().unwrap().unwrap();
        // It waits no more, so this would be a message of its own.
        assert_eq!(server.send(caller, &request, SOON), Err(IpcError::Denied));
    });
}

pub(super) fn server_is_called_only_by_those_it_is_open_to(world: &dyn World) {
    let mut manager = world.near_server(Endpoint::RS, 1);
    let mut server = world.server(Endpoint::DS, 1);
    let (mut friend, mut stranger) = (world.program(), world.program());
    let from = Peers::only([friend.endpoint()]).unwrap();
    manager.set_privileges(Endpoint::DS, &Privileges { from, ..Privileges::server() }).unwrap();
    assert_eq!(stranger.sendrec(Endpoint::DS, &Message::new(1), SOON), Err(IpcError::Denied));
    thread::scope(|scope| {
        scope.spawn(|| answer(&mut server, 1));
        friend.sendrec(Endpoint::DS, &Message::new(1), SOON).unwrap();
    });
    assert_eq!(server.receive(Source::Any, NEVER_MIND), Err(IpcError::TimedOut));
}

pub(super) fn revocation_ends_a_call_that_waits_and_later_ones_until_it_is_taken_back(world: &dyn World) {
    let mut manager = world.near_server(Endpoint::RS, 1);
    let mut server = world.server(Endpoint::DS, 1);
    let mut client = world.program();
    let caller = client.endpoint();
    thread::scope(|scope| {
        let called = scope.spawn(move || {
            let ended = client.sendrec(Endpoint::DS, &Message::new(1), Wait::Forever);
            (client, ended, Instant::now())
        });
        let request = server.receive(Source::Any, SOON).unwrap();
        let revoked = Instant::now();
        manager.set_privileges(caller, &calling_nobody()).unwrap();
        let (mut client, ended, at) = called.join().unwrap();
        assert_eq!(ended, Err(IpcError::Denied));
        assert!(at.saturating_duration_since(revoked) < Duration::from_secs(5), "nobody told it");
        // The end may be on its way to the server.
        let late = server.reply(caller, &request);
        assert!(matches!(late, Ok(()) | Err(IpcError::NotWaiting | IpcError::Denied)), "{late:?}");
        assert_eq!(client.sendrec(Endpoint::DS, &Message::new(1), SOON), Err(IpcError::Denied));
        manager.set_privileges(caller, &Privileges::server()).unwrap();
        scope.spawn(|| answer(&mut server, 1));
        client.sendrec(Endpoint::DS, &Message::new(1), SOON).unwrap();
    });
}

pub(super) fn revocation_ends_rings_and_copies(world: &dyn World) {
    let mut manager = world.near_server(Endpoint::RS, 1);
    let mut server = world.server(Endpoint::DS, 1);
    let mut client = world.program();
    let caller = client.endpoint();
    let ring = client.open_ring(Endpoint::DS, SPEC, SOON).unwrap();
    let Event::RingOpened(served) = server.wait_event(SOON).unwrap() else { panic!("no ring") };
    let grant = server.grant(caller, &Arena::private(4096).unwrap(), Direction::Read).unwrap();
    let place = Place { owner: Endpoint::DS, grant, offset: 0 };
    let is_done = AtomicBool::new(false);
    thread::scope(|scope| {
        let copied = scope.spawn(|| {
            let copied = client.copy_from(place, &mut [0; 4096], SOON);
            is_done.store(true, Ordering::SeqCst);
            copied
        });
        while !is_done.load(Ordering::SeqCst) {
            assert_eq!(server.receive(Source::Any, NEVER_MIND), Err(IpcError::TimedOut));
        }
        copied.join().unwrap().unwrap();
    });
    manager.set_privileges(caller, &without(Calls::COPY.with(Calls::RING))).unwrap();
    manager.set_privileges(caller, &Privileges { rings: Peers::none(), ..without(Calls::COPY) }).unwrap();
    assert!(matches!(server.wait_event(SOON), Ok(Event::RingClosed(id, IpcError::Denied)) if id == served.id()));
    assert_eq!(ring.wait(SOON), Ok(()));
    assert_eq!(ring.poll(), Err(IpcError::Denied));
    assert_eq!(client.copy_from(place, &mut [0; 4096], SOON), Err(IpcError::Denied));
}
