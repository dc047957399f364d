//! The gate on a real mount, with the model as fs server.

use std::fs::{self, File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt, symlink};
use std::path::Path;
use std::process::Command;

use crate::common::{World, in_private_mounts};

#[test]
fn files_are_created_written_read_renamed_and_removed() {
    in_private_mounts(|| {
        let world = World::new();
        let mounted = world.mount("m");
        let dir = mounted.path.join("d");
        fs::create_dir(&dir).expect("mkdir");
        let a = dir.join("a");
        fs::write(&a, b"hello").expect("write");
        assert_eq!(fs::read(&a).expect("read"), b"hello");
        OpenOptions::new().append(true).open(&a).expect("open").write_all(b" world").expect("append");
        assert_eq!(fs::read(&a).expect("read"), b"hello world");
        let b = dir.join("b");
        fs::hard_link(&a, &b).expect("link");
        assert_eq!(fs::metadata(&a).expect("stat").nlink(), 2);
        fs::rename(&b, dir.join("c")).expect("rename");
        assert!(!b.exists());
        symlink("a", dir.join("l")).expect("symlink");
        assert_eq!(fs::read(dir.join("l")).expect("read"), b"hello world");
        assert_eq!(fs::read_link(dir.join("l")).expect("readlink"), Path::new("a"));
        fs::set_permissions(&a, fs::Permissions::from_mode(0o640)).expect("chmod");
        assert_eq!(fs::metadata(&a).expect("stat").mode() & 0o7777, 0o640);
        assert_eq!(fs::remove_dir(&dir).expect_err("not empty").raw_os_error(), Some(libc::ENOTEMPTY));
        let open = File::open(&a).expect("open");
        for name in ["a", "c", "l"] {
            fs::remove_file(dir.join(name)).expect("unlink");
        }
        assert_eq!(read_all(&open), b"hello world");
        fs::remove_dir(&dir).expect("rmdir");
        assert_eq!(fs::read_dir(&mounted.path).expect("readdir").count(), 0);
    });
}

#[test]
fn sparse_truncated_mapped_and_extended_files_keep_their_bytes() {
    in_private_mounts(|| {
        let world = World::new();
        let mounted = world.mount("m");
        let path = mounted.path.join("f");
        let file = OpenOptions::new().read(true).write(true).create(true).truncate(true).open(&path).expect("open");
        file.write_all_at(b"end", 3 << 20).expect("pwrite");
        assert_eq!(file.metadata().expect("stat").len(), (3 << 20) + 3);
        let mut hole = [1; 4096];
        file.read_exact_at(&mut hole, 1 << 20).expect("pread");
        assert!(hole.iter().all(|byte| *byte == 0));
        file.set_len(10).expect("truncate");
        file.set_len(20_000).expect("extend");
        assert!(fs::read(&path).expect("read").iter().all(|byte| *byte == 0));

        // Large writes go in pieces of the transfer size.
        let big: Vec<u8> = (0..5 << 20).map(|n: u32| (n.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
        file.write_all_at(&big, 7).expect("write");
        assert_eq!(&fs::read(&path).expect("read")[7..], &big[..]);

        let python =
            "import mmap,sys,os\nf=open(sys.argv[1],'r+b')\nm=mmap.mmap(f.fileno(),0)\nm[0:5]=b'MAPPD'\nm.flush()\n";
        let status = Command::new("python3").arg("-c").arg(python).arg(&path).status();
        if status.map(|status| status.success()).unwrap_or(false) {
            let mut head = [0; 5];
            file.read_exact_at(&mut head, 0).expect("read");
            assert_eq!(&head, b"MAPPD");
        } else {
            eprintln!("SKIPPED: mmap needs python3");
        }
        let data = rustix::fs::seek(&file, rustix::fs::SeekFrom::Data(0)).expect("seek data");
        assert_eq!(data, 0);
        rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), 6 << 20, 4096).expect("fallocate");
        assert_eq!(file.metadata().expect("stat").len(), (6 << 20) + 4096);
        let other = mounted.path.join("g");
        assert_eq!(fs::copy(&path, &other).expect("copy"), (6 << 20) + 4096);
        assert!(fs::read(&path).expect("read") == fs::read(&other).expect("read"));
        file.sync_all().expect("fsync");
    });
}

