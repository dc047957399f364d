//! What was measured, and what follows from it: medians over rounds, ratios within rounds, bars.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::mechanism::Mechanism;
use crate::places::Placement;
use crate::role::{Report, Used};

/// What is compared with each other.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize)]
pub struct Group {
    /// Of each server.
    pub clients: u32,
    /// Servers.
    pub pairs: u32,
    pub placement: Placement,
}

/// One measurement. Rates are of all pairs together; of latencies, the worst client's.
#[derive(Clone, Debug, Serialize)]
pub struct Sample {
    pub mechanism: Mechanism,
    #[serde(flatten)]
    pub group: Group,
    pub round: u32,
    pub trips_per_second: f64,
    pub p50_us: f64,
    pub p99_us: f64,
    pub p999_us: f64,
    /// Clients and servers together.
    pub cpu_seconds_per_million: f64,
    /// Of all CPU time, what the host took away.
    pub steal_percent: f64,
}

#[derive(Debug, Serialize)]
pub struct Figures {
    pub cpus: usize,
    pub frame_bytes: usize,
    pub kernel: String,
    pub processor: String,
    pub samples: Vec<Sample>,
}

/// A median with its spread.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Spread {
    pub median: f64,
    pub least: f64,
    pub most: f64,
}

/// A ratio that is to be reached.
struct Bar {
    what: &'static str,
    ours: Mechanism,
    theirs: Mechanism,
    group: Group,
    at_least: f64,
}

const fn bar(what: &'static str, theirs: Mechanism, (placement, pairs): (Placement, u32), at_least: f64) -> Bar {
    Bar { what, ours: Mechanism::M3ipcAdaptive, theirs, group: Group { clients: 1, pairs, placement }, at_least }
}

const fn crowd(what: &'static str, ours: Mechanism, at_least: f64) -> Bar {
    let group = Group { clients: 64, pairs: 1, placement: Placement::Free };
    Bar { what, ours, theirs: Mechanism::UnixSeqpacket, group, at_least }
}

const BARS: [Bar; 9] = [
    bar("sendrec, one pair, free", Mechanism::Pipe, (Placement::Free, 1), 40.0),
    bar("sendrec, one pair, free", Mechanism::UnixSeqpacket, (Placement::Free, 1), 40.0),
    bar("sendrec, one pair, two CPUs", Mechanism::Pipe, (Placement::Two, 1), 100.0),
    bar("sendrec, one pair, two CPUs", Mechanism::SharedMemory, (Placement::Two, 1), 0.7),
    bar("sendrec, one pair, same CPU", Mechanism::Pipe, (Placement::Same, 1), 1.3),
    bar("sendrec, four pairs, free", Mechanism::Pipe, (Placement::Free, 4), 1.7),
    bar("sendrec, four pairs, free", Mechanism::UnixSeqpacket, (Placement::Free, 4), 2.5),
    crowd("64 clients of one server, adaptive", Mechanism::M3ipcAdaptive, 4.0),
    crowd("64 clients of one server, park", Mechanism::M3ipcPark, 1.3),
];

/// A bar and how far we came; no ratio when it was not measured.
pub struct Reached {
    pub what: &'static str,
    pub theirs: Mechanism,
    pub ratio: Option<Spread>,
    pub at_least: f64,
}

impl Reached {
    pub fn is_reached(&self) -> bool {
        self.ratio.is_some_and(|ratio| ratio.median >= self.at_least)
    }
}

impl std::fmt::Display for Reached {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}, {} x {}: ", self.what, self.at_least, self.theirs)?;
        match self.ratio {
            Some(Spread { median, least, most }) => write!(f, "{median:.2} ({least:.2} to {most:.2})"),
            None => f.write_str("not measured"),
        }
    }
}

impl Sample {
    pub fn of(
        mechanism: Mechanism,
        group: Group,
        round: u32,
        (clients, servers): (&[Report], &[Used]),
        steal_percent: f64,
    ) -> Sample {
        let worst = |of: fn(&Report) -> u64| clients.iter().map(of).max().unwrap_or(0) as f64 / 1e3;
        let trips: u64 = clients.iter().map(|report| report.all_trips).sum();
        let cpu: f64 = clients.iter().map(|report| report.cpu_seconds).sum();
        let cpu = cpu + servers.iter().map(|used| used.cpu_seconds).sum::<f64>();
        Sample {
            mechanism,
            group,
            round,
            trips_per_second: clients.iter().map(|report| report.trips as f64 / report.seconds).sum(),
            p50_us: worst(|report| report.p50_ns),
            p99_us: worst(|report| report.p99_ns),
            p999_us: worst(|report| report.p999_ns),
            cpu_seconds_per_million: cpu / trips.max(1) as f64 * 1e6,
            steal_percent,
        }
    }
}

