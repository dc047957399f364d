//! Volumes of our own NBD server, and of servers of others, are media like any other.

use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use disk_core::{Access, Durability, Image, ImageFile, Medium, ReadInto, Volume, WriteFrom, testkit};
use gate_nbd::{Exporter, NbdListener};
use nbd_client::{NbdError, NbdVolume, connect};

const BYTES: u64 = 4 << 20;
const SOON: Duration = Duration::from_secs(10);

/// Ours, in this process.
struct Ours {
    stop: OwnedFd,
    served: Option<JoinHandle<()>>,
}

impl Ours {
    fn serve(image: &Path, socket: &Path) -> Ours {
        let file = std::fs::File::options().read(true).write(true).open(image).expect("an image").into();
        let image = Image { file, bytes: None, may_be_longer: false, access: Access::ReadWrite };
        let volume = Volume::new(ImageFile::open(image).expect("an image"));
        let listener = NbdListener::unix(socket).expect("a socket");
        let (stopped, stop) = rustix::pipe::pipe().expect("a pipe");
        let mut exporter = Exporter::default();
        exporter.export("disk", "a test", Box::new(volume));
        let served = std::thread::spawn(move || Arc::new(exporter).run(&listener, stopped.as_fd()).expect("it serves"));
        Ours { stop, served: Some(served) }
    }
}

impl Drop for Ours {
    fn drop(&mut self) {
        rustix::io::write(&self.stop, b"x").expect("a pipe");
        if let Some(served) = self.served.take() {
            served.join().expect("it ends");
        }
    }
}

/// Of others.
struct Theirs(Child);

impl Theirs {
    /// `None`: it is not installed.
    fn serve(program: &str, image: &Path, socket: &Path) -> Option<Theirs> {
        let (image, socket_text) = (image.to_str().expect("text"), socket.to_str().expect("text"));
        let arguments: Vec<&str> = match program {
            "nbdkit" => vec!["-f", "-U", socket_text, "file", image],
            _ => vec!["-t", "-f", "raw", "-x", "disk", "-e", "8", "-k", socket_text, image],
        };
        let started = Command::new(program).args(arguments).stdin(Stdio::null()).spawn();
        let mut child = match started {
            Ok(child) => child,
            Err(error) => {
                eprintln!("SKIPPED: {program}: {error}");
                return None;
            }
        };
        let begun = Instant::now();
        while !socket.exists() {
            assert!(begun.elapsed() < SOON && child.try_wait().expect("ours").is_none(), "{program} does not begin");
            std::thread::sleep(Duration::from_millis(5));
        }
        Some(Theirs(child))
    }
}

impl Drop for Theirs {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

struct Place {
    dir: tempfile::TempDir,
}

impl Place {
    fn new() -> Place {
        let place = Place { dir: tempfile::tempdir_in("/var/tmp").expect("a directory") };
        std::fs::File::create(place.image()).and_then(|file| file.set_len(BYTES)).expect("an image");
        place
    }

    fn image(&self) -> PathBuf {
        self.dir.path().join("image")
    }

    fn socket(&self) -> PathBuf {
        self.dir.path().join("socket")
    }

    fn uri(&self, export: &str) -> nbd::NbdUri {
        format!("nbd+unix:///{export}?socket={}", self.socket().display()).parse().expect("a place")
    }

