//! `on`: starts a program on another node of the container, and stays in its place (`docs/design/jobs.md`).
//!
//! It is this binary under another name, in every container. Its statuses are those of the program; its own are 125,
//! and as a shell's 126 and 127.

use std::ffi::OsString;
use std::io::Write;
use std::path::Path;
use std::process::ExitCode;

use clap::Parser;
use clap::error::ErrorKind;
use job::door::{self, FarEndOrder, JobNode, OtherNode};
use job::{Deputy, FarEnd, JobEnd};
use rustix::fs::{Mode, OFlags, open};
use rustix::process::{Pid, Signal, WaitOptions, waitpid};
use sys::child::{Forked, Parentage, exit_now, fork};
use vos_api::job_door::{DoorAnswer, FAR_END, JobPlace};

use crate::errors::Failure;

/// What programs see of DVS.
const DIR: &str = "/run/dvs";
/// As of `env`, `timeout` and others who run a program: its own trouble, not the program's.
const OWN_TROUBLE: u8 = 125;
const NOT_RUNNABLE: u8 = 126;
const NOT_FOUND: u8 = 127;

/// Run a program on another node of this container, as if it ran here
#[derive(Parser, Debug)]
#[command(
    name = "on",
    disable_version_flag = true,
    after_help = "\
Examples:
  on n2 make test                      as here: status, Ctrl-C, pipes, directory, environment, limits
  producer | on n2 -- worker | on n3 -- consumer
  on least -n -- simulate 7 &          where there is the least to do; reads nothing
  on n2 -- bash                        a shell there, on this terminal
  on all -- uptime                     on every node, one line after the other
  on --list                            the nodes

Exit status: the program's. 125: the job did not begin, or was lost with its node; 126, 127: as of a shell.
Descriptors 0, 1, 2 go along, and others that an argument names as /dev/fd/N: terminals, pipes, sockets, files."
)]
struct On {
    /// Name of a node, or any (by chance), least (the one with the least to do), all
    #[arg(required_unless_present_any = ["list", "spread"])]
    place: Option<String>,
    /// Standard input is empty; as ssh -n
    #[arg(short = 'n')]
    no_input: bool,
    /// Print the container's nodes, and which one this is
    #[arg(long)]
    list: bool,
    /// In the place of a program of `dvs run --spread`, which need not go anywhere
    #[arg(long, hide = true)]
    spread: bool,
    /// The program and its arguments
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "PROGRAM")]
    command: Vec<OsString>,
}

/// `None`: this process was not called by a name of a job's ends.
pub fn main_by_name() -> Option<ExitCode> {
    let name = std::env::args_os().next()?;
    match Path::new(&name).file_name()?.to_str()? {
        "on" => Some(main()),
        FAR_END => Some(far_end()),
        _ => None,
    }
}

fn main() -> ExitCode {
    let on = match On::try_parse() {
        Ok(on) => on,
        Err(error) if matches!(error.kind(), ErrorKind::DisplayHelp) => {
            let _ = error.print();
            return ExitCode::SUCCESS;
        }
        Err(error) => {
            let text = error.render().to_string();
            let what = text.lines().next().unwrap_or_default().trim_start_matches("error: ").to_owned();
            return complain(&trouble(what).hint("on --help"));
        }
    };
    match execute(on) {
        Ok(status) => status,
        Err(failure) => complain(&failure),
    }
}

fn complain(failure: &Failure) -> ExitCode {
    let mut text = Vec::new();
    let _ = failure.print(&mut text);
    let text = String::from_utf8_lossy(&text);
    // When standard error is closed too there is nobody to tell.
    let _ = std::io::stderr().lock().write_all(text.replacen("dvs: ", "on: ", 1).as_bytes());
    ExitCode::from(failure.status)
}

fn trouble(what: impl Into<String>) -> Failure {
    Failure::new(what).status(OWN_TROUBLE)
}

