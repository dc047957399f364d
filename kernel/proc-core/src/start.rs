//! What one node asks another one to start: the far end of a job, as the user of its deputy (`docs/design/jobs.md`).
//!
//! The program is always the same one; so all that crosses nodes with privileges is a record: whose it is and which
//! root it has, as the kernel says of the deputy, and where the deputy listens. Whoever carries it out twice harms
//! nobody: a deputy takes one far end, and the other one ends.

use crate::caller::Uids;
use crate::limits::STATUS_BYTES_MAX;
use crate::order::BadRecord;
use crate::range::Seat;

/// Groups that a job's user may be in, besides the first one.
pub const JOB_GROUPS_MAX: usize = 64;
/// Of a [`StartOrder`] as it travels, without a root.
pub const START_BYTES: usize = 56 + 4 * JOB_GROUPS_MAX;
/// Of the path of a root.
pub const ROOT_BYTES_MAX: usize = 1024;
/// Of any [`StartOrder`].
pub const START_BYTES_MAX: usize = START_BYTES + ROOT_BYTES_MAX;
/// What a keeper says first of all to its call gate, in the place of an order's number, which begin with 1.
pub const TAKES_ROOTS: u64 = 0;
/// What of a process's mounts is looked at: its root is among the first.
pub const MOUNTS_BYTES_MAX: usize = 64 << 10;

const VERSION: u32 = 1;
/// Filters that every program of a container has, which the keeper installs.
const FILTERS_OF_ALL: u64 = 1;

/// What a job may do: what its deputy may. All numbers are the container's.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct JobOwner {
    pub uid: u32,
    pub gid: u32,
    pub groups: Vec<u32>,
    /// Capabilities, bit by bit as the kernel numbers them.
    pub inheritable: u64,
    pub permitted: u64,
    pub ambient: u64,
}

/// Why a process can have no job on another node.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Unfit {
    /// It is none of the container's, or gone.
    Nobody,
    /// Real, effective, saved and file system's are not the same.
    SeveralUsers,
    /// Likewise, of groups.
    SeveralGroups,
    TooManyGroups,
    /// It has filters of its own, which would not go along.
    HasFilters,
    /// It changed its root by itself, or that is gone, or its path is too long.
    StrangeRoot,
}

impl JobOwner {
    /// From `/proc/PID/status`, which the caller knows to be of that process.
    ///
    /// # Errors
    /// What it has that another process on another node cannot be given.
    pub fn of_status(status: &[u8], uids: Uids) -> Result<JobOwner, Unfit> {
        let head = status.get(..STATUS_BYTES_MAX).unwrap_or(status);
        let line = |name: &str| {
            let found = head.split(|byte| *byte == b'\n').find_map(|line| line.strip_prefix(name.as_bytes()));
            std::str::from_utf8(found.ok_or(Unfit::Nobody)?).map_err(|_| Unfit::Nobody)
        };
        let ids = |name: &str| {
            let inside = |id: &str| uids.inside(id.parse().ok()?);
            line(name)?
                .split_ascii_whitespace()
                .map(|id| inside(id).ok_or(Unfit::Nobody))
                .collect::<Result<Vec<u32>, _>>()
        };
        let the_one = |ids: Vec<u32>, otherwise: Unfit| match ids.as_slice() {
            [first, rest @ ..] if rest.len() == 3 && rest.iter().all(|id| id == first) => Ok(*first),
            [_, _, _, _] => Err(otherwise),
            _ => Err(Unfit::Nobody),
        };
        let capabilities = |name: &str| u64::from_str_radix(line(name)?.trim(), 16).map_err(|_| Unfit::Nobody);
        // Before Linux 5.9 it is not said.
        let filters = line("Seccomp_filters:").ok().and_then(|count| count.trim().parse::<u64>().ok());
        if filters.is_none_or(|count| count > FILTERS_OF_ALL) {
            return Err(Unfit::HasFilters);
        }
        let groups = ids("Groups:")?;
        if groups.len() > JOB_GROUPS_MAX {
            return Err(Unfit::TooManyGroups);
        }
        Ok(JobOwner {
            uid: the_one(ids("Uid:")?, Unfit::SeveralUsers)?,
            gid: the_one(ids("Gid:")?, Unfit::SeveralGroups)?,
            groups,
            inheritable: capabilities("CapInh:")?,
            permitted: capabilities("CapPrm:")?,
            ambient: capabilities("CapAmb:")?,
        })
    }
}

