//! `dvs dev up`: make a cluster, or nothing.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::net::IpAddr;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use client::{Client, DevCluster, DevNode, Places, ProcessId};
use mgmt_api::{AllowedVolume, NodeState};
use pki::{Authority, NodeRequest, Validity};
use serde::Serialize;

use super::machine::{self, Machine, MachineError};
use super::network::{self, WireError};
use super::record::{self, Lock};
use super::{address, cgroup, down, node_name, processes};

const HUB: &str = "hub";
/// Between two questions to a daemon that comes up: a tenth of what a person notices.
const ASK_PAUSE: Duration = Duration::from_millis(10);
/// Longest path of a Unix socket, without its final NUL; the daemon has longer ones of its own below the same
/// directory.
const SOCKET_PATH_BYTES_MAX: usize = 107 - "/dcs/16777215/keeper.sock".len();
/// Where members of etcd are reached: each node is a machine of its own.
const ETCD_CLIENT_PORT: u16 = 2379;
const ETCD_PEER_PORT: u16 = 2380;
/// Last lines of a daemon's log that are shown when it does not come up.
const LOG_LINES: usize = 6;

#[derive(Debug, thiserror::Error)]
pub enum UpError {
    #[error("cluster '{0}' exists already")]
    Exists(String),
    #[error("of cluster '{0}' something is left from before, though it does not run")]
    Leftovers(String),
    #[error("another dvs command works on cluster '{0}'")]
    Busy(String),
    #[error("cannot write {}", path.display())]
    Write {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("machine {name} did not come up")]
    Machine {
        name: String,
        #[source]
        source: MachineError,
    },
    #[error("node {name} has no network")]
    Wire {
        name: String,
        #[source]
        source: WireError,
    },
    #[error("the cluster has no certificates")]
    Certificates(#[source] pki::PkiError),
    /// `said`: its last words, as the log goes with the cluster.
    #[error("the daemon of {node} ended{}", if said.is_empty() { " and logged nothing" } else { "" })]
    DaemonEnded { node: String, said: Vec<String> },
    #[error("the daemon of {node} was not started")]
    Daemon {
        node: String,
        #[source]
        source: MachineError,
    },
    #[error("{node} was not ready within {seconds} s{}", listed(.problems))]
    NotReady { node: String, seconds: u64, problems: Vec<String> },
    #[error("{} is too long a path for sockets; use a shorter --state-dir", .0.display())]
    LongPath(PathBuf),
    #[error("there is no such program to run on the nodes")]
    Program(#[source] io::Error),
    #[error("cannot start")]
    Runtime(#[source] io::Error),
}

fn listed(problems: &[String]) -> String {
    if problems.is_empty() { String::new() } else { format!(": {}", problems.join("; ")) }
}

fn ended(node: &DevNode) -> UpError {
    // A log that was cut in the middle of a letter is still worth reading.
    let text = fs::read(&node.log).unwrap_or_default();
    UpError::DaemonEnded { node: node.name.clone(), said: last_words(&String::from_utf8_lossy(&text)) }
}

/// The complaint with which a daemon ended, when it made one; else the end of its log.
fn last_words(log: &str) -> Vec<String> {
    let complaint = log.rfind("dvs: ").filter(|at| *at == 0 || log.as_bytes().get(at - 1) == Some(&b'\n'));
    let lines: Vec<&str> = complaint.and_then(|at| log.get(at..)).unwrap_or(log).lines().collect();
    let surplus = lines.len().saturating_sub(LOG_LINES);
    lines.into_iter().skip(surplus).map(|line| line.trim().to_owned()).collect()
}

/// What to make.
pub struct Wish<'a> {
    pub name: &'a str,
    pub nodes: u16,
    /// What carries links; the daemon's default when absent.
    pub transport: Option<&'static str>,
    /// Of the cluster engine.
    pub engine: EngineKind,
    /// Pairs of proxies between two nodes; the daemon's default when absent.
    pub pairs: Option<u8>,
    /// Whether links are encrypted; the daemon's default when absent.
    pub link_tls: Option<bool>,
    /// Directories that containers may have as volumes.
    pub volumes: &'a [AllowedVolume],
    pub contents: Contents,
    /// The binary whose `daemon` command the nodes run; our own when absent.
    pub program: Option<PathBuf>,
    /// How long to wait until all nodes are ready.
    pub patience: Duration,
}

/// What the machines have.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Contents {
    /// A daemon each, and together they are a cluster.
    Cluster,
    /// Nothing: people make a cluster of them.
    Nothing,
}

/// Where the cluster's decisions lie.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum EngineKind {
    /// A file that all daemons of this machine open.
    Local,
    /// Members of etcd on the nodes, as a cluster of several machines has them.
    Etcd,
}

