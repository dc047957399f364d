//! The way out of a container: everything that its programs send by TCP or UDP over IPv4 to addresses outside of its
//! own network is delivered to two sockets inside, which a gate serves (`gate/gate-port`).
//!
//! Routes make such addresses local (a table of its own, asked after all others, for these two protocols alone:
//! anything else has no route), and a program of the kernel's says who hears them (`sys::sk_lookup`). No packet leaves
//! the container's network namespace, so the filter at its cable stays what it is.

use std::io;
use std::net::{Ipv4Addr, TcpListener, UdpSocket};
use std::os::fd::{AsFd, OwnedFd};

use crate::links::{InterfaceError, Links};
use crate::netns::{self, NetnsError};
use crate::overlay::Subnet;

/// Of the routes.
const TABLE: u32 = 100;
/// After those of the kernel (32,766 and 32,767).
const PRIORITY: u32 = 40_000;

#[derive(Debug, thiserror::Error)]
pub enum EgressError {
    #[error("could not {step} of the way out")]
    Routes {
        step: &'static str,
        #[source]
        cause: InterfaceError,
    },
    #[error(transparent)]
    Namespace(#[from] NetnsError),
    #[error("could not {step} of the way out")]
    Sockets {
        step: &'static str,
        #[source]
        cause: io::Error,
    },
}

/// On which programs are heard that want out.
#[derive(Debug)]
pub struct Ears {
    pub stream: OwnedFd,
    pub datagrams: OwnedFd,
}

/// Makes the routes; may be repeated. `address` is that of the container on this node, and there already.
pub fn ensure_routes(container: impl AsFd, address: Ipv4Addr) -> Result<(), EgressError> {
    let fail = |step| move |cause| EgressError::Routes { step, cause };
    let mut inside = Links::within(container).map_err(fail("reach the routes"))?;
    inside.ensure_all_local(TABLE, address).map_err(fail("make the route"))?;
    for protocol in [libc::IPPROTO_TCP, libc::IPPROTO_UDP] {
        inside.ensure_rule(protocol as u8, TABLE, PRIORITY).map_err(fail("make a rule"))?;
    }
    Ok(())
}

/// Nothing is routed there any more; may be repeated.
pub fn remove_routes(container: impl AsFd) -> Result<(), EgressError> {
    let fail = |step| move |cause| EgressError::Routes { step, cause };
    let mut inside = Links::within(container).map_err(fail("reach the routes"))?;
    for protocol in [libc::IPPROTO_TCP, libc::IPPROTO_UDP] {
        inside.remove_rule(protocol as u8, TABLE, PRIORITY).map_err(fail("remove a rule"))?;
    }
    Ok(())
}

/// Two sockets in the container's network namespace.
pub fn listen(container: impl AsFd) -> Result<Ears, EgressError> {
    let made = netns::within(container, || -> io::Result<Ears> {
        let stream = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let datagrams = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?;
        sys::sk_lookup::stand_for_others(&stream)?;
        sys::sk_lookup::ask_for_destination(&datagrams)?;
        Ok(Ears { stream: stream.into(), datagrams: datagrams.into() })
    })?;
    made.map_err(|cause| EgressError::Sockets { step: "make the sockets", cause })
}

/// Until the answer is closed, they hear what is sent outside of the container's network.
pub fn attach(container: impl AsFd, subnet: Subnet, ears: &Ears) -> Result<OwnedFd, EgressError> {
    let own = (subnet.base(), Ipv4Addr::from(subnet.mask()));
    sys::sk_lookup::attach(container.as_fd(), own, &ears.stream, &ears.datagrams)
        .map_err(|cause| EgressError::Sockets { step: "attach the sockets (it takes Linux 5.9)", cause })
}
