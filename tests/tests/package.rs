//! The Debian package: what is in it, and what it does in a clean system.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader};
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use end_to_end::{dvs_binary, eventually};

/// For what takes a moment on a slow machine.
const LONG: Duration = Duration::from_secs(30);
/// Everything but the manual pages: what a machine gets.
const FILES: &[&str] = &[
    "-rwxr-xr-x root/root ./usr/bin/dvs",
    "-rw-r--r-- root/root ./etc/dvs/dvsd.toml",
    "-rw-r--r-- root/root ./usr/lib/systemd/system/dvsd.service",
    "-rw-r--r-- root/root ./usr/share/bash-completion/completions/dvs",
    "-rw-r--r-- root/root ./usr/share/zsh/vendor-completions/_dvs",
    "-rw-r--r-- root/root ./usr/share/fish/vendor_completions.d/dvs.fish",
    "-rw-r--r-- root/root ./usr/share/doc/dvs/copyright",
    "-rw-r--r-- root/root ./usr/share/doc/dvs/changelog.gz",
    "-rw-r--r-- root/root ./usr/share/doc/dvs/NEWS.md.gz",
    "-rw-r--r-- root/root ./usr/share/doc/dvs/third-party.txt.gz",
    "-rw-r--r-- root/root ./usr/share/lintian/overrides/dvs",
    "lrwxrwxrwx root/root ./usr/share/man/man8/dvsd.8.gz -> ../man1/dvs-daemon.1.gz",
];

fn text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn done(command: &mut Command) -> String {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    assert!(output.status.success(), "{command:?}\n{}{}", text(&output), String::from_utf8_lossy(&output.stderr));
    text(&output)
}

