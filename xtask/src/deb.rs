//! `cargo xtask deb`: a Debian package of the one binary, its unit, manual pages, completions and default settings.
//!
//! The binary is that of the release profile: without the checks of arithmetic and the assertions that tests run with,
//! optimised throughout, and stripped. The tests' own profile leaves most of the management unoptimised, because a
//! build of it must be short. `--binary` takes one that was built already, which the tests do.
//!
//! What is written here comes from `packaging/`; manual pages and completions come from the binary itself, so they are
//! those of this version. `dpkg-deb` makes the archive.

mod notices;

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::run::{Outcome, finish, output, read, run, workspace};

/// What the user said.
#[derive(Default)]
pub struct Wanted {
    /// `None`: built now.
    binary: Option<PathBuf>,
    /// `None`: `target/debian`.
    out: Option<PathBuf>,
}

impl Wanted {
    pub fn parse(arguments: &[&str]) -> Outcome<Wanted> {
        match arguments {
            [] => Ok(Wanted::default()),
            ["--binary", path, rest @ ..] => Ok(Wanted { binary: Some(PathBuf::from(path)), ..Wanted::parse(rest)? }),
            ["--out", path, rest @ ..] => Ok(Wanted { out: Some(PathBuf::from(path)), ..Wanted::parse(rest)? }),
            other => Err(format!("deb takes --binary FILE and --out DIRECTORY, not '{}'", other.join(" "))),
        }
    }
}

/// Makes the package and prints its path.
pub fn build(wanted: &Wanted) -> Outcome {
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| workspace().join("target"), PathBuf::from);
    let binary = match &wanted.binary {
        Some(binary) => binary.clone(),
        None => {
            run("cargo", ["build", "--release", "--package", "dvs"])?;
            target.join("x86_64-unknown-linux-gnu/release/dvs")
        }
    };
    let out = wanted.out.clone().unwrap_or_else(|| target.join("debian"));
    let root = out.join("root");
    if root.exists() {
        fs::remove_dir_all(&root).map_err(|error| format!("cannot remove {}: {error}", root.display()))?;
    }
    let package = Package { root, version: version()?, architecture: architecture()? };
    package.fill(&binary)?;
    let path = out.join(format!("dvs_{}_{}.deb", package.version, package.architecture));
    let mut pack = Command::new("dpkg-deb");
    // Of root, whoever builds it; the same bytes for the same contents.
    pack.args(["--root-owner-group", "-Zxz", "--build"]).arg(&package.root).arg(&path);
    output(&mut pack)?;
    println!("{}", path.display());
    Ok(())
}

/// What the archive is made of.
struct Package {
    root: PathBuf,
    version: String,
    architecture: String,
}

impl Package {
    fn fill(&self, binary: &Path) -> Outcome {
        let packaging = workspace().join("packaging");
        self.copy(binary, "usr/bin/dvs", 0o755)?;
        let mut strip = Command::new("strip");
        finish(strip.args(["--strip-unneeded", "--remove-section=.comment"]).arg(self.root.join("usr/bin/dvs")))?;
        self.copy(&packaging.join("dvsd.service"), "usr/lib/systemd/system/dvsd.service", 0o644)?;
        self.copy(&packaging.join("dvsd.toml"), "etc/dvs/dvsd.toml", 0o644)?;
        self.pages(binary)?;
        self.completions(binary)?;
        self.documents(&packaging.join("debian"))?;
        self.control(&packaging.join("debian"))
    }

    /// One for each command; an alias of the daemon's as service.
    fn pages(&self, binary: &Path) -> Outcome {
        let man = self.root.join("usr/share/man/man1");
        output(Command::new(binary).args(["internal", "man", "--date", &self.date()?]).arg(&man))?;
        for page in list(&man)? {
            compress(&page)?;
        }
        let man8 = self.directory("usr/share/man/man8")?;
        let link = man8.join("dvsd.8.gz");
        symlink("../man1/dvs-daemon.1.gz", &link).map_err(|error| format!("cannot make {}: {error}", link.display()))
    }

    fn completions(&self, binary: &Path) -> Outcome {
        for (shell, path) in [
            ("bash", "usr/share/bash-completion/completions/dvs"),
            ("zsh", "usr/share/zsh/vendor-completions/_dvs"),
            ("fish", "usr/share/fish/vendor_completions.d/dvs.fish"),
        ] {
            self.write(path, &output(Command::new(binary).args(["completion", shell]))?, 0o644)?;
        }
        Ok(())
    }

    fn documents(&self, debian: &Path) -> Outcome {
        let documents = "usr/share/doc/dvs";
        self.copy(&debian.join("copyright"), &format!("{documents}/copyright"), 0o644)?;
        self.copy(&debian.join("lintian-overrides"), "usr/share/lintian/overrides/dvs", 0o644)?;
        for (name, text) in [
            ("changelog", read(&debian.join("changelog"))?),
            ("NEWS.md", read(&workspace().join("CHANGELOG.md"))?),
            ("third-party.txt", notices::text()?),
        ] {
            compress(&self.write(&format!("{documents}/{name}"), &text, 0o644)?)?;
        }
        Ok(())
    }

