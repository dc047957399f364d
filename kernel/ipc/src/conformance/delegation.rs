//! Requests passed on, and notifications on behalf of others.
//!
//! A client, a delegator and a target: programs cannot delegate, so both others are servers.

use std::thread;
use std::time::{Duration, Instant};

use abi::limits::{INLINE_BYTES_MAX, RELAYS_PER_LANE};

use super::{NEVER_MIND, SOON, World, giving_up};
use crate::{Calls, Endpoint, Event, IpcError, Message, Port, Privileges, Source, Wait};

const DELEGATOR: Endpoint = Endpoint::FS;
const TARGET: Endpoint = Endpoint::DS;
const OTHER: Endpoint = Endpoint::PM;

/// Delegator and target, in every way in which they can lie to the client, which is near.
const PLACES: [[Place; 2]; 4] =
    [[Place::Near, Place::Near], [Place::Near, Place::Far], [Place::Far, Place::Near], [Place::Far, Place::Far]];

#[derive(Clone, Copy, Debug)]
enum Place {
    Near,
    Far,
}

fn bind(world: &dyn World, place: Place, endpoint: Endpoint, epoch: u64) -> Port {
    match place {
        Place::Near => world.near_server(endpoint, epoch),
        Place::Far => world.server(endpoint, epoch),
    }
}

/// Who takes part. The other one is near.
struct Cast {
    client: Port,
    delegator: Port,
    target: Port,
    other: Port,
}

/// Runs a case once for each way.
fn everywhere(world: &dyn World, case: impl Fn(Cast)) {
    everywhere_in_time(world, |cast, _| {
        case(cast);
        true
    });
}

/// Runs a case for each way, with more and more patience until it was in time for what nobody can be told of. The
/// servers of a round begin when both nodes know those of the last to be gone.
fn everywhere_in_time(world: &dyn World, case: impl Fn(Cast, Wait) -> bool) {
    let mut witnesses = [world.near_server(Endpoint::RS, 1), world.server(Endpoint::IS, 1)];
    let mut epochs = 1..;
    for places in PLACES {
        let mut play = |timing| {
            let cast = cast(world, places, epochs.next().unwrap(), &mut witnesses);
            let is_in_time = case(cast, timing);
            for witness in &mut witnesses {
                for endpoint in [DELEGATOR, TARGET, OTHER] {
                    witness.wait4unbind(endpoint, SOON).unwrap();
                }
            }
            is_in_time
        };
        assert!((0..8).any(|attempt| play(Wait::For(Duration::from_millis(30 << attempt)))), "never in time");
    }
}

fn cast(world: &dyn World, [delegator, target]: [Place; 2], epoch: u64, witnesses: &mut [Port]) -> Cast {
    let client = world.program();
    let delegator = bind(world, delegator, DELEGATOR, epoch);
    let target = bind(world, target, TARGET, epoch);
    let other = world.near_server(OTHER, epoch);
    for witness in witnesses {
        for endpoint in [DELEGATOR, TARGET, OTHER, client.endpoint()] {
            witness.wait4bind(endpoint, SOON).unwrap();
        }
    }
    Cast { client, delegator, target, other }
}

/// Takes the next request of `client` and passes it on.
fn relay_next(delegator: &mut Port, client: Endpoint) {
    let request = delegator.rcvrqst(SOON).unwrap();
    assert_eq!(request.source, Some(client));
    delegator.relay(client, TARGET, &request).unwrap();
}

/// `relay_next` of a request that its client gives up then.
fn relay_one_to_be_given_up(delegator: &mut Port, client: Endpoint, taker: &giving_up::Taker) {
    taker.take(|wait| {
        let request = delegator.rcvrqst(wait)?;
        assert_eq!(request.source, Some(client));
        delegator.relay(client, TARGET, &request)
    });
}

/// News of a binding travel between nodes.
fn wait_until_known(port: &mut Port, endpoint: Endpoint) {
    port.wait4bind(endpoint, SOON).unwrap();
}

/// Serves its lanes until somebody sends it a message.
fn attend_until_told(mut port: Port) -> Port {
    port.receive(Source::Any, SOON).unwrap();
    port
}

