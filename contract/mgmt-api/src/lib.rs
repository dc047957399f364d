//! The management contract: resources of the REST API, the description of a container (`dc.toml`), and the stream
//! that connects a terminal with a program in a container.
//!
//! Transport: HTTP/1.1 over the daemon's Unix socket, and over mutual TLS between nodes. Bodies are JSON. Paths are in
//! [`path`]. A failure is any status of 400 and above with an [`ErrorBody`].

#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing))]

mod bytes;
mod dc;
mod doctor;
mod error;
mod join;
mod node;
pub mod path;
mod placement;
mod process;
pub mod stream;
mod tree;

pub use bytes::{Bytes, NoHex};
pub use dc::{
    Dc, DcPhase, DcSpec, DiskSpec, DiskStore, Limits, NodeShare, ServerSpec, ServerState, ServerStatus, WaitMode,
    default_subnet, valid_name,
};
pub use doctor::{CertificateFacts, Examination, Gravity, MemberFacts, NodeFacts, SpaceFacts, Trouble};
pub use error::{ErrorBody, ErrorKind};
pub use join::{
    AuthorityStage, AuthorityState, EngineAnswer, JoinAnswer, JoinRequest, JoinToken, MemberAddress, NewToken, NoToken,
    NodeChange, TOKEN_SECONDS, TokenInfo, TokenRequest,
};
pub use node::{
    ChannelCounts, ChannelInfo, ChannelKind, EndCounts, Health, HealthCheck, LinkInfo, LinkState, Node, NodeState,
    PAIRS_MAX, Version,
};
pub use placement::{Capacity, Instance, Placement, Promise, Role, ServerKind, Volume, Why};
pub use process::{ExecRequest, Process, ProcessState, RootFs, RunRequest, RunResponse, SignalRequest, TerminalSize};
pub use tree::{TREE, in_tree};
