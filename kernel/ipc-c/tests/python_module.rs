//! The Python module's own tests, with this library and a broker.

mod common;

use std::process::{Command, Stdio};

use common::{Container, Library, has, source};
use ipc::Endpoint;

#[test]
fn tests_of_the_python_module_pass() {
    if !has("python3") {
        eprintln!("SKIPPED: python3 is not installed");
        return;
    }
    let library = Library::link();
    let container = Container::open();
    let mut command: Command = container.command("python3".as_ref());
    command.args(["-B", "-W", "error", "-m", "unittest", "discover", "--start-directory"]);
    command.arg(source("python/tests")).env("PYTHONPATH", source("python")).env("PYTHONDONTWRITEBYTECODE", "1");
    command.stdin(Stdio::from(container.server_socket(Endpoint::new(5).unwrap()))).env("M3IPC_SERVER_FD", "0");
    common::ok(command.env("M3IPC_LIBRARY", library.lib().join("libm3ipc.so.0")));
}

#[test]
fn python_module_has_the_version_of_the_library() {
    let project = std::fs::read_to_string(source("python/pyproject.toml")).unwrap();
    assert!(project.contains(&format!("version = \"{}\"\n", env!("CARGO_PKG_VERSION"))), "{project}");
}
