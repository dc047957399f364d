//! Asks the parts of the daemon, and takes its health from the last report.

use std::path::Path;

use keeper::KeeperClient;
use mgmt_api::{DcPhase, LinkInfo, LinkState, NodeShare, ServerState};
use vos_api::ports::PortCounts;

use super::engine::Call;
use super::process::OwnProcess;
use super::table as metric;
use super::text::Exposition;
use crate::api::{self, HealthCheck};
use crate::context::Context;
use crate::reconcile::{parts, published};
use crate::space::Space;
use crate::state;
use crate::supervise::Problem;

const LINK_STATES: [&str; 5] = ["up", "suspect", "broken", "down", "unknown"];
const PHASES: [&str; 6] = ["stopped", "starting", "running", "degraded", "stopping", "failed"];

/// All that is known now, as text.
pub fn exposition(context: &Context) -> String {
    let mut exposition = Exposition::default();
    daemon(context, &mut exposition);
    broker(context, &mut exposition);
    engine(context, &mut exposition);
    context.proxy.links().iter().for_each(|link| one_link(link, &mut exposition));
    containers(context, &mut exposition);
    machine(context, &mut exposition);
    exposition.text()
}

fn daemon(context: &Context, out: &mut Exposition) {
    out.set(&metric::BUILD, &[env!("CARGO_PKG_VERSION")], true);
    out.set(&metric::NODE, &[&context.config.node, &context.config.cluster], true);
    for HealthCheck { name, problems } in checked(context) {
        out.set(&metric::DAEMON_CHECK, &[&name], problems.is_empty());
    }
    out.set(&metric::DAEMON_DUTIES_OVERDUE, &[], context.duties.problems().len());
    let process = OwnProcess::now();
    let numbers = [(&metric::DAEMON_START, process.start_s), (&metric::DAEMON_CPU, process.cpu_s)];
    numbers.into_iter().for_each(|(metric, number)| number.into_iter().for_each(|it| out.set(metric, &[], it)));
    for (metric, number) in [
        (&metric::DAEMON_MEMORY, process.memory_bytes),
        (&metric::DAEMON_THREADS, process.threads),
        (&metric::DAEMON_FILES, process.open_files),
        (&metric::DAEMON_FILES_MAX, rustix::process::getrlimit(rustix::process::Resource::Nofile).current),
    ] {
        number.into_iter().for_each(|number| out.set(metric, &[], number));
    }
    for (class, count) in context.requests.counted() {
        out.set(&metric::API_REQUESTS, &[class], count);
    }
    out.set(&metric::API_PEOPLE, &[], context.people.guests());
    for child in state::recorded(&context.config.run_dir) {
        out.set(&metric::PROCESS_RESTARTS, &[&child.role], child.restarts);
    }
}

/// An engine that is away is asked for seconds: not again for who counts.
fn checked(context: &Context) -> Vec<HealthCheck> {
    let checked = context.checked.lock().clone();
    if checked.is_empty() { api::checks(context) } else { checked }
}

fn broker(context: &Context, out: &mut Exposition) {
    // Without an answer the check of the broker says so.
    let Ok(snapshot) = context.broker.snapshot() else { return };
    let is_local = |home: &broker::Home| matches!(home, broker::Home::Local { .. });
    let endpoints = snapshot.dcs.iter().flat_map(|dc| &dc.endpoints).filter(|one| is_local(&one.home)).count();
    out.set(&metric::BROKER_ENDPOINTS, &[], endpoints);
    out.set(&metric::BROKER_CHANNELS, &[], snapshot.dcs.iter().map(|dc| dc.channels.len()).sum::<usize>());
    out.set(&metric::BROKER_CHANNELS_MADE, &[], snapshot.channels_made);
}

fn engine(context: &Context, out: &mut Exposition) {
    for call in Call::ALL {
        let Some(counted) = context.tally.counted(call) else { continue };
        out.set(&metric::ENGINE_CALLS, &[call.name()], counted.calls());
        out.set(&metric::ENGINE_ERRORS, &[call.name()], counted.errors);
        out.set_distribution(&metric::ENGINE_TIME, &[call.name()], &counted.distribution());
    }
    out.set(&metric::ENGINE_CONNECTIONS, &[], context.engine.connections());
    let away_s = context.answers.away_for().map_or(0.0, |away| away.as_secs_f64());
    out.set(&metric::ENGINE_AWAY, &[], away_s);
    out.set(&metric::ENGINE_LEASE, &[], context.lease().is_some());
    out.set(&metric::CLUSTER_NODES, &[], context.members.read().len());
    out.set(&metric::CLUSTER_NODES_ALIVE, &[], context.observed.lock().alive.len());
}

