//! LZ4 blocks for the data of ring entries; when they pay is decided by `proxy-link`.

use std::time::{Duration, Instant};

use lz4_flex::block::{compress_into, decompress_into, get_maximum_output_size};
use proxy_link::{NotPacked, Packer};

#[derive(Default)]
pub(crate) struct Lz4 {
    /// The packer wants room for the worst case.
    room: Vec<u8>,
}

impl Packer for Lz4 {
    fn pack(&mut self, plain: &[u8], packed: &mut [u8]) -> (Option<usize>, Duration) {
        let start = Instant::now();
        self.room.resize(get_maximum_output_size(plain.len()), 0);
        let bytes = compress_into(plain, &mut self.room).ok().and_then(|count| self.room.get(..count));
        let fitting = bytes.and_then(|bytes| Some((bytes, packed.get_mut(..bytes.len())?)));
        let length = fitting.map(|(bytes, place)| {
            place.copy_from_slice(bytes);
            bytes.len()
        });
        (length, start.elapsed())
    }

    fn unpack(&mut self, packed: &[u8], plain: &mut [u8]) -> Result<(), NotPacked> {
        match decompress_into(packed, plain) {
            Ok(count) if count == plain.len() => Ok(()),
            _ => Err(NotPacked),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(bytes: usize) -> Vec<u8> {
        (0..).flat_map(|line: u32| format!("line {line}: all work and no play\n").into_bytes()).take(bytes).collect()
    }

    #[test]
    fn text_packs_and_unpacks_to_what_it_was() {
        let (plain, mut packed) = (text(32 * 1024), vec![0; 32 * 1024]);
        let mut lz4 = Lz4::default();
        let (length, took) = lz4.pack(&plain, &mut packed);
        let length = length.expect("text packs");
        assert!(length < plain.len() / 2 && took > Duration::ZERO, "{length} {took:?}");
        let mut back = vec![0; plain.len()];
        assert_eq!(lz4.unpack(&packed[..length], &mut back), Ok(()));
        assert_eq!(back, plain);
    }

    #[test]
    fn noise_does_not_pack() {
        let mut state = 1_u64;
        let mut next = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 56) as u8
        };
        let noise: Vec<u8> = (0..32 * 1024).map(|_| next()).collect();
        assert_eq!(Lz4::default().pack(&noise, &mut vec![0; noise.len()]).0, None);
    }

    /// Whatever comes unpacks to exactly as many bytes as were due, or to nothing.
    #[test]
    fn damaged_blocks_are_refused_or_unpack_to_the_length_that_was_due() {
        let (plain, mut packed) = (text(4096), vec![0; 4096]);
        let mut lz4 = Lz4::default();
        let length = lz4.pack(&plain, &mut packed).0.expect("text packs");
        let packed = &packed[..length];
        let mut refused = 0;
        for at in 0..length {
            for flip in [1, 0x80, 0xff] {
                let mut damaged = packed.to_vec();
                damaged[at] ^= flip;
                let mut back = vec![0; plain.len()];
                refused += u32::from(lz4.unpack(&damaged, &mut back).is_err());
            }
            let mut back = vec![0; plain.len()];
            assert_eq!(lz4.unpack(&packed[..at], &mut back), Err(NotPacked));
        }
        assert!(refused > 0);
        for due in [0, 1, plain.len() - 1, plain.len() + 1] {
            assert_eq!(lz4.unpack(packed, &mut vec![0; due]), Err(NotPacked));
        }
    }
}
