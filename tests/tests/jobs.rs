//! `on`: programs on other nodes of a container, from shells and programs that know nothing of nodes.

use std::io::Write;
use std::process::Stdio;
use std::time::{Duration, Instant};

use end_to_end::terminal::Terminal;
use end_to_end::{Cluster, eventually};

fn shop(nodes: usize) -> Cluster {
    let cluster = Cluster::up(nodes);
    cluster.container("shop", nodes, &[]);
    cluster
}

/// What a shell on the first node says.
fn said(cluster: &Cluster, script: &str) -> String {
    cluster.ok(&["run", "shop", "--node", "n1", "--", "bash", "-c", &format!("{script}\nexit 0")]).trim().to_owned()
}

/// Whether a process of the container does this itself: a deputy's arguments end with its job's.
fn does(cluster: &Cluster, what: &str) -> bool {
    let all = cluster.ok(&["ps", "shop"]);
    all.lines().any(|line| line.ends_with(&format!(" {what}")) && !line.contains(" -- "))
}

/// Nothing of a job is left on a node.
fn is_quiet(cluster: &Cluster, what: &str) {
    eventually("no process is left there", Duration::from_secs(5), || {
        let all = cluster.ok(&["ps", "shop"]);
        (!all.contains(what) && !all.contains("dvs-far-end")).then_some(())
    });
}

#[test]
fn job_is_as_its_program_would_be_here() {
    let cluster = shop(3);
    assert_eq!(said(&cluster, "on --list"), "n1 (here)\nn2\nn3");
    assert_eq!(said(&cluster, "for n in n1 n2 n3; do on $n -- hostname; done"), "n1\nn2\nn3");
    // What it inherits.
    let inherited = "umask; pwd; echo $X; ulimit -Sn; id -u; id -G; cat";
    let script = format!("cd /dc; umask 27; ulimit -Sn 77; export X='a  b'; echo in | {{prefix}} sh -c '{inherited}'");
    for prefix in ["on n2 --", "setpriv --reuid 33 --regid 4 --groups 4,20,24 on n2 --"] {
        let (there, here) =
            (script.replace("{prefix}", prefix), script.replace("{prefix}", &prefix.replace("on n2 --", "")));
        assert_eq!(said(&cluster, &there), said(&cluster, &here), "{prefix}");
    }
    // Its end: statuses, signals, what cannot be run.
    let ends = |prefix: &str| {
        let commands = ["true", "sh -c 'exit 7'", "sh -c 'kill -TERM $$'", "sh -c 'kill -KILL $$'", "/nowhere", "/dc"];
        let script = commands.map(|command| format!("{prefix} {command} 2>/dev/null; echo $?")).join("\n");
        said(&cluster, &script)
    };
    assert_eq!(ends("on n3 --"), ends(""));
    // What a shell does with jobs.
    let waited = "on n2 -- sh -c 'sleep 0.2; exit 3' & wait $!; echo $?; \
                  on n2 -- sleep 1000 & kill -TERM $!; wait $!; echo $?; \
                  on n2 -- sleep 1000 & sleep 0.3; kill -STOP $!; kill -CONT $!; kill -INT $!; kill -KILL $!; wait $!; echo $?";
    assert_eq!(said(&cluster, waited), "3\n143\n137");
    is_quiet(&cluster, "sleep 1000");
    // A line that is spread over three nodes; the last program ends first, and nobody waits for ever.
    let line = "seq 1 300000 | on n2 -- sed 's/$/x/' | on n3 -- md5sum";
    assert_eq!(said(&cluster, line), said(&cluster, "seq 1 300000 | sed 's/$/x/' | md5sum"));
    assert_eq!(said(&cluster, "on n2 -- yes | on n3 -- head -n 2; echo ${PIPESTATUS[0]}"), "y\ny\n141");
    is_quiet(&cluster, "yes");
    // Everywhere.
    assert_eq!(said(&cluster, "on all -- hostname | sort"), "n1\nn2\nn3");
    assert_eq!(said(&cluster, "on all -- sh -c 'test $(hostname) != n2' 2>&1; echo $?"), "on: n2: exit status 1\n1");
    let busy = "for i in 1 2 3 4 5 6; do timeout 20 sh -c 'while :; do :; done' & done; sleep 0.3; on any hostname; on least hostname";
    assert_eq!(said(&cluster, &format!("{busy}; kill $(jobs -p)")).lines().count(), 2);
}

