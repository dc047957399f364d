//! The library as `library.sh` makes it, programs compiled against it, and a container for them to talk in.

#![allow(dead_code)]

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

use broker::{Broker, BrokerConfig, DcOptions, ServerIdentity};
use ipc::{DcId, Endpoint, Epoch, Port};

pub const DC: DcId = DcId(7);
/// A program of these tests that takes longer hangs.
const LIMIT_SECONDS: &str = "60";

pub fn source(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

/// The library and programs that use it, in a directory that goes with it.
pub struct Library {
    directory: tempfile::TempDir,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Linked {
    Shared,
    Archive,
    /// Without any shared object.
    Static,
}

impl Library {
    /// Links what cargo built together with this test.
    pub fn link() -> Library {
        let directory = tempfile::tempdir().unwrap();
        let mut script = Command::new(source("library.sh"));
        ok(script.arg("link").arg(archive()).arg(directory.path().join("lib")));
        Library { directory }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    pub fn lib(&self) -> PathBuf {
        self.path("lib")
    }

    /// Installs below a directory of its own, which is returned.
    pub fn install(&self) -> PathBuf {
        // Each in a place of its own: one that is written anew is empty for a moment.
        static PLACES: AtomicU32 = AtomicU32::new(0);
        let to = self.path(&format!("installed-{}", PLACES.fetch_add(1, Ordering::Relaxed)));
        let mut script = Command::new(source("library.sh"));
        script.arg("install").arg(self.lib()).env("DESTDIR", &to).env("PREFIX", "/usr");
        ok(&mut script);
        to
    }

    /// Compiles one file of this crate. Every warning is an error.
    pub fn compile(&self, compiler: &str, flags: &[&str], file: &str, linked: Linked) -> PathBuf {
        let stem = Path::new(file).file_stem().unwrap().to_str().unwrap();
        let program = self.path(&format!("{stem}-{compiler}-{linked:?}"));
        let mut command = Command::new(compiler);
        command.args(["-Wall", "-Wextra", "-Werror", "-pedantic", "-pthread", "-O1"]).args(flags);
        command.arg("-I").arg(source("include")).arg("-o").arg(&program).arg(source(file));
        match linked {
            Linked::Shared => {
                command.arg("-L").arg(self.lib()).arg("-lm3ipc").arg(format!("-Wl,-rpath,{}", self.lib().display()))
            }
            Linked::Archive => command.arg(self.lib().join("libm3ipc.a")),
            // Name lookups of the C library want shared objects; none is used.
            Linked::Static => command.args(["-static", "-Wl,--no-warnings"]).arg(self.lib().join("libm3ipc.a")),
        };
        ok(&mut command);
        program
    }
}

/// Cargo puts it beside this test, under a name of its own for each selection of features. All are of the same sources;
/// the newest is there for sure.
fn archive() -> PathBuf {
    let this_test = std::env::current_exe().unwrap();
    let beside = this_test.parent().unwrap().read_dir().unwrap().map(|entry| entry.unwrap());
    let archives = beside.filter(|entry| {
        let name = entry.file_name().into_string().unwrap_or_default();
        name.starts_with("libipc_c-") && name.ends_with(".a")
    });
    let newest = archives.max_by_key(|entry| entry.metadata().and_then(|data| data.modified()).ok());
    newest.expect("cargo builds the archive with this test").path()
}

/// One container on one node.
pub struct Container {
    pub broker: Broker,
    directory: tempfile::TempDir,
}

impl Container {
    /// As a node makes it.
    pub fn open() -> Container {
        Container::with(DcOptions::default())
    }

    pub fn with(options: DcOptions) -> Container {
        let directory = tempfile::tempdir().unwrap();
        let broker = Broker::start(BrokerConfig::local()).unwrap();
        broker.add_dc(DC, DcOptions { listen: Some(directory.path().join("broker")), ..options }).unwrap();
        Container { broker, directory }
    }

    pub fn socket(&self) -> PathBuf {
        self.directory.path().join("broker")
    }

    pub fn server(&self, endpoint: Endpoint) -> Port {
        Port::from_socket(self.server_socket(endpoint), None).unwrap()
    }

    pub fn server_socket(&self, endpoint: Endpoint) -> std::os::fd::OwnedFd {
        self.broker.server_socket(DC, ServerIdentity::new(endpoint, Epoch(1))).unwrap()
    }

    pub fn program(&self) -> Port {
        Port::connect(&self.socket(), None).unwrap()
    }

    /// A program that finds this container's broker, and is ended when it takes too long.
    pub fn command(&self, program: &Path) -> Command {
        let mut command = Command::new("timeout");
        command.args(["-k", "5", LIMIT_SECONDS]).arg(program).env("M3IPC_BROKER", self.socket()).stdin(Stdio::null());
        command
    }

    pub fn run(&self, program: &Path, arguments: &[&str]) -> Output {
        ok(self.command(program).args(arguments))
    }
}

/// Runs a command that must succeed.
pub fn ok(command: &mut Command) -> Output {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?} ended with {}: {said}", output.status);
    output
}

pub fn text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

pub fn has(program: &str) -> bool {
    Command::new("sh").args(["-c", &format!("command -v {program}")]).output().unwrap().status.success()
}
