//! A job that runs on another node than the program that started it, which stays as its *deputy*
//! (`docs/design/jobs.md`).
//!
//! The deputy serves, the job's *far end* asks: whose program it is, what its streams say, what shall be done to it.
//! The session number of the greeting is a secret that only the far end was told. Every operation may be repeated:
//! bytes of a stream, orders and news are numbered, so that none is lost or comes twice when a ring is replaced by
//! another one.

use crate::operation::{Empty, operations, replies, words};

/// Bytes of a stream in one request.
pub const PIECE_BYTES_MAX: u32 = 256 << 10;
/// Pieces of one half of a stream that may be under way.
pub const AHEAD: usize = 4;
/// Streams of a job.
pub const STREAMS_MAX: usize = 12;
/// Of a [`Description`] as it travels: arguments and environment may have what `execve` takes by default.
pub const DESCRIPTION_BYTES_MAX: usize = 4 << 20;

operations! {
    enum Request;

    /// Reply data: the [`Description`] from byte `at` on, as much as there is room for.
    DESCRIBE = 16: repeatable Describe { at: u64 } -> Described [];

    /// Bytes of a stream that the deputy reads; the answer comes when there are some. `piece`: their number, from 0 on;
    /// [`AHEAD`] may be asked for at a time, and the last [`AHEAD`] again. No reply data: it has ended.
    READ = 17: repeatable Read { stream: u32, piece: u64 } -> Empty [BadHandle];

    /// Bytes for a stream that the deputy writes; the answer comes when they are written. `at`: how many went before.
    /// [`AHEAD`] may be under way, in their order. `EPIPE`: nobody reads them.
    WRITE = 18: repeatable Write { stream: u32, at: u64 } -> Empty [BadHandle, BrokenPipe, NoSpace];

    /// The program is done with this half of a stream.
    SHUT = 19: repeatable Shut { half: Half, stream: u32 } -> Empty [];

    /// The next order; the answer comes when there is one. `after`: how many were heard.
    NEXT = 20: repeatable Next { after: u64 } -> Order [];

    /// News of the program, in the order of their numbers, from 1 on.
    SAY = 21: repeatable Say { news: News, number: u64, value: u64 } -> Empty [];

    /// The program, which has ended, left a file of the tree at this offset.
    SEEK = 22: repeatable Seek { stream: u32, at: u64 } -> Empty [BadHandle];
}

replies! {
    Described {
        /// Bytes of the whole.
        bytes
    };
    Order {
        number,
        /// [`ORDER_SIGNAL`] or [`ORDER_SIGNAL_ALL`].
        kind,
        /// Which signal.
        value
    };
}

words! {
    /// Of a stream, as the deputy sees it.
    enum Half: u16 {
        /// Nobody wants to read any more: the deputy stops reading.
        Reading = 0,
        /// There is nothing more to write.
        Writing = 1,
    }

    /// What became of the program.
    enum News: u16 {
        /// `value`: its process number.
        Began = 0,
        /// It cannot begin. `value`: errno; the deputy says what a shell says.
        Refused = 1,
        /// `value`: by which signal.
        Stopped = 2,
        Continued = 3,
        /// `value`: exit status.
        Exited = 4,
        /// `value`: by which signal.
        Killed = 5,
    }
}

/// Of [`Order`]: a signal for the program's process.
pub const ORDER_SIGNAL: u64 = 0;
/// Of [`Order`]: a signal for its process group.
pub const ORDER_SIGNAL_ALL: u64 = 1;
/// Of [`Order`]: the terminal has another size, as of [`JobTerminal`].
pub const ORDER_RESIZE: u64 = 2;

/// What shall run: all that a program inherits.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Description {
    /// The first is the program, looked for in `PATH` as a shell does.
    pub arguments: Vec<Vec<u8>>,
    /// `K=V` each.
    pub environment: Vec<Vec<u8>>,
    pub directory: Vec<u8>,
    pub umask: u32,
    /// Bit *n - 1*: signal *n* is ignored.
    pub ignored: u64,
    /// Bit *n - 1*: signal *n* is blocked.
    pub blocked: u64,
    /// Resource, soft and hard limit, as `prlimit` numbers them.
    pub limits: Vec<(u32, u64, u64)>,
    /// In order of their descriptors; the index is the stream's number.
    pub streams: Vec<JobStream>,
    /// With a stream that is one.
    pub terminal: Option<JobTerminal>,
}

/// One descriptor of the program.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct JobStream {
    pub descriptor: u32,
    pub kind: StreamKind,
    /// A far end that can have the very file opens it; else bytes are carried.
    pub file: JobFile,
}

/// What a stream is in the container's tree.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub enum JobFile {
    #[default]
    None,
    /// A file that has this name and number.
    Named { path: Vec<u8>, inode: u64, flags: u32, offset: u64 },
    /// The same open file as an earlier stream.
    Same(u32),
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum StreamKind {
    /// The deputy reads, the program reads.
    Input,
    /// The deputy writes, the program writes.
    Output,
    /// Of a socket.
    Both,
    /// `/dev/null`, opened there.
    Null,
    /// The terminal. Of the first one bytes are carried, both ways unless input is none.
    Terminal,
    /// The terminal, of which nothing is read.
    Screen,
}

