//! `grpc.health.v1`: whether the server serves requests now. The only service is the whole server,
//! with the empty name.

use crate::grpc::node::Node;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status};
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_server::Health;
use tonic_health::pb::{HealthCheckRequest, HealthCheckResponse};

/// Poll interval of a watch: a lease expires silently, so no event announces it.
const CHECK_INTERVAL: Duration = Duration::from_millis(500);

type Answer = Result<HealthCheckResponse, Status>;

impl Node {
    /// The status to report: serving while a writer is alive, in this process or in another.
    fn serving(&self) -> ServingStatus {
        match &*self.store.borrow() {
            Some(store) if !store.is_stopping() && store.has_leader() => ServingStatus::Serving,
            _ => ServingStatus::NotServing,
        }
    }

    fn is_stopping(&self) -> bool {
        self.store.borrow().as_ref().is_some_and(|store| store.is_stopping())
    }
}

#[tonic::async_trait]
impl Health for Node {
    async fn check(&self, request: Request<HealthCheckRequest>) -> Result<Response<HealthCheckResponse>, Status> {
        if request.get_ref().service.is_empty() {
            Ok(Response::new(response(self.serving())))
        } else {
            Err(Status::not_found("unknown service"))
        }
    }

    type WatchStream = ReceiverStream<Answer>;

    async fn watch(&self, request: Request<HealthCheckRequest>) -> Result<Response<Self::WatchStream>, Status> {
        let (answers, receiver) = mpsc::channel(1);
        let known = request.get_ref().service.is_empty();
        tokio::spawn(send_changes(self.clone(), known, answers));
        Ok(Response::new(ReceiverStream::new(receiver)))
    }
}

/// Sends each change of the status until the client disconnects or the server stops.
async fn send_changes(node: Node, known: bool, answers: mpsc::Sender<Answer>) {
    let mut last_sent = None;
    let mut ticks = tokio::time::interval(CHECK_INTERVAL);
    loop {
        tokio::select! {
            _ = ticks.tick() => {}
            () = answers.closed() => return,
        }
        let status = if known {
            node.serving()
        } else {
            ServingStatus::ServiceUnknown
        };
        if last_sent.replace(status) != Some(status) && answers.send(Ok(response(status))).await.is_err() {
            return;
        }
        if node.is_stopping() {
            return;
        }
    }
}

fn response(status: ServingStatus) -> HealthCheckResponse {
    HealthCheckResponse { status: status.into() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock;
    use crate::metrics::Metrics;
    use crate::mvcc::Mvcc;
    use crate::quota::Quota;
    use crate::state::State;
    use crate::store::Store;
    use std::sync::Arc;
    use tokio::sync::watch as channel;
    use tokio_stream::StreamExt;

    fn store() -> Arc<Store> {
        Arc::new(Store::new(
            State::new(Mvcc::new()),
            Quota::new(None, None),
            Metrics::new(),
            None,
        ))
    }

    fn check_request(service: &str) -> Request<HealthCheckRequest> {
        let service = service.to_owned();
        Request::new(HealthCheckRequest { service })
    }

    #[tokio::test(start_paused = true)]
    async fn a_watch_reports_the_writer_and_its_end() {
        let (stores, receiver) = channel::channel(None);
        let node = Node::new(receiver, Duration::from_secs(1), Vec::new());
        let mut watch = node.watch(check_request("")).await.unwrap().into_inner();
        let mut next = async || watch.next().await.map(|answer| answer.unwrap().status());
        assert_eq!(next().await, Some(ServingStatus::NotServing));
        let store = store();
        store.extend_lease(clock::now() + Duration::from_secs(3600));
        stores.send_replace(Some(Arc::clone(&store)));
        assert_eq!(next().await, Some(ServingStatus::Serving));
        store.stop();
        assert_eq!(next().await, Some(ServingStatus::NotServing));
        assert_eq!(next().await, None);
    }

    #[tokio::test(start_paused = true)]
    async fn other_services_are_unknown() {
        let (_stores, receiver) = channel::channel(None);
        let node = Node::new(receiver, Duration::from_secs(1), Vec::new());
        let error = node.check(check_request("etcdserverpb.KV")).await.unwrap_err();
        assert_eq!(error.code(), tonic::Code::NotFound);
        let mut watch = node.watch(check_request("etcdserverpb.KV")).await.unwrap().into_inner();
        let answer = watch.next().await.unwrap().unwrap();
        assert_eq!(answer.status(), ServingStatus::ServiceUnknown);
    }
}