fn execute(on: On) -> Result<ExitCode, Failure> {
    if on.spread {
        return spread(on.place.into_iter().map(OsString::from).chain(on.command).collect());
    }
    let nodes = door::nodes(Path::new(DIR)).map_err(|error| {
        trouble("this is no container of DVS, or one of an older node")
            .because(&error)
            .hint("dvs run CONTAINER -- on --list")
    })?;
    let place = match (on.list, on.place) {
        (false, Some(place)) => place,
        _ => return list(&nodes),
    };
    if on.command.is_empty() {
        return Err(trouble("there is no program to run").hint(format!("on {place} -- PROGRAM ARGUMENTS")));
    }
    if on.no_input {
        no_input()?;
    }
    let found = nodes.iter().find(|node| node.name == place);
    let place = match (found, place.as_str()) {
        (Some(node), _) if node.is_here => return Err(run_here(on.command)),
        (Some(node), _) => JobPlace::Node(node.position),
        (None, "any" | "least") if nodes.len() == 1 => return Err(run_here(on.command)),
        (None, "any") => JobPlace::Any,
        (None, "least") => JobPlace::Least { most: 0 },
        (None, "all") => return run_on_all(&nodes, &on.command),
        (None, _) => {
            let names: Vec<&str> = nodes.iter().map(|node| node.name.as_str()).collect();
            let failure = trouble(format!("the container has no node '{place}'"));
            return Err(failure.hint(format!("one of {}, or any, least, all", names.join(", "))));
        }
    };
    run_as_deputy(place, &nodes, on.command)
}

/// In the place of a program that knows nothing of nodes: whatever speaks against another one, it runs here.
fn spread(command: Vec<OsString>) -> Result<ExitCode, Failure> {
    let Some(most) = goes_elsewhere() else { return Err(run_here(command)) };
    let nodes = door::nodes(Path::new(DIR)).unwrap_or_default();
    if rustix::termios::isatty(rustix::stdio::stdin()) {
        // Several that run at once would take each other's keys.
        no_input()?;
    }
    let Ok(deputy) = Deputy::new(command.clone(), Path::new(DIR)) else { return Err(run_here(command)) };
    match door::ask(Path::new(DIR), &deputy.request(JobPlace::Least { most })) {
        Ok(DoorAnswer::Started(node)) => run_deputy(deputy, &nodes, node, command.first()),
        _ => Err(stay(&deputy, command.first())),
    }
}

/// `None`: this program stays. Else how many jobs a node may have.
fn goes_elsewhere() -> Option<u32> {
    let rules: spread::Rules = std::env::var(spread::VARIABLE).ok()?.parse().ok()?;
    // What has another end may have other readers; and what is not in the tree is not there.
    let input = rustix::fs::fstat(rustix::stdio::stdin()).ok()?;
    let kind = rustix::fs::FileType::from_raw_mode(input.st_mode);
    let is_shared = matches!(kind, rustix::fs::FileType::Fifo | rustix::fs::FileType::Socket);
    // Also below a root that is a directory of the tree.
    let device = |path: &str| rustix::fs::stat(path).map(|about| about.st_dev);
    let is_in_tree = device(".").is_ok_and(|own| device("/dc") == Ok(own));
    let text = std::fs::read_to_string("/proc/loadavg").ok()?;
    let running: f64 = text.split(' ').nth(3)?.split('/').next()?.parse().ok()?;
    let cpus = std::thread::available_parallelism().map_or(1, std::num::NonZero::get) as f64;
    // This process is one of those that run.
    let is_idle = (running - 1.0) / cpus < rules.load;
    (!is_shared && is_in_tree && !is_idle).then_some(rules.most)
}

fn list(nodes: &[JobNode]) -> Result<ExitCode, Failure> {
    let mut out = std::io::stdout().lock();
    for node in nodes {
        let here = match (node.is_here, node.is_lost) {
            (true, _) => " (here)",
            (false, true) => " (lost)",
            (false, false) => "",
        };
        writeln!(out, "{}{here}", node.name)?;
    }
    Ok(ExitCode::SUCCESS)
}

fn no_input() -> Result<(), Failure> {
    let opened = open("/dev/null", OFlags::RDONLY, Mode::empty());
    let done = opened.and_then(|null| rustix::stdio::dup2_stdin(&null));
    done.map_err(|cause| trouble("standard input cannot be made empty").because(&std::io::Error::from(cause)))
}

/// Nothing crosses nodes: this process becomes the program.
fn run_here(command: Vec<OsString>) -> Failure {
    use std::os::unix::process::CommandExt;
    let Some((program, arguments)) = command.split_first() else { return trouble("there is no program to run") };
    let error = std::process::Command::new(program).args(arguments).exec();
    not_run(Some(program), &error)
}

