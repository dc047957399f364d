//! What every command says, and leaves, when something is wrong: its arguments, the rights of who runs it, a daemon or
//! a node that is away, an engine without a majority, certificates that have expired or are not good yet, a full disk.
//!
//! Commands are those that the binary itself names in its help, so none is left out: one that is not in the table fails
//! the first test here. `docs/design/errors.md` says what cannot be tried, and why.

mod conditions;
mod full;
mod table;
mod tree;
mod world;
