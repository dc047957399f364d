//! What a disk holds, as a stream: between the process that reads or fills it and who keeps or has a copy.
//!
//! ```text
//! head    "dvs-disk"   bytes of the disk u64   flags u64
//! piece   offset u64   length u32   0 u32      as many bytes
//! zeros   offset u64   length u32   1 u32
//! end     0 u64        0 u32        2 u32
//! ```
//!
//! Numbers are little-endian, offsets and lengths multiples of [`BLOCK_BYTES`]. A piece lies in one extent of
//! [`EXTENT_BYTES`]; pieces of an extent follow one another. What is not told is zeros, of who reads a disk, and stays,
//! of who fills one. The end is what tells a whole stream from one that broke.

pub const BLOCK_BYTES: u64 = 4096;
pub const EXTENT_BYTES: u64 = 1 << 20;
/// Bit of the head's flags: all of it is of one moment.
const OF_ONE_MOMENT: u64 = 1;
const MAGIC: [u8; 8] = *b"dvs-disk";
const HEAD_BYTES: usize = 24;
const ITEM_BYTES: usize = 16;
const PIECE: u32 = 0;
const ZEROS: u32 = 1;
const END: u32 = 2;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Item<'a> {
    Head { bytes: u64, is_of_one_moment: bool },
    Piece { offset: u64, data: &'a [u8] },
    Zeros { offset: u64, bytes: u64 },
    End,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum BadContent {
    #[error("it does not begin as the content of a disk does")]
    NoHead,
    #[error("it has something at {offset}, {length} bytes, where nothing can be")]
    BadPiece { offset: u64, length: u64 },
    #[error("it goes on after its end")]
    AfterEnd,
}

pub fn head(bytes: u64, is_of_one_moment: bool) -> [u8; HEAD_BYTES] {
    let mut head = [0; HEAD_BYTES];
    let flags = if is_of_one_moment { OF_ONE_MOMENT } else { 0 };
    let parts = MAGIC.into_iter().chain(bytes.to_le_bytes()).chain(flags.to_le_bytes());
    head.iter_mut().zip(parts).for_each(|(place, byte)| *place = byte);
    head
}

fn item(offset: u64, length: u64, kind: u32) -> [u8; ITEM_BYTES] {
    let mut item = [0; ITEM_BYTES];
    let length = u32::try_from(length).unwrap_or(u32::MAX);
    let parts = offset.to_le_bytes().into_iter().chain(length.to_le_bytes()).chain(kind.to_le_bytes());
    item.iter_mut().zip(parts).for_each(|(place, byte)| *place = byte);
    item
}

/// What stands before the bytes of a piece.
pub fn piece(offset: u64, bytes: usize) -> [u8; ITEM_BYTES] {
    item(offset, bytes as u64, PIECE)
}

pub fn zeros(offset: u64, bytes: u64) -> [u8; ITEM_BYTES] {
    item(offset, bytes, ZEROS)
}

pub fn end() -> [u8; ITEM_BYTES] {
    item(0, 0, END)
}

/// Whether a range is of whole blocks and within one extent of a disk of so many bytes.
pub fn is_in_an_extent(offset: u64, length: u64, bytes: u64) -> bool {
    let is_whole = offset.is_multiple_of(BLOCK_BYTES) && length.is_multiple_of(BLOCK_BYTES) && length > 0;
    let end = offset % EXTENT_BYTES + length;
    is_whole && end <= EXTENT_BYTES && offset.checked_add(length).is_some_and(|end| end <= bytes)
}

/// Runs of blocks with something else than zeros, as positions in `data`; what is between two runs is worth a header.
pub fn runs(data: &[u8]) -> Vec<std::ops::Range<usize>> {
    const GAP_BLOCKS_MIN: usize = 2;
    let block = BLOCK_BYTES as usize;
    let mut runs: Vec<std::ops::Range<usize>> = Vec::new();
    for (index, bytes) in data.chunks(block).enumerate() {
        if bytes.iter().all(|byte| *byte == 0) {
            continue;
        }
        let (begin, end) = (index * block, index * block + bytes.len());
        match runs.last_mut() {
            Some(last) if begin < last.end + GAP_BLOCKS_MIN * block => last.end = end,
            _ => runs.push(begin..end),
        }
    }
    runs
}

/// Collects bytes of a stream and gives back whole items. It keeps one piece at most, and what was pushed with it.
#[derive(Default)]
pub struct Decoder {
    buffer: Vec<u8>,
    taken: usize,
    /// Bytes of the disk, once the head was there.
    bytes: Option<u64>,
    is_over: bool,
}

impl Decoder {
    pub fn push(&mut self, bytes: &[u8]) {
        self.buffer.drain(..self.taken);
        self.taken = 0;
        self.buffer.extend_from_slice(bytes);
    }

    pub fn is_over(&self) -> bool {
        self.is_over
    }

    pub fn pop(&mut self) -> Result<Option<Item<'_>>, BadContent> {
        let rest = self.buffer.get(self.taken..).unwrap_or_default();
        if self.is_over {
            return if rest.is_empty() { Ok(None) } else { Err(BadContent::AfterEnd) };
        }
        let Some(bytes) = self.bytes else {
            let Some((head, _)) = rest.split_first_chunk::<HEAD_BYTES>() else { return Ok(None) };
            let [magic, bytes, flags] = words(head);
            if magic.to_le_bytes() != MAGIC {
                return Err(BadContent::NoHead);
            }
            self.taken += HEAD_BYTES;
            self.bytes = Some(bytes);
            return Ok(Some(Item::Head { bytes, is_of_one_moment: flags & OF_ONE_MOMENT != 0 }));
        };
        let Some((&header, data)) = rest.split_first_chunk::<ITEM_BYTES>() else { return Ok(None) };
        let [offset, word] = words(&header);
        let (length, kind) = (word & u64::from(u32::MAX), (word >> 32) as u32);
        let bad = Err(BadContent::BadPiece { offset, length });
        match kind {
            END if (offset, length) == (0, 0) => {
                self.taken += ITEM_BYTES;
                self.is_over = true;
                Ok(Some(Item::End))
            }
            PIECE | ZEROS if !is_in_an_extent(offset, length, bytes) => bad,
            ZEROS => {
                self.taken += ITEM_BYTES;
                Ok(Some(Item::Zeros { offset, bytes: length }))
            }
            PIECE => {
                let Some(data) = data.get(..length as usize) else { return Ok(None) };
                self.taken += ITEM_BYTES + data.len();
                Ok(Some(Item::Piece { offset, data }))
            }
            _ => bad,
        }
    }
}

