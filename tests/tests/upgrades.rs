//! Nodes get another release while their programs go on: messages, files, programs that are started and looked after
//! from both sides. In its long form with a build of the release before, from its commit.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use end_to_end::outside::{Outside, SERVER};
use end_to_end::{Cluster, dvs_binary, eventually};
use ipc::{Endpoint, IpcError, Message, Port, Source, Wait};
use serde_json::Value;

const SOON: Duration = Duration::from_secs(60);
/// The release before this one.
const BEFORE: &str = "09c83a31f84a06f61270eeb898d21a5e0b6e817e";
/// Writes the time into the tree ten times a second.
const CLOCK: &str = "while :; do date +%s.%N >> /dc/clock-$0; sleep 0.1; done";
/// Lines of it, and the longest time between two of them, in milliseconds.
const LONGEST_GAP: &str = "awk 'NR>1 && $1-p>m {m=$1-p} {p=$1} END {printf \"%d %d\", NR, m*1000}' /dc/clock-$0";
/// No program waits longer while its node gets another release, on a machine that does other things besides.
const GAP_MS_MAX: u64 = 10_000;

/// Not a test: a program of the container. Outside it does nothing.
#[test]
fn child_process() {
    let Ok(role) = std::env::var("UPGRADES_ROLE") else { return };
    // Whoever started it ends it.
    std::thread::spawn(|| {
        let _ = std::io::stdin().read_to_end(&mut Vec::new());
        OVER.store(true, std::sync::atomic::Ordering::Release);
    });
    match role.parse() {
        Ok(number) => ask(Endpoint::new(number).expect("an endpoint")),
        Err(_) => answer(),
    }
}

static OVER: std::sync::atomic::AtomicBool = std::sync::atomic::AtomicBool::new(false);

fn is_over() -> bool {
    OVER.load(std::sync::atomic::Ordering::Acquire)
}

fn say(line: &str) {
    println!("{line}");
    std::io::stdout().flush().expect("somebody reads");
}

/// Answers every message with itself.
fn answer() {
    let mut port = Port::connect(Path::new("/run/dvs/broker"), None).expect("bound");
    say(&format!("endpoint {}", port.endpoint()));
    while !is_over() {
        match port.receive(Source::Any, Wait::For(Duration::from_millis(200))) {
            Ok(request) => port.reply(request.source.expect("a source"), &request).expect("answered"),
            Err(IpcError::TimedOut) => {}
            Err(error) => panic!("{error}"),
        }
    }
}

/// One message after the other, each answered before the next is sent.
fn ask(whom: Endpoint) {
    let mut port = Port::connect(Path::new("/run/dvs/broker"), None).expect("bound");
    say(&format!("endpoint {}", port.endpoint()));
    // Its node may not have heard yet that there is such an endpoint.
    let heard_by = Instant::now() + SOON;
    while Instant::now() < heard_by
        && port.sendrec(whom, &Message::new(0), Wait::For(SOON)) == Err(IpcError::NoSuchEndpoint)
    {
        std::thread::sleep(Duration::from_millis(1));
    }
    let (mut asked, mut longest) = (0, Duration::ZERO);
    while !is_over() {
        let begun = Instant::now();
        let answer = port.sendrec(whom, &Message::new(asked), Wait::For(SOON));
        assert_eq!(answer.map(|answer| answer.kind), Ok(asked), "message {asked} after {:?}", begun.elapsed());
        (asked, longest) = (asked + 1, longest.max(begun.elapsed()));
        std::thread::sleep(Duration::from_millis(1));
    }
    say(&format!("answered {asked} {}", longest.as_millis()));
}

/// A program of the container, in the hands of this test.
struct Program {
    child: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
}

impl Program {
    fn start(cluster: &Cluster, node: &str, role: &str) -> Program {
        let role = format!("UPGRADES_ROLE={role}");
        let test = ["child_process", "--exact", "--nocapture", "--test-threads=1"];
        let run = ["run", "shop", "-i", "-n", node, "--env", &role, "--", "/dc/programs/upgrades"];
        let mut command = cluster.command_without_limit(&[&run[..], &test].concat());
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("dvs starts");
        let output = BufReader::new(child.stdout.take().expect("a pipe"));
        Program { input: child.stdin.take(), child, output }
    }

