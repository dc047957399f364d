//! What members ask about their container: `ipc::info`. Answered from what this broker knows; only the container of the
//! asker is looked at.
//!
//! One answer is one packet, and bounded in what is looked at for it ([`LOOKS_PER_PAGE`]): the broker's thread serves
//! everybody.

use std::collections::{BTreeMap, HashSet};

use abi::limits::{CHANNELS_PER_PROCESS, ENDPOINTS_PER_DC};
use abi::{Calls, DcId, Endpoint, IpcError, NodeId, PairId};
use broker_api::info::{
    ChannelInfo, Cursor, DcInfo, EndpointInfo, EndpointState, Page, ProxyInfo, Question, Record, Side, records_max,
};
use broker_api::{Inquiry, ToPort};
use ipc_core::ChannelId;
use ipc_core::table::{Binding, Channel, Home, OwnerId};

use super::EventLoop;
use super::opening::ring_of;
use super::proxying::Resolved;
use crate::container::Container;
use crate::limits::LOOKS_PER_PAGE;

/// What goes into an answer.
struct Wanted {
    from: Cursor,
    at_most: usize,
}

/// A record of a list.
struct Found<T> {
    /// By which the list is in order.
    number: u64,
    /// Channels that were looked at for it.
    looks: usize,
    record: T,
}

impl EventLoop {
    pub(super) fn inform(
        &mut self,
        owner: OwnerId,
        dc: DcId,
        own: Endpoint,
        request: u32,
        inquiry: Inquiry,
    ) -> Result<(), IpcError> {
        let privileges = self.privileges_of(dc, own).ok_or(IpcError::NotBound)?;
        if !privileges.calls.contains(Calls::INFO) {
            return Err(IpcError::Denied);
        }
        if request == 0 {
            return Err(IpcError::BadArgument);
        }
        let Inquiry { question, at_most } = inquiry;
        let wanted = Wanted { from: question.from(), at_most: at_most as usize };
        let (records, next) = match question {
            Question::Dc => written(&Page { records: vec![self.dc_described(dc)?], next: None }),
            Question::Endpoint(endpoint) => {
                written(&Page { records: vec![self.endpoint_described(dc, endpoint)?], next: None })
            }
            Question::Endpoints { .. } => written(&self.endpoints_page(dc, &wanted)?),
            Question::Channels { of, .. } => written(&self.channels_page(dc, of, &wanted)?),
            Question::Proxies { .. } => written(&self.proxies_page(dc, &wanted)?),
        };
        self.answer(owner, request, &ToPort::Information { next, records });
        Ok(())
    }

    /// Channels of a container from this one on, as many as are looked at at a time: for the daemon.
    pub(super) fn channels_described(&self, dc: DcId, from: ChannelId) -> Vec<ChannelInfo> {
        let Some(container) = self.containers.get(&dc) else { return Vec::new() };
        let some = container.table.channels().starting_at(from, None).take(LOOKS_PER_PAGE);
        some.map(|channel| described(container, channel)).collect()
    }

    fn dc_described(&self, dc: DcId) -> Result<DcInfo, IpcError> {
        let container = self.containers.get(&dc).ok_or(IpcError::DcNotRunning)?;
        let nodes: Vec<NodeId> = container.table.bindings().filter_map(|(_, binding)| node_of(&binding)).collect();
        let endpoints = container.table.bindings().count();
        Ok(DcInfo {
            dc,
            node: self.node,
            endpoints_here: endpoints.saturating_sub(nodes.len()) as u32,
            endpoints_elsewhere: nodes.len() as u32,
            nodes_elsewhere: nodes.iter().collect::<HashSet<_>>().len() as u32,
            channels: container.table.channels().len() as u32,
            waiters: container.waiters() as u32,
            programs: container.table.programs(),
            endpoints_max: ENDPOINTS_PER_DC,
            channels_max: CHANNELS_PER_PROCESS as u32,
        })
    }

    fn endpoint_described(&mut self, dc: DcId, endpoint: Endpoint) -> Result<EndpointInfo, IpcError> {
        if self.resolve(dc, endpoint)? == Resolved::InTransit {
            return Err(IpcError::Busy);
        }
        let container = self.containers.get(&dc).ok_or(IpcError::DcNotRunning)?;
        let binding = container.table.binding(endpoint).ok_or(IpcError::NoSuchEndpoint)?;
        Ok(self.described(container, endpoint, &binding))
    }

    fn endpoints_page(&self, dc: DcId, wanted: &Wanted) -> Result<Page<EndpointInfo>, IpcError> {
        let container = self.containers.get(&dc).ok_or(IpcError::DcNotRunning)?;
        let Some(first) = u32::try_from(wanted.from.0).ok().and_then(Endpoint::new) else { return Ok(nothing()) };
        let known = container.table.bindings_from(first).map(|(endpoint, binding)| Found {
            number: u64::from(endpoint.number()),
            looks: 1 + container.table.channels().count_of(endpoint),
            record: self.described(container, endpoint, &binding),
        });
        Ok(page(wanted, known))
    }

