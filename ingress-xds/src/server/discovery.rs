//! The delta ADS service: converts between Envoy's messages and the state machine of
//! [`crate::ads`], one for each stream.

use std::collections::BTreeMap;
use std::pin::Pin;

use envoy_types::pb::envoy::service::discovery::v3::aggregated_discovery_service_server::AggregatedDiscoveryService;
use envoy_types::pb::envoy::service::discovery::v3::{
    DeltaDiscoveryRequest, DeltaDiscoveryResponse, DiscoveryRequest, DiscoveryResponse, Resource,
};
use envoy_types::pb::google::protobuf::Any;
use futures::Stream;
use futures::stream;
use tokio::sync::mpsc;
use tonic::{Request, Response, Status, Streaming};
use yoke_runtime::Drain;

use crate::ads;
use crate::base::{Input, Rejection};
use crate::metrics::Metrics;
use crate::server::context::ServerContext;
use crate::snapshot::Snapshots;
use crate::snapshot::resource::ResourceKind;

const CLUSTER: &str = "type.googleapis.com/envoy.config.cluster.v3.Cluster";
const LISTENER: &str = "type.googleapis.com/envoy.config.listener.v3.Listener";
const ROUTES: &str = "type.googleapis.com/envoy.config.route.v3.RouteConfiguration";
const SECRET: &str = "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.Secret";
const ENDPOINTS: &str = "type.googleapis.com/envoy.config.endpoint.v3.ClusterLoadAssignment";

type Answers<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

/// The gRPC service.
#[derive(Debug)]
pub(super) struct Discovery {
    snapshots: Snapshots,
    base: mpsc::Sender<Input>,
    metrics: Metrics,
    drain: Drain,
}

/// One stream. The next response is built only when the previous one was taken, so a slow client
/// queues nothing here.
struct Session {
    requests: Streaming<DeltaDiscoveryRequest>,
    snapshots: Snapshots,
    state: ads::Stream,
    node: Option<String>,
    base: mpsc::Sender<Input>,
    metrics: Metrics,
    drain: Drain,
}

impl Discovery {
    pub(super) fn new(context: &ServerContext) -> Self {
        Self {
            snapshots: context.snapshots.clone(),
            base: context.base.clone(),
            metrics: context.metrics.clone(),
            drain: context.drain.clone(),
        }
    }
}

#[tonic::async_trait]
impl AggregatedDiscoveryService for Discovery {
    type StreamAggregatedResourcesStream = Answers<DiscoveryResponse>;
    type DeltaAggregatedResourcesStream = Answers<DeltaDiscoveryResponse>;

    async fn stream_aggregated_resources(
        &self,
        _request: Request<Streaming<DiscoveryRequest>>,
    ) -> Result<Response<Self::StreamAggregatedResourcesStream>, Status> {
        Err(Status::unimplemented("only the delta protocol of xDS is served"))
    }

    async fn delta_aggregated_resources(
        &self,
        request: Request<Streaming<DeltaDiscoveryRequest>>,
    ) -> Result<Response<Self::DeltaAggregatedResourcesStream>, Status> {
        let requests = request.into_inner();
        let mut snapshots = self.snapshots.clone();
        let (metrics, drain, base) = (self.metrics.clone(), self.drain.clone(), self.base.clone());
        let start = async move {
            let snapshot = drain.until_started(snapshots.wait_for(Option::is_some)).await;
            let snapshot = snapshot.and_then(Result::ok).and_then(|snapshot| snapshot.clone());
            let snapshot = snapshot.ok_or_else(ending)?;
            metrics.add_streams(1);
            Ok::<_, Status>(Session {
                requests,
                snapshots,
                state: ads::Stream::new(snapshot),
                node: None,
                base,
                metrics,
                drain,
            })
        };
        // The headers are sent at once; only the first response waits until the host's objects were
        // listed.
        let answers = stream::try_unfold(Begin::Waiting(Box::pin(start)), |begin| async {
            let mut session = match begin {
                Begin::Waiting(start) => Box::new(start.await?),
                Begin::Running(session) => session,
            };
            let response = session.next().await?;
            Ok(response.map(|response| (response, Begin::Running(session))))
        });
        Ok(Response::new(Box::pin(answers)))
    }
}

enum Begin<F> {
    Waiting(Pin<Box<F>>),
    Running(Box<Session>),
}

