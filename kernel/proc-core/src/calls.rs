//! The system calls that cross nodes: a row each. The filter ([`crate::filter`]) is made of the rows that are served,
//! the table in `docs/design/processes.md` of all of them.
//!
//! A call without a row is native wherever it is made, also where it names a process: with a number of another node it
//! says what Linux says of a number that nobody has.

use crate::order::{Deed, Payload, ResultBytes, Rlimit, SignalCall, StateQuestion, Whom, Whose};
use crate::permission::SignalError;
use crate::range::{Seat, Seats};

/// What becomes of a call for which one of the row's cases holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Handling {
    /// Another node is asked.
    Forwarded,
    /// The call gate of the own node knows.
    Answered,
    /// It is looked at, and may go on natively.
    Watched,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RowState {
    /// In the filter.
    Served,
    /// Only described yet; native meanwhile.
    Planned,
}

/// What the filter sees of an argument. The kernel looks at the lower 32 bits of these, and so does the filter.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Condition {
    /// The number of a process or thread of another node.
    Foreign(u8),
    /// The negative number of a group of another node.
    ForeignGroup(u8),
    Is(u8, u32),
}

/// All conditions hold.
pub type ArgumentCase = &'static [Condition];

#[derive(Clone, Copy, Debug)]
pub struct Row {
    pub name: &'static str,
    pub number: libc::c_long,
    /// It is intercepted when one of them holds.
    pub cases: &'static [ArgumentCase],
    pub service: Handling,
    pub standing: RowState,
    /// For people: when it stays native, what happens otherwise, and what differs from Linux.
    pub native: &'static str,
    pub otherwise: &'static str,
    pub differs: &'static str,
}

use Condition::{Foreign, ForeignGroup, Is};
use Handling::{Answered, Forwarded, Watched};
use RowState::{Planned, Served};

/// Of `pidfd_send_signal(2)`, since Linux 6.9.
const PIDFD_SIGNAL_THREAD: u32 = 1;
const PIDFD_SIGNAL_THREAD_GROUP: u32 = 2;
const PIDFD_SIGNAL_PROCESS_GROUP: u32 = 4;
const EVERYBODY: u32 = u32::MAX;
const PROCESS: u32 = libc::PRIO_PROCESS;
const GROUP: u32 = libc::PRIO_PGRP;
const IOPRIO_PROCESS: u32 = 1;
const IOPRIO_GROUP: u32 = 2;
/// Sizes of `struct sched_attr` that a caller may have room for: from its first version to a page.
const SCHED_ATTR_BYTES: std::ops::RangeInclusive<u32> = 48..=4096;
const ALWAYS: &[ArgumentCase] = &[&[]];
const OF_ANOTHER: &[ArgumentCase] = &[&[Foreign(0)]];

const OWN: &str = "own numbers";
const OWN_AND_GROUPS: &str = "own numbers and groups; a user's";
const LIKE_KILL: &str = "as `kill`";
const QUEUED: &str = "of `siginfo` code and value go along; the receiver sees who sent it, whatever it says; EHOSTUNREACH; EINTR before it is received";
const OF_A_USER: &str = "of a user: the own node's processes";
const CPUS: &str = "CPUs are those of its node";
const WRITTEN: &str = "forwarded, result is written";
const UNREACHABLE: &str = "EHOSTUNREACH";

const fn row(name: &'static str, number: libc::c_long, cases: &'static [ArgumentCase], service: Handling) -> Row {
    let (native, otherwise) = match service {
        Forwarded => (OWN, "forwarded"),
        Answered => (OWN, "answered"),
        Watched => ("", "looked at"),
    };
    Row { name, number, cases, service, standing: Planned, native, otherwise, differs: "" }
}

impl Row {
    const fn served(self) -> Row {
        Row { standing: Served, ..self }
    }

    const fn native(self, native: &'static str) -> Row {
        Row { native, ..self }
    }

    const fn otherwise(self, otherwise: &'static str) -> Row {
        Row { otherwise, ..self }
    }

    const fn differs(self, differs: &'static str) -> Row {
        Row { differs, ..self }
    }
}

