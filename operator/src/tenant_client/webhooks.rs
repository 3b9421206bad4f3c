//! Finds webhooks of a tenant's API that block writes and run on the tenant's own workers.
//!
//! A cluster that wakes has no workers yet. The writes with which workers register again must not
//! depend on them.

use k8s_openapi::api::admissionregistration::v1::{
    MutatingWebhook, MutatingWebhookConfiguration, RuleWithOperations, ValidatingWebhook,
    ValidatingWebhookConfiguration, WebhookClientConfig,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use kube::api::ListParams;
use kube::{Api, Resource};
use serde::de::DeserializeOwned;
use yoke_api::Lenient;

use crate::tenant_client::api::TenantApi;
use crate::tenant_client::error::TenantApiError;
use crate::tenant_client::paged_list::{Pages, find_in_pages};

/// Small pages: each configuration may have 1.5 MiB.
const PAGES: Pages = Pages { size: 4, max: 32 };

/// Writes while workers register again: API group, resource, and namespace.
const NEEDED: [(&str, &str, Option<&str>); 9] = [
    ("", "nodes", None),
    ("", "nodes/status", None),
    ("", "pods/status", Some("kube-system")),
    ("", "serviceaccounts/token", Some("kube-system")),
    ("authentication.k8s.io", "tokenreviews", None),
    ("authorization.k8s.io", "subjectaccessreviews", None),
    ("certificates.k8s.io", "certificatesigningrequests", None),
    ("coordination.k8s.io", "leases", Some("kube-node-lease")),
    ("discovery.k8s.io", "endpointslices", Some("kube-system")),
];

/// The relevant fields of one webhook.
struct Hook<'a> {
    name: &'a str,
    client: &'a WebhookClientConfig,
    failure_policy: Option<&'a str>,
    rules: &'a [RuleWithOperations],
    namespaces: Option<&'a LabelSelector>,
    objects: Option<&'a LabelSelector>,
}

/// Both kinds have the same relevant fields.
macro_rules! hook_from {
    ($($kind:ty),+) => {$(
        impl<'a> From<&'a $kind> for Hook<'a> {
            fn from(hook: &'a $kind) -> Self {
                Self {
                    name: &hook.name,
                    client: &hook.client_config,
                    failure_policy: hook.failure_policy.as_deref(),
                    rules: hook.rules.as_deref().unwrap_or_default(),
                    namespaces: hook.namespace_selector.as_ref(),
                    objects: hook.object_selector.as_ref(),
                }
            }
        }
    )+};
}
hook_from!(ValidatingWebhook, MutatingWebhook);

impl TenantApi {
    /// Returns the name of a webhook that would stop workers from registering again after a wake,
    /// if there is one. Only one page of the configurations is in memory at a time, since they may
    /// be large.
    pub async fn find_blocking_webhook(&self) -> Result<Option<String>, TenantApiError> {
        let validating =
            |all: ValidatingWebhookConfiguration| find_blocking(all.webhooks.iter().flatten().map(Hook::from));
        if let Some(name) = self.find_webhook(validating).await? {
            return Ok(Some(name));
        }
        let mutating = |all: MutatingWebhookConfiguration| find_blocking(all.webhooks.iter().flatten().map(Hook::from));
        self.find_webhook(mutating).await
    }

    async fn find_webhook<K>(&self, find: impl Fn(K) -> Option<String>) -> Result<Option<String>, TenantApiError>
    where
        Lenient<K>: Resource<DynamicType = ()> + Clone + std::fmt::Debug + DeserializeOwned,
    {
        let api = Api::<Lenient<K>>::all(self.client.clone());
        find_in_pages("webhook configurations", &api, ListParams::default(), PAGES, find).await
    }
}

fn find_blocking<'a>(hooks: impl Iterator<Item = Hook<'a>>) -> Option<String> {
    let name = hooks.filter(blocks).map(|hook| hook.name).min()?;
    Some(name.chars().take(253).collect())
}