/// Ends `attend_until_told`.
fn tell(world: &dyn World, endpoint: Endpoint) {
    let mut teller = world.program();
    wait_until_known(&mut teller, endpoint);
    teller.send(endpoint, &Message::new(0), SOON).unwrap();
}

/// Answers every request with its kind, negated, until one of kind 0.
fn negate(mut port: Port) -> Port {
    loop {
        let request = port.rcvrqst(SOON).unwrap();
        // A client that gave up is no reason to end.
        let _ = port.reply(request.source.unwrap(), &Message::new(-request.kind));
        if request.kind == 0 {
            return port;
        }
    }
}

pub(super) fn relayed_request_is_answered_by_its_target_in_the_name_of_its_client(world: &dyn World) {
    everywhere(world, |Cast { mut client, mut delegator, mut target, .. }| {
        let own = client.endpoint();
        let data: Vec<u8> = (0..INLINE_BYTES_MAX).map(|index| index as u8).collect();
        thread::scope(|scope| {
            scope.spawn(|| {
                wait_until_known(&mut delegator, TARGET);
                for _ in 0..50 {
                    let request = delegator.rcvrqst(SOON).unwrap();
                    // What it passes on is its own to word.
                    let changed = Message { kind: request.kind + 1, ..request };
                    let data = delegator.inline().to_vec();
                    delegator.relay_inline(own, TARGET, &changed, &data).unwrap();
                }
                attend_until_told(delegator);
            });
            scope.spawn(|| {
                for _ in 0..50 {
                    let request = target.rcvrqst(SOON).unwrap();
                    assert_eq!(request.source, Some(own));
                    let mut data = target.inline().to_vec();
                    data.reverse();
                    let reply = Message::new(request.kind * 2).with_word(6, request.word(6));
                    target.reply_inline(own, &reply, &data).unwrap();
                }
            });
            for number in 0..50 {
                let message = Message::new(number).with_word(6, 0xabcd);
                let bytes = data.len() - 41 * number as usize;
                let reply = client.sendrec_inline(DELEGATOR, &message, &data[..bytes], SOON).unwrap();
                assert_eq!((reply.kind, reply.source, reply.word(6)), ((number + 1) * 2, Some(DELEGATOR), 0xabcd));
                assert!(client.inline().iter().eq(data[..bytes].iter().rev()));
            }
            tell(world, DELEGATOR);
        });
    });
}

pub(super) fn many_relays_are_under_way_and_answered_in_any_order(world: &dyn World) {
    everywhere(world, |Cast { client, mut delegator, mut target, .. }| {
        const CLIENTS: usize = 12;
        drop(client);
        thread::scope(|scope| {
            let clients = Vec::from_iter((0..CLIENTS as i32).map(|number| {
                let mut client = world.program();
                scope.spawn(move || {
                    wait_until_known(&mut client, DELEGATOR);
                    assert_eq!(client.sendrec(DELEGATOR, &Message::new(number), SOON).unwrap().kind, -number);
                })
            }));
            scope.spawn(|| {
                wait_until_known(&mut delegator, TARGET);
                for _ in 0..CLIENTS {
                    let request = delegator.rcvrqst(SOON).unwrap();
                    delegator.relay(request.source.unwrap(), TARGET, &request).unwrap();
                }
                attend_until_told(delegator);
            });
            let mut requests: Vec<Message> = (0..CLIENTS).map(|_| target.rcvrqst(SOON).unwrap()).collect();
            requests.sort_by_key(|request| (request.kind % 3, request.kind));
            for request in requests {
                target.reply(request.source.unwrap(), &Message::new(-request.kind)).unwrap();
            }
            // Whoever hands the answers on stays until then.
            clients.into_iter().for_each(|client| client.join().unwrap());
            tell(world, DELEGATOR);
        });
    });
}

