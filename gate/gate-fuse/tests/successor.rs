//! Two fs servers of one placement on one disk server, the second in a later epoch: they never both change the volume,
//! and clients go on at the second one.

#[path = "../../../vos/fs-core/tests/common/mod.rs"]
mod common;

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::mpsc::channel;

use abi::Endpoint;
use common::{Client, create_data};
use disk::{Disk, Entrance, KeptFence};
use disk_core::{Access, Image, ImageFile, Volume};
use fs::FsService;
use fs_core::{Depth, Fs, Options};
use libvos::{BlockingSession, DiskClient, Epochs, Op, SharedPort, Size};
use rustix::io::Errno;
use vos_api::fs as api;
use vos_rt::testkit::{Server, World};
use vos_rt::{Handle, ReadBy};

const VOLUME_BYTES: u64 = 64 << 20;
const SIZE: Size = Size { entries: 64, arena_bytes: 16 << 20 };

/// What a disk server finds when it starts.
struct Files {
    image: File,
    fence: File,
}

impl Files {
    fn new() -> Files {
        let image = tempfile::tempfile().expect("an image");
        image.set_len(VOLUME_BYTES).expect("its size");
        Files { image, fence: tempfile::tempfile().expect("a fence") }
    }

    fn content(&self) -> Vec<u8> {
        let mut content = vec![0; VOLUME_BYTES as usize];
        self.image.read_exact_at(&mut content, 0).expect("the image");
        content
    }

    fn serve(&self, world: &World) -> Server<Disk> {
        let [image, fence] = [&self.image, &self.fence].map(|file| file.try_clone().expect("a descriptor").into());
        world.serve(Endpoint::DISK, move |start| {
            let image = Image { file: image, bytes: None, may_be_longer: false, access: Access::ReadWrite };
            let volume = Volume::new(ImageFile::open(image).expect("an image"));
            let fence = KeptFence::open(fence).expect("a fence");
            Disk::new(volume, Entrance::of_owner(Endpoint::FS, fence), 1, ReadBy::Ring, &start.handle).expect("threads")
        })
    }
}

fn disk(world: &World, port: &SharedPort, own: u32) -> DiskClient {
    DiskClient::new(world.blocking_as(port.clone(), Endpoint::DISK, SIZE, Epochs { server: 0, own }))
}

fn create(session: &BlockingSession, name: &str) -> Result<(), Errno> {
    let data = create_data(name, 0o100_600, 1);
    session.call(Op::new(api::MKNOD, [1, name.len() as u64, 0]).out(&data).room(128).sequenced()).map(drop)
}

#[test]
fn server_of_an_earlier_epoch_changes_nothing_once_the_next_one_has_greeted_the_disk() {
    let (world, files) = (World::new(), Files::new());
    let server = files.serve(&world);
    let port = world.port(Endpoint::FS, 1);
    let open = |own| {
        let device =
            fs::DiskDevice::open(disk(&world, &port, own), Handle::new(port.waker())).map_err(|e| e.to_string())?;
        Fs::open(Arc::new(device), Options::inline(own.into())).map_err(|error| error.to_string())
    };
    let old = open(1).expect("the volume opens");
    let mut writer = Client::new(&old, 1);
    assert_eq!(writer.make(api::MKNOD, 1, "early", 0o100_600, 1).status, 0);
    let new = open(2).expect("the volume opens");
    // The same session goes on there: anybody else would have to wait for its leases.
    let mut next = Client { sequence: 100, ..Client::new(&new, 1) };

    let before = files.content();
    assert_ne!(writer.make(api::MKNOD, 1, "late", 0o100_600, 2).status, 0);
    assert!(old.sync().is_err() && old.checkpoint().is_err());
    assert!(before == files.content(), "something of the old server has landed");
    assert_eq!(next.make(api::MKNOD, 1, "mine", 0o100_600, 3).status, 0);

    server.cut();
    let _server = files.serve(&world);
    let before = files.content();
    assert_ne!(writer.make(api::MKNOD, 1, "later", 0o100_600, 4).status, 0);
    let refused = open(1).err().expect("it has a successor");
    assert!(refused.contains("our epoch is 2, and this process was told 1"), "{refused}");
    assert!(before == files.content(), "something of the old server has landed");
    assert_eq!(next.make(api::MKNOD, 1, "still", 0o100_600, 5).status, 0);

    new.sync().expect("the disk is there");
    drop((writer, next, old, new));
    let fs = open(2).expect("the same epoch goes on");
    let names: Vec<String> =
        Client { fs: fs.clone(), session: 0, sequence: 0 }.list(1).into_iter().map(|it| it.0).collect();
    assert_eq!(names, ["early", "mine", "still"]);
    assert_eq!(fs.check(Depth::Data).expect("a readable volume"), Vec::<String>::new());
}

#[test]
fn clients_of_a_server_that_the_disk_refuses_go_on_at_its_successor_and_see_no_error() {
    let (world, files) = (World::new(), Files::new());
    let _disk = files.serve(&world);
    let world = Arc::new(world);
    let serve = |own| {
        let (inner, (send, port)) = (Arc::clone(&world), channel());
        let server = world.serve(Endpoint::FS, move |start| {
            let device = fs::DiskDevice::open(disk(&inner, &start.port, own), start.handle.clone()).expect("a disk");
            send.send(start.port.clone()).expect("the test waits");
            FsService::open(Arc::new(device), 4 << 20, start.handle.clone()).expect("the volume opens")
        });
        (server, port.recv().expect("a port"))
    };
    let (old, port) = serve(1);
    let session = world.blocking(Endpoint::FS, SIZE);
    assert_eq!(create(&session, "first"), Ok(()));

    disk(&world, &port, 2).info().expect("a successor is welcome");
    drop(port);
    std::thread::scope(|scope| {
        let second = scope.spawn(|| create(&session, "second"));
        drop(old.ended());
        let (_new, _port) = serve(2);
        // A second time it would be there already.
        assert_eq!(second.join().expect("no panic"), Ok(()));
        assert_eq!(create(&session, "second"), Err(Errno::EXIST));
        assert_eq!(create(&session, "first"), Err(Errno::EXIST));
    });
    assert_eq!(session.restarts(), 1);
}
