//! `dvs` in containers: their programs ask the daemon of their node, for their own container and for nothing else.

use std::process::Stdio;
use std::time::{Duration, Instant};

use end_to_end::openapi::Description;
use end_to_end::{Cluster, eventually};
use serde_json::{Value, json};

const SOON: Duration = Duration::from_secs(30);

/// Asks at the hatch: each line of input is a request, `[method, path, headers, bytes of the body]`. Each line of
/// output is an answer, `[status, body]`.
const ASK: &str = "
import json, socket, sys
for line in sys.stdin:
    method, path, headers, size = json.loads(line)
    s = socket.socket(socket.AF_UNIX)
    s.settimeout(20)
    s.connect('/run/dvs/dvsd.sock')
    try:
        s.sendall(f'{method} {path} HTTP/1.1\\r\\nHost: dvs\\r\\nConnection: close\\r\\n{headers}Content-Length: {size}\\r\\n\\r\\n'.encode())
        s.sendall(b'x' * size)
    except OSError:
        pass
    text = b''
    try:
        while got := s.recv(65536):
            text += got
    except OSError:
        pass
    head, _, body = text.partition(b'\\r\\n\\r\\n')
    print(json.dumps([int((head.split() or [0, 0])[1]), body.decode(errors='replace')]), flush=True)
";

/// Takes all that its container can have of the daemon, says so, and goes on until its input ends.
const FLOOD: &str = "
import os, socket, sys, threading, time
HATCH = '/run/dvs/dvsd.sock'
GET = b'GET /v1/dcs/shop/%s HTTP/1.1\\r\\nHost: dvs\\r\\n\\r\\n'
held, counts = [], {}
def count(what):
    counts[what] = counts.get(what, 0) + 1
def connection(limit=5):
    s = socket.socket(socket.AF_UNIX)
    s.settimeout(limit)
    s.connect(HATCH)
    return s
def hold():
    # Streams that stay open, answers that nobody reads, requests that never end, garbage.
    for index in range(400):
        try:
            s = connection()
            if index % 5 == 0: s.sendall(b'GET /v1/events HTTP/1.1\\r\\nHost: dvs\\r\\n\\r\\n')
            elif index % 5 == 1: s.sendall(GET % b'processes' * 1000)
            elif index % 5 == 2: s.sendall(b'POST /v1/dcs/shop/processes HTTP/1.1\\r\\nHost: dvs\\r\\nContent-Length: 99999999\\r\\n\\r\\n' + b'x' * 100000)
            elif index % 5 == 3: s.sendall(os.urandom(2000))
            held.append(s)
            count('held')
        except OSError:
            count('refused')
def hammer():
    while not done:
        try:
            s = connection()
            s.sendall(GET % b'processes')
            count(s.recv(100).split()[1].decode() if s.recv(0) == b'' else '')
            s.close()
        except (OSError, IndexError):
            count('broken')
done = False
hold()
threads = [threading.Thread(target=hammer) for _ in range(16)]
[t.start() for t in threads]
print('flooding', flush=True)
sys.stdin.read()
done = True
[t.join() for t in threads]
print(counts, flush=True)
";

fn said(cluster: &Cluster, node: &str, script: &str) -> String {
    let script = format!("{script}\nexit 0");
    cluster.ok(&["run", "shop", "--node", node, "--", "bash", "-c", &script]).trim().to_owned()
}

