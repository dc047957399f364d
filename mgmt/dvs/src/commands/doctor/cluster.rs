//! The cluster, as the daemon of this machine sees it.

use client::Error;
use mgmt_api::Examination;

use super::examined::{Examined, State};
use crate::cli::Global;
use crate::commands::{block_on, daemon};
use crate::errors::Failure;

const NEEDED_FOR: &str = "containers that span nodes";

/// Nothing where no daemon was ever started: a machine that is being prepared is no node.
pub fn examine(global: &Global) -> Vec<Examined> {
    let place = match daemon(global) {
        Ok(daemon) => daemon,
        Err(failure) => return vec![cannot_be_asked(&failure)],
    };
    match block_on(place.examine()) {
        Ok(Ok(examination)) => told(examination),
        Ok(Err(Error::NoDaemon { socket, .. })) if !is_a_node(&socket) => Vec::new(),
        Ok(Err(error)) => vec![cannot_be_asked(&error.into())],
        Err(failure) => vec![cannot_be_asked(&failure)],
    }
}

/// A daemon leaves records of what it started, and a daemon that was killed its socket.
fn is_a_node(socket: &std::path::Path) -> bool {
    let record = socket.parent().map(|dir| dir.join("shelf.json"));
    socket.exists() || record.is_some_and(|record| record.exists())
}

fn told(examination: Examination) -> Vec<Examined> {
    let Examination { cluster, seen_from, nodes, troubles } = examination;
    if troubles.is_empty() {
        let well = Examined::well("cluster", NEEDED_FOR);
        let found =
            format!("{} nodes of cluster {cluster}, as {seen_from} sees them: {}", nodes.len(), nodes.join(", "));
        return vec![Examined { found, ..well }];
    }
    troubles.into_iter().map(Examined::from).collect()
}

fn cannot_be_asked(failure: &Failure) -> Examined {
    let mut found = failure.what.clone();
    failure.because.iter().for_each(|cause| found.push_str(&format!(": {cause}")));
    let what_to_do = "systemctl status dvsd, systemctl start dvsd; journalctl -u dvsd says why it ended".to_owned();
    Examined { state: State::Broken, found, what_to_do, ..Examined::well("daemon", NEEDED_FOR) }
}
