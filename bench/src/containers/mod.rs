//! What is measured in containers of a development cluster, whatever is measured.
//!
//! - [`testbed`]: a development cluster of this run alone.
//! - [`program`]: what runs natively, and in a container.
//! - [`files`]: the programs among them that write files.
//! - [`tree`]: those that do what people do with many small files.
//! - [`tools`]: those that start programs of others.
//! - [`nginx`]: web servers.
//! - [`results`]: what was measured, what is to be reached, and how it is shown.

mod files;
pub mod nginx;
pub mod program;
pub mod results;
pub mod testbed;
mod tools;
pub mod tree;

use std::path::PathBuf;
use std::process::ExitCode;

use serde::de::DeserializeOwned;

use crate::Outcome;
use crate::figures::Spread;
use results::{Part, Results};

/// What is told to each part of the bench that measures containers.
#[derive(clap::Args)]
pub struct Common {
    /// How often everything is measured; medians are over rounds.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=99))]
    pub rounds: u32,
    /// The binary whose cluster is measured.
    #[arg(long, default_value = "../target/x86_64-unknown-linux-gnu/release/dvs")]
    dvs: PathBuf,
    /// Writes every figure of every round to this file (docs/design/bench.md says what is what).
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Ends with status 1 when a bar is not reached or was not measured, and names it.
    #[arg(long)]
    check: bool,
}

impl Common {
    pub fn binary(&self) -> Outcome<PathBuf> {
        Ok(self.dvs.canonicalize().map_err(|error| {
            format!("{} is not there ({error}); make build makes it, --dvs names another one", self.dvs.display())
        })?)
    }

    pub fn finish(&self, results: &Results, part: Part) -> Outcome<ExitCode> {
        print!("{}", results.table());
        crate::finish(results, &results.bars(part), self.json.as_deref(), self.check)
    }
}

/// Figures that a program wrote.
pub fn read<T: DeserializeOwned>(line: &str) -> Outcome<T> {
    Ok(serde_json::from_str(line).map_err(|error| format!("figures that make no sense ({error}): {line}"))?)
}

pub fn median(values: Vec<f64>) -> Outcome<f64> {
    Ok(Spread::of(values).ok_or("nothing was measured")?.median)
}