/// What is most frequent comes first: the filter compares in this order.
pub static ROWS: &[Row] = &[
    row("kill", libc::SYS_kill, &[&[Foreign(0)], &[ForeignGroup(0)], &[Is(0, EVERYBODY)]], Forwarded)
        .served()
        .native("0, own numbers and groups, numbers of nobody")
        .otherwise("forwarded; -1: forwarded, then native")
        .differs("`si_code` is SI_QUEUE; EHOSTUNREACH; EINTR before it is received; -1 leaves out nodes that cannot be reached, and is ESRCH when only others have somebody"),
    row("tgkill", libc::SYS_tgkill, OF_ANOTHER, Forwarded).served().differs(LIKE_KILL),
    row("tkill", libc::SYS_tkill, OF_ANOTHER, Forwarded).served().differs(LIKE_KILL),
    row("rt_sigqueueinfo", libc::SYS_rt_sigqueueinfo, OF_ANOTHER, Forwarded)
        .served()
        .otherwise("`siginfo` is read, forwarded")
        .differs(QUEUED),
    row("rt_tgsigqueueinfo", libc::SYS_rt_tgsigqueueinfo, OF_ANOTHER, Forwarded)
        .served()
        .otherwise("`siginfo` is read, forwarded")
        .differs(QUEUED),
    row("pidfd_open", libc::SYS_pidfd_open, OF_ANOTHER, Answered)
        .served()
        .otherwise("forwarded; answered with the pidfd of a placeholder, which ends when the process has")
        .differs("ends up to 0.5 s later, also with its node's verdict; `fdinfo` says 0; PIDFD_THREAD is EINVAL; what takes the process itself (`pidfd_getfd`, `setns`, `waitid`) fails as for a stranger; EHOSTUNREACH"),
    row("pidfd_send_signal", libc::SYS_pidfd_send_signal, ALWAYS, Watched)
        .served()
        .otherwise("where the descriptor leads is looked at: `/proc/NUMBER` of another node, or a placeholder, forwarded, else native")
        .differs("as `kill`; with `siginfo` EINVAL for another node; a millisecond, also on the own node"),
    row("getpriority", libc::SYS_getpriority, &[&[Is(0, PROCESS), Foreign(1)], &[Is(0, GROUP), Foreign(1)]], Forwarded).served()
        .native(OWN_AND_GROUPS)
        .differs(OF_A_USER),
    row("setpriority", libc::SYS_setpriority, &[&[Is(0, PROCESS), Foreign(1)], &[Is(0, GROUP), Foreign(1)]], Forwarded).served()
        .native(OWN_AND_GROUPS)
        .differs(OF_A_USER),
    row(
        "ioprio_get",
        libc::SYS_ioprio_get,
        &[&[Is(0, IOPRIO_PROCESS), Foreign(1)], &[Is(0, IOPRIO_GROUP), Foreign(1)]],
        Forwarded,
    )
    .served()
    .native(OWN_AND_GROUPS)
    .differs(OF_A_USER),
    row(
        "ioprio_set",
        libc::SYS_ioprio_set,
        &[&[Is(0, IOPRIO_PROCESS), Foreign(1)], &[Is(0, IOPRIO_GROUP), Foreign(1)]],
        Forwarded,
    )
    .native(OWN_AND_GROUPS)
    .differs(OF_A_USER),
    row("prlimit64", libc::SYS_prlimit64, OF_ANOTHER, Forwarded)
        .served()
        .otherwise("new limits are read, forwarded, old ones are written")
        .differs("set, and EFAULT, when the place for the old ones cannot be written; EHOSTUNREACH: set or not"),
    row("sched_getscheduler", libc::SYS_sched_getscheduler, OF_ANOTHER, Forwarded).served(),
    row("sched_getparam", libc::SYS_sched_getparam, OF_ANOTHER, Forwarded)
        .served()
        .otherwise(WRITTEN)
        .differs(UNREACHABLE),
    row("sched_getattr", libc::SYS_sched_getattr, OF_ANOTHER, Forwarded)
        .served()
        .otherwise(WRITTEN)
        .differs(UNREACHABLE),
    row("sched_getaffinity", libc::SYS_sched_getaffinity, OF_ANOTHER, Forwarded)
        .served()
        .otherwise(WRITTEN)
        .differs("CPUs are those of its node, 1,024 at most; EHOSTUNREACH"),
    row("sched_rr_get_interval", libc::SYS_sched_rr_get_interval, OF_ANOTHER, Forwarded)
        .served()
        .otherwise(WRITTEN)
        .differs(UNREACHABLE),
    row("sched_setscheduler", libc::SYS_sched_setscheduler, OF_ANOTHER, Forwarded)
        .otherwise("argument is read, forwarded"),
    row("sched_setparam", libc::SYS_sched_setparam, OF_ANOTHER, Forwarded).otherwise("argument is read, forwarded"),
    row("sched_setattr", libc::SYS_sched_setattr, OF_ANOTHER, Forwarded).otherwise("argument is read, forwarded"),
    row("sched_setaffinity", libc::SYS_sched_setaffinity, OF_ANOTHER, Forwarded)
        .otherwise("argument is read, forwarded")
        .differs(CPUS),
    row("getpgid", libc::SYS_getpgid, OF_ANOTHER, Forwarded).served(),
    row("getsid", libc::SYS_getsid, OF_ANOTHER, Forwarded).served(),
];

