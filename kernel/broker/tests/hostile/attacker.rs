//! An attack as a process: how the test starts it and hears of it, and how it tells.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// How long an attack of chance goes on.
fn attack_time() -> Duration {
    Duration::from_millis(if std::env::var_os("DVS_TEST_LONG").is_some() { 10_000 } else { 400 })
}

/// A process that is killed and waited for in any case.
pub struct Attacker {
    pub child: Child,
    lines: std::io::Lines<BufReader<std::process::ChildStdout>>,
}

impl Attacker {
    /// `socket`: where programs connect.
    pub fn start(socket: &Path, attack: &str) -> Attacker {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["child_process", "--exact", "--nocapture", "--test-threads=1"])
            .env("M3IPC_ATTACK", attack)
            .env("M3IPC_SOCKET", socket)
            .env("M3IPC_MILLIS", attack_time().as_millis().to_string())
            .env("M3IPC_VICTIM", std::process::id().to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        Attacker { child, lines }
    }

    /// What follows `prefix` in the first line that has it anywhere.
    pub fn line_with(&mut self, prefix: &str) -> String {
        let found = self.lines.find_map(|line| line.unwrap().split_once(prefix).map(|(_, rest)| rest.to_string()));
        found.unwrap_or_else(|| panic!("the attacker ended without saying {prefix:?}"))
    }

    pub fn say(&mut self, line: &str) {
        writeln!(self.child.stdin.as_mut().unwrap(), "{line}").unwrap();
    }

    pub fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Attacker {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

// In the attacker's process.

pub fn tell(line: &str) {
    println!("{line}");
    std::io::stdout().flush().unwrap();
}

/// The next line of the test, or its end.
pub fn wait_for_the_end() {
    let _ = std::io::stdin().read_line(&mut String::new());
}

pub fn while_it_lasts(mut attack: impl FnMut()) -> u64 {
    let millis = std::env::var("M3IPC_MILLIS").unwrap().parse().unwrap();
    let until = Instant::now() + Duration::from_millis(millis);
    let mut count = 0;
    while Instant::now() < until {
        attack();
        count += 1;
    }
    count
}
