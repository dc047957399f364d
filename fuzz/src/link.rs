//! A peer proxy that sends arbitrary bytes.
//!
//! The first byte says how far an honest link got before: not greeted, up, or up with channels of both kinds open. The
//! rest comes in pieces, with time passing and frames being built between.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;
use std::time::Duration;

use abi::ring::{Completion, Submission};
use abi::{DcId, Endpoint, Epoch, IpcError, Lane, NodeId};
use proxy_link::{
    Action, Carried, Ends, Identity, InBuffer, Indices, LinkTimes, LocalChannel, LocalRole, Peer, Phase, RingSpec,
    Settled, WireChannel,
};

use crate::bytes::Bytes;

const ENTRIES: u32 = 4;
const ARENA_BYTES: u32 = 8192;
const STEPS_MAX: usize = 64;
const CHANNELS_MAX: usize = 64;

/// The memory of a channel whose local party does nothing but take what comes.
pub(crate) struct Memory {
    role: LocalRole,
    out: Option<Carried>,
    published: u32,
    cursor: Indices,
    put: u32,
    arena: Vec<u8>,
    entries: HashMap<u32, Submission>,
}

#[derive(Clone)]
pub(crate) struct Shared(Rc<RefCell<Memory>>);

impl Shared {
    pub fn new(role: LocalRole) -> Shared {
        Shared(Rc::new(RefCell::new(Memory {
            role,
            out: None,
            published: 0,
            cursor: Indices { head: 0, tail: 0 },
            put: 0,
            arena: vec![0; ARENA_BYTES as usize],
            entries: HashMap::new(),
        })))
    }
}

impl LocalChannel for Shared {
    fn role(&self) -> LocalRole {
        self.0.borrow().role
    }
    fn mark_open(&self) {}
    fn was_open(&self) -> bool {
        true
    }
    fn outbound(&self, forwarded: u32) -> Result<Option<Carried>, IpcError> {
        Ok(self.0.borrow().out.clone().filter(|message| message.word != forwarded))
    }
    fn mark_taken(&self, word: u32) {
        self.0.borrow_mut().out.take_if(|message| message.word == word);
    }
    fn cancel_requested(&self) -> Option<u32> {
        self.0.borrow().out.as_ref().map(|message| message.word).filter(|word| word & 16 != 0)
    }
    fn settle_withdrawn(&self, word: u32) {
        self.mark_taken(word);
    }
    fn publish(&self, message: Carried) -> Result<(), IpcError> {
        assert!(message.inline.len() <= abi::limits::INLINE_BYTES_MAX);
        self.0.borrow_mut().published = message.word;
        Ok(())
    }
    fn published(&self) -> u32 {
        self.0.borrow().published
    }
    fn taken(&self) -> u32 {
        self.0.borrow().published
    }
    fn withdraw(&self, word: u32) -> Option<Settled> {
        (word & 32 == 0).then_some(Settled::Taken)
    }
    fn pending_notification(&self) -> Option<(u64, u64)> {
        None
    }
    fn confirm_notification(&self, _: u64) {}
    fn notify(&self, _: u64, _: u64) {}
    fn notified(&self) -> u64 {
        0
    }
    fn entries(&self) -> Result<Indices, IpcError> {
        Ok(self.0.borrow().cursor)
    }
    fn confirm(&self, head: u32) {
        let mut memory = self.0.borrow_mut();
        assert!(head.wrapping_sub(memory.cursor.head) <= memory.cursor.tail.wrapping_sub(memory.cursor.head));
        memory.cursor.head = head;
    }
    fn put_count(&self) -> u32 {
        self.0.borrow().put
    }
    fn submission(&self, index: u32) -> Result<Submission, IpcError> {
        self.0.borrow().entries.get(&(index % ENTRIES)).copied().ok_or(IpcError::Corrupt)
    }
    fn completion(&self, index: u32) -> Result<Completion, IpcError> {
        Ok(Completion { tag: index % ENTRIES, in_bytes: 8, ..Completion::default() })
    }
    fn put_submission(&self, submission: &Submission) -> Result<(), IpcError> {
        assert!(submission.arena_offset.checked_add(submission.span_bytes()).is_some_and(|end| end <= ARENA_BYTES));
        self.0.borrow_mut().put += 1;
        Ok(())
    }
    fn put_completion(&self, completion: &Completion) -> Result<(), IpcError> {
        assert!(completion.in_bytes <= ARENA_BYTES);
        self.0.borrow_mut().put += 1;
        Ok(())
    }
    fn kick(&self) {}
    fn arena_bytes(&self) -> u32 {
        ARENA_BYTES
    }
    fn copy_out(&self, offset: u32, data: &mut [u8]) -> Result<(), IpcError> {
        let offset = offset as usize;
        data.copy_from_slice(self.0.borrow().arena.get(offset..offset + data.len()).ok_or(IpcError::OutOfGrant)?);
        Ok(())
    }
    fn copy_in(&self, offset: u32, data: &[u8]) -> Result<(), IpcError> {
        let (offset, mut memory) = (offset as usize, self.0.borrow_mut());
        memory.arena.get_mut(offset..offset + data.len()).ok_or(IpcError::OutOfGrant)?.copy_from_slice(data);
        Ok(())
    }
}