impl EngineKind {
    /// An odd number: one more would survive no more.
    fn members(self, nodes: u16) -> usize {
        match (self, nodes) {
            (EngineKind::Local, _) => 0,
            (EngineKind::Etcd, 0..=2) => 1,
            (EngineKind::Etcd, 3..=4) => 3,
            (EngineKind::Etcd, _) => 5,
        }
    }
}

/// Makes a cluster. On failure everything that was made is removed again.
pub fn up(places: &Places, wish: &Wish<'_>) -> Result<DevCluster, UpError> {
    let name = wish.name;
    let lock = Lock::take(places, name)
        .map_err(|source| UpError::Write { path: places.run.join("dev"), source })?
        .ok_or_else(|| UpError::Busy(name.to_owned()))?;
    refuse_second(places, name)?;
    let made = make(places, wish);
    if made.is_err() {
        // The failure itself is what the user must see; what cannot be removed now, `dvs doctor --clean` finds.
        let _ = down::remove(places, name);
        let _ = lock.discard();
    }
    made
}

fn refuse_second(places: &Places, name: &str) -> Result<(), UpError> {
    let exists = |path: PathBuf| path.exists();
    let record = places.dev_record(name).ok().flatten();
    match record {
        Some(record) if down::is_running(&record) => Err(UpError::Exists(name.to_owned())),
        Some(_) => Err(UpError::Leftovers(name.to_owned())),
        None if exists(places.dev_run(name)) || exists(places.dev_state(name)) => {
            Err(UpError::Leftovers(name.to_owned()))
        }
        None => Ok(()),
    }
}

fn make(places: &Places, wish: &Wish<'_>) -> Result<DevCluster, UpError> {
    let (name, patience) = (wish.name, wish.patience);
    let deadline = Instant::now() + patience;
    let mut cluster = plan(places, wish)?;
    for node in &cluster.nodes {
        if node.socket.as_os_str().len() > SOCKET_PATH_BYTES_MAX {
            return Err(UpError::LongPath(node.socket.clone()));
        }
    }
    for directory in [places.dev_run(name), places.dev_state(name)] {
        make_dir(&directory)?;
    }
    save(places, &cluster)?;
    start_machines(places, &mut cluster)?;
    if cluster.is_bare {
        return Ok(cluster);
    }
    certify(places, &cluster)?;
    for index in 0..cluster.nodes.len() {
        start_daemon(places, &mut cluster, index)?;
    }
    await_ready(&cluster, deadline, patience)?;
    Ok(cluster)
}

