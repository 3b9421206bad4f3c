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

use crate::host_api::cache::Summaries;
use crate::model::cluster_summary::ClusterSummary;
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
    said: HashMap<(String, String), LastSeen>,
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
    others: Others,
    /// Clusters of any Tenant that request one of these host names, or a name under one of them.
    names: BTreeSet<String>,
}

/// The Tenant's Clusters to requeue, apart from the changed Cluster.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Others {
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
    pub(crate) async fn send<K: Resource<DynamicType = ()> + Serialize>(&mut self, object: &K, gone: bool) {
        let meta = object.meta();
        let tenant = match K::kind(&()).as_ref() {
            "Cluster" | "JoinToken" => meta.namespace.clone(),
            "Tenant" => meta.name.clone(),
            _ => meta.labels.as_ref().and_then(|all| all.get(labels::TENANT)).cloned(),
        };
        let Some(tenant) = tenant else {
            return;
        };
        let calls = self.memory.plan(object, gone);
        if calls.tenant {
            // An error means that the controller has ended. The process ends soon after.
            let _ = self.tenants.send(ObjectRef::new(&tenant)).await;
        }
        if let Some(join_token) = &calls.join_token {
            let _ = self.join_tokens.send(ObjectRef::new(join_token).within(&tenant)).await;
        }
        for join_token in self.find_join_tokens(&tenant, &calls) {
            let _ = self.join_tokens.send(join_token).await;
        }
        let others = self.find_others(&tenant, &calls);
        let itself = calls.cluster.map(|cluster| ObjectRef::new(&cluster).within(&tenant));
        for cluster in itself.into_iter().chain(others) {
            let _ = self.clusters.send(cluster).await;
        }
    }

    fn find_join_tokens(&self, tenant: &str, calls: &Requeues) -> Vec<ObjectRef<JoinToken>> {
        if !calls.readers && calls.join_tokens_of.is_none() {
            return Vec::new();
        }
        let found = self
            .all_join_tokens
            .state_filter(|token| token.metadata.namespace.as_deref() == Some(tenant) && calls.are_for_waiting(token));
        found.iter().map(|token| ObjectRef::from_obj(token.as_ref())).collect()
    }

    fn find_others(&self, tenant: &str, calls: &Requeues) -> Vec<ObjectRef<Cluster>> {
        // Fast path: most changes concern no other Cluster.
        if calls.others == Others::None && calls.names.is_empty() {
            return Vec::new();
        }
        let found = self.all_clusters.pick(|cluster| calls.are_for(tenant, cluster));
        found.iter().map(|cluster| cluster.to_key()).collect()
    }
}

impl Requeues {
    /// Returns whether a JoinToken of the Tenant waits for this change.
    fn are_for_waiting(&self, token: &JoinToken) -> bool {
        self.readers && join_token_term::awaits_role(token)
            || self.join_tokens_of.as_ref() == Some(&token.spec.cluster_name) && join_token_term::awaits_api(token)
    }

    /// Returns whether to requeue a Cluster other than the changed one.
    fn are_for(&self, tenant: &str, cluster: &ClusterSummary) -> bool {
        let as_other = match self.others {
            Others::None => false,
            Others::Refused => cluster.is_refused,
            Others::All => true,
        };
        let mut asked = cluster.extra_sans.iter();
        as_other && *cluster.namespace == *tenant
            || asked.any(|asked| self.names.iter().any(|name| names::is_within(asked, name)))
    }
}

