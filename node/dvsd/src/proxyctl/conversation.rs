//! What one proxy is told and asked over its control socket, and what it answers.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use proxy_host::control::{CredentialTexts, End, FromProxy, PeerAddress, Said, ToProxy};

/// How often the counters of links are asked for.
pub const ASK_EVERY: Duration = Duration::from_secs(1);
/// The same, as long as somebody has to know what other nodes hear of this one.
pub const ASK_OFTEN: Duration = Duration::from_millis(100);
/// Questions after which a proxy that has answered none does not answer: counted, and not timed, because a daemon that
/// stood still itself has not asked meanwhile.
const UNANSWERED_MAX: u32 = 3;

/// With one process; its successor gets another.
pub struct Conversation {
    end: End<FromProxy>,
    /// The peers this proxy was told.
    told: Option<Vec<PeerAddress>>,
    /// The certificates it was told after its start.
    shown: Option<Arc<CredentialTexts>>,
    /// When it was told or asked something last.
    asked: Option<Instant>,
    /// Times to ask since it said something last, and when that was; of what is asked more often than [`ASK_EVERY`],
    /// one each time counts.
    unanswered: u32,
    counted: Option<Instant>,
    heard: Instant,
}

impl Conversation {
    /// # Errors
    /// No descriptor.
    pub fn new(socket: OwnedFd, now: Instant) -> io::Result<Conversation> {
        Ok(Conversation {
            end: End::new(socket)?,
            told: None,
            shown: None,
            asked: None,
            unanswered: 0,
            counted: None,
            heard: now,
        })
    }

    /// Tells the list of peers when it is news, and asks how the links are when it was not asked for `pause`. `peers`:
    /// `None` as long as nobody has said which there are; a list that nobody has made would end all channels that the
    /// proxy has just taken over. `credentials`: `None` as long as those are good that it read at its start.
    pub fn speak(
        &mut self,
        peers: Option<&Vec<PeerAddress>>,
        credentials: Option<&Arc<CredentialTexts>>,
        pause: Duration,
        now: Instant,
    ) {
        let renewed = credentials.filter(|texts| self.shown.as_ref().is_none_or(|shown| !Arc::ptr_eq(shown, texts)));
        let news = peers.filter(|peers| self.told.as_ref() != Some(peers));
        let has_passed =
            |since: Option<Instant>, time| since.is_none_or(|at| now.saturating_duration_since(at) >= time);
        let is_due = has_passed(self.asked, pause);
        if is_due {
            self.asked = Some(now);
        }
        if is_due && has_passed(self.counted, ASK_EVERY) {
            self.counted = Some(now);
            self.unanswered = self.unanswered.saturating_add(1);
        }
        if let Some(texts) = renewed.filter(|_| self.end.has_room()) {
            // A message of its own: it is not divided.
            let message = ToProxy { credentials: Some(CredentialTexts::clone(texts)), ..ToProxy::default() };
            match self.end.say(message) {
                Ok(()) => self.shown = Some(Arc::clone(texts)),
                Err(error) => tracing::warn!(%error, "a proxy was not told of new certificates"),
            }
        }
        // What waits is sent by `hear`, and news are told after it.
        if !self.end.has_room() || (news.is_none() && !is_due) {
            return;
        }
        match self.end.say(ToProxy { peers: news.cloned(), ..ToProxy::default() }) {
            Ok(()) => self.told = news.cloned().or(self.told.take()),
            // That it ended is seen elsewhere.
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {}
            Err(error) => tracing::warn!(%error, "a proxy was not told"),
        }
    }

    /// The next that the proxy says, if there is something.
    pub fn hear(&mut self, now: Instant) -> Said<FromProxy> {
        let said = self.end.receive();
        if matches!(said, Said::Message(_)) {
            self.excuse(now);
        }
        said
    }

    /// It need not have answered until now.
    pub fn excuse(&mut self, now: Instant) {
        (self.unanswered, self.heard) = (0, now);
    }