    /// The rest of the next line with this word.
    fn hear(&mut self, word: &str) -> String {
        let lines = self.output.by_ref().lines().map_while(Result::ok);
        let mut found = lines.filter_map(|line| line.split_once(word).map(|(_, rest)| rest.trim().to_owned()));
        found.next().unwrap_or_else(|| panic!("no {word}"))
    }

    fn endpoint(&mut self) -> String {
        self.hear("endpoint ")
    }

    /// How many messages were answered, and how long the slowest took, in milliseconds.
    fn end(mut self) -> (u64, u64) {
        self.input = None;
        let said = self.hear("answered ");
        let (answered, longest) = said.split_once(' ').expect("two numbers");
        assert!(self.child.wait().expect("it ends").success());
        (answered.parse().expect("a number"), longest.parse().expect("a number"))
    }

    fn stop(mut self) {
        self.input = None;
        assert!(self.child.wait().expect("it ends").success());
    }
}

/// A cluster whose daemons are of a file of their own, which lies outside.
struct World {
    cluster: Cluster,
    place: tempfile::TempDir,
}

impl World {
    fn of(binary: &Path, nodes: usize) -> World {
        let place = tempfile::Builder::new().prefix("dvs-u").tempdir_in("/tmp").expect("a directory");
        let dvs = place.path().join("dvs");
        std::fs::copy(binary, &dvs).expect("copied");
        let cluster = Cluster::up_with(nodes, &["--daemon", dvs.to_str().expect("text")]);
        World { cluster, place }
    }

    fn import_this_test(&self) {
        let programs = self.place.path().join("programs");
        std::fs::create_dir(&programs).expect("made");
        std::fs::copy(std::env::current_exe().expect("a test has a path"), programs.join("upgrades")).expect("copied");
        self.cluster.ok(&["import", "shop", programs.to_str().expect("text"), "/programs"]);
    }

    /// `dvs` of this source on a node.
    fn on(&self, node: &str, arguments: &[&str]) -> std::process::Output {
        let (dvs, socket) = (dvs_binary(), self.cluster.socket_of(node));
        let words =
            ["dev", "exec", node, "--", dvs.to_str().expect("text"), "--socket", socket.to_str().expect("text")];
        self.cluster.output(&[&words, arguments].concat())
    }

    fn upgrade(&self, node: &str, binary: &Path) -> Value {
        let done = self.on(node, &["node", "upgrade", "--binary", binary.to_str().expect("text"), "-o", "json"]);
        let said = String::from_utf8_lossy(&done.stderr);
        assert!(done.status.success(), "{node}: {said}{}", self.cluster.logs());
        serde_json::from_slice(&done.stdout).expect("JSON")
    }

    fn is_refused(&self, node: &str, binary: &Path) -> String {
        let done = self.on(node, &["node", "upgrade", "--binary", binary.to_str().expect("text")]);
        assert!(!done.status.success(), "{done:?}");
        String::from_utf8_lossy(&done.stderr).into_owned()
    }

    /// A program that says something of itself, and does nothing else.
    fn pretender(&self, name: &str, says: &str) -> PathBuf {
        let path = self.place.path().join(name);
        std::fs::write(&path, format!("#!/bin/sh\ncat <<'END'\n{says}\nEND\n")).expect("written");
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).expect("may be executed");
        path
    }

    fn begin_clock(&self, node: &str) {
        self.cluster.ok(&["run", "-d", "shop", "-n", node, "--", "sh", "-c", CLOCK, node]);
    }

    /// Lines that the clock of a node wrote, and the longest gap.
    fn clock(&self, node: &str) -> (u64, u64) {
        let said = self.cluster.ok(&["run", "shop", "-n", node, "--", "sh", "-c", LONGEST_GAP, node]);
        let (lines, gap) = said.trim().split_once(' ').expect("two numbers");
        (lines.parse().expect("a number"), gap.parse().expect("a number"))
    }

    fn pids(&self, node: &str) -> Vec<Option<u32>> {
        let names = ["fs", "disk-root", "ds", "gate", "cs", "calls"];
        names.iter().map(|name| self.cluster.server_pid("shop", node, name)).collect()
    }

    fn releases(&self) -> Vec<String> {
        let nodes = self.cluster.json(&["node", "ls", "-o", "json"]);
        let of = |node: &Value| node["release"].as_str().unwrap_or_default().to_owned();
        nodes.as_array().expect("a list").iter().map(of).collect()
    }
}

