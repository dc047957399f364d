//! A machine comes with its token, and is told all it needs to be a node: one transaction decides.

use std::net::IpAddr;

use cluster::{Compare, Engine, EngineError, Op, Outcome};
use mgmt_api::{EngineAnswer, ErrorBody, ErrorKind, JoinAnswer, JoinRequest};
use versions::Release;

use super::authority::{self, AUTHORITY, AuthorityError};
use super::tokens::{self, Refusal, Used};
use crate::level::{self, LevelError, Newcomer};
use crate::quorum;
use crate::records::{self, encode, now_s};

/// Others may be faster this often; each time one of them has got on.
const ATTEMPTS: usize = 100;

/// Lets the machine in, or says why not. May be repeated with the same request.
pub fn admit(
    engine: &dyn Engine,
    cluster: &str,
    where_is_engine: EngineAnswer,
    asked: &JoinRequest,
) -> Result<JoinAnswer, ErrorBody> {
    let address = check(asked)?;
    for _ in 0..ATTEMPTS {
        let (authority, authority_at) = authority::demand(engine).map_err(refused)?;
        let request_hash = tokens::hash(asked.request_pem.as_bytes());
        let token = tokens::read(engine, &asked.id).map_err(|error| refused(error.into()))?;
        let kept = token.as_ref().map(|(token, _)| token);
        tokens::judge(kept, &asked.secret, &asked.node, &request_hash, now_s())
            .map_err(|why| turned_away(asked, why))?;
        let Some((mut token, token_at)) = token else { continue };
        if token.used.is_some()
            && engine.read(&records::removed_key(&asked.node)).map_err(|error| refused(error.into()))?.is_some()
        {
            // It was let in, and taken out since.
            return Err(turned_away(asked, Refusal::Used));
        }
        if engine.read(&quorum::member_key(&asked.node)).map_err(|error| refused(error.into()))?.is_some() {
            return Err(ErrorBody::new(
                ErrorKind::Conflict,
                format!("of a node '{}' before a member of the engine is left", asked.node),
            )
            .hint("again in a moment, once it is gone; or another name"));
        }
        let has_others = authority::has_certificates(engine, &asked.node).map_err(refused)?;
        if has_others && token.used.is_none() {
            return Err(taken(&asked.node));
        }
        let member = engine.read(&records::member_key(&asked.node)).map_err(|error| refused(error.into()))?;
        let same_member = match member {
            None => Compare::Absent { key: records::member_key(&asked.node) },
            // All its certificates have expired: whoever made a token for this name lets it come back.
            Some(entry) if !has_others || token.used.is_some() => {
                let lives =
                    engine.read(&records::node_key(&asked.node)).map_err(|error| refused(error.into()))?.is_some();
                if lives {
                    return Err(taken(&asked.node));
                }
                if token.node.as_ref() != Some(&asked.node) {
                    return Err(expired(&asked.node));
                }
                Compare::Modified { key: entry.key, at: entry.modified }
            }
            Some(_) => return Err(taken(&asked.node)),
        };
        let (same_level, level) = level::admit(engine, &newcomer(asked)).map_err(|why| apart(asked, why))?;
        let issued = authority.sign(&asked.request_pem, &asked.node, address).map_err(refused)?;
        let (issued_compare, issued_op) = authority::note_issued(engine, &asked.node, &issued).map_err(refused)?;
        token.used = Some(Used { node: asked.node.clone(), request_hash });
        let compares = [
            Compare::Modified { key: AUTHORITY.to_owned(), at: authority_at },
            Compare::Modified { key: tokens::key(&asked.id), at: token_at },
            same_member,
            Compare::Absent { key: quorum::member_key(&asked.node) },
            issued_compare,
            same_level,
        ];
        let ops = [
            level,
            Op::put(tokens::key(&asked.id), encode(&token)),
            issued_op,
            Op::delete(records::removed_key(&asked.node)),
        ];
        let revocations_pem = authority.revocations_pem().map_err(refused)?;
        let done = engine.transact(&compares, &ops).map_err(|error| refused(error.into()))?;
        if let Outcome::Done(_) = done {
            return Ok(JoinAnswer {
                cluster: cluster.to_owned(),
                certificate_pem: issued.certificate_pem,
                roots_pem: authority.roots_pem(),
                revocations_pem,
                engine: where_is_engine,
            });
        }
    }
    Err(refused(AuthorityError::Contended))
}