/// Files of the tree are the files there, with one offset for both; others are carried.
#[test]
fn files_of_the_tree_go_along_with_their_offsets() {
    let cluster = shop(2);
    said(
        &cluster,
        "mkdir /dc/work; chmod 777 /dc/work; seq 1 20000 > /dc/work/numbers; cp /dc/work/numbers /tmp/numbers",
    );
    let lines = [
        // Programs that share an open file go on where the other one stopped.
        "{ read a; {on} sh -c 'read b; echo $b'; read c; echo $a $c; } < numbers",
        "{ {on} head -n 2; {on} head -n 1; head -n 1; } < numbers",
        "{ echo one; {on} sh -c 'echo two; echo three >&2; echo four'; echo five; } > out 2>&1; cat out",
        "{ {on} sh -c 'sleep 0.3; echo late' & echo early; sleep 0.6; echo later; wait; echo end; } > out; cat out",
        "{ {on} sleep 0.3 & read a; wait; read b; echo $a $b; } < numbers",
        "{on} sh -c 'for i in 1 2 3; do echo $i; echo $i$i >&2; done' 2>&1 | cat; exec 9>&1; {on} sh -c 'echo a; echo b >&2; echo c' 2>&1 >&9",
        "echo a > log; {on} sh -c 'echo b; echo c >&2' >> log 2>> log; echo d >> log; cat log",
        "echo 1234567890 > both; { {on} sh -c 'head -c 3; printf xy'; cat; } <> both 1>&0; cat both",
        "{on} sh -c 'cat; exec <&-; exit 3' < numbers | md5sum; echo ${PIPESTATUS[0]}",
        "sh -c 'echo first; {on} echo second; echo third' > out; cat out",
        r#"printf 'echo x\n{on} sh -c "read line; echo got \\$line"\nnot a command\necho y\n' > script; bash < script"#,
        // A program that looks at it as a file.
        "{on} python3 -c 'import mmap, os; print(len(mmap.mmap(0, 0, access=mmap.ACCESS_READ)), os.lseek(0, 0, 1))' < numbers",
        "{on} tail -n 1 < numbers; {on} stat -Lc '%s %F %a' /proc/self/fd/0 < numbers",
        "{on} truncate -s 5 /proc/self/fd/1 >> both; stat -c %s both",
        // One that is killed left it somewhere, too.
        "{ {on} sh -c 'read a; read b; kill -KILL $$'; read c; echo $c; } < numbers",
        // Those that are carried: no name, another file of that name, not in the tree, not to be opened by this user.
        "cp numbers gone; exec 7< gone; rm gone; {on} md5sum <&7",
        "cp numbers other; exec 7< other; mv other aside; echo x > other; {on} md5sum <&7",
        "{on} md5sum < /tmp/numbers",
        "cp numbers secret; chmod 600 secret; setpriv --reuid 33 --regid 33 --clear-groups {on} md5sum < secret",
        "{on} sh -c 'read a; echo $a; cat /dev/fd/8 | head -n 1' /dev/fd/8 < numbers 8< numbers",
    ];
    for line in lines {
        let with = |prefix: &str| said(&cluster, &format!("cd /dc/work\n{}", line.replace("{on}", prefix)));
        let (there, here) = (with("on n2 --"), with(""));
        assert_eq!(there, here, "{line}");
        assert!(!here.is_empty() || line.contains("kill"), "{line}");
    }
}

