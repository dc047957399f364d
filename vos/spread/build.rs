//! Makes the library that programs of `dvs run --spread` are started with. It is no crate of this workspace: it is
//! dynamic where everything else is static, and brings neither a standard library nor a C library along, so that it is
//! at home in programs of any.

use std::path::PathBuf;
use std::process::Command;

fn main() {
    println!("cargo::rerun-if-changed=preloaded.rs");
    let of = |name: &str| std::env::var(name).unwrap_or_else(|_| panic!("cargo says {name}"));
    let out = PathBuf::from(of("OUT_DIR")).join("libdvs-spread.so");
    let mut rustc = Command::new(of("RUSTC"));
    rustc.args(["preloaded.rs", "--crate-name", "dvs_spread", "--crate-type", "cdylib", "--edition", "2024"]);
    rustc.args(["--target", &of("TARGET"), "-O", "-C", "panic=abort", "-C", "target-feature=-crt-static"]);
    rustc.args(["-C", "link-arg=-nostdlib", "-C", "strip=symbols", "-D", "warnings", "-o"]).arg(&out);
    let status = rustc.status().expect("rustc runs");
    assert!(status.success(), "the library of --spread was not made");
}
