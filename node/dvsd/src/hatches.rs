//! Hatches: where programs of a container ask this node's daemon for what is their container's
//! (`docs/design/inside.md`).
//!
//! A hatch is a socket in the directory that the container's programs see as `/run/dvs`, and a thread of its own that
//! serves it, with a runtime of its own. Whatever a container does at its hatch costs that thread: neither those of the
//! API nor another container's hatch. Who asks is what the kernel says of who connected; which container it is says the
//! socket. What may be asked for is in `mgmt_api::routes`, what is made of it in `api/inhabitants.rs`.
//!
//! A hatch is there as long as the container is wanted here and its programs have a keeper. A daemon that ends leaves
//! the file where it is: who connects is refused until the next one listens there.
//!
//! | bound, of each hatch | |
//! |---|---|
//! | connections | 24 of root inside, 8 of all other users; streams that go to another node count |
//! | requests | a pace: 200 at once, then 50 a second; what asks other nodes or starts something counts as five |
//! | waiting for the pace | 5 s at most, each time |
//! | answers that may be large | 2 at a time of root, 2 of all other users |
//! | an answer that is not read | 30 s, then the connection ends |
//! | those who follow events | 4 of root, 4 of all other users |
//! | body of a request | 256 KiB |
//! | calls that wait for a keeper or the kernel | 4 at a time |

use std::collections::BTreeMap;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use axum::Router;
use mgmt_api::routes::Inhabitant;
use parking_lot::Mutex;
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};

use crate::api::gate::Origin;
use crate::api::patience::{GoesOn, Patient};
use crate::api::serve::serve_one;
use crate::uids;

/// In the directory that programs see as `/run/dvs`: where `dvs` looks for a daemon anyhow.
pub const SOCKET: &str = "dvsd.sock";
/// The same before it has its name.
const FRESH: &str = ".hatch";
const OF_ROOT_MAX: usize = 24;
const OF_USERS_MAX: usize = 8;
/// Those of each class that are told that there is no place; beyond, connections are closed without a word.
const TURNED_AWAY_MAX: usize = 4;
const TURNED_AWAY_LIMIT: Duration = Duration::from_secs(1);
/// After a failure to accept (out of descriptors).
const ACCEPT_PAUSE: Duration = Duration::from_millis(20);
/// Answers of several MiB that exist at a time.
const LARGE_ANSWERS_MAX: usize = 2;
/// Each looks at what there is, again and again.
const FOLLOWERS_MAX: usize = 4;
/// Each waits for a keeper, the kernel or the engine.
const BLOCKING_THREADS: usize = 4;
/// How long the end of a hatch is waited for; its connections end at once, and what a thread does for one is short.
const END_LIMIT: Duration = Duration::from_secs(2);
const REQUESTS_AT_ONCE: u32 = 200;
const REQUEST_EVERY: Duration = Duration::from_millis(20);
/// The most that is remembered against who asks too often: nobody waits for more than these, also for what others
/// asked who went away since.
const REQUESTS_WAITED_FOR_MAX: u32 = 250;

/// Of a body. Arguments of a program that is started from inside are written down in it.
pub const BODY_BYTES_MAX: usize = 256 << 10;

#[derive(Default)]
pub struct Hatches(Mutex<Inner>);

#[derive(Default)]
struct Inner {
    /// Absent before the daemon serves, and once it stops.
    router: Option<Router>,
    open: BTreeMap<u32, Hatch>,
}

struct Hatch {
    path: PathBuf,
    /// Not served yet.
    listener: Option<std::os::unix::net::UnixListener>,
    served: Option<Served>,
    of: Whose,
}

struct Served {
    over: watch::Sender<bool>,
    ended: mpsc::Receiver<()>,
}

#[derive(Clone)]
struct Whose {
    dc: u32,
    name: Arc<str>,
}

/// A connection at a hatch. Its place is free when the last copy is gone.
pub struct Place {
    pub dc: u32,
    pub name: Arc<str>,
    pub who: Inhabitant,
    pub uid: u32,
    pub pid: Option<i32>,
    /// Whether what is answered on it now goes on.
    pub goes_on: GoesOn,
    pace: Arc<Pace>,
    large_answers: Arc<Semaphore>,
    followers: Arc<Semaphore>,
    over: watch::Receiver<bool>,
    _permit: OwnedSemaphorePermit,
}

impl Place {
    /// Waits until it may go on, as one that asks for so much.
    pub async fn keep_pace(&self, cost: u32) {
        tokio::time::sleep(self.pace.take(cost, Instant::now())).await;
    }

