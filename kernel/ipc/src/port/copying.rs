//! Calls with grants.

use abi::limits::VCOPY_BYTES_MAX;
use abi::{Direction, Endpoint, GrantId, IpcError, Lane};
use ipc_shm::Arena;

use super::opening::map_channel;
use super::{Port, os};
use crate::copy::{COPY_SPEC, CopyLane, Job, Local, Place, Waiting};
use crate::lanes::Attend;
use crate::protocol::{Op, Packet};
use crate::ring::{RingClient, RingParts};
use crate::wait::{Deadline, Wait};
use crate::waiting::gone;

/// Bytes of a third party's copy that are on the way through its memory at a time.
const THIRD_PARTY_BYTES: usize = 1 << 20;

impl Port {
    /// Lends `memory` to one endpoint. Whatever the peer does with it happens while this port waits in a call. `memory` may be
    /// [`Arena::private`], the arena of a ring, or a part of one.
    pub fn grant(&mut self, to: Endpoint, memory: &Arena, direction: Direction) -> Result<GrantId, IpcError> {
        self.check_bound()?;
        if to == self.endpoint {
            return Err(IpcError::BadEndpoint);
        }
        let key = self.slots.talk_with(to);
        // Whom the port talked with may be gone; then the grant is for whoever uses it first.
        let slot = key.and_then(|key| self.slots.get_mut(key)).filter(|slot| gone(&slot.link).is_none());
        let incarnation = slot.map(|slot| slot.link.peer_control().incarnation());
        self.lanes.copying.grants.give(to, incarnation, direction, memory.len() as u64, memory.clone())
    }

    /// Takes a grant back: from now on nothing touches its memory.
    pub fn revoke(&mut self, grant: GrantId) -> Result<(), IpcError> {
        self.check_bound()?;
        self.lanes.copying.grants.revoke(grant).map(drop)
    }

    /// Copies `bytes` bytes between granted memory of two endpoints, of which one may be this one. At most
    /// [`VCOPY_BYTES_MAX`]. Its errors are those of `docs/design/copy.md`; repeating it is safe.
    pub fn vcopy(&mut self, from: Place, to: Place, bytes: usize, wait: Wait) -> Result<(), IpcError> {
        self.check_bound()?;
        let deadline = Deadline::after(wait);
        match (from.owner == self.endpoint, to.owner == self.endpoint) {
            (true, true) => {
                let (source, source_at) = self.own_memory(from, bytes)?;
                let (target, target_at) = self.own_memory(to, bytes)?;
                Ok(target.copy_from(target_at, &source, source_at, bytes)?)
            }
            (false, true) => {
                let (memory, at) = self.own_memory(to, bytes)?;
                self.copy(from, Local::IntoMemory(&memory, at), bytes, deadline)
            }
            (true, false) => {
                let (memory, at) = self.own_memory(from, bytes)?;
                self.copy(to, Local::FromMemory(&memory, at), bytes, deadline)
            }
            (false, false) => self.copy_as_third_party(from, to, bytes, deadline),
        }
    }

    /// Copies from a peer's granted memory.
    pub fn copy_from(&mut self, from: Place, into: &mut [u8], wait: Wait) -> Result<(), IpcError> {
        self.check_bound()?;
        let bytes = into.len();
        self.copy(from, Local::Into(into), bytes, Deadline::after(wait))
    }

    /// Copies into a peer's granted memory.
    pub fn copy_to(&mut self, data: &[u8], to: Place, wait: Wait) -> Result<(), IpcError> {
        self.check_bound()?;
        self.copy(to, Local::From(data), data.len(), Deadline::after(wait))
    }

    /// [`Port::copy_from`] into memory that others may use meanwhile; all of `memory` is filled.
    pub fn copy_into_memory(&mut self, from: Place, memory: &Arena, wait: Wait) -> Result<(), IpcError> {
        self.check_bound()?;
        self.copy(from, Local::IntoMemory(memory, 0), memory.len(), Deadline::after(wait))
    }

    /// [`Port::copy_to`] from memory that others may use meanwhile; all of `memory` is copied.
    pub fn copy_out_of_memory(&mut self, memory: &Arena, to: Place, wait: Wait) -> Result<(), IpcError> {
        self.check_bound()?;
        self.copy(to, Local::FromMemory(memory, 0), memory.len(), Deadline::after(wait))
    }

