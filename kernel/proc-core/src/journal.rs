//! Intercepted calls of one node in memory that outlives the call gate: who is killed leaves to its successor which
//! calls it had received, and how far each had come.
//!
//! The keeper holds the memory. The kernel writes a notification straight into a slot, or not at all; everything else
//! is written by the call gate, a word at a time, the word that says how far a call is last. So what is found after a
//! kill at any point is a step that was really reached.
//!
//! ```text
//! words   0 mark and version   1 life of the origin   2.. next sequence of each node   65.. life of each executor
//!       128 slots of 32 words
//! slot    0 id   1 thread, flags   2 number, architecture   3 instruction   4..9 arguments   10..15     the kernel's
//!        16 step, node, sequence  17 listener  18 process, uid  19 euid, power                 the call gate's
//!        20 whether something was read, code  21, 22 values  23 gid
//! ```
//!
//! | step | means |
//! |---|---|
//! | free | word 0 is 0, whatever the others say |
//! | [`CallStep::Received`] | nothing was asked yet |
//! | [`CallStep::Asked`] | an order of this sequence may have been sent |
//! | [`CallStep::Settled`] | the answer is known, and may have been given |

use crate::calls::{CallArgument, Led};
use crate::limits::CALLS_MAX;
use crate::order::{LifeNumber, Sequence};
use crate::permission::{Power, SignalError, Signaller};
use crate::range::{Seat, Seats};

/// Memory of 64-bit words: [`WORDS`] of them, which are 0 at first. A store is seen whole or not at all, and in order,
/// by whoever maps the memory after this process was killed.
pub trait JournalMemory {
    fn load(&self, at: usize) -> u64;
    fn store(&mut self, at: usize, value: u64);
}

/// `DVSCALL` and the version.
const MARK: u64 = u64::from_be_bytes(*b"DVSCALL\x01");
const LIFE: usize = 1;
const NEXT: usize = 2;
const EXECUTORS: usize = 65;
const HEAD_WORDS: usize = 128;
/// Of a slot: the kernel's structure may grow to half of it.
pub const SLOT_WORDS: usize = 32;
pub const WORDS: usize = HEAD_WORDS + CALLS_MAX * SLOT_WORDS;

const ID: usize = 0;
const THREAD: usize = 1;
const NUMBER: usize = 2;
const ARGUMENTS: usize = 4;
const STEP: usize = 16;
const LISTENER: usize = 17;
const SENDER: usize = 18;
const POWER: usize = 19;
const READ: usize = 20;
const VALUE: usize = 21;
const SECOND: usize = 22;
const GID: usize = 23;

const SEQUENCE_BITS: u32 = 48;

const _: () = assert!(NEXT + abi::limits::NODES_PER_DC <= EXECUTORS);
const _: () = assert!(EXECUTORS + abi::limits::NODES_PER_DC <= HEAD_WORDS);

/// Place of a call in the journal.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct SlotIndex(u16);

impl SlotIndex {
    pub fn new(index: usize) -> Option<SlotIndex> {
        u16::try_from(index).ok().filter(|_| index < CALLS_MAX).map(SlotIndex)
    }

    pub fn all() -> impl Iterator<Item = SlotIndex> {
        (0..CALLS_MAX).filter_map(SlotIndex::new)
    }

    /// Its first word, into which the kernel writes.
    pub fn first_word(self) -> usize {
        HEAD_WORDS + usize::from(self.0) * SLOT_WORDS
    }
}

/// What the kernel says of a call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Notification {
    pub id: u64,
    /// Of the host.
    pub thread: u32,
    pub number: libc::c_long,
    pub arguments: [u64; 6],
    /// By which listener it came, in the keeper's numbers.
    pub listener: u64,
}

/// What the caller will hear.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CallAnswer {
    Done,
    /// What a question's answer is.
    Value(u32),
    Failed(SignalError),
    /// The kernel goes on with the call on this node.
    Native,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CallStep {
    Received,
    Asked { node: Seat, sequence: Sequence },
    Settled(CallAnswer),
}

/// The memory holds no journal of this version.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NoJournal;

