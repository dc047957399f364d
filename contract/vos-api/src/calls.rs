//! What the call gate of one node asks that of another: to have something done to its processes
//! (`docs/design/processes.md`).
//!
//! The greeting's `service` is the life of the node's executor. Only call gates of the container are welcome; an order
//! must be of the node whose call gate sends it. What the records hold is said in `proc_core::order`.

use crate::operation::{operations, replies};

operations! {
    enum Request<'a>;

    /// Carries an order out, once: said again it is answered from memory. `EAGAIN`: not now. `EPROTO`: it is none.
    CARRY_OUT = 16: repeatable CarryOut<'a> { order: &'a [u8] } -> CarriedOut [NotPermitted];
}

replies! {
    /// An outcome as it lies in memory, a word after the other.
    CarriedOut { first, second, third };
}
