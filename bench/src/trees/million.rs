//! A tree of a million files: made on one node, listed twice on another one, opened again by a file server after it was
//! killed.

use std::time::Instant;

use serde_json::Value;

use super::DC;
use crate::Outcome;
use crate::containers::results::{Manner, Results, Subject};
use crate::containers::testbed::{NODES, Testbed, eventually};

const FILES_PER_DIRECTORY: u32 = 1000;
/// Names and attributes alone.
const DISK: [&str; 4] = ["--disk", "16G", "--disk-node", NODES[0]];

pub fn measure(results: &mut Results, dvs: &std::path::Path, files: u32) -> Outcome<()> {
    let testbed = Testbed::up(dvs, &[])?;
    testbed.container(DC, &DISK)?;
    let begun = Instant::now();
    testbed.program(DC, NODES[2], &["many-files", "/dc/many", &files.to_string(), &FILES_PER_DIRECTORY.to_string()])?;
    results.add(Subject::MakeMany, Manner::Container, 0, f64::from(files) / begun.elapsed().as_secs_f64());
    for (listed, memory) in [(Subject::ListMany, Subject::Memory), (Subject::ListManyAgain, Subject::MemoryAgain)] {
        let begun = Instant::now();
        let count =
            testbed.say(&["run", DC, "--node", NODES[1], "--", "sh", "-c", "ls -lR /dc/many | grep -c '^-'"])?;
        results.add(listed, Manner::Container, 0, begun.elapsed().as_secs_f64() * 1e3);
        if count.trim() != files.to_string() {
            return Err(format!("{} files are listed, not {files}", count.trim()).into());
        }
        let status = on(&testbed, NODES[1], "gate", |pid| format!("cat /proc/{pid}/status"))?;
        let resident = status.lines().find_map(|line| line.strip_prefix("VmRSS:")?.split_whitespace().next());
        let kib: f64 = resident.ok_or("a process without memory")?.parse()?;
        results.add(memory, Manner::Container, 0, kib / 1024.0);
    }
    // Whatever was not in its last checkpoint is in its log.
    testbed.program(DC, NODES[2], &["many-files", "/dc/more", "1000", "1000"])?;
    let begun = Instant::now();
    on(&testbed, NODES[0], "fs", |pid| format!("kill -9 {pid}"))?;
    testbed.say(&["run", DC, "--node", NODES[1], "--", "sync", "-f", "/dc/many"])?;
    results.add(Subject::OpenMany, Manner::Container, 0, begun.elapsed().as_secs_f64() * 1e3);
    Ok(())
}

/// Asks the machine of a node about the container's part there.
fn on(testbed: &Testbed, node: &str, kind: &str, what: impl Fn(u64) -> String) -> Outcome<String> {
    let pid = eventually("the part of the container", || {
        let shares = testbed.json(&["dc", "inspect", DC]).ok()?["shares"].clone();
        let share = shares.as_array()?.iter().find(|share| share["node"] == *node)?;
        let parts = ["servers", "gates"].into_iter().filter_map(|parts| share[parts].as_array());
        let mut parts = parts.flatten().filter(|part: &&Value| part["kind"] == *kind);
        parts.next()?["pid"].as_u64()
    })?;
    testbed.say(&["dev", "exec", node, "--", "sh", "-c", &what(pid)])
}
