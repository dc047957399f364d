//! Messages of DNS (RFC 1035), as far as a node needs them that answers for names of its cluster: one question in, with
//! addresses or without any out. Pure.
//!
//! Deliberately absent: compression of names in questions, which no resolver uses and which is how messages lead
//! readers in circles; transfers, updates, signatures. What comes with a question beside it (EDNS) is not looked at.

#![forbid(unsafe_code)]

use std::net::IpAddr;

/// What fits into a datagram that everybody takes; no answer is longer.
pub const MESSAGE_BYTES_MAX: usize = 512;
/// Of one answer: with the longest name all of them fit.
pub const ADDRESSES_MAX: usize = 8;
const _: () = assert!(HEADER_BYTES + NAME_BYTES_MAX + 4 + ADDRESSES_MAX * (12 + 16) <= MESSAGE_BYTES_MAX);
/// How long an answer may be kept: what is published where changes as people and failures do.
const TTL_SECONDS: u32 = 5;

const HEADER_BYTES: usize = 12;
/// With the lengths before its labels, and the final zero.
const NAME_BYTES_MAX: usize = 255;
const LABEL_BYTES_MAX: usize = 63;
const CLASS_IN: u16 = 1;
const CLASS_ANY: u16 = 255;
const TYPE_A: u16 = 1;
const TYPE_AAAA: u16 = 28;
const TYPE_ANY: u16 = 255;

const RESPONSE: u16 = 1 << 15;
const OPCODE: u16 = 0b1111 << 11;
const AUTHORITATIVE: u16 = 1 << 10;
const RECURSION_DESIRED: u16 = 1 << 8;

/// Of an answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Code {
    Good = 0,
    Malformed = 1,
    Failed = 2,
    NoSuchName = 3,
    NotImplemented = 4,
    Refused = 5,
}

/// One question.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NameQuestion {
    id: u16,
    flags: u16,
    /// In small letters, the most specific first.
    labels: Vec<String>,
    kind: u16,
    class: u16,
    /// As it came: it is part of the answer.
    written: Vec<u8>,
}

/// Why there is no question to answer.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum NoQuestion {
    /// Nothing is said to that: it is an answer itself, or shorter than a header.
    Silence,
    /// This is said.
    Refusal(Vec<u8>),
}

/// What is known of a name.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Resolution {
    /// It is not of those that are answered for.
    Foreign,
    Nothing,
    /// There is such a name, with these addresses, of which the first come first, or none.
    Name(Vec<IpAddr>),
    /// It cannot be told at the moment.
    Unknown,
}

impl NameQuestion {
    /// # Errors
    /// It is no question that is answered.
    pub fn read(message: &[u8]) -> Result<NameQuestion, NoQuestion> {
        let word = |at: usize| Some(u16::from_be_bytes([*message.get(at)?, *message.get(at + 1)?]));
        let (Some(id), Some(flags), Some(questions)) = (word(0), word(2), word(4)) else {
            return Err(NoQuestion::Silence);
        };
        if message.len() < HEADER_BYTES || flags & RESPONSE != 0 {
            return Err(NoQuestion::Silence);
        }
        let refusal = |code| NoQuestion::Refusal(header(id, flags, code, [0, 0]).to_vec());
        if flags & OPCODE != 0 {
            return Err(refusal(Code::NotImplemented));
        }
        let malformed = || refusal(Code::Malformed);
        if questions != 1 {
            return Err(malformed());
        }
        let (labels, end) = name(message).ok_or_else(malformed)?;
        let (kind, class) = word(end).zip(word(end + 2)).ok_or_else(malformed)?;
        let written = message.get(HEADER_BYTES..end + 4).ok_or_else(malformed)?.to_vec();
        Ok(NameQuestion { id, flags, labels, kind, class, written })
    }

    /// In small letters, the most specific first.
    pub fn labels(&self) -> impl Iterator<Item = &str> {
        self.labels.iter().map(String::as_str)
    }

    pub fn answer(&self, known: &Resolution) -> Vec<u8> {
        if !matches!(self.class, CLASS_IN | CLASS_ANY) {
            return self.with(Code::Refused, &[]);
        }
        match known {
            Resolution::Foreign => self.with(Code::Refused, &[]),
            Resolution::Nothing => self.with(Code::NoSuchName, &[]),
            Resolution::Unknown => self.with(Code::Failed, &[]),
            Resolution::Name(addresses) => {
                let is_asked_for = |address: &&IpAddr| match self.kind {
                    TYPE_A => address.is_ipv4(),
                    TYPE_AAAA => address.is_ipv6(),
                    kind => kind == TYPE_ANY,
                };
                let asked: Vec<&IpAddr> = addresses.iter().filter(is_asked_for).take(ADDRESSES_MAX).collect();
                self.with(Code::Good, &asked)
            }
        }
    }

    fn with(&self, code: Code, addresses: &[&IpAddr]) -> Vec<u8> {
        let mut message = header(self.id, self.flags, code, [1, addresses.len() as u16]).to_vec();
        message.extend(&self.written);
        for address in addresses {
            // Its name is that of the question.
            message.extend(0xc000_u16.wrapping_add(HEADER_BYTES as u16).to_be_bytes());
            let (kind, bytes) = match address {
                IpAddr::V4(address) => (TYPE_A, address.octets().to_vec()),
                IpAddr::V6(address) => (TYPE_AAAA, address.octets().to_vec()),
            };
            message.extend([kind, CLASS_IN].iter().flat_map(|word| word.to_be_bytes()));
            message.extend(TTL_SECONDS.to_be_bytes());
            message.extend((bytes.len() as u16).to_be_bytes());
            message.extend(bytes);
        }
        message
    }
}

