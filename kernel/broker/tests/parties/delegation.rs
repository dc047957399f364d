//! Who may delegate, and what hostile delegators and targets come to. On one node; a hostile party speaks with the
//! broker itself and writes into its memory what it likes.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use crate::common::{DC, OneNode, wait_readable};
use abi::delegation::{Limit, Relayed, Request, SLOT_BYTES, head_of};
use abi::{Lane, ring};
use broker::{Privileges, ServerIdentity};
use broker_api::{FromPort, IfAbsent, MESSAGE_BYTES_MAX, Message as _, Offer, Open, ToPort};
use ipc::conformance::World;
use ipc::descriptors::take_channel_descriptors;
use ipc::{
    Completion, DELEGATE_SPEC, Endpoint, Epoch, Event, IpcError, Message, Port, RingSpec, Source, Submission, Wait,
};
use ipc_core::Words;
use ipc_shm::{ChannelHalf, ControlPage};

const SOON: Wait = Wait::For(Duration::from_secs(10));
const NEVER_MIND: Wait = Wait::For(Duration::from_millis(30));

/// A party that keeps to no rule of the library.
struct Raw {
    socket: OwnedFd,
    _control: ControlPage,
    requests: u32,
}

impl Raw {
    fn server(world: &OneNode, endpoint: Endpoint) -> Raw {
        let socket = world.broker.server_socket(DC, ServerIdentity::new(endpoint, Epoch(1))).unwrap();
        Raw::bind(socket)
    }

    fn program(world: &OneNode) -> Raw {
        Raw::bind(sys::seqpacket::connect(&world.socket()).unwrap())
    }

    fn bind(socket: OwnedFd) -> Raw {
        let bind = FromPort::Bind { endpoint: None, if_absent: IfAbsent::Fail, speaks: versions::PORT.speaks };
        sys::seqpacket::send(&socket, &bind.to_bytes(1), &[] as &[OwnedFd]).unwrap();
        let (bound, mut descriptors) = receive(&socket);
        assert!(matches!(bound, ToPort::Bound { .. }), "{bound:?}");
        Raw { socket, _control: ControlPage::of(descriptors.remove(0)).unwrap(), requests: 1 }
    }

    fn open(&mut self, to: Endpoint, lane: Lane, spec: RingSpec) -> Result<ChannelHalf, IpcError> {
        self.requests += 1;
        let open = FromPort::Open(Open { peer: to, lane, ring: Some(spec), if_absent: IfAbsent::Fail });
        sys::seqpacket::send(&self.socket, &open.to_bytes(self.requests), &[] as &[OwnedFd]).unwrap();
        match receive(&self.socket) {
            (ToPort::Opened(offer), descriptors) => Ok(half_of(&offer, descriptors)),
            (ToPort::Failed { error }, _) => Err(error),
            (answer, _) => panic!("{answer:?}"),
        }
    }

    /// The next channel that somebody opens to this party.
    fn accept(&self) -> ChannelHalf {
        match receive(&self.socket) {
            (ToPort::Accepted(offer), descriptors) => half_of(&offer, descriptors),
            (notice, _) => panic!("{notice:?}"),
        }
    }
}

fn receive(socket: &OwnedFd) -> (ToPort, Vec<OwnedFd>) {
    wait_readable(socket.as_fd());
    let mut bytes = [0; MESSAGE_BYTES_MAX];
    let received = sys::seqpacket::receive(socket, &mut bytes).unwrap();
    (ToPort::from_bytes(&bytes[..received.bytes]).unwrap().1, received.descriptors)
}

fn half_of(offer: &Offer, descriptors: Vec<OwnedFd>) -> ChannelHalf {
    let (files, control) = take_channel_descriptors(descriptors).unwrap();
    let size = offer.ring.map(RingSpec::size).unwrap_or_default();
    ChannelHalf::map(files, offer.role, size, Arc::new(ControlPage::of(control).unwrap())).unwrap()
}

