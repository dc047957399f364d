//! The next step towards as many members as there should be: one at a time, decided from what is known and nothing
//! else.
//!
//! A step may be taken twice, by two who saw the same: each is compared with the last decision, and etcd takes each
//! change of its members once.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};

use cluster::etcd::membership::Listed;

use super::version::{EtcdVersion, Fit};
use super::{MemberRecord, Offer, Stage};

/// What is known at one moment.
#[derive(Clone, Default, Debug)]
pub struct View {
    pub members: BTreeMap<String, MemberRecord>,
    /// Nodes that could run one, and those that do: they live, and have etcd.
    pub offers: BTreeMap<String, Offer>,
    /// As etcd knows them.
    pub listed: Vec<Listed>,
    /// Nodes of the cluster, those that are down as well.
    pub nodes: BTreeSet<String>,
    /// Of these, those whose daemons live.
    pub alive: BTreeSet<String>,
    /// Nodes to which nothing new should come.
    pub cordoned: BTreeSet<String>,
    /// Nodes that are about to be taken out of the cluster.
    pub leaving: BTreeSet<String>,
    /// Members that etcd has not listed for a while.
    pub missing: BTreeSet<String>,
    /// Nobody has come or gone for a while.
    pub is_settled: bool,
}

impl View {
    /// The oldest etcd among members that count; of one that is down nobody knows. `None`: nobody says.
    pub fn oldest(&self) -> Option<EtcdVersion> {
        let voters = self.members.iter().filter(|(_, record)| record.stage == Stage::Voter);
        voters.filter_map(|(node, _)| self.offers.get(node)?.version()).min()
    }

