//! What this node is like: read from files that were opened before the system call filter.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

use cs_core::Vitals;

/// Younger ones are not read again.
const FRESH: Duration = Duration::from_millis(500);

pub struct Gauges {
    load: Option<File>,
    memory: Option<File>,
    cpus: u32,
    read: Option<Instant>,
    last: Vitals,
}

impl Gauges {
    /// What cannot be opened reads as 0.
    pub fn open() -> Gauges {
        let cpus =
            std::thread::available_parallelism().map_or(1, |count| u32::try_from(count.get()).unwrap_or(u32::MAX));
        let open =
            |path: &str| File::open(path).inspect_err(|error| tracing::warn!(path, %error, "cannot be opened")).ok();
        let (load, memory) = (open("/proc/loadavg"), open("/proc/meminfo"));
        Gauges { load, memory, cpus, read: None, last: Vitals::default() }
    }

    pub fn read(&mut self, links: usize) -> Vitals {
        if self.read.is_some_and(|read| read.elapsed() < FRESH) {
            return self.last;
        }
        self.read = Some(Instant::now());
        let (load, memory) = (text(self.load.as_ref()), text(self.memory.as_ref()));
        self.last = Vitals {
            cpus: self.cpus,
            load: thousandths(&load),
            memory_bytes: kibibytes(&memory, "MemTotal:"),
            available_bytes: kibibytes(&memory, "MemAvailable:"),
            links: links as u64,
        };
        self.last
    }
}

fn text(file: Option<&File>) -> String {
    let mut bytes = [0; 4096];
    let read = file.and_then(|file| file.read_at(&mut bytes, 0).ok()).unwrap_or(0);
    String::from_utf8_lossy(bytes.get(..read).unwrap_or_default()).into_owned()
}

fn thousandths(load: &str) -> u64 {
    let first: f64 = load.split(' ').next().and_then(|word| word.parse().ok()).unwrap_or(0.0);
    (first * 1000.0) as u64
}

fn kibibytes(memory: &str, name: &str) -> u64 {
    let line = memory.lines().find_map(|line| line.strip_prefix(name));
    line.and_then(|line| line.trim().split(' ').next()?.parse::<u64>().ok()).unwrap_or(0).saturating_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn load_and_memory_are_read_as_the_kernel_writes_them() {
        assert_eq!(thousandths("1.25 0.50 0.10 2/300 4242\n"), 1250);
        assert_eq!(kibibytes("MemTotal:       100 kB\nMemAvailable:   7 kB\n", "MemAvailable:"), 7 << 10);
        assert_eq!((thousandths(""), kibibytes("", "MemTotal:")), (0, 0));
        let vitals = Gauges::open().read(2);
        assert!(vitals.memory_bytes >= vitals.available_bytes && vitals.available_bytes > 0 && vitals.links == 2);
    }
}
