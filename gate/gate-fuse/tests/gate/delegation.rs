//! What a gate answers under leases without the server, and that nobody can tell: opens, closes, attributes, names.

use std::fs::{self, File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::time::{Duration, Instant};

use crate::common::{self, Mounted, World, hear, in_private_mounts, server};
use rustix::fs::{FlockOperation, flock, statvfs};

/// The kernel asks for names again after a second.
const NAMES_EXPIRE: Duration = Duration::from_millis(1100);

/// Inodes that somebody claims.
fn inodes(mounted: &Mounted) -> u64 {
    let space = statvfs(&mounted.path).expect("statfs");
    space.f_files - space.f_ffree
}

/// What is closed behind programs' backs takes its time.
fn comes_to(what: &str, wanted: u64, mut look: impl FnMut() -> u64) {
    let until = Instant::now() + Duration::from_secs(5);
    let mut seen = look();
    while seen != wanted && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(5));
        seen = look();
    }
    assert_eq!(seen, wanted, "{what}");
}

fn read_open(file: &File) -> Vec<u8> {
    let mut bytes = vec![0; 64];
    let count = file.read_at(&mut bytes, 0).expect("read");
    bytes.truncate(count);
    bytes
}

/// Two looks and opens: whatever can be held is held then.
fn hold(path: &Path) -> Vec<u8> {
    fs::read(path).expect("read");
    fs::metadata(path).expect("stat");
    fs::read(path).expect("read")
}

/// A file that this node has open without the server's knowledge.
fn open_untold(path: &Path) -> File {
    hold(path);
    File::open(path).expect("open")
}

#[test]
fn what_is_held_is_opened_read_and_looked_up_without_the_server_but_not_for_long() {
    in_private_mounts(|| {
        let mut world = World::real();
        let (one, two) = (world.mount("one"), world.mount("two"));
        fs::create_dir(two.path.join("d")).expect("mkdir");
        fs::write(two.path.join("d/a"), b"hello").expect("write");
        let path = one.path.join("d/a");
        assert_eq!(hold(&path), b"hello");
        assert!(fs::metadata(one.path.join("d/none")).is_err());
        std::thread::sleep(NAMES_EXPIRE);
        hear(&one);
        server(&mut world).cut_server();
        for round in 0..3 {
            let mut file = File::open(&path).expect("open");
            let mut bytes = Vec::new();
            file.read_to_end(&mut bytes).expect("read");
            assert_eq!((bytes.as_slice(), file.metadata().expect("stat").len()), (&b"hello"[..], 5), "round {round}");
            assert!(!one.path.join("d/none").exists());
        }
        // Whoever hears nothing for long is not asked before others change something.
        std::thread::sleep(NAMES_EXPIRE);
        let late = path.clone();
        let opening = std::thread::spawn(move || fs::read(late).expect("read"));
        std::thread::sleep(Duration::from_millis(300));
        assert!(!opening.is_finished(), "it waits for the server");
        server(&mut world).replace_server();
        assert_eq!(opening.join().expect("it goes on"), b"hello");
        // And what others do afterwards is seen.
        fs::write(two.path.join("d/none"), b"here").expect("write");
        fs::write(two.path.join("d/a"), b"other").expect("write");
        assert_eq!(fs::read(one.path.join("d/none")).expect("read"), b"here");
        assert_eq!(fs::read(&path).expect("read"), b"other");
    });
}

