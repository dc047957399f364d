//! A hundred daemons at one engine, and a thousand containers: what the engine, its watches and each daemon's memory
//! have to bear. The daemons are their conversation with the engine alone: a lease, a node record, all keys followed,
//! and for each container the report that a real one makes once everything runs. `cargo test --release -p dvsd --lib
//! api::scale -- --ignored --nocapture --test-threads=1` on a quiet machine; figures are in `docs/design/engine.md`.

use std::net::TcpListener;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use cluster::etcd::{EtcdConfig, EtcdEngine, Member};
use cluster::follow::{Change, Follower};
use cluster::known::Mirror;
use cluster::lease::KeptLease;
use cluster::local::{LocalConfig, LocalEngine};
use cluster::{Compare, Engine, EventKind, Lookup, Op, Outcome};
use mgmt_api::{Capacity, DcPhase, NodeShare};
use serde_json::json;

use super::dcs::make_record;
use crate::reconcile::plan::Stage;
use crate::reconcile::share::Share;
use crate::records::{self, DcKey, DcRecord, Desired, ShareRecord, encode};

const DAEMONS: usize = 100;
const CONTAINERS: usize = 1000;
/// Of each container.
const NODES: usize = 3;
/// People who make containers at the same time.
const PEOPLE: usize = 4;
const LEASE: Duration = Duration::from_secs(5);
/// A container that does not run by then never will.
const LATE: Duration = Duration::from_secs(60);

struct Daemon {
    engine: Arc<dyn Engine>,
    mirror: Arc<Mirror>,
    heard_bytes: Arc<AtomicU64>,
    /// In the order in which they end: the follower hands to the worker, which needs the lease.
    _follower: Follower,
    _lease: Arc<KeptLease>,
}

fn name(number: usize) -> String {
    format!("n{number}")
}

impl Daemon {
    fn start(number: usize, engine: Arc<dyn Engine>) -> Daemon {
        let node = name(number);
        let lease = KeptLease::hold(&engine, LEASE).expect("a lease");
        let record = json!({ "name": node, "id": number + 1, "epoch": 1, "address": format!("10.0.0.{number}"),
            "proxy_port": 7421, "api_port": 7420, "cpus": 2, "memory_bytes": 1_u64 << 34 });
        let capacity = Capacity { containers: 1024, memory_bytes: 1 << 34, disk_bytes: Some(1 << 44), cpus: 2 };
        let ops = [
            Op::put(records::member_key(&node), encode(&record)),
            Op::put(format!("/capacity/{node}"), encode(&capacity)),
            Op::put_leased(records::node_key(&node), encode(&records::NodeHealth::default()), lease.id()),
        ];
        engine.transact(&[], &ops).expect("a node");
        let (mirror, heard_bytes) = (Arc::new(Mirror::default()), Arc::new(AtomicU64::new(0)));
        let (orders, ordered) = channel();
        let (also, bytes, own) = (Arc::clone(&mirror), Arc::clone(&heard_bytes), node.clone());
        let follower = Follower::start(&engine, "/", move |change| hear(&change, &also, &bytes, &own, &orders));
        let (of_worker, id) = (Arc::clone(&engine), lease.id());
        std::thread::spawn(move || report(&*of_worker, &node, id, &ordered));
        Daemon { engine, mirror, heard_bytes, _follower: follower.expect("a thread"), _lease: lease }
    }
}

fn hear(change: &Change, mirror: &Mirror, bytes: &AtomicU64, own: &str, orders: &Sender<DcRecord>) {
    mirror.take(change);
    let Change::One(event) = change else { return };
    let EventKind::Put { value, .. } = &event.kind else { return };
    bytes.fetch_add((event.key.len() + value.len()) as u64, Ordering::Relaxed);
    let Some(DcKey::Record(_)) = records::parse_dc_key(&event.key) else { return };
    let Ok(record) = serde_json::from_slice::<DcRecord>(value) else { return };
    if record.desired == Desired::Running && record.spec.nodes.iter().any(|node| node == own) {
        let _ = orders.send(record);
    }
}