/// The rows as lines of a Markdown table, for the documentation.
pub fn documentation() -> String {
    let mut text = String::from("| call | native | otherwise | what is different |\n|---|---|---|---|\n");
    for row in ROWS {
        let mark = if row.standing == Planned { " [N]" } else { "" };
        let native = if row.native.is_empty() { "–" } else { row.native };
        text += &format!("| `{}`{mark} | {native} | {} | {} |\n", row.name, row.otherwise, row.differs);
    }
    text
}

/// Where an intercepted call has to go.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Asked {
    Forward {
        to: Destination,
        deed: Deed,
    },
    /// It needs no other node to be answered.
    Failed(SignalError),
    /// First what lies at this address of the caller has to be known.
    Reads {
        to: Seat,
        address: u64,
        pointed: Pointed,
    },
    /// First where this descriptor of the caller leads has to be known ([`looked`]).
    Looks {
        descriptor: i32,
    },
    /// No row has it, or none of the row's cases holds: the filter that let it come here is of another release.
    Unknown,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Destination {
    Node(Seat),
    /// One after the other; the own node's part is native.
    AllOthers,
}

/// What a call points at, as the kernel lays it out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Pointed {
    /// `siginfo_t` as far as it counts.
    Siginfo,
    /// `struct rlimit64`.
    Rlimit,
}

/// Most that a call points at.
pub const POINTED_BYTES_MAX: usize = 48;

impl Pointed {
    pub const fn bytes(self) -> usize {
        match self {
            Pointed::Siginfo => POINTED_BYTES_MAX,
            Pointed::Rlimit => 16,
        }
    }

    /// Of [`Pointed::bytes`] bytes. Of `siginfo` (`sigaction(2)`) at byte 8 the code, at 24 the value; of limits the
    /// soft one and the hard one.
    pub fn argument(self, bytes: &[u8]) -> CallArgument {
        let word =
            |at: usize| bytes.get(at..at + 8).and_then(|word| word.try_into().ok()).map_or(0, u64::from_ne_bytes);
        match self {
            Pointed::Siginfo => CallArgument { code: word(8) as u32 as i32, words: [word(24), 0] },
            Pointed::Rlimit => CallArgument { code: 0, words: [word(0), word(8)] },
        }
    }
}

/// What was read for a call, as it is kept with it: a code and two values, whose meaning is the call's.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CallArgument {
    pub code: i32,
    pub words: [u64; 2],
}

/// Where a descriptor leads, for [`Asked::Looks`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Led {
    /// To a process of another node: its directory of `/proc`, or its placeholder.
    To(u32),
    /// To a process that has ended.
    Ended,
    Elsewhere,
}

impl Led {
    const ENDED: u32 = u32::MAX;

    /// 0 for elsewhere; no process has these numbers.
    pub fn number(self) -> u32 {
        match self {
            Led::To(process) => process,
            Led::Ended => Led::ENDED,
            Led::Elsewhere => 0,
        }
    }

