//! What is measured in containers of a development cluster, whatever is measured.
//!
//! - [`testbed`]: a development cluster of this run alone.
//! - [`program`]: what runs natively, and in a container.
//! - [`files`]: the programs among them that write files.
//! - [`results`]: what was measured, what is to be reached, and how it is shown.

mod files;
pub mod program;
pub mod results;
pub mod testbed;

use std::path::{Path, PathBuf};

use serde::de::DeserializeOwned;

use crate::Outcome;
use crate::figures::Spread;

/// Figures that a program wrote.
pub fn read<T: DeserializeOwned>(line: &str) -> Outcome<T> {
    Ok(serde_json::from_str(line).map_err(|error| format!("figures that make no sense ({error}): {line}"))?)
}

pub fn median(values: Vec<f64>) -> Outcome<f64> {
    Ok(Spread::of(values).ok_or("nothing was measured")?.median)
}

/// The binary whose cluster is measured.
pub fn binary(dvs: &Path) -> Outcome<PathBuf> {
    Ok(dvs.canonicalize().map_err(|error| {
        format!("{} is not there ({error}); make build makes it, --dvs names another one", dvs.display())
    })?)
}
