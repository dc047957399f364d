//! Ports, rings and the broker on one node, in one process with threads.

use std::os::fd::AsFd;
use std::thread;
use std::time::Duration;

use abi::limits::INLINE_BYTES_MAX;
use broker::{Broker, BrokerConfig, BrokerError, DcOptions, Peers, Privileges, ServerIdentity};
use ipc::{Completion, DcId, Endpoint, Epoch, Event, IpcError, Message, Port, RingSpec, Source, Submission, Wait};

const DC: DcId = DcId(7);
const SOON: Wait = Wait::For(Duration::from_secs(10));
const NEVER_MIND: Wait = Wait::For(Duration::from_millis(30));

struct World {
    broker: Broker,
    directory: tempfile::TempDir,
}

impl World {
    fn new() -> World {
        World::with(Privileges { messages: Peers::Any, rings: Peers::Any })
    }

    fn with(program_privileges: Privileges) -> World {
        let directory = tempfile::tempdir().unwrap();
        let broker = Broker::start(BrokerConfig::local()).unwrap();
        let listen = Some(directory.path().join("m3ipc"));
        broker.add_dc(DC, DcOptions { listen, program_privileges, ..DcOptions::default() }).unwrap();
        World { broker, directory }
    }

    fn server(&self, endpoint: Endpoint, epoch: u64) -> Result<Port, IpcError> {
        let identity = ServerIdentity::new(endpoint, Epoch(epoch));
        Port::from_socket(self.broker.server_socket(DC, identity).unwrap(), None)
    }

    fn program(&self) -> Port {
        Port::connect(&self.directory.path().join("m3ipc"), None).unwrap()
    }
}

#[test]
fn request_is_answered_by_its_server() {
    let world = World::new();
    let mut server = world.server(Endpoint::FS, 1).unwrap();
    let mut client = world.program();
    let own = client.endpoint();
    thread::scope(|scope| {
        scope.spawn(move || {
            for _ in 0..1000 {
                let request = server.rcvrqst(SOON).unwrap();
                assert_eq!(request.source, Some(own));
                server.reply(own, &Message::new(request.kind + 1)).unwrap();
            }
        });
        for number in 0..1000 {
            let reply = client.sendrec(Endpoint::FS, &Message::new(number), SOON).unwrap();
            assert_eq!((reply.kind, reply.source), (number + 1, Some(Endpoint::FS)));
        }
    });
}

#[test]
fn data_travels_inline_with_request_and_reply() {
    let world = World::new();
    let mut server = world.server(Endpoint::FS, 1).unwrap();
    let mut client = world.program();
    thread::scope(|scope| {
        scope.spawn(move || {
            let request = server.receive(Source::Any, SOON).unwrap();
            let mut data = server.inline().to_vec();
            data.reverse();
            server.reply_inline(request.source.unwrap(), &request, &data).unwrap();
        });
        let data: Vec<u8> = (0..INLINE_BYTES_MAX).map(|index| index as u8).collect();
        client.sendrec_inline(Endpoint::FS, &Message::new(1), &data, SOON).unwrap();
        assert!(client.inline().iter().eq(data.iter().rev()));
        let too_long = vec![0; INLINE_BYTES_MAX + 1];
        let refused = client.sendrec_inline(Endpoint::FS, &Message::new(1), &too_long, SOON);
        assert_eq!(refused.unwrap_err(), IpcError::BadArgument);
    });
}

#[test]
fn timed_send_that_nobody_takes_is_withdrawn_and_never_delivered() {
    let world = World::new();
    let mut server = world.server(Endpoint::FS, 1).unwrap();
    let mut client = world.program();
    assert_eq!(client.send(Endpoint::FS, &Message::new(1), NEVER_MIND), Err(IpcError::TimedOut));
    assert_eq!(client.send(Endpoint::FS, &Message::new(2), Wait::NoWait), Err(IpcError::TimedOut));
    thread::scope(|scope| {
        scope.spawn(|| client.send(Endpoint::FS, &Message::new(3), SOON).unwrap());
        assert_eq!(server.receive(Source::Any, SOON).unwrap().kind, 3);
    });
    assert_eq!(server.receive(Source::Any, Wait::NoWait), Err(IpcError::TimedOut));
}

