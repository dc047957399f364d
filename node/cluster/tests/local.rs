//! The engine of one machine: the cases every engine must pass, and those of processes that die or stop.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use cluster::conformance::{self, Open};
use cluster::lease::KeptLease;
use cluster::local::{LocalConfig, LocalEngine};
use cluster::{Compare, Engine, EngineError, Lookup, Op, Outcome, Revision, lock};
use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};
use tempfile::TempDir;

const SOON: Duration = Duration::from_secs(20);
const ROLE: &str = "DVS_CLUSTER_TEST_ROLE";
const DIR: &str = "DVS_CLUSTER_TEST_DIR";

fn config(dir: &std::path::Path) -> LocalConfig {
    LocalConfig { busy: Duration::from_secs(10), ..LocalConfig::new(dir.join("engine.db"), dir.join("volatile")) }
}

fn in_memory() -> TempDir {
    tempfile::tempdir_in("/dev/shm").unwrap()
}

fn with_cluster(case: fn(Open<'_>)) {
    let dir = in_memory();
    case(&|| Box::new(LocalEngine::open(config(dir.path())).unwrap()));
}

cluster::conformance_tests!(with_cluster);

#[test]
fn slow_watcher_learns_that_history_was_compacted() {
    let dir = in_memory();
    let open = || -> Box<dyn Engine> {
        Box::new(LocalEngine::open(LocalConfig { history: 20, ..config(dir.path()) }).unwrap())
    };
    conformance::watch_that_fell_behind_the_history_is_told(&open, 100);
}

#[test]
fn engine_goes_on_when_its_file_system_is_full_and_readers_never_pause() {
    let place = in_memory();
    let mounted = Command::new("mount").args(["-t", "tmpfs", "-o", "size=24m", "tmpfs"]).arg(place.path()).status();
    if !rustix::process::geteuid().is_root() || !mounted.is_ok_and(|status| status.success()) {
        eprintln!("SKIPPED: this test needs root");
        return;
    }
    let gone_on = std::panic::catch_unwind(|| {
        let engine = LocalEngine::open(config(place.path())).unwrap();
        let lease = engine.grant(SOON).unwrap();
        let mut filling = std::fs::File::create(place.path().join("filling")).unwrap();
        let full = std::io::copy(&mut std::io::repeat(7), &mut filling).unwrap_err();
        assert_eq!(full.kind(), std::io::ErrorKind::StorageFull);
        let is_over = AtomicBool::new(false);
        std::thread::scope(|threads| {
            for _ in 0..2 {
                threads.spawn(|| {
                    let reader = LocalEngine::open(config(place.path())).unwrap();
                    while !is_over.load(Ordering::Relaxed) {
                        reader.list("/").unwrap();
                    }
                });
            }
            let written = (0..2000).try_for_each(|round| {
                engine.transact(&[], &[Op::put(format!("/k{}", round % 50), vec![b'v'; 500])]).map(drop)
            });
            is_over.store(true, Ordering::Relaxed);
            written.unwrap();
        });
        engine.renew(lease).unwrap();
        assert!(engine.read("/k0").unwrap().is_some());
    });
    let unmounted = Command::new("umount").arg("-l").arg(place.path()).status().unwrap();
    assert!(unmounted.success());
    gone_on.unwrap();
}

#[test]
fn foreign_file_is_refused_with_a_reason() {
    let dir = in_memory();
    std::fs::write(dir.path().join("engine.db"), [b'x'; 4096]).unwrap();
    assert!(matches!(LocalEngine::open(config(dir.path())), Err(EngineError::Storage(_))));
}

#[test]
fn leases_end_with_the_memory_they_live_in() {
    let dir = in_memory();
    let engine = LocalEngine::open(config(dir.path())).unwrap();
    let lease = engine.grant(SOON).unwrap();
    engine.transact(&[], &[Op::put_leased("/a", "1", lease), Op::put("/b", "1")]).unwrap();
    drop(engine);
    std::fs::remove_dir_all(dir.path().join("volatile")).unwrap();
    let engine = LocalEngine::open(config(dir.path())).unwrap();
    let mut watch = engine.watch("/", Revision(1)).unwrap();
    assert_eq!(watch.recv(SOON).unwrap().unwrap().key, "/a");
    assert!(engine.read("/b").unwrap().is_some());
}

/// A second process of this test program; killed and reaped when dropped.
struct Helper {
    child: Child,
    lines: BufReader<std::process::ChildStdout>,
}

impl Helper {
    fn start(role: &str, dir: &TempDir) -> Helper {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "helper_process", "--nocapture", "--test-threads=1"])
            .env(ROLE, role)
            .env(DIR, dir.path())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap());
        Helper { child, lines }
    }

    fn pid(&self) -> Pid {
        Pid::from_child(&self.child)
    }

    /// Reads up to the line that contains `word`.
    fn await_line(&mut self, word: &str) {
        let mut line = String::new();
        while self.lines.read_line(&mut line).unwrap() > 0 {
            if line.contains(word) {
                return;
            }
            line.clear();
        }
        panic!("the helper ended before it said {word:?}");
    }

    fn await_stop(&self) {
        waitpid(Some(self.pid()), WaitOptions::UNTRACED).unwrap();
    }
}

