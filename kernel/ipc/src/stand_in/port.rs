//! The proxy's connection to its broker, and the wait for anything.

use std::collections::{BTreeMap, VecDeque};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use abi::{DcId, Endpoint, IpcError, NodeId};
use broker_api::{FromProxy, Message, ProxiedOffer, ToProxy};
use ipc_core::{Budget, ChannelId, Ended, Words, posting};
use ipc_shm::{ChannelHalf, ControlPage, Role};
use sys::eventfd::{Poller, Trigger, WriteInterest};

use super::channel::ProxiedChannel;
use super::watch::{Parties, WatchList, Watched};
use super::{LinkState, LocalRole, OpenIn, ProxiedInfo, RequestId, StandInEvent};
use crate::connection::{Line, Notice};
use crate::descriptors::take_channel_descriptors;
use crate::ring::RingSpec;
use crate::wait::{Deadline, Wait};
use crate::waiting::{Went, Yields, new_budget};
use crate::waker::Waker;

/// Events reported between two looks at the descriptors.
const UNPOLLED_MAX: u32 = 32;

/// Packets that wait for a broker that does not read, before parcels are lost: it is away or stopped, and other brokers
/// go on asking it.
const UNSENT_PARCELS_MAX: usize = 8192;

const TOKEN_BROKER: u64 = 0;
const TOKEN_WAKER: u64 = 1;

/// The proxy's connection to its broker. One thread uses it at a time.
#[derive(Debug)]
pub struct StandInPort {
    line: Line<ToProxy>,
    poller: Poller,
    waker: Waker,
    watched: WatchList,
    /// Told by the broker, not reported yet.
    pending: VecDeque<StandInEvent>,
    broker: BrokerState,
    ready: Vec<u64>,
    budget: Budget,
    unpolled: u32,
    /// Requests without an answer, by number: a restarted broker is asked again.
    asked: BTreeMap<u32, OpenIn>,
    /// What the broker has not read yet. Of each channel there is little, so only parcels need a bound.
    unsent: VecDeque<Vec<u8>>,
    /// What was said of each link last: a restarted broker is told again.
    links: BTreeMap<NodeId, LinkState>,
    /// Notifications in a channel that gave way to another: the broker makes that one next.
    handed_on: Option<(Parties, u64)>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum BrokerState {
    There,
    /// Lost, and to be reported.
    Lost,
    Reported,
}

impl StandInPort {
    /// `broker` is what `Broker::proxy_socket` gave. All channels of a predecessor come as `Resumed` first, then
    /// `AllResumed`.
    pub fn from_socket(broker: OwnedFd) -> Result<StandInPort, IpcError> {
        let line = Line::new(broker);
        let (poller, waker) = (Poller::new()?, Waker::new()?);
        poller.add(line.socket(), TOKEN_BROKER, Trigger::Level)?;
        poller.add(waker.fd(), TOKEN_WAKER, Trigger::Level)?;
        Ok(StandInPort {
            line,
            poller,
            waker,
            watched: WatchList::default(),
            pending: VecDeque::new(),
            broker: BrokerState::There,
            ready: Vec::new(),
            budget: new_budget(),
            unpolled: 0,
            asked: BTreeMap::new(),
            unsent: VecDeque::new(),
            links: BTreeMap::new(),
            handed_on: None,
        })
    }

    /// The next event; `TimedOut` when none came in time; `NoBroker` once when the broker's end is closed, after which
    /// only `Active` and `Closed` of existing channels and `Woken` come.
    pub fn wait_event(&mut self, wait: Wait) -> Result<StandInEvent, IpcError> {
        let deadline = Deadline::after(wait);
        if let Some(event) = self.look()? {
            return Ok(event);
        }
        if wait != Wait::NoWait
            && let Some(event) = self.look_for_a_while()?
        {
            return Ok(event);
        }
        loop {
            if let Some(channel) = self.watched.arm_all() {
                return Ok(StandInEvent::Active(channel));
            }
            self.waker.fall_asleep();
            if let Some(event) = self.told()? {
                return Ok(event);
            }
            self.poll_descriptors(deadline.left())?;
            if let Some(event) = self.look_at_hot()? {
                return Ok(event);
            }
            if deadline.has_passed() && self.watched.is_empty() {
                // Asleep for whoever polls `fd` now.
                self.waker.fall_asleep();
                return self.told()?.ok_or(IpcError::TimedOut);
            }
        }
    }

