//! The `ext_authz` service: Envoy calls it for each new connection, and for each request whose TLS
//! ended at Envoy. [`crate::authz`] decides.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use envoy_types::pb::envoy::config::core::v3::header_value_option::HeaderAppendAction;
use envoy_types::pb::envoy::config::core::v3::{HeaderValue, HeaderValueOption};
use envoy_types::pb::envoy::service::auth::v3::attribute_context::HttpRequest;
use envoy_types::pb::envoy::service::auth::v3::authorization_server::Authorization;
use envoy_types::pb::envoy::service::auth::v3::check_response::HttpResponse;
use envoy_types::pb::envoy::service::auth::v3::{AttributeContext, CheckRequest, CheckResponse};
use envoy_types::pb::envoy::service::auth::v3::{DeniedHttpResponse, OkHttpResponse};
use envoy_types::pb::envoy::r#type::v3::HttpStatus;
use envoy_types::pb::google::protobuf::value::Kind;
use envoy_types::pb::google::protobuf::{Struct, Value};
use envoy_types::pb::google::rpc;
use k8s_openapi::jiff::Timestamp;
use tonic::{Code, Request, Response, Status};
use yoke_api::ingress::Asleep;

use crate::authz::request;
use crate::authz::status_response::{build_advice, build_body, build_headers};
use crate::authz::token::Verified;
use crate::authz::verdict::{ALLOWED, ConnectionRefusal, RequestRefusal};
use crate::authz::{Gate, Verdict};
use crate::metrics::Metrics;
use crate::model::route::Route;
use crate::server::attributes::{CLUSTER, ID, NAME, TENANT, VERDICT, to_socket};
use crate::server::context::ServerContext;
use crate::server::pending_requests::PendingRequests;
use crate::server::tarpit::Tarpit;
use crate::snapshot::Snapshots;
use crate::snapshot::resource::resource_name;
use crate::snapshot::{Entry, Snapshot};

/// Metadata key of the filter chain, for connections whose TLS ends at Envoy. The listener's access
/// log contains the refused ones of these.
const CHAIN: &str = "chain";
/// gRPC metadata key in Envoy's configuration which says that requests of the connection are
/// decided one by one.
const CHAIN_METADATA: &str = "yoke-chain";
const TERMINATED: &str = "terminated";
/// The header from which Envoy's route takes the cluster. Envoy removes a client's header of this
/// name first.
const ROUTE_HEADER: &str = "x-yoke-cluster";
const AUTHORIZATION: &str = "authorization";
const USER_AGENT: &str = "user-agent";

/// The cluster that issued a request's token, and the token's subject.
type Found = Verified<Arc<Entry>>;
/// Why a request is refused, with the cluster that issued its token.
type Refused<T> = (RequestRefusal, Option<T>);

/// The gRPC service.
#[derive(Debug)]
pub(super) struct AuthorizationService {
    snapshots: Snapshots,
    gate: Arc<Mutex<Gate>>,
    tarpit: Tarpit,
    metrics: Metrics,
    pending: PendingRequests,
}

impl AuthorizationService {
    pub(super) fn new(context: &ServerContext, gate: Arc<Mutex<Gate>>) -> Self {
        Self {
            snapshots: context.snapshots.clone(),
            gate,
            tarpit: Tarpit::new(context.limits.refusal_delay),
            metrics: context.metrics.clone(),
            pending: PendingRequests::new(
                context.snapshots.clone(),
                context.waker.clone(),
                context.metrics.clone(),
                context.drain.clone(),
            ),
        }
    }
}

#[tonic::async_trait]
impl Authorization for AuthorizationService {
    async fn check(&self, request: Request<CheckRequest>) -> Result<Response<CheckResponse>, Status> {
        let terminated = request
            .metadata()
            .get(CHAIN_METADATA)
            .is_some_and(|chain| chain == TERMINATED);
        let mut attributes = request.into_inner().attributes.unwrap_or_default();
        let http = attributes.request.take().and_then(|request| request.http);
        // Only Envoy's HTTP filter sends attributes of a request.
        let is_source = terminated && http.is_none();
        let response = match http {
            Some(http) => self.check_request(&attributes, &http).await,
            None if terminated => self.check_source(&attributes),
            None => self.check_connection(&attributes),
        };
        let code = response.status.as_ref().map(|status| Code::from(status.code));
        // The check of a source has a short timeout, after which Envoy allows the connection, so
        // its answer is never delayed.
        if code == Some(Code::ResourceExhausted) && !is_source {
            self.tarpit.wait().await;
        }
        Ok(Response::new(response))
    }
}

