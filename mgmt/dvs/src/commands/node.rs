//! `dvs node`: the machines of the cluster.

pub mod certificate;
mod join;
mod token;
pub mod upgrade;

use std::collections::BTreeMap;
use std::io::{self, Write};

use clap::Subcommand;
use client::NodeGone;
use mgmt_api::{LinkInfo, LinkState, Node, NodeChange, NodeState};

use super::{Gone, Outcome, block_on, daemon, done, names, print, say};
use crate::cli::Global;
use crate::output::{self, Format, Row, Table};

/// Show the nodes of the cluster
#[derive(Subcommand, Debug)]
#[command(
    visible_alias = "nodes",
    after_help = "\
Examples:
  dvs node ls                  all nodes, and whether they are well
  dvs node inspect n2          one node and its links to the others
  dvs node ls -o json          the same for programs
  dvs node token               lets a machine in, once
  dvs node join TOKEN@ADDRESS  on that machine
  dvs node cordon n2           nothing new comes there; dvs node uncordon n2 ends that
  dvs node upgrade             another release on this node, while its containers go on
  dvs node remove n2           out of the cluster; --lost when its machine is gone for good
  dvs node ca home --out ./ca                      the authority of cluster 'home', once
  dvs node cert n1 --ca ./ca --out ./n1            what node n1 shows the others: its tls_dir"
)]
pub enum Command {
    /// List the nodes.
    #[command(visible_alias = "list")]
    Ls,
    /// Show one node and its links.
    #[command(visible_alias = "show")]
    Inspect {
        /// Name of the node, from `dvs node ls`.
        #[arg(add = names::nodes())]
        node: String,
    },
    Token(token::Options),
    Join(join::Options),
    /// Say something of a node: NAME=VALUE; NAME- takes it back.
    Label {
        /// Name of the node.
        #[arg(add = names::nodes())]
        node: String,
        /// rack=a3, or rack- to take it back.
        #[arg(required = true, value_name = "LABEL=VALUE", value_parser = parse_label)]
        labels: Vec<(String, Option<String>)>,
    },
    /// Let nothing new come to a node. What is there stays.
    Cordon {
        /// Name of the node.
        #[arg(add = names::nodes())]
        node: String,
    },
    /// Let new things come to a node again.
    Uncordon {
        /// Name of the node.
        #[arg(add = names::nodes())]
        node: String,
    },
    /// Take a node out of the cluster. Refused while containers are on it.
    #[command(
        visible_alias = "rm",
        after_help = "\
Its daemon ends, its certificates are refused from then on, and its member of etcd is another node's task. Data that are \
in its state directory stay there.

Examples:
  dvs node remove n3
  dvs node remove n3 --lost      its machine is gone for good"
    )]
    Remove {
        /// Name of the node.
        #[arg(add = names::nodes())]
        node: String,
        /// Its machine is gone for good. If it comes back it stays out, until it joins anew.
        #[arg(long)]
        lost: bool,
    },
    Upgrade(upgrade::Options),
    Ca(certificate::AuthorityOptions),
    Cert(certificate::NodeOptions),
}

impl Command {
    /// It asks no daemon.
    pub fn is_local(&self) -> bool {
        matches!(self, Command::Join(_) | Command::Ca(_) | Command::Cert(_))
    }
}

pub fn execute(global: &Global, command: &Command) -> Outcome {
    match command {
        Command::Ca(options) => certificate::make_authority(global, options),
        Command::Cert(options) => certificate::issue(global, options),
        Command::Token(options) => token::execute(global, options),
        Command::Upgrade(options) => upgrade::execute(global, options),
        Command::Join(options) => join::execute(global, options),
        Command::Label { node, labels } => {
            let change = NodeChange { labels: labels.iter().cloned().collect(), ..NodeChange::default() };
            changed(global, node, &change)
        }
        Command::Cordon { node } => changed(global, node, &cordoned(true)),
        Command::Uncordon { node } => changed(global, node, &cordoned(false)),
        Command::Remove { node, lost } => {
            let gone = if *lost { NodeGone::ForGood } else { NodeGone::No };
            block_on(daemon(global)?.remove_node(node, gone))??;
            say(&format!("node '{node}' is no part of the cluster any more"));
            done(global.output, &Gone::new(node))
        }
        Command::Ls => {
            let nodes = block_on(daemon(global)?.nodes())??;
            print(|out| {
                match releases_differ(&nodes) && global.output == Format::Table {
                    true => with_releases(&nodes, out)?,
                    false => output::list(out, global.output, &nodes)?,
                }
                if global.output.is_for_people() { problems(&nodes, out) } else { Ok(()) }
            })
        }
        Command::Inspect { node } => {
            let node = block_on(daemon(global)?.node(node))??;
            print(|out| output::one(out, global.output, &node, view))
        }
    }
}

