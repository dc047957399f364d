//! `dvs metrics`: the numbers of a node, as whoever collects them gets them.

use std::io::Write;

use clap::Args;

use super::{Outcome, block_on, daemon, names, print};
use crate::cli::Global;

/// Print numbers about a node: its daemon, engine, links, containers and disks
#[derive(Args, Debug)]
#[command(after_help = "\
The form is OpenMetrics text, whatever --output says. Collectors fetch the same from /metrics: over the daemon's \
socket, or over the node's API port (7420) with the token of a viewer (dvs access token).

Examples:
  dvs metrics                         of the node of the daemon that answers
  dvs metrics n2                      of another node
  dvs metrics | grep dvs_link_state
  curl --unix-socket /run/dvs/dvsd.sock http://dvs/metrics
  curl --cacert ca.crt -H \"Authorization: Bearer $TOKEN\" https://192.0.2.11:7420/metrics")]
pub struct Options {
    /// Name of the node, from `dvs node ls` [default: that of the daemon that answers].
    #[arg(add = names::nodes())]
    node: Option<String>,
}

pub fn execute(global: &Global, options: &Options) -> Outcome {
    let text = block_on(daemon(global)?.metrics(options.node.as_deref()))??;
    print(|out| out.write_all(text.as_bytes()))
}
