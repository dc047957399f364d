//! A container over three nodes, whatever happens to it decided by a seed: call gates that are killed between any two
//! words they write, links that are cut and given up, shares that are started anew with the same process numbers, nodes
//! that are lost and come back, processes that end and whose numbers are given again.
//!
//! What the kernel does is imitated: it writes a notification into a slot or leaves it in its queue, and takes one
//! answer for each call.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;

use proc_core::calls::{CallArgument, Led, Pointed};
use proc_core::executor::{CallResult, Executor, ProcessTable, Signal};
use proc_core::journal::{CallAnswer, Journal, JournalMemory, SlotIndex, WORDS};
use proc_core::limits::PATIENCE_MS;
use proc_core::order::{LifeNumber, Order, Outcome, ResultBytes, Rlimit, StateQuestion, Whom};
use proc_core::origin::{CallEffect, Origin};
use proc_core::permission::{Power, Receiver, SignalError, Signaller};
use proc_core::range::{Seat, Seats};

/// Small and good enough: the same sequence for the same seed, everywhere.
pub struct Rng(u64);

impl Rng {
    pub fn new(seed: u64) -> Rng {
        Rng(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % end
    }

    pub fn one_in(&mut self, many: u64) -> bool {
        self.below(many) == 0
    }
}

const NODES: usize = 3;
const PROCESSES: u32 = 4;
/// Of the places in which a gate can be killed.
const KILLS_ONE_IN: u64 = 80;
/// Signals tell calls of one caller apart, so each caller makes so many.
const CALLS_OF_A_CALLER: i32 = 60;

/// Memory that stays when its writer is killed, which may happen before any store.
#[derive(Clone)]
pub struct Kept {
    words: Rc<RefCell<Vec<u64>>>,
    /// Stores until the writer is killed; `None`: it is not.
    left: Rc<Cell<Option<u32>>>,
}

impl JournalMemory for Kept {
    fn load(&self, at: usize) -> u64 {
        self.words.borrow()[at]
    }

    fn store(&mut self, at: usize, value: u64) {
        match self.left.get() {
            Some(0) => (),
            left => {
                self.left.set(left.map(|left| left - 1));
                self.words.borrow_mut()[at] = value;
            }
        }
    }
}

/// A process in one of its lives: numbers come again, births do not.
#[derive(Clone, Debug)]
struct Process {
    birth: u64,
    uid: u32,
    /// Its call that waits in the kernel.
    waits: Option<usize>,
}

#[derive(Debug)]
pub struct Call {
    pub from: u32,
    /// Of the caller.
    pub birth: u64,
    pub signal: i32,
    pub to: Whom,
    pub target: Option<Seat>,
    /// Its caller ended.
    pub is_over: bool,
    pub answers: Vec<CallAnswer>,
    /// Who heard it: the birth, the life of its node, and when.
    pub heard: Vec<(u64, u64, u64)>,
    /// The life of the target's node when the call was made, and whether the caller's node knew one.
    pub life_then: u64,
    pub was_known: bool,
    /// What was written into its caller's memory.
    pub written: Vec<ResultBytes>,
}

impl Call {
    /// It sets limits instead of sending a signal, and hears what they were.
    pub fn sets_limits(&self) -> bool {
        matches!(self.to, Whom::Process(_)) && self.signal % 5 == 4
    }
}

/// What the limits were of a process in one of its lives, which nobody else's were.
pub fn limits_of(birth: u64, life: u64) -> Rlimit {
    Rlimit { soft: birth, hard: life }
}

type Connection = (VecDeque<Order>, VecDeque<Outcome>);

struct Gate {
    origin: Origin<Kept>,
    free: Vec<SlotIndex>,
    to_look_at: VecDeque<SlotIndex>,
    acts: VecDeque<CallEffect>,
    /// Calls whose memory is being read.
    reads: VecDeque<(SlotIndex, u64, Pointed)>,
    writes: VecDeque<(SlotIndex, u64, ResultBytes)>,
    looks: VecDeque<(SlotIndex, u64)>,
}

struct Node {
    is_there: bool,
    life: u64,
    executor: Executor,
    processes: BTreeMap<u32, Process>,
    memory: Kept,
    gate: Option<Gate>,
    /// Orders between a gate, which may be gone, and init.
    to_init: VecDeque<(usize, Order)>,
    /// The kernel's: calls by id; those that were not received yet.
    waiting: BTreeMap<u64, usize>,
    queue: VecDeque<u64>,
    next_id: u64,
}

pub struct World {
    pub rng: Rng,
    now_ms: u64,
    count: u64,
    nodes: Vec<Node>,
    /// Orders from the first to the second, and outcomes back.
    connections: BTreeMap<(usize, usize), Connection>,
    cut: Vec<(usize, usize)>,
    pub calls: Vec<Call>,
    made: BTreeMap<u32, i32>,
    pub kills: u64,
}

fn seat(index: usize) -> Seat {
    Seat::new(index).expect("a seat")
}

fn all() -> Seats {
    (0..NODES).map(seat).collect()
}

/// The processes of a node as an executor sees them, while it carries out one order.
struct Here<'a> {
    processes: &'a BTreeMap<u32, Process>,
    life: u64,
    count: &'a mut u64,
    heard: Vec<(u32, i32, (u64, u64, u64))>,
}

