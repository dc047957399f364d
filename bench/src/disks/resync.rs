//! What a copy is sent that missed a part of what was written.

use crate::Outcome;
use crate::containers::results::{Manner, Results, Subject};
use crate::containers::testbed::{NODES, Testbed, eventually};

const DC: &str = "resync";
const DISK: &str = "data";
const DESCRIPTION: &str = "name = 'resync'
nodes = ['n1', 'n2', 'n3']
disks = [{ name = 'root', bytes = 67108864, node = 'n1', replicas = 1 },
  { name = 'data', bytes = 2147483648, node = 'n1', replicas = 2 }]
";
const AT: &str = "127.0.0.1:10911";
/// Of 1 MiB each.
const EXTENTS: u64 = 2048;
/// One in a hundred; 4 KiB of each are written.
const CHANGED: u64 = EXTENTS / 100;

pub fn measure(results: &mut Results, dvs: &std::path::Path, rounds: u32) -> Outcome<()> {
    let testbed = Testbed::up(dvs, &[])?;
    let description = testbed.path().join("resync.toml");
    std::fs::write(&description, DESCRIPTION)?;
    testbed.say(&["dc", "create", "-f", &description.to_string_lossy(), "--start"])?;
    super::await_copies(&testbed, &[DC, DISK])?;
    testbed.say(&["disk", "export", DC, DISK, "--node", NODES[0], "--listen", AT])?;
    write(&testbed, (0..EXTENTS).map(|extent| format!("write -P 1 {extent}M 1M")))?;
    for round in 0..rounds {
        testbed.say(&["dev", "kill", NODES[1]])?;
        eventually("the other copy is left behind", || (state(&testbed)? == "behind").then_some(()))?;
        let at = |number: u64| (number * 97 + u64::from(round) * 13) % EXTENTS;
        write(&testbed, (0..CHANGED).map(|number| format!("write -P 2 {}M 4k", at(number))))?;
        testbed.say(&["dev", "restart", NODES[1]])?;
        super::await_copies(&testbed, &[DC, DISK])?;
        results.add(Subject::Resync, Manner::Container, round, sent(&testbed)? / (CHANGED << 20) as f64);
    }
    Ok(())
}

fn write(testbed: &Testbed, steps: impl Iterator<Item = String>) -> Outcome<()> {
    super::qemu_io(testbed, &format!("nbd://{AT}/{DISK}"), steps.chain(["flush".to_owned()])).map(drop)
}

fn state(testbed: &Testbed) -> Option<String> {
    let copies = testbed.json(&["disk", "inspect", DC, DISK]).ok()?["copies"].clone();
    let other = copies.as_array()?.iter().find(|copy| copy["node"] == NODES[1])?["state"].clone();
    other.as_str().map(str::to_owned)
}

/// Bytes that the process of the other copy has written since it began.
fn sent(testbed: &Testbed) -> Outcome<f64> {
    let said = testbed.about(DC, NODES[1], "copy", "cat /proc/$PID/io")?;
    let written = said.lines().find_map(|line| line.strip_prefix("wchar: ")).ok_or("no figures of its writes")?;
    Ok(written.trim().parse()?)
}
