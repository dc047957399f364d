//! The words of a channel under every order that the memory model allows: what `docs/design/channel.md` says of
//! sleeping, taking, withdrawing, copying, replying, both sending, notifying, closing and rings, each with the fewest
//! parties and steps that can go wrong.
//!
//! The steps, words and orders are those of this crate, which `kernel/ipc` makes over the memory of `kernel/ipc-shm`;
//! here they are made over memory that loom watches. Every fence, exchange and order that a step relies on can be left
//! out ([`Without`]): loom must then find an order in which the promise is broken. Together: each is needed, and what
//! is there suffices.

#[path = "channel_model/memory.rs"]
mod memory;
#[path = "channel_model/steps.rs"]
mod steps;

use std::panic::{AssertUnwindSafe, catch_unwind};

use abi::layout::Role::{Left, Right};
use ipc_core::words::Fence;
use ipc_core::{Kind, Timing, posting};
use loom::sync::Arc;
use loom::thread;
use memory::{Channel, Party, Place, Step, Without, parties};
use steps::{Slept, Taken};

/// Whether the promise of `model` can be broken without that.
fn breaks(without: Without, model: impl Fn(Arc<Channel>) + Send + Sync + 'static) -> bool {
    breaks_within(None, without, model)
}

/// The same in those orders in which a party that could go on is interrupted at most so many times.
fn breaks_within(
    interruptions_max: Option<usize>,
    without: Without,
    model: impl Fn(Arc<Channel>) + Send + Sync + 'static,
) -> bool {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = interruptions_max;
    let run = move || builder.check(move || model(Arc::new(Channel::new(without))));
    catch_unwind(AssertUnwindSafe(run)).is_err()
}

fn holds_only_with_all_of(model: fn(Arc<Channel>), needed: &[Without]) {
    holds_within(None, model, needed);
}

fn holds_within(interruptions_max: Option<usize>, model: fn(Arc<Channel>), needed: &[Without]) {
    let breaks = |without| breaks_within(interruptions_max, without, model);
    assert!(!breaks(Without::Nothing), "the promise is broken with everything in place");
    for without in needed {
        assert!(breaks(*without), "nobody misses it: {without:?}");
    }
}

const PUBLISHERS_FENCE: Without = Without::Fence(Fence::Publisher);
const SLEEPERS_FENCE: Without = Without::Fence(Fence::Sleeper);
/// What left publishes releases what it wrote before.
const PUBLICATION: Without = Without::Release(Left, Place::Word);
const TAKERS_EXCHANGE: Without = Without::OneStep(Right, Step::Exchange(Place::State));
const WITHDRAWERS_EXCHANGE: Without = Without::OneStep(Left, Step::Exchange(Place::State));

/// The peer publishes and the broker says that the peer died, both while this party goes to sleep on the two words.
fn two_publishers(channel: Arc<Channel>) {
    let (peer, party) = parties(channel.clone());
    let broker = channel.clone();
    let threads = [thread::spawn(move || peer.publish_anything()), thread::spawn(move || broker.say_dead())];
    let slept = party.sleep_on_both();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    if let Slept::While(seen) = slept {
        let news = (party.has_word(), channel.is_dead());
        assert_ne!(party.seen(), seen, "asleep for ever over {news:?}");
    }
}

/// The peer alone: nobody else wakes who missed it.
fn one_publisher(channel: Arc<Channel>) {
    let (peer, party) = parties(channel);
    is_woken_by(&party, Party::sleep_on_both, move || peer.publish_anything());
}

fn one_death(channel: Arc<Channel>) {
    let (_, party) = parties(channel.clone());
    is_woken_by(&party, Party::sleep_on_both, move || channel.say_dead());
}

fn is_woken_by(party: &Party, sleep: fn(&Party) -> Slept, publish: impl FnOnce() + Send + 'static) {
    let publishing = thread::spawn(publish);
    let slept = sleep(party);
    publishing.join().unwrap();
    if let Slept::While(seen) = slept {
        assert_ne!(party.seen(), seen, "asleep for ever");
    }
}

#[test]
fn sleeper_hears_of_every_publication() {
    use Without::*;
    holds_only_with_all_of(one_publisher, &[PUBLISHERS_FENCE, SLEEPERS_FENCE, EventBeforeLook]);
    holds_only_with_all_of(one_death, &[EventBeforeLook, PageBeforeItsEvent]);
    holds_only_with_all_of(two_publishers, &[EventBeforeLook]);
}

/// A short sleep on the peer's event, which ends by itself, and then the long one.
fn one_publisher_to_who_napped(channel: Arc<Channel>) {
    let (peer, party) = parties(channel);
    is_woken_by(&party, Party::nap_and_sleep, move || peer.publish_anything());
}

/// A channel dozes; its party is woken by another, looks, and arms it again.
fn one_publisher_to_who_dozed(channel: Arc<Channel>) {
    let (peer, party) = parties(channel);
    let publishing = thread::spawn(move || peer.publish_anything());
    let has_heard = party.doze_and_arm();
    publishing.join().unwrap();
    assert!(has_heard || party.has_heard_a_ring(), "asleep over a message whose bell never rang");
}

