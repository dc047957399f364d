//! TLS or nothing over a stream, and who the peer is by its certificate.
//!
//! TLS 1.3 only, both ends show a certificate of the cluster's authority. The dialling side checks that the certificate
//! names the node it dialled; the accepting side checks the node that HELLO names, once it has come. No session is
//! resumed.

use std::io::{self, Read, Write};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use proxy_link::{InBuffer, LinkError, Peer};
use rustls::client::{Resumption, UnbufferedClientConnection, WebPkiServerVerifier};
use rustls::crypto::CryptoProvider;
use rustls::crypto::ring;
use rustls::crypto::ring::cipher_suite::{
    TLS13_AES_128_GCM_SHA256, TLS13_AES_256_GCM_SHA384, TLS13_CHACHA20_POLY1305_SHA256,
};
use rustls::server::UnbufferedServerConnection;
use rustls::server::WebPkiClientVerifier;
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, CertificateRevocationListDer, PrivateKeyDer, ServerName};
use serde::{Deserialize, Serialize};

use crate::ProxyError;
use crate::error::CutReason;
use crate::local::Local;
use crate::tls::{End, Tls};
use crate::transport::Encryption;

/// `NODE.CLUSTER.dvs`, as the cluster's authority writes it.
fn dns_name(node: &str, cluster: &str) -> String {
    format!("{node}.{cluster}.dvs")
}

/// Settings of this node for all its links.
#[derive(Clone)]
pub struct Credentials {
    cluster: String,
    pub(crate) client: Arc<ClientConfig>,
    pub(crate) server: Arc<ServerConfig>,
    /// Made from the node's private key.
    secrets: ::ring::hmac::Key,
}

/// What a node shows and whom it believes, as files hold it: texts in PEM form.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CredentialTexts {
    /// One root, or two while the second takes the first one's place.
    pub authority: String,
    /// Lists of certificates that are good no more; may be empty.
    #[serde(default)]
    pub revoked: String,
    pub certificate: String,
    /// Secret.
    pub key: String,
}

impl CredentialTexts {
    /// Reads `ca.crt`, `node.crt` and `node.key` in `dir`, and `ca.crl` when it is there.
    pub fn read(dir: &Path) -> Result<CredentialTexts, ProxyError> {
        let text = |name: &str| {
            let path = dir.join(name);
            std::fs::read_to_string(&path).map_err(|source| ProxyError::ReadTls { path, source })
        };
        let revoked = match text("ca.crl") {
            Err(ProxyError::ReadTls { source, .. }) if source.kind() == io::ErrorKind::NotFound => String::new(),
            revoked => revoked?,
        };
        Ok(CredentialTexts {
            authority: text("ca.crt")?,
            revoked,
            certificate: text("node.crt")?,
            key: text("node.key")?,
        })
    }
}

/// Nothing secret is shown.
impl std::fmt::Debug for CredentialTexts {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str("credentials")
    }
}

impl Credentials {
    /// Reads the files of [`CredentialTexts::read`].
    pub fn load(dir: &Path, cluster: &str) -> Result<Credentials, ProxyError> {
        Credentials::of(&CredentialTexts::read(dir)?, dir, cluster)
    }

