//! Conditions that every command meets in the same way: who runs it, whether anybody answers, who answers, and whether
//! the cluster can decide.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant, SystemTime};

use end_to_end::{Cluster, dvs_binary, eventually};
use pki::{Authority, NodeRequest, Validity};

use crate::table::{Needs, Role, Row, Short, TABLE, Well};
use crate::world::{Files, Tried, World, bounded, demand_none, try_all};

const SOON: Duration = Duration::from_secs(60);
const DAY: Duration = Duration::from_secs(24 * 3600);

fn asks_a_daemon(row: &Row) -> bool {
    matches!(row.needs, Needs::Daemon(_))
}

// ---- rights

/// `dvs` as somebody who is not root. By descriptor: the binary may lie where only root can go.
fn as_nobody(files: &Files, typed: &str, line: &[String]) -> Command {
    let script = "exec 9<\"$0\"; exec setpriv --reuid=65534 --regid=65534 --clear-groups -- /proc/self/fd/9 \"$@\"";
    let mut command = Command::new("sh");
    command.args(["-c", script]).arg(dvs_binary()).args(typed.split(' ')).args(line);
    files.environment(&mut command);
    command.env("DVS_STATE_DIR", files.path("nothing")).current_dir("/");
    command
}

#[test]
fn who_may_not_is_told_what_is_missing_and_changes_nothing() {
    let world = World::begin(Cluster::up(2), "n1", "n2");
    let (decided, listed) = (world.decided("n1"), world.files.listed());
    let mut lines = Vec::new();
    for row in TABLE.iter().filter(|row| row.needs != Needs::Nobody && row.typed != "completion") {
        let mut words = world.files.fill(row.line);
        if row.typed == "daemon" {
            words = vec!["--config".to_owned(), world.cluster.config_of("n1").display().to_string()];
        }
        let mut command = as_nobody(&world.files, row.typed, &words);
        if asks_a_daemon(row) {
            command.env("DVS_SOCKET", world.cluster.socket_of("n1"));
        }
        lines.push((row, words, command));
    }
    let check = |tried: &Tried| {
        let part = match tried.row.needs {
            // Files of root are looked at before anybody is asked.
            Needs::Daemon(_) => "ermi",
            Needs::Machine if tried.row.typed != "daemon" => "root",
            _ => "ermission denied",
        };
        tried.demand_refusal(tried.row.status(), part).err()
    };
    demand_none("not root", try_all(lines).iter().filter_map(check).collect());

    // Somebody elsewhere, who may look.
    let mut lines = Vec::new();
    for row in TABLE.iter().filter(|row| asks_a_daemon(row)) {
        let words = world.files.fill(row.line);
        let mut command = world.at("n1", "dev exec n1 --", &[]);
        command.env_remove("DVS_SOCKET").arg(dvs_binary()).args(["--context", "far"]);
        command.args(row.typed.split(' ')).args(&words);
        lines.push((row, words, command));
    }
    let check = |tried: &Tried| match tried.row.needs {
        // Something else may be missing for it here.
        Needs::Daemon(Role::Viewer) if matches!(tried.row.well, Well::Elsewhere(_)) => {
            tried.demand(Short::Either, "").err()
        }
        Needs::Daemon(Role::Viewer) => tried.demand_success().err(),
        _ => tried.demand_refusal(tried.row.status(), "it needs the role").err().filter(|_| {
            // What only nodes may has words of its own.
            tried.row.needs != Needs::Daemon(Role::Node) || tried.demand_refusal(tried.row.status(), "ada").is_err()
        }),
    };
    demand_none("a viewer", try_all(lines).iter().filter_map(check).collect());
    // Addresses and roots of a context are asked for again when they are old: that is written, and nothing else.
    let contexts = world.files.contexts();
    let made = world.files.listed().into_iter().filter(|(path, content)| listed.get(path) != Some(content));
    let made: Vec<_> = made.map(|(path, _)| path).filter(|path| !path.starts_with(&contexts)).collect();
    assert!(made.is_empty(), "something was made: {made:?}");
    assert_eq!(world.decided("n1"), decided);
    every_line_succeeds(&world, "n1");
}

