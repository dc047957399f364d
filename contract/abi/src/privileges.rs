//! Who may call whom, and with which calls.
//!
//! The broker of the node where an endpoint is bound keeps its privileges, asks them wherever it makes a channel, and
//! closes channels that a change forbids. `docs/design/privileges.md` says what is checked where.

use core::fmt;
use core::str::FromStr;

use crate::limits::{ENDPOINTS_PER_DC, NODES_PER_DC, PEER_RANGES_MAX, PRIVILEGES_BYTES_MAX, WELL_KNOWN_ENDPOINTS};
use crate::{Endpoint, IpcError};

/// A set of calls.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Calls(u16);

impl Calls {
    pub const NONE: Calls = Calls(0);
    /// `send` to whom does not wait for it. An answer to a request needs no privilege.
    pub const SEND: Calls = Calls(1);
    pub const SENDREC: Calls = Calls(1 << 1);
    pub const NOTIFY: Calls = Calls(1 << 2);
    /// `vcopy` from and to grants of others.
    pub const COPY: Calls = Calls(1 << 3);
    /// Opening rings.
    pub const RING: Calls = Calls(1 << 4);
    /// Speaking for another endpoint: `relay`, `notify_for`.
    pub const DELEGATE: Calls = Calls(1 << 5);
    /// Managing other endpoints: privileges, wake-ups, bindings.
    pub const MANAGE: Calls = Calls(1 << 6);
    /// Asking who and what else is in the container.
    pub const INFO: Calls = Calls(1 << 7);
    pub const ALL: Calls = Calls((1 << 8) - 1);
    /// What is called over a channel of messages.
    pub const MESSAGES: Calls = Calls::SEND.with(Calls::SENDREC).with(Calls::NOTIFY);

    const NAMES: [(Calls, &str); 8] = [
        (Calls::SEND, "send"),
        (Calls::SENDREC, "sendrec"),
        (Calls::NOTIFY, "notify"),
        (Calls::COPY, "copy"),
        (Calls::RING, "ring"),
        (Calls::DELEGATE, "delegate"),
        (Calls::MANAGE, "manage"),
        (Calls::INFO, "info"),
    ];

    /// `None` when a bit means nothing.
    pub const fn of(bits: u16) -> Option<Calls> {
        if bits & !Calls::ALL.0 == 0 { Some(Calls(bits)) } else { None }
    }

    pub const fn bits(self) -> u16 {
        self.0
    }

    pub const fn contains(self, all: Calls) -> bool {
        self.0 & all.0 == all.0
    }

    #[must_use]
    pub const fn with(self, more: Calls) -> Calls {
        Calls(self.0 | more.0)
    }

    #[must_use]
    pub const fn only(self, some: Calls) -> Calls {
        Calls(self.0 & some.0)
    }

    #[must_use]
    pub const fn without(self, some: Calls) -> Calls {
        Calls(self.0 & !some.0)
    }
}

impl fmt::Display for Calls {
    /// `send,sendrec`; `none` for none.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = Calls::NAMES.iter().filter(|(call, _)| self.contains(*call)).map(|(_, name)| *name);
        write_list(f, names)
    }
}

impl fmt::Debug for Calls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Calls({self})")
    }
}

impl FromStr for Calls {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Calls, ParseError> {
        words(text).try_fold(Calls::NONE, |calls, word| {
            if word == "all" {
                return Ok(Calls::ALL);
            }
            let found = Calls::NAMES.iter().find(|(_, name)| *name == word);
            found.map(|(call, _)| calls.with(*call)).ok_or_else(|| ParseError(word.to_owned()))
        })
    }
}

/// A set of endpoints: ranges, in order, apart from each other.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Peers {
    /// First and last of each.
    ranges: Vec<(u16, u16)>,
}

impl Peers {
    pub fn none() -> Peers {
        Peers::default()
    }

    pub fn any() -> Peers {
        Peers { ranges: vec![(0, LAST)] }
    }

    /// The servers and gates of the container.
    pub fn servers() -> Peers {
        Peers { ranges: vec![(0, FIRST_PROGRAM - 1)] }
    }

    pub fn programs() -> Peers {
        Peers { ranges: vec![(FIRST_PROGRAM, LAST)] }
    }

    pub fn only(endpoints: impl IntoIterator<Item = Endpoint>) -> Result<Peers, IpcError> {
        Peers::of(endpoints.into_iter().map(|endpoint| (endpoint.number() as u16, endpoint.number() as u16)))
    }

