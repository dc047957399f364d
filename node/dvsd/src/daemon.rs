//! Start and stop of the daemon.
//!
//! Order of the start: directories, which no other daemon may have taken, and logs, this node's member of the engine,
//! engine, certificates, listening sockets (their ports are registered), node record, shelf, broker, proxy, follower
//! and workers, lease, and last the API: who can ask gets answers. The stop goes backwards and ends nothing that
//! belongs to a container.

use std::collections::HashSet;
use std::fs;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use abi::NodeId;
use broker::limits::UNMANNED_MAX;
use broker::{Broker, BrokerConfig};
use cluster::Engine;
use cluster::follow::Follower;
use cluster::known::Answers;
use mgmt_api::Capacity;
use parking_lot::{Mutex, RwLock};
use pki::{Door, NodeCredentials};
use proxy_host::control::CredentialTexts;
use tokio::net::{TcpListener, UnixListener};
use tokio::signal::unix::{SignalKind, signal};
use tokio_rustls::TlsAcceptor;

use crate::api::serve::{self, Knowledge};
use crate::api::{self, Api, remote};
use crate::aside;
use crate::claim::{Claim, ClaimError};
use crate::config::Config;
use crate::context::{Context, Ending};
use crate::descriptors;
use crate::directory::EndpointDirectory;
use crate::duties::{Duties, REPORT_LIMIT};
use crate::engine::{self, EtcdChoice, Opened};
use crate::farewell;
use crate::identity::{self, IdentityError};
use crate::joining::authority::{self, AuthorityError};
use crate::joining::certificates::{self, Certificates, Users};
use crate::judging::Court;
use crate::ledger;
use crate::level;
use crate::member::{self, Complaint, MemberError};
use crate::metrics::{Measured, Tally};
use crate::names::NameServer;
use crate::news::News;
use crate::people::audit::Audit;
use crate::presence::{self, Ports, Presence, PresenceError};
use crate::proxyctl::{self, ProxyControl};
use crate::quorum::{self, EngineFile, Members, QuorumError};
use crate::reconcile::Reconciler;
use crate::records::{self, NodeHealth};
use crate::registry;
use crate::service_manager::ServiceManager;
use crate::services::Services;
use crate::shelf::{self, Shelving};
use crate::spawn;
use crate::state;
use crate::supervise::{self, Watching};

/// Threads of the API: it copies streams and answers questions, the work is elsewhere.
const API_THREADS: usize = 2;
/// Whatever is set.
const UNMANNED_AT_MOST: Duration = Duration::from_secs(3600);
/// How often the node tells the cluster what is not well, and looks for deletions nobody finishes.
const REPORT_EVERY: Duration = Duration::from_secs(2);
/// As long as something is wrong, others learn soon that it is no more.
const REPORT_EVERY_WITH_PROBLEMS: Duration = Duration::from_millis(100);

/// Below the state directory, where `dvs cluster init` leaves the authority for the first daemon.
const AUTHORITY_DIR: &str = "authority";

/// How often the node looks what it has for containers: placing asks for what is free now besides.
const MEASURE_EVERY: Duration = Duration::from_secs(10);

