//! Machines that come to the cluster, and what a node shows there (`docs/design/joining.md`).
//!
//! | | |
//! |---|---|
//! | `authority.rs` | who signs, what is revoked: the record in the engine |
//! | `tokens.rs` | what lets a machine in, once |
//! | `admission.rs` | a machine comes with its token |
//! | `leaving.rs` | a node is taken out |
//! | `rotation.rs` | another root takes the place of the one there is |
//! | `certificates.rs` | this node's own certificate: renewed, written, read again |

pub mod admission;
pub mod authority;
pub mod certificates;
pub mod leaving;
pub mod rotation;
pub mod tokens;
