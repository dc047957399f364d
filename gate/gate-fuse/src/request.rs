//! Bytes of the FUSE descriptor become a checked request, or an error that says what is wrong with them.
//!
//! The kernel is trusted to be honest, not to be the version we know: every length is checked, an operation we do not
//! know is [`Body::Unknown`], and nothing in here panics on any bytes.

use zerocopy::FromBytes;

use crate::kernel::*;

#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum RequestError {
    #[error("a request of {got} bytes says that it has {said}")]
    Length { got: usize, said: usize },
    #[error("the request with operation {opcode} ends too early")]
    Short { unique: u64, opcode: u32 },
    #[error("a name in the request with operation {opcode} is empty, too long or has no end")]
    Name { unique: u64, opcode: u32 },
}

/// One request, borrowed from the buffer it was read into.
#[derive(Debug, PartialEq)]
pub struct Request<'a> {
    pub header: InHeader,
    pub body: Body<'a>,
}

impl Request<'_> {
    /// The number of the request without the mark of being resent: it is never used twice in a connection.
    pub fn key(&self) -> u64 {
        self.header.unique & !UNIQUE_RESEND
    }

    pub fn is_resent(&self) -> bool {
        self.header.unique & UNIQUE_RESEND != 0
    }
}

#[derive(Debug, PartialEq)]
pub enum Body<'a> {
    Init {
        head: InitIn,
        flags2: u32,
    },
    Destroy,
    /// FORGET and BATCH_FORGET: inode numbers are stable, so nobody counts.
    Forget,
    Interrupt {
        unique: u64,
    },
    Lookup {
        name: &'a [u8],
    },
    Getattr,
    Setattr(SetattrIn),
    Readlink,
    Symlink {
        name: &'a [u8],
        target: &'a [u8],
    },
    Mknod {
        head: MknodIn,
        name: &'a [u8],
    },
    Mkdir {
        head: MkdirIn,
        name: &'a [u8],
    },
    Unlink {
        name: &'a [u8],
    },
    Rmdir {
        name: &'a [u8],
    },
    Rename {
        to: u64,
        flags: u32,
        old: &'a [u8],
        new: &'a [u8],
    },
    Link {
        ino: u64,
        name: &'a [u8],
    },
    Open(OpenIn),
    Create {
        head: CreateIn,
        name: &'a [u8],
    },
    Read(ReadIn),
    Write {
        head: WriteIn,
        data: &'a [u8],
    },
    Statfs,
    Release(ReleaseIn),
    Fsync(FsyncIn),
    Syncfs,
    Setxattr {
        flags: u32,
        name: &'a [u8],
        value: &'a [u8],
    },
    Getxattr {
        size: u32,
        name: &'a [u8],
    },
    Listxattr {
        size: u32,
    },
    Removexattr {
        name: &'a [u8],
    },
    Flush(FlushIn),
    Opendir,
    Readdir {
        head: ReadIn,
        plus: Plus,
    },
    Releasedir,
    Fsyncdir,
    Getlk(LkIn),
    Setlk {
        head: LkIn,
        blocking: Blocking,
    },
    Fallocate(FallocateIn),
    Lseek(LseekIn),
    CopyFileRange(CopyFileRangeIn),
    Ioctl {
        head: IoctlIn,
        data: &'a [u8],
    },
    Tmpfile,
    Unknown,
}

impl Body<'_> {
    /// Whether it makes, removes, moves or changes an inode or a name, beside what is written into files.
    pub fn changes_the_tree(&self) -> bool {
        matches!(
            self,
            Body::Create { .. }
                | Body::Mkdir { .. }
                | Body::Mknod { .. }
                | Body::Symlink { .. }
                | Body::Link { .. }
                | Body::Unlink { .. }
                | Body::Rmdir { .. }
                | Body::Rename { .. }
                | Body::Setattr(_)
                | Body::Tmpfile
        )
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Plus {
    Names,
    WithAttributes,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Blocking {
    No,
    Yes,
}

pub fn parse(bytes: &[u8]) -> Result<Request<'_>, RequestError> {
    let length = |said| RequestError::Length { got: bytes.len(), said };
    let (header, rest) = InHeader::read_from_prefix(bytes).map_err(|_| length(size_of::<InHeader>()))?;
    if header.len as usize != bytes.len() {
        return Err(length(header.len as usize));
    }
    // Extensions follow the arguments; we negotiated none, but skip what a kernel may append.
    let extensions = usize::from(header.total_extlen) * 8;
    let arguments = rest.len().checked_sub(extensions).and_then(|end| rest.get(..end)).unwrap_or(rest);
    let body = parse_body(&header, Arguments { header, rest: arguments })?;
    Ok(Request { header, body })
}

fn parse_body<'a>(header: &InHeader, mut a: Arguments<'a>) -> Result<Body<'a>, RequestError> {
    Ok(match header.opcode {
        opcode::INIT => {
            let head = a.head()?;
            let flags2 = a.head::<InitInExt>().map_or(0, |ext| ext.flags2);
            Body::Init { head, flags2 }
        }
        opcode::DESTROY => Body::Destroy,
        opcode::FORGET | opcode::BATCH_FORGET => Body::Forget,
        opcode::INTERRUPT => Body::Interrupt { unique: a.head::<InterruptIn>()?.unique },
        opcode::LOOKUP => Body::Lookup { name: a.name()? },
        opcode::GETATTR => Body::Getattr,
        opcode::SETATTR => Body::Setattr(a.head()?),
        opcode::READLINK => Body::Readlink,
        opcode::SYMLINK => Body::Symlink { name: a.name()?, target: a.text(vos_api::fs::SYMLINK_BYTES_MAX)? },
        opcode::MKNOD => Body::Mknod { head: a.head()?, name: a.name()? },
        opcode::MKDIR => Body::Mkdir { head: a.head()?, name: a.name()? },
        opcode::UNLINK => Body::Unlink { name: a.name()? },
        opcode::RMDIR => Body::Rmdir { name: a.name()? },
        opcode::RENAME => {
            let head: RenameIn = a.head()?;
            Body::Rename { to: head.newdir, flags: 0, old: a.name()?, new: a.name()? }
        }
        opcode::RENAME2 => {
            let head: Rename2In = a.head()?;
            Body::Rename { to: head.newdir, flags: head.flags, old: a.name()?, new: a.name()? }
        }
        opcode::LINK => Body::Link { ino: a.head::<LinkIn>()?.oldnodeid, name: a.name()? },
        opcode::OPEN => Body::Open(a.head()?),
        opcode::CREATE => Body::Create { head: a.head()?, name: a.name()? },
        _ => return parse_data_body(header, a),
    })
}

