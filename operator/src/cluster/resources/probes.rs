//! Probes of the containers.

use k8s_openapi::api::core::v1::{HTTPGetAction, Probe};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

/// Checks of a starting kube-apiserver that its probes skip. They create objects that exist since
/// the cluster's first start, which the condition `Ready` reports. An API server answers correctly
/// before it has checked each of them. Measured: they take 1.1 s of the 2.3 s from its start.
const NOT_AWAITED: [&str; 2] = ["rbac/bootstrap-roles", "scheduling/bootstrap-system-priority-classes"];
/// Grace period of a container that failed its liveness probe: its hook does not wait then.
const SILENT_SECONDS: i64 = 5;

/// Turns a health path of an API server into the path that checks whether it serves a cluster that
/// had an API before.
pub fn to_serving(path: &str) -> String {
    let excluded = NOT_AWAITED.map(|hook| format!("exclude=poststarthook/{hook}"));
    format!("{path}?{}", excluded.join("&"))
}

/// Builds a probe of a path.
pub(crate) fn build_probe(path: &str, port: u16, scheme: &str) -> Probe {
    Probe {
        http_get: Some(HTTPGetAction {
            path: Some(path.into()),
            port: IntOrString::Int(port.into()),
            scheme: Some(scheme.into()),
            ..HTTPGetAction::default()
        }),
        period_seconds: Some(10),
        timeout_seconds: Some(5),
        failure_threshold: Some(3),
        ..Probe::default()
    }
}

/// A liveness probe, after whose failure the kubelet restarts the container.
pub(crate) fn build_liveness(path: &str, port: u16, scheme: &str) -> Probe {
    Probe {
        termination_grace_period_seconds: Some(SILENT_SECONDS),
        ..build_probe(path, port, scheme)
    }
}

/// A liveness probe for a component that may have to wait first: for the API server of its pod, and
/// in a standby pod for the takeover.
pub(crate) fn build_client_probe(port: u16) -> Probe {
    Probe {
        initial_delay_seconds: Some(180),
        ..build_patient(build_liveness("/healthz", port, "HTTPS"))
    }
}

/// A probe for a component that may be slow for as long as kubeadm allows, 80 s. It runs less
/// often, as each run opens a TLS connection.
pub(crate) fn build_patient(probe: Probe) -> Probe {
    Probe {
        period_seconds: Some(20),
        timeout_seconds: Some(15),
        failure_threshold: Some(4),
        ..probe
    }
}
