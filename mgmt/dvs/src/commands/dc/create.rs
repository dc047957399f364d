//! `dvs dc create`: a description from the command line, from a file, or from both; the command line wins.

use std::path::PathBuf;

use clap::Args;
use client::{AfterCreate, Client};
use mgmt_api::{
    DcSpec, DiskSpec, DiskStore, EgressRule, HostVolume, Limits, NoEgressRule, NoHostVolume, Node, NodeState, ProcView,
    ServerKind, ServerSpec, WaitMode, default_subnet,
};

use super::super::port::{PortList, parse_ports};
use super::super::variables::Variables;
use super::super::{Outcome, block_on, daemon, names, print, say};
use super::view;
use crate::cli::Global;
use crate::described;
use crate::errors::Failure;
use crate::units::{parse_bytes, parse_wait_mode};

/// What the daemon would add too; needed when only the disk's node is named.
const DISK_BYTES: u64 = 1 << 30;

/// Create a container
#[derive(Args, Debug)]
#[command(after_help = "\
Without --nodes it gets all nodes that are not down. Sizes: 512M, 4G. With --file the options change \
what the file says.

On two nodes or more each disk has two copies, on two nodes: when one of them is lost the other goes on, and nothing is \
lost. It costs twice the space, and a write waits for the slower of the two. --replicas 1: one copy, and the disk is away, \
or lost, with its node.

Examples:
  dvs dc create shop --nodes n1,n2,n3 --start
  dvs dc create small --nodes n1 --disk 512M --memory 256M --cpus 0.5
  dvs dc create spread --fs-node n2 --disk-node n3
  dvs dc create web --nodes n1,n2 -p 8080:80 --start
  dvs dc create web --nodes n1,n2 -v /srv/data:/data -v /srv/docs:/docs:ro --start
  dvs dc create scratch --nodes n1,n2,n3 --replicas 1 --start
  dvs dc create -f dc.toml --start

