//! What is wrong with the cluster, in words: decided from what one node sees of the others and what they say of
//! themselves. Pure; who asks is `api/examination.rs`.
//!
//! Each trouble says what to run. A node that cannot be asked is one trouble, not one for each thing that it did not
//! say.

use std::path::Path;
use std::time::Duration;

use mgmt_api::{Gravity, HealthCheck, MemberFacts, NodeFacts, NodeState, SpaceFacts, Trouble};

/// Times in logs and lists of two nodes cannot be compared any more.
const CLOCK_OFF_MAX: Duration = Duration::from_secs(1);
/// Time to make a new certificate and to bring it to its node.
const EXPIRES_SOON: Duration = Duration::from_secs(30 * 24 * 3600);
/// Of a file system: a tenth is free, and less than a few times what is kept back for the node.
const NEARLY_FULL_PARTS: u64 = 10;
const NEARLY_FULL_RESERVES: u64 = 8;

/// One node, as the examining one sees it.
pub struct Seen {
    pub name: String,
    pub address: String,
    pub state: NodeState,
    /// As the engine has them, for a node that does not answer.
    pub problems: Vec<String>,
    pub asked: Asked,
}

pub enum Asked {
    /// A node that is known to be down.
    Not,
    NoAnswer(String),
    Answered {
        facts: NodeFacts,
        clock: ClockOff,
    },
}

/// How far another node's clock is from this one's: as little as the time between question and answer allows to say.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ClockOff {
    pub at_least: Duration,
    pub is_behind: bool,
}

impl ClockOff {
    pub const NONE: ClockOff = ClockOff { at_least: Duration::ZERO, is_behind: false };

    /// The other's clock was read at some moment between the two.
    pub fn between(asked_ms: u64, clock_ms: u64, answered_ms: u64) -> ClockOff {
        let (behind, ahead) = (asked_ms.saturating_sub(clock_ms), clock_ms.saturating_sub(answered_ms));
        ClockOff { at_least: Duration::from_millis(behind.max(ahead)), is_behind: behind > 0 }
    }
}

/// Leases neither begin nor end while the engine is away.
#[derive(Clone, Copy, PartialEq, Eq)]
enum EngineSays {
    WhoLives,
    Nothing,
}

/// Everything that is wrong, the worst first.
pub fn troubles(own: &str, seen: &[Seen], now_s: u64) -> Vec<Trouble> {
    let is_away = |facts: &NodeFacts| facts.checks.iter().any(|check| check.name == "engine" && !check.is_passed());
    let itself = seen.iter().find(|node| node.name == own);
    let engine = match itself.map(|node| &node.asked) {
        Some(Asked::Answered { facts, .. }) if is_away(facts) => EngineSays::Nothing,
        _ => EngineSays::WhoLives,
    };
    let mut found: Vec<Trouble> = seen.iter().flat_map(|node| of_node(own, engine, node, now_s)).collect();
    let own_version = itself.and_then(version).unwrap_or_default();
    found.extend(seen.iter().filter(|node| version(node).is_some_and(|other| other != own_version)).map(|node| {
        let other = version(node).unwrap_or_default();
        let words = format!("its daemon is of version {other}, the one of {own} of {own_version}");
        trouble(node, "version", Gravity::Degraded, words, "dvs node upgrade, on each node of an earlier release")
    }));
    found.sort_by_key(|trouble| std::cmp::Reverse(trouble.gravity));
    found
}

fn version(node: &Seen) -> Option<&str> {
    match &node.asked {
        Asked::Answered { facts, .. } => Some(&facts.version),
        Asked::Not | Asked::NoAnswer(_) => None,
    }
}

fn trouble(
    node: &Seen,
    subject: &str,
    gravity: Gravity,
    found: impl Into<String>,
    what_to_do: impl Into<String>,
) -> Trouble {
    let (found, what_to_do) = (found.into(), what_to_do.into());
    Trouble { node: node.name.clone(), subject: subject.to_owned(), gravity, found, what_to_do }
}

fn of_node(own: &str, engine: EngineSays, node: &Seen, now_s: u64) -> Vec<Trouble> {
    let mut found: Vec<Trouble> = presence(own, engine, node).into_iter().collect();
    match &node.asked {
        Asked::Not => (),
        Asked::NoAnswer(why) => {
            // What a node without a link does not answer is no news.
            if node.state != NodeState::Unreachable {
                let words = format!("its daemon does not answer at {}: {why}", node.address);
                let hint = format!("on {}: systemctl status dvsd, journalctl -u dvsd", node.name);
                found.push(trouble(node, "daemon", Gravity::Broken, words, hint));
            }
            found.extend(node.problems.iter().map(|problem| {
                let hint = format!("dvs node inspect {}", node.name);
                trouble(node, "health", Gravity::Broken, problem.clone(), hint)
            }));
        }
        Asked::Answered { facts, clock } => {
            found
                .extend(facts.checks.iter().filter(|check| !check.is_passed()).map(|check| failed(node, facts, check)));
            found.extend(facts.member.as_ref().and_then(|member| of_member(node, facts, member)));
            found.extend(of_clock(own, node, *clock));
            found.extend(certificates(node, facts, now_s));
            found.extend(facts.space.iter().filter_map(|space| of_space(node, facts, space)));
        }
    }
    found
}

