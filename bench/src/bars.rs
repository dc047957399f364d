//! What is to be reached, and how far we came.

use crate::death::{Deaths, Load};
use crate::figures::{Figures, Group, Spread};
use crate::mechanism::Mechanism;
use crate::mechanism::Mechanism::{
    BareInPlace, Grpc, Iceoryx2, Iceoryx2Event, M3ipcAdaptive, M3ipcInPlace, M3ipcPark, M3ipcSpin, M3ipcStream,
    M3ipcStreamPlain, M3ipcVcopy, Pipe, Pipe64k, ProcessVmReadv, RustlsBulk, SharedMemory, Tcp, TcpBulk, UnixSeqpacket,
    Zeromq,
};
use crate::places::Placement::{self, Free, Same, Two};

/// A ratio of rates.
struct Bar {
    what: &'static str,
    ours: (Mechanism, Group),
    theirs: (Mechanism, Group),
    at_least: f64,
}

const fn pairs(nodes: u32, pairs: u32, placement: Placement) -> Group {
    Group { nodes, clients: 1, pairs, placement }
}

const fn crowd(nodes: u32) -> Group {
    Group { nodes, clients: 64, pairs: 1, placement: Free }
}

const fn bar(what: &'static str, ours: Mechanism, theirs: Mechanism, group: Group, at_least: f64) -> Bar {
    Bar { what, ours: (ours, group), theirs: (theirs, group), at_least }
}

const LOCAL: [Bar; 20] = [
    bar("sendrec, one pair, free", M3ipcAdaptive, Pipe, pairs(1, 1, Free), 40.0),
    bar("sendrec, one pair, free", M3ipcAdaptive, UnixSeqpacket, pairs(1, 1, Free), 40.0),
    bar("sendrec, one pair, two CPUs", M3ipcAdaptive, Pipe, pairs(1, 1, Two), 100.0),
    bar("sendrec, one pair, two CPUs", M3ipcAdaptive, SharedMemory, pairs(1, 1, Two), 0.7),
    bar("sendrec, one pair, same CPU", M3ipcAdaptive, Pipe, pairs(1, 1, Same), 1.3),
    bar("sendrec, four pairs, free", M3ipcAdaptive, Pipe, pairs(1, 4, Free), 1.7),
    bar("sendrec, four pairs, free", M3ipcAdaptive, UnixSeqpacket, pairs(1, 4, Free), 2.5),
    bar("spin mode, two CPUs", M3ipcSpin, Iceoryx2, pairs(1, 1, Two), 1.0),
    bar("park mode, two CPUs", M3ipcPark, Iceoryx2Event, pairs(1, 1, Two), 1.3),
    bar("park mode, same CPU", M3ipcPark, Iceoryx2Event, pairs(1, 1, Same), 1.5),
    bar("sendrec, one pair, free", M3ipcAdaptive, Zeromq, pairs(1, 1, Free), 40.0),
    bar("sendrec, one pair, free", M3ipcAdaptive, Grpc, pairs(1, 1, Free), 40.0),
    bar("64 clients of one server, adaptive", M3ipcAdaptive, UnixSeqpacket, crowd(1), 4.0),
    bar("64 clients of one server, park", M3ipcPark, UnixSeqpacket, crowd(1), 1.3),
    bar("vcopy of 64 KiB, free", M3ipcVcopy, ProcessVmReadv, pairs(1, 1, Free), 1.25),
    bar("vcopy of 64 KiB, same CPU", M3ipcVcopy, ProcessVmReadv, pairs(1, 1, Same), 1.25),
    bar("vcopy of 64 KiB, free", M3ipcVcopy, Pipe64k, pairs(1, 1, Free), 3.0),
    bar("vcopy of 64 KiB, same CPU", M3ipcVcopy, Pipe64k, pairs(1, 1, Same), 2.0),
    bar("64 KiB in place, free", M3ipcInPlace, BareInPlace, pairs(1, 1, Free), 0.8),
    bar("64 KiB in place, same CPU", M3ipcInPlace, BareInPlace, pairs(1, 1, Same), 0.8),
];