fn plan(places: &Places, wish: &Wish<'_>) -> Result<DevCluster, UpError> {
    let name = wish.name;
    let program = match &wish.program {
        Some(program) => program.canonicalize(),
        None => std::env::current_exe(),
    };
    let node = |index: usize| {
        let node = node_name(index);
        let (state_dir, run_dir) = (places.dev_state(name).join(&node), places.dev_run(name).join(&node));
        DevNode {
            address: address(index).to_string(),
            socket: run_dir.join("dvsd.sock"),
            config: state_dir.join("dvsd.toml"),
            log: state_dir.join("dvsd.log"),
            state_dir,
            run_dir,
            name: node,
            machine: None,
            daemon: None,
        }
    };
    Ok(DevCluster {
        name: name.to_owned(),
        boot_id: processes::boot_id(),
        program: program.map_err(UpError::Program)?,
        transport: wish.transport.map(str::to_owned),
        etcd_members: wish.engine.members(wish.nodes),
        pairs: wish.pairs,
        link_tls: wish.link_tls,
        volumes: wish.volumes.to_vec(),
        is_bare: wish.contents == Contents::Nothing,
        hub: None,
        nodes: (0..usize::from(wish.nodes)).map(node).collect(),
    })
}

fn start_machines(places: &Places, cluster: &mut DevCluster) -> Result<(), UpError> {
    let spawn = |name: &str| spawn_machine(places, cluster, name);
    // All at once: most of the time is the kernel's, making network namespaces.
    let hub = spawn(HUB)?;
    let nodes = cluster.nodes.iter().map(|node| spawn(&node.name)).collect::<Result<Vec<_>, _>>()?;
    let hub = hub.await_up().map_err(|source| machine_failed(HUB, source))?;
    let mut machines = Vec::with_capacity(nodes.len());
    for (starting, node) in nodes.into_iter().zip(&cluster.nodes) {
        machines.push(starting.await_up().map_err(|source| machine_failed(&node.name, source))?);
    }
    cluster.hub = Some(hub.process);
    for (machine, node) in machines.iter().zip(&mut cluster.nodes) {
        node.machine = Some(machine.process);
    }
    save(places, cluster)?;
    let hub = hub.stay().map_err(|source| machine_failed(HUB, source))?;
    network::make_bridge(hub).map_err(|source| UpError::Wire { name: HUB.to_owned(), source })?;
    for (index, (machine, node)) in machines.into_iter().zip(&cluster.nodes).enumerate() {
        let process = machine.stay().map_err(|source| machine_failed(&node.name, source))?;
        wire(hub, process, index, &node.name)?;
    }
    Ok(())
}

fn spawn_machine(places: &Places, cluster: &DevCluster, name: &str) -> Result<machine::Starting, UpError> {
    let group = cgroup::name(places, &cluster.name, name);
    cgroup::make_everywhere(&group).map_err(|source| UpError::Write { path: "/sys/fs/cgroup".into(), source })?;
    let node = cluster.node(name).filter(|_| cluster.is_bare);
    let home = node.map(|node| node.state_dir.as_path());
    Machine::spawn(name, &group, home).map_err(|source| machine_failed(name, source))
}

/// One machine again, after it was killed.
pub fn start_machine(places: &Places, cluster: &mut DevCluster, index: usize) -> Result<(), UpError> {
    let Some(node) = cluster.nodes.get(index) else { return Ok(()) };
    let name = node.name.clone();
    let failed = |source| machine_failed(&name, source);
    let hub = cluster.hub.ok_or(MachineError::Gone).map_err(failed)?;
    let machine = spawn_machine(places, cluster, &name)?.await_up().map_err(failed)?;
    if let Some(node) = cluster.nodes.get_mut(index) {
        node.machine = Some(machine.process);
    }
    save(places, cluster)?;
    let process = machine.stay().map_err(failed)?;
    wire(hub, process, index, &name)
}

fn wire(hub: ProcessId, node: ProcessId, index: usize, name: &str) -> Result<(), UpError> {
    network::connect(hub, node, index, address(index)).map_err(|source| UpError::Wire { name: name.to_owned(), source })
}

fn machine_failed(name: &str, source: MachineError) -> UpError {
    UpError::Machine { name: name.to_owned(), source }
}

