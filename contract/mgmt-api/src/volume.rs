//! Host volumes: directories of the nodes that a container's programs see (`docs/design/volumes.md`).

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// ```toml
/// [[volumes]]
/// host = "/srv/data"
/// path = "/data"
/// read_only = true
/// nodes = ["n1", "n2"]
/// ```
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct HostVolume {
    /// The directory on each node: one that the node's administrator allows, or one below.
    pub host: String,
    /// Where programs see it.
    pub path: String,
    /// Nobody inside writes there. Always so where the administrator says it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub read_only: bool,
    /// Where it is seen; on all nodes of the container when empty.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub nodes: Vec<String>,
}

impl HostVolume {
    /// Whether programs of that node see it.
    pub fn is_at(&self, node: &str) -> bool {
        self.nodes.is_empty() || self.nodes.iter().any(|one| one == node)
    }

    /// Whether there is a node on which both are seen.
    pub fn meets(&self, other: &HostVolume) -> bool {
        self.nodes.is_empty() || other.nodes.is_empty() || self.nodes.iter().any(|node| other.is_at(node))
    }
}

/// As people write it: `HOST:PATH[:ro]`.
impl fmt::Display for HostVolume {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}{}", self.host, self.path, if self.read_only { ":ro" } else { "" })
    }
}

/// It is no volume, and how one is written.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("'{0}' is no volume: HOST-PATH:PATH[:ro], both from the root, as in /srv/data:/data or /srv/data:/data:ro")]
pub struct NoHostVolume(pub String);

impl FromStr for HostVolume {
    type Err = NoHostVolume;

    /// What the paths may be is said where the description is checked.
    fn from_str(text: &str) -> Result<HostVolume, NoHostVolume> {
        let bad = || NoHostVolume(text.to_owned());
        let parts: Vec<&str> = text.split(':').collect();
        let (host, path, read_only) = match parts.as_slice() {
            [host, path] | [host, path, "rw"] => (*host, *path, false),
            [host, path, "ro"] => (*host, *path, true),
            _ => return Err(bad()),
        };
        if !host.starts_with('/') || !path.starts_with('/') {
            return Err(bad());
        }
        Ok(HostVolume { host: host.to_owned(), path: path.to_owned(), read_only, nodes: Vec::new() })
    }
}

/// A directory of a node that containers may have as volumes, itself and all below it. In `dvsd.toml`:
///
/// ```toml
/// volumes = [
///   { path = "/srv/data", owner = "1000:1000" },
///   { path = "/srv/docs" },
/// ]
/// ```
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct AllowedVolume {
    pub path: String,
    /// The user of the node that root inside is there. Without one nobody inside owns anything there, and nobody
    /// writes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(test, schemars(with = "Option<String>"))]
    pub owner: Option<VolumeOwner>,
    /// The users 1 to 65,535 inside are those of the node from here on. Absent: of the container's own range, which no
    /// other container has.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub users_from: Option<u32>,
    /// Nobody inside writes there, whatever the container asks for.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub read_only: bool,
}

impl AllowedVolume {
    pub fn is_read_only(&self) -> bool {
        self.read_only || self.owner.is_none()
    }
}

/// As in `dvs dev up --volume`: `PATH[=OWNER][:ro]`.
impl fmt::Display for AllowedVolume {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.path)?;
        self.owner.map_or(Ok(()), |owner| write!(f, "={owner}"))?;
        f.write_str(if self.read_only { ":ro" } else { "" })
    }
}

/// It is no directory that could be allowed, and how one is written.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("'{0}' is no directory for volumes: PATH[=UID[:GID]][:ro], as in /srv/data=1000 or /srv/docs")]
pub struct NoAllowedVolume(pub String);

impl FromStr for AllowedVolume {
    type Err = NoAllowedVolume;

    fn from_str(text: &str) -> Result<AllowedVolume, NoAllowedVolume> {
        let bad = || NoAllowedVolume(text.to_owned());
        let (rest, read_only) = text.strip_suffix(":ro").map_or((text, false), |rest| (rest, true));
        let (path, owner) = match rest.split_once('=') {
            Some((path, owner)) => (path, Some(owner.parse().map_err(|_| bad())?)),
            None => (rest, None),
        };
        if !path.starts_with('/') {
            return Err(bad());
        }
        Ok(AllowedVolume { path: path.to_owned(), owner, users_from: None, read_only })
    }
}

/// A user and a group of a node, by number.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct VolumeOwner {
    pub uid: u32,
    pub gid: u32,
}

/// It is no owner, and how one is written.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("'{0}' is no owner: UID or UID:GID, in numbers of the node, as in 1000 or 1000:100")]
pub struct NoVolumeOwner(pub String);

impl fmt::Display for VolumeOwner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.uid, self.gid)
    }
}

impl FromStr for VolumeOwner {
    type Err = NoVolumeOwner;

    /// A user alone has the group of the same number.
    fn from_str(text: &str) -> Result<VolumeOwner, NoVolumeOwner> {
        let number = |text: &str| text.parse::<u32>().map_err(|_| NoVolumeOwner(text.to_owned()));
        let (uid, gid) = text.split_once(':').unwrap_or((text, text));
        Ok(VolumeOwner { uid: number(uid)?, gid: number(gid)? })
    }
}

impl Serialize for VolumeOwner {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for VolumeOwner {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<VolumeOwner, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn volumes_are_written_as_they_are_read() {
        let written = |text: &str| text.parse::<HostVolume>().map(|volume| volume.to_string());
        for (text, whole) in [("/a:/b", "/a:/b"), ("/a:/b:rw", "/a:/b"), ("/a/c:/b:ro", "/a/c:/b:ro")] {
            assert_eq!(written(text).as_deref(), Ok(whole));
        }
        for bad in ["", "/a", "a:/b", "/a:b", "/a:/b:rx", "/a:/b:ro:ro", "name:/b", ":/b"] {
            assert!(bad.parse::<HostVolume>().is_err(), "{bad}");
        }
    }

    #[test]
    fn allowed_directories_are_written_as_they_are_read() {
        for text in ["/srv", "/srv:ro", "/srv=1000:1000", "/srv=1000:100:ro"] {
            assert_eq!(text.parse::<AllowedVolume>().map(|allowed| allowed.to_string()).as_deref(), Ok(text));
        }
        assert_eq!("/srv=7".parse::<AllowedVolume>().map(|allowed| allowed.to_string()).as_deref(), Ok("/srv=7:7"));
        for bad in ["", "srv", "/srv=", "/srv=me", "/srv=1:2:3", "/srv=-1"] {
            assert!(bad.parse::<AllowedVolume>().is_err(), "{bad}");
        }
    }

    #[test]
    fn nobody_writes_where_there_is_no_owner() {
        let allowed = |text: &str| text.parse::<AllowedVolume>().unwrap().is_read_only();
        assert_eq!(["/a", "/a=1", "/a=1:ro"].map(allowed), [true, false, true]);
    }
}
