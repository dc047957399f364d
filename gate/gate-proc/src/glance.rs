//! Reading ahead: whoever goes over all processes reads `stat`, `status` and `cmdline` of one after the other. So when
//! one is read behind another, the node is asked for those of the next ones, too.
//!
//! ```text
//! glances, each    0 pid   4 bytes of stat   8 of status   12 of cmdline   16 of environ   20 these
//!                  of the last two all ones: it was not read
//! ```
//!
//! What is glanced at is good for [`FRESH`], and for whoever asks: everybody may see these files. `environ` is glanced
//! at for who may trace all, when such a one reads it of one process behind another, and given to such alone.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use proc_core::range::Seat;

use crate::ask::NotOne;
use crate::number::Entry;

/// Processes that are glanced at by one question.
pub const GLANCES_MAX: usize = 60;
/// Longer files are asked for by themselves.
pub const GLANCE_BYTES_MAX: usize = 4096;
/// How old an answer may be.
const FRESH: Duration = Duration::from_millis(100);
/// Of all nodes.
const KEPT_MAX: usize = 1024;
const FILES: usize = 4;
const HEAD_BYTES: usize = 20;
const NOT_READ: u32 = u32::MAX;

const _: () = assert!(GLANCES_MAX * (HEAD_BYTES + FILES * GLANCE_BYTES_MAX) < crate::ask::BODY_BYTES_MAX);

/// Whether what only who may trace a process sees is glanced at, too.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum GlanceDepth {
    Outside,
    Inside,
}

/// What a process's files say. `None`: not read, or too long.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Glance {
    pub pid: u32,
    pub stat: Vec<u8>,
    pub status: Vec<u8>,
    pub cmdline: Option<Vec<u8>>,
    pub environ: Option<Vec<u8>>,
}

pub fn encode(glances: &[Glance]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for glance in glances.iter().take(GLANCES_MAX) {
        let read = |said: &Option<Vec<u8>>| said.as_ref().map_or(NOT_READ, |said| said.len() as u32);
        let (cmdline, environ) = (read(&glance.cmdline), read(&glance.environ));
        let words = [glance.pid, glance.stat.len() as u32, glance.status.len() as u32, cmdline, environ];
        bytes.extend(words.iter().flat_map(|word| word.to_le_bytes()));
        bytes.extend(glance.stat.iter().chain(&glance.status).chain(glance.cmdline.iter().flatten()));
        bytes.extend(glance.environ.iter().flatten());
    }
    bytes
}

/// Of processes of that node, by number, each once.
///
/// # Errors
/// The bytes say something else.
pub fn decode(mut bytes: &[u8], node: Seat) -> Result<Vec<Glance>, NotOne> {
    let mut glances: Vec<Glance> = Vec::new();
    while !bytes.is_empty() {
        let mut take = |count: usize| {
            let (taken, rest) = bytes.split_at_checked(count).ok_or(NotOne)?;
            bytes = rest;
            Ok(taken)
        };
        let mut word = || Ok(u32::from_le_bytes(take(4)?.try_into().map_err(|_| NotOne)?));
        let (pid, stat, status, cmdline, environ) = (word()?, word()?, word()?, word()?, word()?);
        let mut text = |count: u32| match count as usize {
            count if count <= GLANCE_BYTES_MAX => take(count).map(<[u8]>::to_vec),
            _ => Err(NotOne),
        };
        let (stat, status) = (text(stat)?, text(status)?);
        let mut perhaps = |count| if count == NOT_READ { Ok(None) } else { text(count).map(Some) };
        let (cmdline, environ) = (perhaps(cmdline)?, perhaps(environ)?);
        let is_next = glances.last().is_none_or(|last| last.pid < pid);
        if !is_next || Seat::of_pid(pid) != Some(node) || glances.len() == GLANCES_MAX {
            return Err(NotOne);
        }
        glances.push(Glance { pid, stat, status, cmdline, environ });
    }
    Ok(glances)
}

/// When, and what a file said.
type Seen = (Instant, Arc<Vec<u8>>);

/// What was glanced at lately.
#[derive(Debug, Default)]
pub struct Glances(Mutex<Kept>);

#[derive(Debug, Default)]
struct Kept {
    seen: HashMap<(u32, Entry), Seen>,
    /// Whose file was read last, and when; whose `environ`.
    last: Option<(u32, Instant)>,
    last_inside: Option<(u32, Instant)>,
    /// When a walk last read `environ`.
    into: Option<Instant>,
}

