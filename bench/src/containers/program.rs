//! What runs natively, and in the container on a node of it. Each writes its figures as JSON, in one line.

use std::ffi::OsString;
use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use ipc::WaitMode;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, Signal, WaitOptions, getpid, kill_process, test_kill_process, waitpid};
use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};

pub use super::tools::Classes;
use super::tools::User;
use super::{files, tools, tree};
use crate::Outcome;
use crate::mechanism::{Caller, STOP, m3ipc};
use crate::role::new_latencies;

/// Where programs of a container reach its broker.
const BROKER: &str = "/run/dvs/broker";
const PIECE_BYTES: usize = 64 << 10;
/// Between signals: each has been heard before the next one.
const PAUSE: Duration = Duration::from_millis(3);
const HEARING_SECONDS: i64 = 20;
/// Turns between two looks at the clock, of what takes less than a microsecond.
const TURNS_PER_LOOK: u64 = 64;

#[derive(clap::Subcommand)]
pub enum Program {
    /// Rates of what never crosses nodes.
    Basics {
        #[arg(long)]
        seconds: f64,
    },
    /// Children that sleep, until this one's input ends.
    Sleepers { count: u32 },
    /// Runs a program so often; milliseconds of each.
    Times {
        count: u32,
        #[arg(last = true)]
        program: Vec<OsString>,
    },
    /// Bytes into a program's input, 64 KiB at a time; MB/s until it has ended.
    Pour {
        bytes: u64,
        #[arg(last = true)]
        program: Vec<OsString>,
    },
    /// Reads its input to the end.
    Swallow,
    /// Hears so many signals; says when.
    Hear { count: u32 },
    /// Sends so many; says when.
    Tell { pid: i32, count: u32 },
    /// Answers M3-IPC messages until it is told to stop.
    Echo,
    /// Calls it; microseconds at the median.
    Call {
        endpoint: String,
        #[arg(long)]
        seconds: f64,
    },
    /// A block after the other, each made durable; microseconds at the median.
    DurableWrites { file: PathBuf, count: u32 },
    /// A long file; MB/s until it is durable.
    LongFile { file: PathBuf, bytes: u64 },
    /// A file from its beginning to its end; MB/s.
    ReadFile { file: PathBuf },
    /// Small files; so many a second.
    SmallFiles { directory: PathBuf, count: u32 },
    /// Makes a repository of so many small files, and an archive of it.
    PrepareTree { directory: PathBuf, count: u32 },
    /// Makes empty files, so many to a directory.
    ManyFiles { directory: PathBuf, count: u32, each: u32 },
    /// What people do with it.
    Tree { directory: PathBuf, count: u32 },
    /// Makes files once its input ends; milliseconds.
    MakeFiles { directory: PathBuf, name: String, count: u32 },
    /// PostgreSQL with its data there; transactions a second.
    Database { directory: PathBuf, seconds: u32, user: User },
    /// Classes of stress-ng; operations a second of each.
    Classes { directory: PathBuf, classes: Vec<String> },
    /// Writes until its input ends; milliseconds of the longest write.
    LongestPause { file: PathBuf },
    /// A server that takes its time to start, and answers every request of HTTP.
    Serve {
        #[arg(long)]
        port: u16,
        #[arg(long)]
        after_ms: u64,
    },
}

/// Of [`Program::Basics`], a second.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Basics {
    pub fork: f64,
    pub exec: f64,
    /// Round trips of a byte between two processes.
    pub pipe: f64,
    pub open: f64,
    pub kill: f64,
    /// Under a filter of system calls that lets all pass.
    pub kill_under_a_filter: f64,
}

pub fn run(program: &Program) -> Outcome<()> {
    match program {
        Program::Basics { seconds } => tell(&basics(Duration::from_secs_f64(*seconds))?),
        Program::Sleepers { count } => sleepers(*count),
        Program::Times { count, program } => tell(&times(*count, program)?),
        Program::Pour { bytes, program } => tell(&pour(*bytes, program)?),
        Program::Swallow => swallow(),
        Program::Hear { count } => hear(*count),
        Program::Tell { pid, count } => tell(&signal(*pid, *count)?),
        Program::Echo => {
            let ready = |endpoint: &str| {
                println!("{endpoint}");
                Ok(())
            };
            m3ipc::serve(Path::new(BROKER), WaitMode::default(), 1, ready)
        }
        Program::Call { endpoint, seconds } => tell(&call(endpoint, Duration::from_secs_f64(*seconds))?),
        Program::DurableWrites { file, count } => tell(&files::durable_writes(file, *count)?),
        Program::LongFile { file, bytes } => tell(&files::long_file(file, *bytes)?),
        Program::ReadFile { file } => tell(&files::read_file(file)?),
        Program::SmallFiles { directory, count } => tell(&files::small_files(directory, *count)?),
        Program::PrepareTree { directory, count } => tree::prepare(directory, *count),
        Program::ManyFiles { directory, count, each } => files::many_files(directory, *count, *each),
        Program::Tree { directory, count } => tell(&tree::measure(directory, *count)?),
        Program::MakeFiles { directory, name, count } => tell(&tree::make_files(directory, name, *count)?),
        Program::Database { directory, seconds, user } => tell(&tools::database(directory, *seconds, *user)?),
        Program::Classes { directory, classes } => tell(&tools::classes(directory, classes)?),
        Program::LongestPause { file } => tell(&files::longest_pause(file)?),
        Program::Serve { port, after_ms } => serve(*port, Duration::from_millis(*after_ms)),
    }
}

