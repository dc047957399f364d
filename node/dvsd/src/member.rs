//! The member of etcd that this node runs: a process of its own, in the daemon's care.
//!
//! It goes on when the daemon ends, as containers do, and the next daemon adopts it: a daemon that is replaced costs
//! the cluster no member. `dvs etcd` (started by the daemon, never typed) gives up all privileges and becomes etcd; so
//! the process that the daemon knows is etcd itself.
//!
//! ```text
//! STATE_DIR/etcd        root, 0711        so nobody but root can put a link where root writes
//! STATE_DIR/etcd/tls    root, etcd 0750   copies of the certificates, 0640; written again at each start of the daemon
//! STATE_DIR/etcd/data   etcd, 0700
//! ```
//!
//! Etcd reads its certificate and what is revoked anew for each connection, and the authority's certificate once. A
//! member that was started with other arguments or another authority than the settings say now is replaced; one that
//! the settings do not have any more is ended. One that ends again and again is told ([`Complaint`]).

mod endings;

use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::net::IpAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use serde_json::{Map, Value, json};
use sys::harden::{Identity, give_up_privileges};
use sys::launch::PidNamespace;
use sys::spawn::Spawn;

use crate::aside;
use crate::config::Config;
use crate::engine::{EtcdChoice, Serve};
use crate::reconcile::plan::Standing;
use crate::records::now_s;
use crate::spawn::Role;
use crate::state::StateError;
use crate::supervise::{OnAdoption, Problem, Supervised, Watching};
use crate::waiting;

use endings::Endings;
pub use endings::last_words;

pub const NAME: &str = "etcd";
/// Beside the copies as long as the member that runs may know other roots than these: it was not ended yet.
const ROOTS_BEFORE: &str = "roots-before";
/// Logs are looked after so often.
const IDLE: Duration = Duration::from_secs(30);
/// Between two starts: one that cannot serve, because its address is taken or its directory is another member's, ends
/// soon.
const PACE: Duration = Duration::from_secs(2);
/// To give up leading, and to close its files.
const GRACE: Duration = Duration::from_secs(5);
/// Revisions of history that members keep: as many as the local engine.
const HISTORY: u64 = 10_000;

#[derive(Debug, thiserror::Error)]
pub enum MemberError {
    #[error("the member of etcd that an earlier daemon started cannot be looked for")]
    Earlier(#[from] StateError),
    #[error("cannot write {}", .path.display())]
    Write {
        path: PathBuf,
        #[source]
        cause: std::io::Error,
    },
    #[error("no thread or descriptor")]
    Thread(#[source] std::io::Error),
}

/// What is wrong with the member, for people. `None`: nothing is.
pub type Complaint = Arc<Mutex<Option<String>>>;

/// Starts the member, or takes over the one that runs. `None`: this node has none.
pub fn look_after(
    config: &Config,
    etcd: Option<&EtcdChoice>,
    complaint: &Complaint,
) -> Result<Option<Watching>, MemberError> {
    let home = config.state_dir.join(NAME);
    look_after_at(config, etcd, &Place { home: &home, run_dir: &config.run_dir, further: &[] }, complaint)
}

/// Where a member is, and what it is told besides.
pub struct Place<'a> {
    pub home: &'a Path,
    /// Which processes are its: one for each directory.
    pub run_dir: &'a Path,
    pub further: &'a [&'a str],
}

/// The same for a member elsewhere on this machine.
pub fn look_after_at(
    config: &Config,
    etcd: Option<&EtcdChoice>,
    place: &Place<'_>,
    complaint: &Complaint,
) -> Result<Option<Watching>, MemberError> {
    let (run_dir, log_dir) = (place.run_dir, config.state_dir.join("log"));
    let Some((etcd, serve)) = etcd.and_then(|etcd| Some((etcd, etcd.serve.as_ref()?))) else {
        Supervised::adopt(NAME, run_dir, &log_dir, OnAdoption::GoesOn)?.end(GRACE)?;
        *complaint.lock() = None;
        return Ok(None);
    };
    let authority = prepare(place.home, etcd)?;
    let mut arguments = arguments(config, etcd, serve, place.home);
    arguments.extend(place.further.iter().map(|argument| (*argument).to_owned()));
    let mut process = Supervised::adopt_if(NAME, run_dir, &log_dir, |pid| {
        let is_same = authority == Authority::AsBefore && arguments_of(pid).as_ref() == Some(&arguments);
        if is_same { OnAdoption::GoesOn } else { OnAdoption::MustBeReplaced }
    })?;
    // Whoever waits for its successor must not meet the one before.
    if process.standing() == Standing::Stale {
        process.end(GRACE)?;
    }
    if authority == Authority::Another {
        forget_roots_before(place.home)?;
    }
    let (program, told) = (serve.program.clone(), Arc::clone(complaint));
    let watching = Watching::start(NAME, move |stop, bell| run(process, (&program, &arguments), &told, (stop, bell)));
    watching.map(Some).map_err(MemberError::Thread)
}

