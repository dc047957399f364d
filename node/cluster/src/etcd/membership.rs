//! Which members etcd has: what changes them, one at a time.
//!
//! Each change may be asked for again: adding who is there, promoting who is a voter and removing who is gone is done
//! already. A member begins as a learner, which counts for nothing until it has what the others have; so adding one to
//! three never makes a majority harder to have than it was.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::caller::Method;
use super::messages as m;
use super::transaction::says;
use super::{EtcdEngine, Member};
use crate::engine::EngineError;

const ADD: Method = Method::one("/etcdserverpb.Cluster/MemberAdd");
const REMOVE: Method = Method::one("/etcdserverpb.Cluster/MemberRemove");
const LIST: Method = Method::one("/etcdserverpb.Cluster/MemberList");
const PROMOTE: Method = Method::one("/etcdserverpb.Cluster/MemberPromote");

/// A member, as the cluster lists it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Listed {
    pub id: u64,
    /// Where the others reach it: `https://10.0.0.1:2380`. One, as members that nodes run have.
    pub peer_url: String,
    pub is_learner: bool,
    /// It has told its name to the others.
    pub has_started: bool,
}

/// What came of a promotion.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Promotion {
    Done,
    /// It does not have yet what the leader has; again later.
    Behind,
}

impl EtcdEngine {
    /// From now on these are asked. What is under way with another one is asked again, watches go on elsewhere.
    pub fn set_members(&self, members: Vec<Member>) -> Result<(), EngineError> {
        self.call(|caller, _| async move {
            caller.connection.set_members(members).await;
            Ok(())
        })
    }

    /// Nothing is heard of these hosts, as far as is known: members there are asked only when no other one answers.
    /// What is under way there is asked elsewhere.
    pub fn set_silent(&self, hosts: BTreeSet<String>) {
        let caller = Arc::clone(&self.caller);
        caller.connection.set_silent(hosts);
        self.runtime.spawn(async move { caller.connection.leave_silent().await });
    }

    /// As the member that was asked knows them.
    pub fn listed_members(&self) -> Result<Vec<Listed>, EngineError> {
        self.call(|caller, _| async move {
            let all: m::MembersResponse = caller.repeat(LIST, &m::MemberListRequest {}).await?;
            Ok(all.members.into_iter().map(listed).collect())
        })
    }

    /// Lets a member come that will be found at this address. May be repeated.
    pub fn add_learner(&self, peer_url: &str) -> Result<(), EngineError> {
        let peer_urls = vec![peer_url.to_owned()];
        self.call(|caller, _| async move {
            let asked = m::MemberAddRequest { peer_urls, is_learner: true };
            let added = caller.repeat::<_, m::MemberAddResponse>(ADD, &asked).await;
            // Its number is made of its address and the second in which it was asked for.
            let added = unless_said(added.map(drop), "etcdserver: member ID already exist");
            unless_said(added, "etcdserver: Peer URLs already exists")
        })
    }

    /// Makes a learner a voter. May be repeated.
    pub fn promote(&self, id: u64) -> Result<Promotion, EngineError> {
        self.call(move |caller, _| async move {
            match caller.repeat::<_, m::MembersResponse>(PROMOTE, &m::MemberRequest { id }).await {
                Err(EngineError::Storage(said)) if says(&*said, BEHIND) => Ok(Promotion::Behind),
                done => unless_said(done.map(drop), "etcdserver: can only promote a learner member")
                    .map(|()| Promotion::Done),
            }
        })
    }

    /// Ends a membership for ever: the member's data are worth nothing from then on. May be repeated.
    pub fn remove_member(&self, id: u64) -> Result<(), EngineError> {
        self.call(move |caller, _| async move {
            let removed = caller.repeat::<_, m::MembersResponse>(REMOVE, &m::MemberRequest { id }).await;
            unless_said(removed.map(drop), "etcdserver: member not found")
        })
    }
}

const BEHIND: &str = "etcdserver: can only promote a learner member which is in sync with leader";

/// A refusal with these words says that it is done already.
fn unless_said(done: Result<(), EngineError>, words: &str) -> Result<(), EngineError> {
    match done {
        Err(EngineError::Storage(said)) if says(&*said, words) => Ok(()),
        done => done,
    }
}

fn listed(member: m::MemberMessage) -> Listed {
    Listed {
        id: member.id,
        peer_url: member.peer_urls.into_iter().next().unwrap_or_default(),
        is_learner: member.is_learner,
        has_started: !member.name.is_empty(),
    }
}
