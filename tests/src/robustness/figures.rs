//! How long it takes until others go on without a node, or without the leader of the engine.

use std::time::{Duration, Instant};

use serde_json::Value;

use crate::robustness::examine;
use crate::robustness::faults::{NODES, Node};
use crate::robustness::site::Site;

/// Longer than anything that is measured.
const LIMIT: Duration = Duration::from_secs(30);
/// Between two measurements, so that one does not meet what the one before left.
const REST: Duration = Duration::from_secs(2);

/// Sorted.
#[derive(Default)]
pub struct Times(Vec<Duration>);

impl Times {
    fn add(&mut self, time: Duration) {
        let at = self.0.partition_point(|one| *one < time);
        self.0.insert(at, time);
    }

    pub fn shown(&self) -> String {
        let at = |share: usize| self.0.get((self.0.len() * share / 100).min(self.0.len().saturating_sub(1)));
        format!(
            "{} times: least {:.2?}, median {:.2?}, p90 {:.2?}, p99 {:.2?}, most {:.2?}",
            self.0.len(),
            self.0.first().unwrap_or(&Duration::ZERO),
            at(50).unwrap_or(&Duration::ZERO),
            at(90).unwrap_or(&Duration::ZERO),
            at(99).unwrap_or(&Duration::ZERO),
            self.0.last().unwrap_or(&Duration::ZERO),
        )
    }
}

/// Which node's member leads.
fn leader(site: &Site) -> Option<Node> {
    (0..NODES.len()).find(|node| {
        let said = site.etcdctl(*node, &["endpoint", "status", "-w", "json"]);
        let said: Value = serde_json::from_slice(&said.stdout).unwrap_or_default();
        let status = &said[0]["Status"];
        status["leader"].is_u64() && status["leader"] == status["header"]["member_id"]
    })
}

fn rest(site: &Site) {
    examine::await_well(site, None).expect("it heals");
    std::thread::sleep(REST);
}

/// Unplugs nodes in turn: from before the cable is out until both others say that it is fenced. Of those that did not
/// lead the engine, and of those that did.
pub fn node_losses(site: &Site, count: usize) -> (Times, Times) {
    let (mut others, mut leaders) = (Times::default(), Times::default());
    for index in 0..count {
        rest(site);
        let node = index % NODES.len();
        let is_leader = leader(site) == Some(node);
        let begin = Instant::now();
        site.machines().dev(&["wire", NODES[node], "down"]);
        let mut left: Vec<Node> = (0..NODES.len()).filter(|other| *other != node).collect();
        while !left.is_empty() {
            assert!(begin.elapsed() < LIMIT, "{} is not fenced, as {left:?} say", NODES[node]);
            left.retain(|at| {
                let states = site.states(*at).unwrap_or_default();
                !states.iter().any(|(of, state)| of == NODES[node] && ["fenced", "down"].contains(&state.as_str()))
            });
        }
        let took = begin.elapsed();
        println!("{} {}: {took:.2?}", NODES[node], if is_leader { "led" } else { "did not lead" });
        (if is_leader { &mut leaders } else { &mut others }).add(took);
        site.machines().dev(&["wire", NODES[node], "up"]);
    }
    (others, leaders)
}

/// Kills the leading member: from then until a change that was asked for at once is answered, by another node.
pub fn leader_kills(site: &Site, count: usize) -> Times {
    let mut times = Times::default();
    for index in 0..count {
        rest(site);
        let Some(node) = leader(site) else { continue };
        let killed = site.machines().member_pid(NODES[node]).expect("it runs");
        site.machines().sh(NODES[node], &format!("kill -9 {killed}"));
        let begin = Instant::now();
        let asked = (node + 1 + index % 2) % NODES.len();
        let done = site.dvs(asked, &["node", "label", NODES[asked], &format!("round=r{index}")]);
        assert!(done.status.success(), "{done:?}");
        println!("{} led, {} asked: {:.2?}", NODES[node], NODES[asked], begin.elapsed());
        times.add(begin.elapsed());
    }
    times
}
