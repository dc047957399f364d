//! `dvs dev`: whole clusters on this machine.

use std::io::{self, Write};
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::{Args, Subcommand, ValueEnum};
use client::{DevCluster, Places};
use mgmt_api::{AllowedVolume, NoAllowedVolume};
use serde::Serialize;

use super::{Gone, Outcome, done, names, print, say};
use crate::cli::{CLUSTER_VARIABLE, Global};
use crate::dev::network::Wire;
use crate::dev::record::Lock;
use crate::dev::{NODES_MAX, down, machine, processes, restart, up};
use crate::errors::{self, Failure};
use crate::output::{self, Row};

/// Make and remove a whole cluster on this machine
#[derive(Subcommand, Debug)]
#[command(after_help = "\
Every node is a simulated machine with a network, processes, mounts and control groups of its \
own, and shows nothing to this host. Needs root.

Examples:
  dvs dev up                           three nodes: n1, n2, n3
  dvs dev ls
  dvs dev exec n2 -- ping -c1 10.255.0.1
  dvs dev kill n3 && dvs dev restart n3
  dvs dev down")]
pub enum Command {
    Up(UpOptions),
    /// Remove a cluster with everything in it; also one that was made by half or crashed.
    Down(Which),
    /// List the clusters and their nodes.
    #[command(visible_alias = "list")]
    Ls,
    Exec(ExecOptions),
    /// Kill a node as a power failure does: first its network, then everything in it.
    Kill(Node),
    /// Start a node again after its daemon or the whole node was killed.
    Restart(Node),
    Wire(WireOptions),
}

/// Make a cluster and wait until it is ready
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  dvs dev up
  dvs dev up --nodes 5 --name big
  dvs dev up --engine etcd             a cluster engine on three of the nodes instead of a file
  dvs dev up --volume /srv/data=1000   containers may have it as a volume
  dvs dev up --bare                    three machines without anything, to practise dvs cluster init
  dvs dev up --transport unix          links over Unix sockets instead of the simulated network")]
pub struct UpOptions {
    /// How many nodes, named n1, n2 …
    #[arg(short, long, default_value_t = 3, value_parser = clap::value_parser!(u16).range(1..=i64::from(NODES_MAX)))]
    nodes: u16,
    /// Name of the cluster [default: dev].
    #[arg(long)]
    name: Option<String>,
    /// Seconds to wait for all nodes to be ready.
    #[arg(long, value_name = "SECONDS", default_value_t = 20)]
    wait: u64,
    /// What carries the links between nodes [default: tcp].
    #[arg(long, value_enum)]
    transport: Option<Transport>,
    /// Where the cluster keeps what it decides [default: local].
    #[arg(long, value_enum)]
    engine: Option<EngineChoice>,
    /// Links between each two nodes, each with a proxy of its own on either [default: 1].
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(u8).range(1..=i64::from(mgmt_api::PAIRS_MAX)))]
    pairs: Option<u8>,
    /// Whether links are encrypted; without, to measure what it costs [default: true].
    #[arg(long, value_name = "BOOL", hide_short_help = true)]
    link_tls: Option<bool>,
    /// Let containers have this directory of the machine as a volume on all nodes, as files of that user; without one
    /// they only read it. May be repeated.
    #[arg(long, value_name = "PATH[=UID[:GID]][:ro]", value_parser = parse_allowed_volume)]
    volume: Vec<AllowedVolume>,
    /// Only the machines, as if newly installed: to make a cluster of them with dvs cluster init and dvs node join.
    #[arg(long, conflicts_with_all = ["transport", "engine", "pairs", "link_tls", "volume", "daemon", "wait"])]
    bare: bool,
    /// Run the daemon of this binary on the nodes [default: of this one].
    #[arg(long, value_name = "PROGRAM", hide_short_help = true)]
    daemon: Option<PathBuf>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum EngineChoice {
    /// One file for all nodes.
    Local,
    /// A member of etcd on one, three or five of the nodes, as a cluster of several machines has it.
    Etcd,
}