fn blocks(hook: &Hook<'_>) -> bool {
    // A webhook outside the cluster does not sleep with it. Match conditions in CEL are not
    // evaluated.
    hook.client.service.is_some()
        && hook.failure_policy != Some("Ignore")
        && hook
            .objects
            .is_none_or(|selector| may_match(selector, Label::of_object))
        && NEEDED.iter().any(|(group, resource, namespace)| {
            hook.rules
                .iter()
                .any(|rule| is_in_scope(rule, namespace.is_some()) && concerns(rule, group, resource))
                && namespace.is_none_or(|name| {
                    let takes = |selector| may_match(selector, |key| Label::of_namespace(key, name));
                    hook.namespaces.is_none_or(takes)
                })
        })
}

fn is_in_scope(rule: &RuleWithOperations, is_namespaced: bool) -> bool {
    match rule.scope.as_deref() {
        Some("Namespaced") => is_namespaced,
        Some("Cluster") => !is_namespaced,
        _ => true,
    }
}

fn concerns(rule: &RuleWithOperations, group: &str, resource: &str) -> bool {
    let has =
        |list: &Option<Vec<String>>, matches: &dyn Fn(&str) -> bool| list.iter().flatten().any(|entry| matches(entry));
    let (resource_name, subresource) = resource.split_once('/').unwrap_or((resource, ""));
    has(&rule.operations, &|operation| {
        matches!(operation, "*" | "CREATE" | "UPDATE")
    }) && has(&rule.api_groups, &|entry| entry == "*" || entry == group)
        && has(&rule.resources, &|entry| match entry.split_once('/') {
            None => subresource.is_empty() && (entry == "*" || entry == resource_name),
            Some((first, second)) => {
                (first == "*" || first == resource_name) && (second == "*" || second == subresource)
            }
        })
}

/// Knowledge of a label of an object that is written while workers register again.
enum Label<'a> {
    Absent,
    /// Kubernetes sets this label on some objects.
    Perhaps,
    Is(&'a str),
}

impl<'a> Label<'a> {
    /// Label of an object. Keys without a prefix, and with a user's own prefix, are the users'. The
    /// keys of Kubernetes are documented at
    /// <https://kubernetes.io/docs/reference/labels-annotations-taints/>.
    fn of_object(key: &str) -> Self {
        let prefix = key.split_once('/').map_or("", |(prefix, _)| prefix);
        let is_of = |domain: &str| {
            prefix
                .strip_suffix(domain)
                .is_some_and(|rest| rest.is_empty() || rest.ends_with('.'))
        };
        if is_of("kubernetes.io") || is_of("k8s.io") || matches!(key, "k8s-app" | "pod-template-hash") {
            Self::Perhaps
        } else {
            Self::Absent
        }
    }

    /// Label of a namespace.
    fn of_namespace(key: &str, name: &'a str) -> Self {
        if key == "kubernetes.io/metadata.name" {
            Self::Is(name)
        } else {
            Self::Absent
        }
    }

    fn may_match(&self, operator: &str, values: &[String]) -> bool {
        let is_listed = |value: &str| values.iter().any(|known| known == value);
        match (operator, self) {
            ("In", Self::Is(value)) => is_listed(value),
            ("In" | "Exists", Self::Absent) | ("DoesNotExist", Self::Is(_)) => false,
            ("NotIn", Self::Is(value)) => !is_listed(value),
            _ => true,
        }
    }
}

