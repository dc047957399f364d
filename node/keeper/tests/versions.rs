//! Daemons and keepers of different versions: who greets, who does not, and who has nothing in common. The test plays
//! the other side.

use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::Path;

use keeper::{KeeperClient, KeeperError, VERSIONS, Versions};

mod support;

const NO_FDS: &[BorrowedFd<'_>] = &[];

/// A keeper that answers each packet of each connection with what `answer` makes of it; without an answer it closes the
/// connection.
fn play(path: &Path, answer: impl Fn(&str) -> Option<String> + Send + 'static) {
    let listener = sys::seqpacket::listen(path, 8).expect("listen");
    std::thread::spawn(move || {
        loop {
            support::wait_for(&[&listener]);
            let Ok(socket) = sys::seqpacket::accept(&listener) else { return };
            while let Some(answer) = hear(&socket).and_then(|request| answer(&request)) {
                let packet = [b"\0", answer.as_bytes()].concat();
                sys::seqpacket::send(&socket, &packet, NO_FDS).expect("send");
            }
        }
    });
}

fn hear(socket: &OwnedFd) -> Option<String> {
    support::wait_for(&[socket]);
    let mut buffer = vec![0; 65_536];
    let got = sys::seqpacket::receive(socket, &mut buffer).ok().filter(|got| got.bytes > 0)?;
    Some(String::from_utf8(buffer[1..got.bytes].to_vec()).expect("JSON"))
}

#[test]
fn keeper_of_the_version_before_is_spoken_with() {
    let dir = tempfile::tempdir().expect("directory");
    let path = dir.path().join("keeper.sock");
    // It knows no greeting, and refuses in words.
    play(&path, |request| match request {
        "\"List\"" => Some("{\"Processes\":[]}".to_owned()),
        hello if hello.contains("Hello") => None,
        _ => Some("{\"Failed\":{\"kind\":\"conflict\",\"what\":\"not now\"}}".to_owned()),
    });
    let keeper = KeeperClient::connect(&path).expect("connect");
    assert_eq!(keeper.version(), 1);
    assert_eq!(keeper.list().expect("list"), []);
    assert!(matches!(keeper.signal(7, 9, None), Err(KeeperError::Told(body)) if body.what == "not now"));
}

#[test]
fn keeper_that_no_version_connects_with_says_which_it_speaks() {
    let dir = tempfile::tempdir().expect("directory");
    let path = dir.path().join("keeper.sock");
    let theirs = Versions { oldest: VERSIONS.newest + 1, newest: VERSIONS.newest + 2 };
    play(&path, move |_| {
        Some(format!("{{\"OtherVersion\":{{\"oldest\":{},\"newest\":{}}}}}", theirs.oldest, theirs.newest))
    });
    let refused = KeeperClient::connect(&path).expect_err("another version");
    assert!(matches!(&refused, KeeperError::OtherVersion { keeper, .. } if *keeper == theirs), "{refused:?}");
    assert!(refused.to_string().contains("speaks versions 3 to 4 of its protocol"), "{refused}");
}

#[test]
fn daemon_that_does_not_greet_hears_why_it_is_refused() {
    if !support::is_root() {
        return;
    }
    let keeper = support::Keeper::start();
    assert_eq!(keeper.client.version(), VERSIONS.newest);
    let ask = |packets: &[&str]| {
        let socket = sys::seqpacket::connect(&keeper.options.control).expect("connect");
        packets.iter().fold(String::new(), |_, packet| {
            sys::seqpacket::send(&socket, &[b"\0", packet.as_bytes()].concat(), NO_FDS).expect("send");
            hear(&socket).expect("an answer")
        })
    };
    let refused = ask(&["\"List\""]);
    assert!(refused.starts_with("{\"Failed\"") && refused.contains("speaks version 2"), "{refused}");
    // Nor does a greeting help that finds nothing in common.
    let refused = ask(&["{\"Hello\":{\"oldest\":7,\"newest\":8}}", "\"List\""]);
    assert!(refused.starts_with("{\"Failed\""), "{refused}");
    assert_eq!(ask(&["{\"Hello\":{\"oldest\":2,\"newest\":8}}"]), "{\"Hello\":{\"version\":2}}");
}
