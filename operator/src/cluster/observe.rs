//! What there is of one Cluster, out of the watches.

use std::sync::Arc;

use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::core::v1::{Namespace, Pod, Secret, Service};
use kube::runtime::reflector::ObjectRef;
use kube::{Api, Client, ResourceExt as _};
use yoke_api::labels::{self, component};
use yoke_api::names::PKI_NAMESPACE;
use yoke_api::{Cluster, ClusterId, ConditionType};
use yoke_pki::ParsedCertificate;
use yoke_pki::plan::{AuthorityRole, Generation};

use super::build::stateful_set;
use super::gate::{self, takeover};
use super::identity::Identity;
use super::kept::{self, data_of};
use super::outline::Outline;
use crate::cache::Caches;
use crate::conditions;
use crate::error::ReconcileError;

/// What there is of one Cluster.
#[derive(Debug)]
pub(super) struct Observed {
    /// The hosted namespace.
    pub(super) namespace: Option<Arc<Namespace>>,
    /// The control plane.
    pub(super) stateful_set: Option<Arc<StatefulSet>>,
    /// Its pods, those that end included.
    pub(super) pods: Vec<Arc<Pod>>,
    /// Its Service.
    pub(super) service: Option<Arc<Service>>,
    /// Whether a namespace or a store of that identity is there and belongs to somebody else.
    pub(super) is_foreign: bool,
    /// Whether the Cluster was Ready, and the kubelet finds that its pod still is.
    pub(super) is_trusted: bool,
}

pub(super) fn observe(caches: &Caches, cluster: &Cluster, identity: &Identity) -> Observed {
    let mut observed = observe_identity(caches, identity);
    observed.is_trusted =
        observed.answers().is_ok() && conditions::status_of(cluster, ConditionType::Ready) == Some("True");
    observed
}

/// What there is of an identity, whether or not a Cluster has it.
pub(super) fn observe_identity(caches: &Caches, identity: &Identity) -> Observed {
    let hosted = identity.hosted().to_string();
    let id = identity.id.as_str();
    let namespace = caches.namespaces.get(&ObjectRef::new(&hosted));
    let store = ObjectRef::<Secret>::new(&identity.store_secret()).within(PKI_NAMESPACE);
    let store = caches.secrets.get(&store);
    Observed {
        is_trusted: false,
        is_foreign: namespace
            .as_deref()
            .is_some_and(|namespace| is_foreign(namespace, identity, || caches.clusters.outlines()))
            || store.is_some_and(|store| !kept::is_of(&store, identity)),
        namespace,
        stateful_set: caches
            .stateful_sets
            .get(&ObjectRef::new(stateful_set::NAME).within(&hosted)),
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

/// The certificate of a Cluster's CA, if it is issued; asked for, as few need it.
pub(crate) async fn find_authority(
    client: &Client,
    id: &ClusterId,
    role: AuthorityRole,
) -> Result<Option<ParsedCertificate>, ReconcileError> {
    let api = Api::<Secret>::namespaced(client.clone(), PKI_NAMESPACE);
    let secret = kept::find(&api, &role.object_name(id, Generation::FIRST)).await?;
    let text = secret.and_then(|secret| String::from_utf8(data_of(&secret).remove("tls.crt")?).ok());
    let chain = text.and_then(|text| ParsedCertificate::from_pem(&text).ok());
    Ok(chain.and_then(|chain| chain.into_iter().next()))
}

impl Observed {
    /// Whether the API answers, by what the kubelet finds of the pod that serves; one that stands by says nothing of that.
    pub(super) fn answers(&self) -> Result<(), String> {
        let mut serving = takeover::serving(self.stateful_set.as_deref(), &self.pods);
        match serving.any(takeover::has_ready_api) {
            true => Ok(()),
            false => Err("the control plane's pod is not ready".to_owned()),
        }
    }

    /// Whether all of the pod that serves is ready.
    pub(super) fn is_whole(&self) -> bool {
        takeover::serving(self.stateful_set.as_deref(), &self.pods).any(takeover::is_ready)
    }

    /// The pod of the control plane, if it is to stay: one that was to end when the Cluster was asked for again is not.
    pub(super) fn staying_pod(&self) -> Option<&Pod> {
        let set = self.stateful_set.as_deref()?;
        let replicas = set.spec.as_ref().and_then(|spec| spec.replicas);
        let mut serving = takeover::serving(Some(set), &self.pods);
        let (Some(pod), None) = (serving.next(), serving.next()) else {
            return None;
        };
        let stays = replicas != Some(0) && gate::is_observed(set) && pod.metadata.deletion_timestamp.is_none();
        stays.then_some(pod)
    }

    /// Whether no control plane is asked for, whatever the spec says now.
    pub(super) fn is_asleep(&self) -> bool {
        let spec = self.stateful_set.as_deref().and_then(|set| set.spec.as_ref());
        spec.is_some_and(|spec| spec.replicas == Some(0))
    }

    /// Whether there is a control plane that is this Cluster's, made when its spec was accepted.
    pub(super) fn is_kept(&self) -> bool {
        let namespace = self.namespace.as_deref();
        self.stateful_set.is_some()
            && namespace.is_some_and(|namespace| namespace.metadata.deletion_timestamp.is_none())
            && !self.is_foreign
    }
}

/// Whether a namespace belongs to somebody else than this Cluster.
///
/// Its own is one that has its UID, or was left by a Cluster that was restored under this one: labels say the identity, the
/// name and the Tenant, and no annotation names anybody else, or the UID of a Cluster that lives.
pub(super) fn is_foreign(
    namespace: &Namespace,
    identity: &Identity,
    clusters: impl FnOnce() -> Vec<Arc<Outline>>,
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::build::hosted::build_namespace;
    use crate::cluster::fixtures::{cluster, identity};

    #[test]
    fn one_that_stands_by_does_not_answer() {
        let pod = |number: i32, ready: &str| {
            let pod = serde_json::json!({"metadata": {"name": stateful_set::pod_name(number)},
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
        let living = |cluster: &Cluster| vec![Arc::new(Outline::of(cluster))];
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
