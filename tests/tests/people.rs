//! People who ask from another machine: commands there, who may do what, what is written down, and what becomes of
//! those who have bad intentions.

use std::io::Write;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use end_to_end::machines::Machines;
use end_to_end::openapi::Description;
use end_to_end::terminal::Terminal;
use end_to_end::{dvs_binary, eventually};
use serde_json::Value;

const SOON: Duration = Duration::from_secs(60);
/// Of the machine elsewhere alone.
const CONFIG: &str = "XDG_CONFIG_HOME=/var/lib/dvs/config";
const N1: &str = "https://10.255.0.1:7420";

fn has_etcd() -> bool {
    let is_there = std::process::Command::new("etcd").arg("--version").output().is_ok();
    if !is_there {
        eprintln!("SKIPPED: there is no etcd (Debian: etcd-server)");
    }
    is_there
}

/// A cluster of `n1`, `n2`, and a machine without anything from which people ask: `n3`.
struct World {
    machines: Machines,
}

impl World {
    fn begin() -> World {
        let machines = Machines::up(3);
        machines.ok("n1", &["cluster", "init", "home"]);
        machines.start_daemon("n1");
        machines.join("n2");
        World { machines }
    }

    /// Gives access on `n1`, and carries the file to the other machine.
    fn give(&self, arguments: &[&str], name: &str) -> Value {
        let file = format!("/var/lib/dvs/{name}.access");
        self.machines.ok("n1", &[&["access"], arguments, &["--out", &file]].concat());
        assert_eq!(self.machines.sh("n1", &format!("stat -c %a {file}")).trim(), "600");
        let text = self.machines.sh("n1", &format!("cat {file}"));
        self.put(&file, &text);
        serde_json::from_str(&text).expect("JSON")
    }

    fn put(&self, file: &str, text: &str) {
        let mut child = self
            .machines
            .command("n3", &["sh", "-c", &format!("umask 077; cat > {file}")])
            .stdin(Stdio::piped())
            .spawn()
            .expect("a shell");
        child.stdin.take().expect("a pipe").write_all(text.as_bytes()).expect("written");
        assert!(child.wait().expect("it ends").success());
    }

    /// An operator with a token, whose context is used from then on.
    fn person(&self, name: &str, role: &str) -> Value {
        let file = self.give(&["token", name, "--role", role], name);
        self.ok(&["context", "add", name, "--token-file", &format!("/var/lib/dvs/{name}.access")]);
        file
    }

    /// `dvs` on the other machine, whose contexts are its own.
    fn command(&self, arguments: &[&str]) -> Command {
        let binary = dvs_binary();
        self.machines.command("n3", &[&["env", CONFIG, binary.to_str().expect("text")], arguments].concat())
    }

    fn dvs(&self, arguments: &[&str]) -> Output {
        self.command(arguments).stdin(Stdio::null()).output().expect("dvs starts")
    }

    fn ok(&self, arguments: &[&str]) -> String {
        let done = self.dvs(arguments);
        let said = String::from_utf8_lossy(&done.stderr);
        assert!(
            done.status.success(),
            "elsewhere, dvs {arguments:?}: {said}{}{}",
            self.machines.log("n1"),
            self.machines.log("n2")
        );
        String::from_utf8(done.stdout).expect("output is UTF-8")
    }

    fn fails(&self, arguments: &[&str]) -> (i32, String) {
        let done = self.dvs(arguments);
        assert!(!done.status.success(), "dvs {arguments:?} succeeded: {done:?}");
        (done.status.code().unwrap_or(-1), String::from_utf8_lossy(&done.stderr).into_owned())
    }

    fn json(&self, arguments: &[&str]) -> Value {
        let text = self.ok(&[arguments, &["-o", "json"]].concat());
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("not JSON ({error}): {text}"))
    }

    /// Other people's client: status, and what it was answered. The roots are those of the file.
    fn curl(&self, token: Option<&str>, arguments: &[&str]) -> (u16, String) {
        let header = token.map(|token| format!("Authorization: Bearer {token}"));
        let header = header.as_ref().map(|header| vec!["-H", header]).unwrap_or_default();
        let fixed = [
            "curl",
            "-s",
            "--path-as-is",
            "--max-time",
            "30",
            "--cacert",
            "/var/lib/dvs/ca.crt",
            "-w",
            "\n%{http_code}",
        ];
        let done = self.machines.run("n3", &[&fixed[..], &header, arguments].concat());
        let text = String::from_utf8_lossy(&done.stdout).into_owned();
        let (body, status) = text.rsplit_once('\n').expect("a status");
        (status.parse().expect("a number"), body.to_owned())
    }

    fn audit(&self, arguments: &[&str]) -> Vec<Value> {
        let text = self.machines.ok("n1", &[&["audit", "--json"], arguments].concat());
        text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
    }
}

