//! The wires of a development cluster: a bridge in the hub, a veth pair to each node.

use std::net::{IpAddr, Ipv4Addr};

use client::ProcessId;
use sandbox::links::{InterfaceError, Links, Mac};

use super::machine::{MachineError, network_of};

const BRIDGE: &str = "dvs0";
/// A node's end.
pub const INSIDE: &str = "eth0";
const PREFIX_BITS: u8 = 24;

#[derive(Debug, thiserror::Error)]
pub enum WireError {
    #[error("cannot reach the network of {0}")]
    Machine(&'static str, #[source] MachineError),
    #[error("cannot set up the network")]
    Links(#[from] InterfaceError),
}

/// Whether a node's wire is plugged in.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Wire {
    Plugged,
    Pulled,
}

pub fn make_bridge(hub: ProcessId) -> Result<(), WireError> {
    let mut links = in_hub(hub)?;
    links.set_loopback_up()?;
    let bridge = links.ensure_bridge(BRIDGE)?;
    links.without_ipv6_address(&bridge)?;
    links.set_up(&bridge)?;
    Ok(())
}

/// Joins the node at position `index` to the bridge.
pub fn connect(hub: ProcessId, node: ProcessId, index: usize, address: Ipv4Addr) -> Result<(), WireError> {
    let inside = network_of(node).map_err(|cause| WireError::Machine("the node", cause))?;
    let mut links = in_hub(hub)?;
    let bridge = links.get(BRIDGE)?;
    // A port without its node is what a killed machine leaves for a moment.
    links.delete(&port(index))?;
    let wire = links.ensure_veth(&port(index), INSIDE, &inside)?;
    links.without_ipv6_address(&wire)?;
    links.set_plain_port(&wire, &bridge)?;
    links.set_up(&wire)?;
    let mut links = Links::within(&inside)?;
    links.set_loopback_up()?;
    let end = links.get(INSIDE)?;
    links.without_ipv6_address(&end)?;
    links.set_mac(&end, mac(index))?;
    links.ensure_address(&end, IpAddr::V4(address), PREFIX_BITS)?;
    links.set_up(&end)?;
    Ok(())
}

/// Pulls or plugs the wire of a node at the hub's end: the node sees its carrier go, as with a real cable.
pub fn set_wire(hub: ProcessId, index: usize, wire: Wire) -> Result<(), WireError> {
    let mut links = in_hub(hub)?;
    let Some(port) = links.find(&port(index))? else { return Ok(()) };
    match wire {
        Wire::Plugged => links.set_up(&port)?,
        Wire::Pulled => links.set_down(&port)?,
    };
    Ok(())
}

fn in_hub(hub: ProcessId) -> Result<Links, WireError> {
    let namespace = network_of(hub).map_err(|cause| WireError::Machine("the hub", cause))?;
    Ok(Links::within(&namespace)?)
}

/// The same after a restart, as with real hardware: with another one, the other nodes would go on sending to the old
/// one until their neighbour tables time out.
fn mac(index: usize) -> Mac {
    [0x02, 0xd5, 0, 0, 0, index as u8 + 1]
}

fn port(index: usize) -> String {
    format!("p{}", index + 1)
}
