//! What a daemon is told: a file, `DVS_*` variables and flags, later ones winning; what nobody said has a default.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};

use abi::PairId;
use abi::limits::PAIRS_MAX;
use mgmt_api::AllowedVolume;
use serde::Deserialize;
use serde_json::{Map, Value};

use crate::engine::{EtcdChoice, EtcdSettings, EtcdSettingsError};
use crate::names;
use crate::transports::{self, LinkSettings, Transport};
use crate::volumes::{self, NoSetting};

/// One layer of settings: the file, the environment or the flags. All optional.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Settings {
    /// Name of this node; the host's name when nobody says.
    pub node: Option<String>,
    pub cluster: Option<String>,
    /// Images, logs: survives a reboot. `/var/lib/dvs`.
    pub state_dir: Option<PathBuf>,
    /// Sockets, records of running children: in memory. `/run/dvs`.
    pub run_dir: Option<PathBuf>,
    /// The API's Unix socket. `RUN_DIR/dvsd.sock`.
    pub socket: Option<PathBuf>,
    /// Where the API (TLS), the proxy and a member of etcd listen; networks of containers go out from there. Needed
    /// when `advertise` is no address of this machine, but translated to one. `0.0.0.0`, which for the last two means
    /// `advertise`.
    pub listen: Option<IpAddr>,
    /// Where other nodes reach this one; needed unless `listen` says it.
    pub advertise: Option<IpAddr>,
    /// 0: any free one.
    pub api_port: Option<u16>,
    pub proxy_port: Option<u16>,
    /// What carries links, the preferred first. `["tcp"]`.
    pub transports: Option<Vec<Transport>>,
    /// The proxy's Unix socket, in a directory that other nodes' proxies may pass through. `RUN_DIR/proxy.sock`.
    pub proxy_socket: Option<PathBuf>,
    /// Interface for raw Ethernet; needed when `transports` has it.
    pub ethernet: Option<String>,
    /// Whether links are encrypted. They are, unless an operator trusts the wire; over QUIC always.
    pub link_tls: Option<bool>,
    /// Links with certain nodes that differ; in the file only.
    pub links: Option<BTreeMap<String, LinkSettings>>,
    /// Proxies of this node; two nodes have as many links as the one with fewer. 1 to 8; 1.
    pub pairs: Option<u8>,
    /// A program that is the proxy in place of `dvs proxy`; its absolute path.
    pub proxy_program: Option<PathBuf>,
    /// For the proxy, beside what the daemon tells it; in the file only.
    pub proxy_options: Option<Map<String, Value>>,
    /// UDP port of the containers' networks.
    pub vxlan_port: Option<u16>,
    /// Directories of this node that containers may have as volumes; in the file only. None.
    pub volumes: Option<Vec<AllowedVolume>>,
    /// File of the local cluster engine. `STATE_DIR/engine.db`.
    pub engine: Option<PathBuf>,
    /// Memory-backed directory of the local engine, shared by its daemons. `RUN_DIR/engine`.
    pub engine_volatile: Option<PathBuf>,
    /// The engine is etcd instead; in the file only.
    pub etcd: Option<EtcdSettings>,
    /// `ca.crt`, `node.crt`, `node.key`. `STATE_DIR/tls`.
    pub tls_dir: Option<PathBuf>,
    /// Names of containers for programs of this node.
    pub names: Option<names::Settings>,
    /// A `tracing` filter: `info`, `dvsd=debug`.
    pub log: Option<String>,
    /// How the daemon writes its log. `text`.
    pub log_format: Option<LogFormat>,
}

/// Of the daemon's own log.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    /// A line for people.
    #[default]
    Text,
    /// An object in each line, for programs that collect logs.
    Json,
}

impl std::str::FromStr for LogFormat {
    type Err = ();

    fn from_str(text: &str) -> Result<LogFormat, ()> {
        match text {
            "text" => Ok(LogFormat::Text),
            "json" => Ok(LogFormat::Json),
            _ => Err(()),
        }
    }
}

