//! What an inode is, said by its number alone: the kind in the top byte, which one in the others.
//!
//! So a gate need not remember what an earlier one answered.

use sys::procfs::ProcessLink;

/// An inode of the file system.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ProcInode {
    Root,
    /// `self`. The kernel keeps a link's target for as long as the inode lives, so each look-up gives another one.
    Own(u64),
    /// `thread-self`, likewise.
    OwnThread(u64),
    /// A process or thread of this node: a link.
    Local(u32),
    /// Anything else that procfs has: a link. The number is [`name_number`].
    Native(u64),
    /// Directory `dvs`.
    Dvs,
    /// File `dvs/nodes`.
    DvsNodes,
    /// A process of another node: a directory.
    Remote(u32),
    RemoteFile(u32, Entry),
    /// Directory `fd` of a process of another node.
    Descriptors(u32),
    /// One of its links: of a descriptor, or in its own directory.
    Link(u32, ProcessLink),
}

macro_rules! entries {
    ($($name:ident = $number:literal $text:literal $mode:literal)*) => {
        /// A file of a process that is shown of processes of other nodes.
        #[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
        pub enum Entry { $($name = $number),* }

        impl Entry {
            pub const ALL: &[Entry] = &[$(Entry::$name),*];

            pub fn from_number(number: u8) -> Option<Entry> {
                match number { $($number => Some(Entry::$name),)* _ => None }
            }

            pub fn from_name(name: &[u8]) -> Option<Entry> {
                Entry::ALL.iter().copied().find(|entry| entry.name().as_bytes() == name)
            }

            pub const fn name(self) -> &'static str {
                match self { $(Entry::$name => $text),* }
            }

            /// Permissions, as procfs has them.
            pub const fn mode(self) -> u32 {
                match self { $(Entry::$name => $mode),* }
            }
        }
    };
}

entries! {
    Stat = 1 "stat" 0o444
    Status = 2 "status" 0o444
    Statm = 3 "statm" 0o444
    Cmdline = 4 "cmdline" 0o444
    Comm = 5 "comm" 0o444
    Environ = 6 "environ" 0o400
    Limits = 7 "limits" 0o444
    Io = 8 "io" 0o400
}

const PAYLOAD: u64 = (1 << 56) - 1;
/// Of process numbers, 22 bits on Linux.
const PID_BITS: u32 = 24;
/// Descriptors have 31 bits.
const PLACE_BITS: u32 = 31;
const _: () = assert!(PID_BITS + PLACE_BITS <= 56);

impl ProcInode {
    pub fn number(self) -> u64 {
        let number = |kind: u64, payload: u64| kind << 56 | payload & PAYLOAD;
        let of_process = |pid: u32, place: u32| u64::from(place) << PID_BITS | u64::from(pid);
        match self {
            ProcInode::Root => 1,
            ProcInode::Own(salt) => number(1, salt),
            ProcInode::OwnThread(salt) => number(2, salt),
            ProcInode::Local(pid) => number(3, pid.into()),
            ProcInode::Native(name) => number(4, name),
            ProcInode::Dvs => number(5, 0),
            ProcInode::DvsNodes => number(6, 0),
            ProcInode::Remote(pid) => number(7, pid.into()),
            ProcInode::RemoteFile(pid, entry) => number(8, of_process(pid, entry as u32)),
            ProcInode::Descriptors(pid) => number(9, pid.into()),
            ProcInode::Link(pid, ProcessLink::Descriptor(fd)) => number(10, of_process(pid, fd)),
            ProcInode::Link(pid, link) => {
                let [kind, _] = link.words();
                number(11, of_process(pid, kind))
            }
        }
    }

    /// `None`: no inode that a gate gave.
    pub fn from_number(number: u64) -> Option<ProcInode> {
        let (kind, payload) = (number >> 56, number & PAYLOAD);
        let pid = || u32::try_from(payload & ((1 << PID_BITS) - 1)).ok();
        let place = || u32::try_from(payload >> PID_BITS).ok();
        let node = match kind {
            0 if payload == 1 => ProcInode::Root,
            1 => ProcInode::Own(payload),
            2 => ProcInode::OwnThread(payload),
            3 => ProcInode::Local(u32::try_from(payload).ok()?),
            4 => ProcInode::Native(payload),
            5 => ProcInode::Dvs,
            6 => ProcInode::DvsNodes,
            7 => ProcInode::Remote(pid()?),
            8 => ProcInode::RemoteFile(pid()?, Entry::from_number(u8::try_from(place()?).ok()?)?),
            9 => ProcInode::Descriptors(pid()?),
            10 => ProcInode::Link(pid()?, ProcessLink::Descriptor(place()?)),
            11 => ProcInode::Link(pid()?, ProcessLink::of_words([place()?, 0])?),
            _ => return None,
        };
        (node.number() == number).then_some(node)
    }
}

/// The number of a name of procfs (FNV-1a). Names are found again by going over what procfs has.
pub fn name_number(name: &[u8]) -> u64 {
    let hash = name
        .iter()
        .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3));
    hash & PAYLOAD
}

/// A name that is a number as procfs writes it.
pub fn decimal(name: &[u8]) -> Option<u32> {
    let is_plain = matches!(name, [b'1'..=b'9', rest @ ..] if rest.iter().all(u8::is_ascii_digit)) || name == b"0";
    is_plain.then(|| std::str::from_utf8(name).ok()?.parse().ok()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_inode_is_found_by_its_number_again() {
        let pids = [0, 1, 65_536, 4_194_303];
        let mut nodes = vec![
            ProcInode::Root,
            ProcInode::Own(7),
            ProcInode::OwnThread(PAYLOAD),
            ProcInode::Dvs,
            ProcInode::DvsNodes,
        ];
        nodes.push(ProcInode::Native(name_number(b"meminfo")));
        for pid in pids {
            nodes.extend([ProcInode::Local(pid), ProcInode::Remote(pid), ProcInode::Descriptors(pid)]);
            nodes.extend(Entry::ALL.iter().map(|entry| ProcInode::RemoteFile(pid, *entry)));
            nodes.extend([0, 255, i32::MAX as u32].map(|fd| ProcInode::Link(pid, ProcessLink::Descriptor(fd))));
            nodes.extend(ProcessLink::NAMED.map(|link| ProcInode::Link(pid, link)));
        }
        for node in &nodes {
            assert_eq!(ProcInode::from_number(node.number()), Some(*node));
        }
        let mut numbers: Vec<u64> = nodes.iter().map(|node| node.number()).collect();
        numbers.sort_unstable();
        numbers.dedup();
        assert_eq!(numbers.len(), nodes.len(), "no two have one number");
    }

    #[test]
    fn numbers_that_no_gate_gave_are_nothing() {
        for number in [0, 2, 3 << 56 | 1 << 40, 5 << 56 | 1, 7 << 56 | 1 << 30, 8 << 56, 8 << 56 | 99 << 24, u64::MAX] {
            assert_eq!(ProcInode::from_number(number), None, "{number:x}");
        }
    }

    #[test]
    fn process_numbers_are_those_that_procfs_would_write() {
        let numbers: [(&[u8], _); 9] = [
            (b"0", Some(0)),
            (b"1", Some(1)),
            (b"4194303", Some(4_194_303)),
            (b"01", None),
            (b"+1", None),
            (b"", None),
            (b"1x", None),
            (b"\xff", None),
            (b"99999999999", None),
        ];
        for (name, number) in numbers {
            assert_eq!(decimal(name), number);
        }
    }
}