/// In the table's order, at one daemon.
fn every_line_succeeds(world: &World, at: &str) {
    eventually("all nodes are ready", SOON, || {
        let words = world.files.fill(&["-o", "json"]);
        let done = world.at(at, "node ls", &words).output().expect("dvs starts");
        let nodes: serde_json::Value = serde_json::from_slice(&done.stdout).ok()?;
        nodes.as_array()?.iter().all(|node| node["state"] == "ready").then_some(())
    });
    let mut faults = Vec::new();
    for row in TABLE.iter().filter(|row| !matches!(row.well, Well::Elsewhere(_))) {
        let words = world.files.fill(row.line);
        let command = world.at(at, row.typed, &words);
        faults.extend(Tried::of(row, words, bounded(row, command)).demand_success().err());
    }
    demand_none("nothing is wrong any more", faults);
}

// ---- nobody answers

/// What is said where the daemon of this machine does not answer.
fn local(files: &Files, socket: &Path) -> Vec<(&'static Row, Vec<String>, Command)> {
    let rows = TABLE.iter().filter(|row| asks_a_daemon(row) || row.needs == Needs::Nobody && row.typed != "doctor");
    let lines = rows.filter(|row| row.typed != "context show").map(|row| {
        let words = files.fill(row.line);
        let mut command = files.dvs(&row.typed.split(' ').map(str::to_owned).chain(words.clone()).collect::<Vec<_>>());
        command.env("DVS_SOCKET", socket);
        (row, words, command)
    });
    lines.collect()
}

/// As if there were a node, a container and a program.
fn filled() -> Files {
    let mut files = Files::new();
    for (name, value) in [("node", "n1"), ("other", "n2"), ("pid", "65600")] {
        files.words.insert(name, value.to_owned());
    }
    files
}

#[test]
fn daemon_that_is_not_there_is_named_and_no_file_is_left() {
    let files = filled();
    let gone = files.path("gone.sock");
    // One that was killed leaves its socket.
    drop(UnixListener::bind(&gone).expect("a socket"));
    let listed = files.listed();
    for socket in [Path::new("/nonexistent/dvsd.sock"), &gone] {
        let check = |tried: &Tried| match tried.row.needs {
            Needs::Nobody => tried.demand_success().err(),
            _ => tried.demand_refusal(tried.row.status(), "no daemon answers").err(),
        };
        demand_none("no daemon", try_all(local(&files, socket)).iter().filter_map(check).collect());
    }
    assert!(files.listed() == listed, "something was made");
}

#[test]
fn daemon_that_hangs_up_or_talks_nonsense_is_told_from_one_that_refuses() {
    let files = filled();
    let listed = files.listed();
    for answer in ["", "SSH-2.0-OpenSSH_9\r\n", "HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\n<html>"] {
        let socket = files.path(&format!("{}.sock", answer.len()));
        let listener = UnixListener::bind(&socket).expect("a socket");
        std::thread::spawn(move || {
            for mut stream in listener.incoming().flatten() {
                // Whoever asks is heard before.
                let _ = stream.read(&mut [0; 4096]);
                let _ = stream.write_all(answer.as_bytes());
            }
        });
        let lines = local(&files, &socket).into_iter().filter(|(row, ..)| asks_a_daemon(row)).collect();
        let check = |tried: &Tried| {
            // What is text, and printed as it comes, is never an answer that is wrong.
            let is_text = matches!(tried.row.typed, "metrics" | "logs" | "audit") && answer.starts_with("HTTP");
            tried.demand_refusal(tried.row.status(), "").err().filter(|_| !is_text)
        };
        demand_none("nonsense", try_all(lines).iter().filter_map(check).collect());
        std::fs::remove_file(&socket).expect("it is there");
    }
    assert!(files.listed() == listed, "something was made");
}

/// What was asked of it may still happen when it goes on, and that is said.
#[test]
#[ignore = "takes its time: run by `make test-long`"]
fn daemon_that_is_stopped_is_given_up_by_every_command() {
    const GIVEN_UP: Duration = Duration::from_secs(60);
    let world = World::begin(Cluster::up(2), "n1", "n2");
    let pid = world.cluster.json(&["dev", "ls", "-o", "json"])[0]["daemon_pid"].as_u64().expect("a PID");
    let daemon = rustix::process::Pid::from_raw(i32::try_from(pid).expect("a PID")).expect("a PID");
    let signal = |signal| rustix::process::kill_process(daemon, signal).expect("it is there");
    signal(rustix::process::Signal::STOP);
    let lines = TABLE.iter().filter(|row| asks_a_daemon(row)).map(|row| {
        let words = world.files.fill(row.line);
        let command = world.at("n1", row.typed, &words);
        (row, words, command)
    });
    let tried = try_all(lines.collect());
    signal(rustix::process::Signal::CONT);
    let check = |tried: &Tried| tried.demand_refusal_within(GIVEN_UP, tried.row.status(), "whether it was done").err();
    demand_none("a daemon that is stopped", tried.iter().filter_map(check).collect());
}

