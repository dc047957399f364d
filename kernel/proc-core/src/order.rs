//! What one node asks another one to do, and what it hears: fixed records, little-endian.
//!
//! An *origin* is the call gate of a node with its journal, an *executor* the init of a container on a node. Each has a
//! *life*: the origin's is the epoch in which its journal was made, the executor's that of its share's start. Both only
//! rise. An order is said again, as it was, until its outcome arrives; carried out it is once (`executor`).
//!
//! ```text
//! order    0 version  1 kind  2 origin seat  3 flags  4 signal  8 first  12 second  16 code
//!         24 origin life  32 sequence  40 settled below  48 executor life  56 pid  60 uid  64 euid  68 gid  72 value
//!         80 bytes
//! question likewise: 4 which  8 number  12 whether of a group  72 the niceness that is set
//!          12 room for a set of CPUs; 12 which limit  16 hard  72 soft, and whether they are set in the flags
//! outcome  0 version  1 kind  2 origin seat  4 number  8 origin life  16 sequence  24 what the caller's memory gets
//!          24 to 152 bytes
//! ```

use crate::permission::{Power, SignalError, Signaller};
use crate::range::Seat;

pub const ORDER_BYTES: usize = 80;
/// Of an outcome without anything for the caller's memory.
pub const OUTCOME_BYTES: usize = 24;
pub const OUTCOME_BYTES_MAX: usize = OUTCOME_BYTES + RESULT_BYTES_MAX;
/// For the caller's memory: a set of 1,024 CPUs, and of everything else less.
pub const RESULT_BYTES_MAX: usize = 128;
/// Of both records; another one is another protocol.
const VERSION: u8 = 1;

/// Number of a life; later ones are larger.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct LifeNumber(pub u64);

/// Number of an order among those of one origin to one node; the first is 1.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Sequence(pub u64);

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Whom {
    Process(u32),
    /// Of a process, if one is named.
    Thread {
        process: Option<u32>,
        thread: u32,
    },
    /// By the number of its leader.
    Group(u32),
    Everybody,
}

/// What `siginfo` says beside the sender.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Payload {
    /// Negative and not SI_TKILL: the kernel lets nobody else's process say anything else.
    pub code: i32,
    pub value: u64,
}

impl Payload {
    /// Of `kill`, `tkill` and `tgkill`, which have none.
    pub const NONE: Payload = Payload { code: libc::SI_QUEUE, value: 0 };
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SignalCall {
    pub whom: Whom,
    /// As the caller said it: it may be none.
    pub signal: i32,
    pub payload: Payload,
}

/// Whose priority.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Whose {
    /// A thread; the number of a process is that of its first one.
    Task(u32),
    /// By the number of its leader.
    Group(u32),
}

/// What the kernel of another node is asked, or told, in words of the system calls that have these names.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum StateQuestion {
    Getpgid(u32),
    Getsid(u32),
    SchedGetscheduler(u32),
    Getpriority(Whose),
    IoprioGet(Whose),
    /// As the caller said it.
    Setpriority {
        whose: Whose,
        niceness: i32,
    },
    /// Whether it can be opened there; the descriptor is one of the caller's node.
    PidfdOpen(u32),
    SchedGetparam(u32),
    SchedRrGetInterval(u32),
    SchedGetattr(u32),
    SchedGetaffinity {
        of: u32,
        /// Bytes that the caller has room for.
        room: u32,
    },
    Prlimit {
        of: u32,
        /// As the caller said it.
        resource: u32,
        new: Option<Rlimit>,
    },
}

/// Soft and hard, `u64::MAX` for none.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Rlimit {
    pub soft: u64,
    pub hard: u64,
}

impl Rlimit {
    /// `struct rlimit64`.
    pub fn bytes(self) -> [u8; 16] {
        let mut bytes = [0; 16];
        let (soft, hard) = bytes.split_at_mut(8);
        soft.copy_from_slice(&self.soft.to_ne_bytes());
        hard.copy_from_slice(&self.hard.to_ne_bytes());
        bytes
    }
}

/// What a system call puts into its caller's memory, as the kernel lays it out there.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct ResultBytes {
    length: u8,
    bytes: [u8; RESULT_BYTES_MAX],
}