fn tell(figures: &impl Serialize) -> Outcome<()> {
    println!("{}", serde_json::to_string(figures)?);
    Ok(())
}

fn basics(time: Duration) -> Outcome<Basics> {
    Ok(Basics {
        fork: rate(time, 1, &mut || {
            waitpid(Some(fork_and(|| 0)?), WaitOptions::empty())?;
            Ok(())
        })?,
        exec: rate(time, 1, &mut || {
            let status = Command::new("/bin/true").stdin(Stdio::null()).status()?;
            if status.success() { Ok(()) } else { Err(format!("/bin/true: {status}").into()) }
        })?,
        pipe: pipe_trips(time)?,
        open: rate(time, TURNS_PER_LOOK, &mut || Ok(drop(std::fs::File::open("/etc/passwd")?)))?,
        kill: rate(time, TURNS_PER_LOOK, &mut || Ok(test_kill_process(getpid())?))?,
        kill_under_a_filter: {
            let_all_pass()?;
            rate(time, TURNS_PER_LOOK, &mut || Ok(test_kill_process(getpid())?))?
        },
    })
}

/// How often a second, after a third of the time to warm up.
fn rate(time: Duration, per_look: u64, turn: &mut dyn FnMut() -> Outcome<()>) -> Outcome<f64> {
    let mut turns_for = |time: Duration| -> Outcome<f64> {
        let (begun, mut turns) = (Instant::now(), 0_u64);
        while begun.elapsed() < time {
            for _ in 0..per_look {
                turn()?;
            }
            turns += per_look;
        }
        Ok(turns as f64 / begun.elapsed().as_secs_f64())
    };
    turns_for(time / 3)?;
    turns_for(time)
}

/// A child that does this and ends.
fn fork_and(work: impl FnOnce() -> i32) -> Outcome<Pid> {
    // SAFETY: (1) there is one thread, so no lock is held by somebody who does not exist in the child.
    match unsafe { libc::fork() } {
        0 => {
            let status = work();
            // SAFETY: (1) ends this process at once; nothing of the parent's is written twice.
            unsafe { libc::_exit(status) }
        }
        pid => Pid::from_raw(pid).filter(|_| pid > 0).ok_or_else(|| std::io::Error::last_os_error().into()),
    }
}

fn pipe_trips(time: Duration) -> Outcome<f64> {
    let ((there, mut to), (mut from, back)) = (std::io::pipe()?, std::io::pipe()?);
    let child = {
        let (mut there, mut back) = (there, back);
        let (closed_to, closed_from) = (to.try_clone()?, from.try_clone()?);
        let child = fork_and(|| {
            let mut byte = [0];
            // SAFETY: (1) both are this child's own copies and not used by it.
            unsafe {
                use std::os::fd::AsRawFd;
                for fd in [closed_to.as_raw_fd(), closed_from.as_raw_fd(), to.as_raw_fd(), from.as_raw_fd()] {
                    libc::close(fd);
                }
            }
            while there.read_exact(&mut byte).is_ok() && back.write_all(&byte).is_ok() {}
            0
        })?;
        drop((closed_to, closed_from));
        child
    };
    let trips = rate(time, TURNS_PER_LOOK, &mut || {
        let mut byte = [7];
        to.write_all(&byte)?;
        Ok(from.read_exact(&mut byte)?)
    })?;
    drop((to, from));
    waitpid(Some(child), WaitOptions::empty())?;
    Ok(trips)
}

