//! Clean Debian systems in namespaces of their own, and the package that is installed in them.
//!
//! A system is a root made by `debootstrap` and a first process: a service manager or a shell that waits. It has no
//! network but itself, unless [`Wires`] connect it with others. Everything in it ends with its first process, which
//! ends with the test.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use crate::dvs_binary;

/// For control groups that are empty a moment after the last process has ended.
const LONG: Duration = Duration::from_secs(30);
/// A shell that waits for one child buries all others that it got.
pub const BURY: &str = "while :; do sleep 1000; done";
pub const SYSTEMD: &str = "exec /lib/systemd/systemd";
/// Packages without which there is no service manager.
pub const WITH_SYSTEMD: &str = "--include=systemd,systemd-sysv,dbus";

pub fn text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Output of a command that must succeed.
pub fn done(command: &mut Command) -> String {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    assert!(output.status.success(), "{command:?}\n{}{}", text(&output), String::from_utf8_lossy(&output.stderr));
    text(&output)
}

/// Whether this machine has a program.
pub fn has(program: &str) -> bool {
    Command::new("sh").args(["-c", &format!("command -v {program}")]).output().is_ok_and(|found| found.status.success())
}

/// The package of the binary that was built beside the tests; or the one that is about to be handed out, where a
/// variable names it.
pub fn package(out: &Path) -> PathBuf {
    if let Some(package) = std::env::var_os("DVS_TEST_PACKAGE") {
        return PathBuf::from(package);
    }
    let xtask = dvs_binary().with_file_name("xtask");
    assert!(xtask.exists(), "{} is missing: run `cargo build --package xtask` first", xtask.display());
    let mut build = Command::new(xtask);
    // Fast, not small.
    build.env("DPKG_DEB_COMPRESSOR_LEVEL", "0").args(["deb", "--binary"]).arg(dvs_binary()).arg("--out").arg(out);
    PathBuf::from(done(&mut build).trim())
}

/// Files of a system that does not run yet.
pub struct Root {
    /// Holds the root.
    place: tempfile::TempDir,
}

impl Root {
    /// `None`: there is no network to fetch it from.
    pub fn make(suite: &str, more: &[&str]) -> Option<Root> {
        let root = Root::empty();
        let made = Command::new("debootstrap").arg("--variant=minbase").args(more).arg(suite).arg(root.path()).output();
        let made = made.expect("debootstrap is installed");
        if made.status.success() {
            return Some(root);
        }
        eprintln!("SKIPPED: debootstrap made no {suite}, is there a network?\n{}", text(&made));
        None
    }

    fn empty() -> Root {
        Root { place: tempfile::Builder::new().prefix("dvs-t").tempdir_in("/tmp").expect("a directory") }
    }

    pub fn copy(&self) -> Root {
        let copy = Root::empty();
        done(Command::new("cp").arg("-a").arg(self.path()).arg(copy.path()));
        copy
    }

    pub fn path(&self) -> PathBuf {
        self.place.path().join("root")
    }

    /// Packages that the system can install later, when it has no network any more.
    pub fn fetch_packages(&self, names: &[&str]) {
        let script = "apt-get -q update && apt-get -q install --download-only --yes \"$@\"";
        let mut command = Command::new("chroot");
        command.arg(self.path()).args(["env", "-i", "PATH=/usr/sbin:/usr/bin:/sbin:/bin", "sh", "-ec", script, "sh"]);
        done(command.args(names));
    }

    /// `first` is the command of the first process.
    pub fn boot(self, name: &str, first: &str) -> System {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let group = format!("dvs-debian-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let started = start(&self.path(), &group, name, first);
        System {
            root: self,
            name: name.to_owned(),
            first: first.to_owned(),
            process: started.0,
            inside: started.1,
            group,
        }
    }
}

/// One that runs.
pub struct System {
    root: Root,
    name: String,
    first: String,
    process: Child,
    /// Its first process, as this machine numbers it.
    inside: u32,
    group: String,
}

/// `$1` is the root, `$2` the name of a group of its own, `$3` the system's name, `$4` the first process. What a
/// machine has before its service manager begins. The root is that of the namespace: in another one the kernel makes no
/// user namespaces.
const FURNISH: &str = "root=$1 group=$2 name=$3 first=$4
mount --make-rprivate /
mount --bind $root $root
mount -t proc proc $root/proc
# What is the whole machine's is no business of a system that is one of several on it.
mount --bind $root/proc/sys/fs $root/proc/sys/fs
mount -o remount,bind,ro $root/proc/sys/fs
mount -t sysfs sysfs $root/sys
mount -t tmpfs tmpfs $root/dev
for device in null zero full random urandom tty fuse; do
    touch $root/dev/$device
    mount --bind /dev/$device $root/dev/$device
done
mkdir $root/dev/pts $root/dev/shm
mount -t devpts -o newinstance,ptmxmode=0666 devpts $root/dev/pts
mount -t tmpfs tmpfs $root/dev/shm
ln -s pts/ptmx $root/dev/ptmx
ln -s /proc/self/fd $root/dev/fd
mount -t tmpfs tmpfs $root/run
mount -t tmpfs tmpfs $root/sys/fs/cgroup
ip link set lo up
echo $name > $root/etc/hostname
hostname $name
awk '$3 ~ /^cgroup2?$/ && $2 ~ /^.sys.fs.cgroup/ {print $2}' /proc/self/mounts | while read place; do
    mkdir -p $place/$group $root$place
    for file in cpuset.cpus cpuset.mems; do
        if [ -e $place/$file ]; then cat $place/$file > $place/$group/$file; fi
    done
    mount --bind $place/$group $root$place
done
echo furnished
cd $root
pivot_root . mnt
exec env -i container=other PATH=/usr/sbin:/usr/bin:/sbin:/bin chroot . sh -c \"umount -l /mnt; $first\"";

/// What holds the namespaces, and the first process in them.
fn start(root: &Path, group: &str, name: &str, first: &str) -> (Child, u32) {
    let mut process = Command::new("unshare")
        .args(["--mount", "--net", "--pid", "--ipc", "--uts", "--fork", "--kill-child=KILL"])
        .args(["sh", "-ec", FURNISH, "sh"])
        .arg(root)
        .args([group, name, first])
        .stdout(Stdio::piped())
        .spawn()
        .expect("unshare starts");
    let mut said = String::new();
    BufReader::new(process.stdout.take().expect("a pipe")).read_line(&mut said).expect("a word");
    assert_eq!(said, "furnished\n", "the system was not set up");
    let inside = only_child(&process);
    (process, inside)
}

fn only_child(process: &Child) -> u32 {
    let children = format!("/proc/{0}/task/{0}/children", process.id());
    let children = std::fs::read_to_string(children).expect("it has a child");
    children.trim().parse().expect("one child")
}

impl System {
    pub fn name(&self) -> &str {
        &self.name
    }