/// In the middle of what takes its time, of the node that was asked and of one that it asks itself. What takes as long
/// and is worked on is waited for.
#[test]
fn daemon_elsewhere_that_is_stopped_at_work_is_given_up_and_one_that_works_is_not() {
    const GIVEN_UP: Duration = Duration::from_secs(60);
    let world = World::begin(Cluster::up(2), "n2", "n1");
    let access = world.files.path("eve.access").display().to_string();
    world.cluster.ok(&["access", "token", "eve", "--role", "operator", "--out", &access]);
    // Of its addresses only that of n2.
    let text = std::fs::read(&access).expect("an access");
    let mut context: serde_json::Value = serde_json::from_slice(&text).expect("JSON");
    let addresses = context["addresses"].as_array().expect("addresses");
    let of_n2 = |address: &&serde_json::Value| address.as_str().is_some_and(|text| text.starts_with("10.255.0.2:"));
    context["addresses"] = serde_json::json!([addresses.iter().find(of_n2).expect("that of n2")]);
    let path = world.files.contexts().join("dvs/contexts/eve.json");
    std::fs::write(&path, context.to_string()).expect("a context");
    let secret = std::os::unix::fs::PermissionsExt::from_mode(0o600);
    std::fs::set_permissions(&path, secret).expect("a mode");
    let elsewhere = |line: &[&str]| {
        let mut command = world.at("n1", "dev exec n1 --", &[]);
        command.env_remove("DVS_SOCKET").arg(dvs_binary()).args(["--context", "eve"]).args(line);
        command
    };

    let stubborn = ["sh", "-c", "trap '' TERM; while :; do sleep 1; done"];
    world.cluster.ok(&[&["run", "-d", "shop", "--"], &stubborn[..]].concat());
    let began = Instant::now();
    let done = elsewhere(&["dc", "stop", "shop", "--grace", "12"]).output().expect("dvs starts");
    assert!(done.status.success() && began.elapsed() > Duration::from_secs(12), "{:?} {done:?}", began.elapsed());

    world.cluster.ok(&["dc", "start", "shop"]);
    world.cluster.ok(&[&["run", "-d", "shop", "--"], &stubborn[..]].concat());
    let signal = |what: &str, pid: &str| world.cluster.ok(&["dev", "exec", "n2", "--", "kill", what, pid]);
    let pid_of = |pattern: &str| {
        let found = world.cluster.ok(&["dev", "exec", "n2", "--", "pgrep", "-o", "-f", pattern]);
        found.trim().to_owned()
    };
    let daemon = pid_of("daemon --config");
    let given_up = |command: &mut Command, is_under_way: &dyn Fn() -> bool, part: &str| {
        let asking = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("dvs starts");
        eventually("it is at work", SOON, || is_under_way().then_some(()));
        let began = Instant::now();
        signal("-STOP", &daemon);
        let done = asking.wait_with_output().expect("it ends");
        let took = began.elapsed();
        signal("-CONT", &daemon);
        let said = String::from_utf8_lossy(&done.stderr).into_owned();
        assert!(
            !done.status.success() && said.contains(part) && said.contains("\n  try: "),
            "{:?} {said}",
            done.status
        );
        assert!(took < GIVEN_UP, "{took:?}");
        println!("given up after {took:?}: {said}");
    };
    let stopping = ["dc", "stop", "shop", "--grace", "100"];
    let is_stopping = || world.cluster.json(&["dc", "inspect", "shop", "-o", "json"])["phase"] == "stopping";
    given_up(&mut elsewhere(&stopping), &is_stopping, "the daemon hangs");
}

// ---- a cluster elsewhere that does not answer, or not as it should

/// A context of this name, whose one node is at the address.
fn add_context(files: &Files, name: &str, addresses: &[String]) {
    let directory = files.contexts().join("dvs/contexts");
    std::fs::create_dir_all(&directory).expect("a directory");
    let roots = std::fs::read_to_string(files.path("ca/ca.crt")).expect("an authority");
    let context = serde_json::json!({
        "cluster": "home", "name": "ada", "role": "viewer", "ends_s": 4_000_000_000_u64, "addresses": addresses,
        "roots_pem": roots, "token": format!("dvs_ada_{}", "0".repeat(64)), "refreshed_s": 0,
    });
    let path = directory.join(format!("{name}.json"));
    std::fs::write(&path, context.to_string()).expect("a context");
    let secret = std::os::unix::fs::PermissionsExt::from_mode(0o600);
    std::fs::set_permissions(&path, secret).expect("a mode");
}

