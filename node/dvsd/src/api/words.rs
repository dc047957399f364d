//! What people read when a keeper refused: its facts (`keeper::Refusal`) and what was asked, made into words with
//! something to try.

use std::io::Error;

use keeper::{BadRun, KeeperError, Refusal, Stage};
use mgmt_api::stream::session::AWAY_LIMIT;
use mgmt_api::{Bytes, ErrorBody, ErrorKind, RootFs, RunRequest};

use super::failure::Failure;

/// What was asked of the keeper.
#[derive(Clone, Copy)]
pub struct Asked<'a> {
    pub dc: &'a str,
    /// Of a request to start a program.
    pub run: Option<&'a RunRequest>,
}

impl Asked<'_> {
    /// For who asked.
    pub fn failed(self, error: KeeperError) -> Failure {
        match error {
            KeeperError::Refused(refusal) => Failure(self.refused(&refusal)),
            error => error.into(),
        }
    }

    pub fn refused(self, refusal: &Refusal) -> ErrorBody {
        let dc = self.dc;
        let body = |kind, what: String| ErrorBody::new(kind, what);
        match refusal {
            Refusal::BadRun(bad) => bad_run(bad),
            Refusal::NoSuchProcess { pid } => no_such_process(dc, *pid),
            Refusal::NoProgram { pid } => {
                no_such_process(dc, *pid).because("only programs started by 'dvs run' have streams and logs")
            }
            Refusal::HasEnded { pid } => body(ErrorKind::Conflict, format!("the program {pid} has ended"))
                .hint(format!("its output is in its log: dvs logs {dc} {pid}")),
            Refusal::ClientsFull { pid } => body(ErrorKind::Conflict, format!("too many watch the program {pid}"))
                .hint(format!("dvs logs {dc} {pid}, without --follow")),
            Refusal::SessionOver { pid } => {
                body(ErrorKind::Conflict, format!("the program {pid} waits for its client no longer"))
                    .because(format!("it was away for more than {} s, or did not keep up", AWAY_LIMIT.as_secs()))
                    .hint(format!("dvs attach {dc} {pid}"))
            }
            Refusal::NoSignal { .. } => body(ErrorKind::BadRequest, refusal.to_string()).hint("a number from 0 to 64"),
            Refusal::IsInit => body(ErrorKind::BadRequest, refusal.to_string()).hint(format!("dvs dc stop {dc}")),
            Refusal::Miscounted { heard, confirmed, said } => body(ErrorKind::BadRequest, refusal.to_string())
                .because(format!("it says {heard} frames; {confirmed} to {said} can have been heard")),
            Refusal::NoDescriptor | Refusal::BadKey => body(ErrorKind::BadRequest, refusal.to_string()),
            Refusal::StoreFull => body(ErrorKind::NoSpace, refusal.to_string()),
            // Only the daemon itself asks for runs.
            Refusal::Run(_) => body(ErrorKind::Conflict, refusal.to_string()),
            Refusal::Stopping => {
                body(ErrorKind::Conflict, refusal.to_string()).hint(format!("when it is down: dvs dc start {dc}"))
            }
            Refusal::ProgramsFull => {
                body(ErrorKind::Unavailable, refusal.to_string()).hint("another of its nodes, with --node")
            }
            Refusal::Launch { stage, errno } => self.not_launched(*stage, *errno),
            Refusal::LaunchLate { limit_ms } => {
                let limit = std::time::Duration::from_millis(*limit_ms);
                body(ErrorKind::Unavailable, format!("the program was not executed within {limit:?}"))
                    .because("the container's file tree does not answer")
                    .hint(format!("look at its servers: dvs dc inspect {dc}"))
            }
            Refusal::ListLate => body(ErrorKind::Unavailable, format!("the process table of '{dc}' cannot be read"))
                .because("a process waits for the container's file tree, which does not answer")
                .hint(format!("look at its servers: dvs dc inspect {dc}")),
            Refusal::Failed { task, causes, .. } => {
                causes.iter().fold(body(ErrorKind::Internal, format!("could not {}", task.doing())), |body, cause| {
                    body.because(cause)
                })
            }
        }
    }

    fn not_launched(self, stage: Stage, errno: i32) -> ErrorBody {
        let dc = self.dc;
        let program = self.run.and_then(|run| run.argv.first()).map(Bytes::lossy).unwrap_or_default();
        let cause = Error::from_raw_os_error(errno);
        let could_not = format!("could not {}", doing(stage));
        match (stage, errno) {
            (Stage::Exec, libc::ENOENT) => {
                ErrorBody::new(ErrorKind::NoSuchProgram, format!("there is no program '{program}' in the container"))
                    .because(cause)
                    .hint(match program.parse::<u32>() {
                        Ok(pid) => format!("beside a process: dvs exec --beside {pid} {dc} -- PROGRAM"),
                        Err(_) => format!("look for it: dvs run {dc} -- ls {}", folder_of(&program)),
                    })
            }
            (Stage::Interpreter, _) => {
                ErrorBody::new(ErrorKind::NoSuchProgram, format!("'{program}' needs a program that is not there"))
                    .because("its interpreter (the first line of a script) or its loader is missing")
                    .hint(format!("dvs run {dc} -- head -c 80 {program}"))
            }
            (Stage::Exec, libc::E2BIG) => ErrorBody::new(ErrorKind::BadRequest, could_not)
                .because(cause)
                .hint("shorter arguments; data goes in through -i"),
            (Stage::Exec, _) => ErrorBody::new(ErrorKind::NotExecutable, format!("'{program}' cannot be executed"))
                .because(cause)
                .hint(match errno {
                    libc::ENOEXEC => "a script begins with a line such as #!/bin/sh",
                    _ => "a file with the permission to execute (chmod +x)",
                }),
            (Stage::User | Stage::Group, libc::ENOENT) => {
                let (what, list) = if stage == Stage::User { ("user", "passwd") } else { ("group", "group") };
                let asked = self.run.and_then(|run| run.user.as_deref()).unwrap_or_default();
                let (user, group) = asked.split_once(':').unwrap_or((asked, asked));
                let name = if stage == Stage::User { user } else { group };
                let root = match self.run.map(|run| &run.root) {
                    Some(RootFs::Tree(path)) => format!("/dc{path}"),
                    Some(RootFs::Host) | None => String::new(),
                };
                ErrorBody::new(ErrorKind::BadRequest, format!("there is no {what} '{name}' where the program runs"))
                    .because(format!("/etc/{list} of its root does not know it"))
                    .hint(format!("dvs run {dc} -- cat {root}/etc/{list}"))
            }
            (Stage::Directory, _) => {
                let workdir =
                    self.run.and_then(|run| run.workdir.as_ref()).map_or_else(|| "/".to_owned(), Bytes::lossy);
                ErrorBody::new(ErrorKind::BadRequest, format!("{could_not} '{workdir}'"))
                    .because(cause)
                    .hint(format!("make it: dvs run {dc} -- mkdir -p {workdir}"))
            }
            (Stage::Root, _) => match self.run.map(|run| &run.root) {
                Some(RootFs::Tree(path)) => {
                    ErrorBody::new(ErrorKind::BadRequest, format!("'{path}' of the tree cannot be a root"))
                        .because(cause)
                        .hint(format!("dvs import {dc} SYSTEM.tar {path}"))
                }
                Some(RootFs::Host) | None => ErrorBody::new(ErrorKind::Internal, could_not).because(cause),
            },
            (Stage::Limits, libc::EPERM) => ErrorBody::new(
                ErrorKind::BadRequest,
                "a limit of the program is above what its container has".to_owned(),
            )
            .hint(format!("dvs run {dc} -- sh -c 'ulimit -aH' shows what it has")),
            (Stage::Fork, libc::EAGAIN | libc::ENOSPC) => ErrorBody::new(ErrorKind::Unavailable, could_not)
                .because(cause)
                .hint("the container has as many processes as its limit allows"),
            _ => ErrorBody::new(ErrorKind::Internal, could_not).because(cause),
        }
    }
}

