//! This node's certificates: renewed before they expire, written when the cluster's roots or revocations change, read
//! again when anybody changed the files.
//!
//! One thread; it holds no lock while it waits. Without an authority in the engine it only looks at the files.

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime};

use cluster::follow::{Change, Follower};
use cluster::{Engine, Op};
use parking_lot::Mutex;
use pki::{NodeCredentials, NodeFiles, NodeKey};

use super::authority::{self, AUTHORITY, AuthorityError, AuthorityRecord};
use super::rotation::{self, Trust};
use crate::config::Config;
use crate::records::encode;
use crate::supervise::causes;

/// The files are read again so often: they are four, and small.
const LOOK: Duration = Duration::from_secs(5);
/// Of its whole time, when this part is left the certificate is renewed.
const RENEWED_AT: u32 = 3;
/// When this part is left and it could not be renewed, people are told.
const TOLD_AT: u32 = 6;
/// Between attempts to renew.
const RETRY_MOST: Duration = Duration::from_secs(60);

/// Which list is in `ca.crl`.
const LIST_NUMBER: &str = "ca.crl.number";

/// What a daemon knows of its certificates; its thread ends when this is dropped.
pub struct Certificates {
    problem: Arc<Mutex<Option<String>>>,
    bell: Sender<News>,
    follower: Option<Follower>,
    thread: Option<JoinHandle<()>>,
}

enum News {
    Authority(Option<Box<AuthorityRecord>>),
    Stop,
}

struct Keeper {
    engine: Arc<dyn Engine>,
    node: String,
    address: std::net::IpAddr,
    credentials: Vec<Arc<NodeCredentials>>,
    /// Where renewed ones go.
    own: Arc<NodeCredentials>,
    authority: Option<AuthorityRecord>,
    problem: Arc<Mutex<Option<String>>>,
    retry_at: Option<Instant>,
    /// What the others were told.
    told: Option<Trust>,
}

/// What a daemon does with new files, and whether it has come to its end: its member of etcd reads some of them only at
/// its start.
pub struct Users {
    pub changed: Box<dyn Fn() + Send>,
    pub are_current: Box<dyn Fn() -> bool + Send>,
}

impl Certificates {
    /// `own` is what this node shows; `others` are only read again. `users` are told, on this thread, when files
    /// were.
    pub fn start(
        engine: &Arc<dyn Engine>,
        config: &Config,
        own: &Arc<NodeCredentials>,
        others: Vec<Arc<NodeCredentials>>,
        users: Users,
    ) -> std::io::Result<Certificates> {
        let (bell, news) = channel();
        let problem = Arc::new(Mutex::new(None));
        let mut keeper = Keeper {
            engine: Arc::clone(engine),
            node: config.node.clone(),
            address: config.advertise,
            credentials: std::iter::once(Arc::clone(own)).chain(others).collect(),
            own: Arc::clone(own),
            authority: None,
            problem: Arc::clone(&problem),
            retry_at: None,
            told: None,
        };
        let also = bell.clone();
        let follower = Follower::start(engine, AUTHORITY, move |change| {
            if let Some(authority) = authority_in(change) {
                let _ = also.send(News::Authority(authority));
            }
        })?;
        let thread =
            std::thread::Builder::new().name("certificates".to_owned()).spawn(move || keeper.run(&news, &users))?;
        Ok(Certificates { problem, bell, follower: Some(follower), thread: Some(thread) })
    }

    /// For people.
    pub fn problem(&self) -> Option<String> {
        self.problem.lock().clone()
    }
}

impl Drop for Certificates {
    fn drop(&mut self) {
        drop(self.follower.take());
        let _ = self.bell.send(News::Stop);
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the thread of the certificates had panicked");
        }
    }
}

/// `None`: the change says nothing about it.
fn authority_in(change: Change) -> Option<Option<Box<AuthorityRecord>>> {
    let decode = |value: &[u8]| crate::observed::understood(AUTHORITY, value).map(Box::new);
    match change {
        Change::All(entries) => {
            Some(entries.iter().find(|entry| entry.key == AUTHORITY).and_then(|entry| decode(&entry.value)))
        }
        Change::One(event) if event.key == AUTHORITY => match event.kind {
            cluster::EventKind::Put { value, .. } => Some(decode(&value)),
            cluster::EventKind::Delete => Some(None),
        },
        Change::One(_) | Change::Unknown(_) => None,
    }
}

impl Keeper {
    fn run(&mut self, news: &Receiver<News>, users: &Users) {
        loop {
            // Certificates that last seconds, as in tests, are looked at more often.
            let often = self.authority.as_ref().map_or(LOOK, |authority| LOOK.min(authority.lifetime() / 20));
            match news.recv_timeout(often) {
                Ok(News::Authority(authority)) => {
                    self.authority = authority.map(|authority| *authority);
                    self.retry_at = None;
                }
                Ok(News::Stop) | Err(RecvTimeoutError::Disconnected) => return,
                Err(RecvTimeoutError::Timeout) => (),
            }
            self.look(users);
        }
    }

