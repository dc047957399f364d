//! Linearizability: is there one order of the operations, each between its question and its answer, in which a single
//! copy of the thing would have answered the same?
//!
//! Depth first over all orders (Wing and Gong, "Testing and verifying concurrent objects", 1993). An order and another
//! one that did the same operations and led to the same state have the same future, so each such pair is entered once
//! (Lowe, "Testing for linearizability", 2017). An operation that is unknown has no answer, so it may come anywhere
//! after its question, or never: those that were answered are tried first.
//!
//! What may come next is bounded by time: only operations that were asked before the earliest answer of those that are
//! still to come. So a history of few clients is searched in about its length, and only unknown operations widen it.

use std::collections::HashSet;
use std::fmt::Debug;
use std::hash::Hash;

use crate::history::Operation;

/// What a single copy does.
pub trait Model {
    type Input: Clone + Debug;
    type Output: Clone + Debug;
    type State: Clone + Eq + Hash + Debug;

    fn initial(&self) -> Self::State;

    /// The state after this operation was answered so in that state; `None`: it cannot have been. An unknown operation
    /// has no output: the state after it if it had an effect, as it may have had.
    fn step(&self, state: &Self::State, input: &Self::Input, output: Option<&Self::Output>) -> Option<Self::State>;
}

/// How much one search may cost.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// Operations that are tried: time.
    pub steps_max: u64,
    /// Pairs of what was done and state that are remembered: memory, at most some hundred bytes each.
    pub remembered_max: usize,
}

impl Default for Bounds {
    fn default() -> Bounds {
        Bounds { steps_max: 50_000_000, remembered_max: 2_000_000 }
    }
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// The indices of one order; unknown operations that it does not need are missing.
    Linearizable { order: Vec<usize> },
    /// There is none. The text shows where the longest attempt ended.
    Impossible { why: String },
    /// The bounds did not suffice.
    Undecided,
}

impl Verdict {
    pub fn is_linearizable(&self) -> bool {
        matches!(self, Verdict::Linearizable { .. })
    }
}

/// Decides about a history of one thing; its operations in any order.
pub fn check<M: Model>(model: &M, history: &[Operation<M::Input, M::Output>], bounds: Bounds) -> Verdict {
    Search::new(model, history, bounds).run()
}

/// What was done: all answered operations before `first`, these beyond it, and these unknown ones; and what that led
/// to. Indices are of `answered` and `unknown`.
#[derive(Clone, PartialEq, Eq, Hash)]
struct Place<S> {
    first: u32,
    beyond: Vec<u32>,
    unknown: Vec<u32>,
    state: S,
}

/// A place, and which of its continuations is tried next.
struct Frame<S> {
    place: Place<S>,
    /// Of the history; in the order in which they are tried.
    choices: Vec<Choice>,
    tried: usize,
}

#[derive(Clone, Copy)]
enum Choice {
    Answered(u32),
    Unknown(u32),
}

struct Search<'a, M: Model> {
    model: &'a M,
    history: &'a [Operation<M::Input, M::Output>],
    bounds: Bounds,
    /// Indices of the history, by when they were asked.
    answered: Vec<usize>,
    unknown: Vec<usize>,
    entered: HashSet<Place<M::State>>,
    /// Where most answered operations were done.
    longest: Option<(usize, Place<M::State>)>,
}

