//! Arbitrary packets to a running broker.
//!
//! An input is a list of packets, each behind a byte that says over which connection it goes; the top bit asks for a
//! new one, the next one says that a body comes behind the packet, with its length in one byte.

use std::cell::RefCell;
use std::os::fd::OwnedFd;

use broker::ServerIdentity;
use broker_api::{FromPort, IfAbsent, MESSAGE_BYTES_MAX, PACKET_BYTES};
use ipc::{Endpoint, Epoch};

use crate::bytes::Bytes;
use crate::member::{DC, World};

pub const WITH_BODY: u8 = 0x40;
const CONNECTIONS: usize = 4;
const PACKETS_MAX: usize = 64;

thread_local! {
    static WORLD: RefCell<World> = RefCell::new(World::new());
}

pub fn engine(data: &[u8]) {
    WORLD.with_borrow_mut(|world| {
        let mut bytes = Bytes(data);
        let mut connections: [Option<OwnedFd>; CONNECTIONS] = Default::default();
        for _ in 0..PACKETS_MAX {
            if bytes.is_over() {
                break;
            }
            let choice = bytes.u8();
            let place = choice as usize % CONNECTIONS;
            if choice & 0x80 != 0 || connections[place].is_none() {
                connections[place] = Some(connect(world, place));
            }
            let socket = connections[place].as_ref().expect("was made");
            let mut message = bytes.take(PACKET_BYTES).to_vec();
            if choice & WITH_BODY != 0 {
                let length = bytes.u8();
                message.extend_from_slice(bytes.take(usize::from(length)));
            }
            let _ = sys::seqpacket::send(socket, &message, &[] as &[OwnedFd]);
            // What it answers is thrown away, so that it has to write.
            let _ = sys::seqpacket::receive(socket, &mut [0; MESSAGE_BYTES_MAX]);
        }
        drop(connections);
        assert!(world.broker.snapshot().is_ok(), "the broker lives");
    });
}

/// A server's socket, bound already but for the last; the last is a proxy's.
fn connect(world: &World, place: usize) -> OwnedFd {
    if place == CONNECTIONS - 1 {
        return world.broker.proxy_socket().unwrap();
    }
    let number = Endpoint::new(100 + place as u32).expect("in range");
    let socket = world.broker.server_socket(DC, ServerIdentity::new(number, Epoch(1))).unwrap();
    if place != 0 {
        crate::member::say(
            &socket,
            1,
            &FromPort::Bind { endpoint: None, if_absent: IfAbsent::Fail, speaks: versions::PORT.speaks },
        );
    }
    socket
}
