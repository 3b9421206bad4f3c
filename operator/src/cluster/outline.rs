//! A Cluster in outline: what of it others are held against. There may be thousands. Pure.

use std::borrow::Cow;

use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt as _;
use kube::runtime::reflector::ObjectRef;
use yoke_api::cluster::Phase;
use yoke_api::{Cluster, ClusterId, ConditionType};

use crate::conditions;
use crate::quantity;

/// What of a Cluster others are held against.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outline {
    /// The namespace, which is the Tenant's name.
    pub namespace: Box<str>,
    /// The name.
    pub name: Box<str>,
    /// UID of the object.
    pub uid: Box<str>,
    /// When it was made.
    pub created: Option<Timestamp>,
    /// `spec.id`, as it stands there.
    pub id: Option<Box<str>>,
    /// Host names that it asks for.
    pub extra_sans: Box<[String]>,
    /// The store's quota in bytes, if what it asks for is a size.
    pub quota: Option<i64>,
    /// The phase, as its status says.
    pub phase: Option<Phase>,
    /// Whether its status says that its spec is not accepted.
    pub is_refused: bool,
}

impl Outline {
    /// A Cluster in outline.
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

    /// What it cannot share with another: its identity, its public name's label, and the host names that it asks for. Not its
    /// name, which one in each namespace may have.
    pub(crate) fn claims(&self) -> impl Iterator<Item = Cow<'_, str>> {
        let label = self.identity().map(|id| Cow::Owned(id.public_label(&self.name)));
        let extra = self.extra_sans.iter().map(|name| Cow::Borrowed(name.as_str()));
        let id = self.id.as_deref().map(Cow::Borrowed);
        id.into_iter().chain(label).chain(extra)
    }

    /// Whether it comes before another one where both want the same: the older, then the one whose name sorts first.
    pub fn precedes(&self, other: &Self) -> bool {
        self.uid != other.uid && self.rank() < other.rank()
    }

    /// See [`Self::precedes`].
    pub fn rank(&self) -> (Option<Timestamp>, &str, &str) {
        (self.created, &self.namespace, &self.name)
    }

    /// Which Cluster it is.
    pub fn to_key(&self) -> ObjectRef<Cluster> {
        ObjectRef::new(&self.name).within(&self.namespace)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::fixtures::{ID, cluster, made_at, with};

    #[test]
    fn an_outline_says_what_others_are_held_against() {
        let mut asking = with(cluster("a"), |spec| spec.endpoint.extra_sans = vec!["x.example".into()]);
        asking.status = serde_json::from_value(serde_json::json!({"phase": "Refused", "conditions": [{"type": "Accepted",
            "status": "False", "reason": "QuotaExceeded", "message": "x", "lastTransitionTime": "2026-01-01T00:00:00Z"}]}))
        .unwrap();
        let outline = Outline::of(&asking);
        assert_eq!(
            outline,
            Outline {
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
        assert_eq!(outline.to_key(), ObjectRef::from_obj(&asking));
        assert_eq!(outline.identity(), asking.id());
        let odd = Outline::of(&with(cluster("a"), |spec| {
            (spec.id, spec.storage.quota.0) = (Some("1".into()), "many".into());
        }));
        assert_eq!((odd.identity(), odd.quota, odd.is_refused), (None, None, false));
    }

    #[test]
    fn the_older_precedes_and_then_the_name() {
        let made = |name: &str, second| Outline::of(&made_at(cluster(name), second));
        for (rule, one, other, expected) in [
            ("older", made("b", 1), made("a", 2), true),
            ("younger", made("a", 2), made("b", 1), false),
            ("as old", made("a", 1), made("b", 1), true),
            ("itself", made("a", 1), made("a", 2), false),
        ] {
            assert_eq!(one.precedes(&other), expected, "{rule}");
        }
    }
}