    /// What can be seen without sleeping or preparing to sleep: for a proxy that is busy anyway.
    pub fn look(&mut self) -> Result<Option<StandInEvent>, IpcError> {
        self.waker.get_up();
        self.watched.get_up();
        self.unpolled += 1;
        if self.unpolled > UNPOLLED_MAX {
            self.poll_descriptors(Some(Duration::ZERO))?;
        }
        self.look_at_hot()
    }

    fn look_at_hot(&mut self) -> Result<Option<StandInEvent>, IpcError> {
        match self.told()? {
            Some(event) => Ok(Some(event)),
            None => Ok(self.watched.next_active().map(StandInEvent::Active)),
        }
    }

    /// The next `look` begins with the descriptors: for a proxy that found `fd` readable.
    pub fn look_at_descriptors_next(&mut self) {
        self.unpolled = UNPOLLED_MAX;
    }

    /// Readable when `wait_event` may have something, provided that the last `wait_event` answered `TimedOut`.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.poller.as_fd()
    }

    /// Ends a wait of `wait_event` in another thread.
    pub fn waker(&self) -> Waker {
        self.waker.clone()
    }

    /// Asks for a channel from a remote caller to a local endpoint. Answered by [`StandInEvent::OpenedIn`].
    pub fn open_in(&mut self, request: &OpenIn) -> Result<RequestId, IpcError> {
        let number = self.line.new_request();
        self.post(number, &FromProxy::OpenIn(*request))?;
        self.asked.insert(number, *request);
        Ok(RequestId(number))
    }

    /// Tells the broker that a remote endpoint ended: its stand-in page goes dead, its channels close with `reason`
    /// (`NoLink`, or anything else for a death).
    pub fn remote_gone(
        &mut self,
        dc: DcId,
        endpoint: Endpoint,
        node: NodeId,
        reason: IpcError,
    ) -> Result<(), IpcError> {
        self.post(0, &FromProxy::RemoteGone { dc, endpoint, node, reason })
    }

    /// Down: every endpoint of the node becomes unreachable and opening answers `NoLink`, until Up. A node is up before
    /// anything was said of it.
    pub fn link(&mut self, node: NodeId, state: LinkState) -> Result<(), IpcError> {
        self.links.insert(node, state);
        self.post(0, &FromProxy::Link { node, state })
    }

    /// What the broker of `node` tells ours. `TableFull`: it is lost, because our broker is away and much waits for it
    /// already.
    pub fn parcel(&mut self, node: NodeId, bytes: &[u8]) -> Result<(), IpcError> {
        if self.unsent.len() >= UNSENT_PARCELS_MAX {
            return Err(IpcError::TableFull);
        }
        self.post(0, &FromProxy::Parcel { node, message: bytes.to_vec() })
    }

    /// Closes one channel: the far party refused or closed it. The local party's calls answer `reason`. The broker
    /// confirms with `Closed`.
    pub fn close(&mut self, channel: ChannelId, reason: IpcError) -> Result<(), IpcError> {
        if let Some(half) = self.watched.half(channel) {
            half.close(reason.code());
        }
        self.post(0, &FromProxy::Close { channel, reason })
    }

    /// Never waits for the broker: the proxy has links to look after, and channels of which the broker knows nothing.
    fn post(&mut self, request: u32, message: &FromProxy) -> Result<(), IpcError> {
        let message = message.to_bytes(request);
        if self.unsent.is_empty() && self.line.try_send(&message)? {
            return Ok(());
        }
        self.unsent.push_back(message);
        self.watch_broker(WriteInterest::Waiting)
    }

