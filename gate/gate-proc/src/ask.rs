//! What one node's proc gate asks another's, and what that answers.
//!
//! ```text
//! ask, 32 bytes    0 kind   1 entry   2 zero ×2   4 pid   8 descriptor   12 uid   16 gid   20 zero ×4   24 CapEff
//! answer           0 status (0 or an errno)   4 zero ×4   8 when that node began (ns)   16 what was asked for
//! processes        12 bytes each, by number: pid, uid, gid
//! descriptors      4 bytes each, by number
//! glances          `glance.rs`
//! ```
//!
//! Numbers are little-endian. Whoever receives an answer does not believe it: numbers of processes are those of the
//! node that was asked, each once.

use proc_core::range::Seat;
use sys::procfs::ProcessLink;

use crate::glance::{self, Glance, GlanceDepth};
use crate::number::Entry;
use crate::visible::Asker;

pub const ASK_BYTES: usize = 32;
const ANSWER_HEAD_BYTES: usize = 16;
/// Of what is asked for. Longer files are cut off: no process number is beyond it, and few environments are.
pub const BODY_BYTES_MAX: usize = (1 << 20) - ANSWER_HEAD_BYTES;
pub const ANSWER_BYTES_MAX: usize = ANSWER_HEAD_BYTES + BODY_BYTES_MAX;
const LISTED_BYTES: usize = 12;
/// A node has no more processes.
const LISTED_MAX: usize = abi_pids();
/// Descriptors of one process that are listed.
pub const DESCRIPTORS_MAX: usize = BODY_BYTES_MAX / 4;
/// As the kernel has it.
pub const LINK_BYTES_MAX: usize = 4095;

const _: () = assert!(LISTED_MAX * LISTED_BYTES <= BODY_BYTES_MAX);

