//! What people read when something failed: what, because of what, what to try; and the exit status that goes with it.
//!
//! ```text
//! dvs: container 'shop' did not start on n3
//!   because: no link to node n3
//!   try: dvs node inspect n3
//! ```

use std::error::Error;
use std::io::{self, Write};

use mgmt_api::{ErrorBody, ErrorKind, utc};
use pki::Distrust;

use crate::inside;
use crate::output::printable;
use crate::pump::PumpError;

/// Exit status of every failure that has no better one.
pub const GENERAL: u8 = 1;
/// The command line makes no sense.
pub const USAGE: u8 = 2;
/// `run`, `exec`: dvs itself failed: the program was not reached, or lost with its node or a daemon on the way.
pub const RUN_FAILED: u8 = 125;
pub const NOT_EXECUTABLE: u8 = 126;
pub const NO_SUCH_PROGRAM: u8 = 127;
/// A shell shows a program that wrote to a closed pipe as 128 + SIGPIPE.
pub const BROKEN_PIPE: u8 = 141;

/// A failure, ready to be shown.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Failure {
    pub status: u8,
    pub what: String,
    pub because: Vec<String>,
    pub hint: Option<String>,
}

impl Failure {
    pub fn new(what: impl Into<String>) -> Failure {
        Failure { status: GENERAL, what: what.into(), because: Vec::new(), hint: None }
    }

    pub fn usage(what: impl Into<String>) -> Failure {
        Failure::new(what).status(USAGE)
    }

    /// `cause` and everything it was caused by, outermost first.
    pub fn because(mut self, cause: &dyn Error) -> Failure {
        self.because.extend(chain(cause));
        self
    }

    pub fn because_text(mut self, cause: impl Into<String>) -> Failure {
        self.because.push(cause.into());
        self
    }

    pub fn hint(mut self, hint: impl Into<String>) -> Failure {
        self.hint = Some(hint.into());
        self
    }

    pub fn status(mut self, status: u8) -> Failure {
        self.status = status;
        self
    }

    /// Nothing is printed for it: whoever closed our output does not want to hear from us.
    pub fn is_broken_pipe(&self) -> bool {
        self.status == BROKEN_PIPE
    }

    pub fn print(&self, out: &mut impl Write) -> io::Result<()> {
        writeln!(out, "dvs: {}", printable(&self.what))?;
        for cause in &self.because {
            writeln!(out, "  because: {}", printable(cause))?;
        }
        match &self.hint {
            Some(hint) => writeln!(out, "  try: {}", printable(hint)),
            None => Ok(()),
        }
    }
}

/// Displays of an error and its causes. A cause that merely repeats the text before it is left out.
fn chain(cause: &dyn Error) -> Vec<String> {
    let mut texts: Vec<String> = Vec::new();
    let mut next = Some(cause);
    while let Some(error) = next {
        let text = error.to_string();
        if texts.last() != Some(&text) {
            texts.push(text);
        }
        next = error.source();
    }
    texts
}

impl From<io::Error> for Failure {
    fn from(cause: io::Error) -> Failure {
        match cause.kind() {
            io::ErrorKind::BrokenPipe => Failure::new("output was closed").status(BROKEN_PIPE),
            _ => Failure::new("cannot write the output")
                .because(&cause)
                .hint("another place for the output, with room; what the command was to do besides is done"),
        }
    }
}

impl From<ErrorBody> for Failure {
    fn from(body: ErrorBody) -> Failure {
        let hint = body.hint.or_else(|| Some(what_to_try(body.kind).to_owned()));
        Failure { status: GENERAL, what: body.what, because: body.because, hint }
    }
}

