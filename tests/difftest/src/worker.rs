//! The process that makes the calls: a line on standard input is a call, a line on standard output what came of it.
//!
//! The first process only starts the second and waits for it, again and again: so that a program of calls can have its
//! process exit, which gives back its locks, while those who ask keep their pipes.
//!
//! An answer is `= VALUE DETAIL…`: the call's value or the negative number of its error, and words of which each must
//! be as the oracle's. Whatever else is printed (by a harness that started the worker) is no answer.

mod raw;
mod together;

use std::io::{BufRead, Write};
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::program::{Call, NAMES, parsed_command};
use raw::Process;

/// In the environment: this process is a worker, `first` or `second`.
pub const WORKER: &str = "DVS_DIFFTEST_WORKER";
/// In the environment, for who cannot start it there: the directory of the tree.
pub const FROM: &str = "DVS_DIFFTEST_FROM";
/// Longer than any wait of a gate or server for what comes next; shorter than the second for which a kernel believes
/// names.
const PAUSE: Duration = Duration::from_millis(600);
/// How the second process says that it ends because the program wants it.
const EXITED: i32 = 77;

/// Is a worker until nobody asks any more, if the environment says that this is one. Whoever calls it names the
/// arguments with which this binary comes here again.
pub fn be_worker(arguments: &[&str]) {
    match std::env::var(WORKER).as_deref() {
        Ok("first") => while second(arguments) == Some(EXITED) {},
        Ok(_) => serve(),
        Err(_) => {}
    }
}

fn second(arguments: &[&str]) -> Option<i32> {
    let this = std::env::current_exe().ok()?;
    let mut command = Command::new(this);
    command.args(arguments).env(WORKER, "second").stdin(Stdio::inherit()).stdout(Stdio::inherit());
    command.status().ok()?.code()
}

fn serve() {
    let mut process = Process::new().expect("room for mappings");
    say("= 0 ready");
    for line in std::io::stdin().lock().lines().map_while(Result::ok) {
        let answer = match line.as_str() {
            "state" => process.state(),
            "tree" => format!("0 {}", raw::tree()),
            _ => match line.split_once(' ') {
                Some(("begin", directory)) => format!("{}", process.begin(directory)),
                Some(("make", directory)) => format!("{}", raw::make(directory)),
                Some(("crowd", what)) => together::take_part(what),
                Some(("clear", directory)) => format!("{}", process.clear(directory)),
                Some(("look", "state")) => {
                    process.look_at_maps();
                    "0".to_owned()
                }
                Some(("look", command)) => {
                    let (call, args) = parsed_command(command).unwrap_or_else(|| panic!("not a call: {command}"));
                    process.look(call, &args);
                    "0".to_owned()
                }
                Some(("room", map)) => process.room(map.parse().unwrap_or(0)).to_string(),
                _ => match parsed_command(&line) {
                    Some((Call::Exit, _)) => std::process::exit(EXITED),
                    Some((call, args)) => execute(&mut process, call, &args),
                    None => panic!("not a call: {line}"),
                },
            },
        };
        say(&format!("= {answer}"));
    }
    // Whoever waits for this process ends as well.
    std::process::exit(0);
}

fn say(line: &str) {
    let mut out = std::io::stdout().lock();
    // One write: a harness prints to the same pipe.
    let _ = out.write_all(format!("{line}\n").as_bytes()).and_then(|()| out.flush());
}

fn execute(process: &mut Process, call: Call, args: &[i64]) -> String {
    let file = |at: usize| process.files[args[at] as usize];
    let name = |at: usize| NAMES[args[at] as usize];
    match call {
        Call::Open => process.open_name(args[0], None, name(1), args[2], args[3]),
        Call::OpenAt => process.open_name(args[0], Some(args[1]), name(2), args[3], args[4]),
        Call::Reopen => process.reopen(args[0], args[1], args[2]),
        Call::Close => process.close(args[0]),
        Call::Dup => process.dup(args[0], args[1]),
        Call::Stat => raw::stat(name(0), 0),
        Call::Lstat => raw::stat(name(0), libc::AT_SYMLINK_NOFOLLOW),
        Call::Fstat => raw::fstat(file(0)),
        Call::Pread => raw::pread(file(0), args[1], args[2]),
        Call::Pwrite => raw::pwrite(file(0), args[1], args[2], args[3]),
        Call::Read => raw::read(file(0), args[1]),
        Call::Write => raw::write(file(0), args[1], args[2]),
        Call::Seek => raw::seek(file(0), args[1], args[2]),
        Call::Copy => raw::copy(file(0), args[1], file(2), args[3], args[4]),
        Call::Fsync => raw::fsync(file(0)),
        Call::Fdatasync => raw::fdatasync(file(0)),
        Call::Ftruncate => raw::ftruncate(file(0), args[1]),
        Call::Truncate => raw::truncate(name(0), args[1]),
        Call::Allocate => raw::allocate(file(0), args[1], args[2], args[3]),
        Call::Map => process.map(args[0], args[1], args[2], args[3], args[4]),
        Call::Load => process.load(args[0], args[1], args[2]),
        Call::Store => process.store(args[0], args[1], args[2], args[3]),
        Call::Unmap => process.unmap(args[0]),
        Call::Rename => raw::rename(name(0), name(1), args[2]),
        Call::Unlink => raw::unlink(name(0), 0),
        Call::Link => raw::link(name(0), name(1)),
        Call::LinkFile => raw::link_file(file(0), name(1)),
        Call::Symlink => raw::symlink(name(0), name(1)),
        Call::Readlink => raw::readlink(name(0)),
        Call::Socket => raw::socket(name(0), args[1]),
        Call::Mkdir => raw::mkdir(name(0), args[1]),
        Call::Rmdir => raw::unlink(name(0), libc::AT_REMOVEDIR),
        Call::List => raw::list(name(0)),
        Call::ListFile => raw::list_file(file(0)),
        Call::Chmod => raw::chmod(name(0), args[1]),
        Call::Fchmod => raw::fchmod(file(0), args[1]),
        Call::Chown => raw::chown(name(0), args[1], args[2]),
        Call::Fchown => raw::fchown(file(0), args[1], args[2]),
        Call::Utimens => raw::utimens(name(0), args[1], args[2]),
        Call::Futimens => raw::futimens(file(0), args[1], args[2]),
        Call::SetXattr => raw::set_xattr(raw::Where::Name(name(0)), args[1], args[2], args[3]),
        Call::GetXattr => raw::get_xattr(raw::Where::Name(name(0)), args[1]),
        Call::ListXattr => raw::list_xattr(name(0)),
        Call::RemoveXattr => raw::remove_xattr(name(0), args[1]),
        Call::FsetXattr => raw::set_xattr(raw::Where::File(file(0)), args[1], args[2], args[3]),
        Call::FgetXattr => raw::get_xattr(raw::Where::File(file(0)), args[1]),
        Call::SetLock => raw::set_lock(file(0), args[1], args[2], args[3], args[4]),
        Call::GetLock => raw::get_lock(file(0), args[1], args[2], args[3], args[4]),
        Call::Flock => raw::flock(file(0), args[1]),
        Call::Pause => {
            std::thread::sleep(PAUSE);
            "0".to_owned()
        }
        Call::Exit => unreachable!("it does not come back"),
    }
}
