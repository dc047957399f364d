//! `dvs completion`: the shell's own way to complete our commands and options.
//!
//! The script asks this binary at each tab, because names of containers and nodes are known to a daemon alone
//! (`names.rs`).

use std::io;
use std::process::ExitCode;

use clap::{Args, Command, CommandFactory};
use clap_complete::Shell;
use clap_complete::env::{CompleteEnv, EnvCompleter, Shells};

use super::Outcome;
use crate::cli::Cli;
use crate::errors::Failure;

/// Set by the script: the arguments are a line that is being typed, for the shell that it names.
const VARIABLE: &str = "DVS_COMPLETE";

/// Print a script that completes commands, options and names in your shell
#[derive(Args, Debug)]
#[command(after_help = "\
Names of containers and nodes are those that the daemon of the line knows; without one there are none. Make the script anew after \
an upgrade.

Examples:
  dvs completion bash > /etc/bash_completion.d/dvs
  dvs completion zsh > \"${fpath[1]}/_dvs\"
  dvs completion fish > ~/.config/fish/completions/dvs.fish")]
pub struct Options {
    /// Shell.
    shell: Shell,
}

/// Without those of the machinery.
fn typed_commands() -> Command {
    let whole = Cli::command();
    let typed = whole.get_subcommands().filter(|command| !command.is_hide_set());
    Command::new("dvs").disable_help_subcommand(true).args(whole.get_arguments().cloned()).subcommands(typed.cloned())
}

/// Answers a shell that completes. False when this is no such call.
pub fn answered() -> bool {
    let here = std::env::current_dir().ok();
    let shell = CompleteEnv::with_factory(typed_commands).var(VARIABLE);
    // Whoever presses a key wants to hear of no failure; the shell sees nothing to offer.
    shell.try_complete(std::env::args_os(), here.as_deref()).unwrap_or(true)
}

pub fn execute(options: &Options) -> Outcome {
    let (shells, name) = (Shells::builtins(), options.shell.to_string());
    let unknown = || Failure::usage(format!("nothing completes in {name}")).hint("bash, zsh or fish");
    let shell: &dyn EnvCompleter = shells.completer(&name).ok_or_else(unknown)?;
    let mut script = Vec::new();
    shell.write_registration(VARIABLE, "dvs", "dvs", "dvs", &mut script)?;
    super::print(|out| io::Write::write_all(out, &script))?;
    Ok(ExitCode::SUCCESS)
}