fn put(half: &ChannelHalf, entry: &[u8; ring::ENTRY_BYTES]) {
    let tail = half.own_tail();
    half.write_entry(tail, entry);
    half.set_own_tail(tail.wrapping_add(1));
    half.kick();
}

fn relay_of(client: Endpoint, tag: u32, kind: i32, half: &ChannelHalf) -> Submission {
    let at = tag * SLOT_BYTES;
    half.arena().copy_in(at as usize, &head_of(&Message::new(kind))).unwrap();
    Request::Relay(Relayed { client, limit: Limit::Untimed, data_bytes: 0 }).to_submission(tag, at)
}

/// What the target completed, as tags with status.
fn completed(half: &ChannelHalf) -> Vec<(u32, u32)> {
    let completions = (0..half.peer_tail()).map(|index| Completion::from_bytes(&half.read_entry(index)));
    completions.map(|completion| (completion.tag, completion.status)).collect()
}

const LANE: fn(Endpoint, Endpoint) -> Lane = Lane::delegation;

#[test]
fn programs_speak_for_nobody_else() {
    let world = OneNode::with(Privileges::program());
    let mut target = world.server(Endpoint::DS, 1);
    let (mut program, mut client) = (world.program(), world.program());
    let own = client.endpoint();
    assert_eq!(program.notify_for(Endpoint::FS, Endpoint::DS, 1), Err(IpcError::Denied));
    assert_eq!(program.notify_for(program.endpoint(), Endpoint::DS, 1), Ok(()), "this is its own name");
    thread::scope(|scope| {
        let to = program.endpoint();
        scope.spawn(move || assert_eq!(client.sendrec(to, &Message::new(1), SOON).unwrap().kind, 2));
        let request = program.rcvrqst(SOON).unwrap();
        assert_eq!(program.relay(own, Endpoint::DS, &request), Err(IpcError::Denied));
        program.reply(own, &Message::new(2)).unwrap();
    });
    // Nor does the broker believe a library that asks all the same, by whichever lane.
    let mut raw = Raw::program(&world);
    for lane in [12, 13].map(Lane) {
        assert_eq!(raw.open(Endpoint::DS, lane, DELEGATE_SPEC).unwrap_err(), IpcError::Denied);
    }
    assert!(matches!(target.wait_event(NEVER_MIND), Ok(Event::Notified { mask: 1, .. })));
    assert!(matches!(target.wait_event(NEVER_MIND), Err(IpcError::TimedOut)));
}

#[test]
fn server_delegates_only_to_whom_it_may_send() {
    let world = OneNode::new();
    let _target = world.server(Endpoint::DS, 1);
    let privileges = Privileges { to: broker::Peers::none(), ..Privileges::server() };
    let identity = ServerIdentity { privileges, ..ServerIdentity::new(Endpoint::FS, Epoch(1)) };
    let mut server = Port::from_socket(world.broker.server_socket(DC, identity).unwrap(), None).unwrap();
    assert_eq!(server.notify_for(Endpoint::PM, Endpoint::DS, 1), Err(IpcError::Denied));
}

#[test]
fn delegate_lane_has_one_size() {
    let world = OneNode::new();
    let _target = world.server(Endpoint::DS, 1);
    let mut raw = Raw::server(&world, Endpoint::FS);
    let larger = RingSpec { entries: 128, ..DELEGATE_SPEC };
    let lane = LANE(Endpoint::FS, Endpoint::DS);
    assert_eq!(raw.open(Endpoint::DS, lane, larger).unwrap_err(), IpcError::BadArgument);
    raw.open(Endpoint::DS, lane, DELEGATE_SPEC).unwrap();
    assert_eq!(raw.open(Endpoint::DS, lane, DELEGATE_SPEC).unwrap_err(), IpcError::EndpointInUse);
}

