//! The command as people and scripts see it: output, errors, exit statuses. The daemon is played by the test.

mod fake;

use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Command, Output, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use fake::{Answer, FakeDaemon, Frames};
use mgmt_api::stream::Kind;

fn dvs(daemon: Option<&FakeDaemon>, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_dvs"));
    command.env_clear().args(arguments).stdin(Stdio::null());
    if let Some(daemon) = daemon {
        command.env("DVS_SOCKET", daemon.socket());
    }
    command
}

fn output(daemon: &FakeDaemon, arguments: &[&str]) -> Output {
    dvs(Some(daemon), arguments).output().unwrap()
}

fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

fn says(status: u16, body: &'static str) -> FakeDaemon {
    FakeDaemon::start(move |_| Answer::Say(status, body.to_owned()))
}

/// A daemon whose programs behave as `program` says.
fn runs(program: impl Fn(Frames) + Send + Sync + Clone + 'static) -> FakeDaemon {
    FakeDaemon::start(move |_| {
        let program = program.clone();
        Answer::Upgrade(Box::new(move |mut frames| {
            frames.say(Kind::Started, &65_540_u32.to_le_bytes());
            program(frames);
        }))
    })
}

const NODES: &str = r#"[{"name":"n1","id":1,"state":"ready","address":"10.255.0.1","proxy_port":7421,"api_port":7420,
    "epoch":2,"cpus":2,"memory_bytes":25769803776,"dcs":["shop"],
    "capacity":{"containers":1024,"memory_bytes":22548578304,"disk_bytes":53687091200,"cpus":2},
    "promised":{"containers":1,"memory_bytes":268435456,"disk_bytes":1073741824}}]"#;
const PROCESSES_ONE: &str = r#"{"pid":65540,"parent":0,"node":"n1","uid":0,"state":"sleeping","cpu_ms":0,"memory_bytes":0,"start_ms":0,"command":["sleep","100"]}"#;
const PROCESSES: &str = r#"[
    {"pid":65600,"parent":0,"node":"n1","uid":0,"state":"sleeping","cpu_ms":1250,"memory_bytes":2097152,"start_ms":0,"command":["sleep","100"]},
    {"pid":65601,"parent":0,"node":"n1","uid":33,"state":"exited","cpu_ms":0,"memory_bytes":0,"start_ms":0,"command":["false"],"exit":1}]"#;

#[test]
fn start_that_waits_for_the_tree_says_so_meanwhile_and_once() {
    const NOTE: &str = "on n1 the tree of 'shop' waits for n2: there is no link between n1 and n2";
    let (read, is_read) = std::sync::mpsc::channel();
    let is_read = Mutex::new(is_read);
    let daemon = FakeDaemon::start(move |request| {
        if request.line.starts_with("GET") {
            return Answer::Note("[]".to_owned(), NOTE);
        }
        // The program starts when somebody has read the note.
        let is_read = is_read.lock().unwrap().recv_timeout(Duration::from_secs(20)).is_ok();
        Answer::Upgrade(Box::new(move |mut frames| {
            frames.say(Kind::Started, &65_540_u32.to_le_bytes());
            frames.say(Kind::Exit, &[if is_read { 0 } else { 1 }]);
        }))
    });
    let mut run = dvs(Some(&daemon), &["run", "shop", "--", "true"]).stderr(Stdio::piped()).spawn().unwrap();
    let mut messages = BufReader::new(run.stderr.take().unwrap());
    let mut said = String::new();
    messages.read_line(&mut said).unwrap();
    assert!(said.contains(NOTE), "{said}");
    read.send(()).unwrap();
    messages.read_to_string(&mut said).unwrap();
    assert_eq!((run.wait().unwrap().code(), said.matches(NOTE).count()), (Some(0), 1), "{said}");
}

#[test]
fn list_is_a_table_for_people_and_json_for_programs() {
    let daemon = says(200, NODES);
    let table = stdout(&output(&daemon, &["node", "ls"]));
    assert_eq!(
        table,
        "NODE  ID  STATE  ADDRESS     CPUS  MEMORY  DISK    PROMISED                    CONTAINERS\n\
         n1    1   ready  10.255.0.1  2     24 GiB  50 GiB  256 MiB memory, 1 GiB disk  shop\n"
    );
    let json: serde_json::Value =
        serde_json::from_str(&stdout(&output(&daemon, &["node", "ls", "-o", "json"]))).unwrap();
    assert_eq!(json[0]["memory_bytes"], 25_769_803_776_u64);
    assert_eq!(stdout(&output(&daemon, &["-o", "name", "node", "ls"])), "n1\n");
}

#[test]
fn list_is_as_people_say_it_is() {
    let daemon = says(200, PROCESSES);
    let printed = |more: &[&str]| output(&daemon, &[&["ps", "shop", "-a"], more].concat());
    let lines = |more: &[&str]| stdout(&printed(more));
    assert_eq!(
        lines(&["--format", "{{.pid}} {{.Status}} {{.Command}}"]),
        "65600 sleeping sleep 100\n65601 exited (1) false\n"
    );
    assert_eq!(lines(&["--format", "pid,exit"]), "PID    EXIT\n65600\n65601  1\n");
    assert_eq!(lines(&["--format", "json"]).lines().count(), 2);
    assert!(
        lines(&["-o", "wide"]).starts_with("PID    NODE  USER  STATE       CPU    MEM    START       PARENT  STARTED")
    );
    assert_eq!(lines(&["--no-trunc"]), lines(&["-o", "wide"]));
    let odd = printed(&["--format", "{{.colour}}x"]);
    assert_eq!((stdout(&odd).as_str(), odd.status.code()), ("x\nx\n", Some(0)));
    assert!(stderr(&odd).starts_with("dvs: nothing that is shown has 'colour': "), "{}", stderr(&odd));
    for bad in [&["--format", "{{range .}}"][..], &["--format", "plain text"], &["-o", "json", "--format", "{{.pid}}"]]
    {
        let refused = printed(bad);
        assert_eq!((refused.status.code(), stdout(&refused).as_str()), (Some(2), ""), "{bad:?}");
        assert!(stderr(&refused).contains("  try: "), "{}", stderr(&refused));
    }
}

