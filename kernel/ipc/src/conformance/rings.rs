//! Rings.

use std::thread;

use super::descriptors::wait_readable;
use super::{SOON, SPEC, World};
use crate::{Arming, Completion, Endpoint, Event, IpcError, Port, RingClient, Submission};

/// Doubles every byte of a request's data; ends when its one client is gone.
fn doubling_server(mut port: Port) -> IpcError {
    let mut ring = None;
    loop {
        match port.wait_event(SOON).unwrap() {
            Event::RingOpened(opened) => ring = Some(opened),
            Event::RingReady(id) => {
                let ring = ring.as_ref().filter(|ring| ring.id() == id).unwrap();
                while let Some(submission) = ring.next().unwrap() {
                    let (offset, bytes) = (submission.arena_offset as usize, submission.out_bytes as usize);
                    let mut data = ring.arena().to_vec(offset, bytes).unwrap();
                    data.iter_mut().for_each(|byte| *byte = byte.wrapping_mul(2));
                    ring.arena().copy_in(offset, &data).unwrap();
                    let done =
                        Completion { tag: submission.tag, in_bytes: submission.out_bytes, ..Completion::default() };
                    ring.complete(&done).unwrap();
                }
                ring.publish();
            }
            Event::RingClosed(_, reason) => return reason,
            other => panic!("{other:?}"),
        }
    }
}

pub(super) fn ring_carries_many_requests_with_their_data(world: &dyn World) {
    let server = world.server(Endpoint::DS, 1);
    let mut client = world.program();
    thread::scope(|scope| {
        let server = scope.spawn(move || doubling_server(server));
        let ring = client.open_ring(Endpoint::DS, SPEC, SOON).unwrap();
        let (mut sent, mut done) = (0u32, 0u32);
        while done < 10_000 {
            while sent < 10_000 {
                let offset = sent % 8 * 4096;
                let submission = Submission {
                    tag: sent,
                    arena_offset: offset,
                    out_bytes: 4,
                    in_capacity: 4,
                    ..Submission::default()
                };
                // The slot of the arena is free when its last request is done.
                if sent >= done + 8 || ring.submit(&submission).is_err() {
                    break;
                }
                ring.arena().copy_in(offset as usize, &[sent as u8; 4]).unwrap();
                sent += 1;
            }
            ring.publish();
            ring.wait(SOON).unwrap();
            while let Some(completion) = ring.poll().unwrap() {
                assert_eq!(completion.tag, done);
                let data = ring.arena().to_vec((done % 8 * 4096) as usize, 4).unwrap();
                assert_eq!(data, [(done as u8).wrapping_mul(2); 4]);
                done += 1;
            }
        }
        drop(ring);
        assert_eq!(server.join().unwrap(), IpcError::SourceDied);
    });
}

pub(super) fn ring_takes_no_more_than_it_has_entries(world: &dyn World) {
    let _server = world.server(Endpoint::DS, 1);
    let mut client = world.program();
    let ring = client.open_ring(Endpoint::DS, SPEC, SOON).unwrap();
    for tag in 0..8 {
        ring.submit(&Submission { tag, ..Submission::default() }).unwrap();
    }
    assert!(ring.submit(&Submission::default()).is_err());
    assert_eq!(ring.in_flight(), 8);
}

pub(super) fn client_of_a_ring_learns_that_its_server_ended(world: &dyn World) {
    let mut server = world.server(Endpoint::DS, 1);
    let mut client = world.program();
    let ring = client.open_ring(Endpoint::DS, SPEC, SOON).unwrap();
    let Event::RingOpened(opened) = server.wait_event(SOON).unwrap() else { panic!("no ring") };
    thread::scope(|scope| {
        let waiter = scope.spawn(|| (ring.wait(SOON), ring.poll()));
        drop((opened, server));
        assert_eq!(waiter.join().unwrap(), (Ok(()), Err(IpcError::SourceDied)));
    });
    let second = world.server(Endpoint::DS, 2);
    let ring = client.open_ring(Endpoint::DS, SPEC, SOON).unwrap();
    assert_eq!(ring.is_closed(), None);
    drop(second);
}

pub(super) fn armed_ring_rings_for_completions_and_for_the_end(world: &dyn World) {
    let mut server = world.server(Endpoint::DS, 1);
    let mut client = world.program();
    let ring = client.open_ring(Endpoint::DS, SPEC, SOON).unwrap();
    ring.submit(&Submission { tag: 5, ..Submission::default() }).unwrap();
    ring.publish();
    let Event::RingOpened(opened) = server.wait_event(SOON).unwrap() else { panic!("no ring") };
    assert!(matches!(server.wait_event(SOON).unwrap(), Event::RingReady(id) if id == opened.id()));
    opened.next().unwrap().unwrap();
    opened.complete(&Completion { tag: 5, ..Completion::default() }).unwrap();
    opened.publish();
    assert_eq!(sleep_and_poll(&ring).unwrap().tag, 5);
    drop((opened, server));
    assert_eq!(sleep_and_poll(&ring), Err(IpcError::SourceDied));
}

/// What an event loop does. A bell may ring once more than there is something to poll.
fn sleep_and_poll(ring: &RingClient) -> Result<Completion, IpcError> {
    loop {
        if let Some(completion) = ring.poll()? {
            return Ok(completion);
        }
        if ring.arm() == Arming::Armed {
            wait_readable(ring.fd());
            ring.disarm();
        }
    }
}