const REMOTE: [Bar; 6] = [
    bar("sendrec over TLS, one outstanding, free", M3ipcAdaptive, Tcp, pairs(2, 1, Free), 1.5),
    bar("sendrec over TLS, one outstanding, same CPU", M3ipcAdaptive, Tcp, pairs(2, 1, Same), 0.5),
    Bar {
        what: "64 callers over TLS; TCP with one",
        ours: (M3ipcAdaptive, crowd(2)),
        theirs: (Tcp, pairs(2, 1, Free)),
        at_least: 10.0,
    },
    bar("64 callers over TLS", M3ipcAdaptive, Grpc, crowd(2), 3.0),
    bar("vcopy of 1 MiB after 1 MiB, TLS off", M3ipcStreamPlain, TcpBulk, pairs(2, 1, Free), 0.8),
    bar("vcopy of 1 MiB after 1 MiB, TLS on", M3ipcStream, RustlsBulk, pairs(2, 1, Free), 0.8),
];

/// A time that is not to be exceeded.
struct Limit {
    what: &'static str,
    load: Load,
    of: fn(&Deaths) -> f64,
    below_ms: f64,
}

const DEATHS: [Limit; 3] = [
    Limit { what: "death of a peer, idle, p50", load: Load::Idle, of: |deaths| deaths.p50_ms, below_ms: 0.5 },
    Limit { what: "death of a peer, idle, p99", load: Load::Idle, of: |deaths| deaths.p99_ms, below_ms: 5.0 },
    Limit { what: "death of a peer, CPUs busy, p99", load: Load::Busy, of: |deaths| deaths.p99_ms, below_ms: 20.0 },
];

#[derive(Clone, PartialEq, Debug)]
pub enum Goal {
    AtLeast { times: f64, theirs: String },
    Below { limit: f64, unit: &'static str },
}

/// A bar and how far we came; nothing when it was not measured.
pub struct Reached {
    pub what: &'static str,
    pub goal: Goal,
    pub measured: Option<Spread>,
}

/// Of one machine.
pub fn local(figures: &Figures) -> Vec<Reached> {
    let ratios = LOCAL.iter().map(|bar| bar.reached(figures));
    ratios.chain(DEATHS.iter().map(|limit| limit.reached(figures))).collect()
}

/// Between nodes.
pub fn remote(figures: &Figures) -> Vec<Reached> {
    REMOTE.iter().map(|bar| bar.reached(figures)).collect()
}

impl Bar {
    fn reached(&self, figures: &Figures) -> Reached {
        let goal = Goal::AtLeast { times: self.at_least, theirs: self.theirs.0.to_string() };
        Reached { what: self.what, goal, measured: figures.ratio(self.ours, self.theirs) }
    }
}

impl Limit {
    fn reached(&self, figures: &Figures) -> Reached {
        let deaths = figures.deaths.iter().filter(|deaths| deaths.load == self.load);
        let measured = Spread::of(deaths.map(self.of).collect());
        Reached { what: self.what, goal: Goal::Below { limit: self.below_ms, unit: "ms" }, measured }
    }
}

impl Reached {
    pub fn is_reached(&self) -> bool {
        self.measured.is_some_and(|measured| match self.goal {
            Goal::AtLeast { times, .. } => measured.median >= times,
            Goal::Below { limit, .. } => measured.median < limit,
        })
    }
}

impl std::fmt::Display for Goal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Goal::AtLeast { times, theirs } => f.pad(&format!("{times} x {theirs}")),
            Goal::Below { limit, unit } => f.pad(&format!("below {limit} {unit}")),
        }
    }
}

impl std::fmt::Display for Reached {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}, {}: ", self.what, self.goal)?;
        match self.measured {
            Some(Spread { median, least, most }) => write!(f, "{median:.2} ({least:.2} to {most:.2})"),
            None => f.write_str("not measured"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bar_that_was_not_measured_is_not_reached() {
        let figures = Figures::new();
        let bars = local(&figures).into_iter().chain(remote(&figures));
        assert!(bars.into_iter().all(|bar| !bar.is_reached() && bar.to_string().ends_with("not measured")));
    }

    #[test]
    fn death_that_took_its_limit_is_too_late() {
        let mut figures = Figures::new();
        let after =
            |p50_ms| Deaths { load: Load::Idle, kills: 1, p50_ms, p99_ms: 1.0, most_ms: 1.0, steal_percent: 0.0 };
        figures.deaths.push(after(0.5));
        let is_reached = |figures: &Figures| local(figures).iter().filter(|bar| bar.is_reached()).count();
        assert_eq!(is_reached(&figures), 1);
        figures.deaths[0] = after(0.49);
        assert_eq!(is_reached(&figures), 2);
    }
}
