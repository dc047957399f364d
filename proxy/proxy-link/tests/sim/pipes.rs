//! A link over pipes: bytes come in order and late, in pieces, until the pipe is cut, falls silent, or is dialled a
//! second time.

use std::collections::VecDeque;

use proxy_link::{Bodies, Phase};

use crate::world::{Link, Stage, Weather};

pub struct Pipes {
    /// From either node.
    pipes: [VecDeque<u8>; 2],
    connected: bool,
    redialled: Option<Redialled>,
    /// Steps until it can be dialled again, and until bytes of each direction arrive again.
    partition: u64,
    silence: [u64; 2],
}

/// A connection the dialler made while the acceptor knows only the one before.
struct Redialled {
    from_dialler: VecDeque<u8>,
}

impl Link for Pipes {
    fn new(_: u64) -> Pipes {
        let pipes = [VecDeque::new(), VecDeque::new()];
        Pipes { pipes, connected: false, redialled: None, partition: 0, silence: [0, 0] }
    }

    fn suffer(&mut self, stage: &mut Stage, weather: Weather) {
        self.partition = self.partition.saturating_sub(1);
        self.silence = self.silence.map(|steps| steps.saturating_sub(1));
        if weather != Weather::Calm && self.connected && stage.chance.one_in(60) {
            self.cut(stage);
            if weather.is_storm() && stage.chance.one_in(4) {
                self.partition = stage.chance.below(200);
            }
        }
        if !weather.is_storm() || !self.connected {
            return;
        }
        if stage.chance.one_in(80) {
            self.silence[stage.chance.0 as usize % 2] = stage.chance.below(60);
        }
        if self.redialled.is_none() && stage.chance.one_in(60) {
            self.redial(stage);
        }
    }

    fn turn(&mut self, stage: &mut Stage, weather: Weather) {
        let is_reachable = weather == Weather::Calm || self.partition == 0 && stage.chance.one_in(4);
        if !self.connected && is_reachable {
            stage.nodes[0].peer.dialled(stage.now);
            self.connected = true;
        }
    }

    fn transmit(&mut self, stage: &mut Stage, from: usize) {
        // Any connection may be of either kind from one moment to the next: what was put stays as it is.
        let bodies = if stage.chance.one_in(2) { Bodies::InPlace } else { Bodies::Copied };
        let node = &mut stage.nodes[from];
        let pending = node.outgoing(stage.now, bodies);
        if !self.connected {
            return;
        }
        let count = stage.chance.moved_bytes().min(pending.len());
        match (&mut self.redialled, from) {
            (None, _) => self.pipes[from].extend(&pending[..count]),
            (Some(new), 0) => new.from_dialler.extend(&pending[..count]),
            // Into a connection that its other end gave up.
            (Some(_), _) => {}
        }
        node.peer.sent(stage.now, count);
    }

    /// The accepting node learns by HELLO that there is a connection.
    fn deliver(&mut self, stage: &mut Stage, from: usize, weather: Weather) {
        if !stage.chance.one_in(3) || self.silence[from] != 0 && weather != Weather::Calm {
            return;
        }
        if from == 0
            && self.redialled.as_ref().is_some_and(|new| is_whole_hello(&new.from_dialler))
            && stage.chance.one_in(3)
        {
            self.accept_redialled(stage);
        }
        let count = stage.chance.moved_bytes().min(self.pipes[from].len());
        let bytes: Vec<u8> = self.pipes[from].drain(..count).collect();
        let node = &mut stage.nodes[1 - from];
        if node.peer.phase() != Phase::Apart {
            return stage.hand_over(1 - from, &bytes);
        }
        node.take_in(&bytes);
        if node.hear_hello(stage.now) {
            node.hear(stage.now);
        }
    }

    fn kill(&mut self, stage: &mut Stage, _victim: usize) {
        self.cut(stage);
    }
}

impl Pipes {
    /// Another connection beside the first, which the acceptor takes for the current one until it hears HELLO on the
    /// new one. What it sends over the old one meanwhile is lost.
    fn redial(&mut self, stage: &mut Stage) {
        let dialler = &mut stage.nodes[0];
        dialler.cut();
        dialler.peer.dialled(stage.now);
        self.pipes[1].clear();
        self.redialled = Some(Redialled { from_dialler: VecDeque::new() });
    }

    fn cut(&mut self, stage: &mut Stage) {
        self.connected = false;
        self.redialled = None;
        for node in &mut stage.nodes {
            node.cut();
        }
        self.pipes.iter_mut().for_each(VecDeque::clear);
    }

    /// The acceptor turns to the new connection; what is still under way on the old one is dropped.
    fn accept_redialled(&mut self, stage: &mut Stage) {
        let Some(new) = self.redialled.take() else { return };
        self.pipes = [new.from_dialler, VecDeque::new()];
        let node = &mut stage.nodes[1];
        node.forget_input();
        let bytes: Vec<u8> = self.pipes[0].drain(..).collect();
        node.take_in(&bytes);
        assert!(node.hear_hello(stage.now));
    }
}

fn is_whole_hello(bytes: &VecDeque<u8>) -> bool {
    let bytes: Vec<u8> = bytes.iter().copied().take(4096).collect();
    matches!(wire::frame_bytes(&bytes), Ok(Some(whole)) if whole <= bytes.len())
}
