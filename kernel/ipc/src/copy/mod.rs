//! Grants and copies, see `docs/design/copy.md`.
//!
//! - `mod.rs`: what a port remembers, and how it serves copiers while it waits ([`Attend`]).
//! - `lane.rs`: the copier's end: one copy, cut into chunks, pipelined.
//! - `serve.rs`: the owner's end: one request against the table of grants.
//! - `port/copying.rs`: the calls.
//!
//! A lane that others copy over is known to the port twice: as a slot, so that it rings the port's epoll, and in
//! [`Copying`], so that a wait for one peer, which borrows only its own slot, serves it too.

mod lane;
mod serve;

pub(crate) use lane::{CopyLane, Job, Local, Waiting};
pub(crate) use serve::serve;

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::AtomicU32;

use abi::limits::{COPIERS_PER_ENDPOINT, COPY_CHUNK_BYTES, COPY_ENTRIES};
use abi::{Endpoint, GrantId, IpcError};
use ipc_core::ChannelId;
use ipc_core::grants::Grants;
use ipc_shm::{Arena, ControlPage, ForkGuard, Link, Sleep};

use crate::connection::{Connection, Notice};
use crate::protocol::{Op, Packet};
use crate::ring::{RingServer, RingShared, RingSpec};

/// The size of every copy lane.
pub const COPY_SPEC: RingSpec = RingSpec { entries: COPY_ENTRIES, arena_bytes: COPY_ENTRIES * COPY_CHUNK_BYTES };

/// A place in granted memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Place {
    /// Who gave the grant; may be the caller itself.
    pub owner: Endpoint,
    pub grant: GrantId,
    pub offset: u64,
}

/// What a port remembers of grants and copies.
#[derive(Debug)]
pub(crate) struct Copying {
    guard: ForkGuard,
    pub grants: Grants<Arena>,
    /// Lanes over which others copy: at most `COPIERS_PER_ENDPOINT`.
    serving: Vec<Served>,
    /// Lanes over which this port copies, by the owner of the grants.
    pub lanes: HashMap<Endpoint, CopyLane>,
    /// Lanes accepted during a wait for one peer: the slots do not know them yet.
    unslotted: Vec<Arc<RingServer>>,
    /// The event of the own control page up to which the broker's notices were read.
    seen_event: u32,
    /// A wait for one peer changed how the lanes ring.
    disturbed: bool,
}

#[derive(Debug)]
struct Served {
    server: Arc<RingServer>,
    /// The copier's event before the last look.
    event: u32,
}

impl Copying {
    pub fn new(guard: ForkGuard, own: &ControlPage) -> Copying {
        Copying {
            guard,
            grants: Grants::default(),
            serving: Vec::new(),
            lanes: HashMap::new(),
            unslotted: Vec::new(),
            seen_event: own.event(),
            disturbed: false,
        }
    }

    /// Takes over a lane that somebody opened to this port.
    pub fn adopt(
        &mut self,
        packet: &Packet,
        link: Arc<Link>,
        connection: &Connection,
    ) -> Result<Arc<RingServer>, IpcError> {
        self.serving.retain(|served| served.server.is_closed().is_none());
        if self.serving.len() >= COPIERS_PER_ENDPOINT {
            return Err(IpcError::TableFull);
        }
        if packet.ring() != Some(COPY_SPEC) {
            return Err(IpcError::BadArgument);
        }
        let client = packet.peer.ok_or(IpcError::NoBroker)?;
        let shared = Arc::new(RingShared { link, closed: AtomicU32::new(0) });
        let socket = connection.shared_socket();
        let server = Arc::new(RingServer::new(shared, client, COPY_SPEC, self.guard, socket, packet.channel));
        self.serving.push(Served { event: server.link().peer_event(), server: server.clone() });
        Ok(server)
    }

    pub fn knows(&self, channel: ChannelId) -> bool {
        self.serving.iter().any(|served| served.server.id().0 == channel.0)
    }

    pub fn forget(&mut self, channel: ChannelId) {
        self.serving.retain(|served| served.server.id().0 != channel.0);
        self.unslotted.retain(|server| server.id().0 != channel.0);
    }

    /// Lanes for which the port has no slot yet.
    pub fn take_unslotted(&mut self) -> Vec<Arc<RingServer>> {
        std::mem::take(&mut self.unslotted)
    }

    /// Whether the lanes have to be looked at once more before the port's epoll can be relied on. True once.
    pub fn take_disturbed(&mut self) -> bool {
        std::mem::take(&mut self.disturbed)
    }
}

/// What serves copiers during a wait for one peer.
pub(crate) struct Attend<'a> {
    pub copying: &'a mut Copying,
    pub connection: &'a mut Connection,
    /// What is waited on.
    pub channel: ChannelId,
}

impl Attend<'_> {
    /// Serves what is asked now; whether there was anything.
    pub fn serve(&mut self) -> bool {
        let Copying { serving, grants, .. } = &mut *self.copying;
        let mut any = false;
        for served in serving.iter().filter(|served| served.server.has_submissions()) {
            any |= serve(&served.server, grants);
        }
        any
    }

    /// Reads what the broker said since, when the own page says that there may be something: a copier may have come.
    pub fn take_news(&mut self, own_event: u32) {
        if own_event == self.copying.seen_event {
            return;
        }
        self.copying.seen_event = own_event;
        self.connection.read_ahead();
        for notice in self.connection.take_copy_lanes() {
            self.accept(notice);
        }
    }

    /// Whether the broker said that the channel ended: nothing in memory says so when it may be used no more.
    pub fn ended(&self) -> Option<IpcError> {
        self.connection.ended(self.channel)
    }

    pub fn tell_wait(&mut self, peer: Endpoint) {
        self.connection.tell_wait(peer);
    }

    /// The wait goes on: says so if the broker asked.
    pub fn confirm_wait(&mut self) {
        self.connection.confirm_wait();
    }

    pub fn tell_wait_is_over(&mut self) {
        self.connection.tell_wait_is_over();
    }

    /// Whether the wait is the one of a deadlock that is to be given up.
    pub fn is_refused(&self) -> bool {
        self.connection.is_wait_refused()
    }

    /// The lanes wake this wait from now on. Serve once more before sleeping.
    pub fn prepare_sleep(&mut self) {
        self.copying.serving.retain(|served| served.server.is_closed().is_none());
        for served in &mut self.copying.serving {
            served.event = served.server.link().peer_event();
            served.server.link().prepare_sleep(Sleep::Futex);
            self.copying.disturbed = true;
        }
    }

    /// Links to sleep on besides the peer's, with the events seen of them.
    pub fn sleeping_on(&self) -> impl Iterator<Item = (&Link, u32)> {
        self.copying.serving.iter().map(|served| (&**served.server.link(), served.event))
    }

    pub fn end_sleep(&mut self) {
        for served in &self.copying.serving {
            served.server.link().prepare_sleep(Sleep::Awake);
        }
    }

    fn accept(&mut self, notice: Notice) {
        let packet = notice.packet;
        if self.copying.knows(packet.channel) {
            return;
        }
        let link = crate::port::map_channel(notice, Some(COPY_SPEC)).map(Arc::new);
        match link.and_then(|link| self.copying.adopt(&packet, link, self.connection)) {
            Ok(server) => self.copying.unslotted.push(server),
            Err(error) => {
                let close = Packet { channel: packet.channel, value: error.code(), ..Packet::new(Op::Close) };
                let _ = self.connection.send(&close);
            }
        }
    }
}
