//! What a link does when a peer is silent, old, wrong or hostile.

#[path = "sim/memory.rs"]
mod memory;

use std::cell::RefCell;
use std::num::NonZeroU64;
use std::rc::Rc;
use std::time::Duration;

use abi::layout::word;
use abi::ring::{Completion, Submission};
use abi::{DcId, Endpoint, Epoch, IpcError, Lane, NodeId, PairId};
use memory::{ARENA_BYTES, ENTRIES, Memory, SimChannel, State};
use proptest::prelude::*;
use proxy_link::{
    Action, Carried, Ends, Identity, InBuffer, Indices, LinkError, LinkTimes, LocalChannel, LocalRole, Peer, Phase,
    Refusal, RingSpec, WireChannel,
};

const NOW: Duration = Duration::from_secs(1);

fn identity(id: u16) -> Identity {
    Identity { cluster: "c1".into(), node: format!("n{id}"), id: NodeId(id) }
}

fn peer(me: u16, incarnation: u64, far: u16) -> Peer<SimChannel> {
    Peer::new(identity(me), Epoch(incarnation), identity(far), LinkTimes::default(), NOW)
}

fn ring_ends() -> Ends {
    let ring = Some(RingSpec { entries: ENTRIES, arena_bytes: ARENA_BYTES });
    Ends { dc: DcId(1), from: Endpoint::GATE, to: Endpoint::FS, lane: Lane(1), ring, incarnation: NonZeroU64::new(7) }
}

fn memory(role: LocalRole) -> SimChannel {
    SimChannel(Rc::new(RefCell::new(Memory::new(role))))
}

/// Moves all bytes both ways until nothing moves; the first error of either side.
fn exchange(a: &mut Peer<SimChannel>, b: &mut Peer<SimChannel>, now: Duration) -> Result<(), LinkError> {
    for _ in 0..20 {
        carry(a, b, now)?;
        carry(b, a, now)?;
    }
    Ok(())
}

fn carry(from: &mut Peer<SimChannel>, to: &mut Peer<SimChannel>, now: Duration) -> Result<(), LinkError> {
    from.fill(now);
    let bytes = from.outgoing().pending().to_vec();
    from.sent(now, bytes.len());
    let mut input = InBuffer::new();
    assert_eq!(input.append(&bytes), bytes.len());
    if to.phase() == Phase::Apart && !bytes.is_empty() {
        let whole = wire::frame_bytes(&bytes).expect("a frame").expect("whole");
        let wire::Frame::Hello(hello) = wire::Frame::decode(&bytes[..whole]).expect("a frame") else { panic!("HELLO") };
        to.accepted(now, &hello)?;
        input.consume(whole);
    }
    to.receive(&mut input, now)
}

/// Two peers, linked.
fn linked() -> (Peer<SimChannel>, Peer<SimChannel>) {
    let (mut a, mut b) = (peer(1, 1, 2), peer(2, 1, 1));
    a.dialled(NOW);
    exchange(&mut a, &mut b, NOW).expect("both are correct");
    assert_eq!((a.phase(), b.phase()), (Phase::Up, Phase::Up));
    (a, b)
}

/// A ring from a process at `a` to a server at `b`, open.
fn opened(a: &mut Peer<SimChannel>, b: &mut Peer<SimChannel>) -> (WireChannel, SimChannel, SimChannel) {
    let (client, server) = (memory(LocalRole::Client), memory(LocalRole::Server));
    let Ok(channel) = a.open_out(7, ring_ends(), client.clone()) else { panic!("admitted") };
    exchange(a, b, NOW).expect("correct");
    let asked = actions(b).into_iter().find_map(|action| match action {
        Action::OpenIn { channel, ends } => Some((channel, ends)),
        _ => None,
    });
    assert_eq!(asked, Some((channel, ring_ends())));
    assert!(b.opened_in(channel, ring_ends(), Ok(server.clone())).is_ok());
    exchange(a, b, NOW).expect("correct");
    (channel, client, server)
}

fn actions(peer: &mut Peer<SimChannel>) -> Vec<Action<SimChannel>> {
    std::iter::from_fn(|| peer.next_action()).collect()
}

/// How the broker was told that a channel closed.
fn closed(peer: &mut Peer<SimChannel>) -> Option<IpcError> {
    actions(peer).into_iter().find_map(|action| match action {
        Action::Close { reason, .. } => Some(reason),
        _ => None,
    })
}

fn submit(client: &SimChannel, tag: u32, bytes: u32) {
    let mut memory = client.0.borrow_mut();
    let tail = memory.submission_cursor.tail;
    let entry = Submission { tag, out_bytes: bytes, in_capacity: 8, ..Submission::default() };
    memory.submissions.insert(tail % ENTRIES, entry);
    memory.submission_cursor.tail += 1;
}

fn complete(server: &SimChannel, completion: Completion) {
    let mut memory = server.0.borrow_mut();
    let tail = memory.completion_cursor.tail;
    memory.completions.insert(tail % ENTRIES, completion);
    memory.completion_cursor.tail += 1;
}

#[test]
fn silent_peer_is_suspected_then_given_up_and_its_channels_end() {
    let (mut a, mut b) = linked();
    let (..) = opened(&mut a, &mut b);
    actions(&mut a);
    assert_eq!(a.tick(NOW + Duration::from_millis(299)), Ok(()));
    assert!(actions(&mut a).is_empty());
    assert_eq!(a.tick(NOW + Duration::from_millis(300)), Ok(()));
    assert!(matches!(actions(&mut a)[..], [Action::Suspect]));
    assert!(matches!(a.tick(NOW + Duration::from_millis(1000)), Err(LinkError::Silent { .. })));
    assert!(matches!(actions(&mut a)[..], [Action::Forget { .. }, Action::Down]));
    assert!(matches!(a.open_out(8, ring_ends(), memory(LocalRole::Client)), Err((_, IpcError::NoLink))));
}

