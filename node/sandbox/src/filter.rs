//! What a container may send: the filter at the host's end of its veth pair.
//!
//! A classic filter program, attached by netlink to the ingress of the interface. It lets pass only frames that carry
//! no VLAN tag, come from the container's own layer-2 address, go to a member of the same container, and are IPv4 or
//! ARP with the container's own address as source, and IPv4 only to an address of the container's own network. That the
//! destination must be a member keeps frames away from the node's own stack too: the bridge's own address is not of
//! that form, so root in a container cannot speak to the node, nor hand it encapsulated frames for a foreign network.
//! The address says the same once more, for nodes on which bridged frames pass the firewall (`br_netfilter`): a rule
//! there that rewrites destinations would take a frame for an address of the node to the node, whatever its layer-2
//! address.

use std::net::Ipv4Addr;

use crate::links::{Interface, InterfaceError, Links, Mac};
use crate::netlink::{Mode, Request};
use crate::overlay::Subnet;

/// Leading bytes of every container's layer-2 addresses: locally administered, unicast.
pub const MAC_PREFIX: [u8; 2] = [0x56, 0x44];

const RTM_NEWQDISC: u16 = 36;
const RTM_NEWTFILTER: u16 = 44;
const TCA_KIND: u16 = 1;
const TCA_OPTIONS: u16 = 2;
const CLSACT: u32 = 0xffff_fff1;
const CLSACT_INGRESS: u32 = 0xffff_fff2;

/// Whom a container may claim to be, and where it may send.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    pub mac: Mac,
    pub address: Ipv4Addr,
    pub subnet: Subnet,
}

/// Puts the filter for a container on `link`, in place of an older one.
pub fn ensure(links: &mut Links, interface: &Interface, bounds: &Bounds) -> Result<(), InterfaceError> {
    const TCA_BPF_OPS_LEN: u16 = 4;
    const TCA_BPF_OPS: u16 = 5;
    const TCA_BPF_NAME: u16 = 7;
    const TCA_BPF_FLAGS: u16 = 8;
    const ACT_DIRECT: u32 = 1;
    const PRIORITY: u32 = 1;
    const ALL_PROTOCOLS: u16 = 3;

    let head = tc_head(interface.index, 0xffff_0000, CLSACT, 0);
    let mut hook =
        Request::new(RTM_NEWQDISC, Mode::Replace, &head, format!("make a filter hook on '{}'", interface.name));
    hook.text(TCA_KIND, "clsact");

    let program = program(bounds);
    let code: Vec<u8> = program.iter().flat_map(|step| step.bytes()).collect();
    let info = PRIORITY << 16 | u32::from(ALL_PROTOCOLS.to_be());
    let head = tc_head(interface.index, 1, CLSACT_INGRESS, info);
    let mut filter =
        Request::new(RTM_NEWTFILTER, Mode::Replace, &head, format!("filter what '{}' sends", interface.name));
    filter.text(TCA_KIND, "bpf").nested(TCA_OPTIONS, |options| {
        options.attribute(TCA_BPF_OPS_LEN, &(program.len() as u16).to_ne_bytes()).attribute(TCA_BPF_OPS, &code);
        options.text(TCA_BPF_NAME, "dvs-source").u32(TCA_BPF_FLAGS, ACT_DIRECT);
    });
    Ok(links.socket().perform_all(vec![hook, filter])?)
}

/// `struct tcmsg`.
fn tc_head(index: u32, handle: u32, parent: u32, info: u32) -> Vec<u8> {
    [0, index, handle, parent, info].map(u32::to_ne_bytes).concat()
}

/// One instruction of `linux/filter.h`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Step {
    code: u16,
    if_true: u8,
    if_false: u8,
    operand: u32,
}

