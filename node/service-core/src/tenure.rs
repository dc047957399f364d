//! At most once, over nodes that die, stand still and are cut off.
//!
//! A **permit** lets a keeper hold an instance until a moment of the node's own monotonic clock. Whoever knows that the
//! node was there at a moment (it was heard by half of the others, or the engine answered what it had asked then) may
//! extend it to [`PERMIT`] after that moment. When it is over, the keeper kills what it holds.
//!
//! A **successor** is placed when the node said that the placement is over, or when the node's incarnation was judged
//! and [`SUCCESSION`] has passed since the hearing began that led to it. A node that is heard or reaches the engine
//! objects, and a hearing begins anew with each objection; so nobody extended a permit later than [`OBJECTION`] after
//! its beginning.

use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

/// From the moment at which the node was there to the end of what it holds.
pub const PERMIT: Duration = Duration::from_millis(1000);
/// How often a permit is extended: many times before it is over, so that a busy machine loses nothing.
pub const EXTEND_EVERY: Duration = Duration::from_millis(100);
/// How much later than the beginning of a hearing the node can have reached anybody: it objects so often.
pub const OBJECTION: Duration = Duration::from_millis(100);
/// For clocks of different speed, and for a kill to arrive.
const MARGIN: Duration = Duration::from_millis(100);
/// From the beginning of the hearing to a successor.
pub const SUCCESSION: Duration =
    Duration::from_millis((PERMIT.as_millis() + OBJECTION.as_millis() + MARGIN.as_millis()) as u64);
/// A hearing lasts at least so long (`judge::HEARING` of the daemon); who did not take part knows no more.
pub const HEARING: Duration = Duration::from_millis(450);

const _: () = assert!(EXTEND_EVERY.as_millis() * 5 <= PERMIT.as_millis());
const _: () = assert!(HEARING.as_millis() > OBJECTION.as_millis());

/// One start of an instance: its placement's epoch, and which start there.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default, Serialize, Deserialize)]
pub struct Run {
    pub epoch: u64,
    pub number: u64,
}

