//! What a daemon does about the links it sees and about what others say. Pure.
//!
//! A node is **accused** by each that hears nothing of it; it **objects** as long as it reaches the engine. When most
//! of the others have accused it for [`HEARING`] without a pause and it did not object meanwhile, it is **sentenced**:
//! its incarnation is over. What is carried out is compared again in the engine, so two who sentence, or one who
//! sentences while the node objects, do no harm.
//!
//! The others are all members that were not sentenced themselves, also those whose daemons are dead or do not reach the
//! engine: what a node holds it holds as long as half of them hear it, whether it reaches the engine or not.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use cluster::Revision;
use mgmt_api::LinkState;

/// How long most of the others must have accused a node that does not object.
pub const HEARING: Duration = Duration::from_millis(450);
/// From when on in a hearing the accusers say once more that they hear nothing: an accusation stays for as long as its
/// accuser's lease, whatever became of him.
const SECOND_AFTER: Duration = Duration::from_millis(225);
/// How often a node that is accused objects: several times in a hearing.
const OBJECT_EVERY: Duration = Duration::from_millis(100);
/// Whoever was not looking for so long knows nothing of what happened meanwhile, and judges nobody by it.
const ASLEEP: Duration = Duration::from_millis(150);
/// A node to which there was no link yet in its incarnation may be on its way for so long.
const ARRIVAL: Duration = Duration::from_secs(5);
/// One that is not up for so long does not come: until then it is a member that says nothing.
const ABSENCE: Duration = Duration::from_secs(60);
/// A node that hears of few others, and cannot reach the engine for so long, is cut off.
pub const CUT_OFF_AFTER: Duration = Duration::from_millis(250);

/// The last that the two sides of a cut heard of each other lies at most so far apart: a heartbeat.
const HEARTBEAT: Duration = Duration::from_millis(100);
/// Others may take what a node owned only later than it stopped; suspicion takes the same time on both sides.
const _: () = assert!(CUT_OFF_AFTER.as_millis() + HEARTBEAT.as_millis() < HEARING.as_millis());
const _: () = assert!(ASLEEP.as_millis() * 2 < HEARING.as_millis());

/// That somebody hears nothing of a node.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Accusation {
    /// Of the node.
    pub epoch: u64,
    /// One that was taken back and made again is another one.
    pub at: Revision,
    /// That it was said once more, in the hearing that began with this objection.
    pub second: Option<Second>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Second {
    pub objection: Option<Revision>,
    /// There was a link before.
    pub has_met: bool,
    pub at: Revision,
}

/// What is known at one moment.
#[derive(Clone, Default, Debug)]
pub struct Known {
    /// Nodes of the cluster with their incarnations.
    pub epochs: BTreeMap<String, u64>,
    /// Those whose leases run.
    pub alive: BTreeSet<String>,
    pub links: BTreeMap<String, LinkState>,
    /// Of whom, and by whom.
    pub suspicions: BTreeMap<String, BTreeMap<String, Accusation>>,
    pub objections: BTreeMap<String, Revision>,
    /// Whom this node accuses, as far as it knows, or may yet: what it wants to be written or taken back.
    pub accused: BTreeSet<String>,
    /// Incarnations that are over.
    pub verdicts: BTreeMap<String, u64>,
}

impl Known {
    /// It was sentenced, and has not come back since.
    pub fn is_fenced(&self, node: &str) -> bool {
        let verdict = self.verdicts.get(node);
        verdict.is_some_and(|over| self.epochs.get(node).is_none_or(|epoch| epoch <= over))
    }

    /// Those who count in a hearing about a node.
    fn others<'a>(&'a self, about: &'a str) -> impl Iterator<Item = &'a String> {
        self.epochs.keys().filter(move |node| *node != about && !self.is_fenced(node))
    }

    /// Who of the others accuses this incarnation.
    fn accusers(&self, node: &str, epoch: u64) -> BTreeMap<String, Accusation> {
        let said = self.suspicions.get(node);
        let of = |other: &String| Some((other.clone(), *said?.get(other)?));
        self.others(node).filter_map(of).filter(|(_, said)| said.epoch == epoch).collect()
    }

    fn are_most(&self, accusers: usize, node: &str) -> bool {
        accusers * 2 > self.others(node).count()
    }
}

