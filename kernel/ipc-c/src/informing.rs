//! What there is in the container: `m3_dc_info` and its like.

use std::ffi::c_int;

use abi::{Endpoint, IpcError};
use ipc::Port;
use ipc::info::{ChannelInfo, ChannelKind, Cursor, DcInfo, EndCounts, EndpointInfo, Page, ProxyInfo, Traffic};

use crate::failure::{DONE, Failure, Outcome, entry};
use crate::pointer;
use crate::port::{Handle, with};
use crate::types::NO_SOURCE;

/// `m3_traffic`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CTraffic {
    pub messages: u64,
    pub notifications: u64,
    pub entries: u64,
    pub copies: u64,
}

/// `m3_info_dc`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CDc {
    pub dc: u32,
    pub node: u32,
    pub endpoints_here: u32,
    pub endpoints_elsewhere: u32,
    pub nodes_elsewhere: u32,
    pub channels: u32,
    pub waiters: u32,
    pub first_program: u32,
    pub programs: u32,
    pub endpoints_max: u32,
    pub channels_max: u32,
    pub reserved: [u32; 5],
}

/// `m3_info_endpoint`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CEndpoint {
    pub endpoint: c_int,
    pub node: c_int,
    pub pid: c_int,
    pub state: c_int,
    pub waits_for: c_int,
    pub channels: u32,
    pub epoch: u64,
    pub sent_near: CTraffic,
    pub sent_far: CTraffic,
    pub reserved: [u64; 2],
}

/// `m3_end`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CEnd {
    pub endpoint: c_int,
    pub messages: u32,
    pub last: c_int,
    pub taken: u32,
    pub awaits_answer: c_int,
    pub notifications: u32,
    pub entries: u32,
    pub entries_taken: u32,
}

/// `m3_info_channel`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CChannel {
    pub channel: u64,
    pub lane: u32,
    pub kind: c_int,
    pub ring_entries: u32,
    pub arena_bytes: u32,
    pub node: c_int,
    pub pair: c_int,
    pub is_counted: c_int,
    pub reserved: [u32; 3],
    pub left: CEnd,
    pub right: CEnd,
}

/// `m3_info_proxy`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CProxy {
    pub node: c_int,
    pub pair: c_int,
    pub state: c_int,
    pub endpoints: u32,
    pub channels: u32,
    pub reserved: [u32; 3],
}

const _: () = assert!(size_of::<CDc>() == 64 && size_of::<CEndpoint>() == 112);
const _: () = assert!(size_of::<CEnd>() == 32 && size_of::<CChannel>() == 112 && size_of::<CProxy>() == 32);

impl From<Traffic> for CTraffic {
    fn from(of: Traffic) -> CTraffic {
        let Traffic { messages, notifications, entries, copies } = of;
        CTraffic { messages, notifications, entries, copies }
    }
}

impl From<DcInfo> for CDc {
    fn from(of: DcInfo) -> CDc {
        CDc {
            dc: of.dc.0,
            node: u32::from(of.node.0),
            endpoints_here: of.endpoints_here,
            endpoints_elsewhere: of.endpoints_elsewhere,
            nodes_elsewhere: of.nodes_elsewhere,
            channels: of.channels,
            waiters: of.waiters,
            first_program: of.programs.start,
            programs: of.programs.end.saturating_sub(of.programs.start),
            endpoints_max: of.endpoints_max,
            channels_max: of.channels_max,
            reserved: [0; 5],
        }
    }
}

impl From<EndpointInfo> for CEndpoint {
    fn from(of: EndpointInfo) -> CEndpoint {
        CEndpoint {
            endpoint: pointer::number(of.endpoint),
            node: c_int::from(of.node.0),
            pid: of.pid.unwrap_or(0),
            state: of.state as c_int,
            waits_for: of.waits_for.map_or(NO_SOURCE, pointer::number),
            channels: of.channels,
            epoch: of.epoch.0,
            sent_near: of.near.into(),
            sent_far: of.far.into(),
            reserved: [0; 2],
        }
    }
}

impl CEnd {
    fn of(endpoint: Endpoint, counts: Option<EndCounts>) -> CEnd {
        let endpoint = pointer::number(endpoint);
        match counts {
            None => CEnd {
                endpoint,
                messages: 0,
                last: 0,
                taken: 0,
                awaits_answer: 0,
                notifications: 0,
                entries: 0,
                entries_taken: 0,
            },
            Some(counts) => CEnd {
                endpoint,
                messages: counts.messages,
                last: counts.last as c_int,
                taken: counts.taken,
                awaits_answer: c_int::from(counts.awaits_answer),
                notifications: counts.notifications,
                entries: counts.entries,
                entries_taken: counts.entries_taken,
            },
        }
    }
}

