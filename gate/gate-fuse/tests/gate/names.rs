//! Names that programs are answered before the server is told.

use std::collections::BTreeMap;
use std::fs::{self, File, FileTimes, OpenOptions, Permissions};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime};

use crate::common::{self, World, hear, in_private_mounts, server};

/// A directory that one node has for itself, where it has made something already.
fn own_directory(path: &Path) {
    fs::create_dir(path).expect("mkdir");
    fs::write(path.join("first"), b"first").expect("write");
    fs::remove_file(path.join("first")).expect("unlink");
    File::open(path).expect("open").sync_all().expect("sync");
    fs::metadata(path).expect("stat");
}

/// All that is in a tree, but for what differs between file systems.
fn shown(root: &Path) -> BTreeMap<PathBuf, String> {
    let (mut found, mut left) = (BTreeMap::new(), vec![root.to_path_buf()]);
    while let Some(directory) = left.pop() {
        for entry in fs::read_dir(&directory).expect("listing") {
            let path = entry.expect("an entry").path();
            let seen = fs::symlink_metadata(&path).expect("stat");
            let kind = seen.file_type();
            let content = match () {
                () if kind.is_dir() => format!("directory of {}", seen.nlink()),
                () if kind.is_symlink() => format!("link to {:?}", fs::read_link(&path).expect("readlink")),
                () if kind.is_fifo() => "fifo".to_owned(),
                () => {
                    let bytes = fs::read(&path).expect("read");
                    let hash =
                        bytes.iter().fold(7_u64, |hash, byte| hash.wrapping_mul(31).wrapping_add((*byte).into()));
                    format!("{} bytes {hash:x}, {} links", bytes.len(), seen.nlink())
                }
            };
            let mode = if kind.is_symlink() { 0 } else { seen.mode() & 0o7777 };
            let name = path.strip_prefix(root).expect("below").to_path_buf();
            found.insert(name, format!("{content}, mode {mode:o}"));
            if kind.is_dir() {
                left.push(path);
            }
        }
    }
    found
}

#[test]
fn directory_that_one_node_has_for_itself_is_changed_without_the_server_and_is_so_for_others() {
    in_private_mounts(|| {
        let mut world = World::real();
        let (one, two) = (world.mount("one"), world.mount("two"));
        let root = one.path.join("d");
        own_directory(&root);
        for name in ["old", "gone", "one", "other"] {
            fs::write(root.join(name), name).expect("write");
        }
        for name in ["", "one", "other"] {
            File::open(root.join(name)).expect("open").sync_all().expect("sync");
        }
        hear(&one);
        server(&mut world).cut_server();
        for number in 0..10 {
            let mut file = File::create_new(root.join(format!("f{number}"))).expect("create");
            file.write_all(&[number; 5000]).expect("write");
            file.set_permissions(Permissions::from_mode(0o640)).expect("chmod");
            file.set_times(FileTimes::new().set_modified(SystemTime::UNIX_EPOCH + Duration::new(77, 5)))
                .expect("utimes");
        }
        fs::create_dir_all(root.join("a/b/c")).expect("mkdir");
        fs::write(root.join("a/b/c/deep"), b"deep").expect("write");
        symlink("a/b/c", root.join("link")).expect("symlink");
        fs::rename(root.join("one"), root.join("moved")).expect("rename");
        fs::rename(root.join("other"), root.join("old")).expect("rename over another");
        fs::remove_file(root.join("gone")).expect("unlink");
        fs::remove_file(root.join("f2")).expect("unlink");
        // As git makes its objects.
        fs::hard_link(root.join("f5"), root.join("object")).expect("link");
        fs::remove_file(root.join("f5")).expect("unlink");
        fs::hard_link(root.join("moved"), root.join("second")).expect("link");
        assert_eq!(fs::metadata(root.join("moved")).expect("stat").nlink(), 2);
        fs::create_dir(root.join("passing")).expect("mkdir");
        fs::remove_dir(root.join("passing")).expect("rmdir");
        assert_eq!(fs::read(root.join("a/b/c/deep")).expect("read"), b"deep");
        assert_eq!(
            File::create_new(root.join("f3")).map_err(|error| error.kind()).err(),
            Some(ErrorKind::AlreadyExists)
        );
        let parent = fs::metadata(&root).expect("stat");
        let inode = fs::metadata(root.join("moved")).expect("stat").ino();
        server(&mut world).replace_server();
        let seen = shown(&two.path.join("d"));
        assert_eq!(seen, shown(&root));
        let names: Vec<&str> = seen.keys().filter_map(|path| path.to_str()).collect();
        let expected = [
            "a",
            "a/b",
            "a/b/c",
            "a/b/c/deep",
            "f0",
            "f1",
            "f3",
            "f4",
            "f6",
            "f7",
            "f8",
            "f9",
            "link",
            "moved",
            "object",
            "old",
            "second",
        ];
        assert_eq!(names, expected);
        let there = fs::metadata(two.path.join("d")).expect("stat");
        assert_eq!(
            (there.nlink(), there.mtime_nsec(), there.ctime_nsec()),
            (3, parent.mtime_nsec(), parent.ctime_nsec())
        );
        let [moved, made] = ["moved", "f0"].map(|name| fs::metadata(two.path.join("d").join(name)).expect("stat"));
        assert_eq!((moved.ino(), moved.len()), (inode, 3));
        assert_eq!((made.mtime(), made.mtime_nsec(), made.mode() & 0o7777, made.len()), (77, 5, 0o640, 5000));
    });
}

