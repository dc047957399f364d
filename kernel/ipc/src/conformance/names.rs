//! Endpoints that have a name.

use std::thread;
use std::time::Instant;

use abi::limits::ENDPOINT_NAME_BYTES_MAX;
use abi::{Endpoint, Epoch, IpcError, Message};

use super::migration::{commit, promote};
use super::{NEVER_MIND, SOON, World};
use crate::{Port, Wait};

const SERVICE: Endpoint = Endpoint::DS;
const OTHER: Endpoint = Endpoint::RS;
const MANAGER: Endpoint = Endpoint::PM;

fn until_nobody_is_called(name: &str, port: &mut Port) {
    let begun = Instant::now();
    while port.find(name, Wait::NoWait) != Err(IpcError::NoSuchEndpoint) {
        assert!(begun.elapsed().as_secs() < 30, "still called {name}");
        thread::yield_now();
    }
}

pub(super) fn endpoint_is_found_by_its_name_from_everywhere(world: &dyn World) {
    let mut service = world.server(SERVICE, 1);
    let (mut near, mut program) = (world.near_server(OTHER, 1), world.program());
    let longest = "~".repeat(ENDPOINT_NAME_BYTES_MAX);
    service.set_name("the-service").unwrap();
    near.set_name(&longest).unwrap();
    // Asked again, as after an answer that was lost.
    service.set_name("the-service").unwrap();
    for port in [&mut near, &mut program, &mut service] {
        assert_eq!(port.find_place("the-service", SOON), Ok((SERVICE, world.far().0)));
        assert_eq!(port.find_place(&longest, SOON), Ok((OTHER, world.near().0)));
        assert_eq!(port.find("the-service", Wait::NoWait), Ok(SERVICE));
    }
    thread::scope(|scope| {
        scope.spawn(|| {
            let request = service.rcvrqst(SOON).unwrap();
            service.reply(request.source.unwrap(), &Message::new(-request.kind)).unwrap();
        });
        let found = program.find("the-service", SOON).unwrap();
        assert_eq!(program.sendrec(found, &Message::new(5), SOON).unwrap().kind, -5);
    });
}

pub(super) fn name_is_waited_for_until_somebody_has_it(world: &dyn World) {
    let mut clients: Vec<Port> = (0..4).map(|_| world.program()).collect();
    // Outlives those who seek it.
    let mut service = world.server(SERVICE, 1);
    thread::scope(|scope| {
        for client in &mut clients {
            scope.spawn(|| assert_eq!(client.find("late", SOON), Ok(SERVICE)));
        }
        scope.spawn(|| {
            assert_eq!(service.find("late", NEVER_MIND), Err(IpcError::TimedOut));
            service.set_name("late").unwrap();
        });
    });
}

pub(super) fn first_who_claims_a_name_has_it(world: &dyn World) {
    let (mut far, mut near) = (world.server(SERVICE, 1), world.near_server(OTHER, 1));
    far.set_name("wanted").unwrap();
    assert_eq!(near.set_name("wanted"), Err(IpcError::EndpointInUse));
    assert_eq!(far.set_name("another"), Err(IpcError::TableFull));
    near.set_name("another").unwrap();
    // At the same moment: one of them.
    let mut claimants: Vec<Port> = (0..4).map(|_| world.program()).collect();
    claimants.push(world.server(MANAGER, 1));
    let results: Vec<_> = thread::scope(|scope| {
        let claims: Vec<_> = claimants.iter_mut().map(|port| scope.spawn(|| port.set_name("contested"))).collect();
        claims.into_iter().map(|claim| claim.join().unwrap()).collect()
    });
    let winners: Vec<usize> = (0..results.len()).filter(|index| results[*index].is_ok()).collect();
    assert_eq!(winners.len(), 1, "{results:?}");
    assert_eq!(results.iter().filter(|result| **result == Err(IpcError::EndpointInUse)).count(), 4, "{results:?}");
    let winner = claimants[winners[0]].endpoint();
    assert_eq!(near.find("contested", SOON), Ok(winner));
    assert_eq!(far.find("contested", SOON), Ok(winner));
}