pub(super) fn relayed_request_is_answered_once_and_by_nobody_else(world: &dyn World) {
    everywhere(world, |Cast { mut client, mut delegator, mut target, .. }| {
        let own = client.endpoint();
        thread::scope(|scope| {
            let calling = scope.spawn(move || (client.sendrec(DELEGATOR, &Message::new(1), SOON), client));
            relay_next(&mut delegator, own);
            assert_eq!(delegator.reply(own, &Message::new(2)), Err(IpcError::NotWaiting));
            assert_eq!(delegator.send(own, &Message::new(2), SOON), Err(IpcError::Deadlock));
            assert_eq!(delegator.sendrec(own, &Message::new(2), SOON), Err(IpcError::Deadlock));
            assert_eq!(delegator.relay(own, TARGET, &Message::new(2)), Err(IpcError::NotWaiting));
            assert_eq!(target.rcvrqst(SOON).unwrap().kind, 1);
            assert_eq!(target.sendrec(own, &Message::new(3), SOON), Err(IpcError::Deadlock));
            // As for a caller of its own, a message is the answer.
            target.send(own, &Message::new(3), SOON).unwrap();
            assert_eq!(target.reply(own, &Message::new(4)), Err(IpcError::NotWaiting));
            let attending = scope.spawn(|| attend_until_told(delegator));
            let (reply, mut client) = calling.join().unwrap();
            assert_eq!(reply.unwrap().kind, 3);
            tell(world, DELEGATOR);
            let mut delegator = attending.join().unwrap();
            // Now the client waits for nothing, and can be talked to.
            scope.spawn(move || delegator.send(own, &Message::new(5), SOON).unwrap());
            assert_eq!(client.receive(Source::From(DELEGATOR), SOON).unwrap().kind, 5);
        });
    });
}

pub(super) fn request_that_cannot_be_relayed_stays_with_its_server(world: &dyn World) {
    let mut delegator = world.server(DELEGATOR, 1);
    let mut client = world.program();
    let own = client.endpoint();
    let message = Message::new(1);
    assert_eq!(delegator.relay(own, TARGET, &message), Err(IpcError::NotWaiting));
    thread::scope(|scope| {
        scope.spawn(|| assert_eq!(client.sendrec(DELEGATOR, &message, SOON).unwrap().kind, 2));
        delegator.rcvrqst(SOON).unwrap();
        assert_eq!(delegator.relay(own, DELEGATOR, &message), Err(IpcError::BadEndpoint));
        assert_eq!(delegator.relay(own, own, &message), Err(IpcError::BadEndpoint));
        assert_eq!(delegator.relay(own, TARGET, &message), Err(IpcError::NoSuchEndpoint));
        let too_long = vec![0; INLINE_BYTES_MAX + 1];
        assert_eq!(delegator.relay_inline(own, TARGET, &message, &too_long), Err(IpcError::BadArgument));
        delegator.reply(own, &Message::new(2)).unwrap();
        assert_eq!(delegator.relay(own, TARGET, &message), Err(IpcError::NotWaiting));
    });
}

pub(super) fn full_lane_refuses_relays_and_still_carries_notifications(world: &dyn World) {
    let mut delegator = world.server(DELEGATOR, 1);
    let mut target = world.near_server(TARGET, 1);
    let clients = RELAYS_PER_LANE as usize + 1;
    thread::scope(|scope| {
        let calling = Vec::from_iter((1..=clients as i32).map(|number| {
            let mut client = world.program();
            scope.spawn(move || {
                wait_until_known(&mut client, DELEGATOR);
                assert_eq!(client.sendrec(DELEGATOR, &Message::new(number), SOON).unwrap().kind, -number);
            })
        }));
        wait_until_known(&mut delegator, TARGET);
        let next = |delegator: &mut Port| {
            let request = delegator.rcvrqst(SOON).unwrap();
            (request, delegator.relay(request.source.unwrap(), TARGET, &request))
        };
        for _ in 0..RELAYS_PER_LANE {
            next(&mut delegator).1.unwrap();
        }
        let (refused, result) = next(&mut delegator);
        assert_eq!(result, Err(IpcError::TableFull));
        delegator.reply(refused.source.unwrap(), &Message::new(-refused.kind)).unwrap();
        delegator.notify_for(OTHER, TARGET, 4).unwrap();
        let attending = scope.spawn(|| attend_until_told(delegator));
        let (mut taken, mut is_notified) = (Vec::new(), false);
        while taken.len() < clients - 1 || !is_notified {
            match target.wait_event(SOON).unwrap() {
                Event::Message(request) => taken.push(request),
                Event::Notified { from: OTHER, mask: 4 } => is_notified = true,
                other => panic!("{other:?}"),
            }
        }
        for request in taken {
            target.reply(request.source.unwrap(), &Message::new(-request.kind)).unwrap();
        }
        calling.into_iter().for_each(|client| client.join().unwrap());
        tell(world, DELEGATOR);
        attending.join().unwrap();
    });
}