#[test]
fn direct_and_exclusive_opens_behave() {
    in_private_mounts(|| {
        let world = World::new();
        let mounted = world.mount("m");
        let path = mounted.path.join("f");
        let mut options = OpenOptions::new();
        options.read(true).write(true).create_new(true);
        drop(options.open(&path).expect("create"));
        assert_eq!(options.open(&path).expect_err("exists").raw_os_error(), Some(libc::EEXIST));
        let direct = OpenOptions::new().read(true).write(true).custom_flags(libc::O_DIRECT).open(&path).expect("open");
        direct.write_all_at(&[7; 8192], 0).expect("direct write");
        let mut bytes = [0; 8192];
        direct.read_exact_at(&mut bytes, 0).expect("direct read");
        assert_eq!(bytes, [7; 8192]);
        let long = mounted.path.join("n".repeat(256));
        assert_eq!(File::create(long).expect_err("too long").raw_os_error(), Some(libc::ENAMETOOLONG));
        File::create(mounted.path.join("n".repeat(255))).expect("longest name");
        let tmp = OpenOptions::new().write(true).custom_flags(libc::O_TMPFILE).open(&mounted.path);
        assert_eq!(tmp.expect_err("tmpfile").raw_os_error(), Some(libc::EOPNOTSUPP));
        let fifo = mounted.path.join("fifo");
        rustix::fs::mknodat(rustix::fs::CWD, &fifo, rustix::fs::FileType::Fifo, rustix::fs::Mode::RUSR, 0)
            .expect("mknod");
        assert_eq!(fs::metadata(&fifo).expect("stat").mode() & libc::S_IFMT, libc::S_IFIFO);
        let flags = rustix::fs::RenameFlags::NOREPLACE;
        let refused = rustix::fs::renameat_with(rustix::fs::CWD, &path, rustix::fs::CWD, &fifo, flags);
        assert_eq!(refused, Err(rustix::io::Errno::EXIST));
        let flags = rustix::fs::RenameFlags::EXCHANGE;
        rustix::fs::renameat_with(rustix::fs::CWD, &path, rustix::fs::CWD, &fifo, flags).expect("exchange");
        assert_eq!(fs::metadata(&path).expect("stat").mode() & libc::S_IFMT, libc::S_IFIFO);
    });
}

#[test]
fn directory_of_five_thousand_entries_lists_each_once() {
    in_private_mounts(|| {
        let world = World::new();
        let mounted = world.mount("m");
        for n in 0..5000 {
            File::create(mounted.path.join(format!("entry-{n}"))).expect("create");
        }
        for _ in 0..2 {
            let mut names: Vec<_> =
                fs::read_dir(&mounted.path).expect("open").map(|entry| entry.expect("entry").file_name()).collect();
            names.sort();
            names.dedup();
            assert_eq!(names.len(), 5000);
        }
        fs::remove_file(mounted.path.join("entry-77")).expect("unlink");
        assert_eq!(fs::read_dir(&mounted.path).expect("open").count(), 4999);
    });
}

#[test]
fn extended_attributes_are_kept_and_acls_refused() {
    in_private_mounts(|| {
        let world = World::new();
        let mounted = world.mount("m");
        let path = mounted.path.join("f");
        File::create(&path).expect("create");
        let flags = rustix::fs::XattrFlags::empty();
        rustix::fs::setxattr(&path, "user.colour", b"blue", flags).expect("set");
        let mut value = [0; 16];
        assert_eq!(rustix::fs::getxattr(&path, "user.colour", &mut value), Ok(4));
        assert_eq!(rustix::fs::getxattr(&path, "user.colour", &mut value[..2]), Err(rustix::io::Errno::RANGE));
        assert_eq!(rustix::fs::getxattr(&path, "user.none", &mut value), Err(rustix::io::Errno::NODATA));
        assert_eq!(rustix::fs::listxattr(&path, &mut value), Ok(12));
        rustix::fs::removexattr(&path, "user.colour").expect("remove");
        assert_eq!(rustix::fs::getxattr(&path, "user.colour", &mut value), Err(rustix::io::Errno::NODATA));
        let acl = rustix::fs::setxattr(&path, "system.posix_acl_access", &[2, 0, 0, 0], flags);
        assert!(acl.is_err());
    });
}