/// Every line in that context: refused with these words, or because it is about this machine.
fn all_refused_in(files: &Files, context: &str, part: &str) {
    let listed = files.listed();
    let mut lines = Vec::new();
    for row in TABLE {
        let is_of_here = matches!(row.needs, Needs::Files | Needs::Nobody);
        if is_of_here && !matches!(row.typed, "node ca" | "node cert" | "doctor report") {
            continue;
        }
        let words = files.fill(row.line);
        let typed = ["--context", context].into_iter().chain(row.typed.split(' ')).map(str::to_owned);
        let command = files.dvs(&typed.chain(words.clone()).collect::<Vec<_>>());
        lines.push((row, words, command));
    }
    let check = |tried: &Tried| match tried.row.needs {
        Needs::Daemon(_) => tried.demand_refusal(tried.row.status(), part).err(),
        _ => tried.demand_refusal(2, "cannot be done in context").err(),
    };
    demand_none(context, try_all(lines).iter().filter_map(check).collect());
    // A new one is not added either; what there is can still be looked at.
    let file = files.contexts().join(format!("dvs/contexts/{context}.json")).display().to_string();
    let row = TABLE.iter().find(|row| row.typed == "context add").expect("a row");
    let words: Vec<String> = ["other", "--token-file", &file].map(str::to_owned).into();
    let command =
        files.dvs(&["context", "add"].into_iter().map(str::to_owned).chain(words.clone()).collect::<Vec<_>>());
    demand_none("context add", Tried::of(row, words, command).demand_refusal(1, part).err().into_iter().collect());
    let shown = files.dvs(&["context", "show", context]).output().expect("dvs starts");
    assert!(shown.status.success() && String::from_utf8_lossy(&shown.stdout).contains("problem"), "{shown:?}");
    assert!(files.listed() == listed, "something was made");
}

#[test]
fn cluster_elsewhere_that_is_away_is_given_up_soon_with_each_address() {
    let files = filled();
    // Whoever connects is heard by nobody: as behind a firewall that drops.
    let silent = TcpListener::bind("127.0.0.1:0").expect("a port");
    let silent_at = silent.local_addr().expect("an address").to_string();
    add_context(&files, "silent", std::slice::from_ref(&silent_at));
    all_refused_in(&files, "silent", "no answer within 5 s");
    let off = TcpListener::bind("127.0.0.1:0").expect("a port").local_addr().expect("an address").to_string();
    add_context(&files, "off", &[off.clone(), "no-such-host.invalid:7420".to_owned()]);
    all_refused_in(&files, "off", &format!("{off}: Connection refused"));
    add_context(&files, "none", &[]);
    all_refused_in(&files, "none", "no address");
}

/// Other people's server, with a certificate of the cluster for a time that is not now.
struct Server {
    process: Child,
    address: String,
}

