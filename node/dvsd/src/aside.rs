//! Data of this node's member of etcd that were put aside: of an engine that was begun anew, or of a membership that
//! ended. Somebody may want what lies there, so the newest stay for ever. Older ones go once the member that came after
//! them serves, and if none ever does there are at most two.
//!
//! They are called `data.NUMBER`, and a later number was put aside later: the second since 1970, which the generation
//! of an engine is, too. `data.old`, of earlier releases, is older than all.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use crate::config::Config;
use crate::context::Context;
use crate::engine;
use crate::joining::certificates;
use crate::member;
use crate::quorum::EngineFile;
use crate::supervise::causes;

const OF_EARLIER_RELEASES: &str = "old";

/// Puts the data aside, if there are any. Of those that were put aside before one stays.
pub fn put(home: &Path, number: u64) -> io::Result<()> {
    let data = home.join("data");
    if !data.exists() {
        return Ok(());
    }
    let mut before = put_aside(home)?;
    let newest = before.pop();
    before.iter().try_for_each(|(_, path)| fs::remove_dir_all(path))?;
    let number = newest.map_or(number, |(newest, _)| number.max(newest.saturating_add(1)));
    fs::rename(&data, home.join(format!("data.{number}")))
}

/// All that were put aside, the newest last.
fn put_aside(home: &Path) -> io::Result<Vec<(u64, PathBuf)>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(home)? {
        let path = entry?.path();
        let number = path.file_name().and_then(|name| name.to_str()?.strip_prefix("data."));
        let number = number.and_then(|text| if text == OF_EARLIER_RELEASES { Some(0) } else { text.parse().ok() });
        found.extend(number.map(|number| (number, path)));
    }
    found.sort();
    Ok(found)
}

/// Removes all but the newest, when this node's member answers. Only somebody who finds more than one asks it.
pub fn forget_older(context: &Context) {
    let home = context.config.state_dir.join(member::NAME);
    // Most nodes have no member.
    let mut older = put_aside(&home).unwrap_or_default();
    let newest = older.pop();
    if older.is_empty() || !own_member_serves(context) {
        return;
    }
    for (_, path) in older {
        match fs::remove_dir_all(&path) {
            Ok(()) => tracing::info!(path = %path.display(), kept = ?newest, "data of an earlier member are removed"),
            Err(error) => tracing::warn!(path = %path.display(), %error, "data of an earlier member stay"),
        }
    }
}

/// It alone is asked, and answers only if it has what the others have.
fn own_member_serves(context: &Context) -> bool {
    let config: &Config = &context.config;
    let Some(managed) = context.etcd.as_ref().and_then(|etcd| etcd.managed.as_ref()) else { return false };
    let asked = || -> Result<bool, Box<dyn std::error::Error>> {
        let mut choice = managed.choice(config, &EngineFile::read(&config.state_dir)?)?;
        let Some(serve) = &choice.serve else { return Ok(false) };
        let host = serve.address.to_string();
        choice.members = vec![cluster::etcd::Member { host, port: serve.client_port }];
        let credentials = choice.tls_dir.as_deref().map(certificates::open).transpose()?;
        engine::ask_once(&choice, &config.node, credentials.as_ref())?;
        Ok(true)
    };
    asked().unwrap_or_else(|error| {
        tracing::debug!(error = causes(&*error), "data of earlier members stay: this node's does not answer");
        false
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listed(home: &Path) -> Vec<String> {
        let names = fs::read_dir(home).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
        let mut names: Vec<String> = names.collect();
        names.sort();
        names
    }

    #[test]
    fn at_most_two_are_put_aside_the_newest_last_whatever_the_clock_says() {
        let home = tempfile::tempdir().unwrap();
        let begin = |content: &str| {
            fs::create_dir(home.path().join("data")).unwrap();
            fs::write(home.path().join("data/wal"), content).unwrap();
        };
        put(home.path(), 5).unwrap();
        assert!(listed(home.path()).is_empty(), "there was nothing");
        for name in ["data.old", "data.draft", "tls"] {
            fs::create_dir(home.path().join(name)).unwrap();
        }
        begin("one");
        put(home.path(), 100).unwrap();
        begin("two");
        put(home.path(), 200).unwrap();
        assert_eq!(listed(home.path()), ["data.100", "data.200", "data.draft", "tls"]);
        begin("three");
        put(home.path(), 150).unwrap();
        assert_eq!(listed(home.path()), ["data.200", "data.201", "data.draft", "tls"]);
        assert_eq!(fs::read_to_string(home.path().join("data.201/wal")).unwrap(), "three");
        let order: Vec<u64> = put_aside(home.path()).unwrap().into_iter().map(|(number, _)| number).collect();
        assert_eq!(order, [200, 201]);
    }
}
