//! Extended attributes in an archive.
//!
//! As GNU tar has them, in records `SCHILY.xattr.NAME`; those that such a record cannot say for every reader (a value
//! with a newline, a name with `=`) as libarchive has them, in records `LIBARCHIVE.xattr.NAME` with escapes and base64.
//! Readers that look for the ends of lines would take what follows a newline in a value for a record of its own: a user
//! who may set an attribute of a file could say another name for it.

use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use rustix::buffer::spare_capacity;
use rustix::fs::{XattrFlags, flistxattr, fremovexattr, fsetxattr, getxattr, listxattr};
use rustix::io::Errno;

const PLAIN: &str = "SCHILY.xattr.";
const CODED: &str = "LIBARCHIVE.xattr.";
/// What Linux has at most, of a value and of all names of a file.
const BYTES_MAX: usize = 65_536;
/// What the file server answers itself: limits of a directory.
pub const QUOTA_NAME: &str = "dvs.quota";

/// An attribute.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Extended {
    pub name: Vec<u8>,
    pub value: Vec<u8>,
}

/// Of whom attributes are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kept {
    /// All that a container's tree keeps.
    OfTheTree,
    /// Of another file system: what means something elsewhere.
    OfAnother,
}

impl Kept {
    fn has(self, name: &[u8]) -> bool {
        match self {
            Kept::OfTheTree => ![&b"dvs."[..], b"system."].iter().any(|of_others| name.starts_with(of_others)),
            Kept::OfAnother => name.starts_with(b"user.") || name == b"security.capability",
        }
    }
}

/// Attributes of a file or directory.
pub fn read(path: &Path, kept: Kept) -> io::Result<Vec<Extended>> {
    let mut names = Vec::with_capacity(BYTES_MAX);
    match listxattr(path, spare_capacity(&mut names)) {
        Ok(_) => {}
        Err(Errno::OPNOTSUPP) => return Ok(Vec::new()),
        Err(error) => return Err(error.into()),
    }
    let mut all = Vec::new();
    for name in names.split(|byte| *byte == 0).filter(|name| !name.is_empty() && kept.has(name)) {
        let mut value = Vec::with_capacity(BYTES_MAX);
        match getxattr(path, OsStr::from_bytes(name), spare_capacity(&mut value)) {
            Ok(_) => all.push(Extended { name: name.to_owned(), value }),
            // Somebody took it away meanwhile.
            Err(Errno::NODATA) => {}
            Err(error) => return Err(error.into()),
        }
    }
    all.sort_by(|left, right| left.name.cmp(&right.name));
    Ok(all)
}

/// Sets it, whatever was there.
pub fn write(file: &File, it: &Extended) -> io::Result<()> {
    let name = OsStr::from_bytes(&it.name);
    fsetxattr(file, name, &it.value, XattrFlags::empty()).map_err(|cause| {
        let name = crate::output::printable(&name.to_string_lossy());
        io::Error::new(io::Error::from(cause).kind(), format!("its attribute {name}: {}", io::Error::from(cause)))
    })
}

/// Takes away what a directory has besides these.
pub fn keep_only(directory: &File, kept: &[Extended]) -> io::Result<()> {
    let mut names = Vec::with_capacity(BYTES_MAX);
    match flistxattr(directory, spare_capacity(&mut names)) {
        Ok(_) | Err(Errno::OPNOTSUPP) => {}
        Err(error) => return Err(error.into()),
    }
    for name in names.split(|byte| *byte == 0).filter(|name| !name.is_empty() && Kept::OfTheTree.has(name)) {
        if !kept.iter().any(|it| it.name == name) {
            fremovexattr(directory, OsStr::from_bytes(name))?;
        }
    }
    Ok(())
}

/// Key and value of its record.
pub fn record(it: &Extended) -> (String, Vec<u8>) {
    match std::str::from_utf8(&it.name) {
        Ok(name) if !name.contains(['=', '\n', '%']) && !it.value.contains(&b'\n') => {
            (format!("{PLAIN}{name}"), it.value.clone())
        }
        _ => (format!("{CODED}{}", escaped(&it.name)), coded(&it.value)),
    }
}