impl<'a, M: Model> Search<'a, M> {
    fn new(model: &'a M, history: &'a [Operation<M::Input, M::Output>], bounds: Bounds) -> Search<'a, M> {
        let by_question = |is_answered: bool| {
            let mut indices: Vec<usize> = (0..history.len())
                .filter(|index| history.get(*index).is_some_and(|one| one.returned.is_some() == is_answered))
                .collect();
            indices.sort_by_key(|index| history[*index].invoked);
            indices
        };
        let (answered, unknown) = (by_question(true), by_question(false));
        Search { model, history, bounds, answered, unknown, entered: HashSet::new(), longest: None }
    }

    fn run(mut self) -> Verdict {
        let begin = Place { first: 0, beyond: Vec::new(), unknown: Vec::new(), state: self.model.initial() };
        let (mut path, mut order) = (vec![self.frame(begin)], Vec::<usize>::new());
        let mut steps = 0;
        while let Some(frame) = path.last_mut() {
            if frame.place.first as usize == self.answered.len() {
                return Verdict::Linearizable { order };
            }
            let Some(choice) = frame.choices.get(frame.tried).copied() else {
                path.pop();
                order.pop();
                continue;
            };
            frame.tried += 1;
            steps += 1;
            if steps > self.bounds.steps_max || self.entered.len() >= self.bounds.remembered_max {
                return Verdict::Undecided;
            }
            let Some(next) = next_place(self.model, self.history, &self.answered, &self.unknown, &frame.place, choice)
            else {
                continue;
            };
            if self.entered.insert(next.clone()) {
                order.push(match choice {
                    Choice::Answered(index) => self.answered[index as usize],
                    Choice::Unknown(index) => self.unknown[index as usize],
                });
                let done = next.first as usize + next.beyond.len();
                if self.longest.as_ref().is_none_or(|(most, _)| done > *most) {
                    self.longest = Some((done, next.clone()));
                }
                let frame = self.frame(next);
                path.push(frame);
            }
        }
        Verdict::Impossible { why: self.why() }
    }

    /// Everything that may come next: of the answered ones those that end first before the others.
    fn frame(&self, place: Place<M::State>) -> Frame<M::State> {
        let mut choices = Vec::new();
        let mut deadline = u64::MAX;
        for index in place.first as usize..self.answered.len() {
            let operation = &self.history[self.answered[index]];
            if operation.invoked > deadline {
                break;
            }
            if !place.beyond.contains(&(index as u32)) {
                let returned = operation.returned.unwrap_or(u64::MAX);
                deadline = deadline.min(returned);
                choices.push((operation.invoked, returned, Choice::Answered(index as u32)));
            }
        }
        // What was looked at before the earliest answer was known.
        choices.retain(|(invoked, ..)| *invoked <= deadline);
        choices.sort_by_key(|(_, returned, _)| *returned);
        let unknown = (0..self.unknown.len() as u32)
            .take_while(|index| self.history[self.unknown[*index as usize]].invoked <= deadline)
            .filter(|index| !place.unknown.contains(index))
            .map(Choice::Unknown);
        let choices = choices.into_iter().map(|(.., choice)| choice).chain(unknown).collect();
        Frame { place, choices, tried: 0 }
    }

    fn why(&self) -> String {
        let begin = Place { first: 0, beyond: Vec::new(), unknown: Vec::new(), state: self.model.initial() };
        let (done, place) = self.longest.as_ref().map_or((0, &begin), |(done, place)| (*done, place));
        let mut why = format!(
            "{done} of {} answered operations have an order, which leads to {:?}; none of these can follow:",
            self.answered.len(),
            place.state
        );
        for choice in self.frame(place.clone()).choices {
            let index = match choice {
                Choice::Answered(index) => self.answered[index as usize],
                Choice::Unknown(index) => self.unknown[index as usize],
            };
            why.push_str(&format!("\n  {:?}", self.history[index]));
        }
        // What was answered last before it, for people.
        let before = self.answered.get(..(place.first as usize)).unwrap_or_default();
        for index in before.iter().rev().take(6) {
            why.push_str(&format!("\n  before: {:?}", self.history[*index]));
        }
        why
    }
}

fn next_place<M: Model>(
    model: &M,
    history: &[Operation<M::Input, M::Output>],
    answered: &[usize],
    unknown: &[usize],
    place: &Place<M::State>,
    choice: Choice,
) -> Option<Place<M::State>> {
    let index = match choice {
        Choice::Answered(index) => answered[index as usize],
        Choice::Unknown(index) => unknown[index as usize],
    };
    let operation = &history[index];
    let state = model.step(&place.state, &operation.input, operation.output.as_ref())?;
    let mut next = Place { state, ..place.clone() };
    match choice {
        // One that changes nothing might as well not have happened.
        Choice::Unknown(_) if next.state == place.state => return None,
        Choice::Unknown(index) => insert(&mut next.unknown, index),
        Choice::Answered(index) => insert(&mut next.beyond, index),
    }
    // The beginning that is complete is a number.
    let mut complete = 0;
    while next.beyond.get(complete) == Some(&next.first) {
        next.first += 1;
        complete += 1;
    }
    next.beyond.drain(..complete);
    Some(next)
}

fn insert(sorted: &mut Vec<u32>, number: u32) {
    let at = sorted.partition_point(|one| *one < number);
    sorted.insert(at, number);
}