    /// Since when it says nothing, when that is too long ago.
    pub fn silent_since(&self) -> Option<Instant> {
        (self.unanswered > UNANSWERED_MAX).then_some(self.heard)
    }
}

/// Readable when there is something to hear, or room for what waits to be told.
impl AsFd for Conversation {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.end.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TCP: &str = "127.0.0.1:7421";

    fn peers(count: u16) -> Vec<PeerAddress> {
        let peer = |id| PeerAddress {
            name: format!("n{id}"),
            id,
            transport: None,
            addr: TCP.to_owned(),
            tls: None,
            plain_over: None,
        };
        (1..=count).map(peer).collect()
    }

    fn with_a_proxy() -> (Conversation, End<ToProxy>) {
        let (ours, theirs) = sys::seqpacket::pair().unwrap();
        (Conversation::new(ours, Instant::now()).unwrap(), End::new(theirs).unwrap())
    }

    #[test]
    fn proxy_hears_of_no_list_before_there_is_one_then_of_each_once_also_of_an_empty_one() {
        let (mut conversation, mut proxy) = with_a_proxy();
        let now = Instant::now();
        let (none, some) = (peers(0), peers(2));
        for (list, heard) in [
            (None, Said::Message(ToProxy::default())),
            (Some(&none), Said::Message(ToProxy { peers: Some(none.clone()), ..ToProxy::default() })),
            (Some(&none), Said::Nothing),
            (Some(&some), Said::Message(ToProxy { peers: Some(some.clone()), ..ToProxy::default() })),
            (Some(&some), Said::Nothing),
        ] {
            conversation.speak(list, None, ASK_EVERY, now);
            assert_eq!(proxy.receive(), heard);
        }
        conversation.speak(Some(&some), None, ASK_EVERY, now + ASK_EVERY);
        assert_eq!(proxy.receive(), Said::Message(ToProxy::default()));
    }

    #[test]
    fn list_that_changes_while_the_proxy_reads_the_last_one_is_told_behind_it() {
        let (mut conversation, mut proxy) = with_a_proxy();
        let now = Instant::now();
        let lists = [peers(abi::limits::NODES_PER_CLUSTER - 1), peers(3)];
        // Without a proxy that reads, so many do not fit into the socket.
        let mut copies = 0_u16;
        while conversation.end.has_room() {
            conversation.speak(Some(&lists[0]), None, ASK_EVERY, now);
            conversation.told = None;
            copies += 1;
        }
        let mut heard = 0;
        loop {
            conversation.speak(Some(&lists[1]), None, ASK_EVERY, now);
            assert_eq!(conversation.hear(now), Said::Nothing);
            match proxy.receive() {
                Said::Message(ToProxy { peers: Some(list), .. }) if list == lists[0] => heard += 1,
                Said::Message(ToProxy { peers: Some(list), .. }) if list == lists[1] => break,
                Said::Nothing => {}
                other => panic!("{other:?}"),
            }
        }
        assert_eq!(heard, copies);
    }

    #[test]
    fn proxy_that_answers_no_question_for_three_seconds_is_silent_until_it_answers() {
        let (mut conversation, mut proxy) = with_a_proxy();
        let begin = Instant::now();
        conversation.excuse(begin);
        for second in 0..3 {
            // However often the daemon turns round.
            conversation.speak(None, None, ASK_EVERY, begin + second * ASK_EVERY);
            conversation.speak(None, None, ASK_EVERY, begin + second * ASK_EVERY);
            assert_eq!(conversation.silent_since(), None);
        }
        // One that stood still itself has not asked.
        let late = begin + 1000 * ASK_EVERY;
        conversation.speak(None, None, ASK_EVERY, late);
        assert_eq!(conversation.silent_since(), Some(begin));
        proxy.say(FromProxy::default()).unwrap();
        assert_eq!(conversation.hear(late), Said::Message(FromProxy::default()));
        conversation.speak(None, None, ASK_EVERY, late + ASK_EVERY);
        assert_eq!(conversation.silent_since(), None);
    }
}
