//! A disk with copies, and the file server on it, go on elsewhere when their node is lost; programs wait meanwhile.

use std::io::{BufRead, Write};
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use end_to_end::{Cluster, eventually, has_etcd};

const SOON: Duration = Duration::from_secs(30);
/// A write that takes longer has met something else than the loss of a node.
const PAUSE_MS_MAX: u64 = 10_000;
/// Appends numbered lines and makes them durable, for so many seconds; says whether all are there, in order, and how
/// long the slowest took.
const WRITER: &str = r#"
import os, sys, time
file, count, slowest, end = os.open("/dc/log", os.O_CREAT | os.O_WRONLY | os.O_APPEND), 0, 0, time.time() + 15
while time.time() < end:
    begin = time.time()
    os.write(file, b"%08d\n" % count)
    if count % 10 == 0:
        os.fsync(file)
    count, slowest = count + 1, max(slowest, time.time() - begin)
    time.sleep(0.002)
lines = open("/dc/log").read().split()
print(count, lines == ["%08d" % line for line in range(count)], int(slowest * 1000))
"#;

/// What came of [`WRITER`], all of whose lines are there, in order: how many, and the milliseconds of the slowest.
fn written(cluster: &Cluster, writer: Child) -> (String, u64) {
    let said = writer.wait_with_output().expect("it ends");
    let said = String::from_utf8_lossy(&said.stdout).into_owned();
    let words: Vec<&str> = said.split_whitespace().collect();
    let [lines, "True", slowest] = words[..] else { panic!("{said}{}", cluster.logs()) };
    (lines.to_owned(), slowest.parse().expect("a number"))
}

fn inspect(cluster: &Cluster) -> serde_json::Value {
    cluster.json(&["dc", "inspect", "shop", "-o", "json"])
}

/// Nodes of copies in this state.
fn copies(cluster: &Cluster, state: &str) -> Vec<String> {
    let all = inspect(cluster)["copies"][0]["copies"].as_array().cloned().unwrap_or_default();
    let there = all.iter().filter(|copy| copy["state"] == state);
    there.map(|copy| copy["node"].as_str().unwrap_or_default().to_owned()).collect()
}

fn await_copies(cluster: &Cluster, primary: &str, current: &[&str]) {
    eventually(&format!("the primary on {primary}, and current on {current:?}"), SOON, || {
        (copies(cluster, "primary") == [primary] && copies(cluster, "current") == current).then_some(())
    });
}

fn node_of(cluster: &Cluster, server: &str) -> String {
    let placed = inspect(cluster)["placement"]["instances"].as_array().cloned().unwrap_or_default();
    let found = placed.iter().find(|one| one["name"] == server).and_then(|one| one["node"].as_str());
    found.unwrap_or_default().to_owned()
}

#[test]
fn servers_stand_where_people_want_them_and_programs_notice_a_pause() {
    if !has_etcd() {
        return;
    }
    let cluster = Cluster::up_with(3, &["--engine", "etcd"]);
    let create =
        ["dc", "create", "shop", "--nodes", "n1,n2,n3", "--disk", "64M", "--disk-node", "n1", "--replicas", "2"];
    cluster.ok(&[&create[..], &["--ds-node", "n3", "--start"]].concat());
    await_copies(&cluster, "n1", &["n2"]);
    let run = ["run", "shop", "--node", "n3", "--", "python3", "-c", WRITER];
    let writer = cluster.spawn(&run);
    let places = || [node_of(&cluster, "fs"), node_of(&cluster, "disk-root")];
    for (server, to, fs, disk) in [
        ("fs", "n3", "n3", "n1"),
        ("fs", "n1", "n1", "n1"),
        ("disk-root", "n2", "n2", "n2"),
        ("fs", "n3", "n3", "n2"),
        ("disk-root", "n1", "n3", "n1"),
    ] {
        cluster.ok(&["server", "move", "shop", server, to]);
        assert_eq!(places(), [fs, disk], "{server} to {to}");
        cluster.ok(&["server", "move", "shop", server, to]);
        cluster.sh("shop", "n2", "echo there > /dc/probe; cat /dc/probe");
        await_copies(&cluster, disk, &[if disk == "n1" { "n2" } else { "n1" }]);
    }
    for (server, to, told) in [
        ("disk-root", "n3", "no copy of it is on n3"),
        ("gate", "n2", "one stands on each node"),
        ("fs", "n9", "does not span node 'n9'"),
        ("nope", "n1", "one of"),
    ] {
        let (status, said) = cluster.fails(&["server", "move", "shop", server, to]);
        assert!(status == 1 && said.contains(told), "{server}: {said}");
    }
    let (_, slowest) = written(&cluster, writer);
    println!("the slowest write took {slowest} ms");
    cluster.ok(&["dc", "stop", "shop"]);
    cluster.ok(&["server", "move", "shop", "disk-root", "n2"]);
    cluster.ok(&["dc", "start", "shop"]);
    assert_eq!(cluster.sh("shop", "n1", "cat /dc/probe").trim(), "there");
    assert_eq!(places(), ["n3", "n2"]);
}