    /// Waits for room for an answer that may be large; the room is free when what this returns is dropped.
    pub async fn large_answer(&self) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.large_answers).acquire_owned().await.ok()
    }

    /// A place among those who follow events, if there is one.
    pub fn follower(&self) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.followers).try_acquire_owned().ok()
    }

    /// As programs of the container know it.
    pub fn uid_inside(&self) -> u32 {
        self.uid.saturating_sub(uids::inside(self.dc))
    }

    /// Waits until the container has no hatch here any more.
    pub async fn over(&self) {
        let _ = self.over.clone().wait_for(|over| *over).await;
    }
}

impl Hatches {
    /// Opens the hatch of a container, unless it is open. `dir`: what its programs see as `/run/dvs`.
    ///
    /// # Errors
    /// The socket cannot be made there, or the thread.
    pub fn open(&self, dc: u32, name: &str, dir: &Path) -> io::Result<()> {
        let mut inner = self.0.lock();
        if inner.open.contains_key(&dc) {
            return Ok(());
        }
        let path = dir.join(SOCKET);
        let listener = Some(bind(dir, &path)?);
        let mut hatch = Hatch { path, listener, served: None, of: Whose { dc, name: name.into() } };
        if let Some(router) = &inner.router {
            hatch.serve(router)?;
        }
        inner.open.insert(dc, hatch);
        Ok(())
    }

    /// Returns when nobody is heard there any more, nor anything done that was asked for there.
    pub fn close(&self, dc: u32) {
        let hatch = self.0.lock().open.remove(&dc);
        if let Some(hatch) = hatch {
            // Of the next container of this number nobody finds this one's.
            let _ = std::fs::remove_file(&hatch.path);
            hatch.end();
        }
    }

    /// From now on those that are open are heard.
    pub fn serve(&self, router: &Router) {
        let mut inner = self.0.lock();
        inner.router = Some(router.clone());
        inner.open.retain(|dc, hatch| match hatch.serve(router) {
            Ok(()) => true,
            Err(error) => {
                tracing::warn!(dc, %error, "programs of a container cannot ask the daemon");
                false
            }
        });
    }

    /// The daemon ends; its successor opens them again.
    pub fn stop(&self) {
        let mut inner = self.0.lock();
        inner.router = None;
        let open = std::mem::take(&mut inner.open);
        drop(inner);
        open.values().for_each(Hatch::say_over);
        open.into_values().for_each(Hatch::end);
    }
}

/// The name leads to a listener at any time, to the one of before or to this one. Who may ask is decided by what the
/// kernel says of who connects.
fn bind(dir: &Path, path: &Path) -> io::Result<std::os::unix::net::UnixListener> {
    let fresh = dir.join(FRESH);
    match std::fs::remove_file(&fresh) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => (),
    }
    let listener = std::os::unix::net::UnixListener::bind(&fresh)?;
    // Those that are accepted inherit it. Where the kernel cannot, a container holds up its own hatch at most.
    sys::seqpacket::refuse_descriptors(&listener)?;
    listener.set_nonblocking(true)?;
    std::fs::set_permissions(&fresh, std::fs::Permissions::from_mode(0o666))?;
    std::fs::rename(&fresh, path)?;
    Ok(listener)
}

impl Hatch {
    fn serve(&mut self, router: &Router) -> io::Result<()> {
        let Some(listener) = self.listener.take() else { return Ok(()) };
        let (over, hears_over) = watch::channel(false);
        let (says_ended, ended) = mpsc::channel();
        let (of, router) = (self.of.clone(), router.clone());
        let thread = std::thread::Builder::new().name(format!("hatch-{}", of.dc));
        thread.spawn(move || {
            if let Err(error) = run(listener, &of, router, hears_over) {
                tracing::warn!(dc = of.dc, %error, "programs of a container cannot ask the daemon");
            }
            let _ = says_ended.send(());
        })?;
        self.served = Some(Served { over, ended });
        Ok(())
    }

    fn say_over(&self) {
        if let Some(served) = &self.served {
            served.over.send_replace(true);
        }
    }

    fn end(self) {
        self.say_over();
        let Some(served) = self.served else { return };
        if let Err(mpsc::RecvTimeoutError::Timeout) = served.ended.recv_timeout(END_LIMIT) {
            tracing::warn!(dc = self.of.dc, "the end of a hatch takes long");
        }
    }
}

fn run(
    listener: std::os::unix::net::UnixListener,
    of: &Whose,
    router: Router,
    over: watch::Receiver<bool>,
) -> io::Result<()> {
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().max_blocking_threads(BLOCKING_THREADS).build()?;
    let served = runtime.block_on(async {
        let mut is_over = over.clone();
        let listener = UnixListener::from_std(listener)?;
        tokio::select! {
            () = accept(listener, of, router, over) => (),
            _ = is_over.wait_for(|over| *over) => (),
        }
        Ok(())
    });
    // Connections end with it, and streams that go to another node.
    runtime.shutdown_background();
    served
}

