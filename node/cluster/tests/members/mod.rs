//! Clusters of real etcd processes, for tests: made in memory, ended and removed when dropped.

#![allow(dead_code, reason = "each test program uses a part")]

pub mod relay;

use std::fs::File;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Condvar, LazyLock, Mutex};
use std::time::{Duration, Instant};

use cluster::Engine;
use cluster::etcd::{EtcdConfig, EtcdEngine, Member, User};
use rcgen::{BasicConstraints, CertificateParams, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair};
use rustix::process::{Pid, Signal, kill_process};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tempfile::TempDir;

/// A member that has not begun to serve by then never will.
const STARTED: Duration = Duration::from_secs(30);
/// Several cases run at a time, each with an etcd of its own.
const AT_A_TIME: usize = 2;
const PASSWORD: &str = "a password";

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Security {
    Plain,
    /// TLS with certificates on both sides, and a user with a password.
    TlsAndUser,
}

pub struct Members {
    pub members: Vec<Etcd>,
    security: Security,
    tls: Option<Tls>,
    dir: TempDir,
    /// Of all, as members are told of each other.
    peers: Vec<String>,
    _place: Place,
}

pub struct Etcd {
    pub address: Member,
    child: Option<Child>,
    arguments: Vec<String>,
    log: PathBuf,
}

/// An authority, and one certificate of it that members and clients show.
struct Tls {
    authority: String,
    certificate: String,
    key: String,
}

/// One of those that may run at a time.
struct Place;

static PLACES: (Mutex<usize>, Condvar) = (Mutex::new(0), Condvar::new());

impl Place {
    fn take() -> Place {
        let mut taken = PLACES.0.lock().unwrap();
        while *taken >= AT_A_TIME {
            taken = PLACES.1.wait(taken).unwrap();
        }
        *taken += 1;
        Place
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        *PLACES.0.lock().unwrap() -= 1;
        PLACES.1.notify_one();
    }
}

/// False, with a word, where there is no etcd.
pub fn is_installed() -> bool {
    let found = ["etcd", "etcdctl", "setpriv"].iter().all(|program| {
        Command::new(program).arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok()
    });
    if !found {
        eprintln!("SKIPPED: there is no etcd (Debian: etcd-server, etcd-client)");
    }
    found
}

impl Members {
    pub fn start(count: usize, security: Security, more: &[&str]) -> Members {
        let place = Place::take();
        let dir = tempfile::tempdir_in("/dev/shm").unwrap();
        let tls = (security == Security::TlsAndUser).then(|| Tls::make(dir.path()));
        // A port that was free may be taken a moment later.
        let started =
            (0..5).find_map(|attempt| start_all(count, &dir.path().join(attempt.to_string()), tls.is_some(), more));
        let members = started.expect("etcd starts");
        let told = members[0].arguments.iter().find_map(|argument| argument.strip_prefix("--initial-cluster="));
        let peers = told.unwrap_or_default().split(',').map(str::to_owned).collect();
        let cluster = Members { members, security, tls, dir, peers, _place: place };
        if security == Security::TlsAndUser {
            cluster.make_user();
        }
        cluster
    }

    pub fn config(&self) -> EtcdConfig {
        let members = self.members.iter().map(|member| member.address.clone()).collect();
        let mut config = EtcdConfig::new(members, "dvs/test");
        config.patience = Duration::from_secs(20);
        config.tls = self.tls.as_ref().map(|tls| tls.client(&tls.authority));
        config.user = (self.security == Security::TlsAndUser)
            .then(|| User { name: "root".to_owned(), password: PASSWORD.to_owned() });
        config
    }

    pub fn open(&self) -> Box<dyn Engine> {
        Box::new(EtcdEngine::open(self.config()).unwrap())
    }

    /// Starts a member that the cluster knows as a learner already, at this address for its peers.
    pub fn start_further(&mut self, peer_url: &str, client_port: u16) {
        let index = self.members.len();
        let of = |own: &str, first: &str| own.replace("m0", first);
        let first = &self.members[0];
        let client = format!("http://127.0.0.1:{client_port}");
        let name = format!("m{index}");
        let known: Vec<&str> = self.peers.iter().map(String::as_str).collect();
        let cluster = format!("--initial-cluster={},{name}={peer_url}", known.join(","));
        let mut arguments: Vec<String> = Vec::new();
        for argument in &first.arguments {
            let kind = argument.split('=').next().unwrap_or_default();
            arguments.push(match kind {
                "--name" | "--data-dir" => of(argument, &name),
                "--listen-client-urls" | "--advertise-client-urls" => format!("{kind}={client}"),
                "--listen-peer-urls" | "--initial-advertise-peer-urls" => format!("{kind}={peer_url}"),
                "--initial-cluster" => cluster.clone(),
                _ => argument.clone(),
            });
        }
        arguments.push("--initial-cluster-state=existing".to_owned());
        let log = first.log.with_file_name(format!("{name}.log"));
        let address = Member { host: "127.0.0.1".to_owned(), port: client_port };
        let mut member = Etcd { address, child: None, arguments, log };
        member.start();
        self.peers.push(format!("{name}={peer_url}"));
        self.members.push(member);
    }