dc.toml:
  name = \"shop\"
  nodes = [\"n1\", \"n2\", \"n3\"]
  subnet = \"10.1.0.0/24\"
  wait = \"adaptive\"
  with_opt = false
  proc = \"all\"
  env = [\"LANG=de_DE.UTF-8\"]
  [limits]
  memory_bytes = 1073741824
  pids = 4096
  open_files = 16384
  terminals = 256
  [[servers]]
  kind = \"fs\"
  node = \"n2\"
  [[disks]]
  name = \"root\"
  node = \"n3\"
  bytes = 2147483648
  replicas = 2                           # copies, each on another node; 2 when absent, 1 on one node
  [nbd]                                  # further disks, for clients of NBD
  listen = \"127.0.0.1:10809\"           # of the node
  node = \"n1\"                          # beside its first disk when absent
  disks = [\"data\"]                     # all but the first when absent
  tls = false
  read_only = false
  [[services]]
  name = \"web\"
  command = [\"/usr/bin/python3\", \"-m\", \"http.server\", \"8080\"]
  [egress]                               # its programs may connect to the outside
  allow = [\"198.51.100.0/24:443\"]      # all of it when absent
  [[ports]]
  published = 80                         # at the nodes
  port = 8080                            # inside
  address = \"192.0.2.7\"                # of the nodes; all when absent
  protocol = \"tcp\"                     # or udp
  nodes = [\"n1\", \"n2\"]               # all of the container when absent
  proxy_protocol = false
  [[volumes]]
  host = \"/srv/data\"                   # a directory that the nodes' administrators allow
  path = \"/data\"                       # where programs see it
  read_only = false
  nodes = [\"n1\", \"n2\"]               # all of the container when absent
More of [[services]]: dvs service add --help")]
pub struct Options {
    /// Name: a-z, 0-9 and -, beginning with a letter, at most 32.
    #[arg(required_unless_present = "file")]
    name: Option<String>,
    /// Nodes it spans, in order [default: all that are not down].
    #[arg(long, value_delimiter = ',', value_name = "NODE,…", add = names::nodes())]
    nodes: Vec<String>,
    /// Private network; containers may use the same one [default: 10.1.0.0/24].
    #[arg(long, value_name = "CIDR")]
    subnet: Option<String>,
    /// Size of the disk for its file tree, at least 32M, set aside on its node at the first start [default: 1G].
    #[arg(long, value_name = "SIZE", value_parser = parse_bytes)]
    disk: Option<u64>,
    /// The disk takes space as it is used: the node may run out of it.
    #[arg(long)]
    sparse: bool,
    /// Node that keeps this disk [default: chosen].
    #[arg(long, value_name = "NODE", add = names::nodes())]
    disk_node: Option<String>,
    /// Copies of this disk, each on another node: the loss of a node loses nothing. Each takes the space of the disk,
    /// and a write waits for the slowest of them [default: 2; 1 on one node].
    #[arg(long, value_name = "COUNT")]
    replicas: Option<u8>,
    /// Node of the file server [default: chosen].
    #[arg(long, value_name = "NODE", add = names::nodes())]
    fs_node: Option<String>,
    /// Node of the key-value server [default: chosen].
    #[arg(long, value_name = "NODE")]
    ds_node: Option<String>,
    /// Memory of its programs on each node [default: half of what the node has].
    #[arg(long, value_name = "SIZE", value_parser = parse_bytes)]
    memory: Option<u64>,
    /// CPU time on each node, in CPUs, e.g. 1.5 [default: no limit].
    #[arg(long, value_name = "CPUS")]
    cpus: Option<f64>,
    /// CPUs it may use on each node, e.g. 0-1,3 [default: all].
    #[arg(long, value_name = "LIST")]
    cpu_list: Option<String>,
    /// How its programs and servers wait for messages: park, adaptive or spin [default: adaptive].
    #[arg(long, value_name = "MODE", value_parser = parse_wait_mode)]
    wait: Option<WaitMode>,
    #[command(flatten)]
    variables: Variables,
    /// Share of CPU time among containers, 1 to 10000 [default: 100].
    #[arg(long, value_name = "WEIGHT")]
    cpu_weight: Option<u32>,
    /// Processes and threads of its programs on each node [default: 4096].
    #[arg(long, value_name = "COUNT")]
    pids: Option<u64>,
    /// Files that each of its processes may open [default: 16384].
    #[arg(long, value_name = "COUNT")]
    open_files: Option<u64>,
    /// Pseudo-terminals on each node [default: 256].
    #[arg(long, value_name = "COUNT")]
    terminals: Option<u32>,
    /// Show its programs the nodes' /opt, read-only, as they see /usr.
    #[arg(long)]
    with_opt: bool,
    /// Whose processes /proc shows: those of all its nodes, or each node's own as the kernel has them [default: all].
    #[arg(long, value_name = "WHOSE", value_parser = parse_proc_view)]
    proc: Option<ProcView>,
    /// Publish a port at its nodes, as in 8080:80 or 127.0.0.1:5353:53/udp; may be repeated. See dvs port add --help.
    #[arg(short, long, value_name = "[ADDRESS:]PORT:PORT", value_parser = parse_ports)]
    publish: Vec<PortList>,
    /// Show its programs a directory of their node, one that its administrator allows (volumes in dvsd.toml); may be
    /// repeated.
    #[arg(short, long, value_name = "HOST-PATH:PATH[:ro]", value_parser = parse_volume)]
    volume: Vec<HostVolume>,
    /// Let its programs connect to the outside, through their node; of the cluster's nodes they reach none.
    #[arg(long)]
    egress: bool,
    /// Let them reach this network alone, as in 10.0.0.0/8, 192.0.2.7:443 or [2001:db8::]/32:443; may be repeated.
    #[arg(long, value_name = "NETWORK[:PORT]", value_parser = parse_egress_rule)]
    egress_allow: Vec<EgressRule>,
    /// Read the description from a TOML file; - is standard input.
    #[arg(short, long, value_name = "FILE")]
    file: Option<PathBuf>,
    /// Start it as well.
    #[arg(long)]
    start: bool,
}

pub fn execute(global: &Global, options: Options) -> Outcome {
    let daemon = daemon(global)?;
    let after = if options.start { AfterCreate::Start } else { AfterCreate::Leave };
    let base = match &options.file {
        Some(path) => Some(described::read(path, "dvs dc create --help")?),
        None => None,
    };
    let mut spec = merge(base, options)?;
    let asked = spec.disks.clone();
    let created = block_on(async {
        if spec.nodes.is_empty() {
            spec.nodes = living_nodes(&daemon).await?;
        }
        daemon.create_dc(&spec, after).await.map_err(Failure::from)
    })??;
    let name = &created.spec.name;
    say(&match after {
        AfterCreate::Start => format!("container '{name}' runs on {}", created.spec.nodes.join(", ")),
        AfterCreate::Leave => format!("container '{name}' is created; start it with: dvs dc start {name}"),
    });
    view::usual_copies(&asked, &created).iter().for_each(|line| say(line));
    print(|out| view::changed(out, global.output, &created))
}

/// All nodes but those that are down. A degraded one belongs to it: a container that silently got smaller would
/// surprise more than a start that fails and names the node.
pub async fn living_nodes(daemon: &Client) -> Result<Vec<String>, Failure> {
    let nodes = daemon.nodes().await?;
    let (open, cordoned): (Vec<Node>, Vec<Node>) = nodes.into_iter().partition(|node| !node.cordoned);
    let is_there = |node: &Node| !matches!(node.state, NodeState::Down | NodeState::Fenced);
    let (living, down): (Vec<Node>, Vec<Node>) = open.into_iter().partition(is_there);
    let names = |nodes: Vec<Node>| nodes.into_iter().map(|node| node.name).collect::<Vec<_>>();
    let (living, down, cordoned) = (names(living), names(down), names(cordoned));
    if living.is_empty() {
        return Err(Failure::new("no node is there").hint("dvs node ls"));
    }
    if !down.is_empty() {
        say(&format!("left out, as they are down: {}", down.join(", ")));
    }
    if !cordoned.is_empty() {
        say(&format!("left out, as they are cordoned: {}", cordoned.join(", ")));
    }
    Ok(living)
}

/// The file's description with what the command line says otherwise.
fn merge(base: Option<DcSpec>, options: Options) -> Result<DcSpec, Failure> {
    let mut spec = base.unwrap_or_else(|| DcSpec {
        name: String::new(),
        nodes: Vec::new(),
        subnet: default_subnet(),
        with_opt: false,
        proc: ProcView::default(),
        wait: None,
        env: Vec::new(),
        limits: Limits::default(),
        servers: Vec::new(),
        disks: Vec::new(),
        services: Vec::new(),
        egress: None,
        nbd: None,
        ports: Vec::new(),
        volumes: Vec::new(),
    });
    if let Some(name) = options.name {
        spec.name = name;
    }
    if !mgmt_api::valid_name(&spec.name) {
        return Err(Failure::usage(format!("'{}' cannot be a container's name", spec.name))
            .hint("a-z, 0-9 and -, beginning with a letter, at most 32 characters"));
    }
    if !options.nodes.is_empty() {
        spec.nodes = options.nodes;
    }
    spec.subnet = options.subnet.unwrap_or(spec.subnet);
    spec.wait = options.wait.or(spec.wait);
    spec.env.extend(options.variables.of_request());
    let limits = &mut spec.limits;
    limits.memory_bytes = options.memory.or(limits.memory_bytes);
    limits.cpu_max = options.cpus.or(limits.cpu_max);
    limits.cpus = options.cpu_list.or(limits.cpus.take());
    limits.cpu_weight = options.cpu_weight.or(limits.cpu_weight);
    limits.pids = options.pids.or(limits.pids);
    limits.open_files = options.open_files.or(limits.open_files);
    limits.terminals = options.terminals.or(limits.terminals);
    spec.with_opt |= options.with_opt;
    spec.proc = options.proc.unwrap_or(spec.proc);
    place_server(&mut spec.servers, ServerKind::FS, options.fs_node);
    place_server(&mut spec.servers, ServerKind::DS, options.ds_node);
    let store = options.sparse.then_some(DiskStore::Sparse);
    place_disk(&mut spec.disks, options.disk, options.disk_node, store, options.replicas);
    if options.egress || !options.egress_allow.is_empty() {
        let egress = spec.egress.get_or_insert_default();
        egress.allow.extend(options.egress_allow.iter().map(ToString::to_string));
    }
    spec.ports.extend(options.publish.into_iter().flat_map(|PortList(ports)| ports));
    spec.volumes.extend(options.volume);
    Ok(spec)
}

pub fn parse_egress_rule(text: &str) -> Result<EgressRule, String> {
    text.parse().map_err(|error: NoEgressRule| error.to_string())
}

pub fn parse_volume(text: &str) -> Result<HostVolume, String> {
    text.parse().map_err(|error: NoHostVolume| error.to_string())
}

fn parse_proc_view(text: &str) -> Result<ProcView, String> {
    let found = ProcView::ALL.into_iter().find(|view| view.name() == text);
    found.ok_or_else(|| "all or node".to_owned())
}

fn place_server(servers: &mut Vec<ServerSpec>, kind: ServerKind, node: Option<String>) {
    let Some(node) = node else { return };
    match servers.iter_mut().find(|server| server.kind == kind) {
        Some(server) => server.node = Some(node),
        None => servers.push(ServerSpec { kind, node: Some(node) }),
    }
}

/// What is said of the disk of the file tree.
pub fn place_disk(
    disks: &mut Vec<DiskSpec>,
    bytes: Option<u64>,
    node: Option<String>,
    store: Option<DiskStore>,
    replicas: Option<u8>,
) {
    if bytes.is_none() && node.is_none() && store.is_none() && replicas.is_none() {
        return;
    }
    if disks.is_empty() {
        let (name, store) = ("root".to_owned(), DiskStore::Image);
        disks.push(DiskSpec { name, node: None, bytes: DISK_BYTES, store, replicas: None });
    }
    if let Some(disk) = disks.first_mut() {
        disk.bytes = bytes.unwrap_or(disk.bytes);
        disk.node = node.or(disk.node.take());
        disk.store = store.unwrap_or(disk.store.clone());
        disk.replicas = replicas.or(disk.replicas);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Only {
        #[command(flatten)]
        options: Options,
    }

    fn parsed(arguments: &[&str]) -> Options {
        Only::parse_from(std::iter::once(&"create").chain(arguments)).options
    }

    #[test]
    fn options_describe_a_container() {
        let options =
            parsed(&["shop", "--nodes", "n1,n2", "--fs-node", "n2", "--disk", "1G", "--cpus", "1.5", "--wait", "park"]);
        let spec = merge(None, options).unwrap();
        assert_eq!((spec.name.as_str(), spec.subnet.as_str()), ("shop", "10.1.0.0/24"));
        assert_eq!(spec.nodes, ["n1", "n2"]);
        assert_eq!(spec.servers, [ServerSpec { kind: ServerKind::FS, node: Some("n2".to_owned()) }]);
        assert_eq!(spec.disks[0].bytes, 1 << 30);
        assert_eq!((spec.limits.cpu_max, spec.wait), (Some(1.5), Some(WaitMode::Park)));
    }

    #[test]
    fn options_win_over_the_file() {
        let text = "name = 'a'\nnodes = ['n1']\nwait = 'spin'\n[[disks]]\nname = 'root'\nnode = 'n1'\nbytes = 8192\n";
        let spec = merge(Some(toml::from_str(text).unwrap()), parsed(&["b", "--disk-node", "n3"])).unwrap();
        assert_eq!((spec.name.as_str(), spec.nodes.len(), spec.wait), ("b", 1, Some(WaitMode::Spin)));
        assert_eq!((spec.disks[0].bytes, spec.disks[0].node.as_deref()), (8192, Some("n3")));
    }

    #[test]
    fn name_that_cannot_be_is_a_usage_error() {
        assert_eq!(merge(None, parsed(&["Shop!"])).unwrap_err().status, 2);
    }

    #[test]
    fn mistake_in_the_file_is_shown_with_its_line() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("dc.toml");
        std::fs::write(&path, "name = 'a'\nnodes = ['n1']\nnods = 3\n").unwrap();
        let failure = described::read::<DcSpec>(&path, "dvs dc create --help").unwrap_err();
        assert!(failure.because[0].contains("nods"), "{failure:?}");
        assert_eq!(failure.because[1], "line 3");
    }
}
