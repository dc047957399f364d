//! Locks of files that one node uses alone, which its gate keeps, and what others see of them.

use std::fs::{self, File, OpenOptions};
use std::io::Error;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::common::{self, World, hear, in_private_mounts, server};
use file_locks::{Held, LockTable, READ, UNLOCK, WRITE};
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

fn open(path: &Path) -> File {
    OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path).expect("open")
}

/// A lock of an open file description, which is its own owner in any thread. Answers the errno.
fn set(file: &File, command: i32, (kind, start, end): (u32, u64, u64)) -> Result<libc::flock, Option<i32>> {
    // SAFETY: plain numbers.
    let mut wanted: libc::flock = unsafe { std::mem::zeroed() };
    (wanted.l_type, wanted.l_start) = (kind as i16, start as i64);
    wanted.l_len = if end == u64::MAX { 0 } else { (end - start + 1) as i64 };
    // SAFETY: the descriptor is open and the structure is ours.
    let done = unsafe { libc::fcntl(file.as_raw_fd(), command, &mut wanted) };
    if done == 0 { Ok(wanted) } else { Err(Error::last_os_error().raw_os_error()) }
}

/// From here on the server lets the node keep locks of the file.
fn lock_and_unlock(file: &File) {
    flock(file, FlockOperation::LockExclusive).expect("lock");
    flock(file, FlockOperation::Unlock).expect("unlock");
}

#[test]
fn locks_of_what_one_node_has_for_itself_need_no_server_and_are_seen_by_others() {
    in_private_mounts(|| {
        let mut world = World::real();
        let (one, two) = (world.mount("one"), world.mount("two"));
        fs::metadata(&one.path).expect("stat");
        let (first, second) = (open(&one.path.join("f")), open(&one.path.join("f")));
        lock_and_unlock(&first);
        hear(&one);
        server(&mut world).cut_server();
        for _ in 0..50 {
            flock(&first, FlockOperation::LockShared).expect("lock");
            flock(&second, FlockOperation::LockShared).expect("lock");
            assert_eq!(flock(&second, FlockOperation::NonBlockingLockExclusive), Err(Errno::AGAIN));
            // Who wants another kind unlocks first.
            flock(&first, FlockOperation::NonBlockingLockExclusive).expect("free");
            flock(&first, FlockOperation::Unlock).expect("unlock");
        }
        set(&first, libc::F_OFD_SETLK, (WRITE, 10, 19)).expect("lock");
        set(&first, libc::F_OFD_SETLK, (UNLOCK, 13, 14)).expect("unlock");
        assert_eq!(set(&second, libc::F_OFD_SETLK, (READ, 15, 15)).err(), Some(Some(libc::EAGAIN)));
        set(&second, libc::F_OFD_SETLK, (WRITE, 13, 14)).expect("free");
        let found = set(&second, libc::F_OFD_GETLK, (WRITE, 0, u64::MAX)).expect("asked");
        assert_eq!((found.l_type, found.l_start, found.l_len), (WRITE as i16, 10, 3));
        flock(&first, FlockOperation::LockExclusive).expect("lock");
        server(&mut world).replace_server();
        let third = open(&two.path.join("f"));
        assert_eq!(flock(&third, FlockOperation::NonBlockingLockShared), Err(Errno::AGAIN));
        let found = set(&third, libc::F_OFD_GETLK, (READ, 12, 12)).expect("asked");
        assert_eq!((found.l_type, found.l_start, found.l_len), (WRITE as i16, 10, 3));
        let waiter = std::thread::spawn(move || flock(&third, FlockOperation::LockExclusive).map(|()| third));
        std::thread::sleep(Duration::from_millis(100));
        assert!(!waiter.is_finished());
        drop(first);
        let third = waiter.join().expect("no panic").expect("lock");
        set(&third, libc::F_OFD_SETLK, (WRITE, 15, 19)).expect("gone with its file");
        assert_eq!(set(&third, libc::F_OFD_SETLK, (WRITE, 13, 13)).err(), Some(Some(libc::EAGAIN)));
    });
}

