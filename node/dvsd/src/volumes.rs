//! Which directories of a node its administrator lets containers have, and what of a description that admits. Pure.
//!
//! | who | decides |
//! |---|---|
//! | administrator of a node | `volumes` in its `dvsd.toml`: which directories, as whose files, whether anybody writes |
//! | who describes a container | which of them, where inside, and may give up writing |
//!
//! Each node says in its record what it allows, so that a description that one of them does not admit is refused before
//! anything is written, by whichever daemon is asked. The node itself decides by its own settings when it starts its
//! part. Not here: how a directory gets into a container (`sandbox::volumes`).

use std::collections::BTreeMap;
use std::path::{Component, Path, PathBuf};

use mgmt_api::{AllowedVolume, DcSpec, ErrorBody, ErrorKind, HostVolume};
use sandbox::userns::UIDS;
use sandbox::volumes::{Owners, VolumeMount};

use crate::uids;

/// Of one container. Each is a mount in each of its mount namespaces.
pub const VOLUMES_MAX: usize = 32;
/// Of one node's settings.
pub const ALLOWED_MAX: usize = 64;
/// What a path may have; the kernel takes 4,096.
const PATH_BYTES_MAX: usize = 1024;
/// What the kernel says of itself, and devices.
const NEVER_ALLOWED: [&str; 4] = ["/", "/proc", "/sys", "/dev"];
/// What a container has there is its own, or the node's system.
const TAKEN: [&str; 14] =
    ["proc", ".proc", "sys", "dev", "dc", "usr", "bin", "sbin", "lib", "lib32", "lib64", "libx32", "etc", "run"];
/// Of these, what lies below is no more than a directory.
const TAKEN_ITSELF: [&str; 2] = ["etc", "run"];
/// The socket of M3-IPC, and more that is the container's.
const RUN_DVS: &str = "/run/dvs";

/// What is wrong with a setting.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum NoSetting {
    #[error("more than {ALLOWED_MAX} directories for volumes (setting 'volumes')")]
    TooMany,
    #[error(
        "{path:?} is no directory for volumes: a path from the root, without '.', '..' and '//' (setting 'volumes')"
    )]
    NoPath { path: String },
    #[error("{path:?} cannot be for volumes: {why} (setting 'volumes')")]
    Never { path: String, why: String },
    #[error("the directory {path:?} is for volumes twice (setting 'volumes')")]
    Twice { path: String },
    #[error("{path:?} for volumes: {why} (setting 'volumes')")]
    Owner { path: String, why: String },
}

/// Whether settings make sense. `own`: directories of the daemon, which are nobody else's.
pub fn check_settings(allowed: &[AllowedVolume], own: &[&Path]) -> Result<(), NoSetting> {
    if allowed.len() > ALLOWED_MAX {
        return Err(NoSetting::TooMany);
    }
    for (index, one) in allowed.iter().enumerate() {
        let path = one.path.clone();
        let never = |why: String| Err(NoSetting::Never { path: path.clone(), why });
        if NEVER_ALLOWED.contains(&&*path) || NEVER_ALLOWED.iter().skip(1).any(|never| lies_in(&path, never)) {
            return never("it has what the kernel or all of the node is".to_owned());
        }
        if !is_plain(&path) {
            return Err(NoSetting::NoPath { path });
        }
        if let Some(own) = own.iter().find(|own| Path::new(&path).starts_with(own) || own.starts_with(&path)) {
            return never(format!("the daemon keeps its own in {}", own.display()));
        }
        if allowed.iter().take(index).any(|other| other.path == path) {
            return Err(NoSetting::Twice { path });
        }
        check_owner(one)?;
    }
    Ok(())
}

fn check_owner(one: &AllowedVolume) -> Result<(), NoSetting> {
    let bad = |why: &str| Err(NoSetting::Owner { path: one.path.clone(), why: why.to_owned() });
    let Some(owner) = one.owner else {
        return if one.users_from.is_some() { bad("'users_from' needs an 'owner', too") } else { Ok(()) };
    };
    let last_of_containers = uids::inside(uids::DC_ID_MAX) + UIDS;
    let of_containers = uids::FIRST..last_of_containers;
    if owner.uid == 0 || owner.gid == 0 {
        return bad("root of the node is no 'owner': who is root in a container would make set-uid programs of it");
    }
    if [owner.uid, owner.gid].iter().any(|id| *id >= u32::MAX - 1 || of_containers.contains(id)) {
        return bad("an 'owner' is none of the users that containers and their servers have");
    }
    let Some(first) = one.users_from else { return Ok(()) };
    let Some(end) = first.checked_add(UIDS).filter(|end| first > 0 && *end < u32::MAX) else {
        return bad("65,536 users from 'users_from' on are no users of the node but root");
    };
    if first < of_containers.end && of_containers.start < end {
        return bad("users from 'users_from' on are those that containers and their servers have");
    }
    if [owner.uid, owner.gid].iter().any(|id| (first..end).contains(id)) {
        return bad("the 'owner' is one of the users from 'users_from' on");
    }
    Ok(())
}

