//! What a history must obey.

use std::collections::HashMap;

use ipc::IpcError;

use crate::play::{Call, Came, Timing, What};

/// How often what happened; a check of what never happens checks nothing.
#[derive(Default, Debug)]
pub struct Seen {
    sent: u64,
    answered: u64,
    timed_out: u64,
    withdrawn_replies: u64,
    deadlocks: u64,
    deaths: u64,
    bits: u64,
}

impl Seen {
    pub fn assert_that_everything_happened(&self) {
        let all =
            [self.sent, self.answered, self.timed_out, self.withdrawn_replies, self.deadlocks, self.deaths, self.bits];
        assert!(all.iter().all(|count| *count > 0), "never happened: {self:?}");
    }
}

/// A history, with its takes by message.
struct History<'a> {
    calls: &'a [Call],
    /// By message: the calls that brought it to somebody.
    takes: HashMap<u64, Vec<&'a Call>>,
    deaths: HashMap<usize, &'a Call>,
}

type Verdict = Result<(), String>;

pub fn check(calls: &[Call], seen: &mut Seen) -> Verdict {
    let mut history = History { calls, takes: HashMap::new(), deaths: HashMap::new() };
    for call in calls {
        if let Came::Message { message, .. } = call.came {
            history.takes.entry(message).or_default().push(call);
        }
        if call.what == What::Die {
            history.deaths.insert(call.by, call);
        }
    }
    for call in calls {
        history.is_allowed(call, seen).map_err(|broken| format!("{broken}: {call:?}"))?;
    }
    history.is_in_order()?;
    history.every_take_was_sent()?;
    history.every_bit_arrived(seen)
}

fn overlap(one: &Call, other: &Call) -> bool {
    one.begun <= other.ended && other.begun <= one.ended
}