fn presence(own: &str, engine: EngineSays, node: &Seen) -> Option<Trouble> {
    let name = &node.name;
    let (gravity, words, hint) = match node.state {
        NodeState::Ready | NodeState::Degraded => return None,
        NodeState::Suspect => (
            Gravity::Degraded,
            format!("{own} has not heard of it for a moment, or is just connecting to it again"),
            format!("dvs doctor, in some seconds; then dvs node inspect {name}"),
        ),
        NodeState::Unreachable => (
            Gravity::Broken,
            match engine {
                EngineSays::WhoLives => format!("its daemon lives, but {own} has no link to it"),
                EngineSays::Nothing => {
                    format!(
                        "{own} has no link to it, and while the engine is away nobody knows whether its daemon lives"
                    )
                }
            },
            format!(
                "dvs node inspect {own}, which shows why; between the nodes TCP 7420 and 7421 and UDP 4789 must be open"
            ),
        ),
        NodeState::Fenced => (
            Gravity::Broken,
            "the others heard nothing of it and decided that it is lost; it comes back by itself if it is not"
                .to_owned(),
            format!(
                "on {name}: is the machine on, and its network? If it is gone for good: dvs node remove {name} --lost"
            ),
        ),
        NodeState::Down => (
            Gravity::Broken,
            "the machine or its daemon is down: nothing was heard of it for longer than its lease".to_owned(),
            format!("on {name}: systemctl status dvsd, systemctl start dvsd"),
        ),
    };
    Some(trouble(node, "node", gravity, words, hint))
}

fn failed(node: &Seen, facts: &NodeFacts, check: &HealthCheck) -> Trouble {
    let (name, log_dir) = (&node.name, &facts.log_dir);
    let hint = match check.name.as_str() {
        "engine" | "lease" => format!("on {name}: journalctl -u dvsd; with etcd: tail {log_dir}/etcd.log"),
        "proxy" => format!("dvs node inspect {name}; on {name}: tail {log_dir}/proxy.log"),
        "engine-members" => format!(
            "on {name}: what is said there; etcd --version, tail {log_dir}/etcd.log; then systemctl restart dvsd"
        ),
        "disk-space" => format!("on {name}: df -h, and make room"),
        "audit" => format!("on {name}: df -h; what is not written cannot be shown later"),
        _ => format!("on {name}: journalctl -u dvsd, systemctl restart dvsd (containers go on)"),
    };
    trouble(node, &check.name.replace('-', " "), Gravity::Broken, check.problems.join("; "), hint)
}

fn of_member(node: &Seen, facts: &NodeFacts, member: &MemberFacts) -> Option<Trouble> {
    // One that ends again and again is told once.
    let is_told = facts.checks.iter().any(|check| check.name == "engine-members" && !check.is_passed());
    if member.is_running || is_told {
        return None;
    }
    let words = member.last_words.as_ref().map(|words| format!("; its last words: {words}")).unwrap_or_default();
    let words = format!("etcd does not run there, and it should{words}");
    let hint = format!("on {}: tail {}/etcd.log; is etcd-server installed?", node.name, facts.log_dir);
    Some(trouble(node, "etcd", Gravity::Broken, words, hint))
}

fn of_clock(own: &str, node: &Seen, clock: ClockOff) -> Option<Trouble> {
    if clock.at_least <= CLOCK_OFF_MAX {
        return None;
    }
    let side = if clock.is_behind { "behind" } else { "ahead of" };
    let words = format!("its clock is at least {:.1} s {side} the one of {own}", clock.at_least.as_secs_f64());
    let hint = format!("on {0} and {own}: timedatectl, and timedatectl set-ntp true", node.name);
    Some(trouble(node, "clock", Gravity::Degraded, words, hint))
}

