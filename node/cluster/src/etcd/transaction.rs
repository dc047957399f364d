//! Transactions that happen once, whatever happens to their answers.
//!
//! An answer may be lost: the member dies, the leader changes, the link is cut. The request may have been carried out,
//! may never be, or may wait in a member that is stopped and goes on a minute later. So every transaction that changes
//! something also writes a *marker*, a key of its own beside the keys of the cluster, and compares that the marker is
//! as its writer knew it:
//!
//! ```text
//! if    what the caller compares, and the marker is of revision R
//! then  what the caller does, and marker := the name of this call
//! else  read what was compared, and the marker
//!
//! the marker afterwards     means                                              answer
//! the name of this call     an attempt happened, at the marker's revision      Done
//! of revision R             none happened, a comparison did not hold           Conflict
//! anything else             an attempt of an earlier call came late            again, with the new revision
//! ```
//!
//! All attempts of one call compare the same revision, and whichever happens changes it: at most one does, and none can
//! happen after a later call of the same marker has. The marker of a call that ended without an answer is used first by
//! the next call, which changes it before anything else. A node has as many markers as transactions at the same time;
//! they hang on a lease of the node's and go when it is gone for a minute.
//!
//! A transaction that only deletes writes the marker where one of its keys exists: one that deletes nothing changes
//! nothing, also not the revision. From the second attempt on it always writes the marker, because only that keeps an
//! earlier attempt from deleting what came later.

use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tonic::Code;

use super::caller::{Attempts, Caller, Method, NO_SPACE, refused, unreachable};
use super::connection::{Fault, Said};
use super::messages::{
    self as m, CompareResult, CompareTarget, Operand, PutRequest, RangeRequest, Request, RequestOp, Response,
    TxnRequest, TxnResponse,
};
use super::{Keys, entry, lease_number, random};
use crate::boot_clock;
use crate::engine::{Compare, Conflict, EngineError, LeaseId, OPS_PER_TRANSACTION_MAX, Op, Outcome, Revision};

pub const TXN: Method = Method::one("/etcdserverpb.KV/Txn");
const GRANT: Method = Method::one("/etcdserverpb.Lease/LeaseGrant");
const TIME_TO_LIVE: Method = Method::one("/etcdserverpb.Lease/LeaseTimeToLive");

/// Of the lease on which markers hang. A call that was asleep for half of it does not trust an absent marker.
pub const MARKERS_TTL: Duration = Duration::from_secs(60);
/// Etcd's default for the sum of what is nested; the marker needs one.
const ETCD_OPS_MAX: usize = 128;
const _: () = assert!(OPS_PER_TRANSACTION_MAX < ETCD_OPS_MAX);

/// The markers of one node's view of the cluster.
pub struct Markers {
    /// Distinguishes this view from all others, for ever.
    view: u64,
    /// Markers that no call uses now.
    free: Mutex<Vec<Marker>>,
    made: AtomicI64,
    /// 0: none was granted yet.
    lease: AtomicI64,
    /// Held while a lease is granted: a second one would have nobody who keeps it.
    granting: tokio::sync::Mutex<()>,
    calls: AtomicI64,
}

struct Marker {
    key: Vec<u8>,
    /// What an attempt compares; 0: it does not exist. `None`: must be read first.
    revision: Option<i64>,
    /// An attempt of a call that ended without an answer may still come.
    is_doubtful: bool,
}

/// What one answer says, and of which revision the marker is then.
enum Answer {
    Outcome(Outcome, i64),
    /// Neither this call nor the comparisons: the marker is not of the revision that was compared.
    MarkerMoved(i64),
}

impl Markers {
    pub fn new() -> Result<Markers, EngineError> {
        Ok(Markers {
            view: random()?,
            free: Mutex::new(Vec::new()),
            made: AtomicI64::new(0),
            lease: AtomicI64::new(0),
            granting: tokio::sync::Mutex::new(()),
            calls: AtomicI64::new(0),
        })
    }

    pub fn lease(&self) -> Option<i64> {
        Some(self.lease.load(Ordering::Relaxed)).filter(|lease| *lease != 0)
    }

    fn take(&self, keys: &Keys) -> Marker {
        let mut free = self.free.lock();
        // A doubtful one first: the sooner it is used, the sooner no attempt comes any more.
        let place = free.iter().position(|marker| marker.is_doubtful).or_else(|| free.len().checked_sub(1));
        if let Some(place) = place {
            return free.swap_remove(place);
        }
        drop(free);
        let number = self.made.fetch_add(1, Ordering::Relaxed);
        Marker { key: keys.marker(self.view, number), revision: Some(0), is_doubtful: false }
    }

