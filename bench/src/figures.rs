//! What was measured, and what follows from it: medians over rounds, ratios within rounds.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::death::Deaths;
use crate::mechanism::{Family, Mechanism};
use crate::places::{Placement, cpus};
use crate::role::{Report, Used};

/// What is compared with each other.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize)]
pub struct Group {
    /// 2 when client and server are on a node each.
    pub nodes: u32,
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
    /// How it waits.
    pub mode: &'static str,
    #[serde(flatten)]
    pub group: Group,
    /// Bytes that a trip moves in its larger direction.
    pub size: usize,
    pub round: u32,
    pub trips_per_second: f64,
    pub p50_us: f64,
    pub p99_us: f64,
    pub p999_us: f64,
    /// Of all processes, proxies included.
    pub cpu_seconds_per_million: f64,
    /// Of all CPU time, what the host took away.
    pub steal_percent: f64,
    /// Of all CPU time, what processes used that are none of the bench's.
    pub foreign_percent: f64,
}

/// Bumped when a field changes its meaning or goes.
const SCHEMA: u32 = 1;

/// On which all of it was measured.
#[derive(Debug, Serialize)]
pub struct Machine {
    pub cpus: usize,
    pub kernel: String,
    pub processor: String,
}

#[derive(Debug, Serialize)]
pub struct Figures {
    pub schema: u32,
    #[serde(flatten)]
    pub machine: Machine,
    pub samples: Vec<Sample>,
    pub deaths: Vec<Deaths>,
}

/// A median with its spread.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Spread {
    pub median: f64,
    pub least: f64,
    pub most: f64,
}

/// What the machine and the proxies did during a measurement.
#[derive(Clone, Copy, Default)]
pub struct Others {
    /// Of the proxies.
    pub cpu_seconds: f64,
    pub machine: Spent,
}

impl Sample {
    pub fn of(
        mechanism: Mechanism,
        group: Group,
        round: u32,
        (clients, servers): (&[Report], &[Used]),
        others: Others,
    ) -> Sample {
        let worst = |of: fn(&Report) -> u64| clients.iter().map(of).max().unwrap_or(0) as f64 / 1e3;
        let trips: u64 = clients.iter().map(|report| report.all_trips).sum();
        let cpu: f64 = clients.iter().map(|report| report.cpu_seconds).sum();
        let cpu = cpu + servers.iter().map(|used| used.cpu_seconds).sum::<f64>() + others.cpu_seconds;
        Sample {
            mechanism,
            mode: mechanism.mode(),
            group,
            size: mechanism.family().bytes(),
            round,
            trips_per_second: clients.iter().map(|report| report.trips as f64 / report.seconds).sum(),
            p50_us: worst(|report| report.p50_ns),
            p99_us: worst(|report| report.p99_ns),
            p999_us: worst(|report| report.p999_ns),
            cpu_seconds_per_million: cpu / trips.max(1) as f64 * 1e6,
            steal_percent: others.machine.steal_percent,
            foreign_percent: others.machine.foreign_percent(cpu),
        }
    }
}

impl Figures {
    pub fn new() -> Figures {
        Figures { schema: SCHEMA, machine: Machine::this(), samples: Vec::new(), deaths: Vec::new() }
    }

    pub fn add(&mut self, sample: Sample) {
        self.samples.push(sample);
    }

    /// What was measured, in the order in which it is shown.
    pub fn tables(&self) -> Vec<(Group, Family)> {
        let mut tables: Vec<_> = self.samples.iter().map(|sample| (sample.mechanism.family(), sample.group)).collect();
        tables.sort_unstable();
        tables.dedup();
        tables.into_iter().map(|(family, group)| (group, family)).collect()
    }

    /// The mechanisms of a table.
    pub fn mechanisms_of(&self, group: Group, family: Family) -> Vec<Mechanism> {
        let samples = self.samples.iter().filter(|sample| sample.group == group);
        let mut mechanisms: Vec<_> =
            samples.map(|sample| sample.mechanism).filter(|mechanism| mechanism.family() == family).collect();
        mechanisms.sort_unstable();
        mechanisms.dedup();
        mechanisms
    }