#[test]
fn file_that_another_node_removes_stays_until_it_is_closed() {
    in_private_mounts(|| {
        let world = World::real();
        let (one, two) = (world.mount("one"), world.mount("two"));
        let before = inodes(&one);
        for how in ["unlink", "rename", "told"] {
            fs::write(two.path.join("a"), b"first").expect("write");
            let path = one.path.join("a");
            let files: Vec<File> = (0..3).map(|_| open_untold(&path)).collect();
            match how {
                "unlink" => fs::remove_file(two.path.join("a")).expect("unlink"),
                "told" => {
                    // The lease goes twice: what stands already still does.
                    fs::write(two.path.join("a"), b"first").expect("write");
                    hold(&path);
                    fs::remove_file(two.path.join("a")).expect("unlink");
                }
                _ => {
                    fs::write(two.path.join("b"), b"second").expect("write");
                    fs::rename(two.path.join("b"), two.path.join("a")).expect("rename");
                    assert_eq!(fs::read(&path).expect("read"), b"second");
                    fs::remove_file(two.path.join("a")).expect("unlink");
                }
            }
            for file in &files {
                assert_eq!((read_open(file), file.metadata().expect("stat").nlink()), (b"first".to_vec(), 0), "{how}");
            }
            assert_eq!(inodes(&one), before + 1, "{how}");
            drop(files);
            comes_to(how, before, || inodes(&one));
        }
    });
}

#[test]
fn file_that_its_own_node_removes_stays_until_it_is_closed_whatever_becomes_of_gate_and_server() {
    in_private_mounts(|| {
        let mut world = World::real();
        let mut one = world.mount("one");
        let before = inodes(&one);
        for how in ["unlink", "rename", "gate", "server"] {
            let path = one.path.join("a");
            fs::write(&path, b"first").expect("write");
            let file = open_untold(&path);
            if how == "rename" {
                fs::write(one.path.join("b"), b"second").expect("write");
                fs::rename(one.path.join("b"), &path).expect("rename");
            }
            fs::remove_file(&path).expect("unlink");
            let again = File::open(format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&file))).expect("open");
            match how {
                "gate" => one.replace_gate(),
                "server" => server(&mut world).replace_server(),
                _ => {}
            }
            // Longer than what nobody claims lingers.
            std::thread::sleep(Duration::from_millis(3500));
            for file in [&file, &again] {
                rustix::fs::fadvise(file, 0, None, rustix::fs::Advice::DontNeed).expect("drop");
                assert_eq!((read_open(file), file.metadata().expect("stat").nlink()), (b"first".to_vec(), 0), "{how}");
            }
            assert_eq!(inodes(&one), before + 1, "{how}");
            drop((file, again));
            comes_to(how, before, || inodes(&one));
        }
    });
}

#[test]
fn what_is_open_is_told_by_the_next_gate_and_to_the_next_server() {
    in_private_mounts(|| {
        let mut world = World::real();
        let (mut one, two) = (world.mount("one"), world.mount("two"));
        let before = inodes(&one);
        for how in ["gate", "server", "both"] {
            fs::write(two.path.join("a"), b"first").expect("write");
            let files: Vec<File> = (0..5).map(|_| open_untold(&one.path.join("a"))).collect();
            if how != "server" {
                one.replace_gate();
            }
            if how != "gate" {
                server(&mut world).replace_server();
            }
            fs::remove_file(two.path.join("a")).expect("unlink");
            std::thread::sleep(Duration::from_millis(3500));
            for file in &files {
                assert_eq!(read_open(file), b"first", "{how}");
            }
            drop(files);
            comes_to(how, before, || inodes(&one));
        }
    });
}

#[test]
fn locks_of_files_that_were_opened_without_a_word_keep_others_out_and_go_with_them() {
    in_private_mounts(|| {
        let world = World::real();
        let (one, two) = (world.mount("one"), world.mount("two"));
        fs::write(two.path.join("a"), b"first").expect("write");
        for round in 0..20 {
            let (mine, other) = (open_untold(&one.path.join("a")), open_untold(&two.path.join("a")));
            let waits = |file: &File| flock(file, FlockOperation::NonBlockingLockExclusive);
            flock(&mine, FlockOperation::Unlock).expect("nothing to unlock");
            // That of the round before goes when its kernel says that it is closed.
            comes_to("it is free", 1, || u64::from(waits(&mine).is_ok()));
            assert_eq!(waits(&other), Err(rustix::io::Errno::AGAIN), "round {round}");
            let same = mine.try_clone().expect("the same open file");
            drop(mine);
            assert_eq!(waits(&other), Err(rustix::io::Errno::AGAIN), "round {round}");
            drop(same);
            comes_to("the lock goes with the file", 1, || u64::from(waits(&other).is_ok()));
        }
    });
}