/// No member goes on with the data of one that was removed. They stay beside.
pub fn put_data_aside(config: &Config) {
    let home = config.state_dir.join(NAME);
    if let Err(error) = aside::put(&home, now_s()) {
        tracing::warn!(home = %home.display(), %error, "the data of a member that was removed stay where they are");
    }
}

/// Whether the member was started with other roots than there are now.
pub fn has_another_root(config: &Config, etcd: &EtcdChoice) -> bool {
    let Some(tls) = &etcd.tls_dir else { return false };
    let copy = fs::read(config.state_dir.join(NAME).join("tls").join(pki::CA_CERT)).ok();
    let knows_others = config.state_dir.join(NAME).join("tls").join(ROOTS_BEFORE).exists();
    copy.is_some() && (knows_others || copy != fs::read(tls.join(pki::CA_CERT)).ok())
}

/// The member that knew them has ended.
fn forget_roots_before(home: &Path) -> Result<(), MemberError> {
    let path = home.join("tls").join(ROOTS_BEFORE);
    match fs::remove_file(&path) {
        Err(cause) if cause.kind() != std::io::ErrorKind::NotFound => Err(MemberError::Write { path, cause }),
        _ => Ok(()),
    }
}

/// Of a process that became etcd, without its own name.
fn arguments_of(pid: i32) -> Option<Vec<String>> {
    let line = fs::read(format!("/proc/{pid}/cmdline")).ok()?;
    let words = line.strip_suffix(&[0])?.split(|byte| *byte == 0).skip(1);
    Some(words.map(|word| String::from_utf8_lossy(word).into_owned()).collect())
}

fn run(
    mut process: Supervised,
    (program, arguments): (&Path, &[String]),
    complaint: &Complaint,
    (stop, bell): (&AtomicBool, &OwnedFd),
) {
    let (mut not_before, mut endings, mut seen) = (Instant::now(), Endings::default(), process.restarts());
    while !stop.load(Ordering::SeqCst) {
        process.look(Instant::now());
        if std::mem::replace(&mut seen, process.restarts()) != process.restarts() {
            endings.ended(Instant::now());
        }
        *complaint.lock() = endings.are_many(Instant::now()).then(|| endings::complaint(&process.log_path()));
        if process.standing() == Standing::Stale
            && let Err(error) = process.end(GRACE)
        {
            tracing::warn!(%error, "the member that runs cannot be ended");
        }
        let is_absent = process.standing() == Standing::Absent;
        if is_absent && Instant::now() >= not_before {
            not_before = Instant::now() + PACE;
            process.start(|restarts| Ok::<Role, Problem>(role(program, arguments, restarts)));
        }
        // To see that it goes on, as well.
        let pause = if endings.is_unproven(Instant::now()) { endings::PROVEN } else { IDLE };
        let due = if is_absent { not_before } else { process.due().unwrap_or_else(|| Instant::now() + pause) };
        waiting::until_readable(process.descriptors().chain([bell.as_fd()]), due);
        crate::spawn::bound_log(&process.log_path());
    }
}

