//! The Debian package: what is in it, and what it does in a clean system.

use std::collections::BTreeSet;
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use end_to_end::debian::{BURY, Root, SYSTEMD, System, WITH_SYSTEMD, done, has, package, text};
use end_to_end::eventually;

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

/// As the unit does it, with this test in the place of the service manager. Waits until it serves.
fn start_daemon(system: &System, manager: &UnixDatagram) {
    let unit = std::fs::read_to_string(system.root().join("usr/lib/systemd/system/dvsd.service")).expect("a unit");
    let line = unit.lines().find_map(|line| line.strip_prefix("ExecStart=")).expect("what it starts");
    system.sh(&format!("NOTIFY_SOCKET=/notify WATCHDOG_USEC=60000000 setsid {line} >>/root/daemon.log 2>&1 &"));
    let mut bytes = [0; 4096];
    let hear = |bytes: &mut [u8]| manager.recv(bytes).map(|length| bytes[..length].to_vec());
    while hear(&mut bytes).unwrap_or_else(|error| panic!("{error}: {}", system.sh("cat /root/daemon.log")))
        != b"READY=1"
    {}
}

#[test]
#[ignore = "fetches two Debian systems"]
fn package_is_installed_used_upgraded_removed_and_purged_in_clean_systems() {
    let place = tempfile::tempdir().expect("a directory");
    let package = package(place.path());
    is_as_the_distribution_wants_it(&package);
    for suite in ["bookworm", "trixie"] {
        let Some(root) = Root::make(suite, &[]) else { return };
        let system = root.boot("debian", BURY);
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
    start_daemon(system, manager);
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
    start_daemon(system, manager);
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
    let Some(root) = Root::make("bookworm", &[WITH_SYSTEMD]) else { return };
    let system = root.boot("debian", SYSTEMD);
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