fn own_release() -> String {
    env!("CARGO_PKG_VERSION").to_owned()
}

#[test]
fn node_gets_another_binary_while_its_programs_go_on() {
    let world = World::of(&dvs_binary(), 2);
    let cluster = &world.cluster;
    cluster.container("shop", 2, &["--fs-node", "n1", "--disk-node", "n1"]);
    world.import_this_test();
    ["n1", "n2"].iter().for_each(|node| world.begin_clock(node));
    let mut answering = Program::start(cluster, "n1", "answer");
    let mut asking = Program::start(cluster, "n2", &answering.endpoint());
    asking.endpoint();

    // What is none is not put anywhere, and what does not follow this release is not let in.
    let before = std::fs::read(world.place.path().join("dvs")).expect("the file").len();
    let none = world.pretender("none", "hello");
    assert!(world.is_refused("n1", &none).contains("does not say what it is"));
    let far =
        world.pretender("far", r#"{"client":"9.0.0","follows":"8.7","speaks":{"records":{"oldest":1,"newest":9}}}"#);
    let words = world.is_refused("n1", &far);
    assert!(words.contains("9.0.0") && words.contains(&own_release()), "{words}");
    assert_eq!(std::fs::read(world.place.path().join("dvs")).expect("the file").len(), before);

    let earlier = world.pids("n1");
    let upgraded = world.upgrade("n1", &dvs_binary());
    assert_eq!(upgraded["now"], own_release());
    assert_eq!(upgraded["replaced"].as_u64(), Some(earlier.iter().flatten().count() as u64), "{upgraded}");
    let later = world.pids("n1");
    assert!(earlier.iter().zip(&later).all(|(one, other)| one.is_none() || one != other), "{earlier:?} {later:?}");
    let (answered, longest) = asking.end();
    answering.stop();
    let (lines, gap) = world.clock("n1");
    let (_, elsewhere) = world.clock("n2");
    eprintln!("{answered} messages, the slowest {longest} ms; {lines} lines, gaps {gap} and {elsewhere} ms");
    assert!(answered > 100 && longest < GAP_MS_MAX, "{answered} {longest}");
    assert!(lines > 10 && gap.max(elsewhere) < GAP_MS_MAX, "{lines} {gap} {elsewhere}");

    // Once more there is nothing to do.
    assert_eq!(world.upgrade("n1", &world.place.path().join("dvs"))["replaced"], 0);
    assert_eq!(world.pids("n1"), later);
    let level = cluster.json(&["cluster", "level", "-o", "json"]);
    assert_eq!(
        (level[0]["level"].as_u64(), level[0]["readable"].as_u64()),
        (level[0]["newest"].as_u64(), level[0]["newest"].as_u64())
    );
}

/// A port gate of a node, as the node numbers its processes.
fn port_gates(cluster: &Cluster, node: &str) -> Vec<String> {
    let found = cluster.output(&["dev", "exec", node, "--", "pgrep", "-f", "^dvs gate ports"]);
    String::from_utf8_lossy(&found.stdout).lines().map(str::to_owned).collect()
}

#[test]
fn client_outside_of_a_replicated_service_notices_no_upgrade_of_any_node() {
    let world = World::of(&dvs_binary(), 3);
    let cluster = &world.cluster;
    cluster.container("shop", 3, &["-p", "8080:80"]);
    let nodes = ["n1", "n2", "n3"];
    let service = ["service", "add", "--instances", "3", "shop", "web", "--", "python3", "-c", SERVER, "80"];
    cluster.ok(&service);
    eventually("an instance on each node", SOON, || {
        let services = cluster.json(&["service", "ls", "shop", "-o", "json"]);
        let instances = services[0]["instances"].as_array()?.clone();
        instances.iter().all(|one| one["pid"].as_u64().is_some()).then_some(())
    });
    let addresses = cluster.json(&["node", "ls", "-o", "json"]);
    let addresses = addresses.as_array().expect("a list").iter().map(|node| node["address"].as_str().expect("text"));
    let urls: Vec<String> = addresses.map(|address| format!("http://{address}:8080/")).collect();
    let client = Outside::begin(cluster, "n1", &urls);
    for node in nodes {
        let earlier = port_gates(cluster, node);
        assert_eq!(earlier.len(), 1);
        world.upgrade(node, &dvs_binary());
        // The earlier one stays with the connection that stays.
        let gates = eventually("there is another gate", SOON, || {
            let gates = port_gates(cluster, node);
            (gates.len() == 2).then_some(gates)
        });
        assert!(gates.contains(&earlier[0]), "{gates:?}");
    }
    let told = client.end();
    eprintln!("{} requests answered, the slowest after {} ms: {}", told.answered, told.longest_ms, told.by);
    assert!(told.failed.is_empty() && told.answered > 150, "{told:?}{}", cluster.logs());
    assert!(told.longest_ms < GAP_MS_MAX as f64, "{told:?}");
    for node in nodes {
        eventually("the earlier gate is gone", SOON, || (port_gates(cluster, node).len() == 1).then_some(()));
    }
}

#[test]
fn daemon_that_does_not_come_back_gets_its_earlier_binary_again() {
    let world = World::of(&dvs_binary(), 1);
    world.cluster.container("shop", 1, &[]);
    world.begin_clock("n1");
    let facts = Command::new(dvs_binary()).args(["version", "-o", "json"]).output().expect("it runs").stdout;
    let liar = world.pretender("liar", &String::from_utf8(facts).expect("text"));
    let words = world.is_refused("n1", &liar);
    assert!(words.contains("does not serve") && words.contains("earlier release again"), "{words}");
    world.cluster.ok(&["dev", "restart", "n1"]);
    let (lines, _) = world.clock("n1");
    assert!(lines > 10, "{lines}");
    eventually("the program still runs", SOON, || (world.clock("n1").0 > lines).then_some(()));
}

/// The binary of a release, from its commit; built once. `None`: this is no clone that has it.
fn release(commit: &str) -> Option<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").canonicalize().expect("the source");
    let has_it = Command::new("git").current_dir(&root).args(["cat-file", "-e", commit]).output();
    if !has_it.is_ok_and(|done| done.status.success()) {
        eprintln!("SKIPPED: there is no commit {commit} here (git fetch --unshallow)");
        return None;
    }
    let place = dvs_binary().ancestors().nth(3).expect("target").join("releases").join(commit);
    let (source, target) = (place.join("source"), place.join("target"));
    let folder = dvs_binary().strip_prefix(dvs_binary().ancestors().nth(3)?).expect("below").to_owned();
    let binary = target.join(folder);
    if !binary.exists() {
        std::fs::create_dir_all(&source).expect("made");
        let script = format!("git archive {commit} | tar -x -C '{}'", source.display());
        let done = Command::new("sh").current_dir(&root).args(["-ec", &script]).status().expect("sh");
        assert!(done.success());
        let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
        let mut build = Command::new(cargo);
        build.current_dir(&source).args(["build", "--package", "dvs", "--bin", "dvs"]);
        assert!(build.env("CARGO_TARGET_DIR", &target).status().expect("cargo").success(), "{commit} is built");
    }
    Some(binary)
}

