//! The help of every command, as files that a reviewer sees change. `DVS_WRITE_SNAPSHOTS=1 cargo test -p dvs help`
//! writes them anew.

use std::path::{Path, PathBuf};

use clap::{Command, CommandFactory};

use crate::cli::Cli;

fn snapshots() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/help")
}

/// Every command with its path, hidden ones included.
fn walk(command: &Command, path: &str, found: &mut Vec<(String, Command)>) {
    found.push((path.to_owned(), command.clone()));
    for child in command.get_subcommands().filter(|child| child.get_name() != "help") {
        walk(child, &format!("{path}-{}", child.get_name()), found);
    }
}

pub fn commands() -> Vec<(String, Command)> {
    let mut root = Cli::command().term_width(100);
    root.build();
    let mut found = Vec::new();
    walk(&root, "dvs", &mut found);
    found
}

/// Trailing blanks say nothing and editors remove them.
fn help(mut command: Command) -> String {
    let text = command.render_help().to_string();
    text.lines().map(|line| format!("{}\n", line.trim_end())).collect()
}

#[test]
fn help_texts_are_the_reviewed_ones() {
    let write = std::env::var_os("DVS_WRITE_SNAPSHOTS").is_some();
    let mut changed = Vec::new();
    for (name, command) in commands() {
        let path = snapshots().join(format!("{name}.txt"));
        let text = help(command);
        if write {
            std::fs::write(&path, &text).unwrap();
        } else if std::fs::read_to_string(&path).unwrap_or_default() != text {
            changed.push(format!("{}:\n{text}", path.display()));
        }
    }
    assert!(
        changed.is_empty(),
        "help changed; look at it, then DVS_WRITE_SNAPSHOTS=1 cargo test -p dvs help\n{}",
        changed.join("\n")
    );
}

#[test]
fn every_snapshot_belongs_to_a_command() {
    let known: Vec<String> = commands().into_iter().map(|(name, _)| format!("{name}.txt")).collect();
    for entry in std::fs::read_dir(snapshots()).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        assert!(known.contains(&name), "{name} is the help of no command");
    }
}

#[test]
fn every_command_people_type_teaches_with_examples() {
    for (name, command) in commands() {
        let leaf = command.get_subcommands().next().is_none();
        let typed = !name.starts_with("dvs-internal")
            && !command.is_hide_set()
            && !name.starts_with("dvs-server")
            && !name.starts_with("dvs-gate");
        let has_options = command
            .get_arguments()
            .any(|argument| !argument.is_global_set() && argument.get_id() != "help" && !argument.is_positional());
        if typed && leaf && has_options {
            let help = help(command);
            let needs = !["dvs-dev-down", "dvs-dev-kill", "dvs-dev-restart"].contains(&name.as_str());
            assert!(!needs || help.contains("Examples:"), "{name} has no examples");
        }
    }
}

#[test]
fn command_line_is_consistent() {
    Cli::command().debug_assert();
}

/// What a shell offers for each argument: `*` names that the daemon is asked for, else the values there are.
fn completions() -> String {
    use clap::ArgAction;
    use clap_complete::engine::{ArgValueCandidates, ArgValueCompleter};
    let is_of_the_machinery =
        |name: &str| ["dvs-internal", "dvs-gate", "dvs-server-"].iter().any(|of| name.starts_with(of));
    let mut text = String::new();
    for (name, command) in commands() {
        if command.is_hide_set() || is_of_the_machinery(&name) && name != "dvs-server-move" {
            continue;
        }
        text.push_str(&name.replacen("dvs-", "dvs ", 1));
        for argument in command.get_arguments().filter(|it| !it.is_hide_set() && it.get_id() != "help") {
            // Those of every command are told once.
            if argument.is_global_set() && name != "dvs" {
                continue;
            }
            let called =
                argument.get_long().map_or_else(|| format!("<{}>", argument.get_id()), |long| format!("--{long}"));
            let is_asked =
                argument.get::<ArgValueCandidates>().is_some() || argument.get::<ArgValueCompleter>().is_some();
            let values: Vec<String> =
                argument.get_possible_values().iter().map(|value| value.get_name().to_owned()).collect();
            let offered = match (is_asked, argument.get_action()) {
                (true, _) => "=*".to_owned(),
                (false, ArgAction::Set | ArgAction::Append) if !values.is_empty() => format!("={}", values.join("|")),
                _ => String::new(),
            };
            text.push_str(&format!("\n    {called}{offered}"));
        }
        text.push('\n');
    }
    text
}

#[test]
fn completions_are_the_reviewed_ones() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/completion.txt");
    let text = completions();
    if std::env::var_os("DVS_WRITE_SNAPSHOTS").is_some() {
        std::fs::write(&path, &text).unwrap();
    }
    let there = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        there == text,
        "what a shell offers changed; look at it, then DVS_WRITE_SNAPSHOTS=1 cargo test -p dvs completions\n{text}"
    );
}

#[test]
fn whatever_has_a_name_in_the_cluster_is_completed() {
    // A name that nobody has yet.
    const NEW: [&str; 6] =
        ["dvs cluster-init", "dvs cluster-restore", "dvs daemon", "dvs node-cert", "dvs node-join", "dvs node-token"];
    let mut command = String::new();
    for line in completions().lines() {
        let Some(argument) = line.strip_prefix("    ") else {
            command = line.to_owned();
            continue;
        };
        let is_name =
            ["<dc>", "<node>", "--node", "<pid>", "<pids>", "--beside", "<service>", "--context"].contains(&argument);
        let is_new = NEW.iter().any(|new| command.starts_with(new));
        assert!(!is_name || is_new, "{command}: {argument} is not completed");
    }
}
