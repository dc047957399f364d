//! Numbers and layouts of the protocol. All numbers are big-endian.

use rustix::io::Errno;

use crate::answer_bytes::AnswerBytes;

/// `NBDMAGIC`, `IHAVEOPT`.
pub const GREETING: [u8; 16] = *b"NBDMAGICIHAVEOPT";
pub const OPTION_MAGIC: u64 = u64::from_be_bytes(*b"IHAVEOPT");
pub const OPTION_REPLY_MAGIC: u64 = 0x0003_e889_0455_65a9;
pub const REQUEST_MAGIC: u32 = 0x2560_9513;
pub const SIMPLE_REPLY_MAGIC: u32 = 0x6744_6698;
pub const CHUNK_MAGIC: u32 = 0x668e_33ef;

/// Of the server's greeting, and of the client's answer: fixed newstyle, and no zeros behind an export.
pub const FIXED_NEWSTYLE: u16 = 1;
pub const NO_ZEROES: u16 = 2;

/// The most that is read or written at once; what every client may take for granted.
pub const TRANSFER_BYTES_MAX: u32 = 32 << 20;
/// Of a request before its data.
pub const REQUEST_BYTES: usize = 28;

pub mod option {
    pub const EXPORT_NAME: u32 = 1;
    pub const ABORT: u32 = 2;
    pub const LIST: u32 = 3;
    pub const STARTTLS: u32 = 5;
    pub const INFO: u32 = 6;
    pub const GO: u32 = 7;
    pub const STRUCTURED_REPLY: u32 = 8;
    pub const LIST_META_CONTEXT: u32 = 9;
    pub const SET_META_CONTEXT: u32 = 10;
}

pub mod reply {
    pub const ACK: u32 = 1;
    pub const SERVER: u32 = 2;
    pub const INFO: u32 = 3;
    pub const META_CONTEXT: u32 = 4;
    pub const ERR_TLS_REQD: u32 = 1 << 31 | 5;
    pub const ERR_UNSUP: u32 = 1 << 31 | 1;
    pub const ERR_INVALID: u32 = 1 << 31 | 3;
    pub const ERR_UNKNOWN: u32 = 1 << 31 | 6;
    pub const ERR_TOO_BIG: u32 = 1 << 31 | 9;
}

pub mod info {
    pub const EXPORT: u16 = 0;
    pub const NAME: u16 = 1;
    pub const DESCRIPTION: u16 = 2;
    pub const BLOCK_SIZE: u16 = 3;
}

/// What an export can do.
pub mod transmission {
    pub const HAS_FLAGS: u16 = 1;
    pub const READ_ONLY: u16 = 1 << 1;
    pub const SEND_FLUSH: u16 = 1 << 2;
    pub const SEND_FUA: u16 = 1 << 3;
    pub const SEND_TRIM: u16 = 1 << 5;
    pub const SEND_WRITE_ZEROES: u16 = 1 << 6;
    pub const SEND_DF: u16 = 1 << 7;
    pub const CAN_MULTI_CONN: u16 = 1 << 8;
}

/// Of a request.
pub mod flag {
    pub const FUA: u16 = 1;
    pub const NO_HOLE: u16 = 1 << 1;
    pub const DF: u16 = 1 << 2;
    pub const REQ_ONE: u16 = 1 << 3;
}

pub mod chunk {
    pub const NONE: u16 = 0;
    pub const OFFSET_DATA: u16 = 1;
    pub const OFFSET_HOLE: u16 = 2;
    pub const BLOCK_STATUS: u16 = 5;
    pub const ERROR: u16 = 1 << 15 | 1;
    /// The last one of a reply.
    pub const DONE: u16 = 1;
}

/// Of the context `base:allocation`.
pub const ALLOCATION: &str = "base:allocation";
pub const ALLOCATION_ID: u32 = 1;
pub const STATE_HOLE: u32 = 1;
pub const STATE_ZERO: u32 = 1 << 1;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Command {
    Read,
    Write,
    Disconnect,
    Flush,
    Trim,
    WriteZeroes,
    BlockStatus,
    Other(u16),
}

/// What a client asks, once it has an export.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TransmissionRequest {
    pub flags: u16,
    pub command: Command,
    /// The client's own number of it.
    pub cookie: u64,
    pub offset: u64,
    pub bytes: u32,
}

