//! Pages of directories that no program asked for ([`crate::ahead`]).

use std::time::Instant;

use vos_api::Operation;
use vos_api::fs::{CONTENT_BYTES_MAX, Entries, Readdir};

use super::{Backend, Gate};
use crate::backend::{Done, Op, ReplyData, Token};
use crate::complete::{Asked, Completer};
use crate::flight::Flight;
use crate::memory::Moment;
use crate::translate::Then;

/// Of one page: some dozens of small files.
const PAGE_BYTES: u32 = 256 << 10;
/// Pages under way at a time.
const PAGES_MAX: usize = 8;

/// A page that was asked for.
pub(super) struct Page {
    token: Token,
    directory: u64,
    /// After which entry it begins.
    from: u64,
    asked: Moment,
    xattr_changes: u64,
}

impl<B: Backend> Gate<B> {
    /// A request that the server answered may be the first of many in its directory.
    pub(super) fn note_asked(&mut self, flight: &Flight, done: &Done<B::Data>) {
        let directory = match flight.then {
            Then::Lookup if done.status == 0 => Some(flight.ino),
            Then::Read { .. } if done.status == 0 && (done.data.len() as u64) < CONTENT_BYTES_MAX => {
                self.cache.directory_of(flight.ino)
            }
            _ => None,
        };
        if let Some(directory) = directory
            && let Some(cookie) = self.cache.ahead.asked(directory)
        {
            self.fetch(directory, cookie);
        }
    }

    /// What was fetched ahead of this file is read.
    pub(super) fn note_used(&mut self, ino: u64) {
        if let Some(directory) = self.cache.directory_of(ino)
            && let Some(cookie) = self.cache.ahead.used(directory)
        {
            self.fetch(directory, cookie);
        }
    }

    fn fetch(&mut self, directory: u64, cookie: u64) {
        let is_worth_it = self.cache.delegates(directory) && !self.cache.is_contested(directory, Instant::now());
        if is_worth_it && self.pages.len() < PAGES_MAX {
            let asked = Readdir { ino: directory, cookie, entries: Entries::WithContents }.encode();
            if let Ok(token) = self.backend.submit(&Op::of(&asked, PAGE_BYTES, None)) {
                let (asked, xattr_changes) = (self.cache.memory.now(), self.xattr_changes);
                return self.pages.push(Page { token, directory, from: cookie, asked, xattr_changes });
            }
        }
        self.cache.ahead.put_off(directory);
    }

    /// `true`: it was a page.
    pub(super) fn page_came(&mut self, done: &Done<B::Data>) -> bool {
        let Some(at) = self.pages.iter().position(|page| page.token == done.token) else { return false };
        let Page { directory, from, asked, xattr_changes, .. } = self.pages.swap_remove(at);
        let asked = Asked::at(asked);
        let is_current = xattr_changes == self.xattr_changes;
        let (cache, state, names) = (&mut self.cache, &mut self.state, &mut self.names);
        let mut completer = Completer { cache, state, names, name: None, is_current, asked, now: Instant::now() };
        let learnt = completer.learn_page(directory, from, done);
        let is_end = vos_api::fs::Page::from(done.results).is_end == 1;
        let (last, brought) = learnt.unwrap_or_default();
        self.cache.ahead.came(directory, (learnt.is_some() && !is_end).then_some(last), brought);
        true
    }
}
