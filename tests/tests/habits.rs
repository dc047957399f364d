//! What people type who know docker.

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use end_to_end::terminal::Terminal;
use end_to_end::{Cluster, eventually};

const SOON: Duration = Duration::from_secs(30);

/// A directory with what a copy may lose.
fn site(below: &Path) -> String {
    let site = below.join("site");
    fs::create_dir_all(site.join("deep/er")).expect("a directory");
    fs::write(site.join("deep/er/page"), vec![7; 3 << 20]).expect("a file");
    fs::write(site.join("run.sh"), "#!/bin/sh\n").expect("a file");
    fs::set_permissions(site.join("run.sh"), fs::Permissions::from_mode(0o750)).expect("a mode");
    symlink("deep/er/page", site.join("link")).expect("a link");
    fs::write(site.join("empty"), "").expect("a file");
    std::os::unix::fs::chown(site.join("empty"), Some(33), Some(33)).expect("an owner");
    site.to_str().expect("text").to_owned()
}

#[test]
fn files_go_in_and_out_and_from_container_to_container() {
    let cluster = Cluster::up(2);
    cluster.container("shop", 2, &["--fs-node", "n2", "--disk-node", "n1"]);
    cluster.container("other", 1, &["--disk", "64M"]);
    let place = tempfile::tempdir().expect("a directory");
    let site = site(place.path());
    let path = |name: &str| place.path().join(name).to_str().expect("text").to_owned();

    cluster.ok(&["cp", &site, "shop:/www"]);
    let look = "cd /dc/www; stat -c '%n %a %u' *; readlink link; wc -c < deep/er/page";
    let expected = "deep 755 0\nempty 644 0\nlink 777 0\nrun.sh 750 0\ndeep/er/page\n3145728\n";
    assert_eq!(cluster.sh("shop", "n1", look), expected);
    // Once more it goes into the directory that is there, or where a slash says so.
    cluster.ok(&["cp", "-a", &site, "shop:/dc/www"]);
    assert_eq!(
        cluster.sh("shop", "n1", "cd /dc/www/site; stat -c '%n %a %u' empty run.sh"),
        "empty 644 33\nrun.sh 750 0\n"
    );
    cluster.ok(&["cp", &path("site/run.sh"), "shop:/www/start"]);
    cluster.ok(&["cp", &path("site/run.sh"), "shop:/bin/"]);
    assert_eq!(cluster.sh("shop", "n1", "cat /dc/www/start /dc/bin/run.sh"), "#!/bin/sh\n#!/bin/sh\n");

    // Out, under the same name, another, and into a directory.
    cluster.ok(&["cp", "shop:/www", &path("back")]);
    fs::create_dir(path("into")).expect("a directory");
    cluster.ok(&["cp", "shop:/www/deep/er/page", &path("into")]);
    cluster.ok(&["cp", "shop:/www/deep/er/page", &path("single")]);
    let there = |name: &str| fs::read(path(name)).expect("it is there").len();
    assert_eq!(["back/deep/er/page", "into/page", "single"].map(there), [3 << 20; 3]);
    let meta = |name: &str| fs::symlink_metadata(path(name)).expect("it is there");
    assert_eq!(meta("back/run.sh").mode() & 0o777, 0o750);
    assert!(meta("back/link").is_symlink() && meta("back/site/empty").uid() == 0);
    cluster.ok(&["cp", "--archive", "shop:/www/site/empty", &path("owned")]);
    assert_eq!(meta("owned").uid(), 33);

    // From one to another, and as an archive both ways.
    cluster.ok(&["cp", "shop:/www/site", "other:/copy"]);
    assert_eq!(cluster.sh("other", "n1", "wc -c < /dc/copy/deep/er/page"), "3145728\n");
    let script = format!(
        "{0} cp shop:/www/site - | tar t | sort | head -3; tar c -C {1} site | {0} cp - shop:/packed",
        end_to_end::dvs_binary().display(),
        place.path().display()
    );
    let mut shell = std::process::Command::new("bash");
    shell.args(["-ec", &script]).env("DVS_STATE_DIR", cluster.state_dir());
    let done = shell.output().expect("bash starts");
    assert_eq!(String::from_utf8_lossy(&done.stdout), "site\nsite/deep\nsite/deep/er\n", "{done:?}");
    assert_eq!(cluster.sh("shop", "n2", "ls /dc/packed/site"), "deep\nempty\nlink\nrun.sh\n");

    // What an export writes is in no log.
    let left = cluster.json(&["ps", "shop", "--all", "-o", "json"]);
    let packers = left.as_array().expect("a list").iter().filter(|one| one["command"][2] == "pack");
    for pid in packers.map(|one| one["pid"].to_string()) {
        assert!(cluster.ok(&["logs", "shop", &pid]).len() < 1000);
    }

    for (from, to, why) in [
        ("shop:/none", path("x"), "/dc/none"),
        (&path("none"), "shop:/x".to_owned(), "none"),
        ("shop:/www", "/no/such/place/x".to_owned(), "/no/such/place/x"),
        ("shop:/www", "none:/x".to_owned(), "none"),
    ] {
        let (status, said) = cluster.fails(&["cp", from, &to]);
        assert!(status == 1 && said.contains(why) && said.contains("try:"), "{from} {to}: {said}");
    }
    assert!(!Path::new(&path("x")).exists());
}

