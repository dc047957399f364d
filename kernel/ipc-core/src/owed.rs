//! Whether a request that comes by relay may be taken while its client is owed an answer already.
//!
//! A client has one request outstanding, but timed calls end early, so two of it may be around. A server owes a client
//! one answer, to the request taken last; so it must never forget the one for which the client waits. See
//! `docs/design/delegation.md`.

use crate::Timing;

/// What the server knows of the client's earlier request that it took and did not answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Owed {
    Nothing,
    /// It came by the same lane, where later is newer.
    BySameLane,
    /// It came directly, and the client is seen waiting for it.
    Awaited,
    /// The client is seen not to wait for it, or the way back is over.
    GivenUp,
    /// Whether the client waits for it cannot be seen from here.
    Unseen(Timing),
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// The earlier request, if any, is forgotten.
    Take,
    /// The client gave this one up.
    PassOver,
    /// Either may be the living one: not before the earlier is answered.
    HoldBack,
}

/// What becomes of a request that came by relay. `timing` is that of the client's call.
pub fn judge(owed: Owed, timing: Timing) -> Verdict {
    match (owed, timing) {
        (Owed::Nothing | Owed::BySameLane | Owed::GivenUp, _) => Verdict::Take,
        (Owed::Awaited, _) => Verdict::PassOver,
        // Only a timed call ends while its server lives.
        (Owed::Unseen(Timing::Timed), Timing::Untimed) => Verdict::Take,
        (Owed::Unseen(_), _) => Verdict::HoldBack,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// By which way a request travels: 0 is direct, the others are lanes.
    type Way = usize;

    #[derive(Clone, Copy, Debug)]
    struct Call {
        way: Way,
        timing: Timing,
    }

    type Numbered = (usize, Call);

    #[derive(Clone, Copy, Debug)]
    enum Step {
        /// The client calls, giving up what it waited for if that was timed.
        Call(Call),
        /// The server takes the next request of one way.
        Look(Way),
        Answer,
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let timing = prop_oneof![Just(Timing::Timed), Just(Timing::Untimed)];
        let step = prop_oneof![
            (0..3usize, timing).prop_map(|(way, timing)| Step::Call(Call { way, timing })),
            (0..3usize).prop_map(Step::Look),
            (0..3usize).prop_map(Step::Look),
            Just(Step::Answer),
        ];
        proptest::collection::vec(step, 0..60)
    }

    fn owed_when(owed: Option<Numbered>, way: Way, living: Option<usize>, is_seen: bool) -> Owed {
        match owed {
            None => Owed::Nothing,
            Some((_, earlier)) if earlier.way == way => Owed::BySameLane,
            Some((number, Call { way: 0, .. })) if is_seen && living == Some(number) => Owed::Awaited,
            Some((_, Call { way: 0, .. })) if is_seen => Owed::GivenUp,
            Some((_, earlier)) => Owed::Unseen(earlier.timing),
        }
    }

    proptest! {
        /// Requests are numbered in the order of the calls. Those on lanes may lie there for any time; a direct one is
        /// withdrawn when it is given up untaken.
        #[test]
        fn living_request_is_never_lost_and_a_reply_never_goes_to_another(steps in steps(), is_seen: bool) {
            let mut ways: [Vec<Numbered>; 3] = Default::default();
            let (mut living, mut owed): (Option<Numbered>, Option<Numbered>) = (None, None);
            for (number, step) in steps.into_iter().enumerate() {
                match step {
                    Step::Call(call) => {
                        if living.is_some_and(|(_, waits)| waits.timing == Timing::Untimed) {
                            continue;
                        }
                        ways[0].clear();
                        living = Some((number, call));
                        ways[call.way].push((number, call));
                    }
                    Step::Look(0) => {
                        // Whoever comes directly is newer than what was taken before.
                        if !ways[0].is_empty() {
                            owed = Some(ways[0].remove(0));
                        }
                    }
                    Step::Look(way) => {
                        let Some((_, call)) = ways[way].first().copied() else { continue };
                        let waits = living.map(|(number, _)| number);
                        match judge(owed_when(owed, way, waits, is_seen), call.timing) {
                            Verdict::Take => owed = Some(ways[way].remove(0)),
                            Verdict::PassOver => prop_assert_ne!(waits, Some(ways[way].remove(0).0)),
                            Verdict::HoldBack => continue,
                        }
                    }
                    Step::Answer => {
                        if owed.take().map(|(number, _)| number) == living.map(|(number, _)| number) {
                            living = None;
                        }
                    }
                }
                let is_around = |number| {
                    owed.is_some_and(|(taken, _)| taken == number)
                        || ways.iter().flatten().any(|(lies, _)| *lies == number)
                };
                prop_assert!(living.is_none_or(|(number, _)| is_around(number)), "nobody will answer {:?}", living);
            }
            // Whoever answers what it took comes to the living one.
            loop {
                if owed.take().map(|(number, _)| number) == living.map(|(number, _)| number) {
                    living = None;
                }
                let Some(next) = ways.iter_mut().find(|way| !way.is_empty()) else { break };
                owed = Some(next.remove(0));
            }
            prop_assert!(living.is_none());
        }
    }
}
