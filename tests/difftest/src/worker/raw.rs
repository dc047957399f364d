//! The calls themselves, with no library between: what is tested is what the kernel says of each.
//!
//! Unsafe is here alone, and for two reasons: the arguments are whatever the program says (a descriptor that was never
//! opened, too), and mappings are of files that change. No Rust reference points into a mapping: the kernel copies
//! between it and a scratch file, and what would be SIGBUS in a program is a short count there.
#![allow(unsafe_code)]

use std::collections::BTreeMap;
use std::ffi::{CStr, CString};
use std::fmt::Write as _;

use crate::program::{Call, FILES, MAPS};

type Fd = libc::c_int;

const CLOSED: Fd = -1;
/// A mapping of a program is at most so long; each has a place of its own, so that the kernel never joins two of them.
const MAP_BYTES: usize = 1 << 20;
/// More than a program's reads and values, which are some hundred thousand bytes.
const MOST: usize = 1 << 21;
/// Runs of equal bytes that are shown.
const RUNS: usize = 8;
/// Of calls that would say what is not compared.
const NOT_MADE: &str = "0 not made";
const ATTRIBUTES: &[&CStr] = &[c"user.a", c"user.bb"];

/// What a process of a program has.
pub struct Process {
    pub files: [Fd; FILES],
    maps: [Option<Mapped>; MAPS],
    /// Where they lie.
    base: usize,
    scratch: Fd,
    top: Fd,
}

/// What a mapping shows.
struct Mapped {
    length: usize,
    offset: i64,
    /// The same file, with `O_PATH`: asks about it, and its close takes no lock away.
    file: Fd,
}

fn c(name: &str) -> CString {
    CString::new(name).unwrap_or_default()
}

fn outcome(value: i64) -> i64 {
    if value >= 0 { value } else { -i64::from(std::io::Error::last_os_error().raw_os_error().unwrap_or(0)) }
}

/// A call whose value says everything.
fn plain(value: impl Into<i64>) -> String {
    outcome(value.into()).to_string()
}

/// A call that goes on only if it did not fail.
fn then(value: impl Into<i64>, detail: impl FnOnce(i64) -> String) -> String {
    match outcome(value.into()) {
        value @ 0.. => format!("{value} {}", detail(value)),
        error => error.to_string(),
    }
}

fn number(value: i64) -> libc::c_int {
    value as libc::c_int
}

/// `7x100,0x4096`: runs of equal bytes; of many the first, and a sum of all.
fn shown(bytes: &[u8]) -> String {
    let runs: Vec<&[u8]> = bytes.chunk_by(|a, b| a == b).collect();
    let mut text: Vec<String> = runs.iter().take(RUNS).map(|run| format!("{}x{}", run[0], run.len())).collect();
    if runs.len() > RUNS {
        let sum = bytes
            .iter()
            .fold(0xcbf2_9ce4_8422_2325_u64, |sum, byte| (sum ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3));
        text.push(format!("…{sum:016x}"));
    }
    if text.is_empty() { "nothing".to_owned() } else { text.join(",") }
}

impl Process {
    pub fn new() -> Option<Process> {
        let bytes = MAP_BYTES * MAPS * 2;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        // SAFETY: a new mapping of nothing, at a place that the kernel chooses.
        let base = unsafe { libc::mmap(std::ptr::null_mut(), bytes, libc::PROT_NONE, flags, -1, 0) };
        // SAFETY: the name is a C string, the descriptors are new.
        let scratch = unsafe { libc::memfd_create(c"scratch".as_ptr(), libc::MFD_CLOEXEC) };
        // SAFETY: as above.
        let top = unsafe { libc::open(c".".as_ptr(), libc::O_PATH | libc::O_CLOEXEC) };
        let files = [CLOSED; FILES];
        (base != libc::MAP_FAILED && scratch >= 0 && top >= 0).then_some(Process {
            files,
            maps: [const { None }; MAPS],
            base: base as usize,
            scratch,
            top,
        })
    }