/// All settled.
#[derive(Clone, Debug)]
pub struct Config {
    pub node: String,
    pub cluster: String,
    pub state_dir: PathBuf,
    pub run_dir: PathBuf,
    pub socket: PathBuf,
    pub listen: IpAddr,
    pub advertise: IpAddr,
    pub api_port: u16,
    pub proxy_port: u16,
    pub transports: Vec<Transport>,
    pub proxy_socket: PathBuf,
    pub ethernet: Option<String>,
    pub link_tls: bool,
    pub links: BTreeMap<String, LinkSettings>,
    pub pairs: u8,
    pub proxy_program: Option<PathBuf>,
    pub proxy_options: Map<String, Value>,
    pub vxlan_port: u16,
    pub volumes: Vec<AllowedVolume>,
    pub engine: PathBuf,
    pub engine_volatile: PathBuf,
    pub etcd: Option<EtcdChoice>,
    pub tls_dir: PathBuf,
    pub names: Option<names::Settings>,
    pub log: String,
    pub log_format: LogFormat,
}

/// Where this node is, for others and for itself.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Addresses {
    pub advertise: IpAddr,
    pub listen: IpAddr,
}

impl Addresses {
    /// An address that this machine has: who listens at all takes it for granted that it has the advertised one.
    pub fn own(self) -> IpAddr {
        if self.listen.is_unspecified() { self.advertise } else { self.listen }
    }

    /// The advertised address and its own, where somebody between translates one to the other.
    pub fn translated(self) -> Option<(IpAddr, IpAddr)> {
        (self.own() != self.advertise).then(|| (self.advertise, self.own()))
    }
}

pub const API_PORT: u16 = 7420;
pub const PROXY_PORT: u16 = 7421;
/// Assigned to VXLAN.
pub const VXLAN_PORT: u16 = 4789;
const _: () = assert!(mgmt_api::PAIRS_MAX == PAIRS_MAX);
/// Of a Unix socket's address, its final NUL included.
const SOCKET_PATH_BYTES: usize = 108;

#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    #[error("cannot read {}", .path.display())]
    Unreadable {
        path: PathBuf,
        #[source]
        cause: std::io::Error,
    },
    #[error("{} is not a valid configuration", .path.display())]
    Malformed {
        path: PathBuf,
        #[source]
        cause: Box<NoSettings>,
    },
    #[error("the variable {name} has the value {value:?}, which is no {wanted}")]
    BadVariable { name: String, value: String, wanted: &'static str },
    #[error("{name:?} is not a name: 1 to 32 of a-z, 0-9 and -, beginning with a letter (setting '{setting}')")]
    BadName { setting: &'static str, name: String },
    #[error("other nodes cannot reach {0}: say the setting 'advertise'")]
    NoAddress(IpAddr),
    #[error("the cluster engine cannot be as it is described")]
    Etcd(#[from] EtcdSettingsError),
    #[error("a node needs at least one transport")]
    NoTransport,
    #[error("the setting 'pairs' is 1 to {PAIRS_MAX}, not {0}")]
    PairCount(u8),
    #[error(
        "raw Ethernet has one packet socket for an interface and carries one pair: take 'eth' out of 'transports', or say pairs = 1"
    )]
    PairsOverEthernet,
    #[error(
        "{pairs} pairs need as many ports from {proxy_port} on (setting 'proxy_port'), and there are none above 65535"
    )]
    NoPorts { pairs: u8, proxy_port: u16 },
    #[error("the proxy's program is named by its absolute path (setting 'proxy_program'), not by {:?}", .0.display())]
    RelativeProgram(PathBuf),
    #[error(
        "names are for programs of this machine: {0} is no address of its loopback interface (setting 'listen' of 'names'), as 127.0.0.54:53 is"
    )]
    NamesBeyond(SocketAddr),
    #[error(transparent)]
    Volumes(#[from] NoSetting),
    #[error("the path {} is longer than a socket's address may be ({SOCKET_PATH_BYTES} bytes)", .0.display())]
    LongPath(PathBuf),
}

/// Why a text is none of settings. In one line, and without the text: it may be another file, with secrets.
#[derive(Debug, thiserror::Error)]
#[error("line {line}: {}", .what.lines().collect::<Vec<_>>().join(" "))]
pub struct NoSettings {
    line: usize,
    what: String,
}

impl Settings {
    pub fn from_file(path: &Path) -> Result<Settings, ConfigError> {
        let text =
            std::fs::read_to_string(path).map_err(|cause| ConfigError::Unreadable { path: path.to_owned(), cause })?;
        Settings::from_text(path, &text)
    }

