//! Host volumes as programs have them, and what root of a container tries with them against the node.

mod support;

use std::fs::Permissions;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use sandbox::volumes::{Owners, VolumeMount};
use support::{Keeper, is_root};

/// Of the files that root inside has.
const OWNER: u32 = 41_000;
/// Of those of other users inside.
const USERS: u32 = 500_000;

/// A directory with `data` for containers, `beside` that is nobody's business, and `secret`, the node's root's alone.
fn place() -> tempfile::TempDir {
    let dir = tempfile::Builder::new().prefix("dvs-volume-").tempdir().expect("directory");
    std::fs::set_permissions(dir.path(), Permissions::from_mode(0o755)).expect("mode");
    for (name, owner) in [("data", OWNER), ("beside", 0)] {
        std::fs::create_dir(dir.path().join(name)).expect("directory");
        chown(&dir.path().join(name), owner);
    }
    std::fs::write(dir.path().join("beside/secret"), "the node's").expect("file");
    dir
}

fn chown(path: &Path, owner: u32) {
    std::os::unix::fs::lchown(path, Some(owner), Some(owner)).expect("owner");
}

fn volume(allowed: &Path, place: &str) -> VolumeMount {
    VolumeMount {
        allowed: allowed.to_owned(),
        below: PathBuf::new(),
        place: PathBuf::from(place),
        read_only: false,
        owners: Some(Owners { uid: OWNER, gid: OWNER, users_from: USERS }),
    }
}

fn with(volumes: Vec<VolumeMount>) -> Keeper {
    Keeper::start_with(|options| options.volumes = volumes)
}

const TRY: &str = r#"
import ctypes, errno, os, stat, struct, sys
libc = ctypes.CDLL(None, use_errno=True)
libc.mount.argtypes = [ctypes.c_char_p, ctypes.c_char_p, ctypes.c_char_p, ctypes.c_ulong, ctypes.c_char_p]
libc.umount2.argtypes = [ctypes.c_char_p, ctypes.c_int]
RDONLY, NOSUID, NODEV, REMOUNT, BIND, MOVE, REC, SHARED = 1, 2, 4, 32, 4096, 8192, 16384, 1 << 20
def call(result):
    if result < 0:
        raise OSError(ctypes.get_errno(), "")
    return result
def mount(source, target, flags):
    return call(libc.mount(source.encode(), target.encode(), None, flags, None))
def attempt(name, what):
    try:
        what()
        print(name, "done")
    except OSError as error:
        print(name, errno.errorcode[error.errno])
"#;

fn attempts(keeper: &Keeper, program: &str) -> Vec<String> {
    keeper.python(&format!("{TRY}\n{program}"), &[]).text().lines().map(str::to_owned).collect()
}

#[test]
fn owners_in_a_volume_are_those_of_the_container_to_both_sides() {
    if !is_root() {
        return;
    }
    let dir = place();
    let data = dir.path().join("data");
    std::fs::write(data.join("of-the-owner"), "1").expect("file");
    chown(&data.join("of-the-owner"), OWNER);
    std::fs::set_permissions(data.join("of-the-owner"), Permissions::from_mode(0o600)).expect("mode");
    std::fs::write(data.join("of-the-nodes-root"), "2").expect("file");
    std::fs::set_permissions(data.join("of-the-nodes-root"), Permissions::from_mode(0o600)).expect("mode");
    let keeper = with(vec![volume(&data, "/srv/data")]);
    let seen = attempts(
        &keeper,
        r#"
os.chdir("/srv/data")
print(os.stat(".").st_uid, os.stat("of-the-owner").st_uid, os.stat("of-the-nodes-root").st_uid)
attempt("own", lambda: open("of-the-owner", "a").write("+"))
attempt("read", lambda: open("of-the-nodes-root").read())
attempt("take", lambda: os.chown("of-the-nodes-root", 0, 0))
attempt("chmod", lambda: os.chmod("of-the-nodes-root", 0o666))
attempt("new", lambda: open("new", "w").write("x"))
os.mkdir("of-99")
os.chown("of-99", 99, 98)
if os.fork() == 0:
    os.setgid(98)
    os.setuid(99)
    open("of-99/new", "w").write("y")
    os._exit(0)
os.wait()
print(os.stat("new").st_uid, os.stat("of-99/new").st_uid, os.stat("of-99/new").st_gid)
"#,
    );
    let expected = ["0 0 65534", "own done", "read EACCES", "take EPERM", "chmod EOVERFLOW", "new done", "0 99 98"];
    assert_eq!(seen, expected);
    let owner = |name: &str| {
        let meta = std::fs::symlink_metadata(data.join(name)).expect("it is there");
        (meta.uid(), meta.gid())
    };
    assert_eq!(owner("new"), (OWNER, OWNER));
    assert_eq!(owner("of-99/new"), (USERS + 99, USERS + 98));
    assert_eq!(owner("of-the-nodes-root"), (0, 0));
    assert_eq!(std::fs::read_to_string(data.join("of-the-owner")).expect("read"), "1+");
}

