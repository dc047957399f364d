//! The descriptor for event loops: readable for whatever comes after a wait that timed out, also beside other calls.

use std::os::fd::BorrowedFd;
use std::thread;

use super::{SOON, SPEC, World};
use crate::{Endpoint, Event, IpcError, Message, Port, Wait};

pub(super) fn descriptor_rings_after_a_late_reply_and_after_a_call(world: &dyn World) {
    let mut server = world.server(Endpoint::FS, 1);
    let mut other = world.near_server(Endpoint::DS, 1);
    let mut client = world.program();
    let own = client.endpoint();
    server.fd();
    thread::scope(|scope| {
        scope.spawn(move || {
            for kind in 1..=3 {
                assert_eq!(client.sendrec(Endpoint::FS, &Message::new(kind), SOON).unwrap().kind, kind);
            }
            client.notify(Endpoint::FS, 1).unwrap();
        });
        scope.spawn(move || {
            let request = other.rcvrqst(SOON).unwrap();
            other.reply(request.source.unwrap(), &request).unwrap();
        });
        for kind in 1..=3 {
            assert!(matches!(polled(&mut server), Event::Message(message) if message.kind == kind));
            nothing_more(&mut server);
            if kind == 2 {
                server.sendrec(Endpoint::DS, &Message::new(9), SOON).unwrap();
            }
            server.reply(own, &Message::new(kind)).unwrap();
        }
        assert!(matches!(polled(&mut server), Event::Notified { from, mask: 1 } if from == own));
    });
}

pub(super) fn descriptor_rings_for_what_came_during_other_calls(world: &dyn World) {
    let mut server = world.server(Endpoint::FS, 1);
    let mut client = world.program();
    let own = client.endpoint();
    client.notify(Endpoint::FS, 1).unwrap();
    assert!(matches!(polled(&mut server), Event::Notified { .. }));
    nothing_more(&mut server);
    thread::scope(|scope| {
        scope.spawn(|| client.send(Endpoint::FS, &Message::new(4), SOON).unwrap());
        assert!(matches!(polled(&mut server), Event::Message(message) if message.kind == 4));
    });
    nothing_more(&mut server);
    assert_eq!(server.send(own, &Message::new(5), Wait::NoWait), Err(IpcError::TimedOut));
    client.notify(Endpoint::FS, 2).unwrap();
    assert!(matches!(polled(&mut server), Event::Notified { mask: 2, .. }));
    nothing_more(&mut server);
    let ring = client.open_ring(Endpoint::FS, SPEC, SOON).unwrap();
    // The notice of the ring is ahead of this answer, so the broker's socket is empty afterwards.
    server.wait4bind(Endpoint::FS, SOON).unwrap();
    assert!(matches!(polled(&mut server), Event::RingOpened(_)));
    drop(ring);
}

/// What an event loop does: polls, then asks without waiting. It may be woken for nothing.
fn polled(port: &mut Port) -> Event {
    loop {
        wait_readable(port.fd());
        match port.wait_event(Wait::NoWait) {
            Err(IpcError::TimedOut) => {}
            event => return event.unwrap(),
        }
    }
}

fn nothing_more(port: &mut Port) {
    assert_eq!(port.wait_event(Wait::NoWait).unwrap_err(), IpcError::TimedOut);
}

pub(super) fn wait_readable(fd: BorrowedFd<'_>) {
    let mut polled = [rustix::event::PollFd::new(&fd, rustix::event::PollFlags::IN)];
    let limit = rustix::event::Timespec { tv_sec: 10, tv_nsec: 0 };
    assert_eq!(rustix::event::poll(&mut polled, Some(&limit)).unwrap(), 1, "the descriptor never became readable");
}