/// What is to be done in the engine. All of it may be done again.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Act {
    Accuse {
        node: String,
        epoch: u64,
    },
    /// In a hearing: still nothing.
    Second {
        node: String,
        objection: Option<Revision>,
        has_met: bool,
    },
    /// Something was heard of it again.
    Withdraw {
        node: String,
    },
    Object,
    /// Whether the engine answers.
    Probe,
    /// `objection`: its last one, if it ever made one; another one since refutes.
    Sentence {
        node: String,
        epoch: u64,
        objection: Option<Revision>,
        /// As they stand: who takes his back refutes, too.
        accusers: BTreeMap<String, Accusation>,
    },
    /// This node's own incarnation is over.
    BeginAnew,
}

pub struct Judge {
    own: String,
    epoch: u64,
    looked: Option<Instant>,
    objected: Option<Instant>,
    /// Nodes to which there was a link in that incarnation, or since when one is waited for.
    met: BTreeMap<String, (u64, Met)>,
    /// Since when most accuse, and the objection there was then.
    hearings: BTreeMap<String, Hearing>,
    /// Of those that were sentenced while this daemon heard them: the incarnation, and when its hearing began.
    ended: BTreeMap<String, (u64, Instant)>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Met {
    Yes,
    /// It is up.
    ComesSince(Instant),
    /// It is not.
    AwaitedSince(Instant),
}

#[derive(Clone, PartialEq, Eq, Debug)]
struct Hearing {
    epoch: u64,
    since: Instant,
    objection: Option<Revision>,
    /// All of them since then, by when they said so.
    accusers: BTreeMap<String, Revision>,
}

impl Judge {
    /// Of the daemon of `own` in this incarnation.
    pub fn new(own: &str, epoch: u64) -> Judge {
        let (met, hearings) = (BTreeMap::new(), BTreeMap::new());
        Judge { own: own.to_owned(), epoch, looked: None, objected: None, met, hearings, ended: BTreeMap::new() }
    }

    pub fn look(&mut self, known: &Known, now: Instant) -> Vec<Act> {
        let was_asleep = self.looked.is_some_and(|looked| now.saturating_duration_since(looked) > ASLEEP);
        self.looked = Some(now);
        if was_asleep {
            self.hearings.clear();
        }
        if known.verdicts.get(&self.own).is_some_and(|over| self.epoch <= *over) {
            return vec![Act::BeginAnew];
        }
        let mut acts: Vec<Act> = self.speak_for_itself(known, now).into_iter().collect();
        self.met.retain(|node, _| known.epochs.contains_key(node));
        for (node, epoch) in &known.epochs {
            if *node == self.own {
                continue;
            }
            acts.extend(self.accuse_or_withdraw(known, node, *epoch, now));
            acts.extend(self.hear(known, node, *epoch, now));
        }
        self.hearings.retain(|node, _| known.epochs.contains_key(node));
        // Of nodes that were taken out.
        let said = known.suspicions.iter().filter(|(_, said)| said.contains_key(&self.own)).map(|(node, _)| node);
        let said: BTreeSet<&String> = said.chain(&known.accused).collect();
        let gone = said.into_iter().filter(|node| !known.epochs.contains_key(*node));
        acts.extend(gone.map(|node| Act::Withdraw { node: node.clone() }));
        acts
    }

    /// Incarnations that were sentenced while this daemon heard them, with when the hearing began: nothing of them
    /// objected since.
    pub fn ended_hearings(&self) -> &BTreeMap<String, (u64, Instant)> {
        &self.ended
    }

    /// Since when a node is heard.
    #[cfg(test)]
    pub fn heard_since(&self, node: &str) -> Option<Instant> {
        self.hearings.get(node).map(|hearing| hearing.since)
    }

    /// When something has to be looked at although nothing is told.
    pub fn pause(&self, known: &Known) -> Duration {
        let is_busy = !self.hearings.is_empty() || known.suspicions.values().any(|said| !said.is_empty());
        if is_busy { Duration::from_millis(25) } else { Duration::from_millis(100) }
    }

