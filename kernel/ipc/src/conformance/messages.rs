//! Messages, notifications and binding.

use std::thread;

use abi::limits::INLINE_BYTES_MAX;

use super::{NEVER_MIND, SOON, World, giving_up};
use crate::{Endpoint, Event, IpcError, Message, Source, Wait};

pub(super) fn request_is_answered_by_its_server(world: &dyn World) {
    let mut server = world.server(Endpoint::FS, 1);
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

pub(super) fn data_travels_inline_with_request_and_reply(world: &dyn World) {
    let mut server = world.server(Endpoint::FS, 1);
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

pub(super) fn timed_send_that_nobody_takes_is_withdrawn_and_never_delivered(world: &dyn World) {
    let mut server = world.server(Endpoint::FS, 1);
    let mut client = world.program();
    assert_eq!(client.send(Endpoint::FS, &Message::new(1), NEVER_MIND), Err(IpcError::TimedOut));
    assert_eq!(client.send(Endpoint::FS, &Message::new(2), Wait::NoWait), Err(IpcError::TimedOut));
    thread::scope(|scope| {
        scope.spawn(|| client.send(Endpoint::FS, &Message::new(3), SOON).unwrap());
        assert_eq!(server.receive(Source::Any, SOON).unwrap().kind, 3);
    });
    assert_eq!(server.receive(Source::Any, Wait::NoWait), Err(IpcError::TimedOut));
}

pub(super) fn late_reply_to_a_request_that_was_given_up_is_refused_and_never_taken_for_another(world: &dyn World) {
    let mut server = world.server(Endpoint::FS, 1);
    let mut client = world.program();
    let own = client.endpoint();
    let (caller, taker) = giving_up::sides();
    thread::scope(|scope| {
        let calling = scope.spawn(move || {
            caller.give_up(&mut client, Endpoint::FS, &Message::new(1));
            client.sendrec(Endpoint::FS, &Message::new(2), SOON)
        });
        let first = taker.take(|wait| server.receive(Source::Any, wait));
        assert_eq!(first.kind, 1);
        taker.wait_until_given_up();
        let second = server.receive(Source::Any, SOON).unwrap();
        assert_eq!(second.kind, 2);
        server.reply(own, &Message::new(20)).unwrap();
        assert_eq!(server.reply(own, &Message::new(10)), Err(IpcError::NotWaiting));
        assert_eq!(calling.join().unwrap().unwrap().kind, 20);
    });
}

pub(super) fn message_to_a_caller_that_gave_up_comes_as_a_message(world: &dyn World) {
    let mut server = world.server(Endpoint::FS, 1);
    let mut client = world.program();
    let own = client.endpoint();
    let (caller, taker) = giving_up::sides();
    thread::scope(|scope| {
        scope.spawn(move || {
            for round in 0..8 {
                caller.give_up(&mut client, Endpoint::FS, &Message::new(round));
                assert_eq!(client.receive(Source::Any, SOON).unwrap().kind, 100 + round);
            }
            let answer = client.sendrec(Endpoint::FS, &Message::new(9), SOON).unwrap();
            assert_eq!(answer.kind, 9);
        });
        for round in 0..8 {
            assert_eq!(taker.take(|wait| server.receive(Source::Any, wait)).kind, round);
            taker.wait_until_given_up();
            // To one that waits it would be the answer; that it gave up may not be known here yet.
            server.send(own, &Message::new(100 + round), SOON).unwrap();
        }
        assert_eq!(server.receive(Source::Any, SOON).unwrap().kind, 9);
        server.send(own, &Message::new(9), SOON).unwrap();
    });
}

pub(super) fn messages_that_are_taken_back_at_once_harm_nothing(world: &dyn World) {
    let mut server = world.server(Endpoint::FS, 1);
    let mut client = world.program();
    for kind in 0..300 {
        assert_eq!(client.send(Endpoint::FS, &Message::new(kind), Wait::NoWait), Err(IpcError::TimedOut));
    }
    thread::scope(|scope| {
        scope.spawn(|| client.send(Endpoint::FS, &Message::new(1000), SOON).unwrap());
        assert_eq!(server.receive(Source::Any, SOON).unwrap().kind, 1000);
    });
}

pub(super) fn message_after_a_reply_that_came_too_late_is_taken_for_none_before_it(world: &dyn World) {
    let mut server = world.server(Endpoint::FS, 1);
    let mut client = world.program();
    let own = client.endpoint();
    let (caller, taker) = giving_up::sides();
    thread::scope(|scope| {
        scope.spawn(move || {
            // Each side counts what it sends, and a reply has the number of its request: here it is behind the server's
            // own.
            for round in 0..4 {
                for kind in [20, 21] {
                    assert_eq!(client.receive(Source::Any, SOON).unwrap().kind, kind + 10 * round);
                }
                caller.give_up(&mut client, Endpoint::FS, &Message::new(round));
            }
            assert_eq!(client.receive(Source::Any, SOON).unwrap().kind, 100);
        });
        for round in 0..4 {
            for kind in [20, 21] {
                server.send(own, &Message::new(kind + 10 * round), SOON).unwrap();
            }
            assert_eq!(taker.take(|wait| server.receive(Source::Any, wait)).kind, round);
            taker.wait_until_given_up();
            let late = server.reply(own, &Message::new(9));
            assert!(matches!(late, Ok(()) | Err(IpcError::NotWaiting)), "{late:?}");
        }
        server.send(own, &Message::new(100), SOON).unwrap();
    });
}

pub(super) fn send_to_a_caller_that_waits_is_its_reply(world: &dyn World) {
    let mut server = world.server(Endpoint::FS, 1);
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

pub(super) fn higher_endpoint_gives_way_when_both_send(world: &dyn World) {
    let mut low = world.server(Endpoint::FS, 1);
    let mut high = world.near_server(Endpoint::DS, 1);
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

pub(super) fn notifications_merge_and_every_bit_arrives(world: &dyn World) {
    let mut server = world.server(Endpoint::FS, 1);
    let mut client = world.program();
    let own = client.endpoint();
    for bit in 0..3 {
        client.notify(Endpoint::FS, 1 << bit).unwrap();
    }
    thread::scope(|scope| {
        scope.spawn(|| client.send(Endpoint::FS, &Message::new(1), SOON).unwrap());
        let (mut bits, mut events, mut messages) = (0, 0, 0);
        while bits != 0b111 || messages == 0 {
            match server.wait_event(SOON).unwrap() {
                Event::Notified { from, mask } => {
                    assert_eq!(from, own);
                    assert_eq!(bits & mask, 0, "a bit came twice");
                    bits |= mask;
                    events += 1;
                }
                Event::Message(_) => messages += 1,
                other => panic!("{other:?}"),
            }
        }
        assert!(events <= 3 && messages == 1);
    });
}

pub(super) fn notification_arrives_although_its_source_is_gone(world: &dyn World) {
    let mut server = world.server(Endpoint::FS, 1);
    for round in 0..20 {
        let mut source = world.program();
        let own = source.endpoint();
        let is_from = round % 8 >= 4;
        // A channel that is not open on the other node yet ends with its opener.
        thread::scope(|scope| {
            scope.spawn(|| source.send(Endpoint::FS, &Message::new(1), SOON).unwrap());
            server.receive(Source::Any, SOON).unwrap();
        });
        source.notify(Endpoint::FS, 1).unwrap();
        source.notify(Endpoint::FS, 1 << 63).unwrap();
        if round % 2 == 0 {
            source.unbind().unwrap()
        } else {
            drop(source)
        }
        if round % 4 < 2 {
            server.wait4unbind(own, SOON).unwrap();
        }
        let mut bits = 0;
        while bits != 1 | 1 << 63 {
            let event = if is_from { server.wait_event_from(own, SOON) } else { server.wait_event(SOON) };
            let Ok(Event::Notified { from, mask }) = event else { panic!("round {round}: {event:?}, had {bits:#x}") };
            assert_eq!(from, own);
            bits |= mask;
        }
    }
    assert!(matches!(server.wait_event(NEVER_MIND), Err(IpcError::TimedOut)));
}

pub(super) fn requests_are_taken_while_messages_and_notifications_stay(world: &dyn World) {
    let mut server = world.server(Endpoint::FS, 1);
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

pub(super) fn opening_waits_until_the_server_is_bound(world: &dyn World) {
    let mut client = world.program();
    assert_eq!(client.send(Endpoint::FS, &Message::new(1), SOON), Err(IpcError::NoSuchEndpoint));
    assert_eq!(client.wait4bind(Endpoint::FS, NEVER_MIND), Err(IpcError::TimedOut));
    let server = thread::scope(|scope| {
        let waiter = scope.spawn(|| client.wait4bind(Endpoint::FS, SOON));
        let server = world.server(Endpoint::FS, 1);
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

pub(super) fn wait_for_one_peer_takes_its_notifications_before_its_messages_and_leaves_others(world: &dyn World) {
    let mut server = world.server(Endpoint::FS, 1);
    let (mut wanted, mut other) = (world.program(), world.program());
    let (from, others) = (wanted.endpoint(), other.endpoint());
    assert_eq!(server.wait_event_from(from, NEVER_MIND).unwrap_err(), IpcError::TimedOut);
    other.notify(Endpoint::FS, 4).unwrap();
    wanted.notify(Endpoint::FS, 2).unwrap();
    thread::scope(|scope| {
        scope.spawn(|| wanted.send(Endpoint::FS, &Message::new(1), SOON).unwrap());
        let (mut mask, mut messages) = (0, Vec::new());
        while mask == 0 || messages.is_empty() {
            match server.wait_event_from(from, SOON).unwrap() {
                Event::Notified { from: source, mask: bits } if source == from => mask |= bits,
                Event::Message(message) => messages.push((message.source, message.kind)),
                event => panic!("{event:?}"),
            }
        }
        assert_eq!((mask, messages), (2, vec![(Some(from), 1)]));
    });
    assert_eq!(server.wait_event_from(from, NEVER_MIND).unwrap_err(), IpcError::TimedOut);
    let left = server.wait_event(SOON).unwrap();
    assert!(matches!(left, Event::Notified { from, mask: 4 } if from == others), "{left:?}");
    thread::scope(|scope| {
        let waiter = scope.spawn(|| server.wait_event_from(from, SOON));
        wanted.notify(Endpoint::FS, 8).unwrap();
        assert!(matches!(waiter.join().unwrap(), Ok(Event::Notified { mask: 8, .. })));
    });
}

pub(super) fn many_clients_are_all_served(world: &dyn World) {
    let mut server = world.server(Endpoint::FS, 1);
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

pub(super) fn every_blocking_call_ends_at_its_limit(world: &dyn World) {
    let _server = world.server(Endpoint::FS, 1);
    let mut client = world.program();
    let message = Message::new(1);
    let limits = [Wait::NoWait, NEVER_MIND];
    for wait in limits {
        assert_eq!(client.send(Endpoint::FS, &message, wait), Err(IpcError::TimedOut));
        assert_eq!(client.sendrec(Endpoint::FS, &message, wait), Err(IpcError::TimedOut));
        assert_eq!(client.receive(Source::Any, wait), Err(IpcError::TimedOut));
        assert_eq!(client.receive(Source::From(Endpoint::FS), wait), Err(IpcError::TimedOut));
        assert_eq!(client.rcvrqst(wait), Err(IpcError::TimedOut));
        assert_eq!(client.wait_event(wait).unwrap_err(), IpcError::TimedOut);
        assert_eq!(client.wait4bind(Endpoint::DS, wait), Err(IpcError::TimedOut));
        assert_eq!(client.wait4unbind(Endpoint::FS, wait), Err(IpcError::TimedOut));
    }
}

pub(super) fn receive_from_one_passes_over_all_others(world: &dyn World) {
    let mut server = world.server(Endpoint::FS, 1);
    let (mut first, mut second) = (world.program(), world.program());
    let wanted = second.endpoint();
    thread::scope(|scope| {
        scope.spawn(|| first.send(Endpoint::FS, &Message::new(1), SOON).unwrap());
        assert_eq!(server.receive(Source::From(wanted), NEVER_MIND), Err(IpcError::TimedOut));
        scope.spawn(|| second.send(Endpoint::FS, &Message::new(2), SOON).unwrap());
        assert_eq!(server.receive(Source::From(wanted), SOON).unwrap().kind, 2);
        assert_eq!(server.receive(Source::Any, SOON).unwrap().kind, 1);
    });
}

pub(super) fn reply_goes_only_to_who_waits_for_it(world: &dyn World) {
    let mut server = world.server(Endpoint::FS, 1);
    let mut client = world.program();
    let own = client.endpoint();
    assert_eq!(server.reply(own, &Message::new(1)), Err(IpcError::NotWaiting));
    thread::scope(|scope| {
        scope.spawn(|| client.send(Endpoint::FS, &Message::new(1), SOON).unwrap());
        server.receive(Source::From(own), SOON).unwrap();
        assert_eq!(server.reply(own, &Message::new(2)), Err(IpcError::NotWaiting));
    });
    thread::scope(|scope| {
        scope.spawn(|| client.sendrec(Endpoint::FS, &Message::new(3), SOON).unwrap());
        server.rcvrqst(SOON).unwrap();
        server.reply(own, &Message::new(4)).unwrap();
        assert_eq!(server.reply(own, &Message::new(5)), Err(IpcError::NotWaiting));
    });
}

pub(super) fn number_is_bound_once_and_free_after_unbind(world: &dyn World) {
    let server = world.server(Endpoint::FS, 1);
    let mut client = world.program();
    assert_eq!(client.send(client.endpoint(), &Message::new(1), SOON), Err(IpcError::BadEndpoint));
    assert_eq!(client.send(Endpoint::DS, &Message::new(1), SOON), Err(IpcError::NoSuchEndpoint));
    client.notify(Endpoint::FS, 1).unwrap();
    server.unbind().unwrap();
    client.wait4unbind(Endpoint::FS, SOON).unwrap();
    let gone = client.send(Endpoint::FS, &Message::new(1), SOON).unwrap_err();
    let is_gone = matches!(gone, IpcError::DestinationDied | IpcError::SourceDied | IpcError::NoSuchEndpoint);
    assert!(is_gone, "{gone:?}");
    let mut server = world.server(Endpoint::FS, 2);
    client.wait4bind(Endpoint::FS, SOON).unwrap();
    thread::scope(|scope| {
        scope.spawn(|| server.receive(Source::Any, SOON).unwrap());
        // Over two nodes the end of the old channel may come a moment later.
        while let Err(error) = client.send(Endpoint::FS, &Message::new(2), SOON) {
            let is_old = [IpcError::Fenced, IpcError::SourceDied, IpcError::DestinationDied].contains(&error);
            assert!(is_old, "{error:?}");
        }
    });
}

pub(super) fn program_is_found_by_its_pid_from_everywhere(world: &dyn World) {
    let mut server = world.server(Endpoint::FS, 1);
    let client = world.program();
    let pid = std::process::id() as i32;
    let found = server.getep(pid).unwrap();
    assert_eq!(found, client.endpoint());
    assert_eq!(server.getep(i32::MAX), Err(IpcError::NoSuchEndpoint));
    assert_eq!(server.getep(0), Err(IpcError::NoSuchEndpoint));
}
