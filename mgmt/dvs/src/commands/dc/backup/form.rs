//! The form of a container's backup: a tar archive that says at its begin whose it is, at its end whether it is whole.
//!
//! ```text
//! .dvs-backup-ID/container.json    Head
//! .dvs-backup-ID/keys.jsonl        the key-value store: what `dvs ds pipe` takes
//! .dvs-backup-ID/disks/NAME/…      of each further disk: see `disks`
//! ./ …                             the tree; or what changed in it, where `Head` says since when
//! .dvs-backup-ID/end.json          End
//! ```
//!
//! ID is random, so nothing in the tree can be called so. Whatever reads tar shows it and unpacks it.

use std::collections::BTreeMap;
use std::io::{self, Read, Write};

use mgmt_api::DcSpec;
use mgmt_api::content::EXTENT_BYTES;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use tar::{EntryType, Header};

use super::disks::{DiskFile, DiskHead, DiskPart, DiskReading, DiskSums, DiskWriting};

/// Of this file's form; a later one is refused.
pub const FORMAT: u32 = 3;
/// That of an archive without disks, which earlier releases understand.
const FORMAT_CHANGES: u32 = 2;
/// Likewise, with all files.
const FORMAT_WHOLE: u32 = 1;
const BLOCK: usize = 512;
const ID_BYTES: usize = 16;
const PREFIX: &str = ".dvs-backup-";
const HEAD: &str = "container.json";
const KEYS: &str = "keys.jsonl";
const END: &str = "end.json";
const DISKS: &str = "disks";
const DISK_HEAD: &str = "disk.json";
const DISK_SUMS: &str = "sums";
/// Of an extent's name: its offset.
const OFFSET_DIGITS: usize = 16;
/// A description has at most 6 MiB as TOML.
const HEAD_BYTES_MAX: u64 = 16 << 20;
const KEYS_BYTES_MAX: u64 = 1 << 30;
const END_BYTES_MAX: u64 = 4096;
const DISK_HEAD_BYTES_MAX: u64 = 4096;
/// 25 TiB that are not zeros.
const DISK_SUMS_BYTES_MAX: u64 = 1 << 30;

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
    /// Names of the disks whose content is in it, in their order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub disks: Vec<String>,
}

