//! What programs of a container pay for one process table over its nodes, beside the same without a container, in one
//! run and in turn.
//!
//! [`measure`]: each section's measurements.

mod measure;

use std::path::PathBuf;
use std::process::ExitCode;

use crate::Outcome;
use crate::containers;
use crate::containers::results::Part;

#[derive(clap::Args)]
pub struct Arguments {
    /// How often everything is measured; medians are over rounds.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=99))]
    rounds: u32,
    /// How long one rate is counted.
    #[arg(long, default_value_t = 0.5, value_parser = crate::seconds)]
    seconds: f64,
    /// How often a service loses its node, by pulling its cable.
    #[arg(long, default_value_t = 12, value_parser = clap::value_parser!(u32).range(1..=1000))]
    losses: u32,
    /// What is measured.
    #[arg(long, value_delimiter = ',', default_values_t = Section::ALL)]
    section: Vec<Section>,
    /// The binary whose cluster is measured.
    #[arg(long, default_value = "../target/x86_64-unknown-linux-gnu/debug/dvs")]
    dvs: PathBuf,
    /// Writes every figure of every round to this file (docs/design/bench.md says what is what).
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Ends with status 1 when a bar is not reached or was not measured, and names it.
    #[arg(long)]
    check: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
pub enum Section {
    /// What a container uses that does nothing.
    Idle,
    /// fork, exec, pipes, files, local signals.
    Basics,
    /// `ps` before many processes.
    Table,
    /// Signals to another node.
    Signals,
    /// `on NODE -- true`, beside ssh with a connection that is kept.
    Jobs,
    /// Bytes through `on`.
    Bytes,
    /// Services whose node is lost.
    Services,
}

impl Section {
    const ALL: [Section; 7] = [
        Section::Idle,
        Section::Basics,
        Section::Table,
        Section::Signals,
        Section::Jobs,
        Section::Bytes,
        Section::Services,
    ];
}

impl std::fmt::Display for Section {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        use clap::ValueEnum;
        f.write_str(self.to_possible_value().as_ref().map_or("", |value| value.get_name()))
    }
}

pub fn run(arguments: &Arguments) -> Outcome<ExitCode> {
    let dvs = containers::binary(&arguments.dvs)?;
    let results = measure::all(arguments, &dvs)?;
    print!("{}", results.table());
    crate::finish(&results, &results.bars(Part::Processes), arguments.json.as_deref(), arguments.check)
}
