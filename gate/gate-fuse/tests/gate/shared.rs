//! Files and directories that several nodes have open at a time: what one does, the others see, whatever the order.

use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, Seek, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::common::{Mounted, World, in_private_mounts};

/// Deterministic numbers from a seed (xorshift64*).
struct Random(u64);

impl Random {
    fn new(seed: u64) -> Random {
        Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) as usize % limit
    }
}

/// What is mapped, and never cut off: what lies after the end may not be touched.
const MAPPED_BYTES: usize = 2 * 4096;

/// One node's program: it has one file open in several ways, and mapped.
struct Program {
    both: File,
    reader: File,
    appender: File,
    mapped: Child,
    to: ChildStdin,
    from: BufReader<ChildStdout>,
}

impl Program {
    fn start(path: &Path) -> Program {
        const SCRIPT: &str = "import mmap, sys\n\
            f = open(sys.argv[1], 'r+b')\n\
            m = mmap.mmap(f.fileno(), int(sys.argv[2]))\n\
            for line in sys.stdin:\n\
            \x20   what, at, value = line.split()\n\
            \x20   at = int(at)\n\
            \x20   if what == 'store': m[at] = int(value)\n\
            \x20   if what == 'sync': m.flush()\n\
            \x20   print(m[at], flush=True)\n";
        let mut mapped = Command::new("python3")
            .args(["-c", SCRIPT])
            .arg(path)
            .arg(MAPPED_BYTES.to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("python3 runs");
        let (to, from) = (mapped.stdin.take().expect("a pipe"), mapped.stdout.take().expect("a pipe"));
        Program {
            both: OpenOptions::new().read(true).write(true).open(path).expect("open"),
            reader: File::open(path).expect("open"),
            appender: OpenOptions::new().append(true).open(path).expect("open"),
            mapped,
            to,
            from: BufReader::new(from),
        }
    }

    /// Does something with the mapping; answers the byte at `at`.
    fn mapped(&mut self, what: &str, at: usize, value: u8) -> u8 {
        writeln!(self.to, "{what} {at} {value}").expect("the program lives");
        let mut line = String::new();
        self.from.read_line(&mut line).expect("the program answers");
        line.trim().parse().expect("a number")
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.mapped.kill();
        let _ = self.mapped.wait();
    }
}

/// One step at a time, each on a random node, compared with plain memory after each.
fn run_in_turns(nodes: &[Mounted], seed: u64, steps: usize) {
    let name = format!("f{seed}");
    let mut truth = vec![0_u8; 3 * 4096];
    std::fs::write(nodes[0].path.join(&name), &truth).expect("write");
    let mut programs: Vec<_> = nodes.iter().map(|node| Program::start(&node.path.join(&name))).collect();
    let mut random = Random::new(seed);
    let mut history = Vec::new();
    for step in 0..steps {
        let value = step as u8 | 1;
        let node = random.below(programs.len());
        let program = &mut programs[node];
        let offset = random.below(truth.len());
        // Parts of pages, whole pages, several.
        let bytes = [1, 100, 4096, 6000][random.below(4)];
        let whole = if random.below(2) == 0 { offset / 4096 * 4096 } else { offset };
        let what = random.below(10);
        let size = truth.len();
        history.push(format!("n{node} {what} at {whole} ({offset}) {bytes} bytes, value {value}, size {size}"));
        match what {
            0..3 => {
                program.both.write_all_at(&vec![value; bytes], whole as u64).expect("pwrite");
                truth.resize(truth.len().max(whole + bytes), 0);
                truth[whole..whole + bytes].fill(value);
            }
            3 => {
                program.appender.write_all(&vec![value; bytes]).expect("append");
                truth.resize(truth.len() + bytes, value);
            }
            4 => {
                let bytes = MAPPED_BYTES + random.below(20_000);
                program.both.set_len(bytes as u64).expect("truncate");
                truth.resize(bytes, 0);
            }
            5 | 6 => {
                let at = offset % MAPPED_BYTES;
                assert_eq!(program.mapped("store", at, value), value);
                truth[at] = value;
                // What is not synced yet, others need not see.
                program.mapped("sync", at, value);
            }
            _ => {}
        }
        let reader = random.below(nodes.len());
        let program = &mut programs[reader];
        if random.below(4) == 0 {
            let at = offset % MAPPED_BYTES;
            let seen = program.mapped("load", at, 0);
            assert_eq!(seen, truth[at], "seed {seed}: byte {at} of n{reader}'s mapping after {history:#?}");
            continue;
        }
        let file = if random.below(2) == 0 { &program.both } else { &program.reader };
        let mut seen = vec![0; truth.len() + 1];
        let got = file.read_at(&mut seen, 0).expect("pread");
        seen.truncate(got);
        let wrong = seen.iter().zip(&truth).position(|(seen, truth)| seen != truth);
        let is_right = seen.len() == truth.len() && wrong.is_none();
        let size = truth.len();
        assert!(is_right, "seed {seed}: n{reader} has {got} bytes of {size}, {wrong:?} is wrong, after {history:#?}");
    }
}

#[test]
fn file_that_two_nodes_write_and_map_in_turns_is_the_same_on_both() {
    in_private_mounts(|| {
        let world = World::real();
        let nodes = [world.mount("one"), world.mount("two")];
        (1..=8).for_each(|seed| run_in_turns(&nodes, seed, 60));
    });
}

#[test]
fn file_that_three_nodes_write_and_map_in_turns_is_the_same_on_all() {
    in_private_mounts(|| {
        let world = World::real();
        let nodes = [world.mount("one"), world.mount("two"), world.mount("three")];
        (100..=106).for_each(|seed| run_in_turns(&nodes, seed, 60));
    });
}

/// Looks at the file all the while, from so many threads of each node.
const LOOKERS: usize = 3;

/// A kernel puts the answer to a look into effect when its program runs again, and ignores those to looks that began in
/// between. With many programs on few processors that is late: what it then knows must not be older than a change that
/// had ended before the later look began.
#[test]
fn size_that_another_node_changed_is_right_while_many_programs_look_at_the_file() {
    in_private_mounts(|| {
        let world = World::real();
        let nodes = ["one", "two"].map(|name| world.mount_for(name, Duration::from_secs(100)));
        let is_over = AtomicBool::new(false);
        std::fs::write(nodes[0].path.join("f"), "").expect("write");
        let open = |node: &Mounted| File::options().read(true).write(true).open(node.path.join("f")).expect("open");
        let files = nodes.each_ref().map(open);
        std::thread::scope(|scope| {
            let _over = Over(&is_over);
            for node in &nodes {
                for _ in 0..LOOKERS {
                    scope.spawn(|| {
                        while !is_over.load(Ordering::Relaxed) {
                            std::fs::metadata(node.path.join("f")).expect("stat");
                        }
                    });
                }
            }
            change_and_look(&nodes, &files, 1);
        });
    });
}

/// Ends those who look, also after a panic.
struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// In turns one node makes the file longer or shorter, and then the other must know how long it is.
fn change_and_look(nodes: &[Mounted; 2], files: &[File; 2], seed: u64) {
    const STEPS: usize = 200;
    let (mut random, mut size) = (Random::new(seed), 0);
    for step in 0..STEPS {
        let (changer, looker) = if random.below(2) == 0 { (0, 1) } else { (1, 0) };
        let before = size;
        let what = if size > 40_000 { 0 } else { random.below(4) };
        let bytes = 1 + random.below(6000);
        match what {
            0 => {
                size = random.below(size + 1);
                files[changer].set_len(size as u64).expect("truncate");
            }
            1 => {
                files[changer].write_all_at(&vec![1; bytes], size as u64).expect("pwrite");
                size += bytes;
            }
            2 => {
                size += bytes;
                let (offset, bytes) = (0, size as u64);
                let flags = rustix::fs::FallocateFlags::empty();
                rustix::fs::fallocate(&files[changer], flags, offset, bytes).expect("fallocate");
            }
            _ => {
                let mut appender = OpenOptions::new().append(true).open(nodes[changer].path.join("f")).expect("open");
                appender.write_all(&vec![2; bytes]).expect("append");
                size += bytes;
            }
        }
        let mut file = &files[looker];
        let how = random.below(3);
        let seen = match how {
            0 => file.read_at(&mut vec![0; size + 1], 0).expect("pread"),
            1 => file.seek(std::io::SeekFrom::End(0)).expect("seek") as usize,
            _ => file.metadata().expect("stat").len() as usize,
        };
        assert_eq!(seen, size, "seed {seed}, step {step}: {before} bytes changed by {what}, looked at by {how}");
    }
}

/// System calls that go by the size their own kernel knows, and ask nobody.
#[test]
fn file_that_another_node_made_longer_is_longer_for_who_does_not_ask() {
    in_private_mounts(|| {
        let world = World::real();
        let nodes = [world.mount("one"), world.mount("two")];
        std::fs::write(nodes[0].path.join("f"), "").expect("write");
        let open = |node: &Mounted, name| {
            OpenOptions::new()
                .read(true)
                .write(true)
                .create(true)
                .truncate(false)
                .open(node.path.join(name))
                .expect("open")
        };
        let (writer, reader, copy) = (open(&nodes[0], "f"), open(&nodes[1], "f"), open(&nodes[1], "copy"));
        let mut appender = OpenOptions::new().append(true).open(nodes[1].path.join("f")).expect("open");
        let copied = |at: u64| {
            let mut to = at;
            rustix::fs::copy_file_range(&reader, Some(&mut at.clone()), &copy, Some(&mut to), 1 << 20).expect("copy")
        };
        writer.write_all_at(&[1; 5000], 0).expect("pwrite");
        assert_eq!(copied(0), 5000);
        // The second time the other node has no lease that could be asked back.
        writer.write_all_at(&[2; 4096], 8192).expect("pwrite");
        writer.write_all_at(&[2; 1], 12_288).expect("pwrite");
        assert_eq!(copied(5000), 12_289 - 5000);
        writer.set_len(20_000).expect("truncate");
        assert_eq!(copied(12_289), 20_000 - 12_289);
        (&writer).seek(std::io::SeekFrom::End(0)).expect("seek");
        OpenOptions::new()
            .append(true)
            .open(nodes[0].path.join("f"))
            .expect("open")
            .write_all(&[3; 10])
            .expect("append");
        appender.write_all(&[4; 7]).expect("append");
        assert_eq!(appender.stream_position().expect("seek"), 20_017);
        let truth = [vec![1; 5000], vec![0; 3192], vec![2; 4097], vec![0; 7711], vec![3; 10], vec![4; 7]].concat();
        for node in &nodes {
            assert!(std::fs::read(node.path.join("f")).expect("read") == truth);
        }
    });
}

/// The kernel guesses that the append goes after the end it knows, and holds the page until it is answered.
#[test]
fn append_to_a_file_that_another_node_cut_goes_behind_its_end_and_does_not_hang() {
    in_private_mounts(|| {
        let world = World::real();
        let nodes = [world.mount("one"), world.mount("two")];
        std::fs::write(nodes[0].path.join("f"), "x").expect("write");
        let cutter = OpenOptions::new().write(true).open(nodes[0].path.join("f")).expect("open");
        let mut appender = OpenOptions::new().read(true).append(true).open(nodes[1].path.join("f")).expect("open");
        appender.write_all(&[1; 10]).expect("append");
        cutter.set_len(0).expect("truncate");
        appender.write_all(&[2; 4096]).expect("append");
        for node in &nodes {
            assert!(std::fs::read(node.path.join("f")).expect("read") == [2; 4096]);
        }
    });
}

/// A directory in which three nodes make, find, move and remove names at the same time; the figure is the time of one
/// hand-over.
#[test]
fn nodes_that_change_one_directory_at_a_time_do_not_wait_for_names_to_expire() {
    in_private_mounts(|| {
        let world = World::real();
        let nodes = [world.mount("one"), world.mount("two"), world.mount("three")];
        std::fs::create_dir(nodes[0].path.join("d")).expect("mkdir");
        let began = Instant::now();
        std::thread::scope(|scope| {
            for (number, node) in nodes.iter().enumerate() {
                scope.spawn(move || {
                    for n in 0..20 {
                        File::create(node.path.join(format!("d/f{number}-{n}"))).expect("create");
                    }
                });
            }
        });
        eprintln!("60 files from three nodes: {:?}", began.elapsed());
        for node in &nodes {
            assert_eq!(std::fs::read_dir(node.path.join("d")).expect("readdir").count(), 60);
        }
        // Turns that wait for names take a second each.
        assert!(began.elapsed() < Duration::from_secs(15), "60 files took {:?}", began.elapsed());
    });
}

#[test]
fn lock_file_of_three_nodes_changes_hands_and_excludes() {
    const ROUNDS: usize = 30;
    in_private_mounts(|| {
        let world = World::real();
        let nodes = [world.mount("one"), world.mount("two"), world.mount("three")];
        std::fs::write(nodes[0].path.join("counter"), "0").expect("write");
        let began = Instant::now();
        std::thread::scope(|scope| {
            for node in &nodes {
                scope.spawn(move || {
                    let (lock, counter) = (node.path.join("lock"), node.path.join("counter"));
                    for _ in 0..ROUNDS {
                        while let Err(error) = OpenOptions::new().write(true).create_new(true).open(&lock) {
                            assert_eq!(error.kind(), std::io::ErrorKind::AlreadyExists);
                        }
                        let count: usize = std::fs::read_to_string(&counter).expect("read").parse().expect("a number");
                        std::fs::write(&counter, (count + 1).to_string()).expect("write");
                        std::fs::remove_file(&lock).expect("unlink");
                    }
                });
            }
        });
        eprintln!("{} rounds of a lock file: {:?}", 3 * ROUNDS, began.elapsed());
        let count = std::fs::read_to_string(nodes[1].path.join("counter")).expect("read");
        assert_eq!(count, (3 * ROUNDS).to_string());
        assert!(began.elapsed() < Duration::from_secs(25), "{} rounds took {:?}", 3 * ROUNDS, began.elapsed());
    });
}

#[test]
fn append_into_a_page_that_only_another_node_has_goes_behind_what_is_there() {
    in_private_mounts(|| {
        let world = World::real();
        let (one, two) = (world.mount("one"), world.mount("two"));
        let changed = File::create(one.path.join("f")).expect("create");
        // For reading, too: what is appended goes through the kernel's pages.
        let appended = OpenOptions::new().read(true).append(true).open(two.path.join("f")).expect("open");
        for size in [1, 4095, 4096, 5000] {
            changed.set_len(size).expect("truncate");
            (&appended).write_all(&[b'x'; 3]).expect("append");
            let mut bytes = [0; 4];
            appended.read_exact_at(&mut bytes, size - 1).expect("read");
            assert_eq!((&bytes, appended.metadata().expect("stat").len()), (b"\0xxx", size + 3));
            changed.set_len(0).expect("truncate");
        }
    });
}
