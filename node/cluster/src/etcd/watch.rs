//! A watch that goes on over lost connections and changes of leader.
//!
//! A task reads etcd's stream and hands on its events; when the stream ends, the next one begins after the last
//! revision that was handed on whole, so that nothing is missed or comes twice: etcd never divides a revision between
//! two answers. The hand-over has a bound: a reader who is slow stops the stream, not this node. Only compaction, and a
//! refusal, end a watch.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use http::uri::PathAndQuery;
use parking_lot::{Condvar, Mutex};
use tokio::sync::{Notify, mpsc};
use tokio::task::AbortHandle;
use tokio_stream::wrappers::ReceiverStream;
use tonic_prost::ProstCodec;

use super::caller::{Caller, is_stale_token, refused};
use super::connection::{Fault, Open, fault};
use super::messages::{self as m, EventType, WatchCreateRequest, WatchRequest, WatchResponse, Watching};
use super::{Keys, lease_of};
use crate::engine::{Canceller, EngineError, Event, EventKind, Revision, Watch};

const WATCH: &str = "/etcdserverpb.Watch/Watch";
/// Answers that wait for their reader. Each has at most what a few transactions changed.
const BATCHES_MAX: usize = 64;
const PAUSE: Duration = Duration::from_millis(100);

pub struct EtcdWatch {
    shared: Arc<Shared>,
    task: AbortHandle,
    /// Of the batch that is being returned.
    events: VecDeque<Event>,
    batch_ends: Revision,
    seen: Revision,
}

#[derive(Default)]
struct Shared {
    queue: Mutex<Queue>,
    changed: Condvar,
    room: Notify,
}

#[derive(Default)]
struct Queue {
    batches: VecDeque<(Vec<Event>, Revision)>,
    end: Option<End>,
}

enum End {
    Cancelled,
    Compacted(Revision),
    Error(Option<EngineError>),
    /// Its task has ended.
    Gone,
}

impl EtcdWatch {
    pub fn start(
        runtime: &tokio::runtime::Handle,
        caller: Arc<Caller>,
        keys: Arc<Keys>,
        prefix: &str,
        after: Revision,
    ) -> EtcdWatch {
        let shared = Arc::new(Shared::default());
        let (key, range_end) = keys.range(prefix);
        let reached = keys.number(after);
        if reached.is_none() {
            // What happened in the engine before this one is not told any more.
            shared.end(End::Compacted(keys.revision(1)));
        }
        let follow = Follow {
            caller,
            keys,
            key,
            range_end,
            reached: reached.unwrap_or(i64::MAX),
            was_denied: false,
            shared: Arc::clone(&shared),
        };
        let task = runtime.spawn(follow.run()).abort_handle();
        EtcdWatch { shared, task, events: VecDeque::new(), batch_ends: after, seen: after }
    }
}

impl Drop for EtcdWatch {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Watch for EtcdWatch {
    fn recv(&mut self, timeout: Duration) -> Result<Option<Event>, EngineError> {
        let until = Instant::now() + timeout;
        let mut queue = self.shared.queue.lock();
        loop {
            if matches!(queue.end, Some(End::Cancelled)) {
                return Err(EngineError::Cancelled);
            }
            if let Some(event) = self.events.pop_front() {
                self.seen = if self.events.is_empty() { self.batch_ends } else { before(event.revision) };
                return Ok(Some(event));
            }
            if let Some((events, reached)) = queue.batches.pop_front() {
                self.shared.room.notify_one();
                self.events = events.into();
                self.batch_ends = reached;
                if self.events.is_empty() {
                    self.seen = reached;
                }
                continue;
            }
            match &mut queue.end {
                Some(End::Gone) => return Err(EngineError::Cancelled),
                Some(End::Compacted(up_to)) => return Err(EngineError::Compacted { up_to: *up_to }),
                Some(End::Error(error)) => {
                    let again = || EngineError::Storage("the watch has ended with an error".into());
                    return Err(error.take().unwrap_or_else(again));
                }
                _ => (),
            }
            if self.shared.changed.wait_until(&mut queue, until).timed_out()
                && queue.batches.is_empty()
                && queue.end.is_none()
            {
                return Ok(None);
            }
        }
    }

    fn seen(&self) -> Revision {
        self.seen
    }

    fn canceller(&self) -> Canceller {
        let shared = Arc::clone(&self.shared);
        Canceller::new(move || shared.end(End::Cancelled))
    }
}

fn before(revision: Revision) -> Revision {
    Revision(revision.0.saturating_sub(1))
}

impl Shared {
    /// The first end is the end, but for cancelling.
    fn end(&self, end: End) {
        let mut queue = self.queue.lock();
        if queue.end.is_none() || matches!(end, End::Cancelled) {
            queue.end = Some(end);
        }
        self.changed.notify_all();
    }

