//! A disk as a file: a FUSE file system with one file, whose bytes are the disk's. A loop device on it is a block
//! device for every file system of the kernel, where the kernel has no client of NBD.
//!
//! Each of a few threads takes a request from the kernel, carries it out and answers it; a disk that waits keeps at
//! most so many waiting. The file has the disk's size and keeps it.

#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::print_stdout, clippy::print_stderr))]
#![cfg_attr(not(test), deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing))]

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use gate_fuse::kernel::{
    self, Attr, AttrOut, Dirent, EntryOut, InitIn, InitOut, LseekOut, OpenOut, OutHeader, ReadIn, SetattrIn, StatfsOut,
    WriteOut, fattr, init,
};
use gate_fuse::request::{Body, Plus, Request, RequestError, parse};
use gate_nbd::{BlockStore, ByteStore, Holes};
use rustix::io::Errno;
use zerocopy::IntoBytes;

/// Requests at a time.
const THREADS: usize = 8;
/// Of one read or write.
const TRANSFER_BYTES: u32 = 1 << 20;
const REQUEST_BYTES_MAX: usize = TRANSFER_BYTES as usize + 4096;
const ROOT: u64 = 1;
const FILE: u64 = 2;
const BLOCK_BYTES: u32 = 4096;
/// Of data and holes that are asked for at once.
const PIECES_MAX: usize = 64;
/// Nothing here changes but by the kernel itself.
const KEPT_S: u64 = 3600;

/// Who has the file.
#[derive(Clone, Copy, Debug)]
pub struct Owner {
    pub uid: u32,
    pub gid: u32,
    /// Seconds of its times.
    pub time: u64,
}

pub struct FileGate {
    fuse: OwnedFd,
    name: String,
    bytes: u64,
    is_read_only: bool,
    disk: ByteStore,
    owner: Owner,
}

/// What a request comes to.
type Outcome = Result<Vec<u8>, Errno>;

impl FileGate {
    /// `fuse`: mounted. `name`: of the file.
    pub fn new(fuse: OwnedFd, name: &str, disk: Box<dyn BlockStore>, owner: Owner) -> FileGate {
        let (bytes, is_read_only) = (disk.bytes(), disk.is_read_only());
        FileGate { fuse, name: name.to_owned(), bytes, is_read_only, disk: ByteStore::new(disk), owner }
    }

    /// Until it is unmounted. What was written is durable then.
    ///
    /// # Errors
    /// The descriptor cannot be read, no thread can be made, or the last flush failed.
    pub fn serve(&self) -> io::Result<()> {
        std::thread::scope(|scope| {
            {
                let workers = (0..THREADS).map(|number| {
                    std::thread::Builder::new().name(format!("file-{number}")).spawn_scoped(scope, || self.work())
                });
                let workers = workers.collect::<io::Result<Vec<_>>>()?;
                let ended = workers.into_iter().map(|worker| worker.join().unwrap_or(Err(Errno::IO)));
                ended.collect::<Result<(), Errno>>()
            }
            .map_err(io::Error::from)
            .and_then(|()| Ok(self.flush()?))
        })
    }

    fn work(&self) -> Result<(), Errno> {
        let mut buffer = vec![0; REQUEST_BYTES_MAX];
        loop {
            match rustix::io::read(&self.fuse, buffer.as_mut_slice()) {
                Ok(got) => self.take(buffer.get(..got).unwrap_or_default()),
                // ENOENT: the one that asked was killed before its request was read.
                Err(Errno::INTR | Errno::NOENT | Errno::AGAIN) => (),
                Err(Errno::NODEV | Errno::CONNABORTED) => return Ok(()),
                Err(error) => return Err(error),
            }
        }
    }

    fn take(&self, bytes: &[u8]) {
        match parse(bytes) {
            Ok(request) => {
                if let Some(outcome) = self.answer(&request) {
                    reply(&self.fuse, request.header.unique, outcome);
                }
            }
            Err(error @ (RequestError::Short { .. } | RequestError::Name { .. })) => {
                let errno = Errno::from_raw_os_error(error.errno());
                error.unique().into_iter().for_each(|unique| reply(&self.fuse, unique, Err(errno)));
            }
            Err(RequestError::Length { .. }) => (),
        }
    }

