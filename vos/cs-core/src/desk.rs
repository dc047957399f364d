//! Questions to the engine, by way of the daemon's desk: each is asked until it is answered.
//!
//! A question is `Waiting` (no room at the desk), `Asked`, or `Resting` (the engine did not say whether it happened, or
//! the question must not fail). When a daemon takes over, what was asked is asked again, so it may happen twice.

use std::collections::{BTreeMap, VecDeque};

use vos_api::desk::{DeskQuestion, FromDesk, Known, QUESTIONS_MAX, ToDesk, Unanswered};

use crate::core::Ticket;
use crate::races::WishKey;

/// Between attempts, while the engine is away.
const REST_MS: u64 = 300;

/// What the answer is for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Purpose {
    /// A wish was put.
    Wish(WishKey),
    /// A wish was withdrawn.
    Withdrawal(WishKey),
    Confirm(Ticket),
    Get(Ticket),
    /// The change that a session has under way.
    Value(u64),
    /// This server's own key.
    Own,
    Charter(String),
    /// Nobody waits for it.
    Tidy,
}

/// What is done when the engine is away and nothing happened.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Patience {
    /// Whoever asked is told.
    Fails,
    /// Asked again until the engine answers.
    Waits,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Reply {
    Done(u64),
    Conflict(Vec<Option<Known>>),
    Found(Option<Known>),
    Failed(Unanswered),
}

struct Asking {
    question: DeskQuestion,
    purpose: Purpose,
    patience: Patience,
    /// Also those that a daemon took with it.
    tries: u32,
    place: Place,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    Waiting,
    Asked,
    Resting(u64),
}

#[derive(Default)]
pub struct Desk {
    next_id: u64,
    asking: BTreeMap<u64, Asking>,
    waiting: VecDeque<u64>,
    asked: usize,
    packets: Vec<ToDesk>,
}

impl Desk {
    pub fn ask(&mut self, question: DeskQuestion, purpose: Purpose, patience: Patience) {
        self.next_id += 1;
        let asking = Asking { question, purpose, patience, tries: 0, place: Place::Waiting };
        self.asking.insert(self.next_id, asking);
        self.waiting.push_back(self.next_id);
        self.fill();
    }

    /// What is to be sent.
    pub fn packets(&mut self) -> Vec<ToDesk> {
        std::mem::take(&mut self.packets)
    }

    /// A daemon took over: it has heard nothing.
    pub fn restart(&mut self) {
        self.packets.clear();
        self.asked = 0;
        let ids: Vec<u64> = self.asking.keys().copied().collect();
        self.waiting = ids.into();
        self.asking.values_mut().for_each(|asking| asking.place = Place::Waiting);
        self.fill();
    }

    /// The answer that a packet brings, and for what.
    pub fn take(&mut self, said: FromDesk, now: u64) -> Option<(Purpose, Reply)> {
        let (id, reply) = match said {
            FromDesk::Done { id, revision } => (id, Reply::Done(revision)),
            FromDesk::Conflict { id, current } => (id, Reply::Conflict(current)),
            FromDesk::Found { id, known } => (id, Reply::Found(known)),
            FromDesk::Failed { id, why } => (id, Reply::Failed(why)),
            _ => return None,
        };
        let asking = self.asking.get_mut(&id).filter(|asking| asking.place == Place::Asked)?;
        self.asked = self.asked.saturating_sub(1);
        let is_open = match reply {
            Reply::Failed(Unanswered::Unknown) => true,
            // An earlier attempt may have happened.
            Reply::Failed(Unanswered::Away) => asking.patience == Patience::Waits || asking.tries > 1,
            _ => false,
        };
        let answered = if is_open {
            asking.place = Place::Resting(now + REST_MS);
            None
        } else {
            self.asking.remove(&id).map(|asking| (asking.purpose, reply))
        };
        self.fill();
        answered
    }

    pub fn deadline(&self) -> Option<u64> {
        self.asking
            .values()
            .filter_map(|asking| match asking.place {
                Place::Resting(until) => Some(until),
                _ => None,
            })
            .min()
    }

    pub fn tick(&mut self, now: u64) {
        let due: Vec<u64> = self
            .asking
            .iter()
            .filter(|(_, asking)| matches!(asking.place, Place::Resting(until) if until <= now))
            .map(|(id, _)| *id)
            .collect();
        for id in due {
            if let Some(asking) = self.asking.get_mut(&id) {
                asking.place = Place::Waiting;
                self.waiting.push_back(id);
            }
        }
        self.fill();
    }

    fn fill(&mut self) {
        while self.asked < QUESTIONS_MAX {
            let Some(id) = self.waiting.pop_front() else { return };
            let Some(asking) = self.asking.get_mut(&id) else { continue };
            asking.place = Place::Asked;
            asking.tries += 1;
            self.asked += 1;
            self.packets.push(ToDesk { id, question: asking.question.clone() });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ask(desk: &mut Desk, patience: Patience) {
        desk.ask(DeskQuestion::Read { key: "k/a".to_owned() }, Purpose::Tidy, patience);
    }

    #[test]
    fn absence_after_a_daemon_took_over_is_not_believed() {
        let mut desk = Desk::default();
        ask(&mut desk, Patience::Fails);
        assert_eq!(desk.packets().len(), 1);
        desk.restart();
        assert_eq!(desk.packets().len(), 1, "asked again");
        let away = FromDesk::Failed { id: 1, why: Unanswered::Away };
        assert_eq!(desk.take(away.clone(), 0), None, "the first attempt may have happened");
        assert_eq!(desk.deadline(), Some(REST_MS));
        desk.tick(REST_MS);
        assert_eq!(desk.packets().len(), 1);
        let done = desk.take(FromDesk::Done { id: 1, revision: 7 }, REST_MS);
        assert_eq!(done, Some((Purpose::Tidy, Reply::Done(7))));

        ask(&mut desk, Patience::Fails);
        desk.packets();
        let FromDesk::Failed { why, .. } = away else { unreachable!() };
        assert_eq!(desk.take(FromDesk::Failed { id: 2, why }, 0), Some((Purpose::Tidy, Reply::Failed(why))));
    }

    #[test]
    fn no_more_questions_are_at_the_desk_than_it_has_room_for() {
        let mut desk = Desk::default();
        (0..QUESTIONS_MAX + 3).for_each(|_| ask(&mut desk, Patience::Waits));
        assert_eq!(desk.packets().len(), QUESTIONS_MAX);
        assert!(desk.take(FromDesk::Found { id: 2, known: None }, 0).is_some());
        assert_eq!(desk.packets().len(), 1);
        assert!(desk.take(FromDesk::Found { id: 2, known: None }, 0).is_none(), "answered once");
    }
}