/// Copies, as people see them: node and state.
fn seen(cluster: &Cluster) -> Vec<(String, String)> {
    let shown = cluster.json(&["disk", "inspect", "shop", "root", "-o", "json"]);
    let copies = shown["copies"].as_array().cloned().unwrap_or_default();
    let word = |copy: &serde_json::Value, name: &str| copy[name].as_str().unwrap_or_default().to_owned();
    copies.iter().map(|copy| (word(copy, "node"), word(copy, "state"))).collect()
}

fn images(cluster: &Cluster, node: &str) -> usize {
    let id = inspect(cluster)["id"].as_u64().expect("a number");
    let dir = cluster.path_of(node, "state_dir").join(format!("dcs/{id}/images"));
    let files = std::fs::read_dir(dir).into_iter().flatten().flatten();
    files.filter(|file| file.file_name().to_string_lossy().starts_with("root.")).count()
}

#[test]
fn disk_moves_to_another_node_by_its_copies_and_what_a_forced_one_misses_is_lost() {
    if !has_etcd() {
        return;
    }
    let cluster = Cluster::up_with(3, &["--engine", "etcd"]);
    let create =
        ["dc", "create", "shop", "--nodes", "n1,n2,n3", "--disk", "64M", "--disk-node", "n1", "--replicas", "1"];
    cluster.ok(&[&create[..], &["--ds-node", "n3", "--start"]].concat());
    let run = ["run", "shop", "--node", "n3", "--", "python3", "-c", WRITER];
    let writer = cluster.spawn(&run);
    let replica = |words: &[&str]| cluster.ok(&[&["disk", "replica"], words].concat());
    replica(&["add", "shop", "root", "n2", "--wait"]);
    let states = |of: &[(&str, &str)]| of.iter().map(|it| (it.0.to_owned(), it.1.to_owned())).collect::<Vec<_>>();
    assert_eq!(seen(&cluster), states(&[("n1", "primary"), ("n2", "current")]));
    replica(&["add", "shop", "root", "n3", "--wait"]);
    replica(&["promote", "shop", "root", "n3"]);
    replica(&["remove", "shop", "root", "n1"]);
    assert_eq!(seen(&cluster), states(&[("n2", "current"), ("n3", "primary")]));
    assert_eq!((images(&cluster, "n1"), images(&cluster, "n2")), (0, 2));
    for (words, told) in [
        (["remove", "shop", "root", "n3"], "the disk stands beside it"),
        (["remove", "shop", "root", "n1"], "they are on n2, n3"),
        (["promote", "shop", "root", "n1"], "no copy of it is on n1"),
    ] {
        let (status, said) = cluster.fails(&[&["disk", "replica"], &words[..]].concat());
        assert!(status == 1 && said.contains(told), "{words:?}: {said}");
    }
    let (status, said) = cluster.fails(&["disk", "replica", "promote", "--force", "shop", "root", "n2"]);
    assert!(status == 1 && said.contains("without --force"), "{said}");
    let (_, slowest) = written(&cluster, writer);
    println!("the slowest write took {slowest} ms");

    // A stopped container has nobody who could say what is needed.
    cluster.ok(&["dc", "stop", "shop"]);
    let (status, said) = cluster.fails(&["disk", "replica", "remove", "shop", "root", "n2"]);
    assert!(status == 1 && said.contains("while the container is stopped"), "{said}");
    cluster.ok(&["dc", "start", "shop"]);

    // The second copy misses what is written without it, and is all there is when the first one is lost.
    cluster.sh("shop", "n1", "echo old > /dc/kept; sync");
    cluster.ok(&["dev", "kill", "n2"]);
    let cluster = cluster.asking("n1");
    cluster.sh("shop", "n1", "echo new > /dc/kept; sync");
    cluster.ok(&["dev", "kill", "n3"]);
    cluster.ok(&["dev", "restart", "n2"]);
    eventually("what is behind is all there is", SOON, || {
        let forced = cluster.output(&["disk", "replica", "promote", "--force", "shop", "root", "n2"]);
        forced.status.success().then_some(())
    });
    assert_eq!(cluster.sh("shop", "n1", "cat /dc/kept; echo further > /dc/kept; sync; cat /dc/kept"), "old\nfurther\n");
    cluster.ok(&["dev", "restart", "n3"]);
    eventually("the node is there", SOON, || {
        cluster.output(&["run", "shop", "--node", "n3", "--", "true"]).status.success().then_some(())
    });
    assert_eq!(seen(&cluster), states(&[("n2", "primary"), ("n3", "behind")]), "it went another way");
    cluster.ok(&["disk", "replica", "remove", "shop", "root", "n3"]);
    assert_eq!(images(&cluster, "n3"), 0);
    cluster.ok(&["disk", "replica", "add", "shop", "root", "n3", "--wait"]);
    cluster.ok(&["disk", "replica", "promote", "shop", "root", "n3"]);
    assert_eq!(cluster.sh("shop", "n2", "cat /dc/kept"), "further\n");
}

