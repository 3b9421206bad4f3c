//! What tools and monitors ask for.

use super::{Node, VERSION};
use crate::mvcc::Mvcc;
use crate::proto::etcdserverpb as pb;
use crate::range;
use pb::cluster_server::Cluster;
use pb::maintenance_server::Maintenance;
use tonic::{Request, Response, Status};
use xxhash_rust::xxh3::Xxh3;

#[tonic::async_trait]
impl Cluster for Node {
    async fn member_list(
        &self,
        request: Request<pb::MemberListRequest>,
    ) -> Result<Response<pb::MemberListResponse>, Status> {
        let store = self.store(request.metadata()).await?;
        let client_ur_ls = self.client_urls.to_vec();
        let member = pb::Member {
            id: store.member(),
            name: "kine-nats".into(),
            client_ur_ls,
            ..pb::Member::default()
        };
        let header = Some(store.header(store.revision()));
        Ok(Response::new(pb::MemberListResponse {
            header,
            members: vec![member],
        }))
    }
}

#[tonic::async_trait]
impl Maintenance for Node {
    async fn alarm(&self, request: Request<pb::AlarmRequest>) -> Result<Response<pb::AlarmResponse>, Status> {
        let store = self.store(request.metadata()).await?;
        let full = store.is_full() || store.read().mvcc.bytes() >= store.quota;
        let alarm = pb::AlarmMember {
            member_id: store.member(),
            alarm: pb::AlarmType::Nospace as i32,
        };
        let alarms = if full { vec![alarm] } else { Vec::new() };
        Ok(Response::new(pb::AlarmResponse {
            header: Some(store.header(store.revision())),
            alarms,
        }))
    }

    async fn status(&self, request: Request<pb::StatusRequest>) -> Result<Response<pb::StatusResponse>, Status> {
        let store = self.store(request.metadata()).await?;
        let bytes = store.read().mvcc.bytes().cast_signed();
        let mut errors = Vec::new();
        if store.is_full() || bytes.cast_unsigned() >= store.quota {
            errors.push(format!("memberID:{} alarm:NOSPACE ", store.member()));
        }
        let leader = store.has_leader();
        if !leader {
            errors.push("etcdserver: no leader".to_owned());
        }
        Ok(Response::new(pb::StatusResponse {
            header: Some(store.header(store.revision())),
            version: VERSION.to_owned(),
            db_size: bytes,
            leader: if leader { store.member() } else { 0 },
            raft_index: store.sequence(),
            raft_term: store.epoch,
            raft_applied_index: store.sequence(),
            errors,
            db_size_in_use: bytes,
            is_learner: false,
            storage_version: "3.6.0".to_owned(),
            db_size_quota: store.quota.cast_signed(),
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
        let state = store.read();
        let revision = state.mvcc.visible();
        let hash = hash_at(&state.mvcc, revision);
        Ok(Response::new(pb::HashResponse {
            header: Some(store.header(revision)),
            hash,
        }))
    }

    async fn hash_kv(&self, request: Request<pb::HashKvRequest>) -> Result<Response<pb::HashKvResponse>, Status> {
        let store = self.store(request.metadata()).await?;
        let asked = request.into_inner().revision;
        let state = store.read();
        let (visible, compacted) = (state.mvcc.visible(), state.mvcc.compacted());
        range::check_revision(asked, visible, compacted)?;
        let at = if asked > 0 { asked } else { visible };
        Ok(Response::new(pb::HashKvResponse {
            header: Some(store.header(visible)),
            hash: hash_at(&state.mvcc, at),
            compact_revision: compacted,
            hash_revision: at,
        }))
    }
}

/// Two stores with the same keys at a revision have the same hash. It is not etcd's number: etcd hashes its pages.
fn hash_at(mvcc: &Mvcc, revision: i64) -> u32 {
    let mut hash = Xxh3::new();
    mvcc.visit(&[0], &[0], revision, |item| {
        hash.update(&item.kv);
        true
    });
    hash.digest() as u32
}
