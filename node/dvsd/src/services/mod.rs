//! Services: programs of containers that DVS keeps running (`docs/design/supervised-services.md`; decisions are those
//! of `service_core`).
//!
//! | | |
//! |---|---|
//! | `record.rs` | what lies in the engine |
//! | `placing.rs` | which node an instance stands on: by one living node for all |
//! | `worker.rs` | of each container, a thread: begins, ends, checks and reports what stands here |
//! | `assurance.rs` | until when what runs here may go on |
//! | `probe.rs`, `load.rs`, `reporter.rs` | checks over the network; how busy the node is; reports to the engine |
//!
//! The thread here wakes at news, sees to it that each container with services has its worker, and places.

mod assurance;
mod load;
pub mod placing;
mod probe;
pub mod record;
mod reporter;
mod worker;

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use cluster::{EngineError, Lookup, Revision};
use mgmt_api::{PlacePolicy, ServerKind};
use parking_lot::Mutex;

use crate::context::Context;
use crate::desks;
use crate::judging;
use crate::records::{DCS, DcRecord, DcView, MEMBERS, NODE_WISHES, NODES};
use crate::succession;
use crate::waiting;
use assurance::Assurance;
use placing::{Seen, Sight};
use reporter::Reporter;
use worker::{Bell, Common, Worker};

const _: () = assert!(
    service_core::tenure::HEARING.as_millis() == judging::HEARING.as_millis(),
    "a successor is placed after a hearing"
);

const IDLE: Duration = Duration::from_secs(30);
/// While there are services that go where least is done.
const MEASURE_EVERY: Duration = Duration::from_secs(5);
/// Between two looks that follow one another: what was written comes back as news.
const PAUSE: Duration = Duration::from_millis(20);
const RETRY: Duration = Duration::from_millis(500);

/// Rings for all who look after services; they look again.
#[derive(Clone, Default)]
pub struct ServiceBells(Arc<Mutex<Vec<Arc<Bell>>>>);

impl ServiceBells {
    /// Whether a change under this key concerns services.
    pub fn is_about(key: &str) -> bool {
        let prefixes = [record::SERVICES, desks::DISKS, DCS, MEMBERS, NODES, NODE_WISHES];
        prefixes.iter().any(|prefix| key.starts_with(prefix))
    }

    pub fn ring(&self) {
        self.0.lock().iter().for_each(|bell| bell.ring_for_news());
    }

    fn add(&self) -> std::io::Result<Arc<Bell>> {
        let bell = Arc::new(Bell::new()?);
        self.0.lock().push(Arc::clone(&bell));
        Ok(bell)
    }

    fn remove(&self, bell: &Arc<Bell>) {
        self.0.lock().retain(|other| !Arc::ptr_eq(other, bell));
    }
}

/// Ends when dropped; what runs goes on for the next daemon.
pub struct Services {
    bells: ServiceBells,
    bell: Arc<Bell>,
    thread: Option<JoinHandle<()>>,
}

impl Services {
    pub fn start(context: &Arc<Context>) -> std::io::Result<Services> {
        let bells = context.service_bells.clone();
        let bell = bells.add()?;
        let common = Arc::new(Common {
            context: Arc::clone(context),
            assurance: Assurance::start(context)?,
            reporter: Reporter::start(&context.engine)?,
        });
        let overseer = Overseer {
            common,
            bells: bells.clone(),
            bell: Arc::clone(&bell),
            workers: BTreeMap::new(),
            seen: Seen::default(),
            meter: load::Meter::default(),
            measured: None,
        };
        let thread = std::thread::Builder::new().name("services".to_owned()).spawn(move || overseer.run())?;
        bell.ring();
        Ok(Services { bells, bell, thread: Some(thread) })
    }
}

impl Drop for Services {
    fn drop(&mut self) {
        self.bell.is_over.store(true, Ordering::Release);
        self.bell.ring();
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the thread that places services had panicked");
        }
        self.bells.remove(&self.bell);
    }
}

struct Overseer {
    common: Arc<Common>,
    bells: ServiceBells,
    bell: Arc<Bell>,
    workers: BTreeMap<u32, (Arc<Bell>, JoinHandle<()>)>,
    seen: Seen,
    meter: load::Meter,
    measured: Option<Instant>,
}

impl Overseer {
    fn run(mut self) {
        while !self.bell.is_over.load(Ordering::Acquire) {
            let until = self.turn().unwrap_or_else(|error| {
                tracing::debug!(%error, "services are not placed");
                Some(Instant::now() + RETRY)
            });
            let now = Instant::now();
            let until = until.unwrap_or(now + IDLE).max(now + PAUSE);
            waiting::until_readable([self.bell.fd.as_fd()].into_iter(), until);
            sys::eventfd::drain(&self.bell.fd);
        }
        for (bell, _) in self.workers.values() {
            bell.is_over.store(true, Ordering::Release);
            bell.ring();
        }
        for (dc, (bell, thread)) in std::mem::take(&mut self.workers) {
            if thread.join().is_err() {
                tracing::error!(dc, "a worker of services had panicked");
            }
            self.bells.remove(&bell);
        }
    }

