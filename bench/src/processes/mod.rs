//! What programs of a container pay for one process table over its nodes, beside the same without a container, in one
//! run and in turn.
//!
//! [`measure`]: each section's measurements.

mod measure;

use std::process::ExitCode;

use clap::ValueEnum;

use crate::Outcome;
use crate::containers::Common;
use crate::containers::results::Part;

#[derive(clap::Args)]
pub struct Arguments {
    /// How long one rate is counted.
    #[arg(long, default_value_t = 0.5, value_parser = crate::seconds)]
    seconds: f64,
    /// How often a service loses its node, by pulling its cable.
    #[arg(long, default_value_t = 12, value_parser = clap::value_parser!(u32).range(1..=1000))]
    losses: u32,
    /// What is measured.
    #[arg(long, value_enum, value_delimiter = ',', default_values_t = Section::value_variants().to_vec())]
    section: Vec<Section>,
    #[command(flatten)]
    common: Common,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
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

pub fn run(arguments: &Arguments) -> Outcome<ExitCode> {
    let dvs = arguments.common.binary()?;
    let results = measure::all(arguments, &dvs)?;
    arguments.common.finish(&results, Part::Processes)
}
