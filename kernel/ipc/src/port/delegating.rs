//! Calls that concern requests passed on and notifications on behalf of others.

use abi::{Endpoint, IpcError, Lane, Message};
use ipc_core::{ChannelId, Owed, Proxied, Verdict, judge};

use super::attached::{AttachedKey, Use};
use super::events::{Found, News, Wanted};
use super::{Event, Port};
use crate::delegate::{Came, DELEGATE_SPEC, Origin, Outward, Relay};
use crate::errors;
use crate::lanes::{Attend, Purpose};
use crate::waiting::Failure;

impl Port {
    /// Passes the request that was taken from `of` last on to `to`, which sees it as a request of `of`; its reply
    /// reaches `of` as the reply to the call it made here, whenever this port waits in a call or begins one. Only for
    /// servers. Never waits for `to`. After an error the request is still to be answered here. Errors:
    /// [`errors::RELAY`].
    pub fn relay(&mut self, of: Endpoint, to: Endpoint, message: &Message) -> Result<(), IpcError> {
        self.relay_inline(of, to, message, &[])
    }

    /// `relay` with up to [`abi::limits::INLINE_BYTES_MAX`] bytes of data.
    pub fn relay_inline(&mut self, of: Endpoint, to: Endpoint, message: &Message, data: &[u8]) -> Result<(), IpcError> {
        errors::RELAY.only(self.beside_watch(|port| port.relay_request(of, to, message, data)))
    }

    fn relay_request(&mut self, of: Endpoint, to: Endpoint, message: &Message, data: &[u8]) -> Result<(), IpcError> {
        self.check_call(data)?;
        if to == of {
            return Err(IpcError::BadEndpoint);
        }
        self.begin_call();
        let origin = self.origin_of(of)?;
        self.lane_to(to)?.relay(Relay { origin, client: of, message, data })?;
        self.lanes.delegating.in_flight += 1;
        if self.lanes.delegating.passed.remove(&of).is_none()
            && let Some(key) = self.attached.talk_with(of)
            && let Some(Use::Messages(talk)) = self.attached.get_mut(key).map(|attached| &mut attached.usage)
        {
            talk.was_relayed();
        }
        Ok(())
    }

    /// Sets bits at `to` in the name of `source`. Only for servers. Never waits for `to`; only the broker is asked, the
    /// first time. Errors: [`errors::NOTIFY_FOR`].
    pub fn notify_for(&mut self, source: Endpoint, to: Endpoint, mask: u64) -> Result<(), IpcError> {
        if source == self.endpoint {
            return self.notify(to, mask);
        }
        self.check_bound()?;
        if source == to {
            return Err(IpcError::BadEndpoint);
        }
        errors::NOTIFY_FOR.only(self.beside_watch(|port| {
            port.begin_call();
            port.lane_to(to)?.notify(source, mask);
            Ok(())
        }))
    }

    /// Serves the lanes, as every call of one that has relays under way does.
    #[cold]
    pub(super) fn begin_call(&mut self) {
        self.attend(ChannelId(0)).serve();
        self.settle_ended();
    }

    /// Begins a call to `client`. Whether it waits for our answer to a request that came by relay.
    #[cold]
    pub(super) fn owes_passed(&mut self, client: Endpoint) -> bool {
        self.begin_call();
        let Some(passed) = self.lanes.delegating.passed.get(&client).copied() else { return false };
        // With its lane the request ends, of which nobody here may have heard yet.
        let is_owed = self.lanes.inward(passed.lane).is_some_and(|lane| lane.end().is_none());
        if !is_owed {
            self.lanes.delegating.passed.remove(&client);
        }
        is_owed
    }

    /// Answers a request that came by relay.
    #[cold]
    pub(super) fn answer_passed(&mut self, client: Endpoint, message: &Message, data: &[u8]) -> Result<(), IpcError> {
        let passed = self.lanes.delegating.passed.remove(&client).ok_or(IpcError::NotWaiting)?;
        let lane = self.lanes.inward(passed.lane).ok_or(IpcError::NotWaiting)?;
        lane.answer(&passed, message, data)
    }

    /// The client has asked again since, so it does not wait for the answer to what came by relay.
    #[cold]
    pub(super) fn forget_passed(&mut self, client: Endpoint) {
        if let Some(passed) = self.lanes.delegating.passed.remove(&client)
            && let Some(lane) = self.lanes.inward(passed.lane)
        {
            lane.pass_over(&passed);
        }
    }

    /// Takes a request of this client that came by relay; it is in the inbox then.
    #[cold]
    pub(super) fn take_passed_of(&mut self, client: Endpoint) -> bool {
        let lanes = Vec::from_iter(self.lanes.with_requests());
        lanes.into_iter().any(|lane| self.take_passed(lane, |came| came.client == client))
    }