pub(super) fn name_goes_with_its_endpoint_and_is_free_for_another(world: &dyn World) {
    let mut watcher = world.near_server(OTHER, 1);
    let mut service = world.server(SERVICE, 1);
    service.set_name("transient").unwrap();
    assert_eq!(watcher.find("transient", SOON), Ok(SERVICE));
    service.unbind().unwrap();
    until_nobody_is_called("transient", &mut watcher);
    // A later owner of the number has no name.
    let mut service = world.server(SERVICE, 2);
    watcher.wait4bind(SERVICE, SOON).unwrap();
    assert_eq!(watcher.find("transient", NEVER_MIND), Err(IpcError::TimedOut));
    watcher.set_name("transient").unwrap();
    assert_eq!(service.find("transient", SOON), Ok(OTHER));
    assert_eq!(service.set_name("transient"), Err(IpcError::EndpointInUse));
    // One that ends without a word.
    drop(watcher);
    until_nobody_is_called("transient", &mut service);
    service.set_name("transient").unwrap();
    assert_eq!(world.program().find("transient", SOON), Ok(SERVICE));
}

pub(super) fn what_is_no_name_is_refused(world: &dyn World) {
    let mut port = world.program();
    let too_long = "x".repeat(ENDPOINT_NAME_BYTES_MAX + 1);
    for name in ["", "a/b", "a b", "tab\t", "\u{e9}", &too_long] {
        assert_eq!(port.set_name(name), Err(IpcError::BadArgument), "{name:?}");
        assert_eq!(port.find(name, SOON), Err(IpcError::BadArgument), "{name:?}");
    }
    port.set_name("a").unwrap();
    assert_eq!(port.find("a", SOON), Ok(port.endpoint()));
}

pub(super) fn find_ends_at_its_limit_and_the_next_one_begins(world: &dyn World) {
    let mut port = world.program();
    assert_eq!(port.find("nobody", Wait::NoWait), Err(IpcError::NoSuchEndpoint));
    for _ in 0..3 {
        assert_eq!(port.find("nobody", NEVER_MIND), Err(IpcError::TimedOut));
    }
    port.set_name("somebody").unwrap();
    assert_eq!(port.find("somebody", SOON), Ok(port.endpoint()));
}

pub(super) fn name_stays_when_its_endpoint_has_another_owner(world: &dyn World) {
    let mut manager = world.near_server(MANAGER, 1);
    let mut service = world.server(SERVICE, 1);
    service.set_name("moving").unwrap();
    assert_eq!(manager.find("moving", SOON), Ok(SERVICE));
    let (node, path) = world.near();
    thread::scope(|scope| {
        let standing_by = scope.spawn(|| Port::stand_by(&path, SERVICE, SOON).unwrap());
        // The owner takes part in it from within a wait.
        scope.spawn(move || service.receive(abi::Source::Any, SOON).unwrap_err());
        manager.migration_start(SERVICE, SOON).unwrap();
        commit(&mut manager, SERVICE, node);
        let mut service = standing_by.join().unwrap();
        assert_eq!(service.find("moving", SOON), Ok(SERVICE));
        assert_eq!(world.program().find_place("moving", SOON), Ok((SERVICE, node)));
        // Somebody on the other node.
        let mut other = world.server(OTHER, 1);
        assert_eq!(other.find("moving", SOON), Ok(SERVICE));
        assert_eq!(other.set_name("moving"), Err(IpcError::EndpointInUse));
        service.unbind().unwrap();
        until_nobody_is_called("moving", &mut other);
    });
}

pub(super) fn promoted_backup_is_called_as_the_primary_was(world: &dyn World) {
    let mut manager = world.near_server(MANAGER, 1);
    let mut primary = world.server(SERVICE, 1);
    primary.set_name("replicated").unwrap();
    assert_eq!(manager.find("replicated", SOON), Ok(SERVICE));
    let (node, path) = world.near();
    thread::scope(|scope| {
        let standing_by = scope.spawn(|| Port::stand_by(&path, SERVICE, SOON).unwrap());
        promote(&mut manager, SERVICE, node, Epoch(5)).unwrap();
        let mut backup = standing_by.join().unwrap();
        assert_eq!(backup.find_place("replicated", SOON), Ok((SERVICE, node)));
        let mut other = world.server(OTHER, 1);
        assert_eq!(other.set_name("replicated"), Err(IpcError::EndpointInUse));
        assert_eq!(other.find("replicated", SOON), Ok(SERVICE));
        // The primary that was has no say in it any more.
        drop(primary);
        assert_eq!(manager.find("replicated", SOON), Ok(SERVICE));
        backup.set_name("replicated").unwrap();
    });
}
