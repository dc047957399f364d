//! Which cluster engine this node uses, and where it is.
//!
//! Without the table `[etcd]` in the settings it is the local one, a file. With it, etcd: a cluster of etcd that
//! somebody else looks after, or members that the nodes run themselves (`[etcd.serve]`, `member.rs`).

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use cluster::etcd::{EtcdConfig, EtcdEngine, Member, User};
use cluster::local::{LocalConfig, LocalEngine};
use cluster::{Engine, EngineError};
use pki::NodeCredentials;
use serde::Deserialize;

use crate::config::{Addresses, Config};
use crate::quorum::{EngineFile, FileError, Own};

/// What etcd calls its own; the numbers that are assigned to it.
pub const CLIENT_PORT: u16 = 2379;
pub const PEER_PORT: u16 = 2380;
/// Between two attempts of a daemon that finds no engine. Members may be on their way: all machines were off.
const RETRY: Duration = Duration::from_secs(1);

/// `[etcd]` in the settings.
#[derive(Clone, PartialEq, Eq, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EtcdSettings {
    /// The cluster decides which nodes run a member, and keeps `STATE_DIR/engine.json`. False.
    pub managed: Option<bool>,
    /// Where members serve clients: `["10.0.0.1:2379", …]`. Not with `managed`.
    #[serde(default)]
    pub members: Vec<String>,
    /// What all keys of this cluster begin with. `dvs/CLUSTER`.
    pub root: Option<String>,
    /// Encrypted, with certificates on both sides. True.
    pub tls: Option<bool>,
    /// `ca.crt`, `node.crt`, `node.key` for etcd. The setting `tls_dir`.
    pub tls_dir: Option<PathBuf>,
    /// A user of etcd; without, the certificate says who this node is.
    pub user: Option<String>,
    /// File with the user's password; its last line end does not count.
    pub password_file: Option<PathBuf>,
    /// That this node runs a member.
    pub serve: Option<ServeSettings>,
}

/// `[etcd.serve]`.
#[derive(Clone, PartialEq, Eq, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ServeSettings {
    /// 2379.
    pub client_port: Option<u16>,
    /// 2380.
    pub peer_port: Option<u16>,
    /// Of all nodes that run a member, this one too: `{ n1 = "10.0.0.1:2380", … }`. Not with `managed`.
    #[serde(default)]
    pub peers: BTreeMap<String, String>,
    /// The program; `etcd`, looked for where programs are.
    pub program: Option<PathBuf>,
}

#[derive(Debug, thiserror::Error)]
pub enum EtcdSettingsError {
    #[error("etcd needs at least one member (setting 'etcd.members')")]
    NoMembers,
    #[error(
        "with 'etcd.managed' the cluster knows the members: leave out 'etcd.members', 'etcd.serve.peers', 'etcd.user'"
    )]
    ManagedAndGiven,
    #[error("where the members of the engine are is not known")]
    File(#[from] FileError),
    #[error("the data of the engine's first member are gone from {}: it would begin another, empty cluster", .0.display())]
    DataLost(PathBuf),
    #[error("the setting 'etcd.members'")]
    BadMember(#[from] cluster::etcd::BadMember),
    #[error(
        "the root of the keys, {0:?}, is 1 to 64 of a-z, A-Z, 0-9, '.', '-' and '/', without '/' at its ends (setting 'etcd.root')"
    )]
    BadRoot(String),
    #[error("a user needs a password, and a password a user (settings 'etcd.user', 'etcd.password_file')")]
    HalfAUser,
    #[error("this node, '{0}', is not among those that run a member (setting 'etcd.serve.peers')")]
    NotAPeer(String),
    #[error("cannot read the password in {}", .path.display())]
    Password {
        path: PathBuf,
        #[source]
        cause: std::io::Error,
    },
    #[error("the certificates for etcd cannot be used")]
    Certificates(#[from] pki::PkiError),
}

