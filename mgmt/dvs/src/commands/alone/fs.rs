//! `dvs alone fs`: the file tree of an image, mounted on this machine.
//!
//! ```text
//! programs ── kernel ── FUSE ──▶ gate ── rings ──▶ fs ── ring ──▶ disk ──▶ image, device, NBD server
//!                                  └──────────── reads ─────────────▶┘
//! ```
//!
//! The same three processes as in a container, and a broker in this one, which starts them again when they end: as
//! there, programs wait meanwhile and notice nothing else. They end with this one.

/// Mount the file tree of an image here, until it is unmounted, or until Ctrl-C or SIGTERM
#[derive(clap::Args, Debug)]
#[command(after_help = "\
The image is one as containers have them, and the other way round: of a container that is stopped it may be the first disk \
of a node (images/root.img). What fsync answered survives loss of power. When one of its servers ends it is started again, \
and programs wait meanwhile. When the server of an NBD volume is lost, all ends, as a machine does without power.

Who is not root needs fusermount3 (Debian: fuse3), and then only that user and group see the files. While programs use it, it \
is not unmounted; a second Ctrl-C takes it away from the directory all the same, and all ends when they have closed what \
they have.

Examples:
  dvs alone fs tree.img /mnt --size 10G
  dvs alone fs ~/tree.img ~/tree
  dvs alone fs nbd://storage/tree /mnt
  dvs alone fs --read-only tree.img /mnt       the image stays as it is
  umount /mnt                                  ends it, as fusermount3 -u does")]
pub struct FsOptions {
    /// A file, a block device, or a volume of an NBD server (nbd://HOST[:PORT]/EXPORT), of at least 32M.
    pub image: std::path::PathBuf,
    /// A directory; what is in it is hidden meanwhile.
    pub mountpoint: std::path::PathBuf,
    /// Make the image if it is not there, with holes: 512M, 10G.
    #[arg(long, value_name = "BYTES", value_parser = crate::units::parse_bytes)]
    pub size: Option<u64>,
    /// Let others in as well, as far as permissions of files do; root always does. fusermount3 asks for
    /// user_allow_other in /etc/fuse.conf.
    #[arg(long)]
    pub allow_other: bool,
    /// Only look: nothing is written to the image, also when it was not closed. Others may look at the same time.
    #[arg(long, conflicts_with = "size")]
    pub read_only: bool,
}

#[cfg(all(test, feature = "machinery"))]
pub use mounted::Mounted;
#[cfg(feature = "machinery")]
pub use mounted::mount;

#[cfg(feature = "machinery")]
mod mounted {
    use std::ffi::CString;
    use std::fs::File;
    use std::io::{self, Write};
    use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
    use std::process::ExitCode;
    use std::sync::mpsc;
    use std::time::{Duration, Instant};

    use abi::{DcId, Endpoint, Epoch};
    use broker::{Broker, BrokerConfig, DcOptions, ServerIdentity};
    use nbd::NbdUri;
    use nbd_client::NbdConnection;
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    use rustix::fs::MemfdFlags;
    use rustix::io::Errno;
    use rustix::process::{Signal, WaitId, WaitIdOptions, waitid};
    use sandbox::fusehere::FuseHere;
    use serde::Serialize;
    use serde_json::{Map, Value, json};
    use sys::launch::{Launch, Launched, PidNamespace, WhenCallerEnds, launch};

    use super::FsOptions;
    use crate::cli::Global;
    use crate::commands::alone::place;
    use crate::commands::alone::volume::{self, Changes};
    use crate::commands::{Outcome, print};
    use crate::errors::Failure;
    use crate::output::{self, Row};

    const DC: DcId = DcId(1);
    /// Of all three: nobody is placed here.
    const PLACEMENT_EPOCH: u32 = 1;
    /// A server that was well for so long has not ended again and again.
    const WELL_AFTER: Duration = Duration::from_secs(10);
    const FAILURES_MAX: u32 = 5;
    const FIRST_DELAY: Duration = Duration::from_millis(20);
    /// Between SIGTERM and SIGKILL.
    const GRACE: Duration = Duration::from_secs(10);
    const LOOK_AGAIN: Duration = Duration::from_millis(50);

    /// In the order in which they begin.
    const ROLES: [Role; 3] = [
        Role { name: "disk", endpoint: Endpoint::DISK, arguments: ["server", "disk"] },
        Role { name: "fs", endpoint: Endpoint::FS, arguments: ["server", "fs"] },
        Role { name: "gate", endpoint: Endpoint::GATE, arguments: ["gate", "fuse"] },
    ];
    const DISK: usize = 0;
    const GATE: usize = 2;