    fn send_unsent(&mut self) {
        while let Some(message) = self.unsent.front() {
            match self.line.try_send(message) {
                Ok(true) => drop(self.unsent.pop_front()),
                Ok(false) => return,
                // What it said last is read like everything else.
                Err(_) => self.unsent.clear(),
            }
        }
        // It is watched as it was when this fails: too often.
        let _ = self.watch_broker(WriteInterest::None);
    }

    fn watch_broker(&self, interest: WriteInterest) -> Result<(), IpcError> {
        self.poller.set_writable_interest(self.line.socket(), TOKEN_BROKER, interest).map_err(IpcError::from)
    }

    fn look_for_a_while(&mut self) -> Result<Option<StandInEvent>, IpcError> {
        if self.watched.is_empty() {
            return Ok(None);
        }
        let plan = self.budget.plan();
        for _ in 0..plan.pauses {
            std::hint::spin_loop();
            if let Some(channel) = self.watched.next_active() {
                self.budget.learn(Ended::Pausing);
                return Ok(Some(StandInEvent::Active(channel)));
            }
        }
        let mut yields = Yields::default();
        for count in 1..=plan.yields {
            rustix::thread::sched_yield();
            if let Some(channel) = self.watched.next_active() {
                self.budget.learn(Ended::Yielding(count));
                return Ok(Some(StandInEvent::Active(channel)));
            }
            if yields.went() == Went::ToOthers {
                self.budget.learn(Ended::Crowded);
                return Ok(None);
            }
        }
        self.budget.learn(Ended::Parked);
        Ok(None)
    }

    /// What the broker and wakers said.
    fn told(&mut self) -> Result<Option<StandInEvent>, IpcError> {
        if let Some(event) = self.pending.pop_front() {
            return Ok(Some(event));
        }
        if self.broker == BrokerState::Lost {
            self.broker = BrokerState::Reported;
            return Err(IpcError::NoBroker);
        }
        Ok(self.waker.take().then_some(StandInEvent::Woken))
    }

    fn poll_descriptors(&mut self, limit: Option<Duration>) -> Result<(), IpcError> {
        self.unpolled = 0;
        let mut ready = std::mem::take(&mut self.ready);
        ready.clear();
        let result = self.poller.wait(&mut ready, limit);
        self.waker.get_up();
        if !ready.is_empty() {
            self.watched.get_up();
        }
        for token in &ready {
            match *token {
                TOKEN_BROKER => {
                    if !self.unsent.is_empty() {
                        self.send_unsent();
                    }
                    self.take_notices();
                }
                TOKEN_WAKER => sys::eventfd::drain(self.waker.fd()),
                key => self.watched.heat(key),
            }
        }
        self.ready = ready;
        result.map_err(IpcError::from)
    }

    fn take_notices(&mut self) {
        loop {
            match self.line.read() {
                Ok(Some(notice)) => self.take_notice(notice),
                Ok(None) => return,
                Err(_) => {
                    // A socket at its end would be readable for ever.
                    let _ = self.poller.remove(self.line.socket());
                    if self.broker == BrokerState::There {
                        self.broker = BrokerState::Lost;
                    }
                    return;
                }
            }
        }
    }

