//! Lanes that the library serves by itself whenever its process waits in a call: others' copies ([`crate::copy`]), and
//! both ends of delegation ([`crate::delegate`]).
//!
//! Such a lane is known to the port twice: as a slot, so that it rings the port's epoll, and here, so that a wait for
//! one peer, which borrows only its own slot, serves it too.

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::AtomicU32;

use abi::limits::{COPIERS_PER_ENDPOINT, DELEGATES_PER_ENDPOINT, DELEGATORS_PER_ENDPOINT};
use abi::{Endpoint, IpcError, Lane};
use broker_api::Offer;
use ipc_core::{ChannelId, Sleep, Words};
use ipc_shm::{ChannelHalf, ControlPage, ForkGuard, Other};

use crate::connection::{Connection, Given};
use crate::copy::{COPY_SPEC, Copying, serve};
use crate::delegate::{DELEGATE_SPEC, Delegating, Inward, Origin, Outward, told_to_client};
use crate::errors::heard;
use crate::ring::{RingClient, RingServer, RingShared, RingSpec};
use crate::talk::{answer_relayed, claim_reply};

#[derive(Debug)]
pub(crate) struct Lanes {
    guard: ForkGuard,
    own: Endpoint,
    pub copying: Copying,
    pub delegating: Delegating,
    served: Vec<Served>,
    /// Lanes accepted during a wait for one peer: the slots do not know them yet.
    unslotted: Vec<Accepted>,
    /// The event of the own control page up to which the broker's notices were read.
    seen_event: u32,
    /// A wait for one peer changed how the lanes ring.
    disturbed: bool,
}

#[derive(Debug)]
struct Served {
    channel: ChannelId,
    half: Arc<ChannelHalf>,
    /// What was seen before the last look: the peer's event, and its page's.
    seen: (u32, u32),
    end: End,
}

#[derive(Debug)]
enum End {
    /// The peer copies from and to what was granted to it.
    Copier(Arc<RingServer>),
    /// The peer delegates to this endpoint.
    Inward(Inward),
    /// This endpoint delegates to the peer.
    Outward(Outward),
}

/// A lane that somebody opened.
#[derive(Debug)]
pub(crate) struct Accepted {
    pub channel: ChannelId,
    pub peer: Endpoint,
    pub half: Arc<ChannelHalf>,
    pub purpose: Purpose,
}

#[derive(Debug)]
pub(crate) enum Purpose {
    Copies(Arc<RingServer>),
    Delegation,
}

impl Served {
    fn is_over(&self) -> bool {
        match &self.end {
            End::Copier(server) => server.is_closed().is_some(),
            End::Inward(inward) => inward.end().is_some() && !inward.has_submissions(),
            End::Outward(outward) => outward.is_over() && outward.is_idle(),
        }
    }
}

impl Lanes {
    pub fn new(guard: ForkGuard, own: Endpoint, page: &ControlPage) -> Lanes {
        Lanes {
            guard,
            own,
            copying: Copying::default(),
            delegating: Delegating::default(),
            served: Vec::new(),
            unslotted: Vec::new(),
            seen_event: page.event(),
            disturbed: false,
        }
    }

    /// Takes over a lane that somebody opened to this port.
    pub fn adopt(
        &mut self,
        offer: &Offer,
        half: Arc<ChannelHalf>,
        connection: &Connection,
    ) -> Result<Purpose, IpcError> {
        let peer = offer.peer;
        let (spec, count_max) = match offer.lane.is_for_copies() {
            true => (COPY_SPEC, COPIERS_PER_ENDPOINT),
            false => (DELEGATE_SPEC, DELEGATORS_PER_ENDPOINT),
        };
        let is_theirs = [Lane::copies(peer, self.own), Lane::delegation(peer, self.own)].contains(&offer.lane);
        if offer.ring != Some(spec) || !is_theirs {
            return Err(IpcError::BadArgument);
        }
        self.drop_over();
        let is_like = |served: &&Served| match served.end {
            End::Copier(_) => offer.lane.is_for_copies(),
            End::Inward(_) => offer.lane.is_for_delegation(),
            End::Outward(_) => false,
        };
        if self.served.iter().filter(is_like).count() >= count_max {
            return Err(IpcError::TableFull);
        }
        let shared = Arc::new(RingShared { half: half.clone(), closed: AtomicU32::new(0) });
        let socket = connection.shared_socket();
        let server = RingServer::new(shared, peer, spec, self.guard, socket, offer.channel);
        let (end, purpose) = if offer.lane.is_for_copies() {
            let server = Arc::new(server);
            (End::Copier(server.clone()), Purpose::Copies(server))
        } else {
            (End::Inward(Inward::new(server)), Purpose::Delegation)
        };
        self.add(offer.channel, half, end);
        Ok(purpose)
    }

