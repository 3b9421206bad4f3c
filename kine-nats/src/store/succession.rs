//! The next writer after a resignation on request. It affects only how long the change takes: the
//! process that places its epoch record first becomes the writer.

use crate::clock;
use crate::error::RpcError;
use crate::limits::REQUEST_LIMIT;
use crate::role::Role;
use crate::store::Store;
use std::sync::{MutexGuard, PoisonError};
use std::time::Duration;
use tokio::time::timeout;

/// How long the other processes hold back for the announced next writer.
const YIELDED: Duration = Duration::from_secs(2);

impl Store {
    /// Records the process that is to write after the writer resigns.
    pub(crate) fn name_successor(&self, member: u64) {
        *self.successor() = (member, clock::now() + YIELDED);
    }

    /// Whether another process is to start writing before this one.
    pub(crate) fn yields_to_successor(&self) -> bool {
        let (member, until) = *self.successor();
        member != self.member() && clock::now() < until
    }

    fn successor(&self) -> MutexGuard<'_, (u64, Duration)> {
        self.successor.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes the writer of this process resign and another process take over. Returns when that
    /// process writes.
    pub(crate) async fn move_leader(&self, target: u64) -> Result<(), RpcError> {
        let Some(peers) = self.peers().filter(|_| target != self.member()) else {
            return self.is_writer().then_some(()).ok_or(RpcError::NotLeader);
        };
        let mut roles = self.role.subscribe();
        peers.name_successor(target).await;
        self.name_successor(target);
        // Requests in progress hold the queue; after them the writer finishes its work and resigns.
        let resigns = |role: &mut Role| {
            let writes = matches!(role, Role::Writer { .. });
            if writes {
                *role = Role::Follower(None);
            }
            writes
        };
        if !self.role.send_if_modified(resigns) {
            return Err(RpcError::NotLeader);
        }
        let is_leader = |role: &Role| matches!(role, Role::Follower(Some(leader)) if leader.member() == target);
        match timeout(REQUEST_LIMIT, roles.wait_for(is_leader)).await {
            Ok(Ok(_)) => Ok(()),
            Ok(Err(_)) | Err(_) => Err(RpcError::LeaderNotMoved),
        }
    }
}
