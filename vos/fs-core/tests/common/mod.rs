//! A client of the file system, a reference model, and random operations for both.
#![allow(dead_code)]

pub mod model;

use std::sync::Arc;

use fs_core::{Call, Fs, Reply};
use vos_api::Errno;
use vos_api::fs as api;
use vos_api::session::Progress;
use zerocopy::{FromBytes, FromZeros, IntoBytes};

/// Deterministic numbers from a seed (xorshift64*).
#[derive(Clone)]
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Random {
        Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 11
    }

    pub fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit
    }

    pub fn chance(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }

    pub fn pick<'a, T>(&mut self, from: &'a [T]) -> &'a T {
        &from[self.below(from.len() as u64) as usize]
    }
}

/// One session's calls.
pub struct Client {
    pub fs: Arc<Fs>,
    pub session: u64,
    pub sequence: u64,
}

pub const ROOM: usize = 1 << 20;

impl Client {
    pub fn new(fs: &Arc<Fs>, session: u64) -> Client {
        if session != 0 {
            fs.open_session(session, 0).expect("a new session");
        }
        Client { fs: fs.clone(), session, sequence: 0 }
    }

    /// Says that it knows of the fence.
    pub fn revive(&self) -> Result<u64, Errno> {
        let progress = Progress { acknowledged: 0, revives: true };
        let opened = self.fs.hello(self.session, progress)?;
        self.fs.keep_session(self.session, 0, opened).map(|()| opened.highest)
    }

    pub fn read_call(&self, op: u16, args: [u64; 3], data: &[u8]) -> Reply {
        let (session, data) = (self.session, data.to_vec());
        declared(op, self.fs.call(Call { session, op, args, data, capacity: ROOM, ..Call::default() }))
    }

    pub fn change_call(&mut self, op: u16, flags: u16, args: [u64; 3], data: &[u8]) -> Call {
        self.sequence += 1;
        let (session, sequence) = (self.session, self.sequence);
        Call { session, sequence, op, flags, args, data: data.to_vec(), capacity: ROOM }
    }

    pub fn change(&mut self, op: u16, flags: u16, args: [u64; 3], data: &[u8]) -> Reply {
        let call = self.change_call(op, flags, args, data);
        declared(op, self.fs.call(call))
    }

    pub fn make(&mut self, op: u16, parent: u64, name: &str, mode: u32, time_ns: u64) -> Reply {
        self.change(op, 0, [parent, name.len() as u64, 1], &create_data(name, mode, time_ns))
    }

    pub fn write(&mut self, ino: u64, offset: u64, data: &[u8], time_ns: u64) -> Reply {
        self.change(api::WRITE, 0, [ino, offset, time_ns], data)
    }

    pub fn read(&self, ino: u64, offset: u64, bytes: u64) -> Vec<u8> {
        let reply = self.read_call(api::READ, [ino, offset, bytes], &[]);
        assert_eq!(reply.status, 0, "reading inode {ino} at {offset}");
        reply.data
    }

    pub fn read_all(&self, ino: u64) -> Vec<u8> {
        let mut data = Vec::new();
        loop {
            let part = self.read(ino, data.len() as u64, ROOM as u64);
            if part.is_empty() {
                return data;
            }
            data.extend(part);
        }
    }

    pub fn attr(&self, ino: u64) -> api::Attr {
        attr_of(&self.read_call(api::GETATTR, [ino, 0, 0], &[]))
    }

    pub fn lookup(&self, parent: u64, name: &str) -> Option<u64> {
        let reply = self.read_call(api::LOOKUP, [parent, 0, 0], name.as_bytes());
        (reply.status == 0).then(|| attr_of(&reply).ino.get())
    }

    pub fn list(&self, ino: u64) -> Vec<(String, u64)> {
        let mut names = Vec::new();
        let mut cookie = 0;
        loop {
            let reply = self.read_call(api::READDIR, [ino, cookie, 0], &[]);
            assert_eq!(reply.status, 0, "reading directory {ino}");
            for (entry, name) in entries(&reply.data) {
                cookie = entry.cookie.get();
                names.push((name, entry.ino.get()));
            }
            if reply.results[1] == 1 {
                return names;
            }
        }
    }
}

/// An answer, which must be one that the operation is declared to give.
fn declared(op: u16, reply: Reply) -> Reply {
    let mut errors = api::errors_of(op).iter().chain(Errno::ANY);
    let is_declared = reply.status == 0 || errors.any(|errno| errno.number() == reply.status);
    assert!(is_declared, "operation {op} answered errno {}", reply.status);
    reply
}

pub fn create_data(name: &str, mode: u32, time_ns: u64) -> Vec<u8> {
    let create = api::Create { mode: mode.into(), time_ns: time_ns.into(), ..api::Create::new_zeroed() };
    [create.as_bytes(), name.as_bytes()].concat()
}

pub fn rename_data(old: &str, new: &str) -> Vec<u8> {
    [&(old.len() as u16).to_le_bytes()[..], old.as_bytes(), new.as_bytes()].concat()
}

pub fn attr_of(reply: &Reply) -> api::Attr {
    assert_eq!(reply.status, 0);
    api::Attr::read_from_prefix(&reply.data).expect("attributes").0
}

pub fn entries(mut data: &[u8]) -> Vec<(api::DirEntry, String)> {
    let mut found = Vec::new();
    while !data.is_empty() {
        let (entry, rest) = api::DirEntry::read_from_prefix(data).expect("an entry");
        let bytes = entry.name_bytes.get() as usize;
        found.push((entry, String::from_utf8(rest[..bytes].to_vec()).expect("a name of the test")));
        data = &rest[bytes.next_multiple_of(8)..];
    }
    found
}

/// Operations of a long run, from the environment.
pub fn scaled(normal: u64) -> u64 {
    std::env::var("DVS_TEST_SCALE")
        .ok()
        .and_then(|scale| scale.parse::<u64>().ok())
        .map_or(normal, |scale| normal * scale)
}

pub fn seeds(normal: u64) -> Vec<u64> {
    match std::env::var("DVS_TEST_SEED").ok().and_then(|seed| seed.parse().ok()) {
        Some(seed) => vec![seed],
        None => (1..=scaled(normal)).collect(),
    }
}
