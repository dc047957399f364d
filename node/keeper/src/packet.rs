//! JSON packets with descriptors over a SEQPACKET socket, as `protocol` describes them.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{MemfdFlags, memfd_create};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::protocol::{IN_MEMFD, INLINE, INLINE_BYTES_MAX, JSON_BYTES_MAX};

#[derive(Debug, thiserror::Error)]
pub enum PacketError {
    #[error("the other end closed the connection")]
    Closed,
    #[error("nothing came in time")]
    TimedOut,
    #[error("the socket failed")]
    Socket(#[source] io::Error),
    #[error("a packet is not what this protocol knows")]
    Malformed(#[source] serde_json::Error),
    #[error("a packet has an unknown form or more than {JSON_BYTES_MAX} bytes")]
    BadForm,
}

impl From<io::Error> for PacketError {
    fn from(cause: io::Error) -> PacketError {
        match cause.kind() {
            io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset => PacketError::Closed,
            _ => PacketError::Socket(cause),
        }
    }
}

/// Sends one packet at once; `WouldBlock` inside [`PacketError::Socket`] when the other end does not read.
pub fn send_now<T: Serialize>(socket: BorrowedFd<'_>, value: &T, fds: &[BorrowedFd<'_>]) -> Result<(), PacketError> {
    let json = serde_json::to_vec(value).map_err(PacketError::Malformed)?;
    if json.len() <= INLINE_BYTES_MAX {
        let mut packet = Vec::with_capacity(json.len() + 1);
        packet.push(INLINE);
        packet.extend_from_slice(&json);
        return Ok(sys::seqpacket::send(socket, &packet, fds)?);
    }
    if json.len() > JSON_BYTES_MAX {
        return Err(PacketError::BadForm);
    }
    let carrier = memory_file(&json)?;
    let mut all = vec![carrier.as_fd()];
    all.extend_from_slice(fds);
    Ok(sys::seqpacket::send(socket, &[IN_MEMFD], &all)?)
}

/// Sends one packet, waiting for room until `until`.
pub fn send<T: Serialize>(
    socket: BorrowedFd<'_>,
    value: &T,
    fds: &[BorrowedFd<'_>],
    until: Instant,
) -> Result<(), PacketError> {
    loop {
        match send_now(socket, value, fds) {
            Err(PacketError::Socket(cause)) if cause.kind() == io::ErrorKind::WouldBlock => {
                wait(socket, PollFlags::OUT, until)?;
            }
            other => return other,
        }
    }
}

/// The next packet, `None` when none is there now.
pub fn receive_now<T: DeserializeOwned>(socket: BorrowedFd<'_>) -> Result<Option<(T, Vec<OwnedFd>)>, PacketError> {
    let mut buffer = vec![0; INLINE_BYTES_MAX + 1];
    let received = match sys::seqpacket::receive(socket, &mut buffer) {
        Ok(received) => received,
        Err(cause) if cause.kind() == io::ErrorKind::WouldBlock => return Ok(None),
        Err(cause) => return Err(cause.into()),
    };
    let bytes = buffer.get(..received.bytes).ok_or(PacketError::BadForm)?;
    let mut fds = received.descriptors;
    match bytes.split_first() {
        None => Err(PacketError::Closed),
        Some((&INLINE, json)) => Ok(Some((serde_json::from_slice(json).map_err(PacketError::Malformed)?, fds))),
        Some((&IN_MEMFD, [])) if !fds.is_empty() => {
            let json = read_memory_file(fds.remove(0))?;
            Ok(Some((serde_json::from_slice(&json).map_err(PacketError::Malformed)?, fds)))
        }
        Some(_) => Err(PacketError::BadForm),
    }
}

/// The next packet, waiting for it until `until`.
pub fn receive_until<T: DeserializeOwned>(
    socket: BorrowedFd<'_>,
    until: Instant,
) -> Result<(T, Vec<OwnedFd>), PacketError> {
    loop {
        if let Some(packet) = receive_now(socket)? {
            return Ok(packet);
        }
        wait(socket, PollFlags::IN, until)?;
    }
}

/// An anonymous file with this content, positioned at its start.
pub fn memory_file(content: &[u8]) -> Result<OwnedFd, PacketError> {
    let mut file = File::from(memfd_create("dvs-packet", MemfdFlags::CLOEXEC).map_err(io::Error::from)?);
    file.write_all(content)?;
    file.seek(SeekFrom::Start(0))?;
    Ok(file.into())
}

fn read_memory_file(fd: OwnedFd) -> Result<Vec<u8>, PacketError> {
    let mut json = Vec::new();
    File::from(fd).take(JSON_BYTES_MAX as u64 + 1).read_to_end(&mut json)?;
    if json.len() > JSON_BYTES_MAX { Err(PacketError::BadForm) } else { Ok(json) }
}

fn wait(socket: BorrowedFd<'_>, for_what: PollFlags, until: Instant) -> Result<(), PacketError> {
    let left = until.checked_duration_since(Instant::now()).unwrap_or(Duration::ZERO);
    if left.is_zero() {
        return Err(PacketError::TimedOut);
    }
    let left = Timespec::try_from(left).ok();
    match poll(&mut [PollFd::from_borrowed_fd(socket, for_what)], left.as_ref()) {
        Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
        Err(cause) => Err(PacketError::Socket(cause.into())),
    }
}
