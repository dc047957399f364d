//! Channels of a port, and what the broker says of them.

use std::sync::Arc;
use std::sync::atomic::AtomicU32;

use abi::limits::CHANNELS_PER_PROCESS;
use abi::{Endpoint, IpcError, Lane, Privileges};
use broker_api::{FromPort, IfAbsent, Offer, Open, Pid, ToPort};
use ipc_core::{Proxied, Words};
use ipc_shm::{ChannelHalf, ControlPage};
use sys::eventfd::Trigger;

use super::attached::{AttachedKey, Use};
use super::{Event, Port};
use crate::connection::{Given, Notice};
use crate::descriptors::take_channel_descriptors;
use crate::errors::{self, ErrorSet};
use crate::lanes::Purpose;
use crate::ring::{RingClient, RingId, RingParts, RingServer, RingShared, RingSpec, why_closed};
use crate::talk::{Rights, Talk};
use crate::wait::{Deadline, Wait};
use crate::waiting::gone;

impl Port {
    /// The endpoint of a process of the container, by its pid inside the container. Errors: [`errors::GETEP`].
    pub fn getep(&mut self, pid: i32) -> Result<Endpoint, IpcError> {
        self.check_bound()?;
        let pid = Pid::new(pid).ok_or(IpcError::NoSuchEndpoint)?;
        self.ask(errors::GETEP, &FromPort::GetEndpoint { pid })?.found()
    }

    /// Waits until somebody is bound to `endpoint`. Errors: [`errors::WAIT4BIND`].
    pub fn wait4bind(&mut self, endpoint: Endpoint, wait: Wait) -> Result<(), IpcError> {
        self.check_bound()?;
        self.ask_waiting(errors::WAIT4BIND, &FromPort::AwaitBound { peer: endpoint }, wait).map(drop)
    }

    /// Waits until nobody is bound to `endpoint`. Errors: [`errors::WAIT4BIND`].
    pub fn wait4unbind(&mut self, endpoint: Endpoint, wait: Wait) -> Result<(), IpcError> {
        self.check_bound()?;
        self.ask_waiting(errors::WAIT4BIND, &FromPort::AwaitUnbound { peer: endpoint }, wait).map(drop)
    }

    /// Of a manager: ends the wait of `endpoint` in `receive`, `rcvrqst` or `wait_event` with `WokenUp`. Errors:
    /// [`errors::MANAGE`].
    pub fn wakeup(&mut self, endpoint: Endpoint) -> Result<(), IpcError> {
        self.check_bound()?;
        self.ask(errors::MANAGE, &FromPort::WakeUp { endpoint }).map(drop)
    }

    /// Of a manager: binds another process of this node, `pid` inside the container, to a number, or to a free one. The
    /// process has it when it connects, without asking for it; until then nobody else gets it. It is given back when
    /// this endpoint ends. Doing it again is safe. `EndpointInUse` when the number or the process has another already.
    /// Errors: [`errors::BIND_FOR`].
    pub fn bind_for(&mut self, pid: i32, endpoint: Option<Endpoint>) -> Result<Endpoint, IpcError> {
        self.check_bound()?;
        let pid = Pid::new(pid).ok_or(IpcError::BadArgument)?;
        self.ask(errors::BIND_FOR, &FromPort::BindFor { pid, endpoint })?.found()
    }

    /// What `endpoint` may do, and who may call it. Errors: [`errors::PRIVILEGES`].
    pub fn privileges(&mut self, endpoint: Endpoint) -> Result<Privileges, IpcError> {
        self.check_bound()?;
        match self.ask(errors::PRIVILEGES, &FromPort::GetPrivileges { endpoint })?.message {
            ToPort::Privileges { privileges, .. } => Ok(privileges),
            _ => Err(IpcError::NoBroker),
        }
    }