/// All settled.
#[derive(Clone, Debug)]
pub struct EtcdChoice {
    pub members: Vec<Member>,
    pub root: String,
    /// `None`: not encrypted.
    pub tls_dir: Option<PathBuf>,
    pub user: Option<(String, PathBuf)>,
    pub serve: Option<Serve>,
    /// Members and `serve` are those of the file, as they are now.
    pub managed: Option<Managed>,
    /// This node's address for others, and the one of its own to which that is translated; where they differ.
    pub translated: Option<(IpAddr, IpAddr)>,
}

/// How this node would run a member, where the cluster decides whether it does.
#[derive(Clone, Debug)]
pub struct Managed {
    pub root: String,
    pub tls_dir: Option<PathBuf>,
    pub client_port: u16,
    pub peer_port: u16,
    pub program: PathBuf,
}

/// The member that this node runs.
#[derive(Clone, Debug)]
pub struct Serve {
    /// Where others find it.
    pub address: IpAddr,
    /// Where it listens: an address of this machine.
    pub listen: IpAddr,
    pub client_port: u16,
    pub peer_port: u16,
    pub peers: BTreeMap<String, Member>,
    /// It comes to others that are there already.
    pub joins: bool,
    /// What tells this cluster of etcd from others at the same addresses.
    pub token: String,
    pub program: PathBuf,
}

impl EtcdSettings {
    pub fn settle(
        self,
        node: &str,
        cluster: &str,
        at: Addresses,
        tls_dir: &Path,
    ) -> Result<EtcdChoice, EtcdSettingsError> {
        let is_managed = self.managed.unwrap_or(false);
        let members = self.members.iter().map(|text| text.parse()).collect::<Result<Vec<Member>, _>>()?;
        if is_managed {
            let has_peers = self.serve.as_ref().is_some_and(|serve| !serve.peers.is_empty());
            if has_peers || !members.is_empty() || self.user.is_some() {
                return Err(EtcdSettingsError::ManagedAndGiven);
            }
        } else if members.is_empty() {
            return Err(EtcdSettingsError::NoMembers);
        }
        let root = self.root.unwrap_or_else(|| format!("dvs/{cluster}"));
        let is_good = |letter: char| letter.is_ascii_alphanumeric() || ['.', '-', '/'].contains(&letter);
        if root.is_empty()
            || root.len() > 64
            || !root.chars().all(is_good)
            || root.starts_with('/')
            || root.ends_with('/')
        {
            return Err(EtcdSettingsError::BadRoot(root));
        }
        let user = match (self.user, self.password_file) {
            (None, None) => None,
            (Some(user), Some(file)) => Some((user, file)),
            _ => return Err(EtcdSettingsError::HalfAUser),
        };
        let tls_dir = self.tls.unwrap_or(true).then(|| self.tls_dir.unwrap_or_else(|| tls_dir.to_owned()));
        if is_managed {
            let serve = self.serve.unwrap_or_default();
            let managed = Managed {
                root: root.clone(),
                tls_dir: tls_dir.clone(),
                client_port: serve.client_port.unwrap_or(CLIENT_PORT),
                peer_port: serve.peer_port.unwrap_or(PEER_PORT),
                program: serve.program.unwrap_or_else(|| PathBuf::from("etcd")),
            };
            let translated = at.translated();
            return Ok(EtcdChoice { members, root, tls_dir, user, serve: None, managed: Some(managed), translated });
        }
        let serve = self.serve.map(|serve| serve.settle(node, cluster, at)).transpose()?;
        Ok(EtcdChoice { members, root, tls_dir, user, serve, managed: None, translated: at.translated() })
    }
}

impl Managed {
    /// Where clients find the members that are known.
    pub fn voters(&self, file: &EngineFile) -> Vec<Member> {
        // What the engine or the file holds was an address once; one that is none is left out.
        file.members.values().filter_map(|address| address.client.parse().ok()).collect()
    }