#[test]
fn entries_that_cannot_be_are_refused_one_by_one_and_the_lane_goes_on() {
    let world = OneNode::new();
    let mut target = world.server(Endpoint::DS, 1);
    let client = world.program().endpoint();
    let mut raw = Raw::server(&world, Endpoint::FS);
    let half = raw.open(Endpoint::DS, LANE(Endpoint::FS, Endpoint::DS), DELEGATE_SPEC).unwrap();
    let good = relay_of(client, 0, 7, &half);
    let hostile = [
        Submission { args: [u64::MAX, 0, 0], ..good },
        Submission { args: [8192, 0, 0], ..good },
        // The target itself, as a client and as a source.
        Submission { args: [2, 0, 0], ..good },
        Request::Notify { source: Endpoint::DS, mask: 1 }.to_submission(0, 0),
        Submission { out_bytes: 63, ..good },
        Submission { in_capacity: 0, ..good },
        Submission { op: 9, ..good },
        Submission { flags: u16::MAX, ..good },
    ];
    for (tag, submission) in hostile.iter().enumerate() {
        put(&half, &Submission { tag: tag as u32, ..*submission }.to_bytes());
    }
    put(&half, &Submission { tag: 60, ..good }.to_bytes());
    let Event::Message(request) = target.wait_event(SOON).unwrap() else { panic!("no message") };
    assert_eq!((request.kind, request.source), (7, Some(client)));
    let refused = (0..hostile.len() as u32).map(|tag| (tag, IpcError::BadArgument.code()));
    assert_eq!(completed(&half), Vec::from_iter(refused));
    target.reply(client, &Message::new(8)).unwrap();
    assert_eq!(completed(&half).last(), Some(&(60, 0)));
}

#[test]
fn of_one_client_the_target_owes_one_answer_to_the_request_taken_last() {
    let world = OneNode::new();
    let mut target = world.server(Endpoint::DS, 1);
    let client = world.program().endpoint();
    let mut raw = Raw::server(&world, Endpoint::FS);
    let half = raw.open(Endpoint::DS, LANE(Endpoint::FS, Endpoint::DS), DELEGATE_SPEC).unwrap();
    put(&half, &relay_of(client, 0, 1, &half).to_bytes());
    put(&half, &relay_of(client, 1, 2, &half).to_bytes());
    // The older of two that lie there is not even taken.
    assert_eq!(target.rcvrqst(SOON).unwrap().kind, 2);
    put(&half, &relay_of(client, 2, 3, &half).to_bytes());
    assert_eq!(target.rcvrqst(SOON).unwrap().kind, 3);
    target.reply(client, &Message::new(0)).unwrap();
    assert_eq!(target.reply(client, &Message::new(0)), Err(IpcError::NotWaiting));
    let passed_over = IpcError::NotWaiting.code();
    assert_eq!(completed(&half), [(0, passed_over), (1, passed_over), (2, 0)]);
}

#[test]
fn delegator_that_overruns_its_lane_loses_it_and_nobody_else_notices() {
    let world = OneNode::new();
    let mut target = world.server(Endpoint::DS, 1);
    let mut client = world.program();
    let mut raw = Raw::server(&world, Endpoint::FS);
    let lane = LANE(Endpoint::FS, Endpoint::DS);
    let half = raw.open(Endpoint::DS, lane, DELEGATE_SPEC).unwrap();
    half.set_own_tail(DELEGATE_SPEC.entries + 1);
    half.kick();
    thread::scope(|scope| {
        scope.spawn(|| client.sendrec(Endpoint::DS, &Message::new(1), SOON).unwrap());
        let request = target.rcvrqst(SOON).unwrap();
        target.reply(request.source.unwrap(), &request).unwrap();
        assert!(matches!(target.wait_event(NEVER_MIND), Err(IpcError::TimedOut)));
    });
    assert_eq!(half.peer_closed(), IpcError::Corrupt.code());
    // The broker has forgotten it.
    raw.open(Endpoint::DS, lane, DELEGATE_SPEC).unwrap();
}

