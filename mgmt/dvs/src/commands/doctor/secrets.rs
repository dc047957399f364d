//! What must not leave this machine in a report.
//!
//! A report takes only what is known to hold none: no environment, no arguments and no output of programs, no file of
//! keys. This is the second line: what a secret of this node is, is looked up, and every text is searched for it before
//! it is written.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use serde_json::Value;

const REMOVED: &str = "[secret]";
/// A shorter word may be part of any text; nobody should have it for a password.
const SECRET_BYTES_MIN: usize = 6;
/// Of a file that holds one.
const FILE_BYTES_MAX: u64 = 64 << 10;

#[derive(Default)]
pub struct Secrets {
    words: BTreeSet<String>,
}

impl Secrets {
    /// Of a node with these settings, whose files are below `state_dir`.
    pub fn of(settings: &Value, state_dir: &Path) -> Secrets {
        let mut secrets = Secrets::default();
        let path = |pointer: &str| settings.pointer(pointer).and_then(Value::as_str).map(PathBuf::from);
        path("/etcd/password_file").iter().for_each(|file| secrets.learn(file));
        let dirs = [path("/tls_dir"), path("/etcd/tls_dir"), Some(state_dir.join("tls")), Some(state_dir.to_owned())];
        for file in dirs.into_iter().flatten().flat_map(|dir| files(&dir)) {
            let name = file.file_name().unwrap_or_default().to_string_lossy().to_lowercase();
            if name.ends_with(".key") || ["token", "password", "secret"].iter().any(|word| name.contains(word)) {
                secrets.learn(&file);
            }
        }
        secrets
    }

    /// Each line of a file is a secret, but for the words around a key.
    fn learn(&mut self, file: &Path) {
        if std::fs::metadata(file).is_ok_and(|about| about.len() > FILE_BYTES_MAX) {
            return;
        }
        let text = std::fs::read_to_string(file).unwrap_or_default();
        let lines = text.lines().map(str::trim).filter(|line| !line.starts_with("-----"));
        self.words.extend(lines.filter(|line| line.len() >= SECRET_BYTES_MIN).map(str::to_owned));
    }

    /// Without them, and without anything between the lines that begin and end a private key.
    pub fn removed_from(&self, text: &str) -> String {
        let mut clean = String::with_capacity(text.len());
        let mut is_key = false;
        for line in text.split_inclusive('\n') {
            let begins = line.contains("-----BEGIN") && line.contains("PRIVATE KEY");
            if begins && !is_key {
                clean.push_str(REMOVED);
                clean.push('\n');
            }
            is_key |= begins;
            if !is_key {
                clean.push_str(line);
            }
            is_key &= !(line.contains("-----END") && line.contains("PRIVATE KEY"));
        }
        self.words.iter().fold(clean, |text, word| text.replace(word, REMOVED))
    }
}

fn files(directory: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten().map(|entry| entry.path());
    entries.filter(|path| path.is_file()).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn secrets_of_files_are_found_and_removed_wherever_they_are() {
        let dir = tempfile::tempdir().unwrap();
        let (state, etc) = (dir.path().join("state"), dir.path().join("etc"));
        for path in [&state.join("tls"), &etc] {
            std::fs::create_dir_all(path).unwrap();
        }
        std::fs::write(etc.join("pw"), "hunter2hunter2\n").unwrap();
        std::fs::write(state.join("join-token"), "dvs1.abcdef\n").unwrap();
        std::fs::write(
            state.join("tls/node.key"),
            "-----BEGIN PRIVATE KEY-----\nQUJDREVGRw==\n-----END PRIVATE KEY-----\n",
        )
        .unwrap();
        std::fs::write(state.join("tls/node.crt"), "-----BEGIN CERTIFICATE-----\npublicpublic\n").unwrap();
        let settings = json!({ "etcd": { "password_file": etc.join("pw") } });
        let secrets = Secrets::of(&settings, &state);
        let text = "user dvs, password hunter2hunter2; token=dvs1.abcdef, publicpublic\nQUJDREVGRw==";
        assert_eq!(secrets.removed_from(text), "user dvs, password [secret]; token=[secret], publicpublic\n[secret]");
    }

    #[test]
    fn key_of_anybody_is_removed_also_when_its_end_is_missing() {
        let secrets = Secrets::default();
        let text = "a\n-----BEGIN RSA PRIVATE KEY-----\nxyz\n-----END RSA PRIVATE KEY-----\nb\n-----BEGIN PRIVATE KEY-----\nxyz";
        assert_eq!(secrets.removed_from(text), "a\n[secret]\nb\n[secret]\n");
    }
}
