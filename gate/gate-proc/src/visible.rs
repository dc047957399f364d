//! Who may see of a process what not everybody may (`ptrace(2)`, PTRACE_MODE_READ_FSCREDS).
//!
//! The kernel decides this for processes of one node. Here it is decided for an asker of another node, never more
//! generously. All numbers are the container's own, which has one user namespace.

use proc_core::caller::Uids;

const CAP_SYS_PTRACE: u32 = 19;

/// Who asks: the kernel's word in a request, and the capabilities of the thread that it names.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Asker {
    /// For access to files.
    pub uid: u32,
    pub gid: u32,
    pub effective: u64,
}

impl Asker {
    pub fn may_trace_all(&self) -> bool {
        self.effective & 1 << CAP_SYS_PTRACE != 0
    }
}

/// What decides about a process.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Looked {
    /// Real, effective, saved.
    pub uids: [u32; 3],
    pub gids: [u32; 3],
    pub permitted: u64,
    /// Of its files in procfs: root's, or nobody's in the container, when it must not be dumped.
    pub files_uid: u32,
}

impl Looked {
    /// From its `status`, with numbers of the host, and the owner of its files. `None`: not what the kernel writes of a
    /// process of this container.
    pub fn of_status(status: &[u8], files_uid: u32, ids: Uids) -> Option<Looked> {
        let line = |name: &str| status.split(|byte| *byte == b'\n').find_map(|line| line.strip_prefix(name.as_bytes()));
        let text = |name: &str| std::str::from_utf8(line(name)?).ok();
        let three = |name: &str| {
            let mut words = text(name)?.split_ascii_whitespace();
            let mut next = || ids.inside(words.next()?.parse().ok()?);
            Some([next()?, next()?, next()?])
        };
        let permitted = u64::from_str_radix(text("CapPrm:")?.trim(), 16).ok()?;
        Some(Looked { uids: three("Uid:")?, gids: three("Gid:")?, permitted, files_uid })
    }

    /// Whether `asker` may see what only who may trace the process sees.
    ///
    /// Files of a process with effective uid 0 are root's whether or not it may be dumped, so it is shown to the
    /// capability alone.
    pub fn may_be_looked_into_by(&self, asker: &Asker) -> bool {
        let is_own = self.uids == [asker.uid; 3] && self.gids == [asker.gid; 3];
        let may_be_dumped = asker.uid != 0 && self.files_uid == asker.uid;
        let has_as_many = self.permitted & !asker.effective == 0;
        asker.may_trace_all() || is_own && may_be_dumped && has_as_many
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const IDS: Uids = Uids { base: 1_000_000, count: 65_536 };

    fn looked(uids: [u32; 3], gids: [u32; 3], files_uid: u32) -> Looked {
        Looked { uids, gids, permitted: 0, files_uid }
    }

    #[test]
    fn process_is_seen_by_its_user_and_by_the_capability() {
        let user = Asker { uid: 5, gid: 6, effective: 0 };
        let own = looked([5; 3], [6; 3], 5);
        assert!(own.may_be_looked_into_by(&user));
        for other in [
            looked([4; 3], [6; 3], 5),
            looked([5, 4, 5], [6; 3], 5),
            looked([5, 5, 4], [6; 3], 5),
            looked([4, 5, 5], [6; 3], 5),
            looked([5; 3], [6, 6, 7], 5),
            looked([5; 3], [6; 3], 0),
            Looked { permitted: 1 << 5, ..own },
        ] {
            assert!(!other.may_be_looked_into_by(&user), "{other:?}");
            let root = Asker { uid: 0, gid: 0, effective: 1 << CAP_SYS_PTRACE };
            assert!(other.may_be_looked_into_by(&root));
        }
        let strong = Asker { effective: 1 << 5, ..user };
        assert!(Looked { permitted: 1 << 5, ..own }.may_be_looked_into_by(&strong));
    }

    #[test]
    fn root_without_the_capability_does_not_see_roots_processes() {
        let root = Asker { uid: 0, gid: 0, effective: !(1 << CAP_SYS_PTRACE) };
        assert!(!looked([0; 3], [0; 3], 0).may_be_looked_into_by(&root));
    }

    #[test]
    fn status_of_a_foreign_process_decides_nothing() {
        let status = |uids: &str| format!("Name:\tx\nUid:\t{uids}\nGid:\t1000006\t1000006\t1000006\t0\nCapPrm:\t0\n");
        let read = |uids: &str| Looked::of_status(status(uids).as_bytes(), 5, IDS);
        assert_eq!(read("1000005 1000005 1000005 1"), Some(looked([5; 3], [6; 3], 5)));
        for foreign in ["0 1000005 1000005", "1000005 1000005", "1065536 1000005 1000005", "x"] {
            assert_eq!(read(foreign), None, "{foreign}");
        }
    }
}
