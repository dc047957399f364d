//! Changes that programs are answered before the server is told, and that nobody can tell.

use std::fs::{self, File, FileTimes, OpenOptions, Permissions};
use std::io::Write;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime};

use crate::common::{self, World, hear, in_private_mounts, server};
use rustix::fs::{Advice, FallocateFlags, SeekFrom, XattrFlags, fadvise, fallocate, seek, setxattr};
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

const EIO: Option<i32> = Some(libc::EIO);

/// A file that only this node knows.
fn make(path: &Path) -> File {
    // Under a lease of the directory.
    let _ = fs::metadata(path);
    OpenOptions::new().read(true).write(true).create_new(true).open(path).expect("create")
}

fn at(seconds: u64, nanoseconds: u32) -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::new(seconds, nanoseconds)
}

/// What `stat` shows of a file, but for its blocks and when it was read.
fn shown(path: &Path) -> (u64, u32, u64, (i64, i64), (i64, i64)) {
    let shown = fs::metadata(path).expect("stat");
    let (mtime, ctime) = ((shown.mtime(), shown.mtime_nsec()), (shown.ctime(), shown.ctime_nsec()));
    (shown.len(), shown.mode(), shown.nlink(), mtime, ctime)
}

#[test]
fn what_one_node_has_for_itself_is_changed_without_the_server_and_is_so_for_others() {
    in_private_mounts(|| {
        let mut world = World::real();
        let (one, two) = (world.mount("one"), world.mount("two"));
        let mut file = make(&one.path.join("f"));
        // The way to its name leads through the directory.
        fs::metadata(&one.path).expect("stat");
        hear(&one);
        server(&mut world).cut_server();
        for number in 0..100_u8 {
            file.write_all(&[number; 100]).expect("write");
        }
        file.write_all_at(b"anew", 50).expect("write");
        file.set_permissions(Permissions::from_mode(0o640)).expect("chmod");
        file.set_times(FileTimes::new().set_modified(at(77, 5)).set_accessed(at(78, 6))).expect("utimes");
        drop(file);
        let written = File::open(one.path.join("f")).expect("open");
        assert_eq!((seek(&written, SeekFrom::Data(7)), seek(&written, SeekFrom::Hole(0))), (Ok(7), Ok(10_000)));
        let here = shown(&one.path.join("f"));
        assert_eq!((here.0, here.1 & 0o7777, here.3), (10_000, 0o640, (77, 5)));
        server(&mut world).replace_server();
        let bytes = fs::read(two.path.join("f")).expect("read");
        let mut expected: Vec<u8> = (0..100_u8).flat_map(|number| [number; 100]).collect();
        expected[50..54].copy_from_slice(b"anew");
        assert!(bytes == expected);
        assert_eq!(shown(&two.path.join("f")), here, "to the nanosecond");
        assert_eq!(shown(&one.path.join("f")), here);
        assert_eq!(
            fs::metadata(one.path.join("f")).expect("stat").blocks(),
            fs::metadata(two.path.join("f")).expect("stat").blocks()
        );
    });
}

/// Through a mapping.
fn store(file: &File, value: u8) {
    // SAFETY: (1) a mapping of its own, of a page that the file has.
    unsafe {
        let flags = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED);
        let page = mmap(std::ptr::null_mut(), 4096, flags.0, flags.1, file, 0).expect("mapped");
        page.cast::<u8>().write_volatile(value);
        munmap(page, 4096).expect("unmapped");
    }
}

