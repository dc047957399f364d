//! Waiting for anything: `m3_wait`.

use std::ffi::c_int;

use abi::{IpcError, errno};
use ipc::{Event, RingServer};

use crate::cell::Cell;
use crate::failure::{DONE, Outcome, entry};
use crate::pointer;
use crate::port::{Handle, with};
use crate::ring_server;
use crate::types::{CMessage, NO_SOURCE};

/// `m3_event`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CEvent {
    pub kind: c_int,
    pub source: c_int,
    pub error: c_int,
    pub reserved: c_int,
    pub mask: u64,
    pub ring_id: u64,
    pub ring: *const Cell<RingServer>,
    pub spare: [u64; 3],
    pub message: CMessage,
}

const MESSAGE: c_int = 1;
const NOTIFIED: c_int = 2;
const RING_OPENED: c_int = 3;
const RING_READY: c_int = 4;
const RING_CLOSED: c_int = 5;
const WOKEN: c_int = 6;

impl CEvent {
    fn new(kind: c_int) -> CEvent {
        CEvent {
            kind,
            source: NO_SOURCE,
            error: 0,
            reserved: 0,
            mask: 0,
            ring_id: 0,
            ring: std::ptr::null(),
            spare: [0; 3],
            message: CMessage { source: NO_SOURCE, kind: 0, payload: [0; 56] },
        }
    }

    fn of(event: Event) -> CEvent {
        match event {
            Event::Message(message) => {
                let message = CMessage::of(&message);
                CEvent { source: message.source, message, ..CEvent::new(MESSAGE) }
            }
            Event::Notified { from, mask } => CEvent { source: pointer::number(from), mask, ..CEvent::new(NOTIFIED) },
            Event::RingOpened(server) => {
                let (source, ring_id) = (pointer::number(server.client()), server.id().0);
                CEvent { source, ring_id, ring: ring_server::hand_out(server), ..CEvent::new(RING_OPENED) }
            }
            Event::RingReady(id) => CEvent { ring_id: id.0, ..CEvent::new(RING_READY) },
            Event::RingClosed(id, error) => {
                CEvent { ring_id: id.0, error: errno::published(error), ..CEvent::new(RING_CLOSED) }
            }
            Event::Woken => CEvent::new(WOKEN),
        }
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn m3_wait(port: *const Handle, event: *mut CEvent, timeout_ms: c_int) -> c_int {
    // SAFETY: the header demands a port and a place for the event.
    unsafe { waiting(port, event, |port| port.wait_event(pointer::wait(timeout_ms))) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn m3_wait_from(
    port: *const Handle,
    from: c_int,
    event: *mut CEvent,
    timeout_ms: c_int,
) -> c_int {
    let wait = pointer::wait(timeout_ms);
    match pointer::endpoint(from) {
        // SAFETY: the header demands a port and a place for the event.
        Ok(from) => unsafe { waiting(port, event, |port| port.wait_event_from(from, wait)) },
        Err(failure) => failure.number(),
    }
}

/// Null is found before anything is taken.
///
/// # Safety
/// `port` as for [`with`]; `place` is null or has room for an event.
unsafe fn waiting(
    port: *const Handle,
    place: *mut CEvent,
    call: impl FnOnce(&mut ipc::Port) -> Result<Event, IpcError>,
) -> c_int {
    entry(|| {
        pointer::check(place)?;
        // SAFETY: as our caller promised.
        let event: Outcome<Event> = unsafe { with(port, |port| Ok(call(port)?)) };
        // SAFETY: as our caller promised.
        unsafe { pointer::set(place, CEvent::of(event?)) }?;
        DONE
    })
}

const _: () = assert!(size_of::<CEvent>() == 128);