fn identity(id: u16) -> Identity {
    Identity { cluster: "c1".into(), node: format!("n{id}"), id: NodeId(id) }
}

/// A link between two honest proxies, and every byte that the second sent.
pub(crate) struct Pair {
    pub ours: Peer<Shared>,
    pub theirs: Peer<Shared>,
    pub heard: Vec<u8>,
    now: Duration,
}

impl Pair {
    pub fn new() -> Pair {
        let now = Duration::from_secs(1);
        let peer = |me, far| Peer::new(identity(me), Epoch(1), identity(far), LinkTimes::default(), now);
        Pair { ours: peer(1, 2), theirs: peer(2, 1), heard: Vec::new(), now }
    }

    pub fn greet(&mut self) {
        self.theirs.dialled(self.now);
        self.exchange();
    }

    /// One channel of messages and one ring from each side.
    pub fn open_channels(&mut self) {
        for lane in 0..2u16 {
            let ring = (lane > 0).then_some(RingSpec { entries: ENTRIES, arena_bytes: ARENA_BYTES });
            let ends = |from| Ends { dc: DcId(1), from, to: Endpoint::FS, lane: Lane(lane), ring, incarnation: None };
            let (near, far) = (Shared::new(LocalRole::Client), Shared::new(LocalRole::Client));
            let request = Submission { in_capacity: 64, out_bytes: 8, ..Submission::default() };
            near.0.borrow_mut().entries.insert(0, request);
            near.0.borrow_mut().cursor.tail = u32::from(ring.is_some());
            let _ = self.ours.open_out(u64::from(lane) + 1, ends(Endpoint::GATE), near);
            let _ = self.theirs.open_out(u64::from(lane) + 1, ends(Endpoint::DS), far);
        }
        self.exchange();
    }

    fn exchange(&mut self) {
        for _ in 0..12 {
            carry(&mut self.ours, &mut self.theirs, self.now);
            answer(&mut self.theirs);
            self.heard.extend(carry(&mut self.theirs, &mut self.ours, self.now));
            answer(&mut self.ours);
        }
    }
}

fn carry(from: &mut Peer<Shared>, to: &mut Peer<Shared>, now: Duration) -> Vec<u8> {
    from.fill(now);
    let bytes = from.outgoing().pending().to_vec();
    from.sent(now, bytes.len());
    let mut input = InBuffer::new();
    input.append(&bytes);
    let _ = hear(to, &mut input, now);
    bytes
}

/// The first frame of a connection that the other side dialled is its greeting.
fn hear(peer: &mut Peer<Shared>, input: &mut InBuffer, now: Duration) -> Result<(), ()> {
    if peer.phase() == Phase::Apart {
        let Ok(Some(whole)) = wire::frame_bytes(input.waiting()) else { return Ok(()) };
        let Some(first) = input.waiting().get(..whole) else { return Ok(()) };
        let Ok(wire::Frame::Hello(hello)) = wire::Frame::decode(first) else { return Err(()) };
        peer.accepted(now, &hello).map_err(drop)?;
        input.consume(whole);
    }
    peer.receive(input, now).map_err(drop)
}

fn answer(peer: &mut Peer<Shared>) {
    while let Some(action) = peer.next_action() {
        if let Action::OpenIn { channel, ends } = action {
            let result = if peer.channel_count() > CHANNELS_MAX {
                Err(IpcError::TableFull)
            } else {
                Ok(Shared::new(LocalRole::Server))
            };
            let _ = peer.opened_in(channel, ends, result);
        }
    }
}

pub fn link(data: &[u8]) {
    let mut bytes = Bytes(data);
    let mut pair = Pair::new();
    match bytes.u8() % 4 {
        0 => {}
        1 => pair.ours.dialled(pair.now),
        2 => pair.greet(),
        _ => {
            pair.greet();
            pair.open_channels();
        }
    }
    let mut input = InBuffer::new();
    let peer = &mut pair.ours;
    let mut now = pair.now;
    for _ in 0..STEPS_MAX {
        if bytes.is_over() {
            break;
        }
        let count = usize::from(bytes.u8()) * 16 + 1;
        input.append(bytes.take(count));
        if hear(peer, &mut input, now).is_err() {
            // The caller closes such a connection; the next greeting begins anew.
            peer.cut();
            input.clear();
        }
        answer(peer);
        let channels = [1, 2].map(|number| WireChannel { opener: NodeId(1), number });
        channels.into_iter().for_each(|channel| peer.active(channel));
        peer.fill(now);
        let sent = peer.outgoing().pending().len();
        peer.sent(now, sent);
        now += Duration::from_millis(1);
        let _ = peer.tick(now);
        answer(peer);
    }
}
