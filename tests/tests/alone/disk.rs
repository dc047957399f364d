//! `dvs alone disk`, used by clients of others.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use end_to_end::dvs_binary;
use end_to_end::nbd::{certificates, has};
use rustix::process::{Pid, Signal, kill_process};

use crate::{ok, run};

/// A server, and the address that it said.
struct Alone {
    child: Child,
    uri: String,
}

impl Alone {
    fn disk(image: &Path, more: &[&str]) -> Alone {
        let mut command = Command::new(dvs_binary());
        command.args(["-o", "json", "alone", "disk"]).arg(image).args(more).stdout(Stdio::piped());
        let mut child = command.spawn().expect("dvs starts");
        let mut out = BufReader::new(child.stdout.take().expect("a pipe"));
        let mut text = String::new();
        let uri = loop {
            assert!(out.read_line(&mut text).expect("text") > 0, "it ended: {text}");
            if let Ok(said) = serde_json::from_str::<serde_json::Value>(&text) {
                break said["uri"].as_str().expect("an address").to_owned();
            }
        };
        Alone { child, uri }
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).expect("it runs");
    }

    /// Its exit status.
    fn end(mut self) -> Option<i32> {
        self.signal(Signal::TERM);
        self.child.wait().expect("it ends").code()
    }
}