#[test]
fn names_attributes_and_sizes_are_those_of_now_whoever_changed_them() {
    in_private_mounts(|| {
        let world = World::real();
        let (one, two) = (world.mount("one"), world.mount("two"));
        let (mine, other) = (one.path.join("a"), two.path.join("a"));
        fs::write(&mine, b"0").expect("write");
        for round in 1..200_u64 {
            let (by, seen) = if round % 3 == 0 { (&other, &mine) } else { (&mine, &mine) };
            fs::metadata(seen).expect("stat");
            match round % 5 {
                0 => OpenOptions::new().append(true).open(by).expect("open").write_all(b"x").expect("append"),
                1 => fs::set_permissions(by, std::os::unix::fs::PermissionsExt::from_mode(0o600 + round as u32 % 64))
                    .expect("chmod"),
                2 => {
                    let link = by.with_file_name(format!("l{round}"));
                    fs::hard_link(by, &link).expect("link");
                    assert_eq!(fs::metadata(seen).expect("stat").nlink(), 2);
                    assert_eq!(fs::metadata(seen.with_file_name(format!("l{round}"))).expect("stat").nlink(), 2);
                    fs::remove_file(&link).expect("unlink");
                    assert!(!seen.with_file_name(format!("l{round}")).exists());
                }
                3 => {
                    let new = by.with_file_name("new");
                    fs::write(&new, round.to_string()).expect("write");
                    fs::rename(&new, by).expect("rename");
                    assert_eq!(fs::read(seen).expect("read"), round.to_string().as_bytes());
                }
                _ => {
                    rustix::fs::setxattr(by, "user.round", &round.to_le_bytes(), rustix::fs::XattrFlags::empty())
                        .expect("setxattr");
                    let mut value = [0; 8];
                    assert_eq!(rustix::fs::getxattr(seen, "user.round", &mut value), Ok(8));
                    assert_eq!(u64::from_le_bytes(value), round);
                }
            }
            let (a, b) = (fs::metadata(&mine).expect("stat"), fs::metadata(&other).expect("stat"));
            let of = |about: &fs::Metadata| {
                (about.ino(), about.nlink(), about.mode(), about.len(), about.mtime_nsec(), about.ctime_nsec())
            };
            assert_eq!(of(&a), of(&b), "round {round}");
            assert_eq!(a.nlink(), 1);
        }
    });
}

#[test]
fn small_files_come_ahead_of_whoever_reads_some_and_are_those_of_now() {
    in_private_mounts(|| {
        let mut world = World::real();
        let (one, two) = (world.mount("one"), world.mount("two"));
        let write = |mounted: &Mounted, number: u32, generation: u32| {
            let bytes = format!("{number} {generation} ").repeat(1 + number as usize * 7);
            fs::write(mounted.path.join(format!("d/f{number}")), &bytes).expect("write");
            bytes
        };
        fs::create_dir(two.path.join("d")).expect("mkdir");
        for round in 0..3 {
            let mut written: Vec<String> = (0..40).map(|number| write(&two, number, round)).collect();
            let read = |number: u32| fs::read_to_string(one.path.join(format!("d/f{number}"))).expect("read");
            // Whoever looks on soon sees what changes meanwhile, by whomever.
            for number in 0..6 {
                assert_eq!(read(number), written[number as usize], "round {round}");
            }
            for (by, number) in [(&two, 20), (&one, 21), (&two, 22)] {
                written[number as usize] = write(by, number, round + 100);
            }
            fs::remove_file(two.path.join("d/f23")).expect("unlink");
            fs::rename(two.path.join("d/f24"), two.path.join("d/f25")).expect("rename");
            assert!(!one.path.join("d/f23").exists() && !one.path.join("d/f24").exists());
            assert_eq!(read(25), written[24], "round {round}");
            for number in (6..40).filter(|number| !(23..26).contains(number)) {
                assert_eq!(read(number), written[number as usize], "round {round}");
            }
        }
        // In a directory where nobody is at work they come all at once.
        fs::create_dir(two.path.join("e")).expect("mkdir");
        (0..40).for_each(|number| fs::write(two.path.join(format!("e/f{number}")), [number; 3000]).expect("write"));
        let read = |number: u8| fs::read(one.path.join(format!("e/f{number}"))).expect("read");
        assert!((0..5).all(|number| read(number) == [number; 3000]));
        std::thread::sleep(Duration::from_millis(500));
        hear(&one);
        server(&mut world).cut_server();
        assert!((5..40).all(|number| read(number) == [number; 3000]));
        server(&mut world).replace_server();
    });
}