/// Directory of a tree with a shell, and what it needs.
const IMAGE: &str = "mkdir -p /dc/img/bin /dc/img/etc /dc/img/home; cd /dc/img; echo image > etc/which
for program in bash dd cat hostname sleep ls head readlink chown; do
    from=$(readlink -f $(command -v $program)); cp $from bin/$program
    for library in $(ldd $from | grep -o '/[^ ]*'); do mkdir -p .${library%/*}; cp -L $library .$library; done
done; ln -sf bash bin/sh; echo ok";

/// Of a program whose root is the image, on n1.
fn in_image(cluster: &Cluster, more: &[&str], script: &str) -> String {
    let end = ["shop", "--node", "n1", "--root", "/img", "--", "/bin/bash", "-c", script];
    cluster.ok(&[&["run"], more, &end].concat()).trim().to_owned()
}

#[test]
fn job_has_the_root_of_who_asked() {
    let cluster = shop(2);
    assert_eq!(said(&cluster, IMAGE), "ok");
    let look = "hostname; cat /etc/which; ls -d /bin/ba*; test -e /usr/bin/env || echo none; pwd";
    let there = in_image(&cluster, &["-w", "/home"], &format!("on n2 -- bash -c '{look}'"));
    assert_eq!(there, "n2\nimage\n/bin/bash\nnone\n/home");
    let status = in_image(&cluster, &[], "on n2 -- bash -c 'exit 7'; echo $?; on n2 -- absent 2>/dev/null; echo $?");
    assert_eq!(status, "7\n127");
    // Its user, and files of the tree at their offsets.
    assert_eq!(said(&cluster, "echo 0123456789 > /dc/img/home/digits; chown 33 /dc/img/home; echo ok"), "ok");
    let digits = "{ on n2 -- dd bs=3 count=1 2>/dev/null; on n2 -- dd bs=2 count=1 2>/dev/null; cat; } < /home/digits";
    assert_eq!(in_image(&cluster, &["-u", "33:33"], digits), "0123456789");
    assert_eq!(in_image(&cluster, &["-u", "33:33"], "on n2 -- bash -c 'echo $UID > /home/mine'; cat /home/mine"), "33");
    // From a job to a job, and by name of a program that knows nothing of it.
    assert_eq!(in_image(&cluster, &[], "on n2 -- on n1 -- bash -c 'hostname; cat /etc/which'"), "n1\nimage");
    said(
        &cluster,
        "printf '#!/bin/bash\\nhostname; cat /etc/which\\n' > /dc/img/bin/where; chmod +x /dc/img/bin/where",
    );
    let spread = ["--spread", "where;load=0", "-w", "/home"];
    // The nodes are one machine, so which of them has less to do is chance.
    let soon = "for i in 1 2 3 4; do while :; do :; done & done
        for i in {1..100}; do there=$(where); [[ $there = n1* ]] || break; done; echo \"$there\"
        cd /tmp; where; kill $(jobs -p)";
    assert_eq!(in_image(&cluster, &spread, soon), "n2\nimage\nn1\nimage");
    // Another node has put a link where the root was: nobody is led elsewhere.
    said(&cluster, "mkdir -p /dc/other/etc; echo other > /dc/other/etc/which; mkfifo /tmp/go");
    let later = "read < /tmp/go; on n2 -- cat /etc/which";
    let arguments = ["run", "shop", "--node", "n1", "--root", "/img", "--", "/bin/bash", "-c", later];
    let waits =
        cluster.command(&arguments).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("dvs is there");
    eventually("it waits", Duration::from_secs(5), || cluster.ok(&["ps", "shop"]).contains("/tmp/go").then_some(()));
    cluster.sh("shop", "n2", "mv /dc/img /dc/was && ln -s other /dc/img");
    said(&cluster, "echo > /tmp/go");
    let output = waits.wait_with_output().expect("it ends");
    let (out, error) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(!output.status.success() && out.is_empty() && error.contains("the node could not make"), "{out} {error}");
    is_quiet(&cluster, "dvs-far-end");
}

#[test]
fn what_cannot_be_is_said_with_what_to_try() {
    let cluster = shop(2);
    let cases = [
        ("on nx true", 125, "one of n1, n2, or any, least, all"),
        ("on n2", 125, "there is no program to run"),
        ("on", 125, "on --help"),
        ("on --nonsense", 125, "on --help"),
        ("on n2 -- true 3<&0 </dev/tty", 1, ""),
        ("on n2 -- true </dc", 125, "descriptor 0 is a directory"),
        ("on n2 -- /nowhere/x", 127, "'/nowhere/x' cannot be run"),
        ("on n2 -- /etc/passwd", 126, "'/etc/passwd' cannot be run"),
        ("setpriv --euid 33 on n2 -- true", 125, "different user ids"),
        ("setpriv --ruid 33 --inh-caps=-all on n2 -- true", 125, "different user ids"),
    ];
    for (command, status, words) in cases {
        let all = said(&cluster, &format!("({command}) 2>&1; echo $?"));
        let (text, number) = all.rsplit_once('\n').unwrap_or(("", &all));
        assert!(number == status.to_string() && text.contains(words), "{command}: {all}");
    }
    assert!(said(&cluster, "on --help").contains("producer | on n2 -- worker"));
    // `dvs run` of a user inside is a job; what it cannot be is said. Root's is a program as from outside
    // (`inside.rs`).
    let dvs = "dvs() { setpriv --reuid 33 --regid 33 --clear-groups /run/dvs/bin/dvs \"$@\"; }; dvs run --node n2 --env A=b -w /dc shop -- sh -c 'hostname; echo $A; pwd'; \
               dvs run shop -- hostname; echo in | dvs run -i --node n2 shop -- cat; dvs run -d shop -- true 2>&1; echo $?";
    let inside = said(&cluster, dvs);
    assert!(inside.starts_with("n2\nb\n/dc\nn1\nin\ndvs: from inside") && inside.ends_with("125"), "{inside}");
    // In a container on one node there is nothing but this one.
    cluster.container("alone", 1, &[]);
    let alone = |script: &str| cluster.sh("alone", "n1", script).trim().to_owned();
    assert_eq!(alone("on n1 -- hostname; on --list"), "n1\nn1 (here)");
    assert_eq!(alone("on any hostname; on least hostname; on all hostname"), "n1\nn1\nn1");
}

/// Whoever has nothing gets nothing by asking another node.
#[test]
fn job_may_no_more_than_who_asked() {
    let cluster = shop(2);
    let rights = "grep -E '^(Uid|Gid|Groups|Cap(Inh|Prm|Eff|Amb)|NoNewPrivs|Seccomp):' /proc/self/status";
    let users = [
        "setpriv --reuid 33 --regid 33 --clear-groups",
        "setpriv --bounding-set=-all,+chown --inh-caps=-all",
        "setpriv --reuid 33 --regid 33 --groups 7 --inh-caps=+chown --ambient-caps=+chown --bounding-set=-all,+chown",
        "setpriv --reuid 65534 --regid 65534 --groups 65534",
        "env",
    ];
    for user in users {
        let there = said(&cluster, &format!("{user} on n2 -- {rights} 2>&1"));
        let here = said(&cluster, &format!("{user} {rights}"));
        assert_eq!(there, here, "{user}");
        assert!(here.contains("Uid:"), "{user}: {here}");
    }
    // A deputy's secret is nobody's: not on its command line, not in that of its far end, not in its environment for
    // other users.
    let spy = "on n2 -- sleep 5 & sleep 0.5; on n2 -- setpriv --reuid 33 --clear-groups sh -c \
               'cat /proc/[0-9]*/environ /proc/[0-9]*/cmdline 2>/dev/null | tr \"\\0\" \"\\n\" | grep -c DVS_FAR[_]END='; kill %1";
    assert_eq!(said(&cluster, spy), "0");
    // Packets that are none, and more connections than there is room for, harm nobody else.
    let storm = "
import os, socket, random, struct
random.seed(7)
held = []
for count in range(300):
    s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    s.setblocking(False)
    try:
        s.connect('/run/dvs/jobs')
    except BlockingIOError:
        continue
    if count % 3:
        kind = [struct.pack('<IIIIQ', 1, random.randrange(4), random.randrange(70), random.randrange(1 << 32), 1),
                os.urandom(random.randrange(1, 60))][count % 2]
        try:
            s.send(kind)
        except OSError:
            pass
    held.append(s)
print(len(held) > 64)
import subprocess
print(subprocess.run(['on', 'n2', '--', 'hostname'], capture_output=True, text=True).stdout)
";
    let storm = cluster.ok(&["run", "shop", "--node", "n1", "--", "/usr/bin/python3", "-c", storm]);
    assert_eq!(storm.split_whitespace().collect::<Vec<_>>(), ["True", "n2"]);
    // Another container's processes have another broker: an endpoint of theirs leads nowhere.
    is_quiet(&cluster, "sleep 5");
}

