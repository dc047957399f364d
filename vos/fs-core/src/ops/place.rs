//! A whole file in one step: what an import does most.
//!
//! Inode, name, content, owner and times are one record, and the content travels with it (`log.rs`): one round trip to the
//! disk for what otherwise takes create, write, two changes of attributes and a release.

use std::sync::Arc;

use crate::alloc::Claim;
use crate::calls::Job;
use crate::core::Growth;
use crate::error::Errno;
use crate::ops::data::Writing;
use crate::ops::names;

pub(super) fn place(job: &Arc<Job>) -> Result<(), Errno> {
    let call = &job.call;
    let args = names::parse_create(call)?;
    let [parent, _, mtime_ns] = call.args;
    let prepared = job.fs.prepare_new(args.rest, Claim::Normal, Writing::Together)?;
    let mut made = None;
    let result = job.transact(Growth::Grows, |txn| {
        if txn.entry(parent, args.name)?.is_some() {
            return Err(Errno::Exists);
        }
        let (ino, _) = names::make(txn, call.op, parent, &args)?;
        prepared.finish(txn, ino, None)?;
        let mut inode = txn.inode(ino)?;
        // Exactly as asked for, whatever the directory hands down.
        (inode.uid, inode.gid) = (args.create.uid.get(), args.create.gid.get());
        (inode.atime_ns, inode.mtime_ns) = (mtime_ns, mtime_ns);
        txn.put_inode(ino, &inode);
        made = Some(ino);
        Ok(names::attr_reply(ino, &inode).lease_on([parent, ino]))
    });
    match (&result, made) {
        (Ok(()), Some(ino)) => job.fs.leases.grant_own(call.session, ino),
        _ => job.fs.give_back(&prepared.runs),
    }
    result
}