#[test]
fn file_server_of_a_lost_node_goes_to_its_disk() {
    if !has_etcd() {
        return;
    }
    let cluster = Cluster::up_with(3, &["--engine", "etcd"]).asking("n3");
    let nodes = ["dc", "create", "shop", "--nodes", "n1,n2,n3", "--disk", "64M", "--disk-node", "n2"];
    cluster.ok(&[&nodes[..], &["--fs-node", "n1", "--ds-node", "n3", "--replicas", "1", "--start"]].concat());
    cluster.sh("shop", "n3", "echo kept > /dc/before; sync");
    assert_eq!(node_of(&cluster, "fs"), "n1");
    cluster.ok(&["dev", "kill", "n1"]);
    assert_eq!(
        cluster.sh("shop", "n3", "cat /dc/before; echo more >> /dc/before; cat /dc/before"),
        "kept\nkept\nmore\n"
    );
    assert_eq!((node_of(&cluster, "fs"), node_of(&cluster, "disk-root")), ("n2".to_owned(), "n2".to_owned()));
    cluster.ok(&["dev", "restart", "n1"]);
    eventually("the first node is back, and reads what was written", SOON, || {
        let read = cluster.output(&["run", "shop", "--node", "n1", "--", "cat", "/dc/before"]);
        (read.stdout == b"kept\nmore\n").then_some(())
    });
    assert_eq!(node_of(&cluster, "fs"), "n2", "it stays where it is");
}

