//! Making and unmaking the parts of a share: the one place that talks to sandbox, keeper and broker about a container.
//!
//! Every step may be repeated: a daemon that was killed in between begins with what is there.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::net::{IpAddr, Ipv6Addr};
use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{FileExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use abi::{DcId, Endpoint, Epoch};
use broker::{BrokerError, DcOptions, Home, ServerIdentity};
use keeper::{CallGateFds, FuseOptions, JobFds, KeeperClient, KeeperOptions, ProcFds};
use mgmt_api::{DiskStore, EgressSpec, Instance, Limits, PortSpec, SharePort, Volume};
use parking_lot::Mutex;
use sandbox::cgroup::Cgroup;
use sandbox::links::Network;
use sandbox::overlay::{self, Overlay, Peer, Subnet};
use serde_json::{Map, Value, json};
use sys::launch::PidNamespace;
use vos_api::ports::{NodeAddress, NodeAddresses};

use super::egress;
use super::plan::{Observed, Part, Standing};
use super::published::{self, Published};
use super::share::Share;
use crate::config::Config;
use crate::context::Context;
use crate::desks::{self, DeskOf, DeskServer};
use crate::kinds::{CALLS, COPY, CallGatePart, GATE_STATE, Source};
use crate::records;
use crate::renewal;
use crate::services;
use crate::space;
use crate::spawn::{self, Role};
use crate::state::{self, StateError};
use crate::supervise::{OnAdoption, Problem, Supervised};

/// A server asked to end writes what it holds; then it is killed.
const SERVER_GRACE: Duration = Duration::from_secs(10);
/// After a failure of a part that is no process.
const REST: Duration = Duration::from_secs(1);
/// A gate that is no server: nobody in the container speaks with it.
struct PortGateKind {
    name: &'static str,
    /// Under which the keeper has the daemon's end of its socket.
    control: &'static str,
    /// Among the container's uids; those of servers are in `kinds`.
    uid_slot: u32,
    /// After `dvs`.
    arguments: [&'static str; 2],
}

const PORT_GATE: PortGateKind =
    PortGateKind { name: "ports", control: published::CONTROL, uid_slot: 6, arguments: ["gate", "ports"] };
const EGRESS_GATE: PortGateKind =
    PortGateKind { name: "egress", control: egress::CONTROL, uid_slot: 7, arguments: ["gate", "egress"] };
/// The broker's socket, in the directory that programs see as `/run/dvs`.
const BROKER_SOCKET: &str = "broker";
/// Likewise: who the container's nodes are.
const HOSTS: &str = sandbox::rootfs::HOSTS;
/// In the state directory of a node: certificates for clients of NBD, which people put there.
const NBD_TLS_DIR: &str = "nbd";
/// Which nodes are lost, for servers.
const LOST_SEATS: &str = "lost";

/// Of a container's control group.
pub fn cgroup_name(config: &Config, dc: u32) -> String {
    format!("{}-{}-{dc}", config.cluster, config.node)
}

pub struct Parts {
    context: Arc<Context>,
    pub share: Share,
    /// As which this node's part of it stands; see [`Parts::catch_up`].
    followed: Share,
    run_dir: PathBuf,
    state_dir: PathBuf,
    processes: BTreeMap<Part, Supervised>,
    plain: BTreeMap<Part, Plain>,
    cgroup: Option<Cgroup>,
    /// Seats of nodes of which the call gate was told that they are lost, a bit each.
    lost: u64,
    /// What the page for servers says of it, as far as this daemon has written it.
    lost_as_told: Option<u64>,
    published: Published,
    /// Seats of nodes with IPv6, a bit each, of which the network knows; nothing of one that an earlier daemon made.
    seats_with_ipv6: Option<u64>,
    /// Nodes of the cluster that the present gate to the outside was told of; nothing of one that an earlier daemon
    /// began.
    kept_from: Option<(Vec<IpAddr>, bool)>,
    /// Where to programs get out by IPv6, as the container's routes say it; nothing of what an earlier daemon said.
    ways_of_ipv6: Option<Vec<Network>>,
    /// The daemon's ends of desks, with the keeper that has them for the next daemon.
    desks: Mutex<BTreeMap<DeskOf, HeldDesk>>,
}

struct HeldDesk {
    end: OwnedFd,
    held_by: Option<u32>,
}

/// Whether an earlier daemon worked on this share since the machine started.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum History {
    None,
    Earlier,
}

/// A part that is no process.
#[derive(Clone, Debug, Default)]
struct Plain {
    made: bool,
    /// Process number of the keeper in whose namespaces it was made.
    made_in: Option<u32>,
    rests_until: Option<Instant>,
    problem: Option<String>,
    /// In a row.
    failures: u32,
}

impl Plain {
    fn failed(&mut self, now: Instant, problem: String) {
        self.rests_until = Some(now + REST);
        self.problem = Some(problem);
        self.failures = self.failures.saturating_add(1);
    }

    fn forget_failures(&mut self) {
        self.rests_until = None;
        self.failures = 0;
    }
}

/// What is done about an image that is not there.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Image {
    Made,
    Demanded,
}

impl Parts {
    /// With what an earlier daemon left.
    /// `earlier`: what that one worked on.
    pub fn open(
        context: &Arc<Context>,
        share: Share,
        history: History,
        earlier: Option<Share>,
    ) -> Result<Parts, Problem> {
        let run_dir = context.config.dc_run_dir(share.id);
        let state_dir = context.config.dc_state_dir(share.id);
        for dir in [&run_dir, &state_dir, &run_dir.join("ipc")] {
            fs::create_dir_all(dir).map_err(|error| format!("cannot make {}: {error}", dir.display()))?;
        }
        for dir in [state_dir.join("log"), state_dir.join("images")] {
            state::make_private(&dir).map_err(|error| format!("cannot make {}: {error}", dir.display()))?;
        }
        // Programs of the container pass through it.
        fs::set_permissions(run_dir.join("ipc"), fs::Permissions::from_mode(0o755))?;
        let mut parts = Parts {
            context: Arc::clone(context),
            run_dir,
            state_dir,
            processes: BTreeMap::new(),
            plain: BTreeMap::new(),
            cgroup: None,
            lost: 0,
            lost_as_told: None,
            published: Published::default(),
            seats_with_ipv6: None,
            kept_from: None,
            ways_of_ipv6: None,
            desks: Mutex::default(),
            followed: earlier.unwrap_or_else(|| share.clone()),
            share,
        };
        let bound = parts.bound_processes()?;
        for part in parts.share.parts.clone() {
            let on_adoption = |pid: i32| match parts.share.endpoint(&part) {
                // A server is of use as long as the broker knows it.
                Some(endpoint) if bound.get(&endpoint) != Some(&pid) => OnAdoption::MustBeReplaced,
                _ if parts.takes_over_desk(&part) => OnAdoption::GoesOn,
                _ => OnAdoption::MustBeReplaced,
            };
            if let Some(name) = parts.share.role_name(&part) {
                let process = Supervised::adopt_if(name, &parts.run_dir, &parts.state_dir.join("log"), on_adoption)?;
                parts.processes.insert(part, process);
            } else {
                parts.plain.insert(part, Plain::default());
            }
        }
        if history == History::Earlier {
            parts.adopt_surroundings();
        }
        Ok(parts)
    }

    /// The desk of a server that an earlier daemon started. False: nobody has it any more.
    fn takes_over_desk(&self, part: &Part) -> bool {
        let Some(desk) = self.desk_of(part) else { return true };
        let held = self.keeper().and_then(|keeper| Ok(keeper.fetch(&desk.kept_as())?));
        let served = held.and_then(|end| self.serve_desk(desk, end.ok_or("the keeper has none")?));
        let taken = served.inspect_err(|error| {
            tracing::warn!(dc = self.share.id, error = crate::supervise::causes(&**error), "cannot take over a desk");
        });
        taken.is_ok()
    }