impl Head {
    /// The oldest form in which all of it can be said.
    pub fn demanded_format(&self) -> u32 {
        match (self.disks.is_empty(), &self.since) {
            (false, _) => FORMAT,
            (true, Some(_)) => FORMAT_CHANGES,
            (true, None) => FORMAT_WHOLE,
        }
    }
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
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[cfg_attr(test, schemars(rename = "BackupEnd"))]
pub struct End {
    /// Files and directories of the tree.
    pub entries: u64,
    /// Of the store.
    pub keys: u64,
    /// Besides the one of the tree.
    #[serde(default, skip_serializing_if = "is_none")]
    pub disks: u64,
    /// Of the archive, up to the entry that has this.
    pub bytes: u64,
    pub sha256: String,
}

fn is_none(count: &u64) -> bool {
    *count == 0
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
    #[error("what it has of disk '{disk}' cannot be: {why}")]
    BadDisk { disk: String, why: &'static str },
    #[error("the content of disk '{disk}' did not come whole")]
    Content {
        disk: String,
        #[source]
        cause: io::Error,
    },
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
    disks: u64,
}

impl Sums {
    fn take(&mut self, bytes: &[u8]) {
        self.digest.update(bytes);
        self.bytes += bytes.len() as u64;
    }

    fn end(&self) -> End {
        let digest = self.digest.clone().finalize();
        let sha256 = digest.iter().map(|byte| format!("{byte:02x}")).collect();
        End { entries: self.entries, keys: self.keys, disks: self.disks, bytes: self.bytes, sha256 }
    }
}

/// Makes an archive.
pub struct Maker<W> {
    out: W,
    id: String,
    made_s: u64,
    sums: Sums,
    /// Disks that are of no one moment.
    pub blurred_disks: Vec<String>,
}

impl<W: Write> Maker<W> {
    /// `keys`: a line each.
    pub fn begin(out: W, id: u64, head: &Head, keys: &[u8]) -> Result<Maker<W>, FormError> {
        let (id, made_s) = (format!("{id:0width$x}", width = ID_BYTES), head.made_s);
        let mut maker = Maker { out, id, made_s, sums: Sums::default(), blurred_disks: Vec::new() };
        let text = serde_json::to_vec_pretty(head).map_err(|_| FormError::Garbled("the description"))?;
        maker.sums.keys = lines(keys);
        maker.own(HEAD, &text)?;
        maker.own(KEYS, keys)?;
        Ok(maker)
    }

    /// What a disk holds, as `mgmt_api::content`; of that what is not as `earlier` has it.
    pub fn disk(
        &mut self,
        name: &str,
        bytes: u64,
        source: impl Read,
        earlier: &DiskSums,
    ) -> Result<DiskSums, FormError> {
        self.sums.disks += 1;
        let file = |file: &str| format!("{DISKS}/{name}/{file}");
        let extent = |offset: u64| file(&format!("{offset:0width$x}", width = OFFSET_DIGITS));
        let mut writing = DiskWriting::begin(name, bytes, source)?;
        let head = DiskHead { bytes, is_of_one_moment: writing.is_of_one_moment };
        self.blurred_disks.extend((!head.is_of_one_moment).then(|| name.to_owned()));
        self.own(&file(DISK_HEAD), &serde_json::to_vec(&head).map_err(|_| FormError::Garbled(DISK_HEAD))?)?;
        while let Some((at, digest)) = writing.next_extent()? {
            if earlier.get(&at) != Some(&digest) {
                writing.runs().try_for_each(|(offset, data)| self.own(&extent(offset), data))?;
            }
        }
        let sums = writing.finish();
        for at in earlier.keys().filter(|at| !sums.contains_key(at)) {
            if at.saturating_mul(EXTENT_BYTES) < bytes {
                self.own(&extent(at * EXTENT_BYTES), &[])?;
            }
        }
        self.own(
            &file(DISK_SUMS),
            &sums.iter().flat_map(|(at, digest)| [&at.to_le_bytes()[..], digest].concat()).collect::<Vec<u8>>(),
        )?;
        Ok(sums)
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
        let mut blocks = Blocks::of(source);
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
    disks_are_read: bool,
    /// Of those that were read, which are of no one moment.
    pub blurred_disks: Vec<String>,
}

/// Of each disk, by its name.
pub type AllSums = BTreeMap<String, DiskSums>;

impl<R: Read> Reader<R> {
    pub fn begin(source: R) -> Result<Reader<R>, FormError> {
        let mut blocks = Blocks::of(source);
        let mut sums = Sums::default();
        let first = blocks.header().map_err(|error| match error {
            FormError::Garbled(_) | FormError::Cut => FormError::NoBackup,
            other => other,
        })?;
        let first = first.ok_or(FormError::NoBackup)?;
        let id =
            own_name(&first).filter(|(_, name)| *name == OwnFile::Head).map(|(id, _)| id).ok_or(FormError::NoBackup)?;
        let text = blocks.own(&first, HEAD_BYTES_MAX, &mut sums)?;
        let head = understood(&text)?;
        let second = blocks.header()?.ok_or(FormError::Cut)?;
        if own_name(&second) != Some((id.clone(), OwnFile::Keys)) {
            return Err(FormError::Garbled(KEYS));
        }
        let keys = blocks.own(&second, KEYS_BYTES_MAX, &mut sums)?;
        sums.keys = lines(&keys);
        Ok(Reader { blocks, id, sums, head, keys, disks_are_read: false, blurred_disks: Vec::new() })
    }

    /// Hands on what is on the disks, and answers their sums, for the backup that follows this one. `earlier`: of the
    /// one before; without it what did not change since then is taken for right.
    pub fn disks(
        &mut self,
        earlier: Option<&AllSums>,
        mut each: impl FnMut(DiskPart<'_>) -> io::Result<()>,
    ) -> Result<AllSums, FormError> {
        let mut all = AllSums::new();
        self.disks_are_read = true;
        for name in self.head.disks.clone() {
            let bad = |why| FormError::BadDisk { disk: name.clone(), why };
            let further = self.head.dc.disks.iter().skip(1).find(|disk| disk.name == name);
            let bytes = further.ok_or_else(|| bad("the description has no such disk"))?.bytes;
            let head = self.disk_file(&name)?;
            let (DiskFile::Head, header) = head else { return Err(bad("it does not begin")) };
            let text = self.blocks.own(&header, DISK_HEAD_BYTES_MAX, &mut self.sums)?;
            let head: DiskHead = serde_json::from_slice(&text).map_err(|_| bad("its begin cannot be understood"))?;
            if head.bytes != bytes || all.contains_key(&name) {
                return Err(bad("its length is not that of the description, or it comes twice"));
            }
            self.blurred_disks.extend((!head.is_of_one_moment).then(|| name.clone()));
            each(DiskPart::Begin { name: &name, bytes }).map_err(FormError::Write)?;
            let known = earlier.map(|earlier| earlier.get(&name).cloned().unwrap_or_default());
            let mut reading = DiskReading::begin(&name, bytes, known);
            loop {
                let (file, header) = self.disk_file(&name)?;
                match file {
                    DiskFile::Extent(offset) => {
                        let data = self.blocks.own(&header, EXTENT_BYTES, &mut self.sums)?;
                        reading.take(offset, data, &mut each)?;
                    }
                    DiskFile::Sums => {
                        let sums = self.blocks.own(&header, DISK_SUMS_BYTES_MAX, &mut self.sums)?;
                        all.insert(name.clone(), reading.finish(&sums, &mut each)?);
                        break;
                    }
                    DiskFile::Head => return Err(bad("it begins twice")),
                }
            }
            self.sums.disks += 1;
            each(DiskPart::End).map_err(FormError::Write)?;
        }
        Ok(all)
    }

    fn disk_file(&mut self, disk: &str) -> Result<(DiskFile, Header), FormError> {
        let header = self.blocks.header()?.ok_or(FormError::Cut)?;
        match own_name(&header) {
            Some((id, OwnFile::Disk(name, file))) if id == self.id && name == disk => Ok((file, header)),
            _ => Err(FormError::BadDisk { disk: disk.to_owned(), why: "something else is in its place" }),
        }
    }

    /// Hands on the tree as a tar stream and says whether it is whole. An error of `out` stays as it is.
    pub fn tree(mut self, mut out: impl FnMut(&[u8]) -> io::Result<()>) -> Result<End, FormError> {
        if !self.disks_are_read {
            self.disks(None, |_| Ok(()))?;
        }
        loop {
            let header = self.blocks.header()?.ok_or(FormError::Cut)?;
            if own_name(&header) == Some((self.id.clone(), OwnFile::End)) {
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
        ("the number of disks", made.disks.to_string(), found.disks.to_string()),
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
    fn of(source: R) -> Blocks<R> {
        Blocks { source }
    }

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

/// A file of the archive itself.
#[derive(PartialEq, Eq)]
enum OwnFile {
    Head,
    Keys,
    Disk(String, DiskFile),
    End,
}

/// Of which archive, and which of its own files.
fn own_name(header: &Header) -> Option<(String, OwnFile)> {
    let path = header.path_bytes();
    let (id, name) = std::str::from_utf8(&path).ok()?.strip_prefix(PREFIX)?.split_once('/')?;
    let is_id = id.len() == ID_BYTES && id.bytes().all(|byte| byte.is_ascii_hexdigit());
    let file = match name {
        HEAD => OwnFile::Head,
        KEYS => OwnFile::Keys,
        END => OwnFile::End,
        name => {
            let (disk, file) = name.strip_prefix(DISKS)?.strip_prefix('/')?.split_once('/')?;
            let file = match file {
                DISK_HEAD => DiskFile::Head,
                DISK_SUMS => DiskFile::Sums,
                // As a number is written: `+` is none of its digits.
                offset if offset.len() == OFFSET_DIGITS && offset.bytes().all(|byte| byte.is_ascii_hexdigit()) => {
                    DiskFile::Extent(u64::from_str_radix(offset, 16).ok()?)
                }
                _ => return None,
            };
            OwnFile::Disk(disk.to_owned(), file)
        }
    };
    is_id.then(|| (id.to_owned(), file))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn head() -> Head {
        let dc = serde_json::from_value(serde_json::json!({ "name": "shop", "nodes": ["n1"] })).unwrap();
        let disks = Vec::new();
        Head { format: FORMAT_CHANGES, release: "0.0.0".to_owned(), made_s: 7, dc, point: None, since: None, disks }
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
        let later = String::from_utf8_lossy(&made()).replacen("\"format\": 2", "\"format\": 4", 1).into_bytes();
        assert!(matches!(taken(&later), Err(FormError::Later(4))));
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

    // ---- disks

    const MIB: u64 = 1 << 20;

    /// With further disks of two and a half extents.
    fn head_with_disks(names: &[&str]) -> Head {
        let disk = |name: &str| serde_json::json!({ "name": name, "bytes": 2 * MIB + (MIB >> 1) });
        let disks: Vec<_> = ["root"].iter().chain(names).map(|name| disk(name)).collect();
        let dc = serde_json::json!({ "name": "shop", "nodes": ["n1"], "disks": disks });
        let names = names.iter().map(|name| (*name).to_owned()).collect();
        Head { format: FORMAT, dc: serde_json::from_value(dc).unwrap(), disks: names, ..head() }
    }

    /// As a node sends it: runs of bytes, at their offsets.
    fn content(runs: &[(u64, u8, usize)]) -> Vec<u8> {
        use mgmt_api::content::{end, head, piece};
        let runs =
            runs.iter().flat_map(|(at, byte, length)| [&piece(*at, *length)[..], &vec![*byte; *length]].concat());
        head(2 * MIB + (MIB >> 1), true).into_iter().chain(runs).chain(end()).collect()
    }

    fn with_disk(runs: &[(u64, u8, usize)], earlier: &DiskSums) -> (Vec<u8>, DiskSums) {
        let mut out = Vec::new();
        let mut maker = Maker::begin(&mut out, 0xab, &head_with_disks(&["data"]), b"").unwrap();
        let sums = maker.disk("data", 2 * MIB + (MIB >> 1), content(runs).as_slice(), earlier).unwrap();
        maker.tree(tree().as_slice()).unwrap();
        assert_eq!(maker.finish().unwrap().disks, 1);
        (out, sums)
    }

    /// A disk, on which the parts are put.
    fn put(archive: &[u8], earlier: Option<&AllSums>, disk: &mut [u8]) -> Result<AllSums, FormError> {
        let mut reader = Reader::begin(archive)?;
        let sums = reader.disks(earlier, |part| {
            if let DiskPart::Extent { offset, bytes, runs } = part {
                disk[offset as usize..][..bytes as usize].fill(0);
                runs.iter().for_each(|(at, data)| disk[*at as usize..][..data.len()].copy_from_slice(data));
            }
            Ok(())
        })?;
        assert_eq!(reader.tree(|_| Ok(()))?.disks, 1);
        Ok(sums)
    }

    fn filled(runs: &[(u64, u8, usize)]) -> Vec<u8> {
        let mut disk = vec![0; (2 * MIB + (MIB >> 1)) as usize];
        runs.iter().for_each(|(at, byte, length)| disk[*at as usize..][..*length].fill(*byte));
        disk
    }

    #[test]
    fn disk_comes_back_and_a_later_backup_has_the_extents_that_differ() {
        let first = [(4096, 1, 4096), (64 << 10, 2, 8192), (2 * MIB, 3, (MIB >> 1) as usize)];
        let (archive, sums) = with_disk(&first, &DiskSums::new());
        assert_eq!(sums.keys().copied().collect::<Vec<_>>(), [0, 2]);
        let mut disk = filled(&[(0, 9, MIB as usize)]);
        let known = put(&archive, Some(&AllSums::new()), &mut disk).unwrap();
        assert_eq!(known["data"], sums);
        assert_eq!(disk, filled(&first));

        // One extent is as it was, one is new, one is zeros.
        let second = [(4096, 1, 4096), (64 << 10, 2, 8192), (MIB, 4, 4096)];
        let (changed, later) = with_disk(&second, &sums);
        assert!(changed.len() < archive.len());
        put(&changed, Some(&known), &mut disk).unwrap();
        assert_eq!(disk, filled(&second));
        assert_eq!(later.keys().copied().collect::<Vec<_>>(), [0, 1]);
        // Without the one before it, it is whole as far as can be known; after another one it is not.
        put(&changed, None, &mut disk).unwrap();
        assert!(matches!(put(&changed, Some(&AllSums::new()), &mut disk), Err(FormError::BadDisk { .. })));
    }

    #[test]
    fn disk_that_is_of_no_one_moment_is_named() {
        let bytes = 2 * MIB;
        for (is_of_one_moment, expected) in [(true, Vec::new()), (false, vec!["data".to_owned()])] {
            let mut head = head_with_disks(&["data"]);
            head.dc.disks[1].bytes = bytes;
            let stream = [&mgmt_api::content::head(bytes, is_of_one_moment)[..], &mgmt_api::content::end()].concat();
            let mut out = Vec::new();
            let mut maker = Maker::begin(&mut out, 0xab, &head, b"").unwrap();
            maker.disk("data", bytes, stream.as_slice(), &DiskSums::new()).unwrap();
            assert_eq!(maker.blurred_disks, expected);
            maker.finish().unwrap();
            let mut reader = Reader::begin(out.as_slice()).unwrap();
            reader.disks(None, |_| Ok(())).unwrap();
            assert_eq!(reader.blurred_disks, expected);
        }
    }

    #[test]
    fn every_flipped_bit_of_a_disk_is_noticed() {
        let (whole, _) = with_disk(&[(4096, 1, 4096), (2 * MIB, 3, 4096)], &DiskSums::new());
        for at in (3 * BLOCK..whole.len() - 4 * BLOCK).step_by(61) {
            let mut flipped = whole.clone();
            flipped[at] ^= 4;
            assert!(put(&flipped, None, &mut filled(&[])).is_err(), "byte {at}");
        }
    }

    #[test]
    fn disk_that_cannot_be_is_refused() {
        // An archive with these files of a disk.
        let made = |head: &Head, files: &[(&str, &[u8])]| {
            let mut out = Vec::new();
            let mut maker = Maker::begin(&mut out, 0xab, head, b"").unwrap();
            files.iter().for_each(|(name, content)| maker.own(&format!("{DISKS}/{name}"), content).unwrap());
            maker.sums.disks = 1;
            maker.finish().unwrap();
            out
        };
        let taken = |archive: &[u8]| {
            let mut reader = Reader::begin(archive)?;
            reader.disks(Some(&AllSums::new()), |_| Ok(()))?;
            reader.tree(|_| Ok(()))
        };
        let head = head_with_disks(&["data"]);
        let begin = serde_json::to_vec(&DiskHead { bytes: 2 * MIB + (MIB >> 1), is_of_one_moment: true }).unwrap();
        let begin = ("data/disk.json", begin.as_slice());
        let block = [1; 4096];
        let sum = |at: u64| [&at.to_le_bytes()[..], &[7; 32]].concat();
        let huge = DiskHead { bytes: u64::MAX, is_of_one_moment: false };
        let huge = serde_json::to_vec(&huge).unwrap();
        assert!(taken(&made(&head, &[begin, ("data/sums", &[])])).is_ok());
        let wrong: &[&[(&str, &[u8])]] = &[
            &[],
            &[("data/sums", &[])],
            &[("data/disk.json", b"{}")],
            &[("data/disk.json", &huge), ("data/sums", &[])],
            &[begin],
            &[begin, begin],
            &[begin, ("other/sums", &[])],
            &[begin, ("data/0000000000280000", &block), ("data/sums", &[])],
            &[begin, ("data/fffffffffffff000", &block), ("data/sums", &[])],
            &[begin, ("data/0000000000000001", &block), ("data/sums", &[])],
            &[begin, ("data/0000000000000000", &block[..100]), ("data/sums", &[])],
            &[begin, ("data/0000000000000000", &block), ("data/sums", &[])],
            &[begin, ("data/0000000000000000", &block), ("data/0000000000000000", &block), ("data/sums", &sum(0))],
            &[begin, ("data/0000000000000000", &[]), ("data/0000000000001000", &[]), ("data/sums", &[])],
            &[begin, ("data/0000000000000000", &[]), ("data/0000000000100000", &[]), ("data/0000000000000000", &[])],
            &[begin, ("data/sums", &sum(0))],
            &[begin, ("data/sums", &sum(3))],
            &[begin, ("data/sums", &sum(u64::MAX))],
            &[begin, ("data/sums", &[0; 39])],
        ];
        for files in wrong {
            let refused = taken(&made(&head, files));
            let is_told = matches!(refused, Err(FormError::BadDisk { .. }));
            assert!(is_told, "{refused:?} for {:?}", files.iter().map(|(name, _)| name).collect::<Vec<_>>());
        }
        // One that the description does not know, the tree's, and one that is told twice.
        for names in [&["other"][..], &["root"], &["data", "data"]] {
            let head =
                Head { disks: names.iter().map(|name| (*name).to_owned()).collect(), ..head_with_disks(&["data"]) };
            let begin = (&*format!("{}/disk.json", names[0]), begin.1);
            let sums = (&*format!("{}/sums", names[0]), &[][..]);
            assert!(matches!(taken(&made(&head, &[begin, sums, begin])), Err(FormError::BadDisk { .. })), "{names:?}");
        }
        // Longer than it can be.
        let mut out = Vec::new();
        let mut maker = Maker::begin(&mut out, 0xab, &head, b"").unwrap();
        maker.own(&format!("{DISKS}/data/disk.json"), begin.1).unwrap();
        maker.own(&format!("{DISKS}/data/0000000000000000"), &vec![1; 2 << 20]).unwrap();
        maker.finish().unwrap();
        assert!(matches!(taken(&out), Err(FormError::Garbled(_))));
    }

    #[test]
    fn stream_of_a_node_that_makes_no_sense_is_refused() {
        let (whole, bytes) = (content(&[(4096, 1, 4096)]), 2 * MIB + (MIB >> 1));
        let written = |source: &[u8], bytes| {
            let mut maker = Maker::begin(Vec::new(), 0xab, &head_with_disks(&["data"]), b"").unwrap();
            maker.disk("data", bytes, source, &DiskSums::new())
        };
        assert!(written(&whole, bytes).is_ok());
        assert!(written(&whole, MIB).is_err(), "it is longer than the description says");
        for length in [0, 10, 30, 50, 4100, whole.len() - 1] {
            assert!(matches!(written(&whole[..length], bytes), Err(FormError::Content { .. })), "{length}");
        }
        for twice in [[(4096, 1, 4096), (4096, 1, 4096)], [(0, 1, 8192), (4096, 1, 4096)]] {
            assert!(matches!(written(&content(&twice), bytes), Err(FormError::Content { .. })));
        }
        let back = content(&[(0, 1, 4096), (MIB, 1, 4096), (4096, 1, 4096)]);
        assert!(matches!(written(&back, bytes), Err(FormError::Content { .. })));
    }
}