    /// The member that leads.
    pub fn leader(&self) -> usize {
        let until = Instant::now() + STARTED;
        while Instant::now() < until {
            let leads = |index: &usize| self.members[*index].child.is_some() && self.says_it_leads(*index);
            if let Some(leader) = (0..self.members.len()).find(leads) {
                return leader;
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        panic!("nobody leads");
    }

    fn says_it_leads(&self, member: usize) -> bool {
        let Some(said) = self.etcdctl(member, &["endpoint", "status", "-w", "fields"]) else { return false };
        let field =
            |name: &str| said.lines().find_map(|line| line.strip_prefix(name)).map(str::trim).map(str::to_owned);
        field("\"MemberID\" :").is_some_and(|own| field("\"Leader\" :") == Some(own))
    }

    /// What `etcdctl` prints when it asks this member; `None` when it fails.
    pub fn etcdctl(&self, member: usize, arguments: &[&str]) -> Option<String> {
        let user = (self.security == Security::TlsAndUser).then(|| format!("--user=root:{PASSWORD}"));
        self.run_etcdctl(member, user, arguments)
    }

    fn run_etcdctl(&self, member: usize, user: Option<String>, arguments: &[&str]) -> Option<String> {
        let (address, dir) = (&self.members[member].address, self.dir.path().display());
        let mut command = Command::new("etcdctl");
        command.env("ETCDCTL_API", "3").args(["--command-timeout=5s", "--dial-timeout=2s"]).args(user);
        if self.tls.is_some() {
            command.args([
                format!("--cacert={dir}/ca.crt"),
                format!("--cert={dir}/member.crt"),
                format!("--key={dir}/member.key"),
            ]);
        }
        let scheme = if self.tls.is_some() { "https" } else { "http" };
        let output =
            command.arg(format!("--endpoints={scheme}://{address}")).args(arguments).stdin(Stdio::null()).output();
        let output = output.unwrap();
        output.status.success().then(|| String::from_utf8_lossy(&output.stdout).into_owned())
    }

    fn make_user(&self) {
        let add = format!("root:{PASSWORD}");
        for arguments in [&["user", "add", &add][..], &["user", "grant-role", "root", "root"], &["auth", "enable"]] {
            let until = Instant::now() + STARTED;
            while self.run_etcdctl(0, None, arguments).is_none() {
                assert!(Instant::now() < until, "etcdctl {arguments:?} fails");
                std::thread::sleep(Duration::from_millis(100));
            }
        }
    }

    /// Of nodes that belong to another cluster.
    pub fn foreign_tls(&self) -> Arc<rustls::ClientConfig> {
        let other = Tls::make(&self.dir.path().join("other"));
        other.client(&other.authority)
    }

    /// Of a node that trusts the members and that they have no reason to trust.
    pub fn untrusted_tls(&self) -> Arc<rustls::ClientConfig> {
        let own = self.tls.as_ref().expect("a cluster with certificates");
        Tls::make(&self.dir.path().join("untrusted")).client(&own.authority)
    }
}

/// `None` when a port was taken.
fn start_all(count: usize, dir: &Path, tls: bool, more: &[&str]) -> Option<Vec<Etcd>> {
    let port = || TcpListener::bind("127.0.0.1:0").unwrap();
    // Held together, so that none is given twice.
    let held: Vec<_> = (0..count).map(|_| (port(), port())).collect();
    let ports: Vec<_> =
        held.iter().map(|(a, b)| (a.local_addr().unwrap().port(), b.local_addr().unwrap().port())).collect();
    drop(held);
    let scheme = if tls { "https" } else { "http" };
    let peer = |index: usize| format!("{scheme}://127.0.0.1:{}", ports[index].1);
    let all: Vec<String> = (0..count).map(|index| format!("m{index}={}", peer(index))).collect();
    let mut members: Vec<Etcd> = (0..count)
        .map(|index| {
            let client = format!("{scheme}://127.0.0.1:{}", ports[index].0);
            let data = dir.join(format!("m{index}"));
            std::fs::create_dir_all(&data).unwrap();
            let mut arguments = vec![
                format!("--name=m{index}"),
                format!("--data-dir={}", data.display()),
                format!("--listen-client-urls={client}"),
                format!("--advertise-client-urls={client}"),
                format!("--listen-peer-urls={}", peer(index)),
                format!("--initial-advertise-peer-urls={}", peer(index)),
                format!("--initial-cluster={}", all.join(",")),
                "--heartbeat-interval=50".to_owned(),
                "--election-timeout=500".to_owned(),
                "--logger=zap".to_owned(),
                "--log-outputs=stderr".to_owned(),
            ];
            arguments.extend(more.iter().map(|argument| (*argument).to_owned()));
            if tls {
                // Beside the directories of the attempts.
                let made = dir.parent().unwrap().display();
                for kind in ["", "peer-"] {
                    arguments.push(format!("--{kind}cert-file={made}/member.crt"));
                    arguments.push(format!("--{kind}key-file={made}/member.key"));
                    arguments.push(format!("--{kind}trusted-ca-file={made}/ca.crt"));
                    arguments.push(format!("--{kind}client-cert-auth"));
                }
            }
            let address = Member { host: "127.0.0.1".to_owned(), port: ports[index].0 };
            Etcd { address, child: None, arguments, log: dir.join(format!("m{index}.log")) }
        })
        .collect();
    members.iter_mut().for_each(Etcd::start);
    members.iter_mut().all(Etcd::serves).then_some(members)
}

/// What a thread's death shall kill must not be the child of a thread that ends before the test does.
fn spawn_by_a_lasting_thread(command: Command) -> Child {
    type Wish = (Command, Sender<Child>);
    static SPAWNER: LazyLock<Sender<Wish>> = LazyLock::new(|| {
        let (wishes, wished) = channel::<Wish>();
        std::thread::spawn(move || {
            for (mut command, child) in wished {
                child.send(command.spawn().unwrap()).unwrap();
            }
        });
        wishes
    });
    let (child, spawned) = channel();
    SPAWNER.send((command, child)).unwrap();
    spawned.recv().unwrap()
}

impl Etcd {
    pub fn start(&mut self) {
        let log = File::options().append(true).create(true).open(&self.log).unwrap();
        // It ends with the test, however that ends.
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "KILL", "etcd"]).args(&self.arguments).stdin(Stdio::null()).stdout(Stdio::null());
        command.stderr(log);
        self.child = Some(spawn_by_a_lasting_thread(command));
    }