impl ProcessTable for Here<'_> {
    type Held = u32;

    fn hold_process(&mut self, process: u32) -> Option<u32> {
        self.processes.contains_key(&process).then_some(process)
    }

    fn hold_thread(&mut self, process: Option<u32>, thread: u32) -> Option<u32> {
        self.hold_process(thread).filter(|_| process.is_none_or(|process| process == thread))
    }

    fn receiver(&mut self, held: &u32) -> Option<Receiver> {
        self.processes.get(held).map(|process| Receiver {
            uid: process.uid,
            suid: process.uid,
            euid: process.uid,
            gids: [process.uid; 3],
        })
    }

    fn members(&mut self, group: u32) -> Vec<u32> {
        self.hold_process(group).into_iter().collect()
    }

    fn everybody(&mut self) -> Vec<u32> {
        self.processes.keys().copied().collect()
    }

    fn send(&mut self, held: &u32, signal: &Signal) -> Result<(), SignalError> {
        *self.count += 1;
        self.heard.push((signal.pid, signal.number, (self.processes[held].birth, self.life, *self.count)));
        Ok(())
    }

    fn ask(&mut self, _: &StateQuestion) -> Result<CallResult, SignalError> {
        unreachable!("nobody asks in this world")
    }

    /// The soft limit says which call it is of.
    fn limits(&mut self, held: &u32, resource: u32, new: Option<Rlimit>) -> Result<Rlimit, SignalError> {
        assert_eq!(resource, 7, "as the caller says");
        let birth = self.processes[held].birth;
        let soft = new.expect("all set them").soft;
        *self.count += 1;
        self.heard.push(((soft >> 32) as u32, soft as u32 as i32, (birth, self.life, *self.count)));
        Ok(limits_of(birth, self.life))
    }

    fn threads(&mut self, process: u32) -> Vec<u32> {
        vec![process]
    }

    fn set_priority(&mut self, _: &u32, _: i32) -> Result<(), SignalError> {
        unreachable!("nobody asks in this world")
    }
}

impl World {
    pub fn new(seed: u64) -> World {
        let mut world = World {
            rng: Rng::new(seed),
            now_ms: 1,
            count: 0,
            nodes: Vec::new(),
            connections: BTreeMap::new(),
            cut: Vec::new(),
            calls: Vec::new(),
            made: BTreeMap::new(),
            kills: 0,
        };
        for index in 0..NODES {
            let memory = Kept { words: Rc::default(), left: Rc::default() };
            world.nodes.push(Node {
                is_there: false,
                life: 0,
                executor: Executor::new(seat(index), LifeNumber(1), all()),
                processes: BTreeMap::new(),
                memory,
                gate: None,
                to_init: VecDeque::new(),
                waiting: BTreeMap::new(),
                queue: VecDeque::new(),
                next_id: 1,
            });
            world.begin_share(index);
        }
        world
    }

    fn new_birth(&mut self) -> u64 {
        self.count += 1;
        self.count
    }

