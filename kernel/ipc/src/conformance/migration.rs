//! Endpoints that change their owner.

use std::collections::HashMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use abi::{Calls, Endpoint, Epoch, IpcError, Message, NodeId, Privileges, Source};

use super::{NEVER_MIND, SOON, World};
use crate::{Arena, Direction, Place, Port, Wait};

const SERVICE: Endpoint = Endpoint::DS;
const MANAGER: Endpoint = Endpoint::RS;

/// Clients of each kind, and how often the service moves.
const CLIENTS: usize = 2;
const MOVES: u64 = 12;

/// The last number of each client: what a service hands to the next owner.
type Ledger = Mutex<HashMap<Endpoint, i32>>;

/// Answers numbered requests, and takes numbered messages, until the endpoint is somebody else's. Each number has to
/// follow the one before. A number that is negative is answered by the next request of that client.
fn serve(port: &mut Port, ledger: &Ledger) -> IpcError {
    loop {
        let message = match port.receive(Source::Any, SOON) {
            Ok(message) => message,
            Err(error) => return error,
        };
        let client = message.source.unwrap();
        let mut ledger = ledger.lock().unwrap();
        let last = ledger.entry(client).or_default();
        assert_eq!(message.kind, *last + 1, "of {client}");
        *last = message.kind;
        drop(ledger);
        if message.kind % 3 != 0 {
            port.reply(client, &Message::new(-message.kind)).unwrap();
        }
    }
}

/// Sends numbers until told to stop: two requests, then a message, some of each with a limit. The last is a request:
/// when its answer is there, all before it are in the ledger. How many.
fn call(mut client: Port, stop: &AtomicBool) -> i32 {
    let mut number = 0;
    while number % 3 == 0 || !stop.load(Ordering::Relaxed) {
        number += 1;
        let wait = if number % 2 == 0 { Wait::Forever } else { SOON };
        if number % 3 == 0 {
            client.send(SERVICE, &Message::new(number), wait).unwrap();
        } else {
            assert_eq!(client.sendrec(SERVICE, &Message::new(number), wait).unwrap().kind, -number);
        }
    }
    number
}

fn pid() -> i32 {
    rustix::process::getpid().as_raw_nonzero().get()
}

/// A backup announces itself and then waits, so whoever commits or promotes may come first.
fn once_it_stands_by(mut ask: impl FnMut() -> Result<(), IpcError>) -> Result<(), IpcError> {
    loop {
        match ask() {
            Err(IpcError::NoSuchEndpoint) => thread::yield_now(),
            result => return result,
        }
    }
}

/// The next owner must outlive it: what is lost with a link is asked again, and of one that took over and died is said
/// that it died.
pub(super) fn commit(manager: &mut Port, endpoint: Endpoint, node: NodeId) {
    once_it_stands_by(|| manager.migration_commit(endpoint, node, pid(), SOON)).unwrap();
}

pub(super) fn promote(manager: &mut Port, endpoint: Endpoint, node: NodeId, epoch: Epoch) -> Result<(), IpcError> {
    once_it_stands_by(|| manager.promote(endpoint, node, pid(), epoch))
}

pub(super) fn endpoint_is_handed_over_and_back_and_nothing_is_lost_or_doubled(world: &dyn World) {
    let (near, far) = (world.near(), world.far());
    let mut manager = world.near_server(MANAGER, 1);
    let ledger = Ledger::default();
    let stop = AtomicBool::new(false);
    let mut first = world.near_server(SERVICE, 1);
    thread::scope(|scope| {
        let mut owner = {
            let ledger = &ledger;
            scope.spawn(move || serve(&mut first, ledger))
        };
        let clients: Vec<_> = [&near.1, &far.1]
            .into_iter()
            .flat_map(|place| (0..CLIENTS).map(move |_| Port::connect(place, None).unwrap()))
            .map(|mut port| {
                port.wait4bind(SERVICE, SOON).unwrap();
                let stop = &stop;
                (port.endpoint(), scope.spawn(move || call(port, stop)))
            })
            .collect();
        for turn in 0..MOVES {
            let (node, place) = if turn % 2 == 0 { &far } else { &near };
            let (ledger, epoch) = (&ledger, Epoch(turn + 2));
            let next = scope.spawn(move || {
                let mut port = Port::stand_by(place, SERVICE, SOON).unwrap();
                assert_eq!(port.epoch(), epoch);
                serve(&mut port, ledger)
            });
            manager.migration_start(SERVICE, SOON).unwrap();
            commit(&mut manager, SERVICE, *node);
            assert_eq!(owner.join().unwrap(), IpcError::Moved);
            owner = next;
        }
        stop.store(true, Ordering::Relaxed);
        for (client, calling) in clients {
            let sent = calling.join().unwrap();
            assert!(sent > 0, "{client} did nothing");
            assert_eq!(ledger.lock().unwrap().get(&client), Some(&sent), "of {client}");
        }
        manager.migration_start(SERVICE, SOON).unwrap();
        let last = scope.spawn(|| Port::stand_by(&near.1, SERVICE, SOON).unwrap());
        commit(&mut manager, SERVICE, near.0);
        assert_eq!(owner.join().unwrap(), IpcError::Moved);
        drop(last.join().unwrap());
    });
}

