//! Bytes between a connection that carries a link and the peer at its end.

use std::time::Duration;

use sys::eventfd::WriteInterest;

use crate::connection::Connection;
use crate::error::CutReason;
use crate::limits;
use crate::peers::Entry;
use crate::secure::Flow;

/// How reading from a connection ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Served {
    /// Nothing came, and nothing is to be sent because of it.
    Idle,
    Dry,
    /// It has more: serve it again without waiting.
    Unfinished,
}

impl Served {
    pub(crate) fn of(bytes: usize) -> Served {
        if bytes > 0 { Served::Dry } else { Served::Idle }
    }
}

/// Reads and does what came, up to a bound.
pub(crate) fn read_frames(connection: &mut Connection, entry: &mut Entry, now: Duration) -> Result<Served, CutReason> {
    let had_unsent = connection.session.wants_write();
    let mut bytes = 0;
    loop {
        let flow = connection.read(Some((&mut entry.peer, now)), &mut bytes)?;
        entry.peer.receive(&mut connection.input, now)?;
        if flow == Flow::Dry {
            // The handshake has an answer for the peer, which is sent before the loop sleeps.
            let has_answer = !had_unsent && connection.session.wants_write();
            return Ok(if has_answer { Served::Dry } else { Served::of(bytes) });
        }
        if bytes >= limits::READ_ROUND_BYTES {
            return Ok(Served::Unfinished);
        }
    }
}

pub(crate) struct Sent {
    pub(crate) bytes: usize,
    pub(crate) interest: WriteInterest,
}

pub(crate) fn send(connection: &mut Connection, entry: &mut Entry, now: Duration) -> Result<Sent, CutReason> {
    let mut bytes = 0;
    entry.peer.set_bodies(connection.bodies());
    loop {
        let more = entry.peer.fill(now);
        let wanted = entry.peer.pending_bytes();
        if wanted == 0 && !connection.session.wants_write() {
            return Ok(Sent { bytes, interest: WriteInterest::None });
        }
        let count = connection.send(&entry.peer)?;
        entry.peer.sent(now, count);
        bytes += count;
        if count < wanted || connection.session.wants_write() {
            // A handshake under way waits for the peer's bytes, not for room.
            let blocked = connection.session.is_ready() || connection.session.wants_write();
            let interest = if blocked { WriteInterest::Waiting } else { WriteInterest::None };
            return Ok(Sent { bytes, interest });
        }
        if !more || bytes >= limits::READ_ROUND_BYTES {
            return Ok(Sent { bytes, interest: WriteInterest::None });
        }
    }
}

/// Whether bytes wait for room: what came for a transport may have made some, and only an attempt tells.
pub(crate) fn has_unsent(connection: &Connection, entry: &Entry) -> bool {
    connection.session.wants_write() || entry.peer.pending_bytes() > 0
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;
    use std::path::Path;

    use abi::{Epoch, NodeId, PairId};
    use pki::{Authority, NodeRequest, Validity};
    use proxy_link::{Identity, InBuffer, LinkTimes};

    use super::*;
    use crate::carriers::Carrier;
    use crate::connection::Stage;
    use crate::peers::{Address, Common, Protection};
    use crate::secure::{Credentials, Inward, Session};
    use crate::transport::{Compression, Encryption};

    const NOW: Duration = Duration::from_secs(1);

    fn credentials(authority: &Authority, node: &str, dir: &Path) -> Credentials {
        let request = NodeRequest { node, addresses: &[], valid: Validity::of_a_node() };
        let dir = dir.join(node);
        authority.issue_node(&request, &dir).expect("issued");
        Credentials::load(&dir, "c1").expect("loaded")
    }

    fn identity(id: u16) -> Identity {
        Identity { cluster: "c1".to_owned(), node: format!("n{id}"), id: NodeId(id) }
    }

    fn entry() -> Entry {
        let common = Common {
            me: identity(1),
            incarnation: Epoch(1),
            pair: PairId::FIRST,
            times: LinkTimes::default(),
            encryption: Encryption::Tls,
            can_encrypt: true,
            compression: Compression::Off,
            began: 1,
        };
        let address = Address { carrier: Carrier::FIRST, text: String::new() };
        Entry::new(identity(2), address, Protection::everywhere(), &common, NOW)
    }

    #[test]
    fn handshake_that_waits_for_our_answer_is_something_that_came() {
        let dir = tempfile::tempdir().expect("directory");
        let authority = Authority::create(&dir.path().join("ca"), "c1").expect("authority");
        let [here, there] = ["n1", "n2"].map(|node| credentials(&authority, node, dir.path()));
        let (dialled, mut accepted) = UnixStream::pair().expect("pair");
        for stream in [&dialled, &accepted] {
            stream.set_nonblocking(true).expect("non-blocking");
        }
        let session = Session::dialling(&here, "n2").expect("session");
        let mut connection = Connection::new(Box::new(dialled), Carrier::FIRST, session, Stage::Joined(NodeId(2)), NOW);
        let mut entry = entry();
        entry.peer.dialled(NOW);
        send(&mut connection, &mut entry, NOW).expect("sent");
        assert_eq!(read_frames(&mut connection, &mut entry, NOW).expect("nothing"), Served::Idle);

        let (mut far, mut input) = (Session::accepting(Some(there)), InBuffer::new());
        far.read(&mut accepted, &mut Inward::buffered(&mut input)).expect("greeted");
        far.write(&mut accepted, &[]).expect("answered");
        assert_eq!(read_frames(&mut connection, &mut entry, NOW).expect("answered"), Served::Dry);
        // As long as that is not sent, nothing new has come.
        assert_eq!(read_frames(&mut connection, &mut entry, NOW).expect("nothing"), Served::Idle);
        send(&mut connection, &mut entry, NOW).expect("sent");
        far.read(&mut accepted, &mut Inward::buffered(&mut input)).expect("finished");
        assert!(matches!(wire::next(input.waiting()), Ok(wire::Next::Frame(wire::Frame::Hello(_), _))));
    }
}
