//! A member that ends again and again, in words for people: when that is so, and what its log says of the reason. Pure,
//! but for reading the log.

use std::collections::VecDeque;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::Value;

/// One that ended once, or twice in a day, is started again and no news.
const MANY: usize = 3;
const LATELY: Duration = Duration::from_secs(120);
/// One that runs for so long has got over it.
pub const PROVEN: Duration = Duration::from_secs(30);
/// The reason is among its last words; a stack may follow.
const TAIL_BYTES: u64 = 16 * 1024;
/// Of what is told.
const WORDS_MAX: usize = 300;

/// The last times that it ended.
#[derive(Default)]
pub struct Endings {
    at: VecDeque<Instant>,
}

impl Endings {
    pub fn ended(&mut self, now: Instant) {
        self.at.push_back(now);
        while self.at.len() > MANY {
            self.at.pop_front();
        }
    }

    /// It has ended lately, and has not run for long since.
    pub fn is_unproven(&self, now: Instant) -> bool {
        self.at.back().is_some_and(|last| now.saturating_duration_since(*last) < PROVEN)
    }

    pub fn are_many(&self, now: Instant) -> bool {
        let (Some(first), Some(last)) = (self.at.front(), self.at.back()) else { return false };
        self.at.len() == MANY && last.saturating_duration_since(*first) < LATELY && self.is_unproven(now)
    }
}

/// What is said of it.
pub fn complaint(log: &Path) -> String {
    let words = last_words(log).map(|words| format!("; its last words: {words}")).unwrap_or_default();
    format!("engine: this node's member of etcd ends again and again{words} (tail {})", log.display())
}

/// Why the member ended, as its log has it.
pub fn last_words(log: &Path) -> Option<String> {
    let file = File::open(log).ok()?;
    let length = file.metadata().ok()?.len();
    let said = length.min(TAIL_BYTES);
    let mut bytes = vec![0; usize::try_from(said).ok()?];
    file.read_exact_at(&mut bytes, length - said).ok()?;
    reason(&String::from_utf8_lossy(&bytes))
}

/// The last line that says that something failed, or the last line of all.
fn reason(log: &str) -> Option<String> {
    let lines = || log.lines().rev().map(str::trim).filter(|line| !line.is_empty());
    let failure = lines().find_map(|line| {
        let entry: Value = serde_json::from_str(line).ok()?;
        let is_failure = matches!(entry.get("level")?.as_str()?, "fatal" | "panic" | "dpanic");
        is_failure.then(|| words_of(&entry))?
    });
    failure.or_else(|| lines().next().map(shown)).map(|words| shortened(&words))
}

/// A line as people read it: etcd writes objects, and what was to become etcd an error with its causes.
fn shown(line: &str) -> String {
    let line = line.strip_prefix("because: ").unwrap_or(line);
    let entry = serde_json::from_str::<Value>(line).ok();
    entry.and_then(|entry| words_of(&entry)).unwrap_or_else(|| line.to_owned())
}

fn words_of(entry: &Value) -> Option<String> {
    let message = entry.get("msg")?.as_str()?;
    Some(match entry.get("error").and_then(Value::as_str) {
        Some(error) => format!("{message}: {error}"),
        None => message.to_owned(),
    })
}

fn shortened(words: &str) -> String {
    let one_line = words.split_whitespace().collect::<Vec<_>>().join(" ");
    match one_line.char_indices().nth(WORDS_MAX) {
        Some((at, _)) => format!("{} ...", &one_line[..at]),
        None => one_line,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endings_are_many_when_three_come_soon_after_one_another_and_until_it_runs() {
        let begin = Instant::now();
        let at = |seconds| begin + Duration::from_secs(seconds);
        let mut endings = Endings::default();
        assert!(!endings.are_many(at(0)) && !endings.is_unproven(at(0)));
        endings.ended(at(0));
        endings.ended(at(2));
        assert!(!endings.are_many(at(2)) && endings.is_unproven(at(2)));
        endings.ended(at(4));
        assert!(endings.are_many(at(5)) && endings.are_many(at(33)));
        assert!(!endings.are_many(at(34)), "it runs");
        endings.ended(at(3000));
        assert!(!endings.are_many(at(3001)), "once in an hour");
        for seconds in 3001..4000 {
            endings.ended(at(seconds));
        }
        assert!(endings.are_many(at(4000)) && endings.at.len() == MANY);
    }

    #[test]
    fn reason_is_the_last_failure_in_the_log_or_its_last_line() {
        let info = r#"{"level":"info","ts":"x","msg":"starting"}"#;
        let fatal = r#"{"level":"fatal","ts":"x","caller":"etcdmain/etcd.go:271","msg":"discovery failed","error":"too old","stacktrace":"a\n\tb"}"#;
        assert_eq!(reason(&format!("{info}\n{fatal}\n{info}\n")).as_deref(), Some("discovery failed: too old"));
        assert_eq!(reason(&format!("{fatal}\n{info}\n\n")).as_deref(), Some("discovery failed: too old"));
        assert_eq!(reason(info).as_deref(), Some("starting"));
        assert_eq!(reason("{\"level\":7}\nlisten: address in use\n").as_deref(), Some("listen: address in use"));
        assert_eq!(reason(" \n"), None);
        let long = reason(&format!("a\u{e9} {}", "b ".repeat(500))).unwrap();
        assert!(long.ends_with(" ...") && long.chars().count() == WORDS_MAX + 4, "{long}");
    }

    #[test]
    fn complaint_names_the_log_and_is_said_without_one() {
        let place = tempfile::tempdir().unwrap();
        let log = place.path().join("etcd.log");
        assert!(complaint(&log).contains("again and again (tail "));
        std::fs::write(&log, "x".repeat(100_000) + "\n{\"level\":\"fatal\",\"msg\":\"no\"}\n").unwrap();
        let said = complaint(&log);
        assert!(said.contains("its last words: no (tail ") && said.contains("etcd.log"), "{said}");
    }
}