#[test]
#[ignore = "builds the release before"]
fn cluster_of_two_releases_works_and_each_of_its_nodes_gets_the_next_one() {
    let Some(before) = release(BEFORE) else { return };
    let world = World::of(&before, 3);
    let cluster = &world.cluster;
    cluster.container("shop", 3, &["--fs-node", "n2", "--disk-node", "n3"]);
    world.import_this_test();
    let nodes = ["n1", "n2", "n3"];
    nodes.iter().for_each(|node| world.begin_clock(node));
    // Around, so that every link has messages, in both directions.
    let mut answering: Vec<Program> = nodes.iter().map(|node| Program::start(cluster, node, "answer")).collect();
    let endpoints: Vec<String> = answering.iter_mut().map(Program::endpoint).collect();
    let mut asking: Vec<Program> = nodes
        .iter()
        .zip(endpoints.iter().cycle().skip(1))
        .map(|(node, whom)| Program::start(cluster, node, whom))
        .collect();
    asking.iter_mut().for_each(|program| drop(program.endpoint()));

    let mut expected = vec!["0.1.0".to_owned(); 3];
    assert_eq!(world.releases(), expected);
    let mut upgrades = Vec::new();
    for (index, node) in nodes.iter().enumerate() {
        let begun = Instant::now();
        assert_eq!(world.upgrade(node, &dvs_binary())["before"], "0.1.0");
        upgrades.push(begun.elapsed());
        expected[index] = own_release();
        assert_eq!(world.releases(), expected);
        eventually("all are well again", SOON, || {
            let all = cluster.json(&["node", "ls", "-o", "json"]);
            all.as_array()?.iter().all(|node| node["state"] == "ready").then_some(())
        });
        mixed(&world, &format!("after-{node}"));
    }
    for (node, asking) in nodes.iter().zip(asking) {
        let (answered, longest) = asking.end();
        let (lines, gap) = world.clock(node);
        eprintln!("{node}: {answered} messages, the slowest {longest} ms; {lines} lines, the longest gap {gap} ms");
        assert!(answered > 1000 && longest < GAP_MS_MAX && gap < GAP_MS_MAX, "{node}: {answered} {longest} {gap}");
    }
    answering.into_iter().for_each(Program::stop);
    eprintln!("upgrades of three nodes took {upgrades:?}");
}

