//! The `dvs` command, aimed at the demo's cluster.

use std::io::Write;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use serde_json::Value;

use crate::run::{self, Outcome};

pub struct Dvs {
    binary: PathBuf,
}

impl Dvs {
    pub fn new() -> Outcome<Dvs> {
        let own = std::env::current_exe().map_err(|error| format!("no path of this program: {error}"))?;
        let binary = own.with_file_name("dvs");
        if binary.exists() {
            Ok(Dvs { binary })
        } else {
            Err(format!("{} is missing\n  try: make build", binary.display()))
        }
    }

    pub fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(&self.binary);
        // As people run it, not as tests do.
        command.env_remove("M3IPC_STRICT_ERRORS");
        command.args(arguments).env("DVS_CLUSTER", "demo").env_remove("DVS_SOCKET");
        command
    }

    /// What it prints is for the developer of the demo only: shown when it fails.
    pub fn run(&self, arguments: &[&str]) -> Outcome {
        self.output(arguments).map(drop)
    }

    pub fn output(&self, arguments: &[&str]) -> Outcome<String> {
        run::output(&mut self.command(arguments))
    }

    /// Output of a shell script in a container on a node.
    pub fn sh(&self, dc: &str, node: &str, script: &str) -> Outcome<String> {
        self.output(&["run", dc, "--node", node, "--", "bash", "-ec", script])
    }

    /// As [`Dvs::sh`], with text on standard input.
    pub fn sh_with_input(&self, dc: &str, node: &str, script: &str, input: &str) -> Outcome<String> {
        let mut command = self.command(&["run", dc, "--node", node, "-i", "--", "bash", "-ec", script]);
        let mut child = piped(command.stdin(Stdio::piped()))?;
        let mut stdin = child.stdin.take().ok_or("no pipe to the program")?;
        stdin.write_all(input.as_bytes()).map_err(|error| format!("the program does not read its input: {error}"))?;
        drop(stdin);
        ended(child, script)
    }

    /// Starts a script that goes on while the demo does something else; [`ended`] collects it.
    pub fn start_sh(&self, dc: &str, node: &str, script: &str) -> Outcome<Child> {
        self.start(&["run", dc, "--node", node, "--", "bash", "-ec", script])
    }

    pub fn start(&self, arguments: &[&str]) -> Outcome<Child> {
        piped(self.command(arguments).stdin(Stdio::null()))
    }

    pub fn json(&self, arguments: &[&str]) -> Outcome<Value> {
        let text = self.output(arguments)?;
        serde_json::from_str(&text)
            .map_err(|error| format!("dvs {} printed no JSON ({error}): {text}", arguments.join(" ")))
    }

    /// PID, on its node, of a running server of a container.
    pub fn server_pid(&self, dc: &str, node: &str, server: &str) -> Outcome<u32> {
        let inspected = self.json(&["dc", "inspect", dc, "-o", "json"])?;
        let share = find(&inspected["shares"], "node", node);
        let pid =
            share.and_then(|share| find(&share["servers"], "name", server)).and_then(|server| server["pid"].as_u64());
        pid.map(|pid| pid as u32)
            .ok_or_else(|| format!("no running server '{server}' of '{dc}' on {node} in: {inspected}"))
    }

    pub fn down_quietly(&self) {
        // Nothing to take down is the usual case.
        let _ = self.command(&["dev", "down", "--name", "demo"]).stdout(Stdio::null()).stderr(Stdio::null()).status();
    }

    pub fn say_what_to_try(&self) {
        let dvs = self.binary.display();
        println!("\n== It stays up. Try:");
        println!("  export DVS_CLUSTER=demo");
        println!("  {dvs} node ls");
        println!("  {dvs} ps f");
        println!("  {dvs} run f --node n2 -i -t -- bash");
        println!("  {dvs} run f --node n3 -- curl -s http://10.1.0.1/ -o /dev/null -w '%{{http_code}}\\n'");
        println!("  {dvs} dev down --name demo");
    }
}

fn piped(command: &mut Command) -> Outcome<Child> {
    let spawned = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
    spawned.map_err(|error| format!("{} did not start: {error}", run::shown(command)))
}

pub fn ended(child: Child, what: &str) -> Outcome<String> {
    let done = child.wait_with_output().map_err(|error| format!("{what}: {error}"))?;
    if !done.status.success() {
        return Err(format!("{what} failed ({}): {}", done.status, String::from_utf8_lossy(&done.stderr).trim()));
    }
    Ok(String::from_utf8_lossy(&done.stdout).into_owned())
}

fn find<'a>(list: &'a Value, key: &str, value: &str) -> Option<&'a Value> {
    list.as_array()?.iter().find(|entry| entry[key] == value)
}
