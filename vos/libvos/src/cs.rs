//! The coordination server's client: locks, elections, small shared values, groups, and what nodes are like.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use abi::limits::NODES_PER_DC;
use abi::{Endpoint, IpcError};
use ipc::Port;
use ipc::info::Cursor;
use parking_lot::Mutex;
use rustix::io::Errno;
use vos_api::Measured;
use vos_api::cs::{
    ANY, Acquire, BURST_BYTES_MAX, CANDIDATE_BYTES_MAX, Confirm, Delete, EVENT_HEAD_BYTES, Get, Join, KEY_BYTES_MAX,
    Leave, Level, List, MEMBERS_MAX, NAME_BYTES_MAX, Owner, Put, Race, Receive, Release, SENSED_BYTES, Send, Sense,
    VALUE_BYTES_MAX, ViewOf, Watch, change, event, sensed,
};
use vos_api::session::Goodbye;

use crate::blocking::{BlockingSession, Started};
use crate::connect::{PortConnect, SharedPort};
use crate::op::Op;
use crate::session::{Identity, Size};

/// Requests of a session under way, and their data.
const SIZE: Size = Size { entries: 64, arena_bytes: 8 << 20 };
/// Room for events of one RECEIVE: several of the largest.
const RECEIVE_BYTES: u32 = 256 << 10;
const LIST_BYTES: u32 = 256 << 10;
/// Sends of one member under way: they travel while the next are made.
const SENDS_MAX: usize = 8;
/// A server that was killed is back by then.
const FIND_WITHIN: Duration = Duration::from_secs(10);
const FIND_AGAIN: Duration = Duration::from_millis(20);

/// A session with the coordination server of this node. Clones share it, and with it what it locked. When the last one
/// is gone, or the program ends, everything it holds is free.
#[derive(Clone)]
pub struct CsClient {
    session: BlockingSession,
}

