//! What a file gate says of itself: figures in the state object that the keeper holds for it, where the daemon finds
//! them. They begin with each life of a gate.

use zerocopy::little_endian::U64;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Where they lie in the object.
pub const FIGURES_AT: u64 = 64;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct GateFigures {
    /// Requests of programs that were answered on the node.
    pub here: U64,
    /// Operations that were asked of the file server.
    pub asked: U64,
    /// What the server asked back.
    pub recalls: U64,
    /// Changes that programs were answered before the server was told.
    pub promised: U64,
    /// Of these, how many are untold.
    pub untold: U64,
    /// When the oldest of them was made: nanoseconds since 1970; 0: there is none.
    pub untold_since_ns: U64,
    /// Nothing yet.
    pub reserved: U64,
    /// [`GateFigures::checked`] sets it.
    pub check: U64,
}

const _: () = assert!(size_of::<GateFigures>() == 64);

impl GateFigures {
    /// As they are written.
    pub fn checked(mut self) -> GateFigures {
        self.check = self.sum();
        self
    }

    /// `None`: nothing was written there, or it is being written.
    pub fn read(bytes: &[u8]) -> Option<GateFigures> {
        let (figures, _) = GateFigures::read_from_prefix(bytes).ok()?;
        (figures.check == figures.sum()).then_some(figures)
    }

    fn sum(&self) -> U64 {
        let words = [self.here, self.asked, self.recalls, self.promised, self.untold, self.untold_since_ns];
        let mix = |sum: u64, word: &U64| (sum ^ word.get()).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29);
        words.iter().fold(0x6761_7465, mix).into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_read_as_they_were_written_and_nothing_else_is() {
        let figures = GateFigures { here: 5.into(), untold: 1.into(), ..GateFigures::default() }.checked();
        assert_eq!(GateFigures::read(figures.as_bytes()), Some(figures));
        assert_eq!(GateFigures::read(&[0; 64]), None);
        assert_eq!(GateFigures::read(&figures.as_bytes()[1..]), None);
        let mut other = figures.as_bytes().to_vec();
        other[0] ^= 1;
        assert_eq!(GateFigures::read(&other), None);
    }
}
