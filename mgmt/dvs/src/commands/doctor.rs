//! `dvs doctor`: what this machine can do, and what crashed runs left on it.

use std::io::{self, Write};
use std::process::ExitCode;

use clap::Args;
use client::Places;
use sandbox::doctor::{Check, State};

use super::{Outcome, print, say};
use crate::cli::Global;
use crate::dev::clean;
use crate::errors::{Failure, GENERAL};
use crate::output::{self, Format, Row, printable};

/// Check this machine, and remove what crashed runs left
#[derive(Args, Debug)]
#[command(after_help = "\
Each check tries the thing itself rather than asking for a version. Exit status 1: something \
needed is missing.

Examples:
  dvs doctor
  dvs doctor --clean --dry-run     what would be removed
  dvs doctor --clean")]
pub struct Options {
    /// Remove what crashed runs left: clusters, servers, mounts, interfaces, control groups.
    #[arg(long)]
    clean: bool,
    /// With --clean: only say what would be removed.
    #[arg(long, requires = "clean")]
    dry_run: bool,
}

pub fn execute(global: &Global, options: &Options) -> Outcome {
    if options.clean {
        return clean_up(global, options);
    }
    check(global)
}

fn clean_up(global: &Global, options: &Options) -> Outcome {
    let places = global.places();
    let failed = |what: &str| Failure::new(what.to_owned());
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
    let mut checks = sandbox::doctor::checks();
    checks.push(space(&global.places()));
    print(|out| {
        output::list(out, global.output, &checks)?;
        if global.output == Format::Table { advice(out, &checks) } else { Ok(()) }
    })?;
    let missing = checks.iter().any(|check| check.state == State::Missing);
    Ok(if missing { ExitCode::from(GENERAL) } else { ExitCode::SUCCESS })
}

/// Whether the file systems of nodes of this machine have room.
fn space(places: &Places) -> Check {
    let mut check = Check {
        name: "disk space",
        state: State::Ok,
        why_needed: "images, logs and records of nodes",
        found: String::new(),
        what_to_do: "",
    };
    for place in [&places.state, &places.run] {
        // Before the first node it is not there, but what it will be made in is.
        let Some(there) = place.ancestors().find(|path| path.exists()) else { continue };
        let Ok(host) = rustix::fs::statvfs(there) else { continue };
        let bytes = |blocks: u64| blocks.saturating_mul(host.f_frsize);
        let (free, reserve) = (bytes(host.f_bavail), vos_api::disk::host_reserve_bytes(bytes(host.f_blocks)));
        if free < reserve + reserve / 8 {
            check.state = State::Degraded;
            check.found = format!("disk full: {} MiB are free in {}", free >> 20, there.display());
            check.what_to_do = "make room there: whoever writes files gets ENOSPC";
        }
    }
    check
}

/// Below the table: what was seen and what to do, for everything that is not well.
fn advice(out: &mut impl Write, checks: &[Check]) -> io::Result<()> {
    for check in checks.iter().filter(|check| check.state != State::Ok) {
        writeln!(out, "\n{}: {}", check.name, printable(&check.found))?;
        if !check.what_to_do.is_empty() {
            writeln!(out, "  try: {}", check.what_to_do)?;
        }
    }
    Ok(())
}

impl Row for Check {
    const HEADINGS: &'static [&'static str] = &["CHECK", "STATE", "NEEDED FOR"];

    fn cells(&self) -> Vec<String> {
        let state = match self.state {
            State::Ok => "ok",
            State::Degraded => "degraded",
            State::Missing => "missing",
        };
        vec![self.name.to_owned(), state.to_owned(), self.why_needed.to_owned()]
    }

    fn name(&self) -> String {
        self.name.to_owned()
    }
}