impl History<'_> {
    fn is_allowed(&self, call: &Call, seen: &mut Seen) -> Verdict {
        match call.what {
            What::Send { to, message, timing } => self.send(call, to, message, timing, seen),
            What::Call { to, message, timing } => self.call(call, to, message, timing, seen),
            What::Reply { to, message, request } => self.reply(call, to, message, request, seen),
            What::Receive { from } => match call.came {
                Came::Message { from: source, .. } if from.is_some_and(|wanted| wanted != source) => {
                    Err("took another's message".into())
                }
                Came::Failed(error) => self.failed(call, from, error),
                _ => Ok(()),
            },
            What::ReceiveRequest => match call.came {
                Came::Message { is_request: false, .. } => Err("took what is no request".into()),
                Came::Failed(error) => self.failed(call, None, error),
                _ => Ok(()),
            },
            What::Notify { to, .. } => match call.came {
                Came::Failed(error) => self.failed(call, Some(to), error),
                _ => Ok(()),
            },
            What::WaitEvent => match call.came {
                Came::Failed(error) => self.failed(call, None, error),
                _ => Ok(()),
            },
            What::Die | What::End => Ok(()),
        }
    }

    /// Taken once by whom it was for, in a call that overlaps; or not at all.
    fn taken_by(&self, call: &Call, to: usize, message: u64) -> Result<bool, String> {
        match self.takes.get(&message).map(Vec::as_slice) {
            None => Ok(false),
            Some([take]) if take.by != to => Err("taken by another".into()),
            Some([take]) if !overlap(call, take) => Err(format!("no rendezvous with {take:?}")),
            Some([take]) => match take.came {
                Came::Message { from, .. } if from != call.by => Err("taken as another's".into()),
                _ => Ok(true),
            },
            Some(_) => Err("taken twice".into()),
        }
    }

    fn send(&self, call: &Call, to: usize, message: u64, timing: Timing, seen: &mut Seen) -> Verdict {
        let is_taken = self.taken_by(call, to, message)?;
        match call.came {
            // The taker may have died before it could say so in its history: it records each call that returned.
            Came::Done if is_taken => {
                seen.sent += 1;
                Ok(())
            }
            Came::Done => Err("lost".into()),
            Came::Failed(IpcError::SourceDied) => self.failed(call, Some(to), IpcError::SourceDied),
            Came::Failed(_) if is_taken => Err("taken although it failed".into()),
            Came::Failed(IpcError::Deadlock) => self.deadlock(call, to, seen),
            Came::Failed(IpcError::TimedOut) if timing == Timing::Forever => Err("timed out of for ever".into()),
            Came::Failed(error) => {
                seen.timed_out += u64::from(error == IpcError::TimedOut);
                seen.deaths += u64::from(error != IpcError::TimedOut);
                self.failed(call, Some(to), error)
            }
            other => Err(format!("a send came to {other:?}")),
        }
    }

    fn call(&self, call: &Call, to: usize, message: u64, timing: Timing, seen: &mut Seen) -> Verdict {
        let is_taken = self.taken_by(call, to, message)?;
        match call.came {
            Came::Message { from, message: reply, .. } => {
                if from != to || !is_taken {
                    return Err("answered by another, or before it was taken".into());
                }
                seen.answered += 1;
                let is_its_reply = self.calls.iter().any(|other| match other.what {
                    What::Reply { message, request, .. } => message == reply && request == call_message(call),
                    // To a caller that waits, a message is its answer.
                    What::Send { message, .. } => message == reply && other.by == to,
                    _ => false,
                });
                if is_its_reply { Ok(()) } else { Err("an answer to something else".into()) }
            }
            Came::Failed(IpcError::Deadlock) if is_taken => Err("taken although refused".into()),
            Came::Failed(IpcError::Deadlock) => self.deadlock(call, to, seen),
            Came::Failed(IpcError::DestinationDied) if is_taken => Err("taken although it says not".into()),
            Came::Failed(IpcError::TimedOut) if timing == Timing::Forever => Err("timed out of for ever".into()),
            Came::Failed(error) => {
                seen.deaths += u64::from(error != IpcError::TimedOut);
                self.failed(call, Some(to), error)
            }
            other => Err(format!("a call came to {other:?}")),
        }
    }

    fn reply(&self, call: &Call, to: usize, message: u64, request: u64, seen: &mut Seen) -> Verdict {
        let is_taken = self.takes.contains_key(&message);
        let caller = self.calls.iter().find(|it| it.by == to && call_message(it) == request);
        let Some(caller) = caller else { return Err("answers what nobody asked".into()) };
        match call.came {
            Came::Done if is_taken => Ok(()),
            // Its caller may have ended for another reason in this moment: it died.
            Came::Done if self.has_died_by(to, caller) => Ok(()),
            Came::Done => Err(format!("a reply is lost, its caller has {caller:?}")),
            Came::Failed(_) if is_taken => Err("a reply arrived although it failed".into()),
            Came::Failed(IpcError::NotWaiting) => {
                let is_waiting = matches!(caller.came, Came::Message { .. });
                let has_other = is_waiting && !self.is_answered_by(caller, call.by);
                seen.withdrawn_replies += 1;
                if has_other { Err(format!("refused, though its caller waits: {caller:?}")) } else { Ok(()) }
            }
            Came::Failed(error) => self.failed(call, Some(to), error),
            other => Err(format!("a reply came to {other:?}")),
        }
    }

    /// Whether the caller's answer is a message of `by`.
    fn is_answered_by(&self, caller: &Call, by: usize) -> bool {
        matches!(caller.came, Came::Message { from, .. } if from == by)
    }

    fn has_died_by(&self, player: usize, caller: &Call) -> bool {
        matches!(caller.came, Came::Failed(IpcError::SourceDied))
            || self.deaths.get(&player).is_some_and(|death| death.begun <= caller.ended)
    }

    /// Only when the peer sends to us at the same time, or waits for our answer.
    fn deadlock(&self, call: &Call, to: usize, seen: &mut Seen) -> Verdict {
        let is_both = self.calls.iter().any(|other| {
            let is_to_us = match other.what {
                What::Send { to: back, timing: Timing::Forever, .. } => back == call.by,
                What::Call { to: back, .. } => back == call.by,
                _ => false,
            };
            is_to_us && other.by == to && overlap(call, other)
        });
        seen.deadlocks += 1;
        if is_both { Ok(()) } else { Err("refused as a deadlock of which nobody is the other half".into()) }
    }

    /// Errors of any call: a limit, or a death that had begun.
    fn failed(&self, call: &Call, peer: Option<usize>, error: IpcError) -> Verdict {
        let has_died = |player: &usize| self.deaths.get(player).is_some_and(|death| death.begun <= call.ended);
        let is_death = match peer {
            Some(peer) => has_died(&peer),
            None => self.deaths.keys().any(|player| *player != call.by && has_died(player)),
        };
        match error {
            IpcError::TimedOut => Ok(()),
            IpcError::SourceDied | IpcError::DestinationDied | IpcError::NoSuchEndpoint if is_death => Ok(()),
            error => Err(format!("{error:?} has no reason")),
        }
    }

    /// What one player sends another is taken in the order in which it was sent.
    fn is_in_order(&self) -> Verdict {
        let mut last: HashMap<(usize, usize), u64> = HashMap::new();
        let mut by_end: Vec<&Call> = self.calls.iter().collect();
        by_end.sort_by_key(|call| call.ended);
        for call in by_end {
            let Came::Message { from, message, .. } = call.came else { continue };
            let before = last.insert((from, call.by), message);
            if before.is_some_and(|before| before >= message) {
                return Err(format!("overtaken or doubled: {message:#x} after {before:x?} in {call:?}"));
            }
        }
        Ok(())
    }

    fn every_take_was_sent(&self) -> Verdict {
        for (message, takes) in &self.takes {
            let is_sent = self.calls.iter().any(|call| {
                call_message(call) == *message
                    || matches!(call.what, What::Reply { message: reply, .. } if reply == *message)
            });
            if !is_sent {
                return Err(format!("nobody sent what was taken: {takes:?}"));
            }
        }
        Ok(())
    }

    /// Each bit arrives at least once after it was posted, and no more often than it was posted. Those of the dead and
    /// to them may be lost.
    fn every_bit_arrived(&self, seen: &mut Seen) -> Verdict {
        let mut posted: HashMap<(usize, usize, u64), u64> = HashMap::new();
        let mut arrived: HashMap<(usize, usize, u64), u64> = HashMap::new();
        for call in self.calls {
            match (call.what, call.came) {
                (What::Notify { to, bits }, Came::Done) => *posted.entry((call.by, to, bits)).or_default() += 1,
                (_, Came::Bits { from, bits }) => {
                    for bit in (0..64).map(|bit| 1 << bit).filter(|bit| bits & bit != 0) {
                        *arrived.entry((from, call.by, bit)).or_default() += 1;
                    }
                }
                _ => {}
            }
        }
        for (key, times) in &arrived {
            let times_posted = posted.get(key).copied().unwrap_or(0);
            if *times > times_posted {
                return Err(format!("bit {key:?} came {times} times and was posted {times_posted} times"));
            }
            seen.bits += 1;
        }
        for key @ (from, to, _) in posted.keys() {
            let is_of_the_living = [from, to].iter().all(|player| !self.deaths.contains_key(*player));
            if is_of_the_living && !arrived.contains_key(key) {
                return Err(format!("bit {key:?} never came"));
            }
        }
        Ok(())
    }
}

fn call_message(call: &Call) -> u64 {
    match call.what {
        What::Send { message, .. } | What::Call { message, .. } => message,
        _ => u64::MAX,
    }
}
