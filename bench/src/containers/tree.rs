//! What people do with many small files, and what their tools ask of a file tree.

use std::fs::{self, File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, fcntl_lock, flock};
use serde::{Deserialize, Serialize};

use crate::Outcome;

const FILES_PER_DIRECTORY: u32 = 25;
const BLOCK: usize = 4096;
const PIECE: usize = 1 << 20;
const LONG_BYTES: usize = 64 << 20;
/// How long what is quick is repeated.
const TIME: Duration = Duration::from_millis(300);
/// Kernels trust a name for a second: what is measured is not the look-ups that they save.
const NAMES_EXPIRE: Duration = Duration::from_millis(1100);
/// Files that come and go, locks that are taken and given back, blocks that are written.
const CHURN: u32 = 300;
const LOCKS: u32 = 500;
const BLOCKS: u32 = 1024;
const PASSES: u32 = 3;

/// Of one tree, on one node. Rates are a second, times milliseconds.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Tree {
    /// Files that another node wrote, opened, read and closed for the first time.
    pub first: f64,
    /// The same again.
    pub held: f64,
    pub stat: f64,
    /// MB/s of a file that the kernel has.
    pub warm: f64,
    pub list: f64,
    pub grep: f64,
    pub status: f64,
    /// Files made, written, closed and removed.
    pub churn: f64,
    pub untar: f64,
    pub copy: f64,
    /// `git add` of what came out of the archive.
    pub add: f64,
    pub remove: f64,
    pub flock: f64,
    pub record_lock: f64,
    /// MB/s in blocks of 4 KiB.
    pub blocks: f64,
}

/// A repository with so many files of 4 KiB, and an archive of it.
pub fn prepare(directory: &Path, count: u32) -> Outcome<()> {
    let tree = directory.join("tree");
    for number in 0..count {
        let place = tree.join(format!("d{}", number / FILES_PER_DIRECTORY));
        if number % FILES_PER_DIRECTORY == 0 {
            fs::create_dir_all(&place)?;
        }
        fs::write(place.join(format!("f{number}")), content(number))?;
    }
    let git = |arguments: &[&str]| {
        let who = ["-c", "user.name=bench", "-c", "user.email=bench@localhost", "-c", "gc.auto=0"];
        run(Command::new("git").arg("-C").arg(&tree).args(who).args(arguments))
    };
    git(&["init", "-q"])?;
    git(&["add", "-A"])?;
    git(&["commit", "-q", "-m", "all"])?;
    let archive = directory.join("tree.tar");
    run(Command::new("tar").arg("cf").arg(archive).arg("-C").arg(&tree).args(["--exclude=.git", "."]))
}

fn content(number: u32) -> Vec<u8> {
    format!("line {number} of a file\n").into_bytes().into_iter().cycle().take(BLOCK).collect()
}

pub fn measure(directory: &Path, count: u32) -> Outcome<Tree> {
    let (tree, work) = (directory.join("tree"), directory.join("work"));
    let files = files_of(&tree, count);
    let first = read_all(&files)?;
    let mut held = Vec::new();
    for _ in 0..PASSES {
        std::thread::sleep(NAMES_EXPIRE);
        held.push(read_all(&files)?);
    }
    let held = super::median(held)?;
    fs::create_dir(&work)?;
    let (stat, warm) = (stats(&files[0])?, warm_read(&work.join("long"))?);
    let list = again(Command::new("ls").arg("-lR").arg(&tree))?;
    let grep = again(Command::new("grep").args(["-r", "--exclude-dir=.git", "no such line"]).arg(&tree))?;
    let status = again(Command::new("git").arg("-C").arg(&tree).args(["status", "--porcelain"]))?;
    let churn = churn(&work)?;
    let [untarred, copied] = [work.join("untarred"), work.join("copied")];
    fs::create_dir(&untarred)?;
    let untar = time(Command::new("tar").arg("xf").arg(directory.join("tree.tar")).arg("-C").arg(&untarred))?;
    let copy = time(Command::new("cp").arg("-r").arg(&untarred).arg(&copied))?;
    run(Command::new("git").arg("-C").arg(&untarred).args(["init", "-q"]))?;
    let add = time(Command::new("git").arg("-C").arg(&untarred).args(["add", "-A"]))?;
    let remove = time(Command::new("rm").arg("-rf").arg(&copied))?;
    let (flock, record_lock) = locks(&work.join("lock"))?;
    let blocks = blocks(&work.join("blocks"))?;
    fs::remove_dir_all(&work)?;
    Ok(Tree {
        first,
        held,
        stat,
        warm,
        list,
        grep,
        status,
        churn,
        untar,
        copy,
        add,
        remove,
        flock,
        record_lock,
        blocks,
    })
}