    /// What is, or will be, in this file.
    pub fn from_text(path: &Path, text: &str) -> Result<Settings, ConfigError> {
        toml::from_str(text).map_err(|cause: toml::de::Error| {
            let before = cause.span().and_then(|span| text.get(..span.start)).unwrap_or_default();
            let no_settings = NoSettings { line: before.matches('\n').count() + 1, what: cause.message().to_owned() };
            ConfigError::Malformed { path: path.to_owned(), cause: Box::new(no_settings) }
        })
    }

    /// `DVS_NODE`, `DVS_CLUSTER`, `DVS_STATE_DIR` … as in the file, in capitals.
    pub fn from_env() -> Result<Settings, ConfigError> {
        Settings::from_variables(|name| std::env::var(name).ok())
    }

    fn from_variables(get: impl Fn(&str) -> Option<String>) -> Result<Settings, ConfigError> {
        let path = |name: &str| get(name).map(PathBuf::from);
        Ok(Settings {
            node: get("DVS_NODE"),
            cluster: get("DVS_CLUSTER"),
            state_dir: path("DVS_STATE_DIR"),
            run_dir: path("DVS_RUN_DIR"),
            socket: path("DVS_SOCKET"),
            listen: parsed(&get, "DVS_LISTEN", "address")?,
            advertise: parsed(&get, "DVS_ADVERTISE", "address")?,
            api_port: parsed(&get, "DVS_API_PORT", "port")?,
            proxy_port: parsed(&get, "DVS_PROXY_PORT", "port")?,
            transports: listed(&get, "DVS_TRANSPORTS", "list of transports (tcp, unix, eth, quic, tipc)")?,
            proxy_socket: path("DVS_PROXY_SOCKET"),
            ethernet: get("DVS_ETHERNET"),
            link_tls: parsed(&get, "DVS_LINK_TLS", "truth value (true, false)")?,
            links: None,
            pairs: parsed(&get, "DVS_PAIRS", "number from 1 to 8")?,
            proxy_program: path("DVS_PROXY_PROGRAM"),
            proxy_options: None,
            vxlan_port: parsed(&get, "DVS_VXLAN_PORT", "port")?,
            volumes: None,
            engine: path("DVS_ENGINE"),
            engine_volatile: path("DVS_ENGINE_VOLATILE"),
            etcd: None,
            tls_dir: path("DVS_TLS_DIR"),
            names: parsed(&get, "DVS_NAMES_LISTEN", "address and port")?.map(|listen| names::Settings { listen }),
            log: get("DVS_LOG"),
            log_format: parsed(&get, "DVS_LOG_FORMAT", "form of a log (text, json)")?,
        })
    }

    /// What `over` says wins.
    pub fn overridden_by(self, over: Settings) -> Settings {
        Settings {
            node: over.node.or(self.node),
            cluster: over.cluster.or(self.cluster),
            state_dir: over.state_dir.or(self.state_dir),
            run_dir: over.run_dir.or(self.run_dir),
            socket: over.socket.or(self.socket),
            listen: over.listen.or(self.listen),
            advertise: over.advertise.or(self.advertise),
            api_port: over.api_port.or(self.api_port),
            proxy_port: over.proxy_port.or(self.proxy_port),
            transports: over.transports.or(self.transports),
            proxy_socket: over.proxy_socket.or(self.proxy_socket),
            ethernet: over.ethernet.or(self.ethernet),
            link_tls: over.link_tls.or(self.link_tls),
            links: over.links.or(self.links),
            pairs: over.pairs.or(self.pairs),
            proxy_program: over.proxy_program.or(self.proxy_program),
            proxy_options: over.proxy_options.or(self.proxy_options),
            vxlan_port: over.vxlan_port.or(self.vxlan_port),
            volumes: over.volumes.or(self.volumes),
            engine: over.engine.or(self.engine),
            engine_volatile: over.engine_volatile.or(self.engine_volatile),
            etcd: over.etcd.or(self.etcd),
            tls_dir: over.tls_dir.or(self.tls_dir),
            names: over.names.or(self.names),
            log: over.log.or(self.log),
            log_format: over.log_format.or(self.log_format),
        }
    }

