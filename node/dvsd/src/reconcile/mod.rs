//! Bringing about what should be: one worker (thread) for each container with a share on this node.
//!
//! The follower hands each worker the newest wish ([`Inbox`]); the worker looks at what is there, asks [`plan`] what to
//! do, does it ([`parts`]), and reports. It may be killed at any point: everything it does may be repeated.
//!
//! A worker is `Working` until its container is deleted and nothing is left here; then its thread ends.

pub mod egress;
pub mod parts;
pub mod plan;
pub mod published;
pub mod share;
mod worker;

use std::collections::{BTreeMap, HashMap};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::thread::JoinHandle;

use parking_lot::Mutex;
pub use worker::remembered;

use crate::context::Context;
use crate::records::{DcRecord, Desired, Images, ShareRecord};

/// What a worker is to bring about, and what other nodes say about the same container.
#[derive(Clone, Debug)]
pub struct Order {
    pub record: DcRecord,
    /// By node; without those whose daemon is gone.
    pub shares: BTreeMap<String, ShareRecord>,
}

/// The newest order; older ones do not matter.
pub struct Inbox {
    inner: Mutex<InboxInner>,
    bell: OwnedFd,
}

#[derive(Default)]
struct InboxInner {
    order: Option<Order>,
    /// The lease changed: what was reported is gone.
    report_again: bool,
    stopping: bool,
    /// Counts what the worker was told.
    told: u64,
    /// The worker hears nothing any more.
    ended: bool,
}

impl Inbox {
    fn new() -> std::io::Result<Inbox> {
        Ok(Inbox { inner: Mutex::default(), bell: sys::eventfd::create()? })
    }

    /// False: nobody hears it.
    fn change(&self, change: impl FnOnce(&mut InboxInner)) -> bool {
        let mut inner = self.inner.lock();
        if inner.ended {
            return false;
        }
        inner.told += 1;
        change(&mut inner);
        drop(inner);
        sys::eventfd::signal(&self.bell);
        true
    }

    fn has_ended(&self) -> bool {
        self.inner.lock().ended
    }

    /// Of a worker that has nothing left to do: unless it was told something more.
    fn ends_after(&self, told: u64) -> bool {
        let mut inner = self.inner.lock();
        inner.ended = inner.told == told;
        inner.ended
    }
}

/// All workers of this node.
pub struct Reconciler {
    context: Arc<Context>,
    /// By the container's number: names may be used again.
    workers: Mutex<HashMap<u32, Worker>>,
}

struct Worker {
    name: String,
    inbox: Arc<Inbox>,
    thread: JoinHandle<()>,
}

impl Reconciler {
    pub fn new(context: &Arc<Context>) -> Reconciler {
        Reconciler { context: Arc::clone(context), workers: Mutex::default() }
    }

    /// The follower knows something new of a container.
    pub fn order(&self, order: Order) {
        let Some(order) = self.ours(order) else { return };
        let id = order.record.id;
        let mut workers = self.workers.lock();
        if workers.get(&id).is_some_and(|worker| worker.thread.is_finished() || worker.inbox.has_ended()) {
            workers.remove(&id);
        }
        // Our own last report comes back as news.
        let done = order
            .shares
            .get(&self.context.config.node)
            .is_some_and(|own| own.gone && own.generation == order.record.generation);
        if done && !workers.contains_key(&id) {
            return;
        }
        let name = order.record.spec.name.clone();
        let inbox = match workers.get(&id) {
            Some(worker) => Arc::clone(&worker.inbox),
            None => match self.start(id, &name) {
                Ok(worker) => {
                    let inbox = Arc::clone(&worker.inbox);
                    workers.insert(id, worker);
                    inbox
                }
                Err(error) => {
                    tracing::error!(dc = name, %error, "no thread for a container; tried again at its next change");
                    return;
                }
            },
        };
        drop(workers);
        let mut order = Some(order);
        inbox.change(|inner| inner.order = order.take());
        // One that ends at this moment leaves it to the next one.
        if let Some(left) = order {
            self.order(left);
        }
    }

