//! The access log service. One stream carries one log of one Envoy worker: either ended
//! connections, with which the gate counts the connections of a source ([`closed_connections`]), or
//! the clients' traffic ([`traffic`]).
//!
//! Envoy does not wait for an answer, and drops entries that it cannot send in time. Entries in
//! flight on a stream that breaks are lost as well, so such streams are counted.

mod closed_connections;
mod traffic;

use std::sync::{Arc, Mutex};

use envoy_types::pb::envoy::service::accesslog::v3::access_log_service_server::AccessLogService;
use envoy_types::pb::envoy::service::accesslog::v3::stream_access_logs_message::LogEntries;
use envoy_types::pb::envoy::service::accesslog::v3::{StreamAccessLogsMessage, StreamAccessLogsResponse};
use tonic::{Request, Response, Status, Streaming};
use yoke_runtime::Drain;

use crate::authz::Gate;
use crate::metrics::Metrics;
use crate::server::context::ServerContext;
use crate::snapshot::Snapshots;

/// Names of the logs in Envoy's bootstrap.
const CONNECTIONS: &str = "connections";
const TRAFFIC: &str = "traffic";

/// The gRPC service.
#[derive(Debug)]
pub(super) struct Logs {
    gate: Arc<Mutex<Gate>>,
    snapshots: Snapshots,
    metrics: Metrics,
    drain: Drain,
}

/// The reader of one stream.
enum Reader {
    Connections(closed_connections::Reader),
    Traffic(traffic::Reader),
}

impl Logs {
    pub(super) fn new(context: &ServerContext, gate: Arc<Mutex<Gate>>) -> Self {
        Self {
            gate,
            snapshots: context.snapshots.clone(),
            metrics: context.metrics.clone(),
            drain: context.drain.clone(),
        }
    }

    async fn read(&self, mut messages: Streaming<StreamAccessLogsMessage>) -> Result<(), Status> {
        // The first message names the log. If the stream breaks before it, ended connections may be
        // missing. So until then the stream counts as a log of connections.
        let closed_connections = closed_connections::Reader::new(&self.gate, &self.metrics);
        let Some(first) = messages.message().await? else {
            return Ok(());
        };
        // Only the first message contains the name.
        let name = first.identifier.as_ref().map(|identifier| identifier.log_name.as_str());
        let reader = match name {
            Some(CONNECTIONS) => Reader::Connections(closed_connections),
            Some(TRAFFIC) => {
                closed_connections.dismiss();
                Reader::Traffic(traffic::Reader::new(&self.snapshots, &self.metrics))
            }
            _ => {
                return Err(Status::invalid_argument(
                    "the log name is unknown; allowed are connections and traffic",
                ));
            }
        };
        reader.read(first);
        while let Some(message) = messages.message().await? {
            reader.read(message);
        }
        Ok(())
    }
}

#[tonic::async_trait]
impl AccessLogService for Logs {
    async fn stream_access_logs(
        &self,
        request: Request<Streaming<StreamAccessLogsMessage>>,
    ) -> Result<Response<StreamAccessLogsResponse>, Status> {
        let read = self.drain.until_started(self.read(request.into_inner())).await;
        if !matches!(read, Some(Ok(()))) {
            self.metrics.count_broken_log();
        }
        read.unwrap_or(Ok(()))
            .map(|()| Response::new(StreamAccessLogsResponse {}))
    }
}

impl Reader {
    fn read(&self, message: StreamAccessLogsMessage) {
        let Some(entries) = message.log_entries else {
            return;
        };
        match (self, entries) {
            (Self::Connections(reader), LogEntries::TcpLogs(logs)) => reader.read(&logs.log_entry),
            // HTTP entries do not report the end of a connection.
            (Self::Connections(_), LogEntries::HttpLogs(_)) => {}
            (Self::Traffic(reader), LogEntries::TcpLogs(logs)) => reader.read_connections(&logs.log_entry),
            (Self::Traffic(reader), LogEntries::HttpLogs(logs)) => reader.read_requests(&logs.log_entry),
        }
    }
}