/// What a job sees as `/`: what its deputy does.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum JobRoot {
    /// The container's own.
    Own,
    /// A directory of its tree, as a path there, which begins with a slash.
    Tree(String),
}

impl JobRoot {
    /// From `/proc/PID/mountinfo`, which the caller knows to be of that process: which mount it has at `/`.
    ///
    /// # Errors
    /// None, as who changed its root by itself, or one that nobody could find by a path.
    pub fn of_mounts(mounts: &[u8]) -> Result<JobRoot, Unfit> {
        let head = mounts.get(..MOUNTS_BYTES_MAX).unwrap_or(mounts);
        let words = |line: &[u8]| line.split(|byte| *byte == b' ').map(<[u8]>::to_vec).collect::<Vec<_>>();
        let is_root = |words: &Vec<Vec<u8>>| words.get(4).is_some_and(|place| place == b"/");
        // The last one lies on top.
        let root = head.split(|byte| *byte == b'\n').map(words).rfind(is_root).ok_or(Unfit::StrangeRoot)?;
        let kind = root.iter().skip_while(|word| *word != b"-").nth(1).ok_or(Unfit::StrangeRoot)?;
        if !kind.starts_with(b"fuse") {
            return Ok(JobRoot::Own);
        }
        let path = root.get(3).and_then(|path| String::from_utf8(unescaped(path)).ok());
        path.filter(|path| is_path(path)).map(JobRoot::Tree).ok_or(Unfit::StrangeRoot)
    }
}

/// A path in the tree that leads to one place alone.
fn is_path(path: &str) -> bool {
    let is_whole = |part: &str| !matches!(part, "" | "." | "..");
    let mut parts = path.strip_prefix('/').into_iter().flat_map(|rest| rest.split('/')).peekable();
    let is_top = path == "/";
    path.len() <= ROOT_BYTES_MAX && !path.contains('\0') && (is_top || (parts.peek().is_some() && parts.all(is_whole)))
}

/// Where the kernel writes a backslash and three octal digits.
fn unescaped(word: &[u8]) -> Vec<u8> {
    let (mut bytes, mut rest) = (Vec::new(), word);
    while let Some((first, after)) = rest.split_first() {
        let digits = after.get(..3).filter(|_| *first == b'\\').and_then(|digits| std::str::from_utf8(digits).ok());
        match digits.and_then(|digits| u8::from_str_radix(digits, 8).ok()) {
            Some(byte) => {
                bytes.push(byte);
                rest = after.get(3..).unwrap_or_default();
            }
            None => {
                bytes.push(*first);
                rest = after;
            }
        }
    }
    bytes
}

/// The far end that shall be started.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StartOrder {
    pub owner: JobOwner,
    pub root: JobRoot,
    /// The deputy's endpoint.
    pub deputy: u32,
    /// What the deputy knows its far end by.
    pub token: u64,
    /// It begins with a terminal, which its program inherits.
    pub with_terminal: bool,
    /// Where the deputy is.
    pub origin: Seat,
}

impl StartOrder {
    /// [`START_BYTES`], and the path of a root. Releases that know no roots understand what has none.
    pub fn encode(&self) -> Vec<u8> {
        let (mut bytes, mut at) = (vec![0; START_BYTES], 0);
        let mut put = |word: &[u8]| {
            if let Some(place) = bytes.get_mut(at..at + word.len()) {
                place.copy_from_slice(word);
            }
            at += word.len();
        };
        let owner = &self.owner;
        put(&VERSION.to_le_bytes());
        put(&self.deputy.to_le_bytes());
        put(&self.token.to_le_bytes());
        [owner.inheritable, owner.permitted, owner.ambient].iter().for_each(|set| put(&set.to_le_bytes()));
        let groups = owner.groups.get(..JOB_GROUPS_MAX).unwrap_or(&owner.groups);
        [owner.uid, owner.gid, groups.len() as u32, u32::from(self.with_terminal) | (self.origin.index() as u32) << 8]
            .iter()
            .for_each(|id| put(&id.to_le_bytes()));
        groups.iter().for_each(|id| put(&id.to_le_bytes()));
        if let JobRoot::Tree(path) = &self.root {
            bytes.extend_from_slice(path.as_bytes());
        }
        bytes
    }