    /// Fills in the defaults.
    pub fn settle(self) -> Result<Config, ConfigError> {
        let state_dir = self.state_dir.unwrap_or_else(|| PathBuf::from("/var/lib/dvs"));
        let run_dir = self.run_dir.unwrap_or_else(|| PathBuf::from("/run/dvs"));
        let listen = self.listen.unwrap_or(IpAddr::from([0, 0, 0, 0]));
        let advertise = self.advertise.unwrap_or(listen);
        if advertise.is_unspecified() {
            return Err(ConfigError::NoAddress(advertise));
        }
        let node = named("node", self.node.unwrap_or_else(host_name))?;
        let cluster = named("cluster", self.cluster.unwrap_or_else(|| "dvs".to_owned()))?;
        let tls_dir = self.tls_dir.unwrap_or_else(|| state_dir.join("tls"));
        let config = Config {
            etcd: self
                .etcd
                .map(|etcd| etcd.settle(&node, &cluster, Addresses { advertise, listen }, &tls_dir))
                .transpose()?,
            node,
            cluster,
            socket: self.socket.unwrap_or_else(|| run_dir.join("dvsd.sock")),
            listen,
            advertise,
            api_port: self.api_port.unwrap_or(API_PORT),
            proxy_port: self.proxy_port.unwrap_or(PROXY_PORT),
            transports: self.transports.unwrap_or_else(|| vec![Transport::Tcp]),
            proxy_socket: self.proxy_socket.unwrap_or_else(|| run_dir.join("proxy.sock")),
            ethernet: self.ethernet,
            link_tls: self.link_tls.unwrap_or(true),
            links: self.links.unwrap_or_default(),
            pairs: self.pairs.unwrap_or(1),
            proxy_program: self.proxy_program,
            proxy_options: self.proxy_options.unwrap_or_default(),
            vxlan_port: self.vxlan_port.unwrap_or(VXLAN_PORT),
            volumes: self.volumes.unwrap_or_default(),
            engine: self.engine.unwrap_or_else(|| state_dir.join("engine.db")),
            engine_volatile: self.engine_volatile.unwrap_or_else(|| run_dir.join("engine")),
            tls_dir,
            names: self.names,
            log: self.log.unwrap_or_else(|| "info".to_owned()),
            log_format: self.log_format.unwrap_or_default(),
            state_dir,
            run_dir,
        };
        let lists = config.links.values().filter_map(|link| link.transports.as_ref());
        if lists.chain([&config.transports]).any(Vec::is_empty) {
            return Err(ConfigError::NoTransport);
        }
        config.check_pairs()?;
        if let Some(names) = config.names.filter(|names| !names.listen.ip().is_loopback()) {
            return Err(ConfigError::NamesBeyond(names.listen));
        }
        let own = [
            &config.state_dir,
            &config.run_dir,
            &config.tls_dir,
            &config.engine,
            &config.engine_volatile,
            &config.socket,
            &config.proxy_socket,
        ];
        // Also where links lead to.
        let real = own.map(|path| where_it_is(path));
        let own: Vec<&Path> = own.into_iter().chain(&real).map(PathBuf::as_path).collect();
        volumes::check_settings(&config.volumes, &own)?;
        if let Some(program) = config.proxy_program.as_ref().filter(|program| !program.is_absolute()) {
            return Err(ConfigError::RelativeProgram(program.clone()));
        }
        for path in [&config.socket, &config.last_proxy_socket(), &config.dc_run_dir(u32::MAX >> 8).join("keeper.sock")]
        {
            if path.as_os_str().len() >= SOCKET_PATH_BYTES {
                return Err(ConfigError::LongPath(path.clone()));
            }
        }
        Ok(config)
    }
}

/// A path as far as it exists, without symbolic links.
fn where_it_is(path: &Path) -> PathBuf {
    for way in path.ancestors() {
        if let Ok(real) = way.canonicalize() {
            return real.join(path.strip_prefix(way).unwrap_or(Path::new("")));
        }
    }
    path.to_owned()
}

impl Config {
    /// File (when there is one), environment, flags.
    pub fn load(file: Option<&Path>, flags: Settings) -> Result<Config, ConfigError> {
        let from_file = file.map(Settings::from_file).transpose()?.unwrap_or_default();
        from_file.overridden_by(Settings::from_env()?).overridden_by(flags).settle()
    }

    pub fn addresses(&self) -> Addresses {
        Addresses { advertise: self.advertise, listen: self.listen }
    }

