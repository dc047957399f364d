//! What managers do to other endpoints: binding, wake-ups and privileges.

use std::ffi::c_int;

use abi::limits::PEER_RANGES_MAX;
use abi::{Calls, IpcError, Peers, Privileges};

use crate::failure::{DONE, Failure, Outcome, entry};
use crate::pointer;
use crate::port::{Handle, with};

const BAD: Failure = Failure::Ipc(IpcError::BadArgument);

/// `m3_range`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct CRange {
    pub first: u16,
    pub last: u16,
}

/// `m3_peers`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CPeers {
    pub count: u32,
    pub ranges: [CRange; PEER_RANGES_MAX],
}

impl CPeers {
    fn to_peers(self) -> Outcome<Peers> {
        let count = usize::try_from(self.count).map_err(|_| BAD)?;
        let ranges = self.ranges.get(..count).ok_or(BAD)?;
        Ok(Peers::of(ranges.iter().map(|range| (range.first, range.last)))?)
    }

    fn of(peers: &Peers) -> CPeers {
        let mut made = CPeers { count: 0, ranges: [CRange::default(); PEER_RANGES_MAX] };
        for (place, (first, last)) in made.ranges.iter_mut().zip(peers.ranges()) {
            *place = CRange { first: *first, last: *last };
            made.count += 1;
        }
        made
    }
}

/// `m3_privileges`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CPrivileges {
    pub calls: u32,
    pub to: CPeers,
    pub from: CPeers,
    pub rings: CPeers,
}

impl CPrivileges {
    fn to_privileges(self) -> Outcome<Privileges> {
        let calls = u16::try_from(self.calls).ok().and_then(Calls::of).ok_or(BAD)?;
        let (to, from, rings) = (self.to.to_peers()?, self.from.to_peers()?, self.rings.to_peers()?);
        Ok(Privileges { calls, to, from, rings })
    }

    fn of(privileges: &Privileges) -> CPrivileges {
        let Privileges { calls, to, from, rings } = privileges;
        CPrivileges {
            calls: u32::from(calls.bits()),
            to: CPeers::of(to),
            from: CPeers::of(from),
            rings: CPeers::of(rings),
        }
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn m3_bind_for(port: *const Handle, pid: c_int, endpoint: c_int) -> c_int {
    entry(|| {
        let endpoint = pointer::endpoint_or_any(endpoint)?;
        // SAFETY: the header demands a port.
        unsafe { with(port, |port| Ok(pointer::number(port.bind_for(pid, endpoint)?))) }
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn m3_wakeup(port: *const Handle, endpoint: c_int) -> c_int {
    entry(|| {
        let endpoint = pointer::endpoint(endpoint)?;
        // SAFETY: the header demands a port.
        unsafe { with(port, |port| Ok(port.wakeup(endpoint)?)) }?;
        DONE
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn m3_get_privileges(
    port: *const Handle,
    endpoint: c_int,
    privileges: *mut CPrivileges,
) -> c_int {
    entry(|| {
        pointer::check(privileges)?;
        let endpoint = pointer::endpoint(endpoint)?;
        // SAFETY: the header demands a port.
        let found = unsafe { with(port, |port| Ok(port.privileges(endpoint)?)) }?;
        // SAFETY: the header demands a place for them.
        unsafe { pointer::set(privileges, CPrivileges::of(&found)) }?;
        DONE
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn m3_set_privileges(
    port: *const Handle,
    endpoint: c_int,
    privileges: *const CPrivileges,
) -> c_int {
    entry(|| {
        // SAFETY: the header demands privileges.
        let privileges = unsafe { pointer::object(privileges) }?.to_privileges()?;
        let endpoint = pointer::endpoint(endpoint)?;
        // SAFETY: the header demands a port.
        unsafe { with(port, |port| Ok(port.set_privileges(endpoint, &privileges)?)) }?;
        DONE
    })
}

const _: () = assert!(size_of::<CPrivileges>() == 784);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn privileges_survive_the_way_through_c() {
        for privileges in [Privileges::program(), Privileges::server()] {
            assert_eq!(CPrivileges::of(&privileges).to_privileges(), Ok(privileges));
        }
    }

    #[test]
    fn privileges_that_mean_nothing_are_refused() {
        let good = CPrivileges::of(&Privileges::program());
        let too_many = CPeers { count: 65, ..good.to };
        let mut beyond = good.to;
        beyond.ranges[0].last = u16::MAX;
        for bad in [CPrivileges { calls: 1 << 16, ..good }, CPrivileges { to: too_many, ..good }] {
            assert_eq!(bad.to_privileges(), Err(BAD));
        }
        assert_eq!(CPrivileges { from: beyond, ..good }.to_privileges(), Err(BAD));
    }
}
