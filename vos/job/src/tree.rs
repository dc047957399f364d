//! Files of the container's tree that a program has open there: on every node they are the same, so they are opened
//! here, at their offset.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;

use rustix::fs::{Mode, OFlags, SeekFrom, fstat, open, seek};
use vos_api::jobs::JobFile;

use crate::far::Asker;

/// By the numbers of their streams.
#[derive(Default)]
pub struct TreeFiles(BTreeMap<u32, OwnedFd>);

impl TreeFiles {
    /// For the program. `None`: it is none, or another one has its name by now, or this user may not open it by its
    /// name. Then its bytes are carried.
    pub fn open(&mut self, stream: u32, file: &JobFile) -> Option<OwnedFd> {
        match file {
            JobFile::None | JobFile::Same(_) => None,
            JobFile::Named { path, inode, flags, offset } => {
                // It is there, or it is not the one that is meant.
                let flags = OFlags::from_bits_retain(*flags) - (OFlags::CREATE | OFlags::TRUNC);
                let opened = open(path.as_slice(), flags | OFlags::CLOEXEC | OFlags::NOCTTY, Mode::empty()).ok()?;
                let is_it = fstat(&opened).is_ok_and(|there| there.st_ino == *inode);
                seek(&opened, SeekFrom::Start(*offset)).ok().filter(|_| is_it)?;
                let program = opened.try_clone().ok()?;
                self.0.insert(stream, opened);
                Some(program)
            }
        }
    }

    /// The program has ended: whoever has the file open on the other node goes on where it stands.
    pub fn tell_where_they_stand(self, deputy: &Asker) {
        for (stream, file) in self.0 {
            if let Ok(at) = seek(&file, SeekFrom::Current(0)) {
                deputy.seek(stream, at);
            }
        }
    }
}
