//! What a container may send: the filter at the host's end of its veth pair.
//!
//! A classic filter program, attached by netlink to the ingress of the interface. It lets pass only frames that carry
//! no VLAN tag, come from the container's own layer-2 address, go to a member of the same container, and are IPv4, IPv6
//! or ARP with the container's own address as source, and IPv4 and IPv6 only to an address of the container's own
//! network. That the destination must be a member keeps frames away from the node's own stack too: the bridge's own
//! address is not of that form, nor is any address of a group, so root in a container cannot speak to the node, nor
//! hand it encapsulated frames for a foreign network. The address says the same once more, for nodes on which bridged
//! frames pass the firewall (`br_netfilter`): a rule there that rewrites destinations would take a frame for an address
//! of the node to the node, whatever its layer-2 address.
//!
//! IPv6 carries its own gossip (who is where, who routes) in ICMPv6, and may hide it behind headers in front of it.
//! Members need none of it, as their neighbours are told to them. So of ICMPv6 only errors and echoes pass, and in
//! front of TCP, UDP, SCTP and ICMPv6 stands at most the header of a fragment: all others are not for networks of this
//! kind, and whoever looks behind one would have to look behind any number of them. What a fragment is of, the first
//! one says.
//!
//! A load beyond the end of a frame ends a program with 0, which lets the frame pass. So before each load stands the
//! question whether the frame is long enough.

use std::net::{Ipv4Addr, Ipv6Addr};

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
    /// Nothing of IPv6 passes without.
    pub address_ipv6: Option<Ipv6Addr>,
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
    const IPV4: u16 = 0x0800;
    const IPV6: u16 = 0x86dd;
    const ARP: u16 = 0x0806;
    /// SKF_AD_OFF + SKF_AD_VLAN_TAG_PRESENT
    const VLAN_TAG_PRESENT: u32 = (-0x1000_i32 + 48) as u32;

    let [_, _, _, _, m4, _] = bounds.mac;
    let (high, low) = halves(bounds.mac);
    let mut steps = at_least(BODY).to_vec();
    let always = [
        Need::Byte(VLAN_TAG_PRESENT, 0),
        Need::Word(6, high),
        Need::Half(10, low),
        // A member of the same container: all but the last byte of the address.
        Need::Word(0, high),
        Need::Byte(4, m4),
    ];
    always.iter().for_each(|need| require(&mut steps, need));
    let kinds = [(IPV4, ipv4(bounds)), (ARP, arp(bounds))];
    for (kind, of_kind) in kinds.into_iter().chain(bounds.address_ipv6.map(|own| (IPV6, ipv6(own)))) {
        steps.push(load(HALF, ETHER_TYPE));
        steps.push(Step { code: EQUAL, if_true: 0, if_false: of_kind.len() as u8, operand: kind.into() });
        steps.extend(of_kind);
    }
    steps.push(DROP);
    steps
}

/// As loads see a layer-2 address: four bytes, and the last two.
fn halves([m0, m1, m2, m3, m4, m5]: Mac) -> (u32, u16) {
    (u32::from_be_bytes([m0, m1, m2, m3]), u16::from_be_bytes([m4, m5]))
}

// Of each kind of frame: it passes, or is dropped.

fn ipv4(bounds: &Bounds) -> Vec<Step> {
    const SOURCE: u32 = BODY + 12;
    const DESTINATION: u32 = BODY + 16;
    let (network, mask) = (u32::from(bounds.subnet.base()), bounds.subnet.mask());
    let needs = [Need::Word(SOURCE, bounds.address.into()), Need::Masked(DESTINATION, mask, network)];
    all_of(BODY + 20, &needs)
}

fn arp(bounds: &Bounds) -> Vec<Step> {
    const SENDER_MAC: u32 = BODY + 8;
    const SENDER_ADDRESS: u32 = BODY + 14;
    let (high, low) = halves(bounds.mac);
    let address = bounds.address.into();
    all_of(
        SENDER_ADDRESS + 4,
        &[Need::Word(SENDER_MAC, high), Need::Half(SENDER_MAC + 4, low), Need::Word(SENDER_ADDRESS, address)],
    )
}

