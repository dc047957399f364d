//! What commands print for programs: with `-o json` as `docs/output.schema.json` says, of every command that prints
//! anything; and in all other forms.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::io::{BufRead, BufReader};
use std::process::Stdio;
use std::time::Duration;

use end_to_end::openapi::Outputs;
use end_to_end::{Cluster, eventually};
use serde_json::Value;

const SOON: Duration = Duration::from_secs(60);

/// Commands that this test does not carry out, and who does; there what they print is of the same types.
const ELSEWHERE: [(&str, &str); 22] = [
    ("cluster authority", "certificates of this cluster are made by hand: joining.rs"),
    ("cluster rotate-ca", "likewise"),
    ("cluster init", "it is of a machine without a node: joining.rs"),
    ("node join", "likewise"),
    ("node token", "certificates of this cluster are made by hand: joining.rs"),
    ("node token rm", "there is none"),
    ("node remove", "joining.rs"),
    ("node upgrade", "upgrades.rs"),
    ("context add", "people.rs"),
    ("context use", "people.rs"),
    ("context show", "people.rs"),
    ("context rm", "people.rs"),
    ("dev up", "it was before this test"),
    ("dev down", "it is after this test"),
    ("server move", "placement is tried in containers.rs"),
    ("disk replica promote", "failover.rs"),
    ("ds watch", "store.rs"),
    ("alone disk", "alone/disk.rs"),
    ("alone fs", "alone/tree.rs"),
    ("alone file", "as disk mount"),
    ("alone check", "moments.rs"),
    ("disk mount", "exports.rs"),
];

/// Asks, and looks at what comes.
struct Asked<'a> {
    cluster: &'a Cluster,
    outputs: Outputs,
    asked: RefCell<BTreeSet<String>>,
}

impl Asked<'_> {
    /// The command and what follows its words.
    #[track_caller]
    fn json(&self, command: &str, more: &[&str]) -> Value {
        let printed = self.printed(command, more, &["-o", "json"]);
        let value = serde_json::from_str(&printed).unwrap_or_else(|error| panic!("{command}: {error}: {printed}"));
        self.check(command, &value);
        value
    }

    #[track_caller]
    fn lines(&self, command: &str, more: &[&str]) -> usize {
        let printed = self.printed(command, more, &["-o", "json"]);
        for line in printed.lines() {
            self.check(command, &serde_json::from_str(line).expect("JSON"));
        }
        printed.lines().count()
    }

    fn printed(&self, command: &str, more: &[&str], form: &[&str]) -> String {
        let words: Vec<&str> = form.iter().copied().chain(command.split(' ')).chain(more.iter().copied()).collect();
        self.cluster.ok(&words)
    }

    #[track_caller]
    fn check(&self, command: &str, value: &Value) {
        self.asked.borrow_mut().insert(command.to_owned());
        if let Err(why) = self.outputs.check(command, value) {
            panic!("{why}");
        }
    }

    /// Reads, in every form.
    #[track_caller]
    fn all_forms(&self, command: &str, more: &[&str]) {
        let json = self.json(command, more);
        let is_empty = json.as_array().is_some_and(Vec::is_empty);
        let [table, wide, yaml, names] =
            ["table", "wide", "yaml", "name"].map(|form| self.printed(command, more, &["-o", form]));
        assert!(wide.split_whitespace().next() == table.split_whitespace().next(), "{command}: {table}{wide}");
        assert!(!yaml.is_empty() && (is_empty || !names.trim().is_empty()), "{command}: {yaml}{names}");
        let lines = self.printed(command, more, &["--format", "json"]);
        lines.lines().for_each(|line| drop(serde_json::from_str::<Value>(line).expect("JSON")));
        assert_eq!(lines.is_empty(), is_empty, "{command}: {lines}");
    }
}

