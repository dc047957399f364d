//! `dvs doctor report`: an archive with what somebody needs who looks for a fault, and without secrets.
//!
//! ```text
//! about.json         when, where, which versions            doctor.json   checks of this machine, and of the cluster
//! settings.json      of the daemon                           health.json   its parts
//! nodes.json, dcs.json, dcs/NAME.json, processes/NAME.json   metrics/NODE.txt
//! machine.txt        kernel and system                       logs/…        last lines of each role
//! missing.txt        what could not be had, and why
//! ```
//!
//! Not in it: environments, arguments and output of programs, keys, files of the tree. The daemon of this machine is
//! asked as far as it answers; without one the machine alone is told of.

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args;
use client::Client;
use mgmt_api::Process;
use serde_json::{Value, json};

use super::secrets::Secrets;
use super::{cluster, machine, of_this_machine};
use crate::cli::Global;
use crate::commands::{Outcome, block_on, local_daemon, now_ms, say};

/// Readable for who made it alone: it says much about a machine.
const MODE: u32 = 0o600;

/// Write an archive with what a report of a fault needs
#[derive(Args, Debug)]
#[command(after_help = "\
Versions, settings, nodes, containers, health, metrics, facts about the kernel, and the last lines of the logs of \
this node. Environments, arguments and output of programs, keys and files are not in it; look at it all the same \
before you give it away.

Examples:
  dvs doctor report --out report.tar
  tar -tf report.tar")]
pub struct Options {
    /// File to write; an existing one is replaced.
    #[arg(long, value_name = "FILE")]
    out: PathBuf,
}

pub fn execute(global: &Global, options: &Options) -> Outcome {
    let mut report = Report::default();
    // First: some probes fork, and what asks a daemon has threads.
    let mut checks = of_this_machine(&global.places());
    let client = local_daemon(global);
    let settings = match &client {
        Ok(client) => block_on(of_the_daemon(client, &mut report))?,
        Err(failure) => {
            report.missing.push(format!("the daemon: {}", failure.what));
            Value::Null
        }
    };
    checks.extend(cluster::examine(global));
    report.add_json("doctor.json", &json!(checks));
    report.add("machine.txt", machine::facts());
    let node = NodeFiles::of(&settings, client.ok().as_ref(), global);
    node.add_logs(&mut report);
    report.add_json("about.json", &about(&settings));
    report.add("missing.txt", report.missing.iter().map(|line| format!("{line}\n")).collect::<String>());
    let secrets = Secrets::of(&settings, &node.state_dir);
    let failed = |cause: io::Error| crate::installed::not_written(&options.out, &cause);
    report.write(&options.out, &secrets).map_err(failed)?;
    for line in &report.missing {
        say(&format!("not in it: {line}"));
    }
    say(&format!("wrote {}; look at it before you give it away", options.out.display()));
    Ok(ExitCode::SUCCESS)
}

fn about(settings: &Value) -> Value {
    json!({
        "made_ms": now_ms(),
        "dvs": env!("CARGO_PKG_VERSION"),
        "node": settings.get("node"),
        "cluster": settings.get("cluster"),
        "is_root": rustix::process::geteuid().is_root(),
    })
}

/// Texts by their names in the archive.
#[derive(Default)]
struct Report {
    texts: Vec<(String, String)>,
    missing: Vec<String>,
}

impl Report {
    fn add(&mut self, name: impl Into<String>, text: impl Into<String>) {
        self.texts.push((name.into(), text.into()));
    }

    fn add_json(&mut self, name: impl Into<String>, value: &Value) {
        self.add(name, format!("{value:#}\n"));
    }

    /// What was asked for, or a line about why it is not there.
    fn take<T: serde::Serialize>(&mut self, name: &str, answer: Result<T, client::Error>) -> Option<T> {
        match answer {
            Ok(value) => {
                self.add_json(name, &json!(value));
                Some(value)
            }
            Err(error) => {
                self.missing.push(format!("{name}: {error}"));
                None
            }
        }
    }

    fn write(&self, path: &Path, secrets: &Secrets) -> io::Result<()> {
        let mut name = path.file_name().unwrap_or_default().to_owned();
        name.push(".new");
        let fresh = path.with_file_name(name);
        let _ = std::fs::remove_file(&fresh);
        let written = self.write_all(&fresh, secrets).and_then(|()| std::fs::rename(&fresh, path));
        // One that was there stays until another one is whole.
        written.inspect_err(|_| drop(std::fs::remove_file(&fresh)))
    }

