//! Maps watch events to the objects to reconcile.
//!
//! - An object with a Cluster's label requeues that Cluster.
//! - An object of a Tenant requeues the Tenant. It requeues the Tenant's Clusters only if a field
//!   has changed that they are validated against: a Tenant may have hundreds of Clusters.
//! - A Cluster or a Tenant that claims or releases host names requeues the Clusters of all Tenants
//!   that request one of them.
//! - A Cluster whose API answers again requeues the JoinTokens that wait for it.

use std::collections::{BTreeSet, HashMap};
use std::hash::{DefaultHasher, Hash as _, Hasher as _};

use futures::SinkExt as _;
use futures::channel::mpsc;
use kube::runtime::reflector::{ObjectRef, Store};
use kube::{Resource, ResourceExt as _};
use serde::Serialize;
use serde_json::Value;
use yoke_api::labels::component;
use yoke_api::{Cluster, ConditionType, JoinToken, Tenant, labels, names};

use crate::cluster::ClusterSummary;
use crate::host_api::cache::Summaries;
use crate::model::join_token_term;

/// Sends the requeues that follow from the events of one watch.
#[derive(Clone)]
pub(crate) struct WatchRouter {
    clusters: mpsc::Sender<ObjectRef<Cluster>>,
    tenants: mpsc::Sender<ObjectRef<Tenant>>,
    join_tokens: mpsc::Sender<ObjectRef<JoinToken>>,
    all_clusters: Summaries,
    all_join_tokens: Store<JoinToken>,
    memory: Memory,
}

/// Last observed fields of the objects that concern more than one Cluster.
#[derive(Clone, Debug, Default)]
struct Memory {
    last_seen: HashMap<(String, String), LastSeen>,
}

/// Last observed fields of an object.
#[derive(Clone, Debug, Default)]
struct LastSeen {
    digest: u64,
    /// Host names or domains that it claims.
    names: BTreeSet<String>,
    /// Only for a Cluster.
    api_answers: bool,
}

/// Fields of an object whose change matters to other objects, as JSON pointers.
struct Parts {
    all: &'static [&'static str],
    /// Pointer to a list of host names or domains.
    names: &'static str,
}

/// Difference between an object and its last observed fields.
#[derive(Debug)]
struct Change {
    is_new: bool,
    changed: bool,
    /// Names that it claims now, and those that it claimed before.
    names: BTreeSet<String>,
    /// Only for a Cluster: its API answers and did not answer before.
    api_answers: bool,
}

const CLUSTER: Parts = Parts {
    // The status counts only where the ingress writes it. The operator writes the rest, and parts
    // of that are a tenant's text.
    all: &[
        "/metadata/generation",
        "/metadata/deletionTimestamp",
        "/metadata/labels",
        "/metadata/finalizers",
        "/metadata/annotations",
        "/status/activity/wakeRequestedTime",
    ],
    names: "/spec/endpoint/extraSANs",
};

const JOIN_TOKEN: Parts = Parts {
    // The signer writes `status.uses` when a worker joins.
    all: &["/metadata/generation", "/metadata/deletionTimestamp", "/status/uses"],
    names: "",
};

const TENANT: Parts = Parts {
    all: &["/metadata/generation", "/metadata/deletionTimestamp"],
    names: "/spec/allowedDomains",
};

const RESOURCE_QUOTA: Parts = Parts {
    // Without the status, which counts every object.
    all: &["/spec"],
    names: "",
};

const NAMESPACE: Parts = Parts {
    all: &["/metadata/annotations", "/metadata/deletionTimestamp"],
    names: "",
};

/// Objects to requeue after a change.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Requeues {
    tenant: bool,
    cluster: Option<String>,
    join_token: Option<String>,
    /// JoinTokens of the Tenant that wait until the Tenant may read their Secrets.
    readers: bool,
    /// JoinTokens that wait for the API of this Cluster.
    join_tokens_of: Option<String>,
    others: OtherClusters,
    /// Clusters of any Tenant that request one of these host names, or a name under one of them.
    names: BTreeSet<String>,
}

/// The Tenant's Clusters to requeue, apart from the changed Cluster.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum OtherClusters {
    #[default]
    None,
    /// Refused Clusters: there may be room for one now.
    Refused,
    All,
}