pub(super) fn owner_hands_itself_over_when_it_owes_nothing(world: &dyn World) {
    let (near, _) = (world.near(), world.far());
    let mut old = world.server(SERVICE, 1);
    let mut client = world.program();
    client.wait4bind(SERVICE, SOON).unwrap();
    thread::scope(|scope| {
        let calling = scope.spawn(move || {
            assert_eq!(client.sendrec(SERVICE, &Message::new(1), SOON).unwrap().kind, 10);
            assert_eq!(client.sendrec(SERVICE, &Message::new(2), Wait::Forever).unwrap().kind, 20);
        });
        let asker = old.receive(Source::Any, SOON).unwrap().source.unwrap();
        assert_eq!(old.migration_start(SERVICE, SOON), Err(IpcError::Busy));
        old.reply(asker, &Message::new(10)).unwrap();
        old.migration_start(SERVICE, SOON).unwrap();
        assert_eq!(old.receive(Source::Any, NEVER_MIND), Err(IpcError::TimedOut));
        assert_eq!(old.receive(Source::From(asker), NEVER_MIND), Err(IpcError::TimedOut));
        let place = &near.1;
        let next = scope.spawn(move || {
            let mut port = Port::stand_by(place, SERVICE, SOON).unwrap();
            assert_eq!(port.receive(Source::From(asker), SOON).unwrap().kind, 2);
            port.reply(asker, &Message::new(20)).unwrap();
            port
        });
        commit(&mut old, SERVICE, near.0);
        drop(next.join().unwrap());
        calling.join().unwrap();
        assert_eq!(old.receive(Source::Any, SOON), Err(IpcError::Moved));
        assert_eq!(old.send(asker, &Message::new(1), SOON), Err(IpcError::Moved));
    });
}

pub(super) fn copier_learns_that_the_owner_was_handed_over_as_of_its_end(world: &dyn World) {
    // Until it waited when the owner was handed over: nobody sees it wait.
    let told = (0..10).find_map(|attempt| owner_is_handed_over_under_a_copier(world, attempt + 1, 20 << attempt));
    assert_eq!(told, Some(IpcError::SourceDied));
}

/// What a reader of an owner that serves nobody learns when it is handed over after `pause_ms`; `None` when the reader
/// was late.
fn owner_is_handed_over_under_a_copier(world: &dyn World, epoch: u64, pause_ms: u64) -> Option<IpcError> {
    let (node, place) = world.near();
    let mut old = world.server(SERVICE, 2 * epoch);
    let mut reader = world.program();
    reader.wait4bind(SERVICE, SOON).unwrap();
    let memory = Arena::private(10).unwrap();
    let grant = old.grant(reader.endpoint(), &memory, Direction::Read).unwrap();
    let from = Place { owner: SERVICE, grant, offset: 0 };
    let told = thread::scope(|scope| {
        let reading = scope.spawn(|| reader.copy_from(from, &mut [0; 10], SOON).unwrap_err());
        let next = scope.spawn(move || Port::stand_by(&place, SERVICE, SOON).unwrap());
        thread::sleep(Duration::from_millis(pause_ms));
        old.migration_start(SERVICE, SOON).unwrap();
        commit(&mut old, SERVICE, node);
        let mut next = next.join().unwrap();
        // Answers a reader that was late.
        while !reading.is_finished() {
            assert_eq!(next.receive(Source::Any, NEVER_MIND), Err(IpcError::TimedOut));
        }
        next.unbind().unwrap();
        reading.join().unwrap()
    });
    reader.wait4unbind(SERVICE, SOON).unwrap();
    let was_late = matches!(told, IpcError::UnknownGrant | IpcError::NoSuchEndpoint);
    (!was_late).then_some(told)
}

