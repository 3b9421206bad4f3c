//! Leases.

use crate::command::Command;
use crate::grpc::node::{Node, needs_leader, unavailable_error};
use crate::grpc::submit::submit;
use crate::proto::etcdserverpb as pb;
use crate::store::Store;
use futures::stream::FuturesOrdered;
use futures::{Stream, StreamExt};
use pb::lease_server::Lease;
use std::sync::Arc;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status, Streaming};

/// Largest number of pending renewals on one stream.
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
        let needs_leader = needs_leader(request.metadata());
        let store = self.store(request.metadata()).await?;
        let (answers, receiver) = mpsc::channel(4);
        tokio::spawn(keep_alive(store, needs_leader, request.into_inner(), answers));
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

/// Renews leases until the client has closed its half of the stream. A client renews all its leases
/// on one stream, and a renewal may wait for the record in flight. The renewals therefore wait
/// concurrently.
async fn keep_alive(
    store: Arc<Store>,
    needs_leader: bool,
    mut requests: impl Stream<Item = Result<pb::LeaseKeepAliveRequest, Status>> + Unpin,
    answers: mpsc::Sender<Result<pb::LeaseKeepAliveResponse, Status>>,
) {
    let mut renewals = FuturesOrdered::new();
    let mut open = true;
    while open || !renewals.is_empty() {
        let woken = store.hub.woken();
        if let Some(error) = unavailable_error(&store, needs_leader) {
            let _ = answers.send(Err(error.into())).await;
            return;
        }
        tokio::select! {
            request = requests.next(), if open && renewals.len() < RENEWALS => match request {
                Some(Ok(request)) => renewals.push_back(submit(&store, Command::KeepAlive(request.id))),
                None => open = false,
                Some(Err(_)) => return,
            },
            Some(answer) = renewals.next() => {
                let failed = answer.is_err();
                if answers.send(answer).await.is_err() || failed {
                    return;
                }
            },
            () = answers.closed() => return,
            () = woken => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock;
    use crate::metrics::Metrics;
    use crate::mvcc::Mvcc;
    use crate::quota::Quota;
    use crate::state::State;
    use crate::store::leader::watch_leader;
    use std::time::Duration;
    use tokio::sync::watch;
    use tokio::time::{Instant, timeout};

    #[tokio::test(start_paused = true)]
    async fn renewals_that_require_a_leader_end_without_one() {
        let state = State::new(Mvcc::new());
        let store = Arc::new(Store::new(state, Quota::new(None, None), Metrics::new(), None));
        store.extend_lease(clock::now() + Duration::from_secs(2));
        let stores = watch::Sender::new(Some(Arc::clone(&store)));
        let watching = tokio::spawn(watch_leader(stores.subscribe()));
        let open = |needs_leader| {
            let (answers, receiver) = mpsc::channel(4);
            let requests = tokio_stream::pending();
            tokio::spawn(keep_alive(Arc::clone(&store), needs_leader, requests, answers));
            receiver
        };
        let (mut led, mut other) = (open(true), open(false));
        let start = Instant::now();
        let ended = led.recv().await.unwrap().unwrap_err();
        assert_eq!(
            (ended.code(), ended.message()),
            (tonic::Code::Unavailable, "etcdserver: no leader")
        );
        assert!(start.elapsed() >= Duration::from_secs(5), "{:?}", start.elapsed());
        assert!(led.recv().await.is_none());
        assert!(timeout(Duration::from_secs(60), other.recv()).await.is_err());
        store.stop();
        let ended = other.recv().await.unwrap().unwrap_err();
        assert_eq!(ended.message(), "etcdserver: server stopped");
        watching.abort();
    }
}
