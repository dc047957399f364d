//! What to do next for one container's share on this node. Pure: wish and observation in, actions out.
//!
//! Making follows dependencies, so that one part that cannot be made holds up only what needs it:
//!
//! ```text
//! cgroup ─┬─ keeper ─┬─ network, port gates
//!         │          └─ mount ── gate        broker ── servers, gate
//!         └─ servers, gate
//! ```
//!
//! What a server needs and when it ends is in its row (`kinds`). Unmaking is a sequence in stages that all nodes of the
//! container walk together, because programs on one node write through the file server on another to the disk on a
//! third: programs, then file server and key-value server, then disks and the rest.

use std::collections::BTreeMap;

use crate::kinds::Kind;

/// A part of a share.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Part {
    Broker,
    Cgroup,
    /// Keeper, init and programs.
    Keeper,
    Network,
    Mount,
    /// The port gate, of a container that publishes something on this node.
    Ports,
    /// The gate through which its programs get out, of a container that may.
    Egress,
    /// A server or gate: its row, and which of its kind.
    Server(&'static Kind, usize),
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Standing {
    Absent,
    /// Made, but not ready yet.
    Coming,
    Ready,
    /// Died or could not be made; its time for the next attempt has not come.
    Resting,
    /// Belongs to something that is gone: must be unmade before it can be made again.
    Stale,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Wish {
    Up,
    Down,
}

/// How far a share is taken down.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Stage {
    Up,
    /// No program and no gate runs here.
    Quiet,
    /// No file server or key-value server either.
    Settled,
    Down,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Action {
    Make(Part),
    Unmake(Part),
}

/// What is there. Parts that this node should not have are absent from the map unless they exist.
pub type Observed = BTreeMap<Part, Standing>;

fn needs(part: &Part) -> &'static [Part] {
    match part {
        Part::Broker | Part::Cgroup => &[],
        Part::Keeper => &[Part::Cgroup],
        // It has the network namespace from the keeper; what is not there yet takes no connection.
        Part::Ports | Part::Egress => &[Part::Cgroup, Part::Keeper],
        Part::Network | Part::Mount => &[Part::Keeper],
        Part::Server(kind, _) => kind.needs,
    }
}

/// In which stage of going down a part goes, and its place within it.
fn end(part: &Part) -> (Stage, u8) {
    match part {
        Part::Keeper => (Stage::Quiet, 0),
        Part::Mount => (Stage::Quiet, 1),
        // Its connections end with the programs.
        Part::Ports | Part::Egress => (Stage::Quiet, 3),
        Part::Server(kind, _) => kind.ends,
        Part::Network => (Stage::Down, 1),
        Part::Cgroup => (Stage::Down, 2),
        Part::Broker => (Stage::Down, 3),
    }
}

/// What can be done now. Empty: nothing is missing, or something must become ready first.
///
/// `wanted` are the parts of this node; `others` is how far the other nodes of the container are down.
pub fn plan(wish: Wish, wanted: &[Part], observed: &Observed, others: Stage) -> Vec<Action> {
    match wish {
        Wish::Up => up(wanted, observed),
        Wish::Down => down(wanted, observed, others),
    }
}

fn standing(observed: &Observed, part: &Part) -> Standing {
    observed.get(part).copied().unwrap_or(Standing::Absent)
}

/// Made next, as what they need is there.
fn missing(wanted: &[Part], observed: &Observed) -> Vec<Action> {
    let ready = |need: &Part| standing(observed, need) == Standing::Ready;
    let missing = wanted.iter().filter(|part| standing(observed, part) == Standing::Absent);
    missing.filter(|part| needs(part).iter().all(ready)).map(|part| Action::Make(*part)).collect()
}

fn up(wanted: &[Part], observed: &Observed) -> Vec<Action> {
    // What stands on something that is gone serves nobody; it is made anew on what comes.
    let mut useless: Vec<&Part> = wanted
        .iter()
        .filter(|part| match standing(observed, part) {
            Standing::Stale => true,
            Standing::Ready | Standing::Coming => needs(part).iter().any(|need| is_gone(observed, need)),
            Standing::Absent | Standing::Resting => false,
        })
        .collect();
    if !useless.is_empty() {
        useless.sort_by_key(|part| end(part));
        return useless.into_iter().map(|part| Action::Unmake(*part)).collect();
    }
    missing(wanted, observed)
}

/// A broker that is being made again (a restarted daemon) does not end what stood on the old one, nor does a control
/// group whose limits could not be set.
fn is_gone(observed: &Observed, need: &Part) -> bool {
    !matches!(need, Part::Broker | Part::Cgroup)
        && matches!(standing(observed, need), Standing::Absent | Standing::Resting | Standing::Stale)
}

fn down(wanted: &[Part], observed: &Observed, others: Stage) -> Vec<Action> {
    // While there is a tree, programs' changes of it may still have to be told: by the gate, to the file server, which
    // writes them to the disk. One of these that has just died is no less needed than those that have not.
    if standing(observed, &Part::Mount) == Standing::Ready {
        let mut revived = missing(wanted, observed);
        revived.retain(|action| matches!(action, Action::Make(Part::Server(..))));
        if !revived.is_empty() {
            return revived;
        }
    }
    let mut parts: Vec<&Part> =
        observed.iter().filter(|(_, standing)| exists(**standing)).map(|(part, _)| part).collect();
    parts.sort_by_key(|part| end(part));
    let Some(stage) = parts.first().map(|part| end(part).0) else { return Vec::new() };
    // The others must have finished the stage before.
    let allowed = match stage {
        Stage::Up | Stage::Quiet => true,
        Stage::Settled => others >= Stage::Quiet,
        Stage::Down => others >= Stage::Settled,
    };
    let now = parts.into_iter().filter(|part| allowed && end(part).0 == stage);
    now.map(|part| Action::Unmake(*part)).collect()
}

fn exists(standing: Standing) -> bool {
    matches!(standing, Standing::Coming | Standing::Ready | Standing::Stale)
}

/// How far down this node is.
pub fn stage(observed: &Observed) -> Stage {
    observed
        .iter()
        .filter(|(_, standing)| exists(**standing))
        .map(|(part, _)| match end(part).0 {
            Stage::Up | Stage::Quiet => Stage::Up,
            Stage::Settled => Stage::Quiet,
            Stage::Down => Stage::Settled,
        })
        .min()
        .unwrap_or(Stage::Down)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kinds::server;

    fn wanted() -> Vec<Part> {
        use Part::*;
        let servers = ["disk", "fs", "ds", "gate"].map(server);
        [Broker, Cgroup, Keeper, Network, Mount].into_iter().chain(servers).collect()
    }

    /// Carries actions out in an ideal world.
    fn act(observed: &mut Observed, actions: &[Action]) {
        for action in actions {
            match action {
                Action::Make(part) => observed.insert(*part, Standing::Ready),
                Action::Unmake(part) => observed.insert(*part, Standing::Absent),
            };
        }
    }

    fn settle(observed: &mut Observed, wish: Wish, others: Stage) -> usize {
        for round in 0..20 {
            let actions = plan(wish, &wanted(), observed, others);
            if actions.is_empty() {
                return round;
            }
            act(observed, &actions);
        }
        panic!("it never settles");
    }

    fn all_ready() -> Observed {
        wanted().into_iter().map(|part| (part, Standing::Ready)).collect()
    }

    #[test]
    fn everything_is_made_from_any_mixture_of_what_exists() {
        for mask in 0..1_u32 << wanted().len() {
            let mut observed = all_ready();
            for (index, part) in wanted().into_iter().enumerate() {
                if mask & (1 << index) != 0 {
                    observed.insert(part, Standing::Absent);
                }
            }
            settle(&mut observed, Wish::Up, Stage::Up);
            assert_eq!(observed, all_ready(), "{mask:b}");
            settle(&mut observed, Wish::Down, Stage::Down);
            assert_eq!(stage(&observed), Stage::Down);
        }
    }

    #[test]
    fn dead_keeper_takes_mount_and_gate_with_it_but_no_server() {
        let mut observed = all_ready();
        observed.insert(Part::Keeper, Standing::Resting);
        let actions = plan(Wish::Up, &wanted(), &observed, Stage::Up);
        assert_eq!(actions, [Part::Mount, Part::Network].map(Action::Unmake));
        act(&mut observed, &actions);
        assert_eq!(plan(Wish::Up, &wanted(), &observed, Stage::Up), [Action::Unmake(server("gate"))]);
    }

    #[test]
    fn part_that_rests_holds_up_only_what_needs_it() {
        let mut observed = Observed::from([(Part::Broker, Standing::Resting), (Part::Cgroup, Standing::Ready)]);
        let actions = plan(Wish::Up, &wanted(), &observed, Stage::Up);
        assert_eq!(actions, [Action::Make(Part::Keeper)]);
        act(&mut observed, &actions);
        let actions = plan(Wish::Up, &wanted(), &observed, Stage::Up);
        assert_eq!(actions, [Part::Network, Part::Mount].map(Action::Make));
        act(&mut observed, &actions);
        assert!(plan(Wish::Up, &wanted(), &observed, Stage::Up).is_empty());
    }

    #[test]
    fn servers_stay_until_programs_of_all_nodes_are_gone() {
        let mut observed = all_ready();
        settle(&mut observed, Wish::Down, Stage::Up);
        assert_eq!(stage(&observed), Stage::Quiet);
        assert_eq!(standing(&observed, &server("fs")), Standing::Ready);
        settle(&mut observed, Wish::Down, Stage::Quiet);
        assert_eq!(stage(&observed), Stage::Settled);
        assert_eq!(standing(&observed, &server("disk")), Standing::Ready);
        settle(&mut observed, Wish::Down, Stage::Settled);
        assert_eq!(stage(&observed), Stage::Down);
    }

    #[test]
    fn server_that_died_right_before_the_end_takes_what_was_promised() {
        let mut observed = all_ready();
        observed.insert(server("gate"), Standing::Absent);
        observed.insert(server("fs"), Standing::Absent);
        let actions = plan(Wish::Down, &wanted(), &observed, Stage::Up);
        assert_eq!(actions, ["fs", "gate"].map(|kind| Action::Make(server(kind))));
        act(&mut observed, &actions);
        settle(&mut observed, Wish::Down, Stage::Up);
        assert_eq!(stage(&observed), Stage::Quiet);
        // Nothing is promised any more.
        observed.insert(server("fs"), Standing::Absent);
        assert!(plan(Wish::Down, &wanted(), &observed, Stage::Up).is_empty());
    }

    #[test]
    fn restarted_daemon_leaves_running_servers_alone() {
        let mut observed = all_ready();
        observed.insert(Part::Broker, Standing::Absent);
        assert_eq!(plan(Wish::Up, &wanted(), &observed, Stage::Up), [Action::Make(Part::Broker)]);
    }

    #[test]
    fn stale_servers_end_in_the_order_in_which_they_need_each_other() {
        let mut observed = all_ready();
        observed.extend(["disk", "fs", "gate"].map(|kind| (server(kind), Standing::Stale)));
        let actions = plan(Wish::Up, &wanted(), &observed, Stage::Up);
        assert_eq!(actions, ["gate", "fs", "disk"].map(|kind| Action::Unmake(server(kind))));
    }
}
