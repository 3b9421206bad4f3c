//! Leases.

use super::Node;
use super::submit::submit;
use crate::proto::etcdserverpb as pb;
use crate::store::Store;
use crate::txn::Command;
use futures::StreamExt;
use futures::stream::FuturesOrdered;
use pb::lease_server::Lease;
use std::sync::Arc;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status, Streaming};

/// Renewals of one stream that wait at a time.
const RENEWALS: usize = 256;

#[tonic::async_trait]
impl Lease for Node {
    async fn lease_grant(
        &self,
        request: Request<pb::LeaseGrantRequest>,
    ) -> Result<Response<pb::LeaseGrantResponse>, Status> {
        let store = self.store(request.metadata()).await?;
        let pb::LeaseGrantRequest { id, ttl } = request.into_inner();
        let id = if id == 0 {
            (rand::random::<i64>() & i64::MAX).max(1)
        } else {
            id
        };
        submit(&store, Command::Grant { id, ttl }).await.map(Response::new)
    }

    async fn lease_revoke(
        &self,
        request: Request<pb::LeaseRevokeRequest>,
    ) -> Result<Response<pb::LeaseRevokeResponse>, Status> {
        let store = self.store(request.metadata()).await?;
        submit(&store, Command::Revoke(request.into_inner().id))
            .await
            .map(Response::new)
    }

    type LeaseKeepAliveStream = ReceiverStream<Result<pb::LeaseKeepAliveResponse, Status>>;

    async fn lease_keep_alive(
        &self,
        request: Request<Streaming<pb::LeaseKeepAliveRequest>>,
    ) -> Result<Response<Self::LeaseKeepAliveStream>, Status> {
        let store = self.store(request.metadata()).await?;
        let (answers, receiver) = mpsc::channel(4);
        tokio::spawn(keep_alive(store, request.into_inner(), answers));
        Ok(Response::new(ReceiverStream::new(receiver)))
    }

    async fn lease_time_to_live(
        &self,
        request: Request<pb::LeaseTimeToLiveRequest>,
    ) -> Result<Response<pb::LeaseTimeToLiveResponse>, Status> {
        let store = self.store(request.metadata()).await?;
        let pb::LeaseTimeToLiveRequest { id, keys } = request.into_inner();
        submit(&store, Command::TimeToLive { id, keys })
            .await
            .map(Response::new)
    }

    async fn lease_leases(
        &self,
        request: Request<pb::LeaseLeasesRequest>,
    ) -> Result<Response<pb::LeaseLeasesResponse>, Status> {
        let store = self.store(request.metadata()).await?;
        submit(&store, Command::Leases).await.map(Response::new)
    }
}

/// Renews leases until the client has asked for the last one. A client renews all its leases by one stream, and a renewal may
/// have to wait for the record in flight: they wait together.
async fn keep_alive(
    store: Arc<Store>,
    mut requests: Streaming<pb::LeaseKeepAliveRequest>,
    answers: mpsc::Sender<Result<pb::LeaseKeepAliveResponse, Status>>,
) {
    let mut renewals = FuturesOrdered::new();
    let mut open = true;
    while open || !renewals.is_empty() {
        tokio::select! {
            request = requests.message(), if open && renewals.len() < RENEWALS => match request {
                Ok(Some(request)) => renewals.push_back(submit(&store, Command::KeepAlive(request.id))),
                Ok(None) => open = false,
                Err(_) => return,
            },
            Some(answer) = renewals.next() => {
                let ended = answer.is_err();
                if answers.send(answer).await.is_err() || ended {
                    return;
                }
            },
            () = answers.closed() => return,
            () = store.hub.woken() => if store.is_stopping() { return },
        }
    }
}
