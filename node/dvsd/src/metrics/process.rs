//! What the kernel says of this process (proc(5)).

use std::fs;

/// Of the daemon. What the kernel does not say is missing.
#[derive(Default)]
pub struct OwnProcess {
    pub cpu_s: Option<f64>,
    pub memory_bytes: Option<u64>,
    pub threads: Option<u64>,
    pub open_files: Option<u64>,
    /// Since 1970.
    pub start_s: Option<f64>,
}

impl OwnProcess {
    pub fn now() -> OwnProcess {
        let stat = fs::read_to_string("/proc/self/stat").unwrap_or_default();
        let boot_s = fs::read_to_string("/proc/stat").ok().and_then(|stat| boot_s(&stat));
        let open_files = fs::read_dir("/proc/self/fd").ok().map(Iterator::count);
        let ticks = rustix::param::clock_ticks_per_second() as f64;
        let mut process = parse(&stat, ticks, rustix::param::page_size() as u64).unwrap_or_default();
        process.start_s = process.start_s.and_then(|since_boot| Some(boot_s? + since_boot));
        // The look itself had one open.
        process.open_files = open_files.and_then(|count| u64::try_from(count).ok()?.checked_sub(1));
        process
    }
}

/// Of `/proc/PID/stat`; the start is since boot. The name may have blanks and brackets.
fn parse(stat: &str, ticks: f64, page_bytes: u64) -> Option<OwnProcess> {
    let (_, rest) = stat.rsplit_once(") ")?;
    let fields: Vec<&str> = rest.split(' ').collect();
    // Numbers of the manual page, which counts the name as 2.
    let field = |number: usize| fields.get(number - 3)?.trim().parse::<u64>().ok();
    let (user, system) = (field(14)?, field(15)?);
    Some(OwnProcess {
        cpu_s: Some((user + system) as f64 / ticks),
        memory_bytes: field(24).map(|pages| pages.saturating_mul(page_bytes)),
        threads: field(20),
        open_files: None,
        start_s: field(22).map(|start| start as f64 / ticks),
    })
}

fn boot_s(stat: &str) -> Option<f64> {
    stat.lines().find_map(|line| line.strip_prefix("btime "))?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_found_behind_a_name_with_brackets() {
        let stat = "7 (a) b (c) S 1 7 7 0 -1 4194560 1 2 3 4 250 50 0 0 20 0 12 0 1000 4096 300 1844 0 0";
        let process = parse(stat, 100.0, 4096).unwrap();
        assert_eq!((process.cpu_s, process.memory_bytes), (Some(3.0), Some(300 * 4096)));
        assert_eq!((process.threads, process.start_s), (Some(12), Some(10.0)));
        assert!(parse("nothing", 100.0, 4096).is_none());
    }

    #[test]
    fn this_process_was_started_a_moment_ago() {
        let process = OwnProcess::now();
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs_f64();
        let age = now - process.start_s.unwrap();
        assert!((-2.0..3600.0).contains(&age), "{age}");
        assert!(process.memory_bytes.unwrap() > 100_000 && process.threads.unwrap() >= 1);
        assert!(process.open_files.unwrap() >= 3 && process.cpu_s.is_some());
    }
}