#[test]
fn volume_without_an_owner_is_read_as_nobody_and_not_written() {
    if !is_root() {
        return;
    }
    let dir = place();
    let data = dir.path().join("data");
    std::fs::write(data.join("open"), "1").expect("file");
    std::fs::write(data.join("closed"), "2").expect("file");
    std::fs::set_permissions(data.join("closed"), Permissions::from_mode(0o600)).expect("mode");
    std::fs::set_permissions(&data, Permissions::from_mode(0o777)).expect("mode");
    let keeper = with(vec![VolumeMount { owners: None, ..volume(&data, "/data") }]);
    let seen = attempts(
        &keeper,
        r#"
os.chdir("/data")
print(open("open").read(), os.stat("open").st_uid)
attempt("closed", lambda: open("closed").read())
attempt("new", lambda: open("new", "w"))
"#,
    );
    assert_eq!(seen, ["1 65534", "closed EACCES", "new EROFS"]);
}

/// One that root of a container may write, and one that it may read.
#[test]
fn root_of_a_container_gets_no_more_of_a_volume_than_it_was_given() {
    if !is_root() {
        return;
    }
    let dir = place();
    let data = dir.path().join("data");
    std::fs::create_dir(data.join("docs")).expect("directory");
    std::fs::write(data.join("docs/page"), "page").expect("file");
    chown(&data.join("docs"), OWNER);
    chown(&data.join("docs/page"), OWNER);
    // What the node has mounted there comes along, and hides what it hides.
    std::fs::create_dir(data.join("mounted")).expect("directory");
    std::fs::write(data.join("mounted/hidden"), "hidden").expect("file");
    let mount = |arguments: &[&str]| {
        let mounted = std::process::Command::new("mount").args(arguments).status().expect("mount").success();
        assert!(mounted, "{arguments:?}");
    };
    let text = |path: &Path| path.to_str().expect("text").to_owned();
    mount(&["-t", "tmpfs", "-o", "size=1m,mode=0777", "none", &text(&data.join("mounted"))]);
    let read_only = VolumeMount { below: "docs".into(), read_only: true, ..volume(&data, "/docs") };
    let keeper = with(vec![volume(&data, "/data"), read_only]);
    let seen = attempts(
        &keeper,
        r#"
os.symlink("/etc/shadow", "/data/link")
os.symlink("../beside", "/data/up")
attempt("link", lambda: open("/data/link"))
attempt("up", lambda: os.listdir("/data/up"))
attempt("above", lambda: os.listdir("/data/../beside"))
attempt("block", lambda: os.mknod("/data/disk", stat.S_IFBLK | 0o666, os.makedev(8, 0)))
attempt("character", lambda: os.mknod("/data/null", stat.S_IFCHR | 0o666, os.makedev(1, 3)))
attempt("give", lambda: os.chown("/data/link", 70000, 70000, follow_symlinks=False))
attempt("write", lambda: open("/docs/page", "a"))
attempt("make", lambda: os.mkdir("/docs/x"))
attempt("remount", lambda: mount("none", "/docs", REMOUNT | BIND))
attempt("remount-whole", lambda: mount("none", "/docs", REMOUNT))
attempt("suid", lambda: mount("none", "/data", REMOUNT | BIND))
def attributes(place, clear):
    wanted = struct.pack("QQQQ", 0, clear, 0, 0)
    call(libc.syscall(442, -100, place.encode(), 0x8000, wanted, len(wanted)))
attempt("attributes", lambda: attributes("/docs", RDONLY))
attempt("attributes-suid", lambda: attributes("/data", NOSUID | NODEV))
attempt("bind", lambda: mount("/docs", "/mnt", BIND))
attempt("bind-remount", lambda: mount("none", "/mnt", REMOUNT | BIND))
attempt("bind-write", lambda: open("/mnt/page", "a"))
attempt("below", lambda: call(libc.umount2(b"/docs", 0)))
attempt("detach", lambda: call(libc.umount2(b"/data", 2)))
attempt("move", lambda: mount("/docs", "/media", MOVE))
attempt("covered", lambda: open("/data/mounted/hidden"))
attempt("uncover", lambda: call(libc.umount2(b"/data/mounted", 2)))
attempt("uncover-bind", lambda: mount("/data", "/media", BIND))
attempt("share", lambda: mount("none", "/data", REC | SHARED))
attempt("mount-in-it", lambda: mount("/usr", "/data/docs", BIND))
print("bin" in os.listdir("/data/docs"))
open("/data/program", "w").write("x")
attempt("setuid", lambda: os.chmod("/data/program", 0o6755))
"#,
    );
    let expected = [
        "link ENOENT",
        "up ENOENT",
        "above ENOENT",
        "block EPERM",
        "character EPERM",
        "give EINVAL",
        "write EROFS",
        "make EROFS",
        "remount EPERM",
        "remount-whole EPERM",
        "suid EPERM",
        "attributes EPERM",
        "attributes-suid EPERM",
        "bind done",
        "bind-remount EPERM",
        "bind-write EROFS",
        "below EINVAL",
        "detach EINVAL",
        "move EINVAL",
        "covered ENOENT",
        "uncover EINVAL",
        "uncover-bind EINVAL",
        "share done",
        "mount-in-it done",
        "True",
        "setuid done",
    ];
    let left = std::process::Command::new("umount").arg(data.join("mounted")).status().expect("umount").success();
    assert_eq!(seen, expected);
    assert!(left, "the container holds what the node mounted");
    // Nothing of its mounts is the node's.
    assert_eq!(std::fs::read_to_string(data.join("docs/page")).expect("read"), "page");
    let program = std::fs::metadata(data.join("program")).expect("it is there");
    assert_eq!((program.uid(), program.mode() & 0o7777), (OWNER, 0o6755), "it is a program of the owner's, at most");
}