    /// Init, processes and an empty journal, all anew. Process numbers are those of the life before.
    fn begin_share(&mut self, index: usize) {
        self.end_share(index);
        let first = seat(index).first_pid();
        let births: Vec<u64> = (0..PROCESSES).map(|_| self.new_birth()).collect();
        let uids: Vec<u32> = births.iter().map(|_| self.rng.below(3) as u32).collect();
        let node = &mut self.nodes[index];
        node.life += 1;
        node.is_there = true;
        node.executor = Executor::new(seat(index), LifeNumber(node.life), all());
        let process = |(birth, uid)| Process { birth, uid, waits: None };
        node.processes = (first..).zip(births.into_iter().zip(uids).map(process)).collect();
        node.memory = Kept { words: Rc::new(RefCell::new(vec![0; WORDS])), left: Rc::default() };
        Journal::make(node.memory.clone(), LifeNumber(node.life));
    }

    fn end_share(&mut self, index: usize) {
        self.kill_gate(index);
        let node = &mut self.nodes[index];
        node.is_there = false;
        node.to_init.clear();
        node.queue.clear();
        let ended: Vec<usize> = std::mem::take(&mut node.waiting).into_values().collect();
        node.processes.clear();
        ended.into_iter().for_each(|call| self.calls[call].is_over = true);
    }

    fn kill_gate(&mut self, index: usize) {
        let Some(gate) = self.nodes[index].gate.take() else { return };
        // Who writes for it is another process, and may be done or not.
        for (_, id, bytes) in gate.writes {
            if self.rng.one_in(2) {
                let _ = self.write(index, id, bytes);
            }
        }
        self.kills += 1;
        self.nodes[index].memory.left.set(None);
        for other in 0..NODES {
            self.disconnect(index, other);
            self.disconnect(other, index);
        }
    }

    /// Into the memory of the caller, if it waits.
    fn write(&mut self, index: usize, id: u64, bytes: ResultBytes) -> Result<(), SignalError> {
        let call = self.nodes[index].waiting.get(&id).ok_or(SignalError::NoProcess)?;
        self.calls[*call].written.push(bytes);
        Ok(())
    }

    /// What was on its way may have arrived, or not.
    fn disconnect(&mut self, from: usize, to: usize) {
        let Some((orders, _)) = self.connections.remove(&(from, to)) else { return };
        if self.nodes[to].is_there {
            let arrived = self.rng.below(orders.len() as u64 + 1) as usize;
            self.nodes[to].to_init.extend(orders.into_iter().take(arrived).map(|order| (from, order)));
        }
        let now = self.now_ms;
        if let Some(gate) = &mut self.nodes[from].gate {
            gate.origin.parted(seat(to), now);
        }
    }

    fn start_gate(&mut self, index: usize) {
        let now = self.now_ms;
        let node = &mut self.nodes[index];
        if !node.is_there || node.gate.is_some() {
            return;
        }
        let journal = Journal::open(node.memory.clone()).expect("a journal");
        let (origin, found, acts) = Origin::resume(seat(index), all(), journal, now);
        let gate = Gate {
            origin,
            free: found.free,
            to_look_at: found.received.into(),
            acts: acts.into(),
            reads: VecDeque::new(),
            writes: VecDeque::new(),
            looks: VecDeque::new(),
        };
        node.gate = Some(gate);
        for other in 0..NODES {
            if !self.nodes[other].is_there {
                self.with_origin(index, |origin, _| origin.fenced(seat(other)));
            }
        }
    }

    /// Calls into the state machine; its gate may be killed before any word it writes.
    fn with_origin(&mut self, index: usize, call: impl FnOnce(&mut Origin<Kept>, u64) -> Vec<CallEffect>) {
        let kills = self.rng.one_in(KILLS_ONE_IN).then(|| self.rng.below(6) as u32);
        let now = self.now_ms;
        let node = &mut self.nodes[index];
        let Some(gate) = &mut node.gate else { return };
        node.memory.left.set(kills);
        let acts = call(&mut gate.origin, now);
        gate.acts.extend(acts);
        if node.memory.left.get() == Some(0) {
            self.kill_gate(index);
        }
        self.nodes[index].memory.left.set(None);
    }

