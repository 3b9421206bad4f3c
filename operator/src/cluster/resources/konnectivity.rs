//! konnectivity-server: the container to which the agents on workers connect. Through it
//! kube-apiserver sends requests to the cluster's own network: to kubelets, to webhooks and to
//! aggregated APIs.
//!
//! ```text
//!  kube-apiserver ──gRPC, unix socket──▶ konnectivity-server ◀──TLS, token── konnectivity-agent
//!                                                kubelet, Pods, Services ◀────────────┘
//! ```
//!
//! kube-apiserver has no other route to that network, whether or not an agent is connected. Agents
//! authenticate with a token of their ServiceAccount; no client certificate is required.

use k8s_openapi::api::core::v1::{Container, ContainerPort, EmptyDirVolumeSource, SecretVolumeSource, Volume};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use serde::Serialize;
use yoke_api::names::{KONNECTIVITY_PORT, KONNECTIVITY_PORT_NAME};

use crate::addons::{self, konnectivity as agent};
use crate::cluster::resources::blueprint::Blueprint;
use crate::cluster::resources::container::{SECRET_MODE, build_container, build_mount};
use crate::cluster::resources::names;
use crate::cluster::resources::paths::{KONNECTIVITY_SOCKET_DIR, PKI};
use crate::cluster::resources::probes::build_liveness;

/// Name of the container.
pub(crate) const NAME: &str = "konnectivity-server";
/// Name of the volume with the socket.
pub(crate) const SOCKET: &str = "konnectivity";
const ADMIN_PORT: u16 = 8133;
const HEALTH_PORT: u16 = 8134;

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct EgressSelectorConfiguration {
    api_version: &'static str,
    kind: &'static str,
    egress_selections: [EgressSelection; 1],
}

#[derive(Serialize)]
struct EgressSelection {
    name: &'static str,
    connection: Connection,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Connection {
    proxy_protocol: &'static str,
    transport: Transport,
}

#[derive(Serialize)]
struct Transport {
    uds: Uds,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Uds {
    uds_name: String,
}

/// The text of [`EGRESS_FILE`](super::paths::EGRESS_FILE), as JSON, which is YAML too. Requests to
/// other networks, such as to an OIDC provider, are sent directly.
///
/// Format: <https://kubernetes.io/docs/tasks/extend-kubernetes/setup-konnectivity/>.
pub(crate) fn to_egress_file() -> String {
    let configuration = EgressSelectorConfiguration {
        api_version: "apiserver.k8s.io/v1beta1",
        kind: "EgressSelectorConfiguration",
        egress_selections: [EgressSelection {
            name: "cluster",
            connection: Connection {
                proxy_protocol: "GRPC",
                transport: Transport {
                    uds: Uds { uds_name: to_socket() },
                },
            },
        }],
    };
    serde_json::to_string_pretty(&configuration).expect("fields are strings and lists")
}

fn to_socket() -> String {
    format!("{KONNECTIVITY_SOCKET_DIR}/server.sock")
}

/// Builds the container. It has no readiness probe: without an agent the server reports not ready,
/// and the first agent needs a ready API to connect.
pub(crate) fn build_server(blueprint: &Blueprint<'_>) -> Container {
    Container {
        name: NAME.into(),
        image: Some(blueprint.config.konnectivity_server_image.clone()),
        // No command: the path of the binary differs between images, and each image has it as its
        // entrypoint.
        args: Some(to_arguments()),
        ports: Some(vec![ContainerPort {
            name: Some(KONNECTIVITY_PORT_NAME.into()),
            container_port: KONNECTIVITY_PORT.into(),
            protocol: Some("TCP".into()),
            ..ContainerPort::default()
        }]),
        liveness_probe: Some(build_liveness("/healthz", HEALTH_PORT, "HTTP")),
        volume_mounts: Some(vec![
            build_mount(names::KONNECTIVITY, PKI, true),
            build_mount(SOCKET, KONNECTIVITY_SOCKET_DIR, false),
        ]),
        ..build_container(blueprint, blueprint.accepted.class.resources.konnectivity.clone())
    }
}

fn to_arguments() -> Vec<String> {
    vec![
        "--mode=grpc".into(),
        format!("--uds-name={}", to_socket()),
        // The socket may be left from a killed server.
        "--delete-existing-uds-file=true".into(),
        "--server-port=0".into(),
        format!("--agent-port={KONNECTIVITY_PORT}"),
        format!("--admin-port={ADMIN_PORT}"),
        format!("--health-port={HEALTH_PORT}"),
        format!("--cluster-cert={PKI}/{}", names::SERVING_CERTIFICATE),
        format!("--cluster-key={PKI}/{}", names::SERVING_KEY),
        format!("--kubeconfig={PKI}/kubeconfig"),
        format!("--authentication-audience={}", agent::AUDIENCE),
        format!("--agent-namespace={}", addons::NAMESPACE),
        format!("--agent-service-account={}", agent::NAME),
        // A node is reached through the agent on it: workers may be behind different NATs, where no
        // other agent could.
        "--proxy-strategies=destHost,default".into(),
        // Detects agents whose worker is gone.
        "--keepalive-time=1m".into(),
    ]
}

/// The volumes that only a control plane with a konnectivity-server has.
pub(crate) fn build_volumes() -> [Volume; 2] {
    [
        Volume {
            name: names::KONNECTIVITY.into(),
            secret: Some(SecretVolumeSource {
                secret_name: Some(names::KONNECTIVITY.into()),
                default_mode: Some(SECRET_MODE),
                ..SecretVolumeSource::default()
            }),
            ..Volume::default()
        },
        Volume {
            name: SOCKET.into(),
            empty_dir: Some(EmptyDirVolumeSource {
                medium: Some("Memory".into()),
                size_limit: Some(Quantity("1Mi".into())),
            }),
            ..Volume::default()
        },
    ]
}
