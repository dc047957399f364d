//! Grants and copies.

use std::thread;
use std::time::Duration;

use abi::limits::{COPY_CHUNK_BYTES, COPY_ENTRIES, VCOPY_BYTES_MAX};

use super::{NEVER_MIND, SOON, SPEC, World};
use crate::{Arena, Direction, Endpoint, Event, GrantId, IpcError, Message, Place, Port, Source, Wait};

/// Lengths around every border: of a chunk, of the lane.
const LENGTHS: [usize; 7] = [
    1,
    100,
    COPY_CHUNK_BYTES as usize,
    COPY_CHUNK_BYTES as usize + 1,
    (COPY_CHUNK_BYTES * COPY_ENTRIES) as usize,
    (COPY_CHUNK_BYTES * COPY_ENTRIES) as usize + 4097,
    3_000_000,
];
const LONGEST: usize = 3_000_000;

fn pattern(bytes: usize, seed: u8) -> Vec<u8> {
    (0..bytes).map(|index| (index / 251) as u8 ^ (index as u8).wrapping_mul(31) ^ seed).collect()
}

fn memory_with(data: &[u8]) -> Arena {
    let memory = Arena::private(data.len()).unwrap();
    memory.copy_in(0, data).unwrap();
    memory
}

/// A request that tells a grant.
fn telling(grant: GrantId, bytes: usize) -> Message {
    Message::new(1).with_word(0, grant.number()).with_word(1, bytes as u64)
}

fn told(owner: Endpoint, message: &Message, offset: u64) -> Place {
    Place { owner, grant: GrantId::from_number(message.word(0)), offset }
}

/// Serves copiers until one of them sends a message; answers it.
fn wait_until_told(mut port: Port) -> Port {
    let message = port.rcvrqst(SOON).unwrap();
    port.reply(message.source.unwrap(), &message).unwrap();
    port
}

pub(super) fn server_copies_from_and_to_its_caller(world: &dyn World) {
    let mut server = world.server(Endpoint::FS, 1);
    let mut client = world.program();
    let own = client.endpoint();
    thread::scope(|scope| {
        scope.spawn(move || {
            for bytes in LENGTHS {
                let request = server.rcvrqst(SOON).unwrap();
                let mut data = vec![0; bytes];
                server.copy_from(told(own, &request, 7), &mut data, SOON).unwrap();
                data.reverse();
                server.copy_to(&data, told(own, &request, 7), SOON).unwrap();
                server.reply(own, &request).unwrap();
            }
        });
        for bytes in LENGTHS {
            let data = pattern(bytes + 10, bytes as u8);
            let memory = memory_with(&data);
            let grant = client.grant(Endpoint::FS, &memory, Direction::ReadWrite).unwrap();
            client.sendrec(Endpoint::FS, &telling(grant, bytes), SOON).unwrap();
            client.revoke(grant).unwrap();
            let mut expected = data;
            expected[7..7 + bytes].reverse();
            assert!(memory.to_vec(0, bytes + 10).unwrap() == expected, "{bytes} bytes came back differently");
        }
    });
}

pub(super) fn caller_copies_from_and_to_a_server_that_waits(world: &dyn World) {
    let mut server = world.server(Endpoint::FS, 1);
    let mut client = world.program();
    let memory = memory_with(&pattern(LONGEST, 1));
    let grant = server.grant(client.endpoint(), &memory, Direction::ReadWrite).unwrap();
    let place = Place { owner: Endpoint::FS, grant, offset: 0 };
    thread::scope(|scope| {
        let server = scope.spawn(move || wait_until_told(server));
        let own = Arena::private(LONGEST).unwrap();
        let own_grant = client.grant(Endpoint::FS, &own, Direction::ReadWrite).unwrap();
        let here = Place { owner: client.endpoint(), grant: own_grant, offset: 0 };
        client.vcopy(place, here, LONGEST, SOON).unwrap();
        assert!(own.to_vec(0, LONGEST).unwrap() == pattern(LONGEST, 1));
        own.copy_in(0, &pattern(LONGEST, 2)).unwrap();
        client.vcopy(here, place, LONGEST, SOON).unwrap();
        client.copy_to(b"last", Place { offset: 5, ..place }, SOON).unwrap();
        client.sendrec(Endpoint::FS, &Message::new(1), SOON).unwrap();
        server.join().unwrap();
    });
    let mut expected = pattern(LONGEST, 2);
    expected[5..9].copy_from_slice(b"last");
    assert!(memory.to_vec(0, LONGEST).unwrap() == expected);
}