    async fn hand_on(&self, events: Vec<Event>, reached: Revision) {
        loop {
            let room = self.room.notified();
            {
                let mut queue = self.queue.lock();
                if queue.batches.len() < BATCHES_MAX {
                    queue.batches.push_back((events, reached));
                    self.changed.notify_all();
                    return;
                }
            }
            room.await;
        }
    }
}

/// The task's side.
struct Follow {
    caller: Arc<Caller>,
    keys: Arc<Keys>,
    key: Vec<u8>,
    range_end: Vec<u8>,
    /// All up to here was handed on.
    reached: i64,
    /// With the last token.
    was_denied: bool,
    shared: Arc<Shared>,
}

/// The engine may be dropped before its watches.
impl Drop for Follow {
    fn drop(&mut self) {
        self.shared.end(End::Gone);
    }
}

/// Why a stream is over for good.
enum Over {
    Compacted(i64),
    Refused(EngineError),
}

impl Follow {
    async fn run(mut self) {
        loop {
            match self.stream().await {
                Ok(()) => (),
                Err(Over::Compacted(up_to)) => return self.shared.end(End::Compacted(self.keys.revision(up_to))),
                Err(Over::Refused(error)) => return self.shared.end(End::Error(Some(error))),
            }
            tokio::time::sleep(PAUSE).await;
        }
    }

    /// One stream to its end. `Ok`: the next one may go on.
    async fn stream(&mut self) -> Result<(), Over> {
        let (open, mut grpc) = match self.caller.stream().await {
            Ok(stream) => stream,
            Err(Fault::Refused(said)) => return Err(Over::Refused(refused(said))),
            Err(_) => return Ok(()),
        };
        let create = WatchCreateRequest {
            key: self.key.clone(),
            range_end: self.range_end.clone(),
            start_revision: self.reached.saturating_add(1),
            progress_notify: true,
        };
        // The stream lives as long as what asks: nothing more is asked, so the sender is only kept.
        let (asking, asked) = mpsc::channel(1);
        let _ = asking.send(WatchRequest { request: Some(Watching::Create(create)) }).await;
        let codec = ProstCodec::<WatchRequest, WatchResponse>::default();
        let request = self.caller.request(ReceiverStream::new(asked));
        let begun = tokio::time::timeout(
            self.caller.config.attempt,
            grpc.streaming(request, PathAndQuery::from_static(WATCH), codec),
        );
        let mut answers = match begun.await {
            Ok(Ok(answers)) => answers.into_inner(),
            Ok(Err(status)) => return self.broken(&open, status).await,
            Err(_) => {
                self.caller.leave(&open).await;
                return Ok(());
            }
        };
        loop {
            let answer = tokio::select! {
                answer = answers.message() => answer,
                // Somebody else met its fault: this side would notice later.
                () = open.is_left() => return Ok(()),
            };
            match answer {
                Ok(Some(answer)) if !self.caller.is_of_the_same(answer.header.as_ref()) => {
                    return Err(Over::Refused(EngineError::Replaced));
                }
                Ok(Some(answer)) if answer.canceled => return self.cancelled(&open, answer).await,
                Ok(Some(answer)) => {
                    self.was_denied = false;
                    self.take(answer).await;
                }
                Ok(None) => return Ok(()),
                Err(status) => return self.broken(&open, status).await,
            }
        }
    }

    async fn take(&mut self, answer: WatchResponse) {
        let last = answer.events.iter().filter_map(|event| event.kv.as_ref()).map(|kv| kv.mod_revision).max();
        let events: Vec<Event> = answer.events.into_iter().filter_map(|event| told(&self.keys, event)).collect();
        // An answer without events says how far the store is; the one that creates the watch says it too early.
        let reached = last.or_else(|| answer.header.filter(|_| !answer.created).map(|header| header.revision));
        let Some(reached) = reached.filter(|reached| *reached > self.reached) else { return };
        self.reached = reached;
        self.shared.hand_on(events, self.keys.revision(reached)).await;
    }

    async fn cancelled(&mut self, open: &Open, answer: WatchResponse) -> Result<(), Over> {
        if answer.compact_revision > 0 {
            return Err(Over::Compacted(answer.compact_revision));
        }
        let reason = &answer.cancel_reason;
        if reason.contains("invalid auth token") || reason.contains("revision of auth store is old") {
            self.caller.forget_token();
            return Ok(());
        }
        if reason.contains("permission denied") {
            // Some versions say so of a token that has ended.
            self.caller.forget_token();
            if self.caller.config.user.is_none() || std::mem::replace(&mut self.was_denied, true) {
                let denied = tonic::Status::permission_denied(answer.cancel_reason);
                return Err(Over::Refused(refused(denied.into())));
            }
            return Ok(());
        }
        // No leader: another member may have one.
        self.caller.leave(open).await;
        Ok(())
    }

    async fn broken(&self, open: &Open, status: tonic::Status) -> Result<(), Over> {
        match fault(open, status) {
            Fault::Refused(said) if is_stale_token(&said) => {
                self.caller.forget_token();
                Ok(())
            }
            Fault::Refused(said) => Err(Over::Refused(refused(said))),
            Fault::Replaced(_) => Err(Over::Refused(EngineError::Replaced)),
            _ => {
                self.caller.leave(open).await;
                Ok(())
            }
        }
    }
}

fn told(keys: &Keys, event: m::Event) -> Option<Event> {
    let kv = event.kv?;
    let kind = match EventType::try_from(event.r#type).ok()? {
        EventType::Put => {
            EventKind::Put { value: kv.value, created: keys.revision(kv.create_revision), lease: lease_of(kv.lease) }
        }
        EventType::Delete => EventKind::Delete,
    };
    Some(Event { revision: keys.revision(kv.mod_revision), key: keys.shown(&kv.key)?, kind })
}
