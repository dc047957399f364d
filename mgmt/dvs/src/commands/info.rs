//! `dvs info`: a cluster in a few lines.

use std::collections::BTreeMap;
use std::io;

use clap::Args;
use client::Client;
use mgmt_api::{Capacity, Node, Promise};
use serde::Serialize;

use super::{Outcome, block_on, daemon, print};
use crate::cli::Global;
use crate::errors::Failure;
use crate::output::{self, Row, Table};

/// Show the cluster in a few lines
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  dvs info
  dvs info -o json
  dvs node ls                        node by node
  dvs doctor                         what is wrong with it, and what to do")]
pub struct Options {}

#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Info {
    cluster: String,
    /// Who answers.
    node: String,
    release: String,
    /// Format of what the cluster keeps, and the newest that all nodes read.
    level: u64,
    readable: u64,
    /// By their state.
    nodes: BTreeMap<String, usize>,
    containers: BTreeMap<String, usize>,
    services: usize,
    cpus: u64,
    /// Of nodes that are there and may be given containers.
    #[cfg_attr(test, schemars(schema_with = "crate::shapes::capacity"))]
    capacity: Capacity,
    #[cfg_attr(test, schemars(schema_with = "crate::shapes::promise"))]
    promised: Promise,
    /// What is not well.
    problems: Vec<String>,
}

pub fn execute(global: &Global, _: &Options) -> Outcome {
    let daemon = daemon(global)?;
    let info = block_on(gather(&daemon))??;
    print(|out| output::one(out, global.output, &info, view))
}

async fn gather(daemon: &Client) -> Result<Info, Failure> {
    let version = daemon.version().await?;
    let level = daemon.level().await?;
    let (nodes, dcs, health) = (daemon.nodes().await?, daemon.dcs().await?, daemon.ready().await?);
    let mut services = 0;
    for dc in &dcs {
        // It may be gone by now.
        services += daemon.services(&dc.spec.name).await.map_or(0, |services| services.len());
    }
    let open: Vec<&Node> = nodes.iter().filter(|node| !node.cordoned && node.capacity.is_some()).collect();
    let none = Capacity { containers: 0, memory_bytes: 0, disk_bytes: None, cpus: 0 };
    let capacity = open.iter().filter_map(|node| node.capacity.as_ref()).fold(none, |sum, one| Capacity {
        containers: sum.containers.saturating_add(one.containers),
        memory_bytes: sum.memory_bytes.saturating_add(one.memory_bytes),
        disk_bytes: match (sum.disk_bytes, one.disk_bytes) {
            (None, None) => None,
            (sum, one) => Some(sum.unwrap_or(0).saturating_add(one.unwrap_or(0))),
        },
        cpus: sum.cpus.saturating_add(one.cpus),
    });
    Ok(Info {
        cluster: version.cluster,
        node: version.node,
        release: version.version,
        level: level.level,
        readable: level.readable,
        services,
        cpus: nodes.iter().map(|node| u64::from(node.cpus)).sum(),
        capacity,
        promised: open.iter().fold(Promise::default(), |sum, node| sum.plus(node.promised)),
        problems: health.problems,
        nodes: counted(nodes.iter().map(|node| &node.state)),
        containers: counted(dcs.iter().map(|dc| &dc.phase)),
    })
}

/// How often each state is there.
fn counted<'a, T: Serialize + 'a>(states: impl Iterator<Item = &'a T>) -> BTreeMap<String, usize> {
    states.fold(BTreeMap::new(), |mut counts, state| {
        *counts.entry(mgmt_api::word(state)).or_default() += 1;
        counts
    })
}

impl Row for Info {
    const HEADINGS: &'static [&'static str] = &["CLUSTER", "NODE", "RELEASE"];

    fn cells(&self) -> Vec<String> {
        vec![self.cluster.clone(), self.node.clone(), self.release.clone()]
    }

    fn name(&self) -> String {
        self.cluster.clone()
    }
}

fn view(info: &Info, out: &mut impl io::Write) -> io::Result<()> {
    let total = |counts: &BTreeMap<String, usize>| {
        let parts: Vec<String> = counts.iter().map(|(state, count)| format!("{count} {state}")).collect();
        match counts.values().sum::<usize>() {
            0 => "none".to_owned(),
            count => format!("{count} ({})", parts.join(", ")),
        }
    };
    let of = |promised: u64, capacity: u64| format!("{} of {}", output::bytes(promised), output::bytes(capacity));
    let newest = match info.readable > info.level {
        true => format!(", {} after dvs node upgrade", info.readable),
        false => String::new(),
    };
    let mut table = Table::new(&["CLUSTER", &info.cluster]);
    let mut line = |name: &str, value: String| table.push(vec![name.to_owned(), value]);
    line("answers", format!("node {}, release {}", info.node, info.release));
    line("format", format!("{}{newest}", info.level));
    line("nodes", total(&info.nodes));
    line("containers", total(&info.containers));
    line("services", info.services.to_string());
    line("CPUs", info.cpus.to_string());
    line("memory promised", of(info.promised.memory_bytes, info.capacity.memory_bytes));
    if let Some(disk_bytes) = info.capacity.disk_bytes {
        line("disk promised", of(info.promised.disk_bytes, disk_bytes));
    }
    let health = if info.problems.is_empty() { "well".to_owned() } else { info.problems.join("; ") };
    line("health", health);
    table.print(out)
}
