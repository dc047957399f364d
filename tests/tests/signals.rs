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
    let mut near = cluster.spawn(&python("n1", &[], NEAR, &["8000"]));
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
    cluster.ok(&["dc", "create", "shop", "--nodes", "n1,n2,n3", "--start", "--fs-node", "n1", "--disk-node", "n1"]);
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