#[derive(Debug)]
pub struct Journal<M> {
    memory: M,
}

impl<M: JournalMemory> Journal<M> {
    /// In memory that is all 0. The mark comes last: without it there is no journal.
    pub fn make(mut memory: M, life: LifeNumber) -> Journal<M> {
        memory.store(LIFE, life.0);
        for seat in Seat::all() {
            memory.store(NEXT + seat.index(), 1);
        }
        memory.store(0, MARK);
        Journal { memory }
    }

    /// # Errors
    /// There is none, or one of another version.
    pub fn open(memory: M) -> Result<Journal<M>, NoJournal> {
        if memory.load(0) == MARK { Ok(Journal { memory }) } else { Err(NoJournal) }
    }

    pub fn life(&self) -> LifeNumber {
        LifeNumber(self.memory.load(LIFE))
    }

    /// Makes a free slot ready for the kernel, which wants its part to be 0.
    pub fn prepare(&mut self, slot: SlotIndex, listener: u64) {
        for word in 0..SLOT_WORDS {
            self.set(slot, word, 0);
        }
        self.set(slot, LISTENER, listener);
    }

    /// `None`: the slot is free.
    pub fn notification(&self, slot: SlotIndex) -> Option<Notification> {
        let id = self.get(slot, ID);
        let mut arguments = [0; 6];
        for (at, argument) in arguments.iter_mut().enumerate() {
            *argument = self.get(slot, ARGUMENTS + at);
        }
        (id != 0).then(|| Notification {
            id,
            thread: self.get(slot, THREAD) as u32,
            number: libc::c_long::from(self.get(slot, NUMBER) as u32 as i32),
            arguments,
            listener: self.get(slot, LISTENER),
        })
    }

    /// Of a slot that is not free. What no call gate writes is taken for [`CallStep::Received`]: the call begins anew.
    pub fn step(&self, slot: SlotIndex) -> CallStep {
        let word = self.get(slot, STEP);
        let [.., node, kind] = word.to_le_bytes();
        let low = word & ((1 << SEQUENCE_BITS) - 1);
        let failure = || i32::try_from(low).ok().and_then(SignalError::from_errno);
        let asked = || Some(CallStep::Asked { node: Seat::new(usize::from(node))?, sequence: Sequence(low) });
        match kind {
            1 => asked(),
            2 => Some(CallStep::Settled(CallAnswer::Done)),
            3 => failure().map(|error| CallStep::Settled(CallAnswer::Failed(error))),
            4 => Some(CallStep::Settled(CallAnswer::Native)),
            5 => u32::try_from(low).ok().map(|value| CallStep::Settled(CallAnswer::Value(value))),
            _ => None,
        }
        .unwrap_or(CallStep::Received)
    }

    /// Takes the next sequence of a node for a call. Who is killed within leaves a sequence that nobody uses.
    pub fn ask(&mut self, slot: SlotIndex, node: Seat) -> Sequence {
        let sequence = self.next(node);
        self.memory.store(NEXT + node.index(), sequence.0 + 1);
        self.set(slot, STEP, sequence.0 | (node.index() as u64) << SEQUENCE_BITS | 1 << 56);
        sequence
    }

    pub fn settle(&mut self, slot: SlotIndex, answer: CallAnswer) {
        let word = match answer {
            CallAnswer::Done => 2 << 56,
            CallAnswer::Failed(error) => error.errno() as u64 | 3 << 56,
            CallAnswer::Native => 4 << 56,
            CallAnswer::Value(value) => u64::from(value) | 5 << 56,
        };
        self.set(slot, STEP, word);
    }

    pub fn free(&mut self, slot: SlotIndex) {
        self.set(slot, ID, 0);
    }

    /// Who asks. Written before the first order of the call.
    pub fn set_sender(&mut self, slot: SlotIndex, sender: &Signaller) {
        self.set(slot, SENDER, u64::from(sender.pid) | u64::from(sender.uid) << 32);
        let is_all = |power| u64::from(power == Power::All);
        let powers = is_all(sender.power) | is_all(sender.priorities) << 1 | is_all(sender.resources) << 2;
        self.set(slot, GID, u64::from(sender.gid));
        self.set(slot, POWER, u64::from(sender.euid) | powers << 32);
    }