pub(super) fn stream_of_copies_that_are_asked_for_ahead_brings_what_single_ones_bring(world: &dyn World) {
    const COPIES: usize = 4;
    let mut server = world.server(Endpoint::FS, 1);
    let mut client = world.program();
    let data = pattern(COPIES * LONGEST, 4);
    let grant = server.grant(client.endpoint(), &memory_with(&data), Direction::Read).unwrap();
    let at = |offset: usize| Place { owner: Endpoint::FS, grant, offset: offset as u64 };
    thread::scope(|scope| {
        let server = scope.spawn(move || wait_until_told(server));
        for bytes in LENGTHS {
            let mut came = vec![0; bytes];
            for start in (0..COPIES).map(|number| number * bytes) {
                client.copy_from_ahead(at(start), &mut came, at(start + bytes), SOON).unwrap();
                assert!(came == data[start..start + bytes], "{bytes} bytes from {start}");
            }
        }
        client.sendrec(Endpoint::FS, &Message::new(1), SOON).unwrap();
        server.join().unwrap();
    });
}

pub(super) fn copy_asked_for_ahead_is_forgotten_for_another_and_refused_when_it_is_called(world: &dyn World) {
    const BYTES: usize = 700_000;
    let mut server = world.server(Endpoint::FS, 1);
    let mut client = world.program();
    let data = pattern(3 * BYTES, 5);
    let memory = memory_with(&data);
    let grant = server.grant(client.endpoint(), &memory, Direction::Read).unwrap();
    let other = server.grant(client.endpoint(), &memory_with(&[0; 3 * BYTES]), Direction::ReadWrite).unwrap();
    let of = |grant, offset: usize| Place { owner: Endpoint::FS, grant, offset: offset as u64 };
    let at = |offset: usize| of(grant, offset);
    thread::scope(|scope| {
        let server = scope.spawn(move || wait_until_told(server));
        let (mut came, mut less) = (vec![0; BYTES], vec![0; 100_000]);
        for round in 0..20 {
            client.copy_from_ahead(at(0), &mut came, at(BYTES), SOON).unwrap();
            assert!(came == data[..BYTES]);
            match round % 4 {
                // Another place, another length, the other direction, nothing at all.
                0 => client.copy_from(at(2 * BYTES), &mut came, SOON).unwrap(),
                1 => client.copy_from(at(BYTES), &mut less, SOON).unwrap(),
                2 => client.copy_to(&data[..BYTES], of(other, BYTES), SOON).unwrap(),
                _ => {}
            }
            match round % 4 {
                0 => assert!(came == data[2 * BYTES..]),
                1 => assert!(less == data[BYTES..BYTES + less.len()]),
                2 => {
                    client.copy_from(of(other, BYTES), &mut came, SOON).unwrap();
                    assert!(came == data[..BYTES]);
                }
                _ => {}
            }
        }
        let outside = at(2 * BYTES + 1);
        client.copy_from_ahead(at(0), &mut came, outside, SOON).unwrap();
        assert_eq!(client.copy_from(outside, &mut came, SOON), Err(IpcError::OutOfGrant));
        client.copy_from_ahead(at(0), &mut came, of(GrantId::new(99, 1), 0), SOON).unwrap();
        let never_given = client.copy_from_ahead(of(GrantId::new(99, 1), 0), &mut came, at(0), SOON);
        assert_eq!(never_given, Err(IpcError::UnknownGrant));
        let own = Place { owner: client.endpoint(), ..at(0) };
        assert_eq!(client.copy_from_ahead(at(0), &mut came, own, SOON), Err(IpcError::BadArgument));
        client.copy_from(at(0), &mut came, SOON).unwrap();
        assert!(came == data[..BYTES]);
        client.sendrec(Endpoint::FS, &Message::new(1), SOON).unwrap();
        server.join().unwrap();
    });
}

