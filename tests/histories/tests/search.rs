//! The search against all orders there are, on small histories; and large ones that something was done to.

use histories::models::race::{self, Race};
use histories::models::register::{Answer, Ask, Given, Register};
use histories::{Bounds, Model, Operation, Rng, Verdict, check};

type Op = Operation<Ask, Answer>;

fn operation(client: u32, invoked: u64, returned: u64, input: Ask, output: Answer) -> Op {
    Operation { client, invoked, returned: Some(returned), input, output: Some(output) }
}

fn unknown(client: u32, invoked: u64, input: Ask) -> Op {
    Operation { client, invoked, returned: None, input, output: None }
}

fn put(value: u64) -> Ask {
    Ask::Put { value, given: Given::Anything }
}

fn found(value: u64) -> Answer {
    Answer::Found { value, revision: None }
}

const DONE: Answer = Answer::Done { revision: None };

fn verdict(history: &[Op]) -> bool {
    match check(&Register, history, Bounds::default()) {
        Verdict::Linearizable { .. } => true,
        Verdict::Impossible { .. } => false,
        Verdict::Undecided => panic!("the bounds do not suffice for {} operations", history.len()),
    }
}

#[test]
fn reads_during_a_write_may_see_either_but_not_the_old_one_after_the_new_one() {
    let write = operation(1, 10, 50, put(1), DONE);
    let read = |from, to, answer| operation(2, from, to, Ask::Get, answer);
    assert!(verdict(&[write.clone(), read(20, 25, Answer::Missing), read(30, 35, found(1))]));
    assert!(!verdict(&[write.clone(), read(20, 25, found(1)), read(30, 35, Answer::Missing)]));
    assert!(!verdict(&[write.clone(), read(60, 65, Answer::Missing)]));
    assert!(!verdict(&[write, read(1, 5, found(1))]));
}

#[test]
fn unknown_write_may_happen_late_or_never_but_once_and_not_before_it_was_asked() {
    let lost = unknown(1, 10, put(1));
    let read = |at, answer| operation(2, at, at + 1, Ask::Get, answer);
    assert!(verdict(&[lost.clone(), read(20, Answer::Missing)]));
    assert!(verdict(&[lost.clone(), read(20, Answer::Missing), read(1000, found(1))]));
    assert!(!verdict(&[lost.clone(), read(5, found(1))]));
    let other = operation(3, 30, 31, put(2), DONE);
    assert!(verdict(&[lost.clone(), read(20, found(1)), other.clone(), read(40, found(2))]));
    assert!(!verdict(&[lost, read(20, found(1)), other, read(40, found(2)), read(50, found(1))]));
}

#[test]
fn of_two_that_compare_with_the_same_revision_one_wins() {
    let cas = |client, value, answer| operation(client, 10, 20, Ask::Put { value, given: Given::At(5) }, answer);
    let begin = operation(0, 1, 2, put(9), Answer::Done { revision: Some(5) });
    let done = |revision| Answer::Done { revision: Some(revision) };
    assert!(verdict(&[begin.clone(), cas(1, 1, done(6)), cas(2, 2, Answer::Refused)]));
    assert!(!verdict(&[begin.clone(), cas(1, 1, done(6)), cas(2, 2, done(7))]));
    // Somebody must have been first.
    assert!(!verdict(&[begin.clone(), cas(1, 1, Answer::Refused), cas(2, 2, Answer::Refused)]));
    let lost = unknown(3, 5, Ask::Put { value: 3, given: Given::At(5) });
    assert!(verdict(&[begin, lost, cas(1, 1, Answer::Refused), cas(2, 2, Answer::Refused)]));
}

#[test]
fn revisions_rise() {
    let at =
        |time, value, revision| operation(1, time, time + 1, put(value), Answer::Done { revision: Some(revision) });
    assert!(verdict(&[at(1, 1, 5), at(3, 2, 9)]));
    assert!(!verdict(&[at(1, 1, 9), at(3, 2, 5)]));
}

#[test]
fn search_that_is_too_long_says_so() {
    let writes: Vec<Op> = (0..40).map(|index| unknown(index, 1, put(u64::from(index)))).collect();
    let never = operation(99, 50, 51, Ask::Get, found(1000));
    let bounds = Bounds { steps_max: 10_000, remembered_max: 10_000 };
    let history: Vec<Op> = writes.into_iter().chain([never]).collect();
    assert_eq!(check(&Register, &history, bounds), Verdict::Undecided);
}

