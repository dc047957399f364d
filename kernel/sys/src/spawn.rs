//! What a process of ours was started with: the `DVS_SPAWN` variable and the descriptors it names.
//!
//! Servers, gates, proxies and keepers are started by the node daemon with nothing but one environment variable (a
//! JSON object, see `docs/design/process-model.md`) and inherited descriptors. [`Spawn::from_env`] checks it once and
//! takes ownership of every descriptor it names, so that a role can only use what it was handed.
//!
//! Not here: what the options of a role mean (the role's crate), giving up privileges ([`crate::harden`]).

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::CString;
use std::io::Write;
use std::os::fd::{FromRawFd, OwnedFd, RawFd};

use serde::Deserialize;
use serde_json::{Map, Value};

/// Name of the environment variable.
pub const VARIABLE: &str = "DVS_SPAWN";
/// Descriptors one spawn record may name: images, channels of a proxy, the objects a keeper returns.
pub const FDS_MAX: usize = 1024;
/// What a started process writes to its ready descriptor once it serves.
pub const READY_BYTE: u8 = b'R';

#[derive(Debug, thiserror::Error)]
pub enum SpawnError {
    #[error("{VARIABLE} is not set: this command is started by the node daemon, not by hand")]
    NotSpawned,
    #[error("{VARIABLE} is not a valid spawn record")]
    Malformed(#[source] serde_json::Error),
    #[error("the spawn record lacks '{0}'")]
    Missing(&'static str),
    #[error("the spawn record's option '{0}' has the wrong type")]
    BadOption(String),
    #[error("the spawn record names descriptor {fd} ('{role}') twice, or more than {FDS_MAX} of them")]
    DuplicateFd { role: String, fd: RawFd },
    #[error("descriptor {fd} ('{role}') was not handed over")]
    BadFd {
        role: String,
        fd: RawFd,
        #[source]
        cause: std::io::Error,
    },
}

/// The checked spawn record. Descriptors are close-on-exec from here on.
#[derive(Debug)]
pub struct Spawn {
    pub dc: Option<u32>,
    pub dc_name: String,
    pub endpoint: Option<u32>,
    /// Incarnation of the role, raised by the daemon at each start.
    pub epoch: u64,
    /// Epoch of its placement, the same at each start there; 0 for what is not placed.
    pub placement_epoch: u32,
    pub uid: Option<u32>,
    pub gid: Option<u32>,
    pub options: Map<String, Value>,
    /// Fields of the record that are not common to all roles.
    pub fields: Map<String, Value>,
    broker: Option<OwnedFd>,
    ready: Option<OwnedFd>,
    fds: BTreeMap<String, OwnedFd>,
}

#[derive(Deserialize)]
struct Record {
    dc: Option<u32>,
    #[serde(default)]
    dc_name: String,
    endpoint: Option<u32>,
    broker_fd: Option<RawFd>,
    #[serde(default)]
    epoch: u64,
    #[serde(default)]
    placement_epoch: u32,
    #[serde(default)]
    fds: BTreeMap<String, RawFd>,
    #[serde(default)]
    options: Map<String, Value>,
    ready_fd: Option<RawFd>,
    uid: Option<u32>,
    gid: Option<u32>,
    #[serde(flatten)]
    fields: Map<String, Value>,
}

/// The kernel named us after `/proc/self/exe`, which tells nobody what we are: `dvs server fs` becomes `dvs-server-fs`.
fn name_after_arguments() {
    let name = std::env::args_os().map(|word| word.to_string_lossy().into_owned()).collect::<Vec<_>>().join("-");
    if let Ok(name) = CString::new(name) {
        // The kernel cuts it at 15 bytes. A process without a name works as well.
        let _ = rustix::thread::set_name(&name);
    }
}

impl Spawn {
    /// Reads the record of this process. Must be called once, early in `main`: it takes the descriptors' ownership.
    pub fn from_env() -> Result<Spawn, SpawnError> {
        let text = std::env::var(VARIABLE).map_err(|_| SpawnError::NotSpawned)?;
        name_after_arguments();
        Spawn::from_json(&text)
    }

    fn from_json(text: &str) -> Result<Spawn, SpawnError> {
        let record: Record = serde_json::from_str(text).map_err(SpawnError::Malformed)?;
        let mut taken = Taken::default();
        let broker = record.broker_fd.map(|fd| taken.take("broker_fd", fd)).transpose()?;
        let ready = record.ready_fd.map(|fd| taken.take("ready_fd", fd)).transpose()?;
        let mut fds = BTreeMap::new();
        for (role, fd) in record.fds {
            let owned = taken.take(&role, fd)?;
            fds.insert(role, owned);
        }
        Ok(Spawn {
            dc: record.dc,
            dc_name: record.dc_name,
            endpoint: record.endpoint,
            epoch: record.epoch,
            placement_epoch: record.placement_epoch,
            uid: record.uid,
            gid: record.gid,
            options: record.options,
            fields: record.fields,
            broker,
            ready,
            fds,
        })
    }

    /// The connected socket to the broker.
    pub fn take_broker(&mut self) -> Result<OwnedFd, SpawnError> {
        self.broker.take().ok_or(SpawnError::Missing("broker_fd"))
    }

    /// The descriptor handed over for `role` (`image`, `fuse` …), `None` when there is none (or it was taken).
    pub fn take_fd(&mut self, role: &str) -> Option<OwnedFd> {
        self.fds.remove(role)
    }

    /// Every descriptor that was not taken yet, by role.
    pub fn take_fds(&mut self) -> BTreeMap<String, OwnedFd> {
        std::mem::take(&mut self.fds)
    }

    /// A number among the options, `None` when absent.
    pub fn option_u64(&self, name: &str) -> Result<Option<u64>, SpawnError> {
        match self.options.get(name) {
            None | Some(Value::Null) => Ok(None),
            Some(value) => value.as_u64().map(Some).ok_or_else(|| SpawnError::BadOption(name.to_owned())),
        }
    }

    /// What `convert` makes of a number among the options, `None` when absent. A number it refuses is a bad option.
    pub fn option_as<T>(&self, name: &str, convert: impl FnOnce(u64) -> Option<T>) -> Result<Option<T>, SpawnError> {
        let Some(number) = self.option_u64(name)? else { return Ok(None) };
        convert(number).map(Some).ok_or_else(|| SpawnError::BadOption(name.to_owned()))
    }

    /// The epoch of a placement among the options, 0 when absent.
    pub fn option_epoch(&self, name: &str) -> Result<u32, SpawnError> {
        Ok(self.option_as(name, |number| u32::try_from(number).ok())?.unwrap_or(0))
    }

    /// A text among the options, `None` when absent.
    pub fn option_str(&self, name: &str) -> Result<Option<&str>, SpawnError> {
        match self.options.get(name) {
            None | Some(Value::Null) => Ok(None),
            Some(value) => value.as_str().map(Some).ok_or_else(|| SpawnError::BadOption(name.to_owned())),
        }
    }

    /// Tells whoever started us that we serve. Nobody listening any more is no error of ours.
    pub fn ready(&mut self) {
        if let Some(fd) = self.ready.take() {
            let _ = std::fs::File::from(fd).write_all(&[READY_BYTE]);
        }
    }
}

#[derive(Default)]
struct Taken(BTreeSet<RawFd>);

impl Taken {
    fn take(&mut self, role: &str, fd: RawFd) -> Result<OwnedFd, SpawnError> {
        // The standard streams stay the process's own: a record that names them would close its log.
        if fd <= 2 || self.0.len() >= FDS_MAX || !self.0.insert(fd) {
            return Err(SpawnError::DuplicateFd { role: role.to_owned(), fd });
        }
        // SAFETY: (1) fcntl with F_SETFD takes no pointer; an unknown number answers EBADF.
        let set = unsafe { libc::fcntl(fd, libc::F_SETFD, libc::FD_CLOEXEC) };
        if set < 0 {
            let cause = std::io::Error::last_os_error();
            return Err(SpawnError::BadFd { role: role.to_owned(), fd, cause });
        }
        // SAFETY: (1) the number is open, as fcntl just said. (2) It was inherited for us by the contract of the spawn
        // record and is taken once only: the set above refuses a second owner.
        Ok(unsafe { OwnedFd::from_raw_fd(fd) })
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::IntoRawFd;

    use super::*;

    #[test]
    fn record_hands_over_each_descriptor_once() {
        let fd = std::fs::File::open("/dev/null").expect("open").into_raw_fd();
        let text = format!(
            r#"{{"dc":7,"dc_name":"shop","endpoint":16,"epoch":3,"placement_epoch":2,"fds":{{"image":{fd}}},"options":{{"bytes":4096}},"node":"n1"}}"#
        );
        let mut spawn = Spawn::from_json(&text).expect("valid");
        assert_eq!((spawn.dc, spawn.endpoint, spawn.epoch, spawn.placement_epoch), (Some(7), Some(16), 3, 2));
        assert_eq!(spawn.option_u64("bytes").expect("number"), Some(4096));
        assert_eq!(spawn.fields.get("node").and_then(Value::as_str), Some("n1"));
        assert!(spawn.take_fd("image").is_some());
        assert!(spawn.take_fd("image").is_none());
        assert!(matches!(spawn.take_broker(), Err(SpawnError::Missing("broker_fd"))));
    }

    #[test]
    fn descriptor_that_is_not_open_or_named_twice_is_refused() {
        let closed = r#"{"fds":{"image":1000000}}"#;
        assert!(matches!(Spawn::from_json(closed), Err(SpawnError::BadFd { .. })));
        let standard = r#"{"fds":{"image":2}}"#;
        assert!(matches!(Spawn::from_json(standard), Err(SpawnError::DuplicateFd { .. })));
        let fd = std::fs::File::open("/dev/null").expect("open").into_raw_fd();
        let twice = format!(r#"{{"fds":{{"a":{fd},"b":{fd}}}}}"#);
        assert!(matches!(Spawn::from_json(&twice), Err(SpawnError::DuplicateFd { .. })));
    }
}