const fn abi_pids() -> usize {
    match Seat::new(0) {
        Some(seat) => (seat.end_pid() - seat.first_pid()) as usize,
        None => 0,
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ProcQuestion {
    Processes,
    /// Whose a process is, if it is there.
    Owner(u32),
    File(u32, Entry),
    Descriptors(u32),
    /// Where a link leads.
    Link(u32, ProcessLink),
    /// What processes from this number on look like ([`crate::glance`]).
    Glances(u32, GlanceDepth),
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ask {
    pub question: ProcQuestion,
    pub asker: Asker,
}

/// A process, and whose its files are: nobody's, when it must not be looked into.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ListedProcess {
    pub pid: u32,
    pub uid: u32,
    pub gid: u32,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ProcAnswer {
    /// When the machine began, in nanoseconds since 1970: times of its processes count from there.
    pub began_ns: u64,
    pub said: Result<ProcFacts, i32>,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ProcFacts {
    Processes(Vec<ListedProcess>),
    Descriptors(Vec<u32>),
    /// What a file says, or where a link leads.
    Bytes(Vec<u8>),
    Glances(Vec<Glance>),
}

/// Bytes that are no ask, or no answer to what was asked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NotOne;

impl Ask {
    pub fn encode(&self) -> [u8; ASK_BYTES] {
        let (kind, entry, pid, descriptor) = match self.question {
            ProcQuestion::Processes => (1, 0, 0, 0),
            ProcQuestion::Owner(pid) => (2, 0, pid, 0),
            ProcQuestion::File(pid, entry) => (3, entry as u8, pid, 0),
            ProcQuestion::Descriptors(pid) => (4, 0, pid, 0),
            ProcQuestion::Link(pid, ProcessLink::Descriptor(descriptor)) => (5, 0, pid, descriptor),
            ProcQuestion::Link(pid, link) => {
                let [kind, _] = link.words();
                (8, 0, pid, kind)
            }
            ProcQuestion::Glances(pid, GlanceDepth::Outside) => (6, 0, pid, 0),
            ProcQuestion::Glances(pid, GlanceDepth::Inside) => (7, 0, pid, 0),
        };
        let words = [pid, descriptor, self.asker.uid, self.asker.gid, 0].map(u32::to_le_bytes);
        let mut bytes = [0; ASK_BYTES];
        let parts = [kind, entry, 0, 0].into_iter().chain(words.into_iter().flatten());
        let parts = parts.chain(self.asker.effective.to_le_bytes());
        bytes.iter_mut().zip(parts).for_each(|(to, from)| *to = from);
        bytes
    }

    /// # Errors
    /// Another length, a kind or entry that is unknown, or anything where zeros belong.
    pub fn decode(bytes: &[u8]) -> Result<Ask, NotOne> {
        let mut words = Words(bytes);
        let ([kind, entry, 0, 0], pid, descriptor) = (words.array()?, words.u32()?, words.u32()?) else {
            return Err(NotOne);
        };
        let (uid, gid, zero, effective) =
            (words.u32()?, words.u32()?, words.u32()?, u64::from_le_bytes(words.array()?));
        let question = match (kind, Entry::from_number(entry)) {
            (1, None) => ProcQuestion::Processes,
            (2, None) => ProcQuestion::Owner(pid),
            (3, Some(entry)) => ProcQuestion::File(pid, entry),
            (4, None) => ProcQuestion::Descriptors(pid),
            (5, None) => ProcQuestion::Link(pid, ProcessLink::Descriptor(descriptor)),
            (8, None) => ProcQuestion::Link(pid, ProcessLink::of_words([descriptor, 0]).ok_or(NotOne)?),
            (6, None) => ProcQuestion::Glances(pid, GlanceDepth::Outside),
            (7, None) => ProcQuestion::Glances(pid, GlanceDepth::Inside),
            _ => return Err(NotOne),
        };
        let ask = Ask { question, asker: Asker { uid, gid, effective } };
        // What is left over, or said twice, is no ask.
        if zero == 0 && ask.encode() == bytes { Ok(ask) } else { Err(NotOne) }
    }
}

impl ProcAnswer {
    pub fn encode(&self) -> Vec<u8> {
        let status = self.said.as_ref().err().map_or(0, |errno| errno.unsigned_abs());
        let mut bytes = [status.to_le_bytes(), [0; 4]].concat();
        bytes.extend(self.began_ns.to_le_bytes());
        match &self.said {
            Ok(ProcFacts::Processes(listed)) => {
                let words = listed.iter().flat_map(|one| [one.pid, one.uid, one.gid]);
                bytes.extend(words.flat_map(u32::to_le_bytes));
            }
            Ok(ProcFacts::Descriptors(numbers)) => bytes.extend(numbers.iter().flat_map(|one| one.to_le_bytes())),
            Ok(ProcFacts::Bytes(said)) => bytes.extend(said),
            Ok(ProcFacts::Glances(glances)) => bytes.extend(glance::encode(glances)),
            Err(_) => (),
        }
        bytes.truncate(ANSWER_BYTES_MAX);
        bytes
    }

    /// # Errors
    /// Too long, or not about what `node` was asked for.
    pub fn decode(bytes: &[u8], question: ProcQuestion, node: Seat) -> Result<ProcAnswer, NotOne> {
        let mut words = Words(bytes);
        let (status, zero, began_ns) = (words.u32()?, words.u32()?, u64::from_le_bytes(words.array()?));
        let body = words.0;
        if body.len() > BODY_BYTES_MAX || zero != 0 {
            return Err(NotOne);
        }
        if status != 0 {
            let errno = i32::try_from(status).ok().filter(|errno| ERRNOS.contains(errno)).ok_or(NotOne)?;
            return if body.is_empty() { Ok(ProcAnswer { began_ns, said: Err(errno) }) } else { Err(NotOne) };
        }
        let said = match question {
            ProcQuestion::Processes => ProcFacts::Processes(processes(body, node)?),
            ProcQuestion::Owner(pid) => {
                let listed = processes(body, node)?;
                if !matches!(listed.as_slice(), [one] if one.pid == pid) {
                    return Err(NotOne);
                }
                ProcFacts::Processes(listed)
            }
            ProcQuestion::Descriptors(_) => {
                ProcFacts::Descriptors(ascending(body.chunks(4).map(|four| Words(four).u32()))?)
            }
            ProcQuestion::Link(..) if body.is_empty() || body.len() > LINK_BYTES_MAX || body.contains(&0) => {
                return Err(NotOne);
            }
            ProcQuestion::File(..) | ProcQuestion::Link(..) => ProcFacts::Bytes(body.to_vec()),
            ProcQuestion::Glances(..) => ProcFacts::Glances(glance::decode(body, node)?),
        };
        Ok(ProcAnswer { began_ns, said: Ok(said) })
    }
}

/// What procfs says of processes, and what the other side says of itself.
const ERRNOS: [i32; 6] = [libc::ENOENT, libc::ESRCH, libc::EACCES, libc::EPERM, libc::EIO, libc::EAGAIN];

/// An errno that an answer may have.
pub fn told(errno: i32) -> i32 {
    if ERRNOS.contains(&errno) { errno } else { libc::EIO }
}

fn processes(body: &[u8], node: Seat) -> Result<Vec<ListedProcess>, NotOne> {
    let listed = body.chunks(LISTED_BYTES).map(|twelve| {
        let mut words = Words(twelve);
        Ok(ListedProcess { pid: words.u32()?, uid: words.u32()?, gid: words.u32()? })
    });
    let listed: Vec<ListedProcess> = listed.collect::<Result<_, _>>()?;
    ascending(listed.iter().map(|one| Ok(one.pid)))?;
    let are_its = listed.iter().all(|one| Seat::of_pid(one.pid) == Some(node));
    if are_its { Ok(listed) } else { Err(NotOne) }
}

fn ascending(numbers: impl Iterator<Item = Result<u32, NotOne>>) -> Result<Vec<u32>, NotOne> {
    let numbers: Vec<u32> = numbers.collect::<Result<_, _>>()?;
    // Descriptors and processes are positive ints.
    let is_right =
        numbers.is_sorted_by(|one, next| one < next) && numbers.iter().all(|one| i32::try_from(*one).is_ok());
    if is_right { Ok(numbers) } else { Err(NotOne) }
}

struct Words<'a>(&'a [u8]);

impl Words<'_> {
    fn array<const BYTES: usize>(&mut self) -> Result<[u8; BYTES], NotOne> {
        let (first, rest) = self.0.split_first_chunk().ok_or(NotOne)?;
        self.0 = rest;
        Ok(*first)
    }

    fn u32(&mut self) -> Result<u32, NotOne> {
        self.array().map(u32::from_le_bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seat() -> Seat {
        Seat::new(1).unwrap()
    }

    const PID: u32 = 131_100;

    fn questions() -> Vec<ProcQuestion> {
        let files = Entry::ALL.iter().map(|entry| ProcQuestion::File(PID, *entry));
        let others = [
            ProcQuestion::Processes,
            ProcQuestion::Owner(PID),
            ProcQuestion::Descriptors(PID),
            ProcQuestion::Link(PID, ProcessLink::Descriptor(7)),
            ProcQuestion::Link(PID, ProcessLink::Exe),
            ProcQuestion::Link(PID, ProcessLink::Root),
            ProcQuestion::Glances(PID, GlanceDepth::Outside),
            ProcQuestion::Glances(PID, GlanceDepth::Inside),
        ];
        files.chain(others).collect()
    }

    #[test]
    fn every_ask_arrives_as_it_was_made_and_no_other_does() {
        let asker = Asker { uid: 33, gid: 44, effective: 1 << 19 };
        for question in questions() {
            let ask = Ask { question, asker };
            let bytes = ask.encode();
            assert_eq!(Ask::decode(&bytes), Ok(ask));
            for at in 0..bytes.len() {
                assert_eq!(Ask::decode(&bytes[..at]), Err(NotOne));
                for bit in 0..8 {
                    let mut other = bytes;
                    other[at] ^= 1 << bit;
                    assert_ne!(Ask::decode(&other), Ok(ask), "byte {at}");
                }
            }
            assert_eq!(Ask::decode(&[&bytes[..], &[0]].concat()), Err(NotOne));
        }
    }

    #[test]
    fn answers_arrive_as_they_were_given() {
        let listed = |pid| ListedProcess { pid, uid: 1, gid: 2 };
        let answers = [
            (ProcQuestion::Processes, Ok(ProcFacts::Processes(vec![listed(131_072), listed(196_607)]))),
            (ProcQuestion::Processes, Ok(ProcFacts::Processes(Vec::new()))),
            (ProcQuestion::Owner(PID), Ok(ProcFacts::Processes(vec![listed(PID)]))),
            (ProcQuestion::Descriptors(PID), Ok(ProcFacts::Descriptors(vec![0, 1, 2, 500]))),
            (ProcQuestion::Link(PID, ProcessLink::Descriptor(1)), Ok(ProcFacts::Bytes(b"/dev/null".to_vec()))),
            (ProcQuestion::File(PID, Entry::Cmdline), Ok(ProcFacts::Bytes(b"a\0\xff\0".to_vec()))),
            (ProcQuestion::File(PID, Entry::Environ), Err(libc::EACCES)),
        ];
        for (question, said) in answers {
            let answer = ProcAnswer { began_ns: 5, said };
            assert_eq!(ProcAnswer::decode(&answer.encode(), question, seat()), Ok(answer));
        }
    }

    #[test]
    fn node_speaks_for_its_own_processes_and_in_order() {
        let said = |pids: &[u32], question| {
            let listed = pids.iter().map(|pid| ListedProcess { pid: *pid, uid: 0, gid: 0 }).collect();
            let answer = ProcAnswer { began_ns: 0, said: Ok(ProcFacts::Processes(listed)) };
            ProcAnswer::decode(&answer.encode(), question, seat())
        };
        for foreign in [1, 65_536, 131_071, 196_608, u32::MAX] {
            assert_eq!(said(&[foreign], ProcQuestion::Processes), Err(NotOne), "{foreign}");
        }
        assert_eq!(said(&[131_073, 131_072], ProcQuestion::Processes), Err(NotOne));
        assert_eq!(said(&[131_072, 131_072], ProcQuestion::Processes), Err(NotOne));
        assert_eq!(said(&[131_072], ProcQuestion::Owner(131_073)), Err(NotOne));
        assert_eq!(said(&[], ProcQuestion::Owner(131_073)), Err(NotOne));
        let link = ProcAnswer { began_ns: 0, said: Ok(ProcFacts::Bytes(b"a\0b".to_vec())) };
        assert_eq!(
            ProcAnswer::decode(&link.encode(), ProcQuestion::Link(PID, ProcessLink::Descriptor(1)), seat()),
            Err(NotOne)
        );
        let odd = ProcAnswer { began_ns: 0, said: Err(libc::EINTR) };
        assert_eq!(ProcAnswer::decode(&odd.encode(), ProcQuestion::Processes, seat()), Err(NotOne));
    }
}
