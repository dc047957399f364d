//! What a program may not, of what its container may. It stays so for all that it starts.

use mgmt_api::{Capabilities, RunRequest};
use rustix::process::{Resource, Rlimit, setrlimit};
use rustix::thread::{
    CapabilitySet, CapabilitySets, capability_is_in_bounding_set, remove_capability_from_bounding_set, set_capabilities,
};

#[derive(Debug)]
pub struct Restraints {
    limits: Vec<(Resource, Rlimit)>,
    without: CapabilitySet,
}

impl Restraints {
    pub fn of(run: &RunRequest) -> Restraints {
        let limit = |limit: &mgmt_api::Ulimit| {
            Some((resource(&limit.name)?, Rlimit { current: limit.soft, maximum: limit.hard }))
        };
        let bits = run.cap_drop.iter().copied().map(Capabilities::bits).fold(0, |all, some| all | some);
        Restraints {
            limits: run.ulimits.iter().filter_map(limit).collect(),
            without: CapabilitySet::from_bits_retain(bits),
        }
    }

    /// By root inside: the kernel refuses it what is above the limits that it has.
    pub fn limit(&self) -> rustix::io::Result<()> {
        self.limits.iter().try_for_each(|(resource, limit)| setrlimit(*resource, *limit))
    }

    /// By root inside, before it becomes somebody else; what is under way keeps what it needs until exec.
    pub fn drop_capabilities(&self) -> rustix::io::Result<()> {
        if self.without.is_empty() {
            return Ok(());
        }
        retain_in_bounding_set(!self.without)?;
        let own = rustix::thread::capabilities(None)?;
        set_capabilities(None, CapabilitySets { inheritable: own.inheritable - self.without, ..own })
    }
}

/// None after exec but these.
pub fn retain_in_bounding_set(kept: CapabilitySet) -> rustix::io::Result<()> {
    for capability in (0..64).map(|number| CapabilitySet::from_bits_retain(1 << number)) {
        match capability_is_in_bounding_set(capability) {
            Ok(true) if !kept.contains(capability) => remove_capability_from_bounding_set(capability)?,
            Ok(_) => {}
            // The kernel knows no more of them.
            Err(rustix::io::Errno::INVAL) => break,
            Err(cause) => return Err(cause),
        }
    }
    Ok(())
}

fn resource(name: &str) -> Option<Resource> {
    Some(match name {
        "as" => Resource::As,
        "core" => Resource::Core,
        "cpu" => Resource::Cpu,
        "data" => Resource::Data,
        "fsize" => Resource::Fsize,
        "locks" => Resource::Locks,
        "memlock" => Resource::Memlock,
        "msgqueue" => Resource::Msgqueue,
        "nice" => Resource::Nice,
        "nofile" => Resource::Nofile,
        "nproc" => Resource::Nproc,
        "rtprio" => Resource::Rtprio,
        "rttime" => Resource::Rttime,
        "sigpending" => Resource::Sigpending,
        "stack" => Resource::Stack,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_limit_that_may_be_asked_for_is_one_of_the_kernel() {
        assert!(mgmt_api::Ulimit::NAMES.into_iter().all(|name| resource(name).is_some()));
    }
}