fn one_link(link: &LinkInfo, out: &mut Exposition) {
    let pair = link.pair.to_string();
    let state = match link.state {
        LinkState::Up => "up",
        LinkState::Suspect => "suspect",
        LinkState::Broken => "broken",
        LinkState::Down => "down",
        LinkState::Unknown => "unknown",
    };
    out.set_state(&metric::LINK_STATE, &[&link.peer, &pair], &LINK_STATES, state);
    let labels = [link.peer.as_str(), &pair, &link.transport];
    for (metric, number) in [
        (&metric::LINK_SENT_BYTES, link.sent_bytes),
        (&metric::LINK_RECEIVED_BYTES, link.received_bytes),
        (&metric::LINK_SENT_FRAMES, link.sent_frames),
        (&metric::LINK_RECEIVED_FRAMES, link.received_frames),
        (&metric::LINK_SENT_MESSAGES, link.sent_messages),
        (&metric::LINK_RECEIVED_MESSAGES, link.received_messages),
        (&metric::LINK_SENT_ENTRIES, link.sent_entries),
        (&metric::LINK_RECEIVED_ENTRIES, link.received_entries),
        (&metric::LINK_RECONNECTS, link.reconnects),
        (&metric::LINK_CHANNELS, u64::from(link.channels)),
    ] {
        out.set(metric, &labels, number);
    }
    if let Some(us) = link.round_trip_us {
        out.set(&metric::LINK_ROUND_TRIP, &labels, us as f64 / 1e6);
    }
}

/// A gate that begins says nothing yet.
fn ports(context: &Context, dc: &str, id: u32, out: &mut Exposition) {
    let counts = KeeperClient::connect(parts::keeper_socket(&context.config.dc_run_dir(id)))
        .map_err(Problem::from)
        .and_then(|keeper| published::counts(&keeper));
    for PortCounts { name, open, taken, refused } in counts.unwrap_or_default() {
        let labels = [dc, &published::in_short(&name)];
        out.set(&metric::PORT_CONNECTIONS, &labels, u64::from(open));
        out.set(&metric::PORT_CLIENTS, &labels, taken);
        out.set(&metric::PORT_CLIENTS_REFUSED, &labels, refused);
    }
}

fn containers(context: &Context, out: &mut Exposition) {
    // Copied, so that nobody waits for this one's text.
    let shares: Vec<(String, u32, NodeShare)> = {
        let observed = context.observed.lock();
        let views = observed.names().into_iter().filter_map(|name| Some((observed.view(&name)?, name)));
        let own = views.filter_map(|(mut view, name)| {
            Some((name, view.record.id, view.shares.remove(&context.config.node)?.share))
        });
        own.collect()
    };
    for (dc, id, share) in shares {
        let phase = match share.phase {
            DcPhase::Stopped => "stopped",
            DcPhase::Starting => "starting",
            DcPhase::Running => "running",
            DcPhase::Degraded => "degraded",
            DcPhase::Stopping => "stopping",
            DcPhase::Failed => "failed",
        };
        out.set_state(&metric::CONTAINER_PHASE, &[&dc], &PHASES, phase);
        out.set(&metric::CONTAINER_PROBLEMS, &[&dc], share.problems.len());
        if !share.ports.is_empty() {
            ports(context, &dc, id, out);
        }
        for server in &share.servers {
            out.set(&metric::SERVER_UP, &[&dc, &server.name], server.state == ServerState::Running);
            out.set(&metric::SERVER_RESTARTS, &[&dc, &server.name], server.restarts);
        }
    }
}

fn machine(context: &Context, out: &mut Exposition) {
    let config = &context.config;
    let engine = config.engine.parent().unwrap_or(Path::new("/"));
    for (place, path) in [("state", config.state_dir.as_path()), ("run", &config.run_dir), ("engine", engine)] {
        let Ok(space) = Space::at(path) else { continue };
        out.set(&metric::HOST_SPACE, &[place], space.whole_bytes);
        out.set(&metric::HOST_SPACE_FREE, &[place], space.free_bytes);
    }
    for (name, file) in [("node", pki::NODE_CERT), ("authority", pki::CA_CERT)] {
        if let Ok(expiry) = pki::expiry_s(&config.tls_dir.join(file)) {
            out.set(&metric::CERTIFICATE_EXPIRY, &[name], expiry);
        }
    }
}
