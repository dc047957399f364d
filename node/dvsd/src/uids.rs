//! Which host uids belong to what. Gids are the same numbers.
//!
//! ```text
//! 899,997                      members of etcd
//! 899,998                      shelves
//! 899,999                      proxies
//! 900,000 + 64 × dc + slot     servers and gates of container dc
//! 2^28 + 65,536 × dc ...       uids inside container dc, the same on all nodes
//! ```

use abi::limits::UIDS_PER_DC;

pub const ETCD: u32 = 899_997;
/// Of all that containers, their servers and what serves a node have.
pub const FIRST: u32 = ETCD;
pub const SHELF: u32 = 899_998;
pub const PROXY: u32 = 899_999;
const SERVERS: u32 = 900_000;
pub const SLOTS_PER_DC: u32 = 64;
const INSIDE: u32 = 1 << 28;
/// Container numbers in use at a time are fewer; they are given out in turn up to here.
pub const DC_ID_MAX: u32 = 16_383;

const _: () = assert!(SERVERS + (DC_ID_MAX + 1) * SLOTS_PER_DC < INSIDE);
const _: () = assert!(INSIDE as u64 + (DC_ID_MAX as u64 + 1) * UIDS_PER_DC as u64 <= i32::MAX as u64);

/// Uid of the server or gate of a container that has this slot; the same on all nodes, of which each runs few.
pub fn server(dc: u32, slot: u32) -> u32 {
    SERVERS + dc.min(DC_ID_MAX) * SLOTS_PER_DC + slot.min(SLOTS_PER_DC - 1)
}

/// Host uid of root inside.
pub fn inside(dc: u32) -> u32 {
    INSIDE + dc.min(DC_ID_MAX) * UIDS_PER_DC
}