#[test]
fn either_end_goes_with_the_other_and_gates_may_die() {
    let cluster = shop(2);
    // The deputy is killed.
    assert_eq!(said(&cluster, "on n2 -- sleep 1001 & sleep 0.3; kill -KILL $!; wait $!; echo $?"), "137");
    is_quiet(&cluster, "sleep 1001");
    // Its far end is.
    let killed = "on n2 -- sleep 1002 2>&1 & p=$!; sleep 0.3; on n2 -- pkill -KILL -f '^dvs-far-end' >/dev/null 2>&1; wait $p; echo $?";
    let killed = said(&cluster, killed);
    assert!(killed.contains("the job is lost: n2 is gone") && killed.ends_with("125"), "{killed}");
    is_quiet(&cluster, "sleep 1002");
    // Call gates and daemons die while jobs are started, one after the other; each runs once.
    let many = "for i in $(seq 1 400); do on n2 -- sh -c \"echo $i >> /dc/ran\" || echo failed $i; done; sort -n /dc/ran | uniq -c | awk '$1 != 1' ; wc -l < /dc/ran";
    let mut run = cluster.command(&["run", "shop", "--node", "n1", "--", "bash", "-c", many]);
    let mut run = run.stdout(Stdio::piped()).spawn().expect("a shell");
    let mut kills = 0;
    while run.try_wait().expect("a child").is_none() {
        let node = ["n1", "n2"][kills % 2];
        if let Some(pid) = cluster.server_pid("shop", node, "calls") {
            cluster.kill(node, pid);
            kills += 1;
        }
        // Both must be there for a moment, or no job can begin.
        std::thread::sleep(Duration::from_millis(700));
    }
    let output = run.wait_with_output().expect("its end");
    assert_eq!(String::from_utf8_lossy(&output.stdout).trim(), "400", "{kills} kills");
    assert!(kills > 3, "{kills}");
}

#[test]
fn input_that_comes_slowly_reaches_the_program_as_it_comes() {
    let cluster = shop(2);
    let mut run = cluster.command(&["run", "-i", "shop", "--node", "n1", "--", "on", "n2", "--", "cat"]);
    let mut run = run.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("a program");
    let (mut input, mut output) = (run.stdin.take().expect("piped"), run.stdout.take().expect("piped"));
    for line in ["one\n", "two\n"] {
        input.write_all(line.as_bytes()).expect("written");
        let mut bytes = vec![0; line.len()];
        std::io::Read::read_exact(&mut output, &mut bytes).expect("what was written");
        assert_eq!(bytes, line.as_bytes());
    }
    drop(input);
    assert!(run.wait().expect("its end").success());
}

/// A link that is cut, and proxies that die, cost a pause and no byte.
#[test]
fn job_goes_on_after_its_link_was_cut() {
    let cluster = shop(2);
    let line = "for i in $(seq 1 60000); do echo $i; done | tee >(md5sum >&2) | on n2 -- bash -c 'tee >(md5sum >&2); sleep 1' | md5sum";
    let mut run = cluster.command(&["run", "shop", "--node", "n1", "--", "bash", "-c", &format!("{line}; sleep 0.3")]);
    let run = run.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("a shell");
    let slow = [
        "run",
        "shop",
        "--node",
        "n1",
        "--",
        "bash",
        "-c",
        "on n2 -- sh -c 'for i in 1 2 3 4 5 6 7 8 9 10 11 12; do echo $i; sleep 0.5; done'; echo $?",
    ];
    let slow = cluster.command(&slow).stdout(Stdio::piped()).spawn().expect("a shell");
    for _ in 0..2 {
        std::thread::sleep(Duration::from_millis(500));
        cluster.ok(&["dev", "wire", "n2", "down"]);
        std::thread::sleep(Duration::from_millis(700));
        cluster.ok(&["dev", "wire", "n2", "up"]);
        if let Some((proxy, _)) = cluster.proxy_of("n2") {
            // It may be ending already.
            let _ = cluster.output(&["dev", "exec", "n2", "--", "kill", "-9", &proxy.to_string()]);
        }
    }
    let (run, slow) = (run.wait_with_output().expect("its end"), slow.wait_with_output().expect("its end"));
    let sums = [run.stdout, run.stderr].concat();
    let mut sums: Vec<_> = String::from_utf8_lossy(&sums).lines().map(str::to_owned).collect();
    assert_eq!(sums.len(), 3, "{sums:?}");
    sums.dedup();
    assert_eq!(sums.len(), 1, "{sums:?}");
    let counted = (1..=12).map(|number| format!("{number}\n")).collect::<String>();
    assert_eq!(String::from_utf8_lossy(&slow.stdout), format!("{counted}0\n"));
}