pub(super) fn held_endpoint_takes_nothing_and_goes_on_after_rollback(world: &dyn World) {
    let mut manager = world.near_server(MANAGER, 1);
    let mut server = world.server(SERVICE, 1);
    manager.wait4bind(SERVICE, SOON).unwrap();
    let mut client = world.program();
    client.wait4bind(SERVICE, SOON).unwrap();
    thread::scope(|scope| {
        let serving = scope.spawn(|| {
            let request = server.receive(Source::Any, SOON).unwrap();
            server.reply(request.source.unwrap(), &request).unwrap();
        });
        manager.migration_start(SERVICE, SOON).unwrap();
        // Once more is the same.
        manager.migration_start(SERVICE, SOON).unwrap();
        assert_eq!(client.sendrec(SERVICE, &Message::new(1), NEVER_MIND), Err(IpcError::TimedOut));
        assert_eq!(client.send(SERVICE, &Message::new(2), NEVER_MIND), Err(IpcError::TimedOut));
        let calling = scope.spawn(|| assert_eq!(client.sendrec(SERVICE, &Message::new(3), SOON).unwrap().kind, 3));
        manager.migration_rollback(SERVICE).unwrap();
        manager.migration_rollback(SERVICE).unwrap();
        calling.join().unwrap();
        serving.join().unwrap();
    });
}

pub(super) fn held_endpoint_takes_no_relayed_request_either(world: &dyn World) {
    let mut manager = world.near_server(MANAGER, 1);
    let mut delegator = world.server(Endpoint::PM, 1);
    let mut server = world.server(SERVICE, 1);
    for endpoint in [SERVICE, Endpoint::PM] {
        manager.wait4bind(endpoint, SOON).unwrap();
    }
    let mut client = world.program();
    let own = client.endpoint();
    for endpoint in [SERVICE, Endpoint::PM] {
        client.wait4bind(endpoint, SOON).unwrap();
    }
    delegator.wait4bind(SERVICE, SOON).unwrap();
    let is_released = AtomicBool::new(false);
    let (relayed, hear_relayed) = std::sync::mpsc::channel();
    thread::scope(|scope| {
        let serving = scope.spawn(|| {
            let request = loop {
                match server.receive(Source::Any, NEVER_MIND) {
                    Ok(request) => break request,
                    Err(error) => assert_eq!(error, IpcError::TimedOut),
                }
            };
            assert!(is_released.load(Ordering::SeqCst), "taken while it was held");
            assert_eq!((request.source, request.kind), (Some(own), 7));
            server.reply(own, &request).unwrap();
        });
        manager.migration_start(SERVICE, SOON).unwrap();
        let calling = scope.spawn(move || client.sendrec(Endpoint::PM, &Message::new(7), SOON));
        let delegating = scope.spawn(move || {
            let request = delegator.rcvrqst(SOON).unwrap();
            delegator.relay(own, SERVICE, &request).unwrap();
            relayed.send(()).unwrap();
            // Its lanes are served while it waits.
            delegator.receive(Source::Any, SOON).unwrap();
        });
        hear_relayed.recv().unwrap();
        assert_eq!(manager.receive(Source::Any, NEVER_MIND), Err(IpcError::TimedOut));
        is_released.store(true, Ordering::SeqCst);
        manager.migration_rollback(SERVICE).unwrap();
        assert_eq!(calling.join().unwrap().unwrap().kind, 7);
        manager.send(Endpoint::PM, &Message::new(0), SOON).unwrap();
        delegating.join().unwrap();
        serving.join().unwrap();
    });
}

pub(super) fn start_waits_for_what_is_owed_and_is_taken_back_at_its_limit(world: &dyn World) {
    let mut manager = world.near_server(MANAGER, 1);
    let mut server = world.server(SERVICE, 1);
    manager.wait4bind(SERVICE, SOON).unwrap();
    let mut client = world.program();
    client.wait4bind(SERVICE, SOON).unwrap();
    let own = client.endpoint();
    thread::scope(|scope| {
        let calling = scope.spawn(move || {
            for number in 1..3 {
                assert_eq!(client.sendrec(SERVICE, &Message::new(number), SOON).unwrap().kind, number);
            }
        });
        let first = server.receive(Source::Any, SOON).unwrap();
        let serving = scope.spawn(move || {
            // It waits for something else and still owes the answer.
            assert_eq!(server.receive(Source::From(MANAGER), SOON).unwrap().kind, 9);
            server.reply(own, &first).unwrap();
            let next = server.receive(Source::Any, SOON).unwrap();
            server.reply(own, &next).unwrap();
        });
        assert_eq!(manager.migration_start(SERVICE, NEVER_MIND), Err(IpcError::TimedOut));
        manager.send(SERVICE, &Message::new(9), SOON).unwrap();
        serving.join().unwrap();
        calling.join().unwrap();
    });
}

