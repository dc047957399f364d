//! A port that several parts of a process use: a server's loop, and the sessions the server itself has with others.
//!
//! The loop holds the port while it waits for events. Whoever else needs it makes a claim and wakes the loop, which
//! then stays away until all claims are served. Claims must be short: a loop that stays away serves nobody. A session
//! therefore only asks for a ring and does not wait for its server while a loop uses the same port.
//!
//! Lock order: `claims`, then `port`; neither is held while the other is waited for, except that `claims` is never
//! locked inside a port call.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use abi::{Endpoint, IpcError};
use ipc::{Port, RingClient, RingSpec, Wait, Waker};
use parking_lot::{Condvar, Mutex};

use crate::connecting::{ATTEMPT, Connect};
use crate::session::Size;

/// Clones are the same port.
#[derive(Clone)]
pub struct SharedPort {
    shared: Arc<Shared>,
}

struct Shared {
    port: Mutex<Port>,
    waker: Waker,
    claims: Mutex<usize>,
    served: Condvar,
    has_loop: AtomicBool,
}

impl SharedPort {
    pub fn new(port: Port) -> SharedPort {
        let waker = port.waker();
        let (port, claims, served) = (Mutex::new(port), Mutex::new(0), Condvar::new());
        SharedPort { shared: Arc::new(Shared { port, waker, claims, served, has_loop: AtomicBool::new(false) }) }
    }

    pub fn waker(&self) -> Waker {
        self.shared.waker.clone()
    }

    /// Uses the port for a short call.
    pub fn with<R>(&self, call: impl FnOnce(&mut Port) -> R) -> R {
        *self.shared.claims.lock() += 1;
        self.shared.waker.wake();
        let result = call(&mut self.shared.port.lock());
        let mut claims = self.shared.claims.lock();
        *claims -= 1;
        if *claims == 0 {
            self.shared.served.notify_all();
        }
        result
    }

    /// Uses the port for one turn of the loop that waits on it, after all claims were served.
    pub fn turn<R>(&self, call: impl FnOnce(&mut Port) -> R) -> R {
        self.shared.has_loop.store(true, Ordering::Relaxed);
        let mut claims = self.shared.claims.lock();
        while *claims > 0 {
            self.shared.served.wait(&mut claims);
        }
        drop(claims);
        call(&mut self.shared.port.lock())
    }
}

/// Opens rings to one server through a shared port.
pub struct PortConnect {
    port: SharedPort,
    server: Endpoint,
    spec: RingSpec,
}

impl PortConnect {
    pub fn new(port: SharedPort, server: Endpoint, size: Size) -> PortConnect {
        PortConnect { port, server, spec: size.spec() }
    }
}

impl Connect for PortConnect {
    fn connect(&mut self) -> Result<RingClient, IpcError> {
        let has_loop = self.port.shared.has_loop.load(Ordering::Relaxed);
        let wait = if has_loop { Wait::NoWait } else { Wait::For(ATTEMPT) };
        self.port.with(|port| port.open_ring(self.server, self.spec, wait))
    }
}
