//! `dvs doctor`: what this machine can do, and what crashed runs left on it.

use std::process::ExitCode;

use clap::Args;

use super::{Outcome, print, say};
use crate::cli::Global;
use crate::dev::clean;
use crate::errors::Failure;
use crate::output;

/// Check this machine, and remove what crashed runs left
#[derive(Args, Debug)]
#[command(after_help = "\
Each check tries the thing itself rather than asking for a version. Exit status 1: something needed is missing.

Examples:
  dvs doctor
  dvs doctor --clean --dry-run     what would be removed
  dvs doctor --clean")]
pub struct Options {
    /// Remove what crashed runs left: clusters that do not run, control groups.
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
    let _ = (global, print(|_| Ok(()))?);
    todo!()
}