fn parse_allowed_volume(text: &str) -> Result<AllowedVolume, String> {
    text.parse().map_err(|error: NoAllowedVolume| error.to_string())
}

/// Names of `dvsd`'s setting `transports`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum Transport {
    Tcp,
    /// Stays up when a node is unplugged: it does not use the network.
    Unix,
    /// Raw Ethernet frames over the simulated network.
    Eth,
    /// QUIC: UDP, always encrypted.
    Quic,
    /// TIPC, where the kernel has it and dvs was built with it.
    Tipc,
}

impl Transport {
    fn name(self) -> &'static str {
        match self {
            Transport::Tcp => "tcp",
            Transport::Unix => "unix",
            Transport::Eth => "eth",
            Transport::Quic => "quic",
            Transport::Tipc => "tipc",
        }
    }
}

#[derive(Args, Debug)]
pub struct Which {
    /// Name of the cluster [default: the only one there is, or dev].
    #[arg(long, add = names::clusters())]
    name: Option<String>,
}

#[derive(Args, Debug)]
pub struct Node {
    #[command(flatten)]
    which: Which,
    /// Node.
    #[arg(add = names::dev_nodes())]
    node: String,
}

/// Run a program of this host in a node: with its network, processes and mounts
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  dvs dev exec n2 -- ip addr
  dvs dev exec n1 -- ps ax
  dvs dev exec n3 -- kill -9 42       PIDs are the node's, as `dvs dc inspect` shows them")]
pub struct ExecOptions {
    #[command(flatten)]
    which: Which,
    /// Node, or hub.
    #[arg(add = names::dev_nodes())]
    node: String,
    /// Program and its arguments.
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true, value_name = "PROGRAM")]
    argv: Vec<String>,
}

/// Unplug the network cable of a node, or plug it in again
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  dvs dev wire n2 down
  dvs dev wire n2 up")]
