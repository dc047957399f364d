//! Calls that wait for each other in a circle. Of three parties two are where the servers are, one is where the clients
//! are.

use std::thread;
use std::time::{Duration, Instant};

use super::{NEVER_MIND, SOON, World};
use crate::{Endpoint, IpcError, Message, Port, Source, Wait};

const LOW: Endpoint = Endpoint::FS;
const MIDDLE: Endpoint = Endpoint::DS;
const HIGH: Endpoint = Endpoint::PM;

fn three(world: &dyn World) -> [Port; 3] {
    [world.server(LOW, 1), world.near_server(MIDDLE, 1), world.server(HIGH, 1)]
}

fn serve_one(port: &mut Port, from: Endpoint) {
    let request = port.receive(Source::From(from), SOON).unwrap();
    port.reply(from, &request).unwrap();
}

/// Each calls the next and then answers the one before; only the highest is refused.
fn run_circle(ports: &mut [Port; 3]) {
    let [low, middle, high] = ports;
    thread::scope(|scope| {
        let mut others = Vec::new();
        for (port, to, from) in [(low, MIDDLE, HIGH), (middle, HIGH, LOW)] {
            others.push(scope.spawn(move || {
                assert_eq!(port.sendrec(to, &Message::new(1), Wait::Forever).map(|it| it.kind), Ok(1));
                if from != HIGH {
                    serve_one(port, from);
                }
            }));
        }
        assert_eq!(high.sendrec(LOW, &Message::new(1), Wait::Forever), Err(IpcError::Deadlock));
        serve_one(high, MIDDLE);
        others.into_iter().for_each(|other| other.join().unwrap());
    });
    // What was refused is not there.
    assert_eq!(ports[0].receive(Source::Any, NEVER_MIND), Err(IpcError::TimedOut));
}

pub(super) fn circle_of_calls_is_broken_at_its_highest_endpoint(world: &dyn World) {
    let mut ports = three(world);
    for _ in 0..5 {
        run_circle(&mut ports);
    }
}

pub(super) fn circle_of_sends_loses_and_doubles_nothing(world: &dyn World) {
    let [mut low, mut middle, mut high] = three(world);
    for round in 0..5 {
        let message = Message::new(round);
        thread::scope(|scope| {
            let (low, middle, high) = (&mut low, &mut middle, &mut high);
            let lower = scope.spawn(move || {
                low.send(MIDDLE, &message, Wait::Forever).unwrap();
                low
            });
            let between = scope.spawn(move || {
                middle.send(HIGH, &message, Wait::Forever).unwrap();
                assert_eq!(middle.receive(Source::Any, SOON).unwrap().source, Some(LOW));
            });
            assert_eq!(high.send(LOW, &message, Wait::Forever), Err(IpcError::Deadlock));
            let taken = high.receive(Source::Any, SOON).unwrap();
            assert_eq!((taken.source, taken.kind), (Some(MIDDLE), round));
            between.join().unwrap();
            let low = lower.join().unwrap();
            assert_eq!(low.receive(Source::Any, NEVER_MIND), Err(IpcError::TimedOut));
        });
    }
}

pub(super) fn answer_to_a_call_that_was_refused_is_in_nobodys_way(world: &dyn World) {
    let [mut low, _middle, mut high] = three(world);
    thread::scope(|scope| {
        let answering = scope.spawn(move || {
            let wait = Wait::Forever;
            assert_eq!(low.receive(Source::From(HIGH), wait).map(|it| it.kind), Ok(1));
            assert_eq!(low.receive(Source::From(HIGH), wait).map(|it| it.kind), Ok(2));
            // It may not have seen that the call was refused.
            let late = low.reply(HIGH, &Message::new(3));
            assert!(matches!(late, Ok(()) | Err(IpcError::NotWaiting)), "{late:?}");
            low.send(HIGH, &Message::new(4), wait).unwrap();
        });
        assert_eq!(high.sendrec(LOW, &Message::new(1), Wait::Forever), Err(IpcError::Deadlock));
        high.send(LOW, &Message::new(2), SOON).unwrap();
        assert_eq!(high.receive(Source::From(MIDDLE), NEVER_MIND), Err(IpcError::TimedOut));
        let begun = Instant::now();
        assert_eq!(high.receive(Source::From(LOW), SOON).map(|it| it.kind), Ok(4));
        // Sooner than a sleeper looks again by itself.
        assert!(begun.elapsed() < Duration::from_secs(4), "{:?}", begun.elapsed());
        answering.join().unwrap();
    });
}

pub(super) fn circle_with_a_receiver_is_broken(world: &dyn World) {
    let [mut low, mut middle, mut high] = three(world);
    thread::scope(|scope| {
        let waiting = scope.spawn(move || high.receive(Source::From(LOW), Wait::Forever).map(|_| high));
        let calling = scope.spawn(move || middle.sendrec(HIGH, &Message::new(1), Wait::Forever));
        let called = scope.spawn(move || low.sendrec(MIDDLE, &Message::new(1), Wait::Forever));
        assert_eq!(waiting.join().unwrap().unwrap_err(), IpcError::Deadlock);
        // Its port is gone with it.
        assert!(matches!(calling.join().unwrap(), Err(IpcError::DestinationDied | IpcError::SourceDied)));
        assert!(matches!(called.join().unwrap(), Err(IpcError::DestinationDied | IpcError::SourceDied)));
    });
}

pub(super) fn chain_of_calls_that_ends_is_left_alone(world: &dyn World) {
    let [mut low, mut middle, mut high] = three(world);
    thread::scope(|scope| {
        let called = scope.spawn(move || low.sendrec(MIDDLE, &Message::new(1), Wait::Forever).map(|_| low));
        let between = scope.spawn(move || {
            let request = middle.receive(Source::From(LOW), Wait::Forever).unwrap();
            let answer = middle.sendrec(HIGH, &request, Wait::Forever).unwrap();
            middle.reply(LOW, &answer).unwrap();
            middle
        });
        let request = high.receive(Source::From(MIDDLE), Wait::Forever).unwrap();
        // Long enough for everybody to have told of its wait.
        assert_eq!(high.receive(Source::Any, Wait::For(Duration::from_millis(50))), Err(IpcError::TimedOut));
        high.reply(MIDDLE, &request).unwrap();
        let (_middle, low) = (between.join().unwrap(), called.join().unwrap());
        assert!(low.is_ok());
    });
}

pub(super) fn circle_with_a_limit_is_left_to_the_limit(world: &dyn World) {
    let [mut low, mut middle, mut high] = three(world);
    thread::scope(|scope| {
        let called = scope.spawn(move || low.sendrec(MIDDLE, &Message::new(1), Wait::Forever).map(|_| low));
        let between = scope.spawn(move || {
            middle.sendrec(HIGH, &Message::new(1), Wait::Forever).unwrap();
            serve_one(&mut middle, LOW);
            middle
        });
        let limit = Wait::For(Duration::from_millis(60));
        assert_eq!(high.sendrec(LOW, &Message::new(1), limit), Err(IpcError::TimedOut));
        serve_one(&mut high, MIDDLE);
        let (_middle, low) = (between.join().unwrap(), called.join().unwrap());
        assert!(low.is_ok());
    });
}