impl WatchRouter {
    pub(crate) fn new(
        clusters: mpsc::Sender<ObjectRef<Cluster>>,
        tenants: mpsc::Sender<ObjectRef<Tenant>>,
        join_tokens: mpsc::Sender<ObjectRef<JoinToken>>,
        all_clusters: Summaries,
        all_join_tokens: Store<JoinToken>,
    ) -> Self {
        Self {
            clusters,
            tenants,
            join_tokens,
            all_clusters,
            all_join_tokens,
            memory: Memory::default(),
        }
    }

    /// Requeues the objects that a changed or deleted object concerns.
    pub(crate) async fn send<K: Resource<DynamicType = ()> + Serialize>(&mut self, object: &K, is_deleted: bool) {
        let meta = object.meta();
        let tenant = match K::kind(&()).as_ref() {
            "Cluster" | "JoinToken" => meta.namespace.clone(),
            "Tenant" => meta.name.clone(),
            _ => meta.labels.as_ref().and_then(|all| all.get(labels::TENANT)).cloned(),
        };
        let Some(tenant) = tenant else {
            return;
        };
        let requeues = self.memory.plan(object, is_deleted);
        if requeues.tenant {
            // An error means that the controller has ended. The process ends soon after.
            let _ = self.tenants.send(ObjectRef::new(&tenant)).await;
        }
        if let Some(join_token) = &requeues.join_token {
            let _ = self.join_tokens.send(ObjectRef::new(join_token).within(&tenant)).await;
        }
        for join_token in self.find_join_tokens(&tenant, &requeues) {
            let _ = self.join_tokens.send(join_token).await;
        }
        let others = self.find_other_clusters(&tenant, &requeues);
        let changed = requeues.cluster.map(|cluster| ObjectRef::new(&cluster).within(&tenant));
        for cluster in changed.into_iter().chain(others) {
            let _ = self.clusters.send(cluster).await;
        }
    }

    fn find_join_tokens(&self, tenant: &str, requeues: &Requeues) -> Vec<ObjectRef<JoinToken>> {
        if !requeues.readers && requeues.join_tokens_of.is_none() {
            return Vec::new();
        }
        let found = self.all_join_tokens.state_filter(|token| {
            token.metadata.namespace.as_deref() == Some(tenant) && requeues.concern_waiting(token)
        });
        found.iter().map(|token| ObjectRef::from_obj(token.as_ref())).collect()
    }

    fn find_other_clusters(&self, tenant: &str, requeues: &Requeues) -> Vec<ObjectRef<Cluster>> {
        // Fast path: most changes concern no other Cluster.
        if requeues.others == OtherClusters::None && requeues.names.is_empty() {
            return Vec::new();
        }
        let found = self.all_clusters.pick(|cluster| requeues.concern(tenant, cluster));
        found.iter().map(|cluster| cluster.to_key()).collect()
    }
}

impl Requeues {
    /// Returns whether a JoinToken of the Tenant waits for this change.
    fn concern_waiting(&self, token: &JoinToken) -> bool {
        self.readers && join_token_term::awaits_role(token)
            || self.join_tokens_of.as_ref() == Some(&token.spec.cluster_name) && join_token_term::awaits_api(token)
    }

    /// Returns whether to requeue a Cluster other than the changed one.
    fn concern(&self, tenant: &str, cluster: &ClusterSummary) -> bool {
        let concerns_all = match self.others {
            OtherClusters::None => false,
            OtherClusters::Refused => cluster.is_refused,
            OtherClusters::All => true,
        };
        let mut requested = cluster.extra_sans.iter();
        concerns_all && *cluster.namespace == *tenant
            || requested.any(|requested| self.names.iter().any(|name| names::is_within(requested, name)))
    }
}