fn not_run(program: Option<&OsString>, error: &std::io::Error) -> Failure {
    let program = program.map_or(std::borrow::Cow::Borrowed(""), |program| program.to_string_lossy());
    let status = if error.kind() == std::io::ErrorKind::NotFound { NOT_FOUND } else { NOT_RUNNABLE };
    trouble(format!("'{program}' cannot be run")).because(error).status(status)
}

fn run_as_deputy(place: JobPlace, nodes: &[JobNode], command: Vec<OsString>) -> Result<ExitCode, Failure> {
    let program = command.first().cloned().unwrap_or_default();
    let deputy = Deputy::new(command, Path::new(DIR))
        .map_err(|error| trouble("this job cannot go to another node").because(&error).hint("on --help"))?;
    let answer = door::ask(Path::new(DIR), &deputy.request(place))
        .map_err(|error| trouble("no job can be started").because(&error).hint("a container over several nodes"))?;
    let node = match answer {
        DoorAnswer::Started(node) => node,
        DoorAnswer::Here(_) => return Err(stay(&deputy, Some(&program))),
        DoorAnswer::Refused(why) => {
            let (what, hint) = door::refusal_words(why);
            return Err(trouble(what).hint(hint));
        }
    };
    run_deputy(deputy, nodes, node, Some(&program))
}

/// This process becomes the program after all.
fn stay(deputy: &Deputy, program: Option<&OsString>) -> Failure {
    not_run(program, &std::io::Error::from(job::run_here(deputy.description())))
}

fn run_deputy(deputy: Deputy, nodes: &[JobNode], node: u32, program: Option<&OsString>) -> Result<ExitCode, Failure> {
    let name = nodes.iter().find(|known| known.position == node).map_or("that node", |known| known.name.as_str());
    match deputy.run(OtherNode::new(Path::new(DIR), node)) {
        Ok(JobEnd::Lost) => {
            let what =
                format!("the job is lost: {name} is gone, or its far end there; the program does not run any more");
            Err(trouble(what).hint("on any"))
        }
        Ok(JobEnd::Refused(errno)) => Err(not_run(program, &errno.into())),
        Ok(end) => end.end(),
        Err(error) => Err(trouble(format!("the job did not begin on {name}")).because(&error)),
    }
}

/// A deputy for each node, in processes of their own. The status is 0 when all of theirs are, else the largest.
fn run_on_all(nodes: &[JobNode], command: &[OsString]) -> Result<ExitCode, Failure> {
    // One input cannot be read by all.
    no_input()?;
    let mut jobs = Vec::new();
    for node in nodes {
        match fork(Parentage::Mine) {
            Ok(Forked::Parent { pid, .. }) => jobs.push((node.name.as_str(), pid)),
            Ok(Forked::Child) => {
                let _ = rustix::process::set_parent_process_death_signal(Some(Signal::TERM));
                let done = if node.is_here {
                    Err(run_here(command.to_vec()))
                } else {
                    run_as_deputy(JobPlace::Node(node.position), nodes, command.to_vec())
                };
                let status = done.err().map_or(0, |failure| {
                    complain(&failure);
                    failure.status
                });
                exit_now(i32::from(status))
            }
            Err(error) => {
                complain(&trouble(format!("no process can be made for {}", node.name)).because(&error));
            }
        }
    }
    let mut worst = if jobs.len() < nodes.len() { OWN_TROUBLE } else { 0 };
    for (name, pid) in jobs {
        let status = loop {
            match waitpid(Pid::from_raw(pid as i32), WaitOptions::empty()) {
                Ok(Some((_, status))) => break Some(status),
                Ok(None) | Err(rustix::io::Errno::INTR) => {}
                Err(_) => break None,
            }
        };
        let number = status
            .and_then(|status| status.exit_status().or_else(|| status.terminating_signal().map(|signal| 128 + signal)));
        let number = number.and_then(|number| u8::try_from(number).ok()).unwrap_or(OWN_TROUBLE);
        if number != 0 {
            let _ = writeln!(std::io::stderr().lock(), "on: {name}: exit status {number}");
        }
        worst = worst.max(number);
    }
    Ok(ExitCode::from(worst))
}

fn far_end() -> ExitCode {
    let Some(order) = FarEndOrder::from_environment() else {
        return complain(&trouble("a far end is started by the node, for a deputy"));
    };
    let ended = FarEnd::new(order).and_then(|far| far.run(Path::new(DIR)));
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => complain(&trouble("the far end of a job ended").because(&error)),
    }
}
