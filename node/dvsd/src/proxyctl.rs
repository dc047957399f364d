//! The node's proxies: started, told who the other nodes are, asked how their links are. One for each pair; what is
//! said of a node sums them up.
//!
//! For each one thread owns the process and its control socket. Where the proxy listens and what is dialled:
//! `transports`. A proxy left by an earlier daemon holds a connection to a broker that is gone; it is replaced.
//!
//! Lock order: `Shared` has one mutex, held for assignments only.

mod conversation;
mod links;

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use abi::PairId;
use abi::limits::PAIRS_MAX;
use mgmt_api::{LinkInfo, LinkState};
use parking_lot::Mutex;
use proxy_host::control::{self, CredentialTexts, FromProxy, PeerAddress, Said};
use serde_json::{Map, Value, json};
use sys::launch::PidNamespace;

use crate::config::Config;
use crate::reconcile::plan::Standing;
use crate::records::NodeRecord;
use crate::spawn::Role;
use crate::state::StateError;
use crate::supervise::{OnAdoption, Problem, Supervised};
use crate::transports::{self, AllSockets, ListenError, Sockets};
use crate::waiting;
use conversation::{ASK_EVERY, ASK_OFTEN, Conversation, Topics};

const _: () = assert!(PAIRS_MAX as usize <= sys::presence::SLOTS);

const NAME: &str = "proxy";
/// Host uid and gid of proxies: below those of containers' servers.
const UID: u32 = crate::uids::PROXY;
/// What is taken of one that talks all the time before it is looked after again.
const HEARD_AT_ONCE_MAX: usize = 16;
/// Connections of peers are cut; they come back to the next proxy.
const GRACE: Duration = Duration::from_secs(1);

