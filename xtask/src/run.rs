//! Running other programs, with an error that says which one failed.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

pub type Outcome<T = ()> = Result<T, String>;

/// The workspace, wherever the task was called from.
pub fn workspace() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask lies in the workspace").to_owned()
}

pub fn read(path: &Path) -> Outcome<String> {
    std::fs::read_to_string(path).map_err(|error| format!("cannot read {}: {error}", path.display()))
}

/// Runs a program with our own output; an exit status other than 0 is an error.
pub fn run<S: AsRef<OsStr>>(program: &str, arguments: impl IntoIterator<Item = S>) -> Outcome {
    let mut command = Command::new(program);
    command.args(arguments).current_dir(workspace());
    finish(&mut command)
}

pub fn finish(command: &mut Command) -> Outcome {
    let status = command.status().map_err(|error| format!("{} did not start: {error}", shown(command)))?;
    if status.success() { Ok(()) } else { Err(format!("{} failed ({status})", shown(command))) }
}

/// Standard output of a program that must succeed; what it said on standard error is part of the error.
pub fn output(command: &mut Command) -> Outcome<String> {
    let done =
        command.stdin(Stdio::null()).output().map_err(|error| format!("{} did not start: {error}", shown(command)))?;
    if !done.status.success() {
        let said = String::from_utf8_lossy(&done.stderr);
        return Err(format!("{} failed ({}): {}", shown(command), done.status, said.trim()));
    }
    Ok(String::from_utf8_lossy(&done.stdout).into_owned())
}

pub fn shown(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    words.map(|word| word.to_string_lossy().into_owned()).collect::<Vec<_>>().join(" ")
}
