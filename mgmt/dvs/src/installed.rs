//! What a machine has that is a node: settings, certificates, and where the engine is. Written by `dvs cluster init`
//! and `dvs node join`, read by the daemon.
//!
//! The settings come last: a machine without them is no node, and the command may be repeated.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, UdpSocket};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use clap::Args;
use mgmt_api::MemberAddress;
use serde::Serialize;

use crate::errors::Failure;
use crate::output::Row;

/// What etcd calls its own.
pub const ETCD_CLIENT_PORT: u16 = 2379;
pub const ETCD_PEER_PORT: u16 = 2380;
/// Of the daemon's API, and of its first proxy.
pub const API_PORT: u16 = 7420;
const PROXY_PORT: u16 = 7421;

/// Where things lie on this machine.
#[derive(Args, Debug)]
pub struct Where {
    /// Settings of the daemon; written anew.
    #[arg(long, value_name = "FILE", default_value = "/etc/dvs/dvsd.toml")]
    pub config: PathBuf,
    /// State directory of the node: certificates, images, what it knows of the engine.
    #[arg(long, value_name = "DIR", default_value = "/var/lib/dvs")]
    pub data: PathBuf,
    /// Sockets, and records of running processes.
    #[arg(long, value_name = "DIR", default_value = "/run/dvs", hide_short_help = true)]
    pub run: PathBuf,
    /// Name of the node [default: the host's name].
    #[arg(long, value_name = "NAME")]
    pub node: Option<String>,
    /// Address at which other nodes reach this one [default: the one from which this machine reaches others].
    #[arg(long, value_name = "ADDRESS")]
    pub advertise: Option<IpAddr>,
    /// Address of this machine to which the one of --advertise is translated (NAT, a floating address).
    #[arg(long, value_name = "ADDRESS", requires = "advertise")]
    pub listen: Option<IpAddr>,
}

/// What this machine became.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct NewNode {
    pub cluster: String,
    pub node: String,
    pub address: IpAddr,
    pub config: PathBuf,
}

impl Row for NewNode {
    const HEADINGS: &'static [&'static str] = &["CLUSTER", "NODE", "ADDRESS", "SETTINGS"];

    fn cells(&self) -> Vec<String> {
        vec![self.cluster.clone(), self.node.clone(), self.address.to_string(), self.config.display().to_string()]
    }

    fn name(&self) -> String {
        self.node.clone()
    }
}

/// Whether a machine that was a node becomes one anew.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Before {
    /// Then it is refused.
    Nothing,
    /// What is left is replaced: the node was taken out of its cluster.
    Replaced,
}

/// `dvsd.toml`; the names are `dvsd::Settings`'.
#[derive(Serialize)]
pub struct SettingsFile<'a> {
    pub node: &'a str,
    pub cluster: &'a str,
    pub advertise: IpAddr,
    /// Absent: everywhere.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub listen: Option<IpAddr>,
    pub state_dir: &'a Path,
    pub run_dir: &'a Path,
    /// Absent: the engine is a file of this machine.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub etcd: Option<EtcdTable>,
}

#[derive(Serialize, Default)]
pub struct EtcdTable {
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub managed: bool,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub members: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub root: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tls_dir: Option<PathBuf>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub password_file: Option<PathBuf>,
}

/// `engine.json`; the names are the daemon's.
#[derive(Serialize)]
pub struct EngineFile {
    pub members: BTreeMap<String, MemberAddress>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub own: Option<OwnMember>,
}

#[derive(Serialize)]
pub struct OwnMember {
    pub initial: BTreeMap<String, String>,
    pub is_first: bool,
}

impl Where {
    pub fn tls_dir(&self) -> PathBuf {
        self.data.join("tls")
    }

    pub fn name(&self) -> Result<String, Failure> {
        let name = self.node.clone().unwrap_or_else(host_name);
        if mgmt_api::valid_name(&name) {
            return Ok(name);
        }
        Err(Failure::usage(format!("'{name}' cannot be a node's name"))
            .hint("1 to 32 of a-z, 0-9 and -, beginning with a letter: --node n1"))
    }

    /// Refuses a machine that is a node, or was one.
    pub fn demand_fresh(&self, before: Before) -> Result<(), Failure> {
        if !rustix::process::geteuid().is_root() {
            return Err(Failure::new("this machine cannot become a node")
                .because_text("only root may write its settings")
                .hint("run it as root"));
        }
        if before == Before::Replaced {
            return self.demand_that_nothing_runs();
        }
        let left = ["engine.db", "etcd/data", "identity.json"].map(|name| self.data.join(name));
        let left = std::iter::once(&self.config).filter(|path| !is_template(path)).chain(&left);
        match left.into_iter().find(|path| path.exists()) {
            None => Ok(()),
            Some(path) => Err(Failure::new("this machine is a node already, or was one")
                .because_text(format!("there is {}", path.display()))
                .hint("dvs node ls; if it was taken out of its cluster: dvs node join --again")),
        }
    }

