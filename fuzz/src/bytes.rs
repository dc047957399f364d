//! Arbitrary bytes as a list of choices. What is missing is 0.

pub struct Bytes<'a>(pub &'a [u8]);

impl<'a> Bytes<'a> {
    pub fn is_over(&self) -> bool {
        self.0.is_empty()
    }

    pub fn u8(&mut self) -> u8 {
        self.take(1).first().copied().unwrap_or(0)
    }

    pub fn u32(&mut self) -> u32 {
        let mut four = [0; 4];
        let taken = self.take(4);
        four[..taken.len()].copy_from_slice(taken);
        u32::from_le_bytes(four)
    }

    pub fn take(&mut self, count: usize) -> &'a [u8] {
        let (taken, rest) = self.0.split_at(count.min(self.0.len()));
        self.0 = rest;
        taken
    }
}
