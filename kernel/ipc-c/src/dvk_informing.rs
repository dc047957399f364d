//! `dvk_getprocinfo` and `dvk_getdcinfo`: the published structures, with the members for which there is something to
//! say.

use std::ffi::{c_int, c_ulong};

use abi::limits::WELL_KNOWN_ENDPOINTS;
use ipc::info::{DcInfo, EndpointInfo, EndpointState};
use ipc::{DcId, NodeId};

use crate::dvk::{NONE, SELF, on_own};
use crate::failure::{DONE, entry};
use crate::pointer;

/// Bits of `p_rts_flags`, by their published numbers.
const RECEIVING: c_ulong = 1 << 3;
const MIGRATE: c_ulong = 1 << 11;
const REMOTE: c_ulong = 1 << 12;

/// `proc_usr_t`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CProcUsr {
    pub p_nr: c_int,
    pub p_endpoint: c_int,
    pub p_dcid: c_int,
    pub p_vpid: c_int,
    pub p_rts_flags: c_ulong,
    pub p_nodeid: c_int,
    pub p_getfrom: c_int,
    pub p_lclsent: c_ulong,
    pub p_rmtsent: c_ulong,
    pub p_lclcopy: c_ulong,
    pub p_rmtcopy: c_ulong,
}

/// `dc_usr_t`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CDcUsr {
    pub dc_dcid: c_int,
    pub dc_flags: c_int,
    pub dc_nr_procs: c_int,
    pub dc_nr_tasks: c_int,
    pub dc_nr_sysprocs: c_int,
    pub dc_nr_nodes: c_int,
}

const _: () = assert!(size_of::<CProcUsr>() == 64 && size_of::<CDcUsr>() == 24);

impl CProcUsr {
    fn of(found: &EndpointInfo, dc: DcId, here: NodeId) -> CProcUsr {
        let number = pointer::number(found.endpoint);
        let flag = |is_set: bool, flag: c_ulong| if is_set { flag } else { 0 };
        CProcUsr {
            p_nr: number,
            p_endpoint: number,
            p_dcid: c_int::try_from(dc.0).unwrap_or(c_int::MAX),
            p_vpid: found.pid.unwrap_or(0),
            p_rts_flags: flag(found.waits_for.is_some(), RECEIVING)
                | flag(found.state == EndpointState::Held, MIGRATE)
                | flag(found.node != here, REMOTE),
            p_nodeid: c_int::from(found.node.0),
            p_getfrom: found.waits_for.map_or(NONE, pointer::number),
            p_lclsent: found.near.messages,
            p_rmtsent: found.far.messages,
            p_lclcopy: found.near.copies,
            p_rmtcopy: found.far.copies,
        }
    }
}

impl CDcUsr {
    fn of(found: &DcInfo) -> CDcUsr {
        let number = |count: u32| c_int::try_from(count).unwrap_or(c_int::MAX);
        CDcUsr {
            dc_dcid: number(found.dc.0),
            dc_flags: 0,
            dc_nr_procs: number(found.endpoints_max.saturating_sub(WELL_KNOWN_ENDPOINTS)),
            dc_nr_tasks: 0,
            dc_nr_sysprocs: number(WELL_KNOWN_ENDPOINTS),
            dc_nr_nodes: number(found.nodes_elsewhere.saturating_add(1)),
        }
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn dvk_getprocinfo(_dcid: c_int, p_nr: c_int, info: *mut CProcUsr) -> c_int {
    entry(|| {
        pointer::check(info)?;
        let made = on_own(|port| {
            let endpoint = if p_nr == SELF { port.endpoint() } else { pointer::endpoint(p_nr)? };
            let dc = port.dc_info()?;
            Ok(CProcUsr::of(&port.endpoint_info(endpoint)?, dc.dc, dc.node))
        })?;
        // SAFETY: the header demands a place for it.
        unsafe { pointer::set(info, made) }?;
        DONE
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn dvk_getdcinfo(_dcid: c_int, info: *mut CDcUsr) -> c_int {
    entry(|| {
        pointer::check(info)?;
        let made = on_own(|port| Ok(CDcUsr::of(&port.dc_info()?)))?;
        // SAFETY: the header demands a place for it.
        unsafe { pointer::set(info, made) }?;
        DONE
    })
}