    /// Whether a node's etcd goes with those of the members. One that does not say its version is taken, as daemons of
    /// earlier releases do.
    pub fn fit(&self, node: &str) -> Fit {
        let own = self.offers.get(node).and_then(Offer::version);
        own.zip(self.oldest()).map_or(Fit::Fits, |(own, oldest)| own.fit(oldest))
    }
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Step {
    /// Its record begins.
    Invite(String),
    /// Etcd is told of it.
    Add(String),
    /// Its node may start it, with these.
    Begin { node: String, initial: BTreeMap<String, String> },
    /// It should count from now on; later, when it is behind.
    Promote { node: String, id: u64 },
    /// It counts: its record says so.
    Confirm(String),
    /// It is to go.
    Dismiss(String),
    /// Etcd forgets it.
    Remove { node: String, id: u64 },
    /// Its record ends, and with it its process.
    Forget(String),
}

/// An odd number: one more would survive no more.
pub fn wanted(nodes: usize) -> usize {
    match nodes {
        0..=2 => 1,
        3..=4 => 3,
        _ => 5,
    }
}

/// `None`: all is as it should be, or must wait. `url` makes of a member's address what etcd lists.
pub fn next(view: &View, url: impl Fn(&str) -> String) -> Option<Step> {
    let listed = |record: &MemberRecord| {
        let peer = url(&record.address.peer);
        view.listed.iter().find(|listed| listed.peer_url == peer)
    };
    let unfinished = view.members.iter().find_map(|(node, record)| ending(view, node, record, listed(record)));
    let unfinished = unfinished
        .or_else(|| view.members.iter().find_map(|(node, record)| beginning(view, node, record, listed(record), &url)));
    match unfinished {
        Some(Due::Step(step)) => Some(step),
        Some(Due::Wait) => None,
        None => growth(view),
    }
}

/// What a member that is under way asks for.
enum Due {
    Step(Step),
    /// For its daemon, or for others to see the same.
    Wait,
}

/// Those that go come first: a newcomer that does not get on must not hold them up.
fn ending(view: &View, node: &str, record: &MemberRecord, listed: Option<&Listed>) -> Option<Due> {
    let own = || node.to_owned();
    match (record.stage, listed) {
        // A member that was removed answers nothing more: whoever asked it would wait.
        (Stage::Leaving, Some(_)) if view.alive.contains(node) => Some(Due::Wait),
        (Stage::Leaving | Stage::Left, Some(listed)) => Some(Due::Step(Step::Remove { node: own(), id: listed.id })),
        (Stage::Leaving | Stage::Left, None) => Some(Due::Step(Step::Forget(own()))),
        _ if !view.nodes.contains(node) => Some(Due::Step(Step::Dismiss(own()))),
        // Somebody removed it by hand; but the list may be that of a member which lags behind.
        (Stage::Learner | Stage::Voter, None) if view.missing.contains(node) => Some(Due::Step(Step::Forget(own()))),
        (Stage::Learner | Stage::Voter, None) => Some(Due::Wait),
        _ => None,
    }
}

fn beginning(
    view: &View,
    node: &str,
    record: &MemberRecord,
    listed: Option<&Listed>,
    url: &impl Fn(&str) -> String,
) -> Option<Due> {
    let own = || node.to_owned();
    // Another release invited it, or it got another etcd since: it would end at each start, and all others wait for it.
    let has_begun = listed.is_some_and(|listed| listed.has_started);
    if matches!(record.stage, Stage::Invited | Stage::Learner) && !has_begun && view.fit(node) != Fit::Fits {
        return Some(Due::Step(Step::Dismiss(own())));
    }
    let step = match (record.stage, listed) {
        (Stage::Invited, None) => Step::Add(own()),
        (Stage::Invited, Some(_)) => Step::Begin { initial: initial(view, node, url), node: own() },
        // It has not begun, and could not with what it was told.
        (Stage::Learner, Some(listed)) if !listed.has_started && record.initial != initial(view, node, url) => {
            Step::Begin { initial: initial(view, node, url), node: own() }
        }
        (Stage::Learner, Some(listed)) if listed.is_learner => Step::Promote { node: own(), id: listed.id },
        (Stage::Learner, Some(_)) => Step::Confirm(own()),
        _ => return None,
    };
    Some(Due::Step(step))
}

/// Whether one more is to come, or one to go.
fn growth(view: &View) -> Option<Step> {
    // A cluster that is not well gets no newcomer, of whom it would need one more, and loses nobody whom it may need.
    if !view.members.keys().all(|node| view.alive.contains(node)) {
        return None;
    }
    let wanted = wanted(view.nodes.difference(&view.leaving).count());
    let (there, come) = (view.members.len(), newcomers(view));
    let is_even = there.is_multiple_of(2);
    match there.cmp(&wanted) {
        Ordering::Greater => surplus(view),
        // Two survive less than one, and four less than three: from an odd number on two have to come.
        Ordering::Less if is_even || come.len() >= 2 => match come.first() {
            Some(node) => Some(Step::Invite((*node).clone())),
            None => surplus(view),
        },
        // One takes the place of one that is to leave, before that goes.
        Ordering::Equal | Ordering::Less if view.members.keys().any(|node| view.leaving.contains(node)) => {
            come.first().map(|node| Step::Invite((*node).clone()))
        }
        Ordering::Equal | Ordering::Less => None,
    }
}

/// All that etcd lists, by node; the newcomer too.
fn initial(view: &View, node: &str, url: &impl Fn(&str) -> String) -> BTreeMap<String, String> {
    let is_listed = |record: &MemberRecord| {
        let peer = url(&record.address.peer);
        view.listed.iter().any(|listed| listed.peer_url == peer)
    };
    let there = view.members.iter().filter(|(name, record)| *name == node || is_listed(record));
    there.map(|(name, record)| (name.clone(), record.address.peer.clone())).collect()
}

/// Who goes when there are too many: one whose node is to leave, then one that is cordoned, then any. Not at once: a
/// machine may be about to take the place of one that was lost, and a node whose lease was lost comes again.
fn surplus(view: &View) -> Option<Step> {
    let rank = |node: &&String| (!view.leaving.contains(*node), !view.cordoned.contains(*node));
    let node = view.members.keys().rev().min_by_key(rank)?;
    (view.is_settled || view.leaving.contains(node)).then(|| Step::Dismiss(node.clone()))
}

fn newcomers(view: &View) -> Vec<&String> {
    let may = |node: &&String| {
        view.nodes.contains(*node)
            && view.alive.contains(*node)
            && !view.members.contains_key(*node)
            && !view.cordoned.contains(*node)
            && !view.leaving.contains(*node)
            && view.fit(node) == Fit::Fits
    };
    view.offers.keys().filter(may).collect()
}

#[cfg(test)]
mod tests {
    use mgmt_api::MemberAddress;

    use super::*;

    fn url(peer: &str) -> String {
        format!("https://{peer}")
    }