/// Makes so many files with names of its own once its input ends; milliseconds.
pub fn make_files(directory: &Path, name: &str, count: u32) -> Outcome<f64> {
    println!("ready");
    std::io::stdin().read_to_end(&mut Vec::new())?;
    let begun = Instant::now();
    (0..count).try_for_each(|number| File::create(directory.join(format!("{name}-{number}"))).map(drop))?;
    Ok(begun.elapsed().as_secs_f64() * 1e3)
}

fn files_of(tree: &Path, count: u32) -> Vec<PathBuf> {
    (0..count).map(|number| tree.join(format!("d{}/f{number}", number / FILES_PER_DIRECTORY))).collect()
}

fn rate_of(count: u32, mut turn: impl FnMut(u32) -> Outcome<()>) -> Outcome<f64> {
    let begun = Instant::now();
    (0..count).try_for_each(&mut turn)?;
    Ok(f64::from(count) / begun.elapsed().as_secs_f64())
}

fn read_all(files: &[PathBuf]) -> Outcome<f64> {
    let mut bytes = Vec::with_capacity(2 * BLOCK);
    rate_of(files.len() as u32, |number| {
        bytes.clear();
        File::open(&files[number as usize])?.read_to_end(&mut bytes)?;
        if bytes == content(number) { Ok(()) } else { Err("other bytes than were written".into()) }
    })
}

fn stats(file: &Path) -> Outcome<f64> {
    let file = File::open(file)?;
    let (begun, mut count) = (Instant::now(), 0_u32);
    while begun.elapsed() < TIME {
        for _ in 0..64 {
            rustix::fs::fstat(&file)?;
        }
        count += 64;
    }
    Ok(f64::from(count) / begun.elapsed().as_secs_f64())
}

fn warm_read(path: &Path) -> Outcome<f64> {
    let mut piece = vec![7; PIECE];
    let file = OpenOptions::new().create(true).truncate(true).write(true).open(path)?;
    (0..LONG_BYTES / PIECE).try_for_each(|at| file.write_all_at(&piece, (at * PIECE) as u64))?;
    drop(file);
    let file = File::open(path)?;
    let mut pass = || -> Outcome<f64> {
        let begun = Instant::now();
        (0..LONG_BYTES / PIECE).try_for_each(|at| file.read_exact_at(&mut piece, (at * PIECE) as u64))?;
        Ok(LONG_BYTES as f64 / 1e6 / begun.elapsed().as_secs_f64())
    };
    pass()?;
    super::median((0..PASSES).map(|_| pass()).collect::<Outcome<_>>()?)
}

fn churn(directory: &Path) -> Outcome<f64> {
    let block = [7; BLOCK];
    rate_of(CHURN, |number| {
        let path = directory.join(format!("c{number}"));
        File::create(&path)?.write_all(&block)?;
        Ok(fs::remove_file(path)?)
    })
}

fn locks(path: &Path) -> Outcome<(f64, f64)> {
    let file = OpenOptions::new().create(true).truncate(true).write(true).open(path)?;
    let of_file = rate_of(LOCKS, |_| {
        flock(&file, FlockOperation::LockExclusive)?;
        Ok(flock(&file, FlockOperation::Unlock)?)
    })?;
    let records = rate_of(LOCKS, |_| {
        fcntl_lock(&file, FlockOperation::LockExclusive)?;
        Ok(fcntl_lock(&file, FlockOperation::Unlock)?)
    })?;
    Ok((of_file, records))
}

fn blocks(path: &Path) -> Outcome<f64> {
    let (mut file, block) = (File::create(path)?, [7; BLOCK]);
    Ok(rate_of(BLOCKS, |_| Ok(file.write_all(&block)?))? * BLOCK as f64 / 1e6)
}

fn run(command: &mut Command) -> Outcome<()> {
    let status = command.stdin(Stdio::null()).stdout(Stdio::null()).status()?;
    // grep finds nothing.
    if matches!(status.code(), Some(0 | 1)) { Ok(()) } else { Err(format!("{command:?}: {status}").into()) }
}

fn time(command: &mut Command) -> Outcome<f64> {
    let begun = Instant::now();
    run(command)?;
    Ok(begun.elapsed().as_secs_f64() * 1e3)
}

/// Once it has been done before.
fn again(command: &mut Command) -> Outcome<f64> {
    run(command)?;
    let mut pass = || -> Outcome<f64> {
        std::thread::sleep(NAMES_EXPIRE);
        time(command)
    };
    super::median((0..PASSES).map(|_| pass()).collect::<Outcome<_>>()?)
}
