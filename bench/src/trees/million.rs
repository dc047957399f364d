//! A tree of a million files: made on one node, listed twice on another one, opened again by a file server after it was
//! killed.

use std::time::Instant;

use super::DC;
use crate::Outcome;
use crate::containers::results::{Manner, Results, Subject};
use crate::containers::testbed::{NODES, Testbed};

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
        let status = testbed.about(DC, NODES[1], "gate", "cat /proc/$PID/status")?;
        let resident = status.lines().find_map(|line| line.strip_prefix("VmRSS:")?.split_whitespace().next());
        let kib: f64 = resident.ok_or("a process without memory")?.parse()?;
        results.add(memory, Manner::Container, 0, kib / 1024.0);
    }
    // Whatever was not in its last checkpoint is in its log.
    testbed.program(DC, NODES[2], &["many-files", "/dc/more", "1000", "1000"])?;
    let begun = Instant::now();
    testbed.about(DC, NODES[0], "fs", "kill -9 $PID")?;
    testbed.say(&["run", DC, "--node", NODES[1], "--", "sync", "-f", "/dc/many"])?;
    results.add(Subject::OpenMany, Manner::Container, 0, begun.elapsed().as_secs_f64() * 1e3);
    Ok(())
}