/// Every order of every choice of the unknown ones.
fn brute_force<M: Model>(model: &M, history: &[Operation<M::Input, M::Output>]) -> bool {
    fn go<M: Model>(
        model: &M,
        history: &[Operation<M::Input, M::Output>],
        state: &M::State,
        left: &mut Vec<usize>,
    ) -> bool {
        if left.iter().all(|index| history[*index].returned.is_none()) {
            return true;
        }
        for position in 0..left.len() {
            let index = left[position];
            let is_late = left
                .iter()
                .any(|other| history[*other].returned.is_some_and(|returned| returned < history[index].invoked));
            let next = model.step(state, &history[index].input, history[index].output.as_ref());
            if let (false, Some(next)) = (is_late, next) {
                left.remove(position);
                let is_possible = go(model, history, &next, left);
                left.insert(position, index);
                if is_possible {
                    return true;
                }
            }
        }
        false
    }
    go(model, history, &model.initial(), &mut (0..history.len()).collect())
}

fn any_given(rng: &mut Rng) -> Given {
    match rng.below(5) {
        0 => Given::Absent,
        1 => Given::Present,
        2 => Given::At(1 + rng.below(4)),
        _ => Given::Anything,
    }
}

/// Anything: most of it never happened.
fn any_operation(rng: &mut Rng, client: u32) -> Op {
    let invoked = rng.below(30);
    let has_revision = rng.one_in(2);
    let revision = |rng: &mut Rng| has_revision.then(|| 1 + rng.below(4));
    let (input, output) = match rng.below(6) {
        0 | 1 => (
            Ask::Get,
            if rng.one_in(3) {
                Answer::Missing
            } else {
                Answer::Found { value: rng.below(3), revision: revision(rng) }
            },
        ),
        2 | 3 => (
            Ask::Put { value: rng.below(3), given: any_given(rng) },
            if rng.one_in(4) { Answer::Refused } else { Answer::Done { revision: revision(rng) } },
        ),
        4 => (Ask::Put { value: rng.below(3), given: Given::Anything }, Answer::Done { revision: revision(rng) }),
        _ => (
            Ask::Delete { given: any_given(rng) },
            match rng.below(3) {
                0 => Answer::Missing,
                1 => Answer::Refused,
                _ => Answer::Done { revision: revision(rng) },
            },
        ),
    };
    if rng.one_in(4) {
        return unknown(client, invoked, input);
    }
    operation(client, invoked, invoked + rng.below(12), input, output)
}

#[test]
fn search_and_all_orders_agree_on_small_histories() {
    let (mut possible, mut impossible) = (0, 0);
    for seed in 0..60_000 {
        let mut rng = Rng::new(seed);
        let count = 1 + rng.below(6) as u32;
        let history: Vec<Op> = (0..count).map(|client| any_operation(&mut rng, client)).collect();
        let wanted = brute_force(&Register, &history);
        assert_eq!(verdict(&history), wanted, "seed {seed}: {history:#?}");
        *(if wanted { &mut possible } else { &mut impossible }) += 1;
    }
    assert!(possible > 5_000 && impossible > 5_000, "{possible} possible, {impossible} impossible");
}

fn any_race_operation(rng: &mut Rng, client: u32) -> Operation<race::Ask, race::Answer> {
    let (wish, invoked) = (rng.below(3), rng.below(30));
    let token = 1 + rng.below(4);
    let (input, output) = match rng.below(6) {
        0..=2 => (race::Ask::Acquire { wish }, race::Answer::Acquired { token }),
        3 => (race::Ask::Release { wish }, race::Answer::Released),
        4 => (race::Ask::Confirm { wish }, if rng.one_in(2) { race::Answer::Yes } else { race::Answer::No }),
        _ => (race::Ask::Lose { wish }, race::Answer::Released),
    };
    let is_lost = matches!(input, race::Ask::Lose { .. }) || rng.one_in(5);
    let returned = (!is_lost).then(|| invoked + rng.below(12));
    Operation { client, invoked, returned, input, output: (!is_lost).then_some(output) }
}

#[test]
fn search_and_all_orders_agree_on_small_races() {
    let mut possible = 0;
    for seed in 0..40_000 {
        let mut rng = Rng::new(seed);
        let count = 1 + rng.below(6) as u32;
        let history: Vec<_> = (0..count).map(|client| any_race_operation(&mut rng, client)).collect();
        let wanted = brute_force(&Race, &history);
        assert_eq!(check(&Race, &history, Bounds::default()).is_linearizable(), wanted, "seed {seed}: {history:#?}");
        possible += u32::from(wanted);
    }
    assert!((4_000..36_000).contains(&possible), "{possible} possible");
}