    /// The desk of a server that has one.
    fn desk_of(&self, part: &Part) -> Option<DeskOf> {
        let Part::Server(kind, index) = part else { return None };
        let server = kind.descriptors.iter().find_map(|(_, source)| match source {
            Source::Desk => Some(DeskServer::Coordination),
            Source::DiskDesk if self.share.is_replicated(part) => Some(DeskServer::Disk(*index)),
            _ => None,
        })?;
        Some(DeskOf { dc: self.share.id, server })
    }

    fn serve_desk(&self, desk: DeskOf, end: OwnedFd) -> Result<(), Problem> {
        let held = HeldDesk { end: end.try_clone()?, held_by: None };
        self.context.desks.serve(&self.context, desk, end)?;
        self.desks.lock().insert(desk, held);
        Ok(())
    }

    fn end_desk(&self, desk: DeskOf) {
        self.context.desks.end(desk);
        self.desks.lock().remove(&desk);
    }

    /// Whatever the keeper does not have yet, it gets, so that the next daemon finds it. A server whose desk it does
    /// not get is replaced then.
    pub fn hold_desks(&self) {
        let Some(keeper) = self.keeper_pid() else { return };
        for (desk, held) in self.desks.lock().iter_mut().filter(|(_, held)| held.held_by != Some(keeper)) {
            match self.keeper().and_then(|keeper| Ok(keeper.store(&desk.kept_as(), held.end.as_fd())?)) {
                Ok(()) => held.held_by = Some(keeper),
                Err(error) => tracing::warn!(?desk, error = crate::supervise::causes(&*error), "a desk is not held"),
            }
        }
    }

    /// Which process the broker has for each endpoint of this node.
    fn bound_processes(&self) -> Result<BTreeMap<Endpoint, i32>, Problem> {
        let dcs = self.context.broker.snapshot()?.dcs.into_iter();
        let endpoints = dcs.filter(|info| info.dc == DcId(self.share.id)).flat_map(|info| info.endpoints);
        let local = endpoints.filter_map(|info| match info.home {
            Home::Local { pid } => Some((info.endpoint, pid)),
            Home::Remote { .. } => None,
        });
        Ok(local.collect())
    }

    /// An earlier daemon may have made anything; what still serves a running keeper is kept, the rest is unmade first.
    fn adopt_surroundings(&mut self) {
        self.make(&Part::Broker);
        self.make(&Part::Cgroup);
        let keeper = self.keeper_pid();
        self.plain.insert(Part::Network, Plain { made: true, made_in: keeper, ..Plain::default() });
        if keeper.is_none() {
            return;
        }
        match self.keeper().and_then(|keeper| Ok(keeper.status()?)) {
            Ok(status) => {
                self.plain
                    .insert(Part::Mount, Plain { made: status.fuse_mounted, made_in: keeper, ..Plain::default() });
            }
            Err(error) => tracing::warn!(dc = self.share.id, %error, "an adopted keeper does not answer"),
        }
    }

    pub fn observed(&self) -> Observed {
        self.share.parts.iter().map(|part| (*part, self.standing(part))).collect()
    }

    fn standing(&self, part: &Part) -> Standing {
        if let Some(process) = self.processes.get(part) {
            return process.standing();
        }
        let Some(plain) = self.plain.get(part) else { return Standing::Absent };
        let resting = plain.rests_until.is_some_and(|until| until > Instant::now());
        let inside_keeper = matches!(part, Part::Network | Part::Mount);
        match (plain.made, resting) {
            (true, _) if inside_keeper && (plain.made_in.is_none() || plain.made_in != self.keeper_pid()) => {
                Standing::Stale
            }
            (true, _) => Standing::Ready,
            (false, true) => Standing::Resting,
            (false, false) => Standing::Absent,
        }
    }

    pub fn processes(&self) -> impl Iterator<Item = (&Part, &Supervised)> {
        self.processes.iter()
    }

    pub fn processes_mut(&mut self) -> impl Iterator<Item = &mut Supervised> {
        self.processes.values_mut()
    }

    /// When everything stands: one server or gate of another binary than the daemon's is no use any more.
    pub fn renew_next(&mut self) {
        if self.share.parts.iter().any(|part| self.standing(part) != Standing::Ready) {
            return;
        }
        let is_earlier = |process: &Supervised| process.pid().is_some_and(renewal::is_of_another_binary);
        for gate in [Part::Ports, Part::Egress] {
            if self.processes.get(&gate).is_some_and(is_earlier) {
                self.replace_port_gate(gate);
            }
        }
        let servers = self.processes.iter_mut().filter(|(part, _)| matches!(part, Part::Server(..)));
        let mut earlier = servers.filter(|(_, process)| is_earlier(process));
        if let Some((part, process)) = earlier.next() {
            tracing::info!(dc = self.share.id, ?part, "gives way to the daemon's release");
            process.make_stale();
        }
    }

    /// Nobody who is connected notices: the next one takes over the sockets, and this one goes with its last client.
    fn replace_port_gate(&mut self, gate: Part) {
        let control = if gate == Part::Egress { egress::CONTROL } else { published::CONTROL };
        let sent = self.keeper().and_then(|keeper| published::send_away(&keeper, control));
        let released = sent.and_then(|()| match self.processes.get_mut(&gate) {
            Some(process) => Ok(process.release()?),
            None => Ok(()),
        });
        match released {
            Ok(()) => tracing::info!(dc = self.share.id, ?gate, "gives way to another one"),
            Err(cause) => {
                tracing::warn!(dc = self.share.id, ?gate, problem = crate::supervise::causes(&*cause), "stays");
            }
        }
    }

    /// Nodes began anew with IPv6 or without, or an earlier daemon made the network, which knew less.
    pub fn look_after_network(&mut self) {
        if self.standing(&Part::Network) != Standing::Ready || self.seats_with_ipv6 == Some(self.with_ipv6()) {
            return;
        }
        let made = self.make_network();
        self.settle_plain(&Part::Network, made.map(|()| true));
    }

    /// Seats of its nodes that have IPv6, a bit each.
    fn with_ipv6(&self) -> u64 {
        let seats = self.share.seated.iter().filter(|(_, node)| self.context.has_ipv6(node));
        seats.fold(0, |bits, (seat, _)| bits | 1 << seat)
    }

    /// Nodes came to the cluster or left it, or have other addresses: the gate is told whom it must not reach. One that
    /// began with IPv6 or without, and is now to have it otherwise, gives way to another one and ends with its last
    /// connection; so does one of an earlier release, which cannot be told.
    pub fn look_after_egress(&mut self) {
        let is = self.surroundings_of_egress();
        let gate = self.processes.get(&Part::Egress).filter(|gate| gate.standing() == Standing::Ready);
        if let Some(gate) = gate.filter(|_| self.kept_from.as_ref() != Some(&is)) {
            let is_understood = !gate.pid().is_none_or(renewal::is_of_another_binary);
            // What an adopted one began with nobody knows.
            let has_ipv6 = self.kept_from.as_ref().map(|(_, has_ipv6)| *has_ipv6);
            if is_understood && has_ipv6 == Some(is.1) {
                match self.keeper().and_then(|keeper| published::keep_from(&keeper, egress::CONTROL, &is.0)) {
                    Ok(()) => self.kept_from = Some(is),
                    Err(problem) => {
                        let problem = crate::supervise::causes(&*problem);
                        tracing::warn!(
                            dc = self.share.id,
                            problem,
                            "the way out does not know other addresses of nodes yet"
                        );
                    }
                }
            } else {
                self.replace_port_gate(Part::Egress);
            }
        }
        if let Err(problem) = self.follow_ways() {
            let problem = crate::supervise::causes(&*problem);
            tracing::warn!(dc = self.share.id, problem, "ways out by IPv6 stay as they were");
        }
    }