/// A client's untimed call that was relayed to a target that completes it so.
fn call_relayed_to(complete: impl FnOnce(&ChannelHalf, Submission)) -> Result<Message, IpcError> {
    let world = OneNode::new();
    let raw = Raw::server(&world, Endpoint::DS);
    let mut delegator = world.server(Endpoint::FS, 1);
    let mut client = world.program();
    let own = client.endpoint();
    thread::scope(|scope| {
        let calling = scope.spawn(move || {
            let result = client.sendrec(Endpoint::FS, &Message::new(1), Wait::Forever);
            // Whatever the target did, the delegator is well.
            assert_eq!(client.sendrec(Endpoint::FS, &Message::new(2), SOON).unwrap().kind, 3);
            result
        });
        let request = delegator.rcvrqst(SOON).unwrap();
        delegator.relay(own, Endpoint::DS, &request).unwrap();
        let half = raw.accept();
        complete(&half, Submission::from_bytes(&half.read_entry(0)));
        assert_eq!(delegator.rcvrqst(SOON).unwrap().kind, 2, "and the first call was not made again");
        delegator.reply(own, &Message::new(3)).unwrap();
        calling.join().unwrap()
    })
}

#[test]
fn target_that_completes_what_cannot_be_ends_the_call_with_a_typed_error() {
    let complete = |change: fn(Completion) -> Completion| {
        call_relayed_to(move |half, submission| {
            let honest = Completion { tag: submission.tag, in_bytes: Message::BYTES as u32, ..Completion::default() };
            put(half, &change(honest).to_bytes());
        })
    };
    assert!(complete(|honest| honest).is_ok());
    let broken: [fn(Completion) -> Completion; 6] = [
        |honest| Completion { tag: 5, ..honest },
        |honest| Completion { tag: u32::MAX, ..honest },
        |honest| Completion { in_bytes: 63, ..honest },
        |honest| Completion { in_bytes: SLOT_BYTES + 1, ..honest },
        |honest| Completion { in_bytes: u32::MAX, ..honest },
        |honest| Completion { reserved: 1, ..honest },
    ];
    for change in broken {
        assert_eq!(complete(change), Err(IpcError::Corrupt));
    }
    // Errors that would mean something else to the client, as that its channel gave way and the call is to be made
    // again.
    for error in [IpcError::EndpointInUse, IpcError::TimedOut, IpcError::Denied] {
        let status = error.code();
        let result = call_relayed_to(move |half, submission| {
            put(half, &Completion { tag: submission.tag, status, ..Completion::default() }.to_bytes());
        });
        assert_eq!(result, Err(IpcError::SourceDied));
    }
}

/// A target took a request by relay, then the delegator closed its lane. The target can call the client, who waits for
/// nothing.
fn delegator_closes(meanwhile: impl FnOnce(&OneNode, &mut Port)) {
    let world = OneNode::new();
    let mut target = world.server(Endpoint::DS, 1);
    let mut client = world.program();
    let own = client.endpoint();
    let mut raw = Raw::server(&world, Endpoint::FS);
    let half = raw.open(Endpoint::DS, LANE(Endpoint::FS, Endpoint::DS), DELEGATE_SPEC).unwrap();
    put(&half, &relay_of(own, 0, 1, &half).to_bytes());
    assert_eq!(target.rcvrqst(SOON).unwrap().source, Some(own));
    // The broker does not hear of it.
    half.set_own_closed(IpcError::NotBound.code());
    half.kick();
    meanwhile(&world, &mut target);
    thread::scope(|scope| {
        scope.spawn(move || {
            let request = client.rcvrqst(SOON).unwrap();
            client.reply(Endpoint::DS, &Message::new(request.kind + 1)).unwrap();
            assert_eq!(client.receive(Source::From(Endpoint::DS), SOON).unwrap().kind, 4);
        });
        assert_eq!(target.sendrec(own, &Message::new(2), SOON).unwrap().kind, 3);
        assert_eq!(target.send(own, &Message::new(4), SOON), Ok(()));
    });
}

