//! What one member of etcd holds whose majority is gone, or whose certificates have all expired: a copy of its data is
//! served as a cluster of one member, on this machine alone, and read. The data themselves stay as they are.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::net::{IpAddr, Ipv4Addr, TcpListener};
use std::os::unix::fs::{DirBuilderExt, chown};
use std::path::{Path, PathBuf};

use cluster::etcd::Member;
use pki::{Authority, NodeFiles, NodeKey, NodeRequest, Validity};

use super::RecoveryError;
use super::begin::{open_soon, without_daemon};
use super::dump::{Dump, take};
use crate::config::Config;
use crate::engine::{EtcdChoice, Managed, Serve};
use crate::joining::certificates;
use crate::member::{self, Complaint, Place};

/// Below the state directory; removed at the end, and at the beginning of the next attempt.
const DIR: &str = "salvage";

/// The data of this node's member, if there are any.
pub fn what_is_left(config: &Config) -> Option<PathBuf> {
    let data = config.state_dir.join(member::NAME).join("data");
    data.join("member").exists().then_some(data)
}

pub fn salvage(config: &Config, told: &dyn Fn(&str)) -> Result<Dump, RecoveryError> {
    let _claim = without_daemon(config)?;
    let managed = config.etcd.as_ref().and_then(|etcd| etcd.managed.as_ref()).ok_or(RecoveryError::NotManaged)?;
    let missing = || RecoveryError::NoData(config.state_dir.join(member::NAME).join("data/member"));
    let data = what_is_left(config).ok_or_else(missing)?;
    // It could not serve alone, and must not write while it is copied.
    drop(member::look_after(config, None, &Complaint::default())?);
    let home = config.state_dir.join(DIR);
    let run_dir = config.run_dir.join(DIR);
    let told_of_member = Complaint::default();
    let end = || -> Result<(), RecoveryError> {
        drop(member::look_after_at(
            config,
            None,
            &Place { home: &home, run_dir: &run_dir, further: &[] },
            &told_of_member,
        )?);
        remove(&home)
    };
    end()?;
    let dump = serve_copy(config, managed, (&data, &home, &run_dir), told);
    end()?;
    dump
}

fn serve_copy(
    config: &Config,
    managed: &Managed,
    (data, home, run_dir): (&Path, &Path, &Path),
    told: &dyn Fn(&str),
) -> Result<Dump, RecoveryError> {
    let failed = |doing: &'static str, path: &Path| {
        let path = path.to_owned();
        move |cause| RecoveryError::Io { doing, path, cause }
    };
    for dir in [home, run_dir] {
        fs::DirBuilder::new().recursive(true).mode(0o711).create(dir).map_err(failed("make", dir))?;
    }
    told("the member's data are copied");
    copy_tree(data, &home.join("data")).map_err(failed("copy", data))?;
    // Nobody else may ask it: it believes an authority that is made for this alone.
    let tls = home.join("authority");
    certify(&tls, &config.node, &config.cluster)?;
    let address = IpAddr::V4(Ipv4Addr::LOCALHOST);
    let (client_port, peer_port) = free_ports().map_err(failed("listen at", Path::new("127.0.0.1")))?;
    let at = |port| Member { host: address.to_string(), port };
    let serve = Serve {
        address,
        listen: address,
        client_port,
        peer_port,
        peers: BTreeMap::from([(config.node.clone(), at(peer_port))]),
        joins: false,
        token: config.cluster.clone(),
        program: managed.program.clone(),
    };
    let choice = EtcdChoice {
        members: vec![at(client_port)],
        root: managed.root.clone(),
        tls_dir: Some(tls.clone()),
        user: None,
        serve: Some(serve),
        managed: None,
        translated: None,
    };
    told("a member of etcd serves the copy");
    let place = Place { home, run_dir, further: &["--force-new-cluster"] };
    let watching = member::look_after_at(config, Some(&choice), &place, &Complaint::default())?;
    let credentials = certificates::open(&tls)?;
    let engine = open_soon(config, &choice, Some(&credentials))?;
    let by = format!("dvs {}, salvaged from node {}", env!("CARGO_PKG_VERSION"), config.node);
    let dump = take(&engine, by)?;
    drop((engine, watching));
    Ok(dump)
}

fn certify(dir: &Path, node: &str, cluster: &str) -> Result<(), RecoveryError> {
    let made = fs::DirBuilder::new().recursive(true).mode(0o700).create(dir);
    made.map_err(|cause| RecoveryError::Io { doing: "make", path: dir.to_owned(), cause })?;
    let authority = Authority::generate(cluster, 1)?;
    let key = NodeKey::generate()?;
    let addresses = [IpAddr::V4(Ipv4Addr::LOCALHOST)];
    let request = NodeRequest { node, addresses: &addresses, valid: Validity::of_a_node() };
    let issued = authority.sign(&key.request_pem()?, &request)?;
    let files = NodeFiles {
        certificate_pem: &issued.certificate_pem,
        key_pem: &key.pem(),
        roots_pem: authority.certificate_pem(),
    };
    Ok(pki::write_node_files(dir, &files)?)
}

/// Held together, so that they differ.
fn free_ports() -> io::Result<(u16, u16)> {
    let any = (Ipv4Addr::LOCALHOST, 0);
    let (one, other) = (TcpListener::bind(any)?, TcpListener::bind(any)?);
    Ok((one.local_addr()?.port(), other.local_addr()?.port()))
}

/// Directories and files, for etcd's uid. There are no others.
fn copy_tree(from: &Path, to: &Path) -> io::Result<()> {
    let uid = Some(crate::uids::ETCD);
    fs::DirBuilder::new().recursive(true).mode(0o700).create(to)?;
    chown(to, uid, uid)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let (kind, place) = (entry.file_type()?, to.join(entry.file_name()));
        if kind.is_dir() {
            copy_tree(&entry.path(), &place)?;
        } else if kind.is_file() {
            fs::copy(entry.path(), &place)?;
            chown(&place, uid, uid)?;
        }
    }
    Ok(())
}

fn remove(dir: &Path) -> Result<(), RecoveryError> {
    match fs::remove_dir_all(dir) {
        Err(cause) if cause.kind() != io::ErrorKind::NotFound => {
            Err(RecoveryError::Io { doing: "remove", path: dir.to_owned(), cause })
        }
        _ => Ok(()),
    }
}