/// The fence of the sleep before does not count for this one, nor is it missed.
#[test]
fn sleeper_that_slept_before_hears_of_every_publication() {
    use Without::*;
    holds_only_with_all_of(one_publisher_to_who_napped, &[PUBLISHERS_FENCE, SLEEPERS_FENCE, EventBeforeLook]);
    holds_only_with_all_of(one_publisher_to_who_dozed, &[PUBLISHERS_FENCE, SLEEPERS_FENCE]);
    assert!(!breaks(EarlierFence, one_publisher_to_who_napped));
    assert!(!breaks(EarlierFence, one_publisher_to_who_dozed));
}

/// One waiter for anything over two channels with a bell each; both peers publish.
#[test]
fn sleeper_over_two_bells_hears_of_each() {
    for (without, is_broken) in [(Without::Nothing, false), (PUBLISHERS_FENCE, true), (SLEEPERS_FENCE, true)] {
        let run = move || {
            loom::model(move || {
                let channels = [Arc::new(Channel::new(without)), Arc::new(Channel::new(without))];
                let waiter = channels.clone().map(|channel| Party::of(channel, Right));
                let threads =
                    channels.map(|channel| thread::spawn(move || Party::of(channel, Left).publish_anything()));
                let is_quiet = waiter.iter().all(|party| !party.arm_and_look());
                threads.into_iter().for_each(|thread| thread.join().unwrap());
                for party in waiter {
                    assert!(!is_quiet || party.has_heard_a_ring(), "asleep over a message whose bell never rang");
                }
            });
        };
        assert_eq!(catch_unwind(AssertUnwindSafe(run)).is_err(), is_broken, "{without:?}");
    }
}

/// A sender takes its message back while the receiver takes it: they agree, and what is taken is whole.
fn withdrawn_send(channel: Arc<Channel>, timing: Timing) {
    let (sender, receiver) = parties(channel);
    let receiving = thread::spawn(move || receiver.receive());
    let word = sender.send(timing, 42);
    let is_withdrawn = sender.take_back(word);
    if is_withdrawn {
        // The slot is free again.
        sender.own().write_line(7);
    }
    match receiving.join().unwrap() {
        Taken::Message(value) => {
            assert!(!is_withdrawn, "taken and withdrawn");
            assert_eq!(value, 42, "not what was sent");
        }
        Taken::Lost => assert!(is_withdrawn, "neither taken nor withdrawn"),
        Taken::Nothing => {}
    }
}

/// Its limit passed.
fn timed_send(channel: Arc<Channel>) {
    withdrawn_send(channel, Timing::Timed);
}

/// A broker told it to give way.
fn untimed_send(channel: Arc<Channel>) {
    withdrawn_send(channel, Timing::Untimed);
}

#[test]
fn timed_message_is_taken_or_withdrawn_and_both_know() {
    let offer_before_word = Without::Order(Place::State, Place::Word);
    holds_only_with_all_of(timed_send, &[TAKERS_EXCHANGE, WITHDRAWERS_EXCHANGE, offer_before_word, PUBLICATION]);
}

#[test]
fn message_whose_sender_gives_way_is_taken_or_withdrawn_and_both_know() {
    holds_only_with_all_of(untimed_send, &[TAKERS_EXCHANGE, WITHDRAWERS_EXCHANGE, PUBLICATION]);
}

/// An untimed sender overwrites its line when, and only when, the receiver has copied it.
fn next_message(channel: Arc<Channel>) {
    let (sender, receiver) = parties(channel);
    let receiving = thread::spawn(move || receiver.receive());
    let word = sender.send(Timing::Untimed, 42);
    if sender.is_taken(word) {
        sender.own().write_line(7);
    }
    if let Taken::Message(value) = receiving.join().unwrap() {
        assert_eq!(value, 42, "overwritten while it was copied");
    }
}

#[test]
fn line_is_free_when_it_was_copied_and_not_before() {
    use Without::*;
    let taken = [Release(Right, Place::Taken), Acquire(Left, Place::Taken)];
    holds_only_with_all_of(next_message, &[PUBLICATION, CopyBeforeTaken, taken[0], taken[1]]);
}

/// A caller takes a request without a limit back and writes the next, while the receiver, which cannot know, copies.
fn request_written_anew(channel: Arc<Channel>) {
    let (sender, receiver) = parties(channel);
    let receiving = thread::spawn(move || receiver.copy_request());
    sender.request_and_request_anew();
    if let Some((word, value)) = receiving.join().unwrap() {
        let counter = word.raw() >> abi::layout::word::FLAG_BITS;
        assert_eq!(value, 40 + counter, "copied for another than it is");
    }
}

#[test]
fn request_that_is_replaced_while_it_is_copied_is_not_taken_for_either() {
    use Without::*;
    let needed = [WordCleared, Fence(self::Fence::Anew), Fence(self::Fence::Copied), PUBLICATION];
    holds_only_with_all_of(request_written_anew, &needed);
}