    /// Whether there are bits that lie in no channel of their source.
    pub(super) fn has_bits_apart(&self) -> bool {
        !self.lanes.delegating.notified.is_empty()
    }

    /// What others posted in somebody's name, or somebody before it ended, with what that one posted itself.
    #[inline]
    pub(super) fn notification_for_another(&mut self) -> Option<Event> {
        if self.lanes.delegating.notified.is_empty() {
            return None;
        }
        let (from, mut mask) = self.lanes.delegating.notified.pop()?;
        if let Some(key) = self.attached.talk_with(from)
            && let Some(attached) = self.attached.get_mut(key)
            && let Use::Messages(talk) = &mut attached.usage
        {
            mask |= talk.take_notifications(&attached.half);
        }
        Some(Event::Notified { from, mask })
    }

    /// A delegate lane's turn.
    pub(super) fn look_at_delegation(&mut self, key: AttachedKey, wanted: Wanted) -> Result<Option<Found>, IpcError> {
        let Some(lane) = self.attached.get_mut(key).map(|attached| attached.channel) else { return Ok(None) };
        if self.attend(lane).serve_one(lane) {
            self.attached.stay_hot(key);
            self.settle_ended();
        }
        if let Some(reason) = self.lanes.inward(lane).and_then(|lane| lane.broken()) {
            return Err(reason);
        }
        if wanted == Wanted::Everything
            && let Some(event) = self.notification_for_another()
        {
            return Ok(Some(self.found(event)));
        }
        // As with messages: the next owner, if there is one, begins with what was told until now.
        if self.control.is_held() {
            return Ok(None);
        }
        let waiting = self.lanes.inward(lane).map_or(0, |lane| lane.came.len() as u32);
        let is_taken = waiting > 0 && self.take_passed(lane, |_| true);
        if let Some(Use::Delegation { turns }) = self.attached.get_mut(key).map(|attached| &mut attached.usage) {
            // A turn that begins is that of all clients whose requests are there.
            *turns = if *turns == 0 { waiting } else { *turns };
            *turns = if is_taken { *turns - 1 } else { 0 };
        }
        Ok(is_taken.then_some(Found::Message))
    }

    /// What a delegate lane holds.
    pub(super) fn news_of_delegation(&mut self, key: AttachedKey) -> News {
        let Some(lane) = self.attached.get_mut(key).map(|attached| attached.channel) else { return News::None };
        if self.lanes.has_entries(lane) {
            return News::Wanted;
        }
        if self.control.is_held() {
            return News::None;
        }
        let Some(came) = self.lanes.inward(lane).map(|lane| lane.came.clone()) else { return News::None };
        match came.iter().any(|came| self.verdict(came) != Verdict::HoldBack) {
            true => News::Wanted,
            false if came.is_empty() => News::None,
            false => News::Unwanted,
        }
    }

    /// Before a wait for anything: lanes that came or were disturbed during a wait for one peer ring again.
    #[inline]
    pub(super) fn settle_lanes(&mut self) {
        for accepted in self.lanes.take_unslotted() {
            if let Err(error) = self.watch_lane(accepted.channel, accepted.peer, accepted.half, accepted.purpose) {
                self.connection.close_channel(accepted.channel, error);
            }
        }
        if self.lanes.take_disturbed() {
            self.heat_lanes();
        }
        self.settle_ended();
    }

    /// Has all lanes looked at: after they were disturbed, or when what is held back may go on.
    pub(super) fn heat_lanes(&mut self) {
        for key in self.attached.lanes() {
            self.attached.heat(key);
        }
    }

    /// Forgets channels that ended while something else was waited for.
    pub(super) fn settle_ended(&mut self) {
        while let Some((channel, reason)) = self.lanes.delegating.ended.pop() {
            if let Some(key) = self.attached.by_channel(channel) {
                self.end_slot(key, reason);
            }
        }
    }

    /// A lane that the library served is over.
    pub(super) fn forget_lane(&mut self, channel: ChannelId, reason: IpcError) {
        self.attend(channel).forget(channel, reason);
    }

    fn watch_lane(
        &mut self,
        channel: ChannelId,
        peer: Endpoint,
        half: std::sync::Arc<ipc_shm::ChannelHalf>,
        purpose: Purpose,
    ) -> Result<(), IpcError> {
        self.watch(channel, peer, half, Proxied::No, purpose.into()).map(drop)
    }

