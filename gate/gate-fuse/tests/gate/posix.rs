//! What POSIX and Linux promise of files, on one node and on two, with the real fs server.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};

use crate::common::{World, in_private_mounts};
use rustix::fs::{FallocateFlags, XattrFlags, fallocate, setxattr};

type Act = fn(&Path) -> std::io::Result<()>;

/// What a program may do to a file by its name.
const BY_NAME: [(&str, Act); 9] = [
    ("open and read", |path| File::open(path)?.read_to_string(&mut String::new()).map(drop)),
    ("open with O_CREAT", |path| OpenOptions::new().create(true).append(true).open(path).map(drop)),
    ("stat", |path| fs::metadata(path).map(drop)),
    ("access", |path| Ok(rustix::fs::access(path, rustix::fs::Access::READ_OK)?)),
    ("truncate", |path| OpenOptions::new().write(true).open(path)?.set_len(0)),
    ("chmod", |path| fs::set_permissions(path, fs::Permissions::from_mode(0o644))),
    ("setxattr", |path| Ok(setxattr(path, "user.a", b"b", XattrFlags::empty())?)),
    ("readlink", |path| fs::read_link(path.with_file_name("link")).map(drop)),
    ("statfs", |path| rustix::fs::statfs(path).map(drop).map_err(Into::into)),
];

/// Replaces a file and a symbolic link `rounds` times through `writer`, while programs at `readers` use them.
fn replace_while_used(rounds: u32, writer: &Path, readers: &[&Path]) -> BTreeMap<String, u64> {
    let put = |round: u32| {
        fs::write(writer.join("t.new"), format!("{round}\n")).expect("write");
        fs::rename(writer.join("t.new"), writer.join("t")).expect("rename");
        std::os::unix::fs::symlink(format!("{round}"), writer.join("link.new")).expect("symlink");
        fs::rename(writer.join("link.new"), writer.join("link")).expect("rename");
    };
    put(0);
    let is_done = AtomicBool::new(false);
    let failures = std::sync::Mutex::new(BTreeMap::new());
    std::thread::scope(|scope| {
        for reader in readers {
            let (is_done, failures) = (&is_done, &failures);
            scope.spawn(move || {
                let path = reader.join("t");
                while !is_done.load(Ordering::Relaxed) {
                    for (what, act) in BY_NAME {
                        let outcome = act(&path).map_or_else(|error| format!("{what}: {error}"), |()| what.to_owned());
                        *failures.lock().expect("counts").entry(outcome).or_default() += 1;
                    }
                }
            });
        }
        (1..=rounds).for_each(put);
        is_done.store(true, Ordering::Relaxed);
    });
    failures.into_inner().expect("counts")
}

fn assert_no_failure(outcomes: &BTreeMap<String, u64>) {
    eprintln!("{outcomes:#?}");
    assert!(outcomes.keys().all(|outcome| BY_NAME.iter().any(|(what, _)| what == outcome)), "{outcomes:#?}");
}

#[test]
fn name_that_is_replaced_is_there_all_the_time() {
    in_private_mounts(|| {
        let world = World::real();
        let mounted = world.mount("m");
        assert_no_failure(&replace_while_used(1000, &mounted.path, &[&mounted.path, &mounted.path]));
    });
}

#[test]
fn name_that_another_node_replaces_is_there_all_the_time() {
    in_private_mounts(|| {
        let world = World::real();
        let (one, two) = (world.mount("one"), world.mount("two"));
        assert_no_failure(&replace_while_used(200, &one.path, &[&two.path, &two.path, &one.path]));
    });
}

#[test]
#[ignore = "takes minutes"]
fn name_that_is_replaced_is_there_all_the_time_for_long() {
    for _ in 0..5 {
        in_private_mounts(|| {
            let world = World::real();
            let mounted = world.mount("m");
            assert_no_failure(&replace_while_used(2000, &mounted.path, &[&mounted.path, &mounted.path]));
        });
        in_private_mounts(|| {
            let world = World::real();
            let (one, two) = (world.mount("one"), world.mount("two"));
            assert_no_failure(&replace_while_used(300, &one.path, &[&two.path, &two.path, &one.path]));
        });
    }
}

/// A program that locks a file with a lock of the open file description, and keeps it while its input is open.
const LOCKER: &str = r#"
import fcntl, struct, sys
file = open(sys.argv[1], "r+")
command = {"try": 37, "wait": 38}[sys.argv[2]]
try:
    fcntl.fcntl(file, command, struct.pack("hhqqi4x", fcntl.F_WRLCK, 0, 0, 0, 0))
    print("locked", flush=True)
except OSError as error:
    print(error.errno, flush=True)
sys.stdin.read()
"#;

struct Locker {
    process: Child,
    lines: std::io::Lines<BufReader<std::process::ChildStdout>>,
}

impl Locker {
    fn start(path: &Path, how: &str) -> Locker {
        let mut process = Command::new("python3")
            .args(["-c", LOCKER])
            .arg(path)
            .arg(how)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("python3 starts");
        let lines = BufReader::new(process.stdout.take().expect("its output")).lines();
        Locker { process, lines }
    }