    /// A lane that this port opened.
    pub fn add_outward(&mut self, channel: ChannelId, ring: RingClient) {
        self.add(channel, ring.half().clone(), End::Outward(Outward::new(ring)));
    }

    pub fn knows(&self, channel: ChannelId) -> bool {
        self.served.iter().any(|served| served.channel == channel)
    }

    /// Lanes for which the port has no slot yet.
    pub fn take_unslotted(&mut self) -> Vec<Accepted> {
        std::mem::take(&mut self.unslotted)
    }

    /// Whether the lanes have to be looked at once more before the port's epoll can be relied on. True once.
    pub fn take_disturbed(&mut self) -> bool {
        std::mem::take(&mut self.disturbed)
    }

    /// The lane over which `target` is delegated to.
    pub fn outward_to(&mut self, target: Endpoint) -> Option<(ChannelId, &mut Outward)> {
        self.served.iter_mut().find_map(|served| match &mut served.end {
            End::Outward(outward) if outward.target() == target => Some((served.channel, outward)),
            _ => None,
        })
    }

    /// Whether another target has room; else a lane that can be given up for it.
    pub fn room_outward(&self) -> Result<Option<ChannelId>, IpcError> {
        let outward = || {
            self.served.iter().filter_map(|served| match &served.end {
                End::Outward(outward) => Some((served.channel, outward)),
                _ => None,
            })
        };
        if outward().count() < DELEGATES_PER_ENDPOINT {
            return Ok(None);
        }
        let idle = outward().find(|(_, outward)| outward.is_idle());
        idle.map(|(channel, _)| Some(channel)).ok_or(IpcError::TableFull)
    }

    /// The lane with this number, if others delegate over it.
    pub fn inward(&mut self, channel: ChannelId) -> Option<&mut Inward> {
        self.served.iter_mut().find(|served| served.channel == channel).and_then(|served| match &mut served.end {
            End::Inward(inward) => Some(inward),
            _ => None,
        })
    }

    /// Lanes that hold requests which came and were not taken.
    pub fn with_requests(&self) -> impl Iterator<Item = ChannelId> {
        let lanes = self.served.iter().filter(|served| matches!(&served.end, End::Inward(it) if !it.came.is_empty()));
        lanes.map(|served| served.channel)
    }

    #[inline]
    pub fn has_requests(&self) -> bool {
        self.with_requests().next().is_some()
    }

    /// Whether a lane has entries that were not looked at.
    pub fn has_entries(&self, channel: ChannelId) -> bool {
        self.served.iter().any(|served| {
            served.channel == channel
                && match &served.end {
                    End::Copier(server) => server.has_submissions(),
                    End::Inward(inward) => inward.has_submissions() || inward.broken().is_some(),
                    End::Outward(outward) => outward.has_news(),
                }
        })
    }

    pub fn have_relays(&self) -> bool {
        self.served.iter().any(|served| matches!(&served.end, End::Outward(outward) if outward.has_relays()))
    }

    /// Whether that request of that channel was relayed and waits for its answer.
    pub fn relays_from(&self, half: &ChannelHalf, request: u32) -> bool {
        self.served.iter().any(|served| match &served.end {
            End::Outward(outward) => outward.relays_from(half, request),
            _ => false,
        })
    }

    fn has_request_of(&self, client: Endpoint) -> bool {
        self.served.iter().any(|served| match &served.end {
            End::Inward(inward) => inward.came.iter().any(|came| came.client == client),
            _ => false,
        })
    }