#[test]
fn list_that_is_watched_is_told_again_when_it_is_another_one() {
    let (asked, failing) =
        (Arc::new(Mutex::new(0)), r#"{"kind":"unavailable","what":"no","because":[],"try":"later"}"#);
    let count = Arc::clone(&asked);
    let daemon = FakeDaemon::start(move |_| {
        let mut count = count.lock().unwrap();
        *count += 1;
        match *count {
            1 | 2 => Answer::Say(200, PROCESSES.to_owned()),
            3 => Answer::Say(503, failing.to_owned()),
            _ => Answer::Say(200, PROCESSES.replace("sleeping", "stopped")),
        }
    });
    let format = ["ps", "shop", "--watch", "--format", "{{.pid}} {{.state}}"];
    let mut watching = dvs(Some(&daemon), &format).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut heard = BufReader::new(watching.stdout.take().unwrap()).lines().map_while(Result::ok);
    assert_eq!((heard.next().as_deref(), heard.next().as_deref()), (Some("65600 sleeping"), Some("65600 stopped")));
    // The second look found the same, the third one failed.
    assert!(*asked.lock().unwrap() >= 4);
    watching.kill().unwrap();
    let said = watching.wait_with_output().unwrap();
    assert!(stderr(&said).starts_with("dvs: no\n"), "{}", stderr(&said));
    for command in [&["version", "--watch"][..], &["node", "cordon", "n1", "--watch"]] {
        let refused = output(&daemon, command);
        assert_eq!(refused.status.code(), Some(2));
        assert!(stderr(&refused).contains("--watch is for"), "{}", stderr(&refused));
    }
    let refused = output(&says(404, r#"{"kind":"not-found","what":"no container 'shop'","try":"dvs dc ls"}"#), &format);
    assert_eq!((refused.status.code(), stderr(&refused).lines().next()), (Some(1), Some("dvs: no container 'shop'")));
}

#[test]
fn ended_programs_are_listed_on_request_only() {
    let daemon = says(200, PROCESSES);
    let table = stdout(&output(&daemon, &["ps", "shop"]));
    assert_eq!(table.lines().count(), 2, "{table}");
    assert!(table.contains("65600  n1    root  sleeping  1.25s  2 MiB  1970-01-01  sleep 100"), "{table}");
    assert!(stdout(&output(&daemon, &["ps", "--all", "shop"])).contains("exited (1)"));
    assert_eq!(stdout(&output(&daemon, &["ps", "shop", "-o", "name"])), "65600\n");
}

#[test]
fn refusal_of_the_daemon_is_shown_with_causes_and_advice() {
    let daemon = says(
        404,
        r#"{"kind":"not-found","what":"no container 'shop'","because":["nobody made it"],"try":"dvs dc ls"}"#,
    );
    let output = output(&daemon, &["dc", "inspect", "shop"]);
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(stderr(&output), "dvs: no container 'shop'\n  because: nobody made it\n  try: dvs dc ls\n");
    assert_eq!(stdout(&output), "");
}

#[test]
fn inspected_container_shows_its_channels_with_their_counts() {
    let daemon = FakeDaemon::start(|request| {
        let is_list = request.line.ends_with("/shop/channels");
        Answer::Say(200, if is_list { CHANNELS.to_owned() } else { DC.to_owned() })
    });
    let shown = output(&daemon, &["dc", "inspect", "shop"]);
    assert_eq!(stderr(&shown), "");
    let shown = stdout(&shown);
    let words = |line: &str| line.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
    let rows: Vec<_> = shown.lines().map(words).skip_while(|row| row.first().is_none_or(|it| it != "LEFT")).collect();
    assert_eq!(rows[1], ["300", "1", "messages", "n2", "7/6", "2/0", "0/0", "left"]);
    assert_eq!(rows[2], ["300", "3", "ring", "local", "-", "-", "-", "-"]);
    let json: serde_json::Value =
        serde_json::from_str(&stdout(&output(&daemon, &["dc", "inspect", "shop", "-o", "json"]))).unwrap();
    assert_eq!((&json["phase"], &json["channels"][0]["counts"]["left"]["messages"]), (&"running".into(), &7.into()));
}

#[test]
fn inspected_container_shows_what_was_asked_for_and_what_was_decided_from_it() {
    let placed = r#"{"id":7,"spec":{"name":"shop","nodes":["n1","n2"],"disks":[{"name":"root","node":"n2","bytes":1073741824}]},
        "placement":{"instances":[
        {"name":"disk-root","kind":"disk","index":0,"node":"n2","endpoint":16,"role":"primary","epoch":1,"why":{"kind":"asked"},
         "volume":{"name":"root","bytes":1073741824,"store":"image"}},
        {"name":"fs","kind":"fs","index":0,"node":"n2","endpoint":1,"role":"primary","epoch":3,
         "why":{"kind":"beside","server":"disk-root"}}]},
        "phase":"stopped","shares":[],"created_s":0}"#;
    let daemon = FakeDaemon::start(move |request| {
        Answer::Say(200, if request.line.ends_with("/channels") { "[]".to_owned() } else { placed.to_owned() })
    });
    let shown = stdout(&output(&daemon, &["dc", "inspect", "shop"]));
    let rows: Vec<String> = shown.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect();
    let has = |row: &str| assert!(rows.iter().any(|one| one == row), "{row}: {shown}");
    has("asked for disk root 1 GiB on n2");
    has("disk-root n2 primary 1 asked for");
    has("fs n2 primary 3 beside disk-root");
    let json = stdout(&output(&daemon, &["dc", "inspect", "shop", "-o", "json"]));
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(json["spec"]["disks"][0]["node"], "n2");
    assert_eq!(
        (&json["placement"]["instances"][1]["epoch"], &json["spec"]["servers"]),
        (&3.into(), &serde_json::json!([]))
    );
}

const DC: &str = r#"{"id":7,"spec":{"name":"shop","nodes":["n1"]},"phase":"running","shares":[],"created_s":0}"#;
const CHANNELS: &str = r#"[{"left":300,"right":1,"lane":0,"kind":"messages","via":"n2","counts":{
    "left":{"messages":7,"notifications":2,"entries":0,"awaits_answer":true},
    "right":{"messages":6,"notifications":0,"entries":0,"awaits_answer":false}}},
    {"left":300,"right":3,"lane":1,"kind":"ring","via":"local"}]"#;

