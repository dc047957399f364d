//! What people feel of a file tree whose servers are on another node: beside a FUSE pass-through to the machine's own
//! file system, which is what a file tree of user space can be on this kernel, and beside that file system itself.
//!
//! - [`long`]: long files, beside plain streams between two nodes.
//! - [`many`]: a site of many files, imported and fetched.
//! - [`million`]: very many files.
//! - [`tools`]: a database, and a stress test of others.
//!
//! The pass-through is libfuse's own example, with the times that our kernels are told.

mod long;
mod many;
mod million;
mod tools;

use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};

use clap::ValueEnum;
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
    /// What is measured.
    #[arg(long, value_enum, value_delimiter = ',', default_values_t = Section::value_variants().to_vec())]
    section: Vec<Section>,
    /// How many small files there are.
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u32).range(25..=100_000))]
    files: u32,
    /// How many files there are where they are very many.
    #[arg(long, default_value_t = 1_000_000, value_parser = clap::value_parser!(u32).range(1000..=10_000_000))]
    many: u32,
    #[command(flatten)]
    common: Common,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum Section {
    /// 1,000 small files (--files): read, listed, searched, made, copied, removed; locks.
    Small,
    /// 256 MiB read for the first time, and written until they are durable; links with TLS and without.
    Long,
    /// 19,600 files, 400 MB: imported, and fetched from a web server of another node.
    Many,
    /// PostgreSQL with its data in the tree.
    Database,
    /// Classes of stress-ng that ask the most of a file system's calls.
    Classes,
    /// 1,000,000 files (--many): listed twice on another node; their file server killed. Once, whatever --rounds says.
    Million,
}

pub fn run(arguments: &Arguments) -> Outcome<ExitCode> {
    let dvs = arguments.common.binary()?;
    let (mut results, rounds) = (Results::new(), arguments.common.rounds);
    let is_wanted = |section| arguments.section.contains(&section);
    if [Section::Small, Section::Database, Section::Classes].into_iter().any(is_wanted) {
        let place = Place::prepare(&dvs)?;
        for round in 0..rounds {
            if is_wanted(Section::Small) {
                small(&mut results, &place, arguments.files, round)?;
            }
            if is_wanted(Section::Database) {
                tools::database(&mut results, &place, round)?;
            }
            if is_wanted(Section::Classes) {
                tools::classes(&mut results, &place, round)?;
            }
        }
    }
    if is_wanted(Section::Long) {
        long::measure(&mut results, &dvs, rounds)?;
    }
    if is_wanted(Section::Many) {
        many::measure(&mut results, &dvs, rounds)?;
    }
    if is_wanted(Section::Million) {
        million::measure(&mut results, &dvs, arguments.many)?;
    }
    arguments.common.finish(&results, Part::Trees)
}

/// The three file trees in which the same is done.
struct Place {
    // Before the cluster, in whose directory it is.
    mounted: PassThrough,
    native: PathBuf,
    testbed: Testbed,
}

impl Place {
    fn prepare(dvs: &Path) -> Outcome<Place> {
        let testbed = Testbed::up(dvs, &[])?;
        testbed.container(DC, &DISK)?;
        let mounted = PassThrough::mount(testbed.path())?;
        let native = testbed.path().join("native");
        std::fs::create_dir(&native)?;
        Ok(Place { mounted, native, testbed })
    }

    /// What a program says of a directory: of the pass-through, and of the container's tree, on a node without servers.
    fn both(&self, program: impl Fn(&Path) -> Vec<String>) -> Outcome<[String; 2]> {
        let theirs = native(&words(&program(&self.mounted.point)))?;
        let ours = self.testbed.program(DC, NODES[1], &words(&program(Path::new("/dc"))))?;
        Ok([theirs, ours])
    }
}

fn words(program: &[String]) -> Vec<&str> {
    program.iter().map(String::as_str).collect()
}

fn small(results: &mut Results, place: &Place, files: u32, round: u32) -> Outcome<()> {
    let Place { mounted, native: own, testbed } = place;
    let (name, count) = (format!("round{round}"), files.to_string());
    let [prepare, measure] = ["prepare-tree", "tree"].map(|what| {
        let (name, count) = (name.clone(), count.clone());
        move |place: &Path| [what.to_owned(), place.join(&name).to_string_lossy().into_owned(), count.clone()]
    });
    let on = |node: &str, words: [String; 3]| testbed.program(DC, node, &words.each_ref().map(String::as_str));
    let here = |words: [String; 3]| native(&words.each_ref().map(String::as_str));
    here(prepare(own))?;
    add(results, Manner::Native, round, read(&here(measure(own))?)?);
    here(prepare(&mounted.source))?;
    add(results, Manner::PassThrough, round, read(&here(measure(&mounted.point))?)?);
    on(NODES[2], prepare(Path::new("/dc")))?;
    add(results, Manner::Container, round, read(&on(NODES[1], measure(Path::new("/dc")))?)?);
    let trip = testbed.far_trip(DC, "0.3")?;
    results.add(Subject::FarSendrec, Manner::Container, round, trip);
    // A file that is looked up, opened and read for the first time.
    results.add(Subject::FirstRead, Manner::Allowed, round, 1e6 / (1.5 * trip));
    results.add(Subject::Crowd, Manner::Container, round, crowd(testbed, round)?);
    Ok(())
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