#[test]
fn disk_and_files_of_a_lost_node_go_on_beside_another_copy_and_come_back() {
    if !has_etcd() {
        return;
    }
    // People ask the third node, which stays.
    let cluster = Cluster::up_with(3, &["--engine", "etcd"]).asking("n3");
    let create =
        ["dc", "create", "shop", "--nodes", "n1,n2,n3", "--disk", "64M", "--disk-node", "n1", "--ds-node", "n3"];
    let (status, said) = cluster.fails(&[&create[..], &["--replicas", "4"]].concat());
    assert!(status == 1 && said.contains("1 to 3"), "{said}");
    cluster.ok(&[&create[..], &["--replicas", "2", "--start"]].concat());
    await_copies(&cluster, "n1", &["n2"]);

    let run = ["run", "shop", "--node", "n3", "--", "python3", "-c", WRITER];
    let writer = cluster.spawn(&run);
    eventually("it writes", SOON, || {
        cluster
            .sh("shop", "n3", "cat /dc/log 2>/dev/null | wc -l")
            .trim()
            .parse::<u32>()
            .ok()
            .filter(|lines| *lines > 200)
    });
    cluster.ok(&["dev", "kill", "n1"]);
    let (lines, slowest) = written(&cluster, writer);
    println!("{lines} lines, the slowest took {slowest} ms");
    assert!(slowest < PAUSE_MS_MAX, "{slowest}");
    assert_eq!((node_of(&cluster, "disk-root"), node_of(&cluster, "fs")), ("n2".to_owned(), "n2".to_owned()));
    assert_eq!(copies(&cluster, "behind"), ["n1"]);

    // A daemon that is replaced takes the disk over as it is.
    let disk = cluster.server_pid("shop", "n2", "disk-root");
    cluster.lose_daemon("n2", "n3");
    cluster.ok(&["dev", "restart", "n2"]);
    cluster.ok(&["dev", "restart", "n1"]);
    await_copies(&cluster, "n2", &["n1"]);
    assert_eq!(cluster.server_pid("shop", "n2", "disk-root"), disk);

    // What the first one missed, it has: it is all there is left now.
    cluster.ok(&["dev", "kill", "n2"]);
    eventually("the disk stands on n1", SOON, || (node_of(&cluster, "disk-root") == "n1").then_some(()));
    assert_eq!(cluster.sh("shop", "n3", "wc -l < /dc/log").trim(), lines);
    cluster.sh("shop", "n3", "echo more >> /dc/log; sync");
    cluster.ok(&["dev", "restart", "n2"]);
    await_copies(&cluster, "n1", &["n2"]);
    // Nobody is left behind by a stop.
    let generation = || inspect(&cluster)["copies"][0]["generation"].clone();
    let before = generation();
    cluster.ok(&["dc", "stop", "shop"]);
    cluster.ok(&["dc", "start", "shop"]);
    assert_eq!((cluster.sh("shop", "n2", "tail -1 /dc/log").trim(), generation()), ("more", before));
}

/// Replaces a file again and again, each time whole: written beside it, made durable, renamed. Says how often that was
/// done, each time when it was.
const REPLACER: &str = r#"
import os, sys
count = 0
while True:
    with open("/dc/next", "w") as file:
        file.write("%08d" % count)
        file.flush()
        os.fsync(file.fileno())
    os.rename("/dc/next", "/dc/state")
    directory = os.open("/dc", os.O_RDONLY)
    os.fsync(directory)
    os.close(directory)
    print(count, flush=True)
    count += 1
"#;

#[test]
fn container_of_which_nobody_said_more_outlives_the_node_of_its_tree() {
    if !has_etcd() {
        return;
    }
    let cluster = Cluster::up_with(3, &["--engine", "etcd"]).asking("n3");
    // As people make it: how many copies it has is decided, told and kept.
    let create = cluster.output(&["dc", "create", "shop", "--nodes", "n1,n2,n3", "--disk", "64M", "--start"]);
    let told = String::from_utf8_lossy(&create.stderr).into_owned();
    assert!(create.status.success() && told.contains("copies on n1 and n2") && told.contains("--replicas 1"), "{told}");
    assert_eq!(inspect(&cluster)["spec"]["disks"][0]["replicas"], 2);
    let description = cluster.state_dir().join("shop.toml");
    std::fs::write(&description, "name = \"shop\"\nnodes = [\"n1\", \"n2\", \"n3\"]\n").expect("written");
    let plan = ["plan", "-f", description.to_str().expect("text")];
    assert_eq!(cluster.ok(&plan), "shop: as described\n", "what says nothing of copies changes none");
    let new = cluster.state_dir().join("new.toml");
    std::fs::write(&new, "name = \"new\"\nnodes = [\"n1\", \"n2\"]\n").expect("written");
    let planned = cluster.ok(&["plan", "-f", new.to_str().expect("text")]);
    assert!(planned.contains("disk root: 2 copies, on n1, n2: 2 times its size"), "{planned}");
    await_copies(&cluster, "n1", &["n2"]);
    assert_eq!((node_of(&cluster, "disk-root"), node_of(&cluster, "fs")), ("n1".to_owned(), "n1".to_owned()));

    let mut replacer = cluster.spawn(&["run", "shop", "--node", "n3", "--", "python3", "-c", REPLACER]);
    let said = std::io::BufReader::new(replacer.stdout.take().expect("its output"));
    let mut said = said.lines().map(|line| line.expect("text").parse::<u64>().expect("a number"));
    said.find(|count| *count >= 20).expect("it replaces");
    cluster.ok(&["dev", "kill", "n1"]);
    // What it said before the loss and after it is in order: nothing that was durable is away.
    let after = said.find(|count| *count >= 400).expect("it goes on");
    drop(said);
    replacer.kill().expect("it runs");
    let _ = replacer.wait();
    let state: u64 = cluster.sh("shop", "n2", "cat /dc/state").trim().parse().expect("a number");
    assert!(state >= after, "{state} of {after}");
    assert_eq!((node_of(&cluster, "disk-root"), node_of(&cluster, "fs")), ("n2".to_owned(), "n2".to_owned()));
}

