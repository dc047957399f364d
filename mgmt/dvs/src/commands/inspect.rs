//! `dvs inspect`: whatever has a name or a number.

use clap::Args;
use mgmt_api::ErrorKind;

use super::{Outcome, block_on, daemon, dc, names, node, print, service};
use crate::cli::Global;
use crate::errors::Failure;
use crate::output;
use crate::units::parse_pid;

/// Show a container, a node, or something of a container
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  dvs inspect shop               a container: dvs dc inspect
  dvs inspect n1                 a node: dvs node inspect
  dvs inspect shop 65600         a process
  dvs inspect shop web           a service and its instances
  dvs inspect shop -o json       likewise for programs")]
pub struct Options {
    /// Container or node; of both, the container.
    #[arg(id = "dc", value_name = "NAME", add = names::containers())]
    name: String,
    /// Process or service of the container.
    #[arg(value_name = "PID|SERVICE")]
    part: Option<String>,
}

pub fn execute(global: &Global, options: Options) -> Outcome {
    let Options { name, part } = options;
    let Some(part) = part else { return whole(global, name) };
    let daemon = daemon(global)?;
    if let Ok(pid) = parse_pid(&part) {
        let process = block_on(daemon.process(&name, pid))??;
        return print(|out| output::list(out, global.output, &[process]));
    }
    let found = block_on(daemon.service(&name, &part))??;
    print(|out| output::one(out, global.output, &found, service::view))
}

fn whole(global: &Global, name: String) -> Outcome {
    let daemon = daemon(global)?;
    if block_on(async { exists(daemon.dc(&name).await) })?? {
        return dc::execute(global, dc::Command::Inspect { dc: name });
    }
    if block_on(async { exists(daemon.node(&name).await) })?? {
        return node::execute(global, &node::Command::Inspect { node: name });
    }
    Err(Failure::new(format!("there is no container and no node '{name}'")).hint("dvs dc ls, dvs node ls"))
}

fn exists<T>(found: Result<T, client::Error>) -> Result<bool, Failure> {
    match found {
        Ok(_) => Ok(true),
        Err(client::Error::Refused(body)) if body.kind == ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error.into()),
    }
}
