//! What this release is, what it speaks, and with whom: the one place of every number that is compared over a node or
//! with a process that outlives an upgrade. The rule and the table are explained in `docs/design/versions.md`.
//!
//! Everything that may meet another release says which versions it speaks when it greets ([`Versions`]), and the newest
//! that both speak is used. There is none in common: both sides say so in words ([`Mismatch`]), with what to do.
//!
//! Not here: how a greeting is written (each protocol's own), what a version changes (beside the protocol).

#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing))]

mod release;

use std::fmt;

use serde::{Deserialize, Serialize};

pub use release::{Release, ReleaseError};

/// Versions of something that somebody speaks or reads, the oldest and the newest.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Versions {
    pub oldest: u8,
    pub newest: u8,
}

impl Versions {
    pub const fn only(version: u8) -> Versions {
        Versions { oldest: version, newest: version }
    }

    pub const fn from_to(oldest: u8, newest: u8) -> Versions {
        Versions { oldest, newest }
    }

    /// The newest that both speak.
    pub fn common(self, other: Versions) -> Option<u8> {
        let version = self.newest.min(other.newest);
        (version >= self.oldest && version >= other.oldest).then_some(version)
    }

    pub fn includes(self, version: u8) -> bool {
        (self.oldest..=self.newest).contains(&version)
    }

    /// Both in one number, where there is room for one. Never 0.
    pub const fn to_u16(self) -> u16 {
        self.oldest as u16 | (self.newest as u16) << 8
    }

    /// The reverse. Who says nothing, which is 0, speaks version 1; nobody speaks version 0, or none.
    pub fn from_u16(number: u16) -> Option<Versions> {
        let [oldest, newest] = number.to_le_bytes();
        match (oldest, newest) {
            (0, 0) => Some(Versions::only(1)),
            (0, _) => None,
            (oldest, newest) => (oldest <= newest).then_some(Versions { oldest, newest }),
        }
    }
}

impl fmt::Display for Versions {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Versions { oldest, newest } if oldest == newest => write!(out, "version {newest}"),
            Versions { oldest, newest } => write!(out, "versions {oldest} to {newest}"),
        }
    }
}

/// Two sides that share no version of a protocol.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Mismatch {
    /// What is spoken: [`Protocol::name`].
    pub what: &'static str,
    pub own: Versions,
    pub theirs: Versions,
}

impl fmt::Display for Mismatch {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Mismatch { what, own, theirs } = self;
        let older = if theirs.newest < own.oldest { "the other side" } else { "this side" };
        write!(
            out,
            "this side speaks {own} of the {what}, the other side {theirs}; releases that follow one another talk: \
             upgrade {older} (dvs node upgrade)"
        )
    }
}

impl std::error::Error for Mismatch {}

/// A row of the table.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Protocol {
    /// For people, and in `dvs version -o json`.
    pub name: &'static str,
    /// What this release speaks, or reads; it writes the newest, where nothing else is said.
    pub speaks: Versions,
}

impl Protocol {
    /// The version to speak with who speaks `theirs`.
    ///
    /// # Errors
    /// There is none.
    pub fn agree(&self, theirs: Versions) -> Result<u8, Mismatch> {
        self.speaks.common(theirs).ok_or(Mismatch { what: self.name, own: self.speaks, theirs })
    }
}

macro_rules! protocols {
    ($($(#[$doc:meta])* $constant:ident = $name:literal $oldest:literal..=$newest:literal;)+) => {
        $($(#[$doc])* pub const $constant: Protocol =
            Protocol { name: $name, speaks: Versions::from_to($oldest, $newest) };)+
        /// All of them.
        pub const PROTOCOLS: &[Protocol] = &[$($constant),+];
    };
}

protocols! {
    /// Between two nodes: frames of proxies, and the parcels of brokers in them. Greeting: `wire::Hello`.
    LINK = "links" 1..=2;
    /// A program or server and the broker of its node, and the channels that the broker gives it. Greeting: the request
    /// to be bound. Programs bring their own library, so nothing old is ever dropped here.
    PORT = "broker" 1..=1;
    /// Clients and servers of a container, over rings. Greeting: `vos_api::session::Hello`. 2: file gates understand
    /// `vos_api::fs::TELL`. 3: primaries of disks understand that a copy has no room (`vos_api::copy::NO_ROOM_SINCE`).
    /// 4: copies of disks understand `vos_api::copy::PUT_DURABLE`.
    SERVERS = "servers" 1..=4;
    /// A coordination server and the daemon of its node. Greeting: `vos_api::desk::FromDesk::Hello`.
    DESK = "desk" 1..=1;
    /// A daemon and the keeper of a container. Greeting: `keeper::protocol::Request::Hello`.
    KEEPER = "keeper" 1..=2;
    /// A daemon and its shelf. Greeting: the first packet.
    SHELF = "shelf" 1..=2;
    /// What lies on a shelf. A record among the others says it.
    SHELF_RECORDS = "shelf records" 1..=1;
    /// What the keeper holds for a file gate. Its head says it.
    GATE_STATE = "gate state" 1..=1;
    /// REST, as in the paths: `/v1`.
    API = "api" 1..=1;
    /// What daemons keep in the cluster engine. `/format` says what is written: the cluster's level.
    RECORDS = "records" 1..=3;
}

const _: () = {
    let mut at = 0;
    while at < PROTOCOLS.len() {
        #[allow(clippy::indexing_slicing, reason = "below the length")]
        let speaks = PROTOCOLS[at].speaks;
        assert!(speaks.oldest > 0 && speaks.oldest <= speaks.newest);
        at += 1;
    }
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn newest_version_that_both_speak_is_spoken() {
        for (one, other, expected) in [
            ((1, 2), (1, 1), Some(1)),
            ((1, 2), (2, 3), Some(2)),
            ((2, 3), (1, 1), None),
            ((1, 9), (4, 5), Some(5)),
            ((3, 3), (3, 3), Some(3)),
        ] {
            let (one, other) = (Versions::from_to(one.0, one.1), Versions::from_to(other.0, other.1));
            assert_eq!(one.common(other), expected, "{one:?} {other:?}");
            assert_eq!(other.common(one), expected, "{other:?} {one:?}");
            assert_eq!(expected.is_some_and(|version| one.includes(version)), expected.is_some());
        }
    }

    #[test]
    fn versions_in_one_number_come_back_and_who_says_nothing_speaks_the_first() {
        for versions in [Versions::only(1), Versions::from_to(1, 2), Versions::from_to(200, 255)] {
            assert_eq!(Versions::from_u16(versions.to_u16()), Some(versions));
        }
        assert_eq!(Versions::from_u16(0), Some(Versions::only(1)));
        for bad in [0x0100, 0x0002, 0x0102] {
            assert_eq!(Versions::from_u16(bad), None, "{bad:#x}");
        }
    }

    #[test]
    fn refusal_names_both_versions_and_who_is_to_be_upgraded() {
        let text = |theirs| {
            let protocol = Protocol { name: "links", speaks: Versions::from_to(3, 4) };
            protocol.agree(theirs).unwrap_err().to_string()
        };
        let older = text(Versions::from_to(1, 2));
        assert!(older.contains("versions 3 to 4 of the links") && older.contains("versions 1 to 2"), "{older}");
        assert!(older.contains("upgrade the other side"), "{older}");
        assert!(text(Versions::only(5)).contains("upgrade this side"));
    }
}