#[test]
fn program_that_waits_gets_a_lock_that_was_kept_and_a_gate_that_dies_leaves_those_that_are_held() {
    in_private_mounts(|| {
        let mut world = World::real();
        let (mut one, two) = (world.mount("one"), world.mount("two"));
        fs::metadata(&one.path).expect("stat");
        let (first, second) = (open(&one.path.join("f")), open(&one.path.join("f")));
        lock_and_unlock(&first);
        flock(&first, FlockOperation::LockExclusive).expect("lock");
        let waiter = std::thread::spawn(move || flock(&second, FlockOperation::LockShared).map(|()| second));
        std::thread::sleep(Duration::from_millis(100));
        assert!(!waiter.is_finished());
        flock(&first, FlockOperation::Unlock).expect("unlock");
        let second = waiter.join().expect("no panic").expect("lock");
        drop(second);
        // Alone again: kept.
        lock_and_unlock(&first);
        lock_and_unlock(&first);
        flock(&first, FlockOperation::LockExclusive).expect("lock");
        set(&first, libc::F_OFD_SETLK, (WRITE, 5, 9)).expect("lock");
        server(&mut world).cut_server();
        one.replace_gate();
        server(&mut world).replace_server();
        let third = open(&two.path.join("f"));
        assert_eq!(flock(&third, FlockOperation::NonBlockingLockShared), Err(Errno::AGAIN));
        assert_eq!(set(&third, libc::F_OFD_SETLK, (READ, 9, 9)).err(), Some(Some(libc::EAGAIN)));
        set(&first, libc::F_OFD_SETLK, (UNLOCK, 0, u64::MAX)).expect("unlock");
        set(&third, libc::F_OFD_SETLK, (READ, 9, 9)).expect("free");
        drop(first);
        flock(&third, FlockOperation::LockShared).expect("free");
    });
}

/// One program at a time, on either node: a lock is had or refused as on one machine, whatever becomes of gates and
/// servers.
#[test]
fn locks_are_as_on_one_machine_while_gates_and_servers_die() {
    const FILES: usize = 3;
    const OPEN: usize = 3;
    const STEPS: usize = 1200;
    let seed = common::seed();
    in_private_mounts(move || {
        let mut below = common::numbers(seed);
        let mut world = World::real();
        let mut nodes = world.mount_two();
        let mut tables = vec![LockTable::default(); FILES];
        let mut files: Vec<Option<File>> = (0..FILES * 2 * OPEN).map(|_| None).collect();
        for step in 0..STEPS {
            let file = below(FILES);
            // Mostly by one node, so that it has the file for itself.
            let node = if below(12) == 0 { 1 - file % 2 } else { file % 2 };
            let which = (file * 2 + node) * OPEN + below(OPEN);
            let path = nodes[node].path.join(format!("f{file}"));
            let handle = files[which].get_or_insert_with(|| open(&path));
            let what = below(32);
            let start = below(40) as u64;
            let end = if below(8) == 0 { u64::MAX } else { start + below(20) as u64 };
            let said = format!("SEED={seed}, step {step}, {what} of {file} by {which}, {start} to {end}");
            let held = |kind| Held { session: 1, handle: which as u64, owner: which as u64, start, end, kind, pid: 0 };
            match what {
                0..10 => {
                    let kind = if what < 5 { READ } else { WRITE };
                    let is_free = tables[file].conflict(&held(kind)).is_none();
                    let done = set(handle, libc::F_OFD_SETLK, (kind, start, end)).err();
                    assert_eq!(done, if is_free { None } else { Some(Some(libc::EAGAIN)) }, "{said}");
                    if is_free {
                        tables[file].set(held(kind)).expect("few");
                    }
                }
                10..17 => {
                    set(handle, libc::F_OFD_SETLK, (UNLOCK, start, end)).expect(&said);
                    tables[file].set(held(UNLOCK)).expect("few");
                }
                17..20 => {
                    set(handle, libc::F_OFD_SETLK, (UNLOCK, 0, u64::MAX)).expect(&said);
                    tables[file].drop_owner(1, which as u64);
                }
                20..24 => {
                    let found = set(handle, libc::F_OFD_GETLK, (WRITE, start, end)).expect(&said);
                    let is_free = tables[file].conflict(&held(WRITE)).is_none();
                    assert_eq!(found.l_type == UNLOCK as i16, is_free, "{said}");
                }
                24..27 => {
                    let range = (WRITE, 0, u64::MAX);
                    tables[file].drop_owner(1, which as u64);
                    let is_free = tables[file].is_empty();
                    if !is_free {
                        set(handle, libc::F_OFD_SETLK, (UNLOCK, 0, u64::MAX)).expect(&said);
                    }
                    files[which] = None;
                    // What it had goes when the kernel says so, which is soon.
                    let again = open(&path);
                    let since = Instant::now();
                    while is_free && set(&again, libc::F_OFD_GETLK, range).expect(&said).l_type != UNLOCK as i16 {
                        assert!(since.elapsed() < Duration::from_secs(5), "{said}");
                    }
                    files[which] = Some(again);
                }
                // Alone it has it for itself.
                27 => handle.write_all_at(&[step as u8; 100], 0).expect(&said),
                28 if below(2) == 0 => nodes[below(2)].replace_gate(),
                29 if below(3) == 0 => server(&mut world).replace_server(),
                30 => {
                    // The other node leaves it.
                    let first = (file * 2 + 1 - node) * OPEN;
                    for (at, other) in files.iter_mut().enumerate().skip(first).take(OPEN) {
                        tables[file].drop_owner(1, at as u64);
                        if let Some(other) = other.take() {
                            set(&other, libc::F_OFD_SETLK, (UNLOCK, 0, u64::MAX)).expect(&said);
                        }
                    }
                }
                _ => {}
            }
        }
    });
}

