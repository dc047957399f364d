//! Walks the whole volume, its snapshots too, and says what does not fit together. For tests and for people who fear
//! the worst; operations must not run meanwhile.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use vos_api::fs::ROOT;

use crate::alloc::Bitmap;
use crate::base::Base;
use crate::core::Fs;
use crate::device::{BLOCK, BLOCK64};
use crate::error::Errno;
use crate::extents::{WINDOW_BLOCKS, Window};
use crate::model::{CookieEntry, Entry, Inode, key_name, key1, number_of, tag, window_of};
use crate::quotas::{self, Recount, quotas_from};
use crate::store::{From, Key};

/// Something that is not as it should be, in words.
pub type Finding = String;

const SCAN_ENTRIES: usize = 1024;
const FINDINGS_MAX: usize = 100;

/// Whether the data itself is read and compared with its checksums.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Depth {
    Metadata,
    Data,
}

/// The tree as it is, or as it was for a snapshot.
struct View<'a> {
    fs: &'a Fs,
    base: Arc<Base>,
    at: Option<u64>,
}

impl View<'_> {
    fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, Errno> {
        Ok(match self.at {
            Some(id) => self.base.get_at(id, key)?,
            None => self.fs.store.get(key)?,
        })
    }

    fn inode(&self, ino: u64) -> Result<Option<Inode>, Errno> {
        Ok(self.get(&key1(tag::INODE, ino))?.map(|bytes| Inode::decode(&bytes)).transpose()?)
    }

    fn entry(&self, parent: u64, name: &[u8]) -> Result<Option<Entry>, Errno> {
        Ok(self.get(&key_name(tag::ENTRY, parent, name))?.map(|bytes| Entry::decode(&bytes)).transpose()?)
    }

    fn each(&self, tag: u8, mut take: impl FnMut(&Key, &[u8]) -> Result<(), Errno>) -> Result<(), Errno> {
        let (mut from, to) = (vec![tag], vec![tag + 1]);
        loop {
            let found = match self.at {
                Some(id) => self.base.scan_at(id, &from, &to, SCAN_ENTRIES)?,
                None => self.fs.store.scan(&from, &to, SCAN_ENTRIES, From::Start)?,
            };
            for (key, value) in &found {
                take(key, value)?;
            }
            match found.last() {
                Some((last, _)) if found.len() == SCAN_ENTRIES => {
                    from = last.clone();
                    from.push(0);
                }
                _ => return Ok(()),
            }
        }
    }

    /// Whether nobody else is given the block.
    fn has(&self, block: u64) -> bool {
        let blocks = self.fs.blocks.lock();
        if self.at.is_some() { blocks.is_held(block) } else { blocks.is_owned(block) }
    }
}

struct Walk {
    inodes: BTreeMap<u64, Inode>,
    /// Names that lead to an inode.
    names: HashMap<u64, u32>,
    /// Subdirectories of a directory, and its entries.
    subdirectories: HashMap<u64, u32>,
    entries: HashMap<u64, u64>,
    cookies: HashMap<u64, u64>,
    handles: HashMap<u64, u32>,
    orphans: Vec<u64>,
    /// Blocks of files that count as theirs: a bit each, since volumes have very many.
    blocks: Bitmap,
    /// Those that were met again, with whose they are; who was first is looked for once all are known.
    again: BTreeMap<u64, BTreeSet<u64>>,
    used: HashMap<u64, u64>,
    findings: Vec<Finding>,
}

/// How much there is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Census {
    /// Files, directories and whatever has a name, or is open.
    pub inodes: u64,
    pub snapshots: u64,
    /// Bytes of blocks that files have.
    pub bytes: u64,
}

impl Fs {
    pub fn census(&self) -> Census {
        let bytes = self.blocks.lock().owned_blocks() * BLOCK64;
        Census { inodes: self.counters().inodes, snapshots: self.store.base().living().count() as u64, bytes }
    }

    /// Empty when all is well.
    pub fn check(&self, depth: Depth) -> Result<Vec<Finding>, Errno> {
        let base = self.store.base();
        let now = View { fs: self, base: base.clone(), at: None };
        let mut walk = Walk::of(self);
        for tag in [tag::INODE, tag::ENTRY, tag::COOKIE, tag::HANDLE, tag::ORPHAN, tag::EXTENTS] {
            now.each(tag, |key, value| walk.take(&now, depth, tag, key, value))?;
        }
        walk.name_owners(&now)?;
        walk.compare_inodes(&now);
        walk.compare_space(self);
        walk.compare_quotas(self)?;
        let counted = walk.inodes.len() as u64;
        if self.counters().inodes != counted {
            walk.find(format!("{} inodes are counted, {counted} are there", self.counters().inodes));
        }
        let mut findings = walk.findings;
        for snapshot in base.living() {
            let (view, mut walk) = (View { fs: self, base: base.clone(), at: Some(snapshot.id) }, Walk::of(self));
            for tag in [tag::INODE, tag::ENTRY, tag::COOKIE, tag::EXTENTS] {
                view.each(tag, |key, value| walk.take(&view, depth, tag, key, value))?;
            }
            walk.name_owners(&view)?;
            walk.compare_inodes(&view);
            let name = String::from_utf8_lossy(&snapshot.name);
            findings.extend(walk.findings.iter().map(|finding| format!("snapshot {name}: {finding}")));
        }
        findings.truncate(FINDINGS_MAX);
        Ok(findings)
    }
}