    /// Of a manager: what `endpoint` may do from now on. Channels that this forbids, and channels of messages whose
    /// calls it changes, end before this returns: calls under way over them answer `Denied`, and whether the peer acted
    /// is unknown. Doing it again is safe. Errors: [`errors::MANAGE`].
    pub fn set_privileges(&mut self, endpoint: Endpoint, privileges: &Privileges) -> Result<(), IpcError> {
        self.check_bound()?;
        let set = FromPort::SetPrivileges { endpoint, privileges: privileges.clone() };
        self.ask(errors::MANAGE, &set).map(drop)
    }

    /// Opens a ring to `to`, waiting until it is bound. Errors: [`errors::OPEN_RING`].
    pub fn open_ring(&mut self, to: Endpoint, spec: RingSpec, wait: Wait) -> Result<RingClient, IpcError> {
        self.check_bound()?;
        let spec = spec.check()?;
        let if_absent = if wait == Wait::NoWait { IfAbsent::Fail } else { IfAbsent::Wait };
        // Lane 0: any that is free.
        let open = Open { peer: to, lane: Lane::MESSAGES, ring: Some(spec), if_absent };
        let given = self.ask_waiting(errors::OPEN_RING, &FromPort::Open(open), wait)?.opened()?;
        self.opened_ring(given, to, spec)
    }

    /// This port's end of a ring or lane that it opened. When it cannot be mapped, the channel is given back.
    pub(super) fn opened_ring(&mut self, given: Given, peer: Endpoint, spec: RingSpec) -> Result<RingClient, IpcError> {
        let channel = given.offer.channel;
        let half =
            map_channel(given, Some(spec)).inspect_err(|error| self.connection.close_channel(channel, *error))?;
        Ok(RingClient::new(RingParts {
            half,
            own_control: self.control.clone(),
            guard: self.guard,
            socket: self.connection.shared_socket(),
            channel,
            peer,
            spec,
        }))
    }

    /// A lane for the library's own use, to an endpoint that is there.
    pub(super) fn open_lane_to(&mut self, peer: Endpoint, lane: Lane, spec: RingSpec) -> Result<RingClient, IpcError> {
        let open = FromPort::Open(Open { peer, lane, ring: Some(spec), if_absent: IfAbsent::Fail });
        let answer = match self.connection.call(&open) {
            // It is there: an earlier call gave it up, and its answer came before this one.
            Err(IpcError::EndpointInUse) => {
                self.take_notices();
                self.connection.call(&open)
            }
            answer => answer,
        };
        let given =
            answer.map_err(|error| if error == IpcError::EndpointInUse { IpcError::TableFull } else { error })?;
        self.opened_ring(given.opened()?, peer, spec)
    }

    /// Asks the broker for what it does at once. `of`: the errors of the call.
    #[track_caller]
    pub(super) fn ask(&mut self, of: ErrorSet, request: &FromPort) -> Result<Notice<ToPort>, IpcError> {
        of.only(self.beside_watch(|port| port.connection.call(request)))
    }

    #[track_caller]
    pub(super) fn ask_waiting(
        &mut self,
        of: ErrorSet,
        request: &FromPort,
        wait: Wait,
    ) -> Result<Notice<ToPort>, IpcError> {
        of.only(self.beside_watch(|port| port.connection.call_waiting(request, wait)))
    }

    /// The channel of messages with `peer`, opened on first contact. A dead one is replaced. An endpoint that is being
    /// handed over is waited for.
    pub(super) fn talk_with(&mut self, peer: Endpoint, deadline: Deadline) -> Result<AttachedKey, IpcError> {
        if peer == self.endpoint {
            return Err(IpcError::BadEndpoint);
        }
        if self.control.event() != self.polled_event {
            // A channel may have been revoked, which its memory does not say.
            self.polled_event = self.control.event();
            self.take_notices();
        }
        for _ in 0..OPENS_MAX {
            if let Some(key) = self.live_talk(peer) {
                return Ok(key);
            }
            let open = Open { peer, lane: Lane::MESSAGES, ring: None, if_absent: IfAbsent::Fail };
            match self.connection.call_until(&FromPort::Open(open), deadline) {
                Ok(answer) => return self.adopt_channel(answer.opened()?),
                Err(IpcError::TimedOut) if !deadline.has_passed() => {}
                // The peer opened it to us; that notice came before this answer.
                Err(IpcError::EndpointInUse) => self.take_notices(),
                Err(error) => return Err(error),
            }
        }
        Err(IpcError::DestinationDied)
    }