#[test]
fn locks_conflict_wait_and_end_with_their_file() {
    in_private_mounts(|| {
        use rustix::fs::{FlockOperation, flock};
        let world = World::new();
        let mounted = world.mount("m");
        let path = mounted.path.join("f");
        let first = File::create(&path).expect("create");
        let second = File::open(&path).expect("open");
        flock(&first, FlockOperation::LockExclusive).expect("lock");
        assert_eq!(flock(&second, FlockOperation::NonBlockingLockShared), Err(rustix::io::Errno::AGAIN));
        let waiter = std::thread::spawn(move || flock(&second, FlockOperation::LockShared).map(|()| second));
        drop(first);
        let second = waiter.join().expect("thread").expect("the lock is granted");
        assert_eq!(world.server.with_model(|model| model.locks()), 1);
        drop(second);
        // Closing is asynchronous; another lock attempt comes after it.
        let third = File::open(&path).expect("open");
        flock(&third, FlockOperation::LockExclusive).expect("free again");
    });
}

#[test]
fn flock_that_cannot_become_exclusive_is_lost_so_that_two_who_want_it_do_not_wait_for_each_other() {
    in_private_mounts(|| {
        use rustix::fs::{FlockOperation, flock};
        let world = World::new();
        let mounted = world.mount("m");
        let path = mounted.path.join("f");
        let first = File::create(&path).expect("create");
        let second = File::open(&path).expect("open");
        for file in [&first, &second] {
            flock(file, FlockOperation::LockShared).expect("both read");
        }
        let again = Err(rustix::io::Errno::AGAIN);
        assert_eq!(flock(&first, FlockOperation::NonBlockingLockExclusive), again);
        flock(&second, FlockOperation::NonBlockingLockExclusive).expect("nobody else has it now");
        assert_eq!(flock(&first, FlockOperation::NonBlockingLockShared), again);
    });
}

#[test]
fn programs_that_wait_for_a_server_that_is_away_can_be_killed() {
    use vos_api::fs::{LOOKUP, OPEN, SETATTR, UNLOCK_OWNER, WRITE};
    in_private_mounts(|| {
        let world = World::new();
        let mounted = world.mount("m");
        for name in ["open", "mode", "append", "lock"] {
            fs::write(mounted.path.join(name), "content\n").expect("write");
        }
        let mut children = [
            // Opens again what it has open: nothing has to be looked up.
            Waiting::start(&mounted.path, "f = open('open')", "open(f'/proc/self/fd/{f.fileno()}')"),
            Waiting::start(&mounted.path, "f = open('mode'); os.stat('mode')", "os.fchmod(f.fileno(), 0o640)"),
            Waiting::start(&mounted.path, "f = open('append', 'ab', 0)", "f.write(b'more\\n')"),
            Waiting::start(&mounted.path, "pass", "os.stat('nothing')"),
            // Waits for no answer; the kernel closes its file, and that asks the server for the lock.
            Waiting::start(&mounted.path, "f = open('lock', 'w'); fcntl.lockf(f, fcntl.LOCK_EX)", "time.sleep(100)"),
        ];
        world.server.go_away();
        children.iter_mut().for_each(Waiting::go);
        until("they wait", || [OPEN, SETATTR, WRITE, LOOKUP].iter().all(|op| world.server.unanswered().contains(op)));
        children.iter_mut().for_each(|child| child.process.kill().expect("a signal"));
        for child in &mut children {
            let ended = child.process.wait().expect("it ends");
            assert_eq!(std::os::unix::process::ExitStatusExt::signal(&ended), Some(9));
        }
        assert!(world.server.unanswered().contains(&UNLOCK_OWNER));
        world.server.come_back();
        // Each happened once, nothing is held for the dead, and the kernel does not go on believing what it was not
        // told is wrong.
        until("files and locks are free", || {
            world.server.with_model(|model| (model.open_handles(), model.locks())) == (0, 0)
        });
        until("the kernel asks again", || {
            fs::metadata(mounted.path.join("mode")).is_ok_and(|mode| mode.mode() & 0o777 == 0o640)
        });
        assert_eq!(fs::read(mounted.path.join("append")).expect("read"), b"content\nmore\n");
    });
}

#[test]
fn program_that_catches_signals_does_not_notice_a_short_absence() {
    in_private_mounts(|| {
        let world = World::new();
        let mounted = world.mount("m");
        let mut child =
            Waiting::start(&mounted.path, "signal.signal(signal.SIGUSR1, lambda *_: sys.exit(7))", "os.mkdir('made')");
        world.server.go_away();
        child.go();
        until("it waits", || world.server.unanswered().contains(&vos_api::fs::LOOKUP));
        let pid = rustix::process::Pid::from_child(&child.process);
        rustix::process::kill_process(pid, rustix::process::Signal::USR1).expect("a signal");
        world.server.come_back();
        // The handler runs after the call, which was not interrupted.
        assert_eq!(child.process.wait().expect("it ends").code(), Some(7));
        assert!(mounted.path.join("made").is_dir());
    });
}

