//! Gates that die, sessions that are lost, and two gates of one tree.

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;

use crate::common::{Mounted, World, in_private_mounts};

/// How many gates are killed; more with `DVS_GATE_KILLS`.
fn kills() -> u64 {
    std::env::var("DVS_GATE_KILLS").ok().and_then(|text| text.parse().ok()).unwrap_or(200)
}

#[test]
fn gate_killed_two_hundred_times_under_writes_loses_and_repeats_nothing() {
    under_load(kills(), |_, mounted, _| mounted.replace_gate());
}

#[test]
fn gate_fenced_two_hundred_times_under_writes_loses_and_repeats_nothing() {
    under_load(kills(), |world, mounted, round| {
        world.server.fence_all();
        // One that dies before it knows leaves it to the next.
        if round % 4 == 0 {
            mounted.replace_gate();
        }
    });
}

fn under_load(rounds: u64, disturb: impl Fn(&World, &mut Mounted, u64) + Send + 'static) {
    in_private_mounts(move || {
        let world = World::new();
        let mut mounted = world.mount("m");
        let load = Load::start(&mounted.path);
        for round in 0..rounds {
            load.wait_for_progress(round % 3);
            disturb(&world, &mut mounted, round);
        }
        let totals = load.finish();
        assert!(totals.appends > rounds && totals.names > 0, "the load made progress: {totals:?}");
        let log = fs::read(mounted.path.join("log")).expect("read");
        // Each append happened once, in order: a repetition would show twice.
        let lines: Vec<_> = log.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()).collect();
        assert_eq!(lines.len() as u64, totals.appends);
        for (n, line) in lines.iter().enumerate() {
            assert_eq!(*line, format!("line {n}").as_bytes());
        }
        check_blocks(&mounted.path, totals.blocks);
        // Every exclusive create succeeded once and every removal too: nothing is left.
        assert_eq!(fs::read_dir(mounted.path.join("names")).expect("readdir").count(), 0);
        let (executed, repeated, handles) =
            world.server.with_model(|model| (model.executed, model.repeated, model.open_handles()));
        eprintln!("{totals:?}, executed {executed}, answered from the record {repeated}, handles {handles}");
    });
}

#[test]
fn open_files_and_locks_survive_the_gate() {
    in_private_mounts(|| {
        use rustix::fs::{FlockOperation, flock};
        let world = World::new();
        let mut mounted = world.mount("m");
        let path = mounted.path.join("f");
        let file = OpenOptions::new().read(true).write(true).create_new(true).open(&path).expect("create");
        let other = File::open(&path).expect("open");
        flock(&file, FlockOperation::LockExclusive).expect("lock");
        file.write_all_at(b"before", 0).expect("write");
        fs::remove_file(&path).expect("unlink");
        mounted.replace_gate();
        file.write_all_at(b"after!", 6).expect("write");
        let mut bytes = [0; 12];
        file.read_exact_at(&mut bytes, 0).expect("read");
        assert_eq!(&bytes, b"beforeafter!");
        assert_eq!(flock(&other, FlockOperation::NonBlockingLockShared), Err(rustix::io::Errno::AGAIN));
        // A waiting lock is asked for again by the next gate.
        let waiter = std::thread::spawn(move || flock(&other, FlockOperation::LockShared).map(|()| other));
        wait_until(|| world.server.waiting_locks() == 1);
        mounted.replace_gate();
        wait_until(|| world.server.waiting_locks() == 1);
        drop(file);
        drop(waiter.join().expect("thread").expect("granted"));
        wait_until(|| world.server.with_model(|model| model.open_handles() == 0 && model.locks() == 0));
    });
}

#[test]
fn request_of_a_dead_gate_fails_where_the_kernel_does_not_send_it_again() {
    in_private_mounts(|| {
        use rustix::fs::{FlockOperation, flock};
        let world = World::without("resend");
        let mut mounted = world.mount("m");
        let path = mounted.path.join("f");
        let file = File::create(&path).expect("create");
        let other = File::open(&path).expect("open");
        flock(&file, FlockOperation::LockExclusive).expect("lock");
        let waiter = std::thread::spawn(move || flock(&other, FlockOperation::LockShared));
        wait_until(|| world.server.waiting_locks() == 1);
        mounted.replace_gate();
        assert_eq!(waiter.join().expect("thread"), Err(rustix::io::Errno::IO));
        fs::write(&path, b"and goes on").expect("write");
        assert_eq!(fs::read(&path).expect("read"), b"and goes on");
    });
}

