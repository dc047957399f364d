//! The daemon as a service: what its manager hears, and what its children do not.

use std::fs::File;
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use end_to_end::{Cluster, dvs_binary, eventually};
use serde_json::Value;

const SOON: Duration = Duration::from_secs(30);
/// Of the watchdog.
const PERIOD: Duration = Duration::from_millis(600);

/// What the manager hears within a second or two.
fn heard(socket: &UnixDatagram) -> Option<String> {
    let mut bytes = [0; 4096];
    let length = socket.recv(&mut bytes).ok()?;
    Some(String::from_utf8_lossy(&bytes[..length]).into_owned())
}

fn hear_until(socket: &UnixDatagram, word: &str) -> Vec<String> {
    let (mut words, began) = (Vec::new(), Instant::now());
    while words.last().is_none_or(|last| last != word) {
        assert!(began.elapsed() < SOON, "the manager did not hear {word}, only {words:?}");
        words.extend(heard(socket));
    }
    words
}

/// PID, in the machine, of its daemon.
fn daemon(cluster: &Cluster) -> Option<String> {
    let found = cluster.output(&["dev", "exec", "n1", "--", "pgrep", "-f", "daemon --config"]);
    let pids = String::from_utf8_lossy(&found.stdout).into_owned();
    pids.lines().next().map(str::to_owned)
}

/// In the place of the one that `dvs dev up` started.
fn start_as_a_service(cluster: &Cluster, notify: &Path, log: File) -> Child {
    let socket = format!("NOTIFY_SOCKET={}", notify.display());
    let period = format!("WATCHDOG_USEC={}", PERIOD.as_micros());
    let (dvs, config) = (dvs_binary(), cluster.config_of("n1"));
    let mut command = cluster.command_without_limit(&["dev", "exec", "n1", "--", "env", "DVS_LOG_FORMAT=json"]);
    command.args([&socket, &period]).arg(dvs).args(["daemon", "--config"]).arg(config);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log).spawn().expect("dvs starts")
}

#[test]
fn manager_hears_of_start_life_and_stop_and_children_know_nothing_of_it() {
    let cluster = Cluster::up(1);
    cluster.container("shop", 1, &[]);
    let pid = cluster.ok(&["run", "-d", "shop", "--", "sleep", "1000"]);
    let first = daemon(&cluster).expect("a daemon");
    cluster.ok(&["dev", "exec", "n1", "--", "kill", &first]);
    eventually("the first daemon ends", SOON, || daemon(&cluster).is_none().then_some(()));

    let notify = cluster.state_dir().join("notify");
    let socket = UnixDatagram::bind(&notify).expect("a socket");
    socket.set_read_timeout(Some(Duration::from_secs(2))).expect("a limit");
    let log = cluster.state_dir().join("service.log");
    let mut service = start_as_a_service(&cluster, &notify, File::create(&log).expect("a log"));
    let words = hear_until(&socket, "READY=1");
    assert!(words.iter().filter(|word| word.starts_with("STATUS=")).count() >= 2, "{words:?}");
    assert!(!words.iter().any(|word| word == "WATCHDOG=1"), "nothing is alive before it serves: {words:?}");
    // It serves: no waiting.
    assert!(cluster.ok(&["ps", "shop"]).contains(pid.trim()));

    let mut words = Vec::new();
    for _ in 0..3 {
        let began = Instant::now();
        words.extend(hear_until(&socket, "WATCHDOG=1"));
        assert!(began.elapsed() < PERIOD, "{:?} between two signs of life", began.elapsed());
    }
    const WELL: &str = "STATUS=node n1 of cluster dev: well";
    if !words.iter().any(|word| word == WELL) {
        hear_until(&socket, WELL);
    }

    // A daemon that does not run says nothing; the manager would end it now.
    let second = daemon(&cluster).expect("a daemon");
    cluster.ok(&["dev", "exec", "n1", "--", "kill", "-STOP", &second]);
    while heard(&socket).is_some() {}
    cluster.ok(&["dev", "exec", "n1", "--", "kill", "-CONT", &second]);
    hear_until(&socket, "WATCHDOG=1");

    cluster.ok(&["dc", "create", "late", "--nodes", "n1", "--start"]);
    let told = "grep -l NOTIFY_SOCKET /proc/[0-9]*/environ 2>/dev/null | wc -l; ls -d /proc/[0-9]* | wc -l";
    let told = cluster.ok(&["dev", "exec", "n1", "--", "sh", "-c", told]);
    let counts: Vec<usize> = told.split_whitespace().map(|count| count.parse().expect("a number")).collect();
    assert!(counts[0] == 1 && counts[1] > 8, "the daemon alone knows the manager: {counts:?}");

    cluster.ok(&["dev", "exec", "n1", "--", "kill", &second]);
    hear_until(&socket, "STOPPING=1");
    assert!(service.wait().expect("it ends").success());
    let said = std::fs::read_to_string(&log).expect("its log");
    let lines: Vec<Value> = said.lines().map(|line| serde_json::from_str(line).expect("an object")).collect();
    let serving = lines.iter().find(|line| line["message"] == "serving").expect("it said that it serves");
    assert_eq!((&serving["node"], &serving["level"]), (&Value::from("n1"), &Value::from("INFO")));
    cluster.ok(&["dev", "restart", "n1"]);
    assert!(cluster.ok(&["ps", "shop"]).contains(pid.trim()), "programs went on");
}
