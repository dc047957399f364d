//! `dvs ps`: processes of containers, wherever they run.

use clap::Args;
use mgmt_api::{Process, ProcessState};
use serde::Serialize;

use super::{Outcome, block_on, daemon, names, now_ms, print, say};
use crate::cli::Global;
use crate::errors::RUN_FAILED;
use crate::output::{self, Format, Row};

/// List processes of a container, on all its nodes
#[derive(Args, Debug)]
#[command(after_help = "\
PIDs are unique over all nodes of a container: 65536 to 131071 on its first node, and so on. \
Times are UTC. A process that 'waits for tree' is in a call that the file tree has not answered yet.

Examples:
  dvs ps                                   all containers
  dvs ps shop                              one container
  dvs ps shop --all                        also programs that ended
  dvs kill shop $(dvs ps shop -o name)     end them all")]
pub struct Options {
    /// Container [default: all].
    #[arg(add = names::containers())]
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
            for note in listed.notes {
                say(&format!("dvs: {}", output::printable(&note)));
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
            command(&self.command),
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

/// Our own helpers inside a container by what people typed.
fn command(words: &[String]) -> String {
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    match words[..] {
        ["/proc/self/exe", "internal", "unpack", destination] => format!("(dvs import to {destination})"),
        ["/proc/self/exe", "internal", "ds", ..] => "(dvs ds)".to_owned(),
        _ => words.join(" "),
    }
}

fn state(process: &Process) -> String {
    match (process.state, process.exit, &process.cause) {
        (ProcessState::Running | ProcessState::Sleeping, ..) if process.waits_for_tree => "waits for tree".to_owned(),
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
    let printed = print(|out| {
        output::one(out, format, started, |started, out| {
            use std::io::Write;
            writeln!(out, "{}", started.pid)
        })
    });
    // It runs, whatever became of its number.
    let pid = started.pid;
    printed.map_err(|failure| {
        let failure = if failure.is_broken_pipe() { failure } else { failure.status(RUN_FAILED) };
        failure.hint(format!("the program runs as process {pid}: dvs ps, dvs logs, dvs kill"))
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

#[cfg(test)]
mod tests {
    use super::*;

    fn process(command: &[&str], waits_for_tree: bool) -> Vec<String> {
        let process = serde_json::json!({
            "pid": 1, "parent": 0, "node": "n1", "uid": 0, "state": "sleeping", "cpu_ms": 0, "memory_bytes": 0,
            "start_ms": 0, "command": command, "waits_for_tree": waits_for_tree
        });
        serde_json::from_value::<Process>(process).unwrap().cells()
    }

    #[test]
    fn helper_inside_a_container_is_shown_as_what_people_typed() {
        let shown = |command: &[&str]| process(command, false).pop().unwrap();
        assert_eq!(shown(&["/proc/self/exe", "internal", "unpack", "/dc/www"]), "(dvs import to /dc/www)");
        assert_eq!(shown(&["/proc/self/exe", "internal", "ds", "--one"]), "(dvs ds)");
        assert_eq!(shown(&["cat", "a b"]), "cat a b");
    }

    #[test]
    fn process_that_waits_for_the_tree_is_marked() {
        assert_eq!(process(&["ls"], true)[3], "waits for tree");
        assert_eq!(process(&["ls"], false)[3], "sleeping");
    }
}
