//! The command line: global options, and one variant per command. Each command's own options are beside its code.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};
use client::contexts::{CONTEXT_VARIABLE, LOCAL};
use client::{Contexts, Places, Wanted};

use crate::commands::{
    access, alone, apply, attach, audit, cluster, completion, context, cp, daemon, dc, dev, disk, doctor, ds, events,
    exec, fs, import, info, inspect, internal, kill, logs, metrics, names, node, pause, port, ps, run, server, service,
    stats, stop, version, wait,
};
use crate::errors::Failure;
use crate::output::{Format, Template};

pub const CLUSTER_VARIABLE: &str = "DVS_CLUSTER";

/// One system over several machines: containers that span nodes.
///
/// A container (DC) is a small Linux system whose processes may run on several nodes and still share one
/// process table, one file tree and one network.
#[derive(Parser, Debug)]
#[command(
    name = "dvs",
    bin_name = "dvs",
    version,
    max_term_width = 100,
    disable_help_subcommand = true,
    after_help = "\
Examples:
  dvs dev up                                      a cluster of three nodes on this machine
  dvs dc create shop --nodes n1,n2,n3 --start     a container over all of them
  dvs run -it shop --node n2 -- bash              a shell in it, on node n2
  dvs ps shop                                     its processes, wherever they run
  dvs dc delete --force shop && dvs dev down      everything gone

Exit status:
  0    it is done, or shown
  1    it is not: refused, nobody to ask, no room …; standard error says what, because of what, and what to try
  2    the command line makes no sense (125: of run, exec and attach)
  125  run, exec, attach: the program was not reached, or lost; else they have the program's, see dvs run --help
  141  whoever read the output is gone

Programs of a container use dvs for their own container, whose name may be left out: dvs ps, dvs run -n n2 -- PROGRAM.
Every command has --help with examples of its own. Commands of the machinery: dvs internal --help"
)]
pub struct Cli {
    #[command(flatten)]
    pub global: Global,
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Args, Clone, Debug)]
pub struct Global {
    /// How to print data.
    #[arg(
        short,
        long,
        global = true,
        value_enum,
        default_value_t,
        hide_possible_values = false,
        help_heading = "Global options"
    )]
    pub output: Format,

    /// Print of each thing what TEMPLATE says: '{{.name}} {{.state}}', name,state or json; fields are those of -o json
    /// and columns.
    #[arg(long, global = true, value_name = "TEMPLATE", help_heading = "Global options")]
    pub format: Option<Template>,

    /// List again and again, every two seconds, what is another one than before; to be ended by Ctrl-C.
    #[arg(long, global = true, hide_short_help = true, help_heading = "Global options")]
    pub watch: bool,

    /// Cluster elsewhere to talk to, from `dvs context ls`; `local`: the daemon of this machine [default: $DVS_CONTEXT,
    /// or what dvs context use said].
    #[arg(long, global = true, hide_short_help = true, value_name = "NAME", add = names::contexts(), help_heading = "Global options")]
    pub context: Option<String>,

    /// Socket of the daemon to talk to [default: the development cluster's, else /run/dvs/dvsd.sock].
    #[arg(long, global = true, env = client::places::SOCKET_VARIABLE, hide_env_values = true, hide_short_help = true, value_name = "PATH", help_heading = "Global options")]
    pub socket: Option<PathBuf>,

    /// Development cluster to talk to, when there are several.
    #[arg(
        long,
        global = true,
        env = CLUSTER_VARIABLE,
        hide_env_values = true,
        hide_short_help = true,
        value_name = "NAME",
        add = names::clusters(),
        help_heading = "Global options"
    )]
    pub cluster: Option<String>,

    /// Node of the development cluster whose daemon shall answer; any of them gives the same answers, but for what only
    /// a node knows of its own links.
    #[arg(long, global = true, hide_short_help = true, value_name = "NODE", add = names::dev_nodes(), help_heading = "Global options")]
    pub at: Option<String>,

    /// Keep development clusters below this directory instead of /var/lib/dvs and /run/dvs.
    #[arg(
        long,
        global = true,
        env = client::places::STATE_DIR_VARIABLE,
        hide_env_values = true,
        value_name = "DIR",
        hide_short_help = true,
        help_heading = "Global options"
    )]
    pub state_dir: Option<PathBuf>,
}

