//! The end of a Cluster that lives for a given time.

use std::time::Duration;

use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt as _;
use kube::api::{DeleteParams, Preconditions};
use yoke_api::{Cluster, Reason};

use super::{CONTROLLER, patch};

use crate::context::Context;
use crate::error::ReconcileError;
use crate::events::Notice;

/// When it is looked whether one that is over is gone.
pub(super) const AGAIN: Duration = Duration::from_secs(1);

/// How long the Cluster has still to live; `None`: for ever, or as long as it is paused.
pub(super) fn plan_remaining(cluster: &Cluster, now: Timestamp) -> Option<Duration> {
    let lifetime = cluster.spec.lifetime().filter(|_| !cluster.spec.paused)?;
    let lived = now.duration_since(cluster.metadata.creation_timestamp.as_ref()?.0);
    // A clock that is behind the host's makes nothing live longer.
    let lived = Duration::try_from(lived).unwrap_or_default();
    Some(lifetime.saturating_sub(lived))
}

/// Deletes the Cluster as it was read: who has just given it more time keeps it.
pub(super) async fn delete(context: &Context, cluster: &Cluster) -> Result<(), ReconcileError> {
    let parameters = DeleteParams {
        preconditions: Some(Preconditions {
            uid: cluster.uid(),
            resource_version: cluster.resource_version(),
        }),
        ..DeleteParams::background()
    };
    let deleted = patch::api(context, cluster)
        .delete(&cluster.name_any(), &parameters)
        .await;
    match deleted {
        Ok(_) => {}
        Err(kube::Error::Api(refused)) if matches!(refused.code, 404 | 409) => return Ok(()),
        Err(error) => return Err(ReconcileError::host("the end of a Cluster")(error)),
    }
    let ttl = cluster.spec.ttl.as_deref().unwrap_or_default();
    tracing::info!(controller = CONTROLLER, cluster = ?cluster.spec.id, ttl, "deleted, as its time is over");
    let notice = Notice {
        warning: false,
        action: "Delete",
        reason: Reason::Expired,
        note: format!("Deleted {ttl} after its creation, as spec.ttl says."),
    };
    context.events.publish(cluster, &[notice]).await;
    Ok(())
}

#[cfg(test)]
mod tests {
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

    use super::*;
    use crate::cluster::fixtures::{cluster, with};

    #[test]
    fn a_lifetime_begins_with_the_object() {
        let made = Timestamp::from_second(1_000_000).unwrap();
        let lives = |ttl: Option<&str>, paused: bool, second: i64| {
            let mut cluster = with(cluster("a"), |spec| {
                spec.ttl = ttl.map(ToOwned::to_owned);
                spec.paused = paused;
            });
            cluster.metadata.creation_timestamp = Some(Time(made));
            plan_remaining(&cluster, Timestamp::from_second(1_000_000 + second).unwrap())
        };
        let seconds = |seconds| Some(Duration::from_secs(seconds));
        for (rule, ttl, paused, second, expected) in [
            ("for ever", None, false, 10, None),
            ("begins", Some("2m"), false, 0, seconds(120)),
            ("a clock behind the host's", Some("2m"), false, -50, seconds(120)),
            ("goes on", Some("2m"), false, 100, seconds(20)),
            ("is over", Some("2m"), false, 120, seconds(0)),
            ("long ago", Some("2m"), false, 9_999_999, seconds(0)),
            ("is paused", Some("2m"), true, 120, None),
            ("nothing that is understood", Some("soon"), false, 120, None),
        ] {
            assert_eq!(lives(ttl, paused, second), expected, "{rule}");
        }
    }
}
