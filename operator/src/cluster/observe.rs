//! Observes one Cluster: reads its namespace, StatefulSet, pods and Service from the watch caches.
//! A reconcile does so once, before validation; deletion and orphan collection do so too.

use std::sync::Arc;

use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::core::v1::{Namespace, Pod, Secret, Service};
use kube::ResourceExt as _;
use kube::runtime::reflector::ObjectRef;
use yoke_api::KubernetesVersion;
use yoke_api::labels::{self, component};
use yoke_api::names::PKI_NAMESPACE;
use yoke_api::{Cluster, ConditionType};

use crate::cluster::credentials::persisted;
use crate::host_api::cache::Caches;
use crate::model::cluster_summary::ClusterSummary;
use crate::model::conditions;
use crate::model::control_plane::{self, NAME};
use crate::model::identity::Identity;

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
    pub(crate) is_trusted: bool,
}

pub(crate) fn observe(caches: &Caches, cluster: &Cluster, identity: &Identity) -> Observed {
    let mut observed = observe_identity(caches, identity);
    observed.is_trusted =
        observed.answers().is_ok() && conditions::status_of(cluster, ConditionType::Ready) == Some("True");
    observed
}

/// Observes the objects of an identity, whether or not a Cluster has it.
pub(crate) fn observe_identity(caches: &Caches, identity: &Identity) -> Observed {
    let hosted = identity.hosted().to_string();
    let id = identity.id.as_str();
    let namespace = caches.namespaces.get(&ObjectRef::new(&hosted));
    let store = ObjectRef::<Secret>::new(&identity.store_secret()).within(PKI_NAMESPACE);
    let store = caches.secrets.get(&store);
    Observed {
        is_trusted: false,
        is_foreign: namespace
            .as_deref()
            .is_some_and(|namespace| is_foreign(namespace, identity, || caches.clusters.summaries()))
            || store.is_some_and(|store| !persisted::is_of(&store, identity)),
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
    pub(crate) fn answers(&self) -> Result<(), String> {
        let mut serving = control_plane::serving(self.stateful_set.as_deref(), &self.pods);
        match serving.any(control_plane::has_ready_api) {
            true => Ok(()),
            false => Err("the control plane's pod is not ready".to_owned()),
        }
    }

    /// Whether every container of the serving pod is ready.
    pub(crate) fn is_whole(&self) -> bool {
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

/// Whether a namespace belongs to another owner than this Cluster.
///
/// The Cluster owns a namespace with its UID. It also owns one that was left by the Cluster from
/// which it was restored. All of this must hold for such a namespace:
/// - Its labels have the identity, the name and the Tenant of this Cluster.
/// - Its annotations name no other owner.
/// - Its annotations do not have the UID of an existing Cluster.
pub(crate) fn is_foreign(
    namespace: &Namespace,
    identity: &Identity,
    clusters: impl FnOnce() -> Vec<Arc<ClusterSummary>>,
) -> bool {
    let annotation = |key: &str| namespace.annotations().get(key);
    if annotation(labels::OWNER_UID) == Some(&identity.uid) {
        return false;
    }
    let lives = |uid: &String| clusters().iter().any(|cluster| *cluster.uid == **uid);
    let labelled = identity.labels(component::CONTROL_PLANE);
    let mut labels = labelled.iter();
    let is_labelled = labels.all(|(key, value)| namespace.labels().get(key) == Some(value));
    let owner = identity.owner_annotations().remove(labels::OWNER);
    let is_anothers = annotation(labels::OWNER).is_some_and(|other| Some(other) != owner.as_ref())
        || annotation(labels::OWNER_UID).is_some_and(lives);
    !is_labelled || is_anothers
}

/// The running version is the version whose rollout started last.
pub(crate) fn running_version(cluster: &Cluster) -> Option<KubernetesVersion> {
    let latest = cluster.status.as_ref()?.history.first()?;
    latest.version.parse().ok()
}

/// The version whose API answered last. The store holds objects as this version wrote them.
pub(crate) fn answered_version(cluster: &Cluster) -> Option<KubernetesVersion> {
    let mut history = cluster.status.as_ref()?.history.iter();
    history.find(|entry| entry.completed.is_some())?.version.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::resources::objects::build_namespace;
    use crate::fixtures::{cluster, identity};

    #[test]
    fn one_that_stands_by_does_not_answer() {
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
            ("none is there", 3, vec![], false),
            ("the one that serves", 3, vec![pod(3, "True"), pod(4, "False")], true),
            (
                "the one that stands by",
                3,
                vec![pod(3, "False"), pod(4, "True")],
                false,
            ),
            (
                "the one that has taken over",
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
                is_trusted: false,
            };
            assert_eq!(observed.answers().is_ok(), expected, "{rule}");
        }
    }

    #[test]
    fn namespace_is_adopted_from_a_namesake_that_is_gone() {
        let (former, mut present) = (cluster("a"), cluster("a"));
        present.metadata.uid = Some("another".into());
        let mut elsewhere = former.clone();
        elsewhere.metadata.namespace = Some("other".into());
        let namespace = |cluster: &Cluster| build_namespace(&identity(cluster), Default::default());
        let mut unsigned = namespace(&former);
        unsigned.metadata.annotations = None;
        let mut nobodys = unsigned.clone();
        nobodys.metadata.labels = None;
        let mut half = namespace(&elsewhere);
        half.metadata.annotations = None;
        let living = |cluster: &Cluster| vec![Arc::new(ClusterSummary::of(cluster))];
        for (rule, namespace, clusters, expected) in [
            ("its own", namespace(&present), living(&present), false),
            ("a namesake's that is gone", namespace(&former), living(&present), false),
            ("a namesake's that lives", namespace(&former), living(&former), true),
            ("of another Tenant", namespace(&elsewhere), living(&present), true),
            ("of another name", namespace(&cluster("b")), living(&present), true),
            ("its own without annotations", unsigned, living(&present), false),
            ("of another Tenant without annotations", half, living(&present), true),
            ("nobody's", nobodys, living(&present), true),
        ] {
            assert_eq!(
                is_foreign(&namespace, &identity(&present), || clusters),
                expected,
                "{rule}"
            );
        }
    }
}
