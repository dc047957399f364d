//! A program: calls of several processes on several nodes, one after the other.
//!
//! Every argument is a number; its [`Kind`] says how it reads. The text of a call without its place is also what a
//! worker is told.

use std::fmt;

/// Descriptors of a process that a program can name.
pub const FILES: usize = 4;
/// Mappings of a process that a program can name.
pub const MAPS: usize = 2;

/// Names of a program, from the simplest. They are few, so that calls meet; the same name may be a file, a directory, a
/// link.
pub const NAMES: &[&str] = &["a", "b", "c", "d", "e", "d/a", "d/b", "e/a", "d/e", "d/e/a"];

/// What an argument is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    File,
    Map,
    Name,
    Open,
    Mode,
    Offset,
    Length,
    Byte,
    Whence,
    Allocate,
    Protection,
    Rename,
    Owner,
    Time,
    Attribute,
    SetAttribute,
    LockOwner,
    LockType,
    Flock,
}

/// Calls of a group are switched on and off together.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Group {
    Core,
    Data,
    Size,
    Maps,
    Names,
    Links,
    Directories,
    Attributes,
    Xattrs,
    Locks,
    Ends,
    Pauses,
}

impl Group {
    pub const ALL: &[Group] = &[
        Group::Core,
        Group::Data,
        Group::Size,
        Group::Maps,
        Group::Names,
        Group::Links,
        Group::Directories,
        Group::Attributes,
        Group::Xattrs,
        Group::Locks,
        Group::Ends,
        Group::Pauses,
    ];
}

macro_rules! calls {
    ($($call:ident $word:literal [$($kind:ident)*] $group:ident $weight:literal;)*) => {
        /// A system call, or a few that belong together.
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        pub enum Call { $($call),* }

        impl Call {
            pub const ALL: &[Call] = &[$(Call::$call),*];

            pub fn word(self) -> &'static str {
                match self { $(Call::$call => $word),* }
            }

            pub fn kinds(self) -> &'static [Kind] {
                match self { $(Call::$call => &[$(Kind::$kind),*]),* }
            }

            pub fn group(self) -> Group {
                match self { $(Call::$call => Group::$group),* }
            }

            /// How often among those of its program.
            pub fn weight(self) -> u64 {
                match self { $(Call::$call => $weight),* }
            }
        }
    };
}

calls! {
    Open "open" [File Name Open Mode] Core 12;
    Reopen "reopen" [File File Open] Core 2;
    OpenAt "openat" [File File Name Open Mode] Directories 3;
    Close "close" [File] Core 5;
    Dup "dup" [File File] Core 2;
    Stat "stat" [Name] Core 4;
    Lstat "lstat" [Name] Core 2;
    Fstat "fstat" [File] Core 4;
    Pread "pread" [File Offset Length] Data 8;
    Pwrite "pwrite" [File Offset Length Byte] Data 8;
    Read "read" [File Length] Data 5;
    Write "write" [File Length Byte] Data 5;
    Seek "lseek" [File Offset Whence] Data 5;
    Copy "copy_file_range" [File Offset File Offset Length] Data 3;
    Fsync "fsync" [File] Data 1;
    Fdatasync "fdatasync" [File] Data 1;
    Ftruncate "ftruncate" [File Offset] Size 5;
    Truncate "truncate" [Name Offset] Size 4;
    Allocate "fallocate" [File Allocate Offset Length] Size 5;
    Map "mmap" [Map File Offset Length Protection] Maps 5;
    Load "load" [Map Offset Length] Maps 8;
    // With msync: stores of two nodes to one page before it are nobody's order.
    Store "store" [Map Offset Length Byte] Maps 6;
    Unmap "munmap" [Map] Maps 2;
    Rename "renameat2" [Name Name Rename] Names 8;
    Unlink "unlink" [Name] Names 5;
    Link "link" [Name Name] Links 4;
    LinkFile "linkfd" [File Name] Links 2;
    Symlink "symlink" [Name Name] Links 3;
    Readlink "readlink" [Name] Links 3;
    Socket "mksock" [Name Mode] Links 1;
    Mkdir "mkdir" [Name Mode] Directories 6;
    Rmdir "rmdir" [Name] Directories 5;
    List "list" [Name] Directories 5;
    ListFile "listfd" [File] Directories 4;
    Chmod "chmod" [Name Mode] Attributes 3;
    Fchmod "fchmod" [File Mode] Attributes 3;
    Chown "lchown" [Name Owner Owner] Attributes 3;
    Fchown "fchown" [File Owner Owner] Attributes 2;
    Utimens "utimens" [Name Time Time] Attributes 3;
    Futimens "futimens" [File Time Time] Attributes 2;
    SetXattr "setxattr" [Name Attribute Length SetAttribute] Xattrs 4;
    GetXattr "getxattr" [Name Attribute] Xattrs 4;
    ListXattr "listxattr" [Name] Xattrs 3;
    RemoveXattr "removexattr" [Name Attribute] Xattrs 2;
    FsetXattr "fsetxattr" [File Attribute Length SetAttribute] Xattrs 2;
    FgetXattr "fgetxattr" [File Attribute] Xattrs 2;
    SetLock "setlk" [File LockOwner LockType Offset Length] Locks 10;
    GetLock "getlk" [File LockOwner LockType Offset Length] Locks 4;
    Flock "flock" [File Flock] Locks 6;
    Exit "exit" [] Ends 2;
    // What a kernel keeps, it keeps for a time.
    Pause "pause" [] Pauses 1;
}

