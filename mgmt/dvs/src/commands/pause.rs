//! `dvs pause` and `dvs unpause`: the programs of a container stand still, on all its nodes.

use clap::Args;

use super::dc::view;
use super::several::Containers;
use super::{Outcome, block_on, daemon, print, say};
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
    #[command(flatten)]
    dcs: Containers,
}

/// Have the programs of a container go on where they stood
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  dvs unpause shop")]
pub struct UnpauseOptions {
    #[command(flatten)]
    dcs: Containers,
}

pub fn execute(global: &Global, options: &PauseOptions) -> Outcome {
    options.dcs.each(global, |dc| {
        let paused = block_on(daemon(global)?.pause_dc(dc))??;
        say(&format!("container '{dc}' is paused"));
        print(|out| view::changed(out, global.output, &paused))
    })
}

pub fn execute_unpause(global: &Global, options: &UnpauseOptions) -> Outcome {
    options.dcs.each(global, |dc| {
        let goes_on = block_on(daemon(global)?.unpause_dc(dc))??;
        say(&format!("container '{dc}' goes on"));
        print(|out| view::changed(out, global.output, &goes_on))
    })
}
