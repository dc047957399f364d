//! A gate that is killed with everybody else who has its connection, while a thread of it waits in the kernel for a
//! page that one of the kernel's own requests holds: it ends only when its connection is cut off.
//!
//! Needs root, and Linux 6.18, whose kernel tells which connection a descriptor is.

use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use mgmt_api::Limits;
use rustix::mount::{MountPropagationFlags, UnmountFlags, mount_change, unmount};
use rustix::process::{Pid, Signal};
use sandbox::cgroup::Cgroup;
use sys::ns::Kinds;

const LIMIT: Duration = Duration::from_secs(20);

/// A file system of one file, which it opens and never reads: told of the first read, it has the kernel drop the page
/// that this one holds.
const GATE: &str = r#"
import ctypes, os, struct, sys, threading
libc = ctypes.CDLL(None, use_errno=True)
fuse = os.open("/dev/fuse", os.O_RDWR)
options = f"fd={fuse},rootmode=40000,user_id=0,group_id=0,allow_other".encode()
if libc.mount(b"gate", sys.argv[1].encode(), b"fuse", 6, options) != 0:
    sys.exit(f"mount: {os.strerror(ctypes.get_errno())}")
def reply(unique, body=b"", error=0):
    os.write(fuse, struct.pack("<IiQ", 16 + len(body), error, unique) + body)
def attributes(inode):
    mode = 0o40755 if inode == 1 else 0o100644
    return struct.pack("<QQQQQQIIIIIIIIII", inode, 4096, 8, 0, 0, 0, 0, 0, 0, mode, 1, 0, 0, 0, 4096, 0)
def drop_page():
    os.write(fuse, struct.pack("<IiQQqq", 40, 2, 0, 2, 0, -1))
while True:
    request = os.read(fuse, 1 << 17)
    _, opcode, unique, inode = struct.unpack_from("<IIQQ", request)
    if opcode == 26:
        reply(unique, struct.pack("<IIIIHHIIHHI7I", 7, 31, 4096, 0, 0, 0, 4096, 1, 1, 0, 0, *[0] * 7))
        print("ready", flush=True)
    elif opcode == 1:
        reply(unique, struct.pack("<QQQQII", 2, 1, 60, 60, 0, 0) + attributes(2))
    elif opcode == 3:
        reply(unique, struct.pack("<QII", 60, 0, 0) + attributes(inode))
    elif opcode == 14:
        reply(unique, struct.pack("<QIi", 1, 0, 0))
    elif opcode == 15:
        threading.Thread(target=drop_page, name="notifier").start()
        print("read", flush=True)
    elif opcode not in (2, 36, 42):
        reply(unique, error=-38)
"#;

struct Ended(Child);

impl Ended {
    fn has_ended(&mut self) -> bool {
        self.0.try_wait().expect("a child").is_some()
    }

    fn within(&mut self, limit: Duration) -> bool {
        let until = Instant::now() + limit;
        while !self.has_ended() && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(5));
        }
        self.has_ended()
    }
}

impl Drop for Ended {
    fn drop(&mut self) {
        let _ = self.0.kill();
    }
}

/// Whether a thread of it waits in the kernel.
fn waits(pid: u32) -> bool {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    tasks
        .into_iter()
        .any(|task| std::fs::read_to_string(task.path().join("stat")).is_ok_and(|stat| stat.contains(") D ")))
}

#[test]
fn gate_that_was_killed_and_waits_for_itself_ends_when_its_connection_is_cut_off() {
    ends_when_it_is_cut_off(Signal::KILL);
}

#[test]
fn gate_that_was_told_to_end_and_waits_for_itself_ends_as_well() {
    ends_when_it_is_cut_off(Signal::TERM);
}

fn ends_when_it_is_cut_off(signal: Signal) {
    let place = tempfile::tempdir().expect("a directory");
    sys::ns::unshare(Kinds::MOUNT).expect("a mount namespace");
    mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC).expect("private mounts");
    let mut gate = Command::new("python3");
    gate.args(["-c", GATE]).arg(place.path()).stdin(Stdio::null()).stdout(Stdio::piped());
    let mut gate = Ended(gate.spawn().expect("python3"));
    let pid = gate.0.id();
    let name = format!("abandoned-{}-{}", signal.as_raw(), std::process::id());
    let group = Cgroup::ensure(&name, &Limits::default()).expect("a group");
    group.add_server(pid).expect("in the group");
    let mut said = BufReader::new(gate.0.stdout.take().expect("a pipe"));
    let mut next = || {
        let mut line = String::new();
        said.read_line(&mut line).expect("a line");
        line.trim().to_owned()
    };
    let unmounted = Unmounted(place.path());
    assert_eq!(next(), "ready");
    let mut reader = Command::new("cat");
    reader.arg(place.path().join("file")).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let mut reader = Ended(reader.spawn().expect("cat"));
    group.add(reader.0.id()).expect("in the group");
    assert_eq!(next(), "read");
    let until = Instant::now() + LIMIT;
    while !waits(pid) {
        assert!(Instant::now() < until, "no thread of it waits for the page");
        std::thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(sandbox::fusemount::abandon(pid), 0, "it was not killed");
    rustix::process::kill_process(Pid::from_child(&gate.0), signal).expect("signalled");
    let _ = reader.0.kill();
    assert!(!gate.within(Duration::from_millis(300)), "this kernel lets it go by itself");
    let tells = std::fs::read_dir(format!("/proc/{pid}/task")).expect("its threads").flatten().any(|task| {
        let said = std::fs::read_dir(task.path().join("fdinfo")).into_iter().flatten().flatten();
        said.into_iter().any(|it| std::fs::read_to_string(it.path()).is_ok_and(|it| it.contains("fuse_connection:")))
    });
    if !tells {
        eprintln!("SKIPPED: this kernel does not tell which connection a descriptor is (Linux 6.18)");
        drop(unmounted);
        return group.remove().expect("nobody is left in it");
    }
    // As whoever removes a container does.
    group.remove().expect("nobody is left in it");
    assert!(gate.within(LIMIT) && reader.within(LIMIT), "they end");
    assert_eq!(said.read_to_end(&mut Vec::new()).expect("its end"), 0);
}

/// By force, which cuts off as well.
struct Unmounted<'a>(&'a Path);

impl Drop for Unmounted<'_> {
    fn drop(&mut self) {
        let _ = unmount(self.0, UnmountFlags::FORCE | UnmountFlags::DETACH);
    }
}
