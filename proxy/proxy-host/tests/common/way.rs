//! The transports over which a test is run.

use std::io::Write as _;
use std::sync::Once;

/// What carries the bytes between the two nodes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Way {
    Tcp,
    Unix,
    Eth,
    Quic,
    Tipc,
    /// As raw Ethernet, over a simulated cable.
    Storm {
        seed: u64,
    },
}

/// Raw Ethernet needs a wire, which two network namespaces have between them.
pub fn can_use_namespaces() -> bool {
    let root = rustix::process::geteuid().is_root();
    if !root {
        eprintln!("SKIPPED: this test needs root, to make network namespaces");
    }
    root
}

/// TIPC is in few kernels, and within one node it needs no bearer.
pub fn can_use_tipc() -> bool {
    static TOLD: Once = Once::new();
    let probed = sys::tipc::probe();
    if let Err(error) = &probed {
        // Past the harness, which shows what tests print only when they fail; once is enough.
        TOLD.call_once(|| {
            let _ = writeln!(
                std::io::stderr(),
                "SKIPPED: the kernel has no TIPC ({error}); tests over it that are 'ok' have tried nothing"
            );
        });
    }
    probed.is_ok()
}

/// Runs each test over each transport: `tcp::NAME`, `unix::NAME`, `eth::NAME`, `quic::NAME`, `tipc::NAME`.
#[macro_export]
macro_rules! over_each_transport {
    ($($name:ident),* $(,)?) => {
        mod tcp {
            $(#[test] fn $name() { super::$name($crate::common::Way::Tcp); })*
        }
        mod unix {
            $(#[test] fn $name() { super::$name($crate::common::Way::Unix); })*
        }
        mod eth {
            $(#[test] fn $name() {
                if $crate::common::can_use_namespaces() {
                    super::$name($crate::common::Way::Eth);
                }
            })*
        }
        mod quic {
            $(#[test] fn $name() { super::$name($crate::common::Way::Quic); })*
        }
        mod tipc {
            $(#[test] fn $name() {
                if $crate::common::can_use_tipc() {
                    super::$name($crate::common::Way::Tipc);
                }
            })*
        }
    };
}