#[derive(Debug, thiserror::Error)]
pub enum DaemonError {
    #[error("cannot make the directory {}", .path.display())]
    Directory {
        path: PathBuf,
        #[source]
        cause: std::io::Error,
    },
    #[error(transparent)]
    Claim(#[from] ClaimError),
    #[error("the limit of open files cannot be raised")]
    Descriptors(#[source] std::io::Error),
    #[error("the cluster engine cannot be opened")]
    Engine(#[source] cluster::EngineError),
    #[error("the cluster engine cannot be opened")]
    Open(#[from] engine::OpenError),
    #[error("this node's member of the cluster engine cannot be looked after")]
    Member(#[from] MemberError),
    #[error("the members of the cluster engine cannot be looked after")]
    Quorum(#[from] QuorumError),
    #[error("this node was taken out of the cluster")]
    Removed,
    #[error("the others decided that this node was lost")]
    Fenced,
    #[error("the cluster's authority cannot be used")]
    Authority(#[from] AuthorityError),
    #[error("this release of dvs cannot be in the cluster as it is")]
    Level(#[from] level::LevelError),
    #[error("the cluster engine is not this node's")]
    Identity(#[from] IdentityError),
    #[error("the cluster engine was begun anew")]
    Replaced,
    #[error("another release lies where this one lay")]
    Upgraded,
    #[error("the node's certificates cannot be used")]
    Certificates(#[from] pki::PkiError),
    #[error("the API cannot listen at {address}")]
    Listen {
        address: String,
        #[source]
        cause: std::io::Error,
    },
    #[error(transparent)]
    Socket(#[from] serve::ListenError),
    #[error(transparent)]
    Presence(#[from] PresenceError),
    #[error(transparent)]
    Proxy(#[from] proxyctl::ProxyError),
    #[error(transparent)]
    Shelf(#[from] shelf::StartError),
    #[error("the broker did not start")]
    Broker(#[from] broker::BrokerError),
    #[error("a thread or runtime could not be started")]
    Thread(#[source] std::io::Error),
}

/// Runs until SIGTERM or SIGINT.
pub fn run(config: Config) -> Result<(), DaemonError> {
    descriptors::allow_most().map_err(DaemonError::Descriptors)?;
    let manager = Arc::new(ServiceManager::from_env());
    manager.say_status("preparing");
    make_directories(&config)?;
    // Before anything in them is looked at, the member of the engine first of all.
    let _claim = Claim::take(&[&config.state_dir, &config.run_dir])?;
    let credentials = certificates::open(&config.tls_dir)?;
    let etcd = engine::chosen(&config).map_err(engine::OpenError::Settings)?;
    let for_etcd = credentials_for_etcd(etcd.as_ref(), &credentials)?;
    manager.say_status("opening the cluster engine");
    let complaint = Complaint::default();
    let member = member::look_after(&config, etcd.as_ref(), &complaint)?;
    let tally = Arc::new(Tally::default());
    let Opened { engine, etcd: etcd_engine } = engine::open(&config, etcd.as_ref(), for_etcd.as_ref())?;
    let engine: Arc<dyn Engine> = Arc::new(Measured::new(engine, &tally));
    // Before anything is read or written there: it may not be this cluster's.
    let identity = identity::confirm(&*engine, &config)?;
    level::check(&*engine, &level::Newcomer::own(&config.node))?;
    authority::take_over(&*engine, &config.state_dir.join(AUTHORITY_DIR), &config.node, &credentials.facts())?;
    manager.say_status("taking over what runs");
    let acceptor = TlsAcceptor::from(credentials.server_config(Door::Anyone)?);
    let connector = remote::connector(credentials.client_config()?);
    let socket = serve::bind_unix(&config.socket)?;
    let api_listener = listen(&config)?;
    let sockets = proxyctl::listen(&config)?;
    let ports = Ports {
        api: port_of(&api_listener),
        proxy: sockets.first().tcp_port(),
        proxy_quic: sockets.first().quic_port(),
        proxy_mac: sockets.first().mac(),
        proxy_tipc: sockets.first().tipc(),
    };

    let node = presence::register(&*engine, &config, ports.clone())?;
    ledger::adopt(&*engine).map_err(DaemonError::Engine)?;
    let capacity = ledger::publish(&*engine, &config, None).map_err(DaemonError::Engine)?;
    let own = NodeId(node.id);
    let (shelving, shelf) = Shelving::open(&config)?;
    // Of an earlier daemon's endpoints those stay that the broker takes back.
    let kept: HashSet<(u32, u32)> = shelf.local_endpoints().map(|(dc, endpoint)| (dc.0, endpoint.number())).collect();
    registry::sweep(&*engine, own, |dc, endpoint| kept.contains(&(dc, endpoint))).map_err(DaemonError::Engine)?;
    let (directory, broker_side) = EndpointDirectory::start(&engine, own).map_err(DaemonError::Thread)?;
    let members = records::members(&*engine).map_err(DaemonError::Engine)?;
    // Before anybody opens a channel: by which pair it goes both nodes compute.
    directory.learned_members(&members);
    let unmanned_max = links_outlive_proxies(&config);
    let config_of_broker =
        BrokerConfig { node: own, directory: Box::new(broker_side), shelf: Some(shelf), unmanned_max };
    let broker = Arc::new(Broker::start(config_of_broker)?);
    directory.attach(&broker);
    directory.remember(&broker.snapshot()?);
    let context = Arc::new(Context {
        proxy: ProxyControl::new(config.pairs).map_err(DaemonError::Thread)?,
        engine: Arc::clone(&engine),
        answers: Answers::new(Arc::clone(&engine)),
        node,
        broker,
        directory,
        desks: Default::default(),
        hatches: Default::default(),
        names_problem: Default::default(),
        presence: Mutex::new(None),
        certificates: Mutex::new(None),
        quorum: Mutex::new(None),
        complaint,
        etcd,
        // Whoever tells of nodes before all is read tells of these.
        members: RwLock::new(members.clone()),
        telling: Mutex::default(),
        observed: Default::default(),
        changes: tokio::sync::watch::Sender::new(0),
        duties: Duties::default(),
        service_manager: Arc::clone(&manager),
        tally,
        requests: Default::default(),
        checked: Default::default(),
        ending: tokio::sync::watch::Sender::new(None),
        verdicts: Default::default(),
        renewal: Default::default(),
        service_bells: Default::default(),
        court: Mutex::new(None),
        identity,
        people: Default::default(),
        audit: Audit::start(&config.state_dir.join("audit")).map_err(DaemonError::Thread)?,
        config,
    });
    let watching = shelving.watch(&context).map_err(DaemonError::Thread)?;
    // Each proxy takes channels over at once, and has to know the nodes that they lead to.
    context.proxy.set_peers(&members, &context.config);
    let for_proxy = Arc::clone(&context);
    context.proxy.start(&context.config, &context.node, sockets, move |pair| for_proxy.broker.proxy_socket_of(pair))?;

    let reconciler = Arc::new(Reconciler::new(&context));
    let (also, workers) = (Arc::clone(&reconciler), Arc::downgrade(&reconciler));
    context.renewal.wakes(move || workers.upgrade().into_iter().for_each(|workers| workers.report_again()));
    let managed = context.etcd.as_ref().and_then(|etcd| etcd.managed.as_ref());
    let besides = managed.and_then(|managed| quorum::offer(&context.config, managed)).into_iter().collect();
    let presence = Presence::start(&engine, &context.config.node, besides, move || also.report_again())?;
    *context.presence.lock() = Some(presence);
    let member = Arc::new(Mutex::new(member));
    if let (Some(managed), Some(etcd_engine)) = (managed, &etcd_engine) {
        let file = EngineFile::read(&context.config.state_dir).map_err(QuorumError::File)?;
        let running = (member.lock().take(), Arc::clone(&context.complaint));
        let members = Members::start(&context.config, managed, (etcd_engine, &context.answers.mirror), file, running);
        *context.quorum.lock() = Some(members?);
    }
    let others = for_etcd.into_iter().filter(|other| !Arc::ptr_eq(other, &credentials)).collect();
    let (also, of_member) = (Arc::downgrade(&context), Arc::clone(&member));
    let asked = Arc::downgrade(&context);
    let users = Users {
        changed: Box::new(move || certificates_changed(&also, &of_member)),
        are_current: Box::new(move || {
            let context = asked.upgrade();
            context.is_some_and(|context| context.quorum.lock().as_ref().is_none_or(Members::has_new_certificates))
        }),
    };
    let kept = Certificates::start(&engine, &context.config, &credentials, others, users);
    *context.certificates.lock() = Some(kept.map_err(DaemonError::Thread)?);
    let mut news = News::new(&context, &reconciler);
    let follower = Follower::start(&engine, "/", move |change| news.take(change)).map_err(DaemonError::Thread)?;

    let workers = Arc::downgrade(&reconciler);
    let judged = move || workers.upgrade().into_iter().for_each(|workers| workers.look_again());
    *context.court.lock() = Some(Court::start(&context, etcd_engine, judged).map_err(DaemonError::Thread)?);

    let services = Services::start(&context).map_err(DaemonError::Thread)?;
    let names = NameServer::start(&context).map_err(DaemonError::Thread)?;

    tracing::info!(
        node = context.config.node,
        id = own.0,
        epoch = context.node.epoch,
        api = ports.api,
        proxy = ports.proxy,
        "serving"
    );
    let remote =
        remote::Remote { connector, node: context.config.node.clone(), cluster: context.config.cluster.clone() };
    let api = Arc::new(Api::new(Arc::clone(&context), remote));
    let served = serve_api(api, socket, api_listener, (acceptor, credentials), capacity);

    manager.say_stopping();
    manager.say_status("stopping; containers go on");
    tracing::info!("stopping; containers go on");
    drop(names);
    drop(services);
    drop(follower);
    reconciler.stop();
    context.hatches.stop();
    context.desks.stop();
    context.proxy.stop();
    drop(watching);
    drop(context.court.lock().take());
    drop(context.certificates.lock().take());
    let quorum = context.quorum.lock().take();
    if let (Err(DaemonError::Removed), Some(quorum)) = (&served, &quorum) {
        quorum.leave();
    }
    drop(quorum);
    drop(context.presence.lock().take());
    drop(member.lock().take());
    context.audit.stop();
    let _ = fs::remove_file(&context.config.socket);
    served
}

/// The cluster's own, unless etcd has an authority of its own.
fn credentials_for_etcd(
    etcd: Option<&EtcdChoice>,
    own: &Arc<NodeCredentials>,
) -> Result<Option<Arc<NodeCredentials>>, pki::PkiError> {
    let Some(dir) = etcd.and_then(|etcd| etcd.tls_dir.as_ref()) else { return Ok(None) };
    if dir == own.dir() { Ok(Some(Arc::clone(own))) } else { certificates::open(dir).map(Some) }
}

/// All who have copies get new ones: links and the member of etcd.
fn certificates_changed(context: &Weak<Context>, member: &Mutex<Option<Watching>>) {
    let Some(context) = context.upgrade() else { return };
    match CredentialTexts::read(&context.config.tls_dir) {
        Ok(texts) => context.proxy.set_credentials(texts),
        Err(error) => tracing::error!(error = supervise::causes(&error), "links keep their certificates"),
    }
    if let Some(quorum) = &*context.quorum.lock() {
        quorum.certificates_changed();
    } else if context.etcd.as_ref().is_some_and(|etcd| etcd.serve.is_some()) {
        let mut member = member.lock();
        drop(member.take());
        match member::look_after(&context.config, context.etcd.as_ref(), &context.complaint) {
            Ok(watching) => *member = watching,
            Err(error) => {
                tracing::error!(error = supervise::causes(&error), "the member of etcd cannot be looked after")
            }
        }
    }
}

pub fn make_directories(config: &Config) -> Result<(), DaemonError> {
    let log = config.state_dir.join("log");
    let mut seen = HashSet::new();
    let (run_dcs, state_dcs) = (config.run_dir.join("dcs"), config.state_dir.join("dcs"));
    let dirs = [&config.state_dir, &config.run_dir, &run_dcs, &state_dcs];
    for path in dirs.into_iter().filter(|path| seen.insert((*path).clone())) {
        let made = fs::DirBuilder::new().recursive(true).mode(0o755).create(path);
        made.map_err(|cause| DaemonError::Directory { path: path.clone(), cause })?;
    }
    state::make_private(&log).map_err(|cause| DaemonError::Directory { path: log, cause })?;
    for path in [&config.socket, &config.engine] {
        let parent = path.parent().unwrap_or(Path::new("/"));
        fs::create_dir_all(parent).map_err(|cause| DaemonError::Directory { path: parent.to_owned(), cause })?;
    }
    Ok(())
}

fn listen(config: &Config) -> Result<std::net::TcpListener, DaemonError> {
    let address = std::net::SocketAddr::new(config.listen, config.api_port);
    let failed = |cause| DaemonError::Listen { address: address.to_string(), cause };
    let listener = std::net::TcpListener::bind(address).map_err(failed)?;
    listener.set_nonblocking(true).map_err(failed)?;
    Ok(listener)
}

/// Peers keep a silent link for so long; one whose proxy is being replaced must not be given up earlier.
fn links_outlive_proxies(config: &Config) -> Duration {
    let down = config.proxy_options.get("down_ms").and_then(serde_json::Value::as_u64).unwrap_or_default();
    Duration::from_millis(down).clamp(UNMANNED_MAX, UNMANNED_AT_MOST)
}

fn port_of(listener: &std::net::TcpListener) -> u16 {
    listener.local_addr().map_or(0, |address| address.port())
}

fn serve_api(
    api: Arc<Api>,
    socket: std::os::unix::net::UnixListener,
    listener: std::net::TcpListener,
    (acceptor, credentials): (TlsAcceptor, Arc<NodeCredentials>),
    capacity: Capacity,
) -> Result<(), DaemonError> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(API_THREADS)
        .thread_name("api")
        .enable_all()
        .build()
        .map_err(DaemonError::Thread)?;
    let context = Arc::clone(&api.context);
    let cluster: Arc<str> = context.config.cluster.as_str().into();
    let router = api::router(&api);
    let result = runtime.block_on(async move {
        let socket = UnixListener::from_std(socket).map_err(DaemonError::Thread)?;
        let listener = TcpListener::from_std(listener).map_err(DaemonError::Thread)?;
        let mut ending = context.ending.subscribe();
        let mut terminate = signal(SignalKind::terminate()).map_err(DaemonError::Thread)?;
        let mut interrupt = signal(SignalKind::interrupt()).map_err(DaemonError::Thread)?;
        context.hatches.serve(&router);
        tokio::spawn(serve::serve_unix(socket, router.clone()));
        tokio::spawn(serve::serve_tls(listener, acceptor, Knowledge { credentials, cluster }, router));
        tokio::spawn(report(Arc::clone(&context), capacity));
        tokio::spawn(tell_service_manager(context));
        tokio::select! {
            _ = terminate.recv() => (),
            _ = interrupt.recv() => (),
            why = ending.wait_for(Option::is_some) => return Err(match why.ok().and_then(|why| *why) {
                Some(Ending::Fenced) => DaemonError::Fenced,
                Some(Ending::Replaced) => DaemonError::Replaced,
                Some(Ending::Upgraded) => DaemonError::Upgraded,
                Some(Ending::Removed) | None => DaemonError::Removed,
            }),
        }
        Ok(())
    });
    // Calls that still wait for the kernel do not hold up the stop.
    runtime.shutdown_background();
    result
}

/// Serving, from here on: the manager hears so, and goes on hearing it as long as it is true.
async fn tell_service_manager(context: Arc<Context>) {
    context.service_manager.say_ready();
    let Some(pulse) = context.service_manager.pulse() else { return };
    let mut before = Vec::new();
    loop {
        let problems = context.duties.problems();
        if problems.is_empty() {
            context.service_manager.say_alive();
        } else if problems != before {
            tracing::error!(?problems, "the daemon makes no progress; the service manager hears no more of it");
        }
        before = problems;
        tokio::time::sleep(pulse).await;
    }
}

async fn report(context: Arc<Context>, mut capacity: Capacity) {
    let mut before = None;
    let mut measured = Instant::now();
    loop {
        let context = Arc::clone(&context);
        let said = before.clone();
        let measures = measured.elapsed() >= MEASURE_EVERY;
        let reported = tokio::task::spawn_blocking(move || {
            let _under_way = context.duties.begin("report of the node's health", REPORT_LIMIT);
            spawn::bound_own_log();
            let capacity = if measures { measure(&context, capacity) } else { capacity };
            let checks = api::checks(&context);
            let problems: Vec<String> = checks.iter().flat_map(|check| check.problems.clone()).collect();
            *context.checked.lock() = checks;
            let unreachable = api::unreachable_since(&context, said);
            let is_well = problems.is_empty() && unreachable.is_empty();
            let pause = if is_well { REPORT_EVERY } else { REPORT_EVERY_WITH_PROBLEMS };
            context.service_manager.say_status(&in_words(&context, &problems));
            let health = NodeHealth { problems, unreachable };
            presence::report(&context.presence, health.clone());
            let known = context.member(&context.config.node);
            if let Err(error) = presence::follow_ipv6(&*context.engine, &context.config, known) {
                tracing::warn!(%error, "cannot say what this node has of IPv6");
            }
            if let Err(error) = level::raise(&*context.engine, versions::RECORDS.speaks) {
                tracing::debug!(%error, "cannot look whether the cluster's level can rise");
            }
            if let Err(error) = farewell::finish_deletions(&*context.engine, &*context.answers.mirror) {
                tracing::warn!(%error, "cannot look after deleted containers");
            }
            if is_well {
                aside::forget_older(&context);
            }
            (pause, Some(health), capacity)
        });
        let pause;
        (pause, before, capacity) = reported.await.unwrap_or_else(|error| {
            tracing::error!(%error, "the node's health could not be reported");
            (REPORT_EVERY, None, capacity)
        });
        if measures {
            measured = Instant::now();
        }
        tokio::time::sleep(pause).await;
    }
}

/// For who looks at the service.
fn in_words(context: &Context, problems: &[String]) -> String {
    let (node, cluster) = (&context.config.node, &context.config.cluster);
    let what = match problems {
        [] => "well".to_owned(),
        [one] => one.clone(),
        [first, more @ ..] => format!("{first} (and {} more: dvs doctor)", more.len()),
    };
    format!("node {node} of cluster {cluster}: {what}")
}

fn measure(context: &Context, said: Capacity) -> Capacity {
    ledger::publish(&*context.engine, &context.config, Some(said)).unwrap_or_else(|error| {
        tracing::warn!(%error, "cannot tell what this node has for containers");
        said
    })
}