pub(super) fn copy_outside_what_was_granted_moves_nothing_and_says_why(world: &dyn World) {
    let mut server = world.server(Endpoint::FS, 1);
    let (mut client, stranger) = (world.program(), world.program());
    let own = client.endpoint();
    let memory = memory_with(&pattern(300_000, 3));
    let readable = server.grant(own, &memory, Direction::Read).unwrap();
    let writable = server.grant(own, &memory, Direction::Write).unwrap();
    let foreign = server.grant(stranger.endpoint(), &memory, Direction::ReadWrite).unwrap();
    let part = server.grant(own, &memory.part(10, 10).unwrap(), Direction::ReadWrite).unwrap();
    let revoked = server.grant(own, &memory, Direction::ReadWrite).unwrap();
    server.revoke(revoked).unwrap();
    assert_eq!(server.revoke(revoked), Err(IpcError::Revoked));
    let at = |grant, offset| Place { owner: Endpoint::FS, grant, offset };
    let never_given = GrantId::new(99, 1);
    thread::scope(|scope| {
        let server = scope.spawn(move || wait_until_told(server));
        let mut data = vec![0; 200_000];
        let mut read = |place: Place, bytes: usize| client.copy_from(place, &mut data[..bytes], SOON);
        assert_eq!(read(at(readable, 0), 200_000), Ok(()));
        assert_eq!(read(at(readable, 100_001), 200_000), Err(IpcError::OutOfGrant));
        assert_eq!(read(at(readable, u64::MAX), 1), Err(IpcError::BadArgument));
        assert_eq!(read(at(part, 5), 6), Err(IpcError::OutOfGrant));
        assert_eq!(read(at(writable, 0), 1), Err(IpcError::WrongDirection));
        assert_eq!(read(at(foreign, 0), 1), Err(IpcError::Denied));
        assert_eq!(read(at(revoked, 0), 1), Err(IpcError::Revoked));
        assert_eq!(read(at(never_given, 0), 1), Err(IpcError::UnknownGrant));
        assert_eq!(read(at(readable, 300_000), 0), Ok(()));
        assert_eq!(read(at(revoked, 0), 0), Err(IpcError::Revoked));
        // Everything but its end lies inside: nothing is written.
        let zeroes = vec![0; 200_000];
        assert_eq!(client.copy_to(&zeroes, at(writable, 100_001), SOON), Err(IpcError::OutOfGrant));
        assert_eq!(client.copy_to(&[0], at(readable, 0), SOON), Err(IpcError::WrongDirection));
        let own_memory = Arena::private(10).unwrap();
        let own_grant = client.grant(Endpoint::FS, &own_memory, Direction::ReadWrite).unwrap();
        let here = Place { owner: own, grant: own_grant, offset: 0 };
        assert_eq!(client.vcopy(at(readable, 0), here, 11, SOON), Err(IpcError::OutOfGrant));
        assert_eq!(client.vcopy(at(readable, 0), here, VCOPY_BYTES_MAX + 1, SOON), Err(IpcError::BadArgument));
        client.vcopy(here, Place { offset: 5, ..here }, 5, SOON).unwrap();
        client.sendrec(Endpoint::FS, &Message::new(1), SOON).unwrap();
        server.join().unwrap();
    });
    assert!(memory.to_vec(0, 300_000).unwrap() == pattern(300_000, 3));
}