/// What people do in a cluster, from and to each node, whatever release it is of.
fn mixed(world: &World, name: &str) {
    let cluster = &world.cluster;
    cluster.container(name, 3, &["--fs-node", "n1", "--disk-node", "n2"]);
    for from in ["n1", "n2", "n3"] {
        for to in ["n1", "n2", "n3"] {
            let text = format!("{from}-{to}");
            let done = world.on(
                from,
                &["run", name, "-n", to, "--", "sh", "-c", &format!("echo {text} > /dc/{text}; cat /dc/{text}")],
            );
            assert_eq!(String::from_utf8_lossy(&done.stdout).trim(), text, "{done:?}{}", cluster.logs());
        }
        let done = world.on(from, &["run", "-d", name, "-n", from, "--", "sleep", "1000"]);
        let pid = String::from_utf8_lossy(&done.stdout).trim().to_owned();
        let seen = world.on("n2", &["exec", "--beside", &pid, name, "--", "ls", "/dc"]);
        assert!(String::from_utf8_lossy(&seen.stdout).contains(&format!("{from}-n1")), "{seen:?}");
        let done = world.on("n3", &["kill", name, &pid]);
        assert!(done.status.success(), "{done:?}");
        let put = world.on(from, &["ds", "put", name, "last", from]);
        assert!(put.status.success(), "{put:?}");
        assert_eq!(String::from_utf8_lossy(&world.on("n1", &["ds", "get", name, "last"]).stdout).trim(), from);
    }
    // A daemon that dies is the one that is there now.
    cluster.ok(&["dev", "restart", "n1"]);
    cluster.ok(&["run", name, "-n", "n1", "--", "cat", "/dc/n3-n1"]);
    cluster.ok(&["dc", "delete", "--force", name]);
}
