//! How a deputy asks for its far end, and how it learns where there can be one.

use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use abi::Endpoint;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use vos_api::job_door::{
    ANSWER_BYTES, DoorAnswer, DoorRefusal, DoorRequest, FAR_END_VARIABLE, NAME, NODES_NAME, WITH_TERMINAL,
};

/// The broker's socket, in `/run/dvs`.
pub const BROKER: &str = "broker";
/// A keeper gives a launch 20 s; then a call gate has answered.
const ANSWER_LIMIT: Duration = Duration::from_secs(25);
/// While the call gate is being replaced it is asked again.
const AGAIN: Duration = Duration::from_millis(50);
/// Who asks without end keeps others out for so long at a time; longer than that they come again.
const BUSY_LIMIT: Duration = Duration::from_secs(10);
/// Between two looks whether a node is lost.
const LOOK: Duration = Duration::from_millis(50);
/// Of the list of nodes.
const NODES_BYTES_MAX: u64 = 64 << 10;

/// A node of the container.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct JobNode {
    pub position: u32,
    pub name: String,
    /// Whoever asks is there.
    pub is_here: bool,
    /// The cluster has given it up.
    pub is_lost: bool,
}

#[derive(Debug, thiserror::Error)]
pub enum DoorError {
    #[error("the list of the container's nodes cannot be read")]
    NoNodes(#[source] io::Error),
    #[error("nobody takes jobs for other nodes here")]
    NoDoor(#[source] io::Error),
    #[error("the call gate gave no answer within {} s", ANSWER_LIMIT.as_secs())]
    NoAnswer,
    #[error("the call gate says what this program does not understand")]
    Strange,
}

/// The container's nodes. `dir`: `/run/dvs`.
///
/// # Errors
/// There is no list: not in a container.
pub fn nodes(dir: &Path) -> Result<Vec<JobNode>, DoorError> {
    use io::Read;
    let mut text = String::new();
    let file = std::fs::File::open(dir.join(NODES_NAME)).map_err(DoorError::NoNodes)?;
    file.take(NODES_BYTES_MAX).read_to_string(&mut text).map_err(DoorError::NoNodes)?;
    let node = |line: &str| {
        let mut words = line.split(' ');
        let (position, name) = (words.next()?.parse().ok()?, words.next()?.to_owned());
        let state = words.next();
        Some(JobNode { position, name, is_here: state == Some("here"), is_lost: state == Some("lost") })
    };
    Ok(text.lines().filter_map(node).collect())
}

/// Whether the cluster has given up the node of a job's other end. A link that is cut alone says nothing.
#[derive(Clone, Debug)]
pub struct OtherNode {
    dir: PathBuf,
    position: u32,
    looked: Option<Instant>,
}

impl OtherNode {
    /// `dir`: `/run/dvs`.
    pub fn new(dir: &Path, position: u32) -> OtherNode {
        OtherNode { dir: dir.to_owned(), position, looked: None }
    }

    /// Looks at most every [`LOOK`].
    pub fn is_lost(&mut self) -> bool {
        if self.looked.is_some_and(|at| at.elapsed() < LOOK) {
            return false;
        }
        self.looked = Some(Instant::now());
        let nodes = nodes(&self.dir).unwrap_or_default();
        nodes.iter().any(|node| node.position == self.position && node.is_lost)
    }
}

/// Asks for a far end. While there is no call gate, or one that dies with the question, it is asked again: a deputy
/// takes one far end alone.
///
/// # Errors
/// There is nobody who could be asked, or he does not answer.
pub fn ask(dir: &Path, request: &DoorRequest) -> Result<DoorAnswer, DoorError> {
    let request = request.encode();
    let begun = Instant::now();
    let until = begun + ANSWER_LIMIT;
    loop {
        let socket = sys::seqpacket::connect_within(&dir.join(NAME), until.saturating_duration_since(Instant::now()));
        let socket = socket.map_err(DoorError::NoDoor)?;
        let answer =
            sys::seqpacket::send(&socket, &request, &[] as &[OwnedFd]).ok().and_then(|()| hear(&socket, until));
        let answer = answer.map(|bytes| DoorAnswer::decode(&bytes).map_err(|_| DoorError::Strange)).transpose()?;
        match answer {
            Some(DoorAnswer::Refused(DoorRefusal::Busy)) if begun.elapsed() < BUSY_LIMIT => std::thread::sleep(AGAIN),
            Some(answer) => return Ok(answer),
            None if Instant::now() >= until => return Err(DoorError::NoAnswer),
            None => std::thread::sleep(AGAIN),
        }
    }
}

/// `None`: nobody answers on this socket any more, or not in time.
fn hear(socket: &OwnedFd, until: Instant) -> Option<Vec<u8>> {
    let mut packet = [0; ANSWER_BYTES];
    loop {
        match sys::seqpacket::receive(socket, &mut packet) {
            Ok(received) if received.bytes == 0 => return None,
            Ok(received) => return packet.get(..received.bytes).map(<[u8]>::to_vec),
            Err(cause) if cause.kind() == io::ErrorKind::WouldBlock => {
                let left = Timespec::try_from(until.saturating_duration_since(Instant::now())).ok()?;
                match poll(&mut [PollFd::new(socket, PollFlags::IN)], Some(&left)) {
                    Ok(0) => return None,
                    Ok(_) | Err(Errno::INTR) => {}
                    Err(_) => return None,
                }
            }
            Err(_) => return None,
        }
    }
}

/// What a far end begins with.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FarEndOrder {
    pub deputy: Endpoint,
    /// Makes it welcome there.
    pub token: u64,
    /// Position of the deputy's node.
    pub origin: u32,
    pub with_terminal: bool,
}

impl FarEndOrder {
    /// As the keeper says it. `None`: nobody started this process as a far end.
    pub fn from_environment() -> Option<FarEndOrder> {
        let text = std::env::var(FAR_END_VARIABLE).ok()?;
        let mut words = text.split(' ');
        let deputy = Endpoint::new(words.next()?.parse().ok()?)?;
        let (token, origin) = (words.next()?.parse().ok()?, words.next()?.parse().ok()?);
        Some(FarEndOrder { deputy, token, origin, with_terminal: words.next() == Some(WITH_TERMINAL) })
    }
}

/// The words of a refusal for people.
pub fn refusal_words(why: DoorRefusal) -> (String, &'static str) {
    let (what, hint) = why.words();
    match why {
        DoorRefusal::Failed(errno) => (format!("{what}: {}", io::Error::from_raw_os_error(i32::from(errno))), hint),
        _ => (what.to_owned(), hint),
    }
}
