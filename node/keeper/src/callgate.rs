//! What the keeper holds for the call gate, which comes and goes: the listeners of all programs, the journal, and the
//! socket to init.
//!
//! The call gate asks over a socket for listeners, a packet at a time: it says the number of the last one that it has
//! (`u64`) and whether it wants to wait for more (`u64`, 0 or 1), and gets how many come (`u64`), their numbers (`u64`
//! each), and as many descriptors. A listener whose last process ended is closed here.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use crate::keeper::Keeper;
use crate::poll::{Interest, Source, Watched};

/// Listeners in one packet.
const LISTENERS_PER_PACKET: usize = sys::seqpacket::DESCRIPTORS_MAX;

/// Each is a descriptor of the keeper, and of the call gate. One stays as long as a process lives that its program
/// started.
pub const LISTENERS_MAX: usize = 8192;

pub struct CallGate {
    listeners: BTreeMap<u32, Watched>,
    last: u32,
    journal: OwnedFd,
    /// To init.
    orders: OwnedFd,
    /// To the call gate of today.
    socket: Option<Watched>,
    /// It waits for a listener after this one.
    waits_after: Option<u64>,
}

impl CallGate {
    pub fn new(orders: OwnedFd, journal_bytes: u64) -> io::Result<CallGate> {
        let journal = sys::memfd::create_sealed("dvs-calls", journal_bytes)?;
        Ok(CallGate { listeners: BTreeMap::new(), last: 0, journal, orders, socket: None, waits_after: None })
    }
}

impl Keeper {
    /// No further program can have a listener.
    pub fn is_full_of_listeners(&self) -> bool {
        // Each that is being launched will bring one.
        let coming = self.programs.values().filter(|program| program.trapped.is_some()).count();
        self.call_gate.as_ref().is_some_and(|gate| gate.listeners.len() + coming >= LISTENERS_MAX)
    }

    /// For a call gate that begins: its socket to the keeper, the journal, its socket to init, the one over which it
    /// asks for memory, and where there are jobs the socket at which they are asked for and the one over which it asks
    /// for far ends; where it says what `/proc` shows, that mount, the kernel's procfs and the socket over which it
    /// asks for lookers. The one before is told by the end of its socket that it is not it any more.
    pub fn begin_call_gate(&mut self) -> io::Result<Option<Vec<OwnedFd>>> {
        let Some(gate) = &mut self.call_gate else { return Ok(None) };
        gate.waits_after = None;
        let theirs = self.poll.open_door(&mut gate.socket, Source::CallGate)?;
        let memory = self.memory.begin(&self.poll)?;
        let mut all = vec![theirs, gate.journal.try_clone()?, gate.orders.try_clone()?, memory];
        if let Some(door) = &mut self.job_door {
            all.extend(door.begin(&self.poll)?);
            if let Some((fuse, _)) = &self.proc_fuse {
                let looks = self.looks.begin(&self.poll)?;
                all.extend([fuse.try_clone()?, self.proc_dir.try_clone()?, looks]);
            }
        }
        Ok(Some(all))
    }

    /// A program's listener came with its socket before the program was executed.
    pub fn take_listener(&mut self, trapped: &OwnedFd) {
        let Some(gate) = &mut self.call_gate else { return };
        let received = sys::seqpacket::receive(trapped, &mut [0; 8]);
        let Some(listener) = received.ok().and_then(|received| received.descriptors.into_iter().next()) else {
            return tracing::error!("a program has no listener: its calls to other nodes fail");
        };
        let number = gate.last.wrapping_add(1);
        match self.poll.watch(listener, Source::Calls(number), Interest::End) {
            Ok(watched) => {
                gate.last = number;
                gate.listeners.insert(number, watched);
                self.hand_out_listeners();
            }
            Err(cause) => tracing::error!(%cause, "a program's calls to other nodes fail"),
        }
    }

    /// Of the program with which calls of this number come.
    pub fn listener(&self, number: u32) -> Option<BorrowedFd<'_>> {
        self.call_gate.as_ref()?.listeners.get(&number).map(AsFd::as_fd)
    }

    pub fn forget_listener(&mut self, number: u32) {
        if let Some(gate) = &mut self.call_gate {
            gate.listeners.remove(&number);
        }
    }

    pub fn hear_call_gate(&mut self) {
        let Some(gate) = &mut self.call_gate else { return };
        let Some(socket) = &gate.socket else { return };
        let mut packet = [0; 16];
        match sys::seqpacket::receive(socket, &mut packet) {
            Ok(received) if received.bytes == packet.len() => {
                let (after, waits) = packet.split_at(8);
                let word = |bytes: &[u8]| bytes.try_into().map_or(0, u64::from_le_bytes);
                let (after, waits) = (word(after), word(waits) != 0);
                gate.waits_after = Some(after);
                if !self.hand_out_listeners() && !waits {
                    self.answer_call_gate(&[]);
                }
            }
            Err(cause) if cause.kind() == io::ErrorKind::WouldBlock => (),
            // Its end, or what no call gate says.
            _ => {
                gate.socket = None;
                gate.waits_after = None;
            }
        }
    }

    /// Gives the call gate what it waits for. False: there is nothing yet.
    fn hand_out_listeners(&mut self) -> bool {
        let Some(gate) = &self.call_gate else { return false };
        let Some(after) = gate.waits_after.and_then(|after| u32::try_from(after).ok()) else { return false };
        let further: Vec<u32> = gate
            .listeners
            .range(after.saturating_add(1)..)
            .map(|(number, _)| *number)
            .take(LISTENERS_PER_PACKET)
            .collect();
        let is_some = !further.is_empty();
        if is_some {
            self.answer_call_gate(&further);
        }
        is_some
    }

    fn answer_call_gate(&mut self, numbers: &[u32]) {
        let Some(gate) = &mut self.call_gate else { return };
        gate.waits_after = None;
        let Some(socket) = &gate.socket else { return };
        let count = std::iter::once(numbers.len() as u64);
        let words = count.chain(numbers.iter().map(|number| u64::from(*number)));
        let packet: Vec<u8> = words.flat_map(u64::to_le_bytes).collect();
        let listeners: Vec<BorrowedFd<'_>> =
            numbers.iter().filter_map(|number| gate.listeners.get(number)).map(AsFd::as_fd).collect();
        // It asked, so there is room for the answer; one that does not read is none.
        if sys::seqpacket::send(socket, &packet, &listeners).is_err() {
            gate.socket = None;
        }
    }
}
