//! Which placement of an instance follows which. The record lies in the engine, and every change of it compares the
//! record that it came from: so any number of placers may decide at the same time, and one of them gets through.
//!
//! ```text
//! no placement ──▶ placed: epoch + 1, node in this incarnation ──▶ leaving ──▶ no placement
//!                       └──────────── its incarnation is over ────────────────────▲
//! ```
//!
//! What is leaving never stays: it ends when its node says that it is over, or is fenced and had its time
//! ([`tenure`](crate::tenure)). Who takes a move or a stop back gets the next epoch.

use mgmt_api::ServiceState;

use crate::tenure::Over;

#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct InstanceRecord {
    /// Of the last placement; 0 before the first one. Never falls.
    pub epoch: u64,
    pub placement: Option<PlacementRecord>,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PlacementRecord {
    pub node: String,
    /// Of the node, when it was decided on.
    pub incarnation: u64,
    pub stay: Staying,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Staying {
    Stays,
    /// It is stopped, or moves: its node ends it, says so, and never begins it again in this epoch.
    Leaves,
}

/// What is wanted of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Wish {
    Runs,
    Stopped,
    /// It ended as its policy wants, or failed for good: not placed again, by the loss of its node either.
    Rests,
}

/// What people want of it: how often they asked for a start grows with each time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AskedFor {
    Runs { times: u64 },
    Stopped,
}

/// What its node reported last.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ToldState {
    pub epoch: u64,
    pub state: ServiceState,
    /// The ask that it answers.
    pub times: u64,
}

/// What is wanted, after what was reported. A report of another epoch, or of before the last ask, says nothing.
pub fn wish(instance: &InstanceRecord, asked: AskedFor, told: Option<ToldState>) -> Wish {
    let AskedFor::Runs { times } = asked else { return Wish::Stopped };
    let rests = told.is_some_and(|told| {
        let is_over = matches!(told.state, ServiceState::Stopped | ServiceState::Failed);
        is_over && (told.epoch, told.times) == (instance.epoch, times)
    });
    if rests { Wish::Rests } else { Wish::Runs }
}

/// A node where it would stand now, in its incarnation.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NextPlace {
    pub node: String,
    pub incarnation: u64,
}

/// The record that follows from this one, if any does. `over`: what is known of its placement. `place`: where it would
/// stand if it were placed now.
pub fn next(instance: &InstanceRecord, wish: Wish, over: Over, place: Option<&NextPlace>) -> Option<InstanceRecord> {
    match (&instance.placement, wish) {
        (None, Wish::Stopped | Wish::Rests) => None,
        (None, Wish::Runs) => {
            let place = place?;
            let placement =
                PlacementRecord { node: place.node.clone(), incarnation: place.incarnation, stay: Staying::Stays };
            Some(InstanceRecord { epoch: instance.epoch.checked_add(1)?, placement: Some(placement) })
        }
        (Some(_), _) if over == Over::Yes => Some(InstanceRecord { epoch: instance.epoch, placement: None }),
        (Some(placement), Wish::Stopped) if placement.stay == Staying::Stays => Some(leaving(instance, placement)),
        _ => None,
    }
}

/// It is to stand elsewhere. Where, is decided when it is over here.
pub fn move_away(instance: &InstanceRecord) -> Option<InstanceRecord> {
    let placement = instance.placement.as_ref().filter(|placement| placement.stay == Staying::Stays)?;
    Some(leaving(instance, placement))
}

fn leaving(instance: &InstanceRecord, placement: &PlacementRecord) -> InstanceRecord {
    InstanceRecord {
        epoch: instance.epoch,
        placement: Some(PlacementRecord { stay: Staying::Leaves, ..placement.clone() }),
    }
}

