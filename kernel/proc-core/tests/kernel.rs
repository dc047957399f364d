//! The kernel is asked the same as `filter` and `permission`.
//!
//! Each test starts this program again, as a process to which it may do things that last: a filter, uids of threads.

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, Stdio};

use proc_core::filter::{self, FilterStep};
use proc_core::permission::{self, Power, Receiver, SameSession, SignalError, Signaller};
use proc_core::range::{END_PID, FIRST_PID, Seat};
use rustix::io::Errno;
use rustix::process::{Pid, Signal, Uid, kill_process, test_kill_process, test_kill_process_group};
use rustix::thread::{CapabilitySet, capabilities, gettid, set_capabilities, set_thread_res_uid};
use seccompiler::{apply_filter, sock_filter};

const ROLE: &str = "DVS_PROC_CORE_ROLE";

/// Starts the test of this name again; it does something else when it has a role.
fn start(test: &str, role: &str) -> Child {
    let program = std::env::current_exe().expect("this program");
    let mut command = Command::new(program);
    command.args(["--exact", test, "--nocapture", "--test-threads=1"]).env(ROLE, role);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("another process")
}

fn role() -> Option<String> {
    std::env::var(ROLE).ok()
}

fn pid(number: u32) -> Pid {
    Pid::from_raw(number as i32).expect("a number")
}

/// Whether the kernel trapped a call: without a listener it says that the call does not exist.
fn is_trapped<T>(said: Result<T, Errno>) -> bool {
    said.is_err_and(|errno| errno == Errno::NOSYS)
}

#[test]
fn kernel_takes_the_filter_and_traps_what_crosses_nodes() {
    if role().is_none() {
        let child = start("kernel_takes_the_filter_and_traps_what_crosses_nodes", "filtered");
        let output = child.wait_with_output().expect("its end");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
        return;
    }
    // Of all nodes the last: its numbers are used by nobody on a machine with fewer than four million processes.
    let own = Seat::all().last().expect("a node");
    let load = FilterStep { code: filter::LOAD_WORD, if_true: 0, if_false: 0, operand: filter::OFFSET_NUMBER };
    let allow = FilterStep { code: filter::RETURN, if_true: 0, if_false: 0, operand: filter::ALLOW };
    let steps = [load].into_iter().chain(filter::steps(own, proc_core::calls::ROWS)).chain([allow]);
    let program: Vec<sock_filter> = steps
        .map(|step| sock_filter { code: step.code, jt: step.if_true, jf: step.if_false, k: step.operand })
        .collect();
    apply_filter(&program).expect("the kernel takes it");
    for number in [FIRST_PID, own.first_pid() - 1, own.first_pid() - 70_000] {
        assert!(is_trapped(test_kill_process(pid(number))), "{number}");
        assert!(is_trapped(test_kill_process_group(pid(number))), "the group of {number}");
        assert!(is_trapped(rustix::process::getpgid(Some(pid(number)))), "{number}");
        assert!(is_trapped(rustix::process::getpriority_process(Some(pid(number)))), "{number}");
    }
    assert!(is_trapped(test_kill_process_group(pid(1))), "everybody");
    for number in [own.first_pid(), own.end_pid() - 1, END_PID, i32::MAX as u32] {
        assert_eq!(test_kill_process(pid(number)), Err(Errno::SRCH), "{number}");
        assert_eq!(test_kill_process_group(pid(number)), Err(Errno::SRCH), "the group of {number}");
        assert_eq!(rustix::process::getpgid(Some(pid(number))), Err(Errno::SRCH), "{number}");
    }
    test_kill_process(rustix::process::getpid()).expect("itself");
    rustix::process::test_kill_current_process_group().expect("its own group");
}

const NOBODY: Signaller =
    Signaller { pid: 0, uid: 0, euid: 0, gid: 0, power: Power::Own, priorities: Power::Own, resources: Power::Own };

const UIDS: [u32; 3] = [61_001, 61_002, 61_003];