/// Whether the peer was given up by what was done: its channels ended, then everybody was told.
fn has_given_up(told: &[Action<SimChannel>]) -> bool {
    matches!(told, [.., Action::Forget { .. }, Action::Down])
}

#[test]
fn peer_that_takes_every_connection_and_lets_nobody_in_is_given_up() {
    let (mut a, mut b) = linked();
    opened(&mut a, &mut b);
    actions(&mut a);
    let steps = (1..=8).map(|step| NOW + Duration::from_millis(400) * step);
    let given_up = steps.into_iter().find(|now| {
        a.cut();
        a.dialled(*now);
        assert_eq!(a.tick(*now), Ok(()), "the new connection is not at fault");
        has_given_up(&actions(&mut a))
    });
    assert_eq!(given_up, Some(NOW + Duration::from_millis(3200)));
    assert_eq!(a.phase(), Phase::Greeting);
    assert!(matches!(a.open_out(8, ring_ends(), memory(LocalRole::Client)), Err((_, IpcError::NoLink))));
}

#[test]
fn peer_that_dials_again_and_again_and_refuses_every_answer_is_given_up() {
    let (mut a, mut b) = linked();
    opened(&mut a, &mut b);
    actions(&mut b);
    let refuse = LinkError::Refuse { refusal: Refusal::Fenced, reason: String::new() };
    let refusal = proxy_link::refusal(&refuse).expect("has a frame");
    let steps = (1..=8).map(|step| NOW + Duration::from_millis(400) * step);
    let given_up = steps.into_iter().find(|now| {
        a.cut();
        b.cut();
        a.dialled(*now);
        // Its silence is never judged between two connections.
        carry(&mut a, &mut b, *now).expect("correct");
        assert_eq!(b.phase(), Phase::Resyncing);
        let mut input = InBuffer::new();
        input.append(&refusal);
        assert!(matches!(b.receive(&mut input, *now), Err(LinkError::Refused { .. })));
        has_given_up(&actions(&mut b))
    });
    assert_eq!(given_up, Some(NOW + Duration::from_millis(3200)));
}

#[test]
fn peer_that_never_was_reached_is_given_up_although_it_takes_connections() {
    let mut a = peer(1, 1, 2);
    let steps = (1..=8).map(|step| NOW + Duration::from_millis(400) * step);
    let given_up = steps.into_iter().find(|now| {
        a.cut();
        a.dialled(*now);
        assert_eq!(a.tick(*now), Ok(()));
        matches!(actions(&mut a)[..], [.., Action::Down])
    });
    assert_eq!(given_up, Some(NOW + Duration::from_millis(3200)));
}

#[test]
fn comparison_of_channels_may_outlast_the_limit_while_the_peer_is_heard() {
    let (mut a, mut b) = linked();
    let (_, client, server) = opened(&mut a, &mut b);
    actions(&mut a);
    a.cut();
    b.cut();
    let at = |millis| NOW + Duration::from_millis(millis);
    a.dialled(at(900));
    carry(&mut a, &mut b, at(900)).expect("correct");
    let Action::Up = exchange_slowly(&mut a, &mut b, at(900), at(1500)) else { panic!("not up") };
    submit(&client, 1, 4);
    a.active(WireChannel { opener: NodeId(1), number: 7 });
    exchange(&mut a, &mut b, at(1500)).expect("correct");
    assert_eq!(server.submissions_put(), 1, "the channel is there");
}

/// What `b` has to say trickles in until the given moment; what happened at `a` in the end.
fn exchange_slowly(
    a: &mut Peer<SimChannel>,
    b: &mut Peer<SimChannel>,
    from: Duration,
    until: Duration,
) -> Action<SimChannel> {
    b.fill(from);
    let bytes = b.outgoing().pending().to_vec();
    b.sent(from, bytes.len());
    let mut input = InBuffer::new();
    let mut frames = Vec::new();
    let mut rest = &bytes[..];
    while !rest.is_empty() {
        let whole = wire::frame_bytes(rest).expect("a frame").expect("whole");
        let (frame, behind) = rest.split_at(whole);
        frames.push(frame);
        rest = behind;
    }
    let pause = (until - from) / frames.len() as u32;
    let mut now = from;
    for frame in frames {
        assert_eq!(a.tick(now), Ok(()));
        assert!(!actions(a).iter().any(|action| matches!(action, Action::Down)), "given up at {now:?}");
        now += pause;
        input.append(frame);
        a.receive(&mut input, now).expect("correct");
        a.fill(now);
    }
    actions(a).pop().expect("something happened")
}

#[test]
fn peer_that_comes_back_closes_what_the_other_gave_up_and_new_channels_work() {
    let (mut a, mut b) = linked();
    opened(&mut a, &mut b);
    // Only one way is silent.
    let later = NOW + Duration::from_millis(900);
    assert_eq!(a.tick(later), Ok(()));
    carry(&mut a, &mut b, later).expect("correct");
    let later = NOW + Duration::from_millis(1500);
    assert!(a.tick(later).is_err() && b.tick(later).is_ok());
    a.cut();
    b.cut();
    assert!(has_given_up(&actions(&mut a)));
    actions(&mut b);
    a.dialled(later);
    exchange(&mut a, &mut b, later).expect("correct");
    assert_eq!(closed(&mut b), Some(IpcError::SourceDied));
    assert!(matches!(actions(&mut a)[..], [Action::Up]));
    assert!(a.open_out(9, ring_ends(), memory(LocalRole::Client)).is_ok());
}