#[test]
fn everything_that_is_printed_for_programs_is_as_its_schema_says() {
    let cluster = Cluster::up(2);
    let asked = Asked { cluster: &cluster, outputs: Outputs::checked_in(), asked: RefCell::default() };
    let place = tempfile::tempdir().expect("a directory");
    let path = |name: &str| place.path().join(name).to_str().expect("text").to_owned();
    let put = |name: &str, text: &str| std::fs::write(path(name), text).expect("a file");

    // What there is to list.
    asked.json("dc create", &["shop", "--nodes", "n1,n2", "--replicas", "2", "--start", "--disk", "128M"]);
    asked.json("dc create", &["idle", "--nodes", "n1", "--replicas", "1", "--disk", "32M"]);
    let program = asked.json("run", &["-d", "shop", "--", "sh", "-c", "echo said; exec sleep 1000"]);
    let pid = program["pid"].to_string();
    let ended = cluster.ok(&["run", "-d", "shop", "-n", "n2", "--", "sh", "-c", "exit 3"]);
    asked.json("exec", &["-d", "--beside", &pid, "shop", "--", "true"]);
    assert_eq!(asked.json("wait", &["shop", ended.trim()])[0]["exit"], 3);
    asked.json("service add", &["shop", "web", "--node", "n2", "--", "sh", "-c", "echo up; exec sleep 1000"]);
    asked.json("service add", &["shop", "two", "--instances", "2", "--", "sleep", "1000"]);
    asked.json("port add", &["shop", "18090:80"]);
    asked.json("disk create", &["shop", "data", "--size", "16M", "--replicas", "1", "--sparse"]);
    asked.json("disk resize", &["shop", "data", "24M"]);
    asked.json("disk export", &["shop", "data", "--listen", "127.0.0.1:18091"]);
    asked.json("ds put", &["shop", "key", "value"]);
    asked.json("ds cas", &["shop", "other", "0", "value"]);
    asked.json("ds publish", &["shop", "topic", "value"]);
    cluster.sh("shop", "n1", "mkdir /dc/srv; echo one > /dc/srv/file");
    asked.json("fs snapshot create", &["shop", "before"]);
    asked.json("fs quota set", &["shop", "srv", "--bytes", "1M"]);
    asked.json("import", &["shop", "/etc/skel", "/imported"]);
    asked.json("access token", &["ada", "--role", "viewer", "--out", &path("ada")]);
    asked.json("access key", &["bob", "--out", place.path().to_str().expect("text")]);
    asked.json("access certificate", &["eve", "--role", "viewer", "--out", &path("eve")]);
    eventually("services run", SOON, || {
        let services = cluster.json(&["service", "ls", "shop", "-o", "json"]);
        let mut instances = services.as_array()?.iter().flat_map(|one| one["instances"].as_array().expect("a list"));
        instances.all(|one| one["state"] == "running").then_some(())
    });

    // Listings, in all forms.
    for (command, more) in [
        ("ps", &["--all"][..]),
        ("ps", &["shop"]),
        ("dc ls", &[]),
        ("dc inspect", &["shop"]),
        ("dc export", &["shop"]),
        ("node ls", &[]),
        ("node inspect", &["n2"]),
        ("service ls", &["shop"]),
        ("port ls", &["shop"]),
        ("disk ls", &[]),
        ("disk inspect", &["shop", "root"]),
        ("fs df", &["shop"]),
        ("fs snapshot ls", &["shop"]),
        ("fs quota ls", &["shop"]),
        ("fs diff", &["shop", "before"]),
        ("diff", &["shop"]),
        ("ds ls", &["shop"]),
        ("access ls", &[]),
        ("node token ls", &[]),
        ("cluster level", &[]),
        ("context ls", &[]),
        ("dev ls", &[]),
        ("stats", &["shop", "--no-stream"]),
        ("top", &["shop", "--no-stream"]),
        ("info", &[]),
        ("version", &[]),
        ("inspect", &["shop"]),
        ("inspect", &["n1"]),
        ("inspect", &["shop", &pid]),
        ("inspect", &["shop", "web"]),
        ("inspect", &["shop", "two/1"]),
        ("inspect", &["shop", "data"]),
        ("inspect", &["shop", "fs"]),
        ("inspect", &["shop", "18090"]),
    ] {
        asked.all_forms(command, more);
    }
    // Its status tells of the machine.
    let examined = cluster.output(&["doctor", "-o", "json"]);
    asked.check("doctor", &serde_json::from_slice(&examined.stdout).expect("JSON"));
    assert_eq!(asked.lines("logs", &["shop", &pid]), 1);
    assert!(asked.lines("logs", &["shop"]) >= 2, "of all programs");
    assert_eq!(asked.lines("service logs", &["shop", "web"]), 1);
    assert!(asked.lines("audit", &["n1"]) > 5);

    // What changes something.
    put("plan.toml", "name = 'idle'\nlimits = { pids = 99 }\n");
    asked.json("plan", &["-f", &path("plan.toml")]);
    asked.json("apply", &["-f", &path("plan.toml"), "--no-start"]);
    asked.json("ds get", &["shop", "key"]);
    asked.json("ds delete", &["shop", "key"]);
    asked.json("fs scrub", &["shop"]);
    asked.json("fs quota rm", &["shop", "srv"]);
    asked.json("disk verify", &["shop", "root"]);
    let stands = cluster.json(&["disk", "inspect", "shop", "root", "-o", "json"])["node"].clone();
    let copy = if stands == "n1" { "n2" } else { "n1" };
    asked.json("disk replica remove", &["shop", "root", copy]);
    asked.json("disk replica add", &["shop", "root", copy]);
    asked.json("disk unexport", &["shop"]);
    asked.json("disk delete", &["shop", "data"]);
    asked.json("dc backup", &["shop", &path("backup")]);
    asked.json("dc restore", &["--check", &path("backup")]);
    asked.json("cluster backup", &[&path("cluster")]);
    asked.json("node ca", &["home", "--out", &path("ca")]);
    asked.json("node cert", &["n1", "--ca", &path("ca"), "--out", &path("cert")]);
    asked.json("service move", &["shop", "two/0"]);
    for change in ["service restart", "service stop", "service start", "service rm"] {
        asked.json(change, &["shop", "web"]);
    }
    asked.json("port rm", &["shop", "18090"]);
    asked.json("access rm", &["ada"]);
    asked.json("node label", &["n1", "rack=a3"]);
    let mut listener = cluster.command_without_limit(&["events", "-o", "json"]);
    let mut listener = listener.stdout(Stdio::piped()).spawn().expect("dvs starts");
    let mut heard = BufReader::new(listener.stdout.take().expect("a pipe")).lines().map_while(Result::ok);
    std::thread::scope(|scope| {
        let first = scope.spawn(|| heard.next());
        eventually("something is heard", SOON, || {
            asked.json("node cordon", &["n2"]);
            asked.json("node uncordon", &["n2"]);
            first.is_finished().then_some(())
        });
        let first = first.join().expect("it reads").expect("an event");
        asked.check("events", &serde_json::from_str(&first).expect("JSON"));
    });
    listener.kill().expect("it is there");
    listener.wait().expect("it ends");
    asked.json("dc set", &["shop", "--pids", "500"]);
    for change in ["pause", "unpause"] {
        asked.json(change, &["shop"]);
    }
    asked.json("fs snapshot restore", &["-t", "1", "shop", "before"]);
    asked.json("fs snapshot rm", &["shop", "before"]);
    asked.json("restart", &["-t", "1", "shop"]);
    asked.json("stop", &["-t", "1", "shop"]);
    asked.json("rename", &["shop", "store"]);
    asked.json("dc rename", &["store", "shop"]);
    for change in ["start", "dc stop", "dc start"] {
        asked.json(change, &["shop"]);
    }
    asked.json("dc add-node", &["idle", "n2"]);
    asked.json("dc remove-node", &["idle", "n2"]);
    asked.json("rm", &["-f", "shop"]);
    asked.json("dc delete", &["idle"]);
    asked.json("dev wire", &["n2", "up"]);
    asked.json("dev kill", &["n2"]);
    asked.json("dev restart", &["n2"]);

    let mut left = asked.outputs.commands();
    left.retain(|command| !asked.asked.borrow().contains(command));
    let elsewhere: BTreeSet<String> = ELSEWHERE.iter().map(|(command, _)| (*command).to_owned()).collect();
    assert_eq!(left, elsewhere);
}
