//! Reading and writing of the files.

use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{Read, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::Path;

use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, CertificateRevocationListDer, PrivateKeyDer};

use crate::{CA_CERT, NODE_CERT, NODE_KEY, NODE_PAIR, PkiError};

/// A PEM file of ours has at most a few kilobytes.
const FILE_BYTES_MAX: u64 = 64 * 1024;

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Secrecy {
    Public,
    Secret,
}

pub(crate) fn read_text(path: &Path) -> Result<String, PkiError> {
    let failed = |source| PkiError::Read { path: path.to_owned(), source };
    let mut text = String::new();
    File::open(path).map_err(failed)?.take(FILE_BYTES_MAX).read_to_string(&mut text).map_err(failed)?;
    Ok(text)
}

pub(crate) fn read_certificate(path: &Path) -> Result<CertificateDer<'static>, PkiError> {
    let text = read_text(path)?;
    CertificateDer::from_pem_slice(text.as_bytes())
        .map_err(|_| PkiError::Malformed { path: path.to_owned(), what: "a certificate in PEM form" })
}

/// All certificates of a file, at least one.
pub(crate) fn read_certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, PkiError> {
    let text = read_text(path)?;
    let all: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(text.as_bytes()).collect();
    let all = all.ok().filter(|all| !all.is_empty());
    all.ok_or_else(|| PkiError::Malformed { path: path.to_owned(), what: "certificates in PEM form" })
}

/// Lists of revoked certificates; none where there is no file.
pub(crate) fn read_revocations(path: &Path) -> Result<Vec<CertificateRevocationListDer<'static>>, PkiError> {
    let text = match read_text(path) {
        Err(PkiError::Read { source, .. }) if source.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        text => text?,
    };
    let all: Result<Vec<_>, _> = CertificateRevocationListDer::pem_slice_iter(text.as_bytes()).collect();
    all.map_err(|_| PkiError::Malformed { path: path.to_owned(), what: "lists of revoked certificates in PEM form" })
}

/// Writes a file that everybody may read, unless it says that already.
pub fn write_public(path: &Path, text: &str) -> Result<(), PkiError> {
    if fs::read(path).is_ok_and(|there| there == text.as_bytes()) {
        return Ok(());
    }
    write(path, text, Secrecy::Public)
}

/// What a node shows others, and by what it knows them.
pub struct NodeFiles<'a> {
    pub certificate_pem: &'a str,
    /// Secret.
    pub key_pem: &'a str,
    /// The one that signs first.
    pub roots_pem: &'a str,
}

/// Writes all of them into `dir`, which is made when missing. Whoever dies in between leaves what
/// [`mend_node_files`] brings to an end.
pub fn write_node_files(dir: &Path, node: &NodeFiles<'_>) -> Result<(), PkiError> {
    fs::create_dir_all(dir).map_err(|source| PkiError::Write { path: dir.to_owned(), source })?;
    write(&dir.join(CA_CERT), node.roots_pem, Secrecy::Public)?;
    write(&dir.join(NODE_PAIR), &format!("{}{}", node.key_pem, node.certificate_pem), Secrecy::Secret)?;
    write(&dir.join(NODE_KEY), node.key_pem, Secrecy::Secret)?;
    write(&dir.join(NODE_CERT), node.certificate_pem, Secrecy::Public)
}

/// Makes key and certificate those of the pair that was written last. A directory without a pair, whose files somebody
/// put there by hand, is left as it is; so is one where the files are younger than the pair.
pub fn mend_node_files(dir: &Path) -> Result<(), PkiError> {
    let (pair_path, key_path, certificate_path) = (dir.join(NODE_PAIR), dir.join(NODE_KEY), dir.join(NODE_CERT));
    let modified = |path: &Path| fs::metadata(path).and_then(|status| status.modified()).ok();
    let Some(written) = modified(&pair_path) else { return Ok(()) };
    if modified(&certificate_path).is_some_and(|later| later >= written) {
        return Ok(());
    }
    let pair = read_key_text(&pair_path)?;
    let malformed = || PkiError::Malformed { path: pair_path.clone(), what: "a private key and a certificate" };
    let (key, certificate) = pair.split_at(pair.find("-----BEGIN CERTIFICATE-----").ok_or_else(malformed)?);
    write(&key_path, key, Secrecy::Secret)?;
    write(&certificate_path, certificate, Secrecy::Public)
}

/// Reads a private key and refuses one that other users may read: it is no secret any more.
pub(crate) fn read_key_text(path: &Path) -> Result<String, PkiError> {
    let text = read_text(path)?;
    let status = fs::metadata(path).map_err(|source| PkiError::Read { path: path.to_owned(), source })?;
    let mode = status.permissions().mode() & 0o777;
    if mode & 0o077 != 0 {
        return Err(PkiError::KeyExposed { path: path.to_owned(), mode });
    }
    Ok(text)
}

pub(crate) fn read_key(path: &Path) -> Result<PrivateKeyDer<'static>, PkiError> {
    PrivateKeyDer::from_pem_slice(read_key_text(path)?.as_bytes())
        .map_err(|_| PkiError::Malformed { path: path.to_owned(), what: "a private key in PEM form" })
}

/// Replaces the file as a whole: nobody ever sees half a certificate, nor a key before its mode is set.
pub(crate) fn write(path: &Path, text: &str, secrecy: Secrecy) -> Result<(), PkiError> {
    let failed = |source| PkiError::Write { path: path.to_owned(), source };
    let mode = if secrecy == Secrecy::Secret { 0o600 } else { 0o644 };
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(format!(".{}.new", std::process::id()));
    let temporary = path.with_file_name(name);
    let _ = fs::remove_file(&temporary);
    let written = || {
        let mut file = OpenOptions::new().write(true).create_new(true).mode(mode).open(&temporary)?;
        file.set_permissions(Permissions::from_mode(mode))?;
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        fs::rename(&temporary, path)
    };
    // Where there was no room nothing may be left either: it may have been a key.
    written().map_err(failed).inspect_err(|_| drop(fs::remove_file(&temporary)))
}
