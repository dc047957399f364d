//! Deputies and far ends as processes, over a real broker: what whoever started a job sees, beside the same program
//! without one.

use std::ffi::OsString;
use std::io::{Read, Write};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use job::door::{FarEndOrder, OtherNode};
use job::{Deputy, FarEnd};
use rustix::process::{Pid, Signal, WaitOptions, WaitStatus, kill_process, waitpid};
use vos_api::job_door::{FAR_END_VARIABLE, JobPlace};
use vos_rt::testkit::World;

const ROLE: &str = "JOB_ROLE";
const BROKER: &str = "JOB_PLACE";
const LONG: Duration = Duration::from_secs(10);

fn main() -> ExitCode {
    match std::env::var(ROLE).as_deref() {
        Ok("deputy") => deputy(),
        Ok("far") => far(),
        _ => {
            // A shell's background job ignores SIGINT, and so would all that is started here.
            sys::child::inherit_signals(1 << (libc::SIGPIPE - 1), 0);
            tests()
        }
    }
}

fn tests() -> ExitCode {
    vos_rt::testkit::main(
        || ExitCode::FAILURE,
        &[
            ("bytes_come_through_in_both_directions", bytes_come_through_in_both_directions),
            ("ends_are_the_programs", ends_are_the_programs),
            ("what_is_inherited_is_there", what_is_inherited_is_there),
            ("who_stops_reading_is_noticed_as_in_a_pipe", who_stops_reading_is_noticed_as_in_a_pipe),
            ("signals_are_passed_on", signals_are_passed_on),
            ("job_stops_and_goes_on", job_stops_and_goes_on),
            ("death_of_either_end_ends_the_other", death_of_either_end_ends_the_other),
            ("slow_reader_holds_the_program", slow_reader_holds_the_program),
        ],
    )
}

fn place() -> PathBuf {
    std::env::var_os(BROKER).expect("the test says it").into()
}

/// As whoever starts jobs does: the far end is a process of its own, here beside the deputy.
fn deputy() -> ExitCode {
    let arguments: Vec<OsString> = std::env::args_os().skip(1).collect();
    let deputy = match Deputy::new(arguments, &place()) {
        Ok(deputy) => deputy,
        Err(error) => {
            eprintln!("{error}");
            return ExitCode::from(126);
        }
    };
    let asked = deputy.request(JobPlace::Any);
    let far = Command::new(std::env::current_exe().expect("this program"))
        .env_clear()
        .env(ROLE, "far")
        .env(BROKER, place())
        .env(FAR_END_VARIABLE, format!("{} {} 1", asked.deputy.number(), asked.token))
        .current_dir("/")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .spawn();
    if let (Ok(far), Some(file)) = (far, std::env::var_os("JOB_FAR_PID")) {
        std::fs::write(file, far.id().to_string()).expect("the test waits for it");
    }
    match deputy.run(OtherNode::new(&place(), 1)) {
        Ok(over) => over.end(),
        Err(error) => {
            eprintln!("{error}");
            ExitCode::from(125)
        }
    }
}

fn far() -> ExitCode {
    let far = FarEnd::new(FarEndOrder::from_environment().expect("said")).expect("one thread");
    match far.run(&place()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("far end: {error}");
            ExitCode::FAILURE
        }
    }
}

struct Place {
    _world: World,
    dir: tempfile::TempDir,
}

impl Place {
    fn new() -> Place {
        let dir = tempfile::tempdir().expect("a directory");
        Place { _world: World::listening(&dir.path().join("broker")), dir }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// The same program, as a job.
    fn job(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(std::env::current_exe().expect("this program"));
        command.args(arguments).env(ROLE, "deputy").env(BROKER, self.dir.path());
        command.env("JOB_FAR_PID", self.path("far")).stderr(Stdio::inherit());
        command
    }

    fn far_pid(&self) -> i32 {
        until("the far end is there", || std::fs::read_to_string(self.path("far")).ok()?.parse().ok())
    }
}

fn native(arguments: &[&str]) -> Command {
    let mut command = Command::new(arguments[0]);
    command.args(&arguments[1..]);
    command
}

fn until<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let begun = Instant::now();
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(begun.elapsed() < LONG, "not within {LONG:?}: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn end(child: &mut Child) -> ExitStatus {
    until("it ends", || child.try_wait().expect("our child"))
}

fn pid(child: &Child) -> Pid {
    Pid::from_child(child)
}

fn bytes(count: usize) -> Vec<u8> {
    let mut state = 1_u64;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 56) as u8
    };
    (0..count).map(|_| next()).collect()
}