#[test]
fn client_of_a_delegator_that_closed_can_be_called() {
    delegator_closes(|_, _| {});
}

#[test]
fn client_of_a_delegator_that_closed_while_its_target_called_another_can_be_called() {
    delegator_closes(|world, target| {
        let deaf = world.program();
        assert_eq!(target.sendrec(deaf.endpoint(), &Message::new(1), NEVER_MIND), Err(IpcError::TimedOut));
        assert_eq!(target.receive(Source::Any, NEVER_MIND), Err(IpcError::TimedOut));
    });
}

#[test]
fn clients_of_a_delegator_have_their_turns_beside_one_who_calls_all_the_time() {
    const CLIENTS: usize = 6;
    let world = OneNode::new();
    let (mut delegator, mut target) = (world.server(Endpoint::FS, 1), world.server(Endpoint::DS, 1));
    let mut busy = world.program();
    let busy_endpoint = busy.endpoint();
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        let calling = Vec::from_iter((0..CLIENTS).map(|_| {
            let mut client = world.program();
            scope.spawn(move || client.sendrec(Endpoint::FS, &Message::new(1), SOON).unwrap())
        }));
        for _ in 0..CLIENTS {
            let request = delegator.rcvrqst(SOON).unwrap();
            delegator.relay(request.source.unwrap(), Endpoint::DS, &request).unwrap();
        }
        let delegating = scope.spawn(move || delegator.receive(Source::Any, SOON).unwrap());
        let calling_all_the_time = scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                busy.sendrec(Endpoint::DS, &Message::new(2), SOON).unwrap();
            }
        });
        let (mut of_busy, mut of_others) = (0, 0);
        while of_others < CLIENTS {
            let request = target.rcvrqst(SOON).unwrap();
            let from = request.source.unwrap();
            // Before the lane was noticed there was nobody else.
            let is_noticed = of_others > 0;
            if from == busy_endpoint {
                of_busy += usize::from(is_noticed)
            } else {
                of_others += 1
            }
            is_over.store(of_others == CLIENTS, Ordering::Relaxed);
            target.reply(from, &request).unwrap();
        }
        assert!(of_busy <= 1, "one was passed over {of_busy} times");
        // Its last call, if it made one.
        while !calling_all_the_time.is_finished() {
            let _ = target.rcvrqst(NEVER_MIND).map(|request| target.reply(request.source.unwrap(), &request));
        }
        for client in calling {
            client.join().unwrap();
        }
        world.program().send(Endpoint::FS, &Message::new(0), SOON).unwrap();
        delegating.join().unwrap();
    });
}

#[test]
fn lane_that_carries_nothing_makes_room_for_another_target() {
    let world = OneNode::new();
    let mut delegator = world.server(Endpoint::FS, 1);
    let count = abi::limits::DELEGATES_PER_ENDPOINT as u32 + 4;
    let numbers = Vec::from_iter((100..100 + count).map(|number| Endpoint::new(number).unwrap()));
    let mut targets = Vec::from_iter(numbers.iter().map(|number| world.server(*number, 1)));
    for _ in 0..2 {
        for (number, target) in numbers.iter().zip(&mut targets) {
            delegator.notify_for(Endpoint::PM, *number, 1).unwrap();
            let event = target.wait_event(SOON).unwrap();
            assert!(matches!(event, Event::Notified { from: Endpoint::PM, mask: 1 }), "{event:?}");
        }
    }
    // Of those that are not looked at, none can be given up.
    let results = Vec::from_iter(numbers.iter().map(|number| delegator.notify_for(Endpoint::PM, *number, 1)));
    let (given, refused) = results.split_at(abi::limits::DELEGATES_PER_ENDPOINT);
    assert!(given.iter().all(Result::is_ok), "{given:?}");
    assert!(refused.iter().all(|result| *result == Err(IpcError::TableFull)), "{refused:?}");
}
