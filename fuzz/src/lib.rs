//! What comes from outside and is not to be believed, each as a function of arbitrary bytes that must return: no
//! panic, no hang, nothing allocated without a bound.
//!
//! | target | the bytes are |
//! |---|---|
//! | [`packets`] | one packet of the broker's sockets, or from broker to broker |
//! | [`frames`] | frames between proxies, as they lie in a buffer |
//! | [`engine`] | packets to a running broker, from programs and servers |
//! | [`messages`], [`requests`], [`completions`] | what a peer writes into a channel while the library makes calls on it |
//! | [`stand_in`] | what a member writes into a channel to another node while its proxy carries it |
//! | [`link`] | a peer proxy, after or instead of its greeting |
//! | [`fuse`] | a request of the kernel to the gate of files, and what the fs server answers |
//! | [`table`] | what proc gates ask each other and answer, and texts of processes of other nodes |
//! | [`image`], [`log`] | what lies on a volume of files or in its log, and calls of clients behind it |
//! | [`copies`] | what copies of a replicated disk answer their primary, and what lies beside them |
//! | [`nbd`] | what a client of disks over NBD says, from its first byte on |
//! | [`dns`] | a question for a name |
//! | [`keeper`] | one packet between a daemon and a keeper |
//! | [`bodies`], [`streams`] | a body of the REST API, the frames of a program's stream |
//!
//! The same functions run under libFuzzer (`fuzz/libfuzzer`) and, over seeds of [`corpus`] and their mutations, in
//! `tests/smoke.rs`.

#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

mod bytes;
mod channel;
mod copies;
pub mod corpus;
mod dns;
mod engine;
mod fuse;
mod link;
mod management;
mod member;
mod nbd;
mod stand_in;
mod table;
mod volume;

pub use channel::{completions, messages, requests};
pub use copies::copies;
pub use dns::dns;
pub use engine::engine;
pub use fuse::fuse;
pub use link::link;
pub use management::{bodies, keeper, streams};
pub use nbd::nbd;
pub use stand_in::stand_in;
pub use table::table;
pub use volume::{image, log};

use broker_api::{BetweenBrokers, FromPort, FromProxy, Message, ToPort, ToProxy};
use wire::Frame;

/// A body, by the name of its libFuzzer target.
pub type Target = (&'static str, fn(&[u8]), fn() -> Vec<Vec<u8>>);

pub const TARGETS: &[Target] = &[
    ("packets", packets, corpus::packets),
    ("frames", frames, corpus::frames),
    ("engine", engine, corpus::engine),
    ("messages", messages, corpus::messages),
    ("requests", requests, corpus::requests),
    ("completions", completions, corpus::completions),
    ("stand_in", stand_in, corpus::stand_in),
    ("link", link, corpus::link),
    ("fuse", fuse, fuse::corpus),
    ("table", table, table::corpus),
    ("image", image, volume::images),
    ("log", log, volume::logs),
    ("copies", copies, copies::corpus),
    ("nbd", nbd, nbd::corpus),
    ("dns", dns, dns::corpus),
    ("keeper", keeper, management::keeper_corpus),
    ("bodies", bodies, management::body_corpus),
    ("streams", streams, management::stream_corpus),
];

/// Runs one target. Panics when there is none of the name.
pub fn run(name: &str, data: &[u8]) {
    let (_, target, _) = TARGETS.iter().find(|(known, ..)| *known == name).expect("a target's name");
    target(data);
}

/// What is read as a message of the broker's conversations is written, and read again, as the same message.
pub fn packets(data: &[u8]) {
    message::<FromPort>(data);
    message::<ToPort>(data);
    message::<FromProxy>(data);
    message::<ToProxy>(data);
    message::<BetweenBrokers>(data);
}

fn message<M: Message + PartialEq + std::fmt::Debug>(data: &[u8]) {
    if let Ok((request, message)) = M::from_bytes(data) {
        assert_eq!(M::from_bytes(&message.to_bytes(request)), Ok((request, message)));
    }
}

/// What is read as a frame is written, and read again, as the same frame; a length is never beyond the limit.
pub fn frames(data: &[u8]) {
    let mut rest = data;
    while let Ok(Some(whole)) = wire::frame_bytes(rest) {
        let Some((first, others)) = rest.split_at_checked(whole) else { return };
        if let Ok(frame) = Frame::decode(first) {
            let mut written = Vec::new();
            frame.encode(&mut written);
            assert_eq!(written.len(), frame.encoded_bytes());
            assert_eq!(format!("{frame:?}"), format!("{:?}", Frame::decode(&written).expect("was just written")));
        }
        rest = others;
        if whole == 0 {
            return;
        }
    }
    let _ = wire::next(data);
}
