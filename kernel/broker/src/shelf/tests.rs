//! Brokers and shelves of different versions. The test plays the other side.

use super::*;

/// A shelf at `path` that answers each packet with what `answer` makes of it; without an answer it closes the
/// connection.
fn play(path: &Path, answer: impl Fn(&[u8]) -> Option<Vec<u8>> + Send + 'static) {
    let listener = sys::seqpacket::listen(path, 8).unwrap();
    std::thread::spawn(move || {
        loop {
            await_ready(&listener, PollFlags::IN, None);
            let Ok(socket) = sys::seqpacket::accept(&listener) else { continue };
            let mut buffer = vec![0; 256];
            loop {
                await_ready(&socket, PollFlags::IN, None);
                let Ok(got) = sys::seqpacket::receive(&socket, &mut buffer) else { break };
                let packet = &buffer[..got.bytes];
                // What is put is not answered.
                if packet.first() == Some(&op::PUT) {
                    continue;
                }
                let Some(said) = answer(packet).filter(|_| got.bytes > 0) else { break };
                say(&socket, &said).unwrap();
            }
        }
    });
}

fn real(path: &Path) {
    let listener = sys::seqpacket::listen(path, 8).unwrap();
    std::thread::spawn(move || serve(listener));
}

fn directory() -> (tempfile::TempDir, PathBuf) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("shelf.sock");
    (directory, path)
}

#[test]
fn shelf_of_the_version_before_gives_what_it_holds() {
    let (_directory, path) = directory();
    play(&path, |packet| (packet == [op::TAKE]).then(|| vec![op::END]));
    assert!(Shelf::connect(&path).unwrap().held.is_empty());
}

#[test]
fn shelf_of_no_common_version_says_which_it_speaks() {
    let (_directory, path) = directory();
    play(&path, |_| Some(vec![op::OTHER_VERSION, 7, 9]));
    let refused = Shelf::connect(&path).unwrap_err();
    assert!(matches!(refused, ShelfError::OtherVersion { shelf: Versions { oldest: 7, newest: 9 } }), "{refused}");
    assert!(refused.to_string().contains("versions 7 to 9"), "{refused}");
}

#[test]
fn broker_of_no_common_version_is_answered_and_harms_nobody() {
    let (_directory, path) = directory();
    real(&path);
    let (stranger, mut buffer) = (call(&path).unwrap(), [0; 16]);
    say(&stranger, &[op::HELLO, 100, 101]).unwrap();
    let heard = hear(&stranger, &mut buffer, Instant::now() + ANSWER_LIMIT).unwrap();
    assert_eq!(buffer[..heard.bytes], [op::OTHER_VERSION, SPOKEN.oldest, SPOKEN.newest]);
    drop(stranger);
    Shelf::connect(&path).unwrap();
}

#[test]
fn records_of_a_version_that_is_not_known_are_not_taken() {
    let (_directory, path) = directory();
    real(&path);
    drop(Shelf::connect(&path).unwrap());
    // The next broker finds what the last one wrote, and goes on.
    drop(Shelf::connect(&path).unwrap());
    let (later, key) = (call(&path).unwrap(), VERSION_KEY.as_bytes());
    say(&later, &[&[op::PUT, key.len() as u8], key, &[VERSION_MARK, READ.newest + 1]].concat()).unwrap();
    drop(later);
    let refused = Shelf::connect(&path).unwrap_err();
    assert!(matches!(refused, ShelfError::OtherRecords { records } if records == READ.newest + 1), "{refused}");
}
