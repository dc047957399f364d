//! Data that a transport takes from where it lies, and puts where it belongs.

#[path = "sim/memory.rs"]
mod memory;
#[path = "sim/pieces.rs"]
mod pieces;

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use abi::ring::Submission;
use abi::{DcId, Endpoint, Epoch, IpcError, Lane, NodeId};
use memory::{ARENA_BYTES, ENTRIES, Memory, SLOT_BYTES, SimChannel};
use pieces::gathered;
use proxy_link::{
    Action, Bodies, Ends, Identity, InBuffer, LinkTimes, LocalChannel, LocalRole, Peer, Phase, RingSpec, WireChannel,
};

const NOW: Duration = Duration::from_secs(1);

fn identity(id: u16) -> Identity {
    Identity { cluster: "c1".into(), node: format!("n{id}"), id: NodeId(id) }
}

/// One node, and what its transport did.
struct Node {
    peer: Peer<SimChannel>,
    input: InBuffer,
    /// Bytes of data that were put where they belong without the buffer.
    straight: usize,
}

/// Two nodes with a ring between them; nothing is copied that need not be.
struct World {
    client: Node,
    server: Node,
    channel: WireChannel,
    asks: SimChannel,
    answers: SimChannel,
}

fn node(me: u16, far: u16) -> Node {
    let peer = Peer::new(identity(me), Epoch(1), identity(far), LinkTimes::default(), NOW);
    Node { peer, input: InBuffer::new(), straight: 0 }
}

impl Node {
    fn pending(&mut self, now: Duration) -> Vec<u8> {
        gathered(&mut self.peer, Bodies::InPlace, now)
    }

    /// Sends at most so many bytes to `to`; whether there were any.
    fn send(&mut self, to: &mut Node, most: usize, now: Duration) -> bool {
        let mut bytes = self.pending(now);
        bytes.truncate(most);
        self.peer.sent(now, bytes.len());
        to.take(&bytes, now);
        !bytes.is_empty()
    }

    fn take(&mut self, mut bytes: &[u8], now: Duration) {
        while !bytes.is_empty() {
            let due = self.peer.due().filter(|_| self.input.waiting().is_empty());
            let count = due.map_or(0, |due| {
                let count = bytes.len().min(due.bytes as usize);
                due.local.copy_in(due.at, &bytes[..count]).expect("inside");
                count
            });
            self.peer.data_came(count as u32, now);
            self.straight += count;
            // As much as a head is long.
            let rest = &bytes[count..];
            let behind = rest.len().min(64);
            assert_eq!(self.input.append(&rest[..behind]), behind);
            bytes = &rest[behind..];
            if self.peer.phase() == Phase::Apart {
                let Ok(Some(whole)) = wire::frame_bytes(self.input.waiting()) else { continue };
                if whole > self.input.waiting().len() {
                    continue;
                }
                let Ok(wire::Frame::Hello(hello)) = wire::Frame::decode(&self.input.waiting()[..whole]) else {
                    panic!("HELLO")
                };
                self.peer.accepted(now, &hello).expect("let in");
                self.input.consume(whole);
            }
            self.peer.receive(&mut self.input, now).expect("the peer is correct");
        }
    }

    fn actions(&mut self) -> Vec<Action<SimChannel>> {
        std::iter::from_fn(|| self.peer.next_action()).collect()
    }

    fn closed(&mut self) -> Option<IpcError> {
        self.actions().into_iter().find_map(|action| match action {
            Action::Close { reason, .. } => Some(reason),
            _ => None,
        })
    }
}

fn exchange(a: &mut Node, b: &mut Node) {
    while a.send(b, usize::MAX, NOW) | b.send(a, usize::MAX, NOW) {}
}

fn memory(role: LocalRole) -> SimChannel {
    SimChannel(Rc::new(RefCell::new(Memory::new(role))))
}

fn linked() -> World {
    let (mut client, mut server) = (node(1, 2), node(2, 1));
    client.peer.dialled(NOW);
    exchange(&mut client, &mut server);
    let ring = Some(RingSpec { entries: ENTRIES, arena_bytes: ARENA_BYTES });
    let ends = Ends { dc: DcId(1), from: Endpoint::GATE, to: Endpoint::FS, lane: Lane(1), ring, incarnation: None };
    let (asks, answers) = (memory(LocalRole::Client), memory(LocalRole::Server));
    let Ok(channel) = client.peer.open_out(5, ends, asks.clone()) else { panic!("not admitted") };
    exchange(&mut client, &mut server);
    assert!(server.peer.opened_in(channel, ends, Ok(answers.clone())).is_ok());
    exchange(&mut client, &mut server);
    client.actions();
    server.actions();
    World { client, server, channel, asks, answers }
}

fn byte_at(tag: u32, at: usize) -> u8 {
    (at * 7 + at / 251 + tag as usize) as u8
}

/// Bytes of a slot: they are different in every place.
fn pattern(tag: u32) -> Vec<u8> {
    (0..SLOT_BYTES as usize).map(|at| byte_at(tag, at)).collect()
}