    /// `dir`: what errors name.
    pub fn of(texts: &CredentialTexts, dir: &Path, cluster: &str) -> Result<Credentials, ProxyError> {
        let tls = |name: &str| {
            let path = dir.join(name);
            move |source| ProxyError::Tls { path, source }
        };
        let malformed = |name: &str, what| ProxyError::MalformedTls { path: dir.join(name), what };
        let no_authority = || malformed("ca.crt", "the certificate of an authority");
        let no_certificate = |name| move |_| malformed(name, "a certificate in PEM form");
        let mut roots = RootCertStore::empty();
        for root in CertificateDer::pem_slice_iter(texts.authority.as_bytes()) {
            roots.add(root.map_err(no_certificate("ca.crt"))?).map_err(tls("ca.crt"))?;
        }
        let revoked: Result<Vec<_>, _> =
            CertificateRevocationListDer::pem_slice_iter(texts.revoked.as_bytes()).collect();
        let revoked = revoked.map_err(|_| malformed("ca.crl", "lists of revoked certificates in PEM form"))?;
        let (roots, provider) = (Arc::new(roots), Arc::new(provider()));
        let mut servers = WebPkiServerVerifier::builder_with_provider(Arc::clone(&roots), Arc::clone(&provider));
        let mut clients = WebPkiClientVerifier::builder_with_provider(roots, Arc::clone(&provider));
        if !revoked.is_empty() {
            let known = revoked.clone();
            servers = servers.with_crls(known).only_check_end_entity_revocation().allow_unknown_revocation_status();
            clients = clients.with_crls(revoked).only_check_end_entity_revocation().allow_unknown_revocation_status();
        }
        let servers = servers.build().map_err(|_| no_authority())?;
        let clients = clients.build().map_err(|_| no_authority())?;
        let own = || CertificateDer::from_pem_slice(texts.certificate.as_bytes()).map_err(no_certificate("node.crt"));
        let key = PrivateKeyDer::from_pem_slice(texts.key.as_bytes())
            .map_err(|_| malformed("node.key", "a private key in PEM form"))?;
        let secrets = ::ring::hmac::Key::new(::ring::hmac::HMAC_SHA256, key.secret_der());
        let mut client = ClientConfig::builder_with_provider(Arc::clone(&provider))
            .with_protocol_versions(&[&rustls::version::TLS13])
            .map_err(tls("node.crt"))?
            .with_webpki_verifier(servers)
            .with_client_auth_cert(vec![own()?], key.clone_key())
            .map_err(tls("node.crt"))?;
        // A session that is resumed would not look at the certificate again, which may have expired; and connections
        // are few.
        client.resumption = Resumption::disabled();
        let mut server = ServerConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&rustls::version::TLS13])
            .map_err(tls("node.crt"))?
            .with_client_cert_verifier(clients)
            .with_single_cert(vec![own()?], key)
            .map_err(tls("node.crt"))?;
        server.send_tls13_tickets = 0;
        server.session_storage = Arc::new(rustls::server::NoServerSessionStorage {});
        Ok(Credentials { cluster: cluster.to_owned(), client: Arc::new(client), server: Arc::new(server), secrets })
    }

    /// Of a link that this node dials; for who measures beside it.
    pub fn client_config(&self) -> Arc<ClientConfig> {
        Arc::clone(&self.client)
    }

    /// Of a link that another node dials.
    pub fn server_config(&self) -> Arc<ServerConfig> {
        Arc::clone(&self.server)
    }

    /// As the node's certificate names it.
    pub fn dns_name_of(&self, node: &str) -> String {
        dns_name(node, &self.cluster)
    }

    /// A secret of this node for one use, the same for all its proxies, one after the other.
    pub(crate) fn secret(&self, usage: &str) -> [u8; 32] {
        let tag = ::ring::hmac::sign(&self.secrets, usage.as_bytes());
        let mut secret = [0; 32];
        secret.iter_mut().zip(tag.as_ref()).for_each(|(to, from)| *to = *from);
        secret
    }
}

/// AES-128 first: it is as safe as anything else here, and every byte of the data path pays for the rounds of a longer
/// key.
fn provider() -> CryptoProvider {
    let cipher_suites = vec![TLS13_AES_128_GCM_SHA256, TLS13_AES_256_GCM_SHA384, TLS13_CHACHA20_POLY1305_SHA256];
    CryptoProvider { cipher_suites, ..ring::default_provider() }
}

/// First byte of a TLS connection: content type 'handshake'. A plain link begins with the length of HELLO's body, which
/// is never this.
const TLS_HANDSHAKE: u8 = 22;

/// How far reading came.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Flow {
    /// The stream has nothing more at the moment.
    Dry,
    /// There may be more, or the buffer is full: decode, then go on.
    Full,
}

/// Where what was read goes.
pub struct Inward<'a> {
    input: &'a mut InBuffer,
    /// The link that the bytes are of, once they are of one: it takes long data from where it was decrypted.
    link: Option<(&'a mut Peer<Local>, Duration)>,
    failed: Option<LinkError>,
    bytes: usize,
}

impl<'a> Inward<'a> {
    /// To the buffer, and nowhere else.
    pub fn buffered(input: &'a mut InBuffer) -> Inward<'a> {
        Inward::new(input, None)
    }

    /// Plain bytes that were taken.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    pub(crate) fn new(input: &'a mut InBuffer, link: Option<(&'a mut Peer<Local>, Duration)>) -> Inward<'a> {
        Inward { input, link, failed: None, bytes: 0 }
    }

    pub(crate) fn is_full(&mut self) -> bool {
        self.input.space().is_empty()
    }

    /// How many of the bytes were taken.
    pub(crate) fn take(&mut self, plain: &[u8]) -> usize {
        let count = match &mut self.link {
            None => self.input.append(plain),
            Some((peer, now)) => match peer.receive_from(plain, self.input, *now) {
                Ok(count) => count,
                Err(error) => {
                    self.failed = Some(error);
                    plain.len()
                }
            },
        };
        self.bytes += count;
        count
    }

    /// Whether the link refused something of what it took.
    pub(crate) fn check(&mut self) -> Result<(), LinkError> {
        self.failed.take().map_or(Ok(()), Err)
    }
}

/// What lies between a stream and the frames.
pub enum Session {
    /// Accepted, and nothing was read: the first byte tells whether the dialling side encrypts.
    Unknown(Option<Credentials>),
    Plain,
    Tls(Box<Tls>),
    /// The transport encrypts: bytes go as they are. With the peer's certificate, for a stream that was accepted.
    Sealed(Option<CertificateDer<'static>>),
}

impl Session {
    /// For a stream that this side dials to `node`.
    pub fn dialling(credentials: &Credentials, node: &str) -> Result<Session, CutReason> {
        let name = ServerName::try_from(credentials.dns_name_of(node))
            .map_err(|_| CutReason::Name { node: node.to_owned() })?;
        let connection = UnbufferedClientConnection::new(Arc::clone(&credentials.client), name)?;
        Ok(Session::Tls(Box::new(Tls::new(End::Client(connection)))))
    }

