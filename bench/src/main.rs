//! M3-IPC beside what programs on Linux use today, in the same run and in turn.
//!
//! A *round* measures every mechanism once in every placement; ratios are made within a round, so that what the machine
//! does to one it did to its neighbours as well. Client and server are processes of their own ([`role`]); the
//! orchestrator ([`run`]) only starts them and reads what they report.
//!
//! - [`mechanism`]: what is compared.
//! - [`places`]: where the processes run.
//! - [`nodes`]: two nodes on this machine.
//! - [`death`]: how soon a dead peer is noticed.
//! - [`containers`]: clusters, programs and results of what is measured in containers.
//! - [`processes`]: what programs pay for one process table over nodes.
//! - [`disks`]: what it costs that a disk survives the loss of its node, and disks over NBD.
//! - [`trees`]: files whose servers are on another node.
//! - [`reach`]: ways in and out of a container, and the commands that people type most.
//! - [`figures`]: what a measurement gives, medians, ratios.
//! - [`bars`]: what is to be reached.
//! - [`table`]: how it is shown.
//! - [`ending`]: what is taken away when a signal ends the run.

mod bars;
mod containers;
mod death;
mod disks;
mod ending;
mod figures;
mod mechanism;
mod nodes;
mod places;
mod processes;
mod reach;
mod role;
mod run;
mod table;
mod trees;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Parser, Subcommand};

use crate::bars::Reached;
use crate::figures::Figures;
use crate::mechanism::{Mechanism, Site};
use crate::places::Placement;

pub type Outcome<T> = Result<T, Box<dyn std::error::Error + Send + Sync>>;

#[derive(Parser)]
#[command(name = "dvs-bench", about = "Measures M3-IPC beside other mechanisms, in one run, in turn.", after_help = EXAMPLES)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

const EXAMPLES: &str = "Examples:
  dvs-bench ipc                                          one machine, about eight minutes
  dvs-bench proxy                                        two nodes on this machine, about three minutes; needs root
  dvs-bench proc                                         a cluster of three nodes on this machine, ten minutes; needs root
  dvs-bench disk                                         a cluster of three nodes on this machine, ten minutes; needs root
  dvs-bench fs                                           a cluster of three nodes on this machine, twenty minutes; needs root
  dvs-bench reach                                        a cluster of three nodes on this machine, four minutes; needs root
  dvs-bench ipc --only pipe,m3ipc-adaptive --placement free --pairs 1 --clients 1 --rounds 9
  dvs-bench ipc --section death
  dvs-bench ipc --json figures.json --check              for a machine to read; exit status 1 when a bar is not reached

Close other programs first: most placements want both CPUs.";

#[derive(Subcommand)]
enum Command {
    /// Messages, copies and deaths between processes of one machine.
    Ipc(IpcArguments),
    /// Messages and streams between two nodes: network namespaces on this machine, with a proxy each.
    Proxy(Common),
    /// Processes, signals, jobs and services of a container over three nodes, beside the same without one.
    Proc(processes::Arguments),
    /// Files of a container whose disk has two copies, beside one with one copy and the machine's own file system.
    Disk(disks::Arguments),
    /// Files of a container whose servers are on another node, beside a FUSE pass-through.
    Fs(trees::Arguments),
    /// Published ports and the way out beside the kernel's forwarding; `dvs run` and `dvs ps`.
    Reach(reach::Arguments),
    /// What of it runs natively or in the container.
    #[command(hide = true, subcommand)]
    Program(containers::program::Program),
    /// One of the two processes of a pair.
    #[command(hide = true)]
    Role(role::Arguments),
    /// The proxy of a node.
    #[command(hide = true)]
    Link,
    /// Kills servers and notes when it was told.
    #[command(hide = true)]
    Mourn(death::MournArguments),
    /// A server that never answers.
    #[command(hide = true)]
    Victim(Site),
    /// Keeps a CPU busy.
    #[command(hide = true)]
    Busy {
        #[arg(long)]
        cpu: usize,
    },
}

