//! Why a connection is cut.

use thiserror::Error;
use wire::{Refusal, WireChannel, WireError};

#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum LinkError {
    #[error("the peer sent a frame that is none")]
    Wire(#[from] WireError),
    #[error("the peer sent {frame} where it has no place")]
    OutOfPlace { frame: &'static str },
    #[error("the peer refused the link: {reason}")]
    Refused { refusal: Refusal, reason: String },
    #[error("the peer is not let in ({refusal:?}): {reason}")]
    Refuse { refusal: Refusal, reason: String },
    #[error("nothing was heard from the peer for {silent_ms} ms, the limit is {limit_ms} ms")]
    Silent { silent_ms: u64, limit_ms: u64 },
    #[error("entry {got} of channel {channel:?} came where {expected} was due")]
    Order { channel: WireChannel, got: u32, expected: u32 },
    #[error("the peer sent packed data that cannot be unpacked")]
    Packing,
    #[error("a frame that was begun cannot be finished")]
    Unfinished,
    #[error("the peer holds more than {0} channels")]
    TooManyChannels(usize),
    #[error("the connection took too long to be greeted")]
    Greeting,
}

impl LinkError {
    /// The two are of releases that do not talk, which takes people to change.
    pub fn is_of_versions(&self) -> bool {
        matches!(
            self,
            LinkError::Wire(WireError::Layout(_))
                | LinkError::Refused { refusal: Refusal::Version, .. }
                | LinkError::Refuse { refusal: Refusal::Version, .. }
        )
    }
}