    pub fn turn(&mut self) {
        let (index, other) = (self.rng.below(NODES as u64) as usize, self.rng.below(NODES as u64) as usize);
        match self.rng.below(10_000) {
            0..=999 => self.make_call(index),
            1000..=2199 => self.receive(index),
            2200..=4299 => self.act(index),
            4300..=5499 => self.order_arrives(index, other),
            5500..=6999 => self.init_works(index),
            7000..=8199 => self.outcome_arrives(index, other),
            8200..=9199 => self.connect(index, other),
            9200..=9799 => self.start_gate(index),
            9800..=9839 => self.kill_gate(index),
            9840..=9869 => self.number_is_given_anew(index),
            9870..=9899 => self.cut(index, other),
            9900..=9939 => drop(self.cut.pop()),
            9940..=9949 => self.give_up(index, other),
            9950..=9954 => self.begin_share(index),
            9955..=9959 => self.lose(index),
            9960..=9979 if !self.nodes[index].is_there => self.begin_share(index),
            _ => self.time_passes(),
        }
    }

    /// Everything is repaired, and what waits ends.
    pub fn settle(&mut self) {
        self.cut.clear();
        for _ in 0..20_000 {
            for index in 0..NODES {
                self.start_gate(index);
                self.receive(index);
                self.act(index);
                self.init_works(index);
                for other in 0..NODES {
                    self.connect(index, other);
                    self.order_arrives(index, other);
                    self.outcome_arrives(index, other);
                }
            }
            if self.nodes.iter().all(|node| node.waiting.is_empty() && node.to_init.is_empty()) {
                return;
            }
        }
        let left: Vec<_> = self.nodes.iter().map(|node| (&node.waiting, &node.queue, node.to_init.len())).collect();
        panic!("calls are never answered: {left:?}");
    }

    fn make_call(&mut self, index: usize) {
        let from = seat(index).first_pid() + self.rng.below(u64::from(PROCESSES)) as u32;
        let other = seat((index + 1 + self.rng.below(NODES as u64 - 1) as usize) % NODES);
        // One more than there are: nobody has that number.
        let number = other.first_pid() + self.rng.below(u64::from(PROCESSES) + 1) as u32;
        let to = match self.rng.below(8) {
            0 => Whom::Everybody,
            1 => Whom::Group(number),
            2 => Whom::Thread { process: Some(number), thread: number },
            _ => Whom::Process(number),
        };
        let made = self.made.entry(from).or_default();
        let node = &mut self.nodes[index];
        let Some(process) = node.processes.get_mut(&from) else { return };
        if process.waits.is_some() || *made == CALLS_OF_A_CALLER || !node.is_there {
            return;
        }
        *made += 1;
        let signal = *made;
        let birth = process.birth;
        process.waits = Some(self.calls.len());
        node.waiting.insert(node.next_id, self.calls.len());
        node.queue.push_back(node.next_id);
        node.next_id += 1;
        let journal = Journal::open(node.memory.clone()).expect("a journal");
        let was_known = journal.executor_life(other).is_some();
        let target = (to != Whom::Everybody).then_some(other);
        let life_then = self.nodes[other.index()].life;
        let (is_over, answers, heard, written) = (false, Vec::new(), Vec::new(), Vec::new());
        let call = Call { from, birth, signal, to, target, is_over, answers, heard, life_then, was_known, written };
        self.calls.push(call);
    }

    /// The kernel writes a call into a free slot, and the gate looks who makes it.
    fn receive(&mut self, index: usize) {
        let node = &mut self.nodes[index];
        let Some(gate) = &mut node.gate else { return };
        let looked_at = gate.to_look_at.pop_front().or_else(|| {
            let slot = gate.free.pop()?;
            let Some(id) = node.queue.pop_front() else {
                gate.free.push(slot);
                return None;
            };
            gate.origin.journal_mut().prepare(slot, 1);
            let call = &self.calls[node.waiting[&id]];
            let number = |to: u32| u64::from(to);
            let signal = call.signal as u64;
            let (queues, by_descriptor) = (signal % 3 == 1, signal % 3 == 2);
            let (call, arguments) = match call.to {
                Whom::Process(to) if call.sets_limits() => (libc::SYS_prlimit64 as u64, [number(to), 7, id]),
                Whom::Process(to) if queues => (libc::SYS_rt_sigqueueinfo as u64, [number(to), signal, id]),
                // The number says which call it is of, and so where it leads.
                Whom::Process(_) if by_descriptor => (libc::SYS_pidfd_send_signal as u64, [id, signal, 0]),
                Whom::Process(to) => (libc_kill(), [number(to), signal, 0]),
                Whom::Group(to) => (libc_kill(), [number(to).wrapping_neg(), signal, 0]),
                Whom::Everybody => (libc_kill(), [u64::MAX, signal, 0]),
                Whom::Thread { process, thread } => {
                    (libc_tgkill(), [number(process.expect("a process")), number(thread), signal])
                }
            };
            // The last one: where limits are written, or flags that are none.
            let last = if call == libc::SYS_prlimit64 as u64 { id } else { 0 };
            let words = [id, 4711, call, 0, arguments[0], arguments[1], arguments[2], last];
            let first = slot.first_word();
            node.memory.words.borrow_mut()[first..first + words.len()].copy_from_slice(&words);
            Some(slot)
        });
        let Some(slot) = looked_at else { return };
        // Who is killed between the kernel's word and the look leaves the slot as it is.
        if self.rng.one_in(KILLS_ONE_IN) {
            return self.kill_gate(index);
        }
        let node = &self.nodes[index];
        let id = node.memory.load(slot.first_word());
        let sender = node.waiting.get(&id).map(|call| {
            let from = self.calls[*call].from;
            let uid = node.processes[&from].uid;
            let power = if uid == 0 { Power::All } else { Power::Own };
            Signaller { pid: from, uid, euid: uid, gid: uid, power, priorities: power, resources: power }
        });
        self.with_origin(index, |origin, _| origin.received(slot, sender));
    }

