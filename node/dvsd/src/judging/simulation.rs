//! Nodes whose links and ways to the engine fail one by one and in both directions, whose daemons stand still, and
//! whose leases end meanwhile: no incarnation is judged while half of the others hear it, so nothing runs twice.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use cluster::Revision;
use histories::Rng;
use histories::rng::seeds;
use mgmt_api::LinkState;
use proxy_host::presence;
use service_core::tenure::OBJECTION;

use super::judge::{Accusation, Act, Judge, Known, Second};

const MS: fn(u64) -> Duration = Duration::from_millis;
const STEP: Duration = Duration::from_millis(25);
const SUSPECT: Duration = Duration::from_millis(300);
const LEASE: Duration = Duration::from_millis(2000);

fn name(of: usize) -> String {
    format!("n{}", of + 1)
}

struct Node {
    judge: Judge,
    epoch: u64,
    /// What its follower told last.
    view: Known,
    reaches_engine: bool,
    /// Its daemon does nothing until then.
    away_until: Instant,
    lease_until: Instant,
    /// When it heard each other one last.
    heard: Vec<Instant>,
    /// When each other one heard it last, as far as it knows, and since when without a pause.
    confirmed: Vec<Option<(Instant, Instant)>>,
    /// Whom it accuses, or may: what it wanted to take back may not have been.
    accuses: BTreeSet<usize>,
    /// The last moment at which what it holds could be held by.
    was_there: Option<Instant>,
}

/// A rule that is left out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Broken {
    /// Who is unheard himself vouches for others.
    Unheard,
    /// Who accuses vouches for the accused, or the accused for him.
    Accuses,
}

struct World {
    broken: Option<Broken>,
    rng: Rng,
    began: Instant,
    now: Instant,
    engine: Known,
    revision: u64,
    nodes: Vec<Node>,
    /// What the first sends reaches the second.
    passes: Vec<Vec<bool>>,
    /// What may not be held after a moment, because its hearing began shortly before.
    over: BTreeMap<(usize, u64), Instant>,
    verdicts: u64,
}

impl World {
    fn new(seed: u64, broken: Option<Broken>) -> World {
        let mut rng = Rng::new(seed);
        let (count, now) = (2 + rng.below(4) as usize, Instant::now());
        let node = |of: usize| Node {
            judge: Judge::new(&name(of), 1),
            epoch: 1,
            view: Known::default(),
            reaches_engine: true,
            away_until: now,
            lease_until: now + LEASE,
            heard: vec![now; count],
            confirmed: vec![None; count],
            accuses: BTreeSet::new(),
            was_there: None,
        };
        let epochs: BTreeMap<String, u64> = (0..count).map(|of| (name(of), 1)).collect();
        let alive = epochs.keys().cloned().collect();
        World {
            broken,
            rng,
            began: now,
            now,
            engine: Known { epochs, alive, ..Known::default() },
            revision: 0,
            nodes: (0..count).map(node).collect(),
            passes: vec![vec![true; count]; count],
            over: BTreeMap::new(),
            verdicts: 0,
        }
    }

    fn pick(&mut self) -> usize {
        self.rng.below(self.nodes.len() as u64) as usize
    }

    fn happen(&mut self) {
        let (one, other, many) = (self.pick(), self.pick(), self.nodes.len());
        match self.rng.below(10) {
            0 | 1 => self.passes[one][other] = self.rng.one_in(2),
            2 => {
                let way = self.rng.one_in(2);
                (self.passes[one][other], self.passes[other][one]) = (way, way);
            }
            // Two sides, and the engine on one of them.
            3 => {
                let sides: Vec<bool> = (0..many).map(|_| self.rng.one_in(2)).collect();
                for (from, row) in self.passes.iter_mut().enumerate() {
                    for (to, passes) in row.iter_mut().enumerate() {
                        *passes = sides[from] == sides[to];
                    }
                }
                for (node, side) in self.nodes.iter_mut().zip(sides) {
                    node.reaches_engine = side;
                }
            }
            4 => self.nodes[one].reaches_engine = self.rng.one_in(2),
            5 | 6 => self.nodes[one].away_until = self.now + MS(self.rng.below(6000)),
            _ => {
                self.passes.iter_mut().for_each(|row| row.fill(true));
                self.nodes.iter_mut().for_each(|node| node.reaches_engine = true);
            }
        }
    }

