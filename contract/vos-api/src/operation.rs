//! How an operation is declared: once, with arguments by name, reply, errors, and whether it may be repeated.
//!
//! ```ignore
//! operations! {
//!     enum Request<'a>;
//!
//!     /// The value of a key.
//!     GET = 16: repeatable Get<'a> { key: Measured<'a> } -> Revision [NoEntry];
//! }
//! ```
//!
//! From that follow the number (`GET`), a type with named fields (`Get`) with its codec, and a variant of the server's
//! `Request`, which clients encode and the server decodes. The type of a field decides whether the field travels in the
//! 64 bytes of a ring's entry or in the data beside it ([`Field`]); fields of a kind follow one another in the order of
//! their declaration.
//!
//! | type | travels in |
//! |---|---|
//! | `u64`, `u32` | the next argument |
//! | [`Third`] | the third argument |
//! | `u16` | the flags |
//! | an enum of [`words!`] | the next argument (`u64`) or the flags (`u16`) |
//! | [`Measured`] | data; its length in the next argument |
//! | [`Prefixed`] | data, after its length (`u16`, little-endian) |
//! | [`AfterNul`] | the rest of the data, after a NUL |
//! | [`U64`], a structure of [`in_data!`] | data |
//! | `&[u8]` | the rest of the data |
//!
//! Bulk data that a server moves without looking at it is no field.

use std::borrow::Cow;

use zerocopy::little_endian::U64;
use zerocopy::{FromBytes, Immutable, IntoBytes};

/// Whether an operation may be sent again.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Class {
    /// As often as one likes.
    Repeatable,
    /// It is part of a session and carries a sequence: it happens once, however often it is sent (`session`).
    Once,
}

/// An operation as it travels. `data` is the client's: nothing in it is trusted.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Encoded<'a> {
    pub op: u16,
    pub flags: u16,
    pub args: [u64; 3],
    pub data: Cow<'a, [u8]>,
}

/// A declared operation with its arguments.
pub trait Operation<'a>: Sized {
    const CODE: u16;
    const CLASS: Class;
    /// What it may answer instead of success, besides [`Errno::ANY`].
    const ERRORS: &'static [Errno];
    type Reply: Reply;

    fn encode(&self) -> Encoded<'a>;

    /// `None` when the bytes are no such operation.
    fn decode(flags: u16, args: [u64; 3], data: &'a [u8]) -> Option<Self>;
}

/// The four result words of a reply, by name. The operation's comment says what its reply data holds.
pub trait Reply: From<[u64; 4]> + Into<[u64; 4]> {
    /// Bytes of reply data that always come.
    const DATA_BYTES: u32 = 0;
}

/// Nothing but success.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Empty;

impl From<[u64; 4]> for Empty {
    fn from(_: [u64; 4]) -> Empty {
        Empty
    }
}

impl From<Empty> for [u64; 4] {
    fn from(_: Empty) -> [u64; 4] {
        [0; 4]
    }
}

impl Reply for Empty {}

/// Why a request is no operation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Unreadable {
    /// The server has no operation of this number.
    Unknown,
    /// Lengths or numbers that make no sense.
    Malformed,
}

/// What an operation answers instead of success; the numbers are Linux's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
pub enum Errno {
    NotPermitted = 1,
    NoEntry = 2,
    Interrupted = 4,
    Io = 5,
    NoAddress = 6,
    ArgumentTooLong = 7,
    BadHandle = 9,
    TryAgain = 11,
    Access = 13,
    Busy = 16,
    Exists = 17,
    /// From one part of a tree to another one that is counted apart.
    CrossDevice = 18,
    NotDirectory = 20,
    IsDirectory = 21,
    Invalid = 22,
    FileTooBig = 27,
    NoSpace = 28,
    ReadOnly = 30,
    TooManyLinks = 31,
    /// Nobody reads what is written.
    BrokenPipe = 32,
    OutOfRange = 34,
    Deadlock = 35,
    NameTooLong = 36,
    NoLocks = 37,
    NotEmpty = 39,
    /// The inode is gone, whatever its name leads to now. A name that is not there is [`Errno::NoEntry`].
    Gone = 43,
    NoData = 61,
    NotSupported = 95,
    TimedOut = 110,
    /// What decides for all nodes does not answer; nothing happened.
    Unreachable = 113,
    Stale = 116,
    /// A quota does not allow more.
    QuotaExceeded = 122,
}

