//! Names of endpoints: `docs/design/names.md`.
//!
//! The directory knows who has which name. Here are only calls that wait: a claim until the directory decided it, and
//! finds until somebody has the name and can be reached. Neither is kept for a successor, which is asked again.

use std::collections::HashMap;

use abi::limits::FINDS_PER_DC;
use abi::{DcId, Endpoint, EndpointName, IpcError, NodeId};
use broker_api::{IfAbsent, ToPort};
use ipc_core::table::{Home, OwnerId};

use super::EventLoop;
use super::proxying::Resolved;
use crate::{Claim, Location};

/// A claim that the directory has not decided yet. One of each connection.
#[derive(Clone, Copy, Debug)]
pub(super) struct Claiming {
    dc: DcId,
    endpoint: Endpoint,
    name: EndpointName,
    request: u32,
}

/// Calls of one container that wait for somebody to have a name. One of each connection, so that nobody takes up all
/// the room.
#[derive(Debug, Default)]
pub(crate) struct Finds {
    names: HashMap<OwnerId, (EndpointName, u32)>,
    askers: HashMap<EndpointName, Vec<OwnerId>>,
}

impl Finds {
    pub fn add(&mut self, owner: OwnerId, name: EndpointName, request: u32) -> Result<(), IpcError> {
        if self.names.len() >= FINDS_PER_DC || self.names.contains_key(&owner) {
            return Err(IpcError::TableFull);
        }
        self.names.insert(owner, (name, request));
        self.askers.entry(name).or_default().push(owner);
        Ok(())
    }

    /// Takes out the call of a connection: that one, or whatever its number.
    pub fn take(&mut self, owner: OwnerId, only: Option<u32>) -> Option<u32> {
        let (name, request) = *self.names.get(&owner)?;
        if only.is_some_and(|only| only != request) {
            return None;
        }
        self.names.remove(&owner);
        if let Some(askers) = self.askers.get_mut(&name) {
            askers.retain(|asker| *asker != owner);
            if askers.is_empty() {
                self.askers.remove(&name);
            }
        }
        Some(request)
    }

    pub fn len(&self) -> usize {
        self.names.len()
    }

    /// Takes out everybody who waits for the name.
    fn take_all(&mut self, name: EndpointName) -> Vec<(OwnerId, u32)> {
        let askers = self.askers.remove(&name).unwrap_or_default();
        askers.into_iter().filter_map(|owner| Some((owner, self.names.remove(&owner)?.1))).collect()
    }

    fn is_sought(&self, name: EndpointName) -> bool {
        self.askers.contains_key(&name)
    }

    pub fn sought(&self) -> impl Iterator<Item = EndpointName> {
        self.askers.keys().copied()
    }
}

impl EventLoop {
    pub(super) fn set_name(
        &mut self,
        owner: OwnerId,
        dc: DcId,
        own: Endpoint,
        request: u32,
        name: EndpointName,
    ) -> Result<(), IpcError> {
        if request == 0 {
            return Err(IpcError::BadArgument);
        }
        if self.claims.contains_key(&owner) {
            return Err(IpcError::Busy);
        }
        let container = self.containers.get(&dc).ok_or(IpcError::DcNotRunning)?;
        let epoch = container.table.binding(own).ok_or(IpcError::NotBound)?.epoch;
        let lost = self.lost_holder(dc, name);
        match self.directory.claim(dc, own, epoch, name, lost)? {
            Claim::Granted => {
                self.answer(owner, request, &ToPort::Done);
                self.name_appeared(dc, name);
            }
            Claim::UnderWay => drop(self.claims.insert(owner, Claiming { dc, endpoint: own, name, request })),
        }
        Ok(())
    }

    /// The node of the endpoint that has the name, when no link leads there.
    fn lost_holder(&mut self, dc: DcId, name: EndpointName) -> Option<NodeId> {
        let holder = self.directory.named(dc, name)?;
        match self.directory.locate(dc, holder) {
            Location::Remote { node, .. } if self.is_node_down(node) => Some(node),
            _ => None,
        }
    }

