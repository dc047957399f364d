//! `dvs plan` and `dvs apply`: containers become as a file describes them.

use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use client::{AfterCreate, AfterRemoval, BeforeDelete, Client};
use mgmt_api::{ApplyPlan, ApplyRequest, DcPlan, DcSpec, PlanRequest, ServiceInfo, ServiceState};
use serde::Deserialize;

use super::dc::create::living_nodes;
use super::{Outcome, block_on, daemon, print, say};
use crate::cli::Global;
use crate::described;
use crate::errors::Failure;
use crate::output::{self, Row, printable};
use crate::units::parse_duration;

/// Between looks at services that are on their way.
const LOOK_AGAIN: Duration = Duration::from_millis(200);

/// Show what dvs apply would change
#[derive(Args, Debug)]
#[command(after_help = "\
Nothing is changed. Exit status 1: something of it would be refused.

Examples:
  dvs plan -f shop.toml
  dvs dc export shop | dvs plan -f -         nothing to do
  dvs plan -f shop.toml -o json              with the requests of the API that dvs apply makes")]
pub struct PlanOptions {
    #[command(flatten)]
    described: Described,
}

/// Make containers as a file describes them
#[derive(Args, Debug)]
#[command(after_help = "\
What there is already is changed while it runs, as far as it differs; containers that the file does not name stay as they \
are. A description has the form of dc.toml (dvs dc create --help), or several of it, each below [[dc]]. What a description does \
not say is as usual, but nodes, disks and servers: these stay. With 'generation = N' in it, a container that was changed since \
is left alone. It is answered when all of it runs, or after --timeout, and then says what is missing; where nothing was to be \
changed, after a minute at most.

Examples:
  dvs apply -f shop.toml
  dvs apply -f shop.toml --timeout 2m
  dvs dc export shop > shop.toml && $EDITOR shop.toml && dvs plan -f shop.toml && dvs apply -f shop.toml")]
pub struct ApplyOptions {
    #[command(flatten)]
    described: Described,
    /// Give up waiting after this long, e.g. 90s or 5m; what is begun goes on.
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    timeout: Option<Duration>,
    /// Do not wait until the services run.
    #[arg(long)]
    no_wait: bool,
    /// Typed out of habit: it is so.
    #[arg(long, hide = true, conflicts_with = "no_wait")]
    wait: bool,
}

#[derive(Args, Debug)]
struct Described {
    /// TOML file; - is standard input.
    #[arg(short, long, value_name = "FILE")]
    file: PathBuf,
    /// Leave containers stopped that are new or stopped.
    #[arg(long)]
    no_start: bool,
}

/// How long is waited for services of a container in which nothing is to be changed.
const ON_ITS_WAY: Duration = Duration::from_secs(60);

/// One container of a file.
#[derive(Deserialize)]
struct OneDc {
    /// Of the container when the file was written.
    generation: Option<u64>,
    #[serde(flatten)]
    rest: toml::Table,
}

/// What a file says.
#[derive(Debug)]
struct Wanted {
    dcs: Vec<DcSpec>,
    generations: Vec<Option<u64>>,
}

fn read(path: &Path) -> Result<Wanted, Failure> {
    let file: toml::Table = described::read(path, "dvs apply --help")?;
    understood(file).map_err(|(which, cause)| {
        Failure::new(format!("cannot understand {}", path.display()))
            .because_text(&which)
            .because_text(cause.message())
            .hint("dvs apply --help")
    })
}

