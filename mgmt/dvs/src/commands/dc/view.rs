//! How people see a container.

use std::io::{self, Write};

use mgmt_api::{
    ChannelInfo, ChannelKind, Dc, DcPhase, DcSpec, DiskSpec, EndCounts, Instance, Limits, NodeShare, Placement,
    ProcView, STORE_DISK, ServerKind, ServerState, Volume,
};
use serde::Serialize;

use crate::output::{self, Format, Row, Table, printable};

impl Row for Dc {
    const HEADINGS: &'static [&'static str] = &["DC", "STATE", "NODES", "SUBNET", "DISK"];

    fn cells(&self) -> Vec<String> {
        vec![
            self.spec.name.clone(),
            state(self).to_owned(),
            self.spec.nodes.join(","),
            self.spec.subnet.clone(),
            volumes(self).next().map_or("-".to_owned(), |(_, disk)| output::bytes(disk.bytes)),
        ]
    }

    const MORE_HEADINGS: &'static [&'static str] = &["ID", "GENERATION", "CREATED", "SERVICES", "PORTS", "PROBLEMS"];

    fn more_cells(&self) -> Vec<String> {
        let or_dash = |all: Vec<String>, between: &str| if all.is_empty() { "-".to_owned() } else { all.join(between) };
        let problem = |share: &NodeShare| {
            let node = share.node.clone();
            share.problems.iter().map(move |problem| format!("{node}: {problem}")).collect::<Vec<_>>()
        };
        vec![
            self.id.to_string(),
            self.generation.to_string(),
            mgmt_api::utc(self.created_s),
            or_dash(self.spec.services.iter().map(|service| service.name.clone()).collect(), ","),
            or_dash(self.spec.ports.iter().map(ToString::to_string).collect(), ","),
            or_dash(self.shares.iter().flat_map(problem).collect(), "; "),
        ]
    }

    fn name(&self) -> String {
        self.spec.name.clone()
    }
}

/// A container with its channels on the node that was asked.
#[derive(Serialize, Debug)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[cfg_attr(test, schemars(rename = "DcWithChannels"))]
pub struct Whole {
    #[serde(flatten)]
    #[cfg_attr(test, schemars(schema_with = "crate::shapes::dc"))]
    pub dc: Dc,
    #[cfg_attr(test, schemars(schema_with = "crate::shapes::channels"))]
    pub channels: Vec<ChannelInfo>,
}

impl Row for Whole {
    const HEADINGS: &'static [&'static str] = <Dc as Row>::HEADINGS;

    fn cells(&self) -> Vec<String> {
        self.dc.cells()
    }

    fn name(&self) -> String {
        self.dc.name()
    }
}

/// After a change: the message was said already, so the table form adds nothing.
pub fn changed(out: &mut impl Write, format: Format, dc: &Dc) -> io::Result<()> {
    output::one(out, format, dc, |_, _| Ok(()))
}

pub fn whole(whole: &Whole, out: &mut impl Write) -> io::Result<()> {
    let Whole { dc, channels: carried } = whole;
    let mut facts = Table::new(&["DC", &dc.spec.name]);
    let mut fact = |name: &str, value: String| facts.push(vec![name.to_owned(), value]);
    fact("state", state(dc).to_owned());
    fact("id", dc.id.to_string());
    fact("subnet", dc.spec.subnet.clone());
    for (instance, disk) in volumes(dc).filter(|(instance, _)| instance.kind == ServerKind::DISK) {
        let copies = volumes(dc).filter(|(one, of)| one.kind != ServerKind::DISK && of.name == disk.name);
        let nodes: Vec<&str> = copies.map(|(copy, _)| copy.node.as_str()).collect();
        let copies = if nodes.is_empty() { String::new() } else { format!(", copies on {}", nodes.join(" and ")) };
        fact("disk", format!("{} {} on {}{copies}", disk.name, output::bytes(disk.bytes), instance.node));
    }
    for port in &dc.spec.ports {
        let nodes = if port.nodes.is_empty() { "each node".to_owned() } else { port.nodes.join(", ") };
        fact("port", format!("{port} at {nodes}"));
    }
    for volume in &dc.spec.volumes {
        let nodes = if volume.nodes.is_empty() { "each node".to_owned() } else { volume.nodes.join(", ") };
        fact("volume", format!("{volume} of {nodes}"));
    }
    if let Some(egress) = &dc.spec.egress {
        let all = "everything but the cluster's nodes".to_owned();
        fact("egress", if egress.allow.is_empty() { all } else { egress.allow.join(", ") });
    }
    if let Some(nbd) = &dc.spec.nbd {
        let disks = if nbd.disks.is_empty() { String::new() } else { format!("{} ", nbd.disks.join(", ")) };
        let gate = dc.placement.first(&ServerKind::NBD);
        let node = gate.map_or(String::new(), |gate| format!(" of {}", gate.node));
        fact("over NBD", format!("{disks}at {}{node}{}", nbd.listen, if nbd.tls { ", encrypted" } else { "" }));
    }
    if !dc.spec.env.is_empty() {
        fact("env", dc.spec.env.iter().map(|pair| pair.lossy()).collect::<Vec<_>>().join(" "));
    }
    fact("asked for", asked(&dc.spec));
    for (name, value) in limits(dc) {
        fact(name, value);
    }
    facts.print(out)?;
    writeln!(out)?;
    shares(dc).print(out)?;
    if !dc.placement.instances.is_empty() {
        writeln!(out)?;
        placed(&dc.placement).print(out)?;
    }
    if !dc.copies.is_empty() {
        writeln!(out)?;
        copies(dc).print(out)?;
    }
    if dc.shares.iter().any(|share| !share.servers.is_empty()) {
        writeln!(out)?;
        servers(dc).print(out)?;
    }
    if !carried.is_empty() {
        writeln!(out)?;
        channels(carried).print(out)?;
    }
    for share in &dc.shares {
        for problem in &share.problems {
            writeln!(out, "\n{}: {}", printable(&share.node), printable(problem))?;
        }
    }
    Ok(())
}

