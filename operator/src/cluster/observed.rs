//! The host objects of one Cluster, as the watch caches have them: namespace, StatefulSet, pods and Service.
//! A reconcile finds them once; deletion and orphan collection do so too.

use std::sync::Arc;

use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::core::v1::{Namespace, Pod, Secret, Service};
use kube::runtime::reflector::ObjectRef;
use yoke_api::labels;
use yoke_api::names::PKI_NAMESPACE;
use yoke_api::{Cluster, ConditionType};

use crate::cluster::ownership::{is_foreign, is_owned_secret};
use crate::host_api::cache::Caches;
use crate::model::conditions;
use crate::model::control_plane::{self, NAME};
use crate::model::identity::Identity;
use crate::model::not_ready::NotReady;

/// The observed objects of one Cluster.
#[derive(Debug)]
pub(crate) struct Observed {
    /// The control-plane namespace.
    pub(crate) namespace: Option<Arc<Namespace>>,
    /// The StatefulSet of the control plane.
    pub(crate) stateful_set: Option<Arc<StatefulSet>>,
    /// The pods of the control plane, including those that are being deleted.
    pub(crate) pods: Vec<Arc<Pod>>,
    /// The Service of the control plane.
    pub(crate) service: Option<Arc<Service>>,
    /// Whether a namespace or a store with this identity exists and belongs to another owner.
    pub(crate) is_foreign: bool,
    /// Whether the Cluster was Ready, and the kubelet still reports its pod as ready.
    pub(crate) is_still_ready: bool,
}

/// Finds the objects of a Cluster.
pub(crate) fn find_for_cluster(caches: &Caches, cluster: &Cluster, identity: &Identity) -> Observed {
    let mut observed = find_by_identity(caches, identity);
    observed.is_still_ready =
        observed.readiness().is_ok() && conditions::status_of(cluster, ConditionType::Ready) == Some("True");
    observed
}

/// Finds the objects of an identity, whether or not a Cluster has it.
pub(crate) fn find_by_identity(caches: &Caches, identity: &Identity) -> Observed {
    let hosted = identity.hosted().to_string();
    let id = identity.id.as_str();
    let namespace = caches.namespaces.get(&ObjectRef::new(&hosted));
    let store = ObjectRef::<Secret>::new(&identity.store_secret()).within(PKI_NAMESPACE);
    let store = caches.secrets.get(&store);
    Observed {
        is_still_ready: false,
        is_foreign: namespace
            .as_deref()
            .is_some_and(|namespace| is_foreign(namespace, identity, || caches.clusters.summaries()))
            || store.is_some_and(|store| !is_owned_secret(&store, identity)),
        namespace,
        stateful_set: caches.stateful_sets.get(&ObjectRef::new(NAME).within(&hosted)),
        pods: caches.pods.state_filter(|pod| {
            pod.metadata.namespace.as_deref() == Some(&hosted)
                && pod
                    .metadata
                    .labels
                    .as_ref()
                    .and_then(|all| all.get(labels::ID))
                    .map(String::as_str)
                    == Some(id)
        }),
        service: caches.services.get(&ObjectRef::new(&identity.cluster).within(&hosted)),
    }
}

impl Observed {
    /// Whether the API answers, by the kubelet's status of the serving pod. A standby pod does not
    /// count.
    pub(crate) fn readiness(&self) -> Result<(), NotReady> {
        let mut serving = control_plane::serving(self.stateful_set.as_deref(), &self.pods);
        match serving.any(control_plane::has_ready_api) {
            true => Ok(()),
            false => Err(NotReady::api_server("the control plane's pod is not ready")),
        }
    }

    /// Whether every container of the serving pod is ready.
    pub(crate) fn is_fully_ready(&self) -> bool {
        control_plane::serving(self.stateful_set.as_deref(), &self.pods).any(control_plane::is_ready)
    }

    /// The serving pod, if it stays: a pod that was being stopped when the Cluster woke does not.
    pub(crate) fn staying_pod(&self) -> Option<&Pod> {
        let set = self.stateful_set.as_deref()?;
        let replicas = set.spec.as_ref().and_then(|spec| spec.replicas);
        let mut serving = control_plane::serving(Some(set), &self.pods);
        let (Some(pod), None) = (serving.next(), serving.next()) else {
            return None;
        };
        let stays = replicas != Some(0) && control_plane::is_observed(set) && pod.metadata.deletion_timestamp.is_none();
        stays.then_some(pod)
    }

    /// Whether the StatefulSet has no replicas, whatever the spec says now.
    pub(crate) fn is_asleep(&self) -> bool {
        let spec = self.stateful_set.as_deref().and_then(|set| set.spec.as_ref());
        spec.is_some_and(|spec| spec.replicas == Some(0))
    }

    /// Whether this Cluster owns an existing control plane, created from a spec that was accepted.
    pub(crate) fn has_control_plane(&self) -> bool {
        let namespace = self.namespace.as_deref();
        self.stateful_set.is_some()
            && namespace.is_some_and(|namespace| namespace.metadata.deletion_timestamp.is_none())
            && !self.is_foreign
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn readiness_is_that_of_the_serving_pod() {
        let pod = |number: i32, ready: &str| {
            let pod = serde_json::json!({"metadata": {"name": crate::model::control_plane::pod_name(number)},
                "status": {"conditions": [{"type": "Ready", "status": ready}]}});
            Arc::new(serde_json::from_value::<Pod>(pod).unwrap())
        };
        let set = |first: i32| {
            let set = serde_json::json!({"spec": {"selector": {}, "template": {}, "ordinals": {"start": first}}});
            Some(Arc::new(serde_json::from_value::<StatefulSet>(set).unwrap()))
        };
        for (rule, first, pods, expected) in [
            ("no pod", 3, vec![], false),
            ("serving pod is ready", 3, vec![pod(3, "True"), pod(4, "False")], true),
            (
                "only the standby pod is ready",
                3,
                vec![pod(3, "False"), pod(4, "True")],
                false,
            ),
            (
                "pod that has taken over is ready",
                4,
                vec![pod(3, "False"), pod(4, "True")],
                true,
            ),
        ] {
            let observed = Observed {
                namespace: None,
                stateful_set: set(first),
                pods,
                service: None,
                is_foreign: false,
                is_still_ready: false,
            };
            assert_eq!(observed.readiness().is_ok(), expected, "{rule}");
        }
    }
}