pub(super) fn copy_waits_for_its_owner_as_long_as_it_is_told_and_comes_in_order(world: &dyn World) {
    let mut server = world.server(Endpoint::FS, 1);
    let mut client = world.program();
    let memory = memory_with(&[0; 8]);
    let grant = server.grant(client.endpoint(), &memory, Direction::ReadWrite).unwrap();
    let place = Place { owner: Endpoint::FS, grant, offset: 0 };
    assert_eq!(client.copy_to(b"too late", place, NEVER_MIND), Err(IpcError::TimedOut));
    assert_eq!(client.copy_from(place, &mut [0; 8], Wait::NoWait), Err(IpcError::TimedOut));
    assert_eq!(memory.to_vec(0, 8).unwrap(), [0; 8], "nobody served it");
    thread::scope(|scope| {
        let server = scope.spawn(move || wait_until_told(server));
        client.copy_to(b"in time!", place, SOON).unwrap();
        let mut back = [0; 8];
        client.copy_from(place, &mut back, SOON).unwrap();
        assert_eq!(&back, b"in time!");
        client.sendrec(Endpoint::FS, &Message::new(1), SOON).unwrap();
        server.join().unwrap();
    });
    assert_eq!(memory.to_vec(0, 8).unwrap(), b"in time!", "what was given up came first");
}

pub(super) fn copier_learns_that_the_owner_died(world: &dyn World) {
    // Until both waited when it died: nobody sees them wait.
    let died = (0..10).find_map(|attempt| owner_dies_under_copiers(world, attempt + 1, 20 << attempt));
    assert_eq!(died, Some((IpcError::SourceDied, IpcError::DestinationDied)));
}

/// What a reader and a writer of an owner that is in no call learn when it dies after `pause_ms`; `None` when one of
/// them was late.
fn owner_dies_under_copiers(world: &dyn World, epoch: u64, pause_ms: u64) -> Option<(IpcError, IpcError)> {
    let mut server = world.server(Endpoint::FS, epoch);
    let (mut reader, mut writer) = (world.program(), world.program());
    for copier in [&mut reader, &mut writer] {
        copier.wait4bind(Endpoint::FS, SOON).unwrap();
    }
    let memory = Arena::private(10).unwrap();
    let read = server.grant(reader.endpoint(), &memory, Direction::Read).unwrap();
    let write = server.grant(writer.endpoint(), &memory, Direction::Write).unwrap();
    thread::scope(|scope| {
        let place = |grant| Place { owner: Endpoint::FS, grant, offset: 0 };
        let reading = scope.spawn(move || (reader.copy_from(place(read), &mut [0; 10], SOON), reader));
        let writing = scope.spawn(move || (writer.copy_to(&[1; 10], place(write), SOON), writer));
        thread::sleep(Duration::from_millis(pause_ms));
        drop(server);
        let (read_error, mut reader) = reading.join().unwrap();
        let (write_error, mut writer) = writing.join().unwrap();
        let again = reader.copy_from(place(read), &mut [0; 10], SOON);
        assert!(matches!(again, Err(IpcError::NoSuchEndpoint | IpcError::SourceDied)), "{again:?}");
        for copier in [&mut reader, &mut writer] {
            copier.wait4unbind(Endpoint::FS, SOON).unwrap();
        }
        let (read_error, write_error) = (read_error.unwrap_err(), write_error.unwrap_err());
        let was_late = [read_error, write_error].contains(&IpcError::NoSuchEndpoint);
        (!was_late).then_some((read_error, write_error))
    })
}

pub(super) fn two_that_copy_from_each_other_at_once_both_go_on(world: &dyn World) {
    let mut server = world.server(Endpoint::FS, 1);
    let mut client = world.program();
    let own = client.endpoint();
    let (theirs, ours) = (memory_with(&pattern(LONGEST, 4)), memory_with(&pattern(LONGEST, 5)));
    let theirs = server.grant(own, &theirs, Direction::Read).unwrap();
    let ours = client.grant(Endpoint::FS, &ours, Direction::Read).unwrap();
    thread::scope(|scope| {
        let server = scope.spawn(move || {
            let mut data = vec![0; LONGEST];
            server.copy_from(Place { owner: own, grant: ours, offset: 0 }, &mut data, SOON).unwrap();
            assert!(data == pattern(LONGEST, 5));
            wait_until_told(server)
        });
        let mut data = vec![0; LONGEST];
        client.copy_from(Place { owner: Endpoint::FS, grant: theirs, offset: 0 }, &mut data, SOON).unwrap();
        assert!(data == pattern(LONGEST, 4));
        client.sendrec(Endpoint::FS, &Message::new(1), SOON).unwrap();
        server.join().unwrap();
    });
}