    fn address(node: &str) -> MemberAddress {
        MemberAddress { client: format!("{node}:2379"), peer: format!("{node}:2380") }
    }

    /// Etcd and the records as steps change them.
    struct World {
        view: View,
        next_id: u64,
        /// Learners that have not caught up yet.
        behind: BTreeSet<u64>,
    }

    impl World {
        fn first() -> World {
            let view = View { is_settled: true, ..View::default() };
            let mut world = World { view, next_id: 1, behind: BTreeSet::new() };
            world.come("n1");
            let record =
                MemberRecord { address: address("n1"), stage: Stage::Voter, initial: BTreeMap::new(), membership: 0 };
            world.view.members.insert("n1".to_owned(), record);
            world.list("n1", false);
            world
        }

        fn list(&mut self, node: &str, is_learner: bool) {
            let peer_url = url(&address(node).peer);
            self.view.listed.push(Listed { id: self.next_id, peer_url, is_learner, has_started: !is_learner });
            self.next_id += 1;
        }

        fn come(&mut self, node: &str) {
            self.view.nodes.insert(node.to_owned());
            self.view.alive.insert(node.to_owned());
            self.view.offers.insert(node.to_owned(), Offer { address: address(node), version: None });
        }

        fn come_with(&mut self, node: &str, version: &str) {
            self.come(node);
            self.view
                .offers
                .insert(node.to_owned(), Offer { address: address(node), version: Some(version.to_owned()) });
        }

        fn die(&mut self, node: &str) {
            self.view.alive.remove(node);
            self.view.offers.remove(node);
        }

        fn take(&mut self, step: Step) {
            let stage = |view: &mut View, node: &str, stage| {
                view.members.get_mut(node).expect("it has a record").stage = stage;
            };
            match step {
                Step::Invite(node) => {
                    let record = MemberRecord {
                        address: address(&node),
                        stage: Stage::Invited,
                        initial: BTreeMap::new(),
                        membership: 0,
                    };
                    self.view.members.insert(node, record);
                }
                Step::Add(node) => {
                    self.behind.insert(self.next_id);
                    self.list(&node, true);
                }
                Step::Begin { node, initial } => {
                    assert!(initial.contains_key(&node));
                    stage(&mut self.view, &node, Stage::Learner);
                    self.view.members.get_mut(&node).expect("it has a record").initial = initial;
                }
                Step::Promote { id, .. } => {
                    if !self.behind.remove(&id) {
                        let member = self.view.listed.iter_mut().find(|listed| listed.id == id).expect("listed");
                        member.is_learner = false;
                    }
                }
                Step::Confirm(node) => stage(&mut self.view, &node, Stage::Voter),
                Step::Dismiss(node) => stage(&mut self.view, &node, Stage::Leaving),
                Step::Remove { id, .. } => {
                    assert!(
                        self.voters() > 1 || self.view.listed.iter().any(|listed| listed.id == id && listed.is_learner)
                    );
                    self.view.listed.retain(|listed| listed.id != id);
                }
                Step::Forget(node) => drop(self.view.members.remove(&node)),
            }
            assert!(self.view.listed.iter().filter(|listed| listed.is_learner).count() <= 1, "one learner at a time");
            assert!(self.voters() >= 1);
        }

        fn voters(&self) -> usize {
            self.view.listed.iter().filter(|listed| !listed.is_learner).count()
        }

        fn settle(&mut self) -> Vec<&str> {
            for _ in 0..100 {
                // What daemons do that live.
                for (node, record) in &mut self.view.members {
                    if record.stage == Stage::Leaving && self.view.alive.contains(node) {
                        record.stage = Stage::Left;
                    }
                }
                match next(&self.view, url) {
                    Some(step) => self.take(step),
                    None => {
                        assert!(self.view.members.values().all(|record| record.stage == Stage::Voter));
                        assert_eq!(self.voters(), self.view.members.len());
                        return self.view.members.keys().map(String::as_str).collect();
                    }
                }
            }
            panic!("it does not come to rest: {:?}", self.view);
        }
    }