fn bad_run(bad: &BadRun) -> ErrorBody {
    let body = |hint: &str| ErrorBody::new(ErrorKind::BadRequest, bad.to_string()).hint(hint);
    match bad {
        BadRun::NoHex => body("for example {\"hex\": \"ff00\"}"),
        BadRun::TooLarge => body("data goes in through -i or the tree"),
        BadRun::NoProgram => body("a path, or a name that is in PATH"),
        BadRun::NoSuchUser | BadRun::NoUser(_) => body("--user 1000:1000"),
        BadRun::RelativeDirectory => body("--workdir /dc"),
        BadRun::RootOutside => body("--root /debian"),
        BadRun::BadVariable(_) => body("--env NAME=VALUE"),
        BadRun::Nul => body("pass it through -i"),
    }
}

pub fn no_such_process(dc: &str, pid: u32) -> ErrorBody {
    ErrorBody::new(ErrorKind::NotFound, format!("there is no process {pid} in container '{dc}'"))
        .hint(format!("dvs ps --all {dc}"))
}

fn doing(stage: Stage) -> &'static str {
    match stage {
        Stage::Cgroup => "join the control group",
        Stage::Namespaces => "enter the container",
        Stage::Fork => "make a process in the container",
        Stage::Terminal => "take the terminal",
        Stage::Identity => "become the user",
        Stage::User => "look up the user",
        Stage::Group => "look up the group",
        Stage::Root => "change the root",
        Stage::Directory => "enter the working directory",
        Stage::Filter => "install the system call filter",
        Stage::Exec | Stage::Interpreter => "execute the program",
        Stage::Descriptors => "close the keeper's descriptors",
        Stage::Limits => "limit the program",
    }
}

