//! Whether descriptions of services make sense. The first thing that is wrong becomes one error, with what to try.
//!
//! Not here: names of fields and types of values (`mgmt_api::ServiceSpec` refuses what it does not know), and whether
//! there is room (`choose`).

use std::collections::BTreeSet;
use std::ops::RangeInclusive;

use mgmt_api::{
    Bytes, ErrorBody, ErrorKind, HealthProbe, HealthSpec, NoUser, ProgramUser, ServiceSpec, in_tree, valid_name,
};

use crate::order;

/// Each is a record and a conversation with keepers; more are a program's business.
pub const SERVICES_PER_DC: usize = 64;
/// A record of the engine holds them all.
pub const INSTANCES_PER_SERVICE: u32 = 64;
const COMMAND_BYTES_MAX: usize = 32 * 1024;
const ENV_BYTES_MAX: usize = 32 * 1024;
/// More often is load, less often tells nobody anything.
const INTERVALS_MS: RangeInclusive<u64> = 100..=3_600_000;
const TIMEOUTS_MS: RangeInclusive<u64> = 10..=60_000;
const RETRIES: RangeInclusive<u32> = 1..=100;
const START_MS_MAX: u64 = 3_600_000;
/// Somebody waits for the command that stops it.
const GRACE_MS_MAX: u64 = 600_000;
const HTTP_PATH_BYTES_MAX: usize = 1024;
const SIGNAL_MAX: i32 = 64;

/// Names of what may ask a program to end, with the numbers that they have on every Linux that DVS runs on.
const SIGNALS: &[(&str, i32)] =
    &[("HUP", 1), ("INT", 2), ("QUIT", 3), ("KILL", 9), ("USR1", 10), ("USR2", 12), ("TERM", 15), ("WINCH", 28)];

/// What is wrong with the services of a container on these nodes, if anything is.
pub fn check(services: &[ServiceSpec], nodes: &[String]) -> Result<(), ErrorBody> {
    if services.len() > SERVICES_PER_DC {
        return Err(bad(format!("a container has at most {SERVICES_PER_DC} services, not {}", services.len()))
            .hint("several instances of one service count once"));
    }
    let mut names = BTreeSet::new();
    for service in services {
        if !valid_name(&service.name) {
            return Err(bad(format!("{:?} is not a name for a service", service.name))
                .hint("1 to 32 of a-z, 0-9 and -, beginning with a letter"));
        }
        if !names.insert(service.name.as_str()) {
            return Err(bad(format!("there are two services {:?}", service.name))
                .hint("other names, or one service with 'instances = 2'"));
        }
    }
    for service in services {
        check_one(service, &names, nodes)
            .map_err(|error| ErrorBody { what: format!("service '{}': {}", service.name, error.what), ..error })?;
    }
    match order::order(services) {
        Ok(_) => Ok(()),
        Err(circle) => Err(bad(format!("services wait for each other: {}", circle.join(" after ")))
            .hint("take one of them out of 'after' or 'near'")),
    }
}

fn check_one(service: &ServiceSpec, names: &BTreeSet<&str>, nodes: &[String]) -> Result<(), ErrorBody> {
    check_command(&service.command, "command")?;
    check_env(&service.env)?;
    if let Some(workdir) = &service.workdir {
        check_workdir(workdir)?;
    }
    if let Some(user) = &service.user {
        let named: Result<ProgramUser, NoUser> = user.parse();
        named.map_err(|_| {
            bad(format!("'user' is {user:?}")).hint(format!(
                "USER or USER:GROUP, names of its /etc/passwd or numbers up to {}: user = \"www-data\"",
                ProgramUser::ID_MAX
            ))
        })?;
    }
    if let Some(root) = &service.root
        && in_tree(root).is_none()
    {
        return Err(bad(format!("'root' is {root:?}")).hint("a directory of the tree, without ..: root = \"/debian\""));
    }
    check_place(service, names, nodes)?;
    if !(1..=INSTANCES_PER_SERVICE).contains(&service.instances) {
        return Err(bad(format!("'instances' is 1 to {INSTANCES_PER_SERVICE}, not {}", service.instances))
            .hint("'dvs service stop' ends one without forgetting it"));
    }
    for other in &service.after {
        if !names.contains(other.as_str()) {
            return Err(bad(format!("it comes after {other:?}, which is no service of this container"))
                .hint(format!("services: {}", listed(names.iter().copied()))));
        }
    }
    parse_signal(&service.stop.signal)?;
    if service.stop.grace_ms > GRACE_MS_MAX {
        return Err(bad(format!("'grace_ms' is at most {GRACE_MS_MAX}, not {}", service.stop.grace_ms))
            .hint("a program that needs longer is asked to end by its own means first"));
    }
    service.health.as_ref().map_or(Ok(()), check_health)
}

