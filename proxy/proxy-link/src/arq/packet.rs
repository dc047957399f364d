//! Packets, byte by byte.
//!
//! ```text
//!  0  "DV"    2 bytes   everything else is little-endian
//!  2  version u8
//!  3  kind    u8        SYN, SYN_ACK, DATA, RST
//!  4  to      u32       the receiver's number of the session; 0 in SYN
//!  8  from    u32       the sender's
//! 12  offset  u64       of the first byte of data
//! 20  ack     u64       everything below has come
//! 28  window  u32       bytes that are taken beyond `ack`
//! 32  stamp   u32       the sender's clock in microseconds
//! 36  echo    u32       the stamp that is answered; 0: none
//! 40  length  u16       bytes of data (a link may pad a packet)
//! 42  fin     u8        1: the stream ends after the data
//! 43  ranges  u8        how many follow
//! 44  ranges  8 each    from, length; both u32, `from` beyond `ack`
//!     data
//! ```

use super::limits::RANGES_MAX;

const MAGIC: [u8; 2] = *b"DV";
const VERSION: u8 = 1;
/// Up to the ranges.
pub(super) const HEAD_BYTES: usize = 44;
pub(super) const RANGE_BYTES: usize = 8;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    Syn,
    SynAck,
    /// Also without data, as an acknowledgement.
    Data,
    /// There is no such session.
    Rst,
}

/// A checked packet; `data` and `ranges` lie in the bytes it was decoded from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Packet<'a> {
    pub kind: Kind,
    pub to: u32,
    pub from: u32,
    pub offset: u64,
    pub ack: u64,
    pub window: u32,
    pub stamp: u32,
    pub echo: u32,
    pub fin: bool,
    pub ranges: Ranges<'a>,
    pub data: &'a [u8],
}

/// Ranges beyond the acknowledged bytes that have come.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ranges<'a> {
    Listed(&'a [(u32, u32)]),
    /// Whole ranges.
    Encoded(&'a [u8]),
}

impl Ranges<'_> {
    pub const NONE: Ranges<'static> = Ranges::Listed(&[]);

    pub fn iter(&self) -> impl Iterator<Item = (u32, u32)> + '_ {
        let (listed, encoded): (&[(u32, u32)], &[u8]) = match self {
            Ranges::Listed(ranges) => (ranges, &[]),
            Ranges::Encoded(bytes) => (&[], bytes),
        };
        let decoded = encoded.chunks_exact(RANGE_BYTES).filter_map(|range| {
            let (from, length) = range.split_first_chunk::<4>()?;
            Some((u32::from_le_bytes(*from), u32::from_le_bytes(*length.first_chunk::<4>()?)))
        });
        listed.iter().copied().chain(decoded)
    }
}

impl<'a> Packet<'a> {
    /// Appends the packet. `data` is at most 65,535 bytes, ranges at most [`RANGES_MAX`].
    pub fn encode(&self, out: &mut Vec<u8>) {
        let kind = match self.kind {
            Kind::Syn => 1,
            Kind::SynAck => 2,
            Kind::Data => 3,
            Kind::Rst => 4,
        };
        out.extend_from_slice(&MAGIC);
        out.extend_from_slice(&[VERSION, kind]);
        for word in [self.to, self.from] {
            out.extend_from_slice(&word.to_le_bytes());
        }
        for long in [self.offset, self.ack] {
            out.extend_from_slice(&long.to_le_bytes());
        }
        for word in [self.window, self.stamp, self.echo] {
            out.extend_from_slice(&word.to_le_bytes());
        }
        out.extend_from_slice(&(self.data.len() as u16).to_le_bytes());
        let ranges = self.ranges.iter().take(RANGES_MAX).count();
        out.extend_from_slice(&[u8::from(self.fin), ranges as u8]);
        for (from, length) in self.ranges.iter().take(RANGES_MAX) {
            out.extend_from_slice(&from.to_le_bytes());
            out.extend_from_slice(&length.to_le_bytes());
        }
        out.extend_from_slice(self.data);
    }

    /// `None`: not a packet of this kind and version, or shorter than it says.
    pub fn decode(bytes: &'a [u8]) -> Option<Packet<'a>> {
        let (head, rest) = bytes.split_first_chunk::<HEAD_BYTES>()?;
        let word = |at: usize| head.get(at..at + 4)?.first_chunk::<4>().copied().map(u32::from_le_bytes);
        let long = |at: usize| head.get(at..at + 8)?.first_chunk::<8>().copied().map(u64::from_le_bytes);
        let [m0, m1, version, kind, ..] = *head;
        if [m0, m1] != MAGIC || version != VERSION {
            return None;
        }
        let kind = match kind {
            1 => Kind::Syn,
            2 => Kind::SynAck,
            3 => Kind::Data,
            4 => Kind::Rst,
            _ => return None,
        };
        let length = usize::from(u16::from_le_bytes([head[40], head[41]]));
        let (fin, ranges) = (head[42], usize::from(head[43]));
        if fin > 1 || ranges > RANGES_MAX {
            return None;
        }
        let (ranges, rest) = rest.split_at_checked(ranges * RANGE_BYTES)?;
        Some(Packet {
            kind,
            to: word(4)?,
            from: word(8)?,
            offset: long(12)?,
            ack: long(20)?,
            window: word(28)?,
            stamp: word(32)?,
            echo: word(36)?,
            fin: fin == 1,
            ranges: Ranges::Encoded(ranges),
            data: rest.get(..length)?,
        })
    }
}