/// Of all users of a container who have the same rights.
struct Class {
    who: Inhabitant,
    places: Arc<Semaphore>,
    pace: Arc<Pace>,
    turned_away: Arc<Semaphore>,
    large_answers: Arc<Semaphore>,
    followers: Arc<Semaphore>,
}

impl Class {
    fn new(who: Inhabitant, most: usize) -> Class {
        let room = |most| Arc::new(Semaphore::new(most));
        Class {
            who,
            places: room(most),
            pace: Arc::default(),
            turned_away: room(TURNED_AWAY_MAX),
            large_answers: room(LARGE_ANSWERS_MAX),
            followers: room(FOLLOWERS_MAX),
        }
    }
}

async fn accept(listener: UnixListener, of: &Whose, router: Router, over: watch::Receiver<bool>) {
    let (root, users) = (Class::new(Inhabitant::Root, OF_ROOT_MAX), Class::new(Inhabitant::User, OF_USERS_MAX));
    loop {
        let (stream, peer) = match listener.accept().await {
            Ok((stream, _)) => {
                let peer = stream.peer_cred();
                (stream, peer)
            }
            Err(error) => {
                tracing::debug!(dc = of.dc, %error, "cannot accept a connection of a container");
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        let Ok(peer) = peer else { continue };
        let class = match who(of.dc, peer.uid()).map(|who| as_far_as_it_may(who, peer.pid())) {
            Some(Inhabitant::Root) => &root,
            Some(Inhabitant::User) => &users,
            // Of the node, or of another container, by whatever way.
            None => continue,
        };
        if let Ok(permit) = Arc::clone(&class.places).try_acquire_owned() {
            let place = Place {
                dc: of.dc,
                name: Arc::clone(&of.name),
                who: class.who,
                uid: peer.uid(),
                pid: peer.pid(),
                goes_on: GoesOn::default(),
                pace: Arc::clone(&class.pace),
                large_answers: Arc::clone(&class.large_answers),
                followers: Arc::clone(&class.followers),
                over: over.clone(),
                _permit: permit,
            };
            let stream = Patient::new(stream, Arc::clone(&place.goes_on));
            tokio::spawn(serve_one(stream, router.clone(), Origin::Inside(Arc::new(place))));
        } else if let Ok(permit) = Arc::clone(&class.turned_away).try_acquire_owned() {
            tokio::spawn(turn_away(stream, router.clone(), permit));
        }
        // No pause here: it would be the other users' fault that root waits.
    }
}

async fn turn_away(stream: UnixStream, router: Router, permit: OwnedSemaphorePermit) {
    let _ = tokio::time::timeout(TURNED_AWAY_LIMIT, serve_one(stream, router, Origin::TurnedAway)).await;
    drop(permit);
}

/// Who of a container has this uid of the node. Root of the node is whoever it likes to be.
fn who(dc: u32, uid: u32) -> Option<Inhabitant> {
    let first = uids::inside(dc);
    match uid.checked_sub(first) {
        Some(0) => Some(Inhabitant::Root),
        Some(inside) if inside < abi::limits::UIDS_PER_DC => Some(Inhabitant::User),
        _ if uid == 0 => Some(Inhabitant::Root),
        _ => None,
    }
}

/// Root that was started with fewer capabilities than this daemon's programs have would get them back by having a
/// program started, so it looks as other users do. Whoever ended meanwhile asks for nothing any more.
fn as_far_as_it_may(who: Inhabitant, pid: Option<i32>) -> Inhabitant {
    let is_whole = |pid: i32| {
        let [own, its] = [bounding_set("self"), bounding_set(&pid.to_string())];
        own.zip(its).is_some_and(|(own, its)| own & !its == 0)
    };
    if who == Inhabitant::Root && pid.is_some_and(is_whole) { Inhabitant::Root } else { Inhabitant::User }
}

/// What a process and all that it starts can have: `CapBnd` of proc_pid_status(5).
fn bounding_set(process: &str) -> Option<u64> {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).ok()?;
    let set = status.lines().find_map(|line| line.strip_prefix("CapBnd:"))?;
    u64::from_str_radix(set.trim(), 16).ok()
}

/// So many at once, and then so many in a time; who comes earlier waits.
struct Pace(Mutex<Option<Instant>>);

impl Default for Pace {
    fn default() -> Pace {
        Pace(Mutex::new(None))
    }
}

impl Pace {
    /// How long who asks now has to wait.
    fn take(&self, cost: u32, now: Instant) -> Duration {
        let mut spent = self.0.lock();
        let most = now + REQUEST_EVERY * (REQUESTS_AT_ONCE + REQUESTS_WAITED_FOR_MAX);
        let until = (spent.unwrap_or(now).max(now) + REQUEST_EVERY * cost).min(most);
        *spent = Some(until);
        until.duration_since(now).saturating_sub(REQUEST_EVERY * REQUESTS_AT_ONCE)
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::os::unix::net::UnixStream as Connection;

    use axum::routing::get;

    use super::*;

    fn asked(path: &Path) -> io::Result<String> {
        let mut stream = Connection::connect(path)?;
        stream.set_read_timeout(Some(Duration::from_secs(10)))?;
        stream.write_all(b"GET / HTTP/1.1\r\nHost: dvs\r\nConnection: close\r\n\r\n")?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        Ok(answer)
    }

    fn router() -> Router {
        Router::new().route("/", get(|| async { "here" }))
    }

    #[test]
    fn uid_of_the_node_says_who_it_is_inside_and_no_other_comes_in() {
        assert_eq!(who(3, uids::inside(3)), Some(Inhabitant::Root));
        assert_eq!(who(3, uids::inside(3) + 33), Some(Inhabitant::User));
        assert_eq!(who(3, uids::inside(4) - 1), Some(Inhabitant::User));
        assert_eq!(who(3, 0), Some(Inhabitant::Root));
        for other in [uids::inside(4), uids::inside(2), uids::server(3, 1), 1000, u32::MAX] {
            assert_eq!(who(3, other), None, "{other}");
        }
    }

    #[test]
    fn who_asks_too_often_waits_and_no_longer_than_it_has_asked() {
        let (pace, now) = (Pace::default(), Instant::now());
        for _ in 0..REQUESTS_AT_ONCE {
            assert_eq!(pace.take(1, now), Duration::ZERO);
        }
        assert_eq!(pace.take(1, now), REQUEST_EVERY);
        assert_eq!(pace.take(5, now), REQUEST_EVERY * 6);
        let later = now + REQUEST_EVERY * (REQUESTS_AT_ONCE + 6);
        assert_eq!(pace.take(REQUESTS_AT_ONCE, later), Duration::ZERO);
    }

    #[test]
    fn who_waits_for_what_many_asked_before_waits_for_so_much_and_no_more() {
        let (pace, now) = (Pace::default(), Instant::now());
        let longest = REQUEST_EVERY * REQUESTS_WAITED_FOR_MAX;
        for _ in 0..10_000 {
            assert!(pace.take(5, now) <= longest);
        }
        assert_eq!(pace.take(1, now), longest);
        assert_eq!(pace.take(1, now + longest), REQUEST_EVERY);
    }

    #[test]
    fn hatch_waits_for_the_daemon_and_is_gone_when_it_is_closed() {
        let dir = tempfile::tempdir().unwrap();
        let (hatches, path) = (Hatches::default(), dir.path().join(SOCKET));
        hatches.open(7, "shop", dir.path()).unwrap();
        let early = std::thread::spawn({
            let path = path.clone();
            move || asked(&path)
        });
        // It is in the kernel's queue at the latest when the router comes; a connection before is answered after.
        hatches.serve(&router());
        assert!(early.join().unwrap().unwrap().ends_with("here"));
        hatches.open(7, "shop", dir.path()).unwrap();
        assert!(asked(&path).unwrap().ends_with("here"));
        hatches.close(7);
        assert!(!path.exists());
        assert_eq!(asked(&path).unwrap_err().kind(), io::ErrorKind::NotFound);
        // The same daemon again, and the next one.
        hatches.open(7, "shop", dir.path()).unwrap();
        assert!(asked(&path).unwrap().ends_with("here"));
        hatches.stop();
        assert_eq!(asked(&path).unwrap_err().kind(), io::ErrorKind::ConnectionRefused);
        let next = Hatches::default();
        next.serve(&router());
        next.open(7, "shop", dir.path()).unwrap();
        assert!(asked(&path).unwrap().ends_with("here"));
    }

    #[test]
    fn whoever_leaves_connections_open_holds_up_no_other_hatch_and_its_end_is_prompt() {
        let dirs = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
        let hatches = Hatches::default();
        hatches.serve(&router());
        for (dc, dir) in dirs.iter().enumerate() {
            hatches.open(dc as u32, "shop", dir.path()).unwrap();
        }
        let path = dirs[0].path().join(SOCKET);
        let held: Vec<_> = (0..OF_ROOT_MAX).map(|_| Connection::connect(&path).unwrap()).collect();
        assert!(asked(&dirs[1].path().join(SOCKET)).unwrap().ends_with("here"));
        let begun = Instant::now();
        hatches.close(0);
        assert!(begun.elapsed() < END_LIMIT, "{:?}", begun.elapsed());
        for mut one in held {
            let mut rest = Vec::new();
            assert!(matches!(one.read_to_end(&mut rest), Ok(0) | Err(_)));
        }
    }
}