fn understood(file: toml::Table) -> Result<Wanted, (String, toml::de::Error)> {
    let whole = || "the file".to_owned();
    let several = match file.get("dc") {
        Some(several) if file.len() == 1 => several.clone().try_into().map_err(|cause| (whole(), cause))?,
        _ => vec![file],
    };
    let mut wanted = Wanted { dcs: Vec::new(), generations: Vec::new() };
    for (place, one) in several.into_iter().enumerate() {
        let name = one.get("name").and_then(|name| name.as_str().map(str::to_owned));
        let which = name.map_or_else(|| format!("container {}", place + 1), |name| format!("container '{name}'"));
        let OneDc { generation, rest } = one.try_into().map_err(|cause| (which.clone(), cause))?;
        // A description may leave its nodes open.
        let mut rest = rest;
        rest.entry("nodes").or_insert_with(|| toml::Value::Array(Vec::new()));
        wanted.dcs.push(toml::Value::Table(rest).try_into().map_err(|cause| (which, cause))?);
        wanted.generations.push(generation);
    }
    Ok(wanted)
}

pub fn execute_plan(global: &Global, options: &PlanOptions) -> Outcome {
    let wanted = read(&options.described.file)?;
    let daemon = daemon(global)?;
    let plan = block_on(ask(&daemon, wanted, &options.described))??;
    print(|out| output::one(out, global.output, &plan, view))?;
    Ok(u8::from(plan.dcs.iter().any(|dc| dc.refused.is_some())).into())
}

pub fn execute_apply(global: &Global, options: &ApplyOptions) -> Outcome {
    let wanted = read(&options.described.file)?;
    let daemon = daemon(global)?;
    let plan = block_on(async {
        let doing = apply(&daemon, wanted, options);
        match options.timeout {
            None => doing.await,
            Some(limit) => tokio::time::timeout(limit, doing).await.unwrap_or_else(|_| {
                Err(Failure::new(format!("not all of it is done after {} s", limit.as_secs()))
                    .hint("dvs plan with the same file says what is missing; dvs service ls"))
            }),
        }
    })??;
    print(|out| output::one(out, global.output, &plan, |_, _| Ok(())))
}

/// The plan for what a file describes.
async fn ask(daemon: &Client, mut wanted: Wanted, described: &Described) -> Result<ApplyPlan, Failure> {
    let open = wanted.dcs.iter().any(|spec| spec.nodes.is_empty());
    let known = if open { daemon.dcs().await? } else { Vec::new() };
    for spec in wanted.dcs.iter_mut().filter(|spec| spec.nodes.is_empty()) {
        if !known.iter().any(|dc| dc.spec.name == spec.name) {
            spec.nodes = living_nodes(daemon).await?;
        }
    }
    let description = ApplyRequest { dcs: wanted.dcs, running: !described.no_start };
    let mut plan = daemon.plan(&description).await?;
    for (dc, generation) in plan.dcs.iter_mut().zip(wanted.generations) {
        if generation.is_some() && generation != dc.generation && dc.refused.is_none() {
            dc.refused = Some(stale(dc, generation));
        }
    }
    Ok(plan)
}

fn stale(dc: &DcPlan, wanted: Option<u64>) -> mgmt_api::ErrorBody {
    let name = &dc.dc;
    let is = dc.generation.map_or("there is none".to_owned(), |generation| format!("its generation is {generation}"));
    mgmt_api::ErrorBody::new(mgmt_api::ErrorKind::Conflict, format!("container '{name}' is another one by now"))
        .because(format!("{is}, the file is of {}", wanted.unwrap_or_default()))
        .hint(format!("dvs dc export {name}, and what the file is to change in that"))
}

async fn apply(daemon: &Client, wanted: Wanted, options: &ApplyOptions) -> Result<ApplyPlan, Failure> {
    let plan = ask(daemon, wanted, &options.described).await?;
    // All of it, or nothing, as far as one can know before.
    if let Some(refused) = plan.dcs.iter().find_map(|dc| dc.refused.clone()) {
        return Err(refused.into());
    }
    for dc in &plan.dcs {
        if dc.steps.is_empty() {
            say(&format!("container '{}' is as described", dc.dc));
            continue;
        }
        demand_unchanged(daemon, dc).await?;
        for step in &dc.steps {
            carry_out(daemon, &dc.dc, &step.request).await?;
            step.what.iter().for_each(|line| say(&format!("{}: {line}", dc.dc)));
        }
    }
    if options.wait || !options.no_wait {
        for dc in &plan.dcs {
            match dc.steps.is_empty() {
                false => await_services(daemon, &dc.dc).await?,
                true => await_what_comes(daemon, &dc.dc).await,
            }
        }
    }
    Ok(plan)
}

