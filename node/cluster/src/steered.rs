//! An engine for tests of what must survive a bad one: of each call a test says what becomes of it.

use std::sync::Arc;
use std::time::Duration;

use crate::engine::{Compare, Engine, EngineError, Entry, LeaseId, Listing, Lookup, Op, Outcome, Revision, Watch};

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum EngineCall {
    LookUp,
    Transact,
    Other,
}

/// What becomes of a call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Course {
    Happens,
    /// The engine is away before it hears of the call.
    IsLost,
    /// It happens, and the engine is away before it answers.
    IsNotAnswered,
}

/// Asks what becomes of a call, before it; a question may last as long as the call shall.
type Steer = Arc<dyn Fn(EngineCall) -> Course + Send + Sync>;

/// An engine with somebody before it who says what becomes of each call.
#[derive(Clone)]
pub struct Steered {
    engine: Arc<dyn Engine>,
    steer: Steer,
}

impl Steered {
    pub fn new(engine: impl Engine + 'static, steer: impl Fn(EngineCall) -> Course + Send + Sync + 'static) -> Steered {
        Steered { engine: Arc::new(engine), steer: Arc::new(steer) }
    }

    fn pass<T>(
        &self,
        call: EngineCall,
        ask: impl FnOnce(&dyn Engine) -> Result<T, EngineError>,
    ) -> Result<T, EngineError> {
        let away = || EngineError::Unreachable("it is away".into());
        match (self.steer)(call) {
            Course::Happens => ask(&*self.engine),
            Course::IsLost => Err(away()),
            Course::IsNotAnswered => ask(&*self.engine).and_then(|_| Err(away())),
        }
    }
}

impl Lookup for Steered {
    fn read(&self, key: &str) -> Result<Option<Entry>, EngineError> {
        self.pass(EngineCall::LookUp, |engine| engine.read(key))
    }

    fn list(&self, prefix: &str) -> Result<Listing, EngineError> {
        self.pass(EngineCall::LookUp, |engine| engine.list(prefix))
    }

    fn lists(&self, prefixes: &[&str]) -> Result<Vec<Listing>, EngineError> {
        self.pass(EngineCall::LookUp, |engine| engine.lists(prefixes))
    }
}

impl Engine for Steered {
    fn transact(&self, compares: &[Compare], ops: &[Op]) -> Result<Outcome, EngineError> {
        self.pass(EngineCall::Transact, |engine| engine.transact(compares, ops))
    }

    fn watch(&self, prefix: &str, after: Revision) -> Result<Box<dyn Watch>, EngineError> {
        self.pass(EngineCall::Other, |engine| engine.watch(prefix, after))
    }

    fn grant(&self, ttl: Duration) -> Result<LeaseId, EngineError> {
        self.pass(EngineCall::Other, |engine| engine.grant(ttl))
    }

    fn renew(&self, lease: LeaseId) -> Result<(), EngineError> {
        self.pass(EngineCall::Other, |engine| engine.renew(lease))
    }

    fn revoke(&self, lease: LeaseId) -> Result<(), EngineError> {
        self.pass(EngineCall::Other, |engine| engine.revoke(lease))
    }

    fn continue_after(&self, revision: Revision) -> Result<(), EngineError> {
        self.pass(EngineCall::Other, |engine| engine.continue_after(revision))
    }

    /// There is somebody to wait for, as there is with several machines.
    fn hurried(&self, _attempt: Duration) -> Option<Arc<dyn Engine>> {
        Some(Arc::new(self.clone()))
    }
}