    /// Drops lanes that are over and hold nothing more. Nobody waits for the answers that are owed over them.
    fn drop_over(&mut self) {
        let passed = &mut self.delegating.passed;
        self.served.retain(|served| {
            let is_over = served.is_over();
            if is_over {
                passed.retain(|_, passed| passed.lane != served.channel);
            }
            !is_over
        });
    }

    fn add(&mut self, channel: ChannelId, half: Arc<ChannelHalf>, end: End) {
        let seen = (half.peer_event(), half.peer_control().event());
        self.served.push(Served { channel, half, seen, end });
    }

    /// Serves the lanes for which `which` is true; whether there was anything.
    fn serve(&mut self, which: impl Fn(ChannelId) -> bool) -> bool {
        let Lanes { served, copying, delegating, own, .. } = self;
        let mut any = false;
        for Served { channel, end, .. } in served {
            if !which(*channel) {
                continue;
            }
            any |= match end {
                End::Copier(server) => server.has_submissions() && serve(server, &mut copying.grants),
                End::Inward(inward) => inward.has_submissions() && inward.take_in(*own, &mut delegating.notified),
                End::Outward(outward) => {
                    let has_news = outward.has_news();
                    if has_news && let Err(reason) = outward.take_completions(delegating) {
                        delegating.ended.push((*channel, reason));
                    }
                    has_news
                }
            };
        }
        any
    }
}

/// What serves the lanes during a call.
pub(crate) struct Attend<'a> {
    pub lanes: &'a mut Lanes,
    pub connection: &'a mut Connection,
    /// What is waited on.
    pub channel: ChannelId,
    /// Whose request or bits the waiter would also take when they come by others, and where that is said.
    pub expected: Option<&'a Expected>,
}

/// See [`Attend::expected`].
pub(crate) struct Expected {
    pub client: Endpoint,
    pub came: Cell<bool>,
}

impl Expected {
    pub fn of(client: Endpoint) -> Expected {
        Expected { client, came: Cell::new(false) }
    }
}

impl<'a> Attend<'a> {
    pub fn of(lanes: &'a mut Lanes, connection: &'a mut Connection, channel: ChannelId) -> Attend<'a> {
        Attend { lanes, connection, channel, expected: None }
    }
}