#[test]
fn fenced_gate_leaves_nobody_waiting_where_the_kernel_does_not_send_requests_again() {
    in_private_mounts(|| {
        let world = World::without("resend,expire");
        let mounted = world.mount("m");
        std::thread::scope(|scope| {
            let writers = (0..8).map(|writer| {
                let path = mounted.path.join(format!("f{writer}"));
                scope.spawn(move || {
                    for round in 0..300_u64 {
                        match fs::write(&path, round.to_le_bytes()) {
                            // What was in flight when the session was lost.
                            Err(error) if error.raw_os_error() == Some(libc::EIO) => {}
                            done => done.expect("write"),
                        }
                    }
                })
            });
            let writers: Vec<_> = writers.collect();
            while !writers.iter().all(|writer| writer.is_finished()) {
                world.server.fence_all();
                fs::metadata(&mounted.path).ok();
            }
        });
    });
}

#[test]
fn waiting_lock_ends_when_its_program_is_signalled() {
    in_private_mounts(|| {
        use rustix::fs::{FlockOperation, flock};
        let world = World::new();
        let mounted = world.mount("m");
        let path = mounted.path.join("f");
        let file = File::create(&path).expect("create");
        flock(&file, FlockOperation::LockExclusive).expect("lock");
        let mut waiter = std::process::Command::new("flock").arg(&path).arg("true").spawn().expect("flock runs");
        wait_until(|| world.server.waiting_locks() == 1);
        rustix::process::kill_process(
            rustix::process::Pid::from_raw(waiter.id() as i32).expect("a pid"),
            rustix::process::Signal::TERM,
        )
        .expect("signal");
        assert!(!waiter.wait().expect("it ends").success());
        wait_until(|| world.server.waiting_locks() == 0);
    });
}

#[test]
fn fenced_gate_goes_on_with_its_open_files_and_programs_see_a_pause() {
    in_private_mounts(|| {
        let world = World::new();
        let mounted = world.mount("m");
        let path = mounted.path.join("f");
        let file = OpenOptions::new().read(true).write(true).create_new(true).open(&path).expect("create");
        let nameless = OpenOptions::new().read(true).write(true).create_new(true).open(mounted.path.join("g"));
        let nameless = nameless.expect("create");
        fs::remove_file(mounted.path.join("g")).expect("unlink");
        for round in 0..20_u64 {
            world.server.fence_all();
            file.write_all_at(&round.to_le_bytes(), round * 8).expect("write");
            assert_eq!(fs::metadata(&path).expect("stat").len(), round * 8 + 8);
            nameless.write_all_at(&round.to_le_bytes(), 0).expect("it has no name, and is open");
            assert_eq!(world.server.with_model(|model| model.sessions().len()), 1, "fenced again, and the same one");
        }
        drop((file, nameless));
        wait_until(|| world.server.with_model(|model| model.open_handles() == 0));
    });
}

#[test]
fn forgotten_gate_begins_a_new_session_and_programs_see_a_pause() {
    in_private_mounts(|| {
        let world = World::new();
        let mounted = world.mount("m");
        let path = mounted.path.join("f");
        let file = OpenOptions::new().read(true).write(true).create_new(true).open(&path).expect("create");
        for round in 0..20_u64 {
            world.server.forget_all();
            if round % 2 == 0 {
                // Perhaps while it opens its files again.
                world.server.fence_all();
            }
            file.write_all_at(&round.to_le_bytes(), round * 8).expect("write");
            assert_eq!(fs::metadata(&path).expect("stat").len(), round * 8 + 8);
        }
        drop(file);
        wait_until(|| world.server.with_model(|model| model.open_handles() == 0));
    });
}

#[test]
fn what_one_gate_changes_the_other_sees_at_once() {
    in_private_mounts(|| {
        let world = World::new();
        let (one, two) = (world.mount("one"), world.mount("two"));
        let (here, there) = (one.path.join("f"), two.path.join("f"));
        assert!(!there.exists());
        for round in 0..100_u64 {
            let text = format!("round {round} {}", "x".repeat(round as usize * 50));
            fs::write(&here, &text).expect("write");
            assert_eq!(fs::read_to_string(&there).expect("read"), text);
            assert_eq!(fs::metadata(&there).expect("stat").len(), text.len() as u64);
            fs::rename(&there, two.path.join("g")).expect("rename");
            assert!(!here.exists());
            assert_eq!(fs::read_to_string(one.path.join("g")).expect("read"), text);
            fs::rename(one.path.join("g"), &here).expect("rename");
            assert_eq!(fs::read_dir(&two.path).expect("readdir").count(), 1);
        }
        fs::remove_file(&here).expect("unlink");
        assert!(!there.exists());
    });
}

