//! Users by name: what `/etc/passwd` and `/etc/group` of a program's root say. Read by the process that becomes the
//! program, inside; who wrote these files is the container itself, and it is root there already.

use std::io::{self, Read};

use rustix::fs::{Mode, OFlags, open};

use crate::refusal::Stage;

const PASSWD: &str = "/etc/passwd";
const GROUP: &str = "/etc/group";
/// More is no list of users.
const LIST_BYTES_MAX: u64 = 4 << 20;
/// As many groups as a process may have.
const GROUPS_MAX: usize = 65_536;

/// As whom a program shall run: `USER[:GROUP]`, each by name or number.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Wanted {
    user: String,
    group: Option<String>,
}

/// As whom it will.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Found {
    pub uid: u32,
    pub gid: u32,
    /// All of them, the first one too.
    pub groups: Vec<u32>,
    pub home: Option<Vec<u8>>,
}

impl Wanted {
    pub fn parse(text: &str) -> Wanted {
        match text.split_once(':') {
            None => Wanted { user: text.to_owned(), group: None },
            Some((user, group)) => Wanted { user: user.to_owned(), group: Some(group.to_owned()) },
        }
    }

    /// What the files of this process' root know.
    pub fn look_up(&self) -> Result<Found, (Stage, io::Error)> {
        let read = |path, stage| contents(path).map_err(|cause| (stage, cause));
        let unknown = |stage| (stage, io::Error::from_raw_os_error(libc::ENOENT));
        let passwd = read(PASSWD, Stage::User)?;
        let user = User::find(&passwd, self.user.as_bytes()).ok_or_else(|| unknown(Stage::User))?;
        let group = read(GROUP, Stage::Group)?;
        self.found(user, &group).ok_or_else(|| unknown(Stage::Group))
    }

    /// `None`: there is no such group.
    fn found(&self, user: User<'_>, group: &[u8]) -> Option<Found> {
        let gid = match &self.group {
            None => user.gid,
            Some(name) => number(name.as_bytes()).or_else(|| gid_of(group, name.as_bytes()))?,
        };
        let mut groups = vec![gid];
        // Who asks for a group gets that one alone.
        if self.group.is_none() && !user.name.is_empty() {
            groups.extend(groups_with(group, user.name).filter(|other| *other != gid).take(GROUPS_MAX - 1));
        }
        Some(Found { uid: user.uid, gid, groups, home: user.home.map(<[u8]>::to_vec) })
    }
}

struct User<'a> {
    name: &'a [u8],
    uid: u32,
    gid: u32,
    home: Option<&'a [u8]>,
}

