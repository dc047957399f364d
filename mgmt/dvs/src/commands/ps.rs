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
  dvs ps shop --filter user=33 --node n2   those of one user, on one node
  dvs ps shop --format '{{.pid}} {{.node}} {{.state}}'
  dvs ps shop -o wide --watch              all columns, again and again
  dvs kill shop $(dvs ps shop -q)          end them all")]
pub struct Options {
    /// Container [default: all].
    #[arg(add = names::containers())]
    dc: Option<String>,
    /// Show also programs that have ended, with their exit status.
    #[arg(short, long)]
    all: bool,
    /// Only those on this node.
    #[arg(long, value_name = "NODE", add = names::nodes())]
    node: Option<String>,
    /// Only those of which it is so: state=running, user=33, command=TEXT, exited=STATUS; may be repeated.
    #[arg(short, long, value_name = "WHAT=VALUE", value_parser = parse_filter)]
    filter: Vec<Filter>,
    /// Print PIDs alone, as -o name does.
    #[arg(short, long)]
    quiet: bool,
    /// Whole command lines, however wide the terminal is, as -o wide has them.
    #[arg(long)]
    no_trunc: bool,
}

/// What a process must be.
#[derive(Clone, Debug)]
enum Filter {
    /// As the table of processes shows it, or its first word.
    State(String),
    User(u32),
    /// Some part of it.
    Command(String),
    /// It has ended with this status.
    Exited(u8),
}

fn parse_filter(text: &str) -> Result<Filter, String> {
    let known = "state=STATE, user=NUMBER, command=TEXT or exited=STATUS";
    match text.split_once('=') {
        Some(("state" | "status", state)) => Ok(Filter::State(state.to_owned())),
        Some(("user", "root")) => Ok(Filter::User(0)),
        Some(("user", user)) => user.parse().map(Filter::User).map_err(|_| known.to_owned()),
        Some(("command" | "name", text)) => Ok(Filter::Command(text.to_owned())),
        Some(("exited" | "exit", status)) => status.parse().map(Filter::Exited).map_err(|_| known.to_owned()),
        _ => Err(known.to_owned()),
    }
}

impl Filter {
    fn admits(&self, process: &Process) -> bool {
        match self {
            Filter::State(wanted) => {
                let state = state(process);
                state == *wanted || state.split(' ').next() == Some(wanted)
            }
            Filter::User(uid) => process.uid == *uid,
            Filter::Command(text) => command(&process.command).contains(text),
            Filter::Exited(status) => process.exit == Some(*status),
        }
    }
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
    let wants_ended =
        options.all || options.filter.iter().any(|filter| matches!(filter, Filter::State(_) | Filter::Exited(_)));
    found.retain(|(_, process)| {
        let is_on = options.node.as_ref().is_none_or(|node| *node == process.node);
        let is_shown = wants_ended || process.state != ProcessState::Exited;
        is_on && is_shown && options.filter.iter().all(|filter| filter.admits(process))
    });
    found.sort_by(|(dc, process), (other_dc, other)| (dc, process.pid).cmp(&(other_dc, other.pid)));
    let format = match global.output {
        _ if options.quiet => Format::Name,
        Format::Table if options.no_trunc => Format::Wide,
        format => format,
    };
    print(|out| match options.dc {
        Some(_) => {
            let rows: Vec<Process> = found.into_iter().map(|(_, process)| process).collect();
            output::list(out, format, &rows)
        }
        None => {
            let rows: Vec<Placed> = found.into_iter().map(|(dc, process)| Placed { dc, process }).collect();
            output::list(out, format, &rows)
        }
    })
}

/// A process and the container it belongs to.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[cfg_attr(test, schemars(rename = "ProcessOfContainer"))]
pub struct Placed {
    dc: String,
    #[serde(flatten)]
    #[cfg_attr(test, schemars(schema_with = "crate::shapes::process"))]
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

    const MORE_HEADINGS: &'static [&'static str] = &["PARENT", "STARTED"];

    fn more_cells(&self) -> Vec<String> {
        vec![self.parent.to_string(), mgmt_api::utc(self.start_ms / 1000)]
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

    const MORE_HEADINGS: &'static [&'static str] = <Process as Row>::MORE_HEADINGS;

    fn more_cells(&self) -> Vec<String> {
        self.process.more_cells()
    }

    fn name(&self) -> String {
        format!("{} {}", self.dc, self.process.pid)
    }
}

/// Our own helpers inside a container by what people typed.
pub fn command(words: &[String]) -> String {
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    match words[..] {
        ["/proc/self/exe", "internal", "unpack", destination] => format!("(dvs import to {destination})"),
        ["/proc/self/exe", "internal", "unpack", destination, ..] => format!("(dvs cp to {destination})"),
        ["/proc/self/exe", "internal", "pack", source, ..] => format!("(dvs cp of {source})"),
        ["/proc/self/exe", "internal", "ds", ..] => "(dvs ds)".to_owned(),
        ["/proc/self/exe", "internal", "fs", ..] => "(dvs fs)".to_owned(),
        _ => words.join(" "),
    }
}

pub fn state(process: &Process) -> String {
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
        assert_eq!(shown(&["/proc/self/exe", "internal", "fs", "--output", "table", "shop", "diff"]), "(dvs fs)");
        assert_eq!(shown(&["cat", "a b"]), "cat a b");
    }

    #[test]
    fn process_that_waits_for_the_tree_is_marked() {
        assert_eq!(process(&["ls"], true)[3], "waits for tree");
        assert_eq!(process(&["ls"], false)[3], "sleeping");
    }
}