#[test]
fn heartbeats_keep_an_idle_link_from_suspicion() {
    let (mut a, mut b) = linked();
    actions(&mut a);
    actions(&mut b);
    for step in 1..100 {
        let now = NOW + Duration::from_millis(100) * step;
        assert_eq!((a.tick(now), b.tick(now)), (Ok(()), Ok(())));
        exchange(&mut a, &mut b, now).expect("correct");
    }
    assert!(actions(&mut a).is_empty() && actions(&mut b).is_empty());
}

#[test]
fn heartbeat_that_measures_is_answered_at_once_and_the_answer_is_not() {
    let (mut a, mut b) = linked();
    assert_eq!(a.round_trip(), None);
    let millis = Duration::from_millis;
    a.tick(NOW + millis(100)).expect("alive");
    carry(&mut a, &mut b, NOW + millis(102)).expect("correct");
    let (sent_a, sent_b) = (a.counters().sent_frames, b.counters().sent_frames);
    carry(&mut b, &mut a, NOW + millis(104)).expect("correct");
    assert_eq!(a.round_trip(), Some(millis(4)));
    exchange(&mut a, &mut b, NOW + millis(104)).expect("correct");
    // The answer was a heartbeat that was due and measures too, so it was answered; and that is all.
    assert_eq!((a.counters().sent_frames, b.counters().sent_frames), (sent_a + 1, sent_b + 1));
    assert_eq!(b.round_trip(), Some(Duration::ZERO));
}

#[test]
fn proxy_that_was_replaced_cannot_come_back() {
    let mut b = peer(2, 1, 1);
    let mut newer = peer(1, 5, 2);
    newer.dialled(NOW);
    exchange(&mut newer, &mut b, NOW).expect("correct");
    b.cut();
    let mut older = peer(1, 4, 2);
    older.dialled(NOW);
    let refused = carry(&mut older, &mut b, NOW);
    assert!(matches!(&refused, Err(LinkError::Refuse { refusal: Refusal::Fenced, .. })), "{refused:?}");

    // And the refused one learns why.
    let mut input = InBuffer::new();
    input.append(&proxy_link::refusal(&refused.expect_err("refused")).expect("has a frame"));
    let told = older.receive(&mut input, NOW);
    assert!(matches!(told, Err(LinkError::Refused { refusal: Refusal::Fenced, .. })));
}

#[test]
fn older_connection_of_the_same_proxy_does_not_replace_a_newer_one() {
    let (mut a, mut b) = (peer(1, 1, 2), peer(2, 1, 1));
    a.dialled(NOW);
    let first = a.outgoing().pending().to_vec();
    a.cut();
    a.dialled(NOW);
    exchange(&mut a, &mut b, NOW).expect("correct");
    let Ok(wire::Frame::Hello(hello)) = wire::Frame::decode(&first) else { panic!("HELLO") };
    assert!(matches!(b.accepted(NOW, &hello), Err(LinkError::Refuse { refusal: Refusal::Fenced, .. })));
}

#[test]
fn node_of_another_cluster_or_name_is_refused() {
    let stranger = Identity { cluster: "c2".into(), ..identity(1) };
    let mut a = Peer::<SimChannel>::new(stranger, Epoch(1), identity(2), LinkTimes::default(), NOW);
    a.dialled(NOW);
    let refused = carry(&mut a, &mut peer(2, 1, 1), NOW);
    assert!(matches!(refused, Err(LinkError::Refuse { refusal: Refusal::Cluster, .. })));
    let mut a = peer(1, 1, 2);
    a.dialled(NOW);
    let refused = carry(&mut a, &mut peer(2, 1, 3), NOW);
    assert!(matches!(refused, Err(LinkError::Refuse { refusal: Refusal::Identity, .. })));
}

#[test]
fn proxy_of_another_pair_is_refused_by_who_dials_and_by_who_is_dialled() {
    let of_pair = |mut peer: Peer<SimChannel>, number| {
        peer.set_pair(PairId::new(number).expect("below the limit"));
        peer.dialled(NOW);
        peer
    };
    let mut a = of_pair(peer(1, 1, 2), 1);
    let refused = carry(&mut a, &mut peer(2, 1, 1), NOW);
    assert!(matches!(refused, Err(LinkError::Refuse { refusal: Refusal::Identity, .. })));
    // And one that answers although it is of another.
    let (mut a, mut b) = (of_pair(peer(1, 1, 2), 0), of_pair(peer(2, 1, 1), 2));
    let refused = carry(&mut b, &mut a, NOW);
    assert!(matches!(refused, Err(LinkError::Refuse { refusal: Refusal::Identity, .. })));
    let (mut a, mut b) = (of_pair(peer(1, 1, 2), 3), peer(2, 1, 1));
    b.set_pair(PairId::new(3).expect("below the limit"));
    exchange(&mut a, &mut b, NOW).expect("the same pair");
}

