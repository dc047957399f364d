//! How busy nodes are, for services that go where most of the CPUs are unused. A node says it only while there is such
//! a service, and only when it changed.

use std::collections::BTreeMap;

use cluster::{Engine, EngineError, LeaseId, Lookup, Op};

use crate::records::{decode, encode};

const LOADS: &str = "/loads/";
/// Of thousandths: smaller changes are not told.
const STEP: u32 = 50;

/// In thousandths of all CPUs.
pub fn told(lookup: &dyn Lookup) -> Result<BTreeMap<String, u32>, EngineError> {
    let entries = lookup.list(LOADS)?.entries;
    entries.iter().map(|entry| Ok((entry.key.trim_start_matches(LOADS).to_owned(), decode(entry)?))).collect()
}

/// What was measured last.
#[derive(Default)]
pub struct Meter {
    /// Of all CPUs, in ticks: time that was used, and all.
    before: Option<(u64, u64)>,
    told: Option<(u32, LeaseId)>,
}

impl Meter {
    /// Measures since it was called last, and tells it if it changed.
    pub fn tell(&mut self, engine: &dyn Engine, node: &str, lease: LeaseId) -> Result<(), EngineError> {
        let stat = std::fs::read_to_string("/proc/stat").unwrap_or_default();
        let Some(now) = parse(&stat) else { return Ok(()) };
        let Some(before) = self.before.replace(now) else { return Ok(()) };
        let load = between(before, now);
        let is_same = self.told.is_some_and(|(told, of)| of == lease && told.abs_diff(load) < STEP);
        if is_same {
            return Ok(());
        }
        engine.transact(&[], &[Op::put_leased(format!("{LOADS}{node}"), encode(&load), lease)])?;
        self.told = Some((load, lease));
        Ok(())
    }
}

fn between((used, all): (u64, u64), (used_now, all_now): (u64, u64)) -> u32 {
    let (used, all) = (used_now.saturating_sub(used), all_now.saturating_sub(all).max(1));
    u32::try_from(used.saturating_mul(1000) / all).unwrap_or(1000).min(1000)
}

/// The first line of `/proc/stat` (proc(5)): idle and waiting time is what is not used.
fn parse(stat: &str) -> Option<(u64, u64)> {
    let line = stat.lines().next()?.strip_prefix("cpu ")?;
    let times: Vec<u64> = line.split_whitespace().take(8).filter_map(|field| field.parse().ok()).collect();
    let idle = times.get(3)?.saturating_add(*times.get(4)?);
    let all: u64 = times.iter().sum();
    Some((all.saturating_sub(idle), all))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn load_is_the_part_of_the_time_that_was_used() {
        let before = parse("cpu  10 0 10 80 0 0 0 0 0 0\ncpu0 1").unwrap();
        let now = parse("cpu  30 0 30 100 40 0 0 0 0 0\n").unwrap();
        assert_eq!((before, now), ((20, 100), (60, 200)));
        assert_eq!((between(before, now), between(now, now), between(now, before)), (400, 0, 0));
        assert_eq!((parse(""), parse("cpu  1 2")), (None, None));
    }
}
