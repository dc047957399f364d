//! What programs that go out ask the name server of their node, and what it answers: nothing of the cluster's own
//! names.
//!
//! The node's resolver may know names of containers (`[names]`, `docs/design/ports.md`), which are for programs of the
//! node. So whatever mentions a name in `.dvs` is kept from it, and an answer that does (a foreign name may be told to
//! be another one's) from who asked. A name ends with the label `dvs` and nothing, or with a pointer to somewhere:
//! neither is looked for by its place, as a message may hide a name behind pointers.

use dns::{NameQuestion, NoQuestion, Resolution};

/// Of a message over a stream: its length is said in two bytes.
const LENGTH_BYTES: usize = 2;
/// The longest that what is put aside becomes.
const PUT_ASIDE_MAX: usize = LENGTH_BYTES + u16::MAX as usize;

/// Whether a message has a name in the cluster's own domain, anywhere.
pub fn mentions_cluster(message: &[u8]) -> bool {
    message.windows(5).any(|bytes| match bytes {
        [3, label @ .., end] => label.eq_ignore_ascii_case(b"dvs") && matches!(end, 0 | 0xc0..),
        _ => false,
    })
}

/// What is said to who asked for such a name: there is none.
pub fn answer(question: &[u8]) -> Option<Vec<u8>> {
    match NameQuestion::read(question) {
        Ok(question) => Some(question.answer(&Resolution::Nothing)),
        Err(NoQuestion::Refusal(answer)) => Some(answer),
        Err(NoQuestion::Silence) => None,
    }
}

/// Messages of a stream, of which only whole ones pass.
#[derive(Debug, Default)]
pub struct Sieve {
    put_aside: Vec<u8>,
}

/// A message mentions the cluster.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Mentioned;

impl Sieve {
    /// Takes what came, and gives what may pass.
    ///
    /// # Errors
    /// Some of it may not; nothing passes any more.
    pub fn take(&mut self, bytes: &[u8]) -> Result<Vec<u8>, Mentioned> {
        self.put_aside.extend_from_slice(bytes);
        let mut end = 0;
        while let Some((&[high, low], rest)) = self.put_aside.get(end..).and_then(|rest| rest.split_first_chunk()) {
            let length = usize::from(u16::from_be_bytes([high, low]));
            let Some(message) = rest.get(..length) else { break };
            if mentions_cluster(message) {
                return Err(Mentioned);
            }
            end += LENGTH_BYTES + length;
        }
        let passes = self.put_aside.drain(..end).collect();
        debug_assert!(self.put_aside.len() < PUT_ASIDE_MAX);
        Ok(passes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn question(name: &str) -> Vec<u8> {
        let mut message = vec![0x12, 0x34, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0];
        for label in name.split('.') {
            message.push(label.len() as u8);
            message.extend(label.bytes());
        }
        message.extend([0, 0, 1, 0, 1]);
        message
    }

    fn framed(message: &[u8]) -> Vec<u8> {
        [&(message.len() as u16).to_be_bytes()[..], message].concat()
    }

    #[test]
    fn names_of_the_cluster_are_found_wherever_they_are_and_no_others() {
        for name in ["web.shop.dvs", "WEB.shop.DvS", "dvs"] {
            assert!(mentions_cluster(&question(name)), "{name}");
            let answer = answer(&question(name)).unwrap();
            assert_eq!((&answer[..2], answer[3] & 15), (&[0x12, 0x34][..], 3), "no such name");
        }
        for name in ["example.org", "dvs.example.org", "mydvs", "dvs2", "advs.org", "xn--dvs"] {
            assert!(!mentions_cluster(&question(name)), "{name}");
        }
        // The name's end lies elsewhere, or the name is that of an alias in an answer.
        let mut pointed = question("web");
        pointed.truncate(12);
        pointed.extend(b"\x03web\x03dvs\xc0\x06\0\x01\0\x01");
        let alias = [&question("x.example.org")[..], b"\xc0\x0c\0\x05\0\x01\0\0\0\x05\0\x0e\x03web\x04shop\x03dvs\0"];
        assert!(mentions_cluster(&pointed) && mentions_cluster(&alias.concat()));
        assert!(!mentions_cluster(&[]) && answer(&[]).is_none());
    }

    #[test]
    fn of_a_stream_whole_messages_pass_however_they_come_until_one_may_not() {
        let (good, bad) = (framed(&question("example.org")), framed(&question("shop.dvs")));
        for at_a_time in [1, 2, 3, 30, 1000] {
            let mut sieve = Sieve::default();
            let mut passed = Vec::new();
            let told = [&good[..], &good, &bad, &good].concat();
            let refused = told.chunks(at_a_time).find_map(|bytes| match sieve.take(bytes) {
                Ok(passes) => {
                    passed.extend(passes);
                    None
                }
                Err(Mentioned) => Some(()),
            });
            assert!(refused.is_some());
            assert!([&good[..], &good].concat().starts_with(&passed), "{at_a_time}");
        }
        let mut sieve = Sieve::default();
        assert_eq!(sieve.take(&good[..good.len() - 1]), Ok(Vec::new()));
        assert_eq!(sieve.take(&good[good.len() - 1..]), Ok(good.clone()));
    }
}
