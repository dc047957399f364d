//! Durable writes of disks by themselves, over NBD: with one copy and with two. Disks, their gate and its client,
//! qemu-io, are on the first node, the other copy on the second.

use crate::Outcome;
use crate::containers::median;
use crate::containers::testbed::{NODES, Testbed};

pub const ONE: &str = "one";
pub const TWO: &str = "two";
const DC: &str = "fua";
const DESCRIPTION: &str = "name = 'fua'
nodes = ['n1', 'n2', 'n3']
disks = [{ name = 'root', bytes = 67108864, node = 'n1', replicas = 1 },
  { name = 'one', bytes = 67108864, node = 'n1', replicas = 1 },
  { name = 'two', bytes = 67108864, node = 'n1', replicas = 2 }]
";
const AT: &str = "127.0.0.1:10910";
const WRITES: u64 = 300;
/// Of the disk that is written over and over, in blocks of 4 KiB.
const BLOCKS: u64 = 256;

pub struct Disks<'a>(&'a Testbed);

impl Disks<'_> {
    pub fn serve(testbed: &Testbed) -> Outcome<Disks<'_>> {
        let description = testbed.path().join("fua.toml");
        std::fs::write(&description, DESCRIPTION)?;
        testbed.say(&["dc", "create", "-f", &description.to_string_lossy(), "--start"])?;
        super::await_copies(testbed, &[DC, TWO])?;
        testbed.say(&["disk", "export", DC, ONE, TWO, "--node", NODES[0], "--listen", AT])?;
        Ok(Disks(testbed))
    }

    /// Microseconds at the median.
    pub fn write(&self, disk: &str) -> Outcome<f64> {
        let steps = (0..WRITES).map(|number| format!("write -f {}k 4k", number * 97 % BLOCKS * 4));
        let said = super::qemu_io(self.0, &format!("nbd://{AT}/{disk}"), steps)?;
        // "4 KiB, 1 ops; 00.00 sec (13.2 MiB/sec and 3379.4 ops/sec)", of each.
        let rates = said.lines().filter_map(|line| line.split_once(" and ")?.1.split_once(" ops/sec")?.0.parse().ok());
        median(rates.map(|rate: f64| 1e6 / rate).collect())
    }
}
