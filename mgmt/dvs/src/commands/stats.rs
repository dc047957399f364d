//! `dvs stats` and `dvs top`: what containers and their processes use, measured again and again.

use std::collections::BTreeMap;
use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};

use clap::Args;
use client::Client;
use mgmt_api::{FileUsage, NodeUsage, Process, ProcessState};
use serde::Serialize;

use super::watch::HOME;
use super::{Outcome, block_on, daemon, names, ps, say};
use crate::cli::Global;
use crate::errors::Failure;
use crate::output::{self, Format, Row};

/// Between two measurements when it is shown once.
const SHORT: Duration = Duration::from_millis(500);
/// The same on a terminal.
const PERIOD: Duration = Duration::from_secs(2);

/// Show what containers use of each of their nodes
#[derive(Args, Debug)]
#[command(after_help = "\
On a terminal it goes on, every two seconds, until Ctrl-C. CPU is of one CPU: 150 % are one and a half. Programs, servers and \
gates are counted together; limits are those of the programs.

FILES HERE: of all that programs asked of the file tree, what was answered on the node, without the file server. RECALLS: what \
other nodes wanted of what this one had. UNTOLD: changes of files that programs were answered and the file server has not \
been told of yet, and how long the oldest waits. All since the node's file gate began.

Examples:
  dvs stats
  dvs stats shop --no-stream
  dvs stats shop -o json")]
pub struct StatsOptions {
    /// Container [default: all].
    #[arg(add = names::containers())]
    dc: Option<String>,
    /// Once, also on a terminal.
    #[arg(long)]
    no_stream: bool,
}

/// Show the processes of a container that use most CPU, on all its nodes
#[derive(Args, Debug)]
#[command(after_help = "\
On a terminal it goes on, every two seconds, until Ctrl-C. A program in the container sees the same with top.

Examples:
  dvs top shop
  dvs top shop --no-stream -o json")]
pub struct TopOptions {
    /// Container.
    #[arg(add = names::containers())]
    dc: String,
    /// Once, also on a terminal.
    #[arg(long)]
    no_stream: bool,
}

/// A row of `dvs stats`.
#[derive(Serialize, Debug)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Stats {
    dc: String,
    #[serde(flatten)]
    #[cfg_attr(test, schemars(schema_with = "crate::shapes::node_usage"))]
    usage: NodeUsage,
    /// Of one CPU, since the measurement before.
    cpu_percent: f64,
}

impl Row for Stats {
    const HEADINGS: &'static [&'static str] =
        &["DC", "NODE", "CPU %", "MEMORY", "LIMIT", "PIDS", "LIMIT", "OOM", "FILES HERE", "RECALLS", "UNTOLD"];

    fn cells(&self) -> Vec<String> {
        let Stats { dc, usage, cpu_percent } = self;
        vec![
            dc.clone(),
            usage.node.clone(),
            format!("{cpu_percent:.1}"),
            output::bytes(usage.memory_bytes),
            output::bytes(usage.memory_limit_bytes),
            usage.pids.to_string(),
            usage.pids_limit.to_string(),
            usage.oom_kills.to_string(),
            usage.files.as_ref().map_or_else(none, answered_here),
            usage.files.as_ref().map_or_else(none, |files| files.recalls.to_string()),
            usage.files.as_ref().map_or_else(none, untold),
        ]
    }

    fn name(&self) -> String {
        format!("{} {}", self.dc, self.usage.node)
    }
}

fn none() -> String {
    "-".to_owned()
}

/// Of all that programs asked of the tree.
fn answered_here(files: &FileUsage) -> String {
    let all = files.here.saturating_add(files.asked);
    if all == 0 { none() } else { format!("{:.0} %", files.here as f64 * 100.0 / all as f64) }
}

fn untold(files: &FileUsage) -> String {
    if files.untold == 0 { "0".to_owned() } else { format!("{} ({} ms)", files.untold, files.untold_ms) }
}

/// A row of `dvs top`.
#[derive(Serialize, Debug)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Busy {
    #[serde(flatten)]
    #[cfg_attr(test, schemars(schema_with = "crate::shapes::process"))]
    process: Process,
    /// Of one CPU, since the measurement before.
    cpu_percent: f64,
}

impl Row for Busy {
    const HEADINGS: &'static [&'static str] = &["PID", "NODE", "USER", "STATE", "CPU %", "CPU", "MEM", "COMMAND"];

    fn cells(&self) -> Vec<String> {
        let Busy { process, cpu_percent } = self;
        vec![
            process.pid.to_string(),
            process.node.clone(),
            if process.uid == 0 { "root".to_owned() } else { process.uid.to_string() },
            ps::state(process),
            format!("{cpu_percent:.1}"),
            output::cpu_time(process.cpu_ms),
            output::bytes(process.memory_bytes),
            ps::command(&process.command),
        ]
    }

    fn name(&self) -> String {
        self.process.pid.to_string()
    }
}

