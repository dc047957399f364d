//! The part of a program's seccomp filter that notifies the call gate, made from rows of [`crate::calls`].
//!
//! It stands behind the check of the architecture and before the container's refusals: signals are frequent, refused
//! calls are not. On entry the call's number is loaded, and still is where the part ends: calls without a row, to be
//! looked at further. A call with a row is over here, notified or allowed, so no refusal may be about one.
//!
//! ```text
//! number == row?  no ──▶ next row
//!   case: conditions, all hold ──▶ notify
//!                     one not  ──▶ next case
//!   allow
//! ```

use crate::calls::{ArgumentCase, Condition, Row, RowState};
use crate::range::{END_PID, FIRST_PID, Seat};

/// An instruction of the classic packet filter, as the kernel has it (`linux/filter.h`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FilterStep {
    pub code: u16,
    /// Steps that are left out when the comparison holds.
    pub if_true: u8,
    pub if_false: u8,
    pub operand: u32,
}

pub const LOAD_WORD: u16 = 0x20;
pub const JUMP_EQUAL: u16 = 0x15;
pub const JUMP_NOT_LESS: u16 = 0x35;
pub const NEGATE: u16 = 0x84;
pub const RETURN: u16 = 0x06;

pub const ALLOW: u32 = 0x7fff_0000;
pub const NOTIFY: u32 = 0x7fc0_0000;

/// In the kernel's `struct seccomp_data`; lower halves first.
pub const OFFSET_NUMBER: u32 = 0;
pub const OFFSET_ARGUMENTS: u32 = 16;

/// For programs of one node.
pub fn steps<'a>(own: Seat, rows: impl IntoIterator<Item = &'a Row>) -> Vec<FilterStep> {
    rows.into_iter().flat_map(|row| of_row(own, row)).collect()
}

/// The rows that are served.
pub fn served() -> impl Iterator<Item = &'static Row> {
    crate::calls::ROWS.iter().filter(|row| row.standing == RowState::Served)
}

fn of_row(own: Seat, row: &Row) -> Vec<FilterStep> {
    let mut steps = vec![step(RETURN, 0, 0, ALLOW)];
    for case in row.cases.iter().rev() {
        steps.splice(0..0, of_case(own, case));
    }
    steps.insert(0, step(JUMP_EQUAL, 0, length(&steps), row.number as u32));
    steps
}

/// Made from the end: what a condition leaves out when it does not hold is then known.
fn of_case(own: Seat, case: ArgumentCase) -> Vec<FilterStep> {
    let mut steps = vec![step(RETURN, 0, 0, NOTIFY)];
    for condition in case.iter().rev() {
        let skip = length(&steps);
        steps.splice(0..0, of_condition(own, *condition, skip));
    }
    steps
}

/// A test holds this for every row: no part is longer than a jump reaches.
fn length(steps: &[FilterStep]) -> u8 {
    u8::try_from(steps.len()).unwrap_or(u8::MAX)
}

/// Goes on after its last step when it holds, `skip` steps further when not.
fn of_condition(own: Seat, condition: Condition, skip: u8) -> Vec<FilterStep> {
    let load = |argument: u8| step(LOAD_WORD, 0, 0, OFFSET_ARGUMENTS + 8 * u32::from(argument));
    // Numbers from the own node's on are the most frequent ones that are not below all.
    let foreign = [
        step(JUMP_NOT_LESS, 0, skip.saturating_add(3), FIRST_PID),
        step(JUMP_NOT_LESS, skip.saturating_add(2), 0, END_PID),
        step(JUMP_NOT_LESS, 1, 0, own.end_pid()),
        step(JUMP_NOT_LESS, skip, 0, own.first_pid()),
    ];
    match condition {
        Condition::Foreign(argument) => [load(argument)].into_iter().chain(foreign).collect(),
        Condition::ForeignGroup(argument) => {
            [load(argument), step(NEGATE, 0, 0, 0)].into_iter().chain(foreign).collect()
        }
        Condition::Is(argument, value) => vec![load(argument), step(JUMP_EQUAL, 0, skip, value)],
    }
}

