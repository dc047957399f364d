//! `dvs alone file`, `dvs disk mount`: a disk as a file of this machine.

/// Show a volume of an NBD server as a file here, until it is unmounted, or until Ctrl-C or SIGTERM
#[derive(clap::Args, Debug)]
#[command(after_help = "\
MOUNTPOINT/disk has the bytes of the volume. A loop device on it is a block device, for kernels without a client of NBD: \
losetup, mkfs, mount. fsync of the file is a flush of the volume. When the server is lost, this command ends, and who uses \
the file has an error; what was flushed is there. While something uses it, it is not unmounted; a second Ctrl-C takes it away \
all the same, and waits for a server that says nothing no more.

Who is not root needs fusermount3 (Debian: fuse3), and then only that user sees the file.

Examples:
  dvs alone file nbd://storage/disk /mnt/volume
  losetup --find --show /mnt/volume/disk
  umount /mnt/volume                           ends it, as fusermount3 -u does")]
pub struct FileOptions {
    /// A volume of an NBD server (nbd://HOST[:PORT]/EXPORT, nbd+unix:///EXPORT?socket=PATH), a file or a block device.
    pub volume: std::path::PathBuf,
    /// A directory; what is in it is hidden meanwhile.
    pub mountpoint: std::path::PathBuf,
    /// Nothing can be changed.
    #[arg(long)]
    pub read_only: bool,
}

#[cfg(all(test, feature = "machinery"))]
pub use shown::ShownFile;
#[cfg(feature = "machinery")]
pub use shown::{mount, mount_what};

#[cfg(feature = "machinery")]
mod shown {
    use std::io::{self, Write};
    use std::os::fd::{AsFd, OwnedFd};
    use std::path::Path;
    use std::process::ExitCode;
    use std::time::{SystemTime, UNIX_EPOCH};

    use gate_file::{FileGate, Owner};
    use gate_nbd::BlockStore;
    use rustix::event::{PollFd, PollFlags, poll};
    use sandbox::fusehere::FuseHere;
    use serde::Serialize;

    use super::FileOptions;
    use crate::cli::Global;
    use crate::commands::alone::place;
    use crate::commands::alone::volume::{self, Changes, Connected, Opened};
    use crate::commands::{Outcome, print};
    use crate::errors::Failure;
    use crate::output::{self, Row};

    const FILE: &str = "disk";

    #[derive(Serialize)]
    #[cfg_attr(test, derive(schemars::JsonSchema))]
    pub struct ShownFile {
        file: String,
        volume: String,
        bytes: u64,
        read_only: bool,
    }

    impl Row for ShownFile {
        const HEADINGS: &'static [&'static str] = &["FILE", "VOLUME", "SIZE"];

        fn cells(&self) -> Vec<String> {
            vec![self.file.clone(), self.volume.clone(), output::bytes(self.bytes)]
        }

        fn name(&self) -> String {
            self.file.clone()
        }
    }

    pub fn mount(global: &Global, options: &FileOptions) -> Outcome {
        let changes = if options.read_only { Changes::Never } else { Changes::Unless };
        mount_what(global, &options.mountpoint, || volume::open(&options.volume, None, changes))
    }

    pub fn mount_what(global: &Global, mountpoint: &Path, find: impl FnOnce() -> Result<Opened, Failure>) -> Outcome {
        place::demand_mountpoint(mountpoint)?;
        let stop = place::stop_signals(&[libc::SIGTERM, libc::SIGINT, libc::SIGHUP])?;
        show(global, find()?, mountpoint, &stop)
    }

    /// Until it is unmounted, or lost.
    fn show(global: &Global, opened: Opened, mountpoint: &Path, stop: &OwnedFd) -> Outcome {
        let Opened { volume, source, connection } = opened;
        let at = std::path::absolute(mountpoint).unwrap_or(mountpoint.to_owned());
        let (bytes, read_only) = (BlockStore::bytes(&volume), volume.is_read_only());
        let (ended, over) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)
            .map_err(|error| Failure::new("nothing can be waited for").because(&io::Error::from(error)))?;
        let here = FuseHere { place: at, source: source.clone(), allow_other: false, read_only };
        let fuse = place::mount(&here)?;
        let time = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
        let (uid, gid) = (rustix::process::getuid().as_raw(), rustix::process::getgid().as_raw());
        let gate = FileGate::new(fuse, FILE, Box::new(volume), Owner { uid, gid, time });
        let file = here.place.join(FILE).display().to_string();
        let told = print(|out| {
            output::one(out, global.output, &ShownFile { file, volume: source.clone(), bytes, read_only }, view)
        });
        if told.is_err() {
            let _ = here.detach();
            return told;
        }
        // Not waited for when the volume is lost: its end is this process's.
        let serving = std::thread::spawn(move || {
            let served = gate.serve();
            drop(over);
            served
        });
        let what = format!("what was written to '{source}' last may be lost");
        if unmount_when_asked(&here, stop, &ended, connection.as_ref()) == End::Lost {
            return Err(Failure::new(what).because_text("its server is lost").hint("what was flushed is there"));
        }
        let served = serving.join().unwrap_or_else(|_| Err(io::Error::other("a thread ended")));
        served.map_err(|error| Failure::new(what).because(&error))?;
        Ok(ExitCode::SUCCESS)
    }

    #[derive(PartialEq, Eq)]
    enum End {
        Unmounted,
        Lost,
    }

    /// The second time it is taken away from there all the same, and nothing is waited for.
    fn unmount_when_asked(here: &FuseHere, stop: &OwnedFd, ended: &OwnedFd, connection: Option<&Connected>) -> End {
        let mut asked = 0;
        loop {
            let mut wait = [PollFd::new(stop, PollFlags::IN), PollFd::from_borrowed_fd(ended.as_fd(), PollFlags::IN)];
            if rustix::io::retry_on_intr(|| poll(&mut wait, None)).is_err() || !wait[1].revents().is_empty() {
                return End::Unmounted;
            }
            let _ = sys::signals::next(stop);
            if connection.is_some_and(Connected::is_lost) {
                let _ = here.detach();
                return End::Lost;
            }
            asked += 1;
            let done = if asked > 1 { here.detach() } else { here.unmount() };
            if asked > 1 {
                connection.into_iter().for_each(Connected::end);
            } else if let Err(error) = done {
                place::say_that_it_stays(here, &error);
            }
        }
    }

    fn view(shown: &ShownFile, out: &mut impl Write) -> io::Result<()> {
        let only = if shown.read_only { ", read-only" } else { "" };
        writeln!(out, "{} ({}{only}) is {}", shown.volume, output::bytes(shown.bytes), shown.file)
    }
}
