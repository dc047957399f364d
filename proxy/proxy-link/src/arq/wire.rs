//! A wire that does its worst, from a seed. Packets are lost, doubled, late and overtaken, and either direction can be
//! cut for a while. No I/O, no clock. Nothing of a running proxy uses it: it is what tests have instead of a network,
//! here because those of several crates stand on it.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::Duration;

/// Packets under way; a wire loses what it has no room for.
const UNDER_WAY_MAX: usize = 16_384;

/// xorshift64*, as good as needed here.
pub struct Dice(u64);

impl Dice {
    pub fn new(seed: u64) -> Dice {
        Dice(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    /// 0 to `sides - 1`; of no sides 0.
    pub fn roll(&mut self, sides: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) % sides.max(1)
    }

    pub fn one_in(&mut self, count: u64) -> bool {
        self.roll(count) == 0
    }
}

#[derive(Clone, Copy, Debug)]
pub struct Weather {
    pub lost_percent: u64,
    pub doubled_percent: u64,
    pub delay_us: u64,
    /// Every packet is late by up to so much more, so later ones overtake.
    pub jitter_us: u64,
}

impl Weather {
    pub const CALM: Weather = Weather { lost_percent: 0, doubled_percent: 0, delay_us: 50, jitter_us: 0 };
}

/// By arrival; the number keeps equal times in order. To which end, and what.
type UnderWay = (Duration, u64, usize, Vec<u8>);

/// Between the ends 0 and 1.
pub struct Wire {
    dice: Dice,
    pub weather: Weather,
    under_way: BinaryHeap<Reverse<UnderWay>>,
    carried: u64,
    copies: u64,
    /// By the end that hears nothing until then.
    cut_until: [Duration; 2],
}

impl Wire {
    pub fn new(seed: u64, weather: Weather) -> Wire {
        let dice = Dice::new(seed);
        Wire { dice, weather, under_way: BinaryHeap::new(), carried: 0, copies: 0, cut_until: [Duration::ZERO; 2] }
    }

    /// Takes a packet for the end `to`.
    pub fn carry(&mut self, now: Duration, to: usize, packet: &[u8]) {
        self.carried += 1;
        let Weather { lost_percent, doubled_percent, delay_us, jitter_us } = self.weather;
        let copies = match self.dice.roll(100) {
            _ if self.is_cut(to, now) => 0,
            roll if roll < lost_percent => 0,
            roll if roll < lost_percent + doubled_percent => 2,
            _ => 1,
        };
        for _ in 0..copies {
            if self.under_way.len() >= UNDER_WAY_MAX {
                return;
            }
            let delay = Duration::from_micros(delay_us + self.dice.roll(jitter_us + 1));
            self.copies += 1;
            self.under_way.push(Reverse((now + delay, self.copies, to, packet.to_vec())));
        }
    }

    /// The next packet that has arrived, and at which end.
    pub fn arrived(&mut self, now: Duration) -> Option<(usize, Vec<u8>)> {
        self.next_arrival().filter(|at| *at <= now)?;
        self.under_way.pop().map(|Reverse((_, _, to, packet))| (to, packet))
    }

    pub fn next_arrival(&self) -> Option<Duration> {
        self.under_way.peek().map(|Reverse((at, ..))| *at)
    }

    /// The end `to` hears nothing before `until`: what is under way to it is lost too.
    pub fn cut(&mut self, to: usize, until: Duration) {
        if let Some(cut_until) = self.cut_until.get_mut(to) {
            *cut_until = until.max(*cut_until);
        }
        self.under_way.retain(|Reverse((_, _, end, _))| *end != to);
    }

    pub fn is_cut(&self, to: usize, now: Duration) -> bool {
        self.cut_until.get(to).is_some_and(|until| now < *until)
    }

    pub fn mend(&mut self) {
        self.cut_until = [Duration::ZERO; 2];
    }

    /// Packets that were given to it.
    pub fn carried(&self) -> u64 {
        self.carried
    }
}