    /// What the node reaches by IPv6 the container does, as far as it may.
    fn follow_ways(&mut self) -> Result<(), Problem> {
        let serves = self.processes.get(&Part::Egress).is_some_and(|gate| gate.standing() == Standing::Ready);
        let (Some(spec), true) = (&self.share.spec.egress, serves) else {
            self.ways_of_ipv6 = None;
            return Ok(());
        };
        let ways = if self.address_ipv6().is_some() { egress::ways_of_ipv6(spec)? } else { Vec::new() };
        if self.ways_of_ipv6.as_ref() != Some(&ways) {
            egress::follow_ways(&self.keeper()?, self.share.address_ipv6, &ways)?;
            self.ways_of_ipv6 = Some(ways);
        }
        Ok(())
    }

    /// What a gate is told when it begins, and keeps to: addresses that nobody reaches, and whether there is IPv6.
    fn surroundings_of_egress(&self) -> (Vec<IpAddr>, bool) {
        (self.cluster_addresses(), self.address_ipv6().is_some())
    }

    /// On this node, where it has IPv6.
    fn address_ipv6(&self) -> Option<Ipv6Addr> {
        self.context.has_ipv6(&self.context.config.node).then_some(self.share.address_ipv6)
    }

    /// Tells the port gate what is published, and who the nodes are.
    pub fn publish(&mut self) {
        let gate = self.processes.get(&Part::Ports).filter(|gate| gate.standing() == Standing::Ready);
        let gate = gate.and_then(Supervised::pid);
        let mut published = std::mem::take(&mut self.published);
        let node = &self.context.config.node;
        match self.node_addresses() {
            Ok(nodes) => published.look(&self.share, node, gate, nodes, &|| self.keeper()),
            Err(problem) => tracing::warn!(dc = self.share.id, %problem, "no port is published"),
        }
        self.published = published;
    }

    /// Where its programs ask this daemon, as long as it has programs here.
    pub fn open_hatch(&self) {
        let (share, dir) = (&self.share, self.run_dir.join("ipc"));
        if self.keeper_pid().is_some()
            && let Err(error) = self.context.hatches.open(share.id, &share.spec.name, &dir)
        {
            tracing::warn!(dc = share.id, %error, "programs of a container cannot ask the daemon");
        }
    }

    pub fn close_hatch(&self) {
        self.context.hatches.close(self.share.id);
    }

    pub fn published(&self) -> Vec<SharePort> {
        self.published.ports()
    }

    /// What an earlier record published here, and the present one does not.
    pub fn withdraw(&self, earlier: &[PortSpec]) {
        // Without one nobody listens.
        if self.keeper_pid().is_none() {
            return;
        }
        let node = &self.context.config.node;
        let is_wanted = |port: &&PortSpec| {
            let name = published::name_of(port);
            self.share.ports(node).any(|wanted| published::name_of(wanted) == name)
        };
        let gone: Vec<PortSpec> = earlier.iter().filter(|port| port.is_at(node) && !is_wanted(port)).cloned().collect();
        if let Err(problem) = Published::withdraw(&gone, &|| self.keeper()) {
            tracing::warn!(dc = self.share.id, problem = crate::supervise::causes(&*problem), "a port stays published");
        }
    }

    /// Of all nodes that are not lost.
    fn node_addresses(&self) -> Result<NodeAddresses, Problem> {
        let is_there = |(seat, _): &&(usize, String)| *seat != self.share.index && self.lost & 1 << seat == 0;
        let others = self.share.seated.iter().filter(is_there).map(|(seat, _)| self.node_address(*seat));
        Ok(NodeAddresses { own: self.node_address(self.share.index)?, others: others.collect::<Result<_, _>>()? })
    }

    /// What is wrong, part by part.
    pub fn problems(&self) -> Vec<String> {
        let processes = self.processes.values().filter(|process| process.standing() != Standing::Ready);
        let of_processes = processes.filter_map(|process| process.problem().map(str::to_owned));
        let of_ports = self.published.ports().into_iter().filter_map(|port| port.problem);
        of_processes.chain(of_ports).chain(self.plain.values().filter_map(|plain| plain.problem.clone())).collect()
    }

    /// Failures in a row of the part that fails most.
    pub fn worst_failures(&self) -> u32 {
        let plain = self.plain.values().map(|plain| plain.failures);
        self.processes.values().map(Supervised::failures).chain(plain).max().unwrap_or(0)
    }

    /// A new wish: what failed before does not count against it, and need not be waited for.
    pub fn forget_failures(&mut self) {
        self.processes.values_mut().for_each(Supervised::forget_failures);
        self.plain.values_mut().for_each(Plain::forget_failures);
    }

    /// The next moment at which something rests no more.
    pub fn due(&self) -> Option<Instant> {
        let now = Instant::now();
        let plain = self.plain.values().filter_map(|plain| plain.rests_until.filter(|until| *until > now));
        self.processes.values().filter_map(Supervised::due).chain(plain).chain(self.published.due()).min()
    }

    /// Makes a part. What goes wrong is remembered with the part, which then rests.
    pub fn make(&mut self, part: &Part) {
        tracing::debug!(dc = self.share.id, ?part, "making");
        if self.processes.contains_key(part) {
            self.start_process(part);
            return;
        }
        let made = match part {
            Part::Broker => self.make_broker(),
            Part::Cgroup => self.make_cgroup(),
            Part::Network => self.make_network(),
            Part::Mount => self.make_mount(),
            Part::Keeper | Part::Ports | Part::Egress | Part::Server(..) => Ok(()),
        };
        self.settle_plain(part, made.map(|()| true));
    }

    /// Unmakes a part. False: it could not be done, try again later.
    pub fn unmake(&mut self, part: &Part, grace: Duration) -> bool {
        tracing::debug!(dc = self.share.id, ?part, "unmaking");
        let unmade = match part {
            Part::Keeper => self.stop_keeper(grace),
            Part::Broker => self.context.broker.remove_dc(DcId(self.share.id)).map_err(Problem::from),
            Part::Cgroup => self.remove_cgroup(),
            Part::Network => Overlay::remove(self.share.id).map_err(Problem::from),
            Part::Mount => self.unmount(),
            Part::Ports | Part::Egress => {
                self.processes.get_mut(part).map_or(Ok(()), |process| process.end(SERVER_GRACE)).map_err(Problem::from)
            }
            Part::Server(..) => {
                let ended = self.processes.get_mut(part).map_or(Ok(()), |process| {
                    process.end(if process.is_misled() { Duration::ZERO } else { SERVER_GRACE })
                });
                self.desk_of(part).into_iter().for_each(|desk| self.end_desk(desk));
                ended.map_err(Problem::from)
            }
        };
        let done = unmade.is_ok();
        if let Err(error) = &unmade {
            tracing::warn!(dc = self.share.id, ?part, error = crate::supervise::causes(&**error), "cannot unmake");
        }
        if self.plain.contains_key(part) {
            self.settle_plain(part, unmade.map(|()| false));
        }
        done
    }