fn certificates(node: &Seen, facts: &NodeFacts, now_s: u64) -> Vec<Trouble> {
    let of_one = |certificate: &mgmt_api::CertificateFacts| {
        let path = &certificate.path;
        let is_authority = Path::new(path).file_name().is_some_and(|name| name == pki::CA_CERT);
        let hint = if is_authority {
            "dvs node ca makes an authority; every node then needs a certificate of it".to_owned()
        } else {
            format!("dvs node cert {} --ca CA-DIRECTORY --out {}", node.name, parent(path))
        };
        let (gravity, words) = match certificate.expires_s {
            None => (Gravity::Broken, format!("the certificate {path} cannot be read")),
            Some(expires_s) if expires_s <= now_s => (Gravity::Broken, format!("the certificate {path} has expired")),
            Some(expires_s) if expires_s - now_s < EXPIRES_SOON.as_secs() => {
                let days = (expires_s - now_s) / (24 * 3600);
                (Gravity::Degraded, format!("the certificate {path} expires in {days} days"))
            }
            Some(_) => return None,
        };
        Some(trouble(node, "certificate", gravity, words, hint))
    };
    facts.certificates.iter().filter_map(of_one).collect()
}

fn parent(path: &str) -> String {
    Path::new(path).parent().unwrap_or(Path::new("/")).display().to_string()
}

/// Before writers are refused: that is a failed check of the node.
fn of_space(node: &Seen, facts: &NodeFacts, space: &SpaceFacts) -> Option<Trouble> {
    let is_full = facts.checks.iter().any(|check| check.name == "disk-space" && !check.is_passed());
    let reserve = vos_api::disk::host_reserve_bytes(space.whole_bytes);
    let is_nearly = space.free_bytes < space.whole_bytes / NEARLY_FULL_PARTS
        && space.free_bytes < reserve.saturating_mul(NEARLY_FULL_RESERVES);
    if is_full || !is_nearly {
        return None;
    }
    let words = format!(
        "nearly full: {} of {} MiB are free in {}",
        space.free_bytes >> 20,
        space.whole_bytes >> 20,
        space.path
    );
    let hint = format!("on {}: du -xsh {}/*, and make room", node.name, space.path);
    Some(trouble(node, "disk space", Gravity::Degraded, words, hint))
}

#[cfg(test)]
mod tests {
    use mgmt_api::CertificateFacts;

    use super::*;

    const NOW_S: u64 = 2_000_000_000;
    const DAY_S: u64 = 24 * 3600;

    fn facts(node: &str) -> NodeFacts {
        NodeFacts {
            node: node.to_owned(),
            version: "0.1.0".to_owned(),
            clock_ms: NOW_S * 1000,
            checks: vec![HealthCheck::new("engine", None)],
            certificates: vec![CertificateFacts {
                path: "/var/lib/dvs/tls/node.crt".to_owned(),
                expires_s: Some(NOW_S + 90 * DAY_S),
            }],
            space: vec![SpaceFacts { path: "/var/lib/dvs".to_owned(), free_bytes: 50 << 30, whole_bytes: 100 << 30 }],
            member: Some(MemberFacts { is_running: true, last_words: None }),
            log_dir: "/var/lib/dvs/log".to_owned(),
        }
    }

    fn node(name: &str, change: impl FnOnce(&mut NodeFacts)) -> Seen {
        let mut facts = facts(name);
        change(&mut facts);
        Seen {
            name: name.to_owned(),
            address: "192.0.2.11:7420".to_owned(),
            state: NodeState::Ready,
            problems: Vec::new(),
            asked: Asked::Answered { facts, clock: ClockOff::NONE },
        }
    }

    /// Of n2, beside an n1 that is well: subject, gravity, words and what to do.
    fn said(other: Seen) -> Vec<(String, Gravity, String)> {
        let found = troubles("n1", &[node("n1", |_| ()), other], NOW_S).into_iter();
        found
            .map(|trouble| {
                assert_eq!(trouble.node, "n2", "{trouble:?}");
                assert!(!trouble.what_to_do.is_empty(), "{trouble:?}");
                (trouble.subject, trouble.gravity, format!("{} | {}", trouble.found, trouble.what_to_do))
            })
            .collect()
    }

    fn one(other: Seen, subject: &str, gravity: Gravity, words: &[&str]) {
        let said = said(other);
        assert!(matches!(said.as_slice(), [(found, how, _)] if found == subject && *how == gravity), "{said:?}");
        assert!(words.iter().all(|word| said[0].2.contains(word)), "{said:?}");
    }

    #[test]
    fn of_a_cluster_that_is_well_nothing_is_said() {
        assert_eq!(said(node("n2", |_| ())), []);
    }

    #[test]
    fn node_that_is_down_or_without_a_link_is_one_finding() {
        let down = Seen { state: NodeState::Down, asked: Asked::Not, ..node("n2", |_| ()) };
        one(down, "node", Gravity::Broken, &["down", "systemctl start dvsd"]);
        let asked = Asked::NoAnswer("no route to host".to_owned());
        let cut = Seen { state: NodeState::Unreachable, asked, ..node("n2", |_| ()) };
        one(cut, "node", Gravity::Broken, &["no link", "7421"]);
        let asked = Asked::NoAnswer("connection refused".to_owned());
        let silent = Seen { asked, ..node("n2", |_| ()) };
        one(silent, "daemon", Gravity::Broken, &["192.0.2.11:7420", "connection refused", "journalctl"]);
        let suspect = Seen { state: NodeState::Suspect, ..node("n2", |_| ()) };
        one(suspect, "node", Gravity::Degraded, &["for a moment"]);
    }