/// Who has a lock, or leads.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Holder {
    /// Rises from holder to holder.
    pub token: u64,
    /// Index of its node in the container.
    pub node: u16,
    /// What a leader says of itself.
    pub value: Vec<u8>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ValueChange {
    Put,
    Delete,
    /// What changed up to here is not known any more: list again.
    Lost,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ValueEvent {
    pub change: ValueChange,
    pub key: Vec<u8>,
    pub value: Vec<u8>,
    pub revision: u64,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct GroupMember {
    pub id: u64,
    pub node: u16,
    pub name: String,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub enum GroupEvent {
    View { index: u64, number: u64, members: Vec<GroupMember> },
    Message { index: u64, level: Level, sender: u64, number: u64, bytes: Vec<u8> },
}

/// What a node of the container is like.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NodeVitals {
    pub node: u16,
    /// False: it did not answer in time, and the rest is what it said before, or 0.
    pub answered: bool,
    pub cpus: u32,
    /// Thousandths of a process that ran or wanted to, over one minute.
    pub load: u64,
    pub memory_bytes: u64,
    pub available_bytes: u64,
    pub round_trip_us: u64,
    /// Servers of other nodes that it knows to live.
    pub links: u64,
    pub age_ms: u64,
}

#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    #[error("the broker of this node does not answer; is this a program of a container?")]
    Broker(#[source] IpcError),
    #[error("this node has no coordination server; the container was made by an earlier version, or is being started")]
    NoServer,
    #[error("no session")]
    Session(#[source] std::io::Error),
}

impl CsClient {
    /// From inside a container, by the broker's socket (`/run/dvs/broker`): with an endpoint of its own, so that a
    /// program's other calls do not wait for these.
    pub fn connect(broker: &Path) -> Result<CsClient, ConnectError> {
        let mut port = Port::connect(broker, None).map_err(ConnectError::Broker)?;
        let until = Instant::now() + FIND_WITHIN;
        let server = loop {
            match find(&mut port).map_err(ConnectError::Broker)? {
                Some(server) => break server,
                None if Instant::now() < until => std::thread::sleep(FIND_AGAIN),
                None => return Err(ConnectError::NoServer),
            }
        };
        CsClient::over(SharedPort::new(port), server).map_err(ConnectError::Session)
    }

    /// With the server at this endpoint.
    pub fn over(port: SharedPort, server: Endpoint) -> std::io::Result<CsClient> {
        let connect = PortConnect::new(port, server, SIZE);
        Ok(CsClient { session: BlockingSession::open(Box::new(connect), SIZE, Identity::default())? })
    }

    pub fn session(&self) -> &BlockingSession {
        &self.session
    }

    // ---- locks and elections

    /// Waits for a lock and answers its token; first come, first served. `ETIMEDOUT`, `ENOSPC`, `EHOSTUNREACH`. Asked
    /// again by the same session it is the same lock, held once.
    pub fn lock(&self, name: &str, wait: Duration) -> Result<u64, Errno> {
        self.acquire(Race::Lock, name, &[], wait)
    }

    /// Waits until this session leads, and says `value` of itself. As [`CsClient::lock`].
    pub fn campaign(&self, name: &str, value: &[u8], wait: Duration) -> Result<u64, Errno> {
        if value.len() > CANDIDATE_BYTES_MAX {
            return Err(Errno::INVAL);
        }
        self.acquire(Race::Election, name, value, wait)
    }

    fn acquire(&self, race: Race, name: &str, value: &[u8], wait: Duration) -> Result<u64, Errno> {
        let acquire = Acquire { race, name: measured(name)?, wait_ms: millis(wait), value };
        Ok(self.session.ask(acquire, 0)?.0.token)
    }

    pub fn unlock(&self, name: &str, token: u64) -> Result<(), Errno> {
        self.session.ask(Release { race: Race::Lock, name: measured(name)?, token }, 0).map(drop)
    }

    /// Leads no more.
    pub fn resign(&self, name: &str, token: u64) -> Result<(), Errno> {
        self.session.ask(Release { race: Race::Election, name: measured(name)?, token }, 0).map(drop)
    }

    /// Whether this session has the lock, or leads, with this token: asked of the engine. `ENOENT`: not any more.
    pub fn confirm(&self, race: Race, name: &str, token: u64) -> Result<(), Errno> {
        self.session.ask(Confirm { race, name: measured(name)?, token }, 0).map(drop)
    }

    /// Who has it, as this node knows; `None`: nobody.
    pub fn holder(&self, race: Race, name: &str) -> Result<Option<Holder>, Errno> {
        self.next_holder(race, name, ANY, Duration::ZERO)
    }

    /// Who has it, once that is another one than `seen` (0: nobody), or `wait` has passed.
    pub fn next_holder(&self, race: Race, name: &str, seen: u64, wait: Duration) -> Result<Option<Holder>, Errno> {
        let owner = Owner { race, name: measured(name)?, seen, wait_ms: millis(wait) };
        let (owned, value) = self.session.ask(owner, CANDIDATE_BYTES_MAX as u32)?;
        let node = u16::try_from(owned.node).map_err(|_| Errno::PROTO)?;
        Ok((owned.token != 0).then_some(Holder { token: owned.token, node, value }))
    }

    // ---- values

    /// The value and its revision. `ENOENT`.
    pub fn get(&self, key: &[u8]) -> Result<(Vec<u8>, u64), Errno> {
        let (found, value) = self.session.ask(Get { key: key_of(key)? }, VALUE_BYTES_MAX as u32)?;
        Ok((value, found.revision))
    }

    /// `condition`: `cs::ANY`, `cs::ABSENT` or the revision that the value must have. Answers the new one. `EEXIST`,
    /// `ENOENT`, `ESTALE`: the condition does not hold. It happens once.
    pub fn put(&self, key: &[u8], value: &[u8], condition: u64) -> Result<u64, Errno> {
        if value.len() > VALUE_BYTES_MAX {
            return Err(Errno::INVAL);
        }
        Ok(self.session.ask(Put { key: key_of(key)?, condition, value }, 0)?.0.revision)
    }

    pub fn delete(&self, key: &[u8], condition: u64) -> Result<u64, Errno> {
        Ok(self.session.ask(Delete { key: key_of(key)?, condition }, 0)?.0.revision)
    }

    /// Keys that begin with `prefix` after the key `after`, as this node knows them; whether more follow; and the
    /// revision after which [`CsClient::watch`] tells what changes.
    pub fn list(&self, prefix: &[u8], after: &[u8]) -> Result<(Vec<ValueEvent>, bool, u64), Errno> {
        let (found, data) = self.session.ask(List { prefix: key_of(prefix)?, after: key_of(after)? }, LIST_BYTES)?;
        Ok((value_events(&data, found.entries)?, found.has_more == 1, found.revision))
    }

    /// Changes after `seen` of keys that begin with `prefix`; none when there were none within `wait`. Answers them and
    /// what to pass as `seen` next.
    pub fn watch(&self, prefix: &[u8], seen: u64, wait: Duration) -> Result<(Vec<ValueEvent>, u64), Errno> {
        let watch = Watch { prefix: key_of(prefix)?, seen, wait_ms: millis(wait) };
        let (found, data) = self.session.ask(watch, LIST_BYTES)?;
        Ok((value_events(&data, found.entries)?, found.revision))
    }

    // ---- groups

    /// Becomes a member; the first event it is given is the first view that it is in.
    pub fn join(&self, group: &str, name: &str, wait: Duration) -> Result<GroupMembership, Errno> {
        if name.len() > NAME_BYTES_MAX {
            return Err(Errno::INVAL);
        }
        let join = Join { group: measured(group)?, wait_ms: millis(wait), name: name.as_bytes() };
        let (joined, _) = self.session.ask(join, 0)?;
        let (session, sending) = (self.session.clone(), Mutex::new(Sending { next: 1, under_way: Vec::new() }));
        Ok(GroupMembership { session, member: joined.member, sending: Arc::new(sending) })
    }

    /// Number and members of the newest view that was agreed on, once its number is above `seen`, or `wait` has passed.
    /// 0: there is no such group.
    pub fn view(&self, group: &str, seen: u64, wait: Duration) -> Result<(u64, Vec<GroupMember>), Errno> {
        let room = MEMBERS_MAX * (12 + NAME_BYTES_MAX);
        let view = ViewOf { group: measured(group)?, seen, wait_ms: millis(wait) };
        let (viewed, data) = self.session.ask(view, room as u32)?;
        Ok((viewed.number, members(&data).ok_or(Errno::PROTO)?))
    }

    // ---- nodes

    /// What the container's nodes are like; those that do not answer within `wait` are told as such.
    pub fn sense(&self, wait: Duration) -> Result<Vec<NodeVitals>, Errno> {
        let (_, data) = self.session.ask(Sense { wait_ms: millis(wait) }, (NODES_PER_DC * SENSED_BYTES) as u32)?;
        data.chunks_exact(SENSED_BYTES).map(|bytes| node_state(bytes).ok_or(Errno::PROTO)).collect()
    }

    /// Ends the session: everything it holds is free at once. Without it that happens when the last clone is gone.
    pub fn goodbye(self) -> Result<(), Errno> {
        self.session.ask(Goodbye {}, 0).map(drop)
    }
}

/// GroupMembership of a group. It ends with its session, with [`GroupMembership::leave`], when the member is too slow,
/// or when the servers of the others took its own for dead: then everything answers `ESTALE`, and the program may join
/// again.
#[derive(Clone)]
pub struct GroupMembership {
    session: BlockingSession,
    member: u64,
    sending: Arc<Mutex<Sending>>,
}

struct Sending {
    next: u64,
    under_way: Vec<Started>,
}

impl GroupMembership {
    /// This member among those of views.
    pub fn id(&self) -> u64 {
        self.member
    }

    pub fn send(&self, level: Level, message: &[u8]) -> Result<(), Errno> {
        self.send_all(level, &[message])
    }

    /// Messages that follow each other, with as little effort as one. They are ordered after those sent before, and
    /// given to all members. Returns when they are on their way to the server; an error may be of an earlier call.
    /// `EINVAL`: no messages, or more than [`BURST_BYTES_MAX`] with four bytes each.
    pub fn send_all(&self, level: Level, messages: &[&[u8]]) -> Result<(), Errno> {
        let bytes: usize = messages.iter().map(|message| message.len() + 4).sum();
        if messages.is_empty() || bytes > BURST_BYTES_MAX {
            return Err(Errno::INVAL);
        }
        let mut data = Vec::with_capacity(bytes);
        for message in messages {
            data.extend_from_slice(&(message.len() as u32).to_le_bytes());
            data.extend_from_slice(message);
        }
        let mut sending = self.sending.lock();
        while sending.under_way.len() >= SENDS_MAX {
            sending.under_way.remove(0).wait()?;
        }
        let send = Send { level, member: self.member, first: sending.next, messages: &data };
        let encoded = vos_api::Operation::encode(&send);
        let op = Op::of(&encoded, vos_api::Class::Repeatable, 0);
        let started = loop {
            match self.session.try_start(op)? {
                Some(started) => break started,
                // Room comes with what is under way.
                None if !sending.under_way.is_empty() => drop(sending.under_way.remove(0).wait()?),
                None => break self.session.start(op)?,
            }
        };
        sending.next += messages.len() as u64;
        sending.under_way.push(started);
        Ok(())
    }

    /// Waits until the server has everything that was sent.
    pub fn flush(&self) -> Result<(), Errno> {
        let mut sending = self.sending.lock();
        while !sending.under_way.is_empty() {
            sending.under_way.remove(0).wait()?;
        }
        Ok(())
    }

    /// What this member was not given yet; none when there was nothing within `wait`. One at a time.
    pub fn receive(&self, wait: Duration) -> Result<Vec<GroupEvent>, Errno> {
        let data = self.receive_raw(wait)?;
        let (mut rest, mut events) = (data.as_slice(), Vec::new());
        while !rest.is_empty() {
            take_events(&mut rest, &mut events).ok_or(Errno::PROTO)?;
        }
        Ok(events)
    }

    /// As [`GroupMembership::receive`], as it travels (`vos_api::cs::event`).
    pub fn receive_raw(&self, wait: Duration) -> Result<Vec<u8>, Errno> {
        let receive = Receive { member: self.member, wait_ms: millis(wait) };
        Ok(self.session.ask(receive, RECEIVE_BYTES)?.1)
    }

    pub fn leave(self) -> Result<(), Errno> {
        self.session.ask(Leave { member: self.member }, 0).map(drop)
    }
}

/// The server of this node, among those that are bound here.
fn find(port: &mut Port) -> Result<Option<Endpoint>, IpcError> {
    let node = port.dc_info()?.node;
    let first = Endpoint::CS.number();
    let page = port.endpoints_info(Cursor(u64::from(first)), NODES_PER_DC)?;
    let servers = first..first + NODES_PER_DC as u32;
    let here = page.records.into_iter().find(|one| one.node == node && servers.contains(&one.endpoint.number()));
    Ok(here.map(|one| one.endpoint))
}

fn measured(name: &str) -> Result<Measured<'_>, Errno> {
    if name.len() > NAME_BYTES_MAX { Err(Errno::INVAL) } else { Ok(Measured(name.as_bytes())) }
}

fn key_of(key: &[u8]) -> Result<Measured<'_>, Errno> {
    if key.len() > KEY_BYTES_MAX { Err(Errno::INVAL) } else { Ok(Measured(key)) }
}

fn millis(wait: Duration) -> u64 {
    u64::try_from(wait.as_millis()).unwrap_or(u64::MAX)
}

fn value_events(data: &[u8], count: u64) -> Result<Vec<ValueEvent>, Errno> {
    let mut rest = data;
    (0..count).map(|_| take_value_event(&mut rest).ok_or(Errno::PROTO)).collect()
}

fn take_value_event(rest: &mut &[u8]) -> Option<ValueEvent> {
    let key_bytes = usize::from(u16::from_le_bytes(take(rest)?));
    let [kind, _reserved] = take(rest)?;
    let value_bytes = usize::try_from(u32::from_le_bytes(take(rest)?)).ok()?;
    let revision = u64::from_le_bytes(take(rest)?);
    let change = match kind {
        change::PUT => ValueChange::Put,
        change::DELETE => ValueChange::Delete,
        change::LOST => ValueChange::Lost,
        _ => return None,
    };
    Some(ValueEvent { change, key: take_bytes(rest, key_bytes)?, value: take_bytes(rest, value_bytes)?, revision })
}

/// One event as it travels, which may be several messages.
fn take_events(rest: &mut &[u8], events: &mut Vec<GroupEvent>) -> Option<()> {
    const { assert!(EVENT_HEAD_BYTES == 32) };
    let [kind, level, _, _] = take(rest)?;
    let bytes = usize::try_from(u32::from_le_bytes(take(rest)?)).ok()?;
    let (index, sender) = (u64::from_le_bytes(take(rest)?), u64::from_le_bytes(take(rest)?));
    let first = u64::from_le_bytes(take(rest)?);
    let (mut body, after) = rest.split_at_checked(bytes)?;
    *rest = after;
    if kind == event::VIEW {
        events.push(GroupEvent::View { index, number: first, members: members(body)? });
        return Some(());
    }
    let level = if level == Level::Safe as u16 as u8 { Level::Safe } else { Level::Agreed };
    let mut number = first;
    while !body.is_empty() {
        let length = usize::try_from(u32::from_le_bytes(take(&mut body)?)).ok()?;
        let bytes = take_bytes(&mut body, length)?;
        events.push(GroupEvent::Message { index, level, sender, number, bytes });
        number += 1;
    }
    Some(())
}

fn members(data: &[u8]) -> Option<Vec<GroupMember>> {
    let (mut rest, mut members) = (data, Vec::new());
    while !rest.is_empty() {
        let id = u64::from_le_bytes(take(&mut rest)?);
        let node = u16::from_le_bytes(take(&mut rest)?);
        let length = usize::from(u16::from_le_bytes(take(&mut rest)?));
        let name = String::from_utf8(take_bytes(&mut rest, length)?).ok()?;
        members.push(GroupMember { id, node, name });
    }
    Some(members)
}

fn node_state(bytes: &[u8]) -> Option<NodeVitals> {
    let mut rest = bytes;
    let node = u16::from_le_bytes(take(&mut rest)?);
    let answered = u16::from_le_bytes(take(&mut rest)?) == sensed::HERE;
    let cpus = u32::from_le_bytes(take(&mut rest)?);
    let mut word = || Some(u64::from_le_bytes(take(&mut rest)?));
    let (load, memory_bytes, available_bytes) = (word()?, word()?, word()?);
    let (round_trip_us, links, age_ms) = (word()?, word()?, word()?);
    Some(NodeVitals { node, answered, cpus, load, memory_bytes, available_bytes, round_trip_us, links, age_ms })
}

fn take_bytes(rest: &mut &[u8], count: usize) -> Option<Vec<u8>> {
    let (bytes, after) = rest.split_at_checked(count)?;
    *rest = after;
    Some(bytes.to_vec())
}

fn take<const N: usize>(rest: &mut &[u8]) -> Option<[u8; N]> {
    let (head, after) = rest.split_first_chunk::<N>()?;
    *rest = after;
    Some(*head)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_of_a_lying_server_are_errors_not_panics() {
        for bytes in [&[0_u8; 13][..], &[255; 64], &[1; 40]] {
            assert_eq!(take_value_event(&mut &*bytes), None);
            assert_eq!(take_events(&mut &*bytes, &mut Vec::new()), None);
            assert_eq!(members(bytes), None);
        }
        assert_eq!(node_state(&[0; SENSED_BYTES - 1]), None);
    }
}