const PROMPT: &str = "ready> ";

/// bash at a terminal, on the first node. Its words for jobs are English.
fn shell(cluster: &Cluster) -> Terminal {
    let start = format!("PS1='{PROMPT}' exec bash --norc --noprofile --noediting -i");
    let arguments = ["run", "-it", "shop", "--node", "n1", "--", "bash", "-c", &start];
    let mut terminal = Terminal::start(&cluster.command_without_limit(&arguments));
    terminal.shows(PROMPT);
    terminal
}

/// What the shell shows between a line that was typed and its next prompt.
fn typed(terminal: &mut Terminal, line: &str) -> String {
    terminal.press(&format!("{line}\n"));
    terminal.shows("\r\n");
    terminal.shows(PROMPT).trim_end_matches(PROMPT).replace('\r', "").trim().to_owned()
}

#[test]
fn job_has_the_terminal_and_what_a_shell_does_with_it() {
    let cluster = shop(3);
    let mut shell = shell(&cluster);
    let descriptors = "test -t 0; echo $?; test -t 1; echo $?; test -t 2; echo $?; tty >/dev/null; echo $?";
    assert_eq!(typed(&mut shell, &format!("on n2 -- sh -c '{descriptors}'")), "0\n0\n0\n0");
    assert_eq!(
        typed(&mut shell, "stty -a > /tmp/a; on n2 -- sh -c 'stty -a > /dc/b'; diff /tmp/a /dc/b && echo same"),
        "same"
    );
    assert_eq!(typed(&mut shell, "on n3 -- stty size"), "24 80");
    // Ctrl-C ends the program alone, Ctrl-D its input.
    shell.press("on n2 -- sleep 1003; echo was $?\n");
    shell.shows("was $?\r\n");
    eventually("it runs", Duration::from_secs(5), || does(&cluster, "sleep 1003").then_some(()));
    shell.press("\x03");
    shell.shows(PROMPT);
    assert_eq!(typed(&mut shell, "echo was $?"), "was 130");
    shell.press("on n2 -- cat; echo was $?\n");
    shell.shows("was $?\r\n");
    shell.press("hello\n");
    shell.shows("hello\r\nhello\r\n");
    shell.press("\x04");
    shell.shows("was 0\r\n");
    shell.shows(PROMPT);
    // Ctrl-Z stops it, here and there; bg and fg let it go on.
    shell.press("on n2 -- sh -c 'sleep 0.7; echo woke; read word; echo got $word'\n");
    shell.shows("$word'\r\n");
    eventually("it runs", Duration::from_secs(5), || {
        cluster.ok(&["ps", "shop"]).contains(" sleep 0.7\n").then_some(())
    });
    shell.press("\x1a");
    shell.shows("Stopped");
    shell.shows(PROMPT);
    assert!(typed(&mut shell, "jobs").contains("Stopped"));
    assert!(typed(&mut shell, "stty -a").contains(" icanon") && typed(&mut shell, "stty -a").contains(" echo "));
    shell.press("bg\n");
    shell.shows("woke");
    typed(&mut shell, "");
    shell.press("fg\n");
    shell.shows("got $word'\r\n");
    shell.press("this\n");
    shell.shows("got this");
    shell.shows(PROMPT);
    // What was started in the background does not take the keys.
    typed(&mut shell, "on n2 -- sh -c 'read word; echo and got $word' &");
    assert_eq!(typed(&mut shell, "echo mine"), "mine");
    shell.press("fg\n");
    shell.shows("$word'\r\n");
    shell.press("that\n");
    shell.shows("and got that");
    shell.shows(PROMPT);
    // A shell on a shell: its own jobs, its size.
    shell.press("on n3 -- env PS1='far> ' bash --norc --noprofile --noediting -i\n");
    shell.shows("far> ");
    shell.resize(40, 132);
    eventually("the size is there", Duration::from_secs(10), || {
        shell.press("stty size\n");
        shell.shows("stty size\r\n");
        let said = shell.shows("far> ");
        said.contains("40 132").then_some(())
    });
    shell.press("sleep 1004\n");
    shell.shows("sleep 1004\r\n");
    eventually("it runs", Duration::from_secs(5), || does(&cluster, "sleep 1004").then_some(()));
    shell.press("\x1a");
    shell.shows("Stopped");
    shell.shows("far> ");
    shell.press("kill %1; hostname; exit 5\n");
    shell.shows("n3\r\n");
    shell.shows(PROMPT);
    assert_eq!(typed(&mut shell, "echo was $?"), "was 5");
    // Lines: one end is no terminal; what takes the terminal out of its mode has the keys.
    assert_eq!(typed(&mut shell, "on n2 -- echo word | tr a-z A-Z"), "WORD");
    assert_eq!(
        typed(&mut shell, "echo word | on n2 -- sh -c 'tr a-z A-Z; test -t 1 && echo terminal'"),
        "WORD\nterminal"
    );
    if has_less() {
        shell.press("on n2 -- seq 1 500 | less\n");
        shell.shows("39");
        for keys in [" ", " ", " "] {
            shell.press(keys);
        }
        shell.shows("150");
        shell.press("q");
        shell.shows(PROMPT);
    }
    shell.press("on n2 -- cat | sed s/^/got:/\n");
    shell.shows("got:/\r\n");
    shell.press("typed\n\x04");
    shell.shows("got:typed");
    shell.shows(PROMPT);
    // The terminal goes away, and everything on it.
    shell.press("on n2 -- sleep 1005\n");
    eventually("it runs", Duration::from_secs(5), || does(&cluster, "sleep 1005").then_some(()));
    drop(shell);
    cluster.ok(&["run", "shop", "--node", "n1", "--", "pkill", "-HUP", "bash"]);
    is_quiet(&cluster, "sleep 1005");
}

