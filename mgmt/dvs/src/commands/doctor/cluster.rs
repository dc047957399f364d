//! The cluster, as the daemon of this machine sees it.

use client::Error;
use mgmt_api::Examination;

use super::examined::{Examined, State};
use crate::cli::Global;
use crate::commands::{block_on, daemon};
use crate::errors::Failure;

const NEEDED_FOR: &str = "containers that span nodes";
const START_SERVICE: &str = "systemctl status dvsd, systemctl start dvsd; journalctl -u dvsd says why it ended";
const START_OTHER: &str = "start the daemon; of a development cluster: dvs dev restart NODE, or dvs doctor --clean";

/// Nothing where no daemon was ever started: a machine that is being prepared is no node.
pub fn examine(global: &Global) -> Vec<Examined> {
    // Which daemon is meant may be open: that is no fault of a cluster.
    let place = match daemon(global) {
        Ok(daemon) => daemon,
        Err(failure) => return vec![not_asked(State::Degraded, failure)],
    };
    match block_on(place.examine()) {
        Ok(Ok(examination)) => told(examination),
        Ok(Err(Error::NoDaemon { socket, .. })) if !is_a_node(&socket) => Vec::new(),
        Ok(Err(Error::NoDaemon { socket, source })) => {
            let is_service = socket == global.places().system_socket();
            let hint = if is_service { START_SERVICE } else { START_OTHER };
            let gone = Failure::from(Error::NoDaemon { socket, source });
            vec![not_asked(State::Broken, gone.hint(hint))]
        }
        // Who may not ask has been told so by the check for root.
        Ok(Err(error @ Error::NotPermitted { .. })) => vec![not_asked(State::Degraded, error.into())],
        Ok(Err(error)) => vec![not_asked(State::Broken, error.into())],
        Err(failure) => vec![not_asked(State::Broken, failure)],
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

fn not_asked(state: State, failure: Failure) -> Examined {
    let Failure { what, because, hint, .. } = failure;
    let found = [vec![what], because].concat().join(": ");
    Examined { state, found, what_to_do: hint.unwrap_or_default(), ..Examined::well("daemon", NEEDED_FOR) }
}
