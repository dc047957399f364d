//! What a table of sessions needs of the store of its server.

use crate::reply::Reply;

/// What a store knows of a session besides its replies.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Standing {
    Live,
    /// It is refused until its client says that it knows; its replies are kept.
    Fenced,
    /// It must not go on: its number stays refused.
    Ended,
}

/// Where a reply lies. Ordered as the operations were executed.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Place {
    /// Rises with every reply that the store records, of whatever session.
    pub order: u64,
    pub sequence: u64,
}

/// One step of a store while it is being made. What is put here becomes permanent together with the effects of the
/// operation, or not at all.
pub trait Step {
    type Error;

    fn put_standing(&mut self, session: u64, standing: Standing) -> Result<(), Self::Error>;

    fn drop_standing(&mut self, session: u64) -> Result<(), Self::Error>;

    /// `reply` is in the form of [`Reply::encode`].
    fn put_reply(&mut self, session: u64, place: Place, reply: &[u8]) -> Result<(), Self::Error>;

    fn drop_reply(&mut self, session: u64, place: Place) -> Result<(), Self::Error>;
}

/// What was recorded, also by servers before this one.
pub trait Record {
    type Error;

    /// All sessions, each once, in any order.
    fn standings(&self) -> Result<Vec<(u64, Standing)>, Self::Error>;

    /// Where the replies of a session lie, in any order.
    fn places(&self, session: u64) -> Result<Vec<Place>, Self::Error>;

    fn reply(&self, session: u64, place: Place) -> Result<Option<Reply>, Self::Error>;
}