impl AuthorizationService {
    /// Checks a connection on which each request is decided separately.
    fn check_source(&self, attributes: &AttributeContext) -> CheckResponse {
        let verdict = self.decide(|gate| gate.check_source(Instant::now(), find_source(attributes)));
        let (code, label) = self.count(&verdict);
        let mut response = to_response(code, label, None);
        if let Some(metadata) = &mut response.dynamic_metadata {
            metadata.fields.insert(CHAIN.to_owned(), to_value(TERMINATED));
        }
        response
    }

    fn decide(&self, decide: impl FnOnce(&mut Gate) -> Verdict) -> Verdict {
        let mut gate = self.gate.lock().unwrap_or_else(PoisonError::into_inner);
        let verdict = decide(&mut gate);
        self.metrics.set_open_connections(gate.open_connections().total());
        verdict
    }

    fn count(&self, verdict: &Verdict) -> (Code, &'static str) {
        let (code, label) = match verdict {
            Verdict::Allow => (Code::Ok, ALLOWED),
            Verdict::Refuse(refusal) => (to_code(*refusal), refusal.as_str()),
        };
        self.metrics.count_verdict(label);
        (code, label)
    }

    fn check_connection(&self, attributes: &AttributeContext) -> CheckResponse {
        let name = attributes.tls_session.as_ref().map(|session| session.sni.as_str());
        let name = name.unwrap_or_default();
        let source = find_source(attributes);
        let snapshot = self.snapshots.borrow().clone();
        let verdict = self.decide(|gate| gate.check(Instant::now(), snapshot.as_deref(), name, source));
        let (code, label) = self.count(&verdict);
        let entry = snapshot
            .as_ref()
            .and_then(|snapshot| snapshot.get(&resource_name(name)));
        to_response(code, label, entry.map(|entry| entry.route.as_ref()))
    }

    async fn check_request(&self, attributes: &AttributeContext, http: &HttpRequest) -> CheckResponse {
        let facts = request::Request {
            authorization: http.headers.get(AUTHORIZATION).map(String::as_str),
            authority: &http.host,
            source: find_source(attributes).map(|source| source.ip()),
            agent: http.headers.get(USER_AGENT).map_or(&[], |agent| agent.as_bytes()),
        };
        match self.decide_when_awake(facts).await {
            Ok(entry) => {
                self.metrics.count_request(ALLOWED);
                CheckResponse {
                    http_response: Some(HttpResponse::OkResponse(translate_route(&entry.route))),
                    ..to_response(Code::Ok, ALLOWED, Some(&entry.route))
                }
            }
            Err((refusal, entry)) => {
                let label = refusal.as_str();
                self.metrics.count_request(label);
                let route = entry.as_ref().map(|entry| entry.route.as_ref());
                let code = match refusal {
                    RequestRefusal::Rate => Code::ResourceExhausted,
                    _ => Code::PermissionDenied,
                };
                CheckResponse {
                    http_response: Some(HttpResponse::DeniedResponse(translate_refusal(refusal, route))),
                    ..to_response(code, label, route)
                }
            }
        }
    }

    /// The cluster that a request goes to, or the refusal together with the cluster that issued its
    /// token. A sleeping cluster is woken.
    async fn decide_when_awake(&self, request: request::Request<'_>) -> Result<Arc<Entry>, Refused<Arc<Entry>>> {
        let snapshot = self.snapshots.borrow().clone();
        let (subject, entry) = match self.decide_request(snapshot.as_deref(), request) {
            Err((RequestRefusal::Asleep, Some(Verified { cluster, subject }))) => (subject, cluster),
            result => return result.map_err(|(refusal, found)| (refusal, found.map(|found| found.cluster))),
        };
        let waited = self.pending.wait(&entry, subject, request).await;
        // Decide again with the newest snapshot: the token may have expired, or the source may be
        // forbidden by now.
        let snapshot = self.snapshots.borrow().clone();
        waited.map_err(|refusal| {
            let name = resource_name(&entry.route.public_name);
            let now = snapshot.as_ref().and_then(|all| all.get(&name).cloned());
            (refusal, now.or(Some(entry)))
        })?;
        let decided = self.decide_request(snapshot.as_deref(), request);
        decided.map_err(|(refusal, found)| (refusal, found.map(|found| found.cluster)))
    }

