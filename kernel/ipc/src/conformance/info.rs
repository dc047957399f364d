//! What members learn about their container. The asker is where the clients are.

use std::time::{Duration, Instant};

use super::{SOON, SPEC, World};
use crate::info::{ChannelInfo, ChannelKind, Cursor, EndpointInfo, EndpointState, Page, Sent};
use crate::{Calls, ChannelId, Endpoint, Event, IpcError, Message, Port, Privileges, RingServer, Source, Submission};

/// For what comes by itself.
const LIMIT: Duration = Duration::from_secs(30);

/// A whole list, asked for in pieces of this size. Its order makes it end.
fn whole<T>(at_most: usize, mut ask: impl FnMut(Cursor, usize) -> Result<Page<T>, IpcError>) -> Vec<T> {
    let mut all = Vec::new();
    let mut from = Some(Cursor::START);
    while let Some(cursor) = from {
        let page = ask(cursor, at_most).unwrap();
        assert!(page.records.len() <= at_most && (page.next.is_none() || !page.records.is_empty()));
        all.extend(page.records);
        from = page.next;
    }
    all
}

fn endpoints(port: &mut Port, at_most: usize) -> Vec<EndpointInfo> {
    whole(at_most, |from, at_most| port.endpoints_info(from, at_most))
}

fn channels(port: &mut Port, of: Option<Endpoint>, at_most: usize) -> Vec<ChannelInfo> {
    whole(at_most, |from, at_most| port.channels_info(of, from, at_most))
}

fn of_kind(channels: &[ChannelInfo], kind: ChannelKind) -> &ChannelInfo {
    channels.iter().find(|channel| channel.kind() == kind).unwrap()
}

/// `count` requests with their answers, and as many notifications.
fn talk(client: &mut Port, server: &mut Port, count: usize) {
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut bits = 0;
            for _ in 0..count {
                let request = server.receive(Source::Any, SOON).unwrap();
                server.reply(request.source.unwrap(), &request).unwrap();
            }
            while bits != (1 << count) - 1 {
                let Event::Notified { mask, .. } = server.wait_event(SOON).unwrap() else { panic!("not notified") };
                bits |= mask;
            }
        });
        for bit in 0..count {
            client.sendrec(Endpoint::DS, &Message::new(1), SOON).unwrap();
            client.notify(Endpoint::DS, 1 << bit).unwrap();
        }
    });
}

/// `count` requests over a ring, each answered.
fn submit(client: &mut Port, server: &mut Port, count: u32) -> (crate::RingClient, RingServer) {
    let ring = client.open_ring(Endpoint::DS, SPEC, SOON).unwrap();
    let Event::RingOpened(served) = server.wait_event(SOON).unwrap() else { panic!("no ring") };
    for tag in 0..count {
        ring.submit(&Submission { tag, ..Submission::default() }).unwrap();
        ring.publish();
        while served.next().unwrap().is_none() {
            server.wait_event(SOON).unwrap();
        }
        served.complete(&crate::Completion { tag, ..crate::Completion::default() }).unwrap();
        served.publish();
        ring.wait(SOON).unwrap();
        assert!(ring.poll().unwrap().is_some());
    }
    (ring, served)
}

pub(super) fn members_see_who_is_there_and_what_their_channels_count(world: &dyn World) {
    let mut server = world.server(Endpoint::DS, 1);
    let mut client = world.program();
    let own = client.endpoint();
    talk(&mut client, &mut server, 5);
    let _ring = submit(&mut client, &mut server, 3);
    let (near, far) = (world.near().0, world.far().0);

    let found = client.endpoint_info(Endpoint::DS).unwrap();
    assert_eq!((found.node, found.state, found.epoch), (far, EndpointState::Bound, server.epoch()));
    let me = client.endpoint_info(own).unwrap();
    assert_eq!((me.node, me.pid, me.channels), (near, Some(std::process::id() as i32), 2));
    let sent = if near == far { me.near } else { me.far };
    assert_eq!((sent.messages, sent.notifications, sent.entries, sent.copies), (5, 5, 3, 0));
    for at_most in [1, 100] {
        let numbers: Vec<Endpoint> = endpoints(&mut client, at_most).iter().map(|it| it.endpoint).collect();
        assert_eq!(numbers, [Endpoint::DS, own]);
    }

    for of in [None, Some(own), Some(Endpoint::DS)] {
        let channels = channels(&mut client, of, 1);
        assert_eq!(channels.len(), 2, "{of:?}");
        let via = (near != far).then_some(far);
        assert!(channels.iter().all(|it| it.via.map(|(node, _)| node) == via));
        assert!(channels.iter().all(|it| (it.left, it.right) == (own, Endpoint::DS)));
        let [asking, answering] = of_kind(&channels, ChannelKind::Messages).counts.unwrap();
        assert_eq!((asking.messages, asking.last, asking.notifications), (5, Sent::Request, 5));
        assert_eq!((answering.messages, answering.last), (5, Sent::Reply));
        let ring = of_kind(&channels, ChannelKind::Ring);
        assert_eq!(ring.ring, Some(SPEC));
        let [asking, answering] = ring.counts.unwrap();
        assert_eq!((asking.entries, answering.entries, asking.entries_taken), (3, 3, 3));
    }
    assert_eq!(channels(&mut client, Endpoint::new(5000), 10), []);

    let dc = client.dc_info().unwrap();
    assert_eq!((dc.node, dc.channels), (near, 2));
    assert_eq!((dc.endpoints_here, dc.endpoints_elsewhere), if near == far { (2, 0) } else { (1, 1) });
    let proxies = client.proxies_info(Cursor::START, 100).unwrap().records;
    assert!(proxies.iter().all(|it| it.node == far && it.endpoints == 1));
    assert_eq!(proxies.iter().map(|it| it.channels).sum::<u32>(), if near == far { 0 } else { 2 });
}