fn ipv6(own: Ipv6Addr) -> Vec<Step> {
    const NEXT_HEADER: u32 = BODY + 6;
    const SOURCE: u32 = BODY + 8;
    const DESTINATION: u32 = BODY + 24;
    const HEADER_BYTES: u32 = 40;
    const FRAGMENT: u32 = 44;
    const FRAGMENT_BYTES: u32 = 8;
    /// Of the header of a fragment, which says of what: 0 for the first one.
    const POSITION: u32 = BODY + HEADER_BYTES + 2;
    const POSITION_MASK: u32 = 0xfff8;

    let words = |at: u32, count: usize| {
        let bits = own.to_bits();
        (0..count as u32).map(move |word| Need::Word(at + 4 * word, (bits >> (96 - 32 * word)) as u32))
    };
    let mut steps = at_least(BODY + HEADER_BYTES).to_vec();
    require(&mut steps, &Need::Masked(BODY, 0xf000_0000, 6 << 28));
    words(SOURCE, 4).for_each(|need| require(&mut steps, &need));
    // The network: the first half.
    words(DESTINATION, 2).for_each(|need| require(&mut steps, &need));

    let mut later = vec![load(BYTE, BODY + HEADER_BYTES)];
    UPPER.iter().chain([&ICMPV6]).for_each(|kind| later.extend(pass_if(*kind)));
    later.push(DROP);
    let mut fragment = at_least(BODY + HEADER_BYTES + FRAGMENT_BYTES).to_vec();
    fragment.extend([load(HALF, POSITION), and(POSITION_MASK)]);
    fragment.push(Step { code: EQUAL, if_true: later.len() as u8, if_false: 0, operand: 0 });
    fragment.extend(later);
    fragment.extend(upper(BODY + HEADER_BYTES, BODY + HEADER_BYTES + FRAGMENT_BYTES));

    steps.push(load(BYTE, NEXT_HEADER));
    steps.push(Step { code: EQUAL, if_true: 0, if_false: fragment.len() as u8, operand: FRAGMENT });
    steps.extend(fragment);
    steps.extend(upper(NEXT_HEADER, BODY + HEADER_BYTES));
    steps
}

/// TCP, UDP, SCTP, UDP-Lite.
const UPPER: [u32; 4] = [6, 17, 132, 136];
const ICMPV6: u32 = 58;
/// Destination unreachable, packet too big, time exceeded, parameter problem, echo, and its answer.
const ICMPV6_KINDS: [u32; 6] = [1, 2, 3, 4, 128, 129];

/// What is in a packet that says so at one place, which is there, and begins at another.
fn upper(kind_at: u32, begins_at: u32) -> Vec<Step> {
    let mut steps = vec![load(BYTE, kind_at)];
    UPPER.iter().for_each(|kind| steps.extend(pass_if(*kind)));
    steps.extend([Step { code: EQUAL, if_true: 1, if_false: 0, operand: ICMPV6 }, DROP]);
    steps.extend(at_least(begins_at + 1));
    steps.push(load(BYTE, begins_at));
    ICMPV6_KINDS.iter().for_each(|kind| steps.extend(pass_if(*kind)));
    steps.push(DROP);
    steps
}

/// After the header of Ethernet.
const BODY: u32 = 14;
const EQUAL: u16 = 0x15;
const NOT_LESS: u16 = 0x35;
/// Loads the length of the frame.
const LENGTH: u16 = 0x80;
const AND: u16 = 0x54;
const PASS: Step = Step { code: 0x06, if_true: 0, if_false: 0, operand: 0 };
/// TC_ACT_SHOT
const DROP: Step = Step { code: 0x06, if_true: 0, if_false: 0, operand: 2 };

// Widths of loads.
const WORD: u16 = 0x00;
const HALF: u16 = 0x08;
const BYTE: u16 = 0x10;

fn load(width: u16, offset: u32) -> Step {
    Step { code: 0x20 | width, if_true: 0, if_false: 0, operand: offset }
}

fn and(mask: u32) -> Step {
    Step { code: AND, if_true: 0, if_false: 0, operand: mask }
}

fn pass_if(value: u32) -> [Step; 2] {
    [Step { code: EQUAL, if_true: 0, if_false: 1, operand: value }, PASS]
}

/// A frame that is shorter is dropped. The length counts from the Ethernet header, at the ingress, too.
fn at_least(bytes: u32) -> [Step; 3] {
    let length = Step { code: LENGTH, if_true: 0, if_false: 0, operand: 0 };
    [length, Step { code: NOT_LESS, if_true: 1, if_false: 0, operand: bytes }, DROP]
}

