//! Long files: how fast one is read for the first time, and written until it is durable, where servers are on another
//! node. Beside streams between two nodes, plain and encrypted, and the machine's own file system.

use std::path::Path;

use super::{DC, DISK};
use crate::Outcome;
use crate::containers::read;
use crate::containers::results::{Manner, Results, Subject};
use crate::containers::testbed::{NODES, Testbed, native};
use crate::mechanism::Mechanism;
use crate::run::Streams;

const BYTES: &str = "268435456";
/// A stream is counted for so long.
const SECONDS: f64 = 0.5;
/// Of the slower one of a stream and the machine's own file system.
const SHARE_OF_WRITES: f64 = 0.4;

pub fn measure(results: &mut Results, dvs: &Path, rounds: u32) -> Outcome<()> {
    measure_with(results, dvs, rounds, "false")?;
    measure_with(results, dvs, rounds, "true")
}

fn measure_with(results: &mut Results, dvs: &Path, rounds: u32, tls: &str) -> Outcome<()> {
    let (first, durable, peer, mechanism) = match tls {
        "true" => (Subject::ColdReadTls, Subject::FarWriteTls, Manner::Rustls, Mechanism::RustlsBulk),
        _ => (Subject::ColdReadPlain, Subject::FarWritePlain, Manner::Tcp, Mechanism::TcpBulk),
    };
    let testbed = Testbed::up(dvs, &["--link-tls", tls])?;
    testbed.container(DC, &DISK)?;
    let streams = Streams::new(SECONDS)?;
    let own = testbed.path().join("long").to_string_lossy().into_owned();
    for round in 0..rounds {
        let file = format!("/dc/long{round}");
        let stream = streams.measure(mechanism, round)?;
        results.add(first, peer, round, stream);
        let disk: f64 = read(&native(&["long-file", &own, BYTES])?)?;
        results.add(durable, Manner::Native, round, disk);
        results.add(durable, Manner::Allowed, round, SHARE_OF_WRITES * disk.min(stream));
        let written = testbed.program(DC, NODES[2], &["long-file", &file, BYTES])?;
        results.add(durable, Manner::Container, round, read(&written)?);
        results.add(first, Manner::Container, round, read(&testbed.program(DC, NODES[1], &["read-file", &file])?)?);
        testbed.say(&["run", DC, "--node", NODES[2], "--", "rm", &file])?;
    }
    Ok(())
}
