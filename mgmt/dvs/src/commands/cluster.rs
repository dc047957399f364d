//! `dvs cluster`: the cluster as a whole.

mod authority;
pub mod backup;
mod init;
mod level;
mod recovery;

use clap::Subcommand;

use super::Outcome;
use crate::cli::Global;

/// Begin a cluster of several machines, keep a copy of it, bring it back
#[derive(Subcommand, Debug)]
#[command(after_help = "\
Examples:
  dvs cluster init home                on the first machine; then start its daemon
  dvs node token                       there, for each further machine
  dvs node join TOKEN@192.0.2.11       on that machine; then start its daemon
  dvs cluster backup home.backup       a copy of all that the cluster decided
  dvs cluster restore home.backup      its engine is lost: begin it anew of the copy
  dvs cluster rotate-ca                a new authority, while everything goes on")]
pub enum Command {
    Init(Box<init::Options>),
    Backup(backup::Options),
    Restore(Box<recovery::RestoreOptions>),
    Recover(recovery::RecoverOptions),
    MoveEngine(recovery::MoveOptions),
    /// Show in which format the cluster writes, and which releases its nodes run.
    Level,
    /// Show the cluster's authority, and how far a change of it is.
    Authority,
    RotateCa(authority::RotateOptions),
}

impl Command {
    /// It asks no daemon.
    pub fn is_local(&self) -> bool {
        !matches!(self, Command::Backup(_) | Command::Level | Command::Authority | Command::RotateCa(_))
    }
}

pub fn execute(global: &Global, command: &Command) -> Outcome {
    match command {
        Command::Init(options) => init::execute(global, options),
        Command::Backup(options) => backup::execute(global, options),
        Command::Restore(options) => recovery::restore(global, options),
        Command::Recover(options) => recovery::recover(global, options),
        Command::MoveEngine(options) => recovery::move_engine(global, options),
        Command::Level => level::show(global),
        Command::Authority => authority::show(global),
        Command::RotateCa(options) => authority::rotate(global, options),
    }
}
