//! Those who behave: a server that answers everybody, and a client that calls it all the time and checks every answer.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use ipc::conformance::World;
use ipc::{Completion, Endpoint, Event, Message, Port, RingId, RingServer, RingSpec, Submission, Wait, Waker};

pub const SERVER: Endpoint = Endpoint::FS;
/// What a call may take on a machine that is busy with attackers; a call that hangs takes the limit of its wait.
pub const CALL_MAX: Duration = Duration::from_secs(3);
const CALL_LIMIT: Wait = Wait::For(Duration::from_secs(8));
const SPEC: RingSpec = RingSpec { entries: 8, arena_bytes: 64 << 10 };
/// In the first word of what the honest client sends.
pub const MARK: u64 = 0x686f_6e65_7374;
/// A request of this kind is answered like any other; its payload claims to come from the honest client.
pub const FORGED: i32 = -7;

#[derive(Default)]
struct Counts {
    client_stops: AtomicBool,
    server_stops: AtomicBool,
    calls: AtomicU64,
    worst_micros: AtomicU64,
    /// Marked messages that the server was told came from another endpoint than the honest client.
    forged: AtomicU64,
    taken: AtomicU64,
    ended_rings: AtomicU64,
}

pub struct Honest {
    counts: Arc<Counts>,
    server: JoinHandle<()>,
    waker: Waker,
    client: JoinHandle<()>,
}

/// What the honest saw.
#[derive(Debug)]
pub struct Seen {
    pub calls: u64,
    pub worst: Duration,
    pub forged: u64,
    /// Messages and submissions of others that the server took.
    pub taken: u64,
    pub ended_rings: u64,
}

impl Honest {
    pub fn start(world: &impl World) -> Honest {
        let counts = Arc::new(Counts::default());
        let mut server = world.server(SERVER, 1);
        let client = world.program();
        let (own, waker) = (client.endpoint(), server.waker());
        let (for_server, for_client) = (counts.clone(), counts.clone());
        let server = std::thread::spawn(move || {
            let mut rings = HashMap::new();
            while !for_server.server_stops.load(Ordering::Relaxed) {
                serve(&mut server, own, &mut rings, &for_server);
            }
        });
        let client = std::thread::spawn(move || call(client, &for_client));
        Honest { counts, server, waker, client }
    }

    /// Returns when the honest have made some calls more, all of them answered.
    pub fn go_on(&self) {
        let (from, until) = (self.counts.calls.load(Ordering::Relaxed), Instant::now() + Duration::from_secs(20));
        while self.counts.calls.load(Ordering::Relaxed) < from + 50 {
            let is_alive = !self.client.is_finished() && !self.server.is_finished();
            assert!(is_alive && Instant::now() < until, "the honest do not go on");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Panics when one of them did, or a call took too long.
    pub fn stop(self) -> Seen {
        self.go_on();
        self.counts.client_stops.store(true, Ordering::Relaxed);
        self.client.join().expect("the client saw only right answers");
        self.counts.server_stops.store(true, Ordering::SeqCst);
        self.waker.wake();
        self.server.join().expect("the server did not panic");
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let seen = Seen {
            calls: count(&self.counts.calls),
            worst: Duration::from_micros(count(&self.counts.worst_micros)),
            forged: count(&self.counts.forged),
            taken: count(&self.counts.taken),
            ended_rings: count(&self.counts.ended_rings),
        };
        assert!(seen.calls > 0 && seen.worst < CALL_MAX, "{seen:?}");
        seen
    }
}

fn serve(server: &mut Port, honest: Endpoint, rings: &mut HashMap<RingId, RingServer>, counts: &Counts) {
    match server.wait_event(Wait::Forever) {
        Ok(Event::Message(message)) => {
            let source = message.source.expect("a message has a source");
            if message.word(0) == MARK && source != honest {
                counts.forged.fetch_add(1, Ordering::Relaxed);
            }
            if source != honest {
                counts.taken.fetch_add(1, Ordering::Relaxed);
            }
            let answer = Message { kind: message.kind.wrapping_add(1), ..message };
            let data = server.inline().to_vec();
            // A peer that does not wait for it has none.
            let _ = server.reply_inline(source, &answer, &data);
            let _ = server.notify(source, 1);
        }
        Ok(Event::RingOpened(ring)) => drop(rings.insert(ring.id(), ring)),
        Ok(Event::RingReady(id)) => {
            if let Some(ring) = rings.get(&id) {
                let is_honest = ring.client() == honest;
                counts.taken.fetch_add(u64::from(answer_some(ring)) * u64::from(!is_honest), Ordering::Relaxed);
            }
        }
        Ok(Event::RingClosed(id, reason)) => {
            assert!(ipc::errors::RING.contains(&reason), "{reason:?}");
            counts.ended_rings.fetch_add(1, Ordering::Relaxed);
            rings.remove(&id);
        }
        Ok(Event::Notified { .. } | Event::Woken) => {}
        Err(error) => panic!("the server lost its binding: {error}"),
    }
}

/// Answers at most as many requests as the ring may have in flight. The data is copied before anybody looks at it.
fn answer_some(ring: &RingServer) -> u32 {
    let mut answered = 0;
    for _ in 0..ring.spec().entries {
        let Ok(Some(request)) = ring.next() else { break };
        let offset = request.arena_offset as usize;
        let Ok(mut data) = ring.arena().to_vec(offset, request.out_bytes as usize) else { break };
        data.reverse();
        data.truncate(request.in_capacity as usize);
        let _ = ring.arena().copy_in(offset, &data);
        let in_bytes = data.len() as u32;
        let _ = ring.complete(&Completion {
            tag: request.tag,
            sequence: request.sequence,
            in_bytes,
            ..Completion::default()
        });
        answered += 1;
    }
    ring.publish();
    answered
}

fn call(mut client: Port, counts: &Counts) {
    let ring = client.open_ring(SERVER, SPEC, CALL_LIMIT).unwrap();
    let mut number = 0u64;
    while !counts.client_stops.load(Ordering::Relaxed) {
        number += 1;
        let begun = Instant::now();
        let request = Message::new(number as i32 & 0xffff).with_word(0, MARK).with_word(1, number);
        let data = number.to_le_bytes();
        let answer = client.sendrec_inline(SERVER, &request, &data, CALL_LIMIT).unwrap();
        assert_eq!((answer.kind, answer.word(1), answer.source), (request.kind + 1, number, Some(SERVER)));
        assert_eq!(client.inline(), data);
        ask_ring(&ring, number);
        counts.worst_micros.fetch_max(begun.elapsed().as_micros() as u64, Ordering::Relaxed);
        counts.calls.fetch_add(1, Ordering::Relaxed);
        if number.is_multiple_of(64) {
            // The attackers need the processor too.
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

fn ask_ring(ring: &ipc::RingClient, number: u64) {
    let tag = number as u32;
    ring.arena().copy_in(0, &number.to_le_bytes()).unwrap();
    let request = Submission { tag, sequence: number, out_bytes: 8, in_capacity: 8, ..Submission::default() };
    ring.submit(&request).unwrap();
    ring.publish();
    ring.wait(CALL_LIMIT).unwrap();
    let answer = ring.poll().unwrap().expect("waited for");
    assert_eq!((answer.tag, answer.sequence, answer.in_bytes), (tag, number, 8));
    assert_eq!(ring.arena().to_vec(0, 8).unwrap(), number.to_be_bytes());
}