#[test]
fn programs_are_waited_for_stopped_filtered_and_measured() {
    let cluster = Cluster::up(2);
    cluster.container("shop", 2, &["--memory", "512M"]);
    let begin = |node: &str, user: &str, script: &str| {
        cluster.ok(&["run", "-d", "shop", "-n", node, "-u", user, "--", "sh", "-c", script]).trim().to_owned()
    };
    let seven = begin("n2", "0", "sleep 1; exit 7");
    let killed = begin("n1", "0", "kill -9 $$");
    let ended = cluster.json(&["wait", "shop", &seven, &killed, "-o", "json"]);
    assert_eq!((&ended[0]["exit"], &ended[1]["exit"]), (&7.into(), &137.into()));
    let (status, said) = cluster.fails(&["wait", "shop", "65999"]);
    assert!(status == 1 && said.contains("65999"), "{said}");

    // Less than the container has, also of what a program starts elsewhere.
    let less = ["run", "shop", "-n", "n1", "--ulimit", "nofile=77", "--cap-drop", "NET_RAW", "--", "sh", "-c"];
    let look = "ulimit -n; grep CapBnd /proc/self/status";
    let here = cluster.ok(&[&less[..], &[look]].concat());
    let there = cluster.ok(&[&less[..], &[&format!("on n2 -- sh -c '{look}'")]].concat());
    assert!(here.starts_with("77\n") && here == there, "{here}{there}");
    let (status, said) = cluster.fails(&["run", "shop", "--ulimit", "nofile=100000000", "--", "true"]);
    assert!(status == 125 && said.contains("above what its container has"), "{said}");

    // When it was said, and where.
    let both =
        cluster.ok(&["run", "-d", "shop", "-u", "daemon:tape", "--", "sh", "-c", "id -u; id -g >&2; exec sleep 0"]);
    cluster.ok(&["wait", "shop", both.trim()]);
    let told = |more: &[&str]| cluster.output(&[&["logs", "shop", both.trim()], more].concat());
    let (plain, timed) = (told(&[]), told(&["-t", "--since", "1h"]));
    assert_eq!((plain.stdout.as_slice(), plain.stderr.as_slice()), (&b"1\n"[..], &b"26\n"[..]));
    let timed = String::from_utf8_lossy(&timed.stdout).into_owned();
    assert!(timed.starts_with("20") && timed.ends_with("Z 1\n"), "{timed}");
    assert!(told(&["--since", "2100-01-01"]).stdout.is_empty());
    let (status, said) = cluster.fails(&["logs", "shop", both.trim(), "--since", "yesterday"]);
    assert!(status == 2 && said.contains("10m (ago)"), "{said}");
    let (status, said) = cluster.fails(&["run", "shop", "-u", "eve", "--", "true"]);
    assert!(status == 125 && said.contains("no user 'eve'") && said.contains("/etc/passwd"), "{said}");

    let busy = begin("n2", "33", "while :; do :; done");
    let stubborn = begin("n1", "0", "trap '' TERM; while :; do sleep 1; done");
    let list = |more: &[&str]| cluster.ok(&[&["ps", "shop", "-q"], more].concat());
    assert_eq!(list(&["--filter", "user=33"]).trim(), busy);
    assert_eq!(list(&["--node", "n2", "--filter", "command=while"]).trim(), busy);
    assert!(list(&["--filter", "state=exited"]).lines().any(|pid| pid == seven));
    let (status, said) = cluster.fails(&["ps", "shop", "--filter", "colour=red"]);
    assert!(status == 2 && said.contains("state=STATE"), "{said}");

    let top = cluster.json(&["top", "shop", "-o", "json"]);
    assert_eq!(top[0]["pid"].to_string(), busy, "{top}");
    assert!(top[0]["cpu_percent"].as_f64().expect("a number") > 10.0, "{top}");
    let stats = cluster.json(&["stats", "shop", "-o", "json"]);
    let of: Vec<&str> = stats.as_array().expect("a list").iter().filter_map(|one| one["node"].as_str()).collect();
    assert_eq!(of, ["n1", "n2"]);
    let number = |node: usize, what: &str| stats[node][what].as_f64().expect("a number");
    assert!(number(1, "cpu_percent") > 10.0 && number(0, "memory_bytes") > 0.0 && number(0, "pids") > 2.0, "{stats}");
    assert_eq!(number(0, "memory_limit_bytes"), f64::from(512 << 20));
    let shown = cluster.ok(&["stats"]);
    assert!(shown.lines().count() == 3 && shown.contains("512"), "{shown}");

    let begun = Instant::now();
    cluster.ok(&["stop", "-t", "1", "shop", &stubborn, &busy]);
    assert!(begun.elapsed() < SOON);
    eventually("both are gone", SOON, || (!list(&[]).contains(&stubborn) && !list(&[]).contains(&busy)).then_some(()));

    assert!(cluster.ok(&["inspect", "shop"]).contains("subnet"));
    assert_eq!(cluster.json(&["inspect", "n1", "-o", "json"])["name"], "n1");
    assert_eq!(cluster.json(&["inspect", "shop", &seven, "-o", "json"])[0]["exit"], 7);
    cluster.ok(&["service", "add", "shop", "clock", "--", "sleep", "1000"]);
    assert!(cluster.ok(&["inspect", "shop", "clock"]).contains("sleep 1000"));
    let (status, said) = cluster.fails(&["inspect", "nothing"]);
    assert!(status == 1 && said.contains("dvs dc ls"), "{said}");

    cluster.ok(&["restart", "-t", "1", "shop"]);
    cluster.ok(&["stop", "-t", "1", "shop"]);
    assert_eq!(cluster.json(&["stats", "shop", "-o", "json"]).as_array().map(Vec::len), Some(0));
    cluster.ok(&["start", "shop"]);
    cluster.ok(&["rm", "-f", "shop"]);
    assert_eq!(cluster.ok(&["dc", "ls", "-o", "name"]), "");
}

