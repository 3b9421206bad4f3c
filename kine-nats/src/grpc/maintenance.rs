//! The maintenance service, for etcd's tools and monitoring.

use crate::error::RpcError;
use crate::grpc::backup;
use crate::grpc::node::{Node, needs_leader, unsupported};
use crate::limits::REQUEST_LIMIT;
use crate::limits::STORAGE_VERSION;
use crate::limits::VERSION;
use crate::proto::etcdserverpb as pb;
use crate::range;
use crate::store::Store;
use pb::alarm_request::AlarmAction;
use pb::maintenance_server::Maintenance;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::oneshot;
use tokio::time::{sleep, timeout};
use tonic::{Request, Response, Status};
use xxhash_rust::xxh3::Xxh3;

/// Keys that are hashed before the lock on the store is released.
const HASH_PAGE: usize = 2000;
/// Delay between two hashes. Within it a writer checks twice for history to trim, and a follower at
/// least once.
const HASH_INTERVAL: Duration = Duration::from_millis(600);

#[tonic::async_trait]
impl Maintenance for Node {
    async fn alarm(&self, request: Request<pb::AlarmRequest>) -> Result<Response<pb::AlarmResponse>, Status> {
        let store = self.store(request.metadata()).await?;
        let request = request.into_inner();
        if request.action == AlarmAction::Activate as i32 {
            return Err(unsupported("alarms follow from the state and cannot be raised"));
        }
        store.linearize().await?;
        Ok(Response::new(pb::AlarmResponse {
            header: Some(store.header(store.revision())),
            alarms: alarms(&store)
                .filter(|alarm| request.alarm == pb::AlarmType::None as i32 || request.alarm == alarm.alarm)
                .collect(),
        }))
    }

    async fn status(&self, request: Request<pb::StatusRequest>) -> Result<Response<pb::StatusResponse>, Status> {
        let store = self.store(request.metadata()).await?;
        // An etcd file is never empty, and etcdctl 3.6 divides by its size.
        let bytes = store.read().bytes().max(1).cast_signed();
        let leader = store.has_leader();
        let mut errors = Vec::new();
        if !leader {
            errors.push(RpcError::NoLeader.to_string());
        }
        // etcd formats alarms this way, with the trailing space.
        errors.extend(alarms(&store).map(|alarm| format!("memberID:{} alarm:NOSPACE ", alarm.member_id)));
        Ok(Response::new(pb::StatusResponse {
            header: Some(store.header(store.revision())),
            version: VERSION.to_owned(),
            db_size: bytes,
            leader: store.leader(),
            raft_index: store.sequence(),
            raft_term: store.epoch(),
            raft_applied_index: store.sequence(),
            errors,
            db_size_in_use: bytes,
            is_learner: false,
            storage_version: STORAGE_VERSION.to_owned(),
            db_size_quota: store.quota.bytes().cast_signed(),
        }))
    }

    async fn defragment(
        &self,
        request: Request<pb::DefragmentRequest>,
    ) -> Result<Response<pb::DefragmentResponse>, Status> {
        let store = self.store(request.metadata()).await?;
        Ok(Response::new(pb::DefragmentResponse {
            header: Some(store.header(store.revision())),
        }))
    }

    async fn hash(&self, request: Request<pb::HashRequest>) -> Result<Response<pb::HashResponse>, Status> {
        let store = self.store(request.metadata()).await?;
        let hashed = self.hash_exclusively(&store, 0).await?;
        Ok(Response::new(pb::HashResponse {
            header: Some(store.header(hashed.visible)),
            hash: hashed.hash,
        }))
    }

    async fn hash_kv(&self, request: Request<pb::HashKvRequest>) -> Result<Response<pb::HashKvResponse>, Status> {
        let store = self.store(request.metadata()).await?;
        let hashed = self.hash_exclusively(&store, request.into_inner().revision).await?;
        Ok(Response::new(pb::HashKvResponse {
            header: Some(store.header(hashed.visible)),
            hash: hashed.hash,
            compact_revision: hashed.compacted,
            hash_revision: hashed.revision,
        }))
    }

    type SnapshotStream = backup::Pieces;

    async fn snapshot(&self, request: Request<pb::SnapshotRequest>) -> Result<Response<Self::SnapshotStream>, Status> {
        let store = self.store(request.metadata()).await?;
        let needs_leader = needs_leader(request.metadata());
        Ok(Response::new(self.back_up(store, needs_leader).await?))
    }

    async fn move_leader(
        &self,
        request: Request<pb::MoveLeaderRequest>,
    ) -> Result<Response<pb::MoveLeaderResponse>, Status> {
        let store = self.store(request.metadata()).await?;
        let target = request.into_inner().target_id;
        if !store.is_writer() {
            return Err(RpcError::NotLeader.into());
        }
        if self.members(&store).iter().all(|member| member.id != target) {
            return Err(RpcError::BadTransferee.into());
        }
        store.move_leader(target).await?;
        Ok(Response::new(pb::MoveLeaderResponse {
            header: Some(store.header(store.revision())),
        }))
    }