    pub fn of_number(number: u32) -> Led {
        match number {
            0 => Led::Elsewhere,
            Led::ENDED => Led::Ended,
            process => Led::To(process),
        }
    }
}

impl CallArgument {
    /// What [`Asked::Looks`] found, and of which nodes the processes ended since the call was made.
    pub fn looked(led: Led, ended: Seats) -> CallArgument {
        CallArgument { code: led.number() as i32, words: [ended.bits(), 0] }
    }

    fn payload(self) -> Payload {
        Payload { code: self.code, value: self.words[0] }
    }

    fn limits(self) -> Rlimit {
        Rlimit { soft: self.words[0], hard: self.words[1] }
    }
}

/// Where in the caller's memory the result of a call goes, and which bytes of it. `None`: nowhere.
pub fn placed(number: libc::c_long, arguments: &[u64; 6], data: &ResultBytes) -> Option<(u64, ResultBytes)> {
    let [_, second, third, fourth, ..] = *arguments;
    match number {
        libc::SYS_prlimit64 if fourth == 0 => None,
        libc::SYS_prlimit64 => Some((fourth, *data)),
        libc::SYS_sched_getparam | libc::SYS_sched_rr_get_interval => Some((second, *data)),
        libc::SYS_sched_getaffinity => Some((third, *data)),
        // It begins with how much of it there is.
        libc::SYS_sched_getattr => {
            let mut bytes = data.as_slice().to_vec();
            bytes.truncate(third as u32 as usize);
            let length = (bytes.len() as u32).to_ne_bytes();
            bytes.get_mut(..4)?.copy_from_slice(&length);
            Some((second, ResultBytes::of(&bytes)?))
        }
        _ => None,
    }
}

/// The process whose directory below `/proc` this is.
pub fn process_of(path: &[u8]) -> Option<u32> {
    let name = std::str::from_utf8(path.strip_prefix(b"/proc/")?).ok()?;
    let is_number = !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_digit());
    is_number.then(|| name.parse().ok())?
}