#[test]
fn server_that_dies_is_told_after_everything_it_completed() {
    let (mut a, mut b) = linked();
    let (channel, client, server) = opened(&mut a, &mut b);
    submit(&client, 1, 4);
    submit(&client, 2, 4);
    a.active(channel);
    exchange(&mut a, &mut b, NOW).expect("correct");
    complete(&server, Completion { tag: 1, ..Completion::default() });
    b.closed_here(channel, IpcError::SourceDied);
    actions(&mut a);
    exchange(&mut a, &mut b, NOW).expect("correct");
    assert_eq!(client.0.borrow().completion_cursor.tail, 1, "the completion came");
    assert_eq!(closed(&mut a), Some(IpcError::SourceDied));
    assert_eq!((a.channel_count(), b.channel_count()), (0, 0));
}

/// A connection is gone for both, with all that was under way, and there is another.
fn reconnect(a: &mut Peer<SimChannel>, b: &mut Peer<SimChannel>) {
    a.cut();
    b.cut();
    a.dialled(NOW);
    exchange(a, b, NOW).expect("correct");
}

/// What `from` has to say is sent and does not arrive.
fn lose(from: &mut Peer<SimChannel>) {
    from.fill(NOW);
    let bytes = from.outgoing().pending().len();
    assert!(bytes > 0, "nothing to lose");
    from.sent(NOW, bytes);
}

#[test]
fn last_word_and_the_reason_of_an_end_survive_the_connection_that_lost_them() {
    // Lost: before it was sent, on its way, on its way a second time.
    for times in 0..3 {
        let (mut a, mut b) = linked();
        let (channel, client, server) = opened(&mut a, &mut b);
        submit(&client, 1, 4);
        a.active(channel);
        exchange(&mut a, &mut b, NOW).expect("correct");
        actions(&mut a);
        complete(&server, Completion { tag: 1, ..Completion::default() });
        b.closed_here(channel, IpcError::Denied);
        for _ in 1..times {
            lose(&mut b);
            a.cut();
            b.cut();
            a.dialled(NOW);
            while b.phase() != Phase::Up {
                carry(&mut a, &mut b, NOW).expect("correct");
                if b.phase() != Phase::Up {
                    carry(&mut b, &mut a, NOW).expect("correct");
                }
            }
        }
        if times > 0 {
            lose(&mut b);
        }
        assert_eq!(client.0.borrow().completion_cursor.tail, 0, "lost");
        reconnect(&mut a, &mut b);
        assert_eq!(client.0.borrow().completion_cursor.tail, 1, "the completion came");
        assert_eq!(closed(&mut a), Some(IpcError::Denied));
        assert_eq!((a.channel_count(), b.channel_count()), (0, 0));
    }
}

#[test]
fn end_whose_confirmation_was_lost_is_told_once() {
    let (mut a, mut b) = linked();
    let (channel, ..) = opened(&mut a, &mut b);
    actions(&mut b);
    b.closed_here(channel, IpcError::Denied);
    carry(&mut b, &mut a, NOW).expect("correct");
    assert_eq!(closed(&mut a), Some(IpcError::Denied));
    assert_eq!((a.channel_count(), b.channel_count()), (0, 1), "the confirmation is under way");
    lose(&mut a);
    reconnect(&mut a, &mut b);
    assert_eq!(closed(&mut a), None);
    assert!(matches!(actions(&mut b)[..], [Action::Forget { .. }, Action::Up]));
    assert_eq!((a.channel_count(), b.channel_count()), (0, 0));
}

#[test]
fn ends_of_both_sides_that_cross_are_one() {
    let (mut a, mut b) = linked();
    let (channel, ..) = opened(&mut a, &mut b);
    actions(&mut a);
    actions(&mut b);
    a.closed_here(channel, IpcError::SourceDied);
    b.closed_here(channel, IpcError::Denied);
    a.fill(NOW);
    b.fill(NOW);
    exchange(&mut a, &mut b, NOW).expect("correct");
    assert!(matches!(actions(&mut a)[..], [Action::Forget { .. }]));
    assert!(matches!(actions(&mut b)[..], [Action::Forget { .. }]));
    assert_eq!((a.channel_count(), b.channel_count()), (0, 0));
}

#[test]
fn next_channel_of_a_pair_waits_behind_an_end_that_is_told_again() {
    let (mut a, mut b) = linked();
    let last = open_talk(&mut a, 1, 7);
    exchange(&mut a, &mut b, NOW).expect("correct");
    assert!(b.opened_in(last, talk_ends(1), Ok(memory(LocalRole::Server))).is_ok());
    exchange(&mut a, &mut b, NOW).expect("correct");
    actions(&mut b);
    a.closed_here(last, IpcError::Moved);
    lose(&mut a);
    let next = open_talk(&mut a, 1, 8);
    lose(&mut a);
    reconnect(&mut a, &mut b);
    let told = actions(&mut b);
    assert!(matches!(told[0], Action::Up));
    assert!(matches!(told[1], Action::Close { channel, reason: IpcError::Moved, .. } if channel == last));
    assert_eq!(asked(&told), [next]);
}

#[test]
fn channel_that_breaks_while_channels_are_compared_ends_on_both_nodes() {
    let (mut a, mut b) = linked();
    let (_, _, server) = opened(&mut a, &mut b);
    a.cut();
    b.cut();
    a.dialled(NOW);
    carry(&mut a, &mut b, NOW).expect("correct");
    // `b` lists it, and finds then that its party lies.
    carry(&mut b, &mut a, NOW).expect("correct");
    server.0.borrow_mut().completion_cursor = Indices { head: 1, tail: 1 };
    actions(&mut b);
    exchange(&mut a, &mut b, NOW).expect("correct");
    assert_eq!(closed(&mut a), Some(IpcError::Corrupt));
    assert_eq!(closed(&mut b), Some(IpcError::Corrupt));
    assert_eq!((a.channel_count(), b.channel_count()), (0, 0));
}

