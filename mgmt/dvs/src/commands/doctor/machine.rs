//! What a report says of the machine itself.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Bytes of the end of each log.
const LOG_BYTES_MAX: u64 = 128 << 10;
/// Logs of one directory: of the roles of a node, or of a container on it.
const LOGS_MAX: usize = 64;
const JOURNAL_LINES: &str = "2000";

/// Facts about kernel and system that faults depend on. Not the kernel's command line: it may hold anything.
pub fn facts() -> String {
    let mut text = String::new();
    for (title, path) in [
        ("kernel", "/proc/version"),
        ("system", "/etc/os-release"),
        ("memory", "/proc/meminfo"),
        ("load", "/proc/loadavg"),
        ("up for", "/proc/uptime"),
        ("pressure of memory", "/proc/pressure/memory"),
        ("user namespaces", "/proc/sys/user/max_user_namespaces"),
        ("processes", "/proc/sys/kernel/pid_max"),
        ("open files of all", "/proc/sys/fs/file-max"),
        ("seccomp", "/proc/sys/kernel/seccomp/actions_avail"),
        ("io_uring", "/proc/sys/kernel/io_uring_disabled"),
        ("control groups", "/proc/cgroups"),
    ] {
        section(&mut text, title, &fs::read_to_string(path).unwrap_or_else(|error| format!("{path}: {error}")));
    }
    let list = |path: &str, keep: fn(&str) -> bool| {
        let lines = fs::read_to_string(path).unwrap_or_default();
        lines.lines().filter(|line| keep(line)).map(|line| format!("{line}\n")).collect::<String>()
    };
    let is_ours = |line: &str| ["cgroup", "overlay", "fuse", "/dvs"].iter().any(|word| line.contains(word));
    section(&mut text, "mounts", &list("/proc/self/mounts", is_ours));
    section(&mut text, "modules", &list("/proc/modules", |_| true));
    let cpus = std::thread::available_parallelism().map_or(0, usize::from);
    section(&mut text, "processors", &cpus.to_string());
    text
}

fn section(text: &mut String, title: &str, words: &str) {
    text.push_str(&format!("# {title}\n{}\n\n", words.trim_end()));
}

/// The last lines of every log of a directory. Links are not followed.
pub fn logs(directory: &Path) -> Vec<(String, String)> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let is_log = |path: &PathBuf| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        (name.ends_with(".log") || name.ends_with(".log.1"))
            && fs::symlink_metadata(path).is_ok_and(|about| about.is_file())
    };
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.path()).filter(is_log).collect();
    paths.sort();
    paths.truncate(LOGS_MAX);
    let named = |path: &PathBuf| Some((path.file_name()?.to_string_lossy().into_owned(), tail(path)));
    paths.iter().filter_map(named).collect()
}

/// The end of a file, from a whole line on; why not, where it cannot be read.
pub fn tail(path: &Path) -> String {
    use std::os::unix::fs::FileExt;
    let read = || -> std::io::Result<Vec<u8>> {
        let file = fs::File::open(path)?;
        let length = file.metadata()?.len();
        let from = length.saturating_sub(LOG_BYTES_MAX);
        let mut bytes = vec![0; usize::try_from(length - from).unwrap_or_default()];
        let mut got = 0;
        // The file may be shortened meanwhile.
        while let Some(rest) = bytes.get_mut(got..).filter(|rest| !rest.is_empty()) {
            match file.read_at(rest, from + got as u64)? {
                0 => break,
                more => got += more,
            }
        }
        bytes.truncate(got);
        if from > 0 {
            let line = bytes.iter().position(|byte| *byte == b'\n').map_or(0, |at| at + 1);
            bytes.drain(..line);
        }
        Ok(bytes)
    };
    match read() {
        Ok(bytes) => String::from_utf8_lossy(&bytes).into_owned(),
        Err(error) => format!("{}: {error}\n", path.display()),
    }
}

/// What the daemon wrote, where a service manager keeps it.
pub fn journal() -> Option<String> {
    if !Path::new("/run/systemd/system").exists() {
        return None;
    }
    let mut ask = Command::new("journalctl");
    ask.args(["--unit=dvsd", "--no-pager", "--lines", JOURNAL_LINES]).stdin(Stdio::null());
    let said = ask.output().ok()?;
    Some(String::from_utf8_lossy(&said.stdout).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_log_begins_with_a_whole_line_and_other_files_are_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        let line = "0123456789\n";
        let count = usize::try_from(LOG_BYTES_MAX).unwrap() / line.len() + 100;
        fs::write(dir.path().join("fs.log"), line.repeat(count)).unwrap();
        fs::write(dir.path().join("node.key"), "secret").unwrap();
        std::os::unix::fs::symlink(dir.path().join("node.key"), dir.path().join("link.log")).unwrap();
        let logs = logs(dir.path());
        assert_eq!(logs.len(), 1);
        assert_eq!(logs[0].0, "fs.log");
        assert!(logs[0].1.starts_with(line) && logs[0].1.len() as u64 <= LOG_BYTES_MAX);
        assert!(logs[0].1.len() as u64 > LOG_BYTES_MAX - 20);
    }

    #[test]
    fn facts_have_the_kernel_and_not_its_command_line() {
        let facts = facts();
        assert!(facts.contains("# kernel\nLinux version") && !facts.contains("BOOT_IMAGE"), "{facts}");
    }
}