/// Writes over what begins with `text` in the image of the disk on a node.
fn spoil(cluster: &Cluster, node: &str, text: &str) {
    const BLOCK: usize = 4096;
    let id = inspect(cluster)["id"].as_u64().expect("a number");
    let dir = cluster.path_of(node, "state_dir").join(format!("dcs/{id}/images"));
    let paths = std::fs::read_dir(dir).expect("images").map(|entry| entry.expect("an image").path());
    // The store's disk is longer.
    let of_tree = paths.filter(|path| !path.to_string_lossy().contains("_ds"));
    let path = of_tree.max_by_key(|path| path.metadata().map_or(0, |it| it.len())).expect("an image");
    let bytes = std::fs::read(&path).expect("the image");
    let at = bytes.chunks(BLOCK).position(|block| block.starts_with(text.as_bytes())).expect("it is there");
    let image = std::fs::File::options().write(true).open(&path).expect("the image");
    std::os::unix::fs::FileExt::write_all_at(&image, b"spoiled", (at * BLOCK + 1000) as u64).expect("the image");
    image.sync_all().expect("the image");
}

#[test]
fn block_that_is_spoiled_on_one_copy_is_mended_by_who_reads_it_and_found_by_who_compares() {
    let cluster = Cluster::up(2);
    let create = ["dc", "create", "shop", "--nodes", "n1,n2", "--disk", "64M", "--disk-node", "n1", "--replicas", "2"];
    cluster.ok(&[&create[..], &["--start"]].concat());
    await_copies(&cluster, "n1", &["n2"]);
    let write = "python3 -c 'import sys; [sys.stdout.write((\"mark %08d \" % n).ljust(4096, \"x\")) for n in range(512)]' > /dc/f; sync";
    cluster.sh("shop", "n2", write);
    let sum = |node: &str| cluster.sh("shop", node, "md5sum < /dc/f");
    let whole = sum("n2");
    assert!(cluster.ok(&["disk", "verify", "shop"]).contains("all equal"));
    spoil(&cluster, "n1", "mark 00000100");
    spoil(&cluster, "n2", "mark 00000200");
    let (status, said) = cluster.fails(&["disk", "verify", "shop"]);
    assert!(status == 1 && said.contains("differ: on n2") && said.contains("--repair"), "{said}");
    let shown = cluster.json(&["disk", "inspect", "shop", "-o", "json"]);
    assert_eq!(shown["verification"]["found"][0]["blocks"], 2, "{shown}");
    // What the primary has is wrong in one of them; whoever reads the file has it from the other copy. The file server
    // is another one, which remembers nothing.
    let fs = cluster.server_pid("shop", "n1", "fs").expect("it runs");
    cluster.ok(&["dev", "exec", "n1", "--", "kill", "-9", &fs.to_string()]);
    assert_eq!(sum("n1"), whole);
    let said = cluster.ok(&["disk", "verify", "shop", "--repair"]);
    assert!(said.contains("differed: 1 on n2;"), "{said}");
    await_copies(&cluster, "n1", &["n2"]);
    assert!(cluster.ok(&["disk", "verify", "shop"]).contains("all equal"));
    cluster.ok(&["disk", "replica", "promote", "shop", "root", "n2"]);
    assert_eq!(sum("n1"), whole);
    cluster.ok(&["dc", "stop", "shop"]);
    let (status, said) = cluster.fails(&["disk", "verify", "shop"]);
    assert!(status == 1 && said.contains("dvs start shop"), "{said}");
}