pub(super) fn client_learns_that_the_target_of_its_request_died(world: &dyn World) {
    everywhere(world, |Cast { mut client, mut delegator, mut target, mut other }| {
        let own = client.endpoint();
        thread::scope(|scope| {
            let calling = scope.spawn(move || (client.sendrec(DELEGATOR, &Message::new(1), Wait::Forever), client));
            relay_next(&mut delegator, own);
            target.rcvrqst(SOON).unwrap();
            wait_until_known(&mut delegator, OTHER);
            // Also while the delegator waits for somebody else.
            let delegating = scope.spawn(move || {
                delegator.sendrec(OTHER, &Message::new(2), SOON).unwrap();
                delegator
            });
            let request = other.rcvrqst(SOON).unwrap();
            drop(target);
            let (result, mut client) = calling.join().unwrap();
            assert_eq!(result, Err(IpcError::SourceDied));
            other.reply(request.source.unwrap(), &request).unwrap();
            let mut delegator = delegating.join().unwrap();
            // It goes on with the next call, over a channel of its own.
            let calling = scope.spawn(move || client.sendrec(DELEGATOR, &Message::new(3), SOON));
            let request = delegator.rcvrqst(SOON).unwrap();
            assert_eq!(request.kind, 3);
            let refused = delegator.relay(own, TARGET, &request).unwrap_err();
            assert!(matches!(refused, IpcError::NoSuchEndpoint | IpcError::SourceDied), "{refused:?}");
            delegator.reply(own, &Message::new(4)).unwrap();
            assert_eq!(calling.join().unwrap().unwrap().kind, 4);
        });
    });
}

pub(super) fn client_learns_that_its_delegator_may_delegate_no_more(world: &dyn World) {
    everywhere_in_time(world, |Cast { mut client, mut delegator, mut target, mut other }, timing| {
        let own = client.endpoint();
        let privileges = Privileges { calls: Calls::ALL.without(Calls::DELEGATE), ..Privileges::server() };
        wait_until_known(&mut other, DELEGATOR);
        thread::scope(|scope| {
            let calling = scope.spawn(move || (client.sendrec(DELEGATOR, &Message::new(1), Wait::Forever), client));
            relay_next(&mut delegator, own);
            target.rcvrqst(SOON).unwrap();
            let delegating = scope.spawn(move || attend_until_told(delegator));
            other.set_privileges(DELEGATOR, &privileges).unwrap();
            let revoked = Instant::now();
            let (result, mut client) = calling.join().unwrap();
            assert_eq!(result, Err(IpcError::SourceDied));
            // Sooner than a sleeper looks again by itself.
            assert!(revoked.elapsed() < Duration::from_secs(4), "{:?}", revoked.elapsed());
            other.send(DELEGATOR, &Message::new(0), SOON).unwrap();
            let mut delegator = delegating.join().unwrap();
            // The lane ends at the target a moment later.
            assert!(matches!(target.wait_event(timing), Err(IpcError::TimedOut)));
            let late = target.reply(own, &Message::new(2));
            assert!(matches!(late, Ok(()) | Err(IpcError::NotWaiting)), "{late:?}");
            // It goes on serving whom it served.
            let calling = scope.spawn(move || client.sendrec(DELEGATOR, &Message::new(3), SOON));
            let request = delegator.rcvrqst(SOON).unwrap();
            assert_eq!(delegator.relay(own, TARGET, &request), Err(IpcError::Denied));
            delegator.reply(own, &Message::new(4)).unwrap();
            assert_eq!(calling.join().unwrap().unwrap().kind, 4);
            late.is_err()
        })
    });
}

