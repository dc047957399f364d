//! What passes before a client has chosen the export. Pure: options go in, replies come out.

use crate::store::STORE_BLOCK_BYTES;
use crate::wire::{
    ALLOCATION, ALLOCATION_ID, NO_ZEROES, Reader, TRANSFER_BYTES_MAX, info, option, put_option_reply, reply,
    transmission,
};

/// Of one option's data; more is read and refused.
pub const OPTION_BYTES_MAX: u32 = 64 << 10;
/// Behind the export, for clients of the first days.
const PADDING: [u8; 124] = [0; 124];

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Export {
    /// Clients that name none get the first.
    pub name: String,
    pub description: String,
    pub bytes: u64,
    pub is_read_only: bool,
}

impl Export {
    fn flags(&self) -> u16 {
        use transmission as can;
        let always = can::HAS_FLAGS | can::SEND_FLUSH | can::SEND_FUA | can::SEND_DF | can::CAN_MULTI_CONN;
        always | if self.is_read_only { can::READ_ONLY } else { can::SEND_TRIM | can::SEND_WRITE_ZEROES }
    }
}

/// What follows an option.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NextStep {
    Option,
    /// Encryption, once the replies went; then everything from the beginning.
    StartTls,
    Transmission,
    /// The connection ends, once the replies went.
    End,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Security {
    Plain,
    /// Nothing is told before the connection is encrypted.
    Demanded,
    Sealed,
}

/// One client's.
#[derive(Debug)]
pub struct Negotiation<'a> {
    exports: &'a [Export],
    security: Security,
    has_padding: bool,
    /// Reads are answered in chunks.
    pub is_structured: bool,
    /// The export that it has, by its place in the list.
    chosen: Option<usize>,
    /// Of this one it may ask which blocks are zeros.
    allocation_of: Option<usize>,
}

