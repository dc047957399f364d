//! Packed data of a ring entry: block by block, each of which is unpacked by itself.
//!
//! ```text
//! 0  length  u32   bytes that follow; bit 31: they are stored as they are
//! 4  bytes         an LZ4 block, or the plain bytes
//! ```
//!
//! Every block but the last unpacks to [`limits::BLOCK_BYTES`], the last one to what is left of the entry's data. So
//! the receiver knows before it unpacks how much comes out, and a block is never longer than that.

use crate::{Sink, WireError, limits};

/// Head of a block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Block {
    /// Bytes on the wire after the head.
    pub bytes: usize,
    pub is_stored: bool,
}

const STORED: u32 = 1 << 31;

impl Block {
    pub const HEAD_BYTES: usize = 4;

    /// What the next block unpacks to when `left` bytes of data are due.
    pub fn plain_bytes(left: usize) -> usize {
        left.min(limits::BLOCK_BYTES)
    }

    pub fn encode(self, out: &mut impl Sink) {
        let flag = if self.is_stored { STORED } else { 0 };
        out.put(&(self.bytes as u32 | flag).to_le_bytes());
    }

    /// The block at the beginning of `bytes`, `None` when its head is not all there.
    ///
    /// # Errors
    /// A length that no block of `plain` bytes has.
    pub fn decode(bytes: &[u8], plain: usize) -> Result<Option<Block>, WireError> {
        let Some(head) = bytes.first_chunk::<{ Block::HEAD_BYTES }>() else { return Ok(None) };
        let word = u32::from_le_bytes(*head);
        let block = Block { bytes: (word & !STORED) as usize, is_stored: word & STORED != 0 };
        let fits = if block.is_stored { block.bytes == plain } else { block.bytes > 0 && block.bytes < plain };
        if fits { Ok(Some(block)) } else { Err(WireError::Field("block length")) }
    }
}