/// Where the daemon has no better advice.
fn what_to_try(kind: ErrorKind) -> &'static str {
    match kind {
        ErrorKind::BadRequest => "the command's --help",
        ErrorKind::Unauthenticated | ErrorKind::Forbidden => "dvs context show: who you are there",
        ErrorKind::NotFound => "dvs dc ls, dvs node ls: what there is",
        ErrorKind::Conflict => "dvs dc inspect, dvs node ls: what stands in the way",
        ErrorKind::TooMany => "the same again in a moment",
        ErrorKind::NoSuchProgram | ErrorKind::NotExecutable => "a program of the container: dvs run DC -- ls /usr/bin",
        ErrorKind::NoSpace => "make room, or ask for less",
        ErrorKind::Unavailable | ErrorKind::TimedOut => "dvs doctor says what is away; then the same again",
        ErrorKind::Internal => "dvs doctor; the daemon's log",
    }
}

impl From<client::Error> for Failure {
    fn from(error: client::Error) -> Failure {
        let mut texts = chain(&error).into_iter();
        let what = texts.next().unwrap_or_default();
        let failure = Failure { status: GENERAL, what, because: texts.collect(), hint: None };
        match error {
            client::Error::Refused(body) => body.into(),
            client::Error::NoDaemon { source, .. } if inside::is_here() => match source.kind() {
                io::ErrorKind::NotFound => failure
                    .because_text("the node's daemon is of a release that hears no programs of containers")
                    .hint("on a node; from inside: on NODE -- PROGRAM, kill, dvs ds, dvs fs"),
                _ => failure.hint("again in a moment: the node's daemon is away, and the container goes on without it"),
            },
            client::Error::NoDaemon { .. } => failure.hint(
                "dvs --at NODE … (another node's daemon), dvs dev restart NODE, or without a cluster: dvs dev up",
            ),
            client::Error::Unreachable { tried, .. } => {
                let failure =
                    if tried.is_empty() { failure.because_text("the context has no address") } else { failure };
                tried.into_iter().fold(failure, Failure::because_text).hint(
                    "port 7420 of a node open from here, and its daemon running; dvs context show says which are tried",
                )
            }
            client::Error::Untrusted { why, .. } => distrust(failure, why),
            client::Error::NotPermitted { .. } => {
                failure.hint("run it as root, as the daemon's socket belongs to root")
            }
            client::Error::Foreign(_) | client::Error::BadFrame(_) => {
                failure.hint("dvs version (the daemon may be of another version)")
            }
            // What was asked for may have happened.
            client::Error::Broken(_) | client::Error::TimedOut { .. } | client::Error::StreamEnded => {
                failure.hint("look whether it was done, then again; dvs doctor says whether the daemon is well")
            }
            client::Error::Silent => failure.hint(
                "systemctl restart dvsd, or its process killed and started: containers go on. Then look whether it was done",
            ),
            client::Error::TooLong { .. } => failure.hint("less at a time; a daemon of this release (dvs version)"),
            client::Error::Unsendable(_) => failure.hint("a name without control characters"),
        }
    }
}

fn distrust(failure: Failure, why: Distrust) -> Failure {
    let clocks = "the clock of this machine (date -u); the node's, and its certificate: dvs doctor there";
    match why {
        Distrust::OtherRoot => failure.because_text("none of the context's roots signed its certificate").hint(
            "it is of another cluster, or the cluster has another authority by now: a new token file (dvs access token)",
        ),
        Distrust::OtherCluster => failure
            .because_text("its certificate names no node of this cluster")
            .hint("the addresses of the context: dvs context show"),
        Distrust::Revoked => {
            failure.because_text("its node was taken out of the cluster").hint("the addresses of the context: dvs context show")
        }
        Distrust::Expired { ended_s, here_s } => failure
            .because_text(format!("its certificate was good until {}, and here it is {}", utc(ended_s), utc(here_s)))
            .hint(clocks),
        Distrust::NotYet { begins_s, here_s } => failure
            .because_text(format!("its certificate is good from {} on, and here it is {}", utc(begins_s), utc(here_s)))
            .hint(clocks),
        Distrust::Other(words) => failure.because_text(words).hint("the address and port: dvs context show"),
    }
}

