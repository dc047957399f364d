//! Replicated disks (`docs/design/replication.md`): the pure machines of `replica-core` behind rings, files and the
//! desk.
//!
//! - [`copy`]: the server of a copy. It does what the primary says.
//! - [`primary`]: the disk itself, which clients ask. It has no state but what it can ask for.
//! - [`link`]: from the primary to a copy.
//! - [`kept`]: the file beside a copy.

pub mod copy;
mod kept;
mod link;
pub mod primary;

/// What pools have done since the loop looked, by what the loop calls it.
type PoolResults<T> = std::sync::Arc<parking_lot::Mutex<Vec<(T, Result<(), rustix::io::Errno>)>>>;

/// `None`: a container has no such copy.
fn endpoint_of(copy: replica_core::Replica) -> Option<abi::Endpoint> {
    let number = u32::from(copy.0);
    abi::Endpoint::new(abi::Endpoint::COPY.number() + number).filter(|_| number < abi::limits::COPIES_PER_DC)
}
