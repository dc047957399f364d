//! `dvs logs`: what a program wrote, also after it ended.

use std::io::Write;
use std::process::ExitCode;

use clap::Args;
use client::LogQuery;

use super::{Outcome, block_on, daemon};
use crate::cli::Global;
use crate::errors::Failure;
use crate::units::parse_pid;

/// Show what a program wrote
#[derive(Args, Debug)]
#[command(after_help = "\
The node keeps a bounded log of every program that `dvs run` started; the oldest part goes first.

Examples:
  dvs logs shop 65600              all there is
  dvs logs --tail 20 -f shop 65600 the last 20 lines, and what follows")]
pub struct Options {
    /// Go on until the program ends.
    #[arg(short, long)]
    follow: bool,
    /// Only the last lines.
    #[arg(short = 'n', long, value_name = "LINES")]
    tail: Option<u64>,
    /// Container.
    dc: String,
    /// Process, from `dvs ps --all`.
    #[arg(value_parser = parse_pid)]
    pid: u32,
}

pub fn execute(global: &Global, options: &Options) -> Outcome {
    let daemon = daemon(global)?;
    block_on(async {
        let query = LogQuery { follow: options.follow, tail: options.tail };
        let mut log = daemon.logs(&options.dc, options.pid, query).await?;
        let mut out = std::io::stdout();
        while let Some(bytes) = log.next().await? {
            out.write_all(&bytes)?;
            out.flush()?;
        }
        Ok::<ExitCode, Failure>(ExitCode::SUCCESS)
    })?
}
