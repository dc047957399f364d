//! What a client of NBD says, from its first byte on, to a server of two exports.

use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::sync::Mutex;

use gate_nbd::{BlockStore, Exporter};
use rustix::io::Errno;

const BYTES: usize = 64 * 4096;
/// As much is said to who asks for all of it again and again.
const HEARD_MAX: u64 = 256 << 20;

struct Memory {
    bytes: Mutex<Vec<u8>>,
    is_read_only: bool,
}

impl Memory {
    fn new(is_read_only: bool) -> Box<Memory> {
        Box::new(Memory { bytes: Mutex::new(vec![0; BYTES]), is_read_only })
    }

    /// Blocks that are asked for are there, whatever the client says.
    fn range(offset: u64, bytes: usize) -> std::ops::Range<usize> {
        let range = offset as usize..offset as usize + bytes;
        assert!(range.end <= BYTES && range.start.is_multiple_of(4096) && range.end.is_multiple_of(4096));
        range
    }
}

impl BlockStore for Memory {
    fn bytes(&self) -> u64 {
        BYTES as u64
    }

    fn is_read_only(&self) -> bool {
        self.is_read_only
    }

    fn read(&self, offset: u64, into: &mut [u8]) -> Result<(), Errno> {
        into.copy_from_slice(&self.bytes.lock().unwrap()[Memory::range(offset, into.len())]);
        Ok(())
    }

    fn write(&self, offset: u64, data: &[u8]) -> Result<(), Errno> {
        assert!(!self.is_read_only);
        self.bytes.lock().unwrap()[Memory::range(offset, data.len())].copy_from_slice(data);
        Ok(())
    }

    fn flush(&self) -> Result<(), Errno> {
        Ok(())
    }

    fn discard(&self, offset: u64, bytes: u64) -> Result<(), Errno> {
        assert!(!self.is_read_only);
        self.bytes.lock().unwrap()[Memory::range(offset, bytes as usize)].fill(0);
        Ok(())
    }

    fn allocate(&self, offset: u64, bytes: u64) -> Result<(), Errno> {
        assert!(!self.is_read_only);
        Memory::range(offset, bytes as usize);
        Ok(())
    }

    fn data_from(&self, offset: u64) -> Option<(u64, u64)> {
        (offset < BYTES as u64).then_some((offset, BYTES as u64))
    }
}

/// Says all of it, and listens to the end; the connection ends, whatever was said.
pub fn nbd(data: &[u8]) {
    let mut exporter = Exporter::default();
    exporter.export("disk", "to be written", Memory::new(false));
    exporter.export("other", "", Memory::new(true));
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
        [&flags[..], &option(1, b"disk"), &work].concat(),
        [&flags[..], &option(5, b""), &option(9, &named("", &contexts)), &go("")].concat(),
    ]
}
