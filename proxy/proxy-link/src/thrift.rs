//! When packing the data of an entry pays, and the doing of it.
//!
//! Packing costs processor time on both nodes and saves time on the wire, so it pays on a wire that is slower than the
//! packer, for data that packs. Both are measured, on the frames themselves:
//!
//! - **The wire**: while it takes less than it is offered (something stays in the out buffer after a send, again and
//!   again), what it takes per second is its rate. A wire that takes everything at once is faster than we are, and
//!   nothing is packed for it.
//! - **The packer**: time and size of what was packed last, as moving averages.
//!
//! **Rule.** With `cost` seconds a byte (both ends together), `ratio` packed to plain and `rate` bytes a second, a long
//! entry is packed while `cost < (1 - ratio) / rate`. A frame for which that does not hold was a sample in vain: the
//! next sample is taken after twice as many long entries as before, up to a bound, so that data that never packs costs
//! little.
//!
//! State: a few numbers, two blocks of scratch once the first entry is packed.

use std::time::Duration;

use crate::limits;

/// Packs and unpacks one block of data. LZ4 in practice; a link knows no algorithm.
pub trait Packer: Send {
    /// Packs `plain` into `packed`, which is as long. Answers how long the result is, `None` when it would not be
    /// shorter, and the time it took.
    fn pack(&mut self, plain: &[u8], packed: &mut [u8]) -> (Option<usize>, Duration);

    /// Unpacks bytes that nobody has checked, which must fill `plain` exactly.
    ///
    /// # Errors
    /// They are not the packed form of so many bytes.
    fn unpack(&mut self, packed: &[u8], plain: &mut [u8]) -> Result<(), NotPacked>;
}

/// The bytes are not a block of this kind.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NotPacked;

pub(crate) struct Thrift {
    packer: Box<dyn Packer>,
    plain: Vec<u8>,
    packed: Vec<u8>,
    wire: Wire,
    /// Seconds per byte, of packing here.
    cost: Option<f64>,
    ratio: f64,
    /// Long entries until the next sample, and how many it were the last time.
    skip: u32,
    skipped: u32,
}

/// How fast the wire takes bytes, while it does not take all.
#[derive(Default)]
struct Wire {
    /// Since when it takes less than it is offered, and what was sent since.
    held: Option<(Duration, u64)>,
    /// Since when it has taken everything again.
    free: Option<Duration>,
    bytes_per_s: Option<f64>,
}

/// Weight of the newest measurement.
const NEWEST: f64 = 0.25;
/// Unpacking takes about half as long as packing, on the far processor: both are on the way of the data.
const BOTH_ENDS: f64 = 1.5;
/// A wire that took everything for so long is not held up any more.
const FREE_MAX: Duration = Duration::from_millis(3);
/// Over less than this, what was sent says more about buffers than about the wire.
const MEASURED_MIN: Duration = Duration::from_millis(5);

impl Thrift {
    pub(crate) fn new(packer: Box<dyn Packer>) -> Thrift {
        Thrift {
            packer,
            plain: Vec::new(),
            packed: Vec::new(),
            wire: Wire::default(),
            cost: None,
            ratio: 1.0,
            skip: 0,
            skipped: limits::SKIP_MIN,
        }
    }

    /// A new connection: another wire, perhaps.
    pub(crate) fn restart(&mut self) {
        self.wire = Wire::default();
        (self.skip, self.skipped) = (0, limits::SKIP_MIN);
    }

    /// `sent` bytes went, and something is left or not.
    pub(crate) fn sent(&mut self, now: Duration, sent: usize, is_left: bool) {
        let wire = &mut self.wire;
        wire.free = if is_left { None } else { wire.free.or(Some(now)) };
        let Some((since, bytes)) = wire.held else {
            wire.held = is_left.then_some((now, 0));
            return;
        };
        if wire.free.is_some_and(|free| now.saturating_sub(free) > FREE_MAX) {
            wire.held = None;
            return;
        }
        let (bytes, time) = (bytes + sent as u64, now.saturating_sub(since));
        wire.held = Some((since, bytes));
        if time >= MEASURED_MIN && is_left {
            wire.bytes_per_s = Some(averaged(wire.bytes_per_s, bytes as f64 / time.as_secs_f64()));
            wire.held = Some((now, 0));
        }
    }

    /// Whether the data of the next entry is to be packed.
    pub(crate) fn packs(&mut self, data_bytes: u32) -> bool {
        if data_bytes < limits::PACKED_BYTES_MIN || self.wire.held.is_none() || self.wire.bytes_per_s.is_none() {
            return false;
        }
        if self.pays() {
            self.skipped = limits::SKIP_MIN;
            return true;
        }
        match self.skip.checked_sub(1) {
            Some(left) => {
                self.skip = left;
                false
            }
            None => {
                self.skip = self.skipped;
                self.skipped = (self.skipped * 2).min(limits::SKIP_MAX);
                true
            }
        }
    }

