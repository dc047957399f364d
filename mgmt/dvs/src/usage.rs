//! Command lines that make no sense: clap's complaint in our own form, with the usage of the command that was meant.

use std::ffi::OsString;

use clap::error::{ContextKind, ContextValue, ErrorKind};
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
    let mut tips = paragraphs.flat_map(str::lines).filter_map(|line| line.trim().strip_prefix("tip: "));
    let tip = tips.find(|tip| !tip.starts_with("to pass")).map(str::to_owned);
    let meant = meant(arguments);
    let argument = error.get(ContextKind::InvalidArg).map(ToString::to_string);
    let tip = match (error.kind(), argument.as_deref()) {
        (ErrorKind::UnknownArgument, Some(format @ ("--json" | "--yaml"))) => {
            Some(format!("-o {}", format.trim_start_matches('-')))
        }
        (ErrorKind::UnknownArgument, Some(option)) => known_option(option, &meant).or(tip),
        // The usage says no more than that there is one.
        (ErrorKind::InvalidSubcommand, _) => {
            let known = known_elsewhere(error, &meant).or_else(|| similar(error, &meant));
            known.or_else(|| listing(error, &meant)).or_else(|| Some(help_of(&meant)))
        }
        _ => tip,
    };
    let what = match lines.is_empty() {
        true => "the command line makes no sense".to_owned(),
        false => lines.join(" "),
    };
    let hint = tip.unwrap_or_else(|| usage(&meant, rendered.contains("Usage: ")));
    Failure::usage(what).status(status_of(&meant)).hint(hint)
}

/// Commands that look like what was typed; those of the machinery are nobody's to type.
fn similar(error: &clap::Error, meant: &[String]) -> Option<String> {
    let Some(ContextValue::Strings(names)) = error.get(ContextKind::SuggestedSubcommand) else { return None };
    let root = Cli::command();
    let group = meant.iter().try_fold(&root, |command, name| command.find_subcommand(name))?;
    let is_shown = |name: &&String| group.find_subcommand(name).is_some_and(|command| !command.is_hide_set());
    // Names and their aliases stand side by side.
    let mut shown: Vec<&str> =
        names.iter().filter(is_shown).filter_map(|name| Some(group.find_subcommand(name)?.get_name())).collect();
    shown.dedup();
    let typed: Vec<String> = shown.iter().map(|name| [&words(meant), *name].join(" ")).collect();
    (!typed.is_empty()).then(|| typed.join(" or "))
}

/// `dvs port shop`: whose word makes no sense may be the container whose ports are meant.
fn listing(error: &clap::Error, meant: &[String]) -> Option<String> {
    let word = error.get(ContextKind::InvalidSubcommand)?.to_string();
    let root = Cli::command();
    let group = meant.iter().try_fold(&root, |command, name| command.find_subcommand(name))?;
    let list = group.find_subcommand("ls")?;
    let takes_container = list.get_positionals().next().is_some_and(|argument| argument.get_id() == "dc");
    (takes_container && mgmt_api::valid_name(&word)).then(|| format!("{} ls {word}", words(meant)))
}

