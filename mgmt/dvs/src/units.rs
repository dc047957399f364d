//! Sizes and signals as people type them.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::time::Duration;

use clap::builder::{OsStringValueParser, TypedValueParser};
use mgmt_api::WaitMode;

use crate::commands::now_ms;

/// `4G`, `512M`, `1.5GiB`, `4096`: binary units, as memory and disks of containers are counted.
pub fn parse_bytes(text: &str) -> Result<u64, String> {
    let split = text.find(|symbol: char| !symbol.is_ascii_digit() && symbol != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(split);
    let shift = match unit.trim().to_ascii_lowercase().trim_end_matches('b').trim_end_matches('i') {
        "" => 0,
        "k" => 10,
        "m" => 20,
        "g" => 30,
        "t" => 40,
        _ => return Err(format!("'{unit}' is no unit; use K, M, G or T, e.g. 512M")),
    };
    let bad = || format!("'{text}' is no size; write e.g. 512M or 4G");
    if let Ok(whole) = number.parse::<u64>() {
        return whole.checked_mul(1 << shift).ok_or_else(|| format!("'{text}' is more than can be counted"));
    }
    let value: f64 = number.parse().map_err(|_| bad())?;
    let total = value * (1_u64 << shift) as f64;
    if total.is_finite() && total < 9e18 { Ok(total as u64) } else { Err(bad()) }
}

/// `90s`, `10m`, `1h`, `7d`: a number without a unit would be guessed at.
pub fn parse_duration(text: &str) -> Result<Duration, String> {
    let bad = || format!("'{text}' is no time; write e.g. 90s, 10m, 1h or 7d");
    let split = text.find(|symbol: char| !symbol.is_ascii_digit()).ok_or_else(bad)?;
    let (number, unit) = text.split_at(split);
    let seconds: u64 = match unit {
        "s" => 1,
        "m" => 60,
        "h" => 3_600,
        "d" => 86_400,
        _ => return Err(bad()),
    };
    let number: u64 = number.parse().map_err(|_| bad())?;
    number.checked_mul(seconds).filter(|seconds| *seconds < 1 << 40).map(Duration::from_secs).ok_or_else(bad)
}

/// `30`, or a time with its unit as of [`parse_duration`].
pub fn parse_seconds(text: &str) -> Result<u64, String> {
    text.parse()
        .or_else(|_| parse_duration(text).map(|time| time.as_secs()))
        .map_err(|_| format!("'{text}' is no time; write seconds, or e.g. 90s, 10m"))
}

/// Milliseconds since 1970 of a moment: `10m` ago, `2026-11-26`, `2026-11-26T21:30:00Z`, or seconds since 1970. Always
/// UTC.
pub fn parse_moment(text: &str) -> Result<u64, String> {
    if let Ok(seconds) = text.parse::<u32>() {
        return Ok(u64::from(seconds) * 1000);
    }
    if let Ok(ago) = parse_duration(text) {
        return Ok(now_ms().saturating_sub(ago.as_millis() as u64));
    }
    let bad = || format!("'{text}' is no time; write e.g. 10m (ago), 2026-11-26 or 2026-11-26T21:30:00Z");
    utc_moment(text).ok_or_else(bad)
}

fn utc_moment(text: &str) -> Option<u64> {
    let text = text.strip_suffix('Z').unwrap_or(text);
    let (date, time) = text.split_once('T').unwrap_or((text, "00:00:00"));
    let (time, fraction) = time.split_once('.').unwrap_or((time, "0"));
    let digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit()) && (1..=9).contains(&text.len());
    if !digits(fraction) {
        return None;
    }
    let ms = format!("{fraction:0<3}").get(..3)?.parse::<u64>().ok()?;
    let numbers = |text: &str, separator| {
        let parts: Vec<&str> = text.split(separator).collect();
        let read = |part: &str| if digits(part) { part.parse::<u64>().ok() } else { None };
        parts.into_iter().map(read).collect::<Option<Vec<u64>>>()
    };
    let ([year, month, day], [hour, minute, second]) =
        (<[u64; 3]>::try_from(numbers(date, '-')?).ok()?, <[u64; 3]>::try_from(numbers(time, ':')?).ok()?);
    if !(1970..=9999).contains(&year) || !(1..=12).contains(&month) {
        return None;
    }
    // Years begin in March here, so that the leap day is the last one.
    let (shifted, from_march) = (year - u64::from(month <= 2), (month + 9) % 12);
    let of_era = shifted % 400;
    let of_year = (153 * from_march + 2) / 5 + day;
    let days = shifted / 400 * 146_097 + of_era * 365 + of_era / 4 - of_era / 100 + of_year;
    let seconds = days.checked_sub(719_469)? * 86_400 + hour * 3_600 + minute * 60 + second;
    // There is no 30th of February, and no 25th hour.
    (mgmt_api::utc(seconds) == format!("{date}T{time}Z")).then_some(seconds * 1000 + ms)
}