    /// Forgets everything and goes to a directory of the tree.
    pub fn begin(&mut self, directory: &str) -> i64 {
        for file in 0..FILES as i64 {
            self.close(file);
        }
        for map in 0..MAPS as i64 {
            self.unmap(map);
        }
        // SAFETY: a descriptor of ours, and a C string.
        unsafe {
            libc::umask(0o022);
            if libc::fchdir(self.top) < 0 {
                return outcome(-1);
            }
            outcome(libc::chdir(c(directory).as_ptr()).into())
        }
    }

    /// Removes a directory of the tree with everything in it. It is a test, too: a directory that does not go is one.
    pub fn clear(&mut self, directory: &str) -> i64 {
        let begun = self.begin(".");
        if begun < 0 { begun } else { remove(directory) }
    }

    pub fn open_name(&mut self, file: i64, at: Option<i64>, name: &str, flags: i64, mode: i64) -> String {
        let at = at.map_or(libc::AT_FDCWD, |at| self.files[at as usize]);
        let flags = number(flags) | libc::O_CLOEXEC;
        // SAFETY: the name is a C string.
        self.keep(file, unsafe { libc::openat(at, c(name).as_ptr(), flags, mode as libc::mode_t) })
    }

    /// Opens again what is open, also when it has no name any more.
    pub fn reopen(&mut self, file: i64, what: i64, flags: i64) -> String {
        let name = c(&format!("/proc/self/fd/{}", self.files[what as usize]));
        let flags = number(flags) & !(libc::O_CREAT | libc::O_EXCL | libc::O_NOFOLLOW) | libc::O_CLOEXEC;
        // SAFETY: the name is a C string.
        self.keep(file, unsafe { libc::open(name.as_ptr(), flags) })
    }

    pub fn dup(&mut self, file: i64, what: i64) -> String {
        // SAFETY: a new descriptor, or an error.
        self.keep(file, unsafe { libc::fcntl(self.files[what as usize], libc::F_DUPFD_CLOEXEC, 0) })
    }

    /// What the slot held is closed after the new one is there.
    fn keep(&mut self, file: i64, opened: Fd) -> String {
        if opened < 0 {
            return plain(opened);
        }
        let old = std::mem::replace(&mut self.files[file as usize], opened);
        if old != CLOSED {
            // SAFETY: a descriptor that nobody else has.
            unsafe { libc::close(old) };
        }
        "0".to_owned()
    }

    pub fn close(&mut self, file: i64) -> String {
        let old = std::mem::replace(&mut self.files[file as usize], CLOSED);
        // SAFETY: a descriptor that nobody else has, or one that never was.
        plain(unsafe { libc::close(old) })
    }

    fn place(&self, map: i64) -> *mut libc::c_void {
        (self.base + map as usize * 2 * MAP_BYTES) as *mut libc::c_void
    }

    pub fn map(&mut self, map: i64, file: i64, offset: i64, length: i64, protection: i64) -> String {
        let length = (length.max(0) as usize).min(MAP_BYTES);
        self.unmap(map);
        let (flags, file) = (libc::MAP_SHARED | libc::MAP_FIXED, self.files[file as usize]);
        // SAFETY: within what `new` reserved; nothing else lies there.
        let mapped = unsafe { libc::mmap(self.place(map), length, number(protection), flags, file, offset) };
        if mapped == libc::MAP_FAILED {
            return plain(-1);
        }
        let name = c(&format!("/proc/self/fd/{file}"));
        // SAFETY: the name is a C string.
        let file = unsafe { libc::open(name.as_ptr(), libc::O_PATH | libc::O_CLOEXEC) };
        self.maps[map as usize] = Some(Mapped { length, offset, file });
        plain(file.min(0))
    }

