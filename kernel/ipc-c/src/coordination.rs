//! `m3_cs` and `m3_group`: what programs of a container agree on, by the coordination server of their node.
//!
//! The calls are those of `libvos::CsClient`, which several threads may make at a time. What the server refuses is an
//! errno, and answered as an error of the kernel is.

use std::ffi::{CString, c_char, c_int, c_void};
use std::time::Duration;

use abi::IpcError;
use libvos::{ConnectError, CsClient, GroupEvent, GroupMembership, ValueChange, ValueEvent};
use vos_api::cs::{Level, Race};

use crate::cell::{Cell, Pool};
use crate::failure::{DONE, Failure, Outcome, entry};
use crate::pointer;
use crate::port;

type Client = Cell<CsClient>;
type Group = Cell<GroupMembership>;

static CLIENTS: Pool<CsClient> = Pool::new();
static GROUPS: Pool<GroupMembership> = Pool::new();

const NOT_BOUND: Failure = Failure::Ipc(IpcError::NotBound);
const NO_ARGUMENT: Failure = Failure::Ipc(IpcError::BadArgument);
/// One wait of a call that waits for ever.
const FOR_EVER: Duration = Duration::from_secs(600);
const TIMED_OUT: rustix::io::Errno = rustix::io::Errno::TIMEDOUT;

/// `m3_cs_holder`.
#[repr(C)]
pub struct CHolder {
    token: u64,
    node: c_int,
    value_bytes: u32,
    reserved: [u64; 2],
}

/// `m3_cs_change`.
#[repr(C)]
pub struct CChange {
    kind: c_int,
    value_bytes: u32,
    revision: u64,
    key: *const c_char,
    value: *const c_void,
    reserved: [u64; 2],
}

/// `m3_cs_node`.
#[repr(C)]
pub struct CNode {
    node: c_int,
    answered: c_int,
    cpus: u32,
    reserved: u32,
    load: u64,
    memory_bytes: u64,
    available_bytes: u64,
    round_trip_us: u64,
    links: u64,
    age_ms: u64,
}

/// `m3_group_member`.
#[repr(C)]
pub struct CMember {
    id: u64,
    name: *const c_char,
    node: c_int,
    reserved: c_int,
}

/// `m3_group_event`.
#[repr(C)]
pub struct CEvent {
    kind: c_int,
    level: c_int,
    index: u64,
    sender: u64,
    number: u64,
    data: *const c_void,
    bytes: usize,
    members: *const CMember,
    member_count: usize,
    reserved: [u64; 2],
}

type OnChange = Option<unsafe extern "C" fn(*mut c_void, *const CChange)>;
type OnEvent = Option<unsafe extern "C" fn(*mut c_void, *const CEvent)>;

fn refused(errno: rustix::io::Errno) -> Failure {
    Failure::Ipc(IpcError::Os(errno.raw_os_error()))
}

/// Runs one call on the session of a handle.
///
/// # Safety
/// `client` is null or came from `m3_cs_open`.
unsafe fn with<R>(client: *const Client, call: impl FnOnce(&CsClient) -> Outcome<R>) -> Outcome<R> {
    // SAFETY: as our caller promised; cells live for ever.
    unsafe { client.as_ref() }.ok_or(NOT_BOUND)?.shared(call)
}

/// Runs one call on the membership of a handle.
///
/// # Safety
/// `group` is null or came from `m3_group_join`.
unsafe fn within<R>(group: *const Group, call: impl FnOnce(&GroupMembership) -> Outcome<R>) -> Outcome<R> {
    // SAFETY: as our caller promised; cells live for ever.
    unsafe { group.as_ref() }.ok_or(NOT_BOUND)?.shared(call)
}

