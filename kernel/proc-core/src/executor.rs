//! Carries out what other nodes ask of this one's processes, each order at most once.
//!
//! It lives in the container's init: deciding, sending and remembering is one step of a process that ends only together
//! with all processes an outcome could be about. So an outcome is true, and what is remembered needs no disk.
//!
//! For each origin it knows the life, below which sequence everything is settled, and the outcomes from there on: at
//! most [`WINDOW`], of which a place is taken only when its order came.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use crate::limits::{ROUNDS_MAX, WINDOW};
use crate::order::{
    Deed, LifeNumber, Order, OrderResult, Outcome, Payload, ResultBytes, Rlimit, Sequence, SignalCall, Stale,
    StateQuestion, Whom, Whose,
};
use crate::permission::{self, Receiver, SameSession, SignalError, Signaller};
use crate::range::{Seat, Seats};

/// A signal as its receiver hears it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Signal {
    /// 1 to 64.
    pub number: i32,
    pub pid: u32,
    pub uid: u32,
    pub payload: Payload,
}

/// What a system call gives back: a number, and what it puts into its caller's memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CallResult {
    pub value: u32,
    pub data: ResultBytes,
}

impl CallResult {
    pub fn number(value: u32) -> CallResult {
        CallResult { value, data: ResultBytes::NONE }
    }

    /// 0 and these bytes.
    ///
    /// # Errors
    /// More than travels.
    pub fn bytes(bytes: &[u8]) -> Result<CallResult, SignalError> {
        Ok(CallResult { value: 0, data: ResultBytes::of(bytes).ok_or(SignalError::Invalid)? })
    }
}

/// The processes of this node, as the kernel has them.
pub trait ProcessTable {
    /// A process, or a thread of it, that stays the one it is whatever becomes of its number.
    type Held;

    /// `None`: there is none. PID 1 is nobody.
    fn hold_process(&mut self, process: u32) -> Option<Self::Held>;

    /// `None`: there is none, or it is not of this process.
    fn hold_thread(&mut self, process: Option<u32>, thread: u32) -> Option<Self::Held>;

    /// `None`: it ended.
    fn receiver(&mut self, held: &Self::Held) -> Option<Receiver>;

    fn members(&mut self, group: u32) -> Vec<u32>;

    /// All but PID 1, and but the remote ends of jobs: their deputies hear what everybody hears, and pass it on.
    fn everybody(&mut self) -> Vec<u32>;

    /// # Errors
    /// It ended meanwhile, or as many signals are queued as it may have.
    fn send(&mut self, held: &Self::Held, signal: &Signal) -> Result<(), SignalError>;

    /// What the kernel says to everybody who asks; not [`StateQuestion::Setpriority`] and [`StateQuestion::Prlimit`].
    ///
    /// # Errors
    /// There is none.
    fn ask(&mut self, question: &StateQuestion) -> Result<CallResult, SignalError>;

    /// The limits as they are, or were before these.
    ///
    /// # Errors
    /// It ended meanwhile, there is no such limit, or it may not be so.
    fn limits(&mut self, process: &Self::Held, resource: u32, new: Option<Rlimit>) -> Result<Rlimit, SignalError>;

    /// All threads of a process.
    fn threads(&mut self, process: u32) -> Vec<u32>;

    /// # Errors
    /// It ended meanwhile, or may not have so high a priority.
    fn set_priority(&mut self, thread: &Self::Held, niceness: i32) -> Result<(), SignalError>;
}

#[derive(Debug)]
pub struct Executor {
    own: Seat,
    life: LifeNumber,
    /// Those that may ask.
    peers: Seats,
    origins: BTreeMap<Seat, Origin>,
}

#[derive(Debug)]
struct Origin {
    life: LifeNumber,
    settled_below: Sequence,
    /// The first is that of `settled_below`.
    outcomes: VecDeque<Option<Remembered>>,
}

/// Of an order that was carried out. Few have data.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Remembered {
    carried: OrderResult,
    data: Option<Box<ResultBytes>>,
}

impl Remembered {
    fn of(said: Result<CallResult, SignalError>) -> Remembered {
        match said {
            Ok(CallResult { value, data }) => {
                let data = (data != ResultBytes::NONE).then(|| Box::new(data));
                Remembered { carried: OrderResult::Done(value), data }
            }
            Err(error) => Remembered { carried: OrderResult::Failed(error), data: None },
        }
    }
}