pub(super) fn client_learns_that_its_delegator_died_and_the_target_that_nobody_waits(world: &dyn World) {
    everywhere_in_time(world, |Cast { mut client, mut delegator, mut target, .. }, timing| {
        let own = client.endpoint();
        thread::scope(|scope| {
            let calling = scope.spawn(move || client.sendrec(DELEGATOR, &Message::new(1), Wait::Forever));
            relay_next(&mut delegator, own);
            target.rcvrqst(SOON).unwrap();
            drop(delegator);
            assert_eq!(calling.join().unwrap(), Err(IpcError::SourceDied));
            target.wait4unbind(DELEGATOR, SOON).unwrap();
            // Its channel ends with it, of which it is told a moment later.
            assert!(matches!(target.wait_event(timing), Err(IpcError::TimedOut)));
            let late = target.reply(own, &Message::new(2));
            assert!(matches!(late, Ok(()) | Err(IpcError::NotWaiting)), "{late:?}");
            late.is_err()
        })
    });
}

pub(super) fn late_reply_to_a_relayed_request_is_taken_for_no_other(world: &dyn World) {
    everywhere(world, |Cast { mut client, mut delegator, mut target, .. }| {
        let own = client.endpoint();
        let (caller, taker) = giving_up::sides();
        thread::scope(|scope| {
            let calling = scope.spawn(move || {
                caller.give_up(&mut client, DELEGATOR, &Message::new(1));
                client.sendrec(DELEGATOR, &Message::new(2), SOON)
            });
            relay_one_to_be_given_up(&mut delegator, own, &taker);
            assert_eq!(target.rcvrqst(SOON).unwrap().kind, 1);
            taker.wait_until_given_up();
            // It cannot know.
            target.reply(own, &Message::new(10)).unwrap();
            let request = delegator.rcvrqst(SOON).unwrap();
            assert_eq!(request.kind, 2);
            delegator.relay(own, TARGET, &request).unwrap();
            let attending = scope.spawn(|| attend_until_told(delegator));
            assert_eq!(target.rcvrqst(SOON).unwrap().kind, 2);
            target.reply(own, &Message::new(20)).unwrap();
            assert_eq!(calling.join().unwrap().unwrap().kind, 20);
            tell(world, DELEGATOR);
            attending.join().unwrap();
        });
    });
}

pub(super) fn client_that_died_is_no_trouble_to_who_answers_it(world: &dyn World) {
    everywhere(world, |Cast { mut client, mut delegator, mut target, .. }| {
        let own = client.endpoint();
        let (caller, taker) = giving_up::sides();
        thread::scope(|scope| {
            let calling = scope.spawn(move || {
                caller.give_up(&mut client, DELEGATOR, &Message::new(1));
                drop(client);
            });
            relay_one_to_be_given_up(&mut delegator, own, &taker);
            target.rcvrqst(SOON).unwrap();
            taker.wait_until_given_up();
            calling.join().unwrap();
            target.wait4unbind(own, SOON).unwrap();
            target.reply(own, &Message::new(2)).unwrap();
            let attending = scope.spawn(|| negate(delegator));
            let mut another = world.program();
            wait_until_known(&mut another, DELEGATOR);
            assert_eq!(another.sendrec(DELEGATOR, &Message::new(5), SOON).unwrap().kind, -5);
            another.sendrec(DELEGATOR, &Message::new(0), SOON).unwrap();
            attending.join().unwrap();
        });
    });
}