    fn speak_for_itself(&self, known: &Known, now: Instant) -> Option<Act> {
        let is_accused =
            known.suspicions.get(&self.own).is_some_and(|said| said.values().any(|said| said.epoch == self.epoch));
        if !is_accused {
            return None;
        }
        if self.objected.is_some_and(|last| now.saturating_duration_since(last) < OBJECT_EVERY) {
            return None;
        }
        Some(Act::Object)
    }

    /// It is being said.
    pub fn objects(&mut self, now: Instant) {
        self.objected = Some(now);
    }

    fn accuse_or_withdraw(&mut self, known: &Known, node: &str, epoch: u64, now: Instant) -> Option<Act> {
        let link = known.links.get(node).copied();
        let said = known.suspicions.get(node).and_then(|said| said.get(&self.own)).map(|said| said.epoch);
        // Its lease comes when it is up.
        let is_up = known.alive.contains(node);
        let waiting = if is_up { Met::ComesSince(now) } else { Met::AwaitedSince(now) };
        let met = self.met.entry(node.to_owned()).or_insert((epoch, waiting));
        let is_as_before = match met.1 {
            Met::Yes => true,
            Met::ComesSince(_) => is_up,
            Met::AwaitedSince(_) => !is_up,
        };
        if met.0 != epoch || !is_as_before {
            *met = (epoch, waiting);
        }
        let hears_it = matches!(link, Some(LinkState::Up));
        if hears_it {
            *met = (epoch, Met::Yes);
        }
        let had_its_time = match met.1 {
            Met::Yes => true,
            Met::ComesSince(since) => now.saturating_duration_since(since) >= ARRIVAL,
            Met::AwaitedSince(since) => now.saturating_duration_since(since) >= ABSENCE,
        };
        let accuses = is_silent(link) && had_its_time && !known.is_fenced(node);
        match (accuses, said) {
            (true, Some(before)) if before == epoch => None,
            (true, _) => Some(Act::Accuse { node: node.to_owned(), epoch }),
            (false, Some(_)) => Some(Act::Withdraw { node: node.to_owned() }),
            // It may have been written all the same.
            (false, None) if known.accused.contains(node) => Some(Act::Withdraw { node: node.to_owned() }),
            (false, None) => None,
        }
    }

    fn hear(&mut self, known: &Known, node: &str, epoch: u64, now: Instant) -> Option<Act> {
        if known.is_fenced(node) {
            let hearing = self.hearings.remove(node);
            let is_of_it =
                |hearing: &Hearing| (hearing.epoch, hearing.objection) == (epoch, known.objections.get(node).copied());
            if let Some(hearing) = hearing.filter(is_of_it) {
                self.ended.insert(node.to_owned(), (epoch, hearing.since));
            }
            return None;
        }
        let before = self.hearings.remove(node);
        if !is_silent(known.links.get(node).copied()) {
            return None;
        }
        let objection = known.objections.get(node).copied();
        let mut accusers = known.accusers(node, epoch);
        // As long as most of those who began it accuse without a pause.
        let going_on = before.filter(|hearing| (hearing.epoch, hearing.objection) == (epoch, objection)).filter(|it| {
            let stands = |(accuser, said): &(&String, &Accusation)| it.accusers.get(*accuser) == Some(&said.at);
            known.are_most(accusers.iter().filter(stands).count(), node)
        });
        if let Some(hearing) = &going_on {
            accusers.retain(|accuser, said| hearing.accusers.get(accuser) == Some(&said.at));
        }
        if !known.are_most(accusers.len(), node) || !accusers.contains_key(&self.own) {
            return None;
        }
        let since = going_on.map_or(now, |hearing| hearing.since);
        let began = accusers.iter().map(|(accuser, said)| (accuser.clone(), said.at)).collect();
        self.hearings.insert(node.to_owned(), Hearing { epoch, since, objection, accusers: began });
        let lasts = now.saturating_duration_since(since);
        let seconds = |said: &Accusation| said.second.is_some_and(|second| second.objection == objection);
        if lasts >= SECOND_AFTER && !accusers.get(&self.own).is_some_and(seconds) {
            let has_met = self.met.get(node).is_some_and(|met| *met == (epoch, Met::Yes));
            return Some(Act::Second { node: node.to_owned(), objection, has_met });
        }
        accusers.retain(|_, said| seconds(said));
        // Of whom it never had a link with the node may not know, if that has heard nothing from the engine since: it
        // goes by those whom it knows. When nobody at all hears it, nobody vouches for it.
        let has_met = |said: &&Accusation| said.second.is_some_and(|second| second.has_met);
        let are_all = accusers.len() == known.others(node).count();
        let is_over = lasts >= HEARING && (are_all || known.are_most(accusers.values().filter(has_met).count(), node));
        is_over.then(|| Act::Sentence { node: node.to_owned(), epoch, objection, accusers })
    }
}

fn is_silent(link: Option<LinkState>) -> bool {
    matches!(link, Some(LinkState::Suspect | LinkState::Broken | LinkState::Down))
}

/// Whether a node knows by its own clock that it is cut off: it hears of less than half of the others, and what it
/// asked the engine since is not answered.
pub struct Isolation {
    since: Option<Instant>,
}

impl Isolation {
    pub fn new() -> Isolation {
        Isolation { since: None }
    }

