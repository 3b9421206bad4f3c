//! Objects of the host.

use serde_json::{Value, json};

pub(crate) const DEMO: &str = "/apis/yoke.drzzl.io/v1alpha1/namespaces/t/clusters/demo";
pub(crate) const TENANT: &str = "/apis/yoke.drzzl.io/v1alpha1/tenants/t";
pub(crate) const SECRET: &str = "/api/v1/namespaces/t/secrets/demo-kubeconfig";
pub(crate) const KUBECONFIG: &str = "apiVersion: v1\nkind: Config\nclusters: [{name: c, cluster: {server: 'https://192.0.2.1', tls-server-name: demo-x.yoke.test}}]\nusers: [{name: u, user: {token: t}}]\ncontexts: [{name: x, context: {cluster: c, user: u}}]\ncurrent-context: x\n";

pub(crate) fn condition(name: &str, status: &str, reason: &str, message: &str) -> Value {
    json!({"type": name, "status": status, "reason": reason, "message": message,
        "lastTransitionTime": "2026-01-01T00:00:00Z", "observedGeneration": 1})
}

pub(crate) fn cluster(name: &str, conditions: &[Value]) -> Value {
    json!({
        "apiVersion": "yoke.drzzl.io/v1alpha1", "kind": "Cluster",
        "metadata": {"name": name, "namespace": "t", "uid": "u", "generation": 1, "resourceVersion": "1", "creationTimestamp": "2026-01-01T00:00:00Z"},
        "spec": {"version": "v1.35.4", "newerField": {"kept": true}},
        "status": {
            "observedGeneration": 1, "phase": "Running", "version": "v1.35.4", "nodes": 2,
            "endpoint": {"url": format!("https://{name}-x.yoke.test"), "serverName": "x", "address": "https://192.0.2.1:443", "audience": "a", "issuer": "i"},
            "kubeconfigRef": {"name": format!("{name}-kubeconfig")},
            "conditions": conditions,
        },
    })
}

/// Returns the Cluster at [`DEMO`] with one condition.
pub(crate) fn demo(name: &str, status: &str, reason: &str, message: &str) -> Value {
    cluster("demo", &[condition(name, status, reason, message)])
}

pub(crate) fn ready() -> Value {
    condition("Ready", "True", "AsExpected", "The API answers.")
}

pub(crate) fn secret() -> Value {
    let data = json!({"value": k8s_openapi::ByteString(KUBECONFIG.into())});
    json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "demo-kubeconfig", "namespace": "t"}, "data": data})
}

pub(crate) fn tenant(ready: &str, reason: &str, message: &str) -> Value {
    json!({
        "apiVersion": "yoke.drzzl.io/v1alpha1", "kind": "Tenant",
        "metadata": {"name": "t", "uid": "t", "generation": 1, "resourceVersion": "1"},
        "spec": {}, "status": {"observedGeneration": 1, "conditions": [condition("Ready", ready, reason, message)]},
    })
}