#[derive(clap::Args)]
pub struct Common {
    /// How often everything is measured; medians are over rounds.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=99))]
    rounds: u32,
    /// How long one measurement counts round trips. A third of it more goes into latencies.
    #[arg(long, default_value_t = 0.6, value_parser = seconds)]
    seconds: f64,
    /// These alone.
    #[arg(long, value_delimiter = ',')]
    only: Vec<Mechanism>,
    /// Where client and server run. Two nodes have no placement 'two': their proxies need CPUs as well.
    #[arg(long, value_delimiter = ',', default_values_t = [Placement::Same, Placement::Two, Placement::Free])]
    placement: Vec<Placement>,
    /// How many clients each server has; more than one are for a few mechanisms, with one server, placement free.
    #[arg(long, value_delimiter = ',', default_values_t = [1, 64], value_parser = clap::value_parser!(u32).range(1..=256))]
    clients: Vec<u32>,
    /// Writes every figure of every round to this file (docs/design/bench.md says what is what).
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Ends with status 1 when a bar is not reached or was not measured, and names it.
    #[arg(long)]
    check: bool,
}

#[derive(clap::Args)]
pub struct IpcArguments {
    #[command(flatten)]
    common: Common,
    /// How many pairs at a time; more than one are left to the scheduler.
    #[arg(long, value_delimiter = ',', default_values_t = [1, 4], value_parser = clap::value_parser!(u32).range(1..=64))]
    pairs: Vec<u32>,
    /// What is measured.
    #[arg(long, value_delimiter = ',', default_values_t = [Section::Messages, Section::Copies, Section::Death])]
    section: Vec<Section>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
pub enum Section {
    /// Round trips of 64 bytes.
    Messages,
    /// 64 KiB at a time.
    Copies,
    /// From the kill of a peer to the error.
    Death,
}

impl std::fmt::Display for Section {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Section::Messages => "messages",
            Section::Copies => "copies",
            Section::Death => "death",
        })
    }
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
        Command::Proxy(arguments) => proxy(&arguments),
        Command::Proc(arguments) => processes::run(&arguments),
        Command::Disk(arguments) => disks::run(&arguments),
        Command::Fs(arguments) => trees::run(&arguments),
        Command::Reach(arguments) => reach::run(&arguments),
        Command::Program(program) => containers::program::run(&program).map(|()| ExitCode::SUCCESS),
        Command::Role(arguments) => role::run(&arguments).map(|()| ExitCode::SUCCESS),
        Command::Link => Ok(nodes::link()),
        Command::Mourn(arguments) => death::mourn(&arguments).map(|()| ExitCode::SUCCESS),
        Command::Victim(site) => death::be_victim(&site).map(|()| ExitCode::SUCCESS),
        Command::Busy { cpu } => death::be_busy(cpu).map(|()| ExitCode::SUCCESS),
    };
    done.unwrap_or_else(|error| {
        eprintln!("dvs-bench: {error}");
        ExitCode::FAILURE
    })
}

fn ipc(arguments: &IpcArguments) -> Outcome<ExitCode> {
    let figures = run::one_machine(arguments)?;
    tell(&arguments.common, &figures, &bars::local(&figures))
}

fn proxy(arguments: &Common) -> Outcome<ExitCode> {
    let figures = run::two_nodes(arguments)?;
    tell(arguments, &figures, &bars::remote(&figures))
}

fn tell(arguments: &Common, figures: &Figures, bars: &[Reached]) -> Outcome<ExitCode> {
    print!("{}", table::of(figures));
    finish(figures, bars, arguments.json.as_deref(), arguments.check)
}

/// Says what was reached, writes the figures down, and fails where that is wanted.
fn finish(figures: &impl serde::Serialize, bars: &[Reached], json: Option<&Path>, check: bool) -> Outcome<ExitCode> {
    print!("{}", table::of_bars(bars));
    if let Some(path) = json {
        std::fs::write(path, serde_json::to_vec_pretty(figures)?)
            .map_err(|error| format!("cannot write {}: {error}", path.display()))?;
    }
    let short: Vec<&Reached> = bars.iter().filter(|bar| !bar.is_reached()).collect();
    if !check || short.is_empty() {
        return Ok(ExitCode::SUCCESS);
    }
    for bar in short {
        eprintln!("dvs-bench: not reached: {bar}");
    }
    Ok(ExitCode::FAILURE)
}
