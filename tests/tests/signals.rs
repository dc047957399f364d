//! Signals to processes of other nodes, by number, from programs that know nothing of nodes.

use std::time::Duration;

use end_to_end::{Cluster, eventually};

/// Answers each SIGUSR1 with SIGUSR2 to whoever sent it; on SIGTERM says how many came. Its number lies in the tree.
const FAR: &str = "
import os, signal
awaited = {signal.SIGUSR1, signal.SIGTERM}
signal.pthread_sigmask(signal.SIG_BLOCK, awaited)
with open('/dc/far.new', 'w') as file:
    file.write(str(os.getpid()))
os.rename('/dc/far.new', '/dc/far')
count = 0
while True:
    info = signal.sigwaitinfo(awaited)
    if info.si_signo == signal.SIGTERM:
        break
    count += 1
    os.kill(info.si_pid, signal.SIGUSR2)
print(count)
";

/// Sends so many, waits for the answer to each, ends the other.
const NEAR: &str = "
import os, signal, sys
with open('/dc/far') as file:
    far = int(file.read())
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR2})
for count in range(int(sys.argv[1])):
    os.kill(far, signal.SIGUSR1)
    assert signal.sigtimedwait({signal.SIGUSR2}, 60), count
os.kill(far, signal.SIGTERM)
";