impl<'a> Negotiation<'a> {
    /// `flags`: the client's answer to the greeting.
    pub fn new(exports: &'a [Export], flags: u32, security: Security) -> Negotiation<'a> {
        let has_padding = flags & u32::from(NO_ZEROES) == 0;
        Negotiation { exports, security, has_padding, is_structured: false, chosen: None, allocation_of: None }
    }

    /// The export that it has, by its place in the list, and whether it may ask which of its blocks are zeros.
    pub fn chosen(&self) -> Option<(usize, bool)> {
        self.chosen.map(|chosen| (chosen, self.allocation_of == Some(chosen)))
    }

    fn find(&self, name: &str) -> Option<(usize, &'a Export)> {
        let is_meant = |(_, export): &(usize, &Export)| name.is_empty() || name == export.name;
        self.exports.iter().enumerate().find(is_meant)
    }

    /// The next option, with its data; `None`: there was more than [`OPTION_BYTES_MAX`].
    pub fn hear(&mut self, number: u32, data: Option<&[u8]>, replies: &mut Vec<u8>) -> NextStep {
        let Some(data) = data else {
            put_option_reply(replies, number, reply::ERR_TOO_BIG, b"more data than an option may have");
            return NextStep::Option;
        };
        let mut say = |kind: u32, data: &[u8]| put_option_reply(replies, number, kind, data);
        match (number, self.security) {
            (option::STARTTLS, _) if !data.is_empty() => {
                say(reply::ERR_INVALID, b"this option has no data");
                return NextStep::Option;
            }
            (option::STARTTLS, Security::Demanded) => {
                say(reply::ACK, b"");
                return NextStep::StartTls;
            }
            (option::STARTTLS, Security::Sealed) => {
                say(reply::ERR_INVALID, b"it is encrypted already");
                return NextStep::Option;
            }
            // It can be told no reason.
            (option::EXPORT_NAME, Security::Demanded) => return NextStep::End,
            (option::ABORT, _) | (_, Security::Plain | Security::Sealed) => {}
            (_, Security::Demanded) => {
                say(reply::ERR_TLS_REQD, b"clients of this server encrypt what they say (STARTTLS)");
                return NextStep::Option;
            }
        }
        match number {
            option::EXPORT_NAME => {
                let Some((place, export)) = std::str::from_utf8(data).ok().and_then(|name| self.find(name)) else {
                    return NextStep::End;
                };
                self.chosen = Some(place);
                replies.extend_from_slice(&export.bytes.to_be_bytes());
                replies.extend_from_slice(&export.flags().to_be_bytes());
                if self.has_padding {
                    replies.extend_from_slice(&PADDING);
                }
                NextStep::Transmission
            }
            option::ABORT => {
                say(reply::ACK, b"");
                NextStep::End
            }
            option::LIST | option::STRUCTURED_REPLY if !data.is_empty() => {
                say(reply::ERR_INVALID, b"this option has no data");
                NextStep::Option
            }
            option::LIST => {
                for export in self.exports {
                    let name = export.name.as_bytes();
                    let length = (name.len() as u32).to_be_bytes();
                    say(reply::SERVER, &[&length, name, export.description.as_bytes()].concat());
                }
                say(reply::ACK, b"");
                NextStep::Option
            }
            option::STRUCTURED_REPLY => {
                self.is_structured = true;
                say(reply::ACK, b"");
                NextStep::Option
            }
            option::INFO | option::GO => self.inform(number, data, replies),
            option::LIST_META_CONTEXT | option::SET_META_CONTEXT => {
                self.contexts(number, data, replies);
                NextStep::Option
            }
            _ => {
                say(reply::ERR_UNSUP, b"there is no such option here");
                NextStep::Option
            }
        }
    }

    fn inform(&mut self, number: u32, data: &[u8], replies: &mut Vec<u8>) -> NextStep {
        let mut say = |kind: u32, data: &[u8]| put_option_reply(replies, number, kind, data);
        let mut rest = Reader(data);
        let wanted = rest.text().and_then(|name| {
            let count = rest.u16()?;
            let wanted = (0..count).map(|_| rest.u16()).collect::<Option<Vec<u16>>>()?;
            rest.0.is_empty().then_some((name, wanted))
        });
        let Some((name, wanted)) = wanted else {
            say(reply::ERR_INVALID, b"the data of this option makes no sense");
            return NextStep::Option;
        };
        let Some((place, export)) = self.find(name) else {
            say(reply::ERR_UNKNOWN, b"there is no export of this name");
            return NextStep::Option;
        };
        let (bytes, flags) = (export.bytes.to_be_bytes(), export.flags().to_be_bytes());
        say(reply::INFO, &[&info::EXPORT.to_be_bytes()[..], &bytes, &flags].concat());
        for kind in wanted {
            let head = kind.to_be_bytes();
            match kind {
                info::NAME => say(reply::INFO, &[&head[..], export.name.as_bytes()].concat()),
                info::DESCRIPTION => say(reply::INFO, &[&head[..], export.description.as_bytes()].concat()),
                info::BLOCK_SIZE => {
                    // Any range; whole blocks are faster.
                    let sizes = [1, STORE_BLOCK_BYTES as u32, TRANSFER_BYTES_MAX].map(u32::to_be_bytes).concat();
                    say(reply::INFO, &[&head[..], &sizes].concat());
                }
                _ => {}
            }
        }
        say(reply::ACK, b"");
        if number != option::GO {
            return NextStep::Option;
        }
        self.chosen = Some(place);
        NextStep::Transmission
    }

    fn contexts(&mut self, number: u32, data: &[u8], replies: &mut Vec<u8>) {
        let mut say = |kind: u32, data: &[u8]| put_option_reply(replies, number, kind, data);
        let is_set = number == option::SET_META_CONTEXT;
        if is_set {
            self.allocation_of = None;
        }
        let mut rest = Reader(data);
        let asked = rest.text().and_then(|name| {
            let count = rest.u32()?;
            // Each has a length at least.
            let queries = (0..count.min(OPTION_BYTES_MAX)).map(|_| rest.text()).collect::<Option<Vec<&str>>>()?;
            rest.0.is_empty().then_some((name, queries))
        });
        let Some((name, queries)) = asked.filter(|_| self.is_structured) else {
            return say(
                reply::ERR_INVALID,
                b"the data of this option makes no sense, or comes before structured replies",
            );
        };
        let Some((place, _)) = self.find(name) else {
            return say(reply::ERR_UNKNOWN, b"there is no export of this name");
        };
        let is_meant = |query: &&str| *query == ALLOCATION || (!is_set && *query == "base:");
        let is_found = queries.iter().any(is_meant) || (!is_set && queries.is_empty());
        if is_found {
            let id = if is_set { ALLOCATION_ID } else { 0 };
            say(reply::META_CONTEXT, &[&id.to_be_bytes()[..], ALLOCATION.as_bytes()].concat());
            if is_set {
                self.allocation_of = Some(place);
            }
        }
        say(reply::ACK, b"");
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn export() -> Export {
        Export { name: "disk".to_owned(), description: "a disk".to_owned(), bytes: 1 << 30, is_read_only: false }
    }

    /// Kinds of the replies, with their data.
    fn replies(of: &[u8]) -> Vec<(u32, Vec<u8>)> {
        let (mut rest, mut found) = (Reader(of), Vec::new());
        while !rest.0.is_empty() {
            assert_eq!(rest.u64(), Some(crate::wire::OPTION_REPLY_MAGIC));
            let (_option, kind) = (rest.u32().unwrap(), rest.u32().unwrap());
            let bytes = rest.u32().unwrap() as usize;
            found.push((kind, rest.take(bytes).unwrap().to_vec()));
        }
        found
    }

    fn named(name: &str, more: &[u8]) -> Vec<u8> {
        [&(name.len() as u32).to_be_bytes(), name.as_bytes(), more].concat()
    }

    #[test]
    fn client_learns_of_the_export_and_goes() {
        let exports = [export()];
        let mut negotiation = Negotiation::new(&exports, 3, Security::Plain);
        let mut said = Vec::new();
        let asked = named("disk", &[0, 2, 0, 3, 0, 1]);
        assert_eq!(negotiation.hear(option::INFO, Some(&asked), &mut said), NextStep::Option);
        let told = replies(&said);
        assert_eq!(
            told.iter().map(|one| one.0).collect::<Vec<_>>(),
            [reply::INFO, reply::INFO, reply::INFO, reply::ACK]
        );
        assert_eq!(told[0].1, [&[0, 0][..], &(1_u64 << 30).to_be_bytes(), &exports[0].flags().to_be_bytes()].concat());
        assert_eq!(told[1].1, [0, 3, 0, 0, 0, 1, 0, 0, 0x10, 0, 2, 0, 0, 0]);
        assert_eq!(told[2].1, b"\0\x01disk");
        said.clear();
        assert_eq!(negotiation.hear(option::GO, Some(&named("", &[0, 0])), &mut said), NextStep::Transmission);
        let other = named("other", &[0, 0]);
        said.clear();
        assert_eq!(negotiation.hear(option::GO, Some(&other), &mut said), NextStep::Option);
        assert_eq!(replies(&said)[0].0, reply::ERR_UNKNOWN);
        assert_eq!(negotiation.hear(option::EXPORT_NAME, Some(b"other"), &mut said), NextStep::End);
    }

    #[test]
    fn nothing_is_told_before_the_connection_is_encrypted_where_it_must_be() {
        let exports = [export()];
        let mut negotiation = Negotiation::new(&exports, 3, Security::Demanded);
        let mut hear = |number: u32, data: &[u8]| {
            let mut said = Vec::new();
            let next = negotiation.hear(number, Some(data), &mut said);
            (replies(&said).first().map(|one| one.0), next)
        };
        for number in [option::LIST, option::INFO, option::GO, option::STRUCTURED_REPLY, 99] {
            assert_eq!(hear(number, b""), (Some(reply::ERR_TLS_REQD), NextStep::Option), "{number}");
        }
        assert_eq!(hear(option::EXPORT_NAME, b"disk"), (None, NextStep::End));
        assert_eq!(hear(option::STARTTLS, b"x"), (Some(reply::ERR_INVALID), NextStep::Option));
        assert_eq!(hear(option::STARTTLS, b""), (Some(reply::ACK), NextStep::StartTls));
        assert_eq!(hear(option::ABORT, b""), (Some(reply::ACK), NextStep::End));
        let mut said = Vec::new();
        for (security, kind) in [(Security::Plain, reply::ERR_UNSUP), (Security::Sealed, reply::ERR_INVALID)] {
            said.clear();
            Negotiation::new(&exports, 3, security).hear(option::STARTTLS, Some(b""), &mut said);
            assert_eq!(replies(&said)[0].0, kind);
        }
    }

    #[test]
    fn old_clients_have_the_export_with_what_follows_it() {
        let exports = [export()];
        for (flags, bytes) in [(1, 10 + 124), (3, 10)] {
            let mut said = Vec::new();
            let mut negotiation = Negotiation::new(&exports, flags, Security::Plain);
            assert_eq!(negotiation.hear(option::EXPORT_NAME, Some(b"disk"), &mut said), NextStep::Transmission);
            assert_eq!(said.len(), bytes);
        }
    }

    #[test]
    fn allocation_is_told_to_who_asked_for_it_and_for_structured_replies() {
        let exports = [export()];
        let mut negotiation = Negotiation::new(&exports, 3, Security::Plain);
        let query = |text: &str| named("disk", &[&1_u32.to_be_bytes()[..], &named(text, b"")].concat());
        let mut hear = |number: u32, data: &[u8]| {
            let mut said = Vec::new();
            negotiation.hear(number, Some(data), &mut said);
            (replies(&said), negotiation.allocation_of.is_some())
        };
        assert_eq!(hear(option::SET_META_CONTEXT, &query(ALLOCATION)).0[0].0, reply::ERR_INVALID);
        hear(option::STRUCTURED_REPLY, b"");
        let (told, tells) = hear(option::LIST_META_CONTEXT, &named("", &[0, 0, 0, 0]));
        assert!(told[0] == (reply::META_CONTEXT, b"\0\0\0\0base:allocation".to_vec()) && !tells);
        let (told, tells) = hear(option::SET_META_CONTEXT, &query(ALLOCATION));
        assert!(told[0].1 == b"\0\0\0\x01base:allocation" && told[1].0 == reply::ACK && tells);
        let (told, tells) = hear(option::SET_META_CONTEXT, &query("x-other:thing"));
        assert!(told.len() == 1 && told[0].0 == reply::ACK && !tells);
    }

    #[test]
    fn each_export_is_chosen_by_its_name_and_allocation_is_told_of_the_one_that_was_asked_about() {
        let exports = [export(), Export { name: "other".to_owned(), bytes: 1 << 20, is_read_only: true, ..export() }];
        let mut said = Vec::new();
        let mut negotiation = Negotiation::new(&exports, 3, Security::Plain);
        negotiation.hear(option::LIST, Some(b""), &mut said);
        let told = replies(&said);
        assert_eq!(told.iter().map(|one| one.0).collect::<Vec<_>>(), [reply::SERVER, reply::SERVER, reply::ACK]);
        assert_eq!(told[1].1, b"\0\0\0\x05othera disk");
        negotiation.hear(option::STRUCTURED_REPLY, Some(b""), &mut said);
        let query = named("disk", &[&1_u32.to_be_bytes()[..], &named(ALLOCATION, b"")].concat());
        negotiation.hear(option::SET_META_CONTEXT, Some(&query), &mut said);
        for (name, chosen) in [("other", (1, false)), ("disk", (0, true)), ("", (0, true))] {
            said.clear();
            let next = negotiation.hear(option::GO, Some(&named(name, &[0, 0])), &mut said);
            assert_eq!((next, negotiation.chosen()), (NextStep::Transmission, Some(chosen)), "{name}");
            let bytes = &exports[chosen.0].bytes.to_be_bytes();
            assert_eq!(replies(&said)[0].1[2..10], bytes[..]);
        }
    }

    proptest! {
        #[test]
        fn whatever_a_client_says_is_answered(options in prop::collection::vec((0..14_u32, prop::collection::vec(any::<u8>(), 0..60)), 0..8)) {
            let exports = [export(), Export { name: "other".to_owned(), ..export() }];
            let security = [Security::Plain, Security::Demanded, Security::Sealed][options.len() % 3];
            let mut negotiation = Negotiation::new(&exports, 1, security);
            for (number, data) in options {
                let mut said = Vec::new();
                let next = negotiation.hear(number, Some(&data), &mut said);
                prop_assert!(next == NextStep::End || !said.is_empty());
            }
        }
    }
}
