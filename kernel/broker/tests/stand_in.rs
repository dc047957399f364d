//! What a proxy sees of its channels.

mod common;

use std::time::Duration;

use common::{TwoNodes, wait_readable};
use ipc::conformance::World;
use ipc::stand_in::{StandInEvent, StandInPort};
use ipc::{Endpoint, IpcError, Wait};

const SOON: Wait = Wait::For(Duration::from_secs(20));

#[test]
fn what_rang_the_descriptor_of_a_proxy_that_slept_is_seen_with_its_next_look() {
    let mut world = TwoNodes::new();
    let _server = world.server(Endpoint::DS, 1);
    let mut client = world.program();
    world.stop_relay();
    let mut proxy = StandInPort::from_socket(world.brokers[0].proxy_socket().unwrap()).unwrap();
    client.notify(Endpoint::DS, 1).unwrap();
    let channel = loop {
        if let StandInEvent::OpenOut(channel) = proxy.wait_event(SOON).unwrap() {
            break channel;
        }
    };
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
