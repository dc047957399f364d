//! The process: one broker at a time, one packet after the other.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::OwnedFd;

use rustix::event::PollFlags;

use super::{PACKET_BYTES_MAX, RECORDS_MAX, SPOKEN, Versions, await_ready, op};

/// A shelf is also of use to a broker that does not greet: the greeting is all that is new.
const OF_A_SHELF: Versions = SPOKEN;

/// By key: a record, which means nothing here, and its descriptors.
type Held = BTreeMap<Vec<u8>, (Vec<u8>, Vec<OwnedFd>)>;

/// Serves the brokers that come to `listener`, for ever. The socket's mode says who may connect.
pub fn serve(listener: OwnedFd) -> io::Result<()> {
    let mut held = Held::new();
    loop {
        await_ready(&listener, PollFlags::IN, None);
        match sys::seqpacket::accept(&listener) {
            Ok(socket) => converse(&socket, &mut held),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
    }
}

/// Until the broker ends, or says what no broker says.
fn converse(socket: &OwnedFd, held: &mut Held) {
    let mut buffer = vec![0; PACKET_BYTES_MAX + 1];
    loop {
        await_ready(socket, PollFlags::IN, None);
        let received = match sys::seqpacket::receive(socket, &mut buffer) {
            Ok(received) => received,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => continue,
            Err(error) => {
                sys::log::say(format_args!("shelf: what a broker sent could not be taken: {error}"));
                return;
            }
        };
        let Some((op, rest)) = buffer.get(..received.bytes).and_then(|packet| packet.split_first()) else { return };
        let done = match *op {
            op::PUT => put(held, rest, received.descriptors),
            op::DROP => {
                held.remove(rest);
                Some(())
            }
            op::DROP_ALL => {
                held.retain(|key, _| !key.starts_with(rest));
                Some(())
            }
            op::TAKE => give(socket, held),
            op::HELLO => greet(socket, rest),
            _ => None,
        };
        if done.is_none() {
            sys::log::say(format_args!("shelf: a broker said something that makes no sense"));
            return;
        }
    }
}

/// A broker that shares no version hears which there are, and goes.
fn greet(socket: &OwnedFd, versions: &[u8]) -> Option<()> {
    let &[oldest, newest] = versions else { return None };
    let answer = match OF_A_SHELF.common(Versions { oldest, newest }) {
        Some(version) => vec![op::WELCOME, version],
        None => vec![op::OTHER_VERSION, OF_A_SHELF.oldest, OF_A_SHELF.newest],
    };
    send(socket, &answer, &[])
}

fn put(held: &mut Held, rest: &[u8], descriptors: Vec<OwnedFd>) -> Option<()> {
    let (key_bytes, rest) = rest.split_first()?;
    let (key, record) = rest.split_at_checked(usize::from(*key_bytes))?;
    if held.len() >= RECORDS_MAX {
        return None;
    }
    held.insert(key.to_vec(), (record.to_vec(), descriptors));
    Some(())
}

fn give(socket: &OwnedFd, held: &Held) -> Option<()> {
    let mut packet = Vec::new();
    for (record, descriptors) in held.values() {
        packet.clear();
        packet.push(op::HELD);
        packet.extend_from_slice(record);
        send(socket, &packet, descriptors)?;
    }
    send(socket, &[op::END], &[])
}

fn send(socket: &OwnedFd, packet: &[u8], descriptors: &[OwnedFd]) -> Option<()> {
    loop {
        match sys::seqpacket::send(socket, packet, descriptors) {
            Ok(()) => return Some(()),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                await_ready(socket, PollFlags::OUT, None);
            }
            // It ended; the next read says so too.
            Err(_) => return None,
        }
    }
}