#[test]
fn appends_of_two_nodes_at_once_are_all_there() {
    in_private_mounts(|| {
        let world = World::new();
        let (one, two) = (world.mount("one"), world.mount("two"));
        let writers: Vec<JoinHandle<()>> = [&one, &two]
            .into_iter()
            .enumerate()
            .map(|(writer, mounted)| {
                let path = mounted.path.join("log");
                std::thread::spawn(move || {
                    let mut log = OpenOptions::new().append(true).create(true).open(path).expect("open");
                    for n in 0..30 {
                        log.write_all(format!("{writer} {n:04}\n").as_bytes()).expect("append");
                    }
                })
            })
            .collect();
        for writer in writers {
            writer.join().expect("writer");
        }
        for mounted in [&one, &two] {
            let log = fs::read_to_string(mounted.path.join("log")).expect("read");
            let mut lines: Vec<_> = log.lines().collect();
            lines.sort_unstable();
            let expected: Vec<_> = (0..2).flat_map(|writer| (0..30).map(move |n| format!("{writer} {n:04}"))).collect();
            assert_eq!(lines, expected);
        }
    });
}

/// Programs that write all the time and check every result.
struct Load {
    stop: Arc<AtomicBool>,
    appends: Arc<AtomicU64>,
    blocks: Arc<AtomicU64>,
    names: Arc<AtomicU64>,
    threads: Vec<JoinHandle<()>>,
}

#[derive(Debug)]
struct Totals {
    appends: u64,
    blocks: u64,
    names: u64,
}

const BLOCKS: u64 = 64;
const BLOCK_BYTES: usize = 8192;

impl Load {
    fn start(root: &Path) -> Load {
        let stop = Arc::new(AtomicBool::new(false));
        let mut load =
            Load { stop, appends: Arc::default(), blocks: Arc::default(), names: Arc::default(), threads: Vec::new() };
        fs::create_dir(root.join("names")).expect("mkdir");
        let (log, blocks, names) = (root.join("log"), root.join("blocks"), root.join("names"));
        let mut log = OpenOptions::new().append(true).create_new(true).open(log).expect("open");
        load.run(Arc::clone(&load.appends), move |n| log.write_all(format!("line {n}\n").as_bytes()).expect("append"));
        let file = OpenOptions::new().read(true).write(true).create_new(true).open(blocks).expect("open");
        load.run(Arc::clone(&load.blocks), move |n| {
            file.write_all_at(&block(n), (n % BLOCKS) * BLOCK_BYTES as u64).expect("write");
        });
        load.run(Arc::clone(&load.names), move |n| make_and_remove(&names, n));
        load
    }

    fn run(&mut self, count: Arc<AtomicU64>, mut once: impl FnMut(u64) + Send + 'static) {
        let stop = Arc::clone(&self.stop);
        self.threads.push(std::thread::spawn(move || {
            while !stop.load(Ordering::Relaxed) {
                once(count.load(Ordering::Relaxed));
                count.fetch_add(1, Ordering::Relaxed);
            }
        }));
    }

    /// Until one of the writers got on by one: the next kill meets another moment.
    fn wait_for_progress(&self, which: u64) {
        let count = [&self.appends, &self.blocks, &self.names][which as usize];
        let before = count.load(Ordering::Relaxed);
        wait_until(|| count.load(Ordering::Relaxed) > before || self.threads.iter().any(JoinHandle::is_finished));
    }

    fn finish(self) -> Totals {
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.threads {
            thread.join().expect("no program saw an error");
        }
        let total = |count: &AtomicU64| count.load(Ordering::Relaxed);
        Totals { appends: total(&self.appends), blocks: total(&self.blocks), names: total(&self.names) }
    }
}

fn make_and_remove(names: &Path, n: u64) {
    let (first, second) = (names.join(format!("a{n}")), names.join(format!("b{n}")));
    let mut file = OpenOptions::new().write(true).create_new(true).open(&first).expect("create");
    file.write_all(b"x").expect("write");
    drop(file);
    fs::rename(&first, &second).expect("rename");
    assert_eq!(fs::metadata(&second).expect("stat").size(), 1);
    fs::create_dir(&first).expect("mkdir");
    fs::remove_file(&second).expect("unlink");
    fs::remove_dir(&first).expect("rmdir");
}

fn block(n: u64) -> Vec<u8> {
    (0..BLOCK_BYTES as u64).map(|at| (n.wrapping_mul(31).wrapping_add(at) % 251) as u8).collect()
}

fn check_blocks(root: &Path, written: u64) {
    let bytes = fs::read(root.join("blocks")).expect("read");
    for place in 0..BLOCKS.min(written) {
        let last = (0..written).rev().find(|n| n % BLOCKS == place).expect("written");
        let at = place as usize * BLOCK_BYTES;
        assert!(bytes[at..at + BLOCK_BYTES] == block(last)[..], "block {place}");
    }
}

/// Looks again and again; a test that never gets there is ended by the fixture.
fn wait_until(condition: impl Fn() -> bool) {
    while !condition() {
        std::thread::yield_now();
    }
}