    /// What this node has to do about a container. One that does not span it is nothing to it, unless it has something
    /// of it still: then it was taken out of the container, and ends that.
    fn ours(&self, order: Order) -> Option<Order> {
        let own = &self.context.config.node;
        if order.record.spec.nodes.contains(own) {
            return Some(order);
        }
        let mut record = worker::remembered_of(&self.context.config, order.record.id)?;
        if !record.spec.nodes.contains(own) {
            return None;
        }
        record.generation = order.record.generation;
        record.desired = Desired::Deleted { images: Images::Remove };
        // Nobody's end is waited for: the others go on.
        Some(Order { record, shares: BTreeMap::new() })
    }

    /// These containers exist; whatever else is here is to go.
    pub fn retain(&self, existing: &[u32]) {
        let gone: Vec<Arc<Inbox>> = {
            let workers = self.workers.lock();
            workers
                .iter()
                .filter(|(id, _)| !existing.contains(id))
                .map(|(_, worker)| Arc::clone(&worker.inbox))
                .collect()
        };
        for inbox in gone {
            inbox.change(|inner| {
                if let Some(order) = &mut inner.order
                    && !matches!(order.record.desired, Desired::Deleted { .. })
                {
                    order.record.desired = Desired::Deleted { images: Images::Remove };
                    order.shares.clear();
                }
            });
        }
    }

    /// Containers an earlier daemon worked on that exist no more: their remains are removed.
    pub fn clean_leftovers(&self, existing: &[u32]) {
        for record in remembered(&self.context.config) {
            if !existing.contains(&record.id) {
                tracing::info!(
                    dc = record.spec.name,
                    id = record.id,
                    "deleted while this node was away; removing what is left"
                );
                // An engine that was begun anew of a copy does not know what came after the copy.
                let may_be_forgotten = self.context.identity.may_have_forgotten();
                let images = if may_be_forgotten { Images::Keep } else { Images::Remove };
                let desired = match record.desired {
                    deleted @ Desired::Deleted { .. } => deleted,
                    Desired::Running | Desired::Stopped { .. } => Desired::Deleted { images },
                };
                self.order(Order { record: DcRecord { desired, ..record }, shares: BTreeMap::new() });
            }
        }
    }

    /// The node has a new lease: reports are to be made again.
    pub fn report_again(&self) {
        for worker in self.workers.lock().values() {
            worker.inbox.change(|inner| inner.report_again = true);
        }
    }

    /// The same for one container.
    pub fn look_again_at(&self, dc: u32) {
        if let Some(worker) = self.workers.lock().get(&dc) {
            worker.inbox.change(|_| ());
        }
    }

    /// Something that is in no order is other than before.
    pub fn look_again(&self) {
        for worker in self.workers.lock().values() {
            worker.inbox.change(|_| ());
        }
    }

    /// Ends the workers; what they made goes on.
    pub fn stop(&self) {
        let workers: Vec<Worker> = self.workers.lock().drain().map(|(_, worker)| worker).collect();
        for worker in &workers {
            worker.inbox.change(|inner| inner.stopping = true);
        }
        for worker in workers {
            if worker.thread.join().is_err() {
                tracing::error!(dc = worker.name, "a worker had panicked");
            }
        }
    }

    fn start(&self, id: u32, name: &str) -> std::io::Result<Worker> {
        let inbox = Arc::new(Inbox::new()?);
        let (context, also) = (Arc::clone(&self.context), Arc::clone(&inbox));
        let thread =
            std::thread::Builder::new().name(format!("dc-{id}")).spawn(move || worker::run(&context, &also))?;
        Ok(Worker { name: name.to_owned(), inbox, thread })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn worker_ends_only_when_it_has_heard_everything_and_then_hears_nothing_more() {
        let inbox = Inbox::new().unwrap();
        let told = inbox.inner.lock().told;
        assert!(inbox.change(|inner| inner.report_again = true));
        assert!(!inbox.ends_after(told), "it was told something meanwhile");
        let told = inbox.inner.lock().told;
        assert!(inbox.ends_after(told) && inbox.has_ended());
        assert!(!inbox.change(|_| ()), "whoever tells it more hears that nobody listens");
    }
}
