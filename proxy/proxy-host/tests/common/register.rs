//! What the cluster engine is to the nodes of a test: who is where, and gossip of it.

use std::collections::{HashMap, HashSet};
use std::sync::mpsc::{Receiver, Sender};
use std::sync::{Arc, Mutex};

use abi::{DcId, Endpoint, Epoch, NodeId};
use broker::{Broker, Claim, Directory, EndpointName, Location, Names};
use ipc::IpcError;

use super::DC;

pub(super) type Place = (NodeId, Epoch, i32);

#[derive(Clone, Default)]
pub(super) struct Places {
    pub(super) endpoints: Arc<Mutex<HashMap<Endpoint, Place>>>,
    pub(super) names: Arc<Mutex<Names>>,
}

/// What the cluster engine is to a daemon.
pub(super) struct Register {
    pub(super) me: NodeId,
    pub(super) pairs: u8,
    pub(super) places: Places,
    pub(super) news: Sender<News>,
}

/// What a node's broker said of its own endpoints, for the other node.
pub(super) enum News {
    Bound(NodeId, Endpoint, Epoch),
    Unbound(NodeId, Endpoint, Epoch),
    Claimed(NodeId, Endpoint, Epoch, EndpointName, Result<(), IpcError>),
    Stop,
}

impl Directory for Register {
    fn locate(&mut self, _dc: DcId, endpoint: Endpoint) -> Location {
        match self.places.endpoints.lock().expect("not poisoned").get(&endpoint) {
            Some((node, epoch, _)) if *node != self.me => Location::Remote { node: *node, epoch: *epoch },
            Some(_) => Location::Local,
            None => Location::Unknown,
        }
    }

    fn find(&mut self, _dc: DcId, pid: i32) -> Option<Endpoint> {
        let places = self.places.endpoints.lock().expect("not poisoned");
        places.iter().find(|(_, place)| place.2 == pid).map(|(endpoint, _)| *endpoint)
    }

    fn bound(&mut self, _dc: DcId, endpoint: Endpoint, pid: i32, epoch: Epoch) {
        self.places.endpoints.lock().expect("not poisoned").insert(endpoint, (self.me, epoch, pid));
        let _ = self.news.send(News::Bound(self.me, endpoint, epoch));
    }

    fn claim(
        &mut self,
        dc: DcId,
        endpoint: Endpoint,
        epoch: Epoch,
        name: EndpointName,
        _: Option<NodeId>,
    ) -> Result<Claim, IpcError> {
        let result = self.places.names.lock().expect("not poisoned").claim(dc, endpoint, name);
        let _ = self.news.send(News::Claimed(self.me, endpoint, epoch, name, result));
        Ok(Claim::UnderWay)
    }

    fn named(&mut self, dc: DcId, name: EndpointName) -> Option<Endpoint> {
        self.places.names.lock().expect("not poisoned").holder(dc, name)
    }

    fn name_of(&mut self, dc: DcId, endpoint: Endpoint) -> Option<EndpointName> {
        self.places.names.lock().expect("not poisoned").of(dc, endpoint)
    }

    fn unbound(&mut self, dc: DcId, endpoint: Endpoint, epoch: Epoch) {
        {
            let mut places = self.places.endpoints.lock().expect("not poisoned");
            // Not of a successor.
            if places.get(&endpoint).is_some_and(|place| place.0 == self.me && place.1 <= epoch) {
                self.places.names.lock().expect("not poisoned").end(dc, endpoint);
                places.remove(&endpoint);
            }
        }
        let _ = self.news.send(News::Unbound(self.me, endpoint, epoch));
    }

    fn pairs(&self, _node: NodeId) -> u8 {
        self.pairs
    }
}

/// Tells each broker what happened at the other, as a daemon does that watches the engine.
pub(super) fn gossip(brokers: &[(NodeId, Arc<Broker>)], deaf: &Mutex<HashSet<NodeId>>, heard: &Receiver<News>) {
    for said in heard {
        let deaf = deaf.lock().expect("not poisoned").clone();
        let deaf = &deaf;
        let others = |node: NodeId| {
            let hears = move |id: &NodeId| *id != node && !deaf.contains(id);
            brokers.iter().filter(move |(id, _)| hears(id)).map(|(_, broker)| broker)
        };
        match said {
            News::Bound(node, endpoint, epoch) => {
                others(node).for_each(|broker| drop(broker.remote_bound(DC, endpoint, node, epoch)));
            }
            News::Unbound(node, endpoint, epoch) => {
                others(node).for_each(|broker| drop(broker.remote_unbound(DC, endpoint, node, epoch)));
            }
            News::Claimed(node, endpoint, epoch, name, result) => {
                if result.is_ok() {
                    others(node).for_each(|broker| drop(broker.remote_bound(DC, endpoint, node, epoch)));
                }
                let own = brokers.iter().filter(|(id, _)| *id == node);
                own.for_each(|(_, broker)| drop(broker.name_claimed(DC, endpoint, name, result)));
            }
            News::Stop => return,
        }
    }
}