fn has_less() -> bool {
    std::path::Path::new("/usr/bin/less").exists()
}

#[test]
fn descriptors_that_a_shell_names_go_along() {
    let cluster = shop(3);
    assert_eq!(said(&cluster, "on n2 -- paste <(seq 1 3) <(on n3 -- seq 4 6)"), "1\t4\n2\t5\n3\t6");
    assert_eq!(
        said(
            &cluster,
            "seq 3 | on n2 -- tee >(tr 1-9 a-i >/tmp/x.new; mv /tmp/x.new /tmp/x) >/dev/null; until test -e /tmp/x; do sleep 0.05; done; cat /tmp/x"
        ),
        "a\nb\nc"
    );
}

#[test]
fn deputies_end_with_the_lost_node_of_their_jobs() {
    if !end_to_end::has_etcd() {
        eprintln!("SKIPPED: there is no etcd (Debian: etcd-server)");
        return;
    }
    // Three, so that two decide about the third.
    let cluster = Cluster::up_with(3, &["--engine", "etcd"]);
    cluster.ok(&[
        "dc",
        "create",
        "shop",
        "--nodes",
        "n1,n2,n3",
        "--start",
        "--replicas",
        "1",
        "--fs-node",
        "n1",
        "--disk-node",
        "n1",
    ]);
    let there = "on n3 -- sleep 1006 2>&1; echo $?";
    let mut there = cluster.command(&["run", "shop", "--node", "n1", "--", "bash", "-c", there]);
    let there = there.stdout(Stdio::piped()).spawn().expect("a shell");
    let back = "on n1 -- sleep 1007";
    cluster.ok(&["run", "-d", "shop", "--node", "n3", "--", "bash", "-c", back]);
    eventually("both run", Duration::from_secs(10), || {
        ["sleep 1006", "sleep 1007"].iter().all(|what| does(&cluster, what)).then_some(())
    });
    cluster.ok(&["dev", "kill", "n3"]);
    let output = there.wait_with_output().expect("its end");
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(said.contains("the job is lost: n3 is gone") && said.trim().ends_with("125"), "{said}");
    // And whose deputy was there ends as well.
    eventually("the far end ends", Duration::from_secs(10), || {
        (!cluster.ok(&["ps", "shop"]).contains("sleep 1007")).then_some(())
    });
    // A job for it is refused by name, others go elsewhere.
    let refused = self::said(&cluster, "on n3 true 2>&1");
    assert!(refused.contains("the node is lost") || refused.contains("cannot be reached"), "{refused}");
    let elsewhere = self::said(&cluster, "for i in 1 2 3 4 5 6; do on any hostname; done | sort -u | tr '\\n' ' '");
    assert!(!elsewhere.contains("n3") && !elsewhere.is_empty(), "{elsewhere}");
}

