//! Figures as people read them.

use std::fmt::Write;

use crate::bars::Reached;
use crate::death::{Deaths, Load};
use crate::figures::{Figures, Group, Sample, Spread};
use crate::mechanism::{Family, Mechanism};
use crate::places::Placement;

/// Whom the others are compared with in a table of their own.
fn baselines(family: Family, nodes: u32) -> &'static [(Mechanism, &'static str)] {
    match (family, nodes) {
        (Family::Messages, 1) => {
            &[(Mechanism::Pipe, "x pipe"), (Mechanism::UnixSeqpacket, "x seqp."), (Mechanism::SharedMemory, "x limit")]
        }
        (Family::Messages, _) => &[(Mechanism::Tcp, "x TCP"), (Mechanism::Grpc, "x gRPC")],
        (Family::Copies, _) => &[
            (Mechanism::ProcessVmReadv, "x readv"),
            (Mechanism::Pipe64k, "x pipe"),
            (Mechanism::BareInPlace, "x bare"),
        ],
        (Family::Streams, _) => &[(Mechanism::TcpBulk, "x TCP"), (Mechanism::RustlsBulk, "x rustls")],
    }
}

pub fn of(figures: &Figures) -> String {
    let mut out = String::new();
    let _ = writeln!(out, "{} Medians over rounds (least to most).", figures.machine);
    for (group, family) in figures.tables() {
        table(&mut out, figures, group, family);
    }
    deaths(&mut out, &figures.deaths);
    out
}

fn table(out: &mut String, figures: &Figures, group: Group, family: Family) {
    let baselines = baselines(family, group.nodes);
    let _ = writeln!(out, "\n{}: {}, {}", subject(family), who(group), place(group));
    let rate = if family == Family::Messages { "trips/s" } else { "MB/s" };
    let _ = write!(
        out,
        "  {:<19}{rate:>10} {:>21}{:>9}{:>9}{:>10}{:>9}",
        "", "", "p50 us", "p99 us", "p99.9 us", "CPU s/M"
    );
    for (_, name) in baselines {
        let _ = write!(out, "{name:>9}");
    }
    let _ = writeln!(out, "{:>8}{:>8}", "steal", "foreign");
    for mechanism in figures.mechanisms_of(group, family) {
        row(out, figures, (mechanism, group), baselines);
    }
}

fn subject(family: Family) -> &'static str {
    match family {
        Family::Messages => "Round trips of 64 bytes",
        Family::Copies => "64 KiB written there and read here, with an answer",
        Family::Streams => "1 MiB after 1 MiB",
    }
}

fn who(group: Group) -> String {
    match (group.clients, group.pairs) {
        (1, 1) => "1 pair".to_owned(),
        (1, pairs) => format!("{pairs} pairs"),
        (clients, _) => format!("{clients} clients of one server"),
    }
}

fn place(group: Group) -> &'static str {
    match (group.nodes, group.placement) {
        (1, Placement::Same) => "client and server on the same CPU",
        (1, Placement::Two) => "client and server on a CPU each",
        (1, Placement::Free) => "left to the scheduler",
        (_, Placement::Same) => "two nodes, everybody on the same CPU",
        (_, Placement::Two) => "two nodes, client and server on a CPU each",
        (_, Placement::Free) => "two nodes, left to the scheduler",
    }
}

fn row(out: &mut String, figures: &Figures, which: (Mechanism, Group), baselines: &[(Mechanism, &str)]) {
    let samples = figures.of(which.0, which.1);
    let spread = |of: &dyn Fn(&Sample) -> f64| Spread::of(samples.iter().map(|sample| of(sample)).collect());
    let median = |of: &dyn Fn(&Sample) -> f64| spread(of).map_or(0.0, |spread| spread.median);
    let rate = spread(&|sample| match which.0.family() {
        Family::Messages => sample.trips_per_second,
        Family::Copies | Family::Streams => sample.trips_per_second * sample.size as f64 / 1e6,
    });
    let Spread { median: rate, least, most } = rate.unwrap_or(Spread { median: 0.0, least: 0.0, most: 0.0 });
    let _ = write!(
        out,
        "  {:<19}{rate:>10.0} {:>21}{:>9.2}{:>9.1}{:>10.1}{:>9.2}",
        which.0.to_string(),
        format!("({least:.0} to {most:.0})"),
        median(&|sample| sample.p50_us),
        median(&|sample| sample.p99_us),
        median(&|sample| sample.p999_us),
        median(&|sample| sample.cpu_seconds_per_million),
    );
    for (theirs, _) in baselines {
        let ratio = figures.ratio(which, (*theirs, which.1));
        let _ = write!(out, "{:>9}", ratio.map_or_else(|| "-".to_owned(), |ratio| format!("{:.2}", ratio.median)));
    }
    let [steal, foreign] = [median(&|sample| sample.steal_percent), median(&|sample| sample.foreign_percent)];
    let _ = writeln!(out, "{steal:>7.1}%{foreign:>7.1}%");
}

fn deaths(out: &mut String, all: &[Deaths]) {
    if !all.is_empty() {
        let _ = writeln!(out, "\nFrom the SIGKILL of a peer to the typed error, ms");
    }
    for deaths in all {
        let load = match deaths.load {
            Load::Idle => "idle",
            Load::Busy => "all CPUs busy",
        };
        let Deaths { kills, p50_ms, p99_ms, most_ms, steal_percent, .. } = deaths;
        let _ = writeln!(
            out,
            "  {load:<19}{kills:>5} kills, p50 {p50_ms:.3}, p99 {p99_ms:.3}, most {most_ms:.3}, steal {steal_percent:.1}%"
        );
    }
}

pub fn of_bars(bars: &[Reached]) -> String {
    let mut out = String::from("\nTo reach (median of the rounds' ratios)\n");
    for bar in bars.iter().filter(|bar| bar.measured.is_some()) {
        let verdict = if bar.is_reached() { "reached" } else { "short" };
        let measured =
            bar.measured.map_or_else(String::new, |it| format!("{:.2} ({:.2} to {:.2})", it.median, it.least, it.most));
        let _ = writeln!(out, "  {:<44}{:<24}{measured:>26}  {verdict}", bar.what, bar.goal);
    }
    let missing = bars.iter().filter(|bar| bar.measured.is_none()).count();
    if missing > 0 {
        let _ = writeln!(out, "  {missing} more were not measured in this run");
    }
    out
}