pub struct WireOptions {
    #[command(flatten)]
    which: Which,
    /// Node.
    #[arg(add = names::dev_nodes())]
    node: String,
    /// down: unplugged.
    state: WireState,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum WireState {
    Up,
    Down,
}

const DEFAULT_NAME: &str = "dev";
/// How long `restart` waits for the node to be ready.
const RESTART_PATIENCE: Duration = Duration::from_secs(20);

pub fn execute(global: &Global, command: Command) -> Outcome {
    let places = global.places();
    if let Command::Ls = command {
        return list(global, &places);
    }
    if !rustix::process::geteuid().is_root() {
        return Err(Failure::new("development clusters need root")
            .because_text("they are made of namespaces and control groups of this host")
            .hint("sudo dvs dev …"));
    }
    match command {
        Command::Ls => list(global, &places),
        Command::Up(options) => make(global, &places, &options),
        Command::Down(which) => remove(global, &places, &chosen(global, &places, &which)?),
        Command::Exec(options) => run(global, &places, &options),
        Command::Kill(Node { which, node }) => change(global, &places, &which, &node, |places, cluster, index| {
            restart::kill(places, cluster, index)?;
            Ok(Changed { is_now: "is off", back: Some("restart NODE") })
        }),
        Command::Restart(Node { which, node }) => change(global, &places, &which, &node, |places, cluster, index| {
            restart::restart(places, cluster, index, RESTART_PATIENCE)?;
            Ok(Changed { is_now: "is ready", back: None })
        }),
        Command::Wire(WireOptions { which, node, state }) => {
            change(global, &places, &which, &node, |_, cluster, index| {
                let (wire, changed) = match state {
                    WireState::Up => (Wire::Plugged, Changed { is_now: "is plugged in", back: None }),
                    WireState::Down => (Wire::Pulled, Changed { is_now: "is unplugged", back: Some("wire NODE up") }),
                };
                restart::set_wire(cluster, index, wire).map(|()| changed)
            })
        }
    }
}

fn make(global: &Global, places: &Places, options: &UpOptions) -> Outcome {
    let name = options.name.as_deref().or(global.cluster.as_deref()).unwrap_or(DEFAULT_NAME);
    if !mgmt_api::valid_name(name) {
        return Err(Failure::usage(format!("'{name}' cannot be a cluster's name"))
            .hint("a-z, 0-9 and -, beginning with a letter, at most 32 characters"));
    }
    let started = Instant::now();
    let wish = up::Wish {
        name,
        nodes: options.nodes,
        transport: options.transport.map(Transport::name),
        engine: match options.engine {
            Some(EngineChoice::Etcd) => up::EngineKind::Etcd,
            Some(EngineChoice::Local) | None => up::EngineKind::Local,
        },
        pairs: options.pairs,
        link_tls: options.link_tls,
        volumes: &options.volume,
        contents: if options.bare { up::Contents::Nothing } else { up::Contents::Cluster },
        program: options.daemon.clone(),
        patience: Duration::from_secs(options.wait),
    };
    let cluster = up::up(places, &wish).map_err(|error| up_failure(name, &error))?;
    let (what, are) = if options.bare { ("the machines of", "are") } else { ("cluster", "is") };
    say(&format!("{what} '{name}' {are} ready after {:.1} s\n", started.elapsed().as_secs_f64()));
    print(|out| output::list(out, global.output, &rows(&cluster)))?;
    if options.bare {
        let dvs = again(global, name, places.dev_names().len());
        say(&format!("\nTry next:\n  {dvs} dev exec n1 -- {dvs} cluster init home\n  {dvs} dev down"));
        return Ok(ExitCode::SUCCESS);
    }
    let nodes: Vec<&str> = cluster.nodes.iter().map(|node| node.name.as_str()).collect();
    let last = nodes.last().copied().unwrap_or("n1");
    let dvs = again(global, name, places.dev_names().len());
    say(&format!(
        "\nTry next:\n  {dvs} dc create shop --nodes {} --start\n  {dvs} run -it shop --node {last} -- bash\n  {dvs} ps shop\n  {dvs} dev down",
        nodes.join(",")
    ));
    Ok(ExitCode::SUCCESS)
}

/// How to call us so that this cluster is meant.
fn again(global: &Global, name: &str, clusters: usize) -> String {
    let is_set = |variable: &str| std::env::var_os(variable).is_some();
    let mut dvs = "dvs".to_owned();
    if let Some(directory) = global.state_dir.as_ref().filter(|_| !is_set(client::places::STATE_DIR_VARIABLE)) {
        dvs.push_str(&format!(" --state-dir {}", directory.display()));
    }
    if clusters > 1 && !is_set(CLUSTER_VARIABLE) {
        dvs.push_str(&format!(" --cluster {name}"));
    }
    dvs
}

fn up_failure(name: &str, error: &up::UpError) -> Failure {
    let failure = Failure::new(format!("cluster '{name}' was not made")).because(error);
    match error {
        up::UpError::Exists(_) => {
            Failure::new(error.to_string()).hint(format!("dvs dev ls, or dvs dev down --name {name}"))
        }
        up::UpError::Leftovers(_) => failure.hint(format!("dvs dev down --name {name}")),
        up::UpError::Busy(_) => failure.hint("the same again in a moment"),
        up::UpError::Machine { .. } | up::UpError::Wire { .. } => failure.hint("dvs doctor"),
        // One that could not log had no room, mostly.
        up::UpError::DaemonEnded { said, .. } => {
            with_last_words(failure.hint("room in the state directory (df -h); then dvs doctor"), said)
        }
        up::UpError::NotReady { .. } => failure.hint("a longer --wait, or dvs doctor"),
        up::UpError::Write { .. } => failure.hint("another --state-dir"),
        _ => failure.hint("dvs doctor"),
    }
}

/// What a daemon complained of at its end: its causes become ours, and what it says to try is what to try.
fn with_last_words(failure: Failure, said: &[String]) -> Failure {
    said.iter().fold(failure, |failure, line| match (line.strip_prefix("because: "), line.strip_prefix("try: ")) {
        (Some(cause), _) => failure.because_text(cause),
        (_, Some(hint)) => failure.hint(hint),
        _ => failure.because_text(line.strip_prefix("dvs: ").unwrap_or(line)),
    })
}

/// `--name`, `--cluster`, the only one there is, or `dev`.
fn chosen(global: &Global, places: &Places, which: &Which) -> Result<String, Failure> {
    if let Some(name) = which.name.as_ref().or(global.cluster.as_ref()) {
        return Ok(name.clone());
    }
    let known = places.dev_names();
    match known.as_slice() {
        [] => Ok(DEFAULT_NAME.to_owned()),
        [only] => Ok(only.clone()),
        [first, ..] => Err(client::LocateError::Several { known: known.clone() })
            .map_err(|error| Failure::from(error).hint(format!("--name {first}"))),
    }
}

fn remove(global: &Global, places: &Places, name: &str) -> Outcome {
    if !places.dev_names().iter().any(|known| known == name) {
        return Err(Failure::new(format!("no development cluster '{name}'")).hint("dvs dev ls"));
    }
    let lock = locked(places, name)?;
    down::remove(places, name).map_err(|error| {
        Failure::new(format!("cluster '{name}' was not removed completely")).because(&error).hint("dvs doctor --clean")
    })?;
    lock.discard()?;
    say(&format!("cluster '{name}' is gone"));
    done(global.output, &Gone::new(name))
}

fn locked(places: &Places, name: &str) -> Result<Lock, Failure> {
    let lock = Lock::take(places, name).map_err(|cause| {
        Failure::new("cannot lock the cluster").because(&cause).hint(crate::installed::what_to_try(&cause))
    })?;
    lock.ok_or_else(|| {
        Failure::new(format!("another dvs command works on cluster '{name}'")).hint("the same again in a moment")
    })
}

fn record(places: &Places, name: &str) -> Result<DevCluster, Failure> {
    let record = places.dev_record(name).map_err(|cause| {
        Failure::new(format!("cannot read the record of cluster '{name}'")).because(&cause).hint("dvs dev down")
    })?;
    record.ok_or_else(|| Failure::new(format!("no development cluster '{name}'")).hint("dvs dev up"))
}

fn index_of(cluster: &DevCluster, node: &str) -> Result<usize, Failure> {
    cluster.nodes.iter().position(|known| known.name == node).ok_or_else(|| {
        let known: Vec<&str> = cluster.nodes.iter().map(|node| node.name.as_str()).collect();
        Failure::new(format!("cluster '{}' has no node '{node}'", cluster.name))
            .hint(format!("one of {}", known.join(", ")))
    })
}

/// What was done to a node.
struct Changed {
    is_now: &'static str,
    /// The command that takes it back, of those of `dvs dev`.
    back: Option<&'static str>,
}

fn change(
    global: &Global,
    places: &Places,
    which: &Which,
    node: &str,
    work: impl FnOnce(&Places, &mut DevCluster, usize) -> Result<Changed, restart::NodeError>,
) -> Outcome {
    let name = chosen(global, places, which)?;
    let _lock = locked(places, &name)?;
    let mut cluster = record(places, &name)?;
    let index = index_of(&cluster, node)?;
    let changed = work(places, &mut cluster, index).map_err(|error| node_failure(&error))?;
    say(&format!("node {node} {}", changed.is_now));
    if let Some(back) = changed.back {
        let dvs = again(global, &name, places.dev_names().len());
        say(&format!("back again: {dvs} dev {}", back.replace("NODE", node)));
    }
    match rows(&cluster).get(index) {
        Some(place) => done(global.output, place),
        None => Ok(ExitCode::SUCCESS),
    }
}

fn node_failure(error: &restart::NodeError) -> Failure {
    let failure = Failure::new(error.to_string()).hint("dvs dev ls, and the node's log");
    let failure = match std::error::Error::source(error) {
        Some(cause) => failure.because(cause),
        None => failure,
    };
    match error {
        restart::NodeError::Start { source, .. } => match source.as_ref() {
            up::UpError::DaemonEnded { said, .. } => with_last_words(failure, said),
            _ => failure,
        },
        _ => failure,
    }
}

fn run(global: &Global, places: &Places, options: &ExecOptions) -> Outcome {
    let name = chosen(global, places, &options.which)?;
    let cluster = record(places, &name)?;
    let machine = match options.node.as_str() {
        "hub" => cluster.hub,
        node => cluster.nodes.get(index_of(&cluster, node)?).and_then(|node| node.machine),
    };
    let failed = |cause: &dyn std::error::Error| {
        Failure::new(format!("nothing was run in {}", options.node)).because(cause).status(errors::RUN_FAILED)
    };
    let machine = machine.ok_or_else(|| failed(&machine::MachineError::Gone))?;
    // Of the development cluster, which a machine without anything knows nothing of.
    let ours = [
        CLUSTER_VARIABLE,
        client::places::STATE_DIR_VARIABLE,
        client::places::SOCKET_VARIABLE,
        client::contexts::CONTEXT_VARIABLE,
    ];
    let without: &[&str] = if cluster.is_bare { &ours } else { &[] };
    let status = machine::run_inside(machine, &options.argv, without).map_err(|error| match &error {
        machine::MachineError::NotStarted { program, .. } => {
            failed(&error).status(errors::NO_SUCH_PROGRAM).hint(format!("a program of this host: which {program}"))
        }
        _ => failed(&error).hint(format!("dvs dev restart {}", options.node)),
    })?;
    let code = status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or_default());
    Ok(ExitCode::from(code as u8))
}

