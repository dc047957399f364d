//! `dvs alone`: servers of the virtual OS by themselves, without a container, a daemon or a cluster.

mod check;
pub mod file;
mod fs;
#[cfg(feature = "machinery")]
mod place;
#[cfg(feature = "machinery")]
pub mod volume;

use clap::{Args, Subcommand};

/// A server by itself: no container, no cluster, no daemon
#[derive(Subcommand, Debug)]
#[command(after_help = "\
Examples:
  dvs alone disk backup.img --size 10G         a disk for whoever speaks NBD, at 127.0.0.1:10809
  dvs alone fs tree.img /mnt --size 10G        a file tree, mounted here
  dvs alone file nbd://storage/disk /mnt       a volume of another server, as a file
  dvs alone check tree.img                     whether it is sound")]
pub enum Command {
    Disk(DiskOptions),
    Fs(fs::FsOptions),
    File(file::FileOptions),
    Check(check::CheckOptions),
}

/// Serve an image, a block device, memory or a volume of another server over NBD, until Ctrl-C or SIGTERM
#[derive(Args, Debug)]
#[command(after_help = "\
Clients connect as to any NBD server; several may at a time, and what one was told is written, all see. The export is \
called 'disk', and found without a name as well. What was flushed, or written with FUA, survives loss of power. Trimmed \
and zeroed ranges take no space. Without --tls-certificates whoever reaches the address reads and writes.

It needs no privileges but those that the file and the address need. Memory goes with the server. When another NBD server, \
whose volume is passed on, is lost, this one ends: what was flushed is there.

Examples:
  dvs alone disk backup.img --size 10G
  dvs alone disk /dev/vg0/backup
  dvs alone disk --memory 1G --listen 127.0.0.1:10810
  dvs alone disk nbd://storage/backup --read-only
  dvs alone disk backup.img --socket /run/backup.sock --read-only
  nbdinfo nbd://127.0.0.1:10809
  qemu-img convert disk.qcow2 -n -O raw nbd://127.0.0.1:10809
  nbdcopy nbd+unix:///?socket=/run/backup.sock copy.img
  nbdinfo 'nbds://server:10809/?tls-certificates=/etc/pki/nbd'")]
pub struct DiskOptions {
    /// A file, a block device, or a volume of an NBD server: nbd://HOST[:PORT]/EXPORT, nbd+unix:///EXPORT?socket=PATH.
    /// Its size is a multiple of 4,096.
    #[arg(required_unless_present = "memory")]
    pub image: Option<std::path::PathBuf>,
    /// Instead of an image: memory, which is empty at first and gone in the end.
    #[arg(long, value_name = "BYTES", value_parser = crate::units::parse_bytes, conflicts_with_all = ["image", "size", "read_only"])]
    pub memory: Option<u64>,
    /// Make it if it is not there, with holes; if it is smaller, make it so large: 512M, 10G.
    #[arg(long, value_name = "BYTES", value_parser = crate::units::parse_bytes)]
    pub size: Option<u64>,
    /// Where clients connect.
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:10809")]
    pub listen: std::net::SocketAddr,
    /// Listen at this Unix socket instead, which is made and removed.
    #[arg(long, value_name = "PATH", conflicts_with = "listen")]
    pub socket: Option<std::path::PathBuf>,
    /// Encrypt, and let in only clients with a certificate that ca-cert.pem of this directory signed; server-cert.pem
    /// and server-key.pem there are the server's.
    #[arg(long, value_name = "DIR")]
    pub tls_certificates: Option<std::path::PathBuf>,
    /// Nothing can be changed. Several servers may read one image.
    #[arg(long)]
    pub read_only: bool,
}

#[cfg(not(feature = "machinery"))]
pub fn execute(_: &crate::cli::Global, _: &Command) -> super::Outcome {
    Err(crate::errors::Failure::new("this dvs was built without servers").hint("the dvs of a node"))
}

#[cfg(feature = "machinery")]
pub use served::execute;
#[cfg(all(test, feature = "machinery"))]
pub use {check::Checked, file::ShownFile, fs::Mounted, served::Served};

#[cfg(feature = "machinery")]
mod served {
    use std::io::{self, Write};
    use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
    use std::process::ExitCode;
    use std::sync::Arc;

    use gate_nbd::{BlockStore, Exporter, NbdListener, TlsSettings};
    use rustix::event::{PollFd, PollFlags, poll};
    use serde::Serialize;

    use super::place;
    use super::volume::{self, Changes, Connected, Opened};
    use super::{Command, DiskOptions};
    use crate::cli::Global;
    use crate::commands::{Outcome, print};
    use crate::errors::Failure;
    use crate::output::{self, Row};