    fn settle_plain(&mut self, part: &Part, settled: Result<bool, Problem>) {
        let keeper = self.keeper_pid();
        let plain = self.plain.entry(*part).or_default();
        match settled {
            Ok(made) => *plain = Plain { made, made_in: keeper.filter(|_| made), ..Plain::default() },
            Err(error) => {
                let problem = crate::supervise::causes(&*error);
                tracing::warn!(dc = self.share.id, ?part, problem, "resting");
                plain.failed(Instant::now(), problem);
            }
        }
    }

    // ---- parts that are no processes

    fn make_broker(&mut self) -> Result<(), Problem> {
        let listen = Some(self.run_dir.join("ipc").join(BROKER_SOCKET));
        let options = DcOptions { listen, program_endpoints: self.share.endpoints.clone(), ..DcOptions::default() };
        match self.context.broker.add_dc(DcId(self.share.id), options) {
            // Made by this daemon before, by a worker that did not get to the end.
            Ok(()) | Err(BrokerError::DcExists(_)) => (),
            Err(error) => return Err(error.into()),
        }
        self.context.directory.introduce(&self.context.broker, self.share.id);
        Ok(())
    }

    fn make_cgroup(&mut self) -> Result<(), Problem> {
        let cgroup = Cgroup::ensure(&self.cgroup_name(), &self.share.spec.limits)?;
        // Those of an earlier daemon are in it already, unless that one knew no such group.
        for pid in self.processes.values().filter_map(Supervised::pid) {
            // One that ended meanwhile is its supervisor's business.
            if let Err(error) = cgroup.add_server(pid) {
                tracing::warn!(dc = self.share.id, pid, %error, "a server is not in its container's control group");
            }
        }
        // As an earlier daemon may have been told otherwise. Where nothing can stand still, nothing does.
        match cgroup.hold(self.share.paused) {
            Err(error) if self.share.paused => return Err(error.into()),
            _ => self.cgroup = Some(cgroup),
        }
        Ok(())
    }

    fn remove_cgroup(&mut self) -> Result<(), Problem> {
        let cgroup = match self.cgroup.take() {
            Some(cgroup) => cgroup,
            None => Cgroup::ensure(&self.cgroup_name(), &self.share.spec.limits)?,
        };
        Ok(cgroup.remove()?)
    }

    /// Unique on the machine, which may play several nodes.
    fn cgroup_name(&self) -> String {
        cgroup_name(&self.context.config, self.share.id)
    }

    fn make_network(&mut self) -> Result<(), Problem> {
        let namespaces = self.keeper()?.namespaces()?;
        let with_ipv6 = self.with_ipv6();
        let has_ipv6 = |seat: usize| with_ipv6 & 1 << seat != 0;
        let mut peers = Vec::new();
        for (index, node) in self.share.seated.iter().filter(|(index, _)| *index != self.share.index) {
            let underlay =
                self.context.underlay(node).ok_or_else(|| format!("the address of node {node} is not known"))?;
            peers.push(Peer { index: u8::try_from(*index)?, underlay, has_ipv6: has_ipv6(*index) });
        }
        let overlay = Overlay {
            dc: self.share.id,
            index: u8::try_from(self.share.index)?,
            subnet: self.share.spec.subnet.parse()?,
            underlay: self.context.config.addresses().own(),
            port: self.context.config.vxlan_port,
            has_ipv6: has_ipv6(self.share.index),
            peers,
        };
        overlay.ensure(&namespaces.net)?;
        self.tell_hosts()?;
        self.seats_with_ipv6 = Some(with_ipv6);
        Ok(())
    }

    /// What the container's `/etc/hosts` leads to, and by which names jobs are sent to nodes.
    fn tell_hosts(&self) -> Result<(), Problem> {
        let own = &self.context.config.node;
        let state = |seat: usize, node: &String| match node == own {
            true => " here",
            false if self.lost & 1 << seat != 0 => " lost",
            false => "",
        };
        let nodes = self.share.seated.iter().map(|(seat, node)| format!("{seat} {node}{}\n", state(*seat, node)));
        self.tell(vos_api::job_door::NODES_NAME, nodes.collect())?;
        self.tell(HOSTS, self.names()?)
    }

    /// Services came, went or moved.
    pub fn tell_names(&mut self) {
        let told = self.names().and_then(|names| {
            let known = fs::read_to_string(self.run_dir.join("ipc").join(HOSTS)).unwrap_or_default();
            if known == names { Ok(()) } else { self.tell_hosts() }
        });
        if let Err(cause) = told {
            tracing::warn!(dc = self.share.id, %cause, "programs do not hear where services are");
        }
    }

    /// `/etc/hosts` of its programs: its nodes, and its services where they run, this node's first. What is named like
    /// a node is the node.
    fn names(&self) -> Result<String, Problem> {
        let (dc, own) = (&self.share.spec.name, &self.context.config.node);
        let in_full = |name: &str| format!("{name} {name}.{dc}.dvs");
        let hosts = self.hosts()?;
        let mut named: Vec<(String, String)> =
            hosts.iter().map(|(node, address)| (in_full(node), address.clone())).collect();
        let is_node = |name: &str| hosts.iter().any(|(node, _)| node == name);
        let addresses = |node: String| hosts.iter().filter(move |(name, _)| *name == node).map(|(_, address)| address);
        // Nothing of them is known before the engine has told.
        let services = services::record::views(&*self.context.answers.mirror, self.share.id).unwrap_or_default();
        for (service, view) in services {
            if is_node(&service) {
                continue;
            }
            let mut nodes = view.standing();
            nodes.sort_by_key(|node| (node != own, node.clone()));
            nodes.dedup();
            named.extend(nodes.into_iter().flat_map(addresses).map(|address| (in_full(&service), address.clone())));
        }
        Ok(sandbox::rootfs::hosts_text(&named))
    }

    /// A file that programs may read, in the directory that they see as `/run/dvs`.
    fn tell(&self, name: &str, text: String) -> Result<(), Problem> {
        let dir = self.run_dir.join("ipc");
        let (path, fresh) = (dir.join(name), dir.join(format!(".{name}.new")));
        fs::write(&fresh, text)?;
        fs::set_permissions(&fresh, fs::Permissions::from_mode(0o644))?;
        Ok(fs::rename(&fresh, &path)?)
    }

    /// Names and addresses of all its nodes; of those with IPv6 two, as far as this node has it. Which one a program
    /// prefers its library decides (RFC 6724).
    fn hosts(&self) -> Result<Vec<(String, String)>, Problem> {
        let mut hosts = Vec::new();
        for (seat, node) in &self.share.seated {
            let NodeAddress { ipv4, ipv6 } = self.node_address(*seat)?;
            let both = std::iter::once(IpAddr::V4(ipv4)).chain(ipv6.map(IpAddr::V6));
            hosts.extend(both.map(|address| (node.clone(), address.to_string())));
        }
        Ok(hosts)
    }

    fn node_address(&self, seat: usize) -> Result<NodeAddress, Problem> {
        let subnet: Subnet = self.share.spec.subnet.parse()?;
        let (index, with_ipv6) = (u8::try_from(seat)?, self.with_ipv6());
        let has_ipv6 = [seat, self.share.index].iter().all(|seat| with_ipv6 & 1 << seat != 0);
        let ipv6 = has_ipv6.then(|| overlay::address_ipv6(self.share.id, index));
        Ok(NodeAddress { ipv4: subnet.address(index)?, ipv6 })
    }

    /// What was asked for is something else now.
    pub fn follow(&mut self, share: Share) {
        self.share = share;
    }