    fn volume(&self, lost: impl FnOnce() + Send + 'static) -> NbdVolume {
        let begun = Instant::now();
        // A socket that is there may have nobody behind it yet.
        let connection = loop {
            match connect(&self.uri("disk")) {
                Ok(connection) => break connection,
                Err(error) => assert!(begun.elapsed() < SOON, "{error}: {error:?}"),
            }
        };
        NbdVolume::new(connection, false, lost).expect("a thread")
    }
}

/// From several threads as well, since disks do so.
fn check(place: &Place) {
    let model = testkit::behaves(&place.volume(|| ()), 11);
    let volume = Arc::new(place.volume(|| ()));
    testkit::holds(&*volume, &model);
    let threads: Vec<_> = (0..4_u64)
        .map(|number| {
            let volume = Arc::clone(&volume);
            std::thread::spawn(move || {
                for turn in 0..50_u64 {
                    let (at, data) = ((number * 64 + turn) * 4096, vec![(number * 50 + turn) as u8; 4096]);
                    volume.write(at, 4096, &WriteFrom(&data)).expect("a write");
                    let mut read = vec![0; 4096];
                    volume.read(at, 4096, &ReadInto::new(&mut read), 0).expect("a read");
                    assert_eq!(read, data);
                }
            })
        })
        .collect();
    threads.into_iter().for_each(|thread| thread.join().expect("no panic"));
    volume.flush().expect("a flush");
    assert_eq!(std::fs::read(place.image()).expect("the image")[64 * 4096], 50);
}

#[test]
fn volume_of_our_server_is_a_medium() {
    let place = Place::new();
    let _ours = Ours::serve(&place.image(), &place.socket());
    check(&place);
    assert!(matches!(connect(&place.uri("other")), Err(NbdError::NoExport(name)) if name == "other"));
}

#[test]
fn volumes_of_servers_of_others_are_media() {
    for program in ["qemu-nbd", "nbdkit"] {
        let place = Place::new();
        let Some(_theirs) = Theirs::serve(program, &place.image(), &place.socket()) else { continue };
        check(&place);
    }
}

#[test]
fn holes_of_the_image_are_holes_of_the_volume() {
    let place = Place::new();
    let _ours = Ours::serve(&place.image(), &place.socket());
    let volume = place.volume(|| ());
    assert_eq!(volume.data_from(0), None);
    volume.write(1 << 20, 8192, &WriteFrom(&[1; 8192])).expect("a write");
    assert_eq!(volume.data_from(0), Some((1 << 20, (1 << 20) + 8192)));
    assert_eq!(volume.data_from((1 << 20) + 8192), None);
}

/// Everybody who waits is told, and whoever owns the volume, once.
#[test]
fn server_that_is_killed_takes_the_volume_along() {
    let place = Place::new();
    let Some(theirs) = Theirs::serve("qemu-nbd", &place.image(), &place.socket()) else { return };
    let lost = Arc::new(AtomicU32::new(0));
    let told = Arc::clone(&lost);
    let volume = Volume::new(place.volume(move || _ = told.fetch_add(1, Ordering::SeqCst)));
    volume.write(0, 4096, &WriteFrom(&[1; 4096]), Durability::Power).expect("a write");
    drop(theirs);
    let begun = Instant::now();
    while lost.load(Ordering::SeqCst) == 0 {
        assert!(begun.elapsed() < SOON, "nobody noticed");
        std::thread::sleep(Duration::from_millis(2));
    }
    assert_eq!(volume.write(0, 4096, &WriteFrom(&[2; 4096]), Durability::Server), Err(rustix::io::Errno::IO));
    assert_eq!(volume.flush(), Err(rustix::io::Errno::IO));
    assert_eq!(volume.read(0, 4096, &ReadInto::new(&mut [0; 4096])), Err(rustix::io::Errno::IO));
    drop(volume);
    assert_eq!(lost.load(Ordering::SeqCst), 1);
    assert!(matches!(connect(&place.uri("disk")), Err(NbdError::Unreachable { .. })));
}

/// Nobody is told of an end that he wished for; whoever waits for a server that is stopped can be freed.
#[test]
fn volume_that_is_left_is_not_lost() {
    let place = Place::new();
    let Some(theirs) = Theirs::serve("qemu-nbd", &place.image(), &place.socket()) else { return };
    let lost = Arc::new(AtomicU32::new(0));
    let told = Arc::clone(&lost);
    drop(place.volume(move || _ = told.fetch_add(1, Ordering::SeqCst)));
    let told = Arc::clone(&lost);
    let volume = place.volume(move || _ = told.fetch_add(1, Ordering::SeqCst));
    assert_eq!(lost.load(Ordering::SeqCst), 0, "it was left");
    let ender = volume.ender().expect("a descriptor");
    let pid = rustix::process::Pid::from_child(&theirs.0);
    rustix::process::kill_process(pid, rustix::process::Signal::STOP).expect("ours");
    let waits = std::thread::spawn(move || volume.flush());
    ender.end();
    assert_eq!(waits.join().expect("no panic"), Err(rustix::io::Errno::IO));
}