    /// Of the node that it was.
    fn demand_that_nothing_runs(&self) -> Result<(), Failure> {
        if std::os::unix::net::UnixStream::connect(self.run.join("dvsd.sock")).is_ok() {
            return Err(Failure::new("the node's daemon runs").hint("end it first: systemctl stop dvsd"));
        }
        // What an earlier daemon wrote down of its member of etcd.
        let record = fs::read(self.run.join("etcd.json")).ok();
        let record: Option<serde_json::Value> = record.and_then(|text| serde_json::from_slice(&text).ok());
        let pid = record.and_then(|record| record["pid"].as_u64());
        let comm = pid.and_then(|pid| fs::read_to_string(format!("/proc/{pid}/comm")).ok());
        match (pid, comm) {
            (Some(pid), Some(comm)) if comm.trim() == "etcd" => {
                Err(Failure::new("the node's member of etcd runs").hint(format!("end it first: kill {pid}")))
            }
            _ => Ok(()),
        }
    }

    /// Refuses an address that this machine does not have: nothing could listen there.
    pub fn demand_own(&self, advertised: IpAddr) -> Result<(), Failure> {
        if let Some(own) = self.listen.filter(|own| own.is_unspecified() || own.is_loopback()) {
            return Err(Failure::usage(format!("nothing that comes from elsewhere is translated to {own}"))
                .hint("an address of this machine (ip addr): --listen 10.0.0.5"));
        }
        let own = self.listen.unwrap_or(advertised);
        // Whatever else may be wrong is told by who uses it.
        let absent = TcpListener::bind((own, 0)).err().filter(|error| error.kind() == io::ErrorKind::AddrNotAvailable);
        let Some(error) = absent else { return Ok(()) };
        let mut failure = Failure::new(format!("this machine does not have the address {own}")).because(&error);
        if let Some(other) = own_address() {
            failure = failure.because_text(format!("the one from which it reaches others is {other}"));
        }
        Err(failure.hint(match self.listen {
            Some(_) => "an address of this machine (ip addr): --listen 10.0.0.5".to_owned(),
            None => format!(
                "one that it has (ip addr): --advertise ADDRESS; if {own} is translated to one of this machine (NAT, a \
                 floating address), name that one too: --advertise {own} --listen ADDRESS"
            ),
        }))
    }

    /// Refuses to become a node while something else listens where its daemon would.
    pub fn demand_free_for_daemon(&self) -> Result<(), Failure> {
        let at = self.listen.unwrap_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED));
        [API_PORT, PROXY_PORT].into_iter().try_for_each(|port| demand_free(SocketAddr::new(at, port), "the daemon"))
    }

    /// The same for its member of etcd.
    pub fn demand_free_for_member(&self, advertised: IpAddr) -> Result<(), Failure> {
        let at = self.listen.unwrap_or(advertised);
        let ports = [ETCD_CLIENT_PORT, ETCD_PEER_PORT];
        ports.into_iter().try_for_each(|port| demand_free(SocketAddr::new(at, port), "its member of etcd"))
    }

    /// Puts aside what a node leaves that was taken out, as `NAME.old`. Images of containers stay.
    pub fn put_aside(&self) -> Result<(), Failure> {
        for name in ["etcd", "tls", "engine.json", "engine.db", "identity.json"] {
            let path = self.data.join(name);
            let mut name = path.file_name().unwrap_or_default().to_owned();
            name.push(".old");
            let old = path.with_file_name(name);
            if !path.exists() {
                continue;
            }
            let gone = if old.is_dir() { fs::remove_dir_all(&old) } else { fs::remove_file(&old) };
            remove(&old, gone)?;
            fs::rename(&path, &old).map_err(|error| {
                Failure::new(format!("cannot put {} aside", path.display())).because(&error).hint(what_to_try(&error))
            })?;
        }
        Ok(())
    }

    pub fn write_engine(&self, file: &EngineFile) -> Result<(), Failure> {
        let text = serde_json::to_string_pretty(file).map_err(|error| Failure::new("no file").because(&error))?;
        write(&self.data.join("engine.json"), &text, 0o644)
    }

    /// The last of all.
    pub fn write_settings(&self, settings: &SettingsFile<'_>, by: &str) -> Result<(), Failure> {
        let text = toml::to_string(settings).map_err(|error| Failure::new("no settings").because(&error))?;
        let head = format!("# Written by {by}. All settings: dvs daemon --help\n");
        write(&self.config, &format!("{head}{text}"), 0o644)
    }

    /// Makes it with all above it.
    pub fn make_data_dir(&self) -> Result<(), Failure> {
        let made = fs::DirBuilder::new().recursive(true).mode(0o755).create(&self.data);
        made.map_err(|error| {
            Failure::new(format!("cannot make {}", self.data.display())).because(&error).hint(what_to_try(&error))
        })
    }

    /// What to do next.
    pub fn next(&self) -> String {
        let unit = Path::new("/run/systemd/system").exists() && Path::new("/lib/systemd/system/dvsd.service").exists();
        if unit && self.config == Path::new("/etc/dvs/dvsd.toml") {
            return "systemctl enable --now dvsd".to_owned();
        }
        format!("dvs daemon --config {}", self.config.display())
    }
}

