//! What can be wrong with bytes from a peer.

use core::fmt;

/// A peer that sends any of these does not speak this protocol; the link is cut.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WireError {
    /// The body is longer than any frame may be.
    TooLong(u32),
    /// A kind nobody defined.
    UnknownKind(u8),
    /// A layout that this side does not know.
    Layout(u8),
    /// The body ends before its fields do.
    Short,
    /// The body goes on after its last field.
    Trailing,
    /// The named field lies outside its limits.
    Field(&'static str),
}

impl fmt::Display for WireError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            WireError::TooLong(bytes) => write!(f, "a frame of {bytes} bytes is longer than the limit"),
            WireError::UnknownKind(kind) => write!(f, "frame kind {kind} is not known"),
            WireError::Layout(layout) => write!(
                f,
                "the peer writes frames of layout {layout}, this side of layout {} since release 0.1.0: what runs \
                 there is no dvs that this one can talk with",
                crate::LAYOUT
            ),
            WireError::Short => f.write_str("a frame ends before its fields do"),
            WireError::Trailing => f.write_str("a frame goes on after its last field"),
            WireError::Field(name) => write!(f, "field '{name}' of a frame is out of range"),
        }
    }
}

impl core::error::Error for WireError {}
