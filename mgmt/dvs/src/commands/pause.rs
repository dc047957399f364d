//! `dvs pause` and `dvs unpause`: the programs of a container stand still, on all its nodes.

use clap::Args;

use super::dc::view;
use super::{Outcome, block_on, daemon, names, print, say};
use crate::cli::Global;

/// Have all programs of a container stand still
#[derive(Args, Debug)]
#[command(after_help = "\
They keep their memory, files, connections and locks, on all its nodes, and notice nothing but the clock. Services are not \
looked at meanwhile, and nothing begins in it: run, exec and cp are refused. dvs ps, logs, attach and kill work; signals are \
heard when it goes on. dvs stop ends it.

Examples:
  dvs pause shop
  dvs unpause shop")]
pub struct PauseOptions {
    /// Container.
    #[arg(add = names::containers())]
    dc: String,
}

/// Have the programs of a container go on where they stood
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  dvs unpause shop")]
pub struct UnpauseOptions {
    /// Container.
    #[arg(add = names::containers())]
    dc: String,
}

pub fn execute(global: &Global, options: &PauseOptions) -> Outcome {
    let paused = block_on(daemon(global)?.pause_dc(&options.dc))??;
    say(&format!("container '{}' is paused", options.dc));
    print(|out| view::changed(out, global.output, &paused))
}

pub fn execute_unpause(global: &Global, options: &UnpauseOptions) -> Outcome {
    let goes_on = block_on(daemon(global)?.unpause_dc(&options.dc))??;
    say(&format!("container '{}' goes on", options.dc));
    print(|out| view::changed(out, global.output, &goes_on))
}