    /// What stands for an earlier description is brought to the present one; what is missing or made anew the plan
    /// sees. May be repeated after a failure.
    pub fn catch_up(&mut self) -> Result<(), Problem> {
        self.follow_pause()?;
        if self.followed == self.share {
            return Ok(());
        }
        let earlier = self.followed.clone();
        self.withdraw(&earlier.spec.ports);
        self.follow_ports()?;
        if earlier.spec.egress != self.share.spec.egress {
            self.follow_egress(earlier.spec.egress.as_ref())?;
        }
        if earlier.spec.limits != self.share.spec.limits {
            self.follow_limits(&earlier.spec.limits);
        }
        if earlier.placement != self.share.placement {
            self.follow_placement(&earlier)?;
        }
        if earlier.seated != self.share.seated {
            // It was told of the other nodes when it began.
            self.renew_call_gate();
            if let Some(network) = self.plain.get_mut(&Part::Network) {
                *network = Plain::default();
            }
        }
        self.followed = self.share.clone();
        Ok(())
    }

    /// Servers that stand elsewhere end here, those that stand here now are made by the plan, and who was told of an
    /// earlier place is replaced: a client that knows an old epoch would be refused.
    fn follow_placement(&mut self, earlier: &Share) -> Result<(), Problem> {
        let own = &self.context.config.node;
        let is_here = |share: &Share, part: &Part| share.instance(part).is_some_and(|one| one.node == *own);
        let gone: Vec<Part> = earlier.parts.iter().filter(|part| is_here(earlier, part)).copied().collect();
        for part in gone.into_iter().filter(|part| !is_here(&self.share, part)) {
            tracing::info!(dc = self.share.id, ?part, "stands elsewhere now");
            let left = match self.processes.remove(&part) {
                Some(process) => Some(process),
                None => earlier.role_name(&part).map(|name| self.adopt(name)).transpose()?,
            };
            // Whoever comes after it need not wait until it has said its last.
            left.map_or(Ok(()), |mut process| process.end(Duration::ZERO))?;
            self.desk_of(&part).into_iter().for_each(|desk| self.end_desk(desk));
            let volume = earlier.instance(&part).and_then(|one| one.volume.as_ref());
            volume.filter(|volume| self.has_left(volume)).map_or(Ok(()), |volume| self.remove_images(volume))?;
        }
        let servers: Vec<Part> = self.share.parts.iter().filter(|part| is_here(&self.share, part)).copied().collect();
        for part in servers {
            let has_changed = self.share.lasting_options(&part) != earlier.lasting_options(&part)
                || self.share.instance(&part).map(|one| one.epoch) != earlier.instance(&part).map(|one| one.epoch);
            match self.processes.get_mut(&part) {
                Some(process) if has_changed => process.make_misled(),
                Some(_) => (),
                None => {
                    let name = self.share.role_name(&part).ok_or("it is no process")?;
                    let mut process = self.adopt(name)?;
                    process.make_misled();
                    self.processes.insert(part, process);
                }
            }
        }
        Ok(())
    }

    /// Whether it was a disk, or a copy of one, that people do not want any more: nothing here needs its image.
    fn has_left(&self, volume: &Volume) -> bool {
        let here = self.share.placement.instances.iter().filter(|one| one.node == self.context.config.node);
        !here.filter_map(|one| one.volume.as_ref()).any(|it| it.file() == volume.file())
    }

    /// What it knows of itself goes first: an image alone is nothing that anybody trusts.
    fn remove_images(&self, volume: &Volume) -> Result<(), Problem> {
        tracing::info!(dc = self.share.id, disk = volume.name, "an image is removed");
        for file in [volume.kept_file(), volume.file(), volume.fence_file()] {
            state::remove(&self.images().join(file))?;
        }
        Ok(())
    }

    fn images(&self) -> PathBuf {
        self.state_dir.join("images")
    }

    /// A group that is made later is made so.
    fn follow_pause(&mut self) -> Result<(), Problem> {
        let Some(plain) = self.plain.get_mut(&Part::Cgroup).filter(|plain| plain.made) else { return Ok(()) };
        plain.problem = None;
        if self.followed.paused != self.share.paused
            && let Some(group) = &self.cgroup
        {
            let held = group.hold(self.share.paused);
            plain.problem = held.as_ref().err().map(|error| crate::supervise::causes(error));
            held?;
        }
        Ok(())
    }

    fn follow_limits(&mut self, earlier: &Limits) {
        if let Some(cgroup) = self.plain.get_mut(&Part::Cgroup) {
            *cgroup = Plain::default();
        }
        let cpus = &self.share.spec.limits.cpus;
        if earlier.cpus == *cpus {
            return;
        }
        let of_servers = self.processes.iter().filter(|(part, _)| **part != Part::Keeper);
        for pid in of_servers.filter_map(|(_, process)| process.pid()) {
            let set = cpus.as_deref().and_then(crate::spec::cpu_set).unwrap_or_else(spawn::own_cpus);
            if let Err(error) = spawn::keep_to(pid, &set) {
                tracing::warn!(dc = self.share.id, pid, %error, "a server stays on its CPUs");
            }
        }
    }

    /// A gate with other rules takes the place of the one there is. Connections go on if they still may.
    fn follow_egress(&mut self, earlier: Option<&EgressSpec>) -> Result<(), Problem> {
        self.tell_resolver()?;
        match (self.share.spec.egress.clone(), self.processes.contains_key(&Part::Egress)) {
            (Some(_), false) => {
                let gate = self.adopt_gate(Part::Egress)?;
                self.processes.insert(Part::Egress, gate);
            }
            (Some(wanted), true) if earlier.is_some_and(|earlier| wanted.allows_all_of(earlier)) => {
                self.replace_port_gate(Part::Egress);
            }
            (Some(_), true) => {
                self.end_earlier_gates(EGRESS_GATE)?;
                self.processes.get_mut(&Part::Egress).into_iter().for_each(Supervised::make_stale);
            }
            (None, has_gate) => {
                self.end_earlier_gates(EGRESS_GATE)?;
                let gate = match self.processes.remove(&Part::Egress) {
                    None if !has_gate => Some(self.adopt_gate(Part::Egress)?),
                    gate => gate,
                };
                gate.map_or(Ok(()), |mut gate| gate.end(SERVER_GRACE))?;
                if self.keeper_pid().is_some() {
                    egress::close(&self.keeper()?)?;
                }
            }
        }
        Ok(())
    }

    /// Those that gave way to another one, and went on with their connections.
    fn end_earlier_gates(&self, kind: PortGateKind) -> Result<(), Problem> {
        let known: Vec<u32> = self.processes.values().filter_map(Supervised::pid).collect();
        let is_meant = |pid: u32| {
            let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            let mut words = line.split(|byte| *byte == 0).skip(1);
            kind.arguments.iter().all(|word| words.next() == Some(word.as_bytes()))
        };
        let Some(group) = &self.cgroup else { return Ok(()) };
        for pid in group.servers()?.into_iter().filter(|pid| !known.contains(pid) && is_meant(*pid)) {
            let Ok(process) = sys::pidfd::open(pid.cast_signed()) else { continue };
            // Its number may have been given to another one meanwhile.
            if is_meant(pid) {
                let _ = rustix::process::pidfd_send_signal(&process, rustix::process::Signal::KILL);
            }
        }
        Ok(())
    }

    fn adopt_gate(&self, gate: Part) -> Result<Supervised, Problem> {
        self.adopt(self.share.role_name(&gate).ok_or("it is no process")?)
    }

    /// What an earlier daemon may have left under this name.
    fn adopt(&self, name: &str) -> Result<Supervised, Problem> {
        Ok(Supervised::adopt(name, &self.run_dir, &self.state_dir.join("log"), OnAdoption::GoesOn)?)
    }