fn certify(places: &Places, cluster: &DevCluster) -> Result<(), UpError> {
    let directory = places.dev_state(&cluster.name).join("ca");
    let authority = Authority::create(&directory, &cluster.name).map_err(UpError::Certificates)?;
    for node in &cluster.nodes {
        let addresses: Vec<IpAddr> = node.address.parse().into_iter().collect();
        let request = NodeRequest { node: &node.name, addresses: &addresses, valid: Validity::of_a_node() };
        authority.issue_node(&request, &node.state_dir.join("tls")).map_err(UpError::Certificates)?;
    }
    Ok(())
}

/// What a daemon of ours reads; the names are `dvsd::Settings`'.
#[derive(Serialize)]
struct DaemonFile<'a> {
    node: &'a str,
    cluster: &'a str,
    state_dir: &'a Path,
    run_dir: &'a Path,
    socket: &'a Path,
    listen: &'a str,
    advertise: &'a str,
    /// One file for all nodes: the embedded engine serves a whole machine.
    engine: PathBuf,
    engine_volatile: PathBuf,
    tls_dir: PathBuf,
    #[serde(skip_serializing_if = "Option::is_none")]
    transports: Option<Vec<&'a str>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pairs: Option<u8>,
    #[serde(skip_serializing_if = "Option::is_none")]
    link_tls: Option<bool>,
    ethernet: &'a str,
    log: &'a str,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    volumes: Vec<AllowedVolume>,
    #[serde(skip_serializing_if = "Option::is_none")]
    etcd: Option<EtcdTable>,
}

/// `[etcd]`: all members are nodes of the cluster.
#[derive(Serialize)]
struct EtcdTable {
    members: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    serve: Option<ServeTable>,
}

#[derive(Serialize)]
struct ServeTable {
    peers: BTreeMap<String, String>,
}

impl EtcdTable {
    fn of(cluster: &DevCluster, index: usize) -> Option<EtcdTable> {
        let members = cluster.nodes.get(..cluster.etcd_members).filter(|members| !members.is_empty())?;
        let at = |node: &DevNode, port: u16| format!("{}:{port}", node.address);
        let peers = || members.iter().map(|node| (node.name.clone(), at(node, ETCD_PEER_PORT))).collect();
        Some(EtcdTable {
            members: members.iter().map(|node| at(node, ETCD_CLIENT_PORT)).collect(),
            serve: (index < members.len()).then(|| ServeTable { peers: peers() }),
        })
    }
}

/// What a node is told of its cluster.
struct Joined {
    transport: Option<String>,
    pairs: Option<u8>,
    link_tls: Option<bool>,
    volumes: Vec<AllowedVolume>,
    etcd: Option<EtcdTable>,
}

/// Writes the settings of a node and starts its daemon in its machine.
pub fn start_daemon(places: &Places, cluster: &mut DevCluster, index: usize) -> Result<(), UpError> {
    let cluster_name = cluster.name.clone();
    let joined = Joined {
        transport: cluster.transport.clone(),
        pairs: cluster.pairs,
        link_tls: cluster.link_tls,
        volumes: cluster.volumes.clone(),
        etcd: EtcdTable::of(cluster, index),
    };
    let program = cluster.program.to_string_lossy().into_owned();
    let Some(node) = cluster.nodes.get_mut(index) else { return Ok(()) };
    let failed = |source| UpError::Daemon { node: node.name.clone(), source };
    for directory in [&node.run_dir, &node.state_dir] {
        make_dir(directory)?;
    }
    write_settings(places, &cluster_name, joined, node)?;
    let machine = node.machine.ok_or(MachineError::Gone).map_err(failed)?;
    let config = node.config.to_string_lossy().into_owned();
    let argv = [program.as_str(), "daemon", "--config", config.as_str()];
    let daemon = machine::start_inside(machine, &node.log, &argv);
    node.daemon = Some(match daemon {
        Err(MachineError::EndedAtOnce) => return Err(ended(node)),
        other => other.map_err(failed)?,
    });
    save(places, cluster)
}