#[test]
fn peer_that_opens_and_closes_and_never_listens_is_cut() {
    let (mut a, mut b) = linked();
    let mut number = 0;
    let refused = loop {
        number += 1;
        let channel = WireChannel { opener: NodeId(1), number };
        let Ends { dc, from, to, lane, ring, incarnation } = ring_ends();
        let mut input = InBuffer::new();
        for frame in [
            wire::Frame::Open { channel, dc, from, to, lane, ring, incarnation },
            wire::Frame::Close { channel, reason: IpcError::NotBound },
        ] {
            let mut bytes = Vec::new();
            frame.encode(&mut bytes);
            input.append(&bytes);
        }
        if let Err(error) = b.receive(&mut input, NOW) {
            break error;
        }
        actions(&mut b);
        assert!(number <= proxy_link::limits::NEWS_MAX as u64, "without a bound");
    };
    assert!(matches!(refused, LinkError::TooManyChannels(_)), "{refused:?}");
    actions(&mut a);
}

#[test]
fn peer_that_opens_one_channel_for_ever_and_never_listens_is_cut() {
    let (mut a, mut b) = linked();
    let (channel, ..) = opened(&mut a, &mut b);
    let Ends { dc, from, to, lane, ring, incarnation } = ring_ends();
    let mut open = Vec::new();
    wire::Frame::Open { channel, dc, from, to, lane, ring, incarnation }.encode(&mut open);
    let mut repeated = 0;
    let refused = loop {
        let mut input = InBuffer::new();
        input.append(&open);
        if let Err(error) = b.receive(&mut input, NOW) {
            break error;
        }
        repeated += 1;
        assert!(repeated <= proxy_link::limits::NEWS_MAX, "without a bound");
    };
    assert!(matches!(refused, LinkError::TooManyChannels(_)), "{refused:?}");
}

#[test]
fn channel_nobody_can_open_is_closed_with_the_brokers_reason() {
    let (mut a, mut b) = linked();
    let Ok(channel) = a.open_out(7, ring_ends(), memory(LocalRole::Client)) else { panic!("admitted") };
    exchange(&mut a, &mut b, NOW).expect("correct");
    assert!(b.opened_in(channel, ring_ends(), Err(IpcError::NoSuchEndpoint)).is_ok());
    exchange(&mut a, &mut b, NOW).expect("correct");
    assert_eq!(closed(&mut a), Some(IpcError::NoSuchEndpoint));
}

#[test]
fn client_that_dies_before_the_channel_is_open_leaves_nothing_behind() {
    let (mut a, mut b) = linked();
    let Ok(channel) = a.open_out(7, ring_ends(), memory(LocalRole::Client)) else { panic!("admitted") };
    exchange(&mut a, &mut b, NOW).expect("correct");
    a.closed_here(channel, IpcError::SourceDied);
    exchange(&mut a, &mut b, NOW).expect("correct");
    assert!(b.opened_in(channel, ring_ends(), Ok(memory(LocalRole::Server))).is_err(), "nobody wants it any more");
    assert_eq!((a.channel_count(), b.channel_count()), (0, 0));
}

#[test]
fn completion_nobody_asked_for_or_too_long_closes_the_channel_on_both_nodes() {
    for bad in
        [Completion { tag: 99, ..Completion::default() }, Completion { tag: 1, in_bytes: 9, ..Completion::default() }]
    {
        let (mut a, mut b) = linked();
        let (channel, client, server) = opened(&mut a, &mut b);
        submit(&client, 1, 4);
        a.active(channel);
        exchange(&mut a, &mut b, NOW).expect("correct");
        complete(&server, bad);
        b.active(channel);
        actions(&mut a);
        exchange(&mut a, &mut b, NOW).expect("correct");
        assert!(closed(&mut a).is_some() && closed(&mut b).is_some());
        assert_eq!(a.phase(), Phase::Up, "one bad server does not cost the node its link");
    }
}

#[test]
fn party_that_says_it_took_nothing_after_all_costs_only_its_channel() {
    let (mut a, mut b) = linked();
    let (channel, client, _) = opened_talk(&mut a, &mut b);
    for taken in [word::next(0, word::SEND), 0] {
        client.0.borrow_mut().taken = taken;
        a.active(channel);
        exchange(&mut a, &mut b, NOW).expect("every frame is one");
    }
    assert_eq!(closed(&mut a), Some(IpcError::Corrupt));
    assert!(closed(&mut b).is_some());
    assert_eq!((a.phase(), b.phase()), (Phase::Up, Phase::Up));
}

#[test]
fn reply_that_comes_too_late_confirms_no_later_request() {
    let (mut a, mut b) = linked();
    let (channel, client, server) = opened_talk(&mut a, &mut b);
    let given_up = word::next(0, word::REQUEST | word::TIMED);
    let next = word::next(given_up, word::REQUEST);
    say(&client, given_up);
    a.active(channel);
    exchange(&mut a, &mut b, NOW).expect("correct");
    server.0.borrow_mut().taken = given_up;
    client.0.borrow_mut().cancel = true;
    a.active(channel);
    exchange(&mut a, &mut b, NOW).expect("correct");
    assert_eq!(client.0.borrow().out_state, State::Taken);
    say(&client, next);
    client.0.borrow_mut().awaits = next;
    a.active(channel);
    lose(&mut a);
    say(&server, given_up >> word::FLAG_BITS << word::FLAG_BITS | word::REPLY);
    b.active(channel);
    carry(&mut b, &mut a, NOW).expect("correct");
    assert_eq!(client.0.borrow().dropped, 1, "the reply came");
    reconnect(&mut a, &mut b);
    assert_eq!(server.0.borrow().inbound.as_ref().map(|message| message.word), Some(next));
}