impl Figures {
    pub fn new(cpus: usize) -> Figures {
        let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
        let info = read("/proc/cpuinfo");
        let processor = info.lines().find_map(|line| line.strip_prefix("model name")).unwrap_or_default();
        Figures {
            cpus,
            frame_bytes: crate::mechanism::FRAME_BYTES,
            kernel: read("/proc/sys/kernel/osrelease").trim().to_owned(),
            processor: processor.trim_start_matches([' ', '\t', ':']).to_owned(),
            samples: Vec::new(),
        }
    }

    pub fn add(&mut self, sample: Sample) {
        self.samples.push(sample);
    }

    /// What was measured, in the order in which it is shown.
    pub fn groups(&self) -> Vec<Group> {
        let mut groups: Vec<_> = self.samples.iter().map(|sample| sample.group).collect();
        groups.sort_unstable();
        groups.dedup();
        groups
    }

    /// Of one mechanism in one group, by round.
    pub fn of(&self, mechanism: Mechanism, group: Group) -> Vec<&Sample> {
        self.samples.iter().filter(|sample| sample.mechanism == mechanism && sample.group == group).collect()
    }

    /// Ratios of the rates, each within its round; `None` when there is none.
    pub fn ratio(&self, ours: Mechanism, theirs: Mechanism, group: Group) -> Option<Spread> {
        let theirs: BTreeMap<u32, f64> =
            self.of(theirs, group).into_iter().map(|sample| (sample.round, sample.trips_per_second)).collect();
        let ours = self.of(ours, group);
        let ratios = ours.into_iter().filter_map(|sample| Some(sample.trips_per_second / theirs.get(&sample.round)?));
        Spread::of(ratios.collect())
    }

    pub fn bars(&self) -> Vec<Reached> {
        let reached = |bar: &Bar| Reached {
            what: bar.what,
            theirs: bar.theirs,
            ratio: self.ratio(bar.ours, bar.theirs, bar.group),
            at_least: bar.at_least,
        };
        BARS.iter().map(reached).collect()
    }
}

impl Spread {
    /// `None` of nothing.
    pub fn of(mut values: Vec<f64>) -> Option<Spread> {
        values.sort_by(f64::total_cmp);
        let (least, most) = (*values.first()?, *values.last()?);
        let middle = values.len() / 2;
        let median = if values.len() % 2 == 1 { values[middle] } else { (values[middle - 1] + values[middle]) / 2.0 };
        Some(Spread { median, least, most })
    }
}

/// Ticks of all CPUs: stolen by the host, and in all.
pub struct Steal {
    stolen: f64,
    total: f64,
}

impl Steal {
    pub fn now() -> Steal {
        let text = std::fs::read_to_string("/proc/stat").unwrap_or_default();
        let line = text.lines().next().unwrap_or_default();
        // user nice system idle iowait irq softirq steal; guest time is part of user's.
        let ticks: Vec<f64> = line.split_whitespace().skip(1).take(8).filter_map(|one| one.parse().ok()).collect();
        Steal { stolen: ticks.get(7).copied().unwrap_or(0.0), total: ticks.iter().sum() }
    }

    /// Percent of all time that the host took away since.
    pub fn until_now(&self) -> f64 {
        let now = Steal::now();
        100.0 * (now.stolen - self.stolen) / (now.total - self.total).max(1.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FREE: Group = Group { clients: 1, pairs: 1, placement: Placement::Free };

    fn sample(mechanism: Mechanism, round: u32, trips_per_second: f64) -> Sample {
        Sample { trips_per_second, ..Sample::of(mechanism, FREE, round, (&[], &[]), 0.0) }
    }

    #[test]
    fn median_of_an_even_number_lies_between_the_two_in_the_middle() {
        assert_eq!(Spread::of(vec![4.0, 1.0, 2.0, 3.0]), Some(Spread { median: 2.5, least: 1.0, most: 4.0 }));
        assert_eq!(Spread::of(Vec::new()), None);
    }

    #[test]
    fn ratios_are_made_within_a_round_and_of_what_was_measured_in_both() {
        let mut figures = Figures::new(2);
        for (round, pipe, ours) in [(0, 10.0, 400.0), (1, 20.0, 400.0), (2, 5.0, 300.0)] {
            figures.add(sample(Mechanism::Pipe, round, pipe));
            figures.add(sample(Mechanism::M3ipcAdaptive, round, ours));
        }
        figures.add(sample(Mechanism::M3ipcAdaptive, 3, 1.0));
        let ratio = figures.ratio(Mechanism::M3ipcAdaptive, Mechanism::Pipe, FREE);
        assert_eq!(ratio, Some(Spread { median: 40.0, least: 20.0, most: 60.0 }));
    }

    #[test]
    fn bar_that_was_not_measured_is_not_reached() {
        let figures = Figures::new(2);
        assert!(figures.bars().iter().all(|bar| !bar.is_reached() && bar.to_string().ends_with("not measured")));
    }
}
