//! Who serves the store, in etcd's terms: one member, whichever process writes.

use super::{Node, unsupported};
use crate::proto::etcdserverpb as pb;
use pb::cluster_server::Cluster;
use tonic::{Request, Response, Status};

const FIXED: &str = "members are not added, removed or changed: a process joins by being started on the streams";

#[tonic::async_trait]
impl Cluster for Node {
    async fn member_list(
        &self,
        request: Request<pb::MemberListRequest>,
    ) -> Result<Response<pb::MemberListResponse>, Status> {
        let store = self.store(request.metadata()).await?;
        if request.get_ref().linearizable {
            store.wait_for_lease().await?;
        }
        let member = pb::Member {
            id: store.member(),
            name: "kine-nats".into(),
            // There are no peers; but every member of etcd has such a URL, and tools take the first without looking.
            peer_ur_ls: self.client_urls.to_vec(),
            client_ur_ls: self.client_urls.to_vec(),
            ..pb::Member::default()
        };
        Ok(Response::new(pb::MemberListResponse {
            header: Some(store.header(store.revision())),
            members: vec![member],
        }))
    }

    async fn member_add(&self, _: Request<pb::MemberAddRequest>) -> Result<Response<pb::MemberAddResponse>, Status> {
        Err(unsupported(FIXED))
    }

    async fn member_remove(
        &self,
        _: Request<pb::MemberRemoveRequest>,
    ) -> Result<Response<pb::MemberRemoveResponse>, Status> {
        Err(unsupported(FIXED))
    }

    async fn member_update(
        &self,
        _: Request<pb::MemberUpdateRequest>,
    ) -> Result<Response<pb::MemberUpdateResponse>, Status> {
        Err(unsupported(FIXED))
    }

    async fn member_promote(
        &self,
        _: Request<pb::MemberPromoteRequest>,
    ) -> Result<Response<pb::MemberPromoteResponse>, Status> {
        Err(unsupported(FIXED))
    }
}
