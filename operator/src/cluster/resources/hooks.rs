//! preStop hooks of the containers: how long a stopping pod still serves.

use k8s_openapi::api::core::v1::{HTTPGetAction, Lifecycle, LifecycleHandler};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

use crate::cluster::resources::ports::STORE_PORT;

/// How long a pod that is being deleted still serves, unless it is released: as long as a standby
/// pod takes to become ready.
pub(crate) const LINGER_SECONDS: i64 = 20;
/// How long a stopping store still serves, unless it is unused before: the API server exits after
/// its own wait.
pub(crate) const SERVE_SECONDS: i64 = LINGER_SECONDS + 5;
/// The store writes a snapshot and a resign record after that, well within this time.
pub(crate) const GRACE_SECONDS: i64 = SERVE_SECONDS + 10;

/// A preStop hook with which a component still serves until its store is released: another pod may
/// take over. It returns at once if no store answers. Every component waits, as a pod with one
/// terminated container is not ready.
pub(crate) fn build_linger() -> Lifecycle {
    build_hold(format!("/released?seconds={LINGER_SECONDS}"))
}

/// A preStop hook that returns when the store of the pod answers.
///
/// The kubelet waits for the answer for as long as the grace period:
/// <https://kubernetes.io/docs/concepts/containers/container-lifecycle-hooks/#hook-handler-execution>.
pub(crate) fn build_hold(path: String) -> Lifecycle {
    let asked = HTTPGetAction {
        path: Some(path),
        port: IntOrString::Int(STORE_PORT.into()),
        scheme: Some("HTTP".into()),
        ..HTTPGetAction::default()
    };
    Lifecycle {
        pre_stop: Some(LifecycleHandler {
            http_get: Some(asked),
            ..LifecycleHandler::default()
        }),
        ..Lifecycle::default()
    }
}
