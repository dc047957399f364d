//! What root of a container tries against the node and its neighbours through what they share: files of the node's
//! system directories, sockets, terminals, the kernel's doors. With real namespaces, one attack in each test.

mod support;

use std::fs::{File, Permissions};
use std::io::Read;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::os::unix::net::UnixListener;
use std::path::Path;

use support::{Keeper, is_root};

/// A directory of the node below `/usr`, which goes with the test.
fn in_usr() -> tempfile::TempDir {
    let dir = tempfile::Builder::new().prefix("dvs-attack-").tempdir_in("/usr/local/lib").expect("directory");
    std::fs::set_permissions(dir.path(), Permissions::from_mode(0o755)).expect("mode");
    dir
}

fn write(path: &Path, mode: u32) {
    std::fs::write(path, "content").expect("write");
    std::fs::set_permissions(path, Permissions::from_mode(mode)).expect("mode");
}

/// Tries each line; prints its name and `done` or the error's.
const TRY: &str = r#"
import ctypes, errno, fcntl, os, socket, struct, sys
libc = ctypes.CDLL(None, use_errno=True)
libc.mount.argtypes = [ctypes.c_char_p, ctypes.c_char_p, ctypes.c_char_p, ctypes.c_ulong, ctypes.c_char_p]
def call(result):
    if result < 0:
        raise OSError(ctypes.get_errno(), "")
    return result
def attempt(name, what):
    try:
        what()
        print(name, "done")
    except OSError as error:
        print(name, errno.errorcode[error.errno])
"#;

fn attempts(keeper: &Keeper, program: &str, arguments: &[&str]) -> Vec<String> {
    let ended = keeper.python(&format!("{TRY}\n{program}"), arguments);
    ended.text().lines().map(str::to_owned).collect()
}

#[test]
fn nobody_waits_for_a_lease_of_a_container_nor_does_it_hear_what_others_execute() {
    if !is_root() {
        return;
    }
    let (dir, keeper) = (in_usr(), Keeper::start());
    let program = dir.path().join("program");
    write(&program, 0o755);
    // Each attacker says when it is in place and waits for its end.
    let attack = r#"
fd = os.open(sys.argv[1], os.O_RDONLY)
attempt("lease", lambda: fcntl.fcntl(fd, 1024, fcntl.F_RDLCK))
attempt("lease-upper-half", lambda: call(libc.syscall(72, fd, ctypes.c_ulong(1 << 32 | 1024), 0)))
attempt("note", lambda: fcntl.fcntl(os.open(os.path.dirname(sys.argv[1]), os.O_RDONLY), 1026, 1))
attempt("own-lease", lambda: fcntl.fcntl(os.open("/tmp/x", os.O_CREAT | os.O_RDONLY), 1024, fcntl.F_RDLCK))
watch = libc.inotify_init1(os.O_NONBLOCK)
call(libc.inotify_add_watch(watch, sys.argv[1].encode(), 0xfff))
call(libc.inotify_add_watch(watch, os.path.dirname(sys.argv[1]).encode(), 0xfff))
call(libc.flock(fd, 2))
os.mkfifo("/tmp/go")
sys.stdout.flush()
open("/tmp/ready", "w")
open("/tmp/go").read()
attempt("others-watched", lambda: os.read(watch, 4096))
"#;
    let results = std::thread::scope(|scope| {
        let attacker = scope.spawn(|| attempts(&keeper, attack, &[program.to_str().expect("path")]));
        assert_eq!(keeper.shell("while ! test -e /tmp/ready; do sleep 0.01; done").text(), "");
        // The node writes to the file and locks it, which a lease or a lock of the container would hold up.
        let file = File::options().read(true).write(true).custom_flags(libc::O_NONBLOCK).open(&program).expect("open");
        file.try_lock().expect("a lock that a container's does not keep out");
        file.set_len(3).expect("shorten");
        drop(file);
        std::fs::read(&program).expect("read");
        assert_eq!(keeper.shell("echo go > /tmp/go").text(), "");
        attacker.join().expect("attacker")
    });
    let expected =
        ["lease EINVAL", "lease-upper-half EINVAL", "note EINVAL", "own-lease EINVAL", "others-watched EAGAIN"];
    assert_eq!(results, expected);
}

