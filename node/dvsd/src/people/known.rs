//! What this node knows of who has an access, and who of them is connected to it.
//!
//! The records come by the engine's follower, so nobody waits for the engine to come in, also while it is away; and
//! whose access is taken back is gone from here as soon as the follower says so. Of a person this node holds so many
//! connections at most, those that became streams among them.

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use cluster::follow::Change;
use cluster::{Event, EventKind};
use mgmt_api::{AccessRole, AccessToken, Means};
use parking_lot::{Mutex, RwLock};
use rustls_pki_types::CertificateDer;
use tokio::sync::watch;

use super::limits::network_of;
use super::records::{ACCESS, AccessRecord, Proof, Refusal, end_of, judge_token};
use crate::observed::understood;
use crate::records::now_s;

/// Connections of people together, of one of them, from one address.
const CONNECTIONS_MAX: usize = 512;
const CONNECTIONS_OF_ONE_MAX: usize = 64;
const CONNECTIONS_FROM_ONE_MAX: usize = 256;
/// How often it is looked whether an access has ended by the clock.
const LOOK: Duration = Duration::from_secs(10);

/// Who somebody turned out to be.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Identity {
    pub name: String,
    record: AccessRecord,
}

impl Identity {
    pub fn role(&self) -> AccessRole {
        self.record.role
    }

    pub fn means(&self) -> Means {
        self.record.means()
    }