/// From the root, with no more than names in it: what it says is where it is.
fn is_plain(path: &str) -> bool {
    let as_it_is: PathBuf = Path::new(path).components().collect();
    path.starts_with('/')
        && path.len() <= PATH_BYTES_MAX
        && !path.contains('\0')
        && as_it_is.as_os_str() == path
        && Path::new(path).components().all(|part| matches!(part, Component::RootDir | Component::Normal(_)))
}

fn lies_in(path: &str, dir: &str) -> bool {
    Path::new(path).starts_with(dir)
}

/// Whether volumes are described so that they could be, on nodes that allow them.
pub fn check(spec: &DcSpec) -> Result<(), ErrorBody> {
    if spec.volumes.len() > VOLUMES_MAX {
        return Err(bad(format!("{} volumes are too many", spec.volumes.len())).hint(format!("at most {VOLUMES_MAX}")));
    }
    for (index, volume) in spec.volumes.iter().enumerate() {
        for path in [&volume.host, &volume.path] {
            if !is_plain(path) {
                let what = format!("the volume {volume} has the path {path:?}, which is none");
                return Err(bad(what).hint("a path from the root, without '.', '..' and '//', as in /srv/data:/data"));
            }
        }
        check_place(spec, volume)?;
        let earlier = spec.volumes.iter().take(index);
        let overlaps = |other: &&HostVolume| lies_in(&other.path, &volume.path) || lies_in(&volume.path, &other.path);
        if let Some(other) = earlier.filter(|other| other.meets(volume)).find(overlaps) {
            let what = format!("the volumes {other} and {volume} are one in the other");
            return Err(ErrorBody::new(ErrorKind::Conflict, what).hint("beside each other, as in /data and /docs"));
        }
        let spanned = |node: &&String| !spec.nodes.contains(node);
        if let Some(node) = volume.nodes.iter().find(spanned) {
            let what = format!("the volume {volume} is on {node:?}, which the container does not span");
            return Err(bad(what).hint(format!("one of {}", spec.nodes.join(", "))));
        }
    }
    Ok(())
}

fn check_place(spec: &DcSpec, volume: &HostVolume) -> Result<(), ErrorBody> {
    let refused = |why: &str| {
        Err(bad(format!("nothing can be seen at {}", volume.path))
            .because(why)
            .hint("elsewhere, as in /data or /srv/data"))
    };
    let mut parts = volume.path.split('/').skip(1);
    let (first, is_itself) = (parts.next().unwrap_or_default(), parts.next().is_none());
    if first == "dc" {
        return refused("the file tree of the container is there, the same on all nodes");
    }
    let is_taken = TAKEN.contains(&first) && (is_itself || !TAKEN_ITSELF.contains(&first));
    if first.is_empty() || is_taken || lies_in(&volume.path, RUN_DVS) {
        return refused("the container has its own system there");
    }
    if first == "opt" && spec.with_opt {
        return refused("the nodes' /opt is there (with_opt)");
    }
    Ok(())
}

/// What the administrator allows of a directory: by the longest path that it is, or lies below.
pub fn allowing<'a>(allowed: &'a [AllowedVolume], host: &str) -> Option<&'a AllowedVolume> {
    allowed.iter().filter(|one| lies_in(host, &one.path)).max_by_key(|one| one.path.len())
}

/// Whether these nodes allow what is described for them. A node that is not known is for others to refuse.
pub fn admit(spec: &DcSpec, nodes: &[String], known: &BTreeMap<String, Vec<AllowedVolume>>) -> Result<(), ErrorBody> {
    for node in nodes {
        let Some(allowed) = known.get(node) else { continue };
        let here = spec.volumes.iter().filter(|volume| volume.is_at(node));
        here.map(|volume| allowed_on(node, allowed, volume)).collect::<Result<Vec<_>, _>>()?;
    }
    Ok(())
}