    async fn downgrade(&self, _: Request<pb::DowngradeRequest>) -> Result<Response<pb::DowngradeResponse>, Status> {
        Err(unsupported("there is no older etcd version to downgrade to"))
    }
}

/// Result of a hash.
struct Hashed {
    hash: u32,
    revision: i64,
    /// Newest and compact revision when the hash started.
    visible: i64,
    compacted: i64,
}

impl Node {
    /// Hashes the keys at a revision (0 means the newest), one call at a time. A delay follows,
    /// even if the caller disconnects: compacted history is trimmed only while no hash runs.
    async fn hash_exclusively(&self, store: &Arc<Store>, requested: i64) -> Result<Hashed, RpcError> {
        let permit = timeout(REQUEST_LIMIT, Arc::clone(&self.hashes).lock_owned()).await;
        let permit = permit.map_err(|_| RpcError::TooManyRequests)?;
        let store = Arc::clone(store);
        let (answer, hashed) = oneshot::channel();
        tokio::spawn(async move {
            let _ = answer.send(hash(&store, requested).await);
            sleep(HASH_INTERVAL).await;
            drop(permit);
        });
        hashed.await.unwrap_or(Err(RpcError::Stopped))
    }
}

async fn hash(store: &Store, requested: i64) -> Result<Hashed, RpcError> {
    let (visible, compacted) = {
        let state = store.read();
        (state.mvcc.visible(), state.mvcc.compacted())
    };
    range::check_revision(requested, visible, compacted)?;
    let revision = if requested > 0 { requested } else { visible };
    Ok(Hashed {
        hash: hash_at(store, revision).await?,
        revision,
        visible,
        compacted,
    })
}

/// The active alarms of the store.
fn alarms(store: &Store) -> impl Iterator<Item = pb::AlarmMember> + use<> {
    let writer = Some(store.leader()).filter(|member| *member != 0);
    let alarm = pb::AlarmMember {
        member_id: writer.unwrap_or_else(|| store.member()),
        alarm: pb::AlarmType::Nospace as i32,
    };
    store.rejects_puts().then_some(alarm).into_iter()
}

/// Hashes the keys at a revision. Two stores with the same keys at that revision have the same
/// hash. The number differs from etcd's, which hashes its pages.
async fn hash_at(store: &Store, revision: i64) -> Result<u32, RpcError> {
    let mut hash = Xxh3::new();
    let mut start = vec![0];
    let pin = {
        let state = store.read();
        if revision < state.mvcc.compacted() {
            return Err(RpcError::Compacted);
        }
        state.mvcc.pin(revision)
    };
    loop {
        let mut next = None;
        {
            let state = store.read();
            // The pin keeps history that is compacted meanwhile, unless the state was reread from
            // the log.
            if !state.mvcc.owns_pin(&pin) && revision < state.mvcc.compacted() {
                return Err(RpcError::Compacted);
            }
            let mut left = HASH_PAGE;
            state.mvcc.visit(&start, &[0], revision, |item| {
                hash.update(&item.kv);
                left -= 1;
                if left == 0 {
                    next = Some([item.key(), &[0]].concat());
                }
                left > 0
            });
        }
        match next {
            Some(key) => start = key,
            None => return Ok(hash.digest() as u32),
        }
        tokio::task::yield_now().await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::Metrics;
    use crate::mvcc::Mvcc;
    use crate::quota::Quota;
    use crate::state::State;

    fn store(keys: usize) -> Store {
        let mut state = State::new(Mvcc::new());
        for key in 0..keys {
            state.mvcc.advance();
            state.put(format!("/r/{key:06}").as_bytes(), b"value", 0);
        }
        state.mvcc.publish(state.mvcc.head());
        Store::new(state, Quota::new(None, None), Metrics::new(), None)
    }

    #[tokio::test]
    async fn the_hash_covers_every_page() {
        let keys = 2 * HASH_PAGE + 1;
        let (one, two) = (store(keys), store(keys));
        let last = keys as i64 + 1;
        let all = hash_at(&one, last).await.unwrap();
        assert_eq!(all, hash_at(&two, last).await.unwrap());
        assert_ne!(all, hash_at(&one, last - 1).await.unwrap(), "the last key counts");
        two.write().mvcc.compact(last);
        assert_eq!(hash_at(&two, last).await, Ok(all));
        assert_eq!(hash_at(&two, last - 1).await, Err(RpcError::Compacted));
    }

    #[tokio::test]
    async fn a_concurrent_compaction_does_not_change_the_hash() {
        let keys = 2 * HASH_PAGE;
        let (one, last) = (store(keys), keys as i64 + 1);
        let all = hash_at(&one, last).await.unwrap();
        let compact = async {
            let mut state = one.write();
            let head = state.mvcc.advance();
            state.delete(format!("/r/{:06}", keys - 1).as_bytes());
            state.mvcc.publish(head);
            state.mvcc.compact(head);
            while state.mvcc.trim(1000) {}
        };
        // The first page is hashed before the compaction.
        let (hash, ()) = tokio::join!(biased; hash_at(&one, last), compact);
        assert_eq!(hash, Ok(all));
        assert_eq!(hash_at(&one, last).await, Err(RpcError::Compacted));
    }
}