/// Whatever a node's end interrupts: deputies of jobs there, jobs of deputies there, processes in the table, signals to
/// them. A second after the cluster's decision nothing is left of it.
#[test]
#[ignore = "twenty minutes"]
fn hundred_losses_of_nodes_leave_nothing_behind() {
    if !end_to_end::has_etcd() {
        eprintln!("SKIPPED: there is no etcd (Debian: etcd-server)");
        return;
    }
    let losses: usize = std::env::var("COUNT").ok().and_then(|count| count.parse().ok()).unwrap_or(100);
    let cluster = Cluster::up_with(3, &["--engine", "etcd"]);
    cluster.ok(&[
        "dc",
        "create",
        "shop",
        "--nodes",
        "n1,n2,n3",
        "--start",
        "--replicas",
        "1",
        "--fs-node",
        "n1",
        "--disk-node",
        "n1",
    ]);
    let state_of = |node: &str| {
        let nodes = cluster.json(&["node", "ls", "-o", "json"]);
        let found = nodes.as_array()?.iter().find(|one| one["name"] == node)?;
        Some(found["state"].as_str()?.to_owned())
    };
    let mut took = Vec::new();
    for count in 0..losses {
        let victim = ["n3", "n2"][count % 2];
        let _ = said(&cluster, "rm -f /dc/end /dc/pid");
        let job = format!("on {victim} -- sleep 1006 2>/dev/null; echo $? > /dc/end");
        cluster.ok(&["run", "-d", "shop", "--node", "n1", "--", "bash", "-c", &job]);
        cluster.ok(&["run", "-d", "shop", "--node", victim, "--", "bash", "-c", "on n1 -- sleep 1007"]);
        let stays = "echo $$ > /dc/pid; exec sleep 1008";
        cluster.ok(&["run", "-d", "shop", "--node", victim, "--", "bash", "-c", stays]);
        eventually("all run", Duration::from_secs(20), || {
            let all = ["sleep 1006", "sleep 1007", "sleep 1008"];
            all.iter().all(|what| does(&cluster, what)).then_some(())
        });
        assert_eq!(said(&cluster, "kill -0 $(cat /dc/pid) && echo there"), "there", "loss {count}");
        cluster.ok(&["dev", "kill", victim]);
        eventually("the cluster decides", Duration::from_secs(20), || {
            state_of(victim).filter(|state| state != "ready" && state != "suspect").map(|_| ())
        });
        let decided = Instant::now();
        eventually("nothing is left", Duration::from_secs(10), || {
            let left =
                "kill -0 $(cat /dc/pid) 2>&1; pgrep -f 'sleep[ ]100[678]'; cat /dc/end 2>/dev/null || echo waits";
            let left = said(&cluster, left);
            (left.ends_with("\n125") && left.lines().count() == 2).then_some(())
        });
        took.push(decided.elapsed());
        cluster.ok(&["dev", "restart", victim]);
        eventually("it is back", Duration::from_secs(60), || {
            let dc = cluster.json(&["dc", "inspect", "shop", "-o", "json"]);
            (state_of(victim).as_deref() == Some("ready") && dc["phase"] == "running").then_some(())
        });
        is_quiet(&cluster, "sleep 100");
    }
    took.sort();
    let (median, most) = (took.get(losses / 2), took.last());
    println!("{losses} losses: nothing left {median:?} (median), {most:?} (at most) after the decision");
    // A second, and what it takes to look on a machine that has more to do.
    assert!(most.is_none_or(|most| *most < Duration::from_secs(5)), "{most:?}");
}

/// make and xargs know nothing of nodes, nor does what they start.
#[test]
fn programs_are_spread_by_their_names() {
    let cluster = shop(3);
    let dc = |arguments: &[&str], script: &str| {
        let begin = ["run", "--spread", "where,cc1,cc,work*;load=0;most=3"];
        let end = ["-w", "/dc", "shop", "--node", "n1", "--", "bash", "-c", script];
        cluster.ok(&[&begin[..], arguments, &end].concat()).trim().to_owned()
    };
    // A program that says where it ran, and takes a while.
    said(&cluster, "mkdir /dc/bin; printf '#!/bin/sh\\nsleep 2; hostname\\n' > /dc/bin/where; chmod +x /dc/bin/where");
    let path = ["--env", "PATH=/dc/bin:/usr/bin:/bin"];
    let where_it_ran = dc(&path, "seq 12 | xargs -P 12 -I{} where | sort | uniq -c | tr -s ' ' | tr '\\n' ';'");
    let counts: Vec<(u32, &str)> = where_it_ran
        .split(';')
        .filter_map(|one| one.trim().split_once(' '))
        .map(|(count, node)| (count.parse().expect("a number"), node))
        .collect();
    assert_eq!(counts.iter().map(|(count, _)| count).sum::<u32>(), 12, "{where_it_ran}");
    let on = |node: &str| counts.iter().find(|(_, name)| *name == node).map_or(0, |(count, _)| *count);
    assert!((1..=3).contains(&on("n2")) && (1..=3).contains(&on("n3")), "at most three at a time: {where_it_ran}");
    // By its path, by posix_spawn, from a shell; statuses come back.
    assert_eq!(
        dc(
            &[],
            "/dc/bin/where | grep -c n; python3 -c 'import os; os.posix_spawn(\"/dc/bin/where\", [\"where\"], os.environ); os.wait()' | grep -c n"
        ),
        "1\n1"
    );
    said(&cluster, "cp /bin/false /dc/bin/works; cp /bin/true /dc/bin/worked");
    assert_eq!(dc(&path, "works; echo $?; worked; echo $?; work_absent 2>/dev/null; echo $?"), "1\n0\n127");
    // What cannot go stays: its directory is not in the tree, its input is a pipe, its name is another one.
    assert_eq!(dc(&path, "cd /tmp; where; cd /dc; echo | where; cp bin/where bin/other; other"), "n1\nn1\nn1");
    // Idle nodes keep their programs.
    let idle = [
        "run",
        "--spread",
        "where;load=1000",
        "-w",
        "/dc",
        "shop",
        "--node",
        "n1",
        "--",
        "bash",
        "-c",
        "/dc/bin/where",
    ];
    assert_eq!(cluster.ok(&idle).trim(), "n1");
    // A real compiler, by make.
    if std::process::Command::new("make").arg("--version").output().is_err()
        || std::process::Command::new("cc").arg("--version").output().is_err()
    {
        eprintln!("SKIPPED: there is no make, or no C compiler");
        return;
    }
    let project = "mkdir /dc/src; cd /dc/src; for i in $(seq 24); do echo \"int f$i(int x) { return x + $i; }\" > f$i.c; done; \
        { for i in $(seq 24); do echo \"int f$i(int);\"; done; echo '#include <stdio.h>'; echo 'int main(void) { int x = 0;'; \
          for i in $(seq 24); do echo \"x = f$i(x);\"; done; echo 'printf(\"%d\\n\", x); return 0; }'; } > main.c; \
        printf 'sum: main.o $(patsubst %%.c,%%.o,$(wildcard f*.c))\\n\\tcc -o $@ $^\\n%%.o: %%.c\\n\\tcc -c -o $@ $<\\n' > Makefile";
    said(&cluster, project);
    let built = dc(&["--env", "TMPDIR=/dc"], "cd /dc/src; make -j8 >/dev/null && ./sum; make -q sum && echo made");
    assert_eq!(built, "300\nmade");
    // A fault of the compiler's is make's.
    said(&cluster, "cd /dc/src; echo 'int f3(' > f3.c");
    let fault =
        dc(&[], "cd /dc/src; make -j8 2>&1 >/dev/null | grep -c 'f3.c.*error'; make -j8 >/dev/null 2>&1; echo $?");
    assert!(fault.ends_with("\n2") && !fault.starts_with('0'), "{fault}");
    is_quiet(&cluster, "cc1");
}