    pub fn unmap(&mut self, map: i64) -> String {
        let Some(mapped) = self.maps[map as usize].take() else { return "-1".to_owned() };
        // SAFETY: a descriptor that nobody else has.
        unsafe { libc::close(mapped.file) };
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_FIXED;
        // SAFETY: within what `new` reserved, which it becomes again.
        let mapped = unsafe { libc::mmap(self.place(map), MAP_BYTES, libc::PROT_NONE, flags, -1, 0) };
        if mapped == libc::MAP_FAILED { plain(-1) } else { "0".to_owned() }
    }

    fn mapped(&self, map: i64) -> usize {
        self.maps[map as usize].as_ref().map_or(0, |mapped| mapped.length)
    }

    fn within(&self, map: i64, offset: i64, length: i64) -> (*mut libc::c_void, usize) {
        let mapped = self.mapped(map);
        let offset = (offset.max(0) as usize).min(mapped);
        let length = (length.max(0) as usize).min(mapped - offset);
        (self.place(map).wrapping_byte_add(offset), length)
    }

    /// What a program would read there. A page that the file does not have ends it.
    pub fn load(&self, map: i64, offset: i64, length: i64) -> String {
        let (from, length) = self.within(map, offset, length);
        // SAFETY: the kernel reads the bytes, and says how far it came.
        let loaded = unsafe { libc::pwrite(self.scratch, from, length, 0) };
        then(loaded as i64, |count| shown(&read_at(self.scratch, 0, count as usize).unwrap_or_default()))
    }

    /// What a program would write there, and msync.
    pub fn store(&self, map: i64, offset: i64, length: i64, byte: i64) -> String {
        let (to, length) = self.within(map, offset, length);
        let bytes = vec![byte as u8; length];
        // SAFETY: the buffer is as long as it says.
        unsafe { libc::pwrite(self.scratch, bytes.as_ptr().cast(), length, 0) };
        // SAFETY: the kernel writes into the mapping, in which no reference of ours points, and says how far it came.
        let stored = unsafe { libc::pread(self.scratch, to, length, 0) };
        let whole = self.mapped(map);
        then(stored as i64, |_| {
            // SAFETY: what is mapped at this place.
            plain(unsafe { libc::msync(self.place(map), whole, libc::MS_SYNC) })
        })
    }

    /// Bytes of the file from the mapping's begin on: more a program must not store (what lies after the end is
    /// nobody's).
    pub fn room(&self, map: i64) -> i64 {
        let Some(mapped) = &self.maps[map as usize] else { return 0 };
        let size = about(mapped.file, c"", libc::AT_EMPTY_PATH).map_or(0, |about| about.stx_size as i64);
        (size - mapped.offset).clamp(0, mapped.length.next_multiple_of(4096) as i64)
    }

    /// Asks about the files of which a call believes the size that its kernel knows.
    pub fn look(&self, call: Call, args: &[i64]) {
        match call {
            Call::Write if is_append(self.files[args[0] as usize]) => self.look_at(args[0]),
            Call::Copy => [args[0], args[2]].into_iter().for_each(|file| self.look_at(file)),
            Call::Load => _ = self.room(args[0]),
            _ => {}
        }
    }

    fn look_at(&self, file: i64) {
        let _ = about(self.files[file as usize], c"", libc::AT_EMPTY_PATH);
    }

    /// As before [`Process::load`] of each mapping.
    pub fn look_at_maps(&self) {
        (0..MAPS as i64).for_each(|map| _ = self.room(map));
    }

    /// Everything that is open, as it is: what a program ends with.
    pub fn state(&self) -> String {
        let mut text = "0".to_owned();
        for (slot, file) in self.files.iter().enumerate().filter(|(_, file)| **file != CLOSED) {
            let _ = write!(text, " f{slot} {}", fstat(*file));
            // SAFETY: these change nothing, whatever the descriptor is.
            let (at, flags) = unsafe { (libc::lseek(*file, 0, libc::SEEK_CUR), libc::fcntl(*file, libc::F_GETFL)) };
            let flags = flags & (libc::O_ACCMODE | libc::O_APPEND | libc::O_PATH);
            // Where a directory was read up to is a number of the file system.
            let at = if kind(*file) == libc::S_IFREG { outcome(at).to_string() } else { "-".to_owned() };
            let _ = write!(text, " flags={flags} at={at} {}", content(*file));
        }
        for map in (0..MAPS as i64).filter(|map| self.mapped(*map) > 0) {
            let _ = write!(text, " m{map} {}", self.load(map, 0, MAP_BYTES as i64));
        }
        text
    }
}

