//! Names that programs are answered before the server is told.

#[macro_use]
mod common;

use std::collections::BTreeMap;
use std::fs::{self, File, FileTimes, OpenOptions, Permissions};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime};

use common::{World, hear, in_private_mounts, server};

gate_processes!();

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
        for directory in ["d0", "d1"] {
            own_directory(&oracle.join(directory));
            own_directory(&nodes[0].path.join(directory));
        }
        let mut open: Vec<(usize, File, File)> = Vec::new();
        for step in 0..STEPS {
            let home = below(2);
            // Mostly by one node, so that it has the directory for itself.
            let node = if below(12) == 0 { 1 - home } else { home };
            let mut path = || {
                let below_it = if below(3) == 0 { "/sub" } else { "" };
                format!("d{home}{below_it}/n{}", below(5))
            };
            let (first, second) = (path(), path());
            let what = below(40);
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
                    16..19 => {
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
                for directory in ["d0", "d1"] {
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
                while !is_over.load(Ordering::Relaxed) {
                    let directory = root.join(format!("d{number}"));
                    fs::create_dir(&directory).expect("mkdir");
                    for file in 0..20_usize {
                        let path = directory.join(format!("f{file}"));
                        let mut made = File::create_new(&path).expect("create");
                        made.write_all(&vec![file as u8; file * 900]).expect("write");
                        drop(made);
                        match file % 4 {
                            0 => fs::remove_file(&path).expect("unlink"),
                            1 => fs::rename(&path, directory.join(format!("m{file}"))).expect("rename"),
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
        assert!(count > 3, "{count} directories say nothing");
        let there = fs::read_dir(&two.path).expect("listing").count();
        assert_eq!(there, (0..count).filter(|number| number % 3 != 0).count(), "of {count}");
        for number in (0..count).filter(|number| number % 3 != 0) {
            let directory = two.path.join(format!("d{number}"));
            let mut expected: BTreeMap<String, u64> =
                (0..20_u64).filter(|file| file % 4 == 3).map(|file| (format!("l{file}"), file * 900)).collect();
            expected.extend((0..20_u64).filter(|file| file % 4 == 1).map(|file| (format!("m{file}"), file * 900)));
            expected.insert("last".to_owned(), 18 * 900);
            let found = fs::read_dir(&directory).expect("listing").map(|entry| {
                let path = entry.expect("an entry").path();
                let bytes = fs::read(&path).expect("read");
                assert!(bytes.iter().all(|byte| u64::from(*byte) * 900 == bytes.len() as u64), "{path:?}");
                (path.file_name().expect("a name").to_string_lossy().into_owned(), bytes.len() as u64)
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