    fn tell_resolver(&self) -> Result<(), Problem> {
        let text = match &self.share.spec.egress {
            Some(_) => egress::resolv_conf(),
            None => sandbox::rootfs::NO_RESOLVER.to_owned(),
        };
        self.tell(sandbox::rootfs::RESOLV_CONF, text)
    }

    /// The gate comes with the first port of this node and goes with the last.
    fn follow_ports(&mut self) -> Result<(), Problem> {
        let is_wanted = self.share.parts.contains(&Part::Ports);
        match self.processes.get_mut(&Part::Ports) {
            None if is_wanted => {
                let gate = self.adopt_gate(Part::Ports)?;
                self.processes.insert(Part::Ports, gate);
            }
            // What is connected goes on.
            held if !is_wanted && (held.is_some() || self.followed.parts.contains(&Part::Ports)) => {
                if held.is_none() {
                    let gate = self.adopt_gate(Part::Ports)?;
                    self.processes.insert(Part::Ports, gate);
                }
                let sent = self.keeper().and_then(|keeper| published::send_away(&keeper, published::CONTROL));
                match (sent, self.processes.remove(&Part::Ports)) {
                    (Ok(()), Some(mut gate)) => gate.release()?,
                    (Err(_), Some(mut gate)) => gate.end(SERVER_GRACE)?,
                    (_, None) => (),
                }
            }
            _ => (),
        }
        Ok(())
    }

    /// A call gate is told when it begins which nodes are lost. Of one that came back it hears by itself.
    pub fn hear_verdicts(&mut self) {
        let lost = self.lost_seats();
        if self.lost_as_told != Some(lost) {
            match self.lost_page().and_then(|page| Ok(page.write_all_at(&lost.to_le_bytes(), 0)?)) {
                Ok(()) => self.lost_as_told = Some(lost),
                Err(cause) => tracing::warn!(%cause, "servers do not hear which nodes are lost"),
            }
        }
        if lost & !self.lost != 0 {
            self.renew_call_gate();
        }
        if lost != std::mem::replace(&mut self.lost, lost)
            && let Err(cause) = self.tell_hosts()
        {
            tracing::warn!(%cause, "jobs do not hear which nodes are lost");
        }
    }

    /// Servers have it open: it is written over, never replaced.
    fn lost_page(&self) -> Result<File, Problem> {
        let mut options = OpenOptions::new();
        let options = options.read(true).write(true).create(true).truncate(false).mode(0o600);
        Ok(options.open(self.run_dir.join(LOST_SEATS))?)
    }

    fn is_lost(&self, node: &str) -> bool {
        self.context.members.read().get(node).is_some_and(|record| self.context.is_fenced(record))
    }

    fn lost_seats(&self) -> u64 {
        self.share.seated.iter().filter(|(_, node)| self.is_lost(node)).fold(0, |bits, (seat, _)| bits | 1 << seat)
    }

    /// Of a disk that has copies: those on nodes that are lost, a bit for each number.
    fn lost_copies(&self, disk: &Part) -> Option<u64> {
        let lost = self.share.copies(disk).filter(|copy| self.is_lost(&copy.node));
        self.share.is_replicated(disk).then(|| lost.fold(0, |bits, copy| bits | 1 << copy.index))
    }

    fn renew_call_gate(&mut self) {
        let is_call_gate = |part: &Part| matches!(part, Part::Server(kind, _) if kind.name == CALLS);
        let gates = self.processes.iter_mut().filter(|(part, _)| is_call_gate(part));
        gates.for_each(|(_, gate)| gate.make_stale());
    }

    fn make_mount(&mut self) -> Result<(), Problem> {
        let keeper = self.keeper()?;
        // What the gate remembers belongs to this mount: it begins empty.
        let state = rustix::fs::memfd_create("dvs-gate", rustix::fs::MemfdFlags::CLOEXEC)?;
        keeper.store(GATE_STATE, state.as_fd())?;
        keeper.mount_fuse(&FuseOptions::default())?;
        Ok(())
    }

    fn unmount(&mut self) -> Result<(), Problem> {
        if self.standing(&Part::Keeper) == Standing::Ready {
            let keeper = self.keeper()?;
            keeper.unmount_fuse()?;
            keeper.drop_stored(GATE_STATE)?;
        }
        Ok(())
    }

    // ---- processes

    fn start_process(&mut self, part: &Part) {
        if *part == Part::Egress {
            self.kept_from = Some(self.surroundings_of_egress());
        }
        let Some(mut process) = self.processes.remove(part) else { return };
        process.start(|restarts| match part {
            Part::Keeper => self.keeper_role(restarts),
            Part::Ports => self.ports_role(restarts),
            Part::Egress => self.egress_role(restarts),
            _ => self.server_role(part, restarts),
        });
        self.processes.insert(*part, process);
    }

    fn keeper_role(&self, restarts: u64) -> Result<Role, Problem> {
        let spec = &self.share.spec;
        let config = &self.context.config;
        let uid_base = crate::uids::inside(self.share.id);
        let hosts = self.hosts()?;
        self.tell_hosts()?;
        self.tell_resolver()?;
        let options = KeeperOptions {
            control: self.keeper_socket(),
            log_dir: programs_dir(&self.state_dir),
            uid_base,
            pid_base: self.share.pid_base,
            pid_span: abi::limits::PIDS_PER_NODE,
            node: config.node.clone(),
            hostname: config.node.clone(),
            hosts,
            ipc_dir: Some(self.run_dir.join("ipc")),
            cgroup: self.cgroup.clone(),
            env: std::iter::once(format!("DVS_DC={}", spec.name)).chain(self.wait_mode()).collect(),
            volatile_bytes: None,
            terminals: spec.limits.terminals,
            open_files: spec.limits.open_files,
            with_opt: spec.with_opt,
            volumes: crate::volumes::mounts(spec, &config.node, &config.volumes, uid_base)?,
            spans: self.share.has_call_gate(),
            shows_all: spec.proc == mgmt_api::ProcView::All,
            launch_limit_ms: None,
        };
        Ok(Role {
            name: "keeper".to_owned(),
            program: None,
            arguments: vec!["keeper"],
            fields: self.fields(),
            options: serde_json::to_value(options)?,
            broker: None,
            fds: BTreeMap::new(),
            uid: None,
            environment: Vec::new(),
            cpus: None,
            pid_namespace: PidNamespace::Shared,
            group: self.cgroup.clone(),
            epoch: restarts + 1,
            restarts,
            serving: None,
        })
    }

    fn ports_role(&self, restarts: u64) -> Result<Role, Problem> {
        let keeper = self.keeper()?;
        let net = keeper.namespaces()?.net;
        let fds = BTreeMap::from([("net".to_owned(), net)]);
        self.port_gate_role(&keeper, PORT_GATE, json!({}), fds, restarts)
    }

    fn egress_role(&self, restarts: u64) -> Result<Role, Problem> {
        let keeper = self.keeper()?;
        let spec = self.share.spec.egress.clone().unwrap_or_default();
        let (subnet, address) = (self.share.spec.subnet.parse()?, self.share.address);
        let inside = egress::ContainerAddresses { subnet, address, address_ipv6: self.address_ipv6() };
        let mut fds = egress::descriptors(&keeper, &inside)?;
        fds.insert("never".to_owned(), egress::never(&self.cluster_addresses())?);
        let options = egress::options(&spec)?;
        self.port_gate_role(&keeper, EGRESS_GATE, options, fds, restarts)
    }