/// `bytes`: up to the end of the last field.
fn all_of(bytes: u32, needs: &[Need]) -> Vec<Step> {
    let mut steps = at_least(bytes).to_vec();
    needs.iter().for_each(|need| require(&mut steps, need));
    steps.push(PASS);
    steps
}

/// Load, mask, skip the next when equal, drop. The field is there.
fn require(steps: &mut Vec<Step>, need: &Need) {
    let (width, offset, mask, value) = match *need {
        Need::Word(offset, value) => (WORD, offset, None, value),
        Need::Masked(offset, mask, value) => (WORD, offset, Some(mask), value),
        Need::Half(offset, value) => (HALF, offset, None, u32::from(value)),
        Need::Byte(offset, value) => (BYTE, offset, None, u32::from(value)),
    };
    steps.push(load(width, offset));
    steps.extend(mask.map(and));
    steps.push(Step { code: EQUAL, if_true: 1, if_false: 0, operand: value });
    steps.push(DROP);
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAC: Mac = [0x56, 0x44, 0, 0, 7, 1];

    /// Runs a program of the instructions used here; a load beyond the frame ends it with 0, as in the kernel.
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
                NOT_LESS if loaded >= step.operand => at += usize::from(step.if_true),
                NOT_LESS => at += usize::from(step.if_false),
                LENGTH => loaded = frame.len() as u32,
                0x30 if offset > 0xffff => loaded = 0,
                code => {
                    let width = match code {
                        0x20 => 4,
                        0x28 => 2,
                        _ => 1,
                    };
                    let Some(bytes) = frame.get(offset..offset + width) else { return 0 };
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
        let bounds = Bounds { mac: MAC, address: Ipv4Addr::new(10, 1, 0, 2), subnet, address_ipv6: None };
        let program = program(&bounds);
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

    const OWN: &str = "fd64:7673:0:7::2";
    const PEER: &str = "fd64:7673:0:7::1";

    /// A packet of IPv6 with what follows its header.
    fn packet(source: &str, target: &str, next_header: u8, rest: &[u8]) -> Vec<u8> {
        let [source, target] = [source, target].map(|text| text.parse::<Ipv6Addr>().unwrap().octets());
        let length = (rest.len() as u16).to_be_bytes();
        [&[0x60, 0, 0, 0][..], &length, &[next_header, 255], &source, &target, rest].concat()
    }

    /// The header of a fragment at a position, in units of 8 bytes, and what follows.
    fn fragment(next_header: u8, position: u16, rest: &[u8]) -> Vec<u8> {
        let position = (position << 3 | 1).to_be_bytes();
        [&[next_header, 0][..], &position, &[0, 0, 0, 1], rest].concat()
    }

    #[test]
    fn of_ipv6_pass_packets_with_the_own_address_within_the_network_and_nothing_that_speaks_for_others() {
        let subnet = "10.1.0.0/24".parse().unwrap();
        let without = Bounds { mac: MAC, address: Ipv4Addr::new(10, 1, 0, 2), subnet, address_ipv6: None };
        let program_without = program(&without);
        let program = program(&Bounds { address_ipv6: OWN.parse().ok(), ..without });
        let peer = [0x56, 0x44, 0, 0, 7, 0];
        let to_peer = |packet: &[u8]| frame(peer, MAC, 0x86dd, packet);
        let own = |next_header, rest: &[u8]| to_peer(&packet(OWN, PEER, next_header, rest));
        let body = [0; 20];
        let icmp = |kind: u8| [&[kind][..], &body].concat();
        let passes = [
            own(6, &body),
            own(17, &body),
            own(132, &body),
            own(136, &body),
            own(58, &icmp(128)),
            own(58, &icmp(129)),
            own(58, &icmp(2)),
            own(44, &fragment(17, 0, &body)),
            own(44, &fragment(17, 9, &body)),
            own(44, &fragment(58, 0, &icmp(128))),
            own(44, &fragment(58, 9, &icmp(134))),
            to_peer(&packet(OWN, "fd64:7673:0:7:1234:5678:9abc:def0", 6, &body)),
        ];
        for passes in passes {
            assert_eq!(run(&program, &passes), 0, "{passes:02x?}");
            assert_eq!(run(&program_without, &passes), 2, "without IPv6: {passes:02x?}");
        }
        let mut refused = vec![
            to_peer(&packet("fd64:7673:0:7::3", PEER, 6, &body)),
            to_peer(&packet("fd64:7673:0:8::2", PEER, 6, &body)),
            to_peer(&packet("fe80::5444:ff:fe00:701", PEER, 6, &body)),
            to_peer(&packet("::", PEER, 58, &icmp(128))),
            to_peer(&packet("::1", PEER, 6, &body)),
            frame(peer, peer, 0x86dd, &packet(OWN, PEER, 6, &body)),
            frame([0x56, 0x44, 0, 0, 8, 0], MAC, 0x86dd, &packet(OWN, PEER, 6, &body)),
            frame([0x33, 0x33, 0, 0, 0, 1], MAC, 0x86dd, &packet(OWN, PEER, 6, &body)),
            frame([0xff; 6], MAC, 0x86dd, &packet(OWN, PEER, 6, &body)),
            own(6, &[]).into_iter().take(40).collect(),
            own(44, &fragment(58, 0, &[])),
            own(44, &[]),
            own(58, &[]),
            frame(peer, MAC, 0x86dd, &[&[0x40][..], &packet(OWN, PEER, 6, &body)[1..]].concat()),
        ];
        let elsewhere =
            ["fd64:7673:0:8::1", "fe80::1", "ff02::1", "ff02::2", "::1", "::", "::ffff:10.1.0.1", "2001:db8::1"];
        refused.extend(elsewhere.map(|target| to_peer(&packet(OWN, target, 6, &body))));
        // Who routes, who is where, who listens to groups; whatever the first fragment says.
        for kind in [0, 100, 130, 131, 132, 133, 134, 135, 136, 137, 138, 139, 141, 143, 151, 155, 255] {
            refused.extend([own(58, &icmp(kind)), own(44, &fragment(58, 0, &icmp(kind)))]);
        }
        // Headers that may have others behind them, tunnels, and nothing at all.
        for kind in [0, 4, 41, 43, 47, 50, 51, 59, 60, 135, 139, 140, 253] {
            let hidden = [&[58, 0, 1, 4, 0, 0, 0, 0][..], &icmp(134)].concat();
            refused.extend([own(kind, &hidden), own(44, &fragment(kind, 0, &hidden))]);
            refused.push(own(44, &fragment(kind, 9, &hidden)));
        }
        refused.push(own(44, &fragment(44, 0, &fragment(58, 0, &icmp(134)))));
        for refused in refused {
            assert_eq!(run(&program, &refused), 2, "{refused:02x?}");
        }
    }

    #[test]
    fn no_frame_is_too_short_for_a_load_and_none_that_is_cut_passes_but_behind_what_is_looked_at() {
        let subnet = "10.1.0.0/24".parse().unwrap();
        let address_ipv6 = OWN.parse().ok();
        let program = program(&Bounds { mac: MAC, address: Ipv4Addr::new(10, 1, 0, 2), subnet, address_ipv6 });
        let peer = [0x56, 0x44, 0, 0, 7, 0];
        let ipv4 = [&[0x45][..], &[0; 11], &[10, 1, 0, 2], &[10, 1, 0, 1]].concat();
        let arp = [&[0; 8][..], &MAC, &[10, 1, 0, 2]].concat();
        let ipv6 = |next_header, rest: &[u8]| packet(OWN, PEER, next_header, rest);
        let (udp, echo) = (ipv6(17, &[]), ipv6(58, &[128]));
        let (first, later) = (ipv6(44, &fragment(58, 0, &[128])), ipv6(44, &fragment(58, 9, &[])));
        let kinds = [(0x0800, ipv4), (0x0806, arp), (0x86dd, udp), (0x86dd, echo), (0x86dd, first), (0x86dd, later)];
        for (kind, body) in kinds {
            let whole = frame(peer, MAC, kind, &body);
            assert_eq!(run(&program, &whole), 0, "{whole:02x?}");
            for length in 0..whole.len() {
                assert_eq!(run(&program, &whole[..length]), 2, "{length} of {whole:02x?}");
            }
        }
        assert!(program.len() <= 255, "jumps reach so far");
    }
}
