//! All sessions of one node: whose packet it is, who dials, who is answered that there is no such session.
//!
//! A packet names its session by the number its receiver gave, and must come from that session's peer. Numbers are
//! drawn at random, so that a proxy that was restarted answers packets for its predecessor with RST, and links are made
//! anew at once.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::hash::Hash;
use std::io;
use std::time::Duration;

use super::limits::{BACKLOG_MAX, SESSIONS_MAX};
use super::{Kind, Packet, Ranges, Session, State};

/// Where random numbers come from.
pub type Draw = Box<dyn FnMut() -> io::Result<u32> + Send>;

/// `A`: how the node at the other end is addressed.
pub struct Sessions<A> {
    packet_bytes: usize,
    draw: Draw,
    // In order of their numbers, so that the same packets lead to the same ones.
    entries: BTreeMap<u32, Entry<A>>,
    /// Sessions that others dialled, by who they are there.
    dialled: HashMap<(A, u32), u32>,
    backlog: VecDeque<u32>,
}

struct Entry<A> {
    session: Session,
    peer: A,
    /// Of a session that the peer dialled: its number there.
    dialled_as: Option<u32>,
    /// Its owner will ask for it, or the backlog.
    is_held: bool,
}

/// What became of a packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Received {
    /// This session may have something to send now.
    By(u32),
    /// [`refusal`] is to be sent back.
    Refused,
    Dropped,
}

/// There is no such session (any more): its peer need not wait for silence to find out.
pub fn refusal(packet: &Packet<'_>) -> Packet<'static> {
    Packet {
        kind: Kind::Rst,
        to: packet.from,
        from: packet.to,
        offset: 0,
        ack: 0,
        window: 0,
        stamp: 0,
        echo: 0,
        fin: false,
        ranges: Ranges::NONE,
        data: &[],
    }
}

impl<A: Copy + Eq + Hash> Sessions<A> {
    /// Packets have at most `packet_bytes`.
    pub fn new(packet_bytes: usize, draw: Draw) -> Sessions<A> {
        let (dialled, backlog) = (HashMap::new(), VecDeque::new());
        Sessions { packet_bytes, draw, entries: BTreeMap::new(), dialled, backlog }
    }

    /// Begins a session; its number here.
    ///
    /// # Errors
    /// Too many, or no random numbers.
    pub fn dial(&mut self, peer: A, now: Duration) -> io::Result<u32> {
        let id = self.free_id()?;
        let session = Session::dial(id, self.packet_bytes, now);
        self.entries.insert(id, Entry { session, peer, dialled_as: None, is_held: true });
        Ok(id)
    }

    /// The next session that somebody dialled.
    pub fn accept(&mut self) -> Option<u32> {
        self.backlog.pop_front()
    }

    pub fn get(&self, id: u32) -> Option<&Session> {
        self.entries.get(&id).map(|entry| &entry.session)
    }

    pub fn get_mut(&mut self, id: u32) -> Option<&mut Session> {
        self.entries.get_mut(&id).map(|entry| &mut entry.session)
    }

    pub fn peer(&self, id: u32) -> Option<A> {
        self.entries.get(&id).map(|entry| entry.peer)
    }

    fn free_id(&mut self) -> io::Result<u32> {
        if self.entries.len() >= SESSIONS_MAX {
            return Err(io::Error::other("too many sessions"));
        }
        loop {
            let id = (self.draw)()?;
            if id != 0 && !self.entries.contains_key(&id) {
                return Ok(id);
            }
        }
    }

    /// A packet from `peer`.
    pub fn receive(&mut self, peer: A, packet: &Packet<'_>, now: Duration) -> Received {
        if packet.kind == Kind::Syn {
            return self.receive_syn(peer, packet, now).map_or(Received::Dropped, Received::By);
        }
        match self.entries.get_mut(&packet.to).filter(|entry| entry.peer == peer) {
            Some(entry) => {
                entry.session.receive(packet, now);
                Received::By(packet.to)
            }
            None if packet.kind == Kind::Rst => Received::Dropped,
            None => Received::Refused,
        }
    }

    fn receive_syn(&mut self, peer: A, packet: &Packet<'_>, now: Duration) -> Option<u32> {
        if let Some(id) = self.dialled.get(&(peer, packet.from)).copied() {
            self.get_mut(id)?.receive(packet, now);
            return Some(id);
        }
        if self.backlog.len() >= BACKLOG_MAX {
            return None;
        }
        let id = self.free_id().ok()?;
        let session = Session::accept(id, packet.from, self.packet_bytes, now);
        self.entries.insert(id, Entry { session, peer, dialled_as: Some(packet.from), is_held: true });
        self.dialled.insert((peer, packet.from), id);
        self.backlog.push_back(id);
        Some(id)
    }

    /// When [`Sessions::tick`] has something to do.
    pub fn due(&self) -> Option<Duration> {
        self.entries.values().filter_map(|entry| entry.session.due()).min()
    }

    /// Time passed; which sessions may have something to send.
    pub fn tick(&mut self, now: Duration) -> Vec<u32> {
        let is_due = |(_, entry): &(&u32, &mut Entry<A>)| entry.session.due().is_some_and(|due| due <= now);
        let tick = |(id, entry): (&u32, &mut Entry<A>)| {
            entry.session.tick(now);
            *id
        };
        self.entries.iter_mut().filter(is_due).map(tick).collect()
    }

    /// Its owner needs it no more: it is closed, and forgotten when what was written has been delivered.
    pub fn release(&mut self, id: u32, now: Duration) {
        let Some(entry) = self.entries.get_mut(&id) else { return };
        entry.session.close(now);
        entry.is_held = false;
        self.forget_ended(id);
    }

    /// To be called when a session has sent what it had to: forgets it if it has ended and nobody holds it.
    pub fn forget_ended(&mut self, id: u32) {
        let has_ended = |entry: &Entry<A>| matches!(entry.session.state(), State::Closed | State::Failed(_));
        if !self.entries.get(&id).is_some_and(|entry| !entry.is_held && has_ended(entry)) {
            return;
        }
        if let Some(Entry { peer, dialled_as: Some(number), .. }) = self.entries.remove(&id) {
            self.dialled.remove(&(peer, number));
        }
    }
}
