//! Who makes a call: what the kernel shows of the thread that it names.

use std::fs::File;
use std::io::Read;
use std::os::fd::AsFd;

use proc_core::caller::{self, Uids};
use proc_core::journal::Notification;
use proc_core::limits::STATUS_BYTES_MAX;
use proc_core::permission::Signaller;

/// `None`: the call is over, or its thread is nobody of the container.
///
/// The number of a thread that ended may be another one's. So what was seen counts only if the kernel says afterwards
/// that the call still waits: then the thread was there all the time.
pub fn who(notification: &Notification, listener: impl AsFd, uids: Uids) -> Option<Signaller> {
    let mut status = Vec::new();
    let file = File::open(format!("/proc/{}/status", notification.thread)).ok()?;
    file.take(STATUS_BYTES_MAX as u64).read_to_end(&mut status).ok()?;
    let seen = caller::of_status(&status, uids)?;
    sys::notify::is_valid(listener, notification.id).then_some(seen.sender)
}
