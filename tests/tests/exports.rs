//! Disks of a container over NBD, for clients of others.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use end_to_end::nbd::{certificates, has};
use end_to_end::{Cluster, dvs_binary, eventually, has_etcd};
use serde_json::Value;

const SOON: Duration = Duration::from_secs(30);
const DC: &str = r#"
name = "shop"
nodes = ["n1", "n2", "n3"]

[[disks]]
name = "root"
bytes = 67108864
node = "n1"
replicas = 1

[[disks]]
name = "data"
bytes = 67108864
node = "n2"
replicas = 2
"#;

/// Of a program on a node's machine.
fn on(cluster: &Cluster, node: &str, words: &[&str]) -> (bool, String) {
    let done = cluster.output(&[&["dev", "exec", node, "--", "timeout", "60"], words].concat());
    let (said, error) = (String::from_utf8_lossy(&done.stdout), String::from_utf8_lossy(&done.stderr));
    (done.status.success(), format!("{said}{error}"))
}

fn ok(cluster: &Cluster, node: &str, words: &[&str]) -> String {
    let (fine, said) = on(cluster, node, words);
    assert!(fine, "{words:?} on {node}: {said}{}", cluster.logs());
    said
}

fn qemu_io(cluster: &Cluster, node: &str, uri: &str, steps: &[&str]) {
    let steps: Vec<&str> = steps.iter().flat_map(|step| ["-c", step]).collect();
    let said = ok(cluster, node, &[&["qemu-io", "-f", "raw", uri][..], &steps].concat());
    assert!(!said.contains("verification failed"), "{said}");
}

fn inspect(cluster: &Cluster) -> Value {
    cluster.json(&["dc", "inspect", "shop", "-o", "json"])
}

fn gate_node(cluster: &Cluster) -> Option<String> {
    let placed = inspect(cluster)["placement"]["instances"].as_array().cloned().unwrap_or_default();
    placed.iter().find(|one| one["kind"] == "nbd").and_then(|one| one["node"].as_str()).map(str::to_owned)
}

fn address(cluster: &Cluster, node: &str) -> String {
    let nodes = cluster.json(&["node", "ls", "-o", "json"]);
    let of = nodes.as_array().expect("a list").iter().find(|one| one["name"] == node).cloned();
    of.expect("a node")["address"].as_str().expect("an address").to_owned()
}

fn shop() -> Option<Cluster> {
    if !has_etcd() || !has("nbdinfo", "libnbd-bin") || !has("qemu-io", "qemu-utils") {
        return None;
    }
    let cluster = Cluster::up_with(3, &["--engine", "etcd"]);
    let file = cluster.state_dir().join("dc.toml");
    std::fs::write(&file, DC).expect("written");
    cluster.ok(&["dc", "create", "-f", file.to_str().expect("text"), "--start"]);
    Some(cluster)
}

