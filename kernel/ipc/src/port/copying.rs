//! Calls with grants.

use abi::limits::VCOPY_BYTES_MAX;
use abi::{Direction, Endpoint, GrantId, IpcError, Lane};
use ipc_shm::Arena;

use super::Port;
use crate::copy::{COPY_SPEC, CopyLane, Job, Local, Place, Waiting};
use crate::errors;
use crate::lanes::Attend;
use crate::wait::{Deadline, Wait};
use crate::waiting::gone;

/// Bytes of a third party's copy that are on the way through its memory at a time.
const THIRD_PARTY_BYTES: usize = 1 << 20;

impl Port {
    /// Lends `memory` to one endpoint. Whatever the peer does with it happens while this port waits in a call. `memory`
    /// may be [`Arena::private`], the arena of a ring, or a part of one. Errors: [`errors::GRANT`].
    pub fn grant(&mut self, to: Endpoint, memory: &Arena, direction: Direction) -> Result<GrantId, IpcError> {
        self.check_bound()?;
        if to == self.endpoint {
            return Err(IpcError::BadEndpoint);
        }
        let key = self.attached.talk_with(to);
        // Whom the port talked with may be gone; then the grant is for whoever uses it first.
        let attached = key.and_then(|key| self.attached.get_mut(key)).filter(|attached| gone(&attached.half).is_none());
        let incarnation = attached.map(|attached| attached.half.peer_control().incarnation());
        let given = self.lanes.copying.grants.give(to, incarnation, direction, memory.len() as u64, memory.clone());
        errors::GRANT.only(given)
    }

    /// Takes a grant back: from now on nothing touches its memory. Errors: [`errors::REVOKE`].
    pub fn revoke(&mut self, grant: GrantId) -> Result<(), IpcError> {
        self.check_bound()?;
        errors::REVOKE.only(self.lanes.copying.grants.revoke(grant).map(drop))
    }

    /// Copies `bytes` bytes between granted memory of two endpoints, of which one may be this one. At most
    /// [`VCOPY_BYTES_MAX`]. Errors: [`errors::COPY`]; repeating it is safe.
    pub fn vcopy(&mut self, from: Place, to: Place, bytes: usize, wait: Wait) -> Result<(), IpcError> {
        self.check_bound()?;
        let deadline = Deadline::after(wait);
        let (source, target) = (Part::whole(from, bytes)?, Part::whole(to, bytes)?);
        match (from.owner == self.endpoint, to.owner == self.endpoint) {
            (true, true) => {
                let (from, from_at) = self.own_memory(source, Direction::Read)?;
                let (to, to_at) = self.own_memory(target, Direction::Write)?;
                Ok(to.copy_from(to_at, &from, from_at, bytes)?)
            }
            (false, true) => {
                let (memory, at) = self.own_memory(target, Direction::Write)?;
                self.copy(source, Local::IntoMemory(&memory, at), deadline)
            }
            (true, false) => {
                let (memory, at) = self.own_memory(source, Direction::Read)?;
                self.copy(target, Local::FromMemory(&memory, at), deadline)
            }
            (false, false) => self.copy_as_third_party(source, target, deadline),
        }
    }

    /// Copies from a peer's granted memory. Errors, as of all copies: [`errors::COPY`].
    pub fn copy_from(&mut self, from: Place, into: &mut [u8], wait: Wait) -> Result<(), IpcError> {
        self.check_bound()?;
        let bytes = into.len();
        self.copy(Part::whole(from, bytes)?, Local::Into(into), Deadline::after(wait))
    }

    /// [`Port::copy_from`], and says where the next copy from this owner begins, which is of as many bytes: it is asked
    /// for while this one still comes, so that a stream of copies does not wait for a round trip at each. Its bytes are
    /// copied at any time from now until that call returns, which is also what says why they cannot be. Any other copy
    /// from or to this owner forgets it. `BadArgument`: the next copy is another owner's.
    pub fn copy_from_ahead(&mut self, from: Place, into: &mut [u8], next: Place, wait: Wait) -> Result<(), IpcError> {
        self.check_bound()?;
        let bytes = into.len();
        if next.owner != from.owner {
            return Err(IpcError::BadArgument);
        }
        Part::whole(next, bytes)?;
        let part = Part { next: Some((next.grant, next.offset)), ..Part::whole(from, bytes)? };
        self.copy(part, Local::Into(into), Deadline::after(wait))
    }

    /// Copies into a peer's granted memory.
    pub fn copy_to(&mut self, data: &[u8], to: Place, wait: Wait) -> Result<(), IpcError> {
        self.check_bound()?;
        self.copy(Part::whole(to, data.len())?, Local::From(data), Deadline::after(wait))
    }