    /// `None`: the kernel waits for none.
    fn answer(&self, request: &Request<'_>) -> Option<Outcome> {
        let node = request.header.nodeid;
        Some(match &request.body {
            Body::Forget | Body::Interrupt { .. } => return None,
            Body::Init { head, .. } => agree(head),
            Body::Destroy | Body::Release(_) | Body::Releasedir | Body::Flush(_) | Body::Fsyncdir => Ok(Vec::new()),
            Body::Statfs => Ok(self.statfs()),
            Body::Lookup { name } if node == ROOT && *name == self.name.as_bytes() => Ok(self.entry()),
            Body::Lookup { .. } => Err(Errno::NOENT),
            Body::Getattr => Ok(self.attributes(node)),
            Body::Setattr(head) if node == FILE => self.set(head),
            Body::Opendir if node == ROOT => Ok(OpenOut::default().as_bytes().to_vec()),
            Body::Readdir { plus: Plus::WithAttributes, .. } => Err(Errno::NOSYS),
            Body::Readdir { head, .. } => Ok(self.names(head)),
            Body::Open(head) if node == FILE => self.open(head.flags),
            Body::Read(head) if node == FILE => self.read(head),
            Body::Write { head, data } if node == FILE => self.within(head.offset, data.len() as u64).and_then(|_| {
                self.disk.write(head.offset, data)?;
                Ok(WriteOut { size: data.len() as u32, padding: 0 }.as_bytes().to_vec())
            }),
            Body::Fsync(_) | Body::Syncfs => self.flush().map(|()| Vec::new()),
            Body::Fallocate(head) if node == FILE => self.allocate(head.mode, head.offset, head.length),
            Body::Lseek(head) if node == FILE => self.seek(head.offset, head.whence),
            body if body.changes_the_tree() => Err(Errno::PERM),
            _ => Err(Errno::NOSYS),
        })
    }

    fn flush(&self) -> Result<(), Errno> {
        self.disk.flush()
    }

    /// How much of a range is inside of the disk; nothing is written behind it.
    fn within(&self, offset: u64, bytes: u64) -> Result<u64, Errno> {
        let end = offset.checked_add(bytes).filter(|end| *end <= self.bytes).ok_or(Errno::NOSPC)?;
        Ok(end - offset)
    }

    fn open(&self, flags: u32) -> Outcome {
        let is_written = flags & libc::O_ACCMODE as u32 != libc::O_RDONLY as u32;
        if is_written && self.is_read_only {
            return Err(Errno::ROFS);
        }
        Ok(OpenOut::default().as_bytes().to_vec())
    }

    fn read(&self, head: &ReadIn) -> Outcome {
        let bytes = u64::from(head.size.min(TRANSFER_BYTES)).min(self.bytes.saturating_sub(head.offset));
        let mut data = vec![0; bytes as usize];
        self.disk.read(head.offset, &mut data)?;
        Ok(data)
    }

    /// Its size stays, and so do its owner and times; a new size that is the one it has is no change.
    fn set(&self, head: &SetattrIn) -> Outcome {
        let fixed = fattr::MODE | fattr::UID | fattr::GID;
        let is_resized = head.valid & fattr::SIZE != 0 && head.size != self.bytes;
        if head.valid & fixed != 0 || is_resized {
            return Err(Errno::PERM);
        }
        Ok(self.attributes(FILE))
    }

    fn allocate(&self, mode: u32, offset: u64, bytes: u64) -> Outcome {
        const KEEP_SIZE: u32 = libc::FALLOC_FL_KEEP_SIZE as u32;
        const PUNCH: u32 = libc::FALLOC_FL_PUNCH_HOLE as u32 | KEEP_SIZE;
        const ZERO: u32 = libc::FALLOC_FL_ZERO_RANGE as u32;
        // What is punched behind the end is nothing.
        let inside = bytes.min(self.bytes.saturating_sub(offset));
        match mode {
            PUNCH => self.disk.zero(offset, inside, Holes::Allowed)?,
            _ if mode & !KEEP_SIZE == ZERO => self.disk.zero(offset, self.within(offset, bytes)?, Holes::Refused)?,
            _ => return Err(Errno::OPNOTSUPP),
        }
        Ok(Vec::new())
    }

    fn seek(&self, offset: u64, whence: u32) -> Outcome {
        const DATA: u32 = libc::SEEK_DATA as u32;
        const HOLE: u32 = libc::SEEK_HOLE as u32;
        if offset >= self.bytes {
            return Err(Errno::NXIO);
        }
        let wanted = match whence {
            DATA => true,
            HOLE => false,
            _ => return Err(Errno::INVAL),
        };
        let mut at = offset;
        while at < self.bytes {
            for (bytes, is_data) in self.disk.pieces(at, self.bytes - at, PIECES_MAX) {
                if is_data == wanted {
                    return Ok(LseekOut { offset: at }.as_bytes().to_vec());
                }
                at += bytes;
            }
        }
        // Behind the end all is a hole.
        if wanted { Err(Errno::NXIO) } else { Ok(LseekOut { offset: self.bytes }.as_bytes().to_vec()) }
    }