/// As a real daemon does when all parts are ready.
fn report(engine: &dyn Engine, node: &str, lease: cluster::LeaseId, orders: &Receiver<DcRecord>) {
    for record in orders {
        let Some(share) = Share::of(&record, node) else { continue };
        let said = ShareRecord {
            id: record.id,
            generation: record.generation,
            stage: Stage::Up,
            gone: false,
            share: NodeShare {
                node: node.to_owned(),
                phase: DcPhase::Running,
                address: share.address.to_string(),
                address_ipv6: None,
                pid_base: share.pid_base,
                endpoints: share.endpoints.clone(),
                servers: share.parts.iter().filter_map(|part| share.status(part)).collect(),
                ports: Vec::new(),
                problems: Vec::new(),
            },
        };
        let key = records::share_key(&record.spec.name, node);
        let exists = [Compare::Present { key: records::dc_key(&record.spec.name) }];
        engine.transact(&exists, &[Op::put_leased(key, encode(&said), lease)]).expect("a report");
    }
}

/// Makes a container and starts it, as the API does; how long until its nodes report it.
fn start_one(daemon: &Daemon, number: usize) -> Duration {
    let nodes: Vec<String> = (0..NODES).map(|of| name((number * 7 + of * 31) % DAEMONS)).collect();
    let dc = format!("dc-{number}");
    let spec = serde_json::from_value(json!({ "name": dc, "nodes": nodes })).expect("a description");
    let began = Instant::now();
    let view = make_record(&*daemon.engine, &spec).unwrap_or_else(|failed| panic!("{dc}: {}", failed.0));
    let record = DcRecord { desired: Desired::Running, generation: 2, ..view.record };
    let unchanged = Compare::Modified { key: records::dc_key(&dc), at: view.modified };
    let wished = daemon.engine.transact(&[unchanged], &[Op::put(records::dc_key(&dc), encode(&record))]);
    assert!(matches!(wished, Ok(Outcome::Done(_))), "{dc}: {wished:?}");
    let prefix = format!("{}/shares/", records::dc_key(&dc));
    while daemon.mirror.list(&prefix).map_or(0, |listing| listing.entries.len()) < NODES {
        assert!(began.elapsed() < LATE, "{dc} is not reported");
        std::thread::sleep(Duration::from_millis(1));
    }
    began.elapsed()
}

fn resident_bytes() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages: u64 = statm.split_whitespace().nth(1).and_then(|text| text.parse().ok()).unwrap_or(0);
    pages * 4096
}

/// A hundred daemons that are not optimised wait for a CPU, and that would be measured.
fn is_released_build() -> bool {
    let is_one = !cfg!(debug_assertions);
    if !is_one {
        eprintln!("SKIPPED: measured in a release build: see this file's head");
    }
    is_one
}

