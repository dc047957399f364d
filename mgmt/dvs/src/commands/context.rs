//! `dvs context`: clusters elsewhere, by names of one's own.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};
use client::contexts::{LOCAL, read_secret};
use client::{Client, Context, ContextError, Contexts};
use mgmt_api::{AccessFile, AccessRole, Myself};
use serde::Serialize;

use super::{Gone, Outcome, block_on, done, names, now_ms, print, say};
use crate::cli::Global;
use crate::errors::Failure;
use crate::output::{self, Row, Table};

/// Addresses and roots are asked for again when they are so old.
const REFRESH_S: u64 = 600;
/// Where nodes listen, unless they were told otherwise.
const API_PORT: u16 = 7420;

/// Talk to clusters elsewhere
#[derive(Subcommand, Debug)]
#[command(
    visible_alias = "contexts",
    after_help = "\
A context is what an administrator gave (dvs access), kept under a name of your own in ~/.config/dvs. Every command that \
asks a daemon works with it. Which is meant: --context NAME, else --socket, --cluster or --at (this machine), else \
$DVS_CONTEXT, else what dvs context use said; 'local' is the daemon of this machine.

Examples:
  dvs context add home --token-file ada.access
  dvs context use home
  dvs run -it shop -- bash
  DVS_CONTEXT=work dvs ps shop
  dvs --context local node ls"
)]
pub enum Command {
    Add(AddOptions),
    /// Use a context when nothing else is said; `local` ends that.
    Use {
        /// From `dvs context ls`.
        #[arg(add = names::contexts())]
        name: String,
    },
    /// List the contexts of this person.
    #[command(visible_alias = "list")]
    Ls,
    /// Show a context, and who one is in it. No secret is shown.
    #[command(visible_alias = "inspect")]
    Show {
        /// From `dvs context ls` [default: the one that is used].
        #[arg(add = names::contexts())]
        name: Option<String>,
    },
    /// Forget a context. The access itself is taken back by dvs access rm.
    #[command(visible_alias = "remove")]
    Rm {
        /// From `dvs context ls`.
        #[arg(add = names::contexts())]
        name: String,
    },
}

/// Add a cluster elsewhere
#[derive(Args, Debug)]
#[command(after_help = "\
The file is the one that dvs access token or dvs access certificate wrote. The cluster is asked once, to see that it works. \
The first context is used from then on.

Examples:
  dvs context add home --token-file ada.access
  dvs context add home --token-file bob.access --certificate bob.crt --key bob.key
  dvs context add home 192.0.2.11 --of home --ca ca.crt --certificate bob.crt --key bob.key")]
pub struct AddOptions {
    /// Of one's own choice.
    name: String,
    /// Of a node, with its port where that is not 7420; instead of a file.
    #[arg(required_unless_present = "token_file", conflicts_with = "token_file", requires_all = ["ca", "of", "certificate"])]
    address: Option<String>,
    /// What an administrator gave.
    #[arg(long, visible_alias = "file", value_name = "FILE")]
    token_file: Option<PathBuf>,
    /// With an address: the cluster's name.
    #[arg(long, value_name = "CLUSTER")]
    of: Option<String>,
    /// With an address: the roots of the cluster, ca.crt of any node.
    #[arg(long, value_name = "FILE")]
    ca: Option<PathBuf>,
    /// One's own certificate, from dvs access key.
    #[arg(long, value_name = "FILE", requires = "key")]
    certificate: Option<PathBuf>,
    /// Its key.
    #[arg(long, value_name = "FILE", requires = "certificate")]
    key: Option<PathBuf>,
    /// Take the place of the context of this name.
    #[arg(long)]
    replace: bool,
}

pub fn execute(global: &Global, command: &Command) -> Outcome {
    let contexts = Contexts::of_this_person()?;
    match command {
        Command::Add(options) => add(global, &contexts, options),
        Command::Use { name } => {
            contexts.set_current((name != LOCAL).then_some(name))?;
            done(global.output, &Used { name: name.clone() })
        }
        Command::Ls => {
            let current = global.context_name();
            let rows = contexts.names().into_iter().map(|name| Line::of(&contexts, &name, current.as_deref()));
            let rows = rows.collect::<Vec<Line>>();
            print(|out| output::list(out, global.output, &rows))
        }
        Command::Show { name } => {
            let name = name
                .clone()
                .or_else(|| global.context_name())
                .ok_or_else(|| Failure::new("no context is used").hint("dvs context ls, then dvs context show NAME"))?;
            let context = contexts.read(&name)?;
            let asked = block_on(far(&context.access)?.myself())?;
            let shown = Shown::of(&name, context, asked);
            print(|out| output::one(out, global.output, &shown, view))
        }
        Command::Rm { name } => {
            contexts.remove(name)?;
            done(global.output, &Gone::new(name))
        }
    }
}

/// A cluster elsewhere, by its name, as it was last known: nobody is asked.
pub fn client_as_known(name: &str) -> Result<Client, Failure> {
    far(&Contexts::of_this_person()?.read(name)?.access)
}

