//! One clear error with what to try, the right exit status, and nothing half-made or lost.

use std::fs;
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use end_to_end::{Cluster, dvs_binary, eventually};

const SOON: Duration = Duration::from_secs(60);

/// The command fails with this status and says what, and what to try.
#[track_caller]
fn refused(cluster: &Cluster, arguments: &[&str], status: i32, part: &str) {
    is_refusal(&cluster.output(arguments), status, part, &arguments.join(" "));
}

#[track_caller]
fn is_refusal(done: &Output, status: i32, part: &str, command: &str) {
    let message = String::from_utf8_lossy(&done.stderr);
    assert_eq!(done.status.code(), Some(status), "{command}: {message}");
    assert!(message.starts_with("dvs: ") && message.contains(part), "{command} does not name '{part}': {message}");
    assert_eq!(
        message.lines().filter(|line| line.starts_with("dvs: ")).count(),
        1,
        "{command} complains more than once: {message}"
    );
    assert!(message.contains("\n  try: "), "{command} does not say what to try: {message}");
    assert!(done.stdout.is_empty(), "{command} prints data as well");
}

fn containers(cluster: &Cluster) -> Vec<String> {
    cluster.ok(&["dc", "ls", "-o", "name"]).lines().map(str::to_owned).collect()
}

#[test]
fn description_that_cannot_be_is_refused_and_nothing_is_made() {
    let cluster = Cluster::up(1);
    let create = |more: &[&str], status, part| {
        refused(&cluster, &[&["dc", "create"], more].concat(), status, part);
    };
    create(&["shop", "--nodes", "n1,n7"], 1, "n7");
    create(&["shop", "--nodes", "n1,n7", "--start"], 1, "n7");
    create(&["Bad Name", "--nodes", "n1"], 2, "Bad Name");
    create(&["shop", "--nodes", "n1,n1"], 1, "n1");
    create(&["shop", "--subnet", "10.1.0.0/40"], 1, "10.1.0.0/40");
    create(&["shop", "--fs-node", "n7"], 1, "n7");
    create(&["shop", "--disk", "1K"], 1, "1024");
    create(&["shop", "--disk", "huge"], 2, "huge");
    create(&["shop", "--memory", "0"], 1, "memory");
    create(&["shop", "--cpu-list", "x"], 1, "x");
    create(&["shop", "--cpu-list", "0,7000-7002"], 1, "n1 has no CPU 7000");
    create(&["shop", "--cpu-list", "7000", "--start"], 1, "n1 has no CPU 7000");
    create(&["--file", "/no/such/file"], 1, "/no/such/file");
    assert_eq!(containers(&cluster), Vec::<String>::new());
    cluster.ok(&["dc", "create", "shop", "--nodes", "n1"]);
    // Longer than the daemon takes a body.
    let file = tempfile::NamedTempFile::new().expect("a file");
    let variables: Vec<String> = (0..90).map(|index| format!("'A{index}={}'", "x".repeat(100_000))).collect();
    let text = format!("name = 'shop'\nnodes = ['n1']\nenv = [{}]\n", variables.join(", "));
    fs::write(file.path(), text).expect("a file");
    let path = file.path().to_str().expect("text");
    create(&["--file", path], 1, "longer than");
    refused(&cluster, &["apply", "-f", path], 1, "longer than");
    assert_eq!(containers(&cluster), ["shop"]);
    create(&["shop", "--nodes", "n1"], 1, "shop");
    create(&["shop", "--nodes", "n1", "--start"], 1, "shop");
    refused(&cluster, &["run", "shop", "--", "true"], 125, "not running");
    assert_eq!(containers(&cluster), ["shop"]);
}