    /// Of all nodes of the cluster, which no container reaches.
    fn cluster_addresses(&self) -> Vec<IpAddr> {
        let members = self.context.members.read();
        let mut addresses: Vec<IpAddr> = members
            .values()
            .flat_map(|node| {
                node.address.parse().ok().into_iter().chain(node.addresses_ipv6.iter().copied().map(IpAddr::V6))
            })
            .collect();
        addresses.sort();
        addresses.dedup();
        addresses
    }

    fn port_gate_role(
        &self,
        keeper: &KeeperClient,
        gate: PortGateKind,
        options: Value,
        mut fds: BTreeMap<String, OwnedFd>,
        restarts: u64,
    ) -> Result<Role, Problem> {
        let PortGateKind { name, control, uid_slot, arguments } = gate;
        let (for_gate, own) = sys::seqpacket::pair()?;
        keeper.store(control, own.as_fd())?;
        fds.insert("control".to_owned(), for_gate);
        Ok(Role {
            name: name.to_owned(),
            program: None,
            arguments: arguments.to_vec(),
            fields: self.fields(),
            options,
            broker: None,
            fds,
            uid: Some(crate::uids::server(self.share.id, uid_slot)),
            environment: Vec::new(),
            cpus: self.share.spec.limits.cpus.as_deref().and_then(crate::spec::cpu_set),
            pid_namespace: PidNamespace::Own,
            group: self.cgroup.clone(),
            epoch: restarts + 1,
            restarts,
            serving: None,
        })
    }

    /// What tells the library how the container waits.
    fn wait_mode(&self) -> Option<String> {
        self.share.spec.wait.map(|mode| format!("{}={}", ipc::WAIT_MODE_VARIABLE, mode.name()))
    }

    fn server_role(&self, part: &Part, restarts: u64) -> Result<Role, Problem> {
        let missing = || format!("{part:?} is no server");
        let Part::Server(kind, index) = part else { return Err(missing().into()) };
        let endpoint = self.share.endpoint(part).ok_or_else(missing)?;
        let placed = self.share.instance(part).ok_or_else(missing)?;
        let placement_epoch = placed.epoch;
        let name = self.share.role_name(part).ok_or_else(missing)?.to_owned();
        let mut options = self.share.options(part).ok_or_else(missing)?;
        let lost = match kind.endpoint {
            Endpoint::CALLS => Some(self.lost),
            Endpoint::DISK => self.lost_copies(part),
            _ => None,
        };
        if let (Some(options), Some(lost)) = (options.as_object_mut(), lost) {
            options.insert("lost".to_owned(), json!(lost));
        }
        let engine = &*self.context.engine;
        let epoch = format!("/epochs/{}/{endpoint}", self.share.id);
        // A server that ever had an epoch had its image before.
        let last = records::read::<u64>(engine, &epoch)?;
        let image = if self.may_make_image(part, last.is_some()) { Image::Made } else { Image::Demanded };
        let fds = self.descriptors(part, image)?;
        // Raised in the engine: whoever starts this server next, on whichever node, gets a higher one.
        let is_placed = |record: &records::DcRecord| {
            let same = |one: &&Instance| (&one.kind, one.index) == (&placed.kind, placed.index);
            let now = record.placement.instances.iter().find(same);
            record.id == self.share.id && now.is_some_and(|now| (&now.node, now.epoch) == (&placed.node, placed.epoch))
        };
        let epoch = records::raise_where_placed(engine, &epoch, last, &self.share.spec.name, is_placed)?;
        let epoch = epoch.ok_or("it stands elsewhere by now, or nowhere")?;
        let identity = ServerIdentity::new(endpoint, Epoch(epoch));
        let broker = self.context.broker.server_socket(DcId(self.share.id), identity)?;
        let mut fields = self.fields();
        fields.insert("endpoint".to_owned(), json!(endpoint.number()));
        fields.insert("placement_epoch".to_owned(), json!(placement_epoch));
        Ok(Role {
            name,
            program: None,
            arguments: kind.arguments.to_vec(),
            fields,
            options,
            broker: Some(broker),
            fds,
            uid: Some(crate::uids::server(self.share.id, kind.uid_slot_of(*index))),
            environment: self.wait_mode().into_iter().collect(),
            cpus: self.share.spec.limits.cpus.as_deref().and_then(crate::spec::cpu_set),
            pid_namespace: kind.pid_namespace,
            group: self.cgroup.clone(),
            epoch,
            restarts,
            serving: kind.serving,
        })
    }

    /// Numbers of copies, and positions of disks that are made later, are given again: of one of them the file beside
    /// its image tells whether it is new.
    fn may_make_image(&self, part: &Part, ever_ran: bool) -> bool {
        let instance = self.share.instance(part);
        let kept = |volume: &Volume| match instance.map(|one| one.kind.name()) {
            Some(COPY) => Some(volume.kept_file()),
            // Its position was perhaps another one's.
            _ => volume.serial.map(|_| volume.fence_file()),
        };
        let kept = instance.and_then(|one| one.volume.as_ref()).and_then(kept);
        kept.map_or(!ever_ran, |kept| !self.images().join(kept).exists())
    }

    fn descriptors(&self, part: &Part, found: Image) -> Result<BTreeMap<String, OwnedFd>, Problem> {
        let Part::Server(kind, _) = part else { return Ok(BTreeMap::new()) };
        let (mut call_gate, part_of_desk) = (None, part);
        let mut open = |source: Source| -> Result<Option<OwnedFd>, Problem> {
            let made = match source {
                // The image is made by the copy beside it.
                Source::Disk if self.share.is_replicated(part) => {
                    Ok(self.open_image(&self.volume(part)?.file(), None, Image::Demanded)?.into())
                }
                Source::Kept => Ok(self.open_image(&self.volume(part)?.kept_file(), None, Image::Made)?.into()),
                Source::Disk => {
                    let volume = self.volume(part)?;
                    Ok(self.open_image(&volume.file(), Some(volume), found)?.into())
                }
                // Disks of earlier versions have none yet.
                Source::Fence => Ok(self.open_image(&self.volume(part)?.fence_file(), None, Image::Made)?.into()),
                // As it is now: one that begins because of a verdict is told of it.
                Source::LostSeats => {
                    self.lost_page()?.write_all_at(&self.lost_seats().to_le_bytes(), 0)?;
                    Ok(File::open(self.run_dir.join(LOST_SEATS))?.into())
                }
                Source::Store if kind.name == "ds" && self.share.store_disk().is_some() => return Ok(None),
                Source::Store => Ok(self.open_image(&format!("{}.store", kind.name), None, found)?.into()),
                Source::Keeper(key) => {
                    let held = self.keeper()?.fetch(key)?;
                    held.ok_or_else(|| Problem::from(format!("the keeper has no descriptor '{key}'")))
                }
                Source::NbdListener => {
                    let nbd = self.share.spec.nbd.as_ref().ok_or("no disk is served over NBD")?;
                    let listener = std::net::TcpListener::bind(nbd.listen)
                        .map_err(|error| format!("nobody can connect at {}: {error}", nbd.listen))?;
                    Ok(listener.into())
                }
                Source::NbdTls(_) if self.share.spec.nbd.as_ref().is_none_or(|nbd| !nbd.tls) => return Ok(None),
                Source::NbdTls(name) => {
                    let path = self.context.config.state_dir.join(NBD_TLS_DIR).join(name);
                    let file = File::open(&path).map_err(|error| format!("cannot read {}: {error}", path.display()))?;
                    Ok(file.into())
                }
                Source::KeeperIfAny(key) => return Ok(self.keeper()?.fetch(key)?),
                Source::CallGate(part) => {
                    if call_gate.is_none() {
                        call_gate = Some(self.call_gate_descriptors()?);
                    }
                    let parts = call_gate.iter_mut().flatten();
                    let fd = parts.filter(|(known, _)| *known == part).find_map(|(_, fd)| fd.take());
                    if fd.is_none() && part.is_needed() {
                        return Err(Problem::from(format!("the keeper gave no {part:?} for the call gate")));
                    }
                    return Ok(fd);
                }
                Source::Desk | Source::DiskDesk => {
                    let Some(desk) = self.desk_of(part_of_desk) else { return Ok(None) };
                    let (for_server, own) = desks::socket()?;
                    self.serve_desk(desk, own)?;
                    Ok(for_server)
                }
            };
            made.map(Some)
        };
        let opened = kind.descriptors.iter().map(|(role, source)| Ok(((*role).to_owned(), open(*source)?)));
        let opened = opened.collect::<Result<Vec<_>, Problem>>()?;
        Ok(opened.into_iter().filter_map(|(role, fd)| Some((role, fd?))).collect())
    }