    fn own_memory(&self, place: Place, bytes: usize) -> Result<(Arena, usize), IpcError> {
        let end = place.offset.checked_add(bytes as u64).ok_or(IpcError::OutOfGrant)?;
        let memory = self.lanes.copying.grants.own(place.grant, place.offset, end)?;
        Ok((memory.clone(), place.offset as usize))
    }

    fn copy(&mut self, place: Place, local: Local<'_>, bytes: usize, deadline: Deadline) -> Result<(), IpcError> {
        self.beside_watch(|port| port.copy_over_lane(place, local, bytes, deadline))
    }

    fn copy_over_lane(
        &mut self,
        place: Place,
        local: Local<'_>,
        bytes: usize,
        deadline: Deadline,
    ) -> Result<(), IpcError> {
        if bytes > VCOPY_BYTES_MAX || place.offset.checked_add(bytes as u64).is_none() {
            return Err(IpcError::BadArgument);
        }
        if place.owner == self.endpoint {
            return Err(IpcError::BadEndpoint);
        }
        let mut lane = self.copy_lane(place.owner, local.owner_died())?;
        let channel = lane.channel();
        let attend = Attend::of(&mut self.lanes, &mut self.connection, channel);
        let waiting = Waiting { own_control: &self.control, budget: &mut self.budget, deadline, attend };
        let job = Job { grant: place.grant, offset: place.offset, local, bytes: bytes as u64 };
        let result = lane.run(job, waiting);
        // A lane that was revoked looks like one whose owner refused.
        if !lane.is_closed() && !matches!(result, Err(IpcError::Corrupt | IpcError::Denied)) {
            self.lanes.copying.lanes.insert(place.owner, lane);
        }
        result
    }

    /// Two copies through memory of our own.
    fn copy_as_third_party(
        &mut self,
        from: Place,
        to: Place,
        bytes: usize,
        deadline: Deadline,
    ) -> Result<(), IpcError> {
        if bytes > VCOPY_BYTES_MAX {
            return Err(IpcError::BadArgument);
        }
        let memory = Arena::private(bytes.clamp(1, THIRD_PARTY_BYTES)).map_err(os)?;
        let mut done = 0;
        loop {
            let part = (bytes - done).min(THIRD_PARTY_BYTES);
            let shifted = |place: Place| {
                let offset = place.offset.checked_add(done as u64).ok_or(IpcError::OutOfGrant)?;
                Ok::<Place, IpcError>(Place { offset, ..place })
            };
            self.copy(shifted(from)?, Local::IntoMemory(&memory, 0), part, deadline)?;
            self.copy(shifted(to)?, Local::FromMemory(&memory, 0), part, deadline)?;
            done += part;
            if done == bytes {
                return Ok(());
            }
        }
    }

    /// The lane over which we copy from and to `owner`; taken out, so that the wait may use the rest of the port.
    fn copy_lane(&mut self, owner: Endpoint, died: IpcError) -> Result<CopyLane, IpcError> {
        if let Some(lane) = self.lanes.copying.lanes.remove(&owner)
            && !lane.is_closed()
        {
            return Ok(lane);
        }
        // Those to owners that are gone, to whom nobody may copy again.
        self.lanes.copying.lanes.retain(|_, lane| !lane.is_closed());
        let lane = Lane::copies(self.endpoint, owner);
        let request = Packet { peer: Some(owner), size: COPY_SPEC.size(), lane, ..Packet::new(Op::Open) };
        let answer = self.connection.call(request).map_err(|error| match error {
            // It was there when it gave the grant.
            IpcError::NoSuchEndpoint if self.slots.talk_with(owner).is_some() => died,
            error => error,
        })?;
        let channel = answer.packet.channel;
        let ring = RingClient::new(RingParts {
            link: map_channel(answer, Some(COPY_SPEC))?,
            own_control: self.control.clone(),
            guard: self.guard,
            socket: self.connection.shared_socket(),
            channel,
            peer: owner,
            spec: COPY_SPEC,
        });
        Ok(CopyLane::new(ring))
    }
}