    fn step(&mut self) -> Result<(), String> {
        self.now += STEP;
        if self.rng.one_in(16) {
            self.happen();
        }
        self.links();
        self.leases();
        for of in 0..self.nodes.len() {
            if self.now >= self.nodes[of].away_until {
                self.daemon(of)?;
            }
            self.hold(of)?;
        }
        Ok(())
    }

    fn number(&self, node: &str) -> usize {
        (0..self.nodes.len()).find(|other| name(*other) == node).expect("one of them")
    }

    fn lists(&self, of: usize, other: usize) -> bool {
        !self.nodes[of].view.is_fenced(&name(other))
    }

    fn links(&mut self) {
        let now = self.now;
        for from in 0..self.nodes.len() {
            for to in (0..self.nodes.len()).filter(|to| *to != from) {
                if !self.passes[from][to] || !self.lists(to, from) || !self.lists(from, to) {
                    continue;
                }
                self.nodes[to].heard[from] = now;
                // It says so in what it sends back.
                if self.passes[to][from] {
                    let told = &mut self.nodes[from].confirmed[to];
                    let since = told.filter(|(at, _)| now - *at < SUSPECT).map_or(now, |(_, since)| since);
                    *told = Some((now, since));
                }
            }
        }
    }

    fn leases(&mut self) {
        for of in 0..self.nodes.len() {
            let node = &mut self.nodes[of];
            if node.reaches_engine && self.now >= node.away_until {
                node.lease_until = self.now + LEASE;
                self.engine.alive.insert(name(of));
            } else if self.now >= node.lease_until && self.engine.alive.remove(&name(of)) {
                self.engine.suspicions.values_mut().for_each(|said| _ = said.remove(&name(of)));
                self.engine.objections.remove(&name(of));
            }
        }
    }

    fn daemon(&mut self, of: usize) -> Result<(), String> {
        let (now, reaches) = (self.now, self.nodes[of].reaches_engine);
        if reaches && !self.rng.one_in(4) {
            self.nodes[of].view = self.engine.clone();
        }
        let links = (0..self.nodes.len()).filter(|other| *other != of && self.lists(of, *other)).map(|other| {
            let is_silent = now - self.nodes[of].heard[other] >= SUSPECT;
            (name(other), if is_silent { LinkState::Suspect } else { LinkState::Up })
        });
        let accused = self.nodes[of].accuses.iter().map(|other| name(*other)).collect();
        let known = Known { links: links.collect(), accused, ..self.nodes[of].view.clone() };
        for act in self.nodes[of].judge.look(&known, now) {
            if act == Act::Object {
                self.nodes[of].judge.objects(now);
            }
            if let Act::Accuse { node, .. } = &act {
                let accused = self.number(node);
                self.nodes[of].accuses.insert(accused);
            }
            if reaches {
                self.carry_out(of, act)?;
            }
        }
        if reaches {
            let accuses = |other: &usize| {
                self.engine.suspicions.get(&name(*other)).is_some_and(|said| said.contains_key(&name(of)))
            };
            self.nodes[of].accuses = (0..self.nodes.len()).filter(accuses).collect();
        }
        if reaches && self.is_over(of) {
            self.begin_anew(of);
        }
        Ok(())
    }

    fn is_over(&self, of: usize) -> bool {
        self.engine.verdicts.get(&name(of)).is_some_and(|over| self.nodes[of].epoch <= *over)
    }

    fn begin_anew(&mut self, of: usize) {
        let (node, count) = (&mut self.nodes[of], self.passes.len());
        node.epoch += 1;
        (node.judge, node.was_there) = (Judge::new(&name(of), node.epoch), None);
        node.confirmed = vec![None; count];
        self.engine.epochs.insert(name(of), node.epoch);
        node.view = self.engine.clone();
    }