pub(super) fn who_waits_for_whom_is_seen(world: &dyn World) {
    let mut server = world.server(Endpoint::DS, 1);
    let mut observer = world.program();
    let mut client = world.program();
    let caller = client.endpoint();
    assert_eq!(observer.endpoint_info(caller).unwrap().waits_for, None);
    std::thread::scope(|scope| {
        let called = scope.spawn(move || client.sendrec(Endpoint::DS, &Message::new(1), SOON).map(|_| client));
        let request = server.receive(Source::Any, SOON).unwrap();
        assert_eq!(observer.endpoint_info(caller).unwrap().waits_for, Some(Endpoint::DS));
        server.reply(caller, &request).unwrap();
        let _client = called.join().unwrap().unwrap();
        assert_eq!(observer.endpoint_info(caller).unwrap().waits_for, None);
    });
}

pub(super) fn counts_outlive_their_channels_and_not_their_endpoint(world: &dyn World) {
    let mut server = world.server(Endpoint::DS, 1);
    let mut client = world.program();
    let own = client.endpoint();
    talk(&mut client, &mut server, 4);
    server.unbind().unwrap();
    client.wait4unbind(Endpoint::DS, SOON).unwrap();
    let began = Instant::now();
    let me = loop {
        let me = client.endpoint_info(own).unwrap();
        // Its last words may still be on their way.
        if me.channels == 0 || began.elapsed() > LIMIT {
            break me;
        }
        std::thread::yield_now();
    };
    assert_eq!((me.near.messages + me.far.messages, me.channels), (4, 0));
    let again = world.server(Endpoint::DS, 2);
    client.wait4bind(Endpoint::DS, SOON).unwrap();
    let found = client.endpoint_info(Endpoint::DS).unwrap();
    assert_eq!((found.epoch, found.near, found.far), (again.epoch(), Default::default(), Default::default()));
}

pub(super) fn who_may_not_ask_is_told_nothing(world: &dyn World) {
    let mut manager = world.near_server(Endpoint::RS, 1);
    let mut program = world.program();
    assert_eq!(program.endpoint_info(Endpoint::new(5000).unwrap()), Err(IpcError::NoSuchEndpoint));
    assert_eq!(program.endpoints_info(Cursor::START, 0), Err(IpcError::BadArgument));
    assert_eq!(program.endpoints_info(Cursor(u64::MAX), 9), Ok(Page { records: Vec::new(), next: None }));
    assert_eq!(program.channels_info(None, Cursor(u64::MAX), 9), Ok(Page { records: Vec::new(), next: None }));
    let without = Privileges { calls: Calls::ALL.without(Calls::INFO), ..Privileges::server() };
    manager.set_privileges(program.endpoint(), &without).unwrap();
    assert_eq!(program.dc_info(), Err(IpcError::Denied));
    assert_eq!(program.endpoint_info(Endpoint::RS), Err(IpcError::Denied));
    assert_eq!(program.channels_info(None, Cursor::START, 9), Err(IpcError::Denied));
    assert_eq!(program.proxies_info(Cursor::START, 9), Err(IpcError::Denied));
    assert!(manager.channels_info(None, Cursor(ChannelId(0).0), 9).is_ok());
}
