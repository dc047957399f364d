//! What a program sees and can reach of the host: nothing it should not. With real namespaces.

mod support;

use std::io::{Read, Write};
use std::os::fd::{AsFd, AsRawFd};
use std::time::Duration;

use keeper::{FuseOptions, KeeperError};
use mgmt_api::RootFs;
use support::{Keeper, is_root, request};

#[test]
fn no_path_of_the_host_is_left() {
    if !is_root() {
        return;
    }
    // A file that only the host has, in the directory where the tree was built and where the test's files are.
    let secret = tempfile::NamedTempFile::new_in("/tmp").expect("file");
    let name = secret.path().file_name().and_then(|name| name.to_str()).expect("name").to_owned();
    let keeper = Keeper::start();
    let found = keeper.shell(&format!("find / -xdev -name '{name}'; ls /tmp; for d in /proc/[0-9]*/root /proc/[0-9]*/cwd; do ls $d/tmp; done 2>/dev/null | grep -c {name}"));
    assert_eq!(String::from_utf8_lossy(&found.stdout), "0\n", "{found:?}");
    let mounts = keeper.shell("awk '{print $5}' /proc/self/mountinfo | sort").text();
    let mounts: Vec<&str> = mounts.lines().collect();
    for mount in &mounts {
        let known = [
            "/",
            "/usr",
            "/opt",
            "/proc",
            "/sys",
            "/dev/pts",
            "/dev/mqueue",
            "/dev/shm",
            "/tmp",
            "/var",
            "/run",
            "/root",
            "/home",
            "/srv",
        ];
        let system = ["/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32"];
        let below_system =
            known.iter().chain(&system).any(|known| *known != "/" && mount.starts_with(&format!("{known}/")));
        assert!(known.contains(mount) || system.contains(mount) || below_system, "{mount}");
    }
    // The host's processes are not there, and init's root is the container's.
    assert_eq!(keeper.shell("ls /proc | grep -E '^[0-9]+$' | awk '$1 != 1 && $1 < 131072' | wc -l").text(), "0");
}

#[test]
fn system_directories_look_as_they_should_and_cannot_be_changed() {
    if !is_root() {
        return;
    }
    let keeper = Keeper::start();
    assert_eq!(
        keeper.shell("stat -c %u:%g /usr /usr/bin/env /etc/passwd / /dev/null /tmp /root").text(),
        ["0:0"; 7].join("\n")
    );
    for attempt in [
        "touch /usr/x",
        "touch /x",
        "touch /etc/x",
        "mount -o remount,rw /usr",
        "mount -o remount,bind,rw /usr",
        "mount -o remount,bind,rw /",
        "mount -o remount,bind,rw /sys",
        "umount -l /usr",
        "umount -l /proc",
        "mknod /tmp/disk b 254 0",
        "echo 1 > /proc/sys/kernel/sysrq",
        "echo c > /proc/sysrq-trigger",
        "cat /etc/shadow",
        "unshare -m sh -c 'mount -o remount,bind,rw /usr'",
        "mount --bind /usr /mnt && mount -o remount,bind,rw /mnt",
    ] {
        let ended = keeper.shell(attempt);
        assert!(ended.exit != Some(0), "{attempt}: {ended:?}");
    }
    assert!(!std::path::Path::new("/usr/x").exists());
    assert_eq!(
        keeper
            .shell("for d in /tmp /var/tmp /run /root /home /dev/shm; do touch $d/x && rm $d/x; done; echo ok")
            .text(),
        "ok"
    );
}

#[test]
fn container_has_its_own_names() {
    if !is_root() {
        return;
    }
    let keeper = Keeper::start();
    assert_eq!(
        keeper.shell("cat /etc/hostname; grep n1 /etc/hosts; readlink /etc/mtab").text(),
        "shop\n10.1.0.1\tn1\n../proc/self/mounts"
    );
    assert_eq!(keeper.shell("ls /sys/class/net").text(), "lo");
    assert_eq!(keeper.shell("cat /sys/class/net/lo/operstate /proc/sys/kernel/pid_max").text(), "unknown\n196608");
    assert_eq!(keeper.shell("ls -ln /dev | awk '$1 ~ /^c/ {print $10, $3, $1}' | sort").text().lines().count(), 6);
    assert_eq!(
        keeper
            .shell(
                "head -c 4 /dev/zero | od -An -tx1; echo x > /dev/null; ls /dev/fd/0 > /dev/full && echo bad || true"
            )
            .stdout,
        b" 00 00 00 00\n"
    );
}