#[test]
fn disk_of_a_container_is_one_for_clients_of_others_wherever_it_goes() {
    let Some(cluster) = shop() else { return };
    let said = cluster.ok(&["disk", "export", "shop"]);
    assert_eq!(gate_node(&cluster).as_deref(), Some("n2"), "{said}: beside the disk");
    let here = "nbd://127.0.0.1:10809/data";
    let listed = ok(&cluster, "n2", &["nbdinfo", "--list", "nbd://127.0.0.1:10809"]);
    assert!(listed.contains("export=\"data\"") && !listed.contains("export=\"root\""), "{listed}");
    for what in ["can_multi_conn: true", "can_fua: true", "can_trim: true", "is_read_only: false"] {
        assert!(listed.contains(what), "{listed}");
    }
    let path = |name: &str| cluster.state_dir().join(name).to_str().expect("text").to_owned();
    let (random, back) = (path("random"), path("back"));
    ok(&cluster, "n2", &["sh", "-c", &format!("head -c 40000000 /dev/urandom > {random}")]);
    ok(&cluster, "n2", &["nbdcopy", "--connections=4", &random, here]);
    // Nobody has read what was not written: what a host has in its page cache it takes for data.
    let map = ok(&cluster, "n2", &["nbdinfo", "--map", here]);
    let state = |at: u64| {
        let ranges = map.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
        let number = |word: &str| word.parse::<u64>().expect("a number");
        let found = ranges.filter(|range| (number(range[0])..number(range[0]) + number(range[1])).contains(&at));
        found.map(|range| number(range[2])).next()
    };
    assert_eq!((state(0), state(30 << 20), state(50 << 20)), (Some(0), Some(0), Some(3)), "{map}");
    ok(&cluster, "n2", &["nbdcopy", "--connections=4", here, &back]);
    ok(&cluster, "n2", &["cmp", "-n", "40000000", &random, &back]);
    let steps = ["write -P 7 205k 3k", "read -P 7 205k 3k", "write -f -P 9 1M 64k", "discard 0 64k", "read -P 0 0 64k"];
    qemu_io(&cluster, "n2", here, &[&steps[..], &["write -z 2M 1M", "read -P 0 2M 1M", "flush"]].concat());

    // The tree's disk is only read, and is the image of a file system that is mounted.
    cluster.ok(&["disk", "export", "shop", "data", "root", "--node", "n3", "--listen", "0.0.0.0:10809"]);
    assert_eq!(gate_node(&cluster).as_deref(), Some("n3"));
    assert!(!on(&cluster, "n2", &["nbdinfo", "--size", here]).0, "nobody listens where it was");
    let there = format!("nbd://{}:10809", address(&cluster, "n3"));
    let (data, root) = (format!("{there}/data"), format!("{there}/root"));
    assert!(ok(&cluster, "n1", &["nbdinfo", &root]).contains("is_read_only: true"));
    ok(&cluster, "n1", &["nbdcopy", &root, &back]);
    assert!(!on(&cluster, "n1", &["qemu-io", "-f", "raw", &root, "-c", "write 0 4k"]).0);
    qemu_io(&cluster, "n1", &data, &["read -P 7 205k 3k", "read -P 9 1M 64k"]);

    // One connection goes on while disk and gate's daemon are killed, and the disk's node is lost.
    let writes: Vec<String> = (1..100)
        .flat_map(|count| {
            let write = format!("write -P {count} {}k 64k", 3 * 1024 + 64 * count);
            [write, if count % 8 == 0 { "flush" } else { "sleep 100" }.to_owned()]
        })
        .collect();
    let words = ["dev", "exec", "n1", "--", "timeout", "100", "qemu-io", "-f", "raw", &data];
    let steps: Vec<&str> = writes.iter().flat_map(|step| ["-c", step.as_str()]).collect();
    let client = cluster.spawn(&[&words[..], &steps, &["-c", "flush"]].concat());
    for _ in 0..3 {
        std::thread::sleep(Duration::from_millis(700));
        if let Some(pid) = cluster.server_pid("shop", "n2", "disk-data") {
            cluster.kill("n2", pid);
        }
    }
    await_copies(&cluster, "data");
    cluster.ok(&["dev", "kill", "n2"]);
    let done = client.wait_with_output().expect("it ends");
    let said = String::from_utf8_lossy(&done.stdout).into_owned() + &String::from_utf8_lossy(&done.stderr);
    assert!(done.status.success() && !said.contains("error"), "{said}{}", cluster.logs());
    let reads: Vec<String> = (1..100).map(|count| format!("read -P {count} {}k 64k", 3 * 1024 + 64 * count)).collect();
    qemu_io(&cluster, "n1", &data, &reads.iter().map(String::as_str).collect::<Vec<_>>());

    cluster.ok(&["disk", "unexport", "shop"]);
    assert_eq!(gate_node(&cluster), None);
    assert!(!on(&cluster, "n1", &["nbdinfo", "--size", &data]).0);
    assert!(inspect(&cluster)["spec"]["nbd"].is_null());
    // Whoever comes later is not taken for who was before.
    cluster.ok(&["disk", "export", "shop", "data", "--node", "n1"]);
    qemu_io(&cluster, "n1", here, &["write -P 1 0 4k", "read -P 1 0 4k"]);
}