impl Server {
    fn start(files: &Files, name: &str, valid: Validity) -> Server {
        let authority = Authority::load(&files.path("ca")).expect("an authority");
        let directory = files.path(name);
        let request = NodeRequest { node: "n1", addresses: &[], valid };
        authority.issue_node(&request, &directory).expect("a certificate");
        let port = TcpListener::bind("127.0.0.1:0").expect("a port").local_addr().expect("an address").port();
        let mut command = Command::new("openssl");
        command.args(["s_server", "-quiet", "-www", "-accept", &format!("127.0.0.1:{port}")]);
        command.arg("-cert").arg(directory.join("node.crt")).arg("-key").arg(directory.join("node.key"));
        // Its input stays open: it ends with it.
        let process =
            command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("openssl");
        let address = format!("127.0.0.1:{port}");
        eventually("the server listens", SOON, || TcpStream::connect(&address).ok());
        Server { process, address }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// The machine's clock cannot be set, so the certificate is of another time: to whoever looks it is the same.
#[test]
fn server_whose_certificate_is_of_another_time_is_not_believed_and_both_times_are_told() {
    let files = filled();
    let now = SystemTime::now();
    let ended = Server::start(&files, "ended", Validity { from: now - 2 * DAY, until: now - DAY });
    add_context(&files, "ended", std::slice::from_ref(&ended.address));
    all_refused_in(&files, "ended", "its certificate was good until");
    let early = Server::start(&files, "early", Validity { from: now + DAY, until: now + 2 * DAY });
    add_context(&files, "early", std::slice::from_ref(&early.address));
    all_refused_in(&files, "early", "its certificate is good from");
}

// ---- a node whose certificate is of another time

/// Of what is asked for on `n1`, what another node has to do.
const FAR: [&str; 15] = [
    "run",
    "exec",
    "attach",
    "logs",
    "kill",
    "import",
    "ds get",
    "ds put",
    "ds cas",
    "ds ls",
    "ds watch",
    "ds publish",
    "ds pipe",
    "metrics",
    "audit",
];

#[test]
fn node_whose_certificate_is_of_another_time_is_told_as_the_reason_and_works_again_with_a_good_one() {
    let world = World::begin(Cluster::up(2), "n2", "n1");
    let authority = Authority::load(&world.cluster.state_dir().join("dev/dev/ca")).expect("the cluster's authority");
    let directory = world.cluster.state_dir().join("dev/dev/n2/tls");
    let certify = |valid: Validity| {
        let addresses = ["10.255.0.2".parse().expect("an address")];
        authority
            .issue_node(&NodeRequest { node: "n2", addresses: &addresses, valid }, &directory)
            .expect("certificates");
    };
    let (now, decided) = (SystemTime::now(), world.decided("n1"));
    for (valid, part) in [
        (Validity { from: now - 2 * DAY, until: now - DAY }, "expired"),
        (Validity { from: now + DAY, until: now + 2 * DAY }, "not valid yet"),
    ] {
        certify(valid);
        eventually("the node shows it", SOON, || {
            let words = world.files.fill(&["shop", "--", "true"]);
            let done = world.at("n1", "run", &words).output().expect("dvs starts");
            String::from_utf8_lossy(&done.stderr).contains(part).then_some(())
        });
        let lines = TABLE.iter().filter(|row| FAR.contains(&row.typed)).map(|row| {
            let words = world.files.fill(row.line);
            let command = world.at("n1", row.typed, &words);
            (row, words, command)
        });
        let check = |tried: &Tried| tried.demand_refusal(tried.row.status(), part).err();
        demand_none(part, try_all(lines.collect()).iter().filter_map(check).collect());
    }
    certify(Validity::of_a_node());
    eventually("the node shows a good one", SOON, || {
        let words = world.files.fill(&["shop", "--", "true"]);
        world.at("n1", "run", &words).output().expect("dvs starts").status.success().then_some(())
    });
    assert_eq!(world.decided("n1"), decided);
    every_line_succeeds(&world, "n1");
}

// ---- an engine without a majority

#[test]
fn without_a_majority_every_change_is_refused_and_happens_once_there_is_one_again() {
    if Command::new("etcd").arg("--version").output().is_err() {
        eprintln!("SKIPPED: there is no etcd (Debian: etcd-server)");
        return;
    }
    let world = World::begin(Cluster::up_with(3, &["--engine", "etcd"]), "n3", "n1");
    let (decided, listed) = (world.decided("n3"), world.files.listed());
    for node in ["n1", "n2"] {
        world.cluster.ok(&["dev", "kill", node]);
    }
    eventually("the node has noticed", SOON, || {
        let words = world.files.fill(&["shop"]);
        let done = world.at("n3", "ps", &words).output().expect("dvs starts");
        String::from_utf8_lossy(&done.stderr).contains("the cluster engine does not answer").then_some(())
    });
    let lines = TABLE.iter().filter(|row| asks_a_daemon(row)).map(|row| {
        let words = world.files.fill(row.line);
        let command = bounded(row, world.at("n3", row.typed, &words));
        (row, words, command)
    });
    let tried = try_all(lines.collect());
    demand_none("no majority", tried.iter().filter_map(|one| one.demand(one.row.short, "engine").err()).collect());
    let made: Vec<_> = world.files.listed().into_keys().filter(|path| !listed.contains_key(path)).collect();
    assert!(made.is_empty(), "something was made: {made:?}");
    for node in ["n1", "n2"] {
        world.cluster.ok(&["dev", "restart", node]);
    }
    eventually("changes are possible again", SOON, || {
        let words = world.files.fill(&["n3", "again=yes"]);
        world.at("n3", "node label", &words).output().expect("dvs starts").status.success().then_some(())
    });
    let words = world.files.fill(&["n3", "again-"]);
    assert!(world.at("n3", "node label", &words).output().expect("dvs starts").status.success());
    assert_eq!(world.decided("n3"), decided);
    every_line_succeeds(&world, "n3");
    let slowest = tried.iter().filter(|one| one.row.short == Short::Refused).map(|one| one.took).max();
    println!("the slowest refusal took {slowest:?}");
}
