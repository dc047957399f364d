//! What is to be sent, wherever it lies.

use std::time::Duration;

use proxy_link::{Bodies, LocalChannel, OutPiece, Peer};

use crate::memory::SimChannel;

pub fn gathered(peer: &mut Peer<SimChannel>, bodies: Bodies, now: Duration) -> Vec<u8> {
    peer.set_bodies(bodies);
    peer.fill(now);
    let mut bytes = Vec::new();
    for piece in peer.pieces() {
        match piece {
            OutPiece::Bytes(piece) => bytes.extend_from_slice(piece),
            OutPiece::InArena { local, at, bytes: count } => {
                let mut piece = vec![0; count as usize];
                local.copy_out(at, &mut piece).expect("inside");
                bytes.extend(piece);
            }
        }
    }
    bytes
}
