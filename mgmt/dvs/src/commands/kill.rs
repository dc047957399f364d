//! `dvs kill`: a signal to processes of a container.

use std::process::ExitCode;

use clap::Args;

use super::{Outcome, block_on, daemon, names, say};
use crate::cli::Global;
use crate::errors::Failure;
use crate::units::{parse_pid, parse_signal};

/// Send a signal to processes of a container
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  dvs kill shop 65600                 ask it to end (TERM)
  dvs kill -s KILL shop 65600 131080  end two of them, on whatever nodes
  dvs kill -s 0 shop 65600            is it there? (exit status 0: yes)")]
pub struct Options {
    /// Signal by name or number.
    #[arg(short, long, value_name = "SIGNAL", default_value = "TERM", value_parser = parse_signal)]
    signal: i32,
    /// Container.
    #[arg(add = names::containers())]
    dc: String,
    /// Processes, from `dvs ps`.
    #[arg(required = true, value_name = "PID", value_parser = parse_pid, add = names::pids())]
    pids: Vec<u32>,
}

pub fn execute(global: &Global, options: &Options) -> Outcome {
    let daemon = daemon(global)?;
    block_on(async {
        let mut failed: Option<Failure> = None;
        for pid in &options.pids {
            if let Err(error) = daemon.signal(&options.dc, *pid, options.signal).await {
                // The others still get theirs; the last failure is the result.
                if let Some(earlier) = failed.replace(error.into()) {
                    say(&format!("dvs: {}", crate::output::printable(&earlier.what)));
                }
            }
        }
        failed.map_or(Ok(ExitCode::SUCCESS), Err)
    })?
}