/// What clients of a true register see that may lose answers. Each write has a value of its own.
fn true_history(rng: &mut Rng, clients: u32, count: u64) -> Vec<Op> {
    struct Under {
        operation: Op,
        effect_at: u64,
        return_at: u64,
    }
    let (mut under, mut done) = (Vec::<Option<Under>>::new(), Vec::<Op>::new());
    under.resize_with(clients as usize, || None);
    let (mut value, mut revision, mut known) = (None::<(u64, u64)>, 0, 0);
    let (mut asked, mut now) = (0, 0);
    while asked < count || under.iter().any(Option::is_some) {
        now += 1;
        for client in 0..clients {
            let slot = &mut under[client as usize];
            if slot.is_none() && asked < count && rng.one_in(3) {
                asked += 1;
                let given = match rng.below(4) {
                    0 => Given::At(known),
                    1 => Given::Absent,
                    _ => Given::Anything,
                };
                let input = match rng.below(10) {
                    0..=3 => Ask::Get,
                    4 => Ask::Delete { given: Given::Anything },
                    _ => Ask::Put { value: asked, given },
                };
                let effect_at = now + rng.below(6);
                let return_at = effect_at + rng.below(6);
                *slot = Some(Under { operation: unknown(client, now, input), effect_at, return_at });
            }
            let Some(one) = slot else { continue };
            if one.effect_at == now {
                let holds = |given: &Given| match (given, value) {
                    (Given::Anything, _) => true,
                    (Given::Absent, value) => value.is_none(),
                    (Given::Present, value) => value.is_some(),
                    (Given::At(at), value) => value.is_some_and(|(_, by)| by == *at),
                };
                let answer = match &one.operation.input {
                    Ask::Get => {
                        value.map_or(Answer::Missing, |(value, by)| Answer::Found { value, revision: Some(by) })
                    }
                    Ask::Put { given, .. } | Ask::Delete { given } if !holds(given) => Answer::Refused,
                    Ask::Delete { .. } if value.is_none() => Answer::Missing,
                    Ask::Delete { .. } => {
                        revision += 1 + rng.below(3);
                        value = None;
                        Answer::Done { revision: Some(revision) }
                    }
                    Ask::Put { value: new, .. } => {
                        revision += 1 + rng.below(3);
                        value = Some((*new, revision));
                        Answer::Done { revision: Some(revision) }
                    }
                };
                known = value.map_or(known, |(_, by)| by);
                one.operation.output = Some(answer);
            }
            if one.return_at == now {
                let mut operation = slot.take().expect("it is there").operation;
                operation.returned = Some(now);
                // The answer is lost, or the question was.
                if rng.one_in(60) {
                    operation.returned = None;
                    operation.output = None;
                }
                done.push(operation);
            }
        }
    }
    done
}

#[test]
fn what_clients_of_a_true_register_see_is_possible() {
    for seed in 0..60 {
        let history = true_history(&mut Rng::new(seed), 8, 2_000);
        let verdict = check(&Register, &history, Bounds::default());
        let Verdict::Linearizable { order } = verdict else { panic!("seed {seed}: {verdict:?}") };
        let answered = history.iter().filter(|one| one.returned.is_some()).count();
        assert!(order.len() >= answered);
    }
}