    fn look(&mut self, users: &Users) {
        let mut problem = None;
        if let Some(authority) = self.authority.clone() {
            if let Err(error) = self.write_what_the_cluster_says(&authority) {
                problem = Some(format!("certificates: {}", causes(&*error)));
            }
            let renewed = self.renew_when_due(&authority);
            problem = problem.or(renewed.err());
        }
        let mut is_new = false;
        for credentials in &self.credentials {
            match credentials.reload() {
                Ok(new) => is_new |= new,
                Err(error) => {
                    // A damaged list is written anew.
                    let _ = fs::remove_file(self.own.dir().join(LIST_NUMBER));
                    problem
                        .get_or_insert_with(|| format!("certificates: {}; those from before are used", causes(&error)));
                }
            }
        }
        let expired = self.own.facts().left(SystemTime::now()).is_zero();
        if expired {
            problem.get_or_insert_with(|| "certificates: this node's certificate has expired".to_owned());
        }
        *self.problem.lock() = problem;
        if is_new {
            tracing::info!(serial = self.own.facts().serial, "new certificates are used from now on");
            (users.changed)();
        }
        self.rotate(users);
    }

    /// Tells how far this node is, and takes the next step when all are as far.
    fn rotate(&mut self, users: &Users) {
        if self.authority.is_none() || !(users.are_current)() {
            return;
        }
        let is_rotating = self.authority.as_ref().is_some_and(|authority| authority.rotation.is_some());
        let trust = Trust { believes: self.own.roots().into_iter().collect(), shows: self.own.shown_root() };
        let done = self.tell(trust).and_then(|()| if is_rotating { rotation::advance(&*self.engine) } else { Ok(()) });
        if let Err(error) = done {
            tracing::debug!(error = causes(&error), "the change of roots waits");
        }
    }

    fn tell(&mut self, trust: Trust) -> Result<(), AuthorityError> {
        if self.told.as_ref() != Some(&trust) {
            self.engine.transact(&[], &[Op::put(rotation::trust_key(&self.node), encode(&trust))])?;
            self.told = Some(trust);
        }
        Ok(())
    }

    fn write_what_the_cluster_says(&self, authority: &AuthorityRecord) -> Result<(), crate::supervise::Problem> {
        let dir = self.own.dir();
        pki::write_public(&dir.join(pki::CA_CERT), &authority.roots_pem())?;
        // Made anew the list is another text, though it says the same.
        let number = format!("{} {}\n", authority.generation, authority.number);
        let number_path = dir.join(LIST_NUMBER);
        if fs::read_to_string(&number_path).is_ok_and(|there| there == number) {
            return Ok(());
        }
        pki::write_public(&dir.join(pki::CA_CRL), &authority.revocations_pem()?)?;
        Ok(pki::write_public(&number_path, &number)?)
    }

    fn renew_when_due(&mut self, authority: &AuthorityRecord) -> Result<(), String> {
        let (facts, now) = (self.own.facts(), SystemTime::now());
        let left = facts.left(now);
        // One that begins in the future was signed while this clock was wrong.
        let is_due = left < authority.lifetime() / RENEWED_AT || facts.from > now || !self.own.is_by_the_first_root();
        if !is_due || self.retry_at.is_some_and(|at| Instant::now() < at) {
            return Ok(());
        }
        match self.renew() {
            Ok(()) => {
                // Not at once again, should the files not be read as they were written.
                self.retry_at = Some(Instant::now() + RETRY_MOST.min(authority.lifetime() / 60));
                Ok(())
            }
            Err(error) => {
                self.retry_at = Some(Instant::now() + RETRY_MOST.min(authority.lifetime() / 60));
                tracing::warn!(error = causes(&*error), "the certificate was not renewed");
                if left < authority.lifetime() / TOLD_AT {
                    return Err(format!(
                        "certificates: this node's ends in {} hours and cannot be renewed: {}",
                        left.as_secs() / 3600,
                        causes(&*error)
                    ));
                }
                Ok(())
            }
        }
    }

    fn renew(&self) -> Result<(), crate::supervise::Problem> {
        let key = NodeKey::generate()?;
        let (issued, authority): (_, AuthorityRecord) =
            authority::renew(&*self.engine, &self.node, self.address, &key.request_pem()?, &self.own.facts().serial)
                .map_err(|error: AuthorityError| Box::new(error) as crate::supervise::Problem)?;
        let files = NodeFiles {
            certificate_pem: &issued.certificate_pem,
            key_pem: &key.pem(),
            roots_pem: &authority.roots_pem(),
        };
        Ok(pki::write_node_files(self.own.dir(), &files)?)
    }
}

/// Brings files that a daemon left half written to an end, and reads them.
pub fn open(dir: &Path) -> Result<Arc<NodeCredentials>, pki::PkiError> {
    pki::mend_node_files(dir)?;
    NodeCredentials::load(dir)
}
