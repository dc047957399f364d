//! Quotas of directories, as a program of the container sets and sees them: extended attributes that the file server
//! answers itself (`vos_api::fs::QUOTA_NAME`).

use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Component, Path, PathBuf};
use std::thread::sleep;
use std::time::{Duration, Instant};

use clap::{Args, Subcommand};
use mgmt_api::TREE;
use rustix::fs::{XattrFlags, getxattr, removexattr, setxattr};
use rustix::io::Errno;
use serde::Serialize;

use crate::commands::{Gone, Outcome, done, print, say};
use crate::errors::Failure;
use crate::output::{self, Format, Row};

/// As in `vos_api::fs`, which a binary without the machinery does not know.
const QUOTA_NAME: &str = "dvs.quota";
const QUOTAS_NAME: &str = "dvs.quotas.";
#[cfg(feature = "machinery")]
const _: () = assert!(QUOTA_NAME.len() == vos_api::fs::QUOTA_NAME.len());
const VALUE_BYTES_MAX: usize = 65_536;
const COUNTING_PAUSE: Duration = Duration::from_millis(50);
/// How often somebody is told how far it is.
const PROGRESS_EVERY: Duration = Duration::from_secs(5);

/// Limits as they are to be; what is not given stays, 0 is none.
#[derive(Args, Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    #[arg(long)]
    pub bytes: Option<u64>,
    #[arg(long)]
    pub inodes: Option<u64>,
    /// Answer before what is there is counted.
    #[arg(long)]
    pub no_wait: bool,
}

/// What is asked of quotas.
#[derive(Subcommand, Clone, PartialEq, Eq, Debug)]
pub enum Request {
    List,
    Set {
        #[command(flatten)]
        limits: Limits,
        path: PathBuf,
    },
    End {
        path: PathBuf,
    },
}

impl Request {
    /// The same, as arguments.
    pub fn words(&self) -> Vec<String> {
        let word = |name, number: &Option<u64>| number.map(|number| format!("--{name}={number}"));
        let (what, limits, path) = match self {
            Request::List => ("list", None, None),
            Request::Set { limits, path } => ("set", Some(limits), Some(path)),
            Request::End { path } => ("end", None, Some(path)),
        };
        let limits = limits.map(|Limits { bytes, inodes, no_wait }| {
            [word("bytes", bytes), word("inodes", inodes), no_wait.then(|| "--no-wait".to_owned())]
        });
        let path = path.map(|path| ["--".to_owned(), path.display().to_string()]);
        let limits = limits.into_iter().flatten().flatten();
        [what.to_owned()].into_iter().chain(limits).chain(path.into_iter().flatten()).collect()
    }

    /// Whether the path can be one.
    pub fn check(&self) -> Result<(), Failure> {
        let (Request::Set { path, .. } | Request::End { path }) = self else { return Ok(()) };
        if path.to_str().is_none() {
            let failure = Failure::usage(format!("{} cannot be passed on", path.display()));
            return Err(failure.hint("from a program of the container: setfattr -n dvs.quota"));
        }
        place(path).map(drop)
    }
}

pub fn execute(format: Format, dc: &str, request: &Request) -> Outcome {
    match request {
        Request::List => list(format, dc),
        Request::Set { limits, path } => set(format, dc, path, limits),
        Request::End { path } => remove(format, dc, path),
    }
}

/// A quota, as people see it.
#[derive(Serialize, Clone, PartialEq, Eq, Debug)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[cfg_attr(test, schemars(rename = "Quota"))]
pub struct QuotaView {
    /// Where programs find the directory.
    pub path: PathBuf,
    /// Limits; none: as much as the tree has.
    pub bytes: Option<u64>,
    pub inodes: Option<u64>,
    pub used_bytes: u64,
    pub used_inodes: u64,
    /// What was there when it was set is all in what is used.
    pub counted: bool,
}

impl Row for QuotaView {
    const HEADINGS: &'static [&'static str] = &["PATH", "USED", "LIMIT", "FILES", "LIMIT", "STATE"];

    fn cells(&self) -> Vec<String> {
        let is_full = |used: u64, limit: Option<u64>| limit.is_some_and(|limit| used >= limit);
        let state = match (self.counted, is_full(self.used_bytes, self.bytes) || is_full(self.used_inodes, self.inodes))
        {
            (false, _) => "counting",
            (true, true) => "full",
            (true, false) => "ok",
        };
        vec![
            self.path.display().to_string(),
            output::bytes(self.used_bytes),
            self.bytes.map_or("-".to_owned(), output::bytes),
            self.used_inodes.to_string(),
            self.inodes.map_or("-".to_owned(), |limit| limit.to_string()),
            state.to_owned(),
        ]
    }

    fn name(&self) -> String {
        self.path.display().to_string()
    }
}

