//! The operators of the host, of which one acts.

use anyhow::{Context as _, Result};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Pod;
use kube::Api;

use crate::stack::Stack;

/// Where they are.
pub const NAMESPACE: &str = "yoke-system";
/// Their Deployment, and the Lease that says which one acts.
pub const NAME: &str = "yoke-operator";

/// Changes their Deployment by a merge patch, and waits until its pods are as it says.
pub async fn change(stack: &Stack, patch: &serde_json::Value) -> Result<()> {
    let (patch, deployment) = (patch.to_string(), format!("deployment/{NAME}"));
    let change = ["patch", "-n", NAMESPACE, &deployment, "--type=merge", "-p", &patch];
    stack.host_kubectl(&change).await?.ok()?;
    let rollout = ["rollout", "status", "-n", NAMESPACE, &deployment, "--timeout=60s"];
    stack.host_kubectl(&rollout).await?.ok().map(drop)
}

/// The pod of the one that acts.
pub async fn acting(stack: &Stack) -> Result<Pod> {
    let leases: Api<Lease> = Api::namespaced(stack.host.clone(), NAMESPACE);
    let spec = leases.get(NAME).await?.spec.context("a Lease that says nothing")?;
    let holder = spec.holder_identity.context("nobody holds the Lease")?;
    let pods: Api<Pod> = Api::namespaced(stack.host.clone(), NAMESPACE);
    pods.get(&holder)
        .await
        .context("looking for the pod of who holds the Lease")
}