    struct Role {
        name: &'static str,
        endpoint: Endpoint,
        arguments: [&'static str; 2],
    }

    #[derive(Serialize)]
    #[cfg_attr(test, derive(schemars::JsonSchema))]
    pub struct Mounted {
        mountpoint: String,
        image: String,
        bytes: u64,
        read_only: bool,
    }

    impl Row for Mounted {
        const HEADINGS: &'static [&'static str] = &["MOUNTPOINT", "IMAGE", "SIZE"];

        fn cells(&self) -> Vec<String> {
            vec![self.mountpoint.clone(), self.image.clone(), output::bytes(self.bytes)]
        }

        fn name(&self) -> String {
            self.mountpoint.clone()
        }
    }

    pub fn mount(global: &Global, options: &FsOptions) -> Outcome {
        let stop = place::stop_signals(&[libc::SIGTERM, libc::SIGINT, libc::SIGHUP])?;
        place::demand_mountpoint(&options.mountpoint)?;
        let (below, bytes) = Below::open(options)?;
        let place = std::path::absolute(&options.mountpoint).unwrap_or(options.mountpoint.clone());
        let mut world =
            World::begin(below, stop, options.read_only).map_err(|error| failed("there are no servers", &*error))?;
        for role in 0..GATE {
            world.start_first(role, options)?;
        }
        let FsOptions { allow_other, read_only, .. } = *options;
        let here = FuseHere { place, source: options.image.display().to_string(), allow_other, read_only };
        world.fuse = Some(place::mount(&here)?);
        let done = world.start_first(GATE, options).and_then(|()| {
            let (mountpoint, image) = (here.place.display().to_string(), options.image.display().to_string());
            print(|out| output::one(out, global.output, &Mounted { mountpoint, image, bytes, read_only }, view))?;
            world.serve(&here)
        });
        if done.is_err() {
            let _ = here.detach();
        }
        // What is in the memory of the file server goes to the disk, then from there.
        let ended = [GATE, 1, 0].map(|role| world.end(role));
        done?;
        if ended.contains(&false) {
            let what = format!("what was written to '{}' last may be lost", options.image.display());
            return Err(Failure::new(what).hint("mount it again: what fsync answered is there"));
        }
        Ok(ExitCode::SUCCESS)
    }

    fn view(mounted: &Mounted, out: &mut impl Write) -> io::Result<()> {
        let Mounted { mountpoint, image, bytes, read_only } = mounted;
        let only = if *read_only { ", read-only" } else { "" };
        writeln!(out, "{image} ({}{only}) is mounted at {mountpoint}", output::bytes(*bytes))
    }