/// Of one instance, in a keeper. A keeper that is new knows nothing, and its predecessor's programs ended with it.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct RunTenure {
    /// The latest run that began here.
    last: Run,
    /// Nothing of this epoch or an earlier one begins any more.
    closed: u64,
    held: Option<Held>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Held {
    run: Run,
    until: Instant,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Begin {
    /// The caller starts the program, now.
    Start,
    /// This very run began before: its outcome is repeated.
    Begun,
    Refused(RunRefusal),
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum RunRefusal {
    /// A later run began here, or this epoch was closed.
    Over,
    /// The permit that came along is over: the request was on its way too long.
    Late,
    /// Another run has not ended yet.
    Occupied,
}

impl RunTenure {
    /// Asks for the start of a run, which may be held until a moment.
    pub fn begin(&mut self, run: Run, until: Instant, now: Instant) -> Begin {
        if run == self.last {
            return Begin::Begun;
        }
        if run < self.last || run.epoch <= self.closed {
            return Begin::Refused(RunRefusal::Over);
        }
        if now >= until {
            return Begin::Refused(RunRefusal::Late);
        }
        if self.held.is_some() {
            return Begin::Refused(RunRefusal::Occupied);
        }
        self.last = run;
        self.held = Some(Held { run, until });
        Begin::Start
    }

    /// A permit only grows, and only that of the epoch it is for.
    pub fn extend(&mut self, epoch: u64, until: Instant) {
        if let Some(held) = self.held.as_mut().filter(|held| held.run.epoch == epoch) {
            held.until = held.until.max(until);
        }
    }

    /// Nothing up to this epoch begins any more. The run that has to be ended, if there is one.
    pub fn close(&mut self, epoch: u64) -> Option<Run> {
        self.closed = self.closed.max(epoch);
        self.held.map(|held| held.run).filter(|run| run.epoch <= epoch)
    }

    /// Its program ended, and all that it had started.
    pub fn ended(&mut self, run: Run) {
        self.held.take_if(|held| held.run == run);
    }

    /// The run that has to be killed now, because its permit is over.
    pub fn expired(&self, now: Instant) -> Option<Run> {
        self.held.filter(|held| now >= held.until).map(|held| held.run)
    }

    /// When to look again.
    pub fn until(&self) -> Option<Instant> {
        self.held.map(|held| held.until)
    }

    pub fn last(&self) -> Run {
        self.last
    }

    /// Nothing up to this epoch begins any more.
    pub fn closed(&self) -> u64 {
        self.closed
    }

    pub fn held(&self) -> Option<Run> {
        self.held.map(|held| held.run)
    }

    /// Whether it may be reported that nothing up to this epoch runs here or ever will.
    pub fn is_over(&self, epoch: u64) -> bool {
        self.closed >= epoch && self.held.is_none_or(|held| held.run.epoch > epoch)
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Over {
    No,
    Yes,
}

/// What a placer knows of the node on which an instance stands.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct PlacerView {
    /// The last of its incarnations that was judged, and since when this placer knows it.
    pub verdict: Option<(u64, Instant)>,
    /// When the hearing began that led to this verdict, if this placer took part in it.
    pub hearing: Option<Instant>,
    /// The highest epoch that its node said is over there.
    pub said_over: u64,
}

/// Whether the placement of this epoch, on a node in this incarnation, is over.
pub fn over(epoch: u64, incarnation: u64, standing: &PlacerView, now: Instant) -> Over {
    if standing.said_over >= epoch {
        return Over::Yes;
    }
    match over_from(incarnation, standing) {
        Some(from) if now >= from => Over::Yes,
        _ => Over::No,
    }
}

/// From when on a successor may be placed although the node says nothing.
pub fn over_from(incarnation: u64, standing: &PlacerView) -> Option<Instant> {
    let (_, known) = standing.verdict.filter(|(judged, _)| *judged >= incarnation)?;
    let by_verdict = known + SUCCESSION.saturating_sub(HEARING);
    let by_hearing = standing.hearing.map(|began| (began + SUCCESSION).max(known));
    Some(by_hearing.map_or(by_verdict, |at| at.min(by_verdict)))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: fn(u64) -> Duration = Duration::from_millis;

    fn run(epoch: u64, number: u64) -> Run {
        Run { epoch, number }
    }

    #[test]
    fn run_begins_once_and_never_after_a_later_one() {
        let now = Instant::now();
        let until = now + PERMIT;
        let mut tenure = RunTenure::default();
        assert_eq!(tenure.begin(run(2, 1), until, now), Begin::Start);
        assert_eq!(tenure.begin(run(2, 1), until, now), Begin::Begun);
        assert_eq!(tenure.begin(run(2, 2), until, now), Begin::Refused(RunRefusal::Occupied));
        assert_eq!(tenure.begin(run(1, 9), until, now), Begin::Refused(RunRefusal::Over));
        tenure.ended(run(2, 1));
        assert_eq!(tenure.begin(run(2, 1), until, now), Begin::Begun);
        assert_eq!(tenure.begin(run(2, 2), until, until), Begin::Refused(RunRefusal::Late));
        assert_eq!(tenure.begin(run(2, 2), until, now), Begin::Start);
        assert_eq!(tenure.begin(run(3, 1), until, now), Begin::Refused(RunRefusal::Occupied));
        assert_eq!(tenure.close(2), Some(run(2, 2)));
        assert!(!tenure.is_over(2));
        tenure.ended(run(2, 2));
        assert!(tenure.is_over(2) && !tenure.is_over(3));
        assert_eq!(tenure.begin(run(2, 3), until, now), Begin::Refused(RunRefusal::Over));
        assert_eq!(tenure.begin(run(3, 1), until, now), Begin::Start);
        assert!(tenure.is_over(2));
        assert_eq!(tenure.close(2), None);
    }

    #[test]
    fn what_is_held_ends_when_its_permit_is_over_and_only_its_own_epoch_extends_it() {
        let now = Instant::now();
        let mut tenure = RunTenure::default();
        assert_eq!(tenure.begin(run(5, 1), now + MS(10), now), Begin::Start);
        tenure.extend(4, now + PERMIT);
        assert_eq!(tenure.until(), Some(now + MS(10)));
        tenure.extend(5, now + MS(20));
        tenure.extend(5, now + MS(15));
        assert_eq!((tenure.expired(now + MS(19)), tenure.expired(now + MS(20))), (None, Some(run(5, 1))));
        tenure.ended(run(5, 1));
        assert_eq!(tenure.expired(now + PERMIT), None);
    }

    #[test]
    fn successor_comes_after_a_word_of_the_node_or_after_verdict_and_time() {
        let now = Instant::now();
        let at = |standing: PlacerView| over_from(7, &standing).map(|at| at - now);
        let silent = PlacerView::default();
        assert_eq!(over(3, 7, &silent, now + PERMIT * 100), Over::No);
        assert_eq!(over(3, 7, &PlacerView { said_over: 2, ..silent }, now), Over::No);
        assert_eq!(over(3, 7, &PlacerView { said_over: 3, ..silent }, now), Over::Yes);
        let judged = PlacerView { verdict: Some((7, now)), ..silent };
        assert_eq!(at(PlacerView { verdict: Some((6, now)), ..silent }), None);
        assert_eq!(at(judged), Some(MS(750)));
        let heard = |before| PlacerView { hearing: now.checked_sub(before), ..judged };
        assert_eq!(at(heard(MS(450))), Some(MS(750)));
        assert_eq!(at(heard(MS(700))), Some(MS(500)));
        assert_eq!(at(heard(MS(2000))), Some(MS(0)));
        assert_eq!(over(3, 7, &judged, now + MS(749)), Over::No);
        assert_eq!(over(3, 7, &judged, now + MS(750)), Over::Yes);
    }
}