/// What people type elsewhere, and what it is called here.
fn known_elsewhere(error: &clap::Error, meant: &[String]) -> Option<String> {
    const KNOWN: [(&str, &str); 33] = [
        ("create", "dvs dc create"),
        ("pull", "dvs import: what images bring is a directory or archive here, started with dvs run --root"),
        ("images", "dvs run DC -- ls /dc: roots are directories of the tree"),
        ("build", "dvs import, of what built it"),
        ("push", "dvs cp DC:PATH -"),
        ("save", "dvs cp DC:PATH -"),
        ("export", "dvs dc export for its description, dvs cp DC:PATH - for its files"),
        ("update", "dvs dc set"),
        ("network", "dvs port, dvs dc set --egress"),
        ("volume", "dvs cp: what is in /dc stays; dvs dc create -v for directories of nodes"),
        ("compose", "dvs apply"),
        ("system", "dvs doctor"),
        ("login", "dvs context add"),
        ("swarm", "dvs cluster, dvs node"),
        ("stack", "dvs apply"),
        ("commit", "dvs fs snapshot create DC NAME; dvs fs snapshot restore"),
        ("container", "dvs dc ls for containers, dvs ps for programs"),
        ("image", "dvs import: no images, but directories of the tree"),
        ("rmi", "dvs run DC -- rm -r /dc/PATH: roots are directories of the tree"),
        ("tag", "dvs run DC -- cp -a /dc/PATH /dc/NAME: roots are directories of the tree"),
        ("history", "dvs fs snapshot ls DC"),
        ("logout", "dvs context rm"),
        ("secret", "dvs ds put DC KEY VALUE"),
        ("config", "dvs ds put DC KEY VALUE; settings of a node: dvsd.toml"),
        ("buildx", "dvs import, of what built it"),
        ("delete", "dvs dc delete"),
        ("ls", "dvs dc ls, or dvs ps"),
        ("list", "dvs dc ls, or dvs ps"),
        ("load", "dvs import"),
        ("nodes", "dvs node ls"),
        ("up", "dvs dev up"),
        ("down", "dvs dev down"),
        ("shell", "dvs run -it DC -- bash"),
    ];
    let word = error.get(ContextKind::InvalidSubcommand)?.to_string();
    let known = KNOWN.iter().find(|(name, _)| meant.is_empty() && *name == word);
    known.map(|(_, here)| (*here).to_owned())
}

/// Options of programs elsewhere, and who has them here.
fn known_option(option: &str, meant: &[String]) -> Option<String> {
    type Known = (&'static [&'static str], &'static str);
    const OF_PROGRAMS: &[Known] = &[
        (
            &["--name", "--restart", "--health-cmd", "--health-interval", "--stop-signal", "--stop-timeout"],
            "a program with a name that is kept running is a service: dvs service add DC NAME -- PROGRAM",
        ),
        (&["-p", "-P", "--publish", "--publish-all", "--expose"], "dvs port add DC PUBLISHED:PORT"),
        (
            &["-m", "--memory", "--cpus", "--cpuset-cpus", "--cpu-shares", "--pids-limit", "--memory-swap"],
            "limits are the container's: dvs dc set DC --memory 1G --cpus 2",
        ),
        (&["--hostname"], "a node of a container has its name: dvs run DC -- hostname"),
        (
            &["--read-only", "--tmpfs", "--mount"],
            "the system is read-only, /dc is the tree, /tmp the node's own; dvs dc create -v HOST:PATH:ro for directories \
             of nodes",
        ),
        (
            &["--network", "--net", "--link", "--dns", "--add-host"],
            "dvs port, dvs dc set --egress; nodes and services have names",
        ),
        (&["--ip", "--mac-address", "--network-alias"], "addresses follow from the container: dvs dc inspect DC"),
        (&["--entrypoint"], "the program that is typed is what is started: dvs run DC -- PROGRAM"),
        (&["--init"], "every container has one, on each node"),
        (&["--pid", "--ipc", "--uts", "--userns", "--cgroupns"], "all programs of a container share one of each"),
        (
            &["--shm-size"],
            "/dev/shm is each node's own, as large as the memory of the container: dvs dc set DC --memory",
        ),
        (&["-l", "--label", "--label-file"], "nodes have labels: dvs node label; programs and services have names"),
        (&["--log-driver", "--log-opt"], "dvs logs; the log of a program has a bound, and --no-log keeps none"),
        (&["--pull", "--platform"], "no images: dvs import DC ARCHIVE /PATH, and dvs run --root /PATH"),
        (&["--gpus", "--sysctl", "--blkio-weight", "--oom-score-adj"], "this is not passed on to containers"),
        (
            &["--privileged", "--cap-add", "--device", "--security-opt"],
            "root inside has what root of a container may, and nothing of the node",
        ),
    ];
    const OF_LISTS: &[Known] = &[
        (&["-l", "--latest", "-n", "--last"], "dvs ps --all -o json | jq 'max_by(.start_ms)'"),
        (&["-s", "--size"], "dvs fs df DC for files, dvs stats for memory"),
    ];
    const OF_REMOVAL: &[Known] = &[
        (
            &["-v", "--volumes"],
            "the files of the container go with it, unless --keep-data; what is the nodes' own stays",
        ),
        (&["-l", "--link"], "names of nodes and services go with the container"),
    ];
    const OF_CREATION: &[Known] = &[
        (&["--name", "--hostname"], "the name is typed by itself: dvs dc create NAME"),
        (
            &["--restart", "--health-cmd", "--stop-signal", "--stop-timeout", "--entrypoint", "-u", "--user"],
            "of what runs in it: dvs service add DC NAME -- PROGRAM",
        ),
        (&["--read-only"], "the system is read-only, /dc is the tree; dvs dc create -v HOST:PATH:ro"),
        (&["--network", "--net"], "each container has its own: -p leads in, --egress out"),
        (&["--cpuset-cpus"], "--cpu-list"),
        (&["--pids-limit"], "--pids"),
        (&["--cpu-shares"], "--cpu-weight"),
    ];
    const OF_CHANGES: &[Known] = &[
        (&["--restart"], "of what runs in it: dvs service"),
        (&["--cpuset-cpus"], "--cpu-list"),
        (&["--pids-limit"], "--pids"),
        (&["--cpu-shares"], "--cpu-weight"),
    ];
    const OF_SERVICES: &[Known] = &[
        (&["--name"], "the name is typed by itself: dvs service add DC NAME -- PROGRAM"),
        (&["--replicas"], "--instances"),
        (&["-p", "--publish"], "dvs port add DC PUBLISHED:PORT"),
        (&["-v", "--volume", "--mount"], "volumes are the container's: dvs dc set DC -v HOST:PATH"),
    ];
    const OF_EVENTS: &[Known] = &[
        (&["--since", "--until"], "nothing of before is kept; who asked for what: dvs audit"),
        (&["-f", "--filter"], "dvs events DC; dvs events -o json | jq 'select(.what == \"unhealthy\")'"),
    ];
    let known = match meant.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["run" | "exec"] => OF_PROGRAMS,
        ["ps"] => OF_LISTS,
        ["rm"] | ["dc", "delete"] => OF_REMOVAL,
        ["dc", "create"] => OF_CREATION,
        ["dc", "set"] => OF_CHANGES,
        ["service", "add"] => OF_SERVICES,
        ["events"] => OF_EVENTS,
        _ => return None,
    };
    known.iter().find(|(options, _)| options.contains(&option)).map(|(_, here)| (*here).to_owned())
}

