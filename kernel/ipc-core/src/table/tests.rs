use super::*;
use crate::ChannelId;
use abi::Lane;
use proptest::prelude::*;

fn endpoint(number: u32) -> Endpoint {
    Endpoint::new(number).unwrap()
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Nobody;

impl Asking for Nobody {
    fn is_of_same_party(&self, _: &Nobody) -> bool {
        false
    }
}

type Table = DcTable<Nobody>;

/// What binding ended.
fn ended(effects: Vec<(Endpoint, Effect<Nobody>)>) -> Vec<Channel> {
    let of_channel = |(_, effect)| if let Effect::EndChannel { channel, .. } = effect { Some(channel) } else { None };
    effects.into_iter().filter_map(of_channel).collect()
}

fn bind_server(table: &mut Table, endpoint: Endpoint, owner: OwnerId, epoch: Epoch) -> Result<Vec<Channel>, IpcError> {
    table.place_server(endpoint, epoch)?;
    table.step(endpoint, Event::Begins { owner, epoch }).map(ended)
}

fn bind_program(
    table: &mut Table,
    wish: Option<Endpoint>,
    pid: i32,
    owner: OwnerId,
) -> Result<(Endpoint, Epoch), IpcError> {
    let (endpoint, epoch) = table.place_program(wish, pid)?;
    table.reservations_mut().remove(endpoint);
    table.step(endpoint, Event::Begins { owner, epoch })?;
    Ok((endpoint, epoch))
}

fn bind_remote(
    table: &mut Table,
    endpoint: Endpoint,
    node: NodeId,
    epoch: Epoch,
    told: Told,
) -> Result<Vec<Channel>, IpcError> {
    table.step(endpoint, Event::IsElsewhere { node, epoch, told, change: Change::Promoted }).map(ended)
}

fn unbind(table: &mut Table, endpoint: Endpoint) {
    table.step(endpoint, Event::Ends { ending: Ending::Dead, reason: IpcError::SourceDied }).unwrap();
}

fn channel(id: u64, left: u32, right: u32, lane: u16) -> Channel {
    Channel {
        id: ChannelId(id),
        left: endpoint(left),
        right: endpoint(right),
        lane: Lane(lane),
        entries: 0,
        arena_bytes: 0,
        proxied: None,
        pair: abi::PairId::FIRST,
    }
}

#[test]
fn program_cannot_take_the_number_of_a_server() {
    let mut table = Table::new(256..300);
    assert_eq!(bind_program(&mut table, Some(Endpoint::FS), 0, OwnerId(1)), Err(IpcError::Denied));
    bind_server(&mut table, Endpoint::FS, OwnerId(2), Epoch(1)).unwrap();
    // Nor is it told whether somebody has it.
    assert_eq!(bind_program(&mut table, Some(Endpoint::FS), 0, OwnerId(1)), Err(IpcError::Denied));
    assert_eq!(bind_program(&mut table, Some(endpoint(300)), 0, OwnerId(1)), Err(IpcError::BadEndpoint));
}

#[test]
fn number_that_became_free_is_not_given_out_at_once() {
    let mut table = Table::new(256..300);
    let (first, _) = bind_program(&mut table, None, 0, OwnerId(1)).unwrap();
    unbind(&mut table, first);
    assert_ne!(bind_program(&mut table, None, 0, OwnerId(1)).unwrap().0, first);
}

#[test]
fn program_finds_the_table_full_when_its_range_is_used_up() {
    let mut table = Table::new(256..258);
    bind_program(&mut table, None, 0, OwnerId(1)).unwrap();
    bind_program(&mut table, None, 0, OwnerId(2)).unwrap();
    assert_eq!(bind_program(&mut table, None, 0, OwnerId(3)), Err(IpcError::TableFull));
}

#[test]
fn rebound_number_gets_a_higher_epoch() {
    let mut table = Table::new(256..258);
    let (number, first) = bind_program(&mut table, Some(endpoint(256)), 0, OwnerId(1)).unwrap();
    unbind(&mut table, number);
    let (_, second) = bind_program(&mut table, Some(number), 0, OwnerId(1)).unwrap();
    assert!(second > first);
}

#[test]
fn server_of_an_old_epoch_is_fenced() {
    let mut table = Table::new(256..300);
    bind_server(&mut table, Endpoint::FS, OwnerId(1), Epoch(5)).unwrap();
    unbind(&mut table, Endpoint::FS);
    assert_eq!(bind_server(&mut table, Endpoint::FS, OwnerId(2), Epoch(4)), Err(IpcError::Fenced));
    assert_eq!(bind_remote(&mut table, Endpoint::FS, NodeId(2), Epoch(4), Told::ByDirectory), Err(IpcError::Fenced));
    assert_eq!(bind_remote(&mut table, Endpoint::FS, NodeId(2), Epoch(6), Told::ByDirectory), Ok(vec![]));
}

#[test]
fn newer_owner_elsewhere_ends_the_channels_of_the_old_one() {
    let mut table = Table::new(256..300);
    bind_remote(&mut table, Endpoint::FS, NodeId(2), Epoch(1), Told::ByDirectory).unwrap();
    bind_program(&mut table, Some(endpoint(256)), 0, OwnerId(1)).unwrap();
    table.open(channel(1, 256, 1, 0)).unwrap();
    let ended = bind_remote(&mut table, Endpoint::FS, NodeId(3), Epoch(2), Told::ByDirectory).unwrap();
    assert_eq!(ended, [channel(1, 256, 1, 0)]);
    assert!(table.channels().is_empty());
}

#[test]
fn caller_known_by_its_first_message_keeps_its_channels_when_the_directory_tells_more() {
    let mut table = Table::new(256..300);
    bind_server(&mut table, Endpoint::FS, OwnerId(1), Epoch(1)).unwrap();
    bind_remote(&mut table, endpoint(400), NodeId(2), Epoch(0), Told::ByFirstMessage).unwrap();
    table.open(channel(1, 400, 1, 0)).unwrap();
    assert_eq!(bind_remote(&mut table, endpoint(400), NodeId(2), Epoch(3), Told::ByDirectory), Ok(vec![]));
    assert_eq!(table.channels().len(), 1);
    assert_eq!(table.binding(endpoint(400)).unwrap().epoch, Epoch(3));
}

#[test]
fn pair_has_one_channel_of_messages_and_lanes_for_rings() {
    let mut table = Table::new(256..300);
    bind_server(&mut table, Endpoint::FS, OwnerId(1), Epoch(1)).unwrap();
    bind_program(&mut table, Some(endpoint(256)), 0, OwnerId(2)).unwrap();
    table.open(channel(1, 256, 1, 0)).unwrap();
    assert_eq!(table.lane_for(Endpoint::FS, endpoint(256), LaneWish::Messages), Err(IpcError::EndpointInUse));
    for lane in 1..abi::limits::RING_LANES_END {
        assert_eq!(table.lane_for(Endpoint::FS, endpoint(256), LaneWish::AnyRing), Ok(Lane(lane)));
        table.open(channel(1 + u64::from(lane), 256, 1, lane)).unwrap();
    }
    assert_eq!(table.lane_for(Endpoint::FS, endpoint(256), LaneWish::AnyRing), Err(IpcError::TableFull));
}

#[test]
fn each_of_a_pair_has_its_own_lanes_for_copies_and_delegation() {
    let mut table = Table::new(256..300);
    bind_server(&mut table, Endpoint::FS, OwnerId(1), Epoch(1)).unwrap();
    bind_program(&mut table, Some(endpoint(256)), 0, OwnerId(2)).unwrap();
    let mut lanes = Vec::new();
    for wish in [LaneWish::Copies, LaneWish::Delegation] {
        lanes.push(table.lane_for(Endpoint::FS, endpoint(256), wish).unwrap());
        let higher = table.lane_for(endpoint(256), Endpoint::FS, wish).unwrap();
        table.open(channel(u64::from(higher.0), 256, 1, higher.0)).unwrap();
        assert_eq!(table.lane_for(endpoint(256), Endpoint::FS, wish), Err(IpcError::EndpointInUse));
        lanes.push(higher);
    }
    let purposes = |lane: &Lane| (lane.is_reserved(), lane.is_for_copies(), lane.is_for_delegation());
    let found = lanes.iter().map(purposes).collect::<Vec<_>>();
    assert_eq!(found, [(true, true, false), (true, true, false), (true, false, true), (true, false, true)]);
    lanes.sort();
    assert!(lanes.windows(2).all(|two| two[0] != two[1]), "{lanes:?}");
}

#[test]
fn waiter_is_answered_once() {
    let mut waiters = Waiters::default();
    let waiter = Waiter { owner: OwnerId(1), request: 7, awaited: Awaited::Bound };
    waiters.add(Endpoint::FS, waiter).unwrap();
    assert_eq!(waiters.take(Endpoint::FS, Awaited::Unbound), []);
    assert_eq!(waiters.take(Endpoint::FS, Awaited::Bound), [waiter]);
    assert_eq!(waiters.cancel(OwnerId(1), 7), None);
    assert!(waiters.is_empty());
}

#[test]
fn one_connection_cannot_fill_the_table_of_waiters() {
    let mut waiters = Waiters::default();
    let last = (0..).find(|request| {
        waiters.add(Endpoint::FS, Waiter { owner: OwnerId(1), request: *request, awaited: Awaited::Bound }).is_err()
    });
    assert_eq!(last, Some(super::waiters::WAITERS_PER_OWNER as u32));
    waiters.forget(OwnerId(1));
    assert!(waiters.is_empty());
}

#[derive(Clone, Debug)]
enum Step {
    Server(u32, u64),
    Program(Option<u32>),
    Remote(u32, u16, u64),
    Unbind(u32),
    Open(u32, u32, bool),
    Close(u64),
}

fn step() -> impl Strategy<Value = Step> {
    let number = || prop_oneof![0u32..6, 256u32..262];
    prop_oneof![
        (number(), 0u64..4).prop_map(|(number, epoch)| Step::Server(number, epoch)),
        proptest::option::of(number()).prop_map(Step::Program),
        (number(), 1u16..4, 0u64..6).prop_map(|(number, node, epoch)| Step::Remote(number, node, epoch)),
        number().prop_map(Step::Unbind),
        (number(), number(), any::<bool>()).prop_map(|(left, right, ring)| Step::Open(left, right, ring)),
        (1u64..40).prop_map(Step::Close),
    ]
}

proptest! {
    /// Whatever happens: channels join bound endpoints only, lanes of a pair differ, epochs never fall.
    #[test]
    fn any_history_keeps_channels_between_bound_endpoints_and_epochs_rising(
        steps in proptest::collection::vec(step(), 0..80)
    ) {
        let mut table = Table::new(256..260);
        let mut highest: BTreeMap<Endpoint, Epoch> = BTreeMap::new();
        for (index, step) in steps.into_iter().enumerate() {
            let owner = OwnerId(index as u64);
            match step {
                Step::Server(number, epoch) => drop(bind_server(&mut table, endpoint(number), owner, Epoch(epoch))),
                Step::Program(wish) => drop(bind_program(&mut table, wish.map(endpoint), 0, owner)),
                Step::Remote(number, node, epoch) => {
                    drop(bind_remote(&mut table, endpoint(number), NodeId(node), Epoch(epoch), Told::ByDirectory));
                }
                Step::Unbind(number) => unbind(&mut table, endpoint(number)),
                Step::Open(left, right, ring) => {
                    let wish = if ring { LaneWish::AnyRing } else { LaneWish::Messages };
                    if let Ok(lane) = table.lane_for(endpoint(left), endpoint(right), wish) {
                        let _ = table.open(channel(index as u64 + 1, left, right, lane.0));
                    }
                }
                Step::Close(id) => drop(table.close(ChannelId(id))),
            }
            let mut lanes = std::collections::BTreeSet::new();
            for channel in table.channels().iter() {
                prop_assert!(table.binding(channel.left).is_some() && table.binding(channel.right).is_some());
                let (low, high) = (channel.left.min(channel.right), channel.left.max(channel.right));
                prop_assert!(lanes.insert((low, high, channel.lane)));
                prop_assert!(table.channels().of(channel.left).any(|found| found.id == channel.id));
            }
            for (number, binding) in table.bindings() {
                let before = highest.insert(number, binding.epoch).unwrap_or_default();
                prop_assert!(binding.epoch >= before);
            }
        }
    }
}

#[test]
fn reserved_number_is_for_its_process_only_and_ends_with_its_manager() {
    let mut table = Table::new(256..260);
    let by = OwnerId(9);
    assert_eq!(table.reserve(Some(endpoint(257)), Reservation { pid: 7, by }), Ok(endpoint(257)));
    assert_eq!(table.reserve(None, Reservation { pid: 7, by }), Ok(endpoint(257)), "again");
    assert_eq!(table.reserve(Some(endpoint(257)), Reservation { pid: 8, by }), Err(IpcError::EndpointInUse));
    assert_eq!(table.reserve(Some(endpoint(300)), Reservation { pid: 8, by }), Err(IpcError::BadEndpoint));
    assert_eq!(bind_program(&mut table, Some(endpoint(257)), 8, OwnerId(1)), Err(IpcError::EndpointInUse));
    let others: Vec<_> = (1..4).map(|owner| bind_program(&mut table, None, 8, OwnerId(owner)).unwrap().0).collect();
    assert!(!others.contains(&endpoint(257)));
    assert_eq!(bind_program(&mut table, None, 8, OwnerId(4)), Err(IpcError::TableFull));
    assert_eq!(bind_program(&mut table, None, 7, OwnerId(4)).unwrap().0, endpoint(257));
    unbind(&mut table, endpoint(257));
    assert_eq!(
        table.reserve(Some(Endpoint::IS), Reservation { pid: 7, by }),
        Ok(Endpoint::IS),
        "managers make servers"
    );
    assert_eq!(table.reservations_mut().remove_of(by), [Endpoint::IS]);
    assert_eq!(bind_program(&mut table, Some(Endpoint::IS), 7, OwnerId(4)), Err(IpcError::Denied));
}