pub(super) fn third_party_copies_between_two_owners(world: &dyn World) {
    let mut server = world.server(Endpoint::FS, 1);
    let mut client = world.program();
    let mut third = world.near_server(Endpoint::DS, 1);
    let (from, to) = (memory_with(&pattern(LONGEST, 6)), Arena::private(LONGEST).unwrap());
    let source = client.grant(Endpoint::DS, &from, Direction::Read).unwrap();
    let target = server.grant(Endpoint::DS, &to, Direction::Write).unwrap();
    let own = client.endpoint();
    thread::scope(|scope| {
        scope.spawn(move || {
            let request = server.rcvrqst(SOON).unwrap();
            server.reply(request.source.unwrap(), &request).unwrap();
        });
        // The client waits for the third party's answer meanwhile.
        scope.spawn(move || client.sendrec(Endpoint::DS, &Message::new(1), SOON).unwrap());
        let request = third.rcvrqst(SOON).unwrap();
        let source = Place { owner: own, grant: source, offset: 0 };
        let target = Place { owner: Endpoint::FS, grant: target, offset: 0 };
        third.vcopy(source, target, LONGEST, SOON).unwrap();
        third.reply(own, &request).unwrap();
        third.sendrec(Endpoint::FS, &Message::new(1), SOON).unwrap();
    });
    assert!(to.to_vec(0, LONGEST).unwrap() == pattern(LONGEST, 6));
}

pub(super) fn arena_of_a_ring_can_be_granted(world: &dyn World) {
    let mut server = world.server(Endpoint::FS, 1);
    let mut other = world.near_server(Endpoint::DS, 1);
    let mut client = world.program();
    let ring = client.open_ring(Endpoint::FS, SPEC, SOON).unwrap();
    assert!(matches!(server.wait_event(SOON).unwrap(), Event::RingOpened(_)));
    ring.arena().copy_in(100, b"in the arena").unwrap();
    let grant = client.grant(Endpoint::DS, &ring.arena().part(100, 12).unwrap(), Direction::Read).unwrap();
    let own = client.endpoint();
    thread::scope(|scope| {
        scope.spawn(|| client.sendrec(Endpoint::DS, &Message::new(1), SOON).unwrap());
        let request = other.rcvrqst(SOON).unwrap();
        let mut data = [0; 12];
        other.copy_from(Place { owner: own, grant, offset: 0 }, &mut data, SOON).unwrap();
        assert_eq!(&data, b"in the arena");
        other.reply(own, &request).unwrap();
    });
}

pub(super) fn later_owner_of_a_number_does_not_inherit_its_grants(world: &dyn World) {
    let mut server = world.server(Endpoint::FS, 1);
    let mut client = world.program();
    let own = client.endpoint();
    let memory = memory_with(b"secret");
    let serve_once = |server: &mut Port, expected: Result<(), IpcError>| {
        let request = server.receive(Source::From(own), SOON).unwrap();
        let mut data = [0; 6];
        assert_eq!(server.copy_from(told(own, &request, 0), &mut data, SOON), expected);
        server.reply(own, &request).unwrap();
    };
    let (say, heard) = std::sync::mpsc::channel();
    thread::scope(|scope| {
        let client = scope.spawn(move || {
            let grant = client.grant(Endpoint::FS, &memory, Direction::Read).unwrap();
            client.sendrec(Endpoint::FS, &telling(grant, 6), SOON).unwrap();
            say.send("answered").unwrap();
            client.wait4unbind(Endpoint::FS, SOON).unwrap();
            say.send("gone").unwrap();
            client.wait4bind(Endpoint::FS, SOON).unwrap();
            // Over two nodes the end of the old channel may come a moment later.
            let gone = [IpcError::Fenced, IpcError::SourceDied, IpcError::DestinationDied];
            let mut answer = client.sendrec(Endpoint::FS, &telling(grant, 6), SOON);
            while answer.is_err_and(|error| gone.contains(&error)) {
                answer = client.sendrec(Endpoint::FS, &telling(grant, 6), SOON);
            }
            answer.unwrap();
        });
        serve_once(&mut server, Ok(()));
        heard.recv().unwrap();
        server.unbind().unwrap();
        heard.recv().unwrap();
        let mut server = world.server(Endpoint::FS, 2);
        serve_once(&mut server, Err(IpcError::Revoked));
        client.join().unwrap();
    });
}

