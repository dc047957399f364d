//! A volume: blocks on a medium.
//!
//! A volume is *sound* or *poisoned*. It becomes poisoned when the medium reports that a write-back failed: the kernel
//! then forgets which pages were lost, so a later flush would succeed without the data being there. A poisoned volume
//! refuses everything that changes or promises (`EIO`) until the server is started again; reads go on.
//!
//! All calls may be made by several threads at once. Errors are those that `vos_api::disk` names.

use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::io::Errno;
pub use vos_api::disk::Durability;
use vos_api::disk::{BLOCK_BYTES, Span};

use crate::medium::{Access, Bulk, Medium, Need};

pub struct Volume {
    medium: Box<dyn Medium>,
    is_poisoned: AtomicBool,
}

impl Volume {
    pub fn new(medium: impl Medium + 'static) -> Volume {
        Volume::on(Box::new(medium))
    }

    pub fn on(medium: Box<dyn Medium>) -> Volume {
        Volume { medium, is_poisoned: AtomicBool::new(false) }
    }

    pub fn bytes(&self) -> u64 {
        self.medium.bytes()
    }

    pub fn access(&self) -> Access {
        self.medium.access()
    }

    /// Reads a range; answers its bytes.
    pub fn read(&self, offset: u64, bytes: u64, into: &dyn Bulk) -> Result<u32, Errno> {
        self.read_at(offset, bytes, into, 0)
    }

    /// Reads a range if nothing must be waited for, so that a loop may do it.
    pub fn read_cached(&self, offset: u64, bytes: u32, into: &dyn Bulk) -> bool {
        self.check_range(offset, u64::from(bytes)).is_ok() && self.medium.read_cached(offset, bytes, into)
    }

    /// As [`Medium::file`].
    pub fn file(&self) -> Option<BorrowedFd<'_>> {
        self.medium.file()
    }

    /// Whether there is such a range: whole blocks inside the volume.
    pub fn has(&self, offset: u64, bytes: u64) -> bool {
        self.check_range(offset, bytes).is_ok()
    }

    /// Reads several ranges, one after the other; answers their bytes.
    pub fn read_spans(&self, spans: &[Span], into: &dyn Bulk) -> Result<u32, Errno> {
        spans.iter().try_fold(0_u32, |at, span| {
            let bytes = self.read_at(span.offset.get(), span.bytes.get(), into, at)?;
            at.checked_add(bytes).ok_or(Errno::RANGE)
        })
    }

    /// Reads a range to where it belongs in a transfer; answers its bytes.
    pub fn read_at(&self, offset: u64, bytes: u64, into: &dyn Bulk, at: u32) -> Result<u32, Errno> {
        self.check_range(offset, bytes)?;
        let wanted = u32::try_from(bytes).map_err(|_| Errno::RANGE)?;
        self.medium.read(offset, wanted, into, at).map_err(answer_of)?;
        Ok(wanted)
    }

    pub fn write(&self, offset: u64, bytes: u32, from: &dyn Bulk, durability: Durability) -> Result<(), Errno> {
        self.check_change(offset, u64::from(bytes))?;
        self.medium.write(offset, bytes, from).map_err(answer_of)?;
        if durability == Durability::Power { self.flush() } else { Ok(()) }
    }

    /// As [`Medium::data_from`].
    pub fn data_from(&self, offset: u64) -> Option<(u64, u64)> {
        self.medium.data_from(offset)
    }

    /// Where a range may hold other than zeros, in whole blocks, `most` pieces of it; and how far that reaches.
    pub fn data_in(&self, offset: u64, bytes: u64, most: usize) -> Result<(Vec<Span>, u64), Errno> {
        self.check_range(offset, bytes)?;
        let (block, end) = (u64::from(BLOCK_BYTES), offset + bytes);
        let (mut found, mut at) = (Vec::new(), offset);
        while at < end && found.len() < most {
            let Some((first, last)) = self.medium.data_from(at).filter(|data| data.0 < end) else {
                return Ok((found, end));
            };
            // What the host says is in its own blocks.
            let (first, last) = ((first / block * block).max(at), last.next_multiple_of(block).min(end));
            if last <= first {
                return Err(Errno::IO);
            }
            found.push(Span { offset: first.into(), bytes: (last - first).into() });
            at = last;
        }
        Ok((found, at.max(offset)))
    }

    /// Reads a range from the medium, whatever is in memory.
    pub fn read_medium(&self, offset: u64, bytes: u64, into: &dyn Bulk) -> Result<u32, Errno> {
        self.check_range(offset, bytes)?;
        // What no medium holds needs no place in memory either.
        if self.data_from(offset).is_some_and(|(first, _)| first < offset + bytes) {
            self.medium.forget(offset, bytes);
        }
        self.read_at(offset, bytes, into, 0)
    }

    /// Everything written before is on the medium when this returns. A flush of what cannot change promises nothing
    /// that is not so.
    pub fn flush(&self) -> Result<(), Errno> {
        if self.is_poisoned() {
            return Err(Errno::IO);
        }
        self.medium.flush().map_err(|errno| self.poison(errno))
    }

    /// The range reads as zeros afterwards.
    pub fn discard(&self, offset: u64, bytes: u64) -> Result<(), Errno> {
        self.check_change(offset, bytes)?;
        if bytes == 0 { Ok(()) } else { self.medium.discard(offset, bytes).map_err(of_medium) }
    }

    /// Writes to the range fail no more for want of space afterwards; what it holds stays.
    pub fn allocate(&self, offset: u64, bytes: u64, need: Need) -> Result<(), Errno> {
        self.check_change(offset, bytes)?;
        match self.medium.allocate(offset, bytes, need) {
            Err(Errno::OPNOTSUPP) => Err(Errno::OPNOTSUPP),
            done => done.map_err(of_medium),
        }
    }

    /// Whether this range exists: whole blocks inside the volume.
    fn check_range(&self, offset: u64, bytes: u64) -> Result<(), Errno> {
        let block = u64::from(BLOCK_BYTES);
        let end = offset.checked_add(bytes).ok_or(Errno::INVAL)?;
        let is_inside = offset.is_multiple_of(block) && bytes.is_multiple_of(block) && end <= self.bytes();
        if is_inside { Ok(()) } else { Err(Errno::INVAL) }
    }

    /// Whether this range can be changed now.
    fn check_change(&self, offset: u64, bytes: u64) -> Result<(), Errno> {
        self.check_range(offset, bytes)?;
        match self.access() {
            Access::ReadOnly => Err(Errno::ROFS),
            Access::ReadWrite if self.is_poisoned() => Err(Errno::IO),
            Access::ReadWrite => Ok(()),
        }
    }

    fn is_poisoned(&self) -> bool {
        self.is_poisoned.load(Ordering::Acquire)
    }

    fn poison(&self, errno: Errno) -> Errno {
        if !self.is_poisoned.swap(true, Ordering::AcqRel) {
            tracing::error!(%errno, "write-back failed: the volume refuses changes until the server is started again");
        }
        Errno::IO
    }
}