    fn name_a_call(&self) -> Vec<u8> {
        format!("{:016x}-{}", self.view, self.calls.fetch_add(1, Ordering::Relaxed)).into_bytes()
    }
}

pub async fn transact(
    caller: &Caller,
    keys: &Keys,
    markers: &Markers,
    compares: &[Compare],
    ops: &[Op],
) -> Result<Outcome, EngineError> {
    if ops.is_empty() {
        let asked =
            TxnRequest { compare: comparisons(keys, compares), success: Vec::new(), failure: reads(keys, compares) };
        let answer: TxnResponse = caller.repeat(TXN, &asked).await?;
        return outcome_without_marker(keys, compares, answer);
    }
    let mut marker = markers.take(keys);
    let done = attempt_all(caller, keys, markers, &mut marker, compares, ops).await;
    marker.is_doubtful |= matches!(done, Err(EngineError::Unknown(_)));
    markers.free.lock().push(marker);
    done
}

async fn attempt_all(
    caller: &Caller,
    keys: &Keys,
    markers: &Markers,
    marker: &mut Marker,
    compares: &[Compare],
    ops: &[Op],
) -> Result<Outcome, EngineError> {
    let call = markers.name_a_call();
    let mut attempts = Attempts::new(caller);
    let began = boot_clock();
    // All attempts of a call write their marker with one lease: with another one, an attempt could happen after the
    // marker of an earlier one has gone.
    let mut lease = markers.lease_for(caller, &attempts, ops).await?;
    if marker.is_doubtful {
        settle((caller, keys), marker, &attempts, &call, lease).await?;
    }
    // The fault of an attempt that may have happened, or may yet.
    let mut doubt: Option<Fault> = None;
    loop {
        if doubt.is_some() && boot_clock().saturating_sub(began) > MARKERS_TTL / 2 {
            return Err(unknown(doubt));
        }
        let compared = match marker.revision.take() {
            Some(revision) => revision,
            None => read_marker(caller, marker, &attempts).await.map_err(|error| or_unknown(&mut doubt, error))?.0,
        };
        let form = if doubt.is_none() { Form::FirstAttempt } else { Form::Repeated };
        let asked = request(keys, compares, ops, (&*marker, compared, &call, lease), form);
        let left = attempts.left();
        match caller.once(TXN, asked, left).await {
            Ok(answer) => match understand(keys, compares, &call, compared, answer)
                .map_err(|error| or_unknown(&mut doubt, error))?
            {
                Answer::Outcome(Outcome::Conflict(conflict), _) if doubt.is_some() => {
                    return close((caller, keys), marker, &attempts, compared, &call, lease)
                        .await
                        .ok_or_else(|| unknown(doubt))
                        .map(|happened| happened.map_or(Outcome::Conflict(conflict), Outcome::Done));
                }
                Answer::Outcome(outcome, revision) => {
                    marker.revision = Some(revision);
                    return Ok(outcome);
                }
                // It was there and is not: its lease ended, and nobody can say any more what happened.
                Answer::MarkerMoved(0) if doubt.is_some() => return Err(unknown(doubt)),
                Answer::MarkerMoved(now) => marker.revision = Some(now),
            },
            Err(Fault::Refused(said)) if is_lease_gone(&said) => {
                let runs = is_running(caller, lease, &attempts).await.map_err(|error| or_unknown(&mut doubt, error))?;
                if !runs {
                    // The markers that hung on it are gone.
                    if doubt.is_some() {
                        return Err(unknown(doubt));
                    }
                    lease = markers.replace(caller, &attempts, lease).await?;
                    continue;
                }
                let lost =
                    first_lost_lease(caller, ops, &attempts).await.map_err(|error| or_unknown(&mut doubt, error))?;
                if doubt.is_some() {
                    let happened = close((caller, keys), marker, &attempts, compared, &call, lease).await;
                    let happened = happened.ok_or_else(|| unknown(doubt))?;
                    return happened.map(Outcome::Done).ok_or_else(|| lost.unwrap_or_else(|| refused(said)));
                }
                marker.revision = Some(compared);
                return Err(lost.unwrap_or_else(|| refused(said)));
            }
            // A member that finds the quota used up may have carried the transaction out all the same.
            Err(Fault::Refused(said)) if said.words() == NO_SPACE => {
                let Ok((now, name)) = read_marker(caller, marker, &attempts).await else {
                    return Err(EngineError::Unknown(Box::new(said)));
                };
                marker.revision = Some(now);
                if name == call {
                    return Ok(Outcome::Done(keys.revision(now)));
                }
                return Err(if doubt.is_some() { unknown(doubt) } else { refused(said) });
            }
            Err(fault) if attempts.are_over(&fault) => {
                return Err(if doubt.is_some() { unknown(doubt) } else { unreachable(fault) });
            }
            Err(fault) => {
                // All attempts compare the same revision.
                marker.revision = Some(compared);
                if matches!(fault, Fault::Lost { .. }) {
                    doubt = Some(fault);
                    if !attempts.again().await {
                        marker.revision = None;
                        return Err(unknown(doubt));
                    }
                } else if !attempts.again().await {
                    let reason = attempts.reason(fault);
                    return Err(if doubt.is_some() { unknown(doubt) } else { unreachable(reason) });
                }
            }
        }
    }
}

