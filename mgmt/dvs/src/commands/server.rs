//! `dvs server`: servers of a container. The processes themselves have the same command, which nobody types.

use clap::{Args, Subcommand};

use super::dc::view;
use super::{Outcome, block_on, daemon, internal, names, print, say};
use crate::cli::Global;

/// Servers of containers: file server, disks
#[derive(Subcommand, Debug)]
#[command(after_help = "\
Where they stand, and why: dvs dc inspect shop.

Examples:
  dvs server move shop fs n2")]
pub enum Command {
    Move(MoveOptions),
    /// What the daemon starts.
    #[command(external_subcommand)]
    Process(Vec<String>),
}

/// Have a server stand on another node
#[derive(Args, Debug)]
#[command(after_help = "\
Programs wait meanwhile, for about a second, and notice nothing else. A file server can stand on each node of its container, \
best beside its disk; likewise the key-value server, where its store is on a disk with copies, disk-_ds. A disk can stand \
where a copy of it has everything; the server whose disk it is goes with it when it stood beside it, unless it was asked for \
elsewhere.

Examples:
  dvs server move shop fs n2
  dvs server move shop disk-root n2      its copy there is the primary from then on")]
pub struct MoveOptions {
    /// Container.
    #[arg(add = names::containers())]
    dc: String,
    /// Server, as dvs dc inspect names it: fs, disk-root.
    server: String,
    /// Node.
    #[arg(add = names::nodes())]
    node: String,
}

pub fn execute(global: &Global, command: &Command) -> Outcome {
    match command {
        Command::Move(MoveOptions { dc, server, node }) => {
            let now = block_on(daemon(global)?.move_server(dc, server, node))??;
            say(&format!("server '{server}' of container '{dc}' stands on {node}"));
            print(|out| view::changed(out, global.output, &now))
        }
        Command::Process(words) => internal::serve(words),
    }
}
