//! Descriptors of a channel, in the order in which the contract declares them.

use std::os::fd::OwnedFd;

use ipc_shm::PartyFiles;

/// What a party of a channel is handed; the peer's control page is the last.
pub fn channel_descriptors(files: PartyFiles, peer_control: OwnedFd) -> Vec<OwnedFd> {
    vec![files.own, files.peer, files.shared, files.bell_in, files.bell_out, files.lifeline, peer_control]
}

/// The reverse; `None` when it is another number of descriptors.
pub fn take_channel_descriptors(descriptors: Vec<OwnedFd>) -> Option<(PartyFiles, OwnedFd)> {
    let [own, peer, shared, bell_in, bell_out, lifeline, control] = <[OwnedFd; 7]>::try_from(descriptors).ok()?;
    Some((PartyFiles { own, peer, shared, bell_in, bell_out, lifeline }, control))
}