#[test]
fn program_that_catches_signals_waits_as_long_as_its_server_is_away_and_can_be_killed_at_any_time() {
    in_private_mounts(|| {
        let world = World::new();
        let mounted = world.mount("m");
        // Whatever interrupts the call, Python makes it again.
        let start = |name: &str| {
            let set_up = format!(
                "signal.signal(signal.SIGUSR1, lambda *_: None); \
                 f = os.open('{name}', os.O_CREAT | os.O_APPEND | os.O_WRONLY)"
            );
            Waiting::start(&mounted.path, &set_up, "os.write(f, b'once\\n')")
        };
        let [mut waits, mut killed] = ["waits", "killed"].map(start);
        world.server.go_away();
        [&mut waits, &mut killed].into_iter().for_each(Waiting::go);
        let writes = || world.server.unanswered().iter().filter(|op| **op == vos_api::fs::WRITE).count();
        until("they wait", || writes() == 2);
        for child in [&waits, &killed] {
            let pid = rustix::process::Pid::from_child(&child.process);
            rustix::process::kill_process(pid, rustix::process::Signal::USR1).expect("a signal");
        }
        std::thread::sleep(std::time::Duration::from_secs(8));
        assert!(waits.process.try_wait().expect("a child").is_none());
        let begun = std::time::Instant::now();
        killed.process.kill().expect("a signal");
        assert_eq!(std::os::unix::process::ExitStatusExt::signal(&killed.process.wait().expect("it ends")), Some(9));
        assert!(begun.elapsed() < std::time::Duration::from_secs(3), "{:?}", begun.elapsed());
        world.server.come_back();
        assert_eq!(waits.process.wait().expect("it ends").code(), Some(0));
        for name in ["waits", "killed"] {
            until("it is written once", || fs::read(mounted.path.join(name)).is_ok_and(|content| content == b"once\n"));
        }
    });
}

#[test]
fn gate_that_stood_still_longer_than_it_waits_for_a_server_gives_nothing_up() {
    in_private_mounts(|| {
        let world = World::new();
        let mut mounted = world.mount("m");
        // Whatever interrupts the call, Python makes it again.
        let mut child = Waiting::start(
            &mounted.path,
            "signal.signal(signal.SIGUSR1, lambda *_: None); f = os.open('log', os.O_CREAT | os.O_APPEND | os.O_WRONLY)",
            "os.write(f, b'once\\n')",
        );
        world.server.go_away();
        child.go();
        until("it waits", || world.server.unanswered().contains(&vos_api::fs::WRITE));
        let pid = rustix::process::Pid::from_child(&child.process);
        rustix::process::kill_process(pid, rustix::process::Signal::USR1).expect("a signal");
        mounted.stop_gate(|| std::thread::sleep(std::time::Duration::from_secs(7)));
        std::thread::sleep(std::time::Duration::from_secs(1));
        world.server.come_back();
        assert_eq!(child.process.wait().expect("it ends").code(), Some(0));
        assert_eq!(fs::read(mounted.path.join("log")).expect("read"), b"once\n");
    });
}

/// A program that is set up and waits for [`Waiting::go`].
struct Waiting {
    process: std::process::Child,
}

impl Waiting {
    fn start(directory: &Path, set_up: &str, then: &str) -> Waiting {
        use std::process::Stdio;
        let script =
            format!("import fcntl, os, signal, sys, time\n{set_up}\nos.write(1, b'r')\nos.read(0, 1)\n{then}\n");
        let mut process = Command::new("python3")
            .args(["-c", &script])
            .current_dir(directory)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("python3 runs");
        process.stdout.as_mut().expect("a pipe").read_exact(&mut [0; 1]).expect("it is set up");
        Waiting { process }
    }

    fn go(&mut self) {
        self.process.stdin.as_mut().expect("a pipe").write_all(b"g").expect("it reads");
    }
}

