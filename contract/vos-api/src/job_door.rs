//! What `on` asks the call gate of its node over the socket [`NAME`]: that a far end be started on another node, for
//! the process that asks (`docs/design/jobs.md`).
//!
//! One packet, and one answer. Who asks is what the kernel says of the packet's sender. Asked again it may start
//! another far end, which the deputy does not take.

use abi::Endpoint;

/// In the directory that programs see as `/run/dvs`.
pub const NAME: &str = "jobs";
/// Beside it: the container's nodes, a line each: position and name, and `here` of the node where it is read, `lost` of
/// one that the cluster has given up: nothing runs there any more.
pub const NODES_NAME: &str = "nodes";
/// The program, and what it is called as a deputy.
pub const PROGRAM: &str = "bin/on";
/// As programs see it.
pub const PROGRAM_INSIDE: &std::ffi::CStr = c"/run/dvs/bin/on";
/// What a far end is called; the first word of its command line.
pub const FAR_END: &str = "dvs-far-end";
/// Of a far end's environment: its deputy's endpoint, the token, the position of its deputy's node, and
/// [`WITH_TERMINAL`] if it shall have one; with spaces between.
pub const FAR_END_VARIABLE: &str = "DVS_FAR_END";
pub const WITH_TERMINAL: &str = "terminal";

const VERSION: u32 = 1;
/// Of a [`DoorRequest`].
pub const REQUEST_BYTES: usize = 28;
/// Of a [`DoorAnswer`].
pub const ANSWER_BYTES: usize = 12;

/// Where a job shall run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum JobPlace {
    /// A position among the container's nodes.
    Node(u32),
    /// One that answers, by chance.
    Any,
    /// The one with the fewest threads to run for each of its CPUs, and less than so many jobs of this node on it; 0:
    /// of however many.
    Least { most: u32 },
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DoorRequest {
    pub place: JobPlace,
    /// Where the deputy listens.
    pub deputy: Endpoint,
    /// What it knows its far end by.
    pub token: u64,
    /// The far end begins with a terminal, which the program inherits.
    pub with_terminal: bool,
}

/// The packet is none.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BadPacket;

macro_rules! refusals {
    ($($name:ident = $number:literal: $text:literal, $hint:literal;)*) => {
        /// Why no far end was started.
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        pub enum DoorRefusal {
            $(#[doc = $text] $name,)*
            /// The node could not make the process.
            Failed(u16),
        }

        impl DoorRefusal {
            fn number(self) -> u32 {
                match self {
                    $(DoorRefusal::$name => $number,)*
                    DoorRefusal::Failed(errno) => FAILED + u32::from(errno),
                }
            }

            fn of_number(number: u32) -> Option<DoorRefusal> {
                match number {
                    $($number => Some(DoorRefusal::$name),)*
                    _ => u16::try_from(number.checked_sub(FAILED)?).ok().map(DoorRefusal::Failed),
                }
            }

            /// For people: what is so, and what to try.
            pub fn words(self) -> (&'static str, &'static str) {
                match self {
                    $(DoorRefusal::$name => ($text, $hint),)*
                    DoorRefusal::Failed(_) => ("the node could not make the process", "dvs dc inspect, there"),
                }
            }
        }
    };
}

/// Refusals with an errno lie above it.
const FAILED: u32 = 1 << 16;

refusals! {
    NoSuchNode = 2: "the container has no such node", "on --list";
    Unreachable = 3: "the node cannot be reached", "on any, or again later";
    LostNode = 4: "the node is lost", "on any";
    Older = 5: "the node's dvs is older and knows no jobs", "updating it";
    SeveralUsers = 6: "a process with different user ids has no jobs on other nodes", "setpriv --reuid";
    SeveralGroups = 7: "a process with different group ids has no jobs on other nodes", "setpriv --regid";
    TooManyGroups = 8: "a process in more than 64 groups has no jobs on other nodes", "setpriv --groups";
    HasFilters = 9: "a process with seccomp filters of its own has no jobs on other nodes: they would not go along",
        "starting it outside of the sandbox";
    Nobody = 10: "the process that asks is none of the container's, or is gone", "running it in the container";
    OlderKernel = 11: "the kernel of this node does not say who asks", "Linux 6.5";
    Busy = 12: "too many jobs are being started", "again in a moment";
    NotUnderstood = 13: "the call gate does not understand the request", "restarting the container, which has an older 'on'";
    StrangeRoot = 14: "the root of the process that asks is no directory that another node finds", "dvs run --root, instead of chroot";
}

/// What becomes of a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DoorAnswer {
    /// On the node with this position there is a far end now, which comes to the deputy.
    Started(u32),
    /// It is this node: whoever asked can run the program himself.
    Here(u32),
    Refused(DoorRefusal),
}

const NODE: u32 = 0;
const ANY: u32 = 1;
const LEAST: u32 = 2;