/// Whether there could be such a container.
pub async fn demand_possible(daemon: &Client, spec: &DcSpec) -> Result<(), Failure> {
    steps_for(daemon, spec).await.map(drop)
}

/// One container becomes as described, and its services run.
pub async fn bring_about(daemon: &Client, spec: &DcSpec) -> Result<(), Failure> {
    for dc in steps_for(daemon, spec).await? {
        for step in &dc.steps {
            carry_out(daemon, &dc.dc, &step.request).await?;
        }
        await_services(daemon, &dc.dc).await?;
    }
    Ok(())
}

async fn steps_for(daemon: &Client, spec: &DcSpec) -> Result<Vec<DcPlan>, Failure> {
    let plan = daemon.plan(&ApplyRequest { dcs: vec![spec.clone()], running: true }).await?;
    match plan.dcs.iter().find_map(|dc| dc.refused.clone()) {
        Some(refused) => Err(refused.into()),
        None => Ok(plan.dcs),
    }
}

/// Whoever changed it since the comparison has not been asked.
async fn demand_unchanged(daemon: &Client, dc: &DcPlan) -> Result<(), Failure> {
    let Some(planned) = dc.generation else { return Ok(()) };
    let now = daemon.dc(&dc.dc).await?.generation;
    if now == planned {
        return Ok(());
    }
    Err(Failure::new(format!("container '{}' was changed by somebody else at this moment", dc.dc)).hint("again"))
}

async fn carry_out(daemon: &Client, dc: &str, request: &PlanRequest) -> Result<(), Failure> {
    match request {
        PlanRequest::DcCreate { spec, start } => {
            let after = if *start { AfterCreate::Start } else { AfterCreate::Leave };
            daemon.create_dc(spec, after).await?;
        }
        PlanRequest::DcNodeAdd { node } => drop(daemon.add_dc_node(dc, node).await?),
        PlanRequest::DcChange { change } => drop(daemon.change_dc(dc, change).await?),
        PlanRequest::ServiceRemove { service, replaced } => {
            let after = if *replaced { AfterRemoval::Added } else { AfterRemoval::Gone };
            daemon.remove_service(dc, service, after).await?;
        }
        PlanRequest::ServiceAdd { service } => drop(daemon.add_service(dc, service).await?),
        PlanRequest::DcNodeRemove { node } => drop(daemon.remove_dc_node(dc, node, BeforeDelete::Refuse).await?),
        PlanRequest::DcStart => drop(daemon.start_dc(dc).await?),
    }
    Ok(())
}

/// As described is also what is still on its way, since an apply that did not wait. What does not come was so before:
/// it is told, and nothing failed.
async fn await_what_comes(daemon: &Client, dc: &str) {
    match tokio::time::timeout(ON_ITS_WAY, await_services(daemon, dc)).await {
        Ok(Ok(())) => (),
        Ok(Err(failure)) => say(&format!("{dc}: {}", failure.what)),
        Err(_) => say(&format!("{dc}: not all of its services run: dvs service ls {dc}")),
    }
}

