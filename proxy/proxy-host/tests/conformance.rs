//! The promises of M3-IPC, with clients and servers on two nodes behind two proxies.

mod common;

use std::path::PathBuf;

use abi::{Endpoint, Epoch, NodeId, PairId};
use common::{Pair, RunningProxy, Way, Which, calm_times};
use ipc::Port;
use ipc::conformance::{World, cases};
use proxy_host::transport::Encryption;

struct TwoNodes {
    // Proxies end before their brokers.
    _proxies: Vec<(RunningProxy, RunningProxy)>,
    pair: Pair,
}

impl World for TwoNodes {
    fn server(&self, endpoint: Endpoint, epoch: u64) -> Port {
        self.pair.bind_epoch(Which::B, endpoint, Epoch(epoch))
    }

    fn near_server(&self, endpoint: Endpoint, epoch: u64) -> Port {
        self.pair.bind_epoch(Which::A, endpoint, Epoch(epoch))
    }

    fn program(&self) -> Port {
        Port::connect(&self.pair.a.socket, None).expect("bound")
    }

    fn near(&self) -> (NodeId, PathBuf) {
        (self.pair.a.id, self.pair.a.socket.clone())
    }

    fn far(&self) -> (NodeId, PathBuf) {
        (self.pair.b.id, self.pair.b.socket.clone())
    }
}

fn peers_behind_two_proxies_keep_every_promise(way: Way) {
    match way {
        // Few cases depend on what carries the bytes, and each takes its time: all of them are in the long tests.
        Way::Quic => keep_promises(way, Encryption::Tls, 1, SHARE),
        Way::Tcp | Way::Unix | Way::Eth | Way::Tipc => {
            [Encryption::Tls, Encryption::Plain]
                .into_iter()
                .for_each(|encryption| keep_promises(way, encryption, 1, 1));
        }
    }
}

/// One case in so many, from each group of cases.
const SHARE: usize = 4;

#[test]
#[ignore = "half a minute for what TCP has shown"]
fn peers_behind_two_proxies_keep_every_promise_over_quic() {
    keep_promises(Way::Quic, Encryption::Tls, 1, 1);
}

#[test]
fn peers_behind_two_pairs_of_proxies_keep_every_promise() {
    keep_promises(Way::Tcp, Encryption::Tls, 2, 1);
}

fn keep_promises(way: Way, encryption: Encryption, pairs: u8, share: usize) {
    for (name, case) in cases().step_by(share) {
        eprintln!("case: {name}, {way:?}, {encryption:?}");
        let mut pair = Pair::with_pairs(way, pairs);
        let proxies = PairId::all(pairs).map(|of| pair.start_proxies_of(of, encryption, calm_times())).collect();
        case(&TwoNodes { _proxies: proxies, pair });
    }
}

over_each_transport!(peers_behind_two_proxies_keep_every_promise);