impl From<ChannelInfo> for CChannel {
    fn from(of: ChannelInfo) -> CChannel {
        let [left, right] = of.counts.map_or([None, None], |counts| counts.map(Some));
        let kind = match of.kind() {
            ChannelKind::Messages => 0,
            ChannelKind::Ring => 1,
            ChannelKind::Delegation => 2,
            ChannelKind::Copies => 3,
        };
        CChannel {
            channel: of.channel.0,
            lane: u32::from(of.lane.0),
            kind,
            ring_entries: of.ring.map_or(0, |ring| ring.entries),
            arena_bytes: of.ring.map_or(0, |ring| ring.arena_bytes),
            node: of.via.map_or(0, |(node, _)| c_int::from(node.0)),
            pair: of.via.map_or(0, |(_, pair)| c_int::from(pair.number())),
            is_counted: c_int::from(of.counts.is_some()),
            reserved: [0; 3],
            left: CEnd::of(of.left, left),
            right: CEnd::of(of.right, right),
        }
    }
}

impl From<ProxyInfo> for CProxy {
    fn from(of: ProxyInfo) -> CProxy {
        CProxy {
            node: c_int::from(of.node.0),
            pair: c_int::from(of.pair.number()),
            state: of.state as c_int,
            endpoints: of.endpoints,
            channels: of.channels,
            reserved: [0; 3],
        }
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn m3_dc_info(port: *const Handle, info: *mut CDc) -> c_int {
    entry(|| {
        pointer::check(info)?;
        // SAFETY: the header demands a port.
        let found = unsafe { with(port, |port| Ok(port.dc_info()?)) }?;
        // SAFETY: the header demands a place for it.
        unsafe { pointer::set(info, found.into()) }?;
        DONE
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn m3_endpoint_info(port: *const Handle, endpoint: c_int, info: *mut CEndpoint) -> c_int {
    entry(|| {
        pointer::check(info)?;
        let endpoint = pointer::endpoint(endpoint)?;
        // SAFETY: the header demands a port.
        let found = unsafe { with(port, |port| Ok(port.endpoint_info(endpoint)?)) }?;
        // SAFETY: the header demands a place for it.
        unsafe { pointer::set(info, found.into()) }?;
        DONE
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn m3_endpoints_info(
    port: *const Handle,
    cursor: *mut u64,
    list: *mut CEndpoint,
    max: usize,
) -> c_int {
    // SAFETY: the header demands a port, a cursor and a list of `max`.
    unsafe { fill(port, cursor, list, max, |port, from| port.endpoints_info(from, max)) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn m3_channels_info(
    port: *const Handle,
    endpoint: c_int,
    cursor: *mut u64,
    list: *mut CChannel,
    max: usize,
) -> c_int {
    let of = match pointer::endpoint_or_any(endpoint) {
        Ok(of) => of,
        Err(failure) => return entry(|| Err(failure)),
    };
    // SAFETY: the header demands a port, a cursor and a list of `max`.
    unsafe { fill(port, cursor, list, max, |port, from| port.channels_info(of, from, max)) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn m3_proxies_info(
    port: *const Handle,
    cursor: *mut u64,
    list: *mut CProxy,
    max: usize,
) -> c_int {
    // SAFETY: the header demands a port, a cursor and a list of `max`.
    unsafe { fill(port, cursor, list, max, |port, from| port.proxies_info(from, max)) }
}

/// The next part of a list; how many there are in it.
///
/// # Safety
/// `port` is a port or null, `cursor` and `list` are null or point to a number and to memory for `max` records.
unsafe fn fill<T, C: From<T>>(
    port: *const Handle,
    cursor: *mut u64,
    list: *mut C,
    max: usize,
    ask: impl FnOnce(&mut Port, Cursor) -> Result<Page<T>, IpcError>,
) -> c_int {
    entry(|| {
        pointer::check(list)?;
        // SAFETY: as our caller promised.
        let from = Cursor(*unsafe { pointer::object(cursor) }?);
        // SAFETY: as our caller promised.
        let page = unsafe { with(port, |port| Ok(ask(port, from)?)) }?;
        let mut count = 0;
        for record in page.records.into_iter().take(max) {
            // SAFETY: 1. `count` is below `max`. 2. The list is not null and has room for so many, as our caller
            // promised.
            unsafe { list.add(count).write(record.into()) };
            count += 1;
        }
        // SAFETY: as our caller promised.
        unsafe { pointer::set(cursor, page.next.map_or(0, |next| next.0)) }?;
        counted(count)
    })
}

fn counted(count: usize) -> Outcome<c_int> {
    c_int::try_from(count).map_err(|_| Failure::Ipc(IpcError::TableFull))
}