    /// With what the file says now.
    pub fn choice(&self, config: &Config, file: &EngineFile) -> Result<EtcdChoice, EtcdSettingsError> {
        let members = self.voters(file);
        if members.is_empty() {
            return Err(EtcdSettingsError::NoMembers);
        }
        let has_lost = has_lost_data(config, file);
        if has_lost && members.len() == 1 {
            return Err(EtcdSettingsError::DataLost(config.state_dir.join("etcd/data")));
        }
        // Others may have what it lost.
        let serve = file.own.as_ref().filter(|_| !has_lost).map(|own| {
            let peers = own.initial.iter().map(|(name, peer)| Ok((name.clone(), peer.parse()?)));
            let peers = peers.collect::<Result<BTreeMap<String, Member>, EtcdSettingsError>>()?;
            Ok::<Serve, EtcdSettingsError>(Serve {
                address: config.advertise,
                listen: config.addresses().own(),
                client_port: self.client_port,
                peer_port: self.peer_port,
                peers,
                joins: !own.is_first,
                token: own.token.clone().unwrap_or_else(|| config.cluster.clone()),
                program: self.program.clone(),
            })
        });
        Ok(EtcdChoice {
            members,
            root: self.root.clone(),
            tls_dir: self.tls_dir.clone(),
            user: None,
            serve: serve.transpose()?,
            managed: Some(self.clone()),
            translated: config.addresses().translated(),
        })
    }
}

/// This node's member served, and its data are not there any more.
pub fn has_lost_data(config: &Config, file: &EngineFile) -> bool {
    let lost = |own: &Own| own.is_founded && !config.state_dir.join("etcd/data/member").exists();
    file.own.as_ref().is_some_and(lost)
}

/// The choice as it stands at the start of the daemon; `None` with the local engine.
pub fn chosen(config: &Config) -> Result<Option<EtcdChoice>, EtcdSettingsError> {
    let Some(etcd) = &config.etcd else { return Ok(None) };
    match &etcd.managed {
        Some(managed) => managed.choice(config, &EngineFile::read(&config.state_dir)?).map(Some),
        None => Ok(Some(etcd.clone())),
    }
}

impl ServeSettings {
    fn settle(self, node: &str, cluster: &str, at: Addresses) -> Result<Serve, EtcdSettingsError> {
        let peers = self.peers.into_iter().map(|(name, peer)| Ok((name, peer.parse()?)));
        let peers = peers.collect::<Result<BTreeMap<String, Member>, EtcdSettingsError>>()?;
        if !peers.contains_key(node) {
            return Err(EtcdSettingsError::NotAPeer(node.to_owned()));
        }
        Ok(Serve {
            address: at.advertise,
            listen: at.own(),
            client_port: self.client_port.unwrap_or(CLIENT_PORT),
            peer_port: self.peer_port.unwrap_or(PEER_PORT),
            peers,
            joins: false,
            token: cluster.to_owned(),
            program: self.program.unwrap_or_else(|| PathBuf::from("etcd")),
        })
    }
}

/// The engine, and what it can besides where it is etcd.
pub struct Opened {
    pub engine: Arc<dyn Engine>,
    pub etcd: Option<Arc<EtcdEngine>>,
}

/// Opens the engine. With etcd it waits until there is one that serves; what waiting does not mend is an error at once.
/// `credentials`: what this node shows to etcd.
pub fn open(
    config: &Config,
    etcd: Option<&EtcdChoice>,
    credentials: Option<&Arc<NodeCredentials>>,
) -> Result<Opened, OpenError> {
    let Some(etcd) = etcd else {
        let local = LocalConfig::new(&config.engine, &config.engine_volatile);
        return Ok(Opened { engine: Arc::new(LocalEngine::open(local)?), etcd: None });
    };
    let wanted = etcd_config(etcd, &config.node, credentials)?;
    let mut said = None;
    loop {
        match EtcdEngine::open(wanted.clone()) {
            Ok(engine) => {
                let engine = Arc::new(engine);
                return Ok(Opened { engine: Arc::clone(&engine) as Arc<dyn Engine>, etcd: Some(engine) });
            }
            Err(error @ (EngineError::Unreachable(_) | EngineError::NoQuorum(_))) => {
                let words = crate::supervise::causes(&error);
                if said.as_ref() != Some(&words) {
                    tracing::warn!(error = words, "waiting for the cluster engine");
                    said = Some(words);
                }
                std::thread::sleep(RETRY);
            }
            Err(error) => return Err(error.into()),
        }
    }
}