fn shares(dc: &Dc) -> Table {
    let mut table = Table::new(&["NODE", "STATE", "ADDRESS", "IPV6", "PIDS FROM", "ENDPOINTS"]);
    for share in &dc.shares {
        let (first, end) = (share.endpoints.start, share.endpoints.end);
        table.push(vec![
            share.node.clone(),
            phase(share.phase).to_owned(),
            share.address.clone(),
            share.address_ipv6.map_or("-".to_owned(), |address| address.to_string()),
            share.pid_base.to_string(),
            if first < end { format!("{first}-{}", end - 1) } else { "-".to_owned() },
        ]);
    }
    table
}

fn volumes(dc: &Dc) -> impl Iterator<Item = (&Instance, &Volume)> {
    dc.placement.instances.iter().filter_map(|instance| Some((instance, instance.volume.as_ref()?)))
}

/// Of servers and disks, what people said of them: the rest was decided.
fn asked(wish: &DcSpec) -> String {
    let on = |node: &Option<String>| node.as_ref().map(|node| format!(" on {node}")).unwrap_or_default();
    let disks = wish.disks.iter().map(|disk| {
        let copies = disk.replicas.map(|replicas| format!(" with {replicas} replicas")).unwrap_or_default();
        format!("disk {} {}{}{copies}", disk.name, output::bytes(disk.bytes), on(&disk.node))
    });
    let servers = wish.servers.iter().map(|server| format!("{}{}", server.kind, on(&server.node)));
    let asked: Vec<String> = disks.chain(servers).collect();
    if asked.is_empty() { "no certain disk or server".to_owned() } else { asked.join(", ") }
}

/// Where servers should be, and why; what runs is in the table of servers.
fn placed(placement: &Placement) -> Table {
    let mut table = Table::new(&["PLACED", "NODE", "ROLE", "EPOCH", "WHY"]);
    for one in &placement.instances {
        let (role, epoch, why) = (one.role.to_string(), one.epoch.to_string(), one.why.to_string());
        table.push(vec![one.name.clone(), one.node.clone(), role, epoch, why]);
    }
    table
}

/// What copies cost that nobody asked for: a line for each disk that has some.
pub fn usual_copies(asked: &[DiskSpec], made: &Dc) -> Vec<String> {
    let is_usual = |name: &str| {
        name != STORE_DISK && asked.iter().find(|one| one.name == name).is_none_or(|one| one.replicas.is_none())
    };
    let disks = volumes(made).filter(|(one, volume)| one.kind == ServerKind::DISK && is_usual(&volume.name));
    disks.filter_map(|(_, volume)| cost_of_copies(made, &volume.name)).collect()
}

/// `None`: the disk has one copy.
pub fn cost_of_copies(dc: &Dc, disk: &str) -> Option<String> {
    // What has a volume of this name: the disk, and its copies.
    let copies = volumes(dc).filter(|(one, volume)| volume.name == disk && one.kind != ServerKind::DISK);
    let nodes: Vec<&str> = copies.map(|(one, _)| one.node.as_str()).collect();
    (nodes.len() > 1).then(|| {
        format!(
            "disk '{disk}' has copies on {}: the loss of a node loses nothing of it; twice the space, and a write waits \
             for the slower of the two (--replicas 1: one copy)",
            nodes.join(" and ")
        )
    })
}