/// Threads of a process of its own, one for each pair of real and saved uid. The kernel looks at the uids of the thread
/// whose number is named.
fn receive_until_the_end_of_input(sessions: &str) {
    if sessions == "different" {
        rustix::process::setsid().expect("a session");
    }
    for uid in UIDS {
        for suid in UIDS {
            let (say, hear) = std::sync::mpsc::channel();
            std::thread::spawn(move || {
                // Of the saved uid the effective one is a copy when it is set last; here all three are set.
                set_thread_res_uid(Uid::from_raw(uid), Uid::from_raw(65_000), Uid::from_raw(suid)).expect("as root");
                say.send(gettid().as_raw_nonzero()).expect("it is waited for");
                loop {
                    std::thread::park();
                }
            });
            println!("thread {} {uid} {suid}", hear.recv().expect("a thread"));
        }
    }
    println!("thread 0 0 0");
    std::io::stdin().read_to_end(&mut Vec::new()).expect("the end");
}

/// A thread with these uids and the capability or without says what the kernel says to it.
fn ask(sender: Signaller, signal: Option<Signal>, to: u32) -> Result<(), Errno> {
    let asking = std::thread::spawn(move || {
        // The saved uid stays root's, so that the capability can be had with any effective one.
        set_thread_res_uid(Uid::from_raw(sender.uid), Uid::from_raw(sender.euid), Uid::ROOT).expect("as root");
        let mut sets = capabilities(None).expect("capabilities");
        sets.effective = match sender.power {
            Power::All => sets.effective | CapabilitySet::KILL,
            Power::Own => sets.effective - CapabilitySet::KILL,
        };
        set_capabilities(None, sets).expect("of what is permitted");
        match signal {
            None => test_kill_process(pid(to)),
            Some(signal) => kill_process(pid(to), signal),
        }
    });
    asking.join().expect("an answer")
}

#[test]
fn kernel_permits_the_same_signals() {
    if let Some(role) = role() {
        return receive_until_the_end_of_input(&role);
    }
    if !rustix::process::geteuid().is_root() {
        eprintln!("SKIPPED: this test needs root");
        return;
    }
    let (mut asked, mut permitted) = (0, 0);
    for sessions in [SameSession::Yes, SameSession::No] {
        let role = if sessions == SameSession::Yes { "same" } else { "different" };
        let mut child = start("kernel_permits_the_same_signals", role);
        let lines = BufReader::new(child.stdout.take().expect("its output")).lines();
        let lines = lines.map(|line| line.expect("text"));
        // The harness writes before it, on the same line.
        let mut numbers = lines.filter_map(|line| {
            let (_, said) = line.split_once("thread ")?;
            let numbers: Vec<u32> = said.split(' ').filter_map(|number| number.parse().ok()).collect();
            numbers.try_into().ok()
        });
        for [thread, uid, suid] in numbers.by_ref().take_while(|[thread, ..]: &[u32; 3]| *thread != 0) {
            for (sender_uid, sender_euid) in UIDS.iter().flat_map(|uid| UIDS.map(|euid| (*uid, euid))) {
                for power in [Power::Own, Power::All] {
                    for signal in [None, Some(Signal::CONT), Some(Signal::URG)] {
                        let sender = Signaller { pid: 0, uid: sender_uid, euid: sender_euid, power, ..NOBODY };
                        let number = signal.map_or(0, Signal::as_raw);
                        let receiver = Receiver { uid, suid, euid: 65_000, gids: [0; 3] };
                        let expected = permission::check(number, &sender, receiver, sessions);
                        let said = ask(sender, signal, thread);
                        let same = said.map_err(|errno| SignalError::from_errno(errno.raw_os_error()));
                        assert_eq!(
                            same,
                            expected.map_err(Some),
                            "{number} from {sender:?} to {uid} {suid} {sessions:?}"
                        );
                        asked += 1;
                        permitted += u32::from(expected.is_ok());
                    }
                }
            }
        }
        drop(child.stdin.take());
        // The harness still has something to write.
        assert_eq!(numbers.count(), 0);
        assert!(child.wait().expect("its end").success());
    }
    assert_eq!(asked, 2 * 9 * 9 * 2 * 3);
    assert!(asked / 4 < permitted && permitted < asked, "{permitted} of {asked}");
}
