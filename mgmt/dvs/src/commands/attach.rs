//! `dvs attach`: back to a program that was left.

use clap::Args;

use super::session::{self, Input, Manner, converse};
use super::{Outcome, block_on, daemon, names};
use crate::cli::Global;
use crate::errors;
use crate::units::parse_pid;

/// Connect to a program that runs
#[derive(Args, Debug)]
#[command(after_help = "\
Shows what the program writes from now on; `dvs logs` has what it wrote before.
Keys, when it has a terminal (`dvs run -t`): Ctrl-P Ctrl-Q leave it again. One without is left with \
--no-input and Ctrl-C, which else ends it. Exit status as with `dvs run`.

Examples:
  dvs attach shop 65600
  dvs attach --no-input shop 65600          only watch")]
pub struct Options {
    /// Do not send anything to it, signals neither.
    #[arg(long)]
    no_input: bool,
    /// Container.
    #[arg(add = names::containers())]
    dc: String,
    /// Process, from `dvs ps`.
    #[arg(value_parser = parse_pid, add = names::pids())]
    pid: u32,
}

pub fn execute(global: &Global, options: &Options) -> Outcome {
    let daemon = daemon(global).map_err(|failure| failure.status(errors::RUN_FAILED))?;
    block_on(async {
        let process = daemon.process(&options.dc, options.pid).await.map_err(errors::of_run)?;
        let manner = match (options.no_input, process.terminal) {
            (true, _) => Manner::Spectator,
            (false, true) => Manner::Terminal,
            (false, false) => Manner::Interactive(Input::Standard),
        };
        session::demand_terminal(&manner, "dvs attach --no-input: only watch")?;
        let session = session::new_session()?;
        let stream = daemon.attach(&options.dc, options.pid, session).await.map_err(errors::of_run)?;
        converse(&daemon, &options.dc, (stream, session), manner, Some(options.pid)).await
    })?
}
