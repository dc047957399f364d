//! What the broker of a node says and hears: three conversations, each message a type.
//!
//! | conversation | to the broker | from the broker |
//! |---|---|---|
//! | a program or server and its broker | [`FromPort`] | [`ToPort`] |
//! | a proxy and its broker | [`FromProxy`] | [`ToProxy`] |
//! | brokers of two nodes, in parcels that proxies carry | [`BetweenBrokers`] | [`BetweenBrokers`] |
//!
//! The first two run over sequenced Unix sockets. Every message is one packet, drawn in `packet.rs`: [`PACKET_BYTES`]
//! bytes of fixed layout, for some operations a body of at most [`BODY_BYTES_MAX`] after it, and the descriptors that
//! the message declares ([`Message::descriptors`]). A packet that cannot be read is an error of its sender: see
//! [`Malformed`].
//!
//! A request carries a number of the sender's; its answer carries the same. Number 0 asks for no answer. Whatever else
//! the broker says comes unasked.
//!
//! Numbers rise over the life of a connection. A broker that is killed and started again may have read a request
//! without answering it, so it says `Restarted` on every connection it took over, and whoever waits for an answer asks
//! again with the same number. A request that the new broker has read already (it lay in the socket) is then not done
//! twice.
//!
//! - `brokers.rs`: brokers of two nodes.
//! - `declare.rs`: declares messages and writes their codec.
//! - `info.rs`: what a broker tells of a container.
//! - `packet.rs`: the bytes.
//! - `port.rs`: a program or server and its broker.
//! - `proxy.rs`: a proxy and its broker.
//! - `values.rs`: what stands in a field, and how it is written.
//!
//! Not here: sockets (`kernel/ipc`, `kernel/broker`), who may ask for what (`kernel/broker`).

#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing))]

#[macro_use]
mod declare;

mod brokers;
pub mod info;
mod packet;
mod port;
mod proxy;
#[cfg(test)]
mod tests;
mod values;

pub use abi::{HoldId, Pid};
pub use brokers::{Answer, BetweenBrokers, Errand};
pub use packet::{BODY_BYTES_MAX, MESSAGE_BYTES_MAX, Malformed, Message, PACKET_BYTES};
pub use port::{FromPort, Inquiry, Offer, Open, ToPort};
pub use proxy::{FromProxy, LinkState, OpenIn, ProxiedOffer, ToProxy};
pub use values::{Descriptor, IfAbsent, PartiesCalls, WaitId};