#[test]
fn names_and_numbers_that_nobody_knows_are_refused_by_every_command() {
    let cluster = Cluster::up(1);
    cluster.container("shop", 1, &[]);
    for arguments in [
        &["ps", "nope"][..],
        &["logs", "nope", "65600"],
        &["kill", "nope", "65600"],
        &["import", "nope", "/etc/skel", "/x"],
        &["dc", "inspect", "nope"],
        &["dc", "start", "nope"],
        &["dc", "stop", "nope"],
        &["dc", "delete", "nope"],
        &["node", "inspect", "nope"],
        &["dev", "kill", "nope"],
    ] {
        refused(&cluster, arguments, 1, "nope");
    }
    for arguments in [&["run", "nope", "--", "true"][..], &["exec", "nope", "--", "true"], &["attach", "nope", "65600"]]
    {
        refused(&cluster, arguments, 125, "nope");
    }
    refused(&cluster, &["logs", "shop", "65999"], 1, "65999");
    refused(&cluster, &["kill", "shop", "65999"], 1, "65999");
    refused(&cluster, &["kill", "shop", "7"], 1, "7");
    refused(&cluster, &["attach", "shop", "65999"], 125, "65999");
    refused(&cluster, &["exec", "shop", "--beside", "65999", "--", "true"], 125, "65999");
    refused(&cluster, &["import", "shop", "/no/such/directory", "/x"], 1, "/no/such/directory");
    refused(&cluster, &["--cluster", "nope", "node", "ls"], 1, "nope");
    refused(&cluster, &["dev", "up"], 1, "dev");
}

#[test]
fn program_that_cannot_be_run_has_the_status_of_docker_and_a_reason() {
    let cluster = Cluster::up(1);
    cluster.container("shop", 1, &[]);
    cluster.sh(
        "shop",
        "n1",
        "cd /dc; printf '#!/no/shell\\n' > script; printf garbage > garbage; chmod +x script garbage",
    );
    let run = |more: &[&str], status, part| refused(&cluster, &[&["run", "shop"], more].concat(), status, part);
    run(&["--", "no-such-program"], 127, "no-such-program");
    run(&["--", "/dc/none"], 127, "/dc/none");
    run(&["--", "/dc/script"], 127, "interpreter");
    run(&["--", "/dc/garbage"], 126, "/dc/garbage");
    run(&["--", "/etc/passwd"], 126, "/etc/passwd");
    run(&["--", "/usr"], 126, "/usr");
    run(&["--workdir", "/none", "--", "true"], 125, "/none");
    run(&["--root", "/none", "--", "true"], 125, "/none");
    run(&["--node", "n9", "--", "true"], 125, "n9");
    run(&["--user", "nobody-knows", "--", "true"], 125, "nobody-knows");
    refused(&cluster, &["run", "--no-such-option", "shop", "true"], 125, "--no-such-option");
    run(&["--", ""], 125, "no program");
    assert_eq!(cluster.ok(&["ps", "shop", "-o", "json"]).trim(), "[]", "nothing is left of what did not run");
}

#[test]
fn node_that_is_down_is_named_and_no_container_is_half_made() {
    let cluster = Cluster::up(2);
    cluster.container("shop", 2, &["--fs-node", "n1", "--disk-node", "n1"]);
    cluster.sh("shop", "n2", "echo kept > /dc/kept");
    cluster.ok(&["dev", "kill", "n2"]);
    refused(&cluster, &["run", "shop", "--node", "n2", "--", "true"], 125, "n2");
    refused(&cluster, &["kill", "shop", "131080"], 1, "n2");
    eventually("n2 is known to be down", SOON, || {
        let nodes = cluster.json(&["node", "ls", "-o", "json"]);
        nodes.as_array()?.iter().any(|node| node["name"] == "n2" && node["state"] == "down").then_some(())
    });
    refused(&cluster, &["dc", "create", "both", "--nodes", "n1,n2", "--start"], 1, "n2");
    assert_eq!(containers(&cluster), ["shop"]);
    assert_eq!(cluster.sh("shop", "n1", "cat /dc/kept"), "kept\n");
    cluster.ok(&["dev", "restart", "n2"]);
    eventually("n2 takes part again", SOON, || {
        let done = cluster.output(&["run", "shop", "--node", "n2", "--", "cat", "/dc/kept"]);
        (done.stdout == b"kept\n").then_some(())
    });
}

#[test]
fn daemon_whose_port_is_taken_says_so_and_its_programs_go_on() {
    let cluster = Cluster::up(1);
    cluster.container("shop", 1, &[]);
    let pid = cluster.ok(&["run", "-d", "shop", "--", "sleep", "1000"]);
    let daemon = cluster.json(&["dev", "ls", "-o", "json"])[0]["daemon_pid"].as_u64().expect("a PID");
    let daemon = rustix::process::Pid::from_raw(daemon as i32).expect("a PID");
    rustix::process::kill_process(daemon, rustix::process::Signal::KILL).expect("it runs");
    const TAKE: &str = "import socket, sys, time
s = socket.socket()
s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
while True:
    try:
        s.bind(('10.255.0.1', 7420))
        break
    except OSError:
        time.sleep(0.01)
s.listen()
print('taken', flush=True)
sys.stdin.read()";
    let mut taker = cluster.command(&["dev", "exec", "n1", "--", "python3", "-c", TAKE]);
    let mut taker = taker.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("dvs");
    taker.stdout.as_mut().expect("a pipe").read_exact(&mut [0; 6]).expect("the port is taken");
    refused(&cluster, &["dev", "restart", "n1"], 1, "10.255.0.1:7420");
    drop(taker.stdin.take());
    taker.wait().expect("it ends with its input");
    cluster.ok(&["dev", "restart", "n1"]);
    assert!(cluster.ok(&["ps", "shop", "-o", "name"]).contains(pid.trim()));
}

