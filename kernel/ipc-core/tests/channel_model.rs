//! The words of a channel under every order that the memory model allows: what `docs/design/channel.md` says of
//! sleeping, taking, withdrawing, copying, replying, both sending, notifying, closing and rings, each with the fewest
//! steps that can go wrong.
//!
//! The steps are those of `kernel/ipc` (`talk.rs`, `waiting.rs`) and `kernel/ipc-shm` (`link.rs`), over memory that
//! loom watches; the steps around a fence (`wake`, `slot`), those of `posting`, and the words are the real ones of this
//! crate. Every fence, exchange and order that a step relies on can be left out ([`Without`]): loom must then find an
//! order in which the promise is broken. Together: each is needed, and what is there suffices.

#[path = "channel_model/memory.rs"]
mod memory;
#[path = "channel_model/steps.rs"]
mod steps;

use std::panic::{AssertUnwindSafe, catch_unwind};

use loom::sync::Arc;
use loom::thread;
use memory::{Channel, Role, Without};
use steps::{Slept, Taken};

/// Whether the promise of `model` can be broken without that.
fn breaks(without: Without, model: impl Fn(Arc<Channel>) + Send + Sync + 'static) -> bool {
    let run = move || loom::model(move || model(Arc::new(Channel::new(without))));
    catch_unwind(AssertUnwindSafe(run)).is_err()
}

fn holds_only_with_all_of(model: fn(Arc<Channel>), needed: &[Without]) {
    assert!(!breaks(Without::Nothing, model), "the promise is broken with everything in place");
    for without in needed {
        assert!(breaks(*without, model), "nobody misses it: {without:?}");
    }
}

/// The peer publishes and the broker says that the peer died, both while this party goes to sleep on the two words.
fn two_publishers(channel: Arc<Channel>) {
    let (peer, broker) = (channel.clone(), channel.clone());
    let threads = [thread::spawn(move || peer.publish_plain(Role::Left)), thread::spawn(move || broker.say_dead())];
    let slept = channel.sleep_on_both(Role::Right);
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    if let Slept::While(seen) = slept {
        let news = (channel.has_word(Role::Left), channel.is_dead());
        assert_ne!(channel.seen(Role::Right), seen, "asleep for ever over {news:?}");
    }
}

/// The peer alone: nobody else wakes who missed it.
fn one_publisher(channel: Arc<Channel>) {
    let peer = channel.clone();
    is_woken_by(channel, move || peer.publish_plain(Role::Left));
}

fn one_death(channel: Arc<Channel>) {
    let broker = channel.clone();
    is_woken_by(channel, move || broker.say_dead());
}

fn is_woken_by(channel: Arc<Channel>, publish: impl FnOnce() + Send + 'static) {
    let publishing = thread::spawn(publish);
    let slept = channel.sleep_on_both(Role::Right);
    publishing.join().unwrap();
    if let Slept::While(seen) = slept {
        assert_ne!(channel.seen(Role::Right), seen, "asleep for ever");
    }
}

#[test]
fn sleeper_hears_of_every_publication() {
    use Without::*;
    holds_only_with_all_of(one_publisher, &[PublishersFence, SleepersFence, EventBeforeLook]);
    holds_only_with_all_of(one_death, &[EventBeforeLook, PageBeforeItsEvent]);
    holds_only_with_all_of(two_publishers, &[EventBeforeLook]);
}

/// A short sleep on the peer's event, which ends by itself, and then the long one.
fn one_publisher_to_who_napped(channel: Arc<Channel>) {
    let peer = channel.clone();
    let publishing = thread::spawn(move || peer.publish_plain(Role::Left));
    let slept = channel.nap_and_sleep(Role::Right);
    publishing.join().unwrap();
    if let Slept::While(seen) = slept {
        assert_ne!(channel.seen(Role::Right), seen, "asleep for ever");
    }
}

/// A channel dozes; its party is woken by another, looks, and arms it again.
fn one_publisher_to_who_dozed(channel: Arc<Channel>) {
    let peer = channel.clone();
    let publishing = thread::spawn(move || peer.publish_plain(Role::Left));
    let has_heard = channel.doze_and_arm(Role::Right);
    publishing.join().unwrap();
    assert!(has_heard || channel.has_rung(Role::Left), "asleep over a message whose bell never rang");
}