impl Walk {
    fn of(fs: &Fs) -> Walk {
        Walk {
            inodes: BTreeMap::new(),
            names: HashMap::new(),
            subdirectories: HashMap::new(),
            entries: HashMap::new(),
            cookies: HashMap::new(),
            handles: HashMap::new(),
            orphans: Vec::new(),
            blocks: Bitmap::new(fs.blocks.lock().numbers()),
            again: BTreeMap::new(),
            used: HashMap::new(),
            findings: Vec::new(),
        }
    }

    fn find(&mut self, finding: Finding) {
        if self.findings.len() < FINDINGS_MAX {
            self.findings.push(finding);
        }
    }

    fn take(&mut self, view: &View<'_>, depth: Depth, tag: u8, key: &Key, value: &[u8]) -> Result<(), Errno> {
        let first = number_of(key, 0).ok_or(Errno::Io)?;
        match tag {
            tag::INODE => _ = self.inodes.insert(first, Inode::decode(value)?),
            tag::ENTRY => self.take_entry(view, first, key.get(9..).unwrap_or_default(), Entry::decode(value)?)?,
            tag::COOKIE => {
                *self.cookies.entry(first).or_default() += 1;
                let entry = CookieEntry::decode(value)?;
                let cookie = number_of(key, 1).ok_or(Errno::Io)?;
                let named = view.entry(first, &entry.name)?;
                if named != Some(Entry { ino: entry.ino, cookie, kind: entry.kind }) {
                    self.find(format!("cookie {cookie} of directory {first} and its entry differ"));
                }
            }
            tag::HANDLE => {
                let ino = u64::from_le_bytes(value.try_into().map_err(|_| Errno::Io)?);
                *self.handles.entry(ino).or_default() += 1;
            }
            tag::ORPHAN => self.orphans.push(first),
            _ => self.take_window(view, depth, first, window_of(key).ok_or(Errno::Io)?, &Window::decode(value)?)?,
        }
        Ok(())
    }

    fn take_entry(&mut self, view: &View<'_>, parent: u64, name: &[u8], entry: Entry) -> Result<(), Errno> {
        *self.names.entry(entry.ino).or_default() += 1;
        *self.entries.entry(parent).or_default() += 1;
        let text = String::from_utf8_lossy(name).into_owned();
        match view.inode(entry.ino)? {
            Some(inode) if inode.kind() != entry.kind => self.find(format!("'{text}' in {parent} has the wrong kind")),
            Some(inode) if inode.is_dir() => {
                *self.subdirectories.entry(parent).or_default() += 1;
                if inode.parent != parent {
                    self.find(format!("directory {} says its parent is {}, not {parent}", entry.ino, inode.parent));
                }
            }
            Some(_) => (),
            None => self.find(format!("'{text}' in {parent} leads to no inode ({})", entry.ino)),
        }
        Ok(())
    }

    fn take_window(
        &mut self,
        view: &View<'_>,
        depth: Depth,
        ino: u64,
        number: u64,
        window: &Window,
    ) -> Result<(), Errno> {
        let Some(bytes) = self.inodes.get(&ino).map(|inode| inode.bytes) else {
            self.find(format!("extents of inode {ino}, which is not there"));
            return Ok(());
        };
        let end = bytes.div_ceil(BLOCK64);
        for (at, place) in window.places.iter().enumerate() {
            let Some(place) = place else { continue };
            *self.used.entry(ino).or_default() += 1;
            let position = number * WINDOW_BLOCKS + at as u64;
            if position >= end {
                self.find(format!("inode {ino} has a block at {position}, behind its end"));
            }
            if !view.has(place.block) {
                self.find(format!("block {} of inode {ino} counts as free", place.block));
            } else if !self.blocks.set(place.block) && self.again.len() < FINDINGS_MAX {
                self.again.entry(place.block).or_default();
            }
            if depth == Depth::Data {
                let mut data = [0; BLOCK];
                view.fs.device.read(view.fs.layout.data_offset(place.block), &mut data)?;
                if crc32fast::hash(&data) != place.crc {
                    self.find(format!("block {} of inode {ino} has a wrong checksum", place.block));
                }
                let used = (bytes % BLOCK64) as usize;
                if position + 1 == end && used != 0 && data.iter().skip(used).any(|byte| *byte != 0) {
                    self.find(format!("inode {ino} has remains behind its end"));
                }
            }
        }
        Ok(())
    }