impl Global {
    /// What was said by another option is how it is printed. Both ways are one too many.
    pub fn settle_format(&mut self) -> Result<(), Failure> {
        let Some(template) = self.format.take() else { return Ok(()) };
        if self.output != Format::default() {
            return Err(Failure::usage("-o and --format are two ways to print").hint("one of them"));
        }
        self.output = Format::of_template(template);
        Ok(())
    }

    pub fn places(&self) -> Places {
        self.state_dir.as_deref().map_or_else(Places::system, Places::under)
    }

    /// The cluster elsewhere that is meant. Whoever names a daemon of this machine means none.
    pub fn context_name(&self) -> Option<String> {
        if let Some(name) = &self.context {
            return Some(name.clone()).filter(|name| name != LOCAL);
        }
        if self.socket.is_some() || self.cluster.is_some() || self.at.is_some() || self.state_dir.is_some() {
            return None;
        }
        let name = std::env::var(CONTEXT_VARIABLE).ok().filter(|name| !name.is_empty());
        let name = name.or_else(|| Contexts::of_this_person().ok()?.current());
        name.filter(|name| name != LOCAL)
    }

    pub fn wanted(&self) -> Wanted {
        Wanted { socket: self.socket.clone(), cluster: self.cluster.clone(), node: self.at.clone() }
    }
}

#[derive(Subcommand, Debug)]
pub enum Command {
    Run(run::Options),
    Exec(exec::Options),
    Attach(attach::Options),
    Ps(ps::Options),
    Logs(logs::Options),
    Kill(kill::Options),
    Wait(wait::Options),
    Start(dc::StartOptions),
    Stop(stop::StopOptions),
    Restart(stop::RestartOptions),
    Pause(pause::PauseOptions),
    Unpause(pause::UnpauseOptions),
    Rm(dc::DeleteOptions),
    Rename(dc::RenameOptions),
    Inspect(inspect::Options),
    Stats(stats::StatsOptions),
    Top(stats::TopOptions),
    Import(import::Options),
    Cp(cp::Options),
    Diff(fs::DiffOptions),
    Plan(apply::PlanOptions),
    Apply(apply::ApplyOptions),
    #[command(subcommand)]
    Dc(dc::Command),
    #[command(subcommand)]
    Disk(disk::Command),
    #[command(subcommand)]
    Fs(fs::Command),
    #[command(subcommand)]
    Server(server::Command),
    #[command(subcommand)]
    Service(service::Command),
    #[command(subcommand)]
    Port(port::Command),
    #[command(subcommand)]
    Ds(ds::Command),
    #[command(subcommand)]
    Node(node::Command),
    #[command(subcommand)]
    Cluster(cluster::Command),
    #[command(subcommand)]
    Access(access::Command),
    #[command(subcommand)]
    Context(context::Command),
    Events(events::Options),
    Audit(audit::Options),
    #[command(subcommand)]
    Alone(alone::Command),
    #[command(subcommand)]
    Dev(dev::Command),
    Metrics(metrics::Options),
    Doctor(doctor::Options),
    Info(info::Options),
    Version(version::Options),
    Completion(completion::Options),
    Daemon(daemon::Options),

    // Processes of the machinery: `dvs internal --help` describes them, nobody types them.
    #[command(subcommand)]
    Internal(internal::Command),
    #[command(subcommand, hide = true)]
    Gate(internal::Gate),
    #[command(hide = true)]
    Proxy,
    #[command(hide = true)]
    Shelf,
    #[command(hide = true)]
    Etcd,
    #[command(hide = true)]
    Keeper,
}
