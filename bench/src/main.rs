//! Round trips of M3-IPC beside those of what programs on Linux use today, in the same run and in turn.
//!
//! A *round* measures every mechanism once in every placement; ratios are made within a round, so that what the machine does to one
//! it did to its neighbours as well. Client and server are processes of their own ([`role`]); the orchestrator ([`run`]) only starts
//! them and reads what they report. A round trip is 64 bytes there and 64 bytes back.
//!
//! - [`mechanism`]: what is compared. - [`places`]: where the processes run. - [`figures`]: what a measurement gives, medians, ratios, bars.
//! - [`table`]: how it is shown.
//!
//! Not here yet: peers that bring libraries (iceoryx2, ZeroMQ, gRPC), bulk transfers, two nodes.

mod figures;
mod mechanism;
mod places;
mod role;
mod run;
mod table;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

use crate::mechanism::Mechanism;
use crate::places::Placement;

pub type Outcome<T> = Result<T, Box<dyn std::error::Error + Send + Sync>>;

#[derive(Parser)]
#[command(name = "dvs-bench", about = "Measures M3-IPC beside other mechanisms, in one run, in turn.", after_help = EXAMPLES)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

const EXAMPLES: &str = "Examples:
  dvs-bench ipc                                          everything, about three minutes
  dvs-bench ipc --only pipe,m3ipc-adaptive --placement free --pairs 1 --rounds 9
  dvs-bench ipc --json figures.json --check              for a machine to read; exit status 1 when a bar is not reached

Close other programs first: two of the three placements want both CPUs.";

#[derive(Subcommand)]
enum Command {
    /// Round trips of 64 bytes between processes of one machine.
    Ipc(IpcArguments),
    /// One of the two processes of a pair.
    #[command(hide = true)]
    Role(role::Arguments),
}

#[derive(clap::Args)]
pub struct IpcArguments {
    /// How often everything is measured; medians are over rounds.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=99))]
    rounds: u32,
    /// How long one measurement counts round trips. A third of it more goes into latencies.
    #[arg(long, default_value_t = 0.6, value_parser = seconds)]
    seconds: f64,
    /// These alone (see the table for the names).
    #[arg(long, value_delimiter = ',')]
    only: Vec<Mechanism>,
    /// Where client and server run.
    #[arg(long, value_delimiter = ',', default_values_t = [Placement::Same, Placement::Two, Placement::Free])]
    placement: Vec<Placement>,
    /// How many pairs at a time; more than one are left to the scheduler.
    #[arg(long, value_delimiter = ',', default_values_t = [1, 4], value_parser = clap::value_parser!(u32).range(1..=64))]
    pairs: Vec<u32>,
    /// How many clients each server has; more than one are for m3ipc and for SEQPACKET (with epoll) alone, one server, placement free.
    #[arg(long, value_delimiter = ',', default_values_t = [1, 64], value_parser = clap::value_parser!(u32).range(1..=256))]
    clients: Vec<u32>,
    /// Writes every figure of every round to this file.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Ends with status 1 when a bar is not reached or was not measured, and names it.
    #[arg(long)]
    check: bool,
}

fn seconds(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(seconds) if (0.05..=60.0).contains(&seconds) => Ok(seconds),
        _ => Err("a number of seconds from 0.05 to 60".to_owned()),
    }
}

fn main() -> ExitCode {
    let done = match Cli::parse().command {
        Command::Ipc(arguments) => ipc(&arguments),
        Command::Role(arguments) => role::run(&arguments).map(|()| ExitCode::SUCCESS),
    };
    done.unwrap_or_else(|error| {
        eprintln!("dvs-bench: {error}");
        ExitCode::FAILURE
    })
}

fn ipc(arguments: &IpcArguments) -> Outcome<ExitCode> {
    let figures = run::all(arguments)?;
    print!("{}", table::of(&figures));
    let bars = figures.bars();
    print!("{}", table::of_bars(&bars));
    if let Some(path) = &arguments.json {
        std::fs::write(path, serde_json::to_vec_pretty(&figures)?)
            .map_err(|error| format!("cannot write {}: {error}", path.display()))?;
    }
    let short: Vec<&figures::Reached> = bars.iter().filter(|bar| !bar.is_reached()).collect();
    if !arguments.check || short.is_empty() {
        return Ok(ExitCode::SUCCESS);
    }
    for bar in short {
        eprintln!("dvs-bench: not reached: {bar}");
    }
    Ok(ExitCode::FAILURE)
}
