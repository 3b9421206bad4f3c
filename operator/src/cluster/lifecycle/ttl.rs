//! Deletes a Cluster when its lifetime (`spec.ttl`) is over.

use std::time::Duration;

use k8s_openapi::jiff::Timestamp;
use k8s_openapi::jiff::fmt::rfc2822;
use kube::api::{DeleteParams, Preconditions};
use kube::client::Body;
use kube::{Client, ResourceExt as _};
use yoke_api::{Cluster, Reason};

use crate::cluster::context::Context;
use crate::cluster::{CONTROLLER, object};
use crate::error::ReconcileError;
use crate::host_api::events::Notice;

/// Requeue delay after a deletion, to check that the object is gone.
pub(crate) const DELETION_REQUEUE: Duration = Duration::from_secs(1);

/// Remaining lifetime of a Cluster; `None` if it has no limit or is paused. When the lifetime is
/// over by the clock of this process, the host API's clock must agree, as that one set the creation
/// time. If the host API sends no time, the clock of this process counts.
pub(crate) async fn find_remaining_lifetime(
    host: &Client,
    cluster: &Cluster,
    now: Timestamp,
) -> Result<Option<Duration>, ReconcileError> {
    let remaining = plan_remaining_lifetime(cluster, now);
    if remaining.is_none_or(|remaining| !remaining.is_zero()) {
        return Ok(remaining);
    }
    Ok(plan_remaining_lifetime(
        cluster,
        fetch_host_time(host).await?.unwrap_or(now),
    ))
}

/// The time by the host API, if it sends one: RFC 9110, 6.6.1, in whole seconds.
async fn fetch_host_time(client: &Client) -> Result<Option<Timestamp>, ReconcileError> {
    let request = http::Request::get("/version").body(Body::empty());
    let request =
        request.map_err(|error| ReconcileError::host("the time of the host API")(kube::Error::HttpError(error)))?;
    let answer = client
        .send(request)
        .await
        .map_err(ReconcileError::host("the time of the host API"))?;
    let date = answer.headers().get(http::header::DATE);
    let date = date.and_then(|date| rfc2822::parse(date.to_str().ok()?).ok());
    Ok(date.map(|date| date.timestamp()))
}

fn plan_remaining_lifetime(cluster: &Cluster, now: Timestamp) -> Option<Duration> {
    let lifetime = cluster.spec.lifetime().filter(|_| !cluster.spec.paused)?;
    let age = now.duration_since(cluster.metadata.creation_timestamp.as_ref()?.0);
    // A clock that is behind the host's does not extend a lifetime.
    let age = Duration::try_from(age).unwrap_or_default();
    Some(lifetime.saturating_sub(age))
}

/// Deletes the Cluster only if it is unchanged since it was read: its owner may just have extended
/// the lifetime.
pub(crate) async fn delete_expired(context: &Context, cluster: &Cluster) -> Result<(), ReconcileError> {
    let parameters = DeleteParams {
        preconditions: Some(Preconditions {
            uid: cluster.uid(),
            resource_version: cluster.resource_version(),
        }),
        ..DeleteParams::background()
    };
    let deleted = object::api(context, cluster)
        .delete(&cluster.name_any(), &parameters)
        .await;
    match deleted {
        Ok(_) => {}
        Err(kube::Error::Api(refused)) if matches!(refused.code, 404 | 409) => return Ok(()),
        Err(error) => return Err(ReconcileError::host("an expired Cluster")(error)),
    }
    let ttl = cluster.spec.ttl.as_deref().unwrap_or_default();
    tracing::info!(controller = CONTROLLER, cluster = ?cluster.spec.id, ttl, "Cluster is expired and was deleted");
    let notice = Notice {
        warning: false,
        action: "Delete",
        reason: Reason::Expired,
        note: format!("Deleted {ttl} after its creation, by spec.ttl."),
    };
    context.host.events.publish(cluster, &[notice]).await;
    Ok(())
}

#[cfg(test)]
mod tests {
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

    use super::*;
    use crate::fixtures::{cluster, with};

    #[tokio::test]
    async fn lifetime_ends_by_the_clock_of_the_host() {
        const CREATED: i64 = 784_111_777;
        let mut cluster = with(cluster("a"), |spec| spec.ttl = Some("2m".into()));
        cluster.metadata.creation_timestamp = Some(Time(Timestamp::from_second(CREATED).unwrap()));
        for (rule, own, host, expected) in [
            (
                "not over by the own clock",
                100,
                Some("Sun, 06 Nov 1994 09:49:37 GMT"),
                20,
            ),
            ("over by both clocks", 120, Some("Sun, 06 Nov 1994 08:51:37 GMT"), 0),
            ("own clock is ahead", 9_000, Some("Sun, 06 Nov 1994 08:50:37 GMT"), 60),
            ("host sends no time", 120, None, 0),
            ("host sends an invalid time", 120, Some("yesterday"), 0),
        ] {
            let service = tower::service_fn(move |_| {
                let response = http::Response::builder();
                let response = host
                    .into_iter()
                    .fold(response, |response, date| response.header("date", date));
                std::future::ready(response.body(Body::empty()))
            });
            let now = Timestamp::from_second(CREATED + own).unwrap();
            let remaining = find_remaining_lifetime(&Client::new(service, "default"), &cluster, now).await;
            assert_eq!(remaining.unwrap(), Some(Duration::from_secs(expected)), "{rule}");
        }
    }

    #[test]
    fn lifetime_starts_with_the_creation() {
        let created = Timestamp::from_second(1_000_000).unwrap();
        let remaining = |ttl: Option<&str>, paused: bool, second: i64| {
            let mut cluster = with(cluster("a"), |spec| {
                spec.ttl = ttl.map(ToOwned::to_owned);
                spec.paused = paused;
            });
            cluster.metadata.creation_timestamp = Some(Time(created));
            plan_remaining_lifetime(&cluster, Timestamp::from_second(1_000_000 + second).unwrap())
        };
        let seconds = |seconds| Some(Duration::from_secs(seconds));
        for (rule, ttl, paused, second, expected) in [
            ("no limit", None, false, 10, None),
            ("just created", Some("2m"), false, 0, seconds(120)),
            ("a clock behind the host's", Some("2m"), false, -50, seconds(120)),
            ("20 s remain", Some("2m"), false, 100, seconds(20)),
            ("just over", Some("2m"), false, 120, seconds(0)),
            ("over for long", Some("2m"), false, 9_999_999, seconds(0)),
            ("paused", Some("2m"), true, 120, None),
            ("invalid ttl", Some("soon"), false, 120, None),
        ] {
            assert_eq!(remaining(ttl, paused, second), expected, "{rule}");
        }
    }
}
