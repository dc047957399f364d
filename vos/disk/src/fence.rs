//! The volume's fence: the highest epoch that its owner ever said, kept beside the image.
//!
//! The file has 8 bytes, the epoch as little-endian u64, or fewer: no owner ever said one. They lie in one sector, so a
//! loss of power leaves the old number or the new one. An epoch is welcome only after its number is durable: whoever it
//! fences out stays out, whatever dies.
//!
//! A disk with copies stands beside another one later, where no such file is, or an old one. So whoever starts it says
//! which epoch its owner was placed in, and that is the least.

use std::os::fd::OwnedFd;

use rustix::io::Errno;
use vos_api::session::Outdated;
use vos_rt::{Fence, HelloReply, Judgement};

/// A fence, and the file that outlives this process; without one it lives in memory.
#[derive(Default)]
pub struct KeptFence {
    fence: Fence,
    /// What the file has.
    durable: u32,
    file: Option<OwnedFd>,
}

impl KeptFence {
    /// `EINVAL`: the number is no epoch.
    pub fn open(file: OwnedFd) -> Result<KeptFence, Errno> {
        let mut bytes = [0; 8];
        let got = rustix::io::retry_on_intr(|| rustix::io::pread(&file, &mut bytes, 0))?;
        let kept = if got == bytes.len() { u64::from_le_bytes(bytes) } else { 0 };
        let durable = u32::try_from(kept).map_err(|_| Errno::INVAL)?;
        Ok(KeptFence { fence: Fence(durable), durable, file: Some(file) })
    }

    /// Who says less than this is refused, whether anybody has said as much here or not.
    pub fn at_least(mut self, epoch: u32) -> KeptFence {
        self.fence = Fence(self.fence.0.max(epoch));
        self
    }

    /// Who says less is refused; 0: nobody is.
    pub fn epoch(&self) -> u32 {
        self.fence.0
    }

    /// The highest that was said here, as far as the file knows; 0: none.
    pub fn said(&self) -> u32 {
        self.durable
    }

    /// The owner said its epoch; the error is the answer to its greeting.
    pub fn hear(&mut self, own: u32) -> Result<(), HelloReply> {
        match self.fence.judge(own) {
            Judgement::Same if self.durable == own => Ok(()),
            Judgement::Same => self.keep(Fence(own)),
            Judgement::Raised(fence) => self.keep(fence),
            Judgement::Refused(outdated) => {
                let Outdated { own: fence, .. } = outdated;
                tracing::warn!(epoch = own, fence, "refused an owner that has a successor");
                Err(HelloReply::Outdated(outdated))
            }
        }
    }

    fn keep(&mut self, fence: Fence) -> Result<(), HelloReply> {
        self.raise(fence).map_err(|errno| {
            tracing::error!(%errno, epoch = fence.0, "the fence cannot be kept: its owner has to wait");
            HelloReply::Refused(errno)
        })
    }

    fn raise(&mut self, fence: Fence) -> Result<(), Errno> {
        if let Some(file) = &self.file {
            let bytes = u64::from(fence.0).to_le_bytes();
            if rustix::io::retry_on_intr(|| rustix::io::pwrite(file, &bytes, 0))? != bytes.len() {
                return Err(Errno::IO);
            }
            rustix::io::retry_on_intr(|| rustix::fs::fdatasync(file))?;
        }
        (self.fence, self.durable) = (fence, fence.0);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Seek, Write};

    use super::*;

    fn file(bytes: &[u8]) -> std::fs::File {
        let mut file = tempfile::tempfile().expect("temporary file");
        file.write_all(bytes).expect("written");
        file
    }

    fn open(file: &std::fs::File) -> Result<KeptFence, Errno> {
        KeptFence::open(file.try_clone().expect("a descriptor").into())
    }

    #[test]
    fn fence_has_the_bytes_it_always_had_and_is_read_from_them() {
        let mut file = file(b"");
        open(&file).expect("nobody said one").hear(7).expect("the first");
        let mut kept = Vec::new();
        file.rewind().expect("a file");
        file.read_to_end(&mut kept).expect("read");
        assert_eq!(kept, [7, 0, 0, 0, 0, 0, 0, 0]);
        let mut next = open(&file).expect("a fence");
        assert_eq!(next.hear(6), Err(HelloReply::Outdated(Outdated { server: 0, own: 7 })));
        assert_eq!((next.hear(7), next.hear(8)), (Ok(()), Ok(())));
    }

    #[test]
    fn fence_of_a_disk_that_came_from_elsewhere_is_that_of_its_owner() {
        let mut file = file(b"");
        let mut moved = open(&file).expect("nobody said one here").at_least(7);
        assert_eq!((moved.epoch(), moved.said()), (7, 0));
        assert_eq!(moved.hear(6), Err(HelloReply::Outdated(Outdated { server: 0, own: 7 })));
        assert_eq!(moved.hear(7), Ok(()));
        let mut kept = Vec::new();
        file.rewind().expect("a file");
        file.read_to_end(&mut kept).expect("read");
        assert_eq!((kept, moved.said()), (7_u64.to_le_bytes().to_vec(), 7), "kept when its owner is welcome");
        assert_eq!(open(&file).expect("a fence").at_least(3).epoch(), 7, "whoever lags behind lowers nothing");
        let unwritable = std::fs::File::open("/dev/null").expect("open");
        let mut fence = KeptFence::open(unwritable.into()).expect("empty").at_least(2);
        assert_eq!(fence.hear(2), Err(HelloReply::Refused(Errno::BADF)));
    }

    #[test]
    fn number_that_is_no_epoch_is_refused_and_a_torn_one_was_never_said() {
        assert_eq!(open(&file(&[0xff; 8])).err(), Some(Errno::INVAL));
        assert_eq!(open(&file(&[9; 7])).expect("torn").fence, Fence(0));
    }

    #[test]
    fn epoch_whose_number_cannot_be_kept_is_not_welcome() {
        let file = std::fs::File::open("/dev/null").expect("open");
        let mut fence = KeptFence::open(file.into()).expect("empty");
        assert_eq!(fence.hear(1), Err(HelloReply::Refused(Errno::BADF)));
        assert_eq!(fence.fence, Fence(0));
    }
}
