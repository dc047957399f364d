//! Reading directories. Entries come in the order of their cookies, which are given once and never again: a reader that
//! goes on after a cookie sees every entry that was there all the time exactly once. "." and ".." are not among them;
//! cookies 1 and 2 are left for a gate that adds them.

use std::sync::Arc;

use vos_api::fs::{self as api, Entries, Readdir};
use zerocopy::IntoBytes;

use crate::calls::{Call, Reply};
use crate::core::Fs;
use crate::error::Errno;
use crate::leases::Seen;
use crate::model::{CookieEntry, key1, key2, number_of, tag};
use crate::store::From;

/// Entries looked at in one scan.
const SCAN_ENTRIES: usize = 256;

pub(super) fn readdir(fs: &Arc<Fs>, call: &Call, Readdir { ino, cookie, entries }: Readdir) -> Result<Reply, Errno> {
    let seen = fs.leases.register(call.session, ino);
    let directory = fs.read_inode(ino)?;
    if !directory.is_dir() {
        return Err(Errno::NotDirectory);
    }
    // It was removed, perhaps on another node: getdents(2) says so.
    if directory.links == 0 {
        return Err(Errno::NoEntry);
    }
    let mut page = Page { data: Vec::new(), entries: 0, seen: vec![seen], untold: Vec::new() };
    let mut from = key2(tag::COOKIE, ino, cookie.saturating_add(1));
    let to = key1(tag::COOKIE, ino.saturating_add(1));
    loop {
        let found = fs.store.scan(&from, &to, SCAN_ENTRIES, From::Start)?;
        for (key, value) in &found {
            let cookie = number_of(key, 1).ok_or(Errno::Io)?;
            let entry = CookieEntry::decode(value)?;
            if !page.add(fs, call, cookie, &entry, entries)? {
                return page.reply(false);
            }
        }
        match found.last() {
            Some((last, _)) if found.len() == SCAN_ENTRIES => {
                from = last.clone();
                from.push(0);
            }
            _ => return page.reply(true),
        }
    }
}

struct Page {
    data: Vec<u8>,
    entries: u64,
    seen: Vec<Seen>,
    /// What others have exclusively.
    untold: Vec<u64>,
}

impl Page {
    /// `false` when the entry does not fit.
    fn add(
        &mut self,
        fs: &Arc<Fs>,
        call: &Call,
        cookie: u64,
        entry: &CookieEntry,
        entries: Entries,
    ) -> Result<bool, Errno> {
        let head = size_of::<api::DirEntry>() + entry.name.len().next_multiple_of(8);
        let whole = head + if entries == Entries::Names { 0 } else { size_of::<api::Attr>() };
        if self.data.len() + whole > call.capacity {
            return Ok(false);
        }
        let (mut attr, mut content) = (None, Vec::new());
        if entries != Entries::Names {
            if fs.leases.is_taken(call.session, entry.ino) {
                self.untold.push(entry.ino);
            }
            let seen = fs.leases.register(call.session, entry.ino);
            let inode = match fs.read_inode(entry.ino) {
                Ok(inode) => inode,
                // Removed since the scan.
                Err(Errno::Gone) => return Ok(true),
                Err(errno) => return Err(errno),
            };
            let mut marks = fs.marks(entry.ino)?;
            if entries == Entries::WithContents && inode.is_file() && inode.bytes <= api::CONTENT_BYTES_MAX {
                content.resize(inode.bytes as usize, 0);
                if self.data.len() + whole + content.len().next_multiple_of(8) > call.capacity {
                    return Ok(false);
                }
                // What a change of its own session removes or cuts meanwhile, or cannot be read, is read by itself.
                match fs.read_range(entry.ino, 0, &mut content) {
                    Ok(bytes) if bytes == content.len() => marks |= api::CONTENT,
                    _ => content.clear(),
                }
            }
            attr = Some(inode.attr(entry.ino, marks));
            self.seen.push(seen);
        }
        let record = api::DirEntry {
            ino: entry.ino.into(),
            cookie: cookie.into(),
            kind: (entry.kind >> 12).into(),
            name_bytes: (entry.name.len() as u32).into(),
        };
        self.data.extend_from_slice(record.as_bytes());
        self.data.extend_from_slice(&entry.name);
        self.data.resize(self.data.len().next_multiple_of(8), 0);
        self.data.extend_from_slice(attr.as_ref().map_or(&[], |attr| attr.as_bytes()));
        self.data.extend_from_slice(&content);
        self.data.resize(self.data.len().next_multiple_of(8), 0);
        self.entries += 1;
        Ok(true)
    }

    fn reply(self, is_end: bool) -> Result<Reply, Errno> {
        if !is_end && self.entries == 0 {
            return Err(Errno::Invalid);
        }
        let words = api::Page { entries: self.entries, is_end: u64::from(is_end) };
        Ok(Reply { untold: self.untold, ..Reply::with_data(words, self.data) }.seen(self.seen))
    }
}