pub(super) fn grant_given_after_its_copier_was_replaced_is_the_next_ones(world: &dyn World) {
    let mut server = world.near_server(Endpoint::FS, 1);
    let (mut client, mut observer) = (world.program(), world.program());
    let own = client.endpoint();
    client.notify(Endpoint::FS, 1).unwrap();
    server.wait_event(SOON).unwrap();
    server.unbind().unwrap();
    observer.wait4unbind(Endpoint::FS, SOON).unwrap();
    let mut server = world.near_server(Endpoint::FS, 2);
    // The client was in no call since, so it has not heard of this.
    let grant = client.grant(Endpoint::FS, &memory_with(b"lent"), Direction::Read).unwrap();
    thread::scope(|scope| {
        let serving = scope.spawn(move || {
            let request = server.receive(Source::From(own), SOON).unwrap();
            let mut data = [0; 4];
            let copied = server.copy_from(told(own, &request, 0), &mut data, SOON).map(|()| data);
            server.reply(own, &request).unwrap();
            copied
        });
        let mut called = client.sendrec(Endpoint::FS, &telling(grant, 4), SOON);
        while called.is_err_and(|error| matches!(error, IpcError::SourceDied | IpcError::DestinationDied)) {
            called = client.sendrec(Endpoint::FS, &telling(grant, 4), SOON);
        }
        called.unwrap();
        assert_eq!(serving.join().unwrap(), Ok(*b"lent"));
    });
}

pub(super) fn third_party_that_leaves_a_grant_moves_nothing(world: &dyn World) {
    let mut server = world.server(Endpoint::FS, 1);
    let mut client = world.program();
    let mut third = world.near_server(Endpoint::DS, 1);
    let shorter = LONGEST - 400_000;
    let (from, to) = (memory_with(&pattern(LONGEST, 8)), Arena::private(LONGEST).unwrap());
    let source = client.grant(Endpoint::DS, &from, Direction::Read).unwrap();
    let short_source = client.grant(Endpoint::DS, &from.part(0, shorter).unwrap(), Direction::Read).unwrap();
    let target = server.grant(Endpoint::DS, &to, Direction::Write).unwrap();
    let short_target = server.grant(Endpoint::DS, &to.part(0, shorter).unwrap(), Direction::Write).unwrap();
    let own = client.endpoint();
    thread::scope(|scope| {
        scope.spawn(move || {
            let request = server.rcvrqst(SOON).unwrap();
            server.reply(request.source.unwrap(), &request).unwrap();
        });
        scope.spawn(move || client.sendrec(Endpoint::DS, &Message::new(1), SOON).unwrap());
        let request = third.rcvrqst(SOON).unwrap();
        for (source, target) in [(source, short_target), (short_source, target)] {
            let source = Place { owner: own, grant: source, offset: 0 };
            let target = Place { owner: Endpoint::FS, grant: target, offset: 0 };
            assert_eq!(third.vcopy(source, target, LONGEST, SOON), Err(IpcError::OutOfGrant));
            assert!(to.to_vec(0, LONGEST).unwrap() == vec![0; LONGEST], "something was moved");
        }
        third.reply(own, &request).unwrap();
        third.sendrec(Endpoint::FS, &Message::new(1), SOON).unwrap();
    });
}