impl Executor {
    /// `peers`: the other nodes of the container. Nobody else is heard.
    pub fn new(own: Seat, life: LifeNumber, peers: Seats) -> Executor {
        Executor { own, life, peers: peers.without(own), origins: BTreeMap::new() }
    }

    pub fn life(&self) -> LifeNumber {
        self.life
    }

    pub fn carry_out(&mut self, order: &Order, processes: &mut impl ProcessTable) -> Outcome {
        let (carried, data) = match self.place(order) {
            Ok(place) => {
                let carry_out = || Remembered::of(carry_out(&order.deed, &order.sender, processes));
                let Remembered { carried, data } = place.get_or_insert_with(carry_out);
                (*carried, data.as_deref().copied().unwrap_or(ResultBytes::NONE))
            }
            Err(stale) => (OrderResult::Refused(stale), ResultBytes::NONE),
        };
        let Order { origin, origin_life, sequence, .. } = *order;
        Outcome { origin, origin_life, sequence, carried, data }
    }

    /// Where the outcome of an order lies, or will.
    fn place(&mut self, order: &Order) -> Result<&mut Option<Remembered>, Stale> {
        if order.executor_life != self.life {
            return Err(Stale::Executor);
        }
        if !self.peers.contains(order.origin) {
            return Err(Stale::Origin);
        }
        let new = || Origin { life: order.origin_life, settled_below: Sequence(1), outcomes: VecDeque::new() };
        let origin = self.origins.entry(order.origin).or_insert_with(new);
        if order.origin_life < origin.life {
            return Err(Stale::Origin);
        }
        if order.origin_life > origin.life {
            *origin = new();
        }
        origin.settle(order.settled_below);
        let at = order.sequence.0.checked_sub(origin.settled_below.0).filter(|at| *at < WINDOW);
        let at = at.ok_or(Stale::Sequence)? as usize;
        if origin.outcomes.len() <= at {
            origin.outcomes.resize(at + 1, None);
        }
        origin.outcomes.get_mut(at).ok_or(Stale::Sequence)
    }

    /// Outcomes that are remembered.
    pub fn remembered(&self) -> usize {
        self.origins.values().map(|origin| origin.outcomes.len()).sum()
    }

    /// Nodes came to the container, or left it.
    pub fn set_peers(&mut self, peers: Seats) {
        self.peers = peers.without(self.own);
        self.origins.retain(|seat, _| peers.contains(*seat));
    }
}

impl Origin {
    /// Forgets what nobody asks for any more. An order that was overtaken by a later one says less; that changes
    /// nothing.
    fn settle(&mut self, below: Sequence) {
        let settled = below.0.saturating_sub(self.settled_below.0);
        let forgotten = usize::try_from(settled).unwrap_or(usize::MAX).min(self.outcomes.len());
        self.outcomes.drain(..forgotten);
        self.settled_below = self.settled_below.max(below);
    }
}

fn carry_out(deed: &Deed, sender: &Signaller, processes: &mut impl ProcessTable) -> Result<CallResult, SignalError> {
    match deed {
        Deed::Signal(call) => signal(call, sender, processes).map(CallResult::number),
        Deed::Ask(StateQuestion::Setpriority { whose, niceness }) => {
            set_priority(*whose, *niceness, sender, processes).map(|()| CallResult::number(0))
        }
        Deed::Ask(StateQuestion::Prlimit { of, resource, new }) => limits(*of, *resource, *new, sender, processes),
        Deed::Ask(question) => processes.ask(question),
    }
}

/// Who may is asked before whether there is such a limit, as the kernel does.
fn limits(
    of: u32,
    resource: u32,
    new: Option<Rlimit>,
    sender: &Signaller,
    processes: &mut impl ProcessTable,
) -> Result<CallResult, SignalError> {
    let held = processes.hold_process(of).ok_or(SignalError::NoProcess)?;
    let owner = processes.receiver(&held).ok_or(SignalError::NoProcess)?;
    permission::check_limits(sender, owner)?;
    CallResult::bytes(&processes.limits(&held, resource, new)?.bytes())
}

