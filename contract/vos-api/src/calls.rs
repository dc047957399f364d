//! What the call gate of one node asks that of another: to have something done to its processes
//! (`docs/design/processes.md`), or one more started (`docs/design/jobs.md`).
//!
//! The greeting's `service` is the life of the node's executor. Only call gates of the container are welcome; an order
//! must be of the node whose call gate sends it. What the records hold is said in `proc_core::order`.

use crate::operation::{Empty, operations, replies};

operations! {
    enum Request<'a>;

    /// Carries an order out, once: said again it is answered from memory. Reply data: what the caller's memory gets.
    /// `EAGAIN`: not now. `EPROTO`: it is none.
    CARRY_OUT = 16: repeatable CarryOut<'a> { order: &'a [u8] } -> CarriedOut [NotPermitted];

    /// Starts the far end of a job (`proc_core::start`). Asked again, it may start another one, which its deputy does
    /// not take. `EPROTO`: the record is none. Other errors: why there is no such process there.
    START = 17: repeatable Start<'a> { order: &'a [u8] } -> Empty [NotPermitted];

    /// What a proc gate asks about processes there (`gate_proc::ask`). Reply data: the answer. `EPROTO`: it is none.
    SHOW = 19: repeatable Show<'a> { ask: &'a [u8] } -> Shown [NotPermitted];

    /// How much there is to do on that node.
    LOAD = 18: repeatable Load {} -> Loaded [];
}

replies! {
    /// An outcome as it lies in memory, a word after the other.
    CarriedOut { first, second, third };
    Shown { bytes };
    Loaded {
        /// Threads that run, or would.
        runnable,
        /// CPUs of the node.
        cpus
    };
}
