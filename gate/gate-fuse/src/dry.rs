//! What the gate makes of requests and of answers without a kernel and a server, for `fuzz`.

use std::os::fd::OwnedFd;
use std::time::Instant;

use vos_api::Encoded;

use crate::backend::Done;
use crate::cache::Cache;
use crate::complete::{Asked, Completer};
use crate::init::negotiate;
use crate::names::Names;
use crate::request::{Body, Request};
use crate::state::{Handle, State, StateError};
use crate::translate::{Context, Step, plan};

/// More steps no request has.
const STEPS_MAX: u32 = 2;

/// A gate without a mount and without a server.
pub struct DryGate(State);

impl DryGate {
    /// With one open file, in memory that is a gate's own.
    pub fn new(memory: OwnedFd) -> Result<DryGate, StateError> {
        let mut state = State::open(memory)?;
        state.enter(Handle { ino: 2, fs_handle: 3, flags: libc::O_RDWR as u32 })?;
        Ok(DryGate(state))
    }

    /// What the server is asked, in every step that a request may have; each is answered to the kernel as if the server
    /// had said `done`.
    pub fn serve<'a>(&mut self, request: &Request<'a>, done: &Done<Vec<u8>>) -> Vec<Encoded<'a>> {
        if let Body::Init { head, flags2 } = &request.body {
            let _ = negotiate(head, *flags2);
        }
        let mut asked = Vec::new();
        for (step, has_locks) in (0..STEPS_MAX).flat_map(|step| [(step, false), (step, true)]) {
            let context =
                Context { state: &self.0, now_ns: 1, has_locks, may_be_untold: has_locks, delegates: has_locks };
            let Step::Submit(plan) = plan(request, step, &context) else { continue };
            let (mut cache, mut names, name) = (Cache::new(false), Names::default(), Some(&b"name"[..]));
            let (state, now) = (&mut self.0, Instant::now());
            let began = cache.memory.now();
            let (cache, names) = (&mut cache, &mut names);
            let mut completer = Completer { cache, state, names, name, is_current: true, asked: Asked::at(began), now };
            let _ = completer.finish(request.header.nodeid, plan.then, done);
            asked.push(plan.asked);
        }
        asked
    }
}
