//! `dvs dc`: containers.

pub mod backup;
pub mod create;
mod export;
mod restore;
mod set;
pub mod view;

use clap::{Args, Subcommand};
use client::{BeforeDelete, Data};

use super::several::Containers;
use super::{Gone, Outcome, block_on, daemon, done, names, print, say};
use crate::cli::Global;
use crate::output;

const SCHEMA: &str = include_str!("../../../../docs/dc.schema.json");

/// Create, start, stop and show containers
#[derive(Subcommand, Debug)]
#[command(
    visible_alias = "dcs",
    after_help = "\
Examples:
  dvs dc create shop --nodes n1,n2,n3 --start      over three nodes, running
  dvs dc ls
  dvs dc inspect shop                              nodes, addresses, servers and why they are there
  dvs dc set shop --memory 2G                      while it runs
  dvs dc add-node shop n4                          over one node more, while it runs
  dvs dc backup shop shop.tar                      its description, keys and files
  dvs dc stop shop && dvs dc delete shop"
)]
pub enum Command {
    Create(Box<create::Options>),
    Start(StartOptions),
    Stop(StopOptions),
    Rename(RenameOptions),
    Set(Box<set::Options>),
    AddNode(AddNodeOptions),
    RemoveNode(RemoveNodeOptions),
    #[command(visible_alias = "rm")]
    Delete(DeleteOptions),
    /// Print a container as a TOML file that describes it, for dvs apply.
    ///
    /// With -o json or yaml in these forms.
    Export {
        /// Container.
        #[arg(add = names::containers())]
        dc: String,
    },
    /// Print what a file may say that describes containers, as a JSON schema for editors.
    ///
    /// With '#:schema ./dc.schema.json' as its first line, an editor that knows TOML completes and checks such a file.
    Schema,
    Backup(backup::Options),
    Restore(restore::Options),
    /// List the containers.
    #[command(visible_alias = "list")]
    Ls,
    /// Show one container: what was asked for, nodes, addresses, servers and why they stand there, problems, channels.
    ///
    /// The channels are those with an end on the node that is asked. LEFT opened a channel; each count is
    /// LEFT's/RIGHT's, and a reply counts as the request it answers.
    #[command(visible_alias = "show")]
    Inspect {
        /// Container.
        #[arg(add = names::containers())]
        dc: String,
    },
}

/// End all programs of a container on all its nodes; its files stay
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  dvs dc stop shop
  dvs dc stop --grace 1 shop      programs have one second between TERM and KILL")]
pub struct StopOptions {
    /// Seconds between TERM and KILL [default: 10].
    #[arg(long, value_name = "SECONDS")]
    grace: Option<u32>,
    /// Container.
    #[arg(add = names::containers())]
    dc: String,
}

/// Let a container span one node more, while it runs
#[derive(Args, Debug)]
#[command(after_help = "\
What runs on its other nodes goes on, and sees the new node by its name. Programs come there by dvs run --node. Addresses, \
PIDs and endpoints of a node stay its own: one that leaves and comes back has the same.

Examples:
  dvs dc add-node shop n4
  dvs dc add-node shop n4 && dvs run shop --node n4 -- hostname")]
pub struct AddNodeOptions {
    /// Container.
    #[arg(add = names::containers())]
    dc: String,
    /// Node of the cluster.
    #[arg(add = names::nodes())]
    node: String,
}

/// Take a node out of a container, while it runs
#[derive(Args, Debug)]
#[command(after_help = "\
Nothing of the container is left there. A node where its file server, its disk or its key-value server stands cannot be taken \
out yet.

Examples:
  dvs dc remove-node shop n4
  dvs dc remove-node --force shop n4      ends the programs there; also when the node does not answer")]
pub struct RemoveNodeOptions {
    /// End its programs there, and take it out also when it does not answer.
    #[arg(short, long)]
    force: bool,
    /// Container.
    #[arg(add = names::containers())]
    dc: String,
    /// Node that it spans.
    #[arg(add = names::nodes())]
    node: String,
}

/// Remove a container and its files
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  dvs dc delete shop
  dvs dc delete --force shop         also when it runs
  dvs dc delete --keep-data shop     the disk images stay on the nodes")]
pub struct DeleteOptions {
    /// Stop it first when it runs.
    #[arg(short, long)]
    force: bool,
    /// Leave the disk images where they are.
    #[arg(long)]
    keep_data: bool,
    #[command(flatten)]
    dcs: Containers,
}

