//! Numbers as people like them. Always UTC: a cluster has no single local time.

const DAY_S: u64 = 86_400;

/// 1.5 GiB.
pub fn bytes(count: u64) -> String {
    const UNITS: [&str; 5] = ["KiB", "MiB", "GiB", "TiB", "PiB"];
    if count < 1024 {
        return format!("{count} B");
    }
    let mut value = count as f64 / 1024.0;
    let mut unit = 0;
    while value >= 1023.95 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    let unit = UNITS.get(unit).copied().unwrap_or_default();
    let number = if value >= 100.0 { format!("{value:.0}") } else { format!("{value:.1}") };
    format!("{} {unit}", number.strip_suffix(".0").unwrap_or(&number))
}

/// `45 s`, `20 min`, `8 h`, `90 days`: the largest unit of which there are at least two.
pub fn duration(seconds: u64) -> String {
    match seconds {
        0..=119 => format!("{seconds} s"),
        120..=7_199 => format!("{} min", (seconds + 30) / 60),
        7_200..=172_799 => format!("{} h", (seconds + 1_800) / 3_600),
        _ => format!("{} days", (seconds + 43_200) / 86_400),
    }
}

/// CPU time: 0.25s, 1m07s, 3h02m.
pub fn cpu_time(ms: u64) -> String {
    match ms / 1000 {
        seconds @ 0..60 => format!("{seconds}.{:02}s", ms % 1000 / 10),
        seconds @ 60..3600 => format!("{}m{:02}s", seconds / 60, seconds % 60),
        seconds => format!("{}h{:02}m", seconds / 3600, seconds / 60 % 60),
    }
}

/// A time of day when it was less than a day before `now_ms`, else a date; UTC.
pub fn clock(at_ms: u64, now_ms: u64) -> String {
    let (at_s, now_s) = (at_ms / 1000, now_ms / 1000);
    let whole = mgmt_api::utc(at_s);
    let (date, time) = whole.split_once('T').unwrap_or_default();
    let shown = if now_s.saturating_sub(at_s) < DAY_S { time.trim_end_matches('Z') } else { date };
    shown.to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_short() {
        assert_eq!(bytes(0), "0 B");
        assert_eq!(bytes(1023), "1023 B");
        assert_eq!(bytes(1 << 20), "1 MiB");
        assert_eq!(bytes(1536 << 20), "1.5 GiB");
        assert_eq!(bytes((1 << 20) - 1), "1 MiB");
        assert!(bytes(u64::MAX).ends_with("PiB"));
    }

    #[test]
    fn times_are_short() {
        assert_eq!(cpu_time(250), "0.25s");
        assert_eq!(cpu_time(67_000), "1m07s");
        assert_eq!(cpu_time(10_920_000), "3h02m");
    }

    #[test]
    fn dates_are_right_over_leap_years() {
        assert_eq!(clock(0, 2 * DAY_S * 1000), "1970-01-01");
        assert_eq!(clock(3_661_000, 3_662_000), "01:01:01");
    }
}