/// What is wrong with a port may be something else; who binds it for good says that.
fn demand_free(at: SocketAddr, whose: &str) -> Result<(), Failure> {
    match TcpListener::bind(at) {
        Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
            let port = at.port();
            Err(Failure::new(format!("port {port} of this machine is taken, and {whose} needs it"))
                .because(&error)
                .hint(format!("ss -ltnp 'sport = :{port}' shows who listens there; end that first")))
        }
        _ => Ok(()),
    }
}

pub fn has_etcd() -> bool {
    let paths = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&paths).any(|dir| dir.join("etcd").exists())
}

/// Where the cluster's decisions would lie.
pub fn demand_etcd() -> Result<(), Failure> {
    if has_etcd() {
        return Ok(());
    }
    Err(Failure::new("this machine cannot keep the cluster's decisions")
        .because_text("there is no program 'etcd'")
        .hint(
            "apt-get install etcd-server; or --etcd HOST:PORT, where you have one; or --engine local, for one machine",
        ))
}

/// The package's own file says nothing: all its lines are comments.
pub fn is_template(path: &Path) -> bool {
    let says_nothing = |line: &str| line.trim().is_empty() || line.trim_start().starts_with('#');
    fs::read_to_string(path).is_ok_and(|text| text.lines().all(says_nothing))
}

fn remove(path: &Path, removed: io::Result<()>) -> Result<(), Failure> {
    match removed {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(Failure::new(format!("cannot remove {}", path.display())).because(&error).hint(what_to_try(&error)))
        }
        _ => Ok(()),
    }
}

/// As a whole or not at all, and on the disk when this returns.
pub fn write(path: &Path, text: &str, mode: u32) -> Result<(), Failure> {
    let failed = |error: io::Error| not_written(path, &error);
    let dir = path.parent().unwrap_or(Path::new("/"));
    fs::DirBuilder::new().recursive(true).mode(0o755).create(dir).map_err(failed)?;
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(".new");
    let fresh = path.with_file_name(name);
    let written = || {
        let _ = fs::remove_file(&fresh);
        let mut file = fs::OpenOptions::new().write(true).create_new(true).mode(mode).open(&fresh)?;
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        fs::rename(&fresh, path)?;
        fs::File::open(dir)?.sync_all()
    };
    written().map_err(|error| {
        let _ = fs::remove_file(&fresh);
        failed(error)
    })
}

/// Of a file of this machine.
pub fn not_written(path: &Path, cause: &io::Error) -> Failure {
    Failure::new(format!("cannot write {}", path.display())).because(cause).hint(what_to_try(cause))
}

/// What people can do about a file that is not written or read.
pub fn what_to_try(cause: &io::Error) -> &'static str {
    use io::ErrorKind::{NotFound, PermissionDenied, QuotaExceeded, ReadOnlyFilesystem, StorageFull};
    match cause.kind() {
        StorageFull | QuotaExceeded => "make room there (df -h), then the same again; or another place",
        PermissionDenied => "run it as who may write there, or name another place",
        ReadOnlyFilesystem => "another place: that file system is read-only",
        NotFound => "a path that is there (ls shows it)",
        _ => "another place",
    }
}

/// The host's name up to its first dot.
fn host_name() -> String {
    let name = rustix::system::uname().nodename().to_string_lossy().to_lowercase();
    name.split('.').next().unwrap_or_default().to_owned()
}

/// The address from which this machine would reach another one; nothing is sent.
pub fn address_towards(other: IpAddr) -> Option<IpAddr> {
    let any: IpAddr = if other.is_ipv4() { [0, 0, 0, 0].into() } else { std::net::Ipv6Addr::UNSPECIFIED.into() };
    let socket = UdpSocket::bind((any, 0)).ok()?;
    socket.connect((other, 9)).ok()?;
    let address = socket.local_addr().ok()?.ip();
    (!address.is_unspecified() && !address.is_loopback()).then_some(address)
}

