//! The fields of a Cluster that validation of other Clusters needs, cached instead of the object:
//! there may be thousands of Clusters. Pure.

use std::borrow::Cow;

use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt as _;
use kube::runtime::reflector::ObjectRef;
use yoke_api::cluster::Phase;
use yoke_api::{Cluster, ClusterId, ConditionType};

use crate::model::{conditions, quantity};

/// The fields of a Cluster that validation of other Clusters needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClusterSummary {
    /// The namespace, which is the Tenant's name.
    pub namespace: Box<str>,
    /// The name of the object.
    pub name: Box<str>,
    /// UID of the object.
    pub uid: Box<str>,
    /// Creation time.
    pub created: Option<Timestamp>,
    /// `spec.id`, not validated.
    pub id: Option<Box<str>>,
    /// Extra host names in its spec.
    pub extra_sans: Box<[String]>,
    /// The store's quota in bytes; `None` if the spec has no valid size.
    pub quota: Option<i64>,
    /// The phase in its status.
    pub phase: Option<Phase>,
    /// Whether the condition `Accepted` in its status is `False`.
    pub is_refused: bool,
}

impl ClusterSummary {
    /// Extracts the fields of a Cluster.
    pub fn of(cluster: &Cluster) -> Self {
        let meta = &cluster.metadata;
        Self {
            namespace: meta.namespace.as_deref().unwrap_or_default().into(),
            name: meta.name.as_deref().unwrap_or_default().into(),
            uid: meta.uid.as_deref().unwrap_or_default().into(),
            created: cluster.creation_timestamp().map(|created| created.0),
            id: cluster.spec.id.as_deref().map(Into::into),
            extra_sans: cluster.spec.endpoint.extra_sans.clone().into(),
            quota: quantity::to_bytes(&cluster.spec.storage.quota).ok(),
            phase: cluster.status.as_ref().and_then(|status| status.phase),
            is_refused: conditions::status_of(cluster, ConditionType::Accepted) == Some("False"),
        }
    }

    /// The identity, if it has been set to a valid one.
    pub fn identity(&self) -> Option<ClusterId> {
        self.id.as_deref()?.parse().ok()
    }

    /// The names that no two Clusters may share: the identity, the label of the public name, and
    /// the extra host names. The name of the object is not among them, as every namespace may have
    /// it.
    pub(crate) fn claims(&self) -> impl Iterator<Item = Cow<'_, str>> {
        let label = self.identity().map(|id| Cow::Owned(id.public_label(&self.name)));
        let extra = self.extra_sans.iter().map(|name| Cow::Borrowed(name.as_str()));
        let id = self.id.as_deref().map(Cow::Borrowed);
        id.into_iter().chain(label).chain(extra)
    }

    /// Whether it has precedence over another Cluster that claims the same name: the older first,
    /// then by namespace and name.
    pub fn precedes(&self, other: &Self) -> bool {
        self.uid != other.uid && self.rank() < other.rank()
    }

    /// The sort key of [`Self::precedes`].
    pub fn rank(&self) -> (Option<Timestamp>, &str, &str) {
        (self.created, &self.namespace, &self.name)
    }

    /// The key of the Cluster object.
    pub fn to_key(&self) -> ObjectRef<Cluster> {
        ObjectRef::new(&self.name).within(&self.namespace)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::{ID, cluster, made_at, with};

    #[test]
    fn a_summary_has_the_fields_that_others_are_validated_against() {
        let mut claiming = with(cluster("a"), |spec| spec.endpoint.extra_sans = vec!["x.example".into()]);
        claiming.status = serde_json::from_value(serde_json::json!({"phase": "Refused", "conditions": [{"type": "Accepted",
            "status": "False", "reason": "QuotaExceeded", "message": "x", "lastTransitionTime": "2026-01-01T00:00:00Z"}]}))
        .unwrap();
        let summary = ClusterSummary::of(&claiming);
        assert_eq!(
            summary,
            ClusterSummary {
                namespace: "demo".into(),
                name: "a".into(),
                uid: "uid-a".into(),
                created: Timestamp::from_second(100).ok(),
                id: Some(ID.into()),
                extra_sans: ["x.example".to_owned()].into(),
                quota: Some(256 << 20),
                phase: Some(Phase::Refused),
                is_refused: true,
            }
        );
        assert_eq!(summary.to_key(), ObjectRef::from_obj(&claiming));
        assert_eq!(summary.identity(), claiming.id());
        let invalid = ClusterSummary::of(&with(cluster("a"), |spec| {
            (spec.id, spec.storage.quota.0) = (Some("1".into()), "many".into());
        }));
        assert_eq!(
            (invalid.identity(), invalid.quota, invalid.is_refused),
            (None, None, false)
        );
    }

    #[test]
    fn the_older_cluster_precedes_and_then_the_name() {
        let created = |name: &str, second| ClusterSummary::of(&made_at(cluster(name), second));
        for (rule, one, other, expected) in [
            ("older", created("b", 1), created("a", 2), true),
            ("younger", created("a", 2), created("b", 1), false),
            ("as old", created("a", 1), created("b", 1), true),
            ("itself", created("a", 1), created("a", 2), false),
        ] {
            assert_eq!(one.precedes(&other), expected, "{rule}");
        }
    }
}
