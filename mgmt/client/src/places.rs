//! Which daemon to talk to, and where development clusters keep what they are.
//!
//! A development cluster (`dvs dev up`) is a whole cluster on one machine. Its record, `RUN/dev/NAME/cluster.json`, is
//! written before anything it names is made, so that `dvs dev down` can remove a half-made one. Processes in it are
//! named by PID **and** start time: a PID alone may have been given to somebody else since.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use mgmt_api::AllowedVolume;
use serde::{Deserialize, Serialize};

/// File name of a cluster's record.
pub const RECORD: &str = "cluster.json";
/// Environment variable and flag name of the two ways to name a daemon or a place.
pub const SOCKET_VARIABLE: &str = "DVS_SOCKET";
pub const STATE_DIR_VARIABLE: &str = "DVS_STATE_DIR";

/// Where things are kept: `state` outlives a reboot, `run` does not.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Places {
    pub state: PathBuf,
    pub run: PathBuf,
}

impl Places {
    pub fn system() -> Places {
        Places { state: "/var/lib/dvs".into(), run: "/run/dvs".into() }
    }

    /// Everything below one directory: tests run side by side with it.
    pub fn under(directory: &Path) -> Places {
        Places { state: directory.to_owned(), run: directory.join("run") }
    }

    pub fn dev_state(&self, cluster: &str) -> PathBuf {
        self.state.join("dev").join(cluster)
    }

    pub fn dev_run(&self, cluster: &str) -> PathBuf {
        self.run.join("dev").join(cluster)
    }

    /// The socket of a daemon that was started as a service.
    pub fn system_socket(&self) -> PathBuf {
        self.run.join("dvsd.sock")
    }

    /// Names of the development clusters of which anything is left, sorted.
    pub fn dev_names(&self) -> Vec<String> {
        let mut names: Vec<String> = [self.run.join("dev"), self.state.join("dev")]
            .iter()
            .filter_map(|directory| fs::read_dir(directory).ok())
            .flatten()
            .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
            .filter(|name| mgmt_api::valid_name(name))
            .collect();
        names.sort();
        names.dedup();
        names
    }

    /// The record of a cluster; None when there is none.
    pub fn dev_record(&self, cluster: &str) -> io::Result<Option<DevCluster>> {
        match fs::read(self.dev_run(cluster).join(RECORD)) {
            Ok(bytes) => serde_json::from_slice(&bytes).map(Some).map_err(io::Error::from),
            Err(cause) if cause.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(cause) => Err(cause),
        }
    }
}

/// A process of this machine, for good.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ProcessId {
    pub pid: u32,
    /// Field 22 of `/proc/PID/stat`: clock ticks since boot.
    pub start_ticks: u64,
}

/// A development cluster.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct DevCluster {
    pub name: String,
    /// Boot it was made in: after another boot nothing of it runs.
    pub boot_id: String,
    /// The binary whose `daemon` command the nodes run.
    pub program: PathBuf,
    /// What carries the links between its nodes; the daemon's default when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub transport: Option<String>,
    /// How many of the nodes, from the first on, run a member of etcd; 0: the engine is a file of this machine.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub etcd_members: usize,
    /// Pairs of proxies between two nodes; the daemon's default when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pairs: Option<u8>,
    /// Whether links are encrypted; the daemon's default when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub link_tls: Option<bool>,
    /// Directories of this machine that containers may have as volumes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub volumes: Vec<AllowedVolume>,
    /// Its machines have no daemons but those that people start in them.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_bare: bool,
    /// Holds the network namespace with the bridge that joins the nodes.
    pub hub: Option<ProcessId>,
    pub nodes: Vec<DevNode>,
}

fn is_zero(number: &usize) -> bool {
    *number == 0
}

/// One simulated machine of it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct DevNode {
    pub name: String,
    pub address: String,
    pub socket: PathBuf,
    pub state_dir: PathBuf,
    pub run_dir: PathBuf,
    pub config: PathBuf,
    pub log: PathBuf,
    /// PID 1 of the simulated machine: holds its namespaces; when it ends, everything in the machine ends.
    pub machine: Option<ProcessId>,
    pub daemon: Option<ProcessId>,
}

impl DevCluster {
    pub fn node(&self, name: &str) -> Option<&DevNode> {
        self.nodes.iter().find(|node| node.name == name)
    }
}

/// What the user said about the daemon to use.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Wanted {
    pub socket: Option<PathBuf>,
    /// Name of a development cluster.
    pub cluster: Option<String>,
    /// Node of it whose daemon answers.
    pub node: Option<String>,
}

#[derive(Debug, thiserror::Error)]
pub enum LocateError {
    #[error("no development cluster '{name}'")]
    NoCluster { name: String, known: Vec<String> },
    #[error("cluster '{cluster}' has no node '{node}'")]
    NoNode { cluster: String, node: String, known: Vec<String> },
    #[error("several development clusters run: {}", known.join(", "))]
    Several { known: Vec<String> },
    #[error("cannot read the record of cluster '{name}'")]
    Record {
        name: String,
        #[source]
        source: io::Error,
    },
}