/// Jobs, signals to other nodes and looks at `/proc` at once, while what serves them is killed 200 times each.
#[test]
#[ignore = "ten minutes"]
fn programs_do_not_notice_600_kills_of_gates_daemons_and_proxies() {
    const KILLS: usize = 200;
    let cluster = shop(3);
    let jobs = "i=0; while [ ! -e /dc/stop ]; do i=$((i+1)); n=n$((i % 2 + 2)); \
                r=$(seq $i | on $n -- tail -n 1); [ \"$r\" = $i ] || echo \"job $i on $n said '$r'\"; \
                on $n -- sh -c 'exit 9'; s=$?; [ $s = 9 ] || echo \"job $i on $n ended with $s\"; done 2>&1; echo jobs $i";
    let signals = "i=0; on n2 -- sleep 100000 & d=$!; until p=$(pgrep -x -u 0 -f 'sleep 100000'); do sleep 0.1; done; \
                   while [ ! -e /dc/stop ]; do i=$((i+1)); kill -0 $p || echo \"signal $i\"; \
                   grep -q sleep /proc/$p/comm 2>/dev/null || sleep 0.1; kill -WINCH $p || echo \"winch $i\"; done 2>&1; \
                   kill $p; wait $d; echo ended $?; echo signals $i";
    let looks = "i=0; while [ ! -e /dc/stop ]; do i=$((i+1)); ps -e -o pid= | grep -q \" *$$ *\" || echo \"ps $i\"; \
                 readlink /proc/self/exe | grep -q readlink || echo \"exe $i\"; done 2>&1; echo looks $i";
    let watch = |script: &str| {
        let mut run = cluster.command_without_limit(&["run", "shop", "--node", "n1", "--", "bash", "-c", script]);
        run.stdout(Stdio::piped()).spawn().expect("a shell")
    };
    let running = [jobs, signals, looks].map(watch);
    let began = Instant::now();
    for count in 0..KILLS {
        if count % 10 == 0 {
            // For whoever reads why it failed.
            let inspected = cluster.json(&["dc", "inspect", "shop", "-o", "json"]);
            let shares = inspected["shares"].as_array().into_iter().flatten();
            let gates = shares.flat_map(|share| share["servers"].as_array().cloned().unwrap_or_default());
            let gates: Vec<String> =
                gates.filter(|server| server["name"] == "calls").map(|gate| gate.to_string()).collect();
            eprintln!("{count} rounds after {:?}: {}", began.elapsed(), gates.join(" "));
        }
        for node in ["n1", "n2"] {
            if let Some(pid) = cluster.server_pid("shop", node, "calls") {
                // It may have been replaced at this moment.
                let _ = cluster.output(&["dev", "exec", node, "--", "kill", "-9", &pid.to_string()]);
            }
            // Both must be there for a moment, or no job can begin.
            std::thread::sleep(Duration::from_millis(600));
        }
        if let Some((proxy, _)) = cluster.proxy_of(["n1", "n2"][count % 2]) {
            let _ = cluster.output(&["dev", "exec", ["n1", "n2"][count % 2], "--", "kill", "-9", &proxy.to_string()]);
        }
        let node = ["n2", "n3"][count % 2];
        cluster.ok(&["dev", "exec", node, "--", "pkill", "-9", "-f", "^[^ ]*dvs daemon"]);
        cluster.ok(&["dev", "restart", node]);
        std::thread::sleep(Duration::from_millis(600));
    }
    cluster.sh("shop", "n1", "touch /dc/stop");
    for run in running {
        let output = run.wait_with_output().expect("its end");
        let said = String::from_utf8_lossy(&output.stdout);
        let lines: Vec<&str> = said.lines().filter(|line| !line.is_empty()).collect();
        eprintln!("{}", said.trim());
        let is_right = matches!(lines.as_slice(), ["ended 143", end] if end.starts_with("signals "))
            || matches!(lines.as_slice(), [end] if end.starts_with("jobs ") || end.starts_with("looks "));
        assert!(is_right && output.status.success(), "{said}{}", cluster.logs());
    }
}