/// `$1`: dvs; `$2`: a directory. A file system of the kernel on the disk, used, unmounted, and looked at.
const ON_A_LOOP: &str = r#"
mkdir -p "$2" "$2.fs"
"$1" disk mount shop data "$2" > "$2.said" 2>&1 & server=$!
loop=
at=$2
undo() { umount "$at.fs" 2>/dev/null || true; test -z "$loop" || losetup --detach "$loop"; umount "$at" || true; wait $server || cat "$at.said"; }
trap undo EXIT
trap 'exit 1' TERM
until test -e "$2/disk"; do kill -0 $server; sleep 0.05; done
loop=$(losetup --find --show "$2/disk")
if test "$3" = make; then mkfs.ext4 -q "$loop"; fi
mount "$loop" "$2.fs"
if test "$3" = make; then tar c -C /etc . | tar x -C "$2.fs"; rm -rf "$2.fs/ssl"; fallocate -l 8M "$2.fs/long"; fi
sync
(cd "$2.fs" && find . -type f | sort | xargs -d '\n' sha256sum)
umount "$2.fs"
e2fsck -fn "$loop" >&2
"#;

#[test]
fn disk_is_a_file_on_which_a_file_system_of_the_kernel_works() {
    let Some(cluster) = shop() else { return };
    if !has("mkfs.ext4", "e2fsprogs") || !has("losetup", "mount") {
        return;
    }
    let at = cluster.state_dir().join("shown").to_string_lossy().into_owned();
    let (binary, socket) = (dvs_binary(), cluster.socket_of("n2"));
    let socket = format!("DVS_SOCKET={}", socket.display());
    let dvs = binary.to_str().expect("text");
    std::fs::create_dir(&at).expect("a directory");
    let mount = |disk: &str| on(&cluster, "n2", &["env", &socket, dvs, "disk", "mount", "shop", disk, &at]);
    let (fine, said) = mount("data");
    assert!(!fine && said.contains("not served over NBD") && said.contains("dvs disk export shop data"), "{said}");
    let (fine, said) = mount("nope");
    assert!(!fine && said.contains("has no disk 'nope'"), "{said}");
    cluster.ok(&["disk", "export", "shop", "data"]);
    let work = |what: &str| ok(&cluster, "n2", &["env", &socket, "sh", "-ec", ON_A_LOOP, "sh", dvs, &at, what]);
    let made = work("make");
    assert!(made.lines().filter(|line| line.contains("  ./")).count() > 20, "{made}");
    // Where the disk stands is no matter of the file, nor whether it is the same mount.
    cluster.ok(&["disk", "replica", "promote", "shop", "data", other_copy(&cluster).as_str()]);
    let found = work("look");
    let sums = |said: &str| said.lines().filter(|line| line.contains("  ./")).map(str::to_owned).collect::<Vec<_>>();
    assert_eq!(sums(&found), sums(&made));
}

/// The node of the disk's copy that is not the primary, once it has everything.
fn other_copy(cluster: &Cluster) -> String {
    await_copies(cluster, "data");
    let disk = cluster.json(&["disk", "inspect", "shop", "data", "-o", "json"]);
    let copies = disk["copies"].as_array().expect("copies").clone();
    let other = copies.iter().find(|copy| copy["state"] == "current").expect("another one");
    other["node"].as_str().expect("a node").to_owned()
}

