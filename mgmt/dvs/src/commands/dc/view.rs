//! How people see a container.

use std::io::{self, Write};

use mgmt_api::{Dc, DcPhase, ServerKind, ServerState};

use crate::output::{self, Format, Row, Table, printable};

impl Row for Dc {
    const HEADINGS: &'static [&'static str] = &["DC", "STATE", "NODES", "SUBNET", "DISK"];

    fn cells(&self) -> Vec<String> {
        vec![
            self.spec.name.clone(),
            phase(self.phase).to_owned(),
            self.spec.nodes.join(","),
            self.spec.subnet.clone(),
            self.spec.disks.first().map_or("-".to_owned(), |disk| output::bytes(disk.bytes)),
        ]
    }

    fn name(&self) -> String {
        self.spec.name.clone()
    }
}

/// After a change: the message was said already, so the table form adds nothing.
pub fn changed(out: &mut impl Write, format: Format, dc: &Dc) -> io::Result<()> {
    output::one(out, format, dc, |_, _| Ok(()))
}

pub fn whole(dc: &Dc, out: &mut impl Write) -> io::Result<()> {
    let mut facts = Table::new(&["DC", &dc.spec.name]);
    let mut fact = |name: &str, value: String| facts.push(vec![name.to_owned(), value]);
    fact("state", phase(dc.phase).to_owned());
    fact("id", dc.id.to_string());
    fact("subnet", dc.spec.subnet.clone());
    for disk in &dc.spec.disks {
        fact("disk", format!("{} {} on {}", disk.name, output::bytes(disk.bytes), disk.node.as_deref().unwrap_or("-")));
    }
    for (name, value) in limits(dc) {
        fact(name, value);
    }
    facts.print(out)?;
    writeln!(out)?;
    shares(dc).print(out)?;
    if dc.shares.iter().any(|share| !share.servers.is_empty()) {
        writeln!(out)?;
        servers(dc).print(out)?;
    }
    for share in &dc.shares {
        for problem in &share.problems {
            writeln!(out, "\n{}: {}", printable(&share.node), printable(problem))?;
        }
    }
    Ok(())
}

fn shares(dc: &Dc) -> Table {
    let mut table = Table::new(&["NODE", "STATE", "ADDRESS", "PIDS FROM", "ENDPOINTS"]);
    for share in &dc.shares {
        let (first, end) = (share.endpoints.start, share.endpoints.end);
        table.push(vec![
            share.node.clone(),
            phase(share.phase).to_owned(),
            share.address.clone(),
            share.pid_base.to_string(),
            if first < end { format!("{first}-{}", end - 1) } else { "-".to_owned() },
        ]);
    }
    table
}

fn servers(dc: &Dc) -> Table {
    let mut table = Table::new(&["SERVER", "KIND", "NODE", "ENDPOINT", "STATE", "PID ON NODE", "RESTARTS"]);
    for share in &dc.shares {
        for server in &share.servers {
            table.push(vec![
                server.name.clone(),
                kind(server.kind).to_owned(),
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

fn limits(dc: &Dc) -> Vec<(&'static str, String)> {
    let limits = &dc.spec.limits;
    let mut known = Vec::new();
    known.extend(dc.spec.wait.map(|mode| ("waiting", mode.name().to_owned())));
    known.extend(limits.cpus.as_ref().map(|list| ("cpus", list.clone())));
    known.extend(limits.cpu_max.map(|cpus| ("cpu time", format!("{cpus} CPUs on each node"))));
    known.extend(limits.cpu_weight.map(|weight| ("cpu weight", weight.to_string())));
    known.extend(limits.memory_bytes.map(|bytes| ("memory", format!("{} on each node", output::bytes(bytes)))));
    known.extend(limits.pids.map(|pids| ("processes", format!("{pids} on each node"))));
    known
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

fn kind(kind: ServerKind) -> &'static str {
    match kind {
        ServerKind::Fs => "fs",
        ServerKind::Ds => "ds",
        ServerKind::Disk => "disk",
        ServerKind::Gate => "gate",
    }
}

fn server_state(state: ServerState) -> &'static str {
    match state {
        ServerState::Starting => "starting",
        ServerState::Running => "running",
        ServerState::Resting => "resting",
        ServerState::Stopped => "stopped",
    }
}