/// The fence of the sleep before does not count for this one, nor is it missed.
#[test]
fn sleeper_that_slept_before_hears_of_every_publication() {
    use Without::*;
    holds_only_with_all_of(one_publisher_to_who_napped, &[PublishersFence, SleepersFence, EventBeforeLook]);
    holds_only_with_all_of(one_publisher_to_who_dozed, &[PublishersFence, SleepersFence]);
    assert!(!breaks(EarlierFence, one_publisher_to_who_napped));
    assert!(!breaks(EarlierFence, one_publisher_to_who_dozed));
}

/// One waiter for anything over two channels with a bell each; both peers publish.
#[test]
fn sleeper_over_two_bells_hears_of_each() {
    for (without, is_broken) in
        [(Without::Nothing, false), (Without::PublishersFence, true), (Without::SleepersFence, true)]
    {
        let run = move || {
            loom::model(move || {
                let channels = [Arc::new(Channel::new(without)), Arc::new(Channel::new(without))];
                let threads = channels.clone().map(|channel| thread::spawn(move || channel.publish_plain(Role::Left)));
                let is_quiet = channels.iter().all(|channel| !channel.arm_and_look(Role::Right));
                threads.into_iter().for_each(|thread| thread.join().unwrap());
                for channel in channels {
                    assert!(!is_quiet || channel.has_rung(Role::Left), "asleep over a message whose bell never rang");
                }
            });
        };
        assert_eq!(catch_unwind(AssertUnwindSafe(run)).is_err(), is_broken, "{without:?}");
    }
}