    /// # Errors
    /// The bytes are none of this version, or have users or groups that no container has.
    pub fn decode(bytes: &[u8]) -> Result<StartOrder, BadRecord> {
        let (bytes, root) = bytes.split_first_chunk::<START_BYTES>().ok_or(BadRecord)?;
        let root = match std::str::from_utf8(root) {
            Ok("") => JobRoot::Own,
            Ok(path) if is_path(path) => JobRoot::Tree(path.to_owned()),
            _ => return Err(BadRecord),
        };
        let half = |at: usize| -> Result<u32, BadRecord> {
            let chunk = bytes.get(at..).and_then(|rest| rest.first_chunk()).ok_or(BadRecord)?;
            Ok(u32::from_le_bytes(*chunk))
        };
        let word = |at: usize| -> Result<u64, BadRecord> {
            let chunk = bytes.get(at..).and_then(|rest| rest.first_chunk()).ok_or(BadRecord)?;
            Ok(u64::from_le_bytes(*chunk))
        };
        let count = half(48)? as usize;
        let (with_terminal, origin) = (half(52)? & 0xff, Seat::new((half(52)? >> 8) as usize).ok_or(BadRecord)?);
        if half(0)? != VERSION || with_terminal > 1 || count > JOB_GROUPS_MAX {
            return Err(BadRecord);
        }
        let id =
            |at: usize| half(at).and_then(|id| if id < abi::limits::UIDS_PER_DC { Ok(id) } else { Err(BadRecord) });
        let groups = (0..count).map(|place| id(56 + 4 * place)).collect::<Result<_, _>>()?;
        let unused = bytes.get(56 + 4 * count..).unwrap_or_default();
        if unused.iter().any(|byte| *byte != 0) {
            return Err(BadRecord);
        }
        let owner = JobOwner {
            uid: id(40)?,
            gid: id(44)?,
            groups,
            inheritable: word(16)?,
            permitted: word(24)?,
            ambient: word(32)?,
        };
        Ok(StartOrder { owner, root, deputy: half(4)?, token: word(8)?, with_terminal: with_terminal == 1, origin })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const UIDS: Uids = Uids { base: 1_000_000, count: 65_536 };

    fn status(uid: &str, gid: &str, groups: &str, filters: &str) -> Vec<u8> {
        format!(
            "Name:\ton\nUid:\t{uid}\nGid:\t{gid}\nFDSize:\t64\nGroups:\t{groups} \nNStgid:\t4711\t131072\n\
             CapInh:\t0000000000000001\nCapPrm:\t000001ffffffffff\nCapEff:\t0000000000000000\n\
             CapBnd:\t000001ffffffffff\nCapAmb:\t0000000000000002\nSeccomp:\t2\n{filters}"
        )
        .into_bytes()
    }

    const ROOT: &str = "1000000\t1000000\t1000000\t1000000";
    const USER: &str = "1000033\t1000033\t1000033\t1000033";
    const ONE: &str = "Seccomp_filters:\t1\n";

    fn owner() -> JobOwner {
        JobOwner { uid: 33, gid: 0, groups: vec![4, 33], inheritable: 1, permitted: 0x1ff_ffff_ffff, ambient: 2 }
    }

    #[test]
    fn process_gives_its_job_what_it_has() {
        assert_eq!(JobOwner::of_status(&status(USER, ROOT, "1000004 1000033", ONE), UIDS), Ok(owner()));
        let none = JobOwner::of_status(&status(USER, ROOT, "", ONE), UIDS);
        assert_eq!(none, Ok(JobOwner { groups: Vec::new(), ..owner() }));
    }

    #[test]
    fn process_whose_rights_cannot_be_given_to_another_has_none() {
        let of = |uid: &str, gid: &str, groups: &str, filters: &str| {
            JobOwner::of_status(&status(uid, gid, groups, filters), UIDS).expect_err("no job")
        };
        let mixed = "1000033\t1000000\t1000000\t1000000";
        assert_eq!(of(mixed, ROOT, "", ONE), Unfit::SeveralUsers);
        assert_eq!(of(ROOT, "1000000\t1000000\t1000005\t1000000", "", ONE), Unfit::SeveralGroups);
        assert_eq!(of(ROOT, ROOT, &"1000001 ".repeat(JOB_GROUPS_MAX + 1), ONE), Unfit::TooManyGroups);
        assert_eq!(of(ROOT, ROOT, "", "Seccomp_filters:\t2\n"), Unfit::HasFilters);
        assert_eq!(of(ROOT, ROOT, "", ""), Unfit::HasFilters);
        for uid in ["0\t0\t0\t0", "1000000", "x\tx\tx\tx", "1065536\t1065536\t1065536\t1065536", ""] {
            assert_eq!(of(uid, ROOT, "", ONE), Unfit::Nobody, "{uid}");
        }
        assert_eq!(of(ROOT, ROOT, "0", ONE), Unfit::Nobody, "a group of the host");
        assert_eq!(JobOwner::of_status(b"", UIDS), Err(Unfit::HasFilters));
    }

    #[test]
    fn root_is_the_one_that_the_kernel_shows() {
        let of = |text: &str| JobRoot::of_mounts(text.as_bytes());
        let image = "90 80 0:46 /img/debian\\040twelve / rw,nosuid - fuse dvs rw,user_id=0\n\
                     91 90 0:46 / /dc rw - fuse dvs rw\n";
        assert_eq!(of(image), Ok(JobRoot::Tree("/img/debian twelve".to_owned())));
        let own = "70 60 0:30 / / ro,nosuid - tmpfs tmpfs rw\n71 70 0:46 / /dc rw shared:1 - fuse dvs rw\n";
        assert_eq!(of(own), Ok(JobRoot::Own));
        assert_eq!(of(&format!("{own}{image}")), of(image), "the one on top");
        assert_eq!(of(&image.replace("/img/debian\\040twelve", "/")), Ok(JobRoot::Tree("/".to_owned())));
        let strange = ["/gone//deleted", "/a/../b", "/\\377", "no", "/a/", "/a//b", "/x\\000"];
        let long = format!("/{}", "x".repeat(ROOT_BYTES_MAX));
        for path in strange.into_iter().chain([long.as_str()]) {
            let mounts = image.replace("/img/debian\\040twelve", path);
            assert_eq!(of(&mounts), Err(Unfit::StrangeRoot), "{path}");
        }
        for text in ["", "71 70 0:46 / /dc rw - fuse dvs rw\n", "70 60 0:30 / / ro"] {
            assert_eq!(of(text), Err(Unfit::StrangeRoot), "{text}");
        }
    }

    #[test]
    fn order_arrives_as_it_was_sent_and_others_are_refused() {
        let many = JobOwner { groups: (0..JOB_GROUPS_MAX as u32).collect(), ..owner() };
        let roots = [JobRoot::Own, JobRoot::Tree("/img/debian 12".to_owned())];
        for (owner, root) in [owner(), many].into_iter().zip(roots) {
            let order = StartOrder {
                with_terminal: owner.groups.len() > 2,
                owner,
                root,
                deputy: 77,
                token: u64::MAX,
                origin: Seat::new(61).unwrap(),
            };
            let whole = order.encode();
            assert!(whole.len() <= START_BYTES_MAX);
            assert_eq!(StartOrder::decode(&whole), Ok(order));
            for end in 0..START_BYTES {
                assert_eq!(StartOrder::decode(&whole[..end]), Err(BadRecord), "cut at {end}");
            }
            for at in 0..whole.len() {
                for value in [0, 1, b'/', 0x7f, 0xff] {
                    let mut changed = whole.clone();
                    changed[at] = value;
                    // Whatever comes out goes in again.
                    if let Ok(read) = StartOrder::decode(&changed) {
                        assert_eq!(read.encode(), changed, "byte {at}");
                    }
                }
            }
            let too_long = [&whole[..START_BYTES], b"/", &[b'x'; ROOT_BYTES_MAX]].concat();
            assert_eq!(StartOrder::decode(&too_long), Err(BadRecord));
        }
    }
}
