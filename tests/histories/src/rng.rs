//! Numbers from a seed: the same everywhere (SplitMix64; Steele, Lea, Flood: Fast splittable pseudorandom number
//! generators, 2014).

#[derive(Clone, Debug)]
pub struct Rng(u64);

impl Rng {
    pub fn new(seed: u64) -> Rng {
        Rng(seed)
    }

    pub fn draw(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// Below `end`, which is not 0.
    pub fn below(&mut self, end: u64) -> u64 {
        self.draw() % end
    }

    pub fn one_in(&mut self, many: u64) -> bool {
        self.below(many) == 0
    }

    /// One of several; there is at least one.
    pub fn pick<'a, T>(&mut self, from: &'a [T]) -> &'a T {
        let index = self.below(from.len() as u64) as usize;
        &from[index]
    }

    /// Another sequence, of this one and of a number.
    pub fn fork(&self, number: u64) -> Rng {
        let mut mixed = Rng(self.0 ^ number.wrapping_mul(0xd134_2543_de82_ef95));
        Rng(mixed.draw())
    }
}

/// For a test that is a world of its own for each seed: enough for every change, and what `DVS_TEST_LONG` asks for.
/// `DVS_SEED` runs one again.
pub fn seeds(few: u64, many: u64) -> std::ops::Range<u64> {
    if let Some(seed) = std::env::var("DVS_SEED").ok().and_then(|seed| seed.parse().ok()) {
        return seed..seed + 1;
    }
    0..if std::env::var_os("DVS_TEST_LONG").is_some() { many } else { few }
}