/// Programs of two nodes count under a lock; no turn is lost.
#[test]
fn whoever_has_the_lock_is_alone_and_sees_what_was_written_last() {
    /// Of gates and servers, one after the other.
    const DEATHS: usize = 4;
    in_private_mounts(|| {
        let mut world = World::real();
        let mut nodes = world.mount_two();
        let paths: Vec<_> = nodes.iter().map(|node| node.path.join("count")).collect();
        open(&paths[0]).write_all_at(&[0; 16], 0).expect("write");
        let is_over = AtomicBool::new(false);
        let count = |path: &Path, by_flock: bool| {
            let (mut turns, at) = (0, if by_flock { 8 } else { 0 });
            while !is_over.load(Ordering::Relaxed) {
                let file = open(path);
                match by_flock {
                    true => flock(&file, FlockOperation::LockExclusive).expect("lock"),
                    false => drop(set(&file, libc::F_OFD_SETLKW, (WRITE, 0, u64::MAX)).expect("lock")),
                }
                let mut bytes = [0; 8];
                file.read_exact_at(&mut bytes, at).expect("read");
                file.write_all_at(&(u64::from_le_bytes(bytes) + 1).to_le_bytes(), at).expect("write");
                turns += 1;
                // Else it goes with its file.
                if turns % 3 == 0 {
                    match by_flock {
                        true => flock(&file, FlockOperation::Unlock).expect("unlock"),
                        false => drop(set(&file, libc::F_OFD_SETLK, (UNLOCK, 0, u64::MAX)).expect("unlock")),
                    }
                }
            }
            turns
        };
        let expected = std::thread::scope(|scope| {
            let (count, paths) = (&count, &paths);
            let start = |worker: usize| scope.spawn(move || count(&paths[worker % 2], worker % 4 < 2));
            let workers: Vec<_> = (0..8).map(start).collect();
            // In between nodes take turns undisturbed: after a gate's death the first takes a second.
            for death in 0..DEATHS {
                std::thread::sleep(Duration::from_millis(1300));
                match death % 2 {
                    0 => server(&mut world).replace_server(),
                    _ => nodes[death / 2 % 2].replace_gate(),
                }
            }
            std::thread::sleep(Duration::from_millis(1300));
            is_over.store(true, Ordering::Relaxed);
            let turns: Vec<u64> = workers.into_iter().map(|worker| worker.join().expect("no panic")).collect();
            [2, 0].map(|first| turns.chunks(4).map(|four| four[first] + four[first + 1]).sum::<u64>())
        });
        let mut bytes = [0; 16];
        open(&paths[1]).read_exact_at(&mut bytes, 0).expect("read");
        let counted = [&bytes[..8], &bytes[8..]].map(|half| u64::from_le_bytes(half.try_into().expect("eight")));
        assert_eq!(counted, expected);
    });
}