/// Whether these members answer, within the time that a call has.
pub fn ask_once(etcd: &EtcdChoice, node: &str, credentials: Option<&Arc<NodeCredentials>>) -> Result<(), OpenError> {
    EtcdEngine::open(etcd_config(etcd, node, credentials)?)?;
    Ok(())
}

#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    #[error(transparent)]
    Engine(#[from] EngineError),
    #[error(transparent)]
    Settings(#[from] EtcdSettingsError),
}

pub fn etcd_config(
    etcd: &EtcdChoice,
    node: &str,
    credentials: Option<&Arc<NodeCredentials>>,
) -> Result<EtcdConfig, EtcdSettingsError> {
    let mut config = EtcdConfig::new(etcd.members.clone(), &etcd.root);
    config.first_member = first_member(etcd, node);
    config.translated = etcd.translated.map(|(advertised, own)| (advertised.to_string(), own));
    config.tls = credentials.map(NodeCredentials::client_config).transpose()?;
    if let Some((name, path)) = &etcd.user {
        let read = std::fs::read_to_string(path);
        let password = read.map_err(|cause| EtcdSettingsError::Password { path: path.clone(), cause })?;
        let password = password.strip_suffix('\n').unwrap_or(&password).to_owned();
        config.user = Some(User { name: name.clone(), password });
    }
    Ok(config)
}

/// A node's own member before all others; else one that depends on the node's name.
fn first_member(etcd: &EtcdChoice, node: &str) -> usize {
    let own = etcd.serve.as_ref().and_then(|serve| {
        let host = serve.address.to_string();
        etcd.members.iter().position(|member| member.host == host && member.port == serve.client_port)
    });
    own.unwrap_or_else(|| node.bytes().map(usize::from).sum())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settled(text: &str) -> Result<EtcdChoice, EtcdSettingsError> {
        let settings: EtcdSettings = toml::from_str(text).unwrap();
        let at = Addresses { advertise: [10, 0, 0, 2].into(), listen: [0, 0, 0, 0].into() };
        settings.settle("n2", "shop", at, Path::new("/tls"))
    }

    #[test]
    fn members_are_enough_and_the_rest_has_defaults() {
        let etcd = settled("members = [\"10.0.0.1:2379\", \"[fd00::2]:2379\"]").unwrap();
        assert_eq!((etcd.root.as_str(), etcd.tls_dir.as_deref()), ("dvs/shop", Some(Path::new("/tls"))));
        assert_eq!(etcd.members[1].to_string(), "[fd00::2]:2379");
        assert!(etcd.serve.is_none() && etcd.user.is_none());
    }

    #[test]
    fn what_cannot_be_is_refused() {
        assert!(matches!(settled("members = []"), Err(EtcdSettingsError::NoMembers)));
        for member in ["10.0.0.1", "10.0.0.1:", ":2379", "http://10.0.0.1:2379", "10.0.0.1:0"] {
            let refused = settled(&format!("members = [\"{member}\"]"));
            assert!(matches!(refused, Err(EtcdSettingsError::BadMember(_))), "{member}");
        }
        let with = |line: &str| settled(&format!("members = [\"10.0.0.1:2379\"]\n{line}"));
        for root in ["", "/dvs", "dvs/", "a b"] {
            assert!(matches!(with(&format!("root = \"{root}\"")), Err(EtcdSettingsError::BadRoot(_))), "{root}");
        }
        assert!(matches!(with("user = \"dvs\""), Err(EtcdSettingsError::HalfAUser)));
        assert!(matches!(with("serve = { peers = { n1 = \"10.0.0.1:2380\" } }"), Err(EtcdSettingsError::NotAPeer(_))));
        assert!(toml::from_str::<EtcdSettings>("member = []").is_err());
    }

    #[test]
    fn node_asks_its_own_member_first() {
        let text = "members = [\"10.0.0.1:2379\", \"10.0.0.2:2379\"]
            serve = { peers = { n1 = \"10.0.0.1:2380\", n2 = \"10.0.0.2:2380\" } }";
        let etcd = settled(text).unwrap();
        assert_eq!(first_member(&etcd, "n2"), 1);
        assert_eq!(etcd.serve.unwrap().client_port, CLIENT_PORT);
    }
}
