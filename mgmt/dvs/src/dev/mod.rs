//! A whole cluster on this machine: `dvs dev`.
//!
//! Each node is a **machine**: one process (`machine.rs`) that is PID 1 of a pid namespace and holds a network, mount,
//! IPC and UTS namespace and a subtree of the control groups. A further machine, the **hub**, holds a bridge; each node
//! has a veth pair into it. So a cluster shows nothing to the host: no interface, no mount, no process that outlives
//! its machine. Killing PID 1 of a machine is what pulling the plug is to a real one, and that is how clusters are
//! taken down.
//!
//! ```text
//! host ── RUN/dev/NAME/NODE/dvsd.sock ──────────────┐
//! hub machine: bridge dvs0 ── p1 ═ eth0 ── machine n1: PID 1, dvsd, proxy, keepers …
//!                          ├─ p2 ═ eth0 ── machine n2
//!                          └─ p3 ═ eth0 ── machine n3
//! ```
//!
//! State: `RUN/dev/NAME/cluster.json` (`client::places`) is written before what it names is made. A machine that was
//! not written down yet ends by itself when its maker does. Commands that change a cluster hold its lock (`record.rs`).
//!
//! Not here: what a daemon does (`dvsd`); links and addresses (`sandbox`); certificates (`pki`).

pub mod cgroup;
pub mod clean;
pub mod down;
pub mod host;
pub mod machine;
pub mod network;
pub mod processes;
pub mod record;
pub mod restart;
pub mod up;

/// Nodes of a development cluster. Each costs a daemon and a proxy; addresses would allow 250.
pub const NODES_MAX: u16 = 16;

/// Address of the node at position `index`. The hub is a network of its own, so all clusters may use the same ones.
pub fn address(index: usize) -> std::net::Ipv4Addr {
    std::net::Ipv4Addr::new(10, 255, 0, (index % 250) as u8 + 1)
}

pub fn node_name(index: usize) -> String {
    format!("n{}", index + 1)
}