    /// The directory decided. A claim that was given up meanwhile is nobody's, and done all the same.
    pub(super) fn name_claimed(
        &mut self,
        dc: DcId,
        endpoint: Endpoint,
        name: EndpointName,
        result: Result<(), IpcError>,
    ) {
        let is_it = |it: &Claiming| (it.dc, it.endpoint, it.name) == (dc, endpoint, name);
        let owner = self.claims.iter().find(|(_, claiming)| is_it(claiming)).map(|(owner, _)| *owner);
        if let Some((owner, claiming)) = owner.and_then(|owner| Some((owner, self.claims.remove(&owner)?))) {
            let answer = result.map_or_else(|error| ToPort::Failed { error }, |()| ToPort::Done);
            self.answer(owner, claiming.request, &answer);
        }
        if result.is_ok() {
            self.name_appeared(dc, name);
        }
    }

    pub(super) fn find_named(
        &mut self,
        owner: OwnerId,
        dc: DcId,
        request: u32,
        (name, if_absent): (EndpointName, IfAbsent),
    ) -> Result<(), IpcError> {
        if request == 0 {
            return Err(IpcError::BadArgument);
        }
        match self.look_up(dc, name) {
            Ok(place) => self.say_found(owner, request, place),
            Err(IpcError::NoSuchEndpoint | IpcError::NoLink) if if_absent == IfAbsent::Wait => {
                let container = self.containers.get_mut(&dc).ok_or(IpcError::DcNotRunning)?;
                container.finds.add(owner, name, request)?;
            }
            Err(error) => return Err(error),
        }
        Ok(())
    }

    /// Whether it waited for a name or for the decision on its own.
    pub(super) fn cancel_naming(&mut self, owner: OwnerId, dc: DcId, request: u32) -> bool {
        let container = self.containers.get_mut(&dc);
        if container.and_then(|container| container.finds.take(owner, Some(request))).is_some() {
            return true;
        }
        let is_it = self.claims.get(&owner).is_some_and(|claiming| claiming.request == request);
        is_it && self.claims.remove(&owner).is_some()
    }

    /// Somebody is bound, or can be reached again: whoever seeks its name goes on.
    pub(super) fn named_appeared(&mut self, dc: DcId, endpoint: Endpoint) {
        if let Some(name) = self.directory.name_of(dc, endpoint) {
            self.name_appeared(dc, name);
        }
    }

    /// Looks once more for everything that is sought.
    pub(super) fn seek_again(&mut self) {
        let of_container = |(dc, container): (&DcId, &crate::container::Container)| {
            let dc = *dc;
            container.finds.sought().map(move |name| (dc, name)).collect::<Vec<_>>()
        };
        let sought: Vec<_> = self.containers.iter().flat_map(of_container).collect();
        sought.into_iter().for_each(|(dc, name)| self.name_appeared(dc, name));
    }

    fn name_appeared(&mut self, dc: DcId, name: EndpointName) {
        if !self.containers.get(&dc).is_some_and(|container| container.finds.is_sought(name)) {
            return;
        }
        let Ok(place) = self.look_up(dc, name) else { return };
        let container = self.containers.get_mut(&dc);
        for (owner, request) in container.map(|it| it.finds.take_all(name)).unwrap_or_default() {
            self.say_found(owner, request, place);
        }
    }

    fn say_found(&mut self, owner: OwnerId, request: u32, (endpoint, node): (Endpoint, NodeId)) {
        self.answer(owner, request, &ToPort::Found { endpoint, node: Some(node) });
    }

    /// Who has the name, and on which node it is: while it is handed over, where it was.
    fn look_up(&mut self, dc: DcId, name: EndpointName) -> Result<(Endpoint, NodeId), IpcError> {
        let endpoint = self.directory.named(dc, name).ok_or(IpcError::NoSuchEndpoint)?;
        let node = match self.resolve(dc, endpoint)? {
            Resolved::Bound => match self.home(dc, endpoint) {
                Some(Home::Remote { node }) => node,
                _ => self.node,
            },
            // It keeps its name; a process that calls it waits.
            Resolved::InTransit => {
                let container = self.containers.get(&dc);
                container.and_then(|it| it.table.left_from(endpoint)).unwrap_or(self.node)
            }
        };
        Ok((endpoint, node))
    }
}