#[test]
fn late_reply_to_a_request_that_was_given_up_is_refused_and_never_taken_for_another() {
    let world = World::new();
    let mut server = world.server(Endpoint::FS, 1).unwrap();
    let mut client = world.program();
    let own = client.endpoint();
    thread::scope(|scope| {
        let caller = scope.spawn(|| {
            let first = client.sendrec(Endpoint::FS, &Message::new(1), NEVER_MIND);
            (first, client.sendrec(Endpoint::FS, &Message::new(2), SOON))
        });
        let first = server.receive(Source::Any, SOON).unwrap();
        assert_eq!(first.kind, 1);
        // The second request tells that the first was given up.
        let second = server.receive(Source::Any, SOON).unwrap();
        assert_eq!(second.kind, 2);
        server.reply(own, &Message::new(20)).unwrap();
        assert_eq!(server.reply(own, &Message::new(10)), Err(IpcError::NotWaiting));
        let (first, second) = caller.join().unwrap();
        assert_eq!(first, Err(IpcError::TimedOut));
        assert_eq!(second.unwrap().kind, 20);
    });
}

#[test]
fn send_to_a_caller_that_waits_is_its_reply() {
    let world = World::new();
    let mut server = world.server(Endpoint::FS, 1).unwrap();
    let mut client = world.program();
    thread::scope(|scope| {
        scope.spawn(move || {
            let request = server.receive(Source::Any, SOON).unwrap();
            let caller = request.source.unwrap();
            assert_eq!(server.sendrec(caller, &Message::new(0), SOON), Err(IpcError::Deadlock));
            server.send(caller, &Message::new(9), SOON).unwrap();
        });
        assert_eq!(client.sendrec(Endpoint::FS, &Message::new(1), SOON).unwrap().kind, 9);
    });
}

#[test]
fn higher_endpoint_gives_way_when_both_send() {
    let world = World::new();
    let mut low = world.server(Endpoint::FS, 1).unwrap();
    let mut high = world.server(Endpoint::DS, 1).unwrap();
    thread::scope(|scope| {
        let sender = scope.spawn(move || {
            low.send(Endpoint::DS, &Message::new(1), Wait::Forever).unwrap();
            // The message the other withdrew is not there.
            low.receive(Source::From(Endpoint::DS), NEVER_MIND)
        });
        assert_eq!(high.send(Endpoint::FS, &Message::new(2), Wait::Forever), Err(IpcError::Deadlock));
        assert_eq!(high.receive(Source::Any, SOON).unwrap().kind, 1);
        assert_eq!(sender.join().unwrap(), Err(IpcError::TimedOut));
    });
}

#[test]
fn notifications_merge_and_come_before_messages() {
    let world = World::new();
    let mut server = world.server(Endpoint::FS, 1).unwrap();
    let mut client = world.program();
    let own = client.endpoint();
    for bit in 0..3 {
        client.notify(Endpoint::FS, 1 << bit).unwrap();
    }
    thread::scope(|scope| {
        scope.spawn(|| client.send(Endpoint::FS, &Message::new(1), SOON).unwrap());
        match server.wait_event(SOON).unwrap() {
            Event::Notified { from, mask } => assert_eq!((from, mask), (own, 0b111)),
            other => panic!("{other:?} came first"),
        }
        assert!(matches!(server.wait_event(SOON).unwrap(), Event::Message(message) if message.kind == 1));
    });
}

#[test]
fn requests_are_taken_while_messages_and_notifications_stay() {
    let world = World::new();
    let mut server = world.server(Endpoint::FS, 1).unwrap();
    let (mut sender, mut caller) = (world.program(), world.program());
    sender.notify(Endpoint::FS, 1).unwrap();
    thread::scope(|scope| {
        scope.spawn(|| sender.send(Endpoint::FS, &Message::new(1), SOON).unwrap());
        scope.spawn(|| caller.sendrec(Endpoint::FS, &Message::new(2), SOON).unwrap());
        let request = server.rcvrqst(SOON).unwrap();
        assert_eq!(request.kind, 2);
        server.reply(request.source.unwrap(), &Message::new(0)).unwrap();
        assert_eq!(server.receive(Source::Any, SOON).unwrap().kind, 1);
        assert!(matches!(server.wait_event(SOON).unwrap(), Event::Notified { mask: 1, .. }));
    });
}

