//! A program of a container that writes the time into the tree: when it could not, its lines show it.

/// Ten times a second; for `sh -c`.
pub const CLOCK: &str = "while :; do date +%s.%N >> /dc/clock; sleep 0.1; done";
/// Says what [`ticks`] reads; for `sh -c`, on any node.
pub const LONGEST_GAP: &str = "awk 'NR>1 && $1-p>m {m=$1-p} {p=$1} END {printf \"%d %d\", NR, m*1000}' /dc/clock";

/// Lines that the clock wrote, and the longest time between two of them, in milliseconds.
pub fn ticks(said: &str) -> (u64, u64) {
    let (lines, gap) = said.trim().split_once(' ').expect("two numbers");
    (lines.parse().expect("a number"), gap.parse().expect("a number"))
}
