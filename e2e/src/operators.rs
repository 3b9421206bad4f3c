//! The operators of the host. Leader election selects the active one.

use anyhow::{Context as _, Result};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Pod;
use kube::Api;

use crate::stack::Stack;

/// Namespace of the operators.
pub const NAMESPACE: &str = "yoke-system";
/// Name of their Deployment, and of the Lease for leader election.
pub const NAME: &str = "yoke-operator";

/// Applies a merge patch to the Deployment, and waits until it has rolled out.
pub async fn change(stack: &Stack, patch: &serde_json::Value) -> Result<()> {
    let (patch, deployment) = (patch.to_string(), format!("deployment/{NAME}"));
    let change = ["patch", "-n", NAMESPACE, &deployment, "--type=merge", "-p", &patch];
    stack.host_kubectl(&change).await?.ok()?;
    let rollout = ["rollout", "status", "-n", NAMESPACE, &deployment, "--timeout=60s"];
    stack.host_kubectl(&rollout).await?.ok().map(drop)
}

/// Pod of the leader.
pub async fn acting(stack: &Stack) -> Result<Pod> {
    let leases: Api<Lease> = Api::namespaced(stack.host.clone(), NAMESPACE);
    let spec = leases.get(NAME).await?.spec.context("the Lease has no spec")?;
    let holder = spec.holder_identity.context("the Lease has no holder")?;
    let pods: Api<Pod> = Api::namespaced(stack.host.clone(), NAMESPACE);
    pods.get(&holder).await.context("reading the pod of the Lease holder")
}