impl Step {
    fn bytes(self) -> [u8; 8] {
        let mut bytes = [0; 8];
        bytes[0..2].copy_from_slice(&self.code.to_ne_bytes());
        bytes[2] = self.if_true;
        bytes[3] = self.if_false;
        bytes[4..8].copy_from_slice(&self.operand.to_ne_bytes());
        bytes
    }
}

/// A requirement: the field at an offset from the Ethernet header has this value.
enum Need {
    Word(u32, u32),
    Half(u32, u16),
    Byte(u32, u8),
    /// Under a mask.
    Masked(u32, u32, u32),
}

fn program(bounds: &Bounds) -> Vec<Step> {
    const ETHER_TYPE: u32 = 12;
    const IPV4: u32 = 0x0800;
    const ARP: u32 = 0x0806;
    const IPV4_SOURCE: u32 = 14 + 12;
    const IPV4_DESTINATION: u32 = 14 + 16;
    const ARP_SENDER_MAC: u32 = 14 + 8;
    const ARP_SENDER_ADDRESS: u32 = 14 + 14;
    /// SKF_AD_OFF + SKF_AD_VLAN_TAG_PRESENT
    const VLAN_TAG_PRESENT: u32 = (-0x1000_i32 + 48) as u32;

    let source = u32::from(bounds.address);
    let (network, mask) = (u32::from(bounds.subnet.base()), bounds.subnet.mask());
    let [m0, m1, m2, m3, m4, m5] = bounds.mac;
    let (high, low) = (u32::from_be_bytes([m0, m1, m2, m3]), u16::from_be_bytes([m4, m5]));
    let always = [
        Need::Byte(VLAN_TAG_PRESENT, 0),
        Need::Word(6, high),
        Need::Half(10, low),
        // A member of the same container: all but the last byte of the address.
        Need::Word(0, high),
        Need::Byte(4, m4),
    ];
    let arp =
        [Need::Word(ARP_SENDER_MAC, high), Need::Half(ARP_SENDER_MAC + 4, low), Need::Word(ARP_SENDER_ADDRESS, source)];
    let ipv4 = [Need::Word(IPV4_SOURCE, source), Need::Masked(IPV4_DESTINATION, mask, network)];
    let mut ipv4_steps = Vec::new();
    ipv4.iter().for_each(|need| require(&mut ipv4_steps, need));
    ipv4_steps.push(PASS);
    let mut steps = Vec::new();
    always.iter().for_each(|need| require(&mut steps, need));
    steps.push(load(0x08, ETHER_TYPE));
    steps.push(Step { code: EQUAL, if_true: 0, if_false: ipv4_steps.len() as u8, operand: IPV4 });
    steps.append(&mut ipv4_steps);
    steps.push(Step { code: EQUAL, if_true: 1, if_false: 0, operand: ARP });
    steps.push(DROP);
    arp.iter().for_each(|need| require(&mut steps, need));
    steps.push(PASS);
    steps
}

const EQUAL: u16 = 0x15;
const AND: u16 = 0x54;
const PASS: Step = Step { code: 0x06, if_true: 0, if_false: 0, operand: 0 };
/// TC_ACT_SHOT
const DROP: Step = Step { code: 0x06, if_true: 0, if_false: 0, operand: 2 };

fn load(width: u16, offset: u32) -> Step {
    Step { code: 0x20 | width, if_true: 0, if_false: 0, operand: offset }
}