/// Linux on x86-64 and all other machines we build for.
const SIGNALS: [(&str, i32); 31] = [
    ("HUP", 1),
    ("INT", 2),
    ("QUIT", 3),
    ("ILL", 4),
    ("TRAP", 5),
    ("ABRT", 6),
    ("BUS", 7),
    ("FPE", 8),
    ("KILL", 9),
    ("USR1", 10),
    ("SEGV", 11),
    ("USR2", 12),
    ("PIPE", 13),
    ("ALRM", 14),
    ("TERM", 15),
    ("STKFLT", 16),
    ("CHLD", 17),
    ("CONT", 18),
    ("STOP", 19),
    ("TSTP", 20),
    ("TTIN", 21),
    ("TTOU", 22),
    ("URG", 23),
    ("XCPU", 24),
    ("XFSZ", 25),
    ("VTALRM", 26),
    ("PROF", 27),
    ("WINCH", 28),
    ("IO", 29),
    ("PWR", 30),
    ("SYS", 31),
];
const SIGNAL_MAX: i32 = 64;

/// `TERM`, `SIGTERM`, `sigterm`, `15`. 0 asks whether the process exists.
pub fn parse_pid(text: &str) -> Result<u32, String> {
    text.parse().ok().filter(|pid| *pid > 0).ok_or_else(|| "a process is a number that `dvs ps` shows".to_owned())
}

pub fn parse_signal(text: &str) -> Result<i32, String> {
    if let Ok(number) = text.parse::<i32>() {
        return if (0..=SIGNAL_MAX).contains(&number) {
            Ok(number)
        } else {
            Err(format!("signals are 0 to {SIGNAL_MAX}"))
        };
    }
    let upper = text.to_ascii_uppercase();
    let name = upper.strip_prefix("SIG").unwrap_or(&upper);
    let found = SIGNALS.iter().find(|(known, _)| *known == name);
    found
        .map(|(_, number)| *number)
        .ok_or_else(|| format!("'{text}' is no signal; e.g. TERM, KILL, HUP, USR1 or a number"))
}

/// By its name.
pub fn parse_wait_mode(text: &str) -> Result<WaitMode, String> {
    let known = WaitMode::ALL.into_iter().find(|mode| mode.name() == text);
    known.ok_or_else(|| "park, adaptive or spin".to_owned())
}

/// For `clap`: paths in a container's tree travel as text, unlike those that programs open themselves.
pub fn parse_path_in_tree() -> impl TypedValueParser<Value = String> {
    let refused = |_| "it is not UTF-8; programs of the container can use such a name, this command cannot";
    OsStringValueParser::new().try_map(move |path| path.into_string().map_err(refused))
}

/// For `clap`: environment variables are bytes.
pub fn parse_env() -> impl TypedValueParser<Value = OsString> {
    OsStringValueParser::new().try_map(resolve_env)
}

/// More is no list of variables.
const VARIABLES_FILE_BYTES_MAX: u64 = 1 << 20;

/// What a file of variables says.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct VariablesFile(pub Vec<OsString>);

/// For `clap`: a file with a variable in each line.
pub fn parse_env_file() -> impl TypedValueParser<Value = VariablesFile> {
    OsStringValueParser::new().try_map(|path| {
        use std::io::Read;
        let mut text = Vec::new();
        let file = std::fs::File::open(&path).map_err(|error| error.to_string())?;
        file.take(VARIABLES_FILE_BYTES_MAX + 1).read_to_end(&mut text).map_err(|error| error.to_string())?;
        if text.len() as u64 > VARIABLES_FILE_BYTES_MAX {
            return Err("it has more than 1 MiB".to_owned());
        }
        read_env_file(&text)
    })
}