impl From<client::ContextError> for Failure {
    fn from(error: client::ContextError) -> Failure {
        use client::ContextError;
        let failure = match std::error::Error::source(&error) {
            Some(cause) => Failure::new(error.to_string()).because(cause),
            None => Failure::new(error.to_string()),
        };
        match &error {
            ContextError::NoPlace => failure.hint("HOME, or XDG_CONFIG_HOME, in the environment"),
            ContextError::BadName { .. } => {
                failure.hint("1 to 32 of a-z, 0-9 and -, beginning with a letter; 'local' is this machine")
            }
            ContextError::Unknown { known, .. } if known.is_empty() => {
                failure.hint("dvs context add NAME --token-file FILE")
            }
            ContextError::Unknown { known, .. } => failure.hint(format!("one of {}", known.join(", "))),
            ContextError::Taken { name } => failure.hint(format!("another name, or dvs context rm {name}")),
            ContextError::Exposed { path, .. } => failure
                .hint(format!("chmod 600 {}, if nobody read it; else dvs access rm, and another one", path.display())),
            ContextError::Malformed { .. } => failure.hint("the file that dvs access token wrote"),
            ContextError::File { source, .. } => failure.hint(crate::installed::what_to_try(source)),
        }
    }
}

impl From<PumpError> for Failure {
    fn from(error: PumpError) -> Failure {
        match error {
            PumpError::Stream(error) => error.into(),
            PumpError::Output { ref source, .. } => Failure::new(error.to_string()).because(source),
        }
    }
}

impl From<client::LocateError> for Failure {
    fn from(error: client::LocateError) -> Failure {
        use client::LocateError;
        let failure = match std::error::Error::source(&error) {
            Some(cause) => Failure::new(error.to_string()).because(cause),
            None => Failure::new(error.to_string()),
        };
        match &error {
            LocateError::NoCluster { known, .. } if known.is_empty() => failure.hint("dvs dev up"),
            LocateError::NoCluster { known, .. } => failure.hint(format!("dvs --cluster {}", known.join(" or "))),
            LocateError::NoNode { known, .. } => failure.hint(format!("dvs --at {}", known.join(" or "))),
            LocateError::Several { known } => {
                failure.hint(format!("dvs --cluster {} … (or $DVS_CLUSTER)", known.first().map_or("NAME", |name| name)))
            }
            LocateError::Record { name, .. } => failure.hint(format!("dvs dev down --name {name}")),
        }
    }
}

/// The same failure with the status that `docker run` and shells made customary: was the program reached at all?
pub fn of_run(error: client::Error) -> Failure {
    let status = match error.kind() {
        Some(kind) => run_status(kind),
        None => RUN_FAILED,
    };
    Failure::from(error).status(status)
}