#[test]
fn program_with_a_root_of_its_own_has_the_volumes_too() {
    if !is_root() {
        return;
    }
    let dir = place();
    let data = dir.path().join("data");
    let keeper = with(vec![volume(&data, "/opt/data"), volume(&data, "/tmp/data")]);
    // Without a file tree `/dc` is an empty directory that nobody can write; a volume is as good a root.
    assert_eq!(keeper.shell("echo seen > /opt/data/file; cat /tmp/data/file").text(), "seen");
}

#[test]
fn volume_that_is_not_there_or_leads_elsewhere_keeps_the_container_from_starting() {
    if !is_root() {
        return;
    }
    let dir = place();
    let data = dir.path().join("data");
    symlink(dir.path().join("beside"), data.join("link")).expect("link");
    symlink(&data, dir.path().join("also")).expect("link");
    std::fs::write(data.join("file"), "").expect("file");
    std::fs::create_dir_all(data.join("a/b")).expect("directory");
    let below = |below: &str| VolumeMount { below: below.into(), ..volume(&data, "/data") };
    let refused = |volume: VolumeMount| {
        let started = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| with(vec![volume])));
        let panicked = started.map(|_| ()).expect_err("it started");
        panicked.downcast_ref::<String>().expect("text").clone()
    };
    for (wrong, why) in [
        (below("none"), "none"),
        (below("link"), "link"),
        (below("link/../a"), "link"),
        (below("../beside"), "beside"),
        (below("file"), "file"),
        (volume(&dir.path().join("also"), "/data"), "also"),
        (VolumeMount { allowed: "/proc".into(), ..volume(&data, "/data") }, "cannot map owners"),
        (volume(&data, "/etc/passwd"), "/etc/passwd"),
        (volume(&data, "/var/run/x"), "/var/run/x"),
        (volume(&data, "/usr/local/x"), "/usr/local/x"),
    ] {
        let said = refused(wrong);
        assert!(said.contains("the volume") && said.contains(why), "{why}: {said}");
    }
    assert_eq!(with(vec![below("a/b")]).shell("ls /data").text(), "");
}
