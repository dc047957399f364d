//! A whole file in one step: what an import does most.
//!
//! Inode, name, content, owner and times are one record, and the content travels with it (`log.rs`): one round trip to
//! the disk for what otherwise takes create, write, two changes of attributes and a release.

use std::sync::Arc;

use vos_api::fs::PlaceFile;

use crate::alloc::Claim;
use crate::calls::Job;
use crate::core::Growth;
use crate::error::Errno;
use crate::ops::data::Writing;
use crate::ops::names::{self, Making};

pub(super) fn place(job: &Arc<Job>, it: PlaceFile<'_>) -> Result<(), Errno> {
    let PlaceFile { parent, create, name, mtime_ns, content } = it;
    let making = Making::file(parent, create, name.0)?;
    let prepared = job.fs.prepare_new(content, Claim::Normal, Writing::Together)?;
    let mut made = None;
    let result = job.transact(Growth::Grows, |txn| {
        if txn.entry(parent, making.name)?.is_some() {
            return Err(Errno::Exists);
        }
        let (ino, _) = names::make(txn, &making)?;
        prepared.finish(txn, ino, None)?;
        let mut inode = txn.inode(ino)?;
        // Exactly as asked for, whatever the directory hands down.
        (inode.uid, inode.gid) = (create.uid.get(), create.gid.get());
        (inode.atime_ns, inode.mtime_ns) = (mtime_ns, mtime_ns);
        txn.put_inode(ino, &inode);
        made = Some(ino);
        Ok(names::attr_reply(ino, &inode, vos_api::fs::BARE).lease_on([parent, ino]).names_of([parent]))
    });
    match (&result, made) {
        (Ok(()), Some(ino)) => job.fs.leases.grant_own(job.call.session, ino),
        _ => job.fs.give_back(&prepared.runs),
    }
    result
}