/// A node of a development cluster, as people see it.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[cfg_attr(test, schemars(rename = "DevNode"))]
pub struct Place {
    cluster: String,
    node: String,
    state: &'static str,
    address: String,
    daemon_pid: Option<u32>,
    socket: String,
    log: String,
}

fn rows(cluster: &DevCluster) -> Vec<Place> {
    let this_boot = cluster.boot_id == processes::boot_id();
    let alive = |process: Option<client::ProcessId>| this_boot && process.is_some_and(processes::is_alive);
    let nodes = cluster.nodes.iter().map(|node| Place {
        cluster: cluster.name.clone(),
        node: node.name.clone(),
        state: match (alive(node.machine), alive(node.daemon)) {
            (true, true) => "on",
            (true, false) => "no daemon",
            (false, _) => "off",
        },
        address: node.address.clone(),
        daemon_pid: node.daemon.filter(|daemon| alive(Some(*daemon))).map(|daemon| daemon.pid),
        socket: node.socket.display().to_string(),
        log: node.log.display().to_string(),
    });
    nodes.collect()
}

impl Row for Place {
    const HEADINGS: &'static [&'static str] = &["CLUSTER", "NODE", "STATE", "ADDRESS", "DAEMON PID", "LOG"];

    fn cells(&self) -> Vec<String> {
        vec![
            self.cluster.clone(),
            self.node.clone(),
            self.state.to_owned(),
            self.address.clone(),
            self.daemon_pid.map_or("-".to_owned(), |pid| pid.to_string()),
            self.log.clone(),
        ]
    }

    fn name(&self) -> String {
        self.node.clone()
    }
}

fn list(global: &Global, places: &Places) -> Outcome {
    let mut all = Vec::new();
    if global.output == output::Format::Name {
        // Nodes of several clusters have the same names; what one can take down or aim at is a cluster.
        return print(|out| {
            places.dev_names().iter().try_for_each(|name| writeln!(out, "{}", output::printable(name)))
        });
    }
    for name in places.dev_names() {
        match places.dev_record(&name) {
            Ok(Some(cluster)) => all.extend(rows(&cluster)),
            _ => unreadable(&name)?,
        }
    }
    print(|out| output::list(out, global.output, &all))
}

fn unreadable(name: &str) -> io::Result<()> {
    writeln!(io::stderr(), "dvs: cluster '{name}' has no readable record; remove it with: dvs dev down --name {name}")
}