    pub fn sender(&self, slot: SlotIndex) -> Signaller {
        let (first, second) = (self.get(slot, SENDER), self.get(slot, POWER));
        let power = |bit: u32| if second >> 32 & 1 << bit != 0 { Power::All } else { Power::Own };
        let (pid, uid, euid, gid) = (first as u32, (first >> 32) as u32, second as u32, self.get(slot, GID) as u32);
        Signaller { pid, uid, euid, gid, power: power(0), priorities: power(1), resources: power(2) }
    }

    /// What was read of the caller's memory. It is read once: the caller may change it.
    pub fn set_argument(&mut self, slot: SlotIndex, argument: CallArgument) {
        let CallArgument { code, words: [value, second] } = argument;
        self.set(slot, VALUE, value);
        self.set(slot, SECOND, second);
        self.set(slot, READ, 1 << 32 | u64::from(code as u32));
    }

    /// `None`: nothing was read yet.
    pub fn argument(&self, slot: SlotIndex) -> Option<CallArgument> {
        let read = self.get(slot, READ);
        let words = [self.get(slot, VALUE), self.get(slot, SECOND)];
        (read >> 32 != 0).then_some(CallArgument { code: read as u32 as i32, words })
    }

    /// Where a call's descriptor leads, in one store beside what [`Journal::note_ended`] said: both are its argument.
    pub fn set_looked(&mut self, slot: SlotIndex, led: Led) {
        self.set(slot, READ, 1 << 32 | u64::from(led.number()));
    }

    /// Processes of a node ended while a call's descriptor is looked at.
    pub fn note_ended(&mut self, slot: SlotIndex, node: Seat) {
        let ended = Seats::from_bits(self.get(slot, VALUE)).with(node);
        self.set(slot, VALUE, ended.bits());
    }

    /// The sequence that the next order to a node gets.
    pub fn next(&self, node: Seat) -> Sequence {
        Sequence(self.memory.load(NEXT + node.index()))
    }

    /// Whom orders to a node are meant for; `None`: it was never heard of.
    pub fn executor_life(&self, node: Seat) -> Option<LifeNumber> {
        Some(self.memory.load(EXECUTORS + node.index())).filter(|life| *life != 0).map(LifeNumber)
    }

    /// Nothing may be asked of the node's earlier life any more.
    pub fn set_executor_life(&mut self, node: Seat, life: LifeNumber) {
        self.memory.store(EXECUTORS + node.index(), life.0);
    }

    pub fn memory(&self) -> &M {
        &self.memory
    }

    pub fn memory_mut(&mut self) -> &mut M {
        &mut self.memory
    }

    fn get(&self, slot: SlotIndex, word: usize) -> u64 {
        self.memory.load(slot.first_word() + word)
    }

