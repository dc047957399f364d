//! What a worker does while others do the same (`crate::crowd`). An answer is `0`, or what did not hold.

use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Read, Write};
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::fs::FileExt;

use super::raw;

/// More than a page, so that a part of it would be seen.
const CONTENT: usize = 10_000;
const RECORD: usize = 16;

/// `prepare WHAT`, `check WHAT ROUNDS WORKERS`, or `WHAT ROUNDS WORKER`.
pub fn take_part(command: &str) -> String {
    let words: Vec<&str> = command.split(' ').collect();
    let number = |at: usize| words.get(at).and_then(|word| word.parse::<usize>().ok()).unwrap_or(0);
    let done = match words[0] {
        "prepare" => prepare(words[1]),
        "check" => check(words[1], number(2), number(3)),
        "replace" if number(2) == 0 => replace(number(1)),
        "replace" => look(number(1)),
        "exclusive" => exclusive(number(1)),
        "append" => append(number(1), number(2)),
        lock => locked(lock, number(1)),
    };
    done.err().map_or("0".to_owned(), |error| error.replace('\n', " "))
}

type Done = Result<(), String>;

fn said<T>(what: &str, result: std::io::Result<T>) -> Result<T, String> {
    result.map_err(|error| format!("{what}: {error}"))
}

fn prepare(what: &str) -> Done {
    match what {
        "replace" => replace(1),
        "append" => said("create", File::create("log")).map(drop),
        _ => said("create", std::fs::write("counter", 0_u64.to_le_bytes())),
    }
}

fn replace(rounds: usize) -> Done {
    for round in 0..rounds {
        said("write", std::fs::write("t.tmp", vec![round as u8; CONTENT]))?;
        said("rename", std::fs::rename("t.tmp", "t"))?;
    }
    Ok(())
}

/// Looks a few times for each round of the one who replaces: opening is quicker.
fn look(rounds: usize) -> Done {
    for round in 0..rounds * 4 {
        let mut content = Vec::new();
        let mut file = said(&format!("open {round}"), File::open("t"))?;
        said("read", file.read_to_end(&mut content))?;
        if content.len() != CONTENT || content.iter().any(|byte| *byte != content[0]) {
            return Err(format!("round {round}: {} bytes, not one whole content", content.len()));
        }
    }
    Ok(())
}

fn count(file: &File) -> Done {
    let mut bytes = [0; 8];
    said("pread", file.read_exact_at(&mut bytes, 0))?;
    said("pwrite", file.write_all_at(&(u64::from_le_bytes(bytes) + 1).to_le_bytes(), 0))
}

fn counter() -> Result<File, String> {
    said("open counter", OpenOptions::new().read(true).write(true).open("counter"))
}

fn exclusive(rounds: usize) -> Done {
    for _ in 0..rounds {
        loop {
            match OpenOptions::new().write(true).create_new(true).open("lock") {
                Ok(_) => break,
                Err(error) if error.kind() == ErrorKind::AlreadyExists => std::thread::yield_now(),
                Err(error) => return Err(format!("O_EXCL: {error}")),
            }
        }
        count(&counter()?)?;
        said("unlink", std::fs::remove_file("lock"))?;
    }
    Ok(())
}

fn append(rounds: usize, worker: usize) -> Done {
    let mut log = said("open", OpenOptions::new().append(true).open("log"))?;
    for round in 0..rounds {
        said("append", log.write_all(format!("{worker:7} {round:7}\n").as_bytes()))?;
    }
    Ok(())
}

fn locked(how: &str, rounds: usize) -> Done {
    for _ in 0..rounds {
        let file = counter()?;
        said(how, raw::lock_and_wait(how, file.as_raw_fd() as RawFd))?;
        count(&file)?;
    }
    Ok(())
}

fn check(what: &str, rounds: usize, workers: usize) -> Done {
    match what {
        "replace" => look(1),
        "append" => check_log(rounds, workers),
        _ => {
            let mut bytes = [0; 8];
            said("pread", counter()?.read_exact_at(&mut bytes, 0))?;
            let (counted, wanted) = (u64::from_le_bytes(bytes), (rounds * workers) as u64);
            if counted == wanted { Ok(()) } else { Err(format!("counted {counted}, wanted {wanted}")) }
        }
    }
}

fn check_log(rounds: usize, workers: usize) -> Done {
    let log = said("read", std::fs::read_to_string("log"))?;
    if log.len() != rounds * workers * RECORD {
        return Err(format!("{} bytes, wanted {}", log.len(), rounds * workers * RECORD));
    }
    for worker in 0..workers {
        let own = format!("{worker:7} ");
        let of_worker: Vec<&str> = log.lines().filter_map(|line| line.strip_prefix(&own)).collect();
        let wanted: Vec<String> = (0..rounds).map(|round| format!("{round:7}")).collect();
        if of_worker != wanted {
            return Err(format!("what worker {worker} appended is not there once and in order"));
        }
    }
    Ok(())
}