    #[test]
    fn members_are_one_three_or_five_as_nodes_come_and_go() {
        let mut world = World::first();
        assert_eq!(world.settle(), ["n1"]);
        world.come("n2");
        assert_eq!(world.settle(), ["n1"], "two would survive less than one");
        world.come("n3");
        assert_eq!(world.settle(), ["n1", "n2", "n3"]);
        world.come("n4");
        assert_eq!(world.settle(), ["n1", "n2", "n3"]);
        world.view.nodes.remove("n2");
        world.die("n2");
        assert_eq!(world.settle(), ["n1", "n3", "n4"], "another takes its place");
        world.come("n5");
        assert_eq!(world.settle(), ["n1", "n3", "n4"]);
        world.come("n6");
        assert_eq!(world.settle(), ["n1", "n3", "n4", "n5", "n6"]);
        world.come("n7");
        assert_eq!(world.settle(), ["n1", "n3", "n4", "n5", "n6"]);
        for node in ["n1", "n3", "n4"] {
            world.view.nodes.remove(node);
            world.die(node);
            world.settle();
        }
        assert_eq!(world.settle(), ["n5", "n6", "n7"]);
        world.view.nodes.remove("n5");
        world.die("n5");
        assert_eq!(world.settle().len(), 1);
    }

    #[test]
    fn silent_node_keeps_its_member_and_no_newcomer_is_let_in_while_one_is_silent() {
        let mut world = World::first();
        ["n2", "n3", "n4", "n5"].iter().for_each(|node| world.come(node));
        world.view.nodes.remove("n5");
        assert_eq!(world.settle(), ["n1", "n2", "n3"]);
        world.die("n2");
        world.view.nodes.insert("n5".to_owned());
        assert_eq!(world.settle(), ["n1", "n2", "n3"]);
        world.come("n2");
        assert_eq!(world.settle(), ["n1", "n2", "n3", "n4", "n5"]);
    }

    #[test]
    fn nobody_is_dismissed_who_may_be_needed() {
        let mut world = World::first();
        ["n2", "n3"].iter().for_each(|node| world.come(node));
        assert_eq!(world.settle(), ["n1", "n2", "n3"]);
        world.view.nodes.remove("n1");
        world.die("n1");
        world.die("n2");
        assert_eq!(world.settle(), ["n2", "n3"], "two are too many, but of n2 nothing is heard");
        world.come("n2");
        assert_eq!(world.settle(), ["n2"]);
    }

    #[test]
    fn nobody_is_dismissed_while_another_may_be_about_to_come() {
        let mut world = World::first();
        ["n2", "n3"].iter().for_each(|node| world.come(node));
        world.settle();
        world.view.is_settled = false;
        world.view.nodes.remove("n1");
        world.die("n1");
        assert_eq!(world.settle(), ["n2", "n3"]);
        // A lease that was lost while there was no leader.
        world.come("n1");
        world.die("n1");
        assert_eq!(world.settle(), ["n2", "n3"]);
        world.come("n1");
        assert_eq!(world.settle(), ["n1", "n2", "n3"]);
        // Who is asked to leave need not wait.
        world.view.leaving.insert("n3".to_owned());
        assert_eq!(world.settle(), ["n1", "n2"]);
        world.view.is_settled = true;
        assert_eq!(world.settle().len(), 1);
    }

    #[test]
    fn node_that_is_to_leave_hands_its_member_on_before_it_goes() {
        let mut world = World::first();
        world.come("n2");
        world.view.leaving.insert("n1".to_owned());
        assert_eq!(world.settle(), ["n2"], "the only one, too");
        let mut world = World::first();
        ["n2", "n3"].iter().for_each(|node| world.come(node));
        world.settle();
        world.view.leaving.insert("n1".to_owned());
        assert_eq!(world.settle(), ["n2"], "two are left, so one is enough");
        let mut world = World::first();
        world.come("n2");
        world.view.offers.remove("n2");
        world.view.leaving.insert("n1".to_owned());
        assert_eq!(world.settle(), ["n1"], "nobody else has etcd: it keeps what it has");
    }

    #[test]
    fn there_are_never_two_for_long() {
        let mut world = World::first();
        ["n2", "n3"].iter().for_each(|node| world.come(node));
        world.view.offers.remove("n3");
        assert_eq!(world.settle(), ["n1"], "a second one alone would survive less");
        world.come("n3");
        assert_eq!(world.settle(), ["n1", "n2", "n3"]);
        world.view.nodes.remove("n2");
        world.die("n2");
        world.come("n4");
        world.view.offers.remove("n4");
        assert_eq!(world.settle().len(), 1);
    }