fn step(code: u16, if_true: u8, if_false: u8, operand: u32) -> FilterStep {
    FilterStep { code, if_true, if_false, operand }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::calls::ROWS;

    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    enum Said {
        Notify,
        Allow,
        /// Nothing: the container's refusals come next.
        Further,
    }

    /// Runs the steps as the kernel does, and counts them.
    fn run(steps: &[FilterStep], number: u32, arguments: &[u64]) -> (Said, usize) {
        let field = |offset: u32| match offset {
            OFFSET_NUMBER => number,
            offset => {
                assert_eq!(offset % 8, 0, "lower halves");
                arguments.get(((offset - OFFSET_ARGUMENTS) / 8) as usize).copied().unwrap_or(0) as u32
            }
        };
        let (mut at, mut loaded, mut count) = (0, number, 0);
        while let Some(step) = steps.get(at) {
            (at, count) = (at + 1, count + 1);
            let holds = match step.code {
                LOAD_WORD => {
                    loaded = field(step.operand);
                    continue;
                }
                NEGATE => {
                    loaded = loaded.wrapping_neg();
                    continue;
                }
                RETURN if step.operand == ALLOW => return (Said::Allow, count),
                RETURN if step.operand == NOTIFY => return (Said::Notify, count),
                JUMP_EQUAL => loaded == step.operand,
                JUMP_NOT_LESS => loaded >= step.operand,
                other => panic!("{other:#x}"),
            };
            at += usize::from(if holds { step.if_true } else { step.if_false });
        }
        assert_eq!((at, loaded), (steps.len(), number), "it goes on behind the last step, with the number");
        (Said::Further, count)
    }

    fn seat(index: usize) -> Seat {
        Seat::new(index).unwrap()
    }

    /// What the filter should say, in other words than its own.
    fn expected(own: Seat, row: &Row, arguments: &[u64]) -> Said {
        let signed = |at: u8| arguments.get(usize::from(at)).copied().unwrap_or(0) as u32 as i32;
        let is_foreign = |pid: i64| {
            (1..=i64::from(u32::MAX)).contains(&pid) && Seat::of_pid(pid as u32).is_some_and(|seat| seat != own)
        };
        let holds = |condition: &Condition| match *condition {
            Condition::Foreign(at) => is_foreign(i64::from(signed(at))),
            Condition::ForeignGroup(at) => is_foreign(-i64::from(signed(at))),
            Condition::Is(at, value) => signed(at) as u32 == value,
        };
        if row.cases.iter().any(|case| case.iter().all(holds)) { Said::Notify } else { Said::Allow }
    }

    fn interesting() -> Vec<u64> {
        let edges = Seat::all().flat_map(|seat| [seat.first_pid() - 1, seat.first_pid(), seat.end_pid() - 1]);
        let edges =
            edges.chain([0, 1, 2, 3, 299, 300, FIRST_PID - 1, END_PID - 1, END_PID, 1 << 30, 1 << 31, u32::MAX]);
        edges
            .flat_map(|edge| [edge, edge.wrapping_neg(), edge.wrapping_add(1)])
            .flat_map(|value| [u64::from(value), u64::from(value) | 9 << 32, i64::from(value as i32) as u64])
            .collect()
    }

    #[test]
    fn each_row_notifies_of_what_crosses_nodes_and_of_nothing_else() {
        for own in [0, 1, 30, 61, 62].map(seat) {
            let steps = steps(own, ROWS);
            for row in ROWS {
                for first in interesting() {
                    for second in [0, 1, 2, 15, first] {
                        let arguments = [first, second, 15];
                        let said = run(&steps, row.number as u32, &arguments).0;
                        assert_eq!(said, expected(own, row, &arguments), "{} {arguments:x?} on {own:?}", row.name);
                    }
                }
            }
        }
    }

    #[test]
    fn calls_without_a_row_go_on_to_the_refusals() {
        let steps = steps(seat(3), ROWS);
        for number in 0..600 {
            let has_row = ROWS.iter().any(|row| row.number == i64::from(number) as libc::c_long);
            assert_eq!(run(&steps, number, &[131_072; 6]).0 == Said::Further, !has_row, "{number}");
        }
    }

    #[test]
    fn every_part_is_within_reach_of_a_jump_and_the_whole_within_the_kernels_limit() {
        for row in ROWS {
            assert!(of_row(seat(0), row).len() < usize::from(u8::MAX), "{}", row.name);
        }
        assert!(steps(seat(0), ROWS).len() < 1024, "the kernel takes 4,096 with the refusals");
    }

    #[test]
    fn kill_of_an_own_number_is_a_dozen_steps() {
        let steps = steps(seat(3), served());
        let (said, count) = run(&steps, libc::SYS_kill as u32, &[u64::from(seat(3).first_pid()) + 7, 15]);
        assert_eq!(said, Said::Allow);
        assert!(count <= 13, "{count}");
    }
}