fn role(program: &Path, arguments: &[String], restarts: u64) -> Role {
    Role {
        name: NAME.to_owned(),
        program: None,
        arguments: vec!["etcd"],
        fields: Map::new(),
        options: json!({ "program": program, "arguments": arguments }),
        broker: None,
        fds: BTreeMap::new(),
        uid: Some(crate::uids::ETCD),
        environment: Vec::new(),
        cpus: None,
        pid_namespace: PidNamespace::Own,
        group: None,
        epoch: restarts + 1,
        restarts,
        serving: None,
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Authority {
    AsBefore,
    Another,
}

/// Makes the directories, and copies the certificates.
fn prepare(home: &Path, etcd: &EtcdChoice) -> Result<Authority, MemberError> {
    let failed = |path: &Path| {
        let path = path.to_owned();
        move |cause: std::io::Error| MemberError::Write { path, cause }
    };
    let directory = |path: &Path, mode: u32, owner: Option<u32>, group: Option<u32>| {
        let made = fs::DirBuilder::new().recursive(true).mode(mode).create(path);
        made.and_then(|()| chown(path, owner, group)).map_err(failed(path))
    };
    let (tls_dir, data) = (home.join("tls"), home.join("data"));
    let uid = Some(crate::uids::ETCD);
    directory(home, 0o711, Some(0), Some(0))?;
    directory(&data, 0o700, uid, uid)?;
    let Some(tls) = &etcd.tls_dir else { return Ok(Authority::AsBefore) };
    directory(&tls_dir, 0o750, Some(0), uid)?;
    let before = tls_dir.join(ROOTS_BEFORE);
    let mut authority = if before.exists() { Authority::Another } else { Authority::AsBefore };
    for name in [pki::CA_CERT, pki::CA_CRL, pki::NODE_CERT, pki::NODE_KEY] {
        let (from, to, draft) = (tls.join(name), tls_dir.join(name), tls_dir.join(format!(".{name}.new")));
        let bytes = match fs::read(&from) {
            Err(cause) if name == pki::CA_CRL && cause.kind() == std::io::ErrorKind::NotFound => continue,
            read => read.map_err(failed(&from))?,
        };
        if name == pki::CA_CERT && fs::read(&to).is_ok_and(|there| there != bytes) {
            // Before the copy: a daemon that is killed after it would leave nothing that tells the two apart.
            fs::write(&before, "").map_err(failed(&before))?;
            authority = Authority::Another;
        }
        // A full disk has no room for a copy that is there already.
        if fs::read(&to).is_ok_and(|there| there == bytes) {
            chown(&to, Some(0), uid).map_err(failed(&to))?;
            continue;
        }
        let written = fs::OpenOptions::new().write(true).create(true).truncate(true).mode(0o640).open(&draft);
        written.and_then(|mut file| file.write_all(&bytes)).map_err(failed(&draft))?;
        chown(&draft, Some(0), uid).map_err(failed(&draft))?;
        fs::rename(&draft, &to).map_err(failed(&to))?;
    }
    Ok(authority)
}

fn arguments(config: &Config, etcd: &EtcdChoice, serve: &Serve, home: &Path) -> Vec<String> {
    let scheme = if etcd.tls_dir.is_some() { "https" } else { "http" };
    let url = |host: &str, port: u16| format!("{scheme}://{}", cluster::etcd::Member { host: host.to_owned(), port });
    let urls = |address: IpAddr| {
        let address = address.to_string();
        (url(&address, serve.client_port), url(&address, serve.peer_port))
    };
    let ((client, peer), (listen_client, listen_peer)) = (urls(serve.address), urls(serve.listen));
    let peers: Vec<String> =
        serve.peers.iter().map(|(name, member)| format!("{name}={}", url(&member.host, member.port))).collect();
    let mut arguments = vec![
        format!("--name={}", config.node),
        format!("--data-dir={}", home.join("data").display()),
        format!("--listen-client-urls={listen_client}"),
        format!("--advertise-client-urls={client}"),
        format!("--listen-peer-urls={listen_peer}"),
        format!("--initial-advertise-peer-urls={peer}"),
        format!("--initial-cluster={}", peers.join(",")),
        format!("--initial-cluster-token={}", serve.token),
        format!("--initial-cluster-state={}", if serve.joins { "existing" } else { "new" }),
        // Whoever heard nothing for a while asks first, and does not end a leader that the others hear.
        "--pre-vote".to_owned(),
        "--auto-compaction-mode=revision".to_owned(),
        format!("--auto-compaction-retention={HISTORY}"),
        "--logger=zap".to_owned(),
        "--log-outputs=stderr".to_owned(),
    ];
    if etcd.tls_dir.is_some() {
        for kind in ["", "peer-"] {
            arguments.push(format!("--{kind}cert-file={}", home.join("tls").join(pki::NODE_CERT).display()));
            arguments.push(format!("--{kind}key-file={}", home.join("tls").join(pki::NODE_KEY).display()));
            arguments.push(format!("--{kind}trusted-ca-file={}", home.join("tls").join(pki::CA_CERT).display()));
            arguments.push(format!("--{kind}client-cert-auth"));
        }
        // It looks at the list at each connection; certificates made by hand have none.
        let list = home.join("tls").join(pki::CA_CRL);
        if list.exists() {
            arguments.push(format!("--client-crl-file={}", list.display()));
            arguments.push(format!("--peer-crl-file={}", list.display()));
        }
    }
    arguments
}

/// The process itself, as started by the daemon: becomes etcd.
pub fn become_from_spawn() -> Result<std::convert::Infallible, Problem> {
    let mut spawn = Spawn::from_env()?;
    let text = |value: &Value| value.as_str().map(str::to_owned);
    let program = spawn.options.get("program").and_then(text).ok_or("the spawn record lacks the program")?;
    let arguments = spawn.options.get("arguments").and_then(Value::as_array).ok_or("it lacks the arguments")?;
    let arguments: Vec<String> = arguments.iter().filter_map(text).collect();
    give_up_privileges(Identity { uid: spawn.uid, gid: spawn.gid })?;
    // Whether it serves the engine's client learns; from here on the process is etcd.
    spawn.ready();
    let failed = Command::new(&program).args(&arguments).env_remove(sys::spawn::VARIABLE).exec();
    Err(format!("cannot start {program}: {failed} (Debian: etcd-server)").into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Addresses, Settings};
    use crate::engine::EtcdSettings;

    #[test]
    fn member_listens_at_an_address_of_the_machine_and_tells_others_the_one_that_is_translated_to_it() {
        let said = |listen: &str| {
            let text = format!(
                "node = \"n1\"\nadvertise = \"192.0.2.1\"\n{listen}
                [etcd]\nmembers = [\"192.0.2.1:2379\"]\nserve = {{ peers = {{ n1 = \"192.0.2.1:2380\" }} }}"
            );
            let config = Settings::from_text(Path::new("/x"), &text).unwrap().settle().unwrap();
            let etcd = config.etcd.clone().unwrap();
            let said = arguments(&config, &etcd, etcd.serve.as_ref().unwrap(), Path::new("/etcd"));
            let urls = |kind: &str| {
                let of = said.iter().filter_map(|word| word.strip_prefix(kind)?.strip_suffix(":2380"));
                of.collect::<Vec<_>>().concat()
            };
            (urls("--listen-peer-urls=https://"), urls("--initial-advertise-peer-urls=https://"))
        };
        let (advertised, own) = ("192.0.2.1".to_owned(), "10.0.0.5".to_owned());
        assert_eq!(said("listen = \"10.0.0.5\""), (own, advertised.clone()));
        assert_eq!(said(""), (advertised.clone(), advertised));
    }

    /// A daemon that is killed after it copied the new root finds a member that runs, with the arguments it should have
    /// and the old root in its memory.
    #[test]
    fn member_that_knows_other_roots_is_found_out_until_it_was_ended_whoever_dies_meanwhile() {
        if !rustix::process::geteuid().is_root() {
            eprintln!("SKIPPED: only root gives files away");
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        let (home, tls) = (dir.path().join("etcd"), dir.path().join("tls"));
        fs::create_dir(&tls).unwrap();
        for name in [pki::NODE_CERT, pki::NODE_KEY] {
            fs::write(tls.join(name), name).unwrap();
        }
        let settings: EtcdSettings = toml::from_str("members = [\"10.0.0.2:2379\"]").unwrap();
        let at = Addresses { advertise: [10, 0, 0, 2].into(), listen: [0, 0, 0, 0].into() };
        let etcd = settings.settle("n2", "shop", at, &tls).unwrap();
        let prepared_with = |roots: &str| {
            fs::write(tls.join(pki::CA_CERT), roots).unwrap();
            prepare(&home, &etcd).unwrap() == Authority::Another
        };
        assert!(!prepared_with("old"), "the first start");
        assert!(prepared_with("old, new"));
        assert!(prepared_with("old, new"), "nobody ended the one before");
        forget_roots_before(&home).unwrap();
        assert!(!prepared_with("old, new"));
        assert_eq!(fs::read_to_string(home.join("tls").join(pki::CA_CERT)).unwrap(), "old, new");
    }
}