#[test]
fn socket_directory_of_the_broker_is_seen_inside() {
    if !is_root() {
        return;
    }
    let dir = tempfile::tempdir().expect("directory");
    let ipc = dir.path().to_owned();
    let keeper = Keeper::start_with(|options| options.ipc_dir = Some(ipc));
    // Made after the container: the directory is seen, not a copy.
    let listener = std::os::unix::net::UnixListener::bind(dir.path().join("m3ipc")).expect("bind");
    std::fs::set_permissions(dir.path().join("m3ipc"), std::os::unix::fs::PermissionsExt::from_mode(0o666))
        .expect("mode");
    assert_eq!(keeper.shell("ls /run/dvs; test -S /run/dvs/m3ipc && echo socket").text(), "bin\nlib\nm3ipc\nsocket");
    drop(listener);
}

#[test]
fn keeper_and_init_cannot_be_traced_or_killed_from_inside() {
    if !is_root() {
        return;
    }
    let keeper = Keeper::start();
    for attempt in
        ["ls /proc/1/fd", "readlink /proc/1/exe", "ls /proc/1/root/", "cat /proc/1/environ", "head -c1 /proc/1/mem"]
    {
        let ended = keeper.shell(attempt);
        assert!(ended.exit != Some(0), "{attempt}: {ended:?}");
    }
    assert_eq!(keeper.shell("kill -9 1; kill -TERM 1; kill -INT 1; echo still").text(), "still");
    assert_eq!(keeper.shell("echo here").text(), "here");
}

#[test]
fn storm_of_forks_stays_inside_the_range_and_repeats_no_living_pid() {
    if !is_root() {
        return;
    }
    // The same arithmetic as with 65,536, many wraps in little time.
    let span = 2048;
    let keeper = Keeper::start_with(|options| options.pid_span = span);
    // A sleeper keeps a number in the middle of the way; every shell's number is printed by a child that lives for
    // itself.
    let script =
        "sleep 1000 & echo $!; i=0; while [ $i -lt 12000 ]; do i=$((i+1)); : & echo $!; wait $!; done; kill %1";
    let text = keeper.shell(script).stdout;
    let text = String::from_utf8(text).expect("text");
    let pids: Vec<u32> = text.lines().map(|line| line.parse().expect("pid")).collect();
    assert_eq!(pids.len(), 12_001);
    let (sleeper, others) = pids.split_first().expect("sleeper");
    let base = keeper.options.pid_base;
    assert!(
        pids.iter().all(|pid| (base..base + span).contains(pid)),
        "{:?}",
        pids.iter().find(|pid| !(base..base + span).contains(pid))
    );
    assert!(!others.contains(sleeper), "a living number was given again");
    let wraps = others.windows(2).filter(|pair| pair[1] < pair[0]).count();
    assert!(wraps >= 5, "{wraps}");
}

#[test]
fn program_with_a_root_in_the_tree_sees_only_that_and_the_containers_own() {
    if !is_root() {
        return;
    }
    let keeper = Keeper::start();
    // A tree in place of the file gate: a directory mounted at /dc from inside, in the namespaces all programs share.
    let ended = keeper.shell("mount --bind /root /dc && mkdir -p /dc/img/bin /dc/img/etc && cp /bin/busybox /dc/img/bin/ && echo old > /dc/img/etc/hosts && echo mine > /dc/img/mine");
    assert_eq!(ended.exit, Some(0), "{ended:?}");
    let mut run = request(&[
        "/bin/busybox",
        "sh",
        "-c",
        "cd /; for x in *; do echo $x; done; cat /mine; /bin/busybox grep -c n1 /etc/hosts; /bin/busybox id -u; pwd; test -e /usr/bin/env || echo no-host; /bin/busybox ls /dc/img/mine; /bin/busybox cat /proc/mounts | /bin/busybox grep -c ' /usr '",
    ]);
    run.root = RootFs::Tree("/img".into());
    let ended = keeper.run(&run).expect("run");
    assert_eq!(
        String::from_utf8_lossy(&ended.stdout),
        "bin\ndc\ndev\netc\nmine\nproc\nrun\nsys\ntmp\nmine\n1\n0\n/\nno-host\n/dc/img/mine\n0\n",
        "{ended:?}"
    );
    run.root = RootFs::Tree("../..".into());
    assert!(keeper.client.run(&run, None).is_err());
    run.root = RootFs::Tree("/nowhere".into());
    assert!(keeper.client.run(&run, None).is_err());
}

