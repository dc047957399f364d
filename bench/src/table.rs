//! Figures as people read them.

use std::fmt::Write;

use crate::figures::{Figures, Group, Reached, Sample, Spread};
use crate::mechanism::{ALL, Mechanism};
use crate::places::Placement;

pub fn of(figures: &Figures) -> String {
    let mut out = String::new();
    let Figures { cpus, frame_bytes, kernel, processor, .. } = figures;
    let _ = writeln!(
        out,
        "Round trips of {frame_bytes} bytes. {processor}, {cpus} CPUs, Linux {kernel}. Medians over rounds (least to most)."
    );
    for group in figures.groups() {
        let Group { clients, pairs, placement } = group;
        let place = match placement {
            Placement::Same => "client and server on the same CPU",
            Placement::Two => "client and server on a CPU each",
            Placement::Free => "left to the scheduler",
        };
        let who = match (clients, pairs) {
            (1, 1) => "1 pair".to_owned(),
            (1, pairs) => format!("{pairs} pairs"),
            (clients, _) => format!("{clients} clients of one server"),
        };
        let _ = writeln!(out, "\n{who}, {place}");
        let _ = writeln!(
            out,
            "  {:<16}{:>11} {:>23}{:>10}{:>10}{:>10}{:>9}{:>9}{:>9}{:>9}{:>8}",
            "", "trips/s", "", "p50 us", "p99 us", "p99.9 us", "CPU s/M", "x pipe", "x seqp.", "x limit", "steal"
        );
        for mechanism in ALL {
            let samples = figures.of(mechanism, group);
            if !samples.is_empty() {
                row(&mut out, figures, mechanism, group, &samples);
            }
        }
    }
    out
}

fn row(out: &mut String, figures: &Figures, mechanism: Mechanism, group: Group, samples: &[&Sample]) {
    let spread = |of: fn(&Sample) -> f64| Spread::of(samples.iter().map(|sample| of(sample)).collect());
    let median = |of: fn(&Sample) -> f64| spread(of).map_or(0.0, |spread| spread.median);
    let rate = spread(|sample| sample.trips_per_second);
    let Spread { median: trips, least, most } = rate.unwrap_or(Spread { median: 0.0, least: 0.0, most: 0.0 });
    let ratio = |theirs: Mechanism| {
        let ratio = figures.ratio(mechanism, theirs, group);
        ratio.map_or_else(|| "-".to_owned(), |ratio| format!("{:.2}", ratio.median))
    };
    let _ = writeln!(
        out,
        "  {:<16}{trips:>11.0} {:>23}{:>10.2}{:>10.2}{:>10.1}{:>9.2}{:>9}{:>9}{:>9}{:>7.1}%",
        mechanism.to_string(),
        format!("({least:.0} to {most:.0})"),
        median(|sample| sample.p50_us),
        median(|sample| sample.p99_us),
        median(|sample| sample.p999_us),
        median(|sample| sample.cpu_seconds_per_million),
        ratio(Mechanism::Pipe),
        ratio(Mechanism::UnixSeqpacket),
        ratio(Mechanism::SharedMemory),
        median(|sample| sample.steal_percent),
    );
}

pub fn of_bars(bars: &[Reached]) -> String {
    let mut out = String::from("\nTo reach (median of the rounds' ratios)\n");
    for bar in bars {
        let verdict = match (bar.is_reached(), bar.ratio) {
            (true, _) => "reached",
            (false, Some(_)) => "short",
            (false, None) => "not measured",
        };
        let ratio =
            bar.ratio.map_or_else(String::new, |it| format!("{:.2} ({:.2} to {:.2})", it.median, it.least, it.most));
        let _ = writeln!(
            out,
            "  {:<36}{:>5} x {:<16}{ratio:>26}  {verdict}",
            bar.what,
            bar.at_least,
            bar.theirs.to_string()
        );
    }
    out
}