impl StreamKind {
    pub fn is_read(self) -> bool {
        matches!(self, StreamKind::Input | StreamKind::Both | StreamKind::Terminal)
    }

    pub fn is_written(self) -> bool {
        matches!(self, StreamKind::Output | StreamKind::Both | StreamKind::Terminal | StreamKind::Screen)
    }
}

impl StreamKind {
    pub fn is_terminal(self) -> bool {
        matches!(self, StreamKind::Terminal | StreamKind::Screen)
    }
}

/// Special keys of a terminal.
pub const TERMINAL_CODES: usize = 17;

/// What the program's terminal is like.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct JobTerminal {
    /// Rows · 65,536 + columns.
    pub size: u64,
    /// Of input, output, control and local, as `termios(3)` numbers them.
    pub modes: [u32; 4],
    /// [`TERMINAL_CODES`] of them.
    pub codes: Vec<u8>,
}

/// The bytes are no description.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BadDescription;

impl Description {
    /// Numbers are little-endian; lists and strings come after their lengths (`u32`).
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        let strings = |out: &mut Vec<u8>, all: &[Vec<u8>]| {
            put(out, all.len());
            for one in all {
                put(out, one.len());
                out.extend_from_slice(one);
            }
        };
        strings(&mut out, &self.arguments);
        strings(&mut out, &self.environment);
        strings(&mut out, std::slice::from_ref(&self.directory));
        out.extend_from_slice(&self.umask.to_le_bytes());
        out.extend_from_slice(&self.ignored.to_le_bytes());
        out.extend_from_slice(&self.blocked.to_le_bytes());
        put(&mut out, self.limits.len());
        for (resource, soft, hard) in &self.limits {
            out.extend_from_slice(&resource.to_le_bytes());
            out.extend_from_slice(&soft.to_le_bytes());
            out.extend_from_slice(&hard.to_le_bytes());
        }
        put(&mut out, self.streams.len());
        for stream in &self.streams {
            out.extend_from_slice(&stream.descriptor.to_le_bytes());
            put(
                &mut out,
                match stream.kind {
                    StreamKind::Input => 0,
                    StreamKind::Output => 1,
                    StreamKind::Both => 2,
                    StreamKind::Null => 3,
                    StreamKind::Terminal => 4,
                    StreamKind::Screen => 5,
                },
            );
            match &stream.file {
                JobFile::None => put(&mut out, 0),
                JobFile::Named { path, inode, flags, offset } => {
                    put(&mut out, 1);
                    strings(&mut out, std::slice::from_ref(path));
                    out.extend_from_slice(&inode.to_le_bytes());
                    out.extend_from_slice(&flags.to_le_bytes());
                    out.extend_from_slice(&offset.to_le_bytes());
                }
                JobFile::Same(stream) => {
                    put(&mut out, 2);
                    out.extend_from_slice(&stream.to_le_bytes());
                }
            }
        }
        put(&mut out, usize::from(self.terminal.is_some()));
        if let Some(terminal) = &self.terminal {
            out.extend_from_slice(&terminal.size.to_le_bytes());
            terminal.modes.iter().for_each(|mode| out.extend_from_slice(&mode.to_le_bytes()));
            put(&mut out, terminal.codes.len());
            out.extend_from_slice(&terminal.codes);
        }
        out
    }

    /// # Errors
    /// The bytes are none, or more than a program may have.
    pub fn decode(bytes: &[u8]) -> Result<Description, BadDescription> {
        if bytes.len() > DESCRIPTION_BYTES_MAX {
            return Err(BadDescription);
        }
        let mut rest = Rest(bytes);
        let arguments = rest.strings()?;
        let environment = rest.strings()?;
        let mut directories = rest.strings()?;
        let directory = directories.pop().ok_or(BadDescription)?;
        let (umask, ignored, blocked) = (rest.half()?, rest.word()?, rest.word()?);
        let limits = (0..rest.count(20)?).map(|_| Ok((rest.half()?, rest.word()?, rest.word()?)));
        let limits = limits.collect::<Result<Vec<_>, BadDescription>>()?;
        let streams = (0..rest.count(12)?).map(|number| {
            let descriptor = rest.half()?;
            let kind = match rest.half()? {
                0 => StreamKind::Input,
                1 => StreamKind::Output,
                2 => StreamKind::Both,
                3 => StreamKind::Null,
                4 => StreamKind::Terminal,
                5 => StreamKind::Screen,
                _ => return Err(BadDescription),
            };
            Ok(JobStream { descriptor, kind, file: rest.file(number)? })
        });
        let streams = streams.collect::<Result<Vec<_>, BadDescription>>()?;
        let terminal = match rest.half()? {
            0 => None,
            1 => Some(rest.terminal()?),
            _ => return Err(BadDescription),
        };
        if terminal.is_some() != streams.iter().any(|stream| stream.kind.is_terminal()) {
            return Err(BadDescription);
        }
        let is_whole = rest.0.is_empty() && directories.is_empty() && streams.len() <= STREAMS_MAX;
        let has_nul = arguments.iter().chain(&environment).chain([&directory]).any(|text| text.contains(&0));
        if !is_whole || has_nul || arguments.is_empty() {
            return Err(BadDescription);
        }
        Ok(Description { arguments, environment, directory, umask, ignored, blocked, limits, streams, terminal })
    }
}