fn bytes_come_through_in_both_directions() {
    let place = Place::new();
    for count in [0, 1, 4096, 300_000, 16 << 20] {
        let sent = bytes(count);
        let mut child = place.job(&["cat"]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("it starts");
        let (mut input, mut output) = (child.stdin.take().expect("piped"), child.stdout.take().expect("piped"));
        let writer = std::thread::spawn({
            let sent = sent.clone();
            move || input.write_all(&sent).expect("somebody reads")
        });
        let mut heard = Vec::new();
        output.read_to_end(&mut heard).expect("a pipe");
        writer.join().expect("it wrote");
        assert_eq!(end(&mut child).code(), Some(0));
        assert!(heard == sent, "{count} bytes became {}", heard.len());
    }
    // Files by their bytes, and both output streams.
    std::fs::write(place.path("from"), "line\n").expect("a file");
    let from = std::fs::File::open(place.path("from")).expect("a file");
    let (out, error) = (place.path("out"), place.path("error"));
    let create = |path: &Path| std::fs::File::create(path).expect("a file");
    let mut job = place.job(&["sh", "-c", "cat; echo wrong >&2"]);
    let status = job.stdin(from).stdout(create(&out)).stderr(create(&error)).status().expect("it runs");
    assert!(status.success());
    assert_eq!(std::fs::read_to_string(out).expect("a file"), "line\n");
    assert_eq!(std::fs::read_to_string(error).expect("a file"), "wrong\n");
}

fn ends_are_the_programs() {
    let place = Place::new();
    let programs: &[&[&str]] = &[
        &["true"],
        &["false"],
        &["sh", "-c", "exit 255"],
        &["sh", "-c", "kill -TERM $$"],
        &["sh", "-c", "kill -KILL $$"],
        &["sh", "-c", "kill -SEGV $$"],
    ];
    for program in programs {
        let quiet =
            |mut command: Command| command.stdin(Stdio::null()).stdout(Stdio::null()).status().expect("it runs");
        let (there, here) = (quiet(place.job(program)), quiet(native(program)));
        assert_eq!((there.code(), there.signal()), (here.code(), here.signal()), "{program:?}");
    }
    for (program, status) in [("no-such-program", 127), ("/no/such/program", 127), ("/etc/passwd", 126), ("/", 126)] {
        let done = place.job(&[program]).stdin(Stdio::null()).stdout(Stdio::null()).status().expect("it runs");
        assert_eq!(done.code(), Some(status), "{program}");
    }
}

fn what_is_inherited_is_there() {
    let place = Place::new();
    let script = "pwd; umask; ulimit -n; ulimit -c; echo $SAID; for a in \"$@\"; do echo \"<$a>\"; done; \
                  grep -E 'SigIgn|SigBlk' /proc/self/status";
    let set_up = |command: &mut Command| {
        command.args(["-c", script, "sh", "", "a b", "*", "\u{e4}"]).env("SAID", "two words").current_dir("/usr/lib");
        command.stdin(Stdio::null());
    };
    // A shell without job control sets mask and limit, ignores a signal, and becomes it.
    let around = "umask 027; ulimit -n 321; ulimit -c 0; trap '' HUP; exec \"$0\" \"$@\"";
    let mut here = Command::new("sh");
    here.args(["-c", around, "sh"]);
    set_up(&mut here);
    let deputy = std::env::current_exe().expect("this program");
    let mut there = Command::new("sh");
    there.args(["-c", around]).arg(deputy).arg("sh").env(ROLE, "deputy").env(BROKER, place.dir.path());
    set_up(&mut there);
    let text = |mut command: Command| String::from_utf8(command.output().expect("it runs").stdout).expect("text");
    let (here, there) = (text(here), text(there));
    assert!(here.contains("321") && here.contains("two words"), "{here}");
    assert_eq!(there, here);
}

fn who_stops_reading_is_noticed_as_in_a_pipe() {
    let place = Place::new();
    // The program reads ten bytes of endless ones.
    let mut job =
        place.job(&["head", "-c", "10"]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("it starts");
    let mut input = job.stdin.take().expect("piped");
    let refused = until("nobody reads", || input.write_all(&[b'x'; 65536]).err());
    assert_eq!(refused.kind(), std::io::ErrorKind::BrokenPipe);
    let mut heard = Vec::new();
    job.stdout.take().expect("piped").read_to_end(&mut heard).expect("a pipe");
    assert_eq!((end(&mut job).code(), heard.len()), (Some(0), 10));
    // The program writes endlessly to somebody who leaves.
    let mut job = place.job(&["yes"]).stdin(Stdio::null()).stdout(Stdio::piped()).spawn().expect("it starts");
    job.stdout.take().expect("piped").read_exact(&mut [0; 100]).expect("it writes");
    assert_eq!(end(&mut job).signal(), Some(libc::SIGPIPE));
}

fn signals_are_passed_on() {
    let place = Place::new();
    for (signal, name) in [(Signal::TERM, "TERM"), (Signal::INT, "INT"), (Signal::HUP, "HUP"), (Signal::USR1, "USR1")] {
        let script = format!("trap 'echo heard; exit 9' {name}; echo ready; while :; do sleep 0.01; done");
        let mut job =
            place.job(&["sh", "-c", &script]).stdin(Stdio::null()).stdout(Stdio::piped()).spawn().expect("it starts");
        let mut output = job.stdout.take().expect("piped");
        let mut ready = [0; 6];
        output.read_exact(&mut ready).expect("it says so");
        kill_process(pid(&job), signal).expect("our child");
        assert_eq!(end(&mut job).code(), Some(9), "{name}");
        let mut rest = String::new();
        output.read_to_string(&mut rest).expect("text");
        assert_eq!(rest, "heard\n");
    }
    // Without a trap it dies of it, and so does the deputy.
    let mut job = place.job(&["sleep", "100"]).stdin(Stdio::null()).stdout(Stdio::null()).spawn().expect("it starts");
    until("it runs", || has_child(place.far_pid(), "sleep"));
    kill_process(pid(&job), Signal::TERM).expect("our child");
    assert_eq!(end(&mut job).signal(), Some(libc::SIGTERM));
}

fn has_child(parent: i32, name: &str) -> Option<i32> {
    let list = std::fs::read_to_string(format!("/proc/{parent}/task/{parent}/children")).ok()?;
    let mut children = list.split_whitespace().filter_map(|word| word.parse::<i32>().ok());
    children.find(|child| std::fs::read_to_string(format!("/proc/{child}/comm")).is_ok_and(|comm| comm.trim() == name))
}

fn state(pid: i32) -> Option<char> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit_once(") ")?.1.chars().next()
}

fn job_stops_and_goes_on() {
    let place = Place::new();
    let mut job = place.job(&["sleep", "100"]).stdin(Stdio::null()).stdout(Stdio::null()).spawn().expect("it starts");
    let program = until("it runs", || has_child(place.far_pid(), "sleep"));
    for _ in 0..3 {
        kill_process(pid(&job), Signal::TSTP).expect("our child");
        until("the deputy has stopped", || {
            let status: WaitStatus =
                waitpid(Some(pid(&job)), WaitOptions::UNTRACED | WaitOptions::NOHANG).expect("ours")?.1;
            status.stopped().then_some(())
        });
        assert_eq!(state(program), Some('T'));
        kill_process(pid(&job), Signal::CONT).expect("our child");
        until("the program goes on", || (state(program) == Some('S')).then_some(()));
    }
    // Stopped by itself, from there.
    kill_process(Pid::from_raw(program).expect("a number"), Signal::STOP).expect("ours");
    until("the deputy has stopped", || (state(job.id() as i32) == Some('T')).then_some(()));
    kill_process(pid(&job), Signal::CONT).expect("our child");
    until("the program goes on", || (state(program) == Some('S')).then_some(()));
    kill_process(pid(&job), Signal::TERM).expect("our child");
    assert_eq!(end(&mut job).signal(), Some(libc::SIGTERM));
}

fn death_of_either_end_ends_the_other() {
    let place = Place::new();
    let begin = || {
        let _ = std::fs::remove_file(place.path("far"));
        let job = place.job(&["sleep", "100"]).stdin(Stdio::null()).stdout(Stdio::null()).spawn().expect("it starts");
        let far = place.far_pid();
        (job, far, until("it runs", || has_child(far, "sleep")))
    };
    let is_gone = |pid: i32| matches!(state(pid), None | Some('Z')).then_some(());
    let (mut job, far, program) = begin();
    kill_process(pid(&job), Signal::KILL).expect("our child");
    assert_eq!(end(&mut job).signal(), Some(libc::SIGKILL));
    until("the program is gone", || is_gone(program));
    until("the far end is gone", || is_gone(far));
    let (mut job, far, program) = begin();
    kill_process(Pid::from_raw(far).expect("a number"), Signal::KILL).expect("ours");
    let begun = Instant::now();
    assert_eq!(end(&mut job).code(), Some(125));
    assert!(begun.elapsed() < Duration::from_secs(1), "{:?}", begun.elapsed());
    until("the program is gone", || is_gone(program));
}

fn slow_reader_holds_the_program() {
    let place = Place::new();
    let script = "i=0; while [ $i -lt 400 ]; do head -c 65536 /dev/zero; i=$((i+1)); echo $i >&2; done";
    let mut command = place.job(&["sh", "-c", script]);
    let mut job =
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it starts");
    let mut progress = job.stderr.take().expect("piped");
    let (say, said) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let mut text = [0; 4096];
        while let Ok(got @ 1..) = progress.read(&mut text) {
            let lines = text[..got].iter().filter(|byte| **byte == b'\n').count();
            if say.send(lines).is_err() {
                return;
            }
        }
    });
    // Pipes of both nodes and one request are all that lies between.
    let mut lines = 0;
    while let Ok(more) = said.recv_timeout(Duration::from_secs(1)) {
        lines += more;
    }
    assert!((1..40).contains(&lines), "{lines} pieces of 64 KiB lie somewhere");
    let mut all = Vec::new();
    job.stdout.take().expect("piped").read_to_end(&mut all).expect("a pipe");
    assert_eq!((end(&mut job).code(), all.len()), (Some(0), 400 * 65536));
}