impl Memory {
    fn plan<K: Resource<DynamicType = ()> + Serialize>(&mut self, object: &K, gone: bool) -> Requeues {
        let kind = K::kind(&());
        let meta = object.meta();
        let labelled = meta.labels.as_ref().and_then(|all| all.get(labels::CLUSTER));
        // Users may set any label on Clusters, JoinTokens and Tenants, so their labels do not say
        // what they belong to.
        match kind.as_ref() {
            "Cluster" => {
                let difference = self.compare(object, gone, &CLUSTER);
                Requeues {
                    tenant: difference.is_new || gone,
                    cluster: meta.name.clone().filter(|_| difference.changed),
                    others: if difference.changed {
                        Others::Refused
                    } else {
                        Others::None
                    },
                    names: difference.names,
                    join_tokens_of: meta.name.clone().filter(|_| difference.api_answers),
                    ..Requeues::default()
                }
            }
            "JoinToken" => {
                let difference = self.compare(object, gone, &JOIN_TOKEN);
                Requeues {
                    // The Tenant's Role lists the Secret of each JoinToken by name.
                    tenant: difference.is_new || gone,
                    join_token: meta.name.clone().filter(|_| difference.changed && !gone),
                    // A Cluster that leaves konnectivity to the operator gets agents with its first
                    // JoinToken.
                    cluster: difference.is_new.then(|| name_cluster(object)).flatten(),
                    ..Requeues::default()
                }
            }
            "Tenant" => self.plan_shared(object, gone, &TENANT),
            _ if labelled.is_some() => Requeues {
                cluster: labelled.cloned(),
                // The Tenant's other Clusters are validated against the bytes that a store has
                // reserved.
                others: match meta.labels.as_ref().and_then(|all| all.get(labels::COMPONENT)) {
                    Some(part) if part == component::STORE && kind == "Secret" => Others::Refused,
                    _ => Others::None,
                },
                ..Requeues::default()
            },
            "Namespace" => self.plan_shared(object, gone, &NAMESPACE),
            "ResourceQuota" => Requeues {
                tenant: self.compare(object, gone, &RESOURCE_QUOTA).changed || gone,
                ..Requeues::default()
            },
            "Role" => Requeues {
                tenant: true,
                readers: !gone,
                ..Requeues::default()
            },
            _ => Requeues {
                tenant: true,
                ..Requeues::default()
            },
        }
    }

    fn plan_shared<K: Resource + Serialize>(&mut self, object: &K, gone: bool, parts: &Parts) -> Requeues {
        let difference = self.compare(object, gone, parts);
        Requeues {
            tenant: true,
            others: if difference.changed { Others::All } else { Others::None },
            names: difference.names,
            ..Requeues::default()
        }
    }