/// Two of each node.
const DIRECTORIES: [&str; 4] = ["d0", "d1", "e0", "e1"];

#[test]
fn names_move_between_directories_without_the_server_and_are_so_for_others() {
    in_private_mounts(|| {
        let mut world = World::real();
        let (mut one, two) = (world.mount("one"), world.mount("two"));
        let root = one.path.clone();
        let [from, to] = ["from", "to"].map(|name| root.join(name));
        [&from, &to].into_iter().for_each(|path| own_directory(path));
        for name in ["a", "b", "c", "linked", "other"] {
            fs::write(from.join(name), name).expect("write");
        }
        fs::write(to.join("b"), "replaced").expect("write");
        fs::create_dir(from.join("deep")).expect("mkdir");
        fs::create_dir(from.join("deep/er")).expect("mkdir");
        File::open(&from).expect("open").sync_all().expect("sync");
        for name in ["from/a", "from/b", "from/c", "from/linked", "from/other", "to/b"] {
            File::open(root.join(name)).expect("open").sync_all().expect("sync");
        }
        [&from, &to].into_iter().for_each(|path| {
            fs::metadata(path).expect("stat");
        });
        hear(&one);
        server(&mut world).cut_server();
        // Down and up again, over another, and without replacing; one that is made, or removed, between.
        fs::rename(from.join("a"), to.join("a")).expect("rename");
        fs::rename(from.join("b"), to.join("b")).expect("rename over another");
        fs::rename(to.join("a"), from.join("again")).expect("rename");
        let flags = rustix::fs::RenameFlags::NOREPLACE;
        rustix::fs::renameat_with(rustix::fs::CWD, from.join("c"), rustix::fs::CWD, to.join("c"), flags)
            .expect("rename");
        fs::write(from.join("new"), b"new").expect("write");
        fs::rename(from.join("new"), to.join("new")).expect("rename");
        fs::rename(to.join("new"), to.join("newer")).expect("rename");
        fs::hard_link(from.join("linked"), to.join("link")).expect("link");
        fs::hard_link(to.join("newer"), from.join("link")).expect("link");
        fs::remove_file(to.join("c")).expect("unlink");
        fs::create_dir(from.join("empty")).expect("mkdir");
        fs::rename(from.join("empty"), to.join("d")).expect("rename");
        fs::write(to.join("d/f"), b"f").expect("write");
        fs::create_dir(to.join("made")).expect("mkdir");
        fs::rename(from.join("other"), to.join("made/other")).expect("rename");
        let names = |path: &Path| -> Vec<String> {
            let names = fs::read_dir(path).expect("listing").map(|entry| entry.expect("an entry").file_name());
            let mut names: Vec<String> = names.map(|name| name.to_string_lossy().into_owned()).collect();
            names.sort();
            names
        };
        let stat = |path: &Path| {
            let seen = fs::metadata(path).expect("stat");
            (seen.ino(), seen.nlink(), seen.mtime_nsec(), seen.ctime_nsec())
        };
        let paths = ["from", "to", "to/d", "to/b", "to/newer", "to/made", "to/made/other"];
        let before = paths.map(|path| stat(&root.join(path)));
        // All of it is what the next gate finds.
        one.replace_gate();
        server(&mut world).replace_server();
        for node in [&one, &two] {
            assert_eq!(names(&node.path.join("from")), ["again", "deep", "link", "linked"]);
            assert_eq!(names(&node.path.join("to")), ["b", "d", "link", "made", "newer"]);
            assert_eq!(names(&node.path.join("to/d")), ["f"]);
            assert_eq!(names(&node.path.join("to/made")), ["other"]);
            assert_eq!(paths.map(|path| stat(&node.path.join(path))), before);
            assert_eq!(fs::read(node.path.join("to/b")).expect("read"), b"b");
            assert_eq!(stat(&node.path.join("to/d/..")).0, before[1].0);
        }
        // A directory with others in it the server moves, and what is below itself nobody does.
        fs::rename(from.join("deep"), to.join("deep")).expect("rename");
        let loops = fs::rename(to.join("deep"), to.join("deep/er/deep")).map_err(|error| error.raw_os_error());
        assert_eq!(loops, Err(Some(libc::EINVAL)));
        assert_eq!(names(&two.path.join("to/deep")), ["er"]);
    });
}