fn kind(file: Fd) -> libc::mode_t {
    about(file, c"", libc::AT_EMPTY_PATH).map_or(0, |about| about.stx_mode.into()) & libc::S_IFMT
}

fn is_append(file: Fd) -> bool {
    // SAFETY: it changes nothing, whatever the descriptor is.
    let flags = unsafe { libc::fcntl(file, libc::F_GETFL) };
    flags >= 0 && flags & libc::O_APPEND != 0
}

fn is_directory(file: Fd) -> bool {
    kind(file) == libc::S_IFDIR
}

fn content(file: Fd) -> String {
    match kind(file) {
        libc::S_IFDIR => entries(file),
        libc::S_IFREG => match read_at(file, 0, MOST) {
            Ok(bytes) => shown(&bytes),
            Err(error) => error.to_string(),
        },
        _ => String::new(),
    }
}

fn about(at: Fd, name: &CStr, flags: libc::c_int) -> Result<libc::statx, i64> {
    // SAFETY: a structure of numbers.
    let mut about: libc::statx = unsafe { std::mem::zeroed() };
    // SAFETY: the name is a C string, the structure is one.
    let done = unsafe { libc::statx(at, name.as_ptr(), flags, libc::STATX_BASIC_STATS, &mut about) };
    if done < 0 { Err(outcome(-1)) } else { Ok(about) }
}

/// The tester numbers inodes by when they were seen first, and compares times as `crate::world` says.
fn shown_about(about: Result<libc::statx, i64>) -> String {
    let about = match about {
        Ok(about) => about,
        Err(error) => return error.to_string(),
    };
    let time = |time: libc::statx_timestamp| time.tv_sec * 1_000_000_000 + i64::from(time.tv_nsec);
    let is_directory = u32::from(about.stx_mode) & libc::S_IFMT == libc::S_IFDIR;
    // Bytes of a directory are the file system's matter.
    let size = if is_directory { "-".to_owned() } else { about.stx_size.to_string() };
    format!(
        "0 ino={} mode={:o} nlink={} uid={} gid={} size={size} atime={} mtime={} ctime={}",
        about.stx_ino,
        about.stx_mode,
        about.stx_nlink,
        about.stx_uid,
        about.stx_gid,
        time(about.stx_atime),
        time(about.stx_mtime),
        time(about.stx_ctime),
    )
}

pub fn stat(name: &str, flags: libc::c_int) -> String {
    shown_about(about(libc::AT_FDCWD, &c(name), flags))
}

pub fn fstat(file: Fd) -> String {
    shown_about(about(file, c"", libc::AT_EMPTY_PATH))
}

fn read_at(file: Fd, offset: i64, length: usize) -> Result<Vec<u8>, i64> {
    let mut bytes = vec![0; length];
    // SAFETY: the buffer is as long as it says.
    let count = unsafe { libc::pread(file, bytes.as_mut_ptr().cast(), length, offset) };
    let count = outcome(count as i64);
    if count < 0 {
        return Err(count);
    }
    bytes.truncate(count as usize);
    Ok(bytes)
}

pub fn pread(file: Fd, offset: i64, length: i64) -> String {
    match read_at(file, offset, length as usize) {
        Ok(bytes) => format!("{} {}", bytes.len(), shown(&bytes)),
        Err(error) => error.to_string(),
    }
}