/// A gate that knows one empty directory: enough to see that the mount belongs to the container.
fn serve_root_directory(fuse: std::os::fd::OwnedFd) {
    let mut fuse = std::fs::File::from(fuse);
    let mut request = vec![0; 1 << 20];
    loop {
        support::wait_for(&[&fuse.try_clone().expect("clone").into()]);
        let got = match fuse.read(&mut request) {
            Ok(got) => got,
            Err(error) if error.raw_os_error() == Some(libc::ENODEV) => return,
            Err(error) if error.raw_os_error() == Some(libc::EAGAIN) => continue,
            Err(error) => panic!("{error}"),
        };
        let word = |at: usize| u32::from_ne_bytes(request[at..at + 4].try_into().expect("word"));
        let (opcode, unique) = (word(4), request[8..16].to_vec());
        let uid = word(24);
        assert!(got >= 40 && (uid == 0 || opcode == 26), "request {opcode} of uid {uid}");
        let attributes = {
            let mut attributes = vec![0; 88];
            attributes[0] = 1;
            attributes[60..64].copy_from_slice(&0o40755_u32.to_ne_bytes());
            attributes[64..68].copy_from_slice(&2_u32.to_ne_bytes());
            attributes
        };
        let body: Option<Vec<u8>> = match opcode {
            // INIT: version 7.31, no features, read-ahead of 4 MiB (more would be cut to it), writes of 4 KiB.
            26 => Some(
                [7_u32, 31, 4 << 20, 0, 0, 4096, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]
                    .iter()
                    .flat_map(|word| word.to_ne_bytes())
                    .collect(),
            ),
            // GETATTR: valid for no time.
            3 => Some([vec![0; 16], attributes].concat()),
            // OPENDIR and READDIR: nothing in it.
            27 => Some(vec![0; 16]),
            28 => Some(Vec::new()),
            29 => Some(Vec::new()),
            // LOOKUP of anything: no such file.
            _ => None,
        };
        let (error, body) = body.map_or((-libc::ENOENT, Vec::new()), |body| (0, body));
        let header = [((16 + body.len()) as u32).to_ne_bytes().to_vec(), error.to_ne_bytes().to_vec(), unique].concat();
        // The one who asked may be gone.
        let _ = fuse.write(&[header, body].concat());
    }
}

#[test]
fn file_tree_belongs_to_the_container_and_its_mount_can_be_renewed() {
    if !is_root() {
        return;
    }
    let keeper = Keeper::start();
    let nobody_mounts = Duration::from_millis(50);
    for _ in 0..2 {
        assert!(matches!(keeper.client.wait_for_tree(nobody_mounts), Err(KeeperError::NoTree { .. })));
        let another = keeper.connect();
        let waits = std::thread::spawn(move || another.wait_for_tree(Duration::from_secs(10)));
        let fuse = keeper.client.mount_fuse(&FuseOptions::default()).expect("mount");
        waits.join().expect("a thread").expect("the tree is there");
        let gate = std::thread::spawn(move || serve_root_directory(fuse));
        assert_eq!(
            keeper
                .shell("stat -c '%u %g %A' /dc; ls /dc | wc -l; awk '$5 == \"/dc\"' /proc/self/mountinfo | wc -l")
                .text(),
            "0 0 drwxr-xr-x\n0\n1"
        );
        let device = keeper.shell("awk '$5 == \"/dc\" {print $3}' /proc/self/mountinfo").text();
        let ahead = std::fs::read_to_string(format!("/sys/class/bdi/{device}/read_ahead_kb")).expect("bdi");
        assert_eq!(ahead.trim(), "4096");
        assert!(keeper.client.status().expect("status").fuse_mounted);
        let stored = keeper.client.fetch(keeper::FUSE_KEY).expect("fetch").expect("stored");
        assert!(stored.as_fd().as_raw_fd() > 2);
        drop(stored);
        keeper.client.unmount_fuse().expect("unmount");
        gate.join().expect("gate");
    }
    assert!(!keeper.client.status().expect("status").fuse_mounted);
}