fn parse_data_body<'a>(header: &InHeader, mut a: Arguments<'a>) -> Result<Body<'a>, RequestError> {
    Ok(match header.opcode {
        opcode::READ => Body::Read(a.head()?),
        opcode::WRITE => {
            let head: WriteIn = a.head()?;
            Body::Write { head, data: a.data(head.size)? }
        }
        opcode::STATFS => Body::Statfs,
        opcode::RELEASE => Body::Release(a.head()?),
        opcode::FSYNC => Body::Fsync(a.head()?),
        opcode::SYNCFS => Body::Syncfs,
        opcode::SETXATTR => {
            let head: SetxattrIn = a.head()?;
            Body::Setxattr { flags: head.flags, name: a.name()?, value: a.data(head.size)? }
        }
        opcode::GETXATTR => {
            let head: GetxattrIn = a.head()?;
            Body::Getxattr { size: head.size, name: a.name()? }
        }
        opcode::LISTXATTR => Body::Listxattr { size: a.head::<GetxattrIn>()?.size },
        opcode::REMOVEXATTR => Body::Removexattr { name: a.name()? },
        opcode::FLUSH => Body::Flush(a.head()?),
        opcode::OPENDIR => Body::Opendir,
        opcode::READDIR => Body::Readdir { head: a.head()?, plus: Plus::Names },
        opcode::READDIRPLUS => Body::Readdir { head: a.head()?, plus: Plus::WithAttributes },
        opcode::RELEASEDIR => Body::Releasedir,
        opcode::FSYNCDIR => Body::Fsyncdir,
        opcode::GETLK => Body::Getlk(a.head()?),
        opcode::SETLK => Body::Setlk { head: a.head()?, blocking: Blocking::No },
        opcode::SETLKW => Body::Setlk { head: a.head()?, blocking: Blocking::Yes },
        opcode::FALLOCATE => Body::Fallocate(a.head()?),
        opcode::LSEEK => Body::Lseek(a.head()?),
        opcode::COPY_FILE_RANGE => Body::CopyFileRange(a.head()?),
        opcode::IOCTL => {
            let head: IoctlIn = a.head()?;
            Body::Ioctl { head, data: a.data(head.in_size)? }
        }
        opcode::TMPFILE => Body::Tmpfile,
        _ => Body::Unknown,
    })
}

/// What is left of a request's arguments.
struct Arguments<'a> {
    header: InHeader,
    rest: &'a [u8],
}

impl<'a> Arguments<'a> {
    fn head<T: FromBytes>(&mut self) -> Result<T, RequestError> {
        let (head, rest) = T::read_from_prefix(self.rest).map_err(|_| self.short())?;
        self.rest = rest;
        Ok(head)
    }

    fn data(&mut self, bytes: u32) -> Result<&'a [u8], RequestError> {
        let (data, rest) = self.rest.split_at_checked(bytes as usize).ok_or_else(|| self.short())?;
        self.rest = rest;
        Ok(data)
    }

    fn name(&mut self) -> Result<&'a [u8], RequestError> {
        self.text(vos_api::fs::NAME_BYTES_MAX)
    }

    /// Bytes up to a NUL: at least one, at most `bytes_max`.
    fn text(&mut self, bytes_max: usize) -> Result<&'a [u8], RequestError> {
        let bad = RequestError::Name { unique: self.header.unique, opcode: self.header.opcode };
        let end = self.rest.iter().position(|&byte| byte == 0);
        let (text, rest) = match end.and_then(|end| Some((self.rest.get(..end)?, self.rest.get(end + 1..)?))) {
            Some(parts) => parts,
            None => return Err(bad),
        };
        if text.is_empty() || text.len() > bytes_max {
            return Err(bad);
        }
        self.rest = rest;
        Ok(text)
    }

    fn short(&self) -> RequestError {
        RequestError::Short { unique: self.header.unique, opcode: self.header.opcode }
    }
}

impl RequestError {
    /// The request to answer with an error, when so much was readable.
    pub fn unique(&self) -> Option<u64> {
        match self {
            RequestError::Length { .. } => None,
            RequestError::Short { unique, .. } | RequestError::Name { unique, .. } => Some(*unique),
        }
    }

    /// What the program that made the request is told: a name too long is its own doing.
    pub fn errno(&self) -> i32 {
        match self {
            RequestError::Name { .. } => libc::ENAMETOOLONG,
            RequestError::Length { .. } | RequestError::Short { .. } => libc::EIO,
        }
    }
}