fn check(asked: &JoinRequest) -> Result<IpAddr, ErrorBody> {
    let bad = |what: String, hint: &str| Err(ErrorBody::new(ErrorKind::BadRequest, what).hint(hint));
    if !mgmt_api::valid_name(&asked.node) {
        let what = format!("{:?} cannot be a node's name", asked.node);
        return bad(what, "1 to 32 of a-z, 0-9 and -, beginning with a letter: --node n2");
    }
    match asked.address.parse::<IpAddr>() {
        Ok(address) if !address.is_unspecified() && !address.is_multicast() => Ok(address),
        _ => bad(format!("other nodes cannot reach {:?}", asked.address), "an address of the machine: --advertise"),
    }
}

fn newcomer(asked: &JoinRequest) -> Newcomer {
    Newcomer {
        node: asked.node.clone(),
        release: Release { release: asked.version.clone(), follows: asked.follows.clone() },
        reads: asked.records.unwrap_or(records::of_the_first_release()),
    }
}

fn apart(asked: &JoinRequest, why: LevelError) -> ErrorBody {
    match why {
        LevelError::Engine(error) => engine_failed(error),
        why => ErrorBody::new(ErrorKind::Conflict, format!("the machine does not become node '{}'", asked.node))
            .because(why.to_string())
            .hint("there, the release of dvs that the cluster runs: dvs cluster level, on one of its nodes"),
    }
}

fn turned_away(asked: &JoinRequest, why: Refusal) -> ErrorBody {
    let new = "dvs node token, on a node of the cluster, makes another one";
    let because = match why {
        Refusal::Unknown => "the cluster does not know the token",
        Refusal::Ended => "the token has ended",
        Refusal::Used => "another machine came with the token",
        Refusal::ForAnother => "the token is for a node of another name",
    };
    ErrorBody::new(ErrorKind::Forbidden, format!("the machine does not become node '{}'", asked.node))
        .because(because)
        .hint(new)
}

fn expired(node: &str) -> ErrorBody {
    ErrorBody::new(ErrorKind::Conflict, format!("there is a node '{node}', and its certificates have expired")).hint(
        format!("if this machine is that node, a token for it: dvs node token --node {node}; or another name (--node)"),
    )
}

fn taken(node: &str) -> ErrorBody {
    ErrorBody::new(ErrorKind::Conflict, format!("there is a node '{node}' already")).hint(format!(
        "another name (--node), or first, if that machine is gone for good: dvs node remove {node} --lost"
    ))
}

/// What went wrong here.
pub fn refused(error: AuthorityError) -> ErrorBody {
    let words = crate::supervise::causes(&error);
    match error {
        AuthorityError::None => ErrorBody::new(ErrorKind::Conflict, "nobody joins this cluster by a token")
            .because(words)
            .hint("dvs node cert makes a node's certificates, with the authority that dvs node ca made"),
        AuthorityError::Engine(error) => engine_failed(error),
        AuthorityError::Issue(error) => ErrorBody::new(ErrorKind::BadRequest, "no certificate was made")
            .because(crate::supervise::causes(&error))
            .hint(error.hint()),
        _ => ErrorBody::new(ErrorKind::Unavailable, "no certificate was made")
            .because(words)
            .hint("again; the daemon's log"),
    }
}