/// A cluster elsewhere, by its name. What is old of it is asked for again first.
pub fn client(name: &str) -> Result<Client, Failure> {
    let contexts = Contexts::of_this_person()?;
    let context = contexts.read(name)?;
    let client = far(&context.access)?;
    if context.refreshed_s.saturating_add(REFRESH_S) >= now_ms() / 1000 {
        return Ok(client);
    }
    match block_on(client.myself())? {
        Ok(myself) => {
            let context = refreshed(context, &myself);
            // A directory that cannot be written costs this question each time, and nothing else.
            let _ = contexts.write(name, &context);
            far(&context.access)
        }
        // Whoever cannot be reached cannot be reached for the command either; what it refuses it refuses itself.
        Err(error @ (client::Error::Unreachable { .. } | client::Error::Untrusted { .. })) => Err(error.into()),
        Err(_) => Ok(client),
    }
}

fn far(access: &AccessFile) -> Result<Client, Failure> {
    Client::far(access).map_err(|error| {
        Failure::new("the context cannot be used").because(&error).hint("dvs context add --replace, with a new file")
    })
}

fn refreshed(context: Context, myself: &Myself) -> Context {
    let mut access = context.access;
    // Whoever answers with nothing has lost its list, which is no reason to lose ours.
    if !myself.addresses.is_empty() {
        access.addresses.clone_from(&myself.addresses);
    }
    if !myself.roots_pem.is_empty() {
        access.roots_pem.clone_from(&myself.roots_pem);
    }
    access.revocations_pem.clone_from(&myself.revocations_pem);
    access.role = myself.role.unwrap_or(access.role);
    access.ends_s = myself.ends_s.unwrap_or(access.ends_s);
    access.name.clone_from(&myself.name);
    Context { access, refreshed_s: now_ms() / 1000 }
}

fn add(global: &Global, contexts: &Contexts, options: &AddOptions) -> Outcome {
    let name = &options.name;
    match contexts.read(name) {
        Err(error @ (ContextError::BadName { .. } | ContextError::File { .. })) => return Err(error.into()),
        Err(ContextError::Unknown { .. }) => (),
        _ if options.replace => (),
        _ => return Err(ContextError::Taken { name: name.clone() }.into()),
    }
    let mut access = match (&options.token_file, &options.address) {
        (Some(path), _) => read_secret(path)?.access,
        (None, Some(address)) => AccessFile {
            cluster: options.of.clone().unwrap_or_default(),
            name: String::new(),
            role: AccessRole::Viewer,
            ends_s: 0,
            addresses: vec![with_port(address)],
            roots_pem: read(options.ca.as_deref().unwrap_or(Path::new("ca.crt")))?,
            revocations_pem: String::new(),
            token: None,
            certificate_pem: None,
            key_pem: None,
        },
        (None, None) => return Err(Failure::usage("neither a file nor an address").hint("--token-file FILE")),
    };
    if let (Some(certificate), Some(key)) = (&options.certificate, &options.key) {
        (access.certificate_pem, access.key_pem) = (Some(read(certificate)?), Some(read(key)?));
    }
    if access.token.is_none() && access.key_pem.is_none() {
        let failure = Failure::new("nobody would know who you are");
        let failure = failure.because_text("there is no token in the file, and no key beside it");
        return Err(failure.hint("--certificate FILE --key FILE, which dvs access key made"));
    }
    let myself = block_on(far(&access)?.myself())??;
    let context = refreshed(Context { access, refreshed_s: 0 }, &myself);
    let earlier = contexts.read(name).ok();
    contexts.write(name, &context)?;
    let is_first = contexts.current().is_none();
    if is_first {
        // All of it or nothing: the same again would else find the name taken.
        contexts.set_current(Some(name)).inspect_err(|_| match &earlier {
            Some(earlier) => drop(contexts.write(name, earlier)),
            None => drop(contexts.remove(name)),
        })?;
    }
    let role = myself.role.map_or("nobody".to_owned(), |role| role.to_string());
    let used = if is_first { "is used from now on".to_owned() } else { format!("dvs context use {name}") };
    say(&format!("you are '{}', {role}, of cluster '{}'; context '{name}': {used}", myself.name, myself.cluster));
    done(global.output, &Used { name: name.clone() })
}

fn with_port(address: &str) -> String {
    let has_port = match address.strip_prefix('[') {
        Some(_) => address.contains("]:"),
        None => address.matches(':').count() == 1,
    };
    match address.parse::<std::net::Ipv6Addr>() {
        Ok(_) => format!("[{address}]:{API_PORT}"),
        Err(_) if has_port => address.to_owned(),
        Err(_) => format!("{address}:{API_PORT}"),
    }
}

fn read(path: &Path) -> Result<String, Failure> {
    let failed = |cause| {
        let failure = Failure::new(format!("cannot read {}", path.display())).because(&cause);
        failure.hint("--ca: ca.crt of any node; --certificate and --key: what dvs access key wrote")
    };
    fs::read_to_string(path).map_err(failed)
}

