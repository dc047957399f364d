//! Disks over NBD: of an image by itself, and of a container, beside nbdkit and qemu-nbd. All servers and their client,
//! fio, run on one node and meet at its loopback; their images lie on one file system.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

use serde_json::Value;

use crate::Outcome;
use crate::containers::read;
use crate::containers::results::{Manner, Results, Subject};
use crate::containers::testbed::{NODES, Served, Testbed, eventually};

const DC: &str = "nbd";
const DESCRIPTION: &str = "name = 'nbd'
nodes = ['n1', 'n2', 'n3']
disks = [{ name = 'root', bytes = 67108864, node = 'n1', replicas = 1 },
  { name = 'data', bytes = BYTES, node = 'n1', replicas = 1 }]
";
const BYTES: u64 = 512 << 20;
const WARM: &str = "--ramp_time=200ms";
const LASTS: &str = "--runtime=1";

/// What is asked, for how many bytes, how many at a time.
const ACCESSES: [(Subject, &str, &str, &str); 6] = [
    (Subject::NbdRead, "randread", "4k", "1"),
    (Subject::NbdWrite, "randwrite", "4k", "1"),
    (Subject::NbdReadDeep, "randread", "4k", "32"),
    (Subject::NbdWriteDeep, "randwrite", "4k", "32"),
    (Subject::NbdReadLong, "read", "1M", "4"),
    (Subject::NbdWriteLong, "write", "1M", "4"),
];

/// Where each is found.
struct Exported {
    manner: Manner,
    uri: String,
    _server: Option<Served>,
}

pub fn measure(results: &mut Results, dvs: &Path, rounds: u32) -> Outcome<()> {
    let testbed = Testbed::up(dvs, &[])?;
    let exported = exported(&testbed, dvs)?;
    for one in &exported {
        let is_there = || fio(&testbed, one, "write", "1M", "4", &[&format!("--size={BYTES}")]).ok();
        // What is read has been written.
        eventually("a server of a disk", is_there)?;
    }
    for round in 0..rounds {
        for (subject, how, block, depth) in ACCESSES {
            for one in &exported {
                let size = format!("--size={BYTES}");
                let said = fio(&testbed, one, how, block, depth, &[&size, "--time_based", WARM, LASTS])?;
                let job = &said["jobs"][0][if how.ends_with("read") { "read" } else { "write" }];
                let value = match block {
                    "4k" => job["iops"].as_f64(),
                    _ => job["bw_bytes"].as_f64().map(|bytes| bytes / 1e6),
                };
                results.add(subject, one.manner, round, value.ok_or("fio tells no figures")?);
            }
        }
    }
    Ok(())
}

fn exported(testbed: &Testbed, dvs: &Path) -> Outcome<Vec<Exported>> {
    let place = testbed.path().join("images");
    std::fs::create_dir(&place)?;
    let image = |name: &str| -> Outcome<String> {
        let path = place.join(name);
        // Nothing of it is a hole, as in a container's.
        let file = File::create(&path)?;
        let zeros = vec![0; 1 << 20];
        (0..BYTES).step_by(zeros.len()).try_for_each(|at| file.write_all_at(&zeros, at))?;
        Ok(path.to_string_lossy().into_owned())
    };
    let binary = dvs.to_string_lossy();
    let (alone, nbdkit, qemu) = (image("alone")?, image("nbdkit")?, image("qemu")?);
    let here = |manner, port: u16, name: &str, server| Exported {
        manner,
        uri: format!("nbd://127.0.0.1:{port}/{name}"),
        _server: server,
    };
    let serve = |words: &[&str]| testbed.serve(NODES[0], words).map(Some);
    let kit = ["nbdkit", "--foreground", "--ipaddr", "127.0.0.1", "--port", "10902", "file"];
    let of_qemu = ["qemu-nbd", "--persistent", "--shared=8", "--cache=writeback", "--format=raw", "--bind=127.0.0.1"];
    let description = testbed.path().join("dc.toml");
    std::fs::write(&description, DESCRIPTION.replace("BYTES", &BYTES.to_string()))?;
    testbed.say(&["dc", "create", "-f", &description.to_string_lossy(), "--start"])?;
    testbed.say(&["disk", "export", DC, "--listen", "127.0.0.1:10900"])?;
    Ok(vec![
        here(Manner::Container, 10900, "data", None),
        here(Manner::Alone, 10901, "disk", serve(&[&binary, "alone", "disk", &alone, "--listen", "127.0.0.1:10901"])?),
        here(Manner::Nbdkit, 10902, "", serve(&[&kit[..], &[&nbdkit]].concat())?),
        here(Manner::QemuNbd, 10903, "", serve(&[&of_qemu[..], &["--port=10903", &qemu]].concat())?),
    ])
}

fn fio(testbed: &Testbed, to: &Exported, how: &str, block: &str, depth: &str, more: &[&str]) -> Outcome<Value> {
    let uri = format!("--uri={}", to.uri);
    let (how, block, depth) = (format!("--rw={how}"), format!("--bs={block}"), format!("--iodepth={depth}"));
    let asked = ["dev", "exec", NODES[0], "--", "fio", "--name=nbd", "--ioengine=nbd", "--output-format=json"];
    let said = testbed.say(&[&asked[..], &[&uri, &how, &block, &depth, "--randrepeat=0"], more].concat())?;
    // A line of its engine comes before what it was asked for.
    let json = said.find('{').and_then(|at| said.get(at..)).ok_or_else(|| format!("fio said: {said}"))?;
    read(json)
}
