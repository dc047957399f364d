//! The published names, `dvk_*`, on a port that each thread has of its own.
//!
//! A thread is bound from `dvk_bind` to `dvk_unbind` or its end. A forked child has no binding and may bind anew.
//!
//! Notifications arrive as messages, as they do there: `m_type` is `NOTIFY_MESSAGE | source`, and `m9` says when they
//! were taken and which bits were set. Rings are no part of that interface: one that is opened to such a port is
//! closed.

use std::cell::Cell;
use std::ffi::{c_char, c_int, c_void};
use std::os::unix::fs::FileTypeExt;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use abi::{Endpoint, GrantId, IpcError};
use ipc::{Event, Place, Port, Wait};
use ipc_shm::Access;

use crate::copying::lent;
use crate::delegating::{m3_notify_for, m3_relay};
use crate::failure::{DONE, Failure, Outcome, entry};
use crate::managing::{m3_bind_for, m3_wakeup};
use crate::message::{m3_notify, m3_rcvrqst, m3_reply, m3_send, m3_sendrec};
use crate::migrating::{m3_migration_commit, m3_migration_rollback, m3_migration_start};
use crate::pointer;
use crate::port::{
    self, Handle, broker, connect, connect_when_bound, hand_out, m3_getep, m3_wait4bind, m3_wait4unbind, with,
};
use crate::types::CMessage;

/// Magic endpoints of the published interface; none is in our table.
const ANY: c_int = 0x7ace;
pub const NONE: c_int = 0x6ace;
pub const SELF: c_int = 0x8ace;
const _: () = assert!(abi::limits::ENDPOINTS_PER_DC <= NONE as u32);

const NOTIFY_MESSAGE: c_int = 0x10000;
const _: () = assert!(abi::limits::ENDPOINTS_PER_DC <= NOTIFY_MESSAGE as u32);

/// How long a copy waits for its owners: the published one says so of copies between nodes.
const COPY_LIMIT: Wait = Wait::For(Duration::from_secs(30));

/// The port of a thread, or null; unbound with the thread.
struct Own(Cell<*const Handle>);

impl Drop for Own {
    fn drop(&mut self) {
        let_go(self.0.get());
    }
}

thread_local! {
    static OWN: Own = const { Own(Cell::new(std::ptr::null())) };
}

/// Null for a thread that is not bound.
fn own() -> *const Handle {
    OWN.try_with(|own| own.0.get()).unwrap_or(std::ptr::null())
}

fn replace(by: *const Handle) {
    // A thread at its end keeps none.
    let_go(OWN.try_with(|own| own.0.replace(by)).unwrap_or(by));
}

fn let_go(handle: *const Handle) {
    if !handle.is_null() {
        // SAFETY: the handle was a thread's own. Nobody is there to hear of an error.
        let _ = entry(|| unsafe { port::close(handle) }.map(|()| 0));
    }
}

pub fn on_own<R>(call: impl FnOnce(&mut Port) -> Outcome<R>) -> Outcome<R> {
    // SAFETY: null, or the handle of this thread's port.
    unsafe { with(own(), call) }
}

fn bind(wish: c_int) -> c_int {
    entry(|| {
        let wish = if [NONE, SELF, ANY].contains(&wish) { None } else { Some(pointer::endpoint(wish)?) };
        match on_own(|port| Ok(port.is_bound())) {
            Ok(true) => return Err(Failure::Ipc(IpcError::EndpointInUse)),
            // Inherited by fork, or ended by the broker.
            Ok(false) | Err(Failure::Ipc(IpcError::NotBound)) => replace(std::ptr::null()),
            Err(failure) => return Err(failure),
        }
        Ok(keep(connect(None, wish)?))
    })
}

/// From now on the port is the thread's own; its endpoint.
fn keep(port: Port) -> c_int {
    let endpoint = pointer::number(port.endpoint());
    replace(hand_out(port));
    endpoint
}