/// One program at a time, on either node; beside it the same on a file system of this kernel.
#[test]
fn each_node_sees_what_was_named_last_while_gates_and_servers_die() {
    const STEPS: usize = 400;
    let seed = common::seed();
    in_private_mounts(move || {
        let mut below = common::numbers(seed);
        let mut world = World::real();
        let mut nodes = world.mount_two();
        let oracle = nodes[0].path.with_file_name("oracle");
        fs::create_dir(&oracle).expect("mkdir");
        for directory in DIRECTORIES {
            own_directory(&oracle.join(directory));
            own_directory(&nodes[0].path.join(directory));
        }
        let mut open: Vec<(usize, File, File)> = Vec::new();
        for step in 0..STEPS {
            let home = below(2);
            // Mostly by one node, so that it has the directory for itself.
            let node = if below(12) == 0 { 1 - home } else { home };
            let mut path = || {
                let which = if below(3) == 0 { "e" } else { "d" };
                let below_it = if below(3) == 0 { "/sub" } else { "" };
                format!("{which}{home}{below_it}/n{}", below(5))
            };
            let (first, second) = (path(), path());
            let what = below(44);
            let said = format!("SEED={seed}, step {step}, {what} of {first}, {second} on {node}");
            let roots = [nodes[node].path.clone(), oracle.clone()];
            let act = |root: &Path, open: &mut Vec<File>| -> Result<Vec<u8>, ErrorKind> {
                let (first, second) = (root.join(&first), root.join(&second));
                let kind = |error: std::io::Error| error.kind();
                match what {
                    0..10 => {
                        let mut file = File::create_new(&first).map_err(kind)?;
                        file.write_all(&vec![step as u8; step * 97 % 30_000]).map_err(kind)?;
                        if step % 3 == 0 {
                            file.set_permissions(Permissions::from_mode(0o600 | (step as u32 % 64))).map_err(kind)?;
                        }
                        if step % 5 == 0 {
                            open.push(file);
                        }
                    }
                    10..16 => fs::remove_file(&first).map_err(kind)?,
                    16..19 | 40..44 => {
                        // What becomes of a directory that is moved into itself, or over another kind, is told in
                        // other words by other file systems.
                        let kind_of = |path: &Path| fs::symlink_metadata(path).ok().map(|it| it.is_dir());
                        match (kind_of(&first), kind_of(&second)) {
                            (Some(true), Some(false)) | (Some(false), Some(true)) => {}
                            _ if second.starts_with(&first) || first.starts_with(&second) => {}
                            _ => fs::rename(&first, &second).map_err(kind)?,
                        }
                    }
                    19..21 => fs::create_dir(&first).map_err(kind)?,
                    21 => fs::remove_dir(&first).map_err(kind)?,
                    22 => symlink(format!("target{step}"), &first).map_err(kind)?,
                    23 | 37..40 => fs::hard_link(&first, &second).map_err(kind)?,
                    24 => {
                        OpenOptions::new().append(true).open(&first).map_err(kind)?.write_all(b"more").map_err(kind)?
                    }
                    25 => return fs::read(&first).map_err(kind),
                    26 => fs::set_permissions(&first, Permissions::from_mode(0o700)).map_err(kind)?,
                    27 => _ = fs::create_dir(first.parent().expect("a directory")),
                    28 => {
                        let file = OpenOptions::new().write(true).create(true).truncate(true).open(&first);
                        file.map_err(kind)?.write_all(b"anew").map_err(kind)?;
                    }
                    29 => File::open(first.parent().expect("a directory")).map_err(kind)?.sync_all().map_err(kind)?,
                    30 => {
                        let names = fs::read_dir(first.parent().expect("a directory")).map_err(kind)?;
                        let mut names: Vec<_> = names.map(|entry| entry.expect("an entry").file_name()).collect();
                        names.sort();
                        return Ok(names.join(std::ffi::OsStr::new("/")).into_encoded_bytes());
                    }
                    _ => {}
                }
                Ok(Vec::new())
            };
            let (mut here, mut there) = (Vec::new(), Vec::new());
            let answers = (act(&roots[0], &mut here), act(&roots[1], &mut there));
            assert_eq!(answers.0, answers.1, "{said}");
            open.extend(here.pop().zip(there.pop()).map(|(here, there)| (node, here, there)));
            match what {
                31..33 => nodes[below(2)].replace_gate(),
                33 => server(&mut world).replace_server(),
                34..36 if !open.is_empty() => {
                    // Whatever became of its name.
                    let at = below(open.len());
                    let (_, here, there) = &mut open[at];
                    for file in [&mut *here, &mut *there] {
                        file.write_all(b"to an open file").expect(&said);
                    }
                    let lengths = [&*here, &*there].map(|file| file.metadata().expect(&said));
                    assert_eq!(lengths[0].len(), lengths[1].len(), "{said}");
                    assert_eq!(lengths[0].nlink(), lengths[1].nlink(), "{said}");
                    if below(2) == 0 {
                        open.swap_remove(at);
                    }
                }
                _ => {}
            }
            if below(10) == 0 {
                let root = &nodes[below(2)].path;
                for directory in DIRECTORIES {
                    assert_eq!(shown(&root.join(directory)), shown(&oracle.join(directory)), "{said}");
                }
            }
        }
    });
}