/// For what other processes reach on their own.
fn until(what: &str, is_so: impl Fn() -> bool) {
    let begin = std::time::Instant::now();
    while !is_so() {
        assert!(begin.elapsed() < std::time::Duration::from_secs(20), "not reached: {what}");
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
}

#[test]
fn git_works_on_the_tree() {
    in_private_mounts(|| {
        let world = World::new();
        let mounted = world.mount("m");
        let repository = mounted.path.join("r");
        fs::create_dir(&repository).expect("mkdir");
        let git = |args: &[&str]| {
            let run = Command::new("git").args(args).current_dir(&repository).env("HOME", &mounted.path).output();
            let run = run.expect("git runs");
            assert!(run.status.success(), "git {args:?}: {}", String::from_utf8_lossy(&run.stderr));
            run
        };
        git(&["init", "-q"]);
        git(&["config", "user.email", "a@example.org"]);
        git(&["config", "user.name", "a"]);
        for n in 0..200 {
            fs::write(repository.join(format!("file-{n}")), format!("content {n}\n").repeat(n + 1)).expect("write");
        }
        git(&["add", "."]);
        git(&["commit", "-q", "-m", "one"]);
        fs::write(repository.join("file-7"), "changed\n").expect("write");
        git(&["commit", "-q", "-a", "-m", "two"]);
        git(&["gc", "-q"]);
        git(&["fsck", "--full", "--strict"]);
        assert!(git(&["status", "--porcelain"]).stdout.is_empty());
    });
}

#[test]
fn sqlite_and_tar_work_on_the_tree() {
    in_private_mounts(|| {
        let world = World::new();
        let mounted = world.mount("m");
        for mode in ["delete", "wal"] {
            let script = format!(
                "PRAGMA journal_mode={mode}; CREATE TABLE t(a,b); \
                 WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i+1 FROM n WHERE i<5000) INSERT INTO t SELECT i, hex(i) FROM n; \
                 DELETE FROM t WHERE a%3=0; VACUUM; PRAGMA integrity_check; SELECT count(*) FROM t;"
            );
            let run = Command::new("sqlite3").arg(mounted.path.join(mode)).arg(script).output().expect("sqlite3 runs");
            let out = String::from_utf8_lossy(&run.stdout).into_owned();
            assert!(out.contains("ok\n3334"), "{out} {}", String::from_utf8_lossy(&run.stderr));
        }
        let source = mounted.path.join("source");
        fs::create_dir_all(source.join("a/b")).expect("mkdir");
        for n in 0..50 {
            fs::write(source.join(format!("a/b/{n}")), vec![n as u8; n * 1000]).expect("write");
        }
        symlink("a/b/3", source.join("link")).expect("symlink");
        fs::hard_link(source.join("a/b/4"), source.join("hard")).expect("link");
        let archive = mounted.path.join("x.tar");
        let status = Command::new("tar").arg("-cf").arg(&archive).arg("-C").arg(&source).arg(".").status();
        assert!(status.expect("tar runs").success());
        let target = mounted.path.join("target");
        fs::create_dir(&target).expect("mkdir");
        let status = Command::new("tar").arg("-xpf").arg(&archive).arg("-C").arg(&target).status();
        assert!(status.expect("tar runs").success());
        let status = Command::new("diff").arg("-r").arg(&source).arg(&target).status();
        assert!(status.expect("diff runs").success());
        assert_eq!(fs::metadata(target.join("hard")).expect("stat").nlink(), 2);
    });
}

fn read_all(mut file: &File) -> Vec<u8> {
    let mut bytes = Vec::new();
    file.seek(SeekFrom::Start(0)).expect("seek");
    file.read_to_end(&mut bytes).expect("read");
    bytes
}

#[test]
fn extended_attributes_of_a_file_that_has_none_are_asked_for_with_its_attributes() {
    use rustix::fs::{XattrFlags, getxattr, listxattr, setxattr};
    use rustix::io::Errno;
    in_private_mounts(|| {
        let world = World::new();
        let mounted = world.mount("m");
        let path = mounted.path.join("f");
        fs::write(&path, "x").expect("write");
        fs::metadata(&path).expect("stat");
        let file = File::open(&path).expect("open");
        world.server.go_away();
        for name in ["user.a", "security.selinux", "security.capability"] {
            assert_eq!(rustix::fs::fgetxattr(&file, name, &mut [0; 8]), Err(Errno::NODATA), "{name}");
        }
        assert_eq!(rustix::fs::flistxattr(&file, &mut [0; 8]), Ok(0));
        assert_eq!(rustix::fs::flistxattr(&file, &mut [0; 0]), Ok(0));
        world.server.come_back();
        setxattr(&path, "user.a", b"1", XattrFlags::empty()).expect("set");
        assert_eq!(getxattr(&path, "user.a", &mut [0; 8]), Ok(1));
        assert_eq!(listxattr(&path, &mut [0; 8]), Ok(7));
    });
}