    fn set(&mut self, slot: SlotIndex, word: usize, value: u64) {
        self.memory.store(slot.first_word() + word, value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    impl JournalMemory for Vec<u64> {
        fn load(&self, at: usize) -> u64 {
            self[at]
        }

        fn store(&mut self, at: usize, value: u64) {
            self[at] = value;
        }
    }

    fn journal() -> Journal<Vec<u64>> {
        Journal::make(vec![0; WORDS], LifeNumber(5))
    }

    fn seat(index: usize) -> Seat {
        Seat::new(index).unwrap()
    }

    /// As the kernel writes a notification.
    fn notify(journal: &mut Journal<Vec<u64>>, slot: SlotIndex, id: u64) {
        journal.prepare(slot, 3);
        let first = slot.first_word();
        let words = [id, 4711, libc::SYS_kill as u64 | 0xc000_003e << 32, 0x7fff_1234, 131_072, 15, 0, 0, 0, 6];
        journal.memory[first..first + 10].copy_from_slice(&words);
    }

    #[test]
    fn what_the_kernel_writes_is_read() {
        let (mut journal, slot) = (journal(), SlotIndex::new(CALLS_MAX - 1).unwrap());
        assert_eq!(journal.notification(slot), None);
        notify(&mut journal, slot, 9);
        let read = journal.notification(slot).unwrap();
        assert_eq!((read.id, read.thread, read.number, read.listener), (9, 4711, libc::SYS_kill, 3));
        assert_eq!(read.arguments, [131_072, 15, 0, 0, 0, 6]);
        assert_eq!(journal.step(slot), CallStep::Received);
    }

    #[test]
    fn each_step_is_found_by_a_successor() {
        let (mut journal, slot) = (journal(), SlotIndex::new(0).unwrap());
        notify(&mut journal, slot, 9);
        let sender = Signaller {
            pid: 70_000,
            uid: u32::MAX,
            euid: 7,
            gid: u32::MAX,
            power: Power::Own,
            priorities: Power::All,
            resources: Power::Own,
        };
        journal.set_sender(slot, &sender);
        assert_eq!((journal.ask(slot, seat(62)), journal.next(seat(62))), (Sequence(1), Sequence(2)));
        let mut journal = Journal::open(journal.memory.clone()).unwrap();
        assert_eq!(journal.step(slot), CallStep::Asked { node: seat(62), sequence: Sequence(1) });
        assert_eq!((journal.sender(slot), journal.life()), (sender, LifeNumber(5)));
        assert_eq!(journal.argument(slot), None);
        for (code, words) in [(libc::SI_QUEUE, [u64::MAX, 0]), (0, [7, u64::MAX]), (0, [0, 0])] {
            let argument = CallArgument { code, words };
            journal.set_argument(slot, argument);
            assert_eq!(journal.argument(slot), Some(argument));
        }
        let failed = CallAnswer::Failed(SignalError::Unreachable);
        let answers = [CallAnswer::Done, CallAnswer::Native, CallAnswer::Value(u32::MAX), failed];
        for answer in answers {
            journal.settle(slot, answer);
            assert_eq!(journal.step(slot), CallStep::Settled(answer));
        }
        journal.free(slot);
        assert_eq!(journal.notification(slot), None);
    }

    #[test]
    fn slot_that_is_used_again_has_nothing_of_the_call_before() {
        let (mut journal, slot) = (journal(), SlotIndex::new(1).unwrap());
        notify(&mut journal, slot, 9);
        journal.set_argument(slot, CallArgument { code: libc::SI_QUEUE, words: [1, 2] });
        journal.ask(slot, seat(1));
        journal.free(slot);
        notify(&mut journal, slot, 10);
        assert_eq!((journal.step(slot), journal.argument(slot)), (CallStep::Received, None));
    }

    #[test]
    fn lives_of_executors_are_kept_by_node() {
        let mut journal = journal();
        assert_eq!(journal.executor_life(seat(0)), None);
        journal.set_executor_life(seat(0), LifeNumber(8));
        journal.set_executor_life(seat(62), LifeNumber(9));
        let lives = [0, 1, 62].map(|index| journal.executor_life(seat(index)));
        assert_eq!(lives, [Some(LifeNumber(8)), None, Some(LifeNumber(9))]);
        assert_eq!(journal.next(seat(62)), Sequence(1));
        assert_eq!(journal.notification(SlotIndex::new(0).unwrap()), None);
    }

    #[test]
    fn other_memory_is_no_journal() {
        assert_eq!(Journal::open(vec![0; WORDS]).err(), Some(NoJournal));
        let mut of_another_version = journal().memory;
        of_another_version[0] += 1;
        assert_eq!(Journal::open(of_another_version).err(), Some(NoJournal));
    }

    #[test]
    fn whatever_a_step_word_says_is_a_step() {
        let (mut journal, slot) = (journal(), SlotIndex::new(0).unwrap());
        notify(&mut journal, slot, 9);
        for kind in 0..=255_u64 {
            for low in [0, 1, 3, 113, u64::MAX >> 8] {
                journal.set(slot, STEP, low | kind << 56);
                let step = journal.step(slot);
                assert!(kind.wrapping_sub(1) < 5 || step == CallStep::Received, "{kind} {low}");
            }
        }
    }
}
