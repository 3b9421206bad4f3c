//! Remembers the fields of objects whose change concerns others, and plans what a change requeues.
//! Pure.

use std::collections::{BTreeSet, HashMap};
use std::hash::{DefaultHasher, Hash as _, Hasher as _};

use kube::{Resource, ResourceExt as _};
use serde::Serialize;
use serde_json::Value;
use yoke_api::ConditionType;
use yoke_api::labels::{self, component};

use crate::host_api::triggers::requeues::{OtherClusters, Requeues};

/// Last observed fields of the objects that concern more than one Cluster.
#[derive(Clone, Debug, Default)]
pub(super) struct Memory {
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

impl Memory {
    /// Returns the objects to requeue after an event of an object, and remembers the object.
    pub(super) fn plan<K: Resource<DynamicType = ()> + Serialize>(&mut self, object: &K, gone: bool) -> Requeues {
        let kind = K::kind(&());
        let meta = object.meta();
        let labelled = meta.labels.as_ref().and_then(|all| all.get(labels::CLUSTER));
        // Users may set any label on Clusters, JoinTokens and Tenants, so their labels do not say
        // what they belong to.
        match kind.as_ref() {
            "Cluster" => self.plan_cluster(object, gone),
            "JoinToken" => self.plan_join_token(object, gone),
            "Tenant" => self.plan_shared(object, gone, &TENANT),
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

    fn plan_cluster<K: Resource + Serialize>(&mut self, object: &K, gone: bool) -> Requeues {
        let meta = object.meta();
        let difference = self.compare(object, gone, &CLUSTER);
        Requeues {
            tenant: difference.is_new || gone,
            cluster: meta.name.clone().filter(|_| difference.changed),
            others: if difference.changed {
                OtherClusters::Refused
            } else {
                OtherClusters::None
            },
            names: difference.names,
            join_tokens_of: meta.name.clone().filter(|_| difference.api_answers),
            ..Requeues::default()
        }
    }

    fn plan_join_token<K: Resource + Serialize>(&mut self, object: &K, gone: bool) -> Requeues {
        let meta = object.meta();
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

    fn plan_shared<K: Resource + Serialize>(&mut self, object: &K, gone: bool, parts: &Parts) -> Requeues {
        let difference = self.compare(object, gone, parts);
        Requeues {
            tenant: true,
            others: if difference.changed {
                OtherClusters::All
            } else {
                OtherClusters::None
            },
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