impl QuotaView {
    /// Of what the file server tells: words `name=number`.
    fn parse<'a>(path: PathBuf, words: impl Iterator<Item = &'a str>) -> Option<QuotaView> {
        let mut view = QuotaView { path, bytes: None, inodes: None, used_bytes: 0, used_inodes: 0, counted: true };
        for word in words {
            let (name, number) = word.split_once('=')?;
            let number: u64 = number.parse().ok()?;
            match name {
                "bytes" => view.bytes = Some(number).filter(|limit| *limit != 0),
                "inodes" => view.inodes = Some(number).filter(|limit| *limit != 0),
                "used_bytes" => view.used_bytes = number,
                "used_inodes" => view.used_inodes = number,
                "counted" => view.counted = number == 1,
                // Of a later release.
                _ => {}
            }
        }
        Some(view)
    }
}

/// A directory of the tree, as somebody names it: from the tree's root on, or with where that is.
fn place(path: &Path) -> Result<PathBuf, Failure> {
    let inside = match path.strip_prefix(TREE) {
        Ok(inside) => inside,
        Err(_) if path.is_relative() => path,
        Err(_) => {
            let failure = Failure::usage(format!("{} is not in the file tree of the container", path.display()));
            return Err(failure.hint(format!("a path below {TREE}, or one that begins there: srv/data")));
        }
    };
    if inside.components().any(|part| part == Component::ParentDir) {
        return Err(Failure::usage(format!("{} leads upwards", path.display())).hint("the directory's own path"));
    }
    Ok(Path::new(TREE).join(inside))
}

fn set(format: Format, dc: &str, path: &Path, limits: &Limits) -> Outcome {
    let path = place(path)?;
    let before = match read(&path) {
        Ok(before) => before,
        Err(cause) => return Err(not_set(dc, &path, cause)),
    };
    let word =
        |name: &str, wanted: Option<u64>, before: Option<u64>| format!("{name}={}", wanted.or(before).unwrap_or(0));
    let (bytes, inodes) = before.map_or((None, None), |before| (before.bytes, before.inodes));
    let value = [word("bytes", limits.bytes, bytes), word("inodes", limits.inodes, inodes)].join(" ");
    setxattr(&path, QUOTA_NAME, value.as_bytes(), XattrFlags::empty()).map_err(|cause| not_set(dc, &path, cause))?;
    let (begun, mut told) = (Instant::now(), Duration::ZERO);
    let view = loop {
        let gone = || Failure::new(format!("the quota of {} was ended meanwhile", path.display()));
        let view = read(&path).map_err(|cause| not_set(dc, &path, cause))?.ok_or_else(gone)?;
        if view.counted || limits.no_wait {
            break view;
        }
        if begun.elapsed() > told + PROGRESS_EVERY {
            told = begun.elapsed();
            say(&format!("counting what is there: {} files so far", view.used_inodes));
        }
        sleep(COUNTING_PAUSE);
    };
    print(|out| output::list(out, format, &[view]))
}

fn list(format: Format, dc: &str) -> Outcome {
    let all = all().map_err(|cause| not_read(dc, cause))?;
    print(|out| output::list(out, format, &all))
}

fn remove(format: Format, dc: &str, path: &Path) -> Outcome {
    let path = place(path)?;
    removexattr(&path, QUOTA_NAME).map_err(|cause| {
        let failure = Failure::new(format!("{} keeps what it has", path.display()));
        match cause {
            Errno::NODATA => failure.because_text("it has no quota").hint(format!("dvs fs quota ls {dc}")),
            _ => explained(failure, dc, cause),
        }
    })?;
    say(&format!("{} has no quota any more", path.display()));
    done(format, &Gone::new(&path.display().to_string()))
}

fn value_of(path: &Path, name: &str) -> Result<Option<Vec<u8>>, Errno> {
    let mut value = vec![0; VALUE_BYTES_MAX];
    match getxattr(path, name, value.as_mut_slice()) {
        Ok(bytes) => {
            value.truncate(bytes);
            Ok(Some(value))
        }
        Err(Errno::NODATA) => Ok(None),
        Err(cause) => Err(cause),
    }
}

fn read(path: &Path) -> Result<Option<QuotaView>, Errno> {
    let Some(value) = value_of(path, QUOTA_NAME)? else { return Ok(None) };
    let text = std::str::from_utf8(&value).map_err(|_| Errno::PROTO)?;
    QuotaView::parse(path.to_owned(), text.split_ascii_whitespace()).map(Some).ok_or(Errno::PROTO)
}

fn all() -> Result<Vec<QuotaView>, Errno> {
    let (mut all, mut from) = (Vec::new(), 0_u64);
    // A server that knows none has nothing there.
    while let Some(value) =
        value_of(Path::new(TREE), &format!("{QUOTAS_NAME}{from}"))?.filter(|value| !value.is_empty())
    {
        for line in value.split(|byte| *byte == 0).filter(|line| !line.is_empty()) {
            let (number, view) = parse_line(line).ok_or(Errno::PROTO)?;
            all.push(view);
            from = from.max(number + 1);
        }
    }
    all.sort_by(|one, other| one.path.cmp(&other.path));
    Ok(all)
}