    fn channels_page(&self, dc: DcId, of: Option<Endpoint>, wanted: &Wanted) -> Result<Page<ChannelInfo>, IpcError> {
        let container = self.containers.get(&dc).ok_or(IpcError::DcNotRunning)?;
        let channels = container.table.channels().starting_at(ChannelId(wanted.from.0), of);
        let found = |channel: &Channel| Found { number: channel.id.0, looks: 1, record: described(container, channel) };
        Ok(page(wanted, channels.map(found)))
    }

    fn proxies_page(&self, dc: DcId, wanted: &Wanted) -> Result<Page<ProxyInfo>, IpcError> {
        let container = self.containers.get(&dc).ok_or(IpcError::DcNotRunning)?;
        let mut endpoints: BTreeMap<NodeId, u32> = BTreeMap::new();
        for node in container.table.bindings().filter_map(|(_, binding)| node_of(&binding)) {
            *endpoints.entry(node).or_default() += 1;
        }
        let mut channels: BTreeMap<(NodeId, PairId), u32> = BTreeMap::new();
        for channel in container.table.channels().iter() {
            if let Some(node) = channel.proxied {
                *channels.entry((node, channel.pair)).or_default() += 1;
            }
        }
        let number = |node: NodeId, pair: PairId| u64::from(node.0) << u8::BITS | u64::from(pair.number());
        let pairs = |(node, endpoints): (&NodeId, &u32)| {
            let (node, endpoints) = (*node, *endpoints);
            PairId::all(self.pairs_with(node)).map(move |pair| (node, pair, endpoints))
        };
        let all = endpoints.iter().flat_map(pairs).filter(|it| number(it.0, it.1) >= wanted.from.0);
        let found = |(node, pair, endpoints)| {
            let channels = channels.get(&(node, pair)).copied().unwrap_or(0);
            let state = self.links.state(node, pair);
            Found { number: number(node, pair), looks: 1, record: ProxyInfo { node, pair, state, endpoints, channels } }
        };
        Ok(page(wanted, all.map(found)))
    }

    fn described(&self, container: &Container, endpoint: Endpoint, binding: &Binding) -> EndpointInfo {
        let (node, pid) = match binding.home {
            Home::Remote { node } => (node, None),
            Home::Local { owner } => {
                let bound = self.connections.get(&owner).and_then(|connection| connection.bound.as_ref());
                (self.node, bound.map(|bound| bound.inner_pid).filter(|pid| *pid > 0))
            }
        };
        let state = if container.table.is_leaving(endpoint) {
            EndpointState::Leaving
        } else if container.table.is_migrating(endpoint) {
            EndpointState::Held
        } else {
            EndpointState::Bound
        };
        let mut sent = container.bindings.get(&endpoint).map(|kept| kept.sent).unwrap_or_default();
        let mut awaited = None;
        for channel in container.table.channels().of(endpoint) {
            let side = if channel.left == endpoint { Side::Left } else { Side::Right };
            if let Some(meter) = container.meter(channel.id) {
                let counts = meter.read(side);
                sent = sent.over(channel, side, &counts);
                awaited = awaited.or(channel.peer_of(endpoint).filter(|_| counts.awaits_answer));
            }
        }
        EndpointInfo {
            endpoint,
            node,
            pid,
            epoch: binding.epoch,
            state,
            waits_for: container.waits.peer_of(endpoint).or(awaited),
            channels: container.table.channels().count_of(endpoint) as u32,
            near: sent.near,
            far: sent.far,
        }
    }
}

fn described(container: &Container, channel: &Channel) -> ChannelInfo {
    let meter = container.meter(channel.id);
    ChannelInfo {
        channel: channel.id,
        left: channel.left,
        right: channel.right,
        lane: channel.lane,
        ring: ring_of(channel),
        via: channel.proxied.map(|node| (node, channel.pair)),
        counts: meter.map(|meter| [Side::Left, Side::Right].map(|side| meter.read(side))),
    }
}

fn node_of(binding: &Binding) -> Option<NodeId> {
    match binding.home {
        Home::Remote { node } => Some(node),
        Home::Local { .. } => None,
    }
}

fn nothing<T>() -> Page<T> {
    Page { records: Vec::new(), next: None }
}

/// As many as are wanted and fit.
fn page<T: Record>(wanted: &Wanted, mut list: impl Iterator<Item = Found<T>>) -> Page<T> {
    let mut page = nothing();
    let mut looks = 0;
    let at_most = wanted.at_most.min(records_max::<T>());
    while page.records.len() < at_most && looks < LOOKS_PER_PAGE {
        let Some(found) = list.next() else { return Page { next: None, ..page } };
        looks += found.looks;
        page.records.push(found.record);
        page.next = found.number.checked_add(1).map(Cursor);
    }
    page
}

fn written<T: Record>(page: &Page<T>) -> (Vec<u8>, Option<Cursor>) {
    let mut body = Vec::with_capacity(page.records.len() * T::BYTES);
    page.records.iter().for_each(|record| record.write(&mut body));
    (body, page.next)
}