impl Glances {
    /// Whether whoever reads this goes over processes: the one before has a smaller number, a moment ago.
    pub fn is_walk(&self, pid: u32, entry: Entry) -> bool {
        let (mut kept, now) = (self.0.lock(), Instant::now());
        let is_inside = entry == Entry::Environ;
        let before = if is_inside { &mut kept.last_inside } else { &mut kept.last }.replace((pid, now));
        let is_walk = before.is_some_and(|(last, at)| last < pid && at.elapsed() < FRESH);
        if is_walk && is_inside {
            kept.into = Some(now);
        }
        is_walk
    }

    /// Whether whoever goes over processes wants to see their `environ`, too.
    pub fn go_into(&self) -> bool {
        self.0.lock().into.is_some_and(|at| at.elapsed() < FRESH)
    }

    pub fn keep(&self, glances: Vec<Glance>) {
        let (now, mut kept) = (Instant::now(), self.0.lock());
        if kept.seen.len() >= FILES * KEPT_MAX {
            kept.seen.retain(|_, (at, _)| at.elapsed() < FRESH);
        }
        for Glance { pid, stat, status, cmdline, environ } in glances {
            if kept.seen.len() >= FILES * KEPT_MAX {
                return;
            }
            let sure = [(Entry::Stat, stat), (Entry::Status, status)].into_iter();
            let perhaps = cmdline.map(|said| (Entry::Cmdline, said)).into_iter();
            let inside = environ.map(|said| (Entry::Environ, said));
            for (entry, said) in sure.chain(perhaps).chain(inside) {
                kept.seen.insert((pid, entry), (now, Arc::new(said)));
            }
        }
    }

    /// Each is given once: who reads a file twice wants to know whether it changed.
    pub fn take(&self, pid: u32, entry: Entry) -> Option<Arc<Vec<u8>>> {
        let (at, said) = self.0.lock().seen.remove(&(pid, entry))?;
        (at.elapsed() < FRESH).then_some(said)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn glance(pid: u32) -> Glance {
        let cmdline = Some(b"a\0".to_vec());
        Glance { pid, stat: b"1 (a) S".to_vec(), status: b"Name:\ta\n".to_vec(), cmdline, environ: None }
    }

    #[test]
    fn glances_arrive_as_they_were_and_others_are_refused() {
        let node = Seat::new(1).expect("a seat");
        let all = vec![
            glance(131_072),
            Glance { cmdline: None, environ: Some(b"A=1\0".to_vec()), ..glance(131_080) },
            glance(196_607),
        ];
        let bytes = encode(&all);
        assert_eq!(decode(&bytes, node), Ok(all.clone()));
        assert_eq!(decode(&[], node), Ok(Vec::new()));
        for end in 1..bytes.len() {
            if let Ok(some) = decode(&bytes[..end], node) {
                assert!(some.len() < all.len(), "cut at {end}");
            }
        }
        for at in 0..bytes.len() {
            let mut changed = bytes.clone();
            changed[at] ^= 0xff;
            if let Ok(read) = decode(&changed, node) {
                assert_eq!(encode(&read), changed, "byte {at}");
            }
        }
        for foreign in [[1, 131_072], [131_072, 131_072], [131_073, 131_072], [131_072, 196_608]] {
            assert_eq!(decode(&encode(&foreign.map(glance)), node), Err(NotOne), "{foreign:?}");
        }
        let many: Vec<_> = (0..GLANCES_MAX as u32).map(|at| glance(131_072 + at)).collect();
        let more = [encode(&many), encode(&[glance(190_000)])].concat();
        assert_eq!(
            (decode(&encode(&many), node).map(|some| some.len()), decode(&more, node)),
            (Ok(GLANCES_MAX), Err(NotOne))
        );
        let long = Glance { stat: vec![0; GLANCE_BYTES_MAX + 1], ..glance(131_072) };
        assert_eq!(decode(&encode(&[long]), node), Err(NotOne));
    }

    #[test]
    fn what_was_seen_is_given_once_and_who_goes_over_all_is_known() {
        let glances = Glances::default();
        let is_walk = |pid| glances.is_walk(pid, Entry::Stat);
        assert!(!is_walk(5) && is_walk(6) && !is_walk(6) && !is_walk(2) && !glances.go_into());
        assert!(!glances.is_walk(5, Entry::Environ) && glances.is_walk(6, Entry::Environ) && glances.go_into());
        glances.keep(vec![glance(7)]);
        assert!(glances.take(7, Entry::Stat).is_some() && glances.take(7, Entry::Stat).is_none());
        assert!(glances.take(7, Entry::Cmdline).is_some() && glances.take(8, Entry::Status).is_none());
        glances.keep((0..2 * KEPT_MAX as u32).map(glance).collect());
        assert!(glances.0.lock().seen.len() <= FILES * KEPT_MAX + FILES);
    }
}
