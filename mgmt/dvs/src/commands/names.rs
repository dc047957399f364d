//! Names that a shell offers at a tab, asked of the daemon that the typed line means.
//!
//! Quickly and silently: a daemon that does not answer, or an answer that makes no sense, offers nothing.

use std::ffi::OsString;
use std::time::Duration;

use clap::Parser;
use clap_complete::engine::{ArgValueCandidates, CompletionCandidate};
use client::{Client, Contexts, Error};

use super::{block_on, daemon_as_known};
use crate::cli::Global;

/// Whoever pressed the key waits for so long.
const PATIENCE: Duration = Duration::from_millis(500);

/// Containers.
pub fn containers() -> ArgValueCandidates {
    ArgValueCandidates::new(|| {
        asked(async |daemon| Ok(daemon.dcs().await?.into_iter().map(|dc| dc.spec.name).collect()))
    })
}

/// Nodes of the cluster.
pub fn nodes() -> ArgValueCandidates {
    ArgValueCandidates::new(|| {
        asked(async |daemon| Ok(daemon.nodes().await?.into_iter().map(|node| node.name).collect()))
    })
}

/// Development clusters.
pub fn clusters() -> ArgValueCandidates {
    ArgValueCandidates::new(|| typed().map(|global| offered(global.places().dev_names())).unwrap_or_default())
}

/// Who has access.
pub fn accesses() -> ArgValueCandidates {
    ArgValueCandidates::new(|| {
        asked(async |daemon| Ok(daemon.accesses().await?.into_iter().map(|access| access.name).collect()))
    })
}

/// Clusters elsewhere.
pub fn contexts() -> ArgValueCandidates {
    ArgValueCandidates::new(|| offered(Contexts::of_this_person().map(|all| all.names()).unwrap_or_default()))
}

/// Nodes of the development clusters.
pub fn dev_nodes() -> ArgValueCandidates {
    ArgValueCandidates::new(|| {
        let Some(global) = typed() else { return Vec::new() };
        let places = global.places();
        let wanted = |name: &String| global.cluster.as_ref().is_none_or(|cluster| cluster == name);
        let clusters = places.dev_names().into_iter().filter(wanted);
        let records = clusters.filter_map(|cluster| places.dev_record(&cluster).ok().flatten());
        offered(records.flat_map(|cluster| cluster.nodes).map(|node| node.name).collect())
    })
}

fn asked(question: impl AsyncFnOnce(Client) -> Result<Vec<String>, Error>) -> Vec<CompletionCandidate> {
    let Some(daemon) = typed().and_then(|global| daemon_as_known(&global).ok()) else { return Vec::new() };
    let answer = block_on(async { tokio::time::timeout(PATIENCE, question(daemon)).await });
    match answer {
        Ok(Ok(Ok(names))) => offered(names),
        _ => Vec::new(),
    }
}

/// The shell takes them as they are.
fn offered(mut names: Vec<String>) -> Vec<CompletionCandidate> {
    names.retain(|name| mgmt_api::valid_name(name));
    names.sort();
    names.dedup();
    names.into_iter().map(CompletionCandidate::new).collect()
}

#[derive(Parser)]
struct Globals {
    #[command(flatten)]
    global: Global,
}

/// The global options of the line that is being typed, and of the environment.
fn typed() -> Option<Global> {
    Globals::try_parse_from(globals(std::env::args_os())).ok().map(|parsed| parsed.global)
}

/// Those of the options that say which daemon is meant, with the program's name. The rest of the line is not finished.
fn globals(words: impl Iterator<Item = OsString>) -> Vec<OsString> {
    const MEANT: [&str; 5] = ["--context", "--socket", "--cluster", "--at", "--state-dir"];
    // Before it is how the shell calls us.
    let mut typed = words.skip_while(|word| word != "--").skip(1);
    let mut found: Vec<OsString> = typed.next().into_iter().collect();
    while let Some(word) = typed.next() {
        // What follows is a program's.
        if word == "--" {
            break;
        }
        let Some(text) = word.to_str() else { continue };
        if MEANT.contains(&text) {
            let Some(value) = typed.next() else { break };
            found.extend([word, value]);
        } else if text.split_once('=').is_some_and(|(option, _)| MEANT.contains(&option)) {
            found.push(word);
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_that_name_a_daemon_are_found_in_an_unfinished_line() {
        let found = |line: &str| {
            let words = globals(line.split(' ').map(OsString::from));
            words.into_iter().map(|word| word.into_string().unwrap()).collect::<Vec<_>>().join(" ")
        };
        assert_eq!(found("dvs -- dvs --cluster big dc inspect "), "dvs --cluster big");
        assert_eq!(found("dvs -- dvs ps -a --socket=/x/d.sock s"), "dvs --socket=/x/d.sock");
        assert_eq!(found("dvs -- dvs run shop --at n2 -- cat --socket /y"), "dvs --at n2");
        assert_eq!(found("dvs -- dvs ps --cluster"), "dvs");
        assert_eq!(found("dvs"), "");
    }
}