/// Exit status of a command line that was not understood.
pub fn status(arguments: impl Iterator<Item = OsString>) -> u8 {
    status_of(&meant(arguments))
}

/// Whoever starts programs hears 125 of everything that kept theirs from being reached, as with `docker run`.
fn status_of(meant: &[String]) -> u8 {
    match meant.first().map(String::as_str) {
        Some("run" | "exec" | "attach") => RUN_FAILED,
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
    format!("{} --help", words(meant))
}

fn words(meant: &[String]) -> String {
    let words: Vec<&str> = std::iter::once("dvs").chain(meant.iter().map(String::as_str)).collect();
    words.join(" ")
}

/// What was typed, in the words that are known here: `dvs help run` is `dvs run --help`, `kill -9` is `kill -s 9`.
pub fn in_our_words(arguments: impl Iterator<Item = OsString>) -> Vec<OsString> {
    with_signal(with_help_last(arguments))
}

fn with_signal(arguments: Vec<OsString>) -> Vec<OsString> {
    let Some(kill) = arguments.iter().position(|word| word == "kill") else { return arguments };
    let is_signal = |word: &OsString| {
        let name = word.to_str().and_then(|word| word.strip_prefix('-'));
        let is_name = |name: &str| name.bytes().all(|byte| byte.is_ascii_digit() || byte.is_ascii_uppercase());
        name.is_some_and(|name| !name.is_empty() && is_name(name))
    };
    // Elsewhere it is a word like others.
    if meant(arguments.iter().cloned()) != ["kill"] {
        return arguments;
    }
    let behind = arguments.iter().skip(kill + 1).take_while(|word| *word != "--");
    let Some(place) = behind.into_iter().position(is_signal).map(|place| kill + 1 + place) else { return arguments };
    let (before, rest) = arguments.split_at(place);
    let signal = rest.first().and_then(|word| word.to_str()).unwrap_or_default().trim_start_matches('-');
    let option = OsString::from(format!("--signal={signal}"));
    before.iter().cloned().chain([option]).chain(rest.iter().skip(1).cloned()).collect()
}

/// `dvs help run` is `dvs run --help`.
fn with_help_last(arguments: impl Iterator<Item = OsString>) -> Vec<OsString> {
    let mut arguments: Vec<OsString> = arguments.collect();
    if arguments.get(1).is_some_and(|first| first == "help") {
        arguments.remove(1);
        arguments.push("--help".into());
    }
    arguments
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
        assert_eq!(refused("dvs dc craete shop").hint.unwrap(), "dvs dc restore or dvs dc create");
        assert_eq!(refused("dvs node lss").hint.unwrap(), "dvs node ls");
        assert_eq!(refused("dvs compose up").hint.unwrap(), "dvs apply");
        assert!(refused("dvs run --restart always shop -- x").hint.unwrap().contains("dvs service add"));
        assert!(refused("dvs run -m 1g shop -- x").hint.unwrap().contains("dvs dc set"));
        assert!(refused("dvs run -p 80:80 shop -- x").hint.unwrap().contains("dvs port add"));
        assert!(refused("dvs run --ulimit files=1 shop -- x").what.contains("nofile"));
        assert!(refused("dvs run --cap-drop network shop -- x").what.contains("capabilities(7)"));
        assert_eq!(refused("dvs run --nod n1 shop x").hint.unwrap(), "a similar argument exists: '--node'");
        assert_eq!(
            in_our_words(["dvs", "help", "dc", "ls"].map(OsString::from).into_iter()),
            ["dvs", "dc", "ls", "--help"]
        );
        assert_eq!(refused("dvs port shop").hint.unwrap(), "dvs port ls shop");
        assert_eq!(refused("dvs fs snapshot shop").hint.unwrap(), "dvs fs snapshot ls shop");
        assert!(refused("dvs ps -l").hint.unwrap().contains("jq"));
    }

    #[test]
    fn signal_may_be_typed_as_kill_has_it() {
        let words = |line: &str| {
            let words = in_our_words(line.split(' ').map(OsString::from));
            words.into_iter().map(|word| word.into_string().unwrap()).collect::<Vec<_>>().join(" ")
        };
        assert_eq!(words("dvs kill -9 shop 65600"), "dvs kill --signal=9 shop 65600");
        assert_eq!(words("dvs -o json kill shop -SIGKILL 65600"), "dvs -o json kill shop --signal=SIGKILL 65600");
        for same in ["dvs kill -s 9 shop 65600", "dvs kill -h", "dvs run shop kill -9 1", "dvs ps", "dvs dev kill -9"] {
            assert_eq!(words(same), same);
        }
    }

    #[test]
    fn missing_command_is_asked_for_without_naming_those_of_the_machinery() {
        let failure = refused("dvs --cluster e");
        assert_eq!((failure.status, failure.hint.as_deref()), (2, Some("dvs --help")));
        assert!(!failure.what.contains("keeper"), "{}", failure.what);
    }

    #[test]
    fn command_of_the_machinery_is_never_proposed() {
        for typed in ["keepr", "proxyy", "shel", "intern"] {
            assert_eq!(refused(&format!("dvs {typed}")).hint.unwrap(), "dvs --help", "{typed}");
        }
    }

    #[test]
    fn program_that_was_not_reached_because_of_the_command_line_has_the_status_of_docker() {
        for line in [
            "dvs run",
            "dvs run shop",
            "dvs run --bogus shop true",
            "dvs --at n1 exec -u a:b:c shop true",
            "dvs attach shop x",
        ] {
            assert_eq!(refused(line).status, 125, "{line}");
        }
        assert_eq!(refused("dvs ps --bogus shop").status, 2);
    }
}