#[test]
fn channel_that_the_peer_has_given_up_is_not_opened_again_by_the_next_proxy() {
    let (mut a, mut b) = linked();
    let (channel, client, server) = opened_talk(&mut a, &mut b);
    let request = word::next(0, word::REQUEST);
    say(&client, request);
    a.active(channel);
    exchange(&mut a, &mut b, NOW).expect("correct");
    assert_eq!(server.published(), request);
    let (mut a, mut b) = (peer(1, 2, 2), peer(2, 2, 1));
    assert!(a.resume(channel, talk_ends(1), client).is_ok());
    a.dialled(NOW);
    exchange(&mut a, &mut b, NOW).expect("correct");
    assert_eq!(closed(&mut a), Some(IpcError::SourceDied));
    assert_eq!((a.channel_count(), b.channel_count()), (0, 0));
    assert!(asked(&actions(&mut b)).is_empty());
}

#[test]
fn channel_that_ended_while_the_brokers_answer_was_out_ends_there_too() {
    let (mut a, mut b) = linked();
    let channel = open_talk(&mut a, 1, 7);
    exchange(&mut a, &mut b, NOW).expect("correct");
    assert_eq!(asked(&actions(&mut b)), [channel]);
    a.cut();
    b.cut();
    a.closed_here(channel, IpcError::SourceDied);
    a.dialled(NOW);
    carry(&mut a, &mut b, NOW).expect("correct");
    assert_eq!(b.phase(), Phase::Resyncing);
    assert!(b.opened_in(channel, talk_ends(1), Ok(memory(LocalRole::Server))).is_ok());
    exchange(&mut a, &mut b, NOW).expect("correct");
    assert_eq!((a.phase(), b.phase()), (Phase::Up, Phase::Up));
    assert_eq!(closed(&mut b), Some(IpcError::SourceDied));
    assert_eq!((a.channel_count(), b.channel_count()), (0, 0));
}

#[test]
fn requests_open_while_both_proxies_are_lost_end_with_an_error_and_not_in_silence() {
    let (mut a, mut b) = linked();
    let (channel, client, server) = opened(&mut a, &mut b);
    submit(&client, 1, 4);
    a.active(channel);
    exchange(&mut a, &mut b, NOW).expect("correct");
    assert_eq!(server.submissions_put(), 1);
    let (mut a, mut b) = (peer(1, 2, 2), peer(2, 2, 1));
    assert!(a.resume(channel, ring_ends(), client).is_ok());
    assert!(b.resume(channel, ring_ends(), server.clone()).is_ok());
    a.dialled(NOW);
    exchange(&mut a, &mut b, NOW).expect("correct");
    complete(&server, Completion { tag: 1, ..Completion::default() });
    b.active(channel);
    exchange(&mut a, &mut b, NOW).expect("correct");
    assert_eq!(closed(&mut a), Some(IpcError::SourceDied));
}

trait Put {
    fn submissions_put(&self) -> u32;
}

impl Put for SimChannel {
    fn submissions_put(&self) -> u32 {
        self.put_count()
    }
}

#[test]
fn credit_stops_a_sender_whose_peer_does_not_process() {
    let (mut a, mut b) = linked();
    let (channel, client, _) = opened(&mut a, &mut b);
    let mut under_way = 0;
    for round in 0..1_000_000_u32 {
        submit(&client, 1, 64);
        client.0.borrow_mut().submission_cursor.head = round;
        a.active(channel);
        a.fill(NOW);
        let bytes = a.outgoing().pending().len();
        if bytes == 0 {
            break;
        }
        a.sent(NOW, bytes);
        under_way += bytes;
    }
    assert!(under_way <= proxy_link::limits::WINDOW_BYTES as usize, "{under_way}");
    assert!(under_way > proxy_link::limits::WINDOW_BYTES as usize / 2, "{under_way}");
}

/// Bytes of a long entry's data: they are different in every place.
fn pattern(bytes: u32) -> Vec<u8> {
    (0..bytes).map(|at| (at * 7 + at / 251) as u8).collect()
}

/// A request whose data is longer than a batch has begun to leave; the far side has what went.
fn half_sent(a: &mut Peer<SimChannel>, b: &mut Peer<SimChannel>) -> (WireChannel, SimChannel, SimChannel) {
    let (channel, client, server) = opened(a, b);
    client.0.borrow_mut().arena[..ARENA_BYTES as usize / 2].copy_from_slice(&pattern(ARENA_BYTES / 2));
    submit(&client, 1, ARENA_BYTES / 2);
    a.active(channel);
    carry(a, b, NOW).expect("correct");
    assert_eq!(server.submissions_put(), 0, "not before its last byte");
    (channel, client, server)
}

#[test]
fn long_entry_is_put_when_its_last_byte_has_come_and_other_frames_wait_for_it() {
    let (mut a, mut b) = linked();
    let (_, _, server) = half_sent(&mut a, &mut b);
    let talk = open_talk(&mut a, 1, 9);
    exchange(&mut a, &mut b, NOW + Duration::from_millis(200)).expect("correct");
    assert_eq!(server.submissions_put(), 1);
    assert_eq!(server.0.borrow().arena[..ARENA_BYTES as usize / 2], pattern(ARENA_BYTES / 2)[..]);
    assert_eq!(asked(&actions(&mut b)), [talk]);
}