impl Drop for Alone {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn refused(arguments: &[&str]) -> String {
    let done = Command::new(dvs_binary()).args(["alone", "disk"]).args(arguments).output().expect("dvs starts");
    assert_eq!(done.status.code(), Some(1), "{done:?}");
    String::from_utf8_lossy(&done.stderr).into_owned()
}

#[test]
fn image_is_a_disk_for_the_clients_of_others() {
    if !has("nbdinfo", "libnbd-bin") || !has("qemu-io", "qemu-utils") {
        return;
    }
    let dir = tempfile::tempdir().expect("a directory");
    let path = |name: &str| dir.path().join(name).to_str().expect("text").to_owned();
    let (image, socket, random, back) = (path("image"), path("socket"), path("random"), path("back"));
    let server = Alone::disk(Path::new(&image), &["--size", "64M", "--socket", &socket]);
    let uri = server.uri.clone();
    assert_eq!(ok("nbdinfo", &["--size", &uri]).trim(), "67108864");
    let told = ok("nbdinfo", &[&uri]);
    for what in ["can_multi_conn: true", "can_fua: true", "can_trim: true", "can_zero: true", "is_read_only: false"] {
        assert!(told.contains(what), "{told}");
    }
    // Several connections at a time.
    ok("sh", &["-c", &format!("head -c 40000000 /dev/urandom > {random}")]);
    ok("nbdcopy", &["--connections=4", &random, &uri]);
    ok("nbdcopy", &["--connections=4", &uri, &back]);
    ok("cmp", &["-n", "40000000", &random, &back]);
    let map = ok("nbdinfo", &["--map", &uri]);
    assert!(map.lines().count() == 2 && map.contains("hole,zero"), "what was never written is none: {map}");
    let steps = [
        "write -P 7 5k 3k",
        "read -P 7 5k 3k",
        "write -f -P 9 1M 64k",
        "discard 0 64k",
        "read -P 0 0 64k",
        "write -z 2M 1M",
        "read -P 0 2M 1M",
        "write -z -u 4M 1M",
        "read -P 0 4M 1M",
        "aio_write -P 3 8M 1M",
        "aio_write -P 4 9M 1M",
        "aio_flush",
        "read -P 3 8M 1M",
        "read -P 4 9M 1M",
        "flush",
    ];
    let steps: Vec<&str> = steps.iter().flat_map(|step| ["-c", step]).collect();
    let done = ok("qemu-io", &[&["-f", "raw", &uri][..], &steps].concat());
    assert!(!done.contains("verification failed"), "{done}");
    ok("qemu-img", &["compare", "-f", "raw", "-F", "raw", &uri, &image]);
    if has("fio", "fio") && ok("fio", &["--enghelp"]).contains("nbd") {
        let job =
            ["--name=v", "--ioengine=nbd", "--rw=randrw", "--bssplit=4k/50:1k/20:64k/30", "--size=32M", "--iodepth=16"];
        let verify = ["--verify=crc32c", "--verify_fatal=1", "--verify_state_save=0", "--fsync=32", "--minimal"];
        ok("fio", &[&job[..], &[&format!("--uri={uri}")], &verify].concat());
    }
    // What was flushed is there whatever becomes of the server.
    ok("qemu-io", &["-f", "raw", &uri, "-c", "write -P 5 10M 1M", "-c", "flush"]);
    server.signal(Signal::KILL);
    drop(server);
    let _ = std::fs::remove_file(&socket);
    let server = Alone::disk(Path::new(&image), &["--read-only", "--socket", &socket]);
    ok("qemu-io", &["-r", "-f", "raw", &uri, "-c", "read -P 5 10M 1M"]);
    let changed = run("qemu-io", &["-f", "raw", &uri, "-c", "write 0 4k"]);
    assert!(!changed.status.success(), "{changed:?}");
    assert_eq!(server.end(), Some(0));
    assert!(!Path::new(&socket).exists());
}

#[test]
fn memory_is_a_disk_and_volumes_of_other_servers_are_passed_on() {
    if !has("nbdinfo", "libnbd-bin") || !has("qemu-io", "qemu-utils") {
        return;
    }
    let memory = Alone::disk(Path::new("--memory"), &["64M", "--listen", "127.0.0.1:0"]);
    let passed_on = Alone::disk(Path::new(&memory.uri), &["--listen", "127.0.0.1:0"]);
    ok("qemu-io", &["-f", "raw", &passed_on.uri, "-c", "write -P 7 1M 64k", "-c", "flush", "-c", "write -z 1M 4k"]);
    ok("qemu-io", &["-f", "raw", &memory.uri, "-c", "read -P 7 1028k 60k", "-c", "read -P 0 1M 4k"]);
    let map = ok("nbdinfo", &["--map", "--totals", &passed_on.uri]);
    assert!(map.contains("hole,zero") && map.lines().count() == 2, "what is a hole there is one here: {map}");
    let only_read = Alone::disk(Path::new(&memory.uri), &["--listen", "127.0.0.1:0", "--read-only"]);
    assert!(!run("qemu-io", &["-f", "raw", &only_read.uri, "-c", "write 0 4k"]).status.success());
    assert_eq!(only_read.end(), Some(0));
    // With its server the volume ends, and who passes it on.
    drop(memory);
    let mut passed_on = passed_on;
    assert_eq!(passed_on.child.wait().expect("it ends").code(), Some(1));
    for (what, why) in [
        ("nbds://127.0.0.1/", "encrypted"),
        ("nbd://", "nbd://HOST[:PORT]/EXPORT"),
        (passed_on.uri.as_str(), "nobody can be reached"),
    ] {
        let said = refused(&[what, "--listen", "127.0.0.1:0"]);
        assert!(said.contains(why), "{said}");
    }
    let said = refused(&["--memory", "1000", "--listen", "127.0.0.1:0"]);
    assert!(said.contains("no multiple of 4096"), "{said}");
}

#[test]
fn who_has_a_certificate_of_the_authority_is_served_encrypted_and_nobody_else_is() {
    if !has("nbdinfo", "libnbd-bin") {
        return;
    }
    let dir = tempfile::tempdir().expect("a directory");
    let path = |name: &str| dir.path().join(name).to_str().expect("text").to_owned();
    certificates(Path::new(&path("known")), &["server", "client"]);
    certificates(Path::new(&path("other")), &["server", "client"]);
    let known = path("known");
    let options = ["--size", "64M", "--listen", "127.0.0.1:0", "--tls-certificates", &known];
    let server = Alone::disk(Path::new(&path("image")), &options);
    let sealed = |certificates: &str| format!("{}?tls-certificates={}", server.uri, path(certificates));
    assert!(server.uri.starts_with("nbds://127.0.0.1:"), "{}", server.uri);
    let told = ok("nbdinfo", &[&sealed("known")]);
    assert!(told.contains("with TLS"), "{told}");
    ok("sh", &["-c", &format!("head -c 40000000 /dev/urandom > {}", path("random"))]);
    ok("nbdcopy", &["--connections=4", &path("random"), &sealed("known")]);
    ok("nbdcopy", &["--connections=4", &sealed("known"), &path("back")]);
    ok("cmp", &["-n", "40000000", &path("random"), &path("back")]);
    ok("cmp", &["-n", "40000000", &path("random"), &path("image")]);
    // Another authority's, none at all, and no encryption.
    for stranger in [sealed("other"), server.uri.clone(), server.uri.replacen("nbds:", "nbd:", 1)] {
        let refused = run("nbdinfo", &["--size", &stranger]);
        assert!(!refused.status.success(), "{stranger}: {refused:?}");
    }
    // Nothing that is said before the encryption is taken for something that was said in it.
    let address = server.uri.trim_start_matches("nbds://").trim_end_matches('/');
    let mut stream = TcpStream::connect(address).expect("it listens");
    stream.read_exact(&mut [0; 18]).expect("a greeting");
    let option = |number: u32| [&b"IHAVEOPT"[..], &number.to_be_bytes(), &[0; 4]].concat();
    let (start_tls, list) = (option(5), option(3));
    stream.write_all(&[&3_u32.to_be_bytes()[..], &start_tls, &list].concat()).expect("said");
    let mut heard = Vec::new();
    let _ = stream.read_to_end(&mut heard);
    assert_eq!(heard.len(), 20, "that it may begin, and no more: {heard:?}");
    let said = refused(&[&path("another"), "--size", "1M", "--tls-certificates", &path("nowhere")]);
    assert!(said.contains("ca-cert.pem") && said.contains("nbdkit"), "{said}");
    assert_eq!(server.end(), Some(0));
}

#[test]
fn what_cannot_be_served_is_refused_with_what_to_try() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = |name: &str| dir.path().join(name).to_str().expect("text").to_owned();
    let image = path("image");
    let said = refused(&[&image]);
    assert!(said.contains("cannot be opened") && said.contains("--size 10G makes it"), "{said}");
    assert!(!Path::new(&image).exists());
    let server = Alone::disk(Path::new(&image), &["--size", "1M", "--listen", "127.0.0.1:0"]);
    let address = server.uri.trim_start_matches("nbd://").trim_end_matches('/').to_owned();
    let said = refused(&[&image, "--socket", &path("other")]);
    assert!(said.contains("is served already"), "{said}");
    let said = refused(&[&path("second"), "--size", "1M", "--listen", &address]);
    assert!(said.contains(&format!("nobody can connect at {address}")) && said.contains("--listen"), "{said}");
    assert_eq!(server.end(), Some(0));
    let said = refused(&[&image, "--size", "512K", "--socket", &path("other")]);
    assert!(said.contains("a volume is never cut"), "{said}");
    std::fs::write(path("odd"), [0; 5000]).expect("a file");
    let said = refused(&[&path("odd"), "--socket", &path("other")]);
    assert!(said.contains("no multiple of 4096"), "{said}");
    let said = refused(&[dir.path().to_str().expect("text"), "--read-only", "--socket", &path("other")]);
    assert!(said.contains("neither a file nor a block device"), "{said}");
    assert_eq!(std::fs::metadata(&image).expect("it is there").len(), 1 << 20, "nothing was changed");
}