/// A file that is synced after each write is durable by the time its sync comes.
#[test]
fn sync_of_a_log_has_nothing_left_to_do() {
    in_private_mounts(|| {
        let mut world = World::real();
        let one = world.mount("one");
        let file = make(&one.path.join("log"));
        let append = |number: u8| {
            file.write_all_at(&[number; 4096], u64::from(number) * 4096).expect("write");
            file.sync_data().expect("sync");
        };
        // Whether a sync is answered while there is no server.
        let mut is_answered = |patience: Duration| {
            hear(&one);
            server(&mut world).cut_server();
            let (answered, heard) = std::sync::mpsc::channel();
            let file = file.try_clone().expect("a descriptor");
            let syncing = std::thread::spawn(move || {
                file.sync_data().expect("sync");
                answered.send(()).expect("somebody hears");
            });
            let is_answered = heard.recv_timeout(patience).is_ok();
            server(&mut world).replace_server();
            let _ = is_answered || heard.recv().is_ok();
            syncing.join().expect("synced");
            is_answered
        };
        (0..3).for_each(append);
        // On a busy machine a flush may take so long that the next write does not wait for one.
        let mut tries = 3..50;
        assert!(tries.any(|number| {
            append(number);
            is_answered(Duration::from_millis(500))
        }));
        let path = one.path.join("log");
        let change = |number: u8| match number % 7 {
            0 => file.set_permissions(Permissions::from_mode(0o600 + u32::from(number))).expect("chmod"),
            1 => file.set_len(1 << 20 | u64::from(number)).expect("truncate"),
            2 => fallocate(&file, FallocateFlags::empty(), 2 << 20, 4096 * u64::from(number)).expect("allocate"),
            3 => setxattr(&path, "user.x", &[number], XattrFlags::empty()).expect("set"),
            4 => fs::hard_link(&path, one.path.join(format!("{number}"))).expect("link"),
            5 => store(&file, number),
            _ => file.write_all_at(&[number], 9).expect("write"),
        };
        for number in tries.start..tries.start + 21 {
            append(number);
            append(number);
            change(number);
            assert!(!is_answered(Duration::from_millis(30)), "it was changed since: {number}");
        }
    });
}

/// What the server said of holes stays true while a program writes, and until another node changes the file.
#[test]
fn who_has_a_file_for_itself_knows_its_holes() {
    const BLOCK: u64 = 4096;
    in_private_mounts(|| {
        let mut world = World::real();
        let (one, two) = (world.mount("one"), world.mount("two"));
        let file = make(&one.path.join("f"));
        let (data, hole) = (|from| seek(&file, SeekFrom::Data(from)), |from| seek(&file, SeekFrom::Hole(from)));
        file.write_all_at(b"at the beginning", 0).expect("write");
        file.set_len(64 * BLOCK).expect("truncate");
        file.write_all_at(b"far away", 40 * BLOCK).expect("write");
        fs::metadata(&one.path).expect("stat");
        let before = [data(1), hole(1), data(BLOCK), hole(41 * BLOCK)];
        assert_eq!(before, [Ok(1), Ok(BLOCK), Ok(40 * BLOCK), Ok(41 * BLOCK)]);
        hear(&one);
        server(&mut world).cut_server();
        file.write_all_at(b"between", 20 * BLOCK + 1).expect("write");
        assert_eq!([data(1), hole(1), data(BLOCK)], [Ok(1), Ok(BLOCK), Ok(20 * BLOCK)]);
        assert_eq!([data(20 * BLOCK + 9), data(64 * BLOCK)], [Ok(20 * BLOCK + 9), Err(Errno::NXIO)]);
        server(&mut world).replace_server();
        let other = OpenOptions::new().write(true).open(two.path.join("f")).expect("open");
        other.set_len(0).expect("truncate");
        other.set_len(64 * BLOCK).expect("truncate");
        other.write_all_at(b"anew", 5 * BLOCK).expect("write");
        assert_eq!([data(1), hole(1)], [Ok(5 * BLOCK), Ok(1)]);
        file.set_len(5 * BLOCK).expect("truncate");
        assert_eq!([data(1), hole(1)], [Err(Errno::NXIO), Ok(1)]);
    });
}

