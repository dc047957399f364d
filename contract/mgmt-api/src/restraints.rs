//! What a program may not, of what its container may: resource limits (setrlimit(2)) and capabilities
//! (capabilities(7)). Both are text on the wire, as people type them.

use serde::{Deserialize, Serialize};

/// A limit of each process of a program: `NAME=SOFT[:HARD]`, numbers or `unlimited`; without `HARD` both are one.
/// Bytes, seconds or how many, as setrlimit(2) has it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
#[cfg_attr(test, derive(schemars::JsonSchema), schemars(with = "String"))]
pub struct Ulimit {
    /// One of [`Ulimit::NAMES`].
    pub name: String,
    /// Absent: unlimited.
    pub soft: Option<u64>,
    pub hard: Option<u64>,
}

#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum NoUlimit {
    #[error("a limit is NAME=SOFT[:HARD], of numbers or 'unlimited', not {0:?}")]
    Form(String),
    #[error("there is no limit {0:?}: {names}", names = Ulimit::NAMES.join(", "))]
    Name(String),
    #[error("the soft limit of {0:?} is above the hard one")]
    Order(String),
}

impl Ulimit {
    pub const NAMES: [&'static str; 15] = [
        "as",
        "core",
        "cpu",
        "data",
        "fsize",
        "locks",
        "memlock",
        "msgqueue",
        "nice",
        "nofile",
        "nproc",
        "rtprio",
        "rttime",
        "sigpending",
        "stack",
    ];
}

impl std::str::FromStr for Ulimit {
    type Err = NoUlimit;

    fn from_str(text: &str) -> Result<Ulimit, NoUlimit> {
        let form = || NoUlimit::Form(text.to_owned());
        let (name, values) = text.split_once('=').ok_or_else(form)?;
        if !Ulimit::NAMES.contains(&name) {
            return Err(NoUlimit::Name(name.to_owned()));
        }
        let value = |text: &str| match text {
            "unlimited" | "-1" => Ok(None),
            _ => text.parse().map(Some).map_err(|_| form()),
        };
        let (soft, hard) = values.split_once(':').unwrap_or((values, values));
        let (soft, hard) = (value(soft)?, value(hard)?);
        match soft.unwrap_or(u64::MAX) <= hard.unwrap_or(u64::MAX) {
            true => Ok(Ulimit { name: name.to_owned(), soft, hard }),
            false => Err(NoUlimit::Order(text.to_owned())),
        }
    }
}

impl std::fmt::Display for Ulimit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let shown = |value: Option<u64>| value.map_or("unlimited".to_owned(), |value| value.to_string());
        write!(f, "{}={}:{}", self.name, shown(self.soft), shown(self.hard))
    }
}

impl From<Ulimit> for String {
    fn from(limit: Ulimit) -> String {
        limit.to_string()
    }
}

impl TryFrom<String> for Ulimit {
    type Error = NoUlimit;

    fn try_from(text: String) -> Result<Ulimit, NoUlimit> {
        text.parse()
    }
}

/// Capabilities by name, with or without `CAP_`, in letters of any case; or `all` of them.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
#[cfg_attr(test, derive(schemars::JsonSchema), schemars(with = "String"))]
pub enum Capabilities {
    All,
    /// Its number, a place in [`Capabilities::NAMES`].
    One(u8),
}

#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("there is no capability {0:?}; capabilities(7) has their names, 'all' is each of them")]
pub struct NoCapability(pub String);

impl Capabilities {
    /// By number.
    const NAMES: [&'static str; 41] = [
        "chown",
        "dac_override",
        "dac_read_search",
        "fowner",
        "fsetid",
        "kill",
        "setgid",
        "setuid",
        "setpcap",
        "linux_immutable",
        "net_bind_service",
        "net_broadcast",
        "net_admin",
        "net_raw",
        "ipc_lock",
        "ipc_owner",
        "sys_module",
        "sys_rawio",
        "sys_chroot",
        "sys_ptrace",
        "sys_pacct",
        "sys_admin",
        "sys_boot",
        "sys_nice",
        "sys_resource",
        "sys_time",
        "sys_tty_config",
        "mknod",
        "lease",
        "audit_write",
        "audit_control",
        "setfcap",
        "mac_override",
        "mac_admin",
        "syslog",
        "wake_alarm",
        "block_suspend",
        "audit_read",
        "perfmon",
        "bpf",
        "checkpoint_restore",
    ];

    /// A bit for each.
    pub fn bits(self) -> u64 {
        match self {
            Capabilities::All => u64::MAX,
            Capabilities::One(number) => 1 << number,
        }
    }
}

impl std::str::FromStr for Capabilities {
    type Err = NoCapability;

    fn from_str(text: &str) -> Result<Capabilities, NoCapability> {
        let name = text.to_ascii_lowercase();
        let name = name.strip_prefix("cap_").unwrap_or(&name);
        let number = Capabilities::NAMES.iter().position(|known| *known == name);
        match number.and_then(|number| u8::try_from(number).ok()) {
            Some(number) => Ok(Capabilities::One(number)),
            None if name == "all" => Ok(Capabilities::All),
            None => Err(NoCapability(text.to_owned())),
        }
    }
}

impl From<Capabilities> for String {
    fn from(capabilities: Capabilities) -> String {
        match capabilities {
            Capabilities::All => "all",
            Capabilities::One(number) => Capabilities::NAMES.get(usize::from(number)).copied().unwrap_or_default(),
        }
        .to_owned()
    }
}

impl TryFrom<String> for Capabilities {
    type Error = NoCapability;

    fn try_from(text: String) -> Result<Capabilities, NoCapability> {
        text.parse()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_what_is_typed_and_come_back() {
        for (typed, is) in [
            ("nofile=1024", "nofile=1024:1024"),
            ("core=0:unlimited", "core=0:unlimited"),
            ("stack=-1", "stack=unlimited:unlimited"),
        ] {
            let limit: Ulimit = typed.parse().unwrap();
            assert_eq!(limit.to_string(), is);
            assert_eq!(limit.to_string().parse::<Ulimit>().unwrap(), limit);
        }
        for bad in ["nofile", "nofile=", "nofile=a", "nofile=2:1", "nofile=unlimited:1", "rss=1", "=1", "core=1:2:3"] {
            assert!(bad.parse::<Ulimit>().is_err(), "{bad}");
        }
    }

    #[test]
    fn capabilities_have_their_numbers() {
        let bits = |name: &str| name.parse::<Capabilities>().map(Capabilities::bits);
        assert_eq!(bits("CAP_NET_RAW"), Ok(1 << 13));
        assert_eq!(bits("checkpoint_restore"), Ok(1 << 40));
        assert_eq!(bits("ALL"), Ok(u64::MAX));
        assert!(["", "cap_", "net", "cap_cap_kill"].into_iter().all(|bad| bits(bad).is_err()));
        let number = Capabilities::One(13);
        assert_eq!(String::from(number).parse(), Ok(number));
    }
}