fn cordoned(cordoned: bool) -> NodeChange {
    NodeChange { cordoned: Some(cordoned), ..NodeChange::default() }
}

fn changed(global: &Global, node: &str, change: &NodeChange) -> Outcome {
    let node = block_on(daemon(global)?.change_node(node, change))??;
    done(global.output, &node)
}

/// `rack=a3`, or `rack-`.
fn parse_label(text: &str) -> Result<(String, Option<String>), String> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() => Ok((name.to_owned(), Some(value.to_owned()))),
        None if text.len() > 1 && text.ends_with('-') => Ok((text.trim_end_matches('-').to_owned(), None)),
        _ => Err("a label is NAME=VALUE; NAME- takes it back".to_owned()),
    }
}

impl Row for Node {
    const HEADINGS: &'static [&'static str] =
        &["NODE", "ID", "STATE", "ADDRESS", "CPUS", "MEMORY", "DISK", "PROMISED", "CONTAINERS"];

    fn cells(&self) -> Vec<String> {
        vec![
            self.name.clone(),
            self.id.to_string(),
            standing(self),
            self.address.clone(),
            self.cpus.to_string(),
            output::bytes(self.memory_bytes),
            self.capacity.and_then(|capacity| capacity.disk_bytes).map_or("-".to_owned(), output::bytes),
            amounts(self.promised.memory_bytes, Some(self.promised.disk_bytes)),
            if self.dcs.is_empty() { "-".to_owned() } else { self.dcs.join(",") },
        ]
    }

    const MORE_HEADINGS: &'static [&'static str] = &["RELEASE", "LABELS"];

    fn more_cells(&self) -> Vec<String> {
        let labels = self.labels.iter().map(|(name, value)| format!("{name}={value}")).collect::<Vec<_>>();
        vec![self.release.clone(), if labels.is_empty() { "-".to_owned() } else { labels.join(",") }]
    }

    fn name(&self) -> String {
        self.name.clone()
    }
}

fn releases_differ(nodes: &[Node]) -> bool {
    nodes.iter().any(|node| Some(&node.release) != nodes.first().map(|first| &first.release))
}

/// A column more, as long as it says something.
fn with_releases(nodes: &[Node], out: &mut impl Write) -> io::Result<()> {
    const AFTER_STATE: usize = 3;
    let mut headings = Node::HEADINGS.to_vec();
    headings.insert(AFTER_STATE, "RELEASE");
    let mut table = Table::new(&headings);
    for node in nodes {
        let mut cells = node.cells();
        cells.insert(AFTER_STATE, node.release.clone());
        table.push(cells);
    }
    table.print(out)
}

/// Of memory and disks, what there is of each.
fn amounts(memory_bytes: u64, disk_bytes: Option<u64>) -> String {
    let some =
        [(memory_bytes, "memory"), (disk_bytes.unwrap_or(0), "disk")].into_iter().filter(|(bytes, _)| *bytes > 0);
    let said: Vec<String> = some.map(|(bytes, what)| format!("{} {what}", output::bytes(bytes))).collect();
    if said.is_empty() { "-".to_owned() } else { said.join(", ") }
}

/// Below the table.
fn problems(nodes: &[Node], out: &mut impl Write) -> io::Result<()> {
    let all = nodes.iter().flat_map(|node| node.problems.iter().map(move |problem| (node, problem)));
    all.into_iter().try_for_each(|(node, problem)| writeln!(out, "{}: {}", node.name, output::printable(problem)))
}

fn state(state: NodeState) -> &'static str {
    match state {
        NodeState::Ready => "ready",
        NodeState::Degraded => "degraded",
        NodeState::Suspect => "suspect",
        NodeState::Unreachable => "unreachable",
        NodeState::Fenced => "fenced",
        NodeState::Down => "down",
    }
}

fn standing(node: &Node) -> String {
    let cordoned = if node.cordoned { ", cordoned" } else { "" };
    format!("{}{cordoned}", state(node.state))
}