    /// Whether the engine should be asked, because few others are heard of.
    pub fn is_asking(&self) -> bool {
        self.since.is_some()
    }

    /// `confirmed`: when the engine was asked last of what it answered.
    pub fn look(&mut self, known: &Known, own: &str, confirmed: Option<Instant>, now: Instant) -> bool {
        let others: Vec<&String> = known.others(own).collect();
        let heard = others.iter().filter(|node| known.links.get(**node) == Some(&LinkState::Up)).count();
        if others.is_empty() || heard * 2 >= others.len() && heard > 0 {
            self.since = None;
            return false;
        }
        let since = *self.since.get_or_insert(now);
        let last = confirmed.filter(|at| *at > since).unwrap_or(since);
        now.saturating_duration_since(last) >= CUT_OFF_AFTER
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: fn(u64) -> Duration = Duration::from_millis;

    fn known(nodes: &[&str]) -> Known {
        Known {
            epochs: nodes.iter().map(|node| ((*node).to_owned(), 1)).collect(),
            alive: nodes.iter().map(|node| (*node).to_owned()).collect(),
            ..Known::default()
        }
    }

    fn link(known: &mut Known, node: &str, state: LinkState) {
        known.links.insert(node.to_owned(), state);
    }

    /// Daemons that see each other's links and one engine; what they do is done at once.
    struct World {
        known: BTreeMap<String, Known>,
        judges: BTreeMap<String, Judge>,
        engine: Known,
        /// Nodes that do not reach the engine, or do nothing.
        away: BTreeSet<String>,
        revision: u64,
        now: Instant,
        sentenced: Vec<(String, Instant)>,
    }

    impl World {
        fn new(nodes: &[&str]) -> World {
            let mut world = World {
                known: BTreeMap::new(),
                judges: BTreeMap::new(),
                engine: known(nodes),
                away: BTreeSet::new(),
                revision: 0,
                now: Instant::now(),
                sentenced: Vec::new(),
            };
            for node in nodes {
                let mut own = Known::default();
                for other in nodes.iter().filter(|other| *other != node) {
                    link(&mut own, other, LinkState::Up);
                }
                world.known.insert((*node).to_owned(), own);
                world.judges.insert((*node).to_owned(), Judge::new(node, 1));
            }
            world.run(MS(200));
            world
        }

        fn cut(&mut self, from: &str, to: &str) {
            link(self.known.get_mut(from).unwrap(), to, LinkState::Suspect);
        }

        fn cut_off(&mut self, node: &str) {
            let others: Vec<String> = self.known.keys().filter(|other| *other != node).cloned().collect();
            for other in others {
                self.cut(node, &other);
                self.cut(&other, node);
            }
        }

        fn heal(&mut self) {
            self.known.values_mut().for_each(|known| known.links.values_mut().for_each(|state| *state = LinkState::Up));
        }

        fn run(&mut self, time: Duration) {
            let until = self.now + time;
            while self.now < until {
                let names: Vec<String> = self.judges.keys().cloned().collect();
                for name in names.into_iter().filter(|name| !self.away.contains(name)).collect::<Vec<_>>() {
                    let links = self.known[&name].links.clone();
                    let seen = Known { links, ..self.engine.clone() };
                    let acts = self.judges.get_mut(&name).unwrap().look(&seen, self.now);
                    acts.into_iter().for_each(|act| self.carry_out(&name, act));
                }
                self.now += MS(25);
            }
        }

        fn carry_out(&mut self, by: &str, act: Act) {
            self.revision += 1;
            if act == Act::Object {
                self.judges.get_mut(by).unwrap().objects(self.now);
            }
            match act {
                Act::Accuse { node, epoch } => {
                    let said = Accusation { epoch, at: Revision(self.revision), second: None };
                    self.engine.suspicions.entry(node).or_default().insert(by.to_owned(), said);
                }
                Act::Second { node, objection, has_met } => {
                    let said = self.engine.suspicions.get_mut(&node).and_then(|said| said.get_mut(by));
                    if let Some(said) = said {
                        said.second = Some(Second { objection, has_met, at: Revision(self.revision) });
                    }
                }
                Act::Withdraw { node } => drop(self.engine.suspicions.entry(node).or_default().remove(by)),
                Act::Object => drop(self.engine.objections.insert(by.to_owned(), Revision(self.revision))),
                Act::Probe => (),
                Act::Sentence { node, epoch, objection, .. } => {
                    if self.engine.objections.get(&node).copied() == objection && self.engine.epochs[&node] == epoch {
                        self.engine.verdicts.insert(node.clone(), epoch);
                        self.sentenced.push((node, self.now));
                    }
                }
                Act::BeginAnew => {
                    let epoch = self.engine.epochs.get_mut(by).unwrap();
                    *epoch += 1;
                    self.judges.insert(by.to_owned(), Judge::new(by, *epoch));
                }
            }
        }

        fn fenced(&self) -> Vec<&str> {
            self.engine.epochs.keys().map(String::as_str).filter(|node| self.engine.is_fenced(node)).collect()
        }
    }

    #[test]
    fn node_of_which_nobody_hears_is_sentenced_within_the_hearing_and_once() {
        let mut world = World::new(&["n1", "n2", "n3"]);
        let silent = world.now;
        world.away.insert("n3".to_owned());
        world.cut_off("n3");
        world.run(Duration::from_secs(2));
        assert_eq!(world.fenced(), ["n3"]);
        let (node, at) = world.sentenced[0].clone();
        assert!(node == "n3" && at - silent <= HEARING + MS(75), "{:?}", at - silent);
        assert_eq!(world.sentenced.len(), 1);
        assert!(world.engine.suspicions["n3"].is_empty(), "what was said is taken back");
        // It comes back, finds out, and begins anew.
        world.away.clear();
        world.heal();
        world.run(MS(300));
        assert!(world.fenced().is_empty() && world.engine.epochs["n3"] == 2);
    }

    #[test]
    fn node_that_reaches_the_engine_is_not_sentenced_however_few_hear_of_it() {
        let mut world = World::new(&["n1", "n2", "n3"]);
        world.cut_off("n3");
        world.run(Duration::from_secs(5));
        assert_eq!(world.sentenced, []);
        assert!(world.engine.objections.contains_key("n3"));
        world.heal();
        world.run(Duration::from_secs(1));
        assert!(world.engine.suspicions.values().all(BTreeMap::is_empty));
    }

    #[test]
    fn one_who_hears_nothing_of_a_node_that_others_hear_sentences_nobody() {
        let mut world = World::new(&["n1", "n2", "n3"]);
        world.cut("n1", "n2");
        world.cut("n2", "n1");
        world.away.insert("n2".to_owned());
        world.run(Duration::from_secs(5));
        assert_eq!(world.sentenced, [], "n3 hears of it");
    }

    #[test]
    fn of_two_nodes_the_one_with_the_engine_goes_on() {
        let mut world = World::new(&["n1", "n2"]);
        world.cut_off("n1");
        world.away.insert("n1".to_owned());
        world.run(Duration::from_secs(1));
        assert_eq!(world.fenced(), ["n1"]);
    }

    #[test]
    fn who_never_had_a_link_with_a_node_counts_only_when_nobody_has_one() {
        let mut world = World::new(&["n1", "n2", "n3"]);
        world.away.insert("n3".to_owned());
        world.engine.alive.remove("n3");
        world.engine.epochs.insert("n4".to_owned(), 1);
        world.engine.alive.insert("n4".to_owned());
        let mut own = Known::default();
        ["n1", "n2"].iter().for_each(|other| link(&mut own, other, LinkState::Up));
        link(&mut own, "n3", LinkState::Down);
        world.known.insert("n4".to_owned(), own);
        world.judges.insert("n4".to_owned(), Judge::new("n4", 1));
        world.cut("n2", "n3");
        world.run(ABSENCE + MS(2000));
        assert!(world.engine.suspicions["n3"].len() == 2 && world.sentenced.is_empty(), "n1 hears it");
        world.cut("n1", "n3");
        world.run(MS(600));
        assert_eq!(world.fenced(), ["n3"]);
    }

    #[test]
    fn whoever_slept_judges_nobody_by_what_it_slept_through() {
        let mut judge = Judge::new("n1", 1);
        let mut seen = known(&["n1", "n2"]);
        link(&mut seen, "n2", LinkState::Up);
        let mut now = Instant::now();
        assert_eq!(judge.look(&seen, now), []);
        link(&mut seen, "n2", LinkState::Suspect);
        assert_eq!(judge.look(&seen, now), [Act::Accuse { node: "n2".to_owned(), epoch: 1 }]);
        let said = Accusation { epoch: 1, at: Revision(1), second: None };
        seen.suspicions.insert("n2".to_owned(), BTreeMap::from([("n1".to_owned(), said)]));
        assert_eq!(judge.look(&seen, now), []);
        now += Duration::from_secs(10);
        assert_eq!(judge.look(&seen, now), [], "a hearing begins");
        let mut pass = |looks: usize, seen: &Known| {
            (0..looks).map(|_| (now += MS(25), judge.look(seen, now)).1).collect::<Vec<_>>().concat()
        };
        assert_eq!(pass(8, &seen), []);
        let second = Act::Second { node: "n2".to_owned(), objection: None, has_met: true };
        assert_eq!(pass(1, &seen), [second]);
        let said = Accusation { second: Some(Second { objection: None, has_met: true, at: Revision(2) }), ..said };
        seen.suspicions.insert("n2".to_owned(), BTreeMap::from([("n1".to_owned(), said)]));
        assert_eq!(pass(8, &seen), []);
        assert!(matches!(pass(1, &seen)[..], [Act::Sentence { .. }]));
    }

    #[test]
    fn node_that_is_on_its_way_is_not_accused_before_it_can_have_come() {
        let mut judge = Judge::new("n1", 1);
        let mut seen = known(&["n1", "n2"]);
        link(&mut seen, "n2", LinkState::Down);
        let began = Instant::now();
        assert_eq!(judge.look(&seen, began), []);
        assert_eq!(judge.look(&seen, began + ARRIVAL - MS(1)), []);
        assert_eq!(judge.look(&seen, began + ARRIVAL).len(), 1);
        // In its next incarnation it has its time again.
        seen.epochs.insert("n2".to_owned(), 2);
        assert_eq!(judge.look(&seen, began + ARRIVAL + MS(1)), []);
    }

    #[test]
    fn node_that_hears_of_few_and_reaches_no_engine_knows_that_it_is_cut_off() {
        let mut seen = known(&["n1", "n2", "n3"]);
        let now = Instant::now();
        let mut isolation = Isolation::new();
        for node in ["n2", "n3"] {
            link(&mut seen, node, LinkState::Up);
        }
        assert!(!isolation.look(&seen, "n1", None, now));
        link(&mut seen, "n2", LinkState::Suspect);
        assert!(!isolation.look(&seen, "n1", None, now + Duration::from_secs(1)), "it hears of half of them");
        link(&mut seen, "n3", LinkState::Suspect);
        let cut = now + Duration::from_secs(2);
        assert!(!isolation.look(&seen, "n1", Some(now), cut));
        assert!(!isolation.look(&seen, "n1", Some(now), cut + CUT_OFF_AFTER - MS(1)));
        assert!(isolation.look(&seen, "n1", Some(now), cut + CUT_OFF_AFTER));
        assert!(!isolation.look(&seen, "n1", Some(cut + MS(200)), cut + CUT_OFF_AFTER), "the engine answered since");
    }
}