/// Asks for as long as the caller waits.
fn waiting<T>(
    timeout_ms: c_int,
    mut ask: impl FnMut(Duration) -> Result<T, rustix::io::Errno>,
) -> Result<T, rustix::io::Errno> {
    match u64::try_from(timeout_ms) {
        Ok(limit) => ask(Duration::from_millis(limit)),
        Err(_) => loop {
            match ask(FOR_EVER) {
                Err(TIMED_OUT) => (),
                answer => return answer,
            }
        },
    }
}

fn race(number: c_int) -> Outcome<Race> {
    match number {
        1 => Ok(Race::Lock),
        2 => Ok(Race::Election),
        _ => Err(NO_ARGUMENT),
    }
}

/// Copies as much as there is room for; answers how much there is.
///
/// # Safety
/// `place` is null or memory for `room` bytes that nobody else uses during the call.
unsafe fn give(value: &[u8], place: *mut c_void, room: usize) -> Outcome<c_int> {
    let count = value.len().min(room);
    if count > 0 {
        pointer::check(place)?;
        // SAFETY: 1. `place` is not null and has room for `count` bytes, as our caller promised.
        // 2. `value` is ours, so the two do not overlap.
        unsafe { std::ptr::copy_nonoverlapping(value.as_ptr(), place.cast(), count) };
    }
    c_int::try_from(value.len()).map_err(|_| NO_ARGUMENT)
}

fn c_text(bytes: &[u8]) -> Outcome<CString> {
    CString::new(bytes).map_err(|_| NO_ARGUMENT)
}

// ---- sessions

