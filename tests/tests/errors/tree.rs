//! The commands as the binary tells them, and lines that make no sense to any cluster.

use std::collections::BTreeSet;
use std::process::Command;

use end_to_end::{Cluster, dvs_binary};

use crate::table::{Row, TABLE};
use crate::world::{Files, Tried, World, demand_none, try_all};

fn help(words: &[String]) -> String {
    let mut command = Command::new(dvs_binary());
    command.args(words).arg("--help").env_remove("DVS_CONTEXT");
    let done = command.output().expect("dvs starts");
    assert!(done.status.success(), "{words:?}: {done:?}");
    String::from_utf8(done.stdout).expect("help is text")
}

/// Names below a heading of the help, at its depth of indentation.
fn commands_in(text: &str) -> Vec<String> {
    let listed = text.lines().skip_while(|line| *line != "Commands:").skip(1).take_while(|line| !line.is_empty());
    let named = listed.filter(|line| line.starts_with("  ") && !line.starts_with("   "));
    named.filter_map(|line| line.split_whitespace().next().map(str::to_owned)).collect()
}

/// Every command that does something, with the line that shows how it is typed.
fn tree() -> Vec<(String, String)> {
    let (mut found, mut open) = (Vec::new(), vec![Vec::<String>::new()]);
    while let Some(words) = open.pop() {
        let text = help(&words);
        let usage = text.lines().find_map(|line| line.strip_prefix("Usage: ")).expect("a usage").to_owned();
        let children = commands_in(&text);
        // One that needs a command of its own does nothing by itself.
        if children.is_empty() || !usage.ends_with("<COMMAND>") {
            found.push((words.join(" "), usage));
        }
        open.extend(children.into_iter().map(|child| [&words[..], &[child]].concat()));
    }
    found.sort();
    found
}

#[test]
fn every_command_that_the_binary_names_is_in_the_table_and_no_other() {
    let told: BTreeSet<String> = tree().into_iter().map(|(words, _)| words).collect();
    let here: BTreeSet<String> = TABLE.iter().map(|row| row.typed.to_owned()).collect();
    assert_eq!(here.len(), TABLE.len(), "a command is in the table twice");
    let missing: Vec<&String> = told.difference(&here).collect();
    let stale: Vec<&String> = here.difference(&told).collect();
    assert!(missing.is_empty() && stale.is_empty(), "not in the table: {missing:?}; no commands: {stale:?}");
    let poor: Vec<&str> = TABLE.iter().filter(|row| row.wrong.is_empty()).map(|row| row.typed).collect();
    assert!(poor.is_empty(), "commands without a line that makes no sense: {poor:?}");
}

#[test]
fn statuses_of_the_table_are_those_that_the_help_documents() {
    let documented = |text: &str| -> BTreeSet<i32> {
        let section = text.split("Exit status:").nth(1).expect("a section of exit statuses");
        let section = section.split("\n\n").next().unwrap_or_default();
        section.split(|symbol: char| !symbol.is_ascii_digit()).filter_map(|word| word.parse().ok()).collect()
    };
    let of_all = documented(&help(&[]));
    let of_run = documented(&help(&["run".to_owned()]));
    for row in TABLE {
        let statuses = row.wrong.iter().map(|(_, status, _)| *status).chain([row.status(), row.usage_status()]);
        for status in statuses {
            let is_documented =
                of_all.contains(&status) || (matches!(row.typed, "run" | "dev exec") && of_run.contains(&status));
            assert!(is_documented, "{}: {status} is not documented", row.typed);
        }
    }
}

/// Words of a usage that cannot be left out, and are no options.
fn needs_operands(usage: &str) -> bool {
    let mut depth = 0;
    usage.chars().any(|symbol| {
        depth += i32::from(symbol == '[') - i32::from(symbol == ']');
        symbol == '<' && depth == 0
    })
}

#[test]
fn options_that_nobody_knows_and_operands_that_are_missing_have_the_status_of_usage_and_leave_nothing() {
    let files = Files::new();
    let before = files.listed();
    let mut lines = Vec::new();
    for (typed, usage) in tree() {
        let row: &'static Row =
            TABLE.iter().find(|row| row.typed == typed).expect("another test says which is missing");
        let mut add = |line: &[&str]| {
            let words: Vec<String> = line.iter().map(|word| (*word).to_owned()).collect();
            let command = files.dvs(&typed.split(' ').chain(line.iter().copied()).collect::<Vec<_>>());
            lines.push((row, words, command));
        };
        add(&["--no-such-option"]);
        add(&["--output", "poem"]);
        if needs_operands(&usage) {
            add(&[]);
        }
    }
    let count = lines.len();
    let tried = try_all(lines);
    assert!(tried.len() == count && count > 2 * 60, "{count} lines");
    demand_none("usage", tried.iter().filter_map(|one| one.demand_refusal(one.row.usage_status(), "").err()).collect());
    assert!(files.listed() == before, "something was made");
}

#[test]
fn names_and_values_that_cannot_be_are_refused_by_every_command_and_leave_everything_as_it_was() {
    let world = World::begin(Cluster::up(2), "n1", "n2");
    let (decided, listed) = (world.decided("n1"), world.files.listed());
    let mut expected = Vec::new();
    for row in TABLE {
        for (line, status, part) in row.wrong {
            let words = world.files.fill(line);
            let mut command = world.at("n1", row.typed, &words);
            // These look for the cluster themselves.
            if row.typed.starts_with("dev ") {
                command.env_remove("DVS_SOCKET");
            }
            expected.push((row, words, command, *status, world.files.fill_word(part)));
        }
    }
    let mut faults = Vec::new();
    // One after the other: some would change the cluster if they were not refused, and the others would be blamed.
    for (row, words, command, status, part) in expected {
        let tried = Tried::of(row, words, command);
        let (first, rest) = (tried.demand_refusal(status, &part), &mut faults);
        rest.extend(several(&tried, first));
        let now = world.files.listed();
        if now != listed {
            let more: Vec<_> = now.keys().filter(|path| !listed.contains_key(*path)).collect();
            faults.push(format!("{}: it left {more:?}, or changed a file", tried.words()));
            break;
        }
    }
    demand_none("wrong arguments", faults);
    assert_eq!(world.decided("n1"), decided);
}

/// Of several processes each that did not get its signal is told; the last one with what to try.
fn several(tried: &Tried, outcome: Result<(), String>) -> Option<String> {
    let lines = tried.said().lines().filter(|line| line.starts_with("dvs: ")).count();
    let is_told_of_each = tried.row.typed == "kill" && lines == 2 && tried.done.status.code() == Some(1);
    outcome.err().filter(|_| !is_told_of_each)
}