/// Of this process, from now on.
fn let_all_pass() -> Outcome<()> {
    let mut steps = [libc::sock_filter { code: 0x06, jt: 0, jf: 0, k: libc::SECCOMP_RET_ALLOW }];
    let program = libc::sock_fprog { len: 1, filter: steps.as_mut_ptr() };
    // SAFETY: (1) plain numbers; (2) the program and its step live across the call, which copies them.
    let done = unsafe {
        libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
            && libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program) == 0
    };
    if done { Ok(()) } else { Err(std::io::Error::last_os_error().into()) }
}

fn sleepers(count: u32) -> Outcome<()> {
    for _ in 0..count {
        fork_and(|| {
            // SAFETY: (1) plain numbers.
            unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
            loop {
                std::thread::park();
            }
        })?;
    }
    println!("asleep");
    swallow()
}

fn command_of(program: &[OsString]) -> Outcome<Command> {
    let (first, rest) = program.split_first().ok_or("no program")?;
    let mut command = Command::new(first);
    command.args(rest).stdin(Stdio::null()).stdout(Stdio::null());
    Ok(command)
}

fn times(count: u32, program: &[OsString]) -> Outcome<Vec<f64>> {
    let mut command = command_of(program)?;
    let mut time = || -> Outcome<f64> {
        let begun = Instant::now();
        let status = command.status()?;
        if !status.success() {
            return Err(format!("{program:?}: {status}").into());
        }
        Ok(begun.elapsed().as_secs_f64() * 1e3)
    };
    (0..count).map(|_| time()).collect()
}

fn pour(bytes: u64, program: &[OsString]) -> Outcome<f64> {
    let mut child = command_of(program)?.stdin(Stdio::piped()).spawn()?;
    let mut input = child.stdin.take().ok_or("a program without input")?;
    let piece = vec![7; PIECE_BYTES];
    // It has begun when it has taken this.
    input.write_all(&piece)?;
    let begun = Instant::now();
    for _ in 0..bytes / PIECE_BYTES as u64 {
        input.write_all(&piece)?;
    }
    drop(input);
    let status = child.wait()?;
    if !status.success() {
        return Err(format!("{program:?}: {status}").into());
    }
    Ok(bytes as f64 / 1e6 / begun.elapsed().as_secs_f64())
}

fn swallow() -> Outcome<()> {
    let (mut input, mut piece) = (std::io::stdin().lock(), vec![0; PIECE_BYTES]);
    while input.read(&mut piece)? > 0 {}
    Ok(())
}

fn now_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// By a descriptor: what is noted includes waking and reading.
fn hear(count: u32) -> Outcome<()> {
    let signals = sys::signals::open(&[libc::SIGUSR1])?;
    println!("{}", getpid().as_raw_nonzero());
    let limit = Timespec { tv_sec: HEARING_SECONDS, tv_nsec: 0 };
    let mut heard = Vec::new();
    while heard.len() < count as usize && poll(&mut [PollFd::new(&signals, PollFlags::IN)], Some(&limit))? > 0 {
        sys::signals::next(&signals)?;
        heard.push(now_ns());
    }
    tell(&heard)
}

fn signal(pid: i32, count: u32) -> Outcome<Vec<u64>> {
    let pid = Pid::from_raw(pid).ok_or("no process")?;
    let time = || -> Outcome<u64> {
        std::thread::sleep(PAUSE);
        let at = now_ns();
        kill_process(pid, Signal::USR1)?;
        Ok(at)
    };
    (0..count).map(|_| time()).collect()
}

fn call(endpoint: &str, time: Duration) -> Outcome<f64> {
    let mut caller = m3ipc::connect(Path::new(BROKER), endpoint, WaitMode::default())?;
    let mut latencies = new_latencies()?;
    let (begun, mut number) = (Instant::now(), 0);
    while begun.elapsed() < time {
        let at = Instant::now();
        number += 1;
        if caller.call(number)? != number {
            return Err("an answer to another question".into());
        }
        latencies.saturating_record(at.elapsed().as_nanos() as u64);
    }
    caller.call(STOP)?;
    Ok(latencies.value_at_quantile(0.5) as f64 / 1e3)
}

fn serve(port: u16, after: Duration) -> Outcome<()> {
    std::thread::sleep(after);
    let listener = TcpListener::bind((Ipv4Addr::UNSPECIFIED, port))?;
    loop {
        let mut stream = match listener.accept() {
            Ok((stream, _)) => stream,
            Err(error) if matches!(error.kind(), ErrorKind::Interrupted | ErrorKind::ConnectionAborted) => continue,
            Err(error) => return Err(error.into()),
        };
        let mut request = [0; 1024];
        // Whoever goes away before the answer is not waited for.
        let _ = stream.set_read_timeout(Some(Duration::from_secs(1)));
        let _ = stream.read(&mut request);
        let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok");
    }
}