impl Drop for Helper {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Not a test: what the helpers run.
#[test]
fn helper_process() {
    let (Ok(role), Ok(dir)) = (std::env::var(ROLE), std::env::var(DIR)) else { return };
    let dir = std::path::Path::new(&dir);
    let engine: Arc<dyn Engine> = Arc::new(LocalEngine::open(config(dir)).unwrap());
    match role.as_str() {
        "count" => (0..50).for_each(|_| conformance::increment(&*engine, "/counter")),
        "write" => {
            println!("writing");
            for index in 0_u64.. {
                let value = index.to_string();
                engine.transact(&[], &[Op::put("/x", &*value), Op::put("/y", &*value)]).unwrap();
            }
        }
        "hold" => {
            let lease = KeptLease::hold(&engine, Duration::from_secs(1)).unwrap();
            let _guard = lock::lock(&lease, "l", SOON).unwrap();
            println!("holding");
            std::thread::park();
        }
        "stop inside a transaction" => {
            let mut connection = rusqlite::Connection::open(dir.join("engine.db")).unwrap();
            let transaction = connection.transaction_with_behavior(rusqlite::TransactionBehavior::Immediate).unwrap();
            transaction.execute("UPDATE meta SET number = number + 1000 WHERE name = 'revision'", []).unwrap();
            kill_process(rustix::process::getpid(), Signal::STOP).unwrap();
            std::thread::park();
        }
        other => panic!("no role {other:?}"),
    }
}

fn kill(helper: Helper) {
    drop(helper);
}

#[test]
fn processes_count_together_and_lose_nothing() {
    let dir = in_memory();
    let engine = LocalEngine::open(config(dir.path())).unwrap();
    engine.transact(&[], &[Op::put("/counter", "0")]).unwrap();
    let helpers: Vec<Helper> = (0..2).map(|_| Helper::start("count", &dir)).collect();
    for mut helper in helpers {
        assert!(helper.child.wait().unwrap().success());
    }
    assert_eq!(engine.read("/counter").unwrap().unwrap().value, b"100");
}

#[test]
fn killed_writer_leaves_whole_transactions_and_others_go_on() {
    let dir = in_memory();
    let engine = LocalEngine::open(config(dir.path())).unwrap();
    for _ in 0..5 {
        let mut watch = engine.watch("/", engine.list("/").unwrap().revision).unwrap();
        let mut helper = Helper::start("write", &dir);
        helper.await_line("writing");
        for _ in 0..20 {
            watch.recv(SOON).unwrap().expect("a change of the helper");
        }
        kill(helper);
        let (x, y) = (engine.read("/x").unwrap().unwrap(), engine.read("/y").unwrap().unwrap());
        assert_eq!((&x.value, x.modified), (&y.value, y.modified));
        assert!(matches!(engine.transact(&[], &[Op::put("/z", "1")]).unwrap(), Outcome::Done(_)));
    }
}

#[test]
fn lock_of_a_stopped_process_passes_on_and_its_token_is_refused() {
    let dir = in_memory();
    let engine: Arc<dyn Engine> = Arc::new(LocalEngine::open(config(dir.path())).unwrap());
    let mut helper = Helper::start("hold", &dir);
    helper.await_line("holding");
    let old = engine.list("/locks/l/").unwrap().entries.remove(0);
    kill_process(helper.pid(), Signal::STOP).unwrap();
    helper.await_stop();
    let lease = KeptLease::hold(&engine, SOON).unwrap();
    let guard = lock::lock(&lease, "l", SOON).unwrap();
    assert!(guard.token() > old.created);
    kill_process(helper.pid(), Signal::CONT).unwrap();
    let fence = Compare::Created { key: old.key, at: old.created };
    assert!(matches!(engine.transact(&[fence], &[]).unwrap(), Outcome::Conflict(_)));
    assert!(matches!(engine.transact(&[guard.fence()], &[]).unwrap(), Outcome::Done(_)));
}

#[test]
fn writer_stopped_inside_a_transaction_delays_others_by_the_limit_only() {
    const BUSY: Duration = Duration::from_millis(300);
    let dir = in_memory();
    let engine = LocalEngine::open(LocalConfig { busy: BUSY, ..config(dir.path()) }).unwrap();
    let before = match engine.transact(&[], &[Op::put("/a", "1")]).unwrap() {
        Outcome::Done(revision) => revision,
        Outcome::Conflict(_) => panic!("nothing was compared"),
    };
    let lease = engine.grant(SOON).unwrap();
    let helper = Helper::start("stop inside a transaction", &dir);
    helper.await_stop();
    let began = Instant::now();
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let refused = engine.transact(&[], &[Op::put("/a", "2")]).unwrap_err();
                assert!(matches!(refused, EngineError::Busy { .. }), "{refused}");
            });
        }
    });
    assert!(began.elapsed() < 10 * BUSY, "{:?}", began.elapsed());
    let EngineError::Busy { pid, .. } = engine.transact(&[], &[Op::put("/a", "2")]).unwrap_err() else {
        panic!("busy")
    };
    assert_eq!(pid, Some(helper.child.id()), "the operator is told who");
    assert_eq!(engine.read("/a").unwrap().unwrap().value, b"1", "reading goes on");
    engine.renew(lease).expect("renewing goes on");
    kill(helper);
    assert!(
        matches!(engine.transact(&[], &[Op::put("/a", "2")]).unwrap(), Outcome::Done(Revision(next)) if next == before.0 + 1)
    );
}
