//! Reads and writes of keys.

use crate::command::Command;
use crate::grpc::node::{Node, needs_leader};
use crate::grpc::pages::{self, Pages};
use crate::grpc::submit::submit;
use crate::proto::etcdserverpb as pb;
use crate::range;
use crate::state::State;
use crate::validate;
use pb::kv_server::Kv;
use tonic::{Request, Response, Status};

#[tonic::async_trait]
impl Kv for Node {
    type RangeStreamStream = Pages;

    async fn range(&self, request: Request<pb::RangeRequest>) -> Result<Response<pb::RangeResponse>, Status> {
        let store = self.store(request.metadata()).await?;
        let request = request.into_inner();
        validate::check_range(&request)?;
        if range::is_long(&request) {
            return Ok(Response::new(pages::read_complete(&store, &request).await?));
        }
        let read = |state: &State| {
            let visible = state.mvcc.visible();
            range::check_revision(request.revision, visible, state.mvcc.compacted())?;
            let at = range::revision(&request, visible);
            let mut answer = range::range(&state.mvcc, &request, at);
            answer.header = Some(store.header(visible));
            Ok::<_, Status>(answer)
        };
        if request.serializable {
            return read(&store.read()).map(Response::new);
        }
        store.read_latest(read).await?.map(Response::new)
    }

    async fn range_stream(&self, request: Request<pb::RangeRequest>) -> Result<Response<Pages>, Status> {
        let needs_leader = needs_leader(request.metadata());
        let store = self.store(request.metadata()).await?;
        let answers = pages::open(store, &request.into_inner(), needs_leader).await?;
        Ok(Response::new(answers))
    }

    async fn put(&self, request: Request<pb::PutRequest>) -> Result<Response<pb::PutResponse>, Status> {
        let store = self.store(request.metadata()).await?;
        submit(&store, Command::Put(request.into_inner()))
            .await
            .map(Response::new)
    }

    async fn delete_range(
        &self,
        request: Request<pb::DeleteRangeRequest>,
    ) -> Result<Response<pb::DeleteRangeResponse>, Status> {
        let store = self.store(request.metadata()).await?;
        submit(&store, Command::DeleteRange(request.into_inner()))
            .await
            .map(Response::new)
    }

    async fn txn(&self, request: Request<pb::TxnRequest>) -> Result<Response<pb::TxnResponse>, Status> {
        let store = self.store(request.metadata()).await?;
        submit(&store, Command::Txn(request.into_inner()))
            .await
            .map(Response::new)
    }

    async fn compact(
        &self,
        request: Request<pb::CompactionRequest>,
    ) -> Result<Response<pb::CompactionResponse>, Status> {
        let store = self.store(request.metadata()).await?;
        submit(&store, Command::Compact(request.into_inner().revision))
            .await
            .map(Response::new)
    }
}