/// Words of the kinds that are not plain numbers. Flags are joined by `|`; the first is no flag.
pub fn words(kind: Kind) -> &'static [(&'static str, i64)] {
    use libc as c;
    const fn w(value: i32) -> i64 {
        value as i64
    }
    match kind {
        Kind::Open => {
            const {
                &[
                    ("RDONLY", 0),
                    ("WRONLY", w(c::O_WRONLY)),
                    ("RDWR", w(c::O_RDWR)),
                    ("CREAT", w(c::O_CREAT)),
                    ("EXCL", w(c::O_EXCL)),
                    ("TRUNC", w(c::O_TRUNC)),
                    ("APPEND", w(c::O_APPEND)),
                    ("DIRECTORY", w(c::O_DIRECTORY)),
                    ("NOFOLLOW", w(c::O_NOFOLLOW)),
                    ("PATH", w(c::O_PATH)),
                ]
            }
        }
        Kind::Whence => {
            const {
                &[
                    ("SET", w(c::SEEK_SET)),
                    ("CUR", w(c::SEEK_CUR)),
                    ("END", w(c::SEEK_END)),
                    ("DATA", w(c::SEEK_DATA)),
                    ("HOLE", w(c::SEEK_HOLE)),
                ]
            }
        }
        Kind::Allocate => {
            const {
                &[
                    ("0", 0),
                    ("KEEP_SIZE", w(c::FALLOC_FL_KEEP_SIZE)),
                    ("PUNCH_HOLE", w(c::FALLOC_FL_PUNCH_HOLE | c::FALLOC_FL_KEEP_SIZE)),
                ]
            }
        }
        Kind::Protection => const { &[("r", w(c::PROT_READ)), ("rw", w(c::PROT_READ | c::PROT_WRITE))] },
        Kind::Rename => {
            const { &[("0", 0), ("NOREPLACE", c::RENAME_NOREPLACE as i64), ("EXCHANGE", c::RENAME_EXCHANGE as i64)] }
        }
        Kind::Time => {
            &[("omit", -1), ("now", -2), ("100", 100_000_000_000), ("1000000007.5", 1_000_000_007_500_000_000)]
        }
        Kind::Attribute => &[("user.a", 0), ("user.bb", 1)],
        Kind::SetAttribute => const { &[("0", 0), ("CREATE", w(c::XATTR_CREATE)), ("REPLACE", w(c::XATTR_REPLACE))] },
        Kind::LockOwner => &[("POSIX", 0), ("OFD", 1)],
        Kind::LockType => const { &[("UNLCK", w(c::F_UNLCK)), ("RDLCK", w(c::F_RDLCK)), ("WRLCK", w(c::F_WRLCK))] },
        Kind::Flock => const { &[("UN", w(c::LOCK_UN)), ("SH", w(c::LOCK_SH)), ("EX", w(c::LOCK_EX))] },
        _ => &[],
    }
}

