//! Configures the audit webhook through which an API server reports use of the cluster to its
//! store, on loopback. Only requests that count as use are sent, and the store does not persist the
//! events.
//!
//! Format: <https://kubernetes.io/docs/tasks/debug/debug-cluster/audit/>.

use serde::Serialize;
use yoke_api::sleep::SleepSpec;
use yoke_pki::plan::{KONNECTIVITY_USER, KUBELET_CLIENT_USER, OPERATOR_USER};

use crate::cluster::resources::paths::CONFIG;

/// Name of the file with the audit policy: which requests are sent.
pub const POLICY_FILE: &str = "audit-policy.yaml";
/// Name of the file with the address of the webhook.
pub const WEBHOOK_FILE: &str = "audit-webhook.yaml";
/// Address of the store's webhook. Only the containers of the pod can reach it.
pub const LISTEN: &str = "127.0.0.1:2382";

/// Identities of the control plane itself and of the operator.
const USERS: [&str; 6] = [
    "system:apiserver",
    "system:kube-controller-manager",
    "system:kube-scheduler",
    KONNECTIVITY_USER,
    KUBELET_CLIENT_USER,
    OPERATOR_USER,
];
const GROUPS: [&str; 2] = ["system:nodes", "system:serviceaccounts:kube-system"];
/// Paths of health probes.
const HEALTH: [&str; 6] = ["/healthz", "/healthz/*", "/livez", "/livez/*", "/readyz", "/readyz/*"];
/// Group of authenticated users; requests of other clients are not sent.
const KNOWN: [&str; 1] = ["system:authenticated"];

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Policy {
    api_version: &'static str,
    kind: &'static str,
    omit_stages: [&'static str; 1],
    rules: Vec<Rule>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Rule {
    level: &'static str,
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    users: &'static [&'static str],
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    user_groups: &'static [&'static str],
    #[serde(rename = "nonResourceURLs", skip_serializing_if = "<[_]>::is_empty")]
    non_resource_urls: &'static [&'static str],
}

/// A kubeconfig with one server.
#[derive(Serialize)]
#[serde(rename_all = "kebab-case")]
struct Webhook {
    #[serde(rename = "apiVersion")]
    api_version: &'static str,
    kind: &'static str,
    current_context: &'static str,
    clusters: [Named<Server>; 1],
    contexts: [Named<Context>; 1],
}

#[derive(Serialize)]
struct Named<T> {
    name: &'static str,
    #[serde(flatten)]
    value: T,
}

#[derive(Serialize)]
struct Server {
    cluster: Address,
}

#[derive(Serialize)]
struct Address {
    server: String,
}

#[derive(Serialize)]
struct Context {
    context: Cluster,
}

#[derive(Serialize)]
struct Cluster {
    cluster: &'static str,
}

/// The audit policy, as JSON.
pub(crate) fn to_policy_file() -> String {
    let nobody = |users, user_groups, non_resource_urls| Rule {
        level: "None",
        users,
        user_groups,
        non_resource_urls,
    };
    let known = Rule {
        level: "Metadata",
        users: &[],
        user_groups: &KNOWN,
        non_resource_urls: &[],
    };
    let policy = Policy {
        api_version: "audit.k8s.io/v1",
        kind: "Policy",
        omit_stages: ["RequestReceived"],
        // A request that matches no rule is not sent.
        rules: vec![
            nobody(&USERS, &[], &[]),
            nobody(&[], &GROUPS, &[]),
            nobody(&[], &[], &HEALTH),
            known,
        ],
    };
    serde_json::to_string_pretty(&policy).expect("fields are strings and lists")
}

/// The kubeconfig of the webhook, as JSON.
pub(crate) fn to_webhook_file() -> String {
    let name = "kine-nats";
    let webhook = Webhook {
        api_version: "v1",
        kind: "Config",
        current_context: name,
        clusters: [Named {
            name,
            value: Server {
                cluster: Address {
                    server: format!("http://{LISTEN}/audit"),
                },
            },
        }],
        contexts: [Named {
            name,
            value: Context {
                context: Cluster { cluster: name },
            },
        }],
    };
    serde_json::to_string_pretty(&webhook).expect("fields are strings and lists")
}

/// Arguments of kube-apiserver. They make no request wait or fail: an event that does not fit into
/// the buffer is dropped.
pub(crate) fn api_server_arguments(sleep: &SleepSpec) -> Vec<String> {
    if sleep.after_inactivity.is_none() {
        return vec![];
    }
    vec![
        format!("--audit-policy-file={CONFIG}/{POLICY_FILE}"),
        "--audit-webhook-batch-buffer-size=2000".into(),
        "--audit-webhook-batch-max-size=100".into(),
        "--audit-webhook-batch-max-wait=2s".into(),
        "--audit-webhook-batch-throttle-burst=50".into(),
        "--audit-webhook-batch-throttle-qps=50".into(),
        format!("--audit-webhook-config-file={CONFIG}/{WEBHOOK_FILE}"),
        // A stopping API server sends the remaining events first: five attempts with growing
        // backoff.
        "--audit-webhook-initial-backoff=1s".into(),
        "--audit-webhook-mode=batch".into(),
    ]
}

/// Arguments of the store.
pub(crate) fn store_arguments(sleep: &SleepSpec) -> Vec<String> {
    if sleep.after_inactivity.is_none() {
        return vec![];
    }
    let mut agents: Vec<_> = sleep.ignore_user_agents.iter().collect();
    agents.sort();
    let ignored = agents.into_iter().map(|agent| format!("--ignore-user-agent={agent}"));
    std::iter::once(format!("--audit={LISTEN}")).chain(ignored).collect()
}
