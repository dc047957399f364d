//! One key: a value, perhaps, and the revision that wrote it. Put, compare and set, delete, get.
//!
//! Stores that tell no revisions answer without them; then values alone are compared. Whoever writes gives each write a
//! value of its own, so that it can be told from all others.

use crate::search::Model;

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Ask {
    Get,
    Put { value: u64, given: Given },
    Delete { given: Given },
}

/// What must hold for a change.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Given {
    Anything,
    Absent,
    Present,
    /// Written by this revision.
    At(u64),
}

/// Revisions are `None` where the store tells none.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Answer {
    Found {
        value: u64,
        revision: Option<u64>,
    },
    Missing,
    Done {
        revision: Option<u64>,
    },
    /// The condition did not hold.
    Refused,
    /// Of a deletion: the key is not there now, whoever deleted it. Of two that delete at once both may say so.
    Gone,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct State {
    /// And by which revision, if anybody was told.
    value: Option<(u64, Option<u64>)>,
    /// Greatest revision that anybody was told.
    newest: u64,
}

pub struct Register;

impl Model for Register {
    type Input = Ask;
    type Output = Answer;
    type State = State;

    fn initial(&self) -> State {
        State { value: None, newest: 0 }
    }

    fn step(&self, state: &State, input: &Ask, output: Option<&Answer>) -> Option<State> {
        match (input, output) {
            (Ask::Get, None) => Some(state.clone()),
            (Ask::Get, Some(Answer::Missing)) => state.value.is_none().then(|| state.clone()),
            (Ask::Get, Some(Answer::Found { value, revision })) => found(state, *value, *revision),
            (Ask::Put { value, given }, Some(Answer::Done { revision })) => {
                let newest = changed(state, *given, *revision)?;
                Some(State { value: Some((*value, *revision)), newest })
            }
            (Ask::Delete { given }, Some(Answer::Done { revision })) => {
                state.value?;
                Some(State { value: None, newest: changed(state, *given, *revision)? })
            }
            (Ask::Delete { .. }, Some(Answer::Gone)) => Some(State { value: None, newest: state.newest }),
            (Ask::Put { given, .. }, Some(Answer::Refused)) => (!must_hold(state, *given)).then(|| state.clone()),
            (Ask::Delete { given }, Some(Answer::Refused | Answer::Missing)) => {
                (state.value.is_none() || !must_hold(state, *given)).then(|| state.clone())
            }
            (Ask::Put { value, given }, None) => {
                may_hold(state, *given).then_some(State { value: Some((*value, None)), newest: state.newest })
            }
            (Ask::Delete { given }, None) => {
                may_hold(state, *given).then_some(State { value: None, newest: state.newest })
            }
            _ => None,
        }
    }
}

fn found(state: &State, value: u64, revision: Option<u64>) -> Option<State> {
    match (state.value?, revision) {
        ((stored, Some(by)), Some(told)) => (stored == value && by == told).then(|| state.clone()),
        // Now somebody was told.
        ((stored, None), Some(told)) => {
            (stored == value && told > state.newest).then_some(State { value: Some((value, Some(told))), newest: told })
        }
        ((stored, _), None) => (stored == value).then(|| state.clone()),
    }
}

/// The newest revision after a change that was done, if it can have been.
fn changed(state: &State, given: Given, revision: Option<u64>) -> Option<u64> {
    if !may_hold(state, given) {
        return None;
    }
    match revision {
        Some(revision) => (revision > state.newest).then_some(revision),
        None => Some(state.newest),
    }
}

fn may_hold(state: &State, given: Given) -> bool {
    match (given, state.value) {
        (Given::Anything, _) => true,
        (Given::Absent, value) => value.is_none(),
        (Given::Present, value) => value.is_some(),
        (Given::At(_), None) => false,
        (Given::At(wanted), Some((_, Some(by)))) => wanted == by,
        (Given::At(wanted), Some((_, None))) => wanted > state.newest,
    }
}

/// Whether a refusal would be wrong.
fn must_hold(state: &State, given: Given) -> bool {
    match (given, state.value) {
        (Given::At(_), Some((_, None))) => false,
        _ => may_hold(state, given),
    }
}
