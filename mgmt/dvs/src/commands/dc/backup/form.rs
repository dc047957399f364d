//! The form of a container's backup: a tar archive that says at its begin whose it is, at its end whether it is whole.
//!
//! ```text
//! .dvs-backup-ID/container.json    Head
//! .dvs-backup-ID/keys.jsonl        the key-value store: what `dvs ds pipe` takes
//! ./ …                             the tree; or what changed in it, where `Head` says since when
//! .dvs-backup-ID/end.json          End
//! ```
//!
//! ID is random, so nothing in the tree can be called so. Whatever reads tar shows it and unpacks it.

use std::io::{self, Read, Write};

use mgmt_api::DcSpec;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use tar::{EntryType, Header};

/// Of this file's form; a later one is refused.
pub const FORMAT: u32 = 2;
/// That of an archive with all files, which earlier releases understand.
pub const FORMAT_WHOLE: u32 = 1;
const BLOCK: usize = 512;
const ID_BYTES: usize = 16;
const PREFIX: &str = ".dvs-backup-";
const HEAD: &str = "container.json";
const KEYS: &str = "keys.jsonl";
const END: &str = "end.json";
/// A description has at most 6 MiB as TOML.
const HEAD_BYTES_MAX: u64 = 16 << 20;
const KEYS_BYTES_MAX: u64 = 1 << 30;
const END_BYTES_MAX: u64 = 4096;

/// What the archive is of.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Head {
    pub format: u32,
    /// Of the command that made it.
    pub release: String,
    pub made_s: u64,
    /// With its services.
    pub dc: DcSpec,
    /// The moment that its files are of, if that is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub point: Option<Moment>,
    /// It has what changed since then, and nothing else. Directories that changed are entries of GNU tar's incremental
    /// archives, which say what is in them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since: Option<Moment>,
}

/// A snapshot of the tree.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Moment {
    pub snapshot: String,
    /// Of all that its tree ever had, it alone.
    pub number: u64,
    pub taken_s: u64,
}

/// What is in it, for who wants to know whether it is all there.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct End {
    /// Files and directories of the tree.
    pub entries: u64,
    /// Of the store.
    pub keys: u64,
    /// Of the archive, up to the entry that has this.
    pub bytes: u64,
    pub sha256: String,
}

