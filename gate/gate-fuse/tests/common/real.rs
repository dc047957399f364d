//! The real fs server on a disk in memory, behind real rings; it can be cut off as if killed.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use abi::{Endpoint, Epoch};
use broker::ServerIdentity;
use fs::FsService;
use fs::testing::MemoryDevice;
use gate_fuse::backend::session::SessionBackend;
use libvos::{PortConnect, SharedPort, Size};
use vos_rt::testkit::{self, Server};

const VOLUME_BYTES: u64 = 1 << 30;
const CACHE_BYTES: usize = 32 << 20;

pub struct Real {
    world: Arc<testkit::World>,
    device: Arc<MemoryDevice>,
    server: Option<Server<FsService>>,
    gates: AtomicU32,
}

/// Sockets of the broker for the gates of one mount, one incarnation after the other.
pub struct Sockets {
    world: Arc<testkit::World>,
    endpoint: Endpoint,
}

impl Real {
    pub fn start() -> Real {
        let world = Arc::new(testkit::World::new());
        let device = Arc::new(MemoryDevice::new(VOLUME_BYTES));
        let server = Some(serve(&world, &device));
        Real { world, device, server, gates: AtomicU32::new(0) }
    }

    pub fn sockets(&self) -> Sockets {
        let index = self.gates.fetch_add(1, Ordering::Relaxed);
        let endpoint = Endpoint::new(Endpoint::GATE.number() + index).expect("few gates");
        Sockets { world: Arc::clone(&self.world), endpoint }
    }

    /// Ends the server as if killed and starts the next one on the same disk.
    pub fn replace_server(&mut self) {
        if let Some(server) = self.server.take() {
            server.cut();
        }
        self.server = Some(serve(&self.world, &self.device));
    }
}

fn serve(world: &testkit::World, device: &Arc<MemoryDevice>) -> Server<FsService> {
    let device = Arc::clone(device);
    world.serve(Endpoint::FS, move |start| {
        FsService::open(device, CACHE_BYTES, start.handle.clone()).expect("the volume opens")
    })
}

impl Sockets {
    pub fn next(&mut self) -> OwnedFd {
        let identity = ServerIdentity::new(self.endpoint, Epoch(self.world.next_epoch()));
        self.world.broker().server_socket(self.world.dc(), identity).expect("a socket of the broker")
    }
}

/// The backend of a gate process: binds over the socket it was handed.
pub fn backend(broker: OwnedFd) -> SessionBackend {
    let size = Size { entries: 512, arena_bytes: 64 << 20 };
    let port = SharedPort::new(ipc::Port::from_socket(broker, None).expect("the endpoint is ours"));
    let connector =
        move || -> Box<dyn libvos::Connect> { Box::new(PortConnect::new(port.clone(), Endpoint::FS, size)) };
    SessionBackend::new(Box::new(connector), size).expect("a backend")
}