fn write_settings(places: &Places, cluster: &str, joined: Joined, node: &DevNode) -> Result<(), UpError> {
    let settings = DaemonFile {
        node: &node.name,
        cluster,
        state_dir: &node.state_dir,
        run_dir: &node.run_dir,
        socket: &node.socket,
        listen: &node.address,
        advertise: &node.address,
        engine: places.dev_state(cluster).join("engine.db"),
        engine_volatile: places.dev_run(cluster).join("engine"),
        tls_dir: node.state_dir.join("tls"),
        transports: joined.transport.as_deref().map(|transport| vec![transport]),
        pairs: joined.pairs,
        link_tls: joined.link_tls,
        ethernet: network::INSIDE,
        log: "info",
        volumes: joined.volumes,
        etcd: joined.etcd,
    };
    let write = |source| UpError::Write { path: node.config.clone(), source };
    let text = toml::to_string(&settings).map_err(|cause| write(io::Error::other(cause)))?;
    fs::write(&node.config, text).map_err(write)
}

/// Waits until every daemon says that it is ready.
pub fn await_ready(cluster: &DevCluster, deadline: Instant, patience: Duration) -> Result<(), UpError> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(UpError::Runtime)?;
    runtime.block_on(async {
        for node in &cluster.nodes {
            await_node(node, deadline, patience).await?;
        }
        await_listed(cluster, deadline, patience).await
    })
}

/// Waits until the first node lists all of them as ready: before, a container would not be put on all.
async fn await_listed(cluster: &DevCluster, deadline: Instant, patience: Duration) -> Result<(), UpError> {
    let Some(first) = cluster.nodes.first() else { return Ok(()) };
    let daemon = Client::new(&first.socket);
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let listed = tokio::time::timeout(left, daemon.nodes()).await;
        let is_listed = |node: &DevNode| match &listed {
            Ok(Ok(listed)) => listed.iter().any(|other| other.name == node.name && other.state == NodeState::Ready),
            _ => false,
        };
        let Some(late) = cluster.nodes.iter().find(|node| !is_listed(node)) else { return Ok(()) };
        if Instant::now() >= deadline {
            let problems = vec![format!("{} does not list it as ready", first.name)];
            return Err(UpError::NotReady { node: late.name.clone(), seconds: patience.as_secs(), problems });
        }
        tokio::time::sleep(ASK_PAUSE).await;
    }
}

async fn await_node(node: &DevNode, deadline: Instant, patience: Duration) -> Result<(), UpError> {
    let daemon = Client::new(&node.socket);
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let problems = match tokio::time::timeout(left, daemon.ready()).await {
            Ok(Ok(health)) if health.ok => return Ok(()),
            Ok(Ok(health)) => health.problems,
            Ok(Err(error)) => vec![error.to_string()],
            Err(_) => vec!["its daemon does not answer".to_owned()],
        };
        if !node.daemon.is_some_and(processes::is_alive) {
            return Err(ended(node));
        }
        if Instant::now() >= deadline {
            return Err(UpError::NotReady { node: node.name.clone(), seconds: patience.as_secs(), problems });
        }
        tokio::time::sleep(ASK_PAUSE).await;
    }
}

fn save(places: &Places, cluster: &DevCluster) -> Result<(), UpError> {
    record::save(places, cluster).map_err(|source| UpError::Write { path: places.dev_run(&cluster.name), source })
}

fn make_dir(path: &Path) -> Result<(), UpError> {
    let write = |source| UpError::Write { path: path.to_owned(), source };
    fs::DirBuilder::new().recursive(true).mode(0o755).create(path).map_err(write)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn daemon_that_ended_is_quoted_with_its_complaint_or_the_end_of_its_log() {
        let log = "INFO adopted\nINFO dvs: in between\ndvs: the daemon did not start\n  because: a\n  try: b\n";
        assert_eq!(last_words(log), ["dvs: the daemon did not start", "because: a", "try: b"]);
        assert_eq!(last_words(&"line\n".repeat(9)).len(), LOG_LINES);
        assert!(last_words("").is_empty());
    }
}