    /// Reads everything the broker said unasked.
    pub(super) fn take_notices(&mut self) {
        loop {
            match self.connection.next_notice() {
                Ok(Some(notice)) => self.take_notice(notice),
                Ok(None) => return,
                Err(_) => {
                    // Channels that exist go on; a socket at its end would be readable for ever.
                    let _ = self.poller.remove(self.connection.socket());
                    return;
                }
            }
        }
    }

    /// Forgets a channel; a ring's end is reported.
    pub(super) fn end_slot(&mut self, key: AttachedKey, reason: IpcError) {
        if let Some(mut attached) = self.attached.remove(key) {
            let _ = self.poller.remove(attached.half.bell_in());
            if is_end_of_peer(reason)
                && let Use::Messages(talk) = &mut attached.usage
            {
                // Who notifies and ends is heard.
                self.lanes.delegating.notified.add(attached.peer, talk.take_notifications(&attached.half));
            }
            if let Use::Copies(_) | Use::Delegation { .. } = attached.usage {
                self.forget_lane(attached.channel, reason);
            }
            if let (Use::Messages(_), code @ 1..) = (&attached.usage, attached.half.peer_closed()) {
                // The broker may hear of it from the peer later than from us that we open the next.
                self.connection.close_channel(attached.channel, IpcError::from_code(code));
            }
            let is_it =
                |event: &Event| matches!(event, Event::RingOpened(ring) if ring.id() == RingId(attached.channel.0));
            if let Some(at) = self.pending.iter().position(is_it) {
                // Nobody has heard of it.
                self.pending.remove(at);
            } else if let Use::Ring(_) = attached.usage {
                self.pending.push_back(Event::RingClosed(RingId(attached.channel.0), why_closed(reason)));
            }
            if self.lanes.has_requests() {
                self.heat_lanes();
            }
        }
    }

    fn live_talk(&mut self, peer: Endpoint) -> Option<AttachedKey> {
        let key = self.attached.talk_with(peer)?;
        let attached = self.attached.get_mut(key)?;
        match gone(&attached.half) {
            None => Some(key),
            Some(gone) => {
                self.end_slot(key, gone.reason(IpcError::SourceDied));
                None
            }
        }
    }

    fn take_notice(&mut self, notice: Notice<ToPort>) {
        let Notice { request, message, descriptors } = notice;
        match message {
            // A channel that cannot be had is refused. A restarted broker says again what its predecessor may not have
            // said.
            ToPort::Accepted(offer) if !self.has_channel(offer.channel) => {
                let _ = self.adopt_channel(Given { offer, descriptors });
            }
            ToPort::Ended { channel, reason, .. } => {
                if let Some(key) = self.attached.by_channel(channel) {
                    self.say_revoked(key, reason);
                    self.end_slot(key, reason);
                }
                self.forget_lane(channel, reason);
            }
            ToPort::WakeUp => self.woken_up = true,
            ToPort::Hold | ToPort::Restarted => self.go_on_if_released(),
            // The answer to an open that nobody waited for so long: messages may use it, a ring has no owner. Any other
            // is one that was read already, said again by a restarted broker.
            ToPort::Opened(offer) if self.connection.was_given_up(request) => {
                if offer.ring.is_some() {
                    self.connection.close_channel(offer.channel, IpcError::NotBound);
                } else {
                    let _ = self.adopt_channel(Given { offer, descriptors });
                }
            }
            // Answers to calls that were given up, and channels that are known.
            _ => {}
        }
    }

    fn has_channel(&self, channel: ipc_core::ChannelId) -> bool {
        self.attached.by_channel(channel).is_some() || self.lanes.knows(channel)
    }

