//! Processes that a manager binds. This process plays all of them, so the pid is its own.

use std::thread;
use std::time::Duration;

use crate::common::OneNode;
use broker::Privileges;
use ipc::conformance::World;
use ipc::{Endpoint, IpcError, Port, Wait};

const SOON: Wait = Wait::For(Duration::from_secs(10));
const NEVER_MIND: Wait = Wait::For(Duration::from_millis(30));

fn pid() -> i32 {
    std::process::id() as i32
}

fn number(number: u32) -> Endpoint {
    Endpoint::new(number).unwrap()
}

#[test]
fn process_gets_the_number_its_manager_kept_for_it() {
    let world = OneNode::new();
    let mut manager = world.server(Endpoint::PM, 1);
    assert_eq!(manager.bind_for(pid(), Some(number(700))), Ok(number(700)));
    assert_eq!(manager.bind_for(pid(), None), Ok(number(700)), "again");
    let bound = world.program();
    assert_eq!(bound.endpoint(), number(700));
    assert_ne!(world.program().endpoint(), number(700));
    assert_eq!(manager.bind_for(pid() + 1, Some(number(700))), Err(IpcError::EndpointInUse));
    assert_eq!(manager.bind_for(pid(), Some(Endpoint::PM)), Err(IpcError::EndpointInUse));
    assert_eq!(manager.bind_for(-1, None), Err(IpcError::BadArgument));
}

#[test]
fn process_waits_until_it_is_bound() {
    let world = OneNode::new();
    let mut manager = world.server(Endpoint::PM, 1);
    assert_eq!(Port::connect_when_bound(&world.socket(), NEVER_MIND).unwrap_err(), IpcError::TimedOut);
    thread::scope(|scope| {
        let waiting = scope.spawn(|| Port::connect_when_bound(&world.socket(), SOON).map(|port| port.endpoint()));
        // Whether it waits already or comes later is the same to it.
        assert_eq!(manager.bind_for(pid(), Some(Endpoint::IS)), Ok(Endpoint::IS));
        assert_eq!(waiting.join().unwrap(), Ok(Endpoint::IS), "a manager makes servers");
    });
}

#[test]
fn what_a_manager_keeps_is_given_back_when_it_ends() {
    let world = OneNode::new();
    let mut manager = world.server(Endpoint::PM, 1);
    manager.bind_for(pid() + 1, Some(number(700))).unwrap();
    let wish = |number| Port::connect(&world.socket(), Some(number)).map(|port| port.endpoint());
    assert_eq!(wish(number(700)), Err(IpcError::EndpointInUse));
    drop(manager);
    let mut next = world.server(Endpoint::PM, 2);
    next.bind_for(pid() + 1, Some(number(701))).unwrap();
    assert_eq!(wish(number(700)), Ok(number(700)));
}

#[test]
fn program_binds_nobody() {
    let world = OneNode::with(Privileges::program());
    assert_eq!(world.program().bind_for(pid(), None), Err(IpcError::Denied));
}
