//! The gate with the real fs server: programs at work, gates and servers that die meanwhile.

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::common::{World, in_private_mounts};
use zerocopy::IntoBytes;

#[test]
fn files_of_all_kinds_work_on_the_real_server() {
    in_private_mounts(|| {
        let world = World::real();
        let mounted = world.mount("m");
        let dir = mounted.path.join("d");
        fs::create_dir(&dir).expect("mkdir");
        let a = dir.join("a");
        fs::write(&a, b"hello").expect("write");
        OpenOptions::new().append(true).open(&a).expect("open").write_all(b" world").expect("append");
        assert_eq!(fs::read(&a).expect("read"), b"hello world");
        fs::hard_link(&a, dir.join("b")).expect("link");
        fs::rename(dir.join("b"), dir.join("c")).expect("rename");
        assert_eq!(fs::metadata(&a).expect("stat").nlink(), 2);
        let file = OpenOptions::new().read(true).write(true).open(&a).expect("open");
        let big: Vec<u8> = (0..5 << 20).map(|n: u32| (n.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
        file.write_all_at(&big, 12_345).expect("write");
        file.sync_all().expect("fsync");
        assert!(fs::read(dir.join("c")).expect("read")[12_345..] == big[..]);
        fs::remove_file(&a).expect("unlink");
        fs::remove_file(dir.join("c")).expect("unlink");
        let mut bytes = vec![0; big.len()];
        file.read_exact_at(&mut bytes, 12_345).expect("an unlinked file lives on");
        assert!(bytes == big);
        let flags = rustix::fs::XattrFlags::empty();
        rustix::fs::setxattr(&dir, "user.colour", b"blue", flags).expect("set");
        let mut value = [0; 16];
        assert_eq!(rustix::fs::getxattr(&dir, "user.colour", &mut value), Ok(4));
        for n in 0..1000 {
            File::create(dir.join(format!("entry-{n}"))).expect("create");
        }
        assert_eq!(fs::read_dir(&dir).expect("readdir").count(), 1000);
        let listed = Command::new("ls").args(["-a"]).arg(&dir).output().expect("ls runs");
        assert_eq!(listed.stdout.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()).count(), 1002);
    });
}

#[test]
fn whole_files_are_placed_beside_what_the_kernel_keeps_of_their_directory() {
    in_private_mounts(|| {
        let world = World::real();
        let mounted = world.mount("m");
        let dir = mounted.path.join("d");
        fs::create_dir(&dir).expect("mkdir");
        // The kernel now keeps an empty listing, the directory's times, and that a name does not exist.
        assert_eq!(fs::read_dir(&dir).expect("readdir").count(), 0);
        let before = fs::metadata(&dir).expect("stat").mtime_nsec();
        assert!(fs::metadata(dir.join("name-7")).is_err());
        let directory = File::open(&dir).expect("open");
        std::thread::scope(|scope| {
            for thread in 0..8_u64 {
                let directory = &directory;
                scope.spawn(move || {
                    for n in (thread..200).step_by(8) {
                        let content = n.to_le_bytes().repeat(n as usize);
                        place(directory, &format!("name-{n}"), 0o4751, &content).expect("placed");
                    }
                });
            }
        });
        assert_eq!(
            place(&directory, "name-7", 0o600, b"").map_err(|e| e.kind()),
            Err(std::io::ErrorKind::AlreadyExists)
        );
        assert!(place(&directory, "a/b", 0o600, b"").is_err());
        assert_ne!(fs::metadata(&dir).expect("stat").mtime_nsec(), before);
        assert_eq!(fs::read_dir(&dir).expect("readdir").count(), 200);
        for n in 0..200_u64 {
            let path = dir.join(format!("name-{n}"));
            let about = eventually(&path);
            assert_eq!((about.mode(), about.uid(), about.gid()), (0o104_751, 0, 0));
            assert_eq!((about.mtime(), about.mtime_nsec(), about.atime()), (1_000_000_000, 5, 1_000_000_000));
            assert!(fs::read(&path).expect("read") == n.to_le_bytes().repeat(n as usize));
        }
    });
}

fn place(directory: &File, name: &str, mode: u32, content: &[u8]) -> std::io::Result<i32> {
    let head = vos_api::fs::PlaceHead {
        mode: mode.into(),
        uid: 0.into(),
        gid: 0.into(),
        name_bytes: (name.len() as u32).into(),
        mtime_ns: 1_000_000_000_000_000_005.into(),
    };
    let command = [head.as_bytes(), name.as_bytes(), content].concat();
    sys::ioctl::give(directory, vos_api::fs::PLACE_GROUP, vos_api::fs::PLACE_NUMBER, &command)
}

/// Of a name that did not exist the kernel is told by the thread for notifications.
fn eventually(path: &Path) -> fs::Metadata {
    let limit = Instant::now() + Duration::from_secs(5);
    loop {
        match fs::metadata(path) {
            Err(_) if Instant::now() < limit => std::thread::yield_now(),
            other => return other.expect("stat"),
        }
    }
}

#[test]
fn git_and_sqlite_work_on_the_real_server() {
    in_private_mounts(|| {
        let world = World::real();
        let mounted = world.mount("m");
        let repository = mounted.path.join("r");
        fs::create_dir(&repository).expect("mkdir");
        let git = |args: &[&str]| {
            let run = Command::new("git").args(args).current_dir(&repository).env("HOME", &mounted.path).output();
            let run = run.expect("git runs");
            assert!(run.status.success(), "git {args:?}: {}", String::from_utf8_lossy(&run.stderr));
        };
        git(&["init", "-q"]);
        git(&["config", "user.email", "a@example.org"]);
        git(&["config", "user.name", "a"]);
        for n in 0..100 {
            fs::write(repository.join(format!("file-{n}")), format!("content {n}\n").repeat(n + 1)).expect("write");
        }
        git(&["add", "."]);
        git(&["commit", "-q", "-m", "one"]);
        git(&["gc", "-q"]);
        git(&["fsck", "--full", "--strict"]);
        let script = "PRAGMA journal_mode=wal; CREATE TABLE t(a,b); \
             WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i+1 FROM n WHERE i<5000) INSERT INTO t SELECT i, hex(i) FROM n; \
             DELETE FROM t WHERE a%3=0; VACUUM; PRAGMA integrity_check; SELECT count(*) FROM t;";
        let run = Command::new("sqlite3").arg(mounted.path.join("db")).arg(script).output().expect("sqlite3 runs");
        let out = String::from_utf8_lossy(&run.stdout).into_owned();
        assert!(out.contains("ok\n3334"), "{out} {}", String::from_utf8_lossy(&run.stderr));
    });
}

#[test]
fn programs_see_no_error_while_gates_and_servers_die() {
    in_private_mounts(|| {
        let mut world = World::real();
        let mut mounted = world.mount("m");
        let path = mounted.path.clone();
        let (progress, wait) = std::sync::mpsc::sync_channel(0);
        const ROUNDS: u64 = 60;
        let writer = std::thread::spawn(move || {
            let mut log = OpenOptions::new().append(true).create_new(true).open(path.join("log")).expect("create");
            for n in 0..ROUNDS * 5 {
                log.write_all(format!("line {n}\n").as_bytes()).expect("append");
                let name = path.join(format!("f{n}"));
                let file = OpenOptions::new().read(true).write(true).create_new(true).open(&name).expect("create");
                file.write_all_at(&n.to_le_bytes(), 100).expect("write");
                fs::rename(&name, path.join("g")).expect("rename");
                assert_eq!(fs::metadata(path.join("g")).expect("stat").size(), 108);
                fs::remove_file(path.join("g")).expect("unlink");
                if n % 5 == 0 && progress.send(()).is_err() {
                    return;
                }
            }
        });
        let mut round = 0;
        while wait.recv().is_ok() {
            match round % 3 {
                0 => mounted.replace_gate(),
                1 => world.real.as_mut().expect("real").replace_server(),
                _ => {
                    mounted.kill_gate();
                    world.real.as_mut().expect("real").replace_server();
                    mounted.replace_gate();
                }
            }
            round += 1;
        }
        writer.join().expect("no program saw an error");
        let log = fs::read_to_string(mounted.path.join("log")).expect("read");
        let expected: String = (0..ROUNDS * 5).map(|n| format!("line {n}\n")).collect();
        assert_eq!(log, expected);
        assert_eq!(fs::read_dir(&mounted.path).expect("readdir").count(), 1);
    });
}

/// One of two nodes stands still while its program writes and the other one wants what it holds.
#[test]
fn node_that_stood_still_is_fenced_and_its_programs_do_nothing_twice() {
    in_private_mounts(|| {
        let mut world = World::real();
        let (mut stands, goes_on) = (world.mount("stands"), world.mount("goes_on"));
        let path = stands.path.clone();
        let stop = Arc::new(AtomicBool::new(false));
        let ended = Arc::clone(&stop);
        let writer = std::thread::spawn(move || {
            let mut log = OpenOptions::new().append(true).create_new(true).open(path.join("log")).expect("create");
            let mut n = 0;
            while !ended.load(Ordering::Relaxed) {
                log.write_all(format!("line {n}\n").as_bytes()).expect("append");
                let name = path.join(format!("f{n}"));
                drop(OpenOptions::new().write(true).create_new(true).open(&name).expect("create"));
                fs::hard_link(&name, path.join("g")).expect("link");
                fs::remove_file(path.join("g")).expect("unlink");
                fs::remove_file(&name).expect("unlink");
                n += 1;
            }
            n
        });
        let kept = stands.path.join("kept");
        let log = goes_on.path.join("log");
        fs::write(&kept, "held under a lease").expect("write");
        // A new session could not have it.
        let nameless = stands.path.join("nameless");
        let open = OpenOptions::new().read(true).write(true).create_new(true).open(&nameless).expect("create");
        fs::remove_file(&nameless).expect("unlink");
        for round in 0..4_u64 {
            std::thread::sleep(Duration::from_millis(20 + 7 * round));
            let rests = stands.stop_gate(|| {
                // Not before the other one was fenced.
                fs::write(goes_on.path.join("kept"), round.to_le_bytes()).expect("write");
                if round % 2 == 1 {
                    world.real.as_mut().expect("real").replace_server();
                }
                fs::read_to_string(&log).expect("read")
            });
            assert!(rests.ends_with('\n') || rests.is_empty(), "{rests}");
            assert_eq!(fs::read(&kept).expect("read"), round.to_le_bytes());
            open.write_all_at(&round.to_le_bytes(), 0).expect("fenced once more, it is the same session");
        }
        drop(open);
        stop.store(true, Ordering::Relaxed);
        let written = writer.join().expect("no program saw an error");
        let expected: String = (0..written).map(|n| format!("line {n}\n")).collect();
        assert_eq!(fs::read_to_string(log).expect("read"), expected);
        let mut left: Vec<_> =
            fs::read_dir(&goes_on.path).expect("readdir").map(|entry| entry.expect("entry").file_name()).collect();
        left.sort();
        assert_eq!(left, ["kept", "log"]);
    });
}

#[test]
fn what_one_node_changes_the_other_sees_at_once() {
    in_private_mounts(|| {
        let world = World::real();
        let (one, two) = (world.mount("one"), world.mount("two"));
        let (here, there) = (one.path.join("f"), two.path.join("f"));
        assert!(!there.exists());
        for round in 0..50_u64 {
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
    });
}

/// What is not there is asked for once, and is there at once when another node puts it there.
#[test]
fn extended_attribute_that_one_node_sets_the_other_sees_at_once() {
    use rustix::fs::{XattrFlags, getxattr, listxattr, removexattr, setxattr};
    use rustix::io::Errno;
    in_private_mounts(|| {
        let world = World::real();
        let (one, two) = (world.mount("one"), world.mount("two"));
        let (here, there) = (one.path.join("f"), two.path.join("f"));
        fs::write(&here, "x").expect("write");
        let names = |path: &Path| listxattr(path, &mut [0; 64]);
        for round in 0..50_u8 {
            for path in [&here, &there] {
                assert_eq!(fs::metadata(path).expect("stat").len(), 1);
                assert_eq!(getxattr(path, "user.a", &mut [0; 8]), Err(Errno::NODATA), "round {round}");
                assert_eq!(names(path), Ok(0), "round {round}");
            }
            let (sets, looks) = if round % 2 == 0 { (&here, &there) } else { (&there, &here) };
            setxattr(sets, "user.a", &[round], XattrFlags::CREATE).expect("set");
            for path in [sets, looks] {
                let mut value = [0; 8];
                assert_eq!((getxattr(path, "user.a", &mut value), value[0]), (Ok(1), round));
                assert_eq!(names(path), Ok(b"user.a\0".len()));
            }
            removexattr(looks, "user.a").expect("remove");
        }
    });
}

/// A name seen here is believed until its directory's lease goes, which a change of any other name in it takes away.
#[test]
fn names_seen_before_another_name_changed_are_not_believed() {
    in_private_mounts(|| {
        let world = World::real();
        let (one, two) = (world.mount("one"), world.mount("two"));
        for round in 0..20_u32 {
            let name = format!("f{round}");
            assert!(!two.path.join(&name).exists());
            fs::write(one.path.join(format!("other{round}")), "x").expect("write");
            fs::write(one.path.join(&name), "first").expect("write");
            assert_eq!(fs::read_to_string(two.path.join(&name)).expect("negative name was believed"), "first");
            // As a package manager replaces its list: the new one beside it, a link to the old one, then the name
            // itself.
            fs::write(one.path.join("new"), "second").expect("write");
            fs::hard_link(one.path.join(&name), one.path.join(format!("old{round}"))).expect("link");
            fs::rename(one.path.join("new"), one.path.join(&name)).expect("rename");
            assert_eq!(fs::read_to_string(two.path.join(&name)).expect("read"), "second");
        }
    });
}

/// Reads a file as somebody does who never saw it.
fn read_cold(path: &Path) -> std::io::Result<Vec<u8>> {
    let file = File::open(path)?;
    rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed)?;
    fs::read(path)
}

fn pattern(bytes: u32, seed: u32) -> Vec<u8> {
    (0..bytes).map(|n| (n.wrapping_mul(2_654_435_761).wrapping_add(seed) >> 24) as u8).collect()
}

/// Reads until the gate goes to the disk by itself: its session with it begins in the background.
fn read_until_direct(world: &World, path: &Path, expected: &[u8]) {
    let real = world.real.as_ref().expect("real");
    let (before, limit) = (real.disk_requests(), Instant::now() + Duration::from_secs(10));
    while real.disk_requests() == before {
        assert!(Instant::now() < limit, "the disk is asked for nothing");
        assert!(read_cold(path).expect("read") == expected);
    }
}

#[test]
fn long_reads_come_from_the_disk_and_a_damaged_block_is_an_error() {
    in_private_mounts(|| {
        let world = World::real();
        let mounted = world.mount("m");
        let path = mounted.path.join("f");
        // Not a whole number of blocks, with something before it that moves the blocks of the two files among each
        // other.
        let data = pattern((9 << 20) + 1234, 1);
        let mut files = [&path, &mounted.path.join("g")].map(|path| File::create(path).expect("create"));
        for piece in data.chunks(300_000) {
            files.iter_mut().for_each(|file| file.write_all(piece).expect("write"));
        }
        read_until_direct(&world, &path, &data);
        let real = world.real.as_ref().expect("real");
        let before = real.disk_requests();
        assert!(read_cold(&path).expect("read") == data);
        let asked = real.disk_requests() - before;
        assert!((6..=80).contains(&asked), "{asked} requests for 9 MiB");
        // A hole is nowhere on the disk.
        files[0].set_len(12 << 20).expect("longer");
        let mut longer = data.clone();
        longer.resize(12 << 20, 0);
        assert!(read_cold(&path).expect("read") == longer);

        let needle = &data[5 << 20..(5 << 20) + 4096];
        let place = (0..1 << 18).find(|block| {
            let mut here = [0; 4096];
            real.image().read_exact_at(&mut here, block * 4096).expect("image");
            here == needle
        });
        let place = place.expect("the block is on the volume") * 4096;
        real.image().write_all_at(b"damaged", place + 100).expect("image");
        assert_eq!(read_cold(&path).expect_err("damage is seen").raw_os_error(), Some(libc::EIO));
        real.image().write_all_at(needle, place).expect("image");
        assert!(read_cold(&path).expect("read") == longer);
    });
}

#[test]
fn what_one_node_wrote_the_other_reads_from_the_disk() {
    const BYTES: usize = 4 << 20;
    in_private_mounts(|| {
        let world = World::real();
        let (one, two) = (world.mount("one"), world.mount("two"));
        let (here, there) = (one.path.join("f"), two.path.join("f"));
        // Every eight bytes say which write they are of.
        let version = |n: u64| n.to_le_bytes().repeat(BYTES / 8);
        fs::write(&here, version(0)).expect("write");
        read_until_direct(&world, &there, &version(0));
        let before = world.real.as_ref().expect("real").disk_requests();
        let written = AtomicU64::new(0);
        let is_over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let file = OpenOptions::new().write(true).open(&here).expect("open");
                for n in 1..=60 {
                    file.write_all_at(&version(n), 0).expect("write");
                    written.store(n, Ordering::SeqCst);
                }
                is_over.store(true, Ordering::SeqCst);
            });
            while !is_over.load(Ordering::SeqCst) {
                let oldest = written.load(Ordering::SeqCst);
                let read = read_cold(&there).expect("read");
                // The one after is being written.
                let newest = written.load(Ordering::SeqCst) + 1;
                assert_eq!(read.len(), BYTES);
                for (at, bytes) in read.chunks_exact(8).enumerate() {
                    let found = u64::from_le_bytes(bytes.try_into().expect("eight"));
                    assert!((oldest..=newest).contains(&found), "byte {}: {found}, not {oldest} to {newest}", at * 8);
                }
            }
        });
        assert!(world.real.as_ref().expect("real").disk_requests() > before + 10);
    });
}