    /// Whose blocks are that were met more than once.
    fn name_owners(&mut self, view: &View<'_>) -> Result<(), Errno> {
        if self.again.is_empty() {
            return Ok(());
        }
        let again = &mut self.again;
        view.each(tag::EXTENTS, |key, value| {
            let ino = number_of(key, 0).ok_or(Errno::Io)?;
            for place in Window::decode(value)?.places.iter().flatten() {
                if let Some(owners) = again.get_mut(&place.block) {
                    owners.insert(ino);
                }
            }
            Ok(())
        })?;
        for (block, owners) in std::mem::take(&mut self.again) {
            let owners: Vec<String> = owners.iter().map(u64::to_string).collect();
            match &owners[..] {
                [one] => self.find(format!("block {block} is in inode {one} more than once")),
                several => self.find(format!("block {block} belongs to inodes {}", several.join(" and "))),
            }
        }
        Ok(())
    }

    fn compare_inodes(&mut self, view: &View<'_>) {
        let inodes = std::mem::take(&mut self.inodes);
        for (ino, inode) in &inodes {
            let names = self.names.get(ino).copied().unwrap_or(0) + u32::from(*ino == ROOT);
            let links = match inode.is_dir() && names > 0 {
                true => 2 + self.subdirectories.get(ino).copied().unwrap_or(0),
                false => names,
            };
            let facts = [
                ("links", u64::from(inode.links), u64::from(links)),
                ("blocks", inode.blocks, self.used.get(ino).copied().unwrap_or(0)),
                ("entries", inode.entries, self.entries.get(ino).copied().unwrap_or(0)),
                ("cookies", inode.entries, self.cookies.get(ino).copied().unwrap_or(0)),
            ];
            for (what, said, found) in facts {
                if said != found {
                    self.find(format!("inode {ino} says {what} {said}, found {found}"));
                }
            }
            // Snapshots do not say who has what open.
            if view.at.is_none() {
                let opens = self.handles.get(ino).copied().unwrap_or(0);
                if inode.opens != opens {
                    self.find(format!("inode {ino} says opens {}, found {opens}", inode.opens));
                }
                if (links == 0) != self.orphans.contains(ino) {
                    self.find(format!("inode {ino} with {links} links is on the wrong side of the orphans"));
                }
            }
            if inode.is_dir() && names > 1 {
                self.find(format!("directory {ino} has {names} names"));
            }
            self.check_reachable(&inodes, *ino, inode);
        }
        self.inodes = inodes;
    }

    fn check_reachable(&mut self, inodes: &BTreeMap<u64, Inode>, ino: u64, inode: &Inode) {
        if !inode.is_dir() || inode.links == 0 {
            return;
        }
        let mut at = ino;
        for _ in 0..=inodes.len() {
            match inodes.get(&at) {
                _ if at == ROOT => return,
                Some(directory) => at = directory.parent,
                None => break,
            }
        }
        self.find(format!("directory {ino} does not hang on the root"));
    }

    fn compare_quotas(&mut self, fs: &Fs) -> Result<(), Errno> {
        let mut recount = Recount::default();
        self.inodes.values().for_each(|inode| recount.add(inode));
        for (number, quota) in quotas_from(&fs.store, 0, quotas::COUNT_MAX)? {
            let used = recount.used(number);
            if used != quota.used {
                self.find(format!("quota {number} says {:?} are used, found {used:?}", quota.used));
            }
            match self.inodes.get(&quota.directory) {
                Some(inode) if inode.is_dir() && inode.quota == number => {}
                _ => self.find(format!("quota {number} is of {}, which does not count with it", quota.directory)),
            }
            // Whoever is below one counts with it, unless it has another name.
            let is_astray = |inode: &Inode| {
                let above = self.inodes.get(&inode.parent).map_or(0, |parent| parent.quota);
                inode.is_dir() && inode.links > 0 && above == number && inode.quota != number
            };
            if quota.is_counted && self.inodes.values().any(is_astray) {
                self.find(format!("a directory below {} does not count with quota {number}", quota.directory));
            }
        }
        Ok(())
    }

    fn compare_space(&mut self, fs: &Fs) {
        let owned = fs.blocks.lock().owned_blocks();
        let used = self.blocks.count();
        if owned != used {
            self.find(format!("{owned} blocks count as used, {used} are"));
        }
    }
}