    fn write_all(&self, path: &Path, secrets: &Secrets) -> io::Result<()> {
        use std::os::unix::fs::OpenOptionsExt;
        let file = std::fs::OpenOptions::new().write(true).create_new(true).mode(MODE).open(path)?;
        let mut archive = tar::Builder::new(io::BufWriter::new(file));
        for (name, text) in &self.texts {
            let text = secrets.removed_from(text);
            let mut header = tar::Header::new_gnu();
            header.set_size(text.len() as u64);
            header.set_mode(MODE);
            header.set_mtime(now_ms() / 1000);
            archive.append_data(&mut header, format!("dvs-report/{name}"), text.as_bytes())?;
        }
        let mut out = archive.into_inner()?;
        out.flush()?;
        out.get_ref().sync_all()
    }
}

/// Gives back the settings.
async fn of_the_daemon(client: &Client, report: &mut Report) -> Value {
    report.take("version.json", client.version().await);
    report.take("health.json", client.ready_verbose().await);
    let settings = report.take("settings.json", client.settings().await).unwrap_or_default();
    let nodes = report.take("nodes.json", client.nodes().await).unwrap_or_default();
    for node in &nodes {
        report.take(&format!("nodes/{}.json", node.name), client.node(&node.name).await);
        match client.metrics(Some(&node.name)).await {
            Ok(text) => report.add(format!("metrics/{}.txt", node.name), text),
            Err(error) => report.missing.push(format!("metrics of {}: {error}", node.name)),
        }
    }
    for dc in report.take("dcs.json", client.dcs().await).unwrap_or_default() {
        let name = dc.spec.name;
        match client.processes(&name).await {
            Ok(found) => {
                report.add_json(
                    format!("processes/{name}.json"),
                    &json!({
                        "processes": found.processes.iter().map(without_arguments).collect::<Vec<_>>(),
                        "missing": found.missing,
                        "notes": found.notes,
                    }),
                );
            }
            Err(error) => report.missing.push(format!("processes of '{name}': {error}")),
        }
        report.take(&format!("channels/{name}.json"), client.channels(&name).await);
    }
    settings
}

/// Arguments are often secrets: of a program its name is told.
fn without_arguments(process: &Process) -> Value {
    let mut told = json!(process);
    let name = process.command.first().cloned();
    if let Some(fields) = told.as_object_mut() {
        fields.insert("command".to_owned(), json!(name.into_iter().collect::<Vec<_>>()));
    }
    told
}

/// Where the node's own files are.
struct NodeFiles {
    state_dir: PathBuf,
    /// Of the daemon, where it is a file.
    daemon_log: Option<PathBuf>,
}

impl NodeFiles {
    /// As the daemon says; without one, as the record of a development cluster or the system has them.
    fn of(settings: &Value, client: Option<&Client>, global: &Global) -> NodeFiles {
        let places = global.places();
        let records = places.dev_names().into_iter().filter_map(|name| places.dev_record(&name).ok().flatten());
        let socket = client.and_then(Client::socket);
        let dev = records.flat_map(|cluster| cluster.nodes).find(|node| Some(node.socket.as_path()) == socket);
        let said = settings.get("state_dir").and_then(Value::as_str).map(PathBuf::from);
        let state_dir = said.or_else(|| dev.as_ref().map(|node| node.state_dir.clone())).unwrap_or(places.state);
        NodeFiles { state_dir, daemon_log: dev.map(|node| node.log) }
    }

    fn add_logs(&self, report: &mut Report) {
        for (name, text) in machine::logs(&self.state_dir.join("log")) {
            report.add(format!("logs/{name}"), text);
        }
        let dcs = std::fs::read_dir(self.state_dir.join("dcs")).into_iter().flatten().flatten();
        for dc in dcs {
            let number = dc.file_name().to_string_lossy().into_owned();
            for (name, text) in machine::logs(&dc.path().join("log")) {
                report.add(format!("logs/dcs/{number}/{name}"), text);
            }
        }
        match self.daemon_log.as_deref().map(machine::tail).or_else(machine::journal) {
            Some(text) => report.add("logs/daemon.log", text),
            None => report.missing.push("the daemon's log: no service manager keeps it".to_owned()),
        }
    }
}
