//! What the web server serves: real documentation files, and a few of 100 MB.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use super::dvs::{Dvs, ended};
use crate::run::{self, Outcome};

const FILES_MIN: usize = 2_000;
const BYTES_MIN: u64 = 100_000_000;
/// Size of the files whose transfer is measured.
pub const LARGE_BYTES: usize = 100_000_000;
/// One is read cold per measurement.
pub const LARGE_FILES: usize = 3;
/// Shell lines that start nginx for a document root.
pub const ADDRESS: &str = "10.1.0.1";

pub struct Site {
    directory: PathBuf,
    pub files: usize,
    pub bytes: u64,
    /// `sha256sum` lines of `docs`.
    sums: String,
    large_sum: String,
}

impl Drop for Site {
    fn drop(&mut self) {
        // A temporary directory that cannot be removed is no reason to fail the demo.
        let _ = fs::remove_dir_all(&self.directory);
    }
}

impl Site {
    /// Copies documentation of the Rust tool chain, or of the system, until there is enough of it.
    pub fn collect() -> Outcome<Site> {
        let directory = std::env::temp_dir().join(format!("dvs-demo-{}", std::process::id()));
        let mut site = Site { directory, files: 0, bytes: 0, sums: String::new(), large_sum: String::new() };
        fs::create_dir_all(site.docs()).map_err(|error| format!("cannot make {}: {error}", site.docs().display()))?;
        for source in sources() {
            site.copy_tree(&source, &source)?;
        }
        if !site.is_enough() {
            return Err(format!(
                "found only {} files with {} bytes of documentation\n  try: rustup component add rust-docs",
                site.files, site.bytes
            ));
        }
        site.sums = site.checksums()?;
        site.make_large_files()?;
        fs::write(site.directory.join("nginx.conf"), nginx_conf(80, "/dc/site")).map_err(|error| error.to_string())?;
        Ok(site)
    }

    pub fn docs(&self) -> PathBuf {
        self.directory.join("site/docs")
    }

    /// SHA-256 of each of the large files.
    pub fn large_sum(&self) -> &str {
        &self.large_sum
    }

    pub fn directory(&self) -> &Path {
        &self.directory
    }

    fn is_enough(&self) -> bool {
        self.files >= FILES_MIN + 100 && self.bytes >= BYTES_MIN + 5_000_000
    }

    fn copy_tree(&mut self, from: &Path, base: &Path) -> Outcome {
        let Ok(entries) = fs::read_dir(from) else { return Ok(()) };
        let mut entries: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
        entries.sort();
        for path in entries {
            if self.is_enough() {
                return Ok(());
            }
            let Ok(about) = fs::symlink_metadata(&path) else { continue };
            if about.is_dir() {
                self.copy_tree(&path, base)?;
            } else if about.is_file() && has_plain_name(&path) {
                let target = self.docs().join(path.strip_prefix(base).map_err(|error| error.to_string())?);
                let folder = target.parent().ok_or("a file has a folder")?;
                fs::create_dir_all(folder).map_err(|error| error.to_string())?;
                self.bytes +=
                    fs::copy(&path, &target).map_err(|error| format!("cannot copy {}: {error}", path.display()))?;
                self.files += 1;
            }
        }
        Ok(())
    }

    fn checksums(&self) -> Outcome<String> {
        let script = "find . -type f -printf '%P\\n' | sort | xargs -d '\\n' sha256sum";
        run::output(Command::new("sh").args(["-ec", script]).current_dir(self.docs()))
    }

    fn make_large_files(&mut self) -> Outcome {
        let mut state = 0x9e37_79b9_7f4a_7c15u64;
        let mut content = Vec::with_capacity(LARGE_BYTES + 8);
        while content.len() < LARGE_BYTES {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            content.extend_from_slice(&state.to_le_bytes());
        }
        content.truncate(LARGE_BYTES);
        fs::create_dir_all(self.directory.join("site/large")).map_err(|error| error.to_string())?;
        for index in 0..LARGE_FILES {
            let path = self.directory.join(format!("site/large/{index}"));
            fs::write(&path, &content).map_err(|error| format!("cannot write {}: {error}", path.display()))?;
        }
        let line = run::output(Command::new("sha256sum").arg(self.directory.join("site/large/0")))?;
        self.large_sum = line.split_whitespace().next().unwrap_or_default().to_owned();
        Ok(())
    }

    /// Imports on n3, so that neither the web server's node nor n2 has anything of it in its cache.
    pub fn import(&self, dvs: &Dvs, dc: &str, part: &str) -> Outcome {
        let source = self.directory.join(part);
        dvs.run(&["import", dc, &source.display().to_string(), &format!("/{part}"), "--node", "n3"])
    }