#[test]
fn opening_waits_until_the_server_is_bound() {
    let world = World::new();
    let mut client = world.program();
    assert_eq!(client.send(Endpoint::FS, &Message::new(1), SOON), Err(IpcError::NoSuchEndpoint));
    assert_eq!(client.wait4bind(Endpoint::FS, NEVER_MIND), Err(IpcError::TimedOut));
    let server = thread::scope(|scope| {
        let waiter = scope.spawn(|| client.wait4bind(Endpoint::FS, SOON));
        let server = world.server(Endpoint::FS, 1).unwrap();
        waiter.join().unwrap().unwrap();
        server
    });
    assert_eq!(client.wait4unbind(Endpoint::FS, NEVER_MIND), Err(IpcError::TimedOut));
    thread::scope(|scope| {
        let waiter = scope.spawn(|| client.wait4unbind(Endpoint::FS, SOON));
        server.unbind().unwrap();
        waiter.join().unwrap().unwrap();
    });
}

const SPEC: RingSpec = RingSpec { entries: 8, arena_bytes: 64 << 10 };

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

#[test]
fn ring_carries_many_requests_with_their_data() {
    let world = World::new();
    let server = world.server(Endpoint::DS, 1).unwrap();
    let mut client = world.program();
    thread::scope(|scope| {
        let server = scope.spawn(move || doubling_server(server));
        let ring = client.open_ring(Endpoint::DS, SPEC, SOON).unwrap();
        let (mut sent, mut done) = (0u32, 0u32);
        while done < 10_000 {
            while sent < 10_000 {
                let offset = sent % 8 * 4096;
                let submission = Submission { tag: sent, arena_offset: offset, out_bytes: 4, ..Submission::default() };
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

#[test]
fn ring_takes_no_more_than_it_has_entries() {
    let world = World::new();
    let _server = world.server(Endpoint::DS, 1).unwrap();
    let mut client = world.program();
    let ring = client.open_ring(Endpoint::DS, SPEC, SOON).unwrap();
    for tag in 0..8 {
        ring.submit(&Submission { tag, ..Submission::default() }).unwrap();
    }
    assert!(ring.submit(&Submission::default()).is_err());
    assert_eq!(ring.in_flight(), 8);
}

#[test]
fn submission_outside_the_arena_closes_the_ring() {
    let world = World::new();
    let mut server = world.server(Endpoint::DS, 1).unwrap();
    let mut client = world.program();
    let ring = client.open_ring(Endpoint::DS, SPEC, SOON).unwrap();
    ring.submit(&Submission { arena_offset: SPEC.arena_bytes, out_bytes: 1, ..Submission::default() }).unwrap();
    ring.publish();
    let Event::RingOpened(opened) = server.wait_event(SOON).unwrap() else { panic!("no ring") };
    assert!(matches!(server.wait_event(SOON).unwrap(), Event::RingReady(_)));
    assert_eq!(opened.next(), Err(IpcError::Corrupt));
    assert!(matches!(server.wait_event(SOON).unwrap(), Event::RingClosed(_, IpcError::Corrupt)));
    assert_eq!(ring.wait(SOON), Ok(()));
    assert_eq!(ring.poll(), Err(IpcError::Corrupt));
}

#[test]
fn client_of_a_ring_learns_that_its_server_ended() {
    let world = World::new();
    let server = world.server(Endpoint::DS, 1).unwrap();
    let mut client = world.program();
    let ring = client.open_ring(Endpoint::DS, SPEC, SOON).unwrap();
    thread::scope(|scope| {
        let waiter = scope.spawn(|| (ring.wait(SOON), ring.poll()));
        drop(server);
        assert_eq!(waiter.join().unwrap(), (Ok(()), Err(IpcError::SourceDied)));
    });
    let second = world.server(Endpoint::DS, 2).unwrap();
    let ring = client.open_ring(Endpoint::DS, SPEC, SOON).unwrap();
    assert_eq!(ring.is_closed(), None);
    drop(second);
}

#[test]
fn armed_ring_rings_for_completions_and_for_the_end() {
    let world = World::new();
    let mut server = world.server(Endpoint::DS, 1).unwrap();
    let mut client = world.program();
    let ring = client.open_ring(Endpoint::DS, SPEC, SOON).unwrap();
    ring.submit(&Submission { tag: 5, ..Submission::default() }).unwrap();
    ring.publish();
    assert_eq!(ring.arm(), ipc::Arming::Armed);
    let Event::RingOpened(opened) = server.wait_event(SOON).unwrap() else { panic!("no ring") };
    opened.next().unwrap().unwrap();
    opened.complete(&Completion { tag: 5, ..Completion::default() }).unwrap();
    opened.publish();
    wait_readable(ring.fd());
    ring.disarm();
    assert_eq!(ring.poll().unwrap().unwrap().tag, 5);
    assert_eq!(ring.arm(), ipc::Arming::Armed);
    drop((opened, server));
    wait_readable(ring.fd());
    ring.disarm();
    assert!(ring.poll().is_err());
}

#[test]
fn waker_ends_the_wait_of_another_thread_once() {
    let world = World::new();
    let mut server = world.server(Endpoint::DS, 1).unwrap();
    let waker = server.waker();
    thread::scope(|scope| {
        let waiter = scope.spawn(move || {
            assert!(matches!(server.wait_event(SOON).unwrap(), Event::Woken));
            server.wait_event(NEVER_MIND).unwrap_err()
        });
        waker.wake();
        assert_eq!(waiter.join().unwrap(), IpcError::TimedOut);
    });
}

#[test]
fn descriptor_of_an_idle_port_becomes_readable_for_messages_rings_and_wakes() {
    let world = World::new();
    let mut server = world.server(Endpoint::DS, 1).unwrap();
    let mut client = world.program();
    let idle = |server: &mut Port| assert_eq!(server.wait_event(Wait::NoWait).unwrap_err(), IpcError::TimedOut);
    idle(&mut server);
    client.notify(Endpoint::DS, 1).unwrap();
    wait_readable(server.fd());
    assert!(matches!(server.wait_event(Wait::NoWait).unwrap(), Event::Notified { .. }));
    idle(&mut server);
    client.notify(Endpoint::DS, 1).unwrap();
    wait_readable(server.fd());
    assert!(matches!(server.wait_event(Wait::NoWait).unwrap(), Event::Notified { .. }));
    idle(&mut server);
    server.waker().wake();
    wait_readable(server.fd());
    assert!(matches!(server.wait_event(Wait::NoWait).unwrap(), Event::Woken));
    idle(&mut server);
    let _ring = client.open_ring(Endpoint::DS, SPEC, SOON).unwrap();
    wait_readable(server.fd());
    assert!(matches!(server.wait_event(Wait::NoWait).unwrap(), Event::RingOpened(_)));
}

#[test]
fn manager_wakes_up_a_receiver() {
    let world = World::new();
    let mut manager = world.server(Endpoint::RS, 1).unwrap();
    let mut server = world.server(Endpoint::FS, 1).unwrap();
    let mut program = world.program();
    assert_eq!(program.wakeup(Endpoint::FS), Err(IpcError::Denied));
    thread::scope(|scope| {
        let waiter = scope.spawn(|| server.receive(Source::Any, SOON));
        manager.wakeup(Endpoint::FS).unwrap();
        assert_eq!(waiter.join().unwrap(), Err(IpcError::WokenUp));
    });
}

#[test]
fn program_opens_only_what_its_privileges_allow() {
    let world = World::with(Privileges::program());
    let _fs = world.server(Endpoint::FS, 1).unwrap();
    let other = world.program();
    let mut program = world.program();
    assert_eq!(program.send(other.endpoint(), &Message::new(1), SOON), Err(IpcError::Denied));
    assert_eq!(program.open_ring(Endpoint::FS, SPEC, SOON).unwrap_err(), IpcError::Denied);
    assert_eq!(program.send(Endpoint::FS, &Message::new(1), NEVER_MIND), Err(IpcError::TimedOut));
}

#[test]
fn number_of_a_server_belongs_to_one_and_an_old_epoch_is_fenced() {
    let world = World::new();
    let server = world.server(Endpoint::FS, 5).unwrap();
    assert_eq!(world.server(Endpoint::FS, 6).unwrap_err(), IpcError::EndpointInUse);
    server.unbind().unwrap();
    assert_eq!(world.server(Endpoint::FS, 4).unwrap_err(), IpcError::Fenced);
    assert!(world.server(Endpoint::FS, 6).is_ok());
    let refused = Port::connect(&world.directory.path().join("m3ipc"), Some(Endpoint::DS));
    assert_eq!(refused.unwrap_err(), IpcError::Denied);
}

#[test]
fn container_names_its_own_endpoints_only() {
    let world = World::new();
    world.broker.add_dc(DcId(8), DcOptions::default()).unwrap();
    let _theirs = world.server(Endpoint::FS, 1).unwrap();
    let identity = ServerIdentity::new(Endpoint::DS, Epoch(1));
    let socket = world.broker.server_socket(DcId(8), identity).unwrap();
    let mut ours = Port::from_socket(socket, None).unwrap();
    assert_eq!(ours.send(Endpoint::FS, &Message::new(1), SOON), Err(IpcError::NoSuchEndpoint));
}

#[test]
fn removed_container_ends_every_binding_and_leaves_nothing() {
    let world = World::new();
    let mut server = world.server(Endpoint::FS, 1).unwrap();
    let mut client = world.program();
    client.notify(Endpoint::FS, 1).unwrap();
    world.broker.remove_dc(DC).unwrap();
    assert_eq!(server.wait_event(SOON).unwrap_err(), IpcError::NotBound);
    assert!(!world.directory.path().join("m3ipc").exists());
    assert!(world.broker.snapshot().unwrap().dcs.is_empty());
    assert!(matches!(world.broker.remove_dc(DC), Err(BrokerError::NoSuchDc(DC))));
}

#[test]
fn channels_go_on_without_a_broker_and_new_ones_are_refused() {
    let world = World::new();
    let mut server = world.server(Endpoint::FS, 1).unwrap();
    let mut client = world.program();
    client.notify(Endpoint::FS, 1).unwrap();
    assert!(matches!(server.wait_event(SOON).unwrap(), Event::Notified { .. }));
    world.broker.shutdown();
    thread::scope(|scope| {
        scope.spawn(move || {
            let request = server.rcvrqst(SOON).unwrap();
            server.reply(request.source.unwrap(), &Message::new(4)).unwrap();
        });
        assert_eq!(client.sendrec(Endpoint::FS, &Message::new(3), SOON).unwrap().kind, 4);
    });
    assert_eq!(client.open_ring(Endpoint::FS, SPEC, SOON).unwrap_err(), IpcError::NoBroker);
    assert_eq!(client.wait4bind(Endpoint::DS, SOON).unwrap_err(), IpcError::NoBroker);
}

#[test]
fn client_that_sends_garbage_is_dropped_and_others_go_on() {
    let world = World::new();
    let path = world.directory.path().join("m3ipc");
    for garbage in [&[0u8; 3][..], &[0xff; 64], &[1; 200]] {
        let socket = sys::seqpacket::connect(&path).unwrap();
        sys::seqpacket::send(&socket, garbage, &[] as &[std::os::fd::OwnedFd]).unwrap();
        wait_readable(socket.as_fd());
        assert!(matches!(sys::seqpacket::receive(&socket, &mut [0; 64]), Ok(received) if received.bytes == 0));
    }
    world.program();
}

#[test]
fn many_clients_are_all_served() {
    let world = World::new();
    let mut server = world.server(Endpoint::FS, 1).unwrap();
    const CLIENTS: usize = 16;
    const CALLS: i32 = 200;
    thread::scope(|scope| {
        for _ in 0..CLIENTS {
            let mut client = world.program();
            scope.spawn(move || {
                for number in 0..CALLS {
                    assert_eq!(client.sendrec(Endpoint::FS, &Message::new(number), SOON).unwrap().kind, -number);
                }
            });
        }
        for _ in 0..CLIENTS as i32 * CALLS {
            let request = server.rcvrqst(SOON).unwrap();
            server.reply(request.source.unwrap(), &Message::new(-request.kind)).unwrap();
        }
    });
}

fn wait_readable(fd: std::os::fd::BorrowedFd<'_>) {
    let mut polled = [rustix::event::PollFd::new(&fd, rustix::event::PollFlags::IN)];
    let limit = rustix::event::Timespec { tv_sec: 10, tv_nsec: 0 };
    assert_eq!(rustix::event::poll(&mut polled, Some(&limit)).unwrap(), 1, "the descriptor never became readable");
}
