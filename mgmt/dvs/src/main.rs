//! `dvs`: the one binary. The command, the daemon and the servers, so that a node is installed by copying one file.
//!
//! | part | file |
//! |---|---|
//! | what may be typed | `cli.rs`, `commands/*.rs` (options and help beside the code) |
//! | what is printed | `output/` (table, json, yaml, name), `errors.rs`, `usage.rs` |
//! | a program's streams on ours | `pump.rs`, `terminal.rs`, `commands/session.rs` |
//! | a whole cluster on one machine | `dev/` |
//! | `on`, in containers: this binary under that name | `on.rs` |
//! | this command in containers | `inside.rs` |
//!
//! Deliberately absent: anything a daemon should decide. The command asks, shows and copies bytes.

#![forbid(unsafe_code)]

mod cli;
mod commands;
mod described;
mod dev;
mod errors;
mod inside;
mod installed;
#[cfg(feature = "machinery")]
mod on;
mod output;
mod pump;
mod terminal;
mod units;
mod usage;

#[cfg(test)]
mod help_tests;
#[cfg(test)]
mod shapes;

use std::io;
use std::process::ExitCode;

use clap::error::ErrorKind;
use clap::{CommandFactory, Parser};

use crate::cli::Cli;
use crate::errors::{BROKEN_PIPE, Failure};

fn main() -> ExitCode {
    #[cfg(feature = "machinery")]
    if let Some(status) = on::main_by_name() {
        return status;
    }
    if commands::completion::answered() {
        return ExitCode::SUCCESS;
    }
    let outcome = check_switched_off().and_then(|()| match command_line() {
        Ok(mut cli) => match cli.global.settle_format().and_then(|()| commands::watch::demand_listing(&cli)) {
            Err(failure) => Err(failure.status(usage::status(std::env::args_os()))),
            Ok(()) if cli.global.watch => {
                let form = cli.global.output;
                commands::watch::execute(cli, || typed_again(form))
            }
            Ok(()) => commands::execute(&cli.global, cli.command),
        },
        Err(error) => no_command(&error),
    });
    match outcome {
        Ok(status) => status,
        Err(failure) if failure.is_broken_pipe() => ExitCode::from(BROKEN_PIPE),
        Err(failure) => {
            // When standard error is closed too there is nobody to tell.
            let _ = failure.print(&mut io::stderr().lock());
            ExitCode::from(failure.status)
        }
    }
}

/// What was typed. In a container its name may be left out; what makes sense only as it was typed means that.
fn command_line() -> Result<Cli, clap::Error> {
    let typed = usage::in_our_words(std::env::args_os());
    let own = inside::own_container();
    match own.and_then(|own| inside::with_container(&typed, &own, Cli::command())) {
        None => Cli::try_parse_from(typed),
        Some(whole) => Cli::try_parse_from(whole).or_else(|error| Cli::try_parse_from(typed).map_err(|_| error)),
    }
}

/// `form`: what its options have come to, once.
fn typed_again(form: output::Format) -> Result<Cli, Failure> {
    let mut cli = command_line().map_err(|error| usage::complaint(&error, std::env::args_os()))?;
    cli.global.output = form;
    Ok(cli)
}

/// Whoever switches features off that nobody knows would try nothing.
fn check_switched_off() -> Result<(), Failure> {
    let unknown = sys::without::unknown();
    if unknown.is_empty() {
        return Ok(());
    }
    let known = sys::without::names().collect::<Vec<_>>().join(", ");
    let what = format!("${} names no feature: {}", sys::without::VARIABLE, unknown.join(", "));
    Err(Failure::usage(what).hint(format!("some of {known}")))
}

/// Help and version are answers; everything else that clap says is a complaint.
fn no_command(error: &clap::Error) -> Result<ExitCode, Failure> {
    match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => {
            error.print()?;
            Ok(ExitCode::SUCCESS)
        }
        ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
            error.print()?;
            Ok(ExitCode::from(usage::status(std::env::args_os())))
        }
        _ => Err(usage::complaint(error, std::env::args_os())),
    }
}
