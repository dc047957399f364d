//! Does faults, and heals them.

use parking_lot::Mutex;
use std::collections::BTreeSet;
use std::fs::File;
use std::io::{ErrorKind, Seek, SeekFrom, Write};
use std::path::Path;
use std::process::Output;
use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::robustness::Notes;
use crate::robustness::faults::{Fault, NODES, Node, Role, Round};
use crate::robustness::site::Site;
use crate::robustness::watch::{find, is_daemon, signal, table};

/// A node that nobody hears is not called well any more after this.
const TRUTH_WITHIN: Duration = Duration::from_millis(1500);
/// One `dvs dev` at a time works on a cluster.
const BUSY_FOR: Duration = Duration::from_secs(20);

pub struct Nemesis<'a> {
    pub site: &'a Site,
    pub notes: &'a Notes,
    /// Machines that are off. Two faults of a round shall not start one daemon twice, nor one on a machine that is off.
    off: Mutex<BTreeSet<Node>>,
}

impl<'a> Nemesis<'a> {
    pub fn new(site: &'a Site, notes: &'a Notes) -> Nemesis<'a> {
        Nemesis { site, notes, off: Mutex::default() }
    }

    /// All at once; returns when all are healed.
    pub fn act(&self, round: &Round) {
        for node in round.iter().filter_map(|fault| fault.kills_programs_on()) {
            self.notes.programs_may_die(node);
        }
        let is_alone = round.len() == 1;
        std::thread::scope(|scope| {
            for fault in round {
                scope.spawn(move || self.one(*fault, is_alone));
            }
        });
        for node in 0..NODES.len() {
            self.ensure_daemon(node);
        }
        if round.iter().any(|fault| matches!(fault, Fault::FullDisk { .. })) {
            // One that was begun on a full disk may not have ended yet; the unit would begin it again.
            std::thread::sleep(Duration::from_millis(500));
            (0..NODES.len()).for_each(|node| self.ensure_daemon(node));
        }
    }

    fn one(&self, fault: Fault, is_alone: bool) {
        let wait = |ms: u64| std::thread::sleep(Duration::from_millis(ms));
        match fault {
            Fault::Kill { role, node, ms } => {
                self.signal(role, node, Signal::KILL);
                if role == Role::Daemon {
                    wait(ms);
                    self.ensure_daemon(node);
                }
            }
            Fault::Stop { role, node, ms } => {
                if let Some(process) = find(self.site, role, node) {
                    signal(&process, Signal::STOP);
                    wait(ms);
                    signal(&process, Signal::CONT);
                }
            }
            Fault::StopMachine { node, ms } => {
                self.on(node, "kill -STOP -1");
                self.await_truth(node, ms, is_alone);
                self.on(node, "kill -CONT -1");
            }
            Fault::PowerOff { node, ms } => {
                {
                    let mut off = self.off.lock();
                    if !off.insert(node) {
                        // The other fault of the round has done it, and turns it on again.
                        return;
                    }
                    self.dev(&["kill", NODES[node]]);
                }
                self.await_truth(node, ms, is_alone);
                let mut off = self.off.lock();
                self.site.power_on(node);
                off.remove(&node);
            }
            Fault::Unplug { node, ms } => {
                self.dev(&["wire", NODES[node], "down"]);
                self.await_truth(node, ms, is_alone);
                self.dev(&["wire", NODES[node], "up"]);
            }
            Fault::Flap { node, ms } => {
                for _ in 0..5 {
                    self.dev(&["wire", NODES[node], "down"]);
                    wait(ms / 10);
                    self.dev(&["wire", NODES[node], "up"]);
                    wait(ms / 10);
                }
            }
            Fault::OneWay { from, to, ms } => {
                self.route(from, to, "add");
                wait(ms);
                self.route(from, to, "del");
            }
            Fault::Between { one, other, ms } => {
                self.route(one, other, "add");
                self.route(other, one, "add");
                wait(ms);
                self.route(one, other, "del");
                self.route(other, one, "del");
            }
            Fault::SlowDisk { node, ms } => {
                let script =
                    format!("i=0; while [ $i -lt {} ]; do f f; sleep 0.2; f u; sleep 0.05; i=$((i+1)); done", ms / 250);
                self.site.hang_disk(node, &script);
            }
            Fault::HungDisk { node, ms } => {
                self.site.hang_disk(node, &format!("f f; sleep {}.{:03}; f u", ms / 1000, ms % 1000));
            }
            Fault::FullDisk { node, ms } => {
                if self.site.filler(node).is_some_and(|filler| fill(&filler)) {
                    wait(ms);
                    self.make_room(node);
                }
            }
            Fault::Compact { node } => {
                let status = self.site.etcdctl(node, &["endpoint", "status", "-w", "json"]);
                let status: serde_json::Value = serde_json::from_slice(&status.stdout).unwrap_or_default();
                if let Some(revision) = status[0]["Status"]["header"]["revision"].as_u64() {
                    self.site.etcdctl(node, &["compact", &revision.to_string()]);
                    self.site.etcdctl(node, &["defrag"]);
                }
            }
            Fault::Second { node } => {
                let said = self.site.second_daemon(node);
                if is_alone && !said.contains("another daemon works on this node") {
                    self.notes.is_wrong(format!("a second daemon on {} said: {said}", NODES[node]));
                }
            }
            // Between generations.
            Fault::Replace { .. } => {}
        }
    }

    fn signal(&self, role: Role, node: Node, number: Signal) {
        // One that is just being started again comes in a moment.
        let begin = Instant::now();
        while begin.elapsed() < Duration::from_secs(10) {
            if let Some(process) = find(self.site, role, node) {
                return signal(&process, number);
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        self.notes.heard(&format!("no {role:?} to kill"));
    }

    /// What a service manager does.
    fn ensure_daemon(&self, node: Node) {
        let off = self.off.lock();
        let is_there = table(self.site).iter().any(|one| one.node == node && is_daemon(&one.command));
        if !is_there && !off.contains(&node) {
            self.site.begin_daemon(node);
        }
    }

    /// Also of a machine that was switched off meanwhile.
    fn make_room(&self, node: Node) {
        let begin = Instant::now();
        let removed = || self.site.filler(node).is_some_and(|filler| std::fs::remove_file(filler).is_ok());
        while !removed() && begin.elapsed() < BUSY_FOR {
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    fn on(&self, node: Node, script: &str) {
        self.site.machines().run(NODES[node], &["sh", "-c", script]);
    }

    fn route(&self, from: Node, to: Node, what: &str) {
        // One of a machine that was restarted meanwhile is gone.
        self.on(from, &format!("ip route {what} blackhole 10.255.0.{}", to + 1));
    }

    fn dev(&self, arguments: &[&str]) -> Output {
        let begin = Instant::now();
        loop {
            let done = self.site.machines().try_dev(arguments);
            if done.status.success() || begin.elapsed() > BUSY_FOR {
                return done;
            }
            std::thread::sleep(Duration::from_millis(30));
        }
    }

    /// So long; after a while the others may not say that the node is well.
    fn await_truth(&self, node: Node, ms: u64, is_alone: bool) {
        let until = Instant::now() + Duration::from_millis(ms);
        if is_alone && Duration::from_millis(ms) > TRUTH_WITHIN {
            std::thread::sleep(TRUTH_WITHIN);
            for other in (0..NODES.len()).filter(|other| *other != node) {
                let said = self.site.states(other).unwrap_or_default();
                let of_it = said.iter().find(|(name, _)| name == NODES[node]).map_or("", |(_, state)| state);
                if Instant::now() < until && of_it == "ready" {
                    self.notes.is_wrong(format!("{} says {} is ready, which nobody hears", NODES[other], NODES[node]));
                }
            }
        }
        std::thread::sleep(until.saturating_duration_since(Instant::now()));
    }
}

/// Takes everything that is left.
/// Whether there is a file to be removed now.
fn fill(path: &Path) -> bool {
    let Ok(mut file) = File::create(path) else { return false };
    // Set aside in pieces, so that the disk is full at once.
    let (mut at, mut bytes) = (0, 64 << 20);
    while bytes >= 1 << 16 {
        match rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), at, bytes) {
            Ok(()) => at += bytes,
            Err(_) => bytes /= 4,
        }
    }
    let _ = file.seek(SeekFrom::Start(at));
    let mut piece = vec![7; 1 << 16];
    // Large pieces first, then what is left beside them.
    while !piece.is_empty() {
        match file.write(&piece) {
            Ok(_) => (),
            Err(error) if error.kind() == ErrorKind::StorageFull => piece.truncate(piece.len() / 16),
            Err(_) => break,
        }
    }
    true
}