pub fn read(file: Fd, length: i64) -> String {
    let mut bytes = vec![0_u8; length as usize];
    // SAFETY: the buffer is as long as it says.
    let count = unsafe { libc::read(file, bytes.as_mut_ptr().cast(), bytes.len()) };
    then(count as i64, |count| shown(&bytes[..count as usize]))
}

pub fn pwrite(file: Fd, offset: i64, length: i64, byte: i64) -> String {
    let bytes = vec![byte as u8; length as usize];
    // SAFETY: the buffer is as long as it says.
    plain(unsafe { libc::pwrite(file, bytes.as_ptr().cast(), bytes.len(), offset) } as i64)
}

pub fn write(file: Fd, length: i64, byte: i64) -> String {
    let bytes = vec![byte as u8; length as usize];
    // SAFETY: the buffer is as long as it says.
    plain(unsafe { libc::write(file, bytes.as_ptr().cast(), bytes.len()) } as i64)
}

pub fn seek(file: Fd, offset: i64, whence: i64) -> String {
    if is_directory(file) {
        return NOT_MADE.to_owned();
    }
    // SAFETY: numbers alone.
    plain(unsafe { libc::lseek(file, offset, number(whence)) })
}

pub fn copy(from: Fd, mut from_offset: i64, to: Fd, mut to_offset: i64, length: i64) -> String {
    // SAFETY: the offsets are ours.
    let count = unsafe { libc::copy_file_range(from, &mut from_offset, to, &mut to_offset, length as usize, 0) };
    then(count as i64, |_| format!("{from_offset} {to_offset}"))
}

pub fn fsync(file: Fd) -> String {
    // SAFETY: a number alone.
    plain(unsafe { libc::fsync(file) })
}

pub fn fdatasync(file: Fd) -> String {
    // SAFETY: a number alone.
    plain(unsafe { libc::fdatasync(file) })
}

pub fn ftruncate(file: Fd, length: i64) -> String {
    // SAFETY: numbers alone.
    plain(unsafe { libc::ftruncate(file, length) })
}

pub fn truncate(name: &str, length: i64) -> String {
    // SAFETY: the name is a C string.
    plain(unsafe { libc::truncate(c(name).as_ptr(), length) })
}

pub fn allocate(file: Fd, mode: i64, offset: i64, length: i64) -> String {
    // SAFETY: numbers alone.
    plain(unsafe { libc::fallocate(file, number(mode), offset, length) })
}

pub fn rename(from: &str, to: &str, flags: i64) -> String {
    let (from, to, here) = (c(from), c(to), libc::AT_FDCWD);
    // SAFETY: the names are C strings.
    let done = unsafe { libc::syscall(libc::SYS_renameat2, here, from.as_ptr(), here, to.as_ptr(), flags) };
    plain(done)
}

pub fn unlink(name: &str, flags: libc::c_int) -> String {
    // SAFETY: the name is a C string.
    plain(unsafe { libc::unlinkat(libc::AT_FDCWD, c(name).as_ptr(), flags) })
}

pub fn link(from: &str, to: &str) -> String {
    // SAFETY: the names are C strings.
    plain(unsafe { libc::link(c(from).as_ptr(), c(to).as_ptr()) })
}

/// A file that lost its last name gets none again.
pub fn link_file(file: Fd, to: &str) -> String {
    let to = c(to);
    // SAFETY: the names are C strings.
    plain(unsafe { libc::linkat(file, c"".as_ptr(), libc::AT_FDCWD, to.as_ptr(), libc::AT_EMPTY_PATH) })
}

pub fn symlink(target: &str, name: &str) -> String {
    // SAFETY: the names are C strings.
    plain(unsafe { libc::symlink(c(target).as_ptr(), c(name).as_ptr()) })
}

pub fn readlink(name: &str) -> String {
    let mut bytes = [0_u8; 256];
    // SAFETY: the name is a C string, the buffer is as long as it says.
    let count = unsafe { libc::readlink(c(name).as_ptr(), bytes.as_mut_ptr().cast(), bytes.len()) };
    then(count as i64, |count| String::from_utf8_lossy(&bytes[..count as usize]).into_owned())
}

