//! `ext_authz`: Envoy asks about each new connection, [`crate::gate`] answers.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use envoy_types::pb::envoy::config::core::v3::address::Address;
use envoy_types::pb::envoy::service::auth::v3::attribute_context::Peer;
use envoy_types::pb::envoy::service::auth::v3::authorization_server::Authorization;
use envoy_types::pb::envoy::service::auth::v3::{CheckRequest, CheckResponse};
use envoy_types::pb::google::protobuf::value::Kind;
use envoy_types::pb::google::protobuf::{Struct, Value};
use envoy_types::pb::google::rpc;
use tonic::{Code, Request, Response, Status};

use crate::gate::{Gate, Refusal, Verdict};
use crate::metrics::Metrics;
use crate::routing::Snapshots;
use crate::server::Context;
use crate::snapshot::resource_name;

/// Key of the verdict in the connection's dynamic metadata, which Envoy's access log shows.
const VERDICT: &str = "verdict";
const TENANT: &str = "tenant";
const CLUSTER: &str = "cluster";

/// The service.
#[derive(Debug)]
pub(super) struct Gatekeeper {
    snapshots: Snapshots,
    // Held for one decision, never while waiting.
    gate: Mutex<Gate>,
    metrics: Metrics,
}

impl Gatekeeper {
    pub(super) fn new(context: &Context, gate: Gate) -> Self {
        Self {
            snapshots: context.snapshots.clone(),
            gate: Mutex::new(gate),
            metrics: context.metrics.clone(),
        }
    }
}

#[tonic::async_trait]
impl Authorization for Gatekeeper {
    async fn check(&self, request: Request<CheckRequest>) -> Result<Response<CheckResponse>, Status> {
        let attributes = request.into_inner().attributes.unwrap_or_default();
        let name = attributes.tls_session.map(|session| session.sni).unwrap_or_default();
        let source = attributes.source.as_ref().and_then(to_ip);
        let snapshot = self.snapshots.borrow().clone();
        let verdict = {
            let mut gate = self.gate.lock().unwrap_or_else(PoisonError::into_inner);
            gate.check(Instant::now(), snapshot.as_deref(), &name, source)
        };
        self.metrics.count_verdict(&verdict);
        let (code, word) = match &verdict {
            Verdict::Allow => (Code::Ok, "allowed"),
            Verdict::Refuse(refusal) => (to_code(*refusal), refusal.as_str()),
        };
        let mut fields = HashMap::from([(VERDICT.to_owned(), to_value(word))]);
        let entry = snapshot
            .as_ref()
            .and_then(|snapshot| snapshot.get(&resource_name(&name)));
        if let Some(entry) = entry {
            fields.insert(TENANT.to_owned(), to_value(&entry.route.tenant));
            fields.insert(CLUSTER.to_owned(), to_value(&entry.route.cluster));
        }
        Ok(Response::new(CheckResponse {
            status: Some(rpc::Status {
                code: code.into(),
                message: word.to_owned(),
                ..Default::default()
            }),
            dynamic_metadata: Some(Struct { fields }),
            ..Default::default()
        }))
    }
}

fn to_code(refusal: Refusal) -> Code {
    match refusal {
        Refusal::NoName | Refusal::Unknown => Code::PermissionDenied,
        Refusal::NotSynced | Refusal::NoEndpoints => Code::Unavailable,
        Refusal::SourceRate | Refusal::NameRate => Code::ResourceExhausted,
    }
}

fn to_ip(peer: &Peer) -> Option<IpAddr> {
    match peer.address.as_ref()?.address.as_ref()? {
        Address::SocketAddress(socket) => socket.address.parse().ok(),
        _ => None,
    }
}

fn to_value(text: &str) -> Value {
    Value {
        kind: Some(Kind::StringValue(text.to_owned())),
    }
}