fn header(id: u16, asked: u16, code: Code, [questions, answers]: [u16; 2]) -> [u8; HEADER_BYTES] {
    let flags = RESPONSE | AUTHORITATIVE | asked & (OPCODE | RECURSION_DESIRED) | code as u16;
    let mut header = [0; HEADER_BYTES];
    for (place, word) in header.chunks_exact_mut(2).zip([id, flags, questions, answers]) {
        place.copy_from_slice(&word.to_be_bytes());
    }
    header
}

/// The labels behind the header, and where the name ends.
fn name(message: &[u8]) -> Option<(Vec<String>, usize)> {
    let (mut labels, mut at) = (Vec::new(), HEADER_BYTES);
    loop {
        let length = usize::from(*message.get(at)?);
        at += 1;
        if length == 0 {
            return Some((labels, at));
        }
        if length > LABEL_BYTES_MAX || at + length - HEADER_BYTES >= NAME_BYTES_MAX {
            return None;
        }
        let label = message.get(at..at + length)?;
        // Of one that is no text there is no name here.
        labels.push(String::from_utf8_lossy(label).to_ascii_lowercase());
        at += length;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(name: &str, kind: u16) -> Vec<u8> {
        let mut message = vec![0x12, 0x34, 0x01, 0x00, 0, 1, 0, 0, 0, 0, 0, 0];
        for label in name.split('.').filter(|label| !label.is_empty()) {
            message.push(label.len() as u8);
            message.extend(label.as_bytes());
        }
        message.push(0);
        message.extend([kind, CLASS_IN].iter().flat_map(|word| word.to_be_bytes()));
        message
    }

    fn answered(name: &str, kind: u16, known: &Resolution) -> Vec<u8> {
        NameQuestion::read(&asked(name, kind)).expect("a question").answer(known)
    }

    #[test]
    fn name_is_answered_with_its_addresses_of_the_kind_that_is_asked_for() {
        let addresses = ["192.0.2.1", "2001:db8::1", "192.0.2.2"].map(|address| address.parse().unwrap());
        let known = Resolution::Name(addresses.to_vec());
        let question = NameQuestion::read(&asked("Web.SHOP.dvs", TYPE_A)).unwrap();
        assert_eq!(question.labels().collect::<Vec<_>>(), ["web", "shop", "dvs"]);
        let answer = question.answer(&known);
        assert_eq!(answer[..12], [0x12, 0x34, 0x85, 0, 0, 1, 0, 2, 0, 0, 0, 0]);
        assert!(answer.ends_with(&[0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 5, 0, 4, 192, 0, 2, 2]), "{answer:?}");
        let answer = answered("web.shop.dvs", TYPE_AAAA, &known);
        assert_eq!((answer[7], &answer[answer.len() - 18..answer.len() - 14]), (1, &[0, 16, 0x20, 0x01][..]));
        assert_eq!(answered("web.shop.dvs", 16, &known)[3..8], [0, 0, 1, 0, 0], "no text, and no error");
    }

    #[test]
    fn what_is_not_there_is_told_apart() {
        let code = |known: &Resolution| answered("x.dvs", TYPE_A, known)[3] & 15;
        assert_eq!(
            [Resolution::Name(vec![]), Resolution::Nothing, Resolution::Foreign, Resolution::Unknown]
                .map(|known| code(&known)),
            [0, 3, 5, 2]
        );
        let mut other_class = asked("x.dvs", TYPE_A);
        *other_class.last_mut().unwrap() = 3;
        assert_eq!(NameQuestion::read(&other_class).unwrap().answer(&Resolution::Nothing)[3] & 15, 5);
    }

    #[test]
    fn longest_answer_fits_into_a_datagram() {
        let label = "a".repeat(61);
        let name = [&*label; 4].join(".") + ".abc";
        let many: Vec<IpAddr> = (0..100).map(|last| [192, 0, 2, last].into()).collect();
        let six: Vec<IpAddr> = (0..100).map(|last| [0x2001, 0xdb8, 0, 0, 0, 0, 0, last].into()).collect();
        for (kind, addresses) in [(TYPE_A, many), (TYPE_AAAA, six)] {
            assert!(answered(&name, kind, &Resolution::Name(addresses)).len() <= MESSAGE_BYTES_MAX);
        }
    }

    #[test]
    fn what_is_no_question_is_refused_or_not_answered() {
        let good = asked("web.shop.dvs", TYPE_A);
        let changed = |at: usize, to: u8| {
            let mut message = good.clone();
            message[at] = to;
            NameQuestion::read(&message)
        };
        let code = |read: Result<NameQuestion, NoQuestion>| match read {
            Err(NoQuestion::Refusal(answer)) => Some(answer[3] & 15),
            _ => None,
        };
        assert_eq!(changed(2, 0x81), Err(NoQuestion::Silence), "an answer");
        assert_eq!(code(changed(2, 0x29)), Some(4), "an update");
        for (at, to) in [(5, 0), (5, 2), (4, 1)] {
            assert_eq!(code(changed(at, to)), Some(1), "so many questions");
        }
        for to in [0xc0, 0x40, 0xff, 63] {
            assert_eq!(code(changed(12, to)), Some(1), "a label of {to:#x}");
        }
        for length in 0..good.len() {
            let read = NameQuestion::read(&good[..length]);
            assert!(if length < 12 { read == Err(NoQuestion::Silence) } else { code(read) == Some(1) }, "{length}");
        }
        let endless: Vec<u8> = good[..12].iter().copied().chain([1, b'a'].repeat(1000)).collect();
        assert_eq!(code(NameQuestion::read(&endless)), Some(1));
    }
}