    fn check_pairs(&self) -> Result<(), ConfigError> {
        if !(1..=PAIRS_MAX).contains(&self.pairs) {
            return Err(ConfigError::PairCount(self.pairs));
        }
        if self.pairs > 1 && self.transports.contains(&Transport::Eth) {
            return Err(ConfigError::PairsOverEthernet);
        }
        match self.proxy_port.checked_add(u16::from(self.pairs - 1)) {
            Some(_) => Ok(()),
            None => Err(ConfigError::NoPorts { pairs: self.pairs, proxy_port: self.proxy_port }),
        }
    }

    /// The longest of them.
    fn last_proxy_socket(&self) -> PathBuf {
        let last = PairId::all(self.pairs).last().unwrap_or_default();
        transports::socket_of(&self.proxy_socket, last)
    }

    /// Sockets and records of one container's share; gone after a reboot, as its processes are.
    pub fn dc_run_dir(&self, dc: u32) -> PathBuf {
        self.run_dir.join("dcs").join(dc.to_string())
    }

    /// Images and logs of one container's share.
    pub fn dc_state_dir(&self, dc: u32) -> PathBuf {
        self.state_dir.join("dcs").join(dc.to_string())
    }
}

fn parsed<T: std::str::FromStr>(
    get: &impl Fn(&str) -> Option<String>,
    name: &str,
    wanted: &'static str,
) -> Result<Option<T>, ConfigError> {
    let Some(value) = get(name) else { return Ok(None) };
    value.parse().map(Some).map_err(|_| ConfigError::BadVariable { name: name.to_owned(), value, wanted })
}

/// Words with commas between.
fn listed<T: std::str::FromStr>(
    get: &impl Fn(&str) -> Option<String>,
    name: &str,
    wanted: &'static str,
) -> Result<Option<Vec<T>>, ConfigError> {
    let Some(value) = get(name) else { return Ok(None) };
    let words: Result<Vec<T>, _> = value.split(',').map(|word| word.trim().parse()).collect();
    words.map(Some).map_err(|_| ConfigError::BadVariable { name: name.to_owned(), value, wanted })
}

fn named(setting: &'static str, name: String) -> Result<String, ConfigError> {
    if mgmt_api::valid_name(&name) { Ok(name) } else { Err(ConfigError::BadName { setting, name }) }
}

