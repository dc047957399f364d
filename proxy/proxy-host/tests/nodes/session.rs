//! Encryption of a link: who is let in, and that bytes arrive as they were sent.

use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::thread;

use pki::{Authority, NodeRequest, Validity};
use proxy_host::secure::{Credentials, Inward, Session};
use proxy_link::InBuffer;

fn issue(authority: &Authority, node: &str, dir: &Path) -> Credentials {
    let request = NodeRequest { node, addresses: &[], valid: Validity::of_a_node() };
    let dir = dir.join(node);
    authority.issue_node(&request, &dir).expect("issued");
    Credentials::load(&dir, "c1").expect("loaded")
}

fn streams() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let dialled = TcpStream::connect(listener.local_addr().expect("address")).expect("connected");
    let (accepted, _) = listener.accept().expect("accepted");
    (dialled, accepted)
}

/// One end with a blocking stream: writes `out`, then reads until `wanted` bytes came.
fn run(mut session: Session, mut stream: TcpStream, out: &[u8], wanted: usize) -> Result<(Vec<u8>, Session), String> {
    stream.set_nonblocking(true).expect("non-blocking");
    let (mut sent, mut got, mut input) = (0, Vec::new(), InBuffer::new());
    while sent < out.len() || got.len() < wanted || session.wants_write() || !session.is_ready() {
        sent += session.write(&mut stream, &out[sent..]).map_err(|error| error.to_string())?;
        let read = session.read(&mut stream, &mut Inward::buffered(&mut input));
        got.extend_from_slice(input.waiting());
        input.consume(input.waiting().len());
        if let Err(error) = read {
            // An alert tells the other end why.
            let _ = session.write(&mut stream, &[]);
            return Err(error.to_string());
        }
        thread::yield_now();
    }
    Ok((got, session))
}

#[test]
fn encrypted_bytes_arrive_as_they_were_sent_both_ways() {
    let dir = tempfile::tempdir().expect("directory");
    let authority = Authority::create(&dir.path().join("ca"), "c1").expect("authority");
    let (a, b) = (issue(&authority, "n1", dir.path()), issue(&authority, "n2", dir.path()));
    let (dialled, accepted) = streams();
    let there: Vec<u8> = (0..3_000_001_u32).map(|n| (n * 7) as u8).collect();
    let back: Vec<u8> = (0..2_000_003_u32).map(|n| (n * 13) as u8).collect();
    let (expected_there, expected_back) = (there.clone(), back.clone());
    let accepting = thread::spawn(move || {
        let (got, session) = run(Session::accepting(Some(b)), accepted, &back, there.len()).expect("works");
        assert!(session.is_from("n1", "c1") && !session.is_from("n2", "c1") && !session.is_from("n1", "c2"));
        assert!(got == there);
    });
    let session = Session::dialling(&a, "n2").expect("session");
    let (got, _) = run(session, dialled, &expected_there, expected_back.len()).expect("works");
    assert!(got == expected_back);
    accepting.join().expect("the accepting end");
}

#[test]
fn node_of_a_foreign_authority_and_a_node_of_another_name_are_refused() {
    let dir = tempfile::tempdir().expect("directory");
    let authority = Authority::create(&dir.path().join("ca"), "c1").expect("authority");
    let foreign = Authority::create(&dir.path().join("foreign"), "c1").expect("authority");
    let (own, other) = (issue(&authority, "n1", dir.path()), issue(&foreign, "n9", dir.path()));
    for (dialler, acceptor, expected) in [(&own, &other, "n9"), (&other, &own, "n1"), (&own, &own, "n2")] {
        let (dialled, accepted) = streams();
        let session = Session::accepting(Some(acceptor.clone()));
        let accepting = thread::spawn(move || run(session, accepted, &[], 1).map(drop));
        let session = Session::dialling(dialler, expected).expect("session");
        let dialling = run(session, dialled, b"x", 1).map(drop);
        assert!(dialling.is_err(), "{expected} was let in");
        assert!(accepting.join().expect("ended").is_err());
    }
}

#[test]
fn plain_link_is_recognised_by_its_first_byte() {
    let (dialled, accepted) = streams();
    let mut hello = Vec::new();
    wire::Frame::ResyncEnd.encode(&mut hello);
    let sent = hello.clone();
    let accepting = thread::spawn(move || run(Session::accepting(None), accepted, &[], sent.len()).map(|(got, _)| got));
    // Whoever has heard all may close before this end looks again.
    let _ = run(Session::Plain, dialled, &hello, 0);
    assert_eq!(accepting.join().expect("ended"), Ok(hello));
}

#[test]
fn every_connection_proves_anew_who_it_is_with() {
    let dir = tempfile::tempdir().expect("directory");
    let authority = Authority::create(&dir.path().join("ca"), "c1").expect("authority");
    let (a, b) = (issue(&authority, "n1", dir.path()), issue(&authority, "n2", dir.path()));
    for connection in 1..=3 {
        let (dialled, accepted) = streams();
        let session = Session::accepting(Some(b.clone()));
        let accepting = thread::spawn(move || run(session, accepted, b"back", 5).expect("works").1);
        let session = Session::dialling(&a, "n2").expect("session");
        let (got, session) = run(session, dialled, b"there", 4).expect("works");
        assert_eq!(got, b"back");
        for session in [session, accepting.join().expect("the accepting end")] {
            let Session::Tls(tls) = session else { panic!("not encrypted") };
            let kind = tls.state().handshake_kind();
            assert_eq!(kind, Some(rustls::HandshakeKind::Full), "connection {connection}");
        }
    }
}
