//! `dvs access`: who may ask the cluster from elsewhere.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::{Args, Subcommand};
use client::contexts::write_secret;
use mgmt_api::{AccessFile, AccessInfo, AccessRequest, AccessRole, Means};
use serde::Serialize;

use super::{Gone, Outcome, block_on, daemon, done, names, now_ms, print, say};
use crate::cli::Global;
use crate::errors::Failure;
use crate::installed;
use crate::output::{self, Row};
use crate::units::parse_duration;

/// Say who may ask the cluster from elsewhere, and for what
#[derive(Subcommand, Debug)]
#[command(after_help = "\
Somebody has access by a token, which is a secret in a file, or by a certificate, whose key never leaves their machine. A \
viewer looks at nodes and containers; an operator works with containers and their programs; an administrator does \
everything.

Examples:
  dvs access token ada --role operator                  writes ada.access, which goes to ada
  dvs context add home --token-file ada.access          on ada's machine: from now on dvs talks to the cluster
  dvs access key bob                                    on bob's machine: bob.key stays there, bob.crt goes to you
  dvs access certificate bob --role viewer --of bob.crt
  dvs access ls
  dvs access rm ada                                     at once; what ada has open ends")]
pub enum Command {
    Token(TokenOptions),
    Certificate(CertificateOptions),
    Key(KeyOptions),
    /// List who has access, and until when.
    #[command(visible_alias = "list")]
    Ls,
    /// Take an access back. What was opened with it ends.
    #[command(visible_alias = "remove")]
    Rm {
        /// From `dvs access ls`.
        #[arg(add = names::accesses())]
        name: String,
    },
}

/// What both ways have in common.
#[derive(Args, Debug)]
struct Common {
    /// Of the person or program.
    name: String,
    /// What they may do: viewer, operator or administrator.
    #[arg(long, value_parser = parse_role)]
    role: AccessRole,
    /// How long it is good: 12h, 30d; at most ten years.
    #[arg(long, value_name = "TIME", default_value = "30d", value_parser = parse_duration)]
    ttl: Duration,
    /// File to write, for the owner alone [default: NAME.access].
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
}

/// Give somebody access by a token
#[derive(Args, Debug)]
#[command(after_help = "\
The file holds the token, the addresses of all nodes and the roots by which they are known: all that dvs needs on another \
machine. Treat it like a password. The cluster keeps only a hash of the token.

Examples:
  dvs access token ada --role operator
  dvs access token ci --role operator --ttl 365d --out ci.access
  curl --cacert ca.crt -H \"Authorization: Bearer $TOKEN\" https://192.0.2.11:7420/v1/nodes")]
pub struct TokenOptions {
    #[command(flatten)]
    common: Common,
}

/// Give somebody access by a certificate
#[derive(Args, Debug)]
#[command(after_help = "\
With --of the certificate is the one that dvs access key, or any other program, made on the person's machine; the file \
that is written then holds no secret. Without it key and certificate are made here, and the file holds both. It ends with \
the certificate at the latest.

Examples:
  dvs access certificate bob --role viewer --of bob.crt
  dvs access certificate bob --role viewer              the key is made here, and goes to bob in bob.access")]
pub struct CertificateOptions {
    #[command(flatten)]
    common: Common,
    /// The person's certificate, in PEM form.
    #[arg(long, value_name = "FILE")]
    of: Option<PathBuf>,
}

/// Make a key and a certificate of one's own. Asks no cluster.
#[derive(Args, Debug)]
#[command(after_help = "\
Writes NAME.key, which stays here, and NAME.crt, for an administrator of the cluster.

Examples:
  dvs access key bob
  dvs context add home --token-file bob.access --certificate bob.crt --key bob.key     once the administrator sent that")]
pub struct KeyOptions {
    /// One's own name.
    name: String,
    /// Directory for the files.
    #[arg(long, value_name = "DIR", default_value = ".")]
    out: PathBuf,
    /// How long the certificate is good.
    #[arg(long, value_name = "TIME", default_value = "3650d", value_parser = parse_duration)]
    ttl: Duration,
}

fn parse_role(text: &str) -> Result<AccessRole, String> {
    text.parse()
}

