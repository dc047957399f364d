//! Contexts: clusters elsewhere, by names of a person's own choice. Each is a file with what the cluster's
//! administrator gave, and so a secret: `CONFIG/contexts/NAME.json`, where `CONFIG` is `$XDG_CONFIG_HOME/dvs`, or
//! `~/.config/dvs`. `CONFIG/context` names the one that is used when nothing else is said.

use std::fs::{self, DirBuilder, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use mgmt_api::AccessFile;
use serde::{Deserialize, Serialize};

/// In place of a context's name: none, but the daemon of this machine.
pub const LOCAL: &str = "local";
/// Environment variable that names a context.
pub const CONTEXT_VARIABLE: &str = "DVS_CONTEXT";

#[derive(Debug, thiserror::Error)]
pub enum ContextError {
    #[error("nobody knows where contexts are kept: neither HOME nor XDG_CONFIG_HOME is set")]
    NoPlace,
    #[error("{name:?} cannot be a context's name")]
    BadName { name: String },
    #[error("there is no context '{name}'")]
    Unknown { name: String, known: Vec<String> },
    #[error("there is a context '{name}' already")]
    Taken { name: String },
    #[error("{} may be read by others (mode {mode:03o}), and holds a secret", path.display())]
    Exposed { path: PathBuf, mode: u32 },
    #[error("{} is no token file and no context", path.display())]
    Malformed {
        path: PathBuf,
        #[source]
        source: serde_json::Error,
    },
    #[error("{} cannot be read or written", path.display())]
    File {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
}

/// A cluster elsewhere.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Context {
    #[serde(flatten)]
    pub access: AccessFile,
    /// When addresses and roots were last asked for: seconds since 1970.
    #[serde(default)]
    pub refreshed_s: u64,
}

pub struct Contexts {
    dir: PathBuf,
}

impl Contexts {
    pub fn of_this_person() -> Result<Contexts, ContextError> {
        let set = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
        let config = set("XDG_CONFIG_HOME").or_else(|| set("HOME").map(|home| home.join(".config")));
        Ok(Contexts::in_dir(&config.ok_or(ContextError::NoPlace)?.join("dvs")))
    }

    pub fn in_dir(dir: &Path) -> Contexts {
        Contexts { dir: dir.to_owned() }
    }

    /// Sorted.
    pub fn names(&self) -> Vec<String> {
        let entries = fs::read_dir(self.dir.join("contexts")).into_iter().flatten();
        let mut names: Vec<String> = entries
            .filter_map(|entry| entry.ok()?.file_name().to_str()?.strip_suffix(".json").map(str::to_owned))
            .filter(|name| mgmt_api::valid_name(name))
            .collect();
        names.sort();
        names
    }

    pub fn read(&self, name: &str) -> Result<Context, ContextError> {
        let path = self.path(name)?;
        match read_secret(&path) {
            Err(ContextError::File { source, .. }) if source.kind() == io::ErrorKind::NotFound => {
                Err(ContextError::Unknown { name: name.to_owned(), known: self.names() })
            }
            context => context,
        }
    }

    /// Replaces the one of this name.
    pub fn write(&self, name: &str, context: &Context) -> Result<(), ContextError> {
        let path = self.path(name)?;
        let dir = self.dir.join("contexts");
        let made = DirBuilder::new().recursive(true).mode(0o700).create(&dir);
        made.map_err(|source| ContextError::File { path: dir, source })?;
        write_secret(&path, &serde_json::to_string_pretty(context).unwrap_or_default())
    }

    pub fn remove(&self, name: &str) -> Result<(), ContextError> {
        let path = self.path(name)?;
        match fs::remove_file(&path) {
            Err(source) if source.kind() == io::ErrorKind::NotFound => {
                return Err(ContextError::Unknown { name: name.to_owned(), known: self.names() });
            }
            removed => removed.map_err(|source| ContextError::File { path, source })?,
        }
        if self.current().as_deref() == Some(name) { self.set_current(None) } else { Ok(()) }
    }

    /// The one that is used when nothing else is said.
    pub fn current(&self) -> Option<String> {
        let name = fs::read_to_string(self.dir.join("context")).ok()?;
        Some(name.trim().to_owned()).filter(|name| mgmt_api::valid_name(name))
    }

    pub fn set_current(&self, name: Option<&str>) -> Result<(), ContextError> {
        let path = self.dir.join("context");
        let Some(name) = name else {
            return match fs::remove_file(&path) {
                Err(source) if source.kind() != io::ErrorKind::NotFound => Err(ContextError::File { path, source }),
                _ => Ok(()),
            };
        };
        self.read(name)?;
        write_secret(&path, &format!("{name}\n"))
    }

    fn path(&self, name: &str) -> Result<PathBuf, ContextError> {
        if !mgmt_api::valid_name(name) || name == LOCAL {
            return Err(ContextError::BadName { name: name.to_owned() });
        }
        Ok(self.dir.join("contexts").join(format!("{name}.json")))
    }
}

/// A token file, or a context. One with a secret that others may read is refused: it is none any more.
pub fn read_secret(path: &Path) -> Result<Context, ContextError> {
    let failed = |source| ContextError::File { path: path.to_owned(), source };
    let text = fs::read_to_string(path).map_err(failed)?;
    let malformed = |source| ContextError::Malformed { path: path.to_owned(), source };
    let context: Context = serde_json::from_str(&text).map_err(malformed)?;
    let mode = fs::metadata(path).map_err(failed)?.mode() & 0o777;
    let has_secret = context.access.token.is_some() || context.access.key_pem.is_some();
    if has_secret && mode & 0o077 != 0 {
        return Err(ContextError::Exposed { path: path.to_owned(), mode });
    }
    Ok(context)
}

/// Replaces the file as a whole; it is its owner's alone from its first byte on.
pub fn write_secret(path: &Path, text: &str) -> Result<(), ContextError> {
    let failed = |source| ContextError::File { path: path.to_owned(), source };
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(format!(".{}.new", std::process::id()));
    let temporary = path.with_file_name(name);
    let _ = fs::remove_file(&temporary);
    let written = || {
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&temporary)?;
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        fs::rename(&temporary, path)
    };
    written().map_err(failed).inspect_err(|_| drop(fs::remove_file(&temporary)))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use mgmt_api::AccessRole;

    use super::*;

    fn context(name: &str) -> Context {
        let access = AccessFile {
            cluster: "home".to_owned(),
            name: name.to_owned(),
            role: AccessRole::Viewer,
            ends_s: 9,
            addresses: vec!["192.0.2.11:7420".to_owned()],
            roots_pem: "roots".to_owned(),
            revocations_pem: String::new(),
            token: Some("dvs_ada_00".to_owned()),
            certificate_pem: None,
            key_pem: None,
        };
        Context { access, refreshed_s: 5 }
    }

    #[test]
    fn context_is_its_owners_alone_and_what_was_written() {
        let dir = tempfile::tempdir().unwrap();
        let contexts = Contexts::in_dir(dir.path());
        assert!(contexts.names().is_empty() && contexts.current().is_none());
        contexts.write("b", &context("ada")).unwrap();
        contexts.write("a", &context("bob")).unwrap();
        assert_eq!(contexts.read("b").unwrap(), context("ada"));
        assert_eq!(contexts.names(), ["a", "b"]);
        let path = dir.path().join("contexts/b.json");
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
        contexts.set_current(Some("b")).unwrap();
        assert_eq!(contexts.current().as_deref(), Some("b"));
        fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
        assert!(matches!(contexts.read("b"), Err(ContextError::Exposed { mode: 0o640, .. })));
        contexts.remove("b").unwrap();
        assert!(contexts.current().is_none(), "it went with the context");
        assert!(matches!(contexts.read("b"), Err(ContextError::Unknown { known, .. }) if known == ["a"]));
        assert!(matches!(contexts.set_current(Some("c")), Err(ContextError::Unknown { .. })));
    }

    #[test]
    fn name_cannot_leave_its_place() {
        let dir = tempfile::tempdir().unwrap();
        let contexts = Contexts::in_dir(dir.path());
        for bad in ["../x", "", "a/b", "A", LOCAL] {
            assert!(matches!(contexts.write(bad, &context("ada")), Err(ContextError::BadName { .. })), "{bad}");
            assert!(matches!(contexts.remove(bad), Err(ContextError::BadName { .. })), "{bad}");
        }
    }

    #[test]
    fn token_file_is_a_context_that_was_never_refreshed() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("ada.json");
        write_secret(&path, &serde_json::to_string(&context("ada").access).unwrap()).unwrap();
        assert_eq!(read_secret(&path).unwrap(), Context { refreshed_s: 0, ..context("ada") });
        fs::write(&path, "{}").unwrap();
        assert!(matches!(read_secret(&path), Err(ContextError::Malformed { .. })));
    }
}
