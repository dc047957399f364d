//! Privileges on one node: the defaults, and a revocation that finds its parties waiting. The rest is in the
//! conformance suite.

use std::thread;
use std::time::Duration;

use crate::common::OneNode;
use broker::{Peers, Privileges};
use ipc::conformance::World;
use ipc::{Endpoint, IpcError, Message, Port, RingSpec, Source, Wait};

const SOON: Wait = Wait::For(Duration::from_secs(10));
const NEVER_MIND: Wait = Wait::For(Duration::from_millis(30));
const SPEC: RingSpec = RingSpec { entries: 8, arena_bytes: 64 << 10 };

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