    /// Waits until it listens; false when it ended.
    pub fn serves(&mut self) -> bool {
        let until = Instant::now() + STARTED;
        while Instant::now() < until {
            if self.child.as_mut().is_none_or(|child| child.try_wait().unwrap().is_some()) {
                return false;
            }
            if std::net::TcpStream::connect((self.address.host.as_str(), self.address.port)).is_ok() {
                return true;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        panic!("etcd does not listen: {}", std::fs::read_to_string(&self.log).unwrap_or_default());
    }

    pub fn listens_to_peers_at(&self, url: &str) -> bool {
        self.arguments.iter().any(|argument| argument.strip_prefix("--listen-peer-urls=") == Some(url))
    }

    /// By itself.
    pub fn has_ended(&mut self) -> bool {
        self.child.as_mut().is_none_or(|child| child.try_wait().unwrap().is_some())
    }

    pub fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }

    /// Another, empty cluster at the same address.
    pub fn begin_anew(&mut self) {
        self.kill();
        let data = self.arguments.iter().find_map(|argument| argument.strip_prefix("--data-dir=")).unwrap();
        std::fs::remove_dir_all(data).unwrap();
        std::fs::create_dir(data).unwrap();
        self.arguments.push("--initial-cluster-token=anew".to_owned());
        self.start();
    }

    pub fn stop(&self) {
        self.signal(Signal::STOP);
    }

    pub fn go_on(&self) {
        self.signal(Signal::CONT);
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(self.child.as_ref().expect("it runs")), signal).unwrap();
    }
}

impl Drop for Etcd {
    fn drop(&mut self) {
        self.kill();
    }
}

impl Tls {
    /// Also as files: `ca.crt`, `member.crt`, `member.key`.
    fn make(dir: &Path) -> Tls {
        let mut authority = CertificateParams::new(Vec::new()).unwrap();
        authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let authority_key = KeyPair::generate().unwrap();
        let authority_pem = authority.self_signed(&authority_key).unwrap().pem();
        let issuer = Issuer::new(authority, authority_key);
        let mut params = CertificateParams::new(vec!["127.0.0.1".to_owned()]).unwrap();
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &issuer).unwrap().pem();
        let tls = Tls { authority: authority_pem, certificate, key: key.serialize_pem() };
        std::fs::create_dir_all(dir).unwrap();
        for (name, text) in [("ca.crt", &tls.authority), ("member.crt", &tls.certificate), ("member.key", &tls.key)] {
            std::fs::write(dir.join(name), text).unwrap();
        }
        tls
    }

    fn client(&self, trusted: &str) -> Arc<rustls::ClientConfig> {
        let mut roots = rustls::RootCertStore::empty();
        roots.add(CertificateDer::from_pem_slice(trusted.as_bytes()).unwrap()).unwrap();
        let own = vec![CertificateDer::from_pem_slice(self.certificate.as_bytes()).unwrap()];
        let key = PrivateKeyDer::from_pem_slice(self.key.as_bytes()).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config =
            rustls::ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
        Arc::new(config.with_root_certificates(roots).with_client_auth_cert(own, key).unwrap())
    }
}