pub fn socket(name: &str, mode: i64) -> String {
    // SAFETY: the name is a C string.
    plain(unsafe { libc::mknod(c(name).as_ptr(), libc::S_IFSOCK | mode as libc::mode_t, 0) })
}

pub fn mkdir(name: &str, mode: i64) -> String {
    // SAFETY: the name is a C string.
    plain(unsafe { libc::mkdir(c(name).as_ptr(), mode as libc::mode_t) })
}

/// A directory for a program.
pub fn make(directory: &str) -> i64 {
    // SAFETY: the name is a C string.
    outcome(unsafe { libc::mkdir(c(directory).as_ptr(), 0o755) }.into())
}

fn remove(name: &str) -> i64 {
    // SAFETY: the name is a C string.
    let removed = unsafe { libc::unlinkat(libc::AT_FDCWD, c(name).as_ptr(), 0) };
    if outcome(removed.into()) != -i64::from(libc::EISDIR) {
        return outcome(removed.into());
    }
    let mut failed = 0;
    for entry in entries_of(name) {
        let removed = remove(&format!("{name}/{entry}"));
        failed = if removed < 0 { removed } else { failed };
    }
    // SAFETY: the name is a C string.
    let removed = unsafe { libc::unlinkat(libc::AT_FDCWD, c(name).as_ptr(), libc::AT_REMOVEDIR) };
    if failed < 0 { failed } else { outcome(removed.into()) }
}

fn directory(name: &str) -> Fd {
    let flags = libc::O_RDONLY | libc::O_DIRECTORY | libc::O_CLOEXEC;
    // SAFETY: the name is a C string.
    unsafe { libc::open(c(name).as_ptr(), flags) }
}

fn entries_of(name: &str) -> Vec<String> {
    let file = directory(name);
    let names = read_entries(file).unwrap_or_default();
    // SAFETY: a descriptor that nobody else has.
    unsafe { libc::close(file) };
    names.into_keys().filter(|name| name != "." && name != "..").collect()
}

/// Names and kinds; sorted, because every file system has its own order. A name that comes twice is an error that no
/// kernel has.
fn read_entries(file: Fd) -> Result<BTreeMap<String, u8>, i64> {
    // SAFETY: numbers alone.
    if unsafe { libc::lseek(file, 0, libc::SEEK_SET) } < 0 {
        return Err(outcome(-1));
    }
    let (mut names, mut buffer) = (BTreeMap::new(), [0_u8; 4096]);
    loop {
        // SAFETY: the buffer is as long as it says.
        let count = unsafe { libc::syscall(libc::SYS_getdents64, file, buffer.as_mut_ptr(), buffer.len()) };
        let count = match outcome(count) {
            0 => return Ok(names),
            error @ ..0 => return Err(error),
            count => count as usize,
        };
        let mut rest = &buffer[..count];
        // struct linux_dirent64: inode and offset (8 bytes each), length of the record (2), kind (1), name with a zero.
        while let Some((head, name)) = rest.split_at_checked(19) {
            let length = usize::from(u16::from_ne_bytes([head[16], head[17]]));
            let name = name.split(|byte| *byte == 0).next().unwrap_or_default();
            if names.insert(String::from_utf8_lossy(name).into_owned(), head[18]).is_some() {
                return Err(-10_000);
            }
            rest = rest.get(length..).unwrap_or_default();
        }
    }
}

fn entries(file: Fd) -> String {
    match read_entries(file) {
        Ok(names) => {
            let names: Vec<String> = names.iter().map(|(name, kind)| format!("{name}:{kind}")).collect();
            format!("{} {}", names.len(), names.join(","))
        }
        Err(error) => error.to_string(),
    }
}

pub fn list(name: &str) -> String {
    let file = directory(name);
    if file < 0 {
        return plain(-1);
    }
    let text = entries(file);
    // SAFETY: a descriptor that nobody else has.
    unsafe { libc::close(file) };
    text
}

