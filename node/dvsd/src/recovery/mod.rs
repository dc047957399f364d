//! The engine is lost, or shall be another one: a copy of what it held, and how an engine is begun anew of one
//! (`docs/design/recovery.md`). The daemon of the machine where that is done does not run; containers go on.
//!
//! | | |
//! |---|---|
//! | `dump.rs` | the copy, as a file |
//! | `revision.rs` | what has to be another in the engine that is begun of it: pure |
//! | `fill.rs` | the copy comes into an empty engine |
//! | `begin.rs` | an engine on this machine: a member of etcd, a given etcd, or a file |
//! | `salvage.rs` | a copy of what one member of etcd holds whose majority is gone |

mod begin;
mod dump;
mod fill;
mod revision;
mod salvage;

use std::io;
use std::path::PathBuf;

pub use begin::{BegunAnew, begin_anew, copy_of_local};
pub use dump::{Dump, DumpError, Header, take};
pub use salvage::{salvage, what_is_left};

use crate::claim::ClaimError;
use crate::engine::{EtcdSettingsError, OpenError};
use crate::joining::authority::AuthorityError;
use crate::member::MemberError;
use crate::quorum::FileError;

#[derive(Debug, thiserror::Error)]
pub enum RecoveryError {
    #[error("the node's daemon runs")]
    DaemonRuns(#[source] ClaimError),
    #[error("the daemon's settings do not say that the cluster runs etcd itself ('managed' in 'etcd')")]
    NotManaged,
    #[error("this node has no data of a member of etcd: {} is not there", .0.display())]
    NoData(PathBuf),
    #[error("this node has no engine in a file: {} is not there", .0.display())]
    NoLocal(PathBuf),
    #[error("this machine is a node of another cluster ({own}) than that of the copy ({there})")]
    OtherCluster { own: String, there: String },
    #[error("the engine began to serve another cluster meanwhile")]
    NotEmpty,
    #[error("the cluster's authority is not in the copy, and this node has no certificates")]
    NoCertificates,
    #[error("{key} in the copy cannot be understood")]
    BadValue { key: String },
    #[error("the engine did not begin to serve within {seconds} s")]
    Late {
        seconds: u64,
        #[source]
        cause: OpenError,
    },
    #[error(transparent)]
    Dump(#[from] DumpError),
    #[error("the engine cannot be filled")]
    Engine(#[from] cluster::EngineError),
    #[error(transparent)]
    Open(#[from] OpenError),
    #[error(transparent)]
    Settings(#[from] EtcdSettingsError),
    #[error(transparent)]
    File(#[from] FileError),
    #[error(transparent)]
    Identity(#[from] crate::identity::IdentityError),
    #[error("the node's member of etcd cannot be looked after")]
    Member(#[from] MemberError),
    #[error(transparent)]
    Directories(#[from] Box<crate::daemon::DaemonError>),
    #[error("the node's certificate cannot be made")]
    Authority(#[from] AuthorityError),
    #[error("the node's certificate cannot be made")]
    Certificates(#[from] pki::PkiError),
    #[error("cannot {doing} {}", .path.display())]
    Io {
        doing: &'static str,
        path: PathBuf,
        #[source]
        cause: io::Error,
    },
}

impl RecoveryError {
    pub fn hint(&self) -> &'static str {
        match self {
            RecoveryError::DaemonRuns(_) => "end it first: systemctl stop dvsd; containers go on",
            RecoveryError::NotManaged => "bring etcd's own data back with its own tools (etcdctl snapshot restore)",
            RecoveryError::NoData(_) => "on another node that ran a member; or dvs cluster restore FILE",
            RecoveryError::OtherCluster { .. } => "on a machine of that cluster, or a new one",
            RecoveryError::NotEmpty => "dvs node ls; where that is right, nothing has to be restored",
            RecoveryError::NoCertificates => "dvs node cert makes them, with the authority that dvs node ca made",
            RecoveryError::Dump(DumpError::NoCluster) => "start the daemon once: it says which cluster it is",
            RecoveryError::Dump(_) | RecoveryError::BadValue { .. } => "another backup",
            RecoveryError::Late { .. } => "etcd.log in the state directory; then again",
            _ => "again; what was begun is begun anew",
        }
    }
}
