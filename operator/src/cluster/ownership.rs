//! Decides which owner an object of the host belongs to. Pure.

use std::sync::Arc;

use k8s_openapi::api::core::v1::{Namespace, Secret};
use kube::ResourceExt as _;
use kube::api::ObjectMeta;
use yoke_api::labels::{self, component};
use yoke_api::{Cluster, JoinToken};

use crate::model::cluster_summary::ClusterSummary;
use crate::model::identity::Identity;

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
    let exists = |uid: &String| clusters().iter().any(|cluster| *cluster.uid == **uid);
    let labelled = identity.labels(component::CONTROL_PLANE);
    let mut labels = labelled.iter();
    let is_labelled = labels.all(|(key, value)| namespace.labels().get(key) == Some(value));
    let owner = identity.owner_annotations().remove(labels::OWNER);
    let is_anothers = annotation(labels::OWNER).is_some_and(|other| Some(other) != owner.as_ref())
        || annotation(labels::OWNER_UID).is_some_and(exists);
    !is_labelled || is_anothers
}

/// Whether a Secret belongs to this Cluster. Another Cluster with the same identity may have left
/// one.
pub(crate) fn is_owned_secret(secret: &Secret, identity: &Identity) -> bool {
    let has = |key: &str, value: &str| secret.labels().get(key).map(String::as_str) == Some(value);
    has(labels::ID, identity.id.as_str())
        && has(labels::TENANT, &identity.tenant)
        && has(labels::CLUSTER, &identity.cluster)
}

/// Whether the labels of an object name this Tenant.
pub(crate) fn is_of_tenant(meta: &ObjectMeta, tenant: &str) -> bool {
    let label = meta.labels.as_ref().and_then(|labels| labels.get(labels::TENANT));
    label.map(String::as_str) == Some(tenant)
}

/// Whether a JoinToken is for this Cluster.
pub(crate) fn is_token_of(token: &JoinToken, cluster: &Cluster) -> bool {
    token.metadata.namespace == cluster.metadata.namespace
        && Some(&token.spec.cluster_name) == cluster.metadata.name.as_ref()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::resources::objects::build_namespace;
    use crate::fixtures::{cluster, identity};

    #[test]
    fn namespace_of_a_deleted_cluster_with_the_same_name_is_adopted() {
        let (previous, mut current) = (cluster("a"), cluster("a"));
        current.metadata.uid = Some("another".into());
        let mut elsewhere = previous.clone();
        elsewhere.metadata.namespace = Some("other".into());
        let namespace = |cluster: &Cluster| build_namespace(&identity(cluster), Default::default());
        let mut unannotated = namespace(&previous);
        unannotated.metadata.annotations = None;
        let mut unlabelled = unannotated.clone();
        unlabelled.metadata.labels = None;
        let mut partly_labelled = namespace(&elsewhere);
        partly_labelled.metadata.annotations = None;
        let existing = |cluster: &Cluster| vec![Arc::new(ClusterSummary::of(cluster))];
        for (rule, namespace, clusters, expected) in [
            ("own namespace", namespace(&current), existing(&current), false),
            (
                "of a deleted Cluster with this name",
                namespace(&previous),
                existing(&current),
                false,
            ),
            (
                "of an existing Cluster with this name",
                namespace(&previous),
                existing(&previous),
                true,
            ),
            ("of another Tenant", namespace(&elsewhere), existing(&current), true),
            ("of another name", namespace(&cluster("b")), existing(&current), true),
            (
                "own namespace without annotations",
                unannotated,
                existing(&current),
                false,
            ),
            (
                "of another Tenant without annotations",
                partly_labelled,
                existing(&current),
                true,
            ),
            ("without labels and annotations", unlabelled, existing(&current), true),
        ] {
            assert_eq!(
                is_foreign(&namespace, &identity(&current), || clusters),
                expected,
                "{rule}"
            );
        }
    }

    #[test]
    fn join_token_belongs_to_the_cluster_that_it_names_in_its_namespace() {
        let token = |name: &str, namespace: &str| {
            let token =
                serde_json::json!({"metadata": {"name": "t", "namespace": namespace}, "spec": {"clusterName": name}});
            serde_json::from_value::<JoinToken>(token).unwrap()
        };
        assert!(is_token_of(&token("a", "demo"), &cluster("a")));
        assert!(!is_token_of(&token("b", "demo"), &cluster("a")));
        assert!(!is_token_of(&token("a", "other"), &cluster("a")));
    }
}
