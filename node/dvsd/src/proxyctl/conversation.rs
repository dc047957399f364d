//! What one proxy is told and asked over its control socket, and what it answers.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use proxy_host::control::{End, FromProxy, PeerAddress, Said, ToProxy};

/// How often the counters of links are asked for.
pub const ASK_EVERY: Duration = Duration::from_secs(1);

/// With one process; its successor gets another.
pub struct Conversation {
    end: End<FromProxy>,
    /// The peers this proxy was told.
    told: Option<Vec<PeerAddress>>,
    /// When it was told or asked something last.
    asked: Option<Instant>,
}

impl Conversation {
    /// # Errors
    /// No descriptor.
    pub fn new(socket: OwnedFd) -> io::Result<Conversation> {
        Ok(Conversation { end: End::new(socket)?, told: None, asked: None })
    }

    /// Tells the list of peers when it is news, and asks how the links are when it is time. `peers`: `None` as long as nobody has said
    /// which there are; a list that nobody has made would end all channels that the proxy has just taken over.
    pub fn speak(&mut self, peers: Option<&Vec<PeerAddress>>, now: Instant) {
        let news = peers.filter(|peers| self.told.as_ref() != Some(peers));
        let is_due = self.asked.is_none_or(|asked| now.saturating_duration_since(asked) >= ASK_EVERY);
        // What waits is sent by `hear`, and news are told behind it.
        if !self.end.has_room() || (news.is_none() && !is_due) {
            return;
        }
        self.asked = Some(now);
        match self.end.say(ToProxy { peers: news.cloned() }) {
            Ok(()) => self.told = news.cloned().or(self.told.take()),
            // That it ended is seen elsewhere.
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {}
            Err(error) => tracing::warn!(%error, "a proxy was not told"),
        }
    }

    /// The next that the proxy says, if there is something.
    pub fn hear(&mut self) -> Said<FromProxy> {
        self.end.receive()
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
        let peer = |id| PeerAddress { name: format!("n{id}"), id, transport: None, addr: TCP.to_owned(), tls: None };
        (1..=count).map(peer).collect()
    }

    fn with_a_proxy() -> (Conversation, End<ToProxy>) {
        let (ours, theirs) = sys::seqpacket::pair().unwrap();
        (Conversation::new(ours).unwrap(), End::new(theirs).unwrap())
    }

    #[test]
    fn proxy_hears_of_no_list_before_there_is_one_then_of_each_once_also_of_an_empty_one() {
        let (mut conversation, mut proxy) = with_a_proxy();
        let now = Instant::now();
        let (none, some) = (peers(0), peers(2));
        for (list, heard) in [
            (None, Said::Message(ToProxy::default())),
            (Some(&none), Said::Message(ToProxy { peers: Some(none.clone()) })),
            (Some(&none), Said::Nothing),
            (Some(&some), Said::Message(ToProxy { peers: Some(some.clone()) })),
            (Some(&some), Said::Nothing),
        ] {
            conversation.speak(list, now);
            assert_eq!(proxy.receive(), heard);
        }
        conversation.speak(Some(&some), now + ASK_EVERY);
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
            conversation.speak(Some(&lists[0]), now);
            conversation.told = None;
            copies += 1;
        }
        let mut heard = 0;
        loop {
            conversation.speak(Some(&lists[1]), now);
            assert_eq!(conversation.hear(), Said::Nothing);
            match proxy.receive() {
                Said::Message(ToProxy { peers: Some(list) }) if list == lists[0] => heard += 1,
                Said::Message(ToProxy { peers: Some(list) }) if list == lists[1] => break,
                Said::Nothing => {}
                other => panic!("{other:?}"),
            }
        }
        assert_eq!(heard, copies);
    }
}