/// Of a record, if it is one of an attribute. `None` also of one that makes no sense.
pub fn of_record(key: &str, value: &[u8]) -> Option<Extended> {
    let it = match (key.strip_prefix(PLAIN), key.strip_prefix(CODED)) {
        (Some(name), _) => Extended { name: name.as_bytes().to_owned(), value: value.to_owned() },
        (_, Some(name)) => Extended { name: unescaped(name)?, value: decoded(value)? },
        _ => return None,
    };
    (!it.name.is_empty() && !it.name.contains(&0) && it.value.len() <= BYTES_MAX).then_some(it)
}

fn escaped(name: &[u8]) -> String {
    name.iter().fold(String::new(), |mut out, byte| {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'.' | b'_' | b'-' => out.push(char::from(*byte)),
            _ => out.push_str(&format!("%{byte:02X}")),
        }
        out
    })
}

fn unescaped(name: &str) -> Option<Vec<u8>> {
    let mut parts = name.split('%');
    let mut out = parts.next()?.as_bytes().to_owned();
    for part in parts {
        let digits = part.get(..2).filter(|digits| digits.bytes().all(|byte| byte.is_ascii_hexdigit()))?;
        out.push(u8::from_str_radix(digits, 16).ok()?);
        out.extend_from_slice(part.get(2..)?.as_bytes());
    }
    Some(out)
}

const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/// Base64 without padding, as libarchive writes it.
fn coded(bytes: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(bytes.len() * 4 / 3 + 4);
    for group in bytes.chunks(3) {
        let word = (0..3).fold(0_u32, |word, at| word << 8 | u32::from(group.get(at).copied().unwrap_or(0)));
        for digit in 0..=group.len() {
            let at = word >> (18 - 6 * digit) & 63;
            out.push(DIGITS.get(at as usize).copied().unwrap_or(b'A'));
        }
    }
    out
}

fn decoded(text: &[u8]) -> Option<Vec<u8>> {
    let end = text.iter().rposition(|byte| *byte != b'=').map_or(0, |last| last + 1);
    let mut out = Vec::with_capacity(text.len() / 4 * 3 + 3);
    for group in text.get(..end)?.chunks(4) {
        let mut word = 0_u32;
        for at in 0..4 {
            let digit = match group.get(at) {
                Some(byte) => DIGITS.iter().position(|digit| digit == byte)? as u32,
                None => 0,
            };
            word = word << 6 | digit;
        }
        let [_, bytes @ ..] = word.to_be_bytes();
        out.extend_from_slice(bytes.get(..group.len().checked_sub(1).filter(|count| *count > 0)?)?);
    }
    Some(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attribute_comes_back_from_its_record_whatever_is_in_it() {
        let of = |name: &[u8], value: &[u8]| Extended { name: name.to_owned(), value: value.to_owned() };
        for it in [
            of(b"user.a", b"plain"),
            of(b"user.empty", b""),
            of(b"user.evil", b"x\n20 path=etc/passwd\n"),
            of(b"user.a=b", b"x"),
            of(b"user.%41", b"x"),
            of(b"user.\xff\n", &[0, 10, 255, 61]),
            of(b"security.capability", &[1, 0, 0, 2, 10, 0, 0]),
        ] {
            let (key, value) = record(&it);
            assert!(!value.contains(&b'\n') && !key.contains(['\n', '=']), "{key}");
            assert_eq!(of_record(&key, &value), Some(it));
        }
        for length in 0..70_u8 {
            let value: Vec<u8> = (0..length).map(|byte| byte.wrapping_mul(37)).collect();
            assert_eq!(decoded(&coded(&value)), Some(value));
        }
        assert_eq!(record(&of(b"user.a", b"v")), ("SCHILY.xattr.user.a".to_owned(), b"v".to_vec()));
    }

    #[test]
    fn record_that_makes_no_sense_is_none() {
        for (key, value) in [
            ("mtime", &b"1"[..]),
            ("SCHILY.xattr.", b"x"),
            ("LIBARCHIVE.xattr.user.a", b"?"),
            ("LIBARCHIVE.xattr.user.a", b"A"),
            ("LIBARCHIVE.xattr.user.%4", b"AA"),
            ("LIBARCHIVE.xattr.user.%+1", b"AA"),
            ("LIBARCHIVE.xattr.user.%\u{e4}", b"AA"),
        ] {
            assert_eq!(of_record(key, value), None, "{key}");
        }
    }
}