pub(super) fn third_party_copies_within_one_grant(world: &dyn World) {
    let mut server = world.server(Endpoint::FS, 1);
    let mut third = world.near_server(Endpoint::DS, 1);
    third.wait4bind(Endpoint::FS, SOON).unwrap();
    let memory = Arena::private(LONGEST).unwrap();
    let grant = server.grant(Endpoint::DS, &memory, Direction::ReadWrite).unwrap();
    thread::scope(|scope| {
        scope.spawn(move || wait_until_told(server));
        for (from, to) in [(0, 300_000), (300_000, 0)] {
            let before = pattern(LONGEST, 9);
            memory.copy_in(0, &before).unwrap();
            let place = |offset: usize| Place { owner: Endpoint::FS, grant, offset: offset as u64 };
            let bytes = LONGEST - 300_000;
            third.vcopy(place(from), place(to), bytes, SOON).unwrap();
            let mut expected = before;
            expected.copy_within(from..from + bytes, to);
            assert!(memory.to_vec(0, LONGEST).unwrap() == expected, "from {from} to {to}");
        }
        third.sendrec(Endpoint::FS, &Message::new(1), SOON).unwrap();
    });
}

pub(super) fn own_grant_is_used_as_it_was_lent(world: &dyn World) {
    let mut server = world.server(Endpoint::FS, 1);
    let mut client = world.program();
    let theirs = server.grant(client.endpoint(), &memory_with(&[7; 8]), Direction::ReadWrite).unwrap();
    let there = Place { owner: Endpoint::FS, grant: theirs, offset: 0 };
    let memory = memory_with(&[1; 8]);
    let own = client.endpoint();
    let place = |grant| Place { owner: own, grant, offset: 0 };
    let readable = place(client.grant(Endpoint::FS, &memory, Direction::Read).unwrap());
    let writable = place(client.grant(Endpoint::FS, &memory, Direction::Write).unwrap());
    thread::scope(|scope| {
        let server = scope.spawn(move || wait_until_told(server));
        let wrong = Err(IpcError::WrongDirection);
        assert_eq!(client.vcopy(there, readable, 8, SOON), wrong);
        assert_eq!(client.vcopy(writable, there, 8, SOON), wrong);
        assert_eq!(client.vcopy(readable, Place { offset: 4, ..readable }, 4, SOON), wrong);
        assert_eq!(client.vcopy(writable, Place { offset: 4, ..writable }, 4, SOON), wrong);
        assert_eq!(memory.to_vec(0, 8).unwrap(), [1; 8]);
        assert_eq!(client.vcopy(readable, writable, VCOPY_BYTES_MAX + 1, SOON), Err(IpcError::BadArgument));
        assert_eq!(client.vcopy(readable, there, 8, SOON), Ok(()));
        assert_eq!(client.vcopy(there, writable, 8, SOON), Ok(()));
        assert_eq!(client.vcopy(readable, Place { offset: 4, ..writable }, 4, SOON), Ok(()));
        client.sendrec(Endpoint::FS, &Message::new(1), SOON).unwrap();
        server.join().unwrap();
    });
}

pub(super) fn many_copiers_are_all_served(world: &dyn World) {
    let mut server = world.server(Endpoint::FS, 1);
    const COPIERS: usize = 8;
    const COPIES: usize = 50;
    let mut copiers: Vec<Port> = (0..COPIERS).map(|_| world.program()).collect();
    let memory = memory_with(&pattern(10_000, 7));
    let give = |copier: &Port| server.grant(copier.endpoint(), &memory, Direction::Read).unwrap();
    let grants: Vec<GrantId> = copiers.iter().map(give).collect();
    thread::scope(|scope| {
        for (mut copier, grant) in copiers.drain(..).zip(grants) {
            scope.spawn(move || {
                for _ in 0..COPIES {
                    let mut data = vec![0; 10_000];
                    copier.copy_from(Place { owner: Endpoint::FS, grant, offset: 0 }, &mut data, SOON).unwrap();
                    assert!(data == pattern(10_000, 7));
                }
                copier.send(Endpoint::FS, &Message::new(1), SOON).unwrap();
            });
        }
        for _ in 0..COPIERS {
            server.receive(Source::Any, SOON).unwrap();
        }
    });
}