impl Errno {
    /// What every operation may answer: the medium failed, the request makes no sense or has no room for its reply, the
    /// session is over or has too much in flight, the server has no such operation. `EPROTO` (71) comes besides, to a
    /// client that breaks the protocol: no greeting, a second one, or a number below
    /// [`FIRST_SERVICE_OP`](crate::session::FIRST_SERVICE_OP).
    pub const ANY: &'static [Errno] =
        &[Errno::Io, Errno::Invalid, Errno::OutOfRange, Errno::Stale, Errno::TryAgain, Errno::NotSupported];

    pub fn number(self) -> u32 {
        self as i32 as u32
    }
}

impl From<Unreadable> for Errno {
    fn from(why: Unreadable) -> Errno {
        match why {
            Unreadable::Unknown => Errno::NotSupported,
            Unreadable::Malformed => Errno::Invalid,
        }
    }
}

impl std::fmt::Display for Errno {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{self:?} (errno {})", self.number())
    }
}

/// Puts fields where they travel.
pub struct Encoder<'a> {
    out: Encoded<'a>,
    next_arg: usize,
}

impl<'a> Encoder<'a> {
    pub fn new(op: u16) -> Encoder<'a> {
        Encoder { out: Encoded { op, ..Encoded::default() }, next_arg: 0 }
    }

    pub fn finish(self) -> Encoded<'a> {
        self.out
    }

    #[allow(
        clippy::indexing_slicing,
        reason = "how many words an operation has is its declaration's, not its caller's"
    )]
    fn word(&mut self, word: u64) {
        self.out.args[self.next_arg] = word;
        self.next_arg += 1;
    }

    /// The first piece is lent; only who adds more pays for a copy.
    fn lend(&mut self, bytes: &'a [u8]) {
        if self.out.data.is_empty() {
            self.out.data = Cow::Borrowed(bytes);
        } else {
            self.bytes(bytes);
        }
    }

    fn bytes(&mut self, bytes: &[u8]) {
        self.out.data.to_mut().extend_from_slice(bytes);
    }
}

/// Takes fields from where they travel.
pub struct Decoder<'a> {
    flags: u16,
    args: [u64; 3],
    next_arg: usize,
    data: &'a [u8],
}

impl<'a> Decoder<'a> {
    pub fn new(flags: u16, args: [u64; 3], data: &'a [u8]) -> Decoder<'a> {
        Decoder { flags, args, next_arg: 0, data }
    }

    fn word(&mut self) -> Option<u64> {
        self.next_arg += 1;
        self.args.get(self.next_arg - 1).copied()
    }

    fn bytes(&mut self, count: usize) -> Option<&'a [u8]> {
        let (bytes, rest) = self.data.split_at_checked(count)?;
        self.data = rest;
        Some(bytes)
    }

    pub(crate) fn structure<T: FromBytes>(&mut self) -> Option<T> {
        T::read_from_bytes(self.bytes(size_of::<T>())?).ok()
    }
}

/// Something that knows where it travels.
pub trait Field<'a>: Sized {
    fn put(&self, to: &mut Encoder<'a>);

    fn take(from: &mut Decoder<'a>) -> Option<Self>;
}

impl Field<'_> for u64 {
    fn put(&self, to: &mut Encoder<'_>) {
        to.word(*self);
    }

    fn take(from: &mut Decoder<'_>) -> Option<u64> {
        from.word()
    }
}

impl Field<'_> for u32 {
    fn put(&self, to: &mut Encoder<'_>) {
        to.word(u64::from(*self));
    }

    fn take(from: &mut Decoder<'_>) -> Option<u32> {
        u32::try_from(from.word()?).ok()
    }
}