/// The address of this machine, where only one can be meant: the one from which it reaches the world, or the only one
/// it has.
pub fn own_address() -> Option<IpAddr> {
    if let Some(address) = address_towards(IpAddr::from([192, 0, 2, 1])) {
        return Some(address);
    }
    let routes = fs::read_to_string("/proc/net/route").unwrap_or_default();
    let mut addresses: Vec<IpAddr> = networks(&routes).into_iter().filter_map(address_towards).collect();
    addresses.sort();
    addresses.dedup();
    match addresses.as_slice() {
        [only] => Some(*only),
        _ => None,
    }
}

/// An address in each network that is connected, of the lines of `/proc/net/route` (proc(5)): numbers in the machine's
/// own order of bytes.
fn networks(routes: &str) -> Vec<IpAddr> {
    let network = |line: &str| {
        let destination = u32::from_str_radix(line.split_whitespace().nth(1)?, 16).ok()?;
        (destination != 0).then(|| {
            let [first, second, third, fourth] = destination.to_ne_bytes();
            IpAddr::from([first, second, third, fourth | 1])
        })
    };
    routes.lines().skip(1).filter_map(network).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn networks_are_those_of_the_kernels_table() {
        let table = "Iface\tDestination\tGateway\nlo\t0000007F\t0\neth0\t00000000\t0101010A\neth0\t0000FF0A\t0\nx\n";
        let expected: [IpAddr; 2] = [[127, 0, 0, 1].into(), [10, 255, 0, 1].into()];
        assert_eq!(networks(table), expected);
    }

    #[test]
    fn file_that_could_not_take_its_place_leaves_no_draft_and_says_what_to_try() {
        let dir = tempfile::tempdir().unwrap();
        let taken = dir.path().join("dvsd.toml");
        fs::create_dir_all(taken.join("in the way")).unwrap();
        let refused = write(&taken, "node = \"n1\"", 0o644).unwrap_err();
        assert!(refused.what.contains("dvsd.toml") && refused.hint.is_some(), "{refused:?}");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1, "the draft is gone");
        for kind in [io::ErrorKind::StorageFull, io::ErrorKind::PermissionDenied, io::ErrorKind::Other] {
            assert!(!what_to_try(&kind.into()).is_empty());
        }
    }

    fn place(listen: Option<&str>) -> Where {
        let listen = listen.map(|address| address.parse().unwrap());
        let nothing = PathBuf::new;
        Where { config: nothing(), data: nothing(), run: nothing(), node: None, advertise: None, listen }
    }

    #[test]
    fn address_of_nobody_here_is_refused_with_what_to_say_when_it_is_translated() {
        let foreign: IpAddr = [192, 0, 2, 77].into();
        let refused = place(None).demand_own(foreign).unwrap_err();
        let hint = refused.hint.unwrap();
        assert!(refused.what.contains("does not have the address 192.0.2.77"), "{}", refused.what);
        assert!(hint.contains("--advertise 192.0.2.77 --listen ADDRESS"), "{hint}");
        let refused = place(Some("192.0.2.78")).demand_own(foreign).unwrap_err();
        assert!(refused.what.contains("192.0.2.78") && refused.hint.unwrap().contains("--listen"));
        for nobody in ["0.0.0.0", "127.0.0.1"] {
            assert!(place(Some(nobody)).demand_own(foreign).unwrap_err().what.contains("translated"), "{nobody}");
        }
        let Some(own) = own_address() else { return };
        assert!(place(None).demand_own(own).is_ok());
        assert!(place(Some(&own.to_string())).demand_own(foreign).is_ok());
    }

    #[test]
    fn port_at_which_something_listens_is_refused_and_a_free_one_is_not() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let at = listener.local_addr().unwrap();
        let refused = demand_free(at, "the daemon").unwrap_err();
        assert!(refused.what.contains(&at.port().to_string()) && refused.what.contains("the daemon"), "{refused:?}");
        assert!(refused.hint.unwrap().contains("ss -ltnp"));
        let everywhere = SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), at.port());
        assert!(demand_free(everywhere, "the daemon").is_err(), "one address of it is taken");
        drop(listener);
        assert!(demand_free(at, "the daemon").is_ok());
    }

    #[test]
    fn settings_of_the_package_that_say_nothing_are_none() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("dvsd.toml");
        fs::write(&path, "# node = \"n1\"\n\n  # more\n").unwrap();
        assert!(is_template(&path));
        fs::write(&path, "# comment\nnode = \"n1\"\n").unwrap();
        assert!(!is_template(&path) && !is_template(&dir.path().join("none")));
    }
}