fn read_env_file(text: &[u8]) -> Result<VariablesFile, String> {
    let lines = text.split(|byte| *byte == b'\n').map(|line| line.strip_suffix(b"\r").unwrap_or(line)).zip(1..);
    let said = lines.filter(|(line, _)| !line.is_empty() && !line.starts_with(b"#"));
    let variables = said.map(|(line, number)| {
        resolve_env(OsStr::from_bytes(line).to_owned()).map_err(|why| format!("line {number}: {why}"))
    });
    variables.collect::<Result<Vec<OsString>, String>>().map(VariablesFile)
}

/// `K=V`, or `K` for the value in our own environment.
pub fn resolve_env(text: OsString) -> Result<OsString, String> {
    match text.as_bytes().iter().position(|byte| *byte == b'=') {
        Some(0) => Err("a variable needs a name: KEY=VALUE".to_owned()),
        Some(_) => Ok(text),
        None => {
            let value = std::env::var_os(&text);
            let name = text.to_string_lossy();
            let value = value.ok_or_else(|| format!("{name} is not set here; write {name}=VALUE"))?;
            Ok([&text, OsStr::new("="), &value].into_iter().collect())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_are_dates_seconds_or_a_while_ago() {
        let known = [
            ("1970-01-01", 0),
            ("2024-02-29", 1_709_164_800_000),
            ("2025-11-26T21:30:00Z", 1_764_192_600_000),
            ("2025-11-26T21:30:00.12Z", 1_764_192_600_120),
            ("2025-11-26T21:30:00.1234567", 1_764_192_600_123),
            ("1764192600", 1_764_192_600_000),
        ];
        for (text, ms) in known {
            assert_eq!(parse_moment(text), Ok(ms), "{text}");
        }
        let ago = now_ms() - parse_moment("10m").unwrap();
        assert!((599_000..601_000).contains(&ago), "{ago}");
        let bad = [
            "",
            "yesterday",
            "2025-02-29",
            "2025-13-01",
            "2025-11-26T24:00:00",
            "2025-11-26T21:30",
            "2025-11-26 21:30:00",
            "2025-1-1",
            "2025-11-26T21:30:00+01:00",
            "2025-11-26T21:30:00.",
            "-1",
            "99999999999999999999",
        ];
        for text in bad {
            assert!(parse_moment(text).is_err(), "{text}");
        }
    }

    #[test]
    fn files_of_variables_are_read_line_by_line() {
        let read = |text: &str| read_env_file(text.as_bytes()).map(|file| file.0);
        assert_eq!(read(""), Ok(Vec::new()));
        let said = "# of the shop\nA=1\n\nB= two = \"2\" # not a comment\r\nC=";
        assert_eq!(read(said), Ok(["A=1", "B= two = \"2\" # not a comment", "C="].map(OsString::from).to_vec()));
        for (bad, line) in [("A=1\n=2", "line 2"), ("NONE_THAT_IS_SET", "line 1")] {
            assert!(read(bad).is_err_and(|why| why.starts_with(line)), "{bad}");
        }
    }

    #[test]
    fn sizes_are_read_as_binary_units() {
        assert_eq!(parse_bytes("4096"), Ok(4096));
        assert_eq!(parse_bytes("4G"), Ok(4 << 30));
        assert_eq!(parse_bytes("1.5GiB"), Ok(3 << 29));
        assert_eq!(parse_bytes("512mb"), Ok(512 << 20));
        for bad in ["", "G", "4X", "-1", "1e9999G", "99999999999999T", "1.2.3G"] {
            assert!(parse_bytes(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn signals_are_read_by_name_and_number() {
        assert_eq!(parse_signal("SIGTERM"), Ok(15));
        assert_eq!(parse_signal("kill"), Ok(9));
        assert_eq!(parse_signal("0"), Ok(0));
        for bad in ["65", "-1", "FOO", ""] {
            assert!(parse_signal(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn process_is_a_positive_number() {
        assert_eq!(parse_pid("65600"), Ok(65_600));
        for bad in ["abc", "0", "-1", "", "4294967296"] {
            assert!(parse_pid(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn group_follows_the_user() {}
}