/// Where a program of this name would be.
fn folder_of(program: &str) -> &str {
    match program.rsplit_once('/') {
        None => "/usr/bin",
        Some(("", _)) => "/",
        Some((folder, _)) => folder,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(refusal: &Refusal, run: &serde_json::Value) -> (ErrorKind, String) {
        let run: RunRequest = serde_json::from_value(run.clone()).unwrap();
        let body = Asked { dc: "shop", run: Some(&run) }.refused(refusal);
        (body.kind, format!("{} | {}", body.what, body.hint.unwrap_or_default()))
    }

    #[test]
    fn who_asked_for_a_program_reads_what_to_try() {
        let run = serde_json::json!({ "argv": ["/opt/tool"], "workdir": "/work", "user": "eve:tape" });
        let launch = |stage, errno| Refusal::Launch { stage, errno };
        let looks_at = |program: &str| {
            let run = serde_json::json!({ "argv": [program] });
            said(&launch(Stage::Exec, libc::ENOENT), &run).1
        };
        assert!(looks_at("tool").ends_with("ls /usr/bin"), "{}", looks_at("tool"));
        assert!(looks_at("/tool").ends_with("ls /"), "{}", looks_at("/tool"));
        let table = [
            (launch(Stage::Exec, libc::ENOENT), ErrorKind::NoSuchProgram, "no program '/opt/tool'", "ls /opt"),
            (launch(Stage::Exec, libc::EACCES), ErrorKind::NotExecutable, "cannot be executed", "chmod +x"),
            (launch(Stage::Interpreter, libc::ENOENT), ErrorKind::NoSuchProgram, "needs a program", "head -c 80"),
            (launch(Stage::Directory, libc::ENOENT), ErrorKind::BadRequest, "'/work'", "mkdir -p /work"),
            (launch(Stage::User, libc::ENOENT), ErrorKind::BadRequest, "no user 'eve'", "cat /etc/passwd"),
            (launch(Stage::Group, libc::ENOENT), ErrorKind::BadRequest, "no group 'tape'", "cat /etc/group"),
            (launch(Stage::Fork, libc::EAGAIN), ErrorKind::Unavailable, "make a process", "limit"),
            (launch(Stage::Filter, libc::EINVAL), ErrorKind::Internal, "system call filter", ""),
            (Refusal::HasEnded { pid: 7 }, ErrorKind::Conflict, "7 has ended", "dvs logs shop 7"),
            (Refusal::BadRun(BadRun::NoSuchUser), ErrorKind::BadRequest, "0 to 65535", "--user"),
        ];
        for (refusal, kind, what, hint) in table {
            let (said_kind, text) = said(&refusal, &run);
            let (said_what, said_hint) = text.split_once(" | ").unwrap();
            assert_eq!(said_kind, kind, "{text}");
            assert!(said_what.contains(what) && said_hint.contains(hint), "{text}");
        }
    }
}
