//! What the service manager hears of this daemon: the datagrams of sd_notify(3), and its watchdog.
//!
//! | said | when |
//! |---|---|
//! | `STATUS=` | at each step of the start, and when the node's health changes |
//! | `READY=1` | once: the API answers |
//! | `WATCHDOG=1` | twice in each period of the watchdog, as long as the daemon's duties make progress (`duties`) |
//! | `STOPPING=1` | at the stop |
//!
//! Without `NOTIFY_SOCKET` nobody listens, and nothing is said. The variable stays in this process's environment,
//! because a daemon that begins anew (`anew`) has to find it again. What the daemon starts gets an environment of its
//! own (`spawn`), in which it is not: a member of etcd would otherwise speak for the daemon.

use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::Duration;

use parking_lot::Mutex;

const SOCKET: &str = "NOTIFY_SOCKET";
const PERIOD: &str = "WATCHDOG_USEC";
const PROCESS: &str = "WATCHDOG_PID";
/// A manager that does not read for so long misses the word. The daemon has other duties.
const SAY_LIMIT: Duration = Duration::from_secs(1);
/// Of a line that people read in `systemctl status`.
const STATUS_BYTES_MAX: usize = 256;
/// A manager that wants to hear more often would be served by nothing else.
const PULSE_MIN: Duration = Duration::from_millis(100);

pub struct ServiceManager {
    /// `None`: nobody listens.
    line: Option<Line>,
    period: Option<Duration>,
    status: Mutex<String>,
}

struct Line {
    socket: UnixDatagram,
    address: SocketAddr,
}

impl ServiceManager {
    /// Who started this process, as it says itself. An address that cannot be used is no reason not to serve.
    pub fn from_env() -> ServiceManager {
        let variables = |name: &str| std::env::var(name).ok();
        ServiceManager::from_variables(variables, std::process::id())
    }

    fn from_variables(get: impl Fn(&str) -> Option<String>, own_pid: u32) -> ServiceManager {
        let line = get(SOCKET).and_then(|address| match Line::open(&address) {
            Ok(line) => Some(line),
            Err(error) => {
                tracing::warn!(address, %error, "the service manager cannot be told anything");
                None
            }
        });
        let is_for_us = get(PROCESS).is_none_or(|pid| pid.parse() == Ok(own_pid));
        let period = get(PERIOD).filter(|_| is_for_us).and_then(|period| period.parse().ok()).filter(|us| *us > 0);
        ServiceManager { line, period: period.map(Duration::from_micros), status: Mutex::default() }
    }

    /// How often [`ServiceManager::say_alive`] is expected; `None`: there is no watchdog.
    pub fn pulse(&self) -> Option<Duration> {
        self.line.as_ref()?;
        self.period.map(|period| (period / 2).max(PULSE_MIN))
    }

    pub fn say_ready(&self) {
        self.say("READY=1");
    }

    pub fn say_stopping(&self) {
        self.say("STOPPING=1");
    }

    pub fn say_alive(&self) {
        self.say("WATCHDOG=1");
    }

    /// For people; said when it is another one than before.
    pub fn say_status(&self, status: &str) {
        let status = one_line(status);
        let before = std::mem::replace(&mut *self.status.lock(), status.clone());
        if before != status {
            self.say(&format!("STATUS={status}"));
        }
    }

    fn say(&self, words: &str) {
        let Some(line) = &self.line else { return };
        if let Err(error) = line.socket.send_to_addr(words.as_bytes(), &line.address) {
            tracing::warn!(%error, words, "the service manager did not hear it");
        }
    }
}

impl Line {
    /// A path, or `@` and a name that is in no file system.
    fn open(address: &str) -> std::io::Result<Line> {
        let address = match address.strip_prefix('@') {
            Some(name) => SocketAddr::from_abstract_name(name)?,
            None if address.starts_with('/') => SocketAddr::from_pathname(address)?,
            None => return Err(std::io::Error::other("it is neither a path nor an abstract name")),
        };
        let socket = UnixDatagram::unbound()?;
        socket.set_write_timeout(Some(SAY_LIMIT))?;
        Ok(Line { socket, address })
    }
}

/// A line end would begin another assignment.
fn one_line(text: &str) -> String {
    let mut line = String::new();
    for letter in text.chars().map(|letter| if letter.is_control() { ' ' } else { letter }) {
        if line.len() + letter.len_utf8() > STATUS_BYTES_MAX {
            break;
        }
        line.push(letter);
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    fn service_manager(address: &str, more: &[(&str, &str)]) -> ServiceManager {
        let variables: Vec<(String, String)> = [(SOCKET, address)]
            .iter()
            .chain(more)
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
            .collect();
        let get = move |name: &str| variables.iter().find(|(one, _)| one == name).map(|(_, value)| value.clone());
        ServiceManager::from_variables(get, 7)
    }

    fn heard(socket: &UnixDatagram) -> String {
        let mut bytes = [0; 1024];
        let length = socket.recv(&mut bytes).unwrap();
        String::from_utf8(bytes[..length].to_vec()).unwrap()
    }

    #[test]
    fn words_arrive_at_a_path_and_at_an_abstract_name_and_a_status_once() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("notify");
        let name = format!("dvs-test-{}", std::process::id());
        let sockets = [
            (UnixDatagram::bind(&path).unwrap(), path.display().to_string()),
            (UnixDatagram::bind_addr(&SocketAddr::from_abstract_name(&name).unwrap()).unwrap(), format!("@{name}")),
        ];
        for (socket, address) in sockets {
            let manager = service_manager(&address, &[]);
            manager.say_status("starting");
            manager.say_status("starting");
            manager.say_ready();
            manager.say_status("disk full:\nREADY=0");
            manager.say_alive();
            manager.say_stopping();
            let words: Vec<String> = (0..5).map(|_| heard(&socket)).collect();
            let expected = ["STATUS=starting", "READY=1", "STATUS=disk full: READY=0", "WATCHDOG=1", "STOPPING=1"];
            assert_eq!(words, expected);
        }
    }

    #[test]
    fn watchdog_is_answered_twice_in_its_period_if_it_is_meant_for_this_process() {
        let pulse = |more: &[(&str, &str)]| service_manager("@nobody", more).pulse();
        assert_eq!(pulse(&[(PERIOD, "3000000")]), Some(Duration::from_millis(1500)));
        assert_eq!(pulse(&[(PERIOD, "3000000"), (PROCESS, "7")]), Some(Duration::from_millis(1500)));
        assert_eq!(pulse(&[(PERIOD, "3000000"), (PROCESS, "8")]), None);
        assert_eq!(pulse(&[(PERIOD, "10")]), Some(PULSE_MIN));
        assert_eq!(pulse(&[(PERIOD, "0")]), None);
        assert_eq!(pulse(&[(PERIOD, "soon")]), None);
        assert_eq!(pulse(&[]), None);
    }

    #[test]
    fn nobody_who_listens_and_no_address_are_no_reason_to_fail() {
        let long = "x".repeat(4096);
        for address in ["@nobody-there", "/nowhere/notify", "relative", "vsock:2:1", "", &format!("/{long}")] {
            let manager = service_manager(address, &[]);
            manager.say_ready();
            manager.say_status(&long);
            assert!(manager.status.lock().len() <= STATUS_BYTES_MAX);
        }
    }
}