/// Whether a node may hold the instance, and be permitted to for longer: `verdict` is the last of its incarnations that
/// was judged, read in its present one.
pub fn may_hold(instance: &InstanceRecord, node: &str, verdict: u64) -> bool {
    instance.placement.as_ref().is_some_and(|placement| {
        placement.node == node && placement.stay == Staying::Stays && placement.incarnation > verdict
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn placed(epoch: u64, stay: Staying) -> InstanceRecord {
        InstanceRecord { epoch, placement: Some(PlacementRecord { node: "n1".to_owned(), incarnation: 4, stay }) }
    }

    fn nowhere(epoch: u64) -> InstanceRecord {
        InstanceRecord { epoch, placement: None }
    }

    #[test]
    fn every_change_of_a_record() {
        let n1 = NextPlace { node: "n1".to_owned(), incarnation: 4 };
        let cases = [
            (nowhere(0), Wish::Runs, Over::No, Some(placed(1, Staying::Stays))),
            (nowhere(6), Wish::Stopped, Over::No, None),
            (placed(7, Staying::Stays), Wish::Runs, Over::No, None),
            (placed(7, Staying::Stays), Wish::Runs, Over::Yes, Some(nowhere(7))),
            (placed(7, Staying::Stays), Wish::Stopped, Over::No, Some(placed(7, Staying::Leaves))),
            (placed(7, Staying::Leaves), Wish::Stopped, Over::No, None),
            (placed(7, Staying::Leaves), Wish::Stopped, Over::Yes, Some(nowhere(7))),
            // Taken back, and still it has to end first.
            (placed(7, Staying::Leaves), Wish::Runs, Over::No, None),
            (placed(7, Staying::Leaves), Wish::Runs, Over::Yes, Some(nowhere(7))),
            (nowhere(7), Wish::Runs, Over::Yes, Some(placed(8, Staying::Stays))),
            (placed(7, Staying::Stays), Wish::Rests, Over::No, None),
            (placed(7, Staying::Stays), Wish::Rests, Over::Yes, Some(nowhere(7))),
            (nowhere(7), Wish::Rests, Over::Yes, None),
            (nowhere(u64::MAX), Wish::Runs, Over::No, None),
        ];
        for (from, wish, over, to) in cases {
            assert_eq!(next(&from, wish, over, Some(&n1)), to, "{from:?} {wish:?} {over:?}");
        }
        assert_eq!(next(&nowhere(3), Wish::Runs, Over::No, None), None);
        assert_eq!(move_away(&placed(7, Staying::Stays)), Some(placed(7, Staying::Leaves)));
        assert_eq!((move_away(&placed(7, Staying::Leaves)), move_away(&nowhere(7))), (None, None));
    }

    #[test]
    fn what_ended_for_good_rests_until_somebody_asks_again() {
        let told = |epoch, state, times| Some(ToldState { epoch, state, times });
        let at = |asked, told| wish(&nowhere(5), asked, told);
        let runs = AskedFor::Runs { times: 2 };
        assert_eq!(at(runs, None), Wish::Runs);
        for state in [ServiceState::Stopped, ServiceState::Failed] {
            assert_eq!(at(runs, told(5, state, 2)), Wish::Rests);
            assert_eq!(at(runs, told(5, state, 1)), Wish::Runs);
            assert_eq!(at(runs, told(4, state, 2)), Wish::Runs);
            assert_eq!(at(AskedFor::Stopped, told(5, state, 2)), Wish::Stopped);
        }
        assert_eq!(at(runs, told(5, ServiceState::BackingOff, 2)), Wish::Runs);
    }

    #[test]
    fn node_holds_what_stays_there_in_an_incarnation_that_was_not_judged() {
        assert!(may_hold(&placed(1, Staying::Stays), "n1", 3));
        assert!(!may_hold(&placed(1, Staying::Stays), "n1", 4));
        assert!(!may_hold(&placed(1, Staying::Stays), "n2", 3));
        assert!(!may_hold(&placed(1, Staying::Leaves), "n1", 3));
        assert!(!may_hold(&nowhere(1), "n1", 0));
    }
}