    fn carry_out(&mut self, of: usize, act: Act) -> Result<(), String> {
        self.revision += 1;
        let at = Revision(self.revision);
        match act {
            Act::Accuse { node, epoch } => {
                self.engine
                    .suspicions
                    .entry(node)
                    .or_default()
                    .insert(name(of), Accusation { epoch, at, second: None });
            }
            Act::Second { node, objection, has_met } => {
                let said = self.engine.suspicions.get_mut(&node).and_then(|said| said.get_mut(&name(of)));
                if let Some(said) = said {
                    said.second = Some(Second { objection, has_met, at });
                }
            }
            Act::Withdraw { node } => _ = self.engine.suspicions.entry(node).or_default().remove(&name(of)),
            Act::Object => drop(self.engine.objections.insert(name(of), at)),
            Act::Sentence { node, epoch, objection, accusers } => {
                let said = self.engine.suspicions.entry(node.clone()).or_default().clone();
                let stands = accusers.iter().all(|(accuser, it)| said.get(accuser) == Some(it));
                let is_fenced = self.engine.is_fenced(&node);
                if stands
                    && !is_fenced
                    && self.engine.objections.get(&node).copied() == objection
                    && self.engine.epochs[&node] == epoch
                {
                    self.verdicts += 1;
                    self.engine.verdicts.insert(node.clone(), epoch);
                    let since = self.nodes[of].judge.heard_since(&node).expect("it was heard");
                    let judged = self.number(&node);
                    self.over.insert((judged, epoch), since + OBJECTION);
                    self.check(judged)?;
                }
            }
            Act::Probe | Act::BeginAnew => (),
        }
        Ok(())
    }

    /// Until when what this node holds may be held: what its proxies know, and what the engine answers its daemon.
    fn hold(&mut self, of: usize) -> Result<(), String> {
        let node = &self.nodes[of];
        let is_there = self.now >= node.away_until;
        let vouched = self.others(of).filter(|other| self.is_heard(*other)).filter_map(|other| self.hears(other, of));
        let vouched = vouched.map(|(at, since)| (at - self.began, since - self.began));
        let by_links = presence::there(self.others(of).count(), vouched, self.now - self.began);
        let by_links = by_links.map(|at| self.began + at);
        let by_engine = (is_there && node.reaches_engine && !self.is_over(of)).then_some(self.now);
        if by_engine.is_some() && self.engine.suspicions.get(&name(of)).is_some_and(|said| !said.is_empty()) {
            self.revision += 1;
            self.engine.objections.insert(name(of), Revision(self.revision));
        }
        self.nodes[of].was_there = self.nodes[of].was_there.max(by_links).max(by_engine);
        self.check(of)
    }

    fn others(&self, of: usize) -> impl Iterator<Item = usize> + '_ {
        (0..self.nodes.len()).filter(move |other| *other != of && self.lists(of, *other))
    }

    /// When somebody heard it last and since when without a pause, while neither accuses the other.
    fn hears(&self, who: usize, of: usize) -> Option<(Instant, Instant)> {
        let accuses = |one: usize, other: usize| self.nodes[one].accuses.contains(&other);
        let counts = self.broken == Some(Broken::Accuses) || !accuses(who, of) && !accuses(of, who);
        self.nodes[of].confirmed[who].filter(|_| counts)
    }

    /// Half of the others have heard it lately.
    fn is_heard(&self, of: usize) -> bool {
        if self.broken == Some(Broken::Unheard) {
            return true;
        }
        let heard = self.others(of).filter_map(|other| self.hears(other, of)).map(|(at, _)| at - self.began);
        presence::is_heard(self.others(of).count(), heard, (self.now - self.began).saturating_sub(2 * SUSPECT))
    }

    fn check(&self, of: usize) -> Result<(), String> {
        let node = &self.nodes[of];
        match (self.over.get(&(of, node.epoch)), node.was_there) {
            (Some(over), Some(there)) if there > *over => {
                Err(format!("{} is held for {:?} longer than it may be", name(of), there - *over))
            }
            _ => Ok(()),
        }
    }
}

/// Gives how many were judged.
fn run(seed: u64, broken: Option<Broken>) -> Result<u64, String> {
    let mut world = World::new(seed, broken);
    for _ in 0..2400 {
        world.step()?;
    }
    Ok(world.verdicts)
}

#[test]
fn nobody_is_judged_while_half_of_the_others_hear_it() {
    let judged = seeds(60, 2000).map(|seed| run(seed, None).unwrap_or_else(|fault| panic!("seed {seed}: {fault}")));
    let verdicts: u64 = judged.sum();
    println!("{verdicts} verdicts");
    assert!(verdicts > 100 || std::env::var_os("DVS_SEED").is_some(), "{verdicts}");
}

#[test]
fn without_one_of_the_rules_somebody_is() {
    for broken in [Broken::Unheard, Broken::Accuses] {
        let fault = (0..500).find_map(|seed| Some((seed, run(seed, Some(broken)).err()?)));
        println!("{broken:?}: {}", fault.map(|(seed, fault)| format!("seed {seed}: {fault}")).expect("it is needed"));
    }
}
