//! Who was left behind: what a server makes of the epochs that a greeting says (`docs/design/placement.md`).
//!
//! A [`Tenure`] is *current*, or *over*: a client was told a later epoch of the server's placement than the server
//! itself, so there is a successor. It is over for ever. A [`Fence`] only rises.
//!
//! Not here: where a fence is kept (`vos/disk`), what a client does that is refused (`vos/libvos`).

use vos_api::session::{Epochs, Outdated};

/// Who greets.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Speaker {
    /// A server or a gate: the node's daemon told it the epochs.
    Server,
    /// Anybody in the container.
    Program,
}

/// Why a greeting is not welcome.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Unwelcome {
    /// A program has no say in who was left behind.
    NotPermitted,
    Stale(Outdated),
}

/// A server's hold on its placement.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Tenure {
    epoch: u32,
    successor: Option<u32>,
}

impl Tenure {
    /// `epoch` 0: a server without a placement, which compares nothing.
    pub fn new(epoch: u32) -> Tenure {
        Tenure { epoch, successor: None }
    }

    pub fn epoch(self) -> u32 {
        self.epoch
    }

    /// The later epoch that ended it.
    pub fn successor(self) -> Option<u32> {
        self.successor
    }

    /// A greeting arrived.
    pub fn hear(&mut self, said: Epochs, by: Speaker) -> Result<(), Unwelcome> {
        if by == Speaker::Program && said != Epochs::default() {
            return Err(Unwelcome::NotPermitted);
        }
        if self.epoch != 0 && said.server > self.epoch {
            self.successor = self.successor.max(Some(said.server));
        }
        let is_meant = self.epoch == 0 || said.server == 0 || said.server == self.epoch;
        if is_meant && self.successor.is_none() {
            return Ok(());
        }
        Err(Unwelcome::Stale(Outdated { server: self.epoch.into(), own: 0 }))
    }
}

/// The highest epoch that a resource has heard of the one server that may change it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Fence(pub u32);

/// What a fence makes of an epoch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Judgement {
    Same,
    /// The fence as it must be kept before who said it is welcome.
    Raised(Fence),
    Refused(Outdated),
}

impl Fence {
    pub fn judge(self, own: u32) -> Judgement {
        match own.cmp(&self.0) {
            std::cmp::Ordering::Less => Judgement::Refused(Outdated { server: 0, own: self.0.into() }),
            std::cmp::Ordering::Equal => Judgement::Same,
            std::cmp::Ordering::Greater => Judgement::Raised(Fence(own)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STALE: fn(u64) -> Result<(), Unwelcome> = |server| Err(Unwelcome::Stale(Outdated { server, own: 0 }));

    /// The server has epoch `own` and hears greetings one after the other.
    fn play(own: u32, greetings: &[(u32, Result<(), Unwelcome>)]) -> Option<u32> {
        let mut tenure = Tenure::new(own);
        for (at, (server, wanted)) in greetings.iter().enumerate() {
            let heard = tenure.hear(Epochs { server: *server, own: 9 }, Speaker::Server);
            assert_eq!(heard, *wanted, "epoch {own}, greeting {at} of {greetings:?}");
        }
        tenure.successor()
    }

    #[test]
    fn server_refuses_who_is_older_and_ends_when_somebody_is_newer() {
        let cases: &[(u32, &[_], _)] = &[
            (2, &[(2, Ok(())), (0, Ok(())), (2, Ok(()))], None),
            (2, &[(1, STALE(2)), (2, Ok(()))], None),
            (2, &[(2, Ok(())), (3, STALE(2)), (2, STALE(2)), (0, STALE(2)), (1, STALE(2))], Some(3)),
            (2, &[(u32::MAX, STALE(2)), (3, STALE(2))], Some(u32::MAX)),
            (0, &[(0, Ok(())), (7, Ok(())), (1, Ok(()))], None),
        ];
        for (own, greetings, successor) in cases {
            assert_eq!(play(*own, greetings), *successor, "epoch {own}: {greetings:?}");
        }
    }

    #[test]
    fn program_ends_no_server_whatever_it_says() {
        let mut tenure = Tenure::new(1);
        for (server, own) in [(u32::MAX, 0), (0, u32::MAX), (1, 1), (1, 0)] {
            let heard = tenure.hear(Epochs { server, own }, Speaker::Program);
            assert_eq!(heard, Err(Unwelcome::NotPermitted), "{server} {own}");
        }
        assert_eq!(tenure.hear(Epochs::default(), Speaker::Program), Ok(()));
        assert_eq!(tenure, Tenure::new(1));
    }

    #[test]
    fn fence_rises_and_never_falls() {
        let refused = |own| Judgement::Refused(Outdated { server: 0, own });
        let table = [
            (0, 0, Judgement::Same),
            (0, 1, Judgement::Raised(Fence(1))),
            (1, 0, refused(1)),
            (2, 1, refused(2)),
            (2, 2, Judgement::Same),
            (2, u32::MAX, Judgement::Raised(Fence(u32::MAX))),
        ];
        for (fence, own, wanted) in table {
            assert_eq!(Fence(fence).judge(own), wanted, "{own} at {fence}");
        }
    }
}