#[test]
fn tree_grows_with_its_disk_while_programs_write() {
    let cluster = Cluster::up(2);
    let create = ["dc", "create", "shop", "--nodes", "n1,n2", "--disk", "64M", "--disk-node", "n1", "--replicas", "2"];
    cluster.ok(&[&create[..], &["--start"]].concat());
    await_copies(&cluster, "n1", &["n2"]);
    let full = "head -c 100M /dev/zero > /dc/much || ls -s --block-size=1M /dc/much | cut -d' ' -f1";
    let had: u64 = cluster.sh("shop", "n2", full).trim().parse().expect("MiB");
    assert!((30..60).contains(&had), "{had} MiB fit into 64");
    cluster.sh("shop", "n2", "rm /dc/much");
    let writer = cluster.spawn(&["run", "shop", "--node", "n2", "--", "python3", "-c", WRITER]);
    eventually("it writes", SOON, || {
        cluster.output(&["run", "shop", "--", "test", "-s", "/dc/log"]).status.success().then_some(())
    });
    cluster.ok(&["disk", "resize", "shop", "root", "192M"]);
    cluster.sh("shop", "n1", "head -c 100M /dev/zero > /dc/much; sync; test $(stat -c %s /dc/much) = 104857600");
    let (_, slowest) = written(&cluster, writer);
    println!("the slowest write took {slowest} ms");
    assert!(slowest < PAUSE_MS_MAX, "{slowest} ms");
    assert!(cluster.ok(&["disk", "verify", "shop"]).contains("all equal"));
    // It stays so, and the same again changes nothing.
    cluster.ok(&["dc", "stop", "shop"]);
    cluster.ok(&["dc", "start", "shop"]);
    let server = || cluster.server_pid("shop", "n1", "fs");
    let before = eventually("it runs", SOON, server);
    cluster.ok(&["disk", "resize", "shop", "root", "192M"]);
    assert_eq!(server(), Some(before), "not even the file server is another one");
    assert_eq!(cluster.sh("shop", "n2", "stat -c %s /dc/much").trim(), "104857600");
    let (status, said) = cluster.fails(&["disk", "resize", "shop", "root", "100M"]);
    assert!(status == 1 && said.contains("not made smaller"), "{said}");
}

/// `dvs ds pipe` with numbers under one key, each on condition of the revision of the one before: a number that was put
/// twice, or that is lost, breaks the chain.
struct Numbers {
    pipe: Child,
    answers: std::io::Lines<std::io::BufReader<std::process::ChildStdout>>,
    next: u64,
    revision: u64,
    slowest: Duration,
}

impl Numbers {
    fn begin(cluster: &Cluster) -> Numbers {
        let mut command = cluster.command(&["ds", "pipe", "shop"]);
        let mut pipe = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("dvs starts");
        let answers = std::io::BufReader::new(pipe.stdout.take().expect("its output")).lines();
        Numbers { pipe, answers, next: 0, revision: 0, slowest: Duration::ZERO }
    }

    fn put(&mut self, count: u64) {
        for _ in 0..count {
            let began = Instant::now();
            let (value, revision) = (self.next.to_string(), self.revision);
            let put = serde_json::json!({ "op": "put", "key": "number", "value": value, "revision": revision });
            let into = self.pipe.stdin.as_mut().expect("its input");
            writeln!(into, "{put}").expect("it listens");
            let answer = self.answers.next().expect("an answer").expect("text");
            let answer: serde_json::Value = serde_json::from_str(&answer).expect("JSON");
            self.revision = answer["revision"].as_u64().unwrap_or_else(|| panic!("{value}: {answer}"));
            (self.next, self.slowest) = (self.next + 1, self.slowest.max(began.elapsed()));
        }
    }

    /// How long the slowest took since this was asked last.
    fn slowest(&mut self) -> Duration {
        std::mem::take(&mut self.slowest)
    }
}