#[test]
fn what_cannot_be_exported_is_refused_and_changes_nothing() {
    let Some(cluster) = shop() else { return };
    let fails = |words: &[&str], status: i32, told: &str| {
        let (got, said) = cluster.fails(&[&["disk", "export", "shop"], words].concat());
        assert!(got == status && said.contains(told), "{words:?}: {got} {said}");
        assert!(inspect(&cluster)["spec"]["nbd"].is_null() && gate_node(&cluster).is_none(), "{words:?}");
    };
    fails(&["nope"], 1, "its disks are root, data");
    fails(&["data", "data"], 1, "named twice");
    fails(&["--node", "n9"], 1, "n9");
    fails(&["--listen", "127.0.0.1:0"], 1, "port 0");
    fails(&["--listen", "192.0.2.1:10809"], 1, "nobody can connect at 192.0.2.1:10809");
    fails(&["--listen", "nowhere"], 2, "nowhere");
    fails(&["--tls"], 1, "nbd/ca-cert.pem");
    let held = "import os, socket, time; s = socket.create_server(('127.0.0.1', 10809)); \
                print(os.getpid(), flush=True); time.sleep(90)";
    let mut taken = cluster.command_without_limit(&["dev", "exec", "n2", "--", "python3", "-c", held]);
    let mut taken = taken.stdout(Stdio::piped()).spawn().expect("it starts");
    let mut pid = String::new();
    BufReader::new(taken.stdout.take().expect("a pipe")).read_line(&mut pid).expect("it listens");
    fails(&[], 1, "in use");
    cluster.kill("n2", pid.trim().parse().expect("a number"));
    taken.wait().expect("it ends");

    // With certificates, for who has one.
    let dir = cluster.path_of("n2", "state_dir").join("nbd");
    certificates(Path::new(&dir), &["server", "client"]);
    cluster.ok(&["disk", "export", "shop", "--tls"]);
    let uri = "nbds://127.0.0.1:10809/data";
    let known = format!("{uri}?tls-certificates={}", dir.display());
    assert!(ok(&cluster, "n2", &["nbdinfo", &known]).contains("with TLS"));
    for stranger in [uri, "nbd://127.0.0.1:10809/data"] {
        assert!(!on(&cluster, "n2", &["nbdinfo", "--size", stranger]).0, "{stranger}");
    }
    // It is there again after a restart, as everything that a container is.
    cluster.ok(&["dc", "stop", "shop"]);
    cluster.ok(&["dc", "start", "shop"]);
    eventually("it is served again", SOON, || on(&cluster, "n2", &["nbdinfo", "--size", &known]).0.then_some(()));
}

/// Files on a node whose names begin so, among images.
fn images(cluster: &Cluster, node: &str, name: &str) -> Vec<String> {
    let dir = cluster.path_of(node, "state_dir");
    let found = std::process::Command::new("find").arg(&dir).args(["-path", &format!("*/images/{name}.*")]).output();
    let found = String::from_utf8_lossy(&found.expect("find").stdout).into_owned();
    found.lines().map(str::to_owned).collect()
}

fn promised(cluster: &Cluster) -> Value {
    inspect(cluster)["placement"]["promised"].clone()
}

fn await_copies(cluster: &Cluster, disk: &str) {
    eventually("all copies have everything", SOON, || {
        let disk = cluster.json(&["disk", "inspect", "shop", disk, "-o", "json"]);
        let copies = disk["copies"].as_array()?.clone();
        let has_all = |copy: &Value| copy["state"] == "primary" || copy["state"] == "current";
        (copies.len() == 2 && copies.iter().all(has_all)).then_some(())
    });
}

