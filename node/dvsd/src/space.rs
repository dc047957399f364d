//! What the file systems of this node have left, and what is kept back there. `docs/design/space.md` has the whole of
//! it.

use std::path::Path;

use rustix::io::Errno;

use crate::config::Config;

/// `TMPFS_MAGIC`.
const MEMORY_FILES: u32 = 0x0102_1994;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Space {
    /// For others than root.
    pub free_bytes: u64,
    pub whole_bytes: u64,
}

impl Space {
    pub fn at(path: &Path) -> Result<Space, Errno> {
        let host = rustix::fs::statvfs(path)?;
        let bytes = |blocks: u64| blocks.saturating_mul(host.f_frsize);
        Ok(Space { free_bytes: bytes(host.f_bavail), whole_bytes: bytes(host.f_blocks) })
    }

    /// What images leave to records, logs and the engine.
    fn reserve_bytes(self) -> u64 {
        vos_api::disk::host_reserve_bytes(self.whole_bytes)
    }

    /// What images may still take.
    pub fn for_images(self) -> u64 {
        self.free_bytes.saturating_sub(self.reserve_bytes())
    }

    /// Whether writers of files hear already, or will in a moment, that there is no space.
    fn is_short(self) -> bool {
        let reserve = self.reserve_bytes();
        self.free_bytes < reserve + reserve / 8
    }
}

/// Whether files at this path are in memory: there nothing is set aside, because it would take the memory at once.
pub fn is_memory(file: impl std::os::fd::AsFd) -> bool {
    rustix::fs::fstatfs(file).is_ok_and(|host| host.f_type as u32 == MEMORY_FILES)
}

/// How each problem of this kind begins.
pub const FULL: &str = "disk full";

/// One line for each place of the daemon where there is too little.
pub fn problems(config: &Config) -> Vec<String> {
    let engine = config.engine.parent().unwrap_or(Path::new("/"));
    let mut said: Vec<Space> = Vec::new();
    let mut problems = Vec::new();
    for path in [config.state_dir.as_path(), &config.run_dir, engine] {
        let Ok(space) = Space::at(path) else { continue };
        // Several of them are mostly one file system.
        if space.is_short() && !said.contains(&space) {
            let (free, reserve) = (space.free_bytes >> 20, space.reserve_bytes() >> 20);
            problems.push(format!(
                "{FULL}: {free} MiB are free in {} and {reserve} MiB are kept back for the node; make room there",
                path.display()
            ));
            said.push(space);
        }
    }
    problems
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn images_leave_a_part_of_a_small_file_system_and_a_fixed_amount_of_a_large_one() {
        let space = |free: u64, whole: u64| Space { free_bytes: free << 20, whole_bytes: whole << 20 };
        assert_eq!(space(100, 160).for_images(), 90 << 20);
        assert_eq!(space(5, 160).for_images(), 0);
        assert_eq!(space(10_000, 100_000).for_images(), (10_000 - 256) << 20);
        assert!(space(11, 160).is_short() && !space(12, 160).is_short());
    }
}
