//! The cluster's authority: makes itself once, then a certificate for each node.

use std::fs;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rcgen::{
    BasicConstraints, CertificateParams, CertificateRevocationListParams, CertificateSigningRequestParams,
    DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyIdMethod, KeyPair, KeyUsagePurpose,
    PublicKeyData, RevokedCertParams, SerialNumber, date_time_ymd,
};
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject;

use crate::files::{self, NodeFiles, Secrecy};
use crate::hex::{hex, unhex};
use crate::{CA_CERT, CA_KEY, NODE_CERT, PkiError, names};

const DAY: Duration = Duration::from_secs(24 * 60 * 60);
/// Ten years: as long as a small cluster lives; nodes are renewed under it.
const AUTHORITY_DAYS: u32 = 3650;
/// Two years, then the operator issues the node's certificate again.
const NODE_DAYS: u32 = 730;
/// Clocks of machines that never saw a time server may differ by this much.
pub(crate) const BACKDATED: Duration = DAY;

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

    /// From a day ago, for so long from now on.
    pub fn lasting(time: Duration) -> Validity {
        let now = SystemTime::now();
        Validity { from: now - BACKDATED, until: now + time }
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

/// A certificate that was made for a key of somebody else.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Issued {
    pub certificate_pem: String,
    /// In lower-case hexadecimal digits.
    pub serial: String,
    pub until: SystemTime,
}

/// A certificate that is good no more.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Revoked {
    /// In hexadecimal digits.
    pub serial: String,
    pub since: SystemTime,
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
        let is_new = !dir.exists();
        fs::create_dir_all(dir).map_err(|source| PkiError::Write { path: dir.to_owned(), source })?;
        for path in [&certificate_path, &key_path] {
            if path.exists() {
                return Err(PkiError::AuthorityExists { path: path.clone() });
            }
        }
        let authority = Authority::generate(cluster, 1)?;
        let written = files::write(&key_path, &authority.key_pem(), Secrecy::Secret)
            .and_then(|()| files::write(&certificate_path, &authority.certificate_pem, Secrecy::Public));
        // A key alone would be taken for an authority, and the same again refused.
        written.inspect_err(|_| {
            let _ = fs::remove_file(&key_path);
            if is_new {
                let _ = fs::remove_dir(dir);
            }
        })?;
        Ok(authority)
    }

    /// Makes an authority in memory. Those of one cluster that follow each other have different numbers, and so
    /// different names: a list of revoked certificates is found by the name of whoever signed it.
    pub fn generate(cluster: &str, generation: u32) -> Result<Authority, PkiError> {
        names::check_name(cluster)?;
        let key = KeyPair::generate().map_err(PkiError::Sign)?;
        let mut params = authority_params(cluster, generation)?;
        set_validity(&mut params, Validity::days(AUTHORITY_DAYS));
        let certificate_pem = params.self_signed(&key).map_err(PkiError::Sign)?.pem();
        Ok(Authority { cluster: cluster.to_owned(), certificate_pem, issuer: Issuer::new(params, key) })
    }

    /// An authority that was written down: [`Authority::certificate_pem`], [`Authority::key_pem`].
    pub fn from_pem(certificate_pem: &str, key_pem: &str) -> Result<Authority, PkiError> {
        Authority::assembled(certificate_pem, key_pem, Path::new(CA_CERT), Path::new(CA_KEY))
    }

    fn assembled(
        certificate_pem: &str,
        key_pem: &str,
        certificate_path: &Path,
        key_path: &Path,
    ) -> Result<Authority, PkiError> {
        let malformed = |path: &Path, what| PkiError::Malformed { path: path.to_owned(), what };
        let certificate = CertificateDer::from_pem_slice(certificate_pem.as_bytes())
            .map_err(|_| malformed(certificate_path, "a certificate in PEM form"))?;
        let cluster = names::authority_cluster(&certificate)
            .ok_or_else(|| malformed(certificate_path, "the certificate of a cluster's authority"))?;
        let key = KeyPair::from_pem(key_pem).map_err(|_| malformed(key_path, "a private key in PEM form"))?;
        if !contains(&certificate, key.public_key_raw()) {
            return Err(PkiError::KeyMismatch { key: key_path.to_owned(), certificate: certificate_path.to_owned() });
        }
        let issuer = Issuer::from_ca_cert_der(&certificate, key).map_err(PkiError::Sign)?;
        Ok(Authority { cluster, certificate_pem: certificate_pem.to_owned(), issuer })
    }

    /// Loads the authority that [`Authority::create`] made in `dir`.
    pub fn load(dir: &Path) -> Result<Authority, PkiError> {
        let (certificate_path, key_path) = (dir.join(CA_CERT), dir.join(CA_KEY));
        let certificate_pem = files::read_text(&certificate_path)?;
        let key_pem = files::read_key_text(&key_path)?;
        Authority::assembled(&certificate_pem, &key_pem, &certificate_path, &key_path)
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

    pub fn certificate_pem(&self) -> &str {
        &self.certificate_pem
    }

    /// Secret.
    pub fn key_pem(&self) -> String {
        self.issuer.key().serialize_pem()
    }

    /// Writes `node.crt`, `node.key` and `ca.crt` of a node into `dir`, which is made when missing. An earlier
    /// certificate of the node is replaced; both are good until they expire.
    pub fn issue_node(&self, request: &NodeRequest<'_>, dir: &Path) -> Result<PathBuf, PkiError> {
        let key = KeyPair::generate().map_err(PkiError::Sign)?;
        let issued = self.issue(request, &key)?;
        let node = NodeFiles {
            certificate_pem: &issued.certificate_pem,
            key_pem: &key.serialize_pem(),
            roots_pem: &self.certificate_pem,
        };
        files::write_node_files(dir, &node)?;
        Ok(dir.join(NODE_CERT))
    }

    /// The certificate of a node that made its key itself (PKCS #10, in PEM form). Of what it asks for only the key
    /// counts.
    ///
    /// # Errors
    /// `BadRequest` when it is no request, or is not signed by its key.
    pub fn sign(&self, request_pem: &str, request: &NodeRequest<'_>) -> Result<Issued, PkiError> {
        let parsed = CertificateSigningRequestParams::from_pem(request_pem).map_err(PkiError::BadRequest)?;
        self.issue(request, &parsed.public_key)
    }

    fn issue(&self, request: &NodeRequest<'_>, key: &impl PublicKeyData) -> Result<Issued, PkiError> {
        names::check_name(request.node)?;
        let dns_name = names::node_dns_name(request.node, &self.cluster);
        let alternatives: Vec<String> =
            std::iter::once(dns_name.clone()).chain(request.addresses.iter().map(IpAddr::to_string)).collect();
        let mut params = CertificateParams::new(alternatives).map_err(PkiError::Sign)?;
        params.distinguished_name = common_name(&dns_name);
        params.use_authority_key_identifier_extension = true;
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        let serial = random_serial()?;
        params.serial_number = Some(SerialNumber::from_slice(&serial));
        set_validity(&mut params, request.valid);
        let certificate = params.signed_by(key, &self.issuer).map_err(PkiError::Sign)?;
        Ok(Issued { certificate_pem: certificate.pem(), serial: hex(&serial), until: request.valid.until })
    }

    /// The list of this authority's certificates that are good no more, in PEM form. It names no end: who has no newer
    /// one goes on with it.
    ///
    /// # Errors
    /// `BadSerial` for what is no serial number.
    pub fn revocations(&self, number: u64, revoked: &[Revoked]) -> Result<String, PkiError> {
        let revoked_certs = revoked.iter().map(|revoked| {
            let serial =
                unhex(&revoked.serial).ok_or_else(|| PkiError::BadSerial { serial: revoked.serial.clone() })?;
            Ok(RevokedCertParams {
                serial_number: SerialNumber::from(serial),
                revocation_time: offset(revoked.since),
                reason_code: None,
                invalidity_date: None,
            })
        });
        let valid = Validity::days(AUTHORITY_DAYS);
        let params = CertificateRevocationListParams {
            this_update: offset(valid.from),
            next_update: offset(valid.until),
            crl_number: SerialNumber::from(number),
            issuing_distribution_point: None,
            revoked_certs: revoked_certs.collect::<Result<_, PkiError>>()?,
            key_identifier_method: KeyIdMethod::Sha256,
        };
        params.signed_by(&self.issuer).and_then(|list| list.pem()).map_err(PkiError::Sign)
    }
}

