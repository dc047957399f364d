//! Making a channel's objects; the broker does it.

use rustix::pipe::PipeFlags;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use abi::layout::{Role, Size};

/// What one party maps, and its bells: `bell_in` is an ear ([`sys::eventfd::ear`]) for the peer and the broker,
/// `bell_out` the event that this party signals. Nobody else but the broker holds it, so a peer cannot make the signal
/// block.
#[derive(Debug)]
pub struct PartyFiles {
    pub own: OwnedFd,
    pub peer: OwnedFd,
    pub shared: OwnedFd,
    pub bell_in: OwnedFd,
    pub bell_out: OwnedFd,
    /// The end of the broker's pipe to this party: an ear hears only what somebody holds.
    pub lifeline: OwnedFd,
}

/// The three objects and the bells of a channel, writable, as their maker holds them. Each party is woken by an event
/// that its peer signals and by a pipe of the broker. They are apart, because whoever can signal an event can also make
/// the other's signal block; and it is a pipe, because what was written there is there when the broker has closed its
/// end.
#[derive(Debug)]
pub struct ChannelFiles {
    left: OwnedFd,
    right: OwnedFd,
    shared: OwnedFd,
    bell_left: OwnedFd,
    bell_right: OwnedFd,
    line_left: Line,
    line_right: Line,
}

/// A pipe from the broker to one party.
#[derive(Debug)]
struct Line {
    reader: OwnedFd,
    writer: OwnedFd,
}

impl Line {
    fn create() -> io::Result<Line> {
        let (reader, writer) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
        Ok(Line { reader, writer })
    }

    fn try_clone(&self) -> io::Result<Line> {
        Ok(Line { reader: self.reader.try_clone()?, writer: self.writer.try_clone()? })
    }
}

/// Descriptors of one [`ChannelFiles`].
pub const CHANNEL_DESCRIPTORS: usize = 9;

/// Wakes a party over its line, of which `line` is the broker's end. A full pipe has woken it already.
pub fn ring_line(line: impl AsFd) {
    let _ = rustix::io::write(line, &[1]);
}

impl ChannelFiles {
    pub fn create(size: Size) -> io::Result<ChannelFiles> {
        let side_bytes = size.side_bytes() as u64;
        Ok(ChannelFiles {
            left: sys::memfd::create_sealed("dvs-left", side_bytes)?,
            right: sys::memfd::create_sealed("dvs-right", side_bytes)?,
            shared: sys::memfd::create_sealed("dvs-shared", size.shared_bytes() as u64)?,
            bell_left: sys::eventfd::create()?,
            bell_right: sys::eventfd::create()?,
            line_left: Line::create()?,
            line_right: Line::create()?,
        })
    }

    /// Descriptors for one party; the peer's side is read-only for good.
    pub fn party(&self, role: Role) -> io::Result<PartyFiles> {
        let (own, peer, bell_in, line, bell_out) = match role {
            Role::Left => (&self.left, &self.right, &self.bell_left, &self.line_left, &self.bell_right),
            Role::Right => (&self.right, &self.left, &self.bell_right, &self.line_right, &self.bell_left),
        };
        let lifeline = line.reader.try_clone()?;
        Ok(PartyFiles {
            own: own.try_clone()?,
            peer: sys::memfd::reopen_read_only(peer.as_fd())?,
            shared: self.shared.try_clone()?,
            bell_in: sys::eventfd::ear([bell_in.as_fd(), lifeline.as_fd()])?,
            bell_out: bell_out.try_clone()?,
            lifeline,
        })
    }

    /// What an earlier broker made: in the order of [`ChannelFiles::descriptors`].
    pub fn adopt(descriptors: [OwnedFd; CHANNEL_DESCRIPTORS]) -> ChannelFiles {
        let [left, right, shared, bell_left, bell_right, reader_left, writer_left, reader_right, writer_right] =
            descriptors;
        ChannelFiles {
            left,
            right,
            shared,
            bell_left,
            bell_right,
            line_left: Line { reader: reader_left, writer: writer_left },
            line_right: Line { reader: reader_right, writer: writer_right },
        }
    }

    /// The broker's ends of the lines to the left and the right party; the rest is closed.
    pub fn into_lines(self) -> (OwnedFd, OwnedFd) {
        (self.line_left.writer, self.line_right.writer)
    }

    /// Second descriptors of the same objects.
    pub fn try_clone(&self) -> io::Result<ChannelFiles> {
        Ok(ChannelFiles {
            left: self.left.try_clone()?,
            right: self.right.try_clone()?,
            shared: self.shared.try_clone()?,
            bell_left: self.bell_left.try_clone()?,
            bell_right: self.bell_right.try_clone()?,
            line_left: self.line_left.try_clone()?,
            line_right: self.line_right.try_clone()?,
        })
    }

    /// All of it, writable: for whoever keeps it over the broker's restart, for nobody else.
    pub fn descriptors(&self) -> [BorrowedFd<'_>; CHANNEL_DESCRIPTORS] {
        let ChannelFiles { left, right, shared, bell_left, bell_right, line_left, line_right } = self;
        let (one, other) = (line_left, line_right);
        [left, right, shared, bell_left, bell_right, &one.reader, &one.writer, &other.reader, &other.writer]
            .map(AsFd::as_fd)
    }

    /// The side that the party of this role writes.
    pub(crate) fn side(&self, role: Role) -> BorrowedFd<'_> {
        match role {
            Role::Left => self.left.as_fd(),
            Role::Right => self.right.as_fd(),
        }
    }

    /// The broker's end of the line to the party of this role.
    pub fn line(&self, role: Role) -> BorrowedFd<'_> {
        match role {
            Role::Left => self.line_left.writer.as_fd(),
            Role::Right => self.line_right.writer.as_fd(),
        }
    }
}
