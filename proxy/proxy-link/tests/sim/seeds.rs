//! How many seeds a test takes.

/// Enough for every change, and what `DVS_TEST_LONG` asks for. `DVS_SEED` runs one again.
pub fn seeds(few: u64, many: u64) -> std::ops::Range<u64> {
    if let Some(seed) = std::env::var("DVS_SEED").ok().and_then(|seed| seed.parse().ok()) {
        return seed..seed + 1;
    }
    0..if std::env::var_os("DVS_TEST_LONG").is_some() { many } else { few }
}