pub(super) fn client_that_gave_up_and_calls_the_target_itself_gets_the_answer_to_that(world: &dyn World) {
    // The target takes the relayed request first, or the direct one first, or answers whatever it takes.
    everywhere(world, |Cast { mut client, mut delegator, mut target, .. }| {
        let own = client.endpoint();
        let (caller, taker) = giving_up::sides();
        thread::scope(|scope| {
            let calling = scope.spawn(move || {
                caller.give_up(&mut client, DELEGATOR, &Message::new(1));
                assert_eq!(client.sendrec(TARGET, &Message::new(2), SOON).unwrap().kind, 20);
                caller.give_up(&mut client, DELEGATOR, &Message::new(3));
                assert_eq!(client.sendrec(TARGET, &Message::new(4), SOON).unwrap().kind, 40);
                client
            });
            relay_one_to_be_given_up(&mut delegator, own, &taker);
            assert_eq!(target.rcvrqst(SOON).unwrap().kind, 1);
            taker.wait_until_given_up();
            assert_eq!(target.rcvrqst(SOON).unwrap().kind, 2);
            target.reply(own, &Message::new(20)).unwrap();
            assert_eq!(target.reply(own, &Message::new(10)), Err(IpcError::NotWaiting));
            // Now it looks when both are there.
            relay_one_to_be_given_up(&mut delegator, own, &taker);
            taker.wait_until_given_up();
            let first = target.receive(Source::From(own), SOON).unwrap();
            let last = if first.kind == 3 { target.receive(Source::From(own), SOON).unwrap() } else { first };
            assert_eq!(last.kind, 4);
            // Nobody waits for the other one.
            assert!(matches!(target.rcvrqst(NEVER_MIND), Err(IpcError::TimedOut)));
            target.reply(own, &Message::new(40)).unwrap();
            calling.join().unwrap();
        });
    });
}

pub(super) fn client_that_gave_up_a_direct_call_gets_the_answer_to_what_is_relayed_then(world: &dyn World) {
    everywhere(world, |Cast { mut client, mut delegator, mut target, .. }| {
        let own = client.endpoint();
        let (caller, taker) = giving_up::sides();
        thread::scope(|scope| {
            let calling = scope.spawn(move || {
                for (kind, wait) in [(1, Wait::Forever), (3, SOON)] {
                    caller.give_up(&mut client, TARGET, &Message::new(kind));
                    assert_eq!(client.sendrec(DELEGATOR, &Message::new(kind + 1), wait).unwrap().kind, -kind - 1);
                }
            });
            let delegating = scope.spawn(|| {
                relay_next(&mut delegator, own);
                relay_next(&mut delegator, own);
                attend_until_told(delegator)
            });
            assert_eq!(taker.take(|wait| target.rcvrqst(wait)).kind, 1);
            taker.wait_until_given_up();
            // Its caller is patient, so it gave up the first.
            assert_eq!(target.rcvrqst(SOON).unwrap().kind, 2);
            target.reply(own, &Message::new(-2)).unwrap();
            assert_eq!(target.reply(own, &Message::new(-1)), Err(IpcError::NotWaiting));
            // Where one cannot know which of two is alive, the first is answered first.
            assert_eq!(taker.take(|wait| target.rcvrqst(wait)).kind, 3);
            taker.wait_until_given_up();
            let taken = target.rcvrqst(NEVER_MIND);
            let taken = taken.or_else(|_| {
                let _ = target.reply(own, &Message::new(-3));
                target.rcvrqst(SOON)
            });
            assert_eq!(taken.unwrap().kind, 4);
            target.reply(own, &Message::new(-4)).unwrap();
            calling.join().unwrap();
            tell(world, DELEGATOR);
            delegating.join().unwrap();
        });
    });
}

pub(super) fn receive_from_a_client_takes_what_comes_by_relay(world: &dyn World) {
    everywhere(world, |Cast { mut client, mut delegator, mut target, .. }| {
        let own = client.endpoint();
        let stranger = world.program();
        wait_until_known(&mut target, stranger.endpoint());
        thread::scope(|scope| {
            let calling = scope.spawn(move || {
                for number in 1..=2 {
                    assert_eq!(client.sendrec(DELEGATOR, &Message::new(number), SOON).unwrap().kind, -number);
                }
                client
            });
            relay_next(&mut delegator, own);
            let delegating = scope.spawn(move || {
                relay_next(&mut delegator, own);
                attend_until_told(delegator)
            });
            wait_until_known(&mut target, own);
            assert_eq!(target.receive(Source::From(stranger.endpoint()), NEVER_MIND), Err(IpcError::TimedOut));
            for number in 1..=2 {
                let request = target.receive(Source::From(own), SOON).unwrap();
                assert_eq!((request.kind, request.source), (number, Some(own)));
                target.reply(own, &Message::new(-number)).unwrap();
            }
            calling.join().unwrap();
            tell(world, DELEGATOR);
            delegating.join().unwrap();
        });
    });
}