/// The package of the binary that was built beside the tests; or the one that is about to be handed out, where a
/// variable names it.
fn package(out: &Path) -> PathBuf {
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

#[test]
fn package_has_the_binary_its_pages_and_completions_and_starts_nothing() {
    let place = tempfile::tempdir().expect("a directory");
    let package = package(place.path());
    let contents = done(Command::new("dpkg-deb").arg("--contents").arg(&package));
    // Without size and time.
    let line = |line: &str| {
        let words: Vec<&str> = line.split_whitespace().collect();
        [&words[..2], &words[5..]].concat().join(" ")
    };
    let found: BTreeSet<String> = contents.lines().map(line).filter(|line| !line.starts_with('d')).collect();
    let is_page = |line: &&String| line.contains("./usr/share/man/man1/");
    let others: BTreeSet<&str> = found.iter().filter(|line| !is_page(line)).map(String::as_str).collect();
    assert_eq!(others, FILES.iter().copied().collect::<BTreeSet<&str>>());
    let pages = found.iter().filter(is_page).count();
    assert!(pages > 30, "a page for each command: {pages}");

    let tree = place.path().join("tree");
    done(Command::new("dpkg-deb").arg("--raw-extract").arg(&package).arg(&tree));
    assert!(done(Command::new(tree.join("usr/bin/dvs")).arg("--version")).starts_with("dvs "));
    done(Command::new("md5sum").args(["--check", "--quiet", "DEBIAN/md5sums"]).current_dir(&tree));
    let control = std::fs::read_to_string(tree.join("DEBIAN/control")).expect("its control file");
    assert!(control.contains("\nSuggests: etcd-server") && !control.contains('@'.to_string().repeat(2).as_str()));
    assert_eq!(std::fs::read_to_string(tree.join("DEBIAN/conffiles")).expect("conffiles"), "/etc/dvs/dvsd.toml\n");
    for script in ["postinst", "prerm", "postrm"] {
        done(Command::new("sh").arg("-n").arg(tree.join("DEBIAN").join(script)));
        let words = std::fs::read_to_string(tree.join("DEBIAN").join(script)).expect("a script");
        assert!(!words.contains("enable") && !words.contains("invoke start"), "{script} starts something");
    }
    done(Command::new("bash").arg("-n").arg(tree.join("usr/share/bash-completion/completions/dvs")));
    unit_is_understood(&tree);
    pages_are_well_formed(&tree);
}

fn has(program: &str) -> bool {
    Command::new("sh").args(["-c", &format!("command -v {program}")]).output().is_ok_and(|found| found.status.success())
}

fn unit_is_understood(tree: &Path) {
    if !has("systemd-analyze") {
        eprintln!("SKIPPED: there is no systemd-analyze (Debian: systemd)");
        return;
    }
    let unit = tree.join("usr/lib/systemd/system/dvsd.service");
    let output = Command::new("systemd-analyze").args(["verify", "--man=no"]).arg(unit).output().expect("it runs");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    // It looks for the binary on this machine, where it is not installed.
    let faults: Vec<&str> = said.lines().filter(|line| !line.contains("/usr/bin/dvs is not executable")).collect();
    assert!(faults.is_empty(), "{faults:?}");
}

fn pages_are_well_formed(tree: &Path) {
    if !has("mandoc") {
        eprintln!("SKIPPED: there is no mandoc");
        return;
    }
    let lint =
        "for page in \"$1\"/*.gz; do zcat \"$page\" | mandoc -T lint -W error || { echo \"$page\"; exit 1; }; done";
    done(Command::new("sh").args(["-ec", lint, "sh"]).arg(tree.join("usr/share/man/man1")));
}

/// A Debian of its own, in namespaces of its own: no service manager, no network but itself. Its first process ends
/// with this test, and with it everything in it.
struct System {
    /// Holds the root, and the package beside it.
    place: tempfile::TempDir,
    first: Child,
    /// As the host numbers it.
    inside: u32,
    group: String,
}

/// `$1` is the root, `$2` the name of a group of its own, `$3` the first process. What a machine has before its service
/// manager begins. The root is that of the namespace: in another one the kernel makes no user namespaces.
const FURNISH: &str = "root=$1 group=$2 first=$3
mount --make-rprivate /
mount --bind $root $root
mount -t proc proc $root/proc
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

/// A shell that waits for one child buries all others that it got.
const BURY: &str = "while :; do sleep 1000; done";

impl System {
    /// With nothing that starts anything. `None`: there is no network to fetch it from.
    fn make(suite: &str) -> Option<System> {
        System::make_with(suite, &[], BURY)
    }

    fn make_with(suite: &str, more: &[&str], first: &str) -> Option<System> {
        let place = tempfile::Builder::new().prefix("dvs-t").tempdir_in("/tmp").expect("a directory");
        let root = place.path().join("root");
        let made = Command::new("debootstrap").arg("--variant=minbase").args(more).arg(suite).arg(&root).output();
        let made = made.expect("debootstrap is installed");
        if !made.status.success() {
            eprintln!("SKIPPED: debootstrap made no {suite}, is there a network?\n{}", text(&made));
            return None;
        }
        let group = format!("dvs-package-{}-{suite}", std::process::id());
        let mut process = Command::new("unshare")
            .args(["--mount", "--net", "--pid", "--ipc", "--uts", "--fork", "--kill-child=KILL"])
            .args(["sh", "-ec", FURNISH, "sh"])
            .arg(&root)
            .arg(&group)
            .arg(first)
            .stdout(Stdio::piped())
            .spawn()
            .expect("unshare starts");
        let mut said = String::new();
        BufReader::new(process.stdout.take().expect("a pipe")).read_line(&mut said).expect("a word");
        assert_eq!(said, "furnished\n", "the system was not set up");
        let children = format!("/proc/{0}/task/{0}/children", process.id());
        let children = std::fs::read_to_string(children).expect("it has a child");
        let inside = children.trim().parse().expect("one child");
        Some(System { place, first: process, inside, group })
    }

    fn root(&self) -> PathBuf {
        self.place.path().join("root")
    }

    fn command(&self, script: &str) -> Command {
        let target = self.inside.to_string();
        let mut command = Command::new("timeout");
        command.args(["120", "nsenter", "--target", &target, "--mount", "--net", "--pid", "--ipc", "--uts"]);
        command.args(["--root", "--wdns=/", "env", "-i", "PATH=/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL=C.UTF-8"]);
        command.args(["DEBIAN_FRONTEND=noninteractive", "sh", "-ec", script]);
        command.stdin(Stdio::null());
        command
    }

    /// Output of a script that must succeed in it.
    fn sh(&self, script: &str) -> String {
        done(&mut self.command(script))
    }

    /// As the unit does it, with this test in the place of the service manager. Waits until it serves.
    fn start_daemon(&self, manager: &UnixDatagram) {
        let unit = std::fs::read_to_string(self.root().join("usr/lib/systemd/system/dvsd.service")).expect("a unit");
        let line = unit.lines().find_map(|line| line.strip_prefix("ExecStart=")).expect("what it starts");
        self.sh(&format!("NOTIFY_SOCKET=/notify WATCHDOG_USEC=60000000 setsid {line} >>/root/daemon.log 2>&1 &"));
        let mut bytes = [0; 4096];
        let hear = |bytes: &mut [u8]| manager.recv(bytes).map(|length| bytes[..length].to_vec());
        while hear(&mut bytes).unwrap_or_else(|error| panic!("{error}: {}", self.sh("cat /root/daemon.log")))
            != b"READY=1"
        {}
    }
}

impl Drop for System {
    fn drop(&mut self) {
        let _ = self.first.kill();
        let _ = self.first.wait();
        // Groups are empty a moment after the last process has ended.
        let remove = "for place in /sys/fs/cgroup /sys/fs/cgroup/*; do
            if [ -d $place/$1 ]; then find $place/$1 -depth -type d -exec rmdir {} +; fi; done";
        let is_removed = || Command::new("sh").args(["-ec", remove, "sh", &self.group]).output();
        let began = Instant::now();
        while !is_removed().is_ok_and(|output| output.status.success()) && began.elapsed() < LONG {
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}

#[test]
#[ignore = "fetches two Debian systems"]
fn package_is_installed_used_upgraded_removed_and_purged_in_clean_systems() {
    let place = tempfile::tempdir().expect("a directory");
    let package = package(place.path());
    is_as_the_distribution_wants_it(&package);
    for suite in ["bookworm", "trixie"] {
        let Some(system) = System::make(suite) else { return };
        std::fs::copy(&package, system.root().join("root/dvs.deb")).expect("copied");
        let manager = UnixDatagram::bind(system.root().join("notify")).expect("a socket");
        manager.set_read_timeout(Some(LONG)).expect("a limit");
        let before = system.sh(EVERYTHING);
        installs_and_runs(&system, &manager);
        survives_an_upgrade_and_refuses_to_leave_containers(&system, &manager);
        leaves_nothing(&system, &before);
    }
}

fn is_as_the_distribution_wants_it(package: &Path) {
    if !has("lintian") {
        eprintln!("SKIPPED: there is no lintian");
        return;
    }
    done(Command::new("lintian").args(["--allow-root", "--fail-on", "error,warning"]).arg(package));
}

/// All files but those of this test, of the kernel, and of the package manager.
const EVERYTHING: &str = "find / -xdev \\( -path /proc -o -path /sys -o -path /dev -o -path /tmp -o -path /root -o -path /var/lib/dpkg \
    -o -path /var/log -o -path /notify \\) -prune -o -print | sort";

/// Certificates, and an address at which nobody else is.
const CONFIGURE: &str = "dvs node ca home --out /root/ca >&2
    dvs node cert n1 --ca /root/ca --out /var/lib/dvs/tls --address 127.0.0.1 >&2
    sed -i 's/^#node = .*/node = \"n1\"/; s/^#cluster = .*/cluster = \"home\"/
        s/^#advertise = .*/advertise = \"127.0.0.1\"/' /etc/dvs/dvsd.toml";

fn installs_and_runs(system: &System, manager: &UnixDatagram) {
    system.sh("dpkg -i /root/dvs.deb >&2; test ! -e /run/dvs; test ! -e /var/lib/dvs");
    assert!(system.sh("dvs version").contains("none answers"), "nothing was started");
    let refused = system.command("dvs daemon --config /etc/dvs/dvsd.toml").output().expect("it runs");
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(!refused.status.success() && said.contains("advertise"), "{said}");
    system.sh(CONFIGURE);
    system.start_daemon(manager);
    assert!(system.sh("dvs version").contains("node n1 of cluster home"));
    system.sh("dvs dc create shop --nodes n1 --start >&2");
    assert_eq!(system.sh("dvs run shop -- sh -c 'echo hello > /dc/greeting; cat /dc/greeting'"), "hello\n");
    assert!(system.sh("dvs metrics").contains("dvs_node_info{node=\"n1\",cluster=\"home\"} 1"));
}

fn survives_an_upgrade_and_refuses_to_leave_containers(system: &System, manager: &UnixDatagram) {
    let pid = system.sh("dvs run -d shop -- sleep 100000");
    let upgraded = system.command("dpkg -i /root/dvs.deb").output().expect("it runs");
    assert!(upgraded.status.success(), "{upgraded:?}");
    assert!(String::from_utf8_lossy(&upgraded.stderr).contains("restart it, containers go on"), "{upgraded:?}");
    assert!(system.sh("cat /etc/dvs/dvsd.toml").contains("\nnode = \"n1\"\n"), "the settings are the operator's");
    system.sh(END_DAEMON);
    system.start_daemon(manager);
    assert!(system.sh("dvs ps shop").contains(pid.trim()), "the program went on");

    let refused = system.command("dpkg -r dvs").output().expect("it runs");
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(!refused.status.success() && said.contains("containers run on this node"), "{said}");
    assert!(system.sh("dpkg -s dvs").contains("Status: ") && system.sh("dvs ps shop").contains(pid.trim()));
}

/// And waits for its end: the socket goes last.
const END_DAEMON: &str = "for exe in /proc/[0-9]*; do
        if tr '\\0' ' ' < $exe/cmdline | grep -q '^/usr/bin/dvs daemon '; then kill ${exe#/proc/}; fi
    done
    while [ -S /run/dvs/dvsd.sock ]; do sleep 0.05; done";

fn leaves_nothing(system: &System, before: &str) {
    system.sh("dvs dc delete --force shop >&2");
    let refused = system.command("dpkg -r dvs").output().expect("it runs");
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(!refused.status.success() && said.contains("the node's daemon runs"), "{said}");
    system.sh(END_DAEMON);
    system.sh("dpkg -r dvs >&2; test ! -e /usr/bin/dvs; test -e /etc/dvs/dvsd.toml; test -e /var/lib/dvs/tls/node.crt");
    // Nobody buries them here: what has ended is still listed.
    let processes = system.sh("grep -sh ') [^Z] ' /proc/[0-9]*/stat | cut -d ' ' -f 2");
    assert!(!processes.contains("dvs"), "{processes}");
    system.sh("dpkg -P dvs >&2; test ! -e /run/dvs");
    assert_eq!(system.sh(EVERYTHING), before, "what is there was there before");
    assert_eq!(system.sh("find /sys/fs/cgroup -name 'dvs*'; ip -o link 2>/dev/null | grep dvs || true"), "");
}

/// With the service manager itself in the place of this test. Of Debian 12: the one of Debian 13 wants version 2 of the
/// control groups, which not every machine has.
#[test]
#[ignore = "fetches a Debian system"]
fn service_is_watched_restarted_upgraded_and_removed_by_systemd() {
    let place = tempfile::tempdir().expect("a directory");
    let package = package(place.path());
    let more = ["--include=systemd,systemd-sysv,dbus"];
    let Some(system) = System::make_with("bookworm", &more, "exec /lib/systemd/systemd") else { return };
    std::fs::copy(&package, system.root().join("root/dvs.deb")).expect("copied");
    eventually("systemd runs", LONG, || {
        let said = system.command("systemctl is-system-running").output().expect("it runs");
        ["running\n", "degraded\n"].contains(&text(&said).as_str()).then_some(())
    });
    system.sh("dpkg -i /root/dvs.deb >&2");
    assert_eq!(
        system.sh("systemctl is-enabled dvsd || true; systemctl is-active dvsd || true"),
        "disabled\ninactive\n"
    );
    system.sh(CONFIGURE);
    system.sh("systemctl enable --now dvsd >&2");
    assert!(
        system.sh("systemctl show dvsd -p StatusText").contains("node n1") || system.sh("dvs version").contains("n1")
    );
    system.sh("dvs dc create shop --nodes n1 --start >&2");
    let pid = system.sh("dvs run -d shop -- sleep 100000");
    let daemon = || system.sh("systemctl show dvsd -p MainPID --value");
    let goes_on = |what: &str| assert!(system.sh("dvs ps shop").contains(pid.trim()), "the program went on: {what}");

    let first = daemon();
    system.sh("dpkg -i /root/dvs.deb >&2; test $(systemctl is-active dvsd) = active");
    assert_ne!(daemon(), first, "an upgrade restarts the daemon");
    goes_on("upgrade");
    system.sh("systemctl stop dvsd; systemctl start dvsd");
    goes_on("stop and start");

    system.sh("mkdir -p /etc/systemd/system/dvsd.service.d
        printf '[Service]\nWatchdogSec=2\nTimeoutAbortSec=1\n' > /etc/systemd/system/dvsd.service.d/soon.conf
        systemctl daemon-reload; systemctl restart dvsd");
    let watched = daemon();
    system.sh(&format!("kill -STOP {}", watched.trim()));
    eventually("a daemon that makes no progress is replaced", LONG, || {
        let said = system.sh("systemctl show dvsd -p NRestarts,ActiveState --value | sort | tr '\\n' ' '");
        (said == "1 active " && daemon() != watched).then_some(())
    });
    goes_on("watchdog");

    let refused = system.command("dpkg -r dvs").output().expect("it runs");
    assert!(!refused.status.success() && system.sh("systemctl is-active dvsd") == "active\n", "{refused:?}");
    goes_on("refused removal");
    system.sh("dvs dc delete --force shop >&2; dpkg -P dvs >&2");
    assert_eq!(system.sh("ls -d /etc/dvs /var/lib/dvs /run/dvs /usr/bin/dvs 2>/dev/null || true"), "");
    assert!(!system.sh("grep -sh ') [^Z] ' /proc/[0-9]*/stat | cut -d ' ' -f 2").contains("dvs"));
}