#[test]
fn of_directories_that_are_known_as_a_whole_it_is_known_what_is_not_there() {
    in_private_mounts(|| {
        let mut world = World::real();
        let (one, two) = (world.mount("one"), world.mount("two"));
        let exists = |mounted: &Mounted, name: &str| fs::symlink_metadata(mounted.path.join("d").join(name)).is_ok();
        fs::create_dir(one.path.join("d")).expect("mkdir");
        for number in 0..30 {
            let name = |what: &str| format!("{what}{number}");
            for what in ["file", "directory", "link", "hard", "moved"] {
                assert!(!exists(&one, &name(what)), "{what}{number}");
            }
            let path = |what: &str| one.path.join("d").join(name(what));
            fs::write(path("file"), b"x").expect("write");
            fs::create_dir(path("directory")).expect("mkdir");
            std::os::unix::fs::symlink("file", path("link")).expect("symlink");
            fs::hard_link(path("file"), path("hard")).expect("link");
            fs::rename(path("hard"), path("moved")).expect("rename");
            if number % 3 == 0 {
                // Another node takes part, and this one knows the whole no more.
                fs::write(two.path.join("d").join(name("hard")), b"y").expect("write");
                assert!(exists(&one, &name("hard")));
            }
            for what in ["file", "directory", "link", "moved"] {
                assert!(exists(&one, &name(what)) && exists(&two, &name(what)), "{what}{number}");
            }
            let directory = File::open(one.path.join("d")).expect("open");
            let (a, b) = (name("file"), name("directory"));
            rustix::fs::renameat_with(&directory, &a, &directory, &b, rustix::fs::RenameFlags::EXCHANGE)
                .expect("exchange");
            assert!(path("file").is_dir() && path("directory").is_file());
            fs::remove_dir(path("file")).expect("rmdir");
            assert!(!exists(&one, &name("file")) && exists(&one, &name("directory")));
        }
        // One that was made here is known without the server.
        let own = one.path.join("own");
        fs::create_dir(&own).expect("mkdir");
        (0..20).for_each(|number| fs::write(own.join(number.to_string()), b"x").expect("write"));
        // Its times have changed, and the way to its names leads through it.
        fs::metadata(&own).expect("stat");
        hear(&one);
        server(&mut world).cut_server();
        assert!((20..100).all(|number: u32| !own.join(number.to_string()).exists()));
        server(&mut world).replace_server();
        fs::write(two.path.join("own/50"), b"x").expect("write");
        assert!(own.join("50").exists() && !own.join("51").exists());
    });
}