/// One program at a time, on either node: each sees what was done last, whatever becomes of gates and servers.
#[test]
fn each_node_sees_what_was_done_last_while_gates_and_servers_die() {
    const FILES: usize = 4;
    const STEPS: usize = 600;
    let seed = common::seed();
    in_private_mounts(move || {
        let mut below = common::numbers(seed);
        let mut world = World::real();
        let mut nodes = world.mount_two();
        let name = |file: usize| format!("f{file}");
        let mut known: Vec<(Vec<u8>, u32)> = vec![(Vec::new(), 0o600); FILES];
        let mut open: Vec<[Option<File>; 2]> = (0..FILES).map(|_| [None, None]).collect();
        for file in 0..FILES {
            make(&nodes[file % 2].path.join(name(file))).set_permissions(Permissions::from_mode(0o600)).expect("chmod");
        }
        for step in 0..STEPS {
            // Mostly by one node, so that it has the file for itself.
            let file = below(FILES);
            let node = if below(8) == 0 { 1 - file % 2 } else { file % 2 };
            let path = nodes[node].path.join(name(file));
            let what = below(32);
            let said = format!("SEED={seed}, step {step}, {what} of {file} on {node}");
            let handle = open[file][node]
                .get_or_insert_with(|| OpenOptions::new().read(true).write(true).open(&path).expect(&said));
            let (bytes, mode) = &mut known[file];
            match what {
                0..8 => {
                    let more = vec![step as u8; 1 + below(3000)];
                    handle.write_all_at(&more, bytes.len() as u64).expect(&said);
                    bytes.extend(more);
                }
                8..13 => {
                    let (from, more) = (below(bytes.len() + 1), vec![step as u8; 1 + below(9000)]);
                    handle.write_all_at(&more, from as u64).expect(&said);
                    bytes.resize(bytes.len().max(from + more.len()), 0);
                    bytes[from..from + more.len()].copy_from_slice(&more);
                }
                13..16 => {
                    *mode = 0o400 | below(0o400) as u32;
                    handle.set_permissions(Permissions::from_mode(*mode)).expect(&said);
                }
                16 => {
                    let mut append = OpenOptions::new().append(true).open(&path).expect(&said);
                    append.write_all(b"appended").expect(&said);
                    bytes.extend(b"appended");
                }
                17 => {
                    let length = below(2 * bytes.len() + 1);
                    handle.set_len(length as u64).expect(&said);
                    bytes.resize(length, 0);
                }
                18 => handle.sync_all().expect(&said),
                19 => {
                    let new = nodes[node].path.join("new");
                    let mut made = make(&new);
                    made.write_all(b"another").expect(&said);
                    made.set_permissions(Permissions::from_mode(0o604)).expect(&said);
                    fs::rename(&new, &path).expect(&said);
                    (*bytes, *mode) = (b"another".to_vec(), 0o604);
                    open[file] = [None, None];
                }
                20 => open[file] = [None, None],
                21 => {
                    rustix::fs::copy_file_range(&*handle, Some(&mut 0), &*handle, Some(&mut (bytes.len() as u64)), 500)
                        .expect(&said);
                    bytes.extend_from_within(..500.min(bytes.len()));
                }
                22 => nodes[below(2)].replace_gate(),
                23 if below(2) == 0 => server(&mut world).replace_server(),
                _ => {}
            }
            if below(3) == 0 {
                let (bytes, mode) = &known[file];
                for node in [below(2), below(2)] {
                    let path = nodes[node].path.join(name(file));
                    let seen = fs::metadata(&path).expect(&said);
                    assert_eq!((seen.len(), seen.mode() & 0o7777), (bytes.len() as u64, *mode), "{said}");
                    let reader = File::open(&path).expect(&said);
                    fadvise(&reader, 0, None, Advice::DontNeed).expect("drop");
                    let mut found = vec![0; bytes.len() + 1];
                    let count = reader.read_at(&mut found, 0).expect(&said);
                    assert!(found[..count] == bytes[..], "{said}: {count} bytes of {}", bytes.len());
                }
            }
        }
    });
}

/// As `tar` does: many small files, each in pieces, with mode and time; nothing that was answered is missing.
#[test]
fn many_files_are_all_there_although_gates_and_servers_die() {
    in_private_mounts(|| {
        let mut world = World::real();
        let mut one = world.mount_for("one", Duration::from_secs(300));
        let two = world.mount_for("two", Duration::from_secs(300));
        let (is_over, content) = (AtomicBool::new(false), |number: usize| vec![number as u8; 1 + number * 37 % 20_000]);
        let root = one.path.clone();
        let count = std::thread::scope(|scope| {
            let tar = scope.spawn(|| {
                let mut number = 0;
                while !is_over.load(Ordering::Relaxed) {
                    let mut file = make(&root.join(format!("f{number}")));
                    content(number).chunks(512).for_each(|piece| file.write_all(piece).expect("write"));
                    file.set_times(FileTimes::new().set_modified(at(number as u64, 7))).expect("utimes");
                    file.set_permissions(Permissions::from_mode(0o640)).expect("chmod");
                    number += 1;
                }
                number
            });
            let rounds = common_rounds();
            for round in 0..rounds {
                std::thread::sleep(Duration::from_millis(5 + round * 7 % 40));
                match round % 3 {
                    2 => server(&mut world).replace_server(),
                    _ => one.replace_gate(),
                }
            }
            is_over.store(true, Ordering::Relaxed);
            tar.join().expect("no program saw an error")
        });
        assert!(count > 10, "{count} files say nothing");
        for number in 0..count {
            let path = two.path.join(format!("f{number}"));
            let seen = shown(&path);
            assert_eq!((seen.1 & 0o7777, seen.3), (0o640, (number as i64, 7)), "f{number} of {count}");
            assert!(fs::read(&path).expect("read") == content(number), "f{number} of {count}");
        }
    });
}