impl Field<'_> for u16 {
    fn put(&self, to: &mut Encoder<'_>) {
        to.out.flags = *self;
    }

    fn take(from: &mut Decoder<'_>) -> Option<u16> {
        Some(from.flags)
    }
}

/// A number in the third argument, where the second means nothing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Third(pub u64);

impl Field<'_> for Third {
    fn put(&self, to: &mut Encoder<'_>) {
        to.out.args[2] = self.0;
    }

    fn take(from: &mut Decoder<'_>) -> Option<Third> {
        Some(Third(from.args[2]))
    }
}

/// Bytes whose length an argument tells.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Measured<'a>(pub &'a [u8]);

impl<'a> Field<'a> for Measured<'a> {
    fn put(&self, to: &mut Encoder<'a>) {
        to.word(self.0.len() as u64);
        to.lend(self.0);
    }

    fn take(from: &mut Decoder<'a>) -> Option<Measured<'a>> {
        let count = usize::try_from(from.word()?).ok()?;
        from.bytes(count).map(Measured)
    }
}

/// Bytes after their length, a `u16`, little-endian.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Prefixed<'a>(pub &'a [u8]);

impl<'a> Field<'a> for Prefixed<'a> {
    fn put(&self, to: &mut Encoder<'a>) {
        // A name longer than 65,535 bytes gets a wrong length here. The server refuses it: names end at 255 bytes.
        to.bytes(&u16::try_from(self.0.len()).unwrap_or(u16::MAX).to_le_bytes());
        to.bytes(self.0);
    }

    fn take(from: &mut Decoder<'a>) -> Option<Prefixed<'a>> {
        let count = u16::from_le_bytes(*from.bytes(2)?.first_chunk()?);
        from.bytes(usize::from(count)).map(Prefixed)
    }
}

/// The rest of the data, after a NUL.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AfterNul<'a>(pub &'a [u8]);

impl<'a> Field<'a> for AfterNul<'a> {
    fn put(&self, to: &mut Encoder<'a>) {
        to.bytes(&[0]);
        to.bytes(self.0);
    }

    fn take(from: &mut Decoder<'a>) -> Option<AfterNul<'a>> {
        let is_nul = from.bytes(1)? == [0];
        is_nul.then_some(AfterNul(from.data))
    }
}

impl<'a> Field<'a> for &'a [u8] {
    fn put(&self, to: &mut Encoder<'a>) {
        to.lend(self);
    }

    fn take(from: &mut Decoder<'a>) -> Option<&'a [u8]> {
        from.bytes(from.data.len())
    }
}

pub(crate) fn put_structure<T: IntoBytes + Immutable>(structure: &T, to: &mut Encoder<'_>) {
    to.bytes(structure.as_bytes());
}

/// Structures that travel in the data as they lie in memory.
macro_rules! in_data {
    ($($structure:ty),* $(,)?) => {
        $(impl $crate::operation::Field<'_> for $structure {
            fn put(&self, to: &mut $crate::operation::Encoder<'_>) {
                $crate::operation::put_structure(self, to);
            }

            fn take(from: &mut $crate::operation::Decoder<'_>) -> Option<$structure> {
                from.structure()
            }
        })*
    };
}
pub(crate) use in_data;

in_data!(U64);

