//! A reliable stream of bytes over packets that may be lost, doubled, delayed and reordered. No I/O, no clock: packets
//! and the time are passed in, packets come out. For transports that bring no reliability of their own (`eth`).
//!
//! ```text
//!  write ─▶ Sender ── DATA ──▶ Receiver ─▶ read       one of each on both sides: a [`Session`]
//!                 ◀── ack, what came behind a hole, room ──
//! ```
//!
//! [`Sessions`] are all those of a node; [`wire`] is what tests lay between two of them.
//!
//! Numbers count bytes, as in TCP. What is chosen, and from where:
//!
//! - **Loss** is seen by order of sending: a segment is lost when three that were sent after it have arrived (QUIC's
//!   packet threshold, RFC 9002 section 6.1.1; a repeated segment counts as sent anew). What no acknowledgement shows
//!   is lost after the retransmission time, which follows the measured round trip (RFC 6298) and doubles.
//! - **Selective acknowledgement**: a receiver tells which ranges it holds after a hole (RFC 2018), so that only holes
//!   are sent again.
//! - **Room**: the receiver tells how many bytes it still takes ([`limits::WINDOW_BYTES`] at most); the sender keeps
//!   within that and within its congestion window (slow start, halved once per round trip with a loss, RFC 5681).
//! - **Round trip**: every packet carries its sender's clock and returns the peer's (RFC 7323), so that repeated
//!   segments do not confuse it.
//!
//! **States**: `Dialling` (SYN sent) → `Open` → `Closing` (FIN sent, not acknowledged) → `Closed`; RST or too many
//! repetitions lead from anywhere to `Failed`. A SYN that comes twice is answered twice and makes one session.
//!
//! Nobody is believed: who can send packets on the wire can disturb a session (so can who cuts it), but no packet makes
//! it panic, hold more than the window, or hand out bytes twice. Authenticity is TLS's, above.

pub mod limits;
mod packet;
mod receiver;
mod sender;
mod session;
mod sessions;
pub mod wire;

pub use packet::{Kind, Packet, Ranges};
pub use session::{Session, State};
pub use sessions::{Draw, Received, Sessions, refusal};