#[derive(Debug, thiserror::Error)]
pub enum ProxyError {
    #[error(transparent)]
    Listen(#[from] ListenError),
    #[error("the proxy of an earlier daemon cannot be ended")]
    Earlier(#[from] StateError),
    #[error("no thread or descriptor for the proxy")]
    Thread(#[source] std::io::Error),
}

/// Takes the ports and the other places, after ending the proxies that an earlier daemon left. It may have had more.
pub fn listen(config: &Config) -> Result<AllSockets, ProxyError> {
    let (run_dir, log_dir) = dirs(config);
    for pair in PairId::all(PAIRS_MAX) {
        Supervised::adopt(&name(pair), &run_dir, &log_dir, OnAdoption::MustBeReplaced)?.end(GRACE)?;
    }
    Ok(AllSockets::open(config, UID)?)
}

/// Of a process: `proxy`, `proxy-1` and so on.
fn name(pair: PairId) -> String {
    match pair {
        PairId::FIRST => NAME.to_owned(),
        pair => format!("{NAME}-{pair}"),
    }
}

/// Where the node's proxies say that it is heard.
pub fn presence(config: &Config) -> PathBuf {
    config.run_dir.join("presence")
}

fn dirs(config: &Config) -> (std::path::PathBuf, std::path::PathBuf) {
    (config.run_dir.clone(), config.state_dir.join("log"))
}

/// All proxies of the node.
#[derive(Clone)]
pub struct ProxyControl {
    proxies: Vec<OneControl>,
}

#[derive(Clone)]
struct OneControl {
    pair: PairId,
    shared: Arc<Shared>,
    thread: Arc<Mutex<Option<JoinHandle<()>>>>,
}

struct Shared {
    inner: Mutex<Inner>,
    bell: OwnedFd,
}

#[derive(Default)]
struct Inner {
    /// `None`: nobody has said yet which nodes there are.
    peers: Option<Vec<PeerAddress>>,
    /// Newer than those that a proxy may have read at its start.
    credentials: Option<Arc<CredentialTexts>>,
    /// How many nodes there are beside this one.
    others: usize,
    /// Whom this node accuses, or may yet.
    accused: BTreeSet<String>,
    links: Vec<LinkInfo>,
    /// [`FromProxy::there_ns`]
    there_ns: Option<u64>,
    /// Somebody has to know that as it is now.
    is_hurried: bool,
    problem: Option<String>,
    /// What it says that it does not do, or what cannot be made of its words.
    complaint: Option<String>,
    /// Since when it answers nothing although it runs.
    silent_since: Option<Instant>,
    /// Nodes that cannot be dialled, for people.
    cut_off: Option<String>,
    stopping: bool,
    /// Called when the state of a link is another one.
    on_news: Option<Arc<dyn Fn() + Send + Sync>>,
}

impl Inner {
    fn pause(&self) -> Duration {
        if self.is_hurried { ASK_OFTEN } else { ASK_EVERY }
    }
}

impl ProxyControl {
    pub fn new(pairs: u8) -> std::io::Result<ProxyControl> {
        let proxies: Result<_, _> = PairId::all(pairs).map(OneControl::new).collect();
        Ok(ProxyControl { proxies: proxies? })
    }

    /// Starts looking after the processes. `broker` gives each its connection.
    pub fn start(
        &self,
        config: &Config,
        node: &NodeRecord,
        sockets: AllSockets,
        broker: impl Fn(PairId) -> Result<OwnedFd, broker::BrokerError> + Clone + Send + 'static,
    ) -> Result<(), ProxyError> {
        for (proxy, (pair, sockets)) in self.proxies.iter().zip(sockets.into_pairs()) {
            let broker = broker.clone();
            proxy.start(config, node, sockets, move || broker(pair))?;
        }
        Ok(())
    }

    /// All other nodes.
    pub fn set_peers(&self, members: &BTreeMap<String, NodeRecord>, config: &Config) {
        for proxy in &self.proxies {
            let (mut peers, mut cut_off) = (Vec::new(), Vec::new());
            for member in members.values().filter(|member| member.name != config.node) {
                if proxy.pair.number() >= transports::pairs_with(config, member) {
                    continue;
                }
                match transports::address(config, member, proxy.pair) {
                    Some(address) => peers.push(address),
                    None => cut_off.push(member.name.as_str()),
                }
            }
            let cut_off = (!cut_off.is_empty()).then(|| format!("no transport in common with {}", cut_off.join(", ")));
            let others = members.keys().filter(|name| **name != config.node).count();
            proxy.set_peers(peers, others, cut_off);
        }
    }

    /// Is called, by threads that must not wait, when the state of a link is another one.
    pub fn on_news(&self, call: impl Fn() + Send + Sync + 'static) {
        let call: Arc<dyn Fn() + Send + Sync> = Arc::new(call);
        for proxy in &self.proxies {
            proxy.shared.inner.lock().on_news = Some(Arc::clone(&call));
        }
    }

    /// Connections that are made from now on show and believe these.
    pub fn set_credentials(&self, texts: CredentialTexts) {
        let texts = Arc::new(texts);
        for proxy in &self.proxies {
            proxy.shared.inner.lock().credentials = Some(Arc::clone(&texts));
            sys::eventfd::signal(&proxy.shared.bell);
        }
    }

    /// Of each node all links, one after the other.
    pub fn links(&self) -> Vec<LinkInfo> {
        let mut links: Vec<LinkInfo> = self.proxies.iter().flat_map(OneControl::links).collect();
        let mut order: Vec<String> = Vec::new();
        for link in &links {
            if !order.contains(&link.peer) {
                order.push(link.peer.clone());
            }
        }
        links.sort_by_key(|link| (order.iter().position(|peer| *peer == link.peer), link.pair));
        links
    }

    /// What the proxies know of each peer: a node is reached as long as it is by one link. Nothing while there is no
    /// proxy.
    pub fn link_states(&self) -> BTreeMap<String, LinkState> {
        links::best_of_each(&self.links())
    }

    /// The last moment at which this node surely was there, by its monotonic clock in nanoseconds: half of the others
    /// vouch for it. Of several proxies the one that knows most.
    pub fn there_ns(&self) -> Option<u64> {
        self.proxies.iter().filter_map(|proxy| proxy.shared.inner.lock().there_ns).max()
    }

    /// Whom this node accuses of being lost, or may yet: nothing that it hears of them is vouched for, nor counts.
    pub fn accuse(&self, accused: &BTreeSet<String>) {
        for proxy in &self.proxies {
            let mut inner = proxy.shared.inner.lock();
            if inner.accused != *accused {
                inner.accused.clone_from(accused);
                drop(inner);
                sys::eventfd::signal(&proxy.shared.bell);
            }
        }
    }

    /// Whether [`ProxyControl::there_ns`] has to be as it is now.
    pub fn hurry(&self, is_hurried: bool) {
        for proxy in &self.proxies {
            let was = std::mem::replace(&mut proxy.shared.inner.lock().is_hurried, is_hurried);
            if is_hurried && !was {
                sys::eventfd::signal(&proxy.shared.bell);
            }
        }
    }

    /// Why the proxies are not well.
    pub fn problem(&self) -> Option<String> {
        let of_one = self.proxies.iter().find_map(|proxy| {
            let problem = proxy.problem()?;
            Some(if proxy.pair == PairId::FIRST { problem } else { format!("pair {}: {problem}", proxy.pair) })
        });
        of_one.or_else(|| links::half_reached(&self.links()))
    }

    /// Ends the threads; the proxies go on and serve their channels.
    pub fn stop(&self) {
        self.proxies.iter().for_each(OneControl::tell_to_stop);
        self.proxies.iter().for_each(OneControl::join);
    }
}

impl OneControl {
    fn new(pair: PairId) -> std::io::Result<OneControl> {
        let inner = Inner { problem: Some("the proxy has not started yet".to_owned()), ..Inner::default() };
        let shared = Arc::new(Shared { inner: Mutex::new(inner), bell: sys::eventfd::create()? });
        Ok(OneControl { pair, shared, thread: Arc::default() })
    }

    fn start(
        &self,
        config: &Config,
        node: &NodeRecord,
        sockets: Sockets,
        broker: impl Fn() -> Result<OwnedFd, broker::BrokerError> + Send + 'static,
    ) -> Result<(), ProxyError> {
        let (run_dir, log_dir) = dirs(config);
        let process = Supervised::adopt(&name(self.pair), &run_dir, &log_dir, OnAdoption::MustBeReplaced)?;
        let keeper = ProxySupervisor {
            pair: self.pair,
            shared: Arc::clone(&self.shared),
            node: node.clone(),
            cluster: config.cluster.clone(),
            program: config.proxy_program.clone(),
            proxy_options: config.proxy_options.clone(),
            tls_dir: config.tls_dir.display().to_string(),
            link_tls: config.link_tls,
            sockets,
            presence: presence(config),
            process,
            conversation: None,
            next_connection: None,
            broker: Box::new(broker),
        };
        let thread = std::thread::Builder::new()
            .name("proxyctl".to_owned())
            .spawn(move || keeper.run())
            .map_err(ProxyError::Thread)?;
        *self.thread.lock() = Some(thread);
        Ok(())
    }

    fn set_peers(&self, peers: Vec<PeerAddress>, others: usize, cut_off: Option<String>) {
        let mut inner = self.shared.inner.lock();
        (inner.peers, inner.others, inner.cut_off) = (Some(peers), others, cut_off);
        drop(inner);
        sys::eventfd::signal(&self.shared.bell);
    }

    fn links(&self) -> Vec<LinkInfo> {
        let inner = self.shared.inner.lock();
        match inner.silent_since {
            None => inner.links.clone(),
            Some(since) => inner.links.iter().map(|link| links::said_long_ago(link, since.elapsed())).collect(),
        }
    }

    fn problem(&self) -> Option<String> {
        let inner = self.shared.inner.lock();
        let silent = inner.silent_since.map(|_| "it does not answer".to_owned());
        let problem = inner.problem.clone().or(silent);
        problem.or_else(|| inner.complaint.clone()).or_else(|| inner.cut_off.clone())
    }

    fn tell_to_stop(&self) {
        self.shared.inner.lock().stopping = true;
        sys::eventfd::signal(&self.shared.bell);
    }

    fn join(&self) {
        if let Some(thread) = self.thread.lock().take()
            && thread.join().is_err()
        {
            tracing::error!("the proxy's thread had panicked");
        }
    }
}

impl Shared {
    fn heard(&self, pair: PairId, said: FromProxy) {
        // One that is alone is complained of by who replaces it.
        if !said.is_alone {
            let refused = said.refused.map(|why| format!("it refused what it was told of other nodes: {why}"));
            self.complain(refused);
        }
        let links: Vec<LinkInfo> = said.links.into_iter().map(|link| links::info(pair, link)).collect();
        let states = |links: &[LinkInfo]| links.iter().map(|link| (link.peer.clone(), link.state)).collect::<Vec<_>>();
        let on_news = {
            let mut inner = self.inner.lock();
            let is_news = states(&inner.links) != states(&links);
            (inner.links, inner.there_ns) = (links, said.there_ns);
            inner.on_news.clone().filter(|_| is_news)
        };
        if let Some(on_news) = on_news {
            on_news();
        }
    }

    /// Says once what is the matter, until it is something else.
    fn complain(&self, mut complaint: Option<String>) {
        if let Some(text) = &mut complaint {
            control::shorten(text);
        }
        let changed = std::mem::replace(&mut self.inner.lock().complaint, complaint.clone()) != complaint;
        if let Some(complaint) = complaint.filter(|_| changed) {
            tracing::warn!(complaint, "the proxy is not well");
        }
    }
}

struct ProxySupervisor {
    pair: PairId,
    shared: Arc<Shared>,
    node: NodeRecord,
    cluster: String,
    program: Option<PathBuf>,
    proxy_options: Map<String, Value>,
    tls_dir: String,
    link_tls: bool,
    sockets: Sockets,
    /// Where it says that the node is heard.
    presence: PathBuf,
    process: Supervised,
    conversation: Option<Conversation>,
    /// Made for the next process before the last one was ended.
    next_connection: Option<OwnedFd>,
    broker: Box<dyn Fn() -> Result<OwnedFd, broker::BrokerError> + Send>,
}

impl ProxySupervisor {
    fn run(mut self) {
        loop {
            if self.shared.inner.lock().stopping {
                return;
            }
            self.process.look(Instant::now());
            match self.process.standing() {
                Standing::Absent => self.start(),
                Standing::Stale => self.end_stale(),
                Standing::Coming | Standing::Ready => self.converse(),
                Standing::Resting => self.conversation = None,
            }
            self.tell_state();
            self.wait();
        }
    }

    fn start(&mut self) {
        self.conversation = None;
        let mut conversation = None;
        let made = self.next_connection.take();
        let ProxySupervisor {
            pair,
            node,
            cluster,
            program,
            proxy_options,
            tls_dir,
            link_tls,
            sockets,
            broker,
            process,
            presence,
            ..
        } = self;
        let role = |restarts: u64| -> Result<Role, Problem> {
            let (ours, theirs) = sys::seqpacket::pair()?;
            conversation = Some(Conversation::new(ours, Instant::now())?);
            let mut fds = sockets.handed_over()?;
            fds.insert("control".to_owned(), theirs);
            fds.insert("presence".to_owned(), sys::presence::open_slot(presence)?);
            let mut options = proxy_options.clone();
            options.extend(sockets.options());
            options.insert("tls".to_owned(), json!(if *link_tls { "on" } else { "off" }));
            options.insert("tls_dir".to_owned(), json!(tls_dir));
            let mut fields = Map::from_iter([
                ("node".to_owned(), json!(node.name)),
                ("node_id".to_owned(), json!(node.id)),
                ("cluster".to_owned(), json!(cluster)),
            ]);
            if *pair != PairId::FIRST {
                fields.insert("pair".to_owned(), json!(pair.number()));
            }
            Ok(Role {
                name: name(*pair),
                program: program.clone(),
                // A program of one's own has one purpose.
                arguments: if program.is_none() { vec!["proxy"] } else { Vec::new() },
                fields,
                options: json!(options),
                broker: Some(made.map_or_else(broker, Ok)?),
                fds,
                uid: Some(UID),
                environment: Vec::new(),
                cpus: None,
                pid_namespace: PidNamespace::Own,
                group: None,
                // Rises over restarts of the proxy and of the daemon.
                epoch: (node.epoch << proxy_host::RESTART_BITS) | (restarts + 1),
                restarts,
                serving: None,
            })
        };
        process.start(role);
        self.conversation = conversation;
        // The list of nodes lies there before it reads, and it need not keep what it is handed until it knows where
        // that belongs.
        self.converse();
    }

    fn end_stale(&mut self) {
        if let Err(error) = self.process.end(GRACE) {
            tracing::warn!(%error, "cannot put the record of the earlier proxy away");
        }
    }

    fn converse(&mut self) {
        let Some(conversation) = &mut self.conversation else { return };
        let (topics, pause) = {
            let inner = self.shared.inner.lock();
            let (peers, credentials) = (inner.peers.clone(), inner.credentials.clone());
            let (others, accused) = (inner.others, inner.accused.clone());
            (Topics { peers, others, accused, credentials }, inner.pause())
        };
        conversation.speak(&topics, pause, Instant::now());
        if self.process.standing() == Standing::Coming {
            conversation.excuse(Instant::now());
        }
        for _ in 0..HEARD_AT_ONCE_MAX {
            let Some(conversation) = &mut self.conversation else { return };
            match conversation.hear(Instant::now()) {
                Said::Nothing => return,
                Said::Gone => self.conversation = None,
                Said::Message(said) => {
                    let is_alone = said.is_alone;
                    self.shared.heard(self.pair, said);
                    if is_alone {
                        return self.replace_alone();
                    }
                }
                Said::Nonsense(why) => self.shared.complain(Some(format!("it says what makes no sense: {why}"))),
            }
        }
    }

    /// The proxy lost its broker, which lives: in this process. Its channels go on in its successor.
    fn replace_alone(&mut self) {
        match (self.broker)() {
            Ok(socket) => {
                self.next_connection = Some(socket);
                self.conversation = None;
                let why = "the proxy had lost its connection with the broker".to_owned();
                self.process.give_up(Instant::now(), GRACE, why);
            }
            // Then it is of more use as it is.
            Err(error) => self
                .shared
                .complain(Some(format!("it lost its connection with the broker, which makes no other: {error}"))),
        }
    }

    fn tell_state(&self) {
        let problem = match self.process.standing() {
            Standing::Ready => None,
            _ => Some(self.process.problem().unwrap_or("the proxy is starting").to_owned()),
        };
        let is_ready = problem.is_none();
        let mut inner = self.shared.inner.lock();
        inner.silent_since = match &self.conversation {
            Some(conversation) => conversation.silent_since().filter(|_| is_ready),
            // It has closed its end.
            None => inner.silent_since.or_else(|| Some(Instant::now())).filter(|_| is_ready),
        };
        if inner.problem.is_none() && problem.is_some() {
            inner.links.clear();
            inner.there_ns = None;
        }
        inner.problem = problem;
        if self.conversation.is_none() {
            inner.complaint = None;
        }
    }

    fn wait(&self) {
        let now = Instant::now();
        let pause = self.shared.inner.lock().pause();
        let due = self.process.due().into_iter().chain([now + pause]).min();
        let conversation = self.conversation.as_ref().map(AsFd::as_fd);
        let fds = self.process.descriptors().chain(conversation).chain([self.shared.bell.as_fd()]);
        // What is absent is to be started at once.
        if self.process.standing() != Standing::Absent {
            waiting::until_readable(fds, due.unwrap_or(now));
        }
        sys::eventfd::drain(&self.shared.bell);
        crate::spawn::bound_log(&self.process.log_path());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_proxy_refuses_is_a_problem_of_the_node_until_it_takes_what_it_is_told() {
        let proxies = ProxyControl::new(2).unwrap();
        let says = |refused: Option<&str>| {
            for proxy in &proxies.proxies {
                proxy.shared.inner.lock().problem = None;
            }
            let refused = refused.map(str::to_owned);
            let shared = &proxies.proxies[1].shared;
            shared.heard(proxies.proxies[1].pair, FromProxy { refused, ..FromProxy::default() });
            proxies.problem()
        };
        assert_eq!(says(None), None);
        let problem = says(Some("address of peer 'n3': no port")).unwrap();
        assert!(problem.starts_with("pair 1: ") && problem.ends_with("address of peer 'n3': no port"), "{problem}");
        assert!(says(Some(&"é".repeat(100_000))).unwrap().len() <= control::TEXT_BYTES_MAX + "pair 1: ".len());
        assert_eq!(says(None), None);
    }
}