fn view(node: &Node, out: &mut impl Write) -> io::Result<()> {
    let mut facts = Table::new(&["NODE", &node.name]);
    let mut fact = |name: &str, value: String| facts.push(vec![name.to_owned(), value]);
    fact("state", standing(node));
    fact("id", node.id.to_string());
    fact("address", node.address.clone());
    let proxy = match (node.proxy_port, node.proxy_quic_port) {
        (0, 0) => "-".to_owned(),
        (tcp, 0) => tcp.to_string(),
        (0, udp) => format!("{udp}/udp"),
        (tcp, udp) => format!("{tcp} and {udp}/udp"),
    };
    let proxy = match node.pairs {
        0 | 1 => proxy,
        pairs => format!("{proxy} and the {} behind", pairs - 1),
    };
    fact("ports", format!("api {}, proxy {proxy}", node.api_port));
    if !node.labels.is_empty() {
        let labels = node.labels.iter().map(|(name, value)| format!("{name}={value}"));
        fact("labels", labels.collect::<Vec<_>>().join(", "));
    }
    if !node.release.is_empty() {
        fact("release", node.release.clone());
    }
    fact("started", times(node.epoch));
    fact("cpus", node.cpus.to_string());
    fact("memory", output::bytes(node.memory_bytes));
    if let Some(has) = node.capacity {
        fact("for containers", amounts(has.memory_bytes, has.disk_bytes));
        fact("promised", amounts(node.promised.memory_bytes, Some(node.promised.disk_bytes)));
        fact("places", format!("{} of {} taken", node.promised.containers, has.containers));
    }
    for allowed in &node.volumes {
        let owner = allowed.owner.map(|owner| format!(", as files of {owner}")).unwrap_or_default();
        let access = if allowed.is_read_only() { "read-only" } else { "read and written" };
        fact("for volumes", format!("{}, {access}{owner}", allowed.path));
    }
    fact("containers", if node.dcs.is_empty() { "-".to_owned() } else { node.dcs.join(", ") });
    facts.print(out)?;
    node.problems.iter().try_for_each(|problem| writeln!(out, "\nproblem: {}", output::printable(problem)))?;
    let Some(known) = node.links.as_ref().filter(|links| !links.is_empty()) else { return Ok(()) };
    writeln!(out)?;
    // Which of several is said only where there are.
    let has_several = known.iter().any(|link| link.pair > 0);
    let mut links = Table::new(&[
        "LINK TO",
        "STATE",
        "TRANSPORT",
        "ROUND TRIP",
        "CHANNELS",
        "MESSAGES",
        "RING ENTRIES",
        "SENT",
        "RECEIVED",
        "PACKED",
        "RECONNECTS",
    ]);
    known.iter().for_each(|link| links.push(link_cells(link, &link_name(link, has_several))));
    links.print(out)?;
    // All that one proxy said is of one age.
    let ages: BTreeMap<u8, u64> = known.iter().filter_map(|link| Some((link.pair, link.told_ms?))).collect();
    for (pair, ms) in ages {
        let proxy = if has_several { format!("the proxy of pair {pair}") } else { "the proxy".to_owned() };
        writeln!(out, "\n{proxy} does not answer; what is shown of its links it said {} s ago", ms / 1000)?;
    }
    let failures = known.iter().filter(|link| link.state != LinkState::Up);
    for (link, why) in failures.filter_map(|link| Some((link, link.last_error.as_ref()?))) {
        writeln!(out, "\nlink to {}: {}", link_name(link, has_several), output::printable(why))?;
    }
    Ok(())
}

fn link_name(link: &LinkInfo, has_several: bool) -> String {
    if has_several { format!("{} (pair {})", link.peer, link.pair) } else { link.peer.clone() }
}

fn times(count: u64) -> String {
    if count == 1 { "once".to_owned() } else { format!("{count} times") }
}

/// How short data became that was packed.
fn packed(link: &LinkInfo) -> String {
    match (link.packed_to * 100).checked_div(link.packed_from) {
        None => "-".to_owned(),
        Some(percent) => format!("{} to {percent}%", output::bytes(link.packed_from)),
    }
}

fn link_cells(link: &LinkInfo, name: &str) -> Vec<String> {
    vec![
        name.to_owned(),
        match link.state {
            LinkState::Up => "up",
            LinkState::Suspect => "suspect",
            LinkState::Broken => "broken",
            LinkState::Down => "down",
            LinkState::Unknown => "unknown",
        }
        .to_owned(),
        format!("{}{}", link.transport, if link.tls { "+tls" } else { "" }),
        link.round_trip_us.map_or("-".to_owned(), |time| format!("{time} us")),
        link.channels.to_string(),
        format!("{}/{}", link.sent_messages, link.received_messages),
        format!("{}/{}", link.sent_entries, link.received_entries),
        output::bytes(link.sent_bytes),
        output::bytes(link.received_bytes),
        packed(link),
        link.reconnects.to_string(),
    ]
}