/// Sees to it that no attempt of a call happens any more, by changing the marker. `Some(Some(…))`: one had happened, at
/// this revision; `None`: that could not be found out.
async fn close(
    (caller, keys): (&Caller, &Keys),
    marker: &mut Marker,
    attempts: &Attempts,
    compared: i64,
    call: &[u8],
    lease: i64,
) -> Option<Option<Revision>> {
    let closed = [call, b"-closed"].concat();
    let put = PutRequest { key: marker.key.clone(), value: closed.clone(), lease };
    let asked = TxnRequest {
        compare: vec![is_of(marker, compared)],
        success: vec![RequestOp { request: Some(Request::Put(put)) }],
        failure: vec![read(marker.key.clone())],
    };
    let attempts = attempts.for_a_part(&caller.config);
    let answer: TxnResponse = caller.repeat_within(attempts, TXN, &asked).await.ok()?;
    if answer.succeeded {
        marker.revision = answer.header.map(|header| header.revision);
        return Some(None);
    }
    let found = values_read(answer).pop().flatten()?;
    marker.revision = Some(found.mod_revision);
    if found.value == call {
        Some(Some(keys.revision(found.mod_revision)))
    } else if found.value == closed {
        Some(None)
    } else {
        None
    }
}

/// Before a marker is used of which an attempt may still come: after this none does. Nothing of `call` has begun.
async fn settle(
    (caller, keys): (&Caller, &Keys),
    marker: &mut Marker,
    attempts: &Attempts,
    call: &[u8],
    lease: i64,
) -> Result<(), EngineError> {
    // An attempt that comes between the two changes the marker, and the second look finds that.
    for _ in 0..2 {
        let (now, _) = read_marker(caller, marker, attempts).await?;
        if close((caller, keys), marker, attempts, now, call, lease).await.is_some() {
            marker.is_doubtful = false;
            return Ok(());
        }
    }
    Err(EngineError::Unreachable("what an earlier transaction left open cannot be closed".into()))
}

/// What failed beside an attempt that may have happened.
fn or_unknown(doubt: &mut Option<Fault>, error: EngineError) -> EngineError {
    if doubt.is_some() { unknown(doubt.take()) } else { error }
}

fn unknown(doubt: Option<Fault>) -> EngineError {
    match doubt {
        Some(fault) => EngineError::Unknown(Box::new(fault)),
        None => EngineError::Unknown("no attempt was answered".into()),
    }
}

/// Its revision, and the name of the call that wrote it.
async fn read_marker(caller: &Caller, marker: &Marker, attempts: &Attempts) -> Result<(i64, Vec<u8>), EngineError> {
    let asked = RangeRequest { key: marker.key.clone(), ..RangeRequest::default() };
    let attempts = attempts.for_a_part(&caller.config);
    let mut found: m::RangeResponse = caller.repeat_within(attempts, super::RANGE, &asked).await?;
    Ok(found.kvs.pop().map_or((0, Vec::new()), |kv| (kv.mod_revision, kv.value)))
}

impl Markers {
    /// The lease for a call's marker. Where the quota is used up there may be none, and deleting must go on: then the
    /// marker has no lease, and stays.
    async fn lease_for(&self, caller: &Caller, attempts: &Attempts, ops: &[Op]) -> Result<i64, EngineError> {
        if let Some(lease) = self.lease() {
            return Ok(lease);
        }
        match self.replace(caller, attempts, 0).await {
            Err(EngineError::Full(_)) if only_deletes(ops) => Ok(0),
            granted => granted,
        }
    }

