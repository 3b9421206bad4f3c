//! Envoy's access logs. One stream is one log of one worker: of connections that ended, by which the gate knows how many a
//! source has ([`ends`]), or of what clients did ([`traffic`]).
//!
//! Envoy does not wait for an answer, and drops what does not get away in time. What was on its way when a stream broke off is
//! lost, too: such streams are counted.

mod ends;
mod traffic;

use std::sync::{Arc, Mutex};

use envoy_types::pb::envoy::service::accesslog::v3::access_log_service_server::AccessLogService;
use envoy_types::pb::envoy::service::accesslog::v3::stream_access_logs_message::LogEntries;
use envoy_types::pb::envoy::service::accesslog::v3::{StreamAccessLogsMessage, StreamAccessLogsResponse};
use tonic::{Request, Response, Status, Streaming};
use yoke_runtime::Drain;

use crate::gate::Gate;
use crate::metrics::Metrics;
use crate::routing::Snapshots;
use crate::server::Context;

/// Names of the logs in Envoy's bootstrap.
const ENDS: &str = "connections";
const TRAFFIC: &str = "traffic";

/// The service.
#[derive(Debug)]
pub(super) struct Logs {
    gate: Arc<Mutex<Gate>>,
    snapshots: Snapshots,
    metrics: Metrics,
    drain: Drain,
}

/// Who reads a stream.
enum Reader {
    Ends(ends::Reader),
    Traffic(traffic::Reader),
}

impl Logs {
    pub(super) fn new(context: &Context, gate: Arc<Mutex<Gate>>) -> Self {
        Self {
            gate,
            snapshots: context.snapshots.clone(),
            metrics: context.metrics.clone(),
            drain: context.drain.clone(),
        }
    }

    async fn read(&self, mut messages: Streaming<StreamAccessLogsMessage>) -> Result<(), Status> {
        // Before a stream says which log it is, it may be this one, and what is lost with it an end.
        let ends = ends::Reader::new(&self.gate, &self.metrics);
        let Some(first) = messages.message().await? else {
            return Ok(());
        };
        // Only the first message says it.
        let name = first.identifier.as_ref().map(|identifier| identifier.log_name.as_str());
        let reader = match name {
            Some(ENDS) => Reader::Ends(ends),
            Some(TRAFFIC) => {
                ends.dismiss();
                Reader::Traffic(traffic::Reader::new(&self.snapshots, &self.metrics))
            }
            _ => return Err(Status::invalid_argument("no such log")),
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
            (Self::Ends(reader), LogEntries::TcpLogs(logs)) => reader.read(&logs.log_entry),
            // Only connections end there.
            (Self::Ends(_), LogEntries::HttpLogs(_)) => {}
            (Self::Traffic(reader), LogEntries::TcpLogs(logs)) => reader.read_connections(&logs.log_entry),
            (Self::Traffic(reader), LogEntries::HttpLogs(logs)) => reader.read_requests(&logs.log_entry),
        }
    }
}
