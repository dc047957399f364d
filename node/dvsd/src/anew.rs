//! A thread of the daemon that panics ends the daemon, which begins anew in the same process.
//!
//! Without the thread the daemon would go on saying that all is well: what the thread looked after would stay as it
//! was. A daemon that was killed takes over everything that runs (`state`, `shelf`), so beginning anew is cheap, and it
//! needs nobody who watches the daemon. The process executes itself: its number stays, every thread and lock of it is
//! gone, and its descriptors are closed (all are closed on exec).

use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// A daemon that panics at once again must not take the machine's time.
const PAUSE: Duration = Duration::from_secs(1);

/// Where this process's program lies: known from the start on, because it may be replaced there.
static BINARY: OnceLock<PathBuf> = OnceLock::new();

/// The file from which this process was started, and from which a later release begins.
pub fn binary() -> &'static Path {
    BINARY.get_or_init(|| std::fs::read_link("/proc/self/exe").unwrap_or_else(|_| "/proc/self/exe".into()))
}

/// The same process from the beginning of the program that lies now where its own lay. When that cannot be begun, of
/// its own. Returns only why neither could.
pub fn begin_replaced() -> std::io::Error {
    let mut arguments = std::env::args_os();
    let own_name = arguments.next().unwrap_or_else(|| "dvs".into());
    let error = Command::new(binary()).arg0(own_name).args(arguments).exec();
    sys::log::say(format_args!("dvs: {} cannot be begun: {error}; this release goes on", binary().display()));
    begin_anew()
}

/// From now on.
pub fn begin_anew_on_panic() {
    static ONCE: OnceLock<()> = OnceLock::new();
    let began = Instant::now();
    sys::log::on_panic(move || {
        // The first one does it; the others wait for their end.
        if ONCE.set(()).is_err() {
            loop {
                std::thread::park();
            }
        }
        std::thread::sleep(PAUSE.saturating_sub(began.elapsed()));
        sys::log::say(format_args!("dvs: the daemon begins anew"));
        let error = begin_anew();
        sys::log::say(format_args!("dvs: the daemon ends: it cannot begin anew: {error}"));
        sys::child::exit_now(sys::log::PANICKED);
    });
}

/// The same process from its beginning. Returns only why it could not.
pub fn begin_anew() -> std::io::Error {
    let mut arguments = std::env::args_os();
    let own_name = arguments.next().unwrap_or_else(|| "dvs".into());
    Command::new("/proc/self/exe").arg0(own_name).args(arguments).exec()
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIVES: &str = "DVSD_TEST_LIVES";

    /// Run alone by the test below, which names a file: each life of this process adds its number to it.
    #[test]
    fn process_that_panics_once() {
        let Some(lives) = std::env::var_os(LIVES) else { return };
        let earlier = std::fs::read_to_string(&lives).unwrap_or_default();
        std::fs::write(&lives, format!("{earlier}{}\n", std::process::id())).unwrap();
        if earlier.is_empty() {
            begin_anew_on_panic();
            // Nobody joins it: only its panic is noticed.
            std::thread::spawn(|| panic!("on purpose"));
            loop {
                std::thread::park();
            }
        }
    }

    #[test]
    fn panic_of_a_thread_begins_the_process_anew_with_its_number_and_arguments() {
        let dir = tempfile::tempdir().unwrap();
        let lives = dir.path().join("lives");
        let full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
        let status = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "anew::tests::process_that_panics_once"])
            .env(LIVES, &lives)
            .stdout(std::process::Stdio::null())
            .stderr(full)
            .status()
            .unwrap();
        assert!(status.success(), "{status}");
        let numbers = std::fs::read_to_string(&lives).unwrap();
        let numbers: Vec<&str> = numbers.lines().collect();
        assert_eq!(numbers.len(), 2, "{numbers:?}");
        assert_eq!(numbers[0], numbers[1]);
    }
}