pub(super) fn delegator_hands_answers_on_while_it_waits_for_another(world: &dyn World) {
    everywhere(world, |Cast { mut client, mut delegator, target, mut other }| {
        let own = client.endpoint();
        thread::scope(|scope| {
            let answering = scope.spawn(|| negate(target));
            let delegating = scope.spawn(|| {
                wait_until_known(&mut delegator, OTHER);
                relay_next(&mut delegator, own);
                delegator.sendrec(OTHER, &Message::new(2), Wait::Forever).unwrap();
                relay_next(&mut delegator, own);
                assert_eq!(delegator.receive(Source::From(OTHER), SOON).unwrap().kind, 3);
            });
            assert_eq!(client.sendrec(DELEGATOR, &Message::new(1), SOON).unwrap().kind, -1);
            let request = other.rcvrqst(SOON).unwrap();
            other.reply(request.source.unwrap(), &request).unwrap();
            // The last it answers.
            client.sendrec(DELEGATOR, &Message::new(0), SOON).unwrap();
            other.send(DELEGATOR, &Message::new(3), SOON).unwrap();
            delegating.join().unwrap();
            answering.join().unwrap();
        });
    });
}

pub(super) fn relayed_request_can_be_relayed_on_and_comes_back_the_same_way(world: &dyn World) {
    everywhere(world, |Cast { mut client, mut delegator, mut target, mut other }| {
        let own = client.endpoint();
        thread::scope(|scope| {
            let calling = scope.spawn(move || client.sendrec(DELEGATOR, &Message::new(1), SOON));
            relay_next(&mut delegator, own);
            let request = target.rcvrqst(SOON).unwrap();
            wait_until_known(&mut target, OTHER);
            target.relay(own, OTHER, &Message::new(request.kind + 1)).unwrap();
            assert_eq!(target.reply(own, &Message::new(0)), Err(IpcError::NotWaiting));
            let attending = scope.spawn(|| attend_until_told(target));
            // To the one from whom it came first.
            let request = other.rcvrqst(SOON).unwrap();
            assert_eq!((request.kind, request.source), (2, Some(own)));
            wait_until_known(&mut other, DELEGATOR);
            other.relay(own, DELEGATOR, &Message::new(request.kind + 1)).unwrap();
            let passing = scope.spawn(|| attend_until_told(other));
            assert_eq!(delegator.rcvrqst(SOON).unwrap().kind, 3);
            delegator.reply(own, &Message::new(4)).unwrap();
            let back = scope.spawn(|| attend_until_told(delegator));
            assert_eq!(calling.join().unwrap().unwrap().kind, 4);
            for endpoint in [DELEGATOR, TARGET, OTHER] {
                tell(world, endpoint);
            }
            [attending, passing, back].into_iter().for_each(|thread| drop(thread.join().unwrap()));
        });
    });
}

pub(super) fn client_learns_that_the_last_of_a_chain_died(world: &dyn World) {
    everywhere(world, |Cast { mut client, mut delegator, mut target, mut other }| {
        let own = client.endpoint();
        thread::scope(|scope| {
            let calling = scope.spawn(move || client.sendrec(DELEGATOR, &Message::new(1), Wait::Forever));
            relay_next(&mut delegator, own);
            let request = target.rcvrqst(SOON).unwrap();
            wait_until_known(&mut target, OTHER);
            target.relay(own, OTHER, &request).unwrap();
            other.rcvrqst(SOON).unwrap();
            let attending = [delegator, target].map(|port| scope.spawn(|| attend_until_told(port)));
            drop(other);
            assert_eq!(calling.join().unwrap(), Err(IpcError::SourceDied));
            for endpoint in [DELEGATOR, TARGET] {
                tell(world, endpoint);
            }
            attending.into_iter().for_each(|thread| drop(thread.join().unwrap()));
        });
    });
}