    #[test]
    fn of_a_node_without_a_link_nobody_says_that_it_lives_while_the_engine_is_away() {
        let away = node("n1", |facts| facts.checks = vec![HealthCheck::new("engine", ["too few members".to_owned()])]);
        let asked = Asked::NoAnswer("no route to host".to_owned());
        let cut = Seen { state: NodeState::Unreachable, asked, ..node("n2", |_| ()) };
        let told = troubles("n1", &[away, cut], NOW_S);
        let of_n2 = told.iter().find(|trouble| trouble.node == "n2").unwrap();
        assert!(of_n2.found.contains("nobody knows") && !of_n2.found.contains("its daemon lives, but"), "{of_n2:?}");
    }

    #[test]
    fn engine_that_is_away_and_a_member_that_does_not_run_are_told() {
        let away = node("n2", |facts| facts.checks = vec![HealthCheck::new("engine", ["too few members".to_owned()])]);
        one(away, "engine", Gravity::Broken, &["too few members", "log/etcd.log"]);
        let gone = MemberFacts { is_running: false, last_words: Some("address in use".to_owned()) };
        let again = vec![HealthCheck::new("engine-members", ["it ends again and again: address in use".to_owned()])];
        let ends = node("n2", |facts| (facts.member, facts.checks) = (Some(gone.clone()), again));
        one(ends, "engine members", Gravity::Broken, &["again and again", "tail /var/lib/dvs/log/etcd.log"]);
        let gone = node("n2", |facts| facts.member = Some(gone));
        one(gone, "etcd", Gravity::Broken, &["address in use", "tail /var/lib/dvs/log/etcd.log"]);
        assert_eq!(said(node("n2", |facts| facts.member = None)), [], "not every node runs one");
    }

    #[test]
    fn clock_is_told_only_when_the_time_of_the_question_does_not_explain_it() {
        assert_eq!(ClockOff::between(1000, 1400, 1500), ClockOff::NONE);
        let behind = ClockOff::between(10_000, 7_000, 10_100);
        assert_eq!((behind.at_least, behind.is_behind), (Duration::from_secs(3), true));
        let ahead = ClockOff::between(10_000, 12_100, 10_100);
        assert_eq!((ahead.at_least, ahead.is_behind), (Duration::from_secs(2), false));
        let with = |clock| Seen { asked: Asked::Answered { facts: facts("n2"), clock }, ..node("n2", |_| ()) };
        one(with(behind), "clock", Gravity::Degraded, &["at least 3.0 s behind", "timedatectl"]);
        assert_eq!(said(with(ClockOff::between(10_000, 10_900, 10_100))), []);
    }

    #[test]
    fn certificate_is_told_before_it_ends_and_after() {
        let ends = |expires_s: Option<u64>| node("n2", |facts| facts.certificates[0].expires_s = expires_s);
        one(ends(Some(NOW_S + 10 * DAY_S + 5)), "certificate", Gravity::Degraded, &["in 10 days", "dvs node cert n2"]);
        one(ends(Some(NOW_S - 1)), "certificate", Gravity::Broken, &["has expired", "--out /var/lib/dvs/tls"]);
        one(ends(None), "certificate", Gravity::Broken, &["cannot be read"]);
        let authority = node("n2", |facts| {
            facts.certificates[0] = CertificateFacts { path: "/t/ca.crt".to_owned(), expires_s: Some(NOW_S) };
        });
        one(authority, "certificate", Gravity::Broken, &["/t/ca.crt", "dvs node ca"]);
    }

    #[test]
    fn disk_is_told_before_writers_are_refused_and_then_once() {
        let nearly = |facts: &mut NodeFacts| facts.space[0].free_bytes = 1 << 30;
        one(node("n2", nearly), "disk space", Gravity::Degraded, &["nearly full", "1024 of 102400 MiB", "du -xsh"]);
        let full = node("n2", |facts| {
            nearly(facts);
            facts.checks = vec![HealthCheck::new("disk-space", ["disk full: 3 MiB".to_owned()])];
        });
        one(full, "disk space", Gravity::Broken, &["disk full", "df -h"]);
    }

    #[test]
    fn another_version_is_told_and_what_is_broken_comes_first() {
        let other = node("n2", |facts| {
            facts.version = "0.2.0".to_owned();
            facts.checks = vec![HealthCheck::new("proxy", ["it does not answer".to_owned()])];
        });
        let subjects: Vec<String> = said(other).into_iter().map(|(subject, ..)| subject).collect();
        assert_eq!(subjects, ["proxy", "version"]);
    }
}