#[unsafe(no_mangle)]
pub unsafe extern "C" fn m3_cs_open(path: *const c_char, client: *mut *const Client) -> c_int {
    entry(|| {
        // SAFETY: the header demands a place for the handle, and a text that ends.
        let path = unsafe {
            pointer::vacate(client)?;
            pointer::path(path)
        };
        let made = CsClient::connect(&path.map_or_else(port::broker, |path| path.to_path_buf()));
        let made = made.map_err(|error| match error {
            ConnectError::Broker(cause) => Failure::Ipc(cause),
            ConnectError::NoServer => Failure::Ipc(IpcError::NoSuchEndpoint),
            ConnectError::Session(cause) => Failure::Ipc(IpcError::Os(cause.raw_os_error().unwrap_or(0))),
        })?;
        // SAFETY: the header demands a place for the handle.
        unsafe { pointer::set(client, CLIENTS.open(made)) }?;
        DONE
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn m3_cs_close(client: *const Client) -> c_int {
    entry(|| {
        // SAFETY: the header demands a session.
        let cell: &'static Client = unsafe { client.as_ref() }.ok_or(NOT_BOUND)?;
        drop(CLIENTS.close(cell)?);
        DONE
    })
}

// ---- locks and elections

#[unsafe(no_mangle)]
pub unsafe extern "C" fn m3_cs_lock(
    client: *const Client,
    name: *const c_char,
    timeout_ms: c_int,
    token: *mut u64,
) -> c_int {
    entry(|| {
        pointer::check(token)?;
        // SAFETY: the header demands a session, a text that ends, and a place for the token.
        unsafe {
            let name = pointer::text(name)?;
            let got = with(client, |client| waiting(timeout_ms, |wait| client.lock(name, wait)).map_err(refused))?;
            pointer::set(token, got)?;
        }
        DONE
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn m3_cs_unlock(client: *const Client, name: *const c_char, token: u64) -> c_int {
    entry(|| {
        // SAFETY: the header demands a session, and a text that ends.
        unsafe { with(client, |client| client.unlock(pointer::text(name)?, token).map_err(refused)) }?;
        DONE
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn m3_cs_campaign(
    client: *const Client,
    name: *const c_char,
    value: *const u8,
    bytes: usize,
    timeout_ms: c_int,
    token: *mut u64,
) -> c_int {
    entry(|| {
        pointer::check(token)?;
        // SAFETY: the header demands a session, a text that ends, so many bytes, and a place for the token.
        unsafe {
            let (name, value) = (pointer::text(name)?, pointer::bytes(value, bytes)?);
            let campaign = |client: &CsClient| waiting(timeout_ms, |wait| client.campaign(name, value, wait));
            let got = with(client, |client| campaign(client).map_err(refused))?;
            pointer::set(token, got)?;
        }
        DONE
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn m3_cs_resign(client: *const Client, name: *const c_char, token: u64) -> c_int {
    entry(|| {
        // SAFETY: the header demands a session, and a text that ends.
        unsafe { with(client, |client| client.resign(pointer::text(name)?, token).map_err(refused)) }?;
        DONE
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn m3_cs_confirm(client: *const Client, kind: c_int, name: *const c_char, token: u64) -> c_int {
    entry(|| {
        let race = race(kind)?;
        // SAFETY: the header demands a session, and a text that ends.
        unsafe { with(client, |client| client.confirm(race, pointer::text(name)?, token).map_err(refused)) }?;
        DONE
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn m3_cs_owner(
    client: *const Client,
    kind: c_int,
    name: *const c_char,
    seen: u64,
    timeout_ms: c_int,
    holder: *mut CHolder,
    value: *mut c_void,
    room: usize,
) -> c_int {
    entry(|| {
        let race = race(kind)?;
        pointer::check(holder)?;
        let limit = u64::try_from(timeout_ms).map_or(FOR_EVER, Duration::from_millis);
        // SAFETY: the header demands a session, a text that ends, and places for what is found.
        unsafe {
            let name = pointer::text(name)?;
            let found = with(client, |client| client.next_holder(race, name, seen, limit).map_err(refused))?;
            let (token, node, found) = found.map_or((0, -1, Vec::new()), |one| (one.token, one.node.into(), one.value));
            give(&found, value, room)?;
            pointer::set(holder, CHolder { token, node, value_bytes: found.len() as u32, reserved: [0; 2] })?;
        }
        DONE
    })
}

// ---- values

#[unsafe(no_mangle)]
pub unsafe extern "C" fn m3_cs_get(
    client: *const Client,
    key: *const c_char,
    value: *mut c_void,
    room: usize,
    revision: *mut u64,
) -> c_int {
    entry(|| {
        // SAFETY: the header demands a session, a text that ends, and places for what is found.
        unsafe {
            let key = pointer::text(key)?;
            let (found, at) = with(client, |client| client.get(key.as_bytes()).map_err(refused))?;
            if !revision.is_null() {
                pointer::set(revision, at)?;
            }
            give(&found, value, room)
        }
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn m3_cs_put(
    client: *const Client,
    key: *const c_char,
    value: *const u8,
    bytes: usize,
    condition: u64,
    revision: *mut u64,
) -> c_int {
    entry(|| {
        // SAFETY: the header demands a session, a text that ends, so many bytes, and a place for the revision or none.
        unsafe {
            let (key, value) = (pointer::text(key)?, pointer::bytes(value, bytes)?);
            let at = with(client, |client| client.put(key.as_bytes(), value, condition).map_err(refused))?;
            if !revision.is_null() {
                pointer::set(revision, at)?;
            }
        }
        DONE
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn m3_cs_delete(client: *const Client, key: *const c_char, condition: u64) -> c_int {
    entry(|| {
        // SAFETY: the header demands a session, and a text that ends.
        unsafe {
            let key = pointer::text(key)?;
            with(client, |client| client.delete(key.as_bytes(), condition).map_err(refused))?;
        }
        DONE
    })
}

/// Calls C for each, and answers how many there were.
///
/// # Safety
/// `told` takes `argument`, and a change that ends when it returns.
unsafe fn tell(events: &[ValueEvent], told: OnChange, argument: *mut c_void) -> Outcome<c_int> {
    let told = told.ok_or(NO_ARGUMENT)?;
    for event in events {
        let key = c_text(&event.key)?;
        let kind = match event.change {
            ValueChange::Put => 1,
            ValueChange::Delete => 2,
            ValueChange::Lost => 3,
        };
        let (value, value_bytes) = (event.value.as_ptr().cast(), event.value.len() as u32);
        let (revision, key, reserved) = (event.revision, key.as_ptr(), [0; 2]);
        let change = CChange { kind, value_bytes, revision, key, value, reserved };
        // SAFETY: as our caller promised.
        unsafe { told(argument, &change) };
    }
    c_int::try_from(events.len()).map_err(|_| NO_ARGUMENT)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn m3_cs_list(
    client: *const Client,
    prefix: *const c_char,
    told: OnChange,
    argument: *mut c_void,
    seen: *mut u64,
) -> c_int {
    entry(|| {
        // SAFETY: the header demands a session, a text that ends, a function, and a place for the revision or none.
        unsafe {
            let prefix = pointer::text(prefix)?;
            let (mut all, mut after, mut revision) = (Vec::new(), Vec::new(), None);
            loop {
                let part = with(client, |client| client.list(prefix.as_bytes(), &after).map_err(refused))?;
                // What changes while the parts are read is told by a watch after the first of them.
                revision.get_or_insert(part.2);
                after = part.0.last().map(|one| one.key.clone()).unwrap_or_default();
                all.extend(part.0);
                if !part.1 {
                    break;
                }
            }
            if !seen.is_null() {
                pointer::set(seen, revision.unwrap_or(0))?;
            }
            tell(&all, told, argument)
        }
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn m3_cs_watch(
    client: *const Client,
    prefix: *const c_char,
    seen: *mut u64,
    timeout_ms: c_int,
    told: OnChange,
    argument: *mut c_void,
) -> c_int {
    entry(|| {
        let limit = u64::try_from(timeout_ms).map_or(FOR_EVER, Duration::from_millis);
        // SAFETY: the header demands a session, a text that ends, a function, and the revision that was seen.
        unsafe {
            let (prefix, from) = (pointer::text(prefix)?, *pointer::object(seen)?);
            let watched = with(client, |client| client.watch(prefix.as_bytes(), from, limit).map_err(refused))?;
            let count = tell(&watched.0, told, argument)?;
            pointer::set(seen, watched.1)?;
            Ok(count)
        }
    })
}

// ---- nodes

#[unsafe(no_mangle)]
pub unsafe extern "C" fn m3_cs_sense(client: *const Client, timeout_ms: c_int, nodes: *mut CNode, max: usize) -> c_int {
    entry(|| {
        let limit = u64::try_from(timeout_ms).map_or(FOR_EVER, Duration::from_millis);
        // SAFETY: the header demands a session.
        let sensed = unsafe { with(client, |client| client.sense(limit).map_err(refused)) }?;
        for (index, one) in sensed.iter().take(max).enumerate() {
            let node = CNode {
                node: one.node.into(),
                answered: one.answered.into(),
                cpus: one.cpus,
                reserved: 0,
                load: one.load,
                memory_bytes: one.memory_bytes,
                available_bytes: one.available_bytes,
                round_trip_us: one.round_trip_us,
                links: one.links,
                age_ms: one.age_ms,
            };
            // SAFETY: 1. the header demands room for `max` nodes, and `index` is less. 2. Null is found by `set`.
            unsafe { pointer::set(if nodes.is_null() { nodes } else { nodes.add(index) }, node) }?;
        }
        c_int::try_from(sensed.len()).map_err(|_| NO_ARGUMENT)
    })
}

// ---- groups

#[unsafe(no_mangle)]
pub unsafe extern "C" fn m3_group_join(
    client: *const Client,
    group: *const c_char,
    name: *const c_char,
    timeout_ms: c_int,
    member: *mut *const Group,
) -> c_int {
    entry(|| {
        // SAFETY: the header demands a session, texts that end, and a place for the handle.
        unsafe {
            pointer::vacate(member)?;
            let (group, name) = (pointer::text(group)?, pointer::text(name)?);
            let join = |client: &CsClient| waiting(timeout_ms, |wait| client.join(group, name, wait));
            let joined = with(client, |client| join(client).map_err(refused))?;
            pointer::set(member, GROUPS.open(joined))?;
        }
        DONE
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn m3_group_leave(group: *const Group) -> c_int {
    entry(|| {
        // SAFETY: the header demands a membership.
        let cell: &'static Group = unsafe { group.as_ref() }.ok_or(NOT_BOUND)?;
        GROUPS.close(cell)?.leave().map_err(refused)?;
        DONE
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn m3_group_id(group: *const Group, id: *mut u64) -> c_int {
    entry(|| {
        // SAFETY: the header demands a membership, and a place for the number.
        unsafe { pointer::set(id, within(group, |group| Ok(group.id()))?) }?;
        DONE
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn m3_group_send(group: *const Group, level: c_int, message: *const u8, bytes: usize) -> c_int {
    entry(|| {
        let level = match level {
            1 => Level::Agreed,
            2 => Level::Safe,
            _ => return Err(NO_ARGUMENT),
        };
        // SAFETY: the header demands a membership, and so many bytes.
        unsafe {
            let message = pointer::bytes(message, bytes)?;
            within(group, |group| group.send(level, message).map_err(refused))?;
        }
        DONE
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn m3_group_flush(group: *const Group) -> c_int {
    entry(|| {
        // SAFETY: the header demands a membership.
        unsafe { within(group, |group| group.flush().map_err(refused)) }?;
        DONE
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn m3_group_receive(
    group: *const Group,
    timeout_ms: c_int,
    told: OnEvent,
    argument: *mut c_void,
) -> c_int {
    entry(|| {
        let told = told.ok_or(NO_ARGUMENT)?;
        let receive = |wait: Duration| {
            // SAFETY: the header demands a membership.
            unsafe { within(group, |group| group.receive(wait).map_err(refused)) }
        };
        let events = match u64::try_from(timeout_ms) {
            Ok(limit) => receive(Duration::from_millis(limit))?,
            Err(_) => loop {
                let events = receive(FOR_EVER)?;
                if !events.is_empty() {
                    break events;
                }
            },
        };
        for event in &events {
            // SAFETY: the header demands a function that takes `argument`, and an event that ends when it returns.
            with_event(event, |event| unsafe { told(argument, event) })?;
        }
        c_int::try_from(events.len()).map_err(|_| NO_ARGUMENT)
    })
}

/// Lends an event as C has it.
fn with_event(event: &GroupEvent, lend: impl FnOnce(&CEvent)) -> Outcome {
    let none = CEvent {
        kind: 0,
        level: 0,
        index: 0,
        sender: 0,
        number: 0,
        data: std::ptr::null(),
        bytes: 0,
        members: std::ptr::null(),
        member_count: 0,
        reserved: [0; 2],
    };
    match event {
        GroupEvent::Message { index, level, sender, number, bytes } => {
            let (index, sender, number, level) = (*index, *sender, *number, *level as c_int);
            let (data, bytes) = (bytes.as_ptr().cast(), bytes.len());
            lend(&CEvent { kind: 2, level, index, sender, number, data, bytes, ..none });
        }
        GroupEvent::View { index, number, members } => {
            let names = members.iter().map(|one| c_text(one.name.as_bytes())).collect::<Outcome<Vec<CString>>>()?;
            let one = |(member, name): (&libvos::GroupMember, &CString)| CMember {
                id: member.id,
                name: name.as_ptr(),
                node: member.node.into(),
                reserved: 0,
            };
            let members: Vec<CMember> = members.iter().zip(&names).map(one).collect();
            let (index, number, member_count) = (*index, *number, members.len());
            lend(&CEvent { kind: 1, index, number, members: members.as_ptr(), member_count, ..none });
        }
    }
    Ok(())
}
