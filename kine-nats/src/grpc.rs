//! The etcd API. Each service validates a request, forwards it to the store or its writer, and
//! completes the header of the response.

mod backup;
pub(crate) mod clients;
mod cluster;
mod counted;
mod health;
mod kv;
mod lease;
pub(crate) mod listen;
mod maintenance;
pub(crate) mod node;
mod pages;
mod submit;
pub(crate) mod tls;
mod watch;

use crate::limits::MAX_REQUEST;
use crate::metrics::Calls;
use crate::proto::etcdserverpb as pb;
use counted::CountedService;
use node::Node;
use pb::cluster_server::ClusterServer;
use pb::kv_server::KvServer;
use pb::lease_server::LeaseServer;
use pb::maintenance_server::MaintenanceServer;
use pb::watch_server::WatchServer;
use std::sync::Arc;
use tonic::service::Routes;
use tonic_health::pb::health_server::HealthServer;

/// Largest message that the server accepts. Like etcd it is `grpcOverheadBytes` more than the
/// largest request, whose limit has an error of its own.
const MAX_MESSAGE: usize = MAX_REQUEST + 512 * 1024;

/// Builds all services, with their calls counted.
pub(crate) fn routes(node: &Node, calls: &Arc<Calls>) -> Routes {
    let mut routes = Routes::builder();
    let kv = KvServer::new(node.clone()).max_decoding_message_size(MAX_MESSAGE);
    let watch = WatchServer::new(node.clone()).max_decoding_message_size(MAX_MESSAGE);
    let lease = LeaseServer::new(node.clone()).max_decoding_message_size(MAX_MESSAGE);
    let cluster = ClusterServer::new(node.clone()).max_decoding_message_size(MAX_MESSAGE);
    let maintenance = MaintenanceServer::new(node.clone()).max_decoding_message_size(MAX_MESSAGE);
    routes
        .add_service(CountedService::new(kv, Arc::clone(calls)))
        .add_service(CountedService::new(watch, Arc::clone(calls)))
        .add_service(CountedService::new(lease, Arc::clone(calls)))
        .add_service(CountedService::new(cluster, Arc::clone(calls)))
        .add_service(CountedService::new(maintenance, Arc::clone(calls)))
        .add_service(CountedService::new(HealthServer::new(node.clone()), Arc::clone(calls)));
    routes.routes()
}
