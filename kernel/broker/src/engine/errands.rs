//! What concerns one endpoint and is done by the broker of its node: here, or by another broker that is asked.
//!
//! An errand that went to another node is told again whenever the link to it came up, and to every new proxy: what was lost on the
//! way is not known, and every errand may be done twice. It ends with its answer, with the link (`NoLink`), or when its asker
//! gives it up. The asker's rights were checked by its own broker; brokers believe each other, as their nodes do.

use std::collections::BTreeMap;

use abi::{DcId, Endpoint, IpcError, NodeId, Privileges};
use ipc::protocol::{Op, Packet};
use ipc_core::table::{Home, OwnerId};

use super::Engine;
use crate::limits::ERRANDS_MAX;

/// Errands under way to other nodes, by the number under which they went.
#[derive(Debug, Default)]
pub(super) struct Errands {
    under_way: BTreeMap<u32, Errand>,
    last: u32,
}

#[derive(Debug)]
struct Errand {
    owner: OwnerId,
    request: u32,
    node: NodeId,
    message: Vec<u8>,
}

impl Errands {
    pub fn forget(&mut self, owner: OwnerId) {
        self.under_way.retain(|_, errand| errand.owner != owner);
    }

    /// Whether it was under way.
    pub fn cancel(&mut self, owner: OwnerId, request: u32) -> bool {
        let before = self.under_way.len();
        self.under_way.retain(|_, errand| (errand.owner, errand.request) != (owner, request));
        self.under_way.len() < before
    }
}

/// The answer to an errand.
struct Done {
    packet: Packet,
    body: Vec<u8>,
}

impl Done {
    fn plain() -> Done {
        Done { packet: Packet::new(Op::Done), body: Vec::new() }
    }
}

impl Engine {
    /// Does it, or has it done.
    pub(super) fn run_errand(
        &mut self,
        owner: OwnerId,
        dc: DcId,
        own: Endpoint,
        packet: Packet,
        body: &[u8],
    ) -> Result<(), IpcError> {
        if packet.op != Op::GetPrivileges {
            self.check_manager(dc, own)?;
        }
        let endpoint = packet.peer.ok_or(IpcError::BadEndpoint)?;
        self.resolve(dc, endpoint)?;
        match self.home(dc, endpoint) {
            Some(Home::Remote { node }) => self.send_errand(owner, node, Packet { dc, ..packet }, body),
            _ => {
                let Done { packet: done, body } = self.do_errand(dc, packet, body)?;
                self.send_with_body(owner, Packet { request: packet.request, ..done }, &body);
                Ok(())
            }
        }
    }

    fn do_errand(&mut self, dc: DcId, packet: Packet, body: &[u8]) -> Result<Done, IpcError> {
        let endpoint = packet.peer.ok_or(IpcError::BadEndpoint)?;
        match packet.op {
            Op::GetPrivileges => {
                let body = self.privileges_of(dc, endpoint).ok_or(IpcError::NoSuchEndpoint)?.to_bytes();
                Ok(Done { packet: Packet { peer: Some(endpoint), ..Packet::new(Op::Privileges) }, body })
            }
            Op::SetPrivileges => {
                let privileges = Privileges::from_bytes(body).ok_or(IpcError::BadArgument)?;
                self.change_privileges(dc, endpoint, privileges)?;
                Ok(Done::plain())
            }
            Op::WakeUp => {
                let owner = self.local_owner(dc, endpoint).ok_or(IpcError::NoSuchEndpoint)?;
                if let Some(page) = self.containers.get(&dc).and_then(|container| container.pages.get(&endpoint)) {
                    page.wake_up();
                }
                self.send(owner, Packet::new(Op::WakeUp), Vec::new());
                Ok(Done::plain())
            }
            _ => Err(IpcError::BadArgument),
        }
    }

    fn send_errand(&mut self, owner: OwnerId, node: NodeId, packet: Packet, body: &[u8]) -> Result<(), IpcError> {
        if packet.request == 0 {
            return Err(IpcError::BadArgument);
        }
        if self.nodes_down.contains(&node) {
            return Err(IpcError::NoLink);
        }
        if self.errands.under_way.len() >= ERRANDS_MAX {
            return Err(IpcError::TableFull);
        }
        self.errands.last = self.errands.last.wrapping_add(1);
        let number = self.errands.last;
        let message = Packet { request: number, ..packet }.with_body(body);
        self.tell_broker(node, &message);
        self.errands.under_way.insert(number, Errand { owner, request: packet.request, node, message });
        Ok(())
    }

    /// Says something to the broker of another node. Without a proxy it is lost.
    pub(super) fn tell_broker(&mut self, node: NodeId, message: &[u8]) {
        if let Some(proxy) = self.proxy {
            self.send_with_body(proxy, Packet { node, ..Packet::new(Op::Parcel) }, message);
        }
    }

    pub(super) fn hear_parcel(&mut self, node: NodeId, message: &[u8]) {
        let Some((packet, body)) = Packet::split(message) else {
            tracing::warn!(%node, "its broker said something that is no packet");
            return;
        };
        match packet.op {
            Op::Probe | Op::Refuse => self.hear_chase(&packet, body),
            Op::Done | Op::Failed | Op::Privileges => self.errand_done(node, packet, body),
            _ => {
                let done = self
                    .do_errand(packet.dc, packet, body)
                    .unwrap_or_else(|error| Done { packet: Packet::failed(packet.request, error), body: Vec::new() });
                let answer = Packet { request: packet.request, ..done.packet }.with_body(&done.body);
                self.tell_broker(node, &answer);
            }
        }
    }

    /// An answer that came twice finds nobody.
    fn errand_done(&mut self, node: NodeId, packet: Packet, body: &[u8]) {
        let is_asked = self.errands.under_way.get(&packet.request).is_some_and(|errand| errand.node == node);
        if is_asked && let Some(errand) = self.errands.under_way.remove(&packet.request) {
            self.send_with_body(errand.owner, Packet { request: errand.request, ..packet }, body);
        }
    }

    /// To one node, or to all.
    pub(super) fn send_errands_again(&mut self, to: Option<NodeId>) {
        let open = self.errands.under_way.values().filter(|errand| to.is_none_or(|node| errand.node == node));
        let messages: Vec<_> = open.map(|errand| (errand.node, errand.message.clone())).collect();
        for (node, message) in messages {
            self.tell_broker(node, &message);
        }
    }

    pub(super) fn end_errands(&mut self, node: NodeId) {
        let under_way = std::mem::take(&mut self.errands.under_way);
        let (ended, others): (BTreeMap<u32, Errand>, _) =
            under_way.into_iter().partition(|(_, errand)| errand.node == node);
        self.errands.under_way = others;
        for errand in ended.into_values() {
            self.fail(errand.owner, errand.request, IpcError::NoLink);
        }
    }
}
