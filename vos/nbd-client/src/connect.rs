//! From an address to a connection on which blocks are read and written.

use std::io::{self, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use nbd::{
    ALLOCATION, FIXED_NEWSTYLE, GREETING, NO_ZEROES, NbdPlace, NbdUri, OPTION_REPLY_MAGIC, Reader, info, option,
    put_option, put_text, reply, transmission,
};
use rustix::net::sockopt;

/// Until the server has said what it offers.
const PATIENCE: Duration = Duration::from_secs(10);
/// A machine from which nothing comes for so long is lost, when nobody waits for an answer.
const SILENCE: Duration = Duration::from_secs(30);
/// When a request is not even taken for so long. A server may be slow for a while.
const DEAF: Duration = Duration::from_secs(180);
/// Of one answer to an option.
const ANSWER_BYTES_MAX: u32 = 64 << 10;
/// Of answers to one option.
const ANSWERS_MAX: usize = 64;

#[derive(Debug, thiserror::Error)]
pub enum NbdError {
    #[error("nobody can be reached at {place}")]
    Unreachable {
        place: String,
        #[source]
        cause: io::Error,
    },
    #[error("the connection ended while the export was chosen")]
    Ended(#[from] io::Error),
    #[error("who answers there is no NBD server of today ({0})")]
    NoServer(&'static str),
    #[error("the server has no export '{0}'")]
    NoExport(String),
    #[error("the server demands an encrypted connection, which is not made")]
    Encrypted,
    #[error("the server refuses the export: {0}")]
    Refused(String),
    #[error("the export has {0} bytes, which is no multiple of 4,096 above 0")]
    BadSize(u64),
    #[error("the server wants blocks of {0} bytes; 4,096 and less are possible")]
    Blocks(u32),
}

/// What a server offers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Offer {
    pub bytes: u64,
    /// As [`transmission`] has them.
    pub flags: u16,
    /// Of one request.
    pub bytes_max: u32,
    /// Answers may come in pieces.
    pub is_structured: bool,
    /// Number of the context that tells holes from data.
    pub allocation: Option<u32>,
}

impl Offer {
    pub fn has(&self, flag: u16) -> bool {
        self.flags & flag != 0
    }

    /// As options of a process that is given the connection.
    pub fn words(&self) -> [(&'static str, u64); 5] {
        [
            ("nbd_bytes", self.bytes),
            ("nbd_flags", self.flags.into()),
            ("nbd_bytes_max", self.bytes_max.into()),
            ("nbd_structured", self.is_structured.into()),
            // One more, so that none is zero.
            ("nbd_allocation", self.allocation.map_or(0, |number| u64::from(number) + 1)),
        ]
    }

    /// From what [`Offer::words`] gave; `None`: these are none.
    pub fn from_words(word: impl Fn(&str) -> Option<u64>) -> Option<Offer> {
        let allocation = word("nbd_allocation")?.checked_sub(1).map(u32::try_from).transpose().ok()?;
        let bytes_max = word("nbd_bytes_max")?.try_into().ok().filter(|bytes| *bytes >= BLOCK_BYTES)?;
        let flags = word("nbd_flags")?.try_into().ok()?;
        Some(Offer {
            bytes: word("nbd_bytes")?,
            flags,
            bytes_max,
            is_structured: word("nbd_structured")? == 1,
            allocation,
        })
    }

    /// Whether a flush makes durable what was written before over other connections.
    pub fn is_one_for_all_connections(&self) -> bool {
        self.has(transmission::CAN_MULTI_CONN)
    }

    /// Whether what was written can be made durable at all.
    pub fn can_flush(&self) -> bool {
        self.has(transmission::SEND_FLUSH)
    }

    pub fn is_read_only(&self) -> bool {
        self.has(transmission::READ_ONLY)
    }
}

/// What [`NbdVolume`](crate::NbdVolume) is made of; may be handed to another process.
#[derive(Debug)]
pub struct NbdConnection {
    pub socket: OwnedFd,
    pub offer: Offer,
}

/// Of each address that a name has, the first one that answers.
///
/// # Errors
/// Nobody there, or no such export: nothing is left open.
pub fn connect(uri: &NbdUri) -> Result<NbdConnection, NbdError> {
    let unreachable = |place: String| move |cause| NbdError::Unreachable { place, cause };
    let socket: OwnedFd = match &uri.place {
        NbdPlace::Unix(path) => UnixStream::connect(path).map_err(unreachable(path.display().to_string()))?.into(),
        NbdPlace::Tcp(host, port) => dial(host, *port).map_err(unreachable(format!("{host}:{port}")))?.into(),
    };
    // What a request has no answer to is waited for without a limit afterwards; that there is nobody, the kernel sees.
    set_limit(&socket, Some(PATIENCE))?;
    let mut stream = Patient { stream: std::fs::File::from(socket), until: Instant::now() + PATIENCE };
    let offer = choose(&mut stream, &uri.export).map_err(|error| match error {
        NbdError::Ended(cause) if cause.kind() == io::ErrorKind::WouldBlock => NbdError::NoServer("it says nothing"),
        other => other,
    })?;
    let socket = OwnedFd::from(stream.stream);
    set_limit(&socket, None)?;
    Ok(NbdConnection { socket, offer })
}

/// Ends with all that is left unsaid, however slowly the other side speaks.
struct Patient {
    stream: std::fs::File,
    until: Instant,
}

impl Read for Patient {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        if Instant::now() > self.until { Err(io::ErrorKind::WouldBlock.into()) } else { self.stream.read(into) }
    }
}

impl Write for Patient {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        if Instant::now() > self.until { Err(io::ErrorKind::WouldBlock.into()) } else { self.stream.write(data) }
    }

    fn flush(&mut self) -> io::Result<()> {
        self.stream.flush()
    }
}

fn dial(host: &str, port: u16) -> io::Result<TcpStream> {
    let mut last = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
    for address in (host, port).to_socket_addrs()? {
        match TcpStream::connect_timeout(&address, PATIENCE) {
            Ok(stream) => {
                stream.set_nodelay(true)?;
                watch(&stream)?;
                return Ok(stream);
            }
            Err(error) => last = error,
        }
    }
    Err(last)
}

/// A machine that vanished is noticed, whether it owes something or not.
fn watch(stream: &TcpStream) -> io::Result<()> {
    sockopt::set_socket_keepalive(stream, true)?;
    sockopt::set_tcp_keepidle(stream, SILENCE / 2)?;
    sockopt::set_tcp_keepintvl(stream, SILENCE / 6)?;
    sockopt::set_tcp_keepcnt(stream, 3)?;
    Ok(sockopt::set_tcp_user_timeout(stream, DEAF.as_millis() as u32)?)
}

fn set_limit(socket: impl AsFd, limit: Option<Duration>) -> io::Result<()> {
    sockopt::set_socket_timeout(&socket, sockopt::Timeout::Recv, limit)?;
    Ok(sockopt::set_socket_timeout(&socket, sockopt::Timeout::Send, limit)?)
}

/// Fixed newstyle negotiation. Pure but for the stream.
fn choose(stream: &mut (impl Read + Write), export: &str) -> Result<Offer, NbdError> {
    let greeting: [u8; 18] = get(stream)?;
    let (magic, flags) = greeting.split_at(GREETING.len());
    let flags = Reader(flags).u16().unwrap_or(0);
    if magic != GREETING || flags & FIXED_NEWSTYLE == 0 {
        return Err(NbdError::NoServer("it does not greet as one"));
    }
    let answer = u32::from(FIXED_NEWSTYLE | flags & NO_ZEROES);
    stream.write_all(&answer.to_be_bytes())?;

    let is_structured = ask(stream, option::STRUCTURED_REPLY, &[])?.is_acknowledged();
    let allocation = if is_structured { choose_allocation(stream, export)? } else { None };
    let mut wanted = Vec::new();
    put_text(&mut wanted, export);
    wanted.extend_from_slice(&1_u16.to_be_bytes());
    wanted.extend_from_slice(&info::BLOCK_SIZE.to_be_bytes());
    let answers = ask(stream, option::GO, &wanted)?;
    match answers.last {
        reply::ACK => {}
        reply::ERR_UNKNOWN => return Err(NbdError::NoExport(export.to_owned())),
        reply::ERR_TLS_REQD => return Err(NbdError::Encrypted),
        _ => return Err(NbdError::Refused(answers.why())),
    }
    let (mut about, mut bytes_max) = (None, nbd::TRANSFER_BYTES_MAX);
    for data in answers.of(reply::INFO) {
        let mut data = Reader(data);
        match data.u16() {
            Some(info::EXPORT) => about = data.u64().zip(data.u16()),
            Some(info::BLOCK_SIZE) => {
                let sizes = (data.u32(), data.u32(), data.u32());
                let (Some(least), _, Some(most)) = sizes else { return Err(NbdError::NoServer("sizes of blocks")) };
                if least > BLOCK_BYTES || most < BLOCK_BYTES {
                    return Err(NbdError::Blocks(least));
                }
                bytes_max = bytes_max.min(most - most % BLOCK_BYTES);
            }
            _ => {}
        }
    }
    let (bytes, flags) = about.ok_or(NbdError::NoServer("it does not say how large the export is"))?;
    if bytes == 0 || bytes % u64::from(BLOCK_BYTES) != 0 {
        return Err(NbdError::BadSize(bytes));
    }
    Ok(Offer { bytes, flags, bytes_max, is_structured, allocation })
}

const BLOCK_BYTES: u32 = 4096;

/// `None`: the server does not tell holes from data.
fn choose_allocation(stream: &mut (impl Read + Write), export: &str) -> Result<Option<u32>, NbdError> {
    let mut wanted = Vec::new();
    put_text(&mut wanted, export);
    wanted.extend_from_slice(&1_u32.to_be_bytes());
    put_text(&mut wanted, ALLOCATION);
    let answers = ask(stream, option::SET_META_CONTEXT, &wanted)?;
    let mut contexts = answers.of(reply::META_CONTEXT).filter_map(|data| Some((Reader(data).u32()?, data.get(4..)?)));
    Ok(contexts.find(|(_, name)| *name == ALLOCATION.as_bytes()).map(|(number, _)| number))
}

/// All answers to one option.
struct Answers {
    /// What ended them.
    last: u32,
    all: Vec<(u32, Vec<u8>)>,
}

impl Answers {
    fn is_acknowledged(&self) -> bool {
        self.last == reply::ACK
    }

    fn of(&self, kind: u32) -> impl Iterator<Item = &[u8]> {
        self.all.iter().filter(move |(is, _)| *is == kind).map(|(_, data)| data.as_slice())
    }

    /// What the server says of a refusal.
    fn why(&self) -> String {
        let text = self.of(self.last).next().map(|data| String::from_utf8_lossy(data).trim().to_owned());
        let shown: String = text.unwrap_or_default().chars().filter(|one| !one.is_control()).take(200).collect();
        if shown.is_empty() { format!("error {}", self.last & !(1 << 31)) } else { shown }
    }
}

fn ask(stream: &mut (impl Read + Write), option: u32, data: &[u8]) -> Result<Answers, NbdError> {
    let mut request = Vec::new();
    put_option(&mut request, option, data);
    stream.write_all(&request)?;
    let mut all = Vec::new();
    loop {
        let head: [u8; 20] = get(stream)?;
        let mut head = Reader(&head);
        let (magic, of, kind, bytes) = (head.u64(), head.u32(), head.u32(), head.u32());
        let (Some(OPTION_REPLY_MAGIC), Some(kind), Some(bytes)) = (magic, kind, bytes) else {
            return Err(NbdError::NoServer("an answer that is none"));
        };
        if of != Some(option) || bytes > ANSWER_BYTES_MAX || all.len() == ANSWERS_MAX {
            return Err(NbdError::NoServer("an answer to something else"));
        }
        let mut data = vec![0; bytes as usize];
        stream.read_exact(&mut data)?;
        all.push((kind, data));
        if kind == reply::ACK || kind >> 31 == 1 {
            return Ok(Answers { last: kind, all });
        }
    }
}

fn get<const N: usize>(stream: &mut impl Read) -> Result<[u8; N], NbdError> {
    let mut bytes = [0; N];
    stream.read_exact(&mut bytes)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A server that has said everything already.
    struct Said {
        answers: io::Cursor<Vec<u8>>,
        heard: Vec<u8>,
    }

    impl Read for Said {
        fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
            self.answers.read(into)
        }
    }

    impl Write for Said {
        fn write(&mut self, data: &[u8]) -> io::Result<usize> {
            self.heard.extend_from_slice(data);
            Ok(data.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn chosen(answers: &[(u32, u32, &[u8])]) -> Result<Offer, NbdError> {
        let mut said = [&GREETING[..], &FIXED_NEWSTYLE.to_be_bytes()].concat();
        answers.iter().for_each(|(option, kind, data)| nbd::put_option_reply(&mut said, *option, *kind, data));
        choose(&mut Said { answers: io::Cursor::new(said), heard: Vec::new() }, "disk")
    }

    #[test]
    fn old_servers_offer_less() {
        let export = [&info::EXPORT.to_be_bytes()[..], &8192_u64.to_be_bytes(), &1_u16.to_be_bytes()].concat();
        let offer = chosen(&[
            (option::STRUCTURED_REPLY, reply::ERR_UNSUP, b""),
            (option::GO, reply::INFO, &export),
            (option::GO, reply::ACK, b""),
        ]);
        let expected =
            Offer { bytes: 8192, flags: 1, bytes_max: nbd::TRANSFER_BYTES_MAX, is_structured: false, allocation: None };
        assert_eq!(offer.expect("an offer"), expected);
    }

    #[test]
    fn offer_reaches_another_process_as_it_is() {
        for allocation in [None, Some(0), Some(u32::MAX)] {
            let offer = Offer { bytes: 1 << 40, flags: 0xffff, bytes_max: 4096, is_structured: true, allocation };
            let words = offer.words();
            let word = |name: &str| words.iter().find(|(known, _)| *known == name).map(|(_, value)| *value);
            assert_eq!(Offer::from_words(word), Some(offer));
            assert_eq!(Offer::from_words(|name| word(name).filter(|_| name != "nbd_flags")), None);
        }
    }

    #[test]
    fn refusals_are_told_apart_and_shown_without_what_would_hurt_a_terminal() {
        let refused = |kind, text: &[u8]| {
            chosen(&[(option::STRUCTURED_REPLY, reply::ERR_UNSUP, b""), (option::GO, kind, text)]).expect_err("refused")
        };
        assert!(matches!(refused(reply::ERR_UNKNOWN, b""), NbdError::NoExport(name) if name == "disk"));
        assert!(matches!(refused(reply::ERR_TLS_REQD, b""), NbdError::Encrypted));
        let NbdError::Refused(text) = refused(reply::ERR_INVALID, b"no\x1b[31m way") else { panic!("a refusal") };
        assert_eq!(text, "no[31m way");
    }

    #[test]
    fn garbage_is_refused_at_once() {
        assert!(matches!(chosen(&[(option::GO, reply::ACK, b"")]), Err(NbdError::NoServer(_))), "another option");
        let endless = [(option::STRUCTURED_REPLY, reply::INFO, &b""[..]); ANSWERS_MAX + 1];
        assert!(matches!(chosen(&endless), Err(NbdError::NoServer(_))));
        for bytes in [&b"HTTP/1.1 400 Bad Request\r\n\r\n"[..], b"NBDMAGIC\x00\x00\x42\x02\x81\x86\x12\x53\x00\x00"] {
            let mut said = Said { answers: io::Cursor::new(bytes.to_vec()), heard: Vec::new() };
            assert!(matches!(choose(&mut said, ""), Err(NbdError::NoServer(_))));
        }
    }
}
