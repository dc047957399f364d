//! Versions of etcd, and which of them go together.
//!
//! Members of two minor versions that follow one another may be one cluster; that is how etcd is upgraded. The cluster
//! speaks what its oldest member speaks, and that never falls: a member that is older than all others ends at its first
//! start, and one that is two minor versions newer cannot read what the others have.
//!
//! Who asks is `keeper.rs`; what comes of it, `step.rs`.

use std::fmt;
use std::io::Read;
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::str::FromStr;
use std::time::{Duration, Instant};

use crate::waiting;

/// A program that says less than this of itself within the time says nothing.
const ANSWER: Duration = Duration::from_secs(5);
const ANSWER_BYTES_MAX: u64 = 4096;

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct EtcdVersion {
    pub major: u16,
    pub minor: u16,
    pub patch: u16,
}

#[derive(Debug, thiserror::Error)]
#[error("that is no version of etcd")]
pub struct NoVersion;

impl FromStr for EtcdVersion {
    type Err = NoVersion;

    /// `3.5.16`, also with what follows the patch: `3.6.0-rc.1`.
    fn from_str(text: &str) -> Result<EtcdVersion, NoVersion> {
        let released = text.split(['-', '+']).next().unwrap_or_default();
        let numbers = released.split('.').map(str::parse).collect::<Result<Vec<u16>, _>>().map_err(|_| NoVersion)?;
        match numbers.as_slice() {
            &[major, minor, patch] => Ok(EtcdVersion { major, minor, patch }),
            _ => Err(NoVersion),
        }
    }
}

impl fmt::Display for EtcdVersion {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}.{}.{}", self.major, self.minor, self.patch)
    }
}

/// Whether a member can come to others.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fit {
    Fits,
    /// The members let none in that is older than all of them.
    TooOld,
    /// It would not understand what they have.
    TooNew,
}

impl EtcdVersion {
    /// `oldest`: of the members that are there.
    pub fn fit(self, oldest: EtcdVersion) -> Fit {
        let series = |version: EtcdVersion| (version.major, version.minor);
        let next = (oldest.major, oldest.minor.saturating_add(1));
        if series(self) < series(oldest) {
            Fit::TooOld
        } else if series(self) > next {
            Fit::TooNew
        } else {
            Fit::Fits
        }
    }

    /// What `etcd --version` prints: `etcd Version: 3.4.23` in its first line.
    pub fn in_words_of_program(text: &str) -> Result<EtcdVersion, NoVersion> {
        let said = text.lines().find_map(|line| line.strip_prefix("etcd Version:"));
        said.ok_or(NoVersion)?.trim().parse()
    }

    /// Asks the program, as whom it would run as. `None`: it cannot be asked, or says something else.
    pub fn of_program(program: &Path) -> Option<EtcdVersion> {
        let mut command = Command::new(program);
        command.arg("--version").stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
        command.env_remove("NOTIFY_SOCKET").uid(crate::uids::ETCD).gid(crate::uids::ETCD).current_dir("/");
        let mut child = command.spawn().ok()?;
        let said = words_of(&mut child);
        // It has said what it had to, or will not.
        let _ = child.kill();
        let _ = child.wait();
        EtcdVersion::in_words_of_program(&said?).ok()
    }
}

/// What it prints until it closes its output. `None`: it takes too long.
fn words_of(child: &mut Child) -> Option<String> {
    let until = Instant::now() + ANSWER;
    let mut output = child.stdout.take()?.take(ANSWER_BYTES_MAX);
    let mut said = Vec::new();
    while Instant::now() < until {
        waiting::until_readable([output.get_ref().as_fd()].into_iter(), until);
        if Instant::now() >= until {
            break;
        }
        let mut piece = [0; 512];
        match output.read(&mut piece) {
            Ok(0) => return Some(String::from_utf8_lossy(&said).into_owned()),
            Ok(length) => said.extend(piece.iter().take(length)),
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => (),
            Err(_) => return None,
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn version(text: &str) -> EtcdVersion {
        text.parse().unwrap_or_else(|_| panic!("{text} is a version"))
    }

    #[test]
    fn version_is_read_from_what_the_program_says() {
        let said =
            "etcd Version: 3.5.16\nGit SHA: Not provided (use ./build instead of go build)\nGo Version: go1.24\n";
        assert_eq!(EtcdVersion::in_words_of_program(said).unwrap(), version("3.5.16"));
        assert_eq!(version("3.6.0-rc.1+git"), EtcdVersion { major: 3, minor: 6, patch: 0 });
        assert_eq!(version("3.10.2").to_string(), "3.10.2");
        for text in ["", "etcd", "etcd Version: \n", "etcd Version: three", "etcd Version: 3.5", "Version: 3.5.1"] {
            assert!(EtcdVersion::in_words_of_program(text).is_err(), "{text}");
        }
        for text in ["3", "3.5", "3.5.1.2", "-3.5.1", "3.5.99999", "v3.5.1", "3..1"] {
            assert!(text.parse::<EtcdVersion>().is_err(), "{text}");
        }
    }

    #[test]
    fn member_comes_to_members_of_its_minor_version_and_of_the_one_before() {
        let fit = |newcomer: &str, oldest: &str| version(newcomer).fit(version(oldest));
        assert_eq!(fit("3.4.23", "3.4.30"), Fit::Fits, "patches do not count");
        assert_eq!(fit("3.5.16", "3.4.23"), Fit::Fits);
        assert_eq!(fit("3.4.23", "3.5.16"), Fit::TooOld);
        assert_eq!(fit("3.6.1", "3.4.23"), Fit::TooNew);
        assert_eq!(fit("3.10.0", "3.9.0"), Fit::Fits, "numbers, not letters");
        assert_eq!(fit("4.0.0", "3.9.0"), Fit::TooNew);
        assert_eq!(fit("3.9.0", "4.0.0"), Fit::TooOld);
    }

    #[test]
    fn program_that_is_none_or_says_nothing_has_no_version() {
        assert_eq!(EtcdVersion::of_program(Path::new("/no/such/etcd")), None);
        assert_eq!(EtcdVersion::of_program(Path::new("/bin/true")), None);
        use std::os::unix::fs::PermissionsExt;
        let place = tempfile::tempdir_in("/tmp").unwrap();
        std::fs::set_permissions(place.path(), PermissionsExt::from_mode(0o755)).unwrap();
        let program = |name: &str, script: &str| {
            let path = place.path().join(name);
            std::fs::write(&path, format!("#!/bin/sh\n{script}\n")).unwrap();
            std::fs::set_permissions(&path, PermissionsExt::from_mode(0o755)).unwrap();
            path
        };
        let speaks = program("speaks", "echo etcd Version: 3.4.23; echo more");
        assert_eq!(EtcdVersion::of_program(&speaks), Some(version("3.4.23")));
        let floods = program("floods", "echo etcd Version: 3.4.23; exec yes");
        assert_eq!(EtcdVersion::of_program(&floods), Some(version("3.4.23")), "it reads no more than it must");
    }
}