fn words<const WORDS: usize>(bytes: &[u8]) -> [u64; WORDS] {
    let mut words = [0; WORDS];
    for (word, bytes) in words.iter_mut().zip(bytes.chunks_exact(8)) {
        *word = bytes.iter().rev().fold(0, |word, byte| word << 8 | u64::from(*byte));
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(PartialEq, Debug)]
    enum Found {
        Head(u64, bool),
        Piece(u64, Vec<u8>),
        Zeros(u64, u64),
        End,
    }

    fn read(bytes: &[u8], at_a_time: usize) -> Result<Vec<Found>, BadContent> {
        let (mut decoder, mut found) = (Decoder::default(), Vec::new());
        for part in bytes.chunks(at_a_time) {
            decoder.push(part);
            while let Some(item) = decoder.pop()? {
                found.push(match item {
                    Item::Head { bytes, is_of_one_moment } => Found::Head(bytes, is_of_one_moment),
                    Item::Piece { offset, data } => Found::Piece(offset, data.to_vec()),
                    Item::Zeros { offset, bytes } => Found::Zeros(offset, bytes),
                    Item::End => Found::End,
                });
            }
        }
        Ok(found)
    }

    fn told() -> Vec<u8> {
        let data = [7; 8192];
        [&head(4 << 20, true)[..], &piece(4096, data.len()), &data, &zeros(1 << 20, 1 << 20), &end()].concat()
    }

    #[test]
    fn items_come_out_whole_however_the_bytes_arrive() {
        let whole =
            [Found::Head(4 << 20, true), Found::Piece(4096, vec![7; 8192]), Found::Zeros(1 << 20, 1 << 20), Found::End];
        for at_a_time in [1, 7, 4096, usize::MAX] {
            assert_eq!(read(&told(), at_a_time).as_deref(), Ok(&whole[..]), "{at_a_time}");
        }
    }

    #[test]
    fn what_lies_behind_the_end_or_over_the_edge_of_an_extent_is_refused() {
        let after = |item: &[u8]| read(&[&head(3 << 20, false)[..], item, &[0; 4096]].concat(), 4096);
        let bad = [
            piece(3 << 20, 4096),
            piece(u64::MAX - 4095, 4096),
            piece((1 << 20) - 4096, 8192),
            piece(0, 2 << 20),
            piece(1, 4096),
            piece(0, 100),
            piece(0, 0),
            zeros(0, 0),
            zeros(0, 2 << 20),
            item(0, 0, 9),
            item(4096, 0, END),
        ];
        for bad in bad {
            assert!(matches!(after(&bad), Err(BadContent::BadPiece { .. })), "{bad:?}");
        }
        assert_eq!(after(&end()), Err(BadContent::AfterEnd));
        assert_eq!(read(&[0; 24], 24), Err(BadContent::NoHead));
    }

    #[test]
    fn runs_leave_out_zeros_that_are_worth_a_header() {
        let mut data = vec![0; 16 * 4096];
        for block in [1, 2, 4, 9, 15] {
            data[block * 4096 + 5] = 1;
        }
        assert_eq!(runs(&data), [4096..5 * 4096, 9 * 4096..10 * 4096, 15 * 4096..16 * 4096]);
        assert!(runs(&[0; 8192]).is_empty());
    }
}