impl Session {
    /// The next response; `None` if the client has closed its side of the stream.
    async fn next(&mut self) -> Result<Option<DeltaDiscoveryResponse>, Status> {
        loop {
            if let Some(response) = self.state.next_response() {
                return Ok(Some(self.to_message(response)));
            }
            tokio::select! {
                () = self.drain.started() => return Err(ending()),
                changed = self.snapshots.changed() => {
                    changed.map_err(|_| ending())?;
                    let newer = self.snapshots.borrow_and_update().clone();
                    if let Some(newer) = newer {
                        self.state.on_snapshot(newer);
                    }
                }
                request = self.requests.message() => match request? {
                    None => return Ok(None),
                    Some(request) => self.handle(request).await?,
                },
            }
        }
    }

    async fn handle(&mut self, message: DeltaDiscoveryRequest) -> Result<(), Status> {
        if self.node.is_none() {
            let node = message.node.as_ref().map(|node| node.id.clone()).unwrap_or_default();
            tracing::info!(
                node,
                client_versions = message.initial_resource_versions.len(),
                "xDS stream opened"
            );
            self.node = Some(node);
        }
        let kind = match message.type_url.as_str() {
            CLUSTER => ResourceKind::Cluster,
            ENDPOINTS => ResourceKind::Endpoints,
            LISTENER => ResourceKind::Listener,
            ROUTES => ResourceKind::Routes,
            SECRET => ResourceKind::Secret,
            other => {
                tracing::warn!(r#type = other, "Envoy requested a resource type that is not served");
                return Ok(());
            }
        };
        let request = ads::Request {
            kind,
            nonce: message.response_nonce,
            error: message.error_detail.map(|status| status.message),
            subscribe: message.resource_names_subscribe,
            unsubscribe: message.resource_names_unsubscribe,
            client_versions: message
                .initial_resource_versions
                .into_iter()
                .collect::<BTreeMap<_, _>>(),
        };
        let refusal = self.state.on_request(request);
        let refusal = refusal.map_err(|error| Status::resource_exhausted(error.to_string()))?;
        if let Some(refusal) = refusal {
            self.metrics.count_refusal(refusal.kind);
            let route = refusal.route.as_ref();
            tracing::error!(
                namespace = route.map(|route| route.namespace.as_str()),
                tenant = route.map(|route| route.tenant.as_str()),
                cluster = route.map(|route| route.cluster.as_str()),
                kind = ?refusal.kind,
                error = refusal.reason,
                node = self.node,
                "Envoy rejected a resource and continues with its last good version"
            );
            if refusal.route.is_none() {
                report_to_base(&self.base, refusal).await;
            }
        }
        Ok(())
    }

    fn to_message(&self, response: ads::Response) -> DeltaDiscoveryResponse {
        let type_url = match response.kind {
            ResourceKind::Cluster => CLUSTER,
            ResourceKind::Endpoints => ENDPOINTS,
            ResourceKind::Listener => LISTENER,
            ResourceKind::Routes => ROUTES,
            ResourceKind::Secret => SECRET,
        };
        let bytes = response.resources.iter().map(|(_, resource)| resource.body.len()).sum();
        self.metrics.count_response(response.kind, bytes);
        let resources = response.resources.into_iter().map(|(name, resource)| Resource {
            name: name.to_string(),
            version: resource.version.to_string(),
            resource: Some(Any {
                type_url: type_url.to_owned(),
                value: resource.body.to_vec(),
            }),
            ..Default::default()
        });
        DeltaDiscoveryResponse {
            type_url: type_url.to_owned(),
            nonce: response.nonce,
            resources: resources.collect(),
            removed_resources: response.removed,
            ..Default::default()
        }
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.metrics.add_streams(-1);
    }
}

/// Forwards a rejection to the owner of the base configuration, which rolls it back as a whole.
async fn report_to_base(base: &mpsc::Sender<Input>, refusal: ads::RefusedResponse) {
    for (name, version) in refusal.resources {
        let rejection = Rejection {
            kind: refusal.kind,
            name,
            version,
            reason: refusal.reason.clone(),
        };
        // An error means that the receiver is gone: the process is ending.
        let _ = base.send(Input::Refused(rejection)).await;
    }
}

fn ending() -> Status {
    Status::unavailable("the process is shutting down; connect to another replica")
}