    /// What became of its lock.
    fn outcome(&mut self) -> String {
        self.lines.next().expect("a line").expect("text")
    }

    fn exit(mut self) {
        drop(self.process.stdin.take());
        self.process.wait().expect("it ends");
    }

    fn kill(mut self) {
        self.process.kill().expect("it is killed");
        self.process.wait().expect("it ends");
    }
}

#[test]
fn lock_of_an_open_file_description_ends_with_it() {
    in_private_mounts(|| {
        let mut world = World::real();
        let (mut one, two) = (world.mount("one"), world.mount("two"));
        let (here, there) = (one.path.join("f"), two.path.join("f"));
        fs::write(&here, "x").expect("write");
        for round in 0..6 {
            let mut holder = Locker::start(&here, "try");
            assert_eq!(holder.outcome(), "locked", "round {round}");
            for other in [&here, &there] {
                let mut refused = Locker::start(other, "try");
                assert_eq!(refused.outcome(), libc::EAGAIN.to_string());
                refused.exit();
            }
            let mut waiting = Locker::start(if round % 2 == 0 { &there } else { &here }, "wait");
            // What was locked must be unlocked by whichever gate and server are there then.
            match round {
                2 => one.replace_gate(),
                3 => world.real.as_mut().expect("real").replace_server(),
                _ => {}
            }
            if round == 4 {
                holder.kill()
            } else {
                holder.exit()
            }
            assert_eq!(waiting.outcome(), "locked", "round {round}");
            waiting.exit();
            // Its own node knows at once; the other one when the closing, which nobody waits for, has reached the
            // server.
            let mut next = Locker::start(&here, "wait");
            assert_eq!(next.outcome(), "locked");
            next.exit();
        }
    });
}

#[test]
fn removed_directory_that_somebody_works_in_is_still_one() {
    in_private_mounts(|| {
        let mut world = World::real();
        let (one, two) = (world.mount("one"), world.mount("two"));
        for (round, remover) in [&one, &two].into_iter().enumerate() {
            let name = format!("d{round}");
            fs::create_dir(one.path.join(&name)).expect("mkdir");
            let here = File::open(one.path.join(&name)).expect("open");
            let there = File::open(two.path.join(&name)).expect("open");
            fs::remove_dir(remover.path.join(&name)).expect("rmdir");
            for restarted in [false, true] {
                if restarted {
                    world.real.as_mut().expect("real").replace_server();
                }
                for directory in [&here, &there] {
                    let about = directory.metadata().expect("fstat");
                    assert!(about.is_dir() && about.nlink() == 0, "{about:?}");
                    let listed = rustix::fs::Dir::read_from(directory).map(|listing| listing.count());
                    assert!(matches!(listed, Ok(0)), "{listed:?}");
                    let flags = rustix::fs::OFlags::CREATE | rustix::fs::OFlags::WRONLY;
                    let made = rustix::fs::openat(directory, "x", flags, rustix::fs::Mode::RWXU);
                    assert_eq!(made.err(), Some(rustix::io::Errno::NOENT));
                    let made = rustix::fs::mkdirat(directory, "x", rustix::fs::Mode::RWXU);
                    assert_eq!(made.err(), Some(rustix::io::Errno::NOENT));
                    let found = rustix::fs::statat(directory, "x", rustix::fs::AtFlags::empty());
                    assert_eq!(found.err(), Some(rustix::io::Errno::NOENT));
                    rustix::fs::fchmod(directory, rustix::fs::Mode::RWXU).expect("fchmod");
                }
            }
        }
    });
}

#[test]
fn allocation_and_extended_attributes_move_the_times_as_on_a_local_disk() {
    in_private_mounts(|| {
        let world = World::real();
        let mounted = world.mount("m");
        let path = mounted.path.join("f");
        fs::write(&path, vec![1; 20_000]).expect("write");
        let file = OpenOptions::new().read(true).write(true).open(&path).expect("open");
        let times = || {
            let about = fs::metadata(&path).expect("stat");
            ((about.mtime(), about.mtime_nsec()), (about.ctime(), about.ctime_nsec()))
        };
        let keep = FallocateFlags::KEEP_SIZE;
        let modes = [
            FallocateFlags::empty(),
            keep,
            FallocateFlags::PUNCH_HOLE | keep,
            FallocateFlags::ZERO_RANGE,
            FallocateFlags::ZERO_RANGE | keep,
        ];
        for mode in modes {
            let before = times();
            fallocate(&file, mode, 4096, 8192).expect("fallocate");
            let after = times();
            assert!(after.0 > before.0 && after.1 > before.1, "{mode:?}: {before:?} {after:?}");
        }
        let before = times();
        setxattr(&path, "user.colour", b"blue", XattrFlags::empty()).expect("setxattr");
        let set = times();
        assert!(set.0 == before.0 && set.1 > before.1, "{before:?} {set:?}");
        rustix::fs::removexattr(&path, "user.colour").expect("removexattr");
        let removed = times();
        assert!(removed.0 == before.0 && removed.1 > set.1, "{set:?} {removed:?}");
    });
}
