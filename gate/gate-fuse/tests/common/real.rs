//! The real fs server and the real disk server on an image, behind real rings; each can be cut off as if killed.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Instant;

use abi::{Endpoint, Epoch};
use broker::ServerIdentity;
use disk::{Disk, Entrance, KeptFence};
use disk_core::{Access, Image, Volume};
use fs::FsService;
use fs_core::device::{BlockDevice, DeviceError};
use gate_fuse::backend::session::SessionBackend;
use libvos::{Epochs, PortConnect, SharedPort, Size};
use vos_rt::testkit::{self, Server};
use vos_rt::{ClientId, Hello, HelloReply, ReadBy, Request, Service};

const VOLUME_BYTES: u64 = 1 << 30;
const CACHE_BYTES: usize = 32 << 20;

pub struct Real {
    world: Arc<testkit::World>,
    image: Arc<ImageFile>,
    server: Option<Server<FsService>>,
    disk: Option<Server<ReadersDisk>>,
    gates: AtomicU32,
    reads: Arc<AtomicU64>,
}

/// The image as the fs server writes it, without a way to the disk server between.
pub struct ImageFile(File);

impl BlockDevice for ImageFile {
    fn bytes(&self) -> u64 {
        VOLUME_BYTES
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> Result<(), DeviceError> {
        self.0.read_exact_at(out, offset).map_err(|_| DeviceError(libc::EIO))
    }

    fn write(&self, offset: u64, data: &[u8]) -> Result<(), DeviceError> {
        self.0.write_all_at(data, offset).map_err(|_| DeviceError(libc::EIO))
    }

    fn flush(&self) -> Result<(), DeviceError> {
        Ok(())
    }

    fn discard(&self, offset: u64, bytes: u64) -> Result<(), DeviceError> {
        self.write(offset, &vec![0; bytes as usize])
    }
}

/// The disk server of the gates; counts what they ask of it.
pub struct ReadersDisk {
    disk: Disk,
    reads: Arc<AtomicU64>,
}

impl Service for ReadersDisk {
    fn opened(&mut self, client: ClientId, from: Endpoint, hello: &Hello) -> HelloReply {
        self.disk.opened(client, from, hello)
    }

    fn submit(&mut self, request: Request) {
        self.reads.fetch_add(1, Ordering::Relaxed);
        self.disk.submit(request);
    }

    fn closed(&mut self, client: ClientId) {
        self.disk.closed(client);
    }

    fn deadline(&self) -> Option<Instant> {
        self.disk.deadline()
    }

    fn tick(&mut self, now: Instant) {
        self.disk.tick(now);
    }
}

/// Sockets of the broker for the gates of one mount, one incarnation after the other.
pub struct Sockets {
    world: Arc<testkit::World>,
    endpoint: Endpoint,
}

impl Real {
    pub fn start() -> Real {
        let world = Arc::new(testkit::World::new());
        let file = tempfile::tempfile().expect("an image");
        file.set_len(VOLUME_BYTES).expect("its size");
        let (image, reads) = (Arc::new(ImageFile(file)), Arc::default());
        let server = Some(serve(&world, &image));
        let disk = Some(serve_disk(&world, &image, &reads));
        Real { world, image, server, disk, gates: AtomicU32::new(0), reads }
    }

    pub fn sockets(&self) -> Sockets {
        let index = self.gates.fetch_add(1, Ordering::Relaxed);
        let endpoint = Endpoint::new(Endpoint::GATE.number() + index).expect("few gates");
        Sockets { world: Arc::clone(&self.world), endpoint }
    }

    /// Ends the server as if killed.
    pub fn cut_server(&mut self) {
        if let Some(server) = self.server.take() {
            server.cut();
        }
    }

    /// The same, and starts the next one on the same disk.
    pub fn replace_server(&mut self) {
        self.cut_server();
        self.server = Some(serve(&self.world, &self.image));
    }

    pub fn cut_disk(&mut self) {
        if let Some(disk) = self.disk.take() {
            disk.cut();
        }
    }

    pub fn replace_disk(&mut self) {
        self.cut_disk();
        self.disk = Some(serve_disk(&self.world, &self.image, &self.reads));
    }

    /// What gates asked of the disk so far.
    pub fn disk_requests(&self) -> u64 {
        self.reads.load(Ordering::Relaxed)
    }

    pub fn image(&self) -> &File {
        &self.image.0
    }
}

fn serve(world: &testkit::World, image: &Arc<ImageFile>) -> Server<FsService> {
    let device = Arc::clone(image);
    world.serve(Endpoint::FS, move |start| {
        FsService::open(device, CACHE_BYTES, start.handle.clone()).expect("the volume opens")
    })
}

fn serve_disk(world: &testkit::World, image: &Arc<ImageFile>, reads: &Arc<AtomicU64>) -> Server<ReadersDisk> {
    let file = image.0.try_clone().expect("the image").into();
    let reads = Arc::clone(reads);
    world.serve(Endpoint::DISK, move |start| {
        let image = Image { file, bytes: None, may_be_longer: false, access: Access::ReadWrite };
        let volume = Volume::new(disk_core::ImageFile::open(image).expect("an image"));
        let disk =
            Disk::new(volume, Entrance::of_owner(Endpoint::FS, KeptFence::default()), 1, ReadBy::Ring, &start.handle)
                .expect("threads");
        ReadersDisk { disk, reads }
    })
}

impl Sockets {
    pub fn next(&mut self) -> OwnedFd {
        // The broker may not have seen yet that the gate before is dead, and a gate that is handed a socket asks once.
        drop(self.world.port(self.endpoint, self.world.next_epoch()));
        let identity = ServerIdentity::new(self.endpoint, Epoch(self.world.next_epoch()));
        self.world.broker().server_socket(self.world.dc(), identity).expect("a socket of the broker")
    }
}

/// The backend of a gate process: binds over the socket it was handed.
pub fn backend(broker: OwnedFd) -> SessionBackend {
    let size = Size { entries: 512, arena_bytes: 64 << 20 };
    let port = SharedPort::new(ipc::Port::from_socket(broker, None).expect("the endpoint is ours"));
    let (disk_port, disk_size) = (port.clone(), Size { entries: 16, arena_bytes: 8 << 20 });
    let connector =
        move || -> Box<dyn libvos::Connect> { Box::new(PortConnect::new(port.clone(), Endpoint::FS, size)) };
    let disk = Box::new(PortConnect::new(disk_port, Endpoint::DISK, disk_size));
    let backend = SessionBackend::new(Box::new(connector), size).expect("a backend");
    backend.reading_from(disk, disk_size, Epochs::default()).expect("a session with the disk")
}
