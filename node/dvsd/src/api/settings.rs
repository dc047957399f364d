//! The settings of this daemon, for who looks for a fault.
//!
//! Written out one by one: what a later version adds is shown when somebody has decided that it is no secret.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use serde_json::{Value, json};

use super::Api;
use crate::config::{Config, LogFormat};

pub async fn show(State(api): State<Arc<Api>>) -> Json<Value> {
    Json(settings(&api.context.config))
}

fn settings(config: &Config) -> Value {
    let transports: Vec<&str> = config.transports.iter().map(|transport| transport.name()).collect();
    let links: serde_json::Map<String, Value> = config
        .links
        .iter()
        .map(|(node, link)| {
            let transports = link.transports.as_ref().map(|list| list.iter().map(|one| one.name()).collect::<Vec<_>>());
            (node.clone(), json!({ "transports": transports, "tls": link.tls }))
        })
        .collect();
    let etcd = config.etcd.as_ref().map(|etcd| {
        let members: Vec<String> = etcd.members.iter().map(ToString::to_string).collect();
        let user = etcd.user.as_ref().map(|(name, _)| name);
        let password_file = etcd.user.as_ref().map(|(_, path)| path);
        let serve = etcd.serve.as_ref().map(|serve| {
            let peers: serde_json::Map<String, Value> =
                serve.peers.iter().map(|(node, peer)| (node.clone(), json!(peer.to_string()))).collect();
            json!({ "address": serve.address, "client_port": serve.client_port, "peer_port": serve.peer_port,
                "program": serve.program, "peers": peers })
        });
        json!({ "members": members, "root": etcd.root, "tls_dir": etcd.tls_dir, "user": user,
            "password_file": password_file, "serve": serve })
    });
    json!({
        "node": config.node,
        "cluster": config.cluster,
        "state_dir": config.state_dir,
        "run_dir": config.run_dir,
        "socket": config.socket,
        "listen": config.listen,
        "advertise": config.advertise,
        "api_port": config.api_port,
        "proxy_port": config.proxy_port,
        "transports": transports,
        "proxy_socket": config.proxy_socket,
        "ethernet": config.ethernet,
        "link_tls": config.link_tls,
        "links": links,
        "pairs": config.pairs,
        "proxy_program": config.proxy_program,
        // What a program of others is told may be a secret.
        "proxy_options": config.proxy_options.keys().collect::<Vec<_>>(),
        "vxlan_port": config.vxlan_port,
        "engine": config.engine,
        "engine_volatile": config.engine_volatile,
        "etcd": etcd,
        "tls_dir": config.tls_dir,
        "names": config.names.map(|names| json!({ "listen": names.listen })),
        "log": config.log,
        "log_format": match config.log_format {
            LogFormat::Text => "text",
            LogFormat::Json => "json",
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Settings;

    #[test]
    fn settings_are_shown_with_the_places_of_secrets_and_without_what_a_program_is_told() {
        let text =
            "node = \"n1\"\nadvertise = \"10.0.0.1\"\nproxy_program = \"/opt/p\"\n[proxy_options]\nkey = \"hunter2\"
            [etcd]\nmembers = [\"10.0.0.1:2379\"]\nuser = \"dvs\"\npassword_file = \"/etc/dvs/password\"";
        let settings: Settings = toml::from_str(text).unwrap();
        let shown = super::settings(&settings.settle().unwrap());
        assert_eq!(shown["proxy_options"], json!(["key"]));
        assert_eq!(shown["etcd"]["password_file"], "/etc/dvs/password");
        assert_eq!((&shown["node"], &shown["api_port"]), (&json!("n1"), &json!(7420)));
        assert!(!shown.to_string().contains("hunter2"));
    }
}
