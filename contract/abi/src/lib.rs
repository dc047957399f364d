//! The M3-IPC contract: what two processes of a container agree on when they exchange messages.
//!
//! Here: names (endpoints, containers, nodes, epochs), the 64-byte message, the layout of a channel in shared
//! memory, the entries of its ring, error numbers, and every limit. Nothing here performs a call or touches memory.
//! The layout is drawn byte by byte in `docs/design/channel.md`; the two are changed together.
//!
//! Not here: frames between nodes (`contract/wire`), requests of the virtual OS (`contract/vos-api`).

#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing))]

pub mod copy;
pub mod delegation;
mod error;
mod ident;
pub mod layout;
pub mod limits;
mod message;
mod name;
mod passage;
mod privileges;
pub mod ring;

pub use copy::{Direction, GrantId};
pub use error::{IpcError, errno};
pub use ident::{ChannelId, DcId, Endpoint, Epoch, HoldId, Lane, NodeId, PairId, Pid, Source};
pub use message::Message;
pub use name::EndpointName;
pub use passage::{Carried, Indices, LocalRole, Settled};
pub use privileges::{Calls, ParseError, Peers, Privileges};
