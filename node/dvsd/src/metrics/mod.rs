//! Numbers about this node, for who watches many: OpenMetrics text at `/metrics` of the API.
//!
//! ```text
//! table.rs     every metric, declared once: name, kind, unit, labels, help
//! text.rs      samples become text (OpenMetrics 1.0)
//! engine.rs    counts and times the calls to the cluster engine
//! collect.rs   asks the parts of the daemon
//! process.rs   what the kernel says of the daemon's own process
//! ```
//!
//! Nothing is sampled in between: each answer is what holds when it is asked for. Metrics of containers, servers and
//! links are those of this node; whoever wants the cluster's asks each node.
//!
//! How many lines an answer has is bounded by the links, containers and servers of the node (`abi::limits`).

mod collect;
mod engine;
mod process;
mod table;
mod text;

pub use collect::exposition;
pub use engine::{Measured, Tally};
pub use text::CONTENT_TYPE;