impl Memory {
    fn plan<K: Resource<DynamicType = ()> + Serialize>(&mut self, object: &K, is_deleted: bool) -> Requeues {
        let kind = K::kind(&());
        let meta = object.meta();
        let labelled = meta.labels.as_ref().and_then(|all| all.get(labels::CLUSTER));
        // Users may set any label on Clusters, JoinTokens and Tenants, so their labels do not say
        // what they belong to.
        match kind.as_ref() {
            "Cluster" => {
                let change = self.compare(object, is_deleted, &CLUSTER);
                Requeues {
                    tenant: change.is_new || is_deleted,
                    cluster: meta.name.clone().filter(|_| change.changed),
                    others: if change.changed {
                        OtherClusters::Refused
                    } else {
                        OtherClusters::None
                    },
                    names: change.names,
                    join_tokens_of: meta.name.clone().filter(|_| change.api_answers),
                    ..Requeues::default()
                }
            }
            "JoinToken" => {
                let change = self.compare(object, is_deleted, &JOIN_TOKEN);
                Requeues {
                    // The Tenant's Role lists the Secret of each JoinToken by name.
                    tenant: change.is_new || is_deleted,
                    join_token: meta.name.clone().filter(|_| change.changed && !is_deleted),
                    // A Cluster that leaves konnectivity to the operator gets agents with its first
                    // JoinToken.
                    cluster: change.is_new.then(|| name_cluster(object)).flatten(),
                    ..Requeues::default()
                }
            }
            "Tenant" => self.plan_shared(object, is_deleted, &TENANT),
            _ if labelled.is_some() => Requeues {
                cluster: labelled.cloned(),
                // The Tenant's other Clusters are validated against the bytes that a store has
                // reserved.
                others: match meta.labels.as_ref().and_then(|all| all.get(labels::COMPONENT)) {
                    Some(part) if part == component::STORE && kind == "Secret" => OtherClusters::Refused,
                    _ => OtherClusters::None,
                },
                ..Requeues::default()
            },
            "Namespace" => self.plan_shared(object, is_deleted, &NAMESPACE),
            "ResourceQuota" => Requeues {
                tenant: self.compare(object, is_deleted, &RESOURCE_QUOTA).changed || is_deleted,
                ..Requeues::default()
            },
            "Role" => Requeues {
                tenant: true,
                readers: !is_deleted,
                ..Requeues::default()
            },
            _ => Requeues {
                tenant: true,
                ..Requeues::default()
            },
        }
    }

    fn plan_shared<K: Resource + Serialize>(&mut self, object: &K, is_deleted: bool, parts: &Parts) -> Requeues {
        let change = self.compare(object, is_deleted, parts);
        Requeues {
            tenant: true,
            others: if change.changed {
                OtherClusters::All
            } else {
                OtherClusters::None
            },
            names: change.names,
            ..Requeues::default()
        }
    }

    fn compare<K: Resource + Serialize>(&mut self, object: &K, is_deleted: bool, parts: &Parts) -> Change {
        let key = (object.namespace().unwrap_or_default(), object.name_any());
        if is_deleted {
            return Change {
                is_new: false,
                changed: true,
                names: self.last_seen.remove(&key).unwrap_or_default().names,
                api_answers: false,
            };
        }
        let value = serde_json::to_value(object).unwrap_or_default();
        let mut hasher = DefaultHasher::new();
        object.uid().hash(&mut hasher);
        for part in parts.all {
            let part = value.pointer(part).unwrap_or(&Value::Null);
            part.to_string().hash(&mut hasher);
        }
        let list = Some(parts.names).filter(|names| !names.is_empty());
        let list = list.and_then(|names| value.pointer(names)?.as_array());
        let names = list.into_iter().flatten().filter_map(Value::as_str).map(str::to_owned);
        let current = LastSeen {
            digest: hasher.finish(),
            names: names.collect(),
            api_answers: has_api(&value),
        };
        let before = self.last_seen.insert(key, current.clone());
        let is_new = before.is_none();
        let before = before.unwrap_or_default();
        let changed = is_new || before.digest != current.digest || before.names != current.names;
        let mut names = before.names;
        names.extend(current.names);
        Change {
            is_new,
            changed,
            names: if changed { names } else { BTreeSet::new() },
            // No requeue on first sight: JoinTokens that wait for it are enqueued by their own
            // initial list.
            api_answers: !is_new && !before.api_answers && current.api_answers,
        }
    }
}

/// Name of the Cluster that a JoinToken is for.
fn name_cluster(join_token: &impl Serialize) -> Option<String> {
    let value = serde_json::to_value(join_token).ok()?;
    Some(value.pointer("/spec/clusterName")?.as_str()?.to_owned())
}