impl Attend<'_> {
    /// Serves what is asked now; whether there was anything.
    #[inline]
    pub fn serve(&mut self) -> bool {
        !self.lanes.served.is_empty() && self.serve_lanes(|_| true)
    }

    /// The same of one lane.
    pub fn serve_one(&mut self, channel: ChannelId) -> bool {
        self.serve_lanes(|it| it == channel)
    }

    /// Forgets a lane that is over. What its peer said last is heard.
    pub fn forget(&mut self, channel: ChannelId, reason: IpcError) {
        self.lanes.unslotted.retain(|accepted| accepted.channel != channel);
        self.lanes.copying.lanes.retain(|_, lane| lane.channel() != channel);
        let Delegating { passed, notified, .. } = &mut self.lanes.delegating;
        passed.retain(|_, passed| passed.lane != channel);
        let Some(at) = self.lanes.served.iter().position(|served| served.channel == channel) else { return };
        let Served { end, .. } = self.lanes.served.remove(at);
        match end {
            End::Copier(_) => {}
            End::Inward(mut inward) => {
                inward.take_in(self.lanes.own, notified);
            }
            End::Outward(mut outward) => {
                if outward.take_completions(&mut self.lanes.delegating).is_ok() {
                    outward.end(reason, &mut self.lanes.delegating);
                }
                self.hand_out_answers();
            }
        }
    }

    /// Reads what the broker said since, when the own page says that there may be something: a lane may have come.
    pub fn take_news(&mut self, own_event: u32) {
        if own_event == self.lanes.seen_event {
            return;
        }
        self.lanes.seen_event = own_event;
        self.connection.read_ahead();
        for given in self.connection.take_reserved_lanes() {
            self.accept(given);
        }
        // Nothing in memory says that a lane was revoked; its slot goes when the port reads the notices.
        let Attend { lanes, connection, .. } = self;
        let over = |served: &Served| Some((served.channel, connection.ended(served.channel)?));
        for (channel, reason) in Vec::from_iter(lanes.served.iter().filter_map(over)) {
            self.forget(channel, reason);
        }
    }

    /// Whether the broker said that the channel ended: nothing in memory says so when it may be used no more.
    pub fn ended(&self) -> Option<IpcError> {
        self.connection.ended(self.channel).map(heard)
    }

    pub fn tell_wait(&mut self, peer: Endpoint) {
        self.connection.tell_wait(peer);
    }

    /// The wait goes on: says so if the broker asked. Not while an answer to a relayed request may come: passing it on
    /// is something that a waiting party does for others.
    pub fn confirm_wait(&mut self) {
        if !self.lanes.have_relays() {
            self.connection.confirm_wait();
        }
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
        self.lanes.drop_over();
        for served in &mut self.lanes.served {
            served.seen = (served.half.peer_event(), served.half.peer_control().event());
            served.half.prepare_sleep(Sleep::Futex);
            self.lanes.disturbed = true;
        }
    }

    /// Whether only the channel of the peer is to be slept on.
    #[inline]
    pub fn has_no_lanes(&self) -> bool {
        self.lanes.served.is_empty()
    }

    /// Links to sleep on besides the peer's.
    pub fn sleeping_on(&self) -> impl Iterator<Item = Other<'_>> {
        self.lanes.served.iter().map(|served| {
            let (event, control) = served.seen;
            // Whoever relayed a request has to tell its client when the target dies.
            let peer_control = matches!(served.end, End::Outward(_)).then_some(control);
            Other { half: &served.half, event, peer_control }
        })
    }

    pub fn end_sleep(&mut self) {
        for served in &self.lanes.served {
            served.half.prepare_sleep(Sleep::Awake);
        }
    }

    #[inline(never)]
    fn serve_lanes(&mut self, which: impl Fn(ChannelId) -> bool) -> bool {
        let any = self.lanes.serve(which);
        if any {
            self.hand_out_answers();
            if let Some(expected) = self.expected {
                let came = self.lanes.has_request_of(expected.client);
                let bits = self.lanes.delegating.notified.has(expected.client);
                expected.came.set(expected.came.get() || came || bits);
            }
        }
        any
    }

    /// Gives every answer that came to whom it is for.
    fn hand_out_answers(&mut self) {
        for (origin, outcome) in std::mem::take(&mut self.lanes.delegating.answers) {
            match (origin, outcome) {
                (Origin::Delegator(passed), outcome) => {
                    if let Some(inward) = self.lanes.inward(passed.lane) {
                        inward.hand_back(&passed, &outcome);
                    }
                }
                (Origin::Caller { half, request, .. }, Ok((message, data))) => {
                    answer_relayed(&half, request, &message, &data);
                }
                // The target knew that nobody waits.
                (Origin::Caller { .. }, Err(IpcError::NotWaiting)) => {}
                (Origin::Caller { half, channel, request }, Err(error)) => {
                    if claim_reply(&half, request) {
                        self.end_channel(&half, channel, told_to_client(error));
                    }
                }
            }
        }
    }

    /// Tells a caller why there is no answer.
    fn end_channel(&mut self, half: &ChannelHalf, channel: ChannelId, reason: IpcError) {
        half.close(reason.code());
        self.connection.close_channel(channel, reason);
        self.lanes.delegating.ended.push((channel, reason));
    }

    fn accept(&mut self, given: Given) {
        let offer = given.offer;
        if self.lanes.knows(offer.channel) {
            return;
        }
        let spec = offer.ring.map(RingSpec::check).transpose();
        let half = spec.and_then(|spec| crate::port::map_channel(given, spec)).map(Arc::new);
        let adopted = half.and_then(|half| {
            let adopted = self.lanes.adopt(&offer, half.clone(), self.connection);
            let purpose = adopted.inspect_err(|error| half.close(error.code()))?;
            Ok(Accepted { channel: offer.channel, peer: offer.peer, half, purpose })
        });
        match adopted {
            Ok(accepted) => self.lanes.unslotted.push(accepted),
            Err(error) => self.connection.close_channel(offer.channel, error),
        }
    }
}
