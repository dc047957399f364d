//! An engine on this machine, begun anew of a copy. Each step may be repeated; what is there is put aside before.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use cluster::EngineError;
use cluster::etcd::EtcdEngine;
use cluster::local::{LocalConfig, LocalEngine};
use mgmt_api::MemberAddress;
use pki::{NodeCredentials, NodeFiles, NodeKey};

use super::RecoveryError;
use super::dump::{Dump, take};
use super::fill::fill;
use super::revision::{Contents, revised};
use crate::aside;
use crate::claim::Claim;
use crate::config::Config;
use crate::daemon;
use crate::engine::{EtcdChoice, Managed, OpenError};
use crate::identity::Identity;
use crate::joining::authority::{AUTHORITY, AuthorityRecord, IssuedOne, IssuedRecord, issued_key};
use crate::joining::certificates;
use crate::member::{self, Complaint};
use crate::quorum::{self, EngineFile, MemberRecord, Own, Stage};
use crate::records::encode;

/// A member that has not begun to serve by then never will.
const SERVES_WITHIN: Duration = Duration::from_secs(60);
const RETRY: Duration = Duration::from_millis(200);
/// A certificate with less of its time left is made anew.
const WORN: u32 = 3;

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct BegunAnew {
    pub keys: usize,
    pub generation: u64,
    /// The node got a certificate, because it had none or an old one.
    pub has_new_certificate: bool,
}

/// Begins the engine that the settings name. `told`: progress, for people.
pub fn begin_anew(config: &Config, dump: &Dump, told: &dyn Fn(&str)) -> Result<BegunAnew, RecoveryError> {
    let _claim = without_daemon(config)?;
    let own = Identity::read(&config.state_dir)?;
    let cluster = &dump.header.cluster;
    if let Some(own) = own.as_ref().filter(|own| own.id != cluster.id) {
        return Err(RecoveryError::OtherCluster { own: own.id.clone(), there: cluster.id.clone() });
    }
    let mut contents = revised(dump, own.map_or(0, |own| own.generation))?;
    let has_new_certificate = certify(config, &mut contents)?;
    let filling = |done: usize, all: usize| told(&format!("{done} of {all} keys"));
    match &config.etcd {
        None => {
            let local = LocalConfig::new(&config.engine, &config.engine_volatile);
            fill(&LocalEngine::open(local)?, &contents, &filling)?;
        }
        Some(EtcdChoice { managed: Some(managed), .. }) => begin_managed(config, managed, &mut contents, told)?,
        Some(given) => {
            let watching = member::look_after(config, Some(given), &Complaint::default())?;
            let credentials = given.tls_dir.as_deref().map(certificates::open).transpose()?;
            fill(&open_soon(config, given, credentials.as_ref())?, &contents, &filling)?;
            drop(watching);
        }
    }
    Ok(BegunAnew { keys: contents.entries.len(), generation: contents.cluster.generation, has_new_certificate })
}

/// What an engine in a file holds, whose daemon does not run.
pub fn copy_of_local(config: &Config) -> Result<Dump, RecoveryError> {
    let _claim = without_daemon(config)?;
    if !config.engine.exists() {
        return Err(RecoveryError::NoLocal(config.engine.clone()));
    }
    let engine = LocalEngine::open(LocalConfig::new(&config.engine, &config.engine_volatile))?;
    Ok(take(&engine, format!("dvs {}, node {}", env!("CARGO_PKG_VERSION"), config.node))?)
}

/// The node is ours, as long as this is held: no daemon begins, and none was there, not even one that waits for the
/// engine.
pub fn without_daemon(config: &Config) -> Result<Claim, RecoveryError> {
    daemon::make_directories(config).map_err(Box::new)?;
    Claim::take(&[&config.state_dir, &config.run_dir]).map_err(RecoveryError::DaemonRuns)
}

/// The first member of a new cluster of etcd, on this node.
fn begin_managed(
    config: &Config,
    managed: &Managed,
    contents: &mut Contents,
    told: &dyn Fn(&str),
) -> Result<(), RecoveryError> {
    drop(member::look_after(config, None, &Complaint::default())?);
    put_aside(config, contents.cluster.generation)?;
    let address = quorum::own_address(config, managed);
    let initial = BTreeMap::from([(config.node.clone(), address.peer.clone())]);
    let token = Some(format!("{}-{}", config.cluster, contents.cluster.generation));
    let own = Own { initial: initial.clone(), is_first: true, token, is_founded: false, membership: 0 };
    let members: BTreeMap<String, MemberAddress> = BTreeMap::from([(config.node.clone(), address.clone())]);
    let mut file = EngineFile { members, own: Some(own) };
    file.write(&config.state_dir)?;
    let record = MemberRecord { address, stage: Stage::Voter, initial, membership: 0 };
    contents.entries.insert(quorum::member_key(&config.node), encode(&record));
    contents.entries.insert(quorum::PLAN.to_owned(), encode(&1));

    told("etcd begins to serve");
    let choice = managed.choice(config, &file)?;
    let watching = member::look_after(config, Some(&choice), &Complaint::default())?;
    let credentials = choice.tls_dir.as_deref().map(certificates::open).transpose()?;
    let engine = open_soon(config, &choice, credentials.as_ref())?;
    fill(&engine, contents, &|done, all| told(&format!("{done} of {all} keys")))?;
    if let Some(own) = &mut file.own {
        own.is_founded = true;
    }
    file.write(&config.state_dir)?;
    drop((engine, watching));
    // The daemon starts it again: nothing goes on here that nobody looks after.
    drop(member::look_after(config, None, &Complaint::default())?);
    Ok(())
}