/// Start containers on all their nodes and wait until they run
#[derive(Args, Debug)]
pub struct StartOptions {
    #[command(flatten)]
    dcs: Containers,
}

pub fn start_each(global: &Global, options: &StartOptions) -> Outcome {
    options.dcs.each(global, |dc| start(global, dc))
}

pub fn start(global: &Global, dc: &str) -> Outcome {
    let daemon = daemon(global)?;
    let started = block_on(daemon.start_dc(dc))??;
    say(&format!("container '{dc}' runs on {}", started.spec.nodes.join(", ")));
    print(|out| view::changed(out, global.output, &started))
}

/// Give a container that is stopped another name
#[derive(Args, Debug)]
#[command(after_help = "\
Its files, keys, services, ports and disks are what they were. Its programs find the new name in DVS_DC, and its nodes as \
n1.NEW.dvs, when it is started.

Examples:
  dvs stop shop && dvs rename shop store && dvs start store")]
pub struct RenameOptions {
    /// Container.
    #[arg(add = names::containers())]
    dc: String,
    /// 1 to 32 of a-z, 0-9 and -, beginning with a letter.
    name: String,
}

pub fn rename(global: &Global, options: &RenameOptions) -> Outcome {
    let RenameOptions { dc, name } = options;
    let daemon = daemon(global)?;
    let renamed = block_on(daemon.rename_dc(dc, name))??;
    say(&format!("container '{dc}' is called '{name}' now"));
    print(|out| view::changed(out, global.output, &renamed))
}

/// `grace`: seconds.
pub fn stop(global: &Global, grace: Option<u32>, dc: &str) -> Outcome {
    let daemon = daemon(global)?;
    let stopped = block_on(daemon.stop_dc(dc, grace.map(|seconds| u64::from(seconds) * 1000)))??;
    say(&format!("container '{dc}' is stopped; its files stay"));
    print(|out| view::changed(out, global.output, &stopped))
}

pub fn delete(global: &Global, options: &DeleteOptions) -> Outcome {
    let DeleteOptions { force, keep_data, dcs } = options;
    let daemon = daemon(global)?;
    dcs.each(global, |dc| {
        let before = if *force { BeforeDelete::Stop } else { BeforeDelete::Refuse };
        let data = if *keep_data { Data::Keep } else { Data::Remove };
        block_on(daemon.delete_dc(dc, before, data))??;
        say(&format!("container '{dc}' is deleted"));
        done(global.output, &Gone::new(dc))
    })
}

pub fn execute(global: &Global, command: Command) -> Outcome {
    match command {
        Command::Create(options) => create::execute(global, *options),
        Command::Start(options) => start_each(global, &options),
        Command::Stop(StopOptions { grace, dc }) => stop(global, grace, &dc),
        Command::Rename(options) => rename(global, &options),
        Command::Set(options) => set::execute(global, *options),
        Command::AddNode(AddNodeOptions { dc, node }) => {
            let daemon = daemon(global)?;
            let now = block_on(daemon.add_dc_node(&dc, &node))??;
            say(&format!("container '{dc}' spans {}", now.spec.nodes.join(", ")));
            print(|out| view::changed(out, global.output, &now))
        }
        Command::RemoveNode(RemoveNodeOptions { force, dc, node }) => {
            let daemon = daemon(global)?;
            let before = if force { BeforeDelete::Stop } else { BeforeDelete::Refuse };
            let now = block_on(daemon.remove_dc_node(&dc, &node, before))??;
            say(&format!("container '{dc}' spans {}", now.spec.nodes.join(", ")));
            print(|out| view::changed(out, global.output, &now))
        }
        Command::Delete(options) => delete(global, &options),
        Command::Export { dc } => export::execute(global, &dc),
        Command::Schema => print(|out| std::io::Write::write_all(out, SCHEMA.as_bytes())),
        Command::Backup(options) => backup::execute(global, &options),
        Command::Restore(options) => restore::execute(global, &options),
        Command::Ls => {
            let daemon = daemon(global)?;
            let dcs = block_on(daemon.dcs())??;
            print(|out| output::list(out, global.output, &dcs))
        }
        Command::Inspect { dc } => {
            let daemon = daemon(global)?;
            let dc = block_on(daemon.dc(&dc))??;
            let channels = block_on(daemon.channels(&dc.spec.name))??;
            print(|out| output::one(out, global.output, &view::Whole { dc, channels }, view::whole))
        }
    }
}
