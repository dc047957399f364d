//! What it costs programs that a disk has copies on two nodes, and how long they wait when one of them is lost: beside
//! a container whose disk has one copy, and the machine's own file system, in one run and in turn. And what disks over
//! NBD give ([`nbd`]).

mod fua;
mod nbd;
mod resync;

use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use clap::ValueEnum;
use serde_json::Value;

use crate::Outcome;
use crate::containers::results::{Manner, Part, Results, Subject};
use crate::containers::testbed::{NODES, Testbed, eventually, native};
use crate::containers::{Common, read};

/// Both have disk and file server on the first node, where programs write; the other copy is on the second. Who waits
/// for what is lost runs on the third.
const TWO: &str = "two";
const ONE: &str = "one";
const DISK: [&str; 4] = ["--disk", "1G", "--disk-node", NODES[0]];
/// Durable writes in a round.
const WRITES: &str = "300";
const LONG_BYTES: &str = "134217728";
const SMALL_FILES: &str = "500";
/// Something is written before and after what is lost.
const BEFORE: Duration = Duration::from_secs(1);
const AFTER: Duration = Duration::from_secs(6);
const AFTER_DISK: Duration = Duration::from_secs(2);

#[derive(clap::Args)]
pub struct Arguments {
    /// How often the node of disk and file server is lost, and how often the disk server alone.
    #[arg(long, default_value_t = 6, value_parser = clap::value_parser!(u32).range(1..=1000))]
    losses: u32,
    /// What is measured.
    #[arg(long, value_enum, value_delimiter = ',', default_values_t = Section::value_variants().to_vec())]
    section: Vec<Section>,
    #[command(flatten)]
    common: Common,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum Section {
    /// Durable writes of files and of disks, a long file, small files.
    Writes,
    /// The disk server is killed; its node is lost.
    Losses,
    /// A copy comes back that missed writes to 1 % of the extents.
    Resync,
    /// A disk over NBD, of an image alone and of a container, beside other servers of images.
    Nbd,
}

pub fn run(arguments: &Arguments) -> Outcome<ExitCode> {
    let dvs = arguments.common.binary()?;
    let mut results = Results::new();
    if arguments.section.contains(&Section::Writes) {
        writes(&mut results, &dvs, arguments.common.rounds)?;
    }
    if arguments.section.contains(&Section::Losses) {
        losses(&mut results, &dvs, arguments.losses)?;
    }
    if arguments.section.contains(&Section::Resync) {
        resync::measure(&mut results, &dvs, arguments.common.rounds)?;
    }
    if arguments.section.contains(&Section::Nbd) {
        nbd::measure(&mut results, &dvs, arguments.common.rounds)?;
    }
    arguments.common.finish(&results, Part::Disks)
}

fn writes(results: &mut Results, dvs: &Path, rounds: u32) -> Outcome<()> {
    let testbed = Testbed::up(dvs, &[])?;
    testbed.container(TWO, &[&DISK[..], &["--replicas", "2"]].concat())?;
    testbed.container(ONE, &DISK)?;
    await_both(&testbed)?;
    let disks = fua::Disks::serve(&testbed)?;
    // The file system that images lie on.
    let place = testbed.path().join("native");
    std::fs::create_dir(&place)?;
    let place = place.to_string_lossy().into_owned();
    let measures = [
        (Subject::DurableWrite, "durable-writes", WRITES),
        (Subject::LongFile, "long-file", LONG_BYTES),
        (Subject::SmallFiles, "small-files", SMALL_FILES),
    ];
    for round in 0..rounds {
        for (subject, program, count) in measures {
            let of = |place: &str| [program.to_owned(), format!("{place}/{program}"), count.to_owned()];
            let inside = |dc: &str| -> Outcome<f64> {
                read(&testbed.program(dc, NODES[0], &of("/dc").each_ref().map(String::as_str))?)
            };
            let native: f64 = read(&native(&of(&place).each_ref().map(String::as_str))?)?;
            results.add(subject, Manner::Native, round, native);
            results.add(subject, Manner::OneCopy, round, inside(ONE)?);
            results.add(subject, Manner::Container, round, inside(TWO)?);
            if subject == Subject::DurableWrite {
                let trip = testbed.far_trip(TWO, "0.3")?;
                results.add(Subject::FarSendrec, Manner::Container, round, trip);
                results.add(Subject::FuaWrite, Manner::Allowed, round, 2.0 * (trip + native));
                results.add(Subject::FuaWrite, Manner::OneCopy, round, disks.write(fua::ONE)?);
                results.add(Subject::FuaWrite, Manner::Container, round, disks.write(fua::TWO)?);
            }
        }
    }
    Ok(())
}

/// Until both copies have everything.
fn await_both(testbed: &Testbed) -> Outcome<()> {
    await_copies(testbed, &[TWO])
}

fn await_copies(testbed: &Testbed, disk: &[&str]) -> Outcome<()> {
    eventually("both copies have everything", || {
        let copies = testbed.json(&[&["disk", "inspect"], disk].concat()).ok()?["copies"].clone();
        let has_all = |copy: &Value| copy["state"] == "current" || copy["state"] == "primary";
        copies.as_array()?.iter().all(has_all).then_some(())
    })
}

/// Does that to a disk, one step after the other, on the first node.
fn qemu_io(testbed: &Testbed, uri: &str, steps: impl Iterator<Item = String>) -> Outcome<String> {
    let steps: Vec<String> = steps.flat_map(|step| ["-c".to_owned(), step]).collect();
    let asked = ["dev", "exec", NODES[0], "--", "qemu-io", "-f", "raw"];
    testbed.say(&asked.into_iter().chain(steps.iter().map(String::as_str)).chain([uri]).collect::<Vec<_>>())
}

/// On etcd, as a cluster of several machines has it.
fn losses(results: &mut Results, dvs: &Path, losses: u32) -> Outcome<()> {
    let mut testbed = Testbed::up(dvs, &["--engine", "etcd"])?;
    testbed.container(TWO, &[&DISK[..], &["--replicas", "2", "--ds-node", NODES[2]]].concat())?;
    testbed.ask(NODES[2]);
    for round in 0..losses {
        results.add(Subject::LostDisk, Manner::Container, round, pause(&testbed, AFTER_DISK, || kill_disk(&testbed))?);
    }
    for round in 0..losses {
        let led = std::cell::Cell::new(false);
        let pause = pause(&testbed, AFTER, || {
            let node = node_of_disk(&testbed)?;
            led.set(leads(&testbed, &node)?);
            testbed.say(&["dev", "kill", &node]).map(drop)
        })?;
        let subject = if led.get() { Subject::LostStorageAndLeader } else { Subject::LostStorage };
        results.add(subject, Manner::Container, round, pause);
        for node in NODES.into_iter().filter(|node| *node != NODES[2]) {
            let _ = testbed.say(&["dev", "restart", node]);
        }
    }
    Ok(())
}

/// The longest write of a program of the third node, while that is done.
fn pause(testbed: &Testbed, after: Duration, what: impl FnOnce() -> Outcome<()>) -> Outcome<f64> {
    await_both(testbed)?;
    let mut writer = testbed.begin(TWO, NODES[2], &["longest-pause", "/dc/pause"])?;
    std::thread::sleep(BEFORE);
    what()?;
    std::thread::sleep(after);
    writer.end_input();
    read(&writer.line()?)
}

fn node_of_disk(testbed: &Testbed) -> Outcome<String> {
    let shown = testbed.json(&["disk", "inspect", TWO])?;
    Ok(shown["node"].as_str().ok_or("a disk that stands nowhere")?.to_owned())
}

fn kill_disk(testbed: &Testbed) -> Outcome<()> {
    testbed.about(TWO, &node_of_disk(testbed)?, "disk", "kill -9 $PID").map(drop)
}

/// Whether the node's member leads etcd.
fn leads(testbed: &Testbed, node: &str) -> Outcome<bool> {
    let number = 1 + NODES.iter().position(|one| *one == node).ok_or("no such node")?;
    let tls = testbed.path().join(format!("dev/dev/{node}/tls"));
    let file = |option: &str, name: &str| format!("--{option}={}", tls.join(name).display());
    let address = format!("--endpoints=https://10.255.0.{number}:2379");
    let [ca, cert, key] = [file("cacert", "ca.crt"), file("cert", "node.crt"), file("key", "node.key")];
    let asked = ["dev", "exec", node, "--", "env", "ETCDCTL_API=3", "etcdctl", &address, &ca, &cert, &key];
    let said = testbed.say(&[&asked[..], &["endpoint", "status", "-w", "json"]].concat())?;
    let status = &read::<Value>(&said)?[0]["Status"];
    Ok(status["leader"].is_u64() && status["leader"] == status["header"]["member_id"])
}