pub(super) fn commit_to_nobody_leaves_the_endpoint_held(world: &dyn World) {
    let mut manager = world.near_server(MANAGER, 1);
    let mut server = world.server(SERVICE, 1);
    manager.wait4bind(SERVICE, SOON).unwrap();
    thread::scope(|scope| {
        let waiting = scope.spawn(|| server.receive(Source::Any, SOON));
        let (node, _) = world.near();
        assert_eq!(manager.migration_commit(SERVICE, node, pid(), SOON), Err(IpcError::BadArgument));
        manager.migration_start(SERVICE, SOON).unwrap();
        for (node, _) in [world.near(), world.far()] {
            assert_eq!(manager.migration_commit(SERVICE, node, pid(), SOON), Err(IpcError::NoSuchEndpoint));
        }
        let mut client = world.program();
        client.wait4bind(SERVICE, SOON).unwrap();
        assert_eq!(client.send(SERVICE, &Message::new(1), NEVER_MIND), Err(IpcError::TimedOut));
        manager.migration_rollback(SERVICE).unwrap();
        client.send(SERVICE, &Message::new(2), SOON).unwrap();
        assert_eq!(waiting.join().unwrap().unwrap().kind, 2);
    });
}

pub(super) fn hold_ends_with_who_held(world: &dyn World) {
    let mut server = world.server(SERVICE, 1);
    let mut client = world.program();
    client.wait4bind(SERVICE, SOON).unwrap();
    thread::scope(|scope| {
        let waiting = scope.spawn(|| server.receive(Source::Any, SOON));
        let mut manager = world.near_server(MANAGER, 1);
        manager.wait4bind(SERVICE, SOON).unwrap();
        manager.migration_start(SERVICE, SOON).unwrap();
        assert_eq!(client.send(SERVICE, &Message::new(1), NEVER_MIND), Err(IpcError::TimedOut));
        drop(manager);
        client.send(SERVICE, &Message::new(2), SOON).unwrap();
        assert_eq!(waiting.join().unwrap().unwrap().kind, 2);
    });
}

pub(super) fn promoted_backup_fences_the_primary_before_it(world: &dyn World) {
    let mut manager = world.near_server(MANAGER, 1);
    let mut primary = world.server(SERVICE, 1);
    manager.wait4bind(SERVICE, SOON).unwrap();
    let (near, place) = world.near();
    let mut client = world.program();
    client.wait4bind(SERVICE, SOON).unwrap();
    let own = client.endpoint();
    thread::scope(|scope| {
        let backup = scope.spawn(move || {
            let mut port = Port::stand_by(&place, SERVICE, SOON).unwrap();
            assert_eq!(port.epoch(), Epoch(5));
            let request = port.receive(Source::Any, SOON).unwrap();
            port.reply(own, &request).unwrap();
        });
        let waiting = scope.spawn(move || (primary.receive(Source::Any, SOON), primary));
        // The number of the primary's own decision is none.
        assert_eq!(promote(&mut manager, SERVICE, near, Epoch(1)), Err(IpcError::Fenced));
        promote(&mut manager, SERVICE, near, Epoch(5)).unwrap();
        assert_eq!(client.sendrec(SERVICE, &Message::new(7), SOON).unwrap().kind, 7);
        let (ended, mut primary) = waiting.join().unwrap();
        assert_eq!(ended, Err(IpcError::Fenced));
        assert_eq!(primary.send(own, &Message::new(1), SOON), Err(IpcError::Fenced));
        backup.join().unwrap();
    });
}

pub(super) fn only_managers_and_owners_hand_over(world: &dyn World) {
    let mut manager = world.near_server(MANAGER, 1);
    let _server = world.server(SERVICE, 1);
    let mut program = world.program();
    program.wait4bind(SERVICE, SOON).unwrap();
    let nobodys = Privileges { calls: Calls::ALL.without(Calls::MANAGE), ..Privileges::server() };
    manager.set_privileges(program.endpoint(), &nobodys).unwrap();
    let (node, _) = world.far();
    assert_eq!(program.migration_start(SERVICE, SOON), Err(IpcError::Denied));
    assert_eq!(program.migration_commit(SERVICE, node, pid(), SOON), Err(IpcError::Denied));
    assert_eq!(program.migration_rollback(SERVICE), Err(IpcError::Denied));
    assert_eq!(program.promote(SERVICE, node, pid(), Epoch(9)), Err(IpcError::Denied));
    let own = program.endpoint();
    program.migration_start(own, SOON).unwrap();
    program.migration_rollback(own).unwrap();
}
