//! JSON packets with descriptors over a SEQPACKET socket, as `protocol` describes them.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{MemfdFlags, memfd_create};
use serde::Serialize;
use serde::de::DeserializeOwned;

use mgmt_api::ExecRequest;

use crate::launch::Plan;
use crate::protocol::{Answer, IN_MEMFD, INLINE, INLINE_BYTES_MAX, JSON_BYTES_MAX, Request};

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
    parse(bytes, received.descriptors).map(Some)
}

/// What a packet and the descriptors beside it say.
fn parse<T: DeserializeOwned>(packet: &[u8], mut fds: Vec<OwnedFd>) -> Result<(T, Vec<OwnedFd>), PacketError> {
    match packet.split_first() {
        None => Err(PacketError::Closed),
        Some((&INLINE, json)) => Ok((serde_json::from_slice(json).map_err(PacketError::Malformed)?, fds)),
        Some((&IN_MEMFD, [])) if !fds.is_empty() => {
            let json = read_memory_file(fds.remove(0))?;
            Ok((serde_json::from_slice(&json).map_err(PacketError::Malformed)?, fds))
        }
        Some(_) => Err(PacketError::BadForm),
    }
}

/// Takes a packet without descriptors for a request and for an answer, with the plan of the program that it runs;
/// answers what it took it for, written again.
pub fn read_packet(packet: &[u8]) -> [Option<Vec<u8>>; 2] {
    let request = parse::<Request>(packet, Vec::new()).ok().map(|(request, _)| request);
    if let Some(Request::Run { run, .. } | Request::Exec { exec: ExecRequest { run, .. }, .. }) = &request {
        let _ = Plan::check(run, "", &[]);
    }
    let answer = parse::<Answer>(packet, Vec::new()).ok().map(|(answer, _)| answer);
    let written = |json: Vec<u8>| [&[INLINE][..], &json].concat();
    [request.and_then(|it| serde_json::to_vec(&it).ok()), answer.and_then(|it| serde_json::to_vec(&it).ok())]
        .map(|json| json.map(written))
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
    // Only memory has seals. Anything else, a pipe for instance, could let us wait.
    if rustix::fs::fcntl_get_seals(&fd).is_err() {
        return Err(PacketError::BadForm);
    }
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

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::protocol::{Answer, FuseOptions, Request, VERSIONS};
    use crate::refusal::{BadRun, Refusal, Stage, Task};

    fn requests() -> Vec<Request> {
        let run: mgmt_api::RunRequest =
            serde_json::from_value(serde_json::json!({ "argv": ["sh", {"hex": "ff00"}], "env": ["A=b"] })).unwrap();
        let (pid, pending, session) = (65_540, b"early".to_vec(), Some(u64::MAX));
        vec![
            Request::Hello(VERSIONS),
            Request::Run { run: run.clone(), pending: pending.clone(), session },
            Request::Exec { exec: mgmt_api::ExecRequest { pid, run }, pending: pending.clone(), session: None },
            Request::Resume { pid, pending, session: 7, heard: 9 },
            Request::Signal { pid, signal: -1, by: Some("alice".to_owned()) },
            Request::Store { key: "gate".to_owned() },
            Request::MountFuse(FuseOptions::default()),
        ]
    }

    fn answers() -> Vec<Answer> {
        let failed = Task::MountTree.failed()(io::Error::from_raw_os_error(libc::EIO));
        vec![
            Answer::Hello { version: 2 },
            Answer::OtherVersion(VERSIONS),
            Answer::Refused(Refusal::Launch { stage: Stage::Exec, errno: libc::ENOENT }),
            Answer::Refused(BadRun::BadVariable("=".to_owned()).into()),
            Answer::Refused(failed),
        ]
    }

    fn packet_of(value: &impl Serialize) -> Vec<u8> {
        [&[INLINE][..], &serde_json::to_vec(value).unwrap()].concat()
    }

    /// What is read is written, and read again, as the same.
    fn reads_back<T: DeserializeOwned + Serialize + PartialEq + std::fmt::Debug>(packet: &[u8]) {
        if let Ok((read, _)) = parse::<T>(packet, Vec::new()) {
            assert_eq!(parse::<T>(&packet_of(&read), Vec::new()).unwrap().0, read);
        }
    }

    #[test]
    fn what_is_said_is_heard() {
        for request in requests() {
            assert_eq!(parse::<Request>(&packet_of(&request), Vec::new()).unwrap().0, request);
        }
        for answer in answers() {
            assert_eq!(parse::<Answer>(&packet_of(&answer), Vec::new()).unwrap().0, answer);
        }
    }

    #[test]
    fn descriptor_that_is_no_memory_is_not_read() {
        let (pipe, _writer) = rustix::pipe::pipe().unwrap();
        assert!(matches!(parse::<Request>(&[IN_MEMFD], vec![pipe]), Err(PacketError::BadForm)));
        let text = serde_json::to_vec(&Request::Status).unwrap();
        let read = parse::<Request>(&[IN_MEMFD], vec![memory_file(&text).unwrap()]);
        assert_eq!(read.unwrap().0, Request::Status);
    }

    /// Changes of a packet: a byte is set, a piece taken out, doubled, or put in from another packet.
    fn nearly_right() -> impl Strategy<Value = Vec<u8>> {
        let packets: Vec<Vec<u8>> = requests().iter().map(packet_of).chain(answers().iter().map(packet_of)).collect();
        let (one, other) = (prop::sample::select(packets.clone()), prop::sample::select(packets));
        let change = (0..4_u8, any::<prop::sample::Index>(), 1..16_usize, any::<u8>());
        (one, other, prop::collection::vec(change, 0..6)).prop_map(|(mut packet, other, changes)| {
            for (kind, at, length, byte) in changes {
                let at = at.index(packet.len() + 1);
                let end = (at + length).min(packet.len());
                match kind {
                    0 if at < packet.len() => packet[at] = byte,
                    1 => drop(packet.drain(at..end)),
                    2 => drop(packet.splice(at..at, packet[at..end].to_vec())),
                    _ => drop(packet.splice(at..at, other.iter().take(length * 8).copied())),
                }
            }
            packet
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 4000, failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn no_packet_makes_the_parser_panic(packet in nearly_right()) {
            reads_back::<Request>(&packet);
            reads_back::<Answer>(&packet);
        }

        #[test]
        fn no_bytes_make_the_parser_panic(packet in prop::collection::vec(any::<u8>(), 0..200)) {
            reads_back::<Request>(&packet);
            reads_back::<Answer>(&packet);
        }
    }
}