    fn attend(&mut self, channel: ChannelId) -> Attend<'_> {
        Attend::of(&mut self.lanes, &mut self.connection, channel)
    }

    /// The request of `client` that is ours to answer.
    fn origin_of(&mut self, client: Endpoint) -> Result<Origin, IpcError> {
        if let Some(passed) = self.lanes.delegating.passed.get(&client) {
            return Ok(Origin::Delegator(*passed));
        }
        let key = self.attached.talk_with(client).ok_or(IpcError::NotWaiting)?;
        let request = match self.talk_over(key, &|talk, parties, _| talk.request_to_relay(parties)) {
            Ok(request) => request,
            Err(Failure::Error(IpcError::SourceDied)) => return Err(IpcError::DestinationDied),
            Err(Failure::Error(error)) => return Err(error),
            // It came over a channel that is no more.
            Err(Failure::Again(_)) => return Err(IpcError::NotWaiting),
        };
        let attached = self.attached.get_mut(key).ok_or(IpcError::NotWaiting)?;
        Ok(Origin::Caller { half: attached.half.clone(), channel: attached.channel, request })
    }

    /// The lane to a target, opened on first use.
    fn lane_to(&mut self, to: Endpoint) -> Result<&mut Outward, IpcError> {
        if to == self.endpoint {
            return Err(IpcError::BadEndpoint);
        }
        let known = self.lanes.outward_to(to).map(|(channel, lane)| (channel, lane.is_over()));
        match known {
            Some((_, false)) => {}
            Some((channel, true)) => {
                self.end_lane(channel);
                self.open_lane(to)?;
            }
            None => self.open_lane(to)?,
        }
        self.lanes.outward_to(to).map(|(_, lane)| lane).ok_or(IpcError::NoSuchEndpoint)
    }

    fn open_lane(&mut self, to: Endpoint) -> Result<(), IpcError> {
        if self.attached.len() >= abi::limits::CHANNELS_PER_PROCESS {
            return Err(IpcError::TableFull);
        }
        if let Some(idle) = self.lanes.room_outward()? {
            self.end_lane(idle);
        }
        let ring = self.open_lane_to(to, Lane::delegation(self.endpoint, to), DELEGATE_SPEC)?;
        let (channel, half) = (ring.channel(), ring.half().clone());
        self.lanes.add_outward(channel, ring);
        self.watch_lane(channel, to, half, Purpose::Delegation)
    }

    /// Gives up a lane of ours; whatever was under way on it ends.
    fn end_lane(&mut self, channel: ChannelId) {
        match self.attached.by_channel(channel) {
            Some(key) => self.end_slot(key, IpcError::SourceDied),
            None => self.forget_lane(channel, IpcError::SourceDied),
        }
        self.settle_ended();
    }

    /// Takes the first request of a lane that may be taken now and is `wanted`. Those whose client waits for something
    /// else are completed.
    fn take_passed(&mut self, lane: ChannelId, wanted: impl Fn(&Came) -> bool) -> bool {
        let mut position = 0;
        while let Some(came) = self.lanes.inward(lane).and_then(|lane| lane.came.get(position).copied()) {
            let verdict = if wanted(&came) { self.verdict(&came) } else { Verdict::HoldBack };
            if verdict == Verdict::HoldBack {
                position += 1;
                continue;
            }
            let Some(inward) = self.lanes.inward(lane) else { return false };
            inward.came.remove(position);
            if verdict == Verdict::PassOver {
                inward.pass_over(&came.passed);
            } else if inward.take(&came, &mut self.inbox) {
                self.owe(&came);
                return true;
            }
        }
        false
    }

    /// What may be done with a request that came.
    fn verdict(&mut self, came: &Came) -> Verdict {
        let owed = match self.lanes.delegating.passed.get(&came.client).copied() {
            Some(earlier) if earlier.lane == came.passed.lane => Owed::BySameLane,
            Some(earlier) => match self.lanes.inward(earlier.lane) {
                Some(lane) if lane.end().is_none() => Owed::Unseen(earlier.timing),
                _ => Owed::GivenUp,
            },
            None => {
                let key = self.attached.talk_with(came.client);
                match key
                    .and_then(|key| self.attached.get_mut(key))
                    .map(|attached| (&attached.usage, &attached.half, attached.proxied))
                {
                    Some((Use::Messages(talk), half, proxied)) => talk.owed(half, proxied),
                    _ => Owed::Nothing,
                }
            }
        };
        judge(owed, came.passed.timing)
    }

    /// Remembers a request that was taken, instead of an earlier one of the same client.
    fn owe(&mut self, came: &Came) {
        self.forget_passed(came.client);
        if let Some(key) = self.attached.talk_with(came.client)
            && let Some(Use::Messages(talk)) = self.attached.get_mut(key).map(|attached| &mut attached.usage)
        {
            talk.forget_request();
        }
        self.lanes.delegating.passed.insert(came.client, came.passed);
    }
}