    /// Of one mechanism in one group, by round.
    pub fn of(&self, mechanism: Mechanism, group: Group) -> Vec<&Sample> {
        self.samples.iter().filter(|sample| sample.mechanism == mechanism && sample.group == group).collect()
    }

    /// Ratios of the rates, each within its round; `None` when there is none.
    pub fn ratio(&self, ours: (Mechanism, Group), theirs: (Mechanism, Group)) -> Option<Spread> {
        let theirs: BTreeMap<u32, f64> =
            self.of(theirs.0, theirs.1).into_iter().map(|sample| (sample.round, sample.trips_per_second)).collect();
        let ours = self.of(ours.0, ours.1);
        let ratios = ours.into_iter().filter_map(|sample| Some(sample.trips_per_second / theirs.get(&sample.round)?));
        Spread::of(ratios.collect())
    }
}

impl Machine {
    pub fn this() -> Machine {
        let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
        let info = read("/proc/cpuinfo");
        let processor = info.lines().find_map(|line| line.strip_prefix("model name")).unwrap_or_default();
        Machine {
            cpus: cpus().map_or(0, |cpus| cpus.len()),
            kernel: read("/proc/sys/kernel/osrelease").trim().to_owned(),
            processor: processor.trim_start_matches([' ', '\t', ':']).to_owned(),
        }
    }
}

impl std::fmt::Display for Machine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}, {} CPUs, Linux {}.", self.processor, self.cpus, self.kernel)
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

/// What the CPUs did so far, in seconds of all of them together.
pub struct Account {
    busy: f64,
    stolen: f64,
    total: f64,
}

/// What they did in a measurement.
#[derive(Clone, Copy, Default)]
pub struct Spent {
    busy: f64,
    total: f64,
    pub steal_percent: f64,
}

impl Account {
    pub fn now() -> Account {
        let text = std::fs::read_to_string("/proc/stat").unwrap_or_default();
        let line = text.lines().next().unwrap_or_default();
        // user nice system idle iowait irq softirq steal; guest time is part of user's.
        let ticks: Vec<f64> = line.split_whitespace().skip(1).take(8).filter_map(|one| one.parse().ok()).collect();
        let of =
            |index: usize| ticks.get(index).copied().unwrap_or(0.0) / rustix::param::clock_ticks_per_second() as f64;
        let total = (0..8).map(of).sum::<f64>();
        Account { busy: total - of(3) - of(4) - of(7), stolen: of(7), total }
    }

    pub fn until_now(&self) -> Spent {
        let now = Account::now();
        let total = (now.total - self.total).max(0.01);
        Spent { busy: now.busy - self.busy, total, steal_percent: 100.0 * (now.stolen - self.stolen) / total }
    }
}

impl Spent {
    /// Percent of all time that went to others than those who used `own` seconds.
    fn foreign_percent(&self, own: f64) -> f64 {
        100.0 * (self.busy - own).max(0.0) / self.total.max(0.01)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FREE: Group = Group { nodes: 1, clients: 1, pairs: 1, placement: Placement::Free };

    fn sample(mechanism: Mechanism, round: u32, trips_per_second: f64) -> Sample {
        Sample { trips_per_second, ..Sample::of(mechanism, FREE, round, (&[], &[]), Others::default()) }
    }

    #[test]
    fn median_of_an_even_number_lies_between_the_two_in_the_middle() {
        assert_eq!(Spread::of(vec![4.0, 1.0, 2.0, 3.0]), Some(Spread { median: 2.5, least: 1.0, most: 4.0 }));
        assert_eq!(Spread::of(Vec::new()), None);
    }

    #[test]
    fn ratios_are_made_within_a_round_and_of_what_was_measured_in_both() {
        let mut figures = Figures::new();
        for (round, pipe, ours) in [(0, 10.0, 400.0), (1, 20.0, 400.0), (2, 5.0, 300.0)] {
            figures.add(sample(Mechanism::Pipe, round, pipe));
            figures.add(sample(Mechanism::M3ipcAdaptive, round, ours));
        }
        figures.add(sample(Mechanism::M3ipcAdaptive, 3, 1.0));
        let ratio = figures.ratio((Mechanism::M3ipcAdaptive, FREE), (Mechanism::Pipe, FREE));
        assert_eq!(ratio, Some(Spread { median: 40.0, least: 20.0, most: 60.0 }));
    }
}