    pub fn ends_s(&self) -> u64 {
        self.record.ends_s
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum TooMany {
    #[error("people have {CONNECTIONS_MAX} connections with this node")]
    Together,
    #[error("whoever has this access has {CONNECTIONS_OF_ONE_MAX} connections with this node")]
    OfOne,
    #[error("{CONNECTIONS_FROM_ONE_MAX} connections of people come from this address")]
    FromOne,
}

#[derive(Default)]
pub struct People {
    known: RwLock<BTreeMap<String, AccessRecord>>,
    changes: watch::Sender<u64>,
    guests: Mutex<Guests>,
}

#[derive(Default)]
struct Guests {
    together: usize,
    of_one: HashMap<String, usize>,
    from_one: HashMap<IpAddr, usize>,
}

/// A connection of a person. Its place is free when the last copy is gone.
pub struct Guest {
    pub identity: Identity,
    network: IpAddr,
    people: Arc<People>,
}

impl People {
    /// What the engine's follower says.
    pub fn take(&self, change: &Change) {
        match change {
            Change::All(entries) => {
                let access = entries.iter().filter_map(|entry| {
                    let name = entry.key.strip_prefix(ACCESS)?;
                    Some((name.to_owned(), understood(&entry.key, &entry.value)?))
                });
                *self.known.write() = access.collect();
            }
            Change::One(Event { key, kind, .. }) => {
                let Some(name) = key.strip_prefix(ACCESS) else { return };
                let record = match kind {
                    EventKind::Put { value, .. } => understood::<AccessRecord>(key, value),
                    EventKind::Delete => None,
                };
                match record {
                    Some(record) => drop(self.known.write().insert(name.to_owned(), record)),
                    // Nor is one good any more that makes no sense.
                    None => drop(self.known.write().remove(name)),
                }
            }
            Change::Unknown(_) => return,
        }
        self.changes.send_modify(|count| *count += 1);
    }

    pub fn by_token(&self, token: &AccessToken, now: u64) -> Result<Identity, Refusal> {
        let record = self.known.read().get(&token.name).cloned();
        judge_token(record.as_ref(), &token.secret, now)?;
        record.map(|record| Identity { name: token.name.clone(), record }).ok_or(Refusal::Unknown)
    }

    /// Whoever shows the certificate was found to have its key.
    pub fn by_certificate(&self, certificate: &CertificateDer<'_>, now: u64) -> Result<Identity, Refusal> {
        let shown = pki::Fingerprint::of(certificate).to_string();
        let known = self.known.read();
        let is_it = |record: &AccessRecord| matches!(&record.proof, Proof::Certificate { fingerprint } if *fingerprint == shown);
        let (name, record) = known.iter().find(|(_, record)| is_it(record)).ok_or(Refusal::Unknown)?;
        end_of(record, now)?;
        Ok(Identity { name: name.clone(), record: record.clone() })
    }

    /// Whether somebody who came in before would come in again.
    pub fn is_good(&self, identity: &Identity, now: u64) -> bool {
        self.known.read().get(&identity.name) == Some(&identity.record) && identity.record.ends_s > now
    }

    /// Waits until this node has heard of what was just made.
    pub async fn heard_of(&self, name: &str, record: &AccessRecord) {
        let mut changes = self.changes.subscribe();
        while self.known.read().get(name) != Some(record) && changes.changed().await.is_ok() {}
    }

    /// Takes a place for a connection.
    pub fn receive(self: &Arc<People>, identity: Identity, address: IpAddr) -> Result<Arc<Guest>, TooMany> {
        let network = network_of(address);
        let mut guests = self.guests.lock();
        if guests.together >= CONNECTIONS_MAX {
            return Err(TooMany::Together);
        }
        if guests.of_one.get(&identity.name).is_some_and(|count| *count >= CONNECTIONS_OF_ONE_MAX) {
            return Err(TooMany::OfOne);
        }
        if guests.from_one.get(&network).is_some_and(|count| *count >= CONNECTIONS_FROM_ONE_MAX) {
            return Err(TooMany::FromOne);
        }
        guests.together += 1;
        *guests.of_one.entry(identity.name.clone()).or_default() += 1;
        *guests.from_one.entry(network).or_default() += 1;
        drop(guests);
        Ok(Arc::new(Guest { identity, network, people: Arc::clone(self) }))
    }

    /// Connections of people, for the metrics.
    pub fn guests(&self) -> usize {
        self.guests.lock().together
    }
}

impl Guest {
    /// Waits until the access is good no more.
    pub async fn over(&self) {
        let mut changes = self.people.changes.subscribe();
        while self.people.is_good(&self.identity, now_s()) {
            // The end is one by the clock of the day, which may be set meanwhile.
            let left = Duration::from_secs(self.identity.ends_s().saturating_sub(now_s()) + 1).min(LOOK);
            let _ = tokio::time::timeout(left, changes.changed()).await;
        }
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        fn one_less<K: std::hash::Hash + Eq>(counts: &mut HashMap<K, usize>, who: &K) {
            let left = counts.get_mut(who).map_or(0, |count| {
                *count = count.saturating_sub(1);
                *count
            });
            if left == 0 {
                counts.remove(who);
            }
        }
        let mut guests = self.people.guests.lock();
        guests.together = guests.together.saturating_sub(1);
        one_less(&mut guests.of_one, &self.identity.name);
        one_less(&mut guests.from_one, &self.network);
    }
}

#[cfg(test)]
mod tests {
    use cluster::Entry;

    use super::*;
    use crate::people::records::{key, new_token};
    use crate::records::encode;

    fn access(name: &str, ends_s: u64) -> (AccessToken, AccessRecord) {
        let (token, proof) = new_token(name).unwrap();
        (token, AccessRecord { role: AccessRole::Operator, ends_s, made_s: 1, made_by: "root".to_owned(), proof })
    }

    fn put(people: &People, name: &str, record: &AccessRecord) {
        let kind = EventKind::Put { value: encode(record), created: Default::default(), lease: None };
        people.take(&Change::One(Event { key: key(name), kind, revision: Default::default() }));
    }

    fn delete(people: &People, name: &str) {
        people.take(&Change::One(Event { key: key(name), kind: EventKind::Delete, revision: Default::default() }));
    }

    #[test]
    fn who_was_taken_back_or_made_anew_does_not_come_in_with_what_was_before() {
        let (people, (token, record)) = (People::default(), access("ada", 100));
        assert_eq!(people.by_token(&token, 50), Err(Refusal::Unknown));
        put(&people, "ada", &record);
        let identity = people.by_token(&token, 50).unwrap();
        assert_eq!((identity.name.as_str(), identity.role()), ("ada", AccessRole::Operator));
        assert!(people.is_good(&identity, 99) && !people.is_good(&identity, 100));
        delete(&people, "ada");
        assert!(!people.is_good(&identity, 50));
        let (other_token, other) = access("ada", 100);
        put(&people, "ada", &other);
        assert!(!people.is_good(&identity, 50), "the same name, another access");
        assert_eq!(people.by_token(&token, 50), Err(Refusal::Unknown));
        assert!(people.by_token(&other_token, 50).is_ok());
        // A list from the beginning forgets who is not in it.
        people.take(&Change::All(Vec::<Entry>::new()));
        assert_eq!(people.by_token(&other_token, 50), Err(Refusal::Unknown));
    }

    #[test]
    fn record_that_makes_no_sense_lets_nobody_in() {
        let (people, (token, record)) = (People::default(), access("ada", 100));
        put(&people, "ada", &record);
        let value = b"{\"role\":\"king\"}".to_vec();
        let kind = EventKind::Put { value, created: Default::default(), lease: None };
        people.take(&Change::One(Event { key: key("ada"), kind, revision: Default::default() }));
        assert_eq!(people.by_token(&token, 50), Err(Refusal::Unknown));
    }

    #[test]
    fn one_person_takes_no_places_from_others() {
        let people = Arc::new(People::default());
        let far_end = now_s() + 1000;
        let ((ada, of_ada), (bob, of_bob)) = (access("ada", far_end), access("bob", far_end));
        put(&people, "ada", &of_ada);
        put(&people, "bob", &of_bob);
        let come = |token: &AccessToken, address: &str| {
            people.receive(people.by_token(token, now_s()).unwrap(), address.parse().unwrap())
        };
        let mut there: Vec<_> = (0..CONNECTIONS_OF_ONE_MAX).map(|_| come(&ada, "192.0.2.1").unwrap()).collect();
        assert_eq!(come(&ada, "192.0.2.2").err(), Some(TooMany::OfOne));
        let of_bob = come(&bob, "192.0.2.1").unwrap();
        assert_eq!(people.guests(), CONNECTIONS_OF_ONE_MAX + 1);
        there.pop();
        there.push(come(&ada, "192.0.2.2").unwrap());
        drop((there, of_bob));
        let guests = people.guests.lock();
        assert!(guests.together == 0 && guests.of_one.is_empty() && guests.from_one.is_empty());
    }

    #[tokio::test]
    async fn guest_whose_access_is_taken_back_or_ends_is_over() {
        let people = Arc::new(People::default());
        let (token, record) = access("ada", now_s() + 1000);
        put(&people, "ada", &record);
        let guest = people.receive(people.by_token(&token, now_s()).unwrap(), [192, 0, 2, 1].into()).unwrap();
        assert!(tokio::time::timeout(Duration::from_millis(50), guest.over()).await.is_err());
        let also = Arc::clone(&people);
        let (over, ()) = tokio::join!(tokio::time::timeout(Duration::from_secs(5), guest.over()), async move {
            tokio::task::yield_now().await;
            delete(&also, "ada");
        });
        over.expect("it is over at once");
        let (token, record) = access("bob", now_s() + 1);
        put(&people, "bob", &record);
        let guest = people.receive(people.by_token(&token, now_s()).unwrap(), [192, 0, 2, 1].into()).unwrap();
        tokio::time::timeout(Duration::from_secs(5), guest.over()).await.expect("it ends by the clock");
    }
}
