//! Work in a child process: what it gives, and that a child that hangs holds nobody up.
//!
//! A process with threads may not fork, and the usual harness makes a thread for each test: so this is a program of its
//! own.

use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::pipe::{PipeFlags, pipe_with};
use sandbox::helper::{HelperError, Outcome, TimeLimit, in_child, in_child_with};

/// What the caller waits for a child.
const LIMIT: Duration = Duration::from_millis(200);
/// A child that hangs ends by itself after this, so that a caller without a limit fails, and does not hang too.
const HANG: Duration = Duration::from_secs(20);
/// Far less than a child hangs, far more than the machine is late.
const IN_TIME: Duration = Duration::from_secs(10);

fn main() {
    let tests: [(&str, fn()); 4] = [
        ("what_a_child_made_is_its_callers", what_a_child_made_is_its_callers),
        ("child_that_hangs_is_given_up_in_time", child_that_hangs_is_given_up_in_time),
        ("child_that_is_freed_gives_what_it_made", child_that_is_freed_gives_what_it_made),
        ("child_that_ended_without_a_word_is_told_of", child_that_ended_without_a_word_is_told_of),
    ];
    for (name, test) in tests {
        test();
        println!("test {name} ... ok");
    }
}

/// Hangs until the other end of the pipe is closed.
fn hang(on: &OwnedFd) -> Outcome {
    let limit = Timespec::try_from(HANG)?;
    poll(&mut [PollFd::new(on, PollFlags::IN)], Some(&limit))?;
    Ok((Vec::new(), "freed".to_owned()))
}

fn what_a_child_made_is_its_callers() {
    let (reader, writer) = pipe_with(PipeFlags::CLOEXEC).expect("pipe");
    let (fds, notes) = in_child(None, || Ok((vec![writer.try_clone()?], "a note".to_owned()))).expect("child");
    drop(writer);
    assert_eq!((fds.len(), notes.as_str()), (1, "a note"));
    rustix::io::write(&fds[0], b"x").expect("write");
    assert_eq!(rustix::io::read(&reader, &mut [0; 2]), Ok(1));
    let refused = in_child(None, || Err("a reason".into()));
    assert!(matches!(&refused, Err(HelperError::Failed(text)) if text == "a reason"), "{refused:?}");
}

fn child_that_hangs_is_given_up_in_time() {
    let (reader, writer) = pipe_with(PipeFlags::CLOEXEC).expect("pipe");
    let begun = Instant::now();
    let mut asked_to_free = 0;
    let patience = TimeLimit { limit: LIMIT, free: || asked_to_free += 1 };
    let outcome = in_child_with(None, patience, || hang(&reader));
    assert!(matches!(outcome, Err(HelperError::Stuck(LIMIT))), "{outcome:?}");
    assert!(begun.elapsed() < IN_TIME, "{:?}", begun.elapsed());
    assert_eq!(asked_to_free, 1);
    // The child is dead: nobody else has the reading end.
    drop(reader);
    assert_eq!(rustix::io::write(&writer, b"x"), Err(rustix::io::Errno::PIPE));
}

fn child_that_is_freed_gives_what_it_made() {
    let (reader, writer) = pipe_with(PipeFlags::CLOEXEC).expect("pipe");
    let begun = Instant::now();
    let free = || assert_eq!(rustix::io::write(&writer, b"x"), Ok(1));
    let (_, notes) = in_child_with(None, TimeLimit { limit: LIMIT, free }, || hang(&reader)).expect("child");
    assert_eq!(notes, "freed");
    assert!(begun.elapsed() < IN_TIME, "{:?}", begun.elapsed());
}

fn child_that_ended_without_a_word_is_told_of() {
    let outcome = in_child(None, || sys::child::exit_now(3));
    assert!(matches!(outcome, Err(HelperError::Died)), "{outcome:?}");
}
