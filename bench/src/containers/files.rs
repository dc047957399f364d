//! Programs that write files.

use std::fs::{self, File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::{Duration, Instant};

use crate::Outcome;

const BLOCK: usize = 4096;
const PIECE: usize = 1 << 20;
/// Blocks of the file that is written over and over.
const BLOCKS: u64 = 256;
/// Between two writes of who waits for a pause.
const BREATH: Duration = Duration::from_millis(2);

/// A block of a file that has them all, and `fdatasync`: microseconds at the median.
pub fn durable_writes(file: &Path, count: u32) -> Outcome<f64> {
    let file = File::create(file)?;
    let block = [7; BLOCK];
    (0..BLOCKS).try_for_each(|at| file.write_all_at(&block, at * BLOCK as u64))?;
    file.sync_all()?;
    let mut write = |number: u32| -> Outcome<f64> {
        let begun = Instant::now();
        file.write_all_at(&block, (u64::from(number) * 97 % BLOCKS) * BLOCK as u64)?;
        file.sync_data()?;
        Ok(begun.elapsed().as_secs_f64() * 1e6)
    };
    super::median((0..count).map(&mut write).collect::<Outcome<_>>()?)
}

/// A new file from its beginning to its end, with all that makes it durable: MB/s.
pub fn long_file(file: &Path, bytes: u64) -> Outcome<f64> {
    let piece: Vec<u8> = (0..PIECE).map(|at| (at * 31 % 251) as u8).collect();
    let begun = Instant::now();
    let mut file = File::create(file)?;
    for _ in 0..bytes / PIECE as u64 {
        file.write_all(&piece)?;
    }
    file.sync_all()?;
    Ok(bytes as f64 / 1e6 / begun.elapsed().as_secs_f64())
}

/// A file from its beginning to its end: MB/s.
pub fn read_file(path: &Path) -> Outcome<f64> {
    let (mut file, mut piece, mut bytes) = (File::open(path)?, vec![0; PIECE], 0);
    let begun = Instant::now();
    loop {
        match file.read(&mut piece)? {
            0 => break Ok(bytes as f64 / 1e6 / begun.elapsed().as_secs_f64()),
            read => bytes += read,
        }
    }
}

/// Files of a block each in a new directory, durable as a whole: so many a second.
pub fn small_files(directory: &Path, count: u32) -> Outcome<f64> {
    fs::create_dir(directory)?;
    let begun = Instant::now();
    for number in 0..count {
        fs::write(directory.join(number.to_string()), [7; BLOCK])?;
    }
    File::open(directory)?.sync_all()?;
    let rate = f64::from(count) / begun.elapsed().as_secs_f64();
    fs::remove_dir_all(directory)?;
    Ok(rate)
}

/// Appends and makes durable until its input ends; milliseconds of the longest.
pub fn longest_pause(file: &Path) -> Outcome<f64> {
    let mut file = OpenOptions::new().create(true).append(true).open(file)?;
    let input = std::thread::spawn(|| std::io::stdin().read_to_end(&mut Vec::new()));
    let mut longest = Duration::ZERO;
    file.write_all(b"begun\n")?;
    println!("writing");
    while !input.is_finished() {
        let begun = Instant::now();
        file.write_all(b"a line\n")?;
        file.sync_data()?;
        longest = longest.max(begun.elapsed());
        std::thread::sleep(BREATH);
    }
    Ok(longest.as_secs_f64() * 1e3)
}

/// Empty files, so many to a directory.
pub fn many_files(directory: &Path, count: u32, each: u32) -> Outcome<()> {
    for number in 0..count {
        let place = directory.join(format!("d{}", number / each));
        if number % each == 0 {
            fs::create_dir_all(&place)?;
        }
        File::create(place.join(format!("f{number}")))?;
    }
    Ok(())
}
