//! How often somebody may do something: so many at once, and then so many in a time.

use std::collections::HashMap;
use std::hash::Hash;
use std::net::IpAddr;
use std::time::{Duration, Instant};

/// Who is counted at a time. When there are more, whoever was heard of longest ago is forgotten.
const COUNTED_MAX: usize = 1024;

/// A rate for each of many.
pub struct Rates<K> {
    burst: u32,
    /// One more each.
    every: Duration,
    /// What each has spent, as a time: up to `burst * every` ahead of now.
    spent_until: HashMap<K, Instant>,
    omitted: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Rate {
    /// It may; so many by anybody did not, since the last one that did.
    Within {
        omitted: u64,
    },
    Exceeded,
}

impl<K: Clone + Eq + Hash> Rates<K> {
    pub fn new(burst: u32, every: Duration) -> Rates<K> {
        Rates { burst, every, spent_until: HashMap::new(), omitted: 0 }
    }

    pub fn spend(&mut self, who: &K, now: Instant) -> Rate {
        let free_at = self.spent_until.get(who).copied().unwrap_or(now).max(now);
        if free_at.duration_since(now) + self.every > self.every * self.burst {
            self.omitted += 1;
            return Rate::Exceeded;
        }
        self.make_room(who, now);
        self.spent_until.insert(who.clone(), free_at + self.every);
        Rate::Within { omitted: std::mem::take(&mut self.omitted) }
    }

    fn make_room(&mut self, who: &K, now: Instant) {
        if self.spent_until.len() < COUNTED_MAX || self.spent_until.contains_key(who) {
            return;
        }
        self.spent_until.retain(|_, until| *until > now);
        if self.spent_until.len() >= COUNTED_MAX
            && let Some(oldest) = self.spent_until.iter().min_by_key(|(_, until)| **until).map(|(who, _)| who.clone())
        {
            self.spent_until.remove(&oldest);
        }
    }
}

/// By what strangers are counted: whoever has one address of IPv6 has 2^64.
pub fn network_of(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V4(address) => IpAddr::V4(address),
        IpAddr::V6(address) => {
            let mut bytes = address.octets();
            bytes.iter_mut().skip(8).for_each(|byte| *byte = 0);
            IpAddr::V6(bytes.into())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn so_many_at_once_then_one_in_a_time() {
        let (begin, second) = (Instant::now(), Duration::from_secs(1));
        let mut rates = Rates::new(3, second);
        let mut at = |who: &str, seconds: u32| rates.spend(&who.to_owned(), begin + second * seconds);
        for _ in 0..3 {
            assert_eq!(at("a", 0), Rate::Within { omitted: 0 });
        }
        assert_eq!((at("a", 0), at("a", 0)), (Rate::Exceeded, Rate::Exceeded));
        assert_eq!(at("b", 0), Rate::Within { omitted: 2 }, "nobody spends what is another's");
        assert_eq!((at("a", 1), at("a", 1)), (Rate::Within { omitted: 0 }, Rate::Exceeded));
        for _ in 0..3 {
            assert!(matches!(at("a", 100), Rate::Within { .. }));
        }
        assert_eq!(at("a", 100), Rate::Exceeded);
    }

    #[test]
    fn many_who_are_counted_take_no_more_than_their_room() {
        let (begin, mut rates) = (Instant::now(), Rates::new(1, Duration::from_secs(60)));
        for who in 0..10 * COUNTED_MAX {
            assert!(matches!(rates.spend(&who, begin + Duration::from_millis(who as u64)), Rate::Within { .. }));
        }
        assert!(rates.spent_until.len() <= COUNTED_MAX);
        let last = 10 * COUNTED_MAX - 1;
        assert_eq!(rates.spend(&last, begin + Duration::from_millis(last as u64)), Rate::Exceeded);
    }

    #[test]
    fn addresses_of_one_network_count_as_one() {
        let of = |text: &str| network_of(text.parse().unwrap());
        assert_eq!(of("fd00:1:2:3::1"), of("fd00:1:2:3:ffff::9"));
        assert_ne!(of("fd00:1:2:3::1"), of("fd00:1:2:4::1"));
        assert_eq!(of("::ffff:192.0.2.1"), of("192.0.2.1"));
        assert_ne!(of("192.0.2.1"), of("192.0.2.2"));
    }
}
