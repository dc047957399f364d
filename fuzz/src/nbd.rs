//! What a client of NBD says, from its first byte on, to a server of two exports.

use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;

use gate_nbd::Exporter;
use gate_nbd::testing::MemoryStore;

/// More than is begun and finished later, at a time.
const BLOCKS: usize = 512;
const BYTES: usize = BLOCKS * 4096;
/// As much is said to who asks for all of it again and again.
const HEARD_MAX: u64 = 256 << 20;

/// Says all of it, and listens to the end; the connection ends, whatever was said.
pub fn nbd(data: &[u8]) {
    let mut exporter = Exporter::default();
    exporter.export("disk", "to be written", Box::new(MemoryStore::of_blocks(BLOCKS)));
    exporter.export("other", "", Box::new(MemoryStore::of_blocks(BLOCKS).read_only()));
    let (client, server) = UnixStream::pair().unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            // It may be left in the middle of what it says.
            let _ = (&client).write_all(data);
            let _ = client.shutdown(Shutdown::Write);
        });
        scope.spawn(|| {
            let heard = std::io::copy(&mut (&client).take(HEARD_MAX), &mut std::io::sink());
            let _ = client.shutdown(Shutdown::Both);
            heard
        });
        let _ = exporter.converse_over(server);
        let _ = client.shutdown(Shutdown::Both);
    });
}

fn option(number: u32, data: &[u8]) -> Vec<u8> {
    [b"IHAVEOPT", &number.to_be_bytes()[..], &(data.len() as u32).to_be_bytes(), data].concat()
}

fn request(kind: u16, flags: u16, offset: u64, bytes: u32, data: &[u8]) -> Vec<u8> {
    let head = [&0x2560_9513_u32.to_be_bytes()[..], &flags.to_be_bytes(), &kind.to_be_bytes(), &7_u64.to_be_bytes()];
    [&head.concat()[..], &offset.to_be_bytes(), &bytes.to_be_bytes(), data].concat()
}

/// Name, with what the client wants to know of it.
fn named(name: &str, more: &[u8]) -> Vec<u8> {
    [&(name.len() as u32).to_be_bytes()[..], name.as_bytes(), more].concat()
}

pub fn corpus() -> Vec<Vec<u8>> {
    let flags = 3_u32.to_be_bytes();
    let context = b"base:allocation";
    let contexts = [&1_u32.to_be_bytes()[..], &(context.len() as u32).to_be_bytes(), context].concat();
    let go = |name: &str| option(7, &named(name, &[0, 1, 0, 3]));
    let work = [
        request(1, 0, 5, 300, &[9; 300]),
        request(0, 0, 0, 8192, b""),
        request(1, 0, 8192, 8192, &[3; 8192]),
        request(0, 0, 65536, 131_072, b""),
        request(1, 1, 4096, 4096, &[1; 4096]),
        request(6, 2, 8192, 10_000, b""),
        request(4, 0, 100, 9000, b""),
        request(7, 8, 0, BYTES as u32, b""),
        request(3, 0, 0, 0, b""),
        request(0, 0, BYTES as u64 - 1, 2, b""),
        request(2, 0, 0, 0, b""),
    ]
    .concat();
    vec![
        [&flags[..], &option(3, b""), &option(6, &named("disk", &[0, 0])), &option(2, b"")].concat(),
        [&flags[..], &option(8, b""), &option(10, &named("disk", &contexts)), &go("disk"), &work].concat(),
        [&flags[..], &go("other"), &work].concat(),
        [&flags[..], &go("disk"), &request(1, 0, 1 << 20, 1 << 20, &[4; 2000])].concat(),
        [&flags[..], &option(1, b"disk"), &work].concat(),
        [&flags[..], &option(5, b""), &option(9, &named("", &contexts)), &go("")].concat(),
    ]
}