/// CPU time in milliseconds by what used it, and when that was seen.
type Seen<K> = Option<(BTreeMap<K, u64>, Instant)>;

/// Since it was seen before. What is new since then has used all that it has.
fn percent<K: Ord>(seen: &Seen<K>, key: &K, cpu_ms: u64) -> f64 {
    let Some((before, at)) = seen else { return 0.0 };
    let used = cpu_ms.saturating_sub(before.get(key).copied().unwrap_or(0));
    used as f64 * 100.0 / at.elapsed().as_millis().max(1) as f64
}

pub fn execute_stats(global: &Global, options: &StatsOptions) -> Outcome {
    let daemon = daemon(global)?;
    let mut seen: Seen<(String, String)> = None;
    repeat(global.output, options.no_stream, async || {
        let mut rows = Vec::new();
        for (dc, usage) in usages(&daemon, options.dc.as_deref()).await? {
            let key = (dc.clone(), usage.node.clone());
            rows.push(Stats { cpu_percent: percent(&seen, &key, usage.cpu_ms), dc, usage });
        }
        let now = rows.iter().map(|row| ((row.dc.clone(), row.usage.node.clone()), row.usage.cpu_ms));
        seen = Some((now.collect(), Instant::now()));
        Ok(rows)
    })
}

async fn usages(daemon: &Client, dc: Option<&str>) -> Result<Vec<(String, NodeUsage)>, Failure> {
    let names = match dc {
        Some(dc) => vec![dc.to_owned()],
        None => daemon.dcs().await?.into_iter().map(|dc| dc.spec.name).collect(),
    };
    let mut found = Vec::new();
    for name in names {
        let (usages, missing) = daemon.usage(&name).await?;
        missing.iter().for_each(|why| say(&format!("dvs: what '{name}' uses is missing from node {why}")));
        found.extend(usages.into_iter().map(|usage| (name.clone(), usage)));
    }
    Ok(found)
}

pub fn execute_top(global: &Global, options: &TopOptions) -> Outcome {
    let daemon = daemon(global)?;
    let mut seen: Seen<u32> = None;
    repeat(global.output, options.no_stream, async || {
        let listed = daemon.processes(&options.dc).await?;
        listed.missing.iter().for_each(|why| say(&format!("dvs: processes are missing from node {why}")));
        let living = listed.processes.into_iter().filter(|process| process.state != ProcessState::Exited);
        let busy = living.map(|process| Busy { cpu_percent: percent(&seen, &process.pid, process.cpu_ms), process });
        let mut rows: Vec<Busy> = busy.collect();
        seen = Some((rows.iter().map(|row| (row.process.pid, row.process.cpu_ms)).collect(), Instant::now()));
        rows.sort_by(|one, other| other.cpu_percent.total_cmp(&one.cpu_percent));
        Ok(rows)
    })
}

/// Twice, and the second measurement is shown; or on a terminal for ever.
fn repeat<T: Row>(
    format: Format,
    no_stream: bool,
    mut measure: impl AsyncFnMut() -> Result<Vec<T>, Failure>,
) -> Outcome {
    let goes_on = !no_stream && format.is_for_people() && std::io::stdout().is_terminal();
    block_on(async {
        measure().await?;
        let mut pause = SHORT;
        loop {
            tokio::time::sleep(pause).await;
            let rows = measure().await?;
            let mut out = std::io::stdout().lock();
            if goes_on {
                write!(out, "{HOME}")?;
            }
            output::list(&mut out, format, &rows)?;
            out.flush()?;
            if !goes_on {
                return Ok(0.into());
            }
            pause = PERIOD;
        }
    })?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn share_of_a_cpu_is_that_of_the_time_between() {
        let second_ago = Instant::now().checked_sub(Duration::from_secs(1)).unwrap();
        let seen = Some((BTreeMap::from([(7, 1000)]), second_ago));
        let of = |pid, cpu_ms| percent(&seen, &pid, cpu_ms).round();
        assert!((45.0..=50.0).contains(&of(7, 1500)), "{}", of(7, 1500));
        let files = FileUsage { here: 97, asked: 3, untold: 2, untold_ms: 4, ..FileUsage::default() };
        assert_eq!((answered_here(&files).as_str(), untold(&files).as_str()), ("97 %", "2 (4 ms)"));
        assert_eq!(answered_here(&FileUsage::default()), "-");
        assert!((of(7, 900), percent(&None, &7, 1500)) == (0.0, 0.0));
        assert!(of(8, 100) > 5.0);
    }
}
