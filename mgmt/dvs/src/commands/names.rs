//! Names that a shell offers at a tab, asked of the daemon that the typed line means.
//!
//! Quickly and silently: a daemon that does not answer, or an answer that makes no sense, offers nothing.

use std::ffi::OsString;
use std::time::Duration;

use clap::Parser;
use clap_complete::engine::{ArgValueCandidates, CompletionCandidate};
use client::{Client, Contexts, Error};
use mgmt_api::ServerKind;

use super::{block_on, daemon_as_known, ps};
use crate::cli::Global;
use crate::output::printable;

/// Whoever pressed the key waits for so long.
const PATIENCE: Duration = Duration::from_millis(500);

/// Containers.
pub fn containers() -> ArgValueCandidates {
    ArgValueCandidates::new(|| {
        asked(async |daemon| Ok(daemon.dcs().await?.into_iter().map(|dc| dc.spec.name).collect()))
    })
}

/// Processes of the container that the line names, each with what it runs.
pub fn pids() -> ArgValueCandidates {
    of_container(async |daemon, dc| {
        let living = daemon.processes(&dc).await?.processes.into_iter();
        let living = living.filter(|process| process.state != mgmt_api::ProcessState::Exited);
        Ok(living.map(|process| (process.pid.to_string(), Some(ps::command(&process.command)))).collect())
    })
}

/// The same, and programs that have ended, whose log is there.
pub fn programs() -> ArgValueCandidates {
    of_container(async |daemon, dc| {
        let all = daemon.processes(&dc).await?.processes.into_iter();
        Ok(all.map(|process| (process.pid.to_string(), Some(ps::command(&process.command)))).collect())
    })
}

/// Its services.
pub fn services() -> ArgValueCandidates {
    of_container(async |daemon, dc| {
        Ok(daemon.services(&dc).await?.into_iter().map(|service| (service.spec.name, None)).collect())
    })
}

/// Its services and their instances.
pub fn instances() -> ArgValueCandidates {
    of_container(async |daemon, dc| {
        let services = daemon.services(&dc).await?.into_iter();
        let named = services.flat_map(|service| {
            let instances = service.instances.into_iter().map(|instance| (instance.name, instance.node));
            std::iter::once((service.spec.name, None)).chain(instances).collect::<Vec<_>>()
        });
        Ok(named.collect())
    })
}

/// Whatever of it can be shown by itself.
pub fn parts() -> ArgValueCandidates {
    of_container(async |daemon, dc| {
        let services = daemon.services(&dc).await?.into_iter().map(|service| (service.spec.name, None));
        let placed = daemon.dc(&dc).await?.placement.instances.into_iter();
        let servers = placed.flat_map(|one| {
            let disk = one.volume.filter(|_| one.kind == ServerKind::DISK).map(|volume| volume.name);
            disk.into_iter().chain([one.name]).map(|name| (name, Some(one.node.clone()))).collect::<Vec<_>>()
        });
        let living = daemon.processes(&dc).await?.processes.into_iter();
        let processes = living.map(|process| (process.pid.to_string(), Some(ps::command(&process.command))));
        Ok(services.chain(servers).chain(processes).collect())
    })
}

/// Its disks.
pub fn disks() -> ArgValueCandidates {
    of_container(async |daemon, dc| {
        let placement = daemon.dc(&dc).await?.placement;
        let disks = placement.instances.into_iter().filter(|one| one.kind == ServerKind::DISK);
        Ok(disks.filter_map(|disk| Some((disk.volume?.name, Some(disk.node)))).collect())
    })
}

/// Ports that it publishes.
pub fn ports() -> ArgValueCandidates {
    of_container(async |daemon, dc| {
        let ports = daemon.ports(&dc).await?.into_iter();
        Ok(ports.map(|port| (port.spec.published.to_string(), Some(port.spec.to_string()))).collect())
    })
}

/// What a shell offers, and what it says of it.
type Offers = Vec<(String, Option<String>)>;

/// The container is the first word that is called like one; where there is only one it is that: inside, or on a small
/// cluster.
fn of_container(
    question: impl AsyncFn(&Client, String) -> Result<Offers, Error> + Send + Sync + 'static,
) -> ArgValueCandidates {
    ArgValueCandidates::new(move || {
        let words: Vec<String> = std::env::args().skip_while(|word| word != "--").skip(1).collect();
        let answer = answer(async |daemon| {
            let known: Vec<String> = daemon.dcs().await?.into_iter().map(|dc| dc.spec.name).collect();
            let meant = words.iter().find(|word| known.contains(word)).or(match known.as_slice() {
                [only] => Some(only),
                _ => None,
            });
            match meant {
                Some(dc) => question(&daemon, dc.clone()).await,
                None => Ok(Offers::new()),
            }
        });
        let is_safe = |(word, _): &(String, Option<String>)| {
            word.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_/".contains(&byte))
        };
        let offers = answer.unwrap_or_default().into_iter().filter(is_safe);
        let offer = |(word, what): (String, Option<String>)| {
            CompletionCandidate::new(word).help(what.map(|what| printable(&what).into()))
        };
        offers.map(offer).collect()
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
    answer(question).map(offered).unwrap_or_default()
}

fn answer<T>(question: impl AsyncFnOnce(Client) -> Result<T, Error>) -> Option<T> {
    let daemon = daemon_as_known(&typed()?).ok()?;
    block_on(async { tokio::time::timeout(PATIENCE, question(daemon)).await }).ok()?.ok()?.ok()
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
