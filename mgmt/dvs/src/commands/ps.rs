//! `dvs ps`: processes of containers, wherever they run.

use clap::Args;
use mgmt_api::{Process, ProcessState};
use serde::Serialize;

use super::{Outcome, block_on, daemon, now_ms, print, say};
use crate::cli::Global;
use crate::output::{self, Format, Row};

/// List processes of a container, on all its nodes
#[derive(Args, Debug)]
#[command(after_help = "\
PIDs are unique over all nodes of a container: 65536 to 131071 on its first node, and so on. \
Times are UTC.

Examples:
  dvs ps                                   all containers
  dvs ps shop                              one container
  dvs ps shop --all                        also programs that ended
  dvs kill shop $(dvs ps shop -o name)     end them all")]
pub struct Options {
    /// Container [default: all].
    dc: Option<String>,
    /// Show also programs that have ended, with their exit status.
    #[arg(short, long)]
    all: bool,
}

pub fn execute(global: &Global, options: &Options) -> Outcome {
    let daemon = daemon(global)?;
    let fetched: Result<_, client::Error> = block_on(async {
        let names = match &options.dc {
            Some(name) => vec![name.clone()],
            None => daemon.dcs().await?.into_iter().map(|dc| dc.spec.name).collect(),
        };
        let mut found = Vec::new();
        for name in names {
            let listed = daemon.processes(&name).await?;
            for reason in listed.missing {
                say(&format!("dvs: processes of '{name}' are missing from node {reason}"));
            }
            found.extend(listed.processes.into_iter().map(|process| (name.clone(), process)));
        }
        Ok(found)
    })?;
    let mut found = fetched?;
    found.retain(|(_, process)| options.all || process.state != ProcessState::Exited);
    found.sort_by(|(dc, process), (other_dc, other)| (dc, process.pid).cmp(&(other_dc, other.pid)));
    print(|out| match options.dc {
        Some(_) => {
            let rows: Vec<Process> = found.into_iter().map(|(_, process)| process).collect();
            output::list(out, global.output, &rows)
        }
        None => {
            let rows: Vec<Placed> = found.into_iter().map(|(dc, process)| Placed { dc, process }).collect();
            output::list(out, global.output, &rows)
        }
    })
}

/// A process and the container it belongs to.
#[derive(Serialize)]
struct Placed {
    dc: String,
    #[serde(flatten)]
    process: Process,
}

impl Row for Process {
    const HEADINGS: &'static [&'static str] = &["PID", "NODE", "USER", "STATE", "CPU", "MEM", "START", "COMMAND"];

    fn cells(&self) -> Vec<String> {
        vec![
            self.pid.to_string(),
            self.node.clone(),
            if self.uid == 0 { "root".to_owned() } else { self.uid.to_string() },
            state(self),
            output::cpu_time(self.cpu_ms),
            output::bytes(self.memory_bytes),
            output::clock(self.start_ms, now_ms()),
            self.command.join(" "),
        ]
    }

    fn name(&self) -> String {
        self.pid.to_string()
    }
}

impl Row for Placed {
    const HEADINGS: &'static [&'static str] = &["DC", "PID", "NODE", "USER", "STATE", "CPU", "MEM", "START", "COMMAND"];

    fn cells(&self) -> Vec<String> {
        let mut cells = vec![self.dc.clone()];
        cells.extend(self.process.cells());
        cells
    }

    fn name(&self) -> String {
        format!("{} {}", self.dc, self.process.pid)
    }
}

fn state(process: &Process) -> String {
    match (process.state, process.exit, &process.cause) {
        (ProcessState::Running, ..) => "running".to_owned(),
        (ProcessState::Sleeping, ..) => "sleeping".to_owned(),
        (ProcessState::Stopped, ..) => "stopped".to_owned(),
        (ProcessState::Zombie, ..) => "zombie".to_owned(),
        (ProcessState::Exited, Some(status), None) => format!("exited ({status})"),
        (ProcessState::Exited, Some(status), Some(cause)) => format!("exited ({status}, {cause})"),
        (ProcessState::Exited, None, Some(cause)) => cause.clone(),
        (ProcessState::Exited, None, None) => "exited".to_owned(),
    }
}

/// `-o name` of a program that was just started.
pub fn print_started(format: Format, started: &mgmt_api::RunResponse) -> Outcome {
    print(|out| {
        output::one(out, format, started, |started, out| {
            use std::io::Write;
            writeln!(out, "{}", started.pid)
        })
    })
}

impl Row for mgmt_api::RunResponse {
    const HEADINGS: &'static [&'static str] = &["PID", "NODE"];

    fn cells(&self) -> Vec<String> {
        vec![self.pid.to_string(), self.node.clone()]
    }

    fn name(&self) -> String {
        self.pid.to_string()
    }
}
