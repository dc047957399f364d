//! A program from a seed.
//!
//! Each program uses some groups of calls, some names, a few offsets and lengths: what it has, it has often, so that
//! calls meet.

use crate::program::{Call, FILES, Group, Kind, MAPS, NAMES, Op, Program, words};
use crate::session::{SetId, Settings};
use crate::world::Shape;

const CALLS: std::ops::RangeInclusive<u64> = 15..=150;
const OFFSETS: &[i64] = &[0, 0, 0, 1, 100, 4095, 4096, 4097, 8192, 12_288, 65_535, 65_536, 65_537, 131_072, 1_000_000];
const LENGTHS: &[i64] = &[0, 1, 10, 100, 4095, 4096, 4096, 4096, 4097, 8192, 65_535, 65_536, 65_537, 200_000];
const MODES: &[i64] = &[0o644, 0o600, 0o755, 0, 0o4711];
const PAGES: &[i64] = &[4096, 8192, 65_536];

/// splitmix64
pub struct Numbers(u64);

impl Numbers {
    pub fn new(seed: u64) -> Numbers {
        Numbers(seed)
    }

    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    pub fn below(&mut self, limit: usize) -> usize {
        (self.next() % limit as u64) as usize
    }

    fn one_in(&mut self, number: usize) -> bool {
        self.below(number) == 0
    }

    fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len())]
    }
}

/// What a program may use.
struct Palette {
    calls: Vec<Call>,
    names: Vec<i64>,
    offsets: Vec<i64>,
    lengths: Vec<i64>,
    files: usize,
    modes: &'static [i64],
    shape: Shape,
}

/// The program of `seed` for so many nodes and processes, as the settings want it.
pub fn generate(seed: u64, shape: Shape, settings: &Settings) -> Program {
    let numbers = &mut Numbers::new(seed);
    let palette = palette(numbers, shape, settings);
    let total: u64 = palette.calls.iter().map(|call| call.weight()).sum();
    let count = CALLS.start() + numbers.next() % (CALLS.end() - CALLS.start());
    let mut ops = prelude(numbers, &palette);
    while ops.len() < count as usize {
        let mut at = numbers.next() % total;
        let chosen = palette.calls.iter().find(|call| {
            let is_it = at < call.weight();
            at = at.wrapping_sub(call.weight());
            is_it
        });
        let call = *chosen.expect("weights sum to the total");
        // The same place as before, often: a node keeps what it has just read.
        let last = ops.last().map(|op: &Op| (op.node, op.process)).filter(|_| numbers.one_in(3));
        let (node, process) = last.unwrap_or_else(|| place(numbers, palette.shape));
        ops.push(op(numbers, &palette, node, process, call));
    }
    Program(ops)
}

fn rarity(group: Group) -> usize {
    // They cost half a second each.
    if group == Group::Pauses { 8 } else { 2 }
}

fn place(numbers: &mut Numbers, shape: Shape) -> (usize, usize) {
    let process = if numbers.one_in(3) { numbers.below(shape.processes) } else { 0 };
    (numbers.below(shape.nodes), process)
}

fn palette(numbers: &mut Numbers, shape: Shape, settings: &Settings) -> Palette {
    let groups: Vec<Group> =
        Group::ALL.iter().copied().filter(|group| *group == Group::Core || numbers.one_in(rarity(*group))).collect();
    let calls = Call::ALL.iter().copied();
    let mut calls: Vec<Call> =
        calls.filter(|call| groups.contains(&call.group()) && !settings.without.contains(call)).collect();
    // Some do very few things, in one place: what takes four calls of the same kind is seen there alone.
    let is_narrow = numbers.one_in(3);
    let [most_names, most_places, most_files] = if is_narrow { [2, 1, 1] } else { [NAMES.len(), 4, FILES] };
    if is_narrow {
        let keep = 1 + numbers.below(5);
        while calls.len() > keep {
            calls.swap_remove(numbers.below(calls.len()));
        }
    }
    let names = 1 + numbers.below(most_names);
    let names = (0..names).map(|_| numbers.below(NAMES.len()) as i64).collect();
    let offsets = (0..1 + numbers.below(most_places)).map(|_| numbers.pick(OFFSETS)).collect();
    let lengths = (0..1 + numbers.below(most_places)).map(|_| numbers.pick(LENGTHS)).collect();
    let modes = if settings.set_id == SetId::Used { MODES } else { &MODES[..MODES.len() - 1] };
    Palette { calls, names, offsets, lengths, files: 1 + numbers.below(most_files), modes, shape }
}

