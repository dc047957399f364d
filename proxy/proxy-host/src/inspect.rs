//! For programs that filter or log what passes between two nodes: a look at every message and ring entry, on the way
//! out ("get to remote") and on the way in ("put to local").

use abi::IpcError;
use abi::ring::{Completion, Submission};
use proxy_link::{Carried, Ends};

/// What is about to pass.
#[derive(Clone, Copy, Debug)]
pub enum Passing<'a> {
    Message(&'a Carried),
    /// A request of a ring. Its data lies in the arena and is not shown.
    Submission(&'a Submission),
    Completion(&'a Completion),
}

/// An `Err` ends the channel at both nodes with that error: a message is never lost in silence. Both calls are on the
/// path of every message, so they must not wait.
pub trait Inspector: Send + Sync {
    /// A local party's message or entry, before it is sent. Asked again for the same one when the link had no room for
    /// it, or was cut.
    fn get_to_remote(&self, ends: &Ends, what: Passing<'_>) -> Result<(), IpcError> {
        let _ = (ends, what);
        Ok(())
    }

    /// A far party's message or entry, before it is put into the local channel; once.
    fn put_to_local(&self, ends: &Ends, what: Passing<'_>) -> Result<(), IpcError> {
        let _ = (ends, what);
        Ok(())
    }
}