/// Sixteen bytes by chance, the first of them neither 0 nor with its highest bit: positive and always as long.
pub(crate) fn random_serial() -> Result<[u8; 16], PkiError> {
    let mut serial = [0; 16];
    ring::rand::SecureRandom::fill(&ring::rand::SystemRandom::new(), &mut serial).map_err(|_| PkiError::NoRandom)?;
    if let Some(first) = serial.first_mut() {
        *first = *first & 0x7f | 0x40;
    }
    Ok(serial)
}

fn authority_params(cluster: &str, generation: u32) -> Result<CertificateParams, PkiError> {
    let name = names::authority_dns_name(cluster);
    let mut params = CertificateParams::new(vec![name.clone()]).map_err(PkiError::Sign)?;
    params.distinguished_name = common_name(&name);
    if generation > 1 {
        params.distinguished_name.push(DnType::OrganizationalUnitName, format!("generation {generation}"));
    }
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    Ok(params)
}

fn common_name(name: &str) -> DistinguishedName {
    let mut distinguished = DistinguishedName::new();
    distinguished.push(DnType::CommonName, name);
    distinguished
}

pub(crate) fn set_validity(params: &mut CertificateParams, valid: Validity) {
    (params.not_before, params.not_after) = (offset(valid.from), offset(valid.until));
}

fn offset(time: SystemTime) -> time::OffsetDateTime {
    let seconds = time.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    date_time_ymd(1970, 1, 1) + Duration::from_secs(seconds)
}

/// Whether the certificate carries this public key. Its bits appear verbatim in the encoding.
fn contains(certificate: &[u8], public_key: &[u8]) -> bool {
    !public_key.is_empty() && certificate.windows(public_key.len()).any(|window| window == public_key)
}
