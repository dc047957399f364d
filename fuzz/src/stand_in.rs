//! A channel to another node, whose local party writes what the input says, between what its proxy does with it.
//!
//! The first byte says who opened the channel and whether it is a ring; then steps as in the module `channel`.

use std::cell::RefCell;
use std::time::Duration;

use abi::Lane;
use abi::limits::INLINE_BYTES_MAX;
use broker::{Broker, BrokerConfig, DcOptions, Directory, Location};
use ipc::stand_in::{Carried, LinkState, OpenIn, ProxiedChannel, StandInEvent, StandInPort};
use ipc::{Completion, DcId, Endpoint, Epoch, IpcError, NodeId, RingSpec, Submission, Wait};

use crate::bytes::Bytes;
use crate::channel::{SPEC, run};
use crate::member::{Channel, DC, MEMBER, Member};

const FAR: NodeId = NodeId(2);
const REMOTE: Endpoint = Endpoint::FS;
const LIMIT: Wait = Wait::For(Duration::from_secs(10));

thread_local! {
    static NODE: RefCell<Node> = RefCell::new(Node::new());
}

/// A broker, its proxy, and a member that keeps no rule.
struct Node {
    broker: Broker,
    proxy: StandInPort,
    member: Member,
}

struct Places;

impl Directory for Places {
    fn locate(&mut self, _: DcId, endpoint: Endpoint) -> Location {
        if endpoint == REMOTE { Location::Remote { node: FAR, epoch: Epoch(1) } } else { Location::Unknown }
    }

    fn find(&mut self, _: DcId, _: i32) -> Option<Endpoint> {
        None
    }

    fn bound(&mut self, _: DcId, _: Endpoint, _: i32, _: Epoch) {}

    fn unbound(&mut self, _: DcId, _: Endpoint, _: Epoch) {}
}

impl Node {
    fn new() -> Node {
        let config = BrokerConfig { node: NodeId(1), directory: Box::new(Places), ..BrokerConfig::local() };
        let broker = Broker::start(config).unwrap();
        broker.add_dc(DC, DcOptions::default()).unwrap();
        let mut proxy = StandInPort::from_socket(broker.proxy_socket().unwrap()).unwrap();
        proxy.link(FAR, LinkState::Up).unwrap();
        let member = Member::join(&broker);
        Node { broker, proxy, member }
    }

    fn open(&mut self, is_by_member: bool, ring: Option<RingSpec>) -> (Channel, ProxiedChannel) {
        if is_by_member {
            let channel = self.member.open(REMOTE, ring);
            return (channel, self.hear(|event| matches!(event, StandInEvent::OpenOut(_))));
        }
        let open = OpenIn {
            dc: DC,
            caller: REMOTE,
            node: FAR,
            target: MEMBER,
            lane: Lane::MESSAGES,
            ring,
            peer_channel: 1,
            incarnation: None,
        };
        let lane = if ring.is_some() { Lane(1) } else { Lane::MESSAGES };
        self.proxy.open_in(&OpenIn { lane, ..open }).unwrap();
        let proxied = self.hear(|event| matches!(event, StandInEvent::OpenedIn { .. }));
        (self.member.accept(), proxied)
    }

    fn hear(&mut self, is_meant: impl Fn(&StandInEvent) -> bool) -> ProxiedChannel {
        loop {
            match self.proxy.wait_event(LIMIT).expect("the broker tells") {
                event if !is_meant(&event) => {}
                StandInEvent::OpenOut(channel) => return channel,
                StandInEvent::OpenedIn { result, .. } => return result.expect("nothing is in the way"),
                event => panic!("{event:?}"),
            }
        }
    }

