//! What one proxy is told and asked over its control socket, and what it answers.

use std::collections::BTreeSet;
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

/// What a proxy has to know.
#[derive(Clone, Default)]
pub struct Topics {
    /// `None` as long as nobody has said which there are; a list that nobody has made would end all channels that the
    /// proxy has just taken over.
    pub peers: Option<Vec<PeerAddress>>,
    pub others: usize,
    pub accused: BTreeSet<String>,
    /// `None` as long as those are good that it read at its start.
    pub credentials: Option<Arc<CredentialTexts>>,
}

/// With one process; its successor gets another.
pub struct Conversation {
    end: End<FromProxy>,
    /// The peers this proxy was told, and how many others there are.
    told: Option<(Vec<PeerAddress>, usize)>,
    /// Whom this node accuses, as it was told.
    accused: BTreeSet<String>,
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
            accused: BTreeSet::new(),
            shown: None,
            asked: None,
            unanswered: 0,
            counted: None,
            heard: now,
        })
    }

    /// Tells what is news, and asks how the links are when it was not asked for `pause`.
    pub fn speak(&mut self, topics: &Topics, pause: Duration, now: Instant) {
        let shown = |texts: &&Arc<CredentialTexts>| self.shown.as_ref().is_some_and(|shown| Arc::ptr_eq(shown, texts));
        let renewed = topics.credentials.as_ref().filter(|texts| !shown(texts));
        let list = topics.peers.as_ref().map(|peers| (peers, topics.others));
        let news = list.filter(|list| self.told.as_ref().map(|(peers, others)| (peers, *others)) != Some(*list));
        let accused = (topics.accused != self.accused).then_some(&topics.accused);
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
        if !self.end.has_room() || (news.is_none() && accused.is_none() && !is_due) {
            return;
        }
        let message = ToProxy {
            peers: news.map(|(peers, _)| peers.clone()),
            others: news.map(|(_, others)| others),
            accused: accused.cloned(),
            ..ToProxy::default()
        };
        match self.end.say(message) {
            Ok(()) => {
                self.told = news.map(|(peers, others)| (peers.clone(), others)).or(self.told.take());
                self.accused.clone_from(&topics.accused);
            }
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

    fn topics(list: Option<&Vec<PeerAddress>>) -> Topics {
        Topics { peers: list.cloned(), others: list.map_or(0, Vec::len), ..Topics::default() }
    }

    fn told(list: &[PeerAddress]) -> ToProxy {
        ToProxy { peers: Some(list.to_vec()), others: Some(list.len()), ..ToProxy::default() }
    }

    #[test]
    fn whom_the_node_accuses_is_told_when_it_is_news_and_to_each_proxy() {
        let (mut conversation, mut proxy) = with_a_proxy();
        let now = Instant::now();
        let accuses =
            |names: &[&str]| Topics { accused: names.iter().map(|name| (*name).to_owned()).collect(), ..topics(None) };
        for (topics, heard) in [(accuses(&["n2"]), true), (accuses(&["n2"]), false), (accuses(&[]), true)] {
            conversation.speak(&topics, ASK_EVERY, now);
            let message = ToProxy { accused: Some(topics.accused), ..ToProxy::default() };
            assert_eq!(proxy.receive(), if heard { Said::Message(message) } else { Said::Nothing });
        }
        let (mut next, mut proxy) = with_a_proxy();
        next.speak(&accuses(&["n3"]), ASK_EVERY, now);
        assert!(matches!(proxy.receive(), Said::Message(ToProxy { accused: Some(names), .. }) if names.contains("n3")));
    }

    #[test]
    fn proxy_hears_of_no_list_before_there_is_one_then_of_each_once_also_of_an_empty_one() {
        let (mut conversation, mut proxy) = with_a_proxy();
        let now = Instant::now();
        let (none, some) = (peers(0), peers(2));
        for (list, heard) in [
            (None, Said::Message(ToProxy::default())),
            (Some(&none), Said::Message(told(&none))),
            (Some(&none), Said::Nothing),
            (Some(&some), Said::Message(told(&some))),
            (Some(&some), Said::Nothing),
        ] {
            conversation.speak(&topics(list), ASK_EVERY, now);
            assert_eq!(proxy.receive(), heard);
        }
        conversation.speak(&topics(Some(&some)), ASK_EVERY, now + ASK_EVERY);
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
            conversation.speak(&topics(Some(&lists[0])), ASK_EVERY, now);
            conversation.told = None;
            copies += 1;
        }
        let mut heard = 0;
        loop {
            conversation.speak(&topics(Some(&lists[1])), ASK_EVERY, now);
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
            conversation.speak(&Topics::default(), ASK_EVERY, begin + second * ASK_EVERY);
            conversation.speak(&Topics::default(), ASK_EVERY, begin + second * ASK_EVERY);
            assert_eq!(conversation.silent_since(), None);
        }
        // One that stood still itself has not asked.
        let late = begin + 1000 * ASK_EVERY;
        conversation.speak(&Topics::default(), ASK_EVERY, late);
        assert_eq!(conversation.silent_since(), Some(begin));
        proxy.say(FromProxy::default()).unwrap();
        assert_eq!(conversation.hear(late), Said::Message(FromProxy::default()));
        conversation.speak(&Topics::default(), ASK_EVERY, late + ASK_EVERY);
        assert_eq!(conversation.silent_since(), None);
    }
}
