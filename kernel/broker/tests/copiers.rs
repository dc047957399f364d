//! Who copies from many that come and go keeps nothing of them. Descriptors are counted, so there is one test.

mod common;

use std::thread;
use std::time::Duration;

use common::OneNode;
use ipc::conformance::World;
use ipc::{Arena, Direction, Endpoint, GrantId, Message, Place, Port, Wait};

const SOON: Wait = Wait::For(Duration::from_secs(10));
const CLIENTS: usize = 400;
/// Those of the last clients, which the broker may not have closed yet.
const SLACK: usize = 60;

fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

/// Copies from each that asks it to, until told to end.
fn copy_for(mut server: Port) {
    loop {
        let request = server.rcvrqst(SOON).unwrap();
        let owner = request.source.unwrap();
        if request.kind == 1 {
            let place = Place { owner, grant: GrantId::from_number(request.word(0)), offset: 0 };
            server.copy_from(place, &mut [0; 10], SOON).unwrap();
        }
        server.reply(owner, &request).unwrap();
        if request.kind == 0 {
            return;
        }
    }
}

#[test]
fn server_keeps_no_lane_to_a_client_that_is_gone() {
    let world = OneNode::new();
    let server = world.server(Endpoint::FS, 1);
    let memory = Arena::private(10).unwrap();
    thread::scope(|scope| {
        scope.spawn(move || copy_for(server));
        let mut last = world.program();
        last.sendrec(Endpoint::FS, &Message::new(2), SOON).unwrap();
        let before = descriptors();
        for _ in 0..CLIENTS {
            let mut client = world.program();
            let grant = client.grant(Endpoint::FS, &memory, Direction::Read).unwrap();
            client.sendrec(Endpoint::FS, &Message::new(1).with_word(0, grant.number()), SOON).unwrap();
            client.unbind().unwrap();
        }
        let after = descriptors();
        last.sendrec(Endpoint::FS, &Message::new(0), SOON).unwrap();
        assert!(after <= before + SLACK, "{before} descriptors before, {after} after");
    });
}
