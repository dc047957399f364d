//! The file system behaves as the reference model over thousands of random operations, reopened now and then.

use std::sync::Arc;

use crate::common::model::{Model, difference, dump, run};
use crate::common::{Client, Random, scaled, seeds};
use fs_core::device::BlockDevice;
use fs_core::testing::MemoryDevice;
use fs_core::{Depth, Fs, Options};

const VOLUME_BYTES: u64 = 256 << 20;

#[test]
fn random_operations_do_what_the_model_says() {
    for seed in seeds(3) {
        let device: Arc<dyn BlockDevice> = Arc::new(MemoryDevice::new(VOLUME_BYTES));
        let mut random = Random::new(seed);
        let mut model = Model::new();
        let mut fs = Fs::open(device.clone(), Options::inline(seed)).expect("a new volume");
        let mut client = Client::new(&fs, 7);
        for number in 1..=scaled(1500) {
            let op = model.random_op(&mut random);
            let (status, made) = run(&mut client, &op, number);
            let expected = model.apply(&op, number, made).err().unwrap_or(0);
            assert_eq!(status, expected, "seed {seed}, operation {number}: {op:?}");
            if random.below(100) == 0 {
                fs.checkpoint().expect("a checkpoint");
            }
            if random.below(250) == 0 {
                let sequence = client.sequence;
                drop((client, fs));
                fs = Fs::open(device.clone(), Options::inline(seed + number)).expect("the same volume");
                fs.open_session(7, sequence).expect("the same session");
                client = Client { fs: fs.clone(), session: 7, sequence };
            }
        }
        let found = dump(&client);
        assert_eq!(found, model, "seed {seed}: {}", difference(&found, &model));
        assert_eq!(fs.check(Depth::Data).expect("a readable volume"), Vec::<String>::new(), "seed {seed}");
    }
}
