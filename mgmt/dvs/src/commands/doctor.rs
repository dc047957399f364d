//! `dvs doctor`: what this machine can do, what is wrong with the cluster, and what crashed runs left on it.
//!
//! | part | file |
//! |---|---|
//! | what is shown of a check | `doctor/examined.rs` |
//! | the cluster, asked of the daemon | `doctor/cluster.rs` |
//! | `dvs doctor report` | `doctor/report.rs`, what it looks at on this machine in `doctor/machine.rs` |
//! | secrets that must not be in it | `doctor/secrets.rs` |

mod cluster;
pub mod examined;
mod machine;
mod report;
mod secrets;

use std::io::{self, Write};
use std::process::ExitCode;

use clap::{Args, Subcommand};
use client::Places;

use super::{Outcome, print, say};
use crate::cli::Global;
use crate::dev::clean;
use crate::errors::{Failure, GENERAL};
use crate::output::{self, printable};
use examined::{Examined, State};

/// Check this machine and its cluster, and remove what crashed runs left
#[derive(Args, Debug)]
#[command(
    args_conflicts_with_subcommands = true,
    after_help = "\
Of the machine each check tries the thing itself rather than asking for a version. Of the cluster the node's daemon \
asks all nodes; where no daemon was ever started, nothing is said of a cluster.

Exit status:
  0    all is well, or works less well than it could (degraded)
  1    something needed is missing here, or something of the cluster does not work (broken)
  2    the command line makes no sense

Examples:
  dvs doctor
  dvs doctor -o json | jq '.[] | select(.state != \"ok\")'
  dvs doctor report --out report.tar      what a report of a fault needs
  dvs doctor --clean --dry-run            what would be removed
  dvs doctor --clean"
)]
pub struct Options {
    /// Remove what crashed runs left: clusters, servers, mounts, interfaces, control groups.
    #[arg(long)]
    clean: bool,
    /// With --clean: only say what would be removed.
    #[arg(long, requires = "clean")]
    dry_run: bool,
    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(Subcommand, Debug)]
pub enum Command {
    Report(report::Options),
}

impl Options {
    /// It asks this machine alone, or writes down what is on it.
    pub fn is_local(&self) -> bool {
        self.clean || self.command.is_some()
    }
}

pub fn execute(global: &Global, options: &Options) -> Outcome {
    match &options.command {
        Some(Command::Report(options)) => report::execute(global, options),
        None if options.clean => clean_up(global, options),
        None => check(global),
    }
}

fn clean_up(global: &Global, options: &Options) -> Outcome {
    let places = global.places();
    let failed = |what: &str| Failure::new(what.to_owned()).hint("as root; dvs dev ls says which clusters are in use");
    let found = clean::find(&places).map_err(|cause| failed("cannot look for leftovers").because(&cause))?;
    if found.is_empty() {
        say("nothing is left over");
        return Ok(ExitCode::SUCCESS);
    }
    let mut worst = None;
    for leftover in &found {
        if options.dry_run {
            say(&format!("would remove {leftover}"));
            continue;
        }
        match clean::remove(&places, leftover) {
            Ok(true) => say(&format!("removed {leftover}")),
            Ok(false) => say(&format!("left alone, it is in use again: {leftover}")),
            Err(error) => worst = Some(failed(&format!("could not remove {leftover}")).because(&error)),
        }
    }
    worst.map_or(Ok(ExitCode::SUCCESS), Err)
}

fn check(global: &Global) -> Outcome {
    // Who asks a cluster elsewhere does not ask about this machine.
    let is_elsewhere = global.context_name().is_some();
    let mut checks = if is_elsewhere { Vec::new() } else { of_this_machine(&global.places()) };
    checks.extend(cluster::examine(global));
    print(|out| {
        output::list(out, global.output, &checks)?;
        if global.output.is_for_people() { advice(out, &checks) } else { Ok(()) }
    })?;
    let is_bad = checks.iter().any(|check| matches!(check.state, State::Missing | State::Broken));
    Ok(if is_bad { ExitCode::from(GENERAL) } else { ExitCode::SUCCESS })
}

/// Before there is a second thread: some probes fork.
fn of_this_machine(places: &Places) -> Vec<Examined> {
    let mut checks: Vec<Examined> = sandbox::doctor::checks().into_iter().map(Examined::from).collect();
    checks.push(space(places));
    checks
}

/// Whether the file systems of nodes of this machine have room.
fn space(places: &Places) -> Examined {
    let mut check = Examined::well("disk space", "images, logs and records of nodes");
    for place in [&places.state, &places.run] {
        // Before the first node it is not there, but what it will be made in is.
        let Some(there) = place.ancestors().find(|path| path.exists()) else { continue };
        let Ok(host) = rustix::fs::statvfs(there) else { continue };
        let bytes = |blocks: u64| blocks.saturating_mul(host.f_frsize);
        let (free, reserve) = (bytes(host.f_bavail), vos_api::disk::host_reserve_bytes(bytes(host.f_blocks)));
        if free < reserve + reserve / 8 {
            check.state = State::Degraded;
            check.found = format!("disk full: {} MiB are free in {}", free >> 20, there.display());
            check.what_to_do = "make room there: whoever writes files gets ENOSPC".to_owned();
        }
    }
    check
}

/// Below the table: what was seen and what to do, for everything that is not well.
fn advice(out: &mut impl Write, checks: &[Examined]) -> io::Result<()> {
    for check in checks.iter().filter(|check| check.state != State::Ok) {
        writeln!(out, "\n{}: {}", check.name, printable(&check.found))?;
        if !check.what_to_do.is_empty() {
            writeln!(out, "  try: {}", printable(&check.what_to_do))?;
        }
    }
    Ok(())
}