/// `limit`: of the start of a container, 99 of 100.
fn run(kind: &str, limit: Duration, open: impl Fn(usize) -> Arc<dyn Engine>) {
    let before = resident_bytes();
    let daemons: Vec<Daemon> = (0..DAEMONS).map(|number| Daemon::start(number, open(number))).collect();
    let began = Instant::now();
    let mut took: Vec<Duration> = std::thread::scope(|scope| {
        let people = (0..PEOPLE).map(|person| {
            let daemon = &daemons[person];
            let numbers = (person..CONTAINERS).step_by(PEOPLE);
            scope.spawn(move || numbers.map(|number| start_one(daemon, number)).collect::<Vec<Duration>>())
        });
        let people: Vec<_> = people.collect();
        people.into_iter().flat_map(|person| person.join().expect("a person")).collect()
    });
    let seconds = began.elapsed().as_secs_f64();
    took.sort_unstable();
    let at = |share: f64| took[((took.len() - 1) as f64 * share) as usize].as_secs_f64();
    let heard: u64 = daemons.iter().map(|daemon| daemon.heard_bytes.load(Ordering::Relaxed)).sum();
    // Two to make and start it, one report of each node.
    let transactions = (CONTAINERS * (2 + NODES)) as f64 / seconds;
    eprintln!(
        "{kind}: {DAEMONS} daemons, {CONTAINERS} containers of {NODES} nodes in {seconds:.1} s: {transactions:.0} \
         transactions/s; start p50 {:.3} s, p99 {:.3} s, most {:.3} s; watches {:.0} kB/s of each daemon, {:.1} MB/s of all; \
         {:.1} MB of memory of each daemon",
        at(0.5),
        at(0.99),
        at(1.0),
        heard as f64 / 1000.0 / DAEMONS as f64 / seconds,
        heard as f64 / 1e6 / seconds,
        resident_bytes().saturating_sub(before) as f64 / 1e6 / DAEMONS as f64,
    );
    // Who made the last one heard of it; the others soon do.
    let knows_all =
        |daemon: &Daemon| daemon.mirror.list(records::DCS).expect("known").entries.len() == CONTAINERS * (1 + NODES);
    let until = Instant::now() + LATE;
    while !daemons.iter().all(knows_all) {
        assert!(Instant::now() < until, "not every daemon knows all");
        std::thread::sleep(Duration::from_millis(10));
    }
    assert!(at(0.99) < limit.as_secs_f64(), "{kind}: a start takes {:.3} s", at(0.99));
}

#[test]
#[ignore = "a measurement"]
fn hundred_daemons_and_a_thousand_containers_at_a_file() {
    if !is_released_build() {
        return;
    }
    let dir = tempfile::tempdir_in("/dev/shm").expect("a directory");
    // Nodes of one machine share the file, never as many as these: whoever has a hundred has etcd. Each of them reads
    // every change itself, on the CPUs of this machine.
    run("local", Duration::from_secs(3), |_| {
        let config = LocalConfig::new(dir.path().join("engine.db"), dir.path().join("volatile"));
        Arc::new(LocalEngine::open(config).expect("the engine opens"))
    });
}

/// Ended with the test.
struct Etcd {
    child: Child,
    address: Member,
    _dir: tempfile::TempDir,
}

impl Etcd {
    fn start() -> Option<Etcd> {
        let dir = tempfile::tempdir_in("/dev/shm").expect("a directory");
        let port = || TcpListener::bind("127.0.0.1:0").expect("a port").local_addr().expect("its address").port();
        let (client, peer) = (port(), port());
        let client_url = format!("http://127.0.0.1:{client}");
        let peer_url = format!("http://127.0.0.1:{peer}");
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "KILL", "etcd", "--name=m0"]).arg(format!("--data-dir={}", dir.path().display()));
        for (key, value) in [
            ("listen-client-urls", &client_url),
            ("advertise-client-urls", &client_url),
            ("listen-peer-urls", &peer_url),
            ("initial-advertise-peer-urls", &peer_url),
            ("initial-cluster", &format!("m0={peer_url}")),
        ] {
            command.arg(format!("--{key}={value}"));
        }
        let child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().ok()?;
        Some(Etcd { child, address: Member { host: "127.0.0.1".to_owned(), port: client }, _dir: dir })
    }
}

impl Drop for Etcd {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
#[ignore = "a measurement"]
fn hundred_daemons_and_a_thousand_containers_at_etcd() {
    if !is_released_build() {
        return;
    }
    let Some(etcd) = Etcd::start() else {
        eprintln!("SKIPPED: there is no etcd (Debian: etcd-server)");
        return;
    };
    run("etcd", Duration::from_secs(1), |number| {
        let config = EtcdConfig::new(vec![etcd.address.clone()], "dvs/scale");
        let until = Instant::now() + Duration::from_secs(30);
        loop {
            match EtcdEngine::open(config.clone()) {
                Ok(engine) => return Arc::new(engine),
                Err(error) => assert!(Instant::now() < until, "daemon {number} has no engine: {error}"),
            }
        }
    });
}
