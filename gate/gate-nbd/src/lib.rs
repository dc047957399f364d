//! A disk for whoever speaks NBD, the protocol of network block devices
//! (<https://github.com/NetworkBlockDevice/nbd/blob/master/doc/proto.md>): fixed newstyle negotiation, structured
//! replies, block status, TLS.
//!
//! | module | is |
//! |---|---|
//! | `negotiation` | pure: options, until a client has chosen the export |
//! | `store` | what is exported, in whole blocks |
//! | `bytes` | any range of it |
//! | `tls` | encryption, for who asks for it |
//! | `stream` | connections as bytes, encrypted or not |
//! | `answer_bytes` | bytes for a client, in memory that is used again |
//! | `server` | connections and their threads |
//! | `disk`, `volume` | a container's disk as a store, and a volume of this process |
//! | `spawn` | the process `dvs gate nbd` |
//! | `copier` | the process `dvs gate disk`, which reads or fills a container's disk for a backup |
//!
//! All connections to an export are to one store, and a flush of one covers what all have been told is written: clients
//! may use several (`CAN_MULTI_CONN`).

#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing))]

mod answer_bytes;
mod bytes;
mod copier;
mod disk;
mod line;
mod negotiation;
mod server;
mod spawn;
mod store;
mod stream;
pub mod testing;
mod tls;
mod transfers;
mod volume;

/// Numbers of the protocol, requests from bytes, replies to bytes.
use nbd as wire;

pub use bytes::{ByteStore, Holes};
pub use copier::main_from_spawn as main_of_copier;
pub use server::Exporter;
pub use spawn::main_from_spawn;
pub use store::{BegunRead, BegunWrite, BlockStore, ReadData, STORE_BLOCK_BYTES, WriteRoom};
pub use stream::NbdListener;
pub use tls::{TlsError, TlsSettings};