    fn act(&mut self, index: usize) {
        let node = &mut self.nodes[index];
        let Some(gate) = &mut node.gate else { return };
        match gate.acts.pop_front() {
            None => {
                // What is read comes late, and after other things.
                if let Some((slot, id)) = gate.looks.pop_front() {
                    let call = node.waiting.get(&id).map(|call| self.calls[*call].to);
                    let led = match call {
                        Some(Whom::Process(process)) => Led::To(process),
                        _ => Led::Elsewhere,
                    };
                    return self.with_origin(index, |origin, _| origin.looked(slot, id, led));
                }
                if let Some((slot, id, bytes)) = gate.writes.pop_front() {
                    let done = self.write(index, id, bytes);
                    return self.with_origin(index, |origin, _| origin.finished(slot, id, done));
                }
                let Some((slot, id, pointed)) = gate.reads.pop_front() else { return };
                let read = node.waiting.get(&id).map(|call| {
                    let call = &self.calls[*call];
                    match pointed {
                        Pointed::Siginfo => CallArgument { code: libc::SI_QUEUE, words: [id, 0] },
                        Pointed::Rlimit => {
                            let which = u64::from(call.from) << 32 | call.signal as u64;
                            CallArgument { code: 0, words: [which, u64::MAX] }
                        }
                    }
                });
                let read = read.ok_or(SignalError::NoProcess);
                self.with_origin(index, |origin, _| origin.read(slot, id, read));
            }
            Some(CallEffect::Read { slot, notification, address, pointed }) => {
                assert_eq!(address, notification.id, "where the caller says");
                gate.reads.push_back((slot, notification.id, pointed));
            }
            Some(CallEffect::Write { slot, notification, address, bytes }) => {
                assert_eq!(address, notification.id, "where the caller says");
                gate.writes.push_back((slot, notification.id, bytes));
            }
            Some(CallEffect::Hold { .. }) => unreachable!("nobody opens processes in this world"),
            Some(CallEffect::Look { slot, notification, descriptor }) => {
                assert_eq!(descriptor, notification.id as i32, "the one that the caller names");
                gate.looks.push_back((slot, notification.id));
            }
            Some(CallEffect::Send { to, order }) => {
                let order = Order::decode(&order.encode()).expect("what is sent is understood");
                if let Some((orders, _)) = self.connections.get_mut(&(index, to.index())) {
                    orders.push_back(order);
                }
            }
            Some(CallEffect::Answer { slot, notification, answer }) => {
                if let Some(call) = node.waiting.remove(&notification.id) {
                    let call = &mut self.calls[call];
                    call.answers.push(answer);
                    if let Some(process) = node.processes.get_mut(&call.from) {
                        process.waits = None;
                    }
                }
                if self.rng.one_in(KILLS_ONE_IN) {
                    return self.kill_gate(index);
                }
                self.with_origin(index, |origin, _| {
                    origin.answered(slot);
                    Vec::new()
                });
                if let Some(gate) = &mut self.nodes[index].gate {
                    gate.free.push(slot);
                }
            }
        }
    }