/// Until every service that is wanted runs, and is well where somebody looks; or has ended for good.
async fn await_services(daemon: &Client, dc: &str) -> Result<(), Failure> {
    let mut waits_for = String::new();
    loop {
        let services = daemon.services(dc).await?;
        let now = daemon.dc(dc).await?;
        if now.phase == mgmt_api::DcPhase::Stopped || now.paused {
            return Ok(());
        }
        if let Some(failed) = services.iter().find(|service| has(service, ServiceState::Failed)) {
            let name = &failed.spec.name;
            return Err(Failure::new(format!("service '{name}' of container '{dc}' does not run"))
                .hint(format!("dvs service inspect {dc} {name}")));
        }
        let Some(coming) = services.iter().find(|service| !is_there(service, &services)) else { return Ok(()) };
        if coming.spec.name != waits_for {
            waits_for.clone_from(&coming.spec.name);
            say(&format!("{dc}: waiting for service {waits_for}"));
        }
        tokio::time::sleep(LOOK_AGAIN).await;
    }
}

fn has(service: &ServiceInfo, state: ServiceState) -> bool {
    service.instances.iter().any(|instance| instance.state == state)
}

fn is_there(service: &ServiceInfo, all: &[ServiceInfo]) -> bool {
    let is_looked_after = service.spec.health.is_some();
    // Until somebody starts those again.
    let is_held_up = || all.iter().any(|other| !other.is_wanted && service.spec.after.contains(&other.spec.name));
    let stands = |state: ServiceState| match state {
        ServiceState::Healthy | ServiceState::Stopped | ServiceState::Failed => true,
        ServiceState::Running => !is_looked_after,
        ServiceState::Waiting => is_held_up(),
        _ => false,
    };
    !service.is_wanted || service.instances.iter().all(|instance| stands(instance.state))
}

impl Row for ApplyPlan {
    const HEADINGS: &'static [&'static str] = &[];

    fn cells(&self) -> Vec<String> {
        Vec::new()
    }

    fn name(&self) -> String {
        let changed = self.dcs.iter().filter(|dc| !dc.steps.is_empty());
        changed.map(|dc| dc.dc.as_str()).collect::<Vec<_>>().join("\n")
    }
}

fn view(plan: &ApplyPlan, out: &mut impl std::io::Write) -> std::io::Result<()> {
    for dc in &plan.dcs {
        let lines: Vec<&String> = dc.steps.iter().flat_map(|step| &step.what).collect();
        let nothing = if lines.is_empty() && dc.refused.is_none() { " as described" } else { "" };
        writeln!(out, "{}:{nothing}", dc.dc)?;
        for line in lines {
            writeln!(out, "  {}", printable(line))?;
        }
        if let Some(refused) = &dc.refused {
            writeln!(out, "  refused: {}", printable(&refused.what))?;
            for because in &refused.because {
                writeln!(out, "    because: {}", printable(because))?;
            }
            if let Some(hint) = &refused.hint {
                writeln!(out, "    try: {}", printable(hint))?;
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wanted(text: &str) -> Result<Wanted, String> {
        understood(toml::from_str(text).unwrap()).map_err(|(which, cause)| format!("{which}: {}", cause.message()))
    }

    #[test]
    fn file_has_one_container_or_several() {
        let one = wanted("name = 'a'\ngeneration = 7").unwrap();
        assert_eq!((one.dcs.len(), one.generations, one.dcs[0].nodes.len()), (1, vec![Some(7)], 0));
        let two =
            wanted("[[dc]]\nname = 'a'\nnodes = ['n1']\n[[dc.ports]]\npublished = 1\nport = 2\n[[dc]]\nname = 'b'")
                .unwrap();
        assert_eq!((two.dcs[0].ports.len(), two.dcs[1].name.as_str(), two.generations), (1, "b", vec![None; 2]));
    }

    #[test]
    fn what_is_wrong_is_said_with_the_container() {
        let said = wanted("[[dc]]\nname = 'a'\n[[dc]]\nname = 'b'\nnods = ['n1']").unwrap_err();
        assert!(said.starts_with("container 'b'") && said.contains("nods"), "{said}");
        assert!(wanted("[[dc]]\nnodes = ['n1']").unwrap_err().contains("container 1"));
        assert!(wanted("dc = 3").unwrap_err().contains("the file"));
    }
}
