//! `dvs exec`: one more program in a container that runs; beside a process when one is named.

use std::ffi::OsString;

use clap::Args;
use mgmt_api::{ExecRequest, RootFs};

use super::session::{converse, new_session, opened};
use super::{Outcome, block_on, daemon, names, ps, run};
use crate::cli::Global;
use crate::errors;
use crate::units::parse_pid;

/// Start one more program in a container, beside a process of it
#[derive(Args, Debug)]
#[command(after_help = "\
With --beside the program runs on the node of that process and sees the same root directory. \
Without, it is `dvs run`. Options and exit status are those of `dvs run`.

Examples:
  dvs exec -it shop -- bash                            a shell in the container
  dvs exec -it shop --beside 65600 -- sh               a shell where process 65600 lives
  dvs exec shop --beside 65600 -- cat /etc/os-release  what that process sees")]
pub struct Options {
    #[command(flatten)]
    start: run::Start,
    /// Process whose node and root directory to use, from `dvs ps`.
    #[arg(short, long, value_name = "PID", value_parser = parse_pid, add = names::pids())]
    beside: Option<u32>,
    /// Node of the container to run on [default: its first one].
    #[arg(short, long, conflicts_with = "beside", add = names::nodes())]
    node: Option<String>,
    /// Container.
    #[arg(add = names::containers())]
    dc: String,
    /// Program and its arguments.
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true, value_name = "PROGRAM")]
    argv: Vec<OsString>,
}

pub fn execute(global: &Global, options: Options) -> Outcome {
    let Options { start, beside, node, dc, argv } = options;
    let Some(pid) = beside else {
        return run::execute(
            global,
            run::Options { start, node, root: None, spread: None, volume: Vec::new(), dc, argv },
        );
    };
    let manner = start.manner();
    start.demand_terminal()?;
    let request = ExecRequest { pid, run: start.request(argv, None, RootFs::Host) };
    let daemon = daemon(global).map_err(|failure| failure.status(errors::RUN_FAILED))?;
    if request.run.detach {
        let started = block_on(daemon.exec_detached(&dc, &request))?.map_err(errors::of_run)?;
        return ps::print_started(global.output, &started);
    }
    block_on(async {
        let session = new_session()?;
        let stream = opened(&daemon, &dc, daemon.exec(&dc, &request, session)).await.map_err(errors::of_run)?;
        converse(&daemon, &dc, (stream, session), manner, None).await
    })?
}