fn python<'a>(node: &'a str, more: &[&'a str], program: &'a str, arguments: &[&'a str]) -> Vec<&'a str> {
    let begin = ["run", "shop", "--node", node];
    [&begin[..], more, &["--", "/usr/bin/python3", "-c", program], arguments].concat()
}

fn start_far(cluster: &Cluster, node: &str) -> String {
    let pid = cluster.ok(&python(node, &["-d"], FAR, &[]));
    cluster.sh("shop", "n1", "until test -e /dc/far; do sleep 0.05; done");
    pid.trim().to_owned()
}

/// Those of two nodes in turn, while a program runs that has to succeed. Gives how many were killed.
fn kill_call_gates_until_it_ends(cluster: &Cluster, mut near: std::process::Child) -> usize {
    let mut kills = 0;
    while near.try_wait().expect("a child").is_none() {
        let node = ["n1", "n2"][kills % 2];
        // It is being replaced, or it is there, or was a moment ago.
        if let Some(pid) = cluster.server_pid("shop", node, "calls") {
            let killed = cluster.output(&["dev", "exec", node, "--", "kill", "-9", &pid.to_string()]);
            kills += usize::from(killed.status.success());
        }
        // Both must be there for a moment, or no signal arrives.
        std::thread::sleep(Duration::from_millis(300));
    }
    assert!(near.wait().expect("its end").success());
    kills
}

#[test]
fn shell_kills_a_process_of_another_node_by_its_number() {
    let cluster = Cluster::up(3);
    cluster.container("shop", 3, &[]);
    let start =
        |node: &str| cluster.ok(&["run", "-d", "shop", "--node", node, "--", "sleep", "1000"]).trim().to_owned();
    let (here, there) = (start("n1"), start("n3"));
    let kill = |node: &str, arguments: &str| {
        cluster.sh("shop", node, &format!("kill {arguments} 2>/dev/null && echo sent || echo none")).trim().to_owned()
    };
    assert_eq!([kill("n1", &format!("-0 {there}")), kill("n2", &format!("-0 {there}"))], ["sent", "sent"]);
    assert_eq!(kill("n1", &format!("-TERM {there}")), "sent");
    eventually("it is gone", Duration::from_secs(10), || (kill("n2", &format!("-0 {there}")) == "none").then_some(()));
    // Nobody of another container, of the node, and no server has a number that leads there.
    cluster.container("other", 3, &[]);
    let foreign = cluster.ok(&["run", "-d", "other", "--node", "n3", "--", "sleep", "1000"]);
    assert_eq!(foreign.trim(), there, "the same number, in another container");
    assert_eq!(kill("n1", &format!("-KILL {}", foreign.trim())), "none");
    assert_eq!(cluster.ok(&["ps", "other", "-o", "name"]).lines().count(), 1);
    assert_eq!(kill("n2", &format!("-KILL {here}")), "sent");
}

#[test]
fn every_signal_is_heard_once_while_call_gates_are_killed_again_and_again() {
    let cluster = Cluster::up(2);
    cluster.container("shop", 2, &[]);
    let far = start_far(&cluster, "n2");
    let kills = kill_call_gates_until_it_ends(&cluster, cluster.spawn(&python("n1", &[], NEAR, &["8000"])));
    assert!(kills > 4, "{kills}");
    eventually("it counted", Duration::from_secs(10), || {
        (cluster.ok(&["logs", "shop", &far]).trim() == "8000").then_some(())
    });
}

#[test]
fn node_that_cannot_be_reached_is_said_to_be_so_until_it_is_back() {
    let cluster = Cluster::up(2);
    cluster.container("shop", 2, &[]);
    let far = start_far(&cluster, "n2");
    cluster.ok(&python("n1", &[], "import os; os.kill(int(open('/dc/far').read()), 0)", &[]));
    cluster.ok(&["dev", "wire", "n2", "down"]);
    let kill = format!(
        "import os\ntry:\n    os.kill({far}, 0)\n    print('sent')\nexcept OSError as error:\n    print(error.errno)"
    );
    let said = || cluster.ok(&python("n1", &[], &kill, &[])).trim().to_owned();
    let unreachable = rustix::io::Errno::HOSTUNREACH.raw_os_error().to_string();
    assert_eq!(said(), unreachable);
    assert_eq!(said(), unreachable, "also once it is known");
    cluster.ok(&["dev", "wire", "n2", "up"]);
    eventually("it is reached again", Duration::from_secs(30), || (said() == "sent").then_some(()));
}

#[test]
fn processes_of_a_lost_node_are_gone_and_those_that_come_after_it_are_there() {
    if std::process::Command::new("etcd").arg("--version").output().is_err() {
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
    let far = start_far(&cluster, "n3");
    let said = |pid: &str| {
        let kill = format!(
            "import os\ntry:\n    os.kill({pid}, 0)\n    print('sent')\nexcept OSError as error:\n    print(error.errno)"
        );
        cluster.ok(&python("n1", &[], &kill, &[])).trim().to_owned()
    };
    assert_eq!(said(&far), "sent");
    cluster.ok(&["dev", "kill", "n3"]);
    let none = rustix::io::Errno::SRCH.raw_os_error().to_string();
    eventually("it is gone", Duration::from_secs(30), || (said(&far) == none).then_some(()));
    // That there is no link either is said all the time, and changes nothing.
    std::thread::sleep(Duration::from_secs(2));
    assert_eq!(said(&far), none);
    cluster.ok(&["dev", "restart", "n3"]);
    let later = eventually("programs run there again", Duration::from_secs(60), || {
        let run = ["run", "-d", "shop", "--node", "n3", "--", "sleep", "1000"];
        let ran = cluster.command(&run).output().expect("dvs starts");
        ran.status.success().then(|| String::from_utf8_lossy(&ran.stdout).trim().to_owned())
    });
    eventually("it is reached", Duration::from_secs(30), || (said(&later) == "sent").then_some(()));
}

#[test]
fn container_of_one_node_has_no_call_gate_and_needs_none() {
    let cluster = Cluster::up(1);
    cluster.container("shop", 1, &[]);
    assert_eq!(cluster.server_pid("shop", "n1", "calls"), None);
    assert_eq!(cluster.sh("shop", "n1", "kill -0 200000 2>/dev/null || echo none"), "none\n");
}

/// Writes its number, waits for three queued signals and says what each was.
const QUEUE_FAR: &str = "
import ctypes, os, signal, struct, sys
libc = ctypes.CDLL(None, use_errno=True)
signal.pthread_sigmask(signal.SIG_BLOCK, {40})
awaited = ctypes.create_string_buffer(128)
libc.sigemptyset(awaited)
libc.sigaddset(awaited, 40)
with open(sys.argv[1] + '.new', 'w') as file:
    file.write(str(os.getpid()))
os.rename(sys.argv[1] + '.new', sys.argv[1])
for _ in range(3):
    info = ctypes.create_string_buffer(128)
    assert libc.sigwaitinfo(awaited, info) == 40
    number, _, code = struct.unpack_from('iii', info, 0)
    pid, uid, value = struct.unpack_from('=iiQ', info, 16)
    print(number, code, pid == int(sys.argv[2]) if sys.argv[2] != '0' else pid > 0, uid, value)
";

/// Queues three, and some that cannot be, and says what became of these.
const QUEUE_NEAR: &str = "
import ctypes, os, platform, struct, sys, threading
libc = ctypes.CDLL(None, use_errno=True)
with open(sys.argv[1]) as file:
    far = int(file.read())
process, thread = (129, 297) if platform.machine() == 'x86_64' else (138, 240)
def siginfo(code, value):
    return ctypes.create_string_buffer(struct.pack('=iiiiiiQ', 40, 0, code, 0, os.getpid(), os.getuid(), value), 128)
def said(*arguments):
    done = libc.syscall(*[ctypes.c_long(a) if isinstance(a, int) else a for a in arguments])
    return 0 if done == 0 else ctypes.get_errno()
errors = [
    said(process, far, 40, 8), said(process, far, 40, 0),
    said(process, far, 40, siginfo(0, 1)), said(process, far, 40, siginfo(-6, 1)), said(process, far, 40, siginfo(0x80, 1)),
    said(process, far, 65, siginfo(-1, 1)), said(process, far + 90, 40, siginfo(-1, 1)),
    said(thread, far, 0, 40, siginfo(-1, 1)), said(thread, far, far + 90, 40, siginfo(-1, 1)),
    said(thread, far, far, 40, 8), said(process, far, 0, siginfo(-1, 1)),
]
print(errors)
assert libc.sigqueue(far, 40, ctypes.c_void_p(77)) == 0
assert said(process, far, 40, siginfo(-60, (1 << 64) - 1)) == 0
assert said(thread, far, far, 40, siginfo(-2, 0)) == 0
";

#[test]
fn queued_signals_say_the_same_and_fail_the_same_on_another_node_as_on_the_own_one() {
    let cluster = Cluster::up(2);
    cluster.container("shop", 2, &[]);
    let heard = |node: &str| {
        let place = format!("/dc/far-{node}");
        let far = cluster.spawn(&python(node, &[], QUEUE_FAR, &[&place, "0"]));
        cluster.sh("shop", "n1", &format!("until test -e {place}; do sleep 0.05; done"));
        let errors = cluster.ok(&python("n1", &[], QUEUE_NEAR, &[&place]));
        let far = far.wait_with_output().expect("it ends");
        assert!(far.status.success(), "{far:?}");
        // What is for a thread alone overtakes what waits for all.
        let mut said: Vec<String> = String::from_utf8_lossy(&far.stdout).lines().map(str::to_owned).collect();
        said.sort();
        (errors, said)
    };
    let (own, other) = (heard("n1"), heard("n2"));
    println!("{own:?}");
    assert_eq!(other, own);
    assert_eq!(own.1, ["40 -1 True 0 77", "40 -2 True 0 0", "40 -60 True 0 18446744073709551615"]);
}

/// By the directories of processes in `/proc`; what goes wrong as the kernel says it.
const BY_DESCRIPTOR: &str = "
import os, signal, sys
def send(fd, number):
    try:
        signal.pidfd_send_signal(fd, number)
        return 0
    except OSError as why:
        return why.errno
far = os.open(f'/proc/{sys.argv[1]}', os.O_RDONLY | os.O_DIRECTORY)
status = os.open(f'/proc/{sys.argv[1]}/status', os.O_RDONLY)
child = os.fork()
if child == 0:
    signal.pause()
near, own = os.open(f'/proc/{child}', os.O_RDONLY | os.O_DIRECTORY), os.pidfd_open(child)
print(send(far, 0), send(near, 0), send(own, 0), send(far, 999), send(near, 999), send(status, 0), send(99, 0))
print(send(far, signal.SIGTERM), send(own, signal.SIGTERM), os.WTERMSIG(os.waitpid(child, 0)[1]))
";

#[test]
fn signals_by_descriptors_of_proc_cross_nodes_as_those_by_number_do() {
    let cluster = Cluster::up(2);
    cluster.container("shop", 2, &[]);
    cluster.sh("shop", "n1", "cp /usr/bin/sleep /dc/drowse");
    let start = |node: &str| cluster.ok(&["run", "-d", "shop", "--node", node, "--", "/dc/drowse", "1000"]);
    let far = start("n2").trim().to_owned();
    let said = cluster.ok(&python("n1", &[], BY_DESCRIPTOR, &[&far]));
    assert_eq!(said, "0 0 0 22 22 9 9\n0 0 15\n");
    let left = || cluster.output(&["run", "shop", "--node", "n1", "--", "pgrep", "-c", "drowse"]).stdout;
    eventually("it is gone", Duration::from_secs(10), || (left() == b"0\n").then_some(()));
    if !std::path::Path::new("/usr/bin/killall").exists() {
        return eprintln!("SKIPPED in part: there is no killall (Debian: psmisc)");
    }
    let all = [start("n1"), start("n2"), start("n2")];
    assert_eq!(left(), b"3\n", "{all:?}");
    cluster.sh("shop", "n1", "killall drowse");
    eventually("all are gone", Duration::from_secs(10), || (left() == b"0\n").then_some(()));
}

/// What is said of a process, and what became of attempts to change its limits: the same words wherever it runs.
const LOOK: &str = "
import ctypes, os, platform, resource, struct, sys
libc = ctypes.CDLL(None, use_errno=True)
pid = int(sys.argv[1])
numbers = {'x86_64': (302, 315, 204, 143, 148), 'aarch64': (261, 275, 123, 121, 127)}
prlimit, getattr_, getaffinity, getparam, interval = numbers[platform.machine()]
def said(*arguments):
    done = libc.syscall(*[ctypes.c_long(a) if isinstance(a, int) else a for a in arguments])
    return done if done >= 0 else f'errno {ctypes.get_errno()}'
def call(what, *arguments):
    try:
        return what(*arguments)
    except OSError as error:
        return error.errno
print('affinity', call(os.sched_getaffinity, pid), 'parameters', call(os.sched_getparam, pid))
print('interval', call(os.sched_rr_get_interval, pid) > 0)
attributes = ctypes.create_string_buffer(56)
print('attributes', said(getattr_, pid, attributes, 56, 0), attributes.raw.hex())
short = ctypes.create_string_buffer(b'\\xff' * 56, 56)
print('short', said(getattr_, pid, short, 48, 0), short.raw.hex())
print('refused', said(getattr_, pid, attributes, 47, 0), said(getattr_, pid, 0, 56, 0), said(getparam, pid, 0))
print('sets', said(getaffinity, pid, 7, ctypes.create_string_buffer(8)), said(getaffinity, pid, 0, 8))
print('nowhere', said(getparam, pid, 8), said(interval, pid, 8), said(getaffinity, pid, 128, 8))
files = struct.pack('QQ', int(sys.argv[2]), 400)
before = ctypes.create_string_buffer(b'\\xee' * 24, 24)
print('limit', said(prlimit, pid, 7, 0, before), before.raw.hex())
print('set', said(prlimit, pid, 7, files, before), before.raw.hex(), said(prlimit, pid, 7, 0, before), before.raw.hex())
more, mixed = struct.pack('QQ', 300, 1 << 40), struct.pack('QQ', 9, 8)
print('not set', said(prlimit, pid, 7, more, before), said(prlimit, pid, 7, mixed, before), said(prlimit, pid, 99, files, 0))
print('neither', said(prlimit, pid, 7, 8, before), said(prlimit, pid, 7, 0, 8), said(prlimit, pid, 7, 0, 0))
";

#[test]
fn scheduling_and_limits_are_said_and_set_as_on_the_own_node() {
    let cluster = Cluster::up(2);
    cluster.container("shop", 2, &[]);
    let start = |user: &str| {
        let far = ["run", "-d", "--user", user, "shop", "--node", "n2", "--", "sleep", "1000"];
        cluster.ok(&far).trim().to_owned()
    };
    let look = |user: &str, node: &str, pid: &str, soft: &str| {
        let arguments =
            ["run", "--user", user, "shop", "--node", node, "--", "/usr/bin/python3", "-c", LOOK, pid, soft];
        cluster.ok(&arguments)
    };
    for (owner, user) in [("33:44", "33:44"), ("33:44", "33:45"), ("33:44", "34:44"), ("33:44", "0:0"), ("0:0", "0:0")]
    {
        // One for each who looks: the second would find what the first one set.
        let (near, far) = (start(owner), start(owner));
        let own = look(user, "n2", &near, "200");
        let elsewhere = look(user, "n1", &far, "200");
        assert_eq!(elsewhere, own, "{user} about a process of {owner}");
        assert!(elsewhere.contains("affinity {0"), "{elsewhere}");
        // Root of a container has the capability over its processes.
        let may = owner == user || user == "0:0";
        let is_set = elsewhere.contains(&format!("{:016x}{:016x}", 200_u64.swap_bytes(), 400_u64.swap_bytes()));
        assert_eq!(is_set, may, "{elsewhere}");
        // It is so, not only said.
        let limits = cluster.sh("shop", "n2", &format!("grep 'open files' /proc/{far}/limits | tr -s ' '"));
        assert_eq!(limits.contains("200 400"), may, "{limits}");
    }
    let nobody = look("0:0", "n1", "196607", "200");
    assert_eq!(nobody.lines().last(), Some("neither errno 14 errno 3 errno 3"), "{nobody}");
}

/// Asks for limits again and again; a value that was not written, or a call that fails, is said.
const LIMITS: &str = "
import resource, sys
pid, times = int(sys.argv[1]), int(sys.argv[2])
for count in range(times):
    wanted = 100 + count % 50
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (wanted, 400))
    assert resource.prlimit(pid, resource.RLIMIT_NOFILE) == (wanted, 400), count
print('so')
";

#[test]
fn limits_are_set_and_read_while_call_gates_are_killed_again_and_again() {
    let cluster = Cluster::up(2);
    cluster.container("shop", 2, &[]);
    let far = ["run", "-d", "shop", "--node", "n2", "--", "sh", "-c", "ulimit -n 400; exec sleep 1000"];
    let far = cluster.ok(&far).trim().to_owned();
    let near = cluster.spawn(&python("n1", &[], LIMITS, &[&far, "1500"]));
    let kills = kill_call_gates_until_it_ends(&cluster, near);
    assert!(kills > 2, "{kills}");
}

/// Opens a process of another node, waits for its end, and says what each attempt becomes.
const OPEN: &str = "
import ctypes, os, select, signal, sys, time
libc = ctypes.CDLL(None, use_errno=True)
far = int(sys.argv[1])
def call(what, *arguments):
    try:
        return what(*arguments)
    except OSError as error:
        return error.errno
def said(*arguments):
    done = libc.syscall(*map(ctypes.c_long, arguments))
    return done if done >= 0 else ctypes.get_errno()
opened = os.pidfd_open(far)
again = os.pidfd_open(far, os.O_NONBLOCK)
print('inherited', os.get_inheritable(opened), os.get_inheritable(again))
poll = select.poll()
poll.register(opened, select.POLLIN)
poll.register(again, select.POLLIN)
print('alive', poll.poll(500), call(signal.pidfd_send_signal, opened, 0))
print('stranger', call(os.waitid, os.P_PIDFD, opened, os.WEXITED), said(438, opened, 0, 0), said(308, opened, 0))
print('refused', call(os.pidfd_open, far, os.O_EXCL), call(os.pidfd_open, far, 1), call(os.pidfd_open, far + 90))
print('open', flush=True)
if sys.argv[2] == 'kill':
    print('killed', call(signal.pidfd_send_signal, again, signal.SIGTERM))
begun = time.monotonic()
ended = {fd for fd, _ in poll.poll(60000)} | {fd for fd, _ in poll.poll(1000)}
print('ended', ended == {opened, again}, time.monotonic() - begun < float(sys.argv[3]))
time.sleep(0.3)
print('gone', call(signal.pidfd_send_signal, opened, 0), call(os.pidfd_open, far))
";

const OPEN_SAID: &str = "inherited False False
alive [] None
stranger 10 1 1
refused 22 22 3
open
";

#[test]
fn process_of_another_node_is_opened_and_its_descriptor_says_when_it_has_ended() {
    let cluster = Cluster::up(2);
    cluster.container("shop", 2, &[]);
    let far = || cluster.ok(&["run", "-d", "shop", "--node", "n2", "--", "sleep", "1000"]).trim().to_owned();
    let said = cluster.ok(&python("n1", &[], OPEN, &[&far(), "kill", "2"]));
    assert_eq!(said, format!("{OPEN_SAID}killed None\nended True True\ngone 3 3\n"));
    // By somebody else, while call gates come and go.
    let other = far();
    let begin = |pid: &str, limit: &str| {
        let mut waits = cluster.command_without_limit(&python("n1", &[], OPEN, &[pid, "wait", limit]));
        waits.stdout(std::process::Stdio::piped()).spawn().expect("a program")
    };
    let waits = begin(&other, "60");
    for node in ["n1", "n2", "n1"] {
        std::thread::sleep(Duration::from_millis(700));
        if let Some(pid) = cluster.server_pid("shop", node, "calls") {
            cluster.kill(node, pid);
        }
    }
    let nobody = ["run", "shop", "--node", "n1", "--", "sh", "-c", "ls /proc | grep -cE '^[0-9]+$'"];
    let shown = cluster.ok(&nobody);
    cluster.ok(&["kill", "shop", &other]);
    let output = waits.wait_with_output().expect("its end");
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert_eq!(said, format!("{OPEN_SAID}ended True True\ngone 3 3\n"));
    // A placeholder is no process of the container: init of each node has its number on both, sh, ls, grep, python,
    // sleep.
    assert!(shown.trim().parse::<u32>().expect("a number") <= 7, "{shown}");
}

#[test]
fn descriptor_of_a_process_says_that_its_node_is_lost() {
    if std::process::Command::new("etcd").arg("--version").output().is_err() {
        eprintln!("SKIPPED: there is no etcd (Debian: etcd-server)");
        return;
    }
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
    let far = cluster.ok(&["run", "-d", "shop", "--node", "n3", "--", "sleep", "1000"]).trim().to_owned();
    let mut waits = cluster.command_without_limit(&python("n1", &[], OPEN, &[&far, "wait", "60"]));
    let mut waits = waits.stdout(std::process::Stdio::piped()).spawn().expect("a program");
    let mut output = std::io::BufReader::new(waits.stdout.take().expect("its output"));
    let mut said = String::new();
    while !said.ends_with("open\n") {
        assert_ne!(std::io::BufRead::read_line(&mut output, &mut said).expect("a line"), 0, "{said}");
    }
    cluster.ok(&["dev", "kill", "n3"]);
    std::io::Read::read_to_string(&mut output, &mut said).expect("its end");
    assert!(waits.wait().expect("its end").success());
    assert_eq!(said, format!("{OPEN_SAID}ended True True\ngone 3 3\n"));
}

/// Asks for limits into memory that is not there, is not to be written, comes and goes; and dies in the middle of it.
const HOSTILE: &str = "
import ctypes, mmap, os, platform, random, signal, sys, threading, time
libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
far, prlimit = int(sys.argv[1]), 302 if platform.machine() == 'x86_64' else 261
def hostile(seed):
    rng = random.Random(seed)
    place = libc.mmap(None, 8192, 3, 0x22, -1, 0)
    def come_and_go():
        while True:
            libc.munmap(place, 4096)
            libc.mmap(place, 4096, rng.choice([0, 1, 3]), 0x32, -1, 0)
    threading.Thread(target=come_and_go, daemon=True).start()
    text = ctypes.cast(libc.getpid, ctypes.c_void_p).value
    for _ in range(60):
        at = rng.choice([8, place, place + 4090, text, 1 << 46, (1 << 64) - 4096])
        libc.syscall(ctypes.c_long(prlimit), ctypes.c_long(far), ctypes.c_long(7), ctypes.c_long(0), ctypes.c_void_p(at))
    os._exit(0)
for seed in range(16):
    children = [os.fork() for _ in range(1)]
    if children[0] == 0:
        hostile(seed)
    if seed % 2:
        time.sleep(0.03)
        os.kill(children[0], signal.SIGKILL)
    os.waitpid(children[0], 0)
print('done')
";

#[test]
fn memory_that_comes_and_goes_under_a_call_harms_nobody_else() {
    let cluster = Cluster::up(2);
    cluster.container("shop", 2, &[]);
    let start = || {
        let far = ["run", "-d", "shop", "--node", "n2", "--", "sh", "-c", "ulimit -n 400; exec sleep 1000"];
        cluster.ok(&far).trim().to_owned()
    };
    let (theirs, ours) = (start(), start());
    let gates = || ["n1", "n2"].map(|node| cluster.server_pid("shop", node, "calls"));
    let before = gates();
    let mut hostile = cluster.spawn(&python("n1", &[], HOSTILE, &[&theirs]));
    let mut times = 0;
    while hostile.try_wait().expect("a child").is_none() {
        assert_eq!(cluster.ok(&python("n1", &[], LIMITS, &[&ours, "20"])), "so\n");
        times += 1;
    }
    assert!(hostile.wait().expect("its end").success());
    assert!(times > 2, "{times}");
    assert_eq!(gates(), before, "no call gate ended");
}

/// So many processes, which end together.
const MANY: &str = "
import os, signal, sys
for _ in range(int(sys.argv[1])):
    if os.fork() == 0:
        libc = __import__('ctypes').CDLL(None)
        libc.prctl(1, 9)
        signal.pause()
with open('/dc/many', 'w') as file:
    file.write('there')
signal.pause()
";

/// Opens all processes of another node one after the other, and keeps none.
const OPEN_ALL: &str = "
import os, sys, time
first = int(sys.argv[1])
opened, refused = 0, set()
for pid in sorted(int(name) for name in os.listdir('/proc') if name.isdigit() and int(name) >= 131072):
    try:
        os.close(os.pidfd_open(pid))
        opened += 1
    except OSError as error:
        refused.add(error.errno)
os.close(os.pidfd_open(first))
print(opened, refused)
";

#[test]
fn processes_that_somebody_opens_by_the_hundred_are_refused_at_a_bound_until_they_end() {
    let cluster = Cluster::up(2);
    cluster.container("shop", 2, &[]);
    let first = cluster.ok(&["run", "-d", "shop", "--node", "n2", "--", "sleep", "1000"]).trim().to_owned();
    cluster.ok(&python("n1", &[], "import os, sys; os.close(os.pidfd_open(int(sys.argv[1])))", &[&first]));
    let many = cluster.ok(&python("n2", &["-d"], MANY, &["300"])).trim().to_owned();
    cluster.sh("shop", "n1", "until test -e /dc/many; do sleep 0.1; done");
    let said = cluster.ok(&python("n1", &[], OPEN_ALL, &[&first]));
    assert_eq!(said, "256 {24}\n", "the first one has its placeholder");
    cluster.ok(&["kill", "--signal", "KILL", "shop", &many]);
    let one = "import os, sys; os.close(os.pidfd_open(int(sys.argv[1]))); print('open')";
    let new = cluster.ok(&["run", "-d", "shop", "--node", "n2", "--", "sleep", "1000"]).trim().to_owned();
    eventually("placeholders have ended with them", Duration::from_secs(20), || {
        let said = cluster.output(&python("n1", &[], one, &[&new]));
        (said.stdout == b"open\n").then_some(())
    });
}
