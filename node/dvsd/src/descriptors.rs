//! How many files this process may have open.

use rustix::process::{Resource, getrlimit, setrlimit};

/// As many as may be. The broker and the shelf hold descriptors of all containers, and what starts daemons usually sets
/// a soft limit of 1,024, which is for programs that use `select`. It also bounds what is under way in a socket.
pub fn allow_most() -> std::io::Result<()> {
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    Ok(setrlimit(Resource::Nofile, limit)?)
}
