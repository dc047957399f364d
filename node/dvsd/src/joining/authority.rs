//! The cluster's authority, as the engine keeps it: `/authority`. A cluster whose certificates are made by hand has
//! none.
//!
//! The first daemon finds what `dvs cluster init` left in `STATE_DIR/authority`, writes it to the engine, and removes
//! the files once the engine has it.

use std::fs;
use std::net::IpAddr;
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use cluster::{Compare, Engine, EngineError, Lookup, Op, Outcome, Revision};
use pki::{Authority, CertificateSummary, Issued, NodeRequest, PkiError, Revoked, Validity};
use serde::{Deserialize, Serialize};

use crate::records::{self, encode, now_s};

pub const AUTHORITY: &str = "/authority";
const ISSUED: &str = "/issued/";
/// How long certificates last unless the cluster was told otherwise.
/// Machines that were off longer than a third of it could not let each other in again.
pub const LIFETIME: Duration = Duration::from_secs(365 * 24 * 3600);
/// Shorter ones are renewed more often than the engine should be asked.
pub const LIFETIME_MIN: Duration = Duration::from_secs(10);
/// Revoked certificates that have not expired. A proxy is told of all of them in one message.
const REVOKED_MAX: usize = 512;
/// Of one node, not expired: renewals, and a join that was repeated.
const ISSUED_MAX: usize = 16;
/// What has expired by the clock of the one who looks may be good by another's, or by its own once it is set right.
const CLOCKS_DIFFER_S: u64 = 30 * 24 * 3600;
/// Others may be faster this often; each time one of them has got on.
const ATTEMPTS: usize = 100;

#[derive(Debug, thiserror::Error)]
pub enum AuthorityError {
    #[error("this cluster's authority is kept by hand: the engine has none")]
    None,
    #[error("the authority in the engine cannot be used")]
    Unusable(#[source] PkiError),
    #[error("no certificate could be made")]
    Issue(#[source] PkiError),
    #[error("{0} has {ISSUED_MAX} certificates that have not expired")]
    TooManyIssued(String),
    #[error("{REVOKED_MAX} certificates that have not expired are revoked, and there is no room for more")]
    TooManyRevoked,
    #[error("others were faster {ATTEMPTS} times")]
    Contended,
    #[error(transparent)]
    Engine(#[from] EngineError),
}

#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AuthorityRecord {
    /// Of the root that signs.
    pub generation: u32,
    /// The one that signs first; its successor's predecessor behind, as long as certificates of it are good.
    pub roots: Vec<Root>,
    pub lifetime_s: u64,
    #[serde(default)]
    pub revoked: Vec<RevokedRecord>,
    /// A root is on its way in or out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rotation: Option<Rotation>,
    /// Of the list of what is revoked; the first one, of `dvs cluster init`, was 1 and empty.
    pub number: u64,
}

/// How far a root has taken its predecessor's place (`rotation.rs`).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Rotation {
    /// The old one signs; both are to be believed by all.
    Announced,
    /// The new one signs; all are to show what it signed.
    Switched,
}

#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Root {
    pub certificate_pem: String,
    /// Secret.
    pub key_pem: String,
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct RevokedRecord {
    pub serial: String,
    pub node: String,
    pub since_s: u64,
    /// Then it has expired, and need not be known any more.
    pub until_s: u64,
}

/// Certificates that a node has.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct IssuedRecord {
    pub certificates: Vec<IssuedOne>,
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct IssuedOne {
    pub serial: String,
    pub until_s: u64,
}

impl IssuedOne {
    pub fn of(issued: &Issued) -> IssuedOne {
        IssuedOne { serial: issued.serial.clone(), until_s: seconds(issued.until) }
    }
}

impl AuthorityRecord {
    pub fn lifetime(&self) -> Duration {
        Duration::from_secs(self.lifetime_s).max(LIFETIME_MIN)
    }

    /// For `ca.crt`.
    pub fn roots_pem(&self) -> String {
        self.roots.iter().map(|root| root.certificate_pem.as_str()).collect()
    }

    /// Whoever signs now.
    pub fn signing(&self) -> Result<Authority, AuthorityError> {
        let root = self.roots.first().ok_or(AuthorityError::None)?;
        root.authority()
    }