fn engine_failed(error: EngineError) -> ErrorBody {
    crate::api::failure::Failure::from(error).0
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use cluster::local::{LocalConfig, LocalEngine};
    use pki::{Authority, CertificateSummary, NodeKey};

    use super::*;

    fn own() -> CertificateSummary {
        let now = std::time::SystemTime::now();
        CertificateSummary { serial: "4a".to_owned(), from: now, until: now + std::time::Duration::from_secs(60) }
    }

    fn engine() -> (tempfile::TempDir, LocalEngine) {
        let dir = tempfile::tempdir_in("/dev/shm").unwrap();
        let config = LocalConfig::new(dir.path().join("engine.db"), dir.path().join("volatile"));
        let engine = LocalEngine::open(config).unwrap();
        (dir, engine)
    }

    fn with_an_authority(engine: &LocalEngine, dir: &std::path::Path) {
        let made = dir.join("authority");
        Authority::create(&made, "home").unwrap();
        authority::take_over(engine, &made, "n1", &own()).unwrap();
        assert!(!made.exists(), "its key lies in the engine alone");
    }

    fn request(secret: &tokens::Secret, node: &str) -> JoinRequest {
        JoinRequest {
            id: secret.id.clone(),
            secret: secret.secret.clone(),
            node: node.to_owned(),
            address: "10.0.0.9".to_owned(),
            request_pem: NodeKey::generate().unwrap().request_pem().unwrap(),
            version: Release::own().release,
            follows: Release::own().follows,
            records: Some(versions::RECORDS.speaks),
        }
    }

    fn admit_to(engine: &LocalEngine, asked: &JoinRequest) -> Result<JoinAnswer, ErrorBody> {
        admit(engine, "home", EngineAnswer::Managed { members: BTreeMap::new() }, asked)
    }

    #[test]
    fn machine_comes_in_once_and_may_ask_again_for_a_lost_answer() {
        let (dir, engine) = engine();
        with_an_authority(&engine, dir.path());
        let secret = tokens::create(&engine, now_s() + 60, None).unwrap();
        let asked = request(&secret, "n2");
        let first = admit_to(&engine, &asked).unwrap();
        let second = admit_to(&engine, &asked).expect("the answer was lost");
        let serials =
            [&first, &second].map(|answer| CertificateSummary::of_pem(&answer.certificate_pem).unwrap().serial);
        assert_ne!(serials[0], serials[1]);
        assert_eq!(admit_to(&engine, &request(&secret, "n2")).unwrap_err().kind, ErrorKind::Forbidden, "another key");
        let other = tokens::create(&engine, now_s() + 60, None).unwrap();
        assert_eq!(
            admit_to(&engine, &request(&other, "n2")).unwrap_err().kind,
            ErrorKind::Conflict,
            "it is on its way"
        );
        // Both certificates are revoked when the node is.
        let (compares, ops) = authority::revoke(&engine, "n2").unwrap();
        assert!(matches!(engine.transact(&compares, &ops), Ok(Outcome::Done(_))));
        let (record, _) = authority::demand(&engine).unwrap();
        let revoked: Vec<&str> = record.revoked.iter().map(|revoked| revoked.serial.as_str()).collect();
        assert_eq!(revoked, serials);
        assert!(record.revocations_pem().unwrap().contains("X509 CRL"));
        // Taken out, it does not let itself in again with what it has.
        engine.transact(&[], &[Op::put(records::removed_key("n2"), b"{}".to_vec())]).unwrap();
        assert_eq!(admit_to(&engine, &asked).unwrap_err().kind, ErrorKind::Forbidden);
        admit_to(&engine, &request(&other, "n2")).expect("with a new token it comes in");
    }

    #[test]
    fn nobody_comes_in_under_the_name_of_a_node_or_with_an_address_that_is_none() {
        let (dir, engine) = engine();
        let secret = tokens::create(&engine, now_s() + 60, None).unwrap();
        let by_hand = admit_to(&engine, &request(&secret, "n2")).unwrap_err();
        assert_eq!(by_hand.kind, ErrorKind::Conflict, "no authority: {by_hand}");
        with_an_authority(&engine, dir.path());
        engine.transact(&[], &[Op::put(records::member_key("n2"), b"{}".to_vec())]).unwrap();
        assert_eq!(admit_to(&engine, &request(&secret, "n2")).unwrap_err().kind, ErrorKind::Conflict);
        for address in ["", "0.0.0.0", "224.0.0.1", "n2"] {
            let asked = JoinRequest { address: address.to_owned(), ..request(&secret, "n3") };
            assert_eq!(admit_to(&engine, &asked).unwrap_err().kind, ErrorKind::BadRequest, "{address}");
        }
        let asked = JoinRequest { request_pem: "no".to_owned(), ..request(&secret, "n3") };
        assert_eq!(admit_to(&engine, &asked).unwrap_err().kind, ErrorKind::BadRequest);
        admit_to(&engine, &request(&secret, "n3")).expect("nothing was used up by what was refused");
    }

    #[test]
    fn node_whose_certificates_have_all_expired_comes_back_with_a_token_for_its_name() {
        let (dir, engine) = engine();
        with_an_authority(&engine, dir.path());
        engine.transact(&[], &[Op::put(records::member_key("n2"), b"{}".to_vec())]).unwrap();
        let any = tokens::create(&engine, now_s() + 60, None).unwrap();
        let refused = admit_to(&engine, &request(&any, "n2")).unwrap_err();
        assert!(refused.hint.as_ref().unwrap().contains("--node n2"), "{refused}");
        let its_own = tokens::create(&engine, now_s() + 60, Some("n2".to_owned())).unwrap();
        // It lives: whoever comes is another machine.
        engine.transact(&[], &[Op::put(records::node_key("n2"), b"{}".to_vec())]).unwrap();
        assert_eq!(admit_to(&engine, &request(&its_own, "n2")).unwrap_err().kind, ErrorKind::Conflict);
        engine.transact(&[], &[Op::delete(records::node_key("n2"))]).unwrap();
        let asked = request(&its_own, "n2");
        admit_to(&engine, &asked).unwrap();
        admit_to(&engine, &asked).expect("the answer was lost");
        // Now it has one that is good.
        let other = tokens::create(&engine, now_s() + 60, Some("n2".to_owned())).unwrap();
        assert_eq!(admit_to(&engine, &request(&other, "n2")).unwrap_err().kind, ErrorKind::Conflict);
    }

    #[test]
    fn machine_whose_release_cannot_be_in_the_cluster_is_told_so_and_its_token_stays_good() {
        let (dir, engine) = engine();
        with_an_authority(&engine, dir.path());
        let secret = tokens::create(&engine, now_s() + 60, None).unwrap();
        let (compare, op) = level::admit(&engine, &Newcomer::own("n1")).unwrap();
        engine.transact(&[compare], &[op]).unwrap();
        let old = JoinRequest { records: Some(versions::Versions::only(1)), ..request(&secret, "n2") };
        let refused = admit_to(&engine, &old).unwrap_err();
        assert_eq!(refused.kind, ErrorKind::Conflict);
        let words = refused.to_string();
        assert!(words.contains("format 3") && words.contains("reads version 1"), "{words}");
        admit_to(&engine, &request(&secret, "n2")).expect("with the release of the cluster it comes in");
    }

    #[test]
    fn of_two_machines_with_one_token_one_comes_in() {
        let (dir, engine) = engine();
        with_an_authority(&engine, dir.path());
        for round in 0..8 {
            let secret = tokens::create(&engine, now_s() + 60, None).unwrap();
            let come = |node: &str| {
                let asked = request(&secret, &format!("{node}-{round}"));
                let engine = &engine;
                move || admit_to(engine, &asked).is_ok()
            };
            let came = std::thread::scope(|scope| {
                [scope.spawn(come("n7")), scope.spawn(come("n8"))].map(|machine| machine.join().unwrap())
            });
            assert_eq!(came.iter().filter(|came| **came).count(), 1);
        }
    }
}