    fn order_arrives(&mut self, from: usize, to: usize) {
        if self.is_cut(from, to) {
            return;
        }
        if let Some(order) = self.connections.get_mut(&(from, to)).and_then(|(orders, _)| orders.pop_front()) {
            self.nodes[to].to_init.push_back((from, order));
        }
    }

    fn init_works(&mut self, index: usize) {
        let node = &mut self.nodes[index];
        let Some((from, order)) = node.to_init.pop_front() else { return };
        let mut here = Here { processes: &node.processes, life: node.life, count: &mut self.count, heard: Vec::new() };
        let outcome = node.executor.carry_out(&order, &mut here);
        for (pid, signal, heard) in here.heard {
            let call = self.calls.iter_mut().find(|call| call.from == pid && call.signal == signal);
            call.expect("nobody made this call").heard.push(heard);
        }
        let outcome = Outcome::decode(&outcome.encode()).expect("what is said is understood");
        if let Some((_, outcomes)) = self.connections.get_mut(&(from, index)) {
            outcomes.push_back(outcome);
        }
    }

    fn outcome_arrives(&mut self, from: usize, to: usize) {
        if self.is_cut(from, to) {
            return;
        }
        if let Some(outcome) = self.connections.get_mut(&(from, to)).and_then(|(_, outcomes)| outcomes.pop_front()) {
            self.with_origin(from, |origin, _| origin.outcome(seat(to), outcome));
        }
    }

    fn connect(&mut self, from: usize, to: usize) {
        let both = self.nodes[from].gate.is_some() && self.nodes[to].gate.is_some();
        if from == to || !both || self.is_cut(from, to) || self.connections.contains_key(&(from, to)) {
            return;
        }
        // A gate receives what there is before it hears who is at the other end.
        let node = &self.nodes[from];
        if !node.queue.is_empty() || node.gate.as_ref().is_some_and(|gate| !gate.to_look_at.is_empty()) {
            return;
        }
        self.connections.insert((from, to), Connection::default());
        let life = self.nodes[to].executor.life();
        self.with_origin(from, |origin, _| origin.greeted(seat(to), life));
    }

    fn cut(&mut self, one: usize, other: usize) {
        if one != other && self.cut.len() < 2 {
            self.cut.push((one, other));
        }
    }

    fn is_cut(&self, one: usize, other: usize) -> bool {
        self.cut.iter().any(|pair| *pair == (one, other) || *pair == (other, one))
    }

    fn give_up(&mut self, one: usize, other: usize) {
        if self.is_cut(one, other) {
            for (from, to) in [(one, other), (other, one)] {
                self.disconnect(from, to);
                self.with_origin(from, |origin, _| origin.given_up(seat(to)));
            }
        }
    }

    /// A node is lost, and the engine says so; or one that was lost is back.
    fn lose(&mut self, index: usize) {
        if !self.nodes[index].is_there {
            return self.begin_share(index);
        }
        self.end_share(index);
        for other in (0..NODES).filter(|other| *other != index) {
            self.with_origin(other, |origin, _| origin.fenced(seat(index)));
        }
    }

    fn number_is_given_anew(&mut self, index: usize) {
        let (pid, birth) = (seat(index).first_pid() + self.rng.below(u64::from(PROCESSES)) as u32, self.new_birth());
        let uid = self.rng.below(3) as u32;
        let node = &mut self.nodes[index];
        let Some(before) = node.processes.insert(pid, Process { birth, uid, waits: None }) else {
            node.processes.remove(&pid);
            return;
        };
        if let Some(call) = before.waits {
            self.calls[call].is_over = true;
            node.waiting.retain(|_, waiting| *waiting != call);
            let waiting = &node.waiting;
            node.queue.retain(|id| waiting.contains_key(id));
        }
    }

    fn time_passes(&mut self) {
        self.now_ms += self.rng.below(PATIENCE_MS / 4);
        for index in 0..NODES {
            self.with_origin(index, |origin, now| origin.tick(now));
        }
    }

    pub fn remembered(&self) -> usize {
        self.nodes.iter().map(|node| node.executor.remembered()).sum()
    }
}

fn libc_kill() -> u64 {
    libc::SYS_kill as u64
}

fn libc_tgkill() -> u64 {
    libc::SYS_tgkill as u64
}
