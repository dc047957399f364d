//! What a single copy does.

pub mod race;
pub mod register;