    fn take_notice(&mut self, notice: Notice<ToProxy>) {
        let Notice { request, message, descriptors } = notice;
        if message == ToProxy::Restarted {
            return self.ask_again();
        }
        let was_asked = self.asked.remove(&request).is_some();
        // A restarted broker says again what its predecessor may not have said.
        let is_known = |offer: &ProxiedOffer| self.watched.half(offer.channel).is_some();
        match &message {
            ToProxy::Opened(offer) if !was_asked || is_known(offer) => return,
            ToProxy::Accepted(offer) if is_known(offer) => return,
            _ => {}
        }
        let handed_on = if was_asked { self.handed_on.take() } else { None };
        let event = match message {
            ToProxy::Failed { error } => StandInEvent::OpenedIn { request: RequestId(request), result: Err(error) },
            ToProxy::Opened(offer) => {
                let result = self.adopt(&offer, descriptors, handed_on);
                if let Err(error) = &result {
                    self.give_back(offer.channel, *error);
                }
                StandInEvent::OpenedIn { request: RequestId(request), result }
            }
            ToProxy::Accepted(offer) => match self.adopt(&offer, descriptors, None) {
                Ok(channel) => StandInEvent::OpenOut(channel),
                Err(error) => return self.give_back(offer.channel, error),
            },
            ToProxy::Resumed(offer) => match self.adopt(&offer, descriptors, None) {
                Ok(channel) => {
                    // The last proxy may have been killed between what it published and the wake-up for it.
                    channel.kick();
                    StandInEvent::Resumed(channel)
                }
                Err(error) => return self.give_back(offer.channel, error),
            },
            ToProxy::AllResumed => StandInEvent::AllResumed,
            ToProxy::Ended { channel, reason, .. } => {
                if let Some(Watched { half, parties, .. }) = self.watched.remove(channel) {
                    let _ = self.poller.remove(half.bell_in());
                    // The broker cannot write our side; a local party that lives must see the end there.
                    let say_closed = || {
                        if half.own_closed() == 0 {
                            half.close(reason.code());
                        }
                    };
                    if reason == IpcError::EndpointInUse {
                        self.handed_on = Some((parties, posting::close(&*half, say_closed)));
                    } else {
                        say_closed();
                    }
                }
                StandInEvent::Closed { channel, reason }
            }
            ToProxy::Parcel { node, message } => StandInEvent::Parcel { node, bytes: message },
            ToProxy::Restarted => return,
        };
        self.pending.push_back(event);
    }

    /// The local party must not wait for a proxy that could not map its channel.
    fn give_back(&mut self, channel: ChannelId, error: IpcError) {
        // When the broker is lost, the next read says so.
        let _ = self.close(channel, error);
    }

    fn ask_again(&mut self) {
        let links = self.links.iter().map(|(node, state)| (0, FromProxy::Link { node: *node, state: *state }));
        let asked = self.asked.iter().map(|(request, open)| (*request, FromProxy::OpenIn(*open)));
        for (request, message) in links.chain(asked).collect::<Vec<_>>() {
            // A broker that is lost again is reported by the next read.
            let _ = self.post(request, &message);
        }
    }

    fn adopt(
        &mut self,
        offer: &ProxiedOffer,
        descriptors: Vec<OwnedFd>,
        handed_on: Option<(Parties, u64)>,
    ) -> Result<ProxiedChannel, IpcError> {
        let ring = offer.ring.map(RingSpec::check).transpose()?;
        let (files, control) = take_channel_descriptors(descriptors).ok_or(crate::port::NO_ROOM)?;
        let control = Arc::new(ControlPage::of(control)?);
        let role = if offer.role == Role::Right { LocalRole::Client } else { LocalRole::Server };
        let info = ProxiedInfo {
            channel: offer.channel,
            dc: offer.dc,
            local: offer.local,
            remote: offer.remote,
            node: offer.node,
            lane: offer.lane,
            ring,
            role,
            calls: offer.calls.peer,
            peer_channel: offer.peer_channel,
            incarnation: control.incarnation().home.filter(|_| role == LocalRole::Client),
        };
        let size = ring.map(RingSpec::size).unwrap_or_default();
        let half = Arc::new(ChannelHalf::map(files, offer.role, size, control)?);
        let parties = Parties { dc: info.dc, local: info.local, remote: info.remote, lane: info.lane };
        if let Some((_, mask)) = handed_on.filter(|(of, _)| *of == parties) {
            half.post_for_peer(mask);
        }
        let key = self.watched.insert(offer.channel, parties, half.clone());
        if let Err(error) = self.poller.add(half.bell_in(), key, Trigger::Edge) {
            self.watched.remove(offer.channel);
            return Err(error.into());
        }
        Ok(ProxiedChannel::new(info, half))
    }
}
