//! What the gate knows without asking: what was said under leases ([`crate::memory`]), and extended attributes that are
//! not there.

use std::time::Instant;

use vos_api::fs;
use zerocopy::IntoBytes;

use super::{Backend, Gate, GateError};
use crate::backend::Done;
use crate::complete::{Asked, Completer, FuseReply, touched_by};
use crate::extents::{Sought, Unknown};
use crate::flight::{Flight, Loser};
use crate::kernel;
use crate::memory::{Memory, Moment, Touched};
use crate::request::{Body, Request};
use crate::translate::{self, Then};

/// As answers of the server have it that come with a lease.
const LEASED: [u64; 4] = [0, 0, 0, fs::LEASE];

impl<B: Backend> Gate<B> {
    /// Answers what is known. `false`: the server has to be asked.
    pub(super) fn answer_from_memory(&mut self, request: &Request<'_>) -> Result<bool, GateError> {
        let (unique, ino) = (request.header.unique, request.header.nodeid);
        // A file that a dead gate opened so is answered whatever is known by now.
        if !self.is_heard() && !matches!(request.body, Body::Open(_)) {
            return Ok(false);
        }
        match request.body {
            Body::Lookup { name } => {
                let Some(reply) = self.look_up_here(ino, name) else { return Ok(false) };
                match reply {
                    FuseReply::Bytes(bytes) => self.answer(unique, 0, &bytes)?,
                    FuseReply::Errno(errno) => self.answer(unique, -errno, &[])?,
                    FuseReply::Data { .. } => return Ok(false),
                }
            }
            Body::Getattr if self.cache.is_leased(ino) => {
                let Some(attr) = self.cache.memory.attr(ino).copied() else { return Ok(false) };
                // How many blocks it has after what was promised only the server says. A directory has none.
                let is_kept = self.cache.memory.promised(ino).is_none() || is_directory(&attr);
                self.answer(unique, 0, crate::complete::attributes(&attr, is_kept).as_bytes())?;
            }
            // What `ls`, `cp` and every write ask.
            Body::Getxattr { name: b"security.capability", .. } if self.cache.is_capability_absent(ino) => {
                self.answer(unique, -libc::ENODATA, &[])?;
            }
            Body::Getxattr { name, .. }
                if self.cache.is_bare(ino) && !translate::is_acl(name) && !translate::is_own(name) =>
            {
                self.answer(unique, -libc::ENODATA, &[])?;
            }
            Body::Listxattr { size } if self.cache.is_bare(ino) => {
                let none = kernel::GetxattrOut { size: 0, padding: 0 };
                self.answer(unique, 0, if size == 0 { none.as_bytes() } else { &[] })?;
            }
            Body::Lseek(head) if self.cache.is_leased(ino) => return self.seek_here(unique, ino, &head),
            Body::CopyFileRange(head) => return self.copy_here(unique, ino, &head),
            Body::Open(head) => return self.open_here(request, &head),
            Body::Read(head) if self.cache.is_leased(ino) && !self.state.is_writable(ino) => {
                return self.read_here(unique, ino, &head);
            }
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// Makes answers of what is known now.
    pub(super) fn of_what_is_known<'a>(&'a mut self, name: Option<&'a [u8]>) -> Completer<'a> {
        let (cache, state, names) = (&mut self.cache, &mut self.state, &mut self.names);
        let (asked, now) = (Asked::at(cache.memory.now()), Instant::now());
        Completer { cache, state, names, name, is_current: false, asked, now }
    }

    /// What a name leads to, under leases of its directory and of its inode.
    fn look_up_here(&mut self, parent: u64, name: &[u8]) -> Option<FuseReply> {
        if !self.cache.is_leased(parent) || matches!(name, b"." | b"..") {
            return None;
        }
        let target = self.cache.memory.name(parent, name)?;
        let attr = match target {
            Some(ino) if self.cache.is_leased(ino) => Some(*self.cache.memory.attr(ino)?),
            Some(_) => return None,
            None => None,
        };
        let mut completer = self.of_what_is_known(Some(name));
        Some(match attr {
            Some(attr) => FuseReply::Bytes(completer.entry(parent, Some(name), &attr, LEASED).as_bytes().to_vec()),
            None => completer.absent(parent),
        })
    }

    /// What loses a name by a request. What is known is certain: others put another inode there only after its lease,
    /// and with it what is open of it, was asked back.
    pub(super) fn loser(&self, request: &Request<'_>) -> Loser {
        let (parent, name) = match request.body {
            Body::Unlink { name } => (request.header.nodeid, name),
            Body::Rename { to, new, .. } => (to, new),
            _ => return Loser::Nothing,
        };
        match self.cache.memory.name(parent, name).filter(|_| self.cache.is_leased(parent)) {
            Some(Some(ino)) => Loser::Inode(ino),
            Some(None) => Loser::Nothing,
            None => Loser::Unknown,
        }
    }

    /// Where a file has data, or a hole, as the server said or a program wrote.
    fn seek_here(&mut self, unique: u64, ino: u64, head: &kernel::LseekIn) -> Result<bool, GateError> {
        let Some(sought) = Sought::of(head.whence) else { return Ok(false) };
        match self.cache.memory.extent(ino, head.offset, sought) {
            Ok(Some(offset)) => self.answer(unique, 0, kernel::LseekOut { offset }.as_bytes())?,
            Ok(None) => self.answer(unique, -libc::ENXIO, &[])?,
            Err(Unknown) => return Ok(false),
        }
        Ok(true)
    }

    /// A copy of what lies after the end: none, as `cp` asks to be told.
    fn copy_here(&mut self, unique: u64, source: u64, head: &kernel::CopyFileRangeIn) -> Result<bool, GateError> {
        let size = self.cache.memory.attr(source).filter(|_| self.cache.is_leased(source)).map(|attr| attr.bytes.get());
        if size.is_none_or(|size| head.off_in < size) {
            return Ok(false);
        }
        self.answer(unique, 0, kernel::WriteOut { size: 0, padding: 0 }.as_bytes())?;
        Ok(true)
    }

    /// Bytes that were fetched ahead. The kernel has them then.
    fn read_here(&mut self, unique: u64, ino: u64, head: &kernel::ReadIn) -> Result<bool, GateError> {
        let Some(content) = self.cache.memory.content(ino) else { return Ok(false) };
        let from = usize::try_from(head.offset).unwrap_or(usize::MAX).min(content.len());
        let to = from.saturating_add(head.size as usize).min(content.len());
        let bytes = content.get(from..to).unwrap_or_default().to_vec();
        self.cache.read_with_others(ino);
        self.answer(unique, 0, &bytes)?;
        self.note_used(ino);
        Ok(true)
    }

    /// A change of ours is through. Answers since when what its answer says can be learnt.
    pub(super) fn changed(&mut self, flight: &Flight, done: &Done<B::Data>) -> Moment {
        if flight.touched == Touched::default() {
            return flight.asked;
        }
        let also = if done.status == 0 { touched_by(flight.then, done.results) } else { Vec::new() };
        if also.contains(&0) {
            self.cache.memory.forget_all();
        }
        let ended = self.cache.memory.ends(&flight.touched, &also, flight.asked);
        if done.status == 0 {
            for directory in &flight.directories {
                self.cache.memory.learn(directory.ino.get(), directory, ended);
            }
        }
        ended
    }

    /// What the directories of a change will be once it is through, as far as that is known: so its program, and the
    /// next one, find their way without asking.
    pub(super) fn directories_after(&self, request: &Request<'_>, time_ns: u64) -> Vec<fs::Attr> {
        let parent = request.header.nodeid;
        let is_file = |parent: u64, name: &[u8]| match self.cache.memory.name(parent, name) {
            Some(None) => true,
            Some(Some(ino)) => self.cache.memory.attr(ino).is_some_and(|attr| !is_directory(attr)),
            None => false,
        };
        let (others, links) = match request.body {
            Body::Create { .. }
            | Body::Mknod { .. }
            | Body::Symlink { .. }
            | Body::Link { .. }
            | Body::Unlink { .. } => (None, 0),
            Body::Mkdir { .. } => (None, 1),
            Body::Rmdir { .. } => (None, -1),
            Body::Rename { to, flags: 0 | libc::RENAME_NOREPLACE, old, new }
                if is_file(parent, old) && is_file(to, new) =>
            {
                (Some(to).filter(|to| *to != parent), 0)
            }
            _ => return Vec::new(),
        };
        let after = |ino: u64| {
            let attr = self.cache.memory.certain(ino).filter(|_| self.cache.is_leased(ino))?;
            let links = attr.links.get().checked_add_signed(links)?;
            let (time, links) = (time_ns.into(), links.into());
            Some(fs::Attr { links, mtime_ns: time, ctime_ns: time, ..*attr })
        };
        [Some(parent), others].into_iter().flatten().filter_map(after).collect()
    }

    /// What the change's answer said has been learnt: names are known, or those of their directories are not any more.
    pub(super) fn learnt(&mut self, flight: &Flight, done: &Done<B::Data>, asked: Moment) {
        let names = &flight.touched.names;
        if let (Then::Renamed { exchanges, .. }, 0, [(from, old), (to, new)]) =
            (flight.then, done.status, names.as_slice())
        {
            let fs::Renamed { ino, replaced, .. } = done.results.into();
            // Two names of one file stay as they are.
            if ino != 0 && ino != replaced && self.cache.is_leased(*from) && self.cache.is_leased(*to) {
                let memory = &mut self.cache.memory;
                memory.learn_name(*from, old, exchanges.then_some(replaced), asked);
                memory.learn_name(*to, new, Some(ino), asked);
            }
        }
        let is_gone = done.status == 0 && matches!(flight.then, Then::Removed { .. });
        self.cache.memory.check_names(names, is_gone);
    }
}

fn is_directory(attr: &fs::Attr) -> bool {
    attr.mode.get() & libc::S_IFMT == libc::S_IFDIR
}

/// What a request changes, as far as it can be seen before.
pub(super) fn touched(request: &Request<'_>, memory: &Memory) -> Touched {
    let ino = request.header.nodeid;
    let of = |inos: &[u64]| Touched { inos: inos.to_vec(), ..Touched::default() };
    match request.body {
        Body::Setattr(_)
        | Body::Write { .. }
        | Body::Fallocate(_)
        | Body::Setxattr { .. }
        | Body::Removexattr { .. } => of(&[ino]),
        Body::Open(head) if head.flags & libc::O_TRUNC as u32 != 0 => of(&[ino]),
        Body::CopyFileRange(head) => of(&[head.nodeid_out]),
        Body::Symlink { .. } | Body::Mknod { .. } | Body::Mkdir { .. } | Body::Create { .. } | Body::Ioctl { .. } => {
            Touched { names: super::names_of(request), ..of(&[ino]) }
        }
        Body::Link { ino: target, .. } => Touched { names: super::names_of(request), ..of(&[ino, target]) },
        Body::Unlink { .. } | Body::Rmdir { .. } | Body::Rename { .. } => {
            let mut touched = Touched { names: super::names_of(request), ..Touched::default() };
            for (parent, name) in &touched.names {
                touched.inos.push(*parent);
                match memory.name(*parent, name) {
                    Some(target) => touched.inos.extend(target),
                    None => touched.has_unknown = true,
                }
            }
            touched
        }
        _ => Touched::default(),
    }
}