#[test]
fn entry_whose_channel_ends_in_the_middle_of_its_frame_leaves_the_link_in_order() {
    let (mut a, mut b) = linked();
    let (channel, client, server) = half_sent(&mut a, &mut b);
    // The far side ends it: this side forgets the channel, and its memory changes.
    b.closed_here(channel, IpcError::SourceDied);
    carry(&mut b, &mut a, NOW).expect("correct");
    assert_eq!(closed(&mut a), Some(IpcError::SourceDied));
    client.0.borrow_mut().arena.fill(0);
    let talk = open_talk(&mut a, 1, 9);
    exchange(&mut a, &mut b, NOW).expect("correct");
    assert_eq!(server.submissions_put(), 0, "nobody is there for it");
    assert_eq!(asked(&actions(&mut b)), [talk]);
}

#[test]
fn entry_of_a_party_that_is_gone_arrives_whole() {
    let (mut a, mut b) = linked();
    let (channel, _, server) = half_sent(&mut a, &mut b);
    a.closed_here(channel, IpcError::SourceDied);
    exchange(&mut a, &mut b, NOW).expect("correct");
    assert_eq!(server.submissions_put(), 1);
    assert_eq!(server.0.borrow().arena[..ARENA_BYTES as usize / 2], pattern(ARENA_BYTES / 2)[..]);
    assert_eq!(closed(&mut b), Some(IpcError::SourceDied));
}

#[test]
fn half_a_frame_is_forgotten_with_its_connection_and_sent_again_in_the_next() {
    let (mut a, mut b) = linked();
    let (_, _, server) = half_sent(&mut a, &mut b);
    a.cut();
    b.cut();
    a.dialled(NOW);
    exchange(&mut a, &mut b, NOW).expect("correct");
    assert_eq!(server.submissions_put(), 1);
    assert_eq!(server.0.borrow().arena[..ARENA_BYTES as usize / 2], pattern(ARENA_BYTES / 2)[..]);
}

/// Lane 0 of one pair, opened by the party of node `opener`.
fn talk_ends(opener: u16) -> Ends {
    let (from, to) = if opener == 1 { (Endpoint::FS, Endpoint::GATE) } else { (Endpoint::GATE, Endpoint::FS) };
    Ends { dc: DcId(1), from, to, lane: Lane(0), ring: None, incarnation: None }
}

fn open_talk(peer: &mut Peer<SimChannel>, node: u16, number: u64) -> WireChannel {
    peer.open_out(number, talk_ends(node), memory(LocalRole::Client)).map_err(|(_, error)| error).expect("admitted")
}

/// A channel of messages from a process at `a` to one at `b`, open.
fn opened_talk(a: &mut Peer<SimChannel>, b: &mut Peer<SimChannel>) -> (WireChannel, SimChannel, SimChannel) {
    let (client, server) = (memory(LocalRole::Client), memory(LocalRole::Server));
    let channel = a.open_out(1, talk_ends(1), client.clone()).map_err(|(_, error)| error).expect("admitted");
    exchange(a, b, NOW).expect("correct");
    assert_eq!(asked(&actions(b)), [channel]);
    assert!(b.opened_in(channel, talk_ends(1), Ok(server.clone())).is_ok());
    exchange(a, b, NOW).expect("correct");
    (channel, client, server)
}

/// The party publishes a message with this word.
fn say(party: &SimChannel, word: u32) {
    let mut memory = party.0.borrow_mut();
    memory.out = Some(Carried { word, kind: 1, payload: [0; 56], inline: Vec::new() });
    (memory.out_state, memory.cancel) = (State::Pending, false);
}

/// What the broker was asked to open.
fn asked(actions: &[Action<SimChannel>]) -> Vec<WireChannel> {
    let opens = actions.iter().filter_map(|action| match action {
        Action::OpenIn { channel, .. } => Some(*channel),
        _ => None,
    });
    opens.collect()
}

/// Both nodes opened lane 0 of one pair. The channel of `a` goes, that of `b` stays; both brokers have been asked.
struct Glare {
    a: Peer<SimChannel>,
    b: Peer<SimChannel>,
    loser: WireChannel,
    winner: WireChannel,
}

fn glare() -> Glare {
    let (mut a, mut b) = linked();
    actions(&mut a);
    let loser = open_talk(&mut a, 1, 7);
    carry(&mut a, &mut b, NOW).expect("correct");
    // The broker at `b` says that its own party opened, then what becomes of the other's: all before the proxy speaks.
    let winner = open_talk(&mut b, 2, 9);
    assert_eq!(asked(&actions(&mut b)), [loser]);
    assert!(b.opened_in(loser, talk_ends(1), Err(IpcError::EndpointInUse)).is_ok());
    Glare { a, b, loser, winner }
}

#[test]
fn loser_of_a_glare_hears_of_the_winner_first_and_closes_nothing_itself() {
    let Glare { mut a, mut b, loser, winner } = glare();
    carry(&mut b, &mut a, NOW).expect("correct");
    let told = actions(&mut a);
    assert_eq!(asked(&told), [winner]);
    assert_eq!(told.len(), 1, "the broker ends the loser when it makes the winner");
    a.closed_here(loser, IpcError::EndpointInUse);
    assert!(a.opened_in(winner, talk_ends(2), Ok(memory(LocalRole::Server))).is_ok());
    exchange(&mut a, &mut b, NOW).expect("correct");
    assert!(matches!(actions(&mut a)[..], [Action::Forget { channel, .. }] if channel == loser));
    assert!(actions(&mut b).is_empty());
    assert_eq!((a.channel_count(), b.channel_count()), (1, 1));
}

