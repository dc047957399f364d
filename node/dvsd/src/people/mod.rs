//! People who ask from elsewhere (`docs/design/people.md`).
//!
//! | | |
//! |---|---|
//! | `records.rs` | who has an access: the records in the engine |
//! | `known.rs` | what this node knows of them, and who of them is here |
//! | `limits.rs` | how often somebody may fail |
//! | `audit.rs` | what was changed and refused: files that are bounded |
//!
//! Who may do what says the table of `mgmt_api::routes`; what asks it is `api/gate.rs`.

pub mod audit;
pub mod known;
pub mod limits;
pub mod records;
