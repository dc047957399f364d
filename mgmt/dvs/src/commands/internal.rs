//! The processes of the machinery. `dvsd` starts them with everything they need in `DVS_SPAWN` and inherited
//! descriptors (see `docs/design/process-model.md`); a person who types them gets an error that says so.

use std::process::ExitCode;

use clap::Subcommand;

use super::import::{pack, unpack};
use super::{Outcome, ds, fs, man, retire};
use crate::cli::Global;
use crate::dev::machine;
use crate::errors::Failure;

/// Processes that daemons start; nobody types these
#[derive(Subcommand, Debug)]
#[command(
    hide = true,
    after_help = "\
Started by `dvs daemon`, one process each, with their instructions in the variable DVS_SPAWN:
  dvs server disk     a virtual disk of a container
  dvs server copy     one of several images of a disk, which is on several nodes
  dvs server fs       the file server of a container
  dvs server ds       the key-value server of a container
  dvs server cs       locks, elections and groups for the programs of a container on this node
  dvs gate fuse       brings the file server's tree into the container's mount namespace
  dvs gate calls      answers system calls of programs that name processes of other nodes
  dvs gate ports      leads from published ports of the node into a container
  dvs gate egress     leads from programs of a container to the outside
  dvs gate nbd        serves disks of a container to clients of NBD
  dvs gate disk       reads or fills a disk of a container, for a backup
  dvs proxy           carries messages and data to the other nodes
  dvs shelf           holds copies of the broker's descriptors; survives the daemon
  dvs etcd            becomes the node's member of etcd; survives the daemon
  dvs keeper          parent of a container's programs on this node; survives the daemon

Started by `dvs dev`:
  dvs internal machine     first process of a simulated machine

Started by `dvs import` and `dvs cp`, in the container:
  dvs internal unpack      makes files of a tar stream
  dvs internal pack        makes a tar stream of files

Started by `dvs ds`, in the container:
  dvs internal ds          speaks to the key-value server

Started by `dvs fs`, in the container:
  dvs internal fs          looks at the tree, takes and removes snapshots

Started when a package is built:
  dvs internal man         writes the manual pages

Started when the package is removed:
  dvs internal retire      ends what the node's daemon left, where no container lives"
)]
pub enum Command {
    /// First process of a simulated machine (`dvs dev up`).
    Machine(machine::Options),
    /// Start a program in a simulated machine and print its PID (`dvs dev up`).
    Enter(machine::EnterOptions),
    /// Make files of a tar stream, inside a container (`dvs import`).
    Unpack(unpack::Options),
    /// Make a tar stream of files, inside a container (`dvs cp`).
    Pack(pack::Options),
    /// Speak to the key-value server, inside a container (`dvs ds`).
    Ds {
        /// Standard input is one request, and the answer is for people or in the form of `--output`.
        #[arg(long)]
        one: bool,
    },
    /// Look at the tree, take and remove snapshots, inside a container (`dvs fs`).
    Fs {
        /// Its name, for messages.
        dc: String,
        #[command(subcommand)]
        request: fs::inside::Request,
    },
    /// Write a manual page for each command (`cargo xtask deb`).
    Man(man::Options),
    /// End what a daemon left running, where no container lives (the package's removal).
    Retire(retire::Options),
}

/// Gates between the virtual operating system and Linux (started by the daemon)
#[derive(Subcommand, Debug)]
pub enum Gate {
    /// The file tree, through FUSE.
    Fuse,
    /// System calls that name processes of other nodes.
    Calls,
    /// Ports of the node that lead into a container.
    Ports,
    /// What programs of a container send to the outside.
    Egress,
    /// Disks of a container, for clients of NBD.
    Nbd,
    /// A disk of a container, to and from a backup.
    Disk,
}

pub fn execute(global: &Global, command: Command) -> Outcome {
    match command {
        Command::Machine(options) => machine::execute(&options),
        Command::Enter(options) => machine::enter(&options),
        Command::Unpack(options) => Ok(unpack::execute(&options)),
        Command::Pack(options) => Ok(pack::execute(&options)),
        Command::Fs { dc, request } => fs::inside::execute(global.output, &dc, &request),
        Command::Man(options) => man::execute(&options),
        Command::Retire(options) => retire::execute(global, &options),
        Command::Ds { one } => ds::speak(global.output, if one { ds::Lines::One } else { ds::Lines::All }),
    }
}