#[unsafe(no_mangle)]
pub extern "C" fn dvk_open() -> c_int {
    entry(|| match std::fs::metadata(broker()) {
        Ok(found) if found.file_type().is_socket() => DONE,
        _ => Err(Failure::Ipc(IpcError::NoBroker)),
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn dvk_bind(_dcid: c_int, p_nr: c_int) -> c_int {
    bind(p_nr)
}

#[unsafe(no_mangle)]
pub extern "C" fn dvk_tbind(_dcid: c_int, p_nr: c_int) -> c_int {
    bind(p_nr)
}

/// Of a manager: binds another process of this node.
#[unsafe(no_mangle)]
pub extern "C" fn dvk_lclbind(_dcid: c_int, pid: c_int, p_nr: c_int) -> c_int {
    let wish = if p_nr == NONE || p_nr == ANY { pointer::ANY } else { p_nr };
    // SAFETY: the port is this thread's.
    unsafe { m3_bind_for(own(), pid, wish) }
}

/// Endpoints of other nodes need no binding here: whether one has this name, there. Answers the endpoint.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dvk_rmtbind(_dcid: c_int, name: *const c_char, p_ep: c_int, nodeid: c_int) -> c_int {
    entry(|| {
        let wanted = if p_ep == NONE || p_ep == ANY { None } else { Some(pointer::endpoint(p_ep)?) };
        // SAFETY: the header demands text that ends with a zero byte.
        let (endpoint, node) = on_own(|port| Ok(port.find_place(unsafe { pointer::text(name) }?, Wait::NoWait)?))?;
        if wanted.is_some_and(|wanted| wanted != endpoint) {
            return Err(Failure::Ipc(IpcError::EndpointInUse));
        }
        if c_int::from(node.0) != nodeid {
            return Err(Failure::Ipc(IpcError::BadArgument));
        }
        Ok(pointer::number(endpoint))
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn dvk_unbind(_dcid: c_int, p_ep: c_int) -> c_int {
    entry(|| {
        let endpoint = on_own(|port| Ok(pointer::number(port.endpoint())))?;
        if p_ep != SELF && p_ep != endpoint {
            return Err(Failure::Ipc(IpcError::Denied));
        }
        let was_bound = on_own(|port| Ok(port.is_bound()))?;
        replace(std::ptr::null());
        if was_bound { DONE } else { Err(Failure::Ipc(IpcError::NotBound)) }
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn dvk_port() -> *const Handle {
    own()
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn dvk_send(dst: c_int, message: *const CMessage) -> c_int {
    // SAFETY: the same conditions.
    unsafe { dvk_send_T(dst, message, -1) }
}

#[unsafe(no_mangle)]
#[allow(non_snake_case)]
pub unsafe extern "C" fn dvk_send_T(dst: c_int, message: *const CMessage, timeout_ms: c_int) -> c_int {
    // SAFETY: the header demands a message; the port is this thread's.
    unsafe { m3_send(own(), dst, message, timeout_ms) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn dvk_sendrec(dst: c_int, message: *mut CMessage) -> c_int {
    // SAFETY: the same conditions.
    unsafe { dvk_sendrec_T(dst, message, -1) }
}

#[unsafe(no_mangle)]
#[allow(non_snake_case)]
pub unsafe extern "C" fn dvk_sendrec_T(dst: c_int, message: *mut CMessage, timeout_ms: c_int) -> c_int {
    // SAFETY: the header demands a message; the port is this thread's.
    unsafe { m3_sendrec(own(), dst, message, timeout_ms) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn dvk_receive(src: c_int, message: *mut CMessage) -> c_int {
    // SAFETY: the same conditions.
    unsafe { dvk_receive_T(src, message, -1) }
}

#[unsafe(no_mangle)]
#[allow(non_snake_case)]
pub unsafe extern "C" fn dvk_receive_T(src: c_int, message: *mut CMessage, timeout_ms: c_int) -> c_int {
    entry(|| {
        pointer::check(message)?;
        let source = if src == ANY { None } else { Some(pointer::endpoint(src)?) };
        let received = on_own(|port| receive(port, source, pointer::wait(timeout_ms)))?;
        // SAFETY: the header demands a place for it.
        unsafe { pointer::set(message, received) }?;
        DONE
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn dvk_rcvrqst(message: *mut CMessage) -> c_int {
    // SAFETY: the same conditions.
    unsafe { dvk_rcvrqst_T(message, -1) }
}

#[unsafe(no_mangle)]
#[allow(non_snake_case)]
pub unsafe extern "C" fn dvk_rcvrqst_T(message: *mut CMessage, timeout_ms: c_int) -> c_int {
    // SAFETY: the header demands a place for the message; the port is this thread's.
    unsafe { m3_rcvrqst(own(), message, timeout_ms) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn dvk_reply(dst: c_int, message: *const CMessage) -> c_int {
    // SAFETY: the header demands a message; the port is this thread's.
    unsafe { m3_reply(own(), dst, message) }
}

/// A reply never waits.
#[unsafe(no_mangle)]
#[allow(non_snake_case)]
pub unsafe extern "C" fn dvk_reply_T(dst: c_int, message: *const CMessage, _timeout_ms: c_int) -> c_int {
    // SAFETY: the same conditions.
    unsafe { dvk_reply(dst, message) }
}

#[unsafe(no_mangle)]
pub extern "C" fn dvk_notify(dst: c_int) -> c_int {
    // SAFETY: the port is this thread's.
    unsafe { m3_notify(own(), dst, 1) }
}

/// Of the request of `m_source`, which was taken last from there.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dvk_relay(dst: c_int, message: *const CMessage) -> c_int {
    entry(|| {
        // SAFETY: the header demands a message.
        let source = unsafe { pointer::object(message) }?.source;
        // SAFETY: as above; the port is this thread's.
        Ok(unsafe { m3_relay(own(), source, dst, message) })
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn dvk_src_notify(src: c_int, dst: c_int) -> c_int {
    dvk_ntfy_value(src, dst, 1)
}

#[unsafe(no_mangle)]
pub extern "C" fn dvk_ntfy_value(src: c_int, dst: c_int, value: u64) -> c_int {
    if src == SELF {
        // SAFETY: the port is this thread's.
        return unsafe { m3_notify(own(), dst, value) };
    }
    // SAFETY: the port is this thread's.
    unsafe { m3_notify_for(own(), src, dst, value) }
}

/// The published calls have no limit.
const NO_LIMIT: c_int = -1;

#[unsafe(no_mangle)]
pub extern "C" fn dvk_migr_start(_dcid: c_int, ep: c_int) -> c_int {
    // SAFETY: the port is this thread's.
    unsafe { m3_migration_start(own(), ep, NO_LIMIT) }
}

#[unsafe(no_mangle)]
pub extern "C" fn dvk_migr_commit(pid: c_int, _dcid: c_int, ep: c_int, newnode: c_int) -> c_int {
    // SAFETY: the port is this thread's.
    unsafe { m3_migration_commit(own(), ep, newnode, pid, NO_LIMIT) }
}

#[unsafe(no_mangle)]
pub extern "C" fn dvk_migr_rollback(_dcid: c_int, ep: c_int) -> c_int {
    // SAFETY: the port is this thread's.
    unsafe { m3_migration_rollback(own(), ep) }
}

#[unsafe(no_mangle)]
pub extern "C" fn dvk_wakeup(_dcid: c_int, dst: c_int) -> c_int {
    // SAFETY: the port is this thread's.
    unsafe { m3_wakeup(own(), dst) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn dvk_vcopy(
    src: c_int,
    saddr: *const c_void,
    dst: c_int,
    daddr: *mut c_void,
    bytes: c_int,
) -> c_int {
    entry(|| {
        let bytes = usize::try_from(bytes).map_err(|_| Failure::Ipc(IpcError::BadArgument))?;
        on_own(|port| {
            let own = port.endpoint();
            let party = |number: c_int| if number == SELF { Ok(own) } else { pointer::endpoint(number) };
            let (from, to) = (party(src)?, party(dst)?);
            let granted = |owner: Endpoint, address: *const c_void| Place {
                owner,
                grant: GrantId::from_number(address.addr() as u64),
                offset: 0,
            };
            match (from == own, to == own) {
                _ if from == to => Err(Failure::Ipc(IpcError::BadEndpoint)),
                (false, true) => {
                    // SAFETY: the header demands writable memory of our own for the time of the call.
                    let memory = unsafe { lent(daddr, bytes, Access::ReadWrite) }?;
                    Ok(port.copy_into_memory(granted(from, saddr), &memory, COPY_LIMIT)?)
                }
                (true, false) => {
                    // SAFETY: the header demands readable memory of our own for the time of the call.
                    let memory = unsafe { lent(saddr.cast_mut(), bytes, Access::Read) }?;
                    Ok(port.copy_out_of_memory(&memory, granted(to, daddr), COPY_LIMIT)?)
                }
                _ => Ok(port.vcopy(granted(from, saddr), granted(to, daddr), bytes, COPY_LIMIT)?),
            }
        })?;
        DONE
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn dvk_getep(pid: c_int) -> c_int {
    // SAFETY: the port is this thread's.
    unsafe { m3_getep(own(), pid) }
}

#[unsafe(no_mangle)]
pub extern "C" fn dvk_wait4bind() -> c_int {
    dvk_wait4bindep_T(SELF, -1)
}

#[unsafe(no_mangle)]
#[allow(non_snake_case)]
pub extern "C" fn dvk_wait4bind_T(timeout_ms: c_int) -> c_int {
    dvk_wait4bindep_T(SELF, timeout_ms)
}

#[unsafe(no_mangle)]
pub extern "C" fn dvk_wait4bindep(endpoint: c_int) -> c_int {
    dvk_wait4bindep_T(endpoint, -1)
}

/// Answers the endpoint.
#[unsafe(no_mangle)]
#[allow(non_snake_case)]
pub extern "C" fn dvk_wait4bindep_T(endpoint: c_int, timeout_ms: c_int) -> c_int {
    if endpoint == SELF {
        return entry(|| wait_for_own(pointer::wait(timeout_ms)));
    }
    // SAFETY: the port is this thread's.
    match unsafe { m3_wait4bind(own(), endpoint, timeout_ms) } {
        0 => endpoint,
        error => error,
    }
}

/// A thread that is not bound waits until a manager has bound its process, and has that endpoint then.
fn wait_for_own(wait: Wait) -> Outcome<c_int> {
    match on_own(|port| Ok((port.is_bound(), port.endpoint()))) {
        Ok((true, endpoint)) => Ok(pointer::number(endpoint)),
        Ok((false, _)) | Err(Failure::Ipc(IpcError::NotBound)) => {
            replace(std::ptr::null());
            Ok(keep(connect_when_bound(None, wait)?))
        }
        Err(failure) => Err(failure),
    }
}

#[unsafe(no_mangle)]
pub extern "C" fn dvk_wait4unbind(endpoint: c_int) -> c_int {
    dvk_wait4unbind_T(endpoint, -1)
}

#[unsafe(no_mangle)]
#[allow(non_snake_case)]
pub extern "C" fn dvk_wait4unbind_T(endpoint: c_int, timeout_ms: c_int) -> c_int {
    // SAFETY: the port is this thread's.
    unsafe { m3_wait4unbind(own(), endpoint, timeout_ms) }
}

/// The next message or notification.
fn receive(port: &mut Port, source: Option<Endpoint>, wait: Wait) -> Outcome<CMessage> {
    let begun = Instant::now();
    loop {
        let left = match wait {
            Wait::For(limit) => Wait::For(limit.saturating_sub(begun.elapsed())),
            other => other,
        };
        let event = match source {
            None => port.wait_event(left)?,
            Some(source) => port.wait_event_from(source, left)?,
        };
        match event {
            Event::Message(message) => return Ok(CMessage::of(&message)),
            Event::Notified { from, mask } => return Ok(notification(from, mask)),
            Event::Woken => return Err(Failure::Ipc(IpcError::WokenUp)),
            Event::RingOpened(_) | Event::RingReady(_) | Event::RingClosed(..) => {}
        }
    }
}

/// `m9`: two integers, the time, the bits.
fn notification(from: Endpoint, mask: u64) -> CMessage {
    let source = pointer::number(from);
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let mut payload = [0; 56];
    let fields = [0, now.as_secs(), u64::from(now.subsec_nanos()), mask];
    for (place, field) in payload.chunks_exact_mut(8).zip(fields) {
        place.copy_from_slice(&field.to_ne_bytes());
    }
    CMessage { source, kind: NOTIFY_MESSAGE | source, payload }
}