/// Returns whether a selector may match an object with such labels.
fn may_match<'a>(selector: &LabelSelector, label: impl Fn(&str) -> Label<'a>) -> bool {
    let mut labels = selector.match_labels.iter().flatten();
    let mut expressions = selector.match_expressions.iter().flatten();
    labels.all(|(key, wanted)| label(key).may_match("In", std::slice::from_ref(wanted)))
        && expressions.all(|expression| {
            let values = expression.values.as_deref().unwrap_or_default();
            label(&expression.key).may_match(&expression.operator, values)
        })
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn blocked(change: &Value) -> bool {
        let mut hook = json!({"name": "a.example.org", "sideEffects": "None", "admissionReviewVersions": ["v1"],
            "clientConfig": {"service": {"namespace": "a", "name": "a"}},
            "rules": [{"operations": ["*"], "apiGroups": ["*"], "apiVersions": ["*"], "resources": ["*"]}]});
        for (key, value) in change.as_object().unwrap() {
            hook[key] = value.clone();
        }
        let hook: ValidatingWebhook = serde_json::from_value(hook).unwrap();
        blocks(&Hook::from(&hook))
    }

    fn rule(group: &str, resource: &str, operation: &str) -> Value {
        json!({"rules": [{"operations": [operation], "apiGroups": [group], "apiVersions": ["*"], "resources": [resource]}]})
    }

    fn everything(scope: &str) -> Value {
        json!([{"operations": ["*"], "apiGroups": ["*"], "apiVersions": ["*"], "resources": ["*/*"], "scope": scope}])
    }

    #[test]
    fn webhooks_on_writes_of_workers_block_a_wake() {
        let not_kube = json!({"matchExpressions": [{"key": "kubernetes.io/metadata.name", "operator": "NotIn",
            "values": ["kube-system", "kube-node-lease"]}]});
        let leases = |selector: &Value| {
            let mut hook = rule("coordination.k8s.io", "leases", "UPDATE");
            hook["namespaceSelector"] = selector.clone();
            hook
        };
        for (case, change, expected) in [
            ("all requests", json!({}), true),
            ("the failure policy Fail", json!({"failurePolicy": "Fail"}), true),
            ("the failure policy Ignore", json!({"failurePolicy": "Ignore"}), false),
            (
                "outside the cluster",
                json!({"clientConfig": {"url": "https://a.example.org"}}),
                false,
            ),
            ("deployments", rule("apps", "deployments", "*"), false),
            ("nodes", rule("", "nodes", "*"), true),
            ("deletions of nodes", rule("", "nodes", "DELETE"), false),
            ("status of nodes", rule("", "nodes/status", "UPDATE"), true),
            ("status of all resources", rule("*", "*/status", "UPDATE"), true),
            ("scale of all resources", rule("*", "*/scale", "UPDATE"), false),
            ("leases", leases(&json!({})), true),
            ("leases in other namespaces", leases(&not_kube), false),
            (
                "objects with a label",
                json!({"objectSelector": {"matchLabels": {"a": "b"}}}),
                false,
            ),
            (
                "objects without a label",
                json!({"objectSelector": {"matchExpressions": [{"key": "a", "operator": "DoesNotExist"}]}}),
                true,
            ),
            (
                "a label that Kubernetes sets",
                json!({"objectSelector": {"matchLabels": {"kubernetes.io/os": "linux"}}}),
                true,
            ),
            (
                "no label that Kubernetes may set",
                json!({"objectSelector": {"matchExpressions": [
                    {"key": "node.kubernetes.io/instance-type", "operator": "DoesNotExist"}]}}),
                true,
            ),
            (
                "a label similar to one of Kubernetes",
                json!({"objectSelector": {"matchLabels": {"notkubernetes.io/os": "linux"}}}),
                false,
            ),
            // Nodes have no namespace.
            (
                "all requests in other namespaces",
                json!({"namespaceSelector": not_kube}),
                true,
            ),
            (
                "all namespaced requests in other namespaces",
                json!({"rules": everything("Namespaced"), "namespaceSelector": not_kube}),
                false,
            ),
            (
                "all namespaced requests",
                json!({"rules": everything("Namespaced")}),
                true,
            ),
            (
                "all cluster-scoped requests",
                json!({"rules": everything("Cluster"), "namespaceSelector": not_kube}),
                true,
            ),
        ] {
            assert_eq!(blocked(&change), expected, "{case}");
        }
    }
}