#[test]
fn what_not_everybody_on_the_node_may_read_root_of_a_container_may_not_either() {
    if !is_root() {
        return;
    }
    let (dir, keeper) = (in_usr(), Keeper::start());
    let path = |name: &str| dir.path().join(name);
    write(&path("secret"), 0o600);
    write(&path("of-a-group"), 0o640);
    write(&path("open"), 0o644);
    std::fs::create_dir(path("private")).expect("directory");
    write(&path("private/open-inside"), 0o644);
    std::fs::set_permissions(path("private"), Permissions::from_mode(0o700)).expect("mode");
    let _listener = UnixListener::bind(path("socket")).expect("bind");
    std::fs::set_permissions(path("socket"), Permissions::from_mode(0o777)).expect("mode");
    rustix::fs::mknodat(rustix::fs::CWD, path("fifo"), rustix::fs::FileType::Fifo, 0o666.into(), 0).expect("fifo");
    std::fs::set_permissions(path("fifo"), Permissions::from_mode(0o666)).expect("mode");
    let mut fifo = File::options().read(true).custom_flags(libc::O_NONBLOCK).open(path("fifo")).expect("open");
    let attack = r#"
os.chdir(sys.argv[1])
for name in ["secret", "of-a-group", "private/open-inside", "open"]:
    attempt(name, lambda: open(name).read())
attempt("list", lambda: os.listdir("private"))
attempt("chmod", lambda: os.chmod("secret", 0o777))
attempt("link", lambda: os.link("secret", "/tmp/secret"))
attempt("connect", lambda: socket.socket(socket.AF_UNIX).connect("socket"))
attempt("send", lambda: socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM).sendto(b"x", "socket"))
attempt("fifo", lambda: os.write(os.open("fifo", os.O_RDWR | os.O_NONBLOCK), b"to the node"))
stat = os.stat("secret")
print(stat.st_uid, stat.st_gid)
"#;
    let seen = attempts(&keeper, attack, &[dir.path().to_str().expect("path")]);
    let expected = [
        "secret EACCES",
        "of-a-group EACCES",
        "private/open-inside EACCES",
        "open done",
        "list EACCES",
        "chmod EROFS",
        "link EXDEV",
        "connect ECONNREFUSED",
        "send ECONNREFUSED",
        // It is a FIFO of the container's own.
        "fifo done",
        "0 0",
    ];
    assert_eq!(seen, expected);
    assert_eq!(fifo.read(&mut [0; 16]).expect("nobody writes"), 0, "the node's FIFO heard the container");
}

#[test]
fn what_the_node_installs_is_seen_by_the_next_program() {
    if !is_root() {
        return;
    }
    let (dir, keeper) = (in_usr(), Keeper::start());
    let path = dir.path().join("program");
    let look = |wanted: &str| {
        let seen = keeper.shell(&format!("cat {} 2>/dev/null || echo none", path.display())).text();
        assert_eq!(seen, wanted);
    };
    look("none");
    std::fs::write(&path, "first").expect("write");
    look("first");
    // As a package manager does it.
    std::fs::write(dir.path().join("new"), "second").expect("write");
    std::fs::rename(dir.path().join("new"), &path).expect("rename");
    look("second");
    std::fs::remove_file(&path).expect("remove");
    look("none");
}

#[test]
fn opt_is_seen_only_when_it_was_asked_for() {
    if !is_root() || !Path::new("/opt").is_dir() {
        return;
    }
    assert_eq!(Keeper::start().shell("ls -d /opt || echo none").stdout, b"none\n");
    let asking = Keeper::start_with(|options| options.with_opt = true);
    assert_eq!(asking.shell("ls -d /opt; touch /opt/x 2>/dev/null || echo read-only").text(), "/opt\nread-only");
}