#[test]
fn commands_work_from_another_machine_and_a_node_less_is_not_noticed() {
    if !has_etcd() {
        return;
    }
    let world = World::begin();
    let said = world.fails(&["node", "ls"]).1;
    assert!(said.contains("no daemon answers"), "{said}");
    world.person("ada", "operator");
    // Containers, programs with input, their status, logs, signals.
    world.ok(&["dc", "create", "shop", "--nodes", "n1,n2", "--start"]);
    assert_eq!(world.json(&["dc", "ls"])[0]["phase"], "running");
    for node in ["n1", "n2"] {
        let mut child = world
            .command(&["run", "-i", "shop", "--node", node, "--", "sh", "-c", "cat; echo err >&2; exit 7"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("dvs starts");
        // More than all buffers on the way.
        let input = vec![b'x'; 3 << 20];
        let mut pipe = child.stdin.take().expect("a pipe");
        let sent = input.clone();
        let writer = std::thread::spawn(move || pipe.write_all(&sent));
        let done = child.wait_with_output().expect("it ends");
        writer.join().expect("no panic").expect("written");
        assert_eq!((done.status.code(), done.stderr.as_slice()), (Some(7), &b"err\n"[..]), "{node}");
        assert!(done.stdout == input, "{node}: {} bytes came back", done.stdout.len());
        let pid = world.ok(&[
            "run",
            "-d",
            "shop",
            "--node",
            node,
            "--",
            "sh",
            "-c",
            "echo one; trap 'echo two; exit 3' USR1; while :; do sleep 0.05; done",
        ]);
        let pid = pid.trim().to_owned();
        let mut log = world.command(&["logs", "-f", "shop", &pid]).stdout(Stdio::piped()).spawn().expect("dvs starts");
        eventually("it runs", SOON, || world.ok(&["logs", "shop", &pid]).contains("one").then_some(()));
        world.ok(&["kill", "-s", "USR1", "shop", &pid]);
        let mut text = String::new();
        std::io::Read::read_to_string(&mut log.stdout.take().expect("a pipe"), &mut text).expect("read");
        assert!(log.wait().expect("it ends").success());
        assert_eq!(text, "one\ntwo\n", "{node}");
        // A terminal that follows the window, is left, and found again.
        let shell =
            ["run", "-it", "shop", "--node", node, "--env", "PS1=ready> ", "--", "bash", "--norc", "--noediting"];
        let mut terminal = Terminal::start(&world.command(&shell));
        terminal.shows("ready> ");
        terminal.press("stty size; echo pid=$$=\n");
        terminal.shows("24 80");
        terminal.shows("\npid=");
        let pid = terminal.shows("=").trim_end_matches('=').to_owned();
        terminal.shows("ready> ");
        terminal.resize(40, 132);
        terminal.press("stty size\n");
        terminal.shows("40 132");
        terminal.press("\x10\x11");
        terminal.shows("detached");
        assert_eq!(terminal.status(), 0);
        let mut terminal = Terminal::start(&world.command(&["attach", "shop", &pid]));
        terminal.press("echo ba\"\"ck; exit 5\n");
        terminal.shows("back");
        assert_eq!(terminal.status(), 5, "{node}");
    }
    // A directory goes into the tree.
    world.machines.sh("n3", "mkdir -p /var/lib/dvs/tree/a; echo hello > /var/lib/dvs/tree/a/b");
    world.ok(&["import", "shop", "/var/lib/dvs/tree", "/data"]);
    assert_eq!(world.ok(&["run", "shop", "--node", "n2", "--", "cat", "/dc/data/a/b"]), "hello\n");
    world.ok(&["ds", "put", "shop", "k", "v"]);
    assert_eq!(world.ok(&["ds", "get", "shop", "k"]).trim(), "v");
    // The stream outlives the daemon by which it goes; any node will do.
    let child = world
        .command(&[
            "run",
            "shop",
            "--node",
            "n2",
            "--",
            "sh",
            "-c",
            "i=0; while [ $i -lt 100 ]; do i=$((i+1)); echo $i; sleep 0.1; done; exit 9",
        ])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("dvs starts");
    std::thread::sleep(Duration::from_secs(1));
    let daemon = world.machines.daemon_pid("n1").expect("it runs");
    world.machines.sh("n1", &format!("kill -9 {daemon}"));
    let nodes = world.json(&["node", "ls"]);
    assert_eq!(nodes.as_array().map(Vec::len), Some(2), "n2 answers: {nodes}");
    let done = child.wait_with_output();
    let done = done.expect("it ends");
    let expected: String = (1..=100).map(|number| format!("{number}\n")).collect();
    assert_eq!(
        (done.status.code(), String::from_utf8_lossy(&done.stdout).into_owned()),
        (Some(9), expected),
        "{done:?}"
    );
}

/// Everything that can be asked for, asked by everybody: who may not is refused, and whoever may is answered as the
/// description says. Names of things that are not there keep administrators from harm.
#[test]
fn each_role_gets_what_it_should_and_every_answer_is_as_described() {
    if !has_etcd() {
        return;
    }
    let world = World::begin();
    let description = Description::checked_in();
    let roles = ["viewer", "operator", "administrator"];
    let mut callers: Vec<(&str, Option<String>)> = vec![("anyone", None)];
    for role in roles {
        let file = world.give(&["token", role, "--role", role], role);
        world.put("/var/lib/dvs/ca.crt", file["roots_pem"].as_str().expect("roots"));
        callers.push((role, file["token"].as_str().map(str::to_owned)));
    }
    let rank =
        |least: &str| ["anyone", "viewer", "operator", "administrator", "node"].iter().position(|one| *one == least);
    for way in description.ways() {
        let names = [("{dc}", "nothing"), ("{pid}", "65600"), ("{node}", "n9"), ("{id}", "00"), ("{name}", "nobody")];
        let path = names
            .iter()
            .chain(&[("{service}", "nothing")])
            .fold(way.path.clone(), |path, (name, value)| path.replace(name, value));
        // Adding, so that the path of an import is there.
        let url = format!("{N1}{path}?path=/x&tail=1");
        for (role, token) in &callers {
            let may = rank(role) >= rank(&way.least);
            if may && way.operation == "authority-rotate" {
                continue;
            }
            let (status, body) = world.curl(token.as_deref(), &["-X", &way.method, "-d", "{}", &url]);
            let expected_refusal = if *role == "anyone" { 401 } else { 403 };
            let is_refused = matches!(status, 401 | 403);
            assert_eq!(is_refused, !may, "{role}, {} {path}: {status} {body}", way.method);
            assert!(may || status == expected_refusal, "{role}, {} {path}: {status} {body}", way.method);
            description.check(&way, status, &body).unwrap_or_else(|why| panic!("{role}: {why}"));
            if !may && *role != "anyone" {
                assert!(body.contains(&format!("it needs the role {}", way.least)) || way.least == "node", "{body}");
            }
        }
    }

    // What there is, as it is described.
    world.machines.ok("n1", &["dc", "create", "shop", "--nodes", "n1,n2", "--start"]);
    let pid = world.machines.ok("n1", &["run", "-d", "shop", "--node", "n2", "--", "sleep", "600"]).trim().to_owned();
    world.machines.ok("n1", &["service", "add", "shop", "clock", "--", "sleep", "600"]);
    world.machines.ok("n1", &["node", "label", "n2", "rack=a3"]);
    world.machines.token(&[]);
    let (_, administrator) = callers.pop().expect("the last one");
    for way in description.ways().into_iter().filter(|way| way.method == "GET") {
        if ["attach", "audit", "backup", "disk-read", "export", "health-facts", "upgrade"]
            .contains(&way.operation.as_str())
        {
            continue;
        }
        let path = way.path.replace("{dc}", "shop").replace("{pid}", &pid).replace("{node}", "n2");
        let path = path.replace("{service}", "clock");
        let (status, body) = world.curl(administrator.as_deref(), &[&format!("{N1}{path}")]);
        assert!(matches!(status, 200 | 503), "{path}: {status} {body}");
        description.check(&way, status, &body).unwrap_or_else(|why| panic!("{why}"));
    }
    let run = r#"{"argv":["true"],"detach":true}"#;
    for (operation, path, body) in
        [("run", "/v1/dcs/shop/processes", run), ("dc-stop", "/v1/dcs/shop/stop?grace_ms=0", "")]
    {
        let way = description.ways().into_iter().find(|way| way.operation == operation).expect("it is described");
        let (status, body) = world.curl(administrator.as_deref(), &["-X", "POST", "-d", body, &format!("{N1}{path}")]);
        assert_eq!(status, 200, "{operation}: {body}");
        description.check(&way, status, &body).unwrap_or_else(|why| panic!("{why}"));
    }

    // All of it was written down, and nothing secret.
    let entries = world.audit(&["n1", "--tail", "10000"]);
    for entry in &entries {
        let text = entry.to_string();
        assert!(!text.contains("dvs_"), "{text}");
        let way =
            description.ways().into_iter().find(|way| way.operation == entry["operation"].as_str().unwrap_or_default());
        let is_refusal = matches!(entry["status"].as_u64(), Some(401 | 403));
        assert!(is_refusal || way.is_some_and(|way| way.is_audited), "only changes and refusals: {text}");
    }
    let find = |who: &str, operation: &str| {
        entries
            .iter()
            .rfind(|entry| entry["who"]["name"] == who && entry["operation"] == operation)
            .unwrap_or_else(|| panic!("{who} {operation}"))
    };
    let refused = find("viewer", "dc-create");
    assert!(
        refused["status"] == 403 && refused["error"] == "forbidden" && refused["who"]["by"] == "token",
        "{refused}"
    );
    assert!(refused["who"]["role"] == "viewer" && refused["node"] == "n1", "{refused}");
    assert!(refused["who"]["address"].as_str().is_some_and(|address| address.starts_with("10.255.0.3:")), "{refused}");
    let made = find("root", "dc-create");
    assert!(made["status"] == 201 && made["who"]["by"] == "socket" && made["who"]["uid"] == 0, "{made}");
    assert_eq!(find("administrator", "dc-stop")["path"], "/v1/dcs/shop/stop");
    assert_eq!(find("root", "access-create")["status"], 201);
    // Whoever follows it sees what is asked of any node.
    let binary = dvs_binary();
    let follow =
        format!("timeout 30 {} audit -f --json --tail 1 | grep -m1 '\"node\":\"n2\".*node-change'", binary.display());
    let following =
        world.machines.command("n1", &["sh", "-c", &follow]).stdout(Stdio::piped()).spawn().expect("a shell");
    let seen = std::thread::spawn(move || following.wait_with_output());
    eventually("it is seen", SOON, || {
        world.machines.ok("n2", &["node", "label", "n1", "rack=b4"]);
        seen.is_finished().then_some(())
    });
    let seen = seen.join().expect("no panic").expect("it ends");
    assert!(String::from_utf8_lossy(&seen.stdout).contains("\"by\":\"socket\""), "{seen:?}");
    let elsewhere = world.audit(&["n2"]);
    assert!(elsewhere.iter().all(|entry| entry["operation"] != "run"), "it was asked of n1 alone: {elsewhere:?}");
}

#[test]
fn access_ends_when_it_is_taken_back_and_nobody_takes_anothers_place() {
    if !has_etcd() {
        return;
    }
    let world = World::begin();
    world.machines.ok("n1", &["dc", "create", "shop", "--nodes", "n1,n2", "--start"]);
    let ada = world.person("ada", "operator");
    world.put("/var/lib/dvs/ca.crt", ada["roots_pem"].as_str().expect("roots"));
    let token = ada["token"].as_str().expect("a token").to_owned();

    // What she has open ends when she is nobody any more: a program's stream, a log, a connection.
    let binary = dvs_binary();
    let binary = binary.to_str().expect("text");
    let pid = world.ok(&["run", "-d", "shop", "--node", "n1", "--", "sleep", "600"]).trim().to_owned();
    let open = |arguments: &[&str]| {
        let command = world.command(arguments).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
        command.expect("dvs starts")
    };
    let streams = [
        open(&["run", "shop", "--node", "n1", "--", "sh", "-c", "echo begun; sleep 600"]),
        open(&["run", "shop", "--node", "n2", "--", "sh", "-c", "echo begun; sleep 600"]),
        open(&["logs", "-f", "shop", &pid]),
    ];
    eventually("all of them are connected", SOON, || {
        let metrics = world.machines.ok("n1", &["metrics"]);
        metrics.contains("\ndvs_api_people_connections 3\n").then_some(())
    });
    let since = Instant::now();
    world.machines.ok("n1", &["access", "rm", "ada"]);
    for stream in streams {
        let done = stream.wait_with_output().expect("it ends");
        let said = String::from_utf8_lossy(&done.stderr).into_owned();
        assert!(!done.status.success() || said.is_empty(), "{done:?}");
    }
    assert!(since.elapsed() < Duration::from_secs(30), "{:?}", since.elapsed());
    let (status, said) = world.fails(&["ps", "shop"]);
    assert!(status == 1 && said.contains("taken back") && said.contains("dvs access"), "{said}");
    assert_eq!(world.curl(Some(&token), &[&format!("{N1}/v1/nodes")]).0, 401);

    // One that ends by itself says so, with both clocks.
    world.give(&["token", "short", "--role", "viewer", "--ttl", "10s"], "short");
    world.ok(&["context", "add", "short", "--token-file", "/var/lib/dvs/short.access"]);
    let said = eventually("it ends, and says so", SOON, || {
        let done = world.dvs(&["--context", "short", "node", "ls"]);
        let said = String::from_utf8_lossy(&done.stderr).into_owned();
        // A connection that is open at that moment is cut.
        (!done.status.success() && said.contains("has ended")).then_some(said)
    });
    assert!(
        said.contains("the token has ended") && said.contains("good until 20") && said.contains("node n"),
        "{said}"
    );

    // A certificate of one's own, whose key stays where it is.
    world.machines.sh("n3", &format!("cd /var/lib/dvs && {binary} access key bob"));
    let certificate = world.machines.sh("n3", "cat /var/lib/dvs/bob.crt");
    world.machines.sh("n1", &format!("cat > /var/lib/dvs/bob.crt <<'END'\n{certificate}END"));
    let file = world.give(&["certificate", "bob", "--role", "viewer", "--of", "/var/lib/dvs/bob.crt"], "bob");
    assert!(file["token"].is_null() && file["key_pem"].is_null(), "no secret is in it");
    let said = world.fails(&["context", "add", "bob", "--token-file", "/var/lib/dvs/bob.access"]).1;
    assert!(said.contains("nobody would know who you are"), "{said}");
    let own = ["--certificate", "/var/lib/dvs/bob.crt", "--key", "/var/lib/dvs/bob.key"];
    world.ok(&[&["context", "add", "bob", "--token-file", "/var/lib/dvs/bob.access"], &own[..]].concat());
    world
        .ok(&[&["context", "add", "bob2", "10.255.0.2", "--of", "home", "--ca", "/var/lib/dvs/ca.crt"], &own[..]]
            .concat());
    world.ok(&["--context", "bob", "node", "ls"]);
    let (status, said) = world.fails(&["--context", "bob2", "dc", "stop", "shop"]);
    assert!(status == 1 && said.contains("it needs the role operator; 'bob' has the role viewer"), "{said}");
    let with_curl = ["--cert", "/var/lib/dvs/bob.crt", "--key", "/var/lib/dvs/bob.key"];
    assert_eq!(world.curl(None, &[&with_curl[..], &[&format!("{N1}/v1/nodes")]].concat()).0, 200);
    assert_eq!(world.curl(None, &[&with_curl[..], &[&format!("{N1}/v1/access")]].concat()).0, 403);
    // It opens nothing else: not the engine, not a link.
    for port in ["2379", "2380"] {
        let asked =
            ["curl", "-sk", "--max-time", "5", "--cert", "/var/lib/dvs/bob.crt", "--key", "/var/lib/dvs/bob.key"];
        assert!(
            !world
                .machines
                .run("n3", &[&asked[..], &[&format!("https://10.255.0.1:{port}/version")]].concat())
                .status
                .success(),
            "{port}"
        );
    }
    let said = world.machines.run("n3", &["sh", "-c", "openssl s_client -connect 10.255.0.1:7421 -cert /var/lib/dvs/bob.crt -key /var/lib/dvs/bob.key </dev/null 2>&1; sleep 0"]);
    let said = String::from_utf8_lossy(&said.stdout).into_owned();
    assert!(said.contains("alert") || !said.contains("Verify return code: 0"), "{said}");
    // A node's certificate is not registered as a person's.
    let refused = world.machines.fails(
        "n1",
        &[
            "access",
            "certificate",
            "eve",
            "--role",
            "viewer",
            "--of",
            "/var/lib/dvs/tls/node.crt",
            "--out",
            "/var/lib/dvs/eve",
        ],
    );
    assert!(refused.contains("has a name that nodes have"), "{refused}");
    world.machines.ok("n1", &["access", "rm", "bob"]);
    let said = world.fails(&["--context", "bob", "node", "ls"]).1;
    assert!(said.contains("does not know the certificate"), "{said}");

    // What works on this machine alone is refused where another one is named, and so is what makes no sense.
    let said = world.fails(&["--context", "bob", "dev", "up"]).1;
    assert!(said.contains("cannot be done in context 'bob'") && said.contains("of this machine"), "{said}");
    let said = world.fails(&["--context", "none", "node", "ls"]).1;
    assert!(said.contains("no context 'none'") && said.contains("bob2"), "{said}");
    let here = world.fails(&["--context", "local", "node", "ls"]).1;
    assert!(here.contains("no daemon answers"), "{here}");
    // Whoever changed the file to be read by others hears of it.
    world.machines.sh("n3", "chmod 644 /var/lib/dvs/ada.access");
    let said = world.fails(&["context", "add", "x", "--token-file", "/var/lib/dvs/ada.access"]).1;
    assert!(said.contains("may be read by others") && said.contains("chmod 600"), "{said}");
}

#[test]
fn client_says_what_is_wrong_with_the_way_to_the_cluster() {
    if !has_etcd() {
        return;
    }
    let world = World::begin();
    world.person("ada", "viewer");
    let context = "/var/lib/dvs/config/dvs/contexts/ada.json";
    let changed = |script: &str| {
        // As somebody may have changed it; asked for again only when it is old.
        world.machines.sh("n3", &format!("cp -p {context} /var/lib/dvs/kept; python3 -c 'import json,time; p=\"{context}\"; c=json.load(open(p)); c[\"refreshed_s\"]=int(time.time()); {script}; open(p,\"w\").write(json.dumps(c))'"));
    };
    let restored = || world.machines.sh("n3", &format!("cp -p /var/lib/dvs/kept {context}"));
    changed("c[\"cluster\"]=\"other\"");
    let said = world.fails(&["node", "ls"]).1;
    assert!(
        said.contains("not believed to be a node of cluster 'other'") && said.contains("names no node of this cluster"),
        "{said}"
    );
    restored();
    world.machines.sh("n3", "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -keyout /var/lib/dvs/o.key -out /var/lib/dvs/o.crt -subj /CN=other -days 1 2>/dev/null");
    changed("c[\"roots_pem\"]=open(\"/var/lib/dvs/o.crt\").read()");
    let said = world.fails(&["node", "ls"]).1;
    assert!(said.contains("none of the context") && said.contains("another authority"), "{said}");
    restored();
    // The doctor looks at the cluster, not at this machine.
    let examined = world.ok(&["doctor"]);
    assert!(examined.contains("cluster  ok") && examined.lines().count() == 2, "{examined}");
    // Which context is meant.
    let binary = dvs_binary();
    let binary = binary.to_str().expect("text");
    let said = world.machines.run("n3", &["env", CONFIG, "DVS_CONTEXT=none", binary, "node", "ls"]);
    assert!(String::from_utf8_lossy(&said.stderr).contains("no context 'none'"), "{said:?}");
    world.ok(&["context", "use", "local"]);
    assert!(world.fails(&["node", "ls"]).1.contains("no daemon answers"));
    let named = world.machines.run("n3", &["env", CONFIG, "DVS_CONTEXT=ada", binary, "node", "ls", "-o", "name"]);
    assert_eq!(String::from_utf8_lossy(&named.stdout), "n1\nn2\n", "{named:?}");
    let listed = world.json(&["context", "ls"]);
    assert!(listed[0]["name"] == "ada" && listed[0]["is_used"] == false, "{listed}");
    world.ok(&["context", "use", "ada"]);
    // Addresses where nobody is: each is named. One that is away costs no more than a moment.
    changed("c[\"addresses\"]=[\"10.255.0.99:7420\",\"10.255.0.1:1\"]");
    let said = world.fails(&["node", "ls"]).1;
    assert!(
        said.contains("no node of cluster 'home' can be reached")
            && said.contains("10.255.0.99:7420")
            && said.contains("10.255.0.1:1: Connection refused"),
        "{said}"
    );
    assert_eq!(world.fails(&["run", "shop", "--", "true"]).0, 125);
    restored();
    changed("c[\"addresses\"]=[\"10.255.0.99:7420\",\"10.255.0.2:7420\"]");
    let since = Instant::now();
    world.ok(&["node", "ls"]);
    assert!(since.elapsed() < Duration::from_secs(3), "{:?}", since.elapsed());
    restored();
    // Addresses of nodes that came later are learned.
    changed("c[\"addresses\"]=[\"10.255.0.2:7420\"]; c[\"refreshed_s\"]=0");
    world.ok(&["node", "ls"]);
    let shown = world.json(&["context", "show"]);
    assert_eq!(shown["addresses"].as_array().map(Vec::len), Some(2), "{shown}");
    // A machine off is no outage; a cluster off is one, said in words.
    world.machines.dev(&["kill", "n1"]);
    world.ok(&["version"]);
    let listed =
        eventually("n2 answers", SOON, || Some(world.dvs(&["node", "ls"])).filter(|done| done.status.success()));
    assert!(String::from_utf8_lossy(&listed.stdout).contains("n2"), "{listed:?}");
}

/// Somebody who has a network, openssl and curl, and a token that was taken back.
#[test]
fn attackers_get_nothing_and_keep_nobody_out() {
    if !has_etcd() {
        return;
    }
    let world = World::begin();
    world.machines.ok("n1", &["dc", "create", "shop", "--nodes", "n1,n2", "--start"]);
    let ada = world.person("ada", "operator");
    world.put("/var/lib/dvs/ca.crt", ada["roots_pem"].as_str().expect("roots"));
    let good = ada["token"].as_str().expect("a token").to_owned();
    let viewer =
        world.give(&["token", "viewer", "--role", "viewer"], "viewer")["token"].as_str().expect("a token").to_owned();

    // Paths in other spellings are no way around the check.
    for path in [
        "/v1//access",
        "//v1/access",
        "/v1/access/",
        "/v1/./access",
        "/v1/nodes/../access",
        "/v1/%61ccess",
        "/V1/access",
        "/v1/Access",
        "/v1%2faccess",
        "/v1/nodes/%2e%2e/access",
        "/v1/access%00",
        "/v1/access;x",
        "/v1/dcs/..%2f..%2faccess",
        "/v1/dcs/shop%2fprocesses",
        "/v1/dcs/%2e%2e",
    ] {
        let (status, body) = world.curl(Some(&viewer), &[&format!("{N1}{path}")]);
        assert!(matches!(status, 400 | 403 | 404), "{path}: {status} {body}");
        assert!(!body.contains("made_by"), "{path}: {body}");
        let (status, body) = world.curl(None, &[&format!("{N1}{path}")]);
        assert!(matches!(status, 400 | 401), "{path}: {status} {body}");
    }
    // Nor are headers and methods.
    for more in [
        ["-H", "x-dvs-forwarded-by: n2"],
        ["-H", "X-HTTP-Method-Override: DELETE"],
        ["-X", "HEAD"],
        ["-X", "OPTIONS"],
        ["-X", "PUT"],
        ["-H", "Authorization: Basic YWRhOmFkYQ=="],
    ] {
        let (status, body) = world.curl(Some(&viewer), &[&more[..], &["-m", "5", &format!("{N1}/v1/access")]].concat());
        assert!(matches!(status, 400 | 401 | 403), "{more:?}: {status} {body}");
    }
    let forwarded = world.curl(Some(&good), &["-H", "x-dvs-forwarded-by: n2", &format!("{N1}/v1/dcs/shop/processes")]);
    assert_eq!(forwarded.0, 200);
    // Two people on one connection are none.
    let switched = world.machines.sh("n3", &format!(
        "curl -s --cacert /var/lib/dvs/ca.crt -o /dev/null -w '%{{http_code}} ' -H 'Authorization: Bearer {viewer}' {N1}/v1/nodes \
         --next -s --cacert /var/lib/dvs/ca.crt -o /dev/null -w '%{{http_code}} %{{num_connects}}' -H 'Authorization: Bearer {good}' {N1}/v1/nodes"
    ));
    assert!(switched == "200 401 0" || switched == "200 200 1", "{switched}");

    // A flood of wrong tokens is refused, after a while without a look, and does not fill the log.
    let wrong = format!("dvs_ada_{}", "0".repeat(64));
    let before = world.audit(&["n1", "--tail", "10000"]).len();
    let flood = world.machines.sh("n3", &format!(
        "for i in $(seq 8); do curl -s --cacert /var/lib/dvs/ca.crt -o /dev/null -w '%{{http_code}}\\n' -H 'Authorization: Bearer {wrong}' '{N1}/v1/nodes?[1-25]' & done; wait"
    ));
    let count = |status: &str| flood.lines().filter(|line| *line == status).count();
    assert!(count("401") + count("429") == 200 && count("429") > 150, "{flood}");
    assert_eq!(world.curl(Some(&good), &[&format!("{N1}/v1/nodes")]).0, 200, "from the same address");
    let entries = world.audit(&["n1", "--tail", "10000"]);
    assert!(entries.len() < before + 60, "{} entries", entries.len() - before);

    // Headers without end, and slow ones.
    let big = "a".repeat(100_000);
    let (one, two) = (format!("x-big: {big}"), format!("x-more: {big}"));
    let (status, _) = world.curl(Some(&good), &["-H", &one, "-H", &two, &format!("{N1}/v1/nodes")]);
    assert!(matches!(status, 0 | 431), "{status}");
    let many: String = (0..300).map(|index| format!("-H 'x-{index}: y' ")).collect();
    let many = world.machines.sh("n3", &format!("curl -s --cacert /var/lib/dvs/ca.crt -o /dev/null -w '%{{http_code}}' {many} -H 'Authorization: Bearer {good}' {N1}/v1/nodes || true"));
    assert!(matches!(many.trim(), "000" | "431"), "{many}");
    // 300 connections that say nothing, as many that say a little: people and nodes come in all the same.
    let slow = "import socket,ssl,time\nc=ssl.create_default_context(); c.check_hostname=False; c.verify_mode=ssl.CERT_NONE\nall=[]\nfor i in range(300):\n  s=socket.create_connection((\"10.255.0.1\",7420)); all.append(s)\nfor i in range(120):\n  try:\n    s=c.wrap_socket(socket.create_connection((\"10.255.0.1\",7420))); s.send(b\"GET /v1/nodes HTTP/1.1\\r\\nHost: x\\r\\n\"); all.append(s)\n  except OSError: pass\nprint(\"open\",flush=True)\nfor i in range(20):\n  time.sleep(0.5)\n  for s in all:\n    try: s.send(b\"x: y\\r\\n\")\n    except OSError: pass\n";
    world.put("/var/lib/dvs/slow.py", slow);
    let mut attacker = world
        .machines
        .command("n3", &["python3", "/var/lib/dvs/slow.py"])
        .stdout(Stdio::piped())
        .spawn()
        .expect("python");
    let mut line = [0; 5];
    std::io::Read::read_exact(attacker.stdout.as_mut().expect("a pipe"), &mut line).expect("it began");
    for _ in 0..5 {
        world.ok(&["node", "ls"]);
        world.ok(&["run", "shop", "--node", "n2", "--", "true"]);
    }
    world.machines.ok("n2", &["run", "shop", "--node", "n1", "--", "true"]);
    attacker.kill().expect("it runs");
    attacker.wait().expect("it ends");

    // A person who opens all that may be opened keeps nobody else out.
    let greedy = format!(
        "import socket,ssl,time\nc=ssl.create_default_context(); c.check_hostname=False; c.verify_mode=ssl.CERT_NONE\nall=[]; answers={{}}\nfor i in range(100):\n  s=c.wrap_socket(socket.create_connection((\"10.255.0.1\",7420))); s.send(b\"GET /v1/version HTTP/1.1\\r\\nHost: x\\r\\nAuthorization: Bearer {viewer}\\r\\n\\r\\n\"); a=s.recv(12)[9:].decode(); answers[a]=answers.get(a,0)+1; all.append(s)\nprint(answers,flush=True)\ntime.sleep(5)\n"
    );
    world.put("/var/lib/dvs/greedy.py", &greedy);
    let mut attacker = world
        .machines
        .command("n3", &["python3", "/var/lib/dvs/greedy.py"])
        .stdout(Stdio::piped())
        .spawn()
        .expect("python");
    let mut answers = String::new();
    std::io::BufRead::read_line(&mut std::io::BufReader::new(attacker.stdout.take().expect("a pipe")), &mut answers)
        .expect("it tells");
    assert!(answers.contains("'200': 64") && answers.contains("'429': 36"), "{answers}");
    world.ok(&["node", "ls"]);
    attacker.kill().expect("it runs");
    attacker.wait().expect("it ends");
}

#[test]
fn audit_log_whose_disk_is_full_stops_nothing_and_says_what_it_lost() {
    if !has_etcd() {
        return;
    }
    let machines = Machines::up(1);
    machines.ok("n1", &["cluster", "init", "home"]);
    machines.sh("n1", "mkdir -p /var/lib/dvs/audit && mount -t tmpfs -o size=64k none /var/lib/dvs/audit");
    machines.start_daemon("n1");
    let change = |number: usize| machines.ok("n1", &["node", "label", "n1", &format!("count={number}")]);
    let ready = || machines.sh("n1", "curl -s --unix-socket /run/dvs/dvsd.sock http://dvs/readyz");
    change(0);
    machines.sh("n1", "dd if=/dev/zero of=/var/lib/dvs/audit/filler bs=1k 2>/dev/null || true");
    // The last page of the file has room for some.
    let mut changes = 0;
    let said = eventually("it is said that entries are lost", SOON, || {
        changes += 1;
        change(changes);
        Some(ready()).filter(|said| said.contains("audit"))
    });
    assert!(said.contains("[-] audit: audit: entries cannot be written") && said.contains("No space left"), "{said}");
    let examined = machines.dvs("n1", &["doctor"]);
    assert!(String::from_utf8_lossy(&examined.stdout).contains("audit"), "{examined:?}");
    change(changes + 1);
    machines.sh("n1", "rm /var/lib/dvs/audit/filler");
    change(changes + 2);
    eventually("it is well again", SOON, || (ready() == "ok\n").then_some(()));
    let text = machines.sh("n1", "cat /var/lib/dvs/audit/audit.jsonl");
    let entries: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).expect("whole lines")).collect();
    let last = entries.last().expect("entries");
    let (written, lost) =
        (entries.iter().filter(|entry| entry["operation"] == "node-change").count(), last["lost"].as_u64());
    assert_eq!(written as u64 + lost.unwrap_or(0), changes as u64 + 3, "each is written or counted: {last}");
    assert!(lost.is_some_and(|lost| lost >= 2), "{last}");
    assert_eq!(machines.sh("n1", "stat -c %a /var/lib/dvs/audit/audit.jsonl").trim(), "600");
}