    fn control(&self, debian: &Path) -> Outcome {
        let kibibytes = bytes_below(&self.root)?.div_ceil(1024).to_string();
        let control = read(&debian.join("control"))?
            .replace("@VERSION@", &self.version)
            .replace("@ARCHITECTURE@", &self.architecture)
            .replace("@KIBIBYTES@", &kibibytes);
        self.write("DEBIAN/control", &control, 0o644)?;
        self.write("DEBIAN/conffiles", "/etc/dvs/dvsd.toml\n", 0o644)?;
        for script in ["postinst", "prerm", "postrm"] {
            self.copy(&debian.join(script), &format!("DEBIAN/{script}"), 0o755)?;
        }
        let sums = "cd \"$1\" && find etc usr -type f -print0 | LC_ALL=C sort -z | xargs -0 md5sum";
        let sums = output(Command::new("sh").args(["-ec", sums, "sh"]).arg(&self.root))?;
        self.write("DEBIAN/md5sums", &sums, 0o644).map(drop)
    }

    /// Of the version, as `YYYY-MM-DD`: a page that is built twice is the same.
    fn date(&self) -> Outcome<String> {
        let changelog = workspace().join("packaging/debian/changelog");
        let mut ask = Command::new("dpkg-parsechangelog");
        let seconds = match output(ask.args(["--show-field", "Timestamp", "--file"]).arg(&changelog)) {
            Ok(seconds) => seconds.trim().to_owned(),
            // It is part of dpkg-dev, which a machine that only packs need not have.
            Err(_) => return Ok(String::new()),
        };
        let date = output(Command::new("date").args(["--utc", "--date", &format!("@{seconds}"), "+%Y-%m-%d"]))?;
        Ok(date.trim().to_owned())
    }

    fn directory(&self, path: &str) -> Outcome<PathBuf> {
        let path = self.root.join(path);
        fs::create_dir_all(&path).map_err(|error| format!("cannot make {}: {error}", path.display()))?;
        Ok(path)
    }

    fn write(&self, path: &str, text: &str, mode: u32) -> Outcome<PathBuf> {
        let whole = self.root.join(path);
        let failed = |error: std::io::Error| format!("cannot write {}: {error}", whole.display());
        fs::create_dir_all(whole.parent().unwrap_or(&self.root)).map_err(failed)?;
        fs::write(&whole, text).map_err(failed)?;
        fs::set_permissions(&whole, fs::Permissions::from_mode(mode)).map_err(failed)?;
        Ok(whole)
    }

    fn copy(&self, from: &Path, to: &str, mode: u32) -> Outcome {
        let whole = self.root.join(to);
        let failed = |error: std::io::Error| format!("cannot copy {} to {to}: {error}", from.display());
        fs::create_dir_all(whole.parent().unwrap_or(&self.root)).map_err(failed)?;
        fs::copy(from, &whole).map_err(failed)?;
        fs::set_permissions(&whole, fs::Permissions::from_mode(mode)).map_err(failed)
    }
}

/// The changelog's: whoever raises the workspace's version writes there what is new.
fn version() -> Outcome<String> {
    let changelog = read(&workspace().join("packaging/debian/changelog"))?;
    let version = changelog.split(['(', ')']).nth(1).unwrap_or_default().to_owned();
    if version.split(['-', '+', '~']).next() == Some(env!("CARGO_PKG_VERSION")) {
        return Ok(version);
    }
    let wanted = env!("CARGO_PKG_VERSION");
    Err(format!(
        "packaging/debian/changelog is of version {version}, the workspace of {wanted}\n  try: an entry for it"
    ))
}

fn architecture() -> Outcome<String> {
    let said = output(Command::new("dpkg").arg("--print-architecture"))?;
    Ok(said.trim().to_owned())
}

/// As small as it gets, and without the time of the build.
fn compress(path: &Path) -> Outcome {
    output(Command::new("gzip").args(["--best", "--no-name", "--force"]).arg(path)).map(drop)
}

fn list(directory: &Path) -> Outcome<Vec<PathBuf>> {
    let failed = |error: std::io::Error| format!("cannot read {}: {error}", directory.display());
    let entries = fs::read_dir(directory).map_err(failed)?;
    entries.map(|entry| Ok(entry.map_err(failed)?.path())).collect()
}

fn bytes_below(directory: &Path) -> Outcome<u64> {
    let mut bytes = 0;
    for path in list(directory)? {
        let about = fs::symlink_metadata(&path).map_err(|error| format!("cannot read {}: {error}", path.display()))?;
        bytes += if about.is_dir() { bytes_below(&path)? } else { about.len() };
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changelog_is_of_this_version() {
        assert_eq!(version().as_deref(), Ok(env!("CARGO_PKG_VERSION")));
    }

    #[test]
    fn options_are_understood_in_any_order_and_others_are_refused() {
        let wanted = Wanted::parse(&["--out", "/o", "--binary", "/b"]).unwrap();
        assert_eq!((wanted.out, wanted.binary), (Some("/o".into()), Some("/b".into())));
        assert!(Wanted::parse(&["--binary"]).is_err() && Wanted::parse(&["now"]).is_err());
    }
}