/// A server of the virtual operating system, by its kind: disk, copy, fs, ds or cs. Started by the daemon.
pub fn serve(words: &[String]) -> Outcome {
    let (kind, rest) = words.split_first().map_or(("", words), |(kind, rest)| (kind.as_str(), rest));
    match machinery::SERVERS.iter().find(|(known, _)| rest.is_empty() && *known == kind) {
        Some((_, main)) => Ok(main()),
        None => {
            Err(Failure::usage(format!("there is no command 'server {}'", words.join(" "))).hint("dvs server --help"))
        }
    }
}

pub fn gate(gate: Gate) -> ExitCode {
    machinery::gate(gate)
}

pub fn proxy() -> ExitCode {
    machinery::proxy()
}

pub fn shelf() -> ExitCode {
    machinery::shelf()
}

pub fn etcd() -> ExitCode {
    machinery::etcd()
}

pub fn keeper() -> ExitCode {
    machinery::keeper()
}

/// Runs one of our processes to its end.
type Main = fn() -> ExitCode;

/// The entry points of the other crates, in one place.
#[cfg(feature = "machinery")]
mod machinery {
    use super::{ExitCode, Gate, Main};

    /// By the words with which the daemon starts them (`node/dvsd/src/kinds.rs`).
    pub const SERVERS: &[(&str, Main)] = &[
        ("copy", disk::copy_main_from_spawn),
        ("disk", disk::main_from_spawn),
        ("fs", fs::main_from_spawn),
        ("ds", ds::main_from_spawn),
        ("cs", cs::main_from_spawn),
    ];

    pub fn gate(gate: Gate) -> ExitCode {
        match gate {
            Gate::Fuse => gate_fuse::main_from_spawn(),
            Gate::Calls => gate_syscall::main_from_spawn(),
            Gate::Ports => gate_port::main_from_spawn(),
            Gate::Egress => gate_port::main_of_egress(),
            Gate::Nbd => gate_nbd::main_from_spawn(),
            Gate::Disk => gate_nbd::main_of_copier(),
        }
    }

    pub fn proxy() -> ExitCode {
        proxy_host::main_from_spawn()
    }

    pub fn shelf() -> ExitCode {
        dvsd::shelf_main_from_spawn()
    }

    pub fn etcd() -> ExitCode {
        dvsd::etcd_main_from_spawn()
    }

    pub fn keeper() -> ExitCode {
        keeper::main_from_spawn()
    }
}

/// Of a binary that only manages.
#[cfg(not(feature = "machinery"))]
mod machinery {
    use super::{ExitCode, Gate, Main};

    pub const SERVERS: &[(&str, Main)] = &[];

    pub fn gate(_: Gate) -> ExitCode {
        absent()
    }

    pub fn proxy() -> ExitCode {
        absent()
    }

    pub fn shelf() -> ExitCode {
        absent()
    }

    pub fn etcd() -> ExitCode {
        absent()
    }

    pub fn keeper() -> ExitCode {
        absent()
    }

    fn absent() -> ExitCode {
        eprintln!("dvs: this binary was built without the machinery of a node");
        ExitCode::FAILURE
    }
}

#[cfg(all(test, feature = "machinery"))]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::cli::{Cli, Command};
    use crate::commands::server;

    #[test]
    fn every_kind_that_the_daemon_starts_is_in_this_binary() {
        for arguments in dvsd::server_arguments() {
            let cli = Cli::try_parse_from([&["dvs"], arguments].concat()).unwrap();
            let is_there = match cli.command {
                Command::Server(server::Command::Process(words)) => {
                    machinery::SERVERS.iter().any(|(kind, _)| *words == [*kind])
                }
                Command::Gate(_) => true,
                _ => false,
            };
            assert!(is_there, "{arguments:?}");
        }
    }
}
