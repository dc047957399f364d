//! Why there are fewer members than there should be, in words: what people should know who think that the engine
//! survives the loss of a member.
//!
//! A node says what it could mend itself: that it has no etcd, or one that does not go with those of the members.

use super::step::{View, wanted};
use super::version::Fit;

/// As node `own` says it. `None`: there are enough, or others are the reason.
pub fn words(view: &View, own: &str) -> Option<String> {
    let (has, wanted) = (view.members.len(), wanted(view.nodes.len()));
    if has >= wanted || view.members.contains_key(own) {
        return None;
    }
    let begin = format!("engine: {has} of {wanted} members run");
    let Some(offer) = view.offers.get(own) else {
        return Some(format!(
            "{begin}, and this node has no etcd (Debian: apt-get install etcd-server; then systemctl restart dvsd)"
        ));
    };
    let (mine, oldest) = (offer.version()?, view.oldest()?);
    let series = format!("{}.{}", oldest.major, oldest.minor);
    match view.fit(own) {
        Fit::Fits => None,
        Fit::TooOld => Some(format!(
            "{begin}, and this node's etcd {mine} cannot join them: they have {oldest} and let in none that is older \
             (install etcd {series} here, then systemctl restart dvsd)"
        )),
        Fit::TooNew => Some(format!(
            "{begin}, and this node's etcd {mine} cannot join them: they have {oldest}, and etcd goes from one minor \
             version to the next (upgrade etcd on the members first, or install etcd {series} here; then systemctl \
             restart dvsd)"
        )),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use mgmt_api::MemberAddress;

    use super::super::{MemberRecord, Offer, Stage};
    use super::*;

    /// Nodes with what etcd they have, the first of which runs a member.
    fn view(nodes: &[(&str, Option<&str>)]) -> View {
        let mut view = View::default();
        for (node, etcd) in nodes {
            let address = MemberAddress { client: format!("{node}:2379"), peer: format!("{node}:2380") };
            view.nodes.insert((*node).to_owned());
            view.alive.insert((*node).to_owned());
            if view.members.is_empty() {
                let record = MemberRecord {
                    address: address.clone(),
                    stage: Stage::Voter,
                    initial: BTreeMap::new(),
                    membership: 0,
                };
                view.members.insert((*node).to_owned(), record);
            }
            if let Some(version) = etcd {
                let version = (!version.is_empty()).then(|| (*version).to_owned());
                view.offers.insert((*node).to_owned(), Offer { address, version });
            }
        }
        view
    }

    #[test]
    fn node_whose_etcd_is_older_than_the_members_says_so_and_what_to_do() {
        let view = view(&[("n1", Some("3.5.16")), ("n2", Some("3.4.23")), ("n3", Some("3.4.23"))]);
        let said = words(&view, "n2").unwrap();
        for part in ["1 of 3 members run", "etcd 3.4.23", "they have 3.5.16", "install etcd 3.5 here", "restart dvsd"] {
            assert!(said.contains(part), "{part}: {said}");
        }
        assert_eq!(words(&view, "n1"), None, "it runs one");
    }

    #[test]
    fn node_whose_etcd_is_too_new_says_who_comes_first() {
        let view = view(&[("n1", Some("3.4.23")), ("n2", Some("3.6.1")), ("n3", Some("3.4.23"))]);
        let said = words(&view, "n2").unwrap();
        assert!(said.contains("upgrade etcd on the members first") && said.contains("3.6.1"), "{said}");
        assert_eq!(words(&view, "n3"), None, "it would be taken");
    }

    #[test]
    fn node_without_etcd_says_so_as_long_as_members_are_missing() {
        let three = view(&[("n1", Some("3.4.23")), ("n2", None), ("n3", Some(""))]);
        assert!(words(&three, "n2").unwrap().contains("apt-get install etcd-server"));
        assert_eq!(words(&three, "n3"), None, "of an earlier release, or nobody knows its version");
        let two = view(&[("n1", Some("3.4.23")), ("n2", None)]);
        assert_eq!(words(&two, "n2"), None, "of two nodes one runs it");
    }
}