/// Deaths in a run; more in a long one.
fn common_rounds() -> u64 {
    if std::env::var_os("DVS_TEST_LONG").is_some() { 400 } else { 24 }
}

/// Whoever has to wait until the server knows all of a file waits for what was promised before, not for what comes
/// after.
#[test]
fn reader_is_not_kept_waiting_by_who_writes_on_and_on() {
    in_private_mounts(|| {
        let world = World::real();
        let one = world.mount("one");
        let (file, is_over) = (make(&one.path.join("f")), AtomicBool::new(false));
        file.write_all_at(&[7; 1 << 20], 0).expect("write");
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for number in 0_u64.. {
                    if is_over.load(Ordering::Relaxed) {
                        break;
                    }
                    file.write_all_at(&[7; 64], (1 << 20) + number % 1000 * 64).expect("write");
                }
            });
            let reader = File::open(one.path.join("f")).expect("open");
            for round in 0..20_u64 {
                fadvise(&reader, 0, None, Advice::DontNeed).expect("drop");
                let (began, mut bytes) = (Instant::now(), [0; 4096]);
                reader.read_exact_at(&mut bytes, round * 40_960).expect("read");
                assert!(began.elapsed() < Duration::from_secs(2), "round {round}: {:?}", began.elapsed());
                assert_eq!(bytes, [7; 4096]);
            }
            is_over.store(true, Ordering::Relaxed);
        });
    });
}

/// A node stands still with what it has not told, and is fenced: its promises hold unless somebody else changed the
/// file.
#[test]
fn fenced_node_keeps_its_promises_or_says_that_it_cannot() {
    in_private_mounts(|| {
        let mut world = World::real();
        let (mut one, two) = (world.mount("one"), world.mount("two"));
        let files = ["kept", "lost"].map(|name| make(&one.path.join(name)));
        files.iter().for_each(|mut file| file.write_all(b"first").expect("write"));
        files.iter().for_each(|file| file.sync_all().expect("sync"));
        hear(&one);
        server(&mut world).cut_server();
        for mut file in &files {
            file.write_all(b", second").expect("promised");
            file.set_permissions(Permissions::from_mode(0o611)).expect("promised");
        }
        one.stop_gate(|| {
            server(&mut world).replace_server();
            let began = Instant::now();
            assert_eq!(fs::read(two.path.join("kept")).expect("read"), b"first");
            assert!(began.elapsed() > Duration::from_secs(1), "it waited for whoever may have changed it");
            fs::write(two.path.join("lost"), b"by another").expect("write");
        });
        let until = Instant::now() + Duration::from_secs(10);
        while fs::read(two.path.join("kept")).expect("read") != b"first, second" {
            assert!(Instant::now() < until, "what nobody else changed is told");
            std::thread::sleep(Duration::from_millis(10));
        }
        assert_eq!(fs::metadata(two.path.join("kept")).expect("stat").mode() & 0o7777, 0o611);
        assert_eq!(files[0].sync_all().map_err(|error| error.raw_os_error()), Ok(()));
        assert_eq!(files[1].sync_all().map_err(|error| error.raw_os_error()), Err(EIO), "once");
        assert_eq!(files[1].sync_all().map_err(|error| error.raw_os_error()), Ok(()));
        for node in [&one, &two] {
            assert_eq!(fs::read(node.path.join("lost")).expect("read"), b"by another");
        }
    });
}
