//! `dvs completion`: the shell's own way to complete our commands and options.

use std::io;
use std::process::ExitCode;

use clap::{Args, Command, CommandFactory};
use clap_complete::Shell;

use super::Outcome;
use crate::cli::Cli;

/// Print a script that completes commands and options in your shell
#[derive(Args, Debug)]
#[command(after_help = "\
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

pub fn execute(options: &Options) -> Outcome {
    let mut script = Vec::new();
    clap_complete::generate(options.shell, &mut typed_commands(), "dvs", &mut script);
    super::print(|out| io::Write::write_all(out, &script))?;
    Ok(ExitCode::SUCCESS)
}
