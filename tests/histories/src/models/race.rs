//! One lock, or one election: at most one has it, and each owner has a greater token than all before.
//!
//! A wish is one attempt to have it. It ends when it is given up, or *lost*: its owner died, or its node was away for
//! so long that its lease ended. Whoever records knows when that may have been, and adds a [`Ask::Lose`] whose outcome
//! is unknown from that time on; a lock that changes hands without one is a fault.

use crate::search::Model;

/// A name for an attempt.
pub type Wish = u64;

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Ask {
    Acquire {
        wish: Wish,
    },
    Release {
        wish: Wish,
    },
    /// Is it still mine?
    Confirm {
        wish: Wish,
    },
    Lose {
        wish: Wish,
    },
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Answer {
    Acquired { token: u64 },
    Released,
    Yes,
    No,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct State {
    owner: Option<Wish>,
    /// Greatest token that anybody was told.
    newest: u64,
}

pub struct Race;

impl Model for Race {
    type Input = Ask;
    type Output = Answer;
    type State = State;

    fn initial(&self) -> State {
        State { owner: None, newest: 0 }
    }

    fn step(&self, state: &State, input: &Ask, output: Option<&Answer>) -> Option<State> {
        let is_owner = |wish: &Wish| state.owner.as_ref() == Some(wish);
        match (input, output) {
            (Ask::Acquire { wish }, Some(Answer::Acquired { token })) => {
                let is_free = state.owner.is_none() && *token > state.newest;
                is_free.then_some(State { owner: Some(*wish), newest: *token })
            }
            (Ask::Acquire { wish }, None) => {
                state.owner.is_none().then_some(State { owner: Some(*wish), newest: state.newest })
            }
            (Ask::Release { wish }, Some(Answer::Released) | None) | (Ask::Lose { wish }, None) => {
                let owner = state.owner.filter(|_| !is_owner(wish));
                Some(State { owner, newest: state.newest })
            }
            (Ask::Confirm { wish }, Some(Answer::Yes)) => is_owner(wish).then(|| state.clone()),
            (Ask::Confirm { wish }, Some(Answer::No)) => (!is_owner(wish)).then(|| state.clone()),
            (Ask::Confirm { .. }, None) => Some(state.clone()),
            _ => None,
        }
    }
}