/// Socket of the daemon to use: the one named, else the only development cluster's first node, else the system's.
pub fn locate(places: &Places, wanted: &Wanted) -> Result<PathBuf, LocateError> {
    if let Some(socket) = &wanted.socket {
        return Ok(socket.clone());
    }
    let known = places.dev_names();
    let name = match (&wanted.cluster, known.as_slice()) {
        (Some(name), _) => name.clone(),
        (None, [only]) => only.clone(),
        (None, []) => return Ok(places.system_socket()),
        (None, _) if places.system_socket().exists() => return Ok(places.system_socket()),
        (None, _) => return Err(LocateError::Several { known }),
    };
    let record = places.dev_record(&name).map_err(|source| LocateError::Record { name: name.clone(), source })?;
    match record {
        Some(record) => socket_in(&record, wanted.node.as_deref()),
        // Leftovers of an earlier boot are no cluster to talk to.
        None if wanted.cluster.is_none() => Ok(places.system_socket()),
        None => Err(LocateError::NoCluster { name, known }),
    }
}

fn socket_in(record: &DevCluster, node: Option<&str>) -> Result<PathBuf, LocateError> {
    let found = match node {
        Some(name) => record.node(name),
        // The first one whose daemon is there: one node may be switched off.
        None => record.nodes.iter().find(|node| node.socket.exists()).or(record.nodes.first()),
    };
    found.map(|node| node.socket.clone()).ok_or_else(|| LocateError::NoNode {
        cluster: record.name.clone(),
        node: node.unwrap_or_default().to_owned(),
        known: record.nodes.iter().map(|node| node.name.clone()).collect(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write_cluster(places: &Places, name: &str) {
        let run = places.dev_run(name);
        fs::create_dir_all(&run).unwrap();
        let node = |node: &str| DevNode {
            name: node.to_owned(),
            address: "10.0.0.1".to_owned(),
            socket: run.join(node).join("dvsd.sock"),
            state_dir: run.clone(),
            run_dir: run.clone(),
            config: run.clone(),
            log: run.clone(),
            machine: None,
            daemon: None,
        };
        let record = DevCluster {
            name: name.to_owned(),
            boot_id: String::new(),
            program: "/dvs".into(),
            transport: None,
            etcd_members: 0,
            is_bare: false,
            pairs: None,
            link_tls: None,
            volumes: Vec::new(),
            hub: None,
            nodes: vec![node("n1"), node("n2")],
        };
        fs::write(run.join(RECORD), serde_json::to_vec(&record).unwrap()).unwrap();
    }

    #[test]
    fn named_socket_wins_over_everything() {
        let directory = tempfile::tempdir().unwrap();
        let places = Places::under(directory.path());
        write_cluster(&places, "dev");
        let wanted = Wanted { socket: Some("/x.sock".into()), ..Wanted::default() };
        assert_eq!(locate(&places, &wanted).unwrap(), Path::new("/x.sock"));
    }

    #[test]
    fn only_development_cluster_is_found_by_itself() {
        let directory = tempfile::tempdir().unwrap();
        let places = Places::under(directory.path());
        assert_eq!(locate(&places, &Wanted::default()).unwrap(), places.system_socket());
        write_cluster(&places, "dev");
        assert!(locate(&places, &Wanted::default()).unwrap().ends_with("dev/dev/n1/dvsd.sock"));
        let wanted = Wanted { node: Some("n2".to_owned()), ..Wanted::default() };
        assert!(locate(&places, &wanted).unwrap().ends_with("dev/dev/n2/dvsd.sock"));
    }

    #[test]
    fn choice_between_two_clusters_is_left_to_the_user() {
        let directory = tempfile::tempdir().unwrap();
        let places = Places::under(directory.path());
        write_cluster(&places, "a");
        write_cluster(&places, "b");
        assert!(
            matches!(locate(&places, &Wanted::default()), Err(LocateError::Several { known }) if known == ["a", "b"])
        );
        let wanted = Wanted { cluster: Some("b".to_owned()), ..Wanted::default() };
        assert!(locate(&places, &wanted).unwrap().ends_with("dev/b/n1/dvsd.sock"));
    }

    #[test]
    fn unknown_cluster_and_node_are_named_in_the_error() {
        let directory = tempfile::tempdir().unwrap();
        let places = Places::under(directory.path());
        write_cluster(&places, "dev");
        let wanted = Wanted { cluster: Some("prod".to_owned()), ..Wanted::default() };
        assert_eq!(locate(&places, &wanted).unwrap_err().to_string(), "no development cluster 'prod'");
        let wanted = Wanted { node: Some("n9".to_owned()), ..Wanted::default() };
        assert_eq!(locate(&places, &wanted).unwrap_err().to_string(), "cluster 'dev' has no node 'n9'");
    }
}