    pub fn root(&self) -> PathBuf {
        self.root.path()
    }

    /// A script in it, which is ended after two minutes.
    pub fn command(&self, script: &str) -> Command {
        let target = self.inside.to_string();
        let mut command = Command::new("timeout");
        command.args(["120", "nsenter", "--target", &target, "--mount", "--net", "--pid", "--ipc", "--uts"]);
        command.args(["--root", "--wdns=/", "env", "-i", "PATH=/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL=C.UTF-8"]);
        command.args(["DEBIAN_FRONTEND=noninteractive", "sh", "-ec", script]);
        command.stdin(Stdio::null());
        command
    }

    /// Output of a script that must succeed in it.
    pub fn sh(&self, script: &str) -> String {
        done(&mut self.command(script))
    }

    /// Standard error of a script that must not succeed.
    pub fn fails(&self, script: &str) -> String {
        let output = self.command(script).output().expect("it runs");
        assert!(!output.status.success(), "on {}, {script} succeeded: {output:?}", self.name);
        String::from_utf8_lossy(&output.stderr).into_owned()
    }

    /// Its processes whose command line begins with this, as it numbers them.
    pub fn pids(&self, command_line: &str) -> Vec<u32> {
        let find = "for process in /proc/[0-9]*; do
            line=$(tr '\\0' ' ' < $process/cmdline 2>/dev/null) || continue
            case $line in \"$1\"*) echo ${process#/proc/} ;; esac
        done";
        let script = format!("set -- '{command_line}'\n{find}");
        self.sh(&script).lines().filter_map(|pid| pid.parse().ok()).collect()
    }

    /// As when the power fails.
    pub fn off(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
        // Groups are empty a moment after the last process has ended.
        let remove = "for place in /sys/fs/cgroup /sys/fs/cgroup/*; do
            if [ -d $place/$1 ]; then find $place/$1 -depth -type d -exec rmdir {} +; fi; done";
        let is_removed = || Command::new("sh").args(["-ec", remove, "sh", &self.group]).output();
        let began = Instant::now();
        while !is_removed().is_ok_and(|output| output.status.success()) && began.elapsed() < LONG {
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Boots again, from what its root has.
    pub fn on(&mut self) {
        (self.process, self.inside) = start(&self.root.path(), &self.group, &self.name, &self.first);
    }
}

impl Drop for System {
    fn drop(&mut self) {
        self.off();
    }
}

/// A network between systems, in a namespace of its own: a bridge, and a wire to each.
pub struct Wires {
    process: Child,
    count: u32,
}

impl Wires {
    pub fn lay() -> Wires {
        let script = "ip link set lo up; ip link add wires type bridge; ip link set wires up; echo laid; read forever";
        let mut process = Command::new("unshare")
            .args(["--net", "sh", "-ec", script])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("unshare starts");
        let mut said = String::new();
        BufReader::new(process.stdout.take().expect("a pipe")).read_line(&mut said).expect("a word");
        assert_eq!(said, "laid\n", "there is no network");
        Wires { process, count: 0 }
    }

    /// `address` with the length of its prefix; for one that was off, too.
    pub fn connect(&mut self, system: &System, address: &str) {
        self.count += 1;
        let script = "ip link add p$1 type veth peer name eth0 netns $2
            ip link set p$1 master wires up
            exec nsenter --target $2 --net sh -ec \"ip address add $3 dev eth0; ip link set eth0 up\"";
        let mut command = Command::new("nsenter");
        command.args(["--target", &self.process.id().to_string(), "--net", "sh", "-ec", script, "sh"]);
        done(command.args([&self.count.to_string(), &system.inside.to_string(), address]));
    }
}

impl Drop for Wires {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
