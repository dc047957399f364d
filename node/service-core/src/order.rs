//! What comes after what. `after` and `near` both lead to a service that has to be there first.

use std::collections::BTreeMap;

use mgmt_api::{ServiceSpec, ServiceState};

/// Names in an order in which each comes after what it waits for; of those that wait for nothing more, as described.
/// Else one circle, its first name again at its end.
pub fn order(services: &[ServiceSpec]) -> Result<Vec<&str>, Vec<&str>> {
    let mut left: BTreeMap<&str, &ServiceSpec> = services.iter().map(|it| (it.name.as_str(), it)).collect();
    let mut ordered = Vec::new();
    while !left.is_empty() {
        let free: Vec<&str> = services
            .iter()
            .filter(|it| left.contains_key(it.name.as_str()) && !awaited(it).any(|other| left.contains_key(other)))
            .map(|it| it.name.as_str())
            .collect();
        if free.is_empty() {
            return Err(circle(&left));
        }
        for name in free {
            left.remove(name);
            ordered.push(name);
        }
    }
    Ok(ordered)
}

fn awaited(service: &ServiceSpec) -> impl Iterator<Item = &str> {
    service.after.iter().chain(&service.near).map(String::as_str)
}

/// Each of these waits for one of these: whoever follows them comes back.
fn circle<'a>(left: &BTreeMap<&'a str, &'a ServiceSpec>) -> Vec<&'a str> {
    let mut path: Vec<&str> = Vec::new();
    let mut at = left.values().next().copied();
    while let Some(service) = at {
        let name = service.name.as_str();
        let seen = path.iter().position(|it| *it == name);
        path.push(name);
        if let Some(from) = seen {
            return path.split_off(from);
        }
        at = awaited(service).find_map(|other| left.get(other)).copied();
    }
    path
}

/// Whether those that wait for a service with these instances may go on: `has_health`, it has a health check.
pub fn is_up(states: &[(ServiceState, Option<u8>)], has_health: bool) -> bool {
    !states.is_empty()
        && states.iter().all(|(state, exit)| match state {
            ServiceState::Healthy => true,
            ServiceState::Running => !has_health,
            // It had one thing to do, and has done it.
            ServiceState::Stopped => *exit == Some(0),
            _ => false,
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn service(name: &str, after: &[&str], near: Option<&str>) -> ServiceSpec {
        ServiceSpec {
            name: name.to_owned(),
            command: vec!["true".into()],
            env: Vec::new(),
            workdir: None,
            user: None,
            root: None,
            node: None,
            place: None,
            near: near.map(str::to_owned),
            instances: 1,
            after: after.iter().map(|it| (*it).to_owned()).collect(),
            restart: Default::default(),
            health: None,
            stop: Default::default(),
        }
    }

    #[test]
    fn each_comes_after_what_it_waits_for() {
        let services = [
            service("web", &["app", "db"], None),
            service("app", &["db"], None),
            service("cache", &[], Some("app")),
            service("db", &[], None),
        ];
        assert_eq!(order(&services).unwrap(), ["db", "app", "web", "cache"]);
    }

    #[test]
    fn circle_is_named_without_those_that_only_lead_to_it() {
        let services = [service("a", &["b"], None), service("b", &["c"], None), service("c", &[], Some("b"))];
        assert_eq!(order(&services).unwrap_err(), ["b", "c", "b"]);
        assert_eq!(order(&[service("a", &["a"], None)]).unwrap_err(), ["a", "a"]);
    }

    #[test]
    fn service_is_up_when_all_its_instances_are() {
        use ServiceState::*;
        assert!(!is_up(&[], false));
        assert!(is_up(&[(Running, None), (Stopped, Some(0))], false));
        assert!(!is_up(&[(Running, None)], true) && is_up(&[(Healthy, None)], true));
        for state in [Waiting, Placed, Starting, Unhealthy, BackingOff, Stopping, Failed] {
            assert!(!is_up(&[(Healthy, None), (state, Some(0))], false), "{state:?}");
        }
        assert!(!is_up(&[(Stopped, Some(1))], false) && !is_up(&[(Stopped, None)], false));
    }
}