    /// Ranges in any order, overlapping or not. `TableFull` when more than [`PEER_RANGES_MAX`] remain apart.
    pub fn of(ranges: impl IntoIterator<Item = (u16, u16)>) -> Result<Peers, IpcError> {
        let mut sorted: Vec<(u16, u16)> = ranges.into_iter().collect();
        sorted.sort_unstable();
        let mut merged: Vec<(u16, u16)> = Vec::new();
        for (first, last) in sorted {
            if first > last || last > LAST {
                return Err(IpcError::BadArgument);
            }
            match merged.last_mut() {
                Some((_, end)) if first <= end.saturating_add(1) => *end = last.max(*end),
                _ => merged.push((first, last)),
            }
        }
        if merged.len() > PEER_RANGES_MAX { Err(IpcError::TableFull) } else { Ok(Peers { ranges: merged }) }
    }

    pub fn and(&self, other: &Peers) -> Result<Peers, IpcError> {
        Peers::of(self.ranges.iter().chain(&other.ranges).copied())
    }

    pub fn contains(&self, peer: Endpoint) -> bool {
        let number = peer.number();
        self.ranges.iter().any(|(first, last)| (u32::from(*first)..=u32::from(*last)).contains(&number))
    }

    pub fn ranges(&self) -> &[(u16, u16)] {
        &self.ranges
    }
}

impl fmt::Display for Peers {
    /// `2,256-8191`; `none` for none, `any` for all.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if *self == Peers::any() {
            return f.write_str("any");
        }
        let ranges = self.ranges.iter().map(|(first, last)| match first == last {
            true => first.to_string(),
            false => format!("{first}-{last}"),
        });
        write_list(f, ranges)
    }
}

impl FromStr for Peers {
    type Err = ParseError;

    /// `any`, `none`, `servers`, `programs`, numbers and ranges, separated by commas.
    fn from_str(text: &str) -> Result<Peers, ParseError> {
        let mut ranges = Vec::new();
        for word in words(text) {
            match word {
                "any" => ranges.extend(Peers::any().ranges),
                "servers" => ranges.extend(Peers::servers().ranges),
                "programs" => ranges.extend(Peers::programs().ranges),
                word => {
                    let (first, last) = word.split_once('-').unwrap_or((word, word));
                    let number = |text: &str| text.parse().map_err(|_| ParseError(word.to_owned()));
                    ranges.push((number(first)?, number(last)?));
                }
            }
        }
        Peers::of(ranges).map_err(|_| ParseError(text.to_owned()))
    }
}

/// What one endpoint may do, and who may call it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Privileges {
    pub calls: Calls,
    /// To whom it may send, whom it may call and notify. Whoever is called may answer.
    pub to: Peers,
    /// Who may open a channel to it.
    pub from: Peers,
    /// To whom it may open a ring.
    pub rings: Peers,
}

impl Privileges {
    /// The default of a program of the container: talks to everybody, opens rings to programs, to the key-value
    /// server and to coordination servers. A ring to the file server would let a program claim any user.
    pub fn program() -> Privileges {
        let (store, coordination) = (Endpoint::DS.number() as u16, Endpoint::CS.number() as u16);
        let mut rings = vec![(store, store), (coordination, coordination + NODES_PER_DC as u16 - 1)];
        rings.extend(Peers::programs().ranges);
        Privileges {
            calls: Calls::ALL.without(Calls::DELEGATE).without(Calls::MANAGE),
            to: Peers::any(),
            from: Peers::any(),
            rings: Peers { ranges: rings },
        }
    }

    pub fn server() -> Privileges {
        Privileges { calls: Calls::ALL, to: Peers::any(), from: Peers::any(), rings: Peers::any() }
    }

    /// At most [`PRIVILEGES_BYTES_MAX`]: the calls, then for each set how many ranges, then the ranges; little-endian.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut out = self.calls.bits().to_le_bytes().to_vec();
        for peers in [&self.to, &self.from, &self.rings] {
            out.extend((peers.ranges.len() as u16).to_le_bytes());
            for (first, last) in &peers.ranges {
                out.extend(first.to_le_bytes());
                out.extend(last.to_le_bytes());
            }
        }
        out
    }

    /// `None` when it is nothing that [`Privileges::to_bytes`] wrote.
    pub fn from_bytes(bytes: &[u8]) -> Option<Privileges> {
        let mut numbers = bytes.as_chunks::<2>().0.iter().copied().map(u16::from_le_bytes);
        let calls = Calls::of(numbers.next()?)?;
        let mut peers = || -> Option<Peers> {
            let count = numbers.next()?;
            let ranges = (0..count).map(|_| Some((numbers.next()?, numbers.next()?))).collect::<Option<Vec<_>>>()?;
            let peers = Peers::of(ranges.iter().copied()).ok()?;
            (peers.ranges == ranges).then_some(peers)
        };
        let privileges = Privileges { calls, to: peers()?, from: peers()?, rings: peers()? };
        (numbers.next().is_none() && bytes.len().is_multiple_of(2)).then_some(privileges)
    }
}