    /// As a proxy ends a channel whose party broke the protocol.
    fn close(&mut self, proxied: &ProxiedChannel) {
        let channel = proxied.info().channel;
        self.proxy.close(channel, IpcError::Corrupt).unwrap();
        while !matches!(self.proxy.wait_event(LIMIT), Ok(StandInEvent::Closed { channel: ended, .. }) if ended == channel)
        {
        }
        assert!(self.broker.snapshot().is_ok(), "the broker lives");
    }
}

/// What a local party writes, at the proxy of its node.
pub fn stand_in(data: &[u8]) {
    NODE.with_borrow_mut(|node| {
        let mut bytes = Bytes(data);
        let kind = bytes.u8();
        let (channel, proxied) = node.open(kind & 1 == 0, (kind & 2 != 0).then_some(SPEC));
        let mut forwarded = 0;
        let proxy = &mut node.proxy;
        let call = |step: u8, bytes: &mut Bytes<'_>| match step % 16 {
            0 => drop(proxy.wait_event(Wait::NoWait)),
            1 => drop(proxy.look()),
            ring @ 2..=7 => carry_entries(ring, bytes, &proxied),
            messages => carry_messages(messages, bytes, &proxied, &mut forwarded),
        };
        run(bytes.0, call, &channel);
        node.close(&proxied);
        drop(channel);
    });
}

fn carry_messages(step: u8, bytes: &mut Bytes<'_>, proxied: &ProxiedChannel, forwarded: &mut u32) {
    match step {
        8 | 9 => {
            if let Ok(Some(message)) = proxied.outbound(*forwarded) {
                assert!(message.word != *forwarded && message.inline.len() <= INLINE_BYTES_MAX);
                *forwarded = message.word;
            }
        }
        10 => proxied.mark_taken(*forwarded),
        11 => {
            if let Some(word) = proxied.cancel_requested() {
                proxied.settle_withdrawn(word);
            }
        }
        12 | 13 => {
            let (word, inline) = (bytes.u32(), bytes.take(9).to_vec());
            let message = Carried { word, kind: 1, payload: [7; 56], inline };
            if proxied.publish(&message).is_ok() {
                assert_eq!(proxied.published(), word);
            }
        }
        14 => drop(proxied.withdraw(proxied.published())),
        _ => {
            if let Some((number, bits)) = proxied.pending_notification() {
                assert_ne!(bits, 0);
                proxied.confirm_notification(number);
            }
            proxied.notify(proxied.notified() + 1, u64::from(bytes.u8()));
            let _ = (proxied.taken(), proxied.acknowledged(), proxied.is_closed());
        }
    }
}

fn carry_entries(step: u8, bytes: &mut Bytes<'_>, proxied: &ProxiedChannel) {
    let arena = proxied.arena();
    let whole = |offset: u32, count: u32| arena.to_vec(offset as usize, count as usize).expect("was checked");
    match step {
        2 | 3 => {
            let Ok(cursor) = proxied.submissions() else { return };
            assert!(cursor.waiting() <= SPEC.entries);
            for index in 0..cursor.waiting() {
                if let Ok(request) = proxied.submission(cursor.head.wrapping_add(index)) {
                    whole(request.arena_offset, request.out_bytes);
                }
            }
            proxied.confirm_submissions(cursor.head.wrapping_add(bytes.u8().into()));
        }
        4 => {
            let Ok(cursor) = proxied.completions() else { return };
            assert!(cursor.waiting() <= SPEC.entries);
            if let Ok(answer) = proxied.completion(cursor.head) {
                whole(0, answer.in_bytes);
            }
            proxied.confirm_completions(cursor.tail);
        }
        5 => {
            let put = proxied.submissions_put();
            let request = Submission { tag: put, arena_offset: bytes.u32(), ..Submission::default() };
            let is_put = proxied.put_submission(&request).is_ok();
            assert_eq!(proxied.submissions_put(), put.wrapping_add(is_put.into()));
        }
        6 => drop(proxied.put_completion(&Completion { tag: bytes.u32(), ..Completion::default() })),
        _ => proxied.kick(),
    }
}