    fn statfs(&self) -> Vec<u8> {
        let blocks = self.bytes / u64::from(BLOCK_BYTES);
        let out = StatfsOut {
            blocks,
            files: 1,
            bsize: BLOCK_BYTES,
            frsize: BLOCK_BYTES,
            namelen: 255,
            ..StatfsOut::default()
        };
        out.as_bytes().to_vec()
    }

    fn names(&self, head: &ReadIn) -> Vec<u8> {
        let entries = [(ROOT, ".", libc::DT_DIR), (ROOT, "..", libc::DT_DIR), (FILE, self.name.as_str(), libc::DT_REG)];
        let mut bytes = Vec::new();
        for (place, (ino, name, kind)) in entries.into_iter().enumerate().skip(head.offset as usize) {
            let entry = Dirent { ino, off: place as u64 + 1, namelen: name.len() as u32, kind: kind.into() };
            let length = (size_of::<Dirent>() + name.len()).next_multiple_of(8);
            if bytes.len() + length > head.size as usize {
                break;
            }
            let end = bytes.len() + length;
            bytes.extend_from_slice(entry.as_bytes());
            bytes.extend_from_slice(name.as_bytes());
            bytes.resize(end, 0);
        }
        bytes
    }

    fn entry(&self) -> Vec<u8> {
        let attr = self.attr(FILE);
        let out = EntryOut {
            nodeid: FILE,
            generation: 1,
            entry_valid: KEPT_S,
            attr_valid: KEPT_S,
            attr,
            ..EntryOut::default()
        };
        out.as_bytes().to_vec()
    }

    fn attributes(&self, node: u64) -> Vec<u8> {
        AttrOut { attr_valid: KEPT_S, attr_valid_nsec: 0, dummy: 0, attr: self.attr(node) }.as_bytes().to_vec()
    }

    fn attr(&self, node: u64) -> Attr {
        let Owner { uid, gid, time } = self.owner;
        let (mode, size, nlink) = match (node, self.is_read_only) {
            (ROOT, _) => (libc::S_IFDIR | 0o700, 0, 2),
            (_, true) => (libc::S_IFREG | 0o400, self.bytes, 1),
            (_, false) => (libc::S_IFREG | 0o600, self.bytes, 1),
        };
        Attr {
            ino: node,
            size,
            blocks: size / 512,
            atime: time,
            mtime: time,
            ctime: time,
            mode,
            nlink,
            uid,
            gid,
            blksize: BLOCK_BYTES,
            ..Attr::default()
        }
    }
}

fn agree(head: &InitIn) -> Outcome {
    if head.major != kernel::VERSION_MAJOR || head.minor < kernel::VERSION_MINOR_MIN {
        return Err(Errno::PROTO);
    }
    let wishes = init::ASYNC_READ | init::BIG_WRITES | init::MAX_PAGES | init::ASYNC_DIO | init::PARALLEL_DIROPS;
    let out = InitOut {
        major: kernel::VERSION_MAJOR,
        minor: head.minor.min(kernel::VERSION_MINOR),
        max_readahead: head.max_readahead,
        flags: head.flags & wishes as u32,
        max_background: THREADS as u16 * 2,
        congestion_threshold: THREADS as u16,
        max_write: TRANSFER_BYTES,
        time_gran: 1_000_000_000,
        max_pages: (TRANSFER_BYTES / BLOCK_BYTES) as u16,
        ..InitOut::default()
    };
    Ok(out.as_bytes().to_vec())
}

fn reply(fuse: impl AsFd, unique: u64, outcome: Outcome) {
    let (error, body) = outcome.map_or_else(|errno| (-errno.raw_os_error(), Vec::new()), |body| (0, body));
    let head = OutHeader { len: (size_of::<OutHeader>() + body.len()) as u32, error, unique };
    let parts = [io::IoSlice::new(head.as_bytes()), io::IoSlice::new(&body)];
    match rustix::io::retry_on_intr(|| rustix::io::writev(&fuse, &parts)) {
        // The one that asked is gone, or the mount.
        Ok(_) | Err(Errno::NOENT | Errno::NODEV) => (),
        Err(error) => tracing::error!(%error, "the kernel did not take an answer"),
    }
}

#[cfg(test)]
mod tests {
    use disk_core::{ImageFile, Volume};
    use gate_fuse::kernel::{FallocateIn, InHeader, LseekIn, WriteIn};

    use super::*;

    const BYTES: u64 = 1 << 20;

    fn gate() -> FileGate {
        let disk = Volume::new(ImageFile::in_memory(BYTES).expect("memory"));
        let fuse = std::fs::File::open("/dev/null").expect("there is one").into();
        FileGate::new(fuse, "disk", Box::new(disk), Owner { uid: 7, gid: 8, time: 9 })
    }