pub fn list_file(file: Fd) -> String {
    if is_directory(file) { entries(file) } else { NOT_MADE.to_owned() }
}

/// Everything below the working directory: names, attributes, contents.
pub fn tree() -> String {
    let mut text = String::new();
    show_tree(".", &mut text);
    text
}

fn show_tree(at: &str, text: &mut String) {
    for name in entries_of(at) {
        let path = format!("{at}/{name}");
        let seen = about(libc::AT_FDCWD, &c(&path), libc::AT_SYMLINK_NOFOLLOW);
        let kind = seen.map_or(0, |about| u32::from(about.stx_mode) & libc::S_IFMT);
        let _ = write!(text, " {path} {}", shown_about(seen));
        match kind {
            libc::S_IFDIR => show_tree(&path, text),
            libc::S_IFLNK => {
                let _ = write!(text, " {}", readlink(&path));
            }
            libc::S_IFREG => {
                // SAFETY: the name is a C string.
                let file = unsafe { libc::open(c(&path).as_ptr(), libc::O_RDONLY | libc::O_CLOEXEC) };
                let _ = write!(text, " {} {}", content(file), list_xattr(&path));
                // SAFETY: a descriptor that nobody else has.
                unsafe { libc::close(file) };
            }
            _ => {}
        }
    }
}

pub fn chmod(name: &str, mode: i64) -> String {
    // SAFETY: the name is a C string.
    plain(unsafe { libc::chmod(c(name).as_ptr(), mode as libc::mode_t) })
}

pub fn fchmod(file: Fd, mode: i64) -> String {
    // SAFETY: numbers alone.
    plain(unsafe { libc::fchmod(file, mode as libc::mode_t) })
}

pub fn chown(name: &str, user: i64, group: i64) -> String {
    // SAFETY: the name is a C string.
    plain(unsafe { libc::lchown(c(name).as_ptr(), user as libc::uid_t, group as libc::gid_t) })
}

pub fn fchown(file: Fd, user: i64, group: i64) -> String {
    // SAFETY: numbers alone.
    plain(unsafe { libc::fchown(file, user as libc::uid_t, group as libc::gid_t) })
}

fn times(access: i64, change: i64) -> [libc::timespec; 2] {
    [access, change].map(|time| match time {
        -1 => libc::timespec { tv_sec: 0, tv_nsec: libc::UTIME_OMIT },
        -2 => libc::timespec { tv_sec: 0, tv_nsec: libc::UTIME_NOW },
        time => libc::timespec { tv_sec: time / 1_000_000_000, tv_nsec: time % 1_000_000_000 },
    })
}

pub fn utimens(name: &str, access: i64, change: i64) -> String {
    let (name, times) = (c(name), times(access, change));
    // SAFETY: the name is a C string, the times are two.
    plain(unsafe { libc::utimensat(libc::AT_FDCWD, name.as_ptr(), times.as_ptr(), libc::AT_SYMLINK_NOFOLLOW) })
}

pub fn futimens(file: Fd, access: i64, change: i64) -> String {
    // SAFETY: the times are two.
    plain(unsafe { libc::futimens(file, times(access, change).as_ptr()) })
}

#[derive(Clone, Copy)]
pub enum Where<'a> {
    Name(&'a str),
    File(Fd),
}

fn attribute(at: i64) -> *const libc::c_char {
    ATTRIBUTES[at as usize].as_ptr()
}

pub fn set_xattr(at: Where<'_>, name: i64, length: i64, flags: i64) -> String {
    let value = vec![b'v'; length as usize];
    let (bytes, length, flags) = (value.as_ptr().cast(), value.len(), number(flags));
    // SAFETY: names are C strings, the value is as long as it says.
    plain(unsafe {
        match at {
            Where::Name(path) => libc::lsetxattr(c(path).as_ptr(), attribute(name), bytes, length, flags),
            Where::File(file) => libc::fsetxattr(file, attribute(name), bytes, length, flags),
        }
    })
}