/// As `tar` and `rm` do, with gates and servers killed: what was made and not removed is there, whole, and nothing
/// else.
#[test]
fn trees_that_are_made_and_removed_are_what_their_programs_were_told() {
    in_private_mounts(|| {
        let mut world = World::real();
        let mut one = world.mount_for("one", Duration::from_secs(300));
        let two = world.mount_for("two", Duration::from_secs(300));
        let is_over = AtomicBool::new(false);
        let root = one.path.clone();
        let count = std::thread::scope(|scope| {
            let tar = scope.spawn(|| {
                let mut number = 0;
                // Where gates hardly live long enough to answer, few are made beside the deaths.
                while number <= 3 || !is_over.load(Ordering::Relaxed) {
                    let directory = root.join(format!("d{number}"));
                    fs::create_dir(&directory).expect("mkdir");
                    let inner = directory.join("inner");
                    fs::create_dir(&inner).expect("mkdir");
                    for file in 0..20_usize {
                        let path = directory.join(format!("f{file}"));
                        let mut made = File::create_new(&path).expect("create");
                        made.write_all(&vec![file as u8; file * 900]).expect("write");
                        drop(made);
                        match file % 4 {
                            0 => fs::remove_file(&path).expect("unlink"),
                            1 => {
                                let moved = inner.join(format!("m{file}"));
                                fs::rename(&path, &moved).expect("rename to another directory");
                                if file % 8 == 1 {
                                    fs::rename(&moved, directory.join(format!("m{file}"))).expect("and back");
                                }
                            }
                            2 => fs::rename(&path, directory.join("last")).expect("rename over another"),
                            _ => {
                                fs::hard_link(&path, directory.join(format!("l{file}"))).expect("link");
                                fs::remove_file(&path).expect("unlink");
                            }
                        }
                    }
                    if number % 3 == 0 {
                        fs::remove_dir_all(&directory).expect("rm -r");
                    }
                    number += 1;
                }
                number
            });
            let rounds = if std::env::var_os("DVS_TEST_LONG").is_some() { 400 } else { 24 };
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
        let there = fs::read_dir(&two.path).expect("listing").count();
        assert_eq!(there, (0..count).filter(|number| number % 3 != 0).count(), "of {count}");
        for number in (0..count).filter(|number| number % 3 != 0) {
            let directory = two.path.join(format!("d{number}"));
            let mut expected: BTreeMap<String, u64> =
                (0..20_u64).filter(|file| file % 4 == 3).map(|file| (format!("l{file}"), file * 900)).collect();
            let moved =
                |file: u64| (if file % 8 == 1 { format!("m{file}") } else { format!("inner/m{file}") }, file * 900);
            expected.extend((0..20_u64).filter(|file| file % 4 == 1).map(moved));
            expected.insert("last".to_owned(), 18 * 900);
            let inner = directory.join("inner");
            let paths = [&directory, &inner].into_iter().flat_map(|path| fs::read_dir(path).expect("listing"));
            let paths = paths.map(|entry| entry.expect("an entry").path()).filter(|path| *path != inner);
            let found = paths.map(|path| {
                let bytes = fs::read(&path).expect("read");
                assert!(bytes.iter().all(|byte| u64::from(*byte) * 900 == bytes.len() as u64), "{path:?}");
                let name = path.strip_prefix(&directory).expect("below");
                (name.to_string_lossy().into_owned(), bytes.len() as u64)
            });
            assert_eq!(found.collect::<BTreeMap<_, _>>(), expected, "d{number} of {count}");
        }
    });
}

/// A node stands still with names that it has not told, and is fenced: they stay unless somebody else changed the
/// directory.
#[test]
fn fenced_node_keeps_the_names_that_it_promised_or_says_that_it_cannot() {
    in_private_mounts(|| {
        let mut world = World::real();
        let (mut one, two) = (world.mount("one"), world.mount("two"));
        for directory in ["kept", "lost"] {
            own_directory(&one.path.join(directory));
        }
        hear(&one);
        server(&mut world).cut_server();
        let files = ["kept", "lost"].map(|directory| {
            let mut file = File::create_new(one.path.join(directory).join("f")).expect("promised");
            file.write_all(b"bytes").expect("promised");
            file
        });
        one.stop_gate(|| {
            server(&mut world).replace_server();
            let began = Instant::now();
            assert_eq!(fs::read_dir(two.path.join("kept")).expect("listing").count(), 0);
            assert!(began.elapsed() > Duration::from_secs(1), "it waited for whoever may have changed it");
            fs::write(two.path.join("lost/by another"), b"by another").expect("write");
        });
        let until = Instant::now() + Duration::from_secs(10);
        while fs::read(two.path.join("kept/f")).ok().as_deref() != Some(b"bytes") {
            assert!(Instant::now() < until, "where nobody else changed anything it is told");
            std::thread::sleep(Duration::from_millis(10));
        }
        assert_eq!(files[0].sync_all().map_err(|error| error.raw_os_error()), Ok(()));
        let lost = files[1].sync_all().map_err(|error| error.raw_os_error());
        assert!(matches!(lost, Err(Some(libc::EIO | libc::ESTALE))), "{lost:?}");
        for node in [&one, &two] {
            let names = fs::read_dir(node.path.join("lost")).expect("listing");
            let names: Vec<_> = names.map(|entry| entry.expect("an entry").file_name()).collect();
            assert_eq!(names, ["by another"]);
        }
    });
}

/// What was moved to a directory that another node removed meanwhile is where it was, and whoever syncs the directory
/// that it was in hears of that.
#[test]
fn fenced_node_says_that_it_lost_what_it_moved_to_a_directory_that_is_gone() {
    in_private_mounts(|| {
        let mut world = World::real();
        let (mut one, two) = (world.mount("one"), world.mount("two"));
        for directory in ["here", "there"] {
            own_directory(&one.path.join(directory));
        }
        fs::write(one.path.join("here/f"), b"bytes").expect("write");
        File::open(one.path.join("here/f")).expect("open").sync_all().expect("sync");
        for directory in ["here", "there"] {
            fs::metadata(one.path.join(directory)).expect("stat");
        }
        let here = File::open(one.path.join("here")).expect("open");
        hear(&one);
        server(&mut world).cut_server();
        fs::rename(one.path.join("here/f"), one.path.join("there/f")).expect("promised");
        one.stop_gate(|| {
            server(&mut world).replace_server();
            assert_eq!(fs::read_dir(two.path.join("here")).expect("listing").count(), 1);
            fs::remove_dir(two.path.join("there")).expect("nothing is in it");
        });
        let synced = || here.sync_all().map_err(|error| error.raw_os_error());
        assert_eq!([synced(), synced()], [Err(Some(libc::EIO)), Ok(())], "it is said once");
        for node in [&one, &two] {
            assert_eq!(fs::read(node.path.join("here/f")).expect("it did not move"), b"bytes");
            assert!(!fs::exists(node.path.join("there")).expect("a look"));
        }
    });
}

/// What was moved between directories stays so unless somebody else changed one of them.
#[test]
fn fenced_node_keeps_what_it_moved_unless_one_of_the_directories_was_changed() {
    in_private_mounts(|| {
        let mut world = World::real();
        let (mut one, two) = (world.mount("one"), world.mount("two"));
        for directory in ["kept", "kept too", "lost", "lost too"] {
            own_directory(&one.path.join(directory));
        }
        for file in ["kept/f", "lost/f"] {
            fs::write(one.path.join(file), b"bytes").expect("write");
            File::open(one.path.join(file)).expect("open").sync_all().expect("sync");
        }
        for directory in ["kept", "kept too", "lost", "lost too"] {
            fs::metadata(one.path.join(directory)).expect("stat");
        }
        hear(&one);
        server(&mut world).cut_server();
        fs::rename(one.path.join("kept/f"), one.path.join("kept too/f")).expect("promised");
        fs::rename(one.path.join("lost/f"), one.path.join("lost too/f")).expect("promised");
        one.stop_gate(|| {
            server(&mut world).replace_server();
            assert_eq!(fs::read_dir(two.path.join("kept")).expect("listing").count(), 1);
            fs::write(two.path.join("lost too/by another"), b"by another").expect("write");
        });
        let until = Instant::now() + Duration::from_secs(10);
        while fs::read(two.path.join("kept too/f")).ok().as_deref() != Some(b"bytes") {
            assert!(Instant::now() < until, "where nobody else changed anything it is told");
            std::thread::sleep(Duration::from_millis(10));
        }
        for node in [&one, &two] {
            assert_eq!(fs::read_dir(node.path.join("kept")).expect("listing").count(), 0);
            assert_eq!(fs::read(node.path.join("lost/f")).expect("it did not move"), b"bytes");
            let names = fs::read_dir(node.path.join("lost too")).expect("listing");
            let names: Vec<_> = names.map(|entry| entry.expect("an entry").file_name()).collect();
            assert_eq!(names, ["by another"]);
        }
    });
}