fn slot(tag: u32) -> std::ops::Range<usize> {
    (tag * SLOT_BYTES) as usize..((tag + 1) * SLOT_BYTES) as usize
}

impl World {
    /// The client asks with data of a whole slot for each of the tags.
    fn ask(&mut self, tags: std::ops::Range<u32>) {
        let memory = &mut *self.asks.0.borrow_mut();
        for tag in tags {
            memory.arena[slot(tag)].copy_from_slice(&pattern(tag));
            let submission = Submission {
                tag,
                arena_offset: tag * SLOT_BYTES,
                out_bytes: SLOT_BYTES,
                in_capacity: SLOT_BYTES,
                ..Submission::default()
            };
            memory.submissions.insert(memory.submission_cursor.tail % ENTRIES, submission);
            memory.submission_cursor.tail += 1;
        }
        self.client.peer.active(self.channel);
    }

    fn came(&self) -> u32 {
        self.answers.0.borrow().submission_cursor.tail
    }

    fn assert_came(&self, tags: std::ops::Range<u32>) {
        assert_eq!(self.came(), tags.end);
        for tag in tags {
            assert!(self.answers.0.borrow().arena[slot(tag)] == pattern(tag)[..], "the data of {tag}");
        }
    }
}

#[test]
fn long_data_is_sent_from_where_it_lies_and_comes_straight_to_its_place() {
    let mut world = linked();
    world.ask(0..3);
    let sent = world.client.pending(NOW).len();
    assert!(sent > 3 * SLOT_BYTES as usize, "all three go at once");
    assert!(world.client.peer.outgoing().pending().len() < 1024, "their heads alone lie in the buffer");
    exchange(&mut world.client, &mut world.server);
    world.assert_came(0..3);
    assert!(world.server.straight > 3 * SLOT_BYTES as usize - 3 * 64, "{} bytes", world.server.straight);
}

#[test]
fn what_a_party_writes_meanwhile_changes_bytes_and_nothing_else() {
    let mut world = linked();
    world.ask(0..2);
    while world.came() == 0 {
        assert!(world.client.send(&mut world.server, 1000, NOW));
        world.asks.0.borrow_mut().arena.fill(1);
    }
    exchange(&mut world.client, &mut world.server);
    assert_eq!(world.came(), 2);
    assert!(world.answers.0.borrow().arena[slot(1)].iter().all(|byte| *byte == 1));
}

#[test]
fn data_of_a_party_that_is_gone_arrives_whole_although_its_memory_goes() {
    for sent in [0, 100, 5000, 100_000] {
        let mut world = linked();
        world.ask(0..3);
        world.client.send(&mut world.server, sent, NOW);
        let World { client, channel, .. } = &mut world;
        client.peer.closed_here(*channel, IpcError::SourceDied);
        exchange(&mut world.client, &mut world.server);
        world.assert_came(0..3);
        assert_eq!(world.server.closed(), Some(IpcError::SourceDied));
    }
}

#[test]
fn link_stays_in_order_when_a_channel_ends_whose_data_is_under_way() {
    for sent in [100, 5000, 100_000] {
        let mut world = linked();
        world.ask(0..3);
        world.client.send(&mut world.server, sent, NOW);
        let World { client, server, channel, .. } = &mut world;
        // The far side ends it: this side forgets the channel, and its memory changes.
        server.peer.closed_here(*channel, IpcError::Denied);
        server.send(client, usize::MAX, NOW);
        assert_eq!(client.closed(), Some(IpcError::Denied));
        world.asks.0.borrow_mut().arena.fill(0);
        let heard = world.server.peer.counters().received_frames;
        exchange(&mut world.client, &mut world.server);
        world.client.peer.send_parcel(b"after it".to_vec());
        exchange(&mut world.client, &mut world.server);
        assert!(world.server.actions().iter().any(|action| matches!(action, Action::Parcel(_))), "{heard} frames");
        assert_eq!(world.client.peer.pending_bytes(), 0);
    }
}

#[test]
fn data_that_was_cut_on_its_way_is_sent_again_in_the_next_connection() {
    for sent in [100, 5000, 100_000, 200_000] {
        let mut world = linked();
        world.ask(0..3);
        world.client.send(&mut world.server, sent, NOW);
        for node in [&mut world.client, &mut world.server] {
            node.peer.cut();
            node.input.clear();
        }
        assert_eq!(world.client.peer.pending_bytes(), 0);
        world.client.peer.dialled(NOW);
        exchange(&mut world.client, &mut world.server);
        world.assert_came(0..3);
    }
}

#[test]
fn peer_that_takes_nothing_bounds_what_waits() {
    let mut world = linked();
    world.ask(0..ENTRIES);
    world.client.peer.fill(NOW);
    let waiting = world.client.pending(NOW).len();
    let bound = proxy_link::limits::TURN_BYTES + SLOT_BYTES as usize + proxy_link::limits::OUT_BYTES;
    assert!(waiting <= bound, "{waiting} bytes");
    assert!(world.client.peer.fill(NOW) || ENTRIES * SLOT_BYTES <= proxy_link::limits::TURN_BYTES as u32);
    exchange(&mut world.client, &mut world.server);
    world.assert_came(0..ENTRIES);
}
