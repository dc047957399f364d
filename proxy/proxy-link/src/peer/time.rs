//! Heartbeats, lazy acknowledgements, and the judgement of silence.

use std::time::Duration;

use super::channels::keep_body;
use super::{Action, Known, Peer};
use crate::LinkError;
use crate::channel::LocalChannel;
use crate::crossing::Stage;
use crate::link::Phase;

impl<C: LocalChannel> Peer<C> {
    /// When [`Peer::tick`] has something to do next, if ever. Call `tick` first: what is due already is not counted.
    pub fn next_tick(&self, now: Duration) -> Option<Duration> {
        let lazily = self.lazily_told + self.link.times().heartbeat;
        let lazily = (self.link.phase == Phase::Up && lazily > now).then_some(lazily);
        self.link.next_tick(now).into_iter().chain(lazily).min()
    }

    /// Heartbeat, lazy acknowledgements, judgement of silence. Read what the transport has before calling it: bytes
    /// that wait in a socket are not silence.
    ///
    /// # Errors
    /// Cut the connection. What follows from it has been put into the actions.
    pub fn tick(&mut self, now: Duration) -> Result<(), LinkError> {
        let times = self.link.times();
        let silence = self.link.silence(now);
        if silence >= times.suspect && !self.suspected {
            self.suspected = true;
            self.actions.push_back(Action::Suspect);
        } else if silence < times.suspect && self.link.phase == Phase::Up {
            self.suspected = false;
        }
        if silence >= times.down || self.link.is_out_of_reach(now) {
            self.give_up();
        }
        if silence >= times.down && self.link.phase != Phase::Apart {
            let millis = |time: Duration| time.as_millis() as u64;
            return Err(LinkError::Silent { silent_ms: millis(silence), limit_ms: millis(times.down) });
        }
        if self.link.has_lost_data() {
            return Err(LinkError::Unfinished);
        }
        if self.link.phase == Phase::Up && now.saturating_sub(self.lazily_told) >= times.heartbeat {
            self.lazily_told = now;
            self.tell_lazily();
        }
        self.link.keep_alive(now);
        Ok(())
    }

    fn tell_lazily(&mut self) {
        for known in self.known.values_mut() {
            if let Known::Crossing(crossing) = known
                && crossing.stage == Stage::Open
            {
                crossing.tell_acknowledgements(&mut self.link);
            }
        }
    }

    pub(super) fn give_up(&mut self) {
        if self.given_up {
            return;
        }
        self.given_up = true;
        self.ready.clear();
        self.news.clear();
        self.draining.clear();
        self.giving_way.clear();
        for (channel, known) in self.known.drain() {
            keep_body(&mut self.link, channel, &known);
            if let Known::Crossing(crossing) = known {
                self.actions.push_back(Action::Forget { channel, local: crossing.local });
            }
        }
        self.actions.push_back(Action::Down);
    }
}