#[test]
fn full_image_fails_writes_and_loses_nothing() {
    let cluster = Cluster::up(1);
    cluster.container("small", 1, &["--disk", "32M"]);
    let fill = "echo kept > /dc/kept; sync; dd if=/dev/zero of=/dc/big bs=1M count=100 2>&1 | grep -o 'No space left on device'; cat /dc/kept";
    assert_eq!(cluster.sh("small", "n1", fill), "No space left on device\nkept\n");
    let source = tempfile::tempdir().expect("a directory");
    fs::write(source.path().join("file"), vec![1; 8 << 20]).expect("a file");
    let source = source.path().to_str().expect("UTF-8");
    refused(&cluster, &["import", "small", source, "/imported"], 1, "No space left on device");
    cluster.sh("small", "n1", "rm -rf /dc/big /dc/imported; sync");
    cluster.ok(&["import", "small", source, "/imported"]);
    assert_eq!(cluster.sh("small", "n1", "cat /dc/kept; wc -c < /dc/imported/file"), "kept\n8388608\n");
}

/// Somebody else's interface on the node has the container's number.
#[test]
fn part_that_cannot_be_made_fails_the_start_soon_and_the_next_attempt_hears_nothing_of_it() {
    let cluster = Cluster::up(1);
    cluster.ok(&["dc", "create", "shop"]);
    let id = cluster.json(&["dc", "inspect", "shop", "-o", "json"])["id"].to_string();
    let ip = |more: &[&str]| cluster.ok(&[&["dev", "exec", "n1", "--", "ip", "link"], more].concat());
    ip(&["add", "foreign", "type", "vxlan", "id", &id, "dstport", "4789"]);
    let start = std::time::Instant::now();
    for _ in 0..2 {
        refused(&cluster, &["dc", "start", "shop"], 1, "File exists");
    }
    assert!(start.elapsed() < SOON / 2, "{:?}", start.elapsed());
    assert_eq!(cluster.json(&["dc", "inspect", "shop", "-o", "json"])["phase"], "stopped", "as it was");
    ip(&["del", "foreign"]);
    cluster.ok(&["dc", "start", "shop"]);
    assert_eq!(cluster.sh("shop", "n1", "echo runs"), "runs\n");
}

/// The one image of a stopped container.
fn image(cluster: &Cluster) -> PathBuf {
    let dcs = cluster.state_dir().join("dev/dev/n1/dcs");
    let found = fs::read_dir(dcs).expect("containers").flatten().map(|dc| dc.path().join("images/root.img"));
    found.into_iter().find(|path| path.exists()).expect("an image")
}

#[test]
fn image_that_was_damaged_cut_or_lost_is_reported_left_alone_and_works_when_put_back() {
    const LENGTH: u64 = 64 << 20;
    let cluster = Cluster::up(1);
    cluster.container("shop", 1, &["--disk", "64M"]);
    cluster.sh("shop", "n1", "echo kept > /dc/kept; sync");
    cluster.ok(&["dc", "stop", "shop"]);
    let path = image(&cluster);
    let whole = fs::read(&path).expect("the image");
    let put_back = || fs::write(&path, &whole).expect("written");
    let does_not_start = |part: &str| {
        refused(&cluster, &["dc", "start", "shop"], 1, part);
        refused(&cluster, &["run", "shop", "--", "true"], 125, "not running");
    };

    let mut file = fs::OpenOptions::new().write(true).open(&path).expect("the image");
    file.seek(SeekFrom::Start(0)).and_then(|_| file.write_all(&[0xa5; 1 << 20])).expect("damage");
    let damaged = fs::read(&path).expect("the image");
    does_not_start("left alone");
    assert!(fs::read(&path).expect("the image") == damaged, "a damaged image was changed");
    put_back();

    file.set_len(LENGTH / 4).expect("cut");
    does_not_start("bytes instead of");
    put_back();

    fs::remove_file(&path).expect("removed");
    does_not_start("root.img");
    assert!(!path.exists(), "an empty image took the place of a lost one");

    // Whoever tries again hears of the new attempt, not of the last one.
    refused(&cluster, &["dc", "start", "shop"], 1, "root.img");
    put_back();
    cluster.ok(&["dc", "start", "shop"]);
    assert_eq!(cluster.sh("shop", "n1", "cat /dc/kept"), "kept\n");
}