/// Limits of all directories that have some, as they are set, by their paths in the tree.
pub fn limits() -> io::Result<Vec<(PathBuf, String)>> {
    let limits = |view: QuotaView| {
        let (bytes, inodes) = (view.bytes.unwrap_or(0), view.inodes.unwrap_or(0));
        Some((view.path.strip_prefix(TREE).ok()?.to_owned(), format!("bytes={bytes} inodes={inodes}")))
    };
    Ok(all()?.into_iter().filter_map(limits).collect())
}

/// No directory has limits any more.
pub fn end_all() -> io::Result<()> {
    all()?.iter().try_for_each(|view| match removexattr(&view.path, QUOTA_NAME) {
        Ok(()) | Err(Errno::NODATA | Errno::NOENT) => Ok(()),
        Err(cause) => Err(cause.into()),
    })
}

/// A number, words, and a path, which begins with a slash.
fn parse_line(line: &[u8]) -> Option<(u64, QuotaView)> {
    let at = line.windows(2).position(|pair| pair == b" /")?;
    let (head, path) = (std::str::from_utf8(line.get(..at)?).ok()?, line.get(at + 2..)?);
    let mut words = head.split(' ');
    let number = words.next()?.parse().ok()?;
    let path = Path::new(TREE).join(OsStr::from_bytes(path));
    Some((number, QuotaView::parse(without_slash(path), words)?))
}

/// Of the root itself.
fn without_slash(path: PathBuf) -> PathBuf {
    let mut bytes = path.into_os_string().into_vec();
    while bytes.len() > 1 && bytes.last() == Some(&b'/') {
        bytes.pop();
    }
    PathBuf::from(std::ffi::OsString::from_vec(bytes))
}

fn not_read(dc: &str, cause: Errno) -> Failure {
    explained(Failure::new(format!("the quotas of '{dc}' cannot be listed")), dc, cause)
}

fn not_set(dc: &str, path: &Path, cause: Errno) -> Failure {
    let failure = Failure::new(format!("{} got no quota", path.display()));
    match cause {
        Errno::NOTDIR => failure.because_text("it is no directory").hint("the directory that it is in"),
        Errno::EXIST => failure
            .because_text("a directory above or below has one, and what is made counts with one only")
            .hint(format!("dvs fs quota ls {dc}")),
        Errno::NOSPC => {
            failure.because_text("there are 1024, or the tree is full").hint(format!("dvs fs quota ls {dc}"))
        }
        Errno::ROFS => failure.because_text("it is in a snapshot, which nothing changes").hint("the directory of now"),
        _ => explained(failure, dc, cause),
    }
}

fn explained(failure: Failure, dc: &str, cause: Errno) -> Failure {
    let restart = format!("dvs restart {dc}");
    match cause {
        Errno::NOENT => {
            failure.because_text("there is no such directory").hint(format!("dvs run {dc} -- ls -l {TREE}"))
        }
        Errno::OPNOTSUPP => {
            failure.because_text("it is not in the tree, or the file server is of an earlier release").hint(restart)
        }
        Errno::PERM => failure.because_text("only root may").hint("without --user"),
        _ => failure.because(&io::Error::from(cause)).hint(format!("dvs dc inspect {dc}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_the_file_server_are_read_whatever_a_name_has() {
        let line = b"7 bytes=8192 inodes=0 used_bytes=4096 used_inodes=2 counted=0 later=1 /a b/ /c=d";
        let (number, view) = parse_line(line).expect("a line");
        assert_eq!((number, view.path.display().to_string()), (7, "/dc/a b/ /c=d".to_owned()));
        assert_eq!((view.bytes, view.inodes, view.used_bytes, view.used_inodes), (Some(8192), None, 4096, 2));
        assert_eq!(view.cells().last().map(String::as_str), Some("counting"));
        let (_, root) = parse_line(b"1 bytes=0 inodes=9 used_bytes=0 used_inodes=9 counted=1 /").expect("a line");
        assert_eq!((root.path.display().to_string(), root.cells()[5].clone()), ("/dc".to_owned(), "full".to_owned()));
        for bad in [&b"x /a"[..], b"", b"1 bytes /a", b"1 bytes=x /a", b"1 bytes=1 a"] {
            assert!(parse_line(bad).is_none(), "{bad:?}");
        }
    }

    #[test]
    fn directories_are_named_from_the_root_of_the_tree_or_with_it() {
        for (named, meant) in [("srv/data", "/dc/srv/data"), ("/dc/srv", "/dc/srv"), ("/dc", "/dc/"), (".", "/dc/.")] {
            assert_eq!(place(Path::new(named)).ok(), Some(PathBuf::from(meant)), "{named}");
        }
        for bad in ["/srv", "../x", "/dc/../etc", "/dcx"] {
            assert!(place(Path::new(bad)).is_err(), "{bad}");
        }
    }
}
