//! What it costs to reach a container and to leave it, beside the same programs on the node and the kernel's own
//! forwarding; and how long people wait for the commands that they type most. In one run and in turn.
//!
//! - [`place`]: the container, the node's own programs, and a network behind a node.

mod place;

use std::path::Path;
use std::process::{Command, ExitCode, Stdio};
use std::time::Instant;

use clap::ValueEnum;

use crate::Outcome;
use crate::containers::results::{Manner, Part, Results, Subject};
use crate::containers::testbed::{DC, NODES, Testbed};
use crate::containers::{Common, median};
use place::{BIG, Place};

/// Commands of a round, one after the other.
const COMMANDS: usize = 25;
/// And at once.
const AT_ONCE: usize = 150;
/// Processes of each node, 1,000 together.
const SLEEPERS: [&str; 3] = ["334", "333", "333"];
const LISTINGS: usize = 9;

#[derive(clap::Args)]
pub struct Arguments {
    /// What is measured.
    #[arg(long, value_enum, value_delimiter = ',', default_values_t = Section::value_variants().to_vec())]
    section: Vec<Section>,
    #[command(flatten)]
    common: Common,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum Section {
    /// Requests and bytes through published ports, bytes through the way out.
    Network,
    /// `dvs run`, `dvs ps`.
    Commands,
}

pub fn run(arguments: &Arguments) -> Outcome<ExitCode> {
    let dvs = arguments.common.binary()?;
    let mut results = Results::new();
    if arguments.section.contains(&Section::Network) {
        network(&mut results, &dvs, arguments.common.rounds)?;
    }
    if arguments.section.contains(&Section::Commands) {
        commands(&mut results, &dvs, arguments.common.rounds)?;
    }
    arguments.common.finish(&results, Part::Reach)
}

fn network(results: &mut Results, dvs: &Path, rounds: u32) -> Outcome<()> {
    let testbed = Testbed::up(dvs, &[])?;
    let place = Place::prepare(&testbed)?;
    for round in 0..rounds {
        // The client is on the second node; the server stands on the first, the third only passes on.
        let [own, published, elsewhere] = [place.own(), place.published(), place.elsewhere()];
        let asked = [
            (Subject::Requests, &published, "32"),
            (Subject::RequestsElsewhere, &elsewhere, "32"),
            (Subject::OneByOne, &published, "1"),
        ];
        for (subject, at, connections) in asked {
            results.add(subject, Manner::Native, round, place.requests(&own, connections)?);
            results.add(subject, Manner::Container, round, place.requests(at, connections)?);
        }
        results.add(Subject::BulkIn, Manner::Forwarded, round, place.fetch(&place.forwarded())?);
        results.add(Subject::BulkIn, Manner::Container, round, place.fetch(&format!("{published}{BIG}"))?);
        results.add(Subject::BulkOut, Manner::Forwarded, round, place.fetch_forwarded()?);
        results.add(Subject::BulkOut, Manner::Container, round, place.fetch_inside()?);
    }
    Ok(())
}

fn commands(results: &mut Results, dvs: &Path, rounds: u32) -> Outcome<()> {
    let mut testbed = Testbed::up(dvs, &[])?;
    testbed.container(DC, &[])?;
    // A person at the first node.
    testbed.ask(NODES[0]);
    for round in 0..rounds {
        let (mut here, mut there) = (Vec::new(), Vec::new());
        for _ in 0..COMMANDS {
            here.push(takes(&testbed, &["run", DC, "--node", NODES[0], "--", "/bin/true"])?);
            there.push(takes(&testbed, &["run", DC, "--node", NODES[1], "--", "/bin/true"])?);
        }
        results.add(Subject::RunHere, Manner::Container, round, median(here)?);
        results.add(Subject::RunThere, Manner::Container, round, median(there)?);
        results.add(Subject::RunsAtOnce, Manner::Container, round, at_once(&testbed)?);
    }
    let asleep = NODES.into_iter().zip(SLEEPERS).map(|(node, count)| testbed.begin(DC, node, &["sleepers", count]));
    let _asleep = asleep.collect::<Outcome<Vec<_>>>()?;
    for round in 0..rounds {
        let listings = (0..LISTINGS).map(|_| takes(&testbed, &["ps", DC])).collect::<Outcome<_>>()?;
        results.add(Subject::Listing, Manner::Container, round, median(listings)?);
    }
    Ok(())
}

/// Milliseconds of a command that must succeed.
fn takes(testbed: &Testbed, arguments: &[&str]) -> Outcome<f64> {
    let begun = Instant::now();
    testbed.say(arguments)?;
    Ok(begun.elapsed().as_secs_f64() * 1e3)
}

/// Until the last of them has ended; none may fail.
fn at_once(testbed: &Testbed) -> Outcome<f64> {
    let nodes = NODES.into_iter().cycle();
    let quiet = |mut command: Command| command.stdout(Stdio::null()).spawn();
    let begun = Instant::now();
    let started = nodes
        .take(AT_ONCE)
        .map(|node| quiet(testbed.command(&["run", DC, "--node", node, "--", "/bin/true"])))
        .collect::<Vec<_>>();
    let mut failed = 0;
    for child in started {
        failed += u32::from(!child?.wait()?.success());
    }
    let took = begun.elapsed().as_secs_f64() * 1e3;
    if failed > 0 {
        return Err(format!("{failed} of {AT_ONCE} programs at once failed").into());
    }
    Ok(took)
}
