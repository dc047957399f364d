//! A process of another node as it looks from here: ids are the container's, times count from this machine's start.

use proc_core::caller::Uids;

/// Who has an id that is none of the container's.
pub const NOBODY: u32 = 65_534;
/// Of field 22 of `stat`, counted from the one after the name.
const START_FIELD: usize = 19;

/// `status` with the ids of the container in place of the host's.
pub fn status_inside(status: &[u8], ids: Uids) -> Vec<u8> {
    let mut inside = Vec::with_capacity(status.len());
    for line in status.split_inclusive(|byte| *byte == b'\n') {
        let head = [&b"Uid:\t"[..], b"Gid:\t", b"Groups:\t"].into_iter().find(|head| line.starts_with(head));
        let words = head.and_then(|head| std::str::from_utf8(line.get(head.len()..)?).ok());
        let (Some(head), Some(words)) = (head, words) else {
            inside.extend_from_slice(line);
            continue;
        };
        inside.extend_from_slice(head);
        let shifted: Vec<String> =
            words.split_ascii_whitespace().map(|word| id_inside(word, ids).to_string()).collect();
        if head == b"Groups:\t" {
            // The kernel writes a blank behind each.
            inside.extend(shifted.iter().flat_map(|id| [id.as_bytes(), b" "].concat()));
            if shifted.is_empty() {
                inside.push(b' ');
            }
        } else {
            inside.extend_from_slice(shifted.join("\t").as_bytes());
        }
        inside.push(b'\n');
    }
    inside
}

fn id_inside(word: &str, ids: Uids) -> u32 {
    word.parse().ok().and_then(|id| ids.inside(id)).unwrap_or(NOBODY)
}

/// `stat` with the start of the process counted from the start of another machine, which began `later` ticks later.
/// What began before that machine began at its start.
pub fn stat_from(stat: &[u8], later: i64) -> Vec<u8> {
    // The name may have anything in it, also blanks and brackets; behind it are numbers.
    let shifted = || {
        let end = stat.iter().rposition(|byte| *byte == b')')? + 2;
        let (head, rest) = stat.split_at_checked(end)?;
        let mut fields: Vec<String> = std::str::from_utf8(rest).ok()?.split(' ').map(str::to_owned).collect();
        let start = fields.get_mut(START_FIELD)?;
        let ticks = i128::from(start.parse::<u64>().ok()?) - i128::from(later);
        *start = u64::try_from(ticks.max(0)).ok()?.to_string();
        Some([head, fields.join(" ").as_bytes()].concat())
    };
    shifted().unwrap_or_else(|| stat.to_vec())
}

#[cfg(test)]
mod tests {
    use super::*;

    const IDS: Uids = Uids { base: 1_000_000, count: 65_536 };

    #[test]
    fn ids_are_the_containers() {
        let host = b"Name:\tUid:\t7\nUid:\t1000033\t1000000\t0\t1065535\nGid:\t1000001\t1000001\t1000001\t1000001\nGroups:\t1000004 5 \nNSpid:\t70000\n";
        let inside = b"Name:\tUid:\t7\nUid:\t33\t0\t65534\t65535\nGid:\t1\t1\t1\t1\nGroups:\t4 65534 \nNSpid:\t70000\n";
        assert_eq!(status_inside(host, IDS), inside);
        assert_eq!(status_inside(b"Groups:\t \n", IDS), b"Groups:\t \n");
        assert_eq!(status_inside(b"", IDS), b"");
        assert_eq!(status_inside(b"Uid:\t\xff\n", IDS), b"Uid:\t\xff\n");
    }

    #[test]
    fn start_is_counted_from_the_asking_machines() {
        let numbers = |start: u64| {
            let fields: Vec<String> =
                (4..=52).map(|field| if field == 22 { start } else { field }.to_string()).collect();
            format!("70000 (a) S (b\n) S {}\n", fields.join(" ")).into_bytes()
        };
        assert_eq!(stat_from(&numbers(500), 100), numbers(400));
        assert_eq!(stat_from(&numbers(500), -100), numbers(600));
        assert_eq!(stat_from(&numbers(500), 600), numbers(0));
        for odd in [&b""[..], b")", b"1 (a) S", b"1 (a", b"1 (a) S \xff"] {
            assert_eq!(stat_from(odd, 5), odd);
        }
    }
}