/// What the node's member had, as `etcd/data.GENERATION`; what an attempt before this one began is removed.
fn put_aside(config: &Config, generation: u64) -> Result<(), RecoveryError> {
    let home = config.state_dir.join(member::NAME);
    let data = home.join("data");
    let failed = |doing: &'static str, path: &PathBuf| {
        let path = path.clone();
        move |cause| RecoveryError::Io { doing, path, cause }
    };
    if !data.exists() {
        return Ok(());
    }
    let is_ours = EngineFile::read(&config.state_dir)
        .is_ok_and(|file| file.own.is_some_and(|own| own.is_first && own.token.is_some() && !own.is_founded));
    if is_ours {
        return fs::remove_dir_all(&data).map_err(failed("remove", &data));
    }
    aside::put(&home, generation).map_err(failed("put aside", &data))
}

pub(super) fn open_soon(
    config: &Config,
    choice: &EtcdChoice,
    credentials: Option<&Arc<NodeCredentials>>,
) -> Result<EtcdEngine, RecoveryError> {
    let wanted = crate::engine::etcd_config(choice, &config.node, credentials)?;
    let until = Instant::now() + SERVES_WITHIN;
    loop {
        match EtcdEngine::open(wanted.clone()) {
            Ok(engine) => return Ok(engine),
            Err(cause @ (EngineError::Unreachable(_) | EngineError::NoQuorum(_))) if Instant::now() >= until => {
                return Err(RecoveryError::Late { seconds: SERVES_WITHIN.as_secs(), cause: OpenError::Engine(cause) });
            }
            Err(EngineError::Unreachable(_) | EngineError::NoQuorum(_)) => std::thread::sleep(RETRY),
            Err(error) => return Err(error.into()),
        }
    }
}

/// A node whose certificate has expired, or that is new, gets one of the authority in the copy. False: it has a good
/// one.
fn certify(config: &Config, contents: &mut Contents) -> Result<bool, RecoveryError> {
    let bad = |key: &str| RecoveryError::BadValue { key: key.to_owned() };
    let present = certificates::open(&config.tls_dir).ok();
    let Some(authority) = contents.entries.get(AUTHORITY) else {
        return present.map(|_| false).ok_or(RecoveryError::NoCertificates);
    };
    let authority: AuthorityRecord = serde_json::from_slice(authority).map_err(|_| bad(AUTHORITY))?;
    let roots = authority.roots.iter().map(|root| root.certificate_pem.trim().to_owned());
    if let Some(present) = &present {
        let is_fresh = present.facts().left(SystemTime::now()) > authority.lifetime() / WORN;
        let believed: Vec<String> = present.roots();
        if is_fresh && roots.clone().all(|root| believed.iter().any(|other| other.trim() == root)) {
            return Ok(false);
        }
    }
    let key = NodeKey::generate()?;
    let issued = authority.sign(&key.request_pem()?, &config.node, config.advertise)?;
    let issued_to = issued_key(&config.node);
    let mut record = match contents.entries.get(&issued_to) {
        Some(value) => serde_json::from_slice::<IssuedRecord>(value).map_err(|_| bad(&issued_to))?,
        None => IssuedRecord::default(),
    };
    record.certificates.push(IssuedOne::of(&issued));
    contents.entries.insert(issued_to, encode(&record));
    fs::create_dir_all(&config.tls_dir).map_err(|cause| RecoveryError::Io {
        doing: "make",
        path: config.tls_dir.clone(),
        cause,
    })?;
    let files =
        NodeFiles { certificate_pem: &issued.certificate_pem, key_pem: &key.pem(), roots_pem: &authority.roots_pem() };
    pki::write_node_files(&config.tls_dir, &files)?;
    pki::write_public(&config.tls_dir.join(pki::CA_CRL), &authority.revocations_pem()?)?;
    Ok(true)
}
