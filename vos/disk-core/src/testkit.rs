//! What every medium does: one test for all of them.
#![allow(clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use rustix::io::Errno;
use vos_api::disk::BLOCK_BYTES;

use crate::{Medium, Need, ReadInto, WriteFrom};

const BLOCK: usize = BLOCK_BYTES as usize;
const STEPS: u32 = 400;
/// Blocks of a transfer.
const BLOCKS_MAX: u64 = 40;

/// Compares an empty medium with an array of bytes over many steps, from `seed`, and leaves it with what it answers,
/// for [`holds`].
///
/// # Panics
/// It does something else.
pub fn behaves(medium: &dyn Medium, seed: u64) -> Vec<u8> {
    let mut model = vec![0; medium.bytes() as usize];
    let blocks = medium.bytes() / u64::from(BLOCK_BYTES);
    assert_eq!(medium.bytes() % u64::from(BLOCK_BYTES), 0, "whole blocks");
    let mut random = Random(seed | 1);
    for step in 0..STEPS {
        let first = random.below(blocks);
        let count = random.below(BLOCKS_MAX.min(blocks - first)) + 1;
        let (offset, bytes) = (first * u64::from(BLOCK_BYTES), count as u32 * BLOCK_BYTES);
        let range = offset as usize..offset as usize + bytes as usize;
        match random.below(8) {
            0..3 => {
                let data: Vec<u8> = (0..bytes).map(|at| (u64::from(at / BLOCK_BYTES) + random.0) as u8 | 1).collect();
                medium.write(offset, bytes, &WriteFrom(&data)).expect("a write");
                model[range].copy_from_slice(&data);
            }
            3 => {
                medium.discard(offset, u64::from(bytes)).expect("a discard");
                model[range].fill(0);
            }
            4 => medium.flush().expect("a flush"),
            5 => match medium.allocate(offset, u64::from(bytes), Need::Server) {
                Ok(()) | Err(Errno::OPNOTSUPP) => {}
                Err(error) => panic!("allocate: {error}"),
            },
            6 => {
                medium.forget(offset, u64::from(bytes));
                check_data(medium, &model, offset);
            }
            _ => assert!(read(medium, offset, bytes) == model[range], "other bytes at {offset} in step {step}"),
        }
    }
    medium.flush().expect("a flush");
    holds(medium, &model);
    model
}

/// Whether it has these bytes.
///
/// # Panics
/// It has others.
pub fn holds(medium: &dyn Medium, model: &[u8]) {
    for (number, piece) in model.chunks(BLOCK * BLOCKS_MAX as usize).enumerate() {
        let offset = number * BLOCK * BLOCKS_MAX as usize;
        assert!(read(medium, offset as u64, piece.len() as u32) == piece, "other bytes behind {offset}");
    }
    // Part of a transfer's memory stays what it was.
    let mut memory = vec![9; 3 * BLOCK];
    medium.read(0, BLOCK_BYTES, &ReadInto::new(&mut memory), BLOCK_BYTES).expect("a read");
    assert!(memory[..BLOCK].iter().chain(&memory[2 * BLOCK..]).all(|byte| *byte == 9));
    assert!(memory[BLOCK..2 * BLOCK] == model[..BLOCK]);
}

/// Nothing is called a hole that has data, and what is called data lies within.
fn check_data(medium: &dyn Medium, model: &[u8], from: u64) {
    let until = match medium.data_from(from) {
        Some((first, end)) => {
            assert!(from <= first && first < end && end <= medium.bytes(), "{from}: {first} to {end}");
            first as usize
        }
        None => model.len(),
    };
    assert!(model[from as usize..until].iter().all(|byte| *byte == 0), "data in a hole behind {from}");
}

fn read(medium: &dyn Medium, offset: u64, bytes: u32) -> Vec<u8> {
    let mut data = vec![0xee; bytes as usize];
    medium.read(offset, bytes, &ReadInto::new(&mut data), 0).expect("a read");
    data
}

/// xorshift64.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % limit
    }
}