fn check_command(command: &[Bytes], field: &str) -> Result<(), ErrorBody> {
    let hint = "a list, program first: [\"/usr/bin/sleep\", \"60\"]";
    let first = command.first().map(|program| program.bytes());
    if !matches!(&first, Some(Ok(program)) if !program.is_empty()) {
        return Err(bad(format!("'{field}' names no program")).hint(hint));
    }
    let mut size = 0;
    for argument in command {
        let bytes = argument.bytes().map_err(|error| bad(format!("'{field}': {error}")).hint(hint))?;
        if bytes.contains(&0) {
            return Err(bad(format!("'{field}' has a zero byte")).hint("no argument of a program can have one"));
        }
        size += bytes.len() + 1;
    }
    if size > COMMAND_BYTES_MAX {
        return Err(bad(format!("'{field}' has {size} bytes, {COMMAND_BYTES_MAX} are possible"))
            .hint("put it into a script in the file tree"));
    }
    Ok(())
}

/// Variables of an environment, `NAME=VALUE`.
pub fn check_env(env: &[Bytes]) -> Result<(), ErrorBody> {
    let hint = "NAME=VALUE, as in env = [\"PORT=8080\"]";
    let mut size = 0;
    for entry in env {
        let bytes = entry.bytes().map_err(|error| bad(format!("'env': {error}")).hint(hint))?;
        let is_named = bytes.iter().position(|byte| *byte == b'=').is_some_and(|at| at > 0);
        if !is_named || bytes.contains(&0) {
            return Err(bad(format!("{:?} in 'env' sets no variable", entry.lossy())).hint(hint));
        }
        size += bytes.len() + 1;
    }
    if size > ENV_BYTES_MAX {
        return Err(bad(format!("'env' has {size} bytes, {ENV_BYTES_MAX} are possible"))
            .hint("put it into a file in the file tree"));
    }
    Ok(())
}

fn check_workdir(workdir: &Bytes) -> Result<(), ErrorBody> {
    let is_path = workdir.bytes().is_ok_and(|path| path.starts_with(b"/") && !path.contains(&0));
    if is_path {
        return Ok(());
    }
    Err(bad(format!("'workdir' is {:?}", workdir.lossy())).hint("a path from the root: /dc/www"))
}

fn check_place(service: &ServiceSpec, names: &BTreeSet<&str>, nodes: &[String]) -> Result<(), ErrorBody> {
    let said = [service.node.is_some(), service.place.is_some(), service.near.is_some()];
    if said.into_iter().filter(|is_said| *is_said).count() > 1 {
        return Err(bad("more than one of 'node', 'place' and 'near' says where it stands").hint("leave one of them"));
    }
    if let Some(node) = service.node.as_ref().filter(|node| !nodes.contains(node)) {
        return Err(bad(format!("the container has no node {node:?}"))
            .hint(format!("its nodes: {}", listed(nodes.iter().map(String::as_str)))));
    }
    let Some(other) = &service.near else { return Ok(()) };
    if !names.contains(other.as_str()) {
        return Err(bad(format!("it stands near {other:?}, which is no service of this container"))
            .hint(format!("services: {}", listed(names.iter().copied()))));
    }
    Ok(())
}

fn check_health(health: &HealthSpec) -> Result<(), ErrorBody> {
    probe(health)?;
    let ranges = [("interval_ms", health.interval_ms, INTERVALS_MS), ("timeout_ms", health.timeout_ms, TIMEOUTS_MS)];
    for (field, value, range) in ranges {
        if !range.contains(&value) {
            return Err(
                bad(format!("'{field}' is {} to {}, not {value}", range.start(), range.end())).hint("in milliseconds")
            );
        }
    }
    if !RETRIES.contains(&health.retries) {
        return Err(bad(format!("'retries' is {} to {}, not {}", RETRIES.start(), RETRIES.end(), health.retries))
            .hint("failures in a row until it is unhealthy"));
    }
    if health.start_ms > START_MS_MAX {
        return Err(bad(format!("'start_ms' is at most {START_MS_MAX}, not {}", health.start_ms))
            .hint("in milliseconds: how long it may take until it is well"));
    }
    Ok(())
}