impl ResultBytes {
    pub const NONE: ResultBytes = ResultBytes { length: 0, bytes: [0; RESULT_BYTES_MAX] };

    /// `None`: more than there is room for.
    pub fn of(from: &[u8]) -> Option<ResultBytes> {
        let mut bytes = [0; RESULT_BYTES_MAX];
        bytes.get_mut(..from.len())?.copy_from_slice(from);
        Some(ResultBytes { length: u8::try_from(from.len()).ok()?, bytes })
    }

    pub fn as_slice(&self) -> &[u8] {
        self.bytes.get(..usize::from(self.length)).unwrap_or_default()
    }
}

impl std::fmt::Debug for ResultBytes {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.as_slice().fmt(out)
    }
}

/// What an order is about.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Deed {
    Signal(SignalCall),
    Ask(StateQuestion),
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Order {
    pub origin: Seat,
    pub origin_life: LifeNumber,
    pub sequence: Sequence,
    /// The origin asks for nothing below it any more.
    pub settled_below: Sequence,
    /// Whom it was meant for.
    pub executor_life: LifeNumber,
    pub sender: Signaller,
    pub deed: Deed,
}

/// Why an executor did not look at an order.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Stale {
    /// It was meant for another life of the executor: the process is gone.
    Executor,
    /// The origin has another life by now.
    Origin,
    /// Settled, or further ahead than an origin may be.
    Sequence,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum OrderResult {
    /// Of a signal, how many processes were looked at: 1, but for groups and everybody. Of a question, the answer.
    Done(u32),
    Failed(SignalError),
    Refused(Stale),
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Outcome {
    pub origin: Seat,
    /// Whose sequence: an outcome may come so late that its origin has another life.
    pub origin_life: LifeNumber,
    pub sequence: Sequence,
    pub carried: OrderResult,
    /// Of an order that was carried out.
    pub data: ResultBytes,
}

/// Bytes that are no record of this version.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BadRecord;

const POWERFUL: u8 = 1;
const OF_PROCESS: u8 = 2;
const PRIORITIES: u8 = 4;
const RESOURCES: u8 = 8;
/// Limits are set.
const SETS: u8 = 16;
/// The kind of an order that asks; those below it signal.
const ASKS: u8 = 4;

/// The words of an order that depend on what it is about.
#[derive(Clone, Copy, PartialEq, Eq)]
struct DeedWords {
    kind: u8,
    /// [`OF_PROCESS`], [`SETS`].
    flags: u8,
    signal: i32,
    first: u32,
    second: u32,
    /// Of a signal its lower half.
    code: u64,
    value: u64,
}

impl Deed {
    fn words(&self) -> DeedWords {
        match self {
            Deed::Signal(SignalCall { whom, signal, payload }) => {
                let (kind, flags, first, second) = match *whom {
                    Whom::Process(process) => (0, 0, process, 0),
                    Whom::Thread { process, thread } => {
                        (1, if process.is_some() { OF_PROCESS } else { 0 }, thread, process.unwrap_or(0))
                    }
                    Whom::Group(leader) => (2, 0, leader, 0),
                    Whom::Everybody => (3, 0, 0, 0),
                };
                let code = u64::from(payload.code as u32);
                DeedWords { kind, flags, signal: *signal, first, second, code, value: payload.value }
            }
            Deed::Ask(question) => {
                let of = |whose: Whose| match whose {
                    Whose::Task(task) => (task, 0),
                    Whose::Group(leader) => (leader, 1),
                };
                let (signal, (first, second), value) = match *question {
                    StateQuestion::Getpgid(process) => (0, (process, 0), 0),
                    StateQuestion::Getsid(process) => (1, (process, 0), 0),
                    StateQuestion::SchedGetscheduler(task) => (2, (task, 0), 0),
                    StateQuestion::Getpriority(whose) => (3, of(whose), 0),
                    StateQuestion::IoprioGet(whose) => (4, of(whose), 0),
                    StateQuestion::Setpriority { whose, niceness } => (5, of(whose), niceness as u32),
                    StateQuestion::SchedGetparam(task) => (6, (task, 0), 0),
                    StateQuestion::SchedRrGetInterval(task) => (7, (task, 0), 0),
                    StateQuestion::SchedGetattr(task) => (8, (task, 0), 0),
                    StateQuestion::PidfdOpen(process) => (11, (process, 0), 0),
                    StateQuestion::SchedGetaffinity { of, room } => (9, (of, room), 0),
                    StateQuestion::Prlimit { of, resource, new } => {
                        let flags = if new.is_some() { SETS } else { 0 };
                        let Rlimit { soft, hard } = new.unwrap_or(Rlimit { soft: 0, hard: 0 });
                        let (first, second, code, value) = (of, resource, hard, soft);
                        return DeedWords { kind: ASKS, flags, signal: 10, first, second, code, value };
                    }
                };
                DeedWords { kind: ASKS, flags: 0, signal, first, second, code: 0, value: u64::from(value) }
            }
        }
    }

    fn of(words: DeedWords) -> Result<Deed, BadRecord> {
        let DeedWords { kind, flags, signal, first, second, code, value } = words;
        let whom = match (kind, flags) {
            (0, 0) if second == 0 => Whom::Process(first),
            (1, OF_PROCESS) => Whom::Thread { process: Some(second), thread: first },
            (1, 0) if second == 0 => Whom::Thread { process: None, thread: first },
            (2, 0) if second == 0 => Whom::Group(first),
            (3, 0) if first == 0 && second == 0 => Whom::Everybody,
            (ASKS, _) => return StateQuestion::of(&words).map(Deed::Ask),
            _ => return Err(BadRecord),
        };
        let code = u32::try_from(code).map_err(|_| BadRecord)? as i32;
        if !may_be_said(code) {
            return Err(BadRecord);
        }
        Ok(Deed::Signal(SignalCall { whom, signal, payload: Payload { code, value } }))
    }
}

impl StateQuestion {
    fn of(words: &DeedWords) -> Result<StateQuestion, BadRecord> {
        let DeedWords { flags, signal: which, first, second, code, value, .. } = *words;
        match (which, flags, code, value) {
            (9, 0, 0, 0) => return Ok(StateQuestion::SchedGetaffinity { of: first, room: second }),
            (10, 0, 0, 0) => return Ok(StateQuestion::Prlimit { of: first, resource: second, new: None }),
            (10, SETS, hard, soft) => {
                let new = Some(Rlimit { soft, hard });
                return Ok(StateQuestion::Prlimit { of: first, resource: second, new });
            }
            (_, 0, 0, _) => (),
            _ => return Err(BadRecord),
        }
        let whose = match second {
            0 => Whose::Task(first),
            1 => Whose::Group(first),
            _ => return Err(BadRecord),
        };
        let value = u32::try_from(value).map_err(|_| BadRecord)?;
        match (which, whose, value) {
            (0, Whose::Task(process), 0) => Ok(StateQuestion::Getpgid(process)),
            (1, Whose::Task(process), 0) => Ok(StateQuestion::Getsid(process)),
            (2, Whose::Task(task), 0) => Ok(StateQuestion::SchedGetscheduler(task)),
            (3, whose, 0) => Ok(StateQuestion::Getpriority(whose)),
            (4, whose, 0) => Ok(StateQuestion::IoprioGet(whose)),
            (5, whose, niceness) => Ok(StateQuestion::Setpriority { whose, niceness: niceness as i32 }),
            (6, Whose::Task(task), 0) => Ok(StateQuestion::SchedGetparam(task)),
            (7, Whose::Task(task), 0) => Ok(StateQuestion::SchedRrGetInterval(task)),
            (8, Whose::Task(task), 0) => Ok(StateQuestion::SchedGetattr(task)),
            (11, Whose::Task(process), 0) => Ok(StateQuestion::PidfdOpen(process)),
            _ => Err(BadRecord),
        }
    }
}

impl Order {
    pub fn encode(&self) -> [u8; ORDER_BYTES] {
        let power = if self.sender.power == Power::All { POWERFUL } else { 0 };
        let priorities = if self.sender.priorities == Power::All { PRIORITIES } else { 0 };
        let resources = if self.sender.resources == Power::All { RESOURCES } else { 0 };
        let DeedWords { kind, flags, signal, first, second, code, value } = self.deed.words();
        let mut bytes = Writer::new();
        bytes.put(&[VERSION, kind, self.origin.index() as u8, power | priorities | resources | flags]);
        bytes.put(&signal.to_le_bytes());
        bytes.put(&first.to_le_bytes());
        bytes.put(&second.to_le_bytes());
        bytes.put(&code.to_le_bytes());
        let (origin, executor) = (self.origin_life.0, self.executor_life.0);
        for word in [origin, self.sequence.0, self.settled_below.0, executor] {
            bytes.put(&word.to_le_bytes());
        }
        for word in [self.sender.pid, self.sender.uid, self.sender.euid, self.sender.gid] {
            bytes.put(&word.to_le_bytes());
        }
        bytes.put(&value.to_le_bytes());
        bytes.bytes
    }

    /// # Errors
    /// The bytes are no order, or one that no call gate sends.
    pub fn decode(bytes: &[u8]) -> Result<Order, BadRecord> {
        let bytes: &[u8; ORDER_BYTES] = bytes.try_into().map_err(|_| BadRecord)?;
        let mut from = Reader(bytes);
        let [version, kind, seat, flags] = from.take()?;
        let signal = i32::from_le_bytes(from.take()?);
        let (first, second) = (u32::from_le_bytes(from.take()?), u32::from_le_bytes(from.take()?));
        let code = u64::from_le_bytes(from.take()?);
        let mut word = || Ok(u64::from_le_bytes(from.take()?));
        let (origin_life, sequence, settled_below, executor_life) = (word()?, word()?, word()?, word()?);
        let mut half = || Ok(u32::from_le_bytes(from.take()?));
        let (pid, uid, euid, gid) = (half()?, half()?, half()?, half()?);
        let value = u64::from_le_bytes(from.take()?);
        let of_deed = flags & !(POWERFUL | PRIORITIES | RESOURCES);
        let deed = Deed::of(DeedWords { kind, flags: of_deed, signal, first, second, code, value })?;
        let is_sound = version == VERSION && 0 < settled_below && settled_below <= sequence;
        if !is_sound {
            return Err(BadRecord);
        }
        let power = |flag: u8| if flags & flag != 0 { Power::All } else { Power::Own };
        Ok(Order {
            origin: Seat::new(usize::from(seat)).ok_or(BadRecord)?,
            origin_life: LifeNumber(origin_life),
            sequence: Sequence(sequence),
            settled_below: Sequence(settled_below),
            executor_life: LifeNumber(executor_life),
            sender: Signaller {
                pid,
                uid,
                euid,
                gid,
                power: power(POWERFUL),
                priorities: power(PRIORITIES),
                resources: power(RESOURCES),
            },
            deed,
        })
    }
}

/// What the kernel lets a process say in `si_code` of a signal to another one.
pub const fn may_be_said(code: i32) -> bool {
    code < 0 && code != libc::SI_TKILL
}

impl Outcome {
    /// [`OUTCOME_BYTES`], and the data.
    pub fn encode(&self) -> Vec<u8> {
        let (kind, number) = match self.carried {
            OrderResult::Done(count) => (0, count),
            OrderResult::Failed(error) => (1, error.errno() as u32),
            OrderResult::Refused(Stale::Executor) => (2, 0),
            OrderResult::Refused(Stale::Origin) => (3, 0),
            OrderResult::Refused(Stale::Sequence) => (4, 0),
        };
        let mut bytes = Writer::<OUTCOME_BYTES>::new();
        bytes.put(&[VERSION, kind, self.origin.index() as u8, 0]);
        bytes.put(&number.to_le_bytes());
        bytes.put(&self.origin_life.0.to_le_bytes());
        bytes.put(&self.sequence.0.to_le_bytes());
        [&bytes.bytes, self.data.as_slice()].concat()
    }

    /// # Errors
    /// The bytes are no outcome.
    pub fn decode(bytes: &[u8]) -> Result<Outcome, BadRecord> {
        let mut from = Reader(bytes);
        let [version, kind, seat, 0] = from.take()? else { return Err(BadRecord) };
        let origin = Seat::new(usize::from(seat)).ok_or(BadRecord)?;
        let number = u32::from_le_bytes(from.take()?);
        let origin_life = LifeNumber(u64::from_le_bytes(from.take()?));
        let sequence = Sequence(u64::from_le_bytes(from.take()?));
        let error = || i32::try_from(number).ok().and_then(SignalError::from_errno).ok_or(BadRecord);
        let carried = match (version, kind, number) {
            (VERSION, 0, count) => OrderResult::Done(count),
            (VERSION, 1, _) => OrderResult::Failed(error()?),
            (VERSION, 2, 0) => OrderResult::Refused(Stale::Executor),
            (VERSION, 3, 0) => OrderResult::Refused(Stale::Origin),
            (VERSION, 4, 0) => OrderResult::Refused(Stale::Sequence),
            _ => return Err(BadRecord),
        };
        let data = ResultBytes::of(from.0).ok_or(BadRecord)?;
        if data != ResultBytes::NONE && kind != 0 {
            return Err(BadRecord);
        }
        Ok(Outcome { origin, origin_life, sequence, carried, data })
    }
}

struct Writer<const N: usize> {
    bytes: [u8; N],
    at: usize,
}

impl<const N: usize> Writer<N> {
    fn new() -> Writer<N> {
        Writer { bytes: [0; N], at: 0 }
    }

    fn put(&mut self, field: &[u8]) {
        let end = self.at + field.len();
        if let Some(room) = self.bytes.get_mut(self.at..end) {
            room.copy_from_slice(field);
        }
        self.at = end;
    }
}

struct Reader<'a>(&'a [u8]);

