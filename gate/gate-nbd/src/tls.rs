//! Encryption of a connection, which a client asks for by `STARTTLS` before it says anything else.
//!
//! One thread reads and several write: the state of the encryption is shared, and nobody holds it while it waits for
//! the client to say something.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::Mutex;
use rustls::crypto::ring;
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig, ServerConnection};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};

use crate::stream::NbdStream;

/// Files of the directory, as other programs that speak NBD call them.
const AUTHORITY: &str = "ca-cert.pem";
const CERTIFICATE: &str = "server-cert.pem";
const KEY: &str = "server-key.pem";

/// Of a socket, at a time.
const SEALED_BYTES: usize = 64 << 10;

#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    #[error("'{}' cannot be opened", .0.display())]
    Open(PathBuf, #[source] io::Error),
    #[error("'{0}' cannot be read")]
    Read(&'static str, #[source] rustls_pki_types::pem::Error),
    #[error("'{AUTHORITY}' has no certificate of an authority")]
    NoAuthority,
    #[error("the certificate and its key cannot be used")]
    Unusable(#[source] rustls::Error),
    #[error("clients cannot be told apart by '{AUTHORITY}'")]
    Verifier(#[source] rustls::server::VerifierBuilderError),
}

/// What clients are shown, and whom of them is let in: those with a certificate that the authority signed.
pub struct TlsSettings(Arc<ServerConfig>);

impl TlsSettings {
    /// From a directory with `ca-cert.pem`, `server-cert.pem` and `server-key.pem`.
    ///
    /// # Errors
    /// One of them is not there, or cannot be used with the others.
    pub fn load(dir: &Path) -> Result<TlsSettings, TlsError> {
        let [authority, certificate, key] = [AUTHORITY, CERTIFICATE, KEY].map(|name| {
            let path = dir.join(name);
            File::open(&path).map_err(|cause| TlsError::Open(path, cause))
        });
        TlsSettings::read(authority?, certificate?, key?)
    }

    /// From what these files have.
    ///
    /// # Errors
    /// One of them cannot be used with the others.
    pub fn read(authority: File, certificate: File, key: File) -> Result<TlsSettings, TlsError> {
        let read = |file: File, name: &'static str| {
            let all = CertificateDer::pem_reader_iter(BufReader::new(file)).collect::<Result<Vec<_>, _>>();
            all.map_err(|cause| TlsError::Read(name, cause))
        };
        let mut roots = RootCertStore::empty();
        let (good, _) = roots.add_parsable_certificates(read(authority, AUTHORITY)?);
        if good == 0 {
            return Err(TlsError::NoAuthority);
        }
        let chain = read(certificate, CERTIFICATE)?;
        let key = PrivateKeyDer::from_pem_reader(BufReader::new(key)).map_err(|cause| TlsError::Read(KEY, cause))?;
        let provider = Arc::new(ring::default_provider());
        let clients = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), Arc::clone(&provider));
        let clients = clients.build().map_err(TlsError::Verifier)?;
        let config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(TlsError::Unusable)?
            .with_client_cert_verifier(clients)
            .with_single_cert(chain, key)
            .map_err(TlsError::Unusable)?;
        Ok(TlsSettings(Arc::new(config)))
    }
}

fn broken(error: rustls::Error) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, error)
}

struct Sealed {
    state: ServerConnection,
    socket: NbdStream,
}

impl Sealed {
    /// What the state has to say goes to the client.
    fn send(&mut self) -> io::Result<()> {
        while self.state.wants_write() {
            if self.state.write_tls(&mut self.socket)? == 0 {
                return Err(io::ErrorKind::WriteZero.into());
            }
        }
        Ok(())
    }
}

/// The two ends of an encrypted connection.
pub(crate) fn seal(settings: &TlsSettings, socket: NbdStream) -> io::Result<(TlsReader, TlsWriter)> {
    let state = ServerConnection::new(Arc::clone(&settings.0)).map_err(broken)?;
    let reading = socket.try_clone()?;
    let sealed = Arc::new(Mutex::new(Sealed { state, socket }));
    let bytes = vec![0; SEALED_BYTES].into_boxed_slice();
    Ok((TlsReader { sealed: Arc::clone(&sealed), socket: reading, bytes, at: 0, end: 0 }, TlsWriter(sealed)))
}

pub(crate) struct TlsReader {
    sealed: Arc<Mutex<Sealed>>,
    socket: NbdStream,
    /// What came and was not looked at: `at..end`.
    bytes: Box<[u8]>,
    at: usize,
    end: usize,
}

