//! A person at a terminal: a command runs on a pseudo terminal that is its controlling one, and the test types and
//! looks.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Mode, OFlags, open};
use rustix::process::{Pid, Signal, kill_process};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{LocalModes, Winsize, tcgetattr, tcsetwinsize};

/// Longest wait for something to be shown or for a command to end; an idle machine needs a fraction of a second.
const PATIENCE: Duration = Duration::from_secs(30);
/// More than any of the tests shows; a flood ends the test instead of filling the memory.
const SHOWN_BYTES_MAX: usize = 16 << 20;

pub struct Terminal {
    keyboard_and_screen: OwnedFd,
    command: Child,
    shown: Vec<u8>,
}

impl Terminal {
    /// Starts the command on a new terminal of 24 rows and 80 columns.
    pub fn start(command: &Command) -> Terminal {
        let screen = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).expect("a terminal");
        grantpt(&screen).and_then(|()| unlockpt(&screen)).expect("a terminal of ours");
        let name = ptsname(&screen, Vec::new()).expect("it has a name");
        let place = open(name.as_c_str(), OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC, Mode::empty());
        let place = place.expect("its other side");
        resize(&screen, 24, 80);
        let side = || Stdio::from(place.try_clone().expect("a copy"));
        // Makes a session and takes the terminal, then becomes the command: the child's PID is the command's.
        let mut start = Command::new("setsid");
        start.arg("--ctty").arg(command.get_program()).args(command.get_args()).env("TERM", "xterm");
        for (key, value) in command.get_envs() {
            match value {
                Some(value) => start.env(key, value),
                None => start.env_remove(key),
            };
        }
        let command = start.stdin(side()).stdout(side()).stderr(side()).spawn().expect("the command starts");
        Terminal { keyboard_and_screen: screen, command, shown: Vec::new() }
    }

    pub fn press(&mut self, keys: &str) {
        let mut left = keys.as_bytes();
        while !left.is_empty() {
            let taken = rustix::io::write(&self.keyboard_and_screen, left).expect("the terminal takes keys");
            left = &left[taken..];
        }
    }

    pub fn resize(&self, rows: u16, columns: u16) {
        resize(&self.keyboard_and_screen, rows, columns);
    }

    /// Waits until the text is shown; what was shown up to it is given back and not looked at again.
    pub fn shows(&mut self, text: &str) -> String {
        let until = Instant::now() + PATIENCE;
        loop {
            if let Some(at) = find(&self.shown, text.as_bytes()) {
                let seen = self.shown.drain(..at + text.len()).collect::<Vec<_>>();
                return String::from_utf8_lossy(&seen).into_owned();
            }
            assert!(self.read(until) == Read::More, "'{text}' was not shown, but {:?}", self.screen());
        }
    }

    /// Exit status of the command, as a shell shows it.
    pub fn status(&mut self) -> i32 {
        use std::os::unix::process::ExitStatusExt;
        let until = Instant::now() + PATIENCE;
        while self.read(until) == Read::More {}
        loop {
            if let Some(status) = self.command.try_wait().expect("a child") {
                return status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or_default());
            }
            assert!(Instant::now() < until, "the command does not end; shown: {:?}", self.screen());
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// What was shown and not yet looked at.
    pub fn screen(&self) -> String {
        String::from_utf8_lossy(&self.shown).into_owned()
    }

    pub fn pid(&self) -> Pid {
        Pid::from_child(&self.command)
    }

    /// Whether keys reach the command as they are pressed, without echo.
    pub fn is_raw(&self) -> bool {
        let modes = tcgetattr(&self.keyboard_and_screen).expect("settings").local_modes;
        !modes.intersects(LocalModes::ICANON | LocalModes::ECHO | LocalModes::ISIG)
    }

    /// The window is closed: everything on it is hung up.
    pub fn hang_up(self) {}

    fn read(&mut self, until: Instant) -> Read {
        let left = Timespec::try_from(until.saturating_duration_since(Instant::now())).expect("a short time");
        let mut waited = [PollFd::new(&self.keyboard_and_screen, PollFlags::IN)];
        match poll(&mut waited, Some(&left)) {
            Ok(0) => return Read::Nothing,
            Err(rustix::io::Errno::INTR) => return Read::More,
            other => other.expect("poll"),
        };
        let mut buffer = [0; 4096];
        match rustix::io::read(self.keyboard_and_screen.as_fd(), &mut buffer) {
            Ok(0) | Err(rustix::io::Errno::IO) => Read::Nothing,
            Ok(count) => {
                self.shown.extend_from_slice(&buffer[..count]);
                assert!(self.shown.len() < SHOWN_BYTES_MAX, "the command shows without end");
                Read::More
            }
            Err(error) => panic!("the terminal cannot be read: {}", io::Error::from(error)),
        }
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        // Closing the terminal hangs the command up; one that does not mind is ended, as the test is over.
        if matches!(self.command.try_wait(), Ok(None)) {
            let _ = kill_process(self.pid(), Signal::HUP);
            let until = Instant::now() + Duration::from_secs(5);
            while matches!(self.command.try_wait(), Ok(None)) {
                if Instant::now() > until {
                    let _ = self.command.kill();
                }
                std::thread::sleep(Duration::from_millis(10));
            }
        }
    }
}

#[derive(PartialEq, Eq)]
enum Read {
    More,
    /// Nobody writes any more, or not in time.
    Nothing,
}

fn resize(screen: &OwnedFd, rows: u16, columns: u16) {
    let size = Winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
    tcsetwinsize(screen, size).expect("a size");
}

fn find(text: &[u8], part: &[u8]) -> Option<usize> {
    text.windows(part.len()).position(|window| window == part)
}