/// A word that names neither a call nor an endpoint.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ParseError(String);

impl fmt::Display for ParseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "'{}' is none of the words known here", self.0)
    }
}

impl core::error::Error for ParseError {}

const LAST: u16 = (ENDPOINTS_PER_DC - 1) as u16;
const FIRST_PROGRAM: u16 = WELL_KNOWN_ENDPOINTS as u16;
const _: () = assert!(ENDPOINTS_PER_DC <= 1 << 16);
const _: () = assert!(2 + 3 * (2 + 4 * PEER_RANGES_MAX) <= PRIVILEGES_BYTES_MAX);

fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split(',').map(str::trim).filter(|word| !word.is_empty() && *word != "none")
}

fn write_list(f: &mut fmt::Formatter<'_>, mut words: impl Iterator<Item = impl fmt::Display>) -> fmt::Result {
    match words.next() {
        None => return f.write_str("none"),
        Some(first) => write!(f, "{first}")?,
    }
    words.try_for_each(|word| write!(f, ",{word}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn peers() -> impl Strategy<Value = Peers> {
        let range = (0..=LAST, 0..40_u16).prop_map(|(first, more)| (first, first.saturating_add(more).min(LAST)));
        proptest::collection::vec(range, 0..PEER_RANGES_MAX).prop_map(|ranges| Peers::of(ranges).unwrap())
    }

    fn privileges() -> impl Strategy<Value = Privileges> {
        (0..=Calls::ALL.0, peers(), peers(), peers()).prop_map(|(calls, to, from, rings)| Privileges {
            calls: Calls(calls),
            to,
            from,
            rings,
        })
    }

    proptest! {
        #[test]
        fn privileges_survive_the_way_through_bytes_and_their_sets_the_way_through_text(privileges in privileges()) {
            let bytes = privileges.to_bytes();
            prop_assert!(bytes.len() <= PRIVILEGES_BYTES_MAX);
            prop_assert_eq!(Privileges::from_bytes(&bytes), Some(privileges.clone()));
            prop_assert_eq!(privileges.to.to_string().parse(), Ok(privileges.to));
            prop_assert_eq!(privileges.calls.to_string().parse(), Ok(privileges.calls));
        }

        #[test]
        fn arbitrary_bytes_never_panic_and_what_is_read_writes_the_same(
            bytes in proptest::collection::vec(any::<u8>(), 0..40)
        ) {
            if let Some(privileges) = Privileges::from_bytes(&bytes) {
                prop_assert_eq!(privileges.to_bytes(), bytes);
            }
        }

        #[test]
        fn set_of_ranges_contains_what_its_ranges_do(
            ranges in proptest::collection::vec((0..=LAST, 0..=LAST), 0..20), number in 0..=LAST
        ) {
            let ranges: Vec<_> = ranges.into_iter().map(|(one, other)| (one.min(other), one.max(other))).collect();
            let is_in = ranges.iter().any(|(first, last)| (*first..=*last).contains(&number));
            let endpoint = Endpoint::new(u32::from(number)).unwrap();
            prop_assert_eq!(Peers::of(ranges).unwrap().contains(endpoint), is_in);
        }
    }

    #[test]
    fn words_of_people_are_understood_and_others_named() {
        assert_eq!("servers,programs".parse(), Ok(Peers::any()));
        assert_eq!("2, 300-310".parse::<Peers>().unwrap().ranges(), [(2, 2), (300, 310)]);
        assert_eq!("none".parse(), Ok(Peers::none()));
        assert_eq!("fs".parse::<Peers>(), Err(ParseError("fs".into())));
        assert_eq!("9000".parse::<Peers>(), Err(ParseError("9000".into())));
        assert_eq!("send,call".parse::<Calls>(), Err(ParseError("call".into())));
    }
}
