//! A worker in the hands of the tester.

use std::io::{Read, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::worker::WORKER;

/// No call takes longer, also while a machine is loaded: what waits longer waits for ever.
const PATIENCE: Duration = Duration::from_secs(60);

pub struct Lane {
    child: Child,
    input: Option<ChildStdin>,
    output: ChildStdout,
    heard: Vec<u8>,
}

impl Lane {
    /// Starts a worker: a command that ends in [`crate::be_worker`] with [`crate::WORKER`] set to `first`.
    pub fn start(mut command: Command) -> Lane {
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("a worker starts");
        let (input, output) = (child.stdin.take(), child.stdout.take().expect("a pipe"));
        let mut lane = Lane { child, input, output, heard: Vec::new() };
        let said = lane.hear();
        assert_eq!(said.as_deref(), Ok("0 ready"), "the worker came up");
        lane
    }

    /// A worker of this binary, in a directory of this machine.
    pub fn here(arguments: &[&str], directory: &Path) -> Lane {
        let mut command = Command::new(std::env::current_exe().expect("this test"));
        command.args(arguments).env(WORKER, "first").current_dir(directory);
        Lane::start(command)
    }

    /// Tells what to do; [`Lane::hear`] is what came of it.
    pub fn tell(&mut self, command: &str) {
        let line = format!("{command}\n");
        // A worker that ended is noticed when its answer is wanted.
        let _ = self.input.as_mut().map(|input| input.write_all(line.as_bytes()));
    }

    /// The answer, or a word about the worker.
    pub fn hear(&mut self) -> Result<String, String> {
        let limit = Instant::now() + PATIENCE;
        loop {
            if let Some(end) = self.heard.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.heard.drain(..=end).collect();
                let line = String::from_utf8_lossy(&line);
                // The harness may have printed something before, without a line's end.
                if let Some((_, answer)) = line.trim_end().split_once("= ") {
                    return Ok(answer.to_owned());
                }
                continue;
            }
            let mut polled = [PollFd::new(&self.output, PollFlags::IN)];
            let left = limit.saturating_duration_since(Instant::now());
            let left = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() };
            match poll(&mut polled, Some(&left)) {
                Ok(0) => return Err(format!("no answer within {PATIENCE:?}")),
                Ok(_) => {}
                Err(rustix::io::Errno::INTR) => continue,
                Err(error) => return Err(format!("no answer: {error}")),
            }
            let mut buffer = [0; 65_536];
            match self.output.read(&mut buffer) {
                Ok(0) => return Err("the worker ended".to_owned()),
                Ok(count) => self.heard.extend_from_slice(&buffer[..count]),
                Err(error) => return Err(format!("no answer: {error}")),
            }
        }
    }

    pub fn ask(&mut self, command: &str) -> Result<String, String> {
        self.tell(command);
        self.hear()
    }
}

impl Drop for Lane {
    fn drop(&mut self) {
        drop(self.input.take());
        // Without its input it ends, unless a call does not.
        let limit = Instant::now() + Duration::from_secs(5);
        while Instant::now() < limit && matches!(self.child.try_wait(), Ok(None)) {
            std::thread::sleep(Duration::from_millis(5));
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
