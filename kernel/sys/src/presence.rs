//! The file in which a node's proxies say that the node is heard, for keepers, who hold what runs once while no daemon
//! is there (`docs/design/supervised-services.md`).
//!
//! A slot of [`SLOT_BYTES`] for each pair, little-endian: incarnation of the node, moment, 1 when there is nobody else,
//! and a sum of the three: whoever reads while it is written takes nothing from it.

use std::fs::{File, OpenOptions};
use std::io::{self, Seek, SeekFrom, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

const SLOT_BYTES: usize = 32;
/// Pairs of proxies that a node may have.
pub const SLOTS: usize = 8;

/// What the proxy of one pair says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Presence {
    /// Of the node.
    pub incarnation: u64,
    /// By the node's monotonic clock, in nanoseconds: the node was surely there; 0: nobody says so.
    pub there_ns: u64,
    /// No other node is known, so nobody judges this one.
    pub is_alone: bool,
}

impl Presence {
    fn encode(&self) -> [u8; SLOT_BYTES] {
        let words = [self.incarnation, self.there_ns, u64::from(self.is_alone)];
        let mut bytes = [0; SLOT_BYTES];
        for (place, word) in bytes.chunks_exact_mut(8).zip(words.into_iter().chain([sum(words)])) {
            place.copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }

    fn decode(bytes: &[u8]) -> Option<Presence> {
        let word = |at: usize| bytes.get(8 * at..)?.first_chunk().map(|chunk| u64::from_le_bytes(*chunk));
        let words = [word(0)?, word(1)?, word(2)?];
        (word(3)? == sum(words)).then_some(Presence {
            incarnation: words[0],
            there_ns: words[1],
            is_alone: words[2] == 1,
        })
    }
}

/// Of a slot that nobody has written it is another one.
fn sum(words: [u64; 3]) -> u64 {
    words.iter().fold(1, |sum, word| sum.rotate_left(21) ^ word.wrapping_mul(0x9e37_79b9_7f4a_7c15))
}

/// For a proxy that is about to begin, made when it is missing. What a proxy before it said stays until it speaks.
pub fn open_slot(path: &Path) -> io::Result<OwnedFd> {
    let file = OpenOptions::new().read(true).write(true).create(true).truncate(false).mode(0o600).open(path)?;
    file.set_len((SLOTS * SLOT_BYTES) as u64)?;
    Ok(file.into())
}

/// The writing end of a proxy.
pub struct PresenceSlot {
    file: File,
    at: u64,
    said: Option<Presence>,
}

impl PresenceSlot {
    pub fn new(file: OwnedFd, pair: u8) -> PresenceSlot {
        PresenceSlot { file: file.into(), at: u64::from(pair) * SLOT_BYTES as u64, said: None }
    }

    /// Says it, if it is news. One that cannot be said is older than what is: nobody holds anything for it.
    pub fn say(&mut self, presence: Presence) -> io::Result<()> {
        if self.said == Some(presence) || self.at >= (SLOTS * SLOT_BYTES) as u64 {
            return Ok(());
        }
        // Two calls that any process of ours may make, also one whose calls are filtered.
        self.file.seek(SeekFrom::Start(self.at))?;
        self.file.write_all(&presence.encode())?;
        self.said = Some(presence);
        Ok(())
    }
}

/// The reading end of a keeper.
pub struct PresencePage(File);

impl PresencePage {
    pub fn open(path: &Path) -> io::Result<PresencePage> {
        File::open(path).map(PresencePage)
    }

    /// The last moment of which any of the node's proxies knows that this incarnation was there.
    pub fn there_ns(&self, incarnation: u64, now_ns: u64) -> Option<u64> {
        let mut bytes = [0; SLOTS * SLOT_BYTES];
        let got = self.0.read_at(&mut bytes, 0).ok()?;
        let slots = bytes.get(..got)?.chunks_exact(SLOT_BYTES).filter_map(Presence::decode);
        let of_it = slots.filter(|said| said.incarnation == incarnation);
        of_it
            .filter_map(|said| if said.is_alone { Some(now_ns) } else { (said.there_ns > 0).then_some(said.there_ns) })
            .max()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_proxies_say_counts_for_their_incarnation_and_the_latest_of_it() {
        let dir = std::env::temp_dir().join(format!("dvs-presence-{}", std::process::id()));
        let says = |pair, incarnation, there_ns, is_alone| {
            let mut slot = PresenceSlot::new(open_slot(&dir).unwrap(), pair);
            slot.say(Presence { incarnation, there_ns, is_alone }).unwrap();
        };
        open_slot(&dir).unwrap();
        let page = PresencePage::open(&dir).unwrap();
        assert_eq!(page.there_ns(0, 9), None, "nobody has said anything");
        says(0, 7, 100, false);
        says(1, 7, 300, false);
        says(2, 6, 900, false);
        assert_eq!((page.there_ns(7, 999), page.there_ns(6, 999), page.there_ns(8, 999)), (Some(300), Some(900), None));
        says(1, 7, 0, false);
        assert_eq!(page.there_ns(7, 999), Some(100));
        says(0, 7, 0, true);
        assert_eq!(page.there_ns(7, 999), Some(999), "there is nobody who could judge it");
        // Half of it is of another moment.
        let torn = [Presence { incarnation: 7, there_ns: 1, is_alone: false }.encode(), [0; SLOT_BYTES]].concat();
        std::fs::OpenOptions::new().write(true).open(&dir).unwrap().write_all_at(&torn[..8], 0).unwrap();
        std::fs::OpenOptions::new().write(true).open(&dir).unwrap().write_all_at(&torn[8..16], 8).unwrap();
        assert_eq!(page.there_ns(7, 999), None);
        std::fs::remove_file(&dir).unwrap();
    }
}
