//! How channels end: one party says a last thing and goes, and the other must get that and hear why, whatever becomes
//! of connections meanwhile.

use abi::IpcError;
use abi::layout::word;
use abi::ring::Submission;
use proxy_link::{LocalRole, WireChannel};

use crate::memory::{ENTRIES, SLOT_BYTES, State};
use crate::party::{carried, take, value_of};
use crate::world::{Link, Stage, Weather, World};

const REASONS: [IpcError; 3] = [IpcError::Denied, IpcError::Moved, IpcError::NotBound];
/// In bad weather; then in good weather.
const STEPS: u32 = 200;
const CALM_STEPS_MAX: u32 = 2000;

/// Who goes from a channel, when, and why.
struct Parting {
    node: usize,
    channel: WireChannel,
    step: u64,
    reason: IpcError,
}

/// Parties of all channels go in `weather`, some of both ends.
pub fn part<L: Link>(world: &mut World<L>, weather: Weather, seed: u64) {
    let stage = &mut world.stage;
    let mut partings = Vec::new();
    for channel in stage.nodes[0].channels.keys().copied().collect::<Vec<_>>() {
        let node = stage.chance.below(2) as usize;
        for node in [node, 1 - node].into_iter().take(1 + usize::from(stage.chance.one_in(4))) {
            let step = stage.chance.below(u64::from(STEPS));
            let reason = REASONS[stage.chance.below(3) as usize];
            partings.push(Parting { node, channel, step, reason });
        }
    }
    stage.nodes.iter_mut().for_each(|node| node.may_end = true);
    for step in 0..STEPS + CALM_STEPS_MAX {
        for parting in partings.iter().filter(|parting| parting.step == u64::from(step)) {
            world.stage.leave(parting);
        }
        if step >= STEPS && world.stage.nodes.iter().all(|node| node.peer.channel_count() == 0) {
            break;
        }
        world.step(if step < STEPS { weather } else { Weather::Calm });
    }
    for parting in &partings {
        let far = 1 - parting.node;
        if !partings.iter().any(|other| (other.node, other.channel) == (far, parting.channel)) {
            world.stage.check_parted(far, parting, seed);
        }
    }
    for node in &world.stage.nodes {
        assert_eq!(node.peer.channel_count(), 0, "seed {seed}: every channel has ended");
    }
}

impl Stage {
    /// The last thing the party says, then its end.
    fn leave(&mut self, parting: &Parting) {
        let last = self.goal;
        let node = &mut self.nodes[parting.node];
        let (local, ends) = &node.channels[&parting.channel];
        let mut memory = local.0.borrow_mut();
        match (ends.ring, memory.role) {
            (None, _) => {
                let word = word::next(node.parties[&parting.channel].counted, word::SEND);
                memory.out = Some(carried(word, last));
                (memory.out_state, memory.cancel) = (State::Pending, false);
            }
            (Some(_), LocalRole::Client) => {
                let tail = memory.submission_cursor.tail;
                let entry =
                    Submission { sequence: last, out_bytes: 64, in_capacity: SLOT_BYTES, ..Submission::default() };
                memory.arena[..64].fill(last as u8);
                memory.submissions.insert(tail % ENTRIES, entry);
                memory.submission_cursor.tail += 1;
            }
            (Some(_), LocalRole::Server) => {}
        }
        drop(memory);
        node.parties.remove(&parting.channel);
        node.peer.closed_here(parting.channel, parting.reason);
    }

    fn check_parted(&self, far: usize, parting: &Parting, seed: u64) {
        let (node, channel, last) = (&self.nodes[far], &parting.channel, self.goal);
        assert_eq!(node.ended.get(channel), Some(&parting.reason), "seed {seed}: why {channel:?} ended");
        let (local, ends) = &node.channels[channel];
        let mut memory = local.0.borrow_mut();
        if ends.ring.is_none() {
            let value =
                take(&mut memory).map(|message| value_of(&message)).or(node.parties[channel].received.last().copied());
            assert_eq!(value, Some(last), "seed {seed}: the last message of {channel:?}");
        } else if memory.role == LocalRole::Server {
            assert_eq!(
                u64::from(memory.submission_cursor.tail),
                last + 1,
                "seed {seed}: the last request of {channel:?}"
            );
        }
    }
}