    /// [`Port::copy_from`] into memory that others may use meanwhile; all of `memory` is filled.
    pub fn copy_into_memory(&mut self, from: Place, memory: &Arena, wait: Wait) -> Result<(), IpcError> {
        self.check_bound()?;
        self.copy(Part::whole(from, memory.len())?, Local::IntoMemory(memory, 0), Deadline::after(wait))
    }

    /// [`Port::copy_to`] from memory that others may use meanwhile; all of `memory` is copied.
    pub fn copy_out_of_memory(&mut self, memory: &Arena, to: Place, wait: Wait) -> Result<(), IpcError> {
        self.check_bound()?;
        self.copy(Part::whole(to, memory.len())?, Local::FromMemory(memory, 0), Deadline::after(wait))
    }

    fn own_memory(&self, part: Part, wanted: Direction) -> Result<(Arena, usize), IpcError> {
        let Part { place, whole_end, .. } = part;
        let memory = self.lanes.copying.grants.own(place.grant, wanted, place.offset, whole_end)?;
        Ok((memory.clone(), place.offset as usize))
    }

    fn copy(&mut self, part: Part, local: Local<'_>, deadline: Deadline) -> Result<(), IpcError> {
        errors::COPY.only(self.beside_watch(|port| port.copy_over_lane(part, local, deadline)))
    }

    fn copy_over_lane(&mut self, part: Part, local: Local<'_>, deadline: Deadline) -> Result<(), IpcError> {
        let Part { place, bytes, whole_end, next } = part;
        if place.owner == self.endpoint {
            return Err(IpcError::BadEndpoint);
        }
        let mut lane = self.copy_lane(place.owner, local.owner_died())?;
        let channel = lane.channel();
        let attend = Attend::of(&mut self.lanes, &mut self.connection, channel);
        let waiting = Waiting { own_control: &self.control, budget: &mut self.budget, deadline, attend };
        let job = Job { grant: place.grant, offset: place.offset, local, bytes: bytes as u64, whole_end, next };
        let result = lane.run(job, waiting);
        // Of a lane that its owner could not have, or that was revoked, perhaps only the broker says that it ended.
        let has_ended = self.connection.ended(channel).is_some()
            || matches!(
                result,
                Err(IpcError::Corrupt | IpcError::Denied | IpcError::SourceDied | IpcError::DestinationDied)
            );
        if !lane.is_closed() && !has_ended {
            self.lanes.copying.lanes.insert(place.owner, lane);
        }
        result
    }

    /// Two copies through memory of our own, part by part; of ranges that overlap in one grant the part that the next
    /// one covers goes last.
    fn copy_as_third_party(&mut self, from: Part, to: Part, deadline: Deadline) -> Result<(), IpcError> {
        let bytes = from.bytes;
        let memory = Arena::private(bytes.clamp(1, THIRD_PARTY_BYTES))?;
        // Nothing is copied too: then the grants are checked.
        let parts = bytes.div_ceil(THIRD_PARTY_BYTES).max(1);
        let is_backwards = (from.place.owner, from.place.grant) == (to.place.owner, to.place.grant)
            && from.place.offset < to.place.offset;
        for number in 0..parts {
            let at = if is_backwards { parts - 1 - number } else { number } * THIRD_PARTY_BYTES;
            self.copy(from.part(at), Local::IntoMemory(&memory, 0), deadline)?;
            self.copy(to.part(at), Local::FromMemory(&memory, 0), deadline)?;
        }
        Ok(())
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
        match self.open_lane_to(owner, lane, COPY_SPEC) {
            Ok(ring) => Ok(CopyLane::new(ring)),
            // It was there when it gave the grant.
            Err(IpcError::NoSuchEndpoint) if self.attached.talk_with(owner).is_some() => Err(died),
            Err(error) => Err(error),
        }
    }
}

/// A copy between granted memory of a peer and ours, or a part of one.
#[derive(Clone, Copy)]
struct Part {
    place: Place,
    bytes: usize,
    /// Where the whole copy ends in the grant: one that leaves it moves nothing.
    whole_end: u64,
    /// Where the copier reads as many bytes next.
    next: Option<(GrantId, u64)>,
}

impl Part {
    fn whole(place: Place, bytes: usize) -> Result<Part, IpcError> {
        if bytes > VCOPY_BYTES_MAX {
            return Err(IpcError::BadArgument);
        }
        let whole_end = place.offset.checked_add(bytes as u64).ok_or(IpcError::BadArgument)?;
        Ok(Part { place, bytes, whole_end, next: None })
    }

    /// What a third party copies at once, from `at` on, which is inside.
    fn part(self, at: usize) -> Part {
        let place = Place { offset: self.place.offset + at as u64, ..self.place };
        Part { place, bytes: (self.bytes - at).min(THIRD_PARTY_BYTES), ..self }
    }
}
