//! `dvs alone`: servers by themselves.

mod disk;
mod tree;

use std::process::{Command, Output};

fn run(program: &str, arguments: &[&str]) -> Output {
    Command::new("timeout").arg("60").arg(program).args(arguments).output().expect("it starts")
}

fn ok(program: &str, arguments: &[&str]) -> String {
    let done = run(program, arguments);
    let (out, error) = (String::from_utf8_lossy(&done.stdout), String::from_utf8_lossy(&done.stderr));
    assert!(done.status.success(), "{program} {arguments:?}: {out}{error}");
    out.into_owned()
}
