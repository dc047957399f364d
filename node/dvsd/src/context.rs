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
use crate::engine::EtcdChoice;
use crate::hatches::Hatches;
use crate::identity::Identity;
use crate::joining::certificates::Certificates;
use crate::judging::Court;
use crate::member::Complaint;
use crate::metrics::Tally;
use crate::names::NamesProblem;
use crate::observed::Observed;
use crate::people::audit::Audit;
use crate::people::known::People;
use crate::presence::Presence;
use crate::proxyctl::ProxyControl;
use crate::quorum::Members;
use crate::records::NodeRecord;
use crate::renewal::Renewal;
use crate::service_manager::ServiceManager;
use crate::services::ServiceBells;

pub struct Context {
    pub config: Config,
    /// Which cluster this is, as the engine said at the start.
    pub identity: Identity,
    pub engine: Arc<dyn Engine>,
    /// For look-ups of people: also while the engine is away.
    pub answers: Answers,
    pub node: NodeRecord,
    pub broker: Arc<Broker>,
    pub directory: EndpointDirectory,
    pub proxy: ProxyControl,
    pub desks: Desks,
    pub hatches: Hatches,
    /// Why nobody can ask for names, where somebody should.
    pub names_problem: NamesProblem,
    /// Absent before the daemon has come alive and once it stops.
    pub presence: Mutex<Option<Presence>>,
    /// Likewise.
    pub certificates: Mutex<Option<Certificates>>,
    /// Likewise; and where the cluster does not decide which nodes run members of etcd.
    pub quorum: Mutex<Option<Members>>,
    /// What is wrong with the node's own member of etcd, whoever looks after it.
    pub complaint: Complaint,
    /// Where the engine is, as the daemon was told at its start.
    pub etcd: Option<EtcdChoice>,
    /// All nodes ever seen, as the follower knows them.
    pub members: RwLock<BTreeMap<String, NodeRecord>>,
    /// Held while proxies are told of nodes; before the locks of what they are told.
    pub telling: Mutex<()>,
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
    /// Who may ask from elsewhere.
    pub people: Arc<People>,
    pub audit: Audit,
    /// Why the daemon has to end, of itself.
    pub ending: watch::Sender<Option<Ending>>,
    /// Incarnations of nodes that are over, as the engine's follower said.
    pub verdicts: RwLock<BTreeMap<String, u64>>,
    pub renewal: Renewal,
    pub service_bells: ServiceBells,
    /// Absent before the daemon has come alive and once it stops.
    pub court: Mutex<Option<Court>>,
}

/// Why a daemon ends without being told to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ending {
    /// The node was taken out of the cluster.
    Removed,
    /// The others decided that it was lost: it begins anew.
    Fenced,
    /// The engine was begun anew of a copy: whatever was read there before has to be read again.
    Replaced,
    /// A later release lies where this one lay: the daemon begins in it.
    Upgraded,
}

impl Context {
    /// Whoever was taken out does not begin anew.
    pub fn end(&self, why: Ending) {
        self.ending.send_if_modified(|ending| {
            let is_new = ending.is_none() || *ending != Some(Ending::Removed) && why == Ending::Removed;
            if is_new {
                *ending = Some(why);
            }
            is_new
        });
    }

    /// It was decided that this incarnation of the node is over, and there is no later one.
    pub fn is_fenced(&self, record: &NodeRecord) -> bool {
        self.verdicts.read().get(&record.name).is_some_and(|over| record.epoch <= *over)
    }

    /// Links lead to nodes that are not fenced.
    pub fn tell_proxies(&self) {
        // Several threads hear of nodes: whoever tells last knows what all of them heard.
        let _told = self.telling.lock();
        let members = self.members.read().clone();
        let members = members.into_iter().filter(|(_, record)| !self.is_fenced(record)).collect();
        // First the broker's side: a link that comes or goes is judged by how many there are.
        self.directory.learned_members(&members);
        self.proxy.set_peers(&members, &self.config);
    }

    /// Verdicts are others now.
    pub fn judged(&self, verdicts: BTreeMap<String, u64>) {
        *self.verdicts.write() = verdicts;
        self.tell_proxies();
        self.service_bells.ring();
        self.changed();
    }

    pub fn lease(&self) -> Option<LeaseId> {
        self.presence.lock().as_ref().and_then(Presence::lease)
    }

    pub fn changed(&self) {
        self.changes.send_modify(|count| *count += 1);
    }

    pub fn member(&self, node: &str) -> Option<NodeRecord> {
        self.members.read().get(node).cloned()
    }

    /// Whether containers have addresses of IPv6 on a node.
    pub fn has_ipv6(&self, node: &str) -> bool {
        self.members.read().get(node).is_some_and(|member| member.ipv6)
    }

    /// Where encapsulated frames for a node go.
    pub fn underlay(&self, node: &str) -> Option<IpAddr> {
        self.member(node)?.address.parse().ok()
    }
}