pub(super) fn notifications_for_others_merge_by_source_and_every_bit_arrives(world: &dyn World) {
    everywhere(world, |Cast { mut client, mut delegator, mut target, .. }| {
        const SOURCES: u32 = 100;
        let own = client.endpoint();
        wait_until_known(&mut delegator, TARGET);
        assert_eq!(delegator.notify_for(TARGET, TARGET, 1), Err(IpcError::BadEndpoint));
        assert_eq!(delegator.notify_for(OTHER, DELEGATOR, 1), Err(IpcError::BadEndpoint));
        assert_eq!(delegator.notify_for(OTHER, Endpoint::DISK, 1), Err(IpcError::NoSuchEndpoint));
        // More than the lane has room for. Nobody needs to be bound there.
        for bit in 0..3 {
            for number in 0..SOURCES {
                delegator.notify_for(Endpoint::new(2000 + number).unwrap(), TARGET, 1 << bit).unwrap();
            }
        }
        delegator.notify_for(own, TARGET, 1 << 63).unwrap();
        delegator.notify_for(DELEGATOR, TARGET, 1 << 62).unwrap();
        wait_until_known(&mut client, TARGET);
        client.notify(TARGET, 1).unwrap();
        let mut bits = std::collections::HashMap::new();
        thread::scope(|scope| {
            let attending = scope.spawn(|| attend_until_told(delegator));
            while bits.values().map(|mask: &u64| mask.count_ones()).sum::<u32>() < 3 * SOURCES + 3 {
                let Event::Notified { from, mask } = target.wait_event(SOON).unwrap() else { panic!("no event") };
                let seen = bits.entry(from).or_insert(0);
                assert_eq!(*seen & mask, 0, "a bit came twice");
                *seen |= mask;
            }
            tell(world, DELEGATOR);
            attending.join().unwrap();
        });
        assert_eq!((bits[&own], bits[&DELEGATOR]), (1 << 63 | 1, 1 << 62));
        assert!((0..SOURCES).all(|number| bits[&Endpoint::new(2000 + number).unwrap()] == 0b111));
    });
}

pub(super) fn clients_of_several_delegators_are_all_served(world: &dyn World) {
    const CLIENTS: usize = 8;
    const CALLS: i32 = 100;
    let delegators = [(DELEGATOR, world.server(DELEGATOR, 1)), (OTHER, world.near_server(OTHER, 1))];
    let target = world.server(TARGET, 1);
    thread::scope(|scope| {
        let target = scope.spawn(|| negate(target));
        let delegators = delegators.map(|(endpoint, mut port)| {
            let delegating = scope.spawn(move || {
                wait_until_known(&mut port, TARGET);
                loop {
                    let request = port.receive(Source::Any, SOON).unwrap();
                    if request.kind == 0 {
                        return;
                    }
                    port.relay(request.source.unwrap(), TARGET, &request).unwrap();
                }
            });
            (endpoint, delegating)
        });
        let clients: Vec<_> = (0..CLIENTS)
            .map(|index| {
                let mut client = world.program();
                scope.spawn(move || {
                    for endpoint in [DELEGATOR, OTHER, TARGET] {
                        wait_until_known(&mut client, endpoint);
                    }
                    for number in 1..=CALLS {
                        // Some calls go to the target without a detour.
                        let to = [DELEGATOR, OTHER, TARGET][(number as usize + index) % 3];
                        assert_eq!(client.sendrec(to, &Message::new(number), SOON).unwrap().kind, -number);
                    }
                })
            })
            .collect();
        clients.into_iter().for_each(|client| client.join().unwrap());
        for (endpoint, delegating) in delegators {
            tell(world, endpoint);
            delegating.join().unwrap();
        }
        world.program().sendrec(TARGET, &Message::new(0), SOON).unwrap();
        target.join().unwrap();
    });
}