/// Directories, and one file open everywhere: without them most calls would only fail.
fn prelude(numbers: &mut Numbers, palette: &Palette) -> Vec<Op> {
    let mut ops = Vec::new();
    for name in ["d", "e"] {
        if numbers.below(4) > 0 {
            let name = NAMES.iter().position(|other| *other == name).expect("one of the names") as i64;
            ops.push(Op { node: 0, process: 0, call: Call::Mkdir, args: vec![name, 0o755] });
        }
    }
    let name = numbers.pick(&palette.names);
    for node in 0..palette.shape.nodes {
        if numbers.below(4) > 0 {
            let flags = i64::from(libc::O_RDWR | libc::O_CREAT);
            ops.push(Op { node, process: 0, call: Call::Open, args: vec![0, name, flags, 0o644] });
        }
    }
    ops
}

fn op(numbers: &mut Numbers, palette: &Palette, node: usize, process: usize, call: Call) -> Op {
    let mut args: Vec<i64> = call.kinds().iter().map(|kind| argument(numbers, palette, *kind)).collect();
    match call {
        // Mapped from a page on; some pages, and loads and stores within them.
        Call::Map => (args[2], args[3]) = (args[2] & !4095, numbers.pick(PAGES)),
        Call::Load | Call::Store => args[1] %= 8192,
        Call::SetXattr | Call::FsetXattr => args[2] %= 4096,
        Call::Seek if numbers.one_in(4) => args[1] = -args[1],
        Call::Mkdir if args[1] & 0o700 == 0 => args[1] = 0o755,
        _ => {}
    }
    Op { node, process, call, args }
}

fn argument(numbers: &mut Numbers, palette: &Palette, kind: Kind) -> i64 {
    match kind {
        Kind::File => numbers.below(palette.files) as i64,
        Kind::Map => numbers.below(MAPS) as i64,
        Kind::Name => numbers.pick(&palette.names),
        Kind::Open => flags(numbers),
        Kind::Mode => numbers.pick(palette.modes),
        Kind::Offset if numbers.one_in(16) => numbers.pick(OFFSETS),
        Kind::Offset => numbers.pick(&palette.offsets),
        Kind::Length if numbers.one_in(16) => numbers.pick(LENGTHS),
        Kind::Length => numbers.pick(&palette.lengths),
        Kind::Byte => 1 + numbers.below(255) as i64,
        Kind::Owner => numbers.pick(&[0, 1, 1000, -1]),
        Kind::Whence
        | Kind::Allocate
        | Kind::Protection
        | Kind::Rename
        | Kind::Time
        | Kind::Attribute
        | Kind::SetAttribute
        | Kind::LockOwner
        | Kind::LockType
        | Kind::Flock => numbers.pick(words(kind)).1,
    }
}

fn flags(numbers: &mut Numbers) -> i64 {
    let access = numbers.pick(&[libc::O_RDWR, libc::O_RDWR, libc::O_RDWR, libc::O_RDONLY, libc::O_WRONLY]);
    let create = if numbers.one_in(2) { libc::O_CREAT } else { 0 };
    let others =
        [(libc::O_EXCL, 6), (libc::O_TRUNC, 6), (libc::O_APPEND, 4), (libc::O_DIRECTORY, 12), (libc::O_NOFOLLOW, 12)];
    let others = others.iter().map(|(flag, rarity)| if numbers.one_in(*rarity) { *flag } else { 0 }).sum::<i32>();
    i64::from(access | create | others)
}