fn allowed_on<'a>(
    node: &str,
    allowed: &'a [AllowedVolume],
    volume: &HostVolume,
) -> Result<&'a AllowedVolume, ErrorBody> {
    if let Some(found) = allowing(allowed, &volume.host) {
        return Ok(found);
    }
    let paths: Vec<&str> = allowed.iter().map(|one| one.path.as_str()).collect();
    let allows = if paths.is_empty() { "nothing".to_owned() } else { paths.join(", ") };
    let host = &volume.host;
    Err(ErrorBody::new(ErrorKind::Conflict, format!("node {node} does not allow {host} as a volume"))
        .because(format!("its administrator allows {allows} (setting 'volumes' in its dvsd.toml)"))
        .hint(format!(
            "{{ path = {host:?}, owner = \"UID:GID\" }} among 'volumes' in dvsd.toml of {node}, and restart its daemon"
        )))
}

/// The volumes of a container on a node.
pub fn mounts(
    spec: &DcSpec,
    node: &str,
    allowed: &[AllowedVolume],
    uid_base: u32,
) -> Result<Vec<VolumeMount>, ErrorBody> {
    let here = spec.volumes.iter().filter(|volume| volume.is_at(node));
    here.map(|volume| {
        let found = allowed_on(node, allowed, volume)?;
        let below = Path::new(&volume.host).strip_prefix(&found.path).unwrap_or(Path::new(""));
        Ok(VolumeMount {
            allowed: PathBuf::from(&found.path),
            below: below.to_owned(),
            place: PathBuf::from(&volume.path),
            read_only: volume.read_only || found.is_read_only(),
            owners: found.owner.map(|owner| Owners {
                uid: owner.uid,
                gid: owner.gid,
                users_from: found.users_from.unwrap_or(uid_base),
            }),
        })
    })
    .collect()
}