impl<'a> User<'a> {
    /// By name first. A number that nobody has stands for itself.
    fn find(passwd: &'a [u8], wanted: &[u8]) -> Option<User<'a>> {
        let users = || passwd.split(|byte| *byte == b'\n').filter_map(User::of_line);
        let number = number(wanted);
        users().find(|user| user.name == wanted).or_else(|| users().find(|user| Some(user.uid) == number)).or_else(
            || {
                let uid = number?;
                Some(User { name: &[], uid, gid: uid, home: None })
            },
        )
    }

    fn of_line(line: &'a [u8]) -> Option<User<'a>> {
        let mut fields = line.split(|byte| *byte == b':');
        let (name, _, uid, gid, _, home) =
            (fields.next()?, fields.next()?, fields.next()?, fields.next()?, fields.next()?, fields.next()?);
        let home = Some(home).filter(|home| home.starts_with(b"/") && !home.contains(&0));
        (!name.is_empty()).then_some(())?;
        Some(User { name, uid: number(uid)?, gid: number(gid)?, home })
    }
}

/// Name, number, members.
fn groups(list: &[u8]) -> impl Iterator<Item = (&[u8], u32, &[u8])> {
    list.split(|byte| *byte == b'\n').filter_map(|line| {
        let mut fields = line.split(|byte| *byte == b':');
        let (name, _, gid, members) = (fields.next()?, fields.next()?, fields.next()?, fields.next()?);
        Some((name, number(gid)?, members))
    })
}

fn gid_of(list: &[u8], name: &[u8]) -> Option<u32> {
    groups(list).find(|group| group.0 == name).map(|group| group.1)
}

fn groups_with<'a>(list: &'a [u8], member: &'a [u8]) -> impl Iterator<Item = u32> + 'a {
    let has = move |members: &[u8]| members.split(|byte| *byte == b',').any(|one| one == member);
    groups(list).filter(move |group| has(group.2)).map(|group| group.1)
}

/// Digits alone, of a user or group that the container has.
fn number(text: &[u8]) -> Option<u32> {
    let text = std::str::from_utf8(text).ok().filter(|text| text.bytes().all(|byte| byte.is_ascii_digit()))?;
    text.parse().ok().filter(|id| *id < sandbox::userns::UIDS)
}

/// Empty when there is no such file. Whatever else lies there is not waited for.
fn contents(path: &str) -> io::Result<Vec<u8>> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
    let file = match open(path, flags, Mode::empty()) {
        Ok(file) => std::fs::File::from(file),
        Err(rustix::io::Errno::NOENT | rustix::io::Errno::NOTDIR) => return Ok(Vec::new()),
        Err(cause) => return Err(cause.into()),
    };
    if !file.metadata()?.is_file() {
        return Err(io::Error::from_raw_os_error(libc::EINVAL));
    }
    let mut list = Vec::new();
    file.take(LIST_BYTES_MAX).read_to_end(&mut list)?;
    Ok(list)
}

#[cfg(test)]
mod tests {
    use super::*;

    const PASSWD: &[u8] = b"root:x:0:0:root:/root:/bin/bash\n\n# note\nwww-data:x:33:33:www:/var/www:/bin/false\n\
        7:x:8:9:named like a number:relative:\nhuge:x:65536:1::/:\nbad:x:-1:1::/:\nada:x:1000:1001::/home/ada:/bin/sh";
    const GROUP: &[u8] =
        b"root:x:0:\ntape:x:26:www-data,ada\nada:x:1001:\ncut:x:5\nhuge:x:70000:ada\naudio:x:29:adam,ada";

    fn found(text: &str) -> Option<Found> {
        let wanted = Wanted::parse(text);
        wanted.found(User::find(PASSWD, wanted.user.as_bytes())?, GROUP)
    }

    #[test]
    fn users_and_their_groups_are_found_as_the_files_say() {
        let is = |uid, groups: &[u32], home: &str| {
            let home = Some(home.as_bytes().to_vec()).filter(|home| !home.is_empty());
            Some(Found { uid, gid: groups[0], groups: groups.to_vec(), home })
        };
        assert_eq!(found("ada"), is(1000, &[1001, 26, 29], "/home/ada"));
        assert_eq!(found("ada:tape"), is(1000, &[26], "/home/ada"));
        assert_eq!(found("ada:77"), is(1000, &[77], "/home/ada"));
        assert_eq!(found("1000:ada"), is(1000, &[1001], "/home/ada"));
        assert_eq!(found("33"), is(33, &[33, 26], "/var/www"));
        assert_eq!(found("7"), is(8, &[9], ""));
        assert_eq!(found("500:tape"), is(500, &[26], ""));
        for nobody in ["", "eve", "huge", "bad", "65536", "# note", "ada:eve", "ada:", "ada:cut", "ada:huge"] {
            assert_eq!(found(nobody), None, "{nobody}");
        }
    }

    proptest::proptest! {
        #[test]
        fn any_files_do(passwd in "[a-c:0-9,\n]{0,200}", group in "[a-c:0-9,\n]{0,200}", user in "[a-c0-9:]{0,4}") {
            let wanted = Wanted::parse(&user);
            if let Some(user) = User::find(passwd.as_bytes(), wanted.user.as_bytes())
                && let Some(found) = wanted.found(user, group.as_bytes())
            {
                proptest::prop_assert!(found.uid < 65_536 && found.groups.iter().all(|gid| *gid < 65_536));
                proptest::prop_assert_eq!(found.groups.first(), Some(&found.gid));
            }
        }
    }
}