    /// Another lease than this one; the one that somebody else has got meanwhile, if so.
    async fn replace(&self, caller: &Caller, attempts: &Attempts, ended: i64) -> Result<i64, EngineError> {
        let _one = self.granting.lock().await;
        if let Some(lease) = self.lease().filter(|lease| *lease != ended) {
            return Ok(lease);
        }
        let lease = grant_within(caller, attempts.for_a_part(&caller.config), MARKERS_TTL).await?;
        self.lease.store(lease, Ordering::Relaxed);
        Ok(lease)
    }
}

fn only_deletes(ops: &[Op]) -> bool {
    ops.iter().all(|op| matches!(op, Op::Delete { .. }))
}

/// A lease whose number we choose, so that asking twice grants it once.
pub async fn grant(caller: &Caller, ttl: Duration) -> Result<i64, EngineError> {
    grant_within(caller, Attempts::new(caller), ttl).await
}

async fn grant_within(caller: &Caller, attempts: Attempts, ttl: Duration) -> Result<i64, EngineError> {
    let id = lease_number(random()?);
    let ttl_seconds = i64::try_from(ttl.as_millis().div_ceil(1000)).unwrap_or(i64::MAX);
    let asked = m::LeaseGrantRequest { ttl_seconds, id };
    match caller.repeat_within::<_, m::LeaseResponse>(attempts, GRANT, &asked).await {
        Ok(granted) => Ok(granted.id),
        // An earlier attempt did it.
        Err(EngineError::Storage(status)) if says(&*status, "etcdserver: lease already exists") => Ok(id),
        Err(error) => Err(error),
    }
}