pub fn get_xattr(at: Where<'_>, name: i64) -> String {
    let mut value = vec![0_u8; 65_536];
    let (bytes, length) = (value.as_mut_ptr().cast(), value.len());
    // SAFETY: names are C strings, the buffer is as long as it says.
    let count = unsafe {
        match at {
            Where::Name(path) => libc::lgetxattr(c(path).as_ptr(), attribute(name), bytes, length),
            Where::File(file) => libc::fgetxattr(file, attribute(name), bytes, length),
        }
    };
    then(count as i64, |count| shown(&value[..count as usize]))
}

pub fn list_xattr(name: &str) -> String {
    let mut names = vec![0_u8; 65_536];
    // SAFETY: the name is a C string, the buffer is as long as it says.
    let count = unsafe { libc::llistxattr(c(name).as_ptr(), names.as_mut_ptr().cast(), names.len()) };
    let count = outcome(count as i64);
    if count < 0 {
        return count.to_string();
    }
    let text = String::from_utf8_lossy(&names[..count as usize]).into_owned();
    // What belongs to the host's security modules is not the tree's.
    let mut names: Vec<&str> = text.split('\0').filter(|name| name.starts_with("user.")).collect();
    names.sort_unstable();
    format!("{} {}", names.len(), names.join(","))
}

pub fn remove_xattr(name: &str, attribute_name: i64) -> String {
    // SAFETY: the names are C strings.
    plain(unsafe { libc::lremovexattr(c(name).as_ptr(), attribute(attribute_name)) })
}

fn record(kind: i64, start: i64, length: i64) -> libc::flock {
    let (kind, whence) = (kind as libc::c_short, libc::SEEK_SET as libc::c_short);
    libc::flock { l_type: kind, l_whence: whence, l_start: start, l_len: length, l_pid: 0 }
}

pub fn set_lock(file: Fd, owner: i64, kind: i64, start: i64, length: i64) -> String {
    if is_directory(file) {
        return NOT_MADE.to_owned();
    }
    let command = if owner == 0 { libc::F_SETLK } else { libc::F_OFD_SETLK };
    // SAFETY: the record is one.
    plain(unsafe { libc::fcntl(file, command, &record(kind, start, length)) })
}

/// Locks of directories are each kernel's own. Who is in the way, and with which of several locks, is not compared:
/// whether somebody is.
pub fn get_lock(file: Fd, owner: i64, kind: i64, start: i64, length: i64) -> String {
    if is_directory(file) || number(kind) == libc::F_UNLCK {
        return NOT_MADE.to_owned();
    }
    let command = if owner == 0 { libc::F_GETLK } else { libc::F_OFD_GETLK };
    let mut record = record(kind, start, length);
    // SAFETY: the record is one.
    let done = unsafe { libc::fcntl(file, command, &mut record) };
    let free = libc::c_int::from(record.l_type) == libc::F_UNLCK;
    then(done, |_| if free { "free".to_owned() } else { "held".to_owned() })
}

pub fn flock(file: Fd, what: i64) -> String {
    if is_directory(file) {
        return NOT_MADE.to_owned();
    }
    // SAFETY: numbers alone.
    plain(unsafe { libc::flock(file, number(what) | libc::LOCK_NB) })
}

/// The whole file, exclusively: waits until it is free.
pub fn lock_and_wait(how: &str, file: Fd) -> std::io::Result<()> {
    let record = record(libc::F_WRLCK.into(), 0, 0);
    // SAFETY: the record is one.
    let done = unsafe {
        match how {
            "flock" => libc::flock(file, libc::LOCK_EX),
            "ofd" => libc::fcntl(file, libc::F_OFD_SETLKW, &record),
            _ => libc::fcntl(file, libc::F_SETLKW, &record),
        }
    };
    if done < 0 { Err(std::io::Error::last_os_error()) } else { Ok(()) }
}