    /// All that a call gate begins with.
    fn call_gate_descriptors(&self) -> Result<Vec<(CallGatePart, Option<OwnedFd>)>, Problem> {
        let begun = self.keeper()?.begin_call_gate()?;
        let CallGateFds { keeper, journal, init, memory, jobs, proc } =
            begun.ok_or("the keeper has no part for a call gate")?;
        let mut parts =
            vec![(CallGatePart::Keeper, keeper), (CallGatePart::Journal, journal), (CallGatePart::Init, init)];
        parts.push((CallGatePart::Memory, memory));
        if let Some(JobFds { door, starter }) = jobs {
            parts.extend([(CallGatePart::JobDoor, door), (CallGatePart::JobStarter, starter)]);
        }
        if let Some(ProcFds { fuse, native, looks }) = proc {
            parts.extend([(CallGatePart::ProcFuse, fuse), (CallGatePart::NativeProc, native)]);
            parts.push((CallGatePart::Looks, looks));
        }
        Ok(parts.into_iter().map(|(part, fd)| (part, Some(fd))).collect())
    }

    fn volume(&self, part: &Part) -> Result<&Volume, Problem> {
        Ok(self.share.instance(part).and_then(|one| one.volume.as_ref()).ok_or("no such disk")?)
    }

    fn fields(&self) -> Map<String, Value> {
        Map::from_iter([
            ("dc".to_owned(), json!(self.share.id)),
            ("dc_name".to_owned(), json!(self.share.spec.name)),
            ("node".to_owned(), json!(self.context.config.node)),
        ])
    }

    /// Opened for a server that may not open anything; made for one that never ran. A disk's size is fixed. An image
    /// that is gone is not made anew: an empty tree in place of people's files would be a lie.
    fn open_image(&self, name: &str, volume: Option<&Volume>, found: Image) -> Result<File, Problem> {
        let path = self.images().join(name);
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(found == Image::Made)
            .truncate(false)
            .mode(0o600)
            .open(&path)
            .map_err(|error| format!("cannot open the image {}: {error}", path.display()))?;
        let length = file.metadata()?.len();
        match volume {
            // Made just now, or by a daemon that was killed before it gave it its size; or made larger.
            Some(volume @ Volume { name, bytes, store, .. }) if length == 0 || volume.shall_grow(length) => {
                if *store == DiskStore::Image && !space::is_memory(&file) {
                    set_aside(&file, length..*bytes, name, &path)?;
                }
                file.set_len(*bytes)?;
            }
            // What was made larger in vain has more than it needs.
            Some(volume @ Volume { bytes, .. })
                if length < *bytes || volume.grown_from.is_none() && length > *bytes =>
            {
                return Err(format!("the image {} has {length} bytes instead of {bytes}", path.display()).into());
            }
            _ => (),
        }
        Ok(file)
    }

    // ---- keeper

    fn keeper(&self) -> Result<KeeperClient, Problem> {
        Ok(KeeperClient::connect(self.keeper_socket())?)
    }

    fn keeper_socket(&self) -> PathBuf {
        keeper_socket(&self.run_dir)
    }

    fn keeper_pid(&self) -> Option<u32> {
        self.processes
            .get(&Part::Keeper)
            .filter(|keeper| keeper.standing() == Standing::Ready)
            .and_then(Supervised::pid)
    }

    /// Programs end first, then the keeper, and with it its namespaces and the mount.
    fn stop_keeper(&mut self, grace: Duration) -> Result<(), Problem> {
        self.close_hatch();
        if self.standing(&Part::Keeper) == Standing::Ready
            && let Err(error) = self.keeper().and_then(|keeper| Ok(keeper.stop(grace)?))
        {
            // Killing it takes everything with it as well, only less gently.
            tracing::warn!(
                dc = self.share.id,
                error = crate::supervise::causes(&*error),
                "the keeper did not stop; killing it"
            );
        }
        if let Some(keeper) = self.processes.get_mut(&Part::Keeper) {
            keeper.end(SERVER_GRACE)?;
        }
        self.plain.entry(Part::Mount).or_default().made = false;
        Ok(())
    }

    /// Once everything is unmade: what was in memory goes.
    pub fn clear_run_dir(&self) -> Result<(), StateError> {
        remove_tree(&self.run_dir)
    }
}

/// Gives an image all its space at once, so that nobody who fills the node's disk takes it away later. `range`: where
/// it has none yet, to its end.
fn set_aside(image: &File, range: Range<u64>, name: &str, path: &Path) -> Result<(), Problem> {
    use rustix::fs::{FallocateFlags, fallocate};
    let bytes = range.end.saturating_sub(range.start);
    let refused = |free: u64| {
        let wanted = bytes >> 20;
        format!(
            "disk '{name}' of {wanted} MiB does not fit: {} MiB are free for images at {} (a smaller --disk, another --disk-node, or --sparse)",
            free >> 20,
            path.display()
        )
    };
    // Asked first: the attempt would take what is left away from others for a moment.
    let space = space::Space::at(path)?;
    if space.for_images() < bytes {
        return Err(refused(space.for_images()).into());
    }
    // The size comes last: an image that has one is whole.
    match rustix::io::retry_on_intr(|| fallocate(image, FallocateFlags::KEEP_SIZE, range.start, bytes)) {
        Ok(()) => Ok(()),
        // A file system that cannot: the image is sparse there, and the disk server knows it.
        Err(rustix::io::Errno::OPNOTSUPP | rustix::io::Errno::NOSYS) => Ok(()),
        Err(error) => {
            // What it got goes again.
            if range.start == 0 {
                state::remove(path)?;
            } else {
                image.set_len(range.start)?;
            }
            match error {
                rustix::io::Errno::NOSPC => Err(refused(space.for_images()).into()),
                error => Err(format!("no space was set aside for {}: {error}", path.display()).into()),
            }
        }
    }
}

/// Where logs and records of programs are.
pub fn programs_dir(state_dir: &Path) -> PathBuf {
    state_dir.join("programs")
}

pub fn keeper_socket(run_dir: &Path) -> PathBuf {
    run_dir.join("keeper.sock")
}

pub fn remove_tree(path: &Path) -> Result<(), StateError> {
    match fs::remove_dir_all(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(StateError { doing: "remove", path: path.to_owned(), cause: error })
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn part_that_is_no_process_counts_its_failures_until_somebody_wishes_anew() {
        let (mut plain, now) = (Plain::default(), Instant::now());
        (0..3).for_each(|_| plain.failed(now, "no such CPU".to_owned()));
        assert_eq!((plain.failures, plain.rests_until), (3, Some(now + REST)));
        plain.forget_failures();
        assert_eq!((plain.failures, plain.rests_until), (0, None));
    }
}
