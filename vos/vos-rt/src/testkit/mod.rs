//! Servers in threads of a test: real broker, real channels, and an end at any moment.
//!
//! ```ignore
//! let world = World::new();
//! let server = world.serve(Endpoint::FS, |start| Fs::open(image.clone(), start.epoch));
//! let session = world.blocking(Endpoint::FS, Size::default());
//! server.cut();                       // as if killed: effects may have happened, nothing is answered
//! let server = world.serve(Endpoint::FS, |start| Fs::open(image.clone(), start.epoch));
//! ```
//!
//! A thread cannot be killed. [`Server::cut`] forbids all answers from that moment on, lets jobs that run come to their
//! end (their effects count as having happened before the kill), and unbinds. [`Process`] is one that can be killed in
//! the middle of an effect.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, reason = "for tests")]

mod process;

/// For who plays a server of another release.
pub use ipc::{Event, RingId, RingServer, Wait};
pub use process::{Ended, Process, Program, main};

use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::sync_channel;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use abi::limits::WELL_KNOWN_ENDPOINTS;
use abi::{DcId, Endpoint, Epoch, IpcError};
use broker::{Broker, BrokerConfig, DcOptions, ServerIdentity};
use ipc::Port;
use libvos::{BlockingSession, Identity, PortConnect, Session, SharedPort, Size};
use sessions::Tenure;
use vos_api::session::Epochs;

use crate::frame::serve;
use crate::service::{Handle, Service};

/// What an endpoint that ended may take to be free.
const FREE_WITHIN: Duration = Duration::from_secs(30);
/// Whoever asks all the time keeps the CPU from those that it waits for.
const ASK_AGAIN: Duration = Duration::from_millis(1);

/// One container with a broker of its own. Failures to set it up fail the test.
pub struct World {
    broker: Broker,
    dc: DcId,
    next_client: AtomicU64,
    next_epoch: AtomicU64,
}

/// What a service learns when it is made.
pub struct Start {
    pub epoch: u64,
    pub port: SharedPort,
    pub handle: Handle,
}

/// A server that runs in a thread. Dropping it ends it as [`Server::stop`] does.
pub struct Server<S> {
    handle: Handle,
    thread: Option<JoinHandle<S>>,
}

impl Default for World {
    fn default() -> World {
        World::new()
    }
}

impl World {
    pub fn new() -> World {
        World::with(DcOptions::default())
    }

    /// One to which programs come over a socket.
    pub fn listening(socket: &Path) -> World {
        World::with(DcOptions { listen: Some(socket.to_owned()), ..DcOptions::default() })
    }

    fn with(options: DcOptions) -> World {
        let broker = Broker::start(BrokerConfig::local()).expect("the broker starts");
        let dc = DcId(1);
        broker.add_dc(dc, options).expect("a new container");
        World { broker, dc, next_client: AtomicU64::new(1), next_epoch: AtomicU64::new(1) }
    }

    pub fn broker(&self) -> &Broker {
        &self.broker
    }

    pub fn dc(&self) -> DcId {
        self.dc
    }

    /// A port bound to `endpoint`. One that ended before may still be bound when the machine stood still: a port says
    /// goodbye, and waits for the broker's answer for two seconds.
    pub fn port(&self, endpoint: Endpoint, epoch: u64) -> SharedPort {
        let identity = ServerIdentity::new(endpoint, Epoch(epoch));
        let until = Instant::now() + FREE_WITHIN;
        loop {
            let socket = self.broker.server_socket(self.dc, identity.clone()).expect("a socket of the broker");
            match Port::from_socket(socket, Some(endpoint)) {
                Err(IpcError::EndpointInUse) if Instant::now() < until => std::thread::sleep(ASK_AGAIN),
                port => return SharedPort::new(port.expect("the endpoint is free")),
            }
        }
    }

    /// A port of a client, with a number of its own.
    pub fn client_port(&self) -> SharedPort {
        // The upper half of the well-known numbers is nobody's in tests.
        let index = self.next_client.fetch_add(1, Ordering::Relaxed);
        let number = WELL_KNOWN_ENDPOINTS / 2 + u32::try_from(index).expect("few clients");
        self.port(Endpoint::new(number).expect("few clients"), 1)
    }

    /// A port of a program, which came over the socket.
    pub fn program_port(socket: &Path) -> SharedPort {
        SharedPort::new(Port::connect(socket, None).expect("room for a program"))
    }

    /// The next incarnation number, higher than all before.
    pub fn next_epoch(&self) -> u64 {
        self.next_epoch.fetch_add(1, Ordering::Relaxed)
    }

    /// Starts a server; returns when it is bound and made.
    pub fn serve<S, M>(&self, endpoint: Endpoint, make: M) -> Server<S>
    where
        S: Service + Send + 'static,
        M: FnOnce(&Start) -> S + Send + 'static,
    {
        let epoch = self.next_epoch();
        let port = self.port(endpoint, epoch);
        let handle = Handle::new(port.waker());
        let start = Start { epoch, port, handle: handle.clone() };
        let (made, is_made) = sync_channel(1);
        let run = move || {
            let service = make(&start);
            let _ = made.send(());
            serve(&start.port, epoch, Tenure::new(0), service, &start.handle)
                .expect("the loop runs until it is stopped")
        };
        let thread = std::thread::Builder::new().name("server".to_owned()).spawn(run).expect("a thread");
        // An error means that `make` panicked, which joining the thread shows.
        let _ = is_made.recv();
        Server { handle, thread: Some(thread) }
    }

    pub fn session(&self, server: Endpoint, size: Size) -> Session {
        let connect = PortConnect::new(self.client_port(), server, size);
        Session::open(Box::new(connect), size, Identity::default()).expect("a session")
    }

    pub fn blocking(&self, server: Endpoint, size: Size) -> BlockingSession {
        self.blocking_as(self.client_port(), server, size, Epochs::default())
    }

    /// Of somebody who was told epochs.
    pub fn blocking_as(&self, port: SharedPort, server: Endpoint, size: Size, epochs: Epochs) -> BlockingSession {
        let connect = PortConnect::new(port, server, size);
        let identity = Identity { epochs, ..Identity::default() };
        BlockingSession::open(Box::new(connect), size, identity).expect("a session")
    }
}

impl<S> Server<S> {
    pub fn handle(&self) -> &Handle {
        &self.handle
    }

    /// Ends the loop in order; the service comes back to be closed.
    pub fn stop(mut self) -> S {
        self.handle.stop();
        self.join().expect("a thread that was not joined yet")
    }

    /// Waits until it ends by itself.
    pub fn ended(mut self) -> S {
        self.join().expect("a thread that was not joined yet")
    }

    /// Ends it as if it had been killed. Returns when its effects have ended and its endpoint is free.
    pub fn cut(mut self) {
        self.handle.cut();
        drop(self.join());
    }

    fn join(&mut self) -> Option<S> {
        self.thread.take().map(|thread| thread.join().expect("the server did not panic"))
    }
}

impl<S> Drop for Server<S> {
    fn drop(&mut self) {
        self.handle.stop();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
