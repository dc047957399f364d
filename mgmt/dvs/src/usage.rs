//! Command lines that make no sense: clap's complaint in our own form, with the usage of the command that was meant.

use std::ffi::OsString;

use clap::error::{ContextKind, ErrorKind};
use clap::{Command, CommandFactory};

use crate::cli::Cli;
use crate::errors::{Failure, RUN_FAILED, USAGE};

/// What is wrong and how the command is typed.
pub fn complaint(error: &clap::Error, arguments: impl Iterator<Item = OsString>) -> Failure {
    if error.kind() == ErrorKind::MissingSubcommand {
        // clap lists all there are, those of the machinery too.
        let meant = meant(arguments);
        let help = help_of(&meant);
        let words = help.trim_end_matches(" --help");
        return Failure::usage(format!("'{words}' needs to know what to do")).hint(help.clone());
    }
    let rendered = error.render().to_string();
    let mut paragraphs = rendered.split("\n\n");
    let first = paragraphs.next().unwrap_or_default();
    let what = first.strip_prefix("error: ").unwrap_or(first);
    let lines: Vec<&str> = what.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    // How to pass something odd as a value is hardly ever what was meant.
    let tip = paragraphs.find_map(|text| text.trim().strip_prefix("tip: ").map(str::to_owned));
    let tip = tip.filter(|tip| !tip.starts_with("to pass"));
    let meant = meant(arguments);
    let argument = error.get(ContextKind::InvalidArg).map(ToString::to_string);
    let tip = match (error.kind(), argument.as_deref()) {
        (ErrorKind::UnknownArgument, Some(format @ ("--json" | "--yaml"))) => {
            Some(format!("-o {}", format.trim_start_matches('-')))
        }
        // The usage says no more than that there is one.
        (ErrorKind::InvalidSubcommand, _) => tip.or_else(|| Some(help_of(&meant))),
        _ => tip,
    };
    let what = match lines.is_empty() {
        true => "the command line makes no sense".to_owned(),
        false => lines.join(" "),
    };
    let hint = tip.unwrap_or_else(|| usage(&meant, rendered.contains("Usage: ")));
    Failure::usage(what).status(status_of(&meant)).hint(hint)
}

/// Exit status of a command line that was not understood.
pub fn status(arguments: impl Iterator<Item = OsString>) -> u8 {
    status_of(&meant(arguments))
}

/// Whoever starts programs hears 125 of everything that kept theirs from being reached, as with `docker run`.
fn status_of(meant: &[String]) -> u8 {
    match meant.first().map(String::as_str) {
        Some("run" | "exec") => RUN_FAILED,
        _ => USAGE,
    }
}

/// The command as far as it can be made out: `["dc", "create"]`.
fn meant(arguments: impl Iterator<Item = OsString>) -> Vec<String> {
    let parsed = Cli::command().ignore_errors(true).try_get_matches_from(arguments);
    let mut names = Vec::new();
    let mut matches = parsed.as_ref().ok();
    while let Some((name, inner)) = matches.and_then(|matches| matches.subcommand()) {
        names.push(name.to_owned());
        matches = Some(inner);
    }
    names
}

/// The line that shows how it is typed, or where to read about its values.
fn usage(meant: &[String], with_line: bool) -> String {
    let mut command = Cli::command();
    command.build();
    let found: Option<&mut Command> =
        meant.iter().try_fold(&mut command, |command, name| command.find_subcommand_mut(name));
    let line = found.map(|command| command.render_usage().to_string());
    match line {
        Some(line) if with_line => line.trim_start_matches("Usage: ").to_owned(),
        _ => help_of(meant),
    }
}

fn help_of(meant: &[String]) -> String {
    let words: Vec<&str> = std::iter::once("dvs").chain(meant.iter().map(String::as_str)).collect();
    format!("{} --help", words.join(" "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    fn refused(line: &str) -> Failure {
        let words = || line.split(' ').map(OsString::from);
        complaint(&Cli::try_parse_from(words()).unwrap_err(), words())
    }

    #[test]
    fn usage_is_that_of_the_command_that_was_meant() {
        let failure = refused("dvs --state-dir /x dc create --fil");
        assert_eq!((failure.status, failure.hint.unwrap().as_str()), (2, "a similar argument exists: '--file'"));
        assert_eq!(refused("dvs --state-dir /x kill shop").hint.unwrap(), "dvs kill [OPTIONS] <DC> <PID>...");
        assert_eq!(refused("dvs kill -s FOO shop 1").hint.unwrap(), "dvs kill --help");
    }

    #[test]
    fn what_people_type_elsewhere_is_answered_with_what_it_is_here() {
        assert_eq!(refused("dvs ps --json").hint.unwrap(), "-o json");
        assert_eq!(refused("dvs node ls --yaml").hint.unwrap(), "-o yaml");
        assert_eq!(refused("dvs xyz shop").hint.unwrap(), "dvs --help");
        assert_eq!(refused("dvs dc xyz shop").hint.unwrap(), "dvs dc --help");
        assert!(refused("dvs dc craete shop").hint.unwrap().contains("'create'"));
    }

    #[test]
    fn missing_command_is_asked_for_without_naming_those_of_the_machinery() {
        let failure = refused("dvs --cluster e");
        assert_eq!((failure.status, failure.hint.as_deref()), (2, Some("dvs --help")));
        assert!(!failure.what.contains("keeper"), "{}", failure.what);
    }

    #[test]
    fn program_that_was_not_reached_because_of_the_command_line_has_the_status_of_docker() {
        for line in ["dvs run", "dvs run shop", "dvs run --bogus shop true", "dvs --at n1 exec -u x shop true"] {
            assert_eq!(refused(line).status, 125, "{line}");
        }
        assert_eq!(refused("dvs ps --bogus shop").status, 2);
    }
}
