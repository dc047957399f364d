//! Every metric. What is exposed and is not declared here does not compile; what is declared and never set fails a test
//! (`tests/tests/metrics.rs`).

/// What the numbers of a metric mean (OpenMetrics 1.0, "Metric Types").
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// Only grows, from 0 at the start of what is counted.
    Counter,
    Gauge,
    Histogram,
    /// Says something in its labels; the value is 1.
    Info,
    /// One line for each state that there is; the present one has 1. The state is in a label that has the metric's
    /// name.
    StateSet,
}

/// One of them. The name of one that has a unit ends with it.
#[derive(PartialEq, Eq, Debug)]
pub struct Metric {
    pub name: &'static str,
    pub kind: Kind,
    /// Empty: a number of things.
    pub unit: &'static str,
    pub labels: &'static [&'static str],
    pub help: &'static str,
}

macro_rules! metrics {
    ($($constant:ident: $kind:ident $name:literal $unit:literal [$($label:literal)*] $help:literal;)*) => {
        $(pub static $constant: Metric = Metric {
            name: $name, kind: Kind::$kind, unit: $unit, labels: &[$($label),*], help: $help
        };)*

        /// In the order in which they are shown.
        pub static TABLE: &[&Metric] = &[$(&$constant),*];
    };
}

metrics! {
    // The daemon.
    BUILD: Info "dvs_build" "" ["version"] "Version of the daemon.";
    NODE: Info "dvs_node" "" ["node" "cluster"] "Which node answers.";
    DAEMON_START: Gauge "dvs_daemon_start_time_seconds" "seconds" [] "When the daemon was started, since 1970.";
    DAEMON_CHECK: Gauge "dvs_daemon_check_passed" "" ["check"] "Whether a part of the daemon is well, as at /readyz.";
    DAEMON_CPU: Counter "dvs_daemon_cpu_seconds" "seconds" [] "Processor time that the daemon took.";
    DAEMON_MEMORY: Gauge "dvs_daemon_resident_memory_bytes" "bytes" [] "Memory of the daemon's process.";
    DAEMON_FILES: Gauge "dvs_daemon_open_files" "" [] "Descriptors that the daemon has open.";
    DAEMON_FILES_MAX: Gauge "dvs_daemon_open_files_max" "" [] "Descriptors that it may have open.";
    DAEMON_THREADS: Gauge "dvs_daemon_threads" "" [] "Threads of the daemon's process.";
    DAEMON_DUTIES_OVERDUE: Gauge "dvs_daemon_duties_overdue" "" [] "Duties of the daemon that do not come to their end.";
    API_REQUESTS: Counter "dvs_api_requests" "" ["answer"] "Requests to the API, by the class of the answer.";
    API_PEOPLE: Gauge "dvs_api_people_connections" "" [] "Connections of people from elsewhere, streams among them.";
    PROCESS_RESTARTS: Counter "dvs_process_restarts" "" ["role"]
        "Restarts of the node's own processes: shelf, proxies, a member of etcd.";

    // The broker of messages.
    BROKER_ENDPOINTS: Gauge "dvs_broker_endpoints" "" [] "Endpoints that are bound on this node.";
    BROKER_CHANNELS: Gauge "dvs_broker_channels" "" [] "Channels with an end on this node.";
    BROKER_CHANNELS_MADE: Counter "dvs_broker_channels_made" "" [] "Channels made since the daemon was started.";

    // The cluster engine, as this node calls it.
    ENGINE_CALLS: Counter "dvs_engine_calls" "" ["call"] "Calls to the cluster engine.";
    ENGINE_ERRORS: Counter "dvs_engine_errors" "" ["call"] "Calls that ended with an error; conflicts are none.";
    ENGINE_TIME: Histogram "dvs_engine_call_seconds" "seconds" ["call"] "How long calls to the cluster engine took.";
    ENGINE_CONNECTIONS: Counter "dvs_engine_connections" "" []
        "Connections to members of the cluster engine; the first one and each reconnection.";
    ENGINE_AWAY: Gauge "dvs_engine_away_seconds" "seconds" [] "For how long the cluster engine has not answered; 0: it does.";
    ENGINE_LEASE: Gauge "dvs_engine_lease_held" "" [] "Whether this node has its lease.";
    CLUSTER_NODES: Gauge "dvs_cluster_nodes" "" [] "Nodes of the cluster, as this one knows them.";
    CLUSTER_NODES_ALIVE: Gauge "dvs_cluster_nodes_alive" "" [] "Nodes whose lease runs.";

    // Links, as this node sees them.
    LINK_STATE: StateSet "dvs_link_state" "" ["peer" "pair"] "State of a link to another node.";
    LINK_SENT_BYTES: Counter "dvs_link_sent_bytes" "bytes" ["peer" "pair" "transport"] "Bytes sent over a link.";
    LINK_RECEIVED_BYTES: Counter "dvs_link_received_bytes" "bytes" ["peer" "pair" "transport"] "Bytes received over a link.";
    LINK_SENT_FRAMES: Counter "dvs_link_sent_frames" "" ["peer" "pair" "transport"] "Frames sent over a link.";
    LINK_RECEIVED_FRAMES: Counter "dvs_link_received_frames" "" ["peer" "pair" "transport"] "Frames received over a link.";
    LINK_SENT_MESSAGES: Counter "dvs_link_sent_messages" "" ["peer" "pair" "transport"] "Messages sent over a link.";
    LINK_RECEIVED_MESSAGES: Counter "dvs_link_received_messages" "" ["peer" "pair" "transport"]
        "Messages received over a link.";
    LINK_SENT_ENTRIES: Counter "dvs_link_sent_entries" "" ["peer" "pair" "transport"] "Entries of rings sent over a link.";
    LINK_RECEIVED_ENTRIES: Counter "dvs_link_received_entries" "" ["peer" "pair" "transport"]
        "Entries of rings received over a link.";
    LINK_RECONNECTS: Counter "dvs_link_reconnects" "" ["peer" "pair" "transport"] "Connections of a link after the first one.";
    LINK_CHANNELS: Gauge "dvs_link_channels" "" ["peer" "pair" "transport"] "Channels that a link carries.";
    LINK_ROUND_TRIP: Gauge "dvs_link_round_trip_seconds" "seconds" ["peer" "pair" "transport"]
        "Time to the other node and back, as heartbeats measured it last.";

    // Containers with a share on this node.
    CONTAINER_PHASE: StateSet "dvs_container_phase" "" ["dc"] "What this node's share of a container is doing.";
    CONTAINER_PROBLEMS: Gauge "dvs_container_problems" "" ["dc"] "What is not well of a container on this node.";
    SERVER_UP: Gauge "dvs_server_up" "" ["dc" "server"] "Whether a server or gate of a container runs on this node.";
    SERVER_RESTARTS: Counter "dvs_server_restarts" "" ["dc" "server"] "Restarts of a server or gate of a container.";

    // Their ports that are published here.
    PORT_CONNECTIONS: Gauge "dvs_port_connections" "" ["dc" "port"] "Connections to a published port, and clients of datagrams.";
    PORT_CLIENTS: Counter "dvs_port_clients" "" ["dc" "port"] "Clients that came to a published port, since its gate began.";
    PORT_CLIENTS_REFUSED: Counter "dvs_port_clients_refused" "" ["dc" "port"]
        "Of them, those for which nobody listened in the container.";

    // The machine.
    HOST_SPACE: Gauge "dvs_host_space_bytes" "bytes" ["place"] "Size of the file system of a directory of the daemon.";
    HOST_SPACE_FREE: Gauge "dvs_host_space_free_bytes" "bytes" ["place"] "What is free in it.";
    CERTIFICATE_EXPIRY: Gauge "dvs_certificate_expiry_seconds" "seconds" ["certificate"]
        "When a certificate of the node ends, since 1970.";
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn names_are_those_of_the_standard_and_each_is_there_once() {
        let names: BTreeSet<&str> = TABLE.iter().map(|metric| metric.name).collect();
        assert_eq!(names.len(), TABLE.len());
        let is_word = |text: &str| text.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_');
        for metric in TABLE {
            let Metric { name, kind, unit, labels, help } = metric;
            assert!(name.starts_with("dvs_") && is_word(name), "{name}");
            assert!(unit.is_empty() || name.ends_with(&format!("_{unit}")), "{name} in {unit}");
            assert!(["_total", "_info", "_count", "_sum", "_bucket"].iter().all(|end| !name.ends_with(end)), "{name}");
            assert!(help.ends_with('.') && !help.contains('\n'), "{name}");
            assert!(labels.iter().all(|label| is_word(label) && label != name && *label != "le"), "{name}");
            assert!(!matches!(kind, Kind::Info | Kind::StateSet) || unit.is_empty(), "{name}");
        }
    }
}
