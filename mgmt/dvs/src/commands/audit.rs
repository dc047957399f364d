//! `dvs audit`: what was changed and refused, by whom.

use std::collections::BTreeMap;
use std::process::ExitCode;

use clap::Args;
use client::{Client, LogQuery};
use mgmt_api::{AuditEntry, AuditWho, ErrorKind, Means};
use tokio::task::JoinSet;

use super::follow::{Entries, Show};
use super::{Outcome, block_on, daemon, names, say};
use crate::cli::Global;
use crate::errors::Failure;
use crate::output::{Format, Row, printable};

/// Of the columns.
const WIDTHS: [usize; 6] = [20, 6, 28, 18, 28, 0];

/// Show what was changed and refused, by whom
#[derive(Args, Debug)]
#[command(after_help = "\
Every change and every refusal is an entry on the node that was asked: who, by what, from where, what, when, and how it was \
answered. Arguments, environment and files of programs are not in it. Each node keeps up to 64 MiB in STATE_DIR/audit.

Examples:
  dvs audit                          the last 100 of all nodes
  dvs audit -f                       and what comes
  dvs audit n2 --tail 1000 -o json   of one node, each entry as a line of JSON
  dvs audit -o json | jq 'select(.who.name == \"ada\")'")]
pub struct Options {
    /// Of one node alone.
    #[arg(add = names::nodes())]
    node: Option<String>,
    /// Go on with what comes.
    #[arg(short, long)]
    follow: bool,
    /// The last so many.
    #[arg(long, value_name = "ENTRIES", default_value_t = 100)]
    tail: u64,
    /// Each entry as a line of JSON; the same as -o json.
    #[arg(long)]
    json: bool,
}

pub fn execute(global: &Global, options: &Options) -> Outcome {
    let daemon = daemon(global)?;
    let format = if options.json { Format::Json } else { global.output };
    block_on(async {
        let nodes = match &options.node {
            Some(node) => vec![node.clone()],
            None => daemon.nodes().await?.into_iter().map(|node| node.name).collect(),
        };
        let mut show = Show::new(format, &WIDTHS);
        match options.follow {
            false => all(&daemon, nodes, options, &mut show).await,
            true => follow(&daemon, nodes, options, &mut show).await,
        }
    })?
}

/// Of all nodes together, in the order of time.
async fn all(daemon: &Client, nodes: Vec<String>, options: &Options, show: &mut Show<AuditEntry>) -> Outcome {
    let query = LogQuery { follow: false, tail: Some(options.tail) };
    let is_alone = nodes.len() == 1;
    let mut asking = JoinSet::new();
    for node in nodes {
        let daemon = daemon.clone();
        asking.spawn(async move {
            let log = match daemon.audit(Some(&node), query).await {
                // Whoever may not is told so once, and not by each node.
                Err(error) if matches!(error.kind(), Some(ErrorKind::Forbidden | ErrorKind::Unauthenticated)) => {
                    return Err(Failure::from(error));
                }
                log => log,
            };
            let read = async {
                let mut log = Entries::<AuditEntry>::of(log?);
                let mut found = Vec::new();
                while let Some(entry) = log.next().await? {
                    found.push(entry);
                }
                Ok::<_, Failure>(found)
            };
            let read = read.await;
            Ok((node, read))
        });
    }
    let (mut found, mut missing) = (Vec::new(), BTreeMap::new());
    for answered in asking.join_all().await {
        let (node, read) = answered?;
        match read {
            Ok(entries) => found.extend(entries),
            Err(failure) if is_alone => return Err(failure),
            Err(failure) => drop(missing.insert(node, failure.what)),
        }
    }
    found.sort_by_key(|entry| entry.at_ms);
    let from = found.len().saturating_sub(usize::try_from(options.tail).unwrap_or(usize::MAX));
    found.iter().skip(from).try_for_each(|entry| show.one(entry))?;
    missing.iter().for_each(|(node, why)| say(&format!("dvs: without node {node}: {}", printable(why))));
    Ok(if missing.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// As they come; each node by itself.
async fn follow(daemon: &Client, nodes: Vec<String>, options: &Options, show: &mut Show<AuditEntry>) -> Outcome {
    let query = LogQuery { follow: true, tail: Some(options.tail) };
    let (sender, mut entries) = tokio::sync::mpsc::channel(64);
    for node in nodes {
        let (daemon, sender) = (daemon.clone(), sender.clone());
        tokio::spawn(async move {
            let read = async {
                let mut log = Entries::<AuditEntry>::of(daemon.audit(Some(&node), query).await?);
                while let Some(entry) = log.next().await? {
                    if sender.send(Ok(entry)).await.is_err() {
                        break;
                    }
                }
                Ok::<_, Failure>(())
            };
            let ended = read.await.err();
            let failure = ended.unwrap_or_else(|| Failure::new("its log ended"));
            let _ = sender.send(Err((node, failure))).await;
        });
    }
    drop(sender);
    let mut last = None;
    while let Some(heard) = entries.recv().await {
        match heard {
            Ok(entry) => show.one(&entry)?,
            Err((node, failure)) => {
                say(&format!("dvs: without node {node}: {}", printable(&failure.what)));
                last = Some(failure);
            }
        }
    }
    last.map_or(Ok(ExitCode::SUCCESS), Err)
}

impl Row for AuditEntry {
    const HEADINGS: &'static [&'static str] = &["TIME", "NODE", "WHO", "WHAT", "OF", "OUTCOME"];

    fn cells(&self) -> Vec<String> {
        let what = if self.operation.is_empty() { self.method.clone() } else { self.operation.clone() };
        vec![
            mgmt_api::utc(self.at_ms / 1000),
            self.node.clone(),
            whom(&self.who),
            what,
            self.path.trim_start_matches("/v1/").to_owned(),
            outcome(self),
        ]
    }

    fn name(&self) -> String {
        self.operation.clone()
    }
}

fn whom(who: &AuditWho) -> String {
    let from = who.address.as_ref().map(|address| format!(" {address}")).unwrap_or_default();
    match who.by {
        Means::Nothing => format!("?{from}"),
        Means::Socket => who.name.clone(),
        Means::Node => format!("node {}{from}", who.name),
        Means::Token | Means::Certificate => format!("{}{from}", who.name),
    }
}

fn outcome(entry: &AuditEntry) -> String {
    let status = entry.status.map_or("not waited for".to_owned(), |status| status.to_string());
    let error = entry.error.as_ref().map(|error| format!(" {error}")).unwrap_or_default();
    let mut said = format!("{status}{error} in {} ms", entry.took_ms);
    if entry.omitted > 0 {
        said.push_str(&format!(", {} like it left out", entry.omitted));
    }
    if entry.lost > 0 {
        said.push_str(&format!(", {} before it lost", entry.lost));
    }
    said
}
