//! Reading and writing of the files.

use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{Read, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::Path;

use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};

use crate::PkiError;

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
    let mut file = OpenOptions::new().write(true).create_new(true).mode(mode).open(&temporary).map_err(failed)?;
    file.set_permissions(Permissions::from_mode(mode)).map_err(failed)?;
    file.write_all(text.as_bytes()).and_then(|()| file.sync_all()).map_err(failed)?;
    fs::rename(&temporary, path).map_err(failed)
}