pub fn run_status(kind: ErrorKind) -> u8 {
    match kind {
        ErrorKind::NoSuchProgram => NO_SUCH_PROGRAM,
        ErrorKind::NotExecutable => NOT_EXECUTABLE,
        _ => RUN_FAILED,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(failure: &Failure) -> String {
        let mut out = Vec::new();
        failure.print(&mut out).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn refusal_is_shown_with_its_causes_and_what_to_try() {
        let body = ErrorBody::new(ErrorKind::Unavailable, "container 'shop' did not start on n3")
            .because("no link to node n3")
            .because("last frame 900 ms ago, limit 800 ms")
            .hint("dvs node inspect n3");
        let failure = Failure::from(client::Error::Refused(body));
        assert_eq!(
            shown(&failure),
            "dvs: container 'shop' did not start on n3\n  because: no link to node n3\n  because: last frame 900 ms ago, limit 800 ms\n  try: dvs node inspect n3\n"
        );
    }

    #[test]
    fn every_failure_of_a_daemon_or_of_the_way_to_it_says_what_to_try() {
        for kind in ErrorKind::ALL {
            let refused = Failure::from(client::Error::Refused(ErrorBody::new(kind, "no")));
            assert!(refused.hint.is_some_and(|hint| hint.len() > 3), "{kind:?}");
        }
        let io = || io::Error::from_raw_os_error(libc::ENOSPC);
        let far = || ("home".to_owned(), "192.0.2.11:7420".to_owned());
        let errors = [
            client::Error::NoDaemon { socket: "/s".into(), source: io() },
            client::Error::NotPermitted { socket: "/s".into(), source: io() },
            client::Error::Unreachable { cluster: far().0, tried: Vec::new() },
            client::Error::Untrusted { cluster: far().0, address: far().1, why: Distrust::OtherRoot },
            client::Error::Broken(Box::new(io())),
            client::Error::Foreign("x".to_owned()),
            client::Error::TooLong { limit_bytes: 1 },
            client::Error::TimedOut { seconds: 30 },
            client::Error::StreamEnded,
            client::Error::Silent,
        ];
        for error in errors {
            let said = error.to_string();
            assert!(Failure::from(error).hint.is_some(), "{said}");
        }
        assert!(Failure::from(io()).hint.is_some());
        let full = client::ContextError::File { path: "/c".into(), source: io() };
        assert!(Failure::from(full).hint.unwrap().contains("make room"));
    }

    #[test]
    fn program_that_was_not_found_has_the_status_of_a_shell() {
        let refused = |kind| of_run(client::Error::Refused(ErrorBody::new(kind, "x"))).status;
        assert_eq!(refused(ErrorKind::NoSuchProgram), 127);
        assert_eq!(refused(ErrorKind::NotExecutable), 126);
        assert_eq!(refused(ErrorKind::Conflict), 125);
        assert_eq!(of_run(client::Error::StreamEnded).status, 125);
    }

    #[test]
    fn text_from_a_daemon_cannot_drive_the_terminal() {
        let failure = Failure::new("bad\u{1b}[2Jname\nsecond");
        assert_eq!(shown(&failure), "dvs: bad\\u{1b}[2Jname\\nsecond\n");
    }

    #[test]
    fn server_that_is_not_believed_is_told_with_the_reason_and_both_times() {
        let told = |why| {
            let (cluster, address) = ("home".to_owned(), "192.0.2.11:7420".to_owned());
            shown(&Failure::from(client::Error::Untrusted { cluster, address, why }))
        };
        let expired = told(Distrust::Expired { ended_s: 951_782_400, here_s: 1_735_689_599 });
        assert!(expired.contains("good until 2000-02-29T00:00:00Z, and here it is 2024-12-31T23:59:59Z"), "{expired}");
        let early = told(Distrust::NotYet { begins_s: 951_782_400, here_s: 0 });
        assert!(early.contains("from 2000-02-29T00:00:00Z on, and here it is 1970-01-01T00:00:00Z"), "{early}");
        assert!(early.contains("try: the clock of this machine"), "{early}");
        assert!(told(Distrust::OtherRoot).contains("another authority"));
        assert!(told(Distrust::Revoked).contains("taken out of the cluster"));
        let tried = vec!["a:1: refused".to_owned(), "b:1: no answer within 5 s".to_owned()];
        let away = shown(&Failure::from(client::Error::Unreachable { cluster: "home".to_owned(), tried }));
        assert!(away.contains("because: a:1: refused\n  because: b:1: no answer"), "{away}");
    }

    #[test]
    fn causes_are_listed_outermost_first() {
        let inner = io::Error::from_raw_os_error(libc::ENOENT);
        let outer = client::Error::NoDaemon { socket: "/s".into(), source: inner };
        let failure = Failure::from(outer);
        assert_eq!(failure.what, "no daemon answers on /s");
        assert_eq!(failure.because, ["No such file or directory (os error 2)"]);
    }
}