#[test]
fn reads_go_through_the_server_while_the_disk_is_out_of_reach() {
    in_private_mounts(|| {
        let mut world = World::real();
        let mounted = world.mount("m");
        for round in 0..5 {
            // What the server has read once it answers from its cache.
            let path = mounted.path.join(format!("f{round}"));
            let data = pattern(8 << 20, round);
            fs::write(&path, &data).expect("write");
            read_until_direct(&world, &path, &data);
            let (reader, expected) = (path.clone(), data.clone());
            let reading = std::thread::spawn(move || {
                for _ in 0..5 {
                    assert!(read_cold(&reader).expect("read") == expected);
                }
            });
            world.real.as_mut().expect("real").cut_disk();
            reading.join().expect("every byte is right");
            assert!(read_cold(&path).expect("read") == data);
            world.real.as_mut().expect("real").replace_disk();
        }
    });
}

/// Not a test of behaviour: prints what a program gets. `--ignored throughput --nocapture`.
#[test]
#[ignore = "prints figures"]
fn throughput() {
    in_private_mounts(|| {
        let world = World::real();
        let mounted = world.mount("m");
        let path = mounted.path.join("f");
        let bytes = 256_usize << 20;
        let data: Vec<u8> = (0..bytes).map(|n| (n >> 7) as u8).collect();
        let rate = |what: &str, began: Instant| {
            eprintln!("{what}: {:.2} GB/s", bytes as f64 / began.elapsed().as_secs_f64() / 1e9);
        };
        let began = Instant::now();
        fs::write(&path, &data).expect("write");
        rate("write 256 MiB", began);
        let began = Instant::now();
        assert!(fs::read(&path).expect("read") == data);
        rate("read, warm", began);
        let file = File::open(&path).expect("open");
        rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).expect("drop");
        drop(file);
        let began = Instant::now();
        assert!(fs::read(&path).expect("read") == data);
        rate("read, cold", began);
        let began = Instant::now();
        for _ in 0..10_000 {
            fs::metadata(&path).expect("stat");
        }
        eprintln!("cached stat: {:.2} us", began.elapsed().as_secs_f64() * 100.0);
        let began = Instant::now();
        for n in 0..2000 {
            File::create(mounted.path.join(format!("e{n}"))).expect("create");
        }
        eprintln!("create and close: {:.1} us", began.elapsed().as_secs_f64() * 500.0);
    });
}