/// What the hatch answers to each of the requests.
fn answers(cluster: &Cluster, user: &[&str], requests: &[Value]) -> Vec<(u64, String)> {
    let input: String = requests.iter().map(|request| format!("{request}\n")).collect();
    let program = user.iter().copied().chain(["python3", "-c", ASK]).collect::<Vec<_>>();
    let arguments = [&["run", "-i", "shop", "--node", "n1", "--"], &program[..]].concat();
    let mut child = cluster.command(&arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("dvs");
    let mut stdin = child.stdin.take().expect("a pipe");
    let writer = std::thread::spawn(move || std::io::Write::write_all(&mut stdin, input.as_bytes()));
    let output = child.wait_with_output().expect("its output");
    writer.join().expect("no panic").expect("it was read");
    let answer = |line: &str| {
        let line: Value = serde_json::from_str(line).expect("JSON");
        (line[0].as_u64().expect("a status"), line[1].as_str().expect("text").to_owned())
    };
    let answers: Vec<_> = String::from_utf8_lossy(&output.stdout).lines().map(answer).collect();
    assert_eq!(answers.len(), requests.len(), "{output:?}");
    answers
}

const USER: [&str; 6] = ["setpriv", "--reuid", "33", "--regid", "33", "--clear-groups"];

#[test]
fn programs_of_a_container_use_dvs_for_their_own_on_every_node() {
    let cluster = Cluster::up(3);
    cluster.container("shop", 2, &["--env", "SECRET=hunter2"]);
    cluster.container("other", 3, &[]);
    for (here, there) in [("n1", "n2"), ("n2", "n1")] {
        let say = |script: &str| said(&cluster, here, script);
        assert_eq!(
            say(&format!("dvs run --node {there} -- hostname; dvs run --node {there} shop -- hostname")),
            format!("{there}\n{there}")
        );
        assert_eq!(
            say(&format!("dvs run -n {there} -- sh -c 'exit 7'; echo $?; echo in | dvs run -i -n {there} -- cat")),
            "7\nin"
        );
        let life = format!(
            "pid=$(dvs run -d --node {there} -- sh -c 'echo begun; exec sleep 1000'); \
             until dvs logs $pid | grep begun; do sleep 0.05; done; dvs inspect $pid -o name; dvs ps -o name | grep -c $pid; \
             dvs kill $pid; dvs wait $pid >/dev/null; dvs ps --all -o json shop | grep -c '\"exit\": 143'"
        );
        let life = say(&life);
        let lines: Vec<&str> = life.lines().collect();
        assert!(lines[0] == "begun" && lines[2] == "1" && lines[3] != "0", "{life}");
        assert_eq!(say("dvs dc ls -o name; dvs inspect -o json | grep -c '\"name\": \"shop\"'"), "shop\n1");
        assert_eq!(
            say("dvs ds put key value; dvs ds get key; echo; dvs ds get shop key").lines().skip(1).collect::<Vec<_>>(),
            ["value", "value"]
        );
        assert_eq!(
            say(
                "dvs fs snapshot create now 2>/dev/null; dvs fs snapshot ls -o name; dvs fs snapshot rm now 2>/dev/null; dvs fs df -o name"
            ),
            "now\nshop"
        );
        assert!(say("dvs version").contains(&format!("(node {here})")));
        // What is of others, and what is people's.
        for (what, words) in [
            ("dvs ps other", "there is no container 'other'"),
            ("dvs ps nothing", "there is no container 'nothing'"),
            ("dvs node ls", "from inside a container this cannot be asked for"),
            ("dvs stop", "from inside a container this cannot be asked for"),
            ("dvs dc set --memory 4G", "from inside a container this cannot be asked for"),
            ("dvs port add 8080:80", "from inside a container this cannot be asked for"),
            ("dvs kill 1 2>&1", "there is no process 1 in container 'shop'"),
        ] {
            let told = say(&format!("{what} 2>&1; echo $?"));
            assert!(told.contains(words) && told.ends_with('1'), "{what}: {told}");
        }
        // Any other user looks, and starts programs as itself.
        let user = |what: &str| say(&format!("{} sh -c '{what}' 2>&1", USER.join(" ")));
        assert!(user("dvs ps").contains("dvs ps"));
        assert_eq!(user(&format!("dvs run --node {there} -- id -u; dvs ds get key")), "33\nvalue");
        assert!(user("dvs inspect -o json").contains("\"phase\": \"running\""));
        assert!(!user("dvs inspect -o json; dvs dc ls -o json").contains("hunter2"));
        assert!(say("dvs inspect -o json").contains("hunter2"));
        for what in
            ["dvs kill 65537", "dvs logs 65537", "dvs exec --beside 65537 shop -- true", "dvs cp shop:/x /tmp/x"]
        {
            assert!(user(what).contains("only root of the container may do this"), "{what}: {}", user(what));
        }
    }
    // With an image for a root it is there as well.
    said(&cluster, "n1", "mkdir -p /dc/image/bin; cp $(command -v busybox) /dc/image/bin/");
    if said(&cluster, "n1", "ls /dc/image/bin") == "busybox" {
        let inside = cluster.ok(&[
            "run",
            "shop",
            "--node",
            "n2",
            "--root",
            "/image",
            "--",
            "/bin/busybox",
            "sh",
            "-c",
            "dvs dc ls -o name; dvs run -n n1 -- hostname",
        ]);
        assert_eq!(inside, "shop\nn1\n");
    }
    // It is written down who did it.
    let audit = cluster.ok(&["audit", "-o", "json"]);
    let entries: Vec<Value> = audit.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    let of_shop = |entry: &Value| entry["who"]["name"] == "container shop" && entry["operation"] == "run";
    let refused = |entry: &Value| entry["who"]["name"] == "container shop, user 33" && entry["status"] == 403;
    assert!(entries.iter().any(of_shop) && entries.iter().any(refused), "{audit}");
}

#[test]
fn other_containers_do_not_exist_for_them_nor_does_the_cluster() {
    let cluster = Cluster::up(2);
    cluster.container("shop", 2, &[]);
    cluster.container("other", 2, &[]);
    cluster.ok(&["run", "-d", "other", "--node", "n1", "--", "sleep", "1000"]);
    let mut ways = Description::checked_in().ways();
    // Of its own it goes on; of others it is below.
    ways.retain(|way| way.operation != "events");
    let filled = |path: &str, dc: &str| {
        let path = path.replace("{dc}", dc).replace("{pid}", "65537").replace("{node}", "n1").replace("{port}", "80");
        path.replace("{service}", "web").replace("{disk}", "root").replace("{name}", "ada").replace("{id}", "x")
    };
    let asked = |dc: &str, upgrade: &str| -> Vec<Value> {
        ways.iter().map(|way| json!([way.method, filled(&way.path, dc), upgrade, 0])).collect()
    };
    let stream = "Upgrade: dvs-stream\r\nx-dvs-forwarded-by: n1\r\nAuthorization: Bearer dvs_ada_00\r\n";
    for (user, may) in [(&[][..], &["all", "root"][..]), (&USER[..], &["all"][..])] {
        for headers in ["", stream] {
            let (others, nothings) = (
                answers(&cluster, user, &asked("other", headers)),
                answers(&cluster, user, &asked("nothere", headers)),
            );
            for ((way, other), nothing) in ways.iter().zip(&others).zip(&nothings) {
                if way.path.contains("{dc}") {
                    // Whether there is one cannot be told from the answer.
                    assert_eq!(other.0, 404, "{} {}: {other:?}", way.method, way.path);
                    assert_eq!(other.1.replace("other", "nothere"), nothing.1, "{} {}", way.method, way.path);
                } else if way.inside == "none" {
                    assert_eq!(other.0, 403, "{} {}: {other:?}", way.method, way.path);
                }
            }
        }
        // Of its own it is asked for without a body, which makes sense to none that takes one: nothing happens.
        let is_safe = |way: &&end_to_end::openapi::Way| way.path.contains("{dc}") && !may.contains(&&*way.inside);
        let refused: Vec<_> = ways.iter().filter(is_safe).collect();
        let own = refused.iter().map(|way| json!([way.method, filled(&way.path, "shop"), "", 0])).collect::<Vec<_>>();
        for (way, answer) in refused.iter().zip(answers(&cluster, user, &own)) {
            assert_eq!(answer.0, 403, "{} {}: {answer:?}", way.method, way.path);
        }
    }
    let tricks = [
        ("/v1/dcs/shop%2F..%2Fother", 404),
        ("/v1/dcs/shop/../other", 404),
        ("//v1/dcs/other", 404),
        ("/v1/dcs/%6fther/processes", 404),
        ("/v1/dcs/other%00", 404),
        ("/v1/dcs/%ff", 404),
        ("/v1/dcs/SHOP", 404),
        ("/v1/dcs/shop%20", 404),
        ("http://other/v1/dcs/other", 404),
        ("/v1/dcs/other?dc=shop", 404),
        ("/v1/events?dc=other", 404),
        ("/v1/events?dc=nothere", 404),
        ("/v1/%6eodes", 404),
        ("/v1/nodes/", 404),
        ("/v1/dcs/%73hop", 200),
        ("/v1/dcs", 200),
    ];
    let requests: Vec<Value> = tricks.iter().map(|(path, _)| json!(["GET", path, "", 0])).collect();
    for ((path, status), answer) in tricks.iter().zip(answers(&cluster, &[], &requests)) {
        let is_refused = matches!(answer.0, 400 | 403 | 404);
        assert!(if *status == 404 { is_refused } else { answer.0 == *status }, "{path}: {answer:?}");
        assert!(*status != 200 || !answer.1.contains("other"), "{path}: {answer:?}");
    }
    // A body that is too large, and the answer to what goes wrong elsewhere has nothing of the node.
    let large = answers(&cluster, &[], &[json!(["POST", "/v1/dcs/shop/processes", "", 9 << 20])]);
    assert!(matches!(large[0].0, 0 | 400), "{large:?}");
    cluster.lose_daemon("n2", "n1");
    let gone = answers(&cluster, &[], &[json!(["GET", "/v1/dcs/shop/processes/131073", "", 0])]);
    assert!(gone[0].0 == 503 && gone[0].1.contains("node n2") && !gone[0].1.contains("10.255."), "{gone:?}");
    cluster.ok(&["dev", "restart", "n2"]);
    // Its own place cannot be taken by another socket, nor is another container's to be seen.
    let tried = said(
        &cluster,
        "n1",
        "rm -f /run/dvs/dvsd.sock 2>&1; mv /run/dvs /run/x 2>&1; chmod 600 /run/dvs/dvsd.sock 2>&1; \
        mount -t tmpfs none /run/dvs 2>&1; ls -d /run/dvs/dcs /run/dvs/dev /var/lib/dvs 2>&1; dvs ps >/dev/null && echo still",
    );
    assert!(tried.ends_with("still"), "{tried}");
    // Who pretends to be elsewhere gets no further.
    let elsewhere = said(&cluster, "n1", "DVS_DC=other dvs ps 2>&1; DVS_DC=other dvs ds get key 2>&1");
    assert_eq!(elsewhere.matches("there is no container 'other'").count(), 1, "{elsewhere}");
    assert!(cluster.ok(&["ps", "other"]).contains("sleep 1000"));
    assert_eq!(cluster.json(&["dc", "inspect", "shop", "-o", "json"])["phase"], "running");
}

#[test]
fn container_that_takes_all_it_can_at_its_hatch_holds_up_nobody_else() {
    let cluster = Cluster::up(2);
    cluster.container("shop", 2, &["--pids", "1000"]);
    cluster.container("other", 2, &[]);
    let worst = |times: usize| {
        let mut longest = Duration::ZERO;
        for _ in 0..times {
            let begun = Instant::now();
            cluster.ok(&["run", "other", "--node", "n1", "--", "dvs", "ps"]);
            cluster.ok(&["ps", "other"]);
            longest = longest.max(begun.elapsed());
        }
        longest
    };
    let quiet = worst(5);
    let mut flood = cluster.command_without_limit(&["run", "-i", "shop", "--node", "n1", "--", "python3", "-c", FLOOD]);
    let mut flood = flood.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("dvs");
    let mut lines = std::io::BufRead::lines(std::io::BufReader::new(flood.stdout.take().expect("a pipe")));
    assert_eq!(lines.next().expect("a line").expect("it is read"), "flooding");
    let (status, told) = {
        let told = cluster.output(&["run", "shop", "--node", "n1", "--", "timeout", "20", "dvs", "ps"]);
        (told.status.code(), String::from_utf8_lossy(&told.stderr).into_owned())
    };
    assert!(status != Some(0), "it has no place itself: {told}");
    let busy = worst(10);
    // The flood takes CPUs as any program may; it takes no places.
    assert!(busy < quiet * 8 + Duration::from_secs(2), "{quiet:?} became {busy:?}");
    let daemon = cluster.output(&[
        "dev",
        "exec",
        "n1",
        "--",
        "sh",
        "-c",
        "ls /proc/$(pgrep -f '^[^ ]*dvs daemon' | head -n 1)/fd | wc -l",
    ]);
    let open: u32 = String::from_utf8_lossy(&daemon.stdout).trim().parse().unwrap_or(0);
    assert!(open > 0 && open < 1500, "the daemon has {open} descriptors");
    drop(flood.stdin.take());
    let counts = lines.next().expect("a line").expect("it is read");
    assert!(flood.wait().expect("it ends").success(), "{counts}");
    // It is heard again, and the others' log has what they did.
    eventually("it has a place again", SOON, || {
        cluster.output(&["run", "shop", "--node", "n1", "--", "dvs", "ps"]).status.success().then_some(())
    });
}

#[test]
fn hatch_goes_with_the_container_and_comes_again_with_the_daemon() {
    let cluster = Cluster::up(2);
    // All that could not move is on the first node.
    cluster.container("shop", 1, &[]);
    cluster.ok(&["dc", "add-node", "shop", "n2"]);
    let hatch = |node: &str| {
        let id = cluster.json(&["dc", "inspect", "shop", "-o", "json"])["id"].to_string();
        cluster.path_of(node, "run_dir").join("dcs").join(id).join("ipc").join("dvsd.sock")
    };
    let paths = ["n1", "n2"].map(hatch);
    assert!(paths.iter().all(|path| path.exists()), "{paths:?}");
    // A program that was started from inside on this node goes on without the daemon; while that is away it is said.
    let script = "dvs run -n n1 -- sh -c 'echo begun; until test -e /dc/go; do sleep 0.05; done; echo ended'; \
                  echo $?";
    let stream =
        cluster.command(&["run", "-d", "shop", "--node", "n1", "--", "sh", "-c", script]).output().expect("dvs");
    let pid = String::from_utf8_lossy(&stream.stdout).trim().to_owned();
    eventually("it has begun", SOON, || cluster.ok(&["logs", "shop", &pid]).contains("begun").then_some(()));
    let script = "until ! dvs ps >/dev/null 2>/dev/null; do sleep 0.05; done; dvs ps 2>/dc/said; \
                  until dvs ps >/dev/null 2>/dev/null; do sleep 0.05; done; dvs run -n n2 -- hostname > /dc/again";
    cluster.ok(&["run", "-d", "shop", "--node", "n1", "--", "sh", "-c", script]);
    cluster.lose_daemon("n1", "n2");
    eventually("it was said inside", SOON, || {
        let said = cluster.output(&["--at", "n2", "run", "shop", "--node", "n2", "--", "cat", "/dc/said"]);
        let said = String::from_utf8_lossy(&said.stdout).into_owned();
        said.contains("the node's daemon is away").then_some(())
    });
    cluster.ok(&["dev", "restart", "n1"]);
    eventually("it works again inside", SOON, || {
        (said(&cluster, "n2", "cat /dc/again 2>/dev/null") == "n2").then_some(())
    });
    said(&cluster, "n2", "touch /dc/go");
    eventually("its stream went on", SOON, || {
        cluster.ok(&["logs", "shop", &pid]).ends_with("ended\n0\n").then_some(())
    });
    // One that is told to end lets nobody ask any more, and a container that is gone leaves none.
    cluster.ok(&["stop", "shop"]);
    assert!(!paths.iter().any(|path| path.exists()), "{paths:?}");
    cluster.ok(&["start", "shop"]);
    assert_eq!(said(&cluster, "n2", "dvs dc ls -o name"), "shop");
    cluster.ok(&["stop", "shop"]);
    cluster.ok(&["rename", "shop", "store"]);
    cluster.ok(&["start", "store"]);
    assert_eq!(
        cluster.sh("store", "n1", "dvs dc ls -o name; dvs ps shop 2>&1 | head -n 1"),
        "store\ndvs: there is no container 'shop'\n"
    );
    // A node that is none of its any more.
    cluster.ok(&["dc", "remove-node", "store", "n2"]);
    assert!(!paths[1].exists());
    cluster.ok(&["rm", "--force", "store"]);
    assert!(!paths[0].exists());
}

/// Where the kernel cannot refuse descriptors, what a program sends is closed by its own hatch's thread.
#[test]
fn descriptor_that_takes_long_to_close_holds_up_nobody_else() {
    const SEND: &str = "
import array, socket, struct
listener = socket.socket()
listener.bind(('127.0.0.1', 0))
listener.listen()
far = socket.create_connection(listener.getsockname())
near = listener.accept()[0]
far.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack('ii', 1, 3600))
far.setblocking(False)
try:
    while True: far.send(b'x' * 65536)
except BlockingIOError:
    pass
hatch = socket.socket(socket.AF_UNIX)
hatch.connect('/run/dvs/dvsd.sock')
try:
    hatch.sendmsg([b'GET /v1/dcs HTTP/1.1\\r\\nHost: dvs\\r\\n\\r\\n'], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array('i', [far.fileno()]))])
    print('sent', flush=True)
except OSError:
    print('refused', flush=True)
far.close()
import time
time.sleep(1000)
";
    let cluster = Cluster::up_without(1, "passrights");
    cluster.container("shop", 1, &[]);
    cluster.container("other", 1, &[]);
    let sent = cluster.ok(&["run", "-d", "shop", "--", "python3", "-c", SEND]);
    eventually("it was sent", SOON, || cluster.ok(&["logs", "shop", sent.trim()]).contains("sent").then_some(()));
    for _ in 0..20 {
        assert_eq!(cluster.ok(&["run", "other", "--", "dvs", "dc", "ls", "-o", "name"]), "other\n");
        cluster.ok(&["ps", "shop"]);
    }
    cluster.ok(&["rm", "--force", "shop"]);
}