pub fn execute(global: &Global, command: &Command) -> Outcome {
    match command {
        Command::Token(options) => give(global, &options.common, None),
        Command::Certificate(options) => {
            let own = match &options.of {
                Some(path) => (read(path)?, None),
                None => {
                    let (certificate, key) = make(&options.common.name, options.common.ttl)?;
                    (certificate, Some(key))
                }
            };
            give(global, &options.common, Some(own))
        }
        Command::Key(options) => {
            let (certificate, key) = make(&options.name, options.ttl)?;
            let path = |ending: &str| options.out.join(format!("{}.{ending}", options.name));
            let (key_path, certificate_path) = (path("key"), path("crt"));
            refuse_to_replace(&key_path)?;
            write_secret(&key_path, &key)?;
            // A key without its certificate would be in the way of the same command.
            installed::write(&certificate_path, &certificate, 0o644)
                .inspect_err(|_| drop(fs::remove_file(&key_path)))?;
            let (key, certificate) = (key_path.display(), certificate_path.display());
            say(&format!(
                "{key} stays here; {certificate} is for an administrator: dvs access certificate {} --role ROLE --of {certificate}",
                options.name
            ));
            done(global.output, &Made { name: options.name.clone(), file: certificate_path })
        }
        Command::Ls => {
            let all = block_on(daemon(global)?.accesses())??;
            print(|out| output::list(out, global.output, &all))
        }
        Command::Rm { name } => {
            block_on(daemon(global)?.remove_access(name))??;
            done(global.output, &Gone::new(name))
        }
    }
}

/// `own`: a certificate, and its key when that was made here.
fn give(global: &Global, common: &Common, own: Option<(String, Option<String>)>) -> Outcome {
    let path = common.out.clone().unwrap_or_else(|| format!("{}.access", common.name).into());
    refuse_to_replace(&path)?;
    let (certificate_pem, key_pem) = own.unzip();
    let asked =
        AccessRequest { name: common.name.clone(), role: common.role, ttl_s: common.ttl.as_secs(), certificate_pem };
    let daemon = daemon(global)?;
    let file = block_on(daemon.create_access(&asked))??;
    let file = AccessFile { key_pem: key_pem.flatten(), ..file };
    let text = serde_json::to_string_pretty(&file).unwrap_or_default();
    if let Err(error) = write_secret(&path, &format!("{text}\n")) {
        // Nobody has it: what is not in a file can only be taken back.
        let taken_back = block_on(daemon.remove_access(&common.name))?;
        let failure = Failure::from(error);
        return Err(match taken_back {
            Ok(()) => failure.hint("--out FILE in a directory that can be written; the access was taken back"),
            Err(_) => failure
                .hint(format!("dvs access rm {}, then --out FILE in a directory that can be written", common.name)),
        });
    }
    let secret = if file.token.is_some() || file.key_pem.is_some() { ": a secret" } else { "" };
    say(&format!(
        "'{}' may do what a {} may, for {}\non their machine, with {}{secret}: dvs context add {} --token-file {}",
        file.name,
        file.role,
        left(file.ends_s),
        path.display(),
        file.cluster,
        path.display()
    ));
    done(global.output, &Made { name: file.name, file: path })
}

fn make(name: &str, ttl: Duration) -> Result<(String, String), Failure> {
    pki::make_person(name, ttl).map_err(|error| {
        let hint = match error {
            pki::PkiError::BadName { .. } => "a name such as ada",
            _ => error.hint(),
        };
        Failure::new(format!("no certificate was made for '{name}'")).because(&error).hint(hint)
    })
}

fn read(path: &Path) -> Result<String, Failure> {
    let failed = |cause| {
        let failure = Failure::new(format!("cannot read {}", path.display())).because(&cause);
        failure.hint("the certificate that dvs access key wrote: NAME.crt")
    };
    fs::read_to_string(path).map_err(failed)
}

fn refuse_to_replace(path: &Path) -> Result<(), Failure> {
    if !path.exists() {
        return Ok(());
    }
    let failure = Failure::new(format!("{} exists already", path.display()));
    Err(failure.because_text("what was given before may be in it").hint("--out with another name, or remove it"))
}

/// Until a second since 1970, as people say it.
fn left(ends_s: u64) -> String {
    match ends_s.saturating_sub(now_ms() / 1000) {
        0 => "ended".to_owned(),
        seconds => output::duration(seconds),
    }
}

#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[cfg_attr(test, schemars(rename = "MadeAccess"))]
pub struct Made {
    name: String,
    file: PathBuf,
}

impl Row for Made {
    const HEADINGS: &'static [&'static str] = &["NAME", "FILE"];

    fn cells(&self) -> Vec<String> {
        vec![self.name.clone(), self.file.display().to_string()]
    }

    fn name(&self) -> String {
        self.file.display().to_string()
    }
}

impl Row for AccessInfo {
    const HEADINGS: &'static [&'static str] = &["NAME", "ROLE", "BY", "ENDS IN", "MADE", "MADE BY"];

    fn cells(&self) -> Vec<String> {
        let by = match self.by {
            Means::Certificate => "certificate",
            _ => "token",
        };
        vec![
            self.name.clone(),
            self.role.to_string(),
            by.to_owned(),
            left(self.ends_s),
            output::clock(self.made_s * 1000, now_ms()),
            self.made_by.clone(),
        ]
    }

    fn name(&self) -> String {
        self.name.clone()
    }
}