/// What the check asks.
pub fn probe(health: &HealthSpec) -> Result<HealthProbe, ErrorBody> {
    match (&health.command, health.tcp, &health.http) {
        (Some(command), None, None) => {
            check_command(command, "health.command")?;
            Ok(HealthProbe::Command(command.clone()))
        }
        (None, Some(port), None) if port > 0 => Ok(HealthProbe::Tcp(port)),
        (None, Some(_), None) => Err(bad("'tcp' is a port, 1 to 65535").hint("health = { tcp = 8080 }")),
        (None, None, Some(target)) => parse_http(target),
        _ => Err(bad("'health' has exactly one of 'command', 'tcp' and 'http'")
            .hint("health = { tcp = 8080 }, or leave 'health' out")),
    }
}

fn parse_http(target: &str) -> Result<HealthProbe, ErrorBody> {
    let (port, path) = target.split_at(target.find('/').unwrap_or(target.len()));
    let is_path = path.len() <= HTTP_PATH_BYTES_MAX && path.bytes().all(|byte| byte.is_ascii_graphic());
    match number(port).filter(|port| *port > 0).and_then(|port| u16::try_from(port).ok()) {
        Some(port) if is_path => {
            Ok(HealthProbe::Http { port, path: if path.is_empty() { "/".to_owned() } else { path.to_owned() } })
        }
        _ => Err(bad(format!("'http' is {target:?}"))
            .hint("a port of its node and a path: health = { http = \"8080/ready\" }")),
    }
}

pub fn parse_signal(text: &str) -> Result<i32, ErrorBody> {
    let name = text.strip_prefix("SIG").unwrap_or(text);
    let named = SIGNALS.iter().find(|(known, _)| *known == name).map(|(_, number)| *number);
    let numbered =
        number(text).and_then(|number| i32::try_from(number).ok()).filter(|it| (1..=SIGNAL_MAX).contains(it));
    named.or(numbered).ok_or_else(|| {
        let names = listed(SIGNALS.iter().map(|(name, _)| *name));
        bad(format!("{text:?} is no signal that ends a program")).hint(format!("{names}, or a number"))
    })
}

/// Digits alone: no sign, no blanks.
fn number(text: &str) -> Option<u32> {
    text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok()).flatten()
}

fn listed<'a>(names: impl Iterator<Item = &'a str>) -> String {
    let names: Vec<&str> = names.collect();
    names.join(", ")
}

