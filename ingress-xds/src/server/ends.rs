//! Envoy's access log of connections: [`crate::gate`] learns from it which have ended.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};

use envoy_types::pb::envoy::data::accesslog::v3::TcpAccessLogEntry;
use envoy_types::pb::envoy::service::accesslog::v3::access_log_service_server::AccessLogService;
use envoy_types::pb::envoy::service::accesslog::v3::stream_access_logs_message::LogEntries;
use envoy_types::pb::envoy::service::accesslog::v3::{StreamAccessLogsMessage, StreamAccessLogsResponse};
use tonic::{Request, Response, Status, Streaming};
use yoke_runtime::Drain;

use crate::gate::Gate;
use crate::gate::held::Held;
use crate::metrics::Metrics;
use crate::server::{Context, to_socket};

/// The service.
#[derive(Debug)]
pub(super) struct Ends {
    gate: Arc<Mutex<Gate>>,
    metrics: Metrics,
    drain: Drain,
}

/// What one worker of an Envoy says. When it ends, however it does, something may have been missed.
struct Session {
    gate: Arc<Mutex<Gate>>,
    metrics: Metrics,
}

impl Ends {
    pub(super) fn new(context: &Context, gate: Arc<Mutex<Gate>>) -> Self {
        Self {
            gate,
            metrics: context.metrics.clone(),
            drain: context.drain.clone(),
        }
    }
}

#[tonic::async_trait]
impl AccessLogService for Ends {
    async fn stream_access_logs(
        &self,
        request: Request<Streaming<StreamAccessLogsMessage>>,
    ) -> Result<Response<StreamAccessLogsResponse>, Status> {
        let session = Session {
            gate: Arc::clone(&self.gate),
            metrics: self.metrics.clone(),
        };
        let mut messages = request.into_inner();
        while let Some(message) = self.drain.until_started(messages.message()).await {
            let Some(message) = message? else {
                break;
            };
            if let Some(LogEntries::TcpLogs(logs)) = message.log_entries {
                session.tell(|held| {
                    logs.log_entry
                        .iter()
                        .filter_map(to_peer)
                        .for_each(|peer| held.end(peer))
                });
            }
        }
        Ok(Response::new(StreamAccessLogsResponse {}))
    }
}

impl Session {
    fn tell(&self, tell: impl FnOnce(&mut Held)) {
        let mut gate = self.gate.lock().unwrap_or_else(PoisonError::into_inner);
        tell(gate.held());
        self.metrics.set_held(gate.held().total());
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.tell(Held::forget);
    }
}

fn to_peer(entry: &TcpAccessLogEntry) -> Option<SocketAddr> {
    to_socket(entry.common_properties.as_ref()?.downstream_remote_address.as_ref()?)
}