/// A timed sender withdraws while the receiver takes: they agree, and what is taken is whole.
fn timed_send(channel: Arc<Channel>) {
    let receiver = channel.clone();
    let receiving = thread::spawn(move || receiver.take_timed(Role::Left));
    let word = channel.publish_timed(Role::Left, 42);
    let is_withdrawn = channel.withdraw(Role::Left, word);
    if is_withdrawn {
        // The slot is free again.
        channel.write_line(Role::Left, 7);
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

#[test]
fn timed_message_is_taken_or_withdrawn_and_both_know() {
    use Without::*;
    holds_only_with_all_of(timed_send, &[TakersExchange, WithdrawersExchange, OfferBeforeWord, PublicationRelease]);
}

/// A sender without a limit is told to give way while the receiver takes: they agree.
fn untimed_send(channel: Arc<Channel>) {
    let receiver = channel.clone();
    let receiving = thread::spawn(move || receiver.take_unless_given_way(Role::Left));
    channel.publish_untimed(Role::Left, 42);
    let is_withdrawn = channel.give_way(Role::Left);
    if is_withdrawn {
        channel.write_line(Role::Left, 7);
    }
    match receiving.join().unwrap() {
        Taken::Message(value) => assert!(!is_withdrawn && value == 42, "taken and withdrawn"),
        Taken::Lost => assert!(is_withdrawn, "neither taken nor withdrawn"),
        Taken::Nothing => {}
    }
}

#[test]
fn message_whose_sender_gives_way_is_taken_or_withdrawn_and_both_know() {
    use Without::*;
    holds_only_with_all_of(untimed_send, &[TakersExchange, WithdrawersExchange, PublicationRelease]);
}

/// An untimed sender overwrites its line when, and only when, the receiver has copied it.
fn next_message(channel: Arc<Channel>) {
    let receiver = channel.clone();
    let receiving = thread::spawn(move || receiver.take_untimed(Role::Left));
    channel.publish_untimed(Role::Left, 42);
    if channel.is_taken(Role::Left) {
        channel.write_line(Role::Left, 7);
    }
    if let Taken::Message(value) = receiving.join().unwrap() {
        assert_eq!(value, 42, "overwritten while it was copied");
    }
}

#[test]
fn line_is_free_when_it_was_copied_and_not_before() {
    use Without::*;
    holds_only_with_all_of(next_message, &[PublicationRelease, CopyBeforeTaken, TakenRelease, TakenAcquire]);
}

/// A caller takes a request without a limit back and writes the next, while the receiver, which cannot know, copies.
fn request_written_anew(channel: Arc<Channel>) {
    let receiver = channel.clone();
    let receiving = thread::spawn(move || receiver.copy_request(Role::Left));
    let first = channel.publish_anew(Role::Left, 0, 41);
    channel.publish_anew(Role::Left, first, 42);
    if let Some((counter, value)) = receiving.join().unwrap() {
        assert_eq!(value, 40 + counter, "copied for another than it is");
    }
}

#[test]
fn request_that_is_replaced_while_it_is_copied_is_not_taken_for_either() {
    use Without::*;
    let needed = [WordCleared, FenceBeforeAnew, FenceAfterCopy, PublicationRelease];
    holds_only_with_all_of(request_written_anew, &needed);
}

/// A timed caller gives up while its server answers: the reply comes, or the server learns that nobody waits.
fn timed_call(channel: Arc<Channel>) {
    let server = channel.clone();
    let serving = thread::spawn(move || server.take_and_reply(Role::Left, 43));
    let word = channel.publish_request(Role::Left, 42);
    let has_given_up = channel.give_up_call(Role::Left, word);
    let has_replied = serving.join().unwrap();
    match has_replied {
        None => {}
        Some(true) => {
            assert!(!has_given_up, "answered a caller that gave up");
            assert_eq!(channel.line(Role::Right), 43);
        }
        Some(false) => assert!(has_given_up, "a caller waits for a reply that was refused"),
    }
}

#[test]
fn reply_is_taken_or_refused_and_both_know() {
    use Without::*;
    holds_only_with_all_of(
        timed_call,
        &[
            RepliersExchange,
            CallersExchange,
            TakersExchange,
            WithdrawersExchange,
            ReplyWordBeforeWord,
            AwaitsBeforeWord,
        ],
    );
}

/// Both send at once: the higher gives way, nobody sleeps for ever, and the lower never sees the message that was taken
/// back.
fn both_send(channel: Arc<Channel>) {
    let high = channel.clone();
    let sending = thread::spawn(move || high.send_as_higher(Role::Right));
    let slept = channel.send_as_lower(Role::Left);
    let higher = sending.join().unwrap();
    match higher {
        Slept::While(seen) => {
            assert!(
                channel.seen(Role::Right) != seen
                    || matches!(slept, Slept::While(own) if own != channel.seen(Role::Left)),
                "both are asleep for ever"
            );
        }
        Slept::No => {}
    }
    assert!(!channel.lower_took_what_was_withdrawn(), "a message that was taken back was taken");
}

#[test]
fn one_of_two_that_send_to_each_other_gives_way() {
    use Without::*;
    holds_only_with_all_of(
        both_send,
        &[PublishersFence, SleepersFence, TakenRelease, TakenAcquire, WithdrawnBeforeTaken],
    );
}

/// Two bits are posted one after the other while the receiver looks: each arrives once.
fn notifications(channel: Arc<Channel>) {
    let receiver = channel.clone();
    let taking = thread::spawn(move || {
        let mut seen = 0;
        let bits = receiver.take_notifications(Role::Left, &mut seen);
        (bits, seen)
    });
    channel.notify(Role::Left, 0b01);
    channel.notify(Role::Left, 0b10);
    let (first, mut seen) = taking.join().unwrap();
    let second = channel.take_notifications(Role::Left, &mut seen);
    assert_eq!(first & second, 0, "a bit came twice");
    assert_eq!(first | second, 0b11, "a bit is lost");
}

#[test]
fn every_bit_that_is_posted_arrives_once() {
    use Without::*;
    holds_only_with_all_of(notifications, &[MasksExchange, MasksOr, MaskBeforeCount]);
}

/// A bit is posted while the receiver closes the channel, in which another lies.
fn post_and_close(channel: Arc<Channel>) {
    channel.post_and_look(Role::Left, 0b01);
    let closer = channel.clone();
    let closing = thread::spawn(move || closer.close_and_take(Role::Right));
    let left = channel.post_and_look(Role::Left, 0b10);
    let taken = closing.join().unwrap();
    assert_eq!(taken & left, 0, "a bit comes twice");
    assert_eq!(taken | left, 0b11, "a bit is lost");
}

#[test]
fn every_bit_in_a_channel_that_is_closed_is_handed_on_by_one_of_the_two() {
    use Without::*;
    let needed = [PostersAcquire, ClosersRelease, ClosedBeforeLastLook, MasksExchange, RecallInOneStep];
    holds_only_with_all_of(post_and_close, &needed);
}

/// An entry is put into a ring, taken, and its place used again.
fn ring(channel: Arc<Channel>) {
    let consumer = channel.clone();
    let consuming = thread::spawn(move || consumer.take_entry(Role::Left));
    channel.put_entry(Role::Left, 42);
    if channel.is_entry_consumed(Role::Left) {
        channel.write_line(Role::Left, 7);
    }
    if let Some(value) = consuming.join().unwrap() {
        assert_eq!(value, 42, "not the entry that was put");
    }
}

#[test]
fn entry_of_a_ring_is_whole() {
    use Without::*;
    holds_only_with_all_of(ring, &[TailRelease, TailAcquire, HeadRelease, HeadAcquire]);
}