/// Errors of the host that mean something to a client; the rest is the medium's failure.
fn of_medium(errno: Errno) -> Errno {
    match errno {
        Errno::NOSPC | Errno::DQUOT => Errno::NOSPC,
        _ => Errno::IO,
    }
}

/// What a transfer answers: the client's own faults as they are.
fn answer_of(errno: Errno) -> Errno {
    match errno {
        Errno::INVAL | Errno::RANGE => errno,
        other => of_medium(other),
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use proptest::prelude::*;

    use super::*;
    use crate::image::{Image, ImageFile};

    const BLOCK: usize = BLOCK_BYTES as usize;
    const BLOCKS: usize = 16;

    /// A client's memory.
    struct Memory(RefCell<Vec<u8>>);

    impl Bulk for Memory {
        fn fill(&self, at: u32, file: BorrowedFd<'_>, offset: u64, bytes: u32) -> Result<u32, Errno> {
            let mut memory = self.0.borrow_mut();
            let place = memory.get_mut(at as usize..).and_then(|rest| rest.get_mut(..bytes as usize));
            Ok(rustix::io::pread(file, place.ok_or(Errno::RANGE)?, offset)? as u32)
        }

        fn fill_cached(&self, at: u32, file: BorrowedFd<'_>, offset: u64, bytes: u32) -> Result<bool, Errno> {
            Ok(self.fill(at, file, offset, bytes)? == bytes)
        }

        fn drain(&self, file: BorrowedFd<'_>, offset: u64, bytes: u32) -> Result<(), Errno> {
            rustix::io::pwrite(file, &self.0.borrow()[..bytes as usize], offset).map(drop)
        }

        fn put(&self, at: u32, data: &[u8]) -> Result<(), Errno> {
            self.0.borrow_mut()[at as usize..][..data.len()].copy_from_slice(data);
            Ok(())
        }

        fn take(&self, at: u32, into: &mut [u8]) -> Result<(), Errno> {
            into.copy_from_slice(&self.0.borrow()[at as usize..][..into.len()]);
            Ok(())
        }
    }

    fn read(volume: &Volume, offset: u64, into: &mut [u8]) -> Result<(), Errno> {
        let memory = Memory(RefCell::new(into.to_vec()));
        volume.read(offset, into.len() as u64, &memory)?;
        into.copy_from_slice(&memory.0.into_inner());
        Ok(())
    }

    fn write(volume: &Volume, offset: u64, data: &[u8]) -> Result<(), Errno> {
        volume.write(offset, data.len() as u32, &Memory(RefCell::new(data.to_vec())), Durability::Server)
    }

    fn image(access: Access) -> ImageFile {
        let file = tempfile::tempfile().expect("temporary file");
        file.set_len((BLOCKS * BLOCK) as u64).expect("size");
        ImageFile::open(Image { file: file.into(), bytes: None, may_be_longer: false, access }).expect("image")
    }

    #[derive(Clone, Debug)]
    enum Step {
        Write { block: usize, blocks: usize, fill: u8 },
        Read { block: usize, blocks: usize },
        Discard { block: usize, blocks: usize },
        Flush,
    }

    fn step() -> impl Strategy<Value = Step> {
        let range = || (0..BLOCKS + 2, 0..BLOCKS);
        prop_oneof![
            (range(), any::<u8>()).prop_map(|((block, blocks), fill)| Step::Write { block, blocks, fill }),
            range().prop_map(|(block, blocks)| Step::Read { block, blocks }),
            range().prop_map(|(block, blocks)| Step::Discard { block, blocks }),
            Just(Step::Flush),
        ]
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]
        #[test]
        fn volume_behaves_like_an_array_of_bytes(steps in proptest::collection::vec(step(), 1..40)) {
            let volume = Volume::new(image(Access::ReadWrite));
            let mut model = vec![0_u8; BLOCKS * BLOCK];
            for step in steps {
                match step {
                    Step::Write { block, blocks, fill } => {
                        let (from, to) = (block * BLOCK, (block + blocks) * BLOCK);
                        let result = write(&volume, from as u64, &vec![fill; to - from]);
                        match model.get_mut(from..to) {
                            Some(place) => { prop_assert_eq!(result, Ok(())); place.fill(fill); }
                            None => prop_assert_eq!(result, Err(Errno::INVAL)),
                        }
                    }
                    Step::Read { block, blocks } => {
                        let (from, to) = (block * BLOCK, (block + blocks) * BLOCK);
                        let mut data = vec![0xee; to - from];
                        let result = read(&volume, from as u64, &mut data);
                        match model.get(from..to) {
                            Some(place) => { prop_assert_eq!(result, Ok(())); prop_assert_eq!(&data[..], place); }
                            None => prop_assert_eq!(result, Err(Errno::INVAL)),
                        }
                    }
                    Step::Discard { block, blocks } => {
                        let (from, to) = (block * BLOCK, (block + blocks) * BLOCK);
                        let result = volume.discard(from as u64, (to - from) as u64);
                        match model.get_mut(from..to) {
                            Some(place) => { prop_assert_eq!(result, Ok(())); place.fill(0); }
                            None => prop_assert_eq!(result, Err(Errno::INVAL)),
                        }
                    }
                    Step::Flush => prop_assert_eq!(volume.flush(), Ok(())),
                }
            }
        }
    }

    #[test]
    fn data_is_told_in_whole_blocks_and_as_far_as_was_asked() {
        let volume = Volume::new(image(Access::ReadWrite));
        [3, 4, 9].iter().for_each(|at| write(&volume, at * 4096, &[1; BLOCK]).expect("write"));
        let told = |from: u64, count: u64, most| {
            let (spans, until) = volume.data_in(from * 4096, count * 4096, most).expect("a range");
            let spans = spans.iter().map(|span| (span.offset.get() / 4096, span.bytes.get() / 4096));
            (spans.collect::<Vec<_>>(), until / 4096)
        };
        let all = told(0, 16, 9);
        // A file system may tell more than was written, and never less.
        let has = |at: u64| all.0.iter().any(|span| (span.0..span.0 + span.1).contains(&at));
        assert!(all.1 == 16 && [3, 4, 9].into_iter().all(has), "{all:?}");
        assert_eq!(told(4, 1, 9), (vec![(4, 1)], 5));
        let one = told(3, 13, 1);
        assert!(one.0.len() == 1 && one.1 == one.0[0].0 + one.0[0].1, "{one:?}");
        assert_eq!(volume.data_in(0, 17 * 4096, 9).err(), Some(Errno::INVAL));
    }

    #[test]
    fn ranges_beside_blocks_or_beyond_the_end_are_refused() {
        let volume = Volume::new(image(Access::ReadWrite));
        let end = volume.bytes();
        assert_eq!(volume.check_range(1, 4096), Err(Errno::INVAL));
        assert_eq!(volume.check_range(0, 100), Err(Errno::INVAL));
        assert_eq!(volume.check_range(end, 4096), Err(Errno::INVAL));
        assert_eq!(volume.check_range(u64::MAX - 4095, 4096), Err(Errno::INVAL));
        assert_eq!(volume.check_range(end - 4096, 4096), Ok(()));
    }

    #[test]
    fn ranges_are_read_one_behind_the_other_as_far_as_the_client_has_room() {
        let volume = Volume::new(image(Access::ReadWrite));
        write(&volume, 4096, &[1; BLOCK]).expect("write");
        write(&volume, 3 * 4096, &[3; BLOCK]).expect("write");
        let spans = [3_u64, 1].map(|block| Span { offset: (block * 4096).into(), bytes: 4096.into() });
        let memory = |bytes| Memory(RefCell::new(vec![9; bytes]));
        let wide = memory(2 * BLOCK);
        assert_eq!(volume.read_spans(&spans, &wide), Ok(2 * BLOCK_BYTES));
        assert_eq!(wide.0.into_inner(), [[3; BLOCK], [1; BLOCK]].concat());
        assert_eq!(volume.read_spans(&spans, &memory(BLOCK)), Err(Errno::RANGE));
    }

    /// An image whose disk loses what is written back.
    struct Losing(ImageFile);

    impl Medium for Losing {
        fn bytes(&self) -> u64 {
            self.0.bytes()
        }

        fn access(&self) -> Access {
            self.0.access()
        }

        fn read(&self, offset: u64, bytes: u32, into: &dyn Bulk, at: u32) -> Result<(), Errno> {
            self.0.read(offset, bytes, into, at)
        }

        fn read_cached(&self, offset: u64, bytes: u32, into: &dyn Bulk) -> bool {
            self.0.read_cached(offset, bytes, into)
        }

        fn file(&self) -> Option<BorrowedFd<'_>> {
            self.0.file()
        }

        fn write(&self, offset: u64, bytes: u32, from: &dyn Bulk) -> Result<(), Errno> {
            self.0.write(offset, bytes, from)
        }

        fn flush(&self) -> Result<(), Errno> {
            Err(Errno::NOSPC)
        }

        fn data_from(&self, offset: u64) -> Option<(u64, u64)> {
            self.0.data_from(offset)
        }

        fn forget(&self, offset: u64, bytes: u64) {
            self.0.forget(offset, bytes);
        }

        fn discard(&self, offset: u64, bytes: u64) -> Result<(), Errno> {
            self.0.discard(offset, bytes)
        }

        fn allocate(&self, _offset: u64, _bytes: u64, _need: Need) -> Result<(), Errno> {
            Err(Errno::DQUOT)
        }
    }

    #[test]
    fn volume_whose_write_back_failed_once_refuses_changes_and_promises_but_reads() {
        let volume = Volume::new(Losing(image(Access::ReadWrite)));
        write(&volume, 0, &[1; BLOCK]).expect("nothing was lost yet");
        assert_eq!(volume.allocate(0, 4096, Need::Users), Err(Errno::NOSPC));
        assert_eq!(volume.flush(), Err(Errno::IO));
        assert_eq!(write(&volume, 0, &[1; BLOCK]), Err(Errno::IO));
        assert_eq!(volume.discard(0, 4096), Err(Errno::IO));
        assert_eq!(volume.allocate(0, 4096, Need::Users), Err(Errno::IO));
        assert_eq!(read(&volume, 0, &mut [0; BLOCK]), Ok(()));
    }

    #[test]
    fn read_only_volume_refuses_changes() {
        let volume = Volume::new(image(Access::ReadOnly));
        assert_eq!(write(&volume, 0, &[1; BLOCK]), Err(Errno::ROFS));
        assert_eq!(volume.discard(0, 4096), Err(Errno::ROFS));
        assert_eq!(volume.flush(), Ok(()));
    }
}
