//! Who asks: read from `/proc/TID/status` of the thread that the kernel names in its notification.
//!
//! The text is the kernel's. Only the name of the program is the tenant's in it, and the kernel escapes newlines there.
//! Whoever reads it must ask the kernel before and after whether the notification is still valid; else the thread may
//! be another one meanwhile.

use crate::limits::STATUS_BYTES_MAX;
use crate::permission::{Power, Signaller};

const CAP_KILL: u32 = 5;
const CAP_SYS_NICE: u32 = 23;
const CAP_SYS_RESOURCE: u32 = 24;

/// A thread as its container sees it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Caller {
    /// `pid` is the thread's process.
    pub sender: Signaller,
    pub thread: u32,
}

/// The first host uid of a container, and how many it has; of gids the same.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Uids {
    pub base: u32,
    pub count: u32,
}

impl Uids {
    /// `None`: not of this container.
    pub fn inside(self, host: u32) -> Option<u32> {
        host.checked_sub(self.base).filter(|uid| *uid < self.count)
    }
}

/// `None`: not what the kernel writes of a thread of this container.
pub fn of_status(status: &[u8], uids: Uids) -> Option<Caller> {
    let head = status.get(..STATUS_BYTES_MAX).unwrap_or(status);
    let line = |name: &str| head.split(|byte| *byte == b'\n').find_map(|line| line.strip_prefix(name.as_bytes()));
    let words = |name: &str| {
        let text = std::str::from_utf8(line(name)?).ok()?;
        Some(text.split_ascii_whitespace())
    };
    // Of nested pid namespaces the last one is the thread's own.
    let inside = |name: &str| words(name)?.next_back()?.parse().ok();
    let mut ids = words("Uid:")?;
    let mut uid = || uids.inside(ids.next()?.parse().ok()?);
    let (uid, euid) = (uid()?, uid()?);
    let gid = uids.inside(words("Gid:")?.next()?.parse().ok()?)?;
    let effective = u64::from_str_radix(words("CapEff:")?.next()?, 16).ok()?;
    let power = |capability: u32| if effective & 1 << capability != 0 { Power::All } else { Power::Own };
    let (pid, thread) = (inside("NStgid:")?, inside("NSpid:")?);
    let (power, priorities, resources) = (power(CAP_KILL), power(CAP_SYS_NICE), power(CAP_SYS_RESOURCE));
    Some(Caller { sender: Signaller { pid, uid, euid, gid, power, priorities, resources }, thread })
}

#[cfg(test)]
mod tests {
    use super::*;

    const UIDS: Uids = Uids { base: 1_000_000, count: 65_536 };

    fn status(name: &str, uid: &str, effective: &str) -> Vec<u8> {
        format!(
            "Name:\t{name}\nUmask:\t0022\nState:\tS (sleeping)\nTgid:\t4711\nNgid:\t0\nPid:\t4712\nPPid:\t4700\n\
             TracerPid:\t0\nUid:\t{uid}\nGid:\t1000005\t1000000\t1000000\t1000000\nFDSize:\t64\nGroups:\t \n\
             NStgid:\t4711\t131072\nNSpid:\t4712\t131073\nNSpgid:\t4711\t131072\nNSsid:\t4700\t0\n\
             CapInh:\t0000000000000000\nCapPrm:\t{effective}\nCapEff:\t{effective}\n"
        )
        .into_bytes()
    }

    #[test]
    fn thread_is_seen_as_its_container_sees_it() {
        let text = status("sh", "1000033\t1000007\t1000000\t1000000", "0000000000000020");
        let (priorities, resources) = (Power::Own, Power::Own);
        let sender = Signaller { pid: 131_072, uid: 33, euid: 7, gid: 5, power: Power::All, priorities, resources };
        assert_eq!(of_status(&text, UIDS), Some(Caller { sender, thread: 131_073 }));
        let text = status("sh", "1000033\t1000007\t1000000\t1000000", "0000000001000000");
        assert_eq!(of_status(&text, UIDS).map(|caller| caller.sender.resources), Some(Power::All));
        let text = status("sh", "1000033\t1000007\t1000000\t1000000", "ffffffffffffffdf");
        assert_eq!(of_status(&text, UIDS).map(|caller| caller.sender.power), Some(Power::Own));
    }

    #[test]
    fn name_of_a_program_deceives_nobody() {
        // As the kernel writes a name with a newline in it.
        let text = status("a\\nUid:\t1000000", "1000033\t1000033\t1000033\t1000033", "0");
        assert_eq!(of_status(&text, UIDS).map(|caller| caller.sender.uid), Some(33));
    }

    #[test]
    fn thread_of_another_container_or_of_the_host_is_nobody() {
        for uid in ["0\t0\t0\t0", "999999\t1000000\t0\t0", "1000000\t1065536\t0\t0", "x\t1000000", "1000000"] {
            assert_eq!(of_status(&status("sh", uid, "0"), UIDS), None, "{uid}");
        }
        assert_eq!(of_status(b"", UIDS), None);
        assert_eq!(of_status(&status("sh", "1000000\t1000000", "g"), UIDS), None);
    }
}
