//! Tokens, and the one thing that a peer without a certificate may ask for: to become a node.

use std::net::IpAddr;
use std::sync::Arc;

use axum::Json;
use axum::body::Body;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use mgmt_api::{
    AuthorityState, EngineAnswer, ErrorBody, ErrorKind, JoinAnswer, JoinRequest, JoinToken, NewToken, TOKEN_SECONDS,
    TokenInfo, TokenRequest,
};

use super::failure::{Failure, failure};
use super::{Api, blocking, parse, read_body};
use crate::config::API_PORT;
use crate::context::Context;
use crate::joining::rotation::{self, RotationError};
use crate::joining::{admission, authority, tokens};
use crate::quorum::{self, MemberRecord, Stage};
use crate::records::{self, now_s};

/// A request is a certificate's and a few names.
const STRANGERS_BYTES_MAX: usize = 64 << 10;
/// Anybody may ask, and the token in the request decides.
pub async fn join(State(api): State<Arc<Api>>, body: Body) -> Result<Json<JoinAnswer>, Failure> {
    let bytes = axum::body::to_bytes(body, STRANGERS_BYTES_MAX).await;
    let bytes = bytes.map_err(|_| failure(ErrorKind::BadRequest, "the request is too long", "dvs node join"))?;
    let asked: JoinRequest = parse(&bytes)?;
    // What is logged and looked up below is short, and of letters that do no harm.
    let is_hex = |text: &str| text.len() <= 64 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    if !is_hex(&asked.id)
        || !is_hex(&asked.secret)
        || !mgmt_api::valid_name(&asked.node)
        || asked.address.len() > 64
        || asked.version.len() > 32
        || asked.follows.len() > 32
    {
        return Err(failure(
            ErrorKind::BadRequest,
            "the request makes no sense: token, name or address",
            "dvs node join",
        ));
    }
    // It goes with the work, which goes on when whoever asked has gone.
    let permit = Arc::clone(&api.joins).try_acquire_owned();
    let permit = permit.map_err(|_| failure(ErrorKind::Unavailable, "many machines join at this moment", "again"))?;
    blocking(move || {
        let _permit = permit;
        let context = &api.context;
        let engine = where_is_engine(context)?;
        let answer = admission::admit(&*context.engine, &context.config.cluster, engine, &asked);
        match &answer {
            Ok(_) => tracing::info!(node = asked.node, address = asked.address, token = asked.id, "a machine joined"),
            Err(why) => tracing::warn!(node = asked.node, token = asked.id, %why, "a machine did not join"),
        }
        Ok(Json(answer?))
    })
    .await
}

/// What a new node is told.
fn where_is_engine(context: &Context) -> Result<EngineAnswer, Failure> {
    let Some(etcd) = &context.etcd else {
        return Err(Failure(
            ErrorBody::new(ErrorKind::Conflict, "this cluster stays on one machine")
                .because("its engine is a file there")
                .hint("dvs cluster move-engine moves it to etcd; containers go on meanwhile"),
        ));
    };
    if etcd.managed.is_none() {
        let members = etcd.members.iter().map(ToString::to_string).collect();
        return Ok(EngineAnswer::Etcd { members, root: etcd.root.clone(), has_user: etcd.user.is_some() });
    }
    let entries = context.engine.list(quorum::MEMBERS)?.entries;
    let mut members = std::collections::BTreeMap::new();
    for entry in &entries {
        let record: MemberRecord = records::decode(entry)?;
        if matches!(record.stage, Stage::Learner | Stage::Voter) {
            members.insert(entry.key.trim_start_matches(quorum::MEMBERS).to_owned(), record.address);
        }
    }
    Ok(EngineAnswer::Managed { members })
}

pub async fn create_token(State(api): State<Arc<Api>>, body: Body) -> Result<(StatusCode, Json<NewToken>), Failure> {
    let asked: TokenRequest = parse(&read_body(body).await?)?;
    if !TOKEN_SECONDS.contains(&asked.ttl_s) {
        let (least, most) = (TOKEN_SECONDS.start(), TOKEN_SECONDS.end() / 86_400);
        let what = format!("a token is good for {least} seconds to {most} days");
        return Err(failure(ErrorKind::BadRequest, what, "--ttl 1h"));
    }
    if let Some(name) = asked.node.as_ref().filter(|name| !mgmt_api::valid_name(name)) {
        let what = format!("{name:?} cannot be a node's name");
        return Err(failure(ErrorKind::BadRequest, what, "1 to 32 of a-z, 0-9 and -, beginning with a letter"));
    }
    blocking(move || {
        let context = &api.context;
        // Whether anybody can join with it at all.
        where_is_engine(context)?;
        let (authority, _) = authority::demand(&*context.engine).map_err(admission::refused)?;
        let root = authority.roots.first().map(|root| root.certificate_pem.clone()).unwrap_or_default();
        let fingerprint =
            pki::fingerprint(&root).map_err(|error| admission::refused(authority::AuthorityError::Unusable(error)))?;
        let ends_s = now_s() + asked.ttl_s;
        let made = tokens::create(&*context.engine, ends_s, asked.node.clone()).map_err(|error| match error {
            tokens::TokenError::Engine(error) => Failure::from(error),
            error => failure(ErrorKind::Unavailable, error.to_string(), "dvs node token ls, and dvs node token rm"),
        })?;
        let token = JoinToken { id: made.id, secret: made.secret, fingerprint: fingerprint.to_string() };
        let address = shown(context.config.advertise, context.node.api_port);
        Ok((StatusCode::CREATED, Json(NewToken { token: token.to_string(), ends_s, node: asked.node, address })))
    })
    .await
}

fn shown(address: IpAddr, port: u16) -> String {
    match (address, port) {
        (address, API_PORT) => address.to_string(),
        (IpAddr::V6(address), port) => format!("[{address}]:{port}"),
        (address, port) => format!("{address}:{port}"),
    }
}

pub async fn authority(State(api): State<Arc<Api>>) -> Result<Json<AuthorityState>, Failure> {
    Ok(Json(blocking(move || Ok(rotation::state(&api.context.answers).map_err(admission::refused)?)).await?))
}

pub async fn rotate(State(api): State<Arc<Api>>) -> Result<Json<AuthorityState>, Failure> {
    blocking(move || {
        let (engine, cluster) = (&*api.context.engine, &api.context.config.cluster);
        match rotation::begin(engine, cluster) {
            // Whoever asks again goes on with the one that is under way: perhaps it lost the answer.
            Ok(()) | Err(RotationError::UnderWay) => (),
            Err(RotationError::Authority(error)) => return Err(Failure(admission::refused(error))),
        }
        Ok(Json(rotation::state(engine).map_err(admission::refused)?))
    })
    .await
}

pub async fn list_tokens(State(api): State<Arc<Api>>) -> Result<Json<Vec<TokenInfo>>, Failure> {
    Ok(Json(blocking(move || Ok(tokens::list(&api.context.answers)?)).await?))
}

pub async fn remove_token(State(api): State<Arc<Api>>, Path(id): Path<String>) -> Result<StatusCode, Failure> {
    let is_hex = id.len() <= 64 && id.bytes().all(|byte| byte.is_ascii_hexdigit());
    let unknown = || failure(ErrorKind::NotFound, format!("there is no token {id:?}"), "dvs node token ls");
    if !is_hex {
        return Err(unknown());
    }
    let wanted = id.clone();
    let was_there = blocking(move || Ok(tokens::remove(&*api.context.engine, &wanted)?)).await?;
    if was_there { Ok(StatusCode::NO_CONTENT) } else { Err(unknown()) }
}