    /// The other end of a ring that was revoked may be a client that reads no notices.
    fn say_revoked(&mut self, key: AttachedKey, reason: IpcError) {
        if reason == IpcError::Denied
            && let Some(attached) = self.attached.get_mut(key)
        {
            attached.half.close(reason.code());
        }
    }

    /// Gives a channel its place. One that cannot have any ends: the broker hears it, and the peer where it looks.
    fn adopt_channel(&mut self, given: Given) -> Result<AttachedKey, IpcError> {
        let offer = given.offer;
        let result = offer.ring.map(RingSpec::check).transpose().and_then(|spec| {
            let half = Arc::new(map_channel(given, spec)?);
            self.adopt_link(&offer, half.clone(), spec).inspect_err(|error| half.close(error.code()))
        });
        result.inspect_err(|error| self.connection.close_channel(offer.channel, *error))
    }

    fn adopt_link(
        &mut self,
        offer: &Offer,
        half: Arc<ChannelHalf>,
        spec: Option<RingSpec>,
    ) -> Result<AttachedKey, IpcError> {
        if self.attached.len() >= CHANNELS_PER_PROCESS {
            return Err(IpcError::TableFull);
        }
        let peer = offer.peer;
        let proxied = if offer.proxied.is_some() { Proxied::Yes } else { Proxied::No };
        let usage = match spec {
            None => Use::Messages(Talk::over(&half, Rights { own: offer.calls.own, peer: offer.calls.peer })),
            Some(_) if offer.lane.is_reserved() => self.lanes.adopt(offer, half.clone(), &self.connection)?.into(),
            Some(spec) => {
                let shared = Arc::new(RingShared { half: half.clone(), closed: AtomicU32::new(0) });
                let socket = self.connection.shared_socket();
                let server = RingServer::new(shared.clone(), peer, spec, self.guard, socket, offer.channel);
                self.pending.push_back(Event::RingOpened(server));
                Use::Ring(shared)
            }
        };
        self.watch(offer.channel, peer, half, proxied, usage)
    }

    /// Attaches a channel, and gives its bell a place in the poller.
    pub(super) fn watch(
        &mut self,
        channel: ipc_core::ChannelId,
        peer: Endpoint,
        half: Arc<ChannelHalf>,
        proxied: Proxied,
        usage: Use,
    ) -> Result<AttachedKey, IpcError> {
        let key = self.attached.insert(channel, peer, half.clone(), proxied, usage);
        if let Err(error) = self.poller.add(half.bell_in(), key.token(), Trigger::Edge) {
            let error = IpcError::from(error);
            self.attached.remove(key);
            self.forget_lane(channel, error);
            return Err(error);
        }
        Ok(key)
    }
}

/// Whether a channel ends because its other party is gone, and not because it may call no more.
fn is_end_of_peer(reason: IpcError) -> bool {
    matches!(
        reason,
        IpcError::SourceDied | IpcError::DestinationDied | IpcError::NotBound | IpcError::NoLink | IpcError::Moved
    )
}

/// Opens of one call that may find the peer's own channel in the way: one is taken instead, or found closed and
/// forgotten by the broker at our word, before the next. More means a peer that opens and closes all the time.
pub(super) const OPENS_MAX: u32 = 8;

impl From<Purpose> for Use {
    fn from(purpose: Purpose) -> Use {
        match purpose {
            Purpose::Copies(server) => Use::Copies(server),
            Purpose::Delegation => Use::Delegation { turns: 0 },
        }
    }
}

/// A channel came without its descriptors: this process had no room for more.
pub(crate) const NO_ROOM: IpcError = IpcError::Os(rustix::io::Errno::MFILE.raw_os_error());

/// Maps what the broker handed over with a channel.
pub(crate) fn map_channel(given: Given, spec: Option<RingSpec>) -> Result<ChannelHalf, IpcError> {
    let size = spec.map(RingSpec::size).unwrap_or_default();
    let (files, control) = take_channel_descriptors(given.descriptors).ok_or(NO_ROOM)?;
    let control = Arc::new(ControlPage::of(control)?);
    ChannelHalf::map(files, given.offer.role, size, control).map_err(IpcError::from)
}