fn put(out: &mut Vec<u8>, count: usize) {
    // What is longer than this is longer than a description may be.
    out.extend_from_slice(&u32::try_from(count).unwrap_or(u32::MAX).to_le_bytes());
}

struct Rest<'a>(&'a [u8]);

impl<'a> Rest<'a> {
    fn take(&mut self, bytes: usize) -> Result<&'a [u8], BadDescription> {
        let (taken, rest) = self.0.split_at_checked(bytes).ok_or(BadDescription)?;
        self.0 = rest;
        Ok(taken)
    }

    fn half(&mut self) -> Result<u32, BadDescription> {
        Ok(u32::from_le_bytes(self.take(4)?.try_into().map_err(|_| BadDescription)?))
    }

    fn word(&mut self) -> Result<u64, BadDescription> {
        Ok(u64::from_le_bytes(self.take(8)?.try_into().map_err(|_| BadDescription)?))
    }

    /// Of a list whose members have `bytes` bytes at least: no more than there is room for.
    fn count(&mut self, bytes: usize) -> Result<u32, BadDescription> {
        let count = self.half()?;
        (count as usize <= self.0.len() / bytes).then_some(count).ok_or(BadDescription)
    }

    fn file(&mut self, stream: u32) -> Result<JobFile, BadDescription> {
        match self.half()? {
            0 => Ok(JobFile::None),
            1 => {
                let mut paths = self.strings()?;
                let path = paths.pop().filter(|path| !path.contains(&0)).ok_or(BadDescription)?;
                let (inode, flags, offset) = (self.word()?, self.half()?, self.word()?);
                if paths.is_empty() { Ok(JobFile::Named { path, inode, flags, offset }) } else { Err(BadDescription) }
            }
            2 => Ok(JobFile::Same(self.half().ok().filter(|same| *same < stream).ok_or(BadDescription)?)),
            _ => Err(BadDescription),
        }
    }

    fn terminal(&mut self) -> Result<JobTerminal, BadDescription> {
        let size = self.word()?;
        let modes = [self.half()?, self.half()?, self.half()?, self.half()?];
        let count = self.half()? as usize;
        let codes = (count == TERMINAL_CODES).then(|| self.take(count)).ok_or(BadDescription)??.to_vec();
        Ok(JobTerminal { size, modes, codes })
    }

    fn strings(&mut self) -> Result<Vec<Vec<u8>>, BadDescription> {
        (0..self.count(4)?)
            .map(|_| {
                let bytes = self.half()?;
                self.take(bytes as usize).map(<[u8]>::to_vec)
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn some() -> Description {
        let file = JobFile::Named { path: b"/dc/a".to_vec(), inode: 9, flags: 2, offset: 1 << 40 };
        Description {
            arguments: vec![b"cat".to_vec(), b"".to_vec()],
            environment: vec![b"A=\xff".to_vec()],
            directory: b"/dc".to_vec(),
            umask: 0o22,
            ignored: 1,
            blocked: 1 << 63,
            limits: vec![(7, 1024, u64::MAX)],
            streams: vec![
                JobStream { descriptor: 0, kind: StreamKind::Input, file: file.clone() },
                JobStream { descriptor: 1, kind: StreamKind::Output, file: JobFile::Same(0) },
                JobStream { descriptor: 2, kind: StreamKind::Null, file: JobFile::None },
                JobStream { descriptor: 9, kind: StreamKind::Both, file: JobFile::None },
                JobStream { descriptor: 10, kind: StreamKind::Screen, file: JobFile::None },
                JobStream { descriptor: 11, kind: StreamKind::Terminal, file: JobFile::None },
            ],
            terminal: Some(JobTerminal { size: 24 << 16 | 80, modes: [1, 2, 3, 4], codes: vec![7; TERMINAL_CODES] }),
        }
    }

    #[test]
    fn description_arrives_as_it_was_sent() {
        assert_eq!(Description::decode(&some().encode()), Ok(some()));
    }

    #[test]
    fn bytes_that_are_none_are_refused_whatever_they_are() {
        let whole = some().encode();
        for end in 0..whole.len() {
            assert_eq!(Description::decode(&whole[..end]), Err(BadDescription), "cut at {end}");
        }
        for at in 0..whole.len() {
            for value in [0, 1, 0x7f, 0xff] {
                let mut changed = whole.clone();
                changed[at] = value;
                // Whatever comes out goes in again.
                if let Ok(read) = Description::decode(&changed) {
                    assert_eq!(read.encode(), changed, "byte {at}");
                }
            }
        }
        assert_eq!(Description::decode(&Description::default().encode()), Err(BadDescription), "nothing to run");
    }
}
