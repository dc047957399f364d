//! `dvs logs`: what a program wrote, also after it ended.

use std::io::Write;
use std::process::ExitCode;

use clap::Args;
use client::LogQuery;
use mgmt_api::Bytes;
use serde::Serialize;

use super::{Outcome, block_on, daemon, names};
use crate::cli::Global;
use crate::errors::Failure;
use crate::output::Format;
use crate::units::parse_pid;

/// Show what a program wrote
#[derive(Args, Debug)]
#[command(after_help = "\
The node keeps a bounded log of every program that `dvs run` started; the oldest part goes first.
It is printed as it is; with -o json each line is an object: {\"line\": \"text\"}, or \
{\"line\": {\"hex\": \"ff00\"}} when it is no UTF-8.

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
    #[arg(add = names::containers())]
    dc: String,
    /// Process, from `dvs ps --all`.
    #[arg(value_parser = parse_pid)]
    pid: u32,
}

/// Longest line of a log that is one object; longer ones are several.
const LINE_BYTES_MAX: usize = 1 << 20;

/// A line for programs.
#[derive(Serialize)]
struct Line {
    line: Bytes,
}

fn print_line(out: &mut impl Write, line: Vec<u8>) -> std::io::Result<()> {
    serde_json::to_writer(&mut *out, &Line { line: line.into() })?;
    writeln!(out)
}

/// Takes lines out of a stream of bytes.
#[derive(Default)]
struct Lines {
    begun: Vec<u8>,
}

impl Lines {
    /// The lines that are whole.
    fn push(&mut self, bytes: &[u8]) -> Vec<Vec<u8>> {
        let mut whole = Vec::new();
        for byte in bytes {
            match byte {
                b'\n' => whole.push(std::mem::take(&mut self.begun)),
                byte => self.begun.push(*byte),
            }
            if self.begun.len() == LINE_BYTES_MAX {
                whole.push(std::mem::take(&mut self.begun));
            }
        }
        whole
    }

    /// What came after the last end of a line.
    fn rest(self) -> Option<Vec<u8>> {
        Some(self.begun).filter(|begun| !begun.is_empty())
    }
}

pub fn execute(global: &Global, options: &Options) -> Outcome {
    let query = LogQuery { follow: options.follow, tail: options.tail };
    show(global, &options.dc, options.pid, query)
}

/// What a program wrote, as it is asked for.
pub fn show(global: &Global, dc: &str, pid: u32, query: LogQuery) -> Outcome {
    let daemon = daemon(global)?;
    block_on(async {
        let mut log = daemon.logs(dc, pid, query).await?;
        let mut out = std::io::stdout();
        let mut lines = Lines::default();
        while let Some(bytes) = log.next().await? {
            match global.output {
                Format::Json => lines.push(&bytes).into_iter().try_for_each(|line| print_line(&mut out, line))?,
                Format::Table | Format::Yaml | Format::Name => out.write_all(&bytes)?,
            }
            out.flush()?;
        }
        lines.rest().into_iter().try_for_each(|line| print_line(&mut out, line))?;
        out.flush()?;
        Ok::<ExitCode, Failure>(ExitCode::SUCCESS)
    })?
}