#[test]
fn loser_of_a_glare_asks_again_when_the_winner_came_to_nothing_at_its_opener() {
    let Glare { mut a, mut b, loser, winner } = glare();
    b.closed_here(winner, IpcError::SourceDied);
    actions(&mut b);
    exchange(&mut a, &mut b, NOW).expect("correct");
    assert!(actions(&mut a).is_empty());
    assert_eq!(asked(&actions(&mut b)), [loser]);
}

#[test]
fn loser_of_a_glare_asks_again_when_the_winner_came_to_nothing_at_its_acceptor() {
    let Glare { mut a, mut b, loser, winner } = glare();
    exchange(&mut a, &mut b, NOW).expect("correct");
    assert_eq!(asked(&actions(&mut a)), [winner]);
    assert!(a.opened_in(winner, talk_ends(2), Err(IpcError::Fenced)).is_ok());
    exchange(&mut a, &mut b, NOW).expect("correct");
    assert!(actions(&mut a).is_empty());
    let told = actions(&mut b);
    assert!(matches!(told[0], Action::Close { channel, .. } if channel == winner));
    assert_eq!(asked(&told), [loser]);
}

#[test]
fn refusals_without_a_channel_in_the_way_end_an_open() {
    let (mut a, mut b) = linked();
    actions(&mut a);
    let channel = open_talk(&mut a, 1, 7);
    for _ in 0..=proxy_link::limits::REFUSALS_MAX {
        exchange(&mut a, &mut b, NOW).expect("correct");
        assert!(actions(&mut a).is_empty());
        assert_eq!(asked(&actions(&mut b)), [channel]);
        assert!(b.opened_in(channel, talk_ends(1), Err(IpcError::EndpointInUse)).is_ok());
    }
    exchange(&mut a, &mut b, NOW).expect("correct");
    assert_eq!(closed(&mut a), Some(IpcError::EndpointInUse));
}

#[test]
fn next_channel_of_a_pair_is_asked_for_behind_the_end_of_the_last() {
    let (mut a, mut b) = linked();
    actions(&mut a);
    let last = open_talk(&mut a, 1, 7);
    exchange(&mut a, &mut b, NOW).expect("correct");
    assert!(b.opened_in(last, talk_ends(1), Ok(memory(LocalRole::Server))).is_ok());
    exchange(&mut a, &mut b, NOW).expect("correct");
    actions(&mut b);
    a.closed_here(last, IpcError::NotBound);
    let next = open_talk(&mut a, 1, 8);
    exchange(&mut a, &mut b, NOW).expect("correct");
    let told = actions(&mut b);
    assert!(matches!(told[0], Action::Close { channel, .. } if channel == last));
    assert_eq!(asked(&told), [next]);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 500, failure_persistence: None, ..ProptestConfig::default() })]

    /// A node that has our certificate and means ill: frames in range, in any order, for channels that exist.
    #[test]
    fn hostile_peer_never_panics_a_proxy(frames in proptest::collection::vec((3_u8..20, any::<[u32; 4]>()), 1..40)) {
        let (mut a, mut b) = linked();
        let (channel, client, _) = opened(&mut a, &mut b);
        submit(&client, 1, 4);
        a.active(channel);
        a.fill(NOW);
        for (kind, numbers) in frames {
            let mut input = InBuffer::new();
            input.append(&hostile_frame(kind, numbers, channel));
            if a.receive(&mut input, NOW).is_err() {
                break;
            }
            a.fill(NOW);
            let bytes = a.outgoing().pending().len();
            a.sent(NOW, bytes);
        }
    }
}

fn hostile_frame(kind: u8, n: [u32; 4], channel: WireChannel) -> Vec<u8> {
    let word = n[0].max(1);
    let small = n[1] % 4;
    let entry = Completion { tag: n[2] % 3, in_bytes: small, ..Completion::default() };
    let data = &[0; 4][..small as usize];
    let frame = match kind {
        3 => wire::Frame::ResyncEnd,
        4 => wire::Frame::Opened { channel, result: Err(IpcError::Denied) },
        5 => wire::Frame::Close { channel, reason: IpcError::Corrupt },
        6 | 7 => wire::Frame::Taken { channel, word },
        8 => wire::Frame::Withdraw { channel, word },
        9 => wire::Frame::Withdrawn { channel, word },
        10 => wire::Frame::Notify { channel, number: n[1].into(), mask: n[2].into() },
        11 => wire::Frame::Notified { channel, number: n[1].into() },
        12 => wire::Frame::Produced { channel, produced: n[1] % 3 },
        13 => wire::Frame::Heartbeat { seq: n[0].into(), echo: n[1].into() },
        16 => wire::Frame::Parcel { bytes: data },
        17 => wire::Frame::Closed { channel },
        14 => wire::Frame::Credit { processed: (n[0] % 4096).into() },
        15 => {
            let (from, to) = (Endpoint::FS, Endpoint::FS);
            wire::Frame::Open { channel, dc: DcId(1), from, to, lane: Lane(0), ring: None, incarnation: None }
        }
        _ => wire::Frame::Complete { channel, index: n[3] % 2, produced: n[3] % 2, entry, data },
    };
    let mut bytes = Vec::new();
    frame.encode(&mut bytes);
    bytes
}