/// Two nodes open, replace, move and remove the same few names; whatever becomes of gates and server meanwhile, a name
/// leads to what was put there last, and an open file is what it was.
#[test]
fn open_files_are_what_they_were_while_names_change_and_gates_and_servers_die() {
    const NAMES: usize = 6;
    const STEPS: usize = 400;
    let seed = common::seed();
    in_private_mounts(move || {
        let mut below = common::numbers(seed);
        let mut world = World::real();
        let mut nodes = world.mount_two();
        let before = inodes(&nodes[0]);
        let path = |node: &Mounted, name: usize| node.path.join(format!("f{name}"));
        let (mut names, mut files) = ([None::<usize>; NAMES], Vec::<(usize, File)>::new());
        for step in 0..STEPS {
            let (node, name, other) = (below(2), below(NAMES), below(NAMES));
            let what = below(20);
            let said = format!("SEED={seed}, step {step}, {what}");
            match what {
                0..5 => {
                    let new = nodes[node].path.join("new");
                    fs::write(&new, format!("{step}")).expect(&said);
                    fs::rename(&new, path(&nodes[node], name)).expect(&said);
                    names[name] = Some(step);
                }
                5..12 => {
                    // Twice, so that the second is delegated where it can be.
                    for _ in 0..2 {
                        let opened = File::open(path(&nodes[node], name));
                        assert_eq!(opened.is_ok(), names[name].is_some(), "{said}");
                        files.extend(opened.ok().map(|file| (names[name].unwrap_or_default(), file)));
                    }
                }
                12 => {
                    let removed = fs::remove_file(path(&nodes[node], name));
                    assert_eq!(removed.is_ok(), names[name].take().is_some(), "{said}");
                }
                13 if name != other => {
                    let moved = fs::rename(path(&nodes[node], name), path(&nodes[node], other));
                    assert_eq!(moved.is_ok(), names[name].is_some(), "{said}");
                    if let Some(gone) = names[name].take() {
                        names[other] = Some(gone);
                    }
                }
                14..17 if !files.is_empty() => drop(files.swap_remove(below(files.len()))),
                17 => nodes[node].replace_gate(),
                18 if below(2) == 0 => server(&mut world).replace_server(),
                _ => {}
            }
            for _ in 0..2.min(files.len()) {
                let (content, file) = &files[below(files.len())];
                rustix::fs::fadvise(file, 0, None, rustix::fs::Advice::DontNeed).expect("drop");
                assert_eq!(read_open(file), content.to_string().as_bytes(), "{said}");
                let links = names.iter().filter(|known| **known == Some(*content)).count() as u64;
                assert_eq!(file.metadata().expect("stat").nlink(), links, "{said}");
            }
            for node in &nodes {
                let content = fs::read(path(node, name)).ok();
                assert_eq!(content, names[name].map(|content| content.to_string().into_bytes()), "{said}");
            }
        }
        files.clear();
        for name in 0..NAMES {
            let _ = fs::remove_file(path(&nodes[0], name));
        }
        comes_to("all is closed", before, || inodes(&nodes[0]));
    });
}

/// However it is opened once more: the server does not know that it has to stay, unless it is asked.
#[test]
fn file_without_a_name_is_opened_again_and_stays() {
    in_private_mounts(|| {
        let world = World::real();
        let (one, two) = (world.mount("one"), world.mount("two"));
        let before = inodes(&one);
        for by in [&one, &two] {
            let path = one.path.join("a");
            let mut made =
                OpenOptions::new().create(true).truncate(true).read(true).write(true).open(&path).expect("open");
            made.write_all(b"first").expect("write");
            fs::metadata(&path).expect("stat");
            fs::remove_file(by.path.join("a")).expect("unlink");
            assert_eq!(made.metadata().expect("stat").nlink(), 0);
            let again = File::open(format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&made))).expect("open");
            drop(made);
            std::thread::sleep(Duration::from_millis(3500));
            rustix::fs::fadvise(&again, 0, None, rustix::fs::Advice::DontNeed).expect("drop");
            assert_eq!((read_open(&again), again.metadata().expect("stat").nlink()), (b"first".to_vec(), 0));
            drop(again);
            comes_to("it is closed", before, || inodes(&one));
        }
    });
}