pub fn says(error: &(dyn std::error::Error + 'static), text: &str) -> bool {
    error.downcast_ref::<Said>().is_some_and(|said| said.words() == text)
}

fn is_lease_gone(said: &Said) -> bool {
    said.code() == Code::NotFound && said.words() == "etcdserver: requested lease not found"
}

async fn is_running(caller: &Caller, lease: i64, attempts: &Attempts) -> Result<bool, EngineError> {
    let attempts = attempts.for_a_part(&caller.config);
    let left: m::LeaseResponse = caller.repeat_within(attempts, TIME_TO_LIVE, &m::LeaseRequest { id: lease }).await?;
    Ok(left.ttl_seconds > 0)
}

/// Which of the caller's leases has ended.
async fn first_lost_lease(
    caller: &Caller,
    ops: &[Op],
    attempts: &Attempts,
) -> Result<Option<EngineError>, EngineError> {
    for op in ops {
        if let Op::Put { lease: Some(lease), .. } = op
            && !is_running(caller, signed(*lease), attempts).await?
        {
            return Ok(Some(EngineError::LeaseGone(*lease)));
        }
    }
    Ok(None)
}

pub fn signed(lease: LeaseId) -> i64 {
    i64::try_from(lease.0).unwrap_or(0)
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Form {
    FirstAttempt,
    Repeated,
}

fn request(
    keys: &Keys,
    compares: &[Compare],
    ops: &[Op],
    (marker, compared, call, lease): (&Marker, i64, &[u8], i64),
    form: Form,
) -> TxnRequest {
    let mut compare = comparisons(keys, compares);
    compare.push(is_of(marker, compared));
    let mut failure = reads(keys, compares);
    failure.push(read(marker.key.clone()));
    let mut effects: Vec<RequestOp> = ops.iter().map(|op| effect(keys, op)).collect();
    let put = PutRequest { key: marker.key.clone(), value: call.to_vec(), lease };
    effects.push(RequestOp { request: Some(Request::Put(put)) });
    let is_small = compare.len() + effects.len() <= ETCD_OPS_MAX;
    let success = if only_deletes(ops) && is_small && form == Form::FirstAttempt {
        let absent = ops.iter().map(|op| exists(keys, op.key(), CompareResult::Equal)).collect();
        let inner = TxnRequest { compare: absent, success: Vec::new(), failure: effects };
        vec![RequestOp { request: Some(Request::Txn(inner)) }]
    } else {
        effects
    };
    TxnRequest { compare, success, failure }
}

fn is_of(marker: &Marker, revision: i64) -> m::Compare {
    m::Compare {
        result: CompareResult::Equal.into(),
        target: CompareTarget::Mod.into(),
        key: marker.key.clone(),
        operand: Some(Operand::ModRevision(revision)),
    }
}

fn comparisons(keys: &Keys, compares: &[Compare]) -> Vec<m::Compare> {
    compares.iter().map(|compare| comparison(keys, compare)).collect()
}

/// Whether a key has been made: `Equal` holds when it has not.
fn exists(keys: &Keys, key: &str, result: CompareResult) -> m::Compare {
    m::Compare {
        result: result.into(),
        target: CompareTarget::Create.into(),
        key: keys.stored(key),
        operand: Some(Operand::CreateRevision(0)),
    }
}

fn comparison(keys: &Keys, compare: &Compare) -> m::Compare {
    let equal = |key: &str, target: CompareTarget, operand| m::Compare {
        result: CompareResult::Equal.into(),
        target: target.into(),
        key: keys.stored(key),
        operand: Some(operand),
    };
    match compare {
        Compare::Absent { key } => exists(keys, key, CompareResult::Equal),
        Compare::Present { key } => exists(keys, key, CompareResult::Greater),
        Compare::Modified { key, at } => {
            equal(key, CompareTarget::Mod, Operand::ModRevision(at_least_one(keys.number(*at))))
        }
        Compare::Created { key, at } => {
            equal(key, CompareTarget::Create, Operand::CreateRevision(at_least_one(keys.number(*at))))
        }
        Compare::Value { key, equals } => equal(key, CompareTarget::Value, Operand::Value(equals.clone())),
    }
}

/// 0 would hold for a key that does not exist, which no comparison with a revision does.
fn at_least_one(number: Option<i64>) -> i64 {
    number.filter(|number| *number > 0).unwrap_or(i64::MAX)
}

fn read(key: Vec<u8>) -> RequestOp {
    RequestOp { request: Some(Request::Range(RangeRequest { key, ..RangeRequest::default() })) }
}

fn reads(keys: &Keys, compares: &[Compare]) -> Vec<RequestOp> {
    compares.iter().map(|compare| read(keys.stored(compare.key()))).collect()
}

fn effect(keys: &Keys, op: &Op) -> RequestOp {
    let request = match op {
        Op::Put { key, value, lease } => {
            Request::Put(PutRequest { key: keys.stored(key), value: value.clone(), lease: lease.map_or(0, signed) })
        }
        Op::Delete { key } => Request::DeleteRange(m::DeleteRangeRequest { key: keys.stored(key) }),
    };
    RequestOp { request: Some(request) }
}

fn understand(
    keys: &Keys,
    compares: &[Compare],
    call: &[u8],
    compared: i64,
    answer: TxnResponse,
) -> Result<Answer, EngineError> {
    let revision = answer.header.as_ref().map_or(0, |header| header.revision);
    if answer.succeeded {
        // Of one that only deletes: where the inner comparisons held, nothing was there and nothing was written.
        let wrote_nothing =
            answer.responses.iter().any(|op| matches!(&op.response, Some(Response::Txn(inner)) if inner.succeeded));
        let marked = if wrote_nothing { compared } else { revision };
        return Ok(Answer::Outcome(Outcome::Done(keys.revision(revision)), marked));
    }
    let mut found = values_read(answer);
    let marker = found.pop().flatten();
    let now = marker.as_ref().map_or(0, |marker| marker.mod_revision);
    if marker.is_some_and(|marker| marker.value == call) {
        return Ok(Answer::Outcome(Outcome::Done(keys.revision(now)), now));
    }
    if now != compared {
        return Ok(Answer::MarkerMoved(now));
    }
    Ok(Answer::Outcome(Outcome::Conflict(conflict(keys, compares, found, revision)?), now))
}

fn outcome_without_marker(keys: &Keys, compares: &[Compare], answer: TxnResponse) -> Result<Outcome, EngineError> {
    let revision = answer.header.as_ref().map_or(0, |header| header.revision);
    if answer.succeeded {
        return Ok(Outcome::Done(keys.revision(revision)));
    }
    Ok(Outcome::Conflict(conflict(keys, compares, values_read(answer), revision)?))
}

/// What the reads of a failed transaction found, in their order.
fn values_read(answer: TxnResponse) -> Vec<Option<m::KeyValue>> {
    let read = |op: m::ResponseOp| match op.response {
        Some(Response::Range(mut range)) => range.kvs.pop(),
        _ => None,
    };
    answer.responses.into_iter().map(read).collect()
}

fn conflict(
    keys: &Keys,
    compares: &[Compare],
    found: Vec<Option<m::KeyValue>>,
    revision: i64,
) -> Result<Conflict, EngineError> {
    let mut current =
        found.into_iter().map(|kv| kv.map(|kv| entry(keys, kv)).transpose()).collect::<Result<Vec<_>, _>>()?;
    current.resize(compares.len(), None);
    Ok(Conflict { revision: keys.revision(revision), current })
}