    fn decide_request(
        &self,
        snapshot: Option<&Snapshot>,
        request: request::Request<'_>,
    ) -> Result<Arc<Entry>, Refused<Found>> {
        let snapshot = snapshot.ok_or((RequestRefusal::NotSynced, None))?;
        // The signature is verified outside of the lock.
        let found =
            request::find_cluster_by_token(snapshot, request, Timestamp::now()).map_err(|refusal| (refusal, None))?;
        let entry = &found.cluster;
        let checked = request::check(snapshot, entry, request).and_then(|()| self.charge_request(entry));
        match checked {
            Ok(()) => Ok(found.cluster),
            Err(refusal) => Err((refusal, Some(found))),
        }
    }

    fn charge_request(&self, entry: &Entry) -> Result<(), RequestRefusal> {
        let mut gate = self.gate.lock().unwrap_or_else(PoisonError::into_inner);
        gate.charge_request(Instant::now(), &entry.route.id)
    }
}

fn to_response(code: Code, label: &str, route: Option<&Route>) -> CheckResponse {
    let mut fields = HashMap::from([(VERDICT.to_owned(), to_value(label))]);
    if let Some(route) = route {
        fields.insert(TENANT.to_owned(), to_value(&route.tenant));
        fields.insert(CLUSTER.to_owned(), to_value(&route.cluster));
        fields.insert(NAME.to_owned(), to_value(&route.public_name));
        fields.insert(ID.to_owned(), to_value(route.id.as_str()));
    }
    CheckResponse {
        status: Some(rpc::Status {
            code: code.into(),
            message: label.to_owned(),
            ..Default::default()
        }),
        dynamic_metadata: Some(Struct { fields }),
        ..Default::default()
    }
}

fn translate_route(route: &Route) -> OkHttpResponse {
    OkHttpResponse {
        headers: vec![to_header(ROUTE_HEADER, resource_name(&route.public_name))],
        ..Default::default()
    }
}

fn translate_refusal(refusal: RequestRefusal, route: Option<&Route>) -> DeniedHttpResponse {
    let mut status = refusal.to_status();
    match (refusal, route.and_then(|route| Some(&route.asleep.as_ref()?.state))) {
        (RequestRefusal::Held, Some(Asleep::Held { why })) => status.message = Some(why.clone()),
        (RequestRefusal::Stuck, Some(Asleep::Waking { problem, .. })) => {
            status.message = problem.as_deref().map(build_advice);
        }
        _ => {}
    }
    let headers = build_headers(&status);
    DeniedHttpResponse {
        status: status.code.map(|code| HttpStatus { code }),
        headers: headers.map(|(name, value)| to_header(name.as_str(), value)).collect(),
        body: build_body(&status),
    }
}

fn to_header(key: &str, value: String) -> HeaderValueOption {
    HeaderValueOption {
        header: Some(HeaderValue {
            key: key.to_owned(),
            value,
            ..Default::default()
        }),
        append_action: HeaderAppendAction::OverwriteIfExistsOrAdd.into(),
        ..Default::default()
    }
}

fn to_code(refusal: ConnectionRefusal) -> Code {
    match refusal {
        ConnectionRefusal::NoName | ConnectionRefusal::Unknown | ConnectionRefusal::SourceNotAllowed => {
            Code::PermissionDenied
        }
        ConnectionRefusal::NotSynced | ConnectionRefusal::NoEndpoints => Code::Unavailable,
        ConnectionRefusal::SourceRate | ConnectionRefusal::SourceConnections | ConnectionRefusal::NameRate => {
            Code::ResourceExhausted
        }
    }
}

fn find_source(attributes: &AttributeContext) -> Option<SocketAddr> {
    to_socket(attributes.source.as_ref()?.address.as_ref()?)
}

fn to_value(text: &str) -> Value {
    Value {
        kind: Some(Kind::StringValue(text.to_owned())),
    }
}