#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[cfg_attr(test, schemars(rename = "UsedContext"))]
pub struct Used {
    name: String,
}

impl Row for Used {
    const HEADINGS: &'static [&'static str] = &["CONTEXT"];

    fn cells(&self) -> Vec<String> {
        vec![self.name.clone()]
    }

    fn name(&self) -> String {
        self.name.clone()
    }
}

/// A context in the list.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[cfg_attr(test, schemars(rename = "ContextLine"))]
pub struct Line {
    name: String,
    is_used: bool,
    cluster: String,
    person: String,
    #[cfg_attr(test, schemars(schema_with = "crate::shapes::access_role_or_null"))]
    role: Option<AccessRole>,
    ends_s: u64,
    addresses: Vec<String>,
    /// Why it is none.
    #[serde(skip_serializing_if = "Option::is_none")]
    problem: Option<String>,
}

impl Line {
    fn of(contexts: &Contexts, name: &str, current: Option<&str>) -> Line {
        let is_used = current == Some(name);
        match contexts.read(name) {
            Ok(Context { access, .. }) => Line {
                name: name.to_owned(),
                is_used,
                cluster: access.cluster,
                person: access.name,
                role: Some(access.role),
                ends_s: access.ends_s,
                addresses: access.addresses,
                problem: None,
            },
            Err(error) => Line {
                name: name.to_owned(),
                is_used,
                cluster: String::new(),
                person: String::new(),
                role: None,
                ends_s: 0,
                addresses: Vec::new(),
                problem: Some(error.to_string()),
            },
        }
    }
}

impl Row for Line {
    const HEADINGS: &'static [&'static str] = &["CONTEXT", "USED", "CLUSTER", "AS", "ROLE", "ENDS IN", "NODES"];

    fn cells(&self) -> Vec<String> {
        let used = if self.is_used { "yes" } else { "-" };
        if let Some(problem) = &self.problem {
            return [&self.name, used, problem, "-", "-", "-", "-"].map(str::to_owned).to_vec();
        }
        vec![
            self.name.clone(),
            used.to_owned(),
            self.cluster.clone(),
            self.person.clone(),
            self.role.map_or("-".to_owned(), |role| role.to_string()),
            output::duration(self.ends_s.saturating_sub(now_ms() / 1000)),
            self.addresses.len().to_string(),
        ]
    }

    fn name(&self) -> String {
        self.name.clone()
    }
}

/// A context, and what the cluster says.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[cfg_attr(test, schemars(rename = "ContextShown"))]
pub struct Shown {
    name: String,
    cluster: String,
    person: String,
    #[cfg_attr(test, schemars(schema_with = "crate::shapes::access_role"))]
    role: AccessRole,
    ends_s: u64,
    addresses: Vec<String>,
    /// Which node answered.
    answered: Option<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    problems: Vec<String>,
}

impl Shown {
    fn of(name: &str, context: Context, asked: Result<Myself, client::Error>) -> Shown {
        let (context, answered, problems) = match asked {
            Ok(myself) => (refreshed(context, &myself), Some(myself.node), Vec::new()),
            Err(error) => {
                let Failure { what, because, .. } = error.into();
                (context, None, [vec![what], because].concat())
            }
        };
        let AccessFile { cluster, name: person, role, ends_s, addresses, .. } = context.access;
        Shown { name: name.to_owned(), cluster, person, role, ends_s, addresses, answered, problems }
    }
}

impl Row for Shown {
    const HEADINGS: &'static [&'static str] = &["CONTEXT"];

    fn cells(&self) -> Vec<String> {
        vec![self.name.clone()]
    }

    fn name(&self) -> String {
        self.name.clone()
    }
}

fn view<W: Write>(shown: &Shown, out: &mut W) -> io::Result<()> {
    let mut facts = Table::new(&["CONTEXT", &shown.name]);
    let mut fact = |name: &str, value: String| facts.push(vec![name.to_owned(), value]);
    fact("cluster", shown.cluster.clone());
    fact("as", format!("{}, {}", shown.person, shown.role));
    fact("ends in", output::duration(shown.ends_s.saturating_sub(now_ms() / 1000)));
    fact("nodes", shown.addresses.join(", "));
    fact("answered", shown.answered.clone().unwrap_or_else(|| "nobody".to_owned()));
    facts.print(out)?;
    shown.problems.iter().try_for_each(|problem| writeln!(out, "\nproblem: {}", output::printable(problem)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn address_has_the_usual_port_unless_it_says_another() {
        for (typed, meant) in [
            ("192.0.2.1", "192.0.2.1:7420"),
            ("192.0.2.1:99", "192.0.2.1:99"),
            ("n1.example", "n1.example:7420"),
            ("n1.example:99", "n1.example:99"),
            ("fd00::1", "[fd00::1]:7420"),
            ("[fd00::1]:99", "[fd00::1]:99"),
        ] {
            assert_eq!(with_port(typed), meant);
        }
    }
}
