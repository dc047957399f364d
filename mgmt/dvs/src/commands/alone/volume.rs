//! What servers alone serve: a file, a block device, memory, or a volume of an NBD server.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use disk_core::{Access, Image, ImageFile, Volume};
use nbd::NbdUri;
use nbd_client::{NbdConnection, NbdEnder, NbdError, NbdVolume};
use rustix::fs::FlockOperation;
use rustix::io::Errno;

use crate::errors::Failure;

/// Whether an image is changed.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Changes {
    Never,
    /// Unless --read-only says otherwise.
    Unless,
    Always,
}

/// A volume of this process, and what may become of it.
pub struct Opened {
    pub volume: Volume,
    /// What it is called.
    pub source: String,
    pub connection: Option<Connected>,
}

/// Of a volume of an NBD server.
pub struct Connected {
    ender: NbdEnder,
    is_lost: Arc<AtomicBool>,
}

impl Connected {
    pub fn is_lost(&self) -> bool {
        self.is_lost.load(Ordering::Acquire)
    }

    /// Who waits for its server waits no more.
    pub fn end(&self) {
        self.ender.end();
    }
}

pub fn open(path: &Path, size: Option<u64>, changes: Changes) -> Result<Opened, Failure> {
    let access = if changes == Changes::Never { Access::ReadOnly } else { Access::ReadWrite };
    let image = path.display();
    let failed = |error: &dyn std::error::Error| {
        let failure = Failure::new(format!("'{image}' cannot be used")).because(error);
        failure.hint("a file whose size is a multiple of 4,096, a block device, or nbd://HOST/EXPORT")
    };
    let source = image.to_string();
    if let Some(uri) = uri_of(path)? {
        let connection = reach(&uri, size, changes)?;
        let is_lost = Arc::new(AtomicBool::new(false));
        let told = Arc::clone(&is_lost);
        // Who waits for requests is waited for by a signal.
        let lost = move || {
            told.store(true, Ordering::Release);
            let _ = rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::TERM);
        };
        let volume = NbdVolume::new(connection, changes == Changes::Never, lost).map_err(|error| failed(&error))?;
        let ender = volume.ender().map_err(|error| failed(&error))?;
        return Ok(Opened { volume: Volume::new(volume), source, connection: Some(Connected { ender, is_lost }) });
    }
    let file = open_image(path, size, changes)?;
    let opened = ImageFile::open(Image { file, bytes: size, may_be_longer: false, access });
    let volume = Volume::new(opened.map_err(|error| failed(&error))?);
    Ok(Opened { volume, source, connection: None })
}

pub fn in_memory(bytes: u64) -> Result<Opened, Failure> {
    let opened = ImageFile::in_memory(bytes).map_err(|error| {
        Failure::new("there is no such memory").because(&error).hint("a multiple of 4,096: --memory 1G")
    })?;
    Ok(Opened { volume: Volume::new(opened), source: "memory".to_owned(), connection: None })
}

/// `None`: it is a path.
pub fn uri_of(path: &Path) -> Result<Option<NbdUri>, Failure> {
    let Some(text) = path.to_str().filter(|text| NbdUri::is_one(text)) else { return Ok(None) };
    let no = |error: nbd::UriError| {
        Failure::new(format!("'{text}' is no volume of an NBD server")).because(&error).hint("nbd://storage:10809/disk")
    };
    text.parse().map(Some).map_err(no)
}

/// `size`: what it must have, as nobody can make it larger from here.
pub fn reach(uri: &NbdUri, size: Option<u64>, changes: Changes) -> Result<NbdConnection, Failure> {
    let failed = || Failure::new(format!("'{uri}' cannot be used"));
    let connection = nbd_client::connect(uri).map_err(|error| {
        let hint = match &error {
            NbdError::NoExport(_) => format!("nbdinfo --list {uri} says which there are"),
            NbdError::Unreachable { .. } => "whether its server runs, and listens there".to_owned(),
            NbdError::Encrypted => "a server that demands no TLS at an address that is safe".to_owned(),
            _ => "nbdinfo says what is there".to_owned(),
        };
        failed().because(&error).hint(hint)
    })?;
    if changes != Changes::Never && !connection.offer.is_read_only() && !connection.offer.can_flush() {
        let why = "its server takes no flush, so nothing that is written there is promised to survive loss of power";
        return Err(failed().because_text(why).hint("--read-only; nbd-server has 'flush = true'"));
    }
    match size {
        Some(size) if size != connection.offer.bytes => {
            let has = connection.offer.bytes;
            Err(failed()
                .because_text(format!("it has {has} bytes, not {size}"))
                .hint("no --size: it has the one that its server gives it"))
        }
        _ => Ok(connection),
    }
}

/// Nobody else who serves it may change it.
pub fn open_image(path: &Path, size: Option<u64>, changes: Changes) -> Result<OwnedFd, Failure> {
    let image = path.display();
    let file = open_or_make(path, size.is_some(), changes == Changes::Never).map_err(|error| {
        let hint = match error.kind() {
            io::ErrorKind::NotFound if changes != Changes::Never => "--size 10G makes it",
            io::ErrorKind::PermissionDenied if changes == Changes::Unless => "--read-only, if it may be read",
            _ => "dvs alone --help",
        };
        Failure::new(format!("'{image}' cannot be opened")).because(&error).hint(hint)
    })?;
    let lock = match changes {
        Changes::Never => FlockOperation::NonBlockingLockShared,
        Changes::Unless | Changes::Always => FlockOperation::NonBlockingLockExclusive,
    };
    match rustix::fs::flock(&file, lock) {
        Err(Errno::WOULDBLOCK) => {
            Err(Failure::new(format!("'{image}' is served already")).hint(if changes == Changes::Always {
                "the other one's end"
            } else {
                "--read-only for both, or the other one's end"
            }))
        }
        // A file system that has no locks.
        _ => Ok(file.into()),
    }
}

fn open_or_make(path: &Path, is_made: bool, read_only: bool) -> io::Result<File> {
    if read_only {
        return File::open(path);
    }
    OpenOptions::new().read(true).write(true).create(is_made).truncate(false).open(path)
}