    /// For `ca.crl`: a list of each root, all of them with all numbers, because etcd reads only the first.
    pub fn revocations_pem(&self) -> Result<String, AuthorityError> {
        let time = |seconds: u64| UNIX_EPOCH + Duration::from_secs(seconds);
        let revoked: Vec<Revoked> = self
            .revoked
            .iter()
            .map(|revoked| Revoked { serial: revoked.serial.clone(), since: time(revoked.since_s) })
            .collect();
        let list = |root: &Root| root.authority()?.revocations(self.number, &revoked).map_err(AuthorityError::Unusable);
        self.roots.iter().map(list).collect()
    }

    fn add_revoked(&mut self, node: &str, certificates: Vec<IssuedOne>) -> Result<(), AuthorityError> {
        let now = now_s();
        self.revoked.retain(|revoked| revoked.until_s + CLOCKS_DIFFER_S > now);
        let of = |one: IssuedOne| RevokedRecord {
            serial: one.serial,
            node: node.to_owned(),
            since_s: now,
            until_s: one.until_s,
        };
        self.revoked.extend(certificates.into_iter().map(of));
        if self.revoked.len() > REVOKED_MAX {
            return Err(AuthorityError::TooManyRevoked);
        }
        self.number += 1;
        Ok(())
    }

    /// A certificate for a node that made its key itself.
    pub fn sign(&self, request_pem: &str, node: &str, address: IpAddr) -> Result<Issued, AuthorityError> {
        let addresses = [address];
        let request = NodeRequest { node, addresses: &addresses, valid: Validity::lasting(self.lifetime()) };
        self.signing()?.sign(request_pem, &request).map_err(AuthorityError::Issue)
    }
}

impl Root {
    pub fn of(authority: &Authority) -> Root {
        Root { certificate_pem: authority.certificate_pem().to_owned(), key_pem: authority.key_pem() }
    }

    fn authority(&self) -> Result<Authority, AuthorityError> {
        Authority::from_pem(&self.certificate_pem, &self.key_pem).map_err(AuthorityError::Unusable)
    }
}

/// Nothing secret is shown.
impl std::fmt::Debug for Root {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str("a root")
    }
}

impl std::fmt::Debug for AuthorityRecord {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "authority {}, {} roots, {} revoked", self.generation, self.roots.len(), self.revoked.len())
    }
}

/// `None`: certificates are made by hand.
pub fn read(engine: &dyn Lookup) -> Result<Option<(AuthorityRecord, Revision)>, EngineError> {
    records::read(engine, AUTHORITY)
}

pub fn demand(engine: &dyn Lookup) -> Result<(AuthorityRecord, Revision), AuthorityError> {
    read(engine)?.ok_or(AuthorityError::None)
}

/// Takes what `dvs cluster init` made over into the engine, and removes it from the disk. Without it nothing happens.
/// `own`: the certificate that this first node has of it.
pub fn take_over(engine: &dyn Engine, dir: &Path, node: &str, own: &CertificateSummary) -> Result<(), AuthorityError> {
    if !dir.join(pki::CA_CERT).exists() {
        return Ok(());
    }
    if !dir.join(pki::CA_KEY).exists() && read(engine)?.is_some() {
        // A daemon before died while it removed them.
        remove_files(dir);
        return Ok(());
    }
    let authority = Authority::load(dir).map_err(AuthorityError::Unusable)?;
    let lifetime = fs::read_to_string(dir.join(LIFETIME_FILE)).ok().and_then(|text| text.trim().parse().ok());
    let record = AuthorityRecord {
        generation: 1,
        roots: vec![Root::of(&authority)],
        lifetime_s: lifetime.unwrap_or(LIFETIME.as_secs()),
        rotation: None,
        revoked: Vec::new(),
        number: 1,
    };
    let absent = Compare::Absent { key: AUTHORITY.to_owned() };
    let own = IssuedOne { serial: own.serial.clone(), until_s: seconds(own.until) };
    let issued = Op::put(issued_key(node), encode(&IssuedRecord { certificates: vec![own] }));
    if let Outcome::Conflict(_) = engine.transact(&[absent], &[Op::put(AUTHORITY, encode(&record)), issued])? {
        let there = read(engine)?.map(|(there, _)| there.roots);
        if there.is_none_or(|there| !there.contains(&Root::of(&authority))) {
            // Another cluster's engine: whoever decides here must see it.
            tracing::warn!(dir = %dir.display(), "the engine has another authority; this one stays where it is");
            return Ok(());
        }
    }
    remove_files(dir);
    tracing::info!("the cluster's authority is in the engine now");
    Ok(())
}