impl TlsReader {
    pub(crate) fn socket(&self) -> &NbdStream {
        &self.socket
    }

    /// Whether there is something to look at that came over the socket before, the end included.
    pub(crate) fn has_more(&self) -> bool {
        let mut sealed = self.sealed.lock();
        let is_nothing = |error: io::Error| error.kind() == io::ErrorKind::WouldBlock;
        self.at < self.end || !sealed.state.reader().fill_buf().is_err_and(is_nothing)
    }
}

impl Read for TlsReader {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        if into.is_empty() {
            return Ok(0);
        }
        loop {
            {
                let mut sealed = self.sealed.lock();
                match sealed.state.reader().read(into) {
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                    read => return read,
                }
                if let Some(mut waiting) = self.bytes.get(self.at..self.end).filter(|waiting| !waiting.is_empty()) {
                    self.at += sealed.state.read_tls(&mut waiting)?;
                    let looked = sealed.state.process_new_packets();
                    // Also what is wrong with it.
                    sealed.send()?;
                    looked.map_err(broken)?;
                    continue;
                }
            }
            (self.at, self.end) = (0, self.socket.read(&mut self.bytes)?);
            if self.end == 0 {
                return Ok(0);
            }
        }
    }
}

pub(crate) struct TlsWriter(Arc<Mutex<Sealed>>);

impl TlsWriter {
    pub(crate) fn with_socket<T>(&self, use_it: impl FnOnce(&NbdStream) -> T) -> T {
        use_it(&self.0.lock().socket)
    }
}

impl Write for TlsWriter {
    fn write(&mut self, from: &[u8]) -> io::Result<usize> {
        let mut sealed = self.0.lock();
        let taken = sealed.state.writer().write(from)?;
        sealed.send()?;
        Ok(taken)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Drop for TlsWriter {
    fn drop(&mut self) {
        // So that the client knows that nothing was cut off; it may be gone.
        let mut sealed = self.0.lock();
        sealed.state.send_close_notify();
        let _ = sealed.send();
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;
    use std::time::{Duration, Instant};

    use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair, KeyUsagePurpose};
    use rustls::{ClientConfig, ClientConnection, StreamOwned};

    use super::*;
    use crate::stream::{ClientInput, Input};

    /// Both sides of one authority, and the name of the server.
    fn settings() -> (TlsSettings, ClientConfig) {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
        let key = KeyPair::generate().unwrap();
        let authority = params.self_signed(&key).unwrap();
        let issuer = Issuer::new(params, key);
        let made = || {
            let key = KeyPair::generate().unwrap();
            (CertificateParams::new(vec!["server".to_owned()]).unwrap().signed_by(&key, &issuer).unwrap(), key)
        };
        let dir = tempfile::tempdir().unwrap();
        let (server, server_key) = made();
        std::fs::write(dir.path().join(AUTHORITY), authority.pem()).unwrap();
        std::fs::write(dir.path().join(CERTIFICATE), server.pem()).unwrap();
        std::fs::write(dir.path().join(KEY), server_key.serialize_pem()).unwrap();
        let mut roots = RootCertStore::empty();
        roots.add(authority.der().clone()).unwrap();
        let (client, client_key) = made();
        let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots)
            .with_client_auth_cert(
                vec![client.der().clone()],
                PrivateKeyDer::try_from(client_key.serialize_der()).unwrap(),
            );
        (TlsSettings::load(dir.path()).unwrap(), config.unwrap())
    }

    #[test]
    fn who_has_said_more_than_was_looked_at_is_not_quiet() {
        const BYTES: usize = 300_000;
        let (server, client) = settings();
        let (here, there) = UnixStream::pair().unwrap();
        let (reader, writer) = seal(&server, NbdStream::Unix(here)).unwrap();
        let client = std::thread::spawn(move || {
            let state = ClientConnection::new(Arc::new(client), "server".try_into().unwrap()).unwrap();
            let mut stream = StreamOwned::new(state, there);
            stream.write_all(&[7; BYTES]).unwrap();
            stream
        });
        let mut input = ClientInput::new(Input::Sealed(reader));
        let mut left = BYTES;
        while left > 0 {
            let began = Instant::now();
            assert!(!input.is_quiet_for(Duration::from_secs(5)), "{left} bytes are on their way");
            assert!(began.elapsed() < Duration::from_secs(5));
            let mut taken = vec![0; input.ahead().len().clamp(1, left)];
            input.read_exact(&mut taken).unwrap();
            left -= taken.len();
        }
        let client = client.join().unwrap();
        assert!(input.is_quiet_for(Duration::from_millis(10)));
        drop((client, writer));
    }
}