impl TransmissionRequest {
    /// `None`: it begins with another number than a request.
    pub fn parse(bytes: &[u8; REQUEST_BYTES]) -> Option<TransmissionRequest> {
        let mut rest = Reader(bytes);
        if rest.u32()? != REQUEST_MAGIC {
            return None;
        }
        let (flags, command) = (rest.u16()?, rest.u16()?);
        let command = match command {
            0 => Command::Read,
            1 => Command::Write,
            2 => Command::Disconnect,
            3 => Command::Flush,
            4 => Command::Trim,
            6 => Command::WriteZeroes,
            7 => Command::BlockStatus,
            other => Command::Other(other),
        };
        Some(TransmissionRequest { flags, command, cookie: rest.u64()?, offset: rest.u64()?, bytes: rest.u32()? })
    }
}

/// From the front.
pub struct Reader<'a>(pub &'a [u8]);

impl<'a> Reader<'a> {
    pub fn take(&mut self, bytes: usize) -> Option<&'a [u8]> {
        let (front, rest) = self.0.split_at_checked(bytes)?;
        self.0 = rest;
        Some(front)
    }

    pub fn u16(&mut self) -> Option<u16> {
        self.take(2)?.try_into().ok().map(u16::from_be_bytes)
    }

    pub fn u32(&mut self) -> Option<u32> {
        self.take(4)?.try_into().ok().map(u32::from_be_bytes)
    }

    pub fn u64(&mut self) -> Option<u64> {
        self.take(8)?.try_into().ok().map(u64::from_be_bytes)
    }

    /// Its length, and text.
    pub fn text(&mut self) -> Option<&'a str> {
        let bytes = self.u32()? as usize;
        std::str::from_utf8(self.take(bytes)?).ok()
    }
}

pub fn put_option_reply(into: &mut Vec<u8>, option: u32, kind: u32, data: &[u8]) {
    into.extend_from_slice(&OPTION_REPLY_MAGIC.to_be_bytes());
    into.extend_from_slice(&option.to_be_bytes());
    into.extend_from_slice(&kind.to_be_bytes());
    into.extend_from_slice(&(data.len() as u32).to_be_bytes());
    into.extend_from_slice(data);
}

/// Followed by the data of a read that succeeded.
pub fn put_simple_reply(into: &mut AnswerBytes, cookie: u64, error: u32) {
    into.put(&SIMPLE_REPLY_MAGIC.to_be_bytes());
    into.put(&error.to_be_bytes());
    into.put(&cookie.to_be_bytes());
}

/// Followed by `bytes`.
pub fn put_chunk(into: &mut AnswerBytes, cookie: u64, (flags, kind): (u16, u16), bytes: u32) {
    into.put(&CHUNK_MAGIC.to_be_bytes());
    into.put(&flags.to_be_bytes());
    into.put(&kind.to_be_bytes());
    into.put(&cookie.to_be_bytes());
    into.put(&bytes.to_be_bytes());
}

/// The protocol's number.
pub fn error_number(errno: Errno) -> u32 {
    match errno {
        Errno::ROFS | Errno::ACCESS | Errno::PERM => 1,
        Errno::NOMEM => 12,
        Errno::INVAL | Errno::RANGE => 22,
        Errno::NOSPC | Errno::DQUOT => 28,
        Errno::OVERFLOW => 75,
        Errno::OPNOTSUPP => 95,
        Errno::SHUTDOWN => 108,
        _ => 5,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn request_is_read_as_the_protocol_has_it() {
        let mut bytes = [0; REQUEST_BYTES];
        let words: Vec<u8> = [
            &[0x25, 0x60, 0x95, 0x13, 0, 1, 0, 1][..],
            &7_u64.to_be_bytes(),
            &4096_u64.to_be_bytes(),
            &512_u32.to_be_bytes(),
        ]
        .concat();
        bytes.copy_from_slice(&words);
        let expected =
            TransmissionRequest { flags: flag::FUA, command: Command::Write, cookie: 7, offset: 4096, bytes: 512 };
        assert_eq!(TransmissionRequest::parse(&bytes), Some(expected));
        bytes[0] ^= 1;
        assert_eq!(TransmissionRequest::parse(&bytes), None);
    }

    #[test]
    fn replies_have_the_layout_of_the_protocol() {
        let mut bytes = AnswerBytes::default();
        put_simple_reply(&mut bytes, 9, 28);
        assert_eq!(bytes.bytes(), [0x67, 0x44, 0x66, 0x98, 0, 0, 0, 28, 0, 0, 0, 0, 0, 0, 0, 9]);
        bytes.clear();
        put_chunk(&mut bytes, 9, (chunk::DONE, chunk::OFFSET_DATA), 8);
        assert_eq!(bytes.bytes(), [0x66, 0x8e, 0x33, 0xef, 0, 1, 0, 1, 0, 0, 0, 0, 0, 0, 0, 9, 0, 0, 0, 8]);
    }
}