/// What a call asks for, from what the kernel says of it. `own`: the caller's node. `read`: what was read for it.
pub fn asked(number: libc::c_long, arguments: &[u64; 6], own: Seat, read: Option<CallArgument>) -> Asked {
    let [first, second, third, ..] = arguments.map(|argument| argument as u32 as i32);
    let other = |pid: i32| u32::try_from(pid).ok().and_then(Seat::of_pid).filter(|seat| *seat != own);
    let forward = |pid: i32, deed| match other(pid) {
        Some(seat) => Asked::Forward { to: Destination::Node(seat), deed },
        None => Asked::Unknown,
    };
    let signal = |whom, pid, signal| forward(pid, Deed::Signal(SignalCall { whom, signal, payload: Payload::NONE }));
    let queue = |whom, pid, signal, address: u64| {
        let Some(to) = other(pid) else { return Asked::Unknown };
        match read.map(CallArgument::payload) {
            None => Asked::Reads { to, address, pointed: Pointed::Siginfo },
            // What only the kernel says, or `tkill`: nobody may say it to another process.
            Some(payload) if payload.code >= 0 || payload.code == libc::SI_TKILL => {
                Asked::Failed(SignalError::NotPermitted)
            }
            Some(payload) => forward(pid, Deed::Signal(SignalCall { whom, signal, payload })),
        }
    };
    let ask = |pid, question| forward(pid, Deed::Ask(question));
    // Of `which` and `who`: the numbers of priorities and of those of I/O differ.
    let whose = |process: u32, group: u32| match first as u32 {
        which if which == process => Some(Whose::Task(second as u32)),
        which if which == group => Some(Whose::Group(second as u32)),
        _ => None,
    };
    let prioritised = || whose(PROCESS, GROUP);
    match number {
        libc::SYS_kill if first == -1 => {
            let call = SignalCall { whom: Whom::Everybody, signal: second, payload: Payload::NONE };
            Asked::Forward { to: Destination::AllOthers, deed: Deed::Signal(call) }
        }
        libc::SYS_kill if first < 0 => signal(Whom::Group(first.unsigned_abs()), first.wrapping_neg(), second),
        libc::SYS_kill => signal(Whom::Process(first as u32), first, second),
        libc::SYS_tkill => signal(Whom::Thread { process: None, thread: first as u32 }, first, second),
        // The kernel says so before it looks for anybody.
        libc::SYS_tgkill if second <= 0 => Asked::Failed(SignalError::Invalid),
        libc::SYS_tgkill => signal(Whom::Thread { process: Some(first as u32), thread: second as u32 }, first, third),
        libc::SYS_rt_sigqueueinfo => queue(Whom::Process(first as u32), first, second, arguments[2]),
        libc::SYS_rt_tgsigqueueinfo if second <= 0 => match read {
            None => queue(Whom::Process(first as u32), first, third, arguments[3]),
            Some(_) => Asked::Failed(SignalError::Invalid),
        },
        libc::SYS_rt_tgsigqueueinfo => {
            let whom = Whom::Thread { process: Some(first as u32), thread: second as u32 };
            queue(whom, first, third, arguments[3])
        }
        libc::SYS_pidfd_send_signal => match read {
            None => Asked::Looks { descriptor: first },
            Some(CallArgument { code, .. }) if Led::of_number(code as u32) == Led::Ended => {
                Asked::Failed(SignalError::NoProcess)
            }
            // A number of a node that began another life meanwhile is another one's by now.
            Some(CallArgument { code, words: [value, _] })
                if Seat::of_pid(code as u32).is_some_and(|seat| Seats::from_bits(value).contains(seat)) =>
            {
                Asked::Failed(SignalError::NoProcess)
            }
            Some(CallArgument { code, .. }) => {
                let process = code as u32;
                let whom = match arguments[3] as u32 {
                    0 | PIDFD_SIGNAL_THREAD_GROUP => Some(Whom::Process(process)),
                    PIDFD_SIGNAL_THREAD => Some(Whom::Thread { process: None, thread: process }),
                    PIDFD_SIGNAL_PROCESS_GROUP => Some(Whom::Group(process)),
                    // The kernel refuses it, whatever the descriptor is.
                    _ => None,
                };
                let is_told = whom.map(|whom| signal(whom, process as i32, second));
                match is_told.unwrap_or(Asked::Unknown) {
                    // What is said beside the signal does not go along.
                    Asked::Forward { .. } if arguments[2] != 0 => Asked::Failed(SignalError::Invalid),
                    asked => asked,
                }
            }
        },
        libc::SYS_getpgid => ask(first, StateQuestion::Getpgid(first as u32)),
        libc::SYS_getsid => ask(first, StateQuestion::Getsid(first as u32)),
        libc::SYS_sched_getscheduler => ask(first, StateQuestion::SchedGetscheduler(first as u32)),
        libc::SYS_getpriority => {
            prioritised().map_or(Asked::Unknown, |whose| ask(second, StateQuestion::Getpriority(whose)))
        }
        libc::SYS_setpriority => prioritised()
            .map_or(Asked::Unknown, |whose| ask(second, StateQuestion::Setpriority { whose, niceness: third })),
        libc::SYS_prlimit64 => match (other(first), read, arguments[2]) {
            (Some(to), None, address) if address != 0 => Asked::Reads { to, address, pointed: Pointed::Rlimit },
            (_, read, _) => {
                let (of, new) = (first as u32, read.map(CallArgument::limits));
                ask(first, StateQuestion::Prlimit { of, resource: second as u32, new })
            }
        },
        libc::SYS_pidfd_open if second & !libc::O_NONBLOCK != 0 => Asked::Failed(SignalError::Invalid),
        libc::SYS_pidfd_open => ask(first, StateQuestion::PidfdOpen(first as u32)),
        // What the kernel refuses before it looks for anybody.
        libc::SYS_sched_getparam | libc::SYS_sched_getattr if arguments[1] == 0 => Asked::Failed(SignalError::Invalid),
        libc::SYS_sched_getattr if !SCHED_ATTR_BYTES.contains(&(third as u32)) || arguments[3] as u32 != 0 => {
            Asked::Failed(SignalError::Invalid)
        }
        libc::SYS_sched_getparam => ask(first, StateQuestion::SchedGetparam(first as u32)),
        libc::SYS_sched_getattr => ask(first, StateQuestion::SchedGetattr(first as u32)),
        libc::SYS_sched_rr_get_interval => ask(first, StateQuestion::SchedRrGetInterval(first as u32)),
        libc::SYS_sched_getaffinity => {
            ask(first, StateQuestion::SchedGetaffinity { of: first as u32, room: second as u32 })
        }
        libc::SYS_ioprio_get => whose(IOPRIO_PROCESS, IOPRIO_GROUP)
            .map_or(Asked::Unknown, |whose| ask(second, StateQuestion::IoprioGet(whose))),
        _ => Asked::Unknown,
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn seat(index: usize) -> Seat {
        Seat::new(index).unwrap()
    }

    fn ask(number: libc::c_long, arguments: [i64; 3]) -> Asked {
        let [first, second, third] = arguments.map(|argument| argument as u64);
        asked(number, &[first, second, third, 0, 0, 0], seat(0), None)
    }

    fn forwarded(to: usize, whom: Whom, signal: i32) -> Asked {
        let call = SignalCall { whom, signal, payload: Payload::NONE };
        Asked::Forward { to: Destination::Node(seat(to)), deed: Deed::Signal(call) }
    }

    #[test]
    fn each_call_has_one_row() {
        let (mut numbers, mut names) = (BTreeSet::new(), BTreeSet::new());
        for row in ROWS {
            assert!(numbers.insert(row.number) && names.insert(row.name), "{}", row.name);
            assert!(!row.cases.is_empty());
        }
    }

    #[test]
    fn number_says_which_node_is_asked() {
        assert_eq!(ask(libc::SYS_kill, [131_072, 15, 0]), forwarded(1, Whom::Process(131_072), 15));
        assert_eq!(ask(libc::SYS_kill, [-196_608, 15, 0]), forwarded(2, Whom::Group(196_608), 15));
        let thread = Whom::Thread { process: None, thread: 131_073 };
        assert_eq!(ask(libc::SYS_tkill, [131_073, 15, 0]), forwarded(1, thread, 15));
        let thread = Whom::Thread { process: Some(131_072), thread: 5 };
        assert_eq!(ask(libc::SYS_tgkill, [131_072, 5, 15]), forwarded(1, thread, 15));
    }

    #[test]
    fn questions_are_asked_as_they_are() {
        let asked = |question| Asked::Forward { to: Destination::Node(seat(1)), deed: Deed::Ask(question) };
        assert_eq!(ask(libc::SYS_getpgid, [131_072, 0, 0]), asked(StateQuestion::Getpgid(131_072)));
        assert_eq!(ask(libc::SYS_getsid, [131_072, 0, 0]), asked(StateQuestion::Getsid(131_072)));
        let priority = asked(StateQuestion::Getpriority(Whose::Group(131_072)));
        assert_eq!(ask(libc::SYS_getpriority, [1, 131_072, 0]), priority);
        let priority = asked(StateQuestion::IoprioGet(Whose::Task(131_072)));
        assert_eq!(ask(libc::SYS_ioprio_get, [1, 131_072, 0]), priority);
        let set = asked(StateQuestion::Setpriority { whose: Whose::Task(131_072), niceness: -1 });
        assert_eq!(ask(libc::SYS_setpriority, [0, 131_072, -1]), set);
        // Of a user, and what is none.
        for which in [2, 3, -1] {
            assert_eq!(ask(libc::SYS_getpriority, [which, 131_072, 0]), Asked::Unknown);
        }
    }

    #[test]
    fn queued_signal_has_to_be_read_and_says_what_it_may() {
        let queue = |arguments: [u64; 6], payload| asked(libc::SYS_rt_sigqueueinfo, &arguments, seat(0), payload);
        let of = |code, value| Some(CallArgument { code, words: [value, 0] });
        let (arguments, address) = ([131_072, 15, 0x7fff_0000_1234, 0, 0, 0], 0x7fff_0000_1234);
        let reads = Asked::Reads { to: seat(1), address, pointed: Pointed::Siginfo };
        assert_eq!(queue(arguments, None), reads);
        for code in [0, libc::SI_KERNEL, libc::SI_TKILL, i32::MAX] {
            assert_eq!(queue(arguments, of(code, 1)), Asked::Failed(SignalError::NotPermitted), "{code}");
        }
        for code in [libc::SI_QUEUE, libc::SI_TIMER, i32::MIN] {
            let payload = Payload { code, value: 9 };
            let call = SignalCall { whom: Whom::Process(131_072), signal: 15, payload };
            let expected = Asked::Forward { to: Destination::Node(seat(1)), deed: Deed::Signal(call) };
            assert_eq!(queue(arguments, of(code, 9)), expected);
        }
        assert_eq!(queue([65_536, 15, 1, 0, 0, 0], None), Asked::Unknown, "its own node's");
        let thread = |thread: u64, payload| {
            asked(libc::SYS_rt_tgsigqueueinfo, &[131_072, thread, 15, address, 0, 0], seat(0), payload)
        };
        assert_eq!(thread(131_073, None), reads);
        assert_eq!(thread(0, of(libc::SI_QUEUE, 0)), Asked::Failed(SignalError::Invalid));
        let mut siginfo = [0; POINTED_BYTES_MAX];
        siginfo[8..12].copy_from_slice(&libc::SI_QUEUE.to_ne_bytes());
        siginfo[24..32].copy_from_slice(&77_u64.to_ne_bytes());
        assert_eq!(Some(Pointed::Siginfo.argument(&siginfo)), of(libc::SI_QUEUE, 77));
    }

    #[test]
    fn limits_are_read_first_and_written_where_the_caller_says() {
        let call = |new, old, read| asked(libc::SYS_prlimit64, &[131_072, 7, new, old, 0, 0], seat(0), read);
        let prlimit = |new| Asked::Forward {
            to: Destination::Node(seat(1)),
            deed: Deed::Ask(StateQuestion::Prlimit { of: 131_072, resource: 7, new }),
        };
        let limits = Rlimit { soft: 5, hard: u64::MAX };
        assert_eq!(call(0, 9, None), prlimit(None));
        assert_eq!(call(8, 9, None), Asked::Reads { to: seat(1), address: 8, pointed: Pointed::Rlimit });
        assert_eq!(call(8, 9, Some(Pointed::Rlimit.argument(&limits.bytes()))), prlimit(Some(limits)));
        let data = ResultBytes::of(&limits.bytes()).unwrap();
        let placed_at = |old| placed(libc::SYS_prlimit64, &[131_072, 7, 0, old, 0, 0], &data);
        assert_eq!((placed_at(9), placed_at(0)), (Some((9, data)), None));
    }

    #[test]
    fn attributes_are_cut_to_the_callers_room_and_say_how_much_they_are() {
        let call = |address, room, flags| {
            asked(libc::SYS_sched_getattr, &[131_072, address, room, flags, 0, 0], seat(0), None)
        };
        let refused = Asked::Failed(SignalError::Invalid);
        for (address, room, flags) in [(0, 48, 0), (8, 47, 0), (8, 4097, 0), (8, 48, 1)] {
            assert_eq!(call(address, room, flags), refused, "{address} {room} {flags}");
        }
        assert_ne!(call(8, 48, 0), refused);
        let data = ResultBytes::of(&[7; 56]).unwrap();
        for (room, length) in [(48, 48), (56, 56), (4096, 56)] {
            let (address, bytes) = placed(libc::SYS_sched_getattr, &[131_072, 8, room, 0, 0, 0], &data).unwrap();
            assert_eq!((address, bytes.as_slice().len()), (8, length));
            assert_eq!(bytes.as_slice()[..5], [length as u8, 0, 0, 0, 7]);
        }
    }

    #[test]
    fn signal_by_descriptor_goes_where_the_descriptor_leads() {
        let send = |flags: u64, info: u64, payload| {
            asked(libc::SYS_pidfd_send_signal, &[5, 15, info, flags, 0, 0], seat(0), payload)
        };
        assert_eq!(send(0, 0, None), Asked::Looks { descriptor: 5 });
        let seen = |led| Some(CallArgument::looked(led, Seats::NONE));
        let other = seen(Led::To(131_072));
        for flags in [0, 2] {
            assert_eq!(send(flags, 0, other), forwarded(1, Whom::Process(131_072), 15));
        }
        assert_eq!(send(1, 0, other), forwarded(1, Whom::Thread { process: None, thread: 131_072 }, 15));
        assert_eq!(send(4, 0, other), forwarded(1, Whom::Group(131_072), 15));
        assert_eq!(send(0, 0x7fff_0000, other), Asked::Failed(SignalError::Invalid));
        // Its own node's, anything else, and flags that nobody knows.
        for native in [send(0, 0, seen(Led::To(65_536))), send(0, 9, seen(Led::Elsewhere)), send(3, 0, other)] {
            assert_eq!(native, Asked::Unknown);
        }
        let ended = |node| Some(CallArgument::looked(Led::To(131_072), Seats::NONE.with(seat(node))));
        assert_eq!(send(0, 0, ended(1)), Asked::Failed(SignalError::NoProcess));
        assert_eq!(send(0, 0, ended(2)), forwarded(1, Whom::Process(131_072), 15));
        assert_eq!(send(0, 0, seen(Led::Ended)), Asked::Failed(SignalError::NoProcess));
        for led in [Led::To(131_072), Led::Ended, Led::Elsewhere] {
            assert_eq!(Led::of_number(led.number()), led);
        }
        assert_eq!(process_of(b"/proc/131072"), Some(131_072));
        for other in [
            "/proc/131072/fd",
            "/proc/",
            "/proc/self",
            "/.proc/7",
            "/proc/+7",
            "/proc/99999999999",
            "anon_inode:[pidfd]",
        ] {
            assert_eq!(process_of(other.as_bytes()), None, "{other}");
        }
    }

    #[test]
    fn process_is_opened_by_its_number_and_a_thread_is_not() {
        let open = |flags| ask(libc::SYS_pidfd_open, [131_072, flags, 0]);
        let asked =
            Asked::Forward { to: Destination::Node(seat(1)), deed: Deed::Ask(StateQuestion::PidfdOpen(131_072)) };
        assert_eq!((open(0), open(i64::from(libc::O_NONBLOCK))), (asked, asked));
        for flags in [i64::from(libc::O_EXCL), 1, -1] {
            assert_eq!(open(flags), Asked::Failed(SignalError::Invalid), "{flags}");
        }
    }

    #[test]
    fn upper_halves_are_not_looked_at() {
        let upper = 7 << 32;
        assert_eq!(ask(libc::SYS_kill, [upper | 131_072, upper | 15, 0]), forwarded(1, Whom::Process(131_072), 15));
    }

    #[test]
    fn whatever_a_filter_lets_through_has_an_answer() {
        for pid in [0, 1, 70_000, -70_000, i64::from(i32::MIN), i64::from(i32::MAX), 5_000_000, -5_000_000] {
            assert_eq!(ask(libc::SYS_kill, [pid, 15, 0]), Asked::Unknown, "{pid}");
            assert_eq!(ask(libc::SYS_tkill, [pid, 15, 0]), Asked::Unknown, "{pid}");
            assert_eq!(ask(libc::SYS_tgkill, [pid, 70_000, 15]), Asked::Unknown, "{pid}");
        }
        assert_eq!(ask(libc::SYS_tgkill, [131_072, 0, 15]), Asked::Failed(SignalError::Invalid));
        assert_eq!(ask(libc::SYS_read, [131_072, 0, 15]), Asked::Unknown);
    }

    #[test]
    fn rows_that_are_served_are_understood() {
        for row in ROWS.iter().filter(|row| row.standing == Served) {
            for case in row.cases {
                let mut arguments = [1; 6];
                for condition in *case {
                    match *condition {
                        Foreign(at) => arguments[usize::from(at)] = 131_072,
                        ForeignGroup(at) => arguments[usize::from(at)] = -131_072_i64 as u64,
                        Is(at, value) => arguments[usize::from(at)] = u64::from(value),
                    }
                }
                assert_ne!(asked(row.number, &arguments, seat(0), None), Asked::Unknown, "{} {case:?}", row.name);
            }
        }
    }
}