    const EXPORT: &str = "disk";

    pub fn execute(global: &Global, command: &Command) -> Outcome {
        match command {
            Command::Disk(options) => disk(global, options),
            Command::Fs(options) => super::fs::mount(global, options),
            Command::File(options) => super::file::mount(global, options),
            Command::Check(options) => super::check::check(global, options),
        }
    }

    #[derive(Serialize)]
    #[cfg_attr(test, derive(schemars::JsonSchema))]
    pub struct Served {
        uri: String,
        image: String,
        bytes: u64,
        read_only: bool,
    }

    impl Row for Served {
        const HEADINGS: &'static [&'static str] = &["URI", "IMAGE", "SIZE"];

        fn cells(&self) -> Vec<String> {
            vec![self.uri.clone(), self.image.clone(), output::bytes(self.bytes)]
        }

        fn name(&self) -> String {
            self.uri.clone()
        }
    }

    fn disk(global: &Global, options: &DiskOptions) -> Outcome {
        let stop = place::stop_signals(&[libc::SIGTERM, libc::SIGINT])?;
        let opened = match (&options.image, options.memory) {
            (Some(image), _) => {
                let changes = if options.read_only { Changes::Never } else { Changes::Unless };
                volume::open(image, options.size, changes)?
            }
            (None, bytes) => volume::in_memory(bytes.unwrap_or(0))?,
        };
        let Opened { volume, source: image, connection } = opened;
        let store: Box<dyn BlockStore> = Box::new(volume);
        let (listener, place) = match &options.socket {
            Some(path) => (NbdListener::unix(path), path.display().to_string()),
            None => (NbdListener::tcp(options.listen), options.listen.to_string()),
        };
        let listener = listener.map_err(|error| {
            let hint = if error.kind() == io::ErrorKind::AddrInUse {
                "another --listen or --socket"
            } else {
                "dvs alone disk --help"
            };
            Failure::new(format!("nobody can connect at {place}")).because(&error).hint(hint)
        })?;
        let tls = options.tls_certificates.as_deref().map(|dir| {
            TlsSettings::load(dir).map_err(|error| {
                let hint = "ca-cert.pem, server-cert.pem and server-key.pem there, as nbdkit and qemu-nbd have them";
                Failure::new(format!("the certificates in '{}' are not usable", dir.display()))
                    .because(&error)
                    .hint(hint)
            })
        });
        let tls = tls.transpose()?;
        let uri = listener
            .uri("", tls.is_some())
            .map_err(|error| Failure::new("the address is not known").because(&error))?;
        let (bytes, read_only) = (store.bytes(), store.is_read_only());
        let served = Served { uri, image: image.clone(), bytes, read_only };
        print(|out| output::one(out, global.output, &served, view))?;
        let mut exporter = Exporter::default();
        exporter.export(EXPORT, &served.image, store);
        if let Some(settings) = tls {
            exporter.demand_tls(settings);
        }
        let done = until_stopped(&stop, connection.as_ref(), |stop| Arc::new(exporter).run(&listener, stop));
        done.map_err(|error| Failure::new(format!("what was written to '{image}' last may be lost")).because(&error))?;
        Ok(ExitCode::SUCCESS)
    }

    /// The first signal ends `work`; the second one ends its waiting for another server.
    fn until_stopped<T: Send>(
        stop: &OwnedFd,
        connection: Option<&Connected>,
        work: impl FnOnce(BorrowedFd<'_>) -> io::Result<T> + Send,
    ) -> io::Result<T> {
        let (stopped, tell) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?;
        let (ended, over) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?;
        std::thread::scope(|scope| {
            let working = scope.spawn(move || {
                let done = work(stopped.as_fd());
                drop(over);
                done
            });
            let mut tell = Some(tell);
            loop {
                let mut wait = [PollFd::new(stop, PollFlags::IN), PollFd::new(&ended, PollFlags::IN)];
                if rustix::io::retry_on_intr(|| poll(&mut wait, None)).is_err() || !wait[1].revents().is_empty() {
                    break;
                }
                let _ = sys::signals::next(stop);
                if tell.take().is_none() {
                    connection.into_iter().for_each(Connected::end);
                }
            }
            drop(tell);
            working.join().unwrap_or_else(|_| Err(io::Error::other("a thread ended")))
        })
    }

    fn view(served: &Served, out: &mut impl Write) -> io::Result<()> {
        let only = if served.read_only { ", read-only" } else { "" };
        writeln!(out, "{} ({}{only}) is served at {}", served.image, output::bytes(served.bytes), served.uri)
    }
}
