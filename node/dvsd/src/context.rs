//! What all parts of the daemon share.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use broker::Broker;
use cluster::known::Answers;
use cluster::{Engine, LeaseId};
use parking_lot::{Mutex, RwLock};
use tokio::sync::watch;

use crate::api::{HealthCheck, Requests};
use crate::config::Config;
use crate::desks::Desks;
use crate::directory::EndpointDirectory;
use crate::duties::Duties;
use crate::metrics::Tally;
use crate::observed::Observed;
use crate::presence::Presence;
use crate::proxyctl::ProxyControl;
use crate::records::NodeRecord;
use crate::service_manager::ServiceManager;

pub struct Context {
    pub config: Config,
    pub engine: Arc<dyn Engine>,
    /// For look-ups of people: also while the engine is away.
    pub answers: Answers,
    pub node: NodeRecord,
    pub broker: Arc<Broker>,
    pub directory: EndpointDirectory,
    pub proxy: ProxyControl,
    pub desks: Desks,
    /// Absent before the daemon has come alive and once it stops.
    pub presence: Mutex<Option<Presence>>,
    /// All nodes ever seen, as the follower knows them.
    pub members: RwLock<BTreeMap<String, NodeRecord>>,
    /// Containers, and nodes that are alive.
    pub observed: Mutex<Observed>,
    /// Counts changes of nodes and containers; whoever waits for one looks at `observed` again.
    pub changes: watch::Sender<u64>,
    /// What has to come to its end.
    pub duties: Duties,
    pub service_manager: Arc<ServiceManager>,
    /// Of calls to the engine.
    pub tally: Arc<Tally>,
    pub requests: Requests,
    /// What the last report of the node's health found: whoever only counts need not ask everybody again.
    pub checked: Mutex<Vec<HealthCheck>>,
}

impl Context {
    pub fn lease(&self) -> Option<LeaseId> {
        self.presence.lock().as_ref().and_then(Presence::lease)
    }

    pub fn changed(&self) {
        self.changes.send_modify(|count| *count += 1);
    }

    pub fn member(&self, node: &str) -> Option<NodeRecord> {
        self.members.read().get(node).cloned()
    }

    /// Where encapsulated frames for a node go.
    pub fn underlay(&self, node: &str) -> Option<IpAddr> {
        self.member(node)?.address.parse().ok()
    }
}
