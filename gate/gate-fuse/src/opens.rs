//! Files that programs opened under a lease, of which the server was not told ([`vos_api::fs::DELEGATES`]).
//!
//! An inode with such opens is *untold* until the server has an open file of it for this session, one for all of them:
//! the *standing* one. It comes when the lease is asked back, or with the answer to a change that took the last name
//! away, and is of no use once the last of these opens is closed.
//!
//! Pure; the opens themselves lie in the table of open files ([`crate::state`]).

use std::collections::{HashMap, HashSet};

#[derive(Default)]
pub struct Opens {
    by_ino: HashMap<u64, Open>,
    untold: HashSet<u64>,
    /// Standing ones that nobody needs.
    useless: Vec<u64>,
}

#[derive(Default)]
struct Open {
    count: usize,
    standing: Standing,
}

#[derive(Clone, Copy, PartialEq, Eq, Default)]
enum Standing {
    #[default]
    Untold,
    /// Its number in the table of open files.
    Open(u64),
    /// The server refused it: what these opens are worth only their use will tell.
    Refused,
}

impl Opens {
    pub fn opened(&mut self, ino: u64) {
        let open = self.by_ino.entry(ino).or_default();
        open.count += 1;
        if open.standing == Standing::Refused {
            open.standing = Standing::Untold;
        }
        if open.standing == Standing::Untold {
            self.untold.insert(ino);
        }
    }

    pub fn closed(&mut self, ino: u64) {
        let Some(open) = self.by_ino.get_mut(&ino) else { return };
        open.count -= 1;
        if open.count == 0 {
            let open = self.by_ino.remove(&ino).unwrap_or_default();
            self.untold.remove(&ino);
            if let Standing::Open(fh) = open.standing {
                self.useless.push(fh);
            }
        }
    }

    /// The server has `ino` open, as `fh` in the table of open files.
    pub fn stands(&mut self, ino: u64, fh: u64) {
        match self.by_ino.get_mut(&ino) {
            Some(open) if !matches!(open.standing, Standing::Open(_)) => {
                open.standing = Standing::Open(fh);
                self.untold.remove(&ino);
            }
            Some(Open { standing: Standing::Open(known), .. }) if *known == fh => {}
            _ => self.useless.push(fh),
        }
    }

    pub fn refused(&mut self, ino: u64) {
        if let Some(open) = self.by_ino.get_mut(&ino) {
            open.standing = Standing::Refused;
            self.untold.remove(&ino);
        }
    }

    /// Another server is told what the last one refused.
    pub fn ask_again(&mut self) {
        for (ino, open) in &mut self.by_ino {
            if open.standing == Standing::Refused {
                open.standing = Standing::Untold;
                self.untold.insert(*ino);
            }
        }
    }

    pub fn is_untold(&self, ino: u64) -> bool {
        self.untold.contains(&ino)
    }

    pub fn has_untold(&self) -> bool {
        !self.untold.is_empty()
    }

    pub fn untold(&self) -> Vec<u64> {
        self.untold.iter().copied().collect()
    }

    /// A standing one that has to be closed.
    pub fn useless(&mut self) -> Option<u64> {
        self.useless.pop()
    }

    /// What the server knew it knows no more: nothing stands. Answers those that did, and those that nobody needed.
    pub fn fall(&mut self) -> Vec<u64> {
        let mut fallen = std::mem::take(&mut self.useless);
        for (ino, open) in &mut self.by_ino {
            if let Standing::Open(fh) = std::mem::take(&mut open.standing) {
                fallen.push(fh);
            }
            self.untold.insert(*ino);
        }
        fallen
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_open_file_at_the_server_stands_for_all_of_an_inode_until_the_last_is_closed() {
        let mut opens = Opens::default();
        opens.opened(5);
        opens.opened(5);
        opens.opened(6);
        assert!(opens.is_untold(5) && opens.has_untold());
        opens.stands(5, 90);
        assert_eq!((opens.is_untold(5), opens.untold()), (false, vec![6]));
        opens.opened(5);
        assert!(!opens.is_untold(5), "the same stands for those that come later");
        opens.closed(6);
        assert!(!opens.has_untold());
        opens.closed(5);
        opens.closed(5);
        assert_eq!(opens.useless(), None);
        opens.closed(5);
        assert_eq!((opens.useless(), opens.useless()), (Some(90), None));
    }

    #[test]
    fn what_stands_for_nobody_is_closed() {
        let mut opens = Opens::default();
        opens.stands(5, 90);
        opens.opened(6);
        opens.stands(6, 91);
        opens.stands(6, 91);
        opens.stands(6, 92);
        assert_eq!((opens.useless(), opens.useless(), opens.useless()), (Some(92), Some(90), None));
    }

    #[test]
    fn what_was_refused_is_waited_for_no_more_and_after_a_new_session_everything_is_to_be_told() {
        let mut opens = Opens::default();
        opens.opened(5);
        opens.refused(5);
        assert!(!opens.has_untold());
        opens.ask_again();
        assert!(opens.is_untold(5));
        opens.refused(5);
        opens.opened(6);
        opens.stands(6, 91);
        assert!(!opens.has_untold());
        assert_eq!(opens.fall(), [91]);
        let mut untold = opens.untold();
        untold.sort_unstable();
        assert_eq!(untold, [5, 6]);
    }
}