/// Of several threads as the kernel does it: who may not stops nobody, and the last failure is said.
fn set_priority(
    whose: Whose,
    niceness: i32,
    sender: &Signaller,
    processes: &mut impl ProcessTable,
) -> Result<(), SignalError> {
    let threads = match whose {
        Whose::Task(thread) => vec![thread],
        Whose::Group(leader) => {
            let members = processes.members(leader);
            members.into_iter().flat_map(|process| processes.threads(process)).collect()
        }
    };
    let mut said = Err(SignalError::NoProcess);
    for thread in threads {
        let Some(held) = processes.hold_thread(None, thread) else { continue };
        let Some(of) = processes.receiver(&held) else { continue };
        match permission::check_priority(sender, of).and_then(|()| processes.set_priority(&held, niceness)) {
            Ok(()) if said == Err(SignalError::NoProcess) => said = Ok(()),
            Ok(()) => (),
            Err(error) => said = Err(error),
        }
    }
    said
}

/// How many processes were looked at.
fn signal<P: ProcessTable>(call: &SignalCall, sender: &Signaller, processes: &mut P) -> Result<u32, SignalError> {
    let to = |held: Option<P::Held>, processes: &mut P| {
        let held = held.ok_or(SignalError::NoProcess)?;
        let receiver = processes.receiver(&held).ok_or(SignalError::NoProcess)?;
        permission::check(call.signal, sender, receiver, SameSession::No)?;
        if call.signal == 0 {
            return Ok(());
        }
        let signal = Signal { number: call.signal, pid: sender.pid, uid: sender.uid, payload: call.payload };
        processes.send(&held, &signal)
    };
    match call.whom {
        Whom::Process(process) => {
            let held = processes.hold_process(process);
            to(held, processes).map(|()| 1)
        }
        Whom::Thread { process, thread } => {
            let held = processes.hold_thread(process, thread);
            to(held, processes).map(|()| 1)
        }
        Whom::Group(leader) => {
            // As the kernel's: one that heard it makes it a success; else what was said of the last one.
            let (mut heard, mut last) = (0, Err(SignalError::NoProcess));
            for process in processes.members(leader) {
                let held = processes.hold_process(process);
                last = to(held, processes);
                heard += u32::from(last.is_ok());
            }
            if heard > 0 { Ok(heard) } else { last.map(|()| 0) }
        }
        Whom::Everybody => {
            let (mut known, mut failure) = (BTreeSet::new(), None);
            for _ in 0..ROUNDS_MAX {
                let new: Vec<u32> =
                    processes.everybody().into_iter().filter(|process| known.insert(*process)).collect();
                if new.is_empty() {
                    break;
                }
                for process in new {
                    let held = processes.hold_process(process);
                    match to(held, processes) {
                        Ok(()) | Err(SignalError::NotPermitted | SignalError::NoProcess) => (),
                        Err(error) => failure = Some(error),
                    }
                }
            }
            failure.map_or(Ok(known.len() as u32), Err)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::permission::Power;

    /// ProcessTable by number, with a uid each; what was sent to whom.
    #[derive(Default)]
    struct Table {
        uids: BTreeMap<u32, u32>,
        groups: BTreeMap<u32, Vec<u32>>,
        sent: Vec<(u32, i32)>,
        /// Whose niceness was set.
        set: Vec<(u32, i32)>,
        /// Numbers that are forked, one in each round.
        forks: Vec<u32>,
        /// One for each process.
        limits: BTreeMap<u32, Rlimit>,
    }

    impl ProcessTable for Table {
        type Held = u32;

        fn hold_process(&mut self, process: u32) -> Option<u32> {
            self.uids.contains_key(&process).then_some(process)
        }

        fn hold_thread(&mut self, process: Option<u32>, thread: u32) -> Option<u32> {
            // Each process has one more thread, with the number after its own.
            let owner = if self.uids.contains_key(&thread) { thread } else { thread - 1 };
            (self.uids.contains_key(&owner) && process.is_none_or(|process| process == owner)).then_some(owner)
        }

        fn receiver(&mut self, held: &u32) -> Option<Receiver> {
            self.uids.get(held).map(|uid| Receiver { uid: *uid, suid: *uid, euid: *uid, gids: [*uid; 3] })
        }

        fn members(&mut self, group: u32) -> Vec<u32> {
            self.groups.get(&group).cloned().unwrap_or_default()
        }

        fn everybody(&mut self) -> Vec<u32> {
            if let Some(child) = self.forks.pop() {
                self.uids.insert(child, 1);
            }
            self.uids.keys().copied().collect()
        }

        fn send(&mut self, held: &u32, signal: &Signal) -> Result<(), SignalError> {
            self.sent.push((*held, signal.number));
            Ok(())
        }

        fn ask(&mut self, question: &StateQuestion) -> Result<CallResult, SignalError> {
            let StateQuestion::Getpgid(process) = question else { return Err(SignalError::NoProcess) };
            self.uids.get(process).map(|_| CallResult::number(*process)).ok_or(SignalError::NoProcess)
        }

        fn limits(&mut self, process: &u32, resource: u32, new: Option<Rlimit>) -> Result<Rlimit, SignalError> {
            let known = self.limits.entry(*process).or_insert(Rlimit { soft: 1, hard: 2 });
            let before = *known;
            if resource > 15 {
                return Err(SignalError::Invalid);
            }
            *known = new.unwrap_or(before);
            Ok(before)
        }

        fn threads(&mut self, process: u32) -> Vec<u32> {
            vec![process, process + 1]
        }

        fn set_priority(&mut self, thread: &u32, niceness: i32) -> Result<(), SignalError> {
            self.set.push((*thread, niceness));
            if niceness < 0 { Err(SignalError::Denied) } else { Ok(()) }
        }
    }

    const EXECUTOR: LifeNumber = LifeNumber(7);

    fn seat(index: usize) -> Seat {
        Seat::new(index).unwrap()
    }

    fn executor() -> Executor {
        Executor::new(seat(1), EXECUTOR, [seat(0), seat(1), seat(2)].into_iter().collect())
    }

    fn order(life: u64, sequence: u64, settled_below: u64, whom: Whom, signal: i32) -> Order {
        Order {
            origin: seat(0),
            origin_life: LifeNumber(life),
            sequence: Sequence(sequence),
            settled_below: Sequence(settled_below),
            executor_life: EXECUTOR,
            sender: Signaller {
                pid: 70_000,
                uid: 1,
                euid: 1,
                gid: 1,
                power: Power::Own,
                priorities: Power::Own,
                resources: Power::Own,
            },
            deed: Deed::Signal(SignalCall { whom, signal, payload: Payload::NONE }),
        }
    }

    fn table() -> Table {
        Table { uids: [(131_072, 1), (131_080, 2), (131_090, 1)].into(), ..Table::default() }
    }

    #[test]
    fn order_that_comes_again_is_answered_and_not_carried_out() {
        let (mut executor, mut table) = (executor(), table());
        let asked = order(1, 1, 1, Whom::Process(131_072), 15);
        let first = executor.carry_out(&asked, &mut table);
        table.uids.clear();
        assert_eq!(executor.carry_out(&asked, &mut table), first);
        assert_eq!((first.carried, table.sent), (OrderResult::Done(1), vec![(131_072, 15)]));
    }

    fn question(sequence: u64, question: StateQuestion) -> Order {
        Order { deed: Deed::Ask(question), ..order(1, sequence, 1, Whom::Everybody, 0) }
    }

    #[test]
    fn question_that_comes_again_is_answered_as_before() {
        let (mut executor, mut table) = (executor(), table());
        let asked = question(1, StateQuestion::Getpgid(131_072));
        let first = executor.carry_out(&asked, &mut table);
        table.uids.clear();
        assert_eq!((executor.carry_out(&asked, &mut table), first.carried), (first, OrderResult::Done(131_072)));
        let gone = executor.carry_out(&question(2, StateQuestion::Getpgid(131_072)), &mut table);
        assert_eq!(gone.carried, OrderResult::Failed(SignalError::NoProcess));
    }

    #[test]
    fn limits_are_set_once_and_what_they_were_is_said_again() {
        let (mut executor, mut table) = (executor(), table());
        let limit = |of, resource, new| StateQuestion::Prlimit { of, resource, new };
        let (first, second) = (Rlimit { soft: 3, hard: 4 }, Rlimit { soft: 5, hard: 6 });
        let mut said = |sequence, asked| {
            let outcome = executor.carry_out(&question(sequence, asked), &mut table);
            (outcome.carried, outcome.data)
        };
        let data = |soft, hard| ResultBytes::of(&Rlimit { soft, hard }.bytes()).unwrap();
        let done = OrderResult::Done(0);
        assert_eq!(said(1, limit(131_072, 7, Some(first))), (done, data(1, 2)));
        assert_eq!(said(2, limit(131_072, 7, Some(second))), (done, data(3, 4)));
        assert_eq!(said(1, limit(131_072, 7, Some(first))), (done, data(1, 2)), "as it was said, and not done again");
        assert_eq!(said(3, limit(131_072, 7, None)), (done, data(5, 6)));
        let failed = |error| (OrderResult::Failed(error), ResultBytes::NONE);
        assert_eq!(said(4, limit(131_080, 99, None)), failed(SignalError::NotPermitted));
        assert_eq!(said(5, limit(131_072, 16, None)), failed(SignalError::Invalid));
        assert_eq!(said(6, limit(131_099, 7, None)), failed(SignalError::NoProcess));
    }

    #[test]
    fn priority_of_a_group_is_set_for_those_whose_it_may_be_and_the_last_failure_is_said() {
        let (mut executor, mut table) = (executor(), table());
        table.groups.insert(131_072, vec![131_072, 131_080, 131_090]);
        table.groups.insert(131_090, vec![131_090]);
        let set = |whose, niceness| StateQuestion::Setpriority { whose, niceness };
        let asked = [
            set(Whose::Group(131_072), 5),
            set(Whose::Group(131_090), 6),
            set(Whose::Group(131_090), -1),
            set(Whose::Task(131_080), 7),
            set(Whose::Task(131_200), 7),
            set(Whose::Group(131_200), 7),
        ];
        let mut sequence = 0;
        let said = asked.map(|asked| {
            sequence += 1;
            executor.carry_out(&question(sequence, asked), &mut table).carried
        });
        let failed = OrderResult::Failed;
        let (not_permitted, none) = (failed(SignalError::NotPermitted), failed(SignalError::NoProcess));
        assert_eq!(said, [not_permitted, OrderResult::Done(0), failed(SignalError::Denied), not_permitted, none, none]);
        // Two threads of each, which this table holds as one.
        let set = [(131_072, 5), (131_072, 5), (131_090, 5), (131_090, 5), (131_090, 6), (131_090, 6)];
        assert_eq!(table.set, [&set[..], &[(131_090, -1), (131_090, -1)]].concat());
    }

    #[test]
    fn failure_is_remembered_as_well() {
        let (mut executor, mut table) = (executor(), table());
        let asked = order(1, 1, 1, Whom::Process(131_073), 15);
        assert_eq!(executor.carry_out(&asked, &mut table).carried, OrderResult::Failed(SignalError::NoProcess));
        table.uids.insert(131_073, 1);
        assert_eq!(executor.carry_out(&asked, &mut table).carried, OrderResult::Failed(SignalError::NoProcess));
        assert_eq!(table.sent, []);
    }

    #[test]
    fn order_for_another_life_finds_nobody() {
        let (mut executor, mut table) = (executor(), table());
        for life in [EXECUTOR.0 - 1, EXECUTOR.0 + 1] {
            let asked = Order { executor_life: LifeNumber(life), ..order(1, 1, 1, Whom::Process(131_072), 9) };
            assert_eq!(executor.carry_out(&asked, &mut table).carried, OrderResult::Refused(Stale::Executor));
        }
        assert_eq!((table.sent, executor.remembered()), (vec![], 0));
    }

    #[test]
    fn journal_that_is_over_is_not_heard_and_a_new_one_begins_at_one() {
        let (mut executor, mut table) = (executor(), table());
        let to = Whom::Process(131_072);
        assert_eq!(executor.carry_out(&order(5, 900, 880, to, 1), &mut table).carried, OrderResult::Done(1));
        assert_eq!(executor.carry_out(&order(6, 1, 1, to, 2), &mut table).carried, OrderResult::Done(1));
        assert_eq!(
            executor.carry_out(&order(5, 901, 880, to, 3), &mut table).carried,
            OrderResult::Refused(Stale::Origin)
        );
        assert_eq!(table.sent, [(131_072, 1), (131_072, 2)]);
    }

    #[test]
    fn what_is_remembered_has_a_bound() {
        let (mut executor, mut table) = (executor(), table());
        let to = Whom::Process(131_072);
        for sequence in 1..=WINDOW {
            assert_eq!(executor.carry_out(&order(1, sequence, 1, to, 0), &mut table).carried, OrderResult::Done(1));
        }
        let beyond = order(1, WINDOW + 1, 1, to, 0);
        assert_eq!(executor.carry_out(&beyond, &mut table).carried, OrderResult::Refused(Stale::Sequence));
        assert_eq!(executor.remembered(), WINDOW as usize);
        let settled = order(1, WINDOW + 1, WINDOW + 1, to, 0);
        assert_eq!(executor.carry_out(&settled, &mut table).carried, OrderResult::Done(1));
        assert_eq!(executor.remembered(), 1);
        assert_eq!(
            executor.carry_out(&order(1, 7, 1, to, 9), &mut table).carried,
            OrderResult::Refused(Stale::Sequence)
        );
        let far = order(1, u64::MAX, u64::MAX, to, 0);
        assert_eq!(executor.carry_out(&far, &mut table).carried, OrderResult::Done(1));
        assert_eq!(executor.remembered(), 1);
    }

    #[test]
    fn nodes_that_are_not_of_the_container_are_not_heard() {
        let (mut executor, mut table) = (executor(), table());
        for origin in [1, 3] {
            let asked = Order { origin: seat(origin), ..order(1, 1, 1, Whom::Process(131_072), 9) };
            assert_eq!(executor.carry_out(&asked, &mut table).carried, OrderResult::Refused(Stale::Origin));
        }
        assert_eq!(executor.remembered(), 0);
    }

    #[test]
    fn group_is_heard_when_one_of_it_may_hear() {
        let (mut executor, mut table) = (executor(), table());
        table.groups = [(131_072, vec![131_072, 131_080]), (131_080, vec![131_080])].into();
        let carried = |sequence, group, executor: &mut Executor, table: &mut Table| {
            executor.carry_out(&order(1, sequence, 1, Whom::Group(group), 15), table).carried
        };
        assert_eq!(carried(1, 131_072, &mut executor, &mut table), OrderResult::Done(1));
        assert_eq!(carried(2, 131_080, &mut executor, &mut table), OrderResult::Failed(SignalError::NotPermitted));
        assert_eq!(carried(3, 131_099, &mut executor, &mut table), OrderResult::Failed(SignalError::NoProcess));
        assert_eq!(table.sent, [(131_072, 15)]);
    }

    #[test]
    fn everybody_is_heard_once_also_who_is_forked_meanwhile() {
        let (mut executor, mut table) = (executor(), table());
        table.forks = vec![131_101, 131_100];
        let asked = order(1, 1, 1, Whom::Everybody, 9);
        assert_eq!(executor.carry_out(&asked, &mut table).carried, OrderResult::Done(5));
        assert_eq!(table.sent, [131_072, 131_090, 131_100, 131_101].map(|pid| (pid, 9)));
    }

    #[test]
    fn fork_storm_does_not_keep_the_executor() {
        let (mut executor, mut table) = (executor(), table());
        table.forks = (0..1000).map(|child| 140_000 + child).collect();
        let asked = order(1, 1, 1, Whom::Everybody, 9);
        assert_eq!(executor.carry_out(&asked, &mut table).carried, OrderResult::Done(3 + ROUNDS_MAX as u32));
    }

    #[test]
    fn signal_that_is_none_needs_a_process_to_be_refused() {
        let (mut executor, mut table) = (executor(), table());
        let to = |process| Whom::Process(process);
        let none = executor.carry_out(&order(1, 1, 1, to(131_072), 65), &mut table).carried;
        let nobody = executor.carry_out(&order(1, 2, 1, to(131_073), 65), &mut table).carried;
        assert_eq!(none, OrderResult::Failed(SignalError::Invalid));
        assert_eq!(nobody, OrderResult::Failed(SignalError::NoProcess));
        assert_eq!(table.sent, []);
    }

    #[test]
    fn thread_has_to_be_of_the_process_that_is_named() {
        let (mut executor, mut table) = (executor(), table());
        let to = |process, thread| Whom::Thread { process, thread };
        let asked = [to(None, 131_073), to(Some(131_072), 131_073), to(Some(131_080), 131_073)];
        let carried: Vec<OrderResult> = (1..)
            .zip(asked)
            .map(|(sequence, whom)| executor.carry_out(&order(1, sequence, 1, whom, 15), &mut table).carried)
            .collect();
        assert_eq!(carried, [OrderResult::Done(1), OrderResult::Done(1), OrderResult::Failed(SignalError::NoProcess)]);
    }
}