fn bad(what: impl Into<String>) -> ErrorBody {
    ErrorBody::new(ErrorKind::BadRequest, what)
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;

    use super::*;

    #[derive(Deserialize)]
    #[serde(deny_unknown_fields)]
    struct File {
        services: Vec<ServiceSpec>,
    }

    fn services(text: &str) -> Result<Vec<ServiceSpec>, toml::de::Error> {
        toml::from_str::<File>(text).map(|file| file.services)
    }

    fn nodes() -> Vec<String> {
        vec!["n1".to_owned(), "n2".to_owned()]
    }

    const WEB: &str = "[[services]]\nname = 'web'\ncommand = ['/bin/web', '80']\n";

    #[test]
    fn short_description_has_defaults_and_a_long_one_is_taken_as_it_is() {
        let short = services(WEB).unwrap();
        check(&short, &nodes()).unwrap();
        let web = &short[0];
        assert_eq!((web.instances, web.stop.signal.as_str(), web.stop.grace_ms), (1, "TERM", 10_000));
        let long = format!(
            "{WEB}env = ['A=1', {{ hex = '423d32' }}]\nworkdir = '/dc'\nuser = 'www-data:7'\nroot = '/debian'\nplace = 'least-loaded'\n\
             instances = 3\nafter = ['db']\nrestart = 'on-failure'\nstop = {{ signal = 'SIGINT', grace_ms = 0 }}\n\
             health = {{ http = '80/ready' }}\n[[services]]\nname = 'db'\ncommand = ['db']\nnode = 'n2'\n"
        );
        let long = services(&long).unwrap();
        check(&long, &nodes()).unwrap();
        let expected = HealthProbe::Http { port: 80, path: "/ready".to_owned() };
        assert_eq!(probe(long[0].health.as_ref().unwrap()).unwrap(), expected);
    }

    #[test]
    fn each_thing_that_is_wrong_is_one_error_with_a_hint() {
        let long = "x".repeat(COMMAND_BYTES_MAX);
        let cases = [
            ("name = 'Web'", "\"Web\" is not a name for a service"),
            ("command = []", "'command' names no program"),
            ("command = ['']", "'command' names no program"),
            ("command = [\"a\", \"b\\u0000\"]", "'command' has a zero byte"),
            ("command = [{ hex = 'f' }]", "'command' names no program"),
            ("command = ['a', { hex = 'f' }]", "'command': 'hex' must be an even number of hexadecimal digits"),
            (&format!("command = ['{long}']"), "'command' has 32769 bytes, 32768 are possible"),
            ("env = ['PORT']", "\"PORT\" in 'env' sets no variable"),
            ("env = ['=1']", "\"=1\" in 'env' sets no variable"),
            (&format!("env = ['A={long}']"), "'env' has 32771 bytes, 32768 are possible"),
            ("workdir = 'www'", "'workdir' is \"www\""),
            ("user = 'w w'", "'user' is \"w w\""),
            ("root = '/debian/../..'", "'root' is \"/debian/../..\""),
            ("user = '-1'", "'user' is \"-1\""),
            ("user = '65536'", "'user' is \"65536\""),
            ("user = ':'", "'user' is \":\""),
            ("node = 'n1'\nplace = 'pack'", "more than one of 'node', 'place' and 'near' says where it stands"),
            ("node = 'n3'", "the container has no node \"n3\""),
            ("near = 'db'", "it stands near \"db\", which is no service of this container"),
            ("near = 'web'", "services wait for each other: web after web"),
            ("instances = 0", "'instances' is 1 to 64, not 0"),
            ("instances = 65", "'instances' is 1 to 64, not 65"),
            ("after = ['db']", "it comes after \"db\", which is no service of this container"),
            ("after = ['web']", "services wait for each other: web after web"),
            ("stop = { signal = 'FOO' }", "\"FOO\" is no signal that ends a program"),
            ("stop = { signal = '0' }", "\"0\" is no signal that ends a program"),
            ("stop = { signal = '65' }", "\"65\" is no signal that ends a program"),
            ("stop = { grace_ms = 600001 }", "'grace_ms' is at most 600000, not 600001"),
            ("health = {}", "'health' has exactly one of 'command', 'tcp' and 'http'"),
            ("health = { tcp = 1, http = '1' }", "'health' has exactly one of 'command', 'tcp' and 'http'"),
            ("health = { tcp = 0 }", "'tcp' is a port, 1 to 65535"),
            ("health = { http = '/ready' }", "'http' is \"/ready\""),
            ("health = { http = '80/a b' }", "'http' is \"80/a b\""),
            ("health = { http = '70000/' }", "'http' is \"70000/\""),
            ("health = { command = [] }", "'health.command' names no program"),
            ("health = { tcp = 1, interval_ms = 99 }", "'interval_ms' is 100 to 3600000, not 99"),
            ("health = { tcp = 1, timeout_ms = 60001 }", "'timeout_ms' is 10 to 60000, not 60001"),
            ("health = { tcp = 1, retries = 0 }", "'retries' is 1 to 100, not 0"),
            ("health = { tcp = 1, start_ms = 3600001 }", "'start_ms' is at most 3600000, not 3600001"),
        ];
        for (line, what) in cases {
            let field = line.split(' ').next().unwrap_or_default();
            let kept = WEB.lines().filter(|kept| !kept.starts_with(&format!("{field} ")));
            let text = format!("{}\n{line}\n", kept.collect::<Vec<_>>().join("\n"));
            let error = check(&services(&text).unwrap(), &nodes()).expect_err(line);
            assert!(error.what == what || error.what == format!("service 'web': {what}"), "{line}: {}", error.what);
            assert!(error.hint.is_some(), "{line}");
        }
    }

    #[test]
    fn fields_and_words_that_do_not_exist_are_refused() {
        for line in
            ["comand = ['a']", "restart = 'sometimes'", "place = 'random'", "health = { udp = 1 }", "instances = -1"]
        {
            assert!(services(&format!("{WEB}{line}\n")).is_err(), "{line}");
        }
    }

    #[test]
    fn two_of_a_name_and_too_many_are_refused() {
        let two = services(&WEB.repeat(2)).unwrap();
        assert_eq!(check(&two, &nodes()).unwrap_err().what, "there are two services \"web\"");
        let many: String = (0..=SERVICES_PER_DC).map(|i| WEB.replace("'web'", &format!("'web{i}'"))).collect();
        let error = check(&services(&many).unwrap(), &nodes()).unwrap_err();
        assert_eq!(error.what, "a container has at most 64 services, not 65");
    }
}