    fn failed(what: &str, error: &(dyn std::error::Error + 'static)) -> Failure {
        Failure::new(what.to_owned()).because(error)
    }

    /// What the disk server serves.
    enum Below {
        Image(OwnedFd),
        /// The connection is kept besides the disk server, to see whether its server is the same one still.
        Nbd {
            uri: NbdUri,
            connection: NbdConnection,
        },
    }

    impl Below {
        fn open(options: &FsOptions) -> Result<(Below, u64), Failure> {
            let shown = options.image.display();
            if let Some(uri) = volume::uri_of(&options.image)? {
                let changes = if options.read_only { Changes::Never } else { Changes::Always };
                let connection = volume::reach(&uri, options.size, changes)?;
                if connection.offer.is_read_only() && !options.read_only {
                    return Err(
                        Failure::new(format!("'{shown}' can only be read")).hint("an export that may be written")
                    );
                }
                let bytes = connection.offer.bytes;
                return Ok((Below::Nbd { uri, connection }, bytes));
            }
            let changes = if options.read_only { Changes::Never } else { Changes::Always };
            let image = volume::open_image(&options.image, options.size, changes)?;
            if let Some(size) = options.size {
                grow(&image, size)
                    .map_err(|error| Failure::new(format!("'{shown}' cannot be made so large")).because(&error))?;
            }
            let bytes = rustix::fs::seek(&image, rustix::fs::SeekFrom::End(0)).unwrap_or(0);
            Ok((Below::Image(image), bytes))
        }

        fn descriptor(&self) -> (&'static str, BorrowedFd<'_>) {
            match self {
                Below::Image(image) => ("image", image.as_fd()),
                Below::Nbd { connection, .. } => ("volume", connection.socket.as_fd()),
            }
        }

        fn options(&self, read_only: bool) -> Value {
            let mut options = json!({ "owner": Endpoint::FS.number(), "read_only": u8::from(read_only) });
            if let Below::Nbd { connection, .. } = self {
                connection.offer.words().into_iter().for_each(|(name, word)| options[name] = json!(word));
            }
            options
        }

        /// For a disk server that begins again: it cannot go on with what the one before it asked.
        fn again(&mut self) -> Result<(), Failure> {
            let Below::Nbd { uri, connection } = self else { return Ok(()) };
            let lost = |why: &str| {
                let what = Failure::new(format!("the volume '{uri}' cannot be gone on with")).because_text(why);
                what.hint("mount it again, once it is there: what fsync answered is in it")
            };
            // What was written and not flushed is there as long as the server is the one that took it.
            if is_over(&connection.socket) {
                return Err(lost("its server is lost"));
            }
            // All that the one before it asked is done, or it could come after what the next one asks.
            if !has_finished(&connection.socket) {
                return Err(lost("its server does not end what it had begun"));
            }
            // What came over that connection a flush of the next one must cover.
            if !connection.offer.is_one_for_all_connections() {
                return Err(lost("its server does not promise that one flush is for all connections"));
            }
            let next = volume::reach(uri, Some(connection.offer.bytes), Changes::Never)?;
            if next.offer.flags != connection.offer.flags {
                return Err(lost("its server offers something else now"));
            }
            *connection = next;
            Ok(())
        }
    }

    /// Tells the server that nothing more is asked, and waits until it has answered all, for [`GRACE`] at most.
    fn has_finished(socket: &OwnedFd) -> bool {
        let (until, mut room) = (Instant::now() + GRACE, vec![0; 256 << 10]);
        let _ = rustix::net::shutdown(socket, rustix::net::Shutdown::Write);
        loop {
            let left = Timespec::try_from(until.saturating_duration_since(Instant::now())).unwrap_or_default();
            let mut look = [PollFd::new(socket, PollFlags::IN)];
            if !matches!(rustix::io::retry_on_intr(|| poll(&mut look, Some(&left))), Ok(1)) {
                return false;
            }
            match rustix::io::read(socket, room.as_mut_slice()) {
                Ok(0) | Err(Errno::CONNRESET) => return true,
                Ok(_) | Err(Errno::INTR) => {}
                Err(_) => return false,
            }
        }
    }

    /// Whether the other side of a connection is gone.
    fn is_over(socket: &OwnedFd) -> bool {
        let mut look = [PollFd::new(socket, PollFlags::RDHUP)];
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        let ended = PollFlags::RDHUP | PollFlags::HUP | PollFlags::ERR;
        !matches!(poll(&mut look, Some(&now)), Ok(0)) && look[0].revents().intersects(ended)
    }

    fn grow(image: &OwnedFd, size: u64) -> io::Result<()> {
        let about = rustix::fs::fstat(image)?;
        let is_file = rustix::fs::FileType::from_raw_mode(about.st_mode) == rustix::fs::FileType::RegularFile;
        // The tree in it has the size that it was made with.
        if is_file && about.st_size == 0 {
            rustix::fs::ftruncate(image, size)?;
        }
        Ok(())
    }

    struct Running {
        process: Launched,
        begun: Instant,
        /// Open, so that who says that it is ready meets somebody.
        ready: OwnedFd,
    }

    /// The broker, and who runs over it.
    struct World {
        broker: Broker,
        below: Below,
        read_only: bool,
        stop: OwnedFd,
        fuse: Option<OwnedFd>,
        state: OwnedFd,
        deaths: (OwnedFd, OwnedFd),
        running: [Option<Running>; ROLES.len()],
        /// How often each ended soon, and when it is started again.
        failures: [(u32, Option<Instant>); ROLES.len()],
        epoch: u64,
    }

    type Error = Box<dyn std::error::Error + Send + Sync>;

    impl World {
        fn begin(below: Below, stop: OwnedFd, read_only: bool) -> Result<World, Error> {
            let broker = Broker::start(BrokerConfig::local())?;
            broker.add_dc(DC, DcOptions::default())?;
            let state = rustix::fs::memfd_create("dvs-gate-state", MemfdFlags::CLOEXEC)?;
            let deaths = sys::seqpacket::pair()?;
            Ok(World {
                broker,
                below,
                read_only,
                stop,
                fuse: None,
                state,
                deaths,
                running: Default::default(),
                failures: Default::default(),
                epoch: 0,
            })
        }

        /// Starts it, and waits until it is ready.
        fn start_first(&mut self, role: usize, options: &FsOptions) -> Result<(), Failure> {
            let Role { name, .. } = ROLES[role];
            let what = || format!("the {name} of '{}' does not begin", options.image.display());
            let started = self.start(role).and_then(|()| Ok(self.is_ready(role)?));
            match started {
                Ok(true) => Ok(()),
                Ok(false) => Err(Failure::new(what()).hint("what it said is above; dvs alone fs --help")),
                Err(error) => Err(failed(&what(), &*error)),
            }
        }

        /// False: it has ended, or this process was asked to end.
        fn is_ready(&self, role: usize) -> io::Result<bool> {
            let Some(running) = &self.running[role] else { return Ok(false) };
            let mut wait = [PollFd::new(&running.ready, PollFlags::IN), PollFd::new(&self.stop, PollFlags::IN)];
            rustix::io::retry_on_intr(|| poll(&mut wait, None))?;
            if !wait[1].revents().is_empty() {
                return Ok(false);
            }
            let mut byte = [0_u8; 1];
            Ok(rustix::io::retry_on_intr(|| rustix::io::read(&running.ready, &mut byte))? == 1)
        }

        fn start(&mut self, role: usize) -> Result<(), Error> {
            let Role { name: _, endpoint, arguments } = &ROLES[role];
            self.epoch += 1;
            let identity = ServerIdentity::new(*endpoint, Epoch(self.epoch));
            let broker = self.broker.server_socket(DC, identity)?;
            let (ready, say_ready) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?;
            let (fds, options) = self.given(role);
            let numbers: Map<String, Value> =
                fds.iter().map(|(role, fd)| ((*role).to_owned(), json!(fd.as_raw_fd()))).collect();
            let record = json!({
                "dc": DC.0, "dc_name": "alone", "endpoint": endpoint.number(), "epoch": self.epoch,
                "placement_epoch": PLACEMENT_EPOCH, "broker_fd": broker.as_raw_fd(), "ready_fd": say_ready.as_raw_fd(),
                "fds": numbers, "options": options,
            });
            let level = std::env::var("DVS_LOG").unwrap_or_else(|_| "warn".to_owned());
            let environment = [format!("{}={record}", sys::spawn::VARIABLE), format!("DVS_LOG={level}")];
            let null = File::open("/dev/null")?;
            let log = rustix::stdio::stderr();
            let mut inherit: Vec<BorrowedFd<'_>> = vec![broker.as_fd(), say_ready.as_fd()];
            inherit.extend(fds.iter().map(|(_, fd)| *fd));
            let process = launch(
                &Launch {
                    program: c"/proc/self/exe",
                    arguments: &texts(["dvs", arguments[0], arguments[1]].map(str::to_owned))?,
                    environment: &texts(environment)?,
                    input: null.as_fd(),
                    log,
                    inherit: &inherit,
                    pid_namespace: PidNamespace::Shared,
                    when_caller_ends: WhenCallerEnds::Die,
                },
                |_| Ok(()),
            )?;
            self.running[role] = Some(Running { process, begun: Instant::now(), ready });
            Ok(())
        }

        /// Descriptors and options of its spawn record.
        fn given(&self, role: usize) -> (Vec<(&'static str, BorrowedFd<'_>)>, Value) {
            let epochs = |options: Value| {
                let mut options = options;
                options["disk"] = json!(Endpoint::DISK.number());
                options["disk_epoch"] = json!(PLACEMENT_EPOCH);
                options
            };
            match role {
                DISK => (vec![self.below.descriptor()], self.below.options(self.read_only)),
                1 => {
                    let (uid, gid) = (rustix::process::getuid().as_raw(), rustix::process::getgid().as_raw());
                    let read_only = u8::from(self.read_only);
                    (Vec::new(), epochs(json!({ "made_by_uid": uid, "made_by_gid": gid, "read_only": read_only })))
                }
                _ => {
                    let mut fds = vec![("state", self.state.as_fd()), ("deaths", self.deaths.1.as_fd())];
                    fds.extend(self.fuse.as_ref().map(|fuse| ("fuse", fuse.as_fd())));
                    (fds, epochs(json!({ "fs": Endpoint::FS.number(), "fs_epoch": PLACEMENT_EPOCH })))
                }
            }
        }

        /// Until the tree is not mounted any more.
        fn serve(&mut self, here: &FuseHere) -> Result<(), Failure> {
            let (tell, told) = mpsc::channel();
            let mut asked = 0;
            loop {
                if self.is_asked_to_stop().map_err(|error| failed("there are no signals", &error))? {
                    asked += 1;
                    // The kernel asks the gate first, which may have to be started again meanwhile.
                    let (here, tell, regardless) = (here.clone(), tell.clone(), asked > 1);
                    std::thread::spawn(move || tell.send(if regardless { here.detach() } else { here.unmount() }));
                }
                if let Ok(Err(error)) = told.try_recv() {
                    place::say_that_it_stays(here, &error);
                }
                while sys::dying::answer(&self.deaths.0).unwrap_or(false) {}
                for (role, Role { name, .. }) in ROLES.iter().enumerate() {
                    let Some(running) = self.running[role].take_if(|it| sys::pidfd::has_ended(&it.process.pidfd))
                    else {
                        continue;
                    };
                    let is_well = reap(&running.process.pidfd) == Some(0);
                    if role == GATE && is_well {
                        return Ok(());
                    }
                    if role == DISK {
                        self.below.again()?;
                    }
                    let (failures, again) = &mut self.failures[role];
                    *failures = if running.begun.elapsed() > WELL_AFTER { 1 } else { *failures + 1 };
                    if *failures > FAILURES_MAX {
                        let what = format!("the {name} of '{}' ends again and again", here.source);
                        return Err(Failure::new(what).hint("what it said is above"));
                    }
                    *again = Some(Instant::now() + FIRST_DELAY * 2_u32.pow(*failures - 1));
                }
                for role in 0..ROLES.len() {
                    if self.failures[role].1.take_if(|at| *at <= Instant::now()).is_some() {
                        self.start(role).map_err(|error| failed("a server cannot be started again", &*error))?;
                    }
                }
                self.wait(asked > 0).map_err(|error| failed("nothing can be waited for", &error))?;
            }
        }

        fn is_asked_to_stop(&self) -> io::Result<bool> {
            let mut look = [PollFd::new(&self.stop, PollFlags::IN)];
            let now = Timespec { tv_sec: 0, tv_nsec: 0 };
            let is_asked = rustix::io::retry_on_intr(|| poll(&mut look, Some(&now)))? > 0;
            if is_asked {
                sys::signals::next(&self.stop)?;
            }
            Ok(is_asked)
        }

        fn wait(&self, soon: bool) -> io::Result<()> {
            let mut fds = vec![PollFd::new(&self.stop, PollFlags::IN), PollFd::new(&self.deaths.0, PollFlags::IN)];
            fds.extend(self.running.iter().flatten().map(|it| PollFd::new(&it.process.pidfd, PollFlags::IN)));
            let begins = self.failures.iter().any(|(_, again)| again.is_some());
            let limit = (soon || begins).then(|| Timespec::try_from(LOOK_AGAIN).unwrap_or_default());
            rustix::io::retry_on_intr(|| poll(&mut fds, limit.as_ref())).map(drop).map_err(Into::into)
        }

        /// False: it did not end by itself, or not well.
        fn end(&mut self, role: usize) -> bool {
            let Some(running) = self.running[role].take() else { return true };
            let pidfd = &running.process.pidfd;
            let _ = sys::pidfd::signal(pidfd, Signal::TERM);
            let mut wait = [PollFd::new(pidfd, PollFlags::IN)];
            let grace = Timespec::try_from(GRACE).unwrap_or_default();
            if !matches!(rustix::io::retry_on_intr(|| poll(&mut wait, Some(&grace))), Ok(1)) {
                let _ = sys::pidfd::signal(pidfd, Signal::KILL);
            }
            reap(pidfd) == Some(0)
        }
    }

    impl Drop for World {
        fn drop(&mut self) {
            for running in self.running.iter().flatten() {
                let _ = sys::pidfd::signal(&running.process.pidfd, Signal::KILL);
                reap(&running.process.pidfd);
            }
        }
    }

    /// Its status; `None`: a signal ended it.
    fn reap(pidfd: &OwnedFd) -> Option<i32> {
        let wait = || waitid(WaitId::PidFd(pidfd.as_fd()), WaitIdOptions::EXITED);
        rustix::io::retry_on_intr(wait).ok().flatten()?.exit_status()
    }

    fn texts<const N: usize>(texts: [String; N]) -> Result<Vec<CString>, Error> {
        texts.into_iter().map(|text| Ok(CString::new(text)?)).collect()
    }
}