    /// For a stream that somebody dialled. Without credentials only plain links can be accepted.
    pub fn accepting(credentials: Option<Credentials>) -> Session {
        Session::Unknown(credentials)
    }

    /// Reads the first byte, if it is there, and becomes what it says.
    fn recognise(&mut self, stream: &mut impl Read, input: &mut InBuffer) -> Result<Flow, CutReason> {
        let Session::Unknown(credentials) = self else { return Ok(Flow::Full) };
        let mut first = [0];
        match unless_blocked(stream.read(&mut first))? {
            None => return Ok(Flow::Dry),
            Some(0) => return Err(CutReason::Closed),
            Some(_) => {}
        }
        if first != [TLS_HANDSHAKE] {
            input.append(&first);
            *self = Session::Plain;
            return Ok(Flow::Full);
        }
        let credentials = credentials.take().ok_or(CutReason::NoCredentials)?;
        let connection = UnbufferedServerConnection::new(credentials.server)?;
        *self = Session::Tls(Box::new(Tls::begun(End::Server(connection), TLS_HANDSHAKE)));
        Ok(Flow::Full)
    }

    pub fn encryption(&self) -> Encryption {
        match self {
            Session::Unknown(_) | Session::Plain => Encryption::Plain,
            Session::Tls(_) | Session::Sealed(_) => Encryption::Tls,
        }
    }

    /// Whether frames may be sent and what was received can be trusted to come from a node of the cluster.
    pub fn is_ready(&self) -> bool {
        match self {
            Session::Unknown(_) => false,
            Session::Plain | Session::Sealed(_) => true,
            Session::Tls(tls) => !tls.state().is_handshaking(),
        }
    }

    /// Whether the peer's certificate names the node. True without encryption: the operator trusts that link.
    pub fn is_from(&self, node: &str, cluster: &str) -> bool {
        let certificate = match self {
            Session::Unknown(_) | Session::Plain => return true,
            Session::Tls(tls) => tls.state().peer_certificates().and_then(<[_]>::first),
            Session::Sealed(certificate) => certificate.as_ref(),
        };
        let Some(certificate) = certificate else { return false };
        let Ok(parsed) = webpki::EndEntityCert::try_from(certificate) else { return false };
        let wanted = dns_name(node, cluster);
        parsed.valid_dns_names().any(|name| name == wanted)
    }

    /// Whether bytes wait that [`Session::write`] has taken and the stream has not.
    pub fn wants_write(&self) -> bool {
        match self {
            Session::Unknown(_) | Session::Plain | Session::Sealed(_) => false,
            Session::Tls(tls) => tls.wants_write(),
        }
    }

    /// Reads and decrypts to where `inward` says, as far as there is room.
    pub fn read(&mut self, stream: &mut impl Read, inward: &mut Inward<'_>) -> Result<Flow, CutReason> {
        if self.recognise(stream, inward.input)? == Flow::Dry {
            return Ok(Flow::Dry);
        }
        match self {
            Session::Unknown(_) => Ok(Flow::Dry),
            Session::Plain | Session::Sealed(_) => read_plain(stream, inward),
            Session::Tls(tls) => tls.read(stream, inward),
        }
    }

    /// Encrypts and writes. Returns how many bytes of `out` were taken; `out` may be empty to go on with what was taken
    /// before.
    pub fn write(&mut self, stream: &mut impl Write, out: &[u8]) -> Result<usize, CutReason> {
        match self {
            Session::Unknown(_) => Ok(0),
            Session::Plain | Session::Sealed(_) => {
                if out.is_empty() {
                    return Ok(0);
                }
                Ok(unless_blocked(stream.write(out))?.unwrap_or(0))
            }
            Session::Tls(tls) => tls.write(stream, out),
        }
    }
}

fn read_plain(stream: &mut impl Read, inward: &mut Inward<'_>) -> Result<Flow, CutReason> {
    let space = inward.input.space();
    if space.is_empty() {
        return Ok(Flow::Full);
    }
    let wanted = space.len();
    match unless_blocked(stream.read(space))? {
        None => Ok(Flow::Dry),
        Some(0) => Err(CutReason::Closed),
        Some(count) => {
            inward.input.filled(count);
            inward.bytes += count;
            // A short read means that the socket was emptied.
            Ok(if count < wanted { Flow::Dry } else { Flow::Full })
        }
    }
}

pub(crate) fn unless_blocked(result: io::Result<usize>) -> io::Result<Option<usize>> {
    match result {
        Ok(count) => Ok(Some(count)),
        Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => Ok(None),
        Err(error) => Err(error),
    }
}