    fn turn(&mut self) -> Result<Option<Instant>, EngineError> {
        let context = Arc::clone(&self.common.context);
        let mirror = &*context.answers.mirror;
        let containers = record::containers(mirror)?;
        self.see_to_workers(&containers);
        self.see_to_servers()?;
        if containers.is_empty() {
            return Ok(None);
        }
        let (now, mut again) = (Instant::now(), None::<Instant>);
        let views = self.views(&containers);
        let sight = Sight::of(&context, &mut self.seen, &views, now)?;
        let places = sight.places(&context.config.node);
        let mut measures = false;
        for view in views {
            let mut services = record::views(mirror, view.record.id)?;
            let least = |spec: &mgmt_api::ServiceSpec| spec.place == Some(PlacePolicy::LeastLoaded);
            let is_here = view.record.spec.nodes.contains(&context.config.node);
            measures |= is_here && services.values().any(|service| least(&service.record.spec));
            if places {
                let due = placing::place_all(&*context.engine, &sight, &view, &mut services, now)?;
                again = again.into_iter().chain(due).min();
            }
        }
        if measures {
            let due = self.measured.map_or(now, |at| at + MEASURE_EVERY);
            if now >= due {
                self.measured = Some(now);
                if let Some(lease) = context.lease() {
                    self.meter.tell(&*context.engine, &context.config.node, lease)?;
                }
            }
            again = again.into_iter().chain([self.measured.unwrap_or(now) + MEASURE_EVERY]).min();
        }
        Ok(again)
    }

    /// Disks with copies, and file servers, stand elsewhere when their node was lost.
    fn see_to_servers(&mut self) -> Result<(), EngineError> {
        let context = Arc::clone(&self.common.context);
        let mirror = &*context.answers.mirror;
        let sets: BTreeSet<u32> = mirror.list(desks::DISKS)?.entries.iter().filter_map(desks::dc_of_disk).collect();
        let members = context.members.read();
        let lost = members.values().filter(|member| context.is_fenced(member));
        let lost: BTreeSet<String> = lost.map(|member| member.name.clone()).collect();
        drop(members);
        if sets.is_empty() && lost.is_empty() {
            return Ok(());
        }
        let sight = Sight::of(&context, &mut self.seen, &[], Instant::now())?;
        if !sight.places(&context.config.node) {
            return Ok(());
        }
        let is_concerned = |(record, _): &&(DcRecord, Revision)| {
            let file_server = record.placement.first(&ServerKind::FS);
            sets.contains(&record.id) || file_server.is_some_and(|server| lost.contains(&server.node))
        };
        let observed = context.observed.lock();
        let concerned: Vec<(DcRecord, Revision)> = observed.records().filter(is_concerned).cloned().collect();
        drop(observed);
        for (record, modified) in &concerned {
            succession::follow(&*context.engine, mirror, (record, *modified), &sight)?;
        }
        Ok(())
    }

    fn views(&self, containers: &[u32]) -> Vec<DcView> {
        let observed = self.common.context.observed.lock();
        let all = observed.names().into_iter().filter_map(|name| observed.view(&name));
        all.filter(|view| containers.contains(&view.record.id)).collect()
    }

    fn see_to_workers(&mut self, containers: &[u32]) {
        for dc in containers.iter().filter(|dc| !self.workers.contains_key(dc)).copied().collect::<Vec<_>>() {
            match self.start(dc) {
                Ok(worker) => drop(self.workers.insert(dc, worker)),
                Err(error) => tracing::error!(dc, %error, "no thread for a container's services; tried again"),
            }
        }
        let gone: Vec<u32> = self.workers.keys().filter(|dc| !containers.contains(dc)).copied().collect();
        for dc in gone {
            let Some((bell, thread)) = self.workers.remove(&dc) else { continue };
            bell.is_over.store(true, Ordering::Release);
            bell.ring();
            if thread.join().is_err() {
                tracing::error!(dc, "a worker of services had panicked");
            }
            self.bells.remove(&bell);
        }
    }

    fn start(&self, dc: u32) -> std::io::Result<(Arc<Bell>, JoinHandle<()>)> {
        let bell = self.bells.add()?;
        let worker = Worker::new(Arc::clone(&self.common), dc, Arc::clone(&bell));
        let thread = std::thread::Builder::new().name(format!("services-{dc}")).spawn(move || worker.run())?;
        Ok((bell, thread))
    }
}