fn remove_files(dir: &Path) {
    for name in [pki::CA_KEY, LIFETIME_FILE, pki::CA_CERT] {
        match fs::remove_file(dir.join(name)) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                tracing::warn!(dir = %dir.display(), name, %error, "the authority is in the engine, and this is still here");
            }
            _ => (),
        }
    }
    let _ = fs::remove_dir(dir);
}

/// Seconds that certificates last, beside the authority that `dvs cluster init` made.
pub const LIFETIME_FILE: &str = "lifetime";

pub fn issued_key(node: &str) -> String {
    format!("{ISSUED}{node}")
}

/// Whether a node of this name may have a certificate that is good.
pub fn has_certificates(engine: &dyn Lookup, node: &str) -> Result<bool, AuthorityError> {
    let now = now_s();
    Ok(issued_to(engine, node)?.0.certificates.iter().any(|one| one.until_s > now))
}

/// What a transaction has to compare and write so that a certificate is known to be a node's.
pub fn note_issued(engine: &dyn Lookup, node: &str, issued: &Issued) -> Result<(Compare, Op), AuthorityError> {
    let (mut record, compare) = issued_to(engine, node)?;
    let now = now_s();
    record.certificates.retain(|one| one.until_s + CLOCKS_DIFFER_S > now);
    if record.certificates.len() >= ISSUED_MAX {
        return Err(AuthorityError::TooManyIssued(node.to_owned()));
    }
    record.certificates.push(IssuedOne::of(issued));
    Ok((compare, Op::put(issued_key(node), encode(&record))))
}

fn issued_to(engine: &dyn Lookup, node: &str) -> Result<(IssuedRecord, Compare), EngineError> {
    let key = issued_key(node);
    Ok(match records::read(engine, &key)? {
        Some((record, at)) => (record, Compare::Modified { key, at }),
        None => (IssuedRecord::default(), Compare::Absent { key }),
    })
}

fn seconds(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

/// Signs a renewed key of this node, which shows `current` now. What it was given besides, and could not use, is taken
/// back.
pub fn renew(
    engine: &dyn Engine,
    node: &str,
    address: IpAddr,
    request_pem: &str,
    current: &str,
) -> Result<(Issued, AuthorityRecord), AuthorityError> {
    for _ in 0..ATTEMPTS {
        let (mut authority, at) = demand(engine)?;
        let issued = authority.sign(request_pem, node, address)?;
        let (mut record, compare) = issued_to(engine, node)?;
        let now = now_s();
        let unused = |one: &IssuedOne| one.serial != current && one.until_s > now;
        let (taken_back, kept): (Vec<_>, Vec<_>) = record.certificates.into_iter().partition(unused);
        record.certificates = kept.into_iter().filter(|one| one.until_s + CLOCKS_DIFFER_S > now).collect();
        record.certificates.push(IssuedOne::of(&issued));
        let mut ops = vec![Op::put(issued_key(node), encode(&record))];
        if !taken_back.is_empty() {
            authority.add_revoked(node, taken_back)?;
            ops.push(Op::put(AUTHORITY, encode(&authority)));
        }
        let same = Compare::Modified { key: AUTHORITY.to_owned(), at };
        if let Outcome::Done(_) = engine.transact(&[same, compare], &ops)? {
            return Ok((issued, authority));
        }
    }
    Err(AuthorityError::Contended)
}

/// What a transaction has to compare and write so that all certificates of a node are good no more. Empty without an
/// authority in the engine.
pub fn revoke(engine: &dyn Lookup, node: &str) -> Result<(Vec<Compare>, Vec<Op>), AuthorityError> {
    let Some((mut authority, at)) = read(engine)? else { return Ok((Vec::new(), Vec::new())) };
    let (issued, compare) = issued_to(engine, node)?;
    authority.add_revoked(node, issued.certificates)?;
    let same = Compare::Modified { key: AUTHORITY.to_owned(), at };
    Ok((vec![same, compare], vec![Op::put(AUTHORITY, encode(&authority)), Op::delete(issued_key(node))]))
}