#[test]
fn disks_come_grow_and_go_while_their_container_runs() {
    let Some(cluster) = shop() else { return };
    let before = promised(&cluster);
    let create = ["disk", "create", "shop", "more", "--size", "64M", "--replicas", "2", "--node", "n3"];
    cluster.ok(&create);
    cluster.ok(&create);
    let fails = |words: &[&str], told: &str| {
        let is = inspect(&cluster);
        let (got, said) = cluster.fails(&[&["disk"], words].concat());
        assert!(got == 1 && said.contains(told), "{words:?}: {got} {said}");
        assert_eq!(
            (&inspect(&cluster)["spec"], promised(&cluster)),
            (&is["spec"], is["placement"]["promised"].clone())
        );
    };
    fails(&["create", "shop", "more", "--size", "65M"], "has a disk 'more' already");
    fails(&["create", "shop", "root", "--size", "64M"], "already");
    fails(&["create", "shop", "other", "--size", "1M"], "a disk has 16M");
    fails(&["create", "shop", "other", "--size", "64M", "--replicas", "4"], "1 to 3");
    fails(&["create", "shop", "other", "--size", "4T"], "do not fit");
    fails(&["create", "shop", "other", "--size", "64M", "--node", "n9"], "n9");

    cluster.ok(&["disk", "export", "shop", "more", "--node", "n1"]);
    let uri = "nbd://127.0.0.1:10809/more";
    qemu_io(&cluster, "n1", uri, &["write -f -P 1 0 1M", "write -P 2 63M 1M", "flush"]);
    cluster.ok(&["disk", "resize", "shop", "more", "160M"]);
    cluster.ok(&["disk", "resize", "shop", "more", "160M"]);
    eventually("the gate is there again", SOON, || {
        (on(&cluster, "n1", &["nbdinfo", "--size", uri]).1.trim() == (160 << 20).to_string()).then_some(())
    });
    let all = ["read -P 1 0 1M", "read -P 2 63M 1M", "read -P 0 64M 95M"];
    qemu_io(&cluster, "n1", uri, &[&all[..], &["write -f -P 3 159M 1M"]].concat());
    fails(&["resize", "shop", "more", "64M"], "is not made smaller");
    fails(&["resize", "shop", "more", "4T"], "do not fit");
    for name in ["more", "disk-more"] {
        fails(&["resize", "shop", name, "167772161"], "in steps of 4096 bytes");
    }
    fails(&["delete", "shop", "root"], "its file tree is on it");
    fails(&["delete", "shop", "more"], "is served over NBD");
    fails(&["delete", "shop", "none"], "one of root, data, more");

    // The other copy has all of it, also behind the earlier end.
    await_copies(&cluster, "more");
    cluster.ok(&["dev", "kill", "n3"]);
    qemu_io(&cluster, "n1", uri, &[&all[..], &["read -P 3 159M 1M", "write -P 4 158M 1M"]].concat());
    cluster.ok(&["disk", "unexport", "shop"]);
    let (status, said) = cluster.fails(&["disk", "delete", "shop", "more"]);
    assert!(status != 0 && said.contains("node n3") && said.contains("--force"), "{said}");
    cluster.ok(&["dev", "restart", "n3"]);
    await_copies(&cluster, "more");
    cluster.ok(&["disk", "delete", "shop", "more"]);
    for node in ["n1", "n2", "n3"] {
        assert_eq!(images(&cluster, node, "more"), [] as [String; 0]);
    }
    assert_eq!(promised(&cluster), before);

    // One of its name is another one; one without copies grows, and is there after a restart.
    cluster.ok(&["disk", "create", "shop", "more", "--size", "32M", "--node", "n1", "--replicas", "1", "--sparse"]);
    cluster.ok(&["disk", "export", "shop", "more"]);
    qemu_io(&cluster, "n1", uri, &["read -P 0 0 32M", "write -f -P 5 31M 1M"]);
    cluster.ok(&["disk", "resize", "shop", "more", "48M"]);
    cluster.ok(&["dc", "stop", "shop"]);
    cluster.ok(&["disk", "resize", "shop", "more", "64M"]);
    fails(&["delete", "shop", "more"], "served over NBD");
    cluster.ok(&["dc", "start", "shop"]);
    eventually("it is as it was made", SOON, || {
        (on(&cluster, "n1", &["nbdinfo", "--size", uri]).1.trim() == (64 << 20).to_string()).then_some(())
    });
    qemu_io(&cluster, "n1", uri, &["read -P 5 31M 1M", "read -P 0 32M 32M", "write -f -P 6 63M 1M"]);
    cluster.ok(&["disk", "unexport", "shop"]);
    cluster.ok(&["disk", "delete", "shop", "more"]);
    assert_eq!(images(&cluster, "n1", "more"), [] as [String; 0]);
    assert_eq!(promised(&cluster), before);
}