/// Returns whether a Cluster's status says that its API is available.
fn has_api(cluster: &Value) -> bool {
    let conditions = cluster.pointer("/status/conditions").and_then(Value::as_array);
    let mut conditions = conditions.into_iter().flatten();
    conditions.any(|condition| {
        condition["type"] == ConditionType::APIServerAvailable.as_str() && condition["status"] == "True"
    })
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::{Pod, Secret};
    use k8s_openapi::api::rbac::v1::Role;
    use serde_json::json;

    use super::*;

    fn expect(tenant: bool, cluster: Option<&str>, others: OtherClusters) -> Requeues {
        Requeues {
            tenant,
            cluster: cluster.map(str::to_owned),
            others,
            ..Requeues::default()
        }
    }

    /// Plans one event of an object, and checks the requeues.
    fn check<K>(rule: &str, memory: &mut Memory, value: Value, is_deleted: bool, expected: &Requeues)
    where
        K: Resource<DynamicType = ()> + Serialize + serde::de::DeserializeOwned,
    {
        let object: K = serde_json::from_value(value).unwrap();
        assert_eq!(&memory.plan(&object, is_deleted), expected, "{rule}");
    }

    #[test]
    fn a_changed_tenant_requeues_all_its_clusters() {
        let mut memory = Memory::default();
        let tenant = |generation: i64, clusters: i64, retained: Option<i64>| {
            json!({"metadata": {"name": "t", "uid": "1", "generation": generation}, "spec": {},
                "status": {"clusters": clusters, "retainedStorage": retained}})
        };
        let (all, none) = (
            expect(true, None, OtherClusters::All),
            expect(true, None, OtherClusters::None),
        );
        for (rule, value, expected) in [
            ("first sight", tenant(1, 0, None), &all),
            ("another status", tenant(1, 0, Some(1)), &none),
            ("one more Cluster", tenant(1, 1, Some(1)), &none),
            ("another quota", tenant(2, 1, Some(1)), &all),
            ("listed again", tenant(2, 1, Some(1)), &none),
        ] {
            check::<Tenant>(rule, &mut memory, value, false, expected);
        }
        check::<Tenant>("deleted", &mut memory, tenant(2, 1, Some(1)), true, &all);
    }

    #[test]
    fn a_changed_spec_or_use_requeues_the_join_token() {
        let mut memory = Memory::default();
        let token = |generation: i64, uses: &Value, message: &str| {
            json!({"metadata": {"name": "j", "namespace": "t", "uid": "1", "generation": generation},
                "spec": {"clusterName": "a"}, "status": {"uses": uses, "conditions": [{"type": "Ready", "status": "False",
                "reason": "x", "message": message, "lastTransitionTime": "2026-01-01T00:00:00Z"}]}})
        };
        let expect = |is_new: bool, itself: bool| Requeues {
            tenant: is_new,
            cluster: is_new.then(|| "a".to_owned()),
            join_token: itself.then(|| "j".to_owned()),
            ..Requeues::default()
        };
        let used = json!([{"request": "r", "node": "n", "time": "2026-01-01T00:00:00Z"}]);
        for (rule, value, expected) in [
            ("created", token(1, &json!([]), "x"), expect(true, true)),
            ("another message", token(1, &json!([]), "y"), expect(false, false)),
            ("a worker joined", token(1, &used, "y"), expect(false, true)),
            ("listed again", token(1, &used, "y"), expect(false, false)),
        ] {
            check::<JoinToken>(rule, &mut memory, value, false, &expected);
        }
        let deleted = Requeues {
            tenant: true,
            ..Requeues::default()
        };
        check::<JoinToken>("deleted", &mut memory, token(1, &used, "y"), true, &deleted);
    }

    #[test]
    fn an_answering_api_requeues_the_waiting_join_tokens() {
        let mut memory = Memory::default();
        let cluster = |available: &str, message: &str| {
            json!({"metadata": {"name": "a", "namespace": "t", "uid": "1", "generation": 1}, "spec": {},
                "status": {"conditions": [{"type": "APIServerAvailable", "status": available, "reason": "x",
                "message": message, "lastTransitionTime": "2026-01-01T00:00:00Z"}]}})
        };
        let none = Requeues::default();
        let waiting = Requeues {
            join_tokens_of: Some("a".to_owned()),
            ..Requeues::default()
        };
        let itself = expect(true, Some("a"), OtherClusters::Refused);
        for (rule, value, expected) in [
            ("first sight", cluster("True", "x"), &itself),
            ("the API stops", cluster("False", "x"), &none),
            ("the API answers again", cluster("True", "x"), &waiting),
            ("another message", cluster("True", "y"), &none),
        ] {
            check::<Cluster>(rule, &mut memory, value, false, expected);
        }
    }

    #[test]
    fn a_waiting_join_token_is_requeued_by_its_precondition() {
        let token = |cluster: &str, reason: &str| -> JoinToken {
            serde_json::from_value(json!({"metadata": {"name": "j"}, "spec": {"clusterName": cluster},
                "status": {"conditions": [{"type": "Ready", "status": "False", "reason": reason, "message": "",
                "lastTransitionTime": "2026-01-01T00:00:00Z"}]}}))
            .unwrap()
        };
        let readers = Requeues {
            readers: true,
            ..Requeues::default()
        };
        let waiting = Requeues {
            join_tokens_of: Some("a".to_owned()),
            ..Requeues::default()
        };
        for (cluster, reason, by_role, by_api) in [
            ("a", "RolePending", true, false),
            ("a", "ClusterNotReady", false, true),
            ("b", "ClusterNotReady", false, false),
            ("a", "UsedUp", false, false),
        ] {
            let token = token(cluster, reason);
            let found = (readers.concern_waiting(&token), waiting.concern_waiting(&token));
            assert_eq!(found, (by_role, by_api), "{cluster} {reason}");
        }
    }

    #[test]
    fn objects_of_a_tenant_requeue_no_cluster() {
        let role = json!({"metadata": {"name": "yoke-tenant", "namespace": "t"}});
        let expected = Requeues {
            readers: true,
            ..expect(true, None, OtherClusters::None)
        };
        check::<Role>("role", &mut Memory::default(), role, false, &expected);
    }

    #[test]
    fn a_changed_store_requeues_refused_clusters() {
        for (component, others) in [("store", OtherClusters::Refused), ("pki", OtherClusters::None)] {
            let labels = json!({"yoke.drzzl.io/cluster": "a", "yoke.drzzl.io/tenant": "t",
                "yoke.drzzl.io/component": component});
            let secret = json!({"metadata": {"name": "x", "namespace": "yoke-pki", "labels": labels}});
            let expected = expect(false, Some("a"), others);
            check::<Secret>(component, &mut Memory::default(), secret, false, &expected);
        }
    }

    #[test]
    fn labels_of_clusters_and_tenants_requeue_nothing() {
        let mut memory = Memory::default();
        let labels = json!({"yoke.drzzl.io/cluster": "x", "yoke.drzzl.io/tenant": "y"});
        let cluster = json!({"metadata": {"name": "a", "namespace": "t", "uid": "1", "labels": labels}, "spec": {}});
        let itself = expect(true, Some("a"), OtherClusters::Refused);
        check::<Cluster>("cluster", &mut memory, cluster, false, &itself);
        let tenant = json!({"metadata": {"name": "t", "uid": "2", "labels": labels}, "spec": {}});
        check::<Tenant>(
            "tenant",
            &mut memory,
            tenant,
            false,
            &expect(true, None, OtherClusters::All),
        );
    }

    #[test]
    fn sleep_and_wake_requests_requeue_the_cluster() {
        let mut memory = Memory::default();
        let cluster = |annotation: &str, sleep: &str, wake: &str| {
            json!({"metadata": {"name": "a", "namespace": "t", "uid": "1", "annotations": {labels::SLEEP: annotation}},
                "spec": {}, "status": {"activity": {"sleepRequestedTime": sleep, "wakeRequestedTime": wake}}})
        };
        let [early, late] = ["2026-01-01T00:00:00Z", "2026-01-02T00:00:00Z"];
        let itself = expect(false, Some("a"), OtherClusters::Refused);
        let none = Requeues::default();
        for (rule, cluster, expected) in [
            (
                "new",
                cluster("end", early, early),
                &expect(true, Some("a"), OtherClusters::Refused),
            ),
            ("a sleep annotation", cluster("now", early, early), &itself),
            ("a recorded sleep request", cluster("now", late, early), &none),
            ("a connection", cluster("now", late, late), &itself),
            ("no change", cluster("now", late, late), &none),
        ] {
            check::<Cluster>(rule, &mut memory, cluster, false, expected);
        }
    }

    #[test]
    fn a_claimed_or_released_name_requeues_its_requesters() {
        let mut memory = Memory::default();
        let requesting = |namespace: &str, name: &str| {
            let spec = json!({"endpoint": {"extraSANs": [name]}});
            let value = json!({"apiVersion": "yoke.drzzl.io/v1alpha1", "kind": "Cluster",
                "metadata": {"name": "b", "namespace": namespace}, "spec": spec});
            ClusterSummary::of(&serde_json::from_value(value).unwrap())
        };
        let cluster = |generation: i64, names: &[&str]| -> Cluster {
            let value = json!({"apiVersion": "yoke.drzzl.io/v1alpha1", "kind": "Cluster",
                "metadata": {"name": "a", "namespace": "t", "uid": "1", "generation": generation},
                "spec": {"endpoint": {"extraSANs": names}}});
            serde_json::from_value(value).unwrap()
        };
        let (same, other) = (requesting("u", "x.example.org"), requesting("u", "y.example.org"));
        for (rule, object, is_deleted, expected) in [
            ("requests no name", cluster(1, &[]), false, false),
            ("requests the name", cluster(2, &["x.example.org"]), false, true),
            ("no change", cluster(2, &["x.example.org"]), false, false),
            ("releases the name", cluster(3, &[]), false, true),
            ("requests the name again", cluster(4, &["x.example.org"]), false, true),
            ("is deleted", cluster(4, &["x.example.org"]), true, true),
        ] {
            let requeues = memory.plan(&object, is_deleted);
            assert_eq!(requeues.concern("t", &same), expected, "{rule}");
            assert!(!requeues.concern("t", &other), "{rule}");
        }
        let tenant = |generation: i64, domains: &[&str]| -> Tenant {
            let value = json!({"apiVersion": "yoke.drzzl.io/v1alpha1", "kind": "Tenant",
                "metadata": {"name": "t", "uid": "2", "generation": generation}, "spec": {"allowedDomains": domains}});
            serde_json::from_value(value).unwrap()
        };
        for (rule, object, expected) in [
            ("no domain", tenant(1, &[]), false),
            ("gets the domain", tenant(2, &["example.org"]), true),
            ("loses the domain", tenant(3, &["example.net"]), true),
            (
                "never had the domain",
                tenant(4, &["example.net", "example.com"]),
                false,
            ),
        ] {
            assert_eq!(memory.plan(&object, false).concern("t", &same), expected, "{rule}");
        }
    }

    #[test]
    fn a_changed_cluster_requeues_itself_and_refused_clusters() {
        let mut memory = Memory::default();
        let cluster = |generation: i64, phase: &str| {
            json!({"metadata": {"name": "a", "namespace": "t", "uid": "1", "generation": generation}, "spec": {},
                "status": {"phase": phase}})
        };
        for (rule, value, expected) in [
            (
                "created",
                cluster(1, "Provisioning"),
                expect(true, Some("a"), OtherClusters::Refused),
            ),
            (
                "status",
                cluster(1, "Running"),
                expect(false, None, OtherClusters::None),
            ),
            (
                "spec",
                cluster(2, "Running"),
                expect(false, Some("a"), OtherClusters::Refused),
            ),
        ] {
            check::<Cluster>(rule, &mut memory, value, false, &expected);
        }
        let deleted = expect(true, Some("a"), OtherClusters::Refused);
        check::<Cluster>("deleted", &mut memory, cluster(2, "Deleting"), true, &deleted);
        let pod = json!({"metadata": {"name": "p", "labels": {"yoke.drzzl.io/cluster": "a"}}});
        check::<Pod>(
            "its pod",
            &mut memory,
            pod,
            false,
            &expect(false, Some("a"), OtherClusters::None),
        );
    }
}