#[derive(Debug, thiserror::Error)]
pub enum FormError {
    #[error("it is no backup of a container")]
    NoBackup,
    #[error("it has form {0}, which a later release made; this one knows {FORMAT}")]
    Later(u32),
    #[error("it ends before its end")]
    Cut,
    #[error("{0} cannot be understood")]
    Garbled(&'static str),
    #[error("it is damaged: {what} is {found}, and was {made}")]
    Damaged { what: &'static str, made: String, found: String },
    #[error("cannot read it")]
    Read(#[source] io::Error),
    #[error("cannot write it")]
    Write(#[source] io::Error),
}

/// Sums over what passes.
#[derive(Clone, Default)]
struct Sums {
    digest: Sha256,
    bytes: u64,
    entries: u64,
    keys: u64,
}

impl Sums {
    fn take(&mut self, bytes: &[u8]) {
        self.digest.update(bytes);
        self.bytes += bytes.len() as u64;
    }

    fn end(&self) -> End {
        let digest = self.digest.clone().finalize();
        let sha256 = digest.iter().map(|byte| format!("{byte:02x}")).collect();
        End { entries: self.entries, keys: self.keys, bytes: self.bytes, sha256 }
    }
}

/// Makes an archive.
pub struct Maker<W> {
    out: W,
    id: String,
    made_s: u64,
    sums: Sums,
}

impl<W: Write> Maker<W> {
    /// `keys`: a line each.
    pub fn begin(out: W, id: u64, head: &Head, keys: &[u8]) -> Result<Maker<W>, FormError> {
        let mut maker =
            Maker { out, id: format!("{id:0width$x}", width = ID_BYTES), made_s: head.made_s, sums: Sums::default() };
        let text = serde_json::to_vec_pretty(head).map_err(|_| FormError::Garbled("the description"))?;
        maker.sums.keys = lines(keys);
        maker.own(HEAD, &text)?;
        maker.own(KEYS, keys)?;
        Ok(maker)
    }

    fn own(&mut self, name: &str, content: &[u8]) -> Result<(), FormError> {
        let mut header = Header::new_ustar();
        header.set_path(format!("{PREFIX}{}/{name}", self.id)).map_err(FormError::Write)?;
        header.set_size(content.len() as u64);
        header.set_mode(0o600);
        header.set_mtime(self.made_s);
        header.set_cksum();
        self.put(header.as_bytes())?;
        self.put(content)?;
        let rest = padded(content.len() as u64).ok_or(FormError::Garbled(HEAD))? - content.len() as u64;
        self.put(&vec![0; usize::try_from(rest).unwrap_or_default()])
    }

    fn put(&mut self, bytes: &[u8]) -> Result<(), FormError> {
        self.sums.take(bytes);
        self.out.write_all(bytes).map_err(FormError::Write)
    }

    /// All entries of a tar stream.
    pub fn tree(&mut self, source: impl Read) -> Result<(), FormError> {
        let mut blocks = Blocks { source };
        while let Some(header) = blocks.header()? {
            self.sums.entries += u64::from(is_counted(&header));
            self.put(header.as_bytes())?;
            let length = length(&header)?;
            blocks.content(length, |bytes| self.put(bytes))?;
        }
        Ok(())
    }

    pub fn finish(mut self) -> Result<End, FormError> {
        let end = self.sums.end();
        let text = serde_json::to_vec(&end).map_err(|_| FormError::Garbled(END))?;
        self.own(END, &text)?;
        // Two blocks of nothing are the end of an archive.
        self.put(&[0; 2 * BLOCK])?;
        self.out.flush().map_err(FormError::Write)?;
        Ok(end)
    }
}

/// Reads an archive whose begin was understood.
pub struct Reader<R> {
    blocks: Blocks<R>,
    id: String,
    sums: Sums,
    pub head: Head,
    /// Lines.
    pub keys: Vec<u8>,
}

impl<R: Read> Reader<R> {
    pub fn begin(source: R) -> Result<Reader<R>, FormError> {
        let mut blocks = Blocks { source };
        let mut sums = Sums::default();
        let first = blocks.header().map_err(|error| match error {
            FormError::Garbled(_) | FormError::Cut => FormError::NoBackup,
            other => other,
        })?;
        let first = first.ok_or(FormError::NoBackup)?;
        let id = own_name(&first).filter(|(_, name)| *name == HEAD).map(|(id, _)| id).ok_or(FormError::NoBackup)?;
        let text = blocks.own(&first, HEAD_BYTES_MAX, &mut sums)?;
        let head = understood(&text)?;
        let second = blocks.header()?.ok_or(FormError::Cut)?;
        if own_name(&second) != Some((id.clone(), KEYS)) {
            return Err(FormError::Garbled(KEYS));
        }
        let keys = blocks.own(&second, KEYS_BYTES_MAX, &mut sums)?;
        sums.keys = lines(&keys);
        Ok(Reader { blocks, id, sums, head, keys })
    }

    /// Hands on the tree as a tar stream and says whether it is whole. An error of `out` stays as it is.
    pub fn tree(mut self, mut out: impl FnMut(&[u8]) -> io::Result<()>) -> Result<End, FormError> {
        loop {
            let header = self.blocks.header()?.ok_or(FormError::Cut)?;
            if own_name(&header) == Some((self.id.clone(), END)) {
                let found = self.sums.end();
                let text = self.blocks.own(&header, END_BYTES_MAX, &mut Sums::default())?;
                let made: End = serde_json::from_slice(&text).map_err(|_| FormError::Garbled(END))?;
                same(&made, &found)?;
                out(&[0; 2 * BLOCK]).map_err(FormError::Write)?;
                return Ok(made);
            }
            self.sums.entries += u64::from(is_counted(&header));
            self.sums.take(header.as_bytes());
            out(header.as_bytes()).map_err(FormError::Write)?;
            let (sums, length) = (&mut self.sums, length(&header)?);
            self.blocks.content(length, |bytes| {
                sums.take(bytes);
                out(bytes).map_err(FormError::Write)
            })?;
        }
    }
}

fn understood(text: &[u8]) -> Result<Head, FormError> {
    #[derive(Deserialize)]
    struct Form {
        format: u32,
    }
    match serde_json::from_slice(text) {
        Ok(Form { format }) if format > FORMAT => Err(FormError::Later(format)),
        _ => serde_json::from_slice(text).map_err(|_| FormError::Garbled("the description in it")),
    }
}

fn same(made: &End, found: &End) -> Result<(), FormError> {
    let parts = [
        ("the number of files", made.entries.to_string(), found.entries.to_string()),
        ("the number of keys", made.keys.to_string(), found.keys.to_string()),
        ("its length", made.bytes.to_string(), found.bytes.to_string()),
        ("its SHA-256", made.sha256.clone(), found.sha256.clone()),
    ];
    match parts.into_iter().find(|(_, made, found)| made != found) {
        Some((what, made, found)) => Err(FormError::Damaged { what, made, found }),
        None => Ok(()),
    }
}

/// An archive, block by block.
struct Blocks<R> {
    source: R,
}

impl<R: Read> Blocks<R> {
    /// None: the archive ends here.
    fn header(&mut self) -> Result<Option<Header>, FormError> {
        let mut header = Header::new_old();
        self.fill(header.as_mut_bytes())?;
        if header.as_bytes().iter().all(|byte| *byte == 0) {
            return Ok(None);
        }
        let mut right = header.clone();
        right.set_cksum();
        match (header.cksum(), right.cksum()) {
            (Ok(told), Ok(sum)) if told == sum => Ok(Some(header)),
            _ => Err(FormError::Garbled("a part of it")),
        }
    }

    /// `length` bytes, and what fills the last block.
    fn content(&mut self, length: u64, mut each: impl FnMut(&[u8]) -> Result<(), FormError>) -> Result<(), FormError> {
        let mut buffer = [0; 64 << 10];
        let mut left = padded(length).ok_or(FormError::Garbled("a length"))?;
        while left > 0 {
            let part = usize::try_from(left).unwrap_or(usize::MAX).min(buffer.len());
            let Some(part) = buffer.get_mut(..part) else { return Err(FormError::Cut) };
            self.fill(part)?;
            left -= part.len() as u64;
            each(part)?;
        }
        Ok(())
    }

    /// One of the archive's own files.
    fn own(&mut self, header: &Header, bytes_max: u64, sums: &mut Sums) -> Result<Vec<u8>, FormError> {
        let length = length(header)?;
        if length > bytes_max {
            return Err(FormError::Garbled("a length"));
        }
        sums.take(header.as_bytes());
        let mut text = Vec::new();
        self.content(length, |bytes| {
            sums.take(bytes);
            text.extend_from_slice(bytes);
            Ok(())
        })?;
        text.truncate(usize::try_from(length).unwrap_or(usize::MAX));
        Ok(text)
    }

    fn fill(&mut self, buffer: &mut [u8]) -> Result<(), FormError> {
        self.source.read_exact(buffer).map_err(|cause| match cause.kind() {
            io::ErrorKind::UnexpectedEof => FormError::Cut,
            _ => FormError::Read(cause),
        })
    }
}

fn length(header: &Header) -> Result<u64, FormError> {
    header.entry_size().map_err(|_| FormError::Garbled("a length"))
}

fn padded(length: u64) -> Option<u64> {
    length.checked_next_multiple_of(BLOCK as u64)
}

fn lines(bytes: &[u8]) -> u64 {
    bytes.iter().filter(|byte| **byte == b'\n').count() as u64
}

/// Long names and times have entries of their own, beside the file's.
fn is_counted(header: &Header) -> bool {
    !matches!(
        header.entry_type(),
        EntryType::GNULongName | EntryType::GNULongLink | EntryType::XHeader | EntryType::XGlobalHeader
    )
}

/// Of which archive, and which of its own files.
fn own_name(header: &Header) -> Option<(String, &'static str)> {
    let path = header.path_bytes();
    let (id, name) = std::str::from_utf8(&path).ok()?.strip_prefix(PREFIX)?.split_once('/')?;
    let is_id = id.len() == ID_BYTES && id.bytes().all(|byte| byte.is_ascii_hexdigit());
    let name = [HEAD, KEYS, END].into_iter().find(|known| *known == name)?;
    is_id.then(|| (id.to_owned(), name))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn head() -> Head {
        let dc = serde_json::from_value(serde_json::json!({ "name": "shop", "nodes": ["n1"] })).unwrap();
        Head { format: FORMAT, release: "0.0.0".to_owned(), made_s: 7, dc, point: None, since: None }
    }

    /// With a name that only GNU's form has room for.
    fn tree() -> Vec<u8> {
        let mut archive = tar::Builder::new(Vec::new());
        archive.append_dir("./", ".").unwrap();
        for (name, content) in [("a".to_owned(), vec![1; 700]), ("d/".repeat(120) + "b", Vec::new())] {
            let mut header = Header::new_gnu();
            header.set_size(content.len() as u64);
            archive.append_data(&mut header, name, content.as_slice()).unwrap();
        }
        archive.into_inner().unwrap()
    }

    fn made() -> Vec<u8> {
        let mut out = Vec::new();
        let mut maker = Maker::begin(&mut out, 0xab, &head(), b"{}\n{}\n").unwrap();
        maker.tree(tree().as_slice()).unwrap();
        let end = maker.finish().unwrap();
        assert_eq!((end.entries, end.keys), (3, 2));
        out
    }

    fn taken(archive: &[u8]) -> Result<(Vec<u8>, Head), FormError> {
        let reader = Reader::begin(archive)?;
        let (head, mut tree) = (reader.head.clone(), Vec::new());
        reader.tree(|bytes| {
            tree.extend_from_slice(bytes);
            Ok(())
        })?;
        Ok((tree, head))
    }

    #[test]
    fn what_was_packed_is_there_again() {
        assert_eq!(Reader::begin(made().as_slice()).unwrap().keys, b"{}\n{}\n");
        let (found, of) = taken(&made()).unwrap();
        assert_eq!((found, of), (tree(), head()));
        let names: Vec<_> = tar::Archive::new(made().as_slice())
            .entries()
            .unwrap()
            .map(|entry| entry.unwrap().path().unwrap().to_string_lossy().into_owned())
            .collect();
        assert_eq!((names.len(), names[0].as_str()), (6, ".dvs-backup-00000000000000ab/container.json"));
    }

    #[test]
    fn every_cut_and_every_flipped_bit_is_noticed() {
        let whole = made();
        // What fills up after the last entry says nothing.
        let end = whole.len() - 2 * BLOCK;
        for length in (0..end).step_by(97).chain([end - BLOCK]) {
            assert!(taken(&whole[..length]).is_err(), "{length} bytes");
        }
        let said = 3 * BLOCK..end - 2 * BLOCK;
        for at in said.step_by(41) {
            let mut flipped = whole.clone();
            flipped[at] ^= 4;
            assert!(taken(&flipped).is_err(), "byte {at}");
        }
    }

    #[test]
    fn what_is_no_backup_is_told_from_one_of_a_later_release() {
        assert!(matches!(taken(&tree()), Err(FormError::NoBackup)));
        assert!(matches!(taken(b"no"), Err(FormError::NoBackup)));
        assert!(matches!(taken(&[0; 4096]), Err(FormError::NoBackup)));
        let later = String::from_utf8_lossy(&made()).replacen("\"format\": 2", "\"format\": 3", 1).into_bytes();
        assert!(matches!(taken(&later), Err(FormError::Later(3))));
    }

    #[test]
    fn file_of_the_tree_with_such_a_name_is_a_file_of_the_tree() {
        let mut archive = tar::Builder::new(Vec::new());
        let mut header = Header::new_gnu();
        header.set_size(0);
        archive.append_data(&mut header, ".dvs-backup-00000000000000ac/end.json", io::empty()).unwrap();
        let tree = archive.into_inner().unwrap();
        let mut out = Vec::new();
        let mut maker = Maker::begin(&mut out, 0xab, &head(), b"{}\n{}\n").unwrap();
        maker.tree(tree.as_slice()).unwrap();
        maker.finish().unwrap();
        assert_eq!(taken(&out).unwrap().0, tree);
    }
}
