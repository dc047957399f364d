//! Whether this node is there: what peers say that they heard of it.
//!
//! A heartbeat repeats the last number that came from the peer. From version 2 on its speaker says beside it
//! (`wire::frame::echo`) that he *accuses* the hearer of being lost, or that he is *unheard* himself: less than half of
//! the other nodes heard him lately. Otherwise he *vouches* for the hearer. A node whose last vouchers are half of the
//! others, each of them steadily, cannot be judged ([`there`]; `docs/design/verdicts.md`).

use std::collections::VecDeque;
use std::time::Duration;

use wire::frame::echo;

use crate::limits;

/// Whoever vouches for so long without a pause wants nothing to be written any more that he decided before.
pub const STEADY: Duration = Duration::from_secs(2);
/// Version of the link from which on heartbeats say more than a number.
const SPEAKS_OF_PRESENCE: u8 = 2;

/// What this side says of the peer beside what it heard.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Opinion {
    /// This node accuses the peer of being lost.
    pub accuses: bool,
    /// Half of the others have heard this node lately.
    pub is_heard: bool,
}

impl Opinion {
    /// Of who knows nothing yet.
    pub const NONE: Opinion = Opinion { accuses: false, is_heard: false };

    pub(crate) fn beside(self, number: u64, version: Option<u8>) -> u64 {
        if version.is_none_or(|version| version < SPEAKS_OF_PRESENCE) {
            return number;
        }
        let flag = |is_set: bool, flag: u64| if is_set { flag } else { 0 };
        number & echo::NUMBER | flag(self.accuses, echo::ACCUSES) | flag(!self.is_heard, echo::UNHEARD)
    }

    /// The number, and what is said beside it. A peer of an earlier release vouches for nobody.
    pub(crate) fn taken_from(said: u64, version: Option<u8>) -> (u64, Opinion) {
        if version.is_none_or(|version| version < SPEAKS_OF_PRESENCE) {
            return (said, Opinion::NONE);
        }
        let opinion = Opinion { accuses: said & echo::ACCUSES != 0, is_heard: said & echo::UNHEARD == 0 };
        (said & echo::NUMBER, opinion)
    }
}

/// When a heartbeat went that the peer heard, and since when it heard them without a pause in which it may have
/// suspected this side.
pub type Steadily = (Duration, Duration);

/// What the peer has heard of this side.
#[derive(Clone, Debug, Default)]
pub(crate) struct Confirmed {
    /// Heartbeats that may still be confirmed, with when they went.
    beats: VecDeque<(u64, Duration)>,
    sent: Duration,
    /// Of those that were confirmed by a peer that did not accuse this side.
    pub(crate) heard: Option<Steadily>,
    /// Of those for which it vouched.
    pub(crate) vouched: Option<Steadily>,
}

impl Confirmed {
    /// A connection begins.
    pub(crate) fn begin(&mut self, now: Duration) {
        self.beats.clear();
        self.sent = now;
    }

    pub(crate) fn last_sent(&self) -> Duration {
        self.sent
    }

    pub(crate) fn sent(&mut self, seq: u64, now: Duration) {
        self.sent = now;
        if self.beats.len() >= limits::BEATS_REMEMBERED {
            self.beats.pop_front();
        }
        self.beats.push_back((seq, now));
    }

    /// The peer heard one heartbeat not before it went, and the next one by now: if there is less than `suspect`
    /// between the two, it suspected nothing meanwhile.
    pub(crate) fn echo(&mut self, now: Duration, number: u64, opinion: Opinion, suspect: Duration) {
        let mut newest = None;
        while self.beats.front().is_some_and(|(seq, _)| *seq <= number) {
            newest = self.beats.pop_front();
        }
        let Some((_, went)) = newest.filter(|_| !opinion.accuses) else { return };
        let steadily = |last: &mut Option<Steadily>| {
            let without_pause = last.filter(|(before, _)| now.saturating_sub(*before) < suspect);
            *last = Some((went, without_pause.map_or(went, |(_, since)| since)));
        };
        steadily(&mut self.heard);
        if opinion.is_heard {
            steadily(&mut self.vouched);
        }
    }
}