impl Reader<'_> {
    fn take<const N: usize>(&mut self) -> Result<[u8; N], BadRecord> {
        let (field, rest) = self.0.split_first_chunk().ok_or(BadRecord)?;
        self.0 = rest;
        Ok(*field)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn orders() -> Vec<Order> {
        let whom = [
            Whom::Process(131_072),
            Whom::Thread { process: None, thread: 131_073 },
            Whom::Thread { process: Some(131_072), thread: 131_073 },
            Whom::Group(196_608),
            Whom::Everybody,
        ];
        let order = |(at, deed): (usize, Deed)| Order {
            origin: Seat::new(at).unwrap(),
            origin_life: LifeNumber(u64::MAX - at as u64),
            sequence: Sequence(9 + at as u64),
            settled_below: Sequence(9),
            executor_life: LifeNumber(3),
            sender: Signaller {
                pid: 70_000,
                uid: 33,
                euid: 0,
                gid: 44,
                power: if at % 2 == 0 { Power::All } else { Power::Own },
                priorities: if at % 3 == 0 { Power::All } else { Power::Own },
                resources: if at % 5 == 1 { Power::All } else { Power::Own },
            },
            deed,
        };
        let questions = [
            StateQuestion::Getpgid(131_072),
            StateQuestion::Getsid(131_072),
            StateQuestion::SchedGetscheduler(131_073),
            StateQuestion::Getpriority(Whose::Task(131_073)),
            StateQuestion::IoprioGet(Whose::Group(131_072)),
            StateQuestion::Setpriority { whose: Whose::Group(131_072), niceness: -20 },
            StateQuestion::Setpriority { whose: Whose::Task(131_072), niceness: i32::MAX },
            StateQuestion::PidfdOpen(131_072),
            StateQuestion::SchedGetparam(131_072),
            StateQuestion::SchedRrGetInterval(131_072),
            StateQuestion::SchedGetattr(131_072),
            StateQuestion::SchedGetaffinity { of: 131_072, room: 128 },
            StateQuestion::Prlimit { of: 131_072, resource: 7, new: None },
            StateQuestion::Prlimit { of: 131_072, resource: 7, new: Some(Rlimit { soft: 0, hard: u64::MAX }) },
        ];
        let signal = |(at, whom): (usize, Whom)| {
            let signal = if at == 3 { i32::MIN } else { 15 };
            Deed::Signal(SignalCall { whom, signal, payload: Payload { code: -60, value: u64::MAX } })
        };
        let signals = whom.into_iter().enumerate().map(signal);
        signals.chain(questions.map(Deed::Ask)).enumerate().map(order).collect()
    }

    #[test]
    fn orders_arrive_as_they_were_sent() {
        for order in orders() {
            assert_eq!(Order::decode(&order.encode()), Ok(order));
        }
    }

    #[test]
    fn bytes_of_an_order_are_these() {
        let mut expected = [0; ORDER_BYTES];
        expected[..4].copy_from_slice(&[1, 1, 2, 3]);
        expected[4] = 15;
        expected[8..12].copy_from_slice(&131_073_u32.to_le_bytes());
        expected[12..16].copy_from_slice(&131_072_u32.to_le_bytes());
        expected[16..20].copy_from_slice(&(-60_i32).to_le_bytes());
        expected[68] = 44;
        expected[24..32].copy_from_slice(&(u64::MAX - 2).to_le_bytes());
        (expected[32], expected[40], expected[48]) = (11, 9, 3);
        expected[56..60].copy_from_slice(&70_000_u32.to_le_bytes());
        expected[60] = 33;
        expected[72..].copy_from_slice(&u64::MAX.to_le_bytes());
        assert_eq!(orders()[2].encode(), expected);
    }

    #[test]
    fn outcomes_arrive_as_they_were_sent_and_nothing_else_is_one() {
        let all = [
            OrderResult::Done(0),
            OrderResult::Done(u32::MAX),
            OrderResult::Failed(SignalError::NotPermitted),
            OrderResult::Failed(SignalError::Full),
            OrderResult::Refused(Stale::Executor),
            OrderResult::Refused(Stale::Origin),
            OrderResult::Refused(Stale::Sequence),
        ];
        for carried in all {
            let outcome = Outcome {
                origin: Seat::new(62).unwrap(),
                origin_life: LifeNumber(7),
                sequence: Sequence(u64::MAX),
                carried,
                data: ResultBytes::NONE,
            };
            assert_eq!(Outcome::decode(&outcome.encode()), Ok(outcome));
            let data = ResultBytes::of(&[7; RESULT_BYTES_MAX]).unwrap();
            let with_data = Outcome { data, ..outcome };
            let is_done = matches!(carried, OrderResult::Done(_));
            assert_eq!(Outcome::decode(&with_data.encode()), if is_done { Ok(with_data) } else { Err(BadRecord) });
            assert_eq!(Outcome::decode(&[with_data.encode(), vec![7]].concat()), Err(BadRecord), "too long");
        }
        let done = Outcome {
            origin: Seat::new(0).unwrap(),
            origin_life: LifeNumber(1),
            sequence: Sequence(1),
            carried: OrderResult::Done(0),
            data: ResultBytes::NONE,
        };
        let mut bytes = done.encode();
        for kind in 5..=255 {
            bytes[1] = kind;
            assert_eq!(Outcome::decode(&bytes), Err(BadRecord));
        }
        bytes[1] = 1;
        assert_eq!(Outcome::decode(&bytes), Err(BadRecord), "0 is no error");
    }

    #[test]
    fn each_changed_byte_is_refused_or_means_an_order_that_encodes_to_it() {
        for order in orders() {
            let bytes = order.encode();
            for at in 0..ORDER_BYTES {
                for value in 0..=255 {
                    let mut changed = bytes;
                    changed[at] = value;
                    if let Ok(read) = Order::decode(&changed) {
                        assert_eq!(read.encode(), changed, "byte {at} is {value}");
                    }
                }
            }
            for length in 0..ORDER_BYTES {
                assert_eq!(Order::decode(&bytes[..length]), Err(BadRecord));
            }
        }
    }

    #[test]
    fn codes_that_are_the_kernels_own_are_refused() {
        let mut order = orders()[0];
        for code in [0, 1, 0x80, libc::SI_TKILL, i32::MAX] {
            let payload = Payload { code, value: 0 };
            order.deed = Deed::Signal(SignalCall { whom: Whom::Process(131_072), signal: 15, payload });
            assert_eq!(Order::decode(&order.encode()), Err(BadRecord), "{code}");
        }
    }
}