/// What bash offers for the last word of a line. The script has to find the binary by its name.
fn offered_by_bash(daemon: Option<&FakeDaemon>, words: &[&str]) -> Vec<String> {
    const LINE: &str = r#"
        eval "$(dvs completion bash)"
        COMP_WORDS=("$@") COMP_CWORD=$(($# - 1)) COMP_TYPE=9
        _clap_complete_dvs dvs "${!#}" "${COMP_WORDS[COMP_CWORD - 1]}"
        [ ${#COMPREPLY[@]} = 0 ] || printf '%s\n' "${COMPREPLY[@]}"
    "#;
    let directory = std::path::Path::new(env!("CARGO_BIN_EXE_dvs")).parent().unwrap();
    let mut bash = Command::new("bash");
    bash.env_clear().env("PATH", format!("{}:/usr/bin:/bin", directory.display())).stdin(Stdio::null());
    bash.args(["-c", LINE, "bash"]).args(words);
    match daemon {
        Some(daemon) => bash.env("DVS_SOCKET", daemon.socket()),
        None => bash.env("DVS_SOCKET", "/nonexistent/d.sock"),
    };
    let said = bash.output().unwrap();
    assert_eq!(stderr(&said), "", "a tab says nothing");
    stdout(&said).lines().map(str::to_owned).collect()
}

#[test]
fn shell_offers_names_of_containers_and_nodes() {
    let daemon = FakeDaemon::start(|request| {
        let is_nodes = request.line.ends_with("/nodes");
        Answer::Say(200, if is_nodes { NODES.to_owned() } else { format!("[{DC}]") })
    });
    assert_eq!(offered_by_bash(Some(&daemon), &["dvs", "dc", "inspect", "s"]), ["shop"]);
    assert_eq!(offered_by_bash(Some(&daemon), &["dvs", "run", "sh"]), ["shop"]);
    assert_eq!(offered_by_bash(Some(&daemon), &["dvs", "run", "--node", ""]), ["n1"]);
    assert_eq!(offered_by_bash(Some(&daemon), &["dvs", "dc", "create", "new", "--nodes", "n2,n"]), ["n2,n1"]);
    assert_eq!(offered_by_bash(Some(&daemon), &["dvs", "dc", "insp"]), ["inspect"]);
    assert!(!offered_by_bash(Some(&daemon), &["dvs", "k"]).contains(&"keeper".to_owned()), "of the machinery");
}

#[test]
fn shell_offers_what_the_container_of_the_line_has() {
    const SERVICES: &str = r#"[{"spec":{"name":"web","command":["x"]},"is_wanted":true,"instances":[
        {"name":"web/0","state":"running","node":"n1","pid":65600,"restarts":0,"epoch":1}]}]"#;
    const PORTS: &str = r#"[{"spec":{"published":8080,"port":80},"nodes":[]}]"#;
    let daemon = FakeDaemon::start(|request| {
        let path = request.line.split(' ').nth(1).unwrap_or_default().to_owned();
        let body = match path.rsplit('/').next().unwrap_or_default() {
            "processes" => PROCESSES.to_owned(),
            "services" => SERVICES.to_owned(),
            "ports" => PORTS.to_owned(),
            "dcs" => format!("[{DC},{}]", DC.replace("shop", "other")),
            _ => DC.to_owned(),
        };
        Answer::Say(200, body)
    });
    let offered = |words: &[&str]| offered_by_bash(Some(&daemon), words);
    assert_eq!(offered(&["dvs", "kill", "shop", "6"]), ["65600"], "those that run");
    assert_eq!(offered(&["dvs", "kill", "-s", "HUP", "shop", "65600", "65"]), ["65600"]);
    assert_eq!(offered(&["dvs", "exec", "shop", "--beside", "6"]), ["65600"]);
    assert_eq!(offered(&["dvs", "logs", "shop", "6"]), ["65600", "65601"]);
    assert_eq!(offered(&["dvs", "stop", "shop", "6"]), ["65600"]);
    assert_eq!(offered(&["dvs", "service", "stop", "shop", "w"]), ["web"]);
    assert_eq!(offered(&["dvs", "service", "move", "shop", "w"]), ["web", "web/0"]);
    assert_eq!(offered(&["dvs", "port", "rm", "shop", "8"]), ["8080"]);
    assert_eq!(offered(&["dvs", "kill", "nothere", "6"]), Vec::<String>::new());
}

#[test]
fn shell_that_asks_in_vain_offers_nothing_and_soon() {
    assert_eq!(offered_by_bash(None, &["dvs", "dc", "inspect", "s"]), Vec::<String>::new());
    let refusing = says(500, "nonsense");
    assert_eq!(offered_by_bash(Some(&refusing), &["dvs", "dc", "inspect", "s"]), Vec::<String>::new());
    let silent = FakeDaemon::start(|_| {
        std::thread::sleep(std::time::Duration::from_secs(20));
        Answer::HangUp
    });
    let begun = std::time::Instant::now();
    assert_eq!(offered_by_bash(Some(&silent), &["dvs", "dc", "inspect", "s"]), Vec::<String>::new());
    assert!(begun.elapsed() < std::time::Duration::from_secs(10), "{:?}", begun.elapsed());
    // What a shell would take for more than a name is none.
    let hostile = FakeDaemon::start(|_| Answer::Say(200, format!("[{DC}]").replace("shop", "s$(id)")));
    assert_eq!(offered_by_bash(Some(&hostile), &["dvs", "dc", "inspect", "s"]), Vec::<String>::new());
}

#[test]
fn path_in_the_tree_that_is_no_text_is_refused_by_its_name() {
    use std::os::unix::ffi::OsStrExt;
    let odd = std::ffi::OsStr::from_bytes(b"/a\xff");
    let refused = |arguments: &[&str], after: &[&str], status: i32| {
        let output = dvs(None, arguments).arg(odd).args(after).output().unwrap();
        let text = stderr(&output);
        assert_eq!(output.status.code(), Some(status), "{text}");
        assert!(text.starts_with("dvs: invalid value '/a\u{fffd}' for "), "{text}");
        assert!(text.contains("it is not UTF-8"), "{text}");
        text
    };
    assert!(refused(&["import", "shop", "/etc"], &[], 2).contains("<DEST-IN-TREE>"));
    assert!(refused(&["run", "shop", "--root"], &["--", "true"], 125).contains("--root"));
}

#[test]
fn without_a_daemon_the_error_says_what_to_try() {
    let output = dvs(None, &["--socket", "/nonexistent/d.sock", "node", "ls"]).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let text = stderr(&output);
    assert!(text.starts_with("dvs: no daemon answers on /nonexistent/d.sock\n  because: No such file"), "{text}");
    assert!(text.contains("  try: dvs --at NODE") && text.contains("without a cluster: dvs dev up"), "{text}");
}

#[test]
fn answer_of_something_else_is_told_apart_from_a_refusal() {
    for (status, body, expected) in [
        (200, "<html>", "dvs: unexpected answer"),
        (502, "bad gateway", "dvs: the daemon answered 502 Bad Gateway\n  because: bad gateway\n"),
    ] {
        let output = output(&says(status, body), &["node", "ls"]);
        assert!(stderr(&output).starts_with(expected), "{}", stderr(&output));
        assert_eq!(output.status.code(), Some(1));
    }
    let daemon = FakeDaemon::start(|_| Answer::HangUp);
    assert!(
        stderr(&output(&daemon, &["node", "ls"]))
            .starts_with("dvs: the daemon closed the connection before it answered\n")
    );
}

#[test]
fn senseless_command_lines_have_status_two_and_our_form() {
    for arguments in [&["nod"][..], &["kill", "-s", "FOO", "shop", "1"], &["dc", "create", "Bad!", "--nodes", "n1"]] {
        let output = dvs(None, arguments).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        let text = stderr(&output);
        assert!(text.starts_with("dvs: ") && text.contains("\n  try: "), "{text}");
    }
}

#[test]
fn program_s_output_and_status_are_ours() {
    let daemon = runs(|mut frames| {
        frames.say(Kind::Stdout, b"out\n");
        frames.say(Kind::Stderr, b"err\n");
        frames.say(Kind::Exit, &[3]);
    });
    let output = output(&daemon, &["run", "shop", "--", "prog", "-x"]);
    assert_eq!((stdout(&output).as_str(), stderr(&output).as_str(), output.status.code()), ("out\n", "err\n", Some(3)));
    let request: mgmt_api::RunRequest = serde_json::from_str(&daemon.seen.lock().unwrap()[0].body).unwrap();
    assert_eq!(request.argv, ["prog", "-x"].map(mgmt_api::Bytes::from));
    assert!(!request.interactive && request.terminal.is_none() && !request.detach);
}

#[test]
fn program_that_cannot_be_started_has_the_statuses_of_a_shell() {
    for (kind, status, expected) in
        [("no-such-program", 422, 127), ("not-executable", 422, 126), ("conflict", 409, 125)]
    {
        let daemon = FakeDaemon::start(move |_| Answer::Say(status, format!(r#"{{"kind":"{kind}","what":"no"}}"#)));
        assert_eq!(output(&daemon, &["run", "shop", "x"]).status.code(), Some(expected), "{kind}");
    }
    let daemon = runs(|mut frames| frames.say(Kind::Error, br#"{"kind":"no-such-program","what":"no x"}"#));
    assert_eq!(output(&daemon, &["run", "shop", "x"]).status.code(), Some(127));
    let daemon = runs(drop);
    assert_eq!(output(&daemon, &["run", "shop", "x"]).status.code(), Some(125));
}

#[test]
fn large_input_comes_back_whole_through_a_filter() {
    const BYTES: usize = 4 << 20;
    let daemon = runs(|mut frames| {
        while let Some((Kind::Stdin, bytes)) = frames.hear() {
            if bytes.is_empty() {
                return frames.say(Kind::Exit, &[0]);
            }
            frames.say(Kind::Stdout, &bytes);
        }
    });
    let mut child =
        dvs(Some(&daemon), &["run", "-i", "shop", "cat"]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let feeder = std::thread::spawn(move || stdin.write_all(&vec![b'z'; BYTES]).unwrap());
    let output = child.wait_with_output().unwrap();
    feeder.join().unwrap();
    assert_eq!((output.stdout.len(), output.status.code()), (BYTES, Some(0)));
}

#[test]
fn signal_to_the_command_reaches_the_program() {
    let daemon = runs(|mut frames| {
        frames.say(Kind::Stdout, b"up\n");
        if let Some((Kind::Signal, payload)) = frames.hear() {
            frames.say(Kind::Exit, &[128 + payload[0]]);
        }
    });
    let mut child = dvs(Some(&daemon), &["run", "shop", "x"]).stdout(Stdio::piped()).spawn().unwrap();
    // The program's first output proves that signals are watched for.
    let mut first = [0; 3];
    std::io::Read::read_exact(child.stdout.as_mut().unwrap(), &mut first).unwrap();
    signal(&child, rustix::process::Signal::TERM);
    assert_eq!(child.wait().unwrap().code(), Some(143));
}

#[test]
fn command_goes_without_a_program_that_does_not_heed_three_signals() {
    let daemon = runs(|mut frames| {
        frames.say(Kind::Stdout, b"up\n");
        while let Some((Kind::Signal, _)) = frames.hear() {
            frames.say(Kind::Stdout, b"no\n");
        }
    });
    let mut child = dvs(Some(&daemon), &["run", "shop", "x"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("dvs starts");
    let mut stdout = child.stdout.take().unwrap();
    for _ in 0..3 {
        // Each time the program's answer to the last one is awaited: signals that pend together are one.
        std::io::Read::read_exact(&mut stdout, &mut [0; 3]).unwrap();
        // Not INT, which is ignored by what a shell started in the background.
        signal(&child, rustix::process::Signal::TERM);
    }
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(125));
    assert!(stderr(&output).contains("\n  try: dvs kill -s KILL shop 65540\n"), "{}", stderr(&output));
}

#[test]
fn signal_to_one_who_only_watches_is_his_own() {
    let (heard, said) = std::sync::mpsc::channel();
    let (heard, process) = (Arc::new(Mutex::new(heard)), PROCESSES_ONE);
    let daemon = FakeDaemon::start(move |request| {
        if !request.line.contains("attach") {
            return Answer::Say(200, process.to_owned());
        }
        let heard = heard.clone();
        Answer::Upgrade(Box::new(move |mut frames| {
            frames.say(Kind::Stdout, b"up\n");
            heard.lock().unwrap().send(frames.hear()).unwrap();
        }))
    });
    let mut child =
        dvs(Some(&daemon), &["attach", "--no-input", "shop", "65540"]).stdout(Stdio::piped()).spawn().unwrap();
    std::io::Read::read_exact(child.stdout.as_mut().unwrap(), &mut [0; 3]).unwrap();
    signal(&child, rustix::process::Signal::TERM);
    assert_eq!(std::os::unix::process::ExitStatusExt::signal(&child.wait().unwrap()), Some(15));
    assert_eq!(said.recv().unwrap(), None, "the program hears nothing");
    assert!(daemon.lines().iter().all(|line| !line.contains("signal")), "{:?}", daemon.lines());
}

#[test]
fn value_goes_to_the_store_beside_the_arguments_which_have_a_limit() {
    const BYTES: usize = 65_536;
    let (heard, said) = std::sync::mpsc::channel();
    let heard = Arc::new(Mutex::new(heard));
    let daemon = runs(move |mut frames| {
        let mut line = Vec::new();
        while let Some((Kind::Stdin, payload)) = frames.hear() {
            if payload.is_empty() {
                break;
            }
            line.extend_from_slice(&payload);
        }
        heard.lock().unwrap().send(line).unwrap();
        frames.say(Kind::Exit, &[0]);
    });
    for (byte, more) in [(0_u8, 0), (0xff, 0), (b'a', 1)] {
        let mut child = dvs(Some(&daemon), &["ds", "put", "shop", "k", "-"])
            .stdin(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        child.stdin.take().unwrap().write_all(&vec![byte; BYTES + more]).unwrap();
        let output = child.wait_with_output().unwrap();
        if more > 0 {
            let text = stderr(&output);
            assert!(text.starts_with("dvs: the value has more than 65536 bytes\n  try: "), "{text}");
            continue;
        }
        assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
        let request: serde_json::Value = serde_json::from_slice(&said.recv().unwrap()).unwrap();
        let value = &request["value"];
        let bytes = value["hex"].as_str().map_or(value.as_str().map(str::len), |hex| Some(hex.len() / 2));
        assert_eq!((request["op"].as_str(), bytes), (Some("put"), Some(BYTES)));
    }
    let seen = daemon.seen.lock().unwrap();
    assert!(seen.iter().all(|request| request.body.len() < 1000), "the value is no argument");
}

fn signal(child: &std::process::Child, signal: rustix::process::Signal) {
    let pid = rustix::process::Pid::from_raw(child.id() as i32).unwrap();
    rustix::process::kill_process(pid, signal).unwrap();
}

#[test]
fn authority_and_certificates_are_made_without_a_daemon_and_the_daemon_says_how() {
    let directory = tempfile::tempdir().unwrap();
    let [ca, node] = ["ca", "n1"].map(|name| directory.path().join(name).display().to_string());
    let make = |arguments: &[&str]| dvs(None, arguments).output().unwrap();
    let refused = make(&["node", "cert", "n1", "--ca", &ca, "--out", &node]);
    assert!(stderr(&refused).contains("\n  try: dvs node ca CLUSTER --out DIR"), "{}", stderr(&refused));
    assert!(make(&["node", "ca", "home", "--out", &ca]).status.success());
    assert_eq!(make(&["node", "ca", "home", "--out", &ca]).status.code(), Some(1), "never overwritten");
    let made = make(&["node", "cert", "n1", "--ca", &ca, "--out", &node, "--address", "192.0.2.11", "-o", "json"]);
    let made: serde_json::Value = serde_json::from_str(&stdout(&made)).unwrap();
    assert_eq!((made["cluster"].as_str(), made["node"].as_str()), (Some("home"), Some("n1")));
    assert!(pki::NodeCredentials::load(std::path::Path::new(&node)).is_ok());

    let settings = directory.path().join("dvsd.toml");
    let under = |name: &str| directory.path().join(name);
    let text = format!(
        "node = \"n1\"\ncluster = \"home\"\nadvertise = \"127.0.0.1\"\nstate_dir = {:?}\nrun_dir = {:?}\ntls_dir = {:?}\n",
        under("state"),
        under("run"),
        under("nothing")
    );
    std::fs::write(&settings, text).unwrap();
    let refused = make(&["daemon", "--config", settings.to_str().unwrap()]);
    assert_eq!(refused.status.code(), Some(1));
    assert!(stderr(&refused).contains("\n  try: dvs node cert NODE --ca DIR --out DIR"), "{}", stderr(&refused));
}

#[test]
fn what_is_deleted_is_named_for_programs() {
    let daemon = says(204, "");
    let output = output(&daemon, &["dc", "delete", "shop", "-o", "name"]);
    assert_eq!((stdout(&output).as_str(), stderr(&output).as_str()), ("shop\n", "container 'shop' is deleted\n"));
}

#[test]
fn file_that_is_no_archive_is_refused_before_it_goes_anywhere() {
    let daemon = says(500, "");
    let output = output(&daemon, &["import", "shop", "/etc/passwd", "/data"]);
    assert_eq!(
        stderr(&output),
        "dvs: cannot read /etc/passwd\n  because: it is no tar archive\n  try: a directory, a tar archive, or - for an archive on standard input\n"
    );
    assert!(daemon.lines().is_empty());
}

#[test]
fn detached_program_answers_with_its_pid() {
    let daemon = says(200, r#"{"pid":65700,"node":"n2"}"#);
    let output = output(&daemon, &["run", "-d", "shop", "--node", "n2", "sleep", "1"]);
    assert_eq!((stdout(&output).as_str(), output.status.code()), ("65700\n", Some(0)));
    assert_eq!(daemon.lines(), ["POST /v1/dcs/shop/processes"]);
}

#[test]
fn every_process_gets_its_signal_though_one_is_gone() {
    let daemon = FakeDaemon::start(|request| match request.line.contains("/2/") {
        true => Answer::Say(404, r#"{"kind":"not-found","what":"no process 2"}"#.to_owned()),
        false => Answer::Say(204, String::new()),
    });
    let output = output(&daemon, &["kill", "-s", "HUP", "shop", "1", "2", "3"]);
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(stderr(&output), "dvs: no process 2\n  try: dvs dc ls, dvs node ls: what there is\n");
    assert_eq!(daemon.seen.lock().unwrap().len(), 3);
}

/// Nobody has seen it, so nobody can use it, and nobody could take it back.
#[test]
fn token_that_cannot_be_printed_is_taken_back() {
    let daemon = FakeDaemon::start(|request| match request.line.starts_with("DELETE") {
        true => Answer::Say(204, String::new()),
        false => {
            Answer::Say(201, r#"{"token":"4f2a9c01.00.11","address":"192.0.2.11:7420","ends_s":4000000000}"#.to_owned())
        }
    });
    for arguments in [&["node", "token"][..], &["node", "token", "-o", "json"]] {
        let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
        let output = dvs(Some(&daemon), arguments).stdout(full).output().unwrap();
        let said = stderr(&output);
        assert_eq!(output.status.code(), Some(1), "{said}");
        assert!(said.contains("the token was taken back\n  try: "), "{said}");
        assert_eq!(daemon.lines().last().unwrap(), "DELETE /v1/tokens/4f2a9c01");
    }
}

#[test]
fn detached_program_whose_number_cannot_be_printed_is_told_with_it() {
    let daemon = says(200, r#"{"pid":65700,"node":"n2"}"#);
    let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
    let output = dvs(Some(&daemon), &["run", "-d", "shop", "sleep", "1"]).stdout(full).output().unwrap();
    assert_eq!(output.status.code(), Some(125));
    assert!(stderr(&output).contains("the program runs as process 65700"), "{}", stderr(&output));
}

/// Something else may listen where a daemon did: it has not done what it was asked for.
#[test]
fn answer_with_something_where_nothing_is_expected_is_no_success() {
    let daemon = says(200, "<html>");
    for arguments in [
        &["dc", "delete", "shop"][..],
        &["kill", "shop", "65600"],
        &["node", "remove", "n2"],
        &["node", "token", "rm", "4f2a9c01"],
        &["access", "rm", "ada"],
    ] {
        let output = output(&daemon, arguments);
        assert_eq!(output.status.code(), Some(1), "{arguments:?}");
        assert!(stderr(&output).starts_with("dvs: unexpected answer: "), "{}", stderr(&output));
        assert_eq!(stdout(&output), "");
    }
}

#[test]
fn key_whose_certificate_cannot_be_written_is_not_left_in_the_way() {
    let directory = tempfile::tempdir().unwrap();
    let out = directory.path().to_str().unwrap();
    std::fs::create_dir_all(directory.path().join("bob.crt/in the way")).unwrap();
    let refused = dvs(None, &["access", "key", "bob", "--out", out]).output().unwrap();
    assert_eq!(refused.status.code(), Some(1));
    assert!(stderr(&refused).contains("bob.crt") && stderr(&refused).contains("\n  try: "), "{}", stderr(&refused));
    assert!(!directory.path().join("bob.key").exists());
    std::fs::remove_dir_all(directory.path().join("bob.crt")).unwrap();
    assert!(dvs(None, &["access", "key", "bob", "--out", out]).output().unwrap().status.success());
}

/// A cluster's level is asked of the cluster, also elsewhere.
#[test]
fn context_that_is_not_there_is_named_by_what_asks_a_cluster_and_refused_by_what_does_not() {
    let directory = tempfile::tempdir().unwrap();
    let said = |arguments: &[&str]| {
        let mut command = dvs(None, &["--context", "work"]);
        let output = command.args(arguments).env("XDG_CONFIG_HOME", directory.path()).output().unwrap();
        (output.status.code(), stderr(&output))
    };
    let (status, text) = said(&["cluster", "level"]);
    assert!(status == Some(1) && text.contains("there is no context 'work'"), "{text}");
    let (status, text) = said(&["cluster", "init", "home"]);
    assert!(status == Some(2) && text.contains("cannot be done in context 'work'"), "{text}");
}

#[test]
fn container_is_created_over_all_living_nodes_when_none_is_named() {
    let daemon = FakeDaemon::start(|request| match request.line.as_str() {
        "GET /v1/nodes" => Answer::Say(200, NODES.to_owned()),
        _ => Answer::Say(
            201,
            format!(r#"{{"id":1,"spec":{},"phase":"running","shares":[],"created_s":0}}"#, request.body),
        ),
    });
    let output = output(&daemon, &["dc", "create", "shop", "--start", "--memory", "1G"]);
    assert_eq!(stderr(&output), "container 'shop' runs on n1\n");
    assert_eq!(daemon.lines(), ["GET /v1/nodes", "POST /v1/dcs?start=true"]);
    assert_eq!(stdout(&output), "");
}

#[test]
fn reader_that_goes_away_is_no_error_worth_a_message() {
    let many = format!("[{}]", vec![NODES.trim_start_matches('[').trim_end_matches(']'); 2000].join(","));
    let daemon = FakeDaemon::start(move |_| Answer::Say(200, many.clone()));
    let mut child = dvs(Some(&daemon), &["node", "ls"]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert_eq!((output.status.code(), stderr(&output).as_str()), (Some(141), ""));
}

#[test]
fn program_s_output_that_cannot_be_written_is_not_the_daemon_s_fault() {
    let daemon = runs(|mut frames| {
        frames.say(Kind::Stdout, b"out\n");
        frames.say(Kind::Exit, &[0]);
    });
    let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
    let output = dvs(Some(&daemon), &["run", "shop", "x"]).stdout(full).output().unwrap();
    assert_eq!(output.status.code(), Some(125));
    assert_eq!(
        stderr(&output),
        "dvs: standard output cannot be written\n  because: No space left on device (os error 28)\n  \
         try: dvs logs shop 65540: what it wrote is in its log\n"
    );
}

#[test]
fn terminal_is_refused_where_there_is_none() {
    let daemon = says(200, PROCESSES_ONE.replace('{', "{\"terminal\":true,").leak());
    for arguments in [
        &["run", "-it", "shop", "sh"][..],
        &["run", "-t", "shop", "sh"],
        &["exec", "-it", "shop", "--beside", "65540", "sh"],
        &["attach", "shop", "65540"],
    ] {
        let output = output(&daemon, arguments);
        assert_eq!(output.status.code(), Some(125), "{arguments:?}");
        assert!(stderr(&output).starts_with("dvs: the input device is not a TTY\n"), "{}", stderr(&output));
    }
    let is_start = |line: &String| line.starts_with("POST") || line.contains("attach");
    assert!(!daemon.lines().iter().any(is_start), "{:?}", daemon.lines());
}

#[test]
fn argument_that_is_no_text_reaches_the_program_as_it_is() {
    use std::os::unix::ffi::OsStrExt;
    let daemon = runs(|mut frames| frames.say(Kind::Exit, &[0]));
    let odd = std::ffi::OsStr::from_bytes(b"K=\xff\x80");
    let mut command = dvs(Some(&daemon), &["run"]);
    let output =
        command.arg("--env").arg(odd).arg("--workdir").arg("/a").args(["shop", "ls"]).arg(odd).output().unwrap();
    assert_eq!((output.status.code(), stderr(&output).as_str()), (Some(0), ""));
    let body: serde_json::Value = serde_json::from_str(&daemon.seen.lock().unwrap()[0].body).unwrap();
    assert_eq!(body["argv"], serde_json::json!(["ls", {"hex": "4b3dff80"}]));
    assert_eq!(body["env"], serde_json::json!([{"hex": "4b3dff80"}]));
}

/// As `nohup` and jobs in the background of a script start it.
#[test]
fn signal_that_was_ignored_when_the_command_began_does_not_reach_the_program() {
    let (heard, said) = std::sync::mpsc::channel();
    let heard = Arc::new(Mutex::new(heard));
    let daemon = runs(move |mut frames| {
        frames.say(Kind::Stdout, b"up\n");
        if let Some((Kind::Signal, payload)) = frames.hear() {
            heard.lock().unwrap().send(payload[0]).unwrap();
            frames.say(Kind::Exit, &[0]);
        }
    });
    let mut child = Command::new("sh")
        .args(["-c", "trap '' HUP; exec \"$0\" run shop x", env!("CARGO_BIN_EXE_dvs")])
        .env("DVS_SOCKET", daemon.socket())
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    std::io::Read::read_exact(child.stdout.as_mut().unwrap(), &mut [0; 3]).unwrap();
    signal(&child, rustix::process::Signal::HUP);
    signal(&child, rustix::process::Signal::USR1);
    assert_eq!(child.wait().unwrap().code(), Some(0));
    assert_eq!(said.recv().unwrap(), 10, "only the other one");
}

#[test]
fn log_for_programs_is_an_object_for_each_line() {
    let (daemon, old) = (pieces(), says(200, "one\n\ntwo"));
    let json = |daemon| stdout(&output(daemon, &["logs", "-o", "json", "shop", "65600"]));
    assert_eq!(
        json(&daemon),
        "{\"time_ms\":1764192600120,\"stream\":\"stdout\",\"line\":\"one\"}\n\
         {\"time_ms\":1764192600130,\"stream\":\"stderr\",\"line\":\"bad\"}\n\
         {\"time_ms\":1764192600120,\"stream\":\"stdout\",\"line\":\"two\"}\n\
         {\"stream\":\"stdout\",\"line\":{\"hex\":\"ff\"}}\n"
    );
    assert_eq!(
        json(&old),
        "{\"stream\":\"stdout\",\"line\":\"one\"}\n{\"stream\":\"stdout\",\"line\":\"\"}\n\
         {\"stream\":\"stdout\",\"line\":\"two\"}\n"
    );
}

/// A line of which the rest comes later, another stream in between, and something of no known time that is no text.
fn pieces() -> FakeDaemon {
    let lines = [
        r#"{"time_ms":1764192600120,"stream":"stdout","text":"one\ntw"}"#,
        r#"{"time_ms":1764192600130,"stream":"stderr","text":"bad\n"}"#,
        r#"{"time_ms":1764192601000,"stream":"stdout","text":"o\n"}"#,
        r#"{"stream":"stdout","text":{"hex":"ff"}}"#,
    ];
    FakeDaemon::start(move |_| Answer::Lines(lines.map(|line| format!("{line}\n")).concat()))
}

#[test]
fn logs_are_copied_as_they_are_each_stream_to_its_own() {
    let daemon = pieces();
    let shown = output(&daemon, &["logs", "--tail", "5", "-f", "shop", "65600"]);
    assert_eq!((shown.stdout.as_slice(), stderr(&shown)), (&b"one\ntwo\n\xff"[..], "bad\n".to_owned()));
    assert_eq!(daemon.lines(), ["GET /v1/dcs/shop/processes/65600/logs?form=pieces&follow=true&tail=5"]);

    let shown = output(&daemon, &["logs", "-t", "--since", "2025-11-26T21:30:00.1Z", "shop", "65600"]);
    let expected = b"2025-11-26T21:30:00.120Z one\n2025-11-26T21:30:00.120Z two\n- \xff";
    assert_eq!((shown.stdout.as_slice(), stderr(&shown)), (&expected[..], "2025-11-26T21:30:00.130Z bad\n".to_owned()));
    let asked = daemon.lines();
    assert_eq!(asked[1], "GET /v1/dcs/shop/processes/65600/logs?form=pieces&follow=false&since=1764192600100");

    // A node of an earlier release.
    let daemon = says(200, "line 1\nline 2\n");
    assert_eq!(stdout(&output(&daemon, &["logs", "shop", "65600"])), "line 1\nline 2\n");
    for more in [&["-t"][..], &["--since", "10m"], &["--since", "10m", "-o", "json"]] {
        let refused = output(&daemon, &[&["logs", "shop", "65600"], more].concat());
        assert!(refused.status.code() == Some(1) && stderr(&refused).contains("earlier release"), "{refused:?}");
    }
}

#[test]
fn every_shell_gets_a_script_that_asks_us_and_hears_the_commands_that_people_type() {
    for (shell, part) in [("bash", "complete -o nospace"), ("zsh", "#compdef dvs"), ("fish", "complete --keep-order")] {
        let output = dvs(None, &["completion", shell]).output().unwrap();
        assert_eq!(output.status.code(), Some(0));
        let script = stdout(&output);
        assert!(script.contains(part) && script.contains("DVS_COMPLETE"), "{shell}: {script}");
        let mut asking = dvs(None, &["--", "dvs", ""]);
        asking.env("DVS_COMPLETE", shell).env("_CLAP_COMPLETE_INDEX", "1").env("_CLAP_IFS", "\n");
        let offered = stdout(&asking.output().unwrap());
        let names: Vec<&str> = offered.lines().filter_map(|line| line.split([':', '\t']).next()).collect();
        assert!(names.contains(&"attach"), "{shell}: {names:?}");
        for hidden in ["keeper", "shelf", "gate", "internal"] {
            assert!(!names.contains(&hidden), "{shell} proposes {hidden}");
        }
    }
    assert_eq!(dvs(None, &["completion", "tcl"]).output().unwrap().status.code(), Some(2));
}

#[test]
fn program_that_the_command_line_kept_from_being_reached_has_the_status_of_docker() {
    for arguments in
        [&["run", "shop"][..], &["run", "--no-such-option", "shop", "true"], &["exec", "-u", "x y", "shop", "true"]]
    {
        let output = dvs(None, arguments).output().unwrap();
        assert_eq!(output.status.code(), Some(125), "{arguments:?}");
        assert!(stderr(&output).contains("\n  try: dvs "), "{}", stderr(&output));
    }
}