/// Something that a faulty store might have done. `None`: this history gives no occasion.
fn mutate(rng: &mut Rng, history: &mut [Op]) -> Option<&'static str> {
    let all = |wanted: &dyn Fn(&Op) -> bool| -> Vec<usize> {
        (0..history.len()).filter(|index| history[*index].returned.is_some() && wanted(&history[*index])).collect()
    };
    let is_put = |one: &Op| matches!((&one.input, &one.output), (Ask::Put { .. }, Some(Answer::Done { .. })));
    let reads = all(&|one| matches!(one.output, Some(Answer::Found { .. })));
    let puts = all(&is_put);
    let read = *reads.get(rng.below(reads.len().max(1) as u64) as usize)?;
    let put = *puts.get(rng.below(puts.len().max(1) as u64) as usize)?;
    match rng.below(6) {
        // A read of what nobody wrote.
        0 => {
            history[read].output = Some(Answer::Found { value: 1_000_000, revision: Some(7) });
            Some("a value out of nowhere")
        }
        // A read of another write's value by this write's revision.
        1 => {
            let Some(Answer::Found { value, revision }) = history[read].output.clone() else { return None };
            history[read].output = Some(Answer::Found { value, revision: revision.map(|by| by + 1_000_000) });
            Some("a revision out of nowhere")
        }
        // A read long after all writers were done with it: the oldest value.
        2 => {
            let oldest = history[*puts.first()?].clone();
            let (Ask::Put { value, .. }, Some(Answer::Done { revision })) = (&oldest.input, &oldest.output) else {
                return None;
            };
            let late =
                reads.iter().rev().find(|index| history[**index].invoked > oldest.returned.unwrap_or(0) + 500)?;
            history[*late].output = Some(Answer::Found { value: *value, revision: *revision });
            Some("a stale read")
        }
        // Two that were done at one revision.
        3 => {
            let other = *puts.iter().find(|index| **index != put)?;
            history[other].output = history[put].output.clone();
            Some("one revision twice")
        }
        // A write that somebody read was refused.
        4 => {
            let Ask::Put { value, .. } = history[put].input else { return None };
            let is_read = reads.iter().any(
                |index| matches!(history[*index].output, Some(Answer::Found { value: read, .. }) if read == value),
            );
            history[put].output = is_read.then_some(Answer::Refused).or(history[put].output.clone());
            is_read.then_some("a refusal of what happened")
        }
        // The key is gone for one reader, between two who found the same value.
        _ => {
            let pair = reads.windows(2).find(|pair| {
                let [first, second] = pair else { return false };
                let (first, second) = (&history[*first], &history[*second]);
                let others_are_quiet = history.iter().all(|one| {
                    matches!(one.input, Ask::Get)
                        || one.returned.is_some_and(|at| at < first.invoked)
                        || one.invoked > second.returned.unwrap_or(0)
                });
                first.output == second.output && first.returned < Some(second.invoked) && others_are_quiet
            })?;
            let (client, at) = (999, history[pair[0]].returned? + 1);
            history[pair[1]].invoked = history[pair[1]].invoked.max(at);
            history[pair[1]].output = Some(Answer::Missing);
            history[pair[1]].client = client;
            Some("a value that is gone")
        }
    }
}

#[test]
fn whatever_a_faulty_store_does_is_found() {
    let mut kinds = std::collections::BTreeMap::<&str, u32>::new();
    for seed in 0..600 {
        let mut rng = Rng::new(seed);
        let mut history = true_history(&mut rng, 5, 400);
        history.sort_by_key(|one| one.invoked);
        let Some(kind) = mutate(&mut rng, &mut history) else { continue };
        let verdict = check(&Register, &history, Bounds::default());
        assert!(matches!(verdict, Verdict::Impossible { .. }), "seed {seed}, {kind}: {verdict:?}");
        *kinds.entry(kind).or_default() += 1;
    }
    assert!(kinds.len() >= 5 && kinds.values().all(|times| *times >= 10), "{kinds:?}");
}

#[test]
fn lock_changes_hands_only_when_it_is_given_up_or_may_be_lost() {
    use race::{Answer as Said, Ask as Asked};
    let known = |from, to, input, output| Operation {
        client: 0,
        invoked: from,
        returned: Some(to),
        input,
        output: Some(output),
    };
    let acquire = |from, to, wish, token| known(from, to, Asked::Acquire { wish }, Said::Acquired { token });
    let lost =
        |from, wish| Operation { client: 0, invoked: from, returned: None, input: Asked::Lose { wish }, output: None };
    let possible = |history: &[Operation<Asked, Said>]| check(&Race, history, Bounds::default()).is_linearizable();
    // The second waits while the first has it.
    let waits = [acquire(1, 2, 1, 10), acquire(3, 30, 2, 12), known(5, 20, Asked::Release { wish: 1 }, Said::Released)];
    assert!(possible(&waits));
    assert!(!possible(&[
        acquire(1, 2, 1, 10),
        acquire(3, 4, 2, 12),
        known(5, 20, Asked::Release { wish: 1 }, Said::Released)
    ]));
    assert!(possible(&[acquire(1, 2, 1, 10), lost(3, 1), acquire(5, 6, 2, 12)]));
    assert!(!possible(&[acquire(1, 2, 1, 10), lost(7, 1), acquire(5, 6, 2, 12)]));
    // Whoever lost it is told so, and whoever has it too.
    let confirm = |at, wish, said| known(at, at + 1, Asked::Confirm { wish }, said);
    let taken = |said| [acquire(1, 2, 1, 10), lost(3, 1), acquire(5, 6, 2, 12), confirm(8, 1, said)];
    assert!(possible(&taken(Said::No)) && !possible(&taken(Said::Yes)));
    // Tokens rise.
    assert!(!possible(&[
        acquire(1, 2, 1, 10),
        known(3, 4, Asked::Release { wish: 1 }, Said::Released),
        acquire(5, 6, 2, 10)
    ]));
}