/// Enums that travel as an argument (`u64`) or as the flags (`u16`).
macro_rules! words {
    ($($(#[$doc:meta])* enum $name:ident: $word:ty { $($(#[$said:meta])* $variant:ident = $number:literal),* $(,)? })*) => {
        $($(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        pub enum $name {
            $($(#[$said])* $variant = $number),*
        }

        impl $crate::operation::Field<'_> for $name {
            fn put(&self, to: &mut $crate::operation::Encoder<'_>) {
                (*self as $word).put(to);
            }

            fn take(from: &mut $crate::operation::Decoder<'_>) -> Option<$name> {
                match <$word>::take(from)? {
                    $($number => Some($name::$variant),)*
                    _ => None,
                }
            }
        })*
    };
}
pub(crate) use words;

/// Replies: up to four words by name, and how much data always comes with them.
macro_rules! replies {
    ($($(#[$doc:meta])* $name:ident { $($(#[$said:meta])* $word:ident),* } $(+ $data:ty)?;)*) => {
        $($(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
        pub struct $name {
            $($(#[$said])* pub $word: u64),*
        }

        impl From<[u64; 4]> for $name {
            #[allow(unused_mut, unused_variables, reason = "there are replies without words")]
            fn from(words: [u64; 4]) -> $name {
                let mut words = words.into_iter();
                $(let $word = words.next().unwrap_or_default();)*
                $name { $($word),* }
            }
        }

        impl From<$name> for [u64; 4] {
            #[allow(unused_variables, reason = "there are replies without words")]
            fn from(reply: $name) -> [u64; 4] {
                let mut words = [0; 4];
                for (word, said) in words.iter_mut().zip([$(reply.$word),*]) {
                    *word = said;
                }
                words
            }
        }

        impl $crate::operation::Reply for $name {
            $(const DATA_BYTES: u32 = size_of::<$data>() as u32;)?
        })*
    };
}
pub(crate) use replies;

/// The operations of one server.
macro_rules! operations {
    (@class repeatable) => { $crate::operation::Class::Repeatable };
    (@class once) => { $crate::operation::Class::Once };
    (enum $request:ident $(<$request_life:lifetime>)?;
    $(
        $(#[$doc:meta])*
        $code:ident = $number:literal: $class:ident $name:ident $(<$life:lifetime>)? {
            $($(#[$said:meta])* $field:ident: $type:ty),* $(,)?
        } -> $reply:ty [$($error:ident),* $(,)?];
    )*) => {
        $(
        #[doc = concat!("Number of [`", stringify!($name), "`].")]
        pub const $code: u16 = $number;

        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        pub struct $name $(<$life>)? {
            $($(#[$said])* pub $field: $type),*
        }

        impl<'a> $crate::operation::Operation<'a> for $name $(<$life>)? {
            const CODE: u16 = $number;
            const CLASS: $crate::operation::Class = operations!(@class $class);
            const ERRORS: &'static [$crate::operation::Errno] = &[$($crate::operation::Errno::$error),*];
            type Reply = $reply;

            #[allow(unused_mut, reason = "there are operations without arguments")]
            fn encode(&self) -> $crate::operation::Encoded<'a> {
                let mut to = $crate::operation::Encoder::new($number);
                $($crate::operation::Field::put(&self.$field, &mut to);)*
                to.finish()
            }

            #[allow(unused_mut, unused_variables, reason = "there are operations without arguments")]
            fn decode(flags: u16, args: [u64; 3], data: &'a [u8]) -> Option<Self> {
                let mut from = $crate::operation::Decoder::new(flags, args, data);
                $(let $field = $crate::operation::Field::take(&mut from)?;)*
                Some($name { $($field),* })
            }
        }
        )*

        /// What clients ask this server for.
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        pub enum $request $(<$request_life>)? {
            $($name($name $(<$life>)?)),*
        }

        impl $(<$request_life>)? $request $(<$request_life>)? {
            pub fn decode(
                op: u16,
                flags: u16,
                args: [u64; 3],
                data: &$($request_life)? [u8],
            ) -> Result<Self, $crate::operation::Unreadable> {
                use $crate::operation::Operation;
                let request = match op {
                    $($number => $name::decode(flags, args, data).map($request::$name),)*
                    _ => return Err($crate::operation::Unreadable::Unknown),
                };
                request.ok_or($crate::operation::Unreadable::Malformed)
            }
        }

        /// `None` for a number that is no operation.
        pub const fn class_of(op: u16) -> Option<$crate::operation::Class> {
            match op {
                $($number => Some(operations!(@class $class)),)*
                _ => None,
            }
        }

        /// What an operation may answer instead of success, besides [`Errno::ANY`]($crate::operation::Errno::ANY).
        pub const fn errors_of(op: u16) -> &'static [$crate::operation::Errno] {
            match op {
                $($number => &[$($crate::operation::Errno::$error),*],)*
                _ => &[],
            }
        }
    };
}
pub(crate) use operations;