#[test]
fn strangers_and_broken_frames_are_turned_away_and_the_link_goes_on() {
    let (cluster, foreign) = (Cluster::up(2), Cluster::up(1));
    cluster.container("shop", 2, &["--fs-node", "n1", "--disk-node", "n1"]);
    let tls = |cluster: &Cluster, node: &str, file: &str| {
        cluster.state_dir().join(format!("dev/dev/{node}/tls/{file}")).display().to_string()
    };
    let ask = |of: &Cluster| {
        let (certificate, key) = (tls(of, "n1", "node.crt"), tls(of, "n1", "node.key"));
        let arguments = ["dev", "exec", "n2", "--", "curl", "-sk", "--max-time", "10", "--cert", &certificate];
        cluster.output(&[&arguments[..], &["--key", &key, "https://10.255.0.1:7420/v1/nodes"]].concat())
    };
    assert!(ask(&cluster).status.success(), "a node of the cluster is let in");
    let stranger = ask(&foreign);
    assert!(!stranger.status.success() && stranger.stdout.is_empty(), "{stranger:?}");

    const BREAK: &str = "import socket, ssl, sys
context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
context.check_hostname = False
context.verify_mode = ssl.CERT_NONE
context.load_cert_chain(sys.argv[1], sys.argv[2])
for sent in [b'', b'\\x01', bytes(range(256)) * 40, b'\\xff' * 65536]:
    for inside in [False, True]:
        for port in [7420, 7421]:
            plain = socket.create_connection(('10.255.0.1', port), 5)
            try:
                end = context.wrap_socket(plain) if inside else plain
                end.sendall(sent)
                end.close()
            except OSError:
                pass
print('done')";
    let (certificate, key) = (tls(&cluster, "n2", "node.crt"), tls(&cluster, "n2", "node.key"));
    let arguments = ["dev", "exec", "n2", "--", "python3", "-c", BREAK, &certificate, &key];
    assert_eq!(cluster.ok(&arguments), "done\n");
    cluster.sh("shop", "n2", "echo through > /dc/file");
    assert_eq!(cluster.sh("shop", "n1", "cat /dc/file"), "through\n");
}

#[test]
fn without_root_the_command_says_that_it_needs_it() {
    let unprivileged = |arguments: &[&str]| {
        // By descriptor: the binary may lie where only root can go.
        let mut shell = Command::new("sh");
        let script = "exec 9<\"$0\"; exec setpriv --reuid=65534 --regid=65534 --clear-groups -- /proc/self/fd/9 \"$@\"";
        shell.args(["-c", script]).arg(dvs_binary()).args(arguments).env("DVS_STATE_DIR", "/nonexistent");
        shell.output().expect("sh")
    };
    is_refusal(&unprivileged(&["dev", "up"]), 1, "root", "dev up");
    is_refusal(&unprivileged(&["dev", "down"]), 1, "root", "dev down");
    let doctor = unprivileged(&["doctor"]);
    assert_eq!(doctor.status.code(), Some(1));
    let report = String::from_utf8_lossy(&doctor.stdout);
    assert!(report.contains("this process is not root") && !report.contains("modprobe"), "{report}");
}

/// A machine without FUSE and without the kernel's list of processes, as far as this process can see.
#[test]
fn machine_that_lacks_what_containers_need_is_told_by_the_doctor() {
    let script = "mount -t tmpfs none /dev && mknod /dev/null c 1 3 && exec \"$0\" doctor";
    let done =
        Command::new("unshare").args(["--mount", "sh", "-c", script]).arg(dvs_binary()).output().expect("unshare");
    let report = String::from_utf8_lossy(&done.stdout);
    assert_eq!(done.status.code(), Some(1), "{report}");
    assert!(report.contains("fuse: could not open /dev/fuse"), "{report}");
    assert!(report.contains("try: modprobe fuse"), "{report}");
}