/// Which copies of disks have everything.
fn copies(dc: &Dc) -> Table {
    let mut table = Table::new(&["DISK", "COPY ON", "STATE", "EPOCH", "GENERATION"]);
    for disk in &dc.copies {
        for copy in &disk.copies {
            let (epoch, generation) = (disk.epoch.to_string(), disk.generation.to_string());
            table.push(vec![disk.disk.clone(), copy.node.clone(), copy.state.to_string(), epoch, generation]);
        }
    }
    table
}

fn servers(dc: &Dc) -> Table {
    let mut table = Table::new(&["SERVER", "KIND", "NODE", "ENDPOINT", "STATE", "PID ON NODE", "RESTARTS"]);
    for share in &dc.shares {
        for server in &share.servers {
            table.push(vec![
                server.name.clone(),
                server.kind.to_string(),
                share.node.clone(),
                server.endpoint.to_string(),
                server_state(server.state).to_owned(),
                server.pid.map_or("-".to_owned(), |pid| pid.to_string()),
                server.restarts.to_string(),
            ]);
        }
    }
    table
}

fn channels(carried: &[ChannelInfo]) -> Table {
    let mut table =
        Table::new(&["LEFT", "RIGHT", "CHANNEL", "VIA", "MESSAGES", "NOTIFICATIONS", "ENTRIES", "AWAITS ANSWER"]);
    for channel in carried {
        let counts = |of: fn(&EndCounts) -> u32| {
            channel.counts.map_or("-".to_owned(), |it| format!("{}/{}", of(&it.left), of(&it.right)))
        };
        table.push(vec![
            channel.left.to_string(),
            channel.right.to_string(),
            channel_kind(channel.kind).to_owned(),
            channel.via.clone(),
            counts(|end| end.messages),
            counts(|end| end.notifications),
            counts(|end| end.entries),
            awaiting(channel).to_owned(),
        ]);
    }
    table
}

fn awaiting(channel: &ChannelInfo) -> &'static str {
    match channel.counts.map(|counts| (counts.left.awaits_answer, counts.right.awaits_answer)) {
        Some((true, false)) => "left",
        Some((false, true)) => "right",
        Some((true, true)) => "both",
        Some((false, false)) | None => "-",
    }
}

fn channel_kind(kind: ChannelKind) -> &'static str {
    match kind {
        ChannelKind::Messages => "messages",
        ChannelKind::Ring => "ring",
        ChannelKind::Delegation => "delegation",
        ChannelKind::Copies => "copies",
    }
}

fn limits(dc: &Dc) -> Vec<(&'static str, String)> {
    let limits = &dc.spec.limits;
    let mut known = Vec::new();
    known.extend(dc.spec.wait.map(|mode| ("waiting", mode.name().to_owned())));
    known.extend(limits.cpus.as_ref().map(|list| ("cpus", list.clone())));
    known.extend(limits.cpu_max.map(|cpus| ("cpu time", format!("{cpus} CPUs on each node"))));
    known.extend(limits.cpu_weight.map(|weight| ("cpu weight", weight.to_string())));
    known.push((
        "memory",
        match limits.memory_bytes {
            Some(bytes) => format!("{} on each node", output::bytes(bytes)),
            None => "half of what each node has".to_owned(),
        },
    ));
    known.push(("processes", format!("{} on each node", limits.pids.unwrap_or(Limits::PIDS))));
    known.push(("open files", format!("{} in each process", limits.open_files.unwrap_or(Limits::OPEN_FILES))));
    known.push(("terminals", format!("{} on each node", limits.terminals.unwrap_or(Limits::TERMINALS))));
    known.extend((dc.spec.proc != ProcView::default()).then(|| ("/proc", format!("of each {}", dc.spec.proc.name()))));
    known.extend(dc.spec.with_opt.then(|| ("node's /opt", "shown".to_owned())));
    known
}

/// Of one that runs, and stands still.
fn state(dc: &Dc) -> &'static str {
    if dc.paused && dc.phase == DcPhase::Running { "paused" } else { phase(dc.phase) }
}

fn phase(phase: DcPhase) -> &'static str {
    match phase {
        DcPhase::Stopped => "stopped",
        DcPhase::Starting => "starting",
        DcPhase::Running => "running",
        DcPhase::Degraded => "degraded",
        DcPhase::Stopping => "stopping",
        DcPhase::Failed => "failed",
    }
}

fn server_state(state: ServerState) -> &'static str {
    match state {
        ServerState::Starting => "starting",
        ServerState::Running => "running",
        ServerState::Resting => "resting",
        ServerState::Stopped => "stopped",
        ServerState::Unknown => "unknown",
    }
}