/// Load, mask, skip the next when equal, drop.
fn require(steps: &mut Vec<Step>, need: &Need) {
    let (width, offset, mask, value) = match *need {
        Need::Word(offset, value) => (0x00, offset, None, value),
        Need::Masked(offset, mask, value) => (0x00, offset, Some(mask), value),
        Need::Half(offset, value) => (0x08, offset, None, u32::from(value)),
        Need::Byte(offset, value) => (0x10, offset, None, u32::from(value)),
    };
    steps.push(load(width, offset));
    steps.extend(mask.map(|mask| Step { code: AND, if_true: 0, if_false: 0, operand: mask }));
    steps.push(Step { code: EQUAL, if_true: 1, if_false: 0, operand: value });
    steps.push(DROP);
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAC: Mac = [0x56, 0x44, 0, 0, 7, 1];

    /// Runs a program of the instructions used here; a load beyond the frame drops it, as in the kernel.
    fn run(program: &[Step], frame: &[u8]) -> u32 {
        let (mut at, mut loaded) = (0, 0u32);
        loop {
            let step = program[at];
            at += 1;
            let offset = step.operand as usize;
            match step.code {
                0x06 => return step.operand,
                AND => loaded &= step.operand,
                EQUAL if loaded == step.operand => at += usize::from(step.if_true),
                EQUAL => at += usize::from(step.if_false),
                0x30 if offset > 0xffff => loaded = 0,
                code => {
                    let width = match code {
                        0x20 => 4,
                        0x28 => 2,
                        _ => 1,
                    };
                    let Some(bytes) = frame.get(offset..offset + width) else { return 2 };
                    loaded = bytes.iter().fold(0, |value, byte| value << 8 | u32::from(*byte));
                }
            }
        }
    }

    fn frame(to: Mac, from: Mac, ether_type: u16, body: &[u8]) -> Vec<u8> {
        [&to[..], &from[..], &ether_type.to_be_bytes(), body].concat()
    }

    #[test]
    fn only_frames_with_own_addresses_to_members_pass() {
        let subnet = "10.1.0.0/24".parse().unwrap();
        let program = program(&Bounds { mac: MAC, address: Ipv4Addr::new(10, 1, 0, 2), subnet });
        let peer = [0x56, 0x44, 0, 0, 7, 0];
        let mut ip = vec![0; 20];
        ip[12..16].copy_from_slice(&[10, 1, 0, 2]);
        ip[16..20].copy_from_slice(&[10, 1, 0, 1]);
        let mut arp = vec![0; 28];
        arp[8..14].copy_from_slice(&MAC);
        arp[14..18].copy_from_slice(&[10, 1, 0, 2]);
        assert_eq!(run(&program, &frame(peer, MAC, 0x0800, &ip)), 0);
        assert_eq!(run(&program, &frame(peer, MAC, 0x0806, &arp)), 0);

        let mut other_ip = ip.clone();
        other_ip[15] = 3;
        let mut other_arp = arp.clone();
        other_arp[17] = 3;
        let mut other_arp_mac = arp.clone();
        other_arp_mac[13] = 9;
        let to = |address: [u8; 4]| [&ip[..16], &address[..]].concat();
        assert_eq!(run(&program, &frame(peer, MAC, 0x0800, &to([10, 1, 0, 255]))), 0);
        let foreign = [0x56, 0x44, 0, 0, 8, 0];
        for refused in [
            frame(peer, MAC, 0x0800, &other_ip),
            frame(peer, MAC, 0x0806, &other_arp),
            frame(peer, MAC, 0x0806, &other_arp_mac),
            frame(peer, peer, 0x0800, &ip),
            frame(foreign, MAC, 0x0800, &ip),
            frame([0xff; 6], MAC, 0x0806, &arp),
            frame(peer, MAC, 0x86dd, &ip),
            frame(peer, MAC, 0x8100, &ip),
            frame(peer, MAC, 0x0800, &ip[..10]),
            frame(peer, MAC, 0x0800, &ip[..18]),
            frame(peer, MAC, 0x0800, &to([10, 1, 1, 1])),
            frame(peer, MAC, 0x0800, &to([172, 31, 7, 1])),
            frame(peer, MAC, 0x0800, &to([127, 0, 0, 1])),
            frame(peer, MAC, 0x0800, &to([224, 0, 0, 1])),
            frame(peer, MAC, 0x0800, &to([255, 255, 255, 255])),
            Vec::new(),
        ] {
            assert_eq!(run(&program, &refused), 2, "{refused:02x?}");
        }
    }
}
