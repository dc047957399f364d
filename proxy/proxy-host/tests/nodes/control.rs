//! What daemon and proxy say to each other, over a real socket: lists of the largest cluster, and what is no list.

use std::os::fd::OwnedFd;

use proxy_host::control::{
    End, FromProxy, LinkState, LinkStatus, PeerAddress, Portioned, Said, TEXT_BYTES_MAX, ToProxy,
};

/// All other nodes of the largest cluster.
const PEERS: u16 = abi::limits::NODES_PER_CLUSTER - 1;

fn name(id: u16) -> String {
    format!("{id:0>width$}", width = abi::limits::NAME_BYTES_MAX)
}

fn link(id: u16) -> LinkStatus {
    LinkStatus {
        peer: name(id),
        id,
        state: LinkState::Suspect,
        transport: "tipc".to_owned(),
        tls: false,
        sent_frames: u64::MAX,
        sent_bytes: u64::MAX,
        received_frames: u64::MAX,
        received_bytes: u64::MAX,
        sent_messages: u64::MAX,
        received_messages: u64::MAX,
        sent_entries: u64::MAX,
        received_entries: u64::MAX,
        packed_from: u64::MAX,
        packed_to: u64::MAX,
        reconnects: u64::MAX,
        channels: u32::MAX,
        silent_ms: Some(u64::MAX),
        version: Some(1),
        round_trip_us: Some(u64::MAX),
        // Each takes six bytes in JSON.
        last_error: Some("\u{1}".repeat(TEXT_BYTES_MAX)),
    }
}

fn peer(id: u16) -> PeerAddress {
    // As long as the path of a Unix socket may be.
    let addr = format!("/{}", "p".repeat(106));
    PeerAddress { name: name(id), id, transport: Some("unix".to_owned()), addr, tls: Some(false), plain_over: None }
}

fn links() -> FromProxy {
    let listen = [("tcp".to_owned(), "[2001:db8:1:2:3:4:5:6]:65535".to_owned())].into();
    let links = (1..=PEERS).map(link).collect();
    FromProxy { listen, links, there_ns: Some(7), refused: Some("no".to_owned()), is_alone: true }
}

fn peers() -> ToProxy {
    ToProxy { peers: Some((1..=PEERS).map(peer).collect()), ..ToProxy::default() }
}

fn ends<A: Portioned, B: Portioned>() -> (End<A>, End<B>) {
    let (one, other) = sys::seqpacket::pair().expect("pair");
    (End::new(one).expect("end"), End::new(other).expect("end"))
}

/// What arrives of it.
fn through<M: Portioned>(message: M) -> Said<M> {
    let (mut from, mut to) = ends::<FromProxy, M>();
    from.say(message).expect("taken");
    loop {
        let had_room = from.has_room();
        match to.receive() {
            Said::Nothing if !had_room => assert_eq!(from.receive(), Said::Nothing),
            said => return said,
        }
    }
}

#[test]
fn states_of_all_links_of_the_largest_cluster_arrive_with_the_longest_texts() {
    assert!(through(links()) == Said::Message(links()));
}

#[test]
fn list_of_all_nodes_of_the_largest_cluster_arrives_with_the_longest_addresses() {
    assert!(through(peers()) == Said::Message(peers()));
    assert!(
        through(ToProxy { peers: Some(Vec::new()), ..ToProxy::default() })
            == Said::Message(ToProxy { peers: Some(Vec::new()), ..ToProxy::default() })
    );
    assert!(through(ToProxy::default()) == Said::Message(ToProxy::default()));
}

#[test]
fn end_that_cannot_send_all_at_once_is_woken_when_the_other_has_read_and_takes_nothing_more_before() {
    let (mut proxy, mut daemon) = ends::<ToProxy, FromProxy>();
    let poller = sys::eventfd::Poller::new().expect("epoll");
    poller.add(&proxy, 1, sys::eventfd::Trigger::Level).expect("watched");
    let is_ready = || {
        let mut ready = Vec::new();
        poller.wait(&mut ready, Some(std::time::Duration::ZERO)).expect("epoll");
        !ready.is_empty()
    };
    proxy.say(links()).expect("taken");
    assert!(!proxy.has_room() && !is_ready());
    assert_eq!(proxy.say(links()).map_err(|error| error.kind()), Err(std::io::ErrorKind::WouldBlock));
    let arrived = loop {
        match daemon.receive() {
            Said::Nothing => assert!(is_ready() && proxy.receive() == Said::Nothing),
            said => break said,
        }
    };
    assert!(arrived == Said::Message(links()));
    assert!(proxy.has_room() && !is_ready());
    drop(daemon);
    assert!(is_ready() && proxy.receive() == Said::Gone);
}

/// What a daemon makes of these messages.
fn heard(messages: &[&str]) -> Said<FromProxy> {
    let (proxy, daemon) = sys::seqpacket::pair().expect("pair");
    let mut daemon = End::<FromProxy>::new(daemon).expect("end");
    for message in messages {
        sys::seqpacket::send(&proxy, message.as_bytes(), &[] as &[OwnedFd]).expect("sent");
    }
    daemon.receive()
}

#[test]
fn list_of_which_a_portion_is_missing_or_senseless_is_not_taken() {
    const FIRST: &str = r#"{"listen":{},"links":[],"more":true}"#;
    const LAST: &str = r#"{"listen":{},"links":[],"part":1}"#;
    const LATER: &str = r#"{"listen":{},"links":[],"part":2}"#;
    assert_eq!(heard(&[FIRST, LAST]), Said::Message(FromProxy::default()));
    assert_eq!(heard(&[FIRST]), Said::Nothing);
    // Begun anew.
    assert_eq!(heard(&[FIRST, FIRST, LAST]), Said::Message(FromProxy::default()));
    for senseless in [&[LAST][..], &[FIRST, LATER], &[FIRST, "[]", LAST], &["{}"]] {
        assert!(matches!(heard(senseless), Said::Nonsense(_)), "{senseless:?}");
    }
}

#[test]
fn list_without_end_is_refused_and_does_not_hold_up_who_reads_it() {
    let (proxy, daemon) = sys::seqpacket::pair().expect("pair");
    let mut daemon = End::<ToProxy>::new(daemon).expect("end");
    let some = ToProxy { peers: Some((1..=100).map(peer).collect()), ..ToProxy::default() };
    let mut refused = false;
    for part in 0..=u32::from(PEERS) / 100 {
        let mut portion = serde_json::to_value(&some).expect("JSON");
        (portion["part"], portion["more"]) = (part.into(), true.into());
        sys::seqpacket::send(&proxy, portion.to_string().as_bytes(), &[] as &[OwnedFd]).expect("sent");
        refused |= matches!(daemon.receive(), Said::Nonsense(_));
    }
    assert!(refused);
    let empty = br#"{"more":true}"#;
    while sys::seqpacket::send(&proxy, empty, &[] as &[OwnedFd]).is_ok() {}
    assert_eq!(daemon.receive(), Said::Nothing);
    assert!(sys::seqpacket::send(&proxy, empty, &[] as &[OwnedFd]).is_ok(), "it has read some");
}