    #[test]
    fn member_that_is_not_listed_for_a_moment_is_not_forgotten() {
        let mut world = World::first();
        ["n2", "n3"].iter().for_each(|node| world.come(node));
        world.settle();
        let listed = world.view.listed.clone();
        world.view.listed.truncate(2);
        assert_eq!(next(&world.view, url), None);
        world.view.listed = listed;
        assert_eq!(next(&world.view, url), None);
        world.view.listed.truncate(2);
        world.view.missing.insert("n3".to_owned());
        assert_eq!(next(&world.view, url), Some(Step::Forget("n3".to_owned())));
    }

    #[test]
    fn newcomer_that_does_not_get_on_holds_up_nobody_who_goes() {
        let mut world = World::first();
        ["n2", "n3"].iter().for_each(|node| world.come(node));
        world.settle();
        let stuck = world.view.members.get_mut("n1").unwrap();
        stuck.stage = Stage::Learner;
        world.view.listed[0].is_learner = true;
        world.view.nodes.remove("n3");
        world.die("n3");
        assert_eq!(next(&world.view, url), Some(Step::Dismiss("n3".to_owned())));
    }

    #[test]
    fn cordoned_node_and_one_without_etcd_get_no_member() {
        let mut world = World::first();
        ["n2", "n3", "n4", "n5"].iter().for_each(|node| world.come(node));
        world.view.cordoned.insert("n2".to_owned());
        world.view.offers.remove("n3");
        world.settle();
        let members: Vec<&String> = world.view.members.keys().collect();
        assert_eq!(members, ["n1", "n4", "n5"]);
    }

    #[test]
    fn only_who_has_an_etcd_that_the_members_let_in_gets_a_member() {
        let mut world = World::first();
        world.come_with("n1", "3.5.16");
        world.come_with("n2", "3.4.23");
        world.come_with("n3", "3.4.23");
        assert_eq!(world.settle(), ["n1"], "they would end at each start");
        world.come_with("n3", "3.7.0");
        assert_eq!(world.settle(), ["n1"], "one that is too new does not understand what there is");
        world.come_with("n4", "3.5.2");
        world.come_with("n5", "3.6.1");
        assert_eq!(world.settle(), ["n1", "n4", "n5"]);
        // An upgrade of the others lets the rest in.
        world.come_with("n2", "3.5.16");
        world.come_with("n3", "3.6.1");
        assert_eq!(world.settle().len(), 5);
    }

    #[test]
    fn newer_ones_come_to_older_ones() {
        let mut world = World::first();
        world.come_with("n1", "3.4.23");
        world.come_with("n2", "3.4.23");
        world.come_with("n3", "3.5.16");
        assert_eq!(world.settle(), ["n1", "n2", "n3"]);
    }

    #[test]
    fn who_does_not_say_a_version_is_taken_as_before() {
        let mut world = World::first();
        world.come_with("n2", "3.4.23");
        world.come("n3");
        assert_eq!(world.settle(), ["n1", "n2", "n3"]);
    }

    #[test]
    fn newcomer_that_cannot_begin_is_dismissed_and_not_asked_again() {
        for (stage, is_listed) in [(Stage::Invited, false), (Stage::Invited, true), (Stage::Learner, true)] {
            let mut world = World::first();
            world.come_with("n1", "3.5.16");
            world.come_with("n2", "3.4.23");
            world.come_with("n3", "3.4.23");
            let record = MemberRecord { address: address("n2"), stage, initial: BTreeMap::new(), membership: 0 };
            world.view.members.insert("n2".to_owned(), record);
            if is_listed {
                world.list("n2", true);
            }
            assert_eq!(next(&world.view, url), Some(Step::Dismiss("n2".to_owned())), "{stage:?}");
            assert_eq!(world.settle(), ["n1"], "{stage:?}");
        }
    }

    #[test]
    fn member_that_counts_stays_whatever_its_node_has_installed_since() {
        let mut world = World::first();
        ["n1", "n2", "n3"].iter().for_each(|node| world.come_with(node, "3.5.16"));
        assert_eq!(world.settle().len(), 3);
        world.come_with("n2", "3.4.23");
        assert_eq!(world.settle(), ["n1", "n2", "n3"]);
    }
}
