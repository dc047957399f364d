use super::super::{Decoder, PAYLOAD_BYTES_MAX};
use super::*;

fn frames(bytes: &[u8]) -> Vec<(Kind, Vec<u8>)> {
    let mut decoder = Decoder::default();
    decoder.push(bytes);
    std::iter::from_fn(|| decoder.pop().unwrap().map(|(kind, payload)| (kind, payload.to_vec()))).collect()
}

/// Gives at most `limit` bytes to a connection.
fn send(outgoing: &mut Outgoing, limit: usize) -> Vec<u8> {
    let mut taken = Vec::new();
    while taken.len() < limit && !outgoing.is_sent() {
        let part = outgoing.unsent();
        let count = part.len().min(limit - taken.len());
        taken.extend(&part[..count]);
        outgoing.advance(count);
    }
    taken
}

fn three() -> Outgoing {
    let mut outgoing = Outgoing::new(Keeping::UntilConfirmed);
    [b"one".as_slice(), b"", b"three"].iter().for_each(|payload| outgoing.say(Kind::Stdout, payload));
    outgoing
}

#[test]
fn after_a_break_the_other_side_hears_exactly_what_it_has_not_heard() {
    // Wherever the connection breaks: as many bytes were sent, so many whole frames were heard.
    for sent in 0..=20 {
        let mut outgoing = three();
        let before = frames(&send(&mut outgoing, sent));
        outgoing.resume(before.len() as u64, Some(7)).unwrap();
        let mut after = frames(&send(&mut outgoing, usize::MAX));
        assert_eq!(after.remove(0), (Kind::Session, 7_u64.to_le_bytes().to_vec()), "{sent}");
        let all: Vec<Vec<u8>> = before.into_iter().chain(after).map(|(_, payload)| payload).collect();
        assert_eq!(all, [b"one".to_vec(), b"".to_vec(), b"three".to_vec()], "{sent}");
    }
}

#[test]
fn what_was_confirmed_is_let_go_and_what_was_not_is_kept() {
    // (confirmed one after the other, bytes that are kept then, or the refusal)
    let refused = |heard, confirmed| Err(Miscounted { heard, confirmed, said: 3 });
    let table: [(&[u64], Result<usize, Miscounted>); 6] = [
        (&[], Ok(20)),
        (&[1], Ok(13)),
        (&[2, 1], Ok(9)),
        (&[1, 3], Ok(0)),
        (&[4], refused(4, 0)),
        (&[2, u64::MAX], refused(u64::MAX, 2)),
    ];
    for (confirmed, expected) in table {
        let mut outgoing = three();
        send(&mut outgoing, usize::MAX);
        let outcome = confirmed.iter().try_for_each(|heard| outgoing.confirm(*heard));
        assert_eq!(outcome.map(|()| outgoing.kept_bytes()), expected, "{confirmed:?}");
        assert_eq!(outgoing.is_settled(), expected == Ok(0), "{confirmed:?}");
    }
}

#[test]
fn who_comes_back_for_what_is_let_go_is_refused() {
    let mut outgoing = three();
    outgoing.confirm(2).unwrap();
    assert_eq!(outgoing.resume(1, None), Err(Miscounted { heard: 1, confirmed: 2, said: 3 }));
    outgoing.resume(2, None).unwrap();
    assert_eq!(frames(&send(&mut outgoing, usize::MAX)), [(Kind::Stdout, b"three".to_vec())]);
}

#[test]
fn without_a_session_nothing_is_kept_that_was_sent() {
    let mut outgoing = three();
    let mut got = send(&mut outgoing, 9);
    // In the middle of a frame.
    outgoing.forget_sent();
    assert_eq!(outgoing.kept_bytes(), 11);
    got.extend(send(&mut outgoing, usize::MAX));
    assert_eq!(frames(&got).len(), 3);
    assert!(outgoing.is_settled());
    assert!(outgoing.confirm(1).is_err());
}

#[test]
fn hearer_confirms_often_enough_that_a_full_window_always_opens() {
    let mut incoming = Incoming::default();
    let mut outgoing = Outgoing::new(Keeping::UntilConfirmed);
    while outgoing.kept_bytes() < WINDOW_BYTES {
        outgoing.say(Kind::Stdin, &[0; PAYLOAD_BYTES_MAX]);
        incoming.count(PAYLOAD_BYTES_MAX);
    }
    assert!(incoming.is_due());
    assert_eq!(incoming.heard(), u64::from_le_bytes(incoming.confirm()));
    outgoing.confirm(incoming.heard()).unwrap();
    assert!(outgoing.is_settled() && !incoming.is_due());
}
