//! What people feel of a file tree whose servers are on another node: beside a FUSE pass-through to the machine's own
//! file system, which is what a file tree of user space can be on this kernel, and beside that file system itself.
//!
//! The pass-through is libfuse's own example, with the times that our kernels are told.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};

use rustix::mount::{UnmountFlags, unmount};

use crate::Outcome;
use crate::containers::results::{Manner, Part, Results, Subject};
use crate::containers::testbed::{NODES, Testbed, eventually, native};
use crate::containers::tree::Tree;
use crate::containers::{Common, read};
use crate::ending::{Registered, clean_up_by};

const DC: &str = "trees";
/// Its servers are on the first node, its files are written on the third, and what is measured is on the second.
const DISK: [&str; 4] = ["--disk", "2G", "--disk-node", NODES[0]];
/// Where Debian puts it.
const EXAMPLE: &str = "/usr/share/doc/libfuse3-dev/examples/passthrough_ll.c";
/// Files that each of three nodes makes in one directory at a time.
const CROWD: &str = "20";

#[derive(clap::Args)]
pub struct Arguments {
    /// How many small files there are.
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u32).range(25..=100_000))]
    files: u32,
    #[command(flatten)]
    common: Common,
}

pub fn run(arguments: &Arguments) -> Outcome<ExitCode> {
    let dvs = arguments.common.binary()?;
    let mut results = Results::new();
    let testbed = Testbed::up(&dvs, &[])?;
    testbed.container(DC, &DISK)?;
    let mounted = PassThrough::mount(testbed.path())?;
    let place = testbed.path().join("native");
    std::fs::create_dir(&place)?;
    let count = arguments.files.to_string();
    for round in 0..arguments.common.rounds {
        let name = format!("round{round}");
        let [prepare, measure] = ["prepare-tree", "tree"].map(|what| {
            let (name, count) = (name.clone(), count.clone());
            move |place: &Path| [what.to_owned(), place.join(&name).to_string_lossy().into_owned(), count.clone()]
        });
        let on = |node: &str, words: [String; 3]| testbed.program(DC, node, &words.each_ref().map(String::as_str));
        let here = |words: [String; 3]| native(&words.each_ref().map(String::as_str));
        here(prepare(&place))?;
        add(&mut results, Manner::Native, round, read(&here(measure(&place))?)?);
        here(prepare(&mounted.source))?;
        add(&mut results, Manner::PassThrough, round, read(&here(measure(&mounted.point))?)?);
        on(NODES[2], prepare(Path::new("/dc")))?;
        add(&mut results, Manner::Container, round, read(&on(NODES[1], measure(Path::new("/dc")))?)?);
        let trip = testbed.far_trip(DC, "0.3")?;
        results.add(Subject::FarSendrec, Manner::Container, round, trip);
        // A file that is looked up, opened and read for the first time.
        results.add(Subject::FirstRead, Manner::Allowed, round, 1e6 / (1.5 * trip));
        results.add(Subject::Crowd, Manner::Container, round, crowd(&testbed, round)?);
    }
    arguments.common.finish(&results, Part::Trees)
}

fn add(results: &mut Results, manner: Manner, round: u32, tree: Tree) {
    let figures = [
        (Subject::FirstRead, tree.first),
        (Subject::HeldRead, tree.held),
        (Subject::Stat, tree.stat),
        (Subject::WarmRead, tree.warm),
        (Subject::List, tree.list),
        (Subject::Grep, tree.grep),
        (Subject::Status, tree.status),
        (Subject::Churn, tree.churn),
        (Subject::Untar, tree.untar),
        (Subject::CopyTree, tree.copy),
        (Subject::AddTree, tree.add),
        (Subject::RemoveTree, tree.remove),
        (Subject::Flock, tree.flock),
        (Subject::RecordLock, tree.record_lock),
        (Subject::Blocks, tree.blocks),
    ];
    for (subject, value) in figures {
        results.add(subject, manner, round, value);
    }
}

/// Three nodes make files in one directory: milliseconds until the last has.
fn crowd(testbed: &Testbed, round: u32) -> Outcome<f64> {
    let place = format!("/dc/crowd{round}");
    testbed.say(&["run", DC, "--node", NODES[0], "--", "mkdir", &place])?;
    let mut running = Vec::new();
    for node in NODES {
        running.push(testbed.begin(DC, node, &["make-files", &place, node, CROWD])?);
    }
    running.iter_mut().for_each(|one| one.end_input());
    let mut longest: f64 = 0.0;
    for one in &mut running {
        longest = longest.max(read(&one.line()?)?);
    }
    Ok(longest)
}

/// Unmounted when dropped.
struct PassThrough {
    source: PathBuf,
    point: PathBuf,
    server: Child,
    _at_signal: Registered,
}

impl PassThrough {
    fn mount(place: &Path) -> Outcome<PassThrough> {
        if !Path::new(EXAMPLE).exists() {
            return Err(format!("{EXAMPLE} is not there; scripts/setup.sh bench installs it").into());
        }
        let [binary, source, point] = ["passthrough", "source", "mounted"].map(|name| place.join(name));
        std::fs::create_dir(&source)?;
        std::fs::create_dir(&point)?;
        let flags = ["-O2", "-DFUSE_USE_VERSION=34", "-I/usr/include/fuse3", "-o"];
        let compiled = Command::new("cc").args(flags).arg(&binary).arg(EXAMPLE).arg("-lfuse3").status()?;
        if !compiled.success() {
            return Err(format!("{EXAMPLE} cannot be compiled ({compiled})").into());
        }
        let options =
            format!("source={},timeout=1,cache=always,flock,xattr,allow_other,default_permissions", source.display());
        let server = Command::new(&binary).args(["-f", "-o", &options]).arg(&point).stdin(Stdio::null()).spawn()?;
        let at = point.clone();
        let at_signal = clean_up_by(move || _ = unmount(at.as_path(), UnmountFlags::DETACH))?;
        let mounted = PassThrough { source, point, server, _at_signal: at_signal };
        std::fs::write(mounted.source.join("there"), b"")?;
        eventually("the pass-through", || mounted.point.join("there").exists().then_some(()))?;
        Ok(mounted)
    }
}

impl Drop for PassThrough {
    fn drop(&mut self) {
        let _ = unmount(self.point.as_path(), UnmountFlags::DETACH);
        let _ = self.server.kill();
        let _ = self.server.wait();
    }
}