#[test]
fn sockets_of_other_families_than_containers_need_are_not_there() {
    if !is_root() {
        return;
    }
    let attack = r#"
for family in range(64):
    for kind in [1, 2, 3, 5]:
        descriptor = libc.socket(family, kind, 0)
        if descriptor >= 0:
            os.close(descriptor)
            print(family)
            break
"#;
    let families = attempts(&Keeper::start(), attack, &[]);
    assert!(families.iter().all(|family| ["1", "2", "10", "16", "17"].contains(&family.as_str())), "{families:?}");
    assert!(families.len() >= 4, "{families:?}");
}

#[test]
fn mounts_namespaces_and_memory_that_nobody_pays_for_are_refused() {
    if !is_root() {
        return;
    }
    let attack = r#"
for kind in ["tmpfs", "ramfs", "devpts", "proc", "sysfs", "mqueue", "overlay", "cgroup2", "fuse", "ext4"]:
    attempt(kind, lambda: call(libc.mount(b"none", b"/mnt", kind.encode(), 0, None)))
attempt("old-magic", lambda: call(libc.mount(b"none", b"/mnt", b"tmpfs", 0xc0ed0000, None)))
attempt("fsopen", lambda: call(libc.syscall(430, b"tmpfs", 0)))
attempt("unshare-user", lambda: call(libc.unshare(0x10000000)))
attempt("unshare-net", lambda: call(libc.unshare(0x40000000)))
attempt("clone-user", lambda: call(libc.syscall(56, 0x10000000 | 17, 0, 0, 0, 0)))
attempt("clone3", lambda: call(libc.syscall(435, 0, 0)))
attempt("setns", lambda: call(libc.setns(os.open("/proc/self/ns/net", os.O_RDONLY), 0)))
attempt("userfaultfd", lambda: call(libc.syscall(323, 1)))
packets = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
attempt("ring", lambda: packets.setsockopt(263, 5, struct.pack("IIII", 4096, 4, 2048, 8)))
attempt("buffer", lambda: packets.setsockopt(1, 33, 1 << 30))
attempt("bind", lambda: call(libc.mount(b"/usr", b"/mnt", None, 4096, None)))
"#;
    let seen = attempts(&Keeper::start(), attack, &[]);
    let (bound, refused) = seen.split_last().expect("lines");
    assert_eq!(bound, "bind done");
    assert!(refused.iter().all(|line| line.ends_with(" EPERM") || line == "clone3 ENOSYS"), "{refused:?}");
}

#[test]
fn terminals_of_a_container_end_before_those_of_the_machine() {
    if !is_root() {
        return;
    }
    let keeper = Keeper::start_with(|options| options.terminals = Some(16));
    let attack = r#"
taken = []
try:
    while True:
        taken.append(os.open("/dev/ptmx", os.O_RDWR | os.O_NOCTTY))
except OSError as error:
    print(len(taken), errno.errorcode[error.errno])
attempt("more", lambda: call(libc.mount(None, b"/dev/pts", None, 32, b"max=1000")))
attempt("another", lambda: call(libc.mount(b"none", b"/mnt", b"devpts", 0, b"newinstance,ptmxmode=0666")))
"#;
    let seen = attempts(&keeper, attack, &[]);
    assert_eq!(seen, ["16 ENOSPC", "more EPERM", "another EPERM"]);
    let host = File::options().read(true).write(true).open("/dev/ptmx").expect("a terminal of the node");
    assert!(host.as_raw_fd() >= 0);
}

#[test]
fn open_files_have_a_limit_that_root_inside_cannot_raise() {
    if !is_root() {
        return;
    }
    let keeper = Keeper::start_with(|options| options.open_files = Some(100));
    let attack = r#"
import resource
print(resource.getrlimit(resource.RLIMIT_NOFILE))
try:
    resource.setrlimit(resource.RLIMIT_NOFILE, (200, 200))
    print("raised")
except (ValueError, OSError, PermissionError) as error:
    print("refused")
"#;
    assert_eq!(attempts(&keeper, attack, &[]), ["(100, 100)", "refused"]);
}
