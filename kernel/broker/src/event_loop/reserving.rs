//! Numbers that a manager keeps for a process, and processes that wait for that.
//!
//! The process need not have connected, nor is it asked whether it exists: a reservation is the manager's to take back,
//! and ends with it.

use abi::{DcId, Endpoint, IpcError};
use broker_api::{Pid, ToPort};
use ipc_core::table::{OwnerId, Reservation};

use super::EventLoop;
use super::requests::BindRequest;

impl EventLoop {
    pub(super) fn bind_for(
        &mut self,
        owner: OwnerId,
        dc: DcId,
        own: Endpoint,
        request: u32,
        (pid, wish): (Pid, Option<Endpoint>),
    ) -> Result<(), IpcError> {
        self.check_manager(dc, own)?;
        let pid = pid.number();
        let container = self.containers.get_mut(&dc).ok_or(IpcError::DcNotRunning)?;
        let endpoint = container.table.reserve(wish, Reservation { pid, by: owner })?;
        self.keep_reservation(dc, endpoint);
        self.answer(owner, request, &ToPort::Found { endpoint, node: None });
        self.bind_who_waits(dc, pid);
        Ok(())
    }

    /// Lets the bind wait, when there is no number for its process yet.
    pub(super) fn wait_for_manager(&mut self, owner: OwnerId, bind: BindRequest) -> Result<(), IpcError> {
        let container = self.containers.get(&bind.dc).ok_or(IpcError::DcNotRunning)?;
        if bind.request == 0 || container.table.reservations().of_process(bind.inner_pid).is_some() {
            return self.bind(owner, bind, None);
        }
        // One connection binds once, so this is bounded as they are.
        self.waiting_binds.insert(owner, bind);
        Ok(())
    }

    fn bind_who_waits(&mut self, dc: DcId, pid: i32) {
        let is_for = |waiting: &BindRequest| waiting.dc == dc && waiting.inner_pid == pid;
        let found = self.waiting_binds.iter().find(|(_, waiting)| is_for(waiting)).map(|(owner, _)| *owner);
        let Some((owner, waiting)) = found.and_then(|owner| Some((owner, self.waiting_binds.remove(&owner)?))) else {
            return;
        };
        let request = waiting.request;
        if let Err(error) = self.bind(owner, waiting, None) {
            self.fail(owner, request, error);
        }
    }

    /// A manager is gone.
    pub(super) fn end_reservations(&mut self, dc: DcId, by: OwnerId) {
        let Some(container) = self.containers.get_mut(&dc) else { return };
        for endpoint in container.table.reservations_mut().remove_of(by) {
            self.drop_kept_reservation(dc, endpoint);
        }
    }
}
