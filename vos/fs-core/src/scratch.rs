//! A device that is looked at and not changed: what is written to it stays in memory, and is gone with it.
//!
//! Opening a volume is recovery, which writes. Over this, whoever wants to know whether a volume is sound leaves it as
//! it is.

use std::collections::BTreeMap;

use parking_lot::RwLock;

use crate::device::{BLOCK, BLOCK64, BlockDevice, DeviceError};

/// `None`: zeros.
type Blocks = BTreeMap<u64, Option<Box<[u8]>>>;

pub struct Scratch<D> {
    below: D,
    written: RwLock<Blocks>,
}

impl<D: BlockDevice> Scratch<D> {
    pub fn new(below: D) -> Scratch<D> {
        Scratch { below, written: RwLock::default() }
    }

    fn check(&self, offset: u64, bytes: u64) -> Result<(), DeviceError> {
        const EINVAL: DeviceError = DeviceError(22);
        let is_inside = offset.checked_add(bytes).is_some_and(|end| end <= self.bytes());
        let is_aligned = offset.is_multiple_of(BLOCK64) && bytes.is_multiple_of(BLOCK64);
        if is_inside && is_aligned { Ok(()) } else { Err(EINVAL) }
    }
}

impl<D: BlockDevice> BlockDevice for Scratch<D> {
    fn bytes(&self) -> u64 {
        self.below.bytes()
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> Result<(), DeviceError> {
        self.check(offset, out.len() as u64)?;
        let first = offset / BLOCK64;
        let written = self.written.read();
        let over = written.range(first..first + (out.len() / BLOCK) as u64);
        self.below.read(offset, out)?;
        for (block, bytes) in over {
            let at = (block - first) as usize * BLOCK;
            let Some(into) = out.get_mut(at..at + BLOCK) else { continue };
            match bytes {
                Some(bytes) => into.copy_from_slice(bytes),
                None => into.fill(0),
            }
        }
        Ok(())
    }

    fn write(&self, offset: u64, data: &[u8]) -> Result<(), DeviceError> {
        self.check(offset, data.len() as u64)?;
        let blocks = (offset / BLOCK64..).zip(data.chunks_exact(BLOCK).map(|block| Some(block.into())));
        self.written.write().extend(blocks);
        Ok(())
    }

    fn flush(&self) -> Result<(), DeviceError> {
        Ok(())
    }

    fn discard(&self, offset: u64, bytes: u64) -> Result<(), DeviceError> {
        self.check(offset, bytes)?;
        let blocks = offset / BLOCK64..(offset + bytes) / BLOCK64;
        self.written.write().extend(blocks.map(|block| (block, None)));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::MemoryDevice;
    use crate::{Depth, Fs, Options};
    use std::sync::Arc;

    #[test]
    fn volume_is_recovered_over_it_and_stays_as_it_is() {
        let memory = Arc::new(MemoryDevice::new(64 << 20));
        drop(Fs::open(memory.clone(), Options::inline(1)).expect("a new volume"));
        let image = |device: &MemoryDevice| {
            let mut bytes = vec![0; 64 << 20];
            device.read(0, &mut bytes).expect("memory");
            bytes
        };
        let before = image(&memory);
        struct Shared(Arc<MemoryDevice>);
        impl BlockDevice for Shared {
            fn bytes(&self) -> u64 {
                self.0.bytes()
            }
            fn read(&self, offset: u64, out: &mut [u8]) -> Result<(), DeviceError> {
                self.0.read(offset, out)
            }
            fn write(&self, _: u64, _: &[u8]) -> Result<(), DeviceError> {
                panic!("it is not to be changed")
            }
            fn flush(&self) -> Result<(), DeviceError> {
                panic!("nor is there anything to flush")
            }
            fn discard(&self, _: u64, _: u64) -> Result<(), DeviceError> {
                panic!("it is not to be changed")
            }
        }
        let fs = Fs::open(Arc::new(Scratch::new(Shared(memory.clone()))), Options::inline(2)).expect("it is recovered");
        assert_eq!(fs.check(Depth::Data), Ok(Vec::new()));
        drop(fs);
        assert!(image(&memory) == before);
    }

    #[test]
    fn what_was_written_is_read_and_what_was_not_comes_from_below() {
        let memory = MemoryDevice::new(8 * BLOCK64);
        memory.write(0, &[1; 8 * BLOCK]).expect("memory");
        let scratch = Scratch::new(memory);
        scratch.write(2 * BLOCK64, &[2; 2 * BLOCK]).expect("memory");
        scratch.discard(3 * BLOCK64, 2 * BLOCK64).expect("memory");
        let mut bytes = [9; 6 * BLOCK];
        scratch.read(BLOCK64, &mut bytes).expect("memory");
        let expected = [1, 2, 0, 0, 1, 1];
        assert!(bytes.chunks_exact(BLOCK).zip(expected).all(|(block, byte)| block.iter().all(|it| *it == byte)));
        assert_eq!(scratch.write(7 * BLOCK64, &[1; 2 * BLOCK]), Err(DeviceError(22)));
        assert_eq!(scratch.read(1, &mut [0; BLOCK]), Err(DeviceError(22)));
    }
}
