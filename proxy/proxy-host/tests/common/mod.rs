//! Two nodes on one machine: two brokers, two proxies over any transport, and a register of who is where.
//!
//! - `cluster.rs`: two nodes or several.
//! - `node.rs`: one of them, and how its proxies are started.
//! - `proxy.rs`: a proxy that runs.
//! - `register.rs`: who is where.
//! - `way.rs`: the transports.
//! - `wire.rs`: what proxies listen on, and real cables.
//! - `storm.rs`: a simulated cable.
//! - `watchdog.rs`: the end of a case that hangs.

// Each test binary uses its part.
#![allow(dead_code)]

mod cluster;
mod node;
mod proxy;
mod register;
pub mod storm;
pub mod watchdog;
mod way;
mod wire;

use std::time::Duration;

use abi::DcId;
#[allow(unused_imports)]
pub use cluster::{Nodes, Pair, Which};
#[allow(unused_imports)]
pub use node::Node;
#[allow(unused_imports)]
pub use proxy::{Control, RunningProxy};
use proxy_host::control::LinkState;
use proxy_link::LinkTimes;
#[allow(unused_imports)]
pub use way::{Way, can_use_namespaces, can_use_tipc};
#[allow(unused_imports)]
pub use wire::Cable;

pub const DC: DcId = DcId(7);
pub const CLUSTER: &str = "c1";
pub const UP: LinkState = LinkState::Up;
/// Longer than anything here takes, so that a hang is a failure and not a wait.
pub const PATIENCE: Duration = Duration::from_secs(20);

/// Patient with a loaded machine: only tests of silence shorten it.
pub fn calm_times() -> LinkTimes {
    LinkTimes { down: Duration::from_secs(10), ..LinkTimes::default() }
}