/// A call with its place.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Op {
    pub node: usize,
    pub process: usize,
    pub call: Call,
    pub args: Vec<i64>,
}

impl Op {
    /// What the worker is told.
    pub fn command(&self) -> String {
        let args = self.call.kinds().iter().zip(&self.args).map(|(kind, value)| format!(" {}", shown(*kind, *value)));
        format!("{}{}", self.call.word(), args.collect::<String>())
    }
}

impl fmt::Display for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "n{}.{} {}", self.node + 1, self.process, self.command())
    }
}

fn shown(kind: Kind, value: i64) -> String {
    match kind {
        Kind::File => format!("f{value}"),
        Kind::Map => format!("m{value}"),
        Kind::Mode => format!("{value:o}"),
        Kind::Name => NAMES[value as usize].to_owned(),
        Kind::Open => shown_flags(value),
        _ => match words(kind).iter().find(|(_, number)| *number == value) {
            Some((word, _)) => (*word).to_owned(),
            None => value.to_string(),
        },
    }
}

fn shown_flags(value: i64) -> String {
    let access = words(Kind::Open)[..3].iter().find(|(_, number)| *number == value & i64::from(libc::O_ACCMODE));
    let flags = words(Kind::Open)[3..].iter().filter(|(_, number)| value & number == *number);
    access.into_iter().chain(flags).map(|(word, _)| *word).collect::<Vec<_>>().join("|")
}

fn parsed(kind: Kind, text: &str) -> Option<i64> {
    let word = |text: &str| words(kind).iter().find(|(word, _)| *word == text).map(|(_, value)| *value);
    match kind {
        Kind::File => slot(text.strip_prefix('f')?, FILES),
        Kind::Map => slot(text.strip_prefix('m')?, MAPS),
        Kind::Mode => i64::from_str_radix(text, 8).ok(),
        Kind::Name => NAMES.iter().position(|name| *name == text).map(|at| at as i64),
        Kind::Open => text.split('|').map(word).sum(),
        _ if words(kind).is_empty() => text.parse().ok(),
        _ => word(text),
    }
}

fn slot(text: &str, below: usize) -> Option<i64> {
    text.parse().ok().filter(|number: &i64| (0..below as i64).contains(number))
}

/// A call as a worker is told it.
pub fn parsed_command(text: &str) -> Option<(Call, Vec<i64>)> {
    let mut words = text.split_ascii_whitespace();
    let word = words.next()?;
    let call = *Call::ALL.iter().find(|call| call.word() == word)?;
    let args = call.kinds().iter().map(|kind| parsed(*kind, words.next()?)).collect::<Option<_>>()?;
    words.next().is_none().then_some((call, args))
}

/// What is to be done by whom.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Program(pub Vec<Op>);

impl Program {
    /// From its text: calls separated by `;` or line ends.
    pub fn parse(text: &str) -> Result<Program, String> {
        let lines = text.split([';', '\n']).map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
        lines
            .map(|line| parsed_op(line).ok_or_else(|| format!("not a call: {line}")))
            .collect::<Result<_, _>>()
            .map(Program)
    }

    /// In one line, for a command.
    pub fn line(&self) -> String {
        self.0.iter().map(Op::to_string).collect::<Vec<_>>().join("; ")
    }
}

fn parsed_op(line: &str) -> Option<Op> {
    let (place, command) = line.split_once(' ')?;
    let (node, process) = place.strip_prefix('n')?.split_once('.')?;
    let node = node.parse::<usize>().ok()?.checked_sub(1)?;
    let (call, args) = parsed_command(command)?;
    Some(Op { node, process: process.parse().ok()?, call, args })
}
