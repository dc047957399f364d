//! Tells the file gate, which sees no process, whether who waits for its answer is about to die (`sys::dying`).

use std::io;

use sys::dying;

use crate::keeper::Keeper;
use crate::poll::Source;

/// Under which name the gate's end is kept, with the tree's descriptor: gates come and go.
pub const DEATHS_KEY: &str = "deaths";
/// Answers before others have their turn.
const TURN_MAX: usize = 16;

impl Keeper {
    /// For the gates of a tree that is being mounted.
    pub fn open_deaths(&mut self) -> io::Result<()> {
        let theirs = self.poll.open_door(&mut self.deaths, Source::Deaths)?;
        self.stored.insert(DEATHS_KEY.to_owned(), theirs);
        Ok(())
    }

    pub fn close_deaths(&mut self) {
        self.stored.remove(DEATHS_KEY);
        self.deaths = None;
    }

    pub fn hear_deaths(&mut self) {
        for _ in 0..TURN_MAX {
            let Some(socket) = &self.deaths else { return };
            match dying::answer(socket) {
                Ok(true) => (),
                Ok(false) => return,
                Err(cause) => {
                    tracing::warn!(%cause, "the file gate does not hear who is about to die");
                    return self.close_deaths();
                }
            }
        }
    }
}