/// The host's name up to its first dot.
fn host_name() -> String {
    let name = rustix::system::uname().nodename().to_string_lossy().to_lowercase();
    name.split('.').next().unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_for_this_machine_alone() {
        let from = |listen: &str| {
            let text = format!("advertise = \"10.0.0.1\"\n[names]\nlisten = \"{listen}\"");
            Settings::from_text(Path::new("x"), &text).unwrap().settle()
        };
        assert_eq!(from("127.0.0.54:53").unwrap().names.unwrap().listen.port(), 53);
        assert!(from("[::1]:53").is_ok());
        for open in ["0.0.0.0:53", "192.0.2.1:53", "[::]:53"] {
            assert!(matches!(from(open), Err(ConfigError::NamesBeyond(_))), "{open}");
        }
    }

    #[test]
    fn transports_are_listed_in_order_of_preference() {
        let from = |value: &str| Settings::from_variables(|name| (name == "DVS_TRANSPORTS").then(|| value.to_owned()));
        assert_eq!(from("unix, tcp").unwrap().transports, Some(vec![Transport::Unix, Transport::Tcp]));
        assert!(matches!(from("carrier-pigeon"), Err(ConfigError::BadVariable { .. })));
        let none = Settings { transports: Some(vec![]), advertise: Some([10, 0, 0, 1].into()), ..Settings::default() };
        assert!(matches!(none.settle(), Err(ConfigError::NoTransport)));
    }

    #[test]
    fn pairs_that_cannot_be_are_refused() {
        let settled = |text: &str| {
            let settings: Settings =
                toml::from_str(&format!("node = \"a\"\nadvertise = \"10.0.0.1\"\n{text}")).unwrap();
            settings.settle().map(|config| config.pairs)
        };
        assert_eq!(settled("").unwrap(), 1);
        assert_eq!(settled("pairs = 8").unwrap(), 8);
        assert!(matches!(settled("pairs = 0"), Err(ConfigError::PairCount(0))));
        assert!(matches!(settled("pairs = 9"), Err(ConfigError::PairCount(9))));
        let ethernet = "transports = [\"tcp\", \"eth\"]\nethernet = \"eth0\"";
        assert!(matches!(settled(&format!("pairs = 2\n{ethernet}")), Err(ConfigError::PairsOverEthernet)));
        assert_eq!(settled(ethernet).unwrap(), 1);
        assert!(matches!(settled("pairs = 3\nproxy_port = 65534"), Err(ConfigError::NoPorts { .. })));
    }

    #[test]
    fn directories_for_volumes_are_none_unless_the_file_says_so_and_never_the_daemons_own() {
        let settled = |volumes: &str| {
            let text = format!("node = \"a\"\nadvertise = \"10.0.0.1\"\nstate_dir = \"/data/dvs\"\n{volumes}");
            let settings: Result<Settings, String> = toml::from_str(&text).map_err(|error| error.to_string());
            settings?.settle().map(|config| config.volumes).map_err(|error| error.to_string())
        };
        assert_eq!(settled("").unwrap(), []);
        let list = settled("volumes = [{ path = \"/srv\", owner = \"7:8\" }, { path = \"/docs\" }]").unwrap();
        assert_eq!(list.iter().map(ToString::to_string).collect::<Vec<_>>(), ["/srv=7:8", "/docs"]);
        for (volumes, why) in [
            ("volumes = [{ path = \"/data\" }]", "/data/dvs"),
            ("volumes = [{ path = \"/run/dvs/dcs\" }]", "/run/dvs"),
            ("volumes = [{ path = \"srv\" }]", "from the root"),
            ("volumes = [{ path = \"/srv\", owner = \"me\" }]", "no owner"),
            ("volumes = [{ path = \"/srv\", owner = \"0\" }]", "root"),
            ("volumes = [{ path = \"/srv\", readonly = true }]", "readonly"),
        ] {
            let said = settled(volumes).unwrap_err();
            assert!(said.contains(why), "{volumes}: {said}");
        }
    }

    #[test]
    fn flags_win_over_environment_and_file() {
        let file: Settings = toml::from_str("node = \"a\"\ncluster = \"c\"\napi_port = 1").unwrap();
        let environment = Settings::from_variables(|name| match name {
            "DVS_NODE" => Some("b".to_owned()),
            "DVS_API_PORT" => Some("2".to_owned()),
            _ => None,
        });
        let flags = Settings { api_port: Some(0), advertise: Some([10, 0, 0, 1].into()), ..Settings::default() };
        let config = file.overridden_by(environment.unwrap()).overridden_by(flags).settle().unwrap();
        assert_eq!((config.node.as_str(), config.cluster.as_str(), config.api_port), ("b", "c", 0));
        assert_eq!(config.socket, Path::new("/run/dvs/dvsd.sock"));
    }

    #[test]
    fn proxy_of_ones_own_is_named_by_file_environment_or_flag_and_its_options_by_the_file() {
        let text =
            "node = \"a\"\nadvertise = \"10.0.0.1\"\nproxy_program = \"/opt/proxy\"\n[proxy_options]\nrate = 1000";
        let file: Settings = toml::from_str(text).unwrap();
        let config = file.clone().settle().unwrap();
        assert_eq!(config.proxy_program.as_deref(), Some(Path::new("/opt/proxy")));
        assert_eq!(config.proxy_options.get("rate"), Some(&Value::from(1000)));
        let environment =
            Settings::from_variables(|name| (name == "DVS_PROXY_PROGRAM").then(|| "/opt/other".to_owned())).unwrap();
        let config = file.clone().overridden_by(environment).settle().unwrap();
        assert_eq!(config.proxy_program.as_deref(), Some(Path::new("/opt/other")));
        let flags = Settings { proxy_program: Some(PathBuf::from("proxy")), ..Settings::default() };
        assert!(matches!(file.overridden_by(flags).settle(), Err(ConfigError::RelativeProgram(_))));
    }

    #[test]
    fn misspelt_setting_and_bad_variable_are_refused() {
        assert!(toml::from_str::<Settings>("nod = \"a\"").is_err());
        let bad = Settings::from_variables(|name| (name == "DVS_API_PORT").then(|| "http".to_owned()));
        assert!(matches!(bad, Err(ConfigError::BadVariable { .. })));
    }

    #[test]
    fn log_is_text_unless_json_is_asked_for() {
        let from = |value: &str| Settings::from_variables(|name| (name == "DVS_LOG_FORMAT").then(|| value.to_owned()));
        assert_eq!(from("json").unwrap().log_format, Some(LogFormat::Json));
        assert!(matches!(from("xml"), Err(ConfigError::BadVariable { .. })));
        let file: Settings = toml::from_str("log_format = \"json\"\nadvertise = \"10.0.0.1\"\nnode = \"a\"").unwrap();
        assert_eq!(file.settle().unwrap().log_format, LogFormat::Json);
        let silent =
            Settings { node: Some("a".to_owned()), advertise: Some([10, 0, 0, 1].into()), ..Settings::default() };
        assert_eq!(silent.settle().unwrap().log_format, LogFormat::Text);
    }

    /// What a Debian package installs.
    #[test]
    fn file_that_is_none_of_settings_is_told_by_its_line_and_not_shown() {
        let said = |text: &str| {
            let error = Settings::from_text(Path::new("/x"), text).unwrap_err();
            std::error::Error::source(&error).unwrap().to_string()
        };
        let passwords = said("node = \"n1\"\nroot:secret:0\n");
        assert!(passwords.starts_with("line 2: ") && !passwords.contains("secret"), "{passwords}");
        let unknown = said("node = \"n1\"\n\nnod = 1\n");
        assert!(
            unknown.starts_with("line 3: ") && unknown.contains("nod") && unknown.lines().count() == 1,
            "{unknown}"
        );
    }

    const PACKAGED: &str = include_str!("../../../packaging/dvsd.toml");

    /// With the comment taken off every setting.
    fn uncommented(text: &str) -> String {
        let lines =
            text.lines().map(|line| line.strip_prefix('#').filter(|rest| !rest.starts_with(' ')).unwrap_or(line));
        lines.map(|line| format!("{line}\n")).collect()
    }

    #[test]
    fn packaged_settings_say_nothing_and_show_every_setting_as_it_may_be() {
        let silent: toml::Table = toml::from_str(PACKAGED).unwrap();
        assert!(silent.is_empty(), "{silent:?}");
        let shown: toml::Table = toml::from_str(&uncommented(PACKAGED)).unwrap();
        toml::from_str::<Settings>(&uncommented(PACKAGED)).unwrap();
        // The parser's own list of what there is.
        let refusal = toml::from_str::<Settings>("nothing = 1").unwrap_err().to_string();
        let known: Vec<&str> = refusal.split('`').skip(3).step_by(2).collect();
        let missing: Vec<&&str> = known.iter().filter(|name| !shown.contains_key(**name)).collect();
        assert!(known.len() > 20 && missing.is_empty(), "{missing:?} of {known:?}");
    }

    #[test]
    fn packaged_defaults_are_the_defaults() {
        let shown: Settings = toml::from_str(&uncommented(PACKAGED)).unwrap();
        let (node, advertise) = (shown.node.clone(), shown.advertise);
        let default = Settings { node, advertise, ..Settings::default() }.settle().unwrap();
        let tables = Settings { volumes: None, links: None, names: None, proxy_options: None, etcd: None, ..shown };
        let said = Settings { ethernet: None, proxy_program: None, ..tables }.settle().unwrap();
        assert_eq!(format!("{said:?}"), format!("{default:?}"));
    }

    #[test]
    fn own_address_is_the_one_to_listen_at_and_the_advertised_one_where_that_is_any() {
        let at = |advertise: &str, listen: &str| Addresses {
            advertise: advertise.parse().unwrap(),
            listen: listen.parse().unwrap(),
        };
        assert_eq!(at("10.0.0.1", "0.0.0.0").own().to_string(), "10.0.0.1");
        assert_eq!(at("fd00::1", "::").translated(), None);
        assert_eq!(at("10.0.0.1", "10.0.0.1").translated(), None);
        let behind = at("192.0.2.1", "10.0.0.1");
        assert_eq!(behind.own().to_string(), "10.0.0.1");
        assert_eq!(behind.translated(), Some((behind.advertise, behind.listen)));
    }

    #[test]
    fn address_that_reaches_nobody_is_refused() {
        let settings = Settings { node: Some("a".to_owned()), ..Settings::default() };
        assert!(matches!(settings.settle(), Err(ConfigError::NoAddress(_))));
    }
}
