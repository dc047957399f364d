//! What containers use of their nodes.

use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use axum::body::Body;
use axum::extract::{Path, State};
use axum::http::HeaderMap;
use axum::response::Response;
use keeper::KeeperClient;
use mgmt_api::{ErrorKind, FileUsage, NodeUsage, path};
use sandbox::cgroup::{self, Capacity, Cgroup, CgroupError, Hierarchy};
use vos_api::gates::{FIGURES_AT, GateFigures};

use super::failure::{Failure, failure};
use super::gather::gather;
use super::{Api, blocking};
use crate::kinds::GATE_STATE;
use crate::reconcile::parts::{cgroup_name, keeper_socket};
use crate::records::DcView;

/// Of all nodes; those that do not answer are named in a header.
pub async fn list(
    State(api): State<Arc<Api>>,
    Path(dc): Path<String>,
    headers: HeaderMap,
) -> Result<Response<Body>, Failure> {
    let view = api.dc(&dc).await?;
    let mut found = gather(&api, &view, &headers, path::DC_USAGE, own).await?;
    found.items.sort_by_key(|usage: &NodeUsage| view.record.seat_of(&usage.node));
    Ok(found.answer())
}

/// Of this node; nothing where the container does not run.
async fn own(api: Arc<Api>, view: DcView) -> Result<Vec<NodeUsage>, Failure> {
    blocking(move || {
        let name = cgroup_name(&api.context.config, view.record.id);
        let found = match Hierarchy::detect() {
            Ok(hierarchy) => cgroup::list(&hierarchy).into_iter().find(|group| group.name() == name),
            Err(CgroupError::NotMounted) => None,
            Err(error) => return Err(failure(ErrorKind::Internal, error.to_string(), "dvs doctor")),
        };
        Ok(found.map(|group| usage(&api, &view, &group)).into_iter().collect())
    })
    .await
}

fn usage(api: &Api, view: &DcView, group: &Cgroup) -> NodeUsage {
    let (used, granted) = (group.stats(), Capacity::of_this_node().grant(&view.record.spec.limits));
    NodeUsage {
        node: api.context.config.node.clone(),
        cpu_ms: used.cpu_ns / 1_000_000,
        memory_bytes: used.memory_bytes,
        memory_limit_bytes: granted.memory_bytes,
        pids: used.pids,
        pids_limit: granted.pids,
        oom_kills: group.oom_kills().unwrap_or(0),
        files: files(api, view),
    }
}

/// What the file gate says of itself.
fn files(api: &Api, view: &DcView) -> Option<FileUsage> {
    let keeper = KeeperClient::connect(keeper_socket(&api.context.config.dc_run_dir(view.record.id))).ok()?;
    let state = keeper.fetch(GATE_STATE).ok()??;
    let mut bytes = [0; size_of::<GateFigures>()];
    std::fs::File::from(state).read_exact_at(&mut bytes, FIGURES_AT).ok()?;
    let figures = GateFigures::read(&bytes)?;
    let since = SystemTime::UNIX_EPOCH + Duration::from_nanos(figures.untold_since_ns.get());
    let is_waiting = figures.untold.get() > 0;
    let waits = if is_waiting { since.elapsed().unwrap_or_default() } else { Duration::ZERO };
    Some(FileUsage {
        here: figures.here.get(),
        asked: figures.asked.get(),
        recalls: figures.recalls.get(),
        promised: figures.promised.get(),
        untold: figures.untold.get(),
        untold_ms: u64::try_from(waits.as_millis()).unwrap_or(u64::MAX),
    })
}