/// Copies of the disk of the key-value server that have everything.
fn await_store(cluster: &Cluster, nodes: &[&str]) {
    eventually(&format!("copies of the store on {nodes:?} have everything"), SOON, || {
        let shown = cluster.json(&["disk", "inspect", "shop", "_ds", "-o", "json"]);
        let copies = shown["copies"].as_array()?.clone();
        let has_all = |copy: &&serde_json::Value| copy["state"] == "primary" || copy["state"] == "current";
        let mut there: Vec<&str> = copies.iter().filter(has_all).filter_map(|copy| copy["node"].as_str()).collect();
        there.sort_unstable();
        (there == nodes).then_some(())
    });
}

#[test]
fn values_and_events_of_a_lost_or_silent_node_go_on_elsewhere_once_each() {
    if !has_etcd() {
        return;
    }
    let cluster = Cluster::up_with(3, &["--engine", "etcd"]).asking("n3");
    // What dvs ds starts is on the first of its nodes.
    let create = ["dc", "create", "shop", "--nodes", "n3,n1,n2", "--disk", "64M", "--disk-node", "n2"];
    cluster.ok(&[&create[..], &["--ds-node", "n1", "--start"]].concat());
    let places = || [node_of(&cluster, "ds"), node_of(&cluster, "disk-_ds")];
    assert_eq!(places(), ["n1", "n1"]);
    await_store(&cluster, &["n1", "n3"]);
    for refused in [["delete", "shop", "_ds"].as_slice(), &["resize", "shop", "_ds", "8G"]] {
        let (status, said) = cluster.fails(&[&["disk"], refused].concat());
        assert!(status == 1 && said.contains("the key-value server has its file there"), "{said}");
    }

    let mut numbers = Numbers::begin(&cluster);
    numbers.put(1);
    let after = numbers.revision.to_string();
    let mut watch = cluster.spawn(&["ds", "watch", "shop", "number", "--after", &after, "-o", "json"]);
    let mut events = std::io::BufReader::new(watch.stdout.take().expect("its output")).lines();
    numbers.put(100);
    numbers.slowest();
    cluster.ok(&["dev", "kill", "n1"]);
    numbers.put(100);
    let (lost, now) = (numbers.slowest(), places());
    assert_eq!(now, ["n3", "n3"]);
    assert!(lost < Duration::from_millis(PAUSE_MS_MAX), "{lost:?}");
    assert_eq!(cluster.ok(&["ds", "get", "shop", "number"]), (numbers.next - 1).to_string());

    // It comes back, catches up, and is silent the next time.
    cluster.ok(&["dev", "restart", "n1"]);
    await_store(&cluster, &["n1", "n3"]);
    eventually("its disk moves to the node that is back", SOON, || {
        cluster.output(&["server", "move", "shop", "disk-_ds", "n1"]).status.success().then_some(())
    });
    numbers.put(100);
    assert_eq!(places(), ["n1", "n1"]);
    numbers.slowest();
    cluster.ok(&["dev", "exec", "n1", "--", "sh", "-c", "kill -STOP -1"]);
    numbers.put(100);
    let silent = numbers.slowest();
    assert_eq!(places(), ["n3", "n3"]);
    assert!(silent < Duration::from_millis(PAUSE_MS_MAX), "{silent:?}");
    cluster.ok(&["dev", "exec", "n1", "--", "sh", "-c", "kill -CONT -1"]);
    numbers.put(100);
    await_store(&cluster, &["n1", "n3"]);
    println!("the slowest put took {lost:?} when the node was lost, {silent:?} when it was silent");

    // A server that is killed is nothing to it, nor is a stop.
    let pid = cluster.server_pid("shop", "n3", "ds").expect("it runs");
    cluster.ok(&["dev", "exec", "n3", "--", "kill", "-9", &pid.to_string()]);
    numbers.put(50);
    for number in 1..numbers.next {
        let event: serde_json::Value =
            serde_json::from_str(&events.next().expect("an event").expect("text")).expect("JSON");
        assert_eq!((event["kind"].as_str(), &event["value"]), (Some("put"), &number.to_string().into()));
    }
    let _ = (watch.kill(), watch.wait());
    drop(numbers.pipe.stdin.take());
    let _ = numbers.pipe.wait();
    cluster.ok(&["dc", "stop", "shop"]);
    cluster.ok(&["dc", "start", "shop"]);
    assert_eq!(cluster.ok(&["ds", "get", "shop", "number"]), (numbers.next - 1).to_string());
}
