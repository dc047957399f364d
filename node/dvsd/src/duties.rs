//! Whether the daemon does what it is there for. The service manager's watchdog hears of it (`service_manager`), and
//! `/livez`.
//!
//! A duty is work that is begun with a limit and then done. It is overdue when its limit has passed and it is still
//! under way: a thread that waits for ever is found so, and one that has nothing to do is not suspected. The
//! limits are far above what the work takes when the engine, other nodes or the disk are slow, because a daemon that is
//! replaced mends none of these.
//!
//! | duty | limit |
//! |---|---|
//! | the report of the node's health, which asks engine, broker and proxies | [`REPORT_LIMIT`] |
//! | one turn of each container's worker | the grace of its programs and [`TURN_LIMIT`] |
//!
//! That the API's runtime turns is shown by who asks: it is a task there.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// Four calls to the engine, each of at most some ten seconds when no member of it answers.
pub const REPORT_LIMIT: Duration = Duration::from_secs(120);
/// Beyond the grace of programs: parts that end or begin one after the other, each with a limit of its own.
pub const TURN_LIMIT: Duration = Duration::from_secs(600);

/// What is under way, by name. Bounded by the number of containers of a node.
#[derive(Default)]
pub struct Duties {
    under_way: Mutex<BTreeMap<String, Instant>>,
}

/// Dropped, the work is done.
pub struct UnderWay<'a> {
    duties: &'a Duties,
    name: String,
}

impl Duties {
    /// From now on, for at most `limit`.
    pub fn begin(&self, name: &str, limit: Duration) -> UnderWay<'_> {
        let now = Instant::now();
        // A limit that no clock can hold is none.
        let until = now.checked_add(limit).unwrap_or(now + TURN_LIMIT);
        self.under_way.lock().insert(name.to_owned(), until);
        UnderWay { duties: self, name: name.to_owned() }
    }

    /// What should have been done before `now`, with how long ago.
    pub fn overdue(&self, now: Instant) -> Vec<(String, Duration)> {
        let late = |until: &Instant| now.checked_duration_since(*until).filter(|late| !late.is_zero());
        self.under_way.lock().iter().filter_map(|(name, until)| Some((name.clone(), late(until)?))).collect()
    }

    /// The same in words; empty: all is well.
    pub fn problems(&self) -> Vec<String> {
        let overdue = self.overdue(Instant::now()).into_iter();
        overdue.map(|(name, late)| format!("{name}: does not come to its end, {} s late", late.as_secs())).collect()
    }
}

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        self.duties.under_way.lock().remove(&self.name);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_is_overdue_only_while_it_is_under_way_and_its_limit_has_passed() {
        let duties = Duties::default();
        let began = Instant::now();
        let report = duties.begin("report", Duration::from_secs(10));
        let turn = duties.begin("container shop", Duration::from_secs(100));
        assert!(duties.overdue(began + Duration::from_secs(9)).is_empty());
        let names = |after: u64| {
            let overdue = duties.overdue(began + Duration::from_secs(after)).into_iter();
            overdue.map(|(name, _)| name).collect::<Vec<_>>()
        };
        assert_eq!(names(50), ["report"]);
        drop(report);
        assert!(names(50).is_empty());
        assert_eq!(names(200), ["container shop"]);
        drop(turn);
        let again = duties.begin("report", Duration::from_secs(1000));
        assert!(names(200).is_empty());
        drop(again);
    }

    #[test]
    fn limit_that_no_clock_holds_does_not_panic() {
        let duties = Duties::default();
        let _work = duties.begin("report", Duration::MAX);
        assert!(duties.problems().is_empty());
    }
}