    pub fn start_nginx(&self, dvs: &Dvs, dc: &str) -> Outcome {
        let conf = fs::read_to_string(self.directory.join("nginx.conf")).map_err(|error| error.to_string())?;
        dvs.sh_with_input(dc, "n1", "cat > /dc/nginx.conf", &conf)?;
        dvs.run(&["run", dc, "--node", "n1", "-d", "--", "nginx", "-c", "/dc/nginx.conf"])?;
        let wait =
            format!("for i in $(seq 100); do curl -so /dev/null http://{ADDRESS}/ && exit 0; sleep 0.05; done; exit 1");
        dvs.sh(dc, "n1", &wait).map(drop)
    }

    pub fn import_and_compare(&self, dvs: &Dvs, dc: &str) -> Outcome {
        let start = Instant::now();
        self.import(dvs, dc, "site")?;
        let bytes = self.bytes + (LARGE_BYTES * LARGE_FILES) as u64;
        let seconds = start.elapsed().as_secs_f64();
        println!(
            "  imported through n3 with three files of 100 MB: {seconds:.1} s, {:.0} MB/s",
            bytes as f64 / 1e6 / seconds
        );
        self.start_nginx(dvs, dc)?;
        for node in ["n2", "n3"] {
            let start = Instant::now();
            let script = format!(
                "mkdir -p /tmp/get && cd /tmp/get && cat > /tmp/sums && \
                 awk '{{ p = substr($0, 67); print \"url = \\\"http://{ADDRESS}/docs/\" p \"\\\"\\noutput = \\\"\" p \"\\\"\" }}' /tmp/sums | curl -sSf --create-dirs -K - && \
                 sha256sum --quiet -c /tmp/sums && find . -type f | wc -l; cd /; rm -rf /tmp/get"
            );
            let fetched = dvs.sh_with_input(dc, node, &script, &self.sums)?;
            let fetched: usize = fetched.trim().parse().map_err(|_| format!("unexpected answer: {fetched}"))?;
            if fetched != self.files {
                return Err(format!("{node} fetched {fetched} files of {}", self.files));
            }
            let seconds = start.elapsed().as_secs_f64();
            println!(
                "  fetched from {node}: {fetched} files in {seconds:.1} s, every SHA-256 as it was before the import"
            );
        }
        Ok(())
    }

    /// The transfer is slowed to 40 MB/s so that the kill falls into it, and the file has not been read before.
    pub fn transfer_survives_kill(&self, dvs: &Dvs, dc: &str, fs_node: &str) -> Outcome {
        dvs.sh(dc, "n1", "cp /dc/site/large/0 /dc/site/large/fresh")?;
        dvs.run(&["dc", "stop", dc])?;
        dvs.run(&["dc", "start", dc])?;
        self.start_nginx(dvs, dc)?;
        let script = format!("curl -sS --limit-rate 40M http://{ADDRESS}/large/fresh | sha256sum");
        let start = Instant::now();
        let transfer = dvs.start_sh(dc, "n2", &script)?;
        std::thread::sleep(Duration::from_millis(700));
        let pid = dvs.server_pid(dc, fs_node, "fs")?;
        dvs.run(&["dev", "exec", fs_node, "--", "kill", "-9", &pid.to_string()])?;
        let printed = ended(transfer, "the transfer")?;
        let seconds = start.elapsed().as_secs_f64();
        if printed.split_whitespace().next() != Some(self.large_sum.as_str()) {
            return Err(format!("the transfer ended with the wrong checksum: {printed}"));
        }
        let after = dvs.server_pid(dc, fs_node, "fs")?;
        println!(
            "  fs (pid {pid}) killed 0.7 s into the transfer, fs (pid {after}) took over; 100 MB complete after {seconds:.1} s with the right SHA-256"
        );
        Ok(())
    }
}

pub fn nginx_conf(port: u16, root: &str) -> String {
    let temporary: String = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
        .iter()
        .map(|kind| format!("  {kind}_temp_path /tmp/nginx-{port}-{kind};\n"))
        .collect();
    format!(
        "user root;\ndaemon off;\nworker_processes 1;\npid /tmp/nginx-{port}.pid;\nerror_log stderr;\nevents {{}}\nhttp {{\n{temporary}  access_log off;\n  sendfile on;\n  server {{\n    listen {port};\n    root {root};\n    autoindex on;\n  }}\n}}\n"
    )
}

fn sources() -> Vec<PathBuf> {
    let sysroot = run::output(Command::new("rustc").args(["--print", "sysroot"])).unwrap_or_default();
    vec![
        Path::new(sysroot.trim()).join("share/doc/rust/html/core"),
        PathBuf::from("/usr/share/doc"),
        PathBuf::from("/usr/share"),
    ]
}

/// Names that need no quoting in URLs and shell lists.
fn has_plain_name(path: &Path) -> bool {
    path.to_string_lossy().bytes().all(|byte| byte.is_ascii_alphanumeric() || b"/._-".contains(&byte))
}
