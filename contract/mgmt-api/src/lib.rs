//! The management contract: resources of the REST API, the description of a container (`dc.toml`), and the stream
//! that connects a terminal with a program in a container.
//!
//! Transport: HTTP/1.1 over the daemon's Unix socket, and over TLS for nodes and for people elsewhere. Bodies are JSON.
//! Paths are in [`path`]; who may ask for what, and what it is answered with, in the one table of [`routes`]. A failure
//! is any status of 400 and above with an [`ErrorBody`].

#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing))]

mod access;
mod bytes;
pub mod content;
mod dc;
mod doctor;
mod egress;
mod error;
mod event;
mod join;
mod nbd;
mod node;
pub mod path;
mod placement;
mod plan;
mod port;
mod process;
mod restraints;
pub mod routes;
mod service;
pub mod stream;
mod tree;
mod volume;

pub use access::{
    ACCESS_SECONDS, AccessFile, AccessInfo, AccessRequest, AccessRole, AccessToken, AuditEntry, AuditWho, Means,
    Myself, NoAccessToken, utc, utc_ms,
};
pub use bytes::{Bytes, NoHex};
pub use dc::{
    Dc, DcChange, DcNodeRequest, DcPhase, DcRename, DcSpec, DiskChange, DiskCopies, DiskCopy, DiskCopyState,
    DiskDifference, DiskSpec, DiskStore, DiskVerification, Limits, NodeShare, ProcView, ServerMoveRequest, ServerSpec,
    ServerState, ServerStatus, WaitMode, default_subnet, valid_name,
};
pub use doctor::{CertificateFacts, Examination, Gravity, MemberFacts, NodeFacts, SpaceFacts, Trouble};
pub use egress::{EgressRule, EgressSpec, NoEgressRule};
pub use error::{ErrorBody, ErrorKind};
pub use event::{EventInfo, EventSubject, word};
pub use join::{
    AuthorityStage, AuthorityState, EngineAnswer, JoinAnswer, JoinRequest, JoinToken, MemberAddress, NewToken, NoToken,
    NodeChange, TOKEN_SECONDS, TokenInfo, TokenRequest,
};
pub use nbd::{NBD_PORT, NbdSpec};
pub use node::{
    ChannelCounts, ChannelInfo, ChannelKind, ClusterLevel, EndCounts, Health, HealthCheck, LinkInfo, LinkState, Node,
    NodeState, PAIRS_MAX, PendingServer, UpgradeState, Version,
};
pub use placement::{Capacity, Instance, Placement, Promise, Role, STORE_DISK, ServerKind, Volume, Why};
pub use plan::{ApplyPlan, ApplyRequest, DcPlan, PlanRequest, PlanStep};
pub use port::{NoPort, PortAtNode, PortInfo, PortProtocol, PortSpec, PortState, SharePort};
pub use process::{
    ExecRequest, FileUsage, LogForm, LogPiece, LogStream, NoUser, NodeUsage, Process, ProcessState, ProgramUser,
    RootFs, RunRequest, RunResponse, SignalRequest, TerminalSize,
};
pub use restraints::{Capabilities, NoCapability, NoUlimit, Ulimit};
pub use service::{
    HealthProbe, HealthSpec, MoveRequest, PlacePolicy, RestartPolicy, ServiceInfo, ServiceInstance, ServiceSpec,
    ServiceState, StopSpec,
};
pub use tree::{TREE, in_tree};
pub use volume::{AllowedVolume, HostVolume, NoAllowedVolume, NoHostVolume, NoVolumeOwner, VolumeOwner};
