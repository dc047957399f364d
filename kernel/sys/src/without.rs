//! Features of newer kernels that can be switched off, so that what is done without them can be tried on any kernel.
//!
//! `DVS_WITHOUT=passrights,resend` in the environment of a process makes it behave as on a kernel without these. A
//! daemon hands the variable on to everything that it starts. It is for tests: it adds nothing that an older kernel
//! would not have.
//!
//! | name | feature | since | without it |
//! |---|---|---|---|
//! | `passrights` | sockets that refuse descriptors (`SO_PASSRIGHTS`) | Linux 6.16 | what strangers send is closed by a thread of its own |
//! | `pid_max_ns` | `pid_max` of each pid namespace | Linux 6.14 | a container's init sets `ns_last_pid` back in time |
//! | `resend` | `FUSE_NOTIFY_RESEND` | Linux 6.9 | what a dead gate was doing fails |
//! | `passpidfd` | messages with a pidfd of their sender (`SO_PASSPIDFD`) | Linux 6.5 | the sender's number is looked up |
//! | `expire` | names that the kernel only has to ask about again | Linux 6.2 | the kernel forgets them |

use std::sync::OnceLock;

/// Name of the environment variable.
pub const VARIABLE: &str = "DVS_WITHOUT";

/// A feature that can be switched off.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Feature {
    PassRights,
    PidMaxOfNamespace,
    FuseResend,
    PassPidfd,
    FuseExpire,
}

const NAMES: [(&str, Feature); 5] = [
    ("passrights", Feature::PassRights),
    ("pid_max_ns", Feature::PidMaxOfNamespace),
    ("resend", Feature::FuseResend),
    ("passpidfd", Feature::PassPidfd),
    ("expire", Feature::FuseExpire),
];

/// Whether the process must do without `feature`. The environment is read once.
pub fn without(feature: Feature) -> bool {
    static OFF: OnceLock<Vec<Feature>> = OnceLock::new();
    let off = || parse(&variable().unwrap_or_default()).0;
    OFF.get_or_init(off).contains(&feature)
}

/// What the variable says, to hand it on.
pub fn variable() -> Option<String> {
    std::env::var(VARIABLE).ok()
}

/// The names in the variable that no feature has: a test that switched nothing off would prove nothing.
pub fn unknown() -> Vec<String> {
    parse(&variable().unwrap_or_default()).1
}

pub fn names() -> impl Iterator<Item = &'static str> {
    NAMES.iter().map(|(name, _)| *name)
}

fn parse(text: &str) -> (Vec<Feature>, Vec<String>) {
    let (mut off, mut unknown) = (Vec::new(), Vec::new());
    for word in text.split(',').map(str::trim).filter(|word| !word.is_empty()) {
        match NAMES.iter().find(|(name, _)| *name == word) {
            Some((_, feature)) => off.push(*feature),
            None => unknown.push(word.to_owned()),
        }
    }
    (off, unknown)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn features_are_found_by_name_and_others_are_told() {
        let (off, unknown) = parse("passrights, resend,,teleport");
        assert_eq!(off, [Feature::PassRights, Feature::FuseResend]);
        assert_eq!(unknown, ["teleport"]);
        assert_eq!(parse(""), (Vec::new(), Vec::new()));
        assert_eq!(parse(&names().collect::<Vec<_>>().join(",")).0.len(), NAMES.len());
    }
}
