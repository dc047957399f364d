//! The decisions of M3-IPC, without memory, clocks or system calls.

#![forbid(unsafe_code)]

use std::fmt;

/// Names a channel on one node. Never reused, not even by a restarted broker.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ChannelId(pub u64);

impl fmt::Display for ChannelId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:x}", self.0)
    }
}