/// Whether at least half of the others heard this node at `since` or later, from when each of them did last.
pub fn is_heard(others: usize, heard: impl Iterator<Item = Duration>, since: Duration) -> bool {
    heard.filter(|at| *at >= since).count() * 2 >= others
}

/// The last moment of which half of the others vouch, each of them steadily. Without others nobody judges this node.
pub fn there(others: usize, vouched: impl Iterator<Item = Steadily>, now: Duration) -> Option<Duration> {
    let Some(last) = others.div_ceil(2).checked_sub(1) else { return Some(now) };
    let is_steady = |(at, since): &Steadily| at.saturating_sub(*since) >= STEADY;
    let mut moments: Vec<Duration> = vouched.filter(is_steady).map(|(at, _)| at).collect();
    moments.sort_unstable_by(|one, other| other.cmp(one));
    moments.get(last).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    const VOUCHES: Opinion = Opinion { accuses: false, is_heard: true };

    fn ms(time: u64) -> Duration {
        Duration::from_millis(time)
    }

    #[test]
    fn half_of_the_others_are_enough_when_they_vouch_without_a_pause() {
        let (late, early, now) = (ms(50_000), ms(49_000), ms(99_000));
        let of = |others, told: &[Steadily]| there(others, told.iter().copied(), now);
        assert_eq!(of(0, &[]), Some(now), "nobody judges it");
        assert_eq!(of(1, &[(late, ms(0))]), Some(late));
        assert_eq!(of(2, &[(late, ms(0)), (early, ms(0))]), Some(late));
        assert_eq!(of(3, &[(late, ms(0)), (early, ms(0))]), Some(early));
        assert_eq!(of(3, &[(late, ms(0))]), None);
        assert_eq!(of(1, &[(late, late - STEADY)]), Some(late));
        assert_eq!(of(1, &[(late, late - STEADY + ms(1))]), None);
        assert!(is_heard(0, [].into_iter(), now) && is_heard(3, [late, early].into_iter(), early));
        assert!(!is_heard(3, [late, early].into_iter(), late));
    }

    #[test]
    fn who_speaks_an_earlier_version_is_told_numbers_and_vouches_for_nobody() {
        for opinion in [true, false].map(|accuses| Opinion { accuses, is_heard: !accuses }) {
            assert_eq!(Opinion::taken_from(opinion.beside(77, Some(2)), Some(2)), (77, opinion));
            assert_eq!(opinion.beside(77, Some(1)), 77);
        }
        assert_eq!(Opinion::taken_from(77, Some(1)), (77, Opinion::NONE));
    }

    #[test]
    fn peer_confirms_without_a_pause_as_long_as_it_cannot_have_suspected_anything() {
        let mut confirmed = Confirmed::default();
        confirmed.begin(ms(0));
        for seq in 1..=30 {
            confirmed.sent(seq, ms(seq * 100));
        }
        let mut echo = |now, number, opinion| {
            confirmed.echo(ms(now), number, opinion, ms(300));
            (confirmed.heard, confirmed.vouched)
        };
        let same = |at, since| (Some((ms(at), ms(since))), Some((ms(at), ms(since))));
        // Heartbeats that are forgotten confirm nothing.
        assert_eq!(echo(3010, 10, VOUCHES), (None, None));
        assert_eq!(echo(3010, 20, VOUCHES), same(2000, 2000));
        assert_eq!(echo(2299, 21, VOUCHES), same(2100, 2000));
        assert_eq!(echo(2390, 23, VOUCHES), same(2300, 2000));
        assert_eq!(echo(2391, 23, VOUCHES), same(2300, 2000));
        assert_eq!(echo(2600, 24, VOUCHES), same(2400, 2400), "it may have heard nothing for so long");
        // One that is unheard itself hears, and does not vouch; one that accuses says nothing.
        let unheard = Opinion { is_heard: false, ..VOUCHES };
        assert_eq!(echo(2610, 25, unheard), (Some((ms(2500), ms(2400))), Some((ms(2400), ms(2400)))));
        let accuses = Opinion { accuses: true, ..VOUCHES };
        assert_eq!(echo(2710, 26, accuses), (Some((ms(2500), ms(2400))), Some((ms(2400), ms(2400)))));
        assert_eq!(echo(2790, 27, VOUCHES), (Some((ms(2700), ms(2400))), Some((ms(2700), ms(2700)))));
    }
}