/// A timed caller gives up while its server answers: the reply comes, or the server learns that nobody waits.
fn timed_call(channel: Arc<Channel>) {
    let (caller, server) = parties(channel);
    let serving = thread::spawn(move || server.take_and_reply(43));
    let request = caller.publish(0, Kind::Request, Timing::Timed, 42);
    let has_given_up = caller.give_up_call(request);
    match serving.join().unwrap() {
        None => {}
        Some(true) => {
            assert!(!has_given_up, "answered a caller that gave up");
            assert_eq!(caller.reply_to(request), Some(43));
        }
        Some(false) => assert!(has_given_up, "a caller waits for a reply that was refused"),
    }
}

#[test]
fn reply_is_taken_or_refused_and_both_know() {
    use Without::*;
    let repliers_exchange = OneStep(Right, Step::Exchange(Place::Reply));
    let callers_exchange = OneStep(Left, Step::Exchange(Place::Reply));
    let before_word = [Order(Place::Reply, Place::Word), Order(Place::Awaits, Place::Word)];
    holds_only_with_all_of(timed_call, &[repliers_exchange, callers_exchange, before_word[0], before_word[1]]);
    holds_only_with_all_of(timed_call, &[TAKERS_EXCHANGE, WITHDRAWERS_EXCHANGE]);
}

/// Both send at once: the higher gives way, nobody sleeps for ever, and the lower never sees the message that was taken
/// back.
fn both_send(channel: Arc<Channel>) {
    let (low, high) = parties(channel.clone());
    let sending = thread::spawn(move || high.send_as_higher());
    let lower = low.send_as_lower();
    if let Slept::While(seen) = sending.join().unwrap() {
        let is_lower_woken = matches!(lower.slept, Slept::While(own) if own != low.seen());
        assert!(Party::of(channel, Right).seen() != seen || is_lower_woken, "both are asleep for ever");
    }
    assert!(!lower.sees_withdrawn, "a message that was taken back was taken");
}

#[test]
fn one_of_two_that_send_to_each_other_gives_way() {
    use Without::*;
    let taken = [Release(Right, Place::Taken), Acquire(Left, Place::Taken)];
    holds_within(Some(4), both_send, &[PUBLISHERS_FENCE, SLEEPERS_FENCE, taken[0], taken[1], WithdrawnBeforeTaken]);
}

/// Two bits are posted one after the other while the receiver looks: each arrives once.
fn notifications(channel: Arc<Channel>) {
    let (poster, receiver) = parties(channel.clone());
    let taking = thread::spawn(move || {
        let mut seen = 0;
        (posting::take(&receiver, &mut seen), seen)
    });
    poster.notify(0b01);
    poster.notify(0b10);
    let (first, mut seen) = taking.join().unwrap();
    let second = posting::take(&Party::of(channel, Right), &mut seen);
    assert_eq!(first & second, 0, "a bit came twice");
    assert_eq!(first | second, 0b11, "a bit is lost");
}

#[test]
fn every_bit_that_is_posted_arrives_once() {
    use Without::*;
    let mask_before_count = Order(Place::Mask, Place::Notified);
    holds_only_with_all_of(notifications, &[OneStep(Right, Step::Take), OneStep(Left, Step::Post), mask_before_count]);
}

/// A bit is posted while the receiver closes the channel, in which another lies.
fn post_and_close(channel: Arc<Channel>) {
    let (poster, closer) = parties(channel);
    poster.post_and_look(0b01);
    let closing = thread::spawn(move || closer.close_and_take());
    let left = poster.post_and_look(0b10);
    let taken = closing.join().unwrap();
    assert_eq!(taken & left, 0, "a bit comes twice");
    assert_eq!(taken | left, 0b11, "a bit is lost");
}

#[test]
fn every_bit_in_a_channel_that_is_closed_is_handed_on_by_one_of_the_two() {
    use Without::*;
    let mask = [Acquire(Left, Place::Mask), Release(Right, Place::Mask)];
    let steps = [OneStep(Right, Step::Take), OneStep(Left, Step::Recall)];
    holds_only_with_all_of(post_and_close, &[mask[0], mask[1], steps[0], steps[1], ClosedBeforeLastLook]);
}

/// An entry is put into a ring, taken, and its place used again.
fn ring(channel: Arc<Channel>) {
    let (producer, consumer) = parties(channel);
    let consuming = thread::spawn(move || consumer.take_entry());
    producer.put_entry(42);
    if producer.is_entry_consumed() {
        producer.own().write_line(7);
    }
    if let Some(value) = consuming.join().unwrap() {
        assert_eq!(value, 42, "not the entry that was put");
    }
}

#[test]
fn entry_of_a_ring_is_whole() {
    use Without::*;
    let tail = [Release(Left, Place::Tail), Acquire(Right, Place::Tail)];
    let head = [Release(Right, Place::Head), Acquire(Left, Place::Head)];
    holds_only_with_all_of(ring, &[tail[0], tail[1], head[0], head[1]]);
}
