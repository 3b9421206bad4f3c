//! Deletes pods of a control plane, each by its UID.

use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::jiff::Timestamp;
use kube::api::{DeleteParams, Preconditions};
use kube::{Api, ResourceExt as _};

use crate::cluster::context::Context;
use crate::cluster::failover::pods;
use crate::cluster::observed::Observed;
use crate::error::ReconcileError;

/// Force-deletes pods that no kubelet has terminated in time.
pub(crate) async fn force_delete(context: &Context, pods: &[&Pod]) -> Result<(), ReconcileError> {
    for pod in pods {
        let deleted = delete_pod(context, pod, Some(0)).await;
        if deleted.map_err(ReconcileError::host("a pod that does not terminate"))? {
            tracing::warn!(
                pod = pod.name_any(),
                "pod did not terminate in time and was deleted by force"
            );
        }
    }
    Ok(())
}

/// Deletes a pod by its UID, with its own grace period unless another one is set. Returns whether
/// it existed.
async fn delete_pod(context: &Context, pod: &Pod, grace_seconds: Option<u32>) -> kube::Result<bool> {
    let api = Api::<Pod>::namespaced(context.host.client.clone(), &pod.namespace().unwrap_or_default());
    let params = DeleteParams {
        grace_period_seconds: grace_seconds,
        preconditions: Some(Preconditions {
            uid: pod.uid(),
            resource_version: None,
        }),
        ..DeleteParams::default()
    };
    match api.delete(&pod.name_any(), &params).await {
        Ok(_) => Ok(true),
        Err(kube::Error::Api(status)) if status.code == 404 || status.code == 409 => Ok(false),
        Err(error) => Err(error),
    }
}

/// Replaces a pod that is in a long crash-loop backoff.
pub(crate) async fn replace_stuck(context: &Context, observed: &Observed) -> Result<(), ReconcileError> {
    let Some(pod) = pods::plan_replacement(&observed.pods, Timestamp::now()) else {
        return Ok(());
    };
    let (namespace, name) = (pod.namespace().unwrap_or_default(), pod.name_any());
    tracing::info!(
        namespace,
        pod = name,
        "pod is in a long crash-loop backoff and is replaced"
    );
    let deleted = delete_pod(context, pod, None).await;
    deleted.map_err(ReconcileError::host("the stuck pod of a control plane"))?;
    Ok(())
}
