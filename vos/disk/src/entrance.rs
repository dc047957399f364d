//! Who comes in: rings, rights, the owner and its predecessor.
//!
//! An owner that holds the volume (`HOLD`) answers its clients from memory until then, whatever becomes of the link
//! between the two. So its successor is served after that, and its own requests are refused from the successor's
//! greeting on. A disk that begins has forgotten what it promised, and waits as if it had done so at that moment.

use std::sync::Arc;
use std::time::Instant;

use abi::Endpoint;
use replica_core::lease::Promised;
use rustix::io::Errno;
use vos_api::disk::Request as Ask;
use vos_rt::{ClientId, Hello, HelloReply, Request};

use crate::fence::KeptFence;
use crate::moment::{Entered, Moments};
use crate::rings::Rings;

pub struct Entrance {
    rings: Arc<Rings>,
    /// Who may change the volume; `None` for everybody.
    owner: Option<Endpoint>,
    fence: KeptFence,
    /// To whom, by its epoch, and until when.
    promised: (u32, Promised),
    began: Instant,
    moments: Moments,
}

impl Entrance {
    /// Everybody may change the volume.
    pub fn open() -> Entrance {
        Entrance {
            rings: Arc::default(),
            owner: None,
            fence: KeptFence::default(),
            promised: (0, Promised::at_begin(0)),
            began: Instant::now(),
            moments: Moments::default(),
        }
    }

    /// Changes are taken from this endpoint alone, and only in the highest epoch it ever said; everybody who may open a
    /// ring reads.
    pub fn of_owner(owner: Endpoint, fence: KeptFence) -> Entrance {
        Entrance { owner: Some(owner), promised: (fence.said(), Promised::at_begin(0)), fence, ..Entrance::open() }
    }

    /// Raising the fence waits for the medium, once for each change of the owner: nothing of the new owner may come
    /// before it, and readers can wait as long.
    pub fn opened(&mut self, client: ClientId, from: Endpoint, hello: &Hello) -> HelloReply {
        let is_owner = self.owner == Some(from);
        if is_owner && let Err(refused) = self.fence.hear(hello.epochs.own) {
            return refused;
        }
        if let Some(earlier) = self.rings.opened(from, client) {
            self.moments.closed(earlier);
        }
        let (to, promised) = self.promised;
        // Nobody was promised anything before the first owner came.
        let is_held = to > 0 && to < self.fence.epoch() && self.now_ms() < promised.until_ms();
        if is_owner && is_held { HelloReply::Refused(Errno::AGAIN) } else { HelloReply::STATELESS }
    }

    pub fn closed(&mut self, client: ClientId) {
        self.rings.closed(client);
        self.moments.closed(client);
    }

    /// What is asked; whoever may not is answered, and who has to wait comes by [`Entrance::tick`].
    pub fn enter(&mut self, request: Request) -> Option<Entered> {
        // Who still asks over a ring that was replaced was replaced as well, or has asked again over the new one.
        let Some(ticket) = self.rings.begin(request.from(), request.client()) else {
            request.fail(Errno::STALE);
            return None;
        };
        let asked = match Ask::decode(request.op(), request.flags(), request.args(), &[]) {
            Ok(asked) => asked,
            Err(why) => {
                request.refuse(why);
                return None;
            }
        };
        let is_owners = matches!(asked, Ask::Write(_) | Ask::Discard(_) | Ask::Allocate(_) | Ask::Hold(_));
        if is_owners && self.owner.is_some_and(|owner| owner != request.from()) {
            request.fail(Errno::ACCESS);
            return None;
        }
        self.moments.pass((request, ticket, asked))
    }

    /// A client reads the disk of so many bytes as it is now.
    pub fn freeze(&mut self, request: Request, bytes: u64) {
        self.moments.freeze(request, bytes);
    }

    /// It asks which extents somebody waits for.
    pub fn listen(&mut self, request: Request, for_ms: u64) {
        self.moments.listen(request, for_ms);
    }

    /// When to call [`Entrance::tick`] at the latest.
    pub fn due(&self) -> Option<Instant> {
        self.moments.due(Instant::now())
    }

    /// What waited and goes on.
    pub fn tick(&mut self, now: Instant) -> Vec<Entered> {
        self.moments.tick(now)
    }

    /// Before the owner is told that it holds the volume. `ESTALE`: its successor came while it waited to be told.
    pub fn promise(&mut self, request: &Request) -> Result<(), Errno> {
        if !self.rings.is_newest(request.from(), request.client()) {
            return Err(Errno::STALE);
        }
        let now_ms = self.now_ms();
        let (to, promised) = &mut self.promised;
        *to = self.fence.epoch();
        promised.grant(now_ms);
        Ok(())
    }

    fn now_ms(&self) -> u64 {
        self.began.elapsed().as_millis() as u64
    }
}