fn bad(what: impl Into<String>) -> ErrorBody {
    ErrorBody::new(ErrorKind::BadRequest, what)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn allowed(texts: &[&str]) -> Vec<AllowedVolume> {
        texts.iter().map(|text| text.parse().unwrap()).collect()
    }

    fn spec(volumes: &[&str]) -> DcSpec {
        let mut spec: DcSpec = serde_json::from_value(json!({ "name": "shop", "nodes": ["n1", "n2"] })).unwrap();
        spec.volumes = volumes.iter().map(|text| text.parse().unwrap()).collect();
        spec
    }

    #[test]
    fn directory_is_allowed_by_the_nearest_above_it_and_by_no_name_that_only_begins_alike() {
        let list = allowed(&["/srv=1000", "/srv/docs", "/home/a b=7:8:ro"]);
        let found = |host: &str| allowing(&list, host).map(|one| one.path.as_str());
        for (host, by) in [
            ("/srv", Some("/srv")),
            ("/srv/data", Some("/srv")),
            ("/srv/docs", Some("/srv/docs")),
            ("/srv/docs/x", Some("/srv/docs")),
            ("/srv/docsx", Some("/srv")),
            ("/srvx", None),
            ("/", None),
            ("/home", None),
            ("/home/a b/c", Some("/home/a b")),
            ("/etc", None),
        ] {
            assert_eq!(found(host), by, "{host}");
        }
        assert_eq!(allowing(&[], "/srv"), None, "nothing is allowed unless somebody says so");
    }

    #[test]
    fn volume_is_as_read_only_as_either_side_wants_it_and_belongs_to_whom_the_administrator_says() {
        let list = allowed(&["/rw=1000:100", "/ro=1000:ro", "/nobodys"]);
        let mounts = mounts(&spec(&["/rw/a/b:/a", "/rw:/b:ro", "/ro:/c", "/nobodys:/d"]), "n1", &list, 65_536).unwrap();
        let read_only: Vec<bool> = mounts.iter().map(|one| one.read_only).collect();
        assert_eq!(read_only, [false, true, true, true]);
        let owners = Owners { uid: 1000, gid: 100, users_from: 65_536 };
        assert_eq!((mounts[0].owners, mounts[3].owners), (Some(owners), None));
        assert_eq!((mounts[0].below.to_str(), mounts[1].below.to_str()), (Some("a/b"), Some("")));
    }

    #[test]
    fn node_that_does_not_allow_it_is_named_with_the_path_and_the_setting() {
        let both = BTreeMap::from([("n1".to_owned(), allowed(&["/srv=1000"])), ("n2".to_owned(), allowed(&["/docs"]))]);
        let nodes = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        let mut wanted = spec(&["/srv/data:/data"]);
        let refused = admit(&wanted, &wanted.nodes, &both).unwrap_err();
        let said = format!("{refused} {:?} {:?}", refused.because, refused.hint);
        for word in ["n2", "/srv/data", "/docs", "volumes", "dvsd.toml"] {
            assert!(said.contains(word), "{word}: {said}");
        }
        assert_eq!(admit(&wanted, &nodes(&["n1", "n3"]), &both), Ok(()));
        wanted.volumes[0].nodes = nodes(&["n1"]);
        assert_eq!(admit(&wanted, &wanted.nodes, &both), Ok(()));
    }

    #[test]
    fn paths_that_lead_elsewhere_or_cover_what_is_the_containers_are_refused() {
        for good in ["/a:/data", "/a:/srv/x", "/a:/etc/app", "/a:/opt", "/a:/run/app", "/a:/var/lib/x", "/a:/tmp"] {
            assert_eq!(check(&spec(&[good])), Ok(()), "{good}");
        }
        for wrong in [
            "/a/../etc:/data",
            "/a//b:/data",
            "/a/:/data",
            "/a/./b:/data",
            "/a:/data/..",
            "/a:/data/../etc",
            "/a:/",
            "/a:/dc",
            "/a:/dc/x",
            "/a:/usr/x",
            "/a:/bin",
            "/a:/lib64/x",
            "/a:/proc/1",
            "/a:/.proc",
            "/a:/dev/x",
            "/a:/sys",
            "/a:/etc",
            "/a:/run",
            "/a:/run/dvs/bin",
        ] {
            let refused = check(&spec(&[wrong])).unwrap_err();
            assert!(refused.hint.is_some(), "{wrong}");
        }
        assert!(check(&DcSpec { with_opt: true, ..spec(&["/a:/opt/x"]) }).is_err());
        let long = format!("/{}:/data", "a".repeat(PATH_BYTES_MAX));
        assert!(check(&spec(&[&long])).is_err());
        assert!(check(&spec(&vec!["/a:/b"; VOLUMES_MAX + 1])).is_err());
    }

    #[test]
    fn volumes_that_lie_in_each_other_are_refused_unless_they_are_on_different_nodes() {
        assert!(check(&spec(&["/a:/data", "/b:/data"])).is_err());
        assert!(check(&spec(&["/a:/data/x", "/b:/data"])).is_err());
        assert_eq!(check(&spec(&["/a:/data", "/a:/data2"])), Ok(()));
        let mut apart = spec(&["/a:/data", "/b:/data"]);
        apart.volumes[0].nodes = vec!["n1".to_owned()];
        assert!(check(&apart).is_err());
        apart.volumes[1].nodes = vec!["n2".to_owned()];
        assert_eq!(check(&apart), Ok(()));
        apart.volumes[1].nodes = vec!["n3".to_owned()];
        assert!(check(&apart).is_err(), "it spans no n3");
    }

    #[test]
    fn settings_that_would_give_the_node_away_are_refused() {
        let own = [Path::new("/var/lib/dvs"), Path::new("/run/dvs")];
        let checked = |text: &str| check_settings(&allowed(&[text]), &own);
        for good in ["/srv=1000", "/srv", "/srv/a=1000:100:ro", "/home/x=1001", "/var/lib/other"] {
            assert_eq!(checked(good), Ok(()), "{good}");
        }
        for wrong in [
            "/",
            "/proc",
            "/proc/1",
            "/sys/fs",
            "/dev",
            "/dev/shm",
            "/srv/",
            "/srv/../etc",
            "//srv",
            "/var",
            "/var/lib/dvs/dcs",
            "/run",
            "/srv=0",
            "/srv=1000:0",
            "/srv=4294967295",
            "/srv=268435457",
            "/srv=900001",
        ] {
            assert!(checked(wrong).is_err(), "{wrong}");
        }
        assert!(check_settings(&allowed(&["/srv", "/srv=1"]), &own).is_err());
        let mut many = allowed(&vec!["/srv"; ALLOWED_MAX + 1]);
        assert_eq!(check_settings(&many, &own), Err(NoSetting::TooMany));
        many.truncate(1);
        many[0].users_from = Some(500_000);
        assert!(check_settings(&many, &own).is_err(), "no owner");
        for (owner, from, is_good) in [
            ("1000", 500_000, true),
            ("1000", 0, false),
            ("500001", 500_000, false),
            ("1000", 1 << 28, false),
            ("1000", 850_000, false),
            ("1000", u32::MAX - 10, false),
        ] {
            (many[0].owner, many[0].users_from) = (Some(owner.parse().unwrap()), Some(from));
            assert_eq!(check_settings(&many, &own).is_ok(), is_good, "{owner} {from}");
        }
    }
}