impl DoorRequest {
    pub fn encode(&self) -> [u8; REQUEST_BYTES] {
        let (kind, node) = match self.place {
            JobPlace::Node(node) => (NODE, node),
            JobPlace::Any => (ANY, 0),
            JobPlace::Least { most } => (LEAST, most),
        };
        let mut bytes = [0; REQUEST_BYTES];
        let halves = [VERSION, kind, node, self.deputy.number(), u32::from(self.with_terminal)];
        let words = halves.iter().flat_map(|half| half.to_le_bytes()).chain(self.token.to_le_bytes());
        bytes.iter_mut().zip(words).for_each(|(place, byte)| *place = byte);
        bytes
    }

    /// # Errors
    /// The bytes are none of this version.
    pub fn decode(bytes: &[u8]) -> Result<DoorRequest, BadPacket> {
        let bytes: &[u8; REQUEST_BYTES] = bytes.try_into().map_err(|_| BadPacket)?;
        let (halves, token) = bytes.split_at(20);
        let mut halves = halves.chunks_exact(4).filter_map(|half| half.try_into().ok()).map(u32::from_le_bytes);
        let mut half = || halves.next().ok_or(BadPacket);
        if half()? != VERSION {
            return Err(BadPacket);
        }
        let place = match (half()?, half()?) {
            (NODE, node) => JobPlace::Node(node),
            (ANY, 0) => JobPlace::Any,
            (LEAST, most) => JobPlace::Least { most },
            _ => return Err(BadPacket),
        };
        let deputy = Endpoint::new(half()?).ok_or(BadPacket)?;
        let with_terminal = match half()? {
            0 => false,
            1 => true,
            _ => return Err(BadPacket),
        };
        let token = token.try_into().map(u64::from_le_bytes).map_err(|_| BadPacket)?;
        Ok(DoorRequest { place, deputy, token, with_terminal })
    }
}

impl DoorAnswer {
    pub fn encode(self) -> [u8; ANSWER_BYTES] {
        let (what, node) = match self {
            DoorAnswer::Started(node) => (0, node),
            DoorAnswer::Here(node) => (1, node),
            DoorAnswer::Refused(why) => (why.number(), 0),
        };
        let mut bytes = [0; ANSWER_BYTES];
        let halves = [VERSION, what, node].into_iter().flat_map(u32::to_le_bytes);
        bytes.iter_mut().zip(halves).for_each(|(place, byte)| *place = byte);
        bytes
    }

    /// # Errors
    /// The bytes are none of this version.
    pub fn decode(bytes: &[u8]) -> Result<DoorAnswer, BadPacket> {
        let bytes: &[u8; ANSWER_BYTES] = bytes.try_into().map_err(|_| BadPacket)?;
        let mut halves = bytes.chunks_exact(4).filter_map(|half| half.try_into().ok()).map(u32::from_le_bytes);
        match (halves.next(), halves.next(), halves.next()) {
            (Some(VERSION), Some(0), Some(node)) => Ok(DoorAnswer::Started(node)),
            (Some(VERSION), Some(1), Some(node)) => Ok(DoorAnswer::Here(node)),
            (Some(VERSION), Some(what), Some(0)) => {
                DoorRefusal::of_number(what).map(DoorAnswer::Refused).ok_or(BadPacket)
            }
            _ => Err(BadPacket),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_arrive_as_they_were_sent_and_others_are_refused() {
        let deputy = Endpoint::new(4711).expect("an endpoint");
        for place in [JobPlace::Node(7), JobPlace::Any, JobPlace::Least { most: 3 }] {
            let request = DoorRequest { place, deputy, token: 1 << 40, with_terminal: place == JobPlace::Any };
            let whole = request.encode();
            assert_eq!(DoorRequest::decode(&whole), Ok(request));
            for at in 0..whole.len() {
                assert_eq!(DoorRequest::decode(&whole[..at]), Err(BadPacket));
                let mut changed = whole;
                changed[at] ^= 0xff;
                if let Ok(read) = DoorRequest::decode(&changed) {
                    assert_eq!(read.encode(), changed, "byte {at}");
                }
            }
        }
        let refused = [DoorRefusal::Busy, DoorRefusal::Failed(0), DoorRefusal::Failed(u16::MAX)];
        let refused = refused.map(DoorAnswer::Refused);
        for answer in [DoorAnswer::Started(0), DoorAnswer::Here(62)].into_iter().chain(refused) {
            assert_eq!(DoorAnswer::decode(&answer.encode()), Ok(answer));
        }
        for what in (15..FAILED).step_by(997).chain([u32::MAX]) {
            let mut bytes = DoorAnswer::Started(0).encode();
            bytes[4..8].copy_from_slice(&what.to_le_bytes());
            assert_eq!(DoorAnswer::decode(&bytes), Err(BadPacket), "{what}");
        }
    }
}