    fn asked(gate: &FileGate, nodeid: u64, body: Body<'_>) -> Outcome {
        gate.answer(&Request { header: InHeader { nodeid, ..InHeader::default() }, body }).expect("an answer")
    }

    fn write(gate: &FileGate, offset: u64, data: &[u8]) -> Outcome {
        asked(gate, FILE, Body::Write { head: WriteIn { offset, size: data.len() as u32, ..WriteIn::default() }, data })
    }

    fn read(gate: &FileGate, offset: u64, size: u32) -> Outcome {
        asked(gate, FILE, Body::Read(ReadIn { offset, size, ..ReadIn::default() }))
    }

    fn seek(gate: &FileGate, offset: u64, whence: i32) -> Result<u64, Errno> {
        let found = asked(gate, FILE, Body::Lseek(LseekIn { offset, whence: whence as u32, ..LseekIn::default() }))?;
        Ok(u64::from_ne_bytes(found.try_into().expect("eight bytes")))
    }

    #[test]
    fn bytes_anywhere_are_those_of_the_disk_and_end_where_it_ends() {
        let gate = gate();
        write(&gate, 5000, b"hello").expect("a write");
        assert_eq!(read(&gate, 4999, 7).expect("a read"), b"\0hello\0");
        write(&gate, BYTES - 3, b"end").expect("a write");
        assert_eq!(read(&gate, BYTES - 4, 100).expect("a read"), b"\0end");
        assert_eq!(read(&gate, BYTES + 5, 100), Ok(Vec::new()));
        assert_eq!(write(&gate, BYTES - 2, b"end"), Err(Errno::NOSPC));
        assert_eq!(write(&gate, u64::MAX, b"end"), Err(Errno::NOSPC));
        assert_eq!(read(&gate, BYTES - 3, 3).expect("a read"), b"end");
    }

    #[test]
    fn holes_are_made_and_found() {
        let gate = gate();
        write(&gate, 8192, &[1; 8192]).expect("a write");
        assert_eq!((seek(&gate, 0, libc::SEEK_DATA), seek(&gate, 9000, libc::SEEK_HOLE)), (Ok(8192), Ok(16384)));
        let allocate = |mode: i32, offset, length| {
            asked(
                &gate,
                FILE,
                Body::Fallocate(FallocateIn { mode: mode as u32, offset, length, ..FallocateIn::default() }),
            )
        };
        let punch = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
        allocate(punch, 8000, 5000).expect("a hole");
        assert_eq!(read(&gate, 12999, 2).expect("a read"), [0, 1]);
        allocate(punch, BYTES - 10, 1 << 40).expect("what is behind the end is nothing");
        allocate(punch, 2 * BYTES, 1).expect("what is behind the end is nothing");
        assert_eq!(allocate(libc::FALLOC_FL_ZERO_RANGE, BYTES, 1), Err(Errno::NOSPC));
        assert_eq!(allocate(libc::FALLOC_FL_COLLAPSE_RANGE, 0, 4096), Err(Errno::OPNOTSUPP));
        assert_eq!((seek(&gate, BYTES, libc::SEEK_DATA), seek(&gate, 0, 77)), (Err(Errno::NXIO), Err(Errno::INVAL)));
    }

    #[test]
    fn there_is_one_file_and_it_stays_as_it_is() {
        let gate = gate();
        assert!(asked(&gate, ROOT, Body::Lookup { name: b"disk" }).is_ok());
        assert_eq!(asked(&gate, ROOT, Body::Lookup { name: b"other" }), Err(Errno::NOENT));
        assert_eq!(asked(&gate, ROOT, Body::Unlink { name: b"disk" }), Err(Errno::PERM));
        let resized = |size| {
            asked(&gate, FILE, Body::Setattr(SetattrIn { valid: fattr::SIZE, size, ..SetattrIn::default() })).map(drop)
        };
        assert_eq!((resized(BYTES), resized(0), resized(BYTES + 1)), (Ok(()), Err(Errno::PERM), Err(Errno::PERM)));
        let listed = |offset, size| gate.names(&ReadIn { offset, size, ..ReadIn::default() }).len();
        assert_eq!((listed(0, 4096), listed(2, 4096), listed(3, 4096), listed(0, 40)), (96, 32, 0, 32));
    }

    #[test]
    fn disk_that_is_only_read_is_not_opened_for_more() {
        let mut gate = gate();
        gate.is_read_only = true;
        let open = |flags: i32| gate.open(flags as u32).map(drop);
        assert_eq!(
            (open(libc::O_RDONLY), open(libc::O_RDWR), open(libc::O_WRONLY)),
            (Ok(()), Err(Errno::ROFS), Err(Errno::ROFS))
        );
        assert_eq!(gate.attr(FILE).mode & 0o777, 0o400);
    }
}