    fn compare<K: Resource + Serialize>(&mut self, object: &K, gone: bool, parts: &Parts) -> Change {
        let key = (object.namespace().unwrap_or_default(), object.name_any());
        if gone {
            return Change {
                is_new: false,
                changed: true,
                names: self.said.remove(&key).unwrap_or_default().names,
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
        let said = LastSeen {
            digest: hasher.finish(),
            names: names.collect(),
            api_answers: has_api(&value),
        };
        let before = self.said.insert(key, said.clone());
        let is_new = before.is_none();
        let before = before.unwrap_or_default();
        let changed = is_new || before.digest != said.digest || before.names != said.names;
        let mut names = before.names;
        names.extend(said.names);
        Change {
            is_new,
            changed,
            names: if changed { names } else { BTreeSet::new() },
            // No requeue on first sight: JoinTokens that wait for it are enqueued by their own
            // initial list.
            api_answers: !is_new && !before.api_answers && said.api_answers,
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

    fn calls(tenant: bool, cluster: Option<&str>, others: Others) -> Requeues {
        Requeues {
            tenant,
            cluster: cluster.map(str::to_owned),
            others,
            ..Requeues::default()
        }
    }

    /// Plans one event of an object, and checks the requeues.
    fn check<K>(rule: &str, memory: &mut Memory, value: Value, gone: bool, expected: &Requeues)
    where
        K: Resource<DynamicType = ()> + Serialize + serde::de::DeserializeOwned,
    {
        let object: K = serde_json::from_value(value).unwrap();
        assert_eq!(&memory.plan(&object, gone), expected, "{rule}");
    }

    #[test]
    fn clusters_are_called_for_what_they_are_held_against() {
        let mut memory = Memory::default();
        let tenant = |generation: i64, clusters: i64, retained: Option<i64>| {
            json!({"metadata": {"name": "t", "uid": "1", "generation": generation}, "spec": {},
                "status": {"clusters": clusters, "retainedStorage": retained}})
        };
        let (all, none) = (calls(true, None, Others::All), calls(true, None, Others::None));
        for (rule, value, expected) in [
            ("first sight", tenant(1, 0, None), &all),
            ("what is told of retained data", tenant(1, 0, Some(1)), &none),
            ("a Cluster more", tenant(1, 1, Some(1)), &none),
            ("another quota", tenant(2, 1, Some(1)), &all),
            ("listed again", tenant(2, 1, Some(1)), &none),
        ] {
            check::<Tenant>(rule, &mut memory, value, false, expected);
        }
        check::<Tenant>("gone", &mut memory, tenant(2, 1, Some(1)), true, &all);
    }

    #[test]
    fn a_join_token_is_called_for_by_what_it_asks_and_who_joined() {
        let mut memory = Memory::default();
        let token = |generation: i64, uses: &Value, message: &str| {
            json!({"metadata": {"name": "j", "namespace": "t", "uid": "1", "generation": generation},
                "spec": {"clusterName": "a"}, "status": {"uses": uses, "conditions": [{"type": "Ready", "status": "False",
                "reason": "x", "message": message, "lastTransitionTime": "2026-01-01T00:00:00Z"}]}})
        };
        let calls = |is_new: bool, itself: bool| Requeues {
            tenant: is_new,
            cluster: is_new.then(|| "a".to_owned()),
            join_token: itself.then(|| "j".to_owned()),
            ..Requeues::default()
        };
        let used = json!([{"request": "r", "node": "n", "time": "2026-01-01T00:00:00Z"}]);
        for (rule, value, expected) in [
            ("made", token(1, &json!([]), "x"), calls(true, true)),
            ("what is said of it", token(1, &json!([]), "y"), calls(false, false)),
            ("a worker joined", token(1, &used, "y"), calls(false, true)),
            ("listed again", token(1, &used, "y"), calls(false, false)),
        ] {
            check::<JoinToken>(rule, &mut memory, value, false, &expected);
        }
        let gone = Requeues {
            tenant: true,
            ..Requeues::default()
        };
        check::<JoinToken>("gone", &mut memory, token(1, &used, "y"), true, &gone);
    }

    #[test]
    fn an_api_that_answers_again_calls_for_those_who_wait_for_it() {
        let mut memory = Memory::default();
        let cluster = |available: &str, message: &str| {
            json!({"metadata": {"name": "a", "namespace": "t", "uid": "1", "generation": 1}, "spec": {},
                "status": {"conditions": [{"type": "APIServerAvailable", "status": available, "reason": "x",
                "message": message, "lastTransitionTime": "2026-01-01T00:00:00Z"}]}})
        };
        let nobody = Requeues::default();
        let waiting = Requeues {
            join_tokens_of: Some("a".to_owned()),
            ..Requeues::default()
        };
        let itself = calls(true, Some("a"), Others::Refused);
        for (rule, value, expected) in [
            ("first sight", cluster("True", "x"), &itself),
            ("it starts anew", cluster("False", "x"), &nobody),
            ("it answers", cluster("True", "x"), &waiting),
            ("what else is said of it", cluster("True", "y"), &nobody),
        ] {
            check::<Cluster>(rule, &mut memory, value, false, expected);
        }
    }

    #[test]
    fn who_waits_is_called_for_by_what_it_waits_for() {
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
            let found = (readers.are_for_waiting(&token), waiting.are_for_waiting(&token));
            assert_eq!(found, (by_role, by_api), "{cluster} {reason}");
        }
    }

    #[test]
    fn objects_of_a_tenant_call_for_no_cluster() {
        let role = json!({"metadata": {"name": "yoke-tenant", "namespace": "t"}});
        let expected = Requeues {
            readers: true,
            ..calls(true, None, Others::None)
        };
        check::<Role>("role", &mut Memory::default(), role, false, &expected);
    }

    #[test]
    fn stores_call_for_those_who_wait_for_their_room() {
        for (component, others) in [("store", Others::Refused), ("pki", Others::None)] {
            let labels = json!({"yoke.drzzl.io/cluster": "a", "yoke.drzzl.io/tenant": "t",
                "yoke.drzzl.io/component": component});
            let secret = json!({"metadata": {"name": "x", "namespace": "yoke-pki", "labels": labels}});
            let expected = calls(false, Some("a"), others);
            check::<Secret>(component, &mut Memory::default(), secret, false, &expected);
        }
    }

    #[test]
    fn labels_of_a_cluster_and_a_tenant_say_nothing() {
        let mut memory = Memory::default();
        let labels = json!({"yoke.drzzl.io/cluster": "x", "yoke.drzzl.io/tenant": "y"});
        let cluster = json!({"metadata": {"name": "a", "namespace": "t", "uid": "1", "labels": labels}, "spec": {}});
        let itself = calls(true, Some("a"), Others::Refused);
        check::<Cluster>("cluster", &mut memory, cluster, false, &itself);
        let tenant = json!({"metadata": {"name": "t", "uid": "2", "labels": labels}, "spec": {}});
        check::<Tenant>("tenant", &mut memory, tenant, false, &calls(true, None, Others::All));
    }

    #[test]
    fn a_word_to_sleep_and_one_to_wake_call_for_the_cluster() {
        let mut memory = Memory::default();
        let cluster = |annotation: &str, slept: &str, woken: &str| {
            json!({"metadata": {"name": "a", "namespace": "t", "uid": "1", "annotations": {labels::SLEEP: annotation}},
                "spec": {}, "status": {"activity": {"sleepRequestedTime": slept, "wakeRequestedTime": woken}}})
        };
        let [early, late] = ["2026-01-01T00:00:00Z", "2026-01-02T00:00:00Z"];
        let itself = calls(false, Some("a"), Others::Refused);
        let nobody = Requeues::default();
        for (rule, cluster, expected) in [
            (
                "new",
                cluster("end", early, early),
                &calls(true, Some("a"), Others::Refused),
            ),
            ("a word", cluster("now", early, early), &itself),
            ("noted by the operator", cluster("now", late, early), &nobody),
            ("somebody connects", cluster("now", late, late), &itself),
            ("nothing new", cluster("now", late, late), &nobody),
        ] {
            check::<Cluster>(rule, &mut memory, cluster, false, expected);
        }
    }

    #[test]
    fn who_takes_or_leaves_a_name_calls_for_those_who_ask_for_it() {
        let mut memory = Memory::default();
        let asking = |namespace: &str, name: &str| {
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
        let (same, other) = (asking("u", "x.example.org"), asking("u", "y.example.org"));
        for (rule, object, gone, expected) in [
            ("asks for none", cluster(1, &[]), false, false),
            ("takes it", cluster(2, &["x.example.org"]), false, true),
            ("nothing new", cluster(2, &["x.example.org"]), false, false),
            ("leaves it", cluster(3, &[]), false, true),
            ("takes it again", cluster(4, &["x.example.org"]), false, true),
            ("goes", cluster(4, &["x.example.org"]), true, true),
        ] {
            let calls = memory.plan(&object, gone);
            assert_eq!(calls.are_for("t", &same), expected, "{rule}");
            assert!(!calls.are_for("t", &other), "{rule}");
        }
        let tenant = |generation: i64, domains: &[&str]| -> Tenant {
            let value = json!({"apiVersion": "yoke.drzzl.io/v1alpha1", "kind": "Tenant",
                "metadata": {"name": "t", "uid": "2", "generation": generation}, "spec": {"allowedDomains": domains}});
            serde_json::from_value(value).unwrap()
        };
        for (rule, object, expected) in [
            ("has none", tenant(1, &[]), false),
            ("is given the domain", tenant(2, &["example.org"]), true),
            ("loses it", tenant(3, &["example.net"]), true),
            ("never had it", tenant(4, &["example.net", "example.com"]), false),
        ] {
            assert_eq!(memory.plan(&object, false).are_for("t", &same), expected, "{rule}");
        }
    }

    #[test]
    fn a_cluster_calls_for_itself_and_for_those_that_wait_for_room() {
        let mut memory = Memory::default();
        let cluster = |generation: i64, phase: &str| {
            json!({"metadata": {"name": "a", "namespace": "t", "uid": "1", "generation": generation}, "spec": {},
                "status": {"phase": phase}})
        };
        for (rule, value, expected) in [
            (
                "made",
                cluster(1, "Provisioning"),
                calls(true, Some("a"), Others::Refused),
            ),
            ("status", cluster(1, "Running"), calls(false, None, Others::None)),
            ("spec", cluster(2, "Running"), calls(false, Some("a"), Others::Refused)),
        ] {
            check::<Cluster>(rule, &mut memory, value, false, &expected);
        }
        let gone = calls(true, Some("a"), Others::Refused);
        check::<Cluster>("gone", &mut memory, cluster(2, "Deleting"), true, &gone);
        let pod = json!({"metadata": {"name": "p", "labels": {"yoke.drzzl.io/cluster": "a"}}});
        check::<Pod>(
            "its pod",
            &mut memory,
            pod,
            false,
            &calls(false, Some("a"), Others::None),
        );
    }
}
