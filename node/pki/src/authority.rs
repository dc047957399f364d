//! The cluster's authority: makes itself once, then a certificate for each node.

use std::fs;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, date_time_ymd,
};

use crate::files::{self, Secrecy};
use crate::{CA_CERT, CA_KEY, NODE_CERT, NODE_KEY, PkiError, names};

const DAY: Duration = Duration::from_secs(24 * 60 * 60);
/// Ten years: as long as a small cluster lives; nodes are renewed under it.
const AUTHORITY_DAYS: u32 = 3650;
/// Two years, then the operator issues the node's certificate again.
const NODE_DAYS: u32 = 730;
/// Clocks of machines that never saw a time server may differ by this much.
const BACKDATED: Duration = DAY;

/// When a certificate is good.
#[derive(Clone, Copy, Debug)]
pub struct Validity {
    pub from: SystemTime,
    pub until: SystemTime,
}

impl Validity {
    /// From a day ago, for the time a node's certificate lives.
    pub fn of_a_node() -> Validity {
        Validity::days(NODE_DAYS)
    }

    fn days(days: u32) -> Validity {
        let now = SystemTime::now();
        Validity { from: now - BACKDATED, until: now + DAY * days }
    }
}

/// What a node's certificate shall say.
#[derive(Clone, Debug)]
pub struct NodeRequest<'a> {
    pub node: &'a str,
    /// Addresses at which clients that know no names may reach the node; may be empty.
    pub addresses: &'a [IpAddr],
    pub valid: Validity,
}

/// The authority of one cluster, its secret key in memory.
pub struct Authority {
    cluster: String,
    certificate_pem: String,
    issuer: Issuer<'static, KeyPair>,
}

impl Authority {
    /// Makes the authority of `cluster` in `dir`, which is made when missing.
    ///
    /// # Errors
    /// `AuthorityExists`: an authority is never overwritten, all certificates under it would be worthless.
    pub fn create(dir: &Path, cluster: &str) -> Result<Authority, PkiError> {
        names::check_name(cluster)?;
        let (certificate_path, key_path) = (dir.join(CA_CERT), dir.join(CA_KEY));
        fs::create_dir_all(dir).map_err(|source| PkiError::Write { path: dir.to_owned(), source })?;
        for path in [&certificate_path, &key_path] {
            if path.exists() {
                return Err(PkiError::AuthorityExists { path: path.clone() });
            }
        }
        let key = KeyPair::generate().map_err(PkiError::Sign)?;
        let mut params = authority_params(cluster)?;
        set_validity(&mut params, Validity::days(AUTHORITY_DAYS));
        let certificate_pem = params.self_signed(&key).map_err(PkiError::Sign)?.pem();
        files::write(&key_path, &key.serialize_pem(), Secrecy::Secret)?;
        files::write(&certificate_path, &certificate_pem, Secrecy::Public)?;
        Ok(Authority { cluster: cluster.to_owned(), certificate_pem, issuer: Issuer::new(params, key) })
    }

    /// Loads the authority that [`Authority::create`] made in `dir`.
    pub fn load(dir: &Path) -> Result<Authority, PkiError> {
        let (certificate_path, key_path) = (dir.join(CA_CERT), dir.join(CA_KEY));
        let certificate_pem = files::read_text(&certificate_path)?;
        let certificate = files::read_certificate(&certificate_path)?;
        let cluster = names::authority_cluster(&certificate).ok_or(PkiError::Malformed {
            path: certificate_path.clone(),
            what: "the certificate of a cluster's authority",
        })?;
        let key = KeyPair::from_pem(&files::read_key_text(&key_path)?)
            .map_err(|_| PkiError::Malformed { path: key_path.clone(), what: "a private key in PEM form" })?;
        if !contains(&certificate, key.public_key_raw()) {
            return Err(PkiError::KeyMismatch { key: key_path, certificate: certificate_path });
        }
        let issuer = Issuer::new(authority_params(&cluster)?, key);
        Ok(Authority { cluster, certificate_pem, issuer })
    }

    /// Loads the authority in `dir`, or makes it when there is none.
    ///
    /// # Errors
    /// `OtherCluster` when the one that is there belongs to another cluster.
    pub fn load_or_create(dir: &Path, cluster: &str) -> Result<Authority, PkiError> {
        if !dir.join(CA_CERT).exists() {
            return Authority::create(dir, cluster);
        }
        let authority = Authority::load(dir)?;
        if authority.cluster == cluster {
            return Ok(authority);
        }
        Err(PkiError::OtherCluster { path: dir.to_owned(), found: authority.cluster, wanted: cluster.to_owned() })
    }

    pub fn cluster(&self) -> &str {
        &self.cluster
    }

    /// Writes `node.crt`, `node.key` and `ca.crt` of a node into `dir`, which is made when missing. An earlier
    /// certificate of the node is replaced; both are good until they expire.
    pub fn issue_node(&self, request: &NodeRequest<'_>, dir: &Path) -> Result<PathBuf, PkiError> {
        names::check_name(request.node)?;
        let dns_name = names::node_dns_name(request.node, &self.cluster);
        let alternatives: Vec<String> =
            std::iter::once(dns_name.clone()).chain(request.addresses.iter().map(IpAddr::to_string)).collect();
        let mut params = CertificateParams::new(alternatives).map_err(PkiError::Sign)?;
        params.distinguished_name = common_name(&dns_name);
        params.use_authority_key_identifier_extension = true;
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        set_validity(&mut params, request.valid);
        let key = KeyPair::generate().map_err(PkiError::Sign)?;
        let certificate = params.signed_by(&key, &self.issuer).map_err(PkiError::Sign)?;

        fs::create_dir_all(dir).map_err(|source| PkiError::Write { path: dir.to_owned(), source })?;
        files::write(&dir.join(NODE_KEY), &key.serialize_pem(), Secrecy::Secret)?;
        files::write(&dir.join(NODE_CERT), &certificate.pem(), Secrecy::Public)?;
        files::write(&dir.join(CA_CERT), &self.certificate_pem, Secrecy::Public)?;
        Ok(dir.join(NODE_CERT))
    }
}

/// Must give the same for the same cluster for ever: a loaded authority signs with the name of the created one.
fn authority_params(cluster: &str) -> Result<CertificateParams, PkiError> {
    let name = names::authority_dns_name(cluster);
    let mut params = CertificateParams::new(vec![name.clone()]).map_err(PkiError::Sign)?;
    params.distinguished_name = common_name(&name);
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    Ok(params)
}

fn common_name(name: &str) -> DistinguishedName {
    let mut distinguished = DistinguishedName::new();
    distinguished.push(DnType::CommonName, name);
    distinguished
}

fn set_validity(params: &mut CertificateParams, valid: Validity) {
    let seconds = |time: SystemTime| Duration::from_secs(time.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs());
    let epoch = date_time_ymd(1970, 1, 1);
    params.not_before = epoch + seconds(valid.from);
    params.not_after = epoch + seconds(valid.until);
}

/// Whether the certificate carries this public key. Its bits appear verbatim in the encoding.
fn contains(certificate: &[u8], public_key: &[u8]) -> bool {
    !public_key.is_empty() && certificate.windows(public_key.len()).any(|window| window == public_key)
}