    fn pays(&self) -> bool {
        match (self.cost, self.wire.bytes_per_s) {
            (Some(cost), Some(rate)) => cost * BOTH_ENDS < (1.0 - self.ratio) / rate,
            _ => false,
        }
    }

    /// Room for `count` plain bytes, to be filled and packed.
    pub(crate) fn plain(&mut self, count: usize) -> &mut [u8] {
        self.plain.resize(wire::limits::BLOCK_BYTES, 0);
        self.plain.get_mut(..count).unwrap_or(&mut [])
    }

    /// The first `count` plain bytes, packed; as they are when that would not be shorter.
    pub(crate) fn pack(&mut self, count: usize) -> (wire::Block, &[u8]) {
        self.packed.resize(wire::limits::BLOCK_BYTES, 0);
        let (Some(plain), Some(packed)) = (self.plain.get(..count), self.packed.get_mut(..count)) else {
            return (wire::Block { bytes: 0, is_stored: true }, &[]);
        };
        let (length, took) = self.packer.pack(plain, packed);
        let length = length.filter(|length| *length < count && *length > 0);
        self.cost = Some(averaged(self.cost, took.as_secs_f64() / count as f64));
        self.ratio = averaged(Some(self.ratio), length.unwrap_or(count) as f64 / count as f64);
        match length {
            Some(bytes) => (wire::Block { bytes, is_stored: false }, packed.get(..bytes).unwrap_or(&[])),
            None => (wire::Block { bytes: count, is_stored: true }, plain),
        }
    }

    /// The `count` plain bytes of a block that came.
    pub(crate) fn unpack(&mut self, packed: &[u8], count: usize) -> Result<&[u8], NotPacked> {
        self.plain.resize(wire::limits::BLOCK_BYTES, 0);
        let plain = self.plain.get_mut(..count).ok_or(NotPacked)?;
        self.packer.unpack(packed, plain)?;
        Ok(plain)
    }
}

fn averaged(before: Option<f64>, newest: f64) -> f64 {
    before.map_or(newest, |before| before + (newest - before) * NEWEST)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Packs to a tenth or not at all, at a speed of its own.
    struct Fake {
        packs: bool,
        nanos_per_byte: u64,
    }

    impl Packer for Fake {
        fn pack(&mut self, plain: &[u8], _packed: &mut [u8]) -> (Option<usize>, Duration) {
            let took = Duration::from_nanos(plain.len() as u64 * self.nanos_per_byte);
            (self.packs.then_some(plain.len() / 10), took)
        }

        fn unpack(&mut self, _packed: &[u8], _plain: &mut [u8]) -> Result<(), NotPacked> {
            Ok(())
        }
    }

    const MIB: u32 = 1 << 20;

    fn thrift(packs: bool, nanos_per_byte: u64) -> Thrift {
        Thrift::new(Box::new(Fake { packs, nanos_per_byte }))
    }

    /// Entries of 1 MiB over a wire of so many bytes a second that is never dry: how many of `count` were packed.
    fn packed(thrift: &mut Thrift, bytes_per_s: u64, count: u32) -> u32 {
        let mut now = Duration::ZERO;
        thrift.sent(now, 0, true);
        let mut packed = 0;
        for _ in 0..count {
            let packs = thrift.packs(MIB);
            packed += u32::from(packs);
            if packs {
                thrift.pack(wire::limits::BLOCK_BYTES);
            }
            now += Duration::from_secs_f64(f64::from(MIB) / bytes_per_s as f64);
            thrift.sent(now, MIB as usize, true);
        }
        packed
    }

    #[test]
    fn data_that_packs_is_packed_on_a_wire_slower_than_the_packer() {
        let mut thrift = thrift(true, 2);
        thrift.plain(1);
        assert!(packed(&mut thrift, 50_000_000, 200) > 190);
    }

    #[test]
    fn wire_faster_than_the_packer_is_left_alone_but_for_rare_samples() {
        let mut thrift = thrift(true, 2);
        thrift.plain(1);
        assert!(packed(&mut thrift, 2_000_000_000, 1000) < 12);
    }

    #[test]
    fn data_that_does_not_pack_is_left_alone_but_for_rare_samples() {
        let mut thrift = thrift(false, 2);
        thrift.plain(1);
        assert!(packed(&mut thrift, 50_000_000, 1000) < 12);
    }

    #[test]
    fn wire_that_takes_everything_at_once_and_short_data_are_never_packed() {
        let mut thrift = thrift(true, 2);
        for millis in 0..1000 {
            thrift.sent(Duration::from_millis(millis), 1 << 20, false);
            assert!(!thrift.packs(MIB));
        }
        thrift.plain(1);
        packed(&mut thrift, 50_000_000, 20);
        assert!(thrift.packs(MIB) && !thrift.packs(limits::PACKED_BYTES_MIN - 1));
    }
}