/// What comes of a line that people type who know docker.
#[derive(Clone, Copy)]
enum Comes {
    /// It is done, and this is part of what it says.
    Done(&'static str),
    /// It is refused with how it is done here.
    Here(&'static str),
}
use Comes::{Done, Here};

/// Typed blindly, one after the other; `|` parts words, `{pid}` is a program, `{dir}` a directory. Each row of
/// `docs/habits.md` is among them.
const TYPED: &[(&str, Comes)] = &[
    ("run --rm shop echo hello", Done("hello")),
    ("run -e A=one shop printenv A", Done("one")),
    ("run --env-file {dir}/env shop printenv B", Done("two")),
    ("run -u daemon shop id -un", Done("daemon")),
    ("run --user 33:33 shop id -g", Done("33")),
    ("run -w /tmp shop pwd", Done("/tmp")),
    ("run --cap-drop NET_RAW shop true", Done("")),
    ("run --ulimit nofile=77 shop prlimit -n", Done("77")),
    ("run -i shop cat", Done("")),
    ("run -it shop bash", Here("without -t")),
    ("run -d shop sleep 1000", Done("6")),
    ("run -dt shop sleep 1000", Done("6")),
    ("run -dit shop cat", Done("6")),
    ("run --name web shop true", Here("dvs service add")),
    ("run --restart always shop true", Here("dvs service add")),
    ("run --health-cmd true shop true", Here("dvs service add")),
    ("run --stop-signal INT shop true", Here("dvs service add")),
    ("run --stop-timeout 3 shop true", Here("dvs service add")),
    ("run -p 8080:80 shop true", Here("dvs port add")),
    ("run -P shop true", Here("dvs port add")),
    ("run -v /srv:/data:ro shop true", Here("dvs dc create DC -v /srv:/data:ro")),
    ("run -v /var/run/docker.sock:/var/run/docker.sock shop true", Here("dvs dc create DC -v")),
    ("run -m 1g shop true", Here("dvs dc set")),
    ("run --cpus 2 shop true", Here("dvs dc set")),
    ("run --cpuset-cpus 0 shop true", Here("dvs dc set")),
    ("run --pids-limit 100 shop true", Here("dvs dc set")),
    ("run --hostname x shop true", Here("a node of a container has its name")),
    ("run --read-only shop true", Here("the system is read-only")),
    ("run --tmpfs /x shop true", Here("/tmp the node's own")),
    ("run --network host shop true", Here("dvs port")),
    ("run --privileged shop true", Here("nothing of the node")),
    ("run --entrypoint sh shop true", Here("dvs run DC -- PROGRAM")),
    ("run --init shop true", Here("every container has one")),
    ("run --label a=b shop true", Here("dvs node label")),
    ("run --pull always shop true", Here("dvs import")),
    ("run --gpus all shop true", Here("not passed on")),
    (
        "service add shop web --restart unless-stopped --health-cmd true --health-interval 1s --health-timeout 2s \
      --health-retries 4 --stop-signal INT --stop-timeout 3s -- sleep 1000",
        Done("dvs service ls shop"),
    ),
    ("service add shop x --name web -- true", Here("dvs service add DC NAME")),
    ("service add shop x --restart on-failure:3 -- true", Here("dvs service add --help")),
    ("ps", Done("sleep 1000")),
    ("ps -a", Done("exited (0)")),
    ("ps -q", Done("6")),
    ("ps -aq", Done("6")),
    ("ps --no-trunc", Done("PARENT")),
    ("ps -l", Here("max_by")),
    ("ps -s", Here("dvs fs df")),
    ("ps --filter status=exited", Done("exited")),
    ("ps -a -f exited=0", Done("exited (0)")),
    ("ps --format {{.Names}}\\t{{.Status}}", Done("sleeping")),
    ("ps --format table|{{.ID}}\\t{{.Command}}", Done("COMMAND")),
    ("ps --format json", Done("\"pid\":6")),
    ("ps --format {{range|.}}", Here("-o json")),
    ("logs shop", Done("| said")),
    ("logs -t --tail 5 shop {pid}", Done("said")),
    ("logs --since 10m --until 2100-01-01 shop {pid}", Done("said")),
    ("logs shop web", Done("")),
    ("exec shop hostname", Done("n1")),
    ("exec --beside {pid} shop hostname", Done("n1")),
    ("exec -it shop bash", Here("without -t")),
    ("attach shop {pid} --no-input --sig-proxy=false", Here("dvs attach")),
    ("top shop --no-stream", Done("CPU %")),
    ("stats --no-stream", Done("MEMORY")),
    ("stats --no-stream --format {{.Name}}:{{.PIDs}}", Done("shop n1:")),
    ("inspect shop", Done("subnet")),
    ("inspect --format {{.phase}} shop", Done("running")),
    ("inspect shop {pid}", Done("sleep 1000")),
    ("inspect n1", Done("address")),
    ("port shop", Here("dvs port ls shop")),
    ("port ls shop", Done("PORT")),
    ("diff shop", Here("dvs fs snapshot create")),
    ("commit shop first", Here("dvs fs snapshot create")),
    ("cp {dir}/env shop:/env", Done("")),
    ("cp shop:/env {dir}/back", Done("")),
    ("cp shop:/env shop:/again", Done("")),
    ("pause shop", Done("is paused")),
    ("unpause shop", Done("goes on")),
    ("update --memory 1g shop", Here("dvs dc set")),
    ("dc set shop -p 8099:80", Done("is changed")),
    ("dc set shop --pids-limit 100", Here("--pids")),
    ("dc create --name other", Here("dvs dc create NAME")),
    ("create shop", Here("dvs dc create")),
    ("images", Here("dvs run")),
    ("image ls", Here("dvs import")),
    ("container ls", Here("dvs dc ls")),
    ("pull debian", Here("dvs import")),
    ("build .", Here("dvs import")),
    ("load", Here("dvs import")),
    ("push x", Here("dvs cp")),
    ("save shop", Here("dvs cp")),
    ("export shop", Here("dvs cp")),
    ("network ls", Here("dvs port")),
    ("volume ls", Here("dvs dc create -v")),
    ("compose up", Here("dvs apply")),
    ("system df", Here("dvs doctor")),
    ("login", Here("dvs context add")),
    ("logout", Here("dvs context rm")),
    ("swarm init", Here("dvs cluster")),
    ("stack deploy", Here("dvs apply")),
    ("secret create x", Here("dvs ds put")),
    ("rmi x", Here("rm -r")),
    ("events --since 10m", Here("dvs audit")),
    ("info", Done("nodes")),
    ("version", Done("daemon")),
    ("help run", Done("Usage: dvs run")),
    ("kill -9 shop {pid}", Done("")),
    ("wait shop {pid}", Done("137")),
    ("kill -s HUP shop {pid}", Here("dvs ps")),
    ("stop shop nothere", Here("dvs dc ls")),
    ("rename shop store", Here("dvs stop shop")),
    ("rm shop", Here("dvs dc stop")),
    ("rm -v -f shop", Here("--keep-data")),
    ("restart --timeout 1 shop", Done("runs on")),
    ("stop -t 1 shop", Done("is stopped")),
    ("start shop", Done("runs on")),
    ("rm -f shop", Done("is deleted")),
];

#[test]
fn each_of_many_lines_works_or_is_answered_with_how_it_is_done_here() {
    let cluster = Cluster::up(1);
    cluster.container("shop", 1, &["--disk", "64M"]);
    let place = tempfile::tempdir().expect("a directory");
    fs::write(place.path().join("env"), "B=two\n").expect("a file");
    let program = cluster.ok(&["run", "-d", "shop", "--", "sh", "-c", "echo said; exec sleep 1000"]);
    eventually("it said so", SOON, || (cluster.ok(&["logs", "shop", program.trim()]) == "said\n").then_some(()));
    let mut wrong = Vec::new();
    for (line, comes) in TYPED {
        let directory = place.path().to_str().expect("text");
        let line = line.replace("{pid}", program.trim()).replace("{dir}", directory);
        let words: Vec<String> = line.split_whitespace().map(|word| word.replace('|', " ")).collect();
        let done = cluster.output(&words);
        let said = [&done.stdout[..], &done.stderr[..]].map(|text| String::from_utf8_lossy(text).into_owned());
        let is_well = match comes {
            Done(part) => done.status.success() && said.concat().contains(part),
            Here(part) => {
                let hint = said[1].split_once("  try: ").map_or("", |(_, hint)| hint);
                !done.status.success() && (hint.contains(part) || said[1].contains("  try: ") && said[1].contains(part))
            }
        };
        if !is_well {
            wrong.push(format!("{line}: {} {said:?}", done.status));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn each_row_of_the_table_of_habits_is_typed() {
    let table = include_str!("../../docs/habits.md");
    let typed: Vec<Vec<&str>> = TYPED.iter().map(|(line, _)| line.split([' ', '|']).collect()).collect();
    let rows = table.lines().filter(|line| line.starts_with("| `") || line.starts_with("| `docker"));
    let mut count = 0;
    for row in rows {
        let cell = row.split(" | ").next().unwrap_or_default();
        for token in cell.split('`').skip(1).step_by(2) {
            let mut words = token.trim_start_matches("docker ").split(' ');
            let first = words.next().unwrap_or_default();
            // An option by itself, or the word of a command.
            let is_typed = typed.iter().any(|line| match first.starts_with('-') {
                true => line.iter().any(|word| *word == first || word.starts_with(first) && first.len() == 2),
                false => line.first() == Some(&first),
            });
            assert!(is_typed, "`{token}` of docs/habits.md is not typed: {row}");
            count += 1;
        }
    }
    assert!(count > 40 && TYPED.len() >= 60, "{count} habits, {} lines", TYPED.len());
}

#[test]
fn logs_are_those_of_all_programs_on_all_nodes() {
    let cluster = Cluster::up(2);
    cluster.container("shop", 2, &[]);
    let say = |node: &str, words: &str| {
        let pid = cluster.ok(&["run", "-d", "shop", "-n", node, "--", "sh", "-c", words]).trim().to_owned();
        cluster.ok(&["wait", "shop", &pid]);
        pid
    };
    let (first, second) = (say("n2", "echo one; echo bad >&2"), say("n1", "echo two; printf three"));
    let said = cluster.output(&["logs", "shop"]);
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert_eq!(text(&said.stdout), format!("{first} | one\n{second} | two\n{second} | three\n"), "{said:?}");
    assert_eq!(text(&said.stderr), format!("{first} | bad\n"));
    assert_eq!(cluster.ok(&["logs", "--tail", "1", "shop"]), format!("{second} | three\n"));
    assert_eq!(cluster.ok(&["logs", "--until", "2020-01-01", "shop"]), "");
    // Those that begin while somebody listens, too, and it ends with the container.
    let mut listener = cluster.command_without_limit(&["logs", "-f", "--tail", "0", "shop"]);
    let mut listener = listener.stdout(Stdio::piped()).spawn().expect("dvs starts");
    let (sender, lines) = std::sync::mpsc::channel();
    let output = BufReader::new(listener.stdout.take().expect("a pipe"));
    std::thread::spawn(move || output.lines().map_while(Result::ok).try_for_each(|line| sender.send(line)));
    eventually("somebody listens", SOON, || {
        say("n1", "echo there");
        lines.try_iter().last()
    });
    cluster.ok(&["service", "add", "shop", "clock", "--node", "n2", "--", "sh", "-c", "echo up; exec sleep 1000"]);
    let heard = eventually("a line", SOON, || lines.try_iter().find(|line| !line.ends_with(" | there")));
    assert_eq!(heard, "clock/0 | up");
    assert_eq!(cluster.ok(&["logs", "shop", "clock"]), "up\n");
    cluster.ok(&["stop", "-t", "1", "shop"]);
    eventually("it ends", SOON, || listener.try_wait().expect("a child"));
    assert!(cluster.ok(&["logs", "shop"]).contains("clock/0 | up"), "also of a container that is stopped");
}

#[test]
fn program_in_the_background_has_a_terminal_for_who_attaches_and_copies_say_how_far_they_are() {
    let cluster = Cluster::up(1);
    cluster.container("shop", 1, &["--disk", "256M"]);
    let pid = cluster.ok(&["run", "-dit", "shop", "--", "sh", "-c", "test -t 1 && read line && echo \"<$line>\""]);
    let mut terminal = Terminal::start(&cluster.command_without_limit(&["attach", "shop", pid.trim()]));
    terminal.press("hello\r");
    terminal.shows("<hello>");
    assert_eq!(terminal.status(), 0);
    let pipe = cluster.ok(&["run", "-di", "shop", "--", "cat"]);
    let fed = format!("echo fed | {} attach shop {}", end_to_end::dvs_binary().display(), pipe.trim());
    let mut shell = std::process::Command::new("sh");
    let done = shell.args(["-c", &fed]).env("DVS_STATE_DIR", cluster.state_dir()).output().expect("a shell");
    assert_eq!(String::from_utf8_lossy(&done.stdout), "fed\n", "{done:?}");

    let place = tempfile::tempdir().expect("a directory");
    let large = place.path().join("large");
    fs::write(&large, vec![7; 96 << 20]).expect("a file");
    let large = large.to_str().expect("text");
    for (from, to) in [(large, "shop:/large"), ("shop:/large", "shop:/other")] {
        let mut terminal = Terminal::start(&cluster.command_without_limit(&["cp", from, to]));
        assert_eq!(terminal.status(), 0, "{}", terminal.screen());
        let shown = terminal.screen();
        assert!(
            shown.contains(" MiB, ") && shown.contains("/s") && shown.ends_with("\r\u{1b}[K"),
            "{from} {to}: {shown:?}"
        );
        // That of the other side would say that it has come nowhere, again and again.
        let moved = shown.find(" MiB, ").map(|at| &shown[at..]).unwrap_or_default();
        assert!(!moved.contains("\r\u{1b}[K0 B"), "one line is of one side: {shown:?}");
    }
    assert_eq!(cluster.sh("shop", "n1", "wc -c < /dc/other"), "100663296\n");
}

#[test]
fn services_have_names_that_follow_them() {
    let cluster = Cluster::up(3);
    cluster.container("shop", 3, &[]);
    let server = ["--", "python3", "-c", end_to_end::outside::SERVER, "80"];
    cluster.ok(&[&["service", "add", "shop", "web", "--node", "n2"], &server[..]].concat());
    let get = "import sys, urllib.request as u; print(u.urlopen(f'http://{sys.argv[1]}/', timeout=5).read().decode())";
    let answers = |node: &str, name: &str, by: &str| {
        eventually(&format!("{name} is {by} on {node}"), SOON, || {
            let done = cluster.output(&["run", "shop", "-n", node, "--", "python3", "-c", get, name]);
            (done.status.success() && done.stdout == format!("{by}\n").as_bytes()).then_some(())
        });
    };
    answers("n1", "web", "n2");
    answers("n3", "web.shop.dvs", "n2");
    assert!(cluster.sh("shop", "n1", "getent ahostsv4 n3.shop.dvs").starts_with("10.1.0.3"));
    cluster.ok(&["service", "add", "shop", "two", "--instances", "2", "--", "sleep", "1000"]);
    eventually("both are known", SOON, || {
        let hosts = cluster.sh("shop", "n1", "cat /etc/hosts");
        let of_both = hosts.lines().filter(|line| line.starts_with("10.1.") && line.ends_with("\ttwo two.shop.dvs"));
        (of_both.count() == 2).then_some(())
    });
    cluster.ok(&["service", "rm", "shop", "web"]);
    eventually("it has no name any more", SOON, || {
        let found = cluster.output(&["run", "shop", "-n", "n3", "--", "getent", "hosts", "web"]);
        (found.status.code() == Some(2)).then_some(())
    });
    // A node's name stays the node's.
    cluster.ok(&[&["service", "add", "shop", "n1", "--node", "n3"], &server[..]].concat());
    assert!(cluster.sh("shop", "n2", "getent ahostsv4 n1").starts_with("10.1.0.1"));
    cluster.ok(&[&["service", "add", "shop", "web", "--node", "n3"], &server[..]].concat());
    answers("n2", "web", "n3");
}

#[test]
fn events_tell_what_becomes_other_and_info_counts_it() {
    let cluster = Cluster::up(2);
    let mut listener = cluster.command_without_limit(&["events", "-o", "json"]);
    let mut listener = listener.stdout(Stdio::piped()).spawn().expect("dvs starts");
    let (sender, lines) = std::sync::mpsc::channel();
    let output = BufReader::new(listener.stdout.take().expect("a pipe"));
    std::thread::spawn(move || output.lines().map_while(Result::ok).try_for_each(|line| sender.send(line)));
    let mut heard: Vec<String> = Vec::new();
    let mut hear = |until: &str, between: &dyn Fn()| {
        eventually(until, SOON, || {
            between();
            let said = |line: String| {
                let event: serde_json::Value = serde_json::from_str(&line).expect("JSON");
                let word =
                    |field: &str| event[field].as_str().unwrap_or_else(|| panic!("{field} of {line}")).to_owned();
                let cause = if word("what") == "failed" { format!(": {}", word("why")) } else { String::new() };
                format!("{} {}{cause}", word("name"), word("what"))
            };
            heard.extend(lines.try_iter().map(said));
            heard.iter().any(|event| event == until).then_some(())
        });
        heard.clone()
    };
    // It hears from the moment on when it is there.
    hear("n2 uncordoned", &|| {
        cluster.ok(&["node", "cordon", "n2"]);
        cluster.ok(&["node", "uncordon", "n2"]);
    });
    cluster.container("shop", 2, &[]);
    hear("shop running", &|| ());
    cluster.ok(&["service", "add", "shop", "web", "--", "sleep", "1000"]);
    hear("shop/web/0 running", &|| ());
    cluster.ok(&["service", "add", "shop", "once", "--restart", "no", "--", "sleep", "1000"]);
    hear("shop/once/0 running", &|| ());
    let services = cluster.json(&["service", "ls", "shop", "-o", "json"]);
    let once =
        services.as_array().expect("a list").iter().find(|it| it["spec"]["name"] == "once").expect("it is there");
    cluster.ok(&["kill", "shop", &once["instances"][0]["pid"].to_string()]);
    hear("shop/once/0 failed: signal 15 of root", &|| ());
    cluster.ok(&["service", "rm", "shop", "once"]);
    cluster.ok(&["service", "add", "shop", "none", "--restart", "no", "--", "/nothing/there"]);
    let why = "the program was not executed: Exec, No such file or directory (os error 2)";
    hear(&format!("shop/none/0 failed: {why}"), &|| ());
    cluster.ok(&["service", "rm", "shop", "none"]);
    let info = cluster.json(&["info", "-o", "json"]);
    assert_eq!(
        (&info["nodes"]["ready"], &info["containers"]["running"], &info["services"]),
        (&2.into(), &1.into(), &1.into())
    );
    assert!(cluster.ok(&["info"]).contains("2 (2 ready)"));
    cluster.ok(&["dc", "set", "shop", "--pids", "500"]);
    hear("shop changed", &|| ());
    cluster.ok(&["service", "rm", "shop", "web"]);
    hear("shop/web removed", &|| ());
    cluster.ok(&["stop", "shop"]);
    // What comes between two looks is told together, under the later name.
    hear("shop stopped", &|| ());
    cluster.ok(&["rename", "shop", "store"]);
    hear("store renamed", &|| ());
    cluster.ok(&["dc", "delete", "--force", "store"]);
    let heard = hear("store deleted", &|| ());
    assert!(!heard.iter().any(|event| event == "shop deleted" || event == "store created"), "{heard:?}");
    let order = [
        "shop created",
        "shop running",
        "shop/web/0 running",
        "shop changed",
        "shop/web removed",
        "shop stopped",
        "store renamed",
        "store deleted",
    ];
    let places: Vec<usize> =
        order.iter().map(|event| heard.iter().position(|one| one == event).expect("it was told")).collect();
    assert!(places.is_sorted(), "{heard:?}");
    listener.kill().expect("it is there");
    listener.wait().expect("it ends");
}
