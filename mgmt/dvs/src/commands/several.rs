//! Several containers in one line, as people know it: `dvs start shop store`.

use std::process::ExitCode;

use clap::Args;

use super::{Outcome, block_on, daemon, names, say};
use crate::cli::Global;
use crate::errors::Failure;
use crate::output::printable;

#[derive(Args, Debug)]
pub struct Containers {
    /// Container.
    #[arg(add = names::containers())]
    pub dc: String,
    /// Further ones.
    #[arg(value_name = "DC", add = names::containers())]
    pub more: Vec<String>,
}

/// Does it with each. Before the first one all must be there: a name too many must not be noticed halfway.
pub fn each(global: &Global, first: &str, more: &[String], mut work: impl FnMut(&str) -> Outcome) -> Outcome {
    if more.is_empty() {
        return work(first);
    }
    let daemon = daemon(global)?;
    let all = || std::iter::once(first).chain(more.iter().map(String::as_str));
    block_on(async {
        for name in all() {
            daemon.dc(name).await?;
        }
        Ok::<_, Failure>(())
    })??;
    let mut failed: Option<Failure> = None;
    for name in all() {
        if let Err(failure) = work(name) {
            // The others still get theirs; the last failure is the result.
            if let Some(earlier) = failed.replace(failure) {
                say(&format!("dvs: {}", printable(&earlier.what)));
            }
        }
    }
    failed.map_or(Ok(ExitCode::SUCCESS), Err)
}

impl Containers {
    pub fn each(&self, global: &Global, work: impl FnMut(&str) -> Outcome) -> Outcome {
        each(global, &self.dc, &self.more, work)
    }
}
