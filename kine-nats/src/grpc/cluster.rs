//! The member list: one member, or with followers each process that announced itself lately.

use crate::grpc::node::{Node, unsupported};
use crate::proto::etcdserverpb as pb;
use crate::store::Store;
use crate::store::peers::{Member, Peers};
use pb::cluster_server::Cluster;
use tonic::{Request, Response, Status};

const FIXED: &str = "members cannot be added, removed or changed: a process joins when it starts on the streams";

#[tonic::async_trait]
impl Cluster for Node {
    async fn member_list(
        &self,
        request: Request<pb::MemberListRequest>,
    ) -> Result<Response<pb::MemberListResponse>, Status> {
        let store = self.store(request.metadata()).await?;
        if request.get_ref().linearizable {
            store.linearize().await?;
        }
        Ok(Response::new(pb::MemberListResponse {
            header: Some(store.header(store.revision())),
            members: self.members(&store).into_iter().map(to_member).collect(),
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

impl Node {
    /// The processes that serve a store.
    pub(super) fn members(&self, store: &Store) -> Vec<Member> {
        let own = || Member {
            id: store.member(),
            name: String::new(),
            client_urls: self.client_urls.to_vec(),
            full: false,
        };
        let mut members = store.peers().map_or_else(|| vec![own()], Peers::members);
        for member in &mut members {
            if member.name.is_empty() {
                member.name = "kine-nats".to_owned();
            }
        }
        members
    }
}

fn to_member(member: Member) -> pb::Member {
    let Member {
        id, name, client_urls, ..
    } = member;
    pb::Member {
        id,
        name,
        // The processes have no peer URLs. Every member of etcd has one, and tools use the first
        // without a check.
        peer_ur_ls: client_urls.clone(),
        client_ur_ls: client_urls,
        ..pb::Member::default()
    }
}
